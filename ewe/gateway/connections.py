"""Connections: to which address of a responder a request goes, and when.

A responder may run several times, on several machines. Its addresses are used in turn:

    request 1 ──▶ open() ──▶ 10.0.0.1:9000
    request 2 ──▶ open() ──▶ 10.0.0.2:9000     refuses: left out for `retry` seconds
                       └───▶ 10.0.0.3:9000     the next one takes the request
    request 3 ──▶ open() ──▶ 10.0.0.3:9000

An address that cannot be reached is left out for a while. Then one request tries it again; the others leave it out
until that request has reached it. If every address is left out, each of them is tried: one may be back.

A responder serves a certain number of requests at once. Further connections wait in its backlog, and ewe cannot see
for how long. With a `limit`, ewe opens at most so many connections to each address. Further requests wait in a
queue, first come, first served:

    open() ── room? ──yes──▶ connection ──▶ request ──▶ release()
                └──no──▶ queue ◀── the first in the queue gets the room ──┘
                           └─ after `patience` seconds: 503

What can go wrong:

- A request runs twice. Only a request that reached no responder goes to the next address: the connection failed, or
  the responder refused the request unread (FCGI_OVERLOADED). Beyond that, ResponderSource.lost() decides.
- A request overtakes the queue. While others wait, open() joins the queue even if there is room.
- A request waits for the place that its client was at (affinity.py). It does not hold up those behind it: admit().
- A client leaves just when its request gets room. leave() passes the room on.
- The children of the fork model begin with the same state, and each would begin at the same address. A process
  therefore begins anywhere in the circle. What such a child learns of an address is lost with its connection.
- Processes know nothing of each other: the limit is for each process. A process that has one conversation at a time
  (serial, fork, prefork) has one connection at most, and its requests never wait.

Read next: streams/bells.py (how a request waits), upstream.py (one connection), responder.py (what it carries).
"""

from __future__ import annotations

import os
import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ewe import logger
from ewe.gateway.records import Requester
from ewe.gateway.upstream import Place, Upstream
from ewe.http.messages import MadeOfRequests
from ewe.http.status import HTTPError
from ewe.streams.base import Timeout
from ewe.streams.descriptors import EXHAUSTED

if TYPE_CHECKING:
    from ewe.gateway import scgi, uwsgi
    from ewe.streams.base import Poller, Stream
    from ewe.streams.bells import Bell

    Codec = type[Requester] | type[scgi.Requester] | type[uwsgi.Requester]

CONNECTS_IN = 5.0  # seconds until a responder has to have taken a connection
IDLE = 32  # connections to one address kept for later requests
RETRY = (("Retry-After", "1"),)  # the field of a 503: the client may ask again after so many seconds

# Room for one connection to a place: the kept connection to use, or None if one has to be made
Room = tuple[Place, Upstream | None]


class HTTP:
    """What stands in the place of a codec for a server that speaks HTTP (proxy.py): a connection may be kept."""

    ends_with_close = False


class Waiting:
    """A request in the queue. tried, new, preferred: as for open(). room: once it has got some."""

    __slots__ = ("bell", "new", "preferred", "room", "tried")

    def __init__(self, bell: Bell, tried: Collection[Place], new: bool, preferred: Place | None) -> None:
        self.bell = bell
        self.preferred = preferred
        self.tried = tried
        self.new = new
        self.room: Room | None = None


class Connections:
    """The connections to one responder, at one address or several. Raises ValueError for an address that is none.

    keeps: connections stay open for later requests. A responder that answers one connection at a time, as each
    child of php-fpm does, is held by one that is kept, and others wait for it.
    retry: seconds for which an address that cannot be reached is left out, if there are others.
    limit: open connections to each address, kept ones included; 0: no limit. patience: seconds that a request waits
    for one of them. codec: of the protocol that the responder speaks. parks: a request that waits for the responder
    holds no thread, where the model can do that.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        keeps: bool,
        retry: float = 0.0,
        limit: int = 0,
        patience: float = 0.0,
        codec: Codec | type[HTTP] = Requester,
        parks: bool = False,
    ) -> None:
        self.parks = parks
        self.places = [Place(address) for address in addresses]
        self.codec: Codec = codec  # type: ignore[assignment]
        self.keeps = keeps and not codec.ends_with_close
        self.retry = retry
        self.limit = limit
        self.patience = patience
        self.counts = keeps or limit > 0  # how many connections there are, which nobody asks otherwise
        self.process = 0  # the process that `turn` is for
        self.turn = 0
        # For the queue, and for what is kept and counted of each place. No conversation pauses while it has it.
        self.lock = allocate_lock()
        self.queue: deque[Waiting] = deque()
        # What a responder was told of a request without a body, by what else that depends on
        self.known: MadeOfRequests[tuple[object, bytes]] = MadeOfRequests()

    async def open(
        self,
        io: Stream,
        refused_by: Collection[Place] = (),
        new: bool = False,
        preferred: Place | None = None,
    ) -> Upstream:
        """Return a connection that carries no request: a kept one, unless it must be `new`, or one made now.

        refused_by: places that have refused the request. preferred: the place to ask, and to wait for, unless it is
        left out. Raises HTTPError(503) if no other place can be reached, or has room within the patience: the
        responder may be back, or less busy, soon.
        """
        tried = list(refused_by)
        cause = "the responder is overloaded"
        expires = 0.0
        while len(tried) < len(self.places):
            room = self.enter(tried, new, preferred)
            if room is None:
                expires = expires or time.monotonic() + self.patience
                room = await self.wait(io, tried, new, preferred, expires)
            place, upstream = room
            try:
                if upstream is None:
                    upstream = await place.connect(self.poller_of(io), CONNECTS_IN)
                    place.left_out_until = 0.0
                    return upstream
                if upstream.is_open():
                    upstream.poller = self.poller_of(io)
                    return upstream
            except Timeout:
                cause = f"{place.address} takes no connection in {CONNECTS_IN:g} s"
            except OSError as reason:
                if reason.errno in EXHAUSTED:  # this process is at fault, not the responder
                    self.leave(place)
                    raise
                cause = f"{place.address} cannot be reached: {reason.strerror}"
            except BaseException:
                self.leave(place)
                raise
            else:  # the kept connection has ended
                upstream.close()
                self.leave(place)
                continue
            self.leave_out(place, cause)
            self.leave(place)
            tried.append(place)
        raise HTTPError(503, cause, RETRY)

    def poller_of(self, io: Stream) -> Poller:
        """Return how a request waits for the responder."""
        return io.upstream_poller() if self.parks else io.poller()

    # Room, and the queue for it

    def enter(self, tried: Collection[Place], new: bool, preferred: Place | None) -> Room | None:
        """Return room for a connection; None if there is none, or if others wait for it."""
        if not self.counts:
            return self.in_turn(tried, preferred)[0], None
        with self.lock:
            return None if self.queue and not tried else self.find(tried, new, preferred)

    def find(self, tried: Collection[Place], new: bool, preferred: Place | None) -> Room | None:
        """Return room at the next place in turn that has some. The lock is held."""
        for place in self.in_turn(tried, preferred):
            if place.kept and not new:
                return place, place.kept.pop()
            if not self.limit or place.open < self.limit:
                place.open += 1
            elif place.kept:
                place.kept.pop().close()  # a new connection takes its room
            else:
                continue
            return place, None
        return None

    async def wait(
        self, io: Stream, tried: Collection[Place], new: bool, preferred: Place | None, expires: float
    ) -> Room:
        """Return room once it is this request's turn. Raises HTTPError(503) after its patience, Disconnected."""
        waiting = Waiting(io.bell(), tried, new, preferred)
        try:
            with self.lock:
                # A request that waited before, and found a dead address, does not begin at the end again.
                (self.queue.appendleft if tried else self.queue.append)(waiting)
                self.admit()
            try:
                await waiting.bell.heard(max(expires - time.monotonic(), 0.0))
            except BaseException:
                self.give_up(waiting)
                if waiting.room is not None:
                    self.leave(*waiting.room)
                raise
            self.give_up(waiting)
        finally:
            waiting.bell.close()
        if waiting.room is None:
            cause = f"no connection to the responder was free for {self.patience:g} s (fastcgi-patience)"
            raise HTTPError(503, cause, RETRY)
        return waiting.room

    def give_up(self, waiting: Waiting) -> None:
        """Leave the queue, if the request is still in it: its bell is not rung any more."""
        with self.lock:
            if waiting.room is None:
                self.queue.remove(waiting)

    def admit(self) -> None:
        """Give the room that there is to those who wait, first come, first served. The lock is held.

        One that waits for its preferred place lets the others pass, who may find room at another one.
        """
        passed: list[Waiting] = []
        while self.queue:
            first = self.queue[0]
            first.room = self.find(first.tried, first.new, first.preferred)
            if first.room is None and first.preferred is None:
                break
            self.queue.popleft()
            if first.room is None:
                passed.append(first)
            else:
                first.bell.ring()
        self.queue.extendleft(reversed(passed))

    def leave(self, place: Place, kept: Upstream | None = None) -> None:
        """Give back room that is not needed any more. kept: the idle connection that it holds, if it does."""
        if not self.counts:
            return
        with self.lock:
            if kept is None:
                place.open -= 1
            else:
                place.kept.append(kept)
            if self.queue:
                self.admit()

    def release(self, upstream: Upstream, reusable: bool = False) -> None:
        """Take a connection back. reusable: its request has ended as it should, and another may follow."""
        if reusable and self.keeps and len(upstream.place.kept) < IDLE:
            self.leave(upstream.place, upstream)
        else:
            upstream.close()
            self.leave(upstream.place)

    # Places

    def in_turn(self, tried: Collection[Place] = (), preferred: Place | None = None) -> list[Place]:
        """Return the places to try: the preferred one, unless it is left out, or all, the next in turn first.

        Those that are left out are only tried if all are.
        """
        if len(self.places) == 1:
            return [] if tried else self.places
        process = os.getpid()
        if self.process != process:
            self.process = process
            self.turn = int.from_bytes(os.urandom(2), "big")
        self.turn += 1
        first = self.turn % len(self.places)
        now = time.monotonic()
        places = [place for place in self.places[first:] + self.places[:first] if place not in tried]
        alive = [place for place in places if place.left_out_until <= now]
        if preferred in alive:
            alive = [preferred]
        if alive and alive[0].left_out_until:
            alive[0].left_out_until = now + self.retry  # this request tries it, and the others do not
        return alive or places

    def leave_out(self, place: Place, cause: str) -> None:
        """Leave a place out for a while that cannot be reached, if there are others."""
        if len(self.places) > 1:
            place.left_out_until = time.monotonic() + self.retry
            logger.errors.warning(f"{cause}; left out for {self.retry:g} s (fastcgi-retry)")
