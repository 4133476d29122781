"""Connections: to which address of a responder a request goes, and which connections are kept for later ones.

A responder may run several times, on several machines. Its addresses are used in turn:

    request 1 ──▶ open() ──▶ 10.0.0.1:9000
    request 2 ──▶ open() ──▶ 10.0.0.2:9000     refuses: left out for `retry` seconds
                       └───▶ 10.0.0.3:9000     the next one takes the request
    request 3 ──▶ open() ──▶ 10.0.0.3:9000

An address that cannot be reached is left out for a while. Then one request tries it again; the others leave it out
until that request has reached it. If every address is left out, each of them is tried: one may be back.

What can go wrong:

- A request runs twice. Only a request that reached no responder goes to the next address: the connection failed, or
  the responder refused the request unread (FCGI_OVERLOADED). Beyond that, ResponderSource.lost() decides.
- The children of the fork model begin with the same state, and each would begin at the same address. A process
  therefore begins anywhere in the circle. What such a child learns of an address is lost with its connection.

Read next: upstream.py (one connection), responder.py (what is said over it).
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ewe import logger
from ewe.gateway.upstream import Place, Upstream
from ewe.http.status import HTTPError
from ewe.streams.base import Timeout
from ewe.streams.descriptors import EXHAUSTED

if TYPE_CHECKING:
    from ewe.streams.base import Stream

CONNECTS_IN = 5.0  # seconds until a responder has to have taken a connection
IDLE = 32  # connections to one address kept for later requests
RETRY = (("Retry-After", "1"),)  # the field of a 503: the client may ask again after so many seconds


class Connections:
    """The connections to one responder, at one address or several. Raises ValueError for an address that is none.

    keeps: connections stay open for later requests. A responder that answers one connection at a time, as each
    child of php-fpm does, is held by one that is kept, and others wait for it.
    retry: seconds for which an address that cannot be reached is left out, if there are others.
    """

    def __init__(self, addresses: Sequence[str], keeps: bool, retry: float = 0.0) -> None:
        self.places = [Place(address) for address in addresses]
        self.keeps = keeps
        self.retry = retry
        self.process = 0  # the process that `turn` is for
        self.turn = 0

    async def open(self, io: Stream, tried: Collection[Place] = (), new: bool = False) -> Upstream:
        """Return a connection that carries no request: a kept one, unless it must be `new`, or one made now.

        tried: places that have refused the request. Raises HTTPError(503) if no other place can be reached: the
        responder may be back soon.
        """
        cause = "the responder is overloaded"
        for place in self.in_turn(tried):
            upstream = None if new else self.kept(place)
            if upstream is not None:
                upstream.poller = io.poller()
                return upstream
            try:
                upstream = await place.connect(io.poller(), CONNECTS_IN)
            except Timeout:
                cause = f"{place.address} takes no connection in {CONNECTS_IN:g} s"
            except OSError as reason:
                if reason.errno in EXHAUSTED:
                    raise  # this process is at fault, not the responder
                cause = f"{place.address} cannot be reached: {reason.strerror}"
            else:
                place.left_out_until = 0.0
                return upstream
            self.leave_out(place, cause)
        raise HTTPError(503, cause, RETRY)

    def in_turn(self, tried: Collection[Place] = ()) -> list[Place]:
        """Return the places to try, the next in turn first; those that are left out come last."""
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
        places.sort(key=lambda place: place.left_out_until if place.left_out_until > now else 0.0)
        if places and 0.0 < places[0].left_out_until <= now:
            places[0].left_out_until = now + self.retry  # this request tries it, and the others do not
        return places

    def leave_out(self, place: Place, cause: str) -> None:
        """Leave a place out for a while that cannot be reached, if there are others."""
        if len(self.places) > 1:
            place.left_out_until = time.monotonic() + self.retry
            logger.errors.warning(f"{cause}; left out for {self.retry:g} s (fastcgi-retry)")

    def kept(self, place: Place) -> Upstream | None:
        """Return an idle connection that is still good."""
        while place.kept:
            try:
                upstream = place.kept.pop()
            except IndexError:
                break  # another thread took it
            if upstream.is_open():
                return upstream
            upstream.close()
        return None

    def release(self, upstream: Upstream, reusable: bool = False) -> None:
        """Take a connection back. reusable: its request has ended as it should, and another may follow."""
        if reusable and self.keeps and len(upstream.place.kept) < IDLE:
            upstream.place.kept.append(upstream)
        else:
            upstream.close()
