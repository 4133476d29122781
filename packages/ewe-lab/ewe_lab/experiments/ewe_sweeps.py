"""Figures 1 and 2 of EWE: autobench raised the rate until each server was past its peak.

The figures are lost. They must have shown the reply rate against the rate demanded: it follows the demand to a
peak, and then stays or falls. We assume ten requests on a connection for figure 1, and one for figure 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ewe_lab.bench.experiment import Bench, Contender, Load
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.clients import once
from ewe_lab.experiments.contenders import (
    APACHE_PREFORK,
    ASYNCIO,
    FORK,
    POOL,
    POOL_2006,
    SERIAL,
    THREAD,
)

SERVERS = (SERIAL, FORK, THREAD, POOL_2006, POOL, ASYNCIO, APACHE_PREFORK)
MOST = {10: 16_000, 1: 6_000}  # requests a second that our load can send, by requests on a connection
TIMEOUT = 5.0


def run(lab: Bench, calls: int) -> Iterator[Cell]:
    """Find each server's peak, then sweep around it."""
    root = lab.site([])
    bounded: list[str] = []
    for contender in lab.servers(SERVERS):
        try:
            peak = peak_of(lab, contender, calls, root)
        except LabError as reason:
            yield Cell(contender.name, failure=str(reason))
            continue
        steps = 5 if lab.quick else 9
        for step in range(steps):
            demanded = min(0.1 * peak * 20 ** (step / (steps - 1)), MOST[calls])
            load = Load(
                "arrivals", rate=demanded / calls, calls=calls, seconds=lab.seconds(2, 5), timeout=TIMEOUT
            )
            yield once(lab, contender, load, Cell(contender.name, x=float(f"{demanded:.3g}")), root)
            if demanded == MOST[calls]:
                bounded.append(contender.name)
                break
    if bounded:
        lab.notes.append(
            f"At {MOST[calls]} requests a second the load carries no more; so it ends with {listed(bounded)}."
        )


def listed(names: Sequence[str]) -> str:
    """Return names as a list in a sentence."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def peak_of(lab: Bench, contender: Contender, calls: int, root: Path) -> float:
    """Return the replies a second of a server that is overloaded. Raises LabError."""
    rate = MOST[calls] / calls
    load = Load(
        "arrivals", rate=rate, sessions=int(rate), calls=calls, timeout=TIMEOUT, seconds=10, warm_up=0
    )
    with lab.start(contender, root) as server:
        sample = lab.load(server, load)
    if not sample.replies:
        raise LabError("no reply while its peak was sought")
    return sample.rate


def check(table: Table) -> Finding:
    """The claim holds for a server that answers less than 90 % of its best at the highest demand."""
    fell: list[str] = []
    stayed: list[str] = []
    for server in dict.fromkeys(cell.server for cell in table.cells):
        points = sorted(
            (cell.x, cell.median) for cell in table.cells if cell.server == server and cell.x and cell.median
        )
        if len(points) < 3:
            continue
        best = max(rate for _, rate in points)
        (fell if points[-1][1] < 0.9 * best else stayed).append(f"{server} ({points[-1][1] / best:.0%})")
    if not fell and not stayed:
        return Finding(NOT_TESTABLE, "No server was measured at three rates.")
    word = IN_PART if fell and stayed else HOLDS if fell else FAILS
    parts = [f"{what}: {', '.join(names)}" for what, names in (("fell", fell), ("stayed", stayed)) if names]
    return Finding(word, f"What is left of the peak at the highest demand; {'; '.join(parts)}.")
