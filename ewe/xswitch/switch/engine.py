"""The main process's end of one engine: a process that runs one script after another for one user.

An engine runs one exchange at a time. The scheduler assigns the exchange. The engine reads the answer as it comes
and passes it to the exchange. Then the engine returns to the scheduler, idle. `exchange` is the running one, None
if the engine is idle. `state` says whether the engine's output is read:

    READING <--pause_output / resume_output--> PAUSED     the web server is slower than the engine
       |                                          |
       +-- stop_reading ---> OVER                 |       the output has ended, its end mark has not come
       |                      |                   |
       +----- close ----------+----> CLOSED <-----+       its process is killed

Time. `deadline` is the moment when the scheduler calls expire(). A script has `time-limit` seconds, and only the
time that it uses itself counts: while the client sends the body, or takes the response slowly, the time limit is
suspended, and STALLED_SECONDS applies instead. `awaits_body` and `state` tell which of the three cases applies: see
expiry_cause().

Short responses. An engine writes the end of a response some microseconds after the output. The web server sends
chunks if it gets the output alone, because it does not know the length. X-Switch therefore holds the first output
for HOLD_SECONDS, unless it fills the buffer of one read: pass_output().

Failures. When an engine breaks the protocol or ends, close() does three things in this order: close the sockets,
make suexecme kill the process (Context.kill_engine) and make the scheduler forget the engine. The exchange learns
of it last, because it may ask the scheduler for another engine.

`Engine` is the common base of all engines. Read next: protocol_engine.py, an engine that speaks the engine protocol
of the X-Switch paper (section 3.2.1). fastcgi_engine.py and shared_engine.py contain the two engines that speak
FastCGI.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from enum import Enum

from ewe.xswitch.switch.context import STALLED_SECONDS, Context
from ewe.xswitch.switch.error_lines import ErrorLines
from ewe.xswitch.switch.exchange import Exchange
from ewe.xswitch.switch.exchange_table import COMPLETE
from ewe.xswitch.switch.loop import RECEIVE_BYTES
from ewe.xswitch.switch.outbox import Outbox
from ewe.xswitch.switch.scheduler import Key

HOLD_SECONDS = 0.001  # that the first output waits for the end of the response
MAX_DRAINED_PIECES = 64  # pieces of output that are read after the end mark; a socket buffers far less
CLEANUP_SECONDS = 2.0  # that an engine may use the CPU after a request, to clean up
MAX_IDLE_CPU_SHARE = 0.1  # of a processor; an idle engine that uses more is ended
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")  # of CPU time
UTIME, STIME = 11, 12  # positions in /proc/PID/stat after the name of the process: proc(5)


class EngineState(Enum):
    """Whether the engine's output is read: see the picture at the top of this file."""

    READING = "the output is read as it comes"
    PAUSED = "the output waits, since the web server is slower"
    OVER = "the output is not read any more, and the engine is about to end"
    CLOSED = "the sockets are closed"


# Plain names: Python 3.11 takes 0.1 us to look up a member in its class.
READING, PAUSED, OVER, CLOSED = EngineState


class Engine:
    """One engine. pid: 0 until suexecme has started its process. key: its user and language."""

    held_output = b""  # the first output of the running request: see "Short responses" above

    def __init__(self, context: Context, key: Key, data: socket.socket, error_pipe: int) -> None:
        """data: the main process's end of the data socket.

        error_pipe: the descriptor of the pipe from the engine's standard error, -1 for none.
        """
        self.context = context
        self.loop = context.loop
        self.key = key
        self.user, self.language = key
        self.data = data
        self.errors = ErrorLines(self.loop, error_pipe, self.log_error_line)
        self.outbox = Outbox(self.loop, data, self.pause_body, self.resume_body)
        self.pid = 0
        self.state = READING
        self.exchange: Exchange | None = None
        self.started_at = self.used_at = time.monotonic()  # used_at: when a request last began or ended
        self.deadline = float("inf")  # the monotonic time at which expire() is called
        self.time_limit_s = context.settings.time_limit  # of the running script
        self.seconds_left = 0.0  # until the deadline, kept while the output is paused
        # Whether the deadline applies to the client, which has yet to send more of the body.
        self.awaits_body = False
        self.ended_requests = 0
        self.name = ""  # in the trace; "" without a trace
        self.end_cause = ""  # why it is closed: a name of scheduler.ENDINGS, or a text
        self.exit_status: int | None = None  # of its process, once the process has ended
        self.script = ""  # the script that ran last
        # Of check_spinning(): the time of its last call, and the CPU seconds that the process had used then
        self.last_cpu_reading = (0.0, 0.0)
        data.setblocking(False)
        self.loop.add_reader(data, self.on_data)

    # A request

    def assign(self, exchange: Exchange) -> None:
        """Run an exchange."""
        self.exchange = exchange
        self.held_output = b""
        self.errors.begin(exchange.script)
        self.script = exchange.script
        self.used_at = time.monotonic()
        self.time_limit_s = exchange.limits.time_limit or self.context.settings.time_limit
        self.awaits_body = exchange.body_bytes_left > 0
        self.deadline = self.used_at + self.allowed_seconds()
        exchange.assigned(self)
        self.send_request(exchange)

    def send_request(self, exchange: Exchange) -> None:
        """Write the head of a request, and the part of its body that has arrived."""
        raise NotImplementedError

    def give_back(self, exchange: Exchange, body_pieces: Sequence[bytes] = ()) -> None:
        """Close the engine, and make another one run the exchange: this one had ended before the request came.

        body_pieces: the part of the body that was taken for this engine.
        """
        self.take_exchange()
        self.close()
        exchange.engine_was_dead(body_pieces)

    def send_body(self, data: bytes) -> None:
        """Write more of the body; b"" is its end."""
        raise NotImplementedError

    def pause_body(self) -> None:
        """Stop reading the body: the engine's socket is full. This wait counts towards the script's time limit."""
        if self.exchange is not None:
            self.exchange.pause_body()
            self.restart_deadline(awaits_body=False)

    def resume_body(self) -> None:
        """Go on reading the body: the engine has taken the waiting bytes."""
        if self.exchange is not None:
            self.exchange.resume_body()
            if self.exchange.body_bytes_left:  # else the script's time goes on
                self.restart_deadline(awaits_body=True)

    def body_received(self, bytes_left: int) -> None:
        """Note that body bytes arrived. `bytes_left` are still to come; the time limit is suspended until then."""
        self.restart_deadline(awaits_body=bytes_left > 0)

    def restart_deadline(self, awaits_body: bool) -> None:
        """Start a new deadline: the client's for more of the body, or the script's time limit.

        While the output is paused, it is kept in seconds_left: resume_output() starts it.
        """
        self.awaits_body = awaits_body
        if self.state is PAUSED:
            self.seconds_left = self.allowed_seconds()
        else:
            self.deadline = time.monotonic() + self.allowed_seconds()

    def allowed_seconds(self) -> float:
        """Return the client's time for more of the body, or the script's time limit if the body has arrived."""
        return STALLED_SECONDS if self.awaits_body else self.time_limit_s

    def expiry_cause(self) -> str:
        """Return, for the log, which deadline has passed."""
        if self.state is PAUSED:
            return f"the web server did not take the waiting response within {STALLED_SECONDS:g} s"
        if self.awaits_body:
            return f"the web server sent no more of the body for {STALLED_SECONDS:g} s"
        return f"ended after {self.time_limit_s:g} s (time-limit)"

    # The response

    def on_data(self) -> None:
        """Read output, or the end of the output."""
        raise NotImplementedError

    def receive(self) -> bytes | None:
        """Return the output that has arrived, b"" at its end, None if none has arrived."""
        try:
            return self.data.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def pass_output(self, piece: bytes) -> None:
        """Pass output to the exchange; hold the first output for HOLD_SECONDS, since its end may follow at once."""
        exchange = self.exchange
        assert exchange is not None
        if exchange.output_bytes == 0 and len(self.held_output) + len(piece) < RECEIVE_BYTES:
            if not self.held_output:
                self.loop.call_later(HOLD_SECONDS, self.release_output_of, exchange)
            self.held_output += piece
            return
        held, self.held_output = self.held_output, b""
        exchange.output_arrived(held + piece)

    def release_output_of(self, exchange: Exchange) -> None:
        """Pass on the held output, if it still belongs to this exchange."""
        if self.exchange is exchange:
            self.release_output()

    def release_output(self) -> None:
        """Pass the held output, if there is any, to the exchange."""
        held, self.held_output = self.held_output, b""
        if held and self.exchange is not None:
            self.exchange.output_arrived(held)

    def pause_output(self) -> None:
        """Stop reading: the web server is slower. The deadline is suspended; STALLED_SECONDS applies."""
        if self.state is READING:
            self.state = PAUSED
            self.loop.remove_reader(self.data)
            now = time.monotonic()
            self.seconds_left = self.deadline - now
            self.deadline = now + STALLED_SECONDS

    def resume_output(self) -> None:
        """Read the output again: the web server has taken the waiting response. The script's time limit goes on."""
        if self.state is PAUSED:
            self.state = READING
            self.loop.add_reader(self.data, self.on_data)
            self.deadline = time.monotonic() + self.seconds_left

    def stop_reading(self) -> None:
        """Stop reading for good; the deadline stays."""
        if self.state is not CLOSED:
            self.resume_output()  # restores the script's deadline, if the output was paused
            self.state = OVER
            self.loop.remove_reader(self.data)

    def response_complete(self, output: bytes, status: int, must_close: bool = False) -> None:
        """End the request: pass the rest of the response to the exchange. The engine becomes idle, or is closed.

        status: the script's exit status. must_close: the engine cannot run another request.
        """
        output, self.held_output = self.held_output + output, b""
        exchange = self.take_exchange()
        if self.outbox.pending or (exchange is not None and exchange.body_state is not COMPLETE):
            must_close = True  # the engine would read the rest of the body as the next request
        if self.exit_status is not None:
            must_close = True  # its process has ended, and leftover processes may keep the sockets open
        self.ended_requests += 1
        self.used_at = time.monotonic()
        if self.state is PAUSED:
            self.resume_output()  # an idle engine is read, so that its end is noticed
        self.deadline = float("inf")
        try:
            if exchange is not None:
                exchange.complete(output, status)
        finally:
            if must_close:
                self.close()
            else:
                self.become_idle()

    def take_exchange(self) -> Exchange | None:
        """Return the running exchange, and forget it."""
        exchange, self.exchange = self.exchange, None
        return exchange

    def become_idle(self) -> None:
        """Give the engine back to the scheduler, which may assign another request."""
        self.context.scheduler.release(self)

    def is_busy(self) -> bool:
        """Return whether a request runs."""
        return self.running_count() > 0

    def running_count(self) -> int:
        """Return how many requests run."""
        return int(self.exchange is not None)

    def has_room(self) -> bool:
        """Return whether another request may be assigned beside the running ones."""
        return False

    # The end of an engine

    def client_left(self) -> None:
        """Let the script run for `abandoned` more seconds at most: its response is no longer wanted."""
        self.deadline = min(self.deadline, time.monotonic() + self.context.settings.abandoned)

    def start_refused(self, status: int, cause: str) -> None:
        """Close the engine: suexecme does not start its process."""
        exchange = self.take_exchange()
        self.end_cause = cause
        self.close()
        if exchange is not None:
            exchange.fail(status, cause)

    def expire(self) -> None:
        """Close the engine: the deadline has passed."""
        exchange, cause = self.take_exchange(), self.expiry_cause()
        self.end_cause = f"killed: {cause}"
        self.close()
        if exchange is not None:
            exchange.timed_out(cause)

    def fail(self, cause: str) -> None:
        """Close the engine: it breaks the protocol, or has ended. Its exchange fails, or gets another engine.

        cause: for the log; "" for an idle engine, which ends without a message.
        """
        self.release_output()  # a response that has begun must not be repeated
        exchange = self.take_exchange()
        self.end_cause = cause
        self.close()
        if exchange is not None:
            exchange.engine_failed(cause)

    def discard(self, end_cause: str) -> None:
        """Close an engine whose script still runs although its exchange has ended: the exchange is not told.

        end_cause: why the engine is closed.
        """
        self.exchange = None
        self.end_cause = end_cause
        self.close()

    def close(self) -> None:
        """Close all descriptors, and make suexecme kill the process."""
        if self.state is CLOSED:
            return
        self.state = CLOSED
        self.errors.close()
        self.loop.remove_reader(self.data)
        self.close_sockets()
        self.announce_close()

    def announce_close(self) -> None:
        """Tell suexecme and the scheduler that the engine is closed."""
        if self.pid:  # if suexecme has not answered yet, EngineStarter kills the process when the pid comes
            self.context.kill_engine(self.pid)
        if self.context.trace is not None:
            self.context.trace.engine_ended(self)
        self.context.scheduler.engine_lost(self)

    def close_sockets(self) -> None:
        """Close the sockets to the engine. A subclass with more sockets extends this."""
        self.outbox.close()
        self.data.close()

    def process_ended(self, status: int) -> None:
        """Note the exit status of the engine's process."""
        self.exit_status = status

    # Standard error, memory and CPU time

    def log_error_line(self, line: str) -> None:
        """Log a line of standard error."""
        self.context.log_error_line(self.user, line)

    def check_spinning(self) -> bool:
        """Return whether an idle engine has used the CPU since the last call, and log it then.

        Called once a second. A script can write its engine's end mark itself and continue to run: no time limit
        applies to it then. An engine that has run no script may still be starting (priming, restart).
        """
        now = time.monotonic()
        last_at, last_cpu_s = self.last_cpu_reading
        cpu_s = cpu_seconds(self.pid)
        self.last_cpu_reading = now, cpu_s
        allowed_s = (now - last_at) * MAX_IDLE_CPU_SHARE
        # Just after a request, the engine may still clean up.
        has_cleaned_up = last_at >= self.used_at + CLEANUP_SECONDS
        if not self.ended_requests or not has_cleaned_up or cpu_s - last_cpu_s < allowed_s:
            return False
        self.context.log_for_user(
            self.user, f"{self.script}: it goes on after the end of its answer; its engine is ended"
        )
        return True

    def memory_bytes(self) -> int:
        """Return the bytes that the process has in memory, shared ones included; 0 if the system does not say."""
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as file:
                _size, resident, *_ = file.read().split()  # in pages: proc(5)
                return int(resident) * PAGE_BYTES
        except (OSError, ValueError):
            return 0


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used, 0 if the system does not say."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the process, in parentheses, may contain anything: read the fields after it.
            _, _, after_name = file.read().rpartition(b")")
            fields = after_name.split()
        return (int(fields[UTIME]) + int(fields[STIME])) / TICKS_PER_SECOND
    except (OSError, ValueError, IndexError):
        return 0.0


def exit_text(status: int) -> str:
    """Return how an engine's process ended, in words for the log. status: negative: the signal that ended it."""
    return f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
