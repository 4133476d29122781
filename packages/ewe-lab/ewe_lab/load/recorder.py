"""Count what the clients of a load see: totals, distributions of times, and what happened in each second."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Sequence

from ewe_lab.bench.results import Sample, Second
from ewe_lab.load.histogram import Histogram

NO_ANSWER = ("ct", "st")  # errors after a wait, whose time counts; a refusal comes at once


def next_mark(count: int) -> int:
    """Return the number that follows in 1, 2, 5, 10, 20, 50 ..."""
    decade = int("1" + "0" * (len(str(count)) - 1))
    return {1: 2, 2: 5, 5: 10}[count // decade] * decade


class Recorder:
    """Counts from `begin` to `end` (times of time.perf_counter()). experiment.Load says what counts.

    A request that is under way at the end counts too: when it is answered or times out, and at the latest in
    `sample`, as a request that was never answered. Otherwise the figures of a server that leaves most clients
    waiting would be those of the few that it serves.

    scheduled: each request has a time at which it is due, so there is a response time beside the service time.
    """

    def __init__(self, scheduled: bool) -> None:
        self.scheduled = scheduled
        self.begin = math.inf
        self.end = math.inf
        self.cpu = 0.0  # CPU seconds of this process between start() and stop()
        self.measured = 0.0  # seconds between start() and stop()
        self.requests = 0
        self.sessions = 0
        self.replies = 0
        self.late = 0  # replies after the end to requests that were due before it
        self.connections = 0
        self.received = 0
        self.errors: Counter[str] = Counter()
        self.service = Histogram()
        self.response = Histogram()
        self.seconds: defaultdict[int, Second] = defaultdict(lambda: Second(0))
        self.each: defaultdict[int, Histogram] = defaultdict(Histogram)  # second: its times
        self.running: list[tuple[int, float]] = []
        self.mark = 1  # answers at which the mean so far is noted next
        self.waiting: dict[int, float] = {}  # send times of the requests without an answer
        self.phases: list[Recorder] = []  # each counts a part of the window

    def set_window(self, begin: float, end: float) -> None:
        """Count between these times, whenever start() and stop() are called.

        A schedule knows its times. Where a busy machine wakes this process late, as many requests are due as ever.
        """
        self.begin, self.end = begin, end

    def divide(self, lengths: Sequence[float]) -> None:
        """Count each phase of the window by itself, too. lengths: their seconds; [] for no phases."""
        begin = self.begin
        for length in lengths:
            self.phases.append(Recorder(self.scheduled))
            self.phases[-1].set_window(begin, begin + length)
            begin += length

    def start(self) -> None:
        """Begin now, if the window is not set."""
        self.measured, self.cpu = time.perf_counter(), time.process_time()
        self.begin = min(self.begin, self.measured)

    def stop(self) -> None:
        """End now, if the window is not set. Requests that are due later do not count."""
        now = time.perf_counter()
        self.measured, self.cpu = now - self.measured, time.process_time() - self.cpu
        self.end = min(self.end, now)

    def within(self, at: float) -> bool:
        """Whether a time counts."""
        return self.begin <= at < self.end

    def second(self, at: float) -> Second:
        """Return the second of a time. Times after the end belong to the last whole second."""
        number = int(at - self.begin) if at < self.end else max(round(self.end - self.begin) - 1, 0)
        found = self.seconds[number]
        found.at = number
        return found

    def under_way(self) -> int:
        """Return how many requests that were sent before the end have no answer yet."""
        return sum(sent < self.end for sent in self.waiting.values())

    def is_due(self, due: float, first: bool = False) -> None:
        """Note that a request is due. first: of a session."""
        for phase in self.phases:
            phase.is_due(due, first)
        if self.within(due):
            self.sessions += first
            second = self.second(due)
            second.due = (second.due or 0) + 1

    def sent(self, who: int, at: float) -> None:
        """Note that a client sends a request."""
        for phase in self.phases:
            phase.sent(who, at)
        self.waiting[who] = at
        if self.within(at):
            self.requests += 1

    def ended(self, who: int, due: float, sent: float, error: str, made: int, received: int) -> None:
        """Note an answer or an error. made: connections opened for it; received: bytes."""
        for phase in self.phases:
            phase.ended(who, due, sent, error, made, received)
        at = time.perf_counter()
        self.waiting.pop(who, None)
        now = self.within(at)
        counts = self.within(due) if self.scheduled else self.begin <= at and sent < self.end
        if now:
            self.connections += made
            self.received += received
        if error:
            if counts:
                self.failed(error, at)
                if error in NO_ANSWER:
                    self.took(at, due, sent, answered=False)
            return
        if now:
            self.replies += 1
            self.second(at).replies += 1
        elif counts:
            self.late += 1
        if counts:
            self.took(at, due, sent)

    def took(self, at: float, due: float, sent: float, answered: bool = True) -> None:
        """Count the times of a finished request."""
        self.service.add(at - sent, answered)
        if (answers := self.service.count - self.service.in_vain) == self.mark and answered:
            self.running.append((answers, self.service.total / answers))
            self.mark = next_mark(answers)
        if self.scheduled:
            self.response.add(at - due, answered)
        self.each[self.second(at).at].add(at - (due if self.scheduled else sent), answered)

    def failed(self, error: str, at: float) -> None:
        """Count an error."""
        self.errors[error] += 1
        second = self.second(at)
        second.errors[error] = second.errors.get(error, 0) + 1

    def dropped(self, due: float) -> None:
        """Note a session that could not begin, because this process has no descriptor left for it."""
        for phase in self.phases:
            phase.dropped(due)
        if self.within(due):
            self.failed("fd", due)

    def give_up(self) -> None:
        """Count the requests that are still under way as never answered."""
        at = time.perf_counter()
        for sent in self.waiting.values():
            if sent < self.end:
                self.failed("ct", at)
                self.took(at, sent, sent, answered=False)
        self.waiting.clear()

    def sample(self, tool: str) -> Sample:
        """Return the counts, after the end."""
        length = self.end - self.begin
        if not self.scheduled:
            self.give_up()
        for number, histogram in self.each.items():
            second = self.seconds[number]
            second.p50, second.p99 = histogram.percentiles(0.5, 0.99)
        found = Sample(
            tool,
            length,
            self.requests,
            self.replies,
            self.connections,
            float(self.received),
            dict(self.errors),
            self.service.times(),
            self.response.times() if self.scheduled else None,
            self.cpu / self.measured if self.measured > 0 else None,
            timeline=[self.seconds[number] for number in range(math.ceil(length))],
            sessions=self.sessions,
            running=self.running,
            phases=[phase.sample(tool) for phase in self.phases],
        )
        for number, second in enumerate(found.timeline):
            second.at = number
        for phase in found.phases:
            phase.timeline.clear()  # the seconds are in the whole
        if self.late:
            found.extra["late"] = float(self.late)
        return found
