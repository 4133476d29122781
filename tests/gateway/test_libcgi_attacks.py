"""LibCGI in place under attack by clients, and by the author of a library (support/libcgi.py says what it does)."""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import needs, web
from support.libcgi import DOES, SAYS, compiled, install
from support.proc import open_files
from support.server import MODELS, WAYS_TO_WAIT, Server, Start, wait_until

from ewe.config.setting_types import is_local
from ewe.libcgi import build

pytestmark = pytest.mark.starts_processes
BODY = os.urandom(1_000_000)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs.require("gcc")
    build.build()
    directory = tmp_path_factory.mktemp("libraries")
    compiled(directory, "says", SAYS)
    return compiled(directory, "does", DOES)


@pytest.fixture
def started(start: Start, site: Path, library: Path) -> Callable[..., Server]:
    """Return a function that starts a model with the library."""

    def started(model: str, *options: str) -> Server:
        for name in ("does", "other"):
            install(library, site / "libcgi-bin" / f"{name}.so")
        install(library.parent / "says.so", site / "libcgi-bin" / "says.so")
        user = ("--user", "nobody") if os.geteuid() == 0 else ()
        return start(model, "--libcgi-path", str(site / "libcgi-bin"), *user, *options)

    return started


def leave(server: Server, request: bytes, take: int = 0, after_s: float = 0) -> None:
    """Send a request, take some bytes of the answer, and reset the connection."""
    with server.connect() as sock:
        sock.sendall(request)
        if take:
            sock.recv(take)
        time.sleep(after_s)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def files_of(server: Server) -> int:
    """Return how many descriptors all processes of the server have."""
    return sum(len(open_files(pid)) for pid in server.processes())


def post(query: str, length: int, body: bytes) -> bytes:
    return b"POST /libcgi-bin/does.so?%b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (
        query.encode(), length,
    ) + body  # fmt: skip


@pytest.mark.parametrize("model", [*MODELS, "asyncio --loop asyncio"])
def test_clients_that_leave(started: Callable[..., Server], model: str) -> None:
    """Within their body, during the call, within the answer. Nothing stays open, and others are answered."""
    server = started(model)
    with web.Client(base_url=f"{server.url}libcgi-bin/", timeout=30) as client:
        assert client.post("does.so?echo", content=BODY).content == BODY

    def round_of_them() -> None:
        for _ in range(3):
            leave(server, post("echo", 2_000_000, BODY))
            leave(server, post("nap", 10, b"0123456789"))
            leave(server, b"GET /libcgi-bin/does.so?nap-much HTTP/1.1\r\nHost: a\r\n\r\n", after_s=0.1)
            leave(server, post("echo", len(BODY), BODY), take=1000)

    round_of_them()
    wait_until(lambda: web.get(f"{server.url}libcgi-bin/does.so?-", timeout=30).status_code == 200, 30)
    before = files_of(server)
    for _ in range(2):
        round_of_them()
    with web.Client(base_url=f"{server.url}libcgi-bin/", timeout=30) as client:
        assert client.post("does.so?echo", content=BODY).content == BODY
    wait_until(
        lambda: files_of(server) <= before + 2, 30, lambda: f"{before} descriptors, now {files_of(server)}"
    )
    assert "Traceback" not in server.log(), server.log()


# Authors whose answers lie. A client must find the end of each answer, and the next answer behind it.
LIES = {
    "not modified, with a document": (b"Status: 304 Not Modified\n\nsurplus", 304),
    "no content, with a document": (b"Status: 204\nContent-Type: a/b\n\nsurplus", 204),
    "an interim status": (b"Status: 101 Switching\nContent-Type: a/b\n\nsurplus", 500),
    "no status": (b"Status: 99\nContent-Type: a/b\n\n", 500),
    "a length too small": (b"Content-Type: a/b\nContent-Length: 3\n\nsurplus", None),
    "a length too large": (b"Content-Type: a/b\nContent-Length: 300\n\nshort", None),
    "a length that is none": (b"Content-Type: a/b\nContent-Length: -1\n\nsurplus", 500),
    "two lengths": (b"Content-Type: a/b\nContent-Length: 1\nContent-Length: 2\n\nxx", 500),
    "a coding": (b"Content-Type: a/b\nTransfer-Encoding: chunked\n\n0\r\n\r\n", None),
    "a field in a field": (b"Content-Type: a/b\rX-Injected: 1\n\nx", 500),
    "a NUL in a field": (b"Content-Type: a/b\nX: \0\n\nx", 500),
    "a redirect to itself": (b"Location: /libcgi-bin/says.so\n\n", 500),
    "a redirect to nowhere": (b"Location: \n\n", None),
    "an HTTP status line": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", None),
    "an endless head": (b"X: " + b"y" * 300_000 + b"\n\n", 500),
}


@pytest.mark.parametrize("model", WAYS_TO_WAIT)
def test_answers_that_lie(started: Callable[..., Server], model: str) -> None:
    """The request behind each, sent with it, gets its own answer, or the connection ends before."""
    server = started(model)
    behind = b"GET /libcgi-bin/does.so?- HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    libraries = server.root.parent / "libcgi-bin"
    for number, (name, (output, status)) in enumerate(LIES.items()):
        install(libraries / "says.so", libraries / f"{number}.so")  # one that has lied too often is kept out
        target = b"POST /libcgi-bin/%d.so HTTP/1.1\r\nHost: a\r\n" % number
        head = target + b"Content-Length: %d\r\n\r\n" % len(output)
        received = server.ask(head + output + behind)
        first = received.partition(b"\r\n\r\n")[0]
        found = int(first.split()[1])
        assert status is None or found == status, (name, received[:300], server.log())
        assert b"X-Injected" not in first and first.count(b"Transfer-Encoding") <= 1, (name, first)
        count = received.count(b"HTTP/1.1 200 OK\r\n")
        last = re.search(rb"\r\n\r\n\d+ \d+ \d+ -\Z", received)
        assert last or count <= 1, (name, received)
        if found in (204, 304):
            assert last and b"surplus" not in received, (name, received)
    assert "Traceback" not in server.log(), server.log()


@pytest.mark.parametrize("model", WAYS_TO_WAIT)
def test_a_head_request_and_a_slow_reader(started: Callable[..., Server], model: str) -> None:
    """A client that does not read holds no call: others get theirs from the same library."""
    server = started(model)
    assert server.ask(b"HEAD /libcgi-bin/does.so?- HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\n")
    with server.connect() as slow:
        slow.sendall(b"GET /libcgi-bin/does.so?late- HTTP/1.1\r\nHost: a\r\n\r\n" * 20)
        for _ in range(5):
            assert web.get(f"{server.url}libcgi-bin/does.so?-", timeout=30).status_code == 200


# The status page


@pytest.mark.parametrize("model", MODELS)
def test_the_status_page(started: Callable[..., Server], model: str) -> None:
    """Each process shows its own state. A child of fork ends with its connection, so the test uses only one."""
    server = started(model, "--libcgi-status")
    with web.Client(base_url=server.url, timeout=30) as client:
        for _ in range(3):
            assert client.get("libcgi-bin/does.so?-").status_code == 200
        assert client.get("libcgi-bin/does.so?nap").status_code == 200
        assert client.get("libcgi-bin/other.so?segv").status_code == 500
        status = client.get("libcgi-status?json").json()
        does, other = status["libraries"]
        assert status["pid"] in server.processes()
        assert (does["calls"], does["inside"], does["threads"]) == (4, 0, "many")
        assert does["longest_us"] > 200_000
        assert does["longest_us"] / 4 - 1 < does["mean_us"] < does["longest_us"]
        assert (other["state"], other["recent_faults"]) == ("not loaded", 1)
        for _ in range(2):
            client.get("libcgi-bin/other.so?abort")
        assert client.get("libcgi-bin/other.so?-").status_code == 503
        assert client.get("libcgi-status", headers={"Host": "evil.example"}).status_code == 421
        text = client.get("libcgi-status").text
        assert "kept out for" in text and "does.so" in text and str(status["pid"]) in text


def test_nobody_else_sees_the_status_page(started: Callable[..., Server]) -> None:
    assert web.get(f"{started('thread').url}libcgi-status").status_code == 404
    assert not any(map(is_local, ("192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "")))
