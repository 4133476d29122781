"""The FastCGI feature: what a responder behind a socket answers, under every model."""

from __future__ import annotations

import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from support import web
from support.examples import examples
from support.proc import open_files
from support.server import MODELS, ROOT, Server, Start, accepts, wait_until, write_program
from support.wire import read_all

from ewe.gateway import records
from ewe.gateway.records import Aborted, Began, Input

LARGE = os.urandom(3_000_000)


class Application:
    """A responder in this process, with a thread for each connection; what it does is in PATH_INFO."""

    def __init__(self, address: str | tuple[str, int]) -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.listening = socket.socket(family, socket.SOCK_STREAM)
        self.listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listening.bind(address)
        self.listening.listen(16)
        self.seen: list[dict[bytes, bytes]] = []
        self.ids: list[int] = []  # of the requests in `seen`
        self.connections: list[socket.socket] = []
        self.aborted = threading.Event()
        self.overloaded = False
        self.gate = threading.Event()  # a request to /gate waits for this event
        self.open: list[socket.socket] = []
        self.most_open = 0
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()

    def accept(self) -> None:
        while True:
            try:
                sock, _ = self.listening.accept()
            except OSError:
                return
            self.connections.append(sock)
            # Duplicates, which no other thread closes while they are looked at
            for each in [each for each in self.open if has_ended(each)]:
                self.open.remove(each)
                each.close()
            self.open.append(sock.dup())
            self.most_open = max(self.most_open, len(self.open))
            threading.Thread(target=self.talk, args=(sock,), daemon=True).start()

    def talk(self, sock: socket.socket) -> None:
        """Answer one request after another on a connection."""
        responder = records.Responder()
        body = bytearray()
        params: dict[bytes, bytes] = {}
        try:
            while data := sock.recv(65536):
                for event in responder.feed(data):
                    if isinstance(event, Began):
                        params = event.params  # another connection may append to `seen` before the answer
                        self.ids.append(responder.id)
                        self.seen.append(params)
                        body = bytearray()
                        if event.params.get(b"PATH_INFO") == b"/early":
                            sock.sendall(responder.output(b"Content-Type: a/b\n\n" + LARGE))
                    elif isinstance(event, Input) and event.data:
                        body += event.data
                    elif isinstance(event, Aborted):
                        self.aborted.set()
                    elif not self.answer(sock, responder, params, body):
                        return
            self.aborted.set()
        except OSError:
            self.aborted.set()
        finally:
            shut_down(sock)
            sock.close()

    def answer(
        self, sock: socket.socket, responder: records.Responder, params: dict[bytes, bytes], body: bytearray
    ) -> bool:
        """Answer; return whether the connection goes on."""
        what = params.get(b"PATH_INFO", b"")
        head = b"Content-Type: a/b\n\n"
        if what == b"/silent":
            return True
        if what == b"/gate":
            self.gate.wait(60)
        if what == b"/dies":
            sock.sendall(responder.output(head + b"beginning"))
            return False
        if what == b"/nothing":
            return False
        if what == b"/garbage":
            sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            return False
        if what == b"/full" or self.overloaded:
            sock.sendall(records.end_record(responder.id, 0, records.OVERLOADED))
            return True
        if what == b"/complains":
            sock.sendall(responder.errors(b"one\ntw") + responder.errors(b"o\nthree"))
        status = b"Status: 201 Made\n" if what == b"/status" else b""
        answer = b"" if what == b"/early" else status + head + (body or what)
        if what == b"/huge":  # more than the buffers of sockets hold
            answer = head + LARGE * 8
        for at in range(0, len(answer), 20000):
            sock.sendall(responder.output(answer[at : at + 20000]))
        sock.sendall(responder.end())
        if what == b"/leaves":
            time.sleep(random.random() / 200)  # it is idle at the other end, or carries a request already
            return False
        return True

    def close(self) -> None:
        """Stop listening, and drop every connection."""
        self.gate.set()
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        for sock in self.connections:
            shut_down(sock)
        self.thread.join(20)
        for sock in self.open:
            sock.close()


def shut_down(sock: socket.socket) -> None:
    """Shut a connection down in both directions."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def has_ended(sock: socket.socket) -> bool:
    """Return whether a connection is shut down here or closed at the other end."""
    watched = select.poll()
    watched.register(sock, 0)
    return bool(watched.poll(0))


@pytest.fixture
def application(tmp_path: Path) -> Iterator[Callable[..., Application]]:
    made: list[Application] = []

    def make(name: str = "app.sock") -> Application:
        (tmp_path / name).unlink(missing_ok=True)
        made.append(Application(str(tmp_path / name)))
        return made[-1]

    yield make
    for each in made:
        try:
            each.close()
        except OSError:
            pass


@pytest.fixture
def server(start: Start, caller: str, tmp_path: Path) -> Server:
    return start(caller, "--fastcgi", f"/app=unix:{tmp_path / 'app.sock'}", "--fastcgi-keep")


@pytest.fixture(params=[*MODELS, "asyncio --loop asyncio"])
def caller(request: pytest.FixtureRequest) -> str:
    """Each model and each event loop: each has its own way to keep connections and to wait for a responder."""
    return str(request.param)


def test_requests_and_answers(server: Server, application: Callable[[], Application]) -> None:
    app = application()
    with web.Client(base_url=server.url) as client:
        answer = client.get("/app/some/where?a=b", headers={"X-Own": "value", "Proxy": "evil"})
        assert (answer.status_code, answer.content, answer.headers["content-type"]) == (
            200,
            b"/some/where",
            "a/b",
        )
        assert client.post("/app/echo", content=b"abc").content == b"abc"
        assert client.post("/app/echo", content=LARGE).content == LARGE
        assert client.post("/app/echo", content=iter((b"in ", b"chunks"))).content == b"in chunks"
        assert client.put("/app/early", content=LARGE).content == LARGE  # it answers before it reads
        assert client.get("/app/status").status_code == 201
        assert client.head("/app/status").status_code == 201
        assert client.get("/").status_code == 200 and client.get("/application").status_code == 404
    params = app.seen[0]
    expected = {
        b"SCRIPT_NAME": b"/app", b"PATH_INFO": b"/some/where", b"QUERY_STRING": b"a=b", b"HTTP_X_OWN": b"value",
        b"REQUEST_METHOD": b"GET", b"GATEWAY_INTERFACE": b"CGI/1.1", b"REMOTE_ADDR": b"127.0.0.1",
    }  # fmt: skip
    assert expected.items() <= params.items()
    assert b"HTTP_PROXY" not in params and b"PATH" not in params
    assert [each.get(b"CONTENT_LENGTH") for each in app.seen[:4]] == [None, b"3", b"3000000", b"9"]


def test_a_silent_responder(
    start: Start, application: Callable[[], Application], tmp_path: Path, caller: str
) -> None:
    application()
    options = (
        "--fastcgi",
        f"/app=unix:{tmp_path / 'app.sock'}",
        "--fastcgi-keep",
        "--program-timeout",
        "300ms",
    )
    server = start(caller, *options)
    assert web.get(f"{server.url}app/silent").status_code == 504
    server.wait_for_log("silent for 0.3 s (program-timeout)")
    assert web.get(server.url).status_code == 200
    assert "Traceback" not in server.log()


def test_what_goes_wrong(server: Server, application: Callable[[], Application]) -> None:
    """Each fault has its status and one line in the log, and the next request is served."""
    with web.Client(base_url=server.url) as client:
        unreached = client.get("/app/")
        assert (unreached.status_code, unreached.headers["retry-after"]) == (503, "1")
        server.wait_for_log("cannot be reached: No such file or directory")
        application()
        for path, status, says in (
            ("/nothing", 502, "closed the connection without an answer"),
            ("/garbage", 502, "a record of version 72, not 1"),
            ("/full", 503, "the responder is overloaded"),
        ):
            assert client.get("/app" + path).status_code == status
            server.wait_for_log(says)
            assert client.get("/app/good").content == b"/good"
        assert client.get("/app/complains").status_code == 200
        server.wait_for_log("/app: three")
        assert "/app: one\n" in server.log() and "/app: two\n" in server.log()
        with pytest.raises(httpx.RemoteProtocolError):  # cut: half of it never passes for the whole
            client.get("/app/dies")
        assert client.request("TRACE", "/app/good").status_code == 405
    assert "Traceback" not in server.log()


def test_an_xswitch_that_cannot_be_reached(start: Start, caller: str) -> None:
    """The answer is 503 with Retry-After, as for a responder: X-Switch may be back soon (paper section 3.1.2)."""
    server = start(caller, "--xswitch", "unix:/none", "--xswitch-status")
    write_program(server.cgi / "hello", "#!/bin/sh\necho\n")
    (server.root / "page.php").write_text("<?php secret();")
    with web.Client(base_url=server.url) as client:
        for method, path in (
            ("GET", "/cgi-bin/hello"), ("POST", "/cgi-bin/hello"), ("GET", "/page.php"), ("GET", "/xswitch-status"),
        ):  # fmt: skip
            unreached = client.request(method, path)
            assert (unreached.status_code, unreached.headers["retry-after"]) == (503, "1"), path
        assert client.get("/").status_code == 200
    server.wait_for_log("unix:/none cannot be reached: No such file or directory")
    assert "Traceback" not in server.log()


def test_a_responder_that_was_restarted(server: Server, application: Callable[[], Application]) -> None:
    """Kept connections are dead then; the request goes out once more on a new one."""
    app = application()
    with web.Client(base_url=server.url) as client:
        for _ in range(3):
            assert client.post("/app/echo", content=b"abc").content == b"abc"
            app.close()
            app = application()
            assert client.post("/app/echo", content=LARGE).content == LARGE


def test_what_has_effects_is_asked_for_once(server: Server, application: Callable[[], Application]) -> None:
    """A kept connection that ends before the answer: the responder may have run the request."""
    app = application()
    with web.Client(base_url=server.url) as client:
        for method, body, times, status in (
            ("GET", b"", 2, 502), ("HEAD", b"", 2, 502), ("OPTIONS", b"", 2, 502), ("GET", b"x", 1, 502),
            ("POST", b"", 1, 502), ("POST", b"x", 1, 502), ("PUT", LARGE, 1, 502), ("DELETE", b"", 1, 502),
        ):  # fmt: skip
            assert client.get("/app/good").content == b"/good"  # so that there is a kept connection
            before = len(app.seen)
            assert client.request(method, "/app/nothing", content=body or None).status_code == status
            assert len(app.seen) - before == times, (method, len(body))


def test_a_responder_that_closes_connections_as_it_likes(
    server: Server, application: Callable[[], Application]
) -> None:
    """New connections soon get the numbers of the closed descriptors: nothing may wait at the old ones."""
    application()

    def ask(client: web.Client) -> None:
        for number in range(examples(30)):
            path = "/leaves" if number % 3 else "/stays"
            assert client.get("/app" + path).content == path.encode()

    with ThreadPoolExecutor(6) as threads:
        ends = {"Connection": "close"}  # the serial model has one client at a time
        clients = [web.Client(base_url=server.url, headers=ends) for _ in range(6)]
        for done in [threads.submit(ask, client) for client in clients]:
            done.result()
        for client in clients:
            client.close()
    assert "Traceback" not in server.log()


# One client with one connection: under every model one process then has all its requests, and knows what it has
# learned of the addresses.


def two_addresses(start: Start, caller: str, tmp_path: Path, retry: str, *more: str) -> Server:
    addresses = (f"/app=unix:{tmp_path / name}" for name in ("app.sock", "other.sock"))
    options = [option for address in addresses for option in ("--fastcgi", address)]
    return start(caller, *options, "--fastcgi-retry", retry, *more)


def test_several_addresses_are_used_in_turn(
    start: Start, caller: str, application: Callable[..., Application], tmp_path: Path
) -> None:
    """If one address refuses a request unread, the next one gets it. If all refuse, the answer is 503."""
    one, other = application(), application("other.sock")
    with web.Client(base_url=two_addresses(start, caller, tmp_path, "1d").url) as client:
        for _ in range(10):
            assert client.get("/app/good").content == b"/good"
        assert (len(one.seen), len(other.seen)) == (5, 5)
        one.overloaded = True
        for _ in range(10):
            assert client.post("/app/echo", content=LARGE).content == LARGE
        assert len(other.seen) == 15
        other.overloaded = True
        full = client.post("/app/echo", content=b"abc")
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")


def test_a_client_goes_again_to_the_same_address(
    start: Start, caller: str, application: Callable[..., Application], tmp_path: Path
) -> None:
    """A cookie names the address. If the address is dead, another one takes the client over."""
    apps = [application(), application("other.sock")]
    server = two_addresses(start, caller, tmp_path, "100ms", "--fastcgi-affinity", "ewe")
    with web.Client(base_url=server.url) as client:
        for _ in range(4):  # other clients, and clients with cookies that ewe has not set, are served in turn
            first = client.get("/app/good")
            assert first.headers["set-cookie"] in (
                f"ewe={n}; Path=/app; HttpOnly; SameSite=Lax" for n in (1, 2)
            )
            client.cookies.clear()
        assert "set-cookie" in client.get("/app/good", headers={"Cookie": "ewe=app.sock"}).headers
        client.cookies.clear()
        at = int(client.get("/app/good").cookies["ewe"])
        for each in apps:
            each.seen.clear()
        for _ in range(9):
            assert "set-cookie" not in client.post("/app/echo", content=b"abc").headers
        assert (len(apps[at - 1].seen), len(apps[2 - at].seen)) == (9, 0)
        apps[at - 1].close()
        moved = client.post("/app/echo", content=LARGE)
        assert (moved.content, moved.cookies["ewe"]) == (LARGE, str(3 - at))
        application(("app.sock", "other.sock")[at - 1])
        for _ in range(9):  # and it stays there
            assert "set-cookie" not in client.get("/app/good").headers
        assert len(apps[2 - at].seen) == 10
    assert "Traceback" not in server.log()


def test_a_dead_address_is_left_out(
    start: Start, caller: str, application: Callable[..., Application], tmp_path: Path
) -> None:
    """Every request is answered, those with effects too, and once; the dead one is not asked again and again."""
    other = application("other.sock")
    server = two_addresses(start, caller, tmp_path, "1d")
    with web.Client(base_url=server.url) as client:
        for _ in range(10):
            assert client.post("/app/echo", content=b"abc").content == b"abc"
        assert len(other.seen) == 10
        server.wait_for_log("app.sock cannot be reached: No such file or directory; left out for 86400 s")
        one = application()
        for _ in range(10):
            assert client.get("/app/good").content == b"/good"
        assert (len(one.seen), len(other.seen)) == (0, 20)
        other.close()  # now both are left out, and both are tried
        for _ in range(10):
            assert client.get("/app/good").content == b"/good"
        assert (len(one.seen), len(other.seen)) == (10, 20)
        one.close()
        unreached = client.get("/app/good")
        assert (unreached.status_code, unreached.headers["retry-after"]) == (503, "1")
        application("other.sock")
        assert client.get("/app/good").content == b"/good"
    assert server.log().count("left out") <= 5 and "Traceback" not in server.log()


def test_a_dead_address_is_tried_again(
    start: Start, caller: str, application: Callable[..., Application], tmp_path: Path
) -> None:
    other = application("other.sock")
    server = two_addresses(start, caller, tmp_path, "100ms")
    with web.Client(base_url=server.url) as client:
        wait_until(lambda: client.get("/app/good") and "left out" in server.log(), 20)
        one = application()
        wait_until(lambda: client.get("/app/good").status_code == 200 and one.seen, 20)
        one.seen.clear(), other.seen.clear()
        for _ in range(10):
            assert client.get("/app/good").content == b"/good"
        assert (len(one.seen), len(other.seen)) == (5, 5)


# Models that run conversations at once in one process, and so can have many connections to a responder
MANY = ("thread", "pool", "pool --parking idle", "asyncio", "asyncio --loop asyncio")


def test_at_most_so_many_connections(
    start: Start, caller: str, application: Callable[..., Application], tmp_path: Path
) -> None:
    """Whatever the number of clients, and every request is answered."""
    app = application()
    options = ("--fastcgi-keep", "--fastcgi-connections", "2", "--fastcgi-queue-timeout", "1h")
    server = start(caller, "--fastcgi", f"/app=unix:{tmp_path / 'app.sock'}", *options)

    def ask(number: int) -> None:
        with web.Client(base_url=server.url, timeout=60, headers={"Connection": "close"}) as client:
            for path in ("/app/good", "/app/leaves", "/app/good"):
                assert client.get(path).content == path[4:].encode()

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(ask, range(24)))
    if caller in MANY:
        assert app.most_open <= 2


@pytest.mark.parametrize("model", MANY)
def test_a_request_that_finds_no_room(
    start: Start, model: str, application: Callable[..., Application], tmp_path: Path
) -> None:
    """The request waits, and gets 503 after the queue timeout. If its client has left, it is not sent."""
    app = application()
    options = ("--fastcgi-connections", "1", "--fastcgi-queue-timeout", "3s", "--program-timeout", "1h")
    server = start(model, "--fastcgi", f"/app=unix:{tmp_path / 'app.sock'}", *options)

    def ask(path: str) -> httpx.Response:
        return web.get(server.url + path, timeout=60, headers={"Connection": "close"})

    with ThreadPoolExecutor(3) as threads:
        held = threads.submit(ask, "app/gate")
        wait_until(lambda: app.seen, 20)
        with server.connect() as half_closed:
            half_closed.sendall(b"GET /app/left HTTP/1.1\r\nHost: ewe\r\n\r\n")
            half_closed.shutdown(socket.SHUT_WR)
            refused = threads.submit(ask, "app/refused").result()
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            server.wait_for_log("no connection to the responder was free for 3 s (fastcgi-queue-timeout)")
            wait_until(lambda: '/app/left HTTP/1.1" 499' in server.access_file.read_text(), 20)
        waiting = threads.submit(ask, "app/waits")
        assert ask("").status_code == 200  # it holds nothing but a worker
        app.gate.set()
        assert held.result().content == b"/gate" and waiting.result().content == b"/waits"
    assert [params[b"PATH_INFO"] for params in app.seen] == [b"/gate", b"/waits"]


def sockets(server: Server) -> int:
    """Return how many sockets a server of one process has open."""
    return sum(name.startswith("socket:") for name in open_files(server.pid).values())


def test_a_pool_whose_workers_all_wait_for_one_that_is_parked(
    start: Start, application: Callable[..., Application], tmp_path: Path
) -> None:
    """A slow client holds the only connection and is parked. A waiting request must not hold a worker."""
    application()
    options = ("--poolthreads", "2", "--fastcgi-connections", "1", "--fastcgi-queue-timeout", "1h")
    server = start("pool", "--fastcgi", f"/app=unix:{tmp_path / 'app.sock'}", *options)
    with server.connect() as slow, ThreadPoolExecutor(5) as threads:
        slow.sendall(b"GET /app/huge HTTP/1.1\r\nHost: ewe\r\nConnection: close\r\n\r\n")
        assert slow.recv(100).startswith(b"HTTP/1.1 200 ")
        before = sockets(server)
        waiting = [threads.submit(web.get, server.url + "app/good", timeout=60) for _ in range(5)]
        wait_until(lambda: sockets(server) >= before + 5, 20)
        rest = b""
        while data := slow.recv(65536):
            rest += data
        assert rest.endswith(b"\r\n0\r\n\r\n") and len(rest) > 8 * len(LARGE)
        assert [each.result().content for each in waiting] == [b"/good"] * 5


@pytest.mark.parametrize("model", ["asyncio", "asyncio --loop asyncio", "thread"])
def test_settings_read_anew_leave_no_kept_connection_behind(
    start: Start, application: Callable[[], Application], tmp_path: Path, model: str
) -> None:
    """New clients and connections get the descriptors' numbers, and must not be taken for the old ones."""
    application()
    server = start(model, "--fastcgi", f"/app=unix:{tmp_path / 'app.sock'}", "--fastcgi-keep")
    ends = {"Connection": "close"}

    def ask(path: str) -> int:
        return web.get(server.url + path, headers=ends).status_code

    for count in range(1, 4):
        with ThreadPoolExecutor(6) as threads:
            assert set(threads.map(ask, ["/app/kept"] * 6)) == {200}
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda count=count: server.log().count("the configuration was read again") == count, 30)
        with ThreadPoolExecutor(12) as threads:
            assert set(threads.map(ask, ["/app/again", "/"] * 6)) == {200}
    assert "Traceback" not in server.log() and "callback" not in server.log()


@pytest.mark.parametrize(("options", "connections"), [((), 20), (("--fastcgi-keep",), 1)])
def test_connections_are_kept_where_that_is_wanted(
    start: Start,
    application: Callable[[], Application],
    tmp_path: Path,
    options: tuple[str, ...],
    connections: int,
) -> None:
    app = application()
    server = start("asyncio", "--fastcgi", f"/app=unix:{tmp_path / 'app.sock'}", *options)
    with web.Client(base_url=server.url) as client:
        for _ in range(20):
            assert client.post("/app/echo", content=b"abc").content == b"abc"
    assert len(app.seen) == 20 and len(app.connections) == connections
    # Each request of a connection has another id, so that no record of an earlier one is taken for its answer.
    assert app.ids == (list(range(1, 21)) if connections == 1 else [1] * 20)


def test_a_client_that_leaves(server: Server, application: Callable[[], Application]) -> None:
    app = application()
    sock = server.connect()
    sock.sendall(b"GET /app/silent HTTP/1.1\r\nHost: ewe\r\n\r\n")
    wait_until(lambda: app.seen, 30)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes((1, 0, 0, 0, 0, 0, 0, 0)))
    sock.close()
    assert app.aborted.wait(20)


def test_over_tcp(start: Start, model: str) -> None:
    app = Application(("127.0.0.1", 0))
    try:
        port = app.listening.getsockname()[1]
        server = start(model, "--fastcgi", f"/app=127.0.0.1:{port}")
        assert web.post(server.url + "app/echo", content=LARGE).content == LARGE
    finally:
        app.close()


def test_extensions(start: Start, application: Callable[[], Application], tmp_path: Path) -> None:
    """Files with it go to the responder, as the index of a directory too, and are never sent as they are."""
    app = application()
    server = start("pool", "--fastcgi", f".php=unix:{tmp_path / 'app.sock'}", "--defaultindex", "index.php")
    (server.root / "sub").mkdir()
    for name in ("a.php", "sub/index.php"):
        (server.root / name).write_text("<?php secret();")
    for path, script, info in (
        ("/a.php", "/a.php", None),
        ("/a.php/more/b.php", "/a.php", "/more/b.php"),
        ("/sub/", "/sub/index.php", None),
        ("/sub/index.php?x=.php/", "/sub/index.php", None),
    ):
        web.get(server.url.rstrip("/") + path)
        params = app.seen[-1]
        assert params[b"SCRIPT_NAME"].decode() == script
        assert params[b"SCRIPT_FILENAME"] == os.fsencode(str(server.root) + script)
        assert params.get(b"PATH_INFO", b"").decode() == (info or "")
    count = len(app.seen)
    for path in ("/none.php", "/sub/.php", "/.hidden.php"):
        assert web.get(server.url.rstrip("/") + path).status_code == 404
    assert web.get(server.url + "sub").status_code == 301 and len(app.seen) == count


def test_equal_heads_of_two_clients(
    start: Start, application: Callable[[], Application], tmp_path: Path, model: str
) -> None:
    """The address and the port of the first client must not be sent for the second."""
    app = application()
    listening = [option for port in (0, 0) for option in ("--bind", f"127.0.0.1:{port}")]
    server = start(model, *listening, "--fastcgi", f"/app=unix:{tmp_path / 'app.sock'}")
    ports = {int(port) for port in re.findall(r"http://127.0.0.1:(\d+)/", server.log())}
    assert len(ports) == 2
    head = b"GET /app/good?%s HTTP/1.1\r\nHost: ewe\r\nConnection: close\r\n\r\n"
    one, other = ports
    for query in (b"a", b"b"):
        for port in (one, one, other, other, one):
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.sendall(head % query)
                assert b"/good" in read_all(sock)
                params = app.seen[-1]
                assert params[b"REMOTE_PORT"] == str(sock.getsockname()[1]).encode()
                assert (params[b"SERVER_PORT"], params[b"QUERY_STRING"]) == (str(port).encode(), query)


def test_scripts_come_and_go(start: Start, application: Callable[[], Application], tmp_path: Path) -> None:
    """A new script is found at once. A deleted one may be believed to exist for a second at most."""
    application()
    server = start("pool", "--fastcgi", f".php=unix:{tmp_path / 'app.sock'}")
    with web.Client(base_url=server.url) as client:
        assert client.get("/new.php").status_code == 404
        (server.root / "new.php").write_text("<?php secret();")
        assert client.get("/new.php").status_code == 200
        (server.root / "new.php").unlink()
        wait_until(lambda: client.get("/new.php").status_code == 404, 20)


@pytest.mark.starts_processes
@pytest.mark.parametrize("setting", ["php=unix:/x", ".php", ".php=/x", "/a b=unix:/x", ".php=fd://3", "/a="])
def test_bad_settings_are_one_line(tmp_path: Path, setting: str) -> None:
    command = [sys.executable, "-m", "ewe", "--fastcgi", setting, "0"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--fastcgi" in done.stderr


# Debian's name has the version in it; .ci/run installs it.
PHP_FPM = shutil.which("php-fpm") or next(map(str, Path("/usr/sbin").glob("php-fpm*")), "")
POOL = """\
[global]
error_log = {where}/fpm.log
daemonize = no
[www]
{user}
listen = {where}/fpm.sock
pm = static
pm.max_children = 2
"""
PAGE = """\
<?php
header('X-Own: yes');
if (isset($_FILES['file'])) { echo md5_file($_FILES['file']['tmp_name']); }
else { http_response_code(201); echo $_GET['a'] ?? '', $_POST['b'] ?? '', $_SERVER['PATH_INFO'] ?? ''; }
"""


@pytest.mark.needs("php-fpm")
def test_php_fpm(start: Start, model: str, tmp_path: Path) -> None:
    """Forms, uploads, status and fields, from PHP as people run it."""
    import hashlib

    user = "user = root\ngroup = root" if os.geteuid() == 0 else ""
    (tmp_path / "fpm.conf").write_text(POOL.format(where=tmp_path, user=user))
    command = [PHP_FPM, "-y", str(tmp_path / "fpm.conf"), "-n", "-F"]
    fpm = subprocess.Popen(command + (["-R"] if os.geteuid() == 0 else []), stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: accepts(tmp_path / "fpm.sock"), 30, "php-fpm does not start")
        server = start(model, "--fastcgi", f".php=unix:{tmp_path / 'fpm.sock'}")
        (server.root / "page.php").write_text(PAGE)
        with web.Client(base_url=server.url) as client:
            answer = client.post("/page.php/info?a=A", data={"b": "B"})
            assert (answer.status_code, answer.text, answer.headers["x-own"]) == (201, "AB/info", "yes")
            answer = client.post("/page.php", files={"file": LARGE[:1_000_000]})
            assert answer.text == hashlib.md5(LARGE[:1_000_000]).hexdigest()
        clients = [web.Client(base_url=server.url) for _ in range(1 if model == "serial" else 4)]
        for client in clients * 3:  # more than there are children, none of which may be held
            assert client.get("/page.php?a=A").text == "A"
        for client in clients:
            client.close()
    finally:
        fpm.send_signal(signal.SIGTERM)
        fpm.wait(60)
