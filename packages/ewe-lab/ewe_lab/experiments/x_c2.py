"""X-Switch, section 3.3: every user has separate engines, within the limit of all engines together.

An engine belongs to one user, because it runs with the rights of this user. Many users therefore need many engines,
and the machine has memory for some of them only (`max-engines`). If all engines exist, and a user without one asks,
X-Switch evicts the engine that has been idle for longest, and starts another one:

    engines:  alice  bob  carol  dave       limit 4; a request of erin ─▶ the idle engine of one of them ends
                                                                      ─▶ erin's engine starts (counted: evicted)

n users and m engines: with n <= m no engine is evicted, and with n > m about (n - m) / n of the requests evict one.
The experiment counts the evictions for each n and m; X-Switch's status has the counters.

Possible failures: the users must exist, and have home directories. accounts.py makes them in the mount namespace of
the server; without root the experiment is left out, with a note.

Read next: ewe/xswitch/switch/scheduler.py.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ewe_lab.bench.accounts import TemporaryUser, accounts
from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.processes import LabError, load_core, on_core, server_core
from ewe_lab.bench.results import Cell, ExperimentTable, Sample, Times
from ewe_lab.bench.verdicts import FAILS, HOLDS, NOT_TESTABLE, Finding
from ewe_lab.load import pinger
from ewe_lab.load.pinger import SendRequest
from ewe_lab.stacks.backends import wait_for_xswitch, xswitch_status
from ewe_lab.stacks.programs import PYTHON
from ewe_lab.stacks.servers import run_ewe

ENGINE_LIMITS = (4, 8, 16)  # engines of all users together
USER_COUNTS = (2, 4, 8, 16, 32)
REQUEST_COUNTS = (150, 600)  # of each point, quick and full
SETTINGS = "max-engines = {engine_limit}\npreload = true\n"
PROGRAM = "who.py"
TEXT = f"{PYTHON}import os\nprint('Content-Type: text/plain\\n')\nprint('user', os.getuid())\n"
IN_TURN = (
    "One client requests one user's program after another. Each is drawn at random with the same chance: with n "
    "users and room for m engines, a share of (n - m) / n of the requests finds no engine of its user."
)
VANISH = (
    "The users exist in the server's mount namespace alone: the machine has no more accounts than before."
)


def run(lab: Bench) -> Iterator[Cell]:
    """Measure each number of users with each number of engines; yield the cells."""
    counts = USER_COUNTS[1:4] if lab.quick else USER_COUNTS
    lab.notes += [IN_TURN]
    try:
        with accounts(lab.directory, max(counts)) as (users, namespace_command):
            lab.notes.append(VANISH)
            for user in users:
                user.write_program(PROGRAM, TEXT)
            for engine_limit in ENGINE_LIMITS[:2] if lab.quick else ENGINE_LIMITS:
                for count in counts:
                    yield measure(lab, engine_limit, users[:count], namespace_command)
    except LabError as reason:
        lab.notes.append(f"Not measured: {reason}.")
        yield Cell("ewe -x", value="extra.evicted", unit="%")  # an empty cell, so that the table is not empty


def measure(
    lab: Bench, engine_limit: int, users: Sequence[TemporaryUser], namespace_command: Sequence[str]
) -> Cell:
    """Measure one point: so many users share so many engines; return the cell.

    An engine is evicted if it ends to make room for another user's. namespace_command: the words before the
    command of ewe, with which it sees the users.
    """
    cell = Cell(f"{engine_limit} engines", x=len(users), value="extra.evicted", unit="%")
    count = int(lab.quick_or_full(*REQUEST_COUNTS))
    cell.load = f"{count} requests one at a time"
    settings = lab.directory / "xswitch.toml"
    settings.write_text(SETTINGS.format(engine_limit=engine_limit))
    scratch = Path(tempfile.mkdtemp(prefix="server-", dir=lab.directory))
    try:
        with ExitStack() as exits:
            server = exits.enter_context(
                run_ewe(
                    "xswitch", "--requests", "0", "--xswitch-status", "--xswitch-config", str(settings),
                    root=lab.site([]), directory=scratch, core=server_core(), prefix=namespace_command,
                )
            )  # fmt: skip
            wait_for_xswitch(server)
            clients = [exits.enter_context(client_for_user(server.url, user)) for user in users]
            with on_core(load_core()):
                for send_request in clients:  # the first engines start before the measurement
                    send_request()
                for _ in range(lab.repeats):
                    before = xswitch_status(server)
                    times = time_requests(clients, count)
                    cell.samples.append(sample(times, before, xswitch_status(server)))
            cell.command = server.command
    except LabError as reason:
        cell.failure = str(reason)
    return cell


def client_for_user(url: str, user: TemporaryUser) -> Any:
    """Return a client for the program of a user, which must answer with the uid of that user."""
    return pinger.http(url, f"/~{user.name}/cgi-bin/{PROGRAM}", f"user {user.uid}\n".encode())


def time_requests(clients: Sequence[SendRequest], count: int) -> list[float]:
    """Send `count` requests by random clients, the same ones in every run; return the seconds of each request."""
    order = random.Random(44)  # any seed, but always the same
    times = []
    for _ in range(count):
        send_request = order.choice(clients)
        began = time.perf_counter()
        send_request()
        times.append(time.perf_counter() - began)
    return times


def sample(times: Sequence[float], before: dict[str, Any], after: dict[str, Any]) -> Sample:
    """Return the sample. extra: engines started and evicted, in percent of the requests; engines at the end.

    times: of the requests, in seconds. before, after: the status of X-Switch around them.
    """
    count = len(times)
    share = {
        name: (after["counters"].get(name, 0) - before["counters"].get(name, 0)) / count * 100
        for name in ("started", "evicted")
    }
    cuts = statistics.quantiles(times, n=100, method="inclusive")  # cuts[k - 1] is the k-th percentile
    service = Times(
        count=count,
        mean=statistics.mean(times),
        p50=cuts[49],
        p90=cuts[89],
        p95=cuts[94],
        p99=cuts[98],
        max=max(times),
    )
    extra = {**share, "engines": float(len(after["engines"]))}
    return Sample(
        "pinger",
        seconds=sum(times),
        requests=count,
        replies=count,
        connections=1,
        service=service,
        extra=extra,
    )


def engine_limit_of(cell: Cell) -> int:
    """Return the number of engines that all users share."""
    return int(cell.server.split()[0])  # the name is `8 engines`


def has_more_users(cell: Cell) -> bool:
    """Whether a point has more users than engines."""
    return cell.x is not None and cell.x > engine_limit_of(cell)


def is_as_claimed(cell: Cell) -> bool:
    """Whether the limit of engines was kept, and engines were evicted only with more users than engines.

    It has to be so in each repeat.
    """
    return all(
        sample.extra["engines"] <= engine_limit_of(cell)
        and (sample.extra["evicted"] > 0) == has_more_users(cell)
        for sample in cell.samples
    )


def check(table: ExperimentTable) -> Finding:
    """Return the finding: the claim holds if is_as_claimed() is true for every cell."""
    cells = [cell for cell in table.cells if cell.samples and cell.x]
    if not cells:
        return Finding(NOT_TESTABLE, "There were no users to measure with.")
    bad = [cell for cell in cells if not is_as_claimed(cell)]
    if not bad and not any(map(has_more_users, cells)):
        return Finding(NOT_TESTABLE, "No point has more users than engines, so no engine had to end.")
    most = max(cells, key=lambda cell: cell.samples[0].extra["started"])  # the point with the most starts
    without_starts = [cell for cell in cells if not cell.samples[0].extra["started"]]
    started = most.samples[0].extra["started"]
    summary = f"With {most.x:.0f} users and {most.server}, {started:.0f} % of the requests start an engine"
    slow = most.samples[0].service
    fast = without_starts[0].samples[0].service if without_starts else None
    if slow and fast:
        medians = f"{slow.p50 * 1e3:.1f} ms instead of {fast.p50 * 1e3:.1f}"
        summary += f", and half of the answers take more than {medians}"
    if bad:
        bad_settings = "; ".join(f"{cell.x:.0f} users, {cell.server}" for cell in bad)
        return Finding(FAILS, f"Not as it should be with {bad_settings}. {summary}.")
    return Finding(HOLDS, f"Engines are evicted where users outnumber them and nowhere else. {summary}.")
