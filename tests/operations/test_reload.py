"""The setting `reload`: new workers when a source changes, and no request is lost; HUP that cannot be followed."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import web
from support.examples import COMPLETE
from support.proc import children
from support.server import MODELS, ROOT, Server, Start, run_command, wait_until

from ewe.server import sources
from ewe.server.sources import SourceWatcher

WSGI = """
def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"ANSWER"]
"""
ASGI = """
async def app(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b"ANSWER"})
"""
FEATURE = """
from ewe.http.messages import Response

class Greets:
    def __init__(self, config, path):
        pass

    async def respond(self, request, io):
        return Response(200, (), b"ANSWER")
"""
MODEL = """
from ewe.processors.serial import Serial

class Mine(Serial):
    name = "ANSWER"
"""
# An event loop to which a client connects in the last round before it closes its servers
LATE = """
import socket, threading
from ewe.processors.event import Event

class Late(Event):
    name = "late"
    came = False

    def serve(self, listener):
        self.address = next(iter(listener.sockets.values())).getsockname()
        super().serve(listener)

    def run_rounds(self, number):
        super().run_rounds(number)
        if not self.came:
            self.came = True
            self.loop.call_soon(self.loop.call_soon, self.come)  # in one round with uvloop's own end of the loop
            super().run_rounds(1)

    def come(self):
        client = socket.create_connection(self.address)
        threading.Thread(target=self.ask, args=(client,)).start()

    def ask(self, client):
        client.sendall(b"GET / HTTP/1.1\\r\\nHost: h\\r\\nConnection: close\\r\\n\\r\\n")
        answer = client.makefile("rb").read()
        with open("ANSWER", "wb") as file:
            file.write(answer)
"""


PAUSE_S = 0 if COMPLETE else 0.01  # between two requests of a visitor


def save(path: Path, text: str, answer: str) -> None:
    """Save a source as editors do: another file, renamed."""
    other = path.with_suffix(".new")
    other.write_text(text.replace("ANSWER", answer))
    other.rename(path)


@contextmanager
def visitors(server: Server, path: str) -> Iterator[list[str]]:
    """Ask again and again over new connections; yield the list of failures."""
    wrong: list[str] = []
    over = threading.Event()

    def ask() -> None:
        request = f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode()
        while not over.is_set():
            try:
                answer = server.ask(request)
                if not answer.startswith(b"HTTP/1.1 200 "):
                    wrong.append(repr(answer))
            except OSError as reason:
                wrong.append(repr(reason))
            over.wait(PAUSE_S)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield wrong
    finally:
        over.set()
        for thread in threads:
            thread.join()


def wait_for_answer(server: Server, path: str, text: str) -> None:
    """Wait until the server answers with this text."""
    wait_until(lambda: web.get(server.url + path).text == text, 20, server.log)


@pytest.mark.parametrize("model", [*MODELS, "pool --workers 2", "asyncio --workers 2"])
def test_edit_and_try(start: Start, tmp_path: Path, model: str) -> None:
    save(tmp_path / "shop.py", WSGI, "one")
    save(tmp_path / "blog.py", ASGI, "one")
    save(tmp_path / "greets.py", FEATURE, "one")
    applications = (
        "--wsgi",
        "/shop=shop:app",
        "--asgi",
        "/blog=blog:app",
        "--mount",
        "/greets=greets:Greets",
    )
    server = start(model, "--reload", *applications)
    for path in ("shop", "blog", "greets"):
        wait_for_answer(server, path, "one")
    with visitors(server, "/shop") as wrong:
        save(tmp_path / "shop.py", WSGI, "two")  # the same size, and most likely in the same second
        wait_for_answer(server, "shop", "two")
        save(tmp_path / "blog.py", ASGI, "two")
        wait_for_answer(server, "blog", "two")
        save(tmp_path / "greets.py", FEATURE, "two")
        wait_for_answer(server, "greets", "two")
        # One new worker has answered. A change before all of them serve would take this one back
        wait_until(
            lambda: server.log().rfind("new workers serve") > server.log().rfind("starting new workers"), 20
        )
        save(tmp_path / "shop.py", "def app(:\n", "")
        log = server.wait_for_log(
            "the old ones go on: application 'shop:app' cannot be imported: SyntaxError: "
        )
        assert "shop.py, line 1" in log and log.count("cannot be imported") == 1
        assert web.get(server.url + "shop").text == "two"
        save(tmp_path / "shop.py", WSGI, "six")
        wait_for_answer(server, "shop", "six")
    assert not wrong, (wrong[:3], server.log())
    assert "Traceback" not in server.log()
    assert server.stop() == 0, server.log()


def test_a_model_of_ones_own(start: Start, tmp_path: Path) -> None:
    save(tmp_path / "mine.py", MODEL, "first")
    server = start("mine:Mine", "--reload")
    assert web.get(server.url).status_code == 200
    save(tmp_path / "mine.py", MODEL, "second")
    server.wait_for_log("the new workers serve")
    web.get(server.url)
    server.process.send_signal(signal.SIGUSR2)
    server.wait_for_log("status: second, worker 1")
    save(tmp_path / "mine.py", "class Mine(\n", "")
    server.wait_for_log("model 'mine:Mine' cannot be loaded: SyntaxError: ")
    assert web.get(server.url).status_code == 200


def test_many_files_at_once_new_files_and_the_settings(start: Start, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    save(tmp_path / "shop.py", WSGI, "one")
    (tmp_path / "ewe.toml").write_text('wsgi = ["/shop=shop:app"]\n')
    server = start("thread", "--reload", "--config", str(tmp_path / "ewe.toml"))
    wait_for_answer(server, "shop", "one")
    for number in range(200):
        (tmp_path / "pages" / f"page{number}.py").write_text(f"TEXT = b'{number}'\n")
    save(tmp_path / "shop.py", WSGI, "two")
    wait_for_answer(server, "shop", "two")
    assert server.log().count("starting new workers") == 1
    assert "and 198 more changed: starting new workers" in server.log()

    (tmp_path / "shop.py").write_text("import later\n" + WSGI.replace('b"ANSWER"', "later.TEXT"))
    server.wait_for_log("No module named 'later'")
    assert web.get(server.url + "shop").text == "two"
    (tmp_path / "later.py").write_text("TEXT = b'three'\n")
    wait_for_answer(server, "shop", "three")

    (tmp_path / "ewe.toml").write_text('wsgi = ["/moved=shop:app"]\n')
    wait_for_answer(server, "moved", "three")
    (tmp_path / "ewe.toml").write_text("wsgi = 7\n")
    server.wait_for_log("the configuration cannot be used, the old one stays")
    assert web.get(server.url + "moved").text == "three"
    assert server.stop() == 0, server.log()


def test_a_failed_change_whose_old_log_is_gone(start: Start, tmp_path: Path) -> None:
    """The new workers cannot start, and the old log cannot be opened again: the old workers go on all the same."""
    settings, new = tmp_path / "ewe.toml", tmp_path / "new.log"
    (tmp_path / "logs").mkdir()
    save(tmp_path / "shop.py", WSGI, "one")
    settings.write_text(f'wsgi = "/shop=shop:app"\nlogfile = "{tmp_path / "logs" / "old"}"\n')
    server = start("thread", "--config", str(settings))
    wait_for_answer(server, "shop", "one")
    (tmp_path / "logs").rename(tmp_path / "archive")
    settings.write_text(f'wsgi = "/shop=shop:app"\nlogfile = "{new}"\n')
    (tmp_path / "shop.py").write_text("1 / 0\n")
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: new.exists() and "the new logs stay in use" in new.read_text(), 20, server.log)
    assert web.get(server.url + "shop").text == "one"
    assert server.stop() == 0, server.log()


def test_a_save_after_the_last_worker_has_died(start: Start, tmp_path: Path) -> None:
    save(tmp_path / "shop.py", WSGI, "one")
    server = start("thread", "--reload", "--wsgi", "/shop=shop:app")
    wait_for_answer(server, "shop", "one")
    (tmp_path / "shop.py").write_text("1 / 0\n")
    server.wait_for_log("the old ones go on")
    [worker] = children(server.pid)
    os.kill(worker, signal.SIGKILL)
    server.wait_for_log("ZeroDivisionError: division by zero, in ")
    save(tmp_path / "shop.py", WSGI, "two")
    wait_for_answer(server, "shop", "two")


@pytest.mark.starts_processes
@pytest.mark.parametrize("model", ["pool", "prefork"])
def test_a_first_start_that_fails(tmp_path: Path, model: str) -> None:
    (tmp_path / "htdocs").mkdir()
    (tmp_path / "shop.py").write_text("1 / 0\n")
    ended = run_command(tmp_path, "--port", "0", "--model", model, "--reload", "--wsgi", "/=shop:app")
    lines = [line for line in ended.stderr.splitlines() if "Ctrl-C" not in line]
    assert ended.returncode == 1 and len(lines) == 1, ended.stderr
    assert "ZeroDivisionError: division by zero, in " in lines[0] and "shop.py line 1 (wsgi)" in lines[0]


@pytest.mark.parametrize("model", ["thread --workers 2", "asyncio --workers 2", "prefork --workers 3"])
def test_hup_with_an_application_that_cannot_start(start: Start, tmp_path: Path, model: str) -> None:
    shutil.copy(ROOT / "tests" / "support" / "asgi_apps.py", tmp_path)
    file = tmp_path / "ewe.toml"
    file.write_text('asgi = ["/bare=asgi_apps:bare"]\n')
    server = start(model, "--config", str(file))
    wait_until(lambda: (tmp_path / "notes").exists(), 20, server.log)
    before = set(children(server.pid))
    file.write_text('asgi = ["/bare=asgi_apps:bare", "/failing=asgi_apps:failing"]\n')
    server.process.send_signal(signal.SIGHUP)
    log = server.wait_for_log("the old ones go on")
    assert log.count("cannot start: OSError: no database (asgi)") == 1, log
    wait_until(lambda: set(children(server.pid)) == before, 20, server.log)
    assert web.get(server.url + "bare/state").status_code == 200
    os.kill(min(before), signal.SIGKILL)  # its place is filled under the old configuration
    wait_until(lambda: len(set(children(server.pid)) - before) == 1, 20, server.log)
    assert web.get(server.url + "bare/state").status_code == 200
    file.write_text('asgi = ["/there=asgi_apps:bare"]\n')
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: web.get(server.url + "there/state").status_code == 200, 20, server.log)
    assert server.stop() == 0, server.log()


# The watcher, in memory


def looked(watched: SourceWatcher) -> list[str]:
    """Return the files that are reported once they no longer change."""
    found: list[str] = []
    for _ in range(3):
        watched.due_at = 0.0
        found += watched.take_changes()
    return [os.path.basename(path) for path in found]


def test_the_watcher(tmp_path: Path) -> None:
    for place in ("pkg/sub", ".hidden", "pkg/__pycache__", "env"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "env" / "pyvenv.cfg").touch()
    watched = SourceWatcher()
    watched.add(str(tmp_path))
    watched.watch_file(str(tmp_path / "ewe.toml"))
    assert looked(watched) == []
    (tmp_path / "pkg" / "sub" / "a.py").write_text("1")
    assert looked(watched) == ["a.py"] and looked(watched) == []
    (tmp_path / "pkg" / "sub" / "a.py").write_text("23")
    assert looked(watched) == ["a.py"]
    for place in (".hidden/b.py", "pkg/__pycache__/b.py", "env/b.py", "pkg/text.txt"):
        (tmp_path / place).write_text("1")
    assert looked(watched) == []
    save(tmp_path / "pkg" / "c.py", "1", "")
    (tmp_path / "ewe.toml").touch()
    assert looked(watched) == ["ewe.toml", "c.py"]
    (tmp_path / "pkg" / "c.py").unlink()
    (tmp_path / "pkg" / "new").mkdir()
    (tmp_path / "pkg" / "new" / "d.py").touch()
    assert sorted(looked(watched)) == ["c.py", "d.py"]
    shutil.rmtree(tmp_path / "pkg")
    assert sorted(looked(watched)) == ["a.py", "d.py"]


def test_files_that_change_one_after_the_other_are_reported_together(tmp_path: Path) -> None:
    watched = SourceWatcher()
    watched.add(str(tmp_path))
    for name in ("a.py", "b.py"):
        (tmp_path / name).touch()
        watched.due_at = 0.0
        assert watched.take_changes() == []
    watched.due_at = 0.0
    assert len(watched.take_changes()) == 2


def test_too_many_directories_are_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(sources, "MAX_DIRECTORIES", 3)
    monkeypatch.setattr(sources.logger.errors, "warning", said.append)
    for number in range(9):
        (tmp_path / str(number)).mkdir()
    watched = SourceWatcher()
    watched.add(str(tmp_path))
    looked(watched)
    assert len(said) == 1 and said[0].endswith("(reload)")


def test_installed_packages_are_no_sources() -> None:
    files = sources.own_modules().values()
    assert not [file for file in files if "site-packages" in file or file.startswith(f"{ROOT}/ewe/")]
    assert str(Path(__file__)) in files


def test_uvloop_serves_what_it_accepted_last(start: Start, tmp_path: Path) -> None:
    """It accepts until its servers are closed, and begins a connection one round later."""
    save(tmp_path / "late.py", LATE, str(tmp_path / "answer"))
    server = start("late:Late", "--loop", "uvloop")
    assert server.stop() == 0
    assert (tmp_path / "answer").read_bytes().startswith(b"HTTP/1.1 200 "), server.log()
    assert "Traceback" not in server.log()


SLOW = """import os, time
while not os.path.exists("go"):
    time.sleep(0.01)


def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"slow"]
"""


def test_a_faulty_hup_while_another_is_followed(start: Start, tmp_path: Path) -> None:
    """The new workers of the first HUP are being started: an error in the file leaves them alone."""
    file = tmp_path / "ewe.toml"
    (tmp_path / "slow.py").write_text(SLOW)
    file.write_text('grace = "5s"\n')
    server = start("thread --workers 2", "--config", str(file))
    before = set(children(server.pid))
    file.write_text('wsgi = "/slow=slow:app"\n')
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: len(set(children(server.pid)) - before) == 2, 20, server.log)
    coming = set(children(server.pid)) - before
    file.write_text("wsgi = 7\n")
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_log("the configuration cannot be used, the old one stays")
    (tmp_path / "go").touch()
    wait_until(lambda: set(children(server.pid)) == coming, 20, server.log)
    assert web.get(server.url + "slow").text == "slow"
    assert server.stop() == 0, server.log()
