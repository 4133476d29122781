"""Each kind of wait, with each reason why it never ends: the explorer's sentences are true for the schedule."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import indent

import pytest

from ewe_explore.program import ExploredProgram
from ewe_explore.report import explore
from ewe_explore.scheduler import Options

OBJECTS = """
lock = threading.Lock()
rlock = threading.RLock()
outer = threading.Lock()
changed = threading.Condition()
event = threading.Event()
ready = threading.Event()
places = threading.Semaphore(1)
signals = threading.Semaphore(0)
gate = threading.Barrier(2)
slow_gate = threading.Barrier(2, event.wait)
jobs = queue.Queue(1)
one, other = socket.socketpair()
server = socket.create_server(("127.0.0.1", 7000), backlog=1)
items = []
"""
JOIN = "for each in threads: each.join()"
START_ALL = f"for each in threads: each.start()\n{JOIN}"
HOLDS = "A thread that waits for other threads must hold no lock that they need."
SILENT = "no bytes come, and no thread closes the other end."
NO_SET = "waits for event [S1], and no thread ever sets it."
LOST = "and a condition does not store a notify. first has to"
AGAIN = "and wait() must take the lock again before it returns."
NOTIFIED = f"first waits on changed [F2]. second notifies it [S2], {AGAIN}"
LOOP = "A thread that waits must block on a condition, an event or a queue."
WAIT = "with changed:\n    while not items: changed.wait()"
SELECTS = (
    "none of its sockets gets bytes, a connection or an end, and no other thread can cause one any more."
)

# The first thread, the second thread, and the sentences of the explorer. [F1]: line 1 of the first thread, [S1]: of
# the second, [M1]: of main, which is START_ALL if there is no fourth part.
ROWS: dict[str, tuple[str, str, list[str]] | tuple[str, str, list[str], str]] = {
    "a lock: its holder has ended": (
        "lock.acquire()",
        "lock.acquire()",
        ["second waits for lock [S1]. first took the lock [F1], and has ended without a release."],
    ),
    "a lock: its holder waits": (
        "with lock:\n    event.wait()",
        "with lock: event.set()",
        [
            f"second waits for lock [S1]. first took the lock [F1], and holds it while it "
            f"waits for event [F2]. {HOLDS}",
            "first waits for event [F2], and no thread ever sets it.",
        ],
    ),
    "a lock: its holder joins": (
        "time.sleep(1)\nlock.acquire()",
        "pass",
        [
            "main holds lock, and waits for the end of first [M3].",
            "first waits for lock [F2], which main holds.",
            "Release a lock before you join a thread that needs it.",
        ],
        f"lock.acquire()\n{START_ALL}",
    ),
    "a lock: its holder is the thread": (
        "lock.acquire()\nlock.acquire()",
        "pass",
        ["first holds lock, and waits for lock [F2], which it holds itself.", "A Lock cannot be taken twice"],
    ),
    "a lock: a signal of a thread that waits": (
        "lock.acquire()\nlock.acquire()",
        "event.wait(); lock.release()",
        ["another thread must release it, and no thread does.", f"second {NO_SET}"],
    ),
    "an RLock: its holder released it once of twice": (
        "rlock.acquire(); rlock.acquire(); rlock.release()",
        "rlock.acquire()",
        ["second waits for rlock [S1]. first took the lock [F1], and has ended without a release."],
    ),
    "a condition: a notify before the wait, without a test": (
        "with changed: changed.wait()",
        "with changed: changed.notify()",
        [f"begins to wait [F1], {LOST} test, before it waits, whether the change has come already:"],
    ),
    "a condition: a notify between the test and the wait": (
        "if not items:\n    with changed: changed.wait()",
        "items.append(1)\nwith changed: changed.notify()",
        [f"second notifies changed [S2] before first begins to wait [F2], {LOST} hold the lock from its test"],
    ),
    "a condition: a notify before the change": (
        WAIT,
        "with changed: changed.notify()\nitems.append(1)",
        ["second calls items.append(…) → [1] [S2] and does not notify changed, on which first waits [F2]."],
    ),
    "a condition: a notify to another thread": (
        f"{WAIT}\n    items.pop()",
        f"{WAIT}\n    items.pop()",
        ["second waits on changed [S2], and every notify woke another thread: main notifies changed [M4]"],
        f"for each in threads: each.start()\ntime.sleep(1)\nwith changed:\n    "
        f"items.append(1); changed.notify()\n{JOIN}",
    ),
    "a condition: a notify before the test with the lock held": (
        f"{WAIT}\n    items.pop()\n{WAIT}",
        "with changed: items.append(1); changed.notify()",
        ["first waits on changed [F5], and every notify came before."],
        "threads[1].start(); threads[1].join()\nthreads[0].start(); threads[0].join()",
    ),
    "a condition: a notify, and then a change": (
        WAIT,
        "with changed:\n    items.append(1); changed.notify_all()\n    items.clear()",
        ["was woken before, and waits on changed again [F2]: no notify follows. second notifies all of changed"],
        "threads[0].start(); time.sleep(1); threads[1].start()\nfor each in threads: each.join()",
    ),
    "a condition: the notify of a thread that waits": (
        "with changed: changed.wait()",
        "event.wait()\nwith changed: changed.notify()",
        ["first waits on changed [F1], and no thread ever notifies it.", f"second {NO_SET}"],
    ),
    "a condition: a notify, and the lock stays with a thread that has ended": (
        WAIT,
        "changed.acquire(); items.append(1)\nchanged.notify()",
        [f"{NOTIFIED} second took the lock [S1], and has ended without a release."],
    ),
    "a condition: a notify, and the lock stays with a thread that waits": (
        WAIT,
        "with changed: \n    items.append(1); changed.notify(); event.wait()",
        [f"{NOTIFIED} second took the lock [S1], and holds it while it waits for event [S2]. {HOLDS}"],
    ),
    "a condition: a timeout, and the lock stays with a thread that has ended": (
        "with changed: changed.wait(1)",
        "time.sleep(0.5); changed.acquire()",
        [
            "The timeout of the wait of first on changed [F1] is over, and wait() must take "
            "the lock again before it "
            "returns. second took the lock [S1], and has ended without a release."
        ],
    ),
    "a condition: the thread holds a second lock": (
        f"with outer:\n{indent(WAIT, '    ')}",
        "with outer:\n    with changed: items.append(1); changed.notify()",
        [
            "first waits on changed [F3], and no thread ever notifies it.",
            "second waits for outer [S1]. first took the lock [F1], and holds it while it waits on changed [F3].",
        ],
    ),
    "an event: its thread waits": (
        "ready.wait()",
        "event.wait(); ready.set()",
        ["first waits for ready [F1], and no thread ever sets it.", f"second {NO_SET}"],
    ),
    "an event: its thread never runs": (
        "ready.wait()",
        "ready.set()",
        [
            "first waits for ready [F1], and no thread ever sets it.",
            "The program makes second, and does not call start() of it.",
        ],
        "threads[0].start(); threads[0].join()",
    ),
    "a semaphore: a thread has ended without a release": (
        "places.acquire()",
        "places.acquire()",
        ["no thread ever releases it. first acquired it [F1], and has ended without a release."],
    ),
    "a semaphore: a thread waits before its release": (
        "with places: event.wait()",
        "with places: event.set()",
        ["no thread ever releases it. first acquired it [F1], and waits for event [F1]."],
    ),
    "a semaphore: a failed acquire took nothing": (
        "signals.acquire()",
        "signals.acquire(blocking=False)",
        ["first waits for signals [F1], and no thread ever releases it. Its counter is 0 from the start."],
    ),
    "a semaphore: the release of a signal went to another thread": (
        "signals.acquire()",
        "signals.acquire()",
        ["releases it any more. main released it last [M2], and first acquired it [F1]. Each acquire needs"],
        f"for each in threads: each.start()\nsignals.release()\n{JOIN}",
    ),
    "a get: no put": (
        "jobs.get()",
        "try: jobs.get_nowait()\nexcept queue.Empty: pass",
        ["first waits for an item of jobs [F1], and no thread ever puts an item into it."],
    ),
    "a get: the item went to another thread": (
        "jobs.get()",
        "jobs.get()",
        [
            "no other thread puts an item into it any more. main put an item into it last "
            "[M2], and waits for the end",
            "first got the last one [F1]. Each thread that gets needs an item",
        ],
        f"for each in threads: each.start()\njobs.put(1)\n{JOIN}",
    ),
    "a get: the thread got the item itself": (
        "jobs.get(); jobs.get()",
        "jobs.put(1)",
        ["second put an item into it last [S1], and has ended. It got the last one [F1]."],
    ),
    "a get: the thread with the items waits": (
        "jobs.get(); jobs.get()",
        "jobs.put(1); event.wait(); jobs.put(2)",
        ["second put an item into it last [S1], and waits for event [S1].", f"second {NO_SET}"],
    ),
    "a put: no get": (
        "jobs.put(1); jobs.put(2)",
        "pass",
        ["first waits for room in jobs [F1], which is full, and no thread ever gets an item out of it."],
    ),
    "a put: the thread that got items has ended": (
        "for n in range(3): jobs.put(n)",
        "jobs.get()",
        ["gets an item out of it any more. second got an item last [S1], and has ended."],
    ),
    "a put: the thread that got items waits": (
        "for n in range(3): jobs.put(n)",
        "jobs.get(); event.wait(); jobs.get()",
        ["gets an item out of it any more. second got an item last [S1], and waits for event [S1]."],
    ),
    "the join of a queue: no get": (
        "jobs.put(1); jobs.join()",
        "pass",
        ["1 item lacks its task_done(). No thread ever gets an item out of it."],
    ),
    "the join of a queue: no task_done()": (
        "jobs.put(1); jobs.join()",
        "jobs.get()",
        ["1 item lacks its task_done(). second got an item [S1], and has ended without task_done()."],
    ),
    "the join of a queue: task_done() of a thread that waits": (
        "jobs.put(1); jobs.join()",
        "jobs.get(); event.wait(); jobs.task_done()",
        ["1 item lacks its task_done(). second got an item [S1], and waits for event [S1]."],
    ),
    "the join of a queue: items that no thread gets": (
        "jobs.put(1); jobs.put(2); jobs.join()",
        "jobs.get(); jobs.task_done()",
        ["second got an item last [S1], and has ended. The other items are still in the queue."],
    ),
    "the join of a thread: a daemon that waits": (
        "jobs.get()",
        "pass",
        ["first waits for an item of jobs [F1], and no thread ever puts an item into it."],
        f"for each in threads: each.daemon = True\n{START_ALL}",
    ),
    "the join of a thread: each joins the other": (
        "time.sleep(1); threads[1].join()",
        "threads[0].join()",
        [
            "first waits for the end of second [F1].",
            "second waits for the end of first [S1].",
            "No thread in this circle can go on. A thread that another thread joins must not join that thread.",
        ],
    ),
    "a barrier: a thread has ended": (
        "gate.wait()",
        "pass",
        ["first waits at gate [F1], which needs 2 threads: only 1 has come. second has ended."],
    ),
    "a barrier: a thread waits": (
        "gate.wait()",
        "event.wait(); gate.wait()",
        ["which needs 2 threads: only 1 has come. second waits for event [S1].", f"second {NO_SET}"],
    ),
    "a barrier: its action does not end": (
        "slow_gate.wait()",
        "slow_gate.wait()",
        [
            "first waits at slow_gate [F1]: all 2 threads have come, and the action does not end.",
            "main waits for the action of slow_gate [M3]: all 2 threads have come, and the action does not end.",
            f"second {NO_SET}",
        ],
        "for each in threads: each.start()\ntime.sleep(1)\nslow_gate.wait()",
    ),
    "a receive: the other end is not used": (
        "one.recv(1)",
        "event.wait(); other.send(b'x')",
        [f"{SILENT} No thread uses the other end. second waits for event [S1]."],
    ),
    "a receive: the other end is not closed": (
        "one.recv(1); one.recv(1)",
        "other.send(b'x')",
        [f"{SILENT} second used the other end last [S1], and has ended."],
    ),
    "a receive: both ends wait": (
        "one.recv(1)",
        "with other: other.recv(1)",
        [f"first waits for bytes of socket 1 [F1]: {SILENT} second used the other end last "
        "[S1], and waits for bytes"],
    ),
    "a receive: no accept": (
        "with socket.create_connection(('', 7000)) as sock: sock.recv(1)",
        "pass",
        [f"{SILENT} No thread has accepted this connection. second has ended."],
    ),
    "a send: no thread receives": (
        "one.sendall(bytes(100000))",
        "other.recv(100)",
        ["fill the buffer, and no thread reads them any more. second used the other end last [S1], and has ended."],
    ),
    "an accept: no connection": (
        "server.accept()",
        "pass",
        ["first waits for a connection of server [F1], and no other thread connects to it any "
        "more. second has ended."],
    ),
    "a connect: the backlog is full": (
        "keep = [socket.create_connection(('', 7000)) for _ in range(3)]",
        "pass",
        ["The backlog is full: first waits", "and no thread accepts a connection any more. second has ended."],
    ),
    "a select(): no bytes": (
        "select.select([one], [], [])",
        "pass",
        [f"first waits for a socket of select() [F1]: {SELECTS} second has ended."],
    ),
    "an epoll: the sender waits": (
        "poll = select.epoll(); poll.register(one, 1)\npoll.poll()",
        "event.wait(); other.send(b'x')",
        [f"first waits for a socket of poll [F2]: {SELECTS} second waits for event [S1]."],
    ),
    "a loop: the other thread has ended": (
        "while not ready.is_set(): print('waiting')",
        "pass",
        ["first tests ready [F1] in its loop, and no thread changes it: second has ended.", LOOP],
    ),
    "a loop: the other thread waits": (
        "while not items: pass",
        "event.wait(); items.append(1)",
        ["first tests items [F1] in its loop, and no thread changes it: second waits for event [S1].", LOOP],
    ),
    "a loop: it holds the lock": (
        "with lock:\n    while not items: pass",
        "with lock: items.append(1)",
        ["second waits for lock [S1]. first took the lock [F1], and holds it while it goes round in its loop."],
    ),
    "a loop that sleeps": (
        "while not ready.is_set(): time.sleep(0.1)",
        "event.wait(); ready.set()",
        ["no thread changes it: second waits for event [S1].", f"{LOOP} A loop that repeats a "
        "test sees a change late"],
    ),
}  # fmt: skip


def program(first: str, second: str, main: str) -> tuple[str, dict[str, int]]:
    """Return a scenario with these threads, and the line before the first line of each: "F", "S" and "M"."""
    parts = {"F": ("def first():", first), "S": ("def second():", second), "M": ("", main)}
    text = "import queue, select, socket, threading, time\ndef scenario():\n" + indent(OBJECTS, "    ")
    before = {}
    for key, (head, body) in parts.items():
        if key == "M":
            head = "threads = [threading.Thread(target=each, name=each.__name__) for each in (first, second)]"
        text += f"    {head}\n"
        before[key] = text.count("\n")
        text += indent(body, "    " if key == "M" else "        ") + "\n"
    return text, before


def with_lines(sentence: str, before: dict[str, int]) -> str:
    """Return a sentence with the number of the line in place of [F1] and the like."""
    for key, line in before.items():
        for number in range(1, 6):
            sentence = sentence.replace(f"[{key}{number}]", f"[line {line + number}]")
    return sentence


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_the_reason_of_a_wait_is_true(
    row: tuple[str, str, list[str]] | tuple[str, str, list[str], str], tmp_path: Path
) -> None:
    text, before = program(row[0], row[1], row[3] if len(row) == 4 else START_ALL)
    path = tmp_path / "wait.py"
    path.write_text(text)
    result = explore(ExploredProgram(path, "scenario", Options(max_steps=1500)), runs=100)
    assert result.story is not None, result.text()
    found = " ".join(result.story.why)
    for says in row[2]:
        assert with_lines(says, before) in found, found
    # No thread that the headline names as waiting has ended
    for name in ("main", "first", "second"):
        if name in result.story.headline.partition(": ")[2]:
            assert not re.search(rf"{name}\b[^.;:]*\bhas ended", found), found
