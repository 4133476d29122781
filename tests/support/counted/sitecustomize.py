"""Count ewe's Python calls in a server: each call appends a line to the file that EWE_TEST_CALLS names.

Python imports a module of this name at its start, before the server's own modules (support/counting.py puts this
directory on PYTHONPATH). A profile function belongs to one thread. A forked child inherits that of the thread which
forks; a new thread has none, so this module gives it one.
"""

from __future__ import annotations

import _thread
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

SOURCE = os.environ["EWE_TEST_SOURCE"] + os.sep
CALLS = os.open(os.environ["EWE_TEST_CALLS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
start_new_thread = _thread.start_new_thread


def note(frame: FrameType, event: str, argument: Any) -> None:
    """Write one line for a call of a function of ewe. Comprehensions are no calls in all versions of Python."""
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(SOURCE) and not code.co_name.startswith("<"):
        os.write(CALLS, f"{code.co_filename.removeprefix(SOURCE)}:{code.co_qualname}\n".encode())


def start(function: Callable[..., object], arguments: tuple[Any, ...], *more: Any) -> int:
    """Start a thread whose calls are counted."""

    def counted() -> None:
        sys.setprofile(note)
        function(*arguments, *more)

    return start_new_thread(counted, ())


_thread.start_new_thread = _thread.start_new = start  # type: ignore[assignment]
sys.setprofile(note)
