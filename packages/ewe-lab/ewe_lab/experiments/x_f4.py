"""X-Switch, figure 4: 43 KB of text from Perl, for more and more clients.

In a closed loop without pauses, the clients wait for each other: with twice as many clients each waits twice as
long, and the server sends as much as before. The figure shows both, throughput and response time:

    throughput       flat, if no client costs more than another     MAX_FLAT_RATIO
    response time    grows along a straight line                    MIN_R_SQUARED of the regression line

Read next: ../stacks/ways.py, which starts X-Switch.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ewe_lab.bench import figures
from ewe_lab.bench.experiment import Bench, Load
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.bench.verdicts import FAILS, IN_PART, NOT_TESTABLE, Finding, verdict_of_parts
from ewe_lab.stacks.programs import LARGE_BYTES
from ewe_lab.stacks.ways import serve_stack, technology

MAX_FLAT_RATIO = 1.5  # ratio of the greatest to the least throughput up to which it is flat
MIN_R_SQUARED = 0.95  # the R² of a response time that grows linearly
SERVERS = ("xswitch perl", "cgi perl")


class RegressionLine(NamedTuple):
    """A line through points. r_squared: R², the share of the variance that the line explains."""

    slope: float
    r_squared: float


def run(lab: Bench) -> Iterator[Cell]:
    """Measure both with 25 to 375 users that never pause; yield the cells."""
    counts = (25, 125, 250, 375) if lab.quick else tuple(range(25, 376, 25))
    for name in SERVERS:
        if lacking := technology(name).why_missing:
            lab.notes.append(lacking)
            continue
        for count in counts:
            yield measure(lab, name, count)


def measure(lab: Bench, name: str, count: int) -> Cell:
    """Measure one point: a way to run Perl, with `count` users; return the cell."""
    cell = Cell(name, x=count, value="extra.megabytes", unit="MB/s")
    # For X-Switch all requests belong to one account, and its default queue for an account is shorter than 375
    settings = lab.directory / "xswitch.toml"
    settings.write_text("max-queue-per-user = 1000\n")
    load = Load(users=count, seconds=lab.quick_or_full(2, 4), warm_up=1.5, timeout=20.0, length=LARGE_BYTES)
    try:
        with serve_stack(lab, technology(name, "large"), "--xswitch-config", str(settings)) as (server, path):
            sample = lab.load(server, replace(load, path=path))
    except LabError as reason:
        cell.failure = str(reason)
        return cell
    sample.extra["megabytes"] = sample.received / sample.seconds / 1e6
    cell.samples.append(sample)
    cell.command, cell.load = server.command, load.description()
    return cell


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim has two parts: throughput hardly changes with the clients, and response time grows linearly.
    """
    cells = [
        cell
        for cell in table.cells
        if cell.server == SERVERS[0] and cell.median is not None and cell.x is not None
    ]
    if len(cells) < 3:
        return Finding(NOT_TESTABLE, "There are too few figures.")
    rates = [cell.median for cell in cells if cell.median is not None]
    flat = max(rates) < MAX_FLAT_RATIO * min(rates)
    counts = [cell.x for cell in cells if cell.x is not None]
    summary = f"From {min(counts):.0f} to {max(counts):.0f} clients X-Switch sent "
    summary += f"{min(rates):.1f} to {max(rates):.1f} MB/s"
    points = [
        (cell.x, time) for cell in cells if cell.x and (time := figures.figure_of_cell(cell, "service.p50"))
    ]
    line = regression_line([x for x, _ in points], [time for _, time in points])
    if line is None:
        return Finding(IN_PART if flat else FAILS, f"{summary}; the response times make no line.")
    linear = line.slope > 0 and line.r_squared >= MIN_R_SQUARED
    summary += (
        f"; the median response time grows by {line.slope * 1e3:.2g} ms a client, R² = {line.r_squared:.3f}"
    )
    return Finding(verdict_of_parts([flat, linear]), f"{summary}.")


def regression_line(x: Sequence[float], y: Sequence[float]) -> RegressionLine | None:
    """Return the line with the least sum of squared distances in y; None for too few points, or if all x or all y
    are equal.
    """
    try:
        return RegressionLine(statistics.linear_regression(x, y).slope, statistics.correlation(x, y) ** 2)
    except statistics.StatisticsError:
        return None
