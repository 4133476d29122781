"""Standard error of one engine: logged line by line, under the user and the script that wrote it.

A script may write millions of lines. The first MAX_LINES of a request are logged; the rest is only counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ewe.xswitch.switch.loop import RECEIVE_BYTES, Loop

MAX_LINES = 1000  # of one request
MAX_LINE_BYTES = 2000


class ErrorLines:
    """Reads one pipe. descriptor: the pipe's end, -1 for none. say: called with each line for the log.

    `script` is the script that writes now; begin() changes it.
    """

    def __init__(self, loop: Loop, descriptor: int, say: Callable[[str], None]) -> None:
        self.loop = loop
        self.descriptor = descriptor
        self.say = say
        self.script = ""
        self.rest = b""  # of a line whose end has not come
        self.count = 0  # lines of this request
        if descriptor >= 0:
            os.set_blocking(descriptor, False)
            loop.add_reader(descriptor, self.read)

    def begin(self, script: str) -> None:
        """Expect the lines of another request. What has been written until now belongs to the script before."""
        if script != self.script:
            self.read(over=True)
        self.count_omitted()
        self.script = script

    def read(self, over: bool = False) -> None:
        """Log what has been written. over: an incomplete line is complete."""
        if self.descriptor < 0:
            return
        ended = False
        try:
            data = os.read(self.descriptor, RECEIVE_BYTES)
            ended = not data
        except BlockingIOError:
            data = b""
        except OSError:
            data, ended = b"", True
        if ended:
            self.close_pipe()
        self.take(data, ended or over)

    def take(self, data: bytes, over: bool) -> None:
        """Log the lines of `data`, up to MAX_LINES for a request. over: an incomplete line is complete."""
        if self.count >= MAX_LINES:
            self.count += data.count(b"\n")
            return
        *lines, rest = (self.rest + data).split(b"\n", MAX_LINES - self.count)
        self.count += len(lines)
        for line in lines:
            self.log(line)
        self.rest = b""
        if self.count >= MAX_LINES:
            self.count += rest.count(b"\n")
        elif rest and (over or len(rest) > MAX_LINE_BYTES):
            self.count += 1
            self.log(rest)
        else:
            self.rest = rest

    def log(self, line: bytes) -> None:
        text = line[:MAX_LINE_BYTES].decode("utf-8", "surrogateescape")
        self.say(f"{self.script}: {text}")

    def count_omitted(self) -> None:
        """Log how many lines of the request were omitted."""
        if self.count > MAX_LINES:
            self.say(f"{self.script}: {self.count - MAX_LINES} more lines of standard error")
        self.count = 0

    def close(self) -> None:
        """Log what is left, and close the pipe."""
        self.read()
        self.count_omitted()
        self.close_pipe()

    def close_pipe(self) -> None:
        if self.descriptor >= 0:
            self.loop.remove_reader(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = -1
