"""Reports: a worker tells the supervisor that it serves, or the reason why it cannot.

A forked worker may still fail before it serves: an application's startup may fail, and with `reload` the import of
a module, too. The supervisor retires old workers only when the new ones have reported. All workers write to one
pipe. A report consists of lines. Each is shorter than PIPE_BUF bytes, so the kernel never mixes the lines of two
workers:

    4711 source /home/ada/shop       with `reload`: a directory whose files the worker has loaded
    4711 ready                       the worker serves from now on; its last line
    4712 failed application 'shop:app' cannot be imported: ...      its last line; the worker ends

Read next: ewe/server/supervisor.py, which reads them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ewe.streams.descriptors import nonblocking_pipe

MAX_LINE_BYTES = 2000  # bytes of a line; PIPE_BUF is 4096 on Linux
LINE = re.compile(rb"([0-9]{1,10}) ([a-z]+) ?(.*)")  # process id, word, text


class WorkerReport(NamedTuple):
    """One line of a worker. word: "source", "ready" or "failed". text: the directory, or the reason."""

    pid: int
    word: str
    text: str


class Reports:
    """The pipe for reports. The supervisor makes it. Each worker inherits it, writes its report and closes it."""

    def __init__(self) -> None:
        self.reader, self.writer = nonblocking_pipe()
        os.set_blocking(self.writer, True)
        self.unread = b""

    def send(self, failure: str, sources: Iterable[str] = ()) -> None:
        """Send the report of this worker. failure: one line why it cannot serve; "" if it serves."""
        pid = os.getpid()
        lines = [*(f"source {each}" for each in sources), f"failed {failure}" if failure else "ready"]
        try:
            for line in lines:
                data = f"{pid} {line}".encode("utf-8", "surrogateescape").replace(b"\n", b" ")
                os.write(self.writer, data[:MAX_LINE_BYTES] + b"\n")
        except BrokenPipeError:
            pass  # the supervisor has died; the worker will notice it by the lifeline
        os.close(self.writer)
        os.close(self.reader)

    def read(self) -> Iterator[WorkerReport]:
        """Yield the reports that have arrived. The supervisor calls this."""
        try:
            while data := os.read(self.reader, 65536):
                self.unread += data
        except BlockingIOError:
            pass
        *lines, self.unread = self.unread.split(b"\n")
        # An application that writes to a wrong descriptor may hit this pipe: its bytes must not end the supervisor.
        for match in map(LINE.fullmatch, lines):
            if match is not None:
                yield WorkerReport(
                    int(match[1]), match[2].decode(), match[3].decode("utf-8", "surrogateescape")
                )
