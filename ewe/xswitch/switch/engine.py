"""The main process's end of one engine: a process that runs one script after another for one user.

An engine runs one exchange at a time. The scheduler assigns it; the engine's answer is read as it comes and handed
to the exchange; then the scheduler has the engine back, idle. `exchange` says what runs now, None if the engine is
idle. `state` says whether the engine's output is read:

    READING <--pause_output / resume_output--> PAUSED     the web server is slower than the engine
       |                                          |
       +-- stop_reading ---> OVER                 |       the output has ended, its end mark has not come
       |                      |                   |
       +----- close ----------+----> CLOSED <-----+       its process is killed

Time. `deadline` is when the scheduler calls expire(). A script has `time-limit` seconds, and only the time that it
uses itself counts: while the client sends the body, or takes the response slowly, the time limit is suspended, and
STALLED_SECONDS holds in its place. `awaits_body` and `state` tell which of the three holds: see expiry_cause().

Failures. When an engine breaks the protocol or ends, close() does three things in this order: close the sockets,
have suexecme kill the process (Context.kill_engine) and have the scheduler forget the engine. The exchange is told
last, since it may ask the scheduler for another engine.

`Engine` is what all engines have in common. Read next: protocol_engine.py, an engine that speaks the engine
protocol of the X-Switch paper (section 3.2.1). fastcgi_engine.py and shared_engine.py hold the two that speak
FastCGI.
"""

from __future__ import annotations

import os
import socket
import time
from enum import Enum

from ewe.xswitch.switch.context import STALLED_SECONDS, Context
from ewe.xswitch.switch.error_lines import ErrorLines
from ewe.xswitch.switch.exchange import Exchange
from ewe.xswitch.switch.loop import RECEIVE_BYTES
from ewe.xswitch.switch.outbox import Outbox
from ewe.xswitch.switch.scheduler import Key

MAX_DRAIN = 64  # pieces of output that may be there when the end mark comes; a socket holds far less
SETTLED_SECONDS = 2.0  # that an engine may take to tidy up after a request
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")  # of CPU time


class EngineState(Enum):
    """Whether the engine's output is read: see above."""

    READING = "the output is read as it comes"
    PAUSED = "the output waits, since the web server is slower"
    OVER = "the output is not read any more, and the engine is about to end"
    CLOSED = "the sockets are closed"


# As plain names, since Python 3.11 takes 0.1 us to look up a member in its class.
READING, PAUSED, OVER, CLOSED = EngineState


class Engine:
    """One engine. pid: 0 until suexecme has started it. key: its user and language."""

    def __init__(self, context: Context, key: Key, data: socket.socket, errors: int) -> None:
        """data: our end of its data socket. errors: the pipe from its standard error, -1 for none."""
        self.context = context
        self.loop = context.loop
        self.key = key
        self.data = data
        self.errors = ErrorLines(self.loop, errors, self.say_error)
        self.outbox = Outbox(self.loop, data, self.pause_body, self.resume_body)
        self.pid = 0
        self.state = READING
        self.exchange: Exchange | None = None
        self.since = self.used = time.monotonic()
        self.deadline = float("inf")
        self.left = 0.0  # seconds until the deadline, kept while the output is paused
        # Whether the deadline is for the client, which has yet to send more of the body.
        self.awaits_body = False
        self.served = 0  # requests
        self.exit_status: int | None = None  # of its process, once that has ended
        self.script = ""  # the one that ran last
        self.cpu_seen = (0.0, 0.0)  # by is_spinning(): when, and how many seconds of CPU time had been used
        data.setblocking(False)
        self.loop.add_reader(data, self.on_data)

    # A request

    def assign(self, exchange: Exchange) -> None:
        """Run an exchange."""
        self.exchange = exchange
        self.errors.begin(exchange.script)
        self.script = exchange.script
        self.used = time.monotonic()
        self.awaits_body = exchange.body_left > 0
        self.deadline = self.used + self.seconds_allowed()
        exchange.assigned(self)
        self.send_request(exchange)

    def send_request(self, exchange: Exchange) -> None:
        """Write the head of a request, and the part of its body that has arrived."""
        raise NotImplementedError

    def send_body(self, data: bytes) -> None:
        """Write more of the body; b"" is its end."""
        raise NotImplementedError

    def pause_body(self) -> None:
        """Stop reading the body: the engine's socket is full. This wait counts towards the script's time limit."""
        if self.exchange is not None:
            self.exchange.pause_body()
            self.restart_deadline(awaits_body=False)

    def resume_body(self) -> None:
        """Read on: the engine has taken what was waiting."""
        if self.exchange is not None:
            self.exchange.resume_body()
            if self.exchange.body_left:
                self.restart_deadline(awaits_body=True)

    def body_received(self, left: int) -> None:
        """Note that body bytes arrived; `left` are still to come, and the time limit is suspended until then."""
        self.restart_deadline(awaits_body=left > 0)

    def restart_deadline(self, awaits_body: bool) -> None:
        """Give the client its time for more of the body from now on, or give the script its time."""
        self.awaits_body = awaits_body
        if self.state is PAUSED:
            self.left = self.seconds_allowed()
        else:
            self.deadline = time.monotonic() + self.seconds_allowed()

    def seconds_allowed(self) -> float:
        """Return the time that the client has for more of the body, or else the script's."""
        return STALLED_SECONDS if self.awaits_body else self.context.settings.time_limit

    def expiry_cause(self) -> str:
        """Return whose time is over once the deadline has passed, for the log."""
        if self.state is PAUSED:
            return f"the web server did not take the waiting response within {STALLED_SECONDS:g} s"
        if self.awaits_body:
            return f"the web server sent no more of the body for {STALLED_SECONDS:g} s"
        return f"ended after {self.context.settings.time_limit:g} s (time-limit)"

    # The response

    def on_data(self) -> None:
        """Read output, or its end."""
        raise NotImplementedError

    def receive(self) -> bytes | None:
        """Return output that has come, b"" at its end, None if nothing has come."""
        try:
            return self.data.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def pause_output(self) -> None:
        """Read no more for now: the web server is slower. That does not count towards the script's time limit."""
        if self.state is READING:
            self.state = PAUSED
            self.loop.remove_reader(self.data)
            now = time.monotonic()
            self.left, self.deadline = self.deadline - now, now + STALLED_SECONDS

    def resume_output(self) -> None:
        """Read on."""
        if self.state is PAUSED:
            self.state = READING
            self.loop.add_reader(self.data, self.on_data)
            self.deadline = time.monotonic() + self.left

    def stop_reading(self) -> None:
        """Read no more at all; the deadline stays."""
        if self.state is not CLOSED:
            self.resume_output()
            self.state = OVER
            self.loop.remove_reader(self.data)

    def response_complete(self, output: bytes, status: int, last: bool = False) -> None:
        """Hand the rest of the response to the exchange. last: the engine cannot run another request."""
        exchange = self.take_exchange()
        if self.outbox.pending or (exchange is not None and not exchange.body_is_complete()):
            last = True  # the engine would take the rest of the body for the next request
        self.served += 1
        self.used = time.monotonic()
        self.resume_output()
        self.deadline = float("inf")
        try:
            if exchange is not None:
                exchange.complete(output, status)
        finally:
            if last:
                self.close()
            else:
                self.become_idle()

    def take_exchange(self) -> Exchange | None:
        """Return the exchange that runs, and forget it."""
        exchange, self.exchange = self.exchange, None
        return exchange

    def become_idle(self) -> None:
        """Take another request, now or later."""
        self.context.scheduler.release(self)

    def is_busy(self) -> bool:
        """Return whether a request runs."""
        return self.exchange is not None

    def has_room(self) -> bool:
        """Return whether a request may be assigned beside those that run."""
        return False

    # The end of an engine

    def client_left(self) -> None:
        """Let the script run on for `abandoned` seconds at most: its response is no longer wanted."""
        self.deadline = min(self.deadline, time.monotonic() + self.context.settings.abandoned)

    def start_refused(self, status: int, cause: str) -> None:
        """Close: suexecme does not start the engine's process."""
        exchange = self.take_exchange()
        self.close()
        if exchange is not None:
            exchange.fail(status, cause)

    def expire(self) -> None:
        """Close: the deadline has passed."""
        exchange, cause = self.take_exchange(), self.expiry_cause()
        self.close()
        if exchange is not None:
            exchange.timed_out(cause)

    def retire(self) -> None:
        """Close an idle engine. suexecme kills its process at once."""
        self.close()

    def fail(self, cause: str) -> None:
        """Close: the engine breaks the protocol, or has ended."""
        exchange = self.take_exchange()
        self.close()
        if exchange is not None:
            exchange.engine_failed(cause)

    def discard(self) -> None:
        """Close an engine whose exchange has already had its response."""
        self.take_exchange()
        self.close()

    def close(self) -> None:
        """Close all descriptors, and have suexecme kill the process."""
        if self.state is CLOSED:
            return
        self.state = CLOSED
        self.errors.close()
        self.loop.remove_reader(self.data)
        self.close_sockets()
        self.announce_close()

    def announce_close(self) -> None:
        """Tell suexecme and the scheduler that the engine is closed."""
        if self.pid:
            self.context.kill_engine(self.pid)
        self.context.scheduler.lost(self)

    def close_sockets(self) -> None:
        self.outbox.close()
        self.data.close()

    def process_ended(self, status: int) -> None:
        """Note the exit status of the engine's process."""
        self.exit_status = status

    # Standard error, memory and CPU time

    def say_error(self, line: str) -> None:
        """Log a line of standard error."""
        self.context.say_error(self.key[0], line)

    def is_spinning(self) -> bool:
        """Return whether an idle engine has used the CPU since the last call. Called once a second.

        A script can write its engine's end mark itself and run on: no time limit holds for it then.
        """
        now = time.monotonic()
        then, spent = self.cpu_seen
        self.cpu_seen = now, cpu_seconds(self.pid)
        if then < self.used + SETTLED_SECONDS or self.cpu_seen[1] - spent < (now - then) / 10:
            return False
        self.context.say(
            self.key[0], f"{self.script}: it goes on after the end of its answer; its engine is ended"
        )
        return True

    def memory_bytes(self) -> int:
        """Return the bytes that the process has in memory, shared ones included; 0 if the system does not tell."""
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as file:
                return int(file.read().split()[1]) * PAGE_BYTES
        except (OSError, ValueError):
            return 0


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, 0 if the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
    except (OSError, ValueError, IndexError):
        return 0.0


def how_it_ended(status: int) -> str:
    """Return how an engine's process ended, in words for the log."""
    return f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
