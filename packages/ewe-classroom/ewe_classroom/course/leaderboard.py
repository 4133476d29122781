"""The leaderboard of a lab: one table of the files that `ewe-grade --speed --json FILE` wrote for students.

    reports/ada.json ─┐
    reports/bo.json  ─┼─▶ read() ─▶ entries ─▶ standings() ─▶ page, CSV, JSON, a table for a terminal
    reports/cy.json  ─┘

A student's name is the argument of ewe-grade's --student or --seed. Without both it is the name of the file or, if
the file has a general name such as report.json, the name of the directory. Of several files with one name, the
latest counts. No file shows who has written it, so the directory must have no files of students: such a file could
have any name and any figure. In the results of a class (class_run.py), the copies of the submissions are left out.

The rules are those of speed.py. A server that failed a request has no speed and gets no row. A server with a spread
above the limit of speed.py gets a row without a rank.

Pseudonyms: with a key, HMAC-SHA256 turns each name into two words and a number. The same key gives the same
pseudonym next week. A person without the key cannot compute the pseudonym of a name.

Read next: ../grader/speed.py.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ewe.config.messages import ConfigError
from ewe_classroom.course.submissions import STUDENTS, SUBMISSION_COPIES, all_paths
from ewe_classroom.grader.formats import rate_of_claim
from ewe_classroom.seeds import SPELLING

FORMAT = "ewe-grade/1"
MAX_RESULT_BYTES = 4 << 20  # of one result file
GENERAL_NAMES = {"report", "result", "results", "grade", "speed"}
COATS = """
    amber ashen auburn bright brisk bronze calm chalky cloudy copper coral crisp curly dappled dusky early faded
    fleet frosty gentle golden hazel highland ivory lively lowland mellow misty mossy nimble pale patient plain
    proud quick quiet rosy ruddy russet sandy shaggy shy silver smoky snowy sooty sturdy sunny tawny wild windy
"""
BREEDS = """
    bleu cheviot corriedale cotswold dorset drysdale finn gotland hampshire herdwick icelandic jacob kerry leicester
    lincoln lonk manx merino mouflon navajo oxford perendale polwarth portland rambouillet romney ryeland shetland
    shropshire soay southdown suffolk swaledale targhee texel welsh wensleydale
"""
# What the contents of another file raise. RecursionError: lists within lists; OverflowError: too large a number.
BAD_CONTENTS = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)
MAX_NAME_CHARS = 60
MAX_FIGURE = 1e9  # no measured ratio or memory (in KiB) is so large


@dataclass(frozen=True)
class LeaderboardEntry:
    """One server. failure: the reason for a missing speed, else "".

    rate, p99, cpu: ratios to the reference. low, high: the interval of the rate. claim: the number of simultaneous
    clients that the server claims to serve (speed.py). noisy: the interval is too wide for a rank.
    """

    name: str
    lab: str
    title: str
    began: float
    score: int
    points: int
    passed: int
    checks: int
    reference: str = ""
    claim: int = 0
    failure: str = "its speed was not measured"
    rate: float = 0.0
    low: float = 0.0
    high: float = 0.0
    noisy: bool = False
    p99: float | None = None
    cpu: float | None = None
    memory_kib: float | None = None


@dataclass(frozen=True)
class Standing:
    """One row of the table. rank: None if the spread is too large for a rank."""

    rank: int | None
    entry: LeaderboardEntry


def read(directory: Path, lab: str | None, warn: Callable[[str], None]) -> list[LeaderboardEntry]:
    """Return the latest entry of each name below a directory. Call `warn` for each file that is left out.

    Raises ConfigError if the directory or a result is missing, or if `lab` is None and there are results of several
    labs.
    """
    if not os.path.isdir(directory):
        raise ConfigError(
            f"{directory}: not a directory; name the directory with the files of ewe-grade --json"
        )
    found: dict[str, LeaderboardEntry] = {}
    paths = sorted(each for each in all_paths(directory) if each.suffix == ".json")
    handed_in = {each for each in paths if is_copy_of_submission(each)}
    if handed_in:
        warn(f"{min(handed_in)}: handed in by a student; left out, as each such file ({len(handed_in)})")
    for path in paths:
        if path in handed_in:
            continue
        try:
            entry = entry_of(path)
        except (OSError, *BAD_CONTENTS) as reason:
            why = getattr(reason, "strerror", None) or "not a file that ewe-grade --json has written"
            warn(f"{path}: {why}; left out")
            continue
        if lab is None or entry.lab == lab:
            other = found.get(entry.name)
            found[entry.name] = entry if other is None or entry.began >= other.began else other
    labs = sorted({entry.lab for entry in found.values()})
    if not labs:
        raise ConfigError(
            f"{directory}: no results{f' of the lab {lab}' if lab else ''}; ewe-grade --speed --json makes them"
        )
    if len(labs) > 1:
        raise ConfigError(
            f"{directory} has results of several labs; choose one with --lab: {', '.join(labs)}"
        )
    return list(found.values())


def is_copy_of_submission(path: Path) -> bool:
    """Return whether a file was handed in: it is below students/KEY/files in the results of a class.

    Any directory may have these names, so the results must have a file that `ewe-course grade` writes.
    """
    # The directory may be given as ".", or by a link. The file itself may be a link of the student.
    for parent in Path(os.path.realpath(path.parent), path.name).parents:
        if parent.name in SUBMISSION_COPIES and parent.parent.parent.name == STUDENTS:
            of_student, results = parent.parent, parent.parents[2]
            marks = (of_student / "graded.json", of_student / "output.txt", results / "marks.csv")
            if any(os.path.isfile(each) for each in marks):
                return True
    return False


def entry_of(path: Path) -> LeaderboardEntry:
    """Return the entry of one result file.

    The file may come from a student, so each of its values is converted to its type. Raises OSError, and one of the
    exceptions of BAD_CONTENTS if the file was not written by ewe-grade --json.
    """
    if not os.path.isfile(path):  # the opening of a FIFO would wait for a writer
        raise ValueError("not a file")
    with path.open("rb") as file:
        table = json.loads(file.read(MAX_RESULT_BYTES))
    if table["format"] != FORMAT:
        raise ValueError("another format")
    began = float(table["began"])
    datetime.fromtimestamp(began, UTC)  # the page shows it: a time that no calendar has raises an error now
    checks = [verdict for verdict in table["verdicts"] if verdict["name"] != "speed"]
    # Without a student's name: ada.json, or ada/report.json.
    name = str(table.get("student") or (path.parent.name if path.stem in GENERAL_NAMES else path.stem))
    entry = LeaderboardEntry(
        name=printable_line(name[:MAX_NAME_CHARS]),
        lab=printable_line(str(table["lab"])),
        title=printable_line(str(table["title"])),
        began=began,
        score=int(table["score"]),
        points=int(table["max_score"]),
        passed=sum(verdict["status"] == "passed" for verdict in checks),
        checks=len(checks),
    )
    speed = table.get("speed")
    if not speed:  # graded without --speed
        return entry
    of_speed: dict[str, Any] = {
        "reference": printable_line(str(speed["reference"])), "claim": int(speed["claim"]),
        "failure": printable_line(str(speed["failure"])),
    }  # fmt: skip
    if not speed["failure"]:
        rate = rate_of_claim(speed)
        of_speed |= {
            "rate": checked_number(rate["median"]),
            "low": checked_number(rate["low"]),
            "high": checked_number(rate["high"]),
        }
        of_speed |= {
            key: None if speed[key] is None else checked_number(speed[key])
            for key in ("p99", "cpu", "memory_kib")
        }
        of_speed["noisy"] = bool(speed["noisy"])
    return LeaderboardEntry(**{**asdict(entry), **of_speed})


def printable_line(text: str) -> str:
    """Return a text of a result file without line ends, and without the control sequences of a terminal."""
    return "".join(each if each.isprintable() or each in SPELLING else "?" for each in text)


def checked_number(value: Any) -> float:
    """Convert a value of a result file to a number. Raises ValueError (also for NaN and infinity), TypeError."""
    converted = float(value)
    if not 0 <= converted < MAX_FIGURE:
        raise ValueError("not a number of a measurement")
    return converted


def standings(entries: Iterable[LeaderboardEntry]) -> list[Standing]:
    """Return the servers that have a speed, the fastest first. A noisy one stands among them without a rank."""
    rows: list[Standing] = []
    rank = 0
    for entry in sorted(entries, key=lambda each: (-each.rate, each.name)):
        if not entry.failure:
            rank += not entry.noisy
            rows.append(Standing(None if entry.noisy else rank, entry))
    return rows


def pseudonyms(names: Iterable[str], key: str) -> dict[str, str]:
    """Return a pseudonym for each name. No two names get the same one."""
    by_name: dict[str, str] = {}
    coats, breeds = COATS.split(), BREEDS.split()
    # Sorted, so that the order of the files has no influence on which of two equal pseudonyms gets more digits.
    for name in sorted(names):
        # The hash is one large number. Each divmod() takes one choice out of it, and leaves a number for the next.
        digest = hmac.digest(key.encode(), name.strip().casefold().encode(), hashlib.sha256)
        number, coat = divmod(int.from_bytes(digest), len(coats))
        number, breed = divmod(number, len(breeds))
        number, tail = divmod(number, 90)  # 10 to 99: two digits
        pseudonym = f"{coats[coat]} {breeds[breed]} {tail + 10}"
        while pseudonym in by_name.values():
            number, tail = divmod(number, 10)
            pseudonym += str(tail)
        by_name[name] = pseudonym
    return by_name


def with_pseudonyms(entries: Iterable[LeaderboardEntry], names: dict[str, str]) -> list[LeaderboardEntry]:
    """Return the entries with pseudonyms in place of names."""
    return [LeaderboardEntry(**{**asdict(entry), "name": names[entry.name]}) for entry in entries]


COLUMNS = ("rank", "name", "rate", "low", "high", "noisy", "p99", "cpu", "memory_kib", "passed", "checks", "score",
           "points", "claim", "reference", "failure")  # fmt: skip


def to_rows(entries: list[LeaderboardEntry]) -> list[dict[str, Any]]:
    """Return a row for each server: first the standings, then the servers without a speed and the reasons."""
    rows = [{"rank": each.rank, **asdict(each.entry)} for each in standings(entries)]
    rows += [
        {"rank": None, **asdict(entry)}
        for entry in sorted(entries, key=lambda each: each.name)
        if entry.failure
    ]
    return [{key: row[key] for key in COLUMNS} for row in rows]


def as_csv(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV. A text that a spreadsheet would take for a formula (=1+1) gets a leading apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    for row in rows:
        writer.writerow(no_formula(value) if isinstance(value, str) else value for value in row)
    return out.getvalue()


def no_formula(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(tuple("=+-@\t\r")) else text


def to_csv(entries: list[LeaderboardEntry]) -> str:
    """Return the rows as CSV."""
    return as_csv(COLUMNS, (row.values() for row in to_rows(entries)))


def names_as_csv(names: dict[str, str]) -> str:
    """Return the table of names and pseudonyms as CSV."""
    return as_csv(("name", "pseudonym"), names.items())


def to_json(entries: list[LeaderboardEntry]) -> str:
    """Return the rows as JSON."""
    table = {
        "format": "ewe-leaderboard/1",
        "lab": entries[0].lab,
        "title": entries[0].title,
        "rows": to_rows(entries),
    }
    return json.dumps(table, ensure_ascii=False, indent=1) + "\n"


def to_text(entries: list[LeaderboardEntry]) -> str:
    """Return the table as text for a terminal."""
    lines = [
        f"{'':>4}  {'name':<28} {'rate':>6} {'spread':>14} {'p99':>6} {'CPU':>6} {'KiB':>7}  checks  points"
    ]
    for each in standings(entries):
        entry = each.entry
        spread = f"{entry.low:.2f} to {entry.high:.2f}"
        marks = f"{count_text(entry.passed, entry.checks):>6}  {count_text(entry.score, entry.points):>6}"
        lines.append(
            f"{each.rank or '–':>4}  {entry.name[:28]:<28} {entry.rate:>6.2f} {spread:>14} "
            f"{figure_text(entry.p99):>6} {figure_text(entry.cpu):>6} {figure_text(entry.memory_kib, 1):>7}  "
            f"{marks}"
        )
    lines += [f"   –  {entry.name[:28]:<28} no speed: {entry.failure}" for entry in entries if entry.failure]
    return "\n".join(lines) + "\n"


def count_text(count: int, all_count: int) -> str:
    """Return a count of several as text; a dash if there are none, as after `ewe-grade --only speed`."""
    return f"{count}/{all_count}" if all_count else "–"


def figure_text(value: float | None, digits: int = 2) -> str:
    """Return a figure as text; a dash if it was not measured."""
    return "–" if value is None else f"{value:.{digits}f}"
