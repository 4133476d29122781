"""A scene: clients that follow a schedule, and waits for events. The central module of the grader.

A *gate* makes a worker of the server wait. Only the client can open it:

    a half-sent request      b"GET /1.txt HTTP/1.1\\r\\nHost: x\\r\\n", no empty line: the reading worker waits
    a client that does not read    a response larger than all buffers: the sending worker waits
    an idle connection       open after a response, or open and silent

Every server in every language has these gates; it needs no special handler, sleep or library. A schedule is a
Python function that makes clients, closes and opens their gates, and waits:

    first = scene.client().send_half("/1.txt")     a worker is occupied
    second = scene.client().ask("/2.txt")
    scene.until(second.answered)  ─▶ True: the second client got a response while the first one was stalled
                                  ─▶ False: the server is quiescent, and will not answer unless a client acts
    first.send_rest()

`until()` is the only wait. It ends when the condition is true, when the server has ended, or when the server is
quiescent (processes.py): all of its threads sleep and every byte has arrived, so a longer wait changes nothing.
Both outcomes are facts. A busy machine makes the wait longer and never changes the outcome.

The server must be quiescent for QUIESCENT_S before the next step of a schedule, and for SURE_S before a verdict,
because a server that polls every half second also sleeps in between. WAIT_LIMIT_S limits all waits; only a machine
that stands still reaches it.

A server that never becomes quiescent is given up after STALL_TIMEOUT_S without a moved byte, if it has had its
turns on a processor. A server that is busy while it has nothing to do (check idle-cpu) is called restless: it could
act at any time, so such an end proves nothing. The scene notes it (`unproved`), and the check is "not judged". A
pause between two steps takes RESTLESS_S for a restless server: otherwise a schedule of sixty steps would take
minutes, and the server's own time limits would end the connections that wait within it.

The scene records each step in `steps`. The report's evidence and timeline and the replay file come from this
record.

Read next: check.py, then progress.py for schedules.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import socket
import struct
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ewe_classroom.grader import processes
from ewe_classroom.grader.responses import Response, ResponseSplitter
from ewe_classroom.grader.sandbox import MAX_FILE_BYTES
from ewe_classroom.grader.subject import LARGE_FILE_BYTES, NotStarted, Subject, numbered_path

QUIESCENT_S = 0.03
SURE_S = 0.75
CONNECT_S = 8.0  # the kernel sends a SYN again after 1, 3 and 7 seconds
STALL_TIMEOUT_S = 3.0
ENOUGH_CPU_S, ENOUGH_TURNS = 0.2, 10  # of all threads in STALL_TIMEOUT_S: enough to make progress
EXCESS_CHECK_EVERY_S = 0.25  # between two looks at the limits of memory and tasks
RESTLESS_S = 0.2
WAIT_LIMIT_S = 90.0
POLL_EVERY_S = 0.005
# If a server ends a stalled connection sooner, this is a fault and not a time limit
MIN_SERVER_TIMEOUT_S = 5.0
SERVER_STEPS = {"answered", "closed-by-server", "reset-by-server"}  # steps by the server
NO_LIMIT = 1 << 30
STAYS_OPEN = "stays open"  # a fault: the server does not close connections
MAX_SHOWN_BYTES = 300  # bytes of received data that a step records as text
MAX_STEPS = 50_000  # of a record; the longest one of a right server has some thousands
# The most bytes that all clients of a scene receive together, beside two large files for each worker. A right
# server sends up to 200 MB. The grader keeps the bodies, and the kernel would kill one that fills the memory.
MAX_SCENE_BYTES = 512 << 20
# The receive buffers of a client that does not read, and of one that has begun to read.
SMALL_BUFFER_BYTES, LARGE_BUFFER_BYTES = 4096, 1 << 20
RECEIVE_BYTES = 1 << 18  # the most bytes of one recv()
PEEK_BYTES = 64  # enough for a status line

MEMORY_FAULT = (
    "the program uses memory that does not belong to it: it writes past the end of a buffer, or a pointer is "
    "invalid; build with -fsanitize=address to see the place"
)
SIGNAL_MEANINGS: dict[int, str] = {  # explanations of the signals by which a faulty program ends
    signal.SIGPIPE: "a write to a connection that its client has reset; ignore SIGPIPE, and check write()",
    signal.SIGSEGV: MEMORY_FAULT,
    signal.SIGBUS: MEMORY_FAULT,
    signal.SIGABRT: MEMORY_FAULT,
    signal.SIGXFSZ: f"a file has more than {MAX_FILE_BYTES >> 20} MB; write less, also to standard output",
}

OUT_OF_DESCRIPTORS = ("Too many open files", "too many open files", "EMFILE")  # in the words of C, Go, Node

Condition = Callable[[], bool]


class FailedExpectation(Exception):
    """The server does not behave as the check expects. sent, did, should, because: texts for the student.

    name: of a fault that several checks may meet (Scene.fail_once()); else "".
    """

    def __init__(self, sent: str, did: str, should: str, because: str = "", name: str = "") -> None:
        super().__init__(did)
        self.name = name
        self.sent = sent
        self.did = did
        self.should = should
        self.because = because


class NotJudged(Exception):
    """The check cannot be judged, because an earlier check has found a fault. The message is the reason."""


@dataclass
class Findings:
    """What the checks of a run have found, for the checks that follow.

    faults: the name of a fault, or of a check that has failed -> the check that loses its points for it.
    concurrency: how many clients the server serves at the same time, if `progress` has found another number than
    the lab asks for; NO_LIMIT if it has found no limit. passed_without_need: the checks that the server passes, but
    that need a failed one. self_explained: the checks that have failed by a fact which explains itself, such as the
    report of a race detector; no other failure explains them. sources_digest: of the program's source files before
    its first start (SourceFiles.digest()); "" without any.
    """

    faults: dict[str, str] = field(default_factory=dict)
    passed_without_need: set[str] = field(default_factory=set)
    self_explained: set[str] = field(default_factory=set)
    sources_digest: str = ""
    concurrency: int | None = None


class MissingProgram(Exception):
    """The machine lacks a program that a check needs. The message names it; the check's points do not count."""


class OutOfTime(Exception):
    """The run has reached its limit (`ewe-grade --limit`) within a scene."""


MAX_LOOK_PAUSE_S = 0.05  # between two looks at the server's threads


class SceneClient:
    """One connection of the scene: a lane of its timeline."""

    def __init__(self, scene: Scene, name: str, *, reads: bool, path: str = "/hello.txt") -> None:
        self.scene = scene
        self.name = name
        self.path = path
        self.reads = reads
        self.outbox = b""  # bytes that the kernel has not taken yet
        self.fin_pending = False  # FIN follows the outbox
        self.reader = ResponseSplitter()
        self.received_bytes = 0
        self.connected = False
        self.fin_received = False  # the server has closed its side (FIN)
        self.reset_or_refused = False
        self.closed = False  # this client has closed it
        self.sock = socket.socket()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not reads:  # a small receive buffer, so that the server's send() soon blocks
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
        self.sock.setblocking(False)
        self.note("connect", reads=reads)
        # The socket is non-blocking: EINPROGRESS means that handle() will see the outcome.
        error = self.sock.connect_ex(("127.0.0.1", scene.subject.port))
        if error not in (0, errno.EINPROGRESS):
            self.reset_or_refused = True
        self.connected = error == 0

    def note(self, do: str, **more: Any) -> None:
        self.scene.note(lane=self.name, do=do, **more)

    # Actions of a client

    def send(self, data: bytes, times: int = 1) -> SceneClient:
        """Send bytes `times` times.

        The scene sends the bytes that the kernel does not take now during its waits.
        """
        repeated = {"times": times} if times > 1 else {}
        self.note("send", bytes=data.decode("latin-1"), **repeated)
        self.outbox += data * times
        self.flush()
        return self

    def ask(self, path: str = "", version: str = "1.1", **fields: str) -> SceneClient:
        """Send a request for a path. Keyword arguments are header fields: Connection="close"."""
        return self.send(self.request(path, version, **fields))

    def request(self, path: str = "", version: str = "1.1", **fields: str) -> bytes:
        """Return the bytes of a request, and note its path. fields: of the head."""
        self.path = path or self.path
        lines = [f"GET {self.path} HTTP/{version}", "Host: localhost"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def send_half(self, path: str = "", **fields: str) -> SceneClient:
        """Send a request without its last line: a gate, which send_rest() opens."""
        return self.send(self.request(path, **fields).removesuffix(b"\r\n"))

    def send_rest(self) -> SceneClient:
        return self.send(b"\r\n")

    def read_on(self) -> SceneClient:
        """Begin to read. This opens the gate of a client that does not read."""
        self.note("read")
        self.reads = True
        self.mark_reset_on_error(
            lambda: self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LARGE_BUFFER_BYTES)
        )
        return self

    def half_close(self) -> SceneClient:
        """Close the sending half (FIN), and go on reading."""
        self.note("half-close")
        self.fin_pending = True
        self.flush()
        return self

    def close(self) -> None:
        """Close the connection, if it is open."""
        if not self.closed:
            self.note("close")
            self.closed = True
            self.sock.close()

    def reset(self) -> None:
        """Close the connection with a reset, so that the server's next send or receive fails."""
        if not self.closed:
            self.note("reset")
            # A lingering close with a timeout of 0 sends RST in place of FIN (socket(7), SO_LINGER).
            self.mark_reset_on_error(
                lambda: self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            )
            self.closed = True
            self.sock.close()

    # State of a client

    @property
    def answers(self) -> list[Response]:
        """The complete responses so far."""
        return [response for response in self.reader.responses if response.whole]

    def answered(self) -> bool:
        return bool(self.answers)

    def has_got(self, text: bytes) -> bool:
        """Return whether these bytes have arrived in a body, also in one whose end has not."""
        bodies = (response.body for response in self.reader.responses)
        return any(text in bytes(body) for body in (*bodies, self.reader.body, self.reader.buffer))

    def over(self) -> bool:
        """Return whether the connection has ended by FIN or reset, or could not be opened."""
        return self.fin_received or self.reset_or_refused

    def answered_or_over(self) -> bool:
        return self.answered() or self.over()

    @property
    def port(self) -> int:
        """The client's own port, 0 if the socket is closed."""
        try:
            return int(self.sock.getsockname()[1])
        except OSError:
            return 0

    def peek(self) -> bytes:
        """Return the first bytes in the receive buffer without taking them, for a client that does not read."""
        try:
            return self.sock.recv(PEEK_BYTES, socket.MSG_PEEK)
        except OSError:
            return b""

    def unsent(self) -> int:
        """Return how many bytes this client still has to send, or the server's kernel has not acknowledged yet.

        Return 0 without a connection.
        """
        if self.closed or self.over() or not self.connected:
            return 0
        try:
            # TIOCOUTQ has the same number as SIOCOUTQ (tcp(7)); the kernel fills in an int.
            size = fcntl.ioctl(self.sock, termios.TIOCOUTQ, b"\0\0\0\0")
        except OSError:
            return 0
        return int.from_bytes(size, "little") + len(self.outbox)

    def outcome_text(self) -> str:
        """Describe in words what the client has got, as the end of a sentence of a verdict: "got no response"."""
        if self.reader.fault:
            return f"got {self.reader.fault}"
        for response in self.reader.responses:
            if response.fault:
                return f"got {response.fault}"
        if self.answers:
            what = f"got status {self.answers[-1].status}"
            return what + (" and the end of the connection" if self.over() else "")
        got = f" after {self.received_bytes} bytes" if self.received_bytes else " without a response"
        if self.reset_or_refused:
            return f"was reset{got}" if self.connected else "could not connect"
        if self.fin_received:
            return f"saw the connection closed{got}"
        if not self.connected:
            return "could not connect: the server's backlog is full"
        return (
            f"got only {self.received_bytes} bytes of a response"
            if self.received_bytes
            else "got no response"
        )

    # Called by the scene

    def mark_reset_on_error(self, action: Callable[[], object]) -> None:
        """Call a function of the socket; an error means that the server has reset the connection."""
        try:
            action()
        except OSError:  # after a regular end of the connection, an error says nothing new
            self.reset_or_refused = self.reset_or_refused or not self.fin_received

    def flush(self) -> bool:
        """Send bytes of the outbox, or FIN if it is empty and the client has finished; do not wait.

        Return whether this has changed something: bytes or FIN were sent, or the connection is broken.
        """
        if not self.connected or self.closed or self.reset_or_refused:
            return False
        if self.fin_pending and not self.outbox:  # FIN follows the last byte
            self.fin_pending = False
            self.mark_reset_on_error(lambda: self.sock.shutdown(socket.SHUT_WR))
            return True
        if not self.outbox:
            return False
        try:
            sent = self.sock.send(self.outbox)
        except BlockingIOError:
            return False
        except OSError:
            self.reset_or_refused = True
            self.outbox = b""
            return True
        self.outbox = self.outbox[sent:]
        return sent > 0

    def events(self) -> int:
        """Return the events of this connection that poll(2) has to watch; 0 if it has to watch none."""
        if self.closed or self.over():
            return 0
        # A connection attempt ends with POLLOUT, whether it succeeds or fails.
        events = select.POLLOUT if self.outbox or self.fin_pending or not self.connected else 0
        return events | (select.POLLIN if self.reads and self.connected else 0)

    def handle(self, happened: int) -> bool:
        """Handle the events that poll(2) reported; return whether bytes moved or the state changed.

        poll(2) also reports POLLERR and POLLHUP, which events() does not name.
        """
        if not self.connected:
            if self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.reset_or_refused = True
                self.note("refused")
                return True
            if not happened & select.POLLOUT:
                return False
            self.connected = True
            self.flush()
            return True
        moved = self.flush()
        if self.reads and happened & (select.POLLIN | select.POLLHUP | select.POLLERR):
            return self.receive() or moved
        if not self.reads and happened & select.POLLERR:
            self.reset_or_refused = True
            self.note("reset-by-server")
        return moved

    def receive(self) -> bool:
        """Receive bytes, the end or a reset; return whether any of them has come."""
        try:
            data = self.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            self.reset_or_refused = True
            self.reader.end()
            self.note("reset-by-server")
            return True
        if not data:
            self.fin_received = True
            self.reader.end()
            self.note("closed-by-server")
            # Send FIN as every client does. A server with a lingering close waits for it before it frees the
            # worker.
            self.mark_reset_on_error(lambda: self.sock.shutdown(socket.SHUT_WR))
            return True
        # The beginning of a response is enough for the record.
        if self.received_bytes == 0 or (data[:5] == b"HTTP/" and self.reader.between_responses()):
            self.note("got", bytes=data[:MAX_SHOWN_BYTES].decode("latin-1"))
        self.received_bytes += len(data)
        answers_before = len(self.answers)
        self.reader.feed(data)
        if fault := self.scene.flood_text(len(data)):
            self.reader.give_up(fault)
        if self.reader.too_much:  # the client reads no further, as if the connection had ended
            self.fin_received = True
            self.note("too-much", total=self.received_bytes)
        if len(self.answers) > answers_before:
            self.note("answered", status=self.answers[-1].status, total=self.received_bytes)
        return True


class ServerWatch:
    """Measures, during one wait (Scene.until()), for how long the server is quiescent, and no byte has moved.

    now: the time of the last look (time.monotonic()), or of the last byte. moved_at: that of the last byte.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.began = self.looked_at = time.monotonic()
        # The first look of each wait includes the limits of memory, tasks and files.
        self.excess_checked_at = 0.0
        self.restart()

    def restart(self) -> None:
        """Note that a byte has moved: the server is not quiescent."""
        self.now = self.moved_at = self.quiescent_from = time.monotonic()
        # Of the last look; None while a thread of the server runs (Scene.activity()).
        self.activity: tuple[object, ...] | None = None
        # The threads at the first look since the last byte, and at the last look.
        self.first_tasks: dict[int, processes.ThreadSample] = {}
        self.tasks: dict[int, processes.ThreadSample] = {}

    def is_due(self) -> bool:
        """Return whether the next look is due. It costs processor time: the longer the quiescence, the rarer."""
        now = time.monotonic()
        pause_s = POLL_EVERY_S + (now - self.quiescent_from) / 4
        return now - self.looked_at >= min(pause_s, MAX_LOOK_PAUSE_S)

    def look(self) -> dict[int, processes.ThreadSample]:
        """Look at the server; return its threads."""
        self.now = self.looked_at = time.monotonic()
        self.tasks = self.scene.subject.tasks()
        self.first_tasks = self.first_tasks or self.tasks
        activity = self.scene.activity(self.tasks)
        if activity is None or activity != self.activity:
            self.activity, self.quiescent_from = activity, self.now
        return self.tasks

    def quiescent_s(self) -> float:
        """Return for how long the server was quiescent at the last look, in seconds."""
        return self.now - self.quiescent_from

    def is_stalled(self, timeout_s: float) -> bool:
        """Return whether no byte has moved for `timeout_s`, although the server had enough processor time for it.

        ENOUGH_CPU_S is for STALL_TIMEOUT_S.
        """
        first, last = self.first_tasks.values(), self.tasks.values()
        ran_s = sum(task.ran_s for task in last) - sum(task.ran_s for task in first)
        turns = sum(task.turns for task in last) - sum(task.turns for task in first)
        had_enough = ran_s > ENOUGH_CPU_S * timeout_s / STALL_TIMEOUT_S or turns > ENOUGH_TURNS
        return self.now - self.moved_at > timeout_s and had_enough


class Scene:
    """The clients of one check, and the waits for events.

    subject: the running server. options: the options of the check, from the scheme of the lab (scheme.py).
    """

    def __init__(self, subject: Subject, options: dict[str, Any] | None = None) -> None:
        self.subject = subject
        self.site = subject.site
        self.workers = subject.workers
        self.options = options or {}
        self.clients: list[SceneClient] = []
        # The record of the scene, for the evidence and the timeline of the report and for a replay file (note()).
        self.steps: list[dict[str, Any]] = []
        self.received_bytes = 0  # by all clients
        self.began = time.monotonic()
        # Facts that the scene has proven: the evidence of a check that passes (confirm()).
        self.confirmations: list[str] = []
        # Waits whose end proves nothing, because the server could still act at any time (until()).
        self.unproved: list[str] = []
        # The timeline of a failure, if the check has another one than that of the clients (Verdict.schedule).
        self.schedule = ""
        # For how long, in seconds, the server's threads and the grader waited for a processor (grading.py).
        self.queued_s = 0.0
        # Grading sets the attributes below, before the check begins (grading.py).
        self.deadline = float("inf")  # the end of the run (time.monotonic())
        self.check = ""  # the name of the check that plays the scene
        self.never_sleeps = False  # the check idle-cpu has found that the server is restless (module text)
        self.findings = Findings()  # the faults that earlier checks have found

    def note(self, **what: Any) -> None:
        """Add a step to the record, with the time in seconds since the scene began; none after MAX_STEPS."""
        if len(self.steps) < MAX_STEPS:
            self.steps.append({"t": round(time.monotonic() - self.began, 4), **what})

    def flood_text(self, more_bytes: int) -> str:
        """Count bytes that a client has received; describe the fault if all clients have too many, else ""."""
        self.received_bytes += more_bytes
        max_bytes = MAX_SCENE_BYTES + 2 * self.workers * LARGE_FILE_BYTES
        return (
            f"more than {max_bytes >> 20} MB on all connections together"
            if self.received_bytes > max_bytes
            else ""
        )

    def client(self, name: str = "", *, reads: bool = True) -> SceneClient:
        """Return a new client, and begin to connect it. reads=False: the client does not read before read_on()."""
        client = SceneClient(self, name or f"client {len(self.clients) + 1}", reads=reads)
        self.clients.append(client)
        return client

    def hold_half(self, path: str, name: str = "") -> SceneClient:
        """Return a stalled client: it sends half a request."""
        return self.client(name).send_half(path, Connection="close")

    def hold_reader(self, name: str = "") -> SceneClient:
        """Return a stalled client: it asks for a large file, and does not read its response."""
        return self.client(name, reads=False).ask("/large.bin", Connection="close")

    def hold_halves(self, count: int) -> list[SceneClient]:
        """Return stalled clients, "stalled 1" and so on: each sends half a request for its own file."""
        return [self.hold_half(numbered_path(number), f"stalled {number + 1}") for number in range(count)]

    def release(self, client: SceneClient) -> None:
        """Open the gate of a client."""
        if client.reads:
            client.send_rest()
        else:
            client.read_on()

    def may_have_timed_out(self) -> bool:
        """Whether the server may have ended a connection because of a time limit.

        This is so if half a request or an unread response had waited for MIN_SERVER_TIMEOUT_S on a connection
        that it ended.
        """
        half: dict[str, float] = {}  # lane -> time when its request began, while the request is not complete
        unread: dict[str, float] = {}  # lane -> time of its request, while it has not read
        silent: set[str] = set()  # lanes that do not read
        late: set[str] = set()  # lanes that read only after MIN_SERVER_TIMEOUT_S
        for step in self.steps:
            lane, do, at = step.get("lane", ""), step["do"], step["t"]
            if do == "connect" and not step.get("reads", True):
                silent.add(lane)
            elif do == "send" and (step["bytes"].endswith("\r\n\r\n") or step["bytes"] == "\r\n"):
                half.pop(lane, None)
                if lane in silent:
                    unread.setdefault(lane, at)
            elif do == "send":
                half.setdefault(lane, at)
            elif do == "read" and at - unread.pop(lane, at) >= MIN_SERVER_TIMEOUT_S:
                late.add(lane)
            elif do in SERVER_STEPS and (
                lane in late
                or at - half.get(lane, at) >= MIN_SERVER_TIMEOUT_S
                or at - unread.get(lane, at) >= MIN_SERVER_TIMEOUT_S
            ):
                return True
        return False

    def close(self) -> None:
        for client in self.clients:
            client.sock.close()

    # Waits

    def pump(self, wait_s: float) -> bool:
        """Send and receive for every client, at most `wait_s` long; return whether bytes or states changed.

        Raises OutOfTime.
        """
        if time.monotonic() > self.deadline:
            raise OutOfTime
        poller = select.poll()
        client_of_descriptor = {}
        for client in self.clients:
            events = client.events()
            if events:
                client_of_descriptor[client.sock.fileno()] = client
                poller.register(client.sock, events)
        moved = False
        for descriptor, happened in poller.poll(wait_s * 1000):  # in milliseconds
            moved = client_of_descriptor[descriptor].handle(happened) or moved
        return moved

    def activity(self, tasks: dict[int, processes.ThreadSample]) -> tuple[object, ...] | None:
        """Return a fingerprint of the activity of server and clients; None while a thread of the server runs.

        If the next look gives the same fingerprint, nothing has happened since this one: no thread has had a turn
        on a processor (ThreadSample.turns), and the server's kernel has received no byte of a client: each client
        has as many unsent() bytes as before.
        """
        if not all(task.asleep for task in tasks.values()):
            return None
        turns = tuple((tid, task.turns) for tid, task in sorted(tasks.items()))
        return (turns, tuple(client.unsent() for client in self.clients))

    def until(
        self,
        condition: Condition,
        what: str = "",
        *,
        sure: bool = True,
        quiescent_s: float = 0.0,
        calm_s: float = 0.0,
    ) -> bool:
        """Wait until a condition is true; return False once the server is quiescent or has ended (see module text).

        what: the condition in words, for the record. sure: the time of quiescence is SURE_S, before a verdict, and
        not QUIESCENT_S. quiescent_s: the time of quiescence in place of both, for steps at which a correct server
        may pause. calm_s: the former name of quiescent_s, for checks outside of ewe.

        Raises OutOfTime, FailedExpectation.
        """
        window_s = quiescent_s or calm_s or (SURE_S if sure else QUIESCENT_S)
        stall_timeout_s = RESTLESS_S if self.never_sleeps and not sure else STALL_TIMEOUT_S
        watch = ServerWatch(self)
        while not condition():
            if watch.now - watch.began > WAIT_LIMIT_S:
                break
            if self.pump(POLL_EVERY_S):
                watch.restart()
                continue
            if not watch.is_due():
                continue
            tasks = watch.look()
            has_ended = all(task.state in processes.ENDED_STATES for task in tasks.values())
            if has_ended and not self.pump(MAX_LOOK_PAUSE_S):  # its last bytes may still be under way
                break
            if watch.quiescent_s() >= (max(window_s, CONNECT_S) if self.connecting() else window_s):
                break
            # The end for a server that is never quiescent. never_sleeps: the check idle-cpu has found it so
            if watch.is_stalled(stall_timeout_s):
                self.note(do="note", text="the server is never quiescent, and no byte moved for some time")
                if self.never_sleeps and sure:
                    self.unproved.append(what)
                break
            if watch.now - watch.excess_checked_at > EXCESS_CHECK_EVERY_S:
                watch.excess_checked_at = watch.now
                self.expect_no_excess()
        happened = condition()
        self.note(do="wait", what=what, happened=happened)
        return happened

    def expect_no_excess(self) -> None:
        """Fail if the server's processes exceed a limit of memory, tasks or files together."""
        excess = self.subject.excess_text()
        if excess:
            self.fail(
                f"the server uses too much: {excess}",
                "stay within the limits",
                "memory or the number of tasks grows with each request or client",
            )

    def until_answered(self, client: SceneClient, *, quiescent_s: float = 0.0) -> bool:
        """Wait until a client has a response, or its connection has ended; return whether one of them is true.

        quiescent_s: as in until().
        """
        return self.until(client.answered_or_over, f"{client.name} gets a response", quiescent_s=quiescent_s)

    def connecting(self) -> bool:
        """Return whether a client still connects: its kernel may send the next SYN only after CONNECT_S."""
        return any(not client.connected and not client.over() for client in self.clients)

    def until_due(self, condition: Condition, what: str, due_s: float) -> bool:
        """Wait for an action that the server's own clock triggers, `due_s` seconds from now.

        Until then the server may be quiescent. On a busy machine a thread of the server may still wait for a
        processor when the time has passed. The server is then not quiescent, and the wait goes on.
        """
        end = time.monotonic() + due_s
        while not condition() and time.monotonic() < end and self.subject.alive():
            self.pump(POLL_EVERY_S)
        return self.until(condition, what)

    def settle(self, *, sure: bool = False) -> None:
        """Wait until the server is quiescent. sure: wait longer, for a pause on which more depends."""
        unproved_before = len(self.unproved)
        self.until(lambda: False, "the server is quiescent", sure=sure and not self.never_sleeps)
        del self.unproved[unproved_before:]  # no verdict rests on a pause

    def start_again(self) -> str:
        """Kill the server and start it again on the same port; return a description of a problem, or ""."""
        old = self.subject
        self.note(do="start-again")
        old.close()
        try:
            self.subject = Subject(
                old.start_command, old.site, old.workers, old.limits, old.port, old.output, old.environment
            )
            self.subject.wait_until_ready()
        except NotStarted as error:
            last_line = error.output.strip().rpartition("\n")[2]
            return f"{error}" + (f" (its last words: {last_line})" if last_line else "")
        return ""

    def is_unread(self, client: SceneClient) -> bool:
        """Return whether no thread of the server has read the bytes of a client: they wait in its kernel."""
        return any(
            entry.peer_port == client.port and entry.unread_bytes
            for entry in processes.tcp_sockets().values()
        )

    # Verdicts

    def confirm(self, fact: str) -> None:
        """Note a proven fact: the evidence of a check that passes."""
        self.confirmations.append(fact)
        self.note(do="note", text=fact)

    def fail(self, did: str, should: str, because: str = "", sent: str = "") -> NoReturn:
        """End the check with a FailedExpectation.

        did: the server's behaviour. should: the expected behaviour. because: the likely cause.
        """
        raise FailedExpectation(sent, did, should, because)

    def fail_once(self, name: str, did: str, should: str, because: str = "") -> None:
        """Fail because of a fault that several checks may meet; go on if an earlier check has failed by it.

        name: of the fault. did, should, because: arguments of fail().
        """
        blamed_check = self.findings.faults.get(name, self.check)
        if blamed_check == self.check:
            raise FailedExpectation("", did, should, because, name)
        self.confirm(f"apart from this: {did} (see {blamed_check})")

    def no_thread_receives(self) -> bool:
        """Return whether all threads of the server sleep in calls that concern no connection."""
        return set(self.threads_by_call()) <= {"accept()", "a lock or a condition", "wait()"}

    def rest_on(self, name: str) -> None:
        """Raise NotJudged if an earlier check has failed, or found a fault that hides the result of this one.

        name: of the check, or of the fault.
        """
        blamed_check = self.findings.faults.get(name, self.check)
        if blamed_check != self.check:
            raise NotJudged(f"it rests on {blamed_check}, which has failed. Mend that first.")

    def concurrency(self) -> int:
        """Return how many clients the server serves at the same time: the workers asked for, or the number found.

        Raises NotJudged if there is no such number, or if it is 1: then the server is no pool.
        """
        found = self.findings.concurrency  # None: `progress` has found no other number, or has not run
        if found is not None and self.workers > 1 and (found == 1 or found == NO_LIMIT):
            number = "one client at a time" if found == 1 else "any number of clients at a time"
            raise NotJudged(f"it rests on progress: the server serves {number}. Mend that first.")
        return found or self.workers

    def signal(self, number: int) -> None:
        """Send a signal to the server's first process; fail if that has ended."""
        try:
            if self.subject.process.poll() is None:
                os.kill(self.subject.pid, number)
                return
        except ProcessLookupError:
            pass
        self.expect_alive("the last client")  # says why, if the whole server has ended
        self.fail(
            "the server's first process has ended, and other processes of the server go on",
            "keep the first process alive: it gets the signals",
        )

    def expect_alive(self, after: str) -> None:
        """Fail if the server has ended or is about to end. A process that is ending is not quiescent.

        If an earlier check has met the same failure, only that check loses points: this one is "not judged".
        """
        self.settle()
        if self.subject.alive():
            return
        ending = self.subject.ending_text()
        # Of a last line "KeyError: 'x'" only KeyError: the rest may differ from check to check
        words = self.subject.log(1).partition(":")[0].strip()
        # A status without any words could have another cause in each check
        failure = f"{ending} {words}" if words or ending.startswith("was ended") else ""
        # faults: a failure -> the earlier check that has lost its points for it
        blamed_check = self.findings.faults.get(failure, self.check)
        if blamed_check != self.check:
            raise NotJudged(
                f"it rests on {blamed_check}: the server {ending} here, too, after {after}. Mend that first."
            )
        raise FailedExpectation(
            "",
            f"the server {ending} after {after}",
            "go on serving: one client must not end the server for all clients",
            self.likely_reason(),
            failure,
        )

    def likely_reason(self) -> str:
        """Return a likely reason for which the server has ended or does not answer; "" if none is known.

        It is a lack of descriptors, the meaning of the signal that has ended the server, or its last words.
        """
        if any(words in self.subject.log() for words in OUT_OF_DESCRIPTORS):
            return (
                "no descriptor was free: accept() and open() then fail with EMFILE; catch OSError, and close every "
                "connection and file that is no longer needed"
            )
        # Popen shows the end by a signal as a negative status.
        signal_number = -(self.subject.process.poll() or 0)
        if signal_number in SIGNAL_MEANINGS:
            return SIGNAL_MEANINGS[signal_number]
        text = self.subject.log(1).strip()
        return f"its last words: {text}" if text else ""

    def expect_answer(
        self, path: str = "/hello.txt", after: str = "", because: str = "", quiescent_s: float = 0.0
    ) -> Response:
        """Request a file on a new connection; fail unless the response is the file. quiescent_s: as in until()."""
        client = self.client("a new client").ask(path, Connection="close")
        self.until_answered(client, quiescent_s=quiescent_s)
        if not client.answered():
            self.expect_alive(after or "this request")
        response = self.expect_file(client, path, after, because)
        client.close()
        return response

    def expect_file(self, client: SceneClient, path: str, after: str = "", because: str = "") -> Response:
        """Fail unless the client's last response is the file of this path; return the response.

        after, because: parts of the message: what had happened before, and the likely cause.
        """
        later = f" after {after}" if after else ""
        if not client.answered():
            self.fail(
                f"{client.name} asked for {path}{later} and {client.outcome_text()}{self.blocked_text()}",
                f"answer 200 with the {len(self.site.files[path])} bytes of the file",
                because,
            )
        response = client.answers[-1]
        if response.status != 200:
            self.fail(
                f"{client.name} asked for {path}{later} and got status {response.status}",
                "answer 200",
                because,
            )
        self.expect_body(client, response, path, because)
        return response

    def expect_body(self, client: SceneClient, response: Response, path: str, because: str = "") -> None:
        """Fail unless a response has the bytes of a file."""
        expected = self.site.files[path]
        if response.body == expected:
            return
        # Whose bytes are they? Another file points to a mix-up, and a difference within the file to other causes.
        for other, content in self.site.files.items():
            if content and response.body == content:
                self.fail(
                    f"{client.name} asked for {path} and got the bytes of {other}",
                    f"send the bytes of {path}: do not mix up the requests and responses of connections",
                    because or "two connections share a buffer, a variable or a descriptor",
                )
        offset = next(
            (at for at, (a, b) in enumerate(zip(response.body, expected, strict=False)) if a != b),
            min(len(response.body), len(expected)),
        )
        self.fail(
            f"the body for {path} has {len(response.body)} bytes and differs from the file at byte {offset}",
            f"send the file's {len(expected)} bytes, unchanged",
            because
            or "open files in binary mode, send all bytes (send() may take fewer), and count bytes, not characters",
        )

    def threads_by_call(self) -> dict[str, int]:
        """Return the system calls in which the server's threads sleep, or "running", with the number of threads."""
        functions: dict[str, int] = {}
        for task in self.subject.tasks().values():
            function = processes.blocked_in(task.pid, task.tid) if task.asleep else "running"
            functions[function or "waiting"] = functions.get(function or "waiting", 0) + 1
        return functions

    def blocked_text(self) -> str:
        """Describe for a message in which calls the server's threads sleep; "" if the server has ended."""
        if not self.subject.alive():
            return ""
        functions = self.threads_by_call()
        shown = ", ".join(f"{count} in {function}" for function, count in sorted(functions.items()))
        return f" (threads of the server: {shown})"
