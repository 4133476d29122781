"""The thesis: what waits for TLS before programs, for PHP's accelerators, and for the blog's load."""

from ewe.lab.experiment import Experiment
from ewe.lab.experiments.thesis import AB, KEEP, MACHINE, NO_KEEP
from ewe.lab.experiments.waiting import Waiting, cells, joined
from ewe.lab.results import Cell

TLS = "TLS on the web servers before programs"
OPCACHE = "a way to run PHP with and without its opcache"
BEFORE, AFTER = "VmRSS before the main page", "VmRSS after the main page"
ACCELERATORS = {  # kB, before and after the main page was loaded
    "mod_php": (5012, 8308),
    "mod_php with APC": (5052, 8028),
    "mod_php with Xcache": (5072, 8904),
    "mod_php with eAccelerator": (5020, 7884),
    "FastCGI": (3748, 6684),
    "FastCGI with APC": (3792, 6328),
    "FastCGI with Xcache": (3812, 7220),
    "FastCGI with eAccelerator": (3764, 6176),
    "PHP-FPM": (4140, 6788),
    "PHP-FPM with APC": (4180, 6484),
    "PHP-FPM with Xcache": (4196, 7348),
    "PHP-FPM with eAccelerator": (4160, 6332),
}


def waits(
    id: str, source: str, title: str, claim: str, needs: str, printed: tuple[Cell, ...] = (), *,
    quick: bool = False, varies: str = "server, clients at once", measures: str = "requests a second",
    errata: tuple[str, ...] = (AB,),
) -> Waiting:  # fmt: skip
    """Return an experiment of the thesis that waits."""
    experiment = Experiment(
        id=id,
        document="thesis",
        source=source,
        title=title,
        claim=claim,
        varies=varies,
        measures=measures,
        quick=quick,
        needs=needs,
        errata=errata,
        machine=MACHINE,
    )
    return experiment, printed


WAITING: tuple[Waiting, ...] = (
    waits(
        "T-HS2",
        "figures 4.24, 4.25 and A.29 to A.34",
        "PHP over TLS",
        "Without keep-alive the handshake makes all equal; with it lighttpd with several processes leads.",
        TLS,
        joined(
            (
                cells({"all": 1_400}, NO_KEEP),
                cells(
                    {"Lighttpd, several processes": 4_500, "Lighttpd, one": 3_000, "the rest": 1_400}, KEEP
                ),
            )
        ),
        errata=(AB, "Lighttpd's 4,500 is in the text of the figure; the conclusions have 4,000."),
    ),
    waits(
        "T-HS3",
        "figures 4.26, 4.27 and A.35 to A.40",
        "Python over TLS",
        "TLS costs Apache 72 % and nginx 78 %, and nobody gets above 1,900.",
        TLS,
        joined((cells({"the best": 1_400}, NO_KEEP), cells({"the best": 1_900}, KEEP))),
    ),
    waits(
        "T-LD",
        "figures 4.28 and A.41 to A.45",
        "A blog under load, an hour long",
        "Apache prefork takes all CPU and 4 GB and lets users time out; event loses nobody; nginx and lighttpd "
        "need less of both.",
        "WordPress with a database, or a small blog in its place",
        joined(
            (
                cells(
                    {"Apache prefork": 4.0, "Lighttpd": 2.0, "Nginx": 2.8, "Cherokee": 3.4}, "memory", "GB"
                ),
                cells(
                    {"Apache prefork": 100, "Apache event": 100, "Lighttpd": 90, "Nginx": 90, "Cherokee": 92},
                    "CPU",
                    "%",
                ),
            )
        ),
        quick=True,
        varies="server; 100, 450 and 200 users a second",
        measures="requests a second, CPU, memory",
        errata=(),
    ),
    waits(
        "T-A12",
        "table A.12",
        "PHP accelerators",
        "An accelerator saves time and costs hardly any memory.",
        OPCACHE,
        joined(
            cells({name: pair[index] for name, pair in ACCELERATORS.items()}, column, "kB")
            for index, column in enumerate((BEFORE, AFTER))
        ),
        varies="accelerator",
        measures="VmRSS before and after the main page",
        errata=(),
    ),
)
