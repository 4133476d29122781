"""Responses of one connection, read as their bytes arrive: RFC 9112 sections 4 to 8, from a client's side. No I/O.

    buffer  ──▶ read_head() ──▶ interim heads (1xx), then the head of the final response
          └───▶ read_body() ──▶ decoded bytes of its body, until `finished`

    feed() does both, for a client that drops interim heads; end() says that the connection has ended.

The head says where the body ends (RFC 9112 section 6.3), and the first rule that fits decides:

    1. HEAD was the method, or the status is 204 or 304     at the end of the head
    2. Transfer-Encoding: chunked                           at the last chunk and its trailers (chunked.py)
    3. Content-Length                                       after so many bytes
    4. none of them                                         at the end of the connection

By rules 2 and 3 the reader can tell a whole response from a cut one, by rule 4 it cannot. Bytes behind the end stay
in `buffer`. They begin the next response, or belong to none: only the reader's user knows which.

Its users are the proxy and clients that measure or check servers. They own the socket, the clock and the verdict.
Each user hands in a function that parses a head. The proxy's is strict (response_head.py). A client that judges
a server also reads what a strict parser refuses: it overrides head_end(), too.

Possible failures: HTTPError is raised for bytes that begin no response, for a head without an end, and for
malformed chunks. The next response cannot be found after any of them: the connection is of no more use.

Read next: response_head.py, chunked.py; ewe/gateway/proxy.py, which uses both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from ewe.http.chunked import ChunkedDecoder
from ewe.http.limits import RequestLimits
from ewe.http.response_head import BEGINNING, MAX_HEAD_BYTES
from ewe.http.status import BODILESS_STATUSES, HTTPError

# A response may have any length: the reader keeps no part of the body.
UNLIMITED = RequestLimits(max_body=1 << 62)


class Framing(Protocol):
    """The facts of a parsed head that the reader uses. length: of the body in bytes, None if unknown."""

    @property
    def status(self) -> int:
        """Return the status of the response."""
        ...

    @property
    def length(self) -> int | None:
        """Return the Content-Length; None if there is none."""
        ...

    @property
    def chunked(self) -> bool:
        """Return whether the body is in chunks."""
        ...


Head = TypeVar("Head", bound=Framing)


class CutResponse(HTTPError):
    """The connection has ended within a response."""


class ResponseReader(Generic[Head]):
    """Reads one response after the other. Add the bytes that arrive to `buffer`, or hand it to feed() or
    read_body().

    parse: a function that parses a whole head. method: of the request; set it before the head of its response is
    read. head: of the final response, None until it has been read. finished: the response has ended.
    ends_before_close: its end is not that of the connection.
    """

    limits = UNLIMITED

    buffer = b""  # bytes that are not decoded yet
    head: Head | None = None
    finished = False
    ends_before_close = True
    decoder: ChunkedDecoder | None = None
    left_bytes = 0  # bytes of a body with a length that are still to come

    def __init__(self, parse: Callable[[bytes], Head], method: str = "GET") -> None:
        self.parse = parse
        self.method = method

    def begin(self) -> None:
        """Begin the next response. Bytes of it that have arrived stay in `buffer`."""
        self.head = None
        self.finished = False
        self.ends_before_close = True

    def feed(self, data: bytes) -> bytes:
        """Take bytes of a response; return the bytes of its body that they decode to. Raises HTTPError."""
        if self.head is None:
            self.buffer += data
            data = b""
            while self.head is None:
                # Only a final head sets self.head: the loop drops interim heads (1xx).
                if self.read_head() is None:
                    return b""
        body = self.read_body(data)
        # The decoder of chunks limits the work of one call, so `data` may need several.
        while not (self.finished or self.needs_data):
            body += self.read_body()
        return body

    def end(self) -> None:
        """Take the end of the connection, which ends a body without a length. Raises CutResponse."""
        if not self.finished:
            if self.head is None or self.ends_before_close:
                within = "a head" if self.head is None else "its response"
                raise CutResponse(502, f"the server closed the connection within {within}")
            self.finished = True

    def head_end(self) -> int:
        """Return where the head in `buffer` ends, with its empty line; -1 if the end has not arrived.

        Raises HTTPError(502) if the bytes that have arrived cannot be the beginning of a head.
        """
        buffer = self.buffer
        if (end := buffer.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)) >= 0:
            return end + 4
        if len(buffer) >= MAX_HEAD_BYTES:
            raise HTTPError(502, f"the head of its response has more than {MAX_HEAD_BYTES} bytes")
        if buffer[: len(BEGINNING)] != BEGINNING[: len(buffer)]:
            raise HTTPError(502, f"no HTTP response, but {buffer[:40]!r}")
        # A head with bare LFs may never contain the end searched for above: do not wait for the timeout.
        if buffer.count(b"\n") != buffer.count(b"\r\n"):
            raise HTTPError(502, "a line of its response's head ends with a bare LF, not CRLF")
        return -1

    def read_head(self) -> Head | None:
        """Take the next head, which may be interim (1xx), and return it; None until it has arrived whole.

        After a final head, read_body() reads the body. Raises HTTPError(502).
        """
        if not self.buffer or (end := self.head_end()) < 0:
            return None
        head = self.parse(self.buffer[:end])
        self.buffer = self.buffer[end:]
        status = head.status
        if 100 <= status < 200:
            return head
        self.head = head
        if self.method == "HEAD" or status in BODILESS_STATUSES:
            self.finished = True
        elif head.chunked:
            self.decoder = ChunkedDecoder(self.limits)
        elif (length := head.length) is not None:
            self.left_bytes = length
            self.finished = not length
        else:
            self.ends_before_close = False
        return head

    def seems_complete(self) -> bool:
        """Return whether the rest of the body seems to have arrived: a chunk's data may look like the last one."""
        if self.decoder is not None:
            return self.buffer.endswith(b"0\r\n\r\n")
        return self.ends_before_close and len(self.buffer) >= self.left_bytes

    @property
    def needs_data(self) -> bool:
        """Return whether read_body() needs more bytes to return any."""
        return not self.buffer and (self.decoder is None or self.decoder.needs_data)

    def read_body(self, data: bytes = b"") -> bytes:
        """Take the bytes of `buffer`, and then `data`; return the decoded bytes of the body.

        A piece of a chunked body may be smaller than the bytes that could be decoded: see `needs_data`. Raises
        HTTPError, as ChunkedDecoder does.
        """
        if self.finished:
            self.buffer += data
            return b""
        if self.buffer:
            data = self.buffer + data
            self.buffer = b""
        if self.decoder is not None:
            piece = self.decoder.feed(data)
            if self.decoder.finished:
                self.buffer = self.decoder.rest
                self.decoder = None
                self.finished = True
            return piece
        if self.ends_before_close:
            if len(data) > self.left_bytes:
                data, self.buffer = data[: self.left_bytes], data[self.left_bytes :]
            self.left_bytes -= len(data)
            self.finished = not self.left_bytes
        return data
