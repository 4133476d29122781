"""The reverse proxy, under every model: bytes both ways, a next server that misbehaves, tunnels, and who waits."""

from __future__ import annotations

import hashlib
import json
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from support.http_upstream import BAD_HEADS, Asked, HTTPUpstream
from support.server import Server, Start, wait_until
from support.wire import read_all, read_response, reset

HOLDING = ("pool --poolthreads 1", "asyncio", "asyncio --loop asyncio")  # waiting requests hold no thread
KEEP = HTTPUpstream.KEEP
OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def upstream() -> Iterator[HTTPUpstream]:
    """The next server."""
    server = HTTPUpstream()
    yield server
    server.close()


def request(path: str, *fields: str, method: str = "GET", body: bytes = b"") -> bytes:
    """Return a request."""
    lines = "".join(f"{field}\r\n" for field in fields)
    return f"{method} {path} HTTP/1.1\r\nHost: a.org\r\n{lines}\r\n".encode() + body


def exchange(sock: socket.socket, data: bytes, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """Send a request on a kept connection; return status, fields and body of the response."""
    sock.sendall(data)
    response = read_response(sock, method)
    return response


def about(body: bytes) -> dict[str, Any]:
    """Return what the next server says of a request."""
    found: dict[str, Any] = json.loads(body)
    return found


def test_requests_and_responses(start: Start, model: str, upstream: HTTPUpstream) -> None:
    large = os.urandom(3_000_000)
    upstream.answers = {
        "/app/204": b"HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n" + KEEP,
        "/app/304": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: x\r\n\r\n" + KEEP,
        "/app/head": OK + b"Content-Length: 5\r\n\r\n" + KEEP,
        "/app/interim": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + OK
        + b"Content-Length: 2\r\n\r\nhi" + KEEP,
        "/app/chunks": OK + b"Transfer-Encoding: chunked\r\nTrailer: T\r\n\r\n"
        b"2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nT: v\r\n\r\n"
        + KEEP,
        "/app/close": b"HTTP/1.0 200 OK\r\n\r\nuntil the end",
        "/app/large": OK + b"Content-Length: %d\r\n\r\n" % len(large) + large + KEEP,
        "/app/surplus": OK + b"Content-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil" + KEEP,
        "/app/cookie": OK + b"Set-Cookie: a=1; Path=/\r\nSet-Cookie: b=2\r\nContent-Length: 0\r\n\r\n" + KEEP,
    }  # fmt: skip
    server = start(model, "--proxy", f"/app=http://127.0.0.1:{upstream.port}")
    with closing(server.connect()) as sock:
        status, fields, body = exchange(sock, request("/app/x?y", "X-Forwarded-For: 6.6.6.6", "X-A: 1"))
        asked = about(body)
        assert (status, asked["method"], asked["target"]) == (200, "GET", "/app/x?y")
        assert asked["fields"] == [
            ["host", "a.org"], ["x-forwarded-for", "127.0.0.1"], ["x-forwarded-host", "a.org"],
            ["x-forwarded-proto", "http"], ["forwarded", 'for=127.0.0.1;proto=http;host="a.org"'], ["x-a", "1"],
            ["via", "1.1 ewe"],
        ]  # fmt: skip
        # Bodies: with a length, in chunks whose end has come, and in chunks whose end has not
        digest = hashlib.sha256(large).hexdigest()
        sock.sendall(request("/app/in", f"Content-Length: {len(large)}", method="POST") + large)
        asked = about(read_response(sock, "POST")[2])
        assert (asked["length"], asked["sha"]) == (len(large), digest)
        chunk = b"%x\r\n" % len(large) + large + b"\r\n0\r\n\r\n"
        sock.sendall(request("/app/in", "Transfer-Encoding: chunked", method="PUT") + chunk)
        asked = about(read_response(sock, "PUT")[2])
        assert (asked["length"], asked["sha"]) == (len(large), digest)
        assert ["transfer-encoding", "chunked"] in asked["fields"]
    with closing(server.connect()) as sock:
        sock.sendall(
            request("/app/in", "Transfer-Encoding: chunked", method="POST") + b"2\r\nhi\r\n0\r\n\r\n"
        )
        asked = about(read_response(sock, "POST")[2])
        assert ["content-length", "2"] in asked["fields"] and asked["length"] == 2
        sock.sendall(request("/app/in", "Expect: 100-continue", "Content-Length: 2", method="POST"))
        assert sock.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"hi")
        asked = about(read_response(sock, "POST")[2])
        assert asked["length"] == 2 and "expect" not in dict(asked["fields"])
        # Responses
        assert exchange(sock, request("/app/204"))[::2] == (204, b"")
        status, fields, body = exchange(sock, request("/app/304"))
        assert (status, fields["etag"], body) == (304, "x", b"") and "content-length" not in fields
        status, fields, _ = exchange(sock, request("/app/head", method="HEAD"), "HEAD")
        assert (status, fields["content-length"]) == (200, "5")
        assert exchange(sock, request("/app/interim"))[::2] == (200, b"hi")
        status, fields, body = exchange(sock, request("/app/chunks"))
        assert (status, body) == (200, b"hello") and "trailer" not in fields
        assert exchange(sock, request("/app/large"))[2] == large
        assert exchange(sock, request("/app/surplus"))[::2] == (200, b"hi")
        assert exchange(sock, request("/app/x"))[0] == 200  # not the surplus
        assert exchange(sock, request("/app/close"))[2] == b"until the end"
        sock.sendall(request("/app/cookie"))
        assert read_response(sock, "GET")[0] == 200
        # What ewe answers itself
        assert exchange(sock, request("/app/x", method="TRACE"))[0] == 405
        assert exchange(sock, request("/app/x", "Max-Forwards: 0", method="OPTIONS"))[0] == 204
        asked = about(exchange(sock, request("/app/x", "Max-Forwards: 3", method="OPTIONS"))[2])
        assert ["max-forwards", "2"] in asked["fields"]
        assert exchange(sock, request("/app/x", "Via: " + ", ".join(["1.1 ewe"] * 8)))[0] == 502
        assert exchange(sock, request("/application"))[0] == 404
    # HTTP/1.0 knows no chunks: the close ends the body.
    assert server.ask(b"GET /app/chunks HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\nhello")
    assert "Traceback" not in server.log()


def test_a_next_server_that_misbehaves(start: Start, model: str, upstream: HTTPUpstream) -> None:
    def unheard(sock: socket.socket, asked: Asked) -> bool:
        upstream.ended.acquire(timeout=20)
        return False

    cut = {
        "/length": OK + b"Content-Length: 100\r\n\r\nhi",
        "/chunks": OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
        "/bad-chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\nzz\r\n",
        "/bad-end": OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi0\r\n\r\n",
    }
    bad = {f"/bad{number}": head for number, head in enumerate(BAD_HEADS)} if model == "thread" else {}
    bad |= {
        "/two-lengths": BAD_HEADS[12],
        "/no-http": b"220 mail.example.org ESMTP\r\n\r\n",
        "/nothing": b"",
        "/half": b"HTTP/1.1 200 OK\r\nContent-",
        "/endless-head": OK + b"A: " + b"b" * 70_000,
        "/switch": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        "/interims": b"HTTP/1.1 100 Continue\r\n\r\n" * 101,
    }

    def dribble(sock: socket.socket, asked: Asked) -> bool:
        for byte in OK + b"A: " + b"b" * 1000:
            sock.sendall(bytes((byte,)))
            time.sleep(0.01)  # never silent, and never through
        return False

    def bare_lf(sock: socket.socket, asked: Asked) -> bool:
        sock.sendall(b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi")
        return True  # the connection stays open, so only the bytes themselves can tell

    upstream.answers = {**cut, **bad, "/silent": unheard, "/dribble": dribble, "/bare-lf": bare_lf}
    server = start(model, "--proxy", f"/=http://127.0.0.1:{upstream.port}", "--proxy-timeout", "300ms")
    for path in bad:
        answer = server.ask(request(path, "Connection: close"))
        assert answer.startswith(b"HTTP/1.1 502 "), (path, answer)
    for path in cut:
        answer = server.ask(request(path, "Connection: close"))
        assert answer.startswith(OK) and not answer.endswith(b"\r\n0\r\n\r\n"), (path, answer)
    assert server.ask(request("/silent", "Connection: close")).startswith(b"HTTP/1.1 504 ")
    assert server.ask(request("/dribble", "Connection: close")).startswith(b"HTTP/1.1 504 ")
    assert server.ask(request("/bare-lf", "Connection: close")).startswith(b"HTTP/1.1 502 ")
    log = server.wait_for_log("silent for 0.3 s (proxy-timeout)")
    assert "its response has both" in log or model != "thread"
    assert "ends with a bare LF" in log
    assert "Traceback" not in log
    upstream.close()
    wait_until(lambda: server.ask(request("/", "Connection: close")).startswith(b"HTTP/1.1 503 "), 10)


def test_kept_connections_and_what_is_sent_again(
    start: Start, way_to_wait: str, upstream: HTTPUpstream
) -> None:
    server = start(way_to_wait, "--proxy", f"/=http://127.0.0.1:{upstream.port}")
    hang_up = threading.Event()

    def once(sock: socket.socket, asked: Asked) -> bool:
        if hang_up.is_set():
            sock.sendall(OK + b"Content-Length: 0\r\n\r\n")
            return True
        hang_up.set()
        return False  # on a kept connection, without a byte

    upstream.answers = {"/once": once}
    with closing(server.connect()) as sock:
        for _ in range(3):
            assert exchange(sock, request("/"))[0] == 200
        assert upstream.connections == 1
        assert exchange(sock, request("/once"))[0] == 200
        assert [asked.target for asked in upstream.asked][-2:] == ["/once", "/once"]
        hang_up.clear()
        before = len(upstream.asked)
        assert (
            exchange(sock, request("/once", "Content-Length: 2", method="POST", body=b"hi"), "POST")[0] == 502
        )
        assert len(upstream.asked) == before + 1
        hang_up.set()
        # An idle connection that was closed is noticed before anything is sent on it.
        assert exchange(sock, request("/"))[0] == 200
        upstream.close_idle()
        wait_until(lambda: not upstream.open, 10)
        assert exchange(sock, request("/", "Content-Length: 2", method="POST", body=b"hi"), "POST")[0] == 200


def test_smuggling(start: Start, upstream: HTTPUpstream) -> None:
    """The next server sees one request for each that ewe has understood, and none of a refused one."""
    server = start("thread", "--proxy", f"/=http://127.0.0.1:{upstream.port}")
    hidden = b"GET /hidden HTTP/1.1\r\nHost: a.org\r\n\r\n"
    refused = [
        request(
            "/", "Content-Length: 5", "Transfer-Encoding: chunked", method="POST", body=b"0\r\n\r\n" + hidden
        ),
        request("/", "Content-Length: 0", f"Content-Length: {len(hidden)}", method="POST", body=hidden),
        request("/", "Transfer-Encoding: xchunked", method="POST", body=hidden),
        request("/", "Transfer-Encoding : chunked", method="POST", body=b"0\r\n\r\n" + hidden),
        request("/", "X: y\n\nGET /hidden HTTP/1.1", method="POST", body=hidden),
        b"GET / HTTP/1.1\r\nHost: a.org\r\nHost: b.org\r\n\r\n" + hidden,
        b"GET /\r\nHost: a.org\r\n\r\n" + hidden,
        b"GET / HTTP/1.1\r\nHost: a.org\r\n X: folded\r\n\r\n" + hidden,
    ]
    for each in refused:
        assert b"HTTP/1.1 200 " not in server.ask(each), each
    assert upstream.asked == []
    # Understood: what looks like a request is a body, and stays one.
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(hidden), hidden)
    with closing(server.connect()) as sock:
        for data in (
            request("/", f"Content-Length: {len(hidden)}", method="GET", body=hidden),
            request("/", "Transfer-Encoding: chunked", method="POST", body=body),
            request("/?a=%0d%0aX:y", "X: a%0d%0ab", method="GET"),
            request(
                "/", "Connection: content-length, host, x-forwarded-for", "Content-Length: 2", body=b"hi"
            ),
        ):
            assert exchange(sock, data)[0] == 200
    assert [asked.target for asked in upstream.asked] == ["/", "/", "/?a=%0d%0aX:y", "/"]
    last = upstream.asked[-1]
    assert (last.all("content-length"), last.all("host"), last.body) == (["2"], ["a.org"], b"hi")
    assert last.all("x-forwarded-for") == ["127.0.0.1"]


def websocket(sock: socket.socket, asked: Asked) -> bool:
    """Switch to a protocol that returns all bytes in capitals, until the client ends its side."""
    assert asked.all("connection") == ["Upgrade"] and asked.all("upgrade") == ["websocket"]
    sock.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x"
        b"\r\n\r\nearly "
    )
    while data := sock.recv(65536):
        sock.sendall(data.upper())
    sock.sendall(b" late")
    return False


UPGRADE = request(
    "/chat", "Connection: keep-alive, Upgrade", "Upgrade: foo, WebSocket", "Sec-WebSocket-Key: y"
)


def test_tunnels(start: Start, model: str, upstream: HTTPUpstream) -> None:
    upstream.answers = {
        "/chat": websocket,
        "/no": b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n" + KEEP,
    }
    server = start(model, "--proxy", f"/=http://127.0.0.1:{upstream.port}", "--proxy-idle", "500ms")
    with closing(server.connect()) as sock:
        sock.sendall(UPGRADE)
        said = b""
        while b"early " not in said:
            said += sock.recv(1000)
        assert (
            said.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
            and b"Sec-WebSocket-Accept: x\r\n" in said
        )
        assert b"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nearly " in said
        for word in (b"abc", b"d" * 200_000):
            sock.sendall(word)
            said = b""
            while len(said) < len(word):
                said += sock.recv(65536)
            assert said == word.upper()
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b" late"
    with closing(server.connect()) as sock:  # both sides are silent
        sock.sendall(UPGRADE)
        assert read_all(sock).endswith(b"early ")
    # Not switched: by the server, since the client does not ask properly, or since no setting names the protocol
    assert server.ask(UPGRADE.replace(b"/chat", b"/no")).startswith(b"HTTP/1.1 426 ")
    for data in (
        UPGRADE.replace(b"keep-alive, Upgrade", b"close"),
        UPGRADE.replace(b"foo, WebSocket", b"h2c"),
        UPGRADE.replace(b"GET", b"POST"),
    ):
        server.ask(data.replace(b"/chat", b"/x"))
        assert upstream.asked[-1].all("upgrade") == []
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("model", HOLDING)
def test_who_waits_holds_no_thread(start: Start, model: str, upstream: HTTPUpstream) -> None:
    """A pool of one thread holds twenty requests that wait and twenty tunnels, and still answers."""
    go = threading.Event()

    def slow(sock: socket.socket, asked: Asked) -> bool:
        while not go.is_set():
            if select.select([sock], [], [], 0.05)[0] and not sock.recv(1, socket.MSG_PEEK):
                upstream.ended.release()
                return False
        sock.sendall(OK + b"Content-Length: 4\r\n\r\nslow")
        return True

    upstream.answers = {"/slow": slow, "/chat": websocket}
    server = start(model, "--proxy", f"/=http://127.0.0.1:{upstream.port}")
    with ExitStack() as stack:
        waiting = [stack.enter_context(closing(server.connect())) for _ in range(20)]
        tunnels = [stack.enter_context(closing(server.connect())) for _ in range(20)]
        for sock in waiting:
            sock.sendall(request("/slow"))
        for sock in tunnels:
            sock.sendall(UPGRADE)
        wait_until(lambda: len(upstream.asked) == 40, 20)
        assert server.ask(request("/quick", "Connection: close")).startswith(OK)
        for sock in tunnels:
            sock.sendall(b"abc")
        for sock in tunnels:
            said = b""
            while not said.endswith(b"ABC"):
                said += sock.recv(1000)
        # A client that leaves ends its request at the next server, too.
        reset(waiting.pop())
        assert upstream.ended.acquire(timeout=20)
        go.set()
        for sock in waiting:
            assert read_response(sock, "GET")[2] == b"slow"
    assert "Traceback" not in server.log()


def test_both_ways_at_once(start: Start, way_to_wait: str, upstream: HTTPUpstream) -> None:
    """A server may answer while it reads, or before it has read anything."""

    def echo(sock: socket.socket, asked: Asked) -> bool:
        sock.sendall(OK + b"Transfer-Encoding: chunked\r\n\r\n")
        left = int(asked.all("content-length")[0])
        while left and (data := asked.file.read1(65536)):
            left -= len(data)
            sock.sendall(b"%x\r\n%b\r\n" % (len(data), data))
        sock.sendall(b"0\r\n\r\n")
        return True

    def refuse(sock: socket.socket, asked: Asked) -> bool:
        sock.sendall(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno!")
        return False

    upstream.answers = {"/echo/unread": echo, "/refuse/unread": refuse}
    server = start(way_to_wait, "--proxy", f"/=http://127.0.0.1:{upstream.port}")
    with closing(server.connect()) as sock:
        sock.sendall(request("/echo/unread", "Content-Length: 9", method="POST"))
        said = b""
        for word in (b"one", b"two", b"six"):  # each comes back before the next one is sent
            sock.sendall(word)
            while word not in said:
                said += sock.recv(1000)
    with closing(server.connect()) as sock:
        sock.sendall(request("/refuse/unread", "Content-Length: 100000", method="POST"))
        assert read_response(sock, "POST")[0] == 413


def test_several_addresses(start: Start, upstream: HTTPUpstream) -> None:
    other = HTTPUpstream()
    dead = socket.create_server(("127.0.0.1", 0))
    dead_port = dead.getsockname()[1]
    dead.close()
    try:
        ports = (upstream.port, dead_port, other.port)
        server = start(
            "pool", *(part for port in ports for part in ("--proxy", f"/a=http://127.0.0.1:{port}"))
        )
        for _ in range(6):
            assert server.ask(request("/a/x", "Connection: close")).startswith(OK)
        assert len(upstream.asked) >= 2 and len(other.asked) >= 2
        server.wait_for_log("left out for 10 s (fastcgi-retry)")
    finally:
        other.close()


def test_paths_hosts_and_locations(start: Start, tmp_path: Path) -> None:
    upstream = HTTPUpstream(str(tmp_path / "up.sock"))
    try:
        upstream.answers = {
            "/moved": b"HTTP/1.1 302 Found\r\nLocation: /login\r\n"
            b"Set-Cookie: a=b; Path=/\r\nContent-Length: 0\r\n\r\n"
        }
        unix = f"unix:{tmp_path}/up.sock"
        settings = tmp_path / "sites.toml"
        settings.write_text(
            f'[[site]]\n[[site.location]]\nprefix = "/gate/"\ngateway = "http://{unix}:/in"\n'
            f'[[site.location]]\npath = "/exact"\ngateway = "http://{unix}"\n'
        )
        server = start(
            "asyncio", "--config", str(settings), "--proxy", f"/app=http://{unix}:/", "--proxy-host", "server"
        )
        answer = server.ask(request("/app/moved", "Connection: close"))
        assert b"\r\nLocation: /app/login\r\n" in answer and b"\r\nSet-Cookie: a=b; Path=/app/\r\n" in answer
        assert upstream.asked[-1].all("host") == ["localhost"]
        assert upstream.asked[-1].all("x-forwarded-host") == ["a.org"]
        server.ask(request("/gate/x?y", "Connection: close") + request("/x"))
        assert upstream.asked[-1].target == "/in/x?y"
        server.ask(request("/exact", "Connection: close"))
        assert upstream.asked[-1].target == "/exact"
        assert server.ask(request("/exact/x", "Connection: close")).startswith(b"HTTP/1.1 404 ")
        assert len(upstream.asked) == 3
    finally:
        upstream.close()


def test_over_tls_and_behind_a_proxy(start: Start, way_to_wait: str, upstream: HTTPUpstream) -> None:
    """The header of the PROXY protocol comes before the handshake, and names the client to the next server."""
    upstream.answers = {"/chat": websocket}
    server: Server = start(
        way_to_wait,
        "--proxy",
        f"/=http://127.0.0.1:{upstream.port}",
        "--tls",
        "self",
        "--proxy-protocol",
        "--trusted-proxies",
        "127.0.0.1",
    )
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    plain = server.connect()
    for piece in (b"PROXY TCP", b"4 203.0.113.9 192.0.2.1 5000 443\r\n"):
        plain.sendall(piece)
    with context.wrap_socket(plain) as sock:
        large = os.urandom(1_000_000)
        sock.sendall(request("/", f"Content-Length: {len(large)}", method="POST") + large)
        asked = about(read_response(sock, "POST")[2])
        assert asked["sha"] == hashlib.sha256(large).hexdigest()
        assert ["x-forwarded-proto", "https"] in asked["fields"]
        assert ["x-forwarded-for", "203.0.113.9"] in asked["fields"]
        sock.sendall(UPGRADE)
        said = b""
        while b"early " not in said:
            said += sock.recv(1000)
        sock.sendall(b"abc")
        while not said.endswith(b"ABC"):
            said += sock.recv(1000)


ENCODED = """
[[site]]
[[site.location]]
prefix = "/app/private"
gateway = "http://127.0.0.1:PORT"
deny = ["127.0.0.1"]
[[site.location]]
pattern = "^/app/[^/]*$"
gateway = "http://127.0.0.1:PORT/short"
[[site.location]]
prefix = "/app"
gateway = "http://127.0.0.1:PORT"
[[site.location]]
prefix = "/moved"
try = ["/app/x"]
[[site.location]]
prefix = "/"
"""


def test_encoded_slashes_reach_a_proxy(
    start: Start, tmp_path: Path, model: str, upstream: HTTPUpstream
) -> None:
    """Only if no reading of the path leads to another answer, or past a rule (ewe.features.encoded_slashes)."""
    address = f"http://127.0.0.1:{upstream.port}"
    (tmp_path / "htdocs" / "app").mkdir()
    (tmp_path / "htdocs" / "app" / "x").write_text("a file")
    settings = tmp_path / "sites.toml"
    settings.write_text(ENCODED.replace("PORT", str(upstream.port)))
    plain = ("--proxy", f"/app={address}", "--proxy", f"/short={address}/", "--wsgi", "/app/w=no_such:app")
    (tmp_path / "no_such.py").write_text("def app(environ, start_response): raise RuntimeError\n")
    answers_of_plain: dict[str, str | int] = {
        "/app/@scope%2Fname": "/app/@scope%2Fname", "/app/a%2fb%20c/d?e=%2F": "/app/a%2fb%20c/d?e=%2F",
        "/short/a%2Fb": "/a%2Fb", "/app/x?of=%2F": "/app/x?of=%2F", "http://a.org/app/a%2Fb": "/app/a%2Fb",
        "/app%2Fx": 404, "/ap%2Fx": 404, "/app/w%2Fx": 404, "/app/a%2F..%2Fb": 404, "/app/%2F": 404,
        "/app/..%2Fapp/x": 404, "/app/a%2F%2e%2e/b": 404, "/app/a%252Fb": "/app/a%252Fb", "/app/a%2F%00": 400,
        "/index.html%2F": 404,
    }  # fmt: skip
    for options, answers in (
        (plain, answers_of_plain),
        ((*plain, "--content-cache", "1m"), answers_of_plain),  # the cache stands around each of them
        (("--config", str(settings)), {
            "/app/a/b%2Fc": "/app/a/b%2Fc", "/app/a%2Fb": 404, "/app/private/a%2Fb": 403, "/app/private%2Fa": 404,
            "/moved%2Fx": 404, "/moved/a%2Fb": 404, "/app/x%2F/private": 404, "/app%2Fa/b": 404,
        }),
    ):  # fmt: skip
        server = start(model, *options)
        for target, expected in answers.items():
            with closing(server.connect()) as sock:
                status, _, body = exchange(sock, request(target))
                found = about(body)["target"] if status == 200 and body.startswith(b"{") else status
                assert found == expected, (target, body, options, server.log())
        assert "Traceback" not in server.log()
        assert server.stop() == 0
