"""Load from wrk: as many requests as the server answers, from one thread on one core.

wrk is written in C, so one core of load is enough for one core of server. It sends the next request of a connection
when it has the answer (a closed loop without think time), and reports totals and percentiles as text:

    wrk -t1 -c64 -d15s --latency URL ── SIGINT after the wanted time ─▶ text ── parse_wrk() ─▶ WrkReport

-d takes whole seconds only, and a load may last for a part of a second. wrk therefore gets a longer time, and an
interrupt ends it. It reports the time that really passed.

Possible failures: in a closed loop at full speed, a request spends most of its time behind the requests of other
connections. The latencies (wrk_p50) therefore say little about the server. wrk counts no request whose connection
was closed, or that has no answer at the end.

Read next: run.py, which turns a WrkReport into a Sample.
"""

from __future__ import annotations

import math
import os
import re
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import IO

from ewe_lab.bench.processes import (
    LabError,
    bounded_file,
    cpu_seconds,
    last_line,
    output_text,
    path_of_tool,
    running,
    wait_for_end,
)


@dataclass(frozen=True)
class WrkReport:
    """The report of wrk. seconds: of the run; rate: requests a second; cpu_s: CPU seconds of wrk itself.

    errors: by name, with their number. latency: seconds, by name (wrk_p50).
    """

    requests: int
    seconds: float
    received: float  # bytes
    rate: float
    errors: dict[str, int] = field(default_factory=dict)
    cpu_s: float = 0.0
    latency: dict[str, float] = field(default_factory=dict)


BEYOND_S = 5  # seconds by which wrk's own time is longer than the wanted one
MAX_END_S = 10  # seconds in which wrk must end after an interrupt
SECONDS_PER_UNIT = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
BYTES_PER_UNIT = {unit: 1024.0**power for power, unit in enumerate(("B", "KB", "MB", "GB", "TB", "PB"))}
TOTALS = re.compile(r"(\d+) requests in ([\d.]+)([a-z]+), ([\d.]+)([A-Z]+) read")
RATE = re.compile(r"Requests/sec: +([\d.]+)")
SOCKET_ERRORS = re.compile(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)")
PERCENTILE = re.compile(r"^ +(50|90|99)% +([\d.]+)([a-z]+)$", re.M)
# Each request has its own query string and its own cookie, so a server cannot remember the head of an earlier one.
VARIED_SCRIPT = """\
local number = 0
request = function()
  number = number + 1
  local cookie = string.format("session=%032x; theme=dark", number * 2654435761)
  return wrk.format("GET", wrk.path .. "?page=" .. number, { Cookie = cookie })
end
"""
BAD_STATUS = re.compile(r"Non-2xx or 3xx responses: (\d+)")


def parse_wrk(text: str) -> WrkReport:
    """Return wrk's report, parsed. Raises LabError."""
    totals, rate = TOTALS.search(text), RATE.search(text)
    if totals is None or rate is None or totals[3] not in SECONDS_PER_UNIT or totals[5] not in BYTES_PER_UNIT:
        raise LabError(f"wrk: {last_line(text)}")
    errors: dict[str, int] = {}
    if found := SOCKET_ERRORS.search(text):
        errors = dict(zip(("connect", "read", "write", "timeout"), map(int, found.groups()), strict=True))
    if found := BAD_STATUS.search(text):
        errors["non-2xx"] = int(found[1])
    return WrkReport(
        requests=int(totals[1]),
        seconds=float(totals[2]) * SECONDS_PER_UNIT[totals[3]],
        received=float(totals[4]) * BYTES_PER_UNIT[totals[5]],
        rate=float(rate[1]),
        errors={name: count for name, count in errors.items() if count},
        latency={
            f"wrk_p{share}": float(time) * SECONDS_PER_UNIT.get(unit, math.nan)
            for share, time, unit in PERCENTILE.findall(text)
        },
    )


def run_wrk(
    url: str,
    *,
    seconds: float,
    connections: int,
    core: int | None = None,
    keep_alive: bool = True,
    varied: bool = False,
    headers: Sequence[tuple[str, str]] = (),
    timeout_s: float = 5.0,
    prefix: Sequence[str] = (),
) -> WrkReport:
    """Load a URL from one thread, as fast as it answers, for so many seconds; return the report. Raises LabError.

    connections: at once. core: to run on; None: any. varied: the head of each request differs from all others; wrk
    then sends no `headers`, and keeps connections. headers: more fields of each request. timeout_s: of one request.
    prefix: the words before the command, which enter the network of a slow link.
    """
    command = [
        *prefix, path_of_tool("wrk"), "-t1", f"-c{connections}", f"-d{math.ceil(seconds) + BEYOND_S}s", "--latency",
        "--timeout", f"{math.ceil(timeout_s)}s",
    ]  # fmt: skip
    if not keep_alive:
        command += ["-H", "Connection: close"]
    for name, value in headers:
        command += ["-H", f"{name}: {value}"]
    with (
        tempfile.NamedTemporaryFile("w", suffix=".lua") as script,
        bounded_file() as output,
    ):
        if varied:
            script.write(VARIED_SCRIPT)
            script.flush()
            command += ["-s", script.name]
        return run_for([*command, url], output, core, seconds)


def run_for(command: Sequence[str], output: IO[bytes], core: int | None, seconds: float) -> WrkReport:
    """Run a command of wrk for so many seconds, then interrupt it; return its report. Raises LabError.

    output: the file to which wrk writes. core: as in run_wrk().
    """
    with running(command, output, core) as started:
        if not wait_for_end(started, seconds):
            os.kill(started.pid, signal.SIGINT)
            if not wait_for_end(started, MAX_END_S):
                raise LabError("wrk does not end")
        cpu_s = cpu_seconds(started.pid)
        load = parse_wrk(output_text(output))
    return replace(load, cpu_s=cpu_s)
