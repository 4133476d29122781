"""The contract of a processor: what a concurrency model is, and what it is given to run.

A processor is one concurrency model: it accepts connections and decides who runs each conversation, and when. It
does not know what is said in a conversation. A model is one small file with one class:

    serve(listener) ── listener.accept() ─▶ meet(accepted) ─▶ stream ─▶ hold(stream): the conversation, to its end
                                                                        └─▶ release(stream): count, close, forget

    the server, from a signal handler: finish() ─▶ every stream ends after its exchange ─▶ serve() returns
                                       abort()  ─▶ every stream ends now

Models that run conversations in pieces (pool, event) call converse() instead of hold(), and resume the coroutine
themselves. All models share the accounts (accounting.py): the set of live streams, the ceiling of connections and
the limit for each client, refusals, and retirement.

What can go wrong: finish() and abort() come from a signal handler, between any two instructions. They first change
the state that register() reads, and iterate over copies of sets.

Read next: serial.py; docs/write-a-model.md leads through a model of your own.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ewe import logger
from ewe.conversations import Conversations
from ewe.processors.accounting import Accounts
from ewe.processors.names import FLAGS, GROUP, PROCESSORS, SYNONYMS, UnknownModel, find_class, names
from ewe.streams.blocking import SLICE, BlockingStream, run, set_timeouts
from ewe.streams.flag import Flag

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.streams.base import Stream
    from ewe.streams.listener import Accepted, Listener

__all__ = ["FLAGS", "GROUP", "PROCESSORS", "SYNONYMS", "Processor", "UnknownModel", "find", "names"]


class Processor(Accounts):
    """Runs conversations under one concurrency model.

    To override: serve(); finish() and abort() in a model that starts processes.
    To call: meet() makes the stream of an accepted connection, hold() runs its conversation to the end.

    The class attributes, with those of Accounts, are facts that the server and the features ask for. many_threads
    and many_processes are those of PEP 3333.
    """

    name = ""
    many_processes = False  # may another process be running a conversation at the same time?
    holds_idle = True  # does an idle connection hold a thread or a process?
    workers = 1  # processes that the supervisor keeps, unless config.workers says otherwise
    supervised = True  # may there be more than one of them?
    traces_itself = False  # does it write the events of EWE_TRACE (ewe.server.trace) itself?
    needs_xswitch = False  # does it need its own X-Switch beside it (ewe.server.xswitch_process)?

    def __init__(self, site: Any, config: Config) -> None:
        """site: whose conversations they are; no model looks into it."""
        super().__init__(Conversations(site, config), config)
        self.told_to_finish, self.told_to_abort = Flag(), Flag()

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

    def converse(self, stream: Stream) -> Coroutine[Any, Any, None]:
        """Return the conversation over a stream, as a coroutine; every model runs the same."""
        return self.conversations.of(stream)

    def hold(self, stream: Stream) -> None:
        """Run a conversation from its start to its end in this thread."""
        try:
            run(self.converse(stream))
        except Exception:
            logger.errors.exception(f"a conversation with {stream.client[0]} failed")
        finally:
            self.release(stream)

    # What the server calls

    def start_conversations(self) -> str:
        """Start what the conversations need, before the first connection; return why it cannot start, or ""."""
        return self.conversations.start(self.told_to_finish)

    def stop_conversations(self) -> None:
        """Stop what the conversations have started in this process, after the last connection."""
        self.conversations.stop(self.told_to_abort)

    # What the server calls from a signal handler

    def adopt(self, site: Any, config: Config) -> None:
        """Use another configuration for connections to come; open ones close after their next exchange."""
        self.conversations, self.config = Conversations(site, config), config
        self.mark_last()

    def finish(self) -> None:
        """Stop accepting, close idle connections, let requests in progress end."""
        self.finishing = self.stopping = True
        self.listener.close()
        for stream in list(self.live):
            stream.finish()
        self.told_to_finish.set()

    def abort(self) -> None:
        """End every conversation and its programs now."""
        self.finish()
        self.told_to_abort.set()
        for stream in list(self.live):
            stream.abort()

    def signalled(self, number: int) -> None:
        """Pass on a signal that the server has handled; for models that start child processes."""


def find(name: str) -> type[Processor]:
    """Return the class of a model, by its name or as "module:Class". Raises UnknownModel."""
    found = find_class(name, Processor)
    found.name = found.name or name
    return found
