"""The exit of a program, seen through a descriptor: by pidfd, and by a thread where the system has none."""

from __future__ import annotations

import errno
import gc
import os
import select
import signal
import subprocess
from collections.abc import Callable

import pytest
from support.server import wait_until

from ewe.gateway import exits
from ewe.gateway.exits import PidfdExit, ThreadExit

pytestmark = pytest.mark.starts_processes
Watch = Callable[[int], PidfdExit | ThreadExit]
KINDS = ["pidfd", "waitid", "waitpid"]


@pytest.fixture(params=KINDS)
def watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Return the function that watches an exit: of Linux, of macOS with Python 3.13, or with an older Python."""
    if request.param != "pidfd":
        monkeypatch.delattr(os, "pidfd_open")
    if request.param == "waitpid":
        monkeypatch.delattr(os, "waitid")
    return exits.watched_exit


def begun(*command: str) -> int:
    """Start a program without waiting for its end."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    process.returncode = 0
    return process.pid


def ready(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


def test_an_exit_is_seen_and_its_status_read(watch: Watch) -> None:
    watched = watch(begun("sh", "-c", "exit 3"))
    assert ready(watched.descriptor, 30)
    assert watched.status() == 3
    watched.close()


def test_a_program_that_runs_is_no_exit(watch: Watch) -> None:
    pid = begun("sleep", "60")
    watched = watch(pid)
    assert not ready(watched.descriptor, 0.1)
    os.kill(pid, signal.SIGKILL)
    assert watched.status() == -signal.SIGKILL
    watched.close()


def test_the_status_was_read_elsewhere(watch: Watch) -> None:
    """orphans.reap() may read the status first: 0 then stands for an unknown status."""
    pid = begun("sleep", "60")
    watched = watch(pid)
    os.kill(pid, signal.SIGKILL)
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass  # the thread was first
    assert watched.status() in (0, -signal.SIGKILL)
    watched.close()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_a_kernel_that_refuses_pidfd_open(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """An older kernel has no such call, and a container may forbid it: a thread waits instead."""

    def refuse(pid: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    watched = exits.watched_exit(begun("sh", "-c", "exit 3"))
    assert ready(watched.descriptor, 30) and watched.status() == 3
    watched.close()


def test_nothing_stays_open(watch: Watch) -> None:
    gc.collect()  # what earlier tests have left open must not close in between
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(5):
        watched = watch(begun("true"))
        watched.status()
        watched.close()
    wait_until(lambda: len(set(os.listdir("/proc/self/fd")) - before) <= 1, 30)  # 1: the list's own


def test_the_thread_takes_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that it took would not wake the main thread, in which Python handles it."""
    monkeypatch.delattr(os, "pidfd_open")
    blocked: list[set[signal.Signals]] = []
    found = exits.ThreadExit.wait

    def wait(self: ThreadExit) -> None:
        blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))  # type: ignore[arg-type]
        found(self)

    monkeypatch.setattr(exits.ThreadExit, "wait", wait)
    watched = exits.watched_exit(begun("true"))
    watched.status()
    watched.close()
    wait_until(lambda: blocked, 30)
    assert {signal.SIGTERM, signal.SIGALRM, signal.SIGHUP} <= blocked[0]
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
