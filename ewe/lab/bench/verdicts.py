"""Verdicts: does what a document printed still hold on this machine?

Absolute figures of different decades are never compared. What is compared is a ratio: a server's figure over
that of the table's reference server, in the document and here, among cells of the same column and the same x.
With p the document's ratio and o ours, a cell is

    reproduced    p and o differ by a factor of at most 1.5
    shape         else, and both are on the same side of the reference: the order is kept
    inverted      else, and they are on opposite sides of it
    changed       else: one of the two is level with the reference (within 10 %) and the other is not. A
                  difference that the document shows has gone, or one that it does not show has come
    not testable  there is no o: no measurement, no reply at all where a time was wanted, or no reference
                  server here or in the document (or one that gave no reply)

A load generator that was busier than 70 % may have been what was measured. A rate is then a lower bound: o is
one where the server's generator was too busy, an upper bound where the reference's was, nothing where both
were. If the bound shows the order, the verdict is `shape` or `inverted` (which then needs more than a factor
of 1.5 between p and the bound, as does `changed`), and else not testable. Times under such a load are not
testable; memory and CPU time do not depend on it.

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

from ewe.lab import figures
from ewe.lab.experiment import Experiment
from ewe.lab.figures import ratio
from ewe.lab.results import Cell, Sample, Table

WITHIN = 1.5  # between the ratios of a reproduced cell
MANY = 4  # columns of which each is told by itself
ROUNDING = 1e-9  # 10 of 11 is level
LEVEL = 1.1  # a ratio this close to 1 is on neither side

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
    """What came of a table's claim: one of the words above, and why in a sentence or two."""

    word: str
    sentence: str


def side(of: float) -> int:
    """Return on which side of the reference a ratio is: -1 below, 1 above, 0 level with it."""
    if 1 / LEVEL - ROUNDING <= of <= LEVEL + ROUNDING:
        return 0
    return 1 if of > 1 else -1


def compare(paper: float, ours: float) -> str:
    """Return the verdict on two ratios to the reference server."""
    if paper == ours:
        return REPRODUCED
    if min(paper, ours) > 0 and max(paper, ours) / min(paper, ours) <= WITHIN:
        return REPRODUCED
    then, now = side(paper), side(ours)
    if then == now:
        return SHAPE
    return INVERTED if then == -now else CHANGED


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
    """Whether a cell's figure may be its load generator's: rates and times depend on that, nothing else does."""
    return cell.client_limited and (cell.value == "rate" or cell.value.startswith(("service.", "response.")))


def groups(cells: Iterable[Cell]) -> dict[tuple[str, float | None], list[Cell]]:
    """Return the cells that may be compared with each other: those of a column with the same x."""
    found: dict[tuple[str, float | None], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.column, cell.x), []).append(cell)
    return found


def distinct(cells: Sequence[Cell]) -> dict[tuple[str, float | None], list[Cell]]:
    """Return groups as `groups` does, without those that only show samples again that others have."""
    found: dict[tuple[str, float | None], list[Cell]] = {}
    seen: list[tuple[str, list[Sample]]] = []
    for (column, x), group in sorted(groups(cells).items(), key=lambda each: each[0][1] is None):
        samples = [(cell.server, cell.samples) for cell in group if cell.samples]
        if x is not None or not samples or any(each not in seen for each in samples):
            found[column, x] = group
        seen += samples
    order = list(groups(cells))
    return dict(sorted(found.items(), key=lambda each: order.index(each[0])))


def judge(table: Table, experiment: Experiment | None) -> list[Judged]:
    """Return the table's cells in their order, each with its ratios and its verdict."""
    reference = experiment.reference if experiment else ""
    paper_reference = experiment.paper_reference if experiment else ""
    by_cell: dict[int, Judged] = {}
    for group in groups(table.cells).values():
        ours = next((cell for cell in group if reference and cell.server == reference), None)
        paper = next(
            (cell for cell in group if cell.paper is not None and cell.paper_server == paper_reference), None
        )
        for cell in group:
            by_cell[id(cell)] = judged(cell, ours, paper) if reference else Judged(cell)
    return [by_cell[id(cell)] for cell in table.cells]


def judged(cell: Cell, reference: Cell | None, paper_reference: Cell | None) -> Judged:
    """Return one cell's ratios and its verdict."""
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
        return Judged(cell, paper, ours, compare(paper, ours))
    reason = f"the load generator was the limit (of {' and '.join(each.server for each in busy)})"
    verdict = NOT_TESTABLE
    if cell.value == "rate" and len(busy) == 1:
        verdict = bounded(paper, ours, 1 if busy[0] is cell else -1)
    return Judged(cell, paper, ours, verdict, reason)


def our_ratio(cell: Cell, reference: Cell | None) -> tuple[float | None, str]:
    """Return our figure over the reference server's, or why there is none."""
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
    """Return what came of a table's claim, by its cells' verdicts."""
    all_judged = judge(table, experiment)
    if table.skipped:
        return Finding(NOT_TESTABLE, f"Not run: {table.skipped}")
    if not any(each.verdict for each in all_judged):
        return Finding(NO_CLAIM, "")
    columns: dict[str, list[Judged]] = {}
    for each in all_judged:
        columns.setdefault(each.cell.column, []).append(each)
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
    """Say how many servers of a column keep their place: `2 of 4 keep their order, 1 within a factor of 1.5`."""
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
    over = experiment.paper_reference or experiment.reference
    then = f"{most.cell.paper_server or most.cell.server} had {ratio(most.paper)} times {over}'s figure"
    now = f"{most.cell.server} has {ratio(most.ours)} times {experiment.reference}'s now{where}"
    if distance(most) <= math.log(WITHIN):
        return f"Little has changed: no ratio moved by more than {WITHIN}; at most, {then} then, and {now}."
    text = f"What changed most: {then} then, and {now}."
    if pairs := turned(tested):
        text = text[:-1] + f"; {pairs}."
    return text


def distance(of: Judged) -> float:
    """Return how far a cell's ratios lie apart, on a logarithmic scale."""
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
# Winners, where no document says who should win


@dataclass(frozen=True)
class Winner:
    """Who is first by a figure, with how much, and who is next. margin: the next one's figure over it, or
    the other way round, so that it is never less than 1."""

    name: str  # of the figure
    server: str
    value: float
    runner_up: str
    margin: float


MORE = ("rate",)  # figures of which more is better; of all others less


def winners(cells: Sequence[Cell]) -> list[Winner]:
    """Return who is first by rate, CPU time for a reply, p99 and memory, among cells that may be compared.

    A server that lost more than 1 % of its requests wins nothing but by its rate: who refuses most clients
    answers the others fast.
    """
    found = []
    p99 = (
        "response.p99"
        if any(figures.of_cell(cell, "response.p99") is not None for cell in cells)
        else "service.p99"
    )
    for name in ("rate", "micros", p99, "usage.memory"):
        ranked = []
        for cell in cells:
            value, lost = figures.of_cell(cell, name), figures.of_cell(cell, "lost")
            if value is None or (name not in MORE and (lost or 0) > 0.01) or (name in MORE and limited(cell)):
                continue
            ranked.append((value, cell.server))
        ranked.sort(key=lambda each: each[0], reverse=name in MORE)
        if len(ranked) >= 2 and ranked[0][0] and ranked[1][0]:
            (value, server), (next_value, next_server) = ranked[:2]
            found.append(
                Winner(name, server, value, next_server, max(value, next_value) / min(value, next_value))
            )
    return found
