"""The story of a trace: what each worker does, who waits for a worker, and which responses the clients get.

A connection is in one of five states. In three of them it occupies a worker:

    accepted ──▶ queued ──runs──▶ busy ◀──goes-on── waits
                   ▲               │ ▲ ──waits────▶        for the client, a program, a server or a call
                   │               │ │
                 ready             │ └───sent────── sends
                   │               └─────sends────▶        a part of the response, as fast as the client reads
                   └── parked ◀──parked──┘                 and the worker takes another connection

    queued   the server has accepted the connection, or its event has happened, and no worker has taken it
    busy     a worker computes for the connection
    sends    a worker writes a part of the response; with a client that reads slowly, this takes long
    waits    a worker stands still until the event has happened that the conversation waits for
    parked   the conversation waits, and occupies no worker

The models differ in one point: which waits are parked. Under the models serial, fork, prefork and thread no wait
is. In an event loop each wait is. A pool decides by its setting `parking`.

A sixth state comes before: a connection is in the kernel's listen backlog until the server accepts it. Under the
serial model this is the whole queue. The event `accepted` says for how long (Linux, TCP), so the story knows this
state only when it is over, and adds its span then. A connection that no worker has accepted by the end of the trace
is not in it. The kernel counts ticks of 10 ms at most, so a shorter wait has no span.

X-Switch and the database daemon write events, too: behind.py tells their part of the story.

A span is a time that a connection spends in one state. The spans with a worker are the picture's lanes. `feed`
takes one event at a time, and all results may be asked for in between.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ewe_watch.behind import ENGINE, NO_REQUEST, BehindStory, is_behind, shared_rows
from ewe_watch.events import TraceEvent, accepted_client, is_main_thread, process_in_name, process_of

BACKLOG, QUEUED, BUSY, SENDS, WAITS, PARKED = "backlog", "queued", "busy", "sends", "waits", "parked"
TICK_S = 0.01  # of the kernel's clock, at most: a shorter time in the backlog may be none
OCCUPYING = frozenset((BUSY, SENDS, WAITS))  # the states in which a connection has a worker
# What a conversation waits for if it waits for its client: ewe.trace and the Want of ewe.streams.base
OF_CLIENT = frozenset(("request", "bytes", "close", "room"))
MOST_ROWS = 32  # with more workers, those that live one after the other share a row of the picture


class Span(NamedTuple):
    """A time that a connection spends in one state.

    worker: PID/TID, "" in the states without a worker. want: what the connection waits for. request: the index of
    the request that is served, or NO_REQUEST. goes_on: the span is cut by the end of the trace.
    """

    begin: float
    end: float
    state: str
    connection: str
    worker: str
    want: str
    request: int
    goes_on: bool = False

    @property
    def on_client(self) -> bool:
        """Whether the client decides how long the span is: it sends, or reads, when it wants to."""
        return self.state == SENDS or (self.state == WAITS and self.want in OF_CLIENT)


class QueueStep(NamedTuple):
    """The numbers of connections in the queue, parked, and in the kernel's backlog, from this time on."""

    seconds: float
    queued: int
    parked: int
    backlog: int = 0


class RefusedClient(NamedTuple):
    """A connection that was not accepted. text: the client, and the setting whose limit was reached."""

    seconds: float
    text: str


class WorkerLane(NamedTuple):
    """A worker, and its row in the picture. name: for people. detail: the kernel's numbers.

    began, ended: the times of its life; None: not in the trace.
    """

    worker: str
    name: str
    detail: str
    row: int
    began: float | None = None
    ended: float | None = None


@dataclass
class TracedRequest:
    """A request. head, answered, first_byte, last_byte: the times of these events, None before them."""

    connection: str
    worker: str
    line: str
    head: float
    answered: float | None = None
    status: str = ""
    feature: str = ""
    first_byte: float | None = None
    last_byte: float | None = None
    bytes: int = 0
    programs: list[str] = field(default_factory=list)


@dataclass
class TracedConnection:
    """A connection: its facts, and the state that it is in now (`state`, `since`, `worker`, `want`, `request`).

    accepted: None if the trace begins later. backlog_s: the time in the kernel's backlog before, as the event says
    it; None: unknown. arrived: when the kernel made the connection, or else when it was accepted. first_byte: of
    the first response. requests: indexes into TraceStory.requests. request: the index of the one that is served
    now, or NO_REQUEST. client_left: when the server saw that the client had left. exited: when the last program of
    this connection ended. ended, why: when the conversation ended, and why. closed: when the socket was closed. All
    times are seconds by the trace's clock.
    """

    name: str
    first_seen: float
    address: str = ""
    accepted: float | None = None
    backlog_s: float | None = None
    arrived: float | None = None
    first_byte: float | None = None
    ended: float | None = None
    why: str = ""
    closed: float | None = None
    client_left: float | None = None
    exited: float | None = None
    requests: list[int] = field(default_factory=list)
    state: str = ""
    since: float = 0.0
    worker: str = ""
    want: str = ""
    request: int = NO_REQUEST


class TraceStory:
    """The story so far. began, ended: the times of the first and the last event, by the trace's clock."""

    def __init__(self) -> None:
        self.began = 0.0
        self.ended = 0.0
        self.events = 0
        self.lost = 0  # events that the programs lost: the sum of losses
        self.models: dict[str, str] = {}  # process -> the model's name and description
        self.connections: dict[str, TracedConnection] = {}
        self.requests: list[TracedRequest] = []
        self.spans: list[Span] = []
        self.steps: list[QueueStep] = []
        self.refusals: list[RefusedClient] = []
        self.occupied: dict[str, TracedConnection] = {}  # worker -> the connection that has it
        self.occupied_of = defaultdict[str, set[str]](set)  # process -> its workers in `occupied`
        self.workers: dict[str, int] = {}  # in the order in which they began, or took a connection
        self.worker_began: dict[str, float] = {}  # worker -> when its thread or process began
        self.worker_ended: dict[str, float] = {}  # worker -> when it ended
        self.stopped: dict[str, float] = {}  # process -> when it ended, and all its workers
        self.worker_words: dict[
            str, str
        ] = {}  # worker -> the word that names it in the short form of EWE_TRACE
        self.accepting_processes: set[str] = set()  # the processes that have given connections their names
        self.accepting_workers: set[str] = set()  # the workers that have accepted a connection
        self.queued = 0  # connections in this state now
        self.parked = 0  # connections in this state now
        self.losses: dict[str, int] = {}  # program -> its lost events
        self.client_names: Mapping[
            str, str
        ] = {}  # address -> the client's name for people, where it is known
        self.behind = BehindStory(self.request_now, self.worker_of)

    def feed(self, event: TraceEvent) -> None:
        """Add the next event. An event that the story does not know is ignored.

        Each kind has its method in OF_CONNECTION or OF_SERVER. An event may name a connection whose first event is
        lost. The name of a connection begins with the pid of the process that has accepted it.
        """
        if not self.events:
            self.began = self.ended = event.seconds
        self.events += 1
        self.ended = max(self.ended, event.seconds)
        if is_behind(event.kind):
            self.behind.feed(event)
        elif event.connection:
            connection = self.connections.get(event.connection)
            if connection is None:
                connection = TracedConnection(event.connection, event.seconds)
                self.connections[event.connection] = connection
                self.accepting_processes.add(process_in_name(event.connection))
            if event.kind in OF_CONNECTION:
                OF_CONNECTION[event.kind](self, event, connection)
        elif event.kind in OF_SERVER:
            OF_SERVER[event.kind](self, event)

    # Events of the server

    def model(self, event: TraceEvent) -> None:
        """Note the name and description of the model with which a process begins to serve."""
        self.models[process_of(event.worker)] = event.text
        self.worker_began[event.worker] = event.seconds

    def stops(self, event: TraceEvent) -> None:
        """End the states of the connections that have a worker of this process: it stops."""
        self.stopped[process_of(event.worker)] = event.seconds
        for worker in self.occupied_of.pop(process_of(event.worker), ()):
            self.end_state(self.occupied[worker], event.seconds)

    def refused(self, event: TraceEvent) -> None:
        """Note a connection that the server did not accept."""
        self.refusals.append(RefusedClient(event.seconds, event.text))

    def begins(self, event: TraceEvent) -> None:
        """Note that a worker begins. It has a lane from now on, also if it never takes a connection."""
        self.worker_began.setdefault(event.worker, event.seconds)
        self.worker_ended.pop(event.worker, None)  # the kernel gives a number again
        self.workers.setdefault(event.worker, len(self.workers))

    def worker_ends(self, event: TraceEvent) -> None:
        """Note that a worker ends."""
        self.worker_ended[event.worker] = event.seconds

    def named(self, event: TraceEvent) -> None:
        """Note the word by which the server itself names a worker."""
        self.worker_words[event.worker] = event.text

    def loses(self, event: TraceEvent) -> None:
        """Note the number of lost events. An event without a number counts as one."""
        # All processes of the server have one count, X-Switch has its own, and each process reports it so far.
        program = ENGINE if process_of(event.worker) in self.behind.processes else ""
        lost_so_far = int(event.text) if event.text.isdecimal() else 1
        self.losses[program] = max(self.losses.get(program, 0), lost_so_far)
        self.lost = sum(self.losses.values())

    # Events of a connection. ewe.trace lists the text (event.text) of each kind

    def accepted(self, event: TraceEvent, connection: TracedConnection) -> None:
        """Note the address and the times of a new connection. It begins in the queue: no worker has taken it.

        A wait in the backlog that began before the trace begins with the trace.
        """
        connection.accepted = connection.arrived = event.seconds
        connection.address, connection.backlog_s = accepted_client(event.text)
        if connection.backlog_s is not None and connection.backlog_s >= TICK_S:
            connection.arrived = max(event.seconds - connection.backlog_s, self.began)
            if connection.arrived < event.seconds:
                name = connection.name
                self.spans.append(Span(connection.arrived, event.seconds, BACKLOG, name, "", "", NO_REQUEST))
        self.accepting_workers.add(event.worker)
        self.enter_state(connection, event, QUEUED)

    def ready(self, event: TraceEvent, connection: TracedConnection) -> None:
        """Put a connection back into the queue: the event that it waited for has happened."""
        if connection.state != QUEUED:  # a pool's new connection is accepted, and then ready
            self.enter_state(connection, event, QUEUED)

    def runs(self, event: TraceEvent, connection: TracedConnection) -> None:
        """Begin the state `busy`: a worker takes the connection."""
        self.enter_state(connection, event, BUSY)

    def parks(self, event: TraceEvent, connection: TracedConnection) -> None:
        """Begin the state `parked`. If the connection was waiting, it goes on to wait for the same event."""
        want = event.text
        if connection.state == WAITS:
            # The wait was parked at once. The worker was not held up, it did the parking.
            want, connection.want, connection.state = connection.want, "", BUSY
        self.enter_state(connection, event, PARKED, want)

    def waits(self, event: TraceEvent, connection: TracedConnection) -> None:
        """Begin the state `waits`. Before the next request, the connection serves none."""
        if event.text == "request":
            connection.request = NO_REQUEST
        self.enter_state(connection, event, WAITS, event.text)

    def goes_on(self, event: TraceEvent, connection: TracedConnection) -> None:
        """Begin the state `busy`: the wait is over. Note whether it is over because the client has left."""
        self.enter_state(connection, event, BUSY)
        if event.text == "left":
            connection.client_left = event.seconds

    def request(self, event: TraceEvent, connection: TracedConnection) -> None:
        """Add a request, whose head is complete. The connection serves it until it waits for the next request."""
        self.enter_state(connection, event, BUSY)
        connection.request = len(self.requests)
        connection.requests.append(connection.request)
        self.requests.append(TracedRequest(connection.name, event.worker, event.text, event.seconds))

    def answered(self, event: TraceEvent, connection: TracedConnection) -> None:
        """Note the status of the response, and the feature that answers."""
        if (request := self.request_of(connection)) is not None:
            request.answered = event.seconds
            request.status, _, request.feature = event.text.partition(" ")

    def sends(self, event: TraceEvent, connection: TracedConnection) -> None:
        """Begin the state `sends`, and note the time of the first byte: of the connection, and of the request."""
        self.enter_state(connection, event, SENDS)
        if connection.first_byte is None:
            connection.first_byte = event.seconds
        if (request := self.request_of(connection)) is not None and request.first_byte is None:
            request.first_byte = event.seconds

    def sent(self, event: TraceEvent, connection: TracedConnection) -> None:
        """End the state `sends`, and count the bytes of this part of the response. More parts may follow."""
        self.enter_state(connection, event, BUSY)
        if (request := self.request_of(connection)) is not None:
            request.last_byte = event.seconds
            request.bytes += int(event.text) if event.text.isdecimal() else 0

    def program(self, event: TraceEvent, connection: TracedConnection) -> None:
        """Note the process of a program that runs for the request."""
        if (request := self.request_of(connection)) is not None:
            request.programs.append(event.text)

    def exits(self, event: TraceEvent, connection: TracedConnection) -> None:
        """Note the time at which a program of the connection ended."""
        connection.exited = event.seconds

    def ends(self, event: TraceEvent, connection: TracedConnection) -> None:
        """Note why the conversation has ended, and free its worker."""
        connection.ended = event.seconds
        connection.why = event.text
        self.end_state(connection, event.seconds)

    def closes(self, event: TraceEvent, connection: TracedConnection) -> None:
        """Note the time of the close, and end the state of a connection that lacks the event `ended`."""
        connection.closed = event.seconds
        self.end_state(connection, event.seconds)

    # States

    def request_now(self, connection: str) -> int:
        """Return the index of the request that a connection is served now, or NO_REQUEST. connection: its name."""
        found = self.connections.get(connection)
        return found.request if found is not None else NO_REQUEST

    def worker_of(self, request: int) -> str:
        """Return the worker that has taken a request, or "" for NO_REQUEST."""
        return self.requests[request].worker if request != NO_REQUEST else ""

    def request_of(self, connection: TracedConnection) -> TracedRequest | None:
        """Return the request that a connection is served now."""
        return self.requests[connection.request] if connection.request != NO_REQUEST else None

    def enter_state(
        self, connection: TracedConnection, event: TraceEvent, state: str, want: str = ""
    ) -> None:
        """Begin another state of a connection. want: what it waits for."""
        self.end_state(connection, event.seconds)
        connection.state, connection.since, connection.want = state, event.seconds, want
        if state in OCCUPYING:
            other = self.occupied.get(event.worker)
            if other is not None:  # a lost event said how the other connection left this worker
                self.enter_state(other, event, PARKED, other.want)
            connection.worker = event.worker
            self.occupied[event.worker] = connection
            self.occupied_of[process_of(event.worker)].add(event.worker)
            self.workers.setdefault(event.worker, len(self.workers))
        self.queued += state == QUEUED
        self.parked += state == PARKED
        self.note_queue_length(event.seconds)

    def end_state(self, connection: TracedConnection, seconds: float) -> None:
        """End the state of a connection, if it has one: add its span, and free the worker that it occupies.

        seconds: the time of the end. A state that took no time has no span.
        """
        if not connection.state:
            return
        if seconds > connection.since:
            self.spans.append(span_of(connection, seconds))
        if self.occupied.get(connection.worker) is connection:
            del self.occupied[connection.worker]
            process = process_of(connection.worker)
            self.occupied_of[process].discard(connection.worker)
            # Under the model fork each connection has a process: without this, empty sets would fill the memory
            if not self.occupied_of[process]:
                del self.occupied_of[process]
        self.queued -= connection.state == QUEUED
        self.parked -= connection.state == PARKED
        connection.state = connection.worker = connection.want = ""
        self.note_queue_length(seconds)

    def note_queue_length(self, seconds: float) -> None:
        """Note the length of the queue, and the number of parked connections, if one of them has changed."""
        step = QueueStep(seconds, self.queued, self.parked)
        # An event of the same time, or one that comes too late, replaces the last step: the times must ascend
        if self.steps and self.steps[-1].seconds >= seconds:
            self.steps[-1] = step._replace(seconds=self.steps[-1].seconds)
        elif not self.steps or self.steps[-1]._replace(seconds=seconds) != step:  # a length has changed
            self.steps.append(step)

    # Results

    def all_spans(self) -> list[Span]:
        """Return all spans by their begin. Those that go on are cut at the last event."""
        open_spans = [
            span_of(connection, self.ended, goes_on=True)
            for connection in self.connections.values()
            if connection.state and self.ended > connection.since
        ]
        return sorted([*self.spans, *open_spans])

    def all_steps(self) -> list[QueueStep]:
        """Return the steps with the numbers in the backlog, which are known only later than the others."""
        return list(with_backlog(self.steps, [span for span in self.spans if span.state == BACKLOG]))

    def lanes(self) -> list[WorkerLane]:
        """Return the workers: by process in the order in which these appeared, then by thread."""
        order: dict[str, int] = {}  # process -> its place
        for worker in self.workers:
            order.setdefault(process_of(worker), len(order))
        found = sorted(self.workers, key=lambda each: (order[process_of(each)], int(each.partition("/")[2])))
        threads = Counter(map(process_of, found))
        rows = self.rows_of_workers(found) if len(found) > MOST_ROWS else range(len(found))
        return [
            WorkerLane(
                worker=worker,
                name=f"worker {number}",
                detail=self.detail_of(worker, threads),
                row=row,
                began=self.worker_began.get(worker),
                ended=self.end_of(worker),
            )
            for number, (worker, row) in enumerate(zip(found, rows, strict=True), 1)
        ]

    def end_of(self, worker: str) -> float | None:
        """Return when a worker, or its process, ended; None: it goes on, or the trace does not say it."""
        return self.worker_ended.get(worker, self.stopped.get(process_of(worker)))

    def rows_of_workers(self, workers: list[str]) -> list[int]:
        """Return a row for each worker, 0 for one of which nothing is known.

        Workers share a row if their lives do not overlap. Where the trace has not a worker's life, its work counts.
        """
        begins = dict(self.worker_began)
        ends = {worker: end for worker in begins if (end := self.end_of(worker)) is not None}
        for span in self.all_spans():
            if span.worker and span.worker not in self.worker_began:
                begins.setdefault(span.worker, span.begin)
                ends[span.worker] = max(span.end, ends.get(span.worker, span.end))
        known = [each for each in workers if each in begins]
        times = [(begins[each], ends.get(each, self.ended)) for each in known]
        rows = dict(zip(known, shared_rows(times), strict=True))
        return [rows.get(worker, 0) for worker in workers]

    def detail_of(self, worker: str, threads: Mapping[str, int]) -> str:
        """Return the server's own word for a worker, or else the kernel's numbers. threads: workers by process."""
        word = self.worker_words.get(worker)
        return worker_detail(worker, threads) if word is None else f"{word} in the trace"

    def label(self, connection: str) -> str:
        """Return a connection's name for people: that of its client, if it is known, else its number.

        connection: its name. The number stands alone if one process has accepted all connections.
        """
        found = self.connections.get(connection)
        if found is not None and found.address in self.client_names:
            return self.client_names[found.address]
        return connection if len(self.accepting_processes) > 1 else connection.partition(".")[2]

    def model_name(self) -> str:
        """Return the name of the model, or "" if the trace does not name it."""
        return self.model_text().partition(" ")[0]

    def model_text(self) -> str:
        """Return the name and description of the model, or "" if the trace does not name it."""
        return next(iter(self.models.values()), "")


OF_SERVER: dict[str, Callable[[TraceStory, TraceEvent], None]] = {
    "model": TraceStory.model,
    "stops": TraceStory.stops,
    "refused": TraceStory.refused,
    "begins": TraceStory.begins,
    "ends": TraceStory.worker_ends,
    "named": TraceStory.named,
    "lost": TraceStory.loses,
}
OF_CONNECTION: dict[str, Callable[[TraceStory, TraceEvent, TracedConnection], None]] = {
    "accepted": TraceStory.accepted,
    "ready": TraceStory.ready,
    "runs": TraceStory.runs,
    "parked": TraceStory.parks,
    "waits": TraceStory.waits,
    "goes-on": TraceStory.goes_on,
    "request": TraceStory.request,
    "answered": TraceStory.answered,
    "sends": TraceStory.sends,
    "sent": TraceStory.sent,
    "program": TraceStory.program,
    "exited": TraceStory.exits,
    "ended": TraceStory.ends,
    "closed": TraceStory.closes,
}


def story_of_events(events: Iterable[TraceEvent]) -> TraceStory:
    """Return the story of these events."""
    story = TraceStory()
    for event in events:
        story.feed(event)
    return story


def with_backlog(steps: list[QueueStep], spans: Iterable[Span]) -> Iterator[QueueStep]:
    """Yield the steps of a queue, and a step for each change of the number in the backlog. spans: of BACKLOG."""
    changes = Counter[float]()
    for span in spans:
        changes[span.begin] += 1
        changes[span.end] -= 1
    at = {step.seconds: step for step in steps}
    now = QueueStep(0.0, 0, 0)
    backlog = 0
    for seconds in sorted(at.keys() | changes.keys()):
        backlog += changes[seconds]
        now = at.get(seconds, now)._replace(seconds=seconds, backlog=backlog)
        yield now


def worker_detail(worker: str, threads: Mapping[str, int]) -> str:
    """Return a worker as text: `thread 7131 of process 7120`. threads: how many workers each process has."""
    process, _, thread = worker.partition("/")
    if is_main_thread(worker):
        # A process with threads: its main thread begins each conversation in a pool with parking.
        return f"process {process}" if threads[process] == 1 else f"main thread {process}"
    return f"thread {thread}" + (f" of process {process}" if len(threads) > 1 else "")


def span_of(connection: TracedConnection, end: float, *, goes_on: bool = False) -> Span:
    """Return the span of a connection's state, up to `end`. Queued or parked: without worker and request."""
    worker = connection.worker if connection.state in OCCUPYING else ""
    request = connection.request if connection.state in OCCUPYING else NO_REQUEST
    return Span(
        connection.since, end, connection.state, connection.name, worker, connection.want, request, goes_on
    )
