"""The page of a run: the recordings of all models as one file, which needs neither ewe-watch nor the network.

`ewe-watch FILE FILE` makes the same page of traces (page.py). That of a run differs in two points. A trace knows a
client by its address; here each connection has its client's name, such as "silent 2". And the models serve the same
clients, so all pictures have one time. It begins with the first event after the starts of the models. It ends now,
or with the last event if all connections are closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ewe_watch.document import document
from ewe_watch.events import TraceEvent, parse
from ewe_watch.page import page
from ewe_watch.story import TraceStory

if TYPE_CHECKING:
    from ewe_watch.live.director import ShownModel

MOST_RUN_EVENTS = 100_000  # of each model, the last ones: a browser draws those of four models in a moment


def run_page(models: Sequence[ShownModel], now: float) -> str:
    """Return the page of these models: their recordings up to now. now: in seconds, by the trace's clock."""
    runs = [recorded_events(model.recording.text()) for model in models]
    began = min((events[0].seconds for _, events in runs if events), default=0.0)
    stories = []
    for model, (model_event, events) in zip(models, runs, strict=True):
        story = TraceStory()
        story.client_names = model.clients.labels.copy()  # a copy: the clients' thread may add a name
        story.feed(model_event._replace(seconds=began))
        for event in events:
            story.feed(event)
        stories.append(story)
    end = max((story.ended for story in stories), default=began)
    if any(each.state for story in stories for each in story.connections.values()):
        end = max(end, now)
    for story in stories:
        story.ended = end
    labels = [model.choice.label for model in models]
    return page([document(story, label) for story, label in zip(stories, labels, strict=True)])


def recorded_events(recording: bytes) -> tuple[TraceEvent, list[TraceEvent]]:
    """Return the event that names the model, and the last MOST_RUN_EVENTS others by their time.

    recording: lines of a trace, first the one that names the model (Recording). If it has not come yet, an event
    without a name stands for it. A line that is no event, before an event `lost`, is left out.
    """
    first, *lines = recording.decode("utf-8", "replace").splitlines() or [""]
    model_event = TraceEvent(0.0, "model", "", "0/0", "")
    events = []
    for line in (first, *lines[-MOST_RUN_EVENTS:]):
        with suppress(ValueError):
            events.append(parse(line))
    if events and events[0].kind == "model":
        model_event = events.pop(0)
    return model_event, sorted(events, key=lambda event: event.seconds)
