"""X-Switch: what is not measured yet."""

from ewe.lab.experiment import Experiment
from ewe.lab.experiments.waiting import Waiting, cells, joined
from ewe.lab.experiments.xswitch_tables import FIRST, MACHINE, MEAN, TABLE_2

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

WAITING: tuple[Waiting, ...] = (
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
            needs="a pinger that speaks FastCGI and the engine protocol",
            errata=(SWAPPED,),
            machine=MACHINE,
        ),
        joined((cells(TABLE_1, "share", "%"), cells(TABLE_1_SECONDS, "seconds", "s"))),
    ),
    (
        Experiment(
            id="X-F5",
            document="X-Switch",
            source="figure 5 and table 2",
            title="Java: X-Switch beside Tomcat",
            claim="After the first requests X-Switch's Java engine answers about as fast as Tomcat.",
            varies="technology, request number",
            measures="initial and running average response time",
            needs="an engine for Java",
            machine=MACHINE,
        ),
        joined(
            cells({name: TABLE_2[name][index] for name in ("X-Switch Java", "Apache Tomcat")}, column, "ms")
            for index, column in enumerate((FIRST, MEAN))
        ),
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
            needs="accounts made for the purpose",
            machine=MACHINE,
        ),
        (),
    ),
)
