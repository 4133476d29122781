"""The page of a class: each student's mark and checks, the checks that most students failed, and the marks' spread.

templates/class.html.j2 writes the page, RESULTS/index.html. It links to each student's own page (report.html) in
RESULTS/students/. The pairs of similar submissions are on a separate page, similar.html, so that the
lecturer may show the first one.

Read next: marks.py.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from ewe_classroom.course.labs import Lab
from ewe_classroom.course.marks import Mark, page_of, remark, shown_number
from ewe_classroom.course.similarity import SimilarPair
from ewe_explore.pages import render

BIN_COUNT = 10
SIGNS = {"passed": "✓", "failed": "✗", "error": "!", "not run": "–", "not judged": "?"}


class ClassCell(NamedTuple):
    """One check of one student. status: of the verdict. text: what a pointer over the cell shows."""

    status: str
    sign: str
    text: str


@dataclass(frozen=True)
class CheckRow:
    """One check, over the class. judged: the number of submissions in which it has passed or failed.

    cause: the most frequent cause of a failure, or the server's behaviour where the grader knows no cause;
    "" without a failure.
    """

    name: str
    proves: str
    points: int
    failed: int
    judged: int
    cause: str


@dataclass(frozen=True)
class StudentRow:
    """One student. late: the days that count."""

    name: str
    page: str
    mark: Mark
    total: str
    late: int
    remark: str
    cells: list[ClassCell]


def to_html(lab: Lab, marks: list[Mark], when: datetime, seconds: float) -> str:
    """Return the page of the class. seconds: the time of all gradings together."""
    reports = [mark.graded.report for mark in marks if mark.graded.report]
    checks = check_rows(reports)
    rows = [student_row(mark, [check.name for check in checks]) for mark in marks]
    max_points = max((mark.max_points for mark in marks), default=0.0)
    totals = [mark.total for mark in marks if mark.total is not None]  # None: the grader has failed
    return render(
        "ewe_classroom",
        "class.html.j2",
        title=f"{lab.title}: the class",
        when=when.strftime("%Y-%m-%d %H:%M %Z"),
        rows=rows,
        checks=checks,
        worst=sorted((check for check in checks if check.failed), key=lambda check: -check.failed),
        bins=distribution(totals, max_points),
        most=shown_number(max_points),
        median=shown_number(statistics.median(totals) if totals else 0.0),
        # Submissions that could not be graded: there is no report, or it says why the server could not be started
        problems=sum(not mark.graded.report or bool(mark.graded.report.get("refused")) for mark in marks),
        open=sum(mark.lacks_manual_mark for mark in marks),
        seconds=seconds,
    )


def similar_to_html(lab: Lab, pairs: list[SimilarPair], names: dict[str, str]) -> str:
    """Return the page of similar submissions. names: key of a submission -> student."""
    return render(
        "ewe_classroom",
        "similar.html.j2",
        title=f"{lab.title}: similar submissions",
        pairs=pairs,
        names=names,
    )


def check_rows(reports: list[dict[str, Any]]) -> list[CheckRow]:
    """Return a row for each check that a report has, in the order of the lab.

    reports: of the class, as ewe-grade --json writes them; each has the verdict of each check.
    """
    # dict.fromkeys() drops repeated names and, unlike a set, keeps their order.
    names = list(dict.fromkeys(each["name"] for report in reports for each in report["verdicts"]))
    rows = []
    for name in names:
        verdicts = [each for report in reports for each in report["verdicts"] if each["name"] == name]
        failed = [each for each in verdicts if each["status"] == "failed"]
        causes = [str(each["because"] or each["did"]) for each in failed]
        rows.append(
            CheckRow(
                name,
                proves=str(verdicts[0]["proves"]),
                points=int(verdicts[0]["points"]),
                failed=len(failed),
                judged=sum(each["status"] in ("passed", "failed") for each in verdicts),
                cause=max(dict.fromkeys(causes), key=causes.count) if causes else "",
            )
        )
    return rows


def student_row(mark: Mark, checks: list[str]) -> StudentRow:
    """Return the row of a student, with a cell for each check. A check without a verdict was not run."""
    graded = mark.graded
    by_name = {each["name"]: each for each in graded.report["verdicts"]} if graded.report else {}
    cells = []
    for name in checks:
        verdict = by_name.get(name)
        status = str(verdict["status"]) if verdict else "not run"
        text = f"{name}: {status}" + (f". {verdict['did']}" if verdict and verdict["did"] else "")
        cells.append(ClassCell(status, SIGNS.get(status, "?"), text))
    return StudentRow(
        graded.hand_in.name,
        page=page_of(graded),
        mark=mark,
        total=shown_number(mark.total),
        late=mark.late_days,
        remark=remark(mark),
        cells=cells,
    )


class MarkBin(NamedTuple):
    """One tenth of the points. limits: "LOWER to UPPER". students: how many have such a mark."""

    limits: str
    students: int


def distribution(totals: list[float], maximum: float) -> list[MarkBin]:
    """Return the number of marks in each tenth of the points. maximum: the points of the full mark."""
    counts = [0] * BIN_COUNT
    for total in totals:
        # The full mark belongs to the last tenth. In a lab without points, all marks are 0.
        counts[min(BIN_COUNT - 1, int(BIN_COUNT * total / maximum)) if maximum else 0] += 1
    limits = [shown_number(maximum * index / BIN_COUNT) for index in range(BIN_COUNT + 1)]
    return [
        MarkBin(f"{low} to {high}", count)
        for low, high, count in zip(limits, limits[1:], counts, strict=False)
    ]
