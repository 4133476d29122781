"""The serial stream: a blocking stream of a worker that serves one connection at a time.

A client that keeps its connection would hold the worker while other clients wait in the backlog: for as long as it
sends requests, or is silent between two of them (`idle`). HTTP allows the server to close a kept connection at any
time (RFC 9112 section 9.5). If others wait, this stream therefore ends such a connection:

    the client sends request after request     after the exchange in which its turn ends (2 * TURN_S)
    the client is silent between two requests  within 2 * TICK_S

A client has to be waiting at two looks in a row: another worker, if one is idle, takes it in less time. The other
client connects again, and waits behind the rest. If nobody waits, nothing changes. A client that
has sent no request yet, or only a part of one, keeps the worker until `head_timeout`: without its request there is
nothing to end, and this is the weakness of the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ewe.streams.blocking import BlockingStream, set_timeouts

if TYPE_CHECKING:
    from socket import socket

    from ewe.streams.base import Timeouts
    from ewe.streams.listener import Accepted

TURN_S = 0.005  # seconds of a connection between two looks at the backlog
TICK_S = 0.2  # seconds of an idle connection between two looks at the backlog


def limit_waits(listening: Iterable[socket]) -> None:
    """Let a recv(2) return after TICK_S. Accepted TCP sockets inherit the limit of their listening socket."""
    for sock in listening:
        set_timeouts(sock, TICK_S)


class SerialStream(BlockingStream):
    """A blocking stream that lets go of its worker if others wait.

    others_wait: return whether a client waits to be accepted. stays: the connection does not end while it is idle,
    since a proxy may send its next request, which it might not be able to repeat, at the same moment.
    """

    tick_s = TICK_S

    def __init__(
        self,
        accepted: Accepted,
        timeouts: Timeouts,
        others_wait: Callable[[], bool],
        stays: bool = False,
    ) -> None:
        self.others_wait = others_wait
        self.stays = stays
        self.waited_before = False  # did a client wait at the last look?
        self.turn_ends = time.monotonic() + TURN_S
        super().__init__(accepted.socket, accepted.client, accepted.server, timeouts)
        _, port = accepted.client
        if port == 0:  # an accepted Unix socket inherits no limit from its listening socket
            set_timeouts(accepted.socket, TICK_S)

    # The conversation reads `stopping` once in each exchange, before it sends the response.

    @property
    def stopping(self) -> bool:
        """The exchange in progress is the last: the server says so, or the turn has ended and others wait."""
        if self.ends_soon:
            return True
        now = time.monotonic()
        if now < self.turn_ends:
            return False
        self.turn_ends = now + TURN_S
        return self.others_still_wait()

    @stopping.setter
    def stopping(self, value: bool) -> None:
        self.ends_soon = value

    def others_still_wait(self) -> bool:
        """Look whether a client waits now; return whether one waited at the last look, too."""
        before, self.waited_before = self.waited_before, self.others_wait()
        return before and self.waited_before

    def ends_for_waiting_client(self) -> bool:
        """Return whether this idle connection ends now: it has had a request, and another client has waited at two
        looks.
        """
        self.gives_way = self.requests > 0 and not self.stays and self.others_still_wait()
        return self.gives_way
