"""Pollers: how a conversation waits for a program or for an upstream, under every model.

A feature that runs a program waits for the program's pipes. A gateway to an upstream waits for the upstream's
socket. Neither is the client's connection, so the stream's receive() and send() cannot wait for them. The model
decides how to wait, and so each stream has a poller beside its calls for the client:

    feature ── await io.poller().wait([pipe, ...], ...) ──┬── BlockingPoller   poll(2) here; the thread waits
                                                          └── EventPoller      pause; the loop's reader resumes

The pool uses the BlockingPoller for programs: a program occupies its worker, as in the thread model.

All pollers watch the client, too. If the client disconnects, the wait raises Disconnected, so that the program can
be ended. A client that only closes its sending side may still read the response (`printf ... | nc -N`), or it may
have left; the server cannot tell these cases apart. ewe keeps such a client's program running as long as the
program writes at least every HALF_CLOSED_S.

Possible failures: a descriptor is closed while a poller watches it. The next file that is opened gets its number,
and the poller would wake the wrong conversation. wait() therefore watches only until it returns. readable() goes on
watching, which saves an event loop system calls in each wait. Its caller must therefore call forget() before it
closes the descriptor.

Read next: event_poller.py; gateway/programs.py, gateway/upstream.py.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Sequence

from ewe.streams.base import Disconnected
from ewe.streams.descriptor_set import CLOSING, ENDED, GONE, OPEN, UNREAD, state_by_events

# Seconds that a program may stay silent after the client has closed its sending side. After them the wait raises
# Disconnected, since the client has probably left. The event loop checks this only every HALF_CLOSED_S. There, the
# program may be silent for twice as long.
HALF_CLOSED_S = 2.0


class BlockingPoller:
    """A poller that waits with poll(2), for the program and for the client to leave."""

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
        """Wait in poll(2) until a descriptor can be read, or `writable` can be written (-1: none); return the ready
        ones.

        Return [] after `seconds`. since: the time.monotonic() of the program's last output. Raises Disconnected
        when the client has left, or when it has closed its sending side and the program has been silent for
        HALF_CLOSED_S.

        An event of the client is checked once and then no longer watched (0: only its end is reported); otherwise
        poll(2) would report it again at once, and this loop would never sleep. Output that has come counts, even if
        this thread did not run for a while and finds it late.
        """
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
            ended_at = self.client_ended_at
            silent_until = math.inf if ended_at is None else max(ended_at, since) + HALF_CLOSED_S
            events = dict(watched.poll(max(min(expires, silent_until) - now, 0) * 1000))
            of_client = events.pop(client, 0)
            state = state_by_events(client, of_client, ended=ended_at is not None) if of_client else OPEN
            now = time.monotonic()
            if state == GONE:
                raise Disconnected
            if events:
                return list(events)
            if now >= silent_until:
                raise Disconnected
            if state == ENDED:  # the client may have left, or may still read
                self.client_ended_at = now
            if state in (ENDED, UNREAD):
                watched.modify(client, 0)
            elif now >= expires:
                return []

    async def readable(self, descriptor: int, since: float, seconds: float) -> bool:
        """Wait in poll(2) until a descriptor can be read; return False after `seconds`. Raises Disconnected."""
        return bool(await self.wait((descriptor,), since, seconds))

    def forget(self, descriptor: int) -> None:
        """Do nothing: poll(2) watches nothing between two waits."""

    async def share(self, size: int) -> None:
        """Do nothing: no other conversation waits for this thread."""

    def after(self, seconds: float, exit_descriptor: int, function: Callable[[], None]) -> None:
        """Wait in this thread until the program has exited, `seconds` at most; then call `function`."""
        from select import POLLIN, poll

        watched = poll()
        watched.register(exit_descriptor, POLLIN)
        watched.poll(seconds * 1000)
        function()
