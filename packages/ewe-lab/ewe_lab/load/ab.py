"""Load from ab (Apache's): saturation with a connection for each request, or with a chosen TLS protocol.

ab opens connections faster than wrk, and has options for the protocol and the cipher of TLS (PARITY_OPTIONS). Its
report is text, and its file of percentiles is CSV:

    ab -c 30 -t 15 -e times.csv URL ── SIGINT after the wanted time ─▶ text ── parse_ab() ─▶ figures
                                                                   └─▶ times.csv ── read_times() ─▶ Times

Possible failures. ab ends at the first connection that is reset: run_ab_with_retries() runs it again. It counts
some failures twice, and reads behind the end of its table of times: run_ab() and read_times() correct this.

Read next: run.py, which chooses the tool of a load.
"""

from __future__ import annotations

import csv
import math
import os
import re
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ewe_lab.bench.experiment import Load
from ewe_lab.bench.processes import (
    LabError,
    bounded_file,
    cpu_seconds,
    last_line,
    output_text,
    path_of_tool,
    running,
    share_of_core,
    wait_for_end,
)
from ewe_lab.bench.results import Sample, Times
from ewe_lab.load.child import NoObserver, WindowObserver

MAX_REQUESTS = 2_000_000  # requests of one run: ab keeps 32 bytes for each
MAX_TRIES = 2  # ab gives up at the first connection that is reset, for instance behind a slow link
END_S = 10  # seconds beyond the timeout of a request in which ab must end after an interrupt
PARITY_OPTIONS = ("-f", "TLS1.2", "-Z", "AES256-SHA:@SECLEVEL=0")
FIGURES = {
    "seconds": r"Time taken for tests: +([\d.]+) seconds",
    "complete": r"Complete requests: +(\d+)",
    "failed": r"Failed requests: +(\d+)",
    "cut": r"Receive: (\d+), Length: ",  # answers that a reset cut: a part of the failed requests
    "other_length": r", Length: (\d+), Exceptions: ",  # also a part of them; 0 with -l
    "status": r"Non-2xx responses: +(\d+)",
    "received": r"Total transferred: +(\d+) bytes",
    "mean": r"Time per request: +([\d.]+) \[ms\] \(mean\)",
}


@dataclass(frozen=True)
class AbReport:
    """The report of one run of ab, and the CPU seconds that ab used."""

    figures: dict[str, float]
    times: Times | None
    cpu_s: float


def parse_ab(text: str) -> dict[str, float]:
    """Return the figures of ab's report, by the names of FIGURES. Raises LabError."""
    found = {name: match[1] for name, pattern in FIGURES.items() if (match := re.search(pattern, text))}
    if failed := re.search(r"^SSL handshake failed.*\n.*?:error:[^:]*:[^:]*:[^:]*:([^:]*)", text, re.M):
        # ab counts failed handshakes among its requests, so its figures would be wrong.
        raise LabError(f"ab: no TLS connection with this protocol and cipher: {failed[1]}")
    if "seconds" not in found or "complete" not in found:
        raise LabError(f"ab: {last_line(text)}")
    return {name: float(value) for name, value in found.items()}


def read_times(path: Path, figures: dict[str, float]) -> Times | None:
    """Return the times of ab's file, in seconds with connecting; None if there are none. figures: of parse_ab().

    ab rounds the place of a percentile in its sorted times up, and below some 100 replies it reads behind the last
    one: the last lines of its file are then rubbish. Those lines, and any that is below the line before it, are
    replaced by the greatest credible time. results.times_needed() then decides which percentiles are printed.
    """
    try:
        with path.open(newline="") as file:
            _titles, *rows = csv.reader(file)
        seconds = {int(percent): float(millis) / 1e3 for percent, millis in rows}
        count = int(figures["complete"])
        greatest_so_far = 0.0
        for percent in sorted(seconds):
            reads_beyond_last = percent < 100 and int(0.5 + count * percent / 100) >= count
            if seconds[percent] < greatest_so_far or reads_beyond_last:
                seconds[percent] = greatest_so_far
            greatest_so_far = seconds[percent]
        longest = seconds.get(100, greatest_so_far)
        p50, p90, p95, p99 = (seconds[percent] for percent in (50, 90, 95, 99))
        return Times(count=count, mean=figures["mean"] / 1e3, p50=p50, p90=p90, p95=p95, p99=p99, max=longest)
    except (OSError, ValueError, KeyError, IndexError):
        return None


def run_ab(load: Load, url: str, core: int | None, observer: WindowObserver, prefix: Sequence[str]) -> Sample:
    """Run ab twice, to warm up and to count; return the sample of the second run. Raises LabError.

    core, observer, prefix: as in run.run().
    """
    if load.warm_up:
        run_ab_with_retries(load, url, load.warm_up, core, NoObserver(), prefix)
    done = run_ab_with_retries(load, url, load.seconds, core, observer, prefix)
    figures = done.figures
    complete, bad_status, failed, cut, other_length = (
        int(figures.get(name, 0)) for name in ("complete", "status", "failed", "cut", "other_length")
    )
    # ab counts an answer that was cut twice, and one with a bad status: they have another length, too
    failed -= min(other_length, cut + bad_status)
    errors = {"status": bad_status, "res": failed}
    replies = max(complete - bad_status - failed, 0)
    return Sample(
        "ab",
        seconds=figures["seconds"],
        requests=complete,
        replies=replies,
        connections=0 if load.keep_alive else complete,
        received=figures.get("received", 0.0),
        errors={name: count for name, count in errors.items() if count},
        service=done.times,
        client=share_of_core(done.cpu_s, figures["seconds"]),
    )


def run_ab_with_retries(
    load: Load, url: str, seconds: float, core: int | None, observer: WindowObserver, prefix: Sequence[str]
) -> AbReport:
    """Run ab for so many seconds, and again if a reset connection ended it; return its report. Raises LabError.

    observer: told of the begin of each run, so that the CPU time is that of the last one. prefix: the words before
    the command, which enter the network of a slow link.
    """
    for attempt in range(MAX_TRIES):
        observer.begin()
        try:
            report = run_ab_once(load, url, seconds, core, prefix)
            observer.end()
            return report
        except LabError as reason:
            if attempt + 1 == MAX_TRIES or "reset" not in str(reason):
                raise
    raise AssertionError("the last attempt returns or raises")


def run_ab_once(load: Load, url: str, seconds: float, core: int | None, prefix: Sequence[str]) -> AbReport:
    """Run ab for so many seconds, and return its report. Raises LabError."""
    with tempfile.TemporaryDirectory(prefix="ewe-lab-ab-") as directory:
        table = Path(directory) / "times.csv"
        # ab takes whole seconds. An interrupt ends it earlier, and it reports the time that really passed.
        # -q: no progress lines; -r: errors do not end it; -l: answers may differ in length. With -l, ab takes a
        # connection that was closed without a byte for an answer
        max_requests = str(load.requests or MAX_REQUESTS)
        command = [
            *prefix, path_of_tool("ab"), "-q", "-r", "-t", str(math.ceil(seconds) + 5), "-n", max_requests,
            "-c", str(load.users), "-s", str(math.ceil(load.timeout)), "-e", str(table),
            *(["-k"] if load.keep_alive else []), *(PARITY_OPTIONS if load.tls == "parity" else []),
            *(["-i"] if load.method == "HEAD" else []), *(["-l"] if load.length is None else []),
        ]  # fmt: skip
        for name, value in load.headers:
            command += ["-H", f"{name}: {value}"]
        with (
            bounded_file() as output,
            running([*command, url.rstrip("/") + load.path], output, core) as started,
        ):
            if not wait_for_end(started, seconds):
                os.kill(started.pid, signal.SIGINT)
                if not wait_for_end(started, load.timeout + END_S):
                    raise LabError("ab does not end")
            cpu_s = cpu_seconds(started.pid)
            figures = parse_ab(output_text(output))
            return AbReport(figures, read_times(table, figures), cpu_s)
