"""A running X-Switch for tests, and a FastCGI client of it with blocking sockets."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ewe.xswitch.tools.client import FastCGIClient
from support.fork_server import XSWITCH_CLI, Forked, shared_fork_server
from support.proc import alive, children_of, descendants, session_members
from support.server import ROOT, wait_until

HEAD = "Content-Type: text/plain\\n"
PYTHON_HELLO = f'print("{HEAD}\\nhello")\n'


class Reply(NamedTuple):
    """An answer. status: 0 if the connection broke off before the end of the answer."""

    status: int
    body: bytes
    errors: bytes = b""
    fields: dict[str, str] = {}

    @property
    def text(self) -> str:
        return self.body.decode()


class Connection:
    """One FastCGI connection to an X-Switch, kept open. Its requests are for scripts, by their path."""

    def __init__(self, address: str, timeout: float = 20) -> None:
        self.client = FastCGIClient(address, timeout)
        self.sock = self.client.sock
        self.requester = self.client.requester

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def send(self, path: Path | str, body: bytes | None = b"", keep: bool = True, **params: str) -> None:
        """Send a request; body None: nothing of it yet."""
        values = {
            "SCRIPT_FILENAME": str(path), "SCRIPT_NAME": f"/{os.path.basename(path)}", "REMOTE_ADDR": "192.0.2.1",
            "REQUEST_METHOD": "POST" if body or body is None else "GET", "SERVER_PROTOCOL": "HTTP/1.1",
            "CONTENT_LENGTH": str(len(body or b"")), **params,
        }  # fmt: skip
        pairs = {name.encode(): os.fsencode(value) for name, value in values.items()}
        self.client.send(pairs, body, keep)

    def read(self) -> Reply:
        """Return the answer."""
        output, errors, whole = self.client.receive()
        end = re.search(rb"\r?\n\r?\n", output)
        head, body = (output[: end.start()], output[end.end() :]) if end else (output, b"")
        lines = [line.partition(":") for line in head.decode("latin-1").splitlines()]
        fields = {name.lower(): value.strip() for name, _, value in lines}
        status = int(fields.get("status", "200").split()[0]) if whole else 0
        return Reply(status, body, errors, fields)

    def ask(self, path: Path | str, body: bytes = b"", **params: str) -> Reply:
        """Send a request and return the answer."""
        self.send(path, body, **params)
        return self.read()


class XSwitch:
    """A running ewe-xswitch. site: a directory whose scripts it runs, as nobody if we are root."""

    def __init__(self, process: subprocess.Popen[bytes] | Forked, directory: Path, log: Path) -> None:
        self.process = process
        self.directory = directory
        self.site = directory / "site"
        self.log_file = log
        self.address = ""

    def script(self, name: str, text: str, mode: int = 0o755) -> Path:
        """Write a script of the site."""
        path = self.site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def connect(self, timeout: float = 20) -> Connection:
        return Connection(self.address, timeout)

    def ask(self, path: Path | str, body: bytes = b"", **params: str) -> Reply:
        """Ask over a new connection."""
        with self.connect() as connection:
            return connection.ask(path, body, **params)

    def asking(self, path: Path | str, **params: str) -> Callable[[], Reply]:
        """Ask in a thread; return a function that waits for the answer."""
        answers: list[Reply] = []
        thread = threading.Thread(target=lambda: answers.append(self.ask(path, **params)))
        thread.start()

        def wait() -> Reply:
            thread.join(30)
            return answers[0]

        return wait

    def status(self) -> dict[str, Any]:
        reply = self.ask("", SCRIPT_NAME="/xswitch-status", XSWITCH_STATUS="1", QUERY_STRING="json")
        return dict(json.loads(reply.body))

    def engines(self) -> list[dict[str, Any]]:
        return list(self.status()["engines"])

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def wait_for_log(self, text: str, seconds: float = 20) -> None:
        wait_until(lambda: text in self.log(), seconds, lambda: f"{text!r} is not in the log:\n{self.log()}")

    def members(self) -> dict[str, int]:
        """Return the pids of suexecme and the main module."""
        suexecme, main, *_ = children_of(self.process.pid)
        return {"suexecme": suexecme, "main": main}

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(20)


@contextmanager
def xswitch(
    settings: str = "", listen: str = "127.0.0.1:0", prefix: tuple[str, ...] = (), copy_mode: int = 0
) -> Iterator[XSwitch]:
    """Run X-Switch with settings in TOML; when the block is left, nothing of it may be left.

    prefix: a command that runs it, such as setpriv. copy_mode: run a copy of ewe, in a directory of that mode.
    """
    directory = Path(tempfile.mkdtemp(prefix="test-xswitch-"))
    directory.chmod(0o755)  # the engines run as nobody
    (directory / "site").mkdir(mode=0o755)
    config = directory / "xswitch.toml"
    if "processes" not in settings:
        # The kernel counts an account's processes on the whole machine. All tests at once run engines as nobody.
        head, _, rest = settings.partition("[limits]\n")
        settings = f"{head}\n[limits]\nprocesses = 0\n{rest}"
    general, bracket, tables = settings.partition("[")
    config.write_text(f'roots = ["{directory}/site"]\n{general}\n{bracket}{tables}')
    log = directory / "log"
    home = ROOT
    if copy_mode:
        home = directory / "copy"
        shutil.copytree(
            ROOT / "ewe", home / "ewe", ignore=shutil.ignore_patterns("__pycache__", "lab", "target")
        )
        home.chmod(copy_mode)
    arguments = ["--config", str(config), "--listen", listen]
    process: Forked | subprocess.Popen[bytes]
    if prefix or copy_mode:
        python = "/usr/bin/python3" if prefix else sys.executable
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*prefix, python, "-m", "ewe.xswitch.cli", *arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=home, start_new_session=True,
            )  # fmt: skip
    else:
        log.touch()
        process = shared_fork_server(XSWITCH_CLI).start(arguments, home, log, {})
    running = XSwitch(process, directory, log)
    family: set[int] = set()
    try:
        banner = re.compile(r"listens on (\S+)")
        wait_until(
            lambda: banner.search(running.log()) or process.poll() is not None,
            20,
            lambda: f"no banner: {running.log()}",
        )
        found = banner.search(running.log())
        assert found, running.log()
        running.address = found[1]
        wait_until(lambda: len(descendants(process.pid)) >= 3, 20)
        yield running
        family = descendants(process.pid)
        running.stop()
    finally:
        if process.poll() is None:
            family |= descendants(process.pid)
            process.kill()
            process.wait()
        wait_until(lambda: not alive(family - {process.pid}), 20, lambda: f"left behind: {alive(family)}")
        wait_until(
            lambda: not session_members(process.pid), 20, lambda: f"left: {session_members(process.pid)}"
        )
        said = running.log()
        shutil.rmtree(directory)
        assert "error: | Traceback" not in said, said


@contextmanager
def account() -> Iterator[pwd.struct_passwd]:
    """An account made for the purpose, with an empty public_html of its own; only root can."""
    name = f"ewe-a{os.getpid() % 100000}"
    subprocess.run(["useradd", "--create-home", "--shell", "/bin/false", name], check=True)
    made = pwd.getpwnam(name)
    try:
        public = Path(made.pw_dir) / "public_html"
        public.parent.chmod(0o755)
        public.mkdir()
        os.chown(public, made.pw_uid, made.pw_gid)
        yield made
    finally:
        subprocess.run(["userdel", "--remove", name], check=True, capture_output=True)
