"""A time limit of the server can open a gate on a busy machine: what a scene knows of it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ewe_classroom.grader import site_programs
from ewe_classroom.grader.responses import ResponseSplitter
from ewe_classroom.grader.scene import Scene, SceneClient

HALF, REST = "GET /1.txt HTTP/1.1\r\nHost: localhost\r\n", "\r\n"


def scene(*steps: tuple[float, str, str]) -> Scene:
    """Return a scene with these steps of one client: when, what, and which bytes."""
    made = Scene(SimpleNamespace(site=None, workers=4))  # type: ignore[arg-type]
    for at, do, data in steps:
        step: dict[str, Any] = {"t": at, "lane": "held", "do": do}
        made.steps.append({**step, "bytes": data} if data else step)
    return made


@pytest.mark.parametrize("end", ["answered", "closed-by-server", "reset-by-server"])
def test_half_a_request_that_the_server_ends_late_met_a_time_limit(end: str) -> None:
    assert scene((1.0, "send", HALF), (11.0, end, "")).may_have_timed_out()


def test_an_end_at_once_is_no_time_limit() -> None:
    assert not scene((1.0, "send", HALF), (1.2, "closed-by-server", "")).may_have_timed_out()


def test_an_answer_after_the_rest_is_no_time_limit_however_late() -> None:
    assert not scene((1.0, "send", HALF), (9.0, "send", REST), (30.0, "answered", "")).may_have_timed_out()
    assert not scene((1.0, "send", HALF + REST), (30.0, "answered", "")).may_have_timed_out()


def unread(*steps: tuple[float, str, str]) -> Scene:
    """Return a scene of a client that connects and does not read, and these steps of it."""
    made = scene((0.0, "connect", ""), (1.0, "send", HALF + REST), *steps)
    made.steps[0]["reads"] = False
    return made


def test_a_response_that_nobody_read_and_the_server_ended_met_a_time_limit() -> None:
    assert unread((12.0, "read", ""), (12.1, "closed-by-server", "")).may_have_timed_out()
    assert unread((11.0, "reset-by-server", "")).may_have_timed_out()


def test_a_response_that_is_read_in_time_met_none() -> None:
    assert not unread((3.0, "read", ""), (30.0, "closed-by-server", "")).may_have_timed_out()
    assert not unread((3.0, "closed-by-server", "")).may_have_timed_out()


@pytest.mark.parametrize("framing", ["Content-Length: 900", "Transfer-Encoding: chunked", "Server: x"])
def test_bytes_of_a_response_without_an_end_have_arrived(framing: str) -> None:
    """A server that announces too long a body has sent the secret file all the same."""
    client = object.__new__(SceneClient)
    client.reader = ResponseSplitter()
    chunk = "7\r\n" if "chunked" in framing else ""
    client.reader.feed(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n{chunk}secret\n".encode())
    assert not client.answers and client.has_got(b"secret") and not client.has_got(b"OK")


def test_a_program_may_end_at_the_moment_in_which_its_gate_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server ends the program of a client that has left: after the gate's open(), or before it."""
    (tmp_path / "gates").mkdir()
    os.mkfifo(tmp_path / "gates" / "gate-1")
    assert not site_programs.open_gate(tmp_path / "site", "gate-1")
    readers = [os.open(tmp_path / "gates" / "gate-1", os.O_RDONLY | os.O_NONBLOCK)]
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        if readers:
            os.close(readers.pop())
        return real(descriptor, data)

    monkeypatch.setattr(site_programs.os, "write", write)
    assert not site_programs.open_gate(tmp_path / "site", "gate-1") and not readers
