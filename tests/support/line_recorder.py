"""Line recorder: note which lines of functions each file of tests runs, in all processes that its tests start.

Coverage tools write what they have seen when a process ends. A server that a test kills, or that ends by _exit(),
would write nothing. This recorder therefore keeps one byte for each line in a file that all processes have mapped
(mmap): a line that runs sets its byte at once, and the byte stays whatever happens to the process.

    DIRECTORY/index.json           source file -> position of its first line
    DIRECTORY/tests.http.test_http.py    the bytes of the lines that tests/http/test_http.py has run

Which test is it? pytest keeps the name of the running test in the environment (PYTEST_CURRENT_TEST), and each
process that the test starts inherits it. sys.monitoring (Python 3.12) reports a line once, and reports each line
again in a child and when the next test begins. The cost is small enough to run all tests.

where_tested.py starts the tests with this recorder: it writes a .pth file, so that each Python of the virtual
environment runs start() before anything else. A Python that starts without its site-packages, as an engine of
X-Switch does, records nothing. PYTEST_DONT_REWRITE: this plugin of pytest is imported before pytest looks for it.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from pathlib import Path
from types import CodeType
from typing import Any

MONITORING: Any = getattr(sys, "monitoring", None)  # Python 3.12
VARIABLE = "EWE_LINE_RECORDER"  # names DIRECTORY
TOOL = 4  # a number that sys.monitoring leaves to tools without a kind
IS_FUNCTION = 1  # CO_OPTIMIZED: modules and bodies of classes, which an import runs, do not have it


class Recorder:
    """The recorder of one process."""

    def __init__(self, directory: Path) -> None:
        index = json.loads((directory / "index.json").read_text())
        self.directory = directory
        self.first: dict[str, int] = index["first"]
        self.size: int = index["lines"]
        self.maps: dict[str, mmap.mmap | None] = {}

    def record(self, code: CodeType, line: int) -> object:
        """Note a line; sys.monitoring calls this function, and does not report this line again."""
        first = self.first.get(code.co_filename)
        if first is not None and code.co_flags & IS_FUNCTION:
            lines = self.lines(os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0])
            if lines is not None:
                lines[first + line] = 1
        return MONITORING.DISABLE

    def lines(self, test_file: str) -> mmap.mmap | None:
        """Return the bytes of a file of tests, or None if no test is running."""
        if test_file not in self.maps:
            path = self.directory / test_file.replace("/", ".")
            try:
                with path.open("r+b") as file:
                    self.maps[test_file] = mmap.mmap(file.fileno(), self.size)
            except OSError:
                self.maps[test_file] = None
        return self.maps[test_file]


def start() -> None:
    """Record the lines of this process and of its children, if the environment asks for it."""
    directory = os.environ.get(VARIABLE)
    if not directory or MONITORING is None or MONITORING.get_tool(TOOL) is not None:
        return
    MONITORING.use_tool_id(TOOL, "line recorder")
    MONITORING.register_callback(TOOL, MONITORING.events.LINE, Recorder(Path(directory)).record)
    MONITORING.set_events(TOOL, MONITORING.events.LINE)
    os.register_at_fork(after_in_child=MONITORING.restart_events)


def pytest_runtest_setup() -> None:
    """Let each line be reported again, since the next test begins: a hook of pytest."""
    if MONITORING is not None and MONITORING.get_tool(TOOL) is not None:
        MONITORING.restart_events()
