"""How often each time occurred, to three significant digits, whatever its size: a log-linear histogram.

Times are counted in steps of 100 ns up to 0.2 ms, above that in 1024 steps for each doubling: so a bucket is
never wider than a thousandth of the time it stands for, and a minute still has a place.
"""

from __future__ import annotations

import math
from collections import Counter

from ewe.lab.results import Times

UNIT = 1e-7  # seconds
BITS = 11  # of a number that are kept
PER_DECADE = 40  # buckets of a chart for times that differ by a factor of ten


class Histogram:
    """Times in seconds; adding one costs the same for all."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.count = 0
        self.total = 0.0
        self.max = 0.0

    def add(self, seconds: float) -> None:
        """Count a time."""
        steps = max(int(seconds / UNIT), 0)
        shift = max(steps.bit_length() - BITS, 0)
        self.counts[shift << BITS | steps >> shift] += 1
        self.count += 1
        self.total += seconds
        if seconds > self.max:
            self.max = seconds

    def ordered(self) -> list[tuple[float, int]]:
        """Return (time, how many), the least time first; a time is the middle of its bucket."""
        return sorted((middle(bucket), count) for bucket, count in self.counts.items())

    def percentiles(self, *shares: float) -> list[float]:
        """Return for each share, 0 to 1 and rising, the time that so many did not exceed. Not of nothing."""
        found: list[float] = []
        seen = 0
        wanted = [max(math.ceil(share * self.count), 1) for share in shares]
        for time, count in self.ordered():
            seen += count
            while len(found) < len(wanted) and seen >= wanted[len(found)]:
                found.append(min(time, self.max))
        return found

    def times(self) -> Times | None:
        """Return what a report needs; None of nothing."""
        if not self.count:
            return None
        p50, p90, p95, p99 = self.percentiles(0.5, 0.9, 0.95, 0.99)
        mean = self.total / self.count
        return Times(self.count, mean, p50, p90, p95, p99, self.max, self.chart())

    def chart(self) -> list[tuple[float, int]]:
        """Return (upper end, how many) of buckets for a chart, equally wide on a log axis."""
        merged: Counter[int] = Counter()
        for time, count in self.ordered():
            merged[math.ceil(math.log10(max(time, UNIT)) * PER_DECADE)] += count
        return [(10 ** (step / PER_DECADE), count) for step, count in sorted(merged.items())]


def middle(bucket: int) -> float:
    """Return the time in the middle of a bucket."""
    shift, steps = bucket >> BITS, bucket & (1 << BITS) - 1
    return ((steps << shift) + (1 << shift) / 2) * UNIT
