"""The story of a running server in bounded memory: the changes since the last look, and the state of now.

TraceStory keeps all spans, requests and connections, since a page of a finished trace shows them all. A server that
runs for an hour would fill the memory. LiveStory hands its spans over (`changes`), and forgets connections that are
closed.

    lines of the trace ─▶ add(): wait for SETTLE_S ─▶ feed(): one event ─▶ changes(): to the page, and forget
                          (several threads write, so lines may have changed places)

The page reads spans and rows as arrays, by position, because it gets thousands of them: LiveSpan and LiveRow have
the positions.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from heapq import nsmallest
from typing import Any, NamedTuple

from ewe_watch.behind import NO_REQUEST
from ewe_watch.events import TraceEvent, is_main_thread, process_in_name, process_of
from ewe_watch.live.behind_rows import BehindRows
from ewe_watch.live.worker_lives import WorkerLives
from ewe_watch.story import OCCUPYING, QUEUED, TICK_S, TracedConnection, TraceStory

SETTLE_S = 0.02
MOST_SPANS = 300  # of one change; of more, the longest are shown
MOST_ROWS = 40  # rows of the picture; the page counts the occupied workers beyond
MOST_CONNECTIONS = 6000  # that are open: with more, a trace has lost their ends
MOST_REQUESTS = 2000  # that are kept, except those of open connections
GONE_S = 0.3  # after which the connections of a process that has ended are forgotten
GHOST_S = 10.0  # after which a connection that only a late event has named is forgotten
MOST_NAMES = 10  # of the connections in the queue, or in the backlog
MOST_WORKERS = 2000  # names of workers that are kept
# A request for the page of the demonstration that blocks its thread, and what its connection waits for from then on
BLOCKING, PAGE = "GET /blocking?", "page"
REAPED = "wait() called"  # the note of a process whose status its parent has read
ZOMBIE = "zombie"  # the state of a process that has ended, and whose status its parent has not read
LOOPS = ("asyncio", "xswitch")
ACCEPTING_NAME = "main thread"
ACCEPTING_THREAD = ("pool", "thread")  # models whose first thread accepts for the others
ONE_CONNECTION_EACH = ("fork", "thread")  # models whose workers end with their connection


class LiveSpan(NamedTuple):
    """A span of a worker that has ended, for the page. row: the worker's. begin, end: as LiveStory.at() counts.

    state: of the connection, or ZOMBIE. want: the thing that the connection waited for, or "". label, request: the
    connection's name for people, and the request line, or "".
    """

    row: int
    begin: float
    end: float
    state: str
    want: str
    label: str
    request: str


class LiveRow(NamedTuple):
    """A worker and its state now, for the page. name: for people. worker: PID/TID.

    state: of the worker's connection, ZOMBIE, or "". since: when the state began, as LiveStory.at() counts; 0
    without one. note: the awaited thing of the connection; without one, the activity of the worker. label, request:
    as in LiveSpan.
    """

    name: str
    worker: str
    state: str
    since: float
    note: str
    label: str
    request: str


class LiveStory(TraceStory):
    """The story so far. label: names a connection for people, by its client's address."""

    def __init__(
        self,
        label: Callable[[str], str],
        zero: float,
        is_running: Callable[[int], bool] = lambda process: True,
    ) -> None:
        """zero: the time from which the page counts, by the trace's clock. is_running: whether a process exists."""
        super().__init__()
        self.label_of = label
        self.is_running = is_running
        # A process that has ended, and has connections -> the time at which that was noticed
        self.gone_since: dict[str, float] = {}
        self.zero = zero
        self.behind_rows = BehindRows(self.name_of, self.at, lambda worker: self.rows.get(worker, -1))
        self.waiting: list[TraceEvent] = []
        self.counts: Counter[str] = Counter()
        self.rows: dict[str, int] = {}  # worker -> row
        self.row_workers: list[str] = []  # row -> the worker that has it now
        self.lives = WorkerLives(self.at, self.rows)
        self.hidden = 0  # spans that were too many to show
        self.labels: dict[str, str] = {}
        self.from_backlog = 0  # connections that have waited in the kernel's backlog
        self.longest_in_backlog_s = 0.0
        self.zombies: frozenset[int] = frozenset()  # processes, by the last measurement
        self.shown_zombies: dict[str, float] = {}  # worker -> since when
        self.ended_at: dict[str, float] = {}  # worker -> its last event
        # worker -> what it does; all threads of a server that is seen from outside, else none
        self.calls: Mapping[str, str] = {}

    def add(self, events: Iterable[TraceEvent]) -> None:
        """Take events that were read, and feed the story with those that are old enough to be in order."""
        self.waiting += events
        self.waiting.sort(key=lambda event: event.seconds)
        newest_in_order = time.monotonic() - SETTLE_S
        fed = 0
        for event in self.waiting:
            if event.seconds > newest_in_order:
                break
            fed += 1
            self.feed(event)
        del self.waiting[:fed]

    def feed(self, event: TraceEvent) -> None:
        """Add one event, and count it by its kind."""
        self.counts[event.kind] += 1
        if event.kind == "answered":
            self.counts[f"status {event.text[:1]}xx"] += 1
        super().feed(event)
        if event.kind == "closed":
            self.ended_at[event.worker] = event.seconds
            self.forget(event.connection)
        elif event.kind in ("model", "begins", "ends", "stops"):
            self.note_life(event)
        # The model of a student may write such an event without a connection
        elif (connection := self.connections.get(event.connection)) is not None:
            if event.kind == "accepted":
                self.note_accepted(connection)
            elif event.kind == "request" and event.text.startswith(BLOCKING):
                connection.want = PAGE

    def note_life(self, event: TraceEvent) -> None:
        """Note the begin or the end of a worker. One that begins has a row, if one is free.

        An event loop begins with its process: it writes no event `begins`.
        """
        if event.kind == "ends":
            self.lives.end(event.worker, event.seconds)
        elif event.kind == "stops":
            self.lives.end_process(process_of(event.worker), event.seconds)
        else:
            self.lives.begin(event.worker, event.seconds)
            is_loop = self.model_name() in LOOPS
            if (event.kind == "begins" or is_loop) and event.worker not in self.rows:
                self.give_row(event.worker, may_take=False)

    def note_accepted(self, connection: TracedConnection) -> None:
        """Note the client of a new connection, and its time in the kernel's backlog, if it waited there."""
        self.labels[connection.name] = self.label_of(connection.address)
        if connection.backlog_s is not None and connection.backlog_s >= TICK_S:
            self.from_backlog += 1
            self.longest_in_backlog_s = max(self.longest_in_backlog_s, connection.backlog_s)

    def enter_state(
        self, connection: TracedConnection, event: TraceEvent, state: str, want: str = ""
    ) -> None:
        """Begin another state of a connection, and give a new worker its row."""
        super().enter_state(connection, event, state, want)
        if state in OCCUPYING and event.worker not in self.rows:
            self.give_row(event.worker)

    def give_row(self, worker: str, *, may_take: bool = True) -> None:
        """Give a worker a row: that of a worker that has ended, or else a new one.

        may_take: if no row is left, take that of a worker that lives, but serves none now. A worker that serves
        several connections keeps its row between them, as long as there are free rows.
        """
        has_room = len(self.row_workers) < MOST_ROWS
        if (before := self.worker_to_replace(may_take=may_take and not has_room)) is not None:
            row = self.rows.pop(before)
            self.lives.leaves(before)
            self.row_workers[row] = worker
            self.rows[worker] = row
        elif has_room:
            self.rows[worker] = len(self.row_workers)
            self.row_workers.append(worker)

    def worker_to_replace(self, *, may_take: bool) -> str | None:
        """Return the worker whose row a new worker gets; None if each worker keeps its row.

        It is one that has ended. With may_take it may also be one that serves no connection now.
        """
        free = [
            each for each in self.row_workers if each not in self.occupied and each not in self.shown_zombies
        ]
        ended = [each for each in free if self.is_gone(each)]
        if not ended and self.model_name() in ONE_CONNECTION_EACH:
            # The trace says nothing of their lives, as for a model that does not name its worker_method
            ended = [each for each in free if each not in self.lives.began]
        return next(iter(ended or (free if may_take else [])), None)

    def show_calls(self, calls: Mapping[str, str]) -> None:
        """Note what each thread of a server does that is seen from outside; give it a row, if one is free.

        calls: PID/TID -> text, such as "in futex". {}: the trace says what the workers do.
        """
        self.calls = calls
        # Rows without a worker yet, and those of workers that have ended
        free = MOST_ROWS - len(self.row_workers) + sum(map(self.is_gone, self.row_workers))
        for worker in [each for each in calls if each not in self.rows][:free]:
            self.give_row(worker)

    def is_gone(self, worker: str) -> bool:
        """Return whether a worker has ended, as far as the trace or the system says so, and serves none."""
        if worker in self.occupied:
            return False
        return worker in self.lives.ended or (bool(self.calls) and worker not in self.calls)

    def forget(self, name: str) -> None:
        """Forget a connection that is closed. Its spans were handed over, or will be with the next change."""
        connection = self.connections.pop(name, None)
        if connection is not None:
            self.end_state(connection, connection.closed or self.ended)

    def changes(self) -> dict[str, Any]:
        """Return the changes since the last call, and the state now, as an object for JSON.

        Times are milliseconds since `zero`. spans: those that ended since the last call, as LiveSpan. rows: as
        LiveRow. lives: of WorkerLives.changes(). held: how many workers are occupied. rowless: how many of these
        have no row. queued_names: of queued_names(). queued, parked, programs, open: how many there are now.
        from_backlog: how many connections have waited in the backlog, and the longest wait (ms). The other numbers
        count from the beginning.
        """
        self.end_killed(time.monotonic())
        spans = [span for span in self.spans if span.worker and span.worker in self.rows]
        if len(spans) > MOST_SPANS:
            self.hidden += len(spans) - MOST_SPANS
            spans = sorted(spans, key=lambda span: span.begin - span.end)[:MOST_SPANS]  # the longest first
        shown = [
            LiveSpan(
                self.rows[span.worker], self.at(span.begin), self.at(span.end), span.state, span.want,
                self.name_of(span.connection), self.request_line(span.request),
            )
            for span in spans
        ]  # fmt: skip
        shown += self.take_zombie_spans()
        behind = self.behind_rows.changes(self.behind)
        self.forget_old()
        return {
            "spans": [list(span) for span in shown],
            "rows": [list(self.row_now(row, worker)) for row, worker in enumerate(self.row_workers)],
            "lives": self.lives.changes(self.row_workers),
            "behind": behind,
            "held": sum(not self.is_accepting_thread(worker) for worker in self.occupied),
            "rowless": sum(worker not in self.rows for worker in self.occupied),
            "queued": self.queued,
            "queued_names": self.queued_names(),
            "parked": self.parked,
            "accepted": self.counts["accepted"],
            "from_backlog": [self.from_backlog, round(self.longest_in_backlog_s * 1000)],
            "requests": self.counts["request"],
            "answered": self.counts["answered"],
            "failed": self.counts["status 4xx"] + self.counts["status 5xx"],
            "refused": self.counts["refused"],
            "programs": self.counts["program"] - self.counts["exited"],
            "open": sum(each.state != "" for each in self.connections.values()),
            "lost": self.lost,
            "events": self.events,
        }

    def end_killed(self, now: float) -> None:
        """Forget the connections of processes that were killed: such a process writes no event of their ends.

        A process that ends by itself has written these events. The story has them long before GONE_S is over.
        """
        of_process: dict[str, list[TracedConnection]] = {}
        for each in self.connections.values():
            if each.state:
                # A connection without a worker belongs to the process that has given it its name
                process = process_of(each.worker) if each.worker else process_in_name(each.name)
                of_process.setdefault(process, []).append(each)
        self.gone_since = {
            process: self.gone_since.get(process, now)
            for process in of_process
            if int(process) in self.zombies or not self.is_running(int(process))
        }
        for process, since in self.gone_since.items():
            for each in of_process[process] if now - since >= GONE_S else ():
                self.end_state(each, now)
                del self.connections[each.name]
        self.lives.end_killed(self.is_running, self.occupied, now)
        self.lives.note_reaped(self.is_running)

    def take_zombie_spans(self) -> list[LiveSpan]:
        """Note which workers are zombies now; return the spans of those whose status was read since the last call.

        The span of a zombie begins with the last event of its worker. It ends now, because no event says when the
        parent read the status. A span is returned once.
        """
        zombies_now = {
            worker
            for worker in self.row_workers
            if int(process_of(worker)) in self.zombies and worker not in self.occupied
        }
        for worker in zombies_now - self.shown_zombies.keys():
            self.shown_zombies[worker] = self.ended_at.get(worker, self.ended)
        reaped = {worker: since for worker, since in self.shown_zombies.items() if worker not in zombies_now}
        for worker in reaped:
            del self.shown_zombies[worker]
        end = self.at(time.monotonic())
        return [
            LiveSpan(self.rows[worker], self.at(since), end, ZOMBIE, want="", label=ZOMBIE, request="")
            for worker, since in reaped.items()
            if worker in self.rows
        ]

    def row_now(self, row: int, worker: str) -> LiveRow:
        """Return the row of a worker as it is now."""
        name = self.worker_name(row, worker)
        if (connection := self.occupied.get(worker)) is not None:
            return LiveRow(
                name, worker, connection.state, self.at(connection.since), connection.want,
                self.name_of(connection.name), self.request_line(connection.request),
            )  # fmt: skip
        if worker in self.shown_zombies:
            since = self.at(self.shown_zombies[worker])
            return LiveRow(name, worker, ZOMBIE, since, note="", label=ZOMBIE, request="")
        return LiveRow(name, worker, "", 0, self.note_of(name, worker), label="", request="")

    def note_of(self, name: str, worker: str) -> str:
        """Return the activity of a worker without a connection, as LiveRow.note. name: of the worker for people."""
        if self.calls:  # a server without a trace: the kernel knows the system call of each thread
            return self.calls.get(worker, "ended")
        if worker in self.lives.reaped:
            return REAPED
        if self.has_ended(worker):
            return "ended"
        return "accepts" if name == ACCEPTING_NAME else ""

    def has_ended(self, worker: str) -> bool:
        """Return whether a worker without a connection has ended.

        If the trace says nothing of its life, a worker of a model with one connection each has ended with that.
        """
        return worker in self.lives.ended or (
            worker not in self.lives.began
            and worker in self.ended_at
            and self.model_name() in ONE_CONNECTION_EACH
        )

    def is_accepting_thread(self, worker: str) -> bool:
        """Return whether a worker is the main thread of a pool: it begins conversations, and is not in the pool."""
        return is_main_thread(worker) and self.model_name() == "pool"

    def worker_name(self, row: int, worker: str) -> str:
        """Return the name of a worker for people."""
        if not is_main_thread(worker):
            # The thread that accepts has a row only in a pool with parking, and is no thread of the pool
            main_threads_before = sum(map(is_main_thread, self.row_workers[:row]))
            return f"thread {row + 1 - main_threads_before}"
        model = self.model_name()
        if model in LOOPS:
            return "event loop" if row == 0 else f"event loop {row + 1}"
        return ACCEPTING_NAME if model in ACCEPTING_THREAD else f"process {row + 1}"

    def at(self, seconds: float) -> float:
        """Return a time of the trace in milliseconds since `zero`."""
        return round((seconds - self.zero) * 1000, 2)

    def name_of(self, connection: str) -> str:
        """Return a connection's name for people: that of its client."""
        return self.labels.get(connection, f"connection {connection}")

    def request_line(self, request: int) -> str:
        """Return the request line of a request."""
        return self.requests[request].line if 0 <= request < len(self.requests) else ""

    def count_of_kind(self, kind: str, state: str) -> int:
        """Return how many connections of this kind of client are in a state. state: "held": they have a worker."""
        states = OCCUPYING if state == "held" else frozenset((state,))
        return sum(
            self.name_of(each.name).rpartition(" ")[0] == kind and each.state in states
            for each in self.connections.values()
        )

    def queued_names(self) -> list[str]:
        """Return the names of the connections that have been in the queue for longest, MOST_NAMES at most."""
        if not self.queued:
            return []
        queue = (each for each in self.connections.values() if each.state == QUEUED)
        return [self.name_of(each.name) for each in nsmallest(MOST_NAMES, queue, key=lambda each: each.since)]

    def forget_old(self) -> None:
        """Forget the spans, connections, requests and workers that no later change needs.

        A connection of which only a late event is known (it has no state) is forgotten after GHOST_S seconds. A
        table that grows slowly is made new only when it is well above its size: to do this at each change would
        take long.
        """
        self.spans.clear()
        self.behind.forget_ended()
        # Only the last step is kept: it has the lengths of the queue now
        del self.steps[:-1]
        self.refusals.clear()
        oldest_kept = self.ended - GHOST_S
        ghosts = [
            each for each in self.connections.values() if not each.state and each.first_seen < oldest_kept
        ]
        for each in ghosts:
            del self.connections[each.name]
        # With so many open connections, the trace has lost the ends of the oldest ones
        while len(self.connections) > MOST_CONNECTIONS:
            self.forget(next(iter(self.connections)))
        if len(self.labels) > 2 * len(self.connections) + MOST_REQUESTS:
            self.labels = {name: self.labels[name] for name in self.connections if name in self.labels}
        if len(self.requests) > MOST_REQUESTS + 2 * len(self.connections):
            self.keep_requests()
        if len(self.ended_at) > MOST_WORKERS:
            self.ended_at = {worker: self.ended_at[worker] for worker in self.rows if worker in self.ended_at}
        for lives in (self.worker_began, self.worker_ended, self.stopped):
            lives.clear()
        if len(self.workers) > MOST_WORKERS:
            self.workers = {worker: number for number, worker in enumerate(self.row_workers)}
            self.accepting_workers &= self.workers.keys()
            self.accepting_processes &= {process_of(worker) for worker in self.workers}

    def keep_requests(self) -> None:
        """Keep only the current requests of open connections, and give the connections their new indexes."""
        kept = []
        for each in self.connections.values():
            if each.request != NO_REQUEST:
                kept.append(self.requests[each.request])
                each.request = len(kept) - 1
                each.requests = [each.request]
            else:
                each.requests = []
        self.requests = kept
