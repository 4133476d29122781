"""The counted model: a concurrency model that counts its connections and requests on the scoreboard (`status`).

counted(model) is a subclass of the model, as in trace.py: it overrides methods that every model calls, so no model
contains a line about the counters, and a server without them runs the model's own class.

Each process has a row of counters on the board. board.apply(step) calls step(row) with this process's row.

Each change of a gauge writes the row, since any process may read it at any time. The queue's length changes where a
CountedQueue is filled and emptied.

The process that serves also has the access log's writer count the requests (ewe.logger.count_with). The supervisor
does not: after a reload that fails, its next workers count or do not count as the configuration says that stays.

Read next: ewe.scoreboard.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ewe import logger, scoreboard, timeouts
from ewe.processors.base import Processor
from ewe.scoreboard import ACCEPTED, CONNECTIONS, QUEUE, REFUSED, WORKERS, Scoreboard, bucket_of, shared

if TYPE_CHECKING:
    from ewe.logger import AccessLogEntry
    from ewe.streams.base import Stream
    from ewe.streams.listener import Accepted, Listener


def counted(model: type[Processor]) -> type[Processor]:
    """Return a model whose processors count their connections."""
    return type(model.__name__, (Counted, model), {"board": shared(), "name": model.name})


class Counted(Processor):
    """Comes before a model in the method resolution order of counted()."""

    board: Scoreboard

    def make_queue(self) -> CountedQueue:
        """Return the queue of the pool, which writes its length into the row."""
        return CountedQueue(super().make_queue(), self.board)  # type: ignore[misc]

    def serve(self, listener: Listener) -> None:
        """Serve as the model does, after the writer of this process's row was started."""
        self.board.gauges = self.write_gauges
        self.board.refresh()
        logger.count_with(count_request)
        timeouts.count_with(count_timeout, count_partial_head)
        super().serve(listener)

    def next_connection(self, listener: Listener, seconds: float = -1) -> Accepted | None:
        """Return the model's next connection; count CPU time, since a process that forks registers no stream."""
        accepted = super().next_connection(listener, seconds)
        self.board.apply(self.board.add_cpu)
        return accepted

    def register(self, stream: Any) -> Any:
        """Register a stream, and count an accepted connection; return the stream."""
        registered = super().register(stream)
        self.board.apply(self.accept)
        return registered

    def forget(self, stream: Stream) -> None:
        """Remove a stream from the live ones, and write the gauges."""
        super().forget(stream)
        self.board.apply(self.write_gauges)

    def resized(self, workers: int) -> None:
        """Write the gauges: the number of workers has changed."""
        self.board.apply(self.write_gauges)
        super().resized(workers)

    def report_refusal(self, client: str, limit: str) -> None:
        """Count a refused connection, and log it. limit: the setting whose limit was reached."""
        self.board.apply(count_refusal)
        super().report_refusal(client, limit)

    def accept(self, row: memoryview[int]) -> None:
        """Count a connection."""
        row[ACCEPTED] += 1
        self.write_gauges(row)

    def write_gauges(self, row: memoryview[int]) -> None:
        """Write the connections and the workers of this process, how many wait for one, and the CPU time."""
        row[CONNECTIONS] = len(self.live)
        row[QUEUE] = self.waiting()
        row[WORKERS] = self.workers_now()
        self.board.add_cpu(row)


class CountedQueue:
    """Stands before a pool's queue, and writes its length into the row of this process when it changes."""

    def __init__(self, queue: Any, board: Scoreboard) -> None:
        self.queue = queue
        self.board = board

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the queue behind this one."""
        return getattr(self.queue, name)

    def put(self, entry: Any) -> Any:
        """Put an entry into the queue; return what the queue returns."""
        dropped = self.queue.put(entry)
        self.board.apply(self.write_length)
        return dropped

    def get(self) -> Any:
        """Wait for an entry, and return it."""
        entry = self.queue.get()
        self.board.apply(self.write_length)
        return entry

    def write_length(self, row: memoryview[int]) -> None:
        """Write the length of the queue."""
        row[QUEUE] = self.queue.qsize()


def count_refusal(row: memoryview[int]) -> None:
    """Count a refused connection."""
    row[REFUSED] += 1


def count_timeout(kind: str) -> None:
    """Count a timeout in this process's row. kind: one of ewe.timeouts.KINDS."""
    column = scoreboard.TIMEOUTS + timeouts.KINDS.index(kind)

    def add_one(row: memoryview[int]) -> None:
        row[column] += 1

    shared().apply(add_one)


def count_partial_head(change: int) -> None:
    """Count a head of which only a part has come (1), or its end (-1)."""

    def add_change(row: memoryview[int]) -> None:
        # A column cannot hold a negative number
        row[scoreboard.READING] = max(row[scoreboard.READING] + change, 0)

    shared().apply(add_change)


def count_request(entry: AccessLogEntry, feature: str) -> None:
    """Count a request whose response has ended. feature: "" if it was refused before the site saw it."""
    board = shared()
    column = board.column_of(feature, entry.response.status)
    bucket = bucket_of(entry.micros)

    def add_request(row: memoryview[int]) -> None:
        # Status (ewe.features.status) adds 1 to BUSY when it names the first feature. A request that was refused
        # before has no feature, and is not in BUSY. A column cannot hold a negative number.
        if feature and row[scoreboard.BUSY]:
            row[scoreboard.BUSY] -= 1
        row[scoreboard.REQUESTS] += 1
        row[scoreboard.BYTES] += entry.sent
        row[scoreboard.ABORTED] += entry.ending == logger.ABORTED
        row[scoreboard.MICROS] += entry.micros
        row[bucket] += 1
        row[column] += 1
        scoreboard.count_recent(row, time.monotonic())
        board.add_cpu(row)

    if not feature and entry.response.status == 408:  # only a head that came in part ends like this
        count_timeout("head")
    board.apply(add_request)
