"""Time a class: 120 submissions of the lab pool, of which ten spin and five hang, graded by `ewe-course grade`.

    PYTHONPATH=tests python packages/ewe-classroom/tests/class_of_120.py FOLDER [--students 120] [--jobs 4]

FOLDER gets the submissions (FOLDER/sent) and the results (FOLDER/marks). Of the others, a third is right, a third
are half-finished servers of zoo/stages.py, and a third have a fault of zoo/solution_faults.py. The grader runs on
two processors (taskset). Given again, the command resumes, as `ewe-course grade` does. It prints the time, the time
of each kind of submission, and whether right servers have different marks. As root, the servers run as root, too,
since another account may not enter a clone: use a machine that nobody needs.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path

from test_zoo import ROOT, load

from ewe_classroom.course.labs import lab

stages = load("stages")
solution_faults = load("solution_faults")
SPIN, HANG = 10 / 120, 5 / 120  # of the class
SPINNERS = [
    stage
    for stage in stages.STAGES.values()
    if stage.lab == "pool" and "idle-cpu" in stage.advice and "Queue as given" in stage.what
]
STAGES = [stage for stage in stages.STAGES.values() if stage.lab == "pool" and stage not in SPINNERS]
FAULTS = [
    name for name, row in solution_faults.FAULTS.items() if (row.lab, row.language) == ("pool", "python")
]
HANGS = """import socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    time.sleep(3600)
"""


def solved() -> dict[str, str]:
    return lab("pool").files(lab("pool").variant("python"), solved=True)


def write_class(folder: Path, students: int) -> None:
    """Write the submissions, each in a directory that is named by its kind and a number."""
    spinning, hanging = max(1, round(students * SPIN)), max(1, round(students * HANG))
    kinds = ["spins"] * spinning + ["hangs"] * hanging
    rest = cycle(["right", "half", "faulty"])
    kinds += [next(rest) for _ in range(students - len(kinds))]
    half, faulty = cycle(STAGES), cycle(FAULTS)
    for number, kind in enumerate(kinds):
        place = folder / f"{kind}-{number:03}"
        if place.exists():
            continue
        place.mkdir(parents=True)
        for name, text in solved().items():
            (place / name).write_text(text)
        if kind == "spins":
            stages.write(SPINNERS[0], place)
        elif kind == "hangs":
            (place / "server.py").write_text(HANGS)
        elif kind == "half":
            stages.write(next(half), place)
        elif kind == "faulty":
            solution_faults.write(next(faulty), place)


def main() -> int:
    parser = argparse.ArgumentParser(description="Time the grading of a class.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--students", type=int, default=120)
    parser.add_argument("--jobs", type=int, default=4, help="submissions at a time [4]")
    parser.add_argument("--user", default="root" if os.geteuid() == 0 else "", help="the servers' account")
    options = parser.parse_args()
    sent, marks = options.folder / "sent", options.folder / "marks"
    write_class(sent, options.students)
    user = ["--user", options.user] if options.user else []
    command = [sys.executable, "-m", "ewe_classroom.course.cli", "grade", str(sent), "--lab", "pool"]
    command += ["--jobs", str(options.jobs), "--output", str(marks), *user]
    began = time.monotonic()
    done = subprocess.run(["taskset", "-c", "0,1", *command], cwd=ROOT)
    seconds = time.monotonic() - began
    by_kind: dict[str, list[tuple[float, float]]] = {}
    with (marks / "marks.csv").open() as file:
        for row in csv.DictReader(file):
            if not row["mark"]:
                print(f"{row['name']} has no mark: {row['remark']}")
                continue
            kind = row["name"].partition("-")[0]
            report = json.loads((marks / "students" / row["name"] / "report.json").read_text())
            by_kind.setdefault(kind, []).append((float(row["mark"]), report["seconds"]))
    for kind, rows in by_kind.items():
        points, times = zip(*rows, strict=True)
        print(
            f"{kind:<8} {len(rows):3} marks {min(points):g} to {max(points):g}, "
            f"seconds {min(times):.0f} to {max(times):.0f}, mean {sum(times) / len(times):.0f}"
        )
    print(f"{options.students} submissions, {options.jobs} at a time: {seconds / 60:.1f} minutes")
    different = len({points for points, _ in by_kind.get("right", [])}) > 1
    if different:
        print("the right servers have different marks")
    return done.returncode or int(different)


if __name__ == "__main__":
    sys.exit(main())
