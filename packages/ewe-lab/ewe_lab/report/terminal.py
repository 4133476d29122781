"""A table for a terminal of 100 columns.

A terminal has room for a dozen columns and no chart. It therefore shows each setting as a small table of servers,
without the columns that are empty for all of them, and the findings below:

    column, x                 server   req/s   p50   p99   CPU µs   memory ...     a row for each server
    ...                       the last MAX_GROUPS settings; the HTML report has all of them
    conclusions()             the finding on the claim, the winners, the reasons to doubt them

Read next: report.py, the report as a page.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from ewe_lab.bench import figures, verdicts
from ewe_lab.bench.experiment import Experiment
from ewe_lab.bench.results import SHARES, Cell, ExperimentTable, Sample, has_too_few_times, times_needed
from ewe_lab.report import phases, summary

TERMINAL_COLUMNS = 100
MAX_SENTENCES = 6  # sentences about the winners
MAX_SERVER_WIDTH = 24  # characters of a server's name
# The most groups in the table; if there are more, only the last ones are shown. Figure 4 of X-Switch has 15 points.
MAX_GROUPS = 15
RESPONSE_TIME_NOTE = "p50 due, p99 due: response time, counted from when a request was due"
TIMES = ("service.p50", "service.p99", "response.p50", "response.p99")
LOWER_BOUND_NOTE = (
    f"{figures.AT_LEAST}at least: requests that were never answered are counted with "
    "the time that they waited"
)
FEW_REPLIES_NOTE = "A percentile is printed from so many replies on: " + ", ".join(
    f"{name} {times_needed(name):,}" for name in SHARES
)
CLIENT_LIMITED_NOTE = "* client-limited: the load generator used more than 70 % of its core"


def text(table: ExperimentTable, experiment: Experiment | None) -> str:
    """Return a table with its findings. Times under "due" count from when a request was due.

    experiment: None if the lab has none of this id.
    """
    title = table.title or (experiment.title if experiment else "")
    out = [f"{table.id}  {title}".rstrip()]  # the lines
    if table.skipped:
        return "\n".join([*out, f"  not run: {table.skipped}"])
    charts = experiment.charts if experiment else ()
    # A terminal does not list the cells of a quiet chart
    unlisted = {column for chart in charts if chart.quiet for column in chart.columns}
    listed = [cell for cell in table.cells if cell.column not in unlisted]
    by_group = list(verdicts.distinct_groups(listed).items())
    if len(by_group) > MAX_GROUPS:
        out += ["", f"The last {MAX_GROUPS} of {len(by_group)} settings; the report has them all."]
    for (column, x), cells in by_group[-MAX_GROUPS:]:
        setting = ", ".join(filter(None, (column, setting_text(x, experiment))))
        out += ["", *([setting] if setting else []), *server_lines(cells)]
    if phased := phases.phase_rows(table):
        out += [
            "",
            "Phase by phase, times from when a request was due",
            *aligned_lines([list(phases.HEAD), *phased]),
        ]
    out += ["", *conclusions(table, experiment)]
    return "\n".join(short_line for line in out for short_line in wrap_line(line)).rstrip()


def setting_text(x: float | None, experiment: Experiment | None) -> str:
    """Return an x as a setting: with the title of the x axis, which is its unit; "" if there is no x."""
    if x is None:
        return ""
    unit = next((chart.x for chart in experiment.charts if chart.x), "") if experiment else ""
    return f"{figures.number_text(x)} {unit}".rstrip()


def conclusions(table: ExperimentTable, experiment: Experiment | None) -> Iterator[str]:
    """Yield the findings on the table, and the reasons to doubt them."""
    finding = summary.finding_of(table, experiment)
    if finding.word not in ("", verdicts.NO_CLAIM):
        yield f"{finding.word.upper()}: {finding.sentence}"
    if any(cell.paper is not None for cell in table.cells):
        yield verdicts.change_since_document(table, experiment)
    else:
        yield from summary.sentences(table)[-MAX_SENTENCES:]
    if any(sample.response for cell in table.cells for sample in cell.samples):
        yield RESPONSE_TIME_NOTE
    if any(cell.was_client_limited for cell in table.cells):
        yield CLIENT_LIMITED_NOTE
    if any(
        figures.is_lower_bound(figures.middle_sample(cell), name) for cell in table.cells for name in TIMES
    ):
        yield LOWER_BOUND_NOTE
    yield from (f"Note: {note}" for note in summary.remarks(table))
    if lacks_percentiles(table):
        yield FEW_REPLIES_NOTE
    if table.interrupted:
        yield "The experiment has not run to its end: these are its results until then."


def lacks_percentiles(table: ExperimentTable) -> bool:
    """Whether a percentile of the table is left out, because it has too few replies."""
    return any(
        has_too_few_times(sample, name) for cell in table.cells for sample in cell.samples for name in TIMES
    )


def wrap_line(line: str) -> Sequence[str]:
    """Return a line, broken at the width of the terminal if it is longer."""
    return (
        textwrap.wrap(line, TERMINAL_COLUMNS, subsequent_indent="  ")
        if len(line) > TERMINAL_COLUMNS
        else [line]
    )


def server_lines(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield the head and a line for each server, without empty columns."""
    rows = [row_texts(cell) for cell in cells]
    columns = [
        name for name in rows[0] if any(found.get(name, "") not in ("", figures.NO_FIGURE) for found in rows)
    ]
    widths = {name: max(len(name), *(len(found.get(name, "")) for found in rows)) for name in columns}
    # What the columns of figures, each with a blank, leave for the two columns of text
    room = TERMINAL_COLUMNS - sum(
        size + 1 for name, size in widths.items() if name not in ("server", "errors")
    )
    widths["server"] = min(widths["server"], MAX_SERVER_WIDTH)
    max_errors_width = max(10, room - widths["server"] - 2)
    yield " ".join(
        name.ljust(widths[name]) if name in LEFT_ALIGNED else name.rjust(widths[name]) for name in columns
    )
    for cell, found in zip(cells, rows, strict=True):
        if not cell.samples:
            server = found["server"][:MAX_SERVER_WIDTH].ljust(widths["server"])
            yield f"{server} {cell.failure or 'not measured'}"
            continue
        texts = found | {
            "server": cut(found["server"], widths["server"]).ljust(widths["server"]),
            # The last column: the blanks behind its text are stripped
            "errors": cut(found["errors"], max_errors_width).ljust(widths.get("errors", 0)),
        }
        yield " ".join(texts.get(name, "").rjust(widths[name]) for name in columns).rstrip()


def cut(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters; "…" stands for those that are left out."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def aligned_lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield lines of columns that are as wide as their widest text; the first is left-aligned."""
    first_width, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        right_aligned = (text.rjust(size) for text, size in zip(others, widths, strict=True))
        yield " ".join([first.ljust(first_width), *right_aligned])


LEFT_ALIGNED = ("server", "errors")
UNKNOWN = "unknown"  # CPU and memory of a target on another machine, if they cannot be read there
TITLES = ("p50", "p99", "p50 due", "p99 due")  # of TIMES


def row_texts(cell: Cell) -> dict[str, str]:
    """Return the texts of a server's line, by the titles of the columns."""
    sample = figures.middle_sample(cell)
    columns = ("own", "req/s", *TITLES, "CPU µs", "memory", "thr", "proc", "lost", "errors")
    if sample is None:
        return {"server": cell.server} | dict.fromkeys(columns, "")
    loaded = bool(sample.replies or sample.requests)
    # A figure that only this experiment has stands in a separate column
    own_figure = (
        figures.named_figure_text(cell.value, cell.median, cell.unit)
        if cell.value.startswith("extra.")
        else ""
    )
    rate = figures.number_text(figures.figure_of_cell(cell, "rate")) + (
        "*" if cell.was_client_limited else ""
    )
    found = {
        "server": cell.server,
        "own": own_figure,
        "req/s": rate if loaded and sample.seconds else "",
        **{
            title: figures.sample_figure_text(sample, name) for title, name in zip(TITLES, TIMES, strict=True)
        },
        **usage_texts(sample, loaded=loaded),
        "lost": figures.percent_text(sample.lost) if loaded else "",
        "errors": figures.errors_text(sample.errors) if loaded and sample.errors else "",
    }
    return found | ({"errors": f"{found['errors']} ({cell.failure})"} if cell.failure else {})


def usage_texts(sample: Sample, *, loaded: bool) -> dict[str, str]:
    """Return the texts of a server's resources, by the titles of the columns. loaded: it got requests."""
    usage = sample.usage
    unreadable = UNKNOWN if loaded and sample.elsewhere and usage is None else ""
    counts = (usage.threads, usage.processes) if usage else (None, None)
    threads, processes = ("" if count is None else str(count) for count in counts)
    return {
        "CPU µs": unreadable or (figures.number_text(sample.micros) if loaded else ""),
        "memory": unreadable or (figures.size_text(usage.memory) if usage else ""),
        "thr": threads,
        "proc": processes,
    }
