"""Every gateway under every model: the same program, the same exercises, one server for each model.

What a client sees must not depend on how the server reaches the program, or on the model that waits for it. The
exceptions stand in this file, at the top: they are the differences between the gateways.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from support import gateway_programs, web
from support.application_ends import READERS
from support.gateway_programs import LARGE, expected_large, program
from support.libcgi import compiled
from support.proc import peak_memory
from support.resources import is_here
from support.server import MODELS, Server, Starter
from support.wire import chunked, request_of
from support.xswitch_client import xswitch

from ewe.gateway import records, scgi, uwsgi
from ewe.gateway.records import Began, Input
from ewe.libcgi import build as shim

pytestmark = pytest.mark.starts_processes

GATEWAYS = {
    "cgi": "/cgi-bin/program.py",
    "xswitch": "/cgi-bin/program.py",  # of a second server, since X-Switch takes the scripts from CGI
    "fastcgi": "/fastcgi",
    "scgi": "/scgi",
    "uwsgi": "/uwsgi",
    "wsgi": "/wsgi",
    "asgi": "/asgi",
    "libcgi": "/libcgi-bin/program.so",
}
FAILURES = (500, 502)  # before any output: a program's own fault, or a connection that ended too early
MEGABYTES = int(os.environ.get("EWE_TEST_MEGABYTES", "64"))  # make gigabyte: 1024, under all models
LONG_MODELS = MODELS if "EWE_TEST_MEGABYTES" in os.environ else ("thread",)
GROWTH = 24 << 20  # bytes that a process of the server may need more for a body of any size
BODY = os.urandom(70_000) + b"\0\0 and more \0"


class Programs:
    """The program behind a socket, in this process: a thread for each connection."""

    def __init__(self, path: Path, talk: Callable[[socket.socket], None]) -> None:
        self.address = f"unix:{path}"
        self.talk = talk
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(path))
        path.chmod(0o777)  # the server may run as another user
        self.listening.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self.listening.accept()
                threading.Thread(target=self.serve, args=(sock,), daemon=True).start()

    def serve(self, sock: socket.socket) -> None:
        """Talk; a fault of the program ends the connection, as the end of its process would."""
        with sock, suppress(OSError, RuntimeError):
            self.talk(sock)

    def close(self) -> None:
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()


def answer(params: dict[bytes, bytes], body: bytes) -> Iterator[bytes]:
    """Yield what the program writes."""
    what = params[b"PATH_INFO"].decode().rpartition("/")[2]
    fields, pieces = program(what, body, params[b"QUERY_STRING"].decode())
    yield "".join(f"{name}: {value}\r\n" for name, value in fields).encode() + b"\r\n"
    yield from pieces


def is_sink(params: dict[bytes, bytes]) -> bool:
    """Return whether a request's body is only counted."""
    return params[b"PATH_INFO"].endswith(b"/sink")


def talk_fastcgi(sock: socket.socket) -> None:
    """Answer requests as a FastCGI responder."""
    responder = records.Responder()
    params: dict[bytes, bytes] = {}
    body, size = b"", 0
    while data := sock.recv(65536):
        for event in responder.feed(data):
            if isinstance(event, Began):
                params, body, size = event.params, b"", 0
            elif isinstance(event, Input) and event.data:
                size += len(event.data)
                body = b"%d" % size if is_sink(params) else body + event.data
            elif isinstance(event, Input):
                for piece in answer(params, body):
                    for at in range(0, len(piece), 20000):
                        sock.sendall(responder.output(piece[at : at + 20000]))
                sock.sendall(responder.end())


def talk_once(codec: ModuleType) -> Callable[[socket.socket], None]:
    """Return a function that answers one request as a program that uses SCGI or uwsgi."""

    def talk(sock: socket.socket) -> None:
        data = b""
        while (found := READERS[codec](data)) is None:
            data += sock.recv(65536)
        params, body = found
        size = len(body)
        while size < int(params.get(b"CONTENT_LENGTH") or 0):
            data = sock.recv(65536)
            size += len(data)
            body = body + data if not is_sink(params) else b""
        body = b"%d" % size if is_sink(params) else body
        status = b"HTTP/1.1 200 OK\r\n" if codec is uwsgi else b""
        for piece in answer(params, body):
            sock.sendall(status + piece)
            status = b""

    return talk


@pytest.fixture(scope="module", params=MODELS)
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, fork_servers: Any
) -> Iterator[dict[str, Server]]:
    """Two servers of one model, with all gateways: gateway -> its server."""
    directory = tmp_path_factory.mktemp("gateways", numbered=True)
    directory.chmod(0o755)
    source = Path(gateway_programs.__file__)
    shutil.copy(source, directory / "program.py")
    (directory / "libcgi-bin").mkdir()
    if is_here("gcc"):
        shim.build()
        compiled(directory / "libcgi-bin", "program", gateway_programs.LIBRARY)
    behind = {
        "fastcgi": Programs(directory / "fastcgi", talk_fastcgi),
        "scgi": Programs(directory / "scgi", talk_once(scgi)),
        "uwsgi": Programs(directory / "uwsgi", talk_once(uwsgi)),
    }
    with xswitch() as switch:
        switch.script("cgi-bin/program.py", "#!/usr/bin/env python3\n" + source.read_text())
        starter = Starter(directory, fork_servers)
        shutil.copy(switch.site / "cgi-bin" / "program.py", starter.directory / "cgi-bin" / "program.py")
        own = starter(
            request.param,
            *(f"--{name}=/{name}={each.address}" for name, each in behind.items()),
            "--wsgi", "/wsgi=program:wsgi", "--asgi", "/asgi=program:asgi",
            "--libcgi-path", str(directory / "libcgi-bin"),
            *(("--user", "nobody") if os.geteuid() == 0 else ()),
        )  # fmt: skip
        switched = starter(
            request.param, "--xswitch", switch.address, "--cgi-path", str(switch.site / "cgi-bin")
        )
        yield {name: switched if name == "xswitch" else own for name in GATEWAYS}
        starter.stop()
    for each in behind.values():
        each.close()
    assert "Traceback" not in switched.log()


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.needs("gcc") if name == "libcgi" else ()) for name in GATEWAYS
    ]
)
def reached(request: pytest.FixtureRequest, servers: dict[str, Server]) -> tuple[Server, str]:
    """A server, and the path of the program behind one of its gateways."""
    return servers[request.param], GATEWAYS[request.param]


Reached = tuple[Server, str]


@pytest.fixture
def client(reached: Reached) -> Iterator[web.Client]:
    server, path = reached
    with web.Client(base_url=server.url.rstrip("/") + path) as made:
        yield made


def test_get_head_and_post(client: web.Client) -> None:
    got = client.get("/echo")
    assert (got.status_code, got.content, got.headers["x-length"]) == (200, b"", "0")
    head = client.head("/echo")
    assert (head.status_code, head.content, head.headers["x-length"]) == (200, b"", "0")
    sent = client.post("/echo", content=BODY)
    assert (sent.content, sent.headers["x-length"]) == (BODY, str(len(BODY)))
    assert client.get("/echo").status_code == 200, "the connection and the program go on"


def test_a_body_in_chunks(reached: Reached) -> None:
    server, path = reached
    body = chunked(b"one\0", b"two" * 30_000, b"\0three")
    head = request_of(f"POST {path}/echo", "Transfer-Encoding: chunked", "Connection: close")
    answered = server.ask(head + body)
    assert answered.startswith(b"HTTP/1.1 200 "), answered[:300]
    assert b"X-Length: 90010\r\n" in answered
    assert b"one\0twotwo" in answered and b"two\0three" in answered


def test_a_large_answer(client: web.Client) -> None:
    assert client.get("/large").content == expected_large()
    assert len(client.get("/large").content) == LARGE


def test_a_slow_reader_gets_all(reached: Reached) -> None:
    server, path = reached
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(60)
        sock.connect(("127.0.0.1", server.port))
        sock.sendall(request_of(f"GET {path}/large HTTP/1.0"))
        data = b""
        while piece := sock.recv(1500):
            data += piece
    assert data.partition(b"\r\n\r\n")[2] == expected_large()


def test_a_client_that_leaves(reached: Reached, client: web.Client) -> None:
    """The next request is served: under serial and prefork it waits for the one that was left."""
    server, path = reached
    with server.connect() as sock:
        sock.sendall(request_of(f"GET {path}/much"))
        assert sock.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert client.get("/echo").status_code == 200


def test_a_program_that_fails(client: web.Client) -> None:
    assert client.get("/fails").status_code in FAILURES
    assert client.post("/echo", content=b"next").content == b"next"


def test_a_program_that_fails_within_its_answer(client: web.Client) -> None:
    """No client takes the answer for whole: it is cut, or a 500 if nothing of it had been sent yet."""
    try:
        assert client.get("/fails-late").status_code in FAILURES
    except httpx.RemoteProtocolError as cut:
        assert "peer closed connection" in str(cut)
    assert client.post("/echo", content=b"next").content == b"next"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("servers", LONG_MODELS, indirect=True)
def test_long_bodies_in_constant_memory(reached: Reached, client: web.Client) -> None:
    """LibCGI hands the whole body to the library, so only its answers are of any length, and it makes 64 MB."""
    server, path = reached
    in_library = "libcgi" in path
    megabytes = 64 if in_library else MEGABYTES
    assert client.post("/echo", content=BODY).content == BODY
    before = peak_memory(server.processes())
    with client.stream("GET", f"/much?{megabytes}") as stream:
        assert sum(map(len, stream.iter_raw(1 << 20))) == megabytes << 20
    if not in_library:
        piece = bytes(1 << 20)
        for headers in ({}, {"Content-Length": str(megabytes << 20)}):
            answered = client.post("/sink", content=(piece for _ in range(megabytes)), headers=headers)
            assert answered.text == str(megabytes << 20)
    assert peak_memory(server.processes()) - before < GROWTH
