"""Grade ten right servers again and again beside a load: no mark may depend on it.

    PYTHONPATH=tests python packages/ewe-classroom/tests/beside_load.py --results beside.jsonl [--runs 20] \
        [--loops 16] [--minutes 120]

The servers are solutions of labs 1 to 5 in Python, C and Go. Round by round, each is graded by all checks of its
lab while `loops` processes each burn a processor. It prints each verdict that is not "passed", with its text, and
stops after `minutes`: a run that has begun is finished. Each run is a line of the file of results; given again, the
same command goes on after the last one. gcc and Go must be there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matrix import solutions
from test_zoo import grade

SERVERS = (
    "the solution in Python, serial", "the solution in C, serial", "the solution in Python, fork",
    "the solution in Go, fork", "the solution in Python, thread", "the solution in C, thread",
    "the solution in Python, pool", "the solution in Go, pool", "the solution in Python, event",
    "the solution in C, event",
)  # fmt: skip


@contextmanager
def load(loops: int, max_s: float) -> Iterator[None]:
    """Burn processors: `loops` processes that end by themselves after `max_s` seconds."""
    program = (
        f"import time\nend = time.monotonic() + {max_s}\nwhile time.monotonic() < end: sum(range(10000))"
    )
    running = [subprocess.Popen([sys.executable, "-S", "-c", program]) for _ in range(loops)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


def run(lab: str, arguments: list[str]) -> dict[str, Any]:
    """Grade one server; return its points, its seconds and its verdicts: the texts of those that cost points."""
    with tempfile.TemporaryDirectory() as place:
        report, _ = grade(Path(place), "--lab", lab, "--limit", "0", *arguments, timeout_s=1800)
    lost = [each for each in report["verdicts"] if each["status"] != "passed" and each["points"]]
    return {
        "score": report["score"],
        "max_score": report["max_score"],
        "seconds": round(report["seconds"]),
        "statuses": Counter(each["status"] for each in report["verdicts"]),
        "lost": [f"{each['name']}: {each['status']}\n{each['text']}" for each in lost],
    }


def summary(runs: list[dict[str, Any]], asked: int, loops: int) -> str:
    """Return one line: how many runs there were, how many lost points, and how often each status occurred."""
    statuses: Counter[str] = sum((Counter(each["statuses"]) for each in runs), Counter())
    different = sum(bool(each["lost"]) for each in runs)
    return f"{len(runs)} of {asked} runs beside {loops} loops, {different} not right: {dict(statuses)}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Grade right servers beside a load.")
    parser.add_argument("--results", type=Path, required=True, help="the file of results")
    parser.add_argument("--runs", type=int, default=20, help="rounds [20]")
    parser.add_argument("--loops", type=int, default=16, help="busy processes [16]")
    parser.add_argument("--minutes", type=float, default=120, help="begin no run after this time [120]")
    parser.add_argument("--servers", type=int, default=len(SERVERS), help="grade the first ones alone [10]")
    options = parser.parse_args()
    options.results.touch()
    runs = [json.loads(line) for line in options.results.read_text().splitlines()]
    wanted = [(round_, name) for round_ in range(options.runs) for name in SERVERS[: options.servers]]
    done = {(each["round"], each["server"]) for each in runs}
    missing = [each for each in wanted if each not in done]
    end = time.monotonic() + options.minutes * 60
    with tempfile.TemporaryDirectory() as place, load(options.loops, options.minutes * 60 + 1800):
        Path(place).chmod(0o755)
        built = dict(solutions(Path(place)))
        for round_, name in missing:
            if time.monotonic() > end:
                break
            graded = {"round": round_, "server": name, **run(*built[name])}
            runs.append(graded)
            with options.results.open("a") as file:
                file.write(json.dumps(graded) + "\n")
            points = f"{graded['score']} of {graded['max_score']}, {graded['seconds']} s"
            print(f"{name}: {points}", *graded["lost"], sep="\n", flush=True)
    print(summary(runs, len(wanted), options.loops))
    return int(any(each["lost"] for each in runs))


if __name__ == "__main__":
    sys.exit(main())
