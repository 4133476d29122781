"""Grade every mutant by every check of its lab, and every correct server: docs/kill-matrix.md.

    export PYTHONPATH=tests
    python packages/ewe-classroom/tests/matrix.py --results matrix.jsonl [--jobs 2] [--write] [NAME ...]
    python packages/ewe-classroom/tests/matrix.py --refresh
    python packages/ewe-classroom/tests/matrix.py --fingerprint

Each server that was graded is a line of the file of results; given again, the same command grades those that are
missing. --write writes the rows that the results have into the page, and keeps its other rows. --refresh grades
nothing: it writes the points of the schemes of today into the page. --fingerprint says which rows are results of
other checks than those of today: the page has the fingerprint of the checks that graded each row. All rows take an
hour with one job. gcc, Go, nginx, lighttpd and Apache must be there.

A fault loses its own check. Each other check that it loses rests on a check that is lost (dependencies.py), or
matrix_reasons.py has the reason why it fails, too. faults() finds the other ones, and a test calls it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Any

from classroom_server import PYTHON
from matrix_reasons import EVERYTHING, PAIRS, SINGLE, SOMETIMES
from test_zoo import (
    CORRECT,
    EXCEPTIONS,
    FAULTS,
    FILES,
    HOUSE,
    IN_C,
    MUTANTS,
    ZOO,
    MutantRow,
    grade,
    in_c,
    load,
    load_mutants,
    of_zoo,
    solution_faults,
)

from ewe_classroom.course.handout import PROGRAMMING, write
from ewe_classroom.course.labs import LABS, MODEL, labs
from ewe_classroom.course.one_source import solution
from ewe_classroom.grader.scheme import load as scheme

PAGE = HOUSE / "docs" / "kill-matrix.md"
data_mutants = load("data_mutants")
RESTING = re.compile(r"`([^`]*)`(?: \(`([^`]*)`\))?")
REASONS = """## Why more than one check fails

A check in the column "rest on it" is not judged: the report names the check in parentheses, or the fault's own one
(`grader/dependencies.py` has the pairs). Each check in the column "also fail" has a reason in this table."""
GRADED_BY = "| fingerprint of the checks | rows |\n|---|---|\n"
OTHERS = "all others"  # the rows of the page that the table below GRADED_BY does not name
UNKNOWN = "unknown"  # the fingerprint of rows of a file of results that has none
FINGERPRINT_DIGITS = 12
LANGUAGES = {**PROGRAMMING, MODEL: "a model of ewe"}


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
        for language, variant in lab.variants.items():
            place = directory / f"{lab.name}-{language}"
            write(lab, variant, place, solved=True)
            if variant.build:
                subprocess.run(variant.build, shell=True, cwd=place, check=True, stdout=subprocess.DEVNULL)
            if language in ("python", "model"):
                arguments = [str(place / variant.grade)]
            else:
                arguments = ["--command", f"{place}/server {{port}} {{root}} {{workers}}"]
            yield f"the solution in {LANGUAGES[language]}, {lab.name}", (lab.name, arguments)


def made(directory: Path) -> Path:
    """Make a directory; return it."""
    directory.mkdir()
    return directory


@cache
def mutants() -> dict[str, MutantRow]:
    """Return all mutants of the files of the zoo by their names."""
    found = MUTANTS | {f"{name}, in C": row for name, row in IN_C.items()}
    for file in FILES[1:]:
        found |= load_mutants(file)
    return found | FAULTS


def of_mutant(file: str, name: str, directory: Path) -> list[str]:
    """Return the arguments of ewe-grade for a mutant of a file of the zoo."""
    if file == "data_mutants":
        return [str(data_mutants.write(name, made(directory / name)))]
    if file == "engine_mutants":
        zoo = directory / "engines"
        zoo.mkdir(exist_ok=True)
        for source in ZOO.glob("*.py"):
            shutil.copy(source, zoo)
        (zoo / "engine.py").write_text(solution((LABS / "engine" / "engine.py").read_text()))
        return ["--command", f"{PYTHON} {quote(str(zoo / file))}.py {name}"]
    return of_zoo(f"{file}.py", name)


def all_rows(directory: Path) -> dict[str, tuple[str, list[str]]]:
    """Return every server: name -> lab, arguments of ewe-grade."""
    rows: dict[str, tuple[str, list[str]]] = {}
    for file in FILES:
        zoo = load_mutants(file)
        rows |= {name: (row.lab, of_mutant(file, name, directory)) for name, row in zoo.items()}
    program = in_c.build(directory)
    rows |= {f"{name}, in C": (row.lab, in_c.command(program, name)) for name, row in IN_C.items()}
    for name, fault in FAULTS.items():
        rows[name] = (
            fault.lab,
            solution_faults.write(name, made(directory / name.replace(", ", "-").replace(" ", "-"))),
        )
    rows |= CORRECT
    rows |= {f"small in C, {model}": (model, in_c.command(program, model)) for model in in_c.MODELS}
    rows |= dict(solutions(directory))
    return rows


@dataclass
class Loss:
    """A check without its points. rests: the check on which it rests; "": it has failed. text: of the report."""

    rests: str = ""
    text: str = ""


Row = dict[str, Loss]  # the lost checks of a server: name -> Loss


def killers(name: str, lab: str, arguments: list[str]) -> Row:
    """Return the checks of a lab that a server loses, but none that do not apply."""
    applies = [
        item.check.name for item in scheme(lab).items if item.check.name not in EXCEPTIONS.get(name, {})
    ]
    only = [word for check in applies for word in ("--only", check)]
    with tempfile.TemporaryDirectory() as directory:
        report, _ = grade(Path(directory), "--lab", lab, "--limit", "0", *only, *arguments, timeout_s=900)
    return {
        each["name"]: Loss(rested_on(each), each["text"])
        for each in report["verdicts"]
        if each["status"] != "passed" and each["points"]
    }


def rested_on(verdict: dict[str, Any]) -> str:
    """Return the check on which a verdict rests; "" if the check has failed by itself."""
    found = re.search(r"it rests on ([\w-]+)", verdict["text"]) if verdict["status"] == "not judged" else None
    return found[1] if found else ""


def why(name: str, check: str) -> str:
    """Return the reason why a fault also fails a check that does not rest on its own; "" without a reason."""
    own = mutants()[name].check
    return (EVERYTHING | SOMETIMES).get(name) or SINGLE.get((name, check)) or PAIRS.get((own, check), "")


def unexplained(name: str, found: Row) -> list[str]:
    """Return the checks that a fault loses without a declared reason.

    Explained are its own check, those with a reason in matrix_reasons.py, and those that rest on an explained one.
    """
    explained = {mutants()[name].check} | {check for check in found if why(name, check)}
    while more := {check for check, loss in found.items() if loss.rests in explained} - explained:
        explained |= more
    return [check for check in found if check not in explained]


def cost(lab: str, checks: Iterable[str]) -> int:
    """Return the points of these checks in a lab."""
    points = {item.check.name: item.points for item in scheme(lab).items}
    return sum(points.get(check, 0) for check in checks)


def on_page() -> dict[str, Row]:
    """Return the results that the page has: name -> lost checks, without texts."""
    results: dict[str, Row] = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 7 and cells[-1] != "not run":
            row = {} if cells[3].startswith("**not**") else {cells[3].strip("`"): Loss()}
            row |= {check: Loss(rests or cells[3].strip("`")) for check, rests in RESTING.findall(cells[5])}
            row |= {check: Loss() for check in re.findall("`(.*?)`", cells[6])}
            results[cells[0].strip("`")] = row
    return results


def fingerprint(house: Path = HOUSE) -> str:
    """Return the fingerprint of the checks: a hash of the grader's sources and of the labs' schemes.

    house: the directory of ewe-classroom. A change of a comment gives another fingerprint, too.
    """
    package = house / "ewe_classroom"
    digest = hashlib.sha256()
    for path in sorted([*package.glob("grader/*.py"), *package.glob("labs/*/grading.toml")]):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:FINGERPRINT_DIGITS]


def graded_by() -> dict[str, str]:
    """Return the fingerprints that the page has: name of a server, or OTHERS -> fingerprint."""
    found: dict[str, str] = {}
    for line in PAGE.read_text().partition(GRADED_BY)[2].partition("\n\n")[0].splitlines():
        checks, names = (cell.strip() for cell in line.strip("|").split("|"))
        found |= dict.fromkeys(re.findall("`(.*?)`", names) or [OTHERS], checks.strip("`"))
    return found


def graded_by_rows(prints: dict[str, str]) -> str:
    """Return the rows of the table of fingerprints. prints: name of each server of the page -> fingerprint."""
    (most, _), *fewer = Counter(prints.values()).most_common()
    lines = [f"| `{most}` | {OTHERS} |"]
    for checks, _ in fewer:
        names = ", ".join(f"`{name}`" for name, each in prints.items() if each == checks)
        lines.append(f"| `{checks}` | {names} |")
    return "\n".join(lines) + "\n"


def of_other_checks() -> list[str]:
    """Return the servers of the page that were graded by other checks than those of today."""
    found, today = graded_by(), fingerprint()
    names = [*on_page(), *correct_rows()]
    return [name for name in names if found.get(name, found[OTHERS]) != today]


def mutant_row(name: str, row: MutantRow, found: Row | None) -> str:
    """Return a row of the table of mutants."""
    fault, check, lab, _ = row
    if found is None:
        return f"| `{name}` | {fault} | {lab} | `{check}` | | | not run |"
    meant = f"`{check}`" if check in found and not found[check].rests else f"**not** `{check}`"
    others = {each: loss for each, loss in found.items() if each != check}
    rest = [
        f"`{each}`" + (f" (`{loss.rests}`)" if loss.rests != check else "")
        for each, loss in others.items()
        if loss.rests
    ]
    fail = [f"`{each}`" for each, loss in others.items() if not loss.rests]
    return f"| `{name}` | {fault} | {lab} | {meant} | {cost(lab, found)} | {', '.join(rest)} | {', '.join(fail)} |"


def reason_rows(results: dict[str, Row]) -> list[str]:
    """Return the table of the checks that fail beside a fault's own one, with the reasons."""
    faults_of: dict[tuple[str, str, str], list[str]] = {}
    for name, found in results.items():
        if name not in mutants():
            continue
        own = mutants()[name].check
        for check, loss in found.items():
            if check != own and not loss.rests:
                what = "each other check" if name in EVERYTHING | SOMETIMES else f"`{check}`"
                key = (own, what, why(name, check) or "**no reason**")
                faults_of.setdefault(key, [])
                if name not in faults_of[key]:
                    faults_of[key].append(name)
    return [
        f"| {reason} | `{own}` | {check} | {', '.join(f'`{name}`' for name in names)} |"
        for (own, check, reason), names in sorted(faults_of.items())
    ]


def tables(results: dict[str, Row]) -> str:
    """Return the tables of the page."""
    lines = [
        "| mutant | its fault | lab | must be caught by | costs | rest on it | also fail |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [mutant_row(name, row, results.get(name)) for name, row in mutants().items()]
    lines += ["", REASONS, "", "| because | own check | also fails | faults |", "|---|---|---|---|"]
    lines += reason_rows(results)
    lines += [
        "",
        "## Correct servers",
        "",
        "| correct server | lab | checks that fail | checks that do not apply |",
        "|---|---|---|---|",
    ]
    for name, found in results.items():
        if name in mutants():
            continue
        lab = CORRECT[name][0] if name in CORRECT else name.rpartition(", ")[2]
        failing = ", ".join(f"`{each}`" for each in found) or "none"
        apart = "; ".join(f"`{check}`: {text}" for check, text in EXCEPTIONS.get(name, {}).items())
        lines.append(f"| {name} | {lab} | {failing} | {apart} |")
    return "\n".join(lines)


def correct_rows() -> dict[str, str]:
    """Return the rows of correct servers that the page has: name -> row."""
    rows = PAGE.read_text().partition("| correct server |")[2].splitlines()[2:]
    return {line.split(" | ")[0].strip("| "): line for line in rows if line.startswith("| ")}


def write_page(results: dict[str, Row], correct: dict[str, str], prints: dict[str, str]) -> None:
    """Write the tables into the page. correct: its rows of servers that the results do not have.

    prints: name of a server -> fingerprint of the checks that have graded it; a row of the page that is not among
    them keeps its own.
    """
    head = PAGE.read_text().partition("| mutant |")[0]
    earlier = graded_by()
    prints = {name: prints.get(name) or earlier.get(name) or earlier[OTHERS] for name in [*results, *correct]}
    before, title, after = head.partition(GRADED_BY)
    head = before + title + graded_by_rows(prints) + "\n" + after.partition("\n\n")[2]
    kept = [line for name, line in correct.items() if name not in results]
    PAGE.write_text("\n".join([head + tables(results), *kept]) + "\n")


def faults(results: dict[str, Row]) -> list[str]:
    """Return the errors: mutants that are missed, explained badly or cost too much; false verdicts."""
    wrong = []
    for name, found in results.items():
        if name not in mutants():
            wrong += [f"{name}: {check} fails\n{loss.text}" for check, loss in found.items()]
            continue
        check, says = mutants()[name].check, mutants()[name].says
        own = found.get(check)
        if own is None or own.rests:
            wrong.append(f"{name}: not caught by {check}" + (f": it rests on {own.rests}" if own else ""))
        elif own.text and not any(part in own.text for part in says.split("|")):
            wrong.append(f"{name}: {check} does not say {says!r}\n{own.text}")
        wrong += [
            f"{name}: loses {each}, which rests on no lost check, and has no reason: {found[each].text[:300]}"
            for each in unexplained(name, found)
        ]
    return wrong


def main() -> int:
    """Grade the missing servers; print the errors; return the exit status."""
    parser = argparse.ArgumentParser(description="Grade all mutants and all correct servers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="grade these alone")
    parser.add_argument("--results", type=Path, help="the file of results")
    parser.add_argument("--refresh", action="store_true", help="write today's points into the page, and end")
    parser.add_argument("--fingerprint", action="store_true", help="print that of today's checks, and end")
    parser.add_argument("--jobs", type=int, default=1, help="servers that are graded at the same time")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/kill-matrix.md")
    options = parser.parse_args()
    if options.refresh:
        write_page(on_page(), correct_rows(), {})
        return 0
    if options.fingerprint:
        print(f"{fingerprint()}; rows of other checks: {', '.join(of_other_checks()) or 'none'}")
        return 0
    if options.results is None:
        parser.error("--results is missing: name the file of results")
    kept = options.results.read_text().splitlines() if options.results.exists() else []
    results: dict[str, Row] = {}
    prints: dict[str, str] = {}
    for row in map(json.loads, kept):
        results[row["name"]] = {check: Loss(**loss) for check, loss in row["lost"].items()}
        prints[row["name"]] = row.get("checks", UNKNOWN)
    today = fingerprint()
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
            results[name], prints[name] = found, today
            with options.results.open("a") as out:
                lost = {check: asdict(loss) for check, loss in found.items()}
                out.write(json.dumps({"name": name, "lost": lost, "checks": today}) + "\n")
            print(f"{name}: {', '.join(found) or 'no check fails'}", flush=True)
        results = {name: results[name] for name in rows if name in results}
        if options.write:
            write_page(on_page() | results, correct_rows(), prints)
    wrong = faults(results)
    print("\n\n".join(wrong) or f"{len(results)} of {len(rows)} rows, each as it should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
