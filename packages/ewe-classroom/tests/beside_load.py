"""Grade ten right servers again and again beside a load: no mark may depend on it.

    PYTHONPATH=tests python packages/ewe-classroom/tests/beside_load.py [--runs 20] [--loops 16] [--minutes 120]

The servers are solutions of labs 1 to 5 in Python, C and Go. Round by round, each is graded by all checks of its
lab while `loops` processes each burn a processor. It prints each verdict that is not "passed", with its text, and
stops after `minutes`: a run that has begun is finished. gcc and Go must be there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def main() -> int:
    parser = argparse.ArgumentParser(description="Grade right servers beside a load.")
    parser.add_argument("--runs", type=int, default=20, help="rounds [20]")
    parser.add_argument("--loops", type=int, default=16, help="busy processes [16]")
    parser.add_argument("--minutes", type=float, default=120, help="begin no run after this time [120]")
    parser.add_argument("--servers", type=int, default=len(SERVERS), help="grade the first ones alone [10]")
    options = parser.parse_args()
    end = time.monotonic() + options.minutes * 60
    verdicts: Counter[str] = Counter()
    graded, different = 0, 0
    with tempfile.TemporaryDirectory() as place, load(options.loops, options.minutes * 60 + 1800):
        Path(place).chmod(0o755)
        built = dict(solutions(Path(place)))
        for _ in range(options.runs):
            for name in SERVERS[: options.servers]:
                if time.monotonic() > end:
                    continue
                lab, arguments = built[name]
                with tempfile.TemporaryDirectory() as report_place:
                    report, _ = grade(
                        Path(report_place), "--lab", lab, "--limit", "0", *arguments, timeout_s=1800
                    )
                graded += 1
                lost = [each for each in report["verdicts"] if each["status"] != "passed" and each["points"]]
                verdicts.update(each["status"] for each in report["verdicts"])
                different += bool(lost)
                for each in lost:
                    print(f"{name}: {each['name']}: {each['status']}\n{each['text']}\n", flush=True)
                print(
                    f"{name}: {report['score']} of {report['max_score']}, {report['seconds']:.0f} s",
                    flush=True,
                )
    asked = options.runs * min(options.servers, len(SERVERS))
    print(f"{graded} of {asked} runs beside {options.loops} loops, {different} not right: {dict(verdicts)}")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
