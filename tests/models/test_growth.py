"""Prefork and the pool grow while all workers are busy, and shrink again; a fixed number stays as it is."""

from __future__ import annotations

import os
import pwd
import re
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from support import web
from support.proc import children
from support.server import Server, Start, run_command, wait_until, write_program
from support.wire import read_response

from ewe.config.count_range import CountRange
from ewe.processors.growth import MAX_STEP, WINDOW_S, Growth

GET = b"GET / HTTP/1.1\r\nHost: ewe\r\n\r\n"
GET_ONCE = b"GET / HTTP/1.1\r\nHost: ewe\r\nConnection: close\r\n\r\n"
PATIENT = ("--head-timeout", "1h", "--idle", "1h")  # no time limit frees a worker
PREFORK, POOL = "prefork --workers 2..6", "pool --parking never --poolthreads 2..6"
MOST = 6
SHORT_WINDOW = {"ewe.processors.growth.WINDOW_S": 0.3}


def get(sock: socket.socket) -> int:
    """Ask for the page over a kept connection; return the status."""
    sock.sendall(GET)
    return read_response(sock)[0]


@contextmanager
def clients(server: Server, number: int) -> Iterator[list[socket.socket]]:
    """Connect some clients."""
    with ExitStack() as stack:
        yield [stack.enter_context(server.connect()) for _ in range(number)]


def is_answered(server: Server, seconds: float = 20) -> bool:
    """Return whether a new client is served in that time. Few seconds are for clients that are not to be served."""
    with server.connect(seconds) as sock:
        try:
            return get(sock) == 200
        except TimeoutError:
            return False


def workers(server: Server, model: str) -> int:
    """Return the number of processes, or of the pool's threads, that serve."""
    if model.startswith("prefork"):
        return len(children(server.pid))
    return len(os.listdir(f"/proc/{server.pid}/task")) - 1


# The arithmetic


def test_each_step_of_the_growth_is_twice_the_last() -> None:
    growth, count, steps = Growth(CountRange(8, 200), 0.0), 8, []
    while step := growth.plan_difference(0.0, count, 0, True):
        steps.append(step)
        count += step
    assert steps == [1, 2, 4, 8, 16, *5 * [MAX_STEP], 1]
    assert count == 200


def test_growth_begins_again_with_one() -> None:
    growth = Growth(CountRange(2, 50), 0.0)
    assert [growth.plan_difference(0.0, 2, 0, True), growth.plan_difference(0.0, 3, 0, True)] == [1, 2]
    assert growth.plan_difference(WINDOW_S, 5, 2, False) == 0
    assert growth.plan_difference(WINDOW_S, 5, 0, True) == 1


def test_workers_end_that_were_idle_for_a_whole_window() -> None:
    growth = Growth(CountRange(2, 50), 0.0)
    assert growth.plan_difference(1.0, 10, 8, False) == 0
    assert growth.plan_difference(2.0, 10, 5, False) == 0  # so 5 were never needed
    assert growth.plan_difference(3.0, 10, 9, False) == 0
    assert growth.plan_difference(WINDOW_S, 10, 9, False) == -4  # all of them but the spare one
    assert growth.plan_difference(2 * WINDOW_S, 6, 6, False) == -4  # and never fewer than the least


def test_no_worker_ends_in_the_window_in_which_the_number_grew() -> None:
    growth = Growth(CountRange(2, 50), 0.0)
    assert growth.plan_difference(5.0, 2, 0, True) == 1
    assert growth.plan_difference(5.0 + WINDOW_S, 3, 3, False) == 0
    assert growth.plan_difference(5.0 + 2 * WINDOW_S, 3, 3, False) == -1


def test_a_growth_begins_another_window() -> None:
    growth = Growth(CountRange(2, 50), 0.0)
    assert growth.plan_difference(WINDOW_S - 1, 2, 0, True) == 1
    assert growth.plan_difference(WINDOW_S, 3, 3, False) == 0  # the first window would end here
    assert growth.plan_difference(2 * WINDOW_S, 3, 3, False) == 0
    assert growth.plan_difference(3 * WINDOW_S, 3, 3, False) == -1


def test_a_window_begins_with_the_idle_workers_of_its_first_look() -> None:
    growth = Growth(CountRange(2, 50), 0.0)
    assert growth.plan_difference(WINDOW_S, 10, 1, False) == 0
    assert growth.plan_difference(2 * WINDOW_S, 10, 9, False) == 0
    assert growth.plan_difference(3 * WINDOW_S, 10, 9, False) == -8


def test_growth_goes_on_after_the_most_was_not_enough() -> None:
    growth = Growth(CountRange(2, 5), 0.0)
    assert growth.plan_difference(0.0, 5, 0, True) == 0
    assert growth.plan_difference(0.0, 4, 0, True) == 1
    assert growth.plan_difference(WINDOW_S, 5, 3, False) == 0


def test_other_limits_hold_at_once() -> None:
    growth = Growth(CountRange(2, 50), 0.0)
    growth.span = CountRange(4, 6)
    assert growth.plan_difference(0.0, 2, 2, False) == 2
    assert growth.plan_difference(0.0, 9, 0, True) == -3


def test_a_look_reads_the_limits_once() -> None:
    class Signalled(Growth):
        """A growth whose limits a signal handler lowers while the number is looked at."""

        @property
        def span(self) -> CountRange:
            return self.spans.pop(0) if len(self.spans) > 1 else self.spans[0]

        @span.setter
        def span(self, span: CountRange) -> None:
            self.spans = [span]

    for readings in range(1, 6):
        growth = Signalled(CountRange(2, 50), 0.0)
        growth.spans = [*readings * [CountRange(2, 50)], CountRange(2, 4)]
        assert growth.plan_difference(0.0, 10, 0, True) == 1
        growth.spans = [CountRange(2, 50)]
        assert growth.plan_difference(0.0, 11, 0, True) == 2


@pytest.mark.parametrize("fixed", [1, 8])
def test_a_fixed_number_never_changes(fixed: int) -> None:
    growth = Growth(CountRange(fixed), 0.0)
    assert (
        growth.plan_difference(0.0, fixed, 0, True)
        == growth.plan_difference(9 * WINDOW_S, fixed, fixed, False)
        == 0
    )


def test_a_span_is_the_number_that_it_begins_with() -> None:
    span = CountRange(8, 64)
    assert list(range(span)) == list(range(8)) and span > 1 and f"{span}" == "8..64" and span.grows
    assert span != CountRange(8) and span != 8 and CountRange(8) == 8 and CountRange(8, 64) == span
    assert (
        span.shifted(1) == CountRange(9, 65)
        and span.shifted(-8) is span
        and CountRange(3).shifted(1) == CountRange(4)
    )


# More clients than workers


@pytest.mark.parametrize("model", [PREFORK, POOL])
@pytest.mark.parametrize("sends", [b"", GET], ids=["silent", "kept"])
def test_one_client_more_than_workers_is_answered(start: Start, model: str, sends: bytes) -> None:
    server = start(model, *PATIENT)
    with clients(server, 4) as others:
        for sock in others:
            sock.sendall(sends)
        assert is_answered(server)
        for sock in others:  # the server has let go of none of them
            if sends:
                assert read_response(sock)[0] == 200
            assert get(sock) == 200
    assert server.stop() == 0, server.log()


@pytest.mark.parametrize("model", [PREFORK, POOL])
def test_the_number_ends_at_the_most(start: Start, model: str) -> None:
    server = start(model, *PATIENT)
    with clients(server, MOST):
        wait_until(lambda: workers(server, model) == MOST, 30, server.log)
        assert not is_answered(server, 1.0)
        assert workers(server, model) == MOST
    assert is_answered(server)


@pytest.mark.parametrize(("model", "number"), [("prefork --workers 2", 2), ("pool --parking never", 5)])
def test_a_fixed_number_starves(start: Start, model: str, number: int) -> None:
    server = start(model, *PATIENT)
    wait_until(lambda: workers(server, model) == number, 30, server.log)
    with clients(server, number):
        assert not is_answered(server, 1.0)
        assert workers(server, model) == number
    assert is_answered(server)


@pytest.mark.parametrize("model", [PREFORK, POOL])
def test_the_number_shrinks_to_the_least(start: Start, model: str) -> None:
    server = start(model, *PATIENT, constants=SHORT_WINDOW)
    with clients(server, MOST):
        wait_until(lambda: workers(server, model) == MOST, 30, server.log)
    wait_until(lambda: workers(server, model) == 2, 30, server.log)
    assert is_answered(server)


def test_workers_above_another_least_end_before_a_client_comes(start: Start, tmp_path: Path) -> None:
    settings = tmp_path / "ewe.toml"
    settings.write_text('workers = "4"\n')
    server = start("prefork", "--config", str(settings), constants=SHORT_WINDOW)
    settings.write_text('workers = "1..4"\n')
    os.kill(server.pid, signal.SIGHUP)
    wait_until(lambda: workers(server, "prefork") == 1, 30, server.log)


def test_a_stopped_worker_does_not_count_as_idle(start: Start) -> None:
    server = start(PREFORK, *PATIENT)
    stopped = min(children(server.pid))
    wait_until(lambda: workers(server, PREFORK) == 2, 30, server.log)
    os.kill(stopped, signal.SIGSTOP)
    with clients(server, 3):
        assert is_answered(server)
    os.kill(stopped, signal.SIGCONT)
    assert server.stop() == 0, server.log()


def test_busy_workers_stay_when_idle_ones_end(start: Start) -> None:
    server = start(PREFORK, *PATIENT, constants=SHORT_WINDOW)
    with clients(server, 5) as others:
        assert [get(sock) for sock in others] == [200] * 5
        for sock in others[:2]:
            sock.close()
        wait_until(lambda: workers(server, PREFORK) == 4, 30, server.log)  # three are busy, one is spare
        assert [get(sock) for sock in others[2:]] == [200] * 3


def test_a_pool_with_default_settings_serves_beside_slow_programs(start: Start, tmp_path: Path) -> None:
    server = start("pool")
    write_program(
        server.cgi / "slow", f"#!/bin/sh\nwhile ! test -e {tmp_path}/go; do sleep 0.05; done\necho\n"
    )
    with clients(server, 7) as others:
        for sock in others:
            sock.sendall(b"GET /cgi-bin/slow HTTP/1.1\r\nHost: ewe\r\n\r\n")
        assert is_answered(server)
        Path(tmp_path, "go").touch()
        assert [read_response(sock)[0] for sock in others] == [200] * 7


@pytest.mark.needs("root")
def test_workers_that_come_later_are_no_root(start: Start) -> None:
    server = start(PREFORK, "--user", "nobody", *PATIENT)
    with clients(server, 4) as others:
        assert [get(sock) for sock in others] == [200] * 4
        owners = {os.stat(f"/proc/{pid}").st_uid for pid in children(server.pid)}
        assert owners == {pwd.getpwnam("nobody").pw_uid}


@pytest.mark.parametrize("model", [PREFORK, POOL])
def test_clients_in_a_handshake_make_the_server_grow(start: Start, model: str) -> None:
    server = start(model, "--tls", "self", "--tls-timeout", "1h", *PATIENT)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with clients(server, 4), server.connect() as below, context.wrap_socket(below) as sock:
        assert get(sock) == 200


# Nobody loses an answer


@pytest.mark.parametrize("model", [PREFORK, POOL])
def test_no_client_is_lost_while_it_grows_and_shrinks(start: Start, model: str) -> None:
    server = start(model, "--loglevel", "debug", constants={"ewe.processors.growth.WINDOW_S": 0.05})
    failures: list[object] = []
    rounds = 6

    def visit(number: int) -> None:
        try:
            with server.connect() as sock:
                for request in (GET, GET_ONCE):
                    sock.sendall(request)
                    status, fields, _ = read_response(sock)
                    if status != 200:
                        failures.append(status)
                    if fields.get("connection") == "close":
                        return
        except OSError as reason:
            failures.append(reason)

    changes = re.compile(r"debug: the pool has|info: \d+ workers, since")
    for _ in range(rounds):
        with clients(server, 4):  # silent ones, so that the others need more workers
            visits = [threading.Thread(target=visit, args=(number,)) for number in range(24)]
            for each in visits:
                each.start()
            for each in visits:
                each.join()
        wait_until(lambda: workers(server, model) == 2, 30, server.log)
    assert not failures
    assert len(changes.findall(server.log())) >= 2 * rounds, server.log()
    assert server.stop() == 0


def are_reaped(server: Server, number: int) -> bool:
    """Return whether the log has a line for the end of this number of killed workers."""
    return server.log().count("was ended by signal 9") == number


def test_a_worker_that_is_killed_while_the_number_grows(start: Start) -> None:
    server = start(PREFORK, *PATIENT)
    with clients(server, 4):
        for number in (1, 2, 3):
            os.kill(min(children(server.pid)), signal.SIGKILL)
            assert is_answered(server)
            assert workers(server, PREFORK) <= MOST
            # If the supervisor learned of this end during its own stop, it would count the worker as killed then.
            wait_until(partial(are_reaped, server, number), 30, server.log)
    assert server.stop() == 0, server.log()


@pytest.mark.parametrize("model", [PREFORK, POOL])
def test_a_stop_while_the_number_grows(start: Start, model: str) -> None:
    server = start(model, *PATIENT)
    with clients(server, MOST):
        wait_until(lambda: workers(server, model) > 2, 30, server.log)
        assert server.stop(signal.SIGQUIT) in (0, 4)
    assert "Traceback" not in server.log()


# A signal changes the limits


def test_hup_while_the_number_grows(start: Start) -> None:
    server = start(PREFORK, *PATIENT)
    with clients(server, 4) as others:
        assert [get(sock) for sock in others] == [200] * 4
        os.kill(server.pid, signal.SIGHUP)
        assert [get(sock) for sock in others] == [200] * 4
        server.wait_for_log("the configuration was read again")
        assert is_answered(server)
    wait_until(lambda: 2 <= workers(server, PREFORK) <= MOST, 30, server.log)
    assert server.stop() == 0, server.log()


def replaced(server: Server, old: set[int]) -> None:
    """Wait until the old workers have ended."""
    wait_until(lambda: old.isdisjoint(children(server.pid)), 30, server.log)


def has_limits(server: Server, model: str, least: int, most: int) -> None:
    """Wait until the number of workers is between two limits; see that it grows to the upper one, and not above."""
    wait_until(lambda: least <= workers(server, model) <= most, 30, server.log)
    with clients(server, most):
        wait_until(lambda: workers(server, model) == most, 30, server.log)
        assert not is_answered(server, 0.5)
        assert workers(server, model) == most
    assert is_answered(server)


@pytest.mark.parametrize(("model", "key"), [("prefork", "workers"), ("pool --parking never", "poolthreads")])
def test_hup_with_another_range(start: Start, tmp_path: Path, model: str, key: str) -> None:
    settings = tmp_path / "ewe.toml"
    settings.write_text(f'{key} = "2..3"\n')
    server = start(model, "--config", str(settings), *PATIENT)
    for limits in ("4..5", "1..2", "3"):
        settings.write_text(f'{key} = "{limits}"\n')
        old = set(children(server.pid))
        os.kill(server.pid, signal.SIGHUP)
        replaced(server, old)
        has_limits(server, model, int(limits[0]), int(limits[-1]))
    assert "needs a restart" not in server.log()


def test_ttin_and_ttou_move_both_ends_of_the_range(start: Start) -> None:
    server = start("prefork --workers 2..3", *PATIENT, constants=SHORT_WINDOW)
    for number, least, most in ((signal.SIGTTIN, 3, 4), (signal.SIGTTOU, 2, 3), (signal.SIGTTOU, 1, 2)):
        os.kill(server.pid, number)
        server.wait_for_log(f"info: {least}..{most} workers from now on")
        has_limits(server, "prefork", least, most)
    os.kill(server.pid, signal.SIGTTOU)  # at least one stays
    assert is_answered(server)


# What people see


def test_the_trace_and_the_status_show_the_threads(start: Start, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    server = start(POOL, "--trace", str(trace), "--status", "/status", *PATIENT)
    with clients(server, 3):
        numbers = web.get(server.url + "status?json").json()
    assert 4 <= numbers["workers"] <= MOST and numbers["processes"][0]["workers"] == numbers["workers"]
    found = [line.split()[4] for line in trace.read_text().splitlines() if line.split()[1] == "workers"]
    assert found[:2] == ["3", "5"]


def test_the_log_shows_the_processes(start: Start) -> None:
    server = start(PREFORK, *PATIENT)
    with clients(server, 3):
        server.wait_for_log("info: 3 workers, since all were busy")


@pytest.mark.starts_processes
@pytest.mark.parametrize("model", ["asyncio", "thread", "pool"])
def test_a_range_of_workers_that_serve_many_is_an_error(tmp_path: Path, model: str) -> None:
    done = run_command(tmp_path, "--model", model, "--workers", "2..8", "--documentroot", ".", "--port", "0")
    assert done.returncode != 0
    assert "workers = 2..8" in done.stderr and "workers = 2" in done.stderr and "prefork" in done.stderr
    assert len(done.stderr.splitlines()) == 1
