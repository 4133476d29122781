"""Thesis, DT-1 with more than one process of lighttpd and of nginx."""

from ewe.lab.experiments.thesis_dynamic import KEEP, NO_KEEP, Dynamic, experiment
from ewe.lab.experiments.thesis_workers import ONE_CORE
from ewe.lab.ways import Way

PROCESSES = (1, 2, 4, 8)
WAYS = tuple(
    Way(front, by, "php", processes=count, label=f"{front} {count}")
    for front, by in (("lighttpd", "php-cgi"), ("nginx", "php-fpm"))
    for count in PROCESSES
)


def printed(lighttpd: tuple[float, ...], nginx: tuple[float, ...]) -> dict[str, tuple[str, float]]:
    """Return what is printed for one, two, four and eight processes."""
    found = {}
    for front, name, rates in (("lighttpd", "Lighttpd", lighttpd), ("nginx", "Nginx", nginx)):
        for count, rate in zip(PROCESSES, rates, strict=True):
            found[f"{front} {count}"] = (f"{name} {count}", rate)
    return found


TEST = Dynamic(
    WAYS,
    {
        NO_KEEP: printed((4_000, 5_000, 5_000, 5_000), (4_000, 4_500, 4_500, 4_500)),
        KEEP: printed((4_500, 6_000, 6_000, 6_000), (3_800, 4_200, 5_100, 5_100)),
    },
    clients=(10, 100, 250),
    notes=(ONE_CORE,),
)
EXPERIMENT = experiment(
    "T-DT1w",
    "figures 4.14, 4.15, A.10 and A.11",
    "PHP and the number of processes",
    "More processes bring lighttpd and nginx up to 1,500 a second.",
    TEST,
    reference="nginx 1",
    paper_reference="Nginx 1",
    minutes=4.5,
    varies="server processes, clients at once",
    errata=(
        "“More than one” of lighttpd's processes have one figure; it stands beside two, four and eight.",
    ),
)
