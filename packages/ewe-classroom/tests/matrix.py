"""Grade every mutant by every check of its lab, and every correct server: docs/kill-matrix.md.

    python packages/ewe-classroom/tests/matrix.py --results matrix.jsonl [--jobs 3] [--write] [NAME ...]

Each server that was graded is a line of the file of results; given again, the same command grades those that are
missing. --write writes the tables into the page. All rows take an hour with one job. gcc, Go, nginx, lighttpd
and Apache must be there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from shlex import quote

from classroom_server import PYTHON
from test_zoo import (
    CORRECT,
    EXCEPTIONS,
    FILES,
    HOUSE,
    MUTANTS,
    ZOO,
    grade,
    in_c,
    load,
    load_mutants,
    of_zoo,
)

from ewe_classroom.course.handout import write
from ewe_classroom.course.labs import labs
from ewe_classroom.grader.scheme import load as scheme

PAGE = HOUSE / "docs" / "kill-matrix.md"
data_mutants = load("data_mutants")
LANGUAGES = {"python": "Python", "c": "C", "go": "Go", "model": "a model of ewe"}


def solutions(directory: Path) -> Iterator[tuple[str, tuple[str, list[str]]]]:
    """Build the solutions of the labs in all languages; yield a name, the lab and the arguments of ewe-grade.

    The lab measure hands in data: its solution would measure for a minute, so honest data of the zoo stand for it.
    """
    for lab in labs():
        if lab.name == "measure":
            yield (
                f"honest data, {lab.name}",
                (lab.name, [str(data_mutants.write("honest", made(directory / "honest")))]),
            )
            continue
        for language, way in lab.ways.items():
            place = directory / f"{lab.name}-{language}"
            write(lab, way, place, solved=True)
            if way.build:
                subprocess.run(way.build, shell=True, cwd=place, check=True, stdout=subprocess.DEVNULL)
            if language in ("python", "model"):
                arguments = [str(place / way.grade)]
            else:
                arguments = ["--command", f"{place}/server {{port}} {{root}} {{workers}}"]
            yield f"the solution in {LANGUAGES[language]}, {lab.name}", (lab.name, arguments)


def made(directory: Path) -> Path:
    """Make a directory; return it."""
    directory.mkdir()
    return directory


def mutants() -> dict[str, tuple[str, str, str, str]]:
    """Return all mutants, as the files of the zoo have them: name -> fault, check, lab, what it must say."""
    found = MUTANTS | {f"{name}, in C": row for name, row in in_c.IN_C.items()}
    for file in FILES[1:]:
        found |= load_mutants(file)
    return found


def of_mutant(file: str, name: str, directory: Path) -> list[str]:
    """Return the arguments of ewe-grade for a mutant of a file of the zoo."""
    if file == "data_mutants":
        return [str(data_mutants.write(name, made(directory / name)))]
    if file == "engine_mutants":
        return ["--command", f"{PYTHON} {quote(f'{quote(str(ZOO / file))}.py')} {name}"]
    return of_zoo(f"{file}.py", name)


def all_rows(directory: Path) -> dict[str, tuple[str, list[str]]]:
    """Return every server: name -> lab, arguments of ewe-grade."""
    rows: dict[str, tuple[str, list[str]]] = {}
    for file in FILES:
        zoo = load_mutants(file)
        rows |= {name: (row[2], of_mutant(file, name, directory)) for name, row in zoo.items()}
    program = in_c.build(directory)
    rows |= {f"{name}, in C": (row[2], in_c.command(program, name)) for name, row in in_c.IN_C.items()}
    rows |= CORRECT
    rows |= {f"small in C, {model}": (model, in_c.command(program, model)) for model in in_c.MODELS}
    rows |= dict(solutions(directory))
    return rows


def killers(name: str, lab: str, arguments: list[str]) -> dict[str, str]:
    """Return the checks of a lab that fail on a server, and why. What does not apply to the server is left out."""
    applies = [
        item.check.name for item in scheme(lab).items if item.check.name not in EXCEPTIONS.get(name, {})
    ]
    only = [word for check in applies for word in ("--only", check)]
    with tempfile.TemporaryDirectory() as directory:
        report, _ = grade(Path(directory), "--lab", lab, *only, *arguments, timeout_s=900)
    return {each["name"]: each["text"] for each in report["verdicts"] if each["status"] != "passed"}


def tables(results: dict[str, dict[str, str]]) -> str:
    """Return the two tables of the page."""
    lines = ["| mutant | its fault | lab | must be caught by | also fail |", "|---|---|---|---|---|"]
    for name, (fault, check, lab, _) in mutants().items():
        if name not in results:
            lines.append(f"| `{name}` | {fault} | {lab} | `{check}` | not run |")
            continue
        found = results[name]
        meant = f"`{check}`" if check in found else f"**not** `{check}`"
        also = ", ".join(f"`{each}`" for each in found if each != check)
        lines.append(f"| `{name}` | {fault} | {lab} | {meant} | {also} |")
    lines += [
        "",
        "| correct server | lab | checks that fail | checks that do not apply |",
        "|---|---|---|---|",
    ]
    for name, found in results.items():
        if name in mutants():
            continue
        lab = CORRECT[name][0] if name in CORRECT else name.rpartition(", ")[2]
        failing = ", ".join(f"`{each}`" for each in found) or "none"
        apart = "; ".join(f"`{check}`: {why}" for check, why in EXCEPTIONS.get(name, {}).items())
        lines.append(f"| {name} | {lab} | {failing} | {apart} |")
    return "\n".join(lines)


def faults(results: dict[str, dict[str, str]]) -> list[str]:
    """Return what is not as it should be: a mutant that is missed or explained badly; a false verdict."""
    wrong = []
    for name, found in results.items():
        if name not in mutants():
            wrong += [f"{name}: {check} fails\n{text}" for check, text in found.items()]
            continue
        _, check, _, says = mutants()[name]
        if check not in found:
            wrong.append(f"{name}: not caught by {check}")
        elif not any(part in found[check] for part in says.split("|")):
            wrong.append(f"{name}: {check} does not say {says!r}\n{found[check]}")
    return wrong


def main() -> int:
    """Grade what is missing; print what is wrong; return the exit status."""
    parser = argparse.ArgumentParser(description="Grade all mutants and all correct servers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="grade these alone")
    parser.add_argument("--results", type=Path, required=True, help="the file of results")
    parser.add_argument("--jobs", type=int, default=1, help="servers that are graded at the same time")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/kill-matrix.md")
    options = parser.parse_args()
    kept = options.results.read_text().splitlines() if options.results.exists() else []
    results: dict[str, dict[str, str]] = {row["name"]: row["failed"] for row in map(json.loads, kept)}
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(options.jobs) as threads:
        os.chmod(place, 0o755)
        rows = all_rows(Path(place))
        wanted = [name for name in rows if name not in results and name in (options.names or rows)]
        running = {threads.submit(killers, name, *rows[name]): name for name in wanted}
        for each in as_completed(running):
            name = running[each]
            try:
                found = each.result()
            except (AssertionError, subprocess.TimeoutExpired) as reason:
                print(f"{name}: not graded: {reason}", flush=True)
                continue
            results[name] = found
            with options.results.open("a") as out:
                out.write(json.dumps({"name": name, "failed": found}) + "\n")
            print(f"{name}: {', '.join(found) or 'no check fails'}", flush=True)
        results = {name: results[name] for name in rows if name in results}
        if options.write:
            head = PAGE.read_text().partition("| mutant |")[0]
            PAGE.write_text(head + tables(results) + "\n")
    wrong = faults(results)
    print("\n\n".join(wrong) or f"{len(results)} of {len(rows)} rows, each as it should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
