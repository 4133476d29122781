"""Thesis, HTTPS-3: Python over TLS, by all servers and all ways to run it."""

from ewe_lab.experiments.thesis_dynamic import FLUP, KEEP, NO_KEEP, DynamicTest, experiment
from ewe_lab.experiments.thesis_workers import ONE_CORE
from ewe_lab.stacks.ways import Way

SEVERAL = 4  # processes of nginx and lighttpd, where they have more than one
WAYS = (
    Way("apache-prefork", "uwsgi", "python"),
    Way("apache-worker", "uwsgi", "python"),
    Way("apache-event", "uwsgi", "python"),
    Way("nginx", "uwsgi", "python", label="nginx 1"),
    Way("nginx", "uwsgi", "python", SEVERAL, label=f"nginx {SEVERAL}"),
    Way("lighttpd", "fastcgi", "python", label="lighttpd 1"),
    Way("lighttpd", "fastcgi", "python", SEVERAL, label=f"lighttpd {SEVERAL}"),
    Way("ewe", "wsgi", "python", model="thread", label="ewe -t wsgi"),
    Way("ewe", "wsgi", "python", label="ewe -a wsgi"),
    Way("ewe", "fastcgi", "python"),
    Way("ewe", "xswitch", "python"),
)
NAMES = {  # our ways: the document's
    "prefork uwsgi": "Apache Prefork", "worker uwsgi": "Apache Worker", "event uwsgi": "Apache Event",
    "nginx 1": "Nginx", f"nginx {SEVERAL}": "Nginx, several", "lighttpd 1": "Lighttpd",
    f"lighttpd {SEVERAL}": "Lighttpd, several",
}  # fmt: skip


def printed(*rates: float) -> dict[str, tuple[str, float]]:
    """Return printed rates, in the order of NAMES."""
    return {way: (name, rate) for (way, name), rate in zip(NAMES.items(), rates, strict=True)}


TEST = DynamicTest(
    WAYS,
    {
        NO_KEEP: printed(1_400, 1_400, 1_400, 1_200, 1_400, 900, 1_200),
        KEEP: printed(1_400, 1_400, 1_400, 1_400, 1_400, 1_400, 1_900),
    },
    clients=(10, 100, 250),
    notes=(FLUP, ONE_CORE),
    plain={
        NO_KEEP: printed(5_000, 5_000, 5_000, 6_000, 6_000, 1_700, 1_700),
        KEEP: printed(5_000, 5_000, 5_000, 6_000, 6_000, 1_800, 1_800),
    },
)
EXPERIMENT = experiment(
    "T-HS3",
    "figures 4.26, 4.27 and A.35 to A.40",
    "Python over TLS",
    "TLS leaves Apache and nginx 1,400 a second of 5,000 and 6,000, with keep-alive and without; lighttpd with "
    "several processes reaches 1,900 with keep-alive.",
    TEST,
    reference="event uwsgi",
    paper_reference="Apache Event",
    minutes=8.5,
    varies="server, its processes, clients at once; TLS 1.2 with AES256-SHA, TLS 1.3, no TLS",
    errata=(
        "Lighttpd with one process is the last without keep-alive, behind Hiawatha's 900, in figure 4.26; it has "
        "1,400 in figure A.37.",
        "Lighttpd's best with keep-alive is 1,900 in section 4.3.3, and 1,800 in the appendix.",
        "Lighttpd's penalty is printed as 35 %; of the 1,700 of DT-2 that would leave 1,100, not 1,400.",
        "What stands beside the columns without TLS are the thesis's figures of DT-2.",
    ),
)
