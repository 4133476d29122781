"""Limits on clients that are slow without being silent, or too many. Under every model."""

from __future__ import annotations

import select
import signal
import socket
import time
from pathlib import Path

import pytest
from support.server import Start, wait_until, write_program
from support.wire import read_response

GET = b"GET / HTTP/1.1\r\nHost: ewe\r\n\r\n"
FAST = ("--min-rate", "10000", "--body-timeout", "300ms", "--write-timeout", "300ms")


def test_a_body_that_trickles(start: Start, variant: str) -> None:
    """A byte now and then keeps every single wait short; the average rate decides: 408."""
    server = start(variant, *FAST)
    write_program(
        server.cgi / "eat", "#!/bin/sh\ncat >/dev/null\nprintf 'Content-Type: text/plain\\n\\nate\\n'\n"
    )
    with server.connect() as sock:
        sock.sendall(b"POST /cgi-bin/eat HTTP/1.1\r\nHost: ewe\r\nContent-Length: 100000\r\n\r\n")
        wait_until(lambda: trickle(sock), 30, "the byte now and then is enough")
        status, fields, _ = read_response(sock)
        assert (status, fields["connection"]) == (408, "close")
    server.wait_for_log("slower than 10000 bytes a second (min-rate)")
    with server.held_up():  # until the body of another is there
        fast = server.connect()
        fast.sendall(
            b"POST /cgi-bin/eat HTTP/1.1\r\nHost: ewe\r\nContent-Length: 30000\r\n\r\n" + bytes(30000)
        )
    with fast:
        assert read_response(fast)[0] == 200


def trickle(sock: socket.socket) -> bool:
    """Send a byte, unless an answer comes soon; return whether it does."""
    if select.select([sock], [], [], 0.05)[0]:
        return True
    sock.send(b"x")
    return False


SLOW = """
import asyncio
async def app(scope, receive, send):
    assert scope["type"] == "http"
    size, more = 0, True
    while more:
        message = await receive()
        if not size:
            open("begun", "w").close()
            await asyncio.sleep(1)  # longer than the client may take for its first byte
        size, more = size + len(message["body"]), message["more_body"]
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b"%d" % size})
"""


def test_the_time_of_an_application_is_not_the_clients(start: Start, model: str, tmp_path: Path) -> None:
    """An application that works between two pieces of a body: its client has sent the rest long before."""
    (tmp_path / "slow.py").write_text(SLOW)
    server = start(model, "--asgi", "/slow=slow:app", *FAST)
    with server.connect() as sock:
        sock.sendall(b"POST /slow HTTP/1.1\r\nHost: ewe\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 100 ")
        sock.sendall(b"1")
        wait_until((tmp_path / "begun").exists, 20)
        sock.sendall(b"23456789")
        assert read_response(sock)[::2] == (200, b"9"), server.log()


def test_a_body_that_trickles_to_another_server(start: Start, model: str) -> None:
    """The proxy waits for the client and for its server at once: this time counts, too."""
    with socket.create_server(("127.0.0.1", 0)) as upstream:
        server = start(model, "--proxy", f"/app=http://127.0.0.1:{upstream.getsockname()[1]}", *FAST)
        with server.connect() as sock:
            sock.sendall(b"POST /app HTTP/1.1\r\nHost: ewe\r\nContent-Length: 100000\r\n\r\n")
            wait_until(lambda: trickle(sock), 30, "the byte now and then is enough")
            assert read_response(sock)[0] == 408
    server.wait_for_log("slower than 10000 bytes a second (min-rate)")


def test_a_client_that_does_not_read(start: Start, variant: str) -> None:
    server = start(variant, *FAST)
    with (server.root / "large").open("wb") as file:
        file.truncate(50_000_000)
    write_program(
        server.cgi / "large", "#!/bin/sh\nprintf 'Content-Type: a/b\\n\\n'\nexec cat ../htdocs/large\n"
    )
    paths = ("large", "cgi-bin/large")
    with socket.socket() as one, socket.socket() as two:
        for sock, path in zip((one, two), paths, strict=True):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(20)
            sock.connect(("127.0.0.1", server.port))
            sock.sendall(b"GET /%b HTTP/1.1\r\nHost: ewe\r\n\r\n" % path.encode())

        def both_ended() -> bool:
            log = server.access_file.read_text() if server.access_file.exists() else ""
            return all(f"GET /{path} HTTP/1.1" in log for path in paths)

        wait_until(both_ended, 30, server.log)  # while the clients are there, and read nothing
    with server.connect() as sock:
        sock.sendall(GET)
        assert read_response(sock)[0] == 200


@pytest.mark.parametrize("name", ["fork", "thread", "pool", "pool --parking never", "asyncio"])
def test_connections_of_one_client(start: Start, name: str) -> None:
    server = start(name, "--connections-per-client", "3", "--idle", "30s")
    socks = [server.connect() for _ in range(3)]
    for sock in socks:
        sock.sendall(GET)
        assert read_response(sock)[0] == 200
    with server.connect() as sock:
        sock.sendall(GET)
        status, fields, _ = read_response(sock)
        assert (status, fields["retry-after"]) == (503, "1")
    with socket.create_connection(("127.0.0.1", server.port), 20, ("127.0.0.2", 0)) as other:
        other.sendall(GET)
        assert read_response(other)[0] == 200
    socks.pop().close()

    def is_served() -> bool:
        with server.connect() as sock:
            sock.sendall(GET)
            return read_response(sock)[0] == 200

    wait_until(is_served, 15, server.log)
    for sock in socks:
        sock.close()
    server.wait_for_log("connections-per-client")


@pytest.mark.parametrize("name", ["fork", "thread", "pool", "pool --parking never", "asyncio"])
def test_a_connection_before_a_reload_is_not_subtracted_from_a_later_limit(
    start: Start, name: str, tmp_path: Path
) -> None:
    """Otherwise its end would make room for one connection too many."""
    settings = tmp_path / "ewe.toml"
    settings.write_text("")
    server = start(name, "--config", str(settings), "--idle", "30s")
    with server.connect() as first:
        first.sendall(GET)
        assert read_response(first)[0] == 200
        settings.write_text("connections-per-client = 2\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("configuration was read again")
        with server.connect() as second, server.connect() as third:
            for sock in (second, third):
                sock.sendall(GET)
                assert read_response(sock)[0] == 200
            first.close()
            time.sleep(0.5)  # the server notices the end
            with server.connect() as fourth:
                fourth.sendall(GET)
                assert read_response(fourth)[0] == 503
