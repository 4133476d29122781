"""The reasons why a wait never ends, as sentences.

When no thread can go on, each thread has ended or waits. For each thread that waits, a reason has two parts:

- the history of the object: which thread has taken the lock, got the items of the queue, or called set();
- the state of the thread that could have ended the wait: it has ended, or it waits itself, and for what.

Both come from the run at its failure. After the failure the scheduler ends every thread, so Lane.has_ended says
nothing about the end of a thread before the failure. The step "ends" of a thread does.

    waits ── a circle? ──▶ find_circle(): each thread holds what the next one needs, or joins it
      └────── else ──────▶ reason_of_one():   one sentence for each waiting thread, by the kind of the object

Read next: notifies.py, which explains waits on conditions and for events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ewe_explore.network import Selection, Socket
from ewe_explore.notifies import cleared_set, missed_notify, steps_on
from ewe_explore.primitives import Barrier, Condition, Event, Semaphore
from ewe_explore.queues import Queue
from ewe_explore.scheduler import RECENT_STEPS, BlockedLane, Lane, Run, Step, name_of_object
from ewe_explore.wording import at_line, listed, whole_name

MAX_REASONS = 5  # the most sentences about waits
MAX_NAMES = 3  # the most threads that one sentence names


def reasons_of_deadlock(run: Run, waits: list[BlockedLane]) -> list[str]:
    """Return why the lanes of a deadlock wait without end: a circle, or a sentence for each lane."""
    circle = find_circle(waits)
    if len(circle) > 1:
        return circle_in_words(run, circle)
    if circle:  # a lane waits for its own lock: another lane may have to release it
        others = [wait for wait in waits if wait is not circle[0] and awaited(wait) is None]
        return circle_in_words(run, circle) + shared_reasons(run, others)
    # A daemon may wait without end, unless the end of the program depends on it
    needed = {awaited(wait) for wait in waits}
    reported = [wait for wait in waits if not run.lanes[wait.lane].daemon or wait.lane in needed] or waits
    return shared_reasons(run, reported) + unstarted(run)


def shared_reasons(run: Run, waits: list[BlockedLane]) -> list[str]:
    """Return the reasons of these waits. Lanes that wait for the same reason share one sentence."""
    # The line of the wait and the reason without the lane's name -> the reason, the names of all its lanes
    groups: dict[str, tuple[str, list[str]]] = {}
    for wait in waits:
        text = reason_of_one(run, wait)
        name = run.lanes[wait.lane].name
        if text:
            groups.setdefault(f"{wait.line} {whole_name(name).sub('', text)}", (text, []))[1].append(name)
    found = []
    for text, names in groups.values():
        rest = names[1:]
        also = f" {listed(rest)} {'waits' if len(rest) == 1 else 'wait'} for the same reason." if rest else ""
        found.append(text + also)
    if len(found) > MAX_REASONS:
        found[MAX_REASONS:] = [f"{len(found) - MAX_REASONS} more threads wait for other reasons."]
    return found


def awaited(wait: BlockedLane) -> int | None:
    """Return the lane that could end a wait: the owner of the lock, or the lane that a join() waits for."""
    joined = getattr(wait.target, "explored_lane", None)
    return joined.number if isinstance(joined, Lane) else wait.holder


def is_join(wait: BlockedLane) -> bool:
    """Return whether a lane waits for the end of a thread."""
    return hasattr(wait.target, "explored_lane")


def find_circle(waits: list[BlockedLane]) -> list[BlockedLane]:
    """Find a circle of waits (a circular wait), in which each lane waits for the next one; [] without a circle.

    From each waiting lane a path goes to the lane that it waits for, then to the lane that this one waits for, and
    so on. If the path comes back to one of its lanes, the part from this lane on is the circle. If it ends, the
    next lane is tried.
    """
    waiting = {wait.lane: wait for wait in waits}
    for first in waiting:
        path = [first]
        while (wait := waiting.get(path[-1])) is not None and (following := awaited(wait)) is not None:
            if following in path:
                return [waiting[lane] for lane in path[path.index(following) :]]
            path.append(following)
    return []


def circle_in_words(run: Run, circle: list[BlockedLane]) -> list[str]:
    """Return a sentence for each lane of a circle, and one that says how to avoid it."""
    return [*(step_of_circle(run, wait) for wait in circle), advice_for_circle(circle)]


def step_of_circle(run: Run, wait: BlockedLane) -> str:
    """Describe one lane of a circle: what it holds, and which lane it waits for."""
    name = run.lanes[wait.lane].name
    held = f"holds {' and '.join(wait.holds)}, and " if wait.holds else ""
    if is_join(wait):
        return f"{name} {held}waits for the end of {wait.name}{at_line(wait.line)}."
    lock = f"the lock of {wait.name}" if isinstance(wait.target, Condition) else wait.name
    assert wait.holder is not None  # each wait of a circle has a holder, perhaps the lane itself: awaited()
    holder = "it holds itself" if wait.holder == wait.lane else f"{run.lanes[wait.holder].name} holds"
    return f"{name} {held}waits for {lock}{at_line(wait.line)}, which {holder}."


def advice_for_circle(waits: list[BlockedLane]) -> str:
    """Return how to avoid a circle of waits."""
    if len(waits) == 1:
        return (
            "A Lock cannot be taken twice by one thread. Release it first, or use an RLock. If the lock is a "
            "signal between threads, another thread must release it, and no thread does."
        )
    joins = sum(map(is_join, waits))
    if joins == len(waits):
        advice = "A thread that another thread joins must not join that thread."
    elif joins:
        advice = "Release a lock before you join a thread that needs it."
    else:
        advice = "Have every thread take its locks in the same order."
    return f"No thread in this circle can go on. {advice}"


def reason_of_one(run: Run, wait: BlockedLane) -> str:
    """Describe why a lane waits without end although there is no circle; "" for a join.

    A lane that joins a thread waits because this thread waits, and that wait has its own sentence.
    """
    if is_join(wait):
        return ""
    if wait.holder is not None:
        return kept_lock(run, wait, wait.holder)
    for kind, describe in REASONS:
        if isinstance(wait.target, kind):
            return describe(run, wait)
    text = f"{wait_clause(run, wait)}, and no other thread can end this wait any more."
    return f"{text} {others_of(run, wait)}".rstrip()


# The states of lanes


def has_ended(run: Run, lane: int) -> bool:
    """Return whether a lane had ended before the failure. Lane.has_ended is true of all lanes after a run."""
    return any(step.lane == lane and step.kind == "life" and step.verb == "ends" for step in run.steps)


def state_in_words(run: Run, lane: int, ended: str = "has ended") -> str:
    """Return the state of a lane at the failure, as a predicate. ended: the predicate of a lane that has ended."""
    if has_ended(run, lane):
        return ended
    for wait in run.problem.waits if run.problem is not None else []:
        if wait.lane == lane:
            return f"{wait.verb} {wait.name}".rstrip() + at_line(wait.line)
    return "goes round in its loop" if lane in recent_lanes(run) else "could go on"


def others_of(run: Run, wait: BlockedLane) -> str:
    """Describe the states of the other threads that the program has started; "" if there are none."""
    others = [lane.number for lane in run.lanes[1:] if lane.number != wait.lane]
    texts = [f"{run.lanes[lane].name} {state_in_words(run, lane)}" for lane in others[:MAX_NAMES]]
    return f"{'; '.join(texts)}." if texts and len(others) <= MAX_NAMES else ""


def unstarted(run: Run) -> list[str]:
    """Name the threads that the program makes and does not start: one of them could have ended a wait."""
    names = [thread.explorer_label for thread in run.threads if thread.explored_lane is None]
    if not names:
        return []
    return [
        f"The program makes {listed(names)}, and does not call start() of {'it' if len(names) == 1 else 'them'}."
    ]


def steps_of_verb(run: Run, target: object, verb: str) -> dict[int, list[Step]]:
    """Return the steps of a verb that succeeded, by lane. An attempt that led to a wait is hidden."""
    found: dict[int, list[Step]] = {}
    for step in steps_on(run, target):
        if step.verb == verb and not step.hidden and not step.failed:
            found.setdefault(step.lane, []).append(step)
    return found


def latest(found: dict[int, list[Step]]) -> Step | None:
    """Return the last one of the steps of steps_of_verb(); None without any."""
    steps = [step for each in found.values() for step in each]
    return max(steps, key=lambda step: step.execution_index, default=None)


def wait_clause(run: Run, wait: BlockedLane) -> str:
    """Return a clause without its full stop: `worker 1 waits for room in q [line 5]`."""
    return f"{run.lanes[wait.lane].name} {wait.verb} {wait.name}{at_line(wait.line)}"


def name_or_it(run: Run, step: Step, wait: BlockedLane) -> str:
    """Return the name of the lane of a step; "it" for the lane that waits."""
    return "it" if step.lane == wait.lane else run.lanes[step.lane].name


# One kind of wait each


def kept_lock(run: Run, wait: BlockedLane, holder: int) -> str:
    """Describe why a lock stays with its holder. The wait may be the end of a wait on a condition."""
    name, other = run.lanes[wait.lane].name, run.lanes[holder].name
    lock = wait.target.lock if isinstance(wait.target, Condition) else wait.target
    taken = latest({holder: steps_of_verb(run, lock, "acquires").get(holder, [])})
    line = at_line(taken.line) if taken is not None else ""
    if wait.notified is not None:
        notifier = run.lanes[wait.notified.lane].name
        text = (
            f"{name} waits on {wait.name}{at_line(wait.line)}. {notifier} {wait.notified.verb} it"
            f"{at_line(wait.notified.line)}, and wait() must take the lock again before it returns. "
        )
    elif isinstance(wait.target, Condition):
        text = (
            f"The timeout of the wait of {name} on {wait.name}{at_line(wait.line)} is over, and wait() must "
            "take the lock again before it returns. "
        )
    else:
        text = f"{name} waits for {wait.name}{at_line(wait.line)}. "
    text += f"{other} took the lock{line}, and "
    if has_ended(run, holder):
        return f"{text}has ended without a release. Release it on every path, as `with` does."
    return (
        f"{text}holds it while it {state_in_words(run, holder)}. A thread that waits for other threads must hold "
        "no lock that they need."
    )


def empty_semaphore(run: Run, wait: BlockedLane) -> str:
    """Describe where the places of a semaphore have gone."""
    taken, released = steps_of_verb(run, wait.target, "acquires"), steps_of_verb(run, wait.target, "releases")
    last = latest(released)
    use = "ever releases it" if last is None else "releases it any more"
    text = f"{wait_clause(run, wait)}, and no thread {use}."
    if last is not None and any(len(each) > len(taken.get(lane, [])) for lane, each in released.items()):
        # A signal: one lane releases it, and another one acquires it
        user = latest(taken)
        used = (
            f", and {name_or_it(run, user, wait)} acquired it{at_line(user.line)}" if user is not None else ""
        )
        text += f" {capital(name_or_it(run, last, wait))} released it last{at_line(last.line)}{used}."
        return f"{text} Each acquire needs a release."
    holders = [lane for lane, each in taken.items() if len(each) > len(released.get(lane, []))]
    for lane in holders[:MAX_NAMES]:
        line = at_line(taken[lane][-1].line)
        if lane == wait.lane:
            text += f" It has acquired it before{line}, without a release."
            continue
        does = state_in_words(run, lane, ended="has ended without a release")
        text += f" {run.lanes[lane].name} acquired it{line}, and {does}."
    return text if holders else f"{text} Its counter is 0 from the start."


def unserved_queue(run: Run, wait: BlockedLane) -> str:
    """Describe why a get(), a put() or a join() of a queue never ends."""
    puts, gets = steps_of_verb(run, wait.target, "puts into"), steps_of_verb(run, wait.target, "gets from")
    if wait.verb.startswith("waits for the last"):
        return undone_items(run, wait, gets)
    last_put, last_get = latest(puts), latest(gets)
    if wait.verb.startswith("waits for room"):
        if last_get is None:
            return f"{wait_clause(run, wait)}, which is full, and no thread ever gets an item out of it."
        return (
            f"{wait_clause(run, wait)}, which is full, and no other thread gets an item out of it any more. "
            f"{last_use(run, last_get, wait, 'got an item')}"
        )
    if last_put is None:
        return f"{wait_clause(run, wait)}, and no thread ever puts an item into it."
    text = f"{wait_clause(run, wait)}, and no other thread puts an item into it any more. "
    text += last_use(run, last_put, wait, "put an item into it")
    if last_get is not None:
        text += f" {capital(name_or_it(run, last_get, wait))} got the last one{at_line(last_get.line)}."
    if len({*gets, wait.lane}) > 1:
        text += (
            " Each thread that gets needs an item: to end several threads, put an end mark for each of them."
        )
    return text


def last_use(run: Run, step: Step, wait: BlockedLane, verb: str) -> str:
    """Return a sentence about the last use of an object, and the state of its lane. verb: of the use."""
    if step.lane == wait.lane:
        return f"It {verb} itself{at_line(step.line)}, the last time."
    return (
        f"{run.lanes[step.lane].name} {verb} last{at_line(step.line)}, and {state_in_words(run, step.lane)}."
    )


def undone_items(run: Run, wait: BlockedLane, gets: dict[int, list[Step]]) -> str:
    """Describe which items of a queue lack a task_done()."""
    done = steps_of_verb(run, wait.target, "marks an item done in")
    count = wait.target.unfinished_tasks
    text = (
        f"{wait_clause(run, wait)}: {count} item{'s lack their' if count != 1 else ' lacks its'} task_done()."
    )
    if not gets:
        return f"{text} No thread ever gets an item out of it."
    guilty = [lane for lane, each in gets.items() if len(each) > len(done.get(lane, []))]
    for lane in guilty[:MAX_NAMES]:
        ended = "has ended without task_done()"
        name = "It" if lane == wait.lane else run.lanes[lane].name
        does = "waits without task_done()" if lane == wait.lane else state_in_words(run, lane, ended)
        text += f" {name} got an item{at_line(gets[lane][-1].line)}, and {does}."
    last = latest(gets)
    if not guilty and last is not None:
        text += f" {last_use(run, last, wait, 'got an item')} The other items are still in the queue."
    return text


def few_at_barrier(run: Run, wait: BlockedLane) -> str:
    """Describe how many threads a barrier still needs, and where the others are."""
    barrier = wait.target
    came = barrier.round.count
    if came == barrier.parties:
        text = f"{wait_clause(run, wait)}: all {came} threads have come, and the action does not end."
        return f"{text} {others_of(run, wait)}".rstrip()
    here = (
        {each.lane for each in run.problem.waits if each.target is barrier}
        if run.problem is not None
        else set()
    )
    away = [lane.number for lane in run.lanes[1:] if lane.number not in here]
    have = "has" if came == 1 else "have"
    text = f"{wait_clause(run, wait)}, which needs {barrier.parties} threads: only {came} {have} come."
    states = [f"{run.lanes[lane].name} {state_in_words(run, lane)}" for lane in away[:MAX_NAMES]]
    return f"{text} {'; '.join(states)}." if states else text


def silent_socket(run: Run, wait: BlockedLane) -> str:
    """Describe why no bytes, no room and no connection come to a socket."""
    target, text = wait.target, wait_clause(run, wait)
    if wait.verb.startswith("waits for a connection"):
        return f"{text}, and no other thread connects to it any more. {others_of(run, wait)}".rstrip()
    if wait.verb.startswith("waits for room in the backlog"):
        full = f"The backlog is full: {text}, and no thread accepts a connection any more."
        return f"{full} {others_of(run, wait)}".rstrip()
    if wait.verb.startswith("waits for room"):
        text += ": the bytes that it has sent fill the buffer, and no thread reads them any more."
    else:
        text += ": no bytes come, and no thread closes the other end."
    other_end = target.other_end
    if other_end is not None and other_end.is_in_backlog:
        return f"{text} No thread has accepted this connection. {others_of(run, wait)}".rstrip()
    uses = steps_on(run, other_end)
    if uses:
        return f"{text} {last_use(run, uses[-1], wait, 'used the other end')}"
    return f"{text} No thread uses the other end. {others_of(run, wait)}".rstrip()


def silent_selection(run: Run, wait: BlockedLane) -> str:
    """Describe why select(), poll() or epoll never returns."""
    return (
        f"{wait_clause(run, wait)}: none of its sockets gets bytes, a connection or an end, and no other thread "
        f"can cause one any more. {others_of(run, wait)}"
    ).rstrip()


REASONS: list[tuple[type, Callable[[Run, BlockedLane], str]]] = [
    (Condition, missed_notify),
    (Event, cleared_set),
    (Queue, unserved_queue),
    (Semaphore, empty_semaphore),
    (Barrier, few_at_barrier),
    (Socket, silent_socket),
    (Selection, silent_selection),
]


# Loops


def recent_lanes(run: Run) -> set[int]:
    """Return the lanes that have made the last steps of a run without an end."""
    if run.problem is None or run.problem.kind != "steps":
        return set()
    return {step.lane for step in run.steps[-RECENT_STEPS:]}


def reasons_of_loop(run: Run, waits: list[BlockedLane]) -> list[str]:
    """Return why a loop does not end: its test, the threads that do not change it, and those that need its lock."""
    looping = recent_lanes(run)
    recent = run.steps[-RECENT_STEPS:]
    changed = {step.key() for step in recent if step.writes}
    unchanged = [
        step for step in recent if step.kind != "print" and not step.writes and step.key() not in changed
    ]
    found = []
    for lane in sorted(looping)[:MAX_NAMES]:
        tests = [step for step in unchanged if step.lane == lane]
        if tests:
            found.append(unchanged_test(run, lane, tests[-1], looping))
    found += [
        kept_lock(run, wait, wait.holder)
        for wait in waits
        if wait.holder in looping and wait.holder is not None
    ]
    sleeps = any(step.verb.startswith("sleeps") for step in recent)
    return [
        *found,
        *unstarted(run),
        "A thread that waits must block on a condition, an event or a queue. A loop that repeats a test "
        + (
            "sees a change late, and uses the processor at each test."
            if sleeps
            else "takes the processor from the thread that it waits for."
        ),
    ]


def unchanged_test(run: Run, lane: int, test: Step, looping: set[int]) -> str:
    """Describe the test that a loop repeats, and the lanes that do not change its result."""
    others: Iterable[int] = (each.number for each in run.lanes[1:] if each.number not in {lane, *looping})
    states = [f"{run.lanes[other].name} {state_in_words(run, other)}" for other in others]
    tests = f"{run.lanes[lane].name} tests {name_of_object(test)}{at_line(test.line)} in its loop"
    text = f"{tests}, and no thread changes it"
    if not states or len(states) > MAX_NAMES:
        return f"{text}."
    return f"{text}: {'; '.join(states)}."


def capital(text: str) -> str:
    """Return a text; "It" for "it". A thread's name stays as it is."""
    return "It" if text == "it" else text
