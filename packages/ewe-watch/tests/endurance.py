"""Watch the live page for a long time: its memory and its CPU time must stay level.

    python packages/ewe-watch/tests/endurance.py --minutes 60

It starts ewe-watch with one model, opens its page in Chromium, and fills the recording of the trace by floods. Then
it sends visitors: a visitor is about nine events of the trace. After each minute it prints one line:

    minute  events/s   RSS of ewe-watch   its CPU   the model's RSS   the page's heap   nodes   the page's CPU

The heap is that after a garbage collection (HeapProfiler.collectGarbage, Runtime.getHeapUsage). At the end, the
growth of a minute follows: the slope of the least squares through the minutes after the warm-up. Exit status: 0; 1
if the memory or the CPU time of ewe-watch or of the page grew by more than MOST_GROWTH.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import linear_regression
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil
from devtools import Browser, browser

from ewe_watch.live.director import RECORDING_BYTES

MEGABYTE = 1024 * 1024
EVENTS_OF_A_VISITOR = 9  # to begin with; the rate of the last second corrects it
LEAST_OF_AN_EVENT = 45  # bytes of a line of the trace
WARM_UP = 0.3  # the part of the minutes that the growth leaves out: caches and histories become full
# In a minute: megabytes, and percent of one processor. The CPU time of two minutes differs by some percent.
MOST_GROWTH = {"watch_mb": 0.2, "heap_mb": 0.2, "watch_cpu": 0.3, "page_cpu": 0.3}
COLUMNS = "minute  events/s  ewe-watch MB  its CPU %  model MB  heap MB   nodes  page's CPU %"


class Minute(NamedTuple):
    """What a minute has cost. Memory in megabytes, CPU in percent of one processor."""

    minute: float
    events_per_s: float
    watch_mb: float
    watch_cpu: float
    model_mb: float
    heap_mb: float
    nodes: int
    page_cpu: float

    def line(self) -> str:
        return (
            f"{self.minute:6.1f}  {self.events_per_s:8.0f}  {self.watch_mb:12.1f}  {self.watch_cpu:9.1f}  "
            f"{self.model_mb:8.1f}  {self.heap_mb:7.2f}  {self.nodes:6}  {self.page_cpu:12.1f}"
        )


@contextmanager
def watched(model: str, directory: Path) -> Iterator[tuple[psutil.Process, str]]:
    """Start ewe-watch; yield its process and its URL."""
    log = directory / "watch.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "ewe_watch", model], stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    try:
        while not (found := re.search(r"http://\S+", log.read_text())):
            if process.poll() is not None:
                raise SystemExit(log.read_text().strip())
            time.sleep(0.05)
        yield psutil.Process(process.pid), found[0]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def send(url: str, count: int, kind: str = "visitor") -> None:
    """Send clients, as the page's buttons do."""
    parts = urlsplit(url)
    body = json.dumps({"do": "send", "kind": kind, "count": count})
    head = (
        f"POST {parts.path}do HTTP/1.1\r\nHost: {parts.netloc}\r\nOrigin: http://{parts.netloc}\r\n"
        f"Content-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((parts.hostname or "", parts.port or 0), 30) as sock:
        sock.sendall((head + body).encode())
        while sock.recv(4096):
            pass


def events_of(page: Browser) -> int:
    """Return how many events the page has heard of."""
    return int(page.run("models[0].last?.events ?? 0"))


def page_cpu_s(page: Browser) -> float:
    """Return the CPU time of the page's main thread so far."""
    found = page.ask("Performance.getMetrics")["metrics"]
    return next(float(each["value"]) for each in found if each["name"] == "TaskDuration")


def fill(page: Browser, url: str) -> None:
    """Send floods until the recording of the trace is full: it keeps RECORDING_BYTES, and grows until then."""
    begin = time.monotonic()
    while (events := events_of(page)) * LEAST_OF_AN_EVENT < RECORDING_BYTES:
        send(url, 1, "flood")
        time.sleep(6)
        assert events_of(page) > events, "the floods do not arrive"
    print(f"the recording is full after {events:,} events and {time.monotonic() - begin:.0f} s", flush=True)


def minutes(
    page: Browser, process: psutil.Process, url: str, options: argparse.Namespace
) -> Iterator[Minute]:
    """Send visitors; yield what each minute has cost."""
    begin = time.monotonic()
    visitors = options.rate / EVENTS_OF_A_VISITOR
    owed = 0.0
    for minute in range(1, options.minutes + 1):
        marks = events_of(page), sum(process.cpu_times()[:2]), page_cpu_s(page), time.monotonic()
        before = marks[0], marks[3]
        while time.monotonic() < begin + 60 * minute:
            owed += visitors
            send(url, int(owed))
            owed -= int(owed)
            time.sleep(max(0.0, before[1] + 1 - time.monotonic()))
            now = events_of(page), time.monotonic()
            rate = (now[0] - before[0]) / (now[1] - before[1])
            visitors = min(max(visitors * (1 + 0.1 * (options.rate - rate) / options.rate), 1), 200)
            before = now
        passed = time.monotonic() - marks[3]
        page.ask("HeapProfiler.collectGarbage")
        heap = page.ask("Runtime.getHeapUsage")["usedSize"]
        nodes = page.run("document.querySelectorAll('*').length")
        yield Minute(
            (time.monotonic() - begin) / 60,
            (events_of(page) - marks[0]) / passed,
            process.memory_info().rss / MEGABYTE,
            100 * (sum(process.cpu_times()[:2]) - marks[1]) / passed,
            sum(each.memory_info().rss for each in process.children(recursive=True)) / MEGABYTE,
            heap / MEGABYTE,
            int(nodes),
            100 * (page_cpu_s(page) - marks[2]) / passed,
        )


def growth(rows: list[Minute], name: str) -> float:
    """Return the growth of a column, a minute, after the warm-up."""
    rows = rows[round(len(rows) * WARM_UP) :]
    if len(rows) < 2:
        return 0.0
    return linear_regression([each.minute for each in rows], [getattr(each, name) for each in rows]).slope


def grown(rows: list[Minute]) -> list[str]:
    """Return the columns that grew by more than MOST_GROWTH."""
    return [name for name, most in MOST_GROWTH.items() if growth(rows, name) > most]


def main() -> int:
    parser = argparse.ArgumentParser(description="Watch the live page for a long time.")
    parser.add_argument("--minutes", type=int, default=15)
    parser.add_argument("--rate", type=float, default=500, help="events a second")
    parser.add_argument("--model", default="-p")
    options = parser.parse_args()
    rows: list[Minute] = []
    with (
        TemporaryDirectory() as place,
        watched(options.model, Path(place)) as (process, url),
        browser(Path(place)) as page,
    ):
        page.ask("Performance.enable", timeDomain="threadTicks")
        page.ask("Page.navigate", url=url)
        while not page.run("typeof models !== 'undefined' && Boolean(models[0]?.last)"):
            time.sleep(0.1)
        fill(page, url)
        print(COLUMNS, flush=True)
        for row in minutes(page, process, url, options):
            rows.append(row)
            print(row.line(), flush=True)
        print("errors of the page:", page.errors or "none")
    print(
        "growth of a minute, after the warm-up:",
        ", ".join(f"{name} {growth(rows, name):+.3f}" for name in MOST_GROWTH),
    )
    too_much = grown(rows)
    if too_much:
        print("more than the limit:", ", ".join(too_much))
    return int(bool(too_much))


if __name__ == "__main__":
    sys.exit(main())
