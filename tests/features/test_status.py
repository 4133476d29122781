"""The status page: the same numbers under every model, for people, as JSON, and for Prometheus."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.memory import MemoryStream
from support.server import ROOT, Server, Start, wait_until, write_program

from ewe.config.settings import Config
from ewe.features.status_page import seconds
from ewe.http.parser import parse_request
from ewe.processors.pool import Pool
from ewe.processors.scheduled_pool import ScheduledPool
from ewe.scoreboard import (
    BUCKETS_S,
    BUSY,
    CONNECTIONS,
    CPU_MICROS,
    FEATURE_NAMES,
    HISTOGRAM,
    MATRIX,
    PID,
    QUEUE,
    READING,
    REQUESTS,
    ROWS,
    WORKERS,
    Scoreboard,
    bucket_of,
    count_recent,
    rate_of,
    states_of,
)
from ewe.server.counted import CountedQueue, counted
from ewe.site import Site
from ewe.sites import make_site
from ewe.streams.blocking import run

GET = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
LOST = b"GET /nope HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def status(server: Server, query: str = "?json", fields: bytes = b"") -> bytes:
    path = f"/ewe-status{query}".encode()
    return server.ask(
        b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + fields + b"Connection: close\r\n\r\n"
    )


def numbers(server: Server) -> dict[str, Any]:
    head, _, body = status(server).partition(b"\r\n\r\n")
    assert b"application/json" in head and b"no-store" in head, head
    found = json.loads(body)
    assert isinstance(found, dict)
    return found


def at_once(work: Callable[[], object], count: int) -> None:
    """Call a function in many threads at once."""
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_every_process_and_thread_counts(start: Start, variant: str) -> None:
    server = start(variant, "--status", "/ewe-status")
    write_program(server.cgi / "hello.py", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nhello'\n")
    size = (server.root / "index.html").stat().st_size

    def visit() -> None:
        for _ in range(5):
            server.ask(GET)
            server.ask(LOST)

    at_once(visit, 6)
    server.ask(b"GET /cgi-bin/hello.py HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    server.ask(b"nonsense\r\n\r\n")
    found = numbers(server)
    assert found["by_feature"]["files"] == {"200": 30, "404": 30}
    assert found["by_feature"]["cgi"] == {"200": 1}
    assert found["by_feature"]["other"] == {"400": 1}
    assert found["requests"] == sum(found["duration"]["counts"]) == 62
    assert found["bytes"] > 30 * size
    assert found["accepted"] == 63 and found["busy"] == 1 and found["connections"] >= 1
    assert found["model"] == variant.split()[0]


def test_connections_by_state(start: Start, way_to_wait: str) -> None:
    server = start(way_to_wait, "--status", "/ewe-status")
    open_ones = [server.connect() for _ in range(3)]
    wait_until(lambda: numbers(server)["connections"] == 4, 20)
    assert numbers(server)["busy"] == 1  # the one that asks
    open_ones[0].sendall(GET[:20])
    wait_until(lambda: states(server) == {"waiting": 2, "reading": 1, "answering": 1, "queued": 0}, 20)
    open_ones[0].sendall(GET[20:].replace(b"close", b"keep-alive"))
    assert open_ones[0].recv(10)
    wait_until(lambda: states(server) == {"waiting": 3, "reading": 0, "answering": 1, "queued": 0}, 20)
    for sock in open_ones:
        sock.close()
    wait_until(lambda: states(server) == {"waiting": 0, "reading": 0, "answering": 1, "queued": 0}, 20)


def states(server: Server) -> dict[str, int]:
    found = numbers(server)
    assert sum(found["states"].values()) == found["connections"]
    assert isinstance(found["states"], dict)
    return found["states"]


def test_a_process_that_does_not_answer_has_written_its_numbers(start: Start) -> None:
    """Each child of fork has one connection, and another child answers the status."""
    server = start("fork", "--status", "/ewe-status")
    with server.connect() as kept, server.connect() as partial:
        kept.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert kept.recv(10)
        partial.sendall(GET[:20])
        wait_until(lambda: states(server) == {"waiting": 1, "reading": 1, "answering": 1, "queued": 0}, 20)
        found = numbers(server)
    assert 0 < found["rate"] <= found["requests"] / 10
    assert found["cpu"] > 0 and all(each["cpu"] > 0 for each in found["processes"])
    began = [each["began"] for each in found["processes"]]
    assert max(began) - min(began) < 60 and abs(time.time() - began[0]) < 60


def test_a_visitor_in_the_queue_of_the_pool(start: Start) -> None:
    server = start("pool --parking never --poolthreads 2", "--status", "/ewe-status")
    silent = [server.connect() for _ in range(2)]
    waiting = [server.connect() for _ in range(3)]
    silent[0].close()  # a worker takes the first of the three, which is silent, too
    waiting[0].sendall(GET)
    waiting[1].sendall(b"GET /ewe-status?json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    found = json.loads(read_to_end(waiting[1]).partition(b"\r\n\r\n")[2])
    assert found["connections"] == 3 and found["queue"] == 1
    assert found["states"] == {"waiting": 1, "reading": 0, "answering": 1, "queued": 1}
    for sock in (silent[1], *waiting):
        sock.close()


def read_to_end(sock: socket.socket) -> bytes:
    data = b""
    while piece := sock.recv(65536):
        data += piece
    return data


def test_a_cut_download_counts_its_bytes(start: Start, model: str) -> None:
    server = start(model, "--status", "/ewe-status")
    (server.root / "large").write_bytes(bytes(50_000_000))
    with server.connect() as sock:
        sock.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        read = 0
        while read < 200_000:
            read += len(sock.recv(65536))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    wait_until(lambda: numbers(server)["aborted"] == 1, 20)
    assert 100_000 < numbers(server)["bytes"] < 50_000_000
    wait_until(
        lambda: "GET /large" in server.access_file.read_text(), 20
    )  # the line is written after the count
    line = next(each for each in server.access_file.read_text().splitlines() if "GET /large" in each)
    assert 100_000 < int(line.split()[9]) < 50_000_000, line


def test_a_killed_child_is_no_open_connection(start: Start) -> None:
    server = start("fork", "--status", "/ewe-status")
    with server.connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(10)
        (child,) = server.processes()[1:]
        assert numbers(server)["connections"] == 2
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: numbers(server)["connections"] == 1, 20)
    assert numbers(server)["by_feature"]["files"] == {"200": 1}


def test_a_reload_keeps_the_numbers(start: Start, tmp_path: Path) -> None:
    settings = tmp_path / "ewe.toml"
    settings.write_text("status = '/ewe-status'\n")
    server = start("thread --workers 2", "--config", str(settings))
    for _ in range(4):
        server.ask(GET)
    os.kill(server.pid, signal.SIGHUP)
    server.wait_for_log("was read again")
    for _ in range(3):
        server.ask(GET)
    assert numbers(server)["by_feature"]["files"] == {"200": 7}


def test_a_reload_that_fails_goes_on_counting(start: Start, tmp_path: Path) -> None:
    settings = tmp_path / "ewe.toml"
    settings.write_text("status = '/ewe-status'\n")
    server = start("thread", "--workers", "2", "--config", str(settings))
    server.ask(GET)
    settings.write_text("mount = ['/x=missing:Missing']\n")
    os.kill(server.pid, signal.SIGHUP)
    server.wait_for_log("the old one stays")
    old = server.processes()[1:]
    for worker in old:  # the supervisor forks others, which have the old configuration
        os.kill(worker, signal.SIGKILL)
    wait_until(lambda: len(server.processes()) == 3 and not set(old) & set(server.processes()), 20)
    for _ in range(3):
        server.ask(GET)
    found = numbers(server)
    assert found["by_feature"]["files"] == {"200": 4} and found["busy"] == 1


def test_prometheus_reads_the_metrics(start: Start, way_to_wait: str) -> None:
    server = start(way_to_wait, "--status", "/ewe-status")
    for _ in range(3):
        server.ask(GET)
    asked, waiting = 0, b'ewe_connections{state="waiting"} 0\n'
    head = body = b""
    while asked == 0 or (waiting not in body and asked < 100):  # a server learns later that a client has gone
        head, _, body = status(server, "/metrics").partition(b"\r\n\r\n")
        asked += 1
    assert b"text/plain; version=0.0.4" in head
    families = {each.name: each for each in text_string_to_metric_families(body.decode())}
    requests = {
        tuple(sorted(sample.labels.items())): sample.value for sample in families["ewe_requests"].samples
    }
    assert requests[(("feature", "files"), ("status", "200"))] == 3
    histogram = families["ewe_request_duration_seconds"]
    assert histogram.type == "histogram"
    counts = [sample.value for sample in histogram.samples if sample.name.endswith("_bucket")]
    assert counts == sorted(counts) and len(counts) == len(BUCKETS_S) + 1 and counts[-1] == 3
    assert families["ewe_connections_accepted"].samples[0].value == 3 + asked
    by_state = {sample.labels["state"]: sample.value for sample in families["ewe_connections"].samples}
    assert by_state == {"waiting": 0, "reading": 0, "answering": 1, "queued": 0}
    assert families["ewe_cpu_seconds"].type == "counter" and families["ewe_cpu_seconds"].samples[0].value > 0
    assert all(each.documentation for each in families.values())


def test_a_page_for_people(start: Start) -> None:
    server = start("pool", "--status", "/ewe-status")
    head, _, body = status(server, "").partition(b"\r\n\r\n")
    assert b"Content-Security-Policy: default-src 'none'" in head
    assert b"No request was answered yet" in body
    page = status(server, "").decode()
    assert "<td>status<td>1" in page and 'href="/ewe-status/metrics"' in page
    assert "<dt>wait for a request<dd>0" in page and "<dt>rate of the last 10 s<dd>0." in page
    assert re.search(r"<tr><td>\d+<td>\d+ s<td>\d+\.\d s<td>1<td>1<td>0<td>\d+<td>1<td>", page)


@pytest.mark.parametrize(
    "field",
    [
        b"X-Forwarded-For: 192.0.2.1",
        b"Forwarded: for=192.0.2.1",
        b"Via: 1.1 x",
        b"X-Real-IP: 192.0.2.1",
        b"X-Forwarded-Proto: https",
    ],
)
def test_a_request_that_a_proxy_has_passed_on_is_refused(start: Start, field: bytes) -> None:
    server = start("thread", "--status", "/ewe-status")
    assert status(server, "", field + b"\r\n").startswith(b"HTTP/1.1 403")
    assert "a proxy that trusted-proxies does not name" in server.log()


def test_the_address_of_the_client_counts_behind_a_trusted_proxy(start: Start) -> None:
    server = start("thread", "--status", "/ewe-status", "--trusted-proxies", "127.0.0.1")
    assert status(server, "", b"X-Forwarded-For: 192.0.2.1\r\n").startswith(b"HTTP/1.1 403")
    assert status(server, "", b"X-Forwarded-For: 127.0.0.1\r\n").startswith(b"HTTP/1.1 200")


def test_who_may_see_it(start: Start) -> None:
    server = start("thread", "--status", "/ewe-status", "--status-allow", "192.0.2.0/24")
    assert status(server).startswith(b"HTTP/1.1 403")
    assert status(server, "/metrics").startswith(b"HTTP/1.1 403")
    post = b"POST /ewe-status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    assert start("thread", "--status", "/ewe-status").ask(post).startswith(b"HTTP/1.1 405")


def test_a_name_of_a_stranger_is_421(start: Start, tmp_path: Path) -> None:
    """DNS rebinding: a page of evil.example would read the status by a browser on this machine."""
    settings = tmp_path / "ewe.toml"
    settings.write_text("status = '/ewe-status'\n[[site]]\nnames = ['own.example']\n[[site]]\n")
    server = start("thread", "--config", str(settings))
    for query in (b"", b"?json", b"/metrics"):
        ask = b"GET /ewe-status%b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n"
        assert server.ask(ask % (query, b"evil.example")).startswith(b"HTTP/1.1 421"), query
        for name in (b"own.example", b"127.0.0.1:4000", b"localhost"):
            assert server.ask(ask % (query, name)).startswith(b"HTTP/1.1 200"), (query, name)


def test_other_paths_are_not_the_status(start: Start) -> None:
    server = start("thread", "--status", "/ewe-status")
    for query in ("/", "/metrics/", "es", "/metrics2"):
        assert status(server, query).startswith(b"HTTP/1.1 404"), query
    assert start("thread").ask(b"GET /ewe-status HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 404")


ECHO = """
from ewe.http.messages import Response

class Echo:
    def __init__(self, config, path):
        pass

    async def respond(self, request, io):
        return Response(200, (), request.path.encode())
"""


def test_an_encoded_slash_reaches_no_handler_before_a_proxy(start: Start, tmp_path: Path) -> None:
    """As without the status: a rule for /a/ would not see /a%2Fb."""
    (tmp_path / "echo.py").write_text(ECHO)
    options = ("--mount", "/a=echo:Echo", "--proxy", "/=http://127.0.0.1:9", "--content-cache", "1m")
    for more in ((), ("--status", "/ewe-status"), ("--trace", str(tmp_path / "trace"))):
        server = start("thread", *options, *more, env={"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"})
        answer = server.ask(b"GET /a/x%2Fy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 404"), (more, answer)


def test_a_status_during_a_flood(start: Start, model: str) -> None:
    """Two clients that never wait do not keep the status away."""
    server = start(model, "--status", "/ewe-status")
    over = threading.Event()

    def flood() -> None:
        while not over.is_set():
            server.ask(GET)

    threads = [threading.Thread(target=flood) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        last = -1
        for _ in range(5):
            found = numbers(server)["requests"]
            assert found > last
            last = found
    finally:
        over.set()
        for thread in threads:
            thread.join()


# The scoreboard alone


@pytest.mark.starts_processes
def test_many_threads_and_forked_children_lose_no_count() -> None:
    board = Scoreboard(("other",), (0,))

    def once(row: memoryview[int]) -> None:
        row[REQUESTS] += 1

    def many() -> None:
        for _ in range(2000):
            board.apply(once)

    board.apply(once)
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            try:
                at_once(many, 4)
            finally:
                os._exit(0)
        children.append(child)
    at_once(many, 4)
    for child in children:
        os.waitpid(child, 0)
    assert board.sums()[REQUESTS] == 1 + 4 * 4 * 2000
    assert sum(alive for alive, _ in board.rows()) == 1


def test_the_process_id_of_an_ended_process_may_belong_to_another_program() -> None:
    board = Scoreboard(("other",), (0,))
    board.refresh()
    row = board.row_of((board.row_number + 5) % (ROWS - 1))
    row[PID], row[CONNECTIONS], row[WORKERS], row[REQUESTS] = os.getppid(), 3, 1, 7
    sums = board.sums()
    assert (sums[CONNECTIONS], sums[WORKERS], sums[REQUESTS]) == (0, 0, 7)
    assert sum(alive for alive, _ in board.rows()) == 1


def test_the_row_has_the_length_of_the_queue_after_each_change() -> None:
    board = Scoreboard(("other",), (0,))
    queue = CountedQueue(SimpleQueue(), board)
    lengths = []
    for change in (lambda: queue.put(1), lambda: queue.put(2), queue.get, queue.get):
        change()
        lengths.append(board.sums()[QUEUE])
    assert lengths == [1, 2, 1, 0] and queue.qsize() == 0


@pytest.mark.parametrize("pool", [Pool, ScheduledPool])
def test_each_pool_has_such_a_queue(pool: type[Pool]) -> None:
    site: Any = SimpleNamespace(tls=None)
    made = counted(pool)(site, Config())
    assert isinstance(made, Pool) and isinstance(made.queue, CountedQueue)
    assert made.parking.queue is made.queue


def test_cpu_time_is_counted_once() -> None:
    board = Scoreboard(("other",), (0,))
    began = time.process_time()
    while time.process_time() - began < 0.02:
        pass
    for _ in range(3):
        board.apply(board.add_cpu)
    assert 20_000 <= board.sums()[CPU_MICROS] <= time.process_time() * 1e6


@pytest.mark.parametrize(
    ("now", "rate"),
    [(101, 2.0), (105, 2.0), (109.9, 2.0), (115, 1.0), (119.9, 0.02), (125, 0.0), (1000, 0.0)],
)
def test_the_rate_is_that_of_the_last_ten_seconds(now: float, rate: float) -> None:
    row = memoryview(bytearray(8 * MATRIX)).cast("Q")
    for request in range(20):
        count_recent(row, 100 + request / 20)
    assert rate_of(row, now) == pytest.approx(rate)


def test_a_part_of_the_period_before_counts_for_the_rate() -> None:
    row = memoryview(bytearray(8 * MATRIX)).cast("Q")
    for now in (95, 101, 112, 113):
        count_recent(row, now)
    assert rate_of(row, 114) == pytest.approx((2 + 0.6 * 1) / 10)
    count_recent(row, 155)  # the periods in between had no request
    assert rate_of(row, 155) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("queue", "busy", "reading", "states"),
    [(0, 0, 0, [5, 0, 0, 0]), (1, 2, 1, [1, 1, 2, 1]), (3, 5, 1, [0, 0, 2, 3]), (9, 9, 9, [0, 0, 0, 5])],
)
def test_each_connection_has_one_state(queue: int, busy: int, reading: int, states: list[int]) -> None:
    row = [0] * MATRIX
    row[CONNECTIONS], row[QUEUE], row[BUSY], row[READING] = 5, queue, busy, reading
    found = states_of(row)
    assert [found[state] for state in ("waiting", "reading", "answering", "queued")] == states


def test_a_duration_belongs_to_one_bucket() -> None:
    assert [bucket_of(micros) - HISTOGRAM for micros in (0, 1000, 1001, 10_000_000, 10_000_001)] == [
        0, 0, 1, len(BUCKETS_S) - 1, len(BUCKETS_S),
    ]  # fmt: skip


def test_a_duration_is_shown_in_units_that_people_read() -> None:
    assert [seconds(value) for value in (0.0005, 0.25, 0.9994, 0.9996, 1.0, 2.5)] == [
        "0.5 ms", "250 ms", "999 ms", "0.9996 s", "1 s", "2.5 s",
    ]  # fmt: skip


def test_an_unknown_feature_and_status_are_counted_as_others() -> None:
    board = Scoreboard(("other", "files"), (0, 200))
    assert board.column_of("mine", 299) == board.matrix["other", 0]
    assert board.column_of("files", 299) == board.matrix["files", 0]
    assert board.column_of("files", 200) == board.matrix["files", 200]


LOCATIONS = """
documentroot = "."
cgi-path = "none"
status = "/st"
xswitch = "unix:nowhere"
wsgi = ["/app=counted_app:app"]
[[site]]
[[site.location]]
prefix = "/dav/"
root = "."
webdav = true
[[site.location]]
prefix = "/alias/"
alias = "."
"""


def feature_of(site: Site, line: str) -> str:
    """Return the name of the feature that answers a request. line: its method and path."""
    request = parse_request(f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), site.limits)
    io = MemoryStream([])
    with suppress(NotImplementedError):  # from a page, since this stream reaches no X-Switch
        run(site.respond(request, io))
    return io.answered_by


def test_the_answer_of_a_location_and_an_application_count_under_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("counted_app.py").write_text("def app(environ, start): start('200 OK', []); return [b'']\n")
    Path("page.php").touch()
    Path("ewe.toml").write_text(LOCATIONS)
    site = make_site(Config.load(environ={}, file="ewe.toml"))
    names = {
        "OPTIONS /dav/page.txt": "webdav", "GET /alias/page.php": "pages", "GET /alias/none": "files",
        "GET /page.php": "pages", "GET /app": "wsgi",
    }  # fmt: skip
    assert {line: feature_of(site, line) for line in names} == names
    assert {*names.values(), "asgi", "engines"} <= set(FEATURE_NAMES)


def test_a_cached_copy_counts_for_the_feature_that_has_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    lines = ["calls = []", "def cacheable(environ, start):", "    calls.append(start('200 OK', FIELDS))"]
    lines += ["    return [b'']", "FIELDS = [('Cache-Control', 'max-age=60')]"]
    (tmp_path / "cacheable_app.py").write_text("\n".join(lines))
    site = make_site(
        Config(
            documentroot=str(tmp_path), status="/st", wsgi=["/=cacheable_app:cacheable"], content_cache="1m"
        )
    )
    assert [feature_of(site, "GET /") for _ in range(3)] == ["wsgi"] * 3
    assert len(importlib.import_module("cacheable_app").calls) == 1
