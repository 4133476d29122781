"""Figures 1 and 2 of EWE: autobench raised the rate until each server was past its peak.

The figures are lost. They must have shown the reply rate against the demanded rate: the reply rate follows the
demand to a peak, and then stays or falls. We assume ten requests on a connection for figure 1, and one for figure
2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ewe_lab.bench.experiment import Bench, Load, ServerUnderTest
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding, is_client_limited
from ewe_lab.experiments.clients import measure_once
from ewe_lab.experiments.tested_servers import (
    APACHE_PREFORK,
    ASYNCIO,
    FORK,
    POOL,
    POOL_2006,
    SERIAL,
    THREAD,
)

SERVERS = (SERIAL, FORK, THREAD, POOL_2006, POOL, ASYNCIO, APACHE_PREFORK)
# requests a second that our load can send, by requests on a connection
MAX_LOAD_REQUESTS_PER_S = {10: 16_000, 1: 6_000}
# The servers that the claim is about: each connection has a worker
WORKER_FOR_EACH = (FORK.name, THREAD.name, APACHE_PREFORK.name)
FALLEN_SHARE = 0.9  # of the best rate: a server below it has fallen. Of the demand: a server above it follows
TIMEOUT_S = 5.0
# The groups of servers in the sentence of the finding
FELL = "fell"
STAYED = "stayed"
LIMITED = "below, with the load generator at its limit"
FOLLOWING = "still followed the demand"
OTHERS = "servers without a worker for each connection"


class SweepPoint(NamedTuple):
    """A measured point of a sweep: the demanded requests and the replies a second.

    is_limited: the load generator was at its limit.
    """

    demanded: float
    rate: float
    is_limited: bool


def run(lab: Bench, calls: int) -> Iterator[Cell]:
    """Find each server's peak, then sweep around it; yield a cell for each rate. calls: on a connection."""
    root = lab.site([])
    bounded: list[str] = []
    for tested in lab.servers(SERVERS):
        try:
            peak = peak_of(lab, tested, calls, root)
        except LabError as reason:
            yield Cell(tested.name, failure=str(reason))
            continue
        steps = 5 if lab.quick else 9
        for step in range(steps):
            # From a tenth of the peak to twice the peak, in equal factors
            demanded = min(0.1 * peak * 20 ** (step / (steps - 1)), MAX_LOAD_REQUESTS_PER_S[calls])
            load = Load(
                "arrivals",
                rate=demanded / calls,
                calls=calls,
                seconds=lab.quick_or_full(2, 5),
                timeout=TIMEOUT_S,
            )
            yield measure_once(lab, tested, load, Cell(tested.name, x=float(f"{demanded:.3g}")), root)
            if demanded == MAX_LOAD_REQUESTS_PER_S[calls]:  # all further steps would demand the same
                bounded.append(tested.name)
                break
    if bounded:
        lab.notes.append(
            f"The load generator can send {MAX_LOAD_REQUESTS_PER_S[calls]} requests a second; "
            f"the sweep of {list_text(bounded)} ends there."
        )


def list_text(names: Sequence[str]) -> str:
    """Return names as a list in a sentence."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def peak_of(lab: Bench, tested: ServerUnderTest, calls: int, root: Path) -> float:
    """Return the replies a second of a server that is overloaded: for a second it gets as much load as we can send.

    calls: requests on a connection. Raises LabError if it answers none.
    """
    rate = MAX_LOAD_REQUESTS_PER_S[calls] / calls
    load = Load(
        "arrivals", rate=rate, sessions=int(rate), calls=calls, timeout=TIMEOUT_S, seconds=10, warm_up=0
    )
    with lab.start(tested, root) as server:
        sample = lab.load(server, load)
    if not sample.replies:
        raise LabError("no reply while its peak was sought")
    return sample.rate


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim is about servers with a worker for each connection. It holds for one that answers less than 90 % of
    its best at the highest demand. If the load generator was at its limit there, the server is not judged: the fall
    may be the load generator's. A server that still follows the demand there is not judged either: its peak was
    not reached. The sentence also names the other servers.
    """
    groups: dict[str, list[str]] = {title: [] for title in (FELL, STAYED, LIMITED, FOLLOWING, OTHERS)}
    for server in dict.fromkeys(cell.server for cell in table.cells):
        points = points_of(table, server)
        best = max((point.rate for point in points), default=0.0)
        if len(points) >= 3 and best:
            groups[group_of(server, points, best)].append(f"{server} ({points[-1].rate / best:.0%})")
    if not any(groups[title] for title in groups if title != OTHERS):
        return Finding(
            NOT_TESTABLE, "No server with a worker for each connection was measured at three rates."
        )
    parts = [f"{title}: {', '.join(servers)}" for title, servers in groups.items() if servers]
    return Finding(
        verdict_of(groups),
        f"Reply rate at the highest demand as a share of the peak; {'; '.join(parts)}.",
    )


def points_of(table: ExperimentTable, server: str) -> list[SweepPoint]:
    """Return the points of a server, the one with the least demand first."""
    return sorted(
        SweepPoint(cell.x, cell.median, is_client_limited(cell))
        for cell in table.cells
        if cell.server == server and cell.x and cell.median is not None
    )


def group_of(server: str, points: Sequence[SweepPoint], best: float) -> str:
    """Return the group of a server. points: from points_of(). best: its greatest reply rate."""
    last = points[-1]  # with the highest demand
    if server not in WORKER_FOR_EACH:
        return OTHERS
    if last.rate < FALLEN_SHARE * best:
        return LIMITED if last.is_limited else FELL
    return FOLLOWING if last.rate >= FALLEN_SHARE * last.demanded else STAYED


def verdict_of(groups: Mapping[str, Sequence[str]]) -> str:
    """Return the word of the finding, from the servers of each group."""
    if groups[FELL]:
        return IN_PART if groups[STAYED] else HOLDS
    return NOT_TESTABLE if groups[LIMITED] or groups[FOLLOWING] else FAILS
