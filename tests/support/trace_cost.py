"""Measure what an event of the trace costs, under each model.

    python tests/support/trace_cost.py

Runs without and with `--trace` alternate on the same machine, so that a change of its speed meets both. wrk asks
for a file of 1 KB over kept connections, of which serial has one. The server has one processor, and wrk another.
The trace is a file in TMPDIR. A run yields two numbers:

    CPU microseconds of the server's processes for a request      events for a request, counted in the file

The cost of an event is the difference of the medians of the first number, divided by the second one. A run that has
lost events, or in which another program has used the processors, says nothing: repeat it on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.request import urlopen

import psutil

MODELS = ("serial", "fork", "prefork", "thread", "pool", "asyncio")
CONNECTIONS = {"serial": 1}  # the others: 8
FILE_BYTES = 1024
WARM_UP_S = 1
START_S = 20.0
SERVER_CPU, CLIENT_CPU = "0", "1"


class Run(NamedTuple):
    """The cost of one request: CPU time in microseconds, and events. lost: the lines `lost` of the whole trace."""

    cpu_us: float
    events: float
    lost: int


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU time of a process and of its children, also of those that it has waited for.

    A child of fork that ends meanwhile would be counted twice, or never: the times are then read again.
    """
    while True:
        children = process.children(recursive=True)
        with suppress(psutil.NoSuchProcess):
            found = sum(sum(each.cpu_times()[:4]) for each in (process, *children))
            if process.children(recursive=True) == children:
                return found


def load(url: str, connections: int, seconds: int) -> int:
    """Have wrk, which takes whole seconds, ask for a URL; return how many requests were answered."""
    command = ["taskset", "-c", CLIENT_CPU, "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", url]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+) requests in", told)
    if found is None:
        raise SystemExit(told)
    return int(found[1])


def url_of(log: Path) -> str:
    """Wait for the banner of the server; return its URL."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if found := re.search(r"http://\S+", log.read_text()):
            return found[0]
        time.sleep(0.05)
    raise SystemExit(log.read_text())


def measure(model: str, seconds: int, directory: Path, trace: Path | None) -> Run:
    """Start a server, and measure one run of it. seconds: the length of the run."""
    (directory / "a.html").write_bytes(b"x" * FILE_BYTES)
    log = directory / "log"
    command = [
        *("taskset", "-c", SERVER_CPU, sys.executable, "-m", "ewe", "--model", model, "--port", "0"),
        *("--documentroot", str(directory), "--access-log", "off", "--requests", "0"),
        *(("--trace", str(trace)) if trace is not None else ()),
    ]
    with log.open("wb") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        url = f"{url_of(log)}a.html"
        with urlopen(url) as answer:
            answer.read()
        connections = CONNECTIONS.get(model, 8)
        load(url, connections, WARM_UP_S)
        process = psutil.Process(server.pid)
        before, cpu_before = lines_of(trace), cpu_s(process)
        requests = load(url, connections, seconds)
        cpu = cpu_s(process) - cpu_before
        events = len(lines_of(trace)) - len(before)
        lost = sum(b" lost " in line for line in lines_of(trace))
    finally:
        server.terminate()
        server.wait()
    return Run(cpu / requests * 1e6, events / requests, lost)


def lines_of(trace: Path | None) -> list[bytes]:
    """Return the lines of a trace; none without a trace."""
    return trace.read_bytes().splitlines() if trace is not None else []


def row(model: str, runs: int, seconds: int) -> str:
    """Measure a model, with alternating runs; return its line of the table."""
    off, on = [], []
    with TemporaryDirectory(prefix="ewe-trace-cost-") as name:
        directory = Path(name)
        for number in range(runs):
            off.append(measure(model, seconds, directory, None).cpu_us)
            on.append(measure(model, seconds, directory, directory / f"trace{number}"))
    without, traced = median(off), median(run.cpu_us for run in on)
    events = median(run.events for run in on)
    lost = sum(run.lost for run in on)
    cost = (traced - without) / events
    spread = f"{min(off):.0f}..{max(off):.0f}"
    return f"{model:8} {without:8.1f} {spread:>10} {traced:8.1f} {events:7.2f} {cost:9.2f} {lost:5}"


def main() -> None:
    """Print a table: the CPU time of a request without the trace, its range, the same with it, and of an event."""
    parser = argparse.ArgumentParser(description="measure the cost of an event of the trace")
    parser.add_argument("--model", action="append", help=f"a model [{', '.join(MODELS)}]")
    parser.add_argument(
        "--runs", type=int, default=3, help="runs without and with the trace, of each model [3]"
    )
    parser.add_argument("--seconds", type=int, default=2, help="of a run [2]")
    options = parser.parse_args()
    missing = [program for program in ("wrk", "taskset") if shutil.which(program) is None]
    if missing or (os.cpu_count() or 1) < 2:
        raise SystemExit(
            f"needs two processors, wrk and taskset; missing: {', '.join(missing) or 'a processor'}"
        )
    print("model    off (us)      range  on (us)  events  us/event  lost")
    for model in options.model or MODELS:
        print(row(model, options.runs, options.seconds), flush=True)


if __name__ == "__main__":
    main()
