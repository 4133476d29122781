"""Models of ewe in the harness: what each wrong one does is found, and named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ewe
from ewe_explore.harness import Arrivals, Model
from ewe_explore.report import explore

RIGHT = """
import queue, threading
from ewe.processors.base import Processor

class Mine(Processor):
    many_threads = True

    def serve(self, listener):
        waiting = queue.Queue(maxsize=10)
        for _ in range(2):
            threading.Thread(target=self.work, args=(waiting,), daemon=True).start()
        for accepted in listener:
            waiting.put(self.stream_of(accepted))
        self.drain()

    def work(self, waiting):
        while True:
            self.run(waiting.get())
"""
# The text to change, the new text, and the report's words. early: only a stop in the middle shows the fault.
WRONG = [
    ("        self.drain()\n", "", True, "of its conversations have not ended"),
    ("waiting.put(self.stream_of(accepted))", "accepted.socket.close()", False, "got 0 of 1 answers"),
    (
        "waiting.put(self.stream_of(accepted))",
        "stream = self.stream_of(accepted); waiting.put(stream); waiting.put(stream)",
        False,
        "two conversations are held over one connection",
    ),
    ("maxsize=10", "maxsize=10); listener.accept(", False, "serve.. and client . wait without end"),
    (
        "for accepted in listener:",
        "while accepted := listener.accept():",
        False,
        "serve.. has returned before the stop",
    ),
    ("while True:", "if True:", False, "client . waits without end|wait without end"),
    ("self.run(waiting.get())", "waiting.get(); waiting.get()", False, "without end"),
]


def model(path: Path, text: str, early: bool) -> Model:
    path.write_text(text)
    return Model(path, "Mine", clients=3, early=early)


@pytest.mark.parametrize("early", [False, True])
def test_the_pool_of_the_exercise_is_right(early: bool, tmp_path: Path) -> None:
    result = explore(model(tmp_path / "mine.py", RIGHT, early), runs=120)
    assert result.failure is None, result.text()


@pytest.mark.parametrize(("old", "new", "early", "says"), WRONG)
def test_a_wrong_model_is_found(old: str, new: str, early: bool, says: str, tmp_path: Path) -> None:
    assert RIGHT.count(old) == 1
    result = explore(model(tmp_path / "mine.py", RIGHT.replace(old, new), early), runs=300)
    assert result.failure is not None
    assert re.search(says, result.text()), result.text()


LOST = (
    RIGHT.replace("import queue, threading", "import threading").replace(
        "        waiting = queue.Queue(maxsize=10)\n", "        waiting = Waiting()\n"
    )
    + """
class Waiting:
    def __init__(self):
        self.items, self.changed = [], threading.Condition()

    def put(self, item):
        with self.changed:
            self.items.append(item)
            if len(self.items) == 1:
                self.changed.notify()

    def get(self):
        with self.changed:
            while not self.items:
                self.changed.wait()
            return self.items.pop(0)
"""
)


@pytest.mark.takes_time
def test_a_lost_wake_up_shows_when_clients_keep_their_connections(tmp_path: Path) -> None:
    """A worker that is free finds the connection later, unless a client keeps each worker."""
    (tmp_path / "mine.py").write_text(LOST)
    assert explore(Model(tmp_path / "mine.py", "Mine"), runs=200).failure is None
    result = explore(Model(tmp_path / "mine.py", "Mine", together=True), runs=200)
    assert "another client had no answer" in result.text()


@pytest.mark.takes_time
@pytest.mark.parametrize("name", ["pool", "thread"])
def test_models_with_threads_serve_clients_that_keep_their_connections(name: str) -> None:
    path = Path(ewe.__file__).parent / "processors" / f"{name}.py"
    result = explore(Model(path, name.capitalize(), clients=3, together=True), runs=60)
    assert result.failure is None, result.text()


def test_messages_name_the_listener() -> None:
    assert Arrivals().explorer_label == "the listener"
