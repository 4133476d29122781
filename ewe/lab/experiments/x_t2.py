"""X-Switch, table 2: the first answer and the average one, in every language."""

from ewe.lab.experiment import Experiment
from ewe.lab.experiments.xswitch_tables import CHARTS, MACHINE, TODAY, run

EXPERIMENT = Experiment(
    id="X-T2",
    document="X-Switch",
    source="table 2",
    title="Initial and average response times",
    claim="X-Switch is within 13 % of the native technology of each language, and faster with Python.",
    varies="technology",
    measures="initial and average response time, 10 users without a pause",
    quick=True,
    minutes=4.0,
    reference="uwsgi python",
    paper_reference="Apache mod_python",
    charts=CHARTS,
    run=lambda lab: run(lab, [name for name, printed in TODAY.items() if printed or name.startswith("cgi")]),
    machine=MACHINE,
)
