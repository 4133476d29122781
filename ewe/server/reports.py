"""Reports: what a worker tells the supervisor once it can serve, or why it cannot.

A worker that was forked is not yet a worker that serves: an application's startup may fail, and with `reload` the
import of a module, too. The supervisor retires old workers only when the new ones have reported. All workers write
to one pipe. A report is lines of less than PIPE_BUF bytes, which the kernel never mixes with another worker's:

    4711 source /home/ada/shop       with `reload`: a directory whose files the worker has loaded
    4711 ready                       from now on the worker serves; its last line
    4712 failed application 'shop:app' cannot be imported: ...      its last line; the worker ends

Read next: ewe/server/supervisor.py, which reads them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from ewe.streams.descriptors import nonblocking_pipe

LONGEST = 2000  # bytes of a line; PIPE_BUF is at least 4096 on Linux


class Reports:
    """The pipe. The supervisor makes it; a worker inherits it, writes its report and closes it."""

    def __init__(self) -> None:
        self.reader, self.writer = nonblocking_pipe()
        os.set_blocking(self.writer, True)
        self.unread = b""

    def send(self, failure: str, sources: Iterable[str] = ()) -> None:
        """Report from a worker. failure: why it cannot serve, in one line; "" if it can."""
        pid = os.getpid()
        lines = [*(f"source {each}" for each in sources), f"failed {failure}" if failure else "ready"]
        try:
            for line in lines:
                os.write(self.writer, f"{pid} {line}".encode("utf-8", "surrogateescape")[:LONGEST] + b"\n")
        except BrokenPipeError:
            pass  # the supervisor has died; the lifeline says so, too
        os.close(self.writer)
        os.close(self.reader)

    def read(self) -> Iterator[tuple[int, str, str]]:
        """Yield what has come, in the supervisor: process id, word, text."""
        try:
            while data := os.read(self.reader, 65536):
                self.unread += data
        except BlockingIOError:
            pass
        *lines, self.unread = self.unread.split(b"\n")
        for line in lines:
            pid, word, text = (line.decode("utf-8", "surrogateescape") + " ").split(" ", 2)
            yield int(pid), word, text.rstrip()
