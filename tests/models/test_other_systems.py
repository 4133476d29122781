"""Each model as on another system than Linux: without epoll(7), /proc and all else that Linux alone has.

The servers here come from support/other_system.py. This file is a selection of what the other files test on Linux.
`EWE_TEST_ELSEWHERE=1` lets those tests start such servers, too (tests/README.md).
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support import web
from support.exercises import of_the_docs
from support.fork_server import ForkServer
from support.http_upstream import HTTPUpstream
from support.memory import talk
from support.proc import is_gone, open_files
from support.server import MODELS, Server, Start, Starter, wait_until, write_program
from support.wire import read_all, read_exactly, read_response, request_of, reset
from test_same_bytes import EXCHANGES, but_for_dates, cut, make_files

from ewe.config.settings import Config
from ewe.gateway import records
from ewe.sites import make_site

pytestmark = pytest.mark.starts_processes  # by the fixture `server`, which is not that of conftest.py
VARIANTS = (*MODELS, "pool --parking idle", "asyncio --loop asyncio", "thread --workers 2")
GET = request_of("GET /")
SCRIPT = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\n"
LARGE = os.urandom(1 << 20) * 5  # more than the buffers of a socket hold


@pytest.fixture(scope="module", params=VARIANTS)
def server(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    fork_servers: Callable[..., ForkServer],
) -> Iterator[Server]:
    """A server for the tests that leave it as it was."""
    directory = tmp_path_factory.mktemp("elsewhere")
    directory.chmod(0o755)
    starter = Starter(directory, fork_servers)
    make_files(directory / "htdocs")
    (directory / "htdocs" / "large").write_bytes(LARGE)
    made = starter(str(request.param), elsewhere=True, constants={"ewe.gateway.programs.EXIT_TIMEOUT_S": 0.3})
    made.model = str(request.param)  # type: ignore[attr-defined]
    yield made
    starter.stop()
    assert "Traceback" not in made.log(), made.log()


def test_nothing_of_linux_is_used(server: Server) -> None:
    """The server waits with poll(2). uvloop has its own event loop, in C."""
    assert server.ask(GET).endswith(b"welcome\n")
    links = [link for pid in server.processes() for link in open_files(pid).values()]
    assert links
    if server.model != "asyncio":  # type: ignore[attr-defined]
        assert not [link for link in links if "epoll" in link or "eventfd" in link]


def test_the_same_bytes(server: Server) -> None:
    site = make_site(Config(documentroot=str(server.root), cgi_path=str(server.cgi)))
    wrong = []
    for number, data in enumerate(EXCHANGES[::4]):
        expected = but_for_dates(talk(site, data).output())
        for pieces in list(cut(data))[number % 2 :][:1]:  # every other one whole, the others cut
            found = but_for_dates(server.ask_in_pieces(pieces))
            if found != expected:
                wrong.append(f"{data[:80]!r}: {found[:300]!r}, expected {expected[:300]!r}")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:10])


def test_programs(server: Server) -> None:
    """Bodies pass both ways, a descendant that keeps the output open delays no request, exits are noticed."""
    write_program(server.cgi / "echo", SCRIPT + "cat\n")
    write_program(server.cgi / "leaves", SCRIPT + "echo done\nsleep 60 &\n")
    write_program(server.cgi / "fails", "#!/bin/sh\nexit 3\n")
    with server.connect() as sock:
        for size in (0, 1, 70_000, 3_000_000):  # the last ones do not fit into memory, or a pipe
            sock.sendall(request_of("POST /cgi-bin/echo", f"Content-Length: {size}", body=LARGE[:size]))
            status, _, body = read_response(sock)
            assert (status, len(body)) == (200, size) and body == LARGE[:size]
        sock.sendall(request_of("GET /cgi-bin/leaves"))
        assert read_response(sock)[2] == b"done\n"
        sock.sendall(request_of("GET /cgi-bin/fails"))
        assert read_response(sock)[0] == 502
    server.wait_for_log("exit status 3")


@pytest.mark.parametrize("leave", [reset, socket.socket.close])
def test_a_client_that_leaves_ends_its_program(
    server: Server, leave: Callable[[socket.socket], None]
) -> None:
    pid_file = server.root / "pid"
    pid_file.unlink(missing_ok=True)
    write_program(server.cgi / "sleep", f"#!/bin/sh\necho $$ > {pid_file}.new\nmv {pid_file}.new {pid_file}\n"
                  "exec sleep 60\n")  # fmt: skip
    sock = server.connect()
    sock.sendall(request_of("GET /cgi-bin/sleep"))
    wait_until(pid_file.exists, 30, server.log)
    leave(sock)
    wait_until(lambda: is_gone(int(pid_file.read_text())), 30, "the program lives on")


def test_a_client_that_has_sent_all_reads_the_answer(server: Server) -> None:
    """The client has closed its sending side, or has already sent its next request: neither ends its program."""
    write_program(server.cgi / "later", SCRIPT + "sleep 0.3; echo later\n")
    assert b"later\n" in server.ask(request_of("GET /cgi-bin/later"))
    with server.connect() as sock:
        sock.sendall(request_of("GET /cgi-bin/later") + GET)
        assert read_response(sock)[2] == b"later\n"
        assert b"welcome" in read_response(sock)[2]


def test_a_large_file(server: Server) -> None:
    """A client that reads slowly gets every byte, and so does one that takes a part."""
    with server.connect() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.sendall(request_of("GET /large") + request_of("GET /large", "Range: bytes=1000000-2999999"))
        file = sock.makefile("rb", buffering=0)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += read_exactly(file, 1)
        time.sleep(0.05)  # the server's buffer is full
        assert read_exactly(file, len(LARGE)) == LARGE
        status, _, body = read_response(sock)
        assert status == 206 and body == LARGE[1_000_000:3_000_000]


def test_links(server: Server) -> None:
    """A link within the document root works; one that leads out is neither sent nor listed, also by its name."""
    directory = server.root / "links"
    directory.mkdir()
    (directory / "page.txt").write_text("page")
    (directory / "inside").symlink_to("page.txt")
    (directory / "outside").symlink_to("/etc/hostname")
    (directory / "upwards").symlink_to("/etc")
    assert server.ask(request_of("GET /links/inside")).endswith(b"page")
    assert b" 404 " in server.ask(request_of("GET /links/outside")).splitlines()[0]
    assert b" 404 " in server.ask(request_of("GET /links/upwards/hostname")).splitlines()[0]
    listed = server.ask(request_of("GET /links/", "Accept: application/json", "Connection: close"))
    assert b'"inside"' in listed and b"outside" not in listed and b"upwards" not in listed


def test_silent_and_slow_clients(start: Start) -> None:
    """Silent and slow clients hold no worker of a pool: there are five times as many clients as workers."""
    server = start("pool", "--poolthreads", "3", elsewhere=True)
    with ExitStack() as stack:
        silent = [stack.enter_context(server.connect()) for _ in range(15)]
        slow = [stack.enter_context(server.connect()) for _ in range(15)]
        for sock in slow:
            sock.sendall(GET[:10])
        assert server.ask(GET).endswith(b"welcome\n")
        for byte in GET[10:]:
            for sock in slow:
                sock.sendall(bytes([byte]))
        for sock in (*slow, *silent, *slow):
            if sock in silent:
                sock.sendall(GET)
            assert b"welcome" in read_response(sock)[2]
            if sock in slow:
                sock.sendall(GET)


@pytest.mark.parametrize("model", ["pool", "asyncio", "asyncio --loop asyncio", "thread"])
def test_another_server_is_awaited(start: Start, model: str) -> None:
    """A proxied request parks, and the connection to the server behind is kept; a client that leaves ends it."""
    upstream = HTTPUpstream()
    try:
        server = start(
            model, "--poolthreads", "1", "--proxy", f"/=http://127.0.0.1:{upstream.port}", elsewhere=True
        )

        def slowly(sock: socket.socket, asked: object) -> bool:
            time.sleep(0.1)
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nslowly")
            return True

        upstream.answers["/slow"] = slowly
        with ExitStack() as stack:
            socks = [stack.enter_context(server.connect()) for _ in range(5)]
            for _ in range(2):
                for sock in socks:
                    sock.sendall(request_of("GET /slow"))
                assert all(read_response(sock)[2] == b"slowly" for sock in socks)
        upstream.answers["/never"] = lambda connection, asked: bool(connection.recv(1))
        with server.connect() as sock:
            sock.sendall(request_of("GET /never"))
            wait_until(lambda: upstream.asked[-1].target == "/never", 30)
            reset(sock)
        wait_until(lambda: upstream.connections - len(upstream.open) > 0, 30, "the request goes on")
    finally:
        upstream.close()


@pytest.mark.parametrize("model", [*MODELS[1:], "asyncio --workers 2"])  # serial has one client at a time
def test_hup_and_a_stop(start: Start, model: str) -> None:
    """HUP loses no request, and a stop ends idle connections and waits for a program."""
    server = start(model, "--grace", "40s", elsewhere=True)
    begun, finish = server.root / "begun", server.root / "finish"
    write_program(
        server.cgi / "wait",
        f"#!/bin/sh\ntouch {begun}\nwhile [ ! -e {finish} ]; do sleep 0.02; done\n{SCRIPT[10:]}echo slept\n",
    )
    with server.connect() as busy:
        busy.sendall(request_of("GET /cgi-bin/wait"))
        wait_until(begun.exists, 30, server.log)
        server.process.send_signal(signal.SIGHUP)
        for _ in range(20):
            assert server.ask(GET).endswith(b"welcome\n")
        with server.connect() as idle:
            idle.sendall(GET)
            assert read_response(idle)[0] == 200
            server.process.send_signal(signal.SIGTERM)
            assert read_all(idle) == b""
        finish.touch()
        assert read_response(busy)[2] == b"slept\n"
    assert server.stop() == 0, server.log()
    assert "Traceback" not in server.log()


def test_a_model_of_the_docs(start: Start, tmp_path: Path) -> None:
    """Students write it on their own computers, and several of its threads accept connections."""
    text = of_the_docs("write-a-model.md", "Threads")
    (tmp_path / "mine.py").write_text(
        f"import threading\n\nfrom ewe.processors.base import Processor\n\n\n{text}"
    )
    server = start("mine:Threads", elsewhere=True)
    with server.connect() as one, server.connect() as two:
        for sock in (one, two, one):
            sock.sendall(GET)
            assert b"welcome" in read_response(sock)[2]
    assert server.stop() == 0, server.log()


def test_files_are_written(start: Start, tmp_path: Path) -> None:
    """WebDAV: no file without a name, no copy within the kernel."""
    (tmp_path / "ewe.toml").write_text('[[site]]\n[[site.location]]\nprefix = "/"\nwebdav = true\n')
    server = start("thread", "--config", str(tmp_path / "ewe.toml"), elsewhere=True)
    with web.Client(base_url=server.url) as client:
        assert client.put("/one", content=LARGE).status_code == 201
        assert client.request("COPY", "/one", headers={"Destination": "/two"}).status_code == 201
        assert client.get("/two").content == LARGE
    assert sorted(path.name for path in server.root.iterdir() if path.name[0] == ".") == []


@pytest.mark.parametrize("model", ["pool", "asyncio", "asyncio --loop asyncio"])
def test_a_kept_connection_to_a_responder(start: Start, model: str) -> None:
    """The event loop waits for one socket in two ways: while a body goes out, and for an answer."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=respond_late, args=(listening,), daemon=True)
        thread.start()
        where = f"/app=127.0.0.1:{listening.getsockname()[1]}"
        server = start(model, "--fastcgi", where, "--fastcgi-keep", elsewhere=True)
        with server.connect() as sock:
            for size in (10, len(LARGE), 10):
                sock.sendall(request_of("POST /app/x", f"Content-Length: {size}", body=LARGE[:size]))
                assert read_response(sock)[2] == b"%d" % size
        server.stop()
        thread.join(30)


def respond_late(listening: socket.socket) -> None:
    """Answer the requests of one connection of FastCGI with the length of their bodies, after some time."""
    sock, _ = listening.accept()
    responder, size = records.Responder(), 0
    with sock:
        while data := sock.recv(65536):
            time.sleep(0.01)  # the server has to wait for room
            for event in responder.feed(data):
                if isinstance(event, records.Input) and event.data:
                    size += len(event.data)
                elif isinstance(event, records.Input):
                    sock.sendall(responder.output(b"Content-Type: a/b\n\n%d" % size) + responder.end())
                    size = 0
