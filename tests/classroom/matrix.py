"""Grade every mutant by every check of its lab, and every correct server; print the kill matrix as Markdown.

    python tests/classroom/matrix.py [NAME ...]

It takes about half an hour.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from test_zoo import CORRECT, MUTANTS, grade, of_zoo


def killers(lab: str, arguments: list[str]) -> list[str]:
    """Return the checks of a lab that fail on a server."""
    with tempfile.TemporaryDirectory() as directory:
        report, _ = grade(Path(directory), "--lab", lab, *arguments)
    return [verdict["name"] for verdict in report["verdicts"] if verdict["status"] != "passed"]


def main(names: list[str]) -> int:
    wrong = 0
    print("| mutant | its fault | lab | meant for it | also fail |\n|---|---|---|---|---|")
    for name, (kind, check, lab, _) in MUTANTS.items():
        if names and name not in names:
            continue
        found = killers(lab, of_zoo("mutants.py", name))
        wrong += check not in found
        meant = f"`{check}`" if check in found else f"**not** `{check}`"
        also = ", ".join(f"`{each}`" for each in found if each != check)
        print(f"| `{name}` | {kind.__doc__} | {lab} | {meant} | {also} |", flush=True)
    for name, (lab, arguments) in CORRECT.items():
        if names and name not in names:
            continue
        found = killers(lab, arguments)
        wrong += len(found)
        print(f"{name}: {', '.join(found) or 'no check fails'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
