"""Figures as text for people: numbers, times, sizes, ratios, errors by kind."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ewe_lab.bench.results import ERRORS, Cell, Sample, figure

NO_FIGURE = "–"  # not measured, not printed
AT_LEAST = "≥\u00a0"  # before a time that is a lower bound
SHORT_TITLES = {  # the title of a figure, short enough for the head of a table
    "rate": "replies/s",
    "micros": "CPU µs/reply",
    "request_rate": "requests/s",
    "connection_rate": "connections/s",
    "kilobytes": "KB/s",
    "client": "load generator busy",
    "lost": "lost",
    "extra.percent": "share",
    "usage.memory": "memory",
    "usage.threads": "threads",
    "usage.processes": "processes",
    "usage.cpu": "CPU seconds",
    "service.p50": "service time, median",
    "service.p99": "service time, p99",
    "service.mean": "service time, mean",
    "response.p50": "response time, median",
    "response.p99": "response time, p99",
    "response.mean": "response time, mean",
}


def number_text(value: float | None) -> str:
    """Return three significant digits without an exponent: `0.0044`, `12.9`, `8,310`."""
    if value is None or math.isnan(value):
        return NO_FIGURE
    if math.isinf(value):
        return "∞"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))  # of the first digit
    digits = max(0, 2 - exponent)  # behind the point: two more digits than the first
    text = f"{value:,.{min(digits, 15)}f}"  # a float has about 15 digits
    return text.rstrip("0").rstrip(".") if "." in text and abs(value) >= 100 else without_trailing_zeros(text)


def whole_text(value: float) -> str:
    """Return a figure without decimals, for narrow parts of a chart."""
    return f"{value:,.0f}"


def without_trailing_zeros(text: str) -> str:
    """Return a decimal fraction without trailing zeros: `5.00` is `5`, `5.10` is `5.1`."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def ratio_text(value: float | None) -> str:
    """Return a ratio with two significant digits below 0.1, else two decimals below 10."""
    if value is None:
        return NO_FIGURE
    if value == 0:
        return "0"
    if value < 0:  # of memory that a server has given back, for example
        return f"-{ratio_text(-value)}"
    if value < 0.1:
        exponent = math.floor(math.log10(value))  # of the first digit
        return f"{value:.{1 - exponent}f}"
    return f"{value:.2f}" if value < 10 else number_text(value)


def time_text(value: float | None) -> str:
    """Return a time in seconds as text, in µs, ms or s: `85 µs`, `1.2 ms`, `3.4 s`."""
    if value is None:
        return NO_FIGURE
    if value == 0:
        return "0"
    if value < 0.9995e-3:  # from here on three digits make 1 ms, not 1000 µs
        return f"{number_text(value * 1e6)} µs"
    return f"{number_text(value * 1e3)} ms" if value < 0.9995 else f"{number_text(value)} s"


def size_text(value: float | None) -> str:
    """Return bytes in a decimal unit: `716 kB`, `20.1 MB`."""
    if value is None:
        return NO_FIGURE
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{number_text(value / factor)} {unit}"
    return f"{number_text(value)} B"


def percent_text(value: float | None) -> str:
    """Return a share in percent."""
    if value is None:
        return NO_FIGURE
    # Two digits below 10 %, no decimals above; from 0.0995 on two digits round to 10
    text = f"{value * 100:.0f}" if value >= 0.0995 or value == 0 else f"{value * 100:.2g}"
    return f"{text}\u00a0%"


def named_figure_text(name: str, value: float | None, unit: str = "") -> str:
    """Return a figure as text.

    name: of the figure, as in results.figure(). It decides whether the text is a time, a size, a share in percent
    or a number. unit: of a figure that only one experiment has (`extra.accepted`). Other numbers stand under a
    title that names their unit.
    """
    if value is None:
        return NO_FIGURE
    if name.startswith(("service.", "response.")) and not name.endswith(".count"):
        return time_text(value)
    if name in ("usage.memory", "received"):
        return size_text(value)
    if name in ("client", "lost"):
        return percent_text(value)
    if not name.startswith("extra."):
        return number_text(value)
    return f"{number_text(value)} {unit}".rstrip()


def figure_title(name: str, unit: str = "") -> str:
    """Return the title of an axis or a column that shows a figure."""
    if name in SHORT_TITLES:
        return SHORT_TITLES[name]
    words = name.rpartition(".")[2].replace("_", " ")
    return f"{words} ({unit})" if unit and unit != words else words


def errors_text(found: Mapping[str, int]) -> str:
    """Return errors by kind, in the order of the kinds: `881 st, 5 res`; "0" if there is none."""
    in_order = [kind for kind in ERRORS if found.get(kind)] + sorted(set(found) - set(ERRORS))
    return ", ".join(f"{found[kind]:,} {kind}" for kind in in_order) or "0"


def middle_sample(cell: Cell) -> Sample | None:
    """Return the sample with the median of the cell's figure (the lower one of two).

    If no sample has the figure, it is the first one; None if there is no sample. `cell.value` is the figure's name.
    """
    by_figure = sorted(
        (value, index)
        for index, sample in enumerate(cell.samples)
        if (value := figure(sample, cell.value)) is not None
    )
    if by_figure:
        _, index_of_middle = by_figure[(len(by_figure) - 1) // 2]
        return cell.samples[index_of_middle]
    return cell.samples[0] if cell.samples else None


def figure_of_cell(cell: Cell, name: str = "") -> float | None:
    """Return a cell's own figure (the median), or the figure `name` of its middle sample."""
    if not name or name == cell.value:
        return cell.median
    sample = middle_sample(cell)
    return figure(sample, name) if sample else None


def is_lower_bound(sample: Sample | None, name: str) -> bool:
    """Whether a figure is a lower bound: a percentile that includes requests without an answer. name: its name."""
    kind, _, part = name.partition(".")
    if sample is None or kind not in ("service", "response") or part in ("mean", "count"):
        return False
    times, value = getattr(sample, kind), figure(sample, name)
    return times is not None and value is not None and times.is_lower_bound(value)


def sample_figure_text(sample: Sample | None, name: str, unit: str = "") -> str:
    """Return a sample's figure as text: `≥ 5 s` for a lower bound."""
    text = named_figure_text(name, figure(sample, name) if sample else None, unit)
    return f"{AT_LEAST}{text}" if is_lower_bound(sample, name) else text


def figure_text(cell: Cell, name: str = "") -> str:
    """Return a cell's own figure, or the figure `name` of its middle sample, as text."""
    name = name or cell.value
    text = named_figure_text(name, figure_of_cell(cell, name), cell.unit if name == cell.value else "")
    return f"{AT_LEAST}{text}" if is_lower_bound(middle_sample(cell), name) else text


def all_errors(cell: Cell) -> dict[str, int]:
    """Return the errors of a cell's middle sample, by kind."""
    sample = middle_sample(cell)
    return {kind: count for kind, count in sample.errors.items() if count} if sample else {}
