"""EWE, section 5.2: children that have ended stay as zombies until the next request.

A child that has ended is a zombie until its parent has read its status. When does the parent read it?

    lazy (2006)    when the next connection comes: after the last one, the zombies stay
    SIGCHLD        when the kernel's signal says that a child has ended
    pidfd          when the descriptor of the child becomes readable, in the loop that also accepts

Each server forks 200 children. Then no request comes, and the zombies are counted again and again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from ewe_lab.bench.experiment import Bench, RunningServer, ServerUnderTest
from ewe_lab.bench.processes import LabError, processes
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.bench.verdicts import FAILS, HOLDS, NOT_TESTABLE, Finding
from ewe_lab.experiments.clients import COMPLETE_HEAD, connections, count_answered

REQUEST_COUNT, CONNECTIONS_AT_ONCE = 200, 20
COUNT_EVERY_S = 0.25  # seconds between two counts
CLOSE_OPTION = ("--no-persistent",)  # a child ends with its answer
SERVERS = (
    ServerUnderTest("lazy (2006)", model="ewe_lab.stacks.variants:LazyFork", options=CLOSE_OPTION),
    ServerUnderTest("SIGCHLD (ewe)", model="fork", options=CLOSE_OPTION),
    ServerUnderTest("pidfd", model="ewe_lab.stacks.variants:PidfdFork", options=CLOSE_OPTION),
)


def run(lab: Bench) -> Iterator[Cell]:
    """Let each server fork 200 times, then count its zombies while no request comes; yield the cells."""
    root = lab.site([])
    for tested in lab.servers(SERVERS):
        try:
            with lab.start(tested, root) as server:
                answers = 0
                for _ in range(REQUEST_COUNT // CONNECTIONS_AT_ONCE):
                    with connections(server.url, CONNECTIONS_AT_ONCE, COMPLETE_HEAD) as opened:
                        # Until all have an answer, or for 5 s none has got one
                        answers += count_answered(opened, quiet_s=5)
                yield from count_zombies(server, tested.name, answers, lab.quick_or_full(2, 5))
        except LabError as reason:
            yield Cell(tested.name, failure=str(reason))


def count_zombies(server: RunningServer, name: str, answers: int, seconds: float) -> Iterator[Cell]:
    """Count the zombies of a server again and again for `seconds`; yield a cell for each count.

    name: of the server. answers: how many of the REQUEST_COUNT requests it has answered before.
    """
    began = time.monotonic()
    while (at := time.monotonic() - began) < seconds:
        zombies = sum(each.parent == server.pid and each.state == "Z" for each in processes())
        sample = Sample(
            tool="sockets",
            seconds=0.0,
            requests=REQUEST_COUNT,
            replies=answers,
            connections=REQUEST_COUNT,
            extra={"zombies": zombies},
        )
        time_of_count = round(at / COUNT_EVERY_S) * COUNT_EVERY_S  # rounded: all servers have the same x
        cell = Cell(name, x=time_of_count, value="extra.zombies", unit="zombies", samples=[sample])
        cell.command, cell.load = server.command, f"{REQUEST_COUNT} connections, then none"
        yield cell
        time.sleep(COUNT_EVERY_S)


def check(table: ExperimentTable) -> Finding:
    """Return the finding: the claim holds if zombies stay with lazy reaping only."""
    last = {cell.server: cell.median for cell in table.cells if cell.median is not None}
    lazy = last.pop(SERVERS[0].name, None)
    if lazy is None or not last:
        return Finding(NOT_TESTABLE, "Nothing to compare.")
    summary = ", ".join(f"{name} {count:.0f}" for name, count in last.items())
    verdict = HOLDS if lazy > 0 and not any(last.values()) else FAILS
    return Finding(verdict, f"Zombies left after {REQUEST_COUNT} connections: lazy {lazy:.0f}, {summary}.")
