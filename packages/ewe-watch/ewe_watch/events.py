"""The events of a trace: each line of the file becomes a tuple.

    SECONDS EVENT CONNECTION WORKER TEXT
    8123.551540 request 7120.4 7120/7131 GET /a.html

The server's module `ewe.trace` lists the events and their meaning. This module checks the form of a line and not
the name of its event: the story ignores an event that it does not know.

The file is read line by line, so its size does not matter. A server that still writes, or that was killed, leaves
an incomplete last line, which is ignored. The beginning of a line before an event `lost` is ignored, too: a full
disk did not take the rest. Several threads and processes write: the time of an event is read before its line is
written, so neighbouring lines may have changed places. `read` sorts them within a window.
"""

from __future__ import annotations

import heapq
import math
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ewe.config.messages import Failure

FORM = "SECONDS EVENT CONNECTION WORKER TEXT"
NOBODY = "-"  # stands for the connection in an event that concerns none
WORKER = re.compile(r"\d+/\d+")
CONNECTION = re.compile(r"\d+\.\d+")
# Of the clock, about 285 years: fewer than 2**53 microseconds, which a float counts exactly
MOST_SECONDS = 9e9
WINDOW = 512  # events within which two lines may have changed places
MAX_LINE_CHARS = 4096  # the server writes lines of 501 characters at most


class TraceError(Failure):
    """A file is not a trace, or cannot be read. The text is one line that names the file."""


class TraceEvent(NamedTuple):
    """One event. kind: its name. connection: PID.NUMBER, or "". worker: PID/TID."""

    seconds: float
    kind: str
    connection: str
    worker: str
    text: str


def parse(line: str) -> TraceEvent:
    """Parse one line, without its line end. Raises ValueError with the reason."""
    parts = line.split(" ", 4)
    if len(parts) < 4:
        raise ValueError(f"expected {FORM}")
    time, kind, connection, worker, *text = parts
    try:
        seconds = float(time)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < MOST_SECONDS:  # also false for nan
        raise ValueError(f"{time!r} is not a time in seconds")
    if connection != NOBODY and not CONNECTION.fullmatch(connection):
        raise ValueError(f"{connection!r} is not a connection, such as 7120.4")
    if not WORKER.fullmatch(worker):
        raise ValueError(f"{worker!r} is not a worker, such as 7120/7131")
    return TraceEvent(seconds, kind, "" if connection == NOBODY else connection, worker, "".join(text))


def events_in_file_order(path: Path) -> Iterator[TraceEvent]:
    """Yield the events of a file in the order of its lines. Raises TraceError."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise TraceError(f"{path} is not a regular file: name a file that `ewe --trace FILE` has written")
        with path.open("rb") as file:
            number = 0
            fault = ""  # why the line before this one is no event; forgiven before an event `lost`
            while line := file.readline(MAX_LINE_CHARS):
                number += 1
                if not line.endswith(b"\n") and len(line) < MAX_LINE_CHARS:
                    return  # an incomplete last line: the server still writes it, or was killed
                try:
                    event = parse(line.decode("utf-8", "replace").rstrip("\r\n"))
                except ValueError as reason:
                    if fault:
                        raise TraceError(fault) from None
                    fault = f"{path}, line {number}: not an event of a trace: {reason}"
                    continue
                if fault and event.kind != "lost":
                    raise TraceError(fault)
                fault = ""
                yield event
            if fault:
                raise TraceError(fault)
    except OSError as reason:
        raise TraceError(f"cannot read {path}: {reason.strerror}") from None


def sort_by_time(events: Iterable[TraceEvent], window: int = WINDOW) -> Iterator[TraceEvent]:
    """Yield events by their time. Events of the same time keep their order. window: events to look ahead.

    An event that comes more than `window` events too late is out of order in the result.
    """
    waiting: list[tuple[float, int, TraceEvent]] = []  # a heap; the number keeps the order of equal times
    for number, event in enumerate(events):
        heapq.heappush(waiting, (event.seconds, number, event))
        if len(waiting) > window:
            _, _, earliest = heapq.heappop(waiting)
            yield earliest
    while waiting:
        _, _, earliest = heapq.heappop(waiting)
        yield earliest


def read(path: Path) -> Iterator[TraceEvent]:
    """Yield the events of a trace by their time. Raises TraceError."""
    return sort_by_time(events_in_file_order(path))
