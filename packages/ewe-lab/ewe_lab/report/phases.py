"""A load whose rate changes: the figures of each phase, as a table, and the marks between the phases of a chart.

A load in phases (experiment.Load.phases) shows how a server behaves before, during and after an overload. Each
phase has its own sample, because a mean over all phases would hide them. A long run has more seconds than a chart
can show, so merge_long_timeline() joins neighbouring seconds.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence

from ewe_lab.bench import figures
from ewe_lab.bench.results import ExperimentTable, Sample, Second

MAX_POINTS = 120  # points of a line in a timeline
HEAD = (
    "server",
    "phase",
    "asked/s",
    "answered/s",
    "median",
    "p95",
    "lost",
    "errors",
    "CPU",
    "memory",
    "proc",
)
TEXT_COLUMNS = ("server", "phase", "errors")  # columns with text


def phase_rows(table: ExperimentTable) -> list[list[str]]:
    """Return a line for each phase of each server, under HEAD; [] if no load of the table has phases."""
    found = []
    for cell in table.cells:
        sample = figures.middle_sample(cell)
        for number, phase in enumerate(sample.phases if sample else (), 1):
            found.append([cell.server if number == 1 else "", str(number), *phase_figures(phase)])
    return found


def phase_figures(phase: Sample) -> Iterator[str]:
    """Yield the figures of a phase, in the order of HEAD."""
    yield figures.number_text(phase.request_rate)
    yield figures.number_text(phase.rate)
    yield figures.sample_figure_text(phase, "response.p50")
    yield figures.sample_figure_text(phase, "response.p95")
    yield figures.percent_text(phase.lost)
    yield figures.errors_text(phase.errors)
    usage = phase.usage
    yield figures.percent_text(usage.cpu / phase.seconds if usage and phase.seconds else None)
    yield figures.size_text(usage.memory if usage else None)
    yield figures.NO_FIGURE if usage is None or usage.processes is None else str(usage.processes)


def phase_starts(sample: Sample) -> list[float]:
    """Return the seconds at which the phases of a load begin; [] if it has none."""
    lengths = [phase.seconds for phase in sample.phases]
    return [0.0, *itertools.accumulate(lengths[:-1])] if lengths else []


def merge_long_timeline(seconds: Sequence[Second]) -> list[Second]:
    """Return at most MAX_POINTS seconds. For a long run, merge groups of several seconds into one each.

    Replies, due requests, errors and CPU are means (errors are rounded up). p50 is the median of the medians. All
    other figures are the greatest of the group.
    """
    size = math.ceil(len(seconds) / MAX_POINTS)
    if size <= 1:
        return list(seconds)
    return [merge_seconds(seconds[at : at + size]) for at in range(0, len(seconds), size)]


def merge_seconds(group: Sequence[Second]) -> Second:
    """Merge several seconds into one, as merge_long_timeline() says."""
    kinds = {kind for second in group for kind in second.errors}
    p50 = known_values([second.p50 for second in group])
    cpu = known_values([second.cpu for second in group])
    due = known_values([second.due for second in group])
    return Second(
        at=group[0].at,
        replies=round(statistics.mean(second.replies for second in group)),
        errors={
            kind: math.ceil(sum(each.errors.get(kind, 0) for each in group) / len(group)) for kind in kinds
        },
        p50=statistics.median(p50) if p50 else None,
        p99=max(known_values([second.p99 for second in group]), default=None),
        due=round(sum(due) / len(group)) if due else None,
        cpu=statistics.mean(cpu) if cpu else None,
        memory=max(known_values([second.memory for second in group]), default=None),
        threads=greatest([second.threads for second in group]),
        processes=greatest([second.processes for second in group]),
        descriptors=greatest([second.descriptors for second in group]),
        switches=greatest([second.switches for second in group]),
    )


def known_values(values: Sequence[float | None]) -> list[float]:
    """Return the values that are known."""
    return [value for value in values if value is not None]


def greatest(values: Sequence[int | None]) -> int | None:
    """Return the greatest of the known values."""
    return max((value for value in values if value is not None), default=None)
