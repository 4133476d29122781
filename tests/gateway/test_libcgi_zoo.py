"""A zoo of faulty libraries: each commonplace fault, in place, under every model.

After each fault the same holds. The client that asked gets the answer that docs/libcgi.md promises. The next
requests, on this connection and on others, get their right answers. In the end the server stops on TERM and leaves
no process.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from support import web
from support.libcgi_libraries import compile_libraries, install
from support.proc import alive, open_files, session_members
from support.server import Server, Start, wait_until

pytestmark = [pytest.mark.starts_processes, pytest.mark.needs("gcc")]
EVER = {
    "ewe.features.libcgi.libraries.MAX_FAULTS": 100_000
}  # a library is never kept out, however often it faults
SOON = ("--libcgi-timeout", "0.4s")  # where calls spin until the time limit ends them
NUMBERS = itertools.count(1)
Zoo = Callable[..., "Visit"]


class Visit:
    """A server with the zoo, one connection to it that stays, and one for each look at the other clients."""

    def __init__(self, server: Server, directory: Path, *, alone: bool) -> None:
        self.server = server
        self.directory = directory
        self.alone = alone  # it serves one connection at a time
        self.client = web.Client(base_url=server.url, timeout=60)

    def ask(self, client: web.Client, library: str, query: str) -> tuple[int, str, str]:
        """Return the status and the text of an answer, and the text that only this request is answered with."""
        number = f"n{next(NUMBERS)}"
        answer = client.get(f"/libcgi-bin/{library}.so?{query}", headers={"X-Number": number})
        return answer.status_code, answer.text, number

    def works(self, query: str, before: str = "") -> None:
        """Ask for what a library may do; then check this connection, another one, and a file."""
        status, text, number = self.ask(self.client, "zoo", query)
        assert (status, text) == (200, before + number), (query, self.server.log())
        self.check(query)

    def fault(self, query: str, status: int = 500, words: str = "") -> None:
        """Ask for a fault; then check this connection, another one, and a file."""
        seen = len(self.server.log())
        found, text, _ = self.ask(self.client, "zoo", query)
        assert found == status, (query, found, text, self.server.log()[seen:])
        if words:
            wait_until(lambda: words in self.server.log()[seen:], 20, lambda: self.server.log()[seen:])
        self.check(query)

    def check(self, query: str) -> None:
        """Check that requests get their own answers: on this connection and on a new one, by library and file."""
        with web.Client(base_url=self.server.url, timeout=60) as other:
            for client in (self.client,) if self.alone else (self.client, other):
                for library in ("zoo", "contract"):
                    number = f"n{next(NUMBERS)}"
                    path = f"/libcgi-bin/{library}.so?env=HTTP_X_NUMBER"
                    answer = client.get(path, headers={"X-Number": number})
                    assert (answer.status_code, answer.text) == (200, number), (
                        query,
                        library,
                        self.server.log(),
                    )
                assert "welcome" in client.get("/").text, query

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Stop the server by TERM. Nothing may be left."""
        self.client.close()
        if kind is not None:
            return
        pids = {self.server.pid, *session_members(self.server.pid)}
        self.server.stop(signal.SIGTERM)
        wait_until(lambda: not alive(pids), 20, lambda: f"{alive(pids)} are left: {self.server.log()}")
        assert session_members(self.server.pid) == []
        assert "Traceback" not in self.server.log(), self.server.log()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the compiled libraries."""
    return compile_libraries(tmp_path_factory.mktemp("zoo"))


@pytest.fixture
def zoo(start: Start, built: Path, tmp_path: Path) -> Iterator[Zoo]:
    """Return a function that starts ewe with the zoo, not as root."""
    directory = tmp_path / "libcgi-bin"
    directory.mkdir()
    for name in ("contract", "zoo"):
        install(built, name, directory / f"{name}.so")

    def visit(model: str, *options: str) -> Visit:
        user = ("--user", "nobody") if os.geteuid() == 0 else ()
        path = ("--libcgi-path", str(directory), "--libcgi-timeout", "1s")
        return Visit(start(model, *path, *user, *options, constants=EVER), directory, alone=model == "serial")

    yield visit


STACK = ("overrun", "overrun-far", "overrun-up", "recursion", "large-frame")


def test_the_stack(zoo: Zoo, model: str) -> None:
    """A library that destroys its stack, or fills it, leaves the program's frames as they were."""
    with zoo(model) as visit:
        for query in STACK:
            visit.fault(query, 500, "zoo.so: processfunc(): segmentation fault")


CHILDREN = (
    "fork-return", "fork-write", "fork-exit", "fork-fault", "fork-thread", "vfork", "clone", "clone-exit", "spawn",
    "fork-stays", "fork-twice", "fork-program", "system", "popen",
)  # fmt: skip


def test_processes_that_a_library_makes(zoo: Zoo, model: str) -> None:
    """None answers, none holds a socket of the server, none outlives the time limit."""
    with zoo(model) as visit:
        for query in CHILDREN:
            visit.works(query)
        visit.works("fork-pipe", "child")


def test_signals_that_a_library_blocks_or_takes(zoo: Zoo, model: str) -> None:
    """The time limit holds, a fault is a fault, and TERM stops the server."""
    with zoo(model, *SOON) as visit:
        for query in ("block", "block-process", "handle", "ignore", "default"):
            visit.works(query)
        for query in ("block-fault", "handle-fault", "ignore-fault"):
            visit.fault(query, 500, "segmentation fault")
        for query in ("block-loop", "handle-loop", "ignore-loop"):
            visit.fault(query, 500, "took longer than its limit")
        for query in ("block", "ignore"):
            visit.works(query)


def test_a_library_that_hears_no_signal_ends_its_process(zoo: Zoo, model: str) -> None:
    """The library blocks the signals by a system call. The connection breaks; another process serves the next."""
    with zoo(model, *SOON) as visit:
        with pytest.raises(httpx.TransportError):
            visit.ask(visit.client, "zoo", "raw-block-loop")
        visit.server.wait_for_log("zoo.so: blocks the signal that ends its call")
        with contextlib.suppress(httpx.TransportError):
            visit.client.get("/")  # a connection that has broken
        wait_until(lambda: answers(visit.server), 20)
        visit.check("raw-block-loop")


def test_output_without_end(zoo: Zoo, model: str) -> None:
    """The output is ended by its size, or by the time limit, which a flush does not restart."""
    with zoo(model, "--libcgi-max-output", "8M") as visit:
        for query in ("endless-short", "endless", "endless-print"):
            visit.fault(query, 500, "wrote more than it may (libcgi-max-output)")
        visit.fault("slow-endless", 500, "took longer than its limit")
        assert not spools(visit.server), spools(visit.server)


def test_threads_that_a_library_starts(zoo: Zoo, model: str) -> None:
    """None writes into an answer. A fault ends none but the thread: 500, now or with the next request."""
    with zoo(model) as visit:
        for query in ("thread-works", "thread-speaks", "thread-fork", "thread-stays"):
            visit.works(query)
        for query in ("thread-fault", "thread-abort", "thread-recursion", "thread-exit"):
            visit.fault(query, 500, "zoo.so: a thread that it started: ")


ENDS = ("end-err", "end-errx", "end-error", "end-daemon")
EXECS = ("end-execv", "end-execlp", "end-execle")


def test_functions_that_would_end_or_replace_the_server(zoo: Zoo, model: str) -> None:
    """The functions end the call, as exit() does. A child process may run another program."""
    with zoo(model) as visit:
        for query in ("end-error-0", "exec-in-child"):
            visit.works(query)
        for query in ENDS:
            visit.fault(query, 500, "zoo.so: processfunc() called exit(")
        for query in EXECS:
            visit.fault(query, 500, "zoo.so: processfunc() called exec()")
        assert "ended with status" not in visit.server.log()


@pytest.mark.parametrize("supervised", ["prefork", "thread", "asyncio"])
def test_no_exit_status_of_a_library_stops_the_server(zoo: Zoo, supervised: str) -> None:
    """Status 3 is that of a worker that cannot begin to serve; but such a worker says why."""
    with zoo(supervised) as visit:
        with pytest.raises(httpx.TransportError):
            visit.ask(visit.client, "zoo", "end-hidden")
        visit.server.wait_for_log("ended with status 3; starting another")
        with contextlib.suppress(httpx.TransportError):
            visit.client.get("/")  # a connection that has broken
        wait_until(lambda: answers(visit.server), 20)
        visit.check("end-hidden")


def test_destructors_that_fault_leave_the_loader_as_it_was(zoo: Zoo, model: str) -> None:
    """The destructors run when the library is unloaded. The next request loads the library again."""
    with zoo(model, *SOON) as visit:
        visit.fault("atexit-aborts", 500, "zoo.so: destructors(): abort()")
        visit.fault("atexit-spins", 500, "zoo.so: destructors() took longer than its limit")


def test_timers_are_the_servers(zoo: Zoo, model: str) -> None:
    """The signal of a timer would end the process. The time limit still ends a call."""
    with zoo(model, *SOON) as visit:
        for query in ("timer-real", "timer-profile", "alarm"):
            visit.works(query)
        for query in ("alarm-spins", "alarm-jump"):
            visit.fault(query, 500, "took longer than its limit")
        assert "ended by signal" not in visit.server.log()


WAITS = ("wait-suspend", "wait-sigwait", "wait-info", "wait-ppoll", "wait-pselect", "wait-epoll")


def test_the_time_limit_ends_a_wait_with_all_signals_blocked(zoo: Zoo, model: str) -> None:
    with zoo(model, *SOON) as visit:
        for query in WAITS:
            visit.fault(query, 500, "took longer than its limit")


def test_what_belongs_to_the_thread_stays_the_servers(zoo: Zoo, model: str) -> None:
    """A call cannot cancel the server's thread, nor take the stack on which a full stack is noticed."""
    with zoo(model, *SOON) as visit:
        for query in ("cancel", "cancel-own", "direction"):
            visit.works(query)
        visit.fault("cancel-spins", 500, "took longer than its limit")
        visit.fault("no-handler-stack", 500, "segmentation fault")


def spools(server: Server) -> list[str]:
    """Return the unnamed files that the server's processes have open."""
    return [
        name
        for pid in server.processes()
        for name in open_files(pid).values()
        if name.endswith("(deleted)") and "memfd:" not in name
    ]


def answers(server: Server) -> bool:
    """Return whether the server answers on a new connection."""
    try:
        return web.get(server.url).status_code == 200
    except httpx.TransportError:
        return False
