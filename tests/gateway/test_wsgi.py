"""WSGI applications in the server: PEP 3333 under every model, faults, clients that leave, large bodies."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from support import web
from support.memory import MemoryStream
from support.server import ROOT, Server, Start, wait_until
from support.wire import read_all, read_response, reset
from support.wsgi_apps import FAULTS, MEGABYTE

from ewe.config.settings import Config
from ewe.features.content_cache import Cached
from ewe.features.wsgi import Blocks, Finishing
from ewe.gateway.content_cache import ContentCache
from ewe.gateway.wsgi import ErrorStream, FileWrapper, Invocation, checked_head, constant_environ
from ewe.http.messages import Request, Response, Source
from ewe.sites import make_site
from ewe.streams.blocking import run

APPLICATIONS = ROOT / "tests" / "support" / "wsgi_apps.py"
StartApps = Callable[..., Server]


@pytest.fixture
def start_apps(start: Start, tmp_path: Path) -> StartApps:
    """Return a function that starts ewe with applications: start_apps(model, "hello", "/there=echo", "--grace 1s").

    "hello" is mounted at /hello.
    """
    shutil.copy(APPLICATIONS, tmp_path / "apps.py")

    def start_with(model: str, *what: str) -> Server:
        options: list[str] = []
        for each in what:
            if each.startswith("--"):
                options += each.split()
            else:
                path, _, name = each.rpartition("=")
                options += ["--wsgi", f"{path or '/' + name}=apps:{name}"]
        return start(model, *options)

    return start_with


def closed(server: Server) -> list[str]:
    """Return the lines of the file closed.log."""
    file = server.root.parent / "closed.log"
    return file.read_text().splitlines() if file.exists() else []


ANSWERS = [  # a request and its body, and the status, the body and some fields of its response
    ("GET /hello", None, 200, "Hello, world\n", {"content-length": "13"}),
    ("HEAD /hello", None, 200, "", {"content-length": "13"}),
    ("GET /made", None, 200, "Hello, world\n", {}),
    ("GET /hello/below", None, 200, "Hello, world\n", {}),
    ("POST /echo", b"one\ntwo", 200, "one\ntwo", {"x-length": "7"}),
    ("POST /echo", [b"one\n", b"two"], 200, "one\ntwo", {"x-length": "7"}),  # in chunks
    ("GET /echo", None, 200, "", {"x-length": "none"}),
    ("GET /generator", None, 200, "one\ntwo\nthree\n", {"transfer-encoding": "chunked"}),
    ("GET /closing", None, 200, "short\n", {"content-length": None}),
    ("GET /recovering", None, 500, "recovered\n", {"x-error": "yes"}),
    ("HEAD /no_body", None, 200, "", {"content-length": "1234"}),
    ("GET /no_body?304 Not Modified", None, 304, "", {}),
    ("GET /no_body?204 No Content", None, 204, "", {}),
    ("GET /no_body?205 Reset Content", None, 205, "", {}),
    ("GET /no_body?201 Created", None, 201, "not to be sent", {}),
    ("POST /validated", b"one\ntwo\n\nthree", 200, "one|\n|two\n|\n|three", {}),
    ("GET /validated_blocks", None, 200, "written\none\ntwo\n", {}),
]
STATUSES = {
    "GET /hellos": 404, "GET /other": 404, "TRACE /hello": 405, "GET /validated": 200, "HEAD /validated": 200,
    "GET /logging": 200,
}  # fmt: skip


def test_the_contract(start_apps: StartApps, model: str) -> None:
    names = ("hello", "echo", "generator", "closing", "recovering", "no_body", "logging", "validated")
    server = start_apps(model, *names, "validated_blocks", "/made=make()")
    with web.Client(base_url=server.url) as client:
        for line, sent, *expected in ANSWERS:
            answer = client.request(
                *line.split(" ", 1), content=iter(sent) if isinstance(sent, list) else sent
            )
            fields = {name: answer.headers.get(name) for name in expected[-1]}
            assert [answer.status_code, answer.text, fields] == expected, line
        assert {line: client.request(*line.split()).status_code for line in STATUSES} == STATUSES
        assert "welcome" in client.get("/").text
        assert client.get("/recovering").reason_phrase == "Oops"
        body = os.urandom(3_000_000)
        assert client.put("/echo", content=body).content == body
    log = server.wait_for_log("not complete")
    lines = re.findall(r"error: apps:logging: (.*)", log)
    assert lines == ["a line, whole", "two", "more", "not complete"]
    assert log.count("error: ") == 4 + 3, log  # and a word of each `validated`
    wait_until(lambda: len(closed(server)) == 2, 20, lambda: f"{closed(server)}")
    assert closed(server) == ["closed generator", "closed short"]
    assert server.stop() == 0, server.log()


def test_http_1_0_gets_a_body_whose_end_is_the_close(start_apps: StartApps, model: str) -> None:
    server = start_apps(model, "generator", "hello")
    head, _, body = server.ask(b"GET /generator HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
    assert body == b"one\ntwo\nthree\n" and b"chunked" not in head and b"Content-Length" not in head
    head, _, body = server.ask(b"GET /hello HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
    assert body == b"Hello, world\n" and b"Content-Length: 13\r\n" in head


@pytest.mark.needs("OpenSSL")
def test_over_tls(start_apps: StartApps, model: str) -> None:
    server = start_apps(model, "variables", "echo", "much", "--tls self")
    with web.Client(timeout=20, base_url=f"https://127.0.0.1:{server.port}", verify=False) as client:
        text = client.get("/variables").text
        assert "HTTPS='on'\n" in text and "wsgi.url_scheme='https'\n" in text
        assert client.post("/echo", content=b"one\ntwo").text == "one\ntwo"
        assert len(client.get("/much").content) == 50 * len(MEGABYTE)


@pytest.mark.parametrize(
    ("options", "threads", "processes"),
    [
        ("serial", False, False),
        ("fork", False, True),
        ("prefork", False, True),
        ("prefork --workers 1", False, False),
        ("thread", True, False),
        ("thread --workers 2", True, True),
        ("pool", True, False),
        ("pool --threads 1", False, False),
        ("asyncio", True, False),
        ("asyncio --call-threads 1", False, False),
        ("asyncio --workers 2", True, True),
    ],
)
def test_environ(start_apps: StartApps, options: str, threads: bool, processes: bool) -> None:
    server = start_apps(options, "/a b=variables".replace(" ", "~"), "/=variables")
    request = (
        b"POST /a~b/%C3%A9t%C3%A9//x/?q=%20+1 HTTP/1.1\r\nHost: example.org:8000\r\nContent-Type: text/x\r\n"
        b"Content-Length: 2\r\nAuthorization: Basic abc\r\nProxy: evil\r\nX_Y: no\r\nX-Two: 1\r\nX-Two: 2\r\n"
        b"Cookie: a=1\r\nCookie: b=2\r\nConnection: close\r\n\r\nab"
    )
    text = server.ask(request).partition(b"\r\n\r\n")[2].decode()
    found = dict(line.split("=", 1) for line in text.splitlines())
    for name, value in {
        "REQUEST_METHOD": "POST", "SCRIPT_NAME": "/a~b", "PATH_INFO": "/\xc3\xa9t\xc3\xa9/x/",
        "QUERY_STRING": "q=%20+1", "SERVER_NAME": "example.org", "SERVER_PORT": str(server.port),
        "SERVER_PROTOCOL": "HTTP/1.1", "HTTP_HOST": "example.org:8000", "CONTENT_TYPE": "text/x",
        "CONTENT_LENGTH": "2", "REMOTE_ADDR": "127.0.0.1", "HTTP_AUTHORIZATION": "Basic abc",
        "HTTP_X_TWO": "1, 2", "HTTP_COOKIE": "a=1; b=2", "wsgi.url_scheme": "http", "wsgi.version": (1, 0),
        "wsgi.multithread": threads, "wsgi.multiprocess": processes, "wsgi.run_once": False,
    }.items():  # fmt: skip
        assert found[name] == repr(value), name
    assert not {"HTTP_PROXY", "HTTP_X_Y", "HTTP_CONTENT_TYPE", "HTTP_CONTENT_LENGTH"} & found.keys()
    text = server.ask(b"GET /else HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")[2].decode()
    found = dict(line.split("=", 1) for line in text.splitlines())
    assert (found["SCRIPT_NAME"], found["PATH_INFO"]) == ("''", "'/else'")
    assert not {"CONTENT_TYPE", "CONTENT_LENGTH", "HTTP_HOST"} & found.keys()


def test_faults(start_apps: StartApps, model: str) -> None:
    server = start_apps(model, "fault", "hello")
    with web.Client(base_url=server.url) as client:
        for count, kind in enumerate(FAULTS, 1):
            answer = client.get(f"/fault/{kind}")
            assert answer.status_code == 500, kind
            assert "on purpose" not in answer.text and "Traceback" not in answer.text
            assert server.log().count("Traceback (most recent call last)") == count, kind
        assert client.get("/fault/empty").text == ""
        assert client.get("/hello").text == "Hello, world\n"
    assert "'GET /fault/raise HTTP/1.1' from 127.0.0.1 failed" in server.log()
    assert "ZeroDivisionError: <on purpose>" in server.log()
    assert server.stop() == 0


def test_a_fault_is_shown_to_its_developer(start_apps: StartApps, model: str) -> None:
    server = start_apps(model, "fault", "--development")
    answer = web.get(server.url + "fault/raise")
    assert answer.status_code == 500
    assert "ZeroDivisionError: &lt;on purpose&gt;" in answer.text and "apps.py" in answer.text


@pytest.mark.parametrize("application", ["failing_later", "too_late"])
def test_a_fault_after_the_first_block_cuts_the_response(
    start_apps: StartApps, model: str, application: str
) -> None:
    server = start_apps(model, application, "hello")
    with pytest.raises(httpx.RemoteProtocolError):
        web.get(server.url + application)
    log = server.wait_for_log("aborted after 6 bytes")
    assert "Traceback" in log
    assert web.get(server.url + "hello").text == "Hello, world\n"
    if application == "failing_later":
        wait_until(lambda: closed(server) == ["closed failing"], 20)


def test_each_block_is_sent_before_the_next_one_is_there(
    start_apps: StartApps, model: str, tmp_path: Path
) -> None:
    server = start_apps(model, "stepwise")
    go_on = tmp_path / "go-on"
    with server.connect() as sock:
        sock.sendall(f"GET /stepwise?{go_on} HTTP/1.0\r\n\r\n".encode())
        data = b""
        while b"first\n" not in data:
            data += sock.recv(1000)
        assert b"second" not in data
        go_on.touch()
        assert read_all(sock) == b"second\n"


@pytest.mark.parametrize("leave", [reset, socket.socket.close])
def test_close_is_called_when_the_client_leaves(
    start_apps: StartApps, model: str, leave: Callable[[socket.socket], None]
) -> None:
    server = start_apps(model, "endless", "hello")
    sock = server.connect()
    sock.sendall(b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n")
    assert sock.recv(1000)
    leave(sock)
    wait_until(lambda: closed(server) == ["closed endless"], 20)
    assert web.get(server.url + "hello").text == "Hello, world\n"
    assert server.stop() == 0, server.log()


def test_close_is_not_called_within_a_block(start_apps: StartApps, model: str, tmp_path: Path) -> None:
    """Beside an event loop, ewe knows that the client has left while a thread still makes the next block."""
    server = start_apps(model, "held")
    go_on = tmp_path / "go-on"
    sock = server.connect()
    sock.sendall(f"GET /held?{go_on} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    wait_until(lambda: closed(server) == ["begun"], 20)
    reset(sock)
    time.sleep(0.3)
    go_on.touch()
    wait_until(lambda: len(closed(server)) == 3, 20)
    assert closed(server) == ["begun", "ended", "closed held"]
    assert server.stop() == 0 and "Traceback" not in server.log(), server.log()


def test_close_is_not_called_within_a_block_that_takes_too_long(
    start_apps: StartApps, tmp_path: Path
) -> None:
    server = start_apps("asyncio", "held", "--program-timeout 100ms")
    go_on = tmp_path / "go-on"
    with server.connect() as sock:
        sock.sendall(f"GET /held?{go_on} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert b"second" not in read_all(sock)  # aborted: the application was silent
    go_on.touch()
    wait_until(lambda: len(closed(server)) == 3, 20)
    assert closed(server) == ["begun", "ended", "closed held"]


def test_a_silent_application(start_apps: StartApps, model: str, tmp_path: Path) -> None:
    """An event loop answers while the application still runs, other models when it has returned."""
    server = start_apps(model, "waiting", "hello", "--program-timeout 100ms")
    go_on = tmp_path / "go-on"
    with server.connect(40) as sock:
        sock.sendall(f"GET /waiting?{go_on} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        if model != "asyncio":
            wait_until(lambda: closed(server) == ["begun"], 20)
            time.sleep(0.3)
            go_on.touch()
        assert read_response(sock)[0] == 504
        go_on.touch()
    server.wait_for_log("apps:waiting was silent for 0.1 s (program-timeout)")
    assert server.stop() == 0


@pytest.mark.parametrize("count", [0, 3, 200_000])
def test_write(start_apps: StartApps, model: str, count: int) -> None:
    server = start_apps(model, "writing", "writing_then_yielding")
    written = b"written: \n" * count
    answer = web.get(f"{server.url}writing?{count}")
    assert answer.content == written + b"returned\n"
    assert answer.headers["content-length"] == str(len(answer.content))
    assert web.get(f"{server.url}writing_then_yielding?{count}").content == written + b"yielded\nagain\n"


def test_files(start_apps: StartApps, model: str, tmp_path: Path) -> None:
    server = start_apps(model, "big_file", "gzip_file")
    file = tmp_path / "big"
    file.write_bytes(MEGABYTE * 5)
    with web.Client(base_url=server.url) as client:
        answer = client.get(f"/big_file?{file}")
        assert answer.content == (MEGABYTE * 5)[7:]
        assert answer.headers["content-length"] == str(len(answer.content))
        wait_until(lambda: closed(server) == ["closed FileWrapper"], 20)
        assert client.head(f"/big_file?{file}").headers["content-length"] == str(5 * len(MEGABYTE) - 7)
        wait_until(lambda: len(closed(server)) == 2, 20)
        assert client.get("/gzip_file").text == "plain text\n"
    assert server.stop() == 0, server.log()


def test_large_bodies_take_constant_memory(start_apps: StartApps, model: str) -> None:
    """50 MB in and out; the process that has served them never had more than a few MB more."""
    server = start_apps(model, "sums", "much")
    size, check, before = map(int, web.post(server.url + "sums", content=b"x").text.split())
    assert (size, check) == (1, zlib.crc32(b"x"))
    check = 0
    for _ in range(50):
        check = zlib.crc32(MEGABYTE, check)
    with web.stream("GET", server.url + "much", timeout=20) as answer:
        received = out = 0
        for piece in answer.iter_raw():
            received += len(piece)
            out = zlib.crc32(piece, out)
    assert (received, out) == (50 * len(MEGABYTE), check)
    for length in (str(50 * len(MEGABYTE)), None):
        headers = {"Content-Length": length} if length else {}
        answer = web.post(server.url + "sums", content=(MEGABYTE for _ in range(50)), headers=headers)
        found = [int(word) for word in answer.text.split()]
        assert found[:2] == [50 * len(MEGABYTE), check]
        assert found[2] - before < 30_000


def test_applications_beside_others(start_apps: StartApps, model: str, tmp_path: Path) -> None:
    """A shorter path leaves a longer one its requests, in any order; the working directory is on the path."""
    (tmp_path / "ewe.toml").write_text('wsgi = ["/=apps:hello", "/tools/echo=apps:echo"]\n')
    server = start_apps(model)
    with web.Client(base_url=server.url) as client:
        assert client.post("/tools/echo/x", content=b"sent").text == "sent"
        assert client.post("/tools/echoes", content=b"sent").text == "Hello, world\n"
        assert client.get("/").text == client.get("/any/where").text == "Hello, world\n"


@pytest.mark.parametrize(
    ("name", "source", "reason"),
    [
        ("no_such:app", "", "ModuleNotFoundError: No module named 'no_such' (wsgi)"),
        ("broken:app", "x = 1\n1 / 0\n", "ZeroDivisionError: division by zero, in {} line 2 (wsgi)"),
        ("broken:app", "import no_such\n", "No module named 'no_such', in {} line 1 (wsgi)"),
        ("broken:app", "def\n", "SyntaxError: invalid syntax"),
        ("broken:app", "raise SystemExit(4)\n", "SystemExit: 4, in {} line 1 (wsgi)"),
        ("broken:app", "", "AttributeError: module 'broken' has no attribute 'app' (wsgi)"),
        ("broken", "", "AttributeError: module 'broken' has no attribute 'application' (wsgi)"),
        ("broken:app", "app = 5\n", "is not callable, but int (wsgi)"),
        ("broken:app()", "def app(): raise OSError('a\\nb')\n", "OSError: a b, in {} line 1 (wsgi)"),
    ],
)
def test_an_application_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str, reason: str
) -> None:
    (tmp_path / "broken.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "broken", raising=False)
    with pytest.raises(ValueError) as caught:
        make_site(Config(documentroot=str(tmp_path), wsgi=[f"/a={name}"]))
    message = str(caught.value)
    assert reason.format(tmp_path / "broken.py") in message and message.endswith("(wsgi)")
    assert message.startswith(f"application {name!r} ") and "\n" not in message


@pytest.mark.parametrize(
    ("wsgi", "asgi", "said"),
    [
        (["/a=dis:dis"], ["/a/=ast:parse"], "/a/: dis:dis (wsgi) and ast:parse (asgi)"),
        (["/=dis:dis", "/=ast:parse"], [], "/: dis:dis (wsgi) and ast:parse (wsgi)"),
        ([], ["/a=dis:dis", "/a=ast:parse"], "/a: dis:dis (asgi) and ast:parse (asgi)"),
    ],
)
def test_two_applications_at_one_path(tmp_path: Path, wsgi: list[str], asgi: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"two applications at {said}: mount one elsewhere")):
        make_site(Config(documentroot=str(tmp_path), wsgi=wsgi, asgi=asgi))


def test_the_start_fails_with_one_line(start: Start, tmp_path: Path) -> None:
    with pytest.raises(
        AssertionError, match=r"it ended with 1:\s+ewe: application 'no_such:app' .*\(wsgi\)\s"
    ):
        start("thread", "--wsgi", "/=no_such:app")


@pytest.mark.parametrize(
    "text", ["app:a", "/a", "/a=", "/a=:b", "/a=b:", "/a=b:c(1)", "/a b=c:d", "/a=b-c:d"]
)
def test_a_setting_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected a path, = and an application"):
        Config(wsgi=[text])


def test_without_applications_nothing_is_loaded(start: Start) -> None:
    server = start("asyncio", env={"PYTHONPROFILEIMPORTTIME": "1"})
    log = server.log()
    assert "ewe.features.static" in log
    assert "ewe.features.wsgi" not in log and "ewe.gateway.wsgi" not in log


def test_a_head_is_checked() -> None:
    assert checked_head("200 OK", [("A", "b"), ("content-length", "3"), ("Date", "x")])[2:5] == (
        None, 3, (("A", "b"),),
    )  # fmt: skip
    assert checked_head("404", []).status == 404


def test_a_file_that_is_not_an_ordinary_one_is_iterated(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(writer)
    with open(reader, "rb") as pipe:
        assert FileWrapper(pipe).region() is None
    (tmp_path / "file").write_bytes(b"0123456789")
    with open(tmp_path / "file", "r+b") as file:
        file.seek(4)
        found = FileWrapper(file).region()
        assert found is not None and (found.offset, found.count) == (4, 6)
        assert list(FileWrapper(file, 4)) == [b"4567", b"89"]


def invocation(application: Callable[..., object], method: str = "GET") -> Invocation:
    """Return an invocation that has begun."""
    environ = {
        **constant_environ("", False, False),
        "wsgi.input": open(os.devnull, "rb"),
        "wsgi.errors": ErrorStream("a"),
    }
    run = Invocation(application, {**environ, "REQUEST_METHOD": method}, "a", 10)  # type: ignore[arg-type]
    run.begin()
    return run


@pytest.mark.parametrize(
    ("length", "method", "body"),
    [("3", "GET", b"abc"), ("0", "GET", b""), ("9", "HEAD", b"abcd"), ("4", "GET", b"abcd")],
)
def test_a_body_is_as_long_as_its_content_length(length: str, method: str, body: bytes) -> None:
    def application(environ: object, start_response: Callable[..., object]) -> list[bytes]:
        start_response("200 OK", [("Content-Length", length)])
        return [b"ab", b"cd"]

    run = invocation(application, method)
    assert (run.body, run.length, run.fault) == (body, int(length), "")


@pytest.mark.parametrize("written", [b"short", b"more than the ten bytes that stay in memory"])
@pytest.mark.parametrize("blocks", [[], [b""], [b"block"], [b"block", b"block"]])
def test_a_generator_may_write(written: bytes, blocks: list[bytes]) -> None:
    """It runs when its first block is asked for."""

    def application(environ: object, start_response: Callable[..., Any]) -> Iterator[bytes]:
        start_response("200 OK", [])(written)
        yield from blocks

    run = invocation(application)
    if run.body is None:  # the blocks come one by one
        run.body = b"".join(iter(run.more, b""))
    parts = (run.body,) if isinstance(run.body, bytes) else run.body
    body = b"".join(part if isinstance(part, bytes) else os.pread(part.file, part.count, 0) for part in parts)
    run.finish()
    assert body == written + b"".join(blocks)


def test_what_a_generator_writes_after_its_first_block_is_a_fault() -> None:
    """It cannot precede the block: without a fault, the client would take the rest for the whole body."""

    def application(environ: object, start_response: Callable[..., Any]) -> Iterator[bytes]:
        write = start_response("200 OK", [])
        yield b"one"
        write(b"two")
        yield b"three"

    run = invocation(application)
    assert b"".join(iter(run.more, b"")) == b"one"
    assert "write() was called after the first block" in run.fault


def test_a_205_has_no_content() -> None:
    def application(environ: object, start_response: Callable[..., object]) -> Iterator[bytes]:
        start_response("205 Reset Content", [])
        return iter([b"ab", b"cd"])

    run = invocation(application)
    assert (run.body, run.length) == (b"", 0)


def test_write_after_the_response_writes_into_no_other_file(tmp_path: Path) -> None:
    """A file that is opened later may get the number of the closed one."""
    kept: list[Callable[[bytes], None]] = []

    def application(environ: object, start_response: Callable[..., Any]) -> list[bytes]:
        kept.append(start_response("200 OK", []))
        kept[0](b"more than the ten bytes that stay in memory")
        return []

    run = invocation(application)
    number = run.file
    run.finish()
    with open(tmp_path / "other", "wb") as other:
        os.dup2(other.fileno(), number)
        with pytest.raises(ValueError, match="after the response"):
            kept[0](b"late")
        os.close(number)
    assert (tmp_path / "other").read_bytes() == b""


def test_a_part_of_a_file_is_as_long_as_its_content_length(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")

    def application(environ: dict[str, object], start_response: Callable[..., object]) -> FileWrapper:
        start_response("200 OK", [("Content-Length", "6")])
        return FileWrapper(open(tmp_path / "file", "rb"))

    run = invocation(application)
    assert isinstance(run.body, tuple) and [piece.count for piece in run.body] == [6]  # type: ignore[union-attr]
    run.finish()


def test_finish_is_called_once() -> None:
    count: list[int] = []

    class Blocks(list):  # type: ignore[type-arg]
        def close(self) -> None:
            count.append(1)

    def application(environ: object, start_response: Callable[..., object]) -> Blocks:
        start_response("200 OK", [])
        return Blocks([b"a"])

    run = invocation(application)
    assert (run.body, run.finished, count) == (b"a", False, [])
    run.finish()
    run.finish()
    assert count == [1] and run.input.closed


def test_pipelined_requests_keep_their_order(start_apps: StartApps, model: str) -> None:
    server = start_apps(model, "echo", "closing")
    with server.connect() as sock:
        post = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n%d"
        get = b"GET /closing HTTP/1.1\r\nHost: a\r\n\r\n"
        sock.sendall(b"".join(post % number + get for number in range(9)))
        for number in range(9):
            assert read_response(sock)[-1] == b"%d" % number
            assert read_response(sock)[-1] == b"short\n"


def test_a_stop_lets_a_call_end(start_apps: StartApps, model: str, tmp_path: Path) -> None:
    server = start_apps(model, "waiting")
    go_on = tmp_path / "go-on"
    with server.connect(40) as sock:
        sock.sendall(f"GET /waiting?{go_on} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        wait_until(lambda: closed(server) == ["begun"], 20)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(OSError):  # it accepts no more, so the stop has begun
            while True:
                server.connect(1).close()
        go_on.touch()
        assert read_response(sock)[-1] == b"late\n"
    assert server.process.wait(30) == 0, server.log()


def test_a_stop_waits_for_a_call_whose_client_has_left(
    start_apps: StartApps, model: str, tmp_path: Path
) -> None:
    server = start_apps(model, "waiting")
    go_on = tmp_path / "go-on"
    sock = server.connect()
    sock.sendall(f"GET /waiting?{go_on} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    wait_until(lambda: closed(server) == ["begun"], 20)
    reset(sock)
    server.process.send_signal(signal.SIGTERM)
    with pytest.raises(OSError):
        while True:
            server.connect(1).close()
    time.sleep(0.3)
    go_on.touch()
    assert server.process.wait(30) == 0, server.log()
    assert closed(server) == ["begun", "closed waiting"]


def test_a_stop_ends_a_call_that_does_not_end(start_apps: StartApps, model: str, tmp_path: Path) -> None:
    server = start_apps(model, "waiting", "--grace 300ms")
    with server.connect(40) as sock:
        sock.sendall(f"GET /waiting?{tmp_path / 'never'} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        wait_until(lambda: closed(server) == ["begun"], 20)
        assert server.stop() == 4, server.log()


def test_the_end_of_a_response_releases_the_body_of_a_cache() -> None:
    """The content cache replaces the body of a response, and others wait until this body is closed."""

    def application(environ: object, start_response: Callable[..., object]) -> Iterator[bytes]:
        start_response("200 OK", [("Cache-Control", "max-age=9")])
        yield from (b"a", b"b")

    call = invocation(application)
    io = MemoryStream([])
    feature = SimpleNamespace(timeout_s=math.inf, name="app:app")

    class Application:
        async def respond(self, request: Request, io: object) -> Response:
            assert call.head is not None
            response = Finishing(200, call.head.fields, Blocks(feature, call, io))  # type: ignore[arg-type]
            response.invocation, response.io = call, io  # type: ignore[assignment]
            return response

    cache = ContentCache(1 << 20)
    request = Request("GET", "/", (1, 1), host="ewe")
    response = run(Cached(Application(), cache).respond(request, io))
    assert response is not None and isinstance(response.body, Source) and cache.in_flight
    assert run(response.body.receive()) == b"a"
    run(response.close())  # the client has left
    assert not cache.in_flight and call.finished
