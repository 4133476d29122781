"""LibCGI in place, under every model: the paper's contract, faults, replaced files, long bodies."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support import web
from support.cgi_heads import BAD_HEADS
from support.examples import examples
from support.libcgi_libraries import compile_libraries, install
from support.memory import MemoryStream
from support.proc import session_members
from support.server import MODELS, Server, Start, run_command, wait_until
from support.wire import read_all

from ewe.config.settings import Config
from ewe.features.libcgi import in_process
from ewe.features.libcgi.libraries import Libraries, LibraryState
from ewe.gateway.spool import Spooled
from ewe.http.limits import RequestLimits
from ewe.http.messages import BodyReader, Request
from ewe.http.status import HTTPError
from ewe.streams.blocking import run

StartLibraries = Callable[..., Server]
EVER = {
    "ewe.features.libcgi.libraries.MAX_FAULTS": 100_000
}  # a library is never kept out, however often it faults
# Where a library stays loaded from one connection to the next.
LASTING = [model for model in MODELS if model not in ("fork", "prefork")]
SEVERAL = ("prefork", "thread", "pool", "asyncio")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the compiled libraries."""
    directory = compile_libraries(tmp_path_factory.mktemp("libcgi"))
    for name in ("notes", "init", "terminate"):
        (directory / name).touch()
        (directory / name).chmod(0o666)
    return directory


@pytest.fixture
def start_libraries(start: Start, built: Path, tmp_path: Path) -> Iterator[StartLibraries]:
    """Return a function that starts ewe, not as root, with all libraries."""
    directory = tmp_path / "libcgi-bin"
    directory.mkdir()
    for name in ("contract", "faulty", "plain"):
        install(built, name, directory / f"{name}.so")
    (built / "notes").write_text("")

    def start_with(model: str, *options: str, constants: dict[str, float] | None = None) -> Server:
        return start(
            model, "--libcgi-path", str(directory), "--user", "nobody", *options, constants=constants
        )

    yield start_with
    for name in ("init", "terminate"):
        (built / name).write_text("")


def notes(built: Path) -> list[str]:
    """Return what the library has noted."""
    return (built / "notes").read_text().split()


CONTRACT = "/libcgi-bin/contract.so"
FAULTY = "/libcgi-bin/faulty.so"


TEXTS = {  # a request of a page, and its text
    f"{CONTRACT}/add/3?env=PATH_INFO": "/add/3",
    f"{CONTRACT}?env=SCRIPT_NAME": CONTRACT,
    f"{CONTRACT}?env=REMOTE_ADDR": "127.0.0.1",
    f"{CONTRACT}?env=HTTP_PROXY": "(none)",
    f"{CONTRACT}?bytes=50000": "x" * 50000,
    f"{CONTRACT}?long": "".join(f"{i:0100000d}" for i in range(4)),
    f"{CONTRACT}?traps": "on",
    f"{CONTRACT}?body": "none none 0",
}
MISSING = ("/libcgi-bin/", "/libcgi-bin/none.so", "/libcgi-bin/contract", "/libcgi-bin/.so")


def test_the_contract(start_libraries: StartLibraries, model: str) -> None:
    server = start_libraries(model)
    with web.Client(base_url=server.url) as client:
        assert client.get(f"{CONTRACT}?count").text == "1 1"
        assert client.get(f"{CONTRACT}?count").text.startswith(
            "1 "
        )  # initfunc() once, not for each processfunc()
        for target, text in TEXTS.items():
            answer = client.get(target)
            assert (answer.status_code, answer.text) == (200, text), target
            assert answer.headers["content-length"] == str(len(text)), target
        body = bytes(range(256)) * 50
        for query, content, expected in (
            ("body", b"abc", b"some 3 3"),
            ("body", iter([b"a", b"bc"]), b"some 3 3"),
            ("body", iter([]), b"some 0 0"),
            ("echo", body, body),
            ("change", b"page" * 1024, b"X" + (b"page" * 1024)[1:]),
        ):
            assert client.post(f"{CONTRACT}?{query}", content=content).content == expected, query
        assert client.get(f"{CONTRACT}?host").text
        for value in ("one", "two"):
            answer = client.get(CONTRACT + "?env=HTTP_X_VALUE", headers={"X-Value": value, "Proxy": "x"})
            assert answer.text == value
        head = client.head(CONTRACT + "?bytes=77")
        assert (head.status_code, head.content) == (200, b"")
        assert client.request("TRACE", CONTRACT).status_code == 405
        assert {path: client.get(path).status_code for path in MISSING} == dict.fromkeys(MISSING, 404)
        assert client.get(f"{CONTRACT}?traps").text == "on"  # a second time
        assert client.get("/").status_code == 200  # the server computes with floats still


def test_a_library_without_the_header(start_libraries: StartLibraries, model: str) -> None:
    server = start_libraries(model)
    with web.Client(base_url=server.url) as client:
        for number in range(3):
            expected = f"a{number} a{number} 127.0.0.1 - -"
            assert client.get(f"/libcgi-bin/plain.so?a{number}").text == expected
        assert client.get(CONTRACT + "?count").status_code == 200


WORDS = {
    "segv": "segmentation fault at address 0x10", "libc": "segmentation fault", "bus": "bus error",
    "fpe": "arithmetic fault", "ill": "illegal instruction", "abort": r"abort\(\)", "stack": "segmentation fault",
    "exit": r"exit\(3\)", "_exit": r"exit\(4\)", "thread": "exit", "loop": "longer than its limit",
    "sleep": "longer than its limit",
}  # fmt: skip


def test_faults_in_each_function(start_libraries: StartLibraries, built: Path, model: str) -> None:
    """Before output, after it, in initfunc() and in terminatefunc(): 500, a line, and the server goes on."""
    server = start_libraries(model, "--libcgi-timeout", "0.25s", constants=EVER)
    with web.Client(base_url=server.url) as client:

        def check(path: str, status: int, words: str = "") -> None:
            answer = client.get(path)
            assert answer.status_code == status, (path, answer.text)
            assert "the beginning" not in answer.text or status == 200
            if words:
                wait_until(lambda: re.search(words, server.log()), 20, lambda: f"{words}: {server.log()}")
            assert client.get(CONTRACT + "?count").status_code == 200

        for kind, words in WORDS.items():
            slow = kind in ("loop", "sleep")
            check(f"{FAULTY}?late-{kind}", 500, rf"faulty\.so: processfunc\(\).*{words}")
            if not slow:
                check(f"{FAULTY}?early-{kind}", 500)
            check(FAULTY, 200)
            if slow and kind == "sleep":
                continue
            (built / "terminate").write_text(kind)
            check(f"{FAULTY}?early-segv", 500)
            wait_until(lambda: re.search(rf"error: faulty\.so: terminatefunc\(\).*{words}", server.log()), 20)  # noqa: B023
            (built / "terminate").write_text("")
            (built / "init").write_text(kind)
            check(FAULTY, 500, rf"faulty\.so cannot be loaded: initfunc\(\).*{words}")
            (built / "init").write_text("")
            check(FAULTY, 200)
        assert "Traceback" not in server.log()


@pytest.mark.parametrize("model", SEVERAL)
def test_faults_under_load(start_libraries: StartLibraries, model: str) -> None:
    """32 clients send calls, and some calls fault. Each other response is complete and the client's own."""
    # With fewer workers than clients, prefork ends an idle connection: the next request may be on its way.
    workers = ("--workers", "32") if model == "prefork" else ()
    server = start_libraries(model, "--libcgi-timeout", "5s", *workers, constants=EVER)
    kinds = [kind for kind in WORDS if kind not in ("loop", "sleep")]
    turns = examples(25)

    def hold(number: int) -> int:
        faults = 0
        with web.Client(base_url=server.url, timeout=120) as client:
            for turn in range(turns):
                own = f"{number}-{turn}"
                if number % 4 == 0:
                    kind = kinds[(number + turn) % len(kinds)]
                    answer = client.get(f"{FAULTY}?late-{kind}")
                    faults += 1
                    # 503: it was unloaded under this call again and again, by others
                    assert answer.status_code in (500, 503), answer.text
                elif number % 4 == 1:
                    answer = client.get(f"/libcgi-bin/plain.so?{own}")
                    assert answer.text == f"{own} {own} 127.0.0.1 - -"
                elif number % 4 == 2:
                    answer = client.post(CONTRACT + "?echo", content=own.encode() * 1000)
                    assert answer.text == own * 1000
                else:
                    answer = client.get(CONTRACT + "?env=HTTP_X_OWN", headers={"X-Own": own})
                    assert answer.text == own
        return faults

    with ThreadPoolExecutor(32) as clients:
        assert sum(clients.map(hold, range(32))) == 8 * turns
    assert "Traceback" not in server.log()
    assert web.get(server.url).status_code == 200


@pytest.mark.parametrize("model", ["thread", "pool", "asyncio"])
def test_unloading_waits_for_those_inside(start_libraries: StartLibraries, built: Path, model: str) -> None:
    server = start_libraries(model)
    go = built / f"go-{model}"
    go.unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(web.get, f"{server.url}libcgi-bin/contract.so?wait={go}")
        wait_until(lambda: "enter" in notes(built), 20)
        assert web.get(f"{server.url}libcgi-bin/contract.so?crash").status_code == 500
        assert web.get(f"{server.url}libcgi-bin/contract.so?count").text == "1 1"  # another copy
        assert notes(built) == ["init", "enter", "init"]
        go.touch()
        assert waiting.result().text == "waited"
    wait_until(lambda: len(notes(built)) == 5, 20, lambda: f"{notes(built)}")
    assert notes(built) == ["init", "enter", "init", "leave", "terminate"]


@pytest.mark.parametrize("model", SEVERAL)
def test_a_changed_file(start_libraries: StartLibraries, built: Path, tmp_path: Path, model: str) -> None:
    server = start_libraries(model)
    place = tmp_path / "libcgi-bin" / "contract.so"
    go = built / f"changed-{model}"
    with web.Client(base_url=server.url) as client, ThreadPoolExecutor(1) as other:
        assert client.get(CONTRACT).text == "one"
        waiting = other.submit(web.get, f"{server.url}libcgi-bin/contract.so?wait={go}")
        wait_until(lambda: "enter" in notes(built), 20)
        install(built, "second", place)
        wait_until(lambda: client.get(CONTRACT).text == "two", 20)
        assert "leave" not in notes(built)
        go.touch()
        assert waiting.result().text == "waited"
        # The last thread that leaves the old library unloads it.
        wait_until(lambda: "terminate" in notes(built), 20, lambda: f"{notes(built)}")
        place.write_bytes(b"no library")
        wait_until(lambda: client.get(CONTRACT).status_code == 500, 20)
        place.unlink()
        wait_until(lambda: client.get(CONTRACT).status_code == 404, 20)
    assert "contract.so cannot be loaded: file too short" in server.log()


def test_a_library_that_faults_again_and_again_is_kept_out(start_libraries: StartLibraries) -> None:
    server = start_libraries("thread", constants={"ewe.features.libcgi.libraries.KEPT_OUT_S": 2.0})
    with web.Client(base_url=server.url) as client:
        for _ in range(3):
            assert client.get(f"{FAULTY}?late-segv").status_code == 500
        answer = client.get(FAULTY)
        assert (answer.status_code, answer.headers["retry-after"] in ("1", "2")) == (503, True)
        assert client.get(CONTRACT).text == "one"
        wait_until(lambda: client.get(FAULTY).status_code == 200, 20)


def test_faults_of_an_old_library_do_not_count_for_the_new_one() -> None:
    """A call may still execute the old library, and fault, after the changed file was loaded."""
    libraries, state = Libraries("/libcgi-bin", 1.0, follows_links=False), LibraryState()
    for version in (1, 1, 2, 1, 2, 2):
        libraries.count_fault(state, (version,))
    assert state.kept_out_until == 0.0
    libraries.count_fault(state, (2,))
    assert state.kept_out_until > time.monotonic()


def test_a_library_that_cannot_be_loaded_is_kept_out_for_this_reason(
    start_libraries: StartLibraries, tmp_path: Path
) -> None:
    server = start_libraries("thread")
    (tmp_path / "libcgi-bin" / "bad.so").write_bytes(b"no library")
    with web.Client(base_url=server.url) as client:
        statuses = [client.get("/libcgi-bin/bad.so").status_code for _ in range(4)]
    assert statuses == [500, 500, 500, 503]
    server.wait_for_log("bad.so: kept out, it cannot be loaded: file too short")


def test_a_library_with_a_long_name(start_libraries: StartLibraries, built: Path, tmp_path: Path) -> None:
    """The name of the copy in memory may have 249 bytes, and the name of a file 255."""
    server = start_libraries("thread")
    name = f"{'x' * 248}.so"
    install(built, "plain", tmp_path / "libcgi-bin" / name)
    with web.Client(base_url=server.url) as client:
        assert client.get(f"/libcgi-bin/{name}?a").status_code == 200


@pytest.mark.parametrize("model", ["thread", "asyncio"])
def test_bad_heads(start_libraries: StartLibraries, built: Path, model: str) -> None:
    """A bad head is answered by 500, the log has the reason, and the library is unloaded (paper, section 4.1)."""
    server = start_libraries(model, constants=EVER)
    with web.Client(base_url=server.url) as client:
        for text, cause in BAD_HEADS.items():
            (built / "notes").write_text("")
            before = len(server.log())
            answer = client.post(CONTRACT + "?say", content=text)
            assert answer.status_code == 500, text[:60]
            assert answer.headers.get("x-a") is None
            wait_until(lambda: server.log()[before:].endswith("\n"), 20)  # noqa: B023
            line = server.log()[before:]
            assert cause in line and "contract.so" in line and "500, " in line, (text[:60], line)
            wait_until(lambda: notes(built)[-1:] == ["terminate"], 20)
            good = client.post(CONTRACT + "?say", content=b"Content-Type: a/b\nStatus: 201 Made\n\nx")
            assert (good.status_code, good.reason_phrase, good.text) == (201, "Made", "x")
        # Output of old programs, and redirects, are understood as those of a CGI program.
        for text, status, body in (
            (b"\nx", 200, "x"),
            (b"HTTP/1.1 404 Not Found\r\nContent-Type: a/b\r\n\r\nx", 404, "x"),
            (b"Location: http://a/\n\n", 302, ""),
            (b"Status: 204 No\n\n", 204, ""),
            (b"Status: 205 Reset\n\nx", 205, ""),
            (b"Content-Type: a/b\r\n\r\n" + b"x" * 5000, 200, "x" * 5000),
            (b"Content-Type: a/b\nContent-Length: 2\n\nxy", 200, "xy"),
        ):
            answer = client.post(CONTRACT + "?say", content=text)
            assert (answer.status_code, answer.text) == (status, body), text
        assert "welcome" in client.post(CONTRACT + "?say", content=b"Location: /\n\n").text
    text = b"Content-Type: a/b\nContent-Length: 9\n\nxx"
    head = b"POST /libcgi-bin/contract.so?say HTTP/1.1\r\nHost: ewe\r\nContent-Length: %d\r\n\r\n" % len(text)
    answer = server.ask(head + text)
    # Cut, and the client notices.
    assert b"Content-Length: 9\r\n" in answer and answer.endswith(b"\r\n\r\nxx")


MEGABYTES = 100  # twice what the memory may grow by


def anonymous(server: Server) -> int:
    """Return how many bytes of memory the server's processes have that no file stands behind."""
    total = 0
    for pid in {server.pid, *session_members(server.pid)}:
        try:
            text = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        found = re.search(r"RssAnon:\s+(\d+) kB", text)
        total += int(found[1]) * 1024 if found else 0
    return total


@pytest.mark.parametrize("model", ["prefork", "thread", "pool", "asyncio"])
def test_long_bodies_in_constant_memory(start_libraries: StartLibraries, model: str) -> None:
    server = start_libraries(model, "--libcgi-timeout", "60s", "--spool", "1M")
    size = MEGABYTES * 1024 * 1024
    most = 0
    over = threading.Event()
    assert web.get(f"{server.url}libcgi-bin/contract.so?bytes=1000000").status_code == 200
    before = anonymous(server)

    def watch() -> None:
        nonlocal most
        while not over.is_set():
            most = max(most, anonymous(server))
            time.sleep(0.03)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        count = 0
        with web.stream("GET", f"{server.url}libcgi-bin/contract.so?bytes={size}", timeout=120) as answer:
            assert answer.headers["content-length"] == str(size)
            for piece in answer.iter_raw():
                assert piece.count(b"x") == len(piece)
                count += len(piece)
        assert count == size
        block = b"\1" * 1024 * 1024
        with server.connect(120) as sock:
            sock.sendall(
                b"POST /libcgi-bin/contract.so?sum HTTP/1.1\r\nHost: ewe\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n" % size
            )
            for _ in range(MEGABYTES):
                sock.sendall(block)
            assert read_all(sock).endswith(b"\r\n\r\n%d 0" % size)
    finally:
        over.set()
        watcher.join()
    assert most - before < 50e6, (before, most)


def test_nothing_is_loaded_as_root(start: Start, built: Path, tmp_path: Path) -> None:
    """Or, where the tests are not run by root, everything is as it should be."""
    directory = tmp_path / "libcgi-bin"
    directory.mkdir()
    install(built, "contract", directory / "contract.so")
    server = start("thread", "--libcgi-path", str(directory))
    status = web.get(f"{server.url}libcgi-bin/contract.so").status_code
    checked = run_command(
        tmp_path, "--check-config", "--libcgi-path", str(directory), "--documentroot", "htdocs"
    )
    if os.geteuid() == 0:
        assert status == 403
        assert "note: root loads no libraries into the server" in checked.stderr
        server.wait_for_log("root loads no libraries into the server: --user NAME")
        assert notes(built).count("init") == 0 or "root" in server.log()
    else:
        assert status == 200


def test_what_is_missing_is_said(start_libraries: StartLibraries) -> None:
    """A shim of other source is none: the name has a hash of what it is built from."""
    server = start_libraries("thread", constants={"ewe.libcgi.build.HEADERS": ("core.h",)})  # type: ignore[dict-item]
    assert web.get(server.url + CONTRACT[1:]).status_code == 503
    server.wait_for_log("LibCGI is not built: run `ewe --build-libcgi`")
    assert web.get(server.url).status_code == 200


def test_requests_for_a_link_out_of_the_directory_share_one_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the memory of the server would grow with each request."""
    directory = tmp_path / "libcgi-bin"
    directory.mkdir()
    (tmp_path / "out.so").touch()
    (directory / "link.so").symlink_to("../out.so")
    libraries = Libraries(str(directory), 1.0, follows_links=False)
    monkeypatch.setattr(libraries, "new_slot", object)
    for _ in range(3):
        with pytest.raises(HTTPError) as refused:
            libraries.call(str(directory / "link.so"), b"\0", b"\0")
        assert refused.value.status == 404
    assert len(libraries.slots) == 1


class Overloaded(MemoryStream):
    """The stream of a server that can start no thread."""

    async def call(self, function: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        raise OSError(errno.EAGAIN, "can't start new thread")


def test_a_body_is_closed_if_no_thread_can_call_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = Spooled(os.open(os.devnull, os.O_RDONLY), 1)

    async def spooled(*_: object) -> Spooled:
        return body

    monkeypatch.setattr(in_process, "spooled", spooled)
    monkeypatch.setattr(Libraries, "start", lambda self: None)
    (tmp_path / "a.so").touch()
    feature = in_process.LibCGI(Config(), "", RequestLimits(), str(tmp_path))
    request = Request("POST", "/libcgi-bin/a.so", (1, 1), path="/libcgi-bin/a.so")
    request.body = BodyReader()
    request.body.length = 1
    with pytest.raises(OSError, match="can't start new thread"):
        run(feature.respond(request, Overloaded([])))
    assert body.closed


def test_no_file_of_the_directory_is_sent(start: Start, built: Path, tmp_path: Path) -> None:
    """A library in the document root is not sent either, under any name that leads there."""
    server = start("thread", "--libcgi-path", ".", "--user", "nobody", "--documentroot", ".")
    server = start("pool", "--libcgi-path", str(tmp_path / "htdocs"), "--user", "nobody")
    install(built, "contract", tmp_path / "htdocs" / "contract.so")
    assert web.get(server.url + "contract.so").status_code == 403
    assert web.get(server.url).status_code == 200
    assert web.get(server.url + CONTRACT[1:]).text == "one"
    inside = tmp_path / "htdocs" / "libs"
    inside.mkdir()
    install(built, "contract", inside / "contract.so")
    (inside / "contract.c").write_text("source")
    server = start("pool", "--libcgi-path", str(inside), "--user", "nobody")
    for name in ("libs/contract.so", "libs/contract.c", "LIBS/contract.c"):
        assert web.get(server.url + name).status_code in (403, 404), name
    assert web.get(server.url + CONTRACT[1:]).text == "one"
