"""The story as numbers: the document that `ewe-watch --json` prints and that the page draws.

All times are microseconds from the first event of the trace. `backlog` of a connection is how long it was in the
kernel's backlog, null if the trace does not say it, and `arrived` is when this wait began. Long tables are columns,
so that 40,000 spans do not repeat the names of their fields:

    "spans": {"begin": [0, 12, ...], "end": [...], "state": ["queued", "busy", ...], "connection": [0, 0, ...], ...}

`connection`, `worker` and `request` in these tables are indexes into the lists of that name; -1 stands for none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ewe_watch.moments import moments
from ewe_watch.story import TraceStory


def document(story: TraceStory, name: str) -> dict[str, Any]:
    """Return the story as an object for JSON. name: of the trace.

    TracedConnection, TracedRequest, WorkerLane and QueueStep (story.py) explain the fields.
    """
    lanes, steps = story.lanes(), story.all_steps()
    model, _, description = story.model_text().partition(" ")
    connections = {each: index for index, each in enumerate(story.connections)}
    workers = {lane.worker: index for index, lane in enumerate(lanes)}
    micros = micros_of(story)

    return {
        "name": name,
        "model": model,
        "description": description,
        "events": story.events,
        "lost": story.lost,
        "duration": micros(story.ended),
        "rows": 1 + max((lane.row for lane in lanes), default=-1),
        "workers": [
            lane._asdict() | {"began": micros(lane.began), "ended": micros(lane.ended)} for lane in lanes
        ],
        "connections": connection_rows(story),
        "requests": request_rows(story, connections, workers),
        "spans": spans_of(story, connections, workers),
        "queue": {
            "time": [micros(step.seconds) for step in steps],
            "backlog": [step.backlog for step in steps],
            "queued": [step.queued for step in steps],
            "parked": [step.parked for step in steps],
        },
        "behind": behind_of(story, connections),
        "refusals": [{"time": micros(each.seconds), "text": each.text} for each in story.refusals],
        "moments": [
            each._asdict()
            | {
                "begin": micros(each.begin),
                "end": micros(each.end),
                "connection": connections.get(each.connection, -1),
                "worker": workers.get(each.worker, -1),
            }
            for each in moments(story)
        ],
    }


def connection_rows(story: TraceStory) -> list[dict[str, Any]]:
    """Return the connections of a story (TracedConnection)."""
    micros = micros_of(story)
    return [
        {
            "name": each.name,
            "label": story.label(each.name),
            "address": each.address,
            "arrived": micros(each.arrived),
            "backlog": None if each.backlog_s is None else round(each.backlog_s * 1e6),
            "accepted": micros(each.accepted),
            "first_byte": micros(each.first_byte),
            "ended": micros(each.ended),
            "why": each.why,
            "closed": micros(each.closed),
        }
        for each in story.connections.values()
    ]


def request_rows(
    story: TraceStory, connections: dict[str, int], workers: dict[str, int]
) -> list[dict[str, Any]]:
    """Return the requests of a story (TracedRequest). connections, workers: name -> index in their lists."""
    micros = micros_of(story)
    return [
        {
            "connection": connections[each.connection],
            "worker": workers.get(each.worker, -1),
            "line": each.line,
            "head": micros(each.head),
            "answered": micros(each.answered),
            "status": each.status,
            "feature": each.feature,
            "first_byte": micros(each.first_byte),
            "last_byte": micros(each.last_byte),
            "bytes": each.bytes,
            "programs": each.programs,
        }
        for each in story.requests
    ]


def micros_of(story: TraceStory) -> Callable[[float | None], int | None]:
    """Return the function from a time to microseconds since the first event; None stays None."""
    return lambda seconds: None if seconds is None else round((seconds - story.began) * 1e6)


def behind_of(story: TraceStory, connections: dict[str, int]) -> dict[str, Any]:
    """Return the processes behind the server: lanes, requests, their spans, and the lengths of the queues.

    In the requests, `connection` and `request` are those of the server, and `lane` took the request; -1: none.
    In the spans, `request` is an index into these requests.
    """
    behind = story.behind
    lanes, spans = behind.sorted_lanes(), behind.all_spans()
    lane_index = {id(lane): index for index, lane in enumerate(lanes)}
    request_index = {id(each): index for index, each in enumerate(behind.requests)}
    micros = micros_of(story)

    return {
        "lanes": [
            {
                "kind": lane.kind, "name": lane.name, "detail": lane.detail, "user": lane.user, "row": row,
                "began": micros(lane.began), "ended": micros(lane.ended), "why": lane.why, "served": lane.served,
            }
            for lane, row in zip(lanes, behind.rows(), strict=True)
        ],
        "requests": [
            {
                "kind": each.kind, "user": each.user, "what": each.what, "text": each.text,
                "began": micros(each.began), "took": micros(each.took), "ended": micros(each.ended),
                "outcome": each.outcome, "connection": connections.get(each.server, -1), "request": each.request,
                "lane": lane_index[id(each.lane)] if each.lane is not None else -1,
            }
            for each in behind.requests
        ],
        "spans": {
            "begin": [micros(span.begin) for span in spans],
            "end": [micros(span.end) for span in spans],
            "state": [span.state for span in spans],
            "request": [request_index[id(span.request)] for span in spans],
            "lane": [lane_index[id(span.lane)] if span.lane is not None else -1 for span in spans],
            "goes_on": [int(span.goes_on) for span in spans],
        },
        "queues": {
            kind: {"time": [micros(step.seconds) for step in steps], "queued": [step.queued for step in steps]}
            for kind, steps in behind.steps.items()
        },
    }  # fmt: skip


def spans_of(story: TraceStory, connections: dict[str, int], workers: dict[str, int]) -> dict[str, list[Any]]:
    """Return the columns of the spans. connections, workers: the index of each name.

    want: what the connection waits for. goes_on: 1 if the end of the trace cuts the span. Both as in story.Span.
    """
    spans = story.all_spans()
    return {
        "begin": [round((span.begin - story.began) * 1e6) for span in spans],
        "end": [round((span.end - story.began) * 1e6) for span in spans],
        "state": [span.state for span in spans],
        "connection": [connections[span.connection] for span in spans],
        "worker": [workers.get(span.worker, -1) for span in spans],
        "want": [span.want for span in spans],
        "request": [span.request for span in spans],
        "goes_on": [int(span.goes_on) for span in spans],
    }
