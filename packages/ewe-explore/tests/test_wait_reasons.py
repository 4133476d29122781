"""What the explorer says about a wait without end: the line of the cause, and no cause that did not happen."""

from __future__ import annotations

from pathlib import Path

import pytest

from ewe_explore.program import ExploredProgram
from ewe_explore.report import explore

HEAD = "import threading\ndef scenario():\n"
START = "    for each in threads: each.start()\n    for each in threads: each.join()\n"


def why(path: Path, text: str) -> str:
    """Return the reasons for the failure of a scenario with this text."""
    path.write_text(text)
    result = explore(ExploredProgram(path, "scenario"), runs=200)
    assert result.story is not None, result.text()
    return " ".join(result.story.why)


def event_text(*threads: str) -> str:
    """Return a scenario in which each of these lines, calls of an event, is a thread: first, second and so on."""
    names = ("first", "second", "third")
    started = [
        f"threading.Thread(target=lambda: ({calls}), name={name!r})"
        for name, calls in zip(names, threads, strict=False)
    ]
    return f"{HEAD}    event = threading.Event()\n    threads = [{', '.join(started)}]\n{START}"


# The threads, what the explorer says, and what it does not say
EVENTS = [
    (["event.wait()"], "first waits for event [line 4], and no thread ever sets it", "clears"),
    (
        ["event.clear(), event.wait()", "event.set()"],
        "A lost set(): second sets event [line 4] before first",
        "",
    ),
    (
        ["event.set(), event.wait(), event.clear(), event.wait()"],
        "and no set() follows. first sets event [line 4] for the last time before this wait",
        "lost",
    ),
    (
        ["event.wait()", "event.set(), event.clear()"],
        "before second clears it [line 4]. Then first waits for event [line 4]. first has not seen this set()",
        "tests",
    ),
    (
        ["event.wait(), event.clear()", "event.wait(), event.clear()", "event.set()"],
        "use a condition",
        "must clear",
    ),
]


@pytest.mark.parametrize(("threads", "says", "never"), EVENTS, ids=[", ".join(row[0]) for row in EVENTS])
def test_a_wait_for_an_event(threads: list[str], says: str, never: str, tmp_path: Path) -> None:
    found = why(tmp_path / "event.py", event_text(*threads))
    assert says in found and not (never and never in found), found


# Each thread is a part of one program: a test and a wait on the condition, and a change, with or without a notify
CONDITION = """
import threading
def scenario():
    items, changed = [], threading.Condition()
    def get():
        with changed:
            while not items:
                changed.wait()
            return items.pop()
    def put():
        with changed:
            PUT
    threads = [threading.Thread(target=get, name=f"getter {number}") for number in GETTERS]
    threads.append(threading.Thread(target=put, name="putter"))
"""
# Each thread counts itself as idle before its wait, and reads the counter only to change it
IDLE = """
import threading
def scenario():
    items, state, changed = [], [], threading.Condition()
    class Pool:
        idle = 0
    pool = Pool()
    def get():
        with changed:
            pool.idle += 1
            while not items and not state:
                changed.wait()
            pool.idle -= 1
    def close():
        with changed:
            state.append("closed")
            changed.notify()
    threads = [threading.Thread(target=get, name=f"worker {number}") for number in (1, 2, 3)]
    threads.append(threading.Thread(target=close, name="closer"))
"""
SILENT = "A change without a notify: putter calls items.append(…)"
# The body of put(), the number of getters, what the explorer says, and what it does not say
CHANGES = [
    (
        "items.append(1)",
        1,
        f"{SILENT} → [1] [line 12] and does not notify condition, on which getter 1 waits",
        "",
    ),
    ("items.append(1); items.append(2); changed.notify()", 3, "every notify woke another thread", SILENT),
    ("changed.notify(); items.append(1)", 2, "every notify woke another thread", SILENT),
    ("items.append(1); changed.notify(); items.append(2)", 3, "every notify woke another thread", SILENT),
    ("changed.notify()", 1, "every notify", SILENT),
]


@pytest.mark.parametrize(("put", "getters", "says", "never"), CHANGES, ids=[row[0] for row in CHANGES])
def test_a_wait_on_a_condition(put: str, getters: int, says: str, never: str, tmp_path: Path) -> None:
    """An item that another getter takes out again is no change: the waiting getter would see what it has seen."""
    text = CONDITION.replace("PUT", put).replace("GETTERS", str(tuple(range(1, getters + 1)))) + START
    found = why(tmp_path / "condition.py", text)
    assert says in found and not (never and never in found), found


def test_a_counter_that_a_waiting_thread_changes_was_no_test(tmp_path: Path) -> None:
    found = why(tmp_path / "idle.py", IDLE + START)
    assert "every notify woke another thread" in found and "without a notify" not in found, found


def test_an_event_that_an_invariant_clears(tmp_path: Path) -> None:
    """The calls of an invariant are no steps, so no step clears the event."""
    text = (
        "import threading\nfrom ewe_explore import always\ndef scenario():\n    event = threading.Event()\n"
    )
    text += "    event.set(); always(lambda: event.clear() or True)\n"
    text += "    threads = [threading.Thread(target=event.wait, name='first')]\n"
    assert "first waits for event" in why(tmp_path / "invariant.py", text + START)


LAZY = """
import threading
class Registry:
    instance = None
    lock = threading.Lock()
    def __init__(self):
        self.ready = False
    @classmethod
    def get(cls):
        if cls.instance is None:
            with cls.lock:
                if cls.instance is None:
                    cls.instance = cls()
                    cls.instance.ready = True
        return cls.instance
def scenario():
    def work():
        assert Registry.get().ready
    threads = [threading.Thread(target=work, name=name) for name in ("first", "second")]
"""


def test_an_object_that_a_thread_publishes_before_it_is_complete(tmp_path: Path) -> None:
    found = why(tmp_path / "lazy.py", LAZY + START)
    assert "first is stopped before it reads cls.instance [line 14], and second goes on." in found, found
    assert "first writes cls.instance [line 13] before the switch, and has not gone on since" in found, found


def test_threads_that_wait_for_one_reason_share_its_sentence(tmp_path: Path) -> None:
    """Also work 1, whose name is the begin of that of work 12, which the sentence names."""
    text = (
        "import queue, threading\nitems = queue.Queue()\n"
        "def work(number):\n    if number == 12:\n        items.put(0)\n    items.get()\n"
        "def scenario():\n    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 13)]\n"
    )
    reasons = why(tmp_path / "work.py", text + START)
    assert reasons.count("work 12 put an item into it last [line 5]") == 1, reasons
    assert "work 2, work 3, work 4 and 7 other threads wait for the same reason" in reasons


def test_a_holder_that_leaves_without_a_release_because_of_a_switch(tmp_path: Path) -> None:
    text = """
import threading
def scenario():
    class Readers:
        count = 0
    readers, writing = Readers(), threading.Lock()
    def read():
        readers.count += 1
        if readers.count == 1:
            writing.acquire()
        readers.count -= 1
        if readers.count == 0:
            writing.release()
    threads = [threading.Thread(target=read, name=name) for name in ("first", "second")]
"""
    found = why(tmp_path / "readers.py", text + START)
    assert "has ended without a release" in found and "The failure depends on this switch" in found, found
