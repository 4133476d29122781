"""The amount of repetition that a run has time for: examples of a property, rounds of a loop, seconds of a soak.

    EWE_TEST_COMPLETE   all of it (.ci/run)
    neither             two fifths (`make test`)
    EWE_TEST_QUICK      a fifth (`make quick`)

A test takes its numbers from here if each repetition may find the same fault: then fewer of them find it less
often, in more runs.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")

COMPLETE = bool(os.environ.get("EWE_TEST_COMPLETE"))
SHARE = 1.0 if COMPLETE else 0.2 if os.environ.get("EWE_TEST_QUICK") else 0.4


def examples(count: int, least: int = 1) -> int:
    """Return how many of `count` examples or rounds this run has time for, `least` of them in any case."""
    return max(least, round(count * SHARE))


def some(items: Sequence[Item]) -> list[Item]:
    """Return the items that this run has time for, in their order: a random choice, the same in every run."""
    chosen = random.Random(1).sample(range(len(items)), examples(len(items)))
    return [items[place] for place in sorted(chosen)]


def seconds(whole_s: float, least_s: float = 0.0) -> float:
    """Return how many of `whole_s` seconds this run has time for, `least_s` of them in any case."""
    return max(least_s, whole_s * SHARE)
