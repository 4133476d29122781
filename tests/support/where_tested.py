"""Where is a module tested? Write the table at the end of tests/README.md.

`make where-tested` runs all tests (a quarter of an hour on two cores) and records which lines of functions each
file of tests runs (line_recorder.py; needs Python 3.12). Nearly every test of a server runs the lines that every
request passes, so the number of lines says little. A line therefore counts 1/n if n files of tests run it. The row
of a module names the files with the highest sums: as few as run nine tenths of the lines that any test runs, and
three at most.

    python tests/support/where_tested.py               all tests, then the table
    python tests/support/where_tested.py --table DIR   the table from a directory that an earlier run has kept
    python tests/support/where_tested.py --new FILE... these files of tests, then the rows of new modules

A new module has a row by hand: "new", and the files that test it. `--new` without files runs all files that such
rows name. It writes the rows whose files all run, so that several runs of few files each fill the table. Such a row
counts the lines that these files run, until all tests run again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support import line_recorder
from support.rooms import ROOT, SOURCES

README = ROOT / "tests" / "README.md"
BEGIN = "<!-- The table below is written by `make where-tested`. -->\n"
MOST_FILES = 3
ENOUGH = 0.9  # part of a module's lines that the named files run together
NEW = "new"  # what a row written by hand says instead of its lines
Lines = set[int]


def function_lines(path: Path) -> Lines:
    """Return the numbers of the lines within functions that a run can reach."""
    waiting = [compile(path.read_text(), str(path), "exec")]
    found: Lines = set()
    for code in waiting:
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
        if code.co_flags & line_recorder.IS_FUNCTION and not code.co_name.startswith("<"):
            found |= {line for _, _, line in code.co_lines() if line and line != code.co_firstlineno}
    return found


def test_files() -> list[str]:
    """Return all files of tests, as pytest names them."""
    found = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("packages/*/tests/test_*.py")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


@contextlib.contextmanager
def recorder_in_each_python() -> Iterator[None]:
    """Let each Python of this virtual environment start the recorder."""
    hook = Path(sysconfig.get_path("purelib")) / "ewe_line_recorder.pth"
    source = str(ROOT / "tests" / "support")
    hook.write_text(f"{source}\nimport line_recorder; line_recorder.start()\n")
    try:
        yield
    finally:
        hook.unlink()


def record(directory: Path, arguments: list[str]) -> None:
    """Run the tests, and leave in this directory what they have run."""
    first, lines = {}, 0
    for path in SOURCES.values():
        first[str(path)] = lines
        lines += len(path.read_text().splitlines()) + 2
    (directory / "index.json").write_text(json.dumps({"first": first, "lines": lines}))
    directory.chmod(0o755)
    for name in test_files():
        path = directory / name.replace("/", ".")
        path.write_bytes(bytes(lines))
        path.chmod(0o666)  # the engines of X-Switch are processes of other users
    command = [sys.executable, "-m", "pytest", "-p", "line_recorder", "-n", "7", "--dist", "worksteal"]
    environment = {**os.environ, line_recorder.VARIABLE: str(directory)}
    with recorder_in_each_python():
        subprocess.run([*command, *arguments], cwd=ROOT, env=environment, check=False)


def recorded(directory: Path) -> dict[str, dict[str, Lines]]:
    """Return module -> file of tests -> the lines of the module that this file has run."""
    first = json.loads((directory / "index.json").read_text())["first"]
    found: dict[str, dict[str, Lines]] = {}
    files = {name: directory / name.replace("/", ".") for name in test_files()}
    contents = {name: path.read_bytes() for name, path in files.items() if path.exists()}
    for module, path in SOURCES.items():
        reachable = function_lines(path)
        begin = first[str(path)]
        found[module] = {
            name: {line for line in reachable if content[begin + line]} for name, content in contents.items()
        }
    return found


def best_files(by_file: dict[str, Lines]) -> list[str]:
    """Return the files that test a module most, the best first."""
    runs: dict[int, int] = {}
    for lines in by_file.values():
        for line in lines:
            runs[line] = runs.get(line, 0) + 1
    scores = {name: sum(1 / runs[line] for line in lines) for name, lines in by_file.items() if lines}
    chosen: list[str] = []
    together: Lines = set()
    for name in sorted(scores, key=lambda name: (-scores[name], name)):
        if len(chosen) == MOST_FILES or len(together) >= ENOUGH * len(runs):
            break
        if by_file[name] - together:
            chosen.append(name)
            together |= by_file[name]
    return chosen


def row(module: str, by_file: dict[str, Lines]) -> str | None:
    """Return a module's row in Markdown; None for a module without a function."""
    if not (reachable := function_lines(SOURCES[module])):
        return None
    run = len(set().union(*by_file.values()))
    names = ", ".join(f"`{name}`" for name in best_files(by_file)) or "none"
    return f"| `{module}` | {100 * run // len(reachable)} % of {len(reachable)} | {names} |"


def table(rows: dict[str, str | None]) -> str:
    """Return the table in Markdown. `rows`: module -> its row."""
    lines = ["| module | its lines that a test runs | tests |", "|---|---:|---|"]
    return "\n".join(lines + [line for _, line in sorted(rows.items()) if line]) + "\n"


def lines_of_readme() -> dict[str, str]:
    """Return the table of tests/README.md: module -> its row."""
    lines = README.read_text().partition(BEGIN)[2].splitlines()
    return {line.split("|")[1].strip(" `"): line for line in lines if line.startswith("| `")}


def rows_of_readme() -> dict[str, list[str]]:
    """Return the table of tests/README.md: module -> its files of tests."""
    rows = {module: line.split("|") for module, line in lines_of_readme().items()}
    return {
        module: [name.strip(" `") for name in row[3].split(",") if "/" in name]
        for module, row in rows.items()
    }


def new_rows(files: list[str]) -> dict[str, list[str]]:
    """Return the rows that say "new" and whose files are among these, or all such rows if `files` is empty."""
    new = {module for module, line in lines_of_readme().items() if line.split("|")[2].strip() == NEW}
    named = {module: names for module, names in rows_of_readme().items() if module in new}
    return {module: names for module, names in named.items() if not files or set(names) <= {*files}}


def main() -> None:
    """Run the tests with the recorder, and write the table."""
    parser = argparse.ArgumentParser(
        description="Write the table of modules and their tests in tests/README.md."
    )
    parser.add_argument(
        "--table", metavar="DIR", type=Path, help="make the table of an earlier run's directory"
    )
    parser.add_argument("--keep", metavar="DIR", type=Path, help="keep in DIR what the tests have run")
    parser.add_argument("--new", action="store_true", help='write the rows that say "new", and no other')
    parser.add_argument("tests", nargs="*", help="arguments of pytest")
    given = parser.parse_args()
    if line_recorder.MONITORING is None:
        sys.exit("where_tested: sys.monitoring needs Python 3.12; use `make where-tested PYTHON=python3.12`")
    with tempfile.TemporaryDirectory(prefix="ewe-lines-") as made:
        directory = given.table or given.keep or Path(made)
        new = new_rows([name for name in given.tests if name.endswith(".py")]) if given.new else {}
        files = {name for names in new.values() for name in names}
        if given.new and not files:
            sys.exit('where_tested: no row says "new" and names only files that run')
        if not given.table:
            directory.mkdir(parents=True, exist_ok=True)
            record(directory, [*given.tests, *sorted(files.difference(given.tests))])
        found = recorded(directory)
        # A module of which no line has run keeps its row by hand: the row names the wrong files
        filled = [module for module in new if any(found[module].values())] if given.new else list(found)
        rows = {module: row(module, found[module]) for module in filled}
        kept = lines_of_readme() if given.new else {}
        README.write_text(README.read_text().partition(BEGIN)[0] + BEGIN + "\n" + table({**kept, **rows}))


if __name__ == "__main__":
    main()
