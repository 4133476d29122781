"""The interface of a processor, and how a model is found by its name.

A processor is one concurrency model: it accepts connections and decides who runs each conversation, and when. It
does not know HTTP. A model is one small file with one class:

    serve(listener) ── listener.accept() ─▶ meet(accepted) ─▶ stream ─▶ hold(stream): the conversation, to its end
                                                                        └─▶ release(stream): count, close, forget

    the server, from a signal handler: finish() ─▶ every stream ends after its exchange ─▶ serve() returns
                                       abort()  ─▶ every stream ends now

Models that run conversations in pieces (pool, event) call converse() instead of hold(), and resume the coroutine
themselves. All models share what is below serve(): the set of live streams, the ceiling of connections and the
limit for each client, refusals with 503, and the stop.

A model is found by name in the table PROCESSORS, in the entry points of other packages (group "ewe.processors"), or
as "module:Class". The module is imported only when its model is chosen, so a server loads one model.

What can go wrong: finish() and abort() come from a signal handler, between any two instructions. A method therefore
first changes the state that the handler reads and looks at `stopping` last (register), and iterates over copies of
sets.

Read next: serial.py; docs/write-a-model.md leads through a model of your own.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ewe import logger
from ewe.conversation import BUSY, converse, converse_announced, converse_securely
from ewe.registry import entry_points, in_words, load
from ewe.streams.base import Stream
from ewe.streams.blocking import SLICE, BlockingStream, run, set_timeouts
from ewe.streams.flag import Flag

if TYPE_CHECKING:
    from socket import socket

    from ewe.config.settings import Config
    from ewe.site import Site
    from ewe.streams.listener import Accepted, Listener

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
SYNONYMS = {"none": "serial", "event": "asyncio"}  # the EWE of 2006 called the serial model "none"
GROUP = "ewe.processors"  # the entry-point group in which other packages register their models

# Refused connections that stay open for a while. They take descriptors that programs need, of the few that the
# ceiling leaves (RESERVE in ewe.server.processor_factory): far less than all of them.
LINGERING = 16
COMPLAIN = 10.0  # seconds between two lines of the log about refused connections

S = TypeVar("S", bound=Stream)
SHUT_WR = 1  # as in the socket module


class UnknownModel(ValueError):
    """The model does not exist or cannot be loaded; the text is one line."""


class Processor:
    """Runs conversations under one concurrency model.

    To override: serve(); finish() and abort() in a model that starts processes.
    To call: meet() makes the stream of an accepted connection, hold() runs its conversation to the end.

    The class attributes are facts that the server and the features ask for; many_threads and many_processes are
    those of PEP 3333.
    """

    name = ""
    many_threads = False  # may two conversations run in this process at once?
    many_processes = False  # may another process be running one too?
    holds_idle = True  # does an idle connection hold a thread or a process?
    ceiling = 1  # open connections in one process, unless config.connections says otherwise
    workers = 1  # processes that the supervisor keeps, unless config.workers says otherwise
    supervised = True  # may there be more than one of them?
    traces_itself = False  # does it write the events of EWE_TRACE (ewe.server.trace) itself?
    needs_xswitch = False  # does it need its own X-Switch beside it (ewe.server.xswitch_process)?

    def __init__(self, site: Site, config: Config) -> None:
        self.site = site
        self.config = config
        self.live: set[Stream] = set()
        self.listener: Listener
        self.stopping = self.finishing = False  # as in Stream
        self.told_to_finish, self.told_to_abort = Flag(), Flag()
        self.draining = False  # serve() waits in drain() for the last conversations
        self.cut = 0  # conversations that were aborted
        self.served = 0  # requests answered on connections that have ended
        self.retire_at = 0.0  # requests after which this process retires; 0: never
        self.clients: Counter[str] = Counter()  # connections by client address, if they are limited
        self.refused: deque[socket] = deque(maxlen=LINGERING)
        self.unreported = 0  # refusals since the last line of the log about one
        self.report_from = 0.0
        if config.connections is not None:
            self.ceiling = config.connections

    @classmethod
    def idle_holds(cls, config: Config) -> bool:
        """Return whether an idle connection holds a worker under this configuration."""
        return cls.holds_idle

    @classmethod
    def calls_at_once(cls, config: Config) -> bool:
        """Return whether two conversations of one process may be in Stream.call() at once."""
        return cls.many_threads

    @classmethod
    def processes_at_once(cls, config: Config) -> bool:
        """Return whether several processes run conversations under this configuration."""
        if cls.supervised:
            return (config.workers or cls.workers) > 1
        return cls.many_processes

    @classmethod
    def words(cls, config: Config) -> str:
        """Return the model's description for the banner."""
        return cls.name

    def serve(self, listener: Listener) -> None:
        """Serve the listener's connections; return when it is closed and every conversation has ended."""
        raise NotImplementedError

    # What a model calls

    def meet(self, accepted: Accepted) -> Stream:
        """Return the blocking stream of an accepted connection, registered for finish() and abort()."""
        if accepted.client[1] == 0:  # Unix sockets inherit nothing from their listener
            set_timeouts(accepted.socket, SLICE, self.config.write_timeout)
        stream = BlockingStream(accepted.socket, accepted.client, accepted.server, self.config)
        return self.register(stream)

    def register(self, stream: S) -> S:
        """Add a stream to those that finish() and abort() end; return it."""
        self.live.add(stream)
        if self.stopping:  # checked last: a signal may come at any point
            stream.stopping = True
            stream.finishing = self.finishing
        if self.config.connections_per_client:
            self.clients[stream.client[0]] += 1
        return stream

    def converse(self, stream: Stream) -> Coroutine[Any, Any, None]:
        """Return the conversation over a stream, as a coroutine; every model runs the same."""
        if self.config.proxy_protocol:
            return converse_announced(stream, self.site)
        if self.site.tls is not None:
            return converse_securely(stream, self.site)
        return converse(stream, self.site)

    def hold(self, stream: Stream) -> None:
        """Run a conversation from its start to its end in this thread."""
        try:
            run(self.converse(stream))
        except Exception:
            logger.errors.exception(f"a conversation with {stream.client[0]} failed")
        finally:
            self.release(stream)

    def release(self, stream: Stream) -> None:
        """Close a stream whose conversation has ended, and forget it last, since drain() waits for that."""
        if stream.aborted:
            self.cut += 1
        self.served += stream.requests
        stream.close()
        self.forget(stream)
        if self.draining or (self.many_threads and not self.listener.accepting):
            self.listener.wake()  # drain() waits for the last conversation, or serve() for room below the ceiling
        if self.retire_at and self.served >= self.retire_at and not self.stopping:
            logger.errors.debug(f"retiring after {self.served} requests")
            self.retire()

    def forget(self, stream: Stream) -> None:
        """Remove a stream from those that finish() and abort() end."""
        self.uncount((stream.peer or stream.client)[0])
        self.live.discard(stream)

    def uncount(self, client: str) -> None:
        """Count one connection of a client address less; an address without connections is dropped."""
        if client in self.clients:
            self.clients[client] -= 1
            if self.clients[client] <= 0:
                del self.clients[client]

    def has_room(self) -> bool:
        """Return whether another connection may be opened."""
        return len(self.live) < self.ceiling

    def has_too_many(self, client: str) -> bool:
        """Return whether a client address has all the connections that it may have; a trusted proxy never has."""
        most = self.config.connections_per_client
        if not most or self.clients[client] < most:
            return False
        return self.site.proxies is None or client not in self.site.proxies.networks

    # Applications (ASGI): on the event loop of a separate thread, unless the model has a loop

    def start_applications(self) -> str:
        """Start the site's applications, before the first connection; return why one cannot start, or ""."""
        if not self.site.applications:
            return ""
        from ewe.gateway.asgi import start_all
        from ewe.streams.loops import LoopThread

        loop = LoopThread.of_this_process(self.config.loop)
        return loop.run(start_all(self.site.applications, self.told_to_finish))

    def stop_applications(self) -> None:
        """Stop the applications that were started in this process, after the last connection."""
        if "ewe.gateway.asgi" not in sys.modules:
            return
        from ewe.gateway.asgi import stop_all
        from ewe.streams.loops import LoopThread

        loop = LoopThread.existing()
        if loop is not None:
            loop.run(stop_all(self.config.grace, self.told_to_abort))
            loop.close()

    def next(self, listener: Listener) -> Accepted | None:
        """Return the next connection, or None if the wait was ended or the connection refused.

        At the ceiling a connection is left in the backlog or refused (overload).
        """
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
        """Answer 503 to a connection without reading a request, and close it.

        limit: the setting that was reached, for the log.
        """
        self.report_refusal(accepted.client[0], limit)
        try:
            accepted.socket.setblocking(False)
            if self.site.tls is None:  # before the handshake TLS has no way to say it
                accepted.socket.send(BUSY)
            accepted.socket.shutdown(SHUT_WR)
        except OSError:
            pass
        # To close a socket with unread bytes sends a reset, and the client might lose the 503. The last few
        # sockets stay open for a while.
        if len(self.refused) == self.refused.maxlen:
            self.refused.popleft().close()
        self.refused.append(accepted.socket)

    def report_refusal(self, client: str, limit: str) -> None:
        """Log a refusal, once in COMPLAIN seconds: a flood of them must not fill the disk."""
        now = time.monotonic()
        if now < self.report_from:
            self.unreported += 1
            return
        more = f"; so were {self.unreported} before it" if self.unreported else ""
        logger.errors.warning(f"{client}: 503, {len(self.live)} connections are open ({limit}){more}")
        self.unreported = 0
        self.report_from = now + COMPLAIN

    def in_progress(self) -> int:
        """Return how many requests are in progress, for which a stop waits."""
        return sum(not stream.idle for stream in list(self.live))

    def unfinished(self) -> int:
        """Return how many conversations have not ended."""
        return len(self.live)

    def drain(self) -> None:
        """Wait until every conversation of this process has ended; the server's abort() bounds the wait.

        Nothing polls: release() wakes the listener, whose wait ends only then and at a signal.
        """
        self.draining = True  # before the look at `live`: release() changes `live` before it looks at this
        while self.live:
            self.listener.wait(-1, 0)

    # What the server calls, also from a signal handler

    def retire_after(self, requests: int) -> None:
        """Retire after this many requests, give or take 10 %, so that workers do not retire all at once."""
        import random

        self.retire_at = requests * random.uniform(0.9, 1.1)

    def retire(self) -> None:
        """Stop accepting, and close each connection after its next exchange, so that no request is lost."""
        self.stopping = True
        self.listener.close()
        self.mark_last()

    def adopt(self, site: Site, config: Config) -> None:
        """Use another configuration for connections to come; open ones close after their next exchange."""
        self.site, self.config = site, config
        self.mark_last()

    def mark_last(self) -> None:
        """Make the exchange in progress (if none is, the next) the last of each connection."""
        for stream in list(self.live):
            stream.stopping = True

    def finish(self) -> None:
        """Stop accepting, close idle connections, let requests in progress end."""
        self.finishing = self.stopping = True
        self.listener.close()
        for stream in list(self.live):
            stream.finish()
        self.told_to_finish.set()

    def signalled(self, number: int) -> None:
        """Pass on a signal that the server has handled; for models that start child processes."""

    def abort(self) -> None:
        """End every conversation and its programs now."""
        self.finish()
        self.told_to_abort.set()
        for stream in list(self.live):
            stream.abort()


def names() -> list[str]:
    """Return the names of all models, those that other packages register included."""
    return [*PROCESSORS, *entry_points(GROUP)]


def find(name: str) -> type[Processor]:
    """Return the class of a model, by its name or as "module:Class". Raises UnknownModel."""
    name = SYNONYMS.get(name, name)
    where = PROCESSORS.get(name) or (name if ":" in name else "")
    try:
        found = load(where) if where else entry_points(GROUP)[name].load()
    except KeyError:
        raise UnknownModel(f"model {name!r} is unknown; there are {', '.join(names())}") from None
    except Exception as reason:  # of a module that may be anybody's
        raise UnknownModel(f"model {name!r} cannot be loaded: {in_words(reason)}") from None
    if not (isinstance(found, type) and issubclass(found, Processor)):
        raise UnknownModel(f"model {name!r} is not a subclass of ewe.processors.base.Processor")
    found.name = found.name or name
    return found
