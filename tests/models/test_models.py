"""The differences between the models: connection limits, queues, parking, workers, and the names of models."""

from __future__ import annotations

import itertools
import os
import re
import select
import signal
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from support import web
from support.exercises import of_the_docs
from support.proc import children
from support.server import ROOT, Server, Start, wait_until
from support.wire import read_response

from ewe.config.settings import Config
from ewe.processors.accounting import Accounts
from ewe.streams.base import Stream

GET = b"GET / HTTP/1.1\r\nHost: ewe\r\n\r\n"


def get(sock: socket.socket) -> int:
    """Ask for the page over a kept connection; return the status."""
    sock.sendall(GET)
    return read_response(sock)[0]


def answers_within(server: Server, seconds: float = 20) -> bool:
    """Is a new client served in that time? Few seconds are for clients that are not to be served."""
    with server.connect(seconds) as sock:
        try:
            return get(sock) == 200
        except TimeoutError:
            return False


# --- Ceilings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fork", "thread", "pool", "pool --parking never"])
def test_at_the_limit_connections_wait(start: Start, name: str) -> None:
    server = start(name, "--connections", "2", "--poolthreads", "4", "--idle", "30s")
    with server.connect() as one, server.connect() as two:
        assert get(one) == get(two) == 200
        with server.connect() as waits:
            waits.sendall(GET)
            waits.settimeout(0.4)
            with pytest.raises(TimeoutError):
                waits.recv(1)
            one.close()
            waits.settimeout(20)
            assert read_response(waits)[0] == 200


@pytest.mark.parametrize("name", ["fork", "thread", "pool", "pool --parking never", "asyncio"])
def test_at_the_limit_connections_are_refused(start: Start, name: str) -> None:
    options = ("--connections", "2", "--poolthreads", "4", "--idle", "30s", "--overload", "refuse")
    server = start(name, *options)
    with server.connect() as one, server.connect() as two:
        assert get(one) == get(two) == 200
        with server.connect() as refused:
            refused.sendall(GET)
            status, fields, _ = read_response(refused)
            assert (status, fields["retry-after"], fields["connection"]) == (503, "1", "close")
        one.close()
        wait_until(lambda: answers_within(server), 30)
    assert "503" in server.log()


REFUSING = ["fork", "thread", "pool", "asyncio --loop uvloop", "asyncio --loop asyncio"]


@pytest.mark.parametrize("name", REFUSING)
def test_a_burst_at_the_limit(start: Start, name: str) -> None:
    """The limit holds for connections that come all at once, a refused one is soon closed, and few lines tell."""
    server = start(name, "--connections", "5", "--idle", "30s", "--overload", "refuse")
    before = len(os.listdir(f"/proc/{server.pid}/fd"))
    os.kill(server.pid, signal.SIGSTOP)
    socks = [server.connect() for _ in range(200)]
    os.kill(server.pid, signal.SIGCONT)
    refused = []

    def all_refused() -> bool:
        ready = select.select([sock for sock in socks if sock not in refused], [], [], 0)[0]
        refused.extend(ready)
        return len(refused) >= 195

    wait_until(all_refused, 30, lambda: f"{len(refused)} of 200 are refused")
    for sock in socks:
        if sock not in refused:
            assert get(sock) == 200
    assert len(refused) == 195
    if name != "fork":  # the children of fork hold the connections
        wait_until(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) <= before + 5 + 64, 30)
    assert server.log().count(": 503, ") == 1
    for sock in socks:
        sock.close()


@pytest.mark.parametrize("name", REFUSING)
def test_who_is_turned_away_takes_no_place(start: Start, name: str) -> None:
    options = ("--connections", "4", "--connections-per-client", "2", "--overload", "refuse")
    server = start(name, *options, "--poolthreads", "8")
    address = ("127.0.0.1", server.port)
    many = [socket.create_connection(address, 20, ("127.0.0.2", 0)) for _ in range(20)]
    wait_until(lambda: len(select.select(many, [], [], 0)[0]) >= 18, 30)
    with server.connect() as one, server.connect() as two:
        assert get(one) == get(two) == 200
    for sock in many:
        sock.close()


def test_a_client_is_counted_while_its_last_connection_ends() -> None:
    """The main thread accepts, and a worker thread releases: neither change of the count may be lost."""
    accounts = Accounts(None, Config(connections_per_client=2))  # type: ignore[arg-type]
    address, server = ("192.0.2.1", 5000), ("192.0.2.2", 80)
    new = threading.Thread(target=lambda: accounts.register(Stream(address, server, accounts.config)))

    class Switching(Counter[str]):
        """Another thread runs just before a count of 0 is dropped."""

        def __delitem__(self, client: str) -> None:
            new.start()
            new.join(0.2)
            super().__delitem__(client)

    accounts.clients = Switching()
    first = accounts.register(Stream(address, server, accounts.config))
    accounts.forget(first)
    new.join()
    assert accounts.clients["192.0.2.1"] == len(accounts.live) == 1


FEW = """import ewe.processors.{module} as model, ewe.processors.{threads} as module
start, left = module.start_new_thread, [{count}]
def start_few(*arguments):
    if not left[0]:
        raise RuntimeError("can't start new thread")
    left[0] -= 1
    return start(*arguments)
module.start_new_thread = start_few
class Few(model.{name}):
    name = "few"
"""


FEW_CALLS = FEW.format(module="event", threads="event", name="Event", count=0).replace(
    "ewe.processors.event as module", "ewe.streams.calls as module"
)


def with_few_threads(tmp_path: Path, name: str, threads: str, count: int) -> dict[str, str]:
    """Write few.py, a model for which the system has so many threads; return the environment it needs.

    threads: the module that starts the model's threads.
    """
    text = FEW.format(module=name.lower(), name=name, threads=threads, count=count)
    (tmp_path / "few.py").write_text(text)
    return {"PYTHONPATH": f"{ROOT}:{tmp_path}"}


def test_the_system_has_no_more_threads(start: Start, tmp_path: Path) -> None:
    server = start("few:Few", env=with_few_threads(tmp_path, "Thread", "thread", 2))
    with server.connect() as one, server.connect() as two:
        assert get(one) == get(two) == 200
        for _ in range(2):
            with server.connect() as refused:
                refused.sendall(GET)
                assert read_response(refused)[0] == 503
        assert get(one) == get(two) == 200
    assert "can't start new thread" in server.log()
    assert server.stop() == 0


def test_an_event_loop_without_executor_threads(start: Start, tmp_path: Path) -> None:
    """A call cannot be made: the client gets a 503, not a 500, and the loop serves the others."""
    (tmp_path / "hello.py").write_text(
        "def app(environ, start):\n    start('200 OK', [])\n    return [b'hello']\n"
    )
    (tmp_path / "few.py").write_text(FEW_CALLS)
    server = start("few:Few", "--wsgi", "/hello=hello:app", env={"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    for _ in range(2):
        with server.connect() as sock:
            sock.sendall(b"GET /hello HTTP/1.1\r\nHost: ewe\r\n\r\n")
            status, fields, _ = read_response(sock)
            assert (status, fields["retry-after"]) == (503, "1")
            assert get(sock) == 200
    assert "can't start new thread" in server.log() and "Traceback" not in server.log()
    assert server.stop() == 0


def test_a_pool_with_fewer_threads(start: Start, tmp_path: Path) -> None:
    server = start("few:Few", env=with_few_threads(tmp_path, "Pool", "pool_threads", 2))
    assert answers_within(server)
    assert "2 of 5 threads run (poolthreads): can't start new thread" in server.log()
    assert server.stop() == 0


def test_a_pool_without_threads(start: Start, tmp_path: Path) -> None:
    server = start("few:Few", env=with_few_threads(tmp_path, "Pool", "pool_threads", 0))
    assert server.process.wait(30) == 1
    assert "0 of 5 threads run" in server.log() and "Traceback" not in server.log()


LATE = """import time
from ewe.processors.pool import Pool
class Parked(dict):
    def __setitem__(self, descriptor, task):
        super().__setitem__(descriptor, task)
        if task.stream.requests:
            time.sleep(1)
        task.stream.requests = 1
class Late(Pool):
    name = "late"
    def __init__(self, site, config):
        super().__init__(site, config)
        self.parking.parked = Parked()
"""


def test_an_expired_connection_goes_to_one_worker_only(start: Start, tmp_path: Path) -> None:
    """The deadline passes, and bytes arrive, while a worker parks the connection again."""
    (tmp_path / "late.py").write_text(LATE)
    server = start("late:Late", "--head-timeout", "300ms", env={"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    for more in (b"", b"Host: a\r\n"):
        with server.connect() as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n")
            time.sleep(0.2)
            sock.sendall(more)
            assert b" 408 " in sock.recv(4096)
    assert answers_within(server)
    assert "cannot be parked" not in server.log() and "Traceback" not in server.log()


EARLY = """import os, signal
from ewe.processors.event import Event
class Early(Event):
    name = "early"
    def listen(self, sock, name):
        os.kill(os.getpid(), signal.SIGTERM)
        return super().listen(sock, name)
"""


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_stop_before_the_loop_runs(start: Start, tmp_path: Path, loop: str) -> None:
    (tmp_path / "early.py").write_text(EARLY)
    server = start("early:Early", "--loop", loop, env={"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    assert server.process.wait(30) == 0, server.log()


def test_the_queue_of_the_pool_is_bounded(start: Start) -> None:
    server = start("pool --parking never", "--poolthreads", "1", "--queue", "2", "--overload", "refuse")
    with server.connect() as holds:
        assert get(holds) == 200  # and keeps the only worker
        queued = [server.connect() for _ in range(2)]
        for sock in queued:
            sock.sendall(GET)
        with server.connect() as refused:
            refused.sendall(GET)
            assert read_response(refused)[0] == 503
        holds.close()
        for sock in queued:  # nothing that was accepted is dropped
            assert read_response(sock)[0] == 200
            sock.close()


# --- Parking: the lesson of the pool ------------------------------------------------------------------


def test_never_parking_starves(start: Start) -> None:
    """As in EWE, section 4.1: with as many silent clients as threads, no other client is served."""
    server = start("pool --parking never", "--poolthreads", "2", "--head-timeout", "20s")
    silent = [server.connect() for _ in range(2)]
    assert not answers_within(server, 1.0)
    for sock in silent:
        sock.close()
    assert answers_within(server)


def test_idle_parking_serves_others_between_requests_only(start: Start) -> None:
    server = start("pool --parking idle", "--poolthreads", "2")
    kept = [server.connect() for _ in range(20)]
    assert [get(sock) for sock in kept] == [200] * 20
    assert answers_within(server)
    for sock in kept[:2]:
        sock.sendall(GET[:10])  # half a request holds a worker
    wait_until(lambda: not answers_within(server, 1.0), 30)
    for sock in kept:
        sock.close()


@pytest.mark.parametrize("name", ["pool", "asyncio", "asyncio --loop asyncio", "thread", "fork"])
def test_slow_clients_cost_no_worker(start: Start, name: str) -> None:
    server = start(name, "--poolthreads", "2")
    (server.root / "large").write_bytes(bytes(8_000_000))
    silent = [server.connect() for _ in range(8)]
    half = [server.connect() for _ in range(8)]
    deaf = [server.connect() for _ in range(8)]
    for sock in half:
        sock.sendall(GET[:10])
    for sock in deaf:
        sock.sendall(b"GET /large HTTP/1.1\r\nHost: ewe\r\n\r\n")
    wait_until(lambda: len(select.select(deaf, [], [], 0)[0]) == len(deaf), 30, "not all are answered")
    assert all(answers_within(server) for _ in range(5))
    for sock in half:  # and each slow one is served in the end
        sock.sendall(GET[10:])
        assert read_response(sock)[0] == 200
    for sock in deaf:
        status, _, body = read_response(sock)
        assert (status, len(body)) == (200, 8_000_000)
    for sock in silent + half + deaf:
        sock.close()


def test_five_workers_hold_a_thousand_clients(start: Start) -> None:
    # Exactly five: by default a pool grows while its queue is long, as it is on a busy machine.
    server = start("pool", "--poolthreads", "5")
    clients = [server.connect() for _ in range(1000)]
    for _ in range(2):
        for sock in clients:
            sock.sendall(GET)
        assert all(read_response(sock)[0] == 200 for sock in clients)
    assert threads(server.pid) == 5 + 1
    for sock in clients:
        sock.close()


def threads(pid: int) -> int:
    """Return the number of threads of a process."""
    return len(os.listdir(f"/proc/{pid}/task"))


def test_a_thread_per_connection(start: Start) -> None:
    server = start("thread")
    clients = [server.connect() for _ in range(10)]
    assert [get(sock) for sock in clients] == [200] * 10
    assert threads(server.pid) == 11
    for sock in clients:
        sock.close()
    wait_until(lambda: threads(server.pid) == 1, 30)


def test_serial_serves_one_at_a_time(start: Start) -> None:
    server = start("serial", "--head-timeout", "20s")
    with server.connect():  # it sends no request
        assert not answers_within(server, 0.7)
    assert answers_within(server)
    assert threads(server.pid) == 1 and not children(server.pid)


# --- Workers ------------------------------------------------------------------------------------------


def worker_pids(server: Server) -> set[int]:
    """Return the processes of the workers that live."""
    return {pid for pid, state in children(server.pid).items() if state != "Z"}


def clients_of(pid: int, port: int) -> int:
    """Return how many connections to that port a process has accepted and not closed.

    The number of its sockets would not do: a loop that starts opens some for itself.
    """
    sockets = psutil.Process(pid).net_connections("tcp")
    return sum(each.status == psutil.CONN_ESTABLISHED and each.laddr.port == port for each in sockets)


@pytest.mark.parametrize("name", ["prefork --workers 3", "thread --workers 3", "asyncio --workers 3"])
def test_a_killed_worker_is_replaced(start: Start, name: str) -> None:
    server = start(name)
    before = worker_pids(server)
    assert len(before) == 3
    time.sleep(1.2)  # a worker that dies younger than a second is replaced with a delay
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len(worker_pids(server) - {victim}) == 3, 30, server.log)
    assert all(answers_within(server) for _ in range(5))
    assert f"(pid {victim}) was ended by signal 9" in server.wait_for_log("was ended by signal 9")


def test_back_off_for_workers_that_die_at_once(start: Start) -> None:
    """Each worker that dies young is replaced later than the one before: the wait is doubled and kept."""
    server = start("prefork --workers 1")
    died: list[float] = []
    for _ in range(4):
        wait_until(lambda: worker_pids(server), 30)
        [pid] = worker_pids(server)
        died.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: pid not in worker_pids(server), 30)
        server.wait_for_log(f"(pid {pid}) was ended by signal 9")
    # A worker that was a second old before the machine let it be killed begins again at nothing.
    waits = [
        float(wait or 0) for wait in re.findall(r"starting another(?: in ([\d.]+) s)?$", server.log(), re.M)
    ]
    assert len(waits) == 4
    for before, after in itertools.pairwise(waits):
        assert after in (0, max(0.25, 2 * before)), waits
    for wait, gap in zip(waits, (later - sooner for sooner, later in itertools.pairwise(died)), strict=False):
        assert gap >= wait
    wait_until(lambda: answers_within(server), 30)


def test_workers_retire(start: Start) -> None:
    server = start("prefork --workers 2", "--retire", "10")
    before = worker_pids(server)
    with web.Client() as client:
        for _ in range(60):
            assert client.get(server.url, headers={"Connection": "close"}).status_code == 200
    wait_until(lambda: not before & worker_pids(server) and len(worker_pids(server)) == 2, 30, server.log)


@pytest.mark.parametrize(
    "name", ["prefork", "thread", "pool", "asyncio --loop uvloop", "asyncio --loop asyncio"]
)
def test_a_worker_that_retires_answers_whom_it_has_just_accepted(start: Start, name: str) -> None:
    server = start(name, "--workers", "2")
    workers = worker_pids(server)
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    clients = [server.connect() for _ in range(10)]
    for client in clients:
        client.sendall(GET)
    for worker in workers:
        os.kill(worker, signal.SIGHUP)
        os.kill(worker, signal.SIGCONT)
    for client in clients:
        with client:
            assert read_response(client)[0] == 200


@pytest.mark.parametrize(
    "name", ["prefork --workers 2", "thread --workers 2", "pool --workers 2", "asyncio --workers 2"]
)
def test_workers_end_when_their_supervisor_is_killed(start: Start, name: str) -> None:
    server = start(name, "--head-timeout", "300")
    workers = worker_pids(server)
    assert len(workers) == 2
    with server.connect(), server.connect():  # silent clients: under prefork, each of them holds a worker
        wait_until(lambda: sum(clients_of(pid, server.port) for pid in workers) == 2, 30)
        server.process.kill()
        server.process.wait(30)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 60)


# --- How a model is found -----------------------------------------------------------------------------

EXERCISE = '''
"""A first model of one's own: serve from a thread of ours, one client at a time, and count."""

import threading

from ewe.processors.base import Processor


class Mine(Processor):
    """One worker thread."""

    def serve(self, listener):
        for accepted in listener:
            thread = threading.Thread(target=self.run, args=(self.stream_of(accepted),))
            thread.start()
            thread.join()
'''


FORMER = '''
from ewe.processors.base import Processor


class Mine(Processor):
    """A model that was written for names that have changed since."""

    ceiling = 2

    def __init__(self, site, config):
        super().__init__(site, config)

    def meet(self, accepted):
        return super().meet(accepted)

    def serve(self, listener):
        for accepted in listener:
            assert self.connection_limit == self.ceiling == 2
            assert self.next == self.next_connection
            self.run(self.stream_of(accepted)) if self.served else self.hold(self.meet(accepted))
'''


def test_a_model_may_use_former_names(start: Start, tmp_path: Path) -> None:
    (tmp_path / "former.py").write_text(FORMER)
    server = start("former:Mine", env={"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    for _ in range(2):
        with server.connect() as sock:
            assert get(sock) == 200
    for former in ("ceiling is now called connection_limit", "hold is now called run", "meet is now called"):
        assert server.log().count(f"the model Mine: {former}") == 1
    assert server.stop() == 0, server.log()


IMPORTS = "import os, queue, signal, threading\nfrom ewe.processors.base import Processor\n"


@pytest.mark.parametrize("name", ["Mine", "Threads", "Processes"])
def test_the_exercises_of_the_docs(start: Start, tmp_path: Path, name: str) -> None:
    """Three clients at once are served, each by a separate thread or process, and the stop is clean."""
    (tmp_path / "exercise.py").write_text(IMPORTS + of_the_docs("write-a-model.md", name))
    server = start(f"exercise:{name}", env={"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    socks: list[socket.socket] = []
    for _ in range(3):
        socks.append(server.connect())
        assert get(socks[-1]) == 200
    for sock in socks:
        sock.close()
    assert answers_within(server)
    assert server.stop() == 0, server.log()
    assert "error" not in server.log()


def test_a_model_that_returns_too_early(start: Start, tmp_path: Path) -> None:
    (tmp_path / "exercise.py").write_text(
        EXERCISE.replace("for accepted in listener:", "for accepted in ():")
    )
    server = start("exercise:Mine", env={"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    assert server.process.wait(30) == 1
    assert "the exercise:Mine model has ended without a stop: its serve() has returned" in server.log()


def test_a_model_from_a_file(start: Start, tmp_path: Path) -> None:
    (tmp_path / "exercise.py").write_text(EXERCISE)
    server = start("exercise:Mine")
    assert "exercise:Mine" in server.log()
    assert answers_within(server)
    with server.connect() as idle:
        assert get(idle) == 200
        assert server.stop() == 0, server.log()


def test_a_model_of_another_package(start: Start, tmp_path: Path) -> None:
    package = tmp_path / "site"
    about = package / "mine-1.0.dist-info"
    about.mkdir(parents=True)
    (package / "mine.py").write_text(EXERCISE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[ewe.processors]\nmine = mine:Mine\n")
    server = start("mine", env={"PYTHONPATH": f"{ROOT}:{package}"})
    assert answers_within(server)


@pytest.mark.parametrize("file", ["serial", "thread", "prefork"])
def test_models_stay_small(file: str) -> None:
    """A model that a reader would write as a first exercise has about 40 lines below its docstring."""
    _, _, lines = (ROOT / "ewe" / "processors" / f"{file}.py").read_text().split('"""', 2)
    assert len(lines.splitlines()) <= 45


def test_the_pool_holds_one_idea() -> None:
    """A queue and workers: what a conversation waits for is in other files."""
    text = (ROOT / "ewe" / "processors" / "pool.py").read_text()
    assert len(text.splitlines()) < 200
