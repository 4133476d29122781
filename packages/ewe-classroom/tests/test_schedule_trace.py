"""EWE_TRACE: the lines of ewe's models, the grader's reading of them, and contradictions to the clients."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ewe.config.settings import Config
from ewe.processors.base import Processor
from ewe.server.trace import traced
from ewe.streams.base import Stream
from ewe_classroom.grader import trace

NAMES = {1: "A", 2: "B", 3: "C"}
LINES = """\
0.1 arrival 1 - /a
0.2 dispatch 1 x /a
0.3 arrival 2 - /b with spaces
0.4 arrival 3 - /c
0.5 drop 3 - /c
0.6 completion 1 x /a
0.7 dispatch 2 x /b with spaces
"""


def story(tmp_path: Path, text: str = LINES) -> trace.TraceOrder:
    file = tmp_path / "trace"
    file.write_text(text)
    return trace.read(file)


def test_a_trace_that_the_server_has_removed_or_replaced_is_the_servers_fault(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    with pytest.raises(trace.BadTrace, match="the trace cannot be read: No such file"):
        trace.read(file)
    file.symlink_to("/etc/passwd")
    with pytest.raises(trace.BadTrace, match="the trace cannot be read"):
        trace.read(file)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(trace.BadTrace, match="the trace cannot be read: not a regular file"):
        trace.read(file)


def seen() -> trace.ObservedOrder:
    return trace.ObservedOrder([1, 2, 3], [1, 2], [1], [3], predecessors={2: 1})


def test_a_trace_that_tells_what_the_clients_saw(tmp_path: Path) -> None:
    assert trace.mismatch(story(tmp_path), seen(), NAMES) == ""
    # A line without its end is still being written.
    assert trace.mismatch(story(tmp_path, LINES + "0.8 completion 2 x"), seen(), NAMES) == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("0.7 dispatch 2", "0.7 dispatch 3"), "the dispatch of A, C"),
        (("0.6 completion 1 x /a\n", ""), "completion of no client"),
        (("0.5 drop 3 - /c\n", ""), "got status 503 in the order C, and the trace has the drop of no client"),
        (("0.3 arrival 2", "0.3 arrival 9"), "the arrival of A, port 9, C"),
        (("0.7 dispatch 2 x", "0.7 dispatch 2 y"), "B was served when the worker of A became free"),
    ],
)
def test_a_trace_that_contradicts_the_clients(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    assert change[0] in LINES
    assert says in trace.mismatch(story(tmp_path, LINES.replace(*change)), seen(), NAMES)


@pytest.mark.parametrize(
    "line",
    [
        "0.1 arrival 1 -",
        "0.1 begin 1 - /a",
        "0.1 arrival one - /a",
        "0.1 arrival \N{SUPERSCRIPT TWO} - /a",
        f"0.1 arrival {'1' * 5000} - /a",
        "",
        "0.9 completion 1 y /a",
    ],
)
def test_a_line_that_is_not_of_its_form(tmp_path: Path, line: str) -> None:
    with pytest.raises(trace.BadTrace, match="of the trace"):
        story(tmp_path, LINES + line + "\n")


def test_a_trace_without_end_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_BYTES", len(LINES) - 1)
    with pytest.raises(trace.BadTrace, match="more than"):
        story(tmp_path)


# The lines that ewe writes


class Silent(Processor):
    """A model whose conversations end at once, or fail."""

    def converse(self, stream: Any) -> Any:
        async def conversation() -> None:
            if stream.below.fails:
                raise ValueError

        return conversation()


class OwnEvents(Silent):
    """A model that writes the events itself."""

    traces_itself = True


class Client(Stream):
    """A stream that is never read."""

    def __init__(self, port: int) -> None:
        super().__init__(("::1", port), ("::1", 80), Config())
        self.fails = port == 2

    def close(self) -> None:
        pass


def test_a_model_of_ewe_writes_its_events(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    processor = traced(Silent, str(file))(SimpleNamespace(tls=None), Config())
    processor.listener = SimpleNamespace(accepting=True)  # type: ignore[assignment]
    processor.trace.write("model", "-", "silent")  # type: ignore[attr-defined]
    for port in (1, 2):
        processor.run(processor.register(Client(port)))
    found = trace.read(file)
    assert found.arrival == found.dispatch == found.completion == [1, 2]
    assert len(set(found.workers.values())) == 1


def test_a_model_that_writes_its_own_events_is_left_alone(tmp_path: Path) -> None:
    assert traced(OwnEvents, str(tmp_path / "trace")) is OwnEvents
    assert not (tmp_path / "trace").exists()


OF_EWE = (
    "0.1 model - 7/7 pool\n0.1 accepted 7.1 7/7 127.0.0.1:1\n0.2 accepted 7.2 7/7 127.0.0.1:2 backlog=0.104\n"
    "0.4 runs 7.2 7/9 \n0.3 runs 7.1 7/8 \n0.6 ended 7.1 7/8 the server closes\n"
)


def test_the_events_of_ewe_are_taken_by_their_time(tmp_path: Path) -> None:
    """A worker may write two events at once, after a later event of another worker."""
    assert story(tmp_path, OF_EWE) == trace.TraceOrder([1, 2], [1, 2], [1], [], {1: "7/8", 2: "7/9"})


@pytest.mark.parametrize("line", ["soon runs 7.1 7/8 ", "0.5 runs 7.1", "0.5 accepted 7.3 7/7 a client"])
def test_a_line_that_no_ewe_writes_is_one_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(trace.BadTrace, match="has not the form of ewe's own events"):
        story(tmp_path, f"{OF_EWE}{line}\n")
