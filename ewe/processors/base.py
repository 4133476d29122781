"""The contract of a processor: the class that every concurrency model derives from.

A processor implements one concurrency model. It accepts connections, and decides which process or thread runs each
conversation, and when. It does not know HTTP. A model is one small file with one class:

    serve(listener) ── accept() ─▶ stream_of(accepted) ─▶ stream ─▶ run(stream): the conversation, to its end
                                                                    └─▶ release(stream): count, close, forget

    the server, from a signal handler: finish() ─▶ every stream ends after its exchange ─▶ serve() returns
                                       abort()  ─▶ every stream ends now

Models that run conversations in pieces (pool, event) call converse() instead of run(), and resume the coroutine
themselves. All models share the accounts (accounting.py): the set of live streams, the limits on connections (for
the process and for each client), refusals, and retirement.

Possible failures: a signal handler calls finish() and abort(), between any two instructions. They first change the
state that register() reads, and iterate over copies of sets.

Read next: serial.py; docs/write-a-model.md leads through a model of your own.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ewe import logger
from ewe.config.count_range import CoreCount, CountRange, range_of
from ewe.conversations import Conversations
from ewe.processors.accounting import Accounts
from ewe.processors.former import keep_former_names
from ewe.processors.names import FLAGS, GROUP, PROCESSORS, SYNONYMS, UnknownModel, find_class, names
from ewe.processors.seats import Seat
from ewe.streams.blocking import RECEIVE_TIMEOUT_S, BlockingStream, run, set_timeouts
from ewe.streams.flag import Flag

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.streams.base import Stream
    from ewe.streams.listener import Accepted, Listener

__all__ = ["FLAGS", "GROUP", "PROCESSORS", "SYNONYMS", "Processor", "UnknownModel", "model_named", "names"]


class Processor(Accounts):
    """Runs conversations under one concurrency model.

    A model overrides serve(); if it starts processes, finish() and abort() as well.
    A model calls stream_of(), which makes the stream of an accepted connection, and run(), which runs the
    conversation to its end.

    The server and the features read the class attributes, and those of Accounts. many_threads and many_processes
    mean the same as multithread and multiprocess in PEP 3333.
    """

    name = ""
    many_processes = False  # may another process be running a conversation at the same time?
    worker_method = ""  # of a thread or a forked child, from its begin to its end: for the trace
    runs_at_once = False  # does the thread that accepts a connection run its conversation at once?
    idle_occupies_worker = True  # does an idle connection occupy a thread or a process?
    workers = CountRange(1)  # processes that the supervisor keeps, unless config.workers says otherwise
    may_grow = False  # may their number be a range? Then each worker says in its seat whether it is idle
    seat = Seat()
    supervised = True  # may there be more than one worker process?
    traces_itself = False  # does it write the events of EWE_TRACE (ewe.server.trace) itself?
    needs_xswitch = False  # does it need its own X-Switch beside it (ewe.server.xswitch_process)?

    def __init_subclass__(cls) -> None:
        """Keep the former names of the overridden methods working (ewe.processors.former)."""
        keep_former_names(cls)

    def __init__(self, site: Any, config: Config) -> None:
        """site: the site that answers the requests. A model passes it on, and does not read it."""
        super().__init__(Conversations(site, config), config)
        self.asked_to_finish, self.asked_to_abort = Flag(), Flag()

    @classmethod
    def occupied_by_idle(cls, config: Config) -> bool:
        """Return whether an idle connection occupies a worker under this configuration."""
        return cls.idle_occupies_worker

    @classmethod
    def calls_at_once(cls, config: Config) -> bool:
        """Return whether two conversations of one process may be in Stream.call() at once."""
        return cls.many_threads

    @classmethod
    def processes_at_once(cls, config: Config) -> bool:
        """Return whether several processes run conversations under this configuration."""
        if cls.supervised:
            return cls.range_of_workers(config).most > 1
        return cls.many_processes

    @classmethod
    def range_of_workers(cls, config: Config) -> CountRange:
        """Return how many processes the supervisor keeps under this configuration.

        workers = auto is a process for each processor. A model whose number may grow keeps its own range: each of
        its processes serves one client at a time, so the clients decide the number, and not the processors.
        """
        if not cls.supervised:
            return CountRange(1)
        wanted = config.workers
        if isinstance(wanted, CoreCount):
            return cls.workers if cls.may_grow else CountRange(int(wanted))
        return range_of(wanted or cls.workers)

    @classmethod
    def description(cls, config: Config) -> str:
        """Return the model's description for the banner."""
        return cls.name

    def serve(self, listener: Listener) -> None:
        """Serve the listener's connections; return when it is closed and every conversation has ended."""
        raise NotImplementedError

    # Called by a model

    def stream_of(self, accepted: Accepted) -> Stream:
        """Return the blocking stream of an accepted connection, registered for finish() and abort()."""
        _, port = accepted.client
        if port == 0:  # an accepted Unix socket does not inherit the time limits of its listening socket
            set_timeouts(accepted.socket, RECEIVE_TIMEOUT_S, self.config.write_timeout)
        return self.register(self.blocking_stream(accepted))

    def blocking_stream(self, accepted: Accepted) -> Stream:
        """Return a stream over the socket of an accepted connection. A model may return another kind."""
        return BlockingStream(accepted.socket, accepted.client, accepted.server, self.config)

    def converse(self, stream: Stream) -> Coroutine[Any, Any, None]:
        """Return the conversation over a stream, as a coroutine. It is the same under every model."""
        return self.conversations.of(stream)

    def run(self, stream: Stream) -> None:
        """Run a conversation from its start to its end in this thread."""
        try:
            run(self.converse(stream))
        except (Exception, SystemExit):
            logger.errors.exception(f"a conversation with {stream.client[0]} failed")
        finally:
            self.release(stream)

    # Called by the server

    def start_conversations(self) -> str:
        """Start the site's ASGI applications, before the first connection; return why one cannot start, or ""."""
        return self.conversations.start(self.asked_to_finish)

    def stop_conversations(self) -> None:
        """Stop the ASGI applications of this process, after the last connection."""
        self.conversations.stop(self.asked_to_abort)

    # Called by the server from a signal handler

    def adopt(self, site: Any, config: Config) -> None:
        """Use another configuration for new connections; open connections close after their next exchange."""
        self.conversations, self.config = Conversations(site, config), config
        self.listener.limit_sends(config.write_timeout)
        self.mark_last()

    def finish(self) -> None:
        """Stop accepting connections, close the idle ones, and let requests in progress end."""
        self.finishing = self.stopping = True
        self.listener.close()
        for stream in list(self.live):
            stream.finish()
        self.asked_to_finish.set()

    def abort(self) -> None:
        """Abort every conversation, and kill its programs."""
        self.finish()
        self.asked_to_abort.set()
        for stream in list(self.live):
            stream.abort()

    def signalled(self, number: int) -> None:
        """Pass a signal on to child processes, after the server has handled it. By default there are none."""


keep_former_names(Accounts)
keep_former_names(Processor)


def model_named(name: str) -> type[Processor]:
    """Return the class of the model with this name, or of this "module:Class". Raises UnknownModel."""
    found = find_class(name, Processor)
    found.name = found.name or name
    return found
