"""ASGI: applications in this process, under every model (setting `asgi`)."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from support import web
from support.fork_server import PREFORKED
from support.proc import children
from support.server import MODELS, ROOT, Server, Start, wait_until
from support.wire import read_all

from ewe.config.settings import Config
from ewe.features.asgi import file_response, of_request
from ewe.gateway.asgi import (
    DISCONNECT,
    MAX_QUEUED_BYTES,
    Application,
    ApplicationCall,
    ApplicationHead,
    ClientLeft,
    StartupFailed,
    is_because_client_left,
    parsed_fields,
)
from ewe.http.messages import Request
from ewe.streams.base import TURN_BYTES

SUPPORT = ROOT / "tests" / "support"
LIVE = [model for model in MODELS if model != "fork"]  # their processes outlive a connection


@pytest.fixture
def notes(tmp_path: Path) -> Callable[[], list[str]]:
    """Return a function that returns the lines that the applications noted."""
    file = tmp_path / "notes"
    return lambda: file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def bare(start: Start, tmp_path: Path) -> Callable[..., Server]:
    """Return a function that serves the applications of support/asgi_apps.py below /bare."""
    shutil.copy(SUPPORT / "asgi_apps.py", tmp_path)

    def serve(model: str, *options: str) -> Server:
        return start(model, "--asgi", "/bare=asgi_apps:bare", *options)

    return serve


def get(path: str, method: str = "GET", fields: str = "") -> bytes:
    """Return a request for a page of the application."""
    return f"{method} /bare/{path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n".encode()


def test_a_scope_says_all_of_a_request(bare: Callable[..., Server], model_or_loop: str) -> None:
    server = bare(model_or_loop)
    expected = {
        "path": "/bare/show/a bé",
        "raw_path": "/bare/show/a%20b%C3%A9",
        "query_string": "x=%20&y",
        "root_path": "/bare",
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "http_version": "1.1",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "server": ["127.0.0.1", server.port],
    }
    with web.Client(base_url=server.url) as client:
        scope = client.get("bare/show/a%20b%C3%A9?x=%20&y", headers={"X-Two": "é".encode("latin-1")}).json()
        assert {name: scope[name] for name in expected} == expected
        assert ["x-two", "é"] in scope["headers"] and ["host", f"127.0.0.1:{server.port}"] in scope["headers"]
        assert scope["client"][0] == "127.0.0.1" and scope["client"][1] > 0
        assert "http.response.pathsend" in scope["extensions"]
        assert client.get("bare/show").json()["query_string"] == ""
        assert client.get("barely/show").status_code == 404
        assert "welcome" in client.get("").text
    for target, raw in ((b"http://h/bare/show?q", "/bare/show"), (b"/bare/show/%ff", "/bare/show/%ff")):
        said = server.ask(b"GET " + target + b" HTTP/1.0\r\nHost: h\r\n\r\n").partition(b"\r\n\r\n")[2]
        shown = httpx.Response(200, content=said).json()
        assert (shown["raw_path"], shown["http_version"]) == (raw, "1.0"), target
        assert shown["path"] in ("/bare/show", "/bare/show/\N{REPLACEMENT CHARACTER}"), target


@pytest.mark.parametrize(
    ("target", "raw"),
    [("/a%20b?/c", b"/a%20b"), ("http://h/a?x", b"/a"), ("http://h?x=/foo", b"/"), ("http://h", b"/")],
)
def test_the_raw_path_is_that_of_the_target(target: str, raw: bytes) -> None:
    assert of_request(Request("GET", target, (1, 1)), {})["raw_path"] == raw


def test_bodies_in_and_out(bare: Callable[..., Server], model_or_loop: str) -> None:
    server = bare(model_or_loop)
    body = bytes(range(256)) * 4000
    with web.Client(base_url=server.url, timeout=30) as client:
        for _ in range(2):  # on one connection
            answer = client.post("bare/echo", content=body[:50_000])
            assert answer.content == body[:50_000]
            answer = client.post("bare/echo", content=iter([body[:7], body[7:70_000], body[70_000:]]))
            assert answer.content == body
            answer = client.post("bare/echo", content=body)
            assert answer.content == body and answer.headers["transfer-encoding"] == "chunked"
            assert client.post("bare/echo", content=b"").content == b""
            assert client.get("bare/echo").content == b""
        head = client.head("bare/show")
        assert (head.content, head.headers["content-length"]) == (
            b"", str(len(client.get("bare/show").content) + 1),
        )  # fmt: skip
        assert client.head("bare/pour?3").headers["content-length"] == str(3 << 20)
        assert client.head("bare/pour?-1").status_code == 200
        assert len(client.get("bare/pour?3").content) == 3 << 20
        assert client.get("bare/empty").status_code == 204
        assert client.get("bare/twice").text == "RuntimeError RuntimeError ValueError taken RuntimeError"
    asked = get("echo", "POST", "Expect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n")
    with server.connect() as sock:
        sock.sendall(asked)
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"ab")
        assert read_all(sock).startswith(b"HTTP/1.1 200 OK\r\n")


def test_pipelined_requests_are_answered_in_order(bare: Callable[..., Server], model_or_loop: str) -> None:
    server = bare(model_or_loop)
    many = b"".join(get(f"show/{number}") for number in range(300)) + get(
        "show/end", "GET", "Connection: close\r\n"
    )
    with server.connect(60) as sock:
        sock.sendall(many)
        said = read_all(sock)
    assert [said.find(b'"/bare/show/%d"' % number) for number in range(300)] == sorted(
        said.find(b'"/bare/show/%d"' % number) for number in range(300)
    )
    assert said.count(b"HTTP/1.1 200 OK") == 301


def test_a_piece_reaches_the_client_before_the_next_is_made(
    bare: Callable[..., Server], tmp_path: Path, model_or_loop: str
) -> None:
    with bare(model_or_loop).connect() as sock:
        sock.sendall(get("trickle", "GET", "Connection: close\r\n"))
        said = b""
        while b"first\n" not in said:
            said += sock.recv(1000)
        assert b"second" not in said
        (tmp_path / "go").touch()
        assert b"second\n" in read_all(sock)


def test_a_client_sends_piece_by_piece_and_reads_the_echo(
    bare: Callable[..., Server], model_or_loop: str
) -> None:
    with bare(model_or_loop).connect() as sock:
        sock.sendall(get("echo", "POST", "Content-Length: 5\r\nConnection: close\r\n"))
        said = b""
        for letter in (b"A", b"B", b"C", b"D"):
            sock.sendall(letter)
            while b"1\r\n" + letter not in said:
                said += sock.recv(1000)
        sock.sendall(b"E")
        assert read_all(sock).endswith(b"E\r\n0\r\n\r\n")


def test_a_client_that_leaves_is_reported(
    bare: Callable[..., Server], notes: Callable[[], list[str]], model_or_loop: str
) -> None:
    server = bare(model_or_loop)
    with server.connect() as sock:
        sock.sendall(get("silent"))
        wait_until(lambda: "waits" in notes(), 20)
    wait_until(lambda: "disconnect" in notes(), 20)
    with server.connect() as sock:
        sock.sendall(get("pour?64"))
        sock.recv(1 << 20)
    wait_until(lambda: any(line.startswith("left ") for line in notes()), 20, lambda: f"{notes()}")
    [left] = [int(line.split()[1]) for line in notes() if line.startswith("left ")]
    assert left < 48 << 20, "a client that does not read slows the application down"
    assert b"200 OK" in server.ask(get("show"))
    assert "Traceback" not in server.log()


def test_an_exchange_without_a_body_is_over_with_its_head(
    bare: Callable[..., Server], notes: Callable[[], list[str]], model_or_loop: str
) -> None:
    """The connection stays open, and no application waits for its end."""
    server = bare(model_or_loop)
    with web.Client(base_url=server.url, timeout=30) as client:
        assert client.head("bare/listen?200").status_code == 200
        assert client.get("bare/listen?204").status_code == 204
        assert client.get("bare/listen?205").headers["content-length"] == "0"
        wait_until(lambda: notes().count("over") == 3, 20, lambda: f"{notes()}")
        # The length would be that of GET's body, which is not known here
        assert "content-length" not in client.head("bare/bodiless").headers
        assert client.get("bare/bodiless").content == b"body"
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("model", MODELS)
def test_large_bodies_need_little_memory(bare: Callable[..., Server], model: str) -> None:
    size = 96  # MB: more than the memory may grow by
    server = bare(model)
    piece = bytes(1 << 20)
    with web.Client(base_url=server.url, timeout=60) as client:
        before = int(client.post("bare/count", content=b"x").text.split()[1])
        answer = client.post("bare/count", content=(piece for _ in range(size)))
        counted, after = map(int, answer.text.split())
        assert counted == size << 20
        with client.stream("GET", f"bare/pour?-{size}") as stream:
            assert sum(len(part) for part in stream.iter_raw(1 << 20)) == size << 20
        last = int(client.post("bare/count", content=b"x").text.split()[1])
    assert max(after, last) - before < 64 << 10, "kilobytes"


@pytest.mark.parametrize("model", ["asyncio", "asyncio --loop asyncio", "thread"])
def test_fifty_requests_at_once(bare: Callable[..., Server], model: str) -> None:
    server = bare(model)
    socks = [server.connect(60) for _ in range(50)]
    try:
        for sock in socks:
            sock.sendall(get("sleep?50", "GET", "Connection: close\r\n"))
        assert all(read_all(sock).endswith(b"slept") for sock in socks)
    finally:
        for sock in socks:
            sock.close()


def test_faults(bare: Callable[..., Server], model_or_loop: str) -> None:
    server = bare(model_or_loop)
    for page in ("before", "head", "nothing", "split", "exit"):
        said = server.ask(get(page))
        assert said.startswith(b"HTTP/1.1 500 ") and b"Traceback" not in said, page
    within = server.ask(get("within"))
    assert b"200 OK" in within and within.endswith(b"4\r\nhalf\r\n"), "cut: the last chunk is missing"
    log = server.wait_for_log("aborted after 4 bytes")
    for text in ("a fault <before> the head", "a fault at the head", "a fault within the body",
                 "without a complete response", "may not end the server"):  # fmt: skip
        assert text in log
    assert b"200 OK" in server.ask(get("show"))


def test_a_head_that_is_remembered_means_the_same() -> None:
    def head(headers: object) -> tuple[object, object]:
        made = ApplicationHead({"type": "http.response.start", "status": 200, "headers": headers})
        return made.fields, made.length

    for _ in range(2):
        assert head([(b"X-A", b"1"), (b"Content-Length", b"5"), (b"Date", b"x")]) == ((("X-A", "1"),), 5)
        assert head([[b"X-A", bytearray(b"2")]]) == ((("X-A", "2"),), None)
        assert head(iter([(b"Set-Cookie", b"a" * 100_000)])) == ((("Set-Cookie", "a" * 100_000),), None)
        with pytest.raises(ValueError, match="Content-Length is b'-5'"):
            head([(b"Content-Length", b"-5")])


def test_names_count_for_the_size_of_a_remembered_head() -> None:
    parsed_fields.cache_clear()
    ApplicationHead({"status": 200, "headers": [(b"X" * 100_000, b"")]})
    assert parsed_fields.cache_info().currsize == 0


async def made_call() -> ApplicationCall:
    """Return a call whose application has got the whole request."""

    async def program(scope: Any, receive: Any, send: Any) -> None: ...

    channel: Any = SimpleNamespace(
        loop=asyncio.get_running_loop(), post=lambda item: None, post_soon=lambda item: None
    )
    call = ApplicationCall(Application("m:a", program, 1.0), Request("GET", "/", (1, 1)), {}, channel)
    assert (await call.receive())["type"] == "http.request"
    return call


def test_a_task_that_gives_up_does_not_end_the_wait_of_another() -> None:
    """For example: one task waits until the client leaves, and another asks for a moment whether it has left."""

    async def scenario() -> Any:
        call = await made_call()
        first, second = (asyncio.ensure_future(call.receive()) for _ in range(2))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        call.leave()
        return await first

    assert asyncio.run(scenario()) == DISCONNECT


def test_long_pieces_are_sent_without_a_round_of_the_loop_up_to_a_turn() -> None:
    """The conversation takes each piece at once. After TURN_BYTES the application waits, and others have a turn."""
    posted: list[str] = []

    async def scenario() -> None:
        call = await made_call()

        def take(item: Any) -> None:
            posted.append("at once")
            call.count_taken(call.unsent_bytes)

        call.channel.post, call.channel.post_soon = take, lambda item: posted.append("soon")
        await call.send({"type": "http.response.start", "status": 200})
        piece = {"type": "http.response.body", "body": bytes(MAX_QUEUED_BYTES), "more_body": True}
        sender = asyncio.ensure_future(send_for_ever(call, piece))
        await asyncio.sleep(0)
        assert posted[-1] == "soon"
        assert (
            TURN_BYTES // len(piece["body"]) - 1
            <= posted.count("at once")
            <= TURN_BYTES // len(piece["body"])
        )
        sender.cancel()

    asyncio.run(scenario())


async def send_for_ever(call: ApplicationCall, piece: dict[str, Any]) -> None:
    """Send a piece again and again."""
    while True:
        await call.send(piece)


def caused_by(reason: Exception) -> Exception:
    """Return another exception, which was raised because of this one."""
    other = RuntimeError()
    other.__cause__ = reason
    return other


def test_a_client_that_leaves_while_a_long_piece_is_sent_ends_the_send() -> None:
    async def scenario() -> None:
        call = await made_call()
        call.channel.post = lambda item: call.leave()
        await call.send({"type": "http.response.start", "status": 200})
        piece = {"type": "http.response.body", "body": bytes(MAX_QUEUED_BYTES), "more_body": True}
        with pytest.raises(ClientLeft):
            await asyncio.wait_for(call.send(piece), 5)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("reason", "is_because"),
    [
        (ClientLeft(), True),
        (caused_by(ClientLeft()), True),
        (OSError(), False),
        (ExceptionGroup("", [ClientLeft(), caused_by(ClientLeft())]), True),
        (ExceptionGroup("", [ExceptionGroup("", [ClientLeft()])]), True),
        (ExceptionGroup("", [ClientLeft(), OSError()]), False),
    ],
)
def test_an_exception_that_follows_from_a_client_that_left_is_no_fault(
    reason: Exception, is_because: bool
) -> None:
    """A TaskGroup raises the exceptions of its tasks as a group."""
    assert is_because_client_left(reason) == is_because


def test_two_tasks_that_wait_for_room_both_go_on() -> None:
    async def scenario() -> None:
        call = await made_call()
        await call.send({"type": "http.response.start", "status": 200})
        piece = {"type": "http.response.body", "body": bytes(MAX_QUEUED_BYTES), "more_body": True}
        senders = [asyncio.ensure_future(call.send(piece)) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(each.done() for each in senders)
        call.count_taken(call.unsent_bytes)
        await asyncio.wait_for(asyncio.gather(*senders), 30)

    asyncio.run(scenario())


def test_a_startup_that_fails_does_not_forget_the_next_one() -> None:
    """A request of the first startup may learn of its failure after another request has begun the next one."""

    async def program(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(3600)

    async def scenario() -> None:
        application = Application("m:a", program, 1.0)
        failing = asyncio.ensure_future(application.start())
        await asyncio.sleep(0)
        first: Any = application.lifespan
        application.lifespan = None
        starting = asyncio.ensure_future(application.start())
        await asyncio.sleep(0)
        second: Any = application.lifespan
        first.failure = "no database"
        first.started.set()
        with pytest.raises(StartupFailed, match="no database"):
            await failing
        assert application.lifespan is second is not first
        for each in (starting, first.task, second.task):
            each.cancel()

    asyncio.run(scenario())


def test_lengths_are_checked(bare: Callable[..., Server], model_or_loop: str) -> None:
    server = bare(model_or_loop)
    assert server.ask(get("wrong?4")).endswith(b"\r\n\r\nfour")
    for query in ("3", "3-"):
        assert server.ask(get(f"wrong?{query}")).endswith(b"\r\n\r\nfou")
    for query in ("9", "9-"):
        said = server.ask(get(f"wrong?{query}"))
        assert b"Content-Length: 9\r\n" in said and said.endswith(b"\r\n\r\nfour")
    assert server.ask(get("wrong?9", "HEAD")).endswith(b"\r\n\r\n")
    assert server.ask(get("wrong?x")).startswith(b"HTTP/1.1 500 ")
    log = server.wait_for_log("Content-Length is 9")
    assert "more than the 3 bytes of its Content-Length" in log


def test_a_traceback_in_the_page(bare: Callable[..., Server], model: str) -> None:
    server = bare(model, "--development")
    said = server.ask(get("before"))
    assert (
        b"500" in said and b"ValueError: a fault &lt;before&gt; the head" in said and b"asgi_apps.py" in said
    )
    assert server.ask(get("within")).endswith(b"4\r\nhalf\r\n")


def test_an_application_that_is_silent(
    bare: Callable[..., Server], notes: Callable[[], list[str]], model: str
) -> None:
    server = bare(model, "--program-timeout", "0.3s")
    with server.connect() as sock:  # open, so that the wait is for the application
        sock.sendall(get("silent", "GET", "Connection: close\r\n"))
        assert b" 504 " in read_all(sock)
    with server.connect() as sock:
        sock.sendall(get("trickle"))
        said = read_all(sock)
        assert b"first" in said and not said.endswith(b"0\r\n\r\n")


def test_a_file_that_the_application_names(
    bare: Callable[..., Server], tmp_path: Path, model_or_loop: str
) -> None:
    body = os.urandom(3 << 20)
    server = bare(model_or_loop)
    assert server.ask(get("file")).startswith(b"HTTP/1.1 500 ")
    (tmp_path / "big").write_bytes(body)
    answer = web.get(server.url + "bare/file")
    assert answer.content == body and answer.headers["content-length"] == str(len(body))
    assert web.head(server.url + "bare/file").headers["content-length"] == str(len(body))


def test_a_file_for_which_no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error goes on to the conversation, which answers 503; the application is not at fault."""
    head = ApplicationHead({"status": 200})
    head.path = "/dev/null"

    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", none_left)
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        file_response(head, "app:app")


def test_work_after_the_response(
    bare: Callable[..., Server], notes: Callable[[], list[str]], model_or_loop: str
) -> None:
    server = bare(model_or_loop)
    assert server.ask(get("later")).endswith(b"now")
    assert server.stop() == 0, server.log()  # it is not cut by a stop
    assert "later" in notes()


@pytest.mark.parametrize("variant", [*LIVE, "thread --workers 2", "asyncio --workers 2"])
def test_lifespan(bare: Callable[..., Server], notes: Callable[[], list[str]], variant: str) -> None:
    server = bare(variant, "--asgi", "/again=asgi_apps:bare")
    workers = PREFORKED if variant == "prefork" else 2 if "2" in variant else 1
    wait_until(lambda: len(notes()) == workers, 20)
    assert all(line.startswith("up ") for line in notes()), "once in each process, before the first request"
    seen = [server.ask(get("state")).partition(b"\r\n\r\n")[2].split() for _ in range(3)]
    assert all(same == b"True" and mine == b"1" for same, _, mine in seen), "a copy of the state each"
    if workers == 1:
        assert [total for _, total, _ in seen] == [b"1", b"2", b"3"]
    assert server.stop() == 0, server.log()
    assert sorted(line.replace("down", "up") for line in notes()[workers:]) == sorted(notes()[:workers])
    assert len(notes()) == 2 * workers


def test_lifespan_under_fork(bare: Callable[..., Server], notes: Callable[[], list[str]]) -> None:
    server = bare("fork")
    assert notes() == []
    for number in (1, 2):
        assert b"True 1 1" in server.ask(get("state"))
        wait_until(lambda number=number: len(notes()) == 2 * number, 20)  # type: ignore[misc]
    up, down, up_again, _ = notes()
    assert up.replace("up", "down") == down and up_again.startswith("up ") and up_again != up


@pytest.mark.parametrize("model", ["asyncio", "thread"])
def test_the_settings_are_read_again(
    bare: Callable[..., Server], notes: Callable[[], list[str]], tmp_path: Path, model: str
) -> None:
    """HUP starts a new worker, in which the application begins; the old one stops it."""
    (tmp_path / "ewe.toml").write_text("idle = 9\n")
    server = bare(model, "--config", str(tmp_path / "ewe.toml"))
    [before] = children(server.pid)
    assert b"True 1 1" in server.ask(get("state")) and b"True 2 1" in server.ask(get("state"))
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_log("applications were imported again: asgi_apps:bare")
    wait_until(lambda: before not in children(server.pid), 30, server.log)
    [after] = children(server.pid)
    assert b"True 1 1" in server.ask(get("state"))
    assert server.stop() == 0
    assert sorted(notes()) == sorted(f"{word} {pid}" for word in ("up", "down") for pid in (before, after))


def run(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Start ewe in the test's directory; return once it has ended."""
    (tmp_path / "htdocs").mkdir(exist_ok=True)
    shutil.copy(SUPPORT / "asgi_apps.py", tmp_path)
    return subprocess.run(
        [sys.executable, "-m", "ewe", "--port", "0", "--documentroot", "htdocs", *options],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=50,
    )  # fmt: skip


@pytest.mark.starts_processes
@pytest.mark.parametrize("model", LIVE)
def test_a_startup_that_fails_ends_the_server(tmp_path: Path, model: str) -> None:
    ended = run(tmp_path, "--model", model, "--asgi", "/=asgi_apps:failing")
    lines = [line for line in ended.stderr.splitlines() if "Ctrl-C" not in line]
    assert ended.returncode == 1, ended.stderr
    assert len(lines) == 1 and "'asgi_apps:failing' cannot start: OSError: no database (asgi)" in lines[0], (
        lines
    )


def test_a_startup_that_fails_under_fork(start: Start, tmp_path: Path) -> None:
    shutil.copy(SUPPORT / "asgi_apps.py", tmp_path)
    server = start("fork", "--asgi", "/=asgi_apps:failing")
    assert server.ask(b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 500 ")
    server.wait_for_log("cannot start: OSError: no database (asgi)")
    assert "Traceback" not in server.log()


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such:app", "ModuleNotFoundError: No module named 'no_such'"),
        ("asgi_apps:no_such", "AttributeError: module 'asgi_apps' has no attribute 'no_such'"),
        ("broken:app", "ZeroDivisionError: division by zero"),
        ("asgi_apps:TEXT", "is not callable, but list"),
    ],
)
def test_a_program_that_cannot_be_imported(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    ended = run(tmp_path, "--asgi", f"/={name}")
    assert ended.returncode == 1
    [line] = ended.stderr.splitlines()
    assert reason in line and name in line and line.endswith("(asgi)")


@pytest.mark.parametrize("text", ["app", "/app", "/app=a:", "app=a:b"])
def test_a_setting_that_names_no_program(text: str) -> None:
    with pytest.raises(ValueError, match="expected a path, = and an application"):
        Config(asgi=[text])


@pytest.mark.parametrize("model", ["asyncio", "thread", "prefork"])
def test_a_stop_during_the_startup(
    tmp_path: Path, start: Start, notes: Callable[[], list[str]], model: str
) -> None:
    shutil.copy(SUPPORT / "asgi_apps.py", tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "ewe", "--model", model, "--port", "0", "--documentroot", "htdocs",
         "--asgi", "/=asgi_apps:hanging", "--grace", "5s"],
        stderr=subprocess.DEVNULL, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        wait_until(lambda: "starts" in notes(), 30)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_a_shutdown_that_does_not_end(
    start: Start, tmp_path: Path, notes: Callable[[], list[str]], model: str
) -> None:
    shutil.copy(SUPPORT / "asgi_apps.py", tmp_path)
    server = start(model, "--asgi", "/=asgi_apps:stubborn", "--grace", "0.3s")
    assert server.ask(b"GET / HTTP/1.0\r\n\r\n").endswith(b"here")
    server.stop(seconds=30)
    assert "stays" in notes()
    assert "its shutdown is aborted by the stop" in server.log()


def test_over_tls(bare: Callable[..., Server], model: str) -> None:
    server = bare(model, "--tls", "self")
    with web.Client(base_url=server.url.replace("http:", "https:"), verify=False) as client:
        assert client.get("bare/show").json()["scheme"] == "https"
        assert client.post("bare/echo", content=bytes(100_000)).content == bytes(100_000)


def test_over_a_unix_socket(bare: Callable[..., Server], tmp_path: Path, model: str) -> None:
    path = tmp_path / "s"
    bare(model, "--bind", f"unix:{path}", "--bind", "127.0.0.1:0")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        sock.sendall(get("show", "GET", "Connection: close\r\n"))
        said = read_all(sock)
    assert b'"client": null' in said and b", null]" in said.partition(b'"server": [')[2]


@pytest.fixture(params=[*MODELS, "asyncio --loop asyncio", "pool --parking never"])
def frameworks(request: pytest.FixtureRequest, start: Start, tmp_path: Path) -> Server:
    """A server of each model with an application of Starlette and one of FastAPI."""
    shutil.copy(SUPPORT / "framework_apps.py", tmp_path)
    applications = ("--asgi", "/star=framework_apps:star", "--asgi", "/fast=framework_apps:fast")
    return start(request.param, *applications)


def starlette_answers(client: httpx.Client, base: str) -> None:
    """Pages, forms, files and faults of the application of Starlette."""
    home = client.get("star/")
    assert home.json() == {"user": f"{base}star/user/ada", "row": "row", "at": "/star/"}, home.text
    assert home.headers["x-middleware"] == "was here"
    texts = {"user/bob": "hello bob", "numbers": "0\n1\n2\n3\n4\n", "task": "soon"}
    assert {path: client.get(f"star/{path}").text for path in texts} == texts
    sent = client.post("star/upload", content=bytes(300_000), headers={"content-type": "a/b"})
    assert sent.json() == {"size": 300_000, "type": "a/b"}
    form = client.post("star/form", json={"a": 1}, headers={"cookie": "name=bob"})
    assert (form.status_code, form.json()) == (201, {"sent": {"a": 1}, "cookie": "bob"})
    assert dict(form.cookies) == {"name": "ada", "again": "two"}
    code = (SUPPORT / "framework_apps.py").read_bytes()
    for path in ("source", "static/framework_apps.py"):
        assert client.get(f"star/{path}").content == code, path
    part = client.get("star/source", headers={"range": "bytes=3-9"})
    assert (part.status_code, part.content) == (206, code[3:10])
    assert client.get("star/move").headers["location"] == f"{base}star/"
    statuses = {"GET star/nowhere": 404, "PUT star/form": 405, "GET star/fault": 500}
    assert {line: client.request(*line.split()).status_code for line in statuses} == statuses


def fastapi_answers(client: httpx.Client) -> None:
    """Items, validation, documents and faults of the application of FastAPI."""
    assert client.get("fast/items/5?q=x").json() == {"number": 5, "q": "x", "row": "row"}
    assert client.get("fast/items/404").json() == {"detail": "no such item"}
    made = client.post("fast/items", json={"name": "tea", "price": 2.5})
    assert (made.status_code, made.json()) == (201, {"name": "tea", "price": 2.5, "session": "session"})
    assert client.post("fast/items", json={"name": "tea"}).status_code == 422
    assert client.get("fast/openapi.json").json()["servers"] == [{"url": "/fast"}]
    assert "swagger" in client.get("fast/docs").text
    statuses = {"fast/items/five": 422, "fast/fault": 500}
    assert {path: client.get(path).status_code for path in statuses} == statuses


@pytest.mark.needs("fastapi")
def test_starlette_and_fastapi(frameworks: Server, tmp_path: Path) -> None:
    with web.Client(base_url=frameworks.url, timeout=30) as client:
        starlette_answers(client, frameworks.url)
        wait_until((tmp_path / "done").exists, 20, "the task of Starlette did not run")
        fastapi_answers(client)
    frameworks.wait_for_log("ValueError: a fault in Starlette")
    frameworks.wait_for_log("ValueError: a fault in FastAPI")
    assert frameworks.stop() == 0, frameworks.log()
    assert (tmp_path / "closed").exists()


def test_a_websocket_is_answered_with_501(bare: Callable[..., Server], model_or_loop: str) -> None:
    server = bare(model_or_loop)
    websocket = "Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\n"
    assert server.ask(get("ws", fields=websocket)).startswith(b"HTTP/1.1 501 ")
    log = server.wait_for_log(
        "asgi_apps:bare was asked for a WebSocket, which --asgi has not: run it in a server"
    )
    assert log.count("WebSocket") == 1 and "behind --proxy (docs/proxy.md)" in log
    for fields in ("Upgrade: websocket\r\n", "Connection: Upgrade\r\nUpgrade: h2c\r\n"):
        assert server.ask(get("show", fields=fields)).startswith(b"HTTP/1.1 200 "), fields
