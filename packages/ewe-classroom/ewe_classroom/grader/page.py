"""The report as one page: a summary, each check with its evidence, and a timeline with a lane for each client.

The page is self-contained: style and pictures are in it, no script, no other server. templates/report.html.j2
writes it, and pictures.py decides what its pictures show.

A server decides what it sends, and so what a page quotes. Texts are clipped, and a page that is larger than
formats.MOST_BYTES is made again with shorter texts and fewer pictures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ewe_classroom.grader.formats import MOST_BYTES, summary_line
from ewe_classroom.grader.pictures import Ratios, Timeline, ratios, timeline
from ewe_classroom.grader.verdicts import ERROR, FAILED, NOT_RUN, PASSED, Report, Verdict, clip
from ewe_explore.pages import render

# How a page that is too large becomes smaller: characters of one text, and whose pictures are drawn.
LEVELS = ((2000, (PASSED, FAILED, ERROR)), (2000, (FAILED, ERROR)), (500, (FAILED, ERROR)), (200, ()))
MARKS = {PASSED: "✓", FAILED: "✗", ERROR: "!", NOT_RUN: "–"}


class Card(NamedTuple):
    """One check. rows: a label, its text, and how the text is set: did, code, pre or nothing."""

    verdict: Verdict
    mark: str
    is_open: bool
    rows: list[tuple[str, str, str]]
    ratios: Ratios | None
    timeline: Timeline | None


def to_html(report: Report) -> str:
    """Return the page of a report: at most formats.MOST_BYTES."""
    for most, drawn in LEVELS:
        title = f"{report.title}: {report.score} of {report.points}"
        page = render("ewe_classroom", "report.html.j2", title=title, **values_of(report, most, drawn))
        if len(page.encode(errors="replace")) <= MOST_BYTES:
            break
    return page


def to_frame(report: Report) -> str:
    """Return a report for a notebook, in a frame."""
    values = values_of(report, *LEVELS[1])
    return render("ewe_classroom", "notebook.html.j2", title=summary_line(report), **values)


def values_of(report: Report, most: int, drawn: Sequence[str]) -> dict[str, Any]:
    """Return what the page shows. most: characters of a text; drawn: the outcomes of checks that get a picture."""
    passed = sum(verdict.status == PASSED for verdict in report.verdicts)
    share = report.score / report.points if report.points else passed / max(len(report.verdicts), 1)
    others = [verdict for verdict in report.verdicts if verdict.status not in (FAILED, ERROR)]
    right = "These are right" if report.finished else "The others"
    return {
        "report": report,
        "subject": clip(report.subject, most),
        "student": clip(report.student, 200),
        "when": datetime.fromtimestamp(report.began, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "passed": passed,
        "done": 100 * share,
        "sections": [
            (heading, [card(verdict, report, most, drawn) for verdict in verdicts])
            for heading, verdicts in (("Look at these", report.failed), (right, others))
            if verdicts
        ],
    }


def card(verdict: Verdict, report: Report, most: int, drawn: Sequence[str]) -> Card:
    """Return one check: its verdict, its evidence, its timeline. A check that has failed is open."""
    is_speed = verdict.name == "speed"
    is_drawn = verdict.status in drawn
    return Card(
        verdict,
        MARKS[verdict.status],
        verdict.status in (FAILED, ERROR) or is_speed,
        [(label, clip(text, most), kind) for label, text, kind in rows_of(verdict)],
        ratios(report.speed) if is_drawn and is_speed else None,
        timeline(verdict.steps) if is_drawn and not is_speed else None,
    )


def rows_of(verdict: Verdict) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of a check that have something to say."""
    failed = verdict.status in (FAILED, ERROR)
    rows = [
        ("What was sent", verdict.sent, ""),
        ("What happened", verdict.did, "did"),
        ("What should happen", verdict.should, ""),
        ("Likely cause", verdict.because, ""),
        ("Why it matters", verdict.why, ""),
        ("Hint", verdict.hint if failed else "", ""),
        ("Found", "; ".join(verdict.facts), ""),
    ]
    yield from (row for row in rows if row[1])
    yield "See it again", verdict.again, "code"
    if verdict.output and failed:
        yield "The server wrote", verdict.output, "pre"
