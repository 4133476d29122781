"""The server under test: how it is started, watched and stopped. What it must do is a contract of one page.

    1. It takes a port and a directory, as its command says: './server {port} {root}'.
    2. It listens on 127.0.0.1 (or on all addresses) and answers GET with the files of the directory, by HTTP/1.x.
    3. A missing file is answered with 404. SIGTERM ends the server with all its processes.
    4. A lab may say more: {workers} in the command is how many threads or processes its pool shall have.

The grader needs no other help from the server: no trace, no header, no library. A server in any language that
serves files can be graded. What holds one of its workers is always the client (scene.py).

The same grader takes a model of ewe: a Python file with a class below Processor runs as `ewe --model FILE:CLASS`.

What can go wrong: the program does not start, or ends at once. NotStarted then says so, with the last lines of its
output. The program may start others that outlive it: the grader adopts them (sandbox.py), and so finds them.
"""

from __future__ import annotations

import ast
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import ewe
from ewe.config.messages import ConfigError
from ewe_classroom.grader import processes, site_programs
from ewe_classroom.grader.sandbox import Limits, end_account
from ewe_classroom.seeds import Seed

T = TypeVar("T")
START_S = 60.0  # a server that compiles itself first may take long
STILL_S = 2.0  # all its threads sleep, and none has had a turn: it will not listen any more
FIRST_PORT = 8080
MEMORY_BYTES = 1 << 30
TASKS = 1500
# More than the socket buffers of both ends hold: 4 MB and 6 MB at most, where nobody raised them.
LARGE = 8 << 20
STEP = 64 << 10
ROUNDS = 100  # in which the processes of a server are killed
WALKS = 3  # rounds after which a new process shows that killing one by one is too slow
# The files of schedules.py, by size. Neither their names' order nor the length of their names is that of the sizes.
SIZES = {
    "/sizes/held": 0,
    "/sizes/a-long-name-and-a-short-file": 1,
    "/sizes/bb": 2,
    "/sizes/z": 3,
    "/sizes/m": 4,
    "/sizes/a": 6,
}
# A schedule holds a client for seconds, and for many on a busy machine: ewe's usual 10 s for a head could end it.
MODEL_OPTIONS = (
    "--host", "127.0.0.1", "--parking", "never", "--workers", "1", "--access-log", "off",
    "--head-timeout", "60s",
)  # fmt: skip


class NotStarted(Exception):
    """The server does not listen. The text says why, in one line; output: what the server wrote."""

    def __init__(self, text: str, output: str = "") -> None:
        super().__init__(text)
        self.output = output


class BadSubject(ConfigError):
    """What was to be graded cannot be run. The text is one line."""


def large_file(seed: int) -> bytes:
    """Return the bytes of a large file; no two seeds and no two places of a file have the same."""
    line = b"%d %%08d the quick brown sheep jumps over the lazy wolf" % seed + b"." * 950 + b"\n"
    return b"".join(line % number for number in range(LARGE // len(line % 0) + 1))[:LARGE]


class Site:
    """The directory that the server serves, and what is in it. `files`: the bytes of each URL.

    seed: a student, who gets more files (seeds.py); None: only the usual ones.
    """

    def __init__(self, directory: Path, seed: Seed | None = None) -> None:
        self.root = directory / "site"
        self.seed = seed
        self.secret = b"this file lies outside the document root\n"
        self.files = {
            "/hello.txt": b"Hello, world.\n",
            "/empty.txt": b"",
            "/index.html": b"<!doctype html><title>A site</title><p>A page.\n",
            "/bytes.bin": bytes(range(256)) * 257,
            "/large.bin": large_file(1),
            "/other.bin": large_file(2),
            "/folder/deep.txt": b"deep\n",
        }
        self.files |= {f"/{number}.txt": b"file %d\n" % number * (number + 1) for number in range(40)}
        self.own = seed.files() if seed is not None else {}  # of this student
        self.files |= self.own
        for path, content in self.files.items():
            file = self.root / path[1:]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        (directory / "secret.txt").write_bytes(self.secret)
        for each in [directory, *{(self.root / path[1:]).parent for path in self.files}]:
            each.chmod(0o755)
        site_programs.write(self.root)
        # No buffers of a connection hold these files. All but the first line is a hole, without room on the disk.
        self.sized = {path: LARGE + step * STEP for path, step in SIZES.items()}
        (self.root / "sizes").mkdir(exist_ok=True)
        (self.root / "sizes").chmod(0o755)
        for path, size in self.sized.items():
            (self.root / path[1:]).write_bytes(self.first_line(path))
            os.truncate(self.root / path[1:], size)

    @staticmethod
    def first_line(path: str) -> bytes:
        """Return how a file below /sizes/ begins."""
        return f"{path}\n".encode()

    def order(self, what: str, items: Sequence[T]) -> list[T]:
        """Return items that are equal for the check in the order of the student; as they are, without a seed."""
        return list(items) if self.seed is None else self.seed.order(what, items)


@dataclass(frozen=True)
class Recipe:
    """How to start a server: a command with {port}, {root} and {workers}, and where it runs."""

    command: tuple[str, ...]
    directory: Path
    shown: str  # the arguments of ewe-grade that name it
    environment: dict[str, str] = field(default_factory=dict)

    def filled(self, port: int, root: Path, workers: int) -> list[str]:
        values = {"{port}": str(port), "{root}": str(root), "{workers}": str(workers)}
        words = []
        for word in self.command:
            for key, value in values.items():
                word = word.replace(key, value)
            words.append(word)
        return words


def from_command(text: str) -> Recipe:
    """Return the recipe of --command. Raises BadSubject."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadSubject(f"--command: {error}; quote it as a shell would") from None
    if not words:
        raise BadSubject(
            "--command is empty; give the command that starts the server: './server {port} {root}'"
        )
    if "{port}" not in text:
        raise BadSubject("--command has no {port}: say where the port goes, as in './server {port} {root}'")
    if shutil.which(words[0]) is None:
        raise BadSubject(
            f"--command: {words[0]} is not a program that can be run; is it built, and executable?"
        )
    if os.sep in words[0]:
        words[0] = os.path.abspath(words[0])
    return Recipe(tuple(words), Path.cwd(), f"--command {shlex.quote(text)}")


def from_path(text: str) -> Recipe:
    """Return the recipe of a file: a model of ewe, a program in Python, or any program. Raises BadSubject."""
    path = Path(text).absolute()
    shown = shlex.quote(text)
    arguments = ("{port}", "{root}", "{workers}")
    if not path.is_file():
        raise BadSubject(f"{text}: not a file; name a Python file or a program, or use --command")
    if path.suffix == ".py":
        name = model_class(path)
        if name:
            # The directory of ewe comes first, so that a student's file http.py or site.py hides nothing.
            home = str(Path(ewe.__file__).resolve().parents[1])
            command: tuple[str, ...] = (
                sys.executable,
                "-P",
                "-m",
                "ewe",
                "--model",
                f"{path.stem}:{name}",
                "--port",
                "{port}",
            )
            command += ("--documentroot", "{root}", "--threads", "{workers}", *MODEL_OPTIONS)
            places = os.pathsep.join([home, str(path.parent)])
            return Recipe(command, path.parent, shown, {"PYTHONPATH": places})
        return Recipe((sys.executable, str(path), *arguments), path.parent, shown)
    if not os.access(path, os.X_OK):
        raise BadSubject(f"{text}: not executable; build it, or chmod +x it, or use --command")
    return Recipe((str(path), *arguments), path.parent, shown)


def model_class(path: Path) -> str:
    """Return the class of a file that is a model of ewe: the last one that derives from one. "" without any."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
        raise BadSubject(f"{path.name}: not Python: {str(error) or 'nested too deeply'}") from None
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ewe.processors")
        for alias in node.names
    }
    found = ""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = {base.id if isinstance(base, ast.Name) else ast.unparse(base) for base in node.bases}
            if bases & imported or any("processors" in base for base in bases):
                imported.add(node.name)
                found = node.name
    return found


class Subject:
    """A server under test that runs. `with Subject(...) as subject` starts it and ends all of its processes."""

    def __init__(
        self,
        recipe: Recipe,
        site: Site,
        workers: int,
        limits: Limits,
        port: int,
        output: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.recipe = recipe
        self.site = site
        self.workers = workers
        self.port = port
        self.limits = limits
        self.output = output
        self.own_children = set(processes.children_of_grader())
        self.environment = dict(environment or {})
        self.trace = output.with_suffix(".trace")
        self.trace.write_bytes(b"")
        self.trace.chmod(0o666)  # the server may run as another account
        variables = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(site.root.parent),
            "LANG": "C.UTF-8",
            "PORT": str(port),
            "ROOT": str(site.root),
            "WORKERS": str(workers),
            "EWE_TRACE": str(self.trace),
            **self.environment,
            **recipe.environment,
        }
        self.command = recipe.filled(port, site.root, workers)
        with open(output, "wb") as log:
            try:
                self.process = subprocess.Popen(
                    self.command,
                    cwd=recipe.directory,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=limits,
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise NotStarted(f"the server could not be started: {error}") from None
        self.pid = self.process.pid

    def wait_until_ready(self) -> None:
        """Wait until the server listens. Raises NotStarted. No connection is opened: the first one is a check's."""
        give_up = time.monotonic() + START_S
        pause = 0.002
        before, still_since = processes.tasks(self.family()), time.monotonic()
        while not processes.listens(self.port):
            status = self.process.poll()
            if status is not None and not self.family():
                how = f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
                raise NotStarted(
                    f"the server ended with {how} before it listened on port {self.port}", self.log()
                )
            now = processes.tasks(self.family())
            if now != before or not all(task.asleep for task in now.values()):
                before, still_since = now, time.monotonic()
            still = time.monotonic() - still_since > STILL_S
            if still or time.monotonic() > give_up:
                waited = "the server sleeps, and" if still else f"after {START_S:.0f} s"
                raise NotStarted(
                    f"{waited} nothing listens on port {self.port}; does the server use "
                    f"the port it is given?",
                    self.log(),
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)

    def family(self) -> list[int]:
        """Return the processes of the server that exist, zombies included; adopted orphans belong to it."""
        roots = []
        for pid in processes.children_of_grader():
            if pid in self.own_children:
                continue
            if pid != self.pid and processes.state(pid) == "Z":
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)  # its parent has ended: reaping it is now the grader's part
                continue
            roots.append(pid)
        self.process.poll()
        return processes.family(roots)

    def running(self) -> list[int]:
        """Return the processes of the server that have not ended."""
        return [pid for pid in self.family() if processes.runs(pid)]

    def alive(self) -> bool:
        """Return whether the process that was started runs, or another one listens in its place."""
        return self.process.poll() is None or bool(self.running() and processes.listens(self.port))

    def ending(self) -> str:
        """Return how the server has ended, in words."""
        status = self.process.poll()
        if status is None:
            return "still runs"
        return (
            f"ended with status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"
        )

    def tasks(self) -> dict[int, processes.Task]:
        return processes.tasks(self.family())

    def excess(self) -> str:
        """Return which limit of the host the server exceeds, "" if none: memory and tasks, all of it together."""
        pids = self.running()
        used = sum(processes.memory(pid) for pid in pids)
        if used > MEMORY_BYTES:
            used = sum(processes.memory_share(pid) for pid in pids)
        if used > MEMORY_BYTES:
            return f"its processes hold {used >> 20} MB of memory; the limit is {MEMORY_BYTES >> 20} MB"
        count = sum(len(processes.thread_ids(pid)) for pid in pids)
        if count > TASKS:
            return f"it has {count} threads and processes; the limit is {TASKS}"
        return ""

    def log(self, lines: int = 12) -> str:
        """Return the last lines that the server wrote."""
        with open(self.output, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 8192))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])

    def close(self) -> None:
        """Kill and reap every process of the server. A process that forks meanwhile is met in the next round."""
        met: set[int] = set()
        for number in range(ROUNDS):
            pids = self.family()
            if not pids:
                break
            if number >= WALKS and not met.issuperset(pids):
                end_account(self.limits.account)
            met.update(pids)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
        self.process.wait()

    def __enter__(self) -> Subject:
        try:
            self.wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
