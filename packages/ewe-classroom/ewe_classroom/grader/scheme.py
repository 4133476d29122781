"""The grading scheme of a lab: its checks with points, options and hints. A scheme is data, not code.

    title = "The pool: exactly n at a time"
    workers = 4                          # {workers} in the server's command
    subject = "server"                   # the kind of submission (kinds.py): "server", "engine" or "data"

    [[check]]
    name = "progress"                    # a name from `ewe-grade --list`
    points = 20
    options = { limit = "workers" }      # `ewe-grade --explain progress` lists the options
    hint = "Read section 3 of the text." # added to the check's hint

    [[check]]
    name = "stop"
    points = 4
    needs = ["progress"]                 # a server for one client passes `stop`, too: no points without progress

    [speed]                              # speed.py: measured with --speed, or if there are marks
    reference = "pool"                   # a model of ewe, or "solution": the lab's solution in Python
    clients = 16                         # the claimed load, unless --claim gives another one
    marks = [[0.1, 2], [0.3, 4]]         # 2 points from a tenth of the reference's rate on; [] by default

The file is ewe_classroom/labs/NAME/grading.toml, or the argument of --lab PATH.toml.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ewe.config.messages import ConfigError, nearest
from ewe_classroom.grader.check import Check, all_checks
from ewe_classroom.grader.kinds import DATA, NAMES, SERVER

LABS = Path(__file__).parents[1] / "labs"
KNOWN_KEYS = {"title", "workers", "subject", "check", "speed"}
KNOWN_OF_SPEED = {"reference", "clients", "marks"}
REFERENCES = ("serial", "fork", "prefork", "thread", "pool", "asyncio", "event", "solution")
MAX_CLIENTS = 400
# An untouched starter has at most a tenth of a lab's points: tests/test_starters.py grades the starters.
STARTER_PART = 10
KNOWN_OF_CHECK = {"name", "points", "options", "hint", "needs"}


@dataclass(frozen=True)
class Item:
    """One check of a lab. needs: the checks that must pass before this one gives points."""

    check: Check
    points: int
    options: dict[str, str] = field(default_factory=dict)
    hint: str = ""
    needs: tuple[str, ...] = ()


class SpeedMark(NamedTuple):
    """The points from a ratio on. ratio: the server's rate, divided by that of the reference."""

    ratio: float
    points: int


@dataclass(frozen=True)
class SpeedPlan:
    """The speed measurement of a lab. clients: the claimed load."""

    reference: str = "thread"
    clients: int = 16
    marks: tuple[SpeedMark, ...] = ()

    @property
    def points(self) -> int:
        return max((mark.points for mark in self.marks), default=0)


@dataclass(frozen=True)
class Scheme:
    """The grading scheme of a lab: its checks with their points, and the number of workers of the server.

    is_whole_lab: the checks and points are those of a lab of ewe, and no --only has chosen some of them.
    """

    name: str
    title: str
    workers: int
    items: tuple[Item, ...]
    speed: SpeedPlan = SpeedPlan()
    kind: str = SERVER  # of the submission (kinds.py); `subject` in the file
    is_whole_lab: bool = False

    @property
    def starter_points(self) -> int | None:
        """The points that the lab's starter has at most; None if nothing is known about them."""
        is_known = self.is_whole_lab and self.kind != DATA  # no test grades a starter of data
        return sum(item.points for item in self.items) // STARTER_PART if is_known else None

    def checks_for_language(self, language: str) -> Scheme:
        """Return the scheme without the checks that do not suit a submission in a language."""
        items = tuple(item for item in self.items if item.check.suits(language))
        return replace(self, items=items)


def solutions() -> list[str]:
    """Return the directories that contain the labs' solutions: the labs, and the history of a clone."""
    history = LABS.resolve().parents[3] / ".git"
    if history.is_file():  # of a linked worktree: "gitdir: /home/ada/ewe/.git/worktrees/pool"
        inside = history.parent / history.read_text().removeprefix("gitdir: ").strip()
        history = next((each for each in inside.parents if each.name == ".git"), history)
    return [str(LABS.resolve()), *([str(history)] if history.is_dir() else [])]


def lab_names() -> list[str]:
    return sorted(path.parent.name for path in LABS.glob("*/grading.toml"))


def load(name: str) -> Scheme:
    """Load the scheme of a lab by its name, or from a file. Raises ConfigError."""
    path = Path(name) if name.endswith(".toml") else LABS / name / "grading.toml"
    # False for a name that is too long, and below a closed directory: Path.is_file() would raise an error.
    if not os.path.isfile(path):
        near = nearest(name, lab_names())
        raise ConfigError(f"--lab: there is no lab {name}{near}; the labs are {', '.join(lab_names())}")
    table = read_table(path)
    workers = table.get("workers", 4)
    if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= 16:
        raise ConfigError(f"{path}: workers = {workers!r}: expected a number from 1 to 16")
    kind = table.get("subject", SERVER)
    if kind not in NAMES:
        raise ConfigError(f"{path}: subject = {kind!r}: expected one of {', '.join(NAMES)}")
    rows = table.get("check")
    if not isinstance(rows, list) or not rows:
        raise ConfigError(f"{path}: no [[check]]; a lab needs at least one")
    # The name of the lab: a lab's own file is always called grading.toml, so its folder has the name.
    stem = path.parent.name if path.name == "grading.toml" else path.stem
    items = tuple(read_item(row, f"{path}: check {number}") for number, row in enumerate(rows, 1))
    check_names(items, path)
    check_needs(items, path)
    if kind != SERVER and "speed" in table:
        raise ConfigError(
            f"{path}: speed: only servers have a speed, and the subject is {kind}; remove the table"
        )
    speed = read_speed(table.get("speed", {}), stem, f"{path}: speed")
    for item in items:
        if item.check.kind != kind:
            raise ConfigError(
                f"{path}: check {item.check.name} needs the subject {item.check.kind}, not {kind}"
            )
    is_whole_lab = not name.endswith(".toml")
    return Scheme(stem, str(table.get("title", stem)), workers, items, speed, kind, is_whole_lab)


def read_table(path: Path) -> dict[str, Any]:
    """Return the table of a scheme's file. Raises ConfigError if it cannot be read, or for an unknown key."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as reason:
        raise ConfigError(f"{path}: {reason.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    unknown = sorted(table.keys() - KNOWN_KEYS)
    if unknown:
        raise ConfigError(f"{path}: unknown key {unknown[0]}{nearest(unknown[0], KNOWN_KEYS)}")
    return table


def check_names(items: tuple[Item, ...], path: Path) -> None:
    """Raise ConfigError if a check appears twice."""
    names = [item.check.name for item in items]
    repeated = {each for each in names if names.count(each) > 1}
    if repeated:
        raise ConfigError(f"{path}: check {min(repeated)} appears twice")


def check_needs(items: tuple[Item, ...], path: Path) -> None:
    """Raise ConfigError if a check needs one that the lab does not have, or one that needs others itself."""
    by_name = {item.check.name: item for item in items}
    for item in items:
        for name in item.needs:
            if name not in by_name:
                near = nearest(name, by_name)
                raise ConfigError(
                    f"{path}: check {item.check.name} needs {name!r}, which the lab lacks{near}"
                )
            if name == item.check.name or by_name[name].needs:
                raise ConfigError(
                    f"{path}: check {item.check.name} needs {name}, which needs a check, too; name that one"
                )


def read_speed(row: object, lab: str, where: str) -> SpeedPlan:
    """Return the plan of a table [speed]. Raises ConfigError.

    lab: if it has the name of a reference, that one is the default. where: the place, for messages.
    """
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: not a table")
    unknown = sorted(row.keys() - KNOWN_OF_SPEED)
    if unknown:
        raise ConfigError(f"{where}: unknown key {unknown[0]}{nearest(unknown[0], KNOWN_OF_SPEED)}")
    reference = row.get("reference", lab if lab in REFERENCES else SpeedPlan.reference)
    if reference not in REFERENCES:
        raise ConfigError(f"{where}: reference = {reference!r}: expected one of {', '.join(REFERENCES)}")
    clients = row.get("clients", SpeedPlan.clients)
    if not isinstance(clients, int) or isinstance(clients, bool) or not 1 <= clients <= MAX_CLIENTS:
        raise ConfigError(f"{where}: clients = {clients!r}: expected a number from 1 to {MAX_CLIENTS}")
    marks = row.get("marks", [])
    is_valid = isinstance(marks, list) and all(
        isinstance(pair, list)
        and len(pair) == 2
        and all(isinstance(value, int | float) and not isinstance(value, bool) for value in pair)
        and isinstance(pair[1], int)
        and min(pair) >= 0
        for pair in marks
    )
    if not is_valid:
        raise ConfigError(
            f"{where}: marks = {marks!r}; write pairs of a ratio and whole points: [[0.1, 2], [0.3, 4]]"
        )
    return SpeedPlan(reference, clients, tuple(SpeedMark(float(ratio), points) for ratio, points in marks))


def read_item(row: object, where: str) -> Item:
    """Return the item of one table [[check]]. where: the place, for messages. Raises ConfigError."""
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: not a table")
    unknown = sorted(row.keys() - KNOWN_OF_CHECK)
    if unknown:
        raise ConfigError(f"{where}: unknown key {unknown[0]}{nearest(unknown[0], KNOWN_OF_CHECK)}")
    name, points = row.get("name"), row.get("points", 0)
    checks = all_checks()
    if not isinstance(name, str) or name not in checks:
        raise ConfigError(
            f"{where}: no check is called {name!r}{nearest(str(name), checks)}; see ewe-grade --list"
        )
    if not isinstance(points, int) or isinstance(points, bool) or points < 0:
        raise ConfigError(f"{where} ({name}): points = {points!r}: expected a whole number, 0 or more")
    options = row.get("options", {})
    if not isinstance(options, dict):
        raise ConfigError(f"{where} ({name}): options: not a table")
    for key in options:
        if key not in checks[name].options:
            raise ConfigError(f"{where} ({name}): unknown option {key}; see ewe-grade --explain {name}")
        # The meaning of an option lists its values: "request: the next ...; second: a request ...".
        values = [part.partition(":")[0].strip() for part in checks[name].options[key].split(";")]
        if options[key] not in values:
            raise ConfigError(
                f"{where} ({name}): {key} = {options[key]!r}: expected one of {', '.join(values)}"
            )
    needs = row.get("needs", [])
    if not isinstance(needs, list) or not all(isinstance(each, str) for each in needs):
        raise ConfigError(f'{where} ({name}): needs = {needs!r}: expected names of checks: ["progress"]')
    return Item(checks[name], points, dict(options), str(row.get("hint", "")), tuple(needs))
