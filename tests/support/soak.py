"""A bounded soak: mixed traffic against a real server, with faults injected, and every answer checked.

    python tests/support/soak.py --model "thread --workers 2" --seconds 60

Clients ask for files, ranges and programs, keep connections and pipeline; others reset, stop in the middle,
say nothing or say nonsense. Meanwhile the server is told to reload (HUP) and to reopen its logs (USR1), and
where there are many processes one is killed now and then. A short soak has each of these at least once. An
answer that completes must be right to the byte; only a connection that a kill may have broken may break. Twice
all clients pause, after a third of the time and at the end, and the server's memory, descriptors, threads and
zombies are counted. Loopback only; exit status 1 if anything is off.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = 5
TROUBLES = 2  # threads of hostile clients
PATIENCE = 20.0  # seconds for one answer, and for all else that only a fault would delay so long
KILL_EVERY, RELOAD_EVERY, ROTATE_EVERY = 7.0, 4.0, 3.0  # seconds, and never more than half of a phase
WARM_UP = 1 / 3  # the share of the time after which memory and descriptors are first counted
# How much the memory of all processes may grow: a share, or KiB. RssAnon counts a page of a worker whether the
# worker shares it with its parent or has copied it. PSS would grow with the age of the workers, and the faults
# decide how old the workers are at a count.
GROWTH = 0.1, 8 * 1024
OPTIONS = (
    "--head-timeout", "20s", "--body-timeout", "20s", "--write-timeout", "20s", "--program-timeout", "20s",
    "--idle", "30s", "--log-format", "combined",
)  # fmt: skip
TEXT = rb'"(?:[^"\\]|\\.)*"'
LINE = re.compile(rb"\S+ \S+ \S+ \[[^]]+\] %b \d{3} (?:\d+|-) %b %b \d+ \w+ \d+" % (TEXT, TEXT, TEXT))
PROGRAMS = {
    "echo": "printf 'Content-Type: a/b\\n\\n'; exec cat",
    "query": 'printf "Content-Type: a/b\\n\\n%s" "$QUERY_STRING"',
    "nap": 'sleep 0.2; printf "Content-Type: a/b\\n\\n%s" "$QUERY_STRING"',
    "die": "printf 'Content-Type: a/b\\n\\nbeginning'; sleep 0.05; kill -9 $$",
    "fail": "echo 'what a pity' >&2; exit 3",
    "forever": "printf 'Content-Type: a/b\\n\\n'; exec cat /dev/zero",
    "orphans": "printf 'Content-Type: a/b\\n\\n'; trap '' TERM; sleep 60 & sleep 60",
}
# The same in languages for which X-Switch has engines: sh is none, and would not come to it.
PYTHON = "#!/usr/bin/env python3\nimport os, sys, time\n"
PERL = "#!/usr/bin/perl\n$| = 1;\n"
SCRIPTS = {
    "echo": PYTHON + "sys.stdout.buffer.write(b'Content-Type: a/b\\n\\n' + sys.stdin.buffer.read())",
    "query": PERL + r'print "Content-Type: a/b\n\n$ENV{QUERY_STRING}"',
    "nap": PYTHON
    + "time.sleep(0.2)\nprint('Content-Type: a/b\\n')\nprint(os.environ['QUERY_STRING'], end='')",
    "die": PERL + r'print "Content-Type: a/b\n\nbeginning"; select undef, undef, undef, 0.05; kill 9, $$',
    "fail": PYTHON + "print('what a pity', file=sys.stderr)\nsys.exit(3)",
    "forever": PERL + r'print "Content-Type: a/b\n\n"; print "x" x 65536 while 1',
    "orphans": PERL + r'print "Content-Type: a/b\n\n"; $SIG{TERM} = "IGNORE"; fork; sleep 60',
}
MAX_OPEN_FILES = 32  # that the cache of a process keeps (ewe.features.static)
ENGINE_SOCKETS = 3  # descriptors that X-Switch's main module has for an engine
OWN = re.compile(r" -m ewe(\.xswitch)? ")  # in the command line of one of the server's own processes


class Wrong(Exception):
    """An answer that is not the right one."""


class Broken(Exception):
    """A connection that ended before the answer did."""


class Answer:
    """One response, read to its end."""

    def __init__(self, status: int, fields: dict[str, str], body: bytes) -> None:
        self.status = status
        self.fields = fields
        self.body = body

    @property
    def closes(self) -> bool:
        return self.fields.get("connection", "").lower() == "close"


class Connection:
    """A client's connection, from which answers are read strictly."""

    def __init__(self, port: int) -> None:
        self.opened = time.monotonic()
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.buffer = b""

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except ConnectionError as reason:
            raise Broken(str(reason)) from None

    def more(self) -> None:
        try:
            data = self.socket.recv(256 * 1024)
        except ConnectionError as reason:
            raise Broken(str(reason)) from None
        if not data:
            raise Broken("the end")
        self.buffer += data

    def until(self, mark: bytes) -> bytes:
        while mark not in self.buffer:
            if len(self.buffer) > 100_000:
                raise Wrong(f"no {mark!r} in {self.buffer[:100]!r}")
            self.more()
        found, _, self.buffer = self.buffer.partition(mark)
        return found

    def exactly(self, count: int) -> bytes:
        pieces = [self.buffer]
        have = len(self.buffer)
        while have < count:
            self.buffer = b""
            self.more()
            pieces.append(self.buffer)
            have += len(self.buffer)
        data = b"".join(pieces)
        self.buffer = data[count:]
        return data[:count]

    def read(self, method: str = "GET") -> Answer:
        """Return the next response. Raises Broken, Wrong, TimeoutError."""
        line, *rest = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        match = re.fullmatch(r"HTTP/1\.1 ([1-5]\d\d) [ -~]+", line)
        if match is None:
            raise Wrong(f"the status line is {line[:100]!r}")
        fields = {name.lower(): value.strip() for name, _, value in (text.partition(":") for text in rest)}
        status = int(match[1])
        if method == "HEAD" or status in (204, 304):
            return Answer(status, fields, b"")
        if fields.get("transfer-encoding") == "chunked":
            pieces = []
            while size := int(self.until(b"\r\n"), 16):
                pieces.append(self.exactly(size))
                if self.exactly(2) != b"\r\n":
                    raise Wrong("a chunk does not end where it should")
            if self.exactly(2) != b"\r\n":
                raise Wrong("no end after the last chunk")
            return Answer(status, fields, b"".join(pieces))
        if "content-length" not in fields:
            raise Wrong(f"{line!r} without framing")
        return Answer(status, fields, self.exactly(int(fields["content-length"])))

    def close(self, hard: bool = False) -> None:
        if hard:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class Site:
    """The files and programs that are asked for."""

    def __init__(self, where: Path, engines: bool) -> None:
        """engines: programs are scripts for them."""
        self.where = where
        where.chmod(0o755)
        self.files: dict[str, bytes] = {}
        self.tags: dict[str, tuple[str, str]] = {}  # ETag and Last-Modified
        (where / "htdocs").mkdir()
        (where / "cgi-bin").mkdir()
        source = random.Random(7)
        for name, size in (("empty", 0), ("small", 2_000), ("medium", 150_000), ("large", 3_000_000)):
            self.files[name] = source.randbytes(size)
            (where / "htdocs" / name).write_bytes(self.files[name])
        for name, text in PROGRAMS.items():
            path = where / "cgi-bin" / name
            path.write_text(f"{SCRIPTS[name]}\n" if engines else f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)


class Soak:
    """One run."""

    def __init__(self, model: str, seconds: float, seed: int, where: Path) -> None:
        self.model = model
        self.seconds = seconds
        self.seed = seed
        self.engines = model.startswith("xswitch")
        self.site = Site(where, self.engines)
        self.where = where
        self.counts: collections.Counter[str] = collections.Counter()
        self.problems: list[str] = []
        self.kills: list[float] = []
        self.back: list[float] = []  # seconds until a killed worker was replaced
        self.slowest = 0.0
        self.lock = threading.Lock()
        self.go = threading.Event()  # cleared: clients pause
        self.over = False
        self.paused = threading.Semaphore(0)
        self.zombies: dict[int, float] = {}

    # The server

    def start(self) -> None:
        self.errors = self.where / "error.log"
        self.output = (self.where / "output").open("wb")
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "ewe", "--model", *self.model.split(), "--port", "0", *OPTIONS,
                "--documentroot", str(self.where / "htdocs"), "--cgi-path", str(self.where / "cgi-bin"),
                "--access-log", str(self.where / "access.log"), "--logfile", str(self.errors), "--xswitch-status",
            ],
            stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output, cwd=self.where,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
        )  # fmt: skip
        end = time.monotonic() + PATIENCE
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/", self.said())):
            if time.monotonic() > end or self.process.poll() is not None:
                raise SystemExit(f"the server does not start:\n{self.said()}")
            time.sleep(0.02)
        self.port = int(found[1])
        self.count_of_workers = len(self.workers())

    def said(self) -> str:
        """Return what the server wrote to its standard output and its error logs."""
        texts = [path.read_text(errors="replace") for path in sorted(self.where.glob("error.log*"))]
        return (self.where / "output").read_text(errors="replace") + "".join(texts)

    def tree(self) -> Iterator[tuple[int, int, str, str]]:
        """Yield (pid, parent, state, command line) of every process of the server's session.

        Not the zombies whose heir is the system's first process: reaping those is not the server's business.
        """
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    fields = (
                        Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")[2].split()
                    )
                    if int(fields[3]) == self.process.pid and not (fields[0] == "Z" and fields[1] == "1"):
                        line = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ")
                        yield int(entry), int(fields[1]), fields[0], line.decode(errors="replace")
                except OSError:
                    continue

    def workers(self) -> list[int]:
        """Return the server's own processes below its first."""
        return [
            pid
            for pid, parent, state, line in self.tree()
            if parent == self.process.pid and state != "Z" and " -m ewe " in line
        ]

    # Requests

    def count(self, what: str, seconds: float = 0.0) -> None:
        with self.lock:
            self.counts[what] += 1
            self.slowest = max(self.slowest, seconds)

    def problem(self, text: str) -> None:
        with self.lock:
            self.problems.append(text)
            print(f"!! {text}", file=sys.stderr, flush=True)

    def client(self, number: int) -> None:
        """Ask, check, again."""
        dice = random.Random(self.seed * 1000 + number)
        kept: Connection | None = None
        while not self.over:
            if not self.go.is_set():
                if kept is not None:
                    kept.close()
                    kept = None
                self.paused.release()
                self.go.wait()
                continue
            action = dice.choices(*self.actions())[0]
            conn = kept
            kept = None
            name = action.__name__.removeprefix("ask_")
            began = time.monotonic()
            try:
                conn = conn or Connection(self.port)
                keeps = action(conn, dice)
                self.count(name, time.monotonic() - began)
                if keeps and dice.random() < 0.8:
                    kept = conn
                else:
                    if conn.buffer:
                        raise Wrong(f"{conn.buffer[:100]!r} after the answer")
                    conn.close()
                continue
            except Wrong as reason:
                self.problem(f"wrong answer to {name}: {reason}")
            except (Broken, ConnectionError) as reason:
                self.broken(name, conn, str(reason))
            except TimeoutError:
                self.problem(f"no answer to {name} within {PATIENCE:g} s")
            if conn is not None:
                conn.close()
        if kept is not None:
            kept.close()

    def broken(self, name: str, conn: Connection | None, reason: str) -> None:
        """A connection broke: only a kill excuses that."""
        opened = conn.opened if conn is not None else time.monotonic()
        if any(kill > opened - 0.5 for kill in self.kills):
            self.count("(broken by a kill)")
        else:
            self.problem(f"{name}: the connection broke without a cause: {reason}")

    def actions(self) -> tuple[list[Callable[[Connection, random.Random], bool]], list[int]]:
        table = {
            self.ask_file: 30, self.ask_range: 12, self.ask_conditional: 10, self.ask_pipeline: 8,
            self.ask_echo: 10, self.ask_echo_chunked: 8, self.ask_query: 6, self.ask_nap: 2,
            self.ask_a_program_that_dies: 2, self.ask_a_program_that_fails: 2, self.ask_what_is_not_there: 4,
        }  # fmt: skip
        return list(table), list(table.values())

    def exchange(self, conn: Connection, request: bytes, method: str = "GET") -> Answer:
        conn.send(request)
        return conn.read(method)

    def ask_file(self, conn: Connection, dice: random.Random) -> bool:
        name = dice.choices(list(self.site.files), [1, 10, 5, 2])[0]
        method = dice.choice(["GET", "GET", "GET", "HEAD"])
        answer = self.exchange(
            conn, b"%b /%b HTTP/1.1\r\nHost: s\r\n\r\n" % (method.encode(), name.encode()), method
        )
        content = self.site.files[name]
        expect(answer, 200, b"" if method == "HEAD" else content)
        if answer.fields["content-length"] != str(len(content)):
            raise Wrong(f"length {answer.fields['content-length']} of {name}")
        self.site.tags[name] = answer.fields["etag"], answer.fields["last-modified"]
        return not answer.closes

    def ask_range(self, conn: Connection, dice: random.Random) -> bool:
        name = dice.choice(["small", "medium", "large"])
        content = self.site.files[name]
        first = dice.randrange(len(content))
        last = dice.randrange(first, len(content))
        text = dice.choice([f"{first}-{last}", f"{first}-", f"-{last - first + 1}"])
        if text.endswith("-"):
            last = len(content) - 1
        elif text.startswith("-"):
            first, last = len(content) - (last - first + 1), len(content) - 1
        request = f"GET /{name} HTTP/1.1\r\nHost: s\r\nRange: bytes={text}\r\n\r\n"
        answer = self.exchange(conn, request.encode())
        expect(answer, 206, content[first : last + 1])
        if answer.fields["content-range"] != f"bytes {first}-{last}/{len(content)}":
            raise Wrong(f"{text}: {answer.fields['content-range']}")
        return not answer.closes

    def ask_conditional(self, conn: Connection, dice: random.Random) -> bool:
        if not self.site.tags:
            return self.ask_file(conn, dice)
        name = dice.choice(list(self.site.tags))
        tag, date = self.site.tags[name]
        field, status = dice.choice(
            [
                (f"If-None-Match: {tag}", 304),
                ('If-None-Match: "no"', 200),
                (f"If-Modified-Since: {date}", 304),
                ('If-Match: "no"', 412),
                (f"If-Match: {tag}", 200),
            ]
        )
        answer = self.exchange(conn, f"GET /{name} HTTP/1.1\r\nHost: s\r\n{field}\r\n\r\n".encode())
        expect(answer, status, {304: b"", 200: self.site.files[name]}.get(status))
        return not answer.closes

    def ask_pipeline(self, conn: Connection, dice: random.Random) -> bool:
        names = [dice.choice(["small", "medium", "empty", "query"]) for _ in range(dice.randrange(2, 30))]
        conn.send(
            b"".join(
                (
                    f"GET /cgi-bin/query?{place} HTTP/1.1" if name == "query" else f"GET /{name} HTTP/1.1"
                ).encode()
                + b"\r\nHost: s\r\n\r\n"
                for place, name in enumerate(names)
            )
        )
        for place, name in enumerate(names):
            answer = conn.read()
            expect(answer, 200, str(place).encode() if name == "query" else self.site.files[name])
            if answer.closes:  # a reload: later requests on the connection are not answered
                return False
        return True

    def ask_echo(self, conn: Connection, dice: random.Random) -> bool:
        body = dice.randbytes(dice.choice([0, 1, 1000, 70_000, 200_000]))
        head = b"POST /cgi-bin/echo HTTP/1.1\r\nHost: s\r\nContent-Length: %d\r\n\r\n" % len(body)
        answer = self.exchange(conn, head + body)
        expect(answer, 200, body)
        return not answer.closes

    def ask_echo_chunked(self, conn: Connection, dice: random.Random) -> bool:
        pieces = [dice.randbytes(dice.choice([1, 10, 5000, 30_000])) for _ in range(dice.randrange(30))]
        conn.send(b"POST /cgi-bin/echo HTTP/1.1\r\nHost: s\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in pieces:
            conn.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            if dice.random() < 0.05:
                time.sleep(0.01)
        conn.send(b"0\r\n\r\n")
        answer = conn.read()
        expect(answer, 200, b"".join(pieces))
        return not answer.closes

    def ask_query(self, conn: Connection, dice: random.Random) -> bool:
        return self.ask_program(conn, "query", dice)

    def ask_nap(self, conn: Connection, dice: random.Random) -> bool:
        return self.ask_program(conn, "nap", dice)

    def ask_program(self, conn: Connection, name: str, dice: random.Random) -> bool:
        token = b"a=%x" % dice.getrandbits(64)
        answer = self.exchange(
            conn, b"GET /cgi-bin/%b?%b HTTP/1.1\r\nHost: s\r\n\r\n" % (name.encode(), token)
        )
        expect(answer, 200, token)
        return not answer.closes

    def ask_a_program_that_dies(self, conn: Connection, dice: random.Random) -> bool:
        conn.send(b"GET /cgi-bin/die HTTP/1.1\r\nHost: s\r\n\r\n")
        try:
            answer = conn.read()
        except Broken:
            conn.buffer = b""
            return False  # as it should be: nobody takes the beginning for the whole
        expect(answer, 502, None)
        return not answer.closes

    def ask_a_program_that_fails(self, conn: Connection, dice: random.Random) -> bool:
        answer = self.exchange(conn, b"GET /cgi-bin/fail HTTP/1.1\r\nHost: s\r\n\r\n")
        expect(answer, 502, None)
        return not answer.closes

    def ask_what_is_not_there(self, conn: Connection, dice: random.Random) -> bool:
        answer = self.exchange(conn, b"GET /no/%x HTTP/1.1\r\nHost: s\r\n\r\n" % dice.getrandbits(64))
        expect(answer, 404, None)
        return not answer.closes

    # Faults

    def trouble(self, number: int) -> None:
        """Be a bad client."""
        dice = random.Random(self.seed * 1000 + 500 + number)
        whole = [
            b"GET /large HTTP/1.1\r\nHost: s\r\n\r\n" * 3,
            b"GET /small HTTP/1.1\r\nHost: s\r\n\r\n",
            b"POST /cgi-bin/echo HTTP/1.1\r\nHost: s\r\nContent-Length: 50000\r\n\r\n" + bytes(50_000),
            b"GET /cgi-bin/forever HTTP/1.1\r\nHost: s\r\n\r\n",
            b"GET /cgi-bin/orphans HTTP/1.1\r\nHost: s\r\n\r\n",
            b"GET /cgi-bin/nap?a=1 HTTP/1.1\r\nHost: s\r\n\r\n",
        ]
        while not self.over:
            if not self.go.is_set():
                self.paused.release()
                self.go.wait()
                continue
            kind = dice.choice(["reset", "reset", "half", "silent", "garbage", "leave"])
            self.count(f"[{kind}]")
            with contextlib.suppress(OSError, Broken):
                conn = Connection(self.port)
                try:
                    self.misbehave(kind, conn, dice, dice.choice(whole))
                except Wrong as reason:
                    self.problem(f"wrong answer to {kind}: {reason}")
                except TimeoutError:
                    pass
                finally:
                    conn.close(hard=kind == "reset")
            time.sleep(dice.random() * 0.05)

    def misbehave(self, kind: str, conn: Connection, dice: random.Random, request: bytes) -> None:
        conn.socket.settimeout(0.5)
        if kind == "silent":
            time.sleep(dice.random() * 0.3)
        elif kind == "garbage":
            conn.send(
                dice.choice([dice.randbytes(dice.randrange(1, 2000)), b"\x16\x03\x01\x02\0\x01\0\x01\xfc"])
            )
            conn.socket.shutdown(socket.SHUT_WR)
            answer = conn.read()
            if not 400 <= answer.status < 506 or not answer.closes:
                raise Wrong(f"{answer.status} {answer.fields}")
        else:
            cut = dice.randrange(len(request)) if kind == "half" else len(request)
            conn.send(request[:cut])
            if kind in ("reset", "leave"):
                wanted = dice.choice([0, 0, 1, 1000, 100_000, 1_000_000])
                while wanted > 0:
                    data = conn.socket.recv(min(wanted, 65536))
                    if not data:
                        break
                    wanted -= len(data)
            if dice.random() < 0.5:
                time.sleep(dice.random() * 0.2)

    def disturb(self, dice: random.Random, seconds: float) -> None:
        """Send signals for so many seconds, each at least once; look for zombies."""
        began = time.monotonic()
        # A fault returns whether it happened; one that did not is tried again at once.
        faults = {self.kill_one: KILL_EVERY, self.reload: RELOAD_EVERY, self.rotate: ROTATE_EVERY}
        gaps = {fault: min(gap, seconds / 2) for fault, gap in faults.items()}
        due = {fault: began + gap * dice.uniform(0.3, 1) for fault, gap in gaps.items()}
        missing = {*faults}
        while (now := time.monotonic()) < began + seconds or missing:
            for fault, gap in gaps.items():
                if now > due[fault] and fault(dice):
                    due[fault] = now + gap * dice.uniform(0.7, 1.3)
                    missing.discard(fault)
            self.look_for_zombies()
            time.sleep(0.1)

    def kill_one(self, dice: random.Random) -> bool:
        if not (self.count_of_workers or self.model.startswith("fork")):
            return True  # one process: a second one is a program that is just being started
        found = self.workers()
        if not found:
            return False
        victim = dice.choice(found)
        self.kills.append(time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
            self.count("<KILL>")
        if self.model.startswith("fork"):
            return True
        began = time.monotonic()
        while len(self.workers()) < self.count_of_workers:  # one that retired was to go anyway
            if time.monotonic() - began > PATIENCE:
                self.problem(f"a killed worker was not replaced within {PATIENCE:g} s")
                return True
            time.sleep(0.01)
        self.back.append(time.monotonic() - began)
        return True

    def reload(self, dice: random.Random) -> bool:
        self.process.send_signal(signal.SIGHUP)
        self.count("<HUP>")
        return True

    def rotate(self, dice: random.Random) -> bool:
        number = self.counts["<USR1>"]
        for name in ("access.log", "error.log"):
            if (self.where / name).exists():
                (self.where / name).rename(self.where / f"{name}.{number:03}")
        self.process.send_signal(signal.SIGUSR1)
        self.count("<USR1>")
        return True

    def look_for_zombies(self) -> None:
        """A process that ended is reaped, and long before PATIENCE is over."""
        now = time.monotonic()
        self.zombies = {pid: self.zombies.get(pid, now) for pid in self.dead()}
        for pid, since in self.zombies.items():
            if now - since > PATIENCE:
                self.problem(f"{pid} has been a zombie for {PATIENCE:g} s")
                self.zombies[pid] = now + 1e6

    def dead(self) -> list[int]:
        """Return the processes that have ended and were not reaped yet."""
        return [pid for pid, _, state, _ in self.tree() if state == "Z"]

    # Counting

    def pause(self) -> dict[str, float]:
        """Have all clients stop, and count what the server holds."""
        self.go.clear()
        for _ in range(CLIENTS + TROUBLES):
            self.paused.acquire()
        # What the faults left behind ends within the server's own deadlines: wait for stillness.
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and not self.is_still():
            time.sleep(0.05)
        time.sleep(0.5)
        found: dict[str, float] = {"processes": 0, "KiB": 0, "descriptors": 0, "threads": 0}
        for pid, _, state, line in self.tree():
            if state == "Z":
                self.problem(f"a zombie while nothing happens: {pid}")
            elif OWN.search(line):
                with contextlib.suppress(OSError):
                    own = re.search(r"^RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.M)
                    found["KiB"] += int(own[1]) if own else 0
                    found["descriptors"] += self.count_descriptors(pid)
                    found["threads"] += len(os.listdir(f"/proc/{pid}/task"))
                    found["processes"] += 1
        if self.engines:
            found["descriptors"] -= ENGINE_SOCKETS * self.count_engines()
        for line in self.strangers():
            self.problem(f"a program is left: {line}")
        return found

    def is_still(self) -> bool:
        """Return whether nothing of the clients is left, and as many workers run as at the start."""
        all_there = self.model.startswith("fork") or len(self.workers()) == self.count_of_workers
        return all_there and not (self.connections() or self.strangers() or self.dead())

    def strangers(self) -> list[str]:
        """Return programs that run."""
        return [line for _, _, state, line in self.tree() if state != "Z" and not OWN.search(line)]

    def count_descriptors(self, pid: int) -> int:
        """Return the descriptors of a process, apart from the files that its cache may have open."""
        links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
        files = sum(link.startswith(str(self.site.where / "htdocs")) for link in links)
        return len(links) - min(files, MAX_OPEN_FILES)

    def count_engines(self) -> int:
        """Return how many engines X-Switch has now; they go as they come."""
        conn = Connection(self.port)
        answer = self.exchange(conn, b"GET /xswitch-status?json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        conn.close()
        return len(json.loads(answer.body)["engines"])

    def connections(self) -> int:
        """Return how many connections to the server are open (established, or waiting for its close)."""
        port = f":{self.port:04X}"
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        return sum(line.split()[1].endswith(port) and line.split()[3] in ("01", "08") for line in lines)

    def run(self) -> bool:
        """Soak; return whether all is well."""
        self.start()
        threads = [threading.Thread(target=self.client, args=(n,), daemon=True) for n in range(CLIENTS)]
        threads += [threading.Thread(target=self.trouble, args=(n,), daemon=True) for n in range(TROUBLES)]
        dice = random.Random(self.seed)
        began = time.monotonic()
        try:
            self.go.set()
            for thread in threads:
                thread.start()
            self.disturb(dice, self.seconds * WARM_UP)
            before = self.pause()
            self.go.set()
            self.disturb(dice, self.seconds * (1 - WARM_UP))
            after = self.pause()
            self.over = True
            self.go.set()
            for thread in threads:
                thread.join(PATIENCE)
            elapsed = time.monotonic() - began
            self.process.send_signal(signal.SIGTERM)
            try:
                status = self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.problem("the server does not stop")
                status = -1
        finally:
            left = [pid for pid, _, state, _ in self.tree() if state != "Z"]
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait(5)
            self.output.close()
        if left:
            self.problem(f"processes outlived the server: {left}")
        if status:
            self.problem(f"the server's exit status is {status}")
        self.judge(before, after)
        self.report(before, after, elapsed)
        return not self.problems

    def judge(self, before: dict[str, float], after: dict[str, float]) -> None:
        share, most = GROWTH
        if after["KiB"] - before["KiB"] > max(before["KiB"] * share, most):
            self.problem(f"memory grew from {before['KiB']} to {after['KiB']} KiB")
        for what in ("processes", "descriptors", "threads"):
            kept = 2 * (CLIENTS + TROUBLES) if self.engines and what == "descriptors" else 0
            if after[what] > before[what] + kept:  # connections from ewe to X-Switch, which has the other end
                self.problem(f"{what}: {before[what]} after a third of the time, {after[what]} at the end")
        said = self.said()
        for bad in ("Traceback", "Exception", "not answer"):
            if bad in said:
                at = said.index(bad)
                self.problem(f"the error log says: {said[max(0, at - 200) : at + 1500]}")
        lines = b"".join(path.read_bytes() for path in self.where.glob("access.log*")).splitlines()
        bad_lines = [line for line in lines if not LINE.fullmatch(line)]
        if bad_lines:
            self.problem(f"{len(bad_lines)} lines of the access log are malformed: {bad_lines[0]!r}")
        self.lines = len(lines)
        if not self.kills and self.lines < self.answers():
            self.problem(f"{self.answers()} answers, but {self.lines} lines in the access log")

    def answers(self) -> int:
        return sum(count for what, count in self.counts.items() if what[0].isalpha())

    def report(self, before: dict[str, float], after: dict[str, float], elapsed: float) -> None:
        print(f"{self.model}: {elapsed:.0f} s, seed {self.seed}")
        print(f"  {self.answers()} exchanges verified, {self.lines} lines in the access log,", end=" ")
        print(f"slowest {self.slowest:.2f} s")
        print("  " + ", ".join(f"{what.strip()} {count}" for what, count in sorted(self.counts.items())))
        if self.back:
            print(f"  a killed worker was back after {statistics.median(self.back):.2f} s (median),", end=" ")
            print(f"{max(self.back):.2f} s (worst)")
        for what in before:
            print(f"  {what}: {before[what]:.0f} after a third, {after[what]:.0f} at the end")
        print(f"  {len(self.problems)} problems")


def expect(answer: Answer, status: int, body: bytes | None) -> None:
    """Raises Wrong."""
    if answer.status != status:
        raise Wrong(f"{answer.status}, not {status}: {answer.body[:200]!r}")
    if body is not None and answer.body != body:
        at = next((n for n, (a, b) in enumerate(zip(answer.body, body, strict=False)) if a != b), "the end")
        raise Wrong(f"{len(answer.body)} bytes, {len(body)} expected; they differ at {at}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Mixed traffic with faults injected; every answer is checked."
    )
    parser.add_argument("--model", default="pool", help='as for ewe, options allowed: "thread --workers 2"')
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    chosen = parser.parse_args()
    where = Path(tempfile.mkdtemp(prefix="ewe-soak-"))
    soak = Soak(chosen.model, chosen.seconds, chosen.seed, where)
    well = False
    try:
        well = soak.run()
    finally:
        if well:
            shutil.rmtree(where, ignore_errors=True)
        else:
            print(f"  what there is to see is in {where}")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
