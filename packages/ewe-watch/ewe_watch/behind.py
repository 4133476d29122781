"""The processes behind the server: X-Switch's engines, and the database daemon's connections, from their events.

    x-request ── x-queued ── x-runs ── x-answered          a request, and the engine that takes it
    db-request ───────────── db-runs ── db-answered        a statement, and the connection that takes it

Both are the same picture: requests wait in a queue until a lane takes one. A lane is an engine, which belongs to a
user and a language, or a connection to a database. Each lane has a begin and an end, because engines and
connections come and go. In these events the field `connection` has the name of the request. The text of an event
names the connection of the server that waits for the request, if ewe is that server.

An engine has one request at a time, except for a shared one (Java): its other requests lie in separate lanes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ewe_watch.events import ABSENT, TraceEvent, process_in_name, process_of

NO_REQUEST = -1  # in place of the index of a request
ENGINE, DATABASE = "engine", "database"
KINDS = (ENGINE, DATABASE)
QUEUED, RUNS, LEFT = "queued", "runs", "left"  # the states of a request; left: its client has left
MOST_ROWS = 24  # of one kind in the picture; with more lanes, those that live one after the other share a row
MOST_OPEN = 6000  # requests that have not ended, of a story that never ends
UNKNOWN_OUTCOME = "ok"  # of a request whose end the trace has lost: it may not be shown as a failure


@dataclass
class BehindLane:
    """An engine, or a connection to a database. name: for people. ended: None while it lives.

    why: the cause of its end. key: the engine (PID.NUMBER), or the worker of the daemon (PID/TID). process: of the
    engine, or the worker; "" until the engine's process is known, or until the connection is open.
    """

    kind: str
    key: str
    name: str
    detail: str
    user: str
    began: float
    ended: float | None = None
    why: str = ""
    process: str = ""
    served: int = 0
    busy: BehindRequest | None = None
    outcome: str = ""  # of the last request that has ended here


@dataclass
class BehindRequest:
    """A request of X-Switch or of the daemon. text: the script, or the statement without its values.

    server: the connection of ewe that waits for it, or "". request: the index of its request in
    TraceStory.requests, or NO_REQUEST. worker: the worker of ewe that asks, or "". outcome: "" until it has ended.
    """

    kind: str
    name: str
    user: str
    what: str  # the language, or the database
    text: str
    began: float
    server: str = ""
    request: int = NO_REQUEST
    worker: str = ""
    lane: BehindLane | None = None
    took: float | None = None  # when a lane took it
    ended: float | None = None
    outcome: str = ""
    state: str = ""
    since: float = 0.0


class BehindSpan(NamedTuple):
    """A time that a request spends in one state. lane: None in the queue."""

    begin: float
    end: float
    state: str
    request: BehindRequest
    lane: BehindLane | None
    goes_on: bool = False


class BehindStep(NamedTuple):
    """The number of requests in a queue from this time on."""

    seconds: float
    queued: int


@dataclass
class BehindStory:
    """The story so far. Each method x_NAME or db_NAME handles the event x-NAME or db-NAME (EVENTS).

    In their docstrings, "Text" lists the words of TraceEvent.text, as ewe.trace does.
    request_of: returns the index of the request that a connection of the server has now. worker_of: returns the
    worker that has begun this request, or "".
    """

    request_of: Callable[[str], int] = lambda connection: NO_REQUEST
    worker_of: Callable[[int], str] = lambda request: ""
    lanes: list[BehindLane] = field(default_factory=list)
    requests: list[BehindRequest] = field(default_factory=list)
    spans: list[BehindSpan] = field(default_factory=list)
    steps: dict[str, list[BehindStep]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    queued: Counter[str] = field(default_factory=Counter)
    open_lanes: dict[str, BehindLane] = field(default_factory=dict)  # engine, or worker -> lane
    # Engine that runs several requests at once (Java) -> its further lanes
    further_lanes: dict[str, list[BehindLane]] = field(default_factory=dict)
    open_requests: dict[str, BehindRequest] = field(default_factory=dict)
    processes: set[str] = field(default_factory=set)  # X-Switch's main processes
    ended: float = 0.0

    def feed(self, event: TraceEvent) -> None:
        """Add the next event. An event that the story does not know is ignored."""
        self.ended = max(self.ended, event.seconds)
        if (handle := EVENTS.get(event.kind)) is not None:
            handle(self, event)

    # X-Switch

    def x_begins(self, event: TraceEvent) -> None:
        """Note the process of an X-Switch that begins."""
        self.processes.add(process_of(event.worker))

    def x_stops(self, event: TraceEvent) -> None:
        """End the lanes of all engines of an X-Switch that stops."""
        process = process_of(event.worker)
        for key, lane in list(self.open_lanes.items()):
            if lane.kind == ENGINE and process_in_name(key) == process:
                self.end_lane(key, event.seconds, "X-Switch stops")

    def x_engine(self, event: TraceEvent) -> None:
        """Add the lane of a new engine. Text: the engine (PID.NUMBER), its user, its language."""
        engine, user, language = split_words(event.text, 3)
        self.add_lane(engine, BehindLane(ENGINE, engine, f"{user}: {language}", "", user, event.seconds))

    def x_process(self, event: TraceEvent) -> None:
        """Note the process of an engine, which has started. Text: the engine, its PID."""
        engine, process = split_words(event.text, 2)
        if (lane := self.open_lanes.get(engine)) is not None:
            lane.process, lane.detail = process, f"process {process}"

    def x_ended(self, event: TraceEvent) -> None:
        """End the lane of an engine. Text: the engine, and why it ended."""
        engine, _, why = event.text.partition(" ")
        self.end_lane(engine, event.seconds, why)

    def x_request(self, event: TraceEvent) -> None:
        """Add a request. Text: the connection of ewe that waits for it (or "-"), user, language, script."""
        server, user, language, script = split_words(event.text, 4)
        self.add_request(
            event, BehindRequest(ENGINE, event.connection, user, language, script, event.seconds), server
        )

    def x_queued(self, event: TraceEvent) -> None:
        """Put a request into X-Switch's queue; also one whose engine has crashed."""
        if (request := self.open_requests.get(event.connection)) is not None:
            self.enter_state(request, QUEUED, event.seconds)

    def x_runs(self, event: TraceEvent) -> None:
        """Give a request to the lane of its engine, or to a further lane if a shared engine is busy.

        Text: the engine.
        """
        if (request := self.open_requests.get(event.connection)) is None:
            return
        if (lane := self.open_lanes.get(event.text)) is None:  # the trace begins later than the engine
            name = f"{request.user}: {request.what}"
            lane = self.add_lane(
                event.text, BehindLane(ENGINE, event.text, name, "", request.user, event.seconds)
            )
        if lane.busy is not None:
            lane = self.lane_of_busy_engine(lane, event.seconds)
        self.give_to_lane(request, lane, event.seconds)

    def x_left(self, event: TraceEvent) -> None:
        """Note that the client of a request has left, while an engine runs the script."""
        if (request := self.open_requests.get(event.connection)) is not None and request.lane is not None:
            self.enter_state(request, LEFT, event.seconds)

    def x_answered(self, event: TraceEvent) -> None:
        """End a request. Text: the outcome."""
        self.end_request(event.connection, event.seconds, event.text)

    def lane_of_busy_engine(self, lane: BehindLane, seconds: float) -> BehindLane:
        """Return a free lane of a shared engine whose first lane is busy; add one if there is none."""
        lanes = self.further_lanes.setdefault(lane.key, [])
        for other_lane in lanes:
            if other_lane.busy is None:
                return other_lane
        new_lane = BehindLane(ENGINE, lane.key, lane.name, lane.detail, lane.user, seconds)
        lanes.append(new_lane)
        self.lanes.append(new_lane)
        return new_lane

    # The database daemon

    def db_opened(self, event: TraceEvent) -> None:
        """Add the lane of a new connection, or complete the one that db_runs() or db_closed() has added.

        A worker opens its connection for the statement that it runs already, so db-runs comes before db-opened.
        Text: the database, the driver.
        """
        database, driver = split_words(event.text, 2)
        lane = self.open_lanes.get(event.worker)
        # A lane has a process once its connection is open. The trace has lost the end of that connection
        if lane is not None and lane.process:
            self.db_closed(event)
            lane = self.open_lanes.get(event.worker)
        if lane is None:
            lane = BehindLane(DATABASE, event.worker, database, "", "", event.seconds)
            self.add_lane(event.worker, lane)
        lane.name, lane.detail = database, connection_text(driver, event.worker)
        lane.process, lane.began = event.worker, event.seconds

    def db_closed(self, event: TraceEvent) -> None:
        """End the lane of a connection. If its worker still runs a statement, the next lane takes it over."""
        lane = self.open_lanes.get(event.worker)
        if lane is None:
            return
        busy, lane.busy = lane.busy, None
        self.end_lane(event.worker, event.seconds, "closed")
        if busy is not None:  # another connection takes its place for the same statement
            fresh = BehindLane(DATABASE, event.worker, busy.what, "no connection", "", event.seconds)
            self.add_lane(event.worker, fresh)
            busy.lane, fresh.busy = fresh, busy

    def db_request(self, event: TraceEvent) -> None:
        """Add a request, and put it into the daemon's queue. Text: as of x_request(): account, database."""
        server, account, database = split_words(event.text, 3)
        request = BehindRequest(DATABASE, event.connection, account, database, "", event.seconds)
        self.add_request(event, request, server)
        self.enter_state(request, QUEUED, event.seconds)

    def db_runs(self, event: TraceEvent) -> None:
        """Give a request to the lane of its worker. A worker without a connection yet gets a lane, too.

        Text: the statement, without its values.
        """
        if (request := self.open_requests.get(event.connection)) is None:
            return
        request.text = event.text
        if (lane := self.open_lanes.get(event.worker)) is None:
            lane = BehindLane(DATABASE, event.worker, request.what, "no connection", "", event.seconds)
            self.add_lane(event.worker, lane)
        self.give_to_lane(request, lane, event.seconds)

    def db_answered(self, event: TraceEvent) -> None:
        """End a request. Text: its time in milliseconds, which the story knows already, and the outcome."""
        _milliseconds, _, outcome = event.text.partition(" ")
        self.end_request(event.connection, event.seconds, outcome)

    def db_lost(self, event: TraceEvent) -> None:
        """End the lanes of a process of the daemon that has ended. The text of the event is its pid."""
        for key, lane in list(self.open_lanes.items()):
            if lane.kind == DATABASE and process_of(key) == event.text:
                self.end_lane(key, event.seconds, "its process has ended")

    # Lanes and states

    def add_lane(self, key: str, lane: BehindLane) -> BehindLane:
        """Add a lane that lives now; return it. key: the engine, or the worker of the daemon."""
        self.lanes.append(lane)
        self.open_lanes[key] = lane
        return lane

    def end_lane(self, key: str, seconds: float, why: str) -> None:
        """End the lane of an engine or a connection, with the further lanes of a shared engine."""
        first_lane = self.open_lanes.pop(key, None)
        for lane in (first_lane, *self.further_lanes.pop(key, ())):
            if lane is not None:
                lane.ended, lane.why = seconds, why

    def add_request(self, event: TraceEvent, request: BehindRequest, server: str) -> None:
        """Add a request. server: the connection that waits for it, or "-"."""
        if server != ABSENT:
            request.server, request.request = server, self.request_of(server)
            request.worker = self.worker_of(request.request)
        self.requests.append(request)
        self.open_requests[request.name] = request

    def give_to_lane(self, request: BehindRequest, lane: BehindLane, seconds: float) -> None:
        """Note that a lane runs a request from this time on."""
        self.enter_state(request, RUNS, seconds)
        request.lane, lane.busy = lane, request
        request.took = seconds
        lane.served += 1

    def enter_state(self, request: BehindRequest, state: str, seconds: float) -> None:
        """End the state of a request, and begin another one."""
        self.end_state(request, seconds)
        if state == QUEUED and request.lane is not None:  # it begins again, after its engine has crashed
            request.lane.busy = None
            request.lane = None
        request.state, request.since = state, seconds
        if state == QUEUED:
            self.change_queue_length(request.kind, seconds, +1)

    def end_state(self, request: BehindRequest, seconds: float) -> None:
        """End the state of a request, if it has one: add its span, unless it took no time."""
        if not request.state:
            return
        if seconds > request.since:
            lane = None if request.state == QUEUED else request.lane
            self.spans.append(BehindSpan(request.since, seconds, request.state, request, lane))
        if request.state == QUEUED:
            self.change_queue_length(request.kind, seconds, -1)
        request.state = ""

    def end_request(self, name: str, seconds: float, outcome: str) -> None:
        """End a request and free its lane. Only the first end counts."""
        if (request := self.open_requests.pop(name, None)) is not None:
            self.end_state(request, seconds)
            request.ended, request.outcome = seconds, outcome or UNKNOWN_OUTCOME
            if request.lane is not None and request.lane.busy is request:
                request.lane.busy, request.lane.outcome = None, request.outcome

    def change_queue_length(self, kind: str, seconds: float, change: int) -> None:
        """Add 1 or -1 to the length of a queue, and note the new length."""
        self.queued[kind] += change
        steps = self.steps[kind]
        if steps and steps[-1].seconds >= seconds:  # one length for each time
            steps.pop()
        steps.append(BehindStep(seconds, self.queued[kind]))

    # Results

    def live_lanes(self, kind: str) -> list[BehindLane]:
        """Return the engines, or the connections, that live now."""
        return [lane for lane in self.open_lanes.values() if lane.kind == kind]

    def count_lanes(self, kind: str, *, busy: bool = False) -> int:
        """Return how many engines or connections live now, or are busy now."""
        return sum(1 for lane in self.live_lanes(kind) if not busy or lane.busy is not None)

    def forget_ended(self) -> None:
        """Forget the spans, lanes and requests that have ended, for a story of a server that runs without a limit.

        Of each queue only the last length is kept: it is the length now. With more than MOST_OPEN open requests,
        the trace has lost events. The oldest of these requests then end, and leave their queue or their lane.
        """
        while len(self.open_requests) > MOST_OPEN:
            self.end_request(next(iter(self.open_requests)), self.ended, UNKNOWN_OUTCOME)
        self.spans.clear()
        self.lanes = [lane for lane in self.lanes if lane.ended is None]
        self.requests = list(self.open_requests.values())
        for steps in self.steps.values():
            del steps[:-1]

    def all_spans(self) -> list[BehindSpan]:
        """Return all spans by their begin. Those that go on are cut at the last event."""
        open_spans = [
            BehindSpan(
                each.since,
                self.ended,
                each.state,
                each,
                lane=None if each.state == QUEUED else each.lane,
                goes_on=True,
            )
            for each in self.open_requests.values()
            if each.state and self.ended > each.since
        ]
        return sorted([*self.spans, *open_spans], key=lambda span: (span.begin, span.end))

    def sorted_lanes(self) -> list[BehindLane]:
        """Return the lanes as the picture has them: engines by user and language, then connections by database."""
        return sorted(self.lanes, key=lambda lane: (KINDS.index(lane.kind), lane.name, lane.began))

    def rows(self) -> list[int]:
        """Return the row of each of sorted_lanes(). With more than MOST_ROWS of a kind, lanes share rows."""
        lanes = self.sorted_lanes()
        found: list[int] = []
        for kind in KINDS:
            lanes_of_kind = [lane for lane in lanes if lane.kind == kind]
            first_row = 1 + max(found, default=-1)  # below the rows of the kind before
            if len(lanes_of_kind) <= MOST_ROWS:
                found += range(first_row, first_row + len(lanes_of_kind))
            else:
                # A lane that lives at the last event keeps its row
                times = [
                    (each.began, self.ended + 1 if each.ended is None else each.ended)
                    for each in lanes_of_kind
                ]
                found += [first_row + row for row in shared_rows(times)]
        return found


def shared_rows(times: Sequence[tuple[float, float]]) -> list[int]:
    """Return a row for each (begin, end). Two share a row if one has ended before the other begins."""
    row_by_index = dict[int, int]()
    free_rows: list[int] = []  # a heap, so that the free row with the smallest number is taken first
    used_rows: list[tuple[float, int]] = []  # a heap: the end of the time that has a row, and the row
    for index in sorted(range(len(times)), key=lambda index: times[index][0]):
        begin, end = times[index]
        while used_rows and used_rows[0][0] <= begin:
            _, row = heapq.heappop(used_rows)
            heapq.heappush(free_rows, row)
        # Without a free row, all rows so far are in use: their count is the number of the next one
        row = heapq.heappop(free_rows) if free_rows else len(used_rows)
        row_by_index[index] = row
        heapq.heappush(used_rows, (end, row))
    return [row_by_index[index] for index in range(len(times))]


def split_words(text: str, count: int) -> list[str]:
    """Return the words of a text; the last one has the rest, and those that are missing are "-"."""
    found = text.split(" ", count - 1)
    return [*found, *[ABSENT] * (count - len(found))]


def connection_text(driver: str, worker: str) -> str:
    """Return the detail of a connection."""
    return f"{driver}, process {process_of(worker)}"


EVENTS: dict[str, Callable[[BehindStory, TraceEvent], None]] = {
    name.replace("_", "-"): getattr(BehindStory, name)
    for name in (
        "x_begins", "x_stops", "x_engine", "x_process", "x_ended", "x_request", "x_queued", "x_runs", "x_left",
        "x_answered", "db_opened", "db_closed", "db_request", "db_runs", "db_answered", "db_lost",
    )
}  # fmt: skip


def is_behind(kind: str) -> bool:
    """Return whether X-Switch or the daemon writes events of this kind."""
    return kind.startswith(("x-", "db-"))
