"""The main module's end of a web server: one FastCGI connection."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from ewe.fastcgi import Aborted, Began, FastCGIError, Responder
from ewe.xswitch.links import PIECE, STALLED
from ewe.xswitch.outbox import Outbox

if TYPE_CHECKING:
    from ewe.xswitch.main import Switch
    from ewe.xswitch.task import Task

LINGER = 2.0  # seconds that a web server may take to close a connection after its last answer


class Front:
    """One connection; one request at a time."""

    def __init__(self, switch: Switch, sock: socket.socket) -> None:
        self.switch = switch
        self.loop = switch.loop
        self.socket = sock
        self.outbox = Outbox(self.loop, sock, self.pause_writing, self.resume_writing)
        self.responder = Responder()
        self.task: Task | None = None
        self.held = False
        self.closed = False
        self.leaving = False  # it closes once the web server has
        self.leaves_at = float("inf")  # when it closes in any case
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        switch.fronts.add(self)
        self.loop.add_reader(sock, self.on_data)

    def on_data(self) -> None:
        """Something has come, or the end, which is how most web servers say that their client has left."""
        try:
            data = self.socket.recv(PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.take(data)
        elif self.task is None and self.outbox.pending:
            self.hold()  # it will read the rest
            self.leave_off()
        else:
            self.leave()
            self.close()

    def take(self, data: bytes) -> None:
        """Take records."""
        if self.leaving:
            return
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
            self.close()
            return
        if self.responder.reply:
            self.outbox.send(self.responder.take_reply())
        if began is not None:
            try:
                task = self.switch.accept(self, began.params, body)
            except Exception:
                self.close()  # nobody would answer
                raise
            self.task = None if task is None or task.ended else task

    def leave(self) -> None:
        """The web server no longer wants the answer."""
        task, self.task = self.task, None
        if task is not None:
            task.abandon()

    # Called by the task

    def output(self, data: bytes) -> None:
        """Send more of the answer."""
        self.outbox.send(self.responder.output(data))

    def end(self, data: bytes, status: int) -> None:
        """Send the rest of the answer; the connection is free for the next request, or closes."""
        self.task = None
        self.finish(self.responder.output(data) + self.responder.end(status))

    def finish(self, data: bytes) -> None:
        """Send the last records of a request."""
        self.outbox.send(data)
        self.read_on()
        if not self.responder.keep or self.switch.stopping:
            self.leave_off()

    def leave_off(self) -> None:
        """Close once the web server has: the end of its input may still be on its way, and would be answered with a
        reset, by which it could lose the answer."""
        if self.closed or self.leaving:
            return
        self.leaving = True
        if self.outbox.pending:
            self.leaves_at = time.monotonic() + STALLED
        else:
            self.say_end()

    def say_end(self) -> None:
        """All is written: close our side, and soon the other."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has gone
        if self.held:
            self.close()
        else:
            self.leaves_at = time.monotonic() + LINGER

    def break_off(self) -> None:
        """Close without the end of the request: the web server then knows that the answer is not whole."""
        self.task = None
        self.close()

    def close(self) -> None:
        """Let the connection go."""
        if self.closed:
            return
        self.hold()
        self.closed = True
        self.switch.fronts.discard(self)
        self.outbox.close()
        self.socket.close()

    def hold(self) -> None:
        """Read no more for now."""
        if not self.held and not self.closed:
            self.held = True
            self.loop.remove_reader(self.socket)

    def read_on(self) -> None:
        """Read again."""
        if self.held and not self.closed:
            self.held = False
            self.loop.add_reader(self.socket, self.on_data)

    # Called by the outbox: the web server is slower than the engine, or no longer

    def pause_writing(self) -> None:
        if self.task is not None:
            self.task.writable = False
            if self.task.link is not None:
                self.task.link.pause()

    def resume_writing(self) -> None:
        if self.outbox.failed:
            self.leave()
            self.close()
        elif self.task is not None:
            self.task.writable = True
            if self.task.link is not None:
                self.task.link.resume()
        if self.leaving and not self.outbox.pending and not self.closed:
            self.say_end()
