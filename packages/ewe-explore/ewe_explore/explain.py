"""The story of a failure: the events in words, and the cause.

The explorer runs a failing schedule once more, and this time records the value at every step. A reader needs only
some of the steps: locks, queues and conditions, and the variables that several threads use. The story has three
parts:

- events: these steps in the order of their execution, and each moment at which a thread was stopped;
- sentences: the same in words, with a sentence for each turn of a thread;
- why: the pattern in the events, if it is a pattern from the textbooks: a circle of locks, a lost wake-up, a lost
  update, a test that was no longer true.

Read next: waits.py, which explains waits without end; timeline.py and page.py, which draw a story.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ewe_explore.primitives import Condition
from ewe_explore.scheduler import PartKey, Run, Step, name_of_object
from ewe_explore.search import shared_keys
from ewe_explore.waits import has_ended, reasons_of_deadlock, reasons_of_loop
from ewe_explore.wording import at_line, phrase, whole_name

UNIMPORTANT_VERBS = {"looks at", "looks at the size of", "is about to start"}
LOOP_STEPS = 200  # of an endless loop: the story shows the variables of its last steps
MAX_STORY_EVENTS = 160  # the most events of a story; a longer story loses its middle
MAX_FOLDED_STORY_EVENTS = 600  # of a story with folded lanes: a terminal shows few of their steps
MAX_LANES = 8  # the most lanes that a timeline draws without folding any
MAX_LINES_TO_FAILURE = 30  # lines between a use and the failure that it explains
MAX_TURN_STEPS = 7  # the most steps in the sentence of one turn


@dataclass
class TimelineEvent:
    """A row of the timeline.

    kind: step, wait (the lane blocks), stop (a switch), gap (rows are left out), fail. lane: its number. other: for
    a stop, the lane that runs next.
    """

    kind: str
    lane: int
    text: str
    file: str = ""
    line: int = 0
    other: int = -1
    step: Step | None = None
    writes: bool = False


@dataclass
class Story:
    """A failure with all texts that a timeline or a page shows.

    lanes: their names, by number. headline, kind: of the Problem. why: the causes, as sentences. sentences: the
    events in words.
    """

    lanes: list[str]
    events: list[TimelineEvent]
    headline: str
    why: list[str]
    sentences: list[str]
    kind: str
    files: dict[str, set[int]] = field(default_factory=dict)  # file -> lines of the events
    facts: dict[str, str] = field(default_factory=dict)
    folded: list[int] = field(
        default_factory=list
    )  # the lanes that a timeline shows as one lane (folding.py)
    folded_states: str = ""  # the states of these lanes at the failure: `20 ended, 5 blocked`


def story_of(run: Run) -> Story:
    """Return the story of a failed run. The run must be detailed."""
    assert run.problem is not None
    events, why = events_of(run), reasons(run)
    folded = lanes_to_fold(run, events, [run.problem.headline, *why])
    events = shortened(events, folded)
    files: dict[str, set[int]] = {}
    for event in events:
        if event.file.startswith(run.options.own_directories):
            files.setdefault(event.file, set()).add(event.line)
    if run.problem.file.startswith(run.options.own_directories):
        files.setdefault(run.problem.file, set()).add(run.problem.line)
    names = [lane.name for lane in run.lanes]
    return Story(
        names, events, run.problem.headline, why, sentences(names, events), run.problem.kind, files,
        folded=folded, folded_states=states_in_words(run, folded),
    )  # fmt: skip


def lanes_to_fold(run: Run, events: list[TimelineEvent], texts: list[str]) -> list[int]:
    """Return the lanes that do not explain a failure, if there are too many lanes to draw each of them.

    The other lanes are those that failed, that were stopped or got the turn instead, and that a text names: the
    headline and the reasons. Up to MAX_LANES, the lanes that wait at the end are also drawn.
    """
    assert run.problem is not None
    used = {event.lane for event in events}
    if len(used) <= MAX_LANES:
        return []
    kept = {run.problem.lane}
    for event in events:
        if event.kind == "stop" and event.other != event.lane:
            kept |= {event.lane, event.other}
    text = " ".join(texts)
    kept |= {lane for lane in used if whole_name(run.lanes[lane].name).search(text)}
    for wait in run.problem.waits:
        if len(kept) < MAX_LANES:
            kept.add(wait.lane)
    folded = sorted(used - kept)
    return folded if len(folded) > 1 else []


def states_in_words(run: Run, lanes: list[int]) -> str:
    """Return the states of lanes at the failure: `20 ended, 5 blocked`, or `ended` if all have the same."""
    waiting = {wait.lane for wait in run.blocked_at_end}
    ended = sum(has_ended(run, lane) for lane in lanes)
    waits = sum(lane in waiting for lane in lanes)
    parts = [(ended, "ended"), (waits, "blocked"), (len(lanes) - ended - waits, "could go on")]
    found = [(count, words) for count, words in parts if count]
    if len(found) == 1:
        return found[0][1]
    return ", ".join(f"{count} {words}" for count, words in found)


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
    events = with_stops(
        run,
        events_of_steps(step for step in happened if visible(step, shared) and step.index >= first_index),
    )
    problem = run.problem
    assert problem is not None
    for lane, step in pending.items():
        # After a broken invariant, the next steps of the lanes show where each of them was stopped
        if problem.kind == "invariant" and visible(step, shared):
            events.append(
                TimelineEvent("stop", lane, f"was about to: {phrase(step)}", step.file, step.line, lane)
            )
    events.append(TimelineEvent("fail", problem.lane, problem.headline, problem.file, problem.line))
    return events


def events_of_steps(steps: Iterable[Step]) -> list[TimelineEvent]:
    """Return the events of steps, without repetitions."""
    events: list[TimelineEvent] = []
    for step in steps:
        # The same line again with the same text, as in a loop that repeats a test: one event is enough
        if events and step.attribute and phrase(step) == events[-1].text and step.line == events[-1].line:
            continue
        kind = "wait" if step.verb.startswith(("waits", "wants", "sleeps")) else "step"
        event = TimelineEvent(
            kind, step.lane, phrase(step), step.file, step.line, step=step, writes=step.kind == "write"
        )
        events.append(event)
    return events


def shortened(events: list[TimelineEvent], folded: list[int]) -> list[TimelineEvent]:
    """Return the events; leave out the middle of a long story. folded: the lanes that share one lane."""
    most = MAX_FOLDED_STORY_EVENTS if folded else MAX_STORY_EVENTS
    if len(events) <= most:
        return events
    half = most // 2
    gap = TimelineEvent("gap", events[half].lane, f"{len(events) - most:,} more steps")
    return [*events[:half], gap, *events[-half:]]


def switches(run: Run) -> dict[int, int]:
    """Return the steps before which a lane lost its turn although it could go on: step -> lane that ran next."""
    return {
        branch.step: branch.chosen
        for branch in run.branches
        if branch.default_goes_on and branch.chosen != branch.default
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


def visible(step: Step, shared: set[PartKey]) -> bool:
    """Return whether a step belongs to the story."""
    if step.kind == "print":
        return True
    if step.kind == "life" or step.hidden:
        return False
    if step.kind == "sync":
        return step.key() in shared or step.verb not in UNIMPORTANT_VERBS
    return step.key() in shared


def sentences(names: list[str], events: list[TimelineEvent]) -> list[str]:
    """Describe the events, with a sentence for each turn of a lane."""
    found: list[str] = []
    turn: list[TimelineEvent] = []
    for event in events:
        is_of_no_turn = event.kind in ("gap", "fail")
        if turn and (is_of_no_turn or event.lane != turn[0].lane):
            found.append(sentence(names, turn))
            turn = []
        if is_of_no_turn:
            found.append(f"{event.text}.")
        else:
            turn.append(event)
    if turn:
        found.append(sentence(names, turn))
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
        found = reasons_of_deadlock(run, problem.waits)
        # The switch may have sent the holder of a lock on a path without a release
        holder_has_ended = any(
            wait.holder is not None and has_ended(run, wait.holder) for wait in problem.waits
        )
        return found + (needed_switches(run) if holder_has_ended else [])
    if problem.kind == "steps":
        return reasons_of_loop(run, problem.waits)
    if len(run.lanes) == 1:
        return ["This is not a race: the program fails before it starts a thread."]
    return lost_update(run) or stale_test(run) or needed_switches(run)


def lost_update(run: Run) -> list[str]:
    """Find a read, then a write of another lane, and then a write of the first lane that ignores it.

    Return it in sentences; [] if there is none. Only a read and a write of one line count, as in `n += 1`: the
    new value is then computed from the old one.
    """
    for first, between, last in interrupted_uses(run):
        if last.writes and last.verb == "writes" and first.line == last.line and between.verb == "writes":
            saw = f" ({first.before})" if first.before else ""
            wrote = f" {last.after}" if last.after else ""
            return [
                f"A lost update: {lane_name(run, first)} reads {first.name}{saw}{at_line(first.line)}. Before it "
                f"writes, {lane_name(run, between)} writes {between.name}{at_line(between.line)}. Then "
                f"{lane_name(run, last)} writes{wrote or ' its value'}, computed from the old value, and the "
                f"change of {lane_name(run, between)} is lost.",
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
    for first, between, last in reversed(interrupted_uses(run)):
        # An assertion fails in the lane that checks the result; an exception in the lane that used the old answer
        if problem.kind in ("assertion", "invariant"):
            fits = last.lane != problem.lane and last.line != first.line and first.kind == "read"
        else:
            fits = last.lane == problem.lane and abs(last.line - problem.line) <= MAX_LINES_TO_FAILURE
        if fits:
            return [
                f"A test that is no longer true: {lane_name(run, first)} {phrase(first)}{at_line(first.line)}. "
                f"Before it uses the answer{at_line(last.line)}, {lane_name(run, between)} "
                f"{phrase(between, values=False)} [line {between.line}].",
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
                f"{lane_name(run, step)} waits on {name_of_object(step)} in between{at_line(step.line)}. After the"
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
            f"{half_made_change(run, step, other)}"
        )
    return found[:3]


def half_made_change(run: Run, stopped: Step, other: int) -> str:
    """Name the last change before a stop that the next lane sees; "" if it sees none of the stopped lane.

    The stopped lane may have published an object that it has not completed yet. other: the lane that goes on.
    """
    before = {
        step.key(): step
        for step in sorted(run.steps, key=lambda step: step.execution_index)
        if step.lane == stopped.lane
        and step.writes
        and step.attribute is not None
        and step.index < stopped.index
    }
    for step in run.steps[stopped.index + 1 :]:
        if step.lane == stopped.lane and step.execution_index >= 0:
            break
        if step.lane == other and step.key() in before and not step.writes:
            change = before[step.key()]
            reads = f"{run.lanes[other].name} then {phrase(step, values=False)}{at_line(step.line)}"
            writes = f"{lane_name(run, change)} {phrase(change, values=False)}{at_line(change.line)}"
            return f" {reads}: {writes} before the switch, and has not gone on since."
    return ""


class InterruptedUse(NamedTuple):
    """Three steps on one part of an object. first, last: a read of a lane, and its next use. between: a write of
    another lane.
    """

    first: Step
    between: Step
    last: Step


def interrupted_uses(run: Run) -> list[InterruptedUse]:
    """Return the uses of a part of an object that another lane has interrupted by a write, in their order."""
    found: list[InterruptedUse] = []
    last_uses: dict[tuple[PartKey, int], Step] = {}  # (part of an object, lane) -> step
    last_writes: dict[PartKey, Step] = {}  # part of an object -> step of any lane
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
            found.append(InterruptedUse(own_use, write, step))
        last_uses[key, step.lane] = step
        if step.writes:
            last_writes[key] = step
    return found


def lane_name(run: Run, step: Step) -> str:
    """Return the name of the lane that made a step."""
    return run.lanes[step.lane].name
