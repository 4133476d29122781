"""Programs that the tests of the classroom start: the grader, and a small correct server with threads."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from shlex import quote

ZOO = Path(__file__).with_name("zoo")
# As root, the grader would start servers as `nobody`. That account may not enter this clone.
GRADER = [
    sys.executable,
    "-m",
    "ewe_classroom.grader.cli",
    *(["--user", "root"] if os.geteuid() == 0 else []),
]
PYTHON = quote(sys.executable)  # as a word of a command line: the clone may lie in a directory with a space
COMMAND = f"{PYTHON} -S {quote(str(ZOO / 'correct.py'))} thread {{port}} {{root}} {{workers}}"
