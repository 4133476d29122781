"""The contract of a processor: the class that every concurrency model derives from.

A processor implements one concurrency model. It accepts connections, and decides which process or thread runs each
conversation, and when. It does not know HTTP: the server gives it the conversations (ewe.conversations). A model is
one small file with one class:

    serve(listener) ── accept() ─▶ stream_of(accepted) ─▶ stream ─▶ run(stream): the conversation, to its end
                                                                    └─▶ release(stream): count, close, forget

    the server, from a signal handler: finish() ─▶ every stream ends after its exchange ─▶ serve() returns
                                       abort()  ─▶ every stream ends now

Models that run conversations in pieces (pool, event) call converse() instead of run(), and resume the coroutine
themselves. All models share the accounts (accounting.py): the set of live streams, the limits on connections (for
the process and for each client), refusals, and retirement. The class attributes, which the server reads before it
makes a processor, are in properties.py.

Read next: serial.py; docs/write-a-model.md leads through a model of your own.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ewe import logger
from ewe.processors.accounting import Accounts
from ewe.processors.former import conversations_of, keep_former_names
from ewe.processors.names import FLAGS, GROUP, PROCESSORS, SYNONYMS, UnknownModel, find_class, names
from ewe.processors.properties import ModelProperties
from ewe.streams import blocking
from ewe.streams.blocking import RECEIVE_TIMEOUT_S, BlockingStream, set_timeouts
from ewe.streams.flag import Flag

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.conversations import Conversations
    from ewe.streams.base import Stream
    from ewe.streams.listener import Accepted, Listener

__all__ = ["FLAGS", "GROUP", "PROCESSORS", "SYNONYMS", "Processor", "UnknownModel", "model_named", "names"]


class Processor(Accounts):
    """Runs conversations under one concurrency model.

    A model overrides serve(); if it starts processes, finish() and abort() as well.
    """

    def __init_subclass__(cls) -> None:
        """Keep the former names of the overridden methods working (ewe.processors.former)."""
        keep_former_names(cls)

    def __init__(self, conversations: Conversations, config: Config) -> None:
        """conversations: makes the conversation of each connection. A model passes it on, and does not read it."""
        super().__init__(conversations_of(conversations, config), config)
        self.asked_to_finish, self.asked_to_abort = Flag(), Flag()

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
            blocking.run(self.converse(stream))
        except BaseException:  # otherwise the process or the thread would end
            logger.errors.exception(f"a conversation with {stream.client[0]} failed")
        finally:
            self.release(stream)

    # Called by the server

    def start_conversations(self) -> str:
        """Start the applications before the first connection; return one line why one cannot start, or ""."""
        return self.conversations.start(self.asked_to_finish)

    def stop_conversations(self) -> None:
        """Stop the applications of this process, after the last connection."""
        self.conversations.stop(self.asked_to_abort)

    # Called by the server from a signal handler

    def adopt(self, conversations: Conversations, config: Config) -> None:
        """Use another configuration for new connections; open connections close after their next exchange."""
        self.conversations, self.config = conversations_of(conversations, config), config
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

    def signalled(self, signum: int) -> None:
        """Pass a signal on to child processes, after the server has handled it. By default there are none."""


keep_former_names(ModelProperties)
keep_former_names(Accounts)
keep_former_names(Processor)


def model_named(name: str) -> type[Processor]:
    """Return the class of the model with this name, or of this "module:Class". Raises UnknownModel."""
    found = find_class(name, Processor)
    found.name = found.name or name
    return found
