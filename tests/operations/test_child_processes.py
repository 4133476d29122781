"""Ending and replacing child processes: a number stays its own until it is reaped, and every wait has a limit."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from itertools import count

import pytest

from ewe.child_processes import exit_status, has_exited, send_signal, wait_until
from ewe.child_slots import BackOff, ChildSlot
from ewe.gateway.kept_programs import ForkedProcess

LIBC = ctypes.CDLL(None)


def fork(run: Callable[[], object]) -> int:
    """Return a child that calls a function and then ends with status 7."""
    pid = os.fork()
    if pid == 0:
        try:
            run()
        finally:
            os._exit(7)
    return pid


def be_traced() -> None:
    """Make the parent process the tracer of this one, and stop."""
    LIBC.ptrace(0, 0, None, None)  # PTRACE_TRACEME
    os.kill(os.getpid(), signal.SIGUSR2)


@pytest.mark.starts_processes
def test_a_look_at_a_child_reads_no_status() -> None:
    pid = fork(lambda: None)
    assert wait_until(lambda: has_exited(pid), 20)
    assert has_exited(pid)
    send_signal(pid, signal.SIGKILL)  # a zombie ignores it
    assert exit_status(pid) == 7
    assert has_exited(pid) and exit_status(pid) == 0  # reaped: another reader was first
    send_signal(pid, 0)


@pytest.mark.starts_processes
def test_a_child_that_only_pauses_has_not_exited() -> None:
    pid = fork(signal.pause)
    try:
        send_signal(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        assert not has_exited(pid)
    finally:
        send_signal(pid, signal.SIGKILL)
    assert wait_until(lambda: has_exited(pid), 20)
    assert exit_status(pid) == -signal.SIGKILL


@pytest.mark.starts_processes
@pytest.mark.parametrize("traced", ["seen", "reaped", "kept"])
def test_a_child_that_has_made_this_process_its_tracer_is_killed(traced: str) -> None:
    """Otherwise it would stay stopped, and this process would wait for it without a limit."""
    if traced == "kept":
        forked = ForkedProcess(be_traced)
        assert wait_until(lambda: forked.poll() is not None, 20)
        assert forked.returncode == -signal.SIGKILL
        return
    pid = fork(be_traced)
    assert traced == "reaped" or wait_until(lambda: has_exited(pid), 20)
    assert exit_status(pid) == -signal.SIGKILL


def test_a_wait_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = [0.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("ewe.child_processes.time.monotonic", lambda: now[0])
    monkeypatch.setattr("ewe.child_processes.time.sleep", sleep)
    assert not wait_until(lambda: False, 1.0)
    assert now[0] == pytest.approx(1.0) and pauses[0] < pauses[3] and max(pauses) <= 0.01
    looks = count()
    assert wait_until(lambda: next(looks) == 3, 0.0) is False
    assert wait_until(lambda: True, 0.0) and next(looks) == 1


def test_a_process_that_this_one_may_not_signal_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child may run as another account by now: the keeper must go on."""
    sent = []

    def refuse(pid: int, number: int) -> None:
        sent.append(pid)
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    send_signal(4242, signal.SIGTERM)
    assert sent == [4242]


@pytest.mark.parametrize(
    ("limits", "waits_s"),
    [
        (BackOff(), [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0]),
        (BackOff(2.0, 1.0, 1.0), [1.0, 1.0, 1.0]),
        (BackOff(2.0, 0.0, 0.0), [0.0, 0.0, 0.0]),
    ],
)
def test_a_slot_counts_the_children_that_die_young(
    monkeypatch: pytest.MonkeyPatch, limits: BackOff, waits_s: list[float]
) -> None:
    now = 100.0
    monkeypatch.setattr("ewe.child_slots.time.monotonic", lambda: now)
    slot = ChildSlot(limits)
    for number, wait_s in enumerate(waits_s, 1):
        assert slot.plan_after_death(now - limits.young_s + 0.1) == wait_s
        assert slot.due_at == now + wait_s
        assert slot.has_failed(number) and not slot.has_failed(number + 1)
    assert slot.plan_after_death(now - limits.young_s) == 0.0
    assert not slot.has_failed(1) and slot.is_due(now)
