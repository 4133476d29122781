"""Thesis, DT-2 server by server: Apache's models, nginx's and lighttpd's processes; and ewe's engines."""

from ewe.lab.experiments.thesis_dynamic import FLUP, KEEP, NO_KEEP, Dynamic, experiment
from ewe.lab.experiments.thesis_workers import ONE_CORE
from ewe.lab.ways import Way

APACHE = tuple(Way(f"apache-{mpm}", "uwsgi", "python") for mpm in ("prefork", "worker", "event"))
NGINX = tuple(Way("nginx", "uwsgi", "python", count, label=f"nginx {count}") for count in (1, 2, 4, 8))
LIGHTTPD = tuple(
    Way("lighttpd", "fastcgi", "python", count, label=f"lighttpd {count}") for count in (1, 2, 4, 8)
)
EWE = tuple(
    Way(
        "ewe",
        "xswitch",
        "python",
        children=count,
        label=f"ewe, {count} engine{'s' if count > 1 else ''}",
    )
    for count in (1, 2, 4)
)
PRINTED = {
    **{way.name: ("Apache uWSGI", 5_000.0) for way in APACHE},
    **{way.name: ("Nginx uWSGI", 6_000.0) for way in NGINX},
    **{way.name: ("Lighttpd FastCGI", 1_800.0) for way in LIGHTTPD},
}
WITHOUT = PRINTED | {way.name: ("Lighttpd FastCGI", 1_700.0) for way in LIGHTTPD}
TEST = Dynamic(
    (*APACHE, *NGINX, *LIGHTTPD, *EWE),
    {NO_KEEP: WITHOUT, KEEP: PRINTED},
    clients=(10, 100, 250),
    notes=(FLUP, ONE_CORE),
)
EXPERIMENT = experiment(
    "T-DT2s",
    "figures 4.18 to 4.20 and A.14 to A.18",
    "Python, server by server",
    "Apache event is the best of Apache's; nginx stays at 6,000 with 250 clients whatever its processes.",
    TEST,
    reference="nginx 1",
    paper_reference="Nginx uWSGI",
    minutes=8.0,
    varies="server, its processes, clients at once",
    errata=("nginx's 6,000 are those at 250 clients; Apache's 5,000 stand beside all three of its models.",),
)
