"""The rate of one response, in bytes a second (setting `limit-rate`).

    limit-rate = "200k"        # 204,800 bytes a second; a client with four connections gets four times as much

The body becomes a Source that hands out at most a second's worth at once, and otherwise waits. The wait is the
stream's (streams/wake_events.py): an event loop and a pool serve other clients meanwhile, a process or a thread
sleeps.

    file, bytes, Source ──▶ Paced.receive(): wait until a quarter of a second's worth is due ──▶ client

An event loop looks at waits four times a second. Each wait may last longer than it should, and the next piece is
larger for it: the average is right.

**Slow clients.** The setting `min-rate` closes the connection of a client that reads too slowly. The time that ewe
itself waits here does not count against the client. Only the time that the client takes for the pieces counts:
write-timeout, plus the time that the body takes at `min-rate`, or at half of `limit-rate` if that is less.

Possible failures: sendfile(2) is not used, so a limited response costs more processor time for each byte.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ewe.config.setting_types import SIZE, Kind
from ewe.features.base import Middleware
from ewe.features.declaration import Feature, StepKey
from ewe.http.messages import Region, Response, Source, body_size
from ewe.http.status import BODILESS_STATUSES, HTTPError
from ewe.timeouts import count_timeout

if TYPE_CHECKING:
    from ewe.http.messages import Request
    from ewe.streams.base import Stream

RATE = Kind("SIZE", f"{SIZE.expected}, for each second", SIZE.read)
MAX_PIECE_BYTES = 64 * 1024  # bytes of a piece
MAX_PAUSE_S = 1.0  # seconds that one wait may take; a client that has closed its sending side may still read


class LimitRate(Middleware):
    """Slows responses down."""

    def __init__(self, rate: int) -> None:
        """rate: bytes a second."""
        self.rate = rate

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the inner handler's response with a body that comes at the rate."""
        response = await self.inner.respond(request, io)
        if response is None:
            return None
        if request.method == "HEAD" or response.status in BODILESS_STATUSES or response.length == 0:
            return response
        # One piece of Paced: nothing would wait.
        if isinstance(response.body, bytes) and len(response.body) <= self.rate // 4:
            return response
        slower = response.with_fields(response.fields)
        slower.body = Paced(response.body, self.rate, io)
        return slower


class Paced(Source):
    """A body that comes at a rate.

    The client is too slow if it takes longer for its pieces than write_timeout, and a second for each
    min_client_rate bytes. The time that receive() itself waits is not the client's.
    """

    bounds_client_time = True

    def __init__(self, body: bytes | tuple[bytes | Region, ...] | Source, rate: int, io: Stream) -> None:
        """body: of the response that is slowed down. rate: bytes a second. io: the client's connection."""
        self.source = body if isinstance(body, Source) else BodySource(body)
        self.raw = self.source.raw
        self.length = self.source.length
        self.rate = rate
        self.io = io
        # Four pieces a second look even to a client, and cost little.
        self.piece_bytes = min(max(rate // 4, 1), MAX_PIECE_BYTES)
        self.ahead = memoryview(b"")  # the bytes of a piece that are not sent yet
        self.due_bytes = float(self.piece_bytes)  # may be sent now
        self.due_updated_at = time.monotonic()
        self.sent_bytes = 0
        self.client_s = 0.0  # seconds that the client took for its pieces
        self.handed_at = 0.0  # when the last piece was handed out; 0.0: none was
        timeouts = io.timeouts
        self.write_timeout_s = timeouts.write_timeout
        # Bytes a second; 0: no minimum. Half the rate at most: a client that keeps up with the rate is not too
        # slow.
        self.min_client_rate = min(timeouts.min_rate, rate / 2)

    async def receive(self) -> bytes:
        """Return the next piece, b"" at the end. Raises HTTPError(408) if the client reads too slowly."""
        now = time.monotonic()
        if self.handed_at:
            self.client_s += now - self.handed_at
            slowest = self.min_client_rate
            if slowest and self.client_s > self.write_timeout_s + self.sent_bytes / slowest:
                count_timeout("write")
                raise HTTPError(408, "the client reads too slowly (write-timeout, min-rate)")
        if not self.ahead:
            self.ahead = memoryview(await self.source.receive())
            if not self.ahead:
                return b""
        wanted = min(len(self.ahead), self.piece_bytes)
        while self.update_due() < wanted:
            await pause(self.io, min((wanted - self.due_bytes) / self.rate, MAX_PAUSE_S))
        count = min(len(self.ahead), int(self.due_bytes), MAX_PIECE_BYTES)
        piece, self.ahead = bytes(self.ahead[:count]), self.ahead[count:]
        self.due_bytes -= count
        self.sent_bytes += count
        self.handed_at = time.monotonic()
        return piece

    def update_due(self) -> float:
        """Add the bytes that have become due since the last call; return how many may be sent now.

        They are a second's worth at most, so that a slow program's body has no bursts.
        """
        now = time.monotonic()
        more = (now - self.due_updated_at) * self.rate
        self.due_bytes = min(self.due_bytes + more, max(self.rate, self.piece_bytes))
        self.due_updated_at = now
        return self.due_bytes

    async def close(self) -> None:
        """Release the body's program."""
        await self.source.close()


class BodySource(Source):
    """Bytes and parts of files, as a Source."""

    def __init__(self, body: bytes | tuple[bytes | Region, ...]) -> None:
        self.left: list[bytes | Region] = [body] if isinstance(body, bytes) else list(body)
        self.length = body_size(body)

    async def receive(self) -> bytes:
        """Return the next piece. Raises HTTPError if a file has become shorter."""
        while self.left:
            first = self.left.pop(0)
            if isinstance(first, bytes):
                if first:
                    return first
            elif first.count:
                data = os.pread(first.file, min(first.count, MAX_PIECE_BYTES), first.offset)
                if not data:
                    raise HTTPError(500, "the file has become shorter")
                size = len(data)
                if size < first.count:
                    self.left.insert(0, first.part(size, first.count - size))
                return data
        return b""


async def pause(io: Stream, seconds: float) -> None:
    """Wait, under every model. Raises OSError if no descriptor is left, Disconnected if the client has left."""
    event = io.wake_event()
    try:
        await event.wait(seconds)
    finally:
        event.close()


FEATURE = Feature(
    "limit-rate",
    keys={"limit-rate": StepKey(RATE, "how fast a response is sent", LimitRate)},
)
