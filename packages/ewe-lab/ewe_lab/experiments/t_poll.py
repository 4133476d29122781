"""Thesis, section 2.4.3: select(), poll() and epoll under more and more connections, most of them idle.

select() and poll() get the whole list of connections at each call, and the kernel looks at each of them. epoll
keeps the list in the kernel, and returns only the ready ones. With thousands of idle connections, four active users
are enough to see the difference:

    CPU time of a reply    select, poll    grows with the idle connections
                           epoll           stays

The three servers are ewe's event loop with another selector each (../stacks/variants.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ewe_lab.bench.experiment import Bench, Load, ServerUnderTest
from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.bench.verdicts import LEVEL_RATIO, NOT_TESTABLE, Finding, verdict_of_parts
from ewe_lab.experiments.clients import held_connections, measure_beside_idle, measure_repeatedly

ACTIVE_USERS = 4  # users beside the idle connections
VARIANTS = "ewe_lab.stacks.variants"
SELECT, POLL, EPOLL = "select", "poll", "epoll"
SERVERS = (
    # select() knows no descriptor from 1,024 on, and the server needs some for itself.
    ServerUnderTest(SELECT, model=f"{VARIANTS}:Selecting", most=1000),
    ServerUnderTest(POLL, model=f"{VARIANTS}:Polling"),
    ServerUnderTest(EPOLL, model=f"{VARIANTS}:EPolling"),
)


def run(lab: Bench) -> Iterator[Cell]:
    """Measure each call of the kernel beside 10 to 9,000 idle connections; yield the cells."""
    load = Load("closed", users=ACTIVE_USERS, seconds=lab.quick_or_full(1, 3), warm_up=0.3)
    for tested in lab.servers(SERVERS):
        for count in (10, 900, 9000) if lab.quick else (10, 100, 300, 900, 3000, 9000):
            if count > tested.max_connections:
                lab.notes.append(
                    f"{tested.name}: at most {tested.max_connections} connections,"
                    " because of its 1,024 descriptors."
                )
                break

            measure = partial(measure_beside_idle, lab, tested, load, root=lab.site([]))
            yield measure_repeatedly(lab, Cell(tested.name, "", count, value="micros", unit="µs"), measure)


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim has two parts: epoll needs less CPU time for a reply than poll(), and less than select().

    Each part compares the times with the most idle connections at which both calls were measured. A number at which
    a server did not hold all connections is left out. The first part is needed for a verdict.
    """
    # name of the call -> number of idle connections -> µs of a reply
    by_server = {
        name: {
            cell.x: cell.median
            for cell in table.cells
            if cell.server == name and cell.median and held_connections(cell) == cell.x
        }
        for name in (SELECT, POLL, EPOLL)
    }
    pieces = []
    part_holds: dict[str, bool] = {}
    for name in (POLL, SELECT):
        counts = [x for x in by_server[name] if x in by_server[EPOLL] and x is not None]
        if not counts:
            continue
        fewest, most = min(counts), max(counts)
        other, epoll = by_server[name][most] or 0.0, by_server[EPOLL][most] or 0.0
        # Times whose ratio is at most LEVEL_RATIO may differ by chance
        part_holds[name] = epoll * LEVEL_RATIO < other
        with_fewest = f"{by_server[name][fewest]:,.0f} and {by_server[EPOLL][fewest]:,.0f} with {fewest:,.0f}"
        pieces.append(
            f"{name} {other:,.0f} and epoll {epoll:,.0f} µs with {most:,.0f} connections ({with_fewest})"
        )
    if POLL not in part_holds:
        return Finding(NOT_TESTABLE, "poll and epoll were not measured with the same number of connections.")
    verdict = verdict_of_parts(part_holds.values())
    return Finding(verdict, f"CPU time for a reply: {'; '.join(pieces)}.")
