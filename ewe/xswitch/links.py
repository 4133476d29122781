"""The main module's end of an engine, and of one that speaks the engine protocol."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

from ewe.xswitch.outbox import Outbox
from ewe.xswitch.protocol import MarkReader, ProtocolError

if TYPE_CHECKING:
    from ewe.xswitch.main import Switch
    from ewe.xswitch.pool import Key, Waiter
    from ewe.xswitch.task import Task

PIECE = 64 * 1024  # bytes read at once
MAX_DRAIN = 64  # pieces that may be there when the mark comes; a socket holds far less
MAX_LINES = 1000  # lines of standard error of one request that go to the log
MAX_LINE = 2000  # bytes of such a line
STALLED = 300.0  # seconds that a web server may take nothing of an answer, or send nothing of a body
LINGER = 2.0  # seconds that what an engine left behind may go on writing once it has ended
PAGE = os.sysconf("SC_PAGE_SIZE")


class Link:
    """One engine. pid: 0 until suexecme has started it."""

    def __init__(self, switch: Switch, key: Key, data: socket.socket, errors: int) -> None:
        self.switch = switch
        self.loop = switch.loop
        self.key = key
        self.data = data
        self.errors = errors
        self.outbox = Outbox(self.loop, data, self.hold_input, self.want_input)
        self.pid = 0
        self.task: Task | None = None
        self.since = self.used = time.monotonic()
        self.deadline = float("inf")
        self.left = 0.0  # until the deadline, while it is paused
        self.served = 0
        self.closed = False
        self.paused = False
        self.status: int | None = None  # of its process, once that has ended
        self.error_line = b""
        self.error_lines = 0
        self.script = ""
        data.setblocking(False)
        self.loop.add_reader(data, self.on_data)
        if errors >= 0:
            os.set_blocking(errors, False)
            self.loop.add_reader(errors, self.on_errors)

    def give(self, waiter: Waiter) -> None:
        """Have it run a request."""
        task: Task = waiter  # type: ignore[assignment]
        self.task = task
        if task.script != self.script:
            self.on_errors(over=True)  # what is there is of the script before
        self.count_errors()
        self.script = task.script
        self.used = time.monotonic()
        self.deadline = self.used + (STALLED if task.input_left else self.switch.settings.time_limit)
        task.link = self
        self.begin(task)

    def begin(self, task: Task) -> None:
        """Write the head of a request, and what has come of its body."""
        raise NotImplementedError

    def body(self, data: bytes) -> None:
        """Write more of the body; b"": its end."""
        raise NotImplementedError

    def hold_input(self) -> None:
        """It does not take the body as fast as it comes: that is the script's time."""
        if self.task is not None:
            self.task.hold_input()
            self.set_time(self.switch.settings.time_limit)

    def want_input(self) -> None:
        """It has taken it."""
        if self.task is not None:
            self.task.want_input()
            if self.task.input_left:
                self.set_time(STALLED)

    def heard(self, left: int) -> None:
        """Some of the body has come, and so many bytes are left: while a client sends, no script's time passes."""
        self.set_time(STALLED if left else self.switch.settings.time_limit)

    def set_time(self, seconds: float) -> None:
        """Give it so much time from now on."""
        if self.paused:
            self.left = seconds
        else:
            self.deadline = time.monotonic() + seconds

    def on_data(self) -> None:
        """Something has come, or its end."""
        raise NotImplementedError

    def receive(self) -> bytes | None:
        """Return what has come, b"" at the end, None where nothing has."""
        try:
            return self.data.recv(PIECE)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def pause(self) -> None:
        """Read no more for now: the client is slower, which does not use up the script's time."""
        if not self.paused and not self.closed:
            self.paused = True
            self.loop.remove_reader(self.data)
            now = time.monotonic()
            self.left, self.deadline = self.deadline - now, now + STALLED

    def resume(self) -> None:
        """Read on."""
        if self.paused and not self.closed:
            self.paused = False
            self.loop.add_reader(self.data, self.on_data)
            self.deadline = time.monotonic() + self.left

    def done(self, output: bytes, status: int, last: bool = False) -> None:
        """The answer is whole. last: the engine answers no more."""
        task, self.task = self.task, None
        if self.outbox.pending or (task is not None and not task.input_over):
            last = True  # the rest of the body would be in the way of the next request
        self.served += 1
        self.used = time.monotonic()
        self.resume()
        self.deadline = float("inf")
        if task is not None:
            task.end(output, status)
        if last:
            self.end()
        else:
            self.free()

    def free(self) -> None:
        """It can take another request."""
        self.switch.pool.release(self)

    def has_room(self) -> bool:
        """May it be given another request beside those that it runs?"""
        return False

    # Ends

    def abandon(self) -> None:
        """Nobody waits for its answer any more."""
        self.deadline = min(self.deadline, time.monotonic() + self.switch.settings.abandoned)

    def refused(self, status: int, cause: str) -> None:
        """suexecme does not start it."""
        task, self.task = self.task, None
        self.end()
        if task is not None:
            task.fail(status, cause)

    def expire(self) -> None:
        """Its request has taken too long."""
        task, self.task = self.task, None
        self.end()
        if task is not None:
            task.expired()

    def retire(self) -> None:
        """End it: it is idle. Closing its sockets is enough for a good one; suexecme sees to the others."""
        self.end()

    def broken(self, cause: str) -> None:
        """It does not keep to the protocol, or has gone."""
        task, self.task = self.task, None
        self.end()
        if task is not None:
            task.died(cause)

    def end(self) -> None:
        """Close all, and have suexecme end the process."""
        if self.closed:
            return
        self.closed = True
        self.on_errors()
        self.count_errors()
        if not self.paused:
            self.loop.remove_reader(self.data)
        self.close()
        if not self.errors_closed():
            self.loop.remove_reader(self.errors)
            os.close(self.errors)
            self.errors = -1
        self.gone()

    def gone(self) -> None:
        """It is closed: count it no more."""
        self.switch.bury(self)
        if self in self.switch.pool.workers:
            self.switch.pool.lost(self)

    def close(self) -> None:
        """Close the sockets."""
        self.outbox.close()
        self.data.close()

    def ended(self, status: int) -> None:
        """Its process has ended."""
        self.status = status

    # What it says on standard error, and what it weighs

    def errors_closed(self) -> bool:
        return self.errors < 0

    def on_errors(self, over: bool = False) -> None:
        """Log what is there of standard error, a line each, under user and script. over: it is all there."""
        if self.errors_closed():
            return
        closed = False
        try:
            data = os.read(self.errors, PIECE)
            closed = not data
        except BlockingIOError:
            data = b""
        except OSError:
            data, closed = b"", True
        if closed:
            self.loop.remove_reader(self.errors)
            os.close(self.errors)
            self.errors = -1
        *lines, self.error_line = (self.error_line + data).split(b"\n")
        if self.error_line and (closed or over or len(self.error_line) > MAX_LINE):
            lines.append(self.error_line)
            self.error_line = b""
        self.log_errors(lines)

    def log_errors(self, lines: list[bytes]) -> None:
        """Log lines of standard error, up to MAX_LINES of them for a request."""
        for line in lines:
            self.error_lines += 1
            if self.error_lines <= MAX_LINES:
                text = line[:MAX_LINE].decode("utf-8", "surrogateescape")
                self.switch.say(self.key[0], f"{self.script}: {text}")

    def count_errors(self) -> None:
        """Say how many lines of standard error were left out, before those of another request come."""
        if self.error_lines > MAX_LINES:
            left_out = self.error_lines - MAX_LINES
            self.switch.say(self.key[0], f"{self.script}: {left_out} more lines of standard error")
        self.error_lines = 0

    def memory(self) -> int:
        """Return the bytes that it has in memory, its share of what it has in common with others included."""
        return sum(self.memory_parts())

    def memory_parts(self) -> tuple[int, int]:
        """Return its private and its shared memory in bytes; 0 where the system does not tell."""
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as file:
                _, resident, shared, *_ = (int(word) * PAGE for word in file.read().split())
        except (OSError, ValueError):
            return 0, 0
        return resident - shared, shared


class EngineLink(Link):
    """An engine that speaks the engine protocol."""

    def __init__(
        self, switch: Switch, key: Key, data: socket.socket, control: socket.socket, errors: int
    ) -> None:
        super().__init__(switch, key, data, errors)
        control.setblocking(False)
        self.control = control
        self.commands = Outbox(self.loop, control, self.hold_input, self.want_input)
        self.marks = MarkReader()
        self.marks_end = False
        self.marked_now = False  # the mark was taken when the output came: its own event is no news
        self.loop.add_reader(control, self.on_control)

    def begin(self, task: Task) -> None:
        self.commands.send(task.lines)
        for piece in task.take_input():
            self.body(piece)

    def body(self, data: bytes) -> None:
        if data:
            self.outbox.send(data)

    def on_data(self) -> None:
        self.marked_now = self.marked()  # mostly it is there: it is written right after the output
        if self.marked_now:
            return
        piece = self.receive()
        if piece is None or self.closed:
            return
        if self.task is None:
            self.broken("")  # it has ended while it was idle, or wrote where nobody asked
        elif piece:
            self.task.write(piece)
        else:
            self.over()

    def on_control(self) -> None:
        if self.marked_now:
            self.marked_now = False  # if there is more, the event comes again
        else:
            self.marked()

    def marked(self) -> bool:
        """Take the mark if it is there, and the rest of the answer, which is there too; return whether it was."""
        if self.marks_end:
            return False
        try:
            said = self.control.recv(64)
        except BlockingIOError:
            return False
        except OSError:
            said = b""
        if not said:
            self.marks_end = True
            self.loop.remove_reader(self.control)
            if self.task is None:
                self.broken("")
            return False
        try:
            if self.task is None:
                raise ProtocolError("the engine wrote a mark where nobody asked")
            status = self.marks.feed(said)
        except ProtocolError as error:
            self.broken(str(error))
            return True
        if status is None:
            return False
        self.finish(status)
        return True

    def finish(self, status: int) -> None:
        """The mark has come: all output is there, up to a piece that is not full."""
        piece = self.receive()
        if piece and len(piece) < PIECE:
            self.done(piece, status)
            return
        pieces: list[bytes] = []
        while piece is not None and len(piece) == PIECE:
            pieces.append(piece)
            if len(pieces) > MAX_DRAIN:
                self.broken("its output goes on after its mark")
                return
            piece = self.receive()
        self.done(b"".join((*pieces, piece or b"")), status, last=piece == b"")

    def over(self) -> None:
        """The output has ended without a mark: the engine is the script's process, and is ending."""
        deadline = self.deadline
        self.pause()
        self.deadline = deadline  # this is not the client's doing
        if self.status is not None:
            self.settle()
        else:
            self.loop.call_later(LINGER, self.settle)

    def ended(self, status: int) -> None:
        super().ended(status)
        if self.closed:
            return
        self.marked()  # its mark may be on the way
        if self.task is None:
            self.broken("")
        elif self.paused and self.task.writable:
            self.settle()
        else:  # what it has left behind may still write
            self.loop.call_later(LINGER, self.settle)

    def settle(self) -> None:
        """It has ended without a mark: by itself, as a CGI script does, or by a signal."""
        task = self.task
        if self.closed or task is None:
            return
        while piece := self.receive():
            task.write(piece)
        if self.status is not None and self.status >= 0 and task.begun:
            self.task = None
            self.end()
            task.end(b"", self.status)
        elif self.status is None:
            self.broken("it closed its output without its mark")
        else:
            self.broken(how_it_ended(self.status))

    def close(self) -> None:
        if not self.marks_end:
            self.loop.remove_reader(self.control)
        self.commands.close()
        self.control.close()
        super().close()


def how_it_ended(status: int) -> str:
    """Return how an engine's process ended, in words for the log."""
    return f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
