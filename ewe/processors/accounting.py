"""The accounts of a processor: its live streams, its limits, its refusals, and how it comes to an end.

Every model needs them, and no model decides anything here. Processor (base.py) derives from Accounts:

    accept ─▶ next(): has_room()? has_too_many()? ─┬─ no room: refuse(): 503, the last few stay open for a while
                                                   └─ room ─▶ register(stream): live, counted for its client
              ... the conversation ...
              release(stream): requests counted, closed, forget(stream) ─▶ room again; enough requests: retire()

    retire(): accept no more; each live stream ends after one more exchange ─▶ drain(): wait until none is live

What can go wrong: finish(), abort() and retire() come from a signal handler, between any two instructions. A method
therefore first changes the state that the handler reads, and looks at `stopping` last (register); and it iterates
over copies of sets.

Read next: base.py.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import TYPE_CHECKING, TypeVar

from ewe import logger
from ewe.streams.base import Stream

if TYPE_CHECKING:
    from socket import socket

    from ewe.config.settings import Config
    from ewe.conversations import Conversations
    from ewe.streams.listener import Accepted, Listener

# Refused connections that stay open for a while. They take descriptors that programs need, of the few that the
# ceiling leaves (RESERVE in ewe.server.processor_factory): far less than all of them.
LINGERING = 16
COMPLAIN = 10.0  # seconds between two lines of the log about refused connections

S = TypeVar("S", bound=Stream)
SHUT_WR = 1  # as in the socket module


class Accounts:
    """What is open in this process, and what may still be opened.

    live: the streams whose conversations have not ended. cut: how many conversations were aborted. served: requests
    answered on connections that have ended. retire_at: requests after which this process retires; 0: never.
    clients: connections by client address, if they are limited. draining: serve() waits in drain(). stopping,
    finishing: as in Stream.
    """

    many_threads = False  # may two conversations run in this process at once?
    ceiling = 1  # open connections in one process, unless config.connections says otherwise

    def __init__(self, conversations: Conversations, config: Config) -> None:
        self.conversations = conversations
        self.config = config
        self.live: set[Stream] = set()
        self.listener: Listener
        self.stopping = self.finishing = self.draining = False
        self.cut = self.served = 0
        self.retire_at = 0.0
        self.clients: Counter[str] = Counter()
        self.refused: deque[socket] = deque(maxlen=LINGERING)
        self.unreported = 0  # refusals since the last line of the log about one
        self.report_from = 0.0
        if config.connections is not None:
            self.ceiling = config.connections

    # Streams

    def register(self, stream: S) -> S:
        """Add a stream to those that finish() and abort() end; return it."""
        self.live.add(stream)
        if self.stopping:  # checked last: a signal may come at any point
            stream.stopping = True
            stream.finishing = self.finishing
        if self.config.connections_per_client:
            self.clients[stream.client[0]] += 1
        return stream

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

    # Limits

    def has_room(self) -> bool:
        """Return whether another connection may be opened."""
        return len(self.live) < self.ceiling

    def has_too_many(self, client: str) -> bool:
        """Return whether a client address has all the connections that it may have; a trusted proxy never has."""
        most = self.config.connections_per_client
        if not most or self.clients[client] < most:
            return False
        return not self.conversations.is_trusted(client)

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
        """Answer that there is no room, without reading a request, and close the connection.

        limit: the setting that was reached, for the log.
        """
        self.report_refusal(accepted.client[0], limit)
        try:
            accepted.socket.setblocking(False)
            if self.conversations.refusal:
                accepted.socket.send(self.conversations.refusal)
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

    # The end

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

    def retire_after(self, requests: int) -> None:
        """Retire after this many requests, give or take 10 %, so that workers do not retire all at once."""
        import random

        self.retire_at = requests * random.uniform(0.9, 1.1)

    def retire(self) -> None:
        """Stop accepting, and close each connection after its next exchange, so that no request is lost."""
        self.stopping = True
        self.listener.close()
        self.mark_last()

    def mark_last(self) -> None:
        """Make the exchange in progress (if none is, the next) the last of each connection."""
        for stream in list(self.live):
            stream.stopping = True
