"""The reverse proxy, under every model: bytes both ways, a faulty upstream, tunnels, and waiting requests."""

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
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from support.http_upstream import BAD_HEADS, Asked, HTTPUpstream
from support.memory import MemoryStream
from support.server import MODELS, Server, Start, wait_until
from support.wire import read_all, read_response, reset

from ewe.config.settings import Config
from ewe.features.proxy import Proxy, forwards_left
from ewe.gateway.connections import Connections
from ewe.gateway.tunnel import Tunnel
from ewe.gateway.upstream import Upstream, UpstreamAddress
from ewe.http.messages import Request
from ewe.streams.blocking import run
from ewe.streams.poller import BlockingPoller

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


LARGE = os.urandom(3_000_000)
RESPONSES = [
    # What the next server sends, the method, and the status, some fields and the body that the client gets
    pytest.param(
        b"HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n" + KEEP, "GET", 204, {"x-a": "b"}, b"", id="204"
    ),
    pytest.param(
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: x\r\n\r\n" + KEEP,
        "GET", 304, {"etag": "x", "content-length": None}, b"", id="304",
    ),
    pytest.param(OK + b"Content-Length: 5\r\n\r\n" + KEEP, "HEAD", 200, {"content-length": "5"}, b"", id="HEAD"),
    pytest.param(
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
        + OK + b"Content-Length: 2\r\n\r\nhi" + KEEP, "GET", 200, {}, b"hi", id="interim",
    ),
    pytest.param(
        OK + b"Transfer-Encoding: chunked\r\nTrailer: T\r\n\r\n"
        b"2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nT: v\r\n\r\n" + KEEP,
        "GET", 200, {"trailer": None}, b"hello", id="chunks",
    ),
    pytest.param(b"HTTP/1.0 200 OK\r\n\r\nuntil the end", "GET", 200, {}, b"until the end", id="close"),
    pytest.param(
        OK + b"Content-Length: %d\r\n\r\n" % len(LARGE) + LARGE + KEEP, "GET", 200, {}, LARGE, id="large"
    ),
    pytest.param(
        OK + b"Content-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil" + KEEP,
        "GET", 200, {}, b"hi", id="surplus",
    ),
    pytest.param(
        OK + b"Set-Cookie: a=1; Path=/\r\nSet-Cookie: b=2\r\nContent-Length: 0\r\n\r\n" + KEEP,
        "GET", 200, {}, b"", id="cookies",
    ),
]  # fmt: skip


@pytest.fixture(scope="module", params=MODELS)
def proxied(request: pytest.FixtureRequest, start_shared: Start) -> Iterator[tuple[Server, HTTPUpstream]]:
    """A server of each model, and the next server behind its path /app. The tests of this file share both."""
    upstream = HTTPUpstream()
    yield start_shared(request.param, "--proxy", f"/app=http://127.0.0.1:{upstream.port}"), upstream
    upstream.close()


@pytest.fixture
def client(proxied: tuple[Server, HTTPUpstream]) -> Iterator[socket.socket]:
    """A connection to the shared server. After a test, its next response must be that of the next request."""
    with closing(proxied[0].connect()) as sock:
        yield sock
        status, _, body = exchange(sock, request("/app/last"))
        assert (status, about(body)["target"]) == (200, "/app/last"), "the connection is out of step"


def test_a_request_and_its_fields(client: socket.socket) -> None:
    status, _, body = exchange(client, request("/app/x?y", "X-Forwarded-For: 6.6.6.6", "X-A: 1"))
    asked = about(body)
    assert (status, asked["method"], asked["target"]) == (200, "GET", "/app/x?y")
    assert asked["fields"] == [
        ["host", "a.org"], ["x-forwarded-for", "127.0.0.1"], ["x-forwarded-host", "a.org"],
        ["x-forwarded-proto", "http"], ["forwarded", 'for=127.0.0.1;proto=http;host="a.org"'], ["x-a", "1"],
        ["via", "1.1 ewe"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("framing", "body", "data", "field"),
    [
        (f"Content-Length: {len(LARGE)}", LARGE, LARGE, ["content-length", str(len(LARGE))]),
        (
            "Transfer-Encoding: chunked",
            b"%x\r\n" % len(LARGE) + LARGE + b"\r\n0\r\n\r\n",
            LARGE,
            ["transfer-encoding", "chunked"],
        ),
        # Chunks whose end has come with the head: the next server is told the length
        ("Transfer-Encoding: chunked", b"2\r\nhi\r\n0\r\n\r\n", b"hi", ["content-length", "2"]),
    ],
    ids=["length", "large-chunks", "whole-chunks"],
)
def test_the_body_of_a_request(
    client: socket.socket, framing: str, body: bytes, data: bytes, field: list[str]
) -> None:
    client.sendall(request("/app/in", framing, method="POST") + body)
    asked = about(read_response(client, "POST")[2])
    assert (asked["length"], asked["sha"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert field in asked["fields"]


def test_a_client_that_expects_100_continue(client: socket.socket) -> None:
    client.sendall(request("/app/in", "Expect: 100-continue", "Content-Length: 2", method="POST"))
    assert client.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.sendall(b"hi")
    asked = about(read_response(client, "POST")[2])
    assert asked["length"] == 2 and "expect" not in dict(asked["fields"])


@pytest.mark.parametrize(("sent", "method", "status", "fields", "body"), RESPONSES)
def test_responses(
    proxied: tuple[Server, HTTPUpstream],
    client: socket.socket,
    sent: bytes,
    method: str,
    status: int,
    fields: dict[str, str | None],
    body: bytes,
) -> None:
    proxied[1].answers = {"/app/answer": sent}
    found = exchange(client, request("/app/answer", method=method), method)
    assert (found[0], {name: found[1].get(name) for name in fields}, found[2]) == (status, fields, body)


@pytest.mark.parametrize(
    ("path", "field", "method", "status"),
    [
        ("/app/x", "X-A: 1", "TRACE", 405),
        ("/app/x", "Max-Forwards: 0", "OPTIONS", 204),
        ("/app/x", "Max-Forwards: 00", "OPTIONS", 204),
        ("/app/x", "Via: " + ", ".join(["1.1 ewe"] * 8), "GET", 502),
        ("/application", "X-A: 1", "GET", 404),
    ],
    ids=["TRACE", "OPTIONS", "zeros", "loop", "another-path"],
)
def test_a_request_that_ewe_answers_itself(
    client: socket.socket, path: str, field: str, method: str, status: int
) -> None:
    assert exchange(client, request(path, field, method=method))[0] == status


@pytest.mark.parametrize(
    ("value", "left"),
    [("12", 12), ("0", 0), ("00", 0), ("0" * 9 + "12", 12), ("\xb2", None), ("-1", None), ("1, 1", None)],
)
def test_max_forwards_is_a_number(value: str, left: int | None) -> None:
    assert forwards_left(Request("OPTIONS", "/", (1, 1), (("max-forwards", value),))) == left


def test_max_forwards_counts_down(client: socket.socket) -> None:
    asked = about(exchange(client, request("/app/x", "Max-Forwards: 3", method="OPTIONS"))[2])
    assert ["max-forwards", "2"] in asked["fields"]


def test_an_old_client_gets_no_chunks(proxied: tuple[Server, HTTPUpstream]) -> None:
    """HTTP/1.0 knows no chunks: the close ends the body."""
    server, upstream = proxied
    chunks = b"Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nT: v\r\n\r\n"
    upstream.answers = {"/app/chunks": OK + chunks + KEEP}
    assert server.ask(b"GET /app/chunks HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\nhello")


CUT = {
    "/length": OK + b"Content-Length: 100\r\n\r\nhi",
    "/chunks": OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
    "/bad-chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\nzz\r\n",
    "/bad-end": OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi0\r\n\r\n",
}
BAD = {
    "/two-lengths": BAD_HEADS[12],
    "/no-http": b"220 mail.example.org ESMTP\r\n\r\n",
    "/nothing": b"",
    "/half": b"HTTP/1.1 200 OK\r\nContent-",
    "/endless-head": OK + b"A: " + b"b" * 70_000,
    "/switch": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    "/interims": b"HTTP/1.1 100 Continue\r\n\r\n" * 101,
}


def dribble(sock: socket.socket, asked: Asked) -> bool:
    """Send a head so slowly that it is never silent, and never through."""
    for byte in OK + b"A: " + b"b" * 1000:
        sock.sendall(bytes((byte,)))
        time.sleep(0.01)
    return False


def bare_lf(sock: socket.socket, asked: Asked) -> bool:
    """Send a head with bad line ends. The connection stays open, so only the bytes themselves can tell."""
    sock.sendall(b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi")
    return True


def test_a_next_server_that_misbehaves(start: Start, model: str, upstream: HTTPUpstream) -> None:
    def unheard(sock: socket.socket, asked: Asked) -> bool:
        upstream.ended.acquire(timeout=20)
        return False

    bad = {f"/bad{number}": head for number, head in enumerate(BAD_HEADS)} if model == "thread" else {}
    bad |= BAD
    upstream.answers = {**CUT, **bad, "/silent": unheard, "/dribble": dribble, "/bare-lf": bare_lf}
    server = start(model, "--proxy", f"/=http://127.0.0.1:{upstream.port}", "--proxy-timeout", "300ms")

    def ask(path: str) -> bytes:
        return server.ask(request(path, "Connection: close"))

    statuses = dict.fromkeys(bad, 502) | {"/silent": 504, "/dribble": 504, "/bare-lf": 502}
    expected = {path: b"HTTP/1.1 %d " % status for path, status in statuses.items()}
    assert {path: ask(path)[:13] for path in expected} == expected
    for path in CUT:
        answer = ask(path)
        assert answer.startswith(OK) and not answer.endswith(b"\r\n0\r\n\r\n"), (path, answer)
    log = server.wait_for_log("silent for 0.3 s (proxy-timeout)")
    assert "its response has both" in log or model != "thread"
    assert "ends with a bare LF" in log
    assert "Traceback" not in log
    upstream.close()
    wait_until(lambda: ask("/").startswith(b"HTTP/1.1 503 "), 10)


@pytest.mark.parametrize("status", [204, 304])
def test_a_body_that_no_response_has_is_not_the_answer_to_another_client(
    start: Start, way_to_wait: str, upstream: HTTPUpstream, status: int
) -> None:
    """These responses have no body, but this server sends one, once the next client has asked."""
    other_has_asked = threading.Event()

    def framed(sock: socket.socket, asked: Asked) -> bool:
        sock.sendall(b"HTTP/1.1 %d \r\nTransfer-Encoding: chunked\r\n\r\n" % status)
        other_has_asked.wait(20)
        with suppress(OSError):
            sock.sendall(OK + b"Content-Length: 6\r\n\r\nforged")
        return True

    def other(sock: socket.socket, asked: Asked) -> bool:
        other_has_asked.set()
        sock.sendall(OK + b"Content-Length: 3\r\n\r\nown")
        return True

    upstream.answers = {"/framed": framed, "/other": other}
    server = start(way_to_wait, "--proxy", f"/=http://127.0.0.1:{upstream.port}")
    try:
        assert server.ask(request("/framed", "Connection: close")).startswith(b"HTTP/1.1 %d " % status)
        assert server.ask(request("/other", "Connection: close")).endswith(b"\r\n\r\nown")
    finally:
        other_has_asked.set()


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
    # Understood: a body that looks like a request stays a body.
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


def test_the_last_bytes_of_an_upstream_that_has_ended_reach_the_client() -> None:
    """The client has sent bytes, too, and ewe meets them first: they cannot be sent any more."""

    class Ready(MemoryStream):
        async def either(self, descriptor: int, seconds: float) -> bool:
            return True

    connections = Connections(["unix:/not-used"], keeps=False)
    own_end, upstream_end = socket.socketpair()
    own_end.setblocking(False)
    io = Ready([b"ping"])
    with closing(own_end):
        upstream = Upstream(own_end, BlockingPoller(own_end), connections.addresses[0])
        upstream_end.sendall(b"bye")
        upstream_end.close()
        tunnel = Tunnel(connections, upstream, io, b"", "name", 1.0)
        assert [run(tunnel.receive()) for _ in range(2)] == [b"bye", b""]
        run(tunnel.close())


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


def test_a_server_that_closes_before_it_has_read_the_body(
    start: Start, way_to_wait: str, upstream: HTTPUpstream
) -> None:
    """Its kernel resets the connection then. The client gets the response that came before the reset."""

    def refuse(sock: socket.socket, asked: Asked) -> bool:
        time.sleep(0.3)  # ewe fills the buffers meanwhile, and waits for room
        sock.sendall(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno!")
        asked.file.close()
        sock.close()
        return False

    def send(sock: socket.socket) -> None:
        with suppress(OSError):  # ewe closes the connection after the response
            sock.sendall(bytes(30 << 20))

    upstream.answers = {"/refuse/unread": refuse}
    server = start(way_to_wait, "--proxy", f"/=http://127.0.0.1:{upstream.port}", "--max-body", "100m")
    with closing(server.connect()) as sock:
        sock.sendall(request("/refuse/unread", f"Content-Length: {30 << 20}", method="POST"))
        sending = threading.Thread(target=send, args=(sock,))
        sending.start()
        status, _, body = read_response(sock, "POST")
        assert (status, body) == (413, b"no!")
        sending.join()


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


def test_a_link_local_address_keeps_its_interface() -> None:
    """connect(2) refuses a link-local IPv6 address without the number of the interface (a zone, RFC 4007)."""
    number, name = socket.if_nameindex()[0]
    target = UpstreamAddress(f"[fe80::1%{name}]:9000").targets[0][1]
    assert target[1:] == (9000, 0, number)


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


def test_a_host_beyond_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    """The field Host has the name that the DNS was asked for."""
    found = socket.getaddrinfo("127.0.0.1", 81, type=socket.SOCK_STREAM)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    proxy = Proxy("/", ["http://日本.example:81"], Config(proxy_host="server"), "proxy")
    head = proxy.head(Request("GET", "/", (1, 1)), MemoryStream([]), frozenset())
    assert b"\r\nHost: xn--wgv71a.example:81\r\n" in head
    assert proxy.mapping.map_field("location", "http://xn--wgv71a.example:81/x", "a.org") == "/x"


def test_paths_beyond_ascii(start: Start, upstream: HTTPUpstream) -> None:
    """The next server and the client get them in the form of a URL."""
    upstream.answers = {
        "/%C3%BC/moved": b"HTTP/1.1 302 Found\r\nLocation: /%C3%BC/x\r\nContent-Length: 0\r\n\r\n"
    }
    server = start("asyncio", "--proxy", f"/日本=http://127.0.0.1:{upstream.port}/ü")
    answer = server.ask(request("/%E6%97%A5%E6%9C%AC/moved", "Connection: close"))
    assert b"\r\nLocation: /%E6%97%A5%E6%9C%AC/x\r\n" in answer


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
