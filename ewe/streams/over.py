"""A stream over another stream, the same under every concurrency model: TLS (tls.py), and the trace.

    conversation ── send() ─▶ SecureStream ── send() ─▶ TracedStream ── send() ─▶ the model's own stream ─▶ client

The model and the server use the stream at the bottom: they count its requests, end it, and close it. The
conversation and the features use the stream at the top.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ewe.streams.base import RECEIVE_BYTES, Child, Poller, Stream

if TYPE_CHECKING:
    from ewe.streams.wake_events import WakeEvent

T = TypeVar("T")


class StreamOver(Stream):
    """Passes each call on to the stream below. A subclass overrides the calls that it changes."""

    def __init__(self, below: Stream) -> None:
        self.below = below
        self.client = below.client
        self.server = below.server
        self.peer = below.peer
        self.timeouts = below.timeouts

    @property
    def programs(self) -> set[Child]:
        """The programs that run for this connection."""
        return self.below.programs

    @property
    def requests(self) -> int:
        """The number of answered requests."""
        return self.below.requests

    @requests.setter
    def requests(self, count: int) -> None:
        self.below.requests = count

    @property
    def stopping(self) -> bool:  # type: ignore[override]
        """The exchange in progress is the last."""
        return self.below.stopping

    @property
    def finishing(self) -> bool:  # type: ignore[override]
        """No exchange follows the one in progress."""
        return self.below.finishing

    @property
    def idle(self) -> bool:  # type: ignore[override]
        """The conversation is in next_request()."""
        return self.below.idle

    @property
    def aborted(self) -> bool:  # type: ignore[override]
        """The connection was ended by abort()."""
        return self.below.aborted

    async def next_request(self, seconds: float) -> bytes:
        """Return the first bytes of the next request; b"" if none come within `seconds`, or at a stop. Raises
        Disconnected.
        """
        return await self.below.next_request(seconds)

    def set_deadline(self, seconds: float) -> None:
        """Have the receive() calls that follow raise Timeout from `seconds` after now on."""
        self.below.set_deadline(seconds)

    async def receive(self, limit: int = RECEIVE_BYTES) -> bytes:
        """Return the next bytes; b"" after the client has closed its sending side. Raises Timeout, Disconnected.

        limit: the most bytes; an event stream ignores it.
        """
        return await self.below.receive(limit)

    async def send(self, *parts: bytes) -> None:
        """Write all parts through the stream below. Raises Timeout, Disconnected."""
        await self.below.send(*parts)

    async def send_file(self, file: int, offset: int, count: int, head: bytes = b"") -> None:
        """Send `head`, then `count` bytes of a file through the stream below, and copy its `unsent`.

        Raises Timeout; Disconnected, also if the file has become shorter.
        """
        try:
            await self.below.send_file(file, offset, count, head)
        finally:
            self.unsent = self.below.unsent

    async def share(self, size: int) -> None:
        """Count `size` bytes of work; the stream below lets other conversations run after TURN_BYTES."""
        await self.below.share(size)

    async def linger(self) -> None:
        """Close our sending side, then read and drop the client's bytes for LINGER_S at most."""
        await self.below.linger()

    def reset_at_close(self) -> None:
        """Make close() send a reset."""
        self.below.reset_at_close()

    def bound_to(self) -> str:
        """Return the local address of the connection's socket."""
        return self.below.bound_to()

    def poller(self) -> Poller:
        """Return the model's poller for a program's pipes or an upstream's socket."""
        return self.below.poller()

    def upstream_poller(self) -> Poller:
        """Return the model's poller for an upstream. If possible, its waits occupy no thread."""
        return self.below.upstream_poller()

    async def either(self, descriptor: int, seconds: float) -> bool:
        """Wait until the client or an upstream's socket is ready; return True for the client.

        Raises Timeout after `seconds`, Disconnected.
        """
        return await self.below.either(descriptor, seconds)

    def wake_event(self) -> WakeEvent:
        """Return a new WakeEvent of the model. Raises OSError if no descriptor is left."""
        return self.below.wake_event()

    async def call(
        self,
        function: Callable[..., T],
        *arguments: Any,
        seconds: float = math.inf,
        abandoned: Callable[[], None] | None = None,
    ) -> T:
        """Return function(*arguments), which the stream below calls, perhaps in another thread.

        Raises its exceptions; Timeout after `seconds`, Disconnected. After these two, `abandoned` is called.
        """
        return await self.below.call(function, *arguments, seconds=seconds, abandoned=abandoned)
