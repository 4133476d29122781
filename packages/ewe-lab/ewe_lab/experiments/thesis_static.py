"""The static tests of the thesis: replies a second of many servers against the number of clients.

The charts of the thesis have no numbers; its text gives some. The sweep over the number of clients is charted as
measured, and the best point of each server stands beside that of the text, as a ratio to Apache prefork.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ewe_lab.bench.experiment import Bench, Load, ServerUnderTest
from ewe_lab.bench.results import Cell
from ewe_lab.experiments.clients import measure_once
from ewe_lab.experiments.tested_servers import (
    APACHE_EVENT,
    APACHE_PREFORK,
    APACHE_WORKER,
    ASYNCIO,
    BY_NAME,
    CADDY,
    H2O,
    LIGHTTPD,
    MONGREL2,
    NGINX,
    POOL,
    THREAD,
    TOMCAT,
    YAWS,
)
from ewe_lab.stacks.other_servers import cached_data

SERVERS = (
    APACHE_PREFORK,
    APACHE_WORKER,
    APACHE_EVENT,
    NGINX,
    LIGHTTPD,
    TOMCAT,
    YAWS,
    MONGREL2,
    H2O,
    CADDY,
    THREAD,
    POOL,
    ASYNCIO,
)
SLOW_TO_START = (TOMCAT, YAWS)  # left out of a quick run behind a link, which makes all servers equal
PRINTED_NAMES = {
    "apache-prefork": "Apache prefork",
    "apache-worker": "Apache worker",
    "apache-event": "Apache event",
    "nginx": "Nginx",
    "lighttpd": "Lighttpd",
    "tomcat": "Tomcat",
    "yaws": "Yaws",
    "mongrel2": "Mongrel2",
}
NO_KEEP_ALIVE = "a connection each"
KEEP_ALIVE = "keep-alive"
BEST_COLUMN_PREFIX = "best: "
CLIENT_COUNTS = (1, 10, 100, 250, 500, 1000)
QUICK_CLIENT_COUNTS = (1, 32, 256)
ABSENT = (
    "Cherokee and Hiawatha are not measured: they are in no current distribution; h2o and caddy stand in for newer "
    "designs, without printed figures."
)
CACHES_OFF = (
    "The thesis had all caches off. If a server has a cache here that cannot be turned off, or seldom is, "
    "its row says so: it does less work for a reply than its printed counterpart."
)
READ_OFF = (
    "Printed figures are those of the text. If the text gives a range for several servers, each has its top."
)


TLS_1_3_PREFIX = "TLS 1.3, "
TLS_1_3_CLIENTS = 100  # clients at once in the columns of TLS 1.3, which do not vary them
PARITY = (
    "TLS 1.2 with AES256-SHA, an RSA key of 2048 bits and no resumption, as in 2011. ewe offers no such cipher, "
    "so that its models are only in the columns of TLS 1.3, which browsers and servers use today."
)


@dataclass(frozen=True)
class StaticTest:
    """One static test. size: of the requested file, in bytes. link: a speed of links.SPEEDS, "" for full speed.

    printed: the best replies a second, by column and name of the server. tls: over HTTPS.
    """

    size: int
    printed: Mapping[str, Mapping[str, float]]
    link: str = ""
    tls: bool = False
    servers: Sequence[ServerUnderTest] = SERVERS

    def load(self, lab: Bench, column: str, clients: int, tls: str = "") -> Load:
        """Return the load of one point. column: KEEP_ALIVE or NO_KEEP_ALIVE. tls: as in Load."""
        return Load(
            "saturation",
            users=clients,
            keep_alive=column == KEEP_ALIVE,
            seconds=lab.quick_or_full(0.8, 2),
            warm_up=lab.quick_or_full(0.2, 0.5),
            path=f"/{self.size}.html",
            length=self.size,
            tls=tls,
        )

    def clients(self, lab: Bench) -> Sequence[int]:
        """Return the numbers of clients. A link or TLS makes servers equal, so a quick run then has fewer."""
        if lab.quick:
            return QUICK_CLIENT_COUNTS[1:] if self.link or self.tls else QUICK_CLIENT_COUNTS
        return CLIENT_COUNTS


def table(
    lab: Bench,
    size: int,
    printed: Mapping[str, Mapping[str, float]],
    link: str = "",
    tls: bool = False,
    servers: Sequence[str] = (),
) -> Iterator[Cell]:
    """Measure a static test, as a paper's file describes it; yield the cells. servers: by name, () for SERVERS."""
    tested_servers = [BY_NAME[name] for name in servers] or SERVERS
    yield from run(lab, StaticTest(size, printed, link=link, tls=tls, servers=tested_servers))


def run(lab: Bench, test: StaticTest) -> Iterator[Cell]:
    """Measure every server, behind a link if the test needs one; yield the cells.

    Without its link, a test is not measured: its printed figures then have the reason beside them.
    """
    root = lab.site([test.size])
    lab.notes += [ABSENT, READ_OFF, CACHES_OFF, *([PARITY] if test.tls else [])]
    with ExitStack() as exits:
        if test.link and (problem := exits.enter_context(lab.behind_link(test.link))):
            for column, rates in test.printed.items():
                for name, rate in rates.items():
                    yield Cell(
                        name, BEST_COLUMN_PREFIX + column, paper=rate, paper_server=PRINTED_NAMES[name],
                        failure=problem,
                    )  # fmt: skip
            return
        servers = [each for each in test.servers if not (lab.quick and test.link and each in SLOW_TO_START)]
        for tested in lab.servers(servers):
            for column in test.printed:
                if not (test.tls and tested.kind == "ewe"):  # ewe does not offer the cipher of PARITY
                    yield from measure_points(lab, test, tested, column, root)
                if test.tls:
                    load = test.load(lab, column, TLS_1_3_CLIENTS, "default")
                    yield lab.fill_cell(tested, load, cell_of(tested, TLS_1_3_PREFIX + column), root)


def measure_points(
    lab: Bench, test: StaticTest, tested: ServerUnderTest, column: str, root: Path
) -> Iterator[Cell]:
    """Measure a server at every number of clients, then repeat the best of them; yield a cell for each."""
    cells: list[Cell] = []
    loads = [test.load(lab, column, count, "parity" if test.tls else "") for count in test.clients(lab)]
    for load in loads:
        cells.append(measure_once(lab, tested, load, cell_of(tested, column, load.users), root))
        yield cells[-1]
    cell = best_cell(cells, test.printed[column].get(tested.name))
    if not lab.quick and cell.samples:
        # The best of many single measurements may be luck, so its point is measured afresh, several times
        cell.samples = []
        lab.fill_cell(tested, loads[cells.index(max(cells, key=figure_or_0))], cell, root)
    yield cell


def cell_of(tested: ServerUnderTest, column: str, x: float | None = None) -> Cell:
    """Return an empty cell whose remark says what the server caches. In the thesis caches were off."""
    cached = cached_data(tested.kind)
    return Cell(tested.name, column, x, remark=f"caches {cached}" if cached else "")


def figure_or_0(cell: Cell) -> float:
    """Return a cell's figure, 0 if it has none."""
    return cell.median or 0.0


def best_cell(cells: Sequence[Cell], paper: float | None) -> Cell:
    """Return a cell with the best of a server's points, beside the printed figure `paper`, None without one."""
    top = max(cells, key=figure_or_0)
    return replace(
        top,
        column=BEST_COLUMN_PREFIX + top.column,
        x=None,
        paper=paper,
        paper_server=PRINTED_NAMES.get(top.server, "") if paper else "",
    )
