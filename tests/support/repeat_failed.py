"""Run pytest, and then the few tests that failed once more: alone, and one after the other.

    python tests/support/repeat_failed.py -n 7 --dist worksteal tests     the arguments are pytest's

Seven tests at a time on two cores can be slower than a test allows for, on a day when the machine is busy. Most
faults of ewe let a test fail alone, too. The run fails if a test fails both times, or if more than MAX_REPEATED
fail. The last lines name the tests that failed once: each of them depends on the time that other work takes, or
has found a race in ewe. Mend them.

CPython's own tests do the same (`python -m test --rerun`). The Makefile uses this file if EWE_TEST_COMPLETE is
set, as in .ci/run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

FAILED_FILE = Path(".pytest_cache/v/cache/lastfailed")  # pytest writes it below its root directory, ewe's
MAX_REPEATED = 5
ONE_BY_ONE = ("-n", "0", "--last-failed", "--last-failed-no-failures", "none")


def main(arguments: Sequence[str]) -> int:
    """Run the tests; return pytest's exit status, of the second run if there is one."""
    # Without --cache-clear, the file would also have the tests that failed in an earlier run.
    status = run_pytest(*arguments, "--cache-clear")
    failed = failed_tests() if status == pytest.ExitCode.TESTS_FAILED else []
    if not 0 < len(failed) <= MAX_REPEATED:
        return status
    print(
        f"\n{len(failed)} failed beside other tests, and run once more alone:",
        *failed,
        sep="\n  ",
        flush=True,
    )
    status = run_pytest(*arguments, *ONE_BY_ONE)  # a later -n counts
    if status == pytest.ExitCode.OK:
        print("Failed beside other tests, and passed alone (to be mended):", *failed, sep="\n  ", flush=True)
    return status


def run_pytest(*arguments: str) -> int:
    """Run pytest in a process; return its exit status."""
    return subprocess.run([sys.executable, "-P", "-m", "pytest", *arguments], check=False).returncode


def failed_tests() -> list[str]:
    """Return the ids of the tests that failed in the last run. Raises OSError."""
    return sorted(json.loads(FAILED_FILE.read_text()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
