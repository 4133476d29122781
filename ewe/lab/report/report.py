"""The report: one HTML page that needs nothing but itself, and the figures as JSON and CSV beside it."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jinja2

from ewe.lab import figures, summary, terminal, verdicts
from ewe.lab.charts import Drawn, draw
from ewe.lab.experiment import Chart, Experiment
from ewe.lab.experiments import CATALOG, CHECKS, PUBLISHED
from ewe.lab.results import ERRORS, Cell, Results, Table, save
from ewe.lab.verdicts import Finding, Judged

COMPARE = (  # what is drawn of a table that no experiment describes
    Chart("bars", "Replies in a second", "rate"),
    Chart("bars", "CPU time of the server for a reply, in µs", "micros"),
    Chart("bars", "Service time, 99 of 100 answers are faster", "service.p99"),
    Chart("bars", "Response time from when a request was due, 99 of 100 are faster", "response.p99"),
    Chart("bars", "Memory at its peak", "usage.memory"),
    Chart("errors", "Errors by kind"),
    Chart("timeline", "Second by second"),
)


# ---------------------------------------------------------------------------------------------------------
# Files


def write(results: Results, directory: Path) -> list[Path]:
    """Write report.html, results.json and results.csv; return their paths. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    page, data, sheet = (directory / name for name in ("report.html", "results.json", "results.csv"))
    save(results, data)
    replace(sheet, lambda path: write_csv(results, path))
    replace(page, lambda path: path.write_text(html(results), encoding="utf-8"))
    return [page, data, sheet]


def replace(path: Path, make: Callable[[Path], object]) -> None:
    """Write a file whole or not at all."""
    new = path.with_name(path.name + ".new")
    try:
        make(new)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


SHEET = (
    "table", "column", "x", "server", "repeat", "tool", "seconds", "requests", "replies", "connections",
    "rate", *(f"{kind}.{name}" for kind in ("service", "response") for name in ("p50", "p90", "p95", "p99", "max")),
    "client", "usage.cpu", "micros", "usage.memory", "usage.threads", "usage.processes", "usage.descriptors",
    *(f"errors.{kind}" for kind in ERRORS), "value", "figure", "unit", "paper", "paper_server", "paper_ratio",
    "our_ratio", "verdict", "failure", "extra",
)  # fmt: skip


def write_csv(results: Results, path: Path) -> None:
    """Write a line for each sample (a cell without one has a line too); times in seconds, sizes in bytes."""
    with path.open("w", newline="", encoding="utf-8") as file:
        sheet = csv.DictWriter(file, SHEET)
        sheet.writeheader()
        for table in results.tables:
            for each in verdicts.judge(table, CATALOG.get(table.id)):
                sheet.writerows(sheet_rows(table, each))


def sheet_rows(table: Table, each: Judged) -> Iterator[dict[str, object]]:
    """Yield the lines of a cell."""
    cell = each.cell
    for repeat, sample in enumerate(cell.samples or [None], 1):
        row: dict[str, object] = {
            "table": table.id, "column": cell.column, "x": cell.x, "server": cell.server, "repeat": repeat,
            "value": cell.value, "unit": cell.unit, "paper": cell.paper, "paper_server": cell.paper_server,
            "paper_ratio": each.paper, "our_ratio": each.ours, "verdict": each.verdict, "failure": cell.failure,
        }  # fmt: skip
        if sample is not None:
            for name in SHEET:
                if (
                    name not in row
                    and (value := figures.value_of(sample, name) if known(name) else None) is not None
                ):
                    row[name] = value
            row["tool"], row["figure"] = sample.tool, figures.value_of(sample, cell.value)
            row |= {f"errors.{kind}": sample.errors.get(kind, 0) for kind in ERRORS}
            row["extra"] = " ".join(f"{name}={value:g}" for name, value in sample.extra.items())
        yield row


def known(name: str) -> bool:
    """Whether a column of the sheet is a figure of a sample by that name."""
    return not name.startswith("errors.") and name not in ("tool", "figure", "extra")


# ---------------------------------------------------------------------------------------------------------
# What the page shows


@dataclass
class Section:
    """One table of the page, with all that stands around it."""

    table: Table
    experiment: Experiment | None
    judged: list[Judged]
    finding: Finding
    since: str
    drawn: list[tuple[Chart, Drawn]]
    published: Sequence[Cell] = ()
    sentences: list[str] = field(default_factory=list)

    @property
    def measured(self) -> bool:
        return any(each.cell.samples for each in self.judged)

    @property
    def errors(self) -> bool:
        """Whether there are errors to be shown, the document's or ours."""
        return any(" of " in each.cell.paper_note or figures.all_errors(each.cell) for each in self.judged)

    @property
    def compares(self) -> bool:
        return any(each.cell.paper is not None for each in self.judged)

    @property
    def title(self) -> str:
        return self.table.title or (self.experiment.title if self.experiment else "") or self.table.id


def section(table: Table, number: int) -> Section:
    """Work out what is shown of a table."""
    experiment = CATALOG.get(table.id)
    judged = verdicts.judge(table, experiment)
    drawn = [
        (chart, picture)
        for index, chart in enumerate(experiment.charts if experiment else COMPARE)
        if (picture := draw(chart, table, experiment, f"chart-{number}-{index}")).svg
    ]
    found = Section(
        table,
        experiment,
        judged,
        summary.finding_of(table, experiment),
        verdicts.since(table, experiment),
        drawn,
        PUBLISHED.get(table.id, ()),
    )
    if experiment is None or (not found.compares and table.id not in CHECKS):
        found.sentences = summary.sentences(table)
    return found


# ---------------------------------------------------------------------------------------------------------
# The page


def html(results: Results) -> str:
    """Return the whole page."""
    sections = [section(table, number) for number, table in enumerate(results.tables)]
    ranked = summary.standings(results)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ewe.lab", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals |= {
        "figures": figures,
        "verdicts": verdicts,
        "cell_text": cell_text,
        "of": figures.of_cell,
    }
    return environment.get_template("report.html.j2").render(
        results=results,
        run=[each for each in sections if each.measured],
        waiting=[each for each in sections if not each.measured],
        ranked=ranked,
        headline=summary.headline(results, ranked),
        doubts=summary.doubts(results),
        counted=summary.counted(
            [each.finding.word for each in sections if each.experiment and each.measured]
        ),
        kinds=ERRORS,
        loosely=summary.loosely,
    )


def cell_text(cell: Cell) -> str:
    """Return a cell's figure with its unit, as tables show it."""
    return figures.as_text(cell.value, cell.median, cell.unit)


def text(table: Table, experiment: Experiment | None) -> str:
    """Return a table for a terminal of 100 columns."""
    return terminal.text(table, experiment)
