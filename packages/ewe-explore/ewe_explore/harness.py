"""A model of ewe under the scheduler: clients in memory, a listener in memory, and a stop in the middle.

    clients ──connect──▶ Arrivals (the listener) ──accept──▶ the model: serve(), its threads, its queue
       ▲                                                        │ hold(stream), or converse(stream) in pieces
       └───────────────── one answer for each request ◀─────────┘
    main: waits for the clients (or does not), then finish(), and waits until serve() returns

The model is the student's class, over ewe's own ewe.processors.base and ewe.streams. Only the conversation is a
short one, which answers each request with two letters, since a model does not know HTTP.

What must hold, in every schedule: each client that was served to its end got one answer for each request; no
conversation runs twice, or in two threads at the same time (a coroutine refuses that itself); a signal that ends a
wait of the listener does not end serve(); the stop does, when all conversations have ended; every connection is
closed.

Read next: processors/pool.py, and docs/explorer.md, which runs it here.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ewe
from ewe.config.settings import Config
from ewe_explore import network
from ewe_explore.primitives import Primitive
from ewe_explore.program import Program
from ewe_explore.scheduler import ACTIVE, Options, ProgramError, Run
from ewe_explore.threads import Thread

REQUEST = b"GET / HTTP/1.1\r\n\r\n"
ANSWER = b"ok"
SERVER = ("127.0.0.1", 80)


class Arrival(SimpleNamespace):
    """An accepted connection: socket, client, server; as ewe.streams.listener.Accepted."""


class Arrivals(Primitive):
    """The listener: as ewe.streams.listener.Listener, for connections in memory."""

    called = "the listener"

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[Arrival] = deque()
        self.handed_out: list[network.Socket] = []
        self.closed = False
        self.accepting = True
        self.woken = False
        self.gone = False  # serve() has returned: the listening socket is closed
        self.epoll = network.Epoll()

    def connect(self, number: int) -> network.Socket:
        """Return a client's socket; its other end waits to be accepted. Raises ConnectionRefusedError."""
        self.point("connects to")
        if self.gone:
            raise ConnectionRefusedError
        client, server = network.socketpair()
        client.called = "the server"
        server.called = f"client {number}"
        self.waiting.append(Arrival(socket=server, client=("127.0.0.1", 50000 + number), server=SERVER))
        self.changed()
        found: network.Socket = client
        return found

    def __iter__(self) -> Iterator[Arrival]:
        while not self.closed:
            accepted = self.accept()
            if accepted is not None:
                yield accepted
        self.wake()

    def accept(self, room: bool = True) -> Arrival | None:
        accepted, _ = self.wait_for_any(-1, 1 if room else 0)
        return accepted[0] if accepted else None

    def wait(self, seconds: float, most: int) -> Any:  # type: ignore[override] # as the listener's
        return self.wait_for_any(seconds, most)

    def wait_for_any(self, seconds: float, most: int) -> tuple[list[Arrival], list[int]]:
        """Return up to `most` connections, and the watched descriptors that are ready."""
        self.accepting = most > 0 and not self.closed
        run = self.point("looks at")

        def ready() -> bool:
            return self.woken or (self.accepting and bool(self.waiting)) or bool(self.epoll.ready())

        if run is not None and not ready():
            super().wait(run, "waits for", ready, None if seconds < 0 else seconds, "looks at")
        self.woken = False
        accepted: list[Arrival] = []
        while self.accepting and self.waiting and len(accepted) < most:
            accepted.append(self.waiting.popleft())
            self.handed_out.append(accepted[-1].socket)
        watched = [number for number, _ in self.epoll.ready()]
        for number in watched:
            self.epoll.watched[number] = self.epoll.once
        self.changed()
        return accepted, watched

    def watch(self, descriptor: int, events: int, again: bool = False) -> None:
        (self.epoll.modify if again else self.epoll.register)(descriptor, events)

    def unwatch(self, descriptor: int) -> None:
        self.epoll.unregister(descriptor)

    def interrupt(self) -> None:
        """End a wait as a signal does, for which serve() must be prepared."""
        self.point("interrupts")
        self.wake()

    def wake(self) -> None:
        if not self.quiet():
            self.woken = True
            self.changed()

    def close(self) -> None:
        if not self.quiet():
            self.point("closes")
            self.closed = True
            self.wake()

    def changed(self) -> None:
        """Have the scheduler look again who may run."""
        if ACTIVE:
            ACTIVE[-1].dirty = True


class Model(Program):
    """A class of a model as a program. clients: each sends `requests`. early: stop while they are served."""

    def __init__(
        self,
        path: Path,
        name: str,
        clients: int = 2,
        requests: int = 1,
        early: bool = False,
        options: Options | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(path, name, options)
        self.clients = clients
        self.requests = requests
        self.early = early
        self.settings = settings or {}
        self.hosted = hosted_name(self.path)
        if self.hosted:
            self.world.instrumented = (self.hosted,)
        self.world.stand_ins["ewe.conversation"] = conversation()
        self.world.stand_ins["ewe.logger"] = log()

    def words(self) -> list[str]:
        words = ["--model", self.scenario]
        if self.clients != 2:
            words += ["--clients", str(self.clients)]
        if self.requests != 1:
            words += ["--requests", str(self.requests)]
        return [*words, "--stop-early"] if self.early else words

    def main(self, run: Run) -> Any:
        """Be lane 0: the server's main thread."""
        if self.hosted:
            module = self.world.find(self.hosted)
        else:
            module = self.world.run_file(self.path, self.path.stem)
        found: Any = getattr(module, self.scenario, None)
        if not callable(found):
            raise ProgramError(f"{self.path}: there is no class {self.scenario}")
        config = Config()
        for key, value in {"poolthreads": 2, **self.settings}.items():
            object.__setattr__(config, key, value)
        processor = found(SimpleNamespace(tls=None, applications=[]), config)
        listener = Arrivals()
        processor.listener = listener

        def serve() -> None:
            processor.serve(listener)
            assert listener.closed, "serve() has returned before the stop"
            left = len(processor.live)
            assert not left, f"serve() has returned, but {left} of its conversations have not ended"

        server = Thread(target=serve, name="serve()")
        server.start()
        clients = [Client(listener, number + 1, self.requests) for number in range(self.clients)]
        for client in clients:
            client.thread.start()
        listener.interrupt()
        if not self.early:
            for client in clients:
                client.thread.join()
        processor.finish()
        server.join()
        listener.gone = True
        for arrival in listener.waiting:
            arrival.socket.close()  # as the kernel does when the listening socket goes
        for client in clients:
            client.thread.join()
        self.judge(listener, clients)
        return None

    def judge(self, listener: Arrivals, clients: list[Client]) -> None:
        """Check what must hold after the stop."""
        open_ones = [sock for sock in listener.handed_out if not sock.closed]
        assert not open_ones, (
            f"{len(open_ones)} accepted connections are still open after serve() has returned"
        )
        for client in clients:
            if not self.early:
                assert client.answers == self.requests, (
                    f"client {client.number} got {client.answers} of {self.requests} answers"
                )


class Client:
    """A client: a lane that sends requests and reads the answers."""

    def __init__(self, listener: Arrivals, number: int, requests: int) -> None:
        self.listener = listener
        self.number = number
        self.requests = requests
        self.answers = 0
        self.thread = Thread(target=self.work, name=f"client {number}")

    def work(self) -> None:
        try:
            connection = self.listener.connect(self.number)
        except ConnectionRefusedError:
            return
        try:
            for _ in range(self.requests):
                connection.send(REQUEST)
                if not connection.recv(100):
                    break
                self.answers += 1
        except OSError:
            pass  # the server has stopped
        finally:
            connection.close()


def conversation() -> ModuleType:
    """Return what stands for ewe.conversation: two letters for each request."""
    module = ModuleType("ewe.conversation")

    async def converse(stream: Any, site: Any) -> None:
        mark(stream, "begun")
        while await stream.next_request(10.0):
            await stream.send(ANSWER)
            stream.requests += 1
            if stream.stopping:
                return

    module.__dict__.update(
        BUSY=b"HTTP/1.1 503\r\n\r\n",
        converse=converse,
        converse_announced=converse,
        converse_securely=converse,
    )
    return module


def mark(stream: Any, what: str) -> None:
    """Note that a conversation has begun. It must not begin twice."""
    begun = getattr(stream, "explored", "")
    assert not begun, "two conversations are held over one connection"
    stream.explored = what


def log() -> ModuleType:
    """Return what stands for ewe.logger: an exception that a model catches and logs ends the run."""

    def exception(text: str) -> None:
        reason = sys.exc_info()[1]
        if ACTIVE and reason is not None:
            run = ACTIVE[-1]
            run.crash(run.current, reason)
            run.mine()

    def nothing(*_: Any) -> None:
        """Be a line of the log."""

    module = ModuleType("ewe.logger")
    module.__dict__["errors"] = SimpleNamespace(
        exception=exception, error=nothing, warning=nothing, info=nothing, debug=nothing
    )
    return module


def hosted_name(path: Path) -> str:
    """Return the name of a module of ewe itself; "" for a student's file."""
    package = Path(ewe.__file__).resolve().parent
    if path.is_relative_to(package):
        return ".".join(path.relative_to(package.parent).with_suffix("").parts)
    return ""
