"""What a LibCGI library has written, and the response that it says.

The parser is that of all gateways (cgi.py). A call costs less than parsing a head, and most outputs of a library
come again and again. The parsed head is therefore remembered with the bytes that it came from; for short output the
whole Response is.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ewe.bounded import BoundedDict
from ewe.gateway.cgi import HEAD_END, GatewaySource, is_nph, parse_head, response
from ewe.http.messages import Request, Response
from ewe.http.status import BODILESS

if TYPE_CHECKING:
    from ewe.gateway.scripts import Script
    from ewe.http.limits import Limits

PIECE = 256 * 1024  # bytes of a temporary file that are read at once
SHORT_OUTPUT = 2048  # bytes: the response to longer output is not remembered, only its head
MAX_RESPONSES = 512  # remembered, and as many heads


class Output:
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
        # If the client has left, nobody has taken the output.
        self.close()


# What a call returns: short output; a head and a body; anything else.
AnyOutput = bytes | tuple[bytes, bytes] | Output


class LibrarySource(GatewaySource):
    """The output of a call as a program's output, for the one parser of heads."""

    def __init__(self, name: str, output: Output) -> None:
        super().__init__(name)
        self.output = output
        self.offset = 0

    async def receive(self) -> bytes:
        if self.left_over:
            return self.take_left_over()
        output = self.output
        if output.file < 0:
            data, output.data = output.data, b""
        else:
            data = os.pread(output.file, PIECE, self.offset)
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
    """Makes responses of outputs, and remembers what it has made: libraries repeat themselves."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.responses: BoundedDict[bytes, Response] = BoundedDict(MAX_RESPONSES)
        # Each without its body
        self.documents: BoundedDict[tuple[bytes, int], Response] = BoundedDict(MAX_RESPONSES)

    def remembered(self, output: AnyOutput) -> Response | None:
        """Return the response to an output that was here before, or to one with the same head and length."""
        if type(output) is bytes:
            return self.responses.get(output)
        if type(output) is tuple:
            document = self.documents.get((output[0], len(output[1])))
            return None if document is None else document.with_body(output[1])
        return None

    async def response(self, request: Request, script: Script, output: AnyOutput) -> Response:
        """Return the response that an output says. Raises HTTPError(502) for a malformed head."""
        if not isinstance(output, Output):
            found = self.plain(request, script, output)
            if found is not None:
                return found
            output = Output(output if isinstance(output, bytes) else b"\n".join(output))
        source = LibrarySource(script.name, output)
        try:
            answer = await response(request, script, source, self.limits)
        except BaseException:
            output.close()
            raise
        if answer.body is not source:
            output.close()
        elif source.length is None and not source.raw and request.method != "HEAD":
            source.length = answer.length = output.size - source.offset + len(source.left_over)
        return answer

    def plain(self, request: Request, script: Script, output: bytes | tuple[bytes, bytes]) -> Response | None:
        """Return the response to an ordinary document; None if it needs the whole parser."""
        if request.method == "HEAD" or is_nph(script):
            return None
        if isinstance(output, tuple):
            raw, body = output
        else:
            match = HEAD_END.search(output)
            if match is None:
                return None
            raw, body = output[: match.start() + 1], output[match.end() :]
        if raw[0] == 10 or raw[:2] == b"\r\n":
            return None
        head = parse_head(raw, script.name, self.limits)
        if head.target is not None or head.status == 205 or head.status in BODILESS:
            return None
        if head.length is not None and head.length != len(body):
            return None
        answer = Response(head.status, head.fields, body, reason=head.reason)
        answer.encoded()
        if isinstance(output, bytes):
            self.responses[output] = answer
        elif len(raw) <= SHORT_OUTPUT:
            self.documents[raw, len(body)] = answer.with_body(b"")
        return answer
