"""The leaderboard as one self-contained page: a table that a reader can sort by each column.

templates/leaderboard.html.j2 writes the page. The page's script only sorts; without JavaScript the rows are ordered
by rate. On a phone each row is a card, and the head of the table becomes a row of buttons.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import NamedTuple

from ewe_classroom.course.leaderboard import LeaderboardEntry, Standing, count_text, figure_text, standings
from ewe_explore.pages import render


class LeaderboardColumn(NamedTuple):
    """A column. name: its key, which a cell has, too. head, unit: what the page shows. first: the sort order of the
    first click.
    """

    name: str
    head: str
    unit: str
    first: str


class LeaderboardCell(NamedTuple):
    """A cell. value: the sort key. label: the text that a phone shows above the cell."""

    name: str
    value: float | str | None
    text: str
    label: str = ""


class LeaderboardRow(NamedTuple):
    rank: int | None
    entry: LeaderboardEntry
    cells: list[LeaderboardCell]


BAR_MARGIN = 1.04  # 4 % of space to the right of the longest bar
MAX_TICKS = 4  # of the scale in the head of the column of rates, without that of 0
NICE_STEPS = (1, 2, 5)  # and these numbers, multiplied by a power of ten
COLUMNS = (
    LeaderboardColumn("rank", "#", "", "ascending"),
    LeaderboardColumn("name", "server", "", "ascending"),
    LeaderboardColumn("rate", "rate", "reference = 1", "descending"),
    LeaderboardColumn("p99", "99 % below", "ref. = 1", "ascending"),
    LeaderboardColumn("cpu", "CPU", "ref. = 1", "ascending"),
    LeaderboardColumn("memory", "memory", "KiB", "ascending"),
    LeaderboardColumn("checks", "checks", "", "descending"),
)


def to_html(entries: list[LeaderboardEntry], title: str = "") -> str:
    """Return the page of a leaderboard as HTML."""
    rows = standings(entries)
    # The rate at the right end of the bars. The mark of the reference, which has rate 1, has to be in the picture.
    max_rate = max([1.0, *(row.entry.high for row in rows)]) * BAR_MARGIN
    latest = max(entry.began for entry in entries)
    return render(
        "ewe_classroom",
        "leaderboard.html.j2",
        title=title or f"Leaderboard: {entries[0].title}",
        when=datetime.fromtimestamp(latest, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        columns=COLUMNS,
        rows=[row_of(row) for row in rows],
        missing=len(entries) - len(rows),  # the servers without a speed
        references=sorted({row.entry.reference for row in rows}),
        claims=sorted({row.entry.claim for row in rows}),
        ticks=ticks(max_rate),
        share=lambda rate: f"{100 * rate / max_rate:.1f}%",
    )


def ticks(max_rate: float) -> list[float]:
    """Return the rates that the scale above the bars names, from 0 on: at most MAX_TICKS after it.

    max_rate: the rate at the right end of the scale, at least 1.
    """
    power = 10.0 ** math.floor(math.log10(max_rate / MAX_TICKS))
    step = next(each * power for each in (*NICE_STEPS, 10) if max_rate < (MAX_TICKS + 1) * each * power)
    return [count * step for count in range(int(max_rate / step) + 1)]


def row_of(row: Standing) -> LeaderboardRow:
    """Return one row of the table with its cells."""
    entry = row.entry
    return LeaderboardRow(
        row.rank,
        entry,
        [
            LeaderboardCell("rank", row.rank, str(row.rank or "–")),
            LeaderboardCell("name", entry.name, entry.name),
            LeaderboardCell("rate", entry.rate, f"{entry.rate:.2f}"),
            LeaderboardCell("p99", entry.p99, figure_text(entry.p99), "99 %"),
            LeaderboardCell("cpu", entry.cpu, figure_text(entry.cpu), "CPU"),
            LeaderboardCell("memory", entry.memory_kib, figure_text(entry.memory_kib, 1), "KiB"),
            LeaderboardCell(
                "checks",
                entry.passed if entry.checks else None,
                count_text(entry.passed, entry.checks),
                "checks",
            ),
        ],
    )
