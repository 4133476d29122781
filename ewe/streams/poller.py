"""Pollers: how a conversation waits for a program or for another server, under every model.

A feature that runs a program waits for the program's pipes; a gateway to another server waits for that server's
socket. Neither is the client's connection, so the stream's own receive() and send() do not help. How to wait is
again the model's decision, and so each stream has a poller beside its calls for the client:

    feature ── await io.poller().wait([pipe, ...], ...) ──┬── BlockingPoller   poll(2) here; the thread waits
                                                          └── EventPoller      pause; the loop's reader resumes

The pool uses the BlockingPoller: a program holds its worker, as it does in the thread model.

All pollers watch the client too. A client that disconnects ends the wait with Disconnected, so that its program
can be ended. A client that only closes its sending side may still read the answer (`printf ... | nc -N`), or may
have left: from the outside both look alike. Such a client is believed to be there as long as the program writes
something every HALF_CLOSED seconds.

What can go wrong: a descriptor that is closed while a poller watches it. Its number is given to the next file that
is opened, and the poller would wake the wrong conversation. wait() therefore watches only until it returns.
readable() watches on (it saves an event loop system calls in each wait): its caller must call forget() before it
closes the descriptor.

Read next: EventPoller in event.py; gateway/programs.py, gateway/upstream.py.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence

from ewe.streams.base import Disconnected
from ewe.streams.descriptor_set import CLOSING, ENDED, GONE, OPEN, SENDS, side_after

# Seconds that a program may stay silent once the client has closed its sending side. The event loop checks this
# once in as many seconds, so there it may be twice as long.
HALF_CLOSED = 2.0


class BlockingPoller:
    """Wait with poll(2), for the program and for the client's end at once."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.client_ended_at: float | None = None  # when the client was first seen to have closed its side

    async def wait(
        self,
        descriptors: Sequence[int],
        since: float,
        seconds: float,
        writable: int = -1,
    ) -> list[int]:
        import select

        watched = select.poll()
        if writable >= 0:
            watched.register(writable, select.POLLOUT)
        for descriptor in descriptors:
            watched.register(
                descriptor, select.POLLIN | select.POLLOUT if descriptor == writable else select.POLLIN
            )
        client = self.client.fileno()
        if client < 0:
            raise Disconnected
        watched.register(client, CLOSING if self.client_ended_at is None else 0)
        now = time.monotonic()
        expires = now + seconds
        while True:
            gone_at = None if self.client_ended_at is None else max(self.client_ended_at, since) + HALF_CLOSED
            until = expires if gone_at is None else min(expires, gone_at)
            events = dict(watched.poll(max(until - now, 0) * 1000))
            about_client = events.pop(client, 0)
            side = (
                side_after(client, about_client, self.client_ended_at is not None) if about_client else OPEN
            )
            now = time.monotonic()
            if side == GONE or (gone_at is not None and now >= gone_at):
                raise Disconnected
            if events:
                return list(events)
            if side == ENDED:  # it may have left, or may still read
                self.client_ended_at = now
            if side in (ENDED, SENDS):
                watched.modify(client, 0)
            elif now >= expires:
                return []

    async def readable(self, descriptor: int, since: float, seconds: float) -> bool:
        return bool(await self.wait((descriptor,), since, seconds))

    def forget(self, descriptor: int) -> None:
        """Do nothing: poll(2) watches nothing between two waits."""

    async def share(self, size: int) -> None:
        """Do nothing: the program holds this thread, and no other conversation waits for the thread."""

    def after(self, seconds: float, exited: int, function: Callable[[], None]) -> None:
        """Wait in this thread, then call function."""
        from select import POLLIN, poll

        watched = poll()
        watched.register(exited, POLLIN)
        watched.poll(seconds * 1000)
        function()
