"""Responses as a client reads them: RFC 9112, from the bytes that have arrived so far. No I/O."""

from __future__ import annotations

import http.client
import io
import re
from dataclasses import dataclass, field

from ewe.http.chunked import ChunkedDecoder
from ewe.http.limits import Limits
from ewe.http.status import HTTPError

STATUS_LINE = re.compile(rb"HTTP/1\.([01]) (\d{3})(?: [^\r\n]*)?\r?\n")
WITHOUT_BODY = (204, 304)
# No file of the grader's site has more than 8 MB. A server that sends more does not fill the grader's memory.
MOST_HEAD_BYTES = 1 << 18
MOST_BYTES = 32 << 20


@dataclass
class Response:
    """One response. length: what Content-Length announced, None without it; whole: its end has arrived."""

    version: str
    status: int
    fields: http.client.HTTPMessage
    length: int | None = None
    chunked: bool = False
    body: bytes = b""
    whole: bool = False
    fault: str = ""  # what is wrong with its framing

    @property
    def keeps_open(self) -> bool:
        """Return whether the server promised to read another request on this connection."""
        wish = (self.fields.get("Connection") or "").lower()
        if "close" in wish or (self.length is None and not self.chunked and self.status not in WITHOUT_BODY):
            return False
        return self.version == "1.1" or "keep-alive" in wish


@dataclass
class Reader:
    """Takes the bytes of a connection apart into responses. Call feed() with what arrives, end() at its end."""

    responses: list[Response] = field(default_factory=list)
    buffer: bytearray = field(default_factory=bytearray)
    current: Response | None = None
    decoder: ChunkedDecoder | None = None
    fault: str = ""  # bytes that are not a response
    taken: int = 0
    too_much: bool = False  # the connection is to be read no further
    bodiless: int = 0  # answers to HEAD that come next: their Content-Length announces no bytes

    def feed(self, data: bytes) -> None:
        self.taken += len(data)
        if self.taken > MOST_BYTES:
            self.give_up(f"more than {MOST_BYTES >> 20} MB on one connection")
        if not self.too_much and not self.fault:
            self.take(data)

    def take(self, data: bytes) -> None:
        self.buffer += data
        while not self.fault and self.buffer and self.step():
            pass

    def step(self) -> bool:
        """Take one part from the buffer; return whether there may be more."""
        if self.current is None:
            return self.read_head()
        return self.read_body(self.current)

    def read_head(self) -> bool:
        end = re.search(rb"\r?\n\r?\n", self.buffer)
        if end is None:
            start = bytes(self.buffer[:5])
            if not b"HTTP/".startswith(start[:5]):
                self.fault = f"bytes that begin no response: {bytes(self.buffer[:40])!r}"
            elif len(self.buffer) > MOST_HEAD_BYTES:
                self.give_up(f"a head of more than {MOST_HEAD_BYTES >> 10} KB")
            return False
        head = bytes(self.buffer[: end.end()])
        line = STATUS_LINE.match(head)
        if line is None:
            self.fault = f"a response that begins with {head[:40]!r} and not with a status line"
            return False
        try:
            fields = http.client.parse_headers(io.BytesIO(head[line.end() :]))
        except http.client.HTTPException as error:
            self.fault = f"a head that cannot be read ({error})"
            return False
        del self.buffer[: end.end()]
        response = Response("1." + line[1].decode(), int(line[2]), fields)
        if 100 <= response.status < 200:
            return True
        self.current = response
        self.responses.append(response)
        response.chunked = (fields.get("Transfer-Encoding") or "").lower() == "chunked"
        length = fields.get("Content-Length")
        if response.chunked:
            self.decoder = ChunkedDecoder(Limits())
        elif length is not None:
            if not (length.isascii() and length.strip().isdigit()):
                self.fault = response.fault = f"Content-Length: {length[:40]}, which is no number"
                return False
            response.length = int(length.strip()[:19])
        is_head, self.bodiless = self.bodiless > 0, max(self.bodiless - 1, 0)
        if is_head:
            self.decoder = None
        if is_head or response.status in WITHOUT_BODY or response.length == 0:
            self.finish(response)
        return True

    def read_body(self, response: Response) -> bool:
        if self.decoder is not None:
            try:
                response.body += self.decoder.feed(bytes(self.buffer))
            except HTTPError as error:
                self.fault = response.fault = f"a chunked body that cannot be decoded ({error})"
                return False
            self.buffer.clear()
            if not self.decoder.finished:
                return not self.decoder.hungry
            self.buffer += self.decoder.rest
            self.decoder = None
            self.finish(response)
            return True
        if response.length is None or len(self.buffer) < response.length:
            return False
        response.body = bytes(self.buffer[: response.length])
        del self.buffer[: response.length]
        self.finish(response)
        return True

    def give_up(self, fault: str) -> None:
        """Note that the server sends without end, and drop what has come."""
        self.too_much = True
        self.fault = self.fault or fault
        self.buffer.clear()
        if self.current is not None:
            self.current.fault = self.current.fault or fault
            self.current.body = b""

    def finish(self, response: Response) -> None:
        response.whole = True
        self.current = None

    def end(self) -> None:
        """Note the end of the connection: it ends a response without a length."""
        response = self.current
        if response is None:
            return
        if self.decoder is None and response.length is None:
            response.body = bytes(self.buffer)
            self.buffer.clear()
            self.finish(response)
        elif not response.fault:
            kind = "chunked body" if response.chunked else f"body of {response.length} bytes"
            response.fault = f"a {kind} that ended after {max(len(self.buffer), len(response.body))} bytes"
