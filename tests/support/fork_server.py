"""A fork server: starts ewe in the time of a fork, for the hundreds of tests that each want a server.

Starting Python and importing ewe takes more CPU time than all that a short test asks of its server. Each worker
of pytest therefore starts a fork server. The fork server imports what ewe's models import, and then waits for
orders on a socket. For each server that a test wants, it forks. The child is what a new process would
be: it has a session, a directory, an environment and standard streams of its own, no descriptor of the test's
process, and it runs the same `main()` as the command.

    pytest's worker                    the fork server                     a test's server
    ForkServer.start()  ── order ───▶  imports done; fork()  ───────────▶  setsid(), chdir(), main()
    Forked.wait()       ◀─────────────────────── pidfd: the process has ended ──
    Forked.poll()       ── order ───▶  waitpid(WNOHANG)

There are two fork servers: one has imported asyncio, uvloop, ssl and jinja2. The other has not, because each child
of the models that fork pays for every module that its parent has loaded. Two more are made if a test asks for a
server as on another system than Linux (other_system.py). xswitch() has one, too, and so may another command that
takes long to import. run_command() uses the one without asyncio.

A forked server differs from a new process in some points. A test must not depend on these: its command line in
/proc, the modules that it has not imported, its memory, and the default of prefork's workers (PREFORKED). Tests of
these, and tests that give the server an environment, start the command itself: `start(..., env={...})`, or
`start(..., env={})`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Never

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ewe.server", "ewe.processors", "ewe.streams", "ewe.sites", "ewe.features", "ewe.gateway")
# The commands that fork servers start, by the module whose main() they are
EWE_CLI, XSWITCH_CLI = "ewe.cli", "ewe.xswitch.cli"
XSWITCH = ("ewe.xswitch", "ewe.xswitch.privileged", "ewe.xswitch.switch")
# They import asyncio, ssl or jinja2, or a module that does
HEAVY = (
    "ewe.processors.event", "ewe.processors.xswitch", "ewe.streams.loops", "ewe.streams.tls",
    "ewe.gateway.asgi", "ewe.features.asgi", "ewe.features.sql_pages",
)  # fmt: skip
HEAVY_MODELS = ("asyncio", "xswitch")
HEAVY_OPTIONS = ("--asgi", "--dbd", "--tls", "--tls-cert")  # in any model they need a heavy module
# Workers of the model prefork if a test does not set their number: half of ewe's default, and half of the time
PREFORKED = 4
MAX_ORDER = 200_000  # bytes; an order holds a whole environment
OVER = ".over"  # LOG.over exists once the test of a server has ended, and only its processes have to end too


class Forked:
    """A server that the fork server has started, with the part of subprocess.Popen that tests use."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.server = server
        self.pid = pid
        self.returncode: int | None = None
        # Becomes readable when the process ends. The number stays that of this process until an order reaps it
        self.pidfd = os.pidfd_open(pid)
        self.has_ended = select.poll()
        self.has_ended.register(self.pidfd, select.POLLIN)

    def poll(self) -> int | None:
        """Return the exit status, as Popen does, or None while the process runs."""
        if self.returncode is None and self.has_ended.poll(0):
            self.returncode = self.server.order(poll=self.pid)
            os.close(self.pidfd)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status; raise subprocess.TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            self.has_ended.poll(None if timeout is None else timeout * 1000)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(f"the server with pid {self.pid}", timeout or 0)
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

    heavy: import asyncio, uvloop, ssl and jinja2 too. elsewhere: hide what Linux alone has (other_system.py).
    command: the module whose main() each child runs.
    """

    def __init__(self, heavy: bool = False, elsewhere: bool = False, command: str = EWE_CLI) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.one_at_a_time = threading.Lock()
        named = {"heavy": heavy, "elsewhere": elsewhere}
        kinds = [name for name, wanted in named.items() if wanted]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), command, *kinds],
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

    def start(
        self,
        arguments: list[str],
        directory: Path,
        log: Path,
        constants: dict[str, float],
        output: Path | None = None,
    ) -> Forked:
        """Start ewe or X-Switch with these arguments, in this directory, with its output in `log`.

        constants: "module.NAME" -> its value in this server. output: a separate file for its standard output.
        """
        pid = self.order(
            arguments=arguments,
            directory=str(directory),
            log=str(log),
            output=str(output or log),
            environment={**os.environ, "PYTHONPATH": str(ROOT)},
            constants=constants,
        )
        return Forked(self, pid)

    def close(self) -> None:
        """End the fork server."""
        self.socket.close()
        self.process.wait(60)


def is_heavy(model: str, options: Iterable[str]) -> bool:
    """Return whether a server of this model, with these options, needs what the heavy fork server has imported."""
    return model.startswith(HEAVY_MODELS) or not set(options).isdisjoint(HEAVY_OPTIONS)


@functools.cache
def shared_fork_server(command: str = EWE_CLI) -> ForkServer:
    """Return the fork server of this process for a command, without asyncio for ewe; made when first needed.

    It ends with this process.
    """
    made = ForkServer(command=command)
    atexit.register(made.close)
    return made


def preload(heavy: bool) -> None:
    """Import what the models import late, so that a forked child need not."""
    importlib.import_module("ewe.cli")
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, name + "."):
            if heavy or module.name not in HEAVY:
                importlib.import_module(module.name)
    sys.modules["ewe.processors.prefork"].Prefork.workers = PREFORKED
    importlib.import_module("encodings.idna")  # socket.getaddrinfo() imports it, and unicodedata with it
    # The parser takes longer to make than to use. Servers without settings of other packages have the same one.
    command = sys.modules["ewe.cli"]
    make_parser = command.command_line
    parser_for = functools.cache(lambda keys: make_parser())
    command.command_line = lambda: parser_for(tuple(command.SETTINGS))  # type: ignore[attr-defined]
    command.command_line()
    if heavy:
        with contextlib.suppress(ImportError):
            importlib.import_module("uvloop")
    else:
        assert not {"asyncio", "ssl", "jinja2"} & sys.modules.keys(), "a module that imports these is heavy"


def preload_xswitch() -> None:
    """Import what X-Switch's processes import late."""
    for name in XSWITCH:
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(package.__path__, name + "."):
            if not module.ispkg and module.name != "ewe.xswitch.__main__":
                importlib.import_module(module.name)


def preload_package(command: str) -> None:
    """Import the package of another command, with all that the command imports late of it."""
    name = command.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(name).__path__, name + "."):
        if not module.name.endswith(".__main__"):
            importlib.import_module(module.name)


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
    """End a child without the teardown of its modules: a command, or a server after its test.

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
    output = (
        log if what["output"] == what["log"] else os.open(what["output"], os.O_WRONLY | os.O_CREAT, 0o644)
    )
    for source, target in ((null, 0), (output, 1), (log, 2)):
        os.dup2(source, target)
    for each in {null, log, output}:
        os.close(each)


if __name__ == "__main__":
    if "elsewhere" in sys.argv:
        sys.path.insert(1, str(Path(__file__).parent))
        importlib.import_module("other_system").hide()
    command = sys.argv[2]
    if command == EWE_CLI:
        preload("heavy" in sys.argv)
    elif command == XSWITCH_CLI:
        preload_xswitch()
    else:
        preload_package(command)
    gc.collect()
    # A child that ends collects all garbage several times. It would look at each object of its parent, and with
    # that copy each page: this took twice as long as all that a short test asks of its server.
    gc.freeze()
    orders = serve_orders(socket.socket(fileno=int(sys.argv[1])))
    sys.argv = [str(ROOT / "ewe" / "__main__.py"), *orders["arguments"]]
    status = sys.modules[command].main()
    is_command = orders["output"] != orders["log"]
    if is_command or Path(orders["log"] + OVER).exists():
        end_at_once(status)
    sys.exit(status)
