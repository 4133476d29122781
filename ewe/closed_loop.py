"""For the packages that measure servers, not for the server: a closed loop of clients in one thread.

Each client asks, waits for the whole answer, and asks again:

    client 1   ask ▸▬▬▬▬▬ answered   ask ▸▬▬▬▬ answered   ask ▸ …
    client 2   ask ▸▬▬▬▬▬▬▬ answered   ask ▸▬▬▬▬▬ answered   …
               └── time of one answer          no think time between two requests

The number of clients is the load: a slow server is asked less often, and no request is lost. Each request has a new
connection, since not every server keeps connections open. One thread and poll(2) serve all clients, so that the
clients take little of the processors that the server needs.

The loop ends after a time or after a number of requests. It carries bytes, and knows nothing of HTTP: an
AnswerReader, made for each request, says when the answer is whole and whether it is right.

The lab and the grader use the loop. The server's package is the only one that both of them import.

Possible failure: a connection that the client closes first stays in TIME_WAIT, and a port of the client is taken
for a minute. A long run needs several addresses (`source`).
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

RECEIVE_BYTES = 1 << 16
IP_BIND_ADDRESS_NO_PORT = getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24)


class WrongAnswer(Exception):
    """An answer that is not the right one; the text says why."""


class ClientsTimedOut(TimeoutError):
    """No client got anything for `stall_timeout_s`."""

    def __init__(self, waiting: int, clients: int, stall_timeout_s: float) -> None:
        super().__init__(f"{waiting} of {clients} clients got nothing for {stall_timeout_s:g} s")


class AnswerReader(Protocol):
    """The reader of one answer, made for one request of a client."""

    def feed(self, data: bytes) -> bool:
        """Take the bytes that have arrived, b"" at the end of the connection; return whether the answer is whole.

        Raises WrongAnswer. It returns True at the end of the connection, or raises.
        """


@dataclass
class ClosedLoad:
    """The work of the clients.

    address: of the server, as socket.getaddrinfo() returns it. request: the bytes; they fit into the buffer of a
    socket. make_reader: makes the AnswerReader of a request. seconds: how long new requests are sent; after that
    time the clients still wait for the answers to earlier requests. requests_each: the number of requests of each
    client. source: the clients' address, "" for the kernel's choice. stall_timeout_s: the longest time without an
    event of any client; then each request that waits has a fault. fault_name: the name under which a fault is
    counted. stops: the first fault ends the loop.
    """

    address: Any
    request: bytes
    make_reader: Callable[[], AnswerReader]
    clients: int
    seconds: float = math.inf
    requests_each: float = math.inf
    source: str = ""
    stall_timeout_s: float = 10.0
    fault_name: Callable[[Exception], str] = str
    stops: bool = False


@dataclass
class Measured:
    """The results of the clients. Times are in seconds, of right answers only, in the order of their ends.

    connects_s: until the connection was there. times_s: from the beginning to the end of the answer.
    """

    seconds: float = 0.0
    own_cpu_s: float = 0.0
    connects_s: list[float] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)


class LoopClient:
    """One client: one connection at a time. began, connected_at: by time.perf_counter(); 0.0: not yet."""

    def __init__(self, load: ClosedLoad) -> None:
        self.load = load
        self.request_count = 0

    def begin_request(self) -> None:
        """Open a connection for the next request. If it is open at once, also send the request. Raises OSError.

        Otherwise ClosedLoop.handle_event() sends the request later.
        """
        self.request_count += 1
        self.reader = self.load.make_reader()
        self.connected_at = 0.0
        self.began = time.perf_counter()
        address = self.load.address
        # An IPv6 address of getaddrinfo() has four items, an IPv4 address two.
        self.sock = socket.socket(socket.AF_INET6 if len(address) > 2 else socket.AF_INET)
        try:
            self.sock.setblocking(False)
            if self.load.source:
                # connect(2) chooses the port. Otherwise bind(2) would choose one that no connection of this address
                # has, and the ports would be used up sooner: ip(7).
                self.sock.setsockopt(socket.SOL_IP, IP_BIND_ADDRESS_NO_PORT, 1)
                self.sock.bind((self.load.source, 0))
            error = self.sock.connect_ex(address)
            # Over the loopback network the connection is already open, which a second connect(2) shows (EISCONN).
            # The measured time until it is open then contains no wait for the next poll().
            if error == errno.EINPROGRESS:
                error = self.sock.connect_ex(address)
            self.send_if_connected(error)
        except BaseException:
            self.sock.close()
            raise

    def send_if_connected(self, error: int) -> None:
        """Send the request if the connection is open. error: the errno of connect(2). Raises OSError."""
        if error in (0, errno.EISCONN):
            self.connected_at = time.perf_counter()
            self.sock.send(self.load.request)
        elif error not in (errno.EINPROGRESS, errno.EALREADY):
            raise OSError(error, os.strerror(error))


class ClosedLoop:
    """Runs a load once. over: a fault has ended it."""

    def __init__(self, load: ClosedLoad) -> None:
        self.load = load
        self.results = Measured()
        self.waiting: dict[int, LoopClient] = {}  # by the descriptor of the connection
        self.poll = select.poll()
        self.over = False

    def run(self) -> Measured:
        """Run the clients to their end."""
        results, own_cpu, began = self.results, time.thread_time(), time.perf_counter()
        self.until = began + self.load.seconds
        try:
            for _ in range(self.load.clients):
                self.begin_next(LoopClient(self.load))
            while self.waiting and not self.over:
                if events := self.poll.poll(self.load.stall_timeout_s * 1000):
                    self.handle_events(events)
                else:
                    self.end_silent_requests()
        finally:
            results.seconds = time.perf_counter() - began
            results.own_cpu_s = time.thread_time() - own_cpu
            for client in self.waiting.values():
                client.sock.close()
        return results

    def begin_next(self, client: LoopClient) -> None:
        """Have a client send requests until one of them waits for the server, or none is left."""
        while client.request_count < self.load.requests_each and not self.over:
            try:
                client.begin_request()
            except OSError as error:
                self.count_fault(error)
            else:
                descriptor = client.sock.fileno()
                self.waiting[descriptor] = client
                self.poll.register(descriptor, select.POLLIN if client.connected_at else select.POLLOUT)
                return
            if time.perf_counter() >= self.until:
                return

    def handle_events(self, events: list[tuple[int, int]]) -> None:
        """Go on with each client whose connection has an event."""
        for descriptor, _ in events:
            if self.over:
                return
            self.handle_event(descriptor, self.waiting[descriptor])

    def handle_event(self, descriptor: int, client: LoopClient) -> None:
        """Finish the connection of a client, or read its answer."""
        try:
            if not client.connected_at:
                # As in begin_request(): the second connect(2) tells whether the first has succeeded.
                client.send_if_connected(client.sock.connect_ex(self.load.address))
                self.poll.modify(descriptor, select.POLLIN if client.connected_at else select.POLLOUT)
                return
            if not client.reader.feed(client.sock.recv(RECEIVE_BYTES)):
                return
        except (OSError, WrongAnswer) as error:
            self.count_fault(error)
        else:
            self.results.connects_s.append(client.connected_at - client.began)
            self.results.times_s.append(time.perf_counter() - client.began)
        self.finish(descriptor)

    def finish(self, descriptor: int) -> None:
        """Let the client of a finished request ask again."""
        client = self.waiting.pop(descriptor)
        self.poll.unregister(descriptor)
        client.sock.close()
        if time.perf_counter() < self.until:
            self.begin_next(client)

    def end_silent_requests(self) -> None:
        """End the requests that wait: the server has been silent too long for all of them."""
        silent = list(self.waiting)
        for descriptor in silent:
            self.count_fault(ClientsTimedOut(len(silent), self.load.clients, self.load.stall_timeout_s))
            self.finish(descriptor)

    def count_fault(self, error: Exception) -> None:
        """Count a fault."""
        self.results.faults[self.load.fault_name(error)] += 1
        self.over = self.load.stops
