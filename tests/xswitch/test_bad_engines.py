"""Engines that do not keep to the protocol: a clear status, no hang, and the next request finds a fresh one."""

from __future__ import annotations

import os
import random
import signal
import socket
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
from support.server import wait_until
from support.xswitch_client import HEAD, PYTHON_HELLO, XSwitch, xswitch

from ewe.xswitch.switch.fastcgi_engine import FastCGIEngine

pytestmark = pytest.mark.starts_processes

# Runs the script as a piece of itself: `control` and `data` are there to be misused.
MISUSED = """import os, sys
while True:
    lines = b""
    while lines.count(b"\\n") < 2:
        piece = os.read(3, 65536)
        if not piece: sys.exit()
        lines += piece
    path = lines.split(b"\\t")[0].split(b"\\n")[0]
    exec(open(path).read())
"""
ANSWER = f'os.write(1, b"{HEAD}\\nanswer")\n'


@pytest.fixture(scope="module")
def running() -> Iterator[XSwitch]:
    with xswitch("time-limit = '1s'\nmax-engines-per-user = 2") as started:
        engine = started.directory / "misused.py"
        engine.write_text(MISUSED)
        config = started.directory / "xswitch.toml"
        table = f'\n[engines.bad]\ncommand = ["python3", "{engine}"]\nextensions = [".bad"]\n'
        wire = f'\n[engines.wire]\ncommand = ["python3", "{engine}.fcgi"]\nextensions = [".wire"]\n'
        wire += 'protocol = "fastcgi"\n'
        config.write_text(config.read_text() + table + wire)
        os.kill(started.process.pid, signal.SIGHUP)
        started.wait_for_log("the settings were read again")
        yield started
        assert started.ask(started.script("fine.py", PYTHON_HELLO)).text == "hello\n"


@pytest.mark.parametrize(
    ("code", "status", "body"),
    [
        (ANSWER + "os.write(3, b'\\4' + b'0\\n')", 200, b"answer"),
        (ANSWER + "os.write(3, b'\\4'); os.write(3, b'25'); os.write(3, b'5\\n')", 200, b"answer"),
        (ANSWER + "os.write(3, b'done\\n')", 502, b""),
        (ANSWER + "os.write(3, b'\\4' + b'0\\n\\4' + b'0\\n')", 502, b""),
        (ANSWER + "os.write(3, b'\\4' * 100)", 502, b""),
        (ANSWER + "os.write(3, b'\\4' + b'99999')", 502, b""),
        ("os.write(3, b'\\4' + b'0\\n')", 502, b""),
        ("import time; time.sleep(60)", 504, b""),
        ("os.close(3); import time; time.sleep(60)", 504, b""),
        ("os.close(0); os.close(1)\nwhile True: pass", 504, b""),
        ("sys.exit(5)", 502, b""),
        (ANSWER + "os.close(3); os.close(0); os.close(1)", 200, b"answer"),
        (ANSWER + "os._exit(1)", 200, b"answer"),
    ],
)
def test_a_bad_engine_is_told_and_replaced(running: XSwitch, code: str, status: int, body: bytes) -> None:
    reply = running.ask(running.script("try.bad", code))
    assert reply.status == status or (status == 502 and reply.status == 0 and reply.body == b"answer"), (
        running.log()
    )
    if status == 200:
        assert reply.body == body
    good = running.script("good.bad", ANSWER + "os.write(3, b'\\4' + b'0\\n')")
    for _ in range(3):
        assert running.ask(good).body == b"answer", running.log()


def test_an_engine_that_speaks_while_nobody_asks_is_ended(running: XSwitch) -> None:
    for late in ("os.write(1, b'more')", "os.write(3, b'\\4' + b'0\\n')", "os.close(3)"):
        code = ANSWER + f"os.write(3, b'\\4' + b'0\\n')\nimport time; time.sleep(0.2); {late}"
        assert running.ask(running.script("late.bad", code)).body == b"answer"
        wait_until(lambda: not any(each["language"] == "bad" for each in running.engines()), 20)


def test_random_marks_do_no_harm(running: XSwitch) -> None:
    chance = random.Random(11)
    for _ in range(25):
        said = bytes(chance.choice(b"\x04\x0a0123 x\xff") for _ in range(chance.randrange(1, 8)))
        code = ANSWER + f"os.write(3, {said!r})\nimport time; time.sleep(0.05); sys.exit()"
        reply = running.ask(running.script("random.bad", code))
        assert reply.status in (200, 502, 504, 0)
    assert "fault" not in running.log()


@pytest.mark.parametrize(
    "code",
    [
        "c.send(b'HTTP/1.1 200 OK\\r\\n\\r\\n')",
        "c.send(fastcgi(6, 9, b'other id'))",
        "c.send(fastcgi(6, 1, b'Content-Type: text/plain\\n\\nhalf')[:-9])",
        "c.send(fastcgi(3, 1, b'short'))",
        "c.send(fastcgi(3, 1, bytes([0, 0, 0, 0, 2, 0, 0, 0])))",
        "c.send(fastcgi(3, 1, bytes(8)))",
        "c.send(fastcgi(77, 1, b''))",
        "pass",
    ],
)
def test_a_bad_fastcgi_engine_is_told(running: XSwitch, code: str) -> None:
    write_engine(running, code)
    assert running.ask(running.script("x.wire", "")).status in (502, 0)
    assert "fault" not in running.log()


def write_engine(running: XSwitch, code: str) -> None:
    """Write the engine of .wire. `c` is its connection, on which the first request has come."""
    (running.directory / "misused.py.fcgi").write_text(f"""import socket, struct
def fastcgi(kind, number, content): return struct.pack(">BBHHBx", 1, kind, number, len(content), 0) + content
c, _ = socket.socket(fileno=0).accept()
c.recv(65536)
{code}
""")


@pytest.mark.parametrize(
    ("piece", "cause"), [(b"", "it closed its connection"), (b"x", "it wrote although no request runs")]
)
def test_why_an_idle_fastcgi_engine_ends(piece: bytes, cause: str) -> None:
    data, other_end = socket.socketpair()
    with other_end:
        engine = FastCGIEngine(Mock(), ("alice", "php"), data, -1)
        engine.handle_records(piece)
    assert engine.end_cause == cause


def test_what_comes_late_is_not_taken_for_the_next_answer(running: XSwitch) -> None:
    """A PHP script has forked, for example: both processes end the request, one of them late."""
    write_engine(
        running,
        """answer = lambda text: c.send(fastcgi(6, 1, b'Content-Type: a/b\\n\\n' + text) + fastcgi(3, 1, bytes(8)))
answer(b'first')
c.recv(65536)
answer(b'late')
""",
    )
    script = running.script("x.wire", "")
    assert [running.ask(script).body for _ in range(2)] == [b"first", b"first"], running.log()
