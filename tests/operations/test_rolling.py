"""share/haproxy: two servers are restarted with a new version, one after the other, and no request is lost."""

from __future__ import annotations

import http.server
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar

import pytest
from support.resources import PATH
from support.server import ROOT, free_port, wait_until

HAPROXY = ROOT / "share/haproxy"
SETTINGS = {"machines": HAPROXY / "haproxy.cfg", "containers": ROOT / "share/compose/state-haproxy.cfg"}
RESTART = """#!/bin/sh
# restart NAME PORT VERSION: end the server of that name, wait for it, and start one of that version
cd {directory}
if [ -f $1.pid ]; then kill $(cat $1.pid); while kill -0 $(cat $1.pid) 2>/dev/null; do sleep 0.05; done; fi
export PYTHONPATH={root}
setsid {python} -m ewe -a --host 127.0.0.1 --port $2 --documentroot $3 --access-log off >$1.log 2>&1 &
echo $! >$1.pid
"""


def answer(url: str) -> str:
    """The body of an answer, over a new connection."""
    with urllib.request.urlopen(url, timeout=20) as found:
        return str(found.read().decode())


def answers(url: str) -> bool:
    """Whether a server answers."""
    try:
        return bool(answer(url))
    except OSError:
        return False


@contextmanager
def running_haproxy(settings: Path, directory: Path, ports: dict[str, int]) -> Iterator[str]:
    """HAProxy with a file of `share`, its socket in a directory, and the servers' ports by name. Yield its URL."""
    front, text = free_port(), settings.read_text()
    text = re.sub(r"(stats socket )\S+", rf"\g<1>{directory / 'sock'}", text)
    text = re.sub(r"bind :\d+", f"bind 127.0.0.1:{front}", text)
    for name, port in ports.items():
        text, count = re.subn(rf"(server {name} )\S+", rf"\g<1>127.0.0.1:{port}", text)
        assert count == 1
    (directory / "haproxy.cfg").write_text(text)
    command = ["haproxy", "-f", str(directory / "haproxy.cfg")]
    with (directory / "haproxy.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PATH": PATH})
    try:
        yield f"http://127.0.0.1:{front}/"
    finally:
        process.terminate()
        process.wait()


@contextmanager
def behind_haproxy(directory: Path) -> Iterator[tuple[str, dict[str, int]]]:
    """Two servers of version v1 behind HAProxy. Yield its URL, and the servers' ports by name."""
    for version in ("v1", "v2"):
        (directory / version).mkdir()
        (directory / version / "index.html").write_text(version)
    restart = directory / "restart"
    restart.write_text(RESTART.format(directory=directory, root=ROOT, python=sys.executable))
    restart.chmod(0o755)
    ports = {"one": free_port(), "two": free_port()}
    with ExitStack() as stack:
        for name, port in ports.items():
            subprocess.run([restart, name, str(port), "v1"], check=True)
            pid = directory / f"{name}.pid"
            stack.callback(lambda pid=pid: os.kill(int(pid.read_text()), signal.SIGTERM))
        url = stack.enter_context(running_haproxy(SETTINGS["machines"], directory, ports))
        urls = (url, *(f"http://127.0.0.1:{port}/" for port in ports.values()))
        wait_until(lambda: all(map(answers, urls)), 30)
        # HAProxy may have found a server down that was still starting. It sends it requests after good checks only.
        script = runpy.run_path(str(HAPROXY / "roll.py"))
        wait_until(
            lambda: all(map(script["is_healthy"], script["rows"](str(directory / "sock")).values())), 30
        )
        yield url, ports


@pytest.mark.starts_processes
@pytest.mark.needs("haproxy")
def test_a_change_of_version_loses_no_request(tmp_path: Path) -> None:
    over, seen, lost = threading.Event(), Counter[str](), []

    def visit(url: str) -> None:
        while not over.wait(0.02):
            try:
                seen[answer(url)] += 1
            except OSError as reason:
                lost.append(reason)

    with behind_haproxy(tmp_path) as (url, ports):
        visitors = [threading.Thread(target=visit, args=(url,)) for _ in range(4)]
        for each in visitors:
            each.start()
        try:
            for name, port in ports.items():
                command = [tmp_path / "restart", name, str(port), "v2"]
                done = subprocess.run(
                    [sys.executable, HAPROXY / "roll.py", tmp_path / "sock", f"ewe/{name}", *command],
                    capture_output=True, text=True, timeout=100,
                )  # fmt: skip
                assert (done.returncode, done.stdout) == (0, f"ewe/{name}: restarted\n"), done.stderr
        finally:
            over.set()
            for each in visitors:
                each.join()
        assert {answer(url) for _ in range(4)} == {"v2"}
    assert not lost
    assert seen["v1"] and seen["v2"]


@pytest.mark.starts_processes
@pytest.mark.needs("haproxy")
def test_a_wrong_name_or_command_is_one_line(tmp_path: Path) -> None:
    with behind_haproxy(tmp_path) as (url, _):
        for words, said in (
            (("ewe/three", "true"), "no server ewe/three"),
            (("ewe/one", "false"), "the command failed"),
        ):
            done = subprocess.run(
                [sys.executable, HAPROXY / "roll.py", tmp_path / "sock", *words],
                capture_output=True, text=True, timeout=100,
            )  # fmt: skip
            assert done.returncode == 1
            assert re.fullmatch(f".*{said}.*\n", done.stderr)
        assert answer(url) == "v1"  # the other server serves on


@pytest.mark.starts_processes
@pytest.mark.needs("haproxy")
def test_a_busy_server_is_not_taken_for_dead(tmp_path: Path) -> None:
    """The other one is drained, and this one stands still for three intervals of the check."""
    with behind_haproxy(tmp_path) as (url, _):
        ask = runpy.run_path(str(HAPROXY / "roll.py"))["ask"]
        ask(str(tmp_path / "sock"), "set server ewe/one state drain")
        pid = int((tmp_path / "two.pid").read_text())
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(1.5, os.kill, (pid, signal.SIGCONT)).start()
        assert answer(url) == "v1"
        assert {answer(url) for _ in range(4)} == {"v1"}


class ClosesWithoutAnswer(http.server.BaseHTTPRequestHandler):
    """Answers HAProxy's check of the path /. Counts any other request, and closes the connection."""

    counts: ClassVar[Counter[str]]

    def do_GET(self) -> None:
        if self.path == "/":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"up")
        else:
            self.counts[self.command] += 1

    def do_POST(self) -> None:
        self.counts[self.command] += 1

    def log_message(self, *_: object) -> None:
        """Write no log."""


@pytest.mark.starts_processes
@pytest.mark.needs("haproxy")
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_post_without_an_answer_is_sent_once(tmp_path: Path, settings: Path) -> None:
    """RFC 9110 section 9.2.2: it may have had its effect, so no proxy repeats it. HAProxy repeats a GET."""

    class Handler(ClosesWithoutAnswer):
        counts: ClassVar[Counter[str]] = Counter()

    with ExitStack() as stack:
        server = stack.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        ports = dict.fromkeys(("one", "two"), server.server_address[1])
        url = stack.enter_context(running_haproxy(settings, tmp_path, ports))
        wait_until(lambda: answers(url), 30)
        for body in (None, b""):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(url + "page", body, timeout=20)
            refused.value.close()
            assert refused.value.code == 502
    assert Handler.counts == {"GET": 4, "POST": 1}


HEAD = "# pxname,svname,type,status,scur,check_status,check_health,check_rise,check_fall,"
ONE, TWO = "ewe,one,2,UP,0,L7OK,3,2,2,", "ewe,two,2,UP,0,L7OK,3,2,2,"
BOTH = "\n".join((HEAD, ONE, TWO, "", ""))


def roll(path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run the script for the server `one`."""
    full = [sys.executable, HAPROXY / "roll.py", path, "ewe/one", *command]
    return subprocess.run(full, capture_output=True, text=True, timeout=100)


@contextmanager
def answering(path: Path, *answers: str) -> Iterator[None]:
    """Answer as HAProxy's socket at a path does: once with each answer, over a connection each."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def reply() -> None:
            for answer in answers:
                with listening.accept()[0] as sock:
                    sock.recv(4096)
                    sock.sendall(answer.encode())

        haproxy = threading.Thread(target=reply, daemon=True)
        haproxy.start()
        yield
        haproxy.join(20)
        assert not haproxy.is_alive(), "roll.py has asked less than it should"


@pytest.mark.starts_processes
def test_a_server_is_not_restarted_if_haproxy_refuses(tmp_path: Path) -> None:
    """A socket without `level admin` tells the figures, but changes no state."""
    path, marker = tmp_path / "sock", tmp_path / "restarted"
    with answering(path, BOTH, BOTH, "Permission denied\n\n"):
        done = roll(path, "touch", str(marker))
    assert (done.returncode, done.stderr) == (1, "HAProxy does not set ewe/one to drain: Permission denied\n")
    done = roll(path, "touch", str(marker))
    assert (done.returncode, done.stderr) == (1, f"HAProxy does not answer at {path}: Connection refused\n")
    assert not marker.exists()


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (TWO.replace("UP", "DOWN"), "no other server beside ewe/one is up"),
        (TWO.replace("UP", "DRAIN"), "no other server beside ewe/one is up"),
        (TWO.replace("ewe,", "else,"), "no other server beside ewe/one is up"),
        (TWO.replace(",2,UP", ",1,UP"), "no other server beside ewe/one is up"),
    ],
    ids=["down", "drained", "of another backend", "the backend's sum"],
)
def test_the_last_server_that_is_up_stays(tmp_path: Path, second: str, expected: str) -> None:
    path, marker = tmp_path / "sock", tmp_path / "restarted"
    stat = "\n".join((HEAD, ONE, second, "", ""))
    with answering(path, stat, stat):
        done = roll(path, "touch", str(marker))
    assert done.returncode == 1 and done.stderr.startswith(expected)
    assert not marker.exists()


@pytest.mark.starts_processes
def test_a_server_without_a_check_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    with answering(path, BOTH.replace(ONE, "ewe,one,2,no check,0,,,,,")):
        done = roll(path, "true")
    assert done.returncode == 1 and re.fullmatch(
        "HAProxy does not check ewe/one: write `check`.*\n", done.stderr
    )


def test_a_server_is_healthy_once_its_checks_were_good() -> None:
    """One good check after a failure is not enough: HAProxy sends it no requests until `rise` checks were good."""
    is_healthy = runpy.run_path(str(HAPROXY / "roll.py"))["is_healthy"]
    known = {"3": True, "2": False, "1": False, "0": False}
    limits = {"check_rise": "2", "check_fall": "2"}
    assert {health: is_healthy({"check_health": health, **limits}) for health in known} == known
