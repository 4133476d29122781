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
    """Passes each call on to the stream below. A subclass overrides the calls that it changes.

    Stream describes the methods and the attributes.
    """

    def __init__(self, below: Stream) -> None:
        self.below = below
        self.client = below.client
        self.server = below.server
        self.peer = below.peer
        self.timeouts = below.timeouts

    @property
    def programs(self) -> set[Child]:
        return self.below.programs

    @property
    def requests(self) -> int:
        return self.below.requests

    @requests.setter
    def requests(self, count: int) -> None:
        self.below.requests = count

    @property
    def queued_s(self) -> float:  # type: ignore[override]
        return self.below.queued_s

    @property
    def in_handshake(self) -> bool:
        return self.below.in_handshake

    @in_handshake.setter
    def in_handshake(self, value: bool) -> None:
        self.below.in_handshake = value

    @property
    def stopping(self) -> bool:  # type: ignore[override]
        return self.below.stopping

    @property
    def finishing(self) -> bool:  # type: ignore[override]
        return self.below.finishing

    @property
    def idle(self) -> bool:  # type: ignore[override]
        return self.below.idle

    @property
    def aborted(self) -> bool:  # type: ignore[override]
        return self.below.aborted

    async def next_request(self, seconds: float) -> bytes:
        return await self.below.next_request(seconds)

    def set_deadline(self, seconds: float) -> None:
        self.below.set_deadline(seconds)

    async def receive(self, limit: int = RECEIVE_BYTES) -> bytes:
        return await self.below.receive(limit)

    async def send(self, *parts: bytes) -> None:
        await self.below.send(*parts)

    async def send_file(self, file: int, offset: int, count: int, head: bytes = b"") -> None:
        """Send through the stream below, and copy its `unsent`, also after a failure. See Stream.send_file()."""
        try:
            await self.below.send_file(file, offset, count, head)
        finally:
            self.unsent = self.below.unsent

    async def share(self, size: int) -> None:
        await self.below.share(size)

    async def linger(self) -> None:
        await self.below.linger()

    def has_unread_bytes(self) -> bool:
        return self.below.has_unread_bytes()

    def has_unsent_bytes(self) -> bool:
        return self.below.has_unsent_bytes()

    def reset_at_close(self) -> None:
        self.below.reset_at_close()

    def bound_to(self) -> str:
        return self.below.bound_to()

    def poller(self) -> Poller:
        return self.below.poller()

    def event_stream(self) -> Any:
        return self.below.event_stream()

    def upstream_poller(self) -> Poller:
        return self.below.upstream_poller()

    async def either(self, descriptor: int, seconds: float) -> bool:
        return await self.below.either(descriptor, seconds)

    def has_client(self) -> bool:
        return self.below.has_client()

    def wake_event(self) -> WakeEvent:
        return self.below.wake_event()

    async def call(
        self,
        function: Callable[..., T],
        *arguments: Any,
        seconds: float = math.inf,
        abandoned: Callable[[], None] | None = None,
    ) -> T:
        """Return function(*arguments), which the stream below calls. See Stream.call()."""
        return await self.below.call(function, *arguments, seconds=seconds, abandoned=abandoned)
