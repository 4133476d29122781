"""Slices of a closed loop (ewe/closed_loop.py), in which every answer has to be a file that the grader knows.

Each request has `Connection: close`, since not every server of a lab keeps connections open. A connection that the
client closes first takes a port for a minute, so each slice uses another address (127.0.x.y) with all of its ports.

FileAnswer compares an answer with the file's bytes, and decodes a chunked body, because a student's server may
choose its framing. It does not use ewe's reader of responses: the client must leave the processors to the servers.

Read next: speed.py, which compares two servers by slices of this loop.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, field
from functools import partial

from ewe.closed_loop import ClientsTimedOut, ClosedLoad, ClosedLoop, WrongAnswer
from ewe.http.chunked import ChunkedDecoder
from ewe.http.limits import RequestLimits
from ewe.http.status import HTTPError
from ewe_classroom.grader.responses import HEAD_END, STATUS_DIGITS

STALL_TIMEOUT_S = 10.0  # without any event on any connection
CHUNKED = re.compile(rb"\ntransfer-encoding:[ \t]*chunked[ \t]*\r?\n", re.IGNORECASE)
OTHER_BYTES = "the answer was 200 with other bytes than the file's"
MAX_HEAD_BYTES = 1 << 16


@dataclass
class Slice:
    """What one slice found. times_s: how long each response took; failure: the first failed request, "" if none."""

    clients: int
    seconds: float = 0.0
    times_s: list[float] = field(default_factory=list)
    failure: str = ""
    own_cpu_s: float = 0.0

    @property
    def rate(self) -> float:
        """Return the responses of one second."""
        return len(self.times_s) / self.seconds if self.seconds else 0.0


class FileAnswer:
    """The reader of one answer, which has to be status 200 with a file's bytes.

    received: the bytes so far; of a chunked body, the decoded ones. decoder: of a chunked body; None for any other.
    """

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.received = b""
        self.decoder: ChunkedDecoder | None = None

    def feed(self, data: bytes) -> bool:
        """Take the bytes that have come, b"" at the end of the connection; return whether the answer is complete.

        It is complete if it has as many bytes as the file, and the end of a chunked body. Raises WrongAnswer.
        """
        if self.decoder is not None:
            return self.feed_chunked(self.decoder, data)
        self.received += data
        head = HEAD_END.search(self.received)
        if head is None:
            if not data:
                raise WrongAnswer(
                    f"the connection was closed after {len(self.received)} bytes, before a response"
                )
            if len(self.received) > MAX_HEAD_BYTES:
                raise WrongAnswer("a head of more than 64 KB")
            return False
        if self.received[STATUS_DIGITS] != b"200":
            raise WrongAnswer(f"the answer was {self.received[:30]!r} and not 200")
        if CHUNKED.search(self.received, 0, head.end()):
            self.decoder = ChunkedDecoder(RequestLimits())
            chunks, self.received = self.received[head.end() :], b""
            # Without a first chunk there is nothing to decode yet: feed_chunked() takes b"" for the end.
            return bool(chunks) and self.feed_chunked(self.decoder, chunks)
        body_bytes = len(self.received) - head.end()
        if body_bytes == len(self.body) and self.received.endswith(self.body):
            return True
        if body_bytes >= len(self.body):
            raise WrongAnswer(OTHER_BYTES)
        if not data:
            raise WrongAnswer(f"the connection was closed after {body_bytes} of {len(self.body)} bytes")
        return False

    def feed_chunked(self, decoder: ChunkedDecoder, data: bytes) -> bool:
        """Take bytes of a chunked body, as feed() does. Raises WrongAnswer."""
        try:
            self.received += decoder.feed(data)
            # One call decodes a limited number of chunks.
            while not (decoder.finished or decoder.needs_data):
                self.received += decoder.feed(b"")
        except HTTPError as error:
            raise WrongAnswer(f"a chunked body that cannot be decoded ({error.cause})") from None
        if decoder.finished and self.received == self.body:
            return True
        if decoder.finished or len(self.received) > len(self.body):
            raise WrongAnswer(OTHER_BYTES)
        if not data:
            raise WrongAnswer(f"the connection was closed after {len(self.received)} bytes of a chunked body")
        return False


def fault_text(error: Exception) -> str:
    """Return the text of a fault of the loop, for a verdict. Only an OSError has no text of the loop."""
    if isinstance(error, OSError) and not isinstance(error, ClientsTimedOut):
        return f"a connection failed: {error.strerror or errno.errorcode.get(error.errno or 0, '?')}"
    return str(error)


def closed_loop(port: int, clients: int, seconds: float, path: str, body: bytes, address: str) -> Slice:
    """Let clients ask for a file again and again; stop at the first request that fails. Return the slice.

    seconds: how long new requests are sent. Those under way then are still waited for. body: the file's bytes.
    address: the clients' address, in 127.0.0.0/8.
    """
    load = ClosedLoad(
        ("127.0.0.1", port),
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode(),
        partial(FileAnswer, body),
        clients,
        seconds,
        source=address,
        stall_timeout_s=STALL_TIMEOUT_S,
        fault_name=fault_text,
        stops=True,
    )
    found = ClosedLoop(load).run()
    return Slice(clients, found.seconds, found.times_s, next(iter(found.faults), ""), found.own_cpu_s)
