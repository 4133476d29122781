"""Grade the half-finished servers of zoo/stages.py: their mark, their time, and where the report says to begin.

    PYTHONPATH=tests python packages/ewe-classroom/tests/stages.py --results stages.jsonl [--jobs 2] [--write]

Each graded stage is a line of the file of results; given again, the same command grades those that are missing.
--write writes the table into docs/kill-matrix.md. It prints the stages whose first advice is another check.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from test_zoo import HOUSE, grade, load

stages = load("stages")
PAGE = HOUSE / "docs" / "kill-matrix.md"
HEADING, NEXT = "## Half-finished servers", "## All rows"
TEXT = """
Each row is a server as a student hands it in before it is complete. The advice is the check with which the report
begins; it must lead to the fault. `tests/stages.py --results FILE --write` makes the
table. At a load of 20 to 40 on two cores, all 22 began with the same check; four runs reached the limit of 120 s
there, and had up to 11 points less.
"""
SHOWN = 110  # characters of an advice


def measure(number: int) -> dict[str, Any]:
    """Grade one stage; return its row."""
    stage = stages.STAGES[number]
    with tempfile.TemporaryDirectory() as place:
        report, done = grade(Path(place), "--lab", stage.lab, stages.write(stage, Path(place)), timeout_s=400)
    first = next((line for line in done.stdout.splitlines() if line.startswith("Begin with ")), "")
    name, _, text = first.removeprefix("Begin with ").partition(": ")
    return {
        "number": number,
        "mark": f"{report['score']} of {report['max_score']}",
        "seconds": round(report["seconds"]),
        "advice": name,
        "text": text,
    }


def table(results: dict[int, dict[str, Any]]) -> str:
    """Return the table of the page."""
    lines = ["| lab | the server | mark | seconds | the report begins with |", "|---|---|---|---|---|"]
    for number, stage in stages.STAGES.items():
        row = results.get(number)
        if row is None:
            lines.append(f"| {stage.lab} | {stage.what} | not run | | |")
            continue
        text = beginning(row["text"].replace("|", "/"))
        advice = f"`{row['advice']}`: {text}" if row["advice"] else "nothing"
        lines.append(f"| {stage.lab} | {stage.what} | {row['mark']} | {row['seconds']} | {advice} |")
    return "\n".join(lines)


def beginning(text: str) -> str:
    """Return the first words of an advice. A cut number would name another line of a file."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN].rpartition(' ')[0]} …"


def write(results: dict[int, dict[str, Any]]) -> None:
    """Write the table into the page, before the rows of the matrix."""
    before, _, after = PAGE.read_text().partition(NEXT)
    head = before.partition(HEADING)[0]
    PAGE.write_text(f"{head}{HEADING}\n{TEXT}\n{table(results)}\n\n{NEXT}{after}")


def main() -> int:
    """Grade the missing stages; print those with another advice; return the exit status."""
    parser = argparse.ArgumentParser(description="Grade half-finished servers.")
    parser.add_argument("--results", type=Path, required=True, help="the file of results")
    parser.add_argument("--jobs", type=int, default=1, help="servers that are graded at the same time")
    parser.add_argument("--write", action="store_true", help="write the table into docs/kill-matrix.md")
    options = parser.parse_args()
    kept = options.results.read_text().splitlines() if options.results.exists() else []
    results: dict[int, dict[str, Any]] = {row["number"]: row for row in map(json.loads, kept)}
    with ThreadPoolExecutor(options.jobs) as threads:
        running = [threads.submit(measure, number) for number in stages.STAGES if number not in results]
        for each in as_completed(running):
            row = each.result()
            results[row["number"]] = row
            with options.results.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(row, flush=True)
    if options.write:
        write(results)
    wrong = [
        f"{stage.lab}, {stage.what}: begins with {results[number]['advice'] or 'nothing'}"
        for number, stage in stages.STAGES.items()
        if results[number]["advice"] not in stage.advice
    ]
    print("\n".join(wrong) or f"{len(results)} stages, each with an advice that leads to its fault")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
