"""X-Switch: what is not measured yet."""

from ewe.lab.experiment import Experiment
from ewe.lab.experiments.waiting import Waiting, cells, joined
from ewe.lab.experiments.xswitch_tables import FIRST, MACHINE, MEAN, TABLE_2

WAITING: tuple[Waiting, ...] = (
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
)
