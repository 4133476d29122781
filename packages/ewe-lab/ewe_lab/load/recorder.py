"""Count what the clients of a load see: totals, distributions of times, and the events of each second.

Requests do not end when a measurement ends. The figures depend on which of them count:

                  begin                        end
    warm-up ────────┼──────── the window ───────┼────── later
                ├───┼──┤  a                     │           a   ends in the window
                    │    ├───────┤  b           │           b   sent and ended in the window
                    │                  ├────────┼─────┤ c   c   sent in the window, answered later
                    │                ├──────────┼─ ─ ─ ─ d  d   never answered

The rate counts the answers that arrive in the window: a and b. The times and the errors are those of all requests
of the window: c and d, too. Otherwise a server that leaves most clients waiting would have the good times of the
few that it serves (survivorship bias). The time of d is a lower bound of the time that its answer would have taken.

A request belongs to the window if it was under way in it. With a schedule (an open load) it belongs to the window
if it was due in it, however late it was sent. Two times are then measured: the service time, from the sending, and
the response time, from the moment at which the request was due.

Possible failures: the client itself is too slow. Sample.client, its share of a core, tells the reader of a report.

Read next: histogram.py, and experiment.Load, which defines the requests that count.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Sequence

from ewe_lab.bench.results import SHARES, Sample, Second, times_needed
from ewe_lab.load.histogram import Histogram

NO_ANSWER = ("ct", "st")  # errors after a wait: the time of the wait counts. A refusal comes at once


def next_mark(count: int) -> int:
    """Return the number that follows in 1, 2, 5, 10, 20, 50 ..."""
    power_of_ten = int("1" + "0" * (len(str(count)) - 1))
    return {1: 2, 2: 5, 5: 10}[count // power_of_ten] * power_of_ten


class Recorder:
    """Counts from `begin` to `end` (times of time.perf_counter()): the window.

    A request that is under way at the end counts when it is answered or times out. The latest moment is sample():
    it then counts as never answered. This also holds for a request that was due and still waits for a free
    connection.

    scheduled: each request has a time at which it is due, so there is a response time beside the service time.
    """

    def __init__(self, scheduled: bool) -> None:
        self.scheduled = scheduled  # open load: requests count by the time at which they are due
        self.begin = math.inf
        self.end = math.inf
        self.started_at = 0.0  # the time of start()
        self.cpu_s_at_start = 0.0  # CPU seconds of this process until start()
        self.client_share: float | None = None  # the share of a core that it used between start() and stop()
        self.requests = 0
        self.sessions = 0
        self.replies = 0
        self.late = 0  # replies after the end to requests that were due before it
        self.connections = 0
        self.received = 0  # bytes
        self.errors: Counter[str] = Counter()
        self.service = Histogram()
        self.response = Histogram()
        self.seconds: defaultdict[int, Second] = defaultdict(lambda: Second(0))
        self.times_by_second: defaultdict[int, Histogram] = defaultdict(Histogram)  # second: its times
        self.running: list[tuple[int, float]] = []  # a number of answers, and their mean service time
        self.next_mark = 1  # answers at which the mean so far is noted next
        self.send_times: dict[int, float] = {}  # send times of the requests without an answer
        self.due_times: dict[int, float] = {}  # of a schedule: due times of the requests without an answer
        self.phases: list[Recorder] = []  # each counts a part of the window

    def set_window(self, begin: float, end: float) -> None:
        """Count between these times, whenever start() and stop() are called.

        A schedule knows its times. Where a busy machine wakes this process late, as many requests are due as ever.
        """
        self.begin, self.end = begin, end

    def divide_into_phases(self, lengths: Sequence[float]) -> None:
        """Count each phase of the window by itself, too. lengths: their seconds; [] for no phases."""
        begin = self.begin
        for length in lengths:
            self.phases.append(Recorder(self.scheduled))
            self.phases[-1].set_window(begin, begin + length)
            begin += length

    def start(self) -> None:
        """Begin now, if the window is not set."""
        self.started_at, self.cpu_s_at_start = time.perf_counter(), time.process_time()
        self.begin = min(self.begin, self.started_at)

    def stop(self) -> None:
        """End now, if the window is not set. Requests that are due later do not count."""
        now = time.perf_counter()
        if now > self.started_at:
            self.client_share = (time.process_time() - self.cpu_s_at_start) / (now - self.started_at)
        self.end = min(self.end, now)

    def counts_at(self, at: float) -> bool:
        """Whether a time lies in the window that is counted."""
        return self.begin <= at < self.end

    def second_of(self, at: float) -> Second:
        """Return the second in which a time lies. Times after the end belong to the last whole second."""
        index = int(at - self.begin) if at < self.end else max(round(self.end - self.begin) - 1, 0)
        second = self.seconds[index]
        second.at = index
        return second

    def count_under_way(self) -> int:
        """Return how many requests that were sent before the end have no answer yet."""
        return sum(sent < self.end for sent in self.send_times.values())

    def count_due(self, due: float, *, starts_session: bool = False) -> None:
        """Note that a request is due. starts_session: it is the first of a session."""
        for phase in self.phases:
            phase.count_due(due, starts_session=starts_session)
        if self.counts_at(due):
            self.sessions += starts_session
            second = self.second_of(due)
            second.due = (second.due or 0) + 1

    def count_waiting(self, client: int, due: float) -> None:
        """Note that a client has a request that is due, and waits until it can send it."""
        for phase in self.phases:
            phase.count_waiting(client, due)
        self.due_times[client] = due

    def count_sent(self, client: int, at: float, due: float | None = None) -> None:
        """Note that a client sends a request at the time `at`. due: None without a schedule."""
        for phase in self.phases:
            phase.count_sent(client, at, due)
        self.send_times[client] = at
        if due is not None:
            self.due_times[client] = due
        if self.counts_at(at):
            self.requests += 1

    def count_end(
        self,
        client: int,
        due: float,
        sent: float,
        error: str,
        new_connections: int,
        received: int,
        ended: float | None = None,
    ) -> None:
        """Count the end of a request: an answer, or an error.

        due, sent, ended: times of time.perf_counter(). due: the same as `sent` without a schedule. ended: None for
        now. error: a kind of results.ERRORS, "" for an answer. new_connections: the connections that were opened
        for this request. received: the bytes that were received for it.

        The rate, the connections and the bytes are those of the window: they count if the request ends in it. The
        times and the errors are those of the requests of the window: they also count if a request ends later.
        """
        at = time.perf_counter() if ended is None else ended
        for phase in self.phases:
            # The same time for all phases: an answer at the bound of two phases must not count in both
            phase.count_end(client, due, sent, error, new_connections, received, at)
        self.send_times.pop(client, None)
        self.due_times.pop(client, None)
        ends_in_window = self.counts_at(at)
        if self.scheduled:
            request_counts = self.counts_at(due)
        # Without a schedule, a request counts if it was under way at some time of the window
        else:
            request_counts = self.begin <= at and sent < self.end
        if ends_in_window:
            self.connections += new_connections
            self.received += received
        if error:
            if request_counts:
                self.count_error(error, at)
                if error in NO_ANSWER:
                    self.record_times(at, due, sent, answered=False)
            return
        if ends_in_window:
            self.replies += 1
            self.second_of(at).replies += 1
        elif request_counts:
            self.late += 1
        if request_counts:
            self.record_times(at, due, sent)

    def record_times(self, at: float, due: float, sent: float | None, *, answered: bool = True) -> None:
        """Count the times of a request, and note the mean so far at 1, 2, 5, 10 ... answers.

        at: of its end. due, sent: as in count_end(), but sent is None for a request that was due and never sent: it
        has no service time. answered: False if its client waited without success.
        """
        if sent is not None:
            self.service.add(at - sent, answered=answered)
        if (answers := self.service.count - self.service.unanswered) == self.next_mark and answered:
            self.running.append((answers, self.service.total / answers))
            self.next_mark = next_mark(answers)
        if self.scheduled:
            self.response.add(at - due, answered=answered)
        self.times_by_second[self.second_of(at).at].add(at - due, answered=answered)

    def count_error(self, error: str, at: float) -> None:
        """Count an error of a request that ended at `at`. error: a kind of results.ERRORS."""
        self.errors[error] += 1
        second = self.second_of(at)
        second.errors[error] = second.errors.get(error, 0) + 1

    def count_dropped(self, due: float) -> None:
        """Count a session that could not begin, because this process has no descriptor left for it."""
        for phase in self.phases:
            phase.count_dropped(due)
        if self.counts_at(due):
            self.count_error("fd", due)

    def count_under_way_as_unanswered(self) -> None:
        """Count the requests that have no answer yet as never answered, and forget them.

        With a schedule these are the requests that were due in the window, sent or not.
        """
        for phase in self.phases:
            phase.count_under_way_as_unanswered()
        at = time.perf_counter()
        for client in self.send_times | self.due_times:
            sent = self.send_times.get(client)
            due = self.due_times.get(client, sent)
            assert due is not None  # the client is in one of the two
            if self.counts_at(due) if self.scheduled else due < self.end:
                self.count_error("ct", at)
                self.record_times(at, due, sent, answered=False)
        self.send_times.clear()
        self.due_times.clear()

    def sample(self, tool: str) -> Sample:
        """Return the sample, after the end. Requests that still have no answer count as never answered.

        tool: its name in the report.
        """
        length = self.end - self.begin
        self.count_under_way_as_unanswered()
        for number, histogram in self.times_by_second.items():
            second = self.seconds[number]
            p50, p99 = histogram.percentiles(SHARES["p50"], SHARES["p99"])
            # A chart shows each second beside the others, so one time beyond a percentile is enough there: p50
            # needs 2 times, p99 needs 100
            second.p50 = p50 if histogram.count >= times_needed("p50", 1) else None
            second.p99 = p99 if histogram.count >= times_needed("p99", 1) else None
        found = Sample(
            tool,
            seconds=length,
            requests=self.requests,
            replies=self.replies,
            connections=self.connections,
            received=float(self.received),
            errors=dict(self.errors),
            service=self.service.times(),
            response=self.response.times() if self.scheduled else None,
            client=self.client_share,
            timeline=[self.seconds[number] for number in range(math.ceil(length))],
            sessions=self.sessions,
            running=self.running,
            phases=[phase.sample(tool) for phase in self.phases],
        )
        for number, second in enumerate(found.timeline):
            second.at = number
        for phase in found.phases:
            phase.timeline.clear()  # the seconds are in the whole
        if self.late:  # these answers are not among the replies
            found.extra["late"] = float(self.late)
        return found
