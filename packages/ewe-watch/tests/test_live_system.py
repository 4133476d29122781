"""ewe-watch on a system that lacks something: IPv6, /proc, a process, or the right to kill a server."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ewe_watch.live import meters, model_process
from ewe_watch.live.choice import parse_choice
from ewe_watch.live.demonstration import MOST_MS, whole_number
from ewe_watch.live.model_process import ModelProcess, ServerProcess, StartFailure

LISTENING = "  0: 0100007F:1F90 00000000:0000 0A 00000000:00000003 00:00000000 00000000     0        0 4711\n"


def test_a_kernel_without_ipv6_has_no_table_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tcp").write_text(f"  sl  local_address\n{LISTENING}")
    monkeypatch.setattr(meters, "TCP", (tmp_path / "tcp", tmp_path / "tcp6"))
    assert meters.backlogs([8080]) == {8080: 3}


def test_a_system_without_proc_shows_no_backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "TCP", (tmp_path / "tcp", tmp_path / "tcp6"))
    assert meters.backlogs([8080]) is None


def test_a_model_for_which_there_is_no_process_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*words: Any, **how: Any) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    guard: Any = None
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(StartFailure, match="thread does not start: Resource temporarily unavailable"):
        ModelProcess(parse_choice("-t"), tmp_path, 1, guard)
    assert set(os.listdir("/proc/self/fd")) == before and not list(tmp_path.iterdir())


@pytest.mark.starts_processes
def test_a_server_that_cannot_be_killed_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that sudo has started: it belongs to another account."""
    guard: Any = SimpleNamespace(remove=lambda group: None)
    monkeypatch.setattr(model_process, "STOP_S", 0.05)
    monkeypatch.setattr(ServerProcess, "signal", lambda self, number: None)
    server = ServerProcess()
    server.process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    server.pid, server.guard, server.log = server.process.pid, guard, tmp_path / "log"
    server.stop()
    assert server.alive()
    server.process.kill()
    server.process.wait()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("40", 40),
        ("", 0),
        ("-1", 0),
        ("x", 0),
        ("999999999", MOST_MS),
        pytest.param("9" * 5000, MOST_MS, id="long"),
    ],
)
def test_a_number_of_a_query_may_have_any_length(text: str, number: int) -> None:
    """int() of 5,000 digits raises ValueError, so the page would have status 500."""
    assert whole_number(text) == number
