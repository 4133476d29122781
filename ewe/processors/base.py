"""The processor interface, and how a model is found by name.

A model is one small file: accept, decide who runs the conversation, clean up. The shortest is serial.py;
docs/write-a-model.md leads through one. Nothing here or in a model knows HTTP.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ewe import logger
from ewe.conversation import BUSY, converse, converse_securely
from ewe.streams import SLICE, BlockingStream, Stream, run, set_timeouts

if TYPE_CHECKING:
    from socket import socket

    from ewe.config import Config
    from ewe.listener import Accepted, Listener
    from ewe.site import Site

PROCESSORS = {  # name: where it is defined; imported only when chosen
    "serial": "ewe.processors.serial:Serial",
    "fork": "ewe.processors.fork:Fork",
    "prefork": "ewe.processors.prefork:Prefork",
    "thread": "ewe.processors.thread:Thread",
    "pool": "ewe.processors.pool:Pool",
    "asyncio": "ewe.processors.event:Event",
    "xswitch": "ewe.processors.xswitch:XSwitch",
}
FLAGS = {"-n": "serial", "-f": "fork", "-t": "thread", "-p": "pool", "-a": "asyncio", "-x": "xswitch"}
SYNONYMS = {"none": "serial", "event": "asyncio"}  # "none" is what the EWE of 2006 called it
GROUP = "ewe.processors"  # the entry-point group in which other packages name theirs


S = TypeVar("S", bound=Stream)
SHUT_WR = 1  # as in the socket module


class UnknownModel(ValueError):
    """There is no such model; the text is one line."""


class Processor:
    """Runs conversations under one concurrency model.

    To override: serve(), and for models with more than a thread or process finish() and abort().
    To call: meet() makes a stream of an accepted connection, hold() runs its conversation to the end.

    The facts below are what others ask of a model; many_threads and many_processes are the two of PEP 3333.
    """

    name = ""
    many_threads = False  # may two conversations run in this process at once?
    many_processes = False  # may another process be running one too?
    holds_idle = True  # does an idle connection hold a thread or a process?
    ceiling = 1  # open connections in one process, unless config.connections says otherwise
    workers = 1  # processes that the supervisor keeps, unless config.workers says otherwise
    supervised = True  # may there be more than one of them?
    has_companion = False  # does it need an X-Switch of its own beside it (ewe.companion)?

    def __init__(self, site: Site, config: Config) -> None:
        self.site = site
        self.config = config
        self.live: set[Stream] = set()
        self.listener: Listener
        self.stopping = self.finishing = False  # as for a stream
        self.cut = 0  # conversations that had to be ended
        self.served = 0  # requests
        self.retire_at = 0.0
        self.clients: Counter[str] = Counter()  # connections by client address, where they are limited
        self.refused: deque[socket] = deque(maxlen=64)
        if config.connections is not None:
            self.ceiling = config.connections

    @classmethod
    def idle_holds(cls, config: Config) -> bool:
        """Does an idle connection hold a worker, as configured?"""
        return cls.holds_idle

    @classmethod
    def words(cls, config: Config) -> str:
        """Return the model in words, for the banner."""
        return cls.name

    def serve(self, listener: Listener) -> None:
        """Serve what the listener yields until it is closed, and every conversation has ended."""
        raise NotImplementedError

    # What a model calls

    def meet(self, accepted: Accepted) -> Stream:
        """Return the stream of an accepted connection, known to finish() and abort()."""
        if accepted.client[1] == 0:  # Unix sockets inherit nothing from their listener
            set_timeouts(accepted.socket, SLICE, self.config.write_timeout)
        stream = BlockingStream(accepted.socket, accepted.client, accepted.server, self.config)
        return self.entered(stream)

    def entered(self, stream: S) -> S:
        """Take note of a new stream."""
        self.live.add(stream)
        if self.stopping:  # looked at last: a signal may come at any point
            stream.stopping = True
            stream.finishing = self.finishing
        if self.config.connections_per_client:
            self.clients[stream.client[0]] += 1
        return stream

    def converse(self, stream: Stream) -> Coroutine[Any, Any, None]:
        """Return the conversation over a stream: the same for every model."""
        if self.site.tls is not None:
            return converse_securely(stream, self.site)
        return converse(stream, self.site)

    def hold(self, stream: Stream) -> None:
        """Run a conversation from its start to its end, here and now."""
        try:
            run(self.converse(stream))
        except Exception:
            logger.errors.exception(f"a conversation with {stream.client[0]} failed")
        finally:
            self.leave(stream)

    def leave(self, stream: Stream) -> None:
        """Count a stream whose conversation has ended, close it, and only then forget it: drain() waits."""
        if stream.aborted:
            self.cut += 1
        self.served += stream.requests
        stream.close()
        self.left(stream.client[0])
        self.live.discard(stream)
        if self.many_threads and not self.listener.accepting:
            self.listener.wake()  # serve() may be waiting for room
        if self.retire_at and self.served >= self.retire_at and not self.stopping:
            logger.errors.debug(f"retiring after {self.served} requests")
            self.retire()

    def left(self, client: str) -> None:
        """Forget a connection of this client address; those that have none left are not remembered."""
        if client in self.clients:
            self.clients[client] -= 1
            if self.clients[client] <= 0:
                del self.clients[client]

    def has_room(self) -> bool:
        """May another connection be opened?"""
        return len(self.live) < self.ceiling

    def has_too_many(self, client: str) -> bool:
        """Has this client address as many connections as it may have?"""
        most = self.config.connections_per_client
        return bool(most) and self.clients[client] >= most

    def next(self, listener: Listener) -> Accepted | None:
        """Return the next connection; at the ceiling leave it in the backlog, or refuse it, as configured."""
        accepted = listener.accept(self.config.overload == "refuse" or self.has_room())
        if accepted is None:
            return None
        if self.has_too_many(accepted.client[0]):
            self.refuse(accepted, "connections-per-client")
        elif not self.has_room():
            self.refuse(accepted, "connections")
        else:
            return accepted
        return None

    def refuse(self, accepted: Accepted, limit: str) -> None:
        """Answer 503 without reading a request, and close: nothing is dropped without a word."""
        logger.errors.warning(f"{accepted.client[0]}: 503, {len(self.live)} connections are open ({limit})")
        try:
            accepted.socket.setblocking(False)
            if self.site.tls is None:  # TLS has no word for it before the handshake
                accepted.socket.send(BUSY)
            accepted.socket.shutdown(SHUT_WR)
        except OSError:
            pass
        # Closed with the request unread it would be reset, and the client might lose the answer: the last
        # few stay open for a while.
        if len(self.refused) == self.refused.maxlen:
            self.refused.popleft().close()
        self.refused.append(accepted.socket)

    def drain(self) -> None:
        """Wait until every conversation of this process has ended; abort() bounds it."""
        while self.live:
            time.sleep(0.005)

    # What the server calls, from a signal handler too

    def retire_after(self, requests: int) -> None:
        """Retire after about so many requests, give or take a tenth, so that workers do not go all at once."""
        import random

        self.retire_at = requests * random.uniform(0.9, 1.1)

    def retire(self) -> None:
        """Accept no more, and close each connection after its next exchange: nobody's request is lost."""
        self.stopping = True
        self.listener.close()
        self.let_go()

    def adopt(self, site: Site, config: Config) -> None:
        """Go on with another configuration; what is connected gets it with its next connection."""
        self.site, self.config = site, config
        self.let_go()

    def let_go(self) -> None:
        """Make the exchange in progress, or the next, the last of each connection."""
        for stream in list(self.live):
            stream.stopping = True

    def finish(self) -> None:
        """Accept no more, close idle connections, let requests in progress end."""
        self.finishing = self.stopping = True
        self.listener.close()
        for stream in list(self.live):
            stream.finish()

    def signalled(self, number: int) -> None:
        """A signal came that child processes of this model's own have to know."""

    def abort(self) -> None:
        """End every conversation and its programs now."""
        self.finish()
        for stream in list(self.live):
            stream.abort()


def names() -> list[str]:
    """Return the names of all registered models, those of other packages included."""
    return [*PROCESSORS, *entry_points()]


def entry_points() -> dict[str, Any]:
    """Return what other packages registered: name -> entry point."""
    from importlib.metadata import entry_points as registered

    return {entry.name: entry for entry in registered(group=GROUP)}


def find(name: str) -> type[Processor]:
    """Return the model of this name, or the class that "module:Class" names. Raises UnknownModel."""
    name = SYNONYMS.get(name, name)
    where = PROCESSORS.get(name) or (name if ":" in name else "")
    try:
        found = load(where) if where else entry_points()[name].load()
    except KeyError:
        raise UnknownModel(f"model {name!r} is unknown; there are {', '.join(names())}") from None
    except (ImportError, AttributeError) as reason:
        raise UnknownModel(f"model {name!r} cannot be loaded: {reason}") from None
    if not (isinstance(found, type) and issubclass(found, Processor)):
        raise UnknownModel(f"model {name!r} is not a subclass of ewe.processors.base.Processor")
    found.name = found.name or name
    return found


def load(where: str) -> Any:
    """Import what "module:Class" names; the module may be a file in the current directory."""
    import sys
    from importlib import import_module

    module, _, attribute = where.partition(":")
    if "" not in sys.path and not module.startswith("ewe."):
        sys.path.insert(0, "")
    return getattr(import_module(module), attribute)
