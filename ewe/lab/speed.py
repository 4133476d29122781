"""How fast each model is beside nginx: `python -m ewe.lab.speed`, or `make bench`. docs/speed.md explains it.

    main: plan, then for each repeat, setting and contender: start, probe, warm up, measure, stop; report

A server has one core and wrk another. What counts is the CPU time that the server's whole process tree uses
for a request: unlike the rate it does not depend on how many cores there are, nor on the client.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http.client import HTTPException
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from ewe import __version__
from ewe.config import Config
from ewe.lab import servers
from ewe.lab.interrupts import INTERRUPTED, heed_interrupts, ignore_interrupts
from ewe.lab.processes import (
    LabError,
    core_seconds,
    cpu_seconds,
    end_children,
    missing,
    tool,
    tree,
    two_cores,
)
from ewe.lab.rows import REFERENCE, TARGETS_AT, Row, Sample, Setting, as_json, describe, report
from ewe.lab.wrk import Load, run_wrk
from ewe.processors.prefork import Prefork

WARM_UP = 0.5  # seconds, thrown away
SETTLE = 0.05  # seconds after a load, in which the server closes what wrk has left
OVERHEAD = 0.5  # seconds to start, probe and stop a server: for the estimate only
PREFORKED = Prefork.workers
POOLED = Config.poolthreads.default
MANY = 1_000_000  # connections: as many as one likes


@dataclass(frozen=True)
class Contender:
    """A server, and the most connections it can keep open and serve at once."""

    name: str
    model: str = ""
    options: tuple[str, ...] = ()
    most: int = MANY


CONTENDERS = (
    Contender(REFERENCE),
    Contender("serial", "serial", most=1),
    Contender("fork", "fork", most=256),
    Contender("prefork", "prefork", ("--workers", str(PREFORKED)), PREFORKED),
    Contender("thread", "thread", most=1000),
    Contender("pool-always", "pool", ("--parking", "always")),
    Contender("pool-idle", "pool", ("--parking", "idle")),
    Contender("pool-never", "pool", ("--parking", "never", "--poolthreads", str(POOLED)), POOLED),
    Contender("asyncio-uvloop", "asyncio", ("--loop", "uvloop")),
    Contender("asyncio-standard", "asyncio", ("--loop", "asyncio")),
)

# ---------------------------------------------------------------------------------------------------------
# Measuring


def start(
    contender: Contender, setting: Setting, root: Path, directory: Path, core: int
) -> AbstractContextManager[servers.Server]:
    """Return the server, which a `with` starts and ends."""
    log = directory / "access.log" if setting.access_log else None
    if contender.name == REFERENCE:
        return servers.nginx(root=root, directory=directory, core=core, access_log=log)
    return servers.ewe(
        contender.model,
        *contender.options,
        "--requests",
        "0",  # a connection is never closed because it is old, as with nginx here
        root=root,
        directory=directory,
        core=core,
        access_log=log,
    )


def measure(row: Row, root: Path, seconds: float, cores: tuple[int, int]) -> Sample:
    """Start a server, measure it once, end it. Raises LabError."""
    setting = row.setting
    contender = next(each for each in CONTENDERS if each.name == row.server)
    with (
        tempfile.TemporaryDirectory(prefix="ewe-speed-", dir=root.parent) as scratch,
        start(contender, setting, root, Path(scratch), cores[0]) as server,
    ):
        url = f"{server.url}{setting.size}.html"
        probe(url, setting.size)

        def load(length: float) -> Load:
            return run_wrk(
                url,
                seconds=length,
                connections=row.connections,
                core=cores[1],
                keep_alive=setting.keep_alive,
            )

        load(WARM_UP)
        time.sleep(SETTLE)
        busy = [core_seconds(core) for core in cores]
        used = cpu_seconds(server.pid)
        result = load(seconds)
        busy = [core_seconds(core) - before for core, before in zip(cores, busy, strict=True)]
        time.sleep(SETTLE)
        used = cpu_seconds(server.pid) - used
    if not result.requests:
        raise LabError(f"no request was answered; wrk counted {result.errors or 'no errors'}")
    server_core, wrk_core = (min(share / result.seconds, 1.0) for share in busy)
    return Sample(
        result.rate,
        used / result.requests * 1e6,
        used / result.seconds,
        result.cpu / result.seconds,
        server_core,
        wrk_core,
        result.errors,
    )


def probe(url: str, size: int) -> None:
    """Ask once, and check that the answer is the file. Raises LabError."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5) as response:
            length = len(response.read())
    except (OSError, HTTPException) as reason:
        raise LabError(f"a first request failed: {reason}") from None
    if length != size:
        raise LabError(f"a first request brought {length} bytes, not {size}")


def measure_all(rows: Sequence[Row], directory: Path, options: argparse.Namespace) -> None:
    """Measure every row once, then every row again, and so on; a row takes its samples."""
    root = directory / "htdocs"
    root.mkdir()
    for size in {row.setting.size for row in rows}:
        (root / f"{size}.html").write_bytes(b"x" * (size - 1) + b"\n")
    for repeat in range(1, options.repeats + 1):
        for number, row in enumerate(rows, 1):
            what = f"{row.server}, {describe(row.setting)}"
            say(f"repeat {repeat} of {options.repeats}, {number} of {len(rows)}: {what}")
            try:
                row.samples.append(measure(row, root, options.seconds, two_cores()))
            except LabError as reason:
                row.failures.append(str(reason))
    say("")


def say(text: str) -> None:
    """Show what is going on, in place, to someone who watches."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------------------------
# Planning


def chosen(models: Sequence[str]) -> list[Contender]:
    """Return the contenders that --models names (none: all), nginx first. Raises LabError."""
    known = {name for contender in CONTENDERS for name in (contender.name, contender.model) if name}
    if unknown := [name for name in models if name not in known]:
        raise LabError(f"model {unknown[0]!r} is unknown; there are {', '.join(sorted(known))}")
    found = [each for each in CONTENDERS if not models or each.name in models or each.model in models]
    if find_spec("uvloop") is None:
        found = [each for each in found if each.name != "asyncio-uvloop"]
    return [CONTENDERS[0], *(each for each in found if each.name != REFERENCE)]


def settings(sizes: Sequence[int], quick: bool) -> list[Setting]:
    """Return the settings to measure: all sizes, and one of them without keep-alive, and one with the log."""
    found = [Setting(size) for size in sizes]
    if not quick:
        size = TARGETS_AT.size if TARGETS_AT.size in sizes else sizes[0]
        found += [Setting(size, keep_alive=False), Setting(size, access_log=True)]
    return found


def plan(contenders: Sequence[Contender], found: Sequence[Setting], connections: int) -> list[Row]:
    """Return the rows to fill. What is kept open may not be more than a server can hold."""
    return [
        Row(each.name, setting, min(connections, each.most) if setting.keep_alive else connections)
        for setting in found
        for each in contenders
    ]


def machine(cores: tuple[int, int]) -> dict[str, str]:
    """Return what the figures depend on; no name of a host or a person."""
    about = Path("/proc/cpuinfo").read_text(errors="replace")
    processor = re.search(r"model name\s*: (.*)", about)
    return {
        "processor": f"{processor[1] if processor else platform.machine()}, {os.cpu_count()} cores",
        "cores": f"server {cores[0]}, wrk {cores[1]}" + (" (THE SAME)" if cores[0] == cores[1] else ""),
        "system": f"Linux {platform.release()}",
        "python": platform.python_version(),
        "ewe": __version__,
        "uvloop": metadata.version("uvloop") if find_spec("uvloop") else "not installed",
        "nginx": version_of("nginx"),
        "wrk": version_of("wrk"),
    }


def version_of(name: str) -> str:
    """Return what a program says after -v."""
    done = subprocess.run([tool(name), "-v"], capture_output=True, text=True, timeout=10)
    found = re.search(r"\d+\.\d[\w.+-]*", done.stdout + done.stderr)
    return found[0] if found else "unknown"


# ---------------------------------------------------------------------------------------------------------
# The command


def parse_size(text: str) -> int:
    """Return the bytes that 64 or 16k stand for. Raises ValueError."""
    found = re.fullmatch(r"(\d{1,6})(k?)", text.lower())
    if not found or not int(found[1]):
        raise ValueError(text)
    return int(found[1]) * (1024 if found[2] else 1)


def positive(text: str) -> float:
    """Return a number of seconds. Raises ValueError."""
    if not 0.1 <= (number := float(text)) <= 600:
        raise ValueError(text)
    return number


def several(text: str) -> list[str]:
    """Return the parts of a list with commas."""
    return [part for part in re.split(r"[,\s]+", text) if part]


def sizes_of(text: str) -> list[int]:
    """Return the sizes of a list. Raises ValueError."""
    return list(dict.fromkeys(parse_size(part) for part in several(text)))


def arguments() -> argparse.ArgumentParser:
    """Return what the command line may be."""
    parser = argparse.ArgumentParser(
        prog="python -m ewe.lab.speed",
        description="Compare ewe's models with nginx. docs/speed.md explains it.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="1 KB with keep-alive and without a log only: about a minute")
    add("--models", type=several, default=[], metavar="LIST", help="with commas; nginx is always measured")
    add("--sizes", type=sizes_of, metavar="LIST", help="64,1k,16k,128k unless you say otherwise")
    add("--seconds", type=positive, help="of one measurement: 2, or 1 with --quick")
    add("--repeats", type=int, choices=range(1, 100), default=3, metavar="N", help="3")
    add("--connections", type=int, choices=range(1, 1001), default=32, metavar="N", help="32; fewer where"
        " a server holds fewer")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write every sample to a file as well")
    return parser


def measured(rows: Sequence[Row], options: argparse.Namespace) -> int:
    """Fill the rows, leave no process and no file behind; return the exit status."""
    before = {each.pid for each in tree(os.getpid())}
    with tempfile.TemporaryDirectory(prefix="ewe-speed-") as directory:
        heed_interrupts()
        try:
            measure_all(rows, Path(directory), options)
        except KeyboardInterrupt:
            say("")
            print("Interrupted: this is what was measured until then.\n")
            return INTERRUPTED
        finally:
            ignore_interrupts()
            end_children(but=before)
    return 1 if any(row.failures for row in rows) else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print what was found; return the exit status."""
    parser = arguments()
    options = parser.parse_args(argv)
    options.seconds = options.seconds or (1.0 if options.quick else 2.0)
    sizes = options.sizes or ([1024] if options.quick else [64, 1024, 16 * 1024, 128 * 1024])
    try:
        contenders = chosen(options.models)
        if options.json:
            options.json.touch()  # fail now, not after ten minutes
    except (LabError, OSError) as reason:
        parser.error(str(reason))
    if lacking := missing(("wrk", "nginx")):
        print(f"ewe.lab.speed: {lacking}", file=sys.stderr)
        return 1
    rows = plan(contenders, settings(sizes, options.quick), options.connections)
    about = machine(two_cores())
    seconds = len(rows) * options.repeats * (options.seconds + WARM_UP + OVERHEAD)
    length = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"
    print("\n".join(f"{name + ':':10} {text}" for name, text in about.items()))
    print(
        f"{len(rows)} rows, {options.repeats} x {options.seconds:g} s each: about {length}\n",
        flush=True,
    )
    status = measured(rows, options)
    print(report(rows))
    if options.json:
        facts = {"machine": about, "seconds": options.seconds, "repeats": options.repeats}
        options.json.write_text(as_json(rows, facts) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
