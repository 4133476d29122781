"""Lines become events; a file that is not a trace is one line of complaint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ewe_watch.events import TraceError, TraceEvent, parse, read, sort_by_time


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (
            "8123.551540 request 7120.4 7120/7131 GET /a.html",
            TraceEvent(8123.55154, "request", "7120.4", "7120/7131", "GET /a.html"),
        ),
        ("8123.5 runs 7120.4 7120/7131 ", TraceEvent(8123.5, "runs", "7120.4", "7120/7131", "")),
        ("8123.5 runs 7120.4 7120/7131", TraceEvent(8123.5, "runs", "7120.4", "7120/7131", "")),
        ("1.0 stops - 7120/7120 ", TraceEvent(1.0, "stops", "", "7120/7120", "")),
        ("1.0 of-tomorrow 7120.4 7120/7131 x", TraceEvent(1.0, "of-tomorrow", "7120.4", "7120/7131", "x")),
    ],
)
def test_a_line(line: str, event: TraceEvent) -> None:
    assert parse(line) == event


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "expected SECONDS EVENT CONNECTION WORKER TEXT"),
        ("127.0.0.1 - - [26/Nov/2026", "'127.0.0.1' is not a time in seconds"),
        ("nan runs 7120.4 7120/7131", "'nan' is not a time in seconds"),
        ("inf runs 7120.4 7120/7131", "'inf' is not a time in seconds"),
        ("1e305 runs 7120.4 7120/7131", "'1e305' is not a time in seconds"),
        # Above 2**53 microseconds, a float cannot count by one: the loop of the page's axis would not end
        (f"{2**53 // 10**6 + 1}.0 runs 7120.4 7120/7131", "'9007199255.0' is not a time in seconds"),
        ("1.0 runs x 7120/7131", "'x' is not a connection, such as 7120.4"),
        ("1.0 arrival x - /a", "'x' is not a client's port, such as 40112"),
        (
            "1.0 arrival \N{SUPERSCRIPT TWO} - /a",
            "'\N{SUPERSCRIPT TWO}' is not a client's port, such as 40112",
        ),
        ("nan arrival 40112 - /a", "'nan' is not a time in seconds"),
        ("1.0 arrival 40112 -", "expected SECONDS EVENT CLIENT WORKER TARGET"),
        ("1.0 runs 7120.4 7131", "'7131' is not a worker, such as 7120/7131"),
    ],
)
def test_a_bad_line_names_the_file_and_the_line(tmp_path: Path, line: str, reason: str) -> None:
    trace = tmp_path / "a.trace"
    trace.write_text(f"1.0 runs 7120.4 7120/7131\n{line}\n1.1 ended 7120.4 7120/7131\n")
    with pytest.raises(TraceError) as raised:
        list(read(trace))
    assert str(raised.value) == f"{trace}, line 2: not an event of a trace: {reason}"


def test_an_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    trace = tmp_path / "a.trace"
    trace.write_text("1.0 runs 7120.4 7120/7131\n1.1 ended 71")
    assert [event.kind for event in read(trace)] == ["runs"]


def test_what_a_full_disk_took_of_a_line_is_ignored(tmp_path: Path) -> None:
    trace = tmp_path / "a.trace"
    trace.write_text(
        "1.0 runs 7120.4 7120/7131\n1.1 wai\n1.2 lost - 7120/7131 9\n1.3 ended 7120.4 7120/7131\n"
    )
    assert [event.kind for event in read(trace)] == ["runs", "lost", "ended"]


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    trace = tmp_path / "a.trace"
    trace.write_bytes(b"1.0 request 7120.4 7120/7131 GET /\xff\n")
    assert next(read(trace)).text == "GET /\ufffd"


def test_a_file_without_line_ends_is_not_read_whole(tmp_path: Path) -> None:
    trace = tmp_path / "a.trace"
    with trace.open("wb") as file:
        file.truncate(1 << 32)  # a hole of 4 GB
    with pytest.raises(TraceError, match="line 1"):
        next(read(trace))


def test_lines_that_have_changed_places_are_sorted(tmp_path: Path) -> None:
    events = [
        parse(f"{seconds} runs 7120.{number} 7120/1") for number, seconds in enumerate((1.2, 1.0, 1.1, 1.1))
    ]
    assert [event.connection for event in sort_by_time(events, window=3)] == [
        "7120.1",
        "7120.2",
        "7120.3",
        "7120.0",
    ]


def test_a_named_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceError, match="is not a regular file"):
        next(read(tmp_path / "pipe"))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot read .*none\.trace: No such file"):
        next(read(tmp_path / "none.trace"))
