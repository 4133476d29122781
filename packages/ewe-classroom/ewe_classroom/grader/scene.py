"""A scene: clients that send what a schedule says, and waits for events. The heart of the grader.

A *gate* is what holds a worker of the server, and the client alone opens it:

    a half-sent request      b"GET /1.txt HTTP/1.1\\r\\nHost: x\\r\\n" and no empty line: its reader waits
    a client that does not read    a response larger than all buffers: its sender waits
    an idle connection       kept open after a response, or opened and silent

Every server in every language has these gates; no handler, no sleep and no library is needed. A schedule is a
Python function that opens clients, closes and opens their gates, and waits:

    first = scene.client().send_half("/1.txt")     a worker is held
    second = scene.client().ask("/2.txt")
    scene.until(second.answered)  ─▶ True: the second client made progress while the first one was held
                                  ─▶ False: the server is calm, and will never answer unless the client acts
    first.send_rest()

`until()` is the only wait. It ends when the condition is true, when the server has ended, or when the server is
calm (processes.py): then all of its threads sleep and every byte has arrived, so that waiting longer changes
nothing. Both outcomes are facts. A busy machine makes the wait longer and never changes the outcome.

How long must the server be calm? CALM_S before the next step of a schedule. SURE_S before a verdict, since a
server that polls every half second also sleeps in between. A server that never becomes calm (a busy loop) is
given up after PATIENCE_S in which no byte has moved and the server has had its turns on a processor. CEILING_S
ends all waits; only a machine that stands still reaches it.

Each step is recorded (`steps`): the evidence in a report, the lanes of its timeline, and the replay file.

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
from typing import Any, NoReturn

from ewe_classroom.grader import processes
from ewe_classroom.grader.responses import Reader, Response
from ewe_classroom.grader.subject import NotStarted, Subject

CALM_S = 0.03
SURE_S = 0.75
CONNECT_S = 8.0  # the kernel sends a SYN again after 1, 3 and 7 seconds
PATIENCE_S = 3.0
CEILING_S = 90.0
LOOK_S = 0.005
GIVEN_UP_S = 5.0  # a server that ends a held connection sooner has a fault, and no time limit
ENDS = {"answered", "closed-by-server", "reset-by-server"}  # steps that the server makes
SHOWN = 300  # bytes of what was sent or received that a record keeps as text

MEMORY = (
    "memory is used that is not the program's: bytes are written past the end of a buffer, or a pointer leads "
    "nowhere; build with -fsanitize=address, and it says where"
)
MEANINGS: dict[int, str] = {  # of the signals that end a program by its own fault, as an explanation
    signal.SIGPIPE: "a write to a connection that its client has reset; ignore SIGPIPE, and check write()",
    signal.SIGSEGV: MEMORY,
    signal.SIGBUS: MEMORY,
    signal.SIGABRT: MEMORY,
}

Condition = Callable[[], bool]


class Fault(Exception):
    """The server does not do what the check expects. The texts: what was sent, what happened, what should."""

    def __init__(self, sent: str, did: str, should: str, because: str = "") -> None:
        super().__init__(did)
        self.sent = sent
        self.did = did
        self.should = should
        self.because = because


class Skipped(Exception):
    """The check does not apply: a limit of this system, or nothing that it could test. The text says why."""


class Client:
    """One connection of the scene: a lane of its timeline."""

    def __init__(self, scene: Scene, name: str, *, reads: bool, path: str = "/hello.txt") -> None:
        self.scene = scene
        self.name = name
        self.path = path
        self.reads = reads
        self.outbox = b""
        self.finishing = False  # FIN follows the outbox
        self.reader = Reader()
        self.received = 0
        self.connected = self.ended = self.broken = self.closed = False
        self.sock = socket.socket()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not reads:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.sock.setblocking(False)
        self.note("connect", reads=reads)
        error = self.sock.connect_ex(("127.0.0.1", scene.subject.port))
        if error not in (0, errno.EINPROGRESS):
            self.broken = True
        self.connected = error == 0

    def note(self, do: str, **more: Any) -> None:
        self.scene.note(lane=self.name, do=do, **more)

    # What a client does

    def send(self, data: bytes, times: int = 1) -> Client:
        """Send bytes, several times; what the kernel does not take at once is sent while the scene waits."""
        repeated = {"times": times} if times > 1 else {}
        self.note("send", bytes=data.decode("latin-1"), **repeated)
        self.outbox += data * times
        self.flush()
        return self

    def ask(self, path: str = "", version: str = "1.1", **fields: str) -> Client:
        """Send a request for a path. Keyword arguments are header fields: Connection="close"."""
        return self.send(self.request(path, version, **fields))

    def request(self, path: str = "", version: str = "1.1", **fields: str) -> bytes:
        self.path = path or self.path
        lines = [f"GET {self.path} HTTP/{version}", "Host: localhost"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def send_half(self, path: str = "", **fields: str) -> Client:
        """Send a request without its last line: a gate, which send_rest() opens."""
        return self.send(self.request(path, **fields)[:-2])

    def send_rest(self) -> Client:
        return self.send(b"\r\n")

    def read_on(self) -> Client:
        """Begin to read: opens the gate of a client that did not."""
        self.note("read")
        self.reads = True
        self.quietly(lambda: self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20))
        return self

    def half_close(self) -> Client:
        """Say that no more will be sent (FIN), and go on reading."""
        self.note("half-close")
        self.finishing = True
        self.flush()
        return self

    def close(self) -> None:
        if not self.closed:
            self.note("close")
            self.closed = True
            self.sock.close()

    def reset(self) -> None:
        """Close with a reset: the server's next send or receive fails."""
        if not self.closed:
            self.note("reset")
            self.quietly(
                lambda: self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            )
            self.closed = True
            self.sock.close()

    # What has become of it

    @property
    def answers(self) -> list[Response]:
        """The responses that have arrived whole."""
        return [response for response in self.reader.responses if response.whole]

    def answered(self) -> bool:
        return bool(self.answers)

    def over(self) -> bool:
        """Return whether the connection has an end: by the server's FIN, a reset, or no connection at all."""
        return self.ended or self.broken

    def answered_or_over(self) -> bool:
        return self.answered() or self.over()

    @property
    def port(self) -> int:
        try:
            return int(self.sock.getsockname()[1])
        except OSError:
            return 0

    def peek(self) -> bytes:
        """Return the first bytes that have arrived, and leave them there: for a client that does not read."""
        try:
            return self.sock.recv(64, socket.MSG_PEEK)
        except OSError:
            return b""

    def unsent(self) -> int:
        """Return how many bytes the server's kernel has not confirmed yet."""
        if self.closed or self.over() or not self.connected:
            return 0
        try:
            size = fcntl.ioctl(self.sock, termios.TIOCOUTQ, b"\0\0\0\0")
        except OSError:
            return 0
        return int.from_bytes(size, "little") + len(self.outbox)

    def story(self) -> str:
        """Return what the client has seen, in words, for a verdict."""
        if self.reader.fault:
            return f"got {self.reader.fault}"
        for response in self.reader.responses:
            if response.fault:
                return f"got {response.fault}"
        if self.answers:
            what = f"got status {self.answers[-1].status}"
            return what + (" and the end of the connection" if self.over() else "")
        got = f" after {self.received} bytes" if self.received else " without a response"
        if self.broken:
            return f"was reset{got}" if self.connected else "could not connect"
        if self.ended:
            return f"saw the connection closed{got}"
        if not self.connected:
            return "could not connect: the server's backlog is full"
        return f"got only {self.received} bytes of a response" if self.received else "got no response"

    # What the scene calls

    def quietly(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError:
            self.broken = self.broken or not self.ended

    def flush(self) -> bool:
        """Send what waits; return whether bytes have moved."""
        if not self.connected or self.closed or self.broken:
            return False
        if self.finishing and not self.outbox:
            self.finishing = False
            self.quietly(lambda: self.sock.shutdown(socket.SHUT_WR))
            return True
        if not self.outbox:
            return False
        try:
            sent = self.sock.send(self.outbox)
        except BlockingIOError:
            return False
        except OSError:
            self.broken = True
            self.outbox = b""
            return True
        self.outbox = self.outbox[sent:]
        return sent > 0

    def events(self) -> int:
        """Return what poll(2) shall wait for."""
        if self.closed or self.over():
            return 0
        wanted = select.POLLOUT if self.outbox or self.finishing or not self.connected else 0
        return wanted | (select.POLLIN if self.reads and self.connected else 0)

    def handle(self, happened: int) -> bool:
        """React to what poll(2) reports; return whether something has moved."""
        if not self.connected:
            if self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.broken = True
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
            self.broken = True
            self.note("reset-by-server")
        return moved

    def receive(self) -> bool:
        try:
            data = self.sock.recv(1 << 18)
        except BlockingIOError:
            return False
        except OSError:
            self.broken = True
            self.reader.end()
            self.note("reset-by-server")
            return True
        if not data:
            self.ended = True
            self.reader.end()
            self.note("closed-by-server")
            # As every client does. A server may wait for it before it lets its worker go (lingering close).
            self.quietly(lambda: self.sock.shutdown(socket.SHUT_WR))
            return True
        if self.received == 0 or data[:5] == b"HTTP/":
            self.note("got", bytes=data[:SHOWN].decode("latin-1"))
        self.received += len(data)
        before = len(self.answers)
        self.reader.feed(data)
        if self.reader.too_much:
            self.ended = True
            self.note("too-much", total=self.received)
        if len(self.answers) > before:
            self.note("answered", status=self.answers[-1].status, total=self.received)
        return True


class Scene:
    """The clients of one check, and its waits."""

    def __init__(self, subject: Subject, options: dict[str, Any] | None = None) -> None:
        self.subject = subject
        self.site = subject.site
        self.workers = subject.workers
        self.options = options or {}
        self.clients: list[Client] = []
        self.steps: list[dict[str, Any]] = []
        self.began = time.monotonic()
        self.confirmations: list[str] = []

    def note(self, **what: Any) -> None:
        self.steps.append({"t": round(time.monotonic() - self.began, 4), **what})

    def client(self, name: str = "", *, reads: bool = True) -> Client:
        """Return a new client, which connects. reads=False: it does not read before read_on()."""
        client = Client(self, name or f"client {len(self.clients) + 1}", reads=reads)
        self.clients.append(client)
        return client

    def hold(self, kind: str, path: str, name: str = "") -> Client:
        """Return a client that holds a worker: "half" sends half a request, "reader" does not read a response."""
        if kind == "half":
            return self.client(name).send_half(path, Connection="close")
        return self.client(name, reads=False).ask("/large.bin", Connection="close")

    def release(self, client: Client) -> None:
        """Open the gate of a client."""
        if client.reads:
            client.send_rest()
        else:
            client.read_on()

    def gave_up(self) -> bool:
        """Return whether the server may have ended a connection by a time limit.

        It has ended one on which half a request, or a response that nobody read, stood for GIVEN_UP_S or longer.
        """
        half: dict[str, float] = {}  # lane -> when its request began
        unread: dict[str, float] = {}  # lane -> when it asked, and has not read since
        silent: set[str] = set()
        late: set[str] = set()  # lanes that read only after GIVEN_UP_S
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
            elif do == "read" and at - unread.pop(lane, at) >= GIVEN_UP_S:
                late.add(lane)
            elif do in ENDS and (
                lane in late
                or at - half.get(lane, at) >= GIVEN_UP_S
                or at - unread.get(lane, at) >= GIVEN_UP_S
            ):
                return True
        return False

    def close(self) -> None:
        for client in self.clients:
            client.sock.close()

    # Waits

    def pump(self, wait_s: float) -> bool:
        """Move bytes for every client, at most `wait_s` long; return whether something has moved."""
        poller = select.poll()
        by_number = {}
        for client in self.clients:
            wanted = client.events()
            if wanted:
                by_number[client.sock.fileno()] = client
                poller.register(client.sock, wanted)
        moved = False
        for number, happened in poller.poll(wait_s * 1000):
            moved = by_number[number].handle(happened) or moved
        return moved

    def look(self, tasks: dict[int, processes.Task]) -> tuple[object, ...] | None:
        """Return what would differ if the server had done something; None while one of its threads runs."""
        if not all(task.asleep for task in tasks.values()):
            return None
        turns = tuple((tid, task.turns) for tid, task in sorted(tasks.items()))
        return (turns, tuple(client.unsent() for client in self.clients))

    def until(self, condition: Condition, what: str = "", *, sure: bool = True, calm_s: float = 0.0) -> bool:
        """Wait until a condition is true; False once the server is calm or has ended. See the top of this file.

        calm_s: how long it must be calm instead of CALM_S or SURE_S, where a correct server may pause by itself.
        """
        start = moved_at = looked_at = time.monotonic()
        previous: tuple[object, ...] | None = None
        calm_from = start
        baseline: dict[int, processes.Task] = {}
        checked_at = 0.0
        while not condition():
            if self.pump(LOOK_S):
                moved_at = calm_from = time.monotonic()
                previous, baseline = None, {}
                if moved_at - start > CEILING_S:
                    break
                continue
            now = time.monotonic()
            if now - looked_at < min(LOOK_S + (now - calm_from) / 4, 0.05):
                continue
            looked_at = now
            tasks = self.subject.tasks()
            if all(task.state in "ZX" for task in tasks.values()) and not self.pump(0.05):
                break
            connecting = any(not client.connected and not client.over() for client in self.clients)
            window = calm_s or (SURE_S if sure else CALM_S)
            look = self.look(tasks)
            if look is None or look != previous:
                previous, calm_from = look, now
            elif now - calm_from >= (max(window, CONNECT_S) if connecting else window):
                break
            baseline = baseline or tasks
            if now - moved_at > PATIENCE_S and self.had_turns(baseline, tasks):
                self.note(do="note", text="the server is never calm, and no byte moved for some seconds")
                break
            if now - checked_at > 0.25:
                checked_at = now
                excess = self.subject.excess()
                if excess:
                    self.fail(
                        f"the server uses too much: {excess}",
                        "stay within the limits",
                        "something grows with each request or client",
                    )
            if now - start > CEILING_S:
                break
        done = condition()
        self.note(do="wait", what=what, happened=done)
        return done

    def had_turns(self, before: dict[int, processes.Task], after: dict[int, processes.Task]) -> bool:
        """Return whether the server got enough of the processor meanwhile to do what it wants to do."""
        ran = sum(task.ran_s for task in after.values()) - sum(task.ran_s for task in before.values())
        turns = sum(task.turns for task in after.values()) - sum(task.turns for task in before.values())
        return ran > 0.2 or turns > 10

    def until_due(self, condition: Condition, what: str, due_s: float) -> bool:
        """Wait for what the server does by its clock, `due_s` seconds from now: until then it may be calm.

        On a busy machine the time passes and a thread of the server waits for a processor. The server is not calm
        then, and the wait goes on.
        """
        end = time.monotonic() + due_s
        while not condition() and time.monotonic() < end and self.subject.alive():
            self.pump(LOOK_S)
        return self.until(condition, what)

    def settle(self, *, sure: bool = False) -> None:
        """Wait until the server is calm."""
        self.until(lambda: False, "the server is calm", sure=sure)

    def start_again(self) -> str:
        """Kill the server and start it again on the same port; return what went wrong, "" if nothing did."""
        old = self.subject
        self.note(do="start-again")
        old.close()
        try:
            self.subject = Subject(
                old.recipe, old.site, old.workers, old.limits, old.port, old.output, old.environment
            )
            self.subject.wait_until_ready()
        except NotStarted as error:
            last = error.output.strip().rpartition("\n")[2]
            return f"{error}" + (f" (its last words: {last})" if last else "")
        return ""

    # Verdicts

    def confirm(self, fact: str) -> None:
        """Note a fact that was found true: the evidence of a check that passes."""
        self.confirmations.append(fact)
        self.note(do="note", text=fact)

    def fail(self, did: str, should: str, because: str = "", sent: str = "") -> NoReturn:
        """End the check: Fault with this text."""
        raise Fault(sent, did, should, because)

    def signal(self, number: int) -> None:
        """Send a signal to the server's first process; fail if that has ended."""
        try:
            if self.subject.process.poll() is None:
                os.kill(self.subject.pid, number)
                return
        except ProcessLookupError:
            pass
        self.expect_alive("the last client")
        self.fail(
            "the server's first process has ended, and others go on",
            "keep the first process: it gets the signals",
        )

    def expect_alive(self, after: str) -> None:
        """Fail if the server has ended, or is about to: a process that ends is not calm before its end."""
        self.settle()
        if not self.subject.alive():
            self.fail(
                f"the server {self.subject.ending()} after {after}",
                "go on serving: one client must not end the server for all",
                self.last_words(),
            )

    def last_words(self) -> str:
        """Return why the server may have ended: the meaning of a signal, or the last line of its output."""
        number = -(self.subject.process.poll() or 0)
        if number in MEANINGS:
            return MEANINGS[number]
        text = self.subject.log(1).strip()
        return f"its last words: {text}" if text else ""

    def expect_answer(
        self, path: str = "/hello.txt", after: str = "", because: str = "", calm_s: float = 0.0
    ) -> Response:
        """Ask for a file on a new connection; fail unless the file is the answer. calm_s: as in until()."""
        client = self.client("a new client").ask(path, Connection="close")
        self.until(client.answered_or_over, f"{client.name} is answered", calm_s=calm_s)
        if not client.answered():
            self.expect_alive(after or "this")
        response = self.expect_file(client, path, after, because)
        client.close()
        return response

    def expect_file(self, client: Client, path: str, after: str = "", because: str = "") -> Response:
        """Fail unless the client's last answer is the file of this path."""
        later = f" after {after}" if after else ""
        if not client.answered():
            self.fail(
                f"{client.name} asked for {path}{later} and {client.story()}{self.blocked()}",
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

    def expect_body(self, client: Client, response: Response, path: str, because: str = "") -> None:
        """Fail unless a response has the bytes of a file."""
        expected = self.site.files[path]
        if response.body == expected:
            return
        for other, content in self.site.files.items():
            if content and response.body == content:
                self.fail(
                    f"{client.name} asked for {path} and got the bytes of {other}",
                    f"send the bytes of {path}: each connection has its request and its response to itself",
                    because or "two connections share a buffer, a variable or a descriptor",
                )
        place = next(
            (at for at, (a, b) in enumerate(zip(response.body, expected, strict=False)) if a != b),
            min(len(response.body), len(expected)),
        )
        self.fail(
            f"the body for {path} has {len(response.body)} bytes and differs from the file at byte {place}",
            f"send the file's {len(expected)} bytes, unchanged",
            because
            or "open files in binary mode, send all bytes (send() may take fewer), and count bytes, not characters",
        )

    def blocked(self) -> str:
        """Return where the server's threads sleep, for a message; "" if it has ended."""
        if not self.subject.alive():
            return ""
        places: dict[str, int] = {}
        for task in self.subject.tasks().values():
            place = processes.blocked_in(task.pid, task.tid) if task.asleep else "running"
            places[place or "waiting"] = places.get(place or "waiting", 0) + 1
        shown = ", ".join(f"{count} in {place}" for place, count in sorted(places.items()))
        return f" (threads of the server: {shown})"
