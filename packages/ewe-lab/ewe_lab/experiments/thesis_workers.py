"""How the thesis's tests with several processes run: nginx, lighttpd, and ewe's event loop with `--workers`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from ewe_lab.bench.experiment import Bench, Contender, Load
from ewe_lab.bench.results import Cell
from ewe_lab.experiments.thesis_static import CACHES_OFF, KEEP, cell_of

PROCESSES = (1, 2, 4, 8)
SERVERS = {  # our name: the contender without its number of processes, the document's name
    "nginx": (Contender("nginx", "nginx"), "Nginx"),
    "lighttpd": (Contender("lighttpd", "lighttpd"), "Lighttpd"),
    "ewe": (Contender("ewe", model="asyncio"), ""),
}
Rates = Mapping[str, Sequence[float]]  # by server: for one, two, four and eight processes


def name(workers: int) -> str:
    return "1 process" if workers == 1 else f"{workers} processes"


def run(
    lab: Bench, size: int, printed: Mapping[str, Rates], link: str = "", notes: Sequence[str] = ()
) -> Iterator[Cell]:
    """Measure each server with one, two, four and eight processes."""
    root = lab.site([size])
    lab.notes += [*notes, CACHES_OFF]
    here = list(lab.servers([contender for contender, _ in SERVERS.values()]))
    with ExitStack() as stack:
        if link and (why := stack.enter_context(lab.linked(link))):
            lab.notes.append(f"Not behind a link of {link}, which would bound the rate: {why}")
        for column, rates in printed.items():
            for server, (contender, document) in SERVERS.items():
                if contender not in here:
                    continue
                for index, workers in enumerate(PROCESSES):
                    yield measured(lab, contender, workers, column, size, root=root, document=document,
                                   paper=rates[server][index] if server in rates else None)  # fmt: skip


def measured(
    lab: Bench, server: Contender, workers: int, column: str, size: int, *, root: Path, document: str,
    paper: float | None,
) -> Cell:  # fmt: skip
    """Measure one server with so many processes."""
    contender = Contender(name(workers), server.kind, server.model, ("--workers", str(workers)))
    load = Load(
        "ceiling", users=100, keep_alive=column == KEEP, seconds=lab.seconds(1, 2), warm_up=0.5,
        path=f"/{size}.html", length=size,
    )  # fmt: skip
    cell = cell_of(contender, f"{server.name}, {column}")
    cell.remark = f"{server.name} {cell.remark}" if cell.remark else ""
    cell.paper, cell.paper_server = paper, f"{document} {workers}" if paper else ""
    return lab.measure(contender, load, cell, root)
