"""Verdicts: does a document's claim still hold on this machine?

Absolute figures of different decades are never compared. Ratios are compared: the figure of a server divided by
that of the table's reference server, in the document and here, among cells of the same column and the same x. Let p
be the document's ratio and o ours. A cell is

    reproduced    if p and o differ by a factor of at most 1.5
    shape         else, if both are on the same side of the reference: the order is kept
    inverted      else, if they are on opposite sides of it
    changed       else: one of the two is level with the reference (within 10 %; ours also if the repeats overlap,
                  or within 20 % if there is only one) and the other is not. A difference that the document shows
                  is absent here, or a difference that it does not show is present here
    not testable  if there is no o: no measurement, no reply although a time is needed, or no reference server here
                  or in the document (or one that gave no reply)

A load generator that used more than 70 % of its core may have been the bottleneck. The rate is then a lower bound:
o is a lower bound if the generator was too busy with the server, an upper bound if it was too busy with the
reference, and unknown if both. If the bound shows the order, the verdict is `shape` or `inverted`, and else not
testable. For `inverted`, and for `changed`, p and the bound must differ by more than a factor of 1.5. Times under
such a load are not testable. Memory and CPU time do not depend on the load generator.

A share of lost requests is not compared by ratios, since the reference may have lost none. Let p be the printed
share and o ours. The cell is reproduced if both are at most 1 %, or if both are more and differ by a factor of at
most 1.5; shape if both are more and differ by a larger factor; changed if only one is more than 1 %.

A cell without a printed figure has no verdict. A table without a reference server has none either. The cell of the
reference server has the verdict `reference`: both its ratios are 1. A rate of 0 is a figure: its ratio is 0, and if
the other ratio is 0 too, the cell is reproduced. A table whose only measured server is the reference is not
testable.

If other programs had more than a quarter of a core while the table was measured, none of its cells is testable and
its claim has no verdict: the winner of a race beside a compiler depends on the compiler. A claim about settings,
events or memory (`timed = false`) keeps its verdict, with a warning.

A column holds if all testable cells are reproduced or shape, holds in part if some are, and does not hold if none
is. A table has the word of its testable columns if they agree, and else holds in part.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ewe_lab.bench import figures
from ewe_lab.bench.experiment import Experiment
from ewe_lab.bench.figures import percent, ratio
from ewe_lab.bench.foreign import MAX_FOREIGN_SHARE
from ewe_lab.bench.results import Cell, ExperimentTable, Sample, figure, too_few

MAX_RATIO_FACTOR = 1.5  # the greatest factor between the two ratios of a reproduced cell
MAX_DESCRIBED_COLUMNS = 4  # up to this many columns, the finding describes each one
ROUNDING = 1e-9  # a tolerance, so that 10 of 11 counts as level
LEVEL_RATIO = 1.1  # a ratio between 1 / LEVEL_RATIO and LEVEL_RATIO is level with the reference

RATES = ("rate", "request_rate", "connection_rate", "kilobytes")
MAX_LOST_SHARE = 0.01  # share of its requests that a server may lose and still win
REFERENCE = "reference"
REPRODUCED = "reproduced"
SHAPE = "shape"
INVERTED = "inverted"
CHANGED = "changed"
NOT_TESTABLE = "not testable"
NOT_PRINTED = ""  # the document printed nothing for the cell
TESTED = (REPRODUCED, SHAPE, CHANGED, INVERTED)
CONFIRMED = (REPRODUCED, SHAPE)

HOLDS = "holds"
IN_PART = "holds in part"
FAILS = "does not hold"
NO_CLAIM = "no printed figures"
NO_VERDICT = "no verdict"
JUDGED = (HOLDS, IN_PART, FAILS)


@dataclass(frozen=True)
class JudgedCell:
    """A cell with its ratios to the reference server, the document's and ours. reason: why it is not testable."""

    cell: Cell
    paper: float | None = None
    ours: float | None = None
    verdict: str = NOT_PRINTED
    reason: str = ""


@dataclass(frozen=True)
class Finding:
    """The finding on a table's claim: one of the words above, and the reason in one or two sentences."""

    word: str
    sentence: str


def side(ratio_to_reference: float) -> int:
    """Return the side of the reference on which a ratio is: -1 below, 1 above, 0 level with it."""
    if 1 / LEVEL_RATIO - ROUNDING <= ratio_to_reference <= LEVEL_RATIO + ROUNDING:
        return 0
    return 1 if ratio_to_reference > 1 else -1


def compare(paper: float, ours: float, level: bool = False) -> str:
    """Return the verdict on two ratios to the reference server. level: our ratio may differ from 1 by chance."""
    if paper == ours:
        return REPRODUCED
    if min(paper, ours) > 0 and max(paper, ours) / min(paper, ours) <= MAX_RATIO_FACTOR:
        return REPRODUCED
    then, now = side(paper), 0 if level else side(ours)
    if then == now:
        return SHAPE
    return INVERTED if then == -now else CHANGED


def compare_shares(paper: float, ours: float) -> str:
    """Return the verdict on two shares of lost requests."""
    some = (paper > MAX_LOST_SHARE, ours > MAX_LOST_SHARE)
    if some == (True, True):
        return REPRODUCED if max(paper, ours) / min(paper, ours) <= MAX_RATIO_FACTOR else SHAPE
    return CHANGED if any(some) else REPRODUCED


def compare_with_bound(paper: float, bound: float, sense: int) -> str:
    """Return the verdict if our ratio is known to be at least (sense 1) or at most (sense -1) the bound."""
    far = min(paper, bound) <= 0 or max(paper, bound) / min(paper, bound) > MAX_RATIO_FACTOR
    if side(bound) != sense:
        return NOT_TESTABLE
    if side(paper) == sense:
        return SHAPE
    if not far:
        return NOT_TESTABLE
    return INVERTED if side(paper) == -sense else CHANGED


def is_client_limited(cell: Cell) -> bool:
    """Whether the load generator may be the bottleneck of a figure: it affects rates and times only."""
    timed = cell.value == "seconds" or cell.value.startswith(("service.", "response."))
    return cell.client_limited and (cell.value in RATES or timed)


def groups(cells: Iterable[Cell]) -> dict[tuple[str, float | None], list[Cell]]:
    """Return the cells that may be compared with each other: those of a column with the same x."""
    found: dict[tuple[str, float | None], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.column, cell.x), []).append(cell)
    return found


def distinct_groups(cells: Sequence[Cell]) -> dict[tuple[str, float | None], list[Cell]]:
    """Return groups as `groups` does, without the groups that repeat the figures of others."""
    found: dict[tuple[str, float | None], list[Cell]] = {}
    seen: list[tuple[str, str, list[Sample]]] = []
    cells = [cell for cell in cells if not cell.line]
    for (column, x), group in sorted(groups(cells).items(), key=lambda each: each[0][1] is None):
        samples = [(cell.server, cell.value, cell.samples) for cell in group if cell.samples]
        if x is not None or not samples or any(each not in seen for each in samples):
            found[column, x] = group
        seen += samples
    order = list(groups(cells))
    return dict(sorted(found.items(), key=lambda each: order.index(each[0])))


def other_programs_clause(table: ExperimentTable) -> str:
    """Return a clause if other programs had much of the cores while the table was measured, else ""."""
    if table.foreign is None or table.foreign * table.cores <= MAX_FOREIGN_SHARE:
        return ""
    return f"other programs had {percent(table.foreign)} of the {of_cores(table.cores)}"


def of_cores(cores: int) -> str:
    """Return `core` or `2 cores`."""
    return f"{cores} cores" if cores > 1 else "core"


def is_timed(experiment: Experiment | None) -> bool:
    """Whether the verdicts of an experiment depend on times, so that other programs can change them."""
    return experiment is None or experiment.timed


def judge(table: ExperimentTable, experiment: Experiment | None) -> list[JudgedCell]:
    """Return the table's cells in their order, each with its ratios and its verdict."""
    found = judge_alone(table, experiment)
    reason = other_programs_clause(table) if is_timed(experiment) else ""
    if not reason:
        return found
    return [
        replace(each, verdict=NOT_TESTABLE, reason=reason) if each.verdict in TESTED else each
        for each in found
    ]


def judge_alone(table: ExperimentTable, experiment: Experiment | None) -> list[JudgedCell]:
    """Judge as `judge` does, on a machine without other programs."""
    by_cell: dict[int, JudgedCell] = {}
    for (column, _), group in groups(table.cells).items():
        reference, paper_reference = experiment.references(column) if experiment else ("", "")
        ours = next((cell for cell in group if reference and cell.server == reference), None)
        paper = next(
            (cell for cell in group if cell.paper is not None and cell.paper_server == paper_reference), None
        )
        for cell in group:
            by_cell[id(cell)] = judge_cell(cell, ours, paper) if reference else JudgedCell(cell)
    return [by_cell[id(cell)] for cell in table.cells]


def judge_cell(cell: Cell, reference: Cell | None, paper_reference: Cell | None) -> JudgedCell:
    """Return one cell's ratios and its verdict."""
    if cell.value == "lost":
        return judge_lost_share(cell)
    ours, reason = our_ratio(cell, reference)
    if cell.paper is None:
        return JudgedCell(cell, None, ours, NOT_PRINTED)
    paper = None
    if paper_reference is not None and paper_reference.paper:
        paper = cell.paper / paper_reference.paper
    else:
        reason = reason or "the document printed no figure for its reference server"
    if paper is None or ours is None or reference is None:
        return JudgedCell(cell, paper, ours, NOT_TESTABLE, reason)
    if cell is reference:
        return JudgedCell(cell, paper, ours, REFERENCE)
    busy = [each for each in (cell, reference) if is_client_limited(each)]
    if not busy:
        return JudgedCell(cell, paper, ours, compare(paper, ours, may_be_chance(cell, reference)))
    reason = f"the load generator was the limit (of {' and '.join(each.server for each in busy)})"
    verdict = NOT_TESTABLE
    if cell.value in RATES and len(busy) == 1:
        verdict = compare_with_bound(paper, ours, 1 if busy[0] is cell else -1)
    return JudgedCell(cell, paper, ours, verdict, reason)


def may_be_chance(cell: Cell, reference: Cell) -> bool:
    """Whether the figures of two cells overlap, each with the spread of its repeats."""
    one, other = figure_range(cell, cell.value), figure_range(reference, reference.value)
    return bool(one and other and one.level_with(other))


def judge_lost_share(cell: Cell) -> JudgedCell:
    """Return the verdict on a share of lost requests, and both shares in place of ratios."""
    if cell.paper is None:
        return JudgedCell(cell, None, cell.median, NOT_PRINTED)
    if cell.median is None:
        return JudgedCell(cell, cell.paper, None, NOT_TESTABLE, cell.failure or "not measured")
    return JudgedCell(cell, cell.paper, cell.median, compare_shares(cell.paper, cell.median))


def our_ratio(cell: Cell, reference: Cell | None) -> tuple[float | None, str]:
    """Return our figure over that of the reference server, or the reason why there is none."""
    if cell.median is None:
        if any(too_few(sample, cell.value) for sample in cell.samples):
            return None, "too few replies for this percentile"
        return None, cell.failure or ("no reply" if cell.samples else "not measured")
    if reference is None or reference.median is None:
        return None, "the reference server was not measured"
    if reference.median == 0:
        return None, f"the reference server {reference.server} gave no reply"
    return cell.median / reference.median, ""


# ---------------------------------------------------------------------------------------------------------
# A table's claim


def finding(table: ExperimentTable, experiment: Experiment | None) -> Finding:
    """Return the finding on a table's claim, from the verdicts of its cells."""
    all_judged = judge(table, experiment)
    if table.skipped:
        return Finding(NOT_TESTABLE, f"Not run: {table.skipped}")
    if not any(each.verdict for each in all_judged):
        return Finding(NO_CLAIM, "")
    columns: dict[str, list[JudgedCell]] = {}
    for each in all_judged:
        columns.setdefault(each.cell.setting, []).append(each)
    words = {name: word_of(each.verdict for each in inside) for name, inside in columns.items()}
    tested = {name: word for name, word in words.items() if word not in (NOT_TESTABLE, NO_CLAIM)}
    if not tested:
        why = Counter(each.reason for each in all_judged if each.reason).most_common(1)
        return Finding(
            NOT_TESTABLE, with_capital(why[0][0]) + "." if why else "Only one server was measured."
        )
    word = next(iter(set(tested.values()))) if len(set(tested.values())) == 1 else IN_PART
    if len(tested) > MAX_DESCRIBED_COLUMNS:
        together = [each for name in tested for each in columns[name]]
        counted = f"{len(tested)} settings, in all: {order_text(together)}"
    else:
        counted = "; ".join(
            (f"{name}: " if len(columns) > 1 and name else "") + order_text(columns[name])
            for name, word_there in words.items()
            if word_there != NO_CLAIM
        )
    return Finding(word, with_capital(counted) + ".")


def word_of(verdicts: Iterable[str]) -> str:
    """Return the word for a column of verdicts."""
    found = [verdict for verdict in verdicts if verdict]
    tested = [verdict for verdict in found if verdict in TESTED]
    if not tested:
        return NOT_TESTABLE if found else NO_CLAIM
    confirmed = sum(verdict in CONFIRMED for verdict in tested)
    return HOLDS if confirmed == len(tested) else IN_PART if confirmed else FAILS


def order_text(inside: Sequence[JudgedCell]) -> str:
    """Say how many figures of a column keep their order: `2 of 4 keep their order, 1 within a factor of 1.5`."""
    count = Counter(each.verdict for each in inside)
    tested = sum(count[verdict] for verdict in TESTED)
    if not tested:
        return NOT_TESTABLE
    confirmed = sum(count[verdict] for verdict in CONFIRMED)
    text = f"{confirmed or 'none'} of {tested} {'keeps its' if confirmed < 2 else 'keep their'} order"
    if count[REPRODUCED]:
        text += f", {count[REPRODUCED]} within a factor of {MAX_RATIO_FACTOR}"
    if count[INVERTED]:
        text += f", {count[INVERTED]} inverted"
    return text + (f", {count[NOT_TESTABLE]} not testable" if count[NOT_TESTABLE] else "")


def change_since_document(table: ExperimentTable, experiment: Experiment | None) -> str:
    """Return one sentence on the greatest change since the document; "" if no cell is testable."""
    tested = [each for each in judge(table, experiment) if each.verdict in TESTED]
    tested = [each for each in tested if each.cell.value == table.cells[0].value]  # of one kind
    if not tested or experiment is None:
        return ""
    most_changed = max(tested, key=log_distance)
    at_setting = f" ({most_changed.cell.column})" if most_changed.cell.column else ""
    reference, paper_reference = experiment.references(most_changed.cell.column)
    over = paper_reference or reference
    printed_name = most_changed.cell.paper_server or most_changed.cell.server
    then = f"{printed_name} had {ratio(most_changed.paper)} times {over}'s figure"
    now = f"{most_changed.cell.server} has {ratio(most_changed.ours)} times {reference}'s now{at_setting}"
    if log_distance(most_changed) <= math.log(MAX_RATIO_FACTOR):
        moved = f"no ratio moved by more than {MAX_RATIO_FACTOR}"
        return f"Little has changed: {moved}; at most, {then} then, and {now}."
    text = f"What changed most: {then} then, and {now}."
    if pairs := inverted_pair(tested):
        text = text[:-1] + f"; {pairs}."
    return text


def log_distance(judged: JudgedCell) -> float:
    """Return the distance of a cell's two ratios on a logarithmic scale."""
    assert judged.paper is not None and judged.ours is not None
    least = min(judged.paper, judged.ours)
    return (
        abs(math.log(judged.paper / judged.ours))
        if least > 0
        else 0.0
        if judged.paper == judged.ours
        else math.inf
    )


def inverted_pair(tested: Sequence[JudgedCell]) -> str:
    """Name the pair of servers whose order is inverted most clearly; "" if there is none."""
    found = []
    for one, other in itertools.combinations(tested, 2):
        if (one.cell.column, one.cell.x) != (other.cell.column, other.cell.x):
            continue
        if not (one.paper and other.paper and one.ours and other.ours):
            continue
        ahead, behind = (one, other) if one.paper > other.paper else (other, one)
        assert ahead.paper and behind.paper and ahead.ours and behind.ours
        then, now = ahead.paper / behind.paper, ahead.ours / behind.ours
        if side(then) == 1 and side(now) == -1:
            found.append((then / now, ahead, behind, then, now))
    if not found:
        return ""
    _, ahead, behind, then, now = max(found, key=lambda each: each[0])
    return (
        f"{ahead.cell.server} had {ratio(then)} times {behind.cell.server}'s, and has {ratio(now)} times now"
    )


def with_capital(text: str) -> str:
    """Return a sentence with a capital at its start."""
    return text[:1].upper() + text[1:]


# ---------------------------------------------------------------------------------------------------------
# Winners, for a table without printed figures


CHANCE_SHARE = 0.2  # two figures of one measurement each may differ by this share by chance
# Repeats may agree by chance: figures that differ by less than this share are always level
CLOSE_SHARE = 0.05
GREATER_IS_BETTER = ("rate",)  # figures of which a greater one is better; of all others a smaller one is


@dataclass(frozen=True)
class FigureRange:
    """A cell's figure, and how far its repeats reach below and above it."""

    server: str
    value: float
    low: float
    high: float

    def over(self, best: float) -> FigureRange:
        """Return this figure as a ratio to the best figure."""
        return FigureRange(self.server, self.value / best, self.low / best, self.high / best)

    def level_with(self, other: FigureRange) -> bool:
        """Whether the difference of two figures may be chance: their spreads overlap."""
        return self.low <= other.high and other.low <= self.high


def figure_range(cell: Cell, name: str) -> FigureRange | None:
    """Return a figure of a cell with the spread of its repeats; None if it was not measured."""
    value = figures.of_cell(cell, name)
    if value is None:
        return None
    figures_of_repeats = [found for sample in cell.samples if (found := figure(sample, name)) is not None]
    margin = 1 + (CLOSE_SHARE if len(figures_of_repeats) > 1 else CHANCE_SHARE)
    half = math.sqrt(margin)  # each of two figures has half of the margin
    return FigureRange(
        cell.server, value, min(*figures_of_repeats, value / half), max(*figures_of_repeats, value * half)
    )


@dataclass(frozen=True)
class Winner:
    """The ranking of servers by one figure. level: the best server, and those that may differ from it by chance.

    A server whose figure lies between two of them belongs to them, even if its own repeats differ little.
    next: the best server that is not in `level`, None if there is none.
    """

    name: str  # of the figure
    level: tuple[FigureRange, ...]
    next: FigureRange | None

    @property
    def best(self) -> FigureRange:
        """The server with the best figure."""
        return self.level[0]

    @property
    def server(self) -> str:
        """The name of the winner, "" if the first servers are level."""
        return self.best.server if len(self.level) == 1 else ""


def has_lost(cell: Cell) -> bool:
    """Whether a server lost more than 1 % of its requests, so that it cannot win."""
    return (figures.of_cell(cell, "lost") or 0) > MAX_LOST_SHARE


def winners(cells: Sequence[Cell]) -> list[Winner]:
    """Return the winners by rate, CPU time, p99 and memory, among cells that may be compared.

    A server that lost more than 1 % of its requests takes no part: it serves few clients, and serves these fast and
    cheaply.
    """
    found = []
    p99 = "service.p99"
    if any(figures.of_cell(cell, "response.p99") is not None for cell in cells):
        p99 = "response.p99"
    for name in ("rate", "micros", p99, "usage.memory"):
        ranked = [
            each
            for cell in cells
            if not has_lost(cell)
            and not (name in GREATER_IS_BETTER and is_client_limited(cell))
            and (each := figure_range(cell, name))
            and each.value > 0
        ]
        ranked.sort(key=lambda each: each.value, reverse=name in GREATER_IS_BETTER)
        if len(ranked) < 2:
            continue
        last = max(index for index, each in enumerate(ranked) if each.level_with(ranked[0]))
        level = tuple(ranked[: last + 1])  # with each server between them: a range must not leave one out
        found.append(Winner(name, level, next((each for each in ranked if each not in level), None)))
    return found
