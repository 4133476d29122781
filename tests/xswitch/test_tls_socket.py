"""TLS in the main process's event loop: sockets that never wait, and the handshake."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from support.certificates import authority

from ewe.xswitch.certificates import Contexts, contexts, read_certificates
from ewe.xswitch.settings import Settings
from ewe.xswitch.switch.loop import EventLoop
from ewe.xswitch.switch.tls_socket import Handshake, TlsSocket, tls_socket

pytestmark = pytest.mark.starts_processes  # openssl

MB = 1 << 20


def raised(fault: Exception) -> None:
    raise fault


@pytest.fixture(scope="module")
def tls() -> Iterator[Contexts]:
    with authority() as ca:
        certificate, key = map(str, ca.sign("both"))
        settings = Settings(listen=("tls:127.0.0.1:0",), tls_cert=certificate, tls_key=key)
        contexts_of_ca = contexts(read_certificates(replace(settings, tls_ca=str(ca.certificate))))
        assert contexts_of_ca is not None
        yield contexts_of_ca


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    with closing(EventLoop(raised)) as made:
        yield made


@pytest.fixture
def ends(tls: Contexts, loop: EventLoop) -> Iterator[tuple[TlsSocket, TlsSocket]]:
    """The two ends of a connection, after the handshake."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = tls_socket(tls.client, socket.socket(), "127.0.0.1")
        client.connect_ex(listener.getsockname())
        server = tls_socket(tls.server, listener.accept()[0])
    reasons: list[str] = []

    def ended(reason: str) -> None:
        reasons.append(reason)
        if len(reasons) == 2:
            loop.stop()

    for end in (client, server):
        Handshake(loop, end, ended)
    loop.call_later(20, loop.stop)
    loop.run()
    assert reasons == ["", ""]
    with client, server:
        yield client, server


def test_all_bytes_come_and_none_stays_behind(ends: tuple[TlsSocket, TlsSocket]) -> None:
    """The sender fills the kernel's buffer and goes on with the rest, as Outbox does."""
    client, server = ends
    data = os.urandom(20 * MB)
    received: list[bytes] = []
    at = refused = 0
    while at < len(data) or sum(map(len, received)) < len(data):
        try:
            at += client.send(data[at : at + 300_000]) if at < len(data) else 0
        except BlockingIOError:
            refused += 1
        try:
            piece = server.recv(65536)
            assert piece and len(piece) <= 65536
            received.append(piece)
        except BlockingIOError:
            pass
        assert server.pending() == 0
    assert b"".join(received) == data
    assert refused
    with pytest.raises(BlockingIOError):
        server.recv(65536)


def test_a_shorter_piece_may_follow_one_that_was_not_complete(ends: tuple[TlsSocket, TlsSocket]) -> None:
    """Outbox offers what comes first as a whole, however long it is, and of the rest 256 KB at a time."""
    client, server = ends
    data = os.urandom(20 * MB)
    at, received = client.send(data), b""
    assert at < len(data)  # the kernel's buffer is full
    while len(received) < len(data):
        try:
            at += client.send(data[at : at + 100_000])
        except BlockingIOError:
            pass
        try:
            received += server.recv(65536)
        except BlockingIOError:
            pass
    assert received == data


def test_the_end_of_the_peer_is_the_end_of_the_data(ends: tuple[TlsSocket, TlsSocket]) -> None:
    """Data, then the end, as with a plain socket; shutdown() leaves the other direction open."""
    client, server = ends
    server.send(b"last")
    server.shutdown(socket.SHUT_WR)
    client.send(b"still")
    assert server.recv(65536) == b"still"
    received = b""
    for _ in range(1000):
        try:
            piece = client.recv(65536)
        except BlockingIOError:
            continue
        if not piece:
            break
        received += piece
    assert (received, client.fault) == (b"last", "")


def test_plain_bytes_after_the_handshake_are_a_fault(ends: tuple[TlsSocket, TlsSocket]) -> None:
    client, server = ends
    with socket.socket(fileno=os.dup(client.fileno())) as plain:
        plain.setblocking(True)
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
    assert server.recv(65536) == b""
    assert server.fault


def test_an_event_of_a_former_file_does_not_end_a_handshake(tls: Contexts, loop: EventLoop) -> None:
    """The loop may call back once too often, here before the socket is connected."""
    reasons: list[str] = []
    with tls_socket(tls.client, socket.socket(), "127.0.0.1") as sock:
        handshake = Handshake(loop, sock, reasons.append)
        handshake.step()
        assert reasons == []
        assert sock.fileno() in loop.writers
        handshake.stop()
