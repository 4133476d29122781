"""What a load sees, counted: totals, distributions, and what happened in each second."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict

from ewe.lab.load.histogram import Histogram
from ewe.lab.results import Sample, Second


class Recorder:
    """Counts from `begin` to `end`, both times of time.perf_counter(); see experiment.Load for what counts.

    scheduled: requests are due at times of their own, so that there is a response time beside the service time.
    """

    def __init__(self, scheduled: bool) -> None:
        self.scheduled = scheduled
        self.begin = math.inf
        self.end = math.inf
        self.cpu = 0.0  # CPU seconds of this process within
        self.requests = 0
        self.replies = 0
        self.late = 0  # replies to what was due within, that came after the end
        self.connections = 0
        self.received = 0
        self.errors: Counter[str] = Counter()
        self.service = Histogram()
        self.response = Histogram()
        self.seconds: defaultdict[int, Second] = defaultdict(lambda: Second(0))
        self.each: defaultdict[int, Histogram] = defaultdict(Histogram)  # second: its times
        self.waiting: dict[int, float] = {}  # requests that have no answer yet: when they were sent

    def start(self) -> None:
        """Begin now."""
        self.begin = time.perf_counter()
        self.cpu = time.process_time()

    def stop(self) -> None:
        """End now; what is due later does not count."""
        self.end = time.perf_counter()
        self.cpu = time.process_time() - self.cpu

    def within(self, at: float) -> bool:
        """Whether a time counts."""
        return self.begin <= at < self.end

    def second(self, at: float) -> Second:
        """Return the second that a time is in."""
        number = int(at - self.begin)
        found = self.seconds[number]
        found.at = number
        return found

    def is_due(self, due: float) -> None:
        """Note that a request is due."""
        if self.within(due):
            second = self.second(due)
            second.due = (second.due or 0) + 1

    def sent(self, who: int, at: float) -> None:
        """Note that a client sends a request."""
        self.waiting[who] = at
        if self.within(at):
            self.requests += 1

    def ended(self, who: int, due: float, sent: float, error: str, made: int, received: int) -> None:
        """Note an answer or an error. made: connections for it; received: bytes."""
        at = time.perf_counter()
        self.waiting.pop(who, None)
        now = self.within(at)
        counts = self.within(due) if self.scheduled else now
        if now:
            self.connections += made
            self.received += received
        if error:
            if counts:
                self.errors[error] += 1
            if now:
                second = self.second(at)
                second.errors[error] = second.errors.get(error, 0) + 1
            return
        if now:
            self.replies += 1
            self.second(at).replies += 1
            self.each[int(at - self.begin)].add(at - (due if self.scheduled else sent))
        elif counts:
            self.late += 1
        if counts:
            self.service.add(at - sent)
            if self.scheduled:
                self.response.add(at - due)

    def dropped(self, due: float) -> None:
        """Note a session that could not be begun: it would have been one too many for this process."""
        if self.within(due):
            self.errors["fd"] += 1
            second = self.second(due)
            second.errors["fd"] = second.errors.get("fd", 0) + 1

    def sample(self, tool: str) -> Sample:
        """Return all that was counted, once it has ended."""
        length = self.end - self.begin
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
            self.cpu / length if length > 0 else None,
            timeline=[self.seconds[number] for number in range(math.ceil(length))],
        )
        for number, second in enumerate(found.timeline):
            second.at = number
        if self.late:
            found.extra["late"] = float(self.late)
        if self.waiting and not self.scheduled:
            longest = self.end - min(self.waiting.values())
            found.extra["unanswered"] = float(len(self.waiting))
            if longest > 1:
                found.notes.append(
                    f"{len(self.waiting)} requests had no answer when the run ended, one for {longest:.1f} s: "
                    "no time of theirs is counted"
                )
        return found
