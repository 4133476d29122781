"""The report: one HTML page without external files, and the figures as JSON and CSV beside it.

    Results ──┬─▶ results.json    everything, to be read again: `ewe-lab report` joins several runs
              ├─▶ results.csv     a line for each sample, for a spreadsheet
              └─▶ report.html     a Section for each table: verdicts ─▶ the finding on the claim
                                                            charts.draw() ─▶ pictures, each with its figures
                                                            summary ─▶ sentences, and the reasons to doubt them

A page for students has an order: the claim and its finding come first, then the pictures, then all figures. A table
without printed figures has no claim; sentences then say which server wins (summary.sentences()).

Possible failures: a figure that is a lower bound, or that has too few samples, looks like any other. Each such
figure has a mark, and the legend under the table (Details) explains only the marks that occur.

Read next: verdicts.py of the bench, for the words of a finding.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jinja2

from ewe_lab.bench import figures, verdicts
from ewe_lab.bench.experiment import Chart, Experiment
from ewe_lab.bench.results import (
    ERRORS,
    Cell,
    ExperimentTable,
    Results,
    figure,
    save,
    write_and_rename,
)
from ewe_lab.bench.verdicts import Finding, JudgedCell
from ewe_lab.experiments.catalog import CATALOG, CHECKS, PUBLISHED
from ewe_lab.report import phases, summary, terminal
from ewe_lab.report.charts import draw
from ewe_lab.report.lines import DrawnChart

COMPARE = (  # the charts of a table that no experiment describes
    Chart("bars", "Replies in a second", "rate"),
    Chart("bars", "CPU time of the server for a reply, in µs", "micros"),
    Chart("bars", "Service time, 99 of 100 requests are answered faster", "service.p99"),
    Chart("bars", "Response time from when a request was due, 99 of 100 are answered faster", "response.p99"),
    Chart("bars", "Memory at its peak", "usage.memory"),
    Chart("errors", "Lost requests, by kind of error"),
    Chart("timeline", "Second by second"),
)


# ---------------------------------------------------------------------------------------------------------
# Files


def write(results: Results, directory: Path) -> list[Path]:
    """Write report.html, results.json and results.csv; return their paths. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    page, data, sheet = (directory / name for name in ("report.html", "results.json", "results.csv"))
    save(results, data)
    write_and_rename(sheet, csv_text(results))
    write_and_rename(page, html(results))
    return [page, data, sheet]


CSV_COLUMNS = (
    "table", "column", "x", "server", "repeat", "tool", "seconds", "requests", "replies", "connections",
    "rate", *(f"{kind}.{name}" for kind in ("service", "response") for name in ("p50", "p90", "p95", "p99", "max")),
    "client", "usage.cpu", "micros", "usage.memory", "usage.threads", "usage.processes", "usage.descriptors",
    *(f"errors.{kind}" for kind in ERRORS), "value", "figure", "unit", "paper", "paper_server", "paper_ratio",
    "our_ratio", "verdict", "failure", "extra",
)  # fmt: skip


def csv_text(results: Results) -> str:
    """Return the CSV file: a line for each sample, and one for a cell without a sample.

    Times are in seconds, sizes in bytes.
    """
    file = io.StringIO(newline="")
    sheet = csv.DictWriter(file, CSV_COLUMNS)
    sheet.writeheader()
    for table in results.tables:
        for judged in verdicts.judge(table, CATALOG.get(table.id)):
            sheet.writerows(csv_rows(table, judged))
    return file.getvalue()


def csv_rows(table: ExperimentTable, judged: JudgedCell) -> Iterator[dict[str, object]]:
    """Yield a line of the CSV file for each sample of a cell; a cell without samples has one, with its failure."""
    cell = judged.cell
    for repeat, sample in enumerate(cell.samples or [None], 1):
        row: dict[str, object] = {
            "table": table.id, "column": cell.column, "x": cell.x, "server": cell.server, "repeat": repeat,
            "value": cell.value, "unit": cell.unit, "paper": cell.paper, "paper_server": cell.paper_server,
            "paper_ratio": judged.paper, "our_ratio": judged.ours, "verdict": judged.verdict,
            "failure": cell.failure,
        }  # fmt: skip
        if sample is not None:
            for name in CSV_COLUMNS:
                if name in row or not is_figure_of_sample(name):
                    continue
                if (value := figure(sample, name)) is not None:
                    row[name] = value
            row["tool"], row["figure"] = sample.tool, figure(sample, cell.value)
            row |= {f"errors.{kind}": sample.errors.get(kind, 0) for kind in ERRORS}
            row["extra"] = " ".join(f"{name}={value:g}" for name, value in sample.extra.items())
        yield row


def is_figure_of_sample(name: str) -> bool:
    """Whether figure() may read a column of the CSV file from a sample: it is a number, by this name."""
    return not name.startswith("errors.") and name not in ("tool", "figure", "extra")


# ---------------------------------------------------------------------------------------------------------
# The sections of the page


@dataclass
class Section:
    """One table of the page, with its verdicts, charts and notes."""

    table: ExperimentTable
    experiment: Experiment | None
    judged: list[JudgedCell]
    finding: Finding
    since: str
    drawn: list[tuple[Chart, DrawnChart]]
    published: Sequence[Cell] = ()
    sentences: list[str] = field(default_factory=list)

    @property
    def measured(self) -> bool:
        return any(each.cell.samples for each in self.judged)

    @property
    def errors(self) -> bool:
        """Whether the document or our run has errors to show."""
        return any(" of " in each.cell.paper_note or figures.all_errors(each.cell) for each in self.judged)

    @property
    def remarks(self) -> list[str]:
        return summary.remarks(self.table)

    @property
    def compares(self) -> bool:
        return any(each.cell.paper is not None for each in self.judged)

    @property
    def title(self) -> str:
        return self.table.title or (self.experiment.title if self.experiment else "") or self.table.id


def section(table: ExperimentTable, number: int) -> Section:
    """Return the section of a table. number: of the table, so that the names of charts are unique in the page."""
    experiment = CATALOG.get(table.id)
    judged = verdicts.judge(table, experiment)
    drawn = [
        (chart, picture)
        for index, chart in enumerate(experiment.charts if experiment else COMPARE)
        if (picture := draw(chart, table, experiment, f"chart-{number}-{index}")).svg
    ]
    found = Section(
        table=table,
        experiment=experiment,
        judged=judged,
        finding=summary.finding_of(table, experiment),
        since=verdicts.change_since_document(table, experiment),
        drawn=drawn,
        # The printed figures of an experiment that the lab cannot run yet
        published=PUBLISHED.get(table.id, ()),
    )
    # Without a claim to judge, by ratios or by a check of the experiment, sentences say which server wins
    if experiment is None or (not found.compares and table.id not in CHECKS):
        found.sentences = summary.sentences(table)
    return found


# ---------------------------------------------------------------------------------------------------------
# The page


@dataclass
class Matrix:
    """A printed table beside ours, at one setting: a row for each printed line, a column for each server.

    reasons: why some figures are not testable, each reason once.
    """

    setting: str
    servers: list[str]
    rows: list[tuple[str, list[JudgedCell | None]]]
    reasons: list[str]


def matrices(found: Section) -> list[Matrix]:
    """Return a matrix for each setting if the document's table has several lines, else []."""
    if not any(each.cell.line for each in found.judged):
        return []
    found_matrices = []
    for setting in dict.fromkeys(each.cell.setting for each in found.judged):
        inside = [
            each for each in found.judged if each.cell.setting == setting and each.cell.paper is not None
        ]
        servers = list(dict.fromkeys(each.cell.server for each in inside))
        by_row = {(each.cell.line, each.cell.server): each for each in inside}
        rows = [
            (
                line or figures.figure_title(inside[0].cell.value),
                [by_row.get((line, server)) for server in servers],
            )
            for line in dict.fromkeys(each.cell.line for each in inside)
        ]
        reasons = [f"{each.cell.server}: {each.reason}" for each in inside if each.reason]
        found_matrices.append(
            Matrix(setting=setting, servers=servers, rows=rows, reasons=list(dict.fromkeys(reasons)))
        )
    return found_matrices


def ratios(each: JudgedCell) -> str:
    """Return the document's ratio to the reference and ours, as text; for losses, the two lost shares."""
    figure_as_text = figures.percent_text if each.cell.value == "lost" else figures.ratio_text
    return f"{figure_as_text(each.paper)} → {figure_as_text(each.ours)}"


def printed_and_ours(cell: Cell) -> str:
    """Return a printed figure and ours as text, each in its unit; for losses, the errors by kind."""
    if cell.value == "lost":
        printed = cell.paper_note.partition(" of ")[0]
        return f"{printed} → {figures.errors_text(figures.all_errors(cell)) if cell.samples else figures.NO_FIGURE}"
    printed, ours = figures.number_text(cell.paper), cell_text_with_unit(cell)
    # One unit for both figures, behind the second
    unit = "" if ours.endswith(f" {cell.unit}") else cell.unit
    return f"{f'{printed} {unit}'.rstrip()} → {ours}"


@dataclass
class Details:
    """A table of all figures. words: the titles of the text columns; legend: the meaning of marks."""

    head: list[str]
    rows: list[list[str]]
    legend: list[str]
    words = ("setting", "errors", "load")


def details(found: Section) -> Details:
    """Return all figures of a table, without empty columns, and without the load if all rows have the same."""
    rows = [figures_row(each.cell, found.experiment) for each in found.judged if not each.cell.line]
    empty = ("", figures.NO_FIGURE)
    head = [name for name in rows[0] if any(each[name] not in empty for each in rows)]
    loads = {each["load"] for each in rows}
    legend = [UNITS_NOTE]
    if len(loads) == 1:
        head.remove("load")
        legend.append(f"Load: {next(iter(loads))}.")
    if any("*" in each["replies/s"] for each in rows):
        legend.append(terminal.CLIENT_LIMITED_NOTE)
    if any(figures.AT_LEAST in value for each in rows for value in each.values()):
        legend.append(terminal.LOWER_BOUND_NOTE)
    if terminal.lacks_percentiles(found.table):
        legend.append(f"{terminal.FEW_REPLIES_NOTE}.")
    return Details(head, [[each[name] for name in head] for each in rows], legend)


def figures_row(cell: Cell, experiment: Experiment | None = None) -> dict[str, str]:
    """Return the row of a cell in the table of all figures, by the titles of the columns."""
    found, sample = terminal.row_texts(cell), figures.middle_sample(cell)
    setting = " ".join(filter(None, (cell.column, terminal.setting_text(cell.x, experiment))))
    own_figure = cell_text_with_unit(cell) if cell.value not in FIGURES_WITH_COLUMN else ""
    # Repeats that differ much are named, also those of a figure that has its own column
    if summary.has_wide_spread(cell) and cell.spread:
        own_figure = " ".join(
            (
                f"{figures.figure_title(cell.value)}:",
                cell_text(cell),
                "(" + " to ".join(figures.named_figure_text(cell.value, end) for end in cell.spread) + ")",
            )
        )
    counts = [found["thr"], found["proc"]]
    return {
        "server": cell.server,
        "setting": setting,
        "figure": own_figure,
        "replies/s": found["req/s"],
        "lost": found["lost"],
        **{title: found[title] for title in terminal.TITLES},
        "CPU µs": found["CPU µs"],
        "memory": found["memory"],
        "threads, processes": ", ".join(counts) if any(counts) else "",
        "generator": figures.percent_text(sample.client) if sample and sample.client is not None else "",
        "errors": found["errors"] or cell.failure or ("" if sample else "not measured"),
        "load": f"{cell.load} ({sample.tool})".lstrip() if sample and sample.tool else cell.load,
    }


FIGURES_WITH_COLUMN = (
    "rate",
    "micros",
    "service.p50",
    "service.p99",
    "response.p50",
    "response.p99",
    "usage.memory",
    "lost",
)


# Figures that are written without a unit. The unit of their cells is the one in which the document printed them
BARE_FIGURES = ("rate", "request_rate", "connection_rate", "kilobytes", "micros")
UNITS_NOTE = (
    "Times, sizes and shares have their unit in each cell: a column may reach from µs to s, from kB to GB."
)


def html(results: Results) -> str:
    """Return the whole page."""
    sections = [section(table, number) for number, table in enumerate(results.tables)]
    ranked = summary.standings(results)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ewe_lab.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals |= {
        "figures": figures,
        "verdicts": verdicts,
        "details": details,
        "matrices": matrices,
        "ratios": ratios,
        "printed_and_ours": printed_and_ours,
        "phases": phases,
        "zip": zip,
        "cell_text_with_unit": cell_text_with_unit,
        "units_note": UNITS_NOTE,
        "at": terminal.setting_text,
        "of": figures.figure_of_cell,
    }
    return environment.get_template("report.html.j2").render(
        results=results,
        run=[each for each in sections if each.measured],
        waiting=[each for each in sections if not each.measured],
        ranked=ranked,
        leads=summary.first_model_leads(ranked),
        headline=summary.headline(results, ranked),
        doubts=summary.reasons_to_doubt(results),
        counted=summary.count_findings(
            [each.finding.word for each in sections if each.experiment and each.measured]
        ),
        kinds=ERRORS,
    )


def cell_text(cell: Cell) -> str:
    """Return a cell's figure as tables show it, with the unit that it needs (templates call this function).

    A rate and the CPU time of a reply are numbers alone: the head of their column names their unit.
    """
    return figures.figure_text(cell)


def cell_text_with_unit(cell: Cell) -> str:
    """Return a cell's figure with its unit, for a column whose head has none (templates call this function)."""
    found = cell_text(cell)
    return f"{found} {cell.unit}" if cell.value in BARE_FIGURES and found != figures.NO_FIGURE else found


def text(table: ExperimentTable, experiment: Experiment | None) -> str:
    """Return a table for a terminal of 100 columns."""
    return terminal.text(table, experiment)
