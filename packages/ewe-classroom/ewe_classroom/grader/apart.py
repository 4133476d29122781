"""Grading from another program: ewe-grade runs as a process, and its report is read as it grows.

    pytest, a notebook ── start ─▶ ewe-grade --json FILE ...
                       ◀── FILE ──  written after each check, and replaced as a whole

The grader moves into a private network, adopts orphans and drops privileges. A program that goes on afterwards must
not do any of these things, and a notebook has threads. The grader therefore is a process.

What can go wrong: the command line is wrong (its one line becomes GradingFailed), or the process ends before its
report is finished.

Read next: ../pytest_plugin.py, ../notebook.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import ewe
import ewe_classroom
from ewe.scratch import Scratch
from ewe_classroom.grader.verdicts import NOT_RUN, Report, Verdict

LOOK_S = 0.05
CODE = "import sys; from ewe_classroom.grader.cli import main; sys.exit(main())"
# Where Python finds ewe and the grader: two directories in a clone, one if they are installed.
HOMES = list(
    dict.fromkeys(str(Path(file).resolve().parents[1]) for file in (ewe.__file__, ewe_classroom.__file__))
)


class GradingFailed(Exception):
    """The grader could not grade. The text is one line."""


class Grader:
    """A grader that runs. `with Grader([...]) as grader` starts it, and ends it if it still runs."""

    def __init__(self, arguments: Sequence[str], directory: str | None = None) -> None:
        """Start `ewe-grade` with these arguments; directory: where it runs."""
        self.place = Scratch("ewe-grade-")
        self.file = Path(self.place.path) / "report.json"
        self.errors = open(Path(self.place.path) / "errors", "w+b")
        # The directories of ewe come first: a student's file json.py or select.py next to the server hides nothing.
        code = f"import sys; sys.path[:0] = {HOMES!r}; {CODE}"
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, "--json", str(self.file), *arguments],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
        )

    def report(self) -> Report | None:
        """Return the report so far; None before the first one."""
        try:
            return from_json(json.loads(self.file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def verdict(self, name: str) -> Verdict:
        """Wait for the verdict of a check. Raises GradingFailed."""
        for report in self.reports():
            for verdict in report.verdicts:
                if verdict.name == name and verdict.status != NOT_RUN:
                    return verdict
        raise GradingFailed(f"ewe-grade has no verdict of {name}")

    def reports(self) -> Iterator[Report]:
        """Yield the report again and again, the last time when it is finished. Raises GradingFailed."""
        while True:
            status = self.process.poll()
            report = self.report()
            if report is not None and report.refused:
                raise GradingFailed(report.refused)
            if report is not None:
                yield report
            if status is not None:
                break
            time.sleep(LOOK_S)
        if report is None or not report.finished:
            raise GradingFailed(self.last_words() or f"ewe-grade ended with status {status}")

    def last_words(self) -> str:
        """Return the last line that the grader wrote as an error."""
        self.errors.seek(0)
        return self.errors.read()[-4000:].decode(errors="replace").strip().rpartition("\n")[2]

    def close(self) -> None:
        """End the grader, and with it the server under test."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()
        self.errors.close()
        self.place.close()

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def from_json(table: dict[str, Any]) -> Report:
    """Return a report from what `--json` wrote."""
    known = {each.name for each in fields(Verdict)}
    verdicts = [
        Verdict(**{key: value for key, value in each.items() if key in known}) for each in table["verdicts"]
    ]
    more = {each.name: table[each.name] for each in fields(Report) if each.name in table}
    return Report(**{**more, "verdicts": verdicts})
