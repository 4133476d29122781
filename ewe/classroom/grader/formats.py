"""The formats in which a report leaves the grader, one function each: from a Report to text.

Every format is written after each check, and replaces the file before (rename). A grader that is killed at any
moment leaves a file that can be read and counts what was done; the checks that did not run have no points.

    JSON             everything, for programs of ewe
    JUnit            for continuous integration
    Gradescope       results.json
    Classroom 50     result.json, schema classroom50/result/v1
    PrairieLearn     results.json
    Autolab          the last line of standard output
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from ewe.classroom.grader.verdicts import ERROR, FAILED, NOT_RUN, PASSED, Report
from ewe.config.messages import ConfigError

NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
NOT_FINISHED = "The grader was stopped before it had finished: the checks that did not run have no points."


def to_json(report: Report) -> str:
    return json.dumps(report.as_dict(), ensure_ascii=False, indent=1) + "\n"


def to_gradescope(report: Report) -> str:
    """Return results.json: a score and a status for each check."""
    tests: list[dict[str, Any]] = [
        {
            "name": f"{verdict.name}: {verdict.proves}",
            "number": str(number),
            "score": verdict.score,
            "max_score": verdict.points,
            "status": "passed" if verdict.status == PASSED else "failed",
            "output": verdict.text(),
            "output_format": "text",
            "visibility": "visible",
            "extra_data": {"again": verdict.again},
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
    return json.dumps(table, ensure_ascii=False, indent=1) + "\n"


def to_classroom50(report: Report) -> str:
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
                "output": verdict.text(),
            }
            for verdict in report.verdicts
        ],
    }
    return json.dumps(table, ensure_ascii=False, indent=1) + "\n"


def to_prairielearn(report: Report) -> str:
    """Return results.json of PrairieLearn, at most 1 MB: long texts are cut."""
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
                "output": verdict.text()[:8000],
            }
            for verdict in report.verdicts
        ],
    }
    return json.dumps(table, ensure_ascii=False, indent=1) + "\n"


def to_junit(report: Report) -> str:
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
        inner = f"<{kind} message={attribute(verdict.did or verdict.status)}"
        inner += "/>" if kind == "skipped" else f">{escape(clean(verdict.text()))}</{kind}>"
        lines.append(f"{start}>{inner}</testcase>")
    return "\n".join([*lines, "</testsuite>", "</testsuites>", ""])


def to_autolab(report: Report) -> str:
    """Return Autolab's line: the points of each check. It must be the last line of standard output."""
    scores = {verdict.name: verdict.score for verdict in report.verdicts}
    return json.dumps({"scores": scores, "scoreboard": [report.score, len(report.failed)]})


def summary_line(report: Report) -> str:
    passed = sum(verdict.status == PASSED for verdict in report.verdicts)
    count = len(report.verdicts)
    return f"{report.lab}: {passed} of {count} checks passed, {report.score} of {report.points} points"


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
