"""A fork server: starts ewe in the time of a fork, for the hundreds of tests that each want a server.

Starting Python and importing ewe takes more CPU time than all that a short test asks of its server. Each worker
of pytest therefore starts a fork server. The fork server imports what ewe's models import, and then waits for
orders on a socket. For each server that a test wants, it forks. The child is what a new process would
be: it has a session, a directory, an environment and standard streams of its own, no descriptor of the test's
process, and it runs the same `main()` as the command.

    pytest's worker                    the fork server                     a test's server
    ForkServer.start()  ── order ───▶  imports done; fork()  ───────────▶  setsid(), chdir(), main()
    Forked.poll()       ── order ───▶  waitpid(WNOHANG)     ◀── its end ──

There are two fork servers: one has imported asyncio, uvloop and ssl. The other has not, because each child of
the models that fork pays for every module that its parent has loaded. Two more are made if a test asks for a server
as on another system than Linux (other_system.py).

What differs from a new process is what a test must not look at in such a server: its command line in /proc, the
modules that it has not imported, its memory. Tests of these, and tests that give the server an environment,
start the command itself: `start(..., env={...})`, or `start(..., env={})`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Never

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ewe.server", "ewe.processors", "ewe.streams", "ewe.features", "ewe.gateway")
HEAVY = ("ewe.processors.event", "ewe.processors.xswitch", "ewe.streams.tls")  # they import asyncio or ssl
MAX_ORDER = 200_000  # bytes; an order holds a whole environment
OVER = ".over"  # LOG.over exists once the test of a server has ended, and only its processes have to end too


class Forked:
    """A server that the fork server has started, with the part of subprocess.Popen that tests use."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.server = server
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, as Popen does, or None while the process runs."""
        if self.returncode is None:
            self.returncode = self.server.order(poll=self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status; raise subprocess.TimeoutExpired after `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        pause = 0.0005
        while (status := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"the server with pid {self.pid}", timeout or 0)
            time.sleep(pause)
            pause = min(pause * 2, 0.02)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process is known to have ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A fork server, seen from the tests. Closing it ends it and all that it has started.

    heavy: import asyncio, uvloop and ssl too. elsewhere: hide what Linux alone has (other_system.py).
    """

    def __init__(self, heavy: bool, elsewhere: bool = False) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.one_at_a_time = threading.Lock()
        kinds = [name for name, wanted in (("heavy", heavy), ("elsewhere", elsewhere)) if wanted]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *kinds],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                start_new_session=True,
            )

    def order(self, **what: object) -> Any:
        """Send an order and return the answer."""
        with self.one_at_a_time:
            self.socket.sendall(json.dumps(what).encode())
            answer = self.socket.recv(MAX_ORDER)
        if not answer:
            raise RuntimeError("the fork server has ended")
        return json.loads(answer)

    def start(self, arguments: list[str], directory: Path, log: Path, constants: dict[str, float]) -> Forked:
        """Start ewe with these arguments, in this directory, with its output in `log`.

        constants: "module.NAME" -> its value in this server.
        """
        pid = self.order(
            arguments=arguments,
            directory=str(directory),
            log=str(log),
            environment={**os.environ, "PYTHONPATH": str(ROOT)},
            constants=constants,
        )
        return Forked(self, pid)

    def close(self) -> None:
        """End the fork server."""
        self.socket.close()
        self.process.wait(10)


def preload(heavy: bool) -> None:
    """Import what the models import late, so that a forked child need not."""
    importlib.import_module("ewe.cli")
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(package.__path__, name + "."):
            if heavy or module.name not in HEAVY:
                importlib.import_module(module.name)
    importlib.import_module("encodings.idna")  # socket.getaddrinfo() imports it, and unicodedata with it
    sys.modules["ewe.cli"].command_line()  # its regular expressions stay in the cache of `re`
    if heavy:
        with contextlib.suppress(ImportError):
            importlib.import_module("uvloop")


def serve_orders(orders: socket.socket) -> dict[str, Any]:
    """Obey orders until the tests close the socket. Returns in each forked child: the order to start it."""
    running: set[int] = set()
    while order := orders.recv(MAX_ORDER):
        what = json.loads(order)
        answer: int | None
        if "poll" in what:
            pid, status = os.waitpid(what["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
            running.discard(pid)
        elif answer := os.fork():
            running.add(answer)
        else:
            orders.close()
            become(what)
            return dict(what)
        orders.sendall(json.dumps(answer).encode())
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    sys.exit(0)


def end_at_once(status: int) -> Never:
    """End a child whose exit status no test looks at, without the teardown of its modules.

    Threads are waited for and exit functions are called, as at each end of an interpreter. The teardown frees every
    object, and so copies nearly all memory of the fork server. It takes longer than the start.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def become(what: dict[str, Any]) -> None:
    """Make this forked child what a new process would be."""
    os.setsid()
    os.chdir(what["directory"])
    sys.path[0] = what["directory"]  # where `python -m` looks first
    os.environ.clear()
    os.environ.update(what["environment"])
    for name, value in what["constants"].items():
        module, _, constant = name.rpartition(".")
        found = importlib.import_module(module)  # a feature is imported by those sites alone that need it
        if not hasattr(found, constant):
            sys.exit(f"there is no {name}")
        setattr(found, constant, value)
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(what["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)


if __name__ == "__main__":
    if "elsewhere" in sys.argv:
        sys.path.insert(1, str(Path(__file__).parent))
        importlib.import_module("other_system").hide()
    preload("heavy" in sys.argv)
    gc.collect()
    # A child that ends collects all garbage several times. It would look at each object of its parent, and with
    # that copy each page: this took twice as long as all that a short test asks of its server.
    gc.freeze()
    orders = serve_orders(socket.socket(fileno=int(sys.argv[1])))
    sys.argv = [str(ROOT / "ewe" / "__main__.py"), *orders["arguments"]]
    status = sys.modules["ewe.cli"].main()
    if Path(orders["log"] + OVER).exists():
        end_at_once(status)
    sys.exit(status)
