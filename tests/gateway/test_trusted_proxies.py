"""Behind a proxy: programs, the log and limits see the client that a trusted proxy names, under every model."""

from __future__ import annotations

import re
import socket
import struct
from contextlib import closing
from pathlib import Path

import pytest
from support.server import LOST, Server, Start, wait_until, write_program
from support.wire import read_all

ENV = """#!/bin/sh
printf 'Content-Type: text/plain\\n\\n'
printf '%s %s %s %s %s\\n' "$REMOTE_ADDR" "${HTTPS:-off}" "$SERVER_NAME" "$SERVER_PORT" "$SERVER_ADDR"
"""
V2 = b"\r\n\r\n\0\r\nQUIT\n"


def said(answer: bytes) -> list[str]:
    """Return what each answer's program has printed."""
    return re.findall(r"^(\S+ (?:on|off) \S+ \d+ \S+)$", answer.decode(), re.MULTILINE)


def request(*fields: str, close: bool = False, host: str = "a.org") -> bytes:
    """Return a request for the program."""
    more = "".join(f"{field}\r\n" for field in (*fields, *(("Connection: close",) if close else ())))
    return f"GET /cgi-bin/env HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode()


def test_the_client_is_the_one_that_a_trusted_proxy_names(start: Start, model: str, tmp_path: Path) -> None:
    write_program(tmp_path / "cgi-bin" / "env", ENV)
    server = start(model, "--trusted-proxies", "127.0.0.1", "--access-log", str(tmp_path / "access.log"))
    # One connection, many clients: nothing may be left over from one request to the next.
    port = server.port
    answer = server.ask(
        request("X-Forwarded-For: 6.6.6.6, 203.0.113.9", "X-Forwarded-Proto: https", host="wp.org")
        + request("X-Forwarded-For: 6.6.6.6, 203.0.113.9", "X-Forwarded-Proto: https", host="wp.org")
        + request()
        + request("X-Forwarded-For: 2001:db8::9", "X-Forwarded-Host: b.org:8443", "X-Forwarded-Proto: https")
        + request("Forwarded: for=6.6.6.6;proto=https")
        + request("X-Forwarded-For: unknown", "X-Forwarded-Port: 81")
        + request("X-Forwarded-Host: bad/host")
        + b"GET /nothing HTTP/1.1\r\nHost: a.org\r\nX-Forwarded-For: 203.0.113.7\r\n\r\n"
        + request(close=True)
    )
    assert said(answer) == [
        "203.0.113.9 on wp.org 443 127.0.0.1",
        "203.0.113.9 on wp.org 443 127.0.0.1",
        f"127.0.0.1 off a.org {port} 127.0.0.1",
        "2001:db8::9 on b.org 8443 127.0.0.1",
        f"127.0.0.1 off a.org {port} 127.0.0.1",
        "127.0.0.1 off a.org 81 127.0.0.1",
        f"127.0.0.1 off a.org {port} 127.0.0.1",
    ]
    assert answer.count(b"HTTP/1.1 400 ") == 1
    # A request that is refused before a feature gets it, after one of another client on the same connection
    server.ask(request("X-Forwarded-For: 203.0.113.8") + b"GET / HTTP/9.9\r\n\r\n")
    expected = ["203.0.113.9"] * 2 + ["127.0.0.1", "2001:db8::9"] + ["127.0.0.1"] * 3 + ["203.0.113.7"]
    expected += ["127.0.0.1", "203.0.113.8", "127.0.0.1"]

    def logged() -> list[str]:
        return [line.split()[0] for line in (tmp_path / "access.log").read_text().splitlines()]

    wait_until(lambda: len(logged()) == len(expected), 10)
    assert logged() == expected


def test_other_peers_are_not_believed_even_with_the_same_bytes(start: Start, tmp_path: Path) -> None:
    write_program(tmp_path / "cgi-bin" / "env", ENV)
    server = start("thread", "--trusted-proxies", "127.0.0.2, 10.0.0.0/8")
    lie = request(
        "X-Forwarded-For: 203.0.113.9", "X-Forwarded-Proto: https", "X-Forwarded-Host: b.org", close=True
    )
    for _ in range(2):  # equal heads share one Request
        for source, client in (
            ("127.0.0.2", "203.0.113.9 on b.org 443"),
            ("127.0.0.1", "127.0.0.1 off a.org"),
        ):
            with closing(socket.create_connection(("127.0.0.1", server.port), 20, (source, 0))) as sock:
                sock.sendall(lie)
                assert said(read_all(sock))[0].startswith(client)


def test_forwarded_in_place_of_x_forwarded(start: Start, tmp_path: Path) -> None:
    write_program(tmp_path / "cgi-bin" / "env", ENV)
    server = start("asyncio", "--trusted-proxies", "127.0.0.0/8", "--trusted-fields", "forwarded")
    answer = server.ask(
        request("Forwarded: for=6.6.6.6, for=203.0.113.9;proto=https;host=b.org", "X-Forwarded-For: 6.6.6.6")
        + request("X-Forwarded-For: 6.6.6.6", close=True)
    )
    assert said(answer) == [
        "203.0.113.9 on b.org 443 127.0.0.1", f"127.0.0.1 off a.org {server.port} 127.0.0.1",
    ]  # fmt: skip


def test_a_client_cannot_hide_behind_its_proxy(start: Start, model: str, tmp_path: Path) -> None:
    """A page for the proxy's network stays protected, with any fields that the client sends before the proxy's."""
    (tmp_path / "htdocs").mkdir(exist_ok=True)
    (tmp_path / "htdocs" / "inside.txt").write_text("secret")
    (tmp_path / "ewe.toml").write_text(
        'trusted-fields = "forwarded"\ntrusted-proxies = "127.0.0.1"\n'
        '[[site]]\n[[site.location]]\npath = "/inside.txt"\nallow = ["127.0.0.0/8"]\n'
    )
    server = start(model, "--config", "ewe.toml")
    for lie, status in (("", 403), ('for="x, ', 400), ("for=a;for=b, ", 400), ("x y, ", 400), (", ", 403)):
        head = f"GET /inside.txt HTTP/1.1\r\nHost: a.org\r\nForwarded: {lie}for=203.0.113.9\r\n"
        answer = server.ask(f"{head}Connection: close\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 %d " % status) and b"secret" not in answer
    assert server.ask(b"GET /inside.txt HTTP/1.0\r\n\r\n").endswith(b"secret")  # the proxy itself


def test_a_proxy_over_a_unix_socket(start: Start, tmp_path: Path) -> None:
    write_program(tmp_path / "cgi-bin" / "env", ENV)
    path = tmp_path / "ewe.sock"
    start("pool", "--bind", "127.0.0.1:0", "--bind", f"unix:{path}", "--trusted-proxies", "unix")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(str(path))
        sock.sendall(
            request() + request("X-Forwarded-For: 203.0.113.9", "X-Forwarded-Proto: https", close=True)
        )
        assert said(read_all(sock)) == ["unix: off a.org 80 unix:", "203.0.113.9 on a.org 443 unix:"]


@pytest.mark.parametrize("model", ["thread", "asyncio"])
def test_connections_per_client_does_not_count_a_trusted_proxy(start: Start, model: str) -> None:
    server = start(model, "--trusted-proxies", "127.0.0.1", "--connections-per-client", "1")
    with closing(server.connect()) as first, closing(server.connect()) as second:
        for sock in (first, second):
            sock.sendall(b"GET / HTTP/1.1\r\nHost: a.org\r\nX-Forwarded-For: 203.0.113.9\r\n\r\n")
            assert sock.recv(100).startswith(b"HTTP/1.1 200 ")


# The PROXY protocol


def announced(server: Server, header: bytes, pieces: int = 1) -> list[str]:
    """Send a PROXY header and a request; return what the program has printed."""
    with closing(server.connect()) as sock:
        for piece in [header] if pieces == 1 else [header[:5], header[5:]]:
            sock.sendall(piece)
        sock.sendall(request())
        sock.sendall(request(close=True))
        return said(read_all(sock))


def second_version(client: str, server: str, command: int = 0x21, values: bytes = b"") -> bytes:
    """Return a header of version 2."""
    data = socket.inet_aton(client) + socket.inet_aton(server) + struct.pack("!HH", 5000, 443) + values
    return V2 + struct.pack("!BBH", command, 0x11, len(data)) + data


def ask_in_vain(server: Server, data: bytes) -> bytes:
    """Send bytes to a server that closes the connection, whether or not it has read them all."""
    try:
        return server.ask(data)
    except OSError as reason:
        assert reason.errno in LOST, reason
        return b""


def test_the_proxy_protocol(start: Start, model: str, tmp_path: Path) -> None:
    write_program(tmp_path / "cgi-bin" / "env", ENV)
    server = start(model, "--trusted-proxies", "127.0.0.1", "--proxy-protocol", "--head-timeout", "500ms")
    first = b"PROXY TCP4 203.0.113.9 127.0.0.7 5000 443\r\n"
    expected = ["203.0.113.9 off a.org 443 127.0.0.7"] * 2
    assert announced(server, first) == announced(server, first, pieces=2) == expected
    assert announced(server, second_version("203.0.113.9", "127.0.0.7")) == expected
    local = [f"127.0.0.1 off a.org {server.port} 127.0.0.1"] * 2
    assert announced(server, second_version("6.6.6.6", "6.6.6.6", 0x20)) == local
    assert announced(server, b"PROXY UNKNOWN\r\n") == local
    secure = second_version("203.0.113.9", "127.0.0.7", values=b"\x20\0\5\1\0\0\0\0")
    assert announced(server, secure) == ["203.0.113.9 on a.org 443 127.0.0.7"] * 2
    # The client that the header names is no trusted proxy: what it says of others is its own text.
    with closing(server.connect()) as sock:
        sock.sendall(first + request("X-Forwarded-For: 6.6.6.6", close=True))
        assert said(read_all(sock)) == expected[:1]
    for bad in (request(), b"PROXY TCP4 1.2.3.4\r\n" + request(), first[:20], b""):
        assert ask_in_vain(server, bad) == b""
    with closing(server.connect()) as sock:  # a header that does not come to its end
        sock.sendall(first[:20])
        assert read_all(sock) == b""
    log = server.wait_for_log("did not come in 0.5 s (head-timeout)")
    assert log.count("its PROXY header is malformed") == 3
    assert "Traceback" not in log


def test_a_proxy_header_of_an_untrusted_peer_closes_the_connection(start: Start) -> None:
    server = start("thread", "--trusted-proxies", "10.0.0.1", "--proxy-protocol")
    assert ask_in_vain(server, b"PROXY TCP4 203.0.113.9 127.0.0.7 5000 443\r\n" + request()) == b""
    server.wait_for_log("its PROXY header would not be believed")
