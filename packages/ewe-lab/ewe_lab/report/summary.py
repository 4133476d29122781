"""Sentences for students, made of figures: who wins, by how much, why, and what to doubt."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ewe_lab.bench import figures, verdicts
from ewe_lab.bench.experiment import Experiment
from ewe_lab.bench.results import Cell, Results, Table
from ewe_lab.bench.verdicts import Finding, Reach, Winner, capital
from ewe_lab.experiments import CATALOG, CHECKS

COMPARE = "compare"  # id of a table that no experiment describes
CROWD = 0.1  # share of the server's core that other programs may have
NAMED = 4  # servers that a note names; of more it says how many
SPREAD = 0.2  # repeats that differ by more than this are doubtful
HOW = {  # how a model works, in one sentence beside its figures
    "serial": "one connection at a time: everybody else waits, also while the client is silent",
    "fork": "a new process for each connection: an expensive start, then no client waits for another",
    "prefork": "processes made beforehand: cheap for each connection, but no more at once than there are",
    "thread": "a thread for each connection: cheap to start, memory for each, one interpreter lock for all",
    "pool": "a few threads that leave a client which keeps them waiting, and go on with it later",
    "pool-2006": "a few threads, each kept by its client to the end: a silent client keeps one busy",
    "asyncio": "one thread and an event loop: an idle connection costs memory only",
}


def finding_of(table: Table, experiment: Experiment | None) -> Finding:
    """Return the finding on a table's claim: from the experiment's check if it has one, else from the ratios."""
    check = CHECKS.get(table.id)
    if check is not None and not table.skipped and any(cell.samples for cell in table.cells):
        return check(table)
    return verdicts.finding(table, experiment)


def sentences(table: Table) -> list[str]:
    """Say who wins, group by group; for the last group of many with an x."""
    found = []
    by_group = list(verdicts.distinct(table.cells).items())
    seen: dict[str, tuple[float | None, list[Cell]]] = {column: (x, cells) for (column, x), cells in by_group}
    for column, (x, cells) in seen.items():
        where = ", ".join(filter(None, (column, f"at {figures.number(x)}" if x is not None else "")))
        parts = outcomes(cells)
        if where and parts:
            found.append(f"{where}: {'; '.join(parts)}.")
        else:
            found += [f"{capital(part)}." for part in parts]
    return found


def outcomes(cells: Sequence[Cell]) -> list[str]:
    """Say who wins by which figure, and who lost requests; nothing if there is no contest."""
    if any(cell.value.startswith("extra.") for cell in cells):
        return []  # the figure of such a table does not come from a load
    found = []
    losers = [cell for cell in cells if verdicts.has_lost(cell)]
    if losers:
        names = enumerated([f"{cell.server} ({figures.shown(cell, 'lost')})" for cell in losers])
        times = "their times and costs" if losers[1:] else "its times and cost"
        found.append(f"requests were lost by {names}: {times} are those of the few that were served")
        whole = [cell.server for cell in cells if cell.samples and not verdicts.has_lost(cell)]
        if len(whole) == 1:
            found.append(f"only {whole[0]} answered everybody")
    return found + [outcome(winner) for winner in verdicts.winners(cells)]


FIGURES = {  # of which more or less is better: its name in a sentence, and of what there is more or less
    "rate": ("replies a second", "more"),
    "micros": ("server CPU for a reply", "less"),
    "usage.memory": ("memory", "less"),
    "service.p99": ("p99 of the service time", "less"),
    "response.p99": ("p99 of the response time", "less"),
}


def outcome(winner: Winner) -> str:
    """Say which server wins by one figure and by how much, or which are level."""
    what, sense = FIGURES[winner.name]
    if not winner.server:
        names = enumerated([each.server for each in winner.level])
        values = sorted(each.value for each in winner.level)
        low, high = (with_unit(winner.name, value) for value in (values[0], values[-1]))
        if low == high:
            return f"{what}: {names} are level ({low})"
        return f"{what}: no winner among {names}; the difference ({low} to {high}) may be chance"
    best, other = winner.best, winner.next
    assert other is not None
    told = f"{what}: {best.server} is first with {with_unit(winner.name, best.value)}"
    times = max(best.value, other.value) / min(best.value, other.value)
    if times >= 2:
        how = "" if sense == "more" else f"; {other.server}, the next, has {figures.ratio(times)} times that"
        return told + (how or f", {figures.ratio(times)} times the figure of {other.server}, the next")
    percent = figures.percent(abs(best.value - other.value) / other.value)
    return f"{told}, {percent} {sense} than {other.server}, the next"


def with_unit(name: str, value: float) -> str:
    """Return a figure with its unit, for a sentence."""
    return figures.as_text(name, value) + (" µs" if name == "micros" else "")


def enumerated(names: Sequence[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


@dataclass
class Standing:
    """How a model of ewe did over all settings at which at least three models were measured."""

    model: str
    settings: int
    cpu: Reach | None  # geometric mean of its CPU time for a reply over that of the best
    rate: Reach | None  # geometric mean of its rate over that of the best
    lost: float  # share of sessions or requests that ended in an error, where it was worst
    memory: float | None  # median of the peaks
    how: str

    @property
    def starved(self) -> bool:
        """Whether it left clients without an answer, so that its cost means little."""
        return self.lost > verdicts.LOST


def standings(results: Results) -> list[Standing]:
    """Rank ewe's models over all measured settings, the cheapest first.

    The best of a setting is the best of the servers that lost no request.
    """
    cpu: dict[str, list[Reach]] = {}
    rate: dict[str, list[Reach]] = {}
    lost: dict[str, list[float]] = {}
    memory: dict[str, list[float]] = {}
    for table in results.tables:
        for group in verdicts.distinct(table.cells).values():
            ours = [cell for cell in group if is_model(table, cell) and cell.value == "rate" and cell.median]
            if len({cell.server for cell in ours}) < 3:
                continue
            for name, into, best in (("micros", cpu, min), ("rate", rate, max)):
                values = {
                    cell.server: value
                    for cell in ours
                    if (value := verdicts.reach(cell, name)) and value.value > 0
                }
                whole = [values[cell.server].value for cell in ours
                         if cell.server in values and not verdicts.has_lost(cell)]  # fmt: skip
                least = best(whole or [value.value for value in values.values()], default=0.0)
                for model, value in values.items():
                    into.setdefault(model, []).append(value.over(least))
            for cell in ours:
                lost.setdefault(cell.server, []).append(figures.of_cell(cell, "lost") or 0.0)
                if (peak := figures.of_cell(cell, "usage.memory")) is not None:
                    memory.setdefault(cell.server, []).append(peak)
    found = [
        Standing(
            model, len(lost[model]), geometric(cpu.get(model)), geometric(rate.get(model)),
            max(lost[model]),
            statistics.median(memory[model]) if model in memory else None,
            HOW.get(model, ""),
        )
        for model in lost
    ]  # fmt: skip
    return sorted(found, key=lambda each: (each.starved, each.cpu.value if each.cpu else math.inf))


def is_model(table: Table, cell: Cell) -> bool:
    """Whether a cell is of a concurrency model: one of ours, or any that a comparison named."""
    return cell.server in HOW or (table.id == COMPARE and cell.command.startswith("ewe --model "))


def geometric(values: Sequence[Reach] | None) -> Reach | None:
    """Return the geometric mean: twice the cost and half the cost cancel out."""
    if not values:
        return None
    return Reach(
        values[0].server,
        statistics.geometric_mean([each.value for each in values]),
        statistics.geometric_mean([each.low or each.value for each in values]),
        statistics.geometric_mean([each.high for each in values]),
    )


def leads(ranked: Sequence[Standing]) -> bool:
    """Whether the first model is cheaper than the second by more than chance."""
    first, second = (ranked[0].cpu, ranked[1].cpu) if len(ranked) > 1 else (None, None)
    return bool(first and second and (ranked[1].starved or not first.level_with(second)))


def headline(results: Results, ranked: Sequence[Standing]) -> list[str]:
    """Say in a few sentences what a student should take away."""
    found = []
    for table in results.tables:
        if table.id not in CATALOG:
            found += sentences(table)
    settings = max((each.settings for each in ranked), default=0)
    if settings < 2:  # the sentences above describe it already
        return found
    whole = {each.model: each.cpu for each in ranked if not each.starved and each.cpu is not None}
    if len(whole) >= 2:
        first, *_, last = whole.values()
        level = [model for model, cpu in whole.items() if cpu.level_with(first)]
        if len(level) == len(whole):
            found.append("The models that answered everybody need about the same CPU time for a reply.")
        else:
            found.append(
                f"Of the models that answered everybody, {enumerated(level)} "
                f"{'needs' if len(level) == 1 else 'need'} the least CPU time for a reply, {last.server} the most: "
                f"{figures.ratio(last.value / first.value)} times as much, over {settings} settings."
            )
    if losers := [f"{each.model} (up to {figures.percent(each.lost)})" for each in ranked if each.starved]:
        found.append(f"Requests were lost, in one setting or another, by {enumerated(losers)}.")
    return found


def remarks(table: Table) -> list[str]:
    """Return the notes of a table, then those of its rows."""
    by_note: dict[str, list[str]] = {}
    for cell in table.cells:
        sample = figures.middle(cell)
        for note in [*([cell.remark] if cell.remark else []), *(sample.notes if sample else ())]:
            by_note.setdefault(note, []).append(cell.server)
    found = []
    for note, servers in by_note.items():
        names = list(dict.fromkeys(servers))
        found.append(f"{enumerated(names) if len(names) <= NAMED else f'{len(names)} servers'}: {note}.")
    return [*table.notes, *found]


def doubts(results: Results) -> list[str]:
    """Return the reasons to doubt the figures, a sentence each, for the whole page."""
    cells = [cell for table in results.tables for cell in table.cells if cell.samples and not cell.line]
    found = []
    if busy := [cell for cell in cells if cell.client_limited]:
        found.append(
            f"In {len(busy)} of {len(cells)} rows the load generator used more than 70 % of its core: what was "
            "measured there may be the generator. They are marked “client-limited”."
        )
    if crowded := [cell for cell in cells if crowd(cell) > CROWD]:
        found.append(
            f"In {len(crowded)} of {len(cells)} rows other programs had more than a tenth of the server's core: "
            "rates and times are worse than on a quiet machine, and who comes first may be chance."
        )
    if any(sample.service and not sample.response for cell in cells for sample in cell.samples):
        found.append(
            "Where there is no response time, users waited for each answer before they asked again. A server that "
            "stalls is then asked less, and its times look better than what its users felt."
        )
    if loose := [cell for cell in cells if loosely(cell)]:
        found.append(
            f"In {len(loose)} rows the repeats differ by more than 20 %: the spread is printed with them."
        )
    if cells and all(len(cell.samples) == 1 for cell in cells):
        found.append("Nothing was repeated, so no spread is known: a difference below 20 % may be chance.")
    if any(table.quick for table in results.tables):
        found.append(
            "Quick runs are shorter than the document's, and measured once; the same with --full takes longer."
        )
    if any(table.interrupted for table in results.tables):
        found.append("A run was interrupted; what it had measured until then is shown.")
    if failed := sum(bool(cell.failure) for table in results.tables for cell in table.cells):
        found.append(f"{failed} rows could not be measured, or not wholly; each says why.")
    found.append("Everything ran on one machine over its loopback: no cable, no distance, caches shared.")
    return found


def crowd(cell: Cell) -> float:
    """Return the share of the server's core that other programs had during the middle sample."""
    sample = figures.middle(cell)
    if sample is None or sample.usage is None or sample.usage.core is None or not sample.seconds:
        return 0.0
    return sample.usage.core - sample.usage.cpu / sample.seconds


def loosely(cell: Cell) -> bool:
    """Whether the repeats of a cell differ by much."""
    return bool(cell.spread and cell.median and (cell.spread[1] - cell.spread[0]) / cell.median > SPREAD)


def counted(words: Sequence[str]) -> str:
    """Count the claims by their finding."""
    known = (verdicts.HOLDS, verdicts.IN_PART, verdicts.FAILS, verdicts.NOT_TESTABLE)
    parts = [f"{words.count(word)} {plural(word, words.count(word))}" for word in known if word in words]
    total = sum(word in known for word in words)
    return f"Of {total} claims checked: {', '.join(parts)}." if total > 1 else ""


def plural(word: str, count: int) -> str:
    """Return a finding's word as it follows a number."""
    if count == 1 or not word.startswith(("holds", "does")):
        return word
    return word.replace("holds", "hold").replace("does not", "do not")
