"""The output of a LibCGI library, and the response that is made from it.

All gateways use the same parser (cgi.py). A call takes less time than parsing a head, and most outputs of a library
occur again and again. The parsed head is therefore cached by its bytes; for short output, the whole Response is.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ewe.bounded import BoundedDict
from ewe.gateway import cgi
from ewe.gateway.cgi import HEAD_END, GatewaySource, is_nph, parse_head
from ewe.http.messages import Request, Response
from ewe.http.status import BODILESS_STATUSES

if TYPE_CHECKING:
    from ewe.gateway.scripts import Script
    from ewe.http.limits import RequestLimits

PIECE_BYTES = 256 * 1024  # read from a temporary file at once
MAX_CACHED_BYTES = 2048  # for longer output only the head is cached
MAX_RESPONSES = 512  # cached responses, and as many cached heads


class CallOutput:
    """The output of a call: bytes, or a temporary file with a number of bytes."""

    __slots__ = ("data", "file", "size")

    def __init__(self, data: bytes, file: int = -1) -> None:
        self.data = data
        self.file = file
        self.size = os.fstat(file).st_size if file >= 0 else len(data)

    def close(self) -> None:
        """Close the file."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def __del__(self) -> None:
        # If the client has left, no code has closed the output.
        self.close()


# The result of a call: short output; a head and a body; any other output.
AnyOutput = bytes | tuple[bytes, bytes] | CallOutput


class LibrarySource(GatewaySource):
    """The output of a call in the form of a program's output, for the common parser of heads."""

    def __init__(self, name: str, output: CallOutput) -> None:
        super().__init__(name)
        self.output = output
        self.offset = 0

    async def receive(self) -> bytes:
        """Return the next piece of the output, from memory or from its temporary file; b"" at the end."""
        if self.body_start:
            return self.take_body_start()
        output = self.output
        if output.file < 0:
            data, output.data = output.data, b""
        else:
            data = os.pread(output.file, PIECE_BYTES, self.offset)
        self.offset += len(data)
        self.finished = self.offset == output.size
        return data

    def how_it_ended(self) -> str:
        return "processfunc() returned"

    async def discard(self) -> None:
        """Do nothing: the library has ended already."""

    async def close(self) -> None:
        self.output.close()


class Answers:
    """Makes responses from outputs, and caches them, since libraries often write the same output again."""

    def __init__(self, limits: RequestLimits) -> None:
        """limits: the sizes that the head of an output may have."""
        self.limits = limits
        # Short output, head and body -> its response
        self.responses: BoundedDict[bytes, Response] = BoundedDict(MAX_RESPONSES)
        # Of longer output: (head, length of the body) -> the response without its body
        self.responses_by_head: BoundedDict[tuple[bytes, int], Response] = BoundedDict(MAX_RESPONSES)

    def cached_response(self, output: AnyOutput) -> Response | None:
        """Return the cached response for an equal output, or one made from an equal head and length; else None."""
        if type(output) is bytes:
            return self.responses.get(output)
        if type(output) is tuple:
            head, body = output
            document = self.responses_by_head.get((head, len(body)))
            return None if document is None else document.with_body(body)
        return None

    async def response(self, request: Request, script: Script, output: AnyOutput) -> Response:
        """Return the response for an output. Raises HTTPError(502) for a malformed head."""
        if not isinstance(output, CallOutput):
            plain_response = self.make_plain_response(request, script, output)
            if plain_response is not None:
                return plain_response
            output = CallOutput(output if isinstance(output, bytes) else b"\n".join(output))
        source = LibrarySource(script.name, output)
        try:
            answer = await cgi.response(request, script, source, self.limits)
        except BaseException:
            output.close()
            raise
        if answer.body is not source:
            output.close()
        elif source.length is None and not source.raw and request.method != "HEAD":
            source.length = answer.length = output.size - source.offset + len(source.body_start)
        return answer

    def make_plain_response(
        self, request: Request, script: Script, output: bytes | tuple[bytes, bytes]
    ) -> Response | None:
        """Return the response for an ordinary document, and cache it; None if the output needs the whole parser.

        output: head and body in one piece, or as a pair if the body is long.

        Raises HTTPError(502) for a malformed head.
        """
        if request.method == "HEAD" or is_nph(script):
            return None
        if isinstance(output, tuple):
            raw_head, body = output
        else:
            match = HEAD_END.search(output)
            if match is None:
                return None
            raw_head, body = output[: match.start() + 1], output[match.end() :]
        if raw_head[:1] == b"\n" or raw_head[:2] == b"\r\n":
            return None
        head = parse_head(raw_head, script.name, self.limits)
        if head.target is not None or head.status == 205 or head.status in BODILESS_STATUSES:
            return None
        if head.length is not None and head.length != len(body):
            return None
        answer = Response(head.status, head.fields, body, reason=head.reason)
        answer.encoded()  # makes the head's bytes once, for all uses of the response
        if isinstance(output, bytes):
            self.responses[output] = answer
        elif len(raw_head) <= MAX_CACHED_BYTES:  # the body is long: only the head is cached
            self.responses_by_head[raw_head, len(body)] = answer.with_body(b"")
        return answer
