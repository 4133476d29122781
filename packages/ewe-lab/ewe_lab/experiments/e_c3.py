"""EWE, section 5.2: children that have ended stay as zombies until the next request."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ewe_lab.bench.experiment import Bench, Contender, Running
from ewe_lab.bench.processes import LabError, processes
from ewe_lab.bench.results import Cell, Sample, Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, NOT_TESTABLE, Finding
from ewe_lab.experiments.clients import ASKING, answered, connections

FORKS = 200
EVERY = 0.25  # seconds between two counts
CLOSE = ("--no-persistent",)  # a child ends with its answer
SERVERS = (
    Contender("lazy (2006)", model="ewe_lab.stacks.variants:LazyFork", options=CLOSE),
    Contender("SIGCHLD (ewe)", model="fork", options=CLOSE),
    Contender("pidfd", model="ewe_lab.stacks.variants:PidfdFork", options=CLOSE),
)


def run(lab: Bench) -> Iterator[Cell]:
    """Let each server fork 200 times, then count its zombies while no request comes."""
    root = lab.site([])
    for contender in lab.servers(SERVERS):
        try:
            with lab.start(contender, root) as server:
                answers = 0
                for _ in range(FORKS // 20):
                    with connections(server.url, 20, ASKING) as opened:
                        answers += answered(opened, 5)
                yield from counts(server, contender.name, answers, lab.seconds(2, 5))
        except LabError as reason:
            yield Cell(contender.name, failure=str(reason))


def counts(server: Running, name: str, answers: int, seconds: float) -> Iterator[Cell]:
    """Count the zombies of a server at each point of time."""
    began = time.monotonic()
    while (at := time.monotonic() - began) < seconds:
        zombies = sum(each.parent == server.pid and each.state == "Z" for each in processes())
        sample = Sample("sockets", 0.0, FORKS, answers, FORKS, extra={"zombies": zombies})
        cell = Cell(name, "", round(at / EVERY) * EVERY, "extra.zombies", "zombies", samples=[sample])
        cell.command, cell.load = server.command, f"{FORKS} connections, then none"
        yield cell
        time.sleep(EVERY)


def check(table: Table) -> Finding:
    """The claim holds if zombies stay with lazy reaping only."""
    last = {cell.server: cell.median for cell in table.cells if cell.median is not None}
    lazy = last.pop(SERVERS[0].name, None)
    if lazy is None or not last:
        return Finding(NOT_TESTABLE, "Nothing to compare.")
    told = ", ".join(f"{name} {count:.0f}" for name, count in last.items())
    word = HOLDS if lazy > 0 and not any(last.values()) else FAILS
    return Finding(word, f"Zombies left after {FORKS} connections: lazy {lazy:.0f}, {told}.")
