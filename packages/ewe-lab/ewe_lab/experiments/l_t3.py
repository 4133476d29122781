"""LibCGI, table 3: throughput by size and link; without a link, under each model and on other servers.

A link has a speed, and a way to call a program has a cost. With a slow link and a large answer the link decides,
and all ways look alike; with small answers the ways differ:

    10 and 100 Mbit/s   30 clients ──▶ a link ──▶ ewe -t ──▶ the program, by each gateway     (the paper's table)
    without a link      30 clients ──────────────▶ ewe, under three models
    other servers       30 clients ──────────────▶ Apache, lighttpd, nginx, as far as they are installed

Each row is a way, and each column a setting with a size. A file of the same size stands beside the programs: it is
the most that the server and the link can send.

Read next: ../stacks/gateways.py, and ../bench/links.py for the links.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ewe_lab.bench import figures
from ewe_lab.bench.experiment import Bench, Load, RunningServer, ServedPath, ServerUnderTest
from ewe_lab.bench.processes import LabError, find_tool, running, server_core
from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.bench.verdicts import NOT_TESTABLE, Finding, verdict_of_parts
from ewe_lab.experiments.libcgi_tables import (
    CGI,
    FASTCGI,
    KINDS,
    LIBCGI,
    SIZES,
    STATIC,
    TABLE_3,
    size_name,
)
from ewe_lab.stacks import backends, compiled, gateways, webservers
from ewe_lab.stacks.forms import PROGRAM, write_forms
from ewe_lab.stacks.gateways import CgiProgram
from ewe_lab.stacks.servers import StartedServer, free_port, wait_for_port
from ewe_lab.stacks.webservers import BackendProgram, Setup

CLIENTS = 30
LINKS = {"10 Mbit/s": "10mbit", "100 Mbit/s": "100mbit"}
MODELS = ("thread", "prefork", "asyncio")
IN_PROCESS = ("thread", "prefork")  # models that call a library without another thread
LINKED_MODEL = "thread"
GATEWAY = {CGI: gateways.CGI, FASTCGI: gateways.FASTCGI, LIBCGI: gateways.LIBCGI}
APACHE, LIGHTTPD, NGINX = "Apache mod_cgid", "lighttpd mod_cgi", "nginx FastCGI"
OTHER_SERVERS_COLUMN = "other servers"


class ProgramServer(NamedTuple):
    """Another server that runs the program. tool: the server's program, by which the lab knows whether it is there.

    file: of the program. gateway: how the server runs it. prepare: writes the server's configuration, and returns
    its command.
    """

    tool: str
    file: str
    gateway: str
    prepare: Callable[[Setup], list[str]]


OTHER_SERVERS = {
    APACHE: ProgramServer("apache2", "bytes.cgi", "cgi", webservers.apache("event")),
    LIGHTTPD: ProgramServer("lighttpd", "bytes.cgi", "cgi", webservers.lighttpd),
    NGINX: ProgramServer("nginx", "bytes.fcgi", "fastcgi", webservers.nginx),
}
SLOWEST_ROW = ("10 Mbit/s", 102_400)  # thirty answers of this size occupy the link for almost three seconds
MIN_SHARE_OF_STATIC = 0.95  # of the static file's rate: the paper says "within 3 %"
# Of the rate of the next way in the claim's order: the link makes all equal
MIN_SHARE_OF_NEXT_BEHIND_LINK = 0.9
MAX_EQUAL_RATIO = 1.2  # of equal rates in SLOWEST_ROW; the printed ones are 9 and 10
REMARKS = (
    "30 clients, and a connection for each request, as ab makes them without -k.",
    "The same program in C each time. FastCGI is one process that serves all connections, which stay open. The Web "
    "server is ewe with a file of the size.",
)

# A function that yields a running server, and the path of the URL with {size} in it.
Serving = Callable[[], AbstractContextManager[ServedPath]]


def column_of(setting: str, size: int) -> str:
    """Return the name of a column. setting: a link of LINKS, a model of ewe, or OTHER_SERVERS_COLUMN."""
    return f"{setting}, {size_name(size)}"


def run(lab: Bench) -> Iterator[Cell]:
    """Measure behind each link, then without one under each model, then other servers; yield the cells."""
    programs = write_forms(lab, SIZES)
    for setting, speed in LINKS.items():
        # A quick run measures 1 KB without a link only, and leaves out the slowest row
        sizes = [
            size for size in SIZES if not lab.quick or (size != SIZES[1] and (setting, size) != SLOWEST_ROW)
        ]
        with lab.behind_link(speed) as problem:
            if problem:
                note(lab, f"Not behind a link of {setting}: {problem}")
                continue
            yield from measure_setting(lab, setting, sizes, gateways_of_ewe(lab, programs, LINKED_MODEL))
    sizes = list(SIZES[1:2] if lab.quick else SIZES)
    for model in MODELS:
        yield from measure_setting(lab, model, sizes, gateways_of_ewe(lab, programs, model))
    yield from measure_setting(lab, OTHER_SERVERS_COLUMN, sizes, installed_servers(lab, programs))
    lab.notes += REMARKS


def note(lab: Bench, text: str) -> None:
    """Add a note once."""
    if text not in lab.notes:
        lab.notes.append(text)


# ---------------------------------------------------------------------------------------------------------
# The servers


def gateways_of_ewe(lab: Bench, programs: Path, model: str) -> dict[str, Serving]:
    """Return how to serve each gateway of ewe that can run here, and files; add a note for each other gateway."""
    found: dict[str, Serving] = {}
    for kind in KINDS:
        gateway = GATEWAY.get(kind, "")
        lacking = gateways.why_missing(gateway, CgiProgram(programs, PROGRAM)) if gateway else ""
        if lacking:
            # Instead of ewe's name of the gateway, "libcgi is left out: ...", the note has the paper's
            note(lab, f"{kind} is left out: {lacking.partition(': ')[2]}")
        else:
            found[kind] = partial(run_ewe, lab, programs, gateway, ServerUnderTest(kind, model=model))
    return found


@contextmanager
def run_ewe(lab: Bench, programs: Path, gateway: str, tested: ServerUnderTest) -> Iterator[ServedPath]:
    """Run ewe with the program behind a gateway, or with the files if there is none.

    Yields the server, and the path with {size} in it.
    """
    with ExitStack() as exits:
        path = "/{size}.html"
        if gateway:
            tested, path = exits.enter_context(
                gateways.start_gateway(
                    lab, gateway, CgiProgram(programs, PROGRAM, "{size}"), tested, keeps=True
                )
            )
        yield ServedPath(exits.enter_context(lab.start(tested, programs)), path)


def installed_servers(lab: Bench, programs: Path) -> dict[str, Serving]:
    """Return the other servers that are installed; add a note for each of those that are not."""
    found: dict[str, Serving] = {}
    if lacking := compiled.why_missing():
        note(lab, f"Other servers are left out: {lacking}")
        return found
    for name, other in OTHER_SERVERS.items():
        if find_tool(other.tool):
            found[name] = partial(run_other_server, lab, programs, name)
        else:
            package = "nginx-light" if other.tool == "nginx" else other.tool
            note(lab, f"{name} is left out: apt install {package}")
    return found


@contextmanager
def run_other_server(lab: Bench, programs: Path, name: str) -> Iterator[ServedPath]:
    """Run another server with the program; yield the server, and the path with {size} in it."""
    other = OTHER_SERVERS[name]
    directory = Path(tempfile.mkdtemp(prefix="other-", dir=lab.directory))
    directory.chmod(0o755)
    core = server_core()
    with ExitStack() as exits:
        output = exits.enter_context(tempfile.TemporaryFile())
        address = ""
        other_pids: tuple[int, ...] = ()
        if other.gateway == "fastcgi":
            socket = directory / "socket"
            command = backends.fastcgi_command(socket, programs / other.file, 1)
            program = exits.enter_context(running(command, output, core, cwd=directory))
            backends.wait_for_socket(program, socket, output, other.file)
            os.chmod(socket, 0o666)
            address, other_pids = f"unix:{socket}", (program.pid,)
        behind = BackendProgram(programs / other.file, address, other.gateway, keeps=True)
        setup = Setup(directory, free_port(), programs, behind=behind)
        web = exits.enter_context(
            running([*lab.command_prefix, *other.prepare(setup)], output, core, cwd=directory)
        )
        wait_for_port(web, setup.port, output, name)
        server = StartedServer(
            web.pid, f"http://127.0.0.1:{setup.port}/", command=name, other_pids=other_pids
        )
        yield ServedPath(server, f"/{other.file}?{{size}}")


# ---------------------------------------------------------------------------------------------------------
# The measurements


def measure_setting(
    lab: Bench, setting: str, sizes: Sequence[int], ways: dict[str, Serving]
) -> Iterator[Cell]:
    """Measure each way with each size, in turns, as often as the lab repeats; yield the cells.

    setting: a key of LINKS; at full speed a model of ewe, or OTHER_SERVERS_COLUMN. ways: by the name of the row.
    """
    cells = {name: {size: cell_of(name, setting, size) for size in sizes} for name in ways}
    for repeat in range(lab.repeats):
        # The order of every second round is reversed, so that no way always comes first
        for name in ways if repeat % 2 == 0 else reversed(ways):
            try:
                with ways[name]() as (server, path):
                    for size, cell in cells[name].items():
                        measure(lab, server, path.replace("{size}", str(size)), cell, setting, size)
            except LabError as reason:
                for cell in cells[name].values():
                    cell.failure = cell.failure or str(reason)
    for by_size in cells.values():
        yield from by_size.values()


def cell_of(name: str, setting: str, size: int) -> Cell:
    """Return an empty cell, with the paper's figure if the setting is a link. name: of the way.

    Rows have the paper's names of the ways.
    """
    cell = Cell(name, column_of(setting, size))
    if setting in TABLE_3:  # by link, size and way
        cell.paper, cell.paper_server = TABLE_3[setting][size_name(size)][name], name
    return cell


def measure(lab: Bench, server: RunningServer, path: str, cell: Cell, setting: str, size: int) -> None:
    """Measure a cell once: add a sample to it. Raises LabError.

    path: of the URL. setting: as in measure_setting(). size: bytes of the answer.
    """
    load = Load(
        "saturation",
        users=CLIENTS,
        keep_alive=False,
        # Each of the 30 clients gets an answer every three seconds in SLOWEST_ROW, also if the lab is quick
        seconds=6.0 if (setting, size) == SLOWEST_ROW else lab.quick_or_full(0.6, 3),
        warm_up=lab.quick_or_full(0.1, 0.5),
        path=path,
        length=size,
    )
    lab.probe(server, load)
    cell.samples.append(lab.load(server, load))
    cell.command, cell.load = server.command, load.description()


Rates = Mapping[tuple[str, str], float]  # by server and column


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim has three parts: LibCGI, FastCGI and CGI in this order everywhere; LibCGI near the static file; all
    equal in SLOWEST_ROW, which a quick run leaves out.

    Behind a link, rates are compared, and 0.9 of the next rate is enough, since the link makes all rates equal. At
    full speed, CPU times are compared: their inverse is the rate that the server would have without other programs.
    LibCGI has to be near the file under the models of IN_PROCESS.
    """
    rate = {(cell.server, cell.column): cell.median for cell in table.cells if cell.median is not None}
    cpu = {
        (cell.server, cell.column): 1e6 / micros
        for cell in table.cells
        if (micros := figures.figure_of_cell(cell, "micros"))
    }
    orders = orders_of_columns(table, rate, cpu)
    near = [ratio for model in IN_PROCESS if (ratio := least_ratio(cpu, LIBCGI, STATIC, model))]
    if not orders or not near:
        return Finding(NOT_TESTABLE, "CGI, FastCGI, LibCGI and the static file were not all measured.")
    part_holds = [all(orders), min(near) >= MIN_SHARE_OF_STATIC]
    slowest = [
        rate[kind, column_of(*SLOWEST_ROW)] for kind in KINDS if (kind, column_of(*SLOWEST_ROW)) in rate
    ]
    if len(slowest) == len(KINDS):
        part_holds.append(max(slowest) <= MAX_EQUAL_RATIO * min(slowest))
    verdict = verdict_of_parts(part_holds)
    pairs = ((LIBCGI, STATIC), (LIBCGI, FASTCGI), (CGI, LIGHTTPD))
    ratios = "; ".join(f"{one} over {other}: {ratios_text(cpu, rate, one, other)}" for one, other in pairs)
    return Finding(
        verdict,
        f"LibCGI, FastCGI and CGI are in this order in {sum(orders)} of {len(orders)} columns. At full speed, by "
        f"CPU time (by rate), at least: {ratios}.",
    )


def orders_of_columns(table: ExperimentTable, rate: Rates, cpu: Rates) -> list[bool]:
    """Return, for each column with LibCGI, FastCGI and CGI, whether they are in this order.

    rate: replies a second, compared in the columns behind a link. cpu: replies in a second of CPU time, compared in
    all other columns.
    """
    orders = []
    for column in dict.fromkeys(cell.column for cell in table.cells):
        linked = column.startswith(tuple(LINKS))
        found = rate if linked else cpu
        rates = [found[kind, column] for kind in (LIBCGI, FASTCGI, CGI) if (kind, column) in found]
        if len(rates) == 3:
            orders.append(in_order(rates, MIN_SHARE_OF_NEXT_BEHIND_LINK if linked else 1.0))
    return orders


def in_order(rates: Sequence[float], share: float) -> bool:
    """Whether each rate is at least `share` times the next one."""
    return all(one >= share * other for one, other in itertools.pairwise(rates))


def least_ratio(rates: Rates, one: str, other: str, model: str) -> float | None:
    """Return the least ratio of two ways under a model, over the sizes; None if nothing was measured.

    one, other: the names of the ways; `other` may be one of OTHER_SERVERS.
    """
    other_setting = OTHER_SERVERS_COLUMN if other in OTHER_SERVERS else model
    ratios = [
        rates[one, column_of(model, size)] / rates[other, column_of(other_setting, size)]
        for size in SIZES
        if (one, column_of(model, size)) in rates and rates.get((other, column_of(other_setting, size)))
    ]
    return min(ratios, default=None)


def ratios_text(cpu: Rates, rates: Rates, one: str, other: str) -> str:
    """Return the ratios of two ways under each model, in words: by CPU time, and in parentheses by rate."""
    return (
        ", ".join(
            f"{model} {figures.ratio_text(ratio)} ({figures.ratio_text(least_ratio(rates, one, other, model))})"
            for model in MODELS
            if (ratio := least_ratio(cpu, one, other, model))
        )
        or "not measured"
    )
