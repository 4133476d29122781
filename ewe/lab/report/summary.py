"""What a student should take away: who wins, by how much, why, and what to doubt. Sentences made of figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ewe.lab import figures, verdicts
from ewe.lab.experiment import Experiment
from ewe.lab.experiments import CATALOG, CHECKS
from ewe.lab.results import Cell, Results, Table
from ewe.lab.verdicts import Finding, capital

CROWD = 0.1  # share of the server's core that others may have
SPREAD = 0.2  # repeats that differ by more than this are doubtful
HOW = {  # why a model does as it does; printed beside its figures
    "serial": "one connection at a time: everybody else waits, also while the client is silent",
    "fork": "a new process for each connection: a dear start, then nobody waits for anybody",
    "prefork": "processes made beforehand: cheap for each connection, but no more at once than there are",
    "thread": "a thread for each connection: cheap to start, memory for each, one interpreter lock for all",
    "pool": "a few threads that leave a client which keeps them waiting, and go on with it later",
    "pool-2006": "a few threads, each kept by its client to the end: a silent client keeps one busy",
    "asyncio": "one thread and an event loop: an idle connection costs memory only",
}


def finding_of(table: Table, experiment: Experiment | None) -> Finding:
    """Return what came of a table's claim: by the experiment's own check, if it has one, else by its ratios."""
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
        if text := winning(cells):
            found.append(f"{where}: {text}" if where else capital(text))
    return found


def winning(cells: Sequence[Cell]) -> str:
    """Say in a sentence who wins by which figure; "" if there is no contest."""
    parts: list[str] = []
    if any(cell.value.startswith("extra.") for cell in cells):
        return ""  # what counts there is not the load
    for winner in verdicts.winners(cells):
        what = {
            "rate": "most replies a second",
            "micros": "least server CPU for a reply",
            "usage.memory": "least memory",
        }.get(winner.name, "shortest p99 of the " + winner.name.partition(".")[0] + " time")
        value = figures.as_text(winner.name, winner.value)
        unit = " µs" if winner.name == "micros" else ""
        if winner.margin < 1.05:
            parts.append(f"{what}: {winner.server} ({value}{unit}), level with {winner.runner_up}")
        else:
            by = figures.ratio(winner.margin)
            parts.append(
                f"{what}: {winner.server} ({value}{unit}), {by} times better than {winner.runner_up}"
            )
    return "; ".join(parts) + "." if parts else ""


@dataclass
class Standing:
    """How a model of ewe did over all settings at which at least three models were measured."""

    model: str
    settings: int
    cpu: float | None  # geometric mean of its CPU time for a reply over that of the best
    rate: float | None  # of its rate over the best's
    lost: float  # share of requests that ended in an error, where it was worst
    memory: float | None  # median of the peaks
    how: str


def standings(results: Results) -> list[Standing]:
    """Rank ewe's models over everything that was measured, the cheapest first."""
    cpu: dict[str, list[float]] = {}
    rate: dict[str, list[float]] = {}
    lost: dict[str, list[float]] = {}
    memory: dict[str, list[float]] = {}
    for table in results.tables:
        for group in verdicts.distinct(table.cells).values():
            ours = [cell for cell in group if cell.server in HOW and cell.value == "rate" and cell.median]
            if len({cell.server for cell in ours}) < 3:
                continue
            for name, into, best in (("micros", cpu, min), ("rate", rate, max)):
                values = {
                    cell.server: value
                    for cell in ours
                    if (value := figures.of_cell(cell, name)) and value > 0
                }
                for model, value in values.items():
                    into.setdefault(model, []).append(value / best(values.values()))
            for cell in ours:
                lost.setdefault(cell.server, []).append(figures.of_cell(cell, "lost") or 0.0)
                if (peak := figures.of_cell(cell, "usage.memory")) is not None:
                    memory.setdefault(cell.server, []).append(peak)
    found = [
        Standing(
            model, len(lost[model]), geometric(cpu.get(model)), geometric(rate.get(model)),
            max(lost[model]), statistics.median(memory[model]) if model in memory else None, HOW[model],
        )
        for model in lost
    ]  # fmt: skip
    return sorted(found, key=lambda each: (each.lost > 0.01, each.cpu or math.inf))


def geometric(values: Sequence[float] | None) -> float | None:
    """Return the geometric mean: twice as dear and half as dear cancel out."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def headline(results: Results, ranked: Sequence[Standing]) -> list[str]:
    """Say in a few sentences what a student should take away."""
    found = []
    for table in results.tables:
        if table.id not in CATALOG:
            found += sentences(table)
    whole = [each for each in ranked if each.lost <= 0.01 and each.cpu is not None]
    if len(whole) >= 2:
        first, *_, last = whole
        assert first.cpu and last.cpu
        times = figures.ratio(last.cpu / first.cpu)
        found.append(
            f"Of the models that lost nobody's request, {first.model} needs the least CPU time for a reply, "
            f"{last.model} the most: {times} times as much"
            + (f", over {first.settings} settings." if first.settings > 1 else ".")
        )
    losers = [each for each in ranked if each.lost > 0.01]
    if losers:
        names = " and ".join(f"{each.model} (up to {figures.percent(each.lost)})" for each in losers)
        found.append(f"Requests were lost, in one setting or another, by {names}.")
    return found


def doubts(results: Results) -> list[str]:
    """Say what may be wrong with the figures: a sentence each, for the whole page."""
    cells = [cell for table in results.tables for cell in table.cells if cell.samples]
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
    """Return the share of the server's core that others had during the middle sample."""
    sample = figures.middle(cell)
    if sample is None or sample.usage is None or sample.usage.core is None or not sample.seconds:
        return 0.0
    return sample.usage.core - sample.usage.cpu / sample.seconds


def loosely(cell: Cell) -> bool:
    """Whether the repeats of a cell differ by much."""
    return bool(cell.spread and cell.median and (cell.spread[1] - cell.spread[0]) / cell.median > SPREAD)


def counted(words: Sequence[str]) -> str:
    """Count the claims by what came of them."""
    known = (verdicts.HOLDS, verdicts.IN_PART, verdicts.FAILS, verdicts.NOT_TESTABLE)
    parts = [f"{words.count(word)} {plural(word, words.count(word))}" for word in known if word in words]
    total = sum(word in known for word in words)
    return f"Of {total} claims checked: {', '.join(parts)}." if total > 1 else ""


def plural(word: str, count: int) -> str:
    """Return a finding's word as it follows a number."""
    if count == 1 or not word.startswith(("holds", "does")):
        return word
    return word.replace("holds", "hold").replace("does not", "do not")
