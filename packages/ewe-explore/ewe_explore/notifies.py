"""The waits on a condition and for an event: why no notify and no set() ends them.

Both calls act on the threads that wait at this moment. A notify before a wait is lost, a notify for another thread
does not count, and a clear() takes a set() back before the thread has seen it. The steps of a run tell which of
these has happened.

Read next: waits.py, which asks for these reasons.
"""

from __future__ import annotations

from ewe_explore.primitives import LOST_NOTIFY, Condition
from ewe_explore.scheduler import BlockedLane, PartKey, Run, Step
from ewe_explore.wording import at_line, phrase


def missed_notify(run: Run, wait: BlockedLane) -> str:
    """Describe why no notify ends a lane's wait on a condition."""
    began = begin_of(run, wait)
    for pattern in (change_without_notify, notify_of_another, lost_wake_up, waits_again):
        if text := pattern(run, wait, began):
            return text
    name = run.lanes[wait.lane].name
    if notifies_of(run, wait):
        return (
            f"{name} waits on {wait.name}{at_line(wait.line)}, and every notify came before. The thread that "
            f"makes the change for which {name} waits must call notify after the change."
        )
    return f"{name} waits on {wait.name}{at_line(wait.line)}, and no thread ever notifies it."


# Patterns. Each function returns "" if the steps do not have its pattern. began: the execution_index at which the
# lane began to wait


def notifies_of(run: Run, wait: BlockedLane) -> list[Step]:
    """Return the calls of notify() and notify_all() for the condition of a wait."""
    return [step for step in steps_on(run, wait.target) if step.verb.startswith("notifies")]


def change_without_notify(run: Run, wait: BlockedLane, began: int) -> str:
    """Describe a change that no notify announced: the lane waits for it, and does not see it."""
    silent = silent_change(run, wait, began)
    if silent is None:
        return ""
    return (
        f"A change without a notify: {run.lanes[silent.lane].name} {phrase(silent)}"
        f"{at_line(silent.line)} and "
        f"does not notify {wait.name}, on which {run.lanes[wait.lane].name} waits{at_line(wait.line)}. "
        "Call notify() with each change that a waiting thread tests. "
        "Call notify_all() if every waiting thread must see the change, as at a close."
    )


def notify_of_another(run: Run, wait: BlockedLane, began: int) -> str:
    """Describe how each notify during the wait woke another lane."""
    others = [step for step in notifies_of(run, wait) if step.execution_index > began]
    if not others:
        return ""
    last = others[-1]
    return (
        f"{run.lanes[wait.lane].name} waits on {wait.name}{at_line(wait.line)}, and every notify woke another "
        f"thread: {run.lanes[last.lane].name} {last.verb} {wait.name}{at_line(last.line)}, and notify() wakes one "
        "thread, which you cannot choose. Call notify_all() if every thread must see the change (such as "
        "a close), or use a separate condition for each kind of waiting thread."
    )


def lost_wake_up(run: Run, wait: BlockedLane, began: int) -> str:
    """Describe a notify that came before the wait, and that no lane was waiting for."""
    # A test with the lock held, after the notify, has seen the change: this notify is not lost
    locked = time_of_lock(run, wait.lane, wait.target, began) if tested_values(run, wait, began) else -1
    lost = [
        step for step in notifies_of(run, wait) if step.note == LOST_NOTIFY and step.execution_index > locked
    ]
    if not lost:
        return ""
    last, name = lost[-1], run.lanes[wait.lane].name
    advice = "hold the lock from its test to its wait"
    if not has_tested(run, wait, began):
        advice = "test, before it waits, whether the change has come already"
    return (
        f"A lost wake-up: {run.lanes[last.lane].name} {last.verb} {wait.name}{at_line(last.line)} before "
        f"{name} begins to wait{at_line(wait.line)}, and a condition does not store a notify. "
        f"{name} has to {advice}: `with lock: while not …: wait()`."
    )


def waits_again(run: Run, wait: BlockedLane, began: int) -> str:
    """Describe how a lane that an earlier notify has woken tests and waits again."""
    steps = [step for step in steps_on(run, wait.target) if step.execution_index < began]
    woken = [step for step in steps if step.lane == wait.lane and step.verb == "goes on after"]
    notifies = [step for step in steps if step.verb.startswith("notifies") and step.note != LOST_NOTIFY]
    tested = tested_values(run, wait, began)
    writes = [
        step
        for step in run.steps
        if step.writes
        and step.key() in tested
        and step.lane != wait.lane
        and 0 <= step.execution_index < began
    ]
    if not (woken and notifies and writes):
        return ""
    name, last = run.lanes[wait.lane].name, max(writes, key=lambda step: step.execution_index)
    notify = notifies[-1]
    writer = run.lanes[last.lane].name
    return (
        f"{name} was woken before, and waits on {wait.name} again{at_line(wait.line)}: no notify follows. "
        f"{run.lanes[notify.lane].name} {notify.verb} {wait.name}{at_line(notify.line)}, and the test of {name} "
        f"sees the change of {writer}, which {phrase(last)}{at_line(last.line)}. A thread that is woken must find "
        "the change for which it waits, also if another thread has made a further change."
    )


def has_tested(run: Run, wait: BlockedLane, began: int) -> bool:
    """Return whether a lane has read a part of an object before it began to wait."""
    return any(
        step.lane == wait.lane and step.attribute is not None and 0 <= step.execution_index < began
        for step in run.steps
    )


def silent_change(run: Run, wait: BlockedLane, began: int) -> Step | None:
    """Return the last silent change of what a lane tests, made during its wait; None if there is none.

    began: the begin of the wait on a condition. A part counts if the lane has tested it before its wait, if it has
    another value now, and if no notify announced any of its changes: a worker that takes an item out again need
    not announce that.
    """
    found: list[Step] = []
    for key, seen in tested_values(run, wait, began).items():
        writes = [
            step for step in run.steps if step.writes and step.key() == key and step.execution_index > began
        ]
        last = max(writes, key=lambda step: step.execution_index, default=None)
        if last is None or last.lane == wait.lane or last.after in ("", seen):
            continue
        if not any(is_announced(run, step, wait.target) for step in writes):
            found.append(last)
    return max(found, key=lambda step: step.execution_index, default=None)


def tested_values(run: Run, wait: BlockedLane, began: int) -> dict[PartKey, str]:
    """Return what a lane has read under the lock before it began to wait: part of an object -> its value."""
    locked = time_of_lock(run, wait.lane, wait.target, began)
    steps = sorted(
        (
            step
            for step in run.steps
            if step.lane == wait.lane
            and step.attribute is not None
            and locked <= step.execution_index < began
        ),
        key=lambda step: step.execution_index,
    )
    values: dict[PartKey, str] = {}
    for step in steps:
        if step.writes:  # a read before a write, as in `self.idle += 1`, was no test
            values.pop(step.key(), None)
        elif step.before:
            values[step.key()] = step.before
    return values


def is_announced(run: Run, change: Step, condition: Condition) -> bool:
    """Return whether the lane of a change notifies a condition after it, or before it under the same lock."""
    locked = time_of_lock(run, change.lane, condition, change.execution_index)
    return any(
        step.lane == change.lane and step.verb.startswith("notifies") and step.execution_index > locked
        for step in steps_on(run, condition)
    )


def time_of_lock(run: Run, lane: int, condition: Condition, moment: int) -> int:
    """Return when a lane took the lock that it holds at a moment; the moment itself if it does not hold it.

    moment and the result: an execution_index.
    """
    steps = sorted(
        (*steps_on(run, condition), *steps_on(run, condition.lock)), key=lambda step: step.execution_index
    )
    held = moment
    for step in steps:
        if step.lane != lane or step.execution_index >= moment:
            continue
        if step.verb in ("acquires", "goes on after", "wakes from"):
            held = step.execution_index
        elif step.verb in ("releases", "waits on"):
            held = moment
    return held


def cleared_set(run: Run, wait: BlockedLane) -> str:
    """Describe why no set() ends a lane's wait for an event.

    A set() ends each wait in progress. The last set() therefore came before this wait, and a clear() in between.
    """
    name = run.lanes[wait.lane].name
    steps = steps_on(run, wait.target)
    waits = f"{name} waits for {wait.name}{at_line(wait.line)}"
    last_set = max((index for index, step in enumerate(steps) if step.verb == "sets"), default=-1)
    if last_set < 0:
        return f"{waits}, and no thread ever sets it."
    clear = next(
        (index for index, step in enumerate(steps) if index > last_set and step.verb == "clears"), None
    )
    was_set = f"{run.lanes[steps[last_set].lane].name} sets {wait.name}{at_line(steps[last_set].line)}"
    if clear is None:
        return f"{waits}. {was_set} for the last time before, and then an invariant clears it."
    if any(step.lane == wait.lane for step in steps[last_set + 1 : clear]):
        return f"{waits}, and no set() follows. {was_set} for the last time before this wait."
    clears = f"{run.lanes[steps[clear].lane].name} clears it{at_line(steps[clear].line)}"
    summary = f"A lost set(): {was_set} before {clears}. Then {waits}. "
    if steps[clear].lane == wait.lane:
        return summary + (
            f"{name} must clear the event before it tests whether there is something to do, not after this test: "
            "a set() after the test then stays, and ends the wait."
        )
    return summary + (
        f"{name} has not seen this set(). Only the thread that waits may clear an event, and if several threads "
        "wait, use a condition."
    )


def begin_of(run: Run, wait: BlockedLane) -> int:
    """Return the moment at which a lane began to wait, as an execution_index."""
    steps = steps_on(run, wait.target)
    return max(step.execution_index for step in steps if step.lane == wait.lane and step.verb == wait.verb)


def steps_on(run: Run, target: object) -> list[Step]:
    """Return the steps on an object, in the order of their execution."""
    steps = [step for step in run.steps if step.target is target and step.execution_index >= 0]
    return sorted(steps, key=lambda step: step.execution_index)
