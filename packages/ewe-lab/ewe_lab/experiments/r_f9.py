"""RDBMS, figure 9: what it costs to keep a session's state, by the place where it is kept."""

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

from ewe_lab.bench.experiment import Bench, Contender, Running
from ewe_lab.bench.processes import LabError, cpu_seconds, on_core, two_cores
from ewe_lab.bench.results import Cell, Sample, Table, Usage
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.stacks import databases, sessions
from ewe_lab.stacks.databases import SQLITE, Database

COLUMN = "a visit"
ROWS = {  # name in tables: where
    "no state": "none",
    "in the URL": "url",
    "in a signed cookie": "cookie",
    "in the process": "memory",
    "in a file": "file",
    "in a database, by the demon": "demon",
}
ROUNDS = (3, 9)  # quick and full; the places take turns
REQUESTS = (40, 200)  # of each place in a round
TIERS = ("no state", "in the process", "in a file", "in a database, by the demon")
WORDS = "1 client on a kept connection"
REMARKS = (
    "The same counter of visits each time, a WSGI application under the thread model. In the process it is the "
    "cheapest, and needs session affinity: all requests of a visitor must come to the same process.",
    "Files and the demon's database, SQLite, are in /dev/shm where there is one, so that no disk is measured.",
)
SHARED = Path("/dev/shm")  # a commit does not wait for a disk there


@dataclass
class Place:
    """One place, while it is measured. visits: so far."""

    path: str
    cookie: str = ""
    visits: int = 0


def run(lab: Bench) -> Iterator[Cell]:
    """Measure all places in turns: as many rounds as the lab repeats them."""
    cells = {name: Cell(name, COLUMN, None, "extra.micros", "µs") for name in ROWS}
    try:
        with served(lab) as server:
            places = {name: Place(f"/state/{place}") for name, place in ROWS.items()}
            rounds = int(lab.seconds(*ROUNDS))
            for turn in range(rounds):
                for name in places if turn % 2 == 0 else reversed(places):
                    cells[name].samples.append(visited(lab, server, places[name]))
            for cell in cells.values():
                cell.command, cell.load = server.command, WORDS
    except (LabError, OSError, http.client.HTTPException) as reason:
        for cell in cells.values():
            cell.failure = str(reason)
    yield from cells.values()
    lab.notes += REMARKS


@contextmanager
def served(lab: Bench) -> Iterator[Running]:
    """Run ewe with the application, and the demon with the sessions' table."""
    memory = SHARED if os.access(SHARED, os.W_OK) else lab.directory
    where = tempfile.TemporaryDirectory(prefix="ewe-sessions-", dir=memory, ignore_cleanup_errors=True)
    with where as name:
        files = Path(name) / "files"
        files.mkdir()
        place = Path(name) / "sessions.db"
        with sqlite3.connect(place) as connection:
            connection.execute(sessions.SCHEMA)
        connection.close()
        with databases.demon(lab, Database(SQLITE, str(place)), name=sessions.DATABASE, write=True) as asked:
            contender = Contender(
                "sessions",
                model="thread",
                options=("--wsgi", "/state=ewe_lab.stacks.sessions:application"),
                variables=((sessions.SESSIONS, str(files)), (sessions.DEMON, asked.address)),
                also=(asked.pid,),
            )
            with lab.start(contender, lab.site([])) as server:
                yield server


def visited(lab: Bench, server: Running, place: Place) -> Sample:
    """Visit a place again and again; return the sample. Raises LabError if its state was lost."""
    count = int(lab.seconds(*REQUESTS))
    took = []
    before = cpu_seconds(server.pid, *server.also)
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=20)
    with closing(connection), on_core(two_cores()[1]):
        for _ in range(count):
            began = time.perf_counter()
            visit(connection, place)
            took.append((time.perf_counter() - began) * 1e6)
    usage = Usage(cpu_seconds(server.pid, *server.also) - before)
    micros = statistics.median(took)
    return Sample("pinger", sum(took) / 1e6, count, count, 1, usage=usage, extra={"micros": micros})


def visit(connection: http.client.HTTPConnection, place: Place) -> None:
    """Visit a place once, as a browser that keeps its cookie and follows the link. Raises LabError."""
    query = f"?visits={place.visits}" if place.path.endswith("/url") else ""
    connection.request("GET", place.path + query, headers={"Cookie": place.cookie} if place.cookie else {})
    answer = connection.getresponse()
    body = answer.read()
    if cookie := answer.getheader("Set-Cookie"):
        place.cookie = cookie.partition(";")[0]
    place.visits = 1 if place.path.endswith("/none") else place.visits + 1
    if answer.status != 200 or not body.startswith(b"<p>Visit %d." % place.visits):
        raise LabError(f"{place.path} lost its state: {answer.status}, {body[:60]!r}")


def check(table: Table) -> Finding:
    """The claim holds if each tier farther from the program takes longer: process, file, database."""
    found = {cell.server: cell.median for cell in table.cells}
    times = [found.get(name) for name in TIERS]
    if None in times:
        return Finding(NOT_TESTABLE, "Not all places were measured.")
    figures = [time for time in times if time is not None]
    told = ", ".join(
        f"{name} {time - figures[0]:+,.0f} µs" for name, time in zip(TIERS[1:], figures[1:], strict=True)
    )
    kept = [one < other for one, other in itertools.pairwise(figures[1:])]
    word = HOLDS if all(kept) else IN_PART if any(kept) else FAILS
    return Finding(word, f"A visit without state takes {figures[0]:,.0f} µs; {told}.")
