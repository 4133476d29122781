"""The closed loop: the counted requests, its end, and the effects of faults."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ewe.closed_loop import ClientsTimedOut, ClosedLoad, ClosedLoop, WrongAnswer


@contextmanager
def server(answer: Callable[[int], bytes]) -> Iterator[tuple[str, int]]:
    """Answer the connections one after the other. answer: the bytes for each of them, by its number."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def serve() -> None:
        number = 0
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(4096)
                connection.sendall(answer(number))
                number += 1

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


class Word:
    """An answer that has to be b"yes", to the end of its connection."""

    received = b""

    def feed(self, data: bytes) -> bool:
        self.received += data
        if not data and self.received != b"yes":
            raise WrongAnswer(self.received.decode())
        return not data


def test_each_client_sends_its_number_of_requests() -> None:
    with server(lambda number: b"yes") as address:
        found = ClosedLoop(ClosedLoad(address, b"?", Word, clients=3, requests_each=4)).run()
    assert len(found.times_s) == len(found.connects_s) == 12 and not found.faults
    assert all(
        connect <= took <= found.seconds
        for connect, took in zip(found.connects_s, found.times_s, strict=True)
    )
    assert 0 < found.own_cpu_s < found.seconds + 0.1


def test_a_time_ends_the_loop_and_requests_under_way_are_waited_for() -> None:
    with server(lambda number: b"yes") as address:
        found = ClosedLoop(ClosedLoad(address, b"?", Word, clients=2, seconds=0.05, source="127.9.0.2")).run()
    assert len(found.times_s) >= 2 and not found.faults and found.seconds >= 0.05


@pytest.mark.parametrize("stops", [True, False])
def test_faults_are_counted_and_may_end_the_loop(stops: bool) -> None:
    with server(lambda number: b"no" if number % 2 else b"yes") as address:
        found = ClosedLoop(ClosedLoad(address, b"?", Word, clients=1, requests_each=6, stops=stops)).run()
    assert (len(found.times_s), found.faults) == ((1, {"no": 1}) if stops else (3, {"no": 3}))


def test_a_refused_connection_is_a_request_of_its_client() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        address = sock.getsockname()
    found = ClosedLoop(
        ClosedLoad(
            address, b"?", Word, clients=2, requests_each=3, fault_name=lambda error: type(error).__name__
        )
    ).run()
    assert found.faults == {"ConnectionRefusedError": 6} and not found.times_s


def test_a_silent_server_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        load = ClosedLoad(silent.getsockname(), b"?", Word, clients=2, requests_each=2, stall_timeout_s=0.05)
        found = ClosedLoop(load).run()
    assert found.faults == {"2 of 2 clients got nothing for 0.05 s": 4}
    assert issubclass(ClientsTimedOut, TimeoutError)
