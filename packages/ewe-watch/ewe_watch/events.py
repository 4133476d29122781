"""The events of a trace: each line of the file becomes a tuple.

    SECONDS EVENT CONNECTION WORKER TEXT
    8123.551540 request 7120.4 7120/7131 GET /a.html

The server's module `ewe.trace` lists the events and their meaning. This module checks the form of a line and not
the name of its event: the story ignores an event that it does not know.

A server of the lab about scheduling writes the short form of EWE_TRACE, which the grader reads:

    SECONDS EVENT CLIENT WORKER TARGET          CLIENT is the client's port; WORKER is any word, "-" for none
    8123.551207 arrival 40112 - /sizes/a        the request is in the server, and waits
    8123.551311 dispatch 40112 2 /sizes/a       worker 2 takes it
    8123.602544 completion 40112 2 /sizes/a     its response has been sent
    8123.602811 drop 40118 - /sizes/bb          it is refused with 503

Each of these lines becomes the events by which ewe's own models state the same fact: accepted (ready, if the client
has had a request before); runs and request; ended; refused and ended. This form has no waits, so a worker is busy
from the dispatch to the completion.

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
SHORT_FORM = "SECONDS EVENT CLIENT WORKER TARGET"
SHORT_KINDS = frozenset(("arrival", "dispatch", "completion", "drop"))
PORT = re.compile(r"[0-9]{1,9}")
SHORT_PROCESS = "0"  # the short form names no process, and no server has this number
ABSENT = "-"  # stands in an event for a connection, or another word, that it does not have
WORKER = re.compile(r"\d+/\d+")
IN_BACKLOG = re.compile(r" backlog=([0-9]{1,9}\.[0-9]{1,9})$")
CONNECTION = re.compile(r"\d+\.\d+")
# Of the clock, about 285 years: fewer than 2**53 microseconds, which a float counts exactly
MOST_SECONDS = 9e9
WINDOW = 512  # events within which two lines may have changed places
MAX_LINE_CHARS = 4096  # the server writes lines of 501 characters at most


class AcceptedClient(NamedTuple):
    """A client that the server has accepted. backlog_s: its time in the kernel's backlog; None: unknown."""

    address: str
    backlog_s: float | None


def accepted_client(text: str) -> AcceptedClient:
    """Return the client of an event `accepted`. text: of the event."""
    match = IN_BACKLOG.search(text)
    return AcceptedClient(text[: match.start()], float(match[1])) if match else AcceptedClient(text, None)


class TraceError(Failure):
    """A file is not a trace, or cannot be read or written. The text is one line that names the file."""

    exit_status = 2


class TraceEvent(NamedTuple):
    """One event. seconds: by time.monotonic(). kind: its name. connection: PID.NUMBER, or "". worker: PID/TID."""

    seconds: float
    kind: str
    connection: str
    worker: str
    text: str


def process_of(worker: str) -> str:
    """Return the process of a worker: the PID of PID/TID."""
    return worker.partition("/")[0]


def is_main_thread(worker: str) -> bool:
    """Return whether a worker is the first thread of its process: its TID is the PID."""
    process, _, thread = worker.partition("/")
    return process == thread


def process_in_name(name: str) -> str:
    """Return the process in the name of a connection or of an engine: the PID of PID.NUMBER."""
    return name.partition(".")[0]


def parse(line: str) -> TraceEvent:
    """Parse one line, without its line end. Raises ValueError with the reason."""
    parts = line.split(" ", 4)
    if len(parts) < 4:
        raise ValueError(f"expected {FORM}")
    time, kind, connection, worker, *text = parts
    seconds = seconds_of(time)
    if connection != ABSENT and not CONNECTION.fullmatch(connection):
        raise ValueError(f"{connection!r} is not a connection, such as 7120.4")
    if not WORKER.fullmatch(worker):
        raise ValueError(f"{worker!r} is not a worker, such as 7120/7131")
    return TraceEvent(seconds, kind, "" if connection == ABSENT else connection, worker, "".join(text))


def seconds_of(time: str) -> float:
    """Return the time of an event in seconds, by the clock of its machine. Raises ValueError."""
    try:
        seconds = float(time)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < MOST_SECONDS:  # also false for nan
        raise ValueError(f"{time!r} is not a time in seconds")
    return seconds


class ShortForm:
    """Turns the lines of a file in the short form into events.

    clients: the ports that have had a request. workers: a worker's word -> its name in an event.
    """

    def __init__(self) -> None:
        self.clients: set[str] = set()
        self.workers: dict[str, str] = {}

    def parse(self, line: str) -> list[TraceEvent]:
        """Return the events of one line, without its line end. Raises ValueError with the reason."""
        parts = line.split(" ", 4)
        if len(parts) < 5:
            raise ValueError(f"expected {SHORT_FORM}")
        time, kind, client, word, target = parts
        seconds = seconds_of(time)
        if not PORT.fullmatch(client):
            raise ValueError(f"{client!r} is not a client's port, such as 40112")
        connection = f"{SHORT_PROCESS}.{client}"
        events: list[tuple[str, str, str]] = []  # the kind, the connection, the text
        if client not in self.clients:
            self.clients.add(client)
            events.append(("accepted", connection, f"port {client}"))
        elif kind == "arrival":
            events.append(("ready", connection, ""))
        if kind == "dispatch":
            if word not in self.workers:
                self.workers[word] = f"{SHORT_PROCESS}/{len(self.workers) + 1}"
                events.append(("named", "", word))
            events += [("runs", connection, ""), ("request", connection, target)]
        elif kind == "completion":
            events.append(("ended", connection, "the response is complete"))
        elif kind == "drop":
            events += [("refused", "", f"{client} overload"), ("ended", connection, "dropped")]
        worker = self.workers.get(word, f"{SHORT_PROCESS}/0")
        return [TraceEvent(seconds, event, of, worker, text) for event, of, text in events]


def events_in_file_order(path: Path) -> Iterator[TraceEvent]:
    """Yield the events of a file in the order of its lines. Raises TraceError."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise TraceError(f"{path} is not a regular file: name a file that `ewe --trace FILE` has written")
        with path.open("rb") as file:
            number = 0
            short_form = ShortForm()
            fault = ""  # why the line before this one is no event; forgiven before an event `lost`
            while line := file.readline(MAX_LINE_CHARS):
                number += 1
                if not line.endswith(b"\n") and len(line) < MAX_LINE_CHARS:
                    return  # an incomplete last line: the server still writes it, or was killed
                try:
                    text = line.decode("utf-8", "replace").rstrip("\r\n")
                    is_short = not SHORT_KINDS.isdisjoint(text.split(" ", 2)[1:2])
                    events = short_form.parse(text) if is_short else [parse(text)]
                except ValueError as reason:
                    if fault:
                        raise TraceError(fault) from None
                    fault = f"{path}, line {number}: not an event of a trace: {reason}"
                    continue
                if fault and events[0].kind != "lost":
                    raise TraceError(fault)
                fault = ""
                yield from events
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
