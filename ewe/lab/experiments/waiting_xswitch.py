"""X-Switch: what waits for its main module and engines."""

from ewe.lab.experiment import Experiment
from ewe.lab.experiments.waiting import Waiting, cells, joined
from ewe.lab.results import Cell

NEEDS = "the X-Switch main module and its engines"
MACHINE = {
    "server": "Pentium M, 1.73 GHz",
    "client": "Pentium 4, 3.2 GHz; Siege 2.65, JMeter 2.2, a C program",
    "network": "crossover cable",
}
IRT, ART = "initial response time", "average response time"
TABLE_2 = {  # initial and average response time, ms
    "X-Switch Java": (450, 54),
    "Apache Tomcat": (180, 48),
    "X-Switch PHP": (234, 36),
    "Apache mod_php": (20, 35),
    "X-Switch Perl": (243, 39),
    "FastCGI Perl": (238, 43),
    "Speedy Perl": (236, 38),
    "X-Switch Python": (180, 42),
    "Apache mod_python": (88, 52),
}
TABLE_1 = {  # percent as printed
    "Web application": 24.52,
    "Apache": 40.13,
    "Mod_x": 14.40,
    "Processing engine": 11.06,
    "X-Switch": 9.89,
}
TABLE_1_SECONDS = {
    "Web application": 14.957005,
    "Apache": 24.479877,
    "Mod_x": 8.781802,
    "Processing engine": 6.033242,
    "X-Switch": 6.748551,
}
SWAPPED = (
    "Seconds and percentages of the last two rows of table 1 are swapped: 6.033 s is 9.89 % and 6.749 s is 11.06 % "
    "of 61.000 s, so that by its own seconds the engine, not X-Switch, is the smallest layer, against the text."
)


def responses(*names: str) -> tuple[Cell, ...]:
    """Return lines of table 2 as cells."""
    return joined(
        cells({name: TABLE_2[name][index] for name in names}, column, "ms")
        for index, column in enumerate((IRT, ART))
    )


def technology(figure: int, language: str, others: str, *names: str) -> Waiting:
    """Return the experiment of one figure."""
    return (
        Experiment(
            id=f"X-F{figure}",
            document="X-Switch",
            source=f"figure {figure} and table 2",
            title=f"{language}: X-Switch beside {others}",
            claim=f"After the first requests X-Switch's {language} engine answers about as fast as {others}.",
            varies="technology, request number",
            measures="initial and running average response time",
            needs=f"{NEEDS}, the {language} one",
            machine=MACHINE,
        ),
        responses(*names),
    )


WAITING: tuple[Waiting, ...] = (
    (
        Experiment(
            id="X-F4",
            document="X-Switch",
            source="figure 4",
            title="Response time and throughput against clients",
            claim="Throughput stays flat and response time grows linearly, to 375 clients.",
            varies="clients at once, 25 to 375",
            measures="response time, throughput",
            quick=True,
            needs=NEEDS,
            machine=MACHINE,
        ),
        (),
    ),
    (
        Experiment(
            id="X-T1",
            document="X-Switch",
            source="table 1",
            title="What each layer costs",
            claim="Most of the time is spent in Apache and in the web application; the X-Switch layer takes least.",
            varies="the layer that is left out",
            measures="time for 100,000 requests",
            quick=True,
            needs=NEEDS,
            errata=(SWAPPED,),
            machine=MACHINE,
        ),
        joined((cells(TABLE_1, "share", "%"), cells(TABLE_1_SECONDS, "seconds", "s"))),
    ),
    technology(5, "Java", "Tomcat", "X-Switch Java", "Apache Tomcat"),
    technology(6, "PHP", "mod_php", "X-Switch PHP", "Apache mod_php"),
    technology(7, "Perl", "FastCGI and SpeedyCGI", "X-Switch Perl", "FastCGI Perl", "Speedy Perl"),
    technology(8, "Python", "mod_python", "X-Switch Python", "Apache mod_python"),
    (
        Experiment(
            id="X-T2",
            document="X-Switch",
            source="table 2",
            title="Initial and average response times",
            claim="X-Switch is within 13 % of the native technology of each language, and faster with Python.",
            varies="technology",
            measures="initial and average response time",
            quick=True,
            needs=NEEDS,
            machine=MACHINE,
        ),
        responses(*TABLE_2),
    ),
    (
        Experiment(
            id="X-C2",
            document="X-Switch",
            source="section 3.3",
            title="Engines for many users",
            claim="Engines belong to users, are started on demand, and ended when there are too many.",
            varies="users, engines",
            measures="starts, evictions, response time",
            needs=NEEDS,
            machine=MACHINE,
        ),
        (),
    ),
)
