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

from ewe_watch.behind import DATABASE, ENGINE, LEFT, QUEUED, RUNS, BehindSpan, BehindStory
from ewe_watch.moment import LONG_SECONDS, WORTH_SECONDS, Moment, duration

BY_FORCE = ("killed", "evicted", "ended by")
MOST_TEXT_CHARS = 80


def behind_moments(story: BehindStory) -> Iterator[Moment]:
    """Yield the moments of a story; none for a kind of which nothing happened."""
    spans = story.all_spans()
    for kind, moment_of_wait in ((ENGINE, engine_wait), (DATABASE, connection_wait)):
        queued = [span for span in spans if span.state == QUEUED and span.request.kind == kind]
        if (longest := longest_of(queued, WORTH_SECONDS)) is not None:
            yield moment_of_wait(longest, spans)
    ran_on = [span for span in spans if span.state == LEFT and span.lane is not None]
    if (longest := longest_of(ran_on, LONG_SECONDS)) is not None:
        assert longest.lane is not None
        text = (
            f"The engine of {longest.lane.name} still ran {shortened(longest.request.text)} for "
            f"{duration(seconds_of(longest))} after its client had left."
        )
        yield moment_of_span("engine-outlived-client", "An engine that outlived its client", text, longest)
    if (ended := next((lane for lane in story.lanes if lane.why.startswith(BY_FORCE)), None)) is not None:
        assert ended.ended is not None
        text = f"The engine of {ended.name} ({ended.detail or 'not started yet'}) ended after "
        text += f"{duration(ended.ended - ended.began)}, {ended.why}."
        yield Moment("engine-end", "An engine that was ended", text, ended.began, ended.ended)
    statements = [span for span in spans if span.state == RUNS and span.request.kind == DATABASE]
    if (longest := longest_of(statements, WORTH_SECONDS)) is not None:
        text = (
            f"The longest statement kept a connection to {longest.request.what} busy for "
            f"{duration(seconds_of(longest))}: {shortened(longest.request.text)}"
        )
        yield moment_of_span("statement", "The longest statement", text, longest)


def longest_of(spans: list[BehindSpan], least_seconds: float) -> BehindSpan | None:
    """Return the longest span; None if none takes `least_seconds`."""
    longest = max(spans, key=seconds_of, default=None)
    return longest if longest is not None and seconds_of(longest) >= least_seconds else None


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
