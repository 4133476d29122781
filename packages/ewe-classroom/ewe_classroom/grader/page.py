"""The report as one page: a summary, each check with its evidence, and a timeline with a lane for each client.

The page is self-contained: it contains its style and pictures, has no script, and loads nothing. pictures.py
computes the pictures, and templates/report.html.j2 writes the page.

A page quotes the server's output, which may be of any length. Texts are therefore clipped, and a page that is
larger than formats.MAX_FILE_BYTES is made again with shorter texts and fewer pictures.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from ewe_classroom.grader.formats import MAX_FILE_BYTES, RESTLESS, remarks, summary_line
from ewe_classroom.grader.pictures import LEGEND, Ratios, ratios, timeline
from ewe_classroom.grader.verdicts import (
    ERROR,
    FAILED,
    NOT_JUDGED,
    NOT_RUN,
    PASSED,
    SCHEDULE_LABEL,
    Report,
    Verdict,
    clip,
)
from ewe_explore import lanes
from ewe_explore.pages import render


class PageLimits(NamedTuple):
    """The limits of one page. max_chars: of one text. drawn: the statuses of the verdicts that get a picture."""

    max_chars: int
    drawn: tuple[str, ...]


PAGE_STEPS = (  # by which a page becomes smaller
    PageLimits(2000, (PASSED, FAILED, ERROR)),
    PageLimits(2000, (FAILED, ERROR)),
    PageLimits(500, (FAILED, ERROR)),
    PageLimits(200, ()),
)
INTERPRETER = re.compile(r"python[\d.]*")
MAX_PROGRAM_CHARS, MAX_STUDENT_CHARS = 60, 200
COLUMNS_FACTOR = 4  # a text in columns is mostly spaces, so it may be longer than others by this factor
LITERAL_STYLES = ("code", "pre", "columns")  # styles of texts in which a backtick is a backtick
MARKS = {PASSED: "✓", FAILED: "✗", ERROR: "!", NOT_RUN: "–", NOT_JUDGED: "?"}


class Piece(NamedTuple):
    """A piece of a text. is_code: it stood between backticks."""

    text: str
    is_code: bool


class RowText(NamedTuple):
    """The text of one row of a check. style: did, code, pre, columns (a wide text, no line is broken), or ""."""

    label: str
    text: str
    style: str


class CardRow(NamedTuple):
    """One row of a check, on the page. style: as above."""

    label: str
    pieces: list[Piece]
    style: str


class Card(NamedTuple):
    """One check. is_open: the page shows its rows at once, and not only after a click."""

    verdict: Verdict
    mark: str
    is_open: bool
    rows: list[CardRow]
    ratios: Ratios | None
    timeline: Markup | None


def to_html(report: Report) -> str:
    """Return the page of a report, with at most formats.MAX_FILE_BYTES if the shortest texts allow it."""
    title = f"{report.title}: {report.score} of {report.points}"
    for limits in PAGE_STEPS:
        page = render("ewe_classroom", "report.html.j2", title=title, **values_of(report, limits))
        if len(page.encode(errors="replace")) <= MAX_FILE_BYTES:
            break
    return page


def to_frame(report: Report) -> str:
    """Return a report for a notebook as HTML, in a frame."""
    values = values_of(report, PAGE_STEPS[1])  # the first step without pictures of passed checks
    return render("ewe_classroom", "notebook.html.j2", title=summary_line(report), **values)


def values_of(report: Report, limits: PageLimits) -> dict[str, Any]:
    """Return the values of the page's template."""
    passed = sum(verdict.status == PASSED for verdict in report.verdicts)
    failed = by_points(report.failed, report.first_advice())
    share = report.score / report.points if report.points else passed / max(len(report.verdicts), 1)
    starter = 100 * report.starter_points / report.points if report.starter_points and report.points else None
    open_verdicts = [verdict for verdict in report.verdicts if verdict.status in (NOT_RUN, NOT_JUDGED)]
    right = [verdict for verdict in report.verdicts if verdict.status == PASSED]
    return {
        "report": report,
        # The template itself has the words of RESTLESS, the first of them in bold.
        "remarks": [remark for remark in remarks(report) if remark != RESTLESS],
        "subject": clip(report.subject, limits.max_chars),
        "program": clip(program_name(report.subject), MAX_PROGRAM_CHARS),
        "seed": shlex.quote(clip(report.student, MAX_STUDENT_CHARS)) if report.seeded else "",
        "tiles": [tiles for tiles in (failed, open_verdicts, right) if tiles],
        "student": clip(report.student, MAX_STUDENT_CHARS),
        "when": datetime.fromtimestamp(report.began, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "passed": passed,
        "done": 100 * share,
        "starter": starter,
        "pieces": pieces,
        "lanes_style": Markup(lanes.style()),
        "definitions": Markup(lanes.definitions()),
        "samples": Markup(lanes.legend(LEGEND)),
        "sections": [
            (heading, [card(verdict, report, limits) for verdict in verdicts])
            for heading, verdicts in (
                ("Look at these", failed),
                ("Not judged, or not run", open_verdicts),
                ("These are right", right),
            )
            if verdicts
        ],
    }


def by_points(verdicts: Sequence[Verdict], first: Verdict | None) -> list[Verdict]:
    """Return verdicts with the most points first. first: the verdict to begin with, if any."""
    return sorted(verdicts, key=lambda verdict: (verdict is not first, -verdict.points))


def program_name(command: str) -> str:
    """Return the name of the program that a command starts, without its interpreter, directory and arguments.

    Return the whole command if it has no such name.
    """
    try:
        words = [word for word in shlex.split(command) if "{" not in word]  # without {port} and the like
    except ValueError:  # a quotation without its end
        return command
    names = [Path(word).name for word in words]
    if len(names) > 1 and INTERPRETER.fullmatch(names[0]) and not names[1].startswith("-"):
        return names[1]
    return " ".join(names[:1]) or command


def pieces(text: str) -> list[Piece]:
    """Return the pieces of a text. A backtick without a second one is an ordinary character."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an odd number of backticks
        return [Piece(text, is_code=False)]
    # Text and code alternate: each part with an odd index stood between two backticks.
    return [Piece(part, is_code=index % 2 == 1) for index, part in enumerate(parts) if part]


def card(verdict: Verdict, report: Report, limits: PageLimits) -> Card:
    """Return one check with its evidence and its timeline. A failed check, and the speed, have an open card."""
    is_speed = verdict.name == "speed"
    is_drawn = verdict.status in limits.drawn
    rows = []
    for label, text, style in row_texts(verdict):
        columns_factor = COLUMNS_FACTOR if style == "columns" else 1
        clipped = clip(text, limits.max_chars * columns_factor)
        text_pieces = [Piece(clipped, is_code=False)] if style in LITERAL_STYLES else pieces(clipped)
        rows.append(CardRow(label, text_pieces, style))
    return Card(
        verdict,
        mark=MARKS[verdict.status],
        is_open=verdict.status in (FAILED, ERROR) or is_speed,
        rows=rows,
        ratios=ratios(report.speed) if is_drawn and is_speed else None,
        timeline=drawing(verdict.steps) if is_drawn and not is_speed else None,
    )


def drawing(steps: list[dict[str, Any]]) -> Markup | None:
    """Return the timeline of a scene as SVG, with its table; None if no client acted."""
    picture = timeline(steps)
    return None if picture is None else Markup(picture.html())  # lanes.py escapes its texts


def row_texts(verdict: Verdict) -> Iterator[RowText]:
    """Yield the rows of a check that have a text."""
    failed = verdict.status in (FAILED, ERROR)
    rows = [
        ("What was sent", verdict.sent, ""),
        ("What happened", verdict.did, "did"),
        ("What should happen", verdict.should, ""),
        ("Likely cause" if failed else "Why not", verdict.because, ""),
        (SCHEDULE_LABEL, verdict.schedule if failed else "", "columns"),
        ("Why it matters", verdict.why, ""),
        ("Hint", verdict.hint if failed else "", ""),
        ("Found", "; ".join(verdict.facts), ""),
    ]
    yield from (RowText(*row) for row in rows if row[1])
    yield RowText("See it again", verdict.again, "code")
    if verdict.output and failed:
        yield RowText("The server wrote", verdict.output, "pre")
