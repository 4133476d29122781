"""How the experiments of the RDBMS paper run: the ways that can run are started, and asked in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from ewe_lab.bench.experiment import Bench, Running
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell
from ewe_lab.stacks import databases
from ewe_lab.stacks.database_ways import WAYS
from ewe_lab.stacks.databases import DATABASES, Asked, Database

Started = Mapping[str, tuple[Running, str]]  # by way: the server, and the path of the report


def measured(lab: Bench, measure: Callable[[Database, Asked], Iterator[Cell]]) -> Iterator[Cell]:
    """Yield what is measured on each database that is here, with its demon. The others are noted by name."""
    for name in DATABASES:
        if lacking := databases.missing(name):
            lab.notes.append(f"{name} is left out: {lacking}")
            continue
        with databases.opened(lab, name) as database, databases.demon(lab, database) as demon:
            yield from measure(database, demon)


def here(lab: Bench, database: Database, names: Iterable[str]) -> list[str]:
    """Return the ways that can run on a database; note the others, with what they lack."""
    found = []
    for name in names:
        if lacking := WAYS[name].missing(database):
            if lacking not in lab.notes:
                lab.notes.append(lacking)
        else:
            found.append(name)
    return found


@contextmanager
def started(
    lab: Bench, database: Database, demon: Asked, names: Iterable[str]
) -> Iterator[tuple[Started, dict[str, str]]]:
    """Start ways beside each other; yield those that run, and why the others do not."""
    running: dict[str, tuple[Running, str]] = {}
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        for name in here(lab, database, names):
            try:
                running[name] = stack.enter_context(WAYS[name].served(lab, database, demon))
            except LabError as reason:
                failed[name] = str(reason)
        yield running, failed


def in_turns(names: Sequence[str], turn: int) -> list[str]:
    """Return the names in their order, and in each second turn in the other."""
    return list(names) if turn % 2 == 0 else list(reversed(names))
