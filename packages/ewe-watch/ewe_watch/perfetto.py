"""The story in the trace format of Perfetto's viewer (https://ui.perfetto.dev): Chrome's JSON trace events.

Perfetto has queries in SQL, and can join the server's trace with one of the kernel. The fields are those of the
document "Trace Event Format", in the part that Perfetto's page "Visualizing external trace formats" names:

    M       metadata: the names and the order of processes and threads
    X       a complete event: the life of a worker, or a span of its work; ts and dur are microseconds
    b, e    an asynchronous event: a connection in the backlog, in the queue, or parked; events with the same cat
            and id are a pair
    C       a counter: the connections in the backlog, in the queue, and the parked ones
    i       an instant: a connection that was refused; s is its scope, p for a process
    s, f    a flow: from the request of the server to the engine or the statement that it waits for

Complete events of a thread must nest. They do, because a worker runs one conversation at a time, and its life
encloses all of them. The category of a life is `life`: `WHERE category != 'life'` leaves only the work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ewe_watch.behind import (
    DATABASE,
    ENGINE,
    NO_REQUEST,
    RUNS,
    BehindLane,
    BehindRequest,
    BehindSpan,
)
from ewe_watch.events import process_of
from ewe_watch.story import (
    BACKLOG,
    BUSY,
    PARKED,
    QUEUED,
    SENDS,
    Span,
    TraceStory,
    WorkerLane,
)

AnySpan = TypeVar("AnySpan", Span, BehindSpan)
LIFE = "life"  # the category of a life

# The states of a connection without a worker, in words
WORKERLESS_STATES = {BACKLOG: "in the backlog", QUEUED: "in the queue", PARKED: "parked"}
# Perfetto's processes for the engines and for the connections to databases: larger than any pid of Linux
BEHIND = {ENGINE: (1 << 23, "X-Switch's engines"), DATABASE: ((1 << 23) + 1, "connections to databases")}


def trace_events(story: TraceStory) -> Iterator[dict[str, Any]]:
    """Yield the trace events of a story."""
    lanes = story.lanes()
    processes = list(dict.fromkeys([*story.models, *(process_of(lane.worker) for lane in lanes)]))
    # The queue and the refusals are shown in the first process
    server = int(processes[0]) if processes else 0
    for process in processes:
        name = story.models.get(process, story.model_text()).partition(" ")[0]
        yield named("process_name", int(process), int(process), f"ewe {name}".strip())
    for order, lane in enumerate(lanes):
        pid, tid = map(int, lane.worker.split("/"))
        yield named("thread_name", pid, tid, lane.name)
        yield metadata("thread_sort_index", pid, tid, {"sort_index": order})
    yield from lives(story)
    for number, span in enumerate(story.all_spans()):
        yield from of_span(story, span, server, number)
    yield from behind(story)
    for step in story.all_steps():
        values = {"backlog": step.backlog, "queued": step.queued, "parked": step.parked}
        yield {
            "ph": "C", "name": "connections", "pid": server, "tid": server,
            "ts": micros(step.seconds), "args": values,
        }  # fmt: skip
    for refusal in story.refusals:
        yield {
            "ph": "i", "s": "p", "name": "refused", "cat": "refused", "pid": server, "tid": server,
            "ts": micros(refusal.seconds), "args": {"text": refusal.text},
        }  # fmt: skip


def lives(story: TraceStory) -> Iterator[dict[str, Any]]:
    """Yield the life of each worker that the trace has begun: as long as its thread or its process runs.

    A life comes before the work of its worker. Of two spans that begin together, a viewer takes the first as the
    outer one.
    """
    lanes = [lane for lane in story.lanes() if lane.began is not None]
    work = spans_by((span.worker, span) for span in story.all_spans())
    for lane in lanes:
        process, thread = map(int, lane.worker.split("/"))
        yield life(lane, work[lane.worker], story.ended) | {"pid": process, "tid": thread}


def spans_by(spans: Iterable[tuple[Any, AnySpan]]) -> defaultdict[Any, list[AnySpan]]:
    """Return the spans of each key."""
    found = defaultdict[Any, list[AnySpan]](list)
    for key, span in spans:
        found[key].append(span)
    return found


def life(
    lane: WorkerLane | BehindLane, work: Sequence[Span | BehindSpan], trace_ended: float
) -> dict[str, Any]:
    """Return the event of the life of a worker or an engine, without its pid and tid.

    work: its spans. A trace that has lost events may have spans outside the life. The life then begins and ends
    with them, since the events of a thread must nest. A life that goes on ends at trace_ended (seconds).
    """
    begins = [span.begin for span in work] + ([] if lane.began is None else [lane.began])
    ends = [span.end for span in work] + [trace_ended if lane.ended is None else lane.ended]
    begin, end = micros(min(begins)), micros(max(ends))
    return {
        "ph": "X", "name": f"life of {lane.name}", "cat": LIFE, "ts": begin, "dur": max(end - begin, 0),
        "args": {"goes on": lane.ended is None},
    }  # fmt: skip


def behind(story: TraceStory) -> Iterator[dict[str, Any]]:
    """Yield the events of X-Switch's engines and of the database's connections: a process for each kind.

    Their pids are no pids of the system, so that all engines stand together.
    """
    lanes, spans = story.behind.sorted_lanes(), story.behind.all_spans()
    work = spans_by((id(span.lane), span) for span in spans)
    # A thread of these processes is a lane; thread 0 has the requests in the queue
    numbers = {id(lane): number for number, lane in enumerate(lanes, 1)}
    for kind, (pid, name) in BEHIND.items():
        if any(lane.kind == kind for lane in lanes):
            yield named("process_name", pid, pid, name)
    for number, lane in enumerate(lanes, 1):
        yield named("thread_name", BEHIND[lane.kind][0], number, f"{lane.name} ({lane.detail})")
        yield metadata("thread_sort_index", BEHIND[lane.kind][0], number, {"sort_index": number})
        at = {"pid": BEHIND[lane.kind][0], "tid": number}
        yield life(lane, work[id(lane)], story.ended) | at
    for number, span in enumerate(spans):
        yield from of_span_behind(story, span, numbers, number)


def of_span_behind(
    story: TraceStory, span: BehindSpan, lanes: Mapping[int, int], number: int
) -> Iterator[dict[str, Any]]:
    """Yield the events of one span: a complete one in its lane, with an arrow to it, or a pair in the queue.

    lanes: id() of a lane -> its thread. number: unique for the span.
    """
    request = span.request
    pid = BEHIND[request.kind][0]
    what = {"user": request.user, "what": request.what, "text": request.text, "outcome": request.outcome}
    if span.lane is None:
        pair = {
            "cat": request.kind,
            "id": f"{request.kind}{number}",
            "name": "waits",
            "pid": pid,
            "tid": 0,
        }
        yield {"ph": "b", "ts": micros(span.begin), "args": what} | pair
        yield {"ph": "e", "ts": micros(span.end)} | pair
        return
    at = {"pid": pid, "tid": lanes[id(span.lane)]}
    yield {
        "ph": "X", "name": request.text or request.what, "cat": request.kind, "ts": micros(span.begin),
        "dur": micros(span.end) - micros(span.begin), "args": what,
    } | at  # fmt: skip
    if request.request != NO_REQUEST and span.state == RUNS:
        yield from flow(story, request, micros(span.begin), at, number)


def flow(
    story: TraceStory, request: BehindRequest, begin: int, at: dict[str, int], number: int
) -> Iterator[dict[str, Any]]:
    """Yield the two events of an arrow from a request of the server to the one that it causes behind the server.

    request: the one behind, which an engine or a connection to a database takes at `begin` (microseconds). at: pid
    and tid of that lane. number: unique for the arrow.
    """
    asking = story.requests[request.request]
    process, thread = map(int, asking.worker.split("/"))
    arrow = {"cat": "asks", "name": "asks", "id": number}
    yield {"ph": "s", "ts": micros(asking.head), "pid": process, "tid": thread} | arrow
    # bp (binding point) e: the arrow ends at the span that encloses this time, not at the next one
    yield {"ph": "f", "bp": "e", "ts": begin} | at | arrow


def of_span(story: TraceStory, span: Span, server: int, number: int) -> Iterator[dict[str, Any]]:
    """Yield the events of one span: a complete one for a worker's span, a pair for one in the queue or parked.

    server: the process to show the queue in. number: unique for the span. A span of another state without a worker
    yields nothing.
    """
    what = {"connection": span.connection, "want": span.want}
    if span.request != NO_REQUEST:
        what["request"] = story.requests[span.request].line
    if span.worker:
        process, thread = map(int, span.worker.split("/"))
        yield {
            "ph": "X", "name": title(story, span), "cat": span.state, "pid": process, "tid": thread,
            "ts": micros(span.begin), "dur": micros(span.end) - micros(span.begin), "args": what,
        }  # fmt: skip
    elif span.state in WORKERLESS_STATES:
        pair = {"cat": span.state, "id": number, "name": title(story, span), "pid": server, "tid": server}
        yield {"ph": "b", "ts": micros(span.begin), "args": what} | pair
        yield {"ph": "e", "ts": micros(span.end)} | pair


def title(story: TraceStory, span: Span) -> str:
    """Return the text on a span."""
    connection = f"connection {story.label(span.connection)}"
    line = story.requests[span.request].line if span.request != NO_REQUEST else ""
    if span.state == BUSY:
        return line or connection
    if span.state == SENDS:
        return f"sends {line}".strip()
    if span.state in WORKERLESS_STATES:
        return f"{connection} is {WORKERLESS_STATES[span.state]}"
    return f"waits: {span.want}, {connection}"  # the state WAITS


def micros(seconds: float) -> int:
    """Return a time in microseconds, the unit of ts and dur."""
    return round(seconds * 1e6)


def named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    """Return the event that gives a process or a thread its name."""
    return metadata(kind, process, thread, {"name": name})


def metadata(kind: str, process: int, thread: int, values: dict[str, Any]) -> dict[str, Any]:
    """Return an event of metadata."""
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": values}


def perfetto(story: TraceStory) -> dict[str, Any]:
    """Return the whole file as an object for JSON."""
    return {"displayTimeUnit": "ms", "traceEvents": list(trace_events(story))}
