"""Functions of the RDBMS paper's experiments: start the ways to a database, and take turns among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from ewe_lab.bench.experiment import Bench, ServedPath
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell
from ewe_lab.stacks import databases
from ewe_lab.stacks.database_ways import WAYS
from ewe_lab.stacks.databases import DATABASES, LabDatabase, RunningDaemon

Started = Mapping[str, ServedPath]  # by way: the server, and the path of the report


def measure_databases(
    lab: Bench, measure: Callable[[LabDatabase, RunningDaemon], Iterator[Cell]]
) -> Iterator[Cell]:
    """Yield the cells of `measure` for each database that can run here; add a note for each of the others."""
    for name in DATABASES:
        if lacking := databases.why_missing(name):
            lab.notes.append(f"{name} is left out: {lacking}")
            continue
        with databases.open_database(lab, name) as database, databases.daemon(lab, database) as daemon:
            yield from measure(database, daemon)


def runnable_ways(lab: Bench, database: LabDatabase, names: Iterable[str]) -> list[str]:
    """Return the ways that can run on a database; add a note for each of the others with the missing package."""
    found = []
    for name in names:
        if lacking := WAYS[name].why_missing(database):
            if lacking not in lab.notes:
                lab.notes.append(lacking)
        else:
            found.append(name)
    return found


@contextmanager
def start_ways(
    lab: Bench, database: LabDatabase, daemon: RunningDaemon, names: Iterable[str]
) -> Iterator[tuple[Started, dict[str, str]]]:
    """Start several ways side by side; yield the running ways, and the reasons for which others failed.

    names: of the ways. One that cannot run on the database is left out, with a note.
    """
    running: dict[str, ServedPath] = {}
    failed: dict[str, str] = {}
    with ExitStack() as exits:
        for name in runnable_ways(lab, database, names):
            try:
                running[name] = exits.enter_context(WAYS[name].serve(lab, database, daemon))
            except LabError as reason:
                failed[name] = str(reason)
        yield running, failed


def reversed_every_second_turn(names: Sequence[str], turn: int) -> list[str]:
    """Return the names in their order, and in every second turn in reverse: none of them is always the first."""
    return list(names) if turn % 2 == 0 else list(reversed(names))
