"""The rows of `ewe-lab speed`: the requests, the servers that get them, and the server that is the reference.

    SpeedSetting   the requests of one measurement: one block of the table
    Contestant     a server in a block: ewe, another web server, or a program and the server before it
    SpeedRow       one contestant at one setting, with its samples

`ROWS` names the kinds of settings (`--rows`). The settings of files are measured under all models and beside nginx.
A comparison (WSGI, LibCGI, X-Switch ...) has its own contestants. The first one is the reference.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

from ewe.config.settings import Config
from ewe.processors.prefork import Prefork
from ewe_lab.bench.experiment import Load, ServerUnderTest
from ewe_lab.bench.processes import LabError, find_tool
from ewe_lab.bench.results import Cell, Sample
from ewe_lab.experiments.tested_servers import APACHE_EVENT, H2O, LIGHTTPD
from ewe_lab.lab_bench import CellJob, LabBench, adapted_load, why_server_is_missing
from ewe_lab.stacks import compiled, gateways
from ewe_lab.stacks.forms import write_forms
from ewe_lab.stacks.ways import ServingStack

PACKAGES = {"ab": "apache2-utils", "wrk": "wrk"}  # of the programs that load
WARM_UP_S = 0.5  # seconds, not counted
PREFORK_WORKERS = int(Prefork.workers)
POOL_THREADS = int(Config.poolthreads.default)  # as with parking = never
REFERENCE = "nginx"  # the server with which all models are compared
# Shares of a core: wrk limits the rate if it is busy and the server is not
FULL_CORE, IDLING_CORE = 0.95, 0.9
TESTED_SERVERS = (
    ServerUnderTest(REFERENCE, REFERENCE),
    ServerUnderTest("serial", model="serial", most=1),
    ServerUnderTest("fork", model="fork", most=256),
    ServerUnderTest(
        "prefork", model="prefork", options=("--workers", str(PREFORK_WORKERS)), most=PREFORK_WORKERS
    ),
    ServerUnderTest("thread", model="thread", most=1000),
    ServerUnderTest("pool-always", model="pool", options=("--parking", "always")),
    ServerUnderTest("pool-idle", model="pool", options=("--parking", "idle")),
    ServerUnderTest(
        "pool-never",
        model="pool",
        options=("--parking", "never", "--poolthreads", str(POOL_THREADS)),
        most=POOL_THREADS,
    ),
    ServerUnderTest("asyncio-uvloop", model="asyncio", options=("--loop", "uvloop")),
    ServerUnderTest("asyncio-standard", model="asyncio", options=("--loop", "asyncio")),
    LIGHTTPD,
    H2O,
    APACHE_EVENT,
    *(ServerUnderTest(f"floor-{kind}", f"floor-{kind}") for kind in ("loop", "parse", "thread", "fork")),
)
XSWITCH = "xswitch"  # a kind of rows
CONNECTIONS = 32
SIZES, QUICK_SIZES = (64, 1024, 16 * 1024, 128 * 1024), (1024,)
LIBCGI_ANSWER_BYTES = 64


@dataclass(frozen=True)
class SpeedSetting:
    """The requests of one measurement. size: of the requested file or of the program's answer, in bytes.

    varied: each request has its own query string and cookie, so no server can reuse the parsed head of another.
    tls: over HTTPS; without keep-alive each request pays for a handshake, which `resumed` shortens.
    asked: a request for something else than a whole file, one of ASKED. comparison: one of COMPARISONS.
    """

    size: int
    keep_alive: bool = True
    access_log: bool = False
    varied: bool = False
    tls: bool = False
    resumed: bool = False
    asked: str = ""
    comparison: str = ""


TARGETS_AT = SpeedSetting(1024)

# ---------------------------------------------------------------------------------------------------------
# Requests for something else than a whole file

MODIFIED = datetime(2026, 1, 1, tzinfo=UTC)  # the time of each requested file
LISTED = 1000  # files in the listed directory
LARGE = 128 * 1024
ASKED: Mapping[str, Load] = {
    "304": Load(
        path="/1024.html", headers=(("If-Modified-Since", format_datetime(MODIFIED, usegmt=True)),), status=304
    ),
    "HEAD": Load(path="/1024.html", method="HEAD", length=0, tool="ab"),  # wrk waits for a body
    "404": Load(path="/nothing.html", status=404),
    "listing": Load(path="/listing/"),
    "range": Load(
        path=f"/{LARGE}.html", headers=(("Range", "bytes=65536-66559"),), length=1024, status=206
    ),
}  # fmt: skip
# The variants that are measured where all of them would take twice the time and show nothing new
MAIN_VARIANTS = ("nginx", "fork", "prefork", "thread", "pool-always", "asyncio-uvloop", "asyncio-standard")
# The ratio to the reference that a row should not exceed
GOALS = {
    **dict.fromkeys(ASKED, 1.5),
    "WSGI": 1.0,
    "ASGI": 1.0,
    "ASGI, 1 MB": 1.0,
    "LibCGI": 1 / 0.85,
    "FastCGI": 1.3,
}
TLS_GOALS = {True: 1.3, False: 1.2}  # with keep-alive, and with a handshake for each request


def goal(setting: SpeedSetting) -> float | None:
    """Return the ratio to the reference that a row of a setting should not exceed; None if there is none."""
    if setting.tls:
        return TLS_GOALS[setting.keep_alive]
    return GOALS.get(setting.asked) or GOALS.get(setting.comparison.partition(":")[0])


# ---------------------------------------------------------------------------------------------------------
# Contestants


@dataclass(frozen=True)
class Contestant:
    """A server in a block of the table. stack: a program and the server before it, in place of `tested`.

    library: `tested` calls a LibCGI library in its process.
    """

    name: str
    tested: ServerUnderTest
    stack: ServingStack | None = None
    library: bool = False
    path: str = ""

    @property
    def why_missing(self) -> str:
        """Return why the contestant cannot run here, "" if it can."""
        if self.library:
            return gateways.why_no_libcgi() or compiled.why_missing()
        return self.stack.why_missing if self.stack else why_server_is_missing(self.tested)

    @property
    def model(self) -> str:
        """The model of ewe, "" for another server."""
        if self.stack:
            runs = self.stack.front == "ewe"
            return ("xswitch" if self.stack.by == "xswitch" else self.stack.model) if runs else ""
        return self.tested.model


@dataclass(frozen=True)
class PeerComparison:
    """Servers that do the same work; the first is the reference. connections: at once, over which wrk asks."""

    row: str
    size: int
    contestants: tuple[Contestant, ...]
    connections: int = CONNECTIONS


def stack_contestant(name: str, stack: ServingStack) -> Contestant:
    """Return the contestant of a program and the server before it."""
    return Contestant(name, ServerUnderTest(name), replace(stack, label=name))


def application_contestant(
    name: str, front: str, by: str, *options: str, program: str = "hello"
) -> Contestant:
    """Return the contestant of a Python application in a server's process."""
    return stack_contestant(name, ServingStack(front, by, "python", program=program, options=options))


def model_contestants(stack: ServingStack, models: Sequence[str]) -> tuple[Contestant, ...]:
    """Return a contestant of ewe for each model that runs a program."""
    return tuple(
        stack_contestant(f"ewe {model}", replace(stack, front="ewe", model=model)) for model in models
    )


def wsgi_comparison() -> PeerComparison:
    """Return the comparison of a WSGI application of 52 bytes."""
    peers = (
        application_contestant("gunicorn gthread", "gunicorn", "wsgi"),
        application_contestant("gunicorn gevent", "gunicorn", "wsgi", "--worker-class", "gevent"),
        application_contestant("granian", "granian", "wsgi", "--interface", "wsgi"),
    )
    hello = ServingStack("ewe", "wsgi", "python", program="hello")
    return PeerComparison(
        "wsgi", hello.length, peers + model_contestants(hello, ("prefork", "thread", "pool", "asyncio"))
    )


def asgi_comparison(row: str, program: str) -> PeerComparison:
    """Return the comparison of an ASGI application under the same event loop."""
    loop = ("--loop", "uvloop")
    return PeerComparison(
        row,
        ServingStack("ewe", "asgi", "python", program=program).length,
        (
            application_contestant("uvicorn h11", "uvicorn", "asgi", *loop, "--http", "h11", program=program),
            application_contestant(
                "uvicorn httptools", "uvicorn", "asgi", *loop, "--http", "httptools", program=program
            ),
            application_contestant(
                "granian", "granian", "asgi", *loop, "--interface", "asgi", program=program
            ),
            application_contestant("ewe asyncio", "ewe", "asgi", *loop, program=program),
        ),
    )


def libcgi_comparison(tested: ServerUnderTest) -> PeerComparison:
    """Return the comparison of a LibCGI library's answer and a file of the same size. tested: ewe, with a model."""
    size = LIBCGI_ANSWER_BYTES
    return PeerComparison(
        "libcgi",
        size=size,
        contestants=(
            Contestant("file", tested, path=f"/{size}.html"),
            Contestant("LibCGI", tested, library=True, path=f"/libcgi-bin/bytes.so?{size}"),
        ),
        connections=min(CONNECTIONS, tested.max_connections),
    )


def fastcgi_comparison(connections: int) -> PeerComparison:
    """Return the comparison of a page of 14 bytes by php-fpm, with default settings."""
    page = ServingStack("nginx", "php-fpm", "php")
    ours = model_contestants(page, ("asyncio", "pool", "thread"))
    return PeerComparison(
        "fastcgi",
        size=page.length,
        contestants=(stack_contestant("nginx", page), *ours),
        connections=connections,
    )


def xswitch_comparison(reference: Contestant, language: str) -> PeerComparison:
    """Return the comparison of X-Switch and the usual way to run a script."""
    ours = ServingStack("ewe", "xswitch", language, children=0, program="hello")
    return PeerComparison(
        XSWITCH,
        size=ours.length,
        contestants=(reference, stack_contestant(f"X-Switch {language}", ours)),
        connections=8,
    )


CGI_PERL = stack_contestant("CGI perl", ServingStack("ewe", "cgi", "perl", program="hello"))
FPM_PHP = stack_contestant("nginx php-fpm", ServingStack("nginx", "php-fpm", "php", program="hello"))
COMPARISONS: Mapping[str, PeerComparison] = {
    "WSGI": wsgi_comparison(),
    "ASGI": asgi_comparison("asgi", "hello"),
    "ASGI, 1 MB": asgi_comparison("stream", "stream"),
    **{
        f"LibCGI: {each.name}": libcgi_comparison(each)
        for each in TESTED_SERVERS
        if each.name in MAIN_VARIANTS[1:]
    },
    "FastCGI: 64 clients": fastcgi_comparison(64),
    "FastCGI: 8 clients": fastcgi_comparison(8),
    "Perl": xswitch_comparison(CGI_PERL, "perl"),
    "PHP": xswitch_comparison(FPM_PHP, "php"),
}  # fmt: skip
ROWS = (
    "size", "close", "log", "varied", "tls", "resumed", "handshake",
    *(name.lower() for name in ASKED), *dict.fromkeys(comparison.row for comparison in COMPARISONS.values()),
)  # fmt: skip


def settings(sizes: Sequence[int], rows: Sequence[str]) -> list[SpeedSetting]:
    """Return the settings of some kinds of rows, in the order of ROWS.

    sizes: of the files, for the rows `size`. rows: the wanted kinds. ASKED has the kinds that differ by the
    request, COMPARISONS those with a program.
    """
    # Of all rows that do not vary it: the size of the targets, 1024 bytes, if it is measured
    size = TARGETS_AT.size if TARGETS_AT.size in sizes else sizes[0]
    found: dict[str, list[SpeedSetting]] = {
        "size": [SpeedSetting(each) for each in sizes],
        "close": [SpeedSetting(size, keep_alive=False)],
        "log": [SpeedSetting(size, access_log=True)],
        "varied": [SpeedSetting(size, varied=True)],
        "tls": [SpeedSetting(size, tls=True)],
        "resumed": [SpeedSetting(size, keep_alive=False, tls=True, resumed=True)],
        "handshake": [SpeedSetting(size, keep_alive=False, tls=True)],
    }
    for asked in ASKED:
        found[asked.lower()] = [SpeedSetting(ASKED[asked].length or 0, asked=asked)]
    for name, comparison in COMPARISONS.items():
        found.setdefault(comparison.row, []).append(SpeedSetting(comparison.size, comparison=name))
    return [each for row in ROWS if row in rows for each in found[row]]


# By floor: whether it shows, at a setting, how fast Python can be at all
FLOORS_AT: Mapping[str, Callable[[SpeedSetting], bool]] = {
    "floor-loop": lambda at: not (at.varied or at.access_log),
    "floor-parse": lambda at: at.varied,
    "floor-thread": lambda at: not (at.keep_alive or at.tls),
    "floor-fork": lambda at: not (at.keep_alive or at.tls),
}


def contestants(
    setting: SpeedSetting, chosen: Sequence[ServerUnderTest], *, are_named: bool = False
) -> list[Contestant]:
    """Return the contestants of a setting, the reference first. chosen: the servers of files, and ewe's models.

    are_named: the user named the servers. A comparison without a chosen model has no contestants.
    """
    if setting.comparison:
        return contestants_of(COMPARISONS[setting.comparison], chosen)
    takes_time = setting.asked or (setting.tls and not (setting.keep_alive or setting.resumed))
    found = []
    for each in chosen:
        if each.name in FLOORS_AT:  # a floor answers every request with the page of this size
            is_of_use = (
                setting.size == TARGETS_AT.size and not setting.asked and FLOORS_AT[each.name](setting)
            )
        else:
            is_of_use = are_named or not takes_time or each.name in MAIN_VARIANTS
        if is_of_use:
            found.append(Contestant(each.name, each))
    return found


def contestants_of(comparison: PeerComparison, chosen: Sequence[ServerUnderTest]) -> list[Contestant]:
    """Return the contestants of a comparison: all other servers, and ewe under the chosen models.

    [] if no model of ewe would take part: then there is nothing to compare.
    """
    if comparison.row == XSWITCH:
        return list(comparison.contestants)
    models = {each.model for each in chosen}
    # Of ewe: a stack under a chosen model, or a chosen server (`tested` of a contestant without a stack)
    found = [
        each
        for each in comparison.contestants
        if (each.model in models if each.stack else each.tested in chosen) or not each.model
    ]
    return found if any(each.model for each in found) else []


# ---------------------------------------------------------------------------------------------------------
# Rows


@dataclass
class SpeedRow:
    """One server at one setting. connections: the number that the load opens; cell: filled by the bench.

    last: the ratio to the reference in the last run, if this run's is more than a tenth above it.
    """

    server: str
    setting: SpeedSetting
    connections: int
    cell: Cell = field(default_factory=lambda: Cell(""))
    last: float | None = None

    @property
    def samples(self) -> list[Sample]:
        """The samples in which at least one request was answered."""
        return [sample for sample in self.cell.samples if sample.micros is not None]

    @property
    def failure(self) -> str:
        """The reason if some repeat gave no figure; "" if every repeat gave one."""
        if not self.cell.failure and len(self.samples) < len(self.cell.samples):
            return "no request was answered"
        return self.cell.failure

    def median(self, what: str) -> float:
        """Return the median, over the samples, of a figure of sample_figures(). what: its name."""
        return float(statistics.median(sample_figures(sample)[what] for sample in self.samples))

    def notes(self) -> str:
        """Return the request unless it is for a file, and the reasons to doubt the row, between commas."""
        found = ["failed"] if self.failure else []
        if self.last is not None:
            found.append(f"SLOWER: {self.last:.2f} of {reference_name(self.setting)} in the last run")
        found += setting_notes(self.setting)
        if self.samples and self.median("wrk_core") > FULL_CORE and self.median("server_core") < IDLING_CORE:
            found.append("client-limited")
        for name in dict.fromkeys(name for sample in self.samples for name in sample.errors):
            found.append(f"{sum(sample.errors.get(name, 0) for sample in self.samples)} {name}")
        return ", ".join(found)


def setting_notes(setting: SpeedSetting) -> Iterator[str]:
    """Yield what a setting asks, beyond the columns of the table."""
    if setting.asked or setting.comparison:
        yield setting.asked or setting.comparison.replace(": ", ", ")
    if setting.varied:
        yield "varied heads"
    if setting.tls:
        yield "TLS"
        if not setting.keep_alive:
            yield "resumed" if setting.resumed else "whole handshake"


def reference_name(setting: SpeedSetting) -> str:
    """Return the name of the server whose CPU time is the measure of a setting's rows."""
    return COMPARISONS[setting.comparison].contestants[0].name if setting.comparison else REFERENCE


def ratio(rows: Sequence[SpeedRow], row: SpeedRow) -> float | None:
    """Return a row's CPU time for a request, divided by the reference's at the same setting; None without one."""
    for other in rows:
        if other.setting == row.setting and other.server == reference_name(row.setting) and other.samples:
            return row.median("micros") / other.median("micros") if row.samples else None
    return None


def sample_figures(sample: Sample) -> dict[str, float]:
    """Return a sample's figures by name; an unknown one is 0.0.

    rate: requests a second. micros: the server's CPU time for a request, in µs. The others are shares of a core,
    from 0 to 1. server, wrk: used by the server, and by wrk. server_core, wrk_core: used by all programs on the
    core of the server, and on that of wrk.
    """
    usage = sample.usage
    return {
        "rate": sample.rate,
        "micros": sample.micros or 0.0,
        "server": usage.cpu / sample.seconds if usage else 0.0,
        "wrk": sample.client or 0.0,
        "server_core": (usage.core or 0.0) if usage else 0.0,
        "wrk_core": sample.core or 0.0,
    }


def chosen_servers(models: Sequence[str], *, quick: bool = False) -> list[ServerUnderTest]:
    """Return the servers that --models names, nginx first. If it names none: all that are installed.

    quick: without the other web servers, unless they are named. Raises LabError.
    """
    if models:
        found = named_servers(models)
    else:
        found = [each for each in TESTED_SERVERS if each.model or not quick]
    installed = [each for each in found if each.name != REFERENCE and not why_server_is_missing(each)]
    return [TESTED_SERVERS[0], *installed]


def named_servers(models: Sequence[str]) -> list[ServerUnderTest]:
    """Return the servers of these names or models. Raises LabError if one is unknown or lacks a program."""
    known = {name for tested in TESTED_SERVERS for name in (tested.name, tested.model) if name}
    if unknown := [name for name in models if name not in known]:
        raise LabError(f"model {unknown[0]!r} is unknown; there are {', '.join(sorted(known))}")
    found = [each for each in TESTED_SERVERS if each.name in models or each.model in models]
    for each in found:
        if each.name in models and (lacking := why_server_is_missing(each)):
            raise LabError(lacking)
    return found


def load_of(setting: SpeedSetting, connections: int, seconds: float) -> Load:
    """Return the load for a setting. wrk resumes the session of a TLS connection, ab does not."""
    whole_file = Load(path=f"/{setting.size}.html", length=setting.size)
    request_load = ASKED[setting.asked] if setting.asked else whole_file
    whole_handshake = setting.tls and not (setting.keep_alive or setting.resumed)
    return replace(
        request_load,
        shape="saturation",
        users=connections,
        seconds=seconds,
        warm_up=WARM_UP_S,
        keep_alive=setting.keep_alive,
        varied=setting.varied,
        tls="default" if setting.tls else "",
        tool=request_load.tool or ("ab" if whole_handshake else "wrk"),
    )


def rows_to_fill(
    chosen: Sequence[ServerUnderTest],
    wanted_settings: Sequence[SpeedSetting],
    connections: int,
    *,
    are_named: bool = False,
) -> tuple[list[SpeedRow], list[str]]:
    """Return the rows to fill, and the reasons why others cannot be filled.

    chosen, are_named: as in contestants(). connections: at once; a comparison has its own number. No server gets
    more kept connections than it keeps open.
    """
    rows, lacking = [], []
    for setting in wanted_settings:
        # Neither the tool nor the connections depend on the seconds of the load
        tool = load_of(setting, connections, seconds=1).tool
        if not find_tool(tool):
            lacking.append(f"{describe(setting)}: {tool} is not installed: apt install {PACKAGES[tool]}")
            continue
        for each in contestants(setting, chosen, are_named=are_named):
            if each.why_missing:
                lacking.append(each.why_missing)
                continue
            count = COMPARISONS[setting.comparison].connections if setting.comparison else connections
            max_of_stack = each.stack.max_connections(keep_alive=True) if each.stack else count
            max_of_server = adapted_load(load_of(setting, count, seconds=1), each.tested).users
            cell = Cell(each.name, describe(setting), value="micros", unit="µs")
            rows.append(SpeedRow(each.name, setting, connections=min(max_of_server, max_of_stack), cell=cell))
    return rows, list(dict.fromkeys(lacking))


def size_text(size: int) -> str:
    """Return 64 B, 16 KB; - for a response whose size differs between servers, or without a body."""
    if not size:
        return "-"
    if size % 2**20 == 0:
        return f"{size // 2**20} MB"
    return f"{size // 1024} KB" if size % 1024 == 0 else f"{size} B"


def describe(setting: SpeedSetting) -> str:
    """Return a setting in words."""
    connections_text = "keep-alive" if setting.keep_alive else "a connection a request"
    log = "on" if setting.access_log else "off"
    return ", ".join(
        (size_text(setting.size), connections_text, f"access log {log}", *setting_notes(setting))
    )


def site_of(lab: LabBench, rows: Sequence[SpeedRow]) -> Path:
    """Return a document root with the requested files, all of the same time."""
    # The first three are the files of ASKED and of the comparison with LibCGI
    root = lab.site(
        [LIBCGI_ANSWER_BYTES, 1024, LARGE, *(row.setting.size for row in rows if not row.setting.comparison)]
    )
    listed = root / "listing"
    if any(row.setting.asked == "listing" for row in rows) and not listed.exists():
        listed.mkdir()
        for number in range(LISTED):
            (listed / f"picture-{number:04}.html").write_bytes(b"x" * number)
    for path in root.iterdir():
        os.utime(path, (MODIFIED.timestamp(), MODIFIED.timestamp()))
    return root


def jobs_of(lab: LabBench, rows: Sequence[SpeedRow], seconds: float) -> list[CellJob]:
    """Return a job for each row, in their order: its server, its load for `seconds`, and its document root.

    The bench carries the jobs out (LabBench.fill_cells_in_turns), and fills the cells of the rows. Raises LabError.
    """
    by_name = {each.name: Contestant(each.name, each) for each in TESTED_SERVERS}
    root = site_of(lab, rows)
    jobs = []
    for row in rows:
        setting, load = row.setting, load_of(row.setting, row.connections, seconds)
        # A comparison has its own servers; the other settings are measured on TESTED_SERVERS
        if setting.comparison:
            contestant = next(
                each for each in COMPARISONS[setting.comparison].contestants if each.name == row.server
            )
            load = replace(load, path=contestant.path)
        else:
            contestant = by_name[row.server]
        tested, stack = contestant.tested, contestant.stack
        if contestant.library:
            tested = gateways.in_process(write_forms(lab) / "bytes.so", tested)
        jobs.append(CellJob(tested, load, row.cell, root=root, access_log=setting.access_log, stack=stack))
    return jobs
