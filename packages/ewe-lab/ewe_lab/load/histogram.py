"""A log-linear histogram of times: it keeps three significant digits of every time, short or long.

Up to 0.2 ms a bucket is 100 ns wide; above that there are 1024 buckets for each doubling. A bucket is never wider
than a thousandth of its time, and the table stays small: a minute is 18 doublings above 0.2 ms.
"""

from __future__ import annotations

import math
from collections import Counter

from ewe_lab.bench.results import Times

UNIT_S = 1e-7  # seconds
KEPT_BITS = 11  # of a number that are kept
BUCKETS_PER_DECADE = 40  # buckets of a chart for times that differ by a factor of ten


class Histogram:
    """Times in seconds; adding one costs the same for all."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.count = 0
        self.total = 0.0
        self.max = 0.0
        self.in_vain = 0  # times of requests without an answer
        self.at_least = math.inf  # the shortest of those

    def add(self, seconds: float, answered: bool = True) -> None:
        """Count a time. answered: False for the time that a request without an answer waited."""
        steps = max(int(seconds / UNIT_S), 0)
        shift = max(steps.bit_length() - KEPT_BITS, 0)
        self.counts[shift << KEPT_BITS | steps >> shift] += 1
        self.count += 1
        if answered:
            self.total += seconds
        else:
            self.in_vain += 1
            self.at_least = min(self.at_least, seconds)
        if seconds > self.max:
            self.max = seconds

    def ordered(self) -> list[tuple[float, int]]:
        """Return (time, count), the shortest first. A time is the middle of its bucket."""
        return sorted((middle(bucket), count) for bucket, count in self.counts.items())

    def percentiles(self, *shares: float) -> list[float]:
        """Return a percentile for each share (0 to 1, rising). There must be at least one time."""
        found: list[float] = []
        seen = 0
        wanted = [max(math.ceil(share * self.count), 1) for share in shares]
        for time, count in self.ordered():
            seen += count
            while len(found) < len(wanted) and seen >= wanted[len(found)]:
                found.append(min(time, self.max))
        return found

    def times(self) -> Times | None:
        """Return the percentiles and buckets of a report; None if there are no times."""
        if not self.count:
            return None
        p50, p90, p95, p99 = self.percentiles(0.5, 0.9, 0.95, 0.99)
        answers = self.count - self.in_vain
        mean = self.total / answers if answers else None
        at_least = self.at_least if self.in_vain else None
        return Times(answers, mean, p50, p90, p95, p99, self.max, self.chart(), at_least)

    def chart(self) -> list[tuple[float, int]]:
        """Return (upper end, how many) of buckets for a chart, equally wide on a log axis."""
        merged: Counter[int] = Counter()
        for time, count in self.ordered():
            merged[math.ceil(math.log10(max(time, UNIT_S)) * BUCKETS_PER_DECADE)] += count
        return [(10 ** (step / BUCKETS_PER_DECADE), count) for step, count in sorted(merged.items())]


def middle(bucket: int) -> float:
    """Return the time in the middle of a bucket."""
    shift, steps = bucket >> KEPT_BITS, bucket & (1 << KEPT_BITS) - 1
    return ((steps << shift) + (1 << shift) / 2) * UNIT_S
