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
# Each bucket has a number below this one: times of up to 2**63 units, some 29,000 years
BUCKET_LIMIT = (63 - KEPT_BITS + 1) << KEPT_BITS
BUCKETS_PER_DECADE = 40  # buckets of a chart for times that differ by a factor of ten


class Histogram:
    """Counts times, in seconds, in buckets. The memory does not grow with the number of times.

    Percentiles and the maximum include the times that requests without an answer waited: lower bounds of the times
    that their answers would have taken. The mean does not, since a mean of such bounds says nothing.
    """

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.count = 0
        self.total = 0.0  # the sum of the times of answers
        self.max = 0.0
        self.unanswered = 0  # how many times are of requests without an answer
        self.shortest_unanswered_s = math.inf  # the shortest of those times

    def add(self, seconds: float, *, answered: bool = True) -> None:
        """Count a time. answered: False for the time that a request without an answer waited."""
        units = max(int(seconds / UNIT_S), 0)
        shift = max(units.bit_length() - KEPT_BITS, 0)  # how many low bits of a long time are dropped
        self.counts[shift << KEPT_BITS | units >> shift] += 1  # the bucket: the shift, then the kept bits
        self.count += 1
        if answered:
            self.total += seconds
        else:
            self.unanswered += 1
            self.shortest_unanswered_s = min(self.shortest_unanswered_s, seconds)
        if seconds > self.max:
            self.max = seconds

    def sorted_times(self) -> list[tuple[float, int]]:
        """Return (time, count), the shortest first. A time is the middle of its bucket."""
        return sorted((time_of_bucket(bucket), count) for bucket, count in self.counts.items())

    def percentiles(self, *shares: float) -> list[float]:
        """Return a percentile for each share (0 to 1, rising). There must be at least one time."""
        found: list[float] = []
        times_so_far = 0
        ranks = [max(math.ceil(share * self.count), 1) for share in shares]  # 1: the shortest time
        for time, count in self.sorted_times():
            times_so_far += count
            while len(found) < len(ranks) and times_so_far >= ranks[len(found)]:
                found.append(min(time, self.max))  # the middle of a bucket may lie above the longest time
        return found

    def times(self) -> Times | None:
        """Return the percentiles and buckets of a report; None if there are no times."""
        if not self.count:
            return None
        p50, p90, p95, p99 = self.percentiles(0.5, 0.9, 0.95, 0.99)
        answers = self.count - self.unanswered
        mean = self.total / answers if answers else None
        # A percentile that is not below it is a lower bound
        at_least = self.shortest_unanswered_s if self.unanswered else None
        buckets = self.chart_buckets()
        return Times(
            count=answers,
            mean=mean,
            p50=p50,
            p90=p90,
            p95=p95,
            p99=p99,
            max=self.max,
            buckets=buckets,
            at_least=at_least,
            unanswered=self.unanswered,
        )

    def chart_buckets(self) -> list[tuple[float, int]]:
        """Return (upper end, how many) of buckets for a chart, equally wide on a log axis."""
        merged: Counter[int] = Counter()
        for time, count in self.sorted_times():
            # At least UNIT_S, since 0 has no logarithm
            merged[math.ceil(math.log10(max(time, UNIT_S)) * BUCKETS_PER_DECADE)] += count
        return [(10 ** (step / BUCKETS_PER_DECADE), count) for step, count in sorted(merged.items())]


def time_of_bucket(bucket: int) -> float:
    """Return the time in the middle of a bucket."""
    shift, kept = bucket >> KEPT_BITS, bucket & (1 << KEPT_BITS) - 1
    lowest, width = kept << shift, 1 << shift
    return (lowest + width / 2) * UNIT_S
