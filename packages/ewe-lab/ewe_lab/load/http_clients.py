"""Clients that connect for each request: `python -m ewe_lab.load.http_clients URL CLIENTS REQUESTS [DIGEST]`.

The HTTP pinger of the RDBMS paper (section 3.3): a closed loop (ewe/closed_loop.py). Each client sends REQUESTS
requests, one after the other, each over a new connection. Two times are measured:

    connect    until the connection is established
    response   from then until the last byte of the answer

An answer must have the status 200, and a body whose SHA-256 begins with DIGEST. Otherwise it is an error.

Prints the fields of a `PingResult` as JSON.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from urllib.parse import urlsplit

from ewe.closed_loop import ClosedLoad, ClosedLoop
from ewe.http.response_head import parse_response_head
from ewe.http.response_reader import CutResponse, ResponseReader
from ewe.http.status import HTTPError
from ewe_lab.load.client import BadAnswer, IncompleteAnswer, StatusError, error_kind

STALL_TIMEOUT_S = 30.0  # if no client gets a byte for so long, all requests in progress fail
SERVER_TIMING = rb"\r\nserver-timing: *con%b;dur=([\d.]+), *ret%b;dur=([\d.]+)(?=\r\n)"
CPU_TIMING, CLOCK_TIMING = (re.compile(SERVER_TIMING % (clock, clock), re.I) for clock in (b"", b"-wall"))


@dataclass
class PingResult:
    """The measurement of all clients. Times are in seconds.

    timings: the times in ms that the program reports in Server-Timing: `con` and `ret` of its CPU, `con_wall` and
    `ret_wall` by the clock. Empty if it reports none.
    received: bytes of the complete answers. client_cpu_s: of the clients themselves.
    """

    seconds: float = 0.0
    connect: list[float] = field(default_factory=list)
    response: list[float] = field(default_factory=list)
    timings: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    received: int = 0
    client_cpu_s: float = 0.0


class PingedAnswer:
    """An answer that has to have status 200 and a body whose SHA-256 begins with `digest`.

    found: the measurement of all clients, to which feed() adds a complete answer. received_bytes: so far, with the
    head.
    """

    def __init__(self, digest: str, found: PingResult) -> None:
        self.digest = digest
        self.found = found
        self.reader = ResponseReader(parse_response_head)
        self.body_hash = hashlib.sha256()
        self.received_bytes = 0

    def feed(self, data: bytes) -> bool:
        """Take bytes of the answer, b"" if the server has closed; return whether the answer is complete.

        Add the bytes and the timings of a complete answer to `found`. Raises WrongAnswer, and IncompleteAnswer
        if the server has closed too early.
        """
        reader = self.reader
        self.received_bytes += len(data)
        try:
            if data:
                self.body_hash.update(reader.feed(data))
            else:
                reader.end()
        except CutResponse as error:
            raise IncompleteAnswer(error.cause) from None
        except HTTPError as error:
            raise BadAnswer(error.cause) from None
        head = reader.head
        if not reader.finished or head is None:
            return False
        if head.status != 200:
            raise StatusError(head.status)
        if not self.body_hash.hexdigest().startswith(self.digest):
            raise BadAnswer("the body has other bytes")
        self.found.received += self.received_bytes
        for name, value in timings_in(head.encoded):
            self.found.timings.setdefault(name, []).append(value)
        return True


def timings_in(head: bytes) -> Iterator[tuple[str, float]]:
    """Yield the times that a program reports in the head of its answer, by name."""
    for pattern, suffix in ((CPU_TIMING, ""), (CLOCK_TIMING, "_wall")):
        if times := pattern.search(head):
            yield f"con{suffix}", float(times[1])
            yield f"ret{suffix}", float(times[2])


def run_clients(url: str, clients: int, requests: int, digest: str) -> PingResult:
    """Run all clients to their end; return the measurement. Raises OSError if the host is unknown.

    requests: of each client. digest: the first digits of the SHA-256 of a right body, "" for any. The requests are
    of HTTP/1.0, so the server closes each connection after its answer.
    """
    parts = urlsplit(url)
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    found = PingResult()  # each PingedAnswer adds its bytes and timings, the rest is added below
    first, *_ = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    _, _, _, _, address = first
    measured = ClosedLoop(
        ClosedLoad(
            address,
            f"GET {target} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode(),
            partial(PingedAnswer, digest, found),
            clients,
            requests_each=requests,
            stall_timeout_s=STALL_TIMEOUT_S,
            fault_name=error_kind,
        )
    ).run()
    found.seconds, found.client_cpu_s = measured.seconds, measured.own_cpu_s
    found.connect = measured.connects_s
    # A time of times_s includes that of the connection
    found.response = [
        took - connect for took, connect in zip(measured.times_s, measured.connects_s, strict=True)
    ]
    found.errors = dict(measured.faults)
    return found


def main() -> None:
    """Run the clients that the command line describes, and print their measurement as JSON."""
    url, clients, requests, *digest = sys.argv[1:]
    print(json.dumps(asdict(run_clients(url, int(clients), int(requests), "".join(digest)))))


if __name__ == "__main__":
    main()
