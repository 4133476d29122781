"""Grade the mutants of the labs cgi, scheduling, engine, caching and measure by every check of their lab.

    python tests/classroom/matrix_of_labs.py [NAME ...]

Prints Markdown. matrix.py does the five labs about concurrency, and the correct servers.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import test_lab_mutants as labs
from test_zoo import LABS, MUTANTS, grade, of_zoo

from ewe.classroom.grader import kinds
from ewe.classroom.grader.scheme import load


def killers(lab: str, arguments: list[str]) -> list[str]:
    """Return the checks of a lab that fail on a server."""
    with tempfile.TemporaryDirectory() as directory:
        report, _ = grade(Path(directory), "--lab", lab, *arguments)
    return [verdict["name"] for verdict in report["verdicts"] if verdict["status"] != "passed"]


def killers_in_lab(lab: str, name: str) -> list[str]:
    """Return the checks of the labs engine, caching and measure that fail on a mutant."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        subject = {
            "engine": f"{sys.executable} {labs.HERE}/zoo/engine_mutants.py {name}",
            "caching": labs.of_caching(name),
            "measure": str(labs.data_mutants.write(name, directory)),
        }[lab]
        kind = kinds.kind(load(lab).subject)
        recipe = kind.from_path(subject) if lab == "measure" else kind.from_command(subject)
        grading = labs.Grading(recipe, load(lab), directory, labs.Limits())
        directory.chmod(0o755)
        return [verdict.name for verdict in grading.run().verdicts if verdict.status != "passed"]


def row(name: str, fault: str, lab: str, check: str, found: list[str]) -> str:
    """Return a line of the matrix."""
    meant = f"`{check}`" if check in found else f"**not** `{check}`"
    also = ", ".join(f"`{each}`" for each in found if each != check)
    return f"| `{name}` | {fault} | {lab} | {meant} | {also} |"


def main(names: list[str]) -> int:
    wrong = 0
    print("| mutant | its fault | lab | meant for it | also fail |\n|---|---|---|---|---|")
    for name, (fault, check, lab, _) in MUTANTS.items():
        if lab in LABS or (names and name not in names):
            continue
        found = killers(lab, of_zoo("mutants.py", name))
        wrong += check not in found
        print(row(name, fault, lab, check, found), flush=True)
    for zoo in (labs.engine_mutants.ZOO, labs.caching_mutants.ZOO, labs.data_mutants.ZOO):
        for name, (kind, check, lab, _) in zoo.items():
            if names and name not in names:
                continue
            found = killers_in_lab(lab, name)
            wrong += check not in found
            print(row(name, str(kind.__doc__), lab, check, found), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
