"""Tables 2 to 5 of EWE: the same load on five servers, for four sizes. ewe.toml has the figures.

Each table runs with three loads:

    as printed        100 connections a second, each of 10 requests (5 of 16 KB, 3 of 128 KB) back to back
    think 100 ms      50 sessions a second, 100 ms between a reply and the next request. A connection then lasts as
                      long as in 2006, so a server that serves one connection at a time loses as much as then
    same regime       connections come 4.65 times faster than the fork model can serve them, as in 2006, when 1000
                      requests a second were offered and 215 served. Each has 2 requests: one load generator cannot
                      send more
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ewe_lab.bench.experiment import Bench, Load, ServerUnderTest
from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.bench.verdicts import FAILS, HOLDS, LEVEL_RATIO, NOT_TESTABLE, Finding
from ewe_lab.experiments.tested_servers import (
    APACHE_PREFORK,
    ASYNCIO,
    FORK,
    NGINX,
    POOL,
    POOL_2006,
    PREFORK,
    SERIAL,
    THREAD,
)

SERVERS = ("Apache", "EWE basic", "EWE -f", "EWE -t", "EWE -p")  # the columns of the printed tables
ROWS = (  # their lines; the document prints the unit of the sixth as req/p
    "connections", "requests", "replies", "duration", "connection rate", "request rate", "reply rate",
    "reply time", "net I/O", "errors",
)  # fmt: skip


class LineFigure(NamedTuple):
    """The figure of a line. value: the name of ours. unit: of the printed one."""

    value: str
    unit: str = ""


LINES = {  # the lines beside the reply rate
    "requests": LineFigure("requests"),
    "replies": LineFigure("replies"),
    "duration": LineFigure("seconds", "s"),
    "connection rate": LineFigure("connection_rate", "conn/s"),
    "request rate": LineFigure("request_rate", "req/s"),
    "reply time": LineFigure("service.mean", "ms"),
    "net I/O": LineFigure("kilobytes", "KB/s"),
    "errors": LineFigure("lost"),
}
REGIME_REQUESTS = 2  # requests on a connection in `same regime`: one load generator cannot send more
OVERLOAD_RATIO = 4.65  # 1000 requests a second offered, 215 served
PRINTED, THINKING, REGIME = "as printed", "think 100 ms", "same regime"
LINK_KB_PER_S = 12_500_000 / 1024  # KB/s that 100 Mbit/s can carry
FULL_LINK_SHARE = 0.6  # of the wire, as in 2006: 7,681 KB/s
TIMEOUT_S = 5.0  # of a request. It is not printed; httperf's usual timeout

APACHE = replace(  # Apache has its processes when the load begins; from 5 it would need seconds to start them
    APACHE_PREFORK,
    options=("-c", "StartServers 64", "-c", "MinSpareServers 32", "-c", "MaxSpareServers 256"),
)
TESTED_SERVERS = (APACHE, SERIAL, FORK, THREAD, POOL_2006, ASYNCIO)
FULL_RUN_SERVERS = (POOL, PREFORK, NGINX)  # in full runs; no printed figures
PAPER_SERVER = {
    "apache-prefork": "Apache",
    "serial": "EWE basic",
    "fork": "EWE -f",
    "thread": "EWE -t",
    "pool-2006": "EWE -p",
}


@dataclass(frozen=True)
class PrintedTable:
    """A printed table: lines of figures in the order of SERVERS. size: of the file, in bytes."""

    size: int
    calls: int  # requests on one connection
    lines: Mapping[str, Sequence[float]]  # the first nine of ROWS
    errors: Sequence[str]  # the tenth, kind by kind
    # By line and server: the figure that must be meant.
    misprints: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    link: str = ""  # between servers and load

    def of(self, row: str, server: str) -> float:
        """Return a printed figure."""
        return self.lines[row][SERVERS.index(server)]

    def compared(self, row: str, server: str) -> float:
        """Return a printed figure, corrected where the table contradicts itself."""
        return self.misprints.get(row, {}).get(server, self.of(row, server))

    def lost(self, server: str) -> float:
        """Return the share of the 1000 connections that ended in an error of any kind."""
        text = self.errors[SERVERS.index(server)]
        return sum(map(int, re.findall(r"\d+", text))) / self.of("connections", server)


def run(lab: Bench, **table: Any) -> Iterator[Cell]:
    """Measure one table, behind a link if it needs one; yield the cells. table: the fields of PrintedTable.

    Without its link, a table is not measured, and each row says so. Behind a slow link the link is the limit, so
    there is no `same regime`.
    """
    printed = PrintedTable(**table)
    link = printed.link
    root = lab.site([printed.size])
    with ExitStack() as exits:
        if link:
            problem = exits.enter_context(lab.behind_link(link))
            if problem:
                for tested in TESTED_SERVERS:
                    yield replace(rate_cell(printed, tested, PRINTED), failure=problem)
                return
            lab.notes.append(
                f"Server and load were joined by a link of {link} in a private network namespace."
            )
        loads = {PRINTED: load_of_2006(lab, printed), THINKING: load_with_thinking(lab, printed)}
        if not link:
            loads[REGIME] = overload(lab, printed, root)
        for tested in lab.servers(TESTED_SERVERS if lab.quick else (*TESTED_SERVERS, *FULL_RUN_SERVERS)):
            for column, load in loads.items():
                cell = lab.fill_cell(tested, load, rate_cell(printed, tested, column), root)
                yield cell
                yield from line_cells(printed, cell)


def load_of_2006(lab: Bench, printed: PrintedTable) -> Load:
    """Return the load of 2006: 100 new connections a second. A quick run has fewer of them, at the same rate."""
    sessions = int(lab.quick_or_full(150, 1000))
    return Load(
        "arrivals", rate=100, sessions=sessions, calls=printed.calls, timeout=TIMEOUT_S, seconds=60, warm_up=0,
        path=f"/{printed.size}.html", length=printed.size,
    )  # fmt: skip


def load_with_thinking(lab: Bench, printed: PrintedTable) -> Load:
    """Return the load with long connections: half as many, 100 ms before each further request."""
    return replace(load_of_2006(lab, printed), rate=50, sessions=int(lab.quick_or_full(100, 500)), think=0.1)


def overload(lab: Bench, printed: PrintedTable, root: Path) -> Load:
    """Return a load of one second that demands 4.65 times the rate that the fork model can serve.

    The fork model needs about 4.65 seconds to serve the load. As in 2006 it answers every request, late, and no
    client times out. Its rate is measured first, with more requests than it can serve.
    """
    probe = replace(
        load_of_2006(lab, printed), rate=500, sessions=500, calls=min(REGIME_REQUESTS, printed.calls)
    )
    with lab.start(FORK, root) as server:
        sample = lab.load(server, probe)
    # Without a reply any rate will do, but not 0: the load divides by its rate
    capacity = sample.rate / probe.calls if sample.rate else 100.0
    lab.notes.append(
        f"Same regime: the fork model serves {capacity:.0f} connections a second of {probe.calls} requests "
        f"(measured over {sample.seconds:.1f} s); offered are {OVERLOAD_RATIO} times as many."
    )
    rate = float(round(OVERLOAD_RATIO * capacity))
    # The sessions of 0.95 s: the last ones begin before the second of the load is over
    return replace(probe, rate=rate, sessions=int(rate * 0.95))


def rate_cell(printed: PrintedTable, tested: ServerUnderTest, column: str) -> Cell:
    """Return an empty cell with the printed reply rate and errors."""
    name = PAPER_SERVER.get(tested.name, "")
    return Cell(
        tested.name,
        column,
        paper=printed.compared("reply rate", name) if name else None,
        paper_server=name,
        paper_note=printed.errors[SERVERS.index(name)] + " of 1000" if name else "",
    )


def line_cells(printed: PrintedTable, rate_cell: Cell) -> Iterator[Cell]:
    """Yield a cell for each other line of the printed table, with the figures of the same measurement.

    The line of connections is left out: it is 1000 everywhere, an input and not a result.
    """
    name = rate_cell.paper_server
    for line, (value, unit) in LINES.items():
        paper = None
        if name:
            paper = printed.lost(name) if line == "errors" else printed.compared(line, name)
        yield replace(
            rate_cell,
            column=f"{rate_cell.column}: {line}",
            line=line,
            value=value,
            unit=unit,
            paper=paper,
            samples=[replace(sample, timeline=[]) for sample in rate_cell.samples],  # rate_cell keeps it
        )


def check_network(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim of table 5 holds if Apache, fork and thread fill the wire, and their Net I/O is about equal.
    """
    column, claimed = f"{PRINTED}: net I/O", (APACHE.name, FORK.name, THREAD.name)
    medians = {
        cell.server: cell.median for cell in table.cells if cell.column == column and cell.median is not None
    }
    kb_per_s = [medians[name] for name in claimed if name in medians]
    if len(kb_per_s) < len(claimed):
        return Finding(NOT_TESTABLE, "Apache, fork and thread were not all measured.")
    summary = ", ".join(f"{value:,.0f}" for value in kb_per_s)
    are_equal = max(kb_per_s) <= LEVEL_RATIO * min(kb_per_s)
    fill_the_link = min(kb_per_s) >= FULL_LINK_SHARE * LINK_KB_PER_S
    verdict = HOLDS if are_equal and fill_the_link else FAILS
    return Finding(
        verdict,
        f"As printed, Apache, fork and thread sent {summary} KB/s; the wire carries {LINK_KB_PER_S:,.0f}.",
    )
