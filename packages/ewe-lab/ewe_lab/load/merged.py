"""The counts of all workers as one Recorder: each worker packs its Recorder into plain data, the master adds them.

A histogram has the same buckets on every machine, so the master adds histograms before it takes a percentile. The
result is the percentile of all requests, as if one client had sent them. A mean of the workers' percentiles would
not be a percentile. Each worker counts the seconds from its own begin, so its clock does not matter. The mean of
the first answers (Sample.running) belongs to one client, and is left out.
"""

from __future__ import annotations

import math
from typing import Any

from ewe_lab.load.histogram import BUCKET_LIMIT, Histogram
from ewe_lab.load.recorder import Recorder

MAX_LENGTH_S = 7 * 86400.0  # the longest load whose counts are taken: a week
COUNTS = ("requests", "sessions", "replies", "late", "connections", "received")


def pack_counts(recorder: Recorder) -> dict[str, Any]:
    """Return the counts of a recorder that has ended, as plain data. Requests under way count as never answered.

    length: seconds of the window. client: the share of a core that the worker used. seconds, each: the counts and
    the times of each second of the window, after its number.
    """
    recorder.count_under_way_as_unanswered()
    return {
        "length": recorder.end - recorder.begin,
        "client": recorder.client_share or 0.0,
        **{name: getattr(recorder, name) for name in COUNTS},
        "errors": dict(recorder.errors),
        "service": pack_histogram(recorder.service),
        "response": pack_histogram(recorder.response),
        "seconds": [
            [number, second.replies, second.errors, second.due] for number, second in recorder.seconds.items()
        ],
        "each": [[number, pack_histogram(times)] for number, times in recorder.times_by_second.items()],
    }


def pack_histogram(times: Histogram) -> dict[str, Any]:
    """Return the attributes of a histogram as plain data, by their names."""
    # Infinity: each request was answered. JSON has no such number
    shortest_s = times.shortest_unanswered_s if math.isfinite(times.shortest_unanswered_s) else None
    return {
        "counts": list(times.counts.items()),
        "total": times.total,
        "max": times.max,
        "unanswered": times.unanswered,
        "shortest_unanswered_s": shortest_s,
    }


def add_to_histogram(histogram: Histogram, packed: dict[str, Any]) -> None:
    """Add the times of a histogram, as pack_histogram() returned it.

    Raises ValueError for a bucket that no time has.
    """
    for bucket, count in packed["counts"]:
        # A greater number would need more memory than there is: it says by how many bits a time is shifted
        if not 0 <= int(bucket) < BUCKET_LIMIT:
            raise ValueError(f"bucket {bucket}")
        histogram.counts[int(bucket)] += int(count)
        histogram.count += int(count)
    histogram.total += float(packed["total"])
    histogram.max = max(histogram.max, float(packed["max"]))
    histogram.unanswered += int(packed["unanswered"])
    if packed["shortest_unanswered_s"] is not None:
        histogram.shortest_unanswered_s = min(
            histogram.shortest_unanswered_s, float(packed["shortest_unanswered_s"])
        )


def merge_counts(parts: list[dict[str, Any]], scheduled: bool) -> Recorder:
    """Return one recorder with the counts of all workers. Its share of a core is that of the busiest worker.

    Raises KeyError, TypeError, ValueError, AttributeError, OverflowError (of an infinite number) if a part does not
    have the form of pack_counts().
    """
    mean_length_s = sum(float(part["length"]) for part in parts) / len(parts)
    # A sample has a row for each second
    if not 0 <= mean_length_s <= MAX_LENGTH_S:
        raise ValueError(f"a load of {mean_length_s:g} s")
    whole = Recorder(scheduled)
    whole.set_window(0.0, mean_length_s)
    for part in parts:
        whole.client_share = max(whole.client_share or 0.0, float(part["client"]))
        for name in COUNTS:
            setattr(whole, name, getattr(whole, name) + int(part[name]))
        whole.errors.update({str(name): int(count) for name, count in part["errors"].items()})
        add_to_histogram(whole.service, part["service"])
        add_to_histogram(whole.response, part["response"])
        for number, replies, errors, due in part["seconds"]:
            second = whole.seconds[int(number)]
            second.at, second.replies = int(number), second.replies + int(replies)
            for name, count in errors.items():
                second.errors[str(name)] = second.errors.get(str(name), 0) + int(count)
            if due is not None:
                second.due = (second.due or 0) + int(due)
        for number, times in part["each"]:
            add_to_histogram(whole.times_by_second[int(number)], times)
    return whole
