"""RDBMS, figure 9: the cost of keeping a session's state, for each tier of the state.

HTTP has no memory: the server must find the state of a visitor for each request, and it may be in several places:

    browser: in the URL, in a signed cookie  ──▶  server: in the process, in a file  ──▶  database, by the daemon
    no server has to remember                     one machine, or one process             all machines share it

The same counter of visits is kept in each tier in turn, by the same WSGI application (../stacks/sessions.py). The
difference to "no state" is the cost of a tier.

Possible failures: a tier loses the state, for example by a wrong signature. visit() therefore compares the count in
each answer with the number of visits. Disks differ more than tiers do, so files and database are in memory.
"""

from __future__ import annotations

import http.client
import itertools
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ewe_lab.bench.experiment import Bench, RunningServer, ServerUnderTest
from ewe_lab.bench.processes import LabError, cpu_seconds, load_core, on_core
from ewe_lab.bench.results import Cell, ExperimentTable, Sample, Usage
from ewe_lab.bench.verdicts import LEVEL_RATIO, NOT_TESTABLE, Finding, verdict_of_parts
from ewe_lab.stacks import databases, sessions
from ewe_lab.stacks.databases import SQLITE, LabDatabase

COLUMN = "a visit"
ROWS = {  # name in tables: the path's last part
    "no state": "none",
    "in the URL": "url",
    "in a signed cookie": "cookie",
    "in the process": "memory",
    "in a file": "file",
    "in a database, by the daemon": "daemon",
}
ROUND_COUNTS = (3, 9)  # quick and full; the tiers take turns
REQUESTS_PER_TIER = (40, 200)  # of each tier in a round
TIERS = ("no state", "in the process", "in a file", "in a database, by the daemon")
LOAD_DESCRIPTION = "1 client on a kept connection"
REMARKS = (
    "The same counter of visits each time, a WSGI application under the thread model. State in the process is the "
    "cheapest, and needs session affinity: all requests of a visitor must come to the same process.",
    "Files and the daemon's database (SQLite) are in /dev/shm if it exists, so that no disk is measured.",
)
MEMORY_DIRECTORY = Path("/dev/shm")  # a file system in memory: a commit there does not wait for a disk


@dataclass
class MeasuredTier:
    """One tier of the state during the measurement.

    path: of the URL. cookie: `name=value` that the browser keeps, "" before the first. visits: the number so far.
    """

    path: str
    cookie: str = ""
    visits: int = 0


def run(lab: Bench) -> Iterator[Cell]:
    """Measure all tiers in turns, for ROUND_COUNTS rounds; yield the cells."""
    cells = {name: Cell(name, COLUMN, value="extra.micros", unit="µs") for name in ROWS}
    try:
        with run_application(lab) as server:
            tiers = {name: MeasuredTier(f"/state/{last}") for name, last in ROWS.items()}
            rounds = int(lab.quick_or_full(*ROUND_COUNTS))
            for turn in range(rounds):
                for name in tiers if turn % 2 == 0 else reversed(tiers):
                    cells[name].samples.append(measure_tier(lab, server, tiers[name]))
            for cell in cells.values():
                cell.command, cell.load = server.command, LOAD_DESCRIPTION
    except (LabError, OSError, sqlite3.Error, http.client.HTTPException) as reason:
        for cell in cells.values():
            cell.failure = str(reason)
    yield from cells.values()
    lab.notes += REMARKS


@contextmanager
def run_application(lab: Bench) -> Iterator[RunningServer]:
    """Run ewe with the application, and the database daemon with the sessions' table; yield ewe."""
    memory = MEMORY_DIRECTORY if os.access(MEMORY_DIRECTORY, os.W_OK) else lab.directory
    with tempfile.TemporaryDirectory(prefix="ewe-sessions-", dir=memory, ignore_cleanup_errors=True) as name:
        files = Path(name) / "files"
        files.mkdir()
        database_file = Path(name) / "sessions.db"
        with sqlite3.connect(database_file) as connection:  # the block commits, and does not close
            connection.execute(sessions.CREATE_TABLE)
        connection.close()
        with databases.daemon(
            lab, LabDatabase(SQLITE, str(database_file)), name=sessions.DATABASE, write=True
        ) as running_daemon:
            tested = ServerUnderTest(
                "sessions",
                model="thread",
                options=("--wsgi", "/state=ewe_lab.stacks.sessions:application"),
                variables=((sessions.SESSIONS, str(files)), (sessions.DAEMON, running_daemon.address)),
                other_pids=(running_daemon.pid,),
            )
            with lab.start(tested, lab.site([])) as server:
                yield server


def measure_tier(lab: Bench, server: RunningServer, tier: MeasuredTier) -> Sample:
    """Visit a tier again and again; return the sample. Raises LabError if its state was lost."""
    count = int(lab.quick_or_full(*REQUESTS_PER_TIER))
    durations = []
    before = cpu_seconds(server.pid, *server.other_pids)
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=20)
    with closing(connection), on_core(load_core()):
        for _ in range(count):
            began = time.perf_counter()
            visit(connection, tier)
            durations.append((time.perf_counter() - began) * 1e6)
    usage = Usage(cpu=cpu_seconds(server.pid, *server.other_pids) - before)
    micros = statistics.median(durations)
    return Sample(
        "pinger",
        seconds=sum(durations) / 1e6,
        requests=count,
        replies=count,
        connections=1,
        usage=usage,
        extra={"micros": micros},
    )


def visit(connection: http.client.HTTPConnection, tier: MeasuredTier) -> None:
    """Visit a tier once, as a browser that keeps its cookie and follows the link. Raises LabError."""
    query = f"?visits={tier.visits}" if tier.path.endswith("/url") else ""
    connection.request("GET", tier.path + query, headers={"Cookie": tier.cookie} if tier.cookie else {})
    answer = connection.getresponse()
    body = answer.read()
    if cookie := answer.getheader("Set-Cookie"):
        tier.cookie = cookie.partition(";")[0]
    tier.visits = 1 if tier.path.endswith("/none") else tier.visits + 1
    if answer.status != 200 or not body.startswith(b"<p>Visit %d." % tier.visits):
        raise LabError(f"{tier.path} lost its state: {answer.status}, {body[:60]!r}")


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim holds if a file takes longer than the process, and the database longer than a file, each by over 10 %.
    """
    medians = {cell.server: cell.median for cell in table.cells}
    times = [medians.get(name) for name in TIERS]
    if None in times:
        return Finding(NOT_TESTABLE, "Not all tiers were measured.")
    figures = [time for time in times if time is not None]
    summary = ", ".join(
        f"{name} {time - figures[0]:+,.0f} µs" for name, time in zip(TIERS[1:], figures[1:], strict=True)
    )
    part_holds = [one * LEVEL_RATIO < other for one, other in itertools.pairwise(figures[1:])]
    verdict = verdict_of_parts(part_holds)
    return Finding(verdict, f"A visit without state takes {figures[0]:,.0f} µs; {summary}.")
