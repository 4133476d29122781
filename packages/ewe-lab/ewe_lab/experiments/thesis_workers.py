"""The thesis's tests with several processes: nginx, lighttpd, and ewe's event loop with `--workers`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from ewe_lab.bench.experiment import Bench, Load, ServerUnderTest
from ewe_lab.bench.results import Cell
from ewe_lab.experiments.thesis_static import CACHES_OFF, KEEP_ALIVE, cell_of

PROCESS_COUNTS = (1, 2, 4, 8)
SERVERS = {  # our name: the server without its number of processes, the document's name
    "nginx": (ServerUnderTest("nginx", "nginx"), "Nginx"),
    "lighttpd": (ServerUnderTest("lighttpd", "lighttpd"), "Lighttpd"),
    "ewe": (ServerUnderTest("ewe", model="asyncio"), ""),
}
Rates = Mapping[str, Sequence[float]]  # by server: for one, two, four and eight processes


def name(workers: int) -> str:
    """Return the name of a row: `1 process`, `8 processes`."""
    return "1 process" if workers == 1 else f"{workers} processes"


def run(
    lab: Bench, size: int, printed: Mapping[str, Rates], link: str = "", notes: Sequence[str] = ()
) -> Iterator[Cell]:
    """Measure each server with one, two, four and eight processes; yield the cells.

    printed: the thesis's rates, by column. A row is a number of processes, and each server has its own column, in
    which it is compared with itself with one process.
    """
    root = lab.site([size])
    lab.notes += [*notes, CACHES_OFF]
    here = list(lab.servers([tested for tested, _ in SERVERS.values()]))
    with ExitStack() as stack:
        if link and (problem := stack.enter_context(lab.behind_link(link))):
            lab.notes.append(f"Not behind a link of {link}, which would bound the rate: {problem}")
        for column, rates in printed.items():
            for server, (tested, document) in SERVERS.items():
                if tested not in here:
                    continue
                for index, workers in enumerate(PROCESS_COUNTS):
                    yield measure_server(lab, tested, workers, column, size, root=root, document=document,
                                   paper=rates[server][index] if server in rates else None)  # fmt: skip


def measure_server(
    lab: Bench, server: ServerUnderTest, workers: int, column: str, size: int, *, root: Path, document: str,
    paper: float | None,
) -> Cell:  # fmt: skip
    """Measure one server with `workers` processes; return the cell. document: the thesis's name of the server."""
    tested = ServerUnderTest(name(workers), server.kind, server.model, ("--workers", str(workers)))
    load = Load(
        "saturation", users=100, keep_alive=column == KEEP_ALIVE, seconds=lab.quick_or_full(1, 2), warm_up=0.5,
        path=f"/{size}.html", length=size,
    )  # fmt: skip
    cell = cell_of(tested, f"{server.name}, {column}")
    cell.remark = f"{server.name} {cell.remark}" if cell.remark else ""
    cell.paper, cell.paper_server = paper, f"{document} {workers}" if paper else ""
    return lab.fill_cell(tested, load, cell, root)
