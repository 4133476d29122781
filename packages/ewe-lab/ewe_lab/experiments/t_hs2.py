"""Thesis, HTTPS-2: PHP over TLS, by all servers and all ways to run it."""

from ewe_lab.experiments.thesis_dynamic import KEEP, NO_KEEP, DynamicTest, experiment
from ewe_lab.experiments.thesis_workers import ONE_CORE
from ewe_lab.stacks.ways import Way

SEVERAL = 4  # processes of nginx and lighttpd, where they have more than one
WAYS = (
    Way("apache-prefork", "mod_php", "php"),
    Way("apache-worker", "php-fpm", "php"),
    Way("apache-event", "php-fpm", "php"),
    Way("nginx", "php-fpm", "php", label="nginx 1"),
    Way("nginx", "php-fpm", "php", SEVERAL, label=f"nginx {SEVERAL}"),
    Way("lighttpd", "php-cgi", "php", label="lighttpd 1"),
    Way("lighttpd", "php-cgi", "php", SEVERAL, label=f"lighttpd {SEVERAL}"),
    Way("ewe", "php-fpm", "php"),
    Way("ewe", "xswitch", "php"),
)
NAMES = {  # our ways: the document's
    "prefork mod_php": "Apache Prefork", "worker php-fpm": "Apache Worker", "event php-fpm": "Apache Event",
    "nginx 1": "Nginx", f"nginx {SEVERAL}": "Nginx, several", "lighttpd 1": "Lighttpd",
    f"lighttpd {SEVERAL}": "Lighttpd, several",
}  # fmt: skip


def printed(*rates: float) -> dict[str, tuple[str, float]]:
    """Return printed rates, in the order of NAMES."""
    return {way: (name, rate) for (way, name), rate in zip(NAMES.items(), rates, strict=True)}


TEST = DynamicTest(
    WAYS,
    {
        NO_KEEP: printed(1_400, 1_040, 1_040, 1_077, 1_400, 1_077, 1_400),
        KEEP: printed(1_200, 1_200, 1_200, 1_400, 1_400, 3_000, 4_500),
    },
    clients=(10, 100, 250),
    notes=(ONE_CORE,),
    plain={
        NO_KEEP: printed(7_000, 2_600, 2_600, 4_000, 4_500, 4_000, 5_000),
        KEEP: printed(10_000, 3_000, 3_000, 3_800, 5_100, 4_500, 6_000),
    },
)
EXPERIMENT = experiment(
    "T-HS2",
    "figures 4.24, 4.25 and A.29 to A.34",
    "PHP over TLS",
    "Without keep-alive the handshake makes all nearly equal (1,040 to 1,400 a second); with it lighttpd alone "
    "gains: 3,000 with one process, 4,500 with several.",
    TEST,
    reference="prefork mod_php",
    paper_reference="Apache Prefork",
    minutes=7.0,
    varies="server, its processes, clients at once; TLS 1.2 with AES256-SHA, TLS 1.3, no TLS",
    errata=(
        "Lighttpd's 4,500 is in the text of the figure; the conclusions have 4,000.",
        "Nginx and Lighttpd gain 30 % by more processes, to 1,400: so 1,077 for one. TLS costs Apache Worker and "
        "Event 150 % of 2,600: so 1,040.",
        "What stands beside the columns without TLS are the thesis's figures of DT-1.",
    ),
)
