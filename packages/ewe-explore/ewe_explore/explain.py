"""The story of a failure: the events in words, and the cause.

The explorer runs a failing schedule once more, and this time records the value at every step. A reader needs only
some of the steps: locks, queues and conditions, and the variables that several threads use. The story has three
parts:

- events: these steps in the order of their execution, and each moment at which a thread was stopped;
- sentences: the same in words, with a sentence for each turn of a thread;
- why: the pattern in the events, if it is a pattern from the textbooks: a circle of locks, a lost wake-up, a lost
  update, a test that was no longer true.

Read next: timeline.py and page.py, which draw a story.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ewe_explore.primitives import LOST_NOTIFY, Condition, Event, Semaphore
from ewe_explore.queues import Queue
from ewe_explore.scheduler import BlockedLane, Run, Step, name_of_object
from ewe_explore.search import shared_keys

UNIMPORTANT_VERBS = {"looks at", "looks at the size of"}
LOOP_STEPS = 200  # of an endless loop: the story shows the variables of its last steps
MAX_STORY_EVENTS = 160  # the most events of a story; a longer story loses its middle
MAX_LINES_TO_FAILURE = 30  # lines between a use and the failure that it explains
MAX_TURN_STEPS = 7  # the most steps in the sentence of one turn


@dataclass
class TimelineEvent:
    """A row of the timeline. kind: step, wait (the lane blocks), stop (a switch), gap (rows left out), fail."""

    kind: str
    lane: int
    text: str
    file: str = ""
    line: int = 0
    other: int = -1  # for a stop: the lane that runs next
    step: Step | None = None
    writes: bool = False


@dataclass
class Story:
    """A failure with all texts that a timeline or a page shows."""

    lanes: list[str]
    events: list[TimelineEvent]
    headline: str
    why: list[str]
    sentences: list[str]
    kind: str
    files: dict[str, set[int]] = field(default_factory=dict)  # file -> lines of the events
    facts: dict[str, str] = field(default_factory=dict)


def story_of(run: Run) -> Story:
    """Return the story of a failed run. The run must be detailed."""
    assert run.problem is not None
    events = events_of(run)
    files: dict[str, set[int]] = {}
    for event in events:
        if event.file.startswith(run.options.user):
            files.setdefault(event.file, set()).add(event.line)
    if run.problem.file.startswith(run.options.user):
        files.setdefault(run.problem.file, set()).add(run.problem.line)
    names = [lane.name for lane in run.lanes]
    return Story(
        names, events, run.problem.headline, reasons(run), sentences(names, events), run.problem.kind, files
    )


def events_of(run: Run) -> list[TimelineEvent]:
    """Return the events of a run, in the order of their execution."""
    shared = shared_keys(run)
    if run.problem is not None and run.problem.kind == "steps":  # also show the variables that the loop tests
        shared |= {step.key() for step in run.steps[-LOOP_STEPS:]}
    happened = sorted(
        (step for step in run.steps if step.execution_index >= 0), key=lambda step: step.execution_index
    )
    # Before this step there is only one thread
    first_index = min((lane.start_index for lane in run.lanes[1:]), default=0)
    pending = {step.lane: step for step in run.steps if step.execution_index < 0}
    events: list[TimelineEvent] = []
    for step in happened:
        if not visible(step, shared) or step.index < first_index:
            continue
        # The same line again with the same text, as in a loop that repeats a test: one event is enough
        if events and step.attribute and phrase(step) == events[-1].text and step.line == events[-1].line:
            continue
        kind = "wait" if step.verb.startswith(("waits", "wants", "sleeps")) else "step"
        event = TimelineEvent(
            kind, step.lane, phrase(step), step.file, step.line, step=step, writes=step.kind == "write"
        )
        events.append(event)
    events = with_stops(run, events)
    problem = run.problem
    assert problem is not None
    for lane, step in pending.items():
        # After a broken invariant, the next steps of the lanes show where each of them was stopped
        if problem.kind == "invariant" and visible(step, shared):
            events.append(
                TimelineEvent("stop", lane, f"was about to: {phrase(step)}", step.file, step.line, lane)
            )
    events.append(TimelineEvent("fail", problem.lane, problem.headline, problem.file, problem.line))
    return shortened(events)


def shortened(events: list[TimelineEvent]) -> list[TimelineEvent]:
    """Return the events; leave out the middle of a long story."""
    if len(events) <= MAX_STORY_EVENTS:
        return events
    half = MAX_STORY_EVENTS // 2
    gap = TimelineEvent("gap", events[half].lane, f"{len(events) - MAX_STORY_EVENTS:,} more steps")
    return [*events[:half], gap, *events[-half:]]


def switches(run: Run) -> dict[int, int]:
    """Return the steps before which a lane lost its turn although it could go on: step -> lane that ran next."""
    return {
        branch.step: branch.chosen
        for branch in run.branches
        if branch.current >= 0 and branch.chosen != branch.current
    }


def with_stops(run: Run, events: list[TimelineEvent]) -> list[TimelineEvent]:
    """Insert an event for each stop, before the first event of the next lane.

    The stopped step was recorded before the switch, so the steps of the next lane have larger indexes than it.
    """
    found: list[TimelineEvent] = []
    stops = sorted(switches(run).items())
    for event in events:
        while stops and event.step is not None and event.step.index > stops[0][0]:
            index, other = stops.pop(0)
            step = upcoming(events, run.steps[index])
            text = f"is stopped before it {phrase(step, values=False)}"
            found.append(TimelineEvent("stop", step.lane, text, step.file, step.line, other))
        found.append(event)
    return found


def upcoming(events: list[TimelineEvent], step: Step) -> Step:
    """Return the next step of the lane that the story shows: `step` itself, or the first one after it.

    The lane was stopped before `step`. The story may leave that step out, and a reader could not find it there. If
    the story shows no later step of the lane either, return `step`.
    """
    for event in events:
        if event.step is not None and event.lane == step.lane and event.step.index >= step.index:
            return event.step
    return step


def visible(step: Step, shared: set[tuple[int, str | None]]) -> bool:
    """Return whether a step belongs to the story."""
    if step.kind == "print":
        return True
    if step.kind == "life" or step.hidden:
        return False
    if step.kind == "sync":
        return step.key() in shared or step.verb not in UNIMPORTANT_VERBS
    return step.key() in shared


def phrase(step: Step, values: bool = True) -> str:
    """Describe a step in words: `reads self.n (3)`."""
    text = f"{step.verb} {name_of_object(step)}".strip()
    if values and step.attribute is not None:
        if step.verb == "writes" and step.attribute != "[]":
            text += f" = {step.after}" if step.after else ""
        elif step.writes and step.after and step.after != step.before:
            text += f" → {plain(step.after)}"
        elif step.before and not step.writes:
            text += f" ({plain(step.before)})"
    if values and step.note:
        text += f" ({step.note})"
    return text


def plain(value: str) -> str:
    """Return the text of a value; "empty" for an empty container."""
    return "empty" if value in ("[]", "{}", "set()", "0 items") else value


def sentences(names: list[str], events: list[TimelineEvent]) -> list[str]:
    """Describe the events, with a sentence for each turn of a lane."""
    found: list[str] = []
    turn: list[TimelineEvent] = []
    # The last event is of no lane (-2): it ends the turn before it
    for event in [*events, TimelineEvent("end", -2, "")]:
        if turn and (event.lane != turn[0].lane or event.kind in ("gap", "fail")):
            found.append(sentence(names, turn))
            turn = []
        if event.kind in ("gap", "fail"):
            found.append(f"{event.text}.")
        else:
            turn.append(event)
    return found


def sentence(names: list[str], turn: list[TimelineEvent]) -> str:
    """Describe one turn of a lane in a sentence."""
    parts = [f"{event.text}{at_line(event.line)}" for event in turn]
    if len(parts) > MAX_TURN_STEPS:
        first_parts, last_parts = parts[:3], parts[-(MAX_TURN_STEPS - 4) :]  # one part counts those left out
        left_out = len(parts) - MAX_TURN_STEPS + 1
        parts = [*first_parts, f"takes {left_out} more steps", *last_parts]
    words = ", ".join(parts[:-1])
    words = f"{words}, and {parts[-1]}" if words else parts[-1]
    return f"{names[turn[0].lane]} {words}."


# Why


def reasons(run: Run) -> list[str]:
    """Return the causes of the failure that the events show, as sentences."""
    problem = run.problem
    assert problem is not None
    if problem.kind == "deadlock":
        return circle(run, problem.waits) or [text for wait in problem.waits if (text := lonely(run, wait))]
    if problem.kind == "steps":
        return [
            "A thread that waits must block on a condition, an event or a queue. A loop that repeats a test takes "
            "the processor from the thread that it waits for."
        ]
    if not run.lanes[1:]:
        return ["This is not a race: the program fails before it starts a thread."]
    return lost_update(run) or stale_test(run) or needed_switches(run)


def circle(run: Run, waits: list[BlockedLane]) -> list[str]:
    """Describe a circle of lanes, in which each lane waits for a lock of the next one; [] without a circle.

    From each waiting lane a path goes to the holder of its lock, then to the holder of that lane's lock, and so on.
    If the path comes back to one of its lanes, the part from this lane on is the circle. If it ends, the next lane
    is tried.
    """
    waiting = {wait.lane: wait for wait in waits}
    for first in waiting:
        path = [first]
        while (wait := waiting.get(path[-1])) is not None and wait.holder is not None:
            if wait.holder in path:
                round_trip = path[path.index(wait.holder) :]
                break
            path.append(wait.holder)
        else:
            continue
        found = []
        for lane in round_trip:
            wait = waiting[lane]
            holder = "itself" if wait.holder == lane else run.lanes[wait.holder or 0].name
            held = f"holds {' and '.join(wait.holds)}" if wait.holds else "holds nothing"
            found.append(
                f"{run.lanes[lane].name} {held}, and waits for {wait.name}{at_line(wait.line)}, "
                f"which {holder} holds."
            )
        if len(round_trip) == 1:
            found.append("A Lock cannot be taken twice by one thread. Release it first, or use an RLock.")
        else:
            found.append(
                "No thread in this circle can go on. Have every thread take its locks in the same order."
            )
        return found
    return []


def lonely(run: Run, wait: BlockedLane) -> str:
    """Describe why a lane waits without end although there is no circle; "" if the cause is unknown."""
    name = run.lanes[wait.lane].name
    target = wait.target
    if run.lanes[wait.lane].daemon:  # a daemon may wait without end: the program does not wait for it
        return ""
    if isinstance(target, Condition):
        return missed_notify(run, wait)
    if isinstance(target, Event):
        return cleared_set(run, wait)
    if isinstance(target, Queue):
        side = "gets an item out of" if wait.verb.startswith("waits for room") else "puts an item into"
        return f"{name} {wait.verb} {wait.name}{at_line(wait.line)}, and no other thread {side} it any more."
    if isinstance(target, Semaphore):
        return f"{name} waits for {wait.name}{at_line(wait.line)}, and no thread releases it any more."
    if wait.holder is not None:
        holder = run.lanes[wait.holder]
        ended = ", which has ended," if holder.done else ""
        return (
            f"{name} waits for {wait.name}{at_line(wait.line)}; {holder.name}{ended} holds it and keeps it."
        )
    # The lane waits in join() for the end of a Thread: that thread is the cause
    if hasattr(target, "explored_lane"):
        return ""
    return f"{name} {wait.verb} {wait.name}{at_line(wait.line)} without end."


def missed_notify(run: Run, wait: BlockedLane) -> str:
    """Describe why no notify ends a lane's wait on a condition."""
    name = run.lanes[wait.lane].name
    began = begin_of(run, wait)
    silent = silent_change(run, wait, began)
    if silent is not None:
        return (
            f"A change without a notify: {run.lanes[silent.lane].name} {phrase(silent)}"
            f"{at_line(silent.line)} and "
            f"does not notify {wait.name}, on which {name} waits{at_line(wait.line)}. "
            "Call notify() with each change that a waiting thread tests. "
            "Call notify_all() if every waiting thread must see the change, as at a close."
        )
    calls = [step for step in executed(run, wait.target) if step.verb.startswith("notifies")]
    others = [step for step in calls if step.execution_index > began]
    if others:
        last = others[-1]
        return (
            f"{name} waits on {wait.name}{at_line(wait.line)}, and every notify woke another thread: "
            f"{run.lanes[last.lane].name} {last.verb} {wait.name}{at_line(last.line)}, and notify() wakes one "
            "thread, which you cannot choose. Call notify_all() if every thread must see the change (such as "
            "a close), or use a separate condition for each kind of waiting thread."
        )
    lost = [step for step in calls if step.note == LOST_NOTIFY]
    if lost:
        last = lost[-1]
        return (
            f"A lost wake-up: {run.lanes[last.lane].name} {last.verb} {wait.name}{at_line(last.line)} before "
            f"{name} begins to wait{at_line(wait.line)}, and a condition does not store a notify. "
            f"{name} has to "
            "hold the lock from its test to its wait: `with lock: while not …: wait()`."
        )
    if calls:
        return (
            f"{name} waits on {wait.name}{at_line(wait.line)}, and every notify came before. The thread that "
            f"makes the change for which {name} waits must call notify after the change."
        )
    return f"{name} waits on {wait.name}{at_line(wait.line)}, and no thread ever notifies it."


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


def tested_values(run: Run, wait: BlockedLane, began: int) -> dict[tuple[int, str | None], str]:
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
    values: dict[tuple[int, str | None], str] = {}
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
        for step in executed(run, condition)
    )


def time_of_lock(run: Run, lane: int, condition: Condition, moment: int) -> int:
    """Return when a lane took the lock that it holds at a moment; the moment itself if it does not hold it.

    moment and the result: an execution_index.
    """
    steps = sorted(
        (*executed(run, condition), *executed(run, condition.lock)), key=lambda step: step.execution_index
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
    steps = executed(run, wait.target)
    waits = f"{name} waits for {wait.name}{at_line(wait.line)}"
    last_set = max((index for index, step in enumerate(steps) if step.verb == "sets"), default=-1)
    if last_set < 0:
        return f"{waits}, and no thread ever sets it."
    clear = next(
        (index for index, step in enumerate(steps) if index > last_set and step.verb == "clears"), None
    )
    if clear is None:  # an invariant has cleared it: its calls are no steps
        return f"{waits} without end."
    was_set = f"{run.lanes[steps[last_set].lane].name} sets {wait.name}{at_line(steps[last_set].line)}"
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
    steps = executed(run, wait.target)
    return max(step.execution_index for step in steps if step.lane == wait.lane and step.verb == wait.verb)


def executed(run: Run, target: object) -> list[Step]:
    """Return the steps on an object, in the order of their execution."""
    steps = [step for step in run.steps if step.target is target and step.execution_index >= 0]
    return sorted(steps, key=lambda step: step.execution_index)


def lost_update(run: Run) -> list[str]:
    """Find a read, then a write of another lane, and then a write of the first lane that ignores it.

    Return it in sentences; [] if there is none. Only a read and a write of one line count, as in `n += 1`: the
    new value is then computed from the old one.
    """
    for first, between, last in interrupted(run):
        if last.writes and last.verb == "writes" and first.line == last.line and between.verb == "writes":
            saw = f" ({first.before})" if first.before else ""
            wrote = f" {last.after}" if last.after else ""
            return [
                f"A lost update: {name(run, first)} reads {first.name}{saw}{at_line(first.line)}. Before it "
                f"writes, {name(run, between)} writes {between.name}{at_line(between.line)}. Then "
                f"{name(run, last)} writes"
                f"{wrote or ' its value'}, computed from the old value, and the change of {name(run, between)} is "
                "lost.",
                "Reading, changing and writing must be one step for other threads: put one lock around all three, "
                "in every thread.",
            ]
    return []


def stale_test(run: Run) -> list[str]:
    """Find a test of a lane, a change of the tested object by another lane, and the use of the old answer.

    Return it in sentences; [] if there is none. The last such use before the failure is the likely cause.
    """
    problem = run.problem
    assert problem is not None
    found = list(interrupted(run))
    for first, between, last in reversed(found):
        # An assertion fails in the lane that checks the result; an exception in the lane that used the old answer
        if problem.kind in ("assertion", "invariant"):
            fits = last.lane != problem.lane and last.line != first.line and first.kind == "read"
        else:
            fits = last.lane == problem.lane and abs(last.line - problem.line) <= MAX_LINES_TO_FAILURE
        if fits:
            return [
                f"A test that is no longer true: {name(run, first)} {phrase(first)}{at_line(first.line)}. Before "
                f"it uses the answer{at_line(last.line)}, {name(run, between)} {phrase(between, values=False)} "
                f"[line {between.line}].",
                advice_to_test_again(run, first, last)
                or "The test and its use must be one step for other threads: hold one lock over both.",
            ]
    return []


def advice_to_test_again(run: Run, first: Step, last: Step) -> str:
    """Explain how to wait between a test and its use; "" if the lane did not wait there."""
    for step in run.steps:
        inside = (
            first.execution_index < step.execution_index < last.execution_index and step.lane == first.lane
        )
        if inside and isinstance(step.target, Condition) and step.verb.startswith("waits on"):
            return (
                f"{name(run, step)} waits on {name_of_object(step)} in between{at_line(step.line)}. After the"
                " wake-up, another thread may be the first to get the lock, so this thread must test again: "
                "`while`, not `if`."
            )
    return ""


def needed_switches(run: Run) -> list[str]:
    """Describe the first three switches of the schedule, for a failure without a known pattern.

    The schedule is already shrunk (shrink.py): without any of its switches the program passes.
    """
    found = []
    for index, other in switches(run).items():
        step = run.steps[index]
        found.append(
            f"The failure depends on this switch: {run.lanes[step.lane].name} is stopped before it "
            f"{phrase(step, values=False)}{at_line(step.line)}, and {run.lanes[other].name} goes on."
        )
    return found[:3]


def interrupted(run: Run) -> list[tuple[Step, Step, Step]]:
    """Return triples of steps on one object: use by a lane, write by another lane, next use by the first lane."""
    found: list[tuple[Step, Step, Step]] = []
    last_uses: dict[tuple[tuple[int, str | None], int], Step] = {}  # (part of an object, lane) -> step
    last_writes: dict[tuple[int, str | None], Step] = {}  # part of an object -> step of any lane
    for step in sorted(
        (step for step in run.steps if step.execution_index >= 0), key=lambda step: step.execution_index
    ):
        if step.attribute is None:
            continue
        key = step.key()
        own_use = last_uses.get((key, step.lane))
        write = last_writes.get(key)
        if own_use is None or write is None or own_use.writes:
            pass  # the lane has not read the part before, so it has no old value
        elif write.lane != step.lane and write.execution_index > own_use.execution_index:
            found.append((own_use, write, step))
        last_uses[key, step.lane] = step
        if step.writes:
            last_writes[key] = step
    return found


def name(run: Run, step: Step) -> str:
    """Return the name of the lane that made a step."""
    return run.lanes[step.lane].name


def at_line(line: int) -> str:
    """Return a line number for a message: ` [line 12]`; "" outside the student's file."""
    return f" [line {line}]" if line else ""
