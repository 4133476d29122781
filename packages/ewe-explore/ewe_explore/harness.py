"""A model of ewe under the scheduler, with clients and a listener in memory, and perhaps an early stop.

    clients ──connect──▶ Arrivals (the listener) ──accept──▶ the model: serve(), its threads, its queue
       ▲                                                        │ hold(stream), or converse(stream) in pieces
       └───────────────── one answer for each request ◀─────────┘
    main: waits for the clients (or does not), then finish(), and waits until serve() returns

The model is the student's class, on ewe's own ewe.processors.base and ewe.streams. Only the conversation is
replaced: it answers each request with two letters, because a model does not know HTTP.

These properties must be true in every schedule. Each client that was served to its end got one answer for each
request. With `together`, it also got it while all other clients kept their connections: they close when all have
their answers. A lost wake-up then leaves a client without an answer; otherwise another worker would find its
connection later. No conversation runs twice, or in two threads at the same time (a coroutine refuses this
itself). A signal that ends a wait of the listener does not end serve(). After the stop, serve() returns when all
conversations have ended. Every connection is closed.

Read next: processors/pool.py, and docs/explorer.md, which runs it here.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ewe
from ewe.config.settings import Config
from ewe_explore import network
from ewe_explore.primitives import Barrier, Primitive
from ewe_explore.program import ExploredProgram
from ewe_explore.scheduler import Options, PartUse, ProgramError, Run, active_run
from ewe_explore.threads import Thread

REQUEST = b"GET / HTTP/1.1\r\n\r\n"
ANSWER = b"ok"
SERVER_ADDRESS = ("127.0.0.1", 80)
TOGETHER_S = 5.0  # on the explorer's clock; less than the conversation waits for the next request


class Arrival(SimpleNamespace):
    """An accepted connection (socket, client, server), like ewe.streams.listener.Accepted."""


class Arrivals(Primitive):
    """The listener: like ewe.streams.listener.Listener, for connections in memory."""

    fixed_name = "the listener"
    accepts_at_once = 16  # connections, as one process that accepts alone

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[Arrival] = deque()  # connections that accept() has not returned yet
        self.handed_out: list[network.Socket] = []  # the server's ends of the accepted connections
        self.closed = False
        self.accepting = True
        self.woken = False  # wake() was called
        self.is_gone = False  # serve() has returned: the listening socket is closed
        self.epoll = network.Epoll()

    def connect(self, number: int) -> network.Socket:
        """Return a client's socket; its other end waits for accept(). Raises ConnectionRefusedError."""
        self.point("connects to")
        if self.is_gone:
            raise ConnectionRefusedError
        client, server = network.socketpair()
        client.fixed_name = "the server"
        server.fixed_name = f"client {number}"
        self.waiting.append(
            Arrival(socket=server, client=("127.0.0.1", network.FIRST_PORT + number), server=SERVER_ADDRESS)
        )
        self.recompute_runnable_lanes()
        found: network.Socket = client
        return found

    def __iter__(self) -> Iterator[Arrival]:
        """Yield connections until close(). A wait that ends without one, as by a signal, is repeated."""
        while not self.closed:
            accepted = self.accept()
            if accepted is not None:
                yield accepted
        self.wake()

    def accept(self, room: bool = True, seconds: float = -1) -> Arrival | None:
        accepted, _ = self.wait(seconds, 1 if room else 0)
        return accepted[0] if accepted else None

    def uses_of_watched(self) -> tuple[PartUse, ...]:
        """Return the uses of the watched connections, and of the object that watches them."""
        if not active_run():
            return ()
        return (PartUse(self.epoll, None, writes=True), *network.uses_of(list(self.epoll.watched)))

    def wait(  # type: ignore[override] # as the listener's
        self, seconds: float, max_accepts: int
    ) -> tuple[list[Arrival], list[int]]:
        """Return up to `max_accepts` connections, and the ready descriptors among the watched ones.

        Wait for them, for a wake-up or an interruption, at most `seconds`; negative `seconds`: without a limit.
        """
        self.accepting = max_accepts > 0 and not self.closed
        run = self.point("looks at", uses=self.uses_of_watched())
        if run is not None and (step := run.current.last_step) is not None:
            step.other_uses = (
                *step.other_uses,
                *self.uses_of_watched(),
            )  # workers may have added connections

        def ready() -> bool:
            return self.woken or (self.accepting and bool(self.waiting)) or bool(self.epoll.ready())

        if run is not None and not ready():
            super().wait(run, "waits for", ready, None if seconds < 0 else seconds, "looks at")
        self.woken = False
        accepted: list[Arrival] = []
        while self.accepting and self.waiting and len(accepted) < max_accepts:
            accepted.append(self.waiting.popleft())
            self.handed_out.append(accepted[-1].socket)
        ready_descriptors = [descriptor for descriptor, _ in self.epoll.ready()]
        for descriptor in ready_descriptors:
            # The models watch with EPOLLONESHOT: a descriptor is reported once, until watch() arms it again
            self.epoll.watched[descriptor] = self.epoll.once
        self.recompute_runnable_lanes()
        return accepted, ready_descriptors

    def watch_sockets(self, wanted: bool) -> None:
        self.accepting = wanted

    def watch(self, descriptor: int, events: int, again: bool = False) -> None:
        (self.epoll.modify if again else self.epoll.register)(descriptor, events)

    def unwatch(self, descriptor: int) -> None:
        self.epoll.unregister(descriptor)

    def interrupt(self) -> None:
        """End a wait as a signal does. serve() must be prepared for this."""
        self.point("interrupts")
        self.wake()

    def wake(self) -> None:
        if not self.run_is_over():
            self.woken = True
            self.recompute_runnable_lanes()

    def close(self) -> None:
        if not self.run_is_over():
            self.point("closes")
            self.closed = True
            self.wake()


class Model(ExploredProgram):
    """A class of a model as a program. Its accesses to variables of ewe's own classes are no steps.

    requests: of each client. early: stop while clients are served. together: each client keeps its connection until
    all clients have their answers; the model needs a worker for each (poolthreads).
    """

    unseen = ("the variables of ewe's own classes",)

    def __init__(
        self,
        path: Path,
        name: str,
        clients: int = 2,
        requests: int = 1,
        early: bool = False,
        together: bool = False,
        options: Options | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(path, name, options)
        self.clients = clients
        self.requests = requests
        self.early = early
        self.together = together
        self.settings = settings or {}
        self.module_in_ewe = module_in_ewe(self.path)
        if self.module_in_ewe:
            self.world.instrumented = (self.module_in_ewe,)
        self.world.stand_ins["ewe.conversation"] = conversation()
        self.world.stand_ins["ewe.logger"] = log()

    def arguments(self) -> list[str]:
        """Return the options of the command that name this model and its clients."""
        arguments = ["--model", self.scenario]
        if self.clients != 2:
            arguments += ["--clients", str(self.clients)]
        if self.requests != 1:
            arguments += ["--requests", str(self.requests)]
        if self.together:
            arguments.append("--together")
        return [*arguments, "--stop-early"] if self.early else arguments

    def main(self, run: Run) -> Any:
        """Run the model with its clients, stop it, and check the properties. This is lane 0, the main thread."""
        processor_class, config = self.processor_class(), self.config()
        module = self.world.find("ewe.conversations")
        assert module is not None
        site = SimpleNamespace(tls=None, applications=[])
        processor = processor_class(module.Conversations(site, config), config)
        listener = Arrivals()
        processor.listener = listener

        def serve() -> None:
            processor.serve(listener)
            assert listener.closed, "serve() has returned before the stop"
            left = len(processor.live)
            assert not left, f"serve() has returned, but {left} of its conversations have not ended"

        server = Thread(target=serve, name="serve()")
        server.start()
        all_answered = Barrier(self.clients) if self.together else None
        clients = [
            ExploredClient(listener, number + 1, self.requests, all_answered)
            for number in range(self.clients)
        ]
        for client in clients:
            client.thread.start()
        listener.interrupt()  # as a signal during serve(): the model has to go on
        if not self.early:
            for client in clients:
                client.thread.join()
        processor.finish()
        server.join()
        listener.is_gone = True
        for arrival in listener.waiting:
            arrival.socket.close()  # the kernel does this when the listening socket is closed
        for client in clients:
            client.thread.join()
        self.check_properties(listener, clients)
        return None

    def processor_class(self) -> Any:
        """Import the model's file in this run; return its class. Raises ProgramError."""
        if self.module_in_ewe:
            module = self.world.find(self.module_in_ewe)
        else:
            module = self.world.run_file(self.path, self.path.stem)
        found: Any = getattr(module, self.scenario, None)
        if not callable(found):
            raise ProgramError(f"{self.path}: there is no class {self.scenario}")
        return found

    def config(self) -> Config:
        """Return a configuration with the model's settings."""
        config = Config()
        # Clients that keep their connections need a worker each; otherwise two workers are enough for a race
        workers = max(2, self.clients) if self.together else 2
        for key, value in {"poolthreads": workers, **self.settings}.items():
            setattr(config, key, value)
        return config

    def check_properties(self, listener: Arrivals, clients: list[ExploredClient]) -> None:
        """Check the properties that must be true after the stop (see the module). Raises AssertionError.

        After an early stop a client may have fewer answers than requests.
        """
        open_ones = [sock for sock in listener.handed_out if not sock.closed]
        assert not open_ones, (
            f"{len(open_ones)} accepted connections are still open after serve() has returned"
        )
        for client in clients:
            if not self.early:
                assert client.answers == self.requests, (
                    f"client {client.number} got {client.answers} of {self.requests} answers"
                )
        in_vain = [client.number for client in clients if client.has_waited_in_vain]
        assert not in_vain, (
            f"client {in_vain[0]} kept its connection for {TOGETHER_S:.0f} s, and another client had no answer in"
            f" that time, though there is a worker for each of the {self.clients} clients"
        )


class ExploredClient:
    """A client: a lane that sends requests and reads the answers.

    all_answered: where it waits for the other clients before it closes, if it does.
    """

    def __init__(
        self, listener: Arrivals, number: int, requests: int, all_answered: Barrier | None = None
    ) -> None:
        self.all_answered = all_answered
        self.has_waited_in_vain = False  # for the answers of the others, with `together`
        self.listener = listener
        self.number = number
        self.requests = requests
        self.answers = 0
        self.thread = Thread(target=self.work, name=f"client {number}")

    def work(self) -> None:
        """Send the requests one by one, and count the answers. The server may stop at any moment."""
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
            self.meet()
        except OSError:
            pass  # the server has stopped
        finally:
            connection.close()

    def meet(self) -> None:
        """Keep the connection until every client has its answers, but not longer than TOGETHER_S."""
        if self.all_answered is not None:
            try:
                self.all_answered.wait(TOGETHER_S)
            except threading.BrokenBarrierError:
                self.has_waited_in_vain = True


def conversation() -> ModuleType:
    """Return the replacement of the module ewe.conversation: it answers each request with two letters."""
    module = ModuleType("ewe.conversation")

    async def converse(stream: Any, site: Any) -> None:
        """Answer the requests of one connection until it ends, or the server stops."""
        note_begin(stream)
        while await stream.next_request(10.0):
            await stream.send(ANSWER)
            stream.requests += 1
            if stream.stopping:
                return

    module.__dict__.update(
        BUSY=b"HTTP/1.1 503\r\n\r\n",
        converse=converse,
        converse_behind_proxy=converse,
        converse_securely=converse,
    )
    return module


def note_begin(stream: Any) -> None:
    """Note that the conversation of a stream begins. Raises AssertionError if it has begun before."""
    assert not getattr(stream, "has_begun", False), "two conversations are held over one connection"
    stream.has_begun = True


def log() -> ModuleType:
    """Return the replacement of ewe.logger: an exception that a model catches and logs ends the run."""

    def exception(text: str) -> None:
        """End the run with the exception that is being handled. text: the model's line for the log, ignored."""
        run, reason = active_run(), sys.exc_info()[1]
        if run is not None and reason is not None:
            run.end_by_exception(run.current, reason)
            run.may_step()  # the run is over now: raises Abandoned, so that the lane does not go on

    def nothing(*_: Any) -> None:
        """Ignore a line of the log."""

    module = ModuleType("ewe.logger")
    module.__dict__["errors"] = SimpleNamespace(
        exception=exception, error=nothing, warning=nothing, info=nothing, debug=nothing
    )
    return module


def module_in_ewe(path: Path) -> str:
    """Return the module name of a file of ewe itself; "" for a student's file."""
    package = Path(ewe.__file__).resolve().parent
    if path.is_relative_to(package):
        return ".".join(path.relative_to(package.parent).with_suffix("").parts)
    return ""
