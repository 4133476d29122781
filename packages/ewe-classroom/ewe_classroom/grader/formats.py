"""The output formats of a report. Each format is one function from a Report to text.

The grader writes every format after each check, and replaces the earlier file as a whole (rename). If the grader is
killed, the file is complete and counts the finished checks. The other checks have no points.

    JSON             everything, for programs of ewe
    JUnit            for continuous integration
    Gradescope       results.json
    GitHub Classroom the results that a step of a workflow hands to the reporter
    Classroom 50     result.json, schema classroom50/result/v1
    PrairieLearn     results.json
    Autolab          the last line of standard output

A report quotes the server's output, and the output may be a gigabyte, binary bytes, or characters that take six
bytes in JSON. No report is larger than MAX_FILE_BYTES: within_size_limit() shortens the texts of a report.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ewe import svg
from ewe.config.messages import ConfigError
from ewe_classroom.grader.verdicts import ERROR, FAILED, NOT_JUDGED, NOT_RUN, PASSED, Report, clip

MAX_MESSAGE_CHARS = 500  # of the line that a platform shows beside a check
MAX_COMMAND_CHARS = 1000  # of the command that repeats a check
# PrairieLearn refuses results of more than 1 MB. Larger pages also make browsers slow, and mail servers refuse
# them.
MAX_FILE_BYTES = 1_000_000
DEVICES = "/dev"  # whose entries are never replaced
TEXT_LENGTHS = (8000, 2000, 500, 100)  # characters of one text, tried one after the other
JSON_TEXT_LENGTHS = (2000, 500, 60)  # the same for to_json()
UNPROTECTED = (
    "The program ran as the grader's account, so it could have changed this report. Limits that need root did not"
    " hold: on its processes, and on files in /tmp, /var/tmp and /dev/shm."
)
RESTLESS = "This server never sleeps (idle-cpu): begin there. Checks that need a quiet server are not judged."
NOT_FINISHED = "The grader was stopped before it had finished. The checks that did not run have no points."


def within_size_limit(make: Callable[[Report, int], str]) -> Callable[[Report], str]:
    """Decorate a format so that its result has at most MAX_FILE_BYTES, if the shortest texts allow it.

    `make` gets the report, and the most characters of one text.
    """

    @functools.wraps(make)
    def make_fitting(report: Report) -> str:
        for max_chars in TEXT_LENGTHS:
            text = make(report, max_chars)
            if len(text.encode(errors="replace")) <= MAX_FILE_BYTES:
                break
        return text

    return make_fitting


def as_json(table: object) -> str:
    return json.dumps(table, ensure_ascii=False, indent=1) + "\n"


def to_json(report: Report) -> str:
    """Return the whole report. If it exceeds MAX_FILE_BYTES, first leave out the steps of checks that passed."""
    table = report.as_dict()
    for with_steps in ((PASSED, FAILED, ERROR), (FAILED, ERROR), ()):  # the verdicts that keep their steps
        for verdict in table["verdicts"]:
            if verdict["status"] not in with_steps:
                verdict["steps"] = []
        text = as_json(table)
        if len(text.encode(errors="replace")) <= MAX_FILE_BYTES:
            return text
    for max_chars in JSON_TEXT_LENGTHS:
        text = as_json(shortened(table, max_chars))
        if len(text.encode(errors="replace")) <= MAX_FILE_BYTES:
            break
    return text


def shortened(value: Any, max_chars: int) -> Any:
    """Return a value of JSON with every text clipped to `max_chars` characters."""
    if isinstance(value, str):
        return clip(value, max_chars)
    if isinstance(value, list):
        return [shortened(each, max_chars) for each in value]
    if isinstance(value, dict):
        return {key: shortened(each, max_chars) for key, each in value.items()}
    return value


@within_size_limit
def to_gradescope(report: Report, max_chars: int) -> str:
    """Return Gradescope's results.json: score and status of each check, and the speed for the leaderboard."""
    tests: list[dict[str, Any]] = [
        {
            "name": f"{verdict.name}: {verdict.proves}",
            "number": str(number),
            "score": verdict.score,
            "max_score": verdict.points,
            "status": "passed" if verdict.status == PASSED else "failed",
            "output": verdict.text(max_chars),
            "output_format": "text",
            "visibility": "visible",
            "extra_data": {"again": clip(verdict.again, MAX_COMMAND_CHARS)},
        }
        for number, verdict in enumerate(report.verdicts, 1)
    ]
    table = {
        "score": report.score,
        "execution_time": round(report.seconds),
        "output": summary_with_remarks(report),
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
    """Return Gradescope's field `leaderboard`. A server without a speed is not listed: return []."""
    speed = report.speed
    if speed is None or speed["failure"]:
        return []
    columns = [{"name": "rate (reference = 1)", "value": rate_of_claim(speed)["median"], "order": "desc"}]
    for key, name in (
        ("p99", "99th percentile at half load (reference = 1)"),
        ("cpu", "CPU for a response (reference = 1)"),
        ("memory_kib", "KiB for a connection"),
    ):
        if speed[key] is not None:
            columns.append({"name": name, "value": speed[key], "order": "asc"})
    return [*columns, {"name": "points", "value": report.score, "order": "desc"}]


def rate_of_claim(speed: dict[str, Any]) -> dict[str, Any]:
    """Return the ratio of the rates at the claimed load. The keys are numbers in a Speed, and texts in its JSON."""
    rates = speed["rates"]
    found: dict[str, Any] = rates.get(speed["claim"]) or rates[str(speed["claim"])]
    return found


@within_size_limit
def to_classroom50(report: Report, max_chars: int) -> str:
    """Return Classroom 50's result.json.

    The runner of Classroom 50 gives classroom, assignment, student and commit in environment variables. It replaces
    `owner`, `assignment_type`, `datetime` and `graded_at` by its own values, but the schema requires them
    (https://github.com/foundation50/classroom50/wiki/Advanced-Autograding). max_chars: of an `output`.
    """
    commit = os.environ.get("COMMIT_URL", "")
    table = {
        "schema": "classroom50/result/v1",
        "classroom": os.environ.get("CLASSROOM", ""),
        "assignment": os.environ.get("ASSIGNMENT", report.lab),
        "assignment_type": os.environ.get("ASSIGNMENT_TYPE", "individual"),
        "owner": os.environ.get("OWNER", ""),
        "submission": os.environ.get("SUBMISSION_TAG", ""),
        "commit": commit,
        "release": os.environ.get("RELEASE_URL", ""),
        "review": os.environ.get("REVIEW_URL", commit),
        "datetime": iso_time(report.began),
        "graded_at": iso_time(report.began + report.seconds),
        "score": report.score,
        "max-score": report.points,
        "tests": [
            {
                "test-name": verdict.name,
                "passed": verdict.status == PASSED,
                "score": verdict.score,
                "max-score": verdict.points,
                "output": text,
            }
            for verdict, text in zip(report.verdicts, texts_with_remarks(report, max_chars), strict=True)
        ],
    }
    return as_json(table)


@within_size_limit
def to_classroom(report: Report, max_chars: int) -> str:
    """Return the results for GitHub Classroom's reporter, a step of a workflow, which wants them in base64.

    https://github.com/classroom-resources/autograding-grading-reporter adds the scores of the tests.
    """
    table = {
        "version": 1,
        "status": "pass" if report.all_passed else "fail",
        "max_score": report.points,
        "tests": [
            {
                "name": f"{verdict.name}: {verdict.proves}",
                "status": "pass" if verdict.status == PASSED else "fail",
                "score": verdict.score,
                "message": text,
                "test_code": clip(verdict.again, MAX_COMMAND_CHARS),
                "filename": "",
                "line_no": 0,
                "execution_time": f"{verdict.seconds:.1f}s",
            }
            for verdict, text in zip(report.verdicts, texts_with_remarks(report, max_chars), strict=True)
        ],
    }
    return as_json(table)


@within_size_limit
def to_prairielearn(report: Report, max_chars: int) -> str:
    """Return results.json of PrairieLearn, which takes at most 1 MB."""
    table = {
        "gradable": True,
        "score": round(report.score / report.points, 6) if report.points else float(report.all_passed),
        "message": summary_with_remarks(report),
        "output": "",
        "tests": [
            {
                "name": verdict.name,
                "description": verdict.proves,
                "points": verdict.score,
                "max_points": verdict.points,
                "message": verdict.status,
                "output": verdict.text(max_chars),
            }
            for verdict in report.verdicts
        ],
    }
    return as_json(table)


@within_size_limit
def to_junit(report: Report, max_chars: int) -> str:
    """Return JUnit's XML: one testsuite, one testcase for each check. The remarks are properties of the suite."""
    count = dict.fromkeys((PASSED, FAILED, ERROR, NOT_RUN, NOT_JUDGED), 0)
    for verdict in report.verdicts:
        count[verdict.status] += 1
    timestamp = iso_time(report.began).removesuffix("+00:00")  # JUnit's schema has no time zone
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        "<testsuites>",
        f'<testsuite name={xml_attribute(f"ewe-grade {report.lab}")} tests="{len(report.verdicts)}" '
        f'failures="{count[FAILED]}" errors="{count[ERROR]}" skipped="{count[NOT_RUN] + count[NOT_JUDGED]}" '
        f'time="{report.seconds:.3f}" timestamp="{timestamp}">',
    ]
    if said := remarks(report):
        properties = [f'<property name="remark" value={xml_attribute(remark)}/>' for remark in said]
        lines += ["<properties>", *properties, "</properties>"]
    for verdict in report.verdicts:
        start_tag = (
            f"<testcase classname={xml_attribute(f'ewe.{report.lab}')} name={xml_attribute(verdict.name)} "
        )
        start_tag += f'time="{verdict.seconds:.3f}"'
        if verdict.status == PASSED:
            lines.append(f"{start_tag}/>")
            continue
        kind = {FAILED: "failure", ERROR: "error", NOT_RUN: "skipped", NOT_JUDGED: "skipped"}[verdict.status]
        message = clip(verdict.what_happened, MAX_MESSAGE_CHARS) or verdict.status
        inner = f"<{kind} message={xml_attribute(message)}"
        inner += "/>" if kind == "skipped" else f">{escaped_xml(verdict.text(max_chars))}</{kind}>"
        lines.append(f"{start_tag}>{inner}</testcase>")
    return "\n".join([*lines, "</testsuite>", "</testsuites>", ""])


def to_autolab(report: Report) -> str:
    """Return Autolab's line: the points of each check. Its scoreboard shows points, failed checks and the speed.

    The line must be the last one on standard output.
    """
    scores = {verdict.name: verdict.score for verdict in report.verdicts}
    # One figure for each column of the scoreboard (pack_autolab.settings).
    figures: list[float] = [report.score, len(report.failed)]
    if report.speed is not None:
        figures.append(0 if report.speed["failure"] else rate_of_claim(report.speed)["median"])
    return json.dumps({"scores": scores, "scoreboard": figures})


def summary_with_remarks(report: Report) -> str:
    """Return the summary for a platform, with the remarks."""
    return "\n".join(with_remarks(report, summary_line(report) if report.finished else NOT_FINISHED))


def with_remarks(report: Report, summary: str) -> list[str]:
    """Return the lines of a summary and the remarks. RESTLESS comes first: nothing else can be judged well."""
    lines = remarks(report)
    lines.insert(1 if report.restless else 0, summary)
    return lines


def remarks(report: Report) -> list[str]:
    """Return the facts about the whole run that a reader of the marks has to know, each as one line.

    They are RESTLESS (always the first), the limit of the run, UNPROTECTED, and the notes of the report.
    """
    said = [RESTLESS] if report.restless else []
    if report.limit_s:
        said.append(f"The limit of a run was {report.limit_s:g} s.")
    if report.unprotected:
        said.append(UNPROTECTED)
    return said + report.notes


def texts_with_remarks(report: Report, max_chars: int) -> list[str]:
    """Return the text of each check, for a platform that shows no text about the run.

    The text of one check begins with the remarks: the first check that has not passed, or else the first one.
    max_chars: of the text of one check.
    """
    texts = [verdict.text(max_chars) for verdict in report.verdicts]
    if texts and (said := remarks(report)):
        number = next((index for index, verdict in enumerate(report.verdicts) if verdict.status != PASSED), 0)
        texts[number] = "\n".join([*said, texts[number]])
    return texts


def summary_line(report: Report) -> str:
    """Return the summary on one line: passed checks and points; for a refused submission, also the reason."""
    passed = sum(verdict.status == PASSED for verdict in report.verdicts)
    count = len(report.verdicts)
    line = f"{report.lab}: {passed} of {count} checks passed, {report.score} of {report.points} points"
    return (
        f"{line}. Nothing could be graded: {clip(report.refused, MAX_MESSAGE_CHARS)}"
        if report.refused
        else line
    )


def iso_time(seconds: float) -> str:
    """Return a time of time.time() as ISO 8601 in UTC: `2026-11-26T22:30:15+00:00`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def escaped_xml(text: str) -> str:
    """Return a text as the content of an XML element, without characters that XML does not allow."""
    return svg.clean(text)


def xml_attribute(text: str) -> str:
    """Return a text as the value of an XML attribute, with its quotation marks."""
    return svg.quoted(text.replace("\n", " "))


def write(path: Path, text: str) -> None:
    """Replace a file atomically: a reader sees the complete old file or the complete new one.

    A device, such as /dev/stdout, is written into. Raises ConfigError.
    """
    try:
        if is_device(path):
            path.write_text(text, encoding="utf-8", errors="replace")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            try:
                file.write(text)
                file.flush()
                # A temporary file is closed to all other accounts. Give it the mode of an ordinary new file: the
                # umask can only be read by setting it.
                mask = os.umask(0)
                os.umask(mask)
                os.chmod(file.name, 0o666 & ~mask)
                os.replace(file.name, path)
            except BaseException:  # a full disk, a directory in the place of the file, Ctrl-C
                os.unlink(file.name)
                raise
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def is_device(path: Path) -> bool:
    """Return whether a path is that of a device: a file in its place would break it for every program."""
    return os.path.realpath(path.parent) == DEVICES


def check_writable(path: Path) -> None:
    """Raise ConfigError if no file can be written at `path`. Nothing is written, and no directory is created.

    A command that works for minutes calls this function first, and write() at its end. A missing directory is no
    error: write() creates it.
    """
    try:
        if path.is_dir():
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not (path.exists() and is_device(path)):
            try_directory(path.parent)
        elif not os.access(path, os.W_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def check_directory(directory: Path) -> None:
    """Raise ConfigError if no file can be created in a directory, or if the directory cannot be created."""
    try:
        try_directory(directory)
    except OSError as error:
        raise ConfigError(f"cannot write {directory}: {error.strerror}") from None


def try_directory(directory: Path) -> None:
    """Create an unnamed file in a directory, or in the nearest one above it that exists. Raises OSError.

    os.access() cannot tell: root has every permission below /proc, and yet no file can be created there.
    """
    present = directory
    while not os.path.lexists(present) and present != present.parent:
        present = present.parent
    with tempfile.TemporaryFile(dir=present):
        pass


class ReportFormat(NamedTuple):
    """A format of a report file. description: for the help of ewe-grade. convert: returns the text of the file."""

    description: str
    convert: Callable[[Report], str]


FORMATS = {  # the name of ewe-grade's option -> the format
    "json": ReportFormat("the whole report, as JSON", to_json),
    "junit": ReportFormat("JUnit's XML", to_junit),
    "gradescope": ReportFormat("Gradescope's results.json", to_gradescope),
    "classroom": ReportFormat("the results for GitHub Classroom's reporter, as JSON", to_classroom),
    "classroom50": ReportFormat("Classroom 50's result.json", to_classroom50),
    "prairielearn": ReportFormat("PrairieLearn's results.json", to_prairielearn),
}
