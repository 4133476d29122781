"""Connections: the address of an upstream to which a request goes, and when it goes there.

An upstream (a FastCGI responder, an HTTP server) may run several times, on several machines. Its addresses are
used in turn:

    request 1 ──▶ open() ──▶ 10.0.0.1:9000
    request 2 ──▶ open() ──▶ 10.0.0.2:9000     refuses: left out for `retry_s`
                       └───▶ 10.0.0.3:9000     the next one takes the request
    request 3 ──▶ open() ──▶ 10.0.0.3:9000

ewe leaves out an address that cannot be reached for a while. Then one request tries it again; the others leave it
out until that request has reached it. If every address is left out, a request tries each of them.

An upstream serves a limited number of requests at once. Further connections wait in its backlog, and ewe cannot see
for how long. With a `limit`, ewe opens at most so many connections to each address. Further requests wait in a
queue, first come, first served. `queue_timeout_s` is the longest wait in it:

    open() ── room? ──yes──▶ connection ──▶ request ──▶ release()
                └──no──▶ queue ◀── the first in the queue gets the room ──┘
                           └─ after `queue_timeout_s`: 503

Possible failures:

- A request runs twice. A request goes to the next address only if it reached no upstream: the connection failed, or
  the responder refused the request unread (FCGI_OVERLOADED). In all other cases repeat_or_raise() of the exchange
  decides (responder.py, proxy.py).
- A request overtakes the queue. While others wait, open() joins the queue even if there is room.
- A request waits for the address that answered its client before (affinity.py). It does not block the requests
  behind it: give_room_to_waiting().
- A client leaves just when its request gets room. give_back_room() gives the room to the next request.
- The children of the fork model begin with the same state, and each would begin at the same address. Each process
  therefore begins at a random position. Such a child forgets which addresses are dead when its connection ends.
- Processes share no state: the limit applies to each process. A process that has one conversation at a time
  (serial, fork, prefork) has one connection at most, and its requests never wait.

Read next: streams/wake_events.py (how a request waits), upstream.py (one connection), responder.py (a FastCGI
exchange).
"""

from __future__ import annotations

import os
import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ewe import logger
from ewe.gateway.records import Requester
from ewe.gateway.upstream import Upstream, UpstreamAddress
from ewe.http.messages import RequestCache
from ewe.http.status import HTTPError
from ewe.streams.base import Timeout
from ewe.streams.descriptors import EXHAUSTED
from ewe.timeouts import count_timeout

if TYPE_CHECKING:
    from ewe.gateway import scgi, uwsgi
    from ewe.streams.base import Poller, Stream
    from ewe.streams.wake_events import WakeEvent

    Codec = type[Requester] | type[scgi.Requester] | type[uwsgi.Requester]

CONNECT_TIMEOUT_S = 5.0  # seconds within which an upstream must accept a connection
MAX_IDLE = 32  # connections to one address kept for later requests
RETRY = (("Retry-After", "1"),)  # the field of a 503: after how many seconds the client may ask again


class Room(NamedTuple):
    """Room for one connection to an address. kept: the kept connection to use; None: a new one has to be made."""

    address: UpstreamAddress
    kept: Upstream | None


class HTTPCodec:
    """Stands in for a codec if the upstream speaks HTTP (proxy.py): its connections may be kept."""

    ends_with_close = False


class QueuedRequest:
    """A request in the queue.

    tried: addresses that have failed for it. must_be_new: it does not take a kept connection. preferred: the only
    address that it takes; None: any. room: None until it gets some.
    """

    __slots__ = ("event", "must_be_new", "preferred", "room", "tried")

    def __init__(
        self,
        event: WakeEvent,
        tried: Collection[UpstreamAddress],
        must_be_new: bool,
        preferred: UpstreamAddress | None,
    ) -> None:
        self.event = event
        self.preferred = preferred
        self.tried = tried
        self.must_be_new = must_be_new
        self.room: Room | None = None


class Connections:
    """The connections to one upstream, at one address or several. Raises ValueError for a malformed address.

    keeps: connections stay open for later requests. A responder that answers one connection at a time, as each
    child of php-fpm does, is occupied by a kept connection, and other clients wait for it. retry_s: how long an
    address that cannot be reached is left out, if there are others. limit: open connections to each address, kept
    ones included; 0: no limit. queue_timeout_s: the longest wait for one of them; without a limit no request waits.
    codec: of the protocol that the upstream speaks. parks: a request that waits for the upstream occupies no
    thread, if the model can do that. connect_timeout_s: an address must accept a connection within this time.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        keeps: bool,
        retry_s: float = 0.0,
        limit: int = 0,
        queue_timeout_s: float = 0.0,
        codec: Codec | type[HTTPCodec] = Requester,
        parks: bool = False,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self.connect_timeout_s = connect_timeout_s
        self.parks = parks
        self.addresses = [UpstreamAddress(address) for address in addresses]
        self.codec: Codec = codec  # type: ignore[assignment]
        self.keeps = keeps and not codec.ends_with_close
        self.retry_s = retry_s
        self.limit = limit
        self.queue_timeout_s = queue_timeout_s
        self.counts_connections = keeps or limit > 0  # otherwise no code needs the count
        self.process = 0  # the pid for which a random first `turn` was chosen; 0: none yet
        self.turn = 0  # the number of requests, which gives the address that is tried first
        # Protects the queue, and the kept connections and counters of each address. No conversation pauses under
        # it.
        self.lock = allocate_lock()
        self.queue: deque[QueuedRequest] = deque()
        # Request without a body -> the values on which its encoded variables depend, and these variables
        self.params_of_requests: RequestCache[tuple[object, bytes]] = RequestCache()

    async def open(
        self,
        io: Stream,
        refused_by: Collection[UpstreamAddress] = (),
        must_be_new: bool = False,
        preferred: UpstreamAddress | None = None,
    ) -> Upstream:
        """Return a connection that carries no request: a kept one, unless it must be new, or a new one.

        refused_by: addresses that have refused the request. preferred: the address to ask, and to wait for, unless
        it is left out; None: any. Raises HTTPError(503) if no other address can be reached, or has room within the
        queue timeout. The 503 asks the client to try again soon.
        """
        tried = list(refused_by)
        cause = "the responder is overloaded"
        expires_at = 0.0
        while len(tried) < len(self.addresses):
            room = self.take_room(tried, must_be_new, preferred)
            if room is None:
                expires_at = expires_at or time.monotonic() + self.queue_timeout_s
                room = await self.wait_for_room(io, tried, must_be_new, preferred, expires_at)
            address, upstream = room
            if upstream is not None and not upstream.is_open():
                upstream.close()
                self.give_back_room(address)
                continue
            try:
                if upstream is None:
                    upstream = await address.connect(self.poller_of(io), self.connect_timeout_s)
                else:
                    upstream.poller = self.poller_of(io)
                address.left_out_until = 0.0
                return upstream
            except Timeout:
                count_timeout("upstream")
                cause = f"{address.text} takes no connection in {self.connect_timeout_s:g} s"
            except OSError as reason:
                if reason.errno in EXHAUSTED:  # this process is at fault, not the responder
                    self.give_back_room(address)
                    raise
                # A path too long for a Unix socket is an OSError without an errno.
                cause = f"{address.text} cannot be reached: {reason.strerror or reason}"
            except BaseException:
                self.give_back_room(address)
                raise
            self.leave_out(address, cause)
            self.give_back_room(address)
            tried.append(address)
        raise HTTPError(503, cause, RETRY)

    def poller_of(self, io: Stream) -> Poller:
        """Return the poller with which a request waits for the upstream."""
        return io.upstream_poller() if self.parks else io.poller()

    # Room, and the queue for it

    def take_room(
        self, tried: Collection[UpstreamAddress], must_be_new: bool, preferred: UpstreamAddress | None
    ) -> Room | None:
        """Return room for a connection; None if there is none, or if other requests wait for it.

        tried: addresses that have failed for this request. must_be_new: no kept connection is taken. preferred: the
        only address, unless it is left out; None: any.
        """
        if not self.counts_connections:  # then there is always room
            address = self.take_turn(tried, preferred)[0]
            self.leave_out_for_others(address)
            return Room(address, kept=None)
        with self.lock:
            # A request that has tried an address has had its turn before those in the queue
            must_queue = self.queue and not tried
            return None if must_queue else self.find_room(tried, must_be_new, preferred)

    def find_room(
        self, tried: Collection[UpstreamAddress], must_be_new: bool, preferred: UpstreamAddress | None
    ) -> Room | None:
        """Return room at the next address in turn that has some. The caller holds the lock.

        Return None if no address has room. The arguments are those of take_room().
        """
        for address in self.take_turn(tried, preferred):
            kept: Upstream | None = None
            if address.idle_connections and not must_be_new:
                kept = address.idle_connections.pop()
            elif not self.limit or address.open_count < self.limit:
                address.open_count += 1
            elif address.idle_connections:
                address.idle_connections.pop().close()  # a new connection takes its room
            else:
                continue
            self.leave_out_for_others(address)
            return Room(address, kept)
        return None

    async def wait_for_room(
        self,
        io: Stream,
        tried: Collection[UpstreamAddress],
        must_be_new: bool,
        preferred: UpstreamAddress | None,
        expires_at: float,
    ) -> Room:
        """Return room once it is this request's turn. Raises HTTPError(503) at `expires_at`, Disconnected."""
        waiting = QueuedRequest(io.wake_event(), tried, must_be_new, preferred)
        try:
            with self.lock:
                # A request that waited before, and then found a dead address, returns to the front of the queue.
                (self.queue.appendleft if tried else self.queue.append)(waiting)
                self.give_room_to_waiting()
            try:
                await waiting.event.wait(max(expires_at - time.monotonic(), 0.0))
            except BaseException:
                self.leave_queue(waiting)
                if waiting.room is not None:
                    self.give_back_room(waiting.room.address, waiting.room.kept)
                raise
            self.leave_queue(waiting)
        finally:
            waiting.event.close()
        if waiting.room is None:
            count_timeout("queue")
            wait = f"{self.queue_timeout_s:g} s (fastcgi-queue-timeout)"
            raise HTTPError(503, f"no connection to the responder was free for {wait}", RETRY)
        return waiting.room

    def leave_queue(self, waiting: QueuedRequest) -> None:
        """Remove a request from the queue, unless it has got room: give_room_to_waiting() has removed it then.

        Afterwards no other thread changes the request.
        """
        with self.lock:
            if waiting.room is None:
                self.queue.remove(waiting)

    def give_room_to_waiting(self) -> None:
        """Give free room to the waiting requests, first come, first served. The caller holds the lock.

        A request that waits for its preferred address lets the others pass: they may find room at another address.
        """
        passed: list[QueuedRequest] = []
        while self.queue:
            first = self.queue[0]
            first.room = self.find_room(first.tried, first.must_be_new, first.preferred)
            if first.room is None and first.preferred is None:
                break
            self.queue.popleft()
            if first.room is None:
                passed.append(first)
            else:
                first.event.set()
        self.queue.extendleft(reversed(passed))

    def give_back_room(self, address: UpstreamAddress, kept: Upstream | None = None) -> None:
        """Give back the room of one connection to an address: it has ended, or nothing needs it any more.

        kept: the connection, if it stays open and idle; then it still occupies the room, but the next request may
        use it. None: it has ended, or was never made.
        """
        if not self.counts_connections:
            return
        with self.lock:
            if kept is None:
                address.open_count -= 1
            else:
                address.idle_connections.append(kept)
            if self.queue:
                self.give_room_to_waiting()

    def release(self, upstream: Upstream, reusable: bool = False) -> None:
        """Keep a connection for a later request, or close it; the request that had it has ended.

        reusable: the request has ended well, and another may follow on the connection.
        """
        if reusable and self.keeps and len(upstream.address.idle_connections) < MAX_IDLE:
            self.give_back_room(upstream.address, kept=upstream)
        else:
            upstream.close()
            self.give_back_room(upstream.address)

    # Addresses

    def take_turn(
        self, tried: Collection[UpstreamAddress] = (), preferred: UpstreamAddress | None = None
    ) -> list[UpstreamAddress]:
        """Return the addresses to try: the preferred one, unless it is left out, or all, the next in turn first.

        Addresses that are left out are tried only if all addresses are left out. Those in `tried` are not returned.
        preferred: None for none.
        """
        if len(self.addresses) == 1:
            return [] if tried else self.addresses
        process = os.getpid()
        if self.process != process:
            # A child has its parent's turn. Without a random one, all children would begin at one address
            self.process = process
            self.turn = int.from_bytes(os.urandom(2), "big")
        self.turn += 1
        first = self.turn % len(self.addresses)
        now = time.monotonic()
        addresses = [
            address for address in self.addresses[first:] + self.addresses[:first] if address not in tried
        ]
        alive = [address for address in addresses if address.left_out_until <= now]
        if preferred in alive:
            alive = [preferred]
        return alive or addresses

    def leave_out_for_others(self, address: UpstreamAddress) -> None:
        """Leave out an address whose time was over, for `retry_s`: only one request tries it meanwhile."""
        if address.left_out_until and address.left_out_until <= (now := time.monotonic()):
            address.left_out_until = now + self.retry_s

    def leave_out(self, address: UpstreamAddress, cause: str) -> None:
        """Leave an unreachable address out for `retry_s`, if there are others."""
        if len(self.addresses) > 1:
            address.left_out_until = time.monotonic() + self.retry_s
            logger.errors.warning(f"{cause}; left out for {self.retry_s:g} s (fastcgi-retry)")
