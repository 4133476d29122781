"""Slices of a closed loop (ewe/closed_loop.py), in which every answer has to be a file that the grader knows.

Each request has `Connection: close`, since not every server of a lab keeps connections open. A connection that the
client closes first takes a port for a minute, so each slice uses another address (127.0.x.y) with all of its ports.

An answer is compared with the file's bytes. ewe's reader of responses is not asked: the comparison costs the client
less of the processors that the servers need, and accepts each framing that a student's server may choose.

Read next: speed.py, which compares two servers by slices of this loop.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, field
from functools import partial

from ewe.closed_loop import ClientsTimedOut, ClosedLoad, ClosedLoop, WrongAnswer

STALL_TIMEOUT_S = 10.0  # without any event on any connection
HEAD_END = re.compile(rb"\r?\n\r?\n")
STATUS_DIGITS = slice(9, 12)  # of a response: they follow `HTTP/1.1 `
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
    """An answer that has to be 200 with a file's bytes."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.received = b""

    def feed(self, data: bytes) -> bool:
        """Take the next bytes, b"" at the connection's end; return whether the answer is complete.

        Raises WrongAnswer.
        """
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
        body_bytes = len(self.received) - head.end()
        if body_bytes == len(self.body) and self.received.endswith(self.body):
            return True
        if body_bytes >= len(self.body):
            raise WrongAnswer("the answer was 200 with other bytes than the file's")
        if not data:
            raise WrongAnswer(f"the connection was closed after {body_bytes} of {len(self.body)} bytes")
        return False


def words(error: Exception) -> str:
    """Return the text of a fault of the loop, for a verdict. Only an OSError has no text of the loop."""
    if isinstance(error, OSError) and not isinstance(error, ClientsTimedOut):
        return f"a connection failed: {error.strerror or errno.errorcode.get(error.errno or 0, '?')}"
    return str(error)


def closed_loop(port: int, clients: int, seconds: float, path: str, body: bytes, address: str) -> Slice:
    """Let clients ask for a file again and again; stop at the first request that fails. Return the times.

    seconds: how long new requests are sent. Those under way then are still waited for. address: the clients'
    address, in 127.0.0.0/8.
    """
    load = ClosedLoad(
        ("127.0.0.1", port),
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode(),
        partial(FileAnswer, body),
        clients,
        seconds,
        source=address,
        stall_timeout_s=STALL_TIMEOUT_S,
        fault=words,
        stops=True,
    )
    found = ClosedLoop(load).run()
    return Slice(clients, found.seconds, found.times_s, next(iter(found.faults), ""), found.own_cpu_s)
