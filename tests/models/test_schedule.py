"""The pool's policies: the order of waiting requests, the one that a full queue drops, and slow clients."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.server import Server, Start, run_command, wait_until, write_program
from support.wire import read_all, read_response, reset

from ewe.config.settings import Config
from ewe.processors.request_queue import RequestQueue
from ewe.processors.scheduled_pool import ScheduledPool
from ewe.requested_bytes import requested_bytes
from ewe.streams.scheduled import ScheduledStream

SIZES = {"/1": 1_000, "/2": 2_000, "/3": 300_000, "/held": 12_000_000}
SFF, SRPT = "pool --parking idle --schedule sff", "pool --schedule srpt"
NEVER_AGES = ("--schedule-ageing", "1000")


def of(path: str, connection: str = "close") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: ewe\r\nConnection: {connection}\r\n\r\n".encode()


def begin(start: Start, tmp_path: Path, model: str, *options: str) -> Server:
    """Start a pool of one thread, with files of different sizes and a trace."""
    trace = ("--trace", str(tmp_path / "trace"), "--poolthreads", "1", "--grace", "60s")
    server = start(model, *trace, *options)
    for path, size in SIZES.items():
        (server.root / path[1:]).write_bytes(bytes(size))
    write_program(server.cgi / "gate", "#!/bin/sh\nwhile [ ! -e gone ]; do sleep 0.02; done; echo; echo open")
    return server


def events(tmp_path: Path, event: str) -> list[list[str]]:
    """Return the connections of one kind of event, and its text, in order."""
    lines = (tmp_path / "trace").read_text().splitlines()
    return [[line.split()[2], *line.split()[4:]] for line in lines if line.split()[1] == event]


@contextmanager
def held(server: Server, tmp_path: Path) -> Iterator[None]:
    """Occupy the only thread during the block: by a program with parking = always, else by a client."""
    with server.connect() as sock:
        if "parking always" in server.log():
            sock.sendall(of("/cgi-bin/gate"))
            wait_until(lambda: events(tmp_path, "program"), 20)
            yield
            (server.cgi / "gone").touch()
            assert b"open" in read_all(sock)
        else:
            sock.sendall(of("/held"))
            wait_until(lambda: events(tmp_path, "sends"), 20)
            yield
            assert len(read_all(sock)) > SIZES["/held"]


def queued(server: Server, tmp_path: Path, *paths: str) -> list[socket.socket]:
    """Send requests, one at a time, each when the one before it is in the queue."""
    found = []
    for path in paths:
        before = len(events(tmp_path, "ready"))
        found.append(server.connect())
        found[-1].sendall(of(path))
        wait_until(lambda: len(events(tmp_path, "ready")) > before, 20)  # noqa: B023
    return found


def served(tmp_path: Path) -> list[str]:
    """Return the paths of the requests in the order in which the thread took them."""
    return [path for _, _, path in events(tmp_path, "request")][1:]


def ticks(pid: int) -> int:
    """Return the CPU time of a process, in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def statuses(clients: list[socket.socket]) -> list[int]:
    found = []
    for sock in clients:
        found.append(read_response(sock)[0])
        sock.close()
    return found


# --- The order ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "order"),
    [
        ("pool --parking idle", "3 1 2 1"),
        ("pool --parking idle --overload drop-oldest", "3 1 2 1"),
        (SFF, "1 1 2 3"),
        ("pool --schedule sff", "1 1 2 3"),
        (SRPT, "1 1 2 3"),
    ],
)
def test_the_order_of_waiting_requests(start: Start, tmp_path: Path, model: str, order: str) -> None:
    server = begin(start, tmp_path, model)
    with held(server, tmp_path):
        clients = queued(server, tmp_path, "/3", "/1", "/2", "/1")
    assert statuses(clients) == [200] * 4
    assert served(tmp_path) == [f"/{each}" for each in order.split()]


def test_a_request_that_others_have_overtaken_is_next(start: Start, tmp_path: Path) -> None:
    server = begin(start, tmp_path, SFF, "--schedule-ageing", "2")
    with held(server, tmp_path):
        clients = queued(server, tmp_path, "/3", "/1", "/1", "/1", "/1")
    assert statuses(clients) == [200] * 5
    assert served(tmp_path) == ["/1", "/1", "/3", "/1", "/1"]


def test_a_large_file_goes_on_after_smaller_ones_that_came_later(start: Start, tmp_path: Path) -> None:
    """With parking = always, its response goes back to the queue after each turn."""
    server = begin(start, tmp_path, "pool --schedule sff", *NEVER_AGES)
    with server.connect() as large:
        large.sendall(of("/held"))
        wait_until(lambda: events(tmp_path, "sends"), 20)
        wait_until(lambda: events(tmp_path, "parked")[-1][1:] == ["room"], 20)
        with held(server, tmp_path):
            before = len(events(tmp_path, "ready"))
            large.recv(4_000_000)
            wait_until(lambda: len(events(tmp_path, "ready")) > before or large.recv(65536) == b"", 20)
            clients = queued(server, tmp_path, "/1")
            name = events(tmp_path, "accepted")[-1][0]
            runs = len(events(tmp_path, "runs"))
        assert statuses(clients) == [200]
        assert events(tmp_path, "runs")[runs:][0][0] == name
        read_all(large)


# --- The dropped request ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("sff --overload refuse", [200, 200, 503, 503]),
        ("sff --overload drop-oldest", [503, 503, 200, 200]),
        ("fifo --overload drop-largest", [200, 503, 200, 503]),
        ("sff --overload drop-largest", [200, 503, 200, 503]),
    ],
)
@pytest.mark.parametrize("parking", ["idle", "always"])
def test_the_request_that_a_full_queue_drops(
    start: Start, tmp_path: Path, parking: str, policy: str, expected: list[int]
) -> None:
    server = begin(start, tmp_path, f"pool --parking {parking} --queue 2 --schedule {policy}")
    with held(server, tmp_path):
        clients = queued(server, tmp_path, "/1", "/3", "/2", "/3")
        dropped = [sock for sock, status in zip(clients, expected, strict=True) if status == 503]
        assert statuses(dropped) == [503, 503]  # at once, while the thread is occupied
        left = [sock for sock in clients if sock not in dropped]
    assert statuses(left) == [200, 200]
    assert len([each for each in events(tmp_path, "ended") if each[1:] == ["dropped"]]) == 2
    assert events(tmp_path, "refused") == [["-", "127.0.0.1", "overload"]] * 2
    wait_until(lambda: len(events(tmp_path, "closed")) == 5, 20)
    assert server.stop() == 0, server.log()


# --- Clients ----------------------------------------------------------------------------------------------


def test_half_a_request_occupies_no_thread(start: Start, tmp_path: Path) -> None:
    """Also with parking = idle, and while it comes byte by byte; then it is a request like others."""
    server = begin(start, tmp_path, SFF)
    with server.connect() as slow, server.connect() as kept:
        for byte in of("/1", "keep-alive")[:-1]:
            slow.send(bytes([byte]))
            if byte == ord(" "):
                kept.sendall(of("/2", "keep-alive"))
                assert read_response(kept)[0] == 200
        assert [event[0] for event in events(tmp_path, "ready")].count(
            events(tmp_path, "accepted")[0][0]
        ) == 0
        slow.sendall(b"\n")
        assert read_response(slow)[0] == 200
        slow.sendall(of("/1"))  # the connection can be parked again
        assert read_response(slow)[0] == 200
    assert served(tmp_path).count("/1") == 2


def test_half_a_request_costs_no_time(start: Start) -> None:
    """Its bytes stay unread, and are reported only once."""
    server = start(SFF)
    with server.connect() as slow:
        slow.sendall(of("/")[:20])
        assert server.ask(of("/")).startswith(b"HTTP/1.1 200 ")
        before = ticks(server.pid)
        time.sleep(1)
        assert ticks(server.pid) - before <= 5


@pytest.mark.parametrize("kept", [False, True])
def test_half_a_request_is_late_after_one_head_timeout(start: Start, kept: bool) -> None:
    server = start(SFF, "--head-timeout", "1s", "--idle", "1h")
    with server.connect() as slow, server.connect() as silent:
        if kept:
            slow.sendall(of("/", "keep-alive"))
            assert read_response(slow)[0] == 200
        began = time.monotonic()
        slow.sendall(of("/")[:20])
        assert read_response(slow)[0] == 408
        assert time.monotonic() - began >= 1.0
        assert silent.recv(1) == b""
    server.wait_for_log("did not come in 1 s")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: ewe\n", 400),
        (b"GET /" + b"x" * 20_000, 414),
        (b"\r\n" + of("/"), 200),
        (of("/") + b"rest", 200),
        (b"POST / HTTP/1.1\r\nHost: ewe\r\nContent-Length: 3\r\n\r\nabc", 405),
    ],
)
def test_what_is_no_plain_request_gets_its_answer_at_once(start: Start, sent: bytes, status: int) -> None:
    server = start(SFF, "--head-timeout", "1h")
    with server.connect() as sock:
        sock.sendall(sent)
        assert read_response(sock)[0] == status


def test_a_client_that_ends_within_a_head(start: Start) -> None:
    server = start(SFF, "--head-timeout", "1h")
    assert server.ask(of("/")[:20]).startswith(b"HTTP/1.1 400 ")
    assert server.ask(of("/")).startswith(b"HTTP/1.1 200 ")


def test_clients_that_vanish_from_the_queue(start: Start, tmp_path: Path) -> None:
    server = begin(start, tmp_path, SFF, "--overload", "drop-oldest", "--queue", "20")
    descriptors = len(os.listdir(f"/proc/{server.pid}/fd"))
    with held(server, tmp_path):
        clients = queued(server, tmp_path, *["/2"] * 50)
        for number, sock in enumerate(clients):
            if number % 2:
                reset(sock)
            else:
                sock.close()
        stays = queued(server, tmp_path, "/3")
    assert statuses(stays) == [200]
    # The last 16 refused sockets linger (MAX_LINGERING), and the cache holds a file.
    wait_until(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) <= descriptors + 18, 20)
    assert server.stop() == 0, server.log()


# --- Operations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [SFF, SRPT])
def test_a_stop_serves_the_queue(start: Start, tmp_path: Path, model: str) -> None:
    server = begin(start, tmp_path, model)
    with server.connect() as half:
        half.sendall(of("/")[:20])
        with held(server, tmp_path):
            clients = queued(server, tmp_path, "/3", "/1")
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "stop" in server.log(), 20)
        assert statuses(clients) == [200, 200]
        assert server.process.wait(30) == 0, server.log()


def test_hup_changes_the_policy_of_a_running_pool(start: Start, tmp_path: Path) -> None:
    settings = tmp_path / "ewe.toml"
    settings.write_text('schedule = "sff"\n')
    server = begin(start, tmp_path, "pool --parking idle", "--config", str(settings), *NEVER_AGES)
    settings.write_text('schedule = "fifo"\noverload = "drop-oldest"\nqueue = 2\n')
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_log("was read again")
    with held(server, tmp_path):
        clients = queued(server, tmp_path, "/1", "/3", "/2")
        assert statuses(clients[:1]) == [503]
    assert statuses(clients[1:]) == [200, 200]
    assert served(tmp_path) == ["/3", "/2"]
    settings.write_text("")
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_log("schedule, overload: a change needs a restart")
    settings.write_text('schedule = "sff"\ntls = "self"\n')
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_log("leave tls and tls-cert out")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("-t --schedule sff", "thread has none: choose -p"),
        ("-a --overload drop-oldest", "overload = drop-oldest is a policy of the pool's queue"),
        ("-p --parking never --schedule sff", "choose parking = idle, or always"),
        ("-p --parking idle --schedule srpt", "choose parking = always, or schedule = sff"),
        ("-p --schedule sff --tls self", "leave tls and tls-cert out"),
        ("-p --schedule sff --proxy-protocol --trusted-proxies 127.0.0.1", "leave proxy-protocol out"),
    ],
)
@pytest.mark.starts_processes
@pytest.mark.parametrize("check", [True, False])
def test_settings_that_exclude_each_other(tmp_path: Path, options: str, says: str, check: bool) -> None:
    (tmp_path / "htdocs").mkdir()
    done = run_command(tmp_path, *options.split(), "--port", "0", *(["--check-config"] if check else []))
    assert done.returncode == 1 and says in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.starts_processes
def test_sites_exclude_an_order_by_size(tmp_path: Path) -> None:
    (tmp_path / "ewe.toml").write_text('schedule = "sff"\n[[site]]\nnames = ["a.example"]\n')
    (tmp_path / "htdocs").mkdir()
    done = run_command(tmp_path, "--check-config")
    assert done.returncode == 1 and "leave the [[site]] tables out" in done.stderr


# --- The queue and the sizes, alone -----------------------------------------------------------------------


def chosen(waiting: list[Any], schedule: str, ageing: int) -> Any:
    """Return the entry to take next, by the words of the settings; count those that it overtakes."""
    late = [each for each in waiting if each.overtaken >= ageing]
    smallest = min(waiting, key=lambda each: each.size)
    found = waiting[0] if schedule == "fifo" else late[0] if late else smallest
    for each in waiting[: waiting.index(found)]:
        each.overtaken += 1
    return found


VICTIMS = {
    "refuse": lambda waiting: waiting[-1],
    "drop-oldest": lambda waiting: waiting[0],
    "drop-largest": lambda waiting: max(reversed(waiting), key=lambda each: each.size),
}


@pytest.mark.parametrize("overload", ["wait", *VICTIMS])
@pytest.mark.parametrize("schedule", ["fifo", "sff"])
def test_the_queue_beside_a_simple_one(schedule: str, overload: str) -> None:
    for seed in range(20):
        compare_with_a_simple_queue(random.Random(seed), schedule, overload)


def compare_with_a_simple_queue(chance: random.Random, schedule: str, overload: str) -> None:
    """Put requests of random sizes into a queue and into a list, and take them out as the list says."""
    limit, ageing = chance.randrange(1, 9), chance.randrange(1, 6)
    queue = RequestQueue(Config(schedule=schedule, overload=overload, queue=limit, schedule_ageing=ageing))
    waiting: list[Any] = []
    for _ in range(400):
        if not waiting or chance.random() < 0.6:
            waiting.append(task := task_of(chance.randrange(4)))
            victim = VICTIMS[overload](waiting) if overload != "wait" and len(waiting) > limit else None
            if victim is not None:
                waiting.remove(victim)
            assert queue.put(task) is victim
        else:
            wanted = chosen(waiting, schedule, ageing)
            waiting.remove(wanted)
            assert queue.get() is wanted
        assert queue.qsize() == len(waiting) == len(queue.by_size) and len(queue.overtaking) <= ageing


def task_of(size: int, is_new_request: bool = True) -> Any:
    return SimpleNamespace(
        size=size, overtaken=0, stream=SimpleNamespace(rank=lambda _: (size, is_new_request))
    )


def test_a_burst_that_finds_free_threads_is_not_dropped() -> None:
    """Threads that have not woken up yet will take as many requests; responses in progress take threads, too."""
    queue = RequestQueue(Config(overload="refuse", queue=2))
    tokens, awake = queue.tokens, threading.Event()
    queue.tokens = SimpleNamespace(put=tokens.put, get=lambda: awake.wait() and tokens.get())  # type: ignore[assignment]
    threads = [threading.Thread(target=queue.get) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: queue.free == 4, 20)
    assert queue.put(task_of(1, is_new_request=False)) is None
    assert [queue.put(task_of(1)) for _ in range(5)] == [None] * 5
    late = task_of(1)
    assert queue.put(late) is late
    awake.set()
    for thread in threads:
        thread.join(20)
    assert queue.qsize() == 2 and queue.free == 0


def test_an_order_to_end_comes_after_what_waits() -> None:
    queue = RequestQueue(Config(schedule="sff"))
    task = task_of(9)
    queue.put(task)
    queue.put(None)
    assert queue.get() is task and queue.get() is None


def test_the_rank_of_a_stream_and_its_deadline() -> None:
    ours, theirs = socket.socketpair()
    stream = ScheduledStream(ours, ("::1", 1), ("::1", 2), Config(), True)
    stream.file_bytes, stream.is_new_request, stream.unsent = 9, True, 0
    assert stream.rank("srpt") == (9, True)
    stream.unsent, stream.head_until = 4, 1.0
    stream.set_deadline(60.0)
    assert stream.expires == 1.0  # a head that is late has no second head-timeout
    assert stream.rank("srpt") == (4, False) and stream.rank("sff") == (9, False)
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    ("head", "size"),
    [
        (of("/1"), 1_000),
        (of("/1?query"), 1_000),
        (of("/%31"), 1_000),
        (b"\r\n" + of("/1"), 1_000),
        (of("/1") + of("/2"), 1_000),
        (of("/"), 7),
        (of("/missing"), 0),
        (of("/folder"), 0),
        (of("/../1"), 0),
        (of("/1").replace(b"GET", b"HEAD"), 0),
        (b"rubbish\r\n\r\n", 0),
        (b"rubbish\n", 0),
        (of("/1")[:-1], None),
        (b"", None),
    ],
)
def test_the_size_that_a_head_asks_for(tmp_path: Path, head: bytes, size: int | None) -> None:
    from ewe.sites import make_site

    (tmp_path / "1").write_bytes(bytes(1_000))
    (tmp_path / "index.html").write_text("welcome")
    (tmp_path / "folder").mkdir()
    site = make_site(Config(documentroot=str(tmp_path)))
    assert requested_bytes(site, head, 0)[0] == size


@pytest.mark.parametrize("behind", [0, 4096, 70_000])
def test_a_request_with_much_behind_its_head_has_a_rank(tmp_path: Path, behind: int) -> None:
    """Otherwise a pipeline, or a body, would make a request the next one, and one that no policy drops."""
    from ewe.sites import make_site

    (tmp_path / "1").write_bytes(bytes(1_000))
    config = Config(documentroot=str(tmp_path), schedule="sff")
    pool = ScheduledPool(make_site(config), config)
    ours, client = socket.socketpair()
    with ours, client:
        stream = ScheduledStream(ours, ("::1", 1), ("::1", 2), config, True)
        client.sendall(of("/1") + b"x" * behind)
        assert pool.has_complete_head(SimpleNamespace(stream=stream))  # type: ignore[arg-type]
        assert stream.rank("sff") == (1_000, True)
