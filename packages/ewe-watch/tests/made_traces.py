"""Traces as each model writes them, made without a server: silent clients, and visitors whose requests take a time.

The model decides which worker serves a client at which second. Tests therefore know each number of the picture.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

TIMEOUT_S = 10.0  # a silent client is sent away after that time
STEP_S = 0.00002  # between two events of a conversation
START_S = 8100.0  # of the machine's clock
MAIN = "7120/7120"


class Visitor(NamedTuple):
    """A client. arrives: seconds. silence: seconds until it asks; TIMEOUT_S: never. work: of its request."""

    arrives: float
    silence: float = 0.0
    work: float = 0.005
    line: str = "GET /a.html"


SILENT = [Visitor(1 + 0.02 * number, TIMEOUT_S) for number in range(6)]
ORDINARY = [Visitor(0.1 * number + 0.05, work=0.02 + 0.01 * (number % 3)) for number in range(8)]
LATE = [Visitor(2 + 0.5 * number, work=0.03, line=f"GET /page-{number}.html") for number in range(12)]
COLLAPSE = sorted([*ORDINARY, *SILENT, *LATE])


class MadeTrace:
    """Collects events; their text has them by time."""

    def __init__(self, model: str) -> None:
        self.events: list[tuple[float, int, str]] = []
        self.say(0.0, "model", "-", MAIN, model)

    def say(self, seconds: float, event: str, connection: str, worker: str, text: object = "") -> None:
        line = f"{START_S + seconds:.6f} {event} {connection} {worker} {text}\n"
        self.events.append((seconds, len(self.events), line))

    def text(self) -> str:
        return "".join(line for _, _, line in sorted(self.events))

    def write(self, path: Path) -> Path:
        path.write_text(self.text())
        return path

    def accept(self, number: int, visitor: Visitor, seconds: float, worker: str = MAIN) -> str:
        """Write that a connection is accepted; return its name."""
        name = f"7120.{number}"
        self.say(seconds, "accepted", name, worker, f"192.0.2.{number % 250}:4{number:04}")
        return name

    def talk(self, name: str, visitor: Visitor, begin: float, worker: str, speaks: float) -> float:
        """Write a conversation that never leaves its worker, from `begin`; return its end."""
        self.say(begin, "runs", name, worker)
        self.say(begin + STEP_S, "waits", name, worker, "request")
        now = max(begin + 2 * STEP_S, speaks)
        if visitor.silence >= TIMEOUT_S:
            now = max(now, begin + TIMEOUT_S)
            self.say(now, "goes-on", name, worker, "timeout")
            return self.end(name, now + STEP_S, worker, "no request came in time")
        self.say(now, "goes-on", name, worker)
        return self.end(name, self.answer(name, visitor, now, worker), worker, "the client closes")

    def answer(self, name: str, visitor: Visitor, begin: float, worker: str) -> float:
        """Write a request and its response; return the end."""
        done = begin + visitor.work
        self.say(begin + STEP_S, "request", name, worker, visitor.line)
        self.say(done, "answered", name, worker, "200 files")
        self.say(done + STEP_S, "sends", name, worker)
        self.say(done + 3 * STEP_S, "sent", name, worker, 1280)
        return done + 4 * STEP_S

    def end(self, name: str, seconds: float, worker: str, why: str) -> float:
        self.say(seconds, "ended", name, worker, why)
        self.say(seconds + STEP_S, "closed", name, worker)
        return seconds + 2 * STEP_S


def threads(first: int = 7131) -> Iterator[str]:
    """Yield the workers of a process that starts threads."""
    while True:
        yield f"7120/{first}"
        first += 1


def processes(first: int = 7131) -> Iterator[str]:
    """Yield the workers of a process that starts children."""
    while True:
        yield f"{first}/{first}"
        first += 1


def in_turn(trace: MadeTrace, visitors: Iterable[Visitor], workers: list[str], *, at_once: bool) -> MadeTrace:
    """Let some workers serve one visitor after the other. at_once: all are accepted at once, and wait in a queue.

    Else a free worker accepts its next connection itself, and the others wait in the kernel's backlog.
    """
    free = [(0.0, worker) for worker in workers]
    for number, visitor in enumerate(visitors, 1):
        since, worker = heapq.heappop(free)
        begin = max(since, visitor.arrives + STEP_S)
        if at_once:
            name = trace.accept(number, visitor, visitor.arrives)
            trace.say(visitor.arrives + STEP_S / 2, "ready", name, MAIN)
        else:
            name = trace.accept(number, visitor, begin, worker)
        end = trace.talk(name, visitor, begin + STEP_S, worker, visitor.arrives + visitor.silence)
        heapq.heappush(free, (end, worker))
    return trace


def one_each(trace: MadeTrace, visitors: Iterable[Visitor], workers: Iterator[str]) -> MadeTrace:
    """Give each connection a new worker."""
    for number, (visitor, worker) in enumerate(zip(visitors, workers, strict=False), 1):
        name = trace.accept(number, visitor, visitor.arrives)
        trace.talk(name, visitor, visitor.arrives + 0.0003, worker, visitor.arrives + visitor.silence)
    return trace


def parking(trace: MadeTrace, visitors: Iterable[Visitor], workers: list[str], *, ready: bool) -> MadeTrace:
    """Park each conversation until its client speaks. ready: the queue takes it then (only in a pool)."""
    turns = []
    for number, visitor in enumerate(visitors, 1):
        turns.append((visitor.arrives, number, visitor, "new"))
        turns.append((visitor.arrives + visitor.silence + 0.001, number, visitor, "speaks"))
    free = [(0.0, worker) for worker in workers]
    for seconds, number, visitor, what in sorted(turns, key=lambda turn: turn[:2]):
        since, worker = heapq.heappop(free)
        name = trace.accept(number, visitor, seconds) if what == "new" else f"7120.{number}"
        if ready:
            trace.say(seconds + STEP_S / 2, "ready", name, MAIN)
        now = max(since, seconds + STEP_S)
        trace.say(now, "runs", name, worker)
        if what == "new":
            trace.say(now + STEP_S, "waits", name, worker, "request")
            trace.say(now + 2 * STEP_S, "parked", name, worker, "bytes")
            end = now + 3 * STEP_S
        elif visitor.silence >= TIMEOUT_S:
            trace.say(now + STEP_S, "goes-on", name, worker, "timeout")
            end = trace.end(name, now + 2 * STEP_S, worker, "no request came in time")
        else:
            trace.say(now + STEP_S, "goes-on", name, worker)
            end = trace.end(
                name, trace.answer(name, visitor, now + STEP_S, worker), worker, "the client closes"
            )
        heapq.heappush(free, (end, worker))
    return trace


POOL = [f"7120/{thread}" for thread in range(7131, 7136)]
CHILDREN = [f"{child}/{child}" for child in range(7131, 7136)]


def made(model: str, visitors: Iterable[Visitor] = COLLAPSE) -> MadeTrace:
    """Return the trace of a model that these visitors come to."""
    match model:
        case "serial":
            return in_turn(MadeTrace("serial one connection at a time"), visitors, [MAIN], at_once=False)
        case "fork":
            return one_each(MadeTrace("fork a process for each connection"), visitors, processes())
        case "thread":
            return one_each(MadeTrace("thread a thread for each connection"), visitors, threads())
        case "prefork":
            return in_turn(MadeTrace("prefork 5 worker processes"), visitors, CHILDREN, at_once=False)
        case "pool, never":
            return in_turn(MadeTrace("pool a pool of 5 threads, parking never"), visitors, POOL, at_once=True)
        case "pool, always":
            return parking(MadeTrace("pool a pool of 5 threads, parking always"), visitors, POOL, ready=True)
        case "event":
            return parking(MadeTrace("asyncio one event loop"), visitors, [MAIN], ready=False)
    raise ValueError(model)


ALL = ("serial", "fork", "thread", "prefork", "pool, never", "pool, always", "event")


def many(events: int) -> MadeTrace:
    """Return a trace of about so many events: a pool under load."""
    visitors = [
        Visitor(0.004 * number, work=0.012 + 0.02 * (number % 7 == 0), line=f"GET /{number}.html")
        for number in range(events // 11)
    ]
    return in_turn(MadeTrace("pool a pool of 5 threads, parking never"), visitors, POOL, at_once=True)
