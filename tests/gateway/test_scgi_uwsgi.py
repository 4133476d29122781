"""SCGI and uwsgi: their codecs in memory, and programs that speak them behind ewe, under every model."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import web
from support.application_ends import READERS, WireError, read_scgi_request, read_uwsgi_request
from support.memory import MemoryStream
from support.proc import open_files
from support.server import MODELS, Start, wait_until

from ewe.body import Body
from ewe.config.settings import Config
from ewe.gateway import scgi, uwsgi
from ewe.gateway.connections import Connections
from ewe.gateway.records import Output
from ewe.gateway.responder import ask
from ewe.gateway.scripts import Script
from ewe.http.limits import RequestLimits
from ewe.http.messages import Request
from ewe.http.status import HTTPError
from ewe.streams.blocking import run

LARGE = os.urandom(3_000_000)
CODECS = pytest.mark.parametrize("codec", [scgi, uwsgi])
WORDS = st.binary(max_size=300).map(lambda data: data.replace(b"\0", b""))
VARIABLES = st.dictionaries(WORDS.map(lambda name: b"X_" + name), WORDS, max_size=20)
REQUEST = {b"REQUEST_METHOD": b"POST", b"SCRIPT_NAME": b"/app", b"HTTP_LONG": b"v" * 300}


# In memory


def test_a_request_as_the_specification_of_scgi_has_it() -> None:
    pairs = {b"REQUEST_METHOD": b"POST", b"REQUEST_URI": b"/deepthought"}
    asked = scgi.Requester().begin_with(scgi.Requester.encode_request(pairs, 27), False)
    assert asked == (
        b"81:CONTENT_LENGTH\x0027\0SCGI\x001\0PATH_INFO\0\0REQUEST_METHOD\0POST\0REQUEST_URI\0/deepthought\0,"
    )


def test_a_request_as_the_documentation_of_uwsgi_has_it() -> None:
    asked = uwsgi.Requester().begin_with(uwsgi.encode_pairs([(b"HTTP_HOST", b"unbit.com")]), False)
    assert asked == b"\x00\x16\x00\x00\x09\x00HTTP_HOST\x09\x00unbit.com"


@CODECS
@given(variables=VARIABLES, body=st.binary(max_size=100), cut=st.integers(0, 20_000))
def test_requests_come_back(codec: ModuleType, variables: dict[bytes, bytes], body: bytes, cut: int) -> None:
    requester = codec.Requester()
    head = requester.begin_with(requester.encode_request(variables, len(body)), False)
    found = READERS[codec](head + requester.input(body))
    assert found is not None and found[1] == body
    assert found[0].items() >= variables.items() and b"PATH_INFO" in found[0]
    assert READERS[codec](head[: cut % len(head)]) is None
    assert requester.feed(b"answer") == [Output(b"answer")]


def test_what_scgi_cannot_carry() -> None:
    for pair in ((b"NAME", b"a\0b"), (b"NA\0ME", b""), (b"", b"value")):
        with pytest.raises(HTTPError, match="SCGI cannot carry") as refused:
            scgi.encode_pairs([pair])
        assert refused.value.status == 400


def test_what_uwsgi_cannot_carry() -> None:
    """One variable is too large, or all of them together. The largest possible one is sent."""
    requester = uwsgi.Requester()
    fits = uwsgi.encode_pairs([(b"NAME", bytes(65_527))])
    assert len(requester.begin_with(fits, False)) == 4 + 65_535
    with pytest.raises(HTTPError, match="have 65536 bytes; uwsgi carries 65535") as refused:
        requester.begin_with(fits + b"x", False)
    assert refused.value.status == 431
    with pytest.raises(HTTPError, match="uwsgi carries"):
        uwsgi.encode_pairs([(b"NAME", bytes(65_536))])


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"GET / HTTP/1.1\r\n", "begins no netstring"), (b":,", "begins no netstring"), (b"-1:", "begins no"),
        (b"262145:", "is the limit"), (b"007:", "length 007 begins with 0"), (b"2:a\0.", "end in a comma"),
        (b"1:a,", "has no end"), (b"2:a\0,", "has no end"), (b"0:,", "CONTENT_LENGTH is not the first"),
        (b"24:SCGI\x001\0CONTENT_LENGTH\x000\0,", "CONTENT_LENGTH is not the first"),
        (b"24:CONTENT_LENGTH\x000\0SCGI\x002\0,", "SCGI=1"), (b"24:CONTENT_LENGTH\0x\0SCGI\x001\0,", "not the"),
        (b"32:CONTENT_LENGTH\x000\0SCGI\x001\0A\0b\0A\0b\0,", "a name comes twice"),
    ],
)  # fmt: skip
def test_what_no_web_server_may_send_over_scgi(data: bytes, told: str) -> None:
    with pytest.raises(WireError, match=told):
        read_scgi_request(data)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"GET / HTTP", "modifier1 is 71"), (b"\x05", "modifier1 is 5"), (b"\0\x01\0\0a", "beyond the end"),
        (b"\0\x02\0\0\x01\0", "beyond the end"), (b"\0\x04\0\0\0\0\x01\0", "beyond the end"),
    ],
)  # fmt: skip
def test_what_no_web_server_may_send_over_uwsgi(data: bytes, told: str) -> None:
    with pytest.raises(WireError, match=told):
        read_uwsgi_request(data)


@CODECS
def test_bad_bytes_are_never_anything_but_the_typed_error(codec: ModuleType) -> None:
    """Mutations of a good request: complete, incomplete, or the error; and complete stays complete."""
    requester = codec.Requester()
    good = requester.begin_with(requester.encode_request(REQUEST, 4), False) + b"body"
    chance = random.Random(7)
    outcomes = {"complete": 0, "incomplete": 0, "refused": 0}
    for _ in range(20_000):
        data = bytearray(good)
        for _ in range(chance.choice((1, 1, 2, 5))):
            at = chance.randrange(len(data) + 1)
            if chance.random() < 0.6:
                data[at : at + 1] = chance.choice(
                    (b"\0", b"\1", b"9", b":", b",", b"\xff", chance.randbytes(1))
                )
            elif chance.random() < 0.5:
                del data[at : at + chance.randrange(1, 20)]
            else:
                data[at:at] = chance.randbytes(chance.randrange(1, 12))
        try:
            found = READERS[codec](bytes(data))
            outcomes["incomplete" if found is None else "complete"] += 1
            if found is not None:
                assert READERS[codec](bytes(data) + b"more") == (found[0], found[1] + b"more")
        except WireError as reason:
            assert "\n" not in str(reason)
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 100, outcomes


# Behind ewe


class Application:
    """A program in this process, with a thread for each connection; what it does is in PATH_INFO."""

    def __init__(self, codec: ModuleType, directory: Path) -> None:
        """SCGI over TCP, which knows a reset, and uwsgi over a Unix socket."""
        self.codec = codec
        if codec is scgi:
            self.listening = socket.create_server(("127.0.0.1", 0), backlog=64)
            self.option = f"--scgi=/scgi=127.0.0.1:{self.listening.getsockname()[1]}"
        else:
            self.listening = socket.socket(socket.AF_UNIX)
            self.listening.bind(str(directory / "uwsgi"))
            self.listening.listen(64)
            self.option = f"--uwsgi=/uwsgi=unix:{directory / 'uwsgi'}"
        self.seen: list[dict[bytes, bytes]] = []
        self.left = threading.Event()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self.listening.accept()
                threading.Thread(target=self.talk, args=(sock,), daemon=True).start()

    def talk(self, sock: socket.socket) -> None:
        """Read the request, answer it, and close."""
        data = b""
        with suppress(OSError), sock:
            while (found := READERS[self.codec](data)) is None:
                data += sock.recv(65536)
            params, body = found
            self.seen.append(params)
            what = params[b"PATH_INFO"]
            head = (
                b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n\r\n"
                if self.codec is uwsgi
                else b"Content-Type: a/b\n\n"
            )
            if what == b"/early":
                sock.sendall(head + LARGE)
            pieces = [body]
            length = len(body)
            while length < int(params.get(b"CONTENT_LENGTH") or 0):
                pieces.append(sock.recv(65536))
                length += len(pieces[-1])
            body = b"".join(pieces)
            if what == b"/silent":
                sock.recv(1)
                self.left.set()
            elif what == b"/reset":
                sock.sendall(head + b"beginning")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes((1, 0, 0, 0, 0, 0, 0, 0)))
            elif what == b"/short":
                sock.sendall(
                    b"Content-Length: 100\n" + head.removeprefix(b"HTTP/1.1 200 OK\r\n") + b"beginning"
                )
            elif what == b"/status":
                sock.sendall(b"Status: 201 Made\n" + head.removeprefix(b"HTTP/1.1 200 OK\r\n"))
            elif what not in (b"/early", b"/nothing"):
                sock.sendall(head + (body or what))


@pytest.fixture(params=[*MODELS, "asyncio --loop asyncio"])
def caller(request: pytest.FixtureRequest) -> str:
    """Each model, each event loop."""
    return str(request.param)


@pytest.fixture
def applications(tmp_path: Path) -> Iterator[dict[str, Application]]:
    """Two applications: one uses SCGI, one uwsgi."""
    made = {"scgi": Application(scgi, tmp_path), "uwsgi": Application(uwsgi, tmp_path)}
    yield made
    for application in made.values():
        application.listening.shutdown(socket.SHUT_RDWR)
        application.listening.close()


def test_requests_and_answers(start: Start, caller: str, applications: dict[str, Application]) -> None:
    """fastcgi-keep is not for them: each connection ends with its answer. / leaves the others their paths."""
    options = (each.option for each in applications.values())
    server = start(caller, *options, "--fastcgi-keep", "--fastcgi", "/=unix:/none")
    for name, application in applications.items():
        with web.Client(base_url=server.url + name) as client:
            answer = client.get("/some/where?a=b", headers={"X-Own": "value", "Proxy": "evil"})
            assert (answer.status_code, answer.content, answer.headers["content-type"]) == (
                200, b"/some/where", "a/b",
            )  # fmt: skip
            assert client.post("/echo", content=b"abc").content == b"abc"
            assert client.post("/echo", content=LARGE).content == LARGE
            assert client.post("/echo", content=iter((b"in ", b"chunks"))).content == b"in chunks"
            assert client.put("/early", content=LARGE).content == LARGE
            assert client.get("/status").status_code == 201
            assert client.head("/status").status_code == 201
            assert client.get(server.url + name).content == b""
        params = application.seen[0]
        expected = {
            b"SCRIPT_NAME": b"/" + name.encode(), b"PATH_INFO": b"/some/where", b"QUERY_STRING": b"a=b",
            b"HTTP_X_OWN": b"value", b"REQUEST_METHOD": b"GET", b"REMOTE_ADDR": b"127.0.0.1",
        }  # fmt: skip
        assert expected.items() <= params.items() and b"HTTP_PROXY" not in params
        lengths = [each.get(b"CONTENT_LENGTH") for each in application.seen[:4]]
        assert lengths == [b"0" if name == "scgi" else None, b"3", b"3000000", b"9"]
        assert len(application.seen) == 8
    assert "Traceback" not in server.log()


def test_what_goes_wrong(start: Start, caller: str, applications: dict[str, Application]) -> None:
    """Each fault has its status or aborts the response, with one line in the log; the next request is served."""
    options = ("--program-timeout", "300ms", "--max-head", "90K", "--max-field", "80K")
    server = start(
        caller, *(each.option for each in applications.values()), "--scgi", "/none=unix:/none", *options
    )
    with web.Client(base_url=server.url) as client:
        unreached = client.get("/none")
        assert (unreached.status_code, unreached.headers["retry-after"]) == (503, "1")
        for name, application in applications.items():
            assert client.get(f"/{name}/nothing").status_code == 502
            server.wait_for_log(f"/{name}: the responder closed the connection without an answer")
            assert client.get(f"/{name}/silent").status_code == 504
            assert application.left.wait(20)
            with pytest.raises(httpx.RemoteProtocolError):
                client.get(f"/{name}/short")
            assert client.request("TRACE", f"/{name}/good").status_code == 405
            assert client.get(f"/{name}/good").content == b"/good"
        with suppress(httpx.RemoteProtocolError):  # cut, or nothing has come through at all
            assert client.get("/scgi/reset").status_code == 502
        long = {"X-Long": "v" * 66_000}
        assert client.get("/scgi/good", headers=long).content == b"/good"
        assert client.get("/uwsgi/good", headers=long).status_code == 431
        server.wait_for_log("bytes; uwsgi carries 65535")
        assert client.get("/uwsgi/good").content == b"/good"
    assert "Traceback" not in server.log()


# Programs as people run them

WSGI = """\
def application(environ, start_response):
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    own = [("X-Script", environ["SCRIPT_NAME"]), ("X-Path", environ["PATH_INFO"])]
    start_response("201 Made", [("Content-Type", "text/plain"), *own])
    return [body or environ["QUERY_STRING"].encode()]
"""
FLUP = """
from flup.server.scgi import WSGIServer
WSGIServer(application, bindAddress="scgi.sock", scriptName=None, umask=0).run()
"""
UWSGI = (
    "uwsgi", "--plugin", "python3", "--uwsgi-socket", "uwsgi.sock", "--wsgi-file", "wsgi.py", "--master",
    "--processes", "2", "--die-on-term", "--buffer-size", "65535",
)  # fmt: skip


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """flup, which speaks SCGI, and uWSGI: the options with which ewe asks them."""
    directory = tmp_path_factory.mktemp("programs")
    (directory / "wsgi.py").write_text(WSGI)
    (directory / "flup_scgi.py").write_text(WSGI + FLUP)
    commands = ((sys.executable, "flup_scgi.py"), UWSGI)
    with (directory / "log").open("wb") as log:
        running = [subprocess.Popen(each, cwd=directory, stdout=log, stderr=log) for each in commands]
    sockets = {name: directory / f"{name}.sock" for name in ("scgi", "uwsgi")}
    try:
        for socket_file in sockets.values():
            wait_until(socket_file.exists, 30, (directory / "log").read_text)
        yield [f"--{name}=/{name}=unix:{socket_file}" for name, socket_file in sockets.items()]
    finally:
        for each in running:
            each.terminate()
            each.wait(30)


@pytest.mark.needs("uWSGI")
@pytest.mark.parametrize("name", ["scgi", "uwsgi"])
def test_flup_and_uwsgi(start: Start, model: str, programs: list[str], name: str) -> None:
    server = start(model, *programs)
    with web.Client(base_url=f"{server.url}{name}") as client:
        answer = client.get("/some/where?a=b", headers={"X-Long": "v" * 10_000})
        assert (answer.status_code, answer.text, answer.reason_phrase) == (201, "a=b", "Made")
        assert (answer.headers["x-script"], answer.headers["x-path"]) == ("/" + name, "/some/where")
        assert client.post("", content=LARGE).content == LARGE
        assert client.post("", content=iter((b"in ", b"chunks"))).content == b"in chunks"
        assert client.head("?a=b").status_code == 201
    clients = [web.Client(base_url=f"{server.url}{name}") for _ in range(1 if model == "serial" else 4)]
    for client in clients * 3:  # more than uWSGI has processes
        assert client.get("?a=b").text == "a=b"
    for client in clients:
        client.close()


def test_a_refused_request_leaves_no_body_open() -> None:
    """A value is too large for uwsgi. By then the body is spooled, in a file in memory."""
    connections = Connections(["127.0.0.1:1"], keeps=False, codec=uwsgi.Requester)
    request = Request("POST", "/app", (1, 1), (("x-large", "x" * 70_000),), path="/app")
    io = MemoryStream([])
    before = len(open_files(os.getpid()))
    request.length = 3
    request.body = Body(io, request, b"abc", RequestLimits(), 1.0)
    script = Script("/app", "/app", "")
    with pytest.raises(HTTPError, match="uwsgi carries"):
        run(ask(connections, request, io, script, "/", Config(), RequestLimits()))
    assert request.body.finished and len(open_files(os.getpid())) == before
