"""The most telling moments of a trace, in words with numbers: six of the server, fewer if less has happened.

    the longest wait for a worker       a connection was in the backlog or in the queue, and no worker took it
    the deepest queue                   most connections waited for a worker at once
    the first refusal                   a limit was reached, and a client got no connection
    a worker held by its client         it waited for one silent or slow client while others waited for a worker
    a worker that outlives its client   it stays occupied after the server has seen that its client has left
    the client that was served last     others that came later got their first byte before it, or it got none

behind_moments.py adds those of X-Switch and of the database daemon. Each moment has a begin and an end, so that a
page can zoom to it. A wait below WORTH_SECONDS is no moment: each connection waits a little until a thread
has woken up.

A trace knows that a client has left once the server has noticed it. The server watches the client while it waits
for a program or for another server. It does not while a function call computes in the worker: such a call may
outlive its client, and the trace does not show it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from ewe_watch.behind_moments import behind_moments
from ewe_watch.moment import LONG_SECONDS, WORTH_SECONDS, Moment, duration
from ewe_watch.story import BACKLOG, OCCUPYING, QUEUED, TICK_S, Span, TracedConnection, TraceStory

WAITING = (BACKLOG, QUEUED)  # the states in which a connection needs a worker and has none


@dataclass
class Stint:
    """The time for which a worker is occupied by one connection. on_client: its spans that the client decides."""

    worker: str
    connection: str
    begin: float
    end: float
    on_client: list[Span]

    def standstill_s(self) -> float:
        """Return for how many seconds the worker waited for its client."""
        return sum(span.end - span.begin for span in self.on_client)


class WorkerWait(NamedTuple):
    """A wait for a worker. backlog_s: the seconds of it in the kernel's backlog. goes_on: it is cut by the end."""

    connection: str
    begin: float
    end: float
    backlog_s: float
    goes_on: bool = False

    def words(self) -> str:
        """Return how long the connection waited, and where: 2.00 s in the backlog."""
        queued_s = self.end - self.begin - self.backlog_s
        if not self.backlog_s:
            return f"{duration(queued_s)} in the queue"
        words = f"{duration(self.backlog_s)} in the backlog"
        return words if queued_s < WORTH_SECONDS else f"{words}, then {duration(queued_s)} in the queue"


class QueuedTime:
    """The times at which a connection waited for a worker for longer than it takes to wake one up.

    sums[k] is the time with a queue before times[k]. The time with a queue between two bounds is therefore a
    difference of two look-ups.
    """

    def __init__(self, spans: list[Span]) -> None:
        self.changes = Counter[float]()  # time -> by how many connections the queue grows then
        for span in spans:
            if span.state in WAITING and span.end - span.begin >= WORTH_SECONDS:
                self.changes[span.begin] += 1
                self.changes[span.end] -= 1
        # At a time of a hand-over, such as from the backlog to the queue, the sum is 0
        self.times = sorted(time for time, change in self.changes.items() if change)
        self.queued = list(accumulate(self.changes[time] for time in self.times))  # from times[k] on
        lengths = [after - time for time, after in pairwise(self.times)]
        # There is one length less than times: after the last time the queue is empty
        waited = [length if depth else 0.0 for length, depth in zip(lengths, self.queued, strict=False)]
        self.sums = [0.0, *accumulate(waited)]

    def total_until(self, seconds: float) -> float:
        """Return the seconds, from the begin of the trace to this time, in which at least one connection waited."""
        last_change = bisect_right(self.times, seconds) - 1
        # The first connection came into the queue later
        if last_change < 0:
            return 0.0
        since_last_change = seconds - self.times[last_change] if self.queued[last_change] else 0.0
        return self.sums[last_change] + since_last_change

    def within(self, begin: float, end: float) -> float:
        """Return for how long a connection waited between two times."""
        return max(self.total_until(end) - self.total_until(begin), 0.0)

    def deepest(self, begin: float, end: float) -> int:
        """Return how many connections waited at once, at most, between two times."""
        first = max(bisect_right(self.times, begin) - 1, 0)  # the last change before `begin` is in force then
        return max(self.queued[first : bisect_right(self.times, end)], default=0)


def moments(story: TraceStory) -> list[Moment]:
    """Return the moments of a story, by their begin."""
    spans = story.all_spans()
    queue = QueuedTime(spans)
    found = [
        longest_wait(story, spans),
        deepest_queue(queue),
        first_refusal(story),
        held_worker(story, spans, queue),
        outlived_client(story, spans),
        served_last(story, spans),
    ]
    found += behind_moments(story.behind)
    return sorted((moment for moment in found if moment is not None), key=lambda moment: moment.begin)


def longest_wait(story: TraceStory, spans: list[Span]) -> Moment | None:
    """Return the longest time that a connection was in the backlog and then in the queue."""
    longest = max(waits(spans), key=lambda wait: wait.end - wait.begin, default=None)
    if longest is None or longest.end - longest.begin < WORTH_SECONDS:
        return None
    text = f"Connection {story.label(longest.connection)} waited {longest.words()}"
    text += ", and no worker had taken it when the trace ended." if longest.goes_on else "."
    return Moment(
        "queue-wait", "The longest wait for a worker", text, longest.begin, longest.end, longest.connection
    )


def waits(spans: list[Span]) -> list[WorkerWait]:
    """Return the waits for a worker: in the backlog, in the queue, or in both, one after the other."""
    found: list[WorkerWait] = []
    from_backlog: dict[str, Span] = {}
    for span in spans:
        if span.state == BACKLOG:
            from_backlog[span.connection] = span
        elif span.state == QUEUED:
            before = from_backlog.pop(span.connection, None)
            begin, backlog_s = (before.begin, before.end - before.begin) if before else (span.begin, 0.0)
            found.append(WorkerWait(span.connection, begin, span.end, backlog_s, span.goes_on))
    # The others have no span in the queue: a worker took them in the microsecond in which they were accepted
    found += [
        WorkerWait(each.connection, each.begin, each.end, each.end - each.begin)
        for each in from_backlog.values()
    ]
    return found


def deepest_queue(queue: QueuedTime) -> Moment | None:
    """Return the time at which most connections waited for a worker at once; the longest such time."""
    lengths = [
        (depth, end - begin, begin)
        for depth, (begin, end) in zip(queue.queued, pairwise(queue.times), strict=False)
    ]
    depth, seconds, begin = max(lengths, default=(0, 0.0, 0.0))
    if not depth:
        return None
    waited = (
        f"{depth} connections waited for a worker at once"
        if depth > 1
        else "One connection waited for a worker"
    )
    text = f"{waited}, for {duration(seconds)}."
    return Moment("deepest-queue", "The deepest queue", text, begin, begin + seconds)


def first_refusal(story: TraceStory) -> Moment | None:
    """Return the first connection that was not accepted, or whose request was dropped from the queue."""
    if not story.refusals:
        return None
    first = story.refusals[0]
    client, _, limit = first.text.partition(" ")
    if limit == "overload":
        text = f"The queue was full, and the server dropped a request of the client {client} from it."
    else:
        text = f"The server did not accept the client {client}"
        text += f": the limit {limit} was reached." if limit else "."
    if len(story.refusals) > 1:
        text += f" It was the first of {len(story.refusals):,}."
    return Moment("refusal", "The first refusal", text, first.seconds, first.seconds)


def held_worker(story: TraceStory, spans: list[Span], queue: QueuedTime) -> Moment | None:
    """Return the stint in which a worker waited longest for one client while other clients waited for a worker.

    They wait in the queue. If the worker accepts connections itself, they wait in the backlog, and are known only
    if the worker has accepted them later, and if the system tells for how long they had waited.
    """

    def held(stint: Stint) -> float:
        """Return for how many seconds others waited for a worker while the worker waited for its client."""
        return sum(queue.within(span.begin, span.end) for span in stint.on_client)

    found = list(stints(spans))
    longest = max(found, key=held, default=None)
    if longest is not None and (seconds := held(longest)) >= WORTH_SECONDS:
        depth = queue.deepest(longest.begin, longest.end)
        others = f"up to {depth} connections" if depth > 1 else "another connection"
        rest = f"For {duration(seconds)} of this time, {others} waited for a worker."
    else:
        accepting = [each for each in found if each.worker in story.accepting_workers]
        longest = max(accepting, key=Stint.standstill_s, default=None)
        if longest is None or longest.standstill_s() < LONG_SECONDS:
            return None
        rest = "It accepts its connections itself, and accepted none in this time."
    name = name_of_worker(story, longest.worker)
    text = (
        f"{name} stood still for {duration(longest.standstill_s())}, because the client of connection "
        f"{story.label(longest.connection)} was silent or slow. {rest}"
    )
    title = "A worker held by its client"
    return Moment("held-worker", title, text, longest.begin, longest.end, longest.connection, longest.worker)


def outlived_client(story: TraceStory, spans: list[Span]) -> Moment | None:
    """Return the longest time for which a connection occupied a worker although its client had left.

    A program that ignores SIGTERM is an example: a worker of a blocking model waits until the program has ended.
    """
    occupied = defaultdict[tuple[str, str], float](float)  # connection and worker -> seconds
    last: dict[tuple[str, str], Span] = {}
    for span in spans:
        left = story.connections[span.connection].client_left
        if left is not None and span.begin >= left and span.state in OCCUPYING:
            occupied[span.connection, span.worker] += span.end - span.begin
            last[span.connection, span.worker] = span
    longest = max(occupied, key=lambda each: occupied[each], default=None)
    if longest is None or occupied[longest] < LONG_SECONDS:
        return None
    connection = story.connections[longest[0]]
    begin, end = connection.client_left or 0.0, last[longest].end
    name = name_of_worker(story, longest[1])
    text = (
        f"{name} stayed occupied for {duration(occupied[longest])} after the client of connection "
        f"{story.label(connection.name)} had left"
    )
    if last[longest].goes_on:
        text += ", and still was when the trace ended."
    elif connection.exited is not None and connection.exited >= begin:
        text += ": it waited for a program to end."
    else:
        text += "."
    title = "A worker that outlived its client"
    return Moment("outlived-client", title, text, begin, end, connection.name, longest[1])


def name_of_worker(story: TraceStory, worker: str) -> str:
    """Return the name of a worker for the begin of a sentence."""
    return next(lane.name for lane in story.lanes() if lane.worker == worker).capitalize()


def stints(spans: list[Span]) -> Iterator[Stint]:
    """Yield the stints in which the client decided at least once how long the worker was occupied."""
    current: dict[str, Stint] = {}
    for span in spans:
        if span.state not in OCCUPYING:
            continue
        stint = current.get(span.worker)
        if stint is None or stint.connection != span.connection or span.begin > stint.end:
            if stint is not None and stint.on_client:
                yield stint
            stint = current[span.worker] = Stint(span.worker, span.connection, span.begin, span.end, [])
        stint.end = span.end
        if span.on_client:
            stint.on_client.append(span)
    yield from (stint for stint in current.values() if stint.on_client)


def served_last(story: TraceStory, spans: list[Span]) -> Moment | None:
    """Return the connection whose first byte came last, if it waited for a worker, or one that no worker took."""
    accepted = [each for each in story.connections.values() if each.accepted is not None]
    never = [
        each for each in accepted if each.first_byte is None and each.state == QUEUED and not each.requests
    ]
    served = [each for each in accepted if each.first_byte is not None]
    if never:
        return never_served(story, never, len(served))
    # A single client is not the last of several
    return last_of_served(story, served, spans) if len(served) > 1 else None


def last_of_served(story: TraceStory, served: list[TracedConnection], spans: list[Span]) -> Moment | None:
    """Return the moment of the connection whose first byte came last; None if it hardly waited for a worker."""
    # `or 0.0` is for the type checker: accepted and first_byte of a served connection are never None
    last = max(served, key=lambda each: each.first_byte or 0.0)
    begin, end = last.arrived or 0.0, last.first_byte or 0.0
    own_waits = [wait for wait in waits(spans) if wait.connection == last.name and wait.end <= end]
    waited_s = sum(wait.end - wait.begin for wait in own_waits)
    backlog_s = sum(wait.backlog_s for wait in own_waits)
    if waited_s < WORTH_SECONDS:
        return None
    came = "it came" if backlog_s else "it was accepted"
    text = (
        f"Connection {story.label(last.name)} got its first byte as the last of {len(served):,} clients, "
        f"{duration(end - begin)} after {came}. {duration(waited_s)} of them it was "
        f"{queues_of_wait(waited_s, backlog_s)}."
    )
    if overtakers := count_overtakers(served, begin, backlog_s):
        text += f" {overtakers:,} clients came later, and were served before it."
    return Moment("served-last", "The client that was served last", text, begin, end, last.name)


def queues_of_wait(waited_s: float, backlog_s: float) -> str:
    """Return in which queues a connection has waited. backlog_s: the part of the wait that was in the backlog."""
    if not backlog_s:
        return "in the queue"
    return "in the backlog and in the queue" if waited_s - backlog_s >= WORTH_SECONDS else "in the backlog"


def count_overtakers(served: list[TracedConnection], begin: float, backlog_s: float) -> int:
    """Return how many served connections came later than the last one, which came at `begin`."""
    # The kernel counts ticks: of two clients that came together, either may seem to be the later one
    later = begin + 2 * TICK_S if backlog_s else begin
    return sum(1 for each in served if (each.arrived or 0.0) > later)


def never_served(story: TraceStory, never: list[TracedConnection], served: int) -> Moment:
    """Return the moment of the first client that no worker ever took. served: how many clients were served."""
    first = min(never, key=lambda each: each.accepted or 0.0)
    begin = first.accepted or 0.0
    text = (
        f"Connection {story.label(first.name)} got no byte: {duration(story.ended - begin)} after it was accepted, "
        f"at the end of the trace, it was still in the queue. {served:,} other clients were served."
    )
    if len(never) > 1:
        text += f" {len(never):,} clients were never served."
    return Moment("served-last", "A client that was never served", text, begin, story.ended, first.name)
