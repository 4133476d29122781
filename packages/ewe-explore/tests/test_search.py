"""What the explorer sees, how small its schedules are, and what it says."""

from __future__ import annotations

import math
import multiprocessing
import re
import shlex
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.server import wait_until

from ewe_explore import RaceFound, always, explore, report, shrink
from ewe_explore.cli import main
from ewe_explore.explain import Story, TimelineEvent
from ewe_explore.names import name_of
from ewe_explore.page import split_name
from ewe_explore.points import MODULE_NAMES, SOURCE_POINTS
from ewe_explore.primitives import Condition
from ewe_explore.program import ExploredProgram, scenarios
from ewe_explore.report import read_schedule, replay, schedule_text, smallest
from ewe_explore.scheduler import (
    SAMPLES_DIRECTORY,
    Deviation,
    Options,
    ProgramError,
    Run,
    Schedule,
    last_decision,
)
from ewe_explore.search import FailingSchedule, Replay, Search, failure_of
from ewe_explore.shrink import Shrinker
from ewe_explore.timeline import GUTTER_CHARS, timeline

# Accesses that are two steps: a read, then a write. Two threads call work(), and `value()` must be 2.
LOST = {
    "attribute": "class Box: n = 0\nbox = Box()\ndef work(): box.n += 1\ndef value(): return box.n",
    "class": "class Box: n = 0\ndef work(): Box.n += 1\ndef value(): return Box.n",
    "item": "t = {'n': 0}\ndef work(): t['n'] += 1\ndef value(): return t['n']",
    "global": "n = 0\ndef work():\n    global n\n    n += 1\ndef value(): return n",
    "nonlocal": "def make():\n    n = 0\n    def work():\n        nonlocal n\n        n += 1\n"
    "    return work, lambda: n\nwork, value = make()",
    "two lines": "t = [0]\ndef work():\n    old = t[0]\n    t[0] = old + 1\ndef value(): return t[0]",
    "get and set": "t = {}\ndef work(): t['n'] = t.get('n', 0) + 1\ndef value(): return t['n']",
    "length": "t = []\ndef work(): t.append(len(t))\ndef value(): return t[-1] + 1",
    "attribute of a thread": "import threading\nbox = threading.Thread()\nbox.n = 0\ndef work(): box.n += 1\n"
    "def value(): return box.n",
    "subclass of Thread": "import threading\nclass Box(threading.Thread): n = 0\nbox = Box()\n"
    "def work(): box.n += 1\ndef value(): return box.n",
    "name of a method": "import threading\nclass Box(threading.Thread): step = 0\nbox = Box()\n"
    "def work(): box.step += 1\ndef value(): return box.step",
    "argument": "class Box: n = 0\nbox = Box()\ndef work(): box.n = max(box.n + 1, 0)\ndef value(): return box.n",
    "while": "t = [1, 2]\nout = []\ndef work():\n    if t:\n        out.append(t[0])\n        del t[0]\n"
    "def value(): return len(set(out))",
    "in": "t = set()\nout = []\ndef work():\n    if 'a' not in t:\n        t.add('a')\n        out.append(1)\n"
    "def value(): return 3 - len(out)",
}
TWO = """
import threading
def scenario():
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value() == 2
"""


def program(path: Path, text: str, options: Options | None = None) -> ExploredProgram:
    path.write_text(text)
    return ExploredProgram(path, "scenario", options)


@pytest.mark.parametrize("name", LOST)
def test_a_switch_is_possible_within(name: str, tmp_path: Path) -> None:
    result = explore(program(tmp_path / "lost.py", LOST[name] + "\n" + TWO), runs=60)
    assert result.failure is not None, result.text()
    assert len(result.failure.schedule) == 1


@pytest.mark.parametrize("name", LOST)
def test_a_lock_around_it_is_enough(name: str, tmp_path: Path) -> None:
    locked = (
        TWO.replace("target=work", "target=locked")
        + "lock = threading.Lock()\ndef locked():\n    with lock: work()\n"
    )
    result = explore(program(tmp_path / "locked.py", LOST[name] + "\n" + locked), runs=60)
    assert result.failure is None, result.text()


@pytest.mark.parametrize(
    "name", ["count", "forks", "lost_wakeup", "closed_twice", "forks_three", "buffer_if"]
)
def test_no_smaller_schedule_fails(name: str) -> None:
    """Without the search and its heuristics: every schedule with fewer deviations passes, wherever it deviates."""
    explored = ExploredProgram(Path(SAMPLES_DIRECTORY, f"{name}.py"), "scenario")
    result = explore(explored, seed=9, runs=400)
    assert result.failure is not None and result.failure.complete
    waiting: list[Schedule] = [()]
    tried = 0
    while waiting:
        schedule = waiting.pop()
        if len(schedule) >= len(result.failure.schedule):
            continue
        run = Run(Replay(schedule), explored.options)
        explored.start(run)
        tried += 1
        assert run.problem is None, schedule
        for index in range(last_decision(schedule) + 1, len(run.branches)):
            branch = run.branches[index]
            waiting += [
                (*schedule, Deviation(index, lane)) for lane in branch.lanes if lane != branch.default
            ]
    assert tried >= 1
    for location in range(len(result.failure.schedule)):
        shorter = result.failure.schedule[:location] + result.failure.schedule[location + 1 :]
        assert replay(explored, shorter).failure is None


def test_a_file_that_is_explored_again_adds_no_points(tmp_path: Path) -> None:
    """A notebook explores one file many times. A file that has changed has other points."""
    path = tmp_path / "again.py"
    text = f"n = 0\ndef work():\n    global n\n    n += 1\ndef value(): return n\n{TWO}"
    texts, sizes = [], []
    for source in (text, text, text + "x = n\n"):
        texts.append(explore(program(path, source), runs=60).text())
        sizes.append(len(SOURCE_POINTS))
    assert "A lost update" in texts[0] and texts[0] == texts[1]
    assert sizes[0] == sizes[1] < sizes[2]
    assert all(variable.frame is None for variable in MODULE_NAMES[str(path)].variables.values())


def test_a_smaller_schedule_that_fails_in_another_way_is_told(tmp_path: Path) -> None:
    """Two lost updates need two switches. One lost update, which another line finds, needs one."""
    text = (
        "import threading\na, b = [0], [0]\ndef work():\n    a[0] += 1\n    b[0] += 1\ndef scenario():\n"
        "    threads = [threading.Thread(target=work) for _ in range(2)]\n"
        "    for thread in threads:\n        thread.start()\n"
        "    for thread in threads:\n        thread.join()\n"
        "    assert a[0] + b[0] > 2\n    assert a[0] + b[0] == 4\n"
    )
    search = Search(program(tmp_path / "two.py", text).start, Options(), seed=1)
    found: dict[str, FailingSchedule] = {}
    for number in range(
        200
    ):  # first in the order of the search, which shows the shared objects, then at random
        run = search.attempt() if number < 20 else search.run_with_priorities()
        if run is not None and run.problem is not None:
            found.setdefault("two" if "> 2" in run.problem.headline else "one", failure_of(run))
    lost_two = Shrinker(search, found["two"]).shrink()
    assert (len(lost_two.schedule), lost_two.complete, lost_two.others) == (2, True, True)
    assert smallest(lost_two).endswith(" in this way")
    lost_one = Shrinker(search, found["one"]).shrink()
    assert (len(lost_one.schedule), lost_one.complete, lost_one.others) == (1, True, False)


# Ends of a run: the text of scenario(), the kind of problem (None: it passes), what the headline says
ENDS = [
    ("lock = threading.Lock(); lock.acquire(); lock.acquire()", "deadlock", "main waits without end"),
    ("threading.Thread(target=queue.Queue().get).start()", "deadlock", "the program cannot end: get 1"),
    ("threading.Thread(target=queue.Queue().get, daemon=True).start()", None, ""),
    ("threading.Thread(target=lambda: 1 / 0).start()", "exception", "dies of ZeroDivisionError"),
    (
        "class Wrong(Exception):\n        def __str__(self): return 1 / 0\n    raise Wrong",
        "exception",
        "dies of Wrong: (its text cannot be made)",
    ),
    ("threading.Thread(target=sys.exit, args=(3,)).start()", None, ""),
    ("assert [] == [1]", "assertion", "`assert [] == [1]` does not hold"),
    ("while True: time.sleep(1)", "steps", "has not ended after 500 steps"),
    ("time.sleep(1e9); assert time.monotonic() == 1e9", None, ""),
    (
        "done = []; threading.Thread(target=done.append, args=(1,)).start()\n    while not done: pass",
        None,
        "",
    ),
    # Each second step is a print(), which is no decision. The loop must lose its turn at the step after it
    (
        "done = []; threading.Thread(target=done.append, args=(1,)).start()\n    while not done: print('waits')",
        None,
        "",
    ),
    ("os.fork()", "exception", "os.fork() cannot be explored"),
    ("import os.path; os.fork()", "exception", "os.fork() cannot be explored"),
    ("import os.path as path; assert path.join('a', 'b') == 'a/b'", None, ""),
    ("input()", "exception", "input() cannot be explored"),
    ("always(lambda: False); time.sleep(1); queue.Queue().qsize()", "invariant", "is broken"),
    ("always(lambda: True); queue.Queue().qsize()", None, ""),
    (
        "c = threading.Condition(); always(lambda: c.acquire() and c.wait(1))\n    with c: time.sleep(1)",
        "invariant",
        "an invariant cannot wait",
    ),
    ("box = []; always(lambda: not box); box.append(1)", "invariant", "after a step of main"),
    ("t = threading.Thread(target=int); t.start(); assert t.is_alive()", "assertion", "does not hold"),
    (
        "b = threading.Barrier(2); threading.Thread(target=b.wait).start()\n"
        "    early = b.n_waiting; b.wait()\n    assert early == 0",
        "assertion",
        "`assert early == 0` does not hold",
    ),
    (
        "one, _ = socket.socketpair(); threading.Thread(target=one.recv, args=(1,)).start()\n"
        "    time.sleep(1); one.close()",
        "deadlock",
        "the program cannot end: recv 1",
    ),
    ("q = queue.Queue(); q.put(1); q.get(); q.shutdown(immediate=True); q.task_done(); q.join()", None, ""),
    ("q = queue.Queue(); q.put(1); q.get(); q.shutdown(immediate=True); q.join()", "deadlock", "main waits"),
]


@pytest.mark.parametrize(("text", "kind", "headline"), ENDS, ids=[row[0] for row in ENDS])
def test_the_end_of_a_run(text: str, kind: str | None, headline: str, tmp_path: Path) -> None:
    imports = "import os, queue, socket, sys, threading, time\nfrom ewe_explore import always\n"
    source = f"{imports}def scenario():\n    {text}\n"
    result = explore(program(tmp_path / "ends.py", source, Options(max_steps=500)), runs=5)
    if kind is None:
        assert result.failure is None, result.text()
    else:
        assert result.failure is not None
        assert result.failure.problem.kind == kind
        assert headline in result.failure.problem.headline


@pytest.mark.takes_time
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import asyncio; asyncio.run(asyncio.sleep(3))", r"main blocks at stuck\.py:2 \(in .*select"),
        ("n = 0\n    while True: n += 1", r"main computes at stuck\.py:3.*does this loop end"),
    ],
)
def test_a_lane_that_leaves_the_scheduler_is_reported(text: str, says: str, tmp_path: Path) -> None:
    explored = program(tmp_path / "stuck.py", f"def scenario():\n    {text}\n", Options(stall_s=0.3))
    threads = len(sys._current_frames())
    with pytest.raises(ProgramError) as caught:
        explore(explored, runs=3)
    wait_until(lambda: len(sys._current_frames()) <= threads, 30)  # it is ended as soon as it can be
    assert re.search(says, str(caught.value)) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [("queue.Queue().mutex.acquire()", "Queue.mutex"), ("one.sendto(b'', ())", "Socket.sendto")],
)
def test_an_attribute_that_a_stand_in_lacks_is_no_failure(text: str, name: str, tmp_path: Path) -> None:
    """The program would work with the standard library, so the report may not say that it fails."""
    source = f"import queue, socket\none, _ = socket.socketpair()\ndef scenario():\n    {text}\n"
    with pytest.raises(ProgramError, match=rf"^lacks\.py:4: the explorer has no {name}; leave it out$"):
        explore(program(tmp_path / "lacks.py", source), runs=1)


def test_the_threads_of_an_interrupted_run_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook goes on after Ctrl-C, and a busy wait would use a processor without end."""
    text = "import threading\nbox = [0]\ndef scenario():\n    threading.Thread(target=len, args=(box,)).start()\n"
    text += "    while not box[0]: pass\n"
    explored = program(tmp_path / "busy.py", text, Options(max_steps=10**9))

    def interrupt(run: Run) -> None:
        wait_until(lambda: len(run.steps) > 10, 10)
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "wait_for_end", interrupt)
    run = Run(Replay(()), explored.options)
    with pytest.raises(KeyboardInterrupt):
        explored.start(run)
    assert [lane.has_ended for lane in run.lanes] == [True, True]


@pytest.mark.parametrize(
    "value", ["Counter()", "{1: box}", "10**5000", "[10**5000]", "{}.fromkeys((1, 2), 3)"]
)
def test_the_value_of_a_variable_changes_no_run(value: str, tmp_path: Path) -> None:
    """The timeline shows it. Its class may have the name of a container, or a __repr__() that makes steps."""
    text = (
        "import threading\nclass Counter: pass\nclass Box:\n    n = 0\n    def __repr__(self): return f'{self.n}'\n"
        f"box = Box()\ndef work():\n    box.value = {value}\n    box.n += 1\ndef value(): return box.n\n"
    )
    result = explore(program(tmp_path / "value.py", text + TWO), runs=60)
    assert result.failure is not None and "value() == 2" in result.failure.problem.headline, result.text()
    assert result.story is not None and "A lost update" in result.story.why[0]
    assert "writes box.value" in result.text()


CONDITION = """
import threading
def scenario():
    ready, box = threading.Condition(), []
    def work():
        with ready:
            IF not box:
                ready.wait()
            assert box
    thread = threading.Thread(target=work)
    thread.start()
    with ready:
        box.append(1)
        ready.notify()
    thread.join()
"""


LOCKED_INVARIANT = """
import threading
from ewe_explore import always
def scenario():
    guard, box = threading.GUARD(), {"a": 0, "b": 0}
    def equal():
        with guard:
            return box["a"] == box["b"]
    def work():
        with HELD:
            box["a"] += 1
            box["b"] += 1
    always(equal)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert box == {"a": 2, "b": 2}
"""


@pytest.mark.parametrize("guard", ["Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore"])
def test_an_invariant_may_hold_a_lock(guard: str, tmp_path: Path) -> None:
    """It is not checked while a thread holds the lock, and it neither takes nor frees the lock of a thread."""
    text = LOCKED_INVARIANT.replace("GUARD", guard)
    right = explore(program(tmp_path / "right.py", text.replace("HELD", "guard")), runs=100)
    assert right.failure is None, right.text()
    wrong = explore(program(tmp_path / "wrong.py", text.replace("HELD", "threading.Lock()")), runs=100)
    assert wrong.failure is not None and wrong.failure.problem.kind == "invariant", wrong.text()


def test_spurious_wakeups_are_an_option(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    text = CONDITION.replace("IF", "if")
    assert explore(program(wrong, text), runs=100).failure is None
    result = explore(program(wrong, text, Options(spurious=True)), runs=100)
    assert result.failure is not None and "--spurious" in result.command()
    right = program(tmp_path / "right.py", CONDITION.replace("IF", "while"), Options(spurious=True))
    assert explore(right, runs=100).failure is None


def test_early_timeouts_are_an_option(tmp_path: Path) -> None:
    text = (
        "import queue, threading\ndef scenario():\n    q = queue.Queue()\n"
        "    threading.Thread(target=q.put, args=(1,)).start()\n    q.get(timeout=5)\n"
    )
    path = tmp_path / "early.py"
    assert explore(program(path, text), runs=50).failure is None
    result = explore(program(path, text, Options(early_timeouts=True)), runs=50)
    assert result.failure is not None and result.failure.problem.exception == "Empty"


def test_check_gets_the_result_after_the_last_thread(tmp_path: Path) -> None:
    text = (
        "import threading, time\ndef scenario():\n    out = []\n"
        "    def work():\n        time.sleep(9)\n        out.append(1)\n"
        "    threading.Thread(target=work).start()\n    return out\n"
        "def check(out):\n    assert out == [EXPECTED]\n"
    )
    assert explore(program(tmp_path / "a.py", text.replace("EXPECTED", "1")), runs=9).failure is None
    assert explore(program(tmp_path / "b.py", text.replace("EXPECTED", "2")), runs=9).failure is not None


# For tests: a scenario of this file


def scenario_that_races() -> None:
    import threading

    box = {"n": 0}

    def work() -> None:
        box["n"] += 1

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert box["n"] == 2


def test_explore_takes_a_function() -> None:
    with pytest.raises(RaceFound, match="A lost update"):
        explore(scenario_that_races, runs=50).check()
    with pytest.raises(ProgramError, match="define the scenario at the top of a file"):
        explore(lambda: None)


def test_always_outside_of_an_exploration() -> None:
    always(lambda: True)
    with pytest.raises(AssertionError, match="the invariant is broken"):
        always(lambda: False)


def test_a_condition_outside_of_an_exploration_waits_for_nothing() -> None:
    condition = Condition()
    with condition:
        assert condition.wait() and condition.wait_for(iter([0]).__next__, timeout=1) == 0


def test_schedules_are_written_and_read() -> None:
    for schedule in ((), (Deviation(17, 2),), (Deviation(3, 1), Deviation(31, 0))):
        assert read_schedule(schedule_text(schedule)) == schedule
    for wrong in ("3", "3:", "a:1", "3:1;4:1", "-3:1", "٣:1"):
        with pytest.raises(ValueError, match="is not a part of a schedule"):
            read_schedule(wrong)


READS = (
    "len({0})", "[x for x in {0}]", "sum(x for x in {0})", "[*{0}]", "(lambda *all: all)(*{0})", "{0} == []",
    "{0} + [2]", "str({0})", "f'{{{0}}}'", "bool({0})", "not {0}", "list(zip({0}))", "list(map(str, {0}))",
    "{{x: 1 for x in {0}}}", "1 in {0}", "{0}[:]", "[].extend({0}) or len({0})", "set().union({0})", "sorted({0})",
)  # fmt: skip


@pytest.mark.parametrize("read", READS)
def test_each_way_to_read_a_container_is_a_step(tmp_path: Path, read: str) -> None:
    """A thread that reads two lists sees them between the two changes of another thread."""
    text = (
        "import threading\ndef scenario():\n    a, b, seen = [], [], []\n"
        "    def write():\n        a.append(1)\n        b.append(1)\n"
        f"    def read():\n        seen.append(({read.format('a')}, {read.format('b')}))\n"
        "    threads = [threading.Thread(target=each) for each in (write, read)]\n"
        "    for thread in threads:\n        thread.start()\n"
        "    for thread in threads:\n        thread.join()\n"
        "    first, second = seen[0]\n    assert first == second\n"
    )
    result = explore(program(tmp_path / "read.py", text), runs=60)
    assert result.failure is not None and "first == second" in result.failure.problem.headline


# Each needs the number of items. Another thread removes an item and reduces the number, under a lock.
INDEXED = (
    "items[box.count - 1]", "items[box.count - 1] = 3", "del items[box.count - 1]", "table[box.count] += 1",
    "assert items[box.count - 1:]", "assert items[:: -(n := box.count)] == [n]", "items[(lambda: box.count)() - 1]",
    "items[number - 1]", "seen.append(number); assert seen != [0, 2]",
)  # fmt: skip


@pytest.mark.parametrize("use", INDEXED)
def test_another_thread_may_run_between_an_index_and_its_use(tmp_path: Path, use: str) -> None:
    text = (
        "import threading\nclass Box:\n    count = 2\nbox, lock = Box(), threading.Lock()\n"
        "number, items, table, seen = 2, [1, 2], {1: 0, 2: 0}, []\n"
        "def pop():\n    global number\n    with lock:\n"
        "        box.count -= 1\n        number -= 1\n        items.pop()\n        table.popitem()\n"
        "        seen.append(0)\n"
        f"def use():\n    {use}\n"
        "def scenario():\n    threads = [threading.Thread(target=each) for each in (use, pop)]\n"
        "    for thread in threads:\n        thread.start()\n"
        "    for thread in threads:\n        thread.join()\n"
    )
    result = explore(program(tmp_path / "index.py", text), runs=60)
    assert result.failure is not None and len(result.failure.schedule) == 1, result.text()


# Each reads a value and then changes or reads a container. The other thread does the same, and the values differ.
ARGUMENTS = {
    "keyword": "t.update(n=t['n'] + 1)",
    "value and keyword": "t.update({}, n=t['n'] + 1)",
    "two stars": "t.update(**{'n': t['n'] + 1})",
    "star": "t.update(*[{'n': t['n'] + 1}])",
    "dictionary that is unpacked": "t.update(**{'n': 0, **t} | {'n': t['n'] + 1})",
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_another_thread_may_run_between_the_arguments_and_the_call(name: str, tmp_path: Path) -> None:
    text = f"t = {{'n': 0}}\ndef work(): {ARGUMENTS[name]}\n"
    result = explore(program(tmp_path / "arguments.py", text + "def value(): return t['n']\n" + TWO), runs=60)
    assert result.failure is not None and len(result.failure.schedule) == 1, result.text()


@pytest.mark.parametrize(
    "read", ["sum(items, box.start)", "sum(items, start=box.start)", "sum(items + [box.start])"]
)
def test_a_function_reads_a_container_after_its_last_argument(read: str, tmp_path: Path) -> None:
    """Only a switch between the read of the start and the call gives the old start and the new list: 10."""
    text = (
        "import threading\nclass Box: start = 0\nbox, items = Box(), [0]\n"
        "def write():\n    box.start = 1\n    items[0] = 10\n"
        f"def read():\n    assert {read} != 10\n"
        "def scenario():\n    threads = [threading.Thread(target=each) for each in (read, write)]\n"
        "    for thread in threads:\n        thread.start()\n"
        "    for thread in threads:\n        thread.join()\n"
    )
    result = explore(program(tmp_path / "sum.py", text), runs=60)
    assert result.failure is not None and "!= 10" in result.failure.problem.headline, result.text()


def test_a_comparison_reads_its_left_container_after_the_right_one(tmp_path: Path) -> None:
    text = (
        "import threading\nclass Box: start = 0\nbox, items = Box(), [1]\n"
        "def write():\n    box.start = 2\n    items[0] = 0\n"
        "def read():\n    assert items != [box.start]\n"
    )
    both = "def scenario():\n    for each in (read, write): threading.Thread(target=each).start()\n"
    result = explore(program(tmp_path / "compare.py", text + both), runs=60)
    assert result.failure is not None and "items !=" in result.failure.problem.headline, result.text()


@pytest.mark.parametrize("change", ["{0}.append(1)", "new = {0}; new += [1]"])
def test_an_augmented_assignment_reads_and_changes_a_container(change: str, tmp_path: Path) -> None:
    text = (
        "import threading\na, b = [], []\n"
        f"def write():\n    {change.format('a')}\n    {change.format('b')}\n"
        "def read():\n    first, second = [], []\n    first += a\n    second += b\n    assert first == second\n"
        "def scenario():\n    threads = [threading.Thread(target=each) for each in (read, write)]\n"
        "    for thread in threads:\n        thread.start()\n"
        "    for thread in threads:\n        thread.join()\n"
    )
    result = explore(program(tmp_path / "augmented.py", text), runs=60)
    assert result.failure is not None and "first == second" in result.failure.problem.headline, result.text()


def test_a_race_on_a_variable_of_a_module_is_found(tmp_path: Path) -> None:
    (tmp_path / "counts.py").write_text("number = 0\n")
    text = (
        "import threading\nimport counts\ndef work():\n    counts.number += 1\ndef scenario():\n"
        "    threads = [threading.Thread(target=work) for _ in range(2)]\n"
        "    for thread in threads:\n        thread.start()\n"
        "    for thread in threads:\n        thread.join()\n    assert counts.number == 2\n"
    )
    result = explore(program(tmp_path / "module.py", text), runs=50)
    assert result.story is not None and any("lost update" in why for why in result.story.why)
    assert "counts.number" in result.text(100)


# Each tests the length of a list, and then changes the list by a function of the library.
MISSED = {
    "heappop": "out.extend([heapq.heappop(heap)] if len(heap) > 1 else [])",
    "heappush": "heapq.heappush(heap, len(heap) + 1)",
    "insort": "bisect.insort(heap, len(heap) + 1)",
}


@pytest.mark.parametrize("name", MISSED)
def test_a_function_of_the_library_that_changes_a_container_is_a_step(tmp_path: Path, name: str) -> None:
    text = (
        f"import bisect, heapq, threading\nheap, out = [1, 2], []\ndef work():\n    {MISSED[name]}\n"
        "def scenario():\n    threads = [threading.Thread(target=work) for _ in range(2)]\n"
        "    for thread in threads:\n        thread.start()\n"
        "    for thread in threads:\n        thread.join()\n"
        "    assert out == [1] or heap == [1, 2, 3, 4]\n"
    )
    result = explore(program(tmp_path / "library.py", text), runs=60)
    assert result.failure is not None and len(result.failure.schedule) == 1, result.text()


def test_a_change_without_a_point_hides_no_step(tmp_path: Path) -> None:
    """The arguments of heappush() change an attribute of a Timer: the step of heappush() is recorded after that."""
    text = (
        "import heapq, threading\nheap, timer = [1, 2], threading.Timer(1, print)\n"
        "def size():\n    timer.interval += 1\n    return len(heap)\n"
        "def work():\n    heapq.heappush(heap, size() + 1)\n"
        "def scenario():\n    threads = [threading.Thread(target=work) for _ in range(2)]\n"
        "    for thread in threads:\n        thread.start()\n"
        "    for thread in threads:\n        thread.join()\n    assert sorted(heap) == [1, 2, 3, 4]\n"
    )
    result = explore(program(tmp_path / "hidden.py", text), runs=60)
    assert result.failure is not None and len(result.failure.schedule) == 1, result.text()


QUEUE = """
import queue, threading
class Counted(queue.Queue):
    def _init(self, maxsize):
        self.items, self.total = [], 0
    def _qsize(self):
        return len(self.items)
    def _put(self, item):
        self.total += 1
        self.items.append(item)
    def _get(self):
        return self.items.pop()
def scenario():
    counted, seen = Counted(), []
    threads = [threading.Thread(target=counted.put, args=(n,)) for n in (1, 2)]
    threads.append(threading.Thread(target=lambda: seen.append(counted.get() + counted.get())))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted.total == 2 and seen == [3]
"""


def test_a_method_that_a_queue_calls_under_its_lock_is_one_step(tmp_path: Path) -> None:
    result = explore(program(tmp_path / "counted.py", QUEUE), runs=60)
    assert result.failure is None, result.text()


CLOSED_LISTENER = """
import socket, threading
def scenario():
    server = socket.create_server(("127.0.0.1", 0))
    def accept():
        try:
            server.accept()
        except OSError:
            pass
    threading.Thread(target=accept, daemon=True).start()
    socket.create_connection(server.getsockname())
    server.close()
"""
CLOSED_IN_SELECT = """
import select, socket, threading
def scenario():
    one, other = socket.socketpair()
    def wait():
        try:
            select.select([one], [], [])
        except ValueError:
            pass
    threading.Thread(target=wait, daemon=True).start()
    one.close()
    other.close()
"""


@pytest.mark.parametrize("text", [CLOSED_LISTENER, CLOSED_IN_SELECT], ids=["accept", "select"])
def test_a_socket_may_be_closed_while_another_thread_waits(tmp_path: Path, text: str) -> None:
    result = explore(program(tmp_path / "closed.py", text), runs=100)
    assert result.failure is None, result.text()


FULL_BACKLOG = """
import socket, threading
def scenario():
    server = socket.create_server(("127.0.0.1", 0), backlog=1)
    address = server.getsockname()
    first = [socket.create_connection(address) for _ in range(2)]
    def connect():
        try:
            socket.create_connection(address)
        except ConnectionRefusedError:
            return
        raise AssertionError("connected to a socket that accepts no more")
    thread = threading.Thread(target=connect)
    thread.start()
    server.END
    thread.join()
"""


@pytest.mark.parametrize("end", ["close()", "shutdown(socket.SHUT_RDWR)"])
def test_a_connection_that_waits_for_room_is_refused_when_the_listener_ends(tmp_path: Path, end: str) -> None:
    result = explore(program(tmp_path / "full.py", FULL_BACKLOG.replace("END", end)), runs=100)
    assert result.failure is None, result.text()


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("self.lock = Lock()", "lock"),
        ("    locks = [Lock() for _ in range(2)]", "lock"),
        ('"lock": Lock(),', "lock"),
        ("return Lock()", ""),
        ("else: lock = Lock()", ""),
        ("    try: lock = Lock()", ""),
    ],
)
def test_a_lock_has_a_name_of_its_line_and_no_keyword(line: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "locks.py").write_text(line + "\n")
    assert name_of(str(tmp_path / "locks.py"), 1) == name


def test_a_changed_file_is_shown_as_it_is_now(tmp_path: Path) -> None:
    text = "import threading\ndef scenario():\n    NAME = threading.Lock()\n    with NAME, NAME: pass\n"
    for name in ("first", "the_second"):
        result = explore(program(tmp_path / "changed.py", text.replace("NAME", name)), runs=2)
        assert result.failure is not None and name in result.text()


def test_a_proof_stores_so_many_untried_schedules_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrink, "MAX_UNTRIED_SCHEDULES", 0)
    result = explore(ExploredProgram(Path(SAMPLES_DIRECTORY, "forks_three.py"), "scenario"), runs=400)
    assert result.failure is not None and not result.failure.complete


def test_the_rows_of_a_narrow_terminal_have_one_number_and_straight_lanes() -> None:
    """A wait has a sign that takes two columns of a terminal, and a long stop has several rows."""
    events = [
        TimelineEvent("stop", 0, "is stopped before it calls self.letters.append(letter)", line=12, other=1),
        TimelineEvent("wait", 0, "waits for arrived", line=18),
        TimelineEvent("step", 0, "acquires arrived", line=19),
        TimelineEvent("step", 1, "ends", line=20),
    ]
    drawn = timeline(Story(["main", "线程"], events, "", [], [], "deadlock"), 50).splitlines()
    assert [line[:6].strip() for line in drawn[2:]] == ["12", "", "18", "19", "20"]
    waits, acquires = drawn[4:6]
    assert waits.index("│") + 1 == acquires.index("│")


@pytest.mark.parametrize("letter", ["a", "中", "中文", "e\N{COMBINING ACUTE ACCENT}", "⏳"])
def test_a_long_text_of_any_script_keeps_its_lane_straight(letter: str) -> None:
    """By columns of a terminal, not by characters: a Chinese character takes two, and an accent none."""
    names = ["main", "work 1"]
    long = [TimelineEvent("step", 0, f"prints {letter * 30} {letter * 9}", line=18)]
    short = [TimelineEvent("step", 0, "ends", line=19), TimelineEvent("step", 1, "ends", line=20)]
    rows = timeline(Story(names, [*long, *short], "", [], [], "deadlock"), 50).splitlines()[2:-1]
    before = [row[: row.index("│")] for row in rows]
    wide = [sum(map(text.count, "中文⏳")) - text.count("\N{COMBINING ACUTE ACCENT}") for text in before]
    assert {len(text) + more for text, more in zip(before, wide, strict=True)} == {GUTTER_CHARS + 22}
    assert "".join(row[GUTTER_CHARS:].replace("│", "").replace(" ", "") for row in rows) == (
        f"prints{letter * 39}ends"
    )


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("def scenario(pool): pass", "scenario() has parameters, for which the explorer has no values"),
        ("def scenario_stop(*, pool): pass", "scenario_stop() has parameters, for which"),
        ("async def scenario(): pass", "scenario() is a coroutine function: write a scenario with `def`"),
    ],
)
def test_a_scenario_that_cannot_be_called_is_not_left_out(function: str, says: str, tmp_path: Path) -> None:
    """Without it, the report would say that the file passes, and starts no thread."""
    path = tmp_path / "wrong.py"
    path.write_text(f"import threading\n{function}\n")
    with pytest.raises(ProgramError, match=re.escape(f"{path}:2: {says}")):
        scenarios(path)
    path.write_text(f"{function}\ndef scenario_two(workers=2, *more, name='x'): pass\n")
    assert scenarios(path) == ["scenario_two"]


@pytest.mark.parametrize(
    "start",
    [
        "threading.Thread(target=work).start()",
        "threading.Timer(1, work).start()",
        "_thread.start_new_thread(work, ())",
        "threading.Thread(target=5).start()",
    ],
)
def test_a_thread_whose_function_cannot_be_called_is_told_with_its_line(start: str, tmp_path: Path) -> None:
    text = "import _thread, threading, time\ndef work(number): pass\n"
    text += f"def scenario():\n    {start}\n    time.sleep(2)\n"
    result = explore(program(tmp_path / "called.py", text), runs=5)
    assert (
        result.failure is not None and result.failure.complete
    )  # no schedule is smaller than the default one
    assert "dies of TypeError: " in result.failure.problem.headline
    assert result.failure.problem.headline.endswith("; it is started at called.py:4")


@pytest.mark.parametrize(
    "now", ["datetime.now()", "datetime.today()", "datetime.now(UTC)", "datetime.utcnow()"]
)
def test_a_date_is_of_the_clock_of_the_explorer(now: str, tmp_path: Path) -> None:
    """A loop until a moment would wait for the real clock, and end by its number of steps."""
    text = (
        "import pickle, threading, time\nfrom datetime import UTC, datetime, timedelta\ndef work():\n"
        f"    end = {now} + timedelta(hours=1)\n    while {now} < end: time.sleep(600)\n"
        "def scenario():\n    threads = [threading.Thread(target=work) for _ in range(2)]\n"
        "    for thread in threads: thread.start()\n    for thread in threads: thread.join()\n"
        "    assert abs(datetime.now().timestamp() - time.time()) < 1e-3\n"
        "    assert repr(datetime(2026, 1, 2)) == 'datetime.datetime(2026, 1, 2, 0, 0)'\n"
        "    copied = pickle.loads(pickle.dumps(datetime(2026, 1, 2)))\n"
        "    assert copied == datetime(2026, 1, 2) and isinstance(copied, datetime)\n"
    )
    result = explore(program(tmp_path / "date.py", text), runs=5)
    assert result.failure is None, result.text()


PROCESSES = [
    "m.Process().start()",
    "functools.partial(m.Process().start)()",
    "m.get_context('spawn').Process().start()",
    "m.Pool(1)",
    "ProcessPoolExecutor(1).submit(int)",
    "OwnExecutor(1).submit(int)",
    "OwnProcess().start()",
    "SyncManager().__enter__()",
    "with SyncManager(): pass",
    "m.Manager()",
]
THREADS = [
    "import multiprocessing.dummy as d; d.Pool(1)",
    "import multiprocessing.dummy as d; d.Process().start()",
    "with ThreadPool(1) as pool: pool.map(str, [1])",
]


@pytest.mark.needs("/dev/shm")  # the semaphores of multiprocessing
@pytest.mark.parametrize(
    ("text", "kind"),
    [*((each, "process") for each in PROCESSES), *((each, "thread") for each in THREADS)],
)
def test_a_process_or_thread_that_the_scheduler_does_not_control_is_refused(
    text: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if no call of the program names it: by a class of the program, by `with`, and in another thread."""
    monkeypatch.delitem(sys.modules, "multiprocessing.dummy", raising=False)  # ThreadPool() imports it
    source = (
        "import functools, threading, multiprocessing as m\n"
        "from concurrent.futures import ProcessPoolExecutor\nfrom multiprocessing.managers import SyncManager\n"
        "from multiprocessing.pool import ThreadPool\nclass OwnExecutor(ProcessPoolExecutor): pass\n"
        f"class OwnProcess(m.Process): pass\ndef work():\n    {text}\n"
        "def scenario():\n    thread = threading.Thread(target=work)\n    thread.start()\n    thread.join()\n"
    )
    result = explore(program(tmp_path / "processes.py", source), runs=5)
    assert result.failure is not None, result.text()
    assert f"a {kind} of multiprocessing cannot be explored" in result.failure.problem.headline
    assert "processes.py:8" in result.failure.problem.headline
    assert multiprocessing.active_children() == []


def test_outside_of_a_run_multiprocessing_starts_processes(tmp_path: Path) -> None:
    text = "import multiprocessing\ndef scenario():\n    multiprocessing.cpu_count()\n"
    assert explore(program(tmp_path / "processes.py", text), runs=1).failure is None
    process = multiprocessing.get_context("spawn").Process(target=int)
    process.start()
    process.join()
    assert process.exitcode == 0


# Each is true of the real classes
DATES = [
    "date.today() == datetime.now().date() == datetime.today().date()",
    "time.localtime().tm_year == date.today().year == Stamp.today().year",
    "time.gmtime().tm_year == datetime.now(UTC).year",
    "time.strftime('%Y') == str(date.today().year) and time.ctime().endswith(time.strftime('%Y'))",
    "time.localtime(0) == time.localtime(0.0) and time.strftime('%Y', time.gmtime(0)) == '1970'",
    "not isinstance(datetime.now(), Stamp) and not isinstance(date.today(), datetime)",
    "type(datetime.now()) is datetime and type(date.today()) is date and type(Stamp.now()) is Stamp",
    "isinstance(datetime.max, datetime) and isinstance(datetime.max, date) and isinstance(date.max, date)",
    "isinstance(Stamp.now(), Stamp) and isinstance(Stamp.now(), date) and issubclass(Stamp, datetime)",
    "issubclass(datetime, date) and issubclass(type(date.max), date) and not issubclass(date, datetime)",
    "copy.copy(Stamp(2026, 1, 2)).label() == 'Stamp(2026, 1, 2, 0, 0)'",
    "repr(date(2026, 1, 2)) == 'datetime.date(2026, 1, 2)'",
    "pickle.loads(pickle.dumps([date(2026, 1, 2)])) == [date(2026, 1, 2)]",
    "isinstance(Abstract(2026, 1, 2), ABC) and not isinstance(datetime.now(), Abstract)",
    "not hasattr(datetime.now(), '__dict__') and not hasattr(date.today(), '__dict__')",
]


@pytest.mark.parametrize("text", DATES)
def test_a_date_under_the_explorer_is_like_a_real_one(text: str, tmp_path: Path) -> None:
    source = (
        "import copy, pickle, time\nfrom abc import ABC\nfrom datetime import UTC, date, datetime\n"
        "class Stamp(datetime):\n    def label(self): return repr(self)\n"
        f"class Abstract(datetime, ABC): pass\ndef scenario():\n    assert {text}\n"
    )
    real: dict[str, Any] = {"__name__": "date"}
    exec(source, real)
    real["scenario"]()
    result = explore(program(tmp_path / "date.py", source), runs=5)
    assert result.failure is None, result.text()


def failure_of_three_forks() -> tuple[Search, FailingSchedule]:
    """Return a search in the sample forks_three, and a failure whose schedule is not the smallest."""
    sample = ExploredProgram(Path(SAMPLES_DIRECTORY, "forks_three.py"), "scenario")
    search = Search(sample.start, sample.options, seed=1)
    found = None
    for number in range(400):
        run = search.attempt() if number < 20 else search.run_with_priorities()
        if run is not None and run.problem is not None and len(run.deviations) > 2:
            found = failure_of(run)
            break
    assert found is not None
    return search, found


def test_shrinking_ends_at_its_time_with_the_smallest_failure_so_far() -> None:
    """A run of a large program takes seconds, and the shrinking makes thousands of runs."""
    search, found = failure_of_three_forks()
    shrinker = Shrinker(search, found, until=time.monotonic())
    assert (shrinker.shrink(), shrinker.runs) == (found, 0)
    assert not found.complete  # the report says "perhaps not the smallest"
    assert Shrinker(search, found).shrink().complete  # without a limit it is proven


def test_shrinking_ends_after_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrink, "MAX_SHRINK_STEPS", 200)
    search, found = failure_of_three_forks()
    shrinker = Shrinker(search, found)
    smallest_so_far = shrinker.shrink()
    assert shrinker.steps < 200 + search.most_steps and not smallest_so_far.complete
    assert found.problem.is_same_failure(shrinker.run(smallest_so_far.schedule).problem)


@pytest.mark.parametrize("limit", [{"seconds": 3.0}, {"seconds": 60.0}, {"runs": 400}])
def test_the_search_sets_the_time_of_the_shrinking(
    limit: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the search may take, and at least ten seconds. A number of runs is the same on every machine."""
    times: list[float] = []

    class Recorded(Shrinker):
        def __init__(self, search: Search, found: FailingSchedule, until: float) -> None:
            times.append(until)
            super().__init__(search, found, until)

    monkeypatch.setattr(report, "Shrinker", Recorded)
    monkeypatch.setattr(report, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    explore(ExploredProgram(Path(SAMPLES_DIRECTORY, "forks.py"), "scenario"), **limit)
    assert times == [1000.0 + max(limit.get("seconds", math.inf), report.DEFAULT_SEARCH_S)]


def test_an_invariant_leaves_no_object_of_a_call(tmp_path: Path) -> None:
    text = (
        "from ewe_explore import always\ndef scenario():\n    table = {}\n"
        "    always(lambda: table.get(str(1)) != 2)\n    table['1'] = 1\n    table['1'] = 3\n"
    )
    explored = program(tmp_path / "invariant.py", text)
    run = Run(Replay(()), explored.options)
    explored.start(run)
    assert run.problem is None and [lane.pending for lane in run.lanes] == [[]]


# The first thread changes the box, and has the lock for no further step
HELD = {
    "release": ("        box.append(1)", "lock.acquire(blocking=False)"),
    "locked": ("        box.append(1)", "not lock.locked()"),
    "wait": ("        box.append(1)\n        changed.wait(1)", "not lock.locked()"),
}


@pytest.mark.parametrize("name", HELD)
def test_a_program_that_tests_a_lock_sees_it_held_after_the_last_change(tmp_path: Path, name: str) -> None:
    change, is_free = HELD[name]
    text = (
        "import threading\nlock = threading.Lock()\nchanged = threading.Condition(lock)\nbox = []\n"
        f"def write():\n    with lock:\n{change}\n"
        f"def read():\n    if box:\n        assert {is_free}\n"
        "def scenario():\n    for each in (write, read):\n        threading.Thread(target=each).start()\n"
    )
    result = explore(program(tmp_path / "held.py", text), runs=60)
    assert result.failure is not None and is_free in result.failure.problem.headline, result.text()


# Each changes two variables of the module, `ga` and `gb`, whose types are equal before and after it.
NAMES = {
    "def": "def ga(): pass\n    def gb(): pass",
    "class": "class ga: pass\n    class gb: pass",
    "import": "import json as ga\n    import json as gb",
    "from": "from json import loads as ga\n    from json import dumps as gb",
    "del": "del ga\n    del gb",
}


@pytest.mark.parametrize("name", NAMES)
def test_each_statement_that_binds_a_variable_of_the_module_is_a_step(tmp_path: Path, name: str) -> None:
    text = (
        "import threading\nga = gb = 1\n"
        f"def write():\n    global ga, gb\n    {NAMES[name]}\n"
        "def read():\n"
        "    try:\n        first = type(ga)\n    except NameError:\n        return\n"
        "    second = type(gb)\n    assert first == second\n"
        "def scenario():\n"
        "    threads = [threading.Thread(target=each) for each in (read, write)]\n"
        "    for thread in threads: thread.start()\n"
    )
    result = explore(program(tmp_path / "names.py", text), runs=60)
    assert result.failure is not None, result.text()


BINDINGS = {
    "a variable of a loop": "    for n in (7, 8):\n        THREAD\n",
    "an assignment in a loop": "    while n < 8:\n        n += 1\n        THREAD\n",
    "a name of with": "    THREAD\n    with contextlib.nullcontext(8) as n:\n        pass\n",
}


@pytest.mark.parametrize("place", ["function", "module"])
@pytest.mark.parametrize("name", BINDINGS)
def test_each_way_to_assign_a_variable_is_a_step(tmp_path: Path, name: str, place: str) -> None:
    """A thread sees 7, or the next value of the variable: the assertion demands the next one."""
    thread = "t = threading.Thread(target=lambda: seen.append(n)); threads.append(t); t.start()"
    body = f"    n, seen, threads = {6 if 'assignment' in name else 7}, [], []\n{BINDINGS[name]}"
    body += "    for t in threads: t.join()\n    assert 7 not in seen\n"
    body = body.replace("THREAD", thread)
    head = "import contextlib, threading\n"
    path = tmp_path / "bindings.py"
    path.write_text(f"{head}def scenario():\n{body}" if place == "function" else head + textwrap.dedent(body))
    explored = ExploredProgram(path, "scenario" if place == "function" else "")
    result = explore(explored, runs=60)
    assert result.failure is not None and "7 not in seen" in result.failure.problem.headline, result.text()


# The page and the command


def test_the_documents_show_what_the_command_prints() -> None:
    text = Path(__file__).parents[1].joinpath("docs", "explorer.md").read_text(encoding="utf-8")
    shown = text.partition("$ ewe-explore lost_wakeup\n")[2].partition("```")[0].rstrip("\n")
    result = explore(ExploredProgram(Path(SAMPLES_DIRECTORY, "lost_wakeup.py"), "scenario"), runs=50)
    file = "packages/ewe-explore/ewe_explore/samples/lost_wakeup.py"
    expected = re.sub(r"again: ewe-explore \S+", f"again: ewe-explore {file}", result.text(100))
    assert shown == expected


def test_a_story_begins_with_the_first_thread_and_leaves_out_the_middle_of_a_long_one() -> None:
    short = explore(ExploredProgram(Path(SAMPLES_DIRECTORY, "count.py"), "scenario"), runs=50).story
    assert short is not None and short.events[0].text == "starts work 1"
    result = explore(ExploredProgram(Path(SAMPLES_DIRECTORY, "busy_wait.py"), "scenario"), runs=1)
    assert result.story is not None and len(result.story.events) == 161
    assert re.search(r"⋮  \([\d,]+ more steps\)", result.text()) and "more steps" in result.html()


def test_a_thread_that_the_end_of_the_run_stops_gives_its_turn_to_no_other() -> None:
    events = [
        TimelineEvent("stop", 0, "is stopped before it writes n", line=3, other=1),
        TimelineEvent("stop", 1, "was about to: write n", line=3, other=1),
    ]
    drawn = timeline(Story(["main", "work 1"], events, "", [], [], "invariant"))
    assert drawn.count("work 1 goes on") == 1 and drawn.count("goes on") == 1


def test_a_sentence_is_about_the_thread_with_the_longest_name_that_it_begins_with() -> None:
    story = Story(["main", "worker", "worker 1"], [], "", [], [], "deadlock")
    assert split_name(story, "worker 1 waits for lock") == (2, "worker 1", " waits for lock")
    assert split_name(story, "worker waits for lock") == (1, "worker", " waits for lock")


def test_the_page_stands_alone(tmp_path: Path) -> None:
    text = scenario_text = (
        "import threading\ndef scenario():\n    name = '<b>&'\n"
        "    threading.Thread(target=lambda: 1 / 0, name=name).start()\n"
    )
    page = explore(program(tmp_path / "page.py", text), runs=5).html()
    assert "&lt;b&gt;&amp; dies of ZeroDivisionError" in page and "<b>&" not in page
    assert not re.search(r"(src|href)=|url\((?!#)|https?://|<script", page)
    assert "prefers-color-scheme: dark" in page and 'name="viewport"' in page
    assert all(f"{number}</i>" in page for number in range(1, scenario_text.count("\n") + 1))


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "race.html"
    assert main(["count", "--runs", "50", "--html", str(page)]) == 1
    output = capsys.readouterr().out
    assert "A lost update" in output and page.read_text().startswith("<!doctype html>")
    command = re.search(r"again: ewe-explore (.*)", output)
    assert command is not None
    assert main(command[1].split()) == 1
    again = capsys.readouterr().out
    assert again.partition("\n\n")[0] == output.partition("\n\n")[0]
    assert main(["count_locked", "--runs", "20"]) == 0
    assert "no failure in 20 runs" in capsys.readouterr().out
    assert main(["--list"]) == 0
    assert "lost_wakeup" in capsys.readouterr().out


def test_the_command_that_does_it_again_has_the_name_of_any_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "it's my counter.py"
    file.write_text(Path(SAMPLES_DIRECTORY, "count.py").read_text())
    assert main([str(file), "--runs", "50"]) == 1
    command = re.search(r"again: (.*)", capsys.readouterr().out)
    assert command is not None
    _, *arguments = shlex.split(command[1])
    assert arguments[0] == str(file) and main(arguments) == 1


def test_a_text_that_has_no_bytes_in_utf_8_is_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, page = tmp_path / "surrogate.py", tmp_path / "surrogate.html"
    file.write_text("def scenario(): raise ValueError(chr(0xD800))\n")
    assert main([str(file), "--runs", "1", "--html", str(page)]) == 1
    assert "ValueError: \\ud800" in capsys.readouterr().out and "\\ud800" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("", "name a file with a scenario"),
        ("cuont", 'no sample of this name; did you mean "count"?'),
        ("{dir}", "is a directory"),
        ("a" * 300, "File name too long"),
        ("{dir}/deep.py", "deep.py: an expression is nested too deeply"),
        ("{dir}/broken.py", "broken.py:1: "),
        ("{dir}/nul.py", "nul.py: "),
        ("count --runs 0", "is not a number from 1"),
        ("count --seconds none", "is not a time in seconds"),
        ("count --seed -1", "is not a seed"),
        ("count --schedule 3-1", "is not a part of a schedule"),
        ("count --scenario scenari", 'did you mean "scenario"?'),
        ("count --nonsense", "unrecognized arguments"),
        ("count --runs 50 --html {dir}/none/race.html", "cannot write"),
        ("count --model Missing --runs 2", "there is no class Missing"),
        ("{dir}/mine.py --runs 2 --html {dir}/mine.py", "is the program: write the timeline to another file"),
    ],
)
def test_a_wrong_command_is_one_line(
    arguments: str, says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("def scenario(:\n")
    (tmp_path / "nul.py").write_bytes(b"\0")
    (tmp_path / "mine.py").write_text("def scenario(): 1 / 0\n")
    (tmp_path / "deep.py").write_text(f"def scenario(): pass\nn = 1{' + 1' * 900}\n")
    assert main(arguments.format(dir=tmp_path).split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("ewe-explore: ") and says in error and error.count("\n") == 1
