"""A moment of a trace in words, and the words for a time."""

from __future__ import annotations

from typing import NamedTuple

WORTH_SECONDS = 0.001  # the shortest wait that is worth a word
# The shortest time without use that is worth a word if the trace does not see whether a client waits meanwhile
LONG_SECONDS = 0.1


class Moment(NamedTuple):
    """A moment. kind: queue-wait, deepest-queue, refusal, held-worker, outlived-client, served-last, engine-wait,
    engine-end, engine-outlived-client, connection-wait or statement.

    begin, end: by the trace's clock. connection, worker: the ones that it is about, "" without one.
    """

    kind: str
    title: str
    text: str
    begin: float
    end: float
    connection: str = ""
    worker: str = ""


def several(count: int, nouns: str) -> str:
    """Return a number with its noun: 1 worker, 1,200 workers. nouns: the plural, which ends in s."""
    return f"{count:,} {nouns.removesuffix('s') if count == 1 else nouns}"


def duration_of_micros(micros: float) -> str:
    """Return a time of document.py, in microseconds, for people."""
    return duration(micros / 1e6)


def duration(seconds: float) -> str:
    """Return a time for people, with three digits, but no part of a µs: 4 µs, 820 µs, 4.50 ms, 31.2 s."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        value = seconds * factor
        # The bounds are half a digit lower than 1, 10 and 100: 999.6 ms is 1.00 s, and 9.996 s is 10.0 s
        if value >= 0.9995:
            decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
            return f"{value:.{decimals}f} {unit}"
    return f"{seconds * 1e6:.0f} µs"
