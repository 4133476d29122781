"""SCGI: one request of a web server to an application, and its answer, on one connection. No I/O.

SCGI carries the same message as FastCGI (records.py), without the parts that a single request does not need: no
records, no request ids, no kept connections. The request is one netstring: a length in decimal digits, a colon, the
content and a comma. The content is the request's variables, each name and each value ended by a NUL. The body
follows as it is:

    "70:" "CONTENT_LENGTH" 00 "27" 00 "SCGI" 00 "1" 00 "REQUEST_METHOD" 00 "POST" 00 ... ","  then 27 bytes of body
     └ bytes between ":" and ","   └ must be the first      └ must be there

The answer has the form of a CGI program's output (gateway/cgi.py). The close of the connection ends it.

Possible failures:

- The answer itself does not say where it ends. An application that dies within its body closes the connection,
  too, and half an answer would look complete. Only a Content-Length in its head, or a reset of the connection,
  shows the error to ewe.
- A NUL within a value would end the value early, and its rest would become the next name. No field and no path of
  a request can contain a NUL (ewe/http); encode_pairs() checks again and refuses it.
- SCGI forbids a name that occurs twice. The variables come from a dictionary, where no name does.

Source: "SCGI: A Simple Common Gateway Interface alternative", Neil Schemenauer, 2008.
Read next: uwsgi.py, records.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ewe.gateway.records import Output
from ewe.http.status import HTTPError


def encode_pairs(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return variables in SCGI's encoding. Raises HTTPError(400) for a NUL, or an empty name."""
    parts: list[bytes] = []
    for name, value in pairs:
        if not name or b"\0" in name or b"\0" in value:
            raise HTTPError(400, f"the variable {name[:40]!r} is empty or has a NUL, which SCGI cannot carry")
        parts += (name, b"\0", value, b"\0")
    return b"".join(parts)


class CloseDelimited:
    """The common part of SCGI and uwsgi: body and answer are plain bytes, and the close ends the answer."""

    ends_with_close = True  # so no connection is kept

    def input(self, data: bytes) -> bytes:
        """Return the bytes of the next piece of the body. Its end needs no bytes: the head has the length."""
        return data

    def take_whole_output(self, data: bytes) -> bytes | None:
        """Return None: no bytes mark the end of the answer."""
        return None

    def feed(self, data: bytes) -> list[Output]:
        """Return the answer's next bytes."""
        return [Output(data)]


class Requester(CloseDelimited):
    """The web server's end of one connection: it sends one request, and receives one answer."""

    @staticmethod
    def encode_request(variables: Mapping[bytes, bytes], length: int) -> bytes:
        """Return a request's variables, encoded; length: of its body, in bytes.

        Applications expect PATH_INFO, also when it is empty.
        """
        first = {b"CONTENT_LENGTH": b"%d" % length, b"SCGI": b"1"}
        return encode_pairs((first | {b"PATH_INFO": b""} | dict(variables) | first).items())

    encode_pairs = staticmethod(encode_pairs)

    def begin_with(self, pairs: bytes, keep: bool) -> bytes:
        """Return the netstring of a request whose variables are encoded already. keep: ignored, SCGI keeps none."""
        return b"%d:%b," % (len(pairs), pairs)
