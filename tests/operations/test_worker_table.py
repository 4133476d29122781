"""The table of a worker: every state and every event, and the supervisor's part in it, without a process."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ewe import logger
from ewe.server import children
from ewe.server.supervisor import Supervisor
from ewe.server.worker import CUT, STOPPED, UNUSABLE
from ewe.server.worker_table import TABLE, Event, IllegalEvent, State, WorkerProcess
from ewe.server.worker_table import XSWITCH as X

HUP, TERM, CRASH = signal.SIGHUP, signal.SIGTERM, -signal.SIGSEGV


class Factory:
    """What the supervisor asks of a processor factory."""

    def __init__(self) -> None:
        self.workers = 2
        self.config = SimpleNamespace(reload=False, grace=5.0, file=None)
        self.xswitch_process = None
        self.serves_in_one = False
        self.version = 1
        self.usable = True
        self.reported = 0

    def copy(self) -> Factory:
        other = Factory()
        other.version = self.version
        return other

    def renew(self) -> bool:
        self.version += self.usable
        return self.usable

    def restored(self, old: Factory) -> None:
        self.version = old.version

    def report_applications(self) -> None:
        self.reported += 1


class Rehearsal(Supervisor):
    """A supervisor whose workers are numbers: fork() and kill() note what they would do."""

    def __init__(self, begins: int = 2) -> None:
        self.made: Any = Factory()
        super().__init__(self.made, [])
        self.numbers = itertools.count(101)
        self.sent: list[tuple[int, int]] = []
        self.may_fork = True
        self.count = begins
        for place in range(begins):
            self.start(place, State.BEGINNING)

    def fork(self, place: int) -> int:
        if not self.may_fork:
            self.places[place].plan(1)
            return -1
        return next(self.numbers)

    def start_xswitch(self) -> None:
        pid = next(self.numbers)
        self.workers[pid] = WorkerProcess(pid, X, self.generation, State.SERVING)

    def kill(self, worker: WorkerProcess, number: int) -> None:
        assert self.workers[worker.pid] is worker, "a signal to a process that is reaped"
        self.sent.append((worker.pid, number))

    # What a worker does, and what run() then does

    def serves(self, *pids: int) -> None:
        for pid in pids:
            self.happen(self.workers[pid], Event.READY)
        if self.is_complete():
            self.settle()

    def ends(self, pid: int, code: int, failure: str = "") -> None:
        self.workers[pid].failure = failure
        self.ended(self.workers.pop(pid), code)
        if self.is_complete() and not self.stopping:
            self.settle()

    def passes(self) -> None:
        """Let the time come in which every planned start is due."""
        for number, place in list(self.places.items()):
            if place.due is not None:
                place.due = None
                self.start(number)

    def states(self) -> dict[int, str]:
        return {pid: each.state.name for pid, each in self.workers.items()}

    def planned(self) -> list[int]:
        return sorted(number for number, place in self.places.items() if place.due is not None)


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
        method = worker.happen(event)
        assert callable(getattr(Supervisor, method))
        assert worker.state is TABLE[state, event][0]
    else:
        with pytest.raises(IllegalEvent, match=f"{event.name} in state {state.name}"):
            worker.happen(event)
        assert worker.state is state


def test_every_state_can_be_reached_and_left() -> None:
    reached = {State.BEGINNING, State.STARTING, State.COMING}  # a fork
    for _ in State:
        reached |= {after for (before, _), (after, _) in TABLE.items() if before in reached}
    assert reached == set(State)
    for state in set(State) - {State.GONE}:
        assert TABLE[state, Event.AT_STOP] == (State.GONE, "note_status")
    assert not [state for state, _ in TABLE if state is State.GONE]


# A worker in its place


def test_first_workers_begin_and_serve(supervisor: Rehearsal) -> None:
    assert supervisor.are_any(State.BEGINNING)
    supervisor.serves(101, 102)
    assert supervisor.states() == {101: "SERVING", 102: "SERVING"}
    assert not supervisor.are_any(State.BEGINNING) and not supervisor.sent


def test_a_first_worker_that_cannot_serve_stops_the_server(supervisor: Rehearsal) -> None:
    supervisor.ends(101, UNUSABLE, "no such module")
    assert supervisor.unusable == "no such module" and supervisor.stopping
    assert supervisor.sent == [(102, TERM)]
    supervisor.ends(102, STOPPED)
    assert not supervisor.planned()


def test_a_first_worker_that_ends_without_a_report_is_replaced(supervisor: Rehearsal, log: list[str]) -> None:
    """Its status alone says nothing: a library has called exit(3)."""
    supervisor.ends(101, UNUSABLE)
    assert not supervisor.unusable and supervisor.planned() == [0]
    assert log == ["worker 1 (pid 101) ended with status 3; starting another in 0.25 s"]


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
    monkeypatch.setattr(children, "YOUNG_S", 0.0)
    serving.ends(pid, CRASH)
    assert log.pop().endswith("was ended by signal 11; starting another")


def test_a_worker_that_retires_by_itself_is_replaced_at_once(serving: Rehearsal, log: list[str]) -> None:
    serving.ends(101, STOPPED)
    assert log == ["worker 1 (pid 101) retired"]
    assert serving.places[0].back_off == 0 and serving.planned() == [0]


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


def test_a_configuration_with_an_error_changes_nothing(serving: Rehearsal) -> None:
    serving.made.usable = False
    serving.reload()
    assert serving.states() == {101: "SERVING", 102: "SERVING"} and serving.changed_from is None


def test_a_change_without_forks_is_taken_back(serving: Rehearsal, log: list[str]) -> None:
    serving.may_fork = False
    serving.reload()
    assert log == ["the new workers cannot start, the old ones go on: not all could be forked"]
    assert serving.made.version == 1 and not serving.planned()


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
    serving.ends(101, CUT)
    assert not serving.planned()


# The number of workers


def test_a_place_more_and_a_place_less(serving: Rehearsal) -> None:
    serving.change_count(1)
    assert serving.states()[103] == "STARTING" and serving.workers[103].place == 2
    serving.change_count(-1)
    serving.change_count(-1)
    serving.change_count(-1)
    assert serving.count == 1 and serving.sent == [(103, HUP), (102, HUP)]
    serving.ends(102, STOPPED)
    assert not serving.planned()


def test_a_place_less_while_a_change_comes(serving: Rehearsal) -> None:
    serving.reload()
    serving.change_count(-1)
    assert serving.sent == [(102, HUP), (104, HUP)]
    serving.serves(103)
    assert serving.sent[2:] == [(101, HUP)]


# A stop


def test_nothing_is_replaced_at_a_stop(serving: Rehearsal) -> None:
    serving.reload()
    serving.stop(TERM)
    assert sorted(serving.sent) == [(pid, TERM) for pid in (101, 102, 103, 104)]
    serving.ends(101, STOPPED)
    serving.ends(103, STOPPED)
    assert serving.status == STOPPED
    serving.ends(102, CRASH)
    serving.ends(104, STOPPED)
    assert serving.status == CUT and not serving.planned() and not serving.workers


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
    serving.end_xswitch()
    serving.end_xswitch()
    assert serving.sent[-1] == (xswitch, TERM) and serving.sent.count((xswitch, TERM)) == 1
    serving.ends(xswitch, -TERM)  # before it had a handler
    assert serving.status == STOPPED
