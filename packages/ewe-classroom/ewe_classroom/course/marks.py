"""Marks: from the reports of a class to the table that the lecturer gives to the platform.

    rules.toml                          (all of it may be absent)

    points = 20                         # what the whole lab is worth; else the points of the lab's checks
    due = 2026-11-30T23:59:00+01:00
    round = 0.5                         # a mark is rounded to the nearest half

    [late]
    free_days = 1                       # a day that has begun counts as a day
    percent_per_day = 10                # of the mark
    most_days = 5                       # after these days there are no points

    [extensions]                        # days for one student, by the name in the table
    "Ada Lovelace" = 3

    [manual]                            # columns that a person fills in (RESULTS/manual.csv), with their points
    structure = 2

    mark = (automatic + manual) x (1 - penalty), rounded; automatic = points x score / points of the checks
    penalty = days late x percent_per_day / 100, at most 1

Read next: class_page.py.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ewe.config.messages import ConfigError, nearest
from ewe_classroom.course.class_run import GradedHandIn
from ewe_classroom.course.leaderboard import as_csv, no_formula
from ewe_classroom.grader.formats import write
from ewe_classroom.seeds import plain_name

DAY_S = 86400.0
MANUAL_FILE = "manual.csv"
KEYS = ("points", "due", "round", "late", "extensions", "manual")
LATE_KEYS = ("free_days", "percent_per_day", "most_days")
MAX_POINTS = 10_000.0
MIN_ROUNDING = 0.01  # marks have two decimals
STEP_DIGITS = 6  # digits after the point of a mark in steps, beyond the error of floats
NO_LATE_DAY = "no day is counted, because of free days or an extension"
NO_TABLE = "name the platform's own file, as it was downloaded"
# The columns by which a platform's table knows a student, and the name of the same fact in HandIn.identity.
IDENTITY_COLUMNS = {
    "Identifier": "Identifier", "ID": "ID", "SID": "SID", "Email": "Email", "Email address": "Email",
    "github_username": "GitHub", "Full name": "Full name", "Name": "Name",
}  # fmt: skip
# The heads of the highest mark in the tables of Moodle, and of Gradescope for one assignment (for several, the head
# has the name of the assignment before it). Canvas has a row for it above the students.
MAXIMUM_COLUMNS = ("Maximum Grade", "Maximum grade", "Max Points")
CANVAS_MAXIMUM_ROW = "Points Possible"
MOODLE_COMMENTS_COLUMN = "Feedback comments"  # Moodle's column for a text


@dataclass(frozen=True)
class MarkRules:
    """The rules of a course. points: None means the points of the checks."""

    points: float | None = None
    due: datetime | None = None
    round_to: float = 0.0
    free_days: int = 0
    percent_per_day: float = 0.0
    most_days: int | None = None
    extensions: dict[str, int] = field(default_factory=dict)
    manual: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Mark:
    """The mark of one student.

    automatic: the points of the checks. manual: the lecturer's points by name, None if they are missing.
    """

    graded: GradedHandIn
    automatic: float
    manual: dict[str, float | None]
    late_days: int
    penalty: float  # 0 to 1
    total: float | None  # None: the grader has failed, and the student may deserve points
    max_points: float  # that a student can get, with all manual points

    @property
    def lacks_manual_mark(self) -> bool:
        """Whether the lecturer has not entered some of the manual points yet."""
        return None in self.manual.values()


def read_rules(path: Path | None) -> MarkRules:
    """Read a file of rules. Raises ConfigError."""
    if path is None:
        return MarkRules()
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as reason:
        raise ConfigError(f"--rules: {path}: {reason.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as reason:
        raise ConfigError(f"--rules: {path}: {reason}") from None
    late = subtable(path, table, "late")
    # An unknown key is an error: a rule with a wrong name would otherwise have no effect.
    for where, keys, known in (("", table, KEYS), ("[late] ", late, LATE_KEYS)):
        for key in keys:
            if key not in known:
                raise ConfigError(f"--rules: {path}: {where}{key} is not a rule{nearest(key, known)}")
    due = table.get("due")
    if due is not None and (not isinstance(due, datetime) or due.tzinfo is None):
        raise ConfigError(f"--rules: {path}: due is a time with its zone: 2026-11-30T23:59:00+01:00")
    extensions = subtable(path, table, "extensions")
    manual = subtable(path, table, "manual")
    return MarkRules(
        points=rule_number(path, "points", table["points"]) if "points" in table else None,
        due=due,
        round_to=rule_number(path, "round", table.get("round", 0)),
        free_days=rule_days(path, "free_days", late.get("free_days", 0)),
        percent_per_day=rule_number(path, "percent_per_day", late.get("percent_per_day", 0), 100),
        most_days=rule_days(path, "most_days", late["most_days"]) if "most_days" in late else None,
        extensions={name: rule_days(path, name, days) for name, days in extensions.items()},
        manual={name: rule_number(path, name, points) for name, points in manual.items()},
    )


def subtable(path: Path, table: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a table within the rules, such as [late]; an absent one is empty. Raises ConfigError."""
    part = table.get(name, {})
    if not isinstance(part, dict):
        raise ConfigError(f"--rules: {path}: {name} is a table: write [{name}], and its rules below")
    return part


def rule_number(path: Path, name: str, value: object, maximum: float = MAX_POINTS) -> float:
    """Return the value of a rule, which is a number from 0 to `maximum`. Raises ConfigError."""
    # In Python a bool is an int, but `true` is no number of points.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= maximum:
        raise ConfigError(f"--rules: {path}: {name} is a number from 0 to {maximum:g}, not {value!r}")
    return float(value)


def rule_days(path: Path, name: str, value: object) -> int:
    """Return the value of a rule that counts days. Raises ConfigError: half a day would count as none."""
    days = rule_number(path, name, value)
    if not days.is_integer():
        raise ConfigError(f"--rules: {path}: {name} is a number of whole days, not {value!r}")
    return int(days)


def normalize_name(name: str) -> str:
    """Return a name by which two spellings are compared: single blanks, no difference of case, nothing invisible.

    An accent may be a part of its letter or a separate character, as macOS writes it in the names of files.
    """
    return unicodedata.normalize("NFC", " ".join(plain_name(name).split()).casefold())


def unknown_students(rules: MarkRules, results: Iterable[GradedHandIn]) -> list[str]:
    """Return the names with an extension that no student of the class has."""
    students = {normalize_name(graded.hand_in.name) for graded in results}
    return [name for name in rules.extensions if normalize_name(name) not in students]


def mark_of(graded: GradedHandIn, rules: MarkRules, points: float, manual: dict[str, float | None]) -> Mark:
    """Return the mark of one student: (automatic + manual) x (1 - penalty), rounded to a step of `rules.round_to`.

    points: the sum of the points of the lab's checks. manual: the name of a manual mark -> the lecturer's points;
    None if the lecturer has not entered the points yet: they count as 0.
    """
    automatic_max = rules.points if rules.points is not None else points
    # Less than `points` if the machine lacked a program that a check needs: that check has no points then.
    max_score = float(graded.report["max_score"]) if graded.report else points
    automatic = automatic_max * graded.score / max_score if max_score else 0.0
    days = late_days(graded, rules)
    penalty = min(1.0, days * rules.percent_per_day / 100)
    if rules.most_days is not None and days > rules.most_days:
        penalty = 1.0
    total = (automatic + sum(value or 0.0 for value in manual.values())) * (1 - penalty)
    max_points = automatic_max + sum(rules.manual.values())
    if rules.round_to >= MIN_ROUNDING:
        # STEP_DIGITS: the mark 0.95 is 9.5 steps of 0.1, but 0.95 / 0.1 of floats is 9.499999999999998.
        # floor(), because round() would round 2.5 steps down to 2, which is even: a half step is rounded up.
        # min(), because a maximum between two steps must not be rounded up.
        steps = round(total / rules.round_to, STEP_DIGITS)
        total = min(max_points, math.floor(steps + 0.5) * rules.round_to)
    return Mark(
        graded,
        automatic=automatic,
        manual=manual,
        late_days=days,
        penalty=penalty,
        total=None if graded.grader_failed else round(total, 2),
        max_points=max_points,
    )


def late_days(graded: GradedHandIn, rules: MarkRules) -> int:
    """Return the days that count as late: a day that has begun is a day; free days and extensions do not count."""
    hand_in = graded.hand_in
    days = 0
    if rules.due is not None and hand_in.sent is not None:
        days = max(0, math.ceil((hand_in.sent - rules.due).total_seconds() / DAY_S))
    elif hand_in.late:  # Canvas says only that the submission is late, not by how many days
        days = 1
    extended = {normalize_name(name): granted for name, granted in rules.extensions.items()}
    return max(0, days - rules.free_days - extended.get(normalize_name(hand_in.name), 0))


def read_manual(
    directory: Path, rules: MarkRules, results: list[GradedHandIn]
) -> dict[str, dict[str, float | None]]:
    """Return the marks that a person has entered in RESULTS/manual.csv: HandIn.key -> name of a mark -> number.

    An empty cell is None. Write the file if it is missing, and add the students and columns that it lacks; a number
    that was entered stays in the file. A column belongs to a mark and its points: if the rules change the points,
    the mark gets a new column, which is empty. Raises ConfigError.
    """
    if not rules.manual:
        return {}
    path = directory / MANUAL_FILE
    names_of_heads = {f"{name} (of {maximum:g})": name for name, maximum in rules.manual.items()}
    rows_of_file = table_of(path) if path.exists() else []
    if rows_of_file and "key" not in rows_of_file[0]:
        raise ConfigError(f"{path} has no column 'key': give it this head again, or delete the file")
    rows = {row["key"]: row for row in rows_of_file if row["key"]}
    marks_by_key: dict[str, dict[str, float | None]] = {}
    for each in results:
        # setdefault() adds a missing student, and below a missing column, to the rows that are written back.
        row = rows.setdefault(each.hand_in.key, {"key": each.hand_in.key, "name": each.hand_in.name})
        marks_by_key[each.hand_in.key] = {
            name: entered_mark(path, each.hand_in.name, name, row.setdefault(head, ""), rules.manual[name])
            for head, name in names_of_heads.items()
        }
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    write_if_new(
        path, as_csv(columns, ([row.get(column, "") for column in columns] for row in rows.values()))
    )
    return marks_by_key


def entered_mark(path: Path, student: str, name: str, text: str, maximum: float) -> float | None:
    """Return the manual mark in a cell of manual.csv; None if the cell is empty. Raises ConfigError.

    student, name: the student and the mark, for the message. text: the cell. maximum: the points of the mark.
    """
    # A spreadsheet may put an apostrophe into an empty cell. number_in() knows it before a number, too.
    if not text.strip().lstrip("'"):
        return None
    value = number_in(text)
    if value is None or not 0 <= value <= maximum:
        raise ConfigError(f"{path}: {student}, {name}: {text!r} is no number from 0 to {maximum:g}")
    return value


def table_of(path: Path) -> list[dict[str, str]]:
    """Read a table with one line of heads, as platforms and spreadsheets write it; return its rows: head -> cell.

    Raises ConfigError.
    """
    try:
        text = decode_table(path.read_bytes())
        # Where a comma separates decimals, a spreadsheet separates cells by semicolons.
        head_line = text.partition("\n")[0]
        delimiter = max(",;\t", key=head_line.count)
        # A short row gets empty cells. The surplus cells of a long row come as a list, below the head "".
        rows = list(
            csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, restkey="", restval="")
        )
    except OSError as reason:
        raise ConfigError(f"{path}: {reason.strerror}; {NO_TABLE}") from None
    except (csv.Error, UnicodeDecodeError) as reason:
        raise ConfigError(f"{path}: {reason}; {NO_TABLE}") from None
    return [{str(key): value if isinstance(value, str) else "" for key, value in row.items()} for row in rows]


def decode_table(data: bytes) -> str:
    """Return the text of a table: UTF-8, or as Excel saves "CSV" (Windows-1252) and "Unicode text" (UTF-16)."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252")


def write_if_new(path: Path, text: str) -> None:
    """Replace a file as a whole, unless it has these contents already. Raises ConfigError.

    manual.csv holds work of the lecturer, which a full disk must not cut.
    """
    try:
        is_new = not path.exists() or path.read_bytes() != text.encode("utf-8", errors="replace")
    except OSError as reason:
        raise ConfigError(f"{path}: {reason.strerror}") from None
    if is_new:
        write(path, text)


def shown_number(value: float | None) -> str:
    """Return a mark as text: 7.5 rather than 7.50; "" for None."""
    return "" if value is None else f"{value:.2f}".rstrip("0").rstrip(".")


def to_csv(marks: list[Mark], rules: MarkRules) -> str:
    """Return the table of the class as CSV: one line for each student, in the order of the submissions."""
    # The first column is the name already.
    identity = list(
        dict.fromkeys(key for mark in marks for key in mark.graded.hand_in.identity if key != "name")
    )
    head = ["name", *identity, "mark", "of", "automatic", *rules.manual, "sent", "late days", "penalty %"]
    head += ["failed checks", "remark", "page"]
    rows = []
    for mark in marks:
        hand_in = mark.graded.hand_in
        sent = hand_in.sent.isoformat(timespec="seconds") if hand_in.sent else ""
        failed = " ".join(failed_checks(mark.graded))
        rows.append([
            hand_in.name, *(hand_in.identity.get(key, "") for key in identity), shown_number(mark.total),
            shown_number(mark.max_points), shown_number(mark.automatic),
            *(shown_number(mark.manual.get(name)) for name in rules.manual), sent, mark.late_days,
            shown_number(100 * mark.penalty), failed, remark(mark), page_of(mark.graded),
        ])  # fmt: skip
    return as_csv(head, rows)


def failed_checks(graded: GradedHandIn) -> list[str]:
    """Return the names of the checks that did not pass."""
    verdicts = graded.report["verdicts"] if graded.report else []
    return [str(each["name"]) for each in verdicts if each["status"] != "passed"]


def page_of(graded: GradedHandIn) -> str:
    """Return the path of a student's page below the results' directory; "" if the student has none."""
    return f"students/{graded.hand_in.key}/report.html" if graded.report else ""


def remark(mark: Mark) -> str:
    """Return what a lecturer must know about a mark, in one line; "" if nothing."""
    graded = mark.graded
    refused = str(graded.report.get("refused") or "") if graded.report else ""
    parts = [graded.problem or refused, "manual marks are missing" if mark.lacks_manual_mark else ""]
    verdicts = graded.report["verdicts"] if graded.report and not refused else []
    if not_run := sum(each["status"] == "not run" for each in verdicts):
        were = "check was" if not_run == 1 else "checks were"
        parts.append(f"{not_run} {were} not run: see the limit of a run, --limit, and --jobs")
    if graded.hand_in.late and graded.hand_in.sent is None:
        counted = "one day is counted" if mark.late_days else NO_LATE_DAY
        parts.append(f"late, as the platform says; {counted}")
    if "GitHub" in graded.hand_in.identity and graded.hand_in.sent is None:
        # As for a commit that a student has made too large to be read (submissions.last_commit).
        parts.append("the time of the last commit cannot be read; no late day is counted")
    return "; ".join(part for part in parts if part)


@dataclass(frozen=True)
class FilledTable:
    """A platform's table with the marks.

    missing: the students without a row, and those whose name has several rows. above: "NAME MARK of MAXIMUM", for
    each mark above the table's maximum.
    """

    text: str
    missing: list[str]
    above: list[str]


def fill_table(path: Path, column: str | None, marks: list[Mark]) -> FilledTable:
    """Fill the marks into a platform's own table (Moodle's worksheet, Canvas's gradebook, a roster).

    column: the head of the column for the marks; None: Moodle's "Grade". A mark above the maximum of the table is
    written unchanged. Raises ConfigError.
    """
    rows = table_of(path)
    heads = list(rows[0]) if rows else []
    identity_head, column = identity_and_mark_columns(path, heads, column)
    fact = IDENTITY_COLUMNS[identity_head]  # the key of the same identity in HandIn.identity
    identities = [normalize_name(mark.graded.hand_in.identity.get(fact, "")) for mark in marks]
    # Two students may have one name: neither of them may get the mark of the other.
    ambiguous = repeated_values(identities) | repeated_values(
        normalize_name(row[identity_head]) for row in rows
    )
    by_identity = {each: mark for each, mark in zip(identities, marks, strict=True) if each not in ambiguous}
    by_identity.pop("", None)  # a student without an identity must not match an empty cell
    maximum_heads = (f"{column} - Max Points", *MAXIMUM_COLUMNS)
    written = set()  # id() of each mark: a Mark contains dictionaries, so it has no hash
    above = []
    # Canvas has no column for the maximum: a row above the students has the maximum of each column.
    canvas_maximum = next((row[column] for row in rows if row[heads[0]].strip() == CANVAS_MAXIMUM_ROW), "")
    for row in rows:
        if (mark := by_identity.get(normalize_name(row[identity_head]))) is not None:
            written.add(id(mark))
            maximum = number_in(next((row[head] for head in maximum_heads if head in row), canvas_maximum))
            if is_above(mark.total, maximum):
                name = mark.graded.hand_in.name
                above.append(f"{name} {shown_number(mark.total)} of {shown_number(maximum)}")
            row[column] = shown_number(mark.total)  # empty if the grader has failed
            if MOODLE_COMMENTS_COLUMN in row:
                row[MOODLE_COMMENTS_COLUMN] = no_formula(comment(mark))
    out = io.StringIO()
    writer = csv.DictWriter(out, heads, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    missing = [mark.graded.hand_in.name for mark in marks if id(mark) not in written]
    return FilledTable(out.getvalue(), missing, above)


def is_above(total: float | None, maximum: float | None) -> bool:
    """Return whether a mark is above the maximum of its table. None: there is no such number."""
    return maximum is not None and total is not None and total > maximum


def identity_and_mark_columns(path: Path, heads: list[str], column: str | None) -> tuple[str, str]:
    """Return the heads of two columns of a platform's table: what identifies a student, and the mark.

    column: the head that --column names, or None. Raises ConfigError if the table lacks one of the columns.
    """
    identity_head = next((head for head in IDENTITY_COLUMNS if head in heads), None)
    if identity_head is None:
        raise ConfigError(
            f"--table: {path} has none of the columns {', '.join(IDENTITY_COLUMNS)}; {NO_TABLE}"
        )
    if column is None:
        column = next((head for head in ("Grade", "grade") if head in heads), None)
    if column is None or column not in heads:
        raise ConfigError(
            f"--table: {path} has no column {column or 'Grade'!r}{nearest(column or 'Grade', heads)}; name one with"
            f" --column: {', '.join(heads)}"
        )
    return identity_head, column


def repeated_values(values: Iterable[str]) -> set[str]:
    """Return the values that occur several times."""
    return {value for value, count in Counter(values).items() if count > 1}


def number_in(text: str) -> float | None:
    """Return the number of a cell, as a platform or a spreadsheet writes it; None for any other text.

    The number may follow an apostrophe, and may have a decimal comma. NaN and infinity are no numbers here.
    """
    try:
        value = float(text.strip().lstrip("'").replace(",", "."))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def comment(mark: Mark) -> str:
    """Return a student's feedback in a few lines: what each failed check saw, or why nothing was graded."""
    if mark.graded.problem or not mark.graded.report:
        return mark.graded.problem
    lines = [f"{shown_number(mark.automatic)} points for the checks."]
    for each in mark.graded.report["verdicts"]:
        if each["status"] != "passed":
            lines.append(
                f"{each['name']} ({each['score']}/{each['points']}): {each['did'] or each['proves']}"
            )
    if mark.late_days:
        lines.append(f"{mark.late_days} days late: {100 * mark.penalty:g} % less.")
    return "\n".join(lines)
