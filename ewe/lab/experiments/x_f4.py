"""X-Switch, figure 4: 43 KB of text from Perl, for more and more clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ewe.lab.experiment import Bench, Chart, Experiment, Load
from ewe.lab.experiments.xswitch_tables import MACHINE
from ewe.lab.processes import LabError
from ewe.lab.programs import LARGE, missing, technology
from ewe.lab.results import Cell, Table
from ewe.lab.verdicts import FAILS, HOLDS, NOT_TESTABLE, Finding

FLAT = 1.5  # times that the least and the greatest throughput may differ
SERVERS = ("xswitch perl", "cgi perl")


def run(lab: Bench) -> Iterator[Cell]:
    """Measure both with 25 to 375 users that never pause."""
    counts = (25, 125, 250, 375) if lab.quick else tuple(range(25, 376, 50))
    for name in SERVERS:
        if lacking := missing(name):
            lab.notes.append(lacking)
            continue
        for count in counts:
            yield measure(lab, name, count)


def measure(lab: Bench, name: str, count: int) -> Cell:
    """Measure one point."""
    cell = Cell(name, x=count, value="extra.megabytes", unit="MB/s")
    settings = lab.directory / "xswitch.toml"  # all are one user's, and their number is what is measured
    settings.write_text("max-queue-per-user = 1000\n")
    load = Load(users=count, seconds=lab.seconds(2, 4), warm_up=1.5, timeout=20.0, length=LARGE)
    try:
        with technology(lab, name, "--xswitch-config", str(settings), program="large") as (server, path):
            sample = lab.load(server, replace(load, path=path))
    except LabError as reason:
        cell.failure = str(reason)
        return cell
    sample.extra["megabytes"] = sample.received / sample.seconds / 1e6
    cell.samples.append(sample)
    cell.command, cell.load = server.command, load.words()
    return cell


def check(table: Table) -> Finding:
    """The claim holds if X-Switch's throughput hardly changes with the number of clients."""
    found = [cell.median for cell in table.cells if cell.server == SERVERS[0] and cell.median]
    if len(found) < 2:
        return Finding(NOT_TESTABLE, "There are too few figures.")
    word = HOLDS if max(found) / min(found) < FLAT else FAILS
    return Finding(word, f"From 25 to 375 clients X-Switch sent {min(found):.1f} to {max(found):.1f} MB/s.")


EXPERIMENT = Experiment(
    id="X-F4",
    document="X-Switch",
    source="figure 4",
    title="Response time and throughput against clients",
    claim="Throughput stays flat and response time grows linearly, to 375 clients.",
    varies="clients at once, 25 to 375",
    measures="response time, throughput; 43 KB of random text from Perl",
    quick=True,
    minutes=3.0,
    charts=(
        Chart("lines", "Throughput", x="clients", y="MB/s"),
        Chart("lines", "Response time, the median", "service.p50", x="clients", y="s"),
    ),
    run=run,
    machine=MACHINE,
)
