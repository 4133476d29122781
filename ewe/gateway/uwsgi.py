"""uwsgi: the protocol between a web server and uWSGI, for one request on one connection. No I/O.

uwsgi has SCGI's shape (scgi.py), with lengths in binary. The whole head of a request is one packet; each length has
16 bits, the low byte first. The body follows as it is:

    modifier1   length of the block   modifier2   block: pairs
    00          70 01                 00          0e 00 "REQUEST_METHOD" 04 00 "POST"   09 00 "PATH_INFO" ...
    └ 0: a request for a WSGI application         └ length of the name   └ length of the value

The answer is a whole HTTP response or the output of a CGI program; gateway/cgi.py understands both beginnings. The
close of the connection ends it. Such an answer has the possible failures that scgi.py describes.

Possible failures:

- 16 bits end at 65,535 bytes, and a client may send more in its fields. Such a request is refused with 431. If ewe
  sent its first 64 KB, a client could decide which variables the application never sees.
- uWSGI itself accepts a block of 4,096 bytes, unless its option buffer-size allows more. For a longer block it
  closes the connection without an answer: 502, and uWSGI's log has "invalid request block size".

Source: "The uwsgi Protocol", uWSGI's documentation. Read next: scgi.py, responder.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from ewe.gateway.scgi import CloseDelimited
from ewe.http.status import HTTPError

WSGI = 0  # modifier1 of a request; uWSGI passes it to the loaded application, in any language
MAX_BLOCK_BYTES = 65535

HEADER = struct.Struct("<BHB")  # modifier1, length of the block, modifier2
LENGTH = struct.Struct("<H")


def encode_pairs(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return variables in uwsgi's encoding. Raises HTTPError(431) for a name or value above MAX_BLOCK_BYTES."""
    parts: list[bytes] = []
    for name, value in pairs:
        if len(name) > MAX_BLOCK_BYTES or len(value) > MAX_BLOCK_BYTES:
            raise too_large(len(name) + len(value))
        parts += (LENGTH.pack(len(name)), name, LENGTH.pack(len(value)), value)
    return b"".join(parts)


def too_large(length: int) -> HTTPError:
    """Return the error for a request that does not fit into one packet."""
    return HTTPError(431, f"the request's variables have {length} bytes; uwsgi carries {MAX_BLOCK_BYTES}")


class Requester(CloseDelimited):
    """The web server's end of one connection: it sends one request, and receives one answer."""

    @staticmethod
    def encode_request(variables: Mapping[bytes, bytes], length: int) -> bytes:
        """Return a request's variables, encoded; length: of its body, in bytes. Raises HTTPError(431).

        Applications expect PATH_INFO, also when it is empty.
        """
        return encode_pairs(({b"PATH_INFO": b""} | dict(variables)).items())

    encode_pairs = staticmethod(encode_pairs)

    def begin_with(self, pairs: bytes, keep: bool) -> bytes:
        """Return the packet of a request whose variables are encoded already. Raises HTTPError(431)."""
        if len(pairs) > MAX_BLOCK_BYTES:
            raise too_large(len(pairs))
        return HEADER.pack(WSGI, len(pairs), 0) + pairs
