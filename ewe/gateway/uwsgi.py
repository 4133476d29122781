"""uwsgi: the protocol between a web server and uWSGI, for one request on one connection. No I/O.

uwsgi has SCGI's shape (scgi.py), with lengths in binary. The whole head of a request is one packet; each length has
16 bits, the low byte first. The body follows as it is:

    modifier1   length of the block   modifier2   block: pairs
    00          70 01                 00          0e 00 "REQUEST_METHOD" 04 00 "POST"   09 00 "PATH_INFO" ...
    └ 0: a request for a WSGI application         └ length of the name   └ length of the value

The answer is a whole HTTP response or what a CGI program prints; gateway/cgi.py understands both beginnings. The
close of the connection ends it, and what scgi.py says of such an answer holds here too.

What can go wrong:

- 16 bits end at 65,535 bytes, and a client may send more in its fields. Such a request is refused with 431. To send
  its first 64 KB would let a client decide which variables the application never sees.
- uWSGI itself accepts a block of 4,096 bytes, unless its option buffer-size says more. It closes the connection
  without an answer then: 502, and uWSGI's log says "invalid request block size".

Source: "The uwsgi Protocol", uWSGI's documentation. Read next: scgi.py, responder.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from ewe.gateway.scgi import CloseEnded
from ewe.http.status import HTTPError

WSGI = 0  # modifier1 of a request; uWSGI hands it to the application that it has loaded, in any language
MAX_BLOCK = 65535  # bytes

HEADER = struct.Struct("<BHB")  # modifier1, length of the block, modifier2
LENGTH = struct.Struct("<H")


class UwsgiError(ValueError):
    """Bytes that no web server may send; the text is one line."""


def encode_pairs(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return variables as uwsgi writes them. Raises HTTPError(431) for one that is longer than 64 KB."""
    parts: list[bytes] = []
    for name, value in pairs:
        if len(name) > MAX_BLOCK or len(value) > MAX_BLOCK:
            raise too_large(len(name) + len(value))
        parts += (LENGTH.pack(len(name)), name, LENGTH.pack(len(value)), value)
    return b"".join(parts)


def too_large(length: int) -> HTTPError:
    """Return the error for a request that does not fit."""
    return HTTPError(431, f"the request's variables have {length} bytes; uwsgi carries {MAX_BLOCK}")


class Requester(CloseEnded):
    """The web server's end of one connection: it begins one request, and hears one answer."""

    @staticmethod
    def encode_request(variables: Mapping[bytes, bytes], length: int) -> bytes:
        """Return a request's variables, encoded; length: of its body, in bytes. Raises HTTPError(431).

        Applications expect PATH_INFO, also when it is empty.
        """
        return encode_pairs(({b"PATH_INFO": b""} | dict(variables)).items())

    encode_pairs = staticmethod(encode_pairs)

    def begin_with(self, pairs: bytes, keep: bool) -> bytes:
        """Return the packet of a request whose variables are encoded already. Raises HTTPError(431)."""
        if len(pairs) > MAX_BLOCK:
            raise too_large(len(pairs))
        return HEADER.pack(WSGI, len(pairs), 0) + pairs


def read_request(data: bytes) -> tuple[dict[bytes, bytes], bytes] | None:
    """Return a request's variables, and the bytes after them: the application's end. None: it is not complete.

    Raises UwsgiError.
    """
    if data and data[0] != WSGI:
        raise UwsgiError(f"modifier1 is {data[0]}, not {WSGI}")
    if len(data) < HEADER.size:
        return None
    end = HEADER.size + HEADER.unpack_from(data)[1]
    if len(data) < end:
        return None
    pairs = {}
    at = HEADER.size
    while at < end:
        words = []
        for _ in range(2):
            start = at + LENGTH.size
            at = start + LENGTH.unpack_from(data, at)[0] if start <= end else end + 1
            if at > end:
                raise UwsgiError("a variable goes beyond the end of its block")
            words.append(data[start:at])
        pairs[words[0]] = words[1]
    return pairs, data[end:]
