"""The live page of ewe-watch as a process: its page, its stream, its buttons and their guard, and its end."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from support.server import wait_until
from support.wire import read_all

from ewe.config.settings import Config
from ewe_watch.events import read
from ewe_watch.live.director import MOST_READERS
from ewe_watch.live.serve import page_config

pytestmark = pytest.mark.starts_processes
SECONDS = 30  # for an event, on a busy machine


class LivePage:
    """A running ewe-watch. url: with its token. log: its standard error."""

    def __init__(self, words: list[str], directory: Path) -> None:
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        self.log = directory / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ewe_watch", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory,
                env=os.environ | {"TMPDIR": str(self.temporary)},
            )
        wait_until(lambda: "Ctrl-C" in self.text() or self.process.poll() is not None, SECONDS, self.text)
        found = re.search(r"http://\S+", self.text())
        assert found, self.text()
        self.url = found[0]
        self.port = urlsplit(self.url).port or 0
        self.path = urlsplit(self.url).path
        self.origin = f"http://127.0.0.1:{self.port}"

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def ask(self, method: str, path: str, body: str = "", **fields: str) -> tuple[int, bytes]:
        """Make one request; return the status and the body. fields: host, origin, content_type, ..."""
        values = {"host": f"127.0.0.1:{self.port}", "connection": "close"} | fields
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in values.items()]
        head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, f"Content-Length: {len(body)}", "", ""])
        with socket.create_connection(("127.0.0.1", self.port), SECONDS) as sock:
            sock.sendall((head + body).encode())
            answer = read_all(sock)
        top, _, rest = answer.partition(b"\r\n\r\n")
        return int(top[9:12]), rest

    def press(self, **action: Any) -> tuple[int, bytes]:
        """Press a button as the page does."""
        body = json.dumps(action)
        return self.ask("POST", f"{self.path}do", body, origin=self.origin, content_type="application/json")

    def changes(self) -> Iterator[dict[str, Any]]:
        """Yield the events of the stream."""
        with socket.create_connection(("127.0.0.1", self.port), SECONDS) as sock:
            sock.sendall(f"GET {self.path}changes HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n\r\n".encode())
            with sock.makefile("rb") as lines:
                for line in lines:
                    if line.startswith(b"data: "):
                        yield json.loads(line[6:])

    def until(self, holds: Callable[[list[dict[str, Any]]], Any]) -> list[dict[str, Any]]:
        """Return the models' change for which something holds."""
        deadline = time.monotonic() + SECONDS
        change: dict[str, Any] = {}
        for change in self.changes():
            if "models" in change and holds(change["models"]):
                return list(change["models"])
            assert time.monotonic() < deadline, change
        raise AssertionError("the stream has ended")

    def stop(self, number: int = signal.SIGINT) -> int:
        """Stop it; return the exit status, once nothing is left."""
        family = [
            self.process.pid,
            *(each.pid for each in psutil.Process(self.process.pid).children(recursive=True)),
        ]
        self.process.send_signal(number)
        status = self.process.wait(SECONDS)
        assert [pid for pid in family if psutil.pid_exists(pid)] == []
        assert list(self.temporary.iterdir()) == []
        return status


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., LivePage]]:
    """Return a function that starts ewe-watch."""
    started: list[LivePage] = []

    def start(*words: str) -> LivePage:
        started.append(LivePage(list(words), tmp_path))
        return started[-1]

    yield start
    for page in started:
        if page.process.poll() is None:
            page.stop()


def kinds(models: list[dict[str, Any]], kind: str, what: str) -> list[int]:
    """Return a number of a kind of clients, of each model."""
    return [model["clients"]["kinds"].get(kind, {}).get(what, 0) for model in models]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_leaves_nothing(watch: Callable[..., LivePage], number: int) -> None:
    page = watch("-f", "-p --parking never")
    assert page.press(do="send", kind="silent", count=7)[0] == 204
    page.until(lambda models: kinds(models, "silent", "waiting") == [7, 7])
    assert page.press(do="send", kind="program")[0] == 204
    page.until(lambda models: models[0]["programs"] == 1)
    assert page.stop(number) == 0


def test_a_kill_leaves_nothing_either(watch: Callable[..., LivePage]) -> None:
    page = watch("-f", "-p --parking never")
    assert (
        page.press(do="change", model=1, values={"poolthreads": "2"})[0] == 204
    )  # by a thread that ends at once
    page.press(do="send", kind="silent", count=3)
    page.press(do="send", kind="program")
    page.until(lambda models: models[0]["programs"] == 1 and models[1]["queued"] == 2)
    family = psutil.Process(page.process.pid).children(recursive=True)
    assert len(family) >= 2 + 4 + 1  # two models, four children of fork with a program, the guard
    page.process.kill()
    assert page.process.wait(SECONDS) == -signal.SIGKILL
    wait_until(lambda: not any(each.is_running() for each in family), SECONDS, lambda: str(family))
    wait_until(lambda: list(page.temporary.iterdir()) == [], SECONDS, page.text)


def test_what_the_page_shows_of_five_silent_clients(watch: Callable[..., LivePage]) -> None:
    page = watch("-p --parking never", "-a")
    assert page.press(do="send", kind="silent", count=6)[0] == 204
    assert page.press(do="send", kind="visitor")[0] == 204
    never, loop = page.until(
        lambda models: (
            models[0]["queued"] == 2
            and models[1]["answered"] == 1
            and any(kinds(models, "visitor", "answered"))
        )  # the client has read what the server has sent
    )
    assert [row[2:3] + row[4:5] for row in never["rows"]] == [["waits", "request"]] * 5
    assert {row[5] for row in never["rows"]} == {f"silent {number}" for number in range(1, 6)}
    assert loop["parked"] == 6 and loop["queued"] == 0
    assert kinds([never, loop], "visitor", "answered") == [0, 1]
    assert page.press(do="let-go")[0] == 204
    models = page.until(lambda models: kinds(models, "visitor", "answered") == [1, 1])
    assert kinds(models, "silent", "let go") == [6, 6]
    wait_until(lambda: page.until(lambda models: True)[0]["cost"], SECONDS)
    cost = page.until(lambda models: models[0]["cost"])[0]["cost"]
    assert cost["processes"] == 1 and cost["threads"] == 6 and cost["memory"] > 1_000_000


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        ("visitor", "answered"), ("silent", "let go"), ("slow sender", "let go"), ("slow reader", "let go"),
        ("keep-alive", "answered"), ("large file", "answered"), ("program", "answered"),
        ("blocking", "answered"), ("endless page", "let go"), ("flood", "answered"),
    ],
)  # fmt: skip
def test_every_button(watch: Callable[..., LivePage], kind: str, end: str) -> None:
    page = watch("-t", "-a")
    assert page.press(do="send", kind=kind)[0] == 204

    def all_ended(models: list[dict[str, Any]]) -> bool:
        if end == "let go" and all(model["open"] for model in models):
            page.press(do="let-go")  # more than once, for a client that reaches its gate later
        return all(kinds(models, kind, end)) and kinds(models, kind, end) == kinds(models, kind, "sent")

    models = page.until(all_ended)
    if kind == "flood":
        floods = [model["clients"]["flood"] for model in models]
        assert all(0 < flood["answered"] <= 2000 and "lost" not in flood for flood in floods), floods


def test_who_may_press_a_button(watch: Callable[..., LivePage]) -> None:
    page = watch("-t")
    do, body, kind = f"{page.path}do", '{"do": "send", "kind": "visitor"}', "application/json"
    rebound = f"evil.example:{page.port}"
    refused = {
        "another page": {"origin": "http://evil.example", "content_type": kind},
        "no origin": {"content_type": kind},
        "a form": {"origin": page.origin, "content_type": "text/plain"},
        "a rebound name": {"host": rebound, "origin": f"http://{rebound}", "content_type": kind},
        "another port": {"host": "127.0.0.1:80", "origin": "http://127.0.0.1:80", "content_type": kind},
        "another site": {"origin": page.origin, "content_type": kind, "sec_fetch_site": "cross-site"},
    }
    statuses = {name: page.ask("POST", do, body, **fields)[0] for name, fields in refused.items()}
    assert statuses == {
        "another page": 403, "no origin": 403, "a form": 415, "a rebound name": 421, "another port": 421,
        "another site": 403,
    }  # fmt: skip
    assert page.ask("POST", "/wrong/do", body, origin=page.origin, content_type=kind)[0] == 404
    assert page.ask("GET", "/")[0] == 404 and page.ask("GET", f"/{'a' * 22}/changes")[0] == 404
    assert page.ask("GET", page.path, host="evil.example")[0] == 421
    assert page.ask("GET", do)[0] == 405
    link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert page.ask("GET", page.path, **link)[0] == 200
    assert page.ask("GET", page.path, **link | {"sec_fetch_dest": "iframe"})[0] == 403
    assert page.ask("GET", f"{page.path}trace/0", **link)[0] == 403
    models = page.until(lambda models: True)
    assert kinds(models, "visitor", "sent") == [0]
    assert page.ask("POST", do, body, origin=page.origin, content_type=kind)[0] == 204
    page.until(lambda models: kinds(models, "visitor", "answered") == [1])


def test_a_stranger_who_holds_all_connections_stops_the_buttons_for_a_moment_only(
    watch: Callable[..., LivePage], tmp_path: Path
) -> None:
    """The page's server has a thread for each connection, and ends a silent one earlier than others do."""
    assert page_config(tmp_path).head_timeout < Config().head_timeout
    page = watch("-n")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard < 4096 else 4096, hard))
    try:
        with ExitStack() as stack:
            for _ in range(1100):
                stack.enter_context(socket.create_connection(("127.0.0.1", page.port), SECONDS))
            assert page.press(do="send", kind="visitor")[0] == 204
            page.until(lambda models: kinds(models, "visitor", "answered") == [1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_pages_that_read_nothing_are_few_and_the_others_go_on(watch: Callable[..., LivePage]) -> None:
    page = watch("-n")
    with ExitStack() as stack:

        def subscribe() -> bytes:
            """Ask for the stream, and read no more than the status."""
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", page.port), SECONDS))
            sock.sendall(f"GET {page.path}changes HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n\r\n".encode())
            return sock.recv(12, socket.MSG_WAITALL)

        answers = [subscribe() for _ in range(MOST_READERS + 1)]
        assert answers == [b"HTTP/1.1 200"] * MOST_READERS + [b"HTTP/1.1 503"]
        assert page.press(do="send", kind="visitor")[0] == 204
        stack.close()
        wait_until(
            lambda: subscribe() == b"HTTP/1.1 200", SECONDS
        )  # once the server sees that a page has gone


def test_a_stop_during_a_flood_prints_nothing(watch: Callable[..., LivePage]) -> None:
    page = watch("-t", "-a")
    assert page.press(do="send", kind="flood")[0] == 204
    page.until(lambda models: all(model["answered"] for model in models))
    assert page.stop() == 0
    assert page.text().count("\n") == 1, page.text()


def test_a_browser_gets_a_file_that_only_this_account_can_read(
    watch: Callable[..., LivePage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each account can read the arguments of all programs, and the URL is what a button needs."""
    shown = tmp_path / "shown"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$*" > {shown}.new\nmv {shown}.new {shown}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    page = watch("--open", "-n")
    wait_until(shown.exists, SECONDS)
    assert page.path.strip("/") not in shown.read_text()
    opener = Path(urlsplit(shown.read_text().strip()).path)
    assert page.temporary in opener.parents and page.url in opener.read_text()
    assert stat.S_IMODE(opener.stat().st_mode) == 0o600


def test_an_impossible_action_is_one_line(watch: Callable[..., LivePage]) -> None:
    page = watch("-p")
    for action, words in [
        ({"do": "send", "kind": "army"}, "there is no client 'army'"),
        ({"do": "fly"}, "there is no action 'fly'"),
        ({"do": "send"}, "not complete"),
        ({"do": "pace", "factor": 1e9}, "from 1 to 1000"),
        ({"do": "change", "model": 7, "values": {}}, "no model 7"),
        ({"do": "change", "model": 0, "values": {"poolthreads": "x"}}, "poolthreads"),
        ({"do": "change", "model": 0, "values": {"documentroot": "/"}}, "documentroot cannot be changed"),
        ({"do": "change", "model": 0, "values": {"\ud800": "x"}}, "cannot be changed here"),
        ({"do": "next"}, "no scene is shown"),
        ({"do": "send", "kind": "visitor", "count": 1e999}, "not complete"),
    ]:
        status, text = page.press(**action)
        assert status == 409 and words in text.decode() and b"\n" not in text, text
    nested = page.ask(
        "POST", f"{page.path}do", "[" * 8000, origin=page.origin, content_type="application/json"
    )
    assert nested == (409, b"a nested action") and "Traceback" not in page.text()
    assert page.until(lambda models: True)[0]["alive"]


def test_slow_motion_occupies_the_workers_longer(watch: Callable[..., LivePage]) -> None:
    page = watch("-p --poolthreads 2", "-a")
    assert page.press(do="pace", factor=100)[0] == 204
    page.press(do="send", kind="visitor", count=4)
    pool, _ = page.until(lambda models: models[0]["queued"] == 2)
    assert [row[2:5:2] for row in pool["rows"] if row[2]] == [["waits", "call"]] * 2
    models = page.until(lambda models: kinds(models, "visitor", "answered") == [4, 4])
    worst = [model["clients"]["kinds"]["visitor"]["worst"] for model in models]
    assert worst[0] >= 2 * 500 and worst[1] >= 500  # the pages wait for 500 ms, in the pool two after two


def test_each_page_learns_the_factor_of_slow_motion(watch: Callable[..., LivePage]) -> None:
    """Such as that of the projector, while the lecturer chooses it on a laptop."""
    page = watch("-n")
    changes = page.changes()
    assert next(changes)["factor"] == 1
    assert page.press(do="pace", factor=10)[0] == 204
    assert next(change["factor"] for change in changes if "factor" in change) == 10


def test_other_parameters_start_the_model_again(watch: Callable[..., LivePage]) -> None:
    page = watch("-p --parking never", "-t")
    page.press(do="send", kind="silent", count=3)
    page.until(lambda models: kinds(models, "silent", "waiting") == [3, 3])
    assert page.press(do="change", model=0, values={"poolthreads": "2", "parking": ""})[0] == 204
    facts = next(change for change in page.changes() if "all" in change)["all"]
    assert [each["label"] for each in facts] == ["pool, poolthreads: 2", "thread"]
    page.press(do="send", kind="blocking", count=3)
    first, other = page.until(lambda models: models[0]["queued"] == 1)
    assert kinds([first, other], "silent", "waiting") == [0, 3]


def test_the_recording_is_a_trace(watch: Callable[..., LivePage], tmp_path: Path) -> None:
    page = watch("-p")
    page.press(do="send", kind="visitor", count=3)
    page.until(lambda models: kinds(models, "visitor", "answered") == [3] and models[0]["open"] == 0)
    status, text = page.ask("GET", f"{page.path}trace/0")
    assert status == 200 and page.ask("GET", f"{page.path}trace/1")[0] == 404
    recorded = tmp_path / "recorded.trace"
    recorded.write_bytes(text)
    events = [event.kind for event in read(recorded)]
    assert events[0] == "model" and events.count("request") == 3 and events.count("closed") == 3


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["-p", "-t", "-a", "-f", "-n"], 2, "4 models at most"),
        (["-p --port 80"], 2, "--port is not an option of a model here"),
        (["-p --poolthreads"], 2, "--poolthreads needs a value"),
        (["-p --poolthreads no"], 2, "poolthreads"),
        (["--model", "nobody:Knows"], 2, "nobody:Knows"),
        (["-p", "some.trace"], 2, "either files or models"),
        (["-p", "--svg", "some.svg"], 2, "either files or models"),
        (["-p", "--scene", "pool-starves"], 2, "a scene names its models itself"),
        (["-p", "--check-scene", "pool-starves"], 2, "a scene names its models itself"),
        (["--scene", "pool-starve"], 2, "pool-starves"),
        (["--command", "server"], 2, "{port} is missing"),
        (["--command", "./absent {port}"], 1, "./absent does not start"),
    ],
)
def test_wrong_usage_is_one_line(words: list[str], status: int, text: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ewe_watch", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == status and done.stdout == ""
    assert text in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_model_of_ones_own(watch: Callable[..., LivePage], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from ewe.processors.serial import Serial\n\n\nclass Mine(Serial):\n    name = 'mine'\n"
    )
    page = watch("--model", "mine:Mine")
    page.press(do="send", kind="visitor")
    page.until(lambda models: kinds(models, "visitor", "answered") == [1] and models[0]["requests"] == 1)


FORGETS = """import socket, sys, threading, time
held = threading.Lock()
held.acquire()
threading.Thread(target=held.acquire, daemon=True).start()
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
listener, kept = socket.create_server(("127.0.0.1", int(sys.argv[1]))), []
while True:
    kept.append(listener.accept())
"""


def test_the_faults_of_a_server_that_are_seen_from_outside(
    watch: Callable[..., LivePage], tmp_path: Path
) -> None:
    """One thread waits for a lock that no thread releases, and no connection is ever closed."""
    (tmp_path / "server.py").write_text(FORGETS)
    page = watch("--command", f"{sys.executable} server.py {{port}}", "-t")
    calls = {"in accept4", "in futex", "in clock_nanosleep"}
    page.until(lambda models: {row[4] for row in models[0]["rows"]} == calls)
    page.press(do="send", kind="silent", count=3)
    page.until(lambda models: [(model["open"], model["left"]) for model in models] == [(3, 0), (3, 0)])
    page.press(do="let-go")
    page.until(lambda models: [model["left"] for model in models] == [3, 0])


def test_a_server_of_another_language(watch: Callable[..., LivePage], tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(
        "import http.server, os, sys\nos.chdir(sys.argv[2])\n"
        "http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), http.server.SimpleHTTPRequestHandler)"
        ".serve_forever()\n"
    )
    page = watch("--command", f"{sys.executable} server.py {{port}} {{root}}", "-t")
    page.press(do="send", kind="silent", count=3)
    page.press(do="send", kind="visitor")
    models = page.until(
        lambda models: (
            kinds(models, "visitor", "answered") == [1, 1]
            and all(sum(row[2] == "waits" for row in model["rows"]) == 3 for model in models)
        )
    )
    held = [{row[5] for row in model["rows"] if row[2]} for model in models]
    assert held[0] == held[1] == {"silent 1", "silent 2", "silent 3"}
    page.press(do="let-go")
    page.until(lambda models: [model["open"] for model in models] == [0, 0])
