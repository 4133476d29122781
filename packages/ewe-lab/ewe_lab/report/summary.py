"""Sentences for students, made of figures: which server wins, by how much, why, and which figures to doubt."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ewe_lab.bench import figures, verdicts
from ewe_lab.bench.disturbance import left_out_sentence, lost_rows, lost_rows_clause, without_disturbed
from ewe_lab.bench.experiment import Experiment
from ewe_lab.bench.results import Cell, ExperimentTable, Results
from ewe_lab.bench.verdicts import FigureRange, Finding, Winner, with_capital
from ewe_lab.experiments.catalog import CATALOG, CHECKS

COMPARE = "compare"  # id of a table that no experiment describes
DOUBTFUL_FOREIGN_SHARE = 0.1  # of the server's core: if other programs had more, the page says so
MAX_NAMED_SERVERS = 4  # the most servers that a note names; of more servers it gives the number
MIN_COST_RATIO = 1.5  # of two costs that a sentence compares
MIN_RANKED_MODELS = 3  # measured at a setting; one with fewer models does not count for the ranking
MAX_SPREAD_SHARE = 0.2  # repeats that differ by more than this share are doubtful
MODEL_SENTENCES = {  # how a model works, in one sentence beside its figures
    "serial": "one connection at a time: all other clients wait, also while the client is silent",
    "fork": "a new process for each connection: an expensive start, then no client waits for another",
    "prefork": "processes made beforehand: cheap for each connection, but no more at once than there are",
    "thread": "a thread for each connection: cheap to start, memory for each, one interpreter lock for all",
    "pool": "a few threads that leave a client which keeps them waiting, and go on with it later",
    "pool-2006": "a few threads, each kept by its client to the end: a silent client keeps one busy",
    "asyncio": "one thread and an event loop: an idle connection costs memory only",
}


def finding_of(table: ExperimentTable, experiment: Experiment | None) -> Finding:
    """Return the finding on a table's claim: from the experiment's check if it has one, else from the ratios."""
    check = CHECKS.get(table.id)
    if table.skipped or not any(cell.samples for cell in table.cells):
        return verdicts.finding(table, experiment)
    decided_apart = verdicts.is_timed(experiment) and not verdicts.other_programs_clause(table)
    quiet = without_disturbed(table) if decided_apart else table
    # A check may need each row: it does not judge the rows that remain
    if check is not None and quiet is not table and lost_rows(table):
        return no_verdict(lost_rows_clause(table))
    found = check(quiet) if check is not None else verdicts.finding(table, experiment)
    return finding_with_doubts(found, table, experiment, checked=check is not None)


def no_verdict(clause: str) -> Finding:
    """Return the finding that there is no verdict. clause: what other programs had."""
    return Finding(verdicts.NO_VERDICT, f"{with_capital(clause)}. Run it again on a quiet machine.")


def finding_with_doubts(
    found: Finding, table: ExperimentTable, experiment: Experiment | None, *, checked: bool
) -> Finding:
    """Return a finding with the reasons to doubt it, or no verdict in its place. All verdicts pass this function.

    No verdict is given beside other programs, unless they cannot change it. Each verdict names the spread of the
    repeats. checked: the finding is that of the experiment's own check.
    """
    other_programs, timed = verdicts.other_programs_clause(table), verdicts.is_timed(experiment)
    if other_programs and timed:
        return finding_beside_others(found, table, other_programs, checked=checked)
    if timed and found.word == verdicts.NOT_TESTABLE and lost_rows(table):
        return no_verdict(lost_rows_clause(table))
    if found.word not in verdicts.JUDGED:
        return found
    if table.interrupted:  # the rows that are missing might have another order
        return Finding(
            verdicts.NO_VERDICT, f"The experiment has not run to its end. Until then: {found.sentence}"
        )
    # The figures that were judged: finding_of() has judged a claim about times without the disturbed ones
    judged = without_disturbed(table) if timed else table
    doubts = (
        left_out_sentence(table) if timed else "",
        f"{with_capital(other_programs)}; this claim is not about times." if other_programs else "",
        spread_sentence(judged) if timed or any(len(cell.values) > 1 for cell in judged.cells) else "",
        lacking_figures_sentence(judged) if checked else "",
        failed_repeats_sentence(judged),
        client_limited_sentence(judged) if checked else "",
        "It is not known how much of the cores other programs had."
        if timed and judged.foreign is None
        else "",
    )
    return Finding(found.word, " ".join(filter(None, (found.sentence, *doubts))))


def finding_beside_others(
    found: Finding, table: ExperimentTable, other_programs: str, *, checked: bool
) -> Finding:
    """Return that there is no verdict beside other programs; the finding itself if it judges no figure.

    other_programs: what they had, as a clause. checked: the finding is that of the experiment's own check.
    """
    if not checked and all(cell.paper is None for cell in table.cells):
        return found
    crowded = no_verdict(other_programs)
    # A lack that the check names, such as of hardware, may be there on a quiet machine too
    lack = f" {found.sentence}" if checked and found.word == verdicts.NOT_TESTABLE else ""
    return Finding(crowded.word, crowded.sentence + lack)


def lacking_figures_sentence(table: ExperimentTable) -> str:
    """Say how many rows lack a figure; "" if none does.

    A check judges the rows that have figures. A claim about each model is not proven by the others.
    """
    failed = [cell for cell in table.cells if cell.failure and not cell.samples and not cell.line]
    if not failed:
        return ""
    rows = sum(not cell.line for cell in table.cells)
    lack = "lacks" if len(failed) == 1 else "lack"
    return f"{len(failed)} of {rows} rows {lack} a figure ({failed[0].server}: {failed[0].failure})."


def failed_repeats_sentence(table: ExperimentTable) -> str:
    """Say in how many rows a repeat failed after others had succeeded; "" if in none.

    The figure of such a row is that of the other repeats. A server that dies under the load, or loses its clients,
    has a good figure otherwise.
    """
    failed = [cell for cell in table.cells if cell.failure and cell.samples and not cell.line]
    if not failed:
        return ""
    rows = sum(not cell.line for cell in table.cells)
    return f"In {len(failed)} of {rows} rows a repeat failed ({failed[0].server}: {failed[0].failure})."


def client_limited_sentence(table: ExperimentTable) -> str:
    """Say in how many rows the load generator was the limit; "" if in none."""
    measured = [cell for cell in table.cells if cell.samples and not cell.line]
    limited = [cell for cell in measured if verdicts.is_client_limited(cell)]
    if not limited:
        return ""
    return (
        f"In {len(limited)} of {len(measured)} rows the load generator was the limit: their rates are lower"
        " bounds, and their times are not the server's alone."
    )


def spread_sentence(table: ExperimentTable) -> str:
    """Say by how much the repeats of a figure differ."""
    found = [
        (max(cell.values) - min(cell.values)) / cell.median
        for cell in table.cells
        if not cell.line and len(cell.values) > 1 and cell.median
    ]
    if not found:
        repeated = any(len(cell.values) > 1 for cell in table.cells)
        return "" if repeated else "Measured once: the spread is not known."
    half, greatest = figures.percent_text(statistics.median(found)), figures.percent_text(max(found))
    return f"The repeats of a figure differ by {half} in the median, by {greatest} at most."


def sentences(table: ExperimentTable) -> list[str]:
    """Say for each column which server wins. If a column has several x, describe the last one only."""
    found = []
    lost = lost_rows_clause(table)
    cells_to_compare = table.cells if lost else without_disturbed(table).cells
    by_group = list(verdicts.distinct_groups(cells_to_compare).items())
    # By column; a later x replaces an earlier one
    last_group: dict[str, tuple[float | None, list[Cell]]] = {
        column: (x, cells) for (column, x), cells in by_group
    }
    for column, (x, cells) in last_group.items():
        setting = ", ".join(filter(None, (column, f"at {figures.number_text(x)}" if x is not None else "")))
        parts = outcomes(cells)
        if reason := cpu_time_sentence(cells):
            parts.append(reason)
        if setting and parts:
            found.append(f"{setting}: {'; '.join(parts)}.")
        else:
            found += [f"{with_capital(part)}." for part in parts]
    if found and (other_programs := verdicts.other_programs_clause(table) or lost):
        return [f"No winner is named: {other_programs}."]
    return found


def outcomes(cells: Sequence[Cell]) -> list[str]:
    """Say which server wins by each figure, and which servers lost requests. [] if no load was measured."""
    if any(cell.value.startswith("extra.") for cell in cells):
        return []  # the figure of such a table does not come from a load
    found = []
    losers = [cell for cell in cells if verdicts.has_lost_requests(cell)]
    if losers:
        names = join_names(
            [f"{cell.server} ({figures.percent_text(verdicts.greatest_lost_share(cell))})" for cell in losers]
        )
        times = "their times and costs" if losers[1:] else "its times and cost"
        found.append(f"requests were lost by {names}: {times} are those of the few that were served")
        reliable = [cell.server for cell in cells if cell.samples and not verdicts.has_lost_requests(cell)]
        if len(reliable) == 1:
            found.append(f"only {reliable[0]} answered almost every request")
    return found + [outcome_of(winner) for winner in verdicts.winners(cells)]


class FigureWords(NamedTuple):
    """The words of a figure in a sentence. better: `more` or `less`."""

    title: str
    better: str


FIGURES = {  # by the name of the figure
    "rate": FigureWords("replies a second", "more"),
    "micros": FigureWords("server CPU for a reply", "less"),
    "usage.memory": FigureWords("memory", "less"),
    "service.p99": FigureWords("p99 of the service time", "less"),
    "response.p99": FigureWords("p99 of the response time", "less"),
}


def outcome_of(winner: Winner) -> str:
    """Say which server wins by one figure and by how much, or which servers are level.

    A difference of a factor of 2 or more is given as a factor, a smaller one in percent.
    """
    title, better_word = FIGURES[winner.name]
    if not winner.server:
        names = join_names([each.server for each in winner.level])
        values = sorted(each.value for each in winner.level)
        low, high = (figure_with_unit(winner.name, value) for value in (values[0], values[-1]))
        if low == high:
            return f"{title}: {names} are level ({low})"
        return f"{title}: no winner among {names}; the difference ({low} to {high}) may be chance"
    best, other = winner.best, winner.next
    assert other is not None
    summary = f"{title}: {best.server} is first with {figure_with_unit(winner.name, best.value)}"
    times = max(best.value, other.value) / min(best.value, other.value)
    if times >= 2:
        if better_word == "more":
            return f"{summary}, {figures.ratio_text(times)} times the figure of {other.server}, the next"
        return f"{summary}; {other.server}, the next, has {figures.ratio_text(times)} times that"
    percent = figures.percent_text(abs(best.value - other.value) / other.value)
    return f"{summary}, {percent} {better_word} than {other.server}, the next"


def cpu_time_sentence(cells: Sequence[Cell]) -> str:
    """Return a sentence on the greatest difference of CPU time for a reply, and on other costs; "" without one.

    A reply may cost more if the kernel changes the running thread more often for it, if threads wait for the core
    longer, so that their data leave its caches, if there are more processes and threads, and if they need more
    memory. The sentence names only figures that differ by half or more, and first those of which the dearer server
    has more: only these can be a reason.
    """
    ranked = [
        (each, cell)
        for cell in cells
        if not verdicts.has_lost_requests(cell)
        and (each := verdicts.figure_range(cell, "micros"))
        and each.value > 0
    ]
    if len(ranked) < 2:
        return ""
    (least, cheap_cell), (most, dear_cell) = (
        end(ranked, key=lambda pair: pair[0].value) for end in (min, max)
    )
    if least.is_level_with(most):
        return ""
    more, less = differing_costs(dear_cell, cheap_cell)
    if not more and not less:
        return ""
    reason = (
        f"{most.server} has more {join_names(more)}" if more else "none of the figures beside it is a reason"
    )
    contrary = f"; lower are its {join_names(less)}, which cannot be the reason" if less else ""
    return (
        f"The greatest difference is that of {most.server} and {least.server} "
        f"({figure_with_unit('micros', most.value)} and "
        f"{figure_with_unit('micros', least.value)} of CPU for a reply). "
        f"Measured beside it: {reason}{contrary}"
    )


def differing_costs(dear_cell: Cell, cheap_cell: Cell) -> tuple[list[str], list[str]]:
    """Return the other costs that differ by half or more, in words: those that are greater, those that are less."""
    more: list[str] = []
    less: list[str] = []
    for cost, dear, cheap in zip(
        OTHER_COSTS, other_costs_of(dear_cell), other_costs_of(cheap_cell), strict=True
    ):
        if dear is None or cheap is None or dear == cheap:
            continue
        if max(dear, cheap) >= MIN_COST_RATIO * min(dear, cheap):
            text = f"{cost.title} ({other_cost_text(dear, cost)} against {other_cost_text(cheap, cost)})"
            (more if dear > cheap else less).append(text)
    return more, less


class OtherCost(NamedTuple):
    """A figure beside the CPU time. title: in a sentence. kind: `time`, `size`, or "" for a count."""

    title: str
    kind: str = ""


OTHER_COSTS = (
    OtherCost("context switches for a reply"),
    OtherCost("time of waiting for a core for a reply", "time"),
    OtherCost("threads at the peak"),
    OtherCost("processes at the peak"),
    OtherCost("memory at the peak", "size"),
)


def other_costs_of(cell: Cell) -> list[float | None]:
    """Return the figures of OTHER_COSTS, from the middle sample of a cell; None for one that was not measured."""
    sample = figures.middle_sample(cell)
    usage = sample.usage if sample else None
    if sample is None or usage is None:
        return [None] * len(OTHER_COSTS)
    switches = wait_s = None
    if usage.voluntary is not None and usage.involuntary is not None and sample.replies:
        switches = (usage.voluntary + usage.involuntary) / sample.replies
    if usage.wait_s is not None and sample.replies:
        wait_s = usage.wait_s / sample.replies
    return [switches, wait_s, usage.threads, usage.processes, usage.memory]


def other_cost_text(value: float, cost: OtherCost) -> str:
    """Return a figure of OTHER_COSTS as text."""
    if cost.kind == "time":
        return figures.time_text(value)
    if cost.kind == "size":
        return figures.size_text(value)
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def figure_with_unit(name: str, value: float) -> str:
    """Return a figure with its unit, for a sentence."""
    return figures.named_figure_text(name, value) + (" µs" if name == "micros" else "")


def join_names(names: Sequence[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


@dataclass
class ModelSummary:
    """The figures of one model of ewe over all settings at which at least MIN_RANKED_MODELS were measured.

    settings: their number. how: a sentence on how the model works.
    """

    model: str
    settings: int
    cpu: FigureRange | None  # geometric mean of its CPU time for a reply, divided by that of the best model
    rate: FigureRange | None  # geometric mean of its rate, divided by that of the best model
    lost: float  # the greatest share of sessions or requests that ended in an error in any setting
    memory: float | None  # median of the peaks
    how: str
    crowded: bool = False  # other programs had much of the cores in some setting

    @property
    def starved(self) -> bool:
        """Whether the model lost too many requests in some setting, so that its cost means little."""
        return self.lost > verdicts.MAX_LOST_SHARE


@dataclass
class ModelFigures:
    """The figures of one model, one for each setting. Only `lost` has a figure for every setting.

    cpu, rate: the CPU time for a reply and the rate, divided by those of the best model of the setting. lost: the
    greatest share of the requests, from 0 to 1. memory: bytes at the peak.
    crowded: other programs had much of the cores in some setting.
    """

    cpu: list[FigureRange] = field(default_factory=list)
    rate: list[FigureRange] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    crowded: bool = False

    def summary(self, model: str) -> ModelSummary:
        """Return what the figures say of the model, which has this name."""
        return ModelSummary(
            model=model,
            settings=len(self.lost),
            cpu=geometric_mean(self.cpu),
            rate=geometric_mean(self.rate),
            lost=max(self.lost),
            memory=statistics.median(self.memory) if self.memory else None,
            how=MODEL_SENTENCES.get(model, ""),
            crowded=self.crowded,
        )


def standings(results: Results) -> list[ModelSummary]:
    """Rank ewe's models by cost over all settings with MIN_RANKED_MODELS; models that lost requests come last.

    In each setting a model's figure is divided by that of the best model, so that fast and slow settings count
    alike. The geometric mean of these ratios is the model's figure.
    """
    by_model: defaultdict[str, ModelFigures] = defaultdict(ModelFigures)
    for table in results.tables:
        disturbed_rows = {id(cell) for cell in lost_rows(table)}
        beside_others = bool(verdicts.other_programs_clause(table))
        for cells in ranked_settings(table):
            for cell in cells:
                figures_of_model = by_model[cell.server]
                figures_of_model.crowded |= beside_others or id(cell) in disturbed_rows
                figures_of_model.lost.append(verdicts.greatest_lost_share(cell))
                if (peak := figures.figure_of_cell(cell, "usage.memory")) is not None:
                    figures_of_model.memory.append(peak)
            for model, ratio in ratios_to_best(cells, "micros", min).items():
                by_model[model].cpu.append(ratio)
            for model, ratio in ratios_to_best(cells, "rate", max).items():
                by_model[model].rate.append(ratio)
    found = [of_model.summary(model) for model, of_model in by_model.items()]
    return sorted(found, key=lambda each: (each.starved, each.cpu.value if each.cpu else math.inf))


def ranked_settings(table: ExperimentTable) -> Iterator[list[Cell]]:
    """Yield the cells with the rates of ewe's models, for each setting at which MIN_RANKED_MODELS were measured."""
    for group in verdicts.distinct_groups(table.cells).values():
        ours = [cell for cell in group if is_model(table, cell) and cell.value == "rate" and cell.median]
        if len({cell.server for cell in ours}) >= MIN_RANKED_MODELS:
            yield ours


def ratios_to_best(
    cells: Sequence[Cell], name: str, choose_best: Callable[..., float]
) -> dict[str, FigureRange]:
    """Return the figure of each model of a setting, divided by that of the best one; without models that lack it.

    name: of the figure, `micros` or `rate`. choose_best: min or max. The best model is the best of those that lost
    at most 1 % of their requests.
    """
    values = {
        cell.server: value
        for cell in cells
        if (value := verdicts.figure_range(cell, name)) and value.value > 0
    }
    reliable = [
        values[cell.server].value
        for cell in cells
        if cell.server in values and not verdicts.has_lost_requests(cell)
    ]
    best_value = choose_best(reliable or [each.value for each in values.values()], default=0.0)
    return {model: value.divided_by(best_value) for model, value in values.items()}


def is_model(table: ExperimentTable, cell: Cell) -> bool:
    """Whether a cell is of a concurrency model: of MODEL_SENTENCES, or one that the user of `compare` named."""
    # Such a model may have options, and so another name
    return cell.server in MODEL_SENTENCES or (table.id == COMPARE and cell.command.startswith("ewe --model "))


def geometric_mean(values: Sequence[FigureRange] | None) -> FigureRange | None:
    """Return the geometric mean: twice the cost and half the cost cancel out."""
    if not values:
        return None
    return FigureRange(
        values[0].server,
        value=statistics.geometric_mean([each.value for each in values]),
        low=statistics.geometric_mean([each.low or each.value for each in values]),  # it takes no 0
        high=statistics.geometric_mean([each.high for each in values]),
    )


def first_model_leads(ranked: Sequence[ModelSummary]) -> bool:
    """Whether the first model is cheaper than each other by more than chance. Not known beside other programs."""
    reliable = [each.cpu for each in ranked if not each.starved and each.cpu is not None]
    if not reliable or len(ranked) < 2 or any(each.crowded for each in ranked):
        return False
    first, *others = reliable
    return not any(first.is_level_with(other) for other in others)


def headline(results: Results, ranked: Sequence[ModelSummary]) -> list[str]:
    """Return the main results in a few sentences."""
    found = []
    for table in results.tables:
        if table.id not in CATALOG:
            found += sentences(table)
    settings = max((each.settings for each in ranked), default=0)
    if settings < 2:  # the sentences above describe it already
        return found
    reliable = {each.model: each.cpu for each in ranked if not each.starved and each.cpu is not None}
    if any(each.crowded for each in ranked):
        found.append("No model is called the cheapest: other programs had much of the cores.")
    elif len(reliable) >= 2:
        first, *_, last = ranges = list(reliable.values())
        level = list(reliable)[: verdicts.level_with_first(ranges)]
        if len(level) == len(reliable):
            found.append(
                "The models that answered almost every request need about the same CPU time for a reply."
            )
        else:
            found.append(
                f"Of the models that answered almost every request, {join_names(level)} "
                f"{'needs' if len(level) == 1 else 'need'} the least CPU time for a reply, {last.server} the most: "
                f"{figures.ratio_text(last.value / first.value)} times as much, over {settings} settings."
            )
    if losers := [
        f"{each.model} (up to {figures.percent_text(each.lost)})" for each in ranked if each.starved
    ]:
        found.append(f"Requests were lost, in one setting or another, by {join_names(losers)}.")
    return found


def remarks(table: ExperimentTable) -> list[str]:
    """Return the notes of a table, then those of its rows."""
    by_note: dict[str, list[str]] = {}
    for cell in table.cells:
        sample = figures.middle_sample(cell)
        notes = [*([cell.remark] if cell.remark else []), *(sample.notes if sample else ())]
        if sample and not cell.line and verdicts.has_lost_requests(cell):
            lost = verdicts.greatest_lost_share(cell)
            if lost != sample.lost:
                share = figures.percent_text(lost)
                notes.append(f"it lost {share} of the requests in another repeat than the one that is shown")
        for note in notes:
            by_note.setdefault(note, []).append(cell.server)
    found = []
    for note, servers in by_note.items():
        names = list(dict.fromkeys(servers))
        found.append(
            f"{join_names(names) if len(names) <= MAX_NAMED_SERVERS else f'{len(names)} servers'}: {note}."
        )
    return [*table.notes, *found]


def reasons_to_doubt(results: Results) -> list[str]:
    """Return the reasons to doubt the figures of the whole page, a sentence each.

    Only cells that were measured count. A cell with a name in `line` has the samples of another cell of its
    setting, so it is left out.
    """
    cells = [cell for table in results.tables for cell in table.cells if cell.samples and not cell.line]
    found = [*doubts_about_rows(cells), *doubts_about_runs(results.tables)]
    return [*found, doubt_about_machine(cells)] if cells else found


def doubts_about_rows(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield a sentence for each reason to doubt measured cells."""
    if busy := sum(cell.was_client_limited for cell in cells):
        yield (
            f"In {busy} of {len(cells)} rows the load generator used more than 70 % of its core: those "
            "figures may be the generator's, not the server's. These rows are marked “client-limited”."
        )
    if crowded := sum(foreign_share(cell) > DOUBTFUL_FOREIGN_SHARE for cell in cells):
        yield (
            f"In {crowded} of {len(cells)} rows other programs had more than a tenth of the server's core: "
            "rates and times are worse than on a quiet machine, and the first place may be chance."
        )
    if any(sample.service and not sample.response for cell in cells for sample in cell.samples):
        yield (
            "Where there is no response time, users waited for each answer before they asked again. A server that "
            "stalls then gets fewer requests, and its times look better than the times that its users noticed."
        )
    if loose := sum(has_wide_spread(cell) for cell in cells):
        yield f"In {loose} rows the repeats differ by more than 20 %: the spread is printed with them."
    if cells and all(len(cell.samples) == 1 for cell in cells):
        yield "Nothing was repeated, so no spread is known: a difference below 20 % may be chance."


def doubts_about_runs(tables: Sequence[ExperimentTable]) -> Iterator[str]:
    """Yield a sentence for each reason to doubt the runs."""
    if any(table.quick for table in tables):
        yield "Quick runs are shorter than the document's, and measured once. A run with --full takes longer."
    if any(table.interrupted for table in tables):
        yield "An experiment has not run to its end. The page shows its results until then."
    if failed := sum(bool(cell.failure) for table in tables for cell in table.cells):
        yield f"{failed} rows have no figure, or not one of every repeat; each row says why."


def doubt_about_machine(cells: Sequence[Cell]) -> str:
    """Return the reason to doubt the place of the servers. cells: at least one measured cell."""
    if any(sample.elsewhere for cell in cells for sample in cell.samples):
        return "A target ran already: its settings, the programs beside it and the network to it are not the lab's."
    return "Everything ran on one machine over its loopback: no cable, no distance, caches shared."


def foreign_share(cell: Cell) -> float:
    """Return the share of the server's core that other programs had during the middle sample; 0 if unknown."""
    sample = figures.middle_sample(cell)
    return (sample.foreign_on_server_core or 0.0) if sample else 0.0


def has_wide_spread(cell: Cell) -> bool:
    """Whether the repeats of a cell differ by more than the share MAX_SPREAD_SHARE."""
    return bool(
        cell.spread and cell.median and (cell.spread[1] - cell.spread[0]) / cell.median > MAX_SPREAD_SHARE
    )


def count_findings(words: Sequence[str]) -> str:
    """Return a sentence that counts the claims by their finding: `Of 3 claims checked: 2 hold, 1 does not hold.`

    words: the findings, a word of verdicts.py each. NO_CLAIM does not count. Return "" for fewer than two claims.
    """
    known = (*verdicts.JUDGED, verdicts.NOT_TESTABLE, verdicts.NO_VERDICT)
    parts = [f"{words.count(word)} {plural(word, words.count(word))}" for word in known if word in words]
    total = sum(word in known for word in words)
    return f"Of {total} claims checked: {', '.join(parts)}." if total > 1 else ""


def plural(word: str, count: int) -> str:
    """Return a finding's word in the singular or plural: 1 holds, 2 hold."""
    if count == 1 or not word.startswith(("holds", "does")):
        return word
    return word.replace("holds", "hold").replace("does not", "do not")
