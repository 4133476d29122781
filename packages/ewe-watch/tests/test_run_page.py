"""The page of a run: one time for all models, the names of the clients, and a limit."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

from ewe_watch.live import run_page
from ewe_watch.live.director import Recording


def recorded(label: str, began: float, *lines: str) -> Any:
    """Return a model with a recording. began: of its process. lines: "TIME KIND CONNECTION TEXT"."""
    recording = Recording()
    recording.add(f"{began} model - 7/7 {label} of a test\n".encode())
    for line in lines:
        seconds, kind, connection, text = line.split(" ", 3)
        recording.add(f"{seconds} {kind} {connection} 7/7 {text}\n".encode())
    clients = SimpleNamespace(labels={"127.0.0.1:51": "silent 1", "127.0.0.1:52": "visitor 1"})
    return SimpleNamespace(recording=recording, clients=clients, choice=SimpleNamespace(label=label))


def documents(*models: Any) -> list[dict[str, Any]]:
    """Return the numbers of the page of these models, at the time 30."""
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', run_page.run_page(models, 30.0)
    )
    assert found is not None
    numbers: list[dict[str, Any]] = json.loads(found[1])
    return numbers


SERIAL = (
    "20.0 accepted 7.1 127.0.0.1:51",
    "20.0 runs 7.1 ",
    "22.0 closed 7.1 ",
    "23.0 accepted 7.2 127.0.0.1:52",
)
THREAD = ("20.5 accepted 7.1 127.0.0.1:52", "20.5 runs 7.1 ", "21.5 accepted 7.2 127.0.0.1:99")


def test_all_models_have_one_time_and_connections_have_the_names_of_clients() -> None:
    serial, thread = documents(recorded("serial", 1.0, *SERIAL), recorded("thread", 9.0, *THREAD))
    assert (serial["model"], thread["model"]) == ("serial", "thread")
    seen = [[(each["label"], each["accepted"]) for each in one["connections"]] for one in (serial, thread)]
    assert seen == [
        [("silent 1", 0), ("visitor 1", 3_000_000)],
        [("visitor 1", 500_000), ("2", 1_500_000)],  # a client that no button has sent
    ]


def test_the_page_of_a_long_run_has_the_last_events_and_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_page, "MOST_RUN_EVENTS", 2)
    (serial,) = documents(recorded("serial", 1.0, *SERIAL))
    assert (serial["model"], serial["events"], serial["duration"]) == ("serial", 3, 8_000_000)


@pytest.mark.parametrize(("last", "seconds"), [("21.5 runs 7.2 ", 10.0), ("22.5 closed 7.2 ", 2.5)])
def test_the_time_goes_on_while_a_connection_is_open(last: str, seconds: float) -> None:
    """A pool whose workers are all held writes no event."""
    visit = ("20.0 accepted 7.1 127.0.0.1:51", "20.5 closed 7.1 ", "21.0 accepted 7.2 127.0.0.1:52")
    serial, thread = documents(recorded("serial", 1.0, *visit[:2]), recorded("thread", 2.0, *visit, last))
    assert serial["duration"] == thread["duration"] == seconds * 1e6


def test_a_model_that_has_just_started_has_an_empty_picture() -> None:
    empty = recorded("serial", 1.0)
    empty.recording = Recording()
    thread, serial = documents(recorded("thread", 9.0, *THREAD), empty)
    assert (thread["model"], serial["model"], serial["connections"]) == ("thread", "", [])
