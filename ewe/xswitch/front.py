"""The main module's end of a web server: one FastCGI connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ewe.fastcgi import Aborted, Began, FastCGIError, Responder

if TYPE_CHECKING:
    from ewe.xswitch.main import Switch
    from ewe.xswitch.task import Task

LINGER = 2.0  # seconds that a web server may take to close a connection after its last answer


class Front(asyncio.Protocol):
    """One connection; one request at a time."""

    transport: asyncio.Transport

    def __init__(self, switch: Switch) -> None:
        self.switch = switch
        self.responder = Responder()
        self.task: Task | None = None
        self.held = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.switch.fronts.add(self)

    def connection_lost(self, reason: Exception | None) -> None:
        """The web server has closed, which is how most say that their client has left."""
        self.switch.fronts.discard(self)
        self.leave()

    def data_received(self, data: bytes) -> None:
        began: Began | None = None
        body: list[bytes] = []  # what has come of it with the request's beginning: all, mostly
        try:
            for event in self.responder.feed(data):
                if isinstance(event, Began):
                    began = event
                elif isinstance(event, Aborted):
                    began = None
                    self.leave()
                    self.finish(self.responder.end())
                elif began is not None:
                    body.append(event.data)
                elif self.task is not None:
                    self.task.on_input(event.data)
        except FastCGIError as error:
            self.switch.log.warning(f"a web server's connection closed: {error}")
            self.leave()
            self.transport.abort()
            return
        if self.responder.reply:
            self.transport.write(self.responder.take_reply())
        if began is not None:
            task = self.switch.accept(self, began.params, body)
            self.task = None if task is None or task.ended else task

    def leave(self) -> None:
        """The web server no longer wants the answer."""
        task, self.task = self.task, None
        if task is not None:
            task.abandon()

    # Called by the task

    def output(self, data: bytes) -> None:
        """Send more of the answer."""
        self.transport.write(self.responder.output(data))

    def end(self, data: bytes, status: int) -> None:
        """Send the rest of the answer; the connection is free for the next request, or closes."""
        self.task = None
        self.finish(self.responder.output(data) + self.responder.end(status))

    def finish(self, data: bytes) -> None:
        """Send the last records of a request."""
        self.transport.write(data)
        if not self.responder.keep or self.switch.stopping:
            self.leave_off()
        else:
            self.read_on()

    def leave_off(self) -> None:
        """Close once the web server has: the end of its input may still be on its way, and would be answered with a
        reset, by which it could lose the answer."""
        self.read_on()
        if not self.transport.is_closing():
            self.transport.write_eof()
            self.switch.loop.call_later(LINGER, self.transport.abort)

    def break_off(self) -> None:
        """Close without the end of the request: the web server then knows that the answer is not whole."""
        self.task = None
        self.transport.abort()

    def hold(self) -> None:
        """Read no more for now."""
        if not self.held and not self.transport.is_closing():
            self.held = True
            self.transport.pause_reading()

    def read_on(self) -> None:
        """Read again."""
        if self.held and not self.transport.is_closing():
            self.held = False
            self.transport.resume_reading()

    # Called by the event loop: the web server is slower than the engine, or no longer

    def pause_writing(self) -> None:
        if self.task is not None:
            self.task.writable = False
            if self.task.link is not None:
                self.task.link.pause()

    def resume_writing(self) -> None:
        if self.task is not None:
            self.task.writable = True
            if self.task.link is not None:
                self.task.link.resume()
