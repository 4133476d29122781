"""The server under test: start it, watch it, stop it. A server has to fulfil this contract:

    1. It takes a port and a directory from its command line: './server {port} {root}'.
    2. It listens on 127.0.0.1 (or on all addresses) and answers GET with the files of the directory, by HTTP/1.x.
    3. It answers 404 for a missing file. SIGTERM ends the server with all its processes.
    4. A lab may require more: {workers} in the command is the number of threads or processes of a pool.

The grader needs no other help from the server: no trace, no header, no library. It can grade any server that serves
files, in any language, because only the clients make workers wait (scene.py).

The grader also takes a model of ewe: a Python file with a subclass of Processor runs as `ewe --model FILE:CLASS`.

Possible failures: the program does not start, or ends immediately. NotStarted then has the last lines of its
output. The program may start other processes that outlive it: the grader adopts these (sandbox.py), and so finds
them.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeVar

import ewe
from ewe.config.messages import ConfigError
from ewe_classroom.grader import processes, site_programs
from ewe_classroom.grader.sandbox import SandboxLimits, SubjectAccount, disk_bytes_of, end_all
from ewe_classroom.grader.sources import find_sources, open_regular
from ewe_classroom.seeds import Seed

T = TypeVar("T")
START_TIMEOUT_S = 60.0  # some servers compile themselves at the start
QUIESCENT_START_S = 2.0  # a server that is quiescent for so long before it listens will never listen
MIN_START_PAUSE_S, MAX_START_PAUSE_S = 0.002, 0.05  # between two looks at a server that starts
LOG_END_BYTES = 8192  # enough for the last lines of an output
FIRST_PORT = 8080
MAX_MEMORY_BYTES = 1 << 30
MAX_TASKS = 1500
MAX_DISK_BYTES = 1 << 30  # of the files that the server's account has in /tmp and in other shared directories
DISK_CHECK_EVERY_S = 1.0
EXCESS_CHECK_EVERY_S = 1.0  # before the server listens; scene.py checks afterwards
# The errors of fork(2) and exec(2) that this machine has caused, and not the submission: no process, memory or
# descriptor is free.
FAULTS_OF_MACHINE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
# Larger than the socket buffers of both ends, which grow to 4 MB and 6 MB by default.
LARGE_FILE_BYTES = 8 << 20
LINE_BYTES = 64 << 10
NUMBERED_FILES = 40  # /0.txt to /39.txt
# The files of schedules.py, by size. Neither the order of the names nor their lengths agree with the sizes.
SIZES = {
    "/sizes/held": 0,
    "/sizes/a-long-name-and-a-short-file": 1,
    "/sizes/bb": 2,
    "/sizes/z": 3,
    "/sizes/m": 4,
    "/sizes/a": 6,
}
# A schedule stalls a client for seconds, and for longer on a busy machine: ewe's default of 10 s could disconnect
# it.
MODEL_OPTIONS = (
    "--host", "127.0.0.1", "--parking", "never", "--workers", "1", "--access-log", "off",
    "--head-timeout", "60s",
)  # fmt: skip


class NotStarted(Exception):
    """The server does not listen. The message is one line with the reason. output: the server's output."""

    def __init__(self, text: str, output: str = "") -> None:
        super().__init__(text)
        self.output = output


class BadSubject(ConfigError):
    """The submission cannot be run. The message is one line."""


def large_file(file_number: int) -> bytes:
    """Return the bytes of a large file. No two lines of one file, or of files with different numbers, are equal."""
    # The first % inserts the number of the file and leaves %08d, a place for the number of the line.
    line = b"%d %%08d the quick brown sheep jumps over the lazy wolf" % file_number + b"." * 950 + b"\n"
    count = LARGE_FILE_BYTES // len(line % 0) + 1  # enough lines; the last one is cut
    return b"".join(line % number for number in range(count))[:LARGE_FILE_BYTES]


def numbered_path(number: int) -> str:
    """Return the URL path of one of the NUMBERED_FILES. Numbers above the last file begin again with the first."""
    return f"/{number % NUMBERED_FILES}.txt"


class ServedFiles:
    """The directory that the server serves. files: URL path -> bytes.

    seed: a student, for additional files (seeds.py). None: only the usual files.
    """

    def __init__(self, directory: Path, seed: Seed | None = None) -> None:
        self.root = directory / "site"
        self.seed = seed
        self.secret = b"this file lies outside the document root\n"
        self.files = {
            "/hello.txt": b"Hello, world.\n",
            "/empty.txt": b"",
            "/index.html": b"<!doctype html><title>A site</title><p>A page.\n",
            "/bytes.bin": bytes(range(256)) * 257,  # 65,792 bytes: every value of a byte, and more than 64 KB
            "/large.bin": large_file(1),
            "/other.bin": large_file(2),
            "/folder/deep.txt": b"deep\n",
        }
        # Of different lengths: a client that gets the file of another one is noticed.
        self.files |= {
            numbered_path(number): b"file %d\n" % number * (number + 1) for number in range(NUMBERED_FILES)
        }
        self.seed_files = seed.files() if seed is not None else {}
        self.files |= self.seed_files
        for path, content in self.files.items():
            file = self.root / path[1:]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        (directory / "secret.txt").write_bytes(self.secret)
        for each in [directory, *{(self.root / path[1:]).parent for path in self.files}]:
            each.chmod(0o755)
        site_programs.write(self.root)
        # These files are larger than the buffers of a connection. All but the first line is a hole on the disk.
        self.sized = {path: LARGE_FILE_BYTES + step * LINE_BYTES for path, step in SIZES.items()}
        (self.root / "sizes").mkdir(exist_ok=True)
        (self.root / "sizes").chmod(0o755)
        for path, size in self.sized.items():
            (self.root / path[1:]).write_bytes(self.first_line(path))
            os.truncate(self.root / path[1:], size)

    @staticmethod
    def first_line(path: str) -> bytes:
        """Return the first line of a file below /sizes/."""
        return f"{path}\n".encode()

    def order(self, what: str, items: Sequence[T]) -> list[T]:
        """Return items in the student's order; without a seed, in the given order. The order must not matter."""
        return list(items) if self.seed is None else self.seed.order(what, items)


@dataclass(frozen=True)
class StartCommand:
    """The command that starts a server, with {port}, {root} and {workers}. directory: its current directory."""

    command: tuple[str, ...]
    directory: Path
    shown: str  # the arguments of ewe-grade that name the server
    environment: dict[str, str] = field(default_factory=dict)
    # "python"; "model" for a model of ewe; "c" and "go" for a program with its sources beside it; "" for all others
    language: str = ""

    def words_for(self, port: int, root: Path, workers: int) -> list[str]:
        """Return the words of the command, with values in place of {port}, {root} and {workers}."""
        values = {"{port}": str(port), "{root}": str(root), "{workers}": str(workers)}
        words = []
        for word in self.command:
            for key, value in values.items():
                word = word.replace(key, value)
            words.append(word)
        return words


def from_command(text: str) -> StartCommand:
    """Return the start command of --command. Raises BadSubject."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadSubject(f"--command: {error}; quote it as a shell would") from None
    if not words:
        raise BadSubject(
            "--command is empty; give the command that starts the server: './server {port} {root}'"
        )
    if "{port}" not in text:
        raise BadSubject(
            "--command has no {port}: mark the place of the port, as in './server {port} {root}'"
        )
    if shutil.which(words[0]) is None:
        raise BadSubject(f"--command: {words[0]} is not an executable program; build it, or run chmod +x")
    if os.sep in words[0]:  # a path, and no name for the search path
        words[0] = os.path.abspath(words[0])
    return start_command(tuple(words), Path.cwd(), f"--command {shlex.quote(text)}")


def start_command(command: tuple[str, ...], directory: Path, shown: str) -> StartCommand:
    """Return the start command of a program. Its language is that of the sources beside it."""
    sources = find_sources(command, directory)
    return StartCommand(command, directory, shown, language=sources.language if sources is not None else "")


def from_path(text: str) -> StartCommand:
    """Return the start command of a file: of a model of ewe, or of a program. Raises BadSubject."""
    path = Path(text).absolute()
    shown = shlex.quote(text)
    arguments = ("{port}", "{root}", "{workers}")
    if not os.path.isfile(path):  # false for a name that is too long, where Path.is_file() raises an error
        raise BadSubject(f"{text}: not a file; name a Python file or a program, or use --command")
    if path.suffix == ".py":
        name = model_class(path)
        if name:
            # The directory of ewe comes first, so that a student's http.py or site.py cannot replace another
            # module.
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
            search_path = os.pathsep.join([home, str(path.parent)])
            return StartCommand(command, path.parent, shown, {"PYTHONPATH": search_path}, "model")
        return StartCommand((sys.executable, str(path), *arguments), path.parent, shown, language="python")
    if not os.access(path, os.X_OK):
        raise BadSubject(f"{text}: not executable; build it, run chmod +x, or use --command")
    return start_command((str(path), *arguments), path.parent, shown)


def parse_python(file: Path) -> ast.Module:
    """Return the syntax tree of a file. Raises BadSubject."""
    try:
        return ast.parse(file.read_bytes(), str(file))
    # RecursionError, MemoryError: too deep nesting
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        # A student may have a newer Python, with a syntax that this one does not know.
        version = f"; the grader has Python {sys.version_info.major}.{sys.version_info.minor}"
        reason = f"{str(error) or 'nested too deeply'}{version if isinstance(error, SyntaxError) else ''}"
        raise BadSubject(f"{file.name}: not Python: {reason}") from None


def model_class(path: Path) -> str:
    """Return the name of the model in a file: its last class that derives from a processor; "" if there is none.

    The file is not executed. Raises BadSubject.
    """
    tree = parse_python(path)
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ewe.processors")
        for alias in node.names
    }
    last_model = ""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            names = {name for base in node.bases for name in names_in(base)}
            # An imported name, or one with its module: ewe.processors.base.Processor.
            if bases & imported or any("processors" in name for name in names):
                imported.add(node.name)  # a later class may derive from this one
                last_model = node.name
    return last_model


def names_in(expression: ast.expr) -> Iterator[str]:
    """Yield the names in an expression: `a`, `b` and `c` of `a.b[c]`. A nested expression may have any depth."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def last_lines(descriptor: int, count: int) -> str:
    """Return the last lines of an open file, from its last LOG_END_BYTES. The position in the file stays."""
    size = os.fstat(descriptor).st_size
    end = os.pread(descriptor, LOG_END_BYTES, max(0, size - LOG_END_BYTES))
    return "\n".join(end.decode(errors="replace").splitlines()[-count:])


def create_anew(path: Path) -> IO[bytes]:
    """Create an empty file in place of what an earlier server has left: a FIFO would wait for a reader."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    return open(path, "xb")


class ExcessWatch:
    """A watch over the memory, the tasks and the files of a submission: its processes share the limits.

    account: of the processes. directory: the one of their work.
    """

    def __init__(self, account: SubjectAccount | None, directory: Path) -> None:
        self.account, self.directory = account, directory
        self.next_disk_check = 0.0

    def text(self, pids: Sequence[int]) -> str:
        """Describe the limit that these processes exceed together; "" if none.

        The files are looked at once a second (DISK_CHECK_EVERY_S).
        """
        used = sum(map(processes.memory_with_shared_bytes, pids))
        if used > MAX_MEMORY_BYTES:  # this counted shared pages several times; the exact measure is slower
            used = sum(map(processes.memory_share_with_shared_bytes, pids))
        if used > MAX_MEMORY_BYTES:
            return f"its processes use {used >> 20} MB of memory; the limit is {MAX_MEMORY_BYTES >> 20} MB"
        count = sum(len(processes.thread_ids(pid)) for pid in pids)
        if count > MAX_TASKS:
            return f"it has {count} threads and processes; the limit is {MAX_TASKS}"
        # The files of any other account may be older.
        if self.account is not None and self.account.is_own and time.monotonic() > self.next_disk_check:
            self.next_disk_check = time.monotonic() + DISK_CHECK_EVERY_S
            used = disk_bytes_of(self.account, self.directory, pids)
            if used > MAX_DISK_BYTES:
                return f"its files take {used >> 20} MB of the disk; the limit is {MAX_DISK_BYTES >> 20} MB"
        return ""


class Subject:
    """A running server under test. `with Subject(...)` waits until it listens, and ends all of its processes."""

    def __init__(
        self,
        start_command: StartCommand,
        site: ServedFiles,
        workers: int,
        limits: SandboxLimits,
        port: int,
        output: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.start_command = start_command
        self.site = site
        self.workers = workers
        self.port = port
        self.limits = limits
        self.output = output
        self.own_children = set(processes.children_of_grader())  # started before, so not the server's
        self.excess = ExcessWatch(limits.account, start_command.directory)
        self.environment = dict(environment or {})
        self.trace = output.with_suffix(".trace")  # for the lab scheduling; other servers leave it empty
        create_anew(self.trace).close()
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
            **start_command.environment,
        }
        self.command = start_command.words_for(port, site.root, workers)
        with create_anew(output) as log:
            try:
                self.process = subprocess.Popen(
                    self.command,
                    cwd=start_command.directory,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=limits,
                )
            # SandboxLimits fails by a SubprocessError, which is a fault of the grader: no check may fail by it.
            except OSError as error:
                if error.errno in FAULTS_OF_MACHINE:
                    raise
                raise NotStarted(f"the server could not be started: {error}") from None
        self.pid = self.process.pid

    def wait_until_ready(self) -> None:
        """Wait until the server listens. Raises NotStarted if it ends, sleeps, or takes too much or too long.

        The kernel says whether it listens (/proc/net/tcp). A connection would be the first client of the server,
        and could change what a check finds.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        pause = MIN_START_PAUSE_S  # it grows: most servers listen at once, and each look costs processor time
        previous, still_since = processes.tasks(self.family()), time.monotonic()
        checked_at = time.monotonic()
        while not processes.listener_inode(self.port):
            if time.monotonic() - checked_at > EXCESS_CHECK_EVERY_S:
                checked_at = time.monotonic()
                if excess := self.excess_text():
                    raise NotStarted(f"the server uses too much before it listens: {excess}", self.log())
            status = self.process.poll()
            if status is not None and not self.family():
                how = f"status {status}" if status >= 0 else f"signal {processes.signal_name(-status)}"
                raise NotStarted(
                    f"the server ended with {how} before it listened on port {self.port}", self.log()
                )
            tasks = processes.tasks(self.family())
            if tasks != previous or not all(task.asleep for task in tasks.values()):
                previous, still_since = tasks, time.monotonic()
            is_quiescent = time.monotonic() - still_since > QUIESCENT_START_S
            if is_quiescent or time.monotonic() > deadline:
                waited = "the server sleeps, and" if is_quiescent else f"after {START_TIMEOUT_S:.0f} s"
                raise NotStarted(
                    f"{waited} nothing listens on port {self.port}; does the server use "
                    f"the port of its command line?",
                    self.log(),
                )
            time.sleep(pause)
            pause = min(pause * 1.5, MAX_START_PAUSE_S)

    def family(self) -> list[int]:
        """Return the processes of the server, including zombies and adopted orphans."""
        roots = []
        for pid in processes.children_of_grader():
            if pid in self.own_children:
                continue
            if pid != self.pid and processes.state(pid) == "Z":  # Popen itself reaps the first process
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)  # its parent has ended, so the grader has to reap it
                continue
            roots.append(pid)
        self.process.poll()  # reaps the first process if it has ended
        return processes.family(roots)

    def running(self) -> list[int]:
        """Return the processes of the server without zombies."""
        return [pid for pid in self.family() if processes.runs(pid)]

    def alive(self) -> bool:
        """Return whether the first process runs, or another process of the server listens."""
        return self.process.poll() is None or bool(self.running() and processes.listener_inode(self.port))

    def ending_text(self) -> str:
        """Describe in words how the server's first process has ended, or that it still runs."""
        status = self.process.poll()
        if status is None:
            return "still runs"
        return (
            f"ended with status {status}" if status >= 0 else f"was ended by {processes.signal_name(-status)}"
        )

    def tasks(self) -> dict[int, processes.ThreadSample]:
        return processes.tasks(self.family())

    def excess_text(self) -> str:
        """Describe the limit of memory, tasks or files that the server's processes exceed together; "" if none."""
        return self.excess.text(self.running())

    def log(self, lines: int = 12) -> str:
        """Return the last lines of the server's output; "" if the file is no longer there."""
        try:
            with open_regular(self.output) as file:
                return last_lines(file.fileno(), lines)
        except OSError:  # a server with the grader's account may remove the file, or put a FIFO in its place
            return ""

    def close(self) -> None:
        """Kill and reap every process of the server."""
        end_all(self.process, self.own_children, self.limits.account)

    def __enter__(self) -> Subject:
        try:
            self.wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
