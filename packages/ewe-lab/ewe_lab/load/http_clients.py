"""Clients that connect for each request: `python -m ewe_lab.load.http_clients URL CLIENTS REQUESTS [DIGEST]`.

The HTTP pinger of the RDBMS paper (section 3.3). Each client is a thread that sends REQUESTS requests, one after
the other, each over a new connection. Two times are measured:

    connect    until the connection is established
    response   from then until the last byte of the answer

An answer must have the status 200, and a body whose SHA-256 begins with DIGEST. Otherwise it is an error.

Prints JSON: what `Pinged` holds.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from urllib.parse import urlsplit

from ewe_lab.bench.results import ERRORS

PIECE = 64 * 1024
TIMEOUT = 30.0  # seconds that one request may take
CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked\r\n", re.I)
TOLD = rb"\r\nserver-timing: *con%b;dur=([\d.]+), *ret%b;dur=([\d.]+)(?=\r\n)"
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.I)
TIMING, BY_CLOCK = (re.compile(TOLD % (kind, kind), re.I) for kind in (b"", b"-wall"))


@dataclass
class Pinged:
    """What the clients measured. Times are in seconds.

    told: the times in ms that the program told in Server-Timing: `con` and `ret` of its CPU, `con_wall` and
    `ret_wall` by the clock. Empty if it told none.
    client: the CPU seconds of the clients themselves.
    """

    seconds: float = 0.0
    connect: list[float] = field(default_factory=list)
    response: list[float] = field(default_factory=list)
    told: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    received: int = 0
    client: float = 0.0


def ask(address: tuple[str, int], request: bytes) -> tuple[float, float, bytes]:
    """Send one request; return the seconds to connect, those to the end of the answer, and the answer.

    Raises OSError.
    """
    began = time.perf_counter()
    with socket.create_connection(address, TIMEOUT) as sock:
        connected = time.perf_counter()
        sock.sendall(request)
        answer = b""
        while not whole(answer) and (piece := sock.recv(PIECE)):
            answer += piece
        ended = time.perf_counter()
    return connected - began, ended - connected, answer


def whole(answer: bytes) -> bool:
    """Whether an answer is complete, as its Content-Length says. Without one only the connection's end tells."""
    head, empty, body = answer.partition(b"\r\n\r\n")
    length = LENGTH.search(head + b"\r\n")
    return bool(empty and length) and len(body) >= int(length[1] if length else 0)


def joined(body: bytes) -> bytes:
    """Return a body without the framing of its chunks, b"" if it is not whole.

    Some servers send chunks to a client of HTTP/1.0, too.
    """
    found = b""
    while True:
        line, _, rest = body.partition(b"\r\n")
        size = int(line.partition(b";")[0] or b"0", 16)
        if size == 0 or len(rest) < size:
            return b"" if size else found
        found, body = found + rest[:size], rest[size + 2 :]


def kind_of(reason: OSError) -> str:
    """Return what the lab calls an error (ewe_lab.bench.results.ERRORS)."""
    if isinstance(reason, TimeoutError):
        return "ct"
    if isinstance(reason, ConnectionRefusedError):
        return "ref"
    return "res" if isinstance(reason, ConnectionError) else "other"


def fault_of(answer: bytes, digest: str) -> str:
    """Return the kind of error that an answer is, "" if it is good."""
    head, empty, body = answer.partition(b"\r\n\r\n")
    if CHUNKED.search(head + b"\r\n"):
        body = joined(body)
    if not empty or (LENGTH.search(head + b"\r\n") and not whole(answer)):
        return "res"
    if head[9:12] != b"200":
        return "status"
    return "" if hashlib.sha256(body).hexdigest().startswith(digest) else "other"


def told_by(head: bytes) -> Iterator[tuple[str, float]]:
    """Yield the times that a program told in the head of its answer, by name."""
    for pattern, kind in ((TIMING, ""), (BY_CLOCK, "_wall")):
        if times := pattern.search(head):
            yield f"con{kind}", float(times[1])
            yield f"ret{kind}", float(times[2])


def client(url: str, requests: int, digest: str, found: Pinged, lock: threading.Lock) -> None:
    """Send the requests of one client."""
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or 80)
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    request = f"GET {target} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode()
    for _ in range(requests):
        try:
            connect, response, answer = ask(address, request)
            fault = fault_of(answer, digest)
        except OSError as reason:
            fault = kind_of(reason)
        with lock:
            if fault:
                assert fault in ERRORS
                found.errors[fault] = found.errors.get(fault, 0) + 1
                continue
            found.connect.append(connect)
            found.response.append(response)
            found.received += len(answer)
            for name, value in told_by(answer.partition(b"\r\n\r\n")[0] + b"\r\n"):
                found.told.setdefault(name, []).append(value)


def pinged(url: str, clients: int, requests: int, digest: str) -> Pinged:
    """Run all clients to their end."""
    found, lock = Pinged(), threading.Lock()
    threads = [
        threading.Thread(target=client, args=(url, requests, digest, found, lock)) for _ in range(clients)
    ]
    began, cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.seconds, found.client = time.perf_counter() - began, time.process_time() - cpu
    return found


def main() -> None:
    """Measure and print."""
    url, clients, requests, *digest = sys.argv[1:]
    print(json.dumps(asdict(pinged(url, int(clients), int(requests), "".join(digest)))))


if __name__ == "__main__":
    main()
