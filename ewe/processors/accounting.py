"""The accounts of a processor: its live streams, its limits, its refusals, and its end.

The accounts are the same for every model. Processor (base.py) derives from Accounts:

    next_connection(): has_too_many()? limit_reached()? ─┬─ yes: refuse(): 503, the last few stay open for a while
                                                         └─ no ─▶ register(stream): live, counted for its client
              ... the conversation ...
              release(stream): requests counted, closed, forget(stream) ─▶ room again; enough requests: retire()

    retire(): accept no more; each live stream ends after one more exchange ─▶ drain(): wait until none is live

Possible failures: a signal handler calls finish(), abort() and retire(), between any two instructions. A method
therefore first changes the state that the handler reads, and reads `stopping` last (register). It iterates over
copies of sets. A worker thread may end a client's last connection while the main thread accepts its next one: the
count of a client changes under a lock, which no signal handler takes.

Read next: base.py.
"""

from __future__ import annotations

import time
from _thread import allocate_lock
from collections import Counter, deque
from typing import TYPE_CHECKING, TypeVar

from ewe import logger
from ewe.processors.properties import ModelProperties
from ewe.streams.base import Stream

if TYPE_CHECKING:
    from socket import socket

    from ewe.config.settings import Config
    from ewe.conversations import Conversations
    from ewe.streams.listener import Accepted, Listener

# Refused connections that stay open for a while. Each takes one of the few descriptors that the connection limit
# leaves for programs (RESERVED_DESCRIPTORS in ewe.server.processor_factory), so it is far below that number.
MAX_LINGERING = 16
LOG_EVERY_S = 10.0  # seconds between two log lines about refused connections

S = TypeVar("S", bound=Stream)
SHUT_WR = 1  # as in the socket module


class Accounts(ModelProperties):
    """Counts the open connections of this process, and enforces its limits.

    live: the streams whose conversations have not ended. aborted: the number of aborted conversations. served: the
    number of requests answered on connections that have ended. max_served: this process retires after so many
    requests; 0: never. clients: the number of connections by client address, if it is limited. draining: serve()
    waits in drain(). stopping: at most one more exchange follows on each connection; set when the process retires,
    gets new settings, or stops. finishing: no exchange follows those in progress.
    """

    def __init__(self, conversations: Conversations, config: Config) -> None:
        self.conversations = conversations
        self.config = config
        self.live: set[Stream] = set()
        self.listener: Listener
        self.stopping = self.finishing = self.draining = False
        self.aborted = self.served = 0
        self.max_served = 0.0
        self.clients: Counter[str] = Counter()
        self.clients_lock = allocate_lock()
        self.refused: deque[socket] = deque(maxlen=MAX_LINGERING)
        self.unreported = 0  # refusals since the last log line about one
        self.report_from = 0.0  # the time.monotonic() from which a refusal is logged again
        if config.connections is not None:
            self.connection_limit = config.connections

    # Streams

    def register(self, stream: S) -> S:
        """Add a stream to the live ones, which finish() and abort() end; count its client; return it."""
        if self.config.connections_per_client:
            # A stream has no peer yet: a proxy's headers come with its first request.
            with self.clients_lock:
                self.clients[stream.client[0]] += 1
            stream.is_counted = True
        self.live.add(stream)
        # Checked after the stream is live: a signal that comes before finds no stream, one that comes later does.
        if self.stopping:
            stream.stopping = True
            stream.finishing = self.finishing
        return stream

    def release(self, stream: Stream) -> None:
        """Close a stream whose conversation has ended. forget() comes last, since drain() waits for it."""
        if stream.aborted:
            self.aborted += 1
        self.served += stream.requests
        stream.close()
        self.forget(stream)
        if self.draining or (self.many_threads and not self.listener.accepting):
            # drain() waits for the last conversation, or serve() for a connection below the limit.
            self.listener.wake()
        if self.max_served and self.served >= self.max_served and not self.stopping:
            logger.errors.debug(f"retiring after {self.served} requests")
            self.retire()

    def forget(self, stream: Stream) -> None:
        """Remove a stream from the live ones, and subtract it from its client's count."""
        if stream.is_counted:
            # Behind a proxy, `client` was replaced by the address in its headers, and `peer` has the one that was
            # counted.
            address, _ = stream.peer or stream.client
            self.uncount(address)
        self.live.discard(stream)

    def uncount(self, client: str) -> None:
        """Subtract one connection from the count of a client address; drop the address when the count is 0."""
        if client in self.clients:
            with self.clients_lock:
                self.clients[client] -= 1
                if self.clients[client] <= 0:
                    del self.clients[client]

    # Limits

    def limit_reached(self) -> str:
        """Return the setting whose limit leaves no room for another connection; "" if there is room.

        The log names this setting. A model that has a further limit overrides this method.
        """
        return "" if len(self.live) < self.connection_limit else "connections"

    def has_too_many(self, client: str) -> bool:
        """Return whether a client address has reached connections_per_client. Trusted proxies have no limit."""
        limit = self.config.connections_per_client
        if not limit or self.clients[client] < limit:
            return False
        return not self.conversations.is_trusted(client)

    def next_connection(self, listener: Listener, seconds: float = -1) -> Accepted | None:
        """Return the next connection; None if the wait was ended, or if the connection was refused.

        seconds: the longest wait; -1: no limit. At the connection limit, the setting `overload` leaves a connection
        in the backlog or refuses it.
        """
        may_accept = self.config.overload == "refuse" or not self.limit_reached()
        if not may_accept:
            # A conversation in another thread may end just now. After this call, its release() ends the wait.
            listener.watch_sockets(False)
            may_accept = not self.limit_reached()
        accepted = listener.accept(may_accept, seconds)
        if accepted is None:
            return None
        if self.has_too_many(accepted.client[0]):
            self.refuse(accepted, "connections-per-client")
        elif limit := self.limit_reached():
            self.refuse(accepted, limit)
        else:
            return accepted
        return None

    def refuse(self, accepted: Accepted, limit: str) -> None:
        """Answer 503 without reading a request, and end the connection.

        limit: the setting whose limit was reached, for the log.
        """
        self.report_refusal(accepted.client[0], limit)
        try:
            accepted.socket.setblocking(False)  # never wait for this client
            if self.conversations.refusal:
                accepted.socket.send(self.conversations.refusal)
            accepted.socket.shutdown(SHUT_WR)
        except OSError:
            pass
        # If a socket with unread bytes is closed, the kernel sends a reset, and the client might lose the 503.
        # The last few refused sockets therefore stay open for a while.
        if len(self.refused) == self.refused.maxlen:
            self.refused.popleft().close()
        self.refused.append(accepted.socket)

    def report_refusal(self, client: str, limit: str) -> None:
        """Log a refusal, at most once in LOG_EVERY_S: a flood of refusals must not fill the disk."""
        now = time.monotonic()
        if now < self.report_from:
            self.unreported += 1
            return
        more = f"; so were {self.unreported} before it" if self.unreported else ""
        logger.errors.warning(f"{client}: 503, {self.unfinished()} connections are open ({limit}){more}")
        self.unreported = 0
        self.report_from = now + LOG_EVERY_S

    # The end

    def in_progress(self) -> int:
        """Return the number of requests in progress. A stop waits for them."""
        return sum(not stream.idle for stream in list(self.live))

    def waiting(self) -> int:
        """Return the number of conversations that wait for a worker in a queue of this model."""
        return 0

    def workers_now(self) -> int:
        """Return how many workers of this process run conversations: the threads of a pool, otherwise 1."""
        return 1

    def resized(self, workers: int) -> None:
        """Note that the number of workers of this process has changed. The trace and the counters override this."""

    def unfinished(self) -> int:
        """Return the number of conversations that have not ended."""
        return len(self.live)

    def drain(self) -> None:
        """Wait until every conversation of this process has ended; the server's abort() bounds the wait.

        The wait does not poll: it ends when release() wakes the listener, or at a signal.
        """
        # Set before `live` is read, since release() changes `live` before it reads `draining`.
        self.draining = True
        while self.live:
            self.listener.wait(-1, 0)

    def retire_after(self, requests: int) -> None:
        """Retire after about this many requests. The 10 % of randomness keeps workers from retiring all at once."""
        import random

        self.max_served = requests * random.uniform(0.9, 1.1)

    def retire(self) -> None:
        """Stop accepting, and close each connection after its next exchange, so that no request is lost."""
        self.stopping = True
        self.listener.close()
        self.mark_last()

    def mark_last(self) -> None:
        """Make the exchange in progress the last of each connection; on an idle connection, the next exchange."""
        for stream in list(self.live):
            stream.stopping = True
