"""The table of a worker: every state and every event, and the supervisor's part in it, without a process."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from ewe import logger
from ewe.child_slots import BackOff
from ewe.config.count_range import CountRange
from ewe.gateway import orphans
from ewe.server.growing import LONG_WAIT_S, START_S
from ewe.server.new_worker import NewWorker
from ewe.server.reports import Reports
from ewe.server.supervisor import SIGNALS, TASKS, ServerState, Supervisor
from ewe.server.worker import ABORTED, FAILED, HANDLED, STOPPED, UNUSABLE
from ewe.server.worker_table import TABLE, Event, IllegalEvent, State, WorkerProcess
from ewe.server.worker_table import XSWITCH as X

HUP, TERM, CRASH = signal.SIGHUP, signal.SIGTERM, -signal.SIGSEGV


class Factory:
    """What the supervisor asks of a processor factory."""

    def __init__(self) -> None:
        self.workers = CountRange(2)
        self.config = SimpleNamespace(reload=False, grace=5.0, file=None)
        self.xswitch_process = None
        self.serves_in_one = False
        self.version = 1
        self.usable = True
        self.next_workers: CountRange | None = None  # of the configuration that renew() reads
        self.reported = 0
        self.undone: list[object] = []  # configurations whose databases the daemon must forget

    def copy(self) -> Factory:
        other = Factory()
        other.version, other.workers = self.version, self.workers
        return other

    def renew(self) -> bool:
        self.version += self.usable
        self.workers = self.next_workers or self.workers
        return self.usable

    def undo_renewal(self, old: Factory) -> None:
        self.version, self.workers = old.version, old.workers

    def restore_programs(self, undone: object) -> None:
        self.undone.append(undone)

    def report_applications(self) -> None:
        self.reported += 1


class Rehearsal(Supervisor):
    """A supervisor whose workers are numbers: fork() and send_signal() note what they would do."""

    def __init__(self, begins: int = 2) -> None:
        self.made: Any = Factory()
        super().__init__(self.made, [])
        self.numbers = itertools.count(101)
        self.sent: list[tuple[int, int]] = []
        self.may_fork = True
        self.slots_in_use = set(range(begins))
        for slot in range(begins):
            self.start(slot, State.FIRST)

    def fork(self, slot: int, seat: int) -> int:
        if not self.may_fork:
            self.slots[slot].plan(1)
            return -1
        return next(self.numbers)

    def start_xswitch(self) -> None:
        pid = next(self.numbers)
        self.workers[pid] = WorkerProcess(pid, X, self.generation, State.SERVING)

    def send_signal(self, worker: WorkerProcess, signum: int) -> None:
        assert self.workers[worker.pid] is worker, "a signal to a process that is reaped"
        self.sent.append((worker.pid, signum))

    # The events of a worker, and the reaction of run()

    def serves(self, *pids: int) -> None:
        for pid in pids:
            self.handle_event(self.workers[pid], Event.READY)
        self.end_complete_change()

    def ends(self, pid: int, code: int, failure: str = "") -> None:
        self.workers[pid].failure = failure
        self.handle_end(self.workers.pop(pid), code)
        if not self.stopping:
            self.end_complete_change()

    def passes(self) -> None:
        """Let the time come in which every planned start is due."""
        for number, slot in list(self.slots.items()):
            if slot.due_at is not None:
                slot.due_at = None
                self.start(number)

    def states(self) -> dict[int, str]:
        return {pid: each.state.name for pid, each in self.workers.items()}

    def planned(self) -> list[int]:
        return sorted(number for number, slot in self.slots.items() if slot.due_at is not None)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    for level in ("error", "warning", "info", "debug"):
        monkeypatch.setattr(logger.errors, level, lines.append)
    return lines


@pytest.fixture
def supervisor(log: list[str]) -> Iterator[Rehearsal]:
    yield Rehearsal()


@pytest.fixture
def serving(supervisor: Rehearsal) -> Rehearsal:
    """Workers 101 and 102 serve."""
    supervisor.serves(101, 102)
    return supervisor


# The table by itself


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_every_pair_has_a_row_or_is_illegal(state: State, event: Event) -> None:
    worker = WorkerProcess(1, 0, 1, state)
    if (state, event) in TABLE:
        method = worker.apply_event(event)
        assert callable(getattr(Supervisor, method))
        assert worker.state is TABLE[state, event][0]
    else:
        with pytest.raises(IllegalEvent, match=f"{event.name} in state {state.name}"):
            worker.apply_event(event)
        assert worker.state is state


def test_every_state_can_be_reached_and_left() -> None:
    reached = {State.FIRST, State.STARTING, State.COMING}  # a fork
    for _ in State:
        reached |= {after for (before, _), (after, _) in TABLE.items() if before in reached}
    assert reached == set(State)
    for state in set(State) - {State.GONE}:
        assert TABLE[state, Event.AT_STOP] == (State.GONE, "note_status")
    assert not [state for state, _ in TABLE if state is State.GONE]


def test_the_tables_of_the_server_name_methods_of_the_supervisor() -> None:
    names = [method for _, method, _ in SIGNALS.values()]
    names += [name for _, method, moment in TASKS for name in (method, moment) if name]
    assert all(callable(getattr(Supervisor, name)) for name in names)


# A worker in its place


def test_first_workers_begin_and_serve(supervisor: Rehearsal) -> None:
    assert not supervisor.has_begun()
    supervisor.serves(101)
    assert not supervisor.has_begun()
    supervisor.serves(102)
    assert supervisor.states() == {101: "SERVING", 102: "SERVING"}
    assert supervisor.has_begun() and not supervisor.sent


def test_a_server_whose_first_workers_crash_is_not_ready(supervisor: Rehearsal) -> None:
    """A service manager must not learn that it serves. X-Switch beside the workers does not count."""
    supervisor.start_xswitch()
    supervisor.ends(101, CRASH)
    supervisor.ends(102, CRASH)
    assert not supervisor.has_begun()
    supervisor.passes()
    assert not supervisor.has_begun()
    supervisor.serves(104)
    assert supervisor.has_begun()


def test_a_first_worker_that_cannot_serve_stops_the_server(supervisor: Rehearsal) -> None:
    supervisor.ends(101, UNUSABLE, "no such module")
    assert supervisor.stopping.unusable == "no such module" and supervisor.stopping
    assert supervisor.sent == [(102, TERM)]
    supervisor.ends(102, STOPPED)
    assert not supervisor.planned()


def test_a_first_worker_that_ends_without_a_report_is_replaced(supervisor: Rehearsal, log: list[str]) -> None:
    """Its status alone says nothing: a library has called exit(3)."""
    supervisor.ends(101, UNUSABLE)
    assert not supervisor.stopping.unusable and supervisor.planned() == [0]
    assert log == ["worker 1 (pid 101) ended with status 3; starting another in 0.25 s"]


def test_a_worker_that_ends_before_it_serves_has_died(supervisor: Rehearsal, log: list[str]) -> None:
    """Otherwise a module that calls os._exit(0) would have the supervisor fork without a pause."""
    supervisor.ends(101, STOPPED)
    assert log == ["worker 1 (pid 101) ended with status 0; starting another in 0.25 s"]


def test_one_in_the_place_of_a_dead_one_may_fail_without_ending_the_server(
    serving: Rehearsal, log: list[str]
) -> None:
    serving.ends(101, CRASH)
    serving.passes()
    assert serving.states() == {102: "SERVING", 103: "STARTING"}
    serving.ends(103, UNUSABLE, "no such module")
    assert not serving.stopping and serving.planned() == [0]
    assert log[1:] == ["no such module", "worker 1 (pid 103) ended with status 3; starting another in 0.5 s"]


def test_who_dies_young_is_replaced_later_and_later(
    serving: Rehearsal, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = 101
    for seconds in ("0.25", "0.5", "1", "2", "4", "8", "8"):
        serving.ends(pid, CRASH)
        assert log.pop().endswith(f"was ended by signal 11; starting another in {seconds} s")
        serving.passes()
        pid = max(serving.workers)
    monkeypatch.setattr(serving.slots[0], "limits", BackOff(young_s=0.0))
    serving.ends(pid, CRASH)
    assert log.pop().endswith("was ended by signal 11; starting another")


def test_a_worker_that_retires_by_itself_is_replaced_at_once(serving: Rehearsal, log: list[str]) -> None:
    serving.ends(101, STOPPED)
    assert log == ["worker 1 (pid 101) retired"]
    assert serving.slots[0].back_off_s == 0 and serving.planned() == [0]


def test_a_worker_that_cannot_start_says_why(
    supervisor: Rehearsal, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The __init__() of a student's model may raise any exception."""
    supervisor.lifeline = supervisor.lifeline_writer = -1
    monkeypatch.setattr(NewWorker, "run", lambda *_: 1 // 0)
    assert supervisor.new_worker(0, 1) == FAILED
    assert log[0] == "worker 1 cannot start" and log[-1].startswith("| ZeroDivisionError: ")


@pytest.mark.starts_processes
def test_a_rotation_of_the_logs_ends_no_import() -> None:
    """The worker reopens its logs after the import: until then USR1 is blocked, and waits."""
    if (pid := os.fork()) == 0:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
            worker: Any = object.__new__(NewWorker)
            worker.factory = SimpleNamespace(load=lambda: os.kill(os.getpid(), signal.SIGUSR1))
            os._exit(17 if worker.load_program() == "" and signal.SIGUSR1 in signal.sigpending() else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17


def test_the_seat_of_xswitch_is_not_freed(serving: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has none: byte 0 tells the workers whether more of them start."""
    serving.start_xswitch()
    monkeypatch.setattr(orphans, "reap", lambda workers: [(103, FAILED << 8)])
    serving.reap()
    serving.change_count(1)
    assert [each.seat for each in serving.workers.values()] == [1, 2, 3]


def test_a_report_is_one_line() -> None:
    """The line after a line feed would begin with no process id, and would end the supervisor."""
    reports = Reports()
    reader = os.dup(reports.reader)
    os.write(reports.writer, b"of an application\n\n1\n")  # to a descriptor that it has not opened
    reports.send("no such\nmodule", ["/home/a\nb"])
    reports.reader = reader
    pid = os.getpid()
    assert list(reports.read()) == [(pid, "source", "/home/a b"), (pid, "failed", "no such module")]
    os.close(reader)


# A change


def test_a_change_retires_the_old_workers_once_all_new_ones_serve(serving: Rehearsal) -> None:
    serving.reload()
    assert serving.states() == {101: "SERVING", 102: "SERVING", 103: "COMING", 104: "COMING"}
    serving.serves(103)
    assert not serving.sent
    serving.serves(104)
    assert serving.sent == [(101, HUP), (102, HUP)] and serving.made.reported == 1
    serving.ends(101, STOPPED)
    serving.ends(102, CRASH)
    assert serving.states() == {103: "SERVING", 104: "SERVING"} and not serving.planned()


@pytest.mark.parametrize(
    ("code", "failure", "says"),
    [
        (UNUSABLE, "no such module", "no such module"),
        (CRASH, "", "worker 2 (pid 104) was ended by signal 11"),
    ],
)
def test_a_change_is_taken_back_if_a_new_worker_cannot_serve(
    serving: Rehearsal, log: list[str], code: int, failure: str, says: str
) -> None:
    serving.reload()
    assert serving.made.version == 2
    serving.serves(103)
    serving.ends(104, code, failure)
    assert log == [f"the new workers cannot start, the old ones go on: {says}"]
    assert serving.made.version == 1 and serving.sent == [(103, HUP)]
    assert serving.states() == {101: "SERVING", 102: "SERVING", 103: "RETIRING"} and not serving.planned()
    serving.ends(103, STOPPED)
    assert not serving.planned()


def test_both_new_workers_fail_and_the_change_is_taken_back_once(serving: Rehearsal, log: list[str]) -> None:
    serving.reload()
    serving.ends(103, UNUSABLE, "a")
    serving.ends(104, UNUSABLE, "b")
    assert len(log) == 1 and serving.made.version == 1


def test_an_old_worker_that_dies_during_a_change_is_not_replaced(serving: Rehearsal, log: list[str]) -> None:
    serving.reload()
    serving.ends(101, CRASH)
    assert not log and not serving.planned()
    serving.serves(103, 104)
    assert serving.sent == [(102, HUP)]


def test_the_place_of_an_old_worker_that_died_is_filled_if_the_change_fails(
    serving: Rehearsal, log: list[str]
) -> None:
    serving.reload()
    serving.ends(101, CRASH)
    serving.ends(102, CRASH)
    serving.ends(103, CRASH)
    assert log == [
        "the new workers cannot start, no old one is left: worker 1 (pid 103) was ended by signal 11"
    ]
    assert serving.planned() == [0, 1]
    serving.passes()
    assert serving.states() == {104: "RETIRING", 105: "STARTING", 106: "STARTING"}


def test_a_new_worker_that_dies_after_its_report_is_replaced_before_the_old_ones_retire(
    serving: Rehearsal,
) -> None:
    serving.reload()
    serving.serves(103)
    serving.ends(103, CRASH)
    serving.serves(104)
    assert serving.planned() == [0] and not serving.sent
    serving.passes()
    assert serving.states()[105] == "COMING"
    serving.serves(105)
    assert serving.sent == [(101, HUP), (102, HUP)]


def test_another_change_takes_the_place_of_one_in_progress(serving: Rehearsal) -> None:
    serving.reload()
    serving.reload()
    assert serving.sent == [(103, HUP), (104, HUP)]
    assert serving.states() == {
        **{101: "SERVING", 102: "SERVING", 103: "RETIRING", 104: "RETIRING"},
        **{105: "COMING", 106: "COMING"},
    }
    serving.serves(103)  # its report was on its way
    assert serving.states()[103] == "RETIRING"
    serving.serves(105, 106)
    assert serving.sent[2:] == [(101, HUP), (102, HUP)]


def test_a_configuration_with_an_error_leaves_a_change_in_progress_alone(serving: Rehearsal) -> None:
    serving.made.next_workers = CountRange(3)
    serving.reload()
    serving.made.usable = False
    serving.reload()
    coming = {each.pid for each in serving.workers.values() if each.state is State.COMING}
    assert coming == {103, 104, 105} and serving.sent == [] and serving.made.version == 2
    serving.serves(*coming)
    assert serving.sent == [(101, HUP), (102, HUP)] and len(serving.slots_in_use) == 3


def test_a_change_that_takes_the_place_of_another_and_fails(serving: Rehearsal) -> None:
    """The workers of the first change never served, so the state before both is restored."""
    serving.made.next_workers = CountRange(4)
    serving.reload()
    serving.made.next_workers = CountRange(3)
    serving.reload()
    assert serving.slots_in_use == {0, 1, 2} and serving.made.version == 3
    serving.ends(107, UNUSABLE, "no")
    assert serving.slots_in_use == {0, 1} and serving.made.version == 1
    assert serving.made.workers == serving.growing.span == CountRange(2)
    assert [state for state in serving.states().values() if state == "SERVING"] == ["SERVING"] * 2


def test_a_configuration_with_an_error_changes_nothing(serving: Rehearsal) -> None:
    serving.made.usable = False
    serving.reload()
    assert serving.states() == {101: "SERVING", 102: "SERVING"} and serving.change is None


@pytest.mark.parametrize("workers", [2, 3])
def test_a_change_without_forks_is_taken_back(serving: Rehearsal, log: list[str], workers: int) -> None:
    """No worker starts later in a slot that only the change has used."""
    serving.made.next_workers = CountRange(workers)
    serving.may_fork = False
    serving.reload()
    assert log == ["the new workers cannot start, the old ones go on: not all could be forked"]
    assert serving.made.version == 1 and not serving.planned()


def test_sources_that_vanish_with_their_directory_do_not_end_the_server(
    serving: Rehearsal, monkeypatch: pytest.MonkeyPatch, log: list[str], tmp_path: Path
) -> None:
    """For example, the developer has removed the clone in which the server was started."""
    gone = tmp_path / "shop"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    changes = [str(gone / "app.py")]
    serving.sources = SimpleNamespace(take_changes=lambda: changes)  # type: ignore[assignment]
    serving.reload_changed_sources()
    assert log == [f"{gone}/app.py changed: starting new workers"]
    assert serving.states() == {101: "SERVING", 102: "SERVING", 103: "COMING", 104: "COMING"}


def test_workers_that_retire_after_a_changed_source_are_hurried_once(serving: Rehearsal) -> None:
    serving.sources = SimpleNamespace()  # type: ignore[assignment]
    serving.reload()
    serving.serves(103, 104)
    assert serving.workers[101].hurry_at is not None
    serving.workers[101].hurry_at = 0.0
    serving.sent.clear()
    serving.start_due()
    serving.start_due()
    assert serving.sent == [(101, TERM)] and serving.states()[101] == "HURRIED"
    serving.ends(101, ABORTED)
    assert not serving.planned()


# The number of workers


def test_a_place_more_and_a_place_less(serving: Rehearsal) -> None:
    serving.change_count(1)
    assert serving.states()[103] == "STARTING" and serving.workers[103].slot == 2
    serving.change_count(-1)
    serving.change_count(-1)
    serving.change_count(-1)
    assert serving.slots_in_use == {0} and serving.sent == [(103, HUP), (102, HUP)]
    serving.ends(102, STOPPED)
    assert not serving.planned()


def grown(supervisor: Rehearsal, least: int, most: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give a supervisor a range; return the list of its next decisions."""
    decisions: list[int] = []
    supervisor.growing.span = CountRange(least, most)
    monkeypatch.setattr(supervisor.growing, "next_look_at", lambda: 0.0)
    monkeypatch.setattr(supervisor.growing, "plan_difference", lambda count, idle: decisions.pop(0))
    return decisions


def test_growth_fills_the_first_free_places(serving: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = grown(serving, 2, 9, monkeypatch)
    decisions += [1, 2]
    serving.grow_or_shrink()
    assert serving.states()[103] == "STARTING" and serving.workers[103].slot == 2
    serving.grow_or_shrink()
    assert serving.slots_in_use == {0, 1, 2, 3, 4} and not serving.sent


def test_idle_workers_retire_and_their_places_are_free_again(
    serving: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions = grown(serving, 1, 9, monkeypatch)
    serving.growing.seats.map[serving.workers[101].seat] = 1  # 101 is idle, 102 is not
    decisions += [-1, 1]
    serving.grow_or_shrink()
    assert serving.sent == [(101, HUP)] and serving.slots_in_use == {1}
    serving.ends(101, STOPPED)
    assert not serving.planned()
    serving.grow_or_shrink()
    assert serving.workers[103].slot == 0


def test_a_busy_worker_never_retires(serving: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = grown(serving, 1, 9, monkeypatch)
    decisions += [-1]
    serving.grow_or_shrink()
    assert not serving.sent and serving.slots_in_use == {0, 1}


@pytest.fixture
def high_socket() -> Iterator[socket.socket]:
    """A listening socket with a number that select(2) does not take."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    with socket.create_server(("127.0.0.1", 0)) as low:
        high = fcntl.fcntl(low.fileno(), fcntl.F_DUPFD_CLOEXEC, 1024)
        with socket.socket(fileno=high) as sock:
            yield sock
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_client_at_a_socket_of_any_number_wakes_the_supervisor(
    serving: Rehearsal, high_socket: socket.socket
) -> None:
    serving.growing.sockets = [high_socket]
    serving.growing.span = CountRange(2, 9)
    serving.noted.pipe = serving.reports.reader, -1  # no signal comes, and no report
    with socket.create_connection(high_socket.getsockname()):
        serving.wait()
    assert serving.growing.has_seen_client


def test_a_worker_that_is_to_come_counts_as_idle(serving: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    grown(serving, 2, 9, monkeypatch)
    monkeypatch.setattr(
        serving.growing, "plan_difference", lambda count, idle: seen.append((count, idle)) or 0
    )
    serving.grow_or_shrink()
    serving.ends(101, CRASH)  # its place waits for the next start
    serving.grow_or_shrink()
    serving.passes()
    serving.grow_or_shrink()
    serving.serves(103)
    serving.grow_or_shrink()
    assert seen == [(2, 0), (2, 1), (2, 1), (2, 0)]


@pytest.mark.parametrize("happens", ["reload", "stop"])
def test_nobody_looks_during_a_change_or_a_stop(
    serving: Rehearsal, monkeypatch: pytest.MonkeyPatch, happens: str
) -> None:
    grown(serving, 2, 9, monkeypatch)
    serving.reload() if happens == "reload" else serving.stop(TERM)
    serving.grow_or_shrink()  # a decision would raise IndexError
    assert not serving.growing.seats.map[0]


def test_growth_stops_at_the_first_fork_that_is_refused(
    serving: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions = grown(serving, 2, 9, monkeypatch)
    decisions += [4, 4]
    serving.may_fork = False
    serving.grow_or_shrink()
    assert serving.slots_in_use == {0, 1, 2} and serving.planned() == [2]
    serving.may_fork = True
    serving.passes()
    serving.grow_or_shrink()
    assert serving.slots_in_use == set(range(7)) and not serving.planned()


def test_one_line_tells_of_many_forks_that_are_refused(
    serving: Rehearsal, monkeypatch: pytest.MonkeyPatch, log: list[str]
) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(os, "fork", refuse)
    for slot in range(8):
        assert Supervisor.fork(serving, slot, 1) == -1
    assert [line for line in log if "cannot fork" in line] == [
        "cannot fork a worker: no more processes; trying again each second"
    ]
    assert serving.planned() == list(range(8))


def test_an_idle_worker_that_takes_no_client_does_not_count(serving: Rehearsal) -> None:
    serving.growing.span = CountRange(2, 9)
    serving.growing.seats.map[serving.workers[101].seat] = 1
    serving.growing.waits_since = time.monotonic()
    assert [each.pid for each in serving.idle_workers()] == [101]
    serving.growing.waits_since -= LONG_WAIT_S
    assert not serving.idle_workers()


def test_a_worker_that_hangs_at_its_start_does_not_count(
    serving: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions = grown(serving, 2, 9, monkeypatch)
    decisions += [1]
    serving.grow_or_shrink()  # a third one starts
    now = time.monotonic()
    assert [each.pid for each in serving.begun_workers(now)] == [101, 102]
    assert [each.pid for each in serving.begun_workers(now + START_S)] == [101, 102, 103]


def test_the_log_counts_the_workers_that_retire(
    serving: Rehearsal, monkeypatch: pytest.MonkeyPatch, log: list[str]
) -> None:
    decisions = grown(serving, 1, 9, monkeypatch)
    decisions += [-3, -3]
    serving.growing.seats.map[serving.workers[101].seat] = 1
    serving.grow_or_shrink()
    serving.grow_or_shrink()  # no other is idle
    assert log == ["1 workers, since 1 were idle"]


def test_workers_let_go_of_their_clients_where_no_more_may_start(
    serving: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions = grown(serving, 2, 3, monkeypatch)
    decisions += [0, 1, -1, 0]
    may_start = serving.growing.seats.map
    serving.grow_or_shrink()
    assert may_start[0]
    serving.grow_or_shrink()
    assert not may_start[0]  # three are the most
    serving.serves(103)
    serving.growing.seats.map[serving.workers[103].seat] = 1
    serving.grow_or_shrink()
    assert may_start[0]
    serving.may_fork = False
    serving.ends(101, CRASH)
    serving.grow_or_shrink()
    assert not may_start[0]  # one has died, and the system may refuse the next


def test_workers_let_go_of_their_clients_if_growth_does_not_help_soon(serving: Rehearsal) -> None:
    serving.growing.span = CountRange(2, 9)
    may_start = serving.growing.seats.map
    serving.growing.waits_since = time.monotonic()
    serving.grow_or_shrink()
    assert may_start[0]
    serving.growing.waits_since -= LONG_WAIT_S
    serving.grow_or_shrink()
    assert not may_start[0]


def test_a_change_to_other_limits(serving: Rehearsal) -> None:
    serving.made.next_workers = CountRange(3, 9)
    serving.reload()
    assert serving.states() == {
        **{101: "SERVING", 102: "SERVING"},
        **{103: "COMING", 104: "COMING", 105: "COMING"},
    }
    serving.serves(103, 104, 105)
    assert serving.sent == [(101, HUP), (102, HUP)]
    serving.made.next_workers = CountRange(1)
    serving.reload()
    serving.serves(106)
    assert serving.sent[2:] == [(103, HUP), (104, HUP), (105, HUP)] and serving.slots_in_use == {0}


def test_other_limits_are_taken_back_with_a_change_that_fails(serving: Rehearsal) -> None:
    serving.made.next_workers = CountRange(1)
    serving.reload()
    serving.ends(102, CRASH)
    serving.ends(103, CRASH)
    assert serving.slots_in_use == {0, 1} and serving.growing.span == CountRange(2)
    assert serving.planned() == [1]  # and 101 goes on
    serving.passes()
    assert serving.states() == {101: "SERVING", 104: "STARTING"}


def test_a_change_that_fails_restores_the_limits_that_ttin_has_set(serving: Rehearsal) -> None:
    serving.change_count(1)
    serving.made.next_workers = CountRange(5)
    serving.reload()
    serving.ends(104, CRASH)
    assert serving.slots_in_use == {0, 1, 2} and serving.growing.span == CountRange(3)


def test_only_a_change_that_fails_gives_the_daemon_its_databases_back(serving: Rehearsal) -> None:
    """At a second HUP within a change, the next configuration follows."""
    serving.reload()
    serving.reload()
    assert not serving.made.undone
    serving.ends(max(serving.workers), CRASH)
    assert serving.made.undone == [serving.made.config]


def test_a_place_less_while_a_change_comes(serving: Rehearsal) -> None:
    serving.reload()
    serving.change_count(-1)
    assert serving.sent == [(102, HUP), (104, HUP)]
    serving.serves(103)
    assert serving.sent[2:] == [(101, HUP)]


# A stop


@pytest.mark.parametrize("number", [HUP, signal.SIGTTIN, signal.SIGTTOU])
def test_a_server_that_stops_changes_no_workers(serving: Rehearsal, number: int) -> None:
    serving.noted.note(number, None)
    serving.noted.note(TERM, None)
    serving.handle_signals()  # a stop comes first
    assert serving.state is ServerState.STOPPING and serving.slots_in_use == {0, 1}
    assert serving.sent == [(101, TERM), (102, TERM)] and set(serving.workers) == {101, 102}


def test_the_states_of_the_server_follow_a_change(serving: Rehearsal) -> None:
    states = [serving.state]
    serving.noted.note(HUP, None)
    serving.handle_signals()
    states.append(serving.state)
    serving.ends(103, CRASH)
    states.append(serving.state)
    assert states == [ServerState.STEADY, ServerState.CHANGING, ServerState.STEADY]


def test_nothing_is_replaced_at_a_stop(serving: Rehearsal) -> None:
    serving.reload()
    serving.stop(TERM)
    assert sorted(serving.sent) == [(pid, TERM) for pid in (101, 102, 103, 104)]
    serving.ends(101, STOPPED)
    serving.ends(103, STOPPED)
    assert serving.stopping.status == STOPPED
    serving.ends(102, CRASH)
    serving.ends(104, STOPPED)
    assert serving.stopping.status == ABORTED and not serving.planned() and not serving.workers


def test_a_further_term_gives_no_more_time(serving: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    serving.stop(TERM)
    last = serving.stopping.deadline
    monkeypatch.setattr(time, "monotonic", lambda: last)
    serving.stop(TERM)
    assert serving.stopping.deadline == last
    serving.stop(signal.SIGQUIT)
    assert serving.stopping.deadline == last


def test_xswitch_is_told_last_and_a_change_leaves_it_alone(serving: Rehearsal) -> None:
    serving.start_xswitch()
    xswitch = max(serving.workers)
    serving.reload()
    assert serving.sent == [(xswitch, HUP)]
    serving.ends(xswitch, CRASH)
    assert serving.planned() == [X]
    serving.passes()
    xswitch = max(serving.workers)
    serving.stop(TERM)
    assert (xswitch, TERM) not in serving.sent
    for pid in [pid for pid in serving.workers if pid != xswitch]:
        serving.ends(pid, STOPPED)
    serving.end_xswitch_last()
    serving.end_xswitch_last()
    assert serving.sent[-1] == (xswitch, TERM) and serving.sent.count((xswitch, TERM)) == 1
    serving.ends(xswitch, -TERM)  # before it had a handler
    assert serving.stopping.status == STOPPED


def test_xswitch_is_started_again_after_the_trace_had_no_descriptor(
    serving: Rehearsal, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Mock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    monkeypatch.setattr("ewe.server.xswitch_process.inherited_trace", full)
    serving.made.xswitch_process, serving.made.config = Mock(), Mock()
    Supervisor.start_xswitch(serving)
    assert log[-1] == "X-Switch cannot be started: Too many open files; trying again in 1 s"
    assert serving.planned() == [X]
