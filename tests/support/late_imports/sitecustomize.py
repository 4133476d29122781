"""Notes every import of a process that has given up root. Python loads this file at its start (site).

A test names this directory in PYTHONPATH, and in EWE_LATE_IMPORTS a file that every account may write. Python tells
an audit hook of an import (PEP 578) only if the module has not been loaded yet. The directories of Python may be
closed to the account by then, so each line in that file is a fault, also where all may read this machine's Python.
"""

import os
import sys
from typing import Any

HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def note(event: str, arguments: tuple[Any, ...]) -> None:
    """Write a line for an import, with the lines of ewe that led to it."""
    if event != "import" or os.geteuid() == 0:
        return
    lines = []
    frame = sys._getframe()
    while (above := frame.f_back) is not None:
        frame = above
        if frame.f_code.co_filename.startswith(HERE):
            lines.append(f"{frame.f_code.co_filename.removeprefix(HERE)}:{frame.f_lineno}")
    file = os.open(os.environ["EWE_LATE_IMPORTS"], os.O_WRONLY | os.O_APPEND)
    os.write(file, f"{arguments[0]} by {' '.join(lines)}\n".encode())
    os.close(file)


if os.geteuid() == 0 and "EWE_LATE_IMPORTS" in os.environ:
    sys.addaudithook(note)
