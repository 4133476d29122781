"""The most telling moments of the processes behind the server: X-Switch's engines, and the database daemon.

    the longest wait for an engine          a script was in X-Switch's queue
    an engine that outlives its client      it runs a script on after the client has left
    an engine that was ended                it was killed at a limit, or evicted for another user's engine
    the longest wait for a connection       a statement was in the daemon's queue
    the longest statement                   a connection to a database was busy with it for so long

moments.py adds them to the others. A wait below WORTH_SECONDS is no moment, and no run below LONG_SECONDS for a
client that has left.
"""

from __future__ import annotations

from collections.abc import Iterator

from ewe_watch.behind import DATABASE, ENGINE, LEFT, QUEUED, RUNS, BehindLane, BehindSpan, BehindStory
from ewe_watch.moment import LONG_SECONDS, WORTH_SECONDS, Moment, duration

BY_FORCE = ("killed", "evicted", "ended by")
MOST_TEXT_CHARS = 80


def behind_moments(story: BehindStory) -> Iterator[Moment]:
    """Yield the moments of a story; none for a kind of which nothing happened."""
    spans = story.all_spans()
    for kind, moment_of_wait in ((ENGINE, engine_wait), (DATABASE, connection_wait)):
        queued = [span for span in spans if span.state == QUEUED and span.request.kind == kind]
        if (wait := longest(queued, WORTH_SECONDS)) is not None:
            yield moment_of_wait(wait, spans)
    if (ran_on := longest([span for span in spans if span.state == LEFT], LONG_SECONDS)) is not None:
        yield outlived_client(ran_on)
    if (ended := next((lane for lane in story.lanes if lane.why.startswith(BY_FORCE)), None)) is not None:
        yield ended_engine(ended)
    statements = [span for span in spans if span.state == RUNS and span.request.kind == DATABASE]
    if (statement := longest(statements, WORTH_SECONDS)) is not None:
        yield longest_statement(statement)


def longest(spans: list[BehindSpan], least_s: float) -> BehindSpan | None:
    """Return the longest span; None if there is none of at least `least_s` seconds."""
    found = max(spans, key=seconds_of, default=None)
    return found if found is not None and seconds_of(found) >= least_s else None


def engine_wait(span: BehindSpan, spans: list[BehindSpan]) -> Moment:
    """Return the moment of the longest wait for an engine. span: that wait. spans: all."""
    busy = [each for each in spans if each.request.kind == ENGINE and runs_at(each, span.begin)]
    of_same_user = sum(each.request.user == span.request.user for each in busy)
    text = (
        f"The script {shortened(span.request.text)} of {span.request.user} waited {duration(seconds_of(span))} "
        f"in X-Switch's queue. When it came, {count_text(len(busy), 'engine')} ran,"
        f" {of_same_user} of them for the same user."
    )
    return moment_of_span("engine-wait", "The longest wait for an engine", text, span)


def connection_wait(span: BehindSpan, spans: list[BehindSpan]) -> Moment:
    """Return the moment of the longest wait for a connection to a database. span: that wait. spans: all."""
    busy = sum(each.request.kind == DATABASE and runs_at(each, span.begin) for each in spans)
    text = (
        f"A statement for {span.request.what} waited {duration(seconds_of(span))} in the daemon's queue. "
        f"When it came, {count_text(busy, 'connection')} ran a statement."
    )
    return moment_of_span("connection-wait", "The longest wait for a connection to a database", text, span)


def outlived_client(span: BehindSpan) -> Moment:
    """Return the moment of an engine that runs on after its client has left. span: of the state LEFT."""
    assert span.lane is not None  # only a request in a lane has this state
    text = (
        f"The engine of {span.lane.name} still ran {shortened(span.request.text)} for "
        f"{duration(seconds_of(span))} after its client had left."
    )
    return moment_of_span("engine-outlived-client", "An engine that outlived its client", text, span)


def ended_engine(lane: BehindLane) -> Moment:
    """Return the moment of an engine that was killed or evicted."""
    assert lane.ended is not None  # a lane has a cause of its end
    text = f"The engine of {lane.name} ({lane.detail or 'not started yet'}) ended after "
    text += f"{duration(lane.ended - lane.began)}, {lane.why}."
    return Moment("engine-end", "An engine that was ended", text, lane.began, lane.ended)


def longest_statement(span: BehindSpan) -> Moment:
    """Return the moment of the longest statement. span: the time in which a connection ran it."""
    text = (
        f"The longest statement kept a connection to {span.request.what} busy for "
        f"{duration(seconds_of(span))}: {shortened(span.request.text)}"
    )
    return moment_of_span("statement", "The longest statement", text, span)


def moment_of_span(kind: str, title: str, text: str, span: BehindSpan) -> Moment:
    """Return the moment of a span."""
    return Moment(kind, title, text, span.begin, span.end, span.request.server)


def seconds_of(span: BehindSpan) -> float:
    """Return the seconds of a span."""
    return span.end - span.begin


def runs_at(span: BehindSpan, seconds: float) -> bool:
    """Return whether a lane runs the request at this time."""
    return span.lane is not None and span.begin <= seconds < span.end


def count_text(number: int, name: str) -> str:
    """Return a number with its noun."""
    return f"{number or 'no'} {name}" + ("" if number == 1 else "s")


def shortened(text: str) -> str:
    """Return the end of a path, or the begin of a statement."""
    if text.startswith("/"):
        return text.rpartition("/")[2]
    return text if len(text) <= MOST_TEXT_CHARS else text[: MOST_TEXT_CHARS - 1] + "…"
