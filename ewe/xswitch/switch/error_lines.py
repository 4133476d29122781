"""Standard error of one engine: logged line by line, with the user and the script that wrote it.

A script may write millions of lines. The first MAX_ERROR_LINES of a request are logged; the rest is only counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ewe.xswitch.switch.loop import RECEIVE_BYTES, EventLoop

MAX_ERROR_LINES = 1000  # of one request
MAX_LINE_BYTES = 2000


class ErrorLines:
    """Reads the pipe to which one engine writes its standard error.

    `script` is the script that writes now; begin() changes it.
    """

    def __init__(self, loop: EventLoop, descriptor: int, log_line: Callable[[str], None]) -> None:
        """descriptor: the end of the pipe that is read, -1 if there is none. log_line: writes a line to the log."""
        self.loop = loop
        self.descriptor = descriptor
        self.log_line = log_line
        self.script = ""
        self.incomplete_line = b""  # the start of an incomplete line
        self.line_count = 0  # lines of this request
        if descriptor >= 0:
            os.set_blocking(descriptor, False)
            loop.add_reader(descriptor, self.read)

    def begin(self, script: str) -> None:
        """Note that the next request begins, and which script it runs. The count of lines begins again.

        The bytes that are still in the pipe belong to the script before. If it is another one, log them now, under
        its name.
        """
        if script != self.script:
            self.read(flush=True)
        if self.line_count:
            self.end_count()
        self.script = script

    def read(self, flush: bool = False) -> None:
        """Log the lines in the pipe. flush: log the incomplete last line, too."""
        if self.descriptor < 0:
            return
        has_ended = False
        try:
            data = os.read(self.descriptor, RECEIVE_BYTES)
            has_ended = not data
        except BlockingIOError:
            data = b""  # the pipe is empty
        except OSError:
            data, has_ended = b"", True
        if has_ended:
            self.close_pipe()
        self.log_data(data, flush=has_ended or flush)

    def log_data(self, data: bytes, flush: bool) -> None:
        """Log the lines of `data`, up to MAX_ERROR_LINES for a request.

        flush: log the incomplete last line, too.
        """
        if self.line_count >= MAX_ERROR_LINES:
            self.line_count += data.count(b"\n")
            return
        # Split no more lines than may be logged.
        *lines, incomplete_line = (self.incomplete_line + data).split(
            b"\n", MAX_ERROR_LINES - self.line_count
        )
        self.line_count += len(lines)
        for line in lines:
            self.log_line_of_script(line)
        self.incomplete_line = b""
        if self.line_count >= MAX_ERROR_LINES:
            # The limit is reached within `data`: the rest, which was not split, is only counted.
            self.line_count += incomplete_line.count(b"\n")
        elif incomplete_line and (flush or len(incomplete_line) > MAX_LINE_BYTES):
            self.line_count += 1
            self.log_line_of_script(incomplete_line)
        else:
            self.incomplete_line = incomplete_line

    def log_line_of_script(self, line: bytes) -> None:
        """Log a line, shortened to MAX_LINE_BYTES, with the script that wrote it."""
        text = line[:MAX_LINE_BYTES].decode("utf-8", "surrogateescape")
        self.log_line(f"{self.script}: {text}")

    def end_count(self) -> None:
        """Log how many lines of the request were omitted, and begin the count of the next request."""
        if self.line_count > MAX_ERROR_LINES:
            self.log_line(f"{self.script}: {self.line_count - MAX_ERROR_LINES} more lines of standard error")
        self.line_count = 0

    def close(self) -> None:
        """Log the rest of the pipe, and close it."""
        self.read(flush=True)
        self.end_count()
        self.close_pipe()

    def close_pipe(self) -> None:
        """Close the pipe, if it is open."""
        if self.descriptor >= 0:
            self.loop.remove_reader(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = -1
