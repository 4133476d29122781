"""X-Switch's part of the trace: the events of each request, and of each engine (ewe.trace lists them).

    Exchange.handle() ── TracedExchange ──┐
    EngineStarter, Engine ── SwitchTrace ─┴─▶ Trace: one line, one write(2), an event

Every step of a request passes through the table of an exchange (exchange_table.py). A TracedExchange therefore
overrides one method, handle(), and sees all steps. Without a trace, X-Switch makes plain exchanges, and a request
calls no code of this file.

The trace shows scripts and owners of all users. It belongs to the administrator: the supervisor opens it before
root is dropped, and suexecme closes its descriptor before it starts an engine.
Queries, headers and bodies are in no event, because they may contain secrets of visitors.
"""

from __future__ import annotations

import itertools
import os
import re
from typing import Any, Protocol

from ewe.trace import NONE, Trace, word
from ewe.xswitch.switch.exchange import Exchange
from ewe.xswitch.switch.exchange_table import ABANDONED, DONE, IDENTIFYING, TABLE, WAITING, Event
from ewe.xswitch.switch.scheduler import ENDINGS

ASKED_BY = b"XSWITCH_TRACE"  # the parameter in which ewe names its connection; no script gets it
CONNECTION = re.compile(rb"\d{1,10}\.\d{1,18}")


class NamedEngine(Protocol):
    """An engine, as the trace sees it. end_cause: why it is closed."""

    name: str
    user: str
    language: str
    pid: int
    end_cause: str


class SwitchTrace:
    """Writes the events of the engines."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.engine_numbers = itertools.count(1)

    def engine_begins(self, engine: NamedEngine) -> None:
        """Give an engine its name in the trace (pid.number), and write that it is begun."""
        engine.name = f"{os.getpid()}.{next(self.engine_numbers)}"
        self.trace.write("x-engine", NONE, f"{engine.name} {word(engine.user)} {word(engine.language)}")

    def process_runs(self, engine: NamedEngine) -> None:
        """Write that suexecme has started the engine's process."""
        self.trace.write("x-process", NONE, f"{engine.name} {engine.pid}")

    def engine_ended(self, engine: NamedEngine) -> None:
        """Write that an engine is closed, with the cause."""
        end_cause = ENDINGS.get(engine.end_cause, engine.end_cause) or "it cannot run another request"
        self.trace.write("x-ended", NONE, f"{engine.name} {end_cause}")


class TracedExchange(Exchange):
    """An exchange that writes an event at each step of its table."""

    trace: Trace
    name = NONE

    def handle(self, event: Event, *details: Any) -> None:
        """Write the event, and take the step. details: those of the action in the table."""
        next_state, _ = TABLE.get((self.state, event), (self.state, ""))
        if event is Event.IDENTIFIED:
            self.begin()
        elif event is Event.ASSIGNED:
            [engine] = details
            self.trace.write("x-runs", self.name, engine.name)
        elif next_state is ABANDONED and event is Event.LEFT:
            self.trace.write("x-left", self.name)
        elif next_state is DONE and self.state is not DONE and event is not Event.ANSWERED:
            self.trace.write("x-answered", self.name, self.outcome(event, details))
        super().handle(event, *details)
        if self.state is WAITING and event in (Event.IDENTIFIED, Event.RETRIED):
            self.trace.write("x-queued", self.name, self.services.scheduler.waiting)

    def begin(self) -> None:
        """Name the request in the trace, and write that it has arrived. Its script's owner is known now.

        The line has the name of ewe's connection, too: it joins the events of both servers for one request.
        """
        self.name = self.trace.new_connection()
        asked_by = self.params.get(ASKED_BY, b"")
        server = asked_by.decode() if CONNECTION.fullmatch(asked_by) else NONE  # another web server may ask
        user, language = map(word, self.key)
        self.trace.write("x-request", self.name, f"{server} {user} {language} {self.script}")

    def outcome(self, event: Event, details: tuple[Any, ...]) -> str:
        """Return how the request has ended."""
        if event is Event.COMPLETED:
            return "ok" if self.state is not ABANDONED else "left"
        if event in (Event.LEFT, Event.OVERDUE):
            return "left"
        status, cause, *_ = details
        # Before the owner is known, the cause may quote a path that a visitor has chosen.
        return f"{status} {cause}" if self.state is not IDENTIFYING else str(status)


def traced(trace: Trace) -> type[Exchange]:
    """Return a class of exchanges that write their events to this trace."""
    return type("TracedExchange", (TracedExchange,), {"trace": trace})
