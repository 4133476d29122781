"""Grading from Python, above all from a notebook: `from ewe_classroom import check`.

    class Mine(Processor):                 in one cell
        def serve(self, listener): ...

    check(Mine, lab="serial")              in the next cell: a table of the checks, each with its explanation
    check("server.py", lab="pool").of(10)  the score as a float, 0.0 to 10.0: nbgrader gives partial credit for it

A class in a notebook is in no file, but the grader needs one. check() therefore writes a file with the class, and
with the functions, classes, imports and plain constants of the notebook that the class uses. The grader runs this
file as a model of ewe.

Possible failures: the class uses an object of the notebook that has no source, such as an open file. The error
names the object.

Read next: grader/apart.py.
"""

from __future__ import annotations

import ast
import inspect
import sys
import tempfile
import textwrap
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from ewe_classroom.grader.apart import Grader
from ewe_classroom.grader.formats import summary_line, with_remarks
from ewe_classroom.grader.page import to_frame
from ewe_classroom.grader.verdicts import PASSED, Report, Verdict

CONSTANTS = (int, str, bytes, bool, tuple, type(None))


class Graded:
    """The result of a grading. A notebook shows it as a report, a terminal as lines of text."""

    def __init__(self, report: Report) -> None:
        self.report = report

    @property
    def score(self) -> int:
        return self.report.score

    @property
    def points(self) -> int:
        return self.report.points

    @property
    def passed(self) -> bool:
        """True if every check has passed."""
        return self.report.all_passed

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdicts, by the names of the checks."""
        return {verdict.name: verdict for verdict in self.report.verdicts}

    def of(self, points: float) -> float:
        """Return the share of `points` that the server earned.

        nbgrader marks the value of a cell's last line, such as of(10). If no check has points (as with `only`),
        every check counts the same.
        """
        if self.report.points:
            return points * self.report.score / self.report.points
        passed = sum(each.status == PASSED for each in self.report.verdicts)
        return points * passed / max(len(self.report.verdicts), 1)

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        lines = with_remarks(self.report, summary_line(self.report))
        for verdict in self.report.verdicts:
            lines.append(f"{verdict.status:<8}{verdict.name:<22}{verdict.score}/{verdict.points}")
            if verdict.status != PASSED:
                lines.append(textwrap.indent(verdict.text(), "        "))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the report for a notebook, in a frame: the style of the report must not change the notebook."""
        return to_frame(self.report)


def check(
    server: str | Path | type,
    lab: str = "thread",
    *,
    only: Iterable[str] = (),
    seed: str | None = None,
    speed: bool = False,
    user: str | None = None,
) -> Graded:
    """Grade a server. A lab takes about 15 seconds.

    server: a file (a model of ewe, or a program), a command with {port} and {root}, or a subclass of Processor.
    only: names of checks. seed: a student's name. user: the server's account, if the caller is root.
    Raises GradingFailed with one line if the file, lab or check does not exist, and TypeError or ValueError if the
    source of a class cannot be found.
    """
    arguments = ["--lab", lab]
    arguments += [word for name in only for word in ("--only", name)]
    arguments += ["--seed", seed] if seed is not None else []
    arguments += ["--user", user] if user is not None else []
    arguments += ["--speed"] if speed else []
    if not isinstance(server, type):
        text = str(server)
        return graded([*arguments, *(["--command", text] if "{port}" in text else [text])])
    with tempfile.TemporaryDirectory(prefix="ewe-check-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # the server may run as another account, which has to read the file
        file = directory / "cell.py"
        file.write_text(source_of(server), encoding="utf-8")
        return graded([*arguments, str(file)])


def graded(arguments: list[str]) -> Graded:
    """Run the grader until it ends; return the result. Raises GradingFailed."""
    with Grader(arguments) as grader:
        # The latest report again and again: only the last one, which is complete, stays in memory.
        reports = deque(grader.reports(), maxlen=1)
    return Graded(reports.pop())


def source_of(cls: type) -> str:
    """Return the text of a file with a class and the names that it uses from its module.

    Raises TypeError, ValueError.
    """
    source = CollectedSource(cls)
    source.add(cls.__name__, cls)
    return source.text()


class CollectedSource:
    """The definitions of a class and of the names that it uses from its module (a notebook).

    add() follows the names: a class may use a function, which uses a constant.
    """

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.module = vars(sys.modules[cls.__module__])
        self.imports: list[str] = []
        self.parts: list[str] = []  # the definitions; each comes after those that it depends on
        self.seen: set[str] = set()

    def text(self) -> str:
        return "\n".join(["from __future__ import annotations", *self.imports, "", *self.parts])

    def add(self, name: str, value: Any) -> None:
        """Add the definition of a name of the module, after the definitions that it depends on.

        Raises TypeError, ValueError.
        """
        if name in self.seen:
            return
        self.seen.add(name)  # before its own names: a function may call itself
        home = getattr(value, "__module__", None)  # the module of its definition
        if isinstance(value, ModuleType):
            self.imports.append(f"import {value.__name__} as {name}")
        elif isinstance(value, FunctionType | type) and home == self.cls.__module__:
            self.add_definition(name, value)
        elif isinstance(value, float):
            # inf and nan are no literals.
            self.parts.append(f"{name} = float('{float(value)!r}')\n")
        elif isinstance(value, CONSTANTS) and is_literal(value):
            self.parts.append(f"{name} = {value!r}\n")
        elif home is not None and (imported := name_in_module(home, value)).isidentifier():
            self.imports.append(f"from {home} import {imported} as {name}")
        else:
            raise ValueError(
                f"{self.cls.__name__} uses {name}, an object of the notebook (type {type(value).__name__}) without "
                "a source; create it inside the class"
            )

    def add_definition(self, name: str, value: FunctionType | type) -> None:
        """Add the source of a function or class of the module, and before it the names that it uses.

        Raises TypeError, ValueError.
        """
        first_name = value.__name__
        # `name` is a second name of the value: send = helper
        if name != first_name and self.module.get(first_name) is value:
            self.add(first_name, value)
            self.parts.append(f"{name} = {first_name}\n")
            return
        try:
            source = textwrap.dedent(inspect.getsource(value))
        except OSError:  # as in an interactive Python, which keeps no source
            raise ValueError(
                f"Python does not know the source of {name}; write it into a file, or into a cell of a notebook"
            ) from None
        for each in ast.walk(ast.parse(source)):
            if isinstance(each, ast.Name) and each.id in self.module:
                self.add(each.id, self.module[each.id])
        self.parts.append(source)


def name_in_module(home: str, value: Any) -> str:
    """Return the name by which a value can be imported from the module `home`, which defines it; "" if it has none.

    Usually this is its qualified name. But random.choice() is a method of an object: its qualified name is
    "Random.choice", and only its short name is a name of the module.
    """
    name: str = getattr(value, "__name__", "")
    qualified_name: str = getattr(value, "__qualname__", "")
    return name if getattr(sys.modules.get(home), name, None) is value else qualified_name


def is_literal(value: Any) -> bool:
    """Return whether Python reads repr(value) as this value: not a member of an IntEnum, nor a tuple of objects."""
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError):
        return False
