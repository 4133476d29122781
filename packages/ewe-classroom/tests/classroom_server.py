"""Programs that the tests of the classroom start: the grader, and a small correct server with threads.

Also the processes of an account, and directories within each other, as a student may make them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from shlex import quote

from support.proc import alive
from support.server import ROOT, run_forked

ZOO = Path(__file__).with_name("zoo")
# As root, the grader would start servers as `nobody`. That account may not enter this clone.
AS_ROOT = ["--user", "root"] if os.geteuid() == 0 else []
GRADER = [sys.executable, "-m", "ewe_classroom.grader.cli", *AS_ROOT]
PYTHON = quote(sys.executable)  # as a word of a command line: the clone may lie in a directory with a space
COMMAND = f"{PYTHON} -S {quote(str(ZOO / 'correct.py'))} thread {{port}} {{root}} {{workers}}"


def run_grader(
    *arguments: str,
    directory: Path = ROOT,
    timeout_s: float = 280,
    constants: dict[str, float] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the grader to its end, forked from a process that has imported it: half of the time of the command.

    Tests of the command itself, and of what it imports, start GRADER. constants: what this run has for constants of
    the grader, {"ewe_classroom.grader.queue_races.SCHEDULES_PER_SCENARIO": 60}.
    """
    return run_forked(directory, (*AS_ROOT, *arguments), timeout_s, "ewe_classroom.grader.cli", constants)


def make_nested(top: Path, levels: int) -> None:
    """Make directories within each other, and an empty server.py in the last one. Path.mkdir() could not."""
    at = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(os.open("server.py", os.O_WRONLY | os.O_CREAT, dir_fd=at))
    os.close(at)


def processes_of(uid: int) -> list[int]:
    """Return the processes of an account that have not ended."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}").st_uid == uid and alive({int(pid)}):
                found.append(int(pid))
        except FileNotFoundError:
            pass  # it has ended
    return found
