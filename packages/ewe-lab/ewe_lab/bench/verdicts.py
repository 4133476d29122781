"""Verdicts: does what a document printed still hold on this machine?

Absolute figures of different decades are never compared, but ratios are: the figure of a server over that of the
table's reference server, in the document and here, among cells of the same column and the same x. With p the
document's ratio and o ours, a cell is

    reproduced    p and o differ by a factor of at most 1.5
    shape         else, and both are on the same side of the reference: the order is kept
    inverted      else, and they are on opposite sides of it
    changed       else: one of the two is level with the reference (within 10 %; ours also if the repeats overlap,
                  or within 20 % if there is one only) and the other is not. A difference that the document shows
                  has gone, or one that it does not show has come
    not testable  there is no o: no measurement, no reply at all where a time was wanted, or no reference
                  server here or in the document (or one that gave no reply)

A load generator that was busier than 70 % may have been the bottleneck. The rate is then a lower bound: o is a
lower bound if the generator was too busy with the server, an upper bound if it was too busy with the reference,
and unknown if both. If the bound shows the order, the verdict is `shape` or `inverted`, and else not testable. For
`inverted`, and for `changed`, p and the bound must differ by more than a factor of 1.5. Times under such a load are
not testable; memory and CPU time do not depend on it.

A share of requests that were lost is not compared by ratios, since the reference may have lost none. With p the
printed share and o ours it is reproduced if both are at most 1 %, or differ by a factor of at most 1.5; shape if
both are more; changed if only one is.

A cell for which the document printed nothing has no verdict, nor has a table without a reference server. The
reference is `reference`: both its ratios are 1. A rate of 0 is a figure (its ratio is 0, and beside another
ratio of 0 it is reproduced). A table whose only measured server is the reference is not testable.

A column holds if no testable cell is inverted or changed, holds in part if at least one is not, and else does
not hold. A table holds if its testable columns do, and so on; where they differ it holds in part.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ewe_lab.bench import figures
from ewe_lab.bench.experiment import Experiment
from ewe_lab.bench.figures import ratio
from ewe_lab.bench.results import Cell, Sample, Table, figure

WITHIN = 1.5  # between the ratios of a reproduced cell
MANY = 4  # up to so many columns, each is described by itself
ROUNDING = 1e-9  # so that 10 of 11 counts as level
LEVEL = 1.1  # a ratio this close to 1 is on neither side

RATES = ("rate", "request_rate", "connection_rate", "kilobytes")
LOST = 0.01  # share of its requests that a server may lose and still win
REFERENCE = "reference"
REPRODUCED = "reproduced"
SHAPE = "shape"
INVERTED = "inverted"
CHANGED = "changed"
NOT_TESTABLE = "not testable"
NOTHING = ""  # the document printed nothing for the cell
TESTED = (REPRODUCED, SHAPE, CHANGED, INVERTED)
KEPT = (REPRODUCED, SHAPE)

HOLDS = "holds"
IN_PART = "holds in part"
FAILS = "does not hold"
NO_CLAIM = "no printed figures"


@dataclass(frozen=True)
class Judged:
    """A cell with its ratios to the reference server, the document's and ours. reason: if not testable."""

    cell: Cell
    paper: float | None = None
    ours: float | None = None
    verdict: str = NOTHING
    reason: str = ""


@dataclass(frozen=True)
class Finding:
    """The finding on a table's claim: one of the words above, and the reason in one or two sentences."""

    word: str
    sentence: str


def side(of: float) -> int:
    """Return on which side of the reference a ratio is: -1 below, 1 above, 0 level with it."""
    if 1 / LEVEL - ROUNDING <= of <= LEVEL + ROUNDING:
        return 0
    return 1 if of > 1 else -1


def compare(paper: float, ours: float, level: bool = False) -> str:
    """Return the verdict on two ratios to the reference server. level: ours may differ from 1 by chance."""
    if paper == ours:
        return REPRODUCED
    if min(paper, ours) > 0 and max(paper, ours) / min(paper, ours) <= WITHIN:
        return REPRODUCED
    then, now = side(paper), 0 if level else side(ours)
    if then == now:
        return SHAPE
    return INVERTED if then == -now else CHANGED


def compare_shares(paper: float, ours: float) -> str:
    """Return the verdict on two shares of lost requests."""
    some = (paper > LOST, ours > LOST)
    if some == (True, True):
        return REPRODUCED if max(paper, ours) / min(paper, ours) <= WITHIN else SHAPE
    return CHANGED if any(some) else REPRODUCED


def bounded(paper: float, bound: float, sense: int) -> str:
    """Return the verdict where our ratio is at least (sense 1) or at most (sense -1) the bound."""
    far = min(paper, bound) <= 0 or max(paper, bound) / min(paper, bound) > WITHIN
    if side(bound) != sense:
        return NOT_TESTABLE
    if side(paper) == sense:
        return SHAPE
    if not far:
        return NOT_TESTABLE
    return INVERTED if side(paper) == -sense else CHANGED


def limited(cell: Cell) -> bool:
    """Whether the load generator may be the bottleneck of a figure: it affects rates and times only."""
    timed = cell.value == "seconds" or cell.value.startswith(("service.", "response."))
    return cell.client_limited and (cell.value in RATES or timed)


def groups(cells: Iterable[Cell]) -> dict[tuple[str, float | None], list[Cell]]:
    """Return the cells that may be compared with each other: those of a column with the same x."""
    found: dict[tuple[str, float | None], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.column, cell.x), []).append(cell)
    return found


def distinct(cells: Sequence[Cell]) -> dict[tuple[str, float | None], list[Cell]]:
    """Return groups as `groups` does, without those that repeat figures of others."""
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


def judge(table: Table, experiment: Experiment | None) -> list[Judged]:
    """Return the table's cells in their order, each with its ratios and its verdict."""
    by_cell: dict[int, Judged] = {}
    for (column, _), group in groups(table.cells).items():
        reference, paper_reference = experiment.references(column) if experiment else ("", "")
        ours = next((cell for cell in group if reference and cell.server == reference), None)
        paper = next(
            (cell for cell in group if cell.paper is not None and cell.paper_server == paper_reference), None
        )
        for cell in group:
            by_cell[id(cell)] = judged(cell, ours, paper) if reference else Judged(cell)
    return [by_cell[id(cell)] for cell in table.cells]


def judged(cell: Cell, reference: Cell | None, paper_reference: Cell | None) -> Judged:
    """Return one cell's ratios and its verdict."""
    if cell.value == "lost":
        return judged_share(cell)
    ours, reason = our_ratio(cell, reference)
    if cell.paper is None:
        return Judged(cell, None, ours, NOTHING)
    paper = None
    if paper_reference is not None and paper_reference.paper:
        paper = cell.paper / paper_reference.paper
    else:
        reason = reason or "the document printed no figure for its reference server"
    if paper is None or ours is None or reference is None:
        return Judged(cell, paper, ours, NOT_TESTABLE, reason)
    if cell is reference:
        return Judged(cell, paper, ours, REFERENCE)
    busy = [each for each in (cell, reference) if limited(each)]
    if not busy:
        return Judged(cell, paper, ours, compare(paper, ours, may_be_chance(cell, reference)))
    reason = f"the load generator was the limit (of {' and '.join(each.server for each in busy)})"
    verdict = NOT_TESTABLE
    if cell.value in RATES and len(busy) == 1:
        verdict = bounded(paper, ours, 1 if busy[0] is cell else -1)
    return Judged(cell, paper, ours, verdict, reason)


def may_be_chance(cell: Cell, reference: Cell) -> bool:
    """Whether the repeats of two cells differ as much as the cells."""
    one, other = reach(cell, cell.value), reach(reference, reference.value)
    return bool(one and other and one.level_with(other))


def judged_share(cell: Cell) -> Judged:
    """Return the verdict on a share of lost requests, and both shares in place of ratios."""
    if cell.paper is None:
        return Judged(cell, None, cell.median, NOTHING)
    if cell.median is None:
        return Judged(cell, cell.paper, None, NOT_TESTABLE, cell.failure or "not measured")
    return Judged(cell, cell.paper, cell.median, compare_shares(cell.paper, cell.median))


def our_ratio(cell: Cell, reference: Cell | None) -> tuple[float | None, str]:
    """Return our figure over that of the reference server, or the reason why there is none."""
    if cell.median is None:
        return None, cell.failure or ("no reply" if cell.samples else "not measured")
    if reference is None or reference.median is None:
        return None, "the reference server was not measured"
    if reference.median == 0:
        return None, f"the reference server {reference.server} gave no reply"
    return cell.median / reference.median, ""


# ---------------------------------------------------------------------------------------------------------
# A table's claim


def finding(table: Table, experiment: Experiment | None) -> Finding:
    """Return the finding on a table's claim, from the verdicts of its cells."""
    all_judged = judge(table, experiment)
    if table.skipped:
        return Finding(NOT_TESTABLE, f"Not run: {table.skipped}")
    if not any(each.verdict for each in all_judged):
        return Finding(NO_CLAIM, "")
    columns: dict[str, list[Judged]] = {}
    for each in all_judged:
        columns.setdefault(each.cell.setting, []).append(each)
    words = {name: word_of(each.verdict for each in inside) for name, inside in columns.items()}
    tested = {name: word for name, word in words.items() if word not in (NOT_TESTABLE, NO_CLAIM)}
    if not tested:
        why = Counter(each.reason for each in all_judged if each.reason).most_common(1)
        return Finding(NOT_TESTABLE, capital(why[0][0]) + "." if why else "Only one server was measured.")
    word = next(iter(set(tested.values()))) if len(set(tested.values())) == 1 else IN_PART
    if len(tested) > MANY:
        counted = (
            f"{len(tested)} settings, in all: {tally([each for name in tested for each in columns[name]])}"
        )
    else:
        counted = "; ".join(
            (f"{name}: " if len(columns) > 1 and name else "") + tally(columns[name])
            for name, word_there in words.items()
            if word_there != NO_CLAIM
        )
    return Finding(word, capital(counted) + ".")


def word_of(verdicts: Iterable[str]) -> str:
    """Return the word for a column of verdicts."""
    found = [verdict for verdict in verdicts if verdict]
    tested = [verdict for verdict in found if verdict in TESTED]
    if not tested:
        return NOT_TESTABLE if found else NO_CLAIM
    kept = sum(verdict in KEPT for verdict in tested)
    return HOLDS if kept == len(tested) else IN_PART if kept else FAILS


def tally(inside: Sequence[Judged]) -> str:
    """Say how many figures of a column keep their place: `2 of 4 keep their order, 1 within a factor of 1.5`."""
    count = Counter(each.verdict for each in inside)
    tested = sum(count[verdict] for verdict in TESTED)
    if not tested:
        return NOT_TESTABLE
    kept = sum(count[verdict] for verdict in KEPT)
    text = f"{kept or 'none'} of {tested} {'keeps its' if kept < 2 else 'keep their'} order"
    if count[REPRODUCED]:
        text += f", {count[REPRODUCED]} within a factor of {WITHIN}"
    if count[INVERTED]:
        text += f", {count[INVERTED]} inverted"
    return text + (f", {count[NOT_TESTABLE]} not testable" if count[NOT_TESTABLE] else "")


def since(table: Table, experiment: Experiment | None) -> str:
    """Return one sentence on what changed most since the document was written; "" if nothing can be said."""
    tested = [each for each in judge(table, experiment) if each.verdict in TESTED]
    tested = [each for each in tested if each.cell.value == table.cells[0].value]  # of one kind
    if not tested or experiment is None:
        return ""
    most = max(tested, key=distance)
    where = f" ({most.cell.column})" if most.cell.column else ""
    reference, paper_reference = experiment.references(most.cell.column)
    over = paper_reference or reference
    then = f"{most.cell.paper_server or most.cell.server} had {ratio(most.paper)} times {over}'s figure"
    now = f"{most.cell.server} has {ratio(most.ours)} times {reference}'s now{where}"
    if distance(most) <= math.log(WITHIN):
        return f"Little has changed: no ratio moved by more than {WITHIN}; at most, {then} then, and {now}."
    text = f"What changed most: {then} then, and {now}."
    if pairs := turned(tested):
        text = text[:-1] + f"; {pairs}."
    return text


def distance(of: Judged) -> float:
    """Return the distance of a cell's two ratios on a logarithmic scale."""
    assert of.paper is not None and of.ours is not None
    least = min(of.paper, of.ours)
    return abs(math.log(of.paper / of.ours)) if least > 0 else 0.0 if of.paper == of.ours else math.inf


def turned(tested: Sequence[Judged]) -> str:
    """Name the pair of servers whose order was turned around most clearly; "" if there is none."""
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


def capital(text: str) -> str:
    """Return a sentence with a capital at its start."""
    return text[:1].upper() + text[1:]


# ---------------------------------------------------------------------------------------------------------
# Winners, for a table without printed figures


CHANCE = 0.2  # figures that were measured once may differ by this by chance
CLOSE = 0.05  # repeats may agree by chance: figures that differ by less are always level
MORE = ("rate",)  # figures of which more is better; of all others less


@dataclass(frozen=True)
class Reach:
    """A cell's figure, and how far its repeats reach below and above it."""

    server: str
    value: float
    low: float
    high: float

    def over(self, best: float) -> Reach:
        """Return the same as a ratio to the best."""
        return Reach(self.server, self.value / best, self.low / best, self.high / best)

    def level_with(self, other: Reach) -> bool:
        """Whether the difference of two figures may be chance."""
        return self.low <= other.high and other.low <= self.high


def reach(cell: Cell, name: str) -> Reach | None:
    """Return a figure of a cell with the spread of its repeats; None if it was not measured."""
    value = figures.of_cell(cell, name)
    if value is None:
        return None
    each = [found for sample in cell.samples if (found := figure(sample, name)) is not None]
    margin = 1 + (CLOSE if len(each) > 1 else CHANCE)
    half = math.sqrt(margin)  # half of the margin for each of two figures
    return Reach(cell.server, value, min(*each, value / half), max(*each, value * half))


@dataclass(frozen=True)
class Winner:
    """The result of a contest by one figure. level: the best server, and those that may differ from it by chance.

    next: the first server that is certainly behind, None if there is none.
    """

    name: str  # of the figure
    level: tuple[Reach, ...]
    next: Reach | None

    @property
    def best(self) -> Reach:
        """Return the server with the best figure."""
        return self.level[0]

    @property
    def server(self) -> str:
        """Return the winner, "" if the first servers are level."""
        return self.best.server if len(self.level) == 1 else ""


def has_lost(cell: Cell) -> bool:
    """Whether a server left too many of its clients without an answer to win anything."""
    return (figures.of_cell(cell, "lost") or 0) > LOST


def winners(cells: Sequence[Cell]) -> list[Winner]:
    """Return the winners by rate, CPU time, p99 and memory, among cells that may be compared.

    A server that lost more than 1 % of its requests takes no part: it has few clients to serve, and serves these
    fast and cheaply.
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
            and not (name in MORE and limited(cell))
            and (each := reach(cell, name))
            and each.value > 0
        ]
        ranked.sort(key=lambda each: each.value, reverse=name in MORE)
        if len(ranked) < 2:
            continue
        level = tuple(each for each in ranked if each.level_with(ranked[0]))
        found.append(Winner(name, level, next((each for each in ranked if each not in level), None)))
    return found
