"""EWE_TRACE: what ewe's models write, what the grader reads, and which contradictions to the clients it finds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ewe.config.settings import Config
from ewe.processors.base import Processor
from ewe.server.trace import trace as server_trace
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


def story(tmp_path: Path, text: str = LINES) -> trace.Story:
    file = tmp_path / "trace"
    file.write_text(text)
    return trace.read(file)


def seen() -> trace.Story:
    return trace.Story([1, 2, 3], [1, 2], [1], [3], {2: "1"})


def test_a_trace_that_tells_what_the_clients_saw(tmp_path: Path) -> None:
    assert trace.mismatch(story(tmp_path), seen(), NAMES) == ""
    # A line without its end is still being written.
    assert trace.mismatch(story(tmp_path, LINES + "0.8 completion 2 x"), seen(), NAMES) == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("0.7 dispatch 2", "0.7 dispatch 3"), "the dispatch of A, C"),
        (("0.6 completion 1 x /a\n", ""), "completion of nobody"),
        (("0.5 drop 3 - /c\n", ""), "got status 503 in the order C, and the trace has the drop of nobody"),
        (("0.3 arrival 2", "0.3 arrival 9"), "the arrival of A, port 9, C"),
        (("0.7 dispatch 2 x", "0.7 dispatch 2 y"), "B was served when the worker of A became free"),
    ],
)
def test_a_trace_that_contradicts_the_clients(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    assert change[0] in LINES
    assert says in trace.mismatch(story(tmp_path, LINES.replace(*change)), seen(), NAMES)


@pytest.mark.parametrize(
    "line", ["0.1 arrival 1 -", "0.1 begin 1 - /a", "0.1 arrival one - /a", "", "0.9 completion 1 y /a"]
)
def test_a_line_that_is_not_of_its_form(tmp_path: Path, line: str) -> None:
    with pytest.raises(trace.BadTrace, match="of the trace"):
        story(tmp_path, LINES + line + "\n")


# What ewe writes


class Silent(Processor):
    """Its conversations end at once, or fail."""

    def converse(self, stream: Any) -> Any:
        async def conversation() -> None:
            if stream.fails:
                raise ValueError

        return conversation()

    def release(self, stream: Any) -> None:
        pass


def traced(monkeypatch: pytest.MonkeyPatch, file: Path) -> Processor:
    monkeypatch.setenv("EWE_TRACE", str(file))
    processor = Silent(SimpleNamespace(tls=None), Config())  # type: ignore[arg-type]
    server_trace(processor)
    return processor


class Client:
    """A stream, as far as a trace looks at it."""

    def __init__(self, port: int) -> None:
        self.client = ("::1", port)
        self.fails = port == 2


def test_a_model_writes_its_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = traced(monkeypatch, tmp_path / "trace")
    for port in (1, 2):
        stream: Any = Client(port)
        processor.hold(processor.register(stream))
    found = trace.read(tmp_path / "trace")
    assert found.arrival == found.dispatch == found.completion == [1, 2]
    assert len(set(found.workers.values())) == 1


def test_a_model_that_writes_its_own_events_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Silent, "traces_itself", True)
    processor = traced(monkeypatch, tmp_path / "trace")
    processor.hold(processor.register(Client(1)))  # type: ignore[arg-type]
    assert not (tmp_path / "trace").exists()


def test_a_trace_that_cannot_be_written_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = traced(monkeypatch, tmp_path)
    assert not {"register", "converse"} & vars(processor).keys()
