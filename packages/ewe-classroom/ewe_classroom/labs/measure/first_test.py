"""The first test of this lab: python3 first_test.py. It measures for about 20 seconds, and reads the data.

It stops at the first failure. The data of so short a run is for this test alone.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Seconds of each run. The server stalls at the end of each second, so the first run ends within a stall. Each
# client waits for a response then, so data without the requests in progress always lacks some.
RUN_S = "0.85"
SLACK_S = 0.005  # a thread may be interrupted between two readings of the clock


def main():
    with tempfile.TemporaryDirectory() as directory:
        program = os.path.abspath("measure.py")
        done = subprocess.run([sys.executable, program, RUN_S], cwd=directory, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"✗ measure.py does not run:\n{done.stderr[-2000:]}")
        data = json.loads((Path(directory) / "runs.json").read_text())
        log = (Path(directory) / "server.log").read_text().splitlines()
    test(data["runs"], len(log))
    print("All steps pass. Next: ewe-grade, as README.md says.")


def test(runs, served):
    for run in runs:
        times_right = all(due <= sent + SLACK_S and sent <= done for due, sent, done in run["requests"])
        expect(times_right, f"{name(run)}: each request is due, sent and done, in this order")
    print("✓ 1. Each request has its three times.")
    count = sum(len(run["requests"]) for run in runs)
    expect(
        count == served,
        f"the server's log has {served} requests, and the data has {count}: none may be missing",
    )
    print("✓ 2. Each served request is in the data.")
    for kind, wanted in (("closed", 4), ("open", 2)):
        loads = {name(run) for run in runs if run["kind"] == kind}
        expect(
            len(loads) >= wanted, f"{kind} loops: {len(loads)} loads were measured, and not {wanted} or more"
        )
        repetitions = min(sum(name(run) == load for run in runs) for load in loads)
        expect(repetitions >= 3, f"{kind} loops: a load was measured {repetitions} times, and not 3 times")
    print("✓ 3. The data has enough loads and repetitions.")


def name(run):
    """Return the name of a load, without its repetition."""
    load = run.get("clients") or run.get("rate_wanted")
    return f"{run['kind']} {load}"


def expect(right, sentence):
    """End the program if a sentence about the data is not true."""
    if not right:
        sys.exit(f"✗ {sentence}.")


if __name__ == "__main__":
    main()
