"""Models of ewe in the harness: what each wrong one does is found, and named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ewe_explore.harness import Model
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
            waiting.put(self.meet(accepted))
        self.drain()

    def work(self, waiting):
        while True:
            self.hold(waiting.get())
"""
# What is changed, into what, and what the report says. early: only a stop in the middle shows it.
WRONG = [
    ("        self.drain()\n", "", True, "of its conversations have not ended"),
    ("waiting.put(self.meet(accepted))", "accepted.socket.close()", False, "got 0 of 1 answers"),
    (
        "waiting.put(self.meet(accepted))",
        "stream = self.meet(accepted); waiting.put(stream); waiting.put(stream)",
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
    ("self.hold(waiting.get())", "waiting.get(); waiting.get()", False, "without end"),
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
