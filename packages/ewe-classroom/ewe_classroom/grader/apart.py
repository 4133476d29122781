"""Grading from another program: start ewe-grade as a process, and read its report after each check.

    pytest, a notebook ── start ─▶ ewe-grade --json FILE ...
                       ◀── FILE ──  written after each check, and replaced as a whole

The grader moves itself into a private network and adopts orphans. Both would change pytest or a notebook for the
rest of its life, and a process with threads, such as a notebook, may not make a user namespace. The grader
therefore runs as a separate process.

Possible failures: the command line is wrong (GradingFailed then has ewe-grade's line), or the process ends before
it has finished its report.

Read next: ../pytest_plugin.py, ../notebook.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

import ewe
from ewe.scratch import Scratch
from ewe_classroom.grader.verdicts import NOT_RUN, Report, Verdict

POLL_EVERY_S = 0.05
MAX_ERROR_BYTES = 4000  # enough for the last line of standard error
MAIN_PROGRAM = "import sys; from ewe_classroom.grader.cli import main; sys.exit(main())"
# The directories from which Python imports ewe and the grader: two in a clone, one if they are installed.
IMPORT_DIRECTORIES = list(
    dict.fromkeys(
        str(path) for path in (Path(ewe.__file__).resolve().parents[1], Path(__file__).resolve().parents[2])
    )
)
# Without -P, a student's argparse.py in the current directory would replace Python's module within the grader.
COMMAND = (sys.executable, "-P", "-c", f"import sys; sys.path[:0] = {IMPORT_DIRECTORIES!r}; {MAIN_PROGRAM}")


class GradingFailed(Exception):
    """The grader could not grade the server. The message is one line."""


class Grader:
    """A running ewe-grade process. `with Grader([...])` starts the process, and ends it at the end of the block.

    file: the report. errors: the process's standard error. scratch: the temporary directory of both.
    """

    def __init__(self, arguments: Sequence[str], directory: str | None = None) -> None:
        """Start `ewe-grade` with these arguments. directory: its current directory. Raises OSError, ValueError."""
        with ExitStack() as stack:
            self.scratch = Scratch("ewe-grade-")
            stack.callback(self.scratch.close)
            self.file = Path(self.scratch.path) / "report.json"
            self.errors = stack.enter_context(open(Path(self.scratch.path) / "errors", "w+b"))
            self.process = subprocess.Popen(
                [*COMMAND, "--json", str(self.file), *arguments],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
            )
            stack.pop_all()  # close() removes the directory from now on

    def report(self) -> Report | None:
        """Return the latest report; None before the first one."""
        try:
            return from_json(json.loads(self.file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def verdict(self, name: str) -> Verdict:
        """Return the final verdict of a check, and wait for it. Raises GradingFailed if the check does not run."""
        for report in self.reports():
            for verdict in report.verdicts:
                if verdict.name == name and verdict.status != NOT_RUN and not verdict.waits:
                    return verdict
        raise GradingFailed(f"ewe-grade has no verdict of {name}")

    def reports(self) -> Iterator[Report]:
        """Yield the latest report every POLL_EVERY_S until the grader has ended. Raises GradingFailed.

        The same report may come several times. The last one is complete.
        """
        while True:
            # The status first: a grader that has ended cannot write another report after this one was read.
            status = self.process.poll()
            report = self.report()
            if report is not None and report.refused:
                raise GradingFailed(report.refused)
            if report is not None:
                yield report
            if status is not None:
                break
            time.sleep(POLL_EVERY_S)
        if report is None or not report.finished:
            raise GradingFailed(self.last_output() or f"ewe-grade ended with status {status}")

    def last_output(self) -> str:
        """Return the last line of the grader's standard error; "" if it wrote none."""
        self.errors.seek(0)
        return self.errors.read()[-MAX_ERROR_BYTES:].decode(errors="replace").strip().rpartition("\n")[2]

    def close(self) -> None:
        """End the grader. The grader then ends the server under test."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()
        self.errors.close()
        self.scratch.close()

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def from_json(table: dict[str, Any]) -> Report:
    """Return the report that a file of `--json` describes."""
    # The file also has computed values, such as "score", which are no fields of the classes.
    known = {each.name for each in fields(Verdict)}
    verdicts = [
        Verdict(**{key: value for key, value in each.items() if key in known}) for each in table["verdicts"]
    ]
    values = {each.name: table[each.name] for each in fields(Report) if each.name in table}
    return Report(**{**values, "verdicts": verdicts})
