"""Responses as the grader reads them: a lenient front of ewe's reader of responses.

ewe.http.response_reader finds where each response ends. The grader differs in what it makes of a head, because it
judges servers that are still being written, and each check shall find its own fault:

- A line may end with LF alone (RFC 9112 section 2.2), and http.client parses the fields, as lenient as a browser.
- Of two lengths the first counts, and Transfer-Encoding counts more than Content-Length (section 6.3). ewe's proxy
  refuses both: it would have to pass on a response that two readers could frame differently.
- A fault becomes a text of the verdict. No exception ends the check: the grader also judges the bytes before it.
- Bytes that no whole response has used stay visible in `buffer`, for checks that look for surplus bytes.
"""

from __future__ import annotations

import http.client
import io
import re
from dataclasses import dataclass, field

from ewe.http.limits import RequestLimits
from ewe.http.response_reader import ResponseReader
from ewe.http.status import BODILESS_STATUSES, HTTPError

STATUS_LINE = re.compile(rb"HTTP/1\.([01]) (\d{3})(?: [^\r\n]*)?\r?\n")
STATUS_DIGITS = slice(9, 12)  # of a response: they follow `HTTP/1.1 `
HEAD_END = re.compile(rb"\r?\n\r?\n")
# No file of the grader's site has more than 8 MB. A server that sends more does not fill the grader's memory.
MAX_HEAD_BYTES = 1 << 18
MAX_CONNECTION_BYTES = 32 << 20
# The same for responses without a body. No check sends more than some dozen requests on one connection.
MAX_RESPONSES = 10_000
MAX_LENGTH_DIGITS = 19  # as a 64-bit number has; int() refuses a text of thousands of digits


@dataclass
class Response:
    """One response. length: of the body by Content-Length, None without the field; whole: its end has arrived."""

    version: str
    status: int
    fields: http.client.HTTPMessage
    length: int | None = None
    chunked: bool = False
    body: bytes = b""
    whole: bool = False
    fault: str = ""  # the fault of its framing, "" if there is none

    @property
    def keeps_open(self) -> bool:
        """Return whether the server promised to read another request on this connection."""
        wish = (self.fields.get("Connection") or "").lower()
        # A body without a length ends with the connection.
        if "close" in wish or (
            self.length is None and not self.chunked and self.status not in BODILESS_STATUSES
        ):
            return False
        return self.version == "1.1" or "keep-alive" in wish


class EndlessResponse(HTTPError):
    """The server sends without end."""


def parse_head(head: bytes) -> Response:
    """Return a response whose head has arrived. A wrong length is noted in `fault`. Raises HTTPError(502)."""
    line = STATUS_LINE.match(head)
    if line is None:
        raise HTTPError(502, f"a response that begins with {head[:40]!r} and not with a status line")
    try:
        fields = http.client.parse_headers(io.BytesIO(head[line.end() :]))
    except http.client.HTTPException as error:
        raise HTTPError(502, f"a head that cannot be read ({error})") from None
    # Spaces around a value do not belong to it (RFC 9112 section 5.1); http.client leaves those at its end.
    chunked = (fields.get("Transfer-Encoding") or "").strip(" \t").lower() == "chunked"
    response = Response("1." + line[1].decode(), int(line[2]), fields, chunked=chunked)
    length = fields.get("Content-Length")
    if length is not None and not chunked:
        if length.isascii() and length.strip().isdigit():
            response.length = int(length.strip()[:MAX_LENGTH_DIGITS])
        else:
            response.fault = f"Content-Length: {length[:40]}, which is no number"
    return response


class LenientReader(ResponseReader[Response]):
    """ewe's reader of responses, for heads of which a line may end with LF alone."""

    limits = RequestLimits()

    def __init__(self) -> None:
        super().__init__(parse_head)

    def head_end(self) -> int:
        """Return the index after the head in `buffer`; -1 if its end has not arrived. Raises HTTPError(502)."""
        if end := HEAD_END.search(self.buffer):
            return end.end()
        if not b"HTTP/".startswith(self.buffer[:5]):
            raise HTTPError(502, f"bytes that begin no response: {self.buffer[:40]!r}")
        if len(self.buffer) > MAX_HEAD_BYTES:
            raise EndlessResponse(502, f"a head of more than {MAX_HEAD_BYTES >> 10} KB")
        return -1


@dataclass
class ResponseSplitter:
    """Takes the bytes of a connection apart into responses. Call feed() with arriving bytes, end() at its end."""

    responses: list[Response] = field(default_factory=list)
    reader: LenientReader = field(default_factory=LenientReader)
    current: Response | None = None
    body: bytearray = field(default_factory=bytearray)  # of the current response, as far as it has arrived
    fault: str = ""  # what is wrong with the bytes, in words; "" if nothing
    taken: int = 0  # bytes so far
    heads: int = 0  # responses so far, interim ones (1xx) included
    too_much: bool = False  # the connection is to be read no further
    head_requests: int = 0  # the next so many responses answer HEAD: no body follows their Content-Length

    @property
    def buffer(self) -> bytes:
        """Return the bytes that have arrived and that no whole response has used."""
        decoder = self.reader.decoder  # of a chunked body, which takes its bytes as they arrive
        if decoder is not None:
            return decoder.rest if self.fault else b""
        return bytes(self.body) + self.reader.buffer

    def between_responses(self) -> bool:
        """Return whether the next byte begins a response: nothing is left of the bytes that have arrived."""
        return self.current is None and not self.fault and not self.buffer

    def feed(self, data: bytes) -> None:
        """Take bytes that have arrived, and make responses of them.

        After a fault it is unknown where the next response begins: drop the bytes. Too many bytes or responses are
        a fault, too: the server sends without end (give_up()).
        """
        self.taken += len(data)
        if self.taken > MAX_CONNECTION_BYTES:
            self.give_up(f"more than {MAX_CONNECTION_BYTES >> 20} MB on one connection")
        if self.too_much or self.fault:
            return
        self.reader.buffer += data
        try:
            # The bytes may contain several responses.
            while self.step():
                pass
        except EndlessResponse as error:
            self.give_up(error.cause)
        except HTTPError as error:
            self.fault = error.cause

    def step(self) -> bool:
        """Take one part of the bytes that have arrived; return whether there may be more. Raises HTTPError."""
        if self.current is not None:
            return self.read_body(self.current)
        self.reader.begin()
        self.reader.method = "HEAD" if self.head_requests else "GET"
        response = self.reader.read_head()
        if response is None:
            return False
        self.heads += 1
        if self.heads > MAX_RESPONSES:
            raise EndlessResponse(502, f"more than {MAX_RESPONSES:,} responses on one connection")
        if 100 <= response.status < 200:  # an interim response: the final one follows (RFC 9110 section 15.2)
            return True
        self.current = response
        self.responses.append(response)
        self.fault = response.fault
        self.head_requests = max(self.head_requests - 1, 0)
        if self.reader.finished and not self.fault:
            self.finish(response)
        return not self.fault

    def read_body(self, response: Response) -> bool:
        """Take the bytes of the body that have arrived; return whether more may be done without new bytes."""
        if self.reader.needs_data:  # it needs more bytes of the server
            return False
        try:
            self.body += self.reader.read_body()
        except HTTPError as error:
            self.fault = response.fault = f"a chunked body that cannot be decoded ({error})"
            return False
        if self.reader.finished:
            self.finish(response)
        return True

    def give_up(self, fault: str) -> None:
        """Note that the server sends without end, and drop its bytes."""
        self.too_much = True
        self.fault = self.fault or fault
        self.reader = LenientReader()
        self.body.clear()
        if self.current is not None:
            self.current.fault = self.current.fault or fault

    def finish(self, response: Response) -> None:
        """Complete a response with the body that has arrived; the next bytes begin another response."""
        response.body = bytes(self.body)
        response.whole = True
        self.body.clear()
        self.current = None

    def end(self) -> None:
        """Note the end of the connection. It completes a response without a length, and is a fault of others.

        A response that has a fault stays incomplete, so that no check takes its body for right.
        """
        response = self.current
        if response is None or response.fault:
            return
        if response.length is None and not response.chunked:
            self.body += self.reader.buffer
            self.reader.buffer = b""
            self.finish(response)
        else:
            kind = "chunked body" if response.chunked else f"body of {response.length} bytes"
            response.fault = f"a {kind} that ended after {len(self.body)} bytes"
