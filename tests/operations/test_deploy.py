"""HUP deploys a new version of an application: WSGI and ASGI, under every model, and no request is lost."""

from __future__ import annotations

import os
import py_compile
import signal
import threading
import time
from pathlib import Path

import pytest
from support import web
from support.examples import COMPLETE, examples
from support.fork_server import PREFORKED
from support.proc import alive, children
from support.resources import open_python
from support.server import MODELS, ROOT, Server, Start, run_command, wait_until
from support.wire import read_response

from ewe.server.worker import ABORTED

WSGI = """\
from shop.pages import words

def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [words.TEXT]
"""
ASGI = """\
import os

TEXT = b"ANSWER"

def note(line):
    with open("notes", "a") as file:
        file.write(f"{line} {TEXT.decode()} {os.getpid()}\\n")

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        note("up")
        await send({"type": "lifespan.startup.complete"})
        await receive()
        note("down")
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": TEXT})
"""
SIMPLE = """\
import os

def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"ANSWER"]
"""
SLOW = "import time\ntime.sleep(1)\n" + SIMPLE
DEPLOYED = "the new workers serve; applications were imported again: "
VARIANTS = (*MODELS, "thread --workers 2", "asyncio --workers 2", "asyncio --loop asyncio")


def write(path: Path, text: str, answer: str) -> None:
    """Write a version of a source."""
    path.write_text(text.replace("ANSWER", answer))


def write_shop(directory: Path) -> None:
    """Write a package with a subpackage. The pages have their text from a module of the subpackage."""
    (directory / "shop" / "pages").mkdir(parents=True)
    (directory / "shop" / "__init__.py").write_text("")
    (directory / "shop" / "pages" / "__init__.py").write_text("")
    (directory / "shop" / "main.py").write_text(WSGI)
    write(directory / "shop" / "pages" / "words.py", 'TEXT = b"ANSWER"\n', "one")


def hup(server: Server, said: str) -> str:
    """Send HUP, and return what the log says from then on, once it has a text."""
    before = len(server.log())
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: said in server.log()[before:], 30, lambda: f"not {said!r}:\n{server.log()}")
    return server.log()[before:]


def answer(server: Server, path: str = "") -> str:
    """Return the answer over a new connection."""
    return web.get(server.url + path).text


def wait_for_answer(server: Server, path: str, text: str) -> None:
    """Wait for this answer. Old workers may answer until they have stopped to accept connections."""
    wait_until(lambda: answer(server, path) == text, 30, server.log)


def workers(server: Server) -> set[int]:
    """Return the processes below the server's first one."""
    return alive(set(children(server.pid)))  # one that has ended may not have been reaped yet


@pytest.mark.parametrize("model", VARIANTS)
def test_new_versions_and_versions_that_cannot_start(start: Start, tmp_path: Path, model: str) -> None:
    write_shop(tmp_path)
    write(tmp_path / "blog.py", ASGI, "one")
    words, blog = tmp_path / "shop" / "pages" / "words.py", tmp_path / "blog.py"
    server = start(model, "--wsgi", "/shop=shop.main:app", "--asgi", "/blog=blog:app")
    assert answer(server, "shop") == answer(server, "blog") == "one"
    # The same size, and most likely the same second: no .pyc file may hide it
    write(words, 'TEXT = b"ANSWER"\n', "two")
    assert hup(server, DEPLOYED).count("shop.main:app, blog:app") == 1
    wait_for_answer(server, "shop", "two")
    assert answer(server, "blog") == "one"
    write(blog, ASGI, "two")
    hup(server, DEPLOYED)
    wait_for_answer(server, "blog", "two")

    broken = "def (\n", f"SyntaxError: invalid syntax (words.py, line 1), in {words} line 1 (wsgi)"
    missing = (
        "\nimport no_such\n",
        f"ModuleNotFoundError: No module named 'no_such', in {words} line 2 (wsgi)",
    )
    wrong = "1 / 0\n", f"ZeroDivisionError: division by zero, in {words} line 1 (wsgi)"
    for source, reason in (broken, missing, wrong):
        words.write_text(source)
        said = hup(server, "the old ones go on")
        assert f"application 'shop.main:app' cannot be imported: {reason}" in said
        assert said.count("cannot be imported") == 1 and DEPLOYED not in said
        assert answer(server, "shop") == "two"
    write(words, 'TEXT = b"ANSWER"\n', "six")
    (tmp_path / "shop" / "main.py").write_text("ap = 7\n")
    said = hup(server, "the old ones go on")
    assert "AttributeError: module 'shop.main' has no attribute 'app' (wsgi)" in said
    assert answer(server, "shop") == "two"
    (tmp_path / "shop" / "main.py").write_text(WSGI)
    hup(server, DEPLOYED)
    wait_for_answer(server, "shop", "six")
    assert answer(server, "blog") == "two"
    assert "Traceback" not in server.log()
    assert server.stop() == 0, server.log()


PAUSE_S = 0 if COMPLETE else 0.005  # between two connections of a visitor


ENDED_BETWEEN_ANSWERS = "the connection ended within a head: b''"  # what read_response() says of it


class Visitor(threading.Thread):
    """Asks again and again, and notes what each connection was answered.

    requests: how many it sends over one connection. seen: a list of the answers of each connection. may_lose_turn:
    the model ends a kept connection that is idle for 0.2 s while another client waits. A request may
    cross that end, and is then sent again on a new connection, as clients do (RFC 9110, section 9.2.2).
    """

    def __init__(self, server: Server, requests: int, may_lose_turn: bool = False) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.requests = requests
        self.may_lose_turn = may_lose_turn
        self.seen: list[list[bytes]] = []
        self.failed: list[str] = []
        self.over = False

    def run(self) -> None:
        while not self.over:
            seen: list[bytes] = []
            try:
                self.hold_connection(seen)
            except OSError as reason:
                has_lost_turn = self.may_lose_turn and seen and str(reason) == ENDED_BETWEEN_ANSWERS
                if not has_lost_turn:
                    self.failed.append(repr(reason))
            self.seen.append(seen)
            time.sleep(PAUSE_S)

    def hold_connection(self, seen: list[bytes]) -> None:
        with self.server.connect() as sock:
            for number in range(self.requests):
                is_last = number == self.requests - 1 or self.over
                close = b"Connection: close\r\n" if is_last else b""
                sock.sendall(b"GET /shop HTTP/1.1\r\nHost: h\r\n" + close + b"\r\n")
                status, fields, body = read_response(sock)
                if status != 200:
                    self.failed.append(f"{status} {body!r}")
                seen.append(body)
                if fields.get("connection") == "close" or is_last:
                    return

    def count(self) -> int:
        """Return how many answers it has had over connections that have ended."""
        return sum(len(each) for each in list(self.seen))


def are_answered(visitors: list[Visitor], times: int) -> None:
    """Wait until each visitor has had so many more answers."""
    wanted = [each.count() + times for each in visitors]
    wait_until(
        lambda: all(each.count() >= goal for each, goal in zip(visitors, wanted, strict=True)),
        60,
        lambda: f"{[each.count() for each in visitors]}, wanted: {wanted}\n{visitors[0].server.log()}",
    )


@pytest.mark.parametrize("model", VARIANTS)
def test_no_request_is_lost(start: Start, tmp_path: Path, model: str) -> None:
    """A connection has answers of one version; once the old workers have ended, all answers are new."""
    write(tmp_path / "shop.py", SIMPLE, "one")
    server = start(model, "--wsgi", "/shop=shop:app")
    lets_go = model.startswith(("serial", "prefork"))
    visitors = [Visitor(server, requests, lets_go) for requests in (1, 1, 10, 10)]
    for each in visitors:
        each.start()
    try:
        are_answered(visitors, examples(50))
        known = {b"one"}
        assert {body for each in visitors for seen in list(each.seen) for body in seen} == known
        for version in (b"two", b"six", b"ten")[: examples(3, 2)]:
            old = workers(server) if not model.startswith("fork") else {min(workers(server))}
            write(tmp_path / "shop.py", SIMPLE, version.decode())
            hup(server, DEPLOYED)
            known.add(version)
            wait_until(lambda old=old: not alive(old), 30, server.log)  # type: ignore[misc]
            are_answered(visitors, 12)  # each visitor's connection of before has ended
            begin = [len(each.seen) for each in visitors]
            are_answered(visitors, examples(100))
            for each, first in zip(visitors, begin, strict=True):
                assert {body for seen in each.seen[first:] for body in seen} == {version}
    finally:
        for each in visitors:
            each.over = True
    for each in visitors:
        each.join(30)
    assert [reason for each in visitors for reason in each.failed] == [], server.log()
    connections = [seen for each in visitors for seen in each.seen]
    assert [seen for seen in connections if len(set(seen)) != 1] == []
    assert {body for seen in connections for body in seen} == known
    assert sum(map(len, connections)) >= examples(1000)
    assert "Traceback" not in server.log()
    assert server.stop() == 0, server.log()


@pytest.mark.parametrize("model", [each for each in VARIANTS if not each.startswith("fork")])
def test_each_generation_has_one_lifespan(start: Start, tmp_path: Path, model: str) -> None:
    write(tmp_path / "blog.py", ASGI, "one")
    server = start(model, "--asgi", "/=blog:app")
    before = workers(server)
    write(tmp_path / "blog.py", ASGI, "two")
    hup(server, DEPLOYED)
    wait_until(lambda: not alive(before), 30, server.log)
    after = workers(server)
    failed = 'return await send({"type": "lifespan.startup.failed", "message": "no database"})'
    write(tmp_path / "blog.py", ASGI.replace('note("up")', failed), "six")
    said = hup(server, "the old ones go on")
    assert "application 'blog:app' cannot start: no database (asgi)" in said
    wait_until(lambda: workers(server) == after, 30, server.log)
    assert answer(server) == "two"
    assert server.stop() == 0, server.log()
    notes = (tmp_path / "notes").read_text().split("\n")[:-1]
    wanted = [f"{what} one {pid}" for pid in before for what in ("up", "down")]
    wanted += [f"{what} two {pid}" for pid in after for what in ("up", "down")]
    assert sorted(notes) == sorted(wanted), server.log()


@pytest.mark.parametrize("model", ["thread", "asyncio --workers 2"])
def test_an_application_of_a_location(start: Start, tmp_path: Path, model: str) -> None:
    """Also of one that HUP adds, and another that it removes."""
    settings = '[[site]]\n[[site.location]]\nprefix = "/shop/"\ngateway = "wsgi:shop:app"\n'
    write(tmp_path / "shop.py", SIMPLE, "one")
    write(tmp_path / "blog.py", ASGI, "one")
    (tmp_path / "ewe.toml").write_text(settings)
    server = start(model, "--config", str(tmp_path / "ewe.toml"))
    assert answer(server, "shop/") == "one"
    write(tmp_path / "shop.py", SIMPLE, "two")
    assert DEPLOYED + "shop:app\n" in hup(server, DEPLOYED)
    wait_for_answer(server, "shop/", "two")
    (tmp_path / "ewe.toml").write_text(settings.replace("shop", "blog").replace("wsgi", "asgi"))
    assert DEPLOYED + "blog:app\n" in hup(server, DEPLOYED)
    wait_for_answer(server, "blog/", "one")
    assert web.get(server.url + "shop/").status_code == 404


@pytest.mark.parametrize("model", ["pool", "prefork", "asyncio --workers 2"])
def test_many_hups_while_an_application_is_imported(start: Start, tmp_path: Path, model: str) -> None:
    write(tmp_path / "shop.py", SLOW, "one")
    server = start(model, "--wsgi", "/=shop:app")
    before = workers(server)
    write(tmp_path / "shop.py", SLOW, "two")
    for number in range(20):
        read = server.log().count("configuration was read again")
        server.process.send_signal(signal.SIGHUP)
        # Some come together, and some one after the other, each while the last one's workers import.
        if number % 2:
            wait_until(lambda: server.log().count("configuration was read again") > read, 30, server.log)  # noqa: B023
            assert answer(server) == "one"
    server.wait_for_log(DEPLOYED)
    wait_until(lambda: not alive(before), 30, server.log)
    assert answer(server) == "two"
    wait_until(lambda: len(workers(server)) == len(before), 30, server.log)
    assert "cannot start" not in server.log() and "starting another" not in server.log()
    assert server.stop() == 0, server.log()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_stop_during_a_deploy(start: Start, tmp_path: Path, number: int) -> None:
    write(tmp_path / "shop.py", SIMPLE, "one")
    server = start("thread --workers 2", "--wsgi", "/=shop:app")
    (tmp_path / "shop.py").write_text("open('begun', 'w')\nimport time\nwhile True: time.sleep(1)\n")
    server.process.send_signal(signal.SIGHUP)
    wait_until((tmp_path / "begun").exists, 30, server.log)
    assert answer(server) == "one"
    status = server.stop(number)
    # QUIT cuts also the connection of that answer, if the server has not seen its end yet.
    assert status == 0 or (number == signal.SIGQUIT and status == ABORTED), server.log()
    assert DEPLOYED not in server.log()


def test_a_stop_while_the_first_worker_imports(start: Start, tmp_path: Path) -> None:
    """The banner comes when the application serves; until then a stop ends the worker at once."""
    write(tmp_path / "shop.py", SIMPLE, "one")
    server = start("thread", "--wsgi", "/=shop:app")  # the address of the next one is free, and known
    assert server.stop() == 0
    (tmp_path / "shop.py").write_text("open('begun', 'w')\nimport time\nwhile True: time.sleep(1)\n")
    stopper = threading.Thread(target=stop_once_begun, args=(tmp_path, server.port))
    stopper.start()
    done = run_command(
        tmp_path, "--port", str(server.port), "--wsgi", "/=shop:app", "--pid-file", "pid", seconds=120
    )
    stopper.join()
    assert done.returncode == 0 and "Ctrl-C" not in done.stderr, done.stderr


def stop_once_begun(directory: Path, port: int) -> None:
    """Send TERM to the server of a pid file once its application is being imported."""
    wait_until((directory / "begun").exists, 30)
    os.kill(int((directory / "pid").read_text()), signal.SIGTERM)


@pytest.mark.starts_processes
@pytest.mark.parametrize("options", [(), ("--model", "fork"), ("--workers", "3"), ("--model", "xswitch")])
def test_a_first_start_that_fails(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "htdocs").mkdir()
    (tmp_path / "shop.py").write_text("\n1 / 0\n")
    done = run_command(tmp_path, "--port", "0", "--wsgi", "/=shop:app", *options, seconds=60)
    lines = [line for line in done.stderr.splitlines() if "root runs" not in line]
    if "xswitch" in options:  # the log of X-Switch, which may have started by then
        lines = [line for line in lines if not line.startswith("20")]
    reason = f"ZeroDivisionError: division by zero, in {tmp_path}/shop.py line 2 (wsgi)"
    assert done.returncode == 1, done.stderr
    assert lines == [f"ewe: application 'shop:app' cannot be imported: {reason}"], done.stderr


def test_a_worker_that_dies_is_replaced(start: Start, tmp_path: Path) -> None:
    """By one that imports the files as they are, or, if it cannot, by a later one."""
    write(tmp_path / "shop.py", SIMPLE, "one")
    server = start("thread", "--wsgi", "/=shop:app")
    [first] = workers(server)
    (tmp_path / "shop.py").write_text("1 / 0\n")
    os.kill(first, signal.SIGKILL)
    server.wait_for_log("ZeroDivisionError: division by zero, in ")
    write(tmp_path / "shop.py", SIMPLE, "two")
    wait_for_answer(server, "", "two")
    assert server.stop() == 0, server.log()


@pytest.mark.parametrize("model", MODELS)
def test_what_was_one_process_seems_to_be_one(start: Start, tmp_path: Path, model: str) -> None:
    """The supervisor is there for HUP: TTIN adds no worker, and environ says how many processes call at once."""
    source = SIMPLE.replace('b"ANSWER"', 'str(environ["wsgi.multiprocess"]).encode()')
    (tmp_path / "shop.py").write_text(source)
    server = start(model, "--wsgi", "/=shop:app")
    is_many = model in ("fork", "prefork")
    assert answer(server) == str(is_many)
    server.process.send_signal(signal.SIGTTIN)
    more = f"{PREFORKED + 1} workers from now on"
    server.wait_for_log(more if model == "prefork" else "where there are many (workers)")
    assert answer(server) == str(is_many)


@pytest.mark.parametrize("model", ["thread", "thread --workers 2"])
def test_an_application_that_hup_adds(start: Start, tmp_path: Path, model: str) -> None:
    """A server that was started in one process stays in one, and the log does not promise a new version."""
    write(tmp_path / "shop.py", SIMPLE, "one")
    file = tmp_path / "ewe.toml"
    file.write_text("")
    server = start(model, "--config", str(file))
    assert "imported again" not in hup(server, "was read again")
    file.write_text('wsgi = ["/=shop:app"]\n')
    restart = "a new version of shop:app needs a restart: this server was started without an application"
    hup(server, restart if model == "thread" else DEPLOYED)
    wait_for_answer(server, "", "one")
    write(tmp_path / "shop.py", SIMPLE, "two")
    said = hup(server, restart if model == "thread" else DEPLOYED)
    if model == "thread":
        assert DEPLOYED not in said and answer(server) == "one"
    else:
        wait_for_answer(server, "", "two")


def test_an_application_whose_package_has_a_feature(start: Start, tmp_path: Path) -> None:
    """The supervisor imports the feature: the log says that this package stays as it is."""
    feature = (
        "class Greets:\n    def __init__(self, config, path): pass\n"
        "    async def respond(self, request, io): return None\n"
    )
    write(tmp_path / "shop.py", SIMPLE + feature, "one")
    write(tmp_path / "blog.py", ASGI, "one")
    options = ("--wsgi", "/shop=shop:app", "--asgi", "/blog=blog:app", "--mount", "/greets=shop:Greets")
    server = start("thread", *options)
    write(tmp_path / "shop.py", SIMPLE + feature, "two")
    write(tmp_path / "blog.py", ASGI, "two")
    said = hup(server, "a new version of shop:app needs a restart: a feature or a model of the same package")
    assert DEPLOYED + "blog:app\n" in said
    wait_for_answer(server, "blog", "two")
    assert answer(server, "shop") == "one"


def test_a_compiled_module_that_seems_to_be_of_this_source(start: Start, tmp_path: Path) -> None:
    """A .pyc file counts by its source's time and size; an archive may give all versions the same ones."""
    source, then = tmp_path / "shop.py", (1_600_000_000, 1_600_000_000)

    def compile_first(version: str, next_version: str) -> None:
        write(source, SIMPLE, version)
        os.utime(source, then)
        py_compile.compile(str(source), doraise=True)
        write(source, SIMPLE, next_version)
        os.utime(source, then)

    compile_first("one", "two")
    server = start("thread", "--wsgi", "/=shop:app")
    assert answer(server) == "two"
    compile_first("two", "six")
    hup(server, DEPLOYED)
    wait_for_answer(server, "", "six")


def test_resources_beside_a_module(start: Start, tmp_path: Path) -> None:
    """pkgutil asks the loader of a module for the files of its package."""
    write_shop(tmp_path)
    (tmp_path / "shop" / "text").write_text("from a file")
    source = WSGI.replace("words.TEXT", "pkgutil.get_data('shop', 'text')")
    (tmp_path / "shop" / "main.py").write_text("import pkgutil\n" + source)
    server = start("thread", "--wsgi", "/=shop.main:app")
    assert answer(server) == "from a file"


@pytest.mark.needs("root", "a Python for every account")
@pytest.mark.parametrize("model", ["thread", "thread --workers 2", "xswitch"])
def test_a_deploy_as_an_account(start: Start, tmp_path: Path, model: str) -> None:
    """Root imports nothing of the application: the account does, at the start and at each deploy."""
    as_account = SIMPLE.replace("import os\n", "import os, wave\nassert os.geteuid() and os.getegid()\n")
    write(tmp_path / "shop.py", as_account, "one")
    python = open_python()
    server = start(model, "--user", "nobody", "--wsgi", "/=shop:app", env={}, python=python)
    assert answer(server) == "one"
    write(tmp_path / "shop.py", as_account, "two")
    hup(server, DEPLOYED)
    wait_for_answer(server, "", "two")
    (tmp_path / "shop.py").chmod(0o600)
    said = hup(server, "the old ones go on")
    assert f"PermissionError: [Errno 13] Permission denied: '{tmp_path}/shop.py' (wsgi)" in said
    assert answer(server) == "two"
    assert server.stop() == 0, server.log()
    done = run_command(
        tmp_path, "--user", "nobody", "--wsgi", "/=shop:app", "--port", "0", "--check-config", python=python
    )
    assert done.returncode == 1 and "PermissionError: " in done.stderr, done.stderr


@pytest.mark.needs("root")
@pytest.mark.parametrize("model", ["thread", "thread --workers 2", "xswitch"])
def test_an_account_that_may_not_read_python(start: Start, tmp_path: Path, model: str) -> None:
    """Root imports the application at the start, and the log says why HUP brings no new version."""
    packages = tmp_path / "home" / "packages"
    packages.mkdir(parents=True)
    write(packages / "shop.py", SIMPLE, "one")
    (tmp_path / "home").chmod(0o700)
    env = {"PYTHONPATH": f"{ROOT}:{packages}"}
    server = start(model, "--user", "nobody", "--wsgi", "/=shop:app", env=env)
    assert answer(server) == "one"
    write(packages / "shop.py", SIMPLE, "two")
    said = hup(server, "a new version of shop:app needs a restart: user nobody may not enter ")
    assert DEPLOYED not in said
    assert answer(server) == "one"
    assert server.stop() == 0, server.log()
