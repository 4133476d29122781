"""The formats in which a report leaves the grader, one function each: from a Report to text.

Every format is written after each check, and replaces the file before (rename). A grader that is killed at any
moment leaves a file that can be read and counts what was done; the checks that did not run have no points.

    JSON             everything, for programs of ewe
    JUnit            for continuous integration
    Gradescope       results.json
    Classroom 50     result.json, schema classroom50/result/v1
    PrairieLearn     results.json
    Autolab          the last line of standard output

A server decides what it sends, and so what a report quotes: a gigabyte, binary bytes, characters that become six in
JSON. No report is larger than MOST_BYTES. fitted() makes a report with ever shorter texts until it fits.
"""

from __future__ import annotations

import functools
import json
import os
import re
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from ewe.config.messages import ConfigError
from ewe_classroom.grader.verdicts import ERROR, FAILED, NOT_RUN, PASSED, Report, clip

NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# PrairieLearn refuses results of more than 1 MB; a browser and a mail server like no larger ones, either.
MOST_BYTES = 1_000_000
TEXT_LENGTHS = (8000, 2000, 500, 100)
NOT_FINISHED = "The grader was stopped before it had finished: the checks that did not run have no points."


def fitted(make: Callable[[Report, int], str]) -> Callable[[Report], str]:
    """Return a format whose result has at most MOST_BYTES. make: gets the most characters of one text."""

    @functools.wraps(make)
    def made(report: Report) -> str:
        for most in TEXT_LENGTHS:
            text = make(report, most)
            if len(text.encode(errors="replace")) <= MOST_BYTES:
                break
        return text

    return made


def as_json(table: object) -> str:
    return json.dumps(table, ensure_ascii=False, indent=1) + "\n"


def to_json(report: Report) -> str:
    """Return everything; where that is more than MOST_BYTES, the steps of checks that passed are left out first."""
    table = report.as_dict()
    for keep in ((PASSED, FAILED, ERROR), (FAILED, ERROR), ()):
        for verdict in table["verdicts"]:
            if verdict["status"] not in keep:
                verdict["steps"] = []
        text = as_json(table)
        if len(text.encode(errors="replace")) <= MOST_BYTES:
            return text
    for most in (2000, 500, 60):
        text = as_json(shortened(table, most))
        if len(text.encode(errors="replace")) <= MOST_BYTES:
            break
    return text


def shortened(value: Any, most: int) -> Any:
    """Return JSON's values with every text of at most so many characters."""
    if isinstance(value, str):
        return clip(value, most)
    if isinstance(value, list):
        return [shortened(each, most) for each in value]
    if isinstance(value, dict):
        return {key: shortened(each, most) for key, each in value.items()}
    return value


@fitted
def to_gradescope(report: Report, most: int) -> str:
    """Return results.json: a score and a status for each check; the speed for Gradescope's leaderboard."""
    tests: list[dict[str, Any]] = [
        {
            "name": f"{verdict.name}: {verdict.proves}",
            "number": str(number),
            "score": verdict.score,
            "max_score": verdict.points,
            "status": "passed" if verdict.status == PASSED else "failed",
            "output": verdict.text(most),
            "output_format": "text",
            "visibility": "visible",
            "extra_data": {"again": clip(verdict.again, 1000)},
        }
        for number, verdict in enumerate(report.verdicts, 1)
    ]
    table = {
        "score": report.score,
        "execution_time": round(report.seconds),
        "output": summary_line(report) if report.finished else NOT_FINISHED,
        "output_format": "text",
        "test_output_format": "text",
        "test_name_format": "text",
        "visibility": "visible",
        "stdout_visibility": "visible",
        "tests": tests,
    }
    if columns := leaderboard(report):
        table["leaderboard"] = columns
    return as_json(table)


def leaderboard(report: Report) -> list[dict[str, Any]]:
    """Return Gradescope's field `leaderboard`; [] for a server without speed, which is then not listed."""
    speed = report.speed
    if speed is None or speed["failure"]:
        return []
    columns = [{"name": "rate (reference = 1)", "value": rate_of(speed)["median"], "order": "desc"}]
    for key, name in (
        ("p99", "99th percentile at half load (reference = 1)"),
        ("cpu", "CPU for a response (reference = 1)"),
        ("memory_kib", "KiB for a connection"),
    ):
        if speed[key] is not None:
            columns.append({"name": name, "value": speed[key], "order": "asc"})
    return [*columns, {"name": "points", "value": report.score, "order": "desc"}]


def rate_of(speed: dict[str, Any]) -> dict[str, Any]:
    """Return the ratio of the rates at the claimed load, from a Speed or from its JSON, whose keys are texts."""
    rates = speed["rates"]
    found: dict[str, Any] = rates.get(speed["claim"]) or rates[str(speed["claim"])]
    return found


@fitted
def to_classroom50(report: Report, most: int) -> str:
    """Return result.json of Classroom 50. Who submitted what is taken from GitHub's environment variables."""
    repository = os.environ.get("GITHUB_REPOSITORY", "")
    table = {
        "schema": "classroom50/result/v1",
        "classroom": os.environ.get("CLASSROOM50_CLASSROOM", ""),
        "assignment": os.environ.get("CLASSROOM50_ASSIGNMENT", report.lab),
        "assignment_type": os.environ.get("CLASSROOM50_ASSIGNMENT_TYPE", "individual"),
        "owner": os.environ.get("GITHUB_ACTOR", ""),
        "submission": os.environ.get("GITHUB_REF_NAME", ""),
        "commit": os.environ.get("GITHUB_SHA", ""),
        "release": os.environ.get("CLASSROOM50_RELEASE", ""),
        "review": os.environ.get("CLASSROOM50_REVIEW", ""),
        "repository": repository,
        "datetime": moment(report.began),
        "graded_at": moment(report.began + report.seconds),
        "score": report.score,
        "max-score": report.points,
        "tests": [
            {
                "test-name": verdict.name,
                "passed": verdict.status == PASSED,
                "score": verdict.score,
                "max-score": verdict.points,
                "output": verdict.text(most),
            }
            for verdict in report.verdicts
        ],
    }
    return as_json(table)


@fitted
def to_prairielearn(report: Report, most: int) -> str:
    """Return results.json of PrairieLearn, which takes at most 1 MB."""
    table = {
        "gradable": True,
        "score": round(report.score / report.points, 6) if report.points else float(report.all_passed),
        "message": summary_line(report) if report.finished else NOT_FINISHED,
        "output": "",
        "tests": [
            {
                "name": verdict.name,
                "description": verdict.proves,
                "points": verdict.score,
                "max_points": verdict.points,
                "message": verdict.status,
                "output": verdict.text(most),
            }
            for verdict in report.verdicts
        ],
    }
    return as_json(table)


@fitted
def to_junit(report: Report, most: int) -> str:
    """Return JUnit's XML: one testsuite, one testcase for each check."""
    count = dict.fromkeys((PASSED, FAILED, ERROR, NOT_RUN), 0)
    for verdict in report.verdicts:
        count[verdict.status] += 1
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        "<testsuites>",
        f'<testsuite name={attribute(f"ewe-grade {report.lab}")} tests="{len(report.verdicts)}" '
        f'failures="{count[FAILED]}" errors="{count[ERROR]}" skipped="{count[NOT_RUN]}" '
        f'time="{report.seconds:.3f}" timestamp="{moment(report.began)[:19]}">',
    ]
    for verdict in report.verdicts:
        start = f"<testcase classname={attribute(f'ewe.{report.lab}')} name={attribute(verdict.name)} "
        start += f'time="{verdict.seconds:.3f}"'
        if verdict.status == PASSED:
            lines.append(f"{start}/>")
            continue
        kind = {FAILED: "failure", ERROR: "error", NOT_RUN: "skipped"}[verdict.status]
        inner = f"<{kind} message={attribute(clip(verdict.did, 500) or verdict.status)}"
        inner += "/>" if kind == "skipped" else f">{escape(clean(verdict.text(most)))}</{kind}>"
        lines.append(f"{start}>{inner}</testcase>")
    return "\n".join([*lines, "</testsuite>", "</testsuites>", ""])


def to_autolab(report: Report) -> str:
    """Return Autolab's line: the points of each check; for its scoreboard the points, the failed checks, the speed.

    It must be the last line of standard output.
    """
    scores = {verdict.name: verdict.score for verdict in report.verdicts}
    board: list[float] = [report.score, len(report.failed)]
    if report.speed is not None:
        board.append(0 if report.speed["failure"] else rate_of(report.speed)["median"])
    return json.dumps({"scores": scores, "scoreboard": board})


def summary_line(report: Report) -> str:
    passed = sum(verdict.status == PASSED for verdict in report.verdicts)
    count = len(report.verdicts)
    line = f"{report.lab}: {passed} of {count} checks passed, {report.score} of {report.points} points"
    return f"{line}. Nothing could be graded: {clip(report.refused, 500)}" if report.refused else line


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def clean(text: str) -> str:
    """Return a text without characters that XML cannot hold."""
    return NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def attribute(text: str) -> str:
    return quoteattr(clean(text).replace("\n", " "))


def write(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, whole. Raises ConfigError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(file.name, 0o666 & ~mask)
        os.replace(file.name, path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


FORMATS: dict[str, tuple[str, Callable[[Report], str]]] = {
    "json": ("everything, as JSON", to_json),
    "junit": ("JUnit's XML", to_junit),
    "gradescope": ("Gradescope's results.json", to_gradescope),
    "classroom50": ("Classroom 50's result.json", to_classroom50),
    "prairielearn": ("PrairieLearn's results.json", to_prairielearn),
}
