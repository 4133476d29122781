"""The thesis's tests with several processes: nginx, lighttpd, and ewe's event loop with `--workers`.

More processes help a server only if there are more cores. The lab pins all of them to the server's one core, so the
rates show the cost of several processes, and no gain is to be expected. A server is compared with itself, so each
has its own column; the row is the number of processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from ewe_lab.bench.experiment import Bench, Load, ServerUnderTest
from ewe_lab.bench.results import Cell
from ewe_lab.experiments.thesis_static import CACHES_OFF, KEEP_ALIVE, cell_of

PROCESS_COUNTS = (1, 2, 4, 8)


class PrintedServer(NamedTuple):
    """A server under test without its number of processes. document: its name in the thesis, "" without one."""

    tested: ServerUnderTest
    document: str


SERVERS = {  # by our name
    "nginx": PrintedServer(ServerUnderTest("nginx", "nginx"), "Nginx"),
    "lighttpd": PrintedServer(ServerUnderTest("lighttpd", "lighttpd"), "Lighttpd"),
    "ewe": PrintedServer(ServerUnderTest("ewe", model="asyncio"), ""),
}
Rates = Mapping[str, Sequence[float]]  # by server: for one, two, four and eight processes


def row_name(workers: int) -> str:
    """Return the name of the row for a number of processes: `1 process`, `8 processes`."""
    return "1 process" if workers == 1 else f"{workers} processes"


def run(
    lab: Bench, size: int, printed: Mapping[str, Rates], link: str = "", notes: Sequence[str] = ()
) -> Iterator[Cell]:
    """Measure each server with one, two, four and eight processes; yield the cells.

    size: of the file, in bytes. printed: the thesis's rates, by column. link: a speed of links.SPEEDS, "" for full
    speed.

    A row is a number of processes, and each server has its own column, in which it is compared with itself with one
    process. Without the link, nothing is measured, and each row says so.
    """
    root = lab.site([size])
    lab.notes += [*notes, CACHES_OFF]
    here = list(lab.servers([each.tested for each in SERVERS.values()]))
    with ExitStack() as exits:
        problem = exits.enter_context(lab.behind_link(link)) if link else ""
        for column, rates in printed.items():
            load = Load(
                "saturation", users=100, keep_alive=column == KEEP_ALIVE, seconds=lab.quick_or_full(1, 2),
                warm_up=0.5, path=f"/{size}.html", length=size,
            )  # fmt: skip
            for tested, workers in itertools.product(here, PROCESS_COUNTS):
                cell = empty_cell(tested, workers, column, rates)
                if problem:
                    cell.failure = problem
                else:
                    several = replace(tested, name=row_name(workers), options=("--workers", str(workers)))
                    lab.fill_cell(several, load, cell, root)
                yield cell


def empty_cell(tested: ServerUnderTest, workers: int, column: str, rates: Rates) -> Cell:
    """Return an empty cell of a server with `workers` processes, with the printed rate if there is one.

    rates: the printed replies a second of the column.
    """
    cell = cell_of(tested, f"{tested.name}, {column}")
    cell.server = row_name(workers)
    cell.remark = f"{tested.name} {cell.remark}" if cell.remark else ""
    if tested.name in rates:
        cell.paper = rates[tested.name][PROCESS_COUNTS.index(workers)]
        cell.paper_server = f"{SERVERS[tested.name].document} {workers}"
    return cell
