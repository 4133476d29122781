"""A client in memory: a stream that gives the conversation bytes as they were cut, and keeps what it sends."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from ewe.config.settings import Config
from ewe.conversation import converse
from ewe.http.limits import RequestLimits
from ewe.http.messages import Request, Response
from ewe.streams.base import RECEIVE_BYTES, Disconnected, Stream, Timeout
from ewe.streams.blocking import run

DEFAULTS = Config()  # nothing in memory changes it, and to make one takes longer than to read a message
HEAD = re.compile(rb"HTTP/1\.1 ([0-9]{3}) [A-Za-z -]+\r\n((?:[!-9;-~]+: [\t -~\x80-\xff]*\r\n)*)\r\n")


class MemoryStream(Stream):
    """Gives the pieces in turn, then the end; a piece that is an exception is raised.

    sent: what the conversation sent, a tuple of parts for each call. did: what it called, in order.
    """

    def __init__(self, pieces: Iterable[bytes | Exception]) -> None:
        super().__init__(("192.0.2.1", 50000), ("192.0.2.2", 80), DEFAULTS)
        self.pieces = deque(pieces)
        self.sent: list[tuple[bytes, ...]] = []
        self.did: list[str] = []
        self.lingered = False

    async def next_request(self, seconds: float) -> bytes:
        self.did.append(f"next_request {seconds:g}")
        try:
            return b"" if self.stopping else self.next_piece()
        except Timeout:
            return b""

    def next_piece(self) -> bytes:
        """Return the next piece, b"" when there is none left."""
        piece = self.pieces.popleft() if self.pieces else b""
        if isinstance(piece, Exception):
            raise piece
        return piece

    def set_deadline(self, seconds: float) -> None:
        self.did.append(f"set_deadline {seconds:g}")

    async def receive(self, limit: int = RECEIVE_BYTES) -> bytes:
        self.did.append("receive")
        return self.next_piece()

    async def send(self, *parts: bytes) -> None:
        self.did.append("send")
        if self.aborted:
            raise Disconnected
        self.sent.append(parts)

    async def send_file(self, file: int, offset: int, count: int, head: bytes = b"") -> None:
        self.did.append("send_file")
        data = os.pread(file, count, offset)
        self.sent.append((head, data))
        if len(data) < count:
            raise Disconnected

    def reset_at_close(self) -> None:
        self.did.append("reset_at_close")

    async def linger(self) -> None:
        self.did.append("linger")
        self.lingered = True

    def output(self) -> bytes:
        """Return all that was sent."""
        return b"".join(part for parts in self.sent for part in parts)


class Echo:
    """A site that answers each request with its body. seen: the requests, bodies: theirs, as they came."""

    persistent = True
    idle_s = 75.0

    def __init__(self, limits: RequestLimits | None = None, **settings: object) -> None:
        self.config = Config(**settings) if settings else DEFAULTS
        self.limits = limits or RequestLimits()
        self.heads: dict[bytes, Request] = {}
        self.seen: list[Request] = []
        self.bodies: list[bytes] = []

    async def respond(self, request: Request, io: Stream) -> Response:
        """Read the body, and send it back."""
        body = b""
        while piece := await request.body.receive():
            body += piece
        self.seen.append(request)
        self.bodies.append(body)
        return Response(200, (("Content-Type", "application/octet-stream"),), body)


def talk(site: Any, *pieces: bytes | Exception) -> MemoryStream:
    """Hold a conversation over these pieces with nothing remembered; return the stream as it was left."""
    site.heads.clear()
    stream = MemoryStream(pieces)
    run(converse(stream, site))
    return stream


class Answer:
    """One response, split into its parts."""

    def __init__(self, status: int, fields: dict[str, str], body: bytes) -> None:
        self.status = status
        self.fields = fields
        self.body = body

    def __repr__(self) -> str:
        return f"{self.status} {self.fields} {self.body[:60]!r}"


def answers(data: bytes, *methods: str) -> list[Answer]:
    """Take all responses apart, strictly; methods: of the requests they answer, GET where there are no more.

    Raises ValueError if a message is no response, or is framed badly.
    """
    found: list[Answer] = []
    asked = iter(methods)
    while data:
        match = HEAD.match(data)
        if match is None:
            raise ValueError(f"no response: {data[:80]!r}")
        status = int(match[1])
        lines = [line.partition(": ") for line in match[2].decode("latin-1").split("\r\n")[:-1]]
        names = [name.lower() for name, _, _ in lines]
        fields = {name.lower(): value for name, _, value in lines}
        for name in ("content-length", "transfer-encoding", "connection", "date"):
            if names.count(name) > 1:
                raise ValueError(f"{name} is there twice")
        data = data[match.end() :]
        body = b""
        if status >= 200:
            method = next(asked, "GET")
            if method != "HEAD" and status not in (204, 304):
                body, data = body_of(fields, data)
        elif fields:
            raise ValueError(f"fields in a {status}")
        found.append(Answer(status, fields, body))
    return found


def body_of(fields: dict[str, str], data: bytes) -> tuple[bytes, bytes]:
    """Return the body at the start of data, and the bytes after it."""
    if "transfer-encoding" in fields:
        if fields["transfer-encoding"] != "chunked" or "content-length" in fields:
            raise ValueError(f"bad framing: {fields}")
        body = b""
        while match := re.match(rb"([1-9a-f][0-9a-f]*)\r\n", data):
            size = int(match[1], 16)
            body += data[match.end() : match.end() + size]
            data = data[match.end() + size :]
            if not data.startswith(b"\r\n"):
                raise ValueError("a chunk without its CRLF")
            data = data[2:]
        if not data.startswith(b"0\r\n\r\n"):
            raise ValueError("the last chunk is missing")
        return body, data[5:]
    if "content-length" in fields:
        size = int(fields["content-length"])
        if len(data) < size:
            raise ValueError(f"{len(data)} of {size} bytes")
        return data[:size], data[size:]
    if fields.get("connection") != "close":
        raise ValueError(f"a body without an end: {fields}")
    return data, b""


def in_pieces(message: bytes, cuts: list[int]) -> list[bytes]:
    """Return a message cut at these places."""
    places = sorted({cut for cut in cuts if 0 < cut < len(message)})
    return [message[start:end] for start, end in zip([0, *places], [*places, len(message)], strict=True)]


def every_cut(message: bytes, most: int = 500) -> Iterator[list[bytes]]:
    """Yield a message in two pieces, cut at each place in turn, then byte by byte.

    Of a message longer than most, only about so many places, those near its ends among them.
    """
    step = max(1, len(message) // most)
    for place in range(1, len(message)):
        if place % step == 0 or min(place, len(message) - place) < 100:
            yield [message[:place], message[place:]]
    yield [message[i : i + 1] for i in range(len(message))]
