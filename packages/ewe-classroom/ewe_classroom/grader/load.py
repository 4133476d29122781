"""A closed loop of clients in one thread: each asks, waits for the whole response, and asks again.

    client 1   ask ▸▬▬▬▬▬ answered   ask ▸▬▬▬▬ answered   ask ▸ …
    client 2   ask ▸▬▬▬▬▬▬▬ answered   ask ▸▬▬▬▬▬ answered   …
               └── time of one response        no think time between two requests

The number of clients is the load: a slow server is asked less often, and no request is lost. Each request has a new
connection and `Connection: close`, since not every server of a lab keeps connections open. One thread and epoll
serve all clients, so that the client takes little of the processors that the server needs.

What can go wrong: a connection that the client closes first stays in TIME_WAIT, and a port of the client is taken
for a minute. Each slice therefore uses another address of the loopback network (127.0.x.y) with all of its ports.

Read next: speed.py, which compares two servers by slices of this loop.
"""

from __future__ import annotations

import errno
import re
import select
import socket
import time
from dataclasses import dataclass, field

PATIENCE_S = 10.0  # without any event on any connection
HEAD_END = re.compile(rb"\r?\n\r?\n")
RECEIVE_BYTES = 1 << 16


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


class Asker:
    """One client of the loop: one connection at a time."""

    def __init__(self, port: int, address: str, request: bytes, body: bytes) -> None:
        self.port = port
        self.address = address
        self.request = request
        self.body = body
        self.sock: socket.socket | None = None

    def ask(self) -> int:
        """Connect, and send the request if the connection is there; return what epoll shall wait for.

        Raises OSError.
        """
        self.received = b""
        self.began = time.perf_counter()
        self.sock = socket.socket()
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.SOL_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
        self.sock.bind((self.address, 0))
        error = self.sock.connect_ex(("127.0.0.1", self.port))
        if error == errno.EINPROGRESS:
            return select.EPOLLOUT
        if error:
            raise OSError(error, "connect")
        self.sock.send(self.request)
        return select.EPOLLIN

    def send(self) -> int:
        """Send the request on a connection that has come about; return what epoll waits for. Raises OSError."""
        assert self.sock is not None
        if error := self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, "connect")
        self.sock.send(self.request)
        return select.EPOLLIN

    def receive(self) -> tuple[bool, str]:
        """Take what has come; return whether the response is whole, and what is wrong with it. Raises OSError."""
        assert self.sock is not None
        data = self.sock.recv(RECEIVE_BYTES)
        self.received += data
        head = HEAD_END.search(self.received)
        if head is None:
            if not data:
                return False, f"the connection was closed after {len(self.received)} bytes, before a response"
            return False, "a head of more than 64 KB" if len(self.received) > RECEIVE_BYTES else ""
        if self.received[9:12] != b"200":
            return False, f"the answer was {self.received[:30]!r} and not 200"
        size = len(self.received) - head.end()
        if size == len(self.body) and self.received.endswith(self.body):
            return True, ""
        if size >= len(self.body):
            return False, "the answer was 200 with other bytes than the file's"
        return False, "" if data else f"the connection was closed after {size} of {len(self.body)} bytes"

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None


def closed_loop(port: int, clients: int, seconds: float, path: str, body: bytes, address: str) -> Slice:
    """Let clients ask for a file again and again; stop at the first request that fails.

    seconds: how long new requests are sent. Those under way then are still waited for. address: the clients'
    address, in 127.0.0.0/8.
    """
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    found = Slice(clients)
    askers: dict[int, Asker] = {}
    epoll = select.epoll()
    own_cpu = time.thread_time()
    began = time.perf_counter()
    end = began + seconds

    def ask(asker: Asker) -> None:
        try:
            wanted = asker.ask()
        except OSError:
            asker.close()
            raise
        assert asker.sock is not None
        askers[asker.sock.fileno()] = asker
        epoll.register(asker.sock, wanted)

    try:
        for _ in range(clients):
            ask(Asker(port, address, request, body))
        while askers:
            events = epoll.poll(PATIENCE_S)
            if not events:
                found.failure = f"{len(askers)} of {clients} clients got nothing for {PATIENCE_S:g} s"
                break
            for number, happened in events:
                asker = askers[number]
                if happened & select.EPOLLOUT:
                    epoll.modify(number, asker.send())
                    continue
                whole, wrong = asker.receive()
                if wrong:
                    found.failure = wrong
                    return found
                if whole:
                    now = time.perf_counter()
                    found.times_s.append(now - asker.began)
                    del askers[number]
                    asker.close()
                    if now < end:
                        ask(asker)
    except OSError as error:
        found.failure = f"a connection failed: {error.strerror or errno.errorcode.get(error.errno or 0, '?')}"
    finally:
        found.seconds = time.perf_counter() - began
        found.own_cpu_s = time.thread_time() - own_cpu
        for asker in askers.values():
            asker.close()
        epoll.close()
    return found
