"""Faults of the labs' solutions in Python, C and Go: each is caught by its own check, with the words for it."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from support.server import wait_until
from support.wire import read_all
from test_zoo import FAULTS, expect_caught, grade, solution_faults

from ewe_classroom.course.labs import lab
from ewe_classroom.grader import own_model
from ewe_classroom.grader.library_queues import library_queue, with_imports
from ewe_classroom.grader.sanitizers import parse
from ewe_classroom.grader.subject import BadSubject

faults = solution_faults
pytestmark = [pytest.mark.starts_processes, pytest.mark.timeout(300)]
RACES = ("queue-races", "shared-data")
# One of each kind that the check tells apart; with EWE_TEST_ZOO (`make zoo`) all.
QUICKLY = (
    "PutUnlocked, pool in C", "IfInGet, pool in C", "SignalsTheFirst, pool in C", "CloseWakesOne, pool in C",
    "OtherLock, pool in C", "MessageQueue, pool in C", "LockOrder, thread in C", "NotDetached, thread in C",
    "PutUnlocked, pool in Go", "IfInPut, pool in Go", "SignalsTheFirst, pool in Go", "ChannelAsQueue, pool in Go",
    "LibraryQueue, pool in Python",
)  # fmt: skip
NAMES = tuple(FAULTS) if os.environ.get("EWE_TEST_ZOO") else QUICKLY


@pytest.mark.parametrize("name", NAMES)
def test_the_check_meant_for_a_fault_catches_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    expect_caught(FAULTS[name], tmp_path, *faults.write(name, tmp_path / "work"))


def solution(name: str, language: str, directory: Path) -> list[str]:
    """Write and build the solution of a lab; return the arguments of ewe-grade."""
    directory.mkdir()
    for file, text in lab(name).files(lab(name).variant(language), solved=True).items():
        (directory / file).write_text(text)
    arguments: list[str] = faults.build(language, directory)
    return arguments


@pytest.mark.parametrize(
    ("name", "check"), [pytest.param("pool", "queue-races"), pytest.param("thread", "shared-data")]
)
@pytest.mark.parametrize("language", ["c", "go"])
def test_the_solution_has_no_race(name: str, check: str, language: str, tmp_path: Path) -> None:
    arguments = solution(name, language, tmp_path / "work")
    report, done = grade(tmp_path, "--lab", name, "--only", check, *arguments)
    (found,) = report["verdicts"]
    assert found["status"] == "passed" and done.returncode == 0, found["text"]


@pytest.mark.parametrize("language", ["C", "Go"])
def test_a_worker_too_few_costs_the_points_of_progress_alone(language: str, tmp_path: Path) -> None:
    """The bursts of queue-races would otherwise say that a wake-up is lost."""
    (tmp_path / "work").mkdir()
    arguments = faults.write(f"OneFewer, pool in {language}", tmp_path / "work")
    only = [
        word for check in ("progress", "exactly-n", "bursts", "queue-races") for word in ("--only", check)
    ]
    report, _ = grade(tmp_path, "--lab", "pool", "--limit", "0", *only, *arguments)
    assert [each["name"] for each in report["verdicts"] if each["status"] != "passed"] == ["progress"], report


@pytest.mark.needs("gcc")
def test_without_a_race_detector_no_points_are_lost(tmp_path: Path) -> None:
    arguments = solution("pool", "c", tmp_path / "work")
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "cc").write_text("#!/bin/sh\necho 'cannot find -ltsan: an error' >&2\nexit 1\n")
    (programs / "cc").chmod(0o755)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{programs}:{before}"
    try:
        report, done = grade(tmp_path, "--lab", "pool", "--only", "queue-races", *arguments)
    finally:
        os.environ["PATH"] = before
    (found,) = report["verdicts"]
    assert (found["status"], found["points"], done.returncode) == ("not judged", 0, 0), found["text"]
    assert "needs a C compiler with ThreadSanitizer" in found["text"]


@pytest.mark.needs("gcc")
def test_a_makefile_that_ignores_the_flags_is_told(tmp_path: Path) -> None:
    arguments = solution("pool", "c", tmp_path / "work")
    makefile = tmp_path / "work" / "Makefile"
    makefile.write_text(makefile.read_text().replace("$(CFLAGS)", "-D_GNU_SOURCE"))
    report, _ = grade(tmp_path, "--lab", "pool", "--only", "queue-races", *arguments)
    (found,) = report["verdicts"]
    assert found["status"] == "failed" and "does not use $(CFLAGS)" in found["text"], found["text"]


@pytest.mark.needs("gcc")
def test_a_program_without_its_sources_has_one_check_less(tmp_path: Path) -> None:
    solution("pool", "c", tmp_path / "work")
    program = tmp_path / "server"
    program.write_bytes((tmp_path / "work" / "server").read_bytes())
    program.chmod(0o755)
    report, _ = grade(tmp_path, "--lab", "pool", "--limit", "0.1", str(program))
    assert "queue-races" not in [each["name"] for each in report["verdicts"]]
    report, _ = grade(tmp_path, "--lab", "pool", "--limit", "0.1", str(tmp_path / "work" / "server"))
    assert "queue-races" in [each["name"] for each in report["verdicts"]]


HANDLER = """
WARNING: ThreadSanitizer: data race (pid=7)
  Write of size 4 at 0x01 by thread T1:
    #0 stop {directory}/server.c:2 (server+0x1)
    #1 __tsan::CallUserSignalHandler(int) <null> (libtsan.so.2+0x2)

  Previous read of size 4 at 0x01 by main thread:
    #0 main {directory}/server.c:1 (server+0x3)
"""


def test_a_flag_that_a_signal_handler_sets_is_no_race(tmp_path: Path) -> None:
    (tmp_path / "server.c").write_text("while (!stopping)\nstopping = 1;\n")
    text = HANDLER.replace("{directory}", str(tmp_path))
    assert parse(text, tmp_path) is None
    found = parse(text.replace("__tsan::CallUserSignalHandler(int)", "work"), tmp_path)
    assert found is not None and "thread T1 writes at server.c:2 in stop(): `stopping = 1;`" in found.did()
    assert found.cause() == "neither of the two places holds a lock"


def test_a_report_that_a_program_makes_itself_shows_no_file_behind_a_link(tmp_path: Path) -> None:
    """The program has put a link and a FIFO beside its sources, and prints a report about them."""
    (tmp_path / "secret").write_text("a\nthe solution\n")
    work = tmp_path / "work"
    work.mkdir()
    (work / "server.c").symlink_to("../secret")
    os.mkfifo(work / "pipe.c")
    text = HANDLER.replace("__tsan::CallUserSignalHandler(int)", "work")
    text = text.replace("{directory}/server.c:1", f"{work}/pipe.c:1").replace("{directory}", str(work))
    found = parse(text, work)
    assert found is not None and "at server.c:2 in stop(): ``" in found.did(), found
    assert "at pipe.c:1 in main(): ``" in found.did()
    assert parse(text.replace("server.c:2", f"server.c:{'9' * 5000}"), work) is None


@pytest.mark.parametrize(
    ("language", "text", "says"),
    [
        ("python", "import queue\n", "the module queue"),
        ("python", "from queue import SimpleQueue\n", "queue.SimpleQueue"),
        ("python", "from multiprocessing import Queue\n", "multiprocessing.Queue"),
        ("python", "from concurrent.futures import ThreadPoolExecutor\n", "ThreadPoolExecutor"),
        ("python", "from concurrent import futures\n", "concurrent.futures"),
        ("python", "import concurrent.futures.thread\n", "the module concurrent.futures.thread"),
        ("python", "import asyncio.queues as own\n", "the module asyncio.queues"),
        ("python", "from concurrent import harmless, futures\n", "uses concurrent.futures:"),
        ("python", "from collections import deque\nimport os, threading\n", ""),
        ("python", "from multiprocessing import cpu_count\n", ""),
        ("python", "import queue\ntry: put()\nexcept queue.Full: raise queue.Empty from None\n", ""),
        ("python", "import queue\ntry: put()\nexcept queue.Full: pass\ndef work(queue): queue.get()\n", ""),
        ("python", "import queue\ndef f():\n queue = Own()\n queue.put(1)\nqueue.Full\n", ""),
        ("python", "import queue\nqueue.Full\nclass A:\n queue: Own\n def f(self): self.queue.get()\n", ""),
        ("python", "import queue\nqueue.Full\ndef f(queue=queue): queue.Queue()\n", "the module queue"),
        ("python", "import queue\nqueue.Full\ndef f():\n import queue\n queue.Queue()\n", "module queue"),
        ("python", "import queue\nqueue.Full\ndef f(g=lambda queue: 0): queue.Queue()\n", "the module queue"),
        (
            "python",
            "import queue\nqueue.Full\ndef f(queue):\n def g():\n  global queue\n  queue.Queue()\n",
            "the module queue",
        ),
        (
            "python",
            "import queue\nqueue.Full\ndef f():\n [0 for queue in ()]\n queue.Queue()\n",
            "module queue",
        ),
        ("python", "import queue\nqueue.Full\nq = globals()['queue'].Queue()\n", "the module queue"),
        ("python", "import queue, sys\nqueue.Full\nq = sys.modules['queue'].Queue()\n", "the module queue"),
        ("python", "import multiprocessing as m\nn = m.cpu_count()\n", ""),
        ("python", "import queue\nq = queue.Queue()\nqueue.Full\n", "the module queue"),
        ("python", "import queue\nqueue.Full\nq = getattr(queue, 'Queue')()\n", "the module queue"),
        ("python", "import concurrent.futures\nconcurrent.futures.wait\n", "the module concurrent.futures"),
        ("go", "connections := make(chan net.Conn, 64)\n", "chan net.Conn"),
        ("go", "items chan *Item\n", "chan *Item"),
        ("go", "done := make(chan struct{})\n// a chan net.Conn\nstop := make(chan os.Signal, 1)\n", ""),
        ("go", "ended <-chan bool\n", ""),
        ("go", "lines := make(chan string, 100)\nvar tick <-chan time.Time\n", ""),
        ("go", "strange := make(chan stringer.Conn)\n", "chan stringer.Conn"),
        ("go", "dated := make(chan string.Conn)\n", "chan string.Conn"),
        ("c", "mqd_t q = mq_open(name, 0);\n", "mq_open()"),
        ("c", "/* mq_open() */\n", ""),
        ("c", 'char *any = "*/*"; mqd_t q = mq_open(name, 0); /* */\n', "mq_open()"),
        # Once through the text, and not once for each "/*", which would take an hour
        ("c", f'char *many = "{"/* " * 200_000}"; mqd_t q = mq_open(name, 0);\n', "mq_open()"),
    ],
)
def test_a_library_queue_is_found(language: str, text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "server"
    file.write_text(text)
    found = library_queue(language, [file])
    assert says in found and bool(found) == bool(says), found
    assert not says or found.startswith("server:1 uses ")


def test_only_the_files_of_the_server_are_searched_for_a_queue(tmp_path: Path) -> None:
    """A client beside the server may use any library."""
    server, own, client = (tmp_path / f"{name}.py" for name in ("server", "own", "client"))
    server.write_text(f"import os, own.more, {'a' * 300}\nfrom . import again\n")
    own.write_text("import server\nfrom again import x\n")
    (tmp_path / "again.py").write_text("def broken(:\n")
    client.write_text("import queue\n")
    assert with_imports(server) == [server, tmp_path / "again.py", own]
    own.write_text("import client\n")
    assert client in with_imports(server)
    own.write_text("__import__('cli' + 'ent')\n")
    assert client in with_imports(server) and client in with_imports(tmp_path / "package.model.py")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("from own import queue\nq = queue.Queue()\n", "server.py:1 uses queue of own:"),
        ("from own import *\nq = queue.Queue()\n", "server.py:1 uses * of own:"),
        ("import own\nq = own.queue.Queue()\n", "server.py:2 uses own.queue:"),
        ("from own import *\ndef f(queue): queue.put(1)\n", ""),
        ("import own\nown.put(1)\nself.queue.put(1)\n", ""),
        ("from state import queue\nqueue.put(1)\n", ""),
    ],
)
def test_a_module_with_a_queue_is_found_that_another_file_imports(
    text: str, says: str, tmp_path: Path
) -> None:
    server, own, state = (tmp_path / f"{name}.py" for name in ("server", "own", "state"))
    server.write_text(text)
    own.write_text("import queue\ntry: put()\nexcept queue.Full: pass\n")
    state.write_text("queue = Own()\n")
    found = library_queue("python", [server, own, state])
    assert says in found and bool(found) == bool(says), found


def test_the_given_files_have_no_library_queue(tmp_path: Path) -> None:
    for language in ("python", "c", "go"):
        directory = tmp_path / language
        directory.mkdir()
        for file, text in lab("pool").files(lab("pool").variant(language), solved=True).items():
            (directory / file).write_text(text)
        assert library_queue(language, sorted(directory.iterdir())) == ""


@pytest.mark.needs("gcc")
def test_the_unlucky_conditions_compile_without_a_warning(tmp_path: Path) -> None:
    header = Path(faults.__file__).parents[2] / "ewe_classroom/grader/unlucky/ewe_unlucky.h"
    (tmp_path / "empty.c").write_text("int main(void) { return 0; }\n")
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-include", str(header)]
    subprocess.run(["cc", *flags, "-o", "empty", "empty.c"], cwd=tmp_path, check=True)


@pytest.mark.parametrize("language", ["python", "c", "go"])
def test_a_solution_follows_no_link_out_of_its_directory(language: str, tmp_path: Path) -> None:
    """The text of the labs forbids it, also for the index file of a directory."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("secret")
    (root / "index.html").symlink_to("../secret")
    (root / "own.html").write_text("own")
    solution("serial", language, tmp_path / "work")
    program = [sys.executable, "server.py"] if language == "python" else ["./server"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen([*program, str(port), str(root), "1"], cwd=tmp_path / "work")
    try:
        wait_until(lambda: status_of(port, "/own.html") == 200, 30)
        assert [status_of(port, path) for path in ("/index.html", "/")] == [404, 404]
    finally:
        server.kill()
        server.wait()


def test_a_file_with_the_words_of_a_head_arrives_unchanged(tmp_path: Path) -> None:
    """The server of the lab scheduling changes the head of its response, and never the file after it."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "words.txt").write_text("Connection: keep-alive\n")
    solution("scheduling", "python", tmp_path / "work")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "server.py", str(port), str(root), "1"], cwd=tmp_path / "work")
    try:
        wait_until(lambda: status_of(port, "/words.txt") == 200, 30)
        with urlopen(f"http://127.0.0.1:{port}/words.txt", timeout=30) as response:
            assert response.headers["Connection"] == "close"
            assert response.read() == b"Connection: keep-alive\n"
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize(
    ("name", "language"), [("serial", "python"), ("serial", "c"), ("serial", "go"), ("caching", "python")]
)
def test_the_refusal_of_a_head_has_no_body(name: str, language: str, tmp_path: Path) -> None:
    """RFC 9110 section 9.3.2: no response to HEAD has a body."""
    solution(name, language, tmp_path / "work")
    program = [sys.executable, "server.py"] if language == "python" else ["./server"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    server = subprocess.Popen([*program, str(address[1]), str(tmp_path), "1"], cwd=tmp_path / "work")
    try:
        wait_until(lambda: connects(address), 30)
        with socket.create_connection(address, 30) as client:
            client.sendall(b"HEAD /missing HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = read_all(client)
        assert answer.startswith(b"HTTP/1.1 404 ") and answer.endswith(b"\r\n\r\n"), answer
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("name", ["serial", "event"])
def test_a_long_head_in_go_is_refused_also_if_its_end_has_arrived(name: str, tmp_path: Path) -> None:
    """The limit of a head does not depend on the pieces in which it arrives."""
    solution(name, "go", tmp_path / "work")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    server = subprocess.Popen(["./server", str(address[1]), str(tmp_path), "1"], cwd=tmp_path / "work")
    try:
        wait_until(lambda: connects(address), 30)
        with socket.create_connection(address, 30) as client:
            client.sendall(b"GET /?" + b"x" * 17_000 + b" HTTP/1.1\r\nConnection: close\r\n\r\n")
            assert read_all(client).startswith(b"HTTP/1.1 431 ")
    finally:
        server.kill()
        server.wait()


@pytest.mark.needs("gcc")
def test_the_end_of_a_forking_server_kills_its_children_and_no_other_process(tmp_path: Path) -> None:
    """A shell and its jobs may be in one process group with the server."""
    for file, text in lab("fork").files(lab("fork").variant("c"), solved=True).items():
        (tmp_path / file).write_text(text.replace("#define GRACE_S 10 ", "#define GRACE_S 0 "))
    faults.build("c", tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    command = ["sh", "-c", f"./server {address[1]} . & echo $!; wait; echo goes on"]
    shell = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert shell.stdout is not None
    server = int(shell.stdout.readline())
    try:
        wait_until(lambda: connects(address), 30)
        with socket.create_connection(address, 30) as client:
            client.sendall(b"GET /server.c HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 200"
            os.kill(server, signal.SIGTERM)
            # It ends when no process has this pipe any more, so the child of the conversation has ended, too.
            assert shell.stdout.read() == "goes on\n"
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.stdout.close()
        shell.wait()


VERSION = (
    "from conversation import parse\nprint(parse(b'GET / HTTP/1.0\\r\\nVersion: HTTP/1.1')[2]['version'])"
)
# The second byte of this letter in UTF-8 is 0x85, at which str.splitlines() splits.
LETTER = """
from server import response_of
print(response_of("X-Name: \u00c5sa\\n\\nbody".encode(), None, "").status)
"""
NO_CONTENT = (
    "from web import Response, encode\nprint(encode(Response(204, b'x'), keeps_open=True, is_head=False))"
)
NAME_OF_SERVER = """
from server import variables
from web import Request
request = Request("GET", "/cgi-bin/x", "", "HTTP/1.1", {"host": "[::1]:8080"}, b"", "::1", 8080)
print(variables(request, "/cgi-bin/x", "")["SERVER_NAME"])
"""
NO_THREAD = """
import io, sys, threading, server

class Listener:
    clients = [io.BytesIO()]
    def __enter__(self):
        return self
    def __exit__(self, *_):
        pass
    def accept(self):
        if not self.clients:
            sys.exit("it goes on")
        return self.clients.pop(), None

def start(thread):
    raise RuntimeError("can't start new thread")

server.listen, sys.argv, sys.stderr = lambda port: Listener(), ["server.py", "0", "."], sys.stdout
threading.Thread.start = start
server.main()
"""
RESET_BY_CLIENT = """
import front

class Reset:
    def recv(self, size):
        return b"GET / HTTP/1.1\\r\\n\\r\\n"
    def settimeout(self, seconds):
        pass
    def getpeername(self):
        raise OSError("not connected any more")

class Selector:
    def unregister(self, connection):
        pass

front.read_on(front.IncompleteRequest(Reset(), 4711), Selector(), ".", lambda request, head: print(request.client))
"""
ZOMBIE = """
import os, subprocess
from engine import Engine
ended, running = subprocess.Popen(["true"]), subprocess.Popen(["sleep", "60"])
os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
print(Engine.__new__(Engine).has_leftovers())
running.kill()
running.wait()
"""


@pytest.mark.parametrize(
    ("name", "program", "output"),
    [
        pytest.param("serial", VERSION, "HTTP/1.0", id="a field called Version is not the version"),
        pytest.param("cgi", LETTER, "200", id="a letter in a field ends no line"),
        pytest.param(
            "cgi",
            NO_CONTENT,
            str(b"HTTP/1.1 204 No Content\r\nConnection: keep-alive\r\n\r\n"),
            id="a response with status 204 has no body",
        ),
        pytest.param("cgi", NAME_OF_SERVER, "[::1]", id="the name of a server may be an address of IPv6"),
        pytest.param("caching", NO_THREAD, "it goes on", id="a server without a free thread goes on"),
        pytest.param("scheduling", RESET_BY_CLIENT, "4711", id="a client resets after its request"),
        pytest.param("engine", ZOMBIE, "True", id="a zombie hides no running child"),
    ],
)
def test_a_part_of_a_solution(name: str, program: str, output: str, tmp_path: Path) -> None:
    solution(name, "python", tmp_path / "work")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path / "work", capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == output, done.stderr


def status_of(port: int, path: str) -> int:
    """Return the status of the response to a GET request; 0 if no server listens yet."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
            return int(response.status)
    except HTTPError as error:
        return error.code
    except URLError:
        return 0


def test_a_model_of_ewe_is_found_behind_a_relative_import(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("from . import helper\n")
    (tmp_path / "helper.py").write_text("from ewe.processors.pool import Pool\n")
    with pytest.raises(BadSubject, match=r"helper\.py, line 1: this takes Pool from ewe"):
        own_model.expect_own_work(tmp_path / "server.py")


RESET = struct.pack("ii", 1, 0)  # struct linger: close() sends RST


@pytest.mark.parametrize("name", ["serial", "pool", "caching", "cgi", "scheduling"])
def test_a_refusal_that_cannot_be_sent_stops_no_worker(name: str, tmp_path: Path) -> None:
    """A client resets the connection after a request with a head or a length that is too long, or with no fault."""
    (tmp_path / "index.html").write_text("hello\n")
    for file, text in lab(name).files(lab(name).variant("python"), solved=True).items():
        (tmp_path / file).write_text(text)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = probe.getsockname()
    command = [sys.executable, "server.py", str(address[1]), str(tmp_path), "2"]
    with (tmp_path / "errors").open("wb") as errors:
        server = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=errors)
    try:
        wait_until(lambda: connects(address), 20)
        length = b"GET / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"
        for sent in [b"x" * 20_000, length, b"GET / HTTP/1.1\r\n\r\n"] * 3:
            with socket.create_connection(address, 10) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                client.sendall(sent)
        with socket.create_connection(address, 10) as client:
            client.sendall(b"GET /index.html HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert read_all(client).endswith(b"\r\n\r\nhello\n")
    finally:
        server.kill()
        server.wait()
    assert (tmp_path / "errors").read_text() == ""


def of_lab(name: str, module: str, monkeypatch: pytest.MonkeyPatch, directory: Path) -> types.ModuleType:
    """Import a module of a lab's solution. It is forgotten after the test."""
    files = lab(name).files(lab(name).variant("python"), solved=True)
    for file, text in files.items():
        (directory / file).write_text(text)
        # At the end, monkeypatch restores the module of this name, or removes the new one.
        monkeypatch.setitem(sys.modules, file.removesuffix(".py"), types.ModuleType("none"))
        del sys.modules[file.removesuffix(".py")]
    monkeypatch.syspath_prepend(str(directory))
    return importlib.import_module(module)


def test_a_field_named_version_changes_no_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parse = of_lab("serial", "conversation", monkeypatch, tmp_path).parse
    _, _, fields = parse("GET / HTTP/1.0\r\nVersion: HTTP/1.1\r\nX: \t\xc3\xa0 ".encode("latin-1"))
    assert fields == {"version": "HTTP/1.0", "x": "\xc3\xa0"}


def test_a_cgi_program_may_send_fields_in_utf8_and_no_content(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = of_lab("cgi", "server", monkeypatch, tmp_path)
    output = "Status: 204\r\nX-Name: Å, à\r\n\r\nnot a body".encode()
    response = server.response_of(output, None, str(tmp_path))
    encoded = sys.modules["web"].encode(response, keeps_open=True, is_head=False)
    assert encoded == "HTTP/1.1 204 No Content\r\nX-Name: Å, à\r\nConnection: keep-alive\r\n\r\n".encode()


def test_a_local_redirect_takes_no_fields_of_the_body_along(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = of_lab("cgi", "server", monkeypatch, tmp_path)
    web = sys.modules["web"]
    fields = {"content-type": "text/plain", "content-length": "4", "cookie": "a=b"}
    request = web.Request("POST", "/cgi-bin/first", "", "HTTP/1.1", fields, b"body", "127.0.0.1", 80)
    asked: list[Any] = []
    web.local_redirect(request, str(tmp_path), "/cgi-bin/second", lambda other, root: asked.append(other))
    variables = server.variables(asked[0], "/cgi-bin/second", "")
    assert variables["REQUEST_METHOD"] == "GET" and variables["HTTP_COOKIE"] == "a=b"
    assert not {"CONTENT_TYPE", "CONTENT_LENGTH"} & variables.keys()


@pytest.mark.parametrize(("name", "module"), [("thread", "server"), ("cgi", "web")])
def test_a_signal_before_a_thread_starts_ends_a_server_in_order(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = of_lab(name, module, monkeypatch, tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def start(self: Any) -> None:
        self._args[0].close()  # the connection, which only a thread that runs would close
        raise server.Stop

    monkeypatch.setattr(threading.Thread, "start", start)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        server.serve(listener, str(tmp_path), 1)
        assert listener.fileno() == -1


def test_a_cache_closes_a_connection_for_which_there_is_no_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = of_lab("caching", "server", monkeypatch, tmp_path)
    ours, theirs = socket.socketpair()
    accepted = iter([(theirs, "")])
    listener = contextlib.nullcontext(types.SimpleNamespace(accept=lambda: next(accepted)))
    monkeypatch.setattr(server, "listen", lambda port: listener)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["server.py", "0", str(tmp_path)])

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with ours, pytest.raises(StopIteration):  # the end of `accepted`
        server.main()
    assert theirs.fileno() == -1


ENGINE_SCRIPTS = {
    "a/script.py": "import sys\nsys.path.insert(0, '/lib')\nimport helper\nprint(helper.NAME)\n",
    "a/helper.py": "NAME = 'a'\n",
    "b/script.py": "import helper\nprint(helper.NAME)\n",
    "b/helper.py": "NAME = 'b'\n",
}


def test_an_engine_forgets_the_modules_of_a_script_that_changes_its_path(tmp_path: Path) -> None:
    for file, text in ENGINE_SCRIPTS.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    files = lab("engine").files(lab("engine").variant("python"), solved=True)
    (tmp_path / "engine.py").write_text(files["engine.py"])
    # The engine has its data socket as 0 and 1, and its control socket as 3.
    start = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.execv(sys.executable, [sys.executable, sys.argv[2]])"
    data, of_engine = socket.socketpair()
    control, of_control = socket.socketpair()
    command = [sys.executable, "-c", start, str(of_control.fileno()), str(tmp_path / "engine.py")]
    with data, control, of_engine, of_control:
        engine = subprocess.Popen(command, stdin=of_engine, stdout=of_engine, pass_fds=[of_control.fileno()])
        of_control.close()
        for name in ("a", "b"):
            control.sendall(f"{tmp_path}/{name}/script.py\n\n".encode())
            assert control.recv(100) == b"\x040\n"
            assert data.recv(100) == f"{name}\n".encode()
    assert engine.wait(30) == 0


def connects(address: tuple[str, int]) -> bool:
    """Return whether a server listens."""
    with socket.socket() as sock:
        return sock.connect_ex(address) == 0
