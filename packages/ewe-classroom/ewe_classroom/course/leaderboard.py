"""A leaderboard of a lab: the results of `ewe-grade --speed --json FILE`, one file for each student, as one table.

    submissions/ada/report.json ─┐
    submissions/bo/report.json  ─┼─▶ read() ─▶ entries ─▶ standings() ─▶ page, CSV, JSON, a table for a terminal
    submissions/cy/report.json  ─┘

A student's name is the one that --seed gave to ewe-grade, else the file's name, else the name of its directory. The
latest file of a name counts.

The rules are those of speed.py. A server that failed a request has no speed, and is not listed. A ratio whose
spread is too large to tell is listed without a rank.

Pseudonyms: with a key, each name becomes two words and a number, by HMAC-SHA256 of the name. The same key gives the
same pseudonym next week. Who does not know the key cannot compute a pseudonym from a name.

Read next: ../grader/speed.py.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ewe.config.messages import ConfigError
from ewe_classroom.grader.formats import rate_of

FORMAT = "ewe-grade/1"
MOST_BYTES = 4 << 20  # of one file of results
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
MOST_OF_NAME = 60  # characters


@dataclass(frozen=True)
class Entry:
    """One server. The ratios are shares of the reference's; failure: why it has no speed, "" if it has one."""

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
    """One row of the table. rank: None where the spread is too large to tell."""

    rank: int | None
    entry: Entry


def read(directory: Path, lab: str | None, warn: Callable[[str], None]) -> list[Entry]:
    """Return the latest entry of each name below a directory. warn: told of each file that is left out.

    Raises ConfigError: there is no such directory, or no result; or results of several labs, and `lab` is None.
    """
    if not directory.is_dir():
        raise ConfigError(
            f"{directory}: not a directory; name the one that holds the files of ewe-grade --json"
        )
    found: dict[str, Entry] = {}
    for path in sorted(directory.rglob("*.json")):
        try:
            entry = entry_of(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as reason:
            why = getattr(reason, "strerror", None) or "not a file that ewe-grade --json has written"
            warn(f"{path}: {why}; left out")
            continue
        if lab is None or entry.lab == lab:
            there = found.get(entry.name)
            found[entry.name] = entry if there is None or entry.began >= there.began else there
    labs = sorted({entry.lab for entry in found.values()})
    if not labs:
        raise ConfigError(
            f"{directory}: no results{f' of the lab {lab}' if lab else ''}; ewe-grade --speed --json makes them"
        )
    if len(labs) > 1:
        raise ConfigError(
            f"{directory} holds results of several labs; choose one with --lab: {', '.join(labs)}"
        )
    return list(found.values())


def entry_of(path: Path) -> Entry:
    """Return the entry of one file of results. Raises OSError; ValueError, KeyError, TypeError for another file."""
    with path.open("rb") as file:
        table = json.loads(file.read(MOST_BYTES))
    if table["format"] != FORMAT:
        raise ValueError("another format")
    checks = [verdict for verdict in table["verdicts"] if verdict["name"] != "speed"]
    name = str(table.get("student") or (path.parent.name if path.stem in GENERAL_NAMES else path.stem))
    entry = Entry(
        name="".join(each if each.isprintable() else "?" for each in name[:MOST_OF_NAME]),
        lab=str(table["lab"]),
        title=str(table["title"]),
        began=float(table["began"]),
        score=int(table["score"]),
        points=int(table["max_score"]),
        passed=sum(verdict["status"] == "passed" for verdict in checks),
        checks=len(checks),
    )
    speed = table.get("speed")
    if not speed:
        return entry
    more: dict[str, Any] = {
        "reference": str(speed["reference"]), "claim": int(speed["claim"]), "failure": str(speed["failure"])
    }  # fmt: skip
    if not speed["failure"]:
        rate = rate_of(speed)
        more |= {"rate": number(rate["median"]), "low": number(rate["low"]), "high": number(rate["high"])}
        more |= {
            key: None if speed[key] is None else number(speed[key]) for key in ("p99", "cpu", "memory_kib")
        }
        more["noisy"] = bool(speed["noisy"])
    return Entry(**{**asdict(entry), **more})


def number(value: Any) -> float:
    """Return a number of a file. Raises ValueError, TypeError."""
    found = float(value)
    if not 0 <= found < 1e9:
        raise ValueError("not a number of a measurement")
    return found


def standings(entries: Iterable[Entry]) -> list[Standing]:
    """Return the servers that have a speed, the fastest first."""
    rows: list[Standing] = []
    rank = 0
    for entry in sorted(entries, key=lambda each: (-each.rate, each.name)):
        if not entry.failure:
            rank += not entry.noisy
            rows.append(Standing(None if entry.noisy else rank, entry))
    return rows


def pseudonyms(names: Iterable[str], key: str) -> dict[str, str]:
    """Return a pseudonym for each name; no two are the same."""
    found: dict[str, str] = {}
    coats, breeds = COATS.split(), BREEDS.split()
    for name in sorted(names):
        number = int.from_bytes(hmac.digest(key.encode(), name.strip().casefold().encode(), hashlib.sha256))
        number, coat = divmod(number, len(coats))
        number, breed = divmod(number, len(breeds))
        number, tail = divmod(number, 90)
        made = f"{coats[coat]} {breeds[breed]} {tail + 10}"
        while made in found.values():
            number, tail = divmod(number, 10)
            made += str(tail)
        found[name] = made
    return found


def renamed(entries: Iterable[Entry], names: dict[str, str]) -> list[Entry]:
    """Return the entries with pseudonyms in place of names."""
    return [Entry(**{**asdict(entry), "name": names[entry.name]}) for entry in entries]


COLUMNS = ("rank", "name", "rate", "low", "high", "noisy", "p99", "cpu", "memory_kib", "passed", "checks", "score",
           "points", "claim", "reference", "failure")  # fmt: skip


def to_rows(entries: list[Entry]) -> list[dict[str, Any]]:
    """Return a row for each server: the standings, then the servers without speed, with the reason."""
    rows = [{"rank": each.rank, **asdict(each.entry)} for each in standings(entries)]
    rows += [
        {"rank": None, **asdict(entry)}
        for entry in sorted(entries, key=lambda each: each.name)
        if entry.failure
    ]
    return [{key: row[key] for key in COLUMNS} for row in rows]


def as_csv(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV. A spreadsheet takes =1+1 for a formula: a text that begins like one gets a '."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    for row in rows:
        writer.writerow(
            f"'{value}" if isinstance(value, str) and value.startswith(tuple("=+-@\t\r")) else value
            for value in row
        )
    return out.getvalue()


def to_csv(entries: list[Entry]) -> str:
    """Return the rows as CSV."""
    return as_csv(COLUMNS, (row.values() for row in to_rows(entries)))


def names_as_csv(names: dict[str, str]) -> str:
    """Return which name has which pseudonym."""
    return as_csv(("name", "pseudonym"), names.items())


def to_json(entries: list[Entry]) -> str:
    """Return the rows as JSON."""
    table = {
        "format": "ewe-leaderboard/1",
        "lab": entries[0].lab,
        "title": entries[0].title,
        "rows": to_rows(entries),
    }
    return json.dumps(table, ensure_ascii=False, indent=1) + "\n"


def to_text(entries: list[Entry]) -> str:
    """Return the rows for a terminal."""
    lines = [
        f"{'':>4}  {'name':<28} {'rate':>6} {'spread':>14} {'p99':>6} {'CPU':>6} {'KiB':>7}  checks  points"
    ]
    for each in standings(entries):
        entry = each.entry
        spread = f"{entry.low:.2f} to {entry.high:.2f}"
        marks = f"{entry.passed}/{entry.checks}   {entry.score}/{entry.points}"
        lines.append(
            f"{each.rank or '–':>4}  {entry.name[:28]:<28} {entry.rate:>6.2f} {spread:>14} {shown(entry.p99):>6} "
            f"{shown(entry.cpu):>6} {shown(entry.memory_kib, 1):>7}  {marks}"
        )
    lines += [f"   –  {entry.name[:28]:<28} no speed: {entry.failure}" for entry in entries if entry.failure]
    return "\n".join(lines) + "\n"


def shown(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
