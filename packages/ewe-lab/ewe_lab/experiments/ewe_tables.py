"""How tables 2 to 5 of EWE run: the same load on five servers, for four sizes. ewe_figures.py has the figures.

Each table runs with three loads:

    as printed        100 connections a second, each of 10 requests (5 of 16 KB, 3 of 128 KB) back to back
    think 100 ms      50 sessions a second, 100 ms between a reply and the next request. A connection then lasts as
                      long as in 2006, and serving one at a time costs what it cost then
    same regime       connections come 4.65 times faster than the fork model can serve them, as in 2006, when 1000
                      requests a second were offered and 215 served. Each has 2 requests: one load generator cannot
                      send more
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from ewe_lab.bench.experiment import Bench, Chart, Contender, Experiment, Load
from ewe_lab.bench.results import Cell
from ewe_lab.experiments.contenders import (
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
LINES = {  # the lines beside the reply rate: the name of our figure, the printed unit
    "requests": ("requests", ""),
    "replies": ("replies", ""),
    "duration": ("seconds", "s"),
    "connection rate": ("connection_rate", "conn/s"),
    "request rate": ("request_rate", "req/s"),
    "reply time": ("service.mean", "ms"),
    "net I/O": ("kilobytes", "KB/s"),
    "errors": ("lost", ""),
}
FEW = 2  # requests on a connection in the same regime: one load generator cannot send more
OVERLOAD = 4.65  # 1000 requests a second offered, 215 served
PRINTED, THINKING, REGIME = "as printed", "think 100 ms", "same regime"
TIMEOUT = 5.0  # of a request. It is not printed; httperf's usual timeout

MACHINE = {
    "server": "dual Pentium 4, 3 GHz (Apache on another host)",
    "client": "Pentium 4, 2.8 GHz, httperf",
    "network": "100 Mbit/s",
}
APACHE = replace(  # Apache has its processes when the load begins; from 5 it would need seconds to start them
    APACHE_PREFORK,
    options=("-c", "StartServers 64", "-c", "MinSpareServers 32", "-c", "MaxSpareServers 256"),
)
CONTENDERS = (APACHE, SERIAL, FORK, THREAD, POOL_2006, ASYNCIO)
MORE = (POOL, PREFORK, NGINX)  # in full runs; no printed figures
PAPER_SERVER = {
    "apache-prefork": "Apache",
    "serial": "EWE basic",
    "fork": "EWE -f",
    "thread": "EWE -t",
    "pool-2006": "EWE -p",
}
HELD_BY_TIME = (
    "The pool ran 189.9, 190.0 and 189.9 s in tables 2, 3 and 5, for every size: 5.3 connections a second "
    "with 5 threads, 0.94 s a connection. It was held by time, not by bytes."
)
ERRATA = (
    "The references to the tables are printed as ??.",
    "“each new thread must instantiate a base-Processor object while each new thread gets an existing copy of "
    "one”: the second thread must read process.",
    "The text says of the pool what only tables 3 and 5 show: socket timeouts. Table 2 prints its 773 errors as "
    "client timeouts.",
    "httperf's parameters are “given in the project description” and not printed; we infer 1000 connections "
    "at 100 a second from the counts.",
)


@dataclass(frozen=True)
class Printed:
    """A printed table: lines of figures in the order of SERVERS. size: of the file, in bytes."""

    table: int
    size: int
    calls: int  # requests on one connection
    lines: tuple[tuple[float, ...], ...]  # the first nine of ROWS
    errors: tuple[str, ...]  # the tenth, kind by kind
    misprints: Mapping[tuple[str, str], float] = field(
        default_factory=dict
    )  # (line, server): the figure that must be meant

    def of(self, row: str, server: str) -> float:
        """Return a printed figure."""
        return self.lines[ROWS.index(row)][SERVERS.index(server)]

    def compared(self, row: str, server: str) -> float:
        """Return a printed figure, corrected where the table contradicts itself."""
        return self.misprints.get((row, server), self.of(row, server))

    def lost(self, server: str) -> float:
        """Return the share of the 1000 connections that ended in an error of any kind."""
        text = self.errors[SERVERS.index(server)]
        return sum(map(int, re.findall(r"\d+", text))) / self.of("connections", server)


def experiment(
    printed: Printed, claim: str, *, quick: bool, link: str = "", errata: tuple[str, ...] = ()
) -> Experiment:
    """Return the experiment for a printed table."""
    size = f"{printed.size} bytes" if printed.size < 1024 else f"{printed.size // 1024} KB"
    return Experiment(
        id=f"E-T{printed.table}",
        document="EWE",
        source=f"table {printed.table}",
        title=f"The models beside Apache, {size} on kept connections",
        claim=claim,
        varies="the concurrency model",
        measures="all lines of the table: requests, replies, duration, rates, reply time, net I/O, errors by kind",
        quick=quick,
        minutes=12.0 if link else 15.0,
        reference="apache-prefork",
        paper_reference="Apache",
        charts=(
            Chart("bars", "Replies a second, over Apache's", columns=columns(link)),
            Chart(
                "bars", "Net I/O, over Apache's", columns=tuple(f"{name}: net I/O" for name in columns(link))
            ),
            Chart("errors", "Sessions that ended in an error", columns=columns(link)),
        ),
        errata=(*errata, *ERRATA),
        run=lambda lab: run(lab, printed, link),
        machine=MACHINE,
    )


def columns(link: str) -> tuple[str, ...]:
    """Return the settings of a table. Behind a slow link the link is the limit, so there is no `same regime`."""
    return (PRINTED, THINKING) if link else (PRINTED, THINKING, REGIME)


def run(lab: Bench, printed: Printed, link: str) -> Iterator[Cell]:
    """Measure one table, behind a link if it needs one."""
    root = lab.site([printed.size])
    with ExitStack() as stack:
        if link:
            why = stack.enter_context(lab.linked(link))
            if why:
                lab.notes.append(f"Not behind a link of {link}, which this table is about: {why}")
                return
            lab.notes.append(
                f"Server and load were joined by a link of {link} in a private network namespace."
            )
        loads = {PRINTED: as_printed(lab, printed), THINKING: thinking(lab, printed)}
        if not link:
            loads[REGIME] = same_regime(lab, printed, root)
        for contender in lab.servers(CONTENDERS if lab.quick else (*CONTENDERS, *MORE)):
            for column, load in loads.items():
                cell = lab.measure(contender, load, rate_cell(printed, contender, column), root)
                yield cell
                yield from line_cells(printed, cell)


def as_printed(lab: Bench, printed: Printed) -> Load:
    """Return the load of 2006; a shorter one, at the same rate, in a quick run."""
    sessions = int(lab.seconds(150, 1000))
    return Load(
        "arrivals", rate=100, sessions=sessions, calls=printed.calls, timeout=TIMEOUT, seconds=60, warm_up=0,
        path=f"/{printed.size}.html", length=printed.size,
    )  # fmt: skip


def thinking(lab: Bench, printed: Printed) -> Load:
    """Return the load with long connections: half as many, 100 ms before each further request."""
    return replace(as_printed(lab, printed), rate=50, sessions=int(lab.seconds(100, 500)), think=0.1)


def same_regime(lab: Bench, printed: Printed, root: Path) -> Load:
    """Return a load that comes 4.65 times faster than the fork model can serve it, for a second.

    The fork model needs 4.65 seconds for it: as in 2006 it answers everything, late, and no client times out.
    """
    probe = replace(as_printed(lab, printed), rate=500, sessions=500, calls=min(FEW, printed.calls))
    with lab.start(FORK, root) as server:
        sample = lab.load(server, probe)
    capacity = sample.rate / probe.calls if sample.rate else 100.0
    lab.notes.append(
        f"Same regime: the fork model serves {capacity:.0f} connections a second of {probe.calls} requests "
        f"(measured over {sample.seconds:.1f} s); offered are {OVERLOAD} times as many."
    )
    rate = float(round(OVERLOAD * capacity))
    return replace(probe, rate=rate, sessions=int(rate * 0.95))


def rate_cell(printed: Printed, contender: Contender, column: str) -> Cell:
    """Return an empty cell with the printed reply rate and errors."""
    name = PAPER_SERVER.get(contender.name, "")
    return Cell(
        contender.name,
        column,
        paper=printed.compared("reply rate", name) if name else None,
        paper_server=name,
        paper_note=printed.errors[SERVERS.index(name)] + " of 1000" if name else "",
    )


def line_cells(printed: Printed, of: Cell) -> Iterator[Cell]:
    """Yield a cell for each other line of the printed table, with the figures of the same measurement.

    The line of connections is left out: it is 1000 everywhere, an input and not a result.
    """
    name = of.paper_server
    for line, (value, unit) in LINES.items():
        paper = printed.lost(name) if line == "errors" and name else None
        if line != "errors" and name:
            paper = printed.compared(line, name)
        yield replace(
            of,
            column=f"{of.column}: {line}",
            line=line,
            value=value,
            unit=unit,
            paper=paper,
            samples=[replace(sample, timeline=[]) for sample in of.samples],
        )
