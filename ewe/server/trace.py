"""The traced model: a concurrency model whose events are written to the file that the setting `trace` names.

traced(model) is a subclass of the model. It overrides the methods of Processor that every model calls, so no model
contains a line about the trace, and a server without it runs the model's own class:

    register()  accepted          converse()  the conversation, over a TracedStream, in a TracedConversation
    forget()    closed            report_refusal()  refused
    worker_method, which a thread or a forked child runs: begins, ends

A conversation is a coroutine, and the model resumes it: once, if its stream blocks; after each pause, if not. The
TracedConversation is a coroutine around it. It sees each of these steps, and so the worker that makes it.

Read ewe.trace for the events; streams/traced.py for the waits; features/trace.py for the requests.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ewe.processors.base import Processor
from ewe.streams.backlog import wait_in_backlog
from ewe.streams.base import Want
from ewe.streams.traced import TracedStream
from ewe.trace import Trace, trace_at

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.conversations import Conversations
    from ewe.streams.base import Stream
    from ewe.streams.listener import Listener

WORDS: dict[Want | None, str] = {want: want.name.lower() for want in Want}  # the text of `parked`


def traced(model: type[Processor], path: str) -> type[Processor]:
    """Return a subclass of a model that writes the events of its processors to the file at `path`.

    If the model writes its events itself (traces_itself), return the model. Raises OSError if the file cannot be
    opened.
    """
    if model.traces_itself:
        return model
    # type() with three arguments makes a class: its name, its bases, its attributes. Traced comes first among the
    # bases, so its methods override those of the model.
    attributes: dict[str, Any] = {"trace": trace_at(path), "name": model.name}
    if name := model.worker_method:
        attributes[name] = with_begins_and_ends(getattr(model, name))
    return type(model.__name__, (Traced, model), attributes)


def with_begins_and_ends(method: Callable[..., None]) -> Callable[..., None]:
    """Return a method that runs this one, and writes the events `begins` and `ends` of its thread or process."""

    def method_with_events(self: Traced, *arguments: Any) -> None:
        self.trace.write("begins", "-")
        try:
            method(self, *arguments)
        finally:
            self.trace.write("ends", "-")

    return method_with_events


class Traced(Processor):
    """Comes before a model in the method resolution order of traced()."""

    trace: Trace

    def __init__(self, conversations: Conversations, config: Config) -> None:
        super().__init__(conversations, config)
        self.names: dict[Stream, str] = {}

    def make_queue(self) -> TracedQueue:
        """Return the queue of the pool, which writes the event `ready`."""
        return TracedQueue(super().make_queue(), self)  # type: ignore[misc]

    def serve(self, listener: Listener) -> None:
        """Serve as the model does; write `model`, `begins` (if this process is a worker) and `stops`."""
        self.trace.write("model", "-", f"{self.name} {self.description(self.config)}")
        if self.runs_at_once and not self.worker_method:
            self.trace.write("begins", "-")
        try:
            super().serve(listener)
        finally:
            self.trace.write("stops", "-")

    def register(self, stream: Any) -> Any:
        """Register a stream, name its connection, and write the event `accepted`; return the stream."""
        self.names[stream] = name = self.trace.new_connection()
        wait_s = wait_in_backlog(stream)
        text = "{}:{}".format(*stream.client) + ("" if wait_s is None else f" backlog={wait_s:.3f}")
        write = self.trace.writer(may_hold=self.runs_at_once)  # then this thread writes the next event, too
        write("accepted", name, text)
        return super().register(stream)

    def converse(self, stream: Stream) -> Coroutine[Any, Any, None]:
        """Return the conversation over a TracedStream, which writes its events."""
        over = TracedStream(stream, self.trace, self.names[stream])
        return TracedConversation(super().converse(over), over, self.trace)

    def forget(self, stream: Stream) -> None:
        """Remove a stream from the live ones, and write the event `closed`."""
        name = self.names.pop(stream, None)
        if name is not None:  # an event loop also forgets a client that left before it was registered
            self.trace.write("closed", name)
        super().forget(stream)

    def resized(self, workers: int) -> None:
        """Write the event `workers`."""
        self.trace.write("workers", "-", workers)
        super().resized(workers)

    def report_refusal(self, client: str, limit: str) -> None:
        """Write the event `refused`, and log it. limit: the setting whose limit was reached."""
        self.trace.write("refused", "-", f"{client} {limit}")
        super().report_refusal(client, limit)


class TracedConversation(Coroutine[Any, Any, None]):
    """A conversation that writes an event whenever a worker takes it or leaves it."""

    def __init__(self, conversation: Coroutine[Any, Any, None], stream: TracedStream, trace: Trace) -> None:
        self.conversation = conversation
        self.stream = stream
        self.trace = trace

    def send(self, value: Any) -> Any:
        return self.step(self.conversation.send, value)

    def throw(self, error: Any, *more: Any) -> Any:
        return self.step(self.conversation.throw, error)

    def close(self) -> None:
        """End the conversation, because the queue has dropped its request."""
        self.trace.write("ended", self.stream.name, "dropped")
        self.conversation.close()

    def __await__(self) -> Any:
        """Return the conversation's own iterator: its steps write no events."""
        return self.conversation.__await__()

    def step(self, resume: Callable[[Any], Any], argument: Any) -> Any:
        """Run the conversation to its next pause, or to its end; return what it has yielded.

        resume: the method send or throw of its coroutine. argument: for that method.
        """
        name, worker = self.stream.name, self.trace.worker
        worker.stream = self.stream
        self.trace.hold("runs", name)
        try:
            paused = resume(argument)
        except StopIteration:
            self.stream.end()
            raise
        except BaseException as reason:
            self.trace.write("ended", name, f"a fault: {type(reason).__name__}")
            raise
        finally:
            worker.stream = None
        # The pool's stream yields the Wait. An event stream keeps the event that it waits for.
        self.trace.write("parked", name, WORDS.get(getattr(paused or self.stream.below, "want", None), ""))
        return paused


class TracedQueue:
    """Stands before a pool's queue, and writes an event for each conversation that begins to wait for a worker."""

    def __init__(self, queue: Any, processor: Traced) -> None:
        self.queue = queue
        self.processor = processor

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the queue behind this one."""
        return getattr(self.queue, name)

    def put(self, entry: Any) -> Any:
        """Write the event `ready`, and put an entry into the queue. None: ends a worker (Pool.serve())."""
        # A PoolTask has a stream. With parking = never the entry itself is one.
        stream = getattr(entry, "stream", entry)
        if stream is not None:
            self.processor.trace.write("ready", self.processor.names[stream])
        return self.queue.put(entry)
