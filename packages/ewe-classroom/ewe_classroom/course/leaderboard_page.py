"""The leaderboard as one page: a table that can be sorted by each column, without another server.

templates/leaderboard.html.j2 writes it. Its script only sorts: without it, the table is there in the order of the
rates. On a phone each row is a card, and the head of the table becomes a row of buttons.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from ewe_classroom.course.leaderboard import Entry, Standing, shown, standings
from ewe_explore.pages import render


class Column(NamedTuple):
    """A column. first: how a first click sorts."""

    name: str
    head: str
    unit: str
    first: str


class Cell(NamedTuple):
    """A cell. value: to sort by. label: what a phone shows above the text."""

    name: str
    value: float | str | None
    text: str
    label: str = ""


class Row(NamedTuple):
    rank: int | None
    entry: Entry
    cells: list[Cell]


COLUMNS = (
    Column("rank", "#", "", "ascending"),
    Column("name", "server", "", "ascending"),
    Column("rate", "rate", "reference = 1", "descending"),
    Column("p99", "99 % below", "ref. = 1", "ascending"),
    Column("cpu", "CPU", "ref. = 1", "ascending"),
    Column("memory", "memory", "KiB", "ascending"),
    Column("checks", "checks", "", "descending"),
)


def to_html(entries: list[Entry], title: str = "") -> str:
    """Return the page."""
    rows = standings(entries)
    most = max([1.0, *(row.entry.high for row in rows)]) * 1.04  # the rate at the right end of the bars
    latest = max(entry.began for entry in entries)
    return render(
        "ewe_classroom",
        "leaderboard.html.j2",
        title=title or f"Leaderboard: {entries[0].title}",
        when=datetime.fromtimestamp(latest, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        columns=COLUMNS,
        rows=[row_of(row) for row in rows],
        missing=len(entries) - len(rows),
        references=sorted({row.entry.reference for row in rows}),
        claims=sorted({row.entry.claim for row in rows}),
        share=lambda rate: f"{100 * rate / most:.1f}%",
    )


def row_of(row: Standing) -> Row:
    """Return one row."""
    entry = row.entry
    return Row(
        row.rank,
        entry,
        [
            Cell("rank", row.rank, str(row.rank or "–")),
            Cell("name", entry.name, entry.name),
            Cell("rate", entry.rate, f"{entry.rate:.2f}"),
            Cell("p99", entry.p99, shown(entry.p99), "99 %"),
            Cell("cpu", entry.cpu, shown(entry.cpu), "CPU"),
            Cell("memory", entry.memory_kib, shown(entry.memory_kib, 1), "KiB"),
            Cell("checks", entry.passed, f"{entry.passed}/{entry.checks}", "checks"),
        ],
    )
