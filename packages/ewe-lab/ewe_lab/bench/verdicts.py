"""Verdicts: does a document's claim still hold on this machine?

Absolute figures of different decades are never compared. Ratios are compared: the figure of a server divided by
that of the table's reference server, in the document and here, among cells of the same column and the same x. Let p
be the document's ratio and o ours. A ratio is level with the reference within 10 %; ours also if the repeats
overlap, or within 20 % if there is only one. The order comes first: a claim that events serve a sixth more requests
than threads is false where they serve a sixth fewer, although the two ratios differ by less than a factor of 1.5.
A cell is

    reproduced    if p and o are on the same side of the reference and differ by a factor of at most 1.5, or if both
                  are level with it
    shape         if they are on the same side and differ by more: the order is kept
    inverted      if they are on opposite sides of it
    changed       if one of the two is level with the reference and the other is not. A difference that the document
                  shows is absent here, or a difference that it does not show is present here. Two ratios that
                  differ by at most 10 %, such as 1.12 and 1.08, have not changed: the cell is reproduced if ours is
                  not level by chance
    not testable  if our repeats allow both p and no difference at all, so that they cannot tell the two apart; or
                  if p is level and our repeats allow a ratio that differs from p by more than a factor of 1.5, so
                  that they cannot show that there is no difference; or if there is no o: no measurement, no reply
                  although a time is needed, a repeat that failed, or no reference server here or in the document
                  (or one that gave no reply)

A load generator that used more than 70 % of its core may have been the bottleneck. The rate is then a lower bound:
o is a lower bound if the generator was too busy with the server, an upper bound if it was too busy with the
reference, and unknown if both. If the bound shows the order, and by more than chance as above, the verdict is
`shape` or `inverted`, and else not testable. For `changed`, p and the bound must differ by more than 10 %. Times
under such a load are not testable. Memory and CPU time do not depend on the load generator.

A share of lost requests is not compared by ratios, since the reference may have lost none. Let p be the printed
share and o ours. The cell is reproduced if both are at most 1 %, or if both are more and differ by a factor of at
most 1.5; shape if both are more and differ by a larger factor; changed if only one is more than 1 %.

A cell without a printed figure has no verdict. A table without a reference server has none either. The cell of the
reference server has the verdict `reference`: both its ratios are 1. A rate of 0 is a figure: its ratio is 0, and if
the other ratio is 0 too, the cell is reproduced. A table whose only measured server is the reference is not
testable.

If other programs had more than a quarter of a core while the table was measured, none of its cells is testable and
its claim has no verdict: the winner of a race beside a compiler depends on the compiler. If they had that much
during a single measurement, this one is left out (disturbance.py), and a cell without another one is not testable.
A claim about settings, events or memory (`timed = false`) keeps its verdict, with a warning.

A column holds if all testable cells are reproduced or shape, holds in part if some are, and does not hold if none
is. A table has the word of its testable columns if they agree, and else holds in part. It holds in part at most if
fewer cells are testable than not: one order of six that is kept by chance is no proof of the other five. A server
that is not installed has no cell, so it does not count: a note of the table names it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ewe_lab.bench import figures
from ewe_lab.bench.disturbance import without_disturbed
from ewe_lab.bench.experiment import Experiment
from ewe_lab.bench.figures import percent_text, ratio_text
from ewe_lab.bench.foreign import MAX_FOREIGN_SHARE
from ewe_lab.bench.results import Cell, ExperimentTable, Sample, figure, has_too_few_times

MAX_RATIO_FACTOR = 1.5  # the greatest factor between the two ratios of a reproduced cell on one side
MAX_DESCRIBED_COLUMNS = 4  # up to this many columns, the finding describes each one
ROUNDING = 1e-9  # a tolerance, so that 10 of 11 counts as level
# A ratio between 1 / LEVEL_RATIO and LEVEL_RATIO is level with the reference; two that differ by it are alike
LEVEL_RATIO = 1.1

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
# The words about the order of two servers, if a column compares no others
ONE_ORDER = {REPRODUCED: "is kept", SHAPE: "is kept", CHANGED: "has changed", INVERTED: "is inverted"}

HOLDS = "holds"
IN_PART = "holds in part"
FAILS = "does not hold"
NO_CLAIM = "no printed figures"
NO_VERDICT = "no verdict"
JUDGED = (HOLDS, IN_PART, FAILS)


@dataclass(frozen=True)
class JudgedCell:
    """A cell with its ratios to the reference server, the document's (paper) and ours.

    The ratios of a cell about lost requests are the two lost shares instead. None: unknown. verdict: a word of
    TESTED, REFERENCE, NOT_TESTABLE or NOT_PRINTED. reason: why it is not testable.
    """

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


def side_of_reference(ratio_to_reference: float) -> int:
    """Return the side of the reference on which a ratio is: -1 below, 1 above, 0 level with it."""
    if 1 / LEVEL_RATIO - ROUNDING <= ratio_to_reference <= LEVEL_RATIO + ROUNDING:
        return 0
    return 1 if ratio_to_reference > 1 else -1


def ratio_factor(one: float, other: float) -> float:
    """Return the factor, at least 1, between two ratios; infinite if only one of them is 0."""
    if one == other:  # also if both are 0, which have no factor
        return 1.0
    return max(one, other) / min(one, other) if min(one, other) > 0 else math.inf


def compare(paper: float, ours: float, by_chance: tuple[float, float] | None = None) -> str:
    """Return the verdict on two ratios to the reference server.

    by_chance: the least and the greatest ratio that ours may be, with the spread of the repeats; None: it is exact.
    NOT_TESTABLE if the spread has both the document's ratio and no difference at all, and if it is too wide to show
    that there is no difference.
    """
    factor = ratio_factor(paper, ours)
    low, high = by_chance or (ours, ours)
    is_level_by_chance = by_chance is not None and low <= 1 <= high
    paper_side, our_side = side_of_reference(paper), 0 if is_level_by_chance else side_of_reference(ours)
    if paper_side == our_side == 0:
        # Repeats that differ much overlap with anything: that is no proof of equal figures
        is_narrow = max(ratio_factor(paper, low), ratio_factor(paper, high)) <= MAX_RATIO_FACTOR
        return REPRODUCED if is_narrow else NOT_TESTABLE
    if paper_side == our_side:
        return REPRODUCED if factor <= MAX_RATIO_FACTOR else SHAPE
    if paper_side == -our_side:
        return INVERTED
    # One of the two is level with the reference, and the other is not
    is_alike = factor <= LEVEL_RATIO + ROUNDING
    if not is_level_by_chance:
        return REPRODUCED if is_alike else CHANGED
    return NOT_TESTABLE if is_alike or low <= paper <= high else CHANGED


def compare_shares(paper: float, ours: float) -> str:
    """Return the verdict on two shares of lost requests, the document's and ours, from 0 to 1.

    A share up to MAX_LOST_SHARE counts as none.
    """
    much_lost = (paper > MAX_LOST_SHARE, ours > MAX_LOST_SHARE)
    if all(much_lost):
        return REPRODUCED if max(paper, ours) / min(paper, ours) <= MAX_RATIO_FACTOR else SHAPE
    return CHANGED if any(much_lost) else REPRODUCED


def compare_with_bound(paper: float, bound: float, *, is_lower: bool) -> str:
    """Return the verdict if only a bound of our ratio is known.

    paper: the document's ratio. is_lower: the bound is a lower bound, else an upper bound.

    NOT_TESTABLE if the bound leaves open on which side of the reference our ratio is, or how far away.
    """
    known_side = 1 if is_lower else -1  # the only side of the reference of which the bound can be a proof
    if side_of_reference(bound) != known_side:
        return NOT_TESTABLE
    if side_of_reference(paper) == known_side:
        return SHAPE
    if side_of_reference(paper) == -known_side:
        return INVERTED
    return NOT_TESTABLE if ratio_factor(paper, bound) <= LEVEL_RATIO + ROUNDING else CHANGED


def is_client_limited(cell: Cell) -> bool:
    """Whether the load generator may be the bottleneck of a figure: it affects rates and times only."""
    timed = cell.value == "seconds" or cell.value.startswith(("service.", "response."))
    return cell.was_client_limited and (cell.value in RATES or timed)


def comparable_groups(cells: Iterable[Cell]) -> dict[tuple[str, float | None], list[Cell]]:
    """Return the cells that may be compared with each other: those of a column with the same x."""
    found: dict[tuple[str, float | None], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.column, cell.x), []).append(cell)
    return found


def distinct_groups(cells: Sequence[Cell]) -> dict[tuple[str, float | None], list[Cell]]:
    """Return groups as `comparable_groups` does, without the groups that repeat the figures of others.

    A table may show the same samples on an x axis and in a column without one: that column is left out.
    """
    # A cell of a `line` has the samples of another cell
    groups = comparable_groups(cell for cell in cells if not cell.line)
    earlier_figures: list[tuple[str, str, list[Sample]]] = []
    distinct = set()
    # Those with an x first: they stay, and a group without an x that repeats them is left out
    for column, x in sorted(groups, key=lambda column_and_x: column_and_x[1] is None):
        figures_of_group = [
            (cell.server, cell.value, cell.samples) for cell in groups[column, x] if cell.samples
        ]
        is_new = any(each not in earlier_figures for each in figures_of_group)
        if x is not None or not figures_of_group or is_new:
            distinct.add((column, x))
        earlier_figures += figures_of_group
    return {key: group for key, group in groups.items() if key in distinct}


def other_programs_clause(table: ExperimentTable) -> str:
    """Return a clause if other programs had much of the cores while the table was measured, else ""."""
    if table.foreign is None or table.foreign * table.cores <= MAX_FOREIGN_SHARE:
        return ""
    return f"other programs had {percent_text(table.foreign)} of the {cores_text(table.cores)}"


def cores_text(cores: int) -> str:
    """Return `core` or `2 cores`."""
    return f"{cores} cores" if cores > 1 else "core"


def is_timed(experiment: Experiment | None) -> bool:
    """Whether the verdicts of an experiment depend on times, so that other programs can change them."""
    return experiment is None or experiment.timed


def judge(table: ExperimentTable, experiment: Experiment | None) -> list[JudgedCell]:
    """Return the table's cells in their order, each with its ratios and its verdict."""
    if not is_timed(experiment):
        return judge_on_quiet_machine(table, experiment)
    judged_cells = [
        replace(judged, cell=cell)  # with all its figures
        for judged, cell in zip(
            judge_on_quiet_machine(without_disturbed(table), experiment), table.cells, strict=True
        )
    ]
    reason = other_programs_clause(table)
    if not reason:
        return judged_cells
    return [
        replace(judged, verdict=NOT_TESTABLE, reason=reason) if judged.verdict in TESTED else judged
        for judged in judged_cells
    ]


def judge_on_quiet_machine(table: ExperimentTable, experiment: Experiment | None) -> list[JudgedCell]:
    """Return the cells with their verdicts as `judge` does, as if no other program had run."""
    by_cell: dict[int, JudgedCell] = {}  # by id(): two cells may be equal
    for (column, _), group in comparable_groups(table.cells).items():
        reference, paper_reference = experiment.references(column) if experiment else ("", "")
        ours = next((cell for cell in group if reference and cell.server == reference), None)
        paper = next(
            (cell for cell in group if cell.paper is not None and cell.paper_server == paper_reference), None
        )
        for cell in group:
            by_cell[id(cell)] = judge_cell(cell, ours, paper) if reference else JudgedCell(cell)
    return [by_cell[id(cell)] for cell in table.cells]


def judge_cell(cell: Cell, reference: Cell | None, paper_reference: Cell | None) -> JudgedCell:
    """Return one cell's ratios and its verdict.

    reference: the cell of our reference server. paper_reference: the cell with the figure of the document's.
    """
    if cell.value == "lost":  # shares are not compared by ratios: the reference may have lost nothing
        return judge_lost_share(cell)
    ours, reason = our_ratio(cell, reference)
    if cell.paper is None:
        return JudgedCell(cell, paper=None, ours=ours, verdict=NOT_PRINTED)
    paper = None
    if paper_reference is not None and paper_reference.paper:
        paper = cell.paper / paper_reference.paper
    else:
        reason = reason or "the document printed no figure for its reference server"
    if paper is None or ours is None or reference is None:
        return JudgedCell(cell, paper=paper, ours=ours, verdict=NOT_TESTABLE, reason=reason)
    if cell is reference:
        return JudgedCell(cell, paper=paper, ours=ours, verdict=REFERENCE)
    if failed := next((each for each in (cell, reference) if each.failure), None):
        # The figure is that of the other repeats: a server that died in one of them is no proof of an order
        reason = f"a repeat failed ({failed.server}: {failed.failure})"
        return JudgedCell(cell, paper=paper, ours=ours, verdict=NOT_TESTABLE, reason=reason)
    limited = [measured for measured in (cell, reference) if is_client_limited(measured)]
    if not limited:
        verdict = compare(paper, ours, ratios_by_chance(cell, reference))
        reason = f"the difference from {reference.server} may be chance" if verdict == NOT_TESTABLE else ""
        return JudgedCell(cell, paper=paper, ours=ours, verdict=verdict, reason=reason)
    reason = f"the load generator was the limit (of {' and '.join(measured.server for measured in limited)})"
    verdict = NOT_TESTABLE
    if cell.value in RATES and len(limited) == 1 and not may_be_chance(cell, reference):
        # A faster load generator would raise the rate of the limited server: of the cell, or of the reference
        verdict = compare_with_bound(paper, ours, is_lower=limited[0] is cell)
    return JudgedCell(cell, paper=paper, ours=ours, verdict=verdict, reason=reason)


def may_be_chance(cell: Cell, reference: Cell) -> bool:
    """Whether two cells may differ by chance: their figures overlap, each with the spread of its repeats."""
    ours, of_reference = figure_range(cell, cell.value), figure_range(reference, reference.value)
    return bool(ours and of_reference and ours.is_level_with(of_reference))


def bounds_of_ratio(over: Cell, under: Cell) -> tuple[float, float] | None:
    """Return the least and the greatest ratio of two cells' figures; None if one has no figure, or both are 0.

    The two bounds differ if the load generator was the limit of one figure: with a faster one that figure would be
    greater.
    """
    if over.median is None or under.median is None or not (over.median or under.median):
        return None
    ratio = over.median / under.median if under.median else math.inf
    return 0.0 if is_client_limited(under) else ratio, math.inf if is_client_limited(over) else ratio


def is_between(bounds: tuple[float, float], least: float, most: float) -> bool | None:
    """Whether a ratio of which the bounds are known is from `least` to `most`; None if they leave it open."""
    low, high = bounds
    if low > most or high < least:
        return False
    return True if least <= low and high <= most else None


def not_judged_clause(count: int, noun: str) -> str:
    """Return a clause about ratios that is_between() leaves open, "" without one. noun: what was compared."""
    if not count:
        return ""
    are = f"{noun} is" if count == 1 else f"{noun}s are"
    return f"; {count} {are} not judged, because the load generator was the limit"


def ratios_by_chance(cell: Cell, reference: Cell) -> tuple[float, float] | None:
    """Return the least and the greatest ratio of two cells, each with the spread of its repeats.

    The spread has 1 exactly if `may_be_chance`. None if one of the two was not measured.
    """
    ours, of_reference = figure_range(cell, cell.value), figure_range(reference, reference.value)
    if ours is None or of_reference is None or of_reference.high <= 0:
        return None
    return ours.low / of_reference.high, ours.high / of_reference.low if of_reference.low > 0 else math.inf


def judge_lost_share(cell: Cell) -> JudgedCell:
    """Return the verdict on a share of lost requests, and both shares in place of ratios."""
    if cell.paper is None:
        return JudgedCell(cell, paper=None, ours=cell.median, verdict=NOT_PRINTED)
    if cell.median is None or cell.failure:
        reason = cell.failure or "not measured"
        return JudgedCell(cell, paper=cell.paper, ours=cell.median, verdict=NOT_TESTABLE, reason=reason)
    return JudgedCell(
        cell, paper=cell.paper, ours=cell.median, verdict=compare_shares(cell.paper, cell.median)
    )


def our_ratio(cell: Cell, reference: Cell | None) -> tuple[float | None, str]:
    """Return our figure over that of the reference server, and ""; or None and the reason why there is none."""
    if cell.median is None:
        if any(has_too_few_times(sample, cell.value) for sample in cell.samples):
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
    judged_cells = judge(table, experiment)
    if table.skipped:
        return Finding(NOT_TESTABLE, f"Not run: {table.skipped}")
    if not any(judged.verdict for judged in judged_cells):  # NOT_PRINTED: the document has no figure
        return Finding(NO_CLAIM, "")
    columns: dict[str, list[JudgedCell]] = {}
    for judged in judged_cells:
        columns.setdefault(judged.cell.setting, []).append(judged)
    words = {name: verdict_of_column(judged.verdict for judged in column) for name, column in columns.items()}
    tested = {name: word for name, word in words.items() if word not in (NOT_TESTABLE, NO_CLAIM)}
    if not tested:
        return not_testable(judged_cells)
    different_words = set(tested.values())
    word = different_words.pop() if len(different_words) == 1 else IN_PART
    # A ratio of the reference server has no order, so it does not count, measured or not. Its lost share is judged
    counts = Counter(
        judged.verdict
        for judged in judged_cells
        if experiment is None
        or judged.cell.value == "lost"
        or judged.cell.server != experiment.references(judged.cell.column)[0]
    )
    if word == HOLDS and counts[NOT_TESTABLE] > sum(counts[verdict] for verdict in TESTED):
        word = IN_PART
    if len(tested) > MAX_DESCRIBED_COLUMNS:
        all_tested = [judged for name in tested for judged in columns[name]]
        sentence = f"{len(tested)} settings, in all: {order_text(all_tested)}"
    else:
        sentence = "; ".join(
            (f"{name}: " if len(columns) > 1 and name else "") + order_text(columns[name])
            for name, word_of_column in words.items()
            if word_of_column != NO_CLAIM
        )
    return Finding(word, with_capital(sentence) + ".")


def not_testable(judged_cells: Sequence[JudgedCell]) -> Finding:
    """Return the finding that no cell can be tested, with the most frequent reason."""
    reasons = Counter(judged.reason for judged in judged_cells if judged.reason)
    if not reasons:  # the cell of the reference server alone has a verdict, and needs no reason
        return Finding(NOT_TESTABLE, "Only one server was measured.")
    ((most_frequent, _),) = reasons.most_common(1)
    return Finding(NOT_TESTABLE, with_capital(most_frequent) + ".")


def verdict_of_column(verdicts: Iterable[str]) -> str:
    """Return the word for a column of verdicts: holds, holds in part, does not hold, or why there is none."""
    found = [verdict for verdict in verdicts if verdict]  # without NOT_PRINTED
    tested = [verdict for verdict in found if verdict in TESTED]
    if not tested:
        return NOT_TESTABLE if found else NO_CLAIM
    return verdict_of_parts([verdict in CONFIRMED for verdict in tested])


def verdict_of_parts(part_holds: Collection[bool]) -> str:
    """Return the word for a claim of several parts: it holds, holds in part, or does not hold."""
    return HOLDS if all(part_holds) else IN_PART if any(part_holds) else FAILS


def verdict_of_open_parts(parts: Sequence[bool | None]) -> str:
    """Return the word for parts of which some are open (None): not testable if all are.

    The claim holds in part at most if fewer parts are judged than are open.
    """
    judged = [part for part in parts if part is not None]
    if not judged:
        return NOT_TESTABLE
    word = verdict_of_parts(judged)
    return IN_PART if word == HOLDS and 2 * len(judged) < len(parts) else word


def order_text(judged_cells: Sequence[JudgedCell]) -> str:
    """Return how many figures of a column keep their order: `2 of 4 keep their order, 1 within a factor of 1.5`.

    If only one can be tested: `the one order compared is kept, within a factor of 1.5`.
    """
    count = Counter(judged.verdict for judged in judged_cells)
    tested = [verdict for verdict in TESTED for _ in range(count[verdict])]
    if not tested:
        return NOT_TESTABLE
    if len(tested) == 1:
        text = f"the one order compared {ONE_ORDER[tested[0]]}"
        if count[REPRODUCED]:
            text += f", within a factor of {MAX_RATIO_FACTOR}"
    else:
        confirmed = sum(count[verdict] for verdict in CONFIRMED)
        kept = "keeps its" if confirmed < 2 else "keep their"
        text = f"{confirmed or 'none'} of {len(tested)} {kept} order"
        if count[REPRODUCED]:
            text += f", {count[REPRODUCED]} within a factor of {MAX_RATIO_FACTOR}"
        if count[INVERTED]:
            text += f", {count[INVERTED]} inverted"
    return text + (f", {count[NOT_TESTABLE]} not testable" if count[NOT_TESTABLE] else "")


def change_since_document(table: ExperimentTable, experiment: Experiment | None) -> str:
    """Return one sentence on the greatest change since the document; "" if no cell is testable."""
    tested = [
        judged
        for judged in judge(table, experiment)
        # The ratios of one kind of figure only: a table may have rates and times
        if judged.verdict in TESTED and judged.cell.value == table.cells[0].value
    ]
    if not tested or experiment is None:
        return ""
    most_changed = max(tested, key=log_distance)
    at_setting = f" ({most_changed.cell.column})" if most_changed.cell.column else ""
    reference, paper_reference = experiment.references(most_changed.cell.column)
    printed_reference = paper_reference or reference
    printed_name = most_changed.cell.paper_server or most_changed.cell.server
    printed_clause = f"{printed_name} had {ratio_text(most_changed.paper)} times {printed_reference}'s figure"
    our_clause = (
        f"{most_changed.cell.server} has {ratio_text(most_changed.ours)} times {reference}'s now{at_setting}"
    )
    if log_distance(most_changed) <= math.log(MAX_RATIO_FACTOR):
        moved = f"no ratio moved by more than {MAX_RATIO_FACTOR}"
        at_most = f"at most, {printed_clause} then, and {our_clause}."
        if all(judged.verdict in CONFIRMED for judged in tested):
            return f"Little has changed: {moved}; {at_most}"
        text = f"{with_capital(moved)}, but an order has changed; {at_most}"
    else:
        text = f"The largest change: {printed_clause} then, and {our_clause}."
    if clause := inverted_pair(tested):
        text = text.removesuffix(".") + f"; {clause}."
    return text


def log_distance(judged: JudgedCell) -> float:
    """Return the distance of a cell's two ratios on a logarithmic scale; infinite if only one of them is 0."""
    assert judged.paper is not None and judged.ours is not None
    return math.log(ratio_factor(judged.paper, judged.ours))


class InvertedPair(NamedTuple):
    """Two servers whose order is inverted. ahead: the one with the greater figure in the document.

    printed_ratio, our_ratio: its figure over that of `behind`.
    """

    ahead: JudgedCell
    behind: JudgedCell
    printed_ratio: float
    our_ratio: float


def inverted_pair(tested: Sequence[JudgedCell]) -> str:
    """Name the pair of servers whose order is inverted most clearly, with both ratios; "" if there is none."""
    inverted = []
    for first, second in itertools.combinations(tested, 2):
        if (first.cell.column, first.cell.x) != (second.cell.column, second.cell.x):
            continue  # figures at different settings are not compared
        if may_be_chance(first.cell, second.cell):
            continue
        if not (first.paper and second.paper and first.ours and second.ours):
            continue
        ahead, behind = (first, second) if first.paper > second.paper else (second, first)  # in the document
        assert ahead.paper and behind.paper and ahead.ours and behind.ours
        pair = InvertedPair(
            ahead, behind, printed_ratio=ahead.paper / behind.paper, our_ratio=ahead.ours / behind.ours
        )
        if side_of_reference(pair.printed_ratio) == 1 and side_of_reference(pair.our_ratio) == -1:
            inverted.append(pair)
    if not inverted:
        return ""
    clearest = max(inverted, key=lambda pair: pair.printed_ratio / pair.our_ratio)
    ahead_name, behind_name = clearest.ahead.cell.server, clearest.behind.cell.server
    had, has = ratio_text(clearest.printed_ratio), ratio_text(clearest.our_ratio)
    return f"{ahead_name} had {had} times {behind_name}'s, and has {has} times now"


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
    """A server's figure, and the lowest and the highest figure that it may have by chance."""

    server: str
    value: float
    low: float
    high: float

    def divided_by(self, best: float) -> FigureRange:
        """Return this figure as a ratio to the best figure."""
        return FigureRange(self.server, value=self.value / best, low=self.low / best, high=self.high / best)

    def is_level_with(self, other: FigureRange) -> bool:
        """Whether the difference of two figures may be chance: their spreads overlap."""
        return self.low <= other.high and other.low <= self.high


def figure_range(cell: Cell, name: str) -> FigureRange | None:
    """Return a figure of a cell with the spread of its repeats; None if it was not measured."""
    value = figures.figure_of_cell(cell, name)
    if value is None:
        return None
    repeats = [found for sample in cell.samples if (found := figure(sample, name)) is not None]
    # Two figures that differ by less than this factor are level: after several repeats 5 %, after one 20 %
    margin = 1 + (CLOSE_SHARE if len(repeats) > 1 else CHANCE_SHARE)
    # Each of the two figures has half of the margin: half * half is the whole factor
    half = math.sqrt(margin)
    return FigureRange(
        cell.server, value=value, low=min(*repeats, value / half), high=max(*repeats, value * half)
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


def greatest_lost_share(cell: Cell) -> float:
    """Return the share of its requests that a server lost in the repeat in which it lost most.

    A table shows the repeat with the median rate. A repeat with many losses is seldom that one.
    """
    return max((sample.lost or 0.0 for sample in cell.samples), default=0.0)


def level_with_first(ranked: Sequence[FigureRange]) -> int:
    """Return how many of the ranked figures, from the first on, may differ from it by chance.

    A figure that lies between two of them belongs to them, even if its own repeats differ little.
    """
    return max(index for index, each in enumerate(ranked, 1) if each.is_level_with(ranked[0]))


def has_lost_requests(cell: Cell) -> bool:
    """Whether a server lost more than 1 % of its requests in some repeat, so that it cannot win."""
    return greatest_lost_share(cell) > MAX_LOST_SHARE


def winners(cells: Sequence[Cell]) -> list[Winner]:
    """Return the winners by rate, CPU time, p99 and memory, among cells that may be compared.

    A server that lost more than 1 % of its requests in some repeat takes no part: it serves few clients, and serves
    these fast and cheaply.
    """
    found = []
    p99 = "service.p99"
    if any(figures.figure_of_cell(cell, "response.p99") is not None for cell in cells):
        p99 = "response.p99"  # a load with a schedule also has the wait before the sending
    for name in ("rate", "micros", p99, "usage.memory"):
        ranked = [
            ranged
            for cell in cells
            if not has_lost_requests(cell)
            and not (name in GREATER_IS_BETTER and is_client_limited(cell))
            and (ranged := figure_range(cell, name))
            and ranged.value > 0
        ]
        ranked.sort(key=lambda ranged: ranged.value, reverse=name in GREATER_IS_BETTER)
        if len(ranked) < 2:
            continue
        count = level_with_first(ranked)
        level, behind = ranked[:count], ranked[count:]
        found.append(Winner(name, tuple(level), behind[0] if behind else None))
    return found
