"""The rate of one response, in bytes a second (setting `limit-rate`).

    limit-rate = "200k"        # 204,800 bytes a second; a client with four connections gets four times as much

The body becomes a Source that hands out at most a second's worth at once, and otherwise waits. The wait is the
stream's (streams/bells.py): an event loop and a pool serve other clients meanwhile, a process or a thread sleeps.

    file, bytes, Source ──▶ Paced.receive(): wait until a quarter of a second's worth is due ──▶ client

An event loop looks at waits four times a second. Each wait may last longer than it should, and the next piece is
larger for it: the average is right.

**Slow clients.** The setting `min-rate` closes the connection of a client that reads too slowly. The time that ewe
itself waits here does not count against the client. What counts is the time that the client takes for the pieces:
write-timeout, plus the time that the body takes at `min-rate`, or at half of `limit-rate` if that is less.

What can go wrong: sendfile(2) is not used, so a limited response costs more processor time for each byte.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ewe.config.setting_types import SIZE
from ewe.features.base import Middleware
from ewe.features.declaration import Feature, Key
from ewe.features.guards.tables import expected
from ewe.http.messages import Region, Response, Source, body_size
from ewe.http.status import BODILESS, HTTPError
from ewe.streams.base import Timeout

if TYPE_CHECKING:
    from ewe.http.messages import Request
    from ewe.streams.base import Stream

LARGEST = 64 * 1024  # bytes of a piece
SLICE = 1.0  # seconds that one wait may take; a client that has closed its sending side may still read


class LimitRate(Middleware):
    """Slow responses down."""

    def __init__(self, rate: int) -> None:
        """rate: bytes a second."""
        self.rate = rate

    @classmethod
    def from_table(cls, value: object, place: str) -> LimitRate:
        """Read the setting. place: how an error message begins. Raises ConfigError."""
        try:
            return cls(SIZE.read(value))
        except ValueError:
            raise expected(place, value, f"{SIZE.expected}, for each second") from None

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the inner handler's response with a body that comes at the rate."""
        response = await self.inner.respond(request, io)
        if response is None:
            return None
        if request.method == "HEAD" or response.status in BODILESS or response.length == 0:
            return response
        if isinstance(response.body, bytes) and len(response.body) <= self.rate // 4:
            return response
        slower = response.with_fields(response.fields)
        slower.body = Paced(response.body, self.rate, io)
        return slower


class Paced(Source):
    """A body that comes at a rate. rate: bytes a second."""

    def __init__(self, body: bytes | tuple[bytes | Region, ...] | Source, rate: int, io: Stream) -> None:
        self.source = body if isinstance(body, Source) else Pieces(body)
        self.raw = self.source.raw
        self.length = self.source.length
        self.rate = rate
        self.io = io
        self.piece = min(max(rate // 4, 1), LARGEST)
        self.ahead = memoryview(b"")  # of a piece of the source, what is not sent yet
        self.due = float(self.piece)  # bytes that may be sent now
        self.filled = time.monotonic()
        self.sent = 0
        self.taken = 0.0  # seconds that the client took for its pieces
        self.handed = 0.0  # when the last piece was handed out; 0.0: none was
        timeouts = io.timeouts
        self.patience = timeouts.write_timeout
        self.lowest = min(timeouts.min_rate, rate / 2)

    async def receive(self) -> bytes:
        """Return the next piece, b"" at the end. Raises Timeout if the client reads too slowly."""
        now = time.monotonic()
        if self.handed:
            self.taken += now - self.handed
            if self.lowest and self.taken > self.patience + self.sent / self.lowest:
                raise Timeout
        if not self.ahead:
            self.ahead = memoryview(await self.source.receive())
            if not self.ahead:
                return b""
        wanted = min(len(self.ahead), self.piece)
        while self.fill() < wanted:
            await pause(self.io, min((wanted - self.due) / self.rate, SLICE))
        count = min(len(self.ahead), int(self.due), LARGEST)
        found, self.ahead = bytes(self.ahead[:count]), self.ahead[count:]
        self.due -= count
        self.sent += count
        self.handed = time.monotonic()
        return found

    def fill(self) -> float:
        """Return how many bytes are due: a second's worth at most, so that a slow program's body has no bursts."""
        now = time.monotonic()
        self.due = min(self.due + (now - self.filled) * self.rate, max(self.rate, self.piece))
        self.filled = now
        return self.due

    async def close(self) -> None:
        """Release the body's program."""
        await self.source.close()


class Pieces(Source):
    """Bytes and parts of files, as a Source."""

    def __init__(self, body: bytes | tuple[bytes | Region, ...]) -> None:
        self.left = [body] if isinstance(body, bytes) else list(body)
        self.length = body_size(body)
        self.done = 0  # bytes of the first region that were read

    async def receive(self) -> bytes:
        """Return the next piece. Raises HTTPError if a file has become shorter."""
        while self.left:
            first = self.left[0]
            if isinstance(first, bytes):
                self.left.pop(0)
                if first:
                    return first
                continue
            count = min(first.count - self.done, LARGEST)
            if not count:
                self.left.pop(0)
                self.done = 0
                continue
            data = os.pread(first.file, count, first.offset + self.done)
            if not data:
                raise HTTPError(500, "the file has become shorter")
            self.done += len(data)
            return data
        return b""


async def pause(io: Stream, seconds: float) -> None:
    """Wait, under every model. Raises OSError if no descriptor is left, Disconnected if the client has left."""
    bell = io.bell()
    try:
        await bell.heard(seconds)
    finally:
        bell.close()


FEATURE = Feature(
    "limit-rate",
    keys={"limit-rate": Key("how fast a response is sent", "a size a second", LimitRate.from_table)},
)
