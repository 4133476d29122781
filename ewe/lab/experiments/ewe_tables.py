"""Tables 2 to 5 of EWE: the same load on five servers, for four sizes. The printed tables, and how they run.

Each is run three times over. As printed: 100 connections a second, of 10 requests (5 of 16 KB, 3 of 128 KB)
back to back. With think time: 50 sessions a second, 100 ms between a reply and the next request, so that a
connection lasts as long as it did in 2006 and serving one at a time costs what it cost then. In the same
regime: connections come 4.65 times faster than the fork model can serve them, as in 2006, when 1000 requests
a second were offered to 215; of 2 requests each, because one load generator carries no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ewe.lab.experiment import Bench, Chart, Contender, Experiment, Load
from ewe.lab.experiments.contenders import (
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
from ewe.lab.results import Cell

SERVERS = ("Apache", "EWE basic", "EWE -f", "EWE -t", "EWE -p")  # the columns of the printed tables
ROWS = (  # their lines; the unit of the sixth is printed as req/p
    "connections", "requests", "replies", "duration", "connection rate", "request rate", "reply rate",
    "reply time", "net I/O", "errors",
)  # fmt: skip
FEW = 2  # requests on a connection in that regime, so that one load generator carries it
OVERLOAD = 4.65  # 1000 requests a second offered, 215 served
PRINTED, THINKING, REGIME = "as printed", "think 100 ms", "same regime"
TIMEOUT = 5.0  # of a request: not printed; httperf's usual one

MACHINE = {
    "server": "dual Pentium 4, 3 GHz (Apache on another host)",
    "client": "Pentium 4, 2.8 GHz, httperf",
    "network": "100 Mbit/s",
}
APACHE = replace(  # its processes are there when the load begins: from 5 it would take seconds to grow
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
    "The pool ran 189.9, 190.0 and 189.9 s in tables 2, 3 and 5 whatever the size: 5.3 connections a second "
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

    def of(self, row: str, server: str) -> float:
        """Return a printed figure."""
        return self.lines[ROWS.index(row)][SERVERS.index(server)]


def experiment(
    printed: Printed, claim: str, *, quick: bool, link: str = "", errata: tuple[str, ...] = ()
) -> Experiment:
    """Return the experiment that runs a printed table again."""
    size = f"{printed.size} bytes" if printed.size < 1024 else f"{printed.size // 1024} KB"
    return Experiment(
        id=f"E-T{printed.table}",
        document="EWE",
        source=f"table {printed.table}",
        title=f"The models beside Apache, {size} on kept connections",
        claim=claim,
        varies="the concurrency model",
        measures="replies a second, errors by kind, reply time",
        quick=quick,
        minutes=12.0 if link else 15.0,
        reference="apache-prefork",
        paper_reference="Apache",
        charts=(
            Chart("bars", "Replies a second, over Apache's", columns=columns(link)),
            Chart("errors", "Sessions that ended in an error", columns=columns(link)),
        ),
        errata=(*errata, *ERRATA),
        run=lambda lab: run(lab, printed, link),
        machine=MACHINE,
    )


def columns(link: str) -> tuple[str, ...]:
    """Return the names of a table's settings; behind a slow link the fork model is no longer what limits."""
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
            lab.notes.append(f"Server and load were joined by a link of {link} in a network of their own.")
        loads = {PRINTED: as_printed(lab, printed), THINKING: thinking(lab, printed)}
        if not link:
            loads[REGIME] = same_regime(lab, printed, root)
        for contender in lab.servers(CONTENDERS if lab.quick else (*CONTENDERS, *MORE)):
            for column, load in loads.items():
                cell = lab.measure(contender, load, rate_cell(printed, contender, column), root)
                yield cell
                if column == REGIME:
                    yield time_cell(printed, cell)


def as_printed(lab: Bench, printed: Printed) -> Load:
    """Return the load of 2006; in a quick run less of it, which changes no rate."""
    sessions = int(lab.seconds(150, 1000))
    return Load(
        "arrivals", rate=100, sessions=sessions, calls=printed.calls, timeout=TIMEOUT, seconds=60, warm_up=0,
        path=f"/{printed.size}.html", length=printed.size,
    )  # fmt: skip


def thinking(lab: Bench, printed: Printed) -> Load:
    """Return the load whose connections last: half as many, thinking 100 ms before each further request."""
    return replace(as_printed(lab, printed), rate=50, sessions=int(lab.seconds(100, 500)), think=0.1)


def same_regime(lab: Bench, printed: Printed, root: Path) -> Load:
    """Return a load that comes 4.65 times faster than the fork model serves it, for a second.

    A second's worth takes the fork model 4.65 seconds: as in 2006 it answers all, late, and nobody times out.
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
    """Return an empty cell with the printed request rate and errors."""
    name = PAPER_SERVER.get(contender.name, "")
    return Cell(
        contender.name,
        column,
        paper=printed.of("request rate", name) if name else None,
        paper_server=name,
        paper_note=printed.errors[SERVERS.index(name)] + " of 1000" if name else "",
    )


def time_cell(printed: Printed, of: Cell) -> Cell:
    """Return the same measurement's reply time, beside the printed one."""
    name = of.paper_server
    return replace(
        of,
        column=f"{of.column}: reply time",
        value="service.mean",
        unit="ms",
        paper=printed.of("reply time", name) if name else None,
        paper_note="",
    )
