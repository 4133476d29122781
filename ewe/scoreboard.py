"""The scoreboard: what the server has done, in memory that all of its processes share (Apache's word for it).

Each process owns a row of 64-bit numbers, and only this process writes to it. No request therefore waits for a lock
of another process, and a reader adds all rows up. The numbers of a row are never set back, except the gauges: a
process that takes the row of one that has ended goes on counting there, and no request is lost.

    process 1  │ pid, connections, requests, bytes, ... │ requests by status and feature │
    process 2  │ ...                                    │                                │
    a reader:    sum of every column; of the gauges, only the rows whose process lives

**Which row is mine?** A process tries to lock a byte of the shared file for each row (lockf), and owns the row
whose lock it gets. The kernel releases the lock when the process ends, however it ends. A forked child does not
inherit the lock, and takes another row at its first event. A reader asks for the locks, too: the id of a process
that has ended may be that of another program by now.

**Several threads of one process** may count at once, and `row[i] += 1` is no single step. Each thread therefore
puts what it has to count into a deque, which is one step, and then tries the process's lock without waiting for it.
The thread that gets the lock counts what is in the deque, also for the others. A thread that does not get it goes
on: the owner of the lock looks into the deque again after it has released it.

Without the setting `status` no part of the server imports this module.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

from ewe.config.feature_table import ANSWERS, FEATURES
from ewe.http.status import REASONS
from ewe.timeouts import KINDS

NUMBER_BYTES = 8
ROWS = 1024  # processes that can count at once; more of them share the last row, and their sums are not exact
# The columns. BUSY: requests that are being answered. QUEUE: conversations that wait for a worker. WORKERS: threads
# of a pool; 1 for a process of another model. READING: heads that have come in part. BEGAN: the time.time() at
# which the process took the row. CPU_BEFORE: the CPU_MICROS of earlier processes with this row. The last three: a
# PERIOD_S, its requests, and those of the one before.
(
    PID, CONNECTIONS, BUSY, QUEUE, WORKERS, READING, BEGAN, ACCEPTED, REFUSED, REQUESTS, BYTES, ABORTED, MICROS,
    CPU_MICROS, CPU_BEFORE, PERIOD, IN_PERIOD, IN_LAST_PERIOD,
) = range(18)  # fmt: skip
GAUGES = (CONNECTIONS, BUSY, QUEUE, WORKERS, READING)  # true only while the process lives
PERIOD_S = 10  # the rate is that of the last ten seconds
# Upper bounds of the histogram of durations, in seconds; a last bucket has the rest
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
HISTOGRAM = IN_LAST_PERIOD + 1
TIMEOUTS = HISTOGRAM + len(BUCKETS_S) + 1  # a column for each of ewe.timeouts.KINDS
MATRIX = TIMEOUTS + len(KINDS)

Step = Callable[["memoryview[int]"], None]  # counts one event in a row


# The names by which requests are counted; the first of each stands for all others
OTHER, FILES = "other", "files"
FEATURE_NAMES = (
    OTHER, FILES, "wsgi", "asgi", *ANSWERS, *dict.fromkeys(module.split(".")[2] for module, _ in FEATURES),
)  # fmt: skip
STATUSES = (0, *REASONS, 499)


class Scoreboard:
    """The rows of all processes of one server. began: the time.time() at which it was made."""

    def __init__(self, features: Sequence[str] = FEATURE_NAMES, statuses: Sequence[int] = STATUSES) -> None:
        """Raises OSError if the system has no memory for the rows."""
        self.features, self.statuses = tuple(features), tuple(statuses)
        # A column for each pair, after the columns with a fixed number
        self.matrix = {
            (feature, status): MATRIX + feature_number * len(statuses) + status_number
            for feature_number, feature in enumerate(features)
            for status_number, status in enumerate(statuses)
        }
        self.columns = MATRIX + len(self.matrix)
        self.file = os.memfd_create("ewe-scoreboard") if hasattr(os, "memfd_create") else unnamed_file()
        size = ROWS * self.columns * NUMBER_BYTES
        os.truncate(self.file, size)
        self.table = memoryview(mmap.mmap(self.file, size)).cast("Q")  # "Q": unsigned numbers of 64 bits
        self.began = time.time()
        self.gauges: Step = no_gauges  # the processor's, which writes those that it knows
        self.forget_row()
        os.register_at_fork(after_in_child=self.forget_row)

    def forget_row(self) -> None:
        """Own no row, in a new process. What the parent has not counted yet, the parent will count."""
        self.row: memoryview[int] | None = None
        self.row_number = -1
        self.steps: deque[Step] = deque()
        self.lock = allocate_lock()
        self.cpu_micros = 0  # the CPU time of this process that is counted already

    def take_row(self) -> memoryview[int]:
        """Take a free row for this process, clear its gauges, and return it.

        The process locks one byte of the file for its row. The kernel unlocks it when the process ends.
        """
        first = os.getpid() % ROWS
        for number in (*range(first, ROWS - 1), *range(first)):
            try:
                fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
            except OSError:  # another process has this row
                continue
            break
        else:
            number = ROWS - 1  # the row that all further processes share
        row = self.row_of(number)
        for gauge in GAUGES:
            row[gauge] = 0
        # The sums of earlier processes stay in the row: a reader adds up all rows. Only the CPU time is also shown
        # for each process, without that of the earlier ones.
        row[PID], row[BEGAN], row[CPU_BEFORE] = os.getpid(), int(time.time()), row[CPU_MICROS]
        self.row_number = number
        self.row = row
        return row

    def row_of(self, number: int) -> memoryview[int]:
        """Return one row."""
        return self.table[number * self.columns : (number + 1) * self.columns]

    def apply(self, step: Step) -> None:
        """Apply a step to the row of this process, now or by another thread in a moment. It never waits."""
        self.steps.append(step)
        while self.steps and self.lock.acquire(False):
            try:
                row = self.row if self.row is not None else self.take_row()
                while self.steps:
                    self.steps.popleft()(row)
            finally:
                self.lock.release()

    def add_cpu(self, row: memoryview[int]) -> None:
        """Count the CPU time that this process has used since the last call."""
        micros = time.process_time_ns() // 1000
        row[CPU_MICROS] += micros - self.cpu_micros
        self.cpu_micros = micros

    def column_of(self, feature: str, status: int) -> int:
        """Return the column that counts the responses of a feature with one status.

        The first feature and the first status stand for those without a column.
        """
        if (column := self.matrix.get((feature, status))) is not None:
            return column
        feature = feature if feature in self.features else self.features[0]
        return self.matrix[feature, status if status in self.statuses else self.statuses[0]]

    # For readers

    def refresh(self) -> None:
        """Write the gauges of this process. The others have written theirs when they last changed."""
        self.apply(self.gauges)

    def rows(self) -> Iterator[tuple[bool, list[int]]]:
        """Yield each row that a process has used, and whether the process lives. If not, its gauges are 0."""
        for number in range(ROWS):
            if self.table[number * self.columns + PID]:
                row = self.row_of(number).tolist()
                alive = is_alive(row[PID]) and self.has_owner(number)
                for gauge in () if alive else GAUGES:
                    row[gauge] = 0
                yield alive, row

    def has_owner(self, number: int) -> bool:
        """Return whether a process owns a row: its lock cannot be had.

        Only a process with a row asks, since it takes no other one: the release after the test would free that row.
        The last row has many owners, of which one has the lock.
        """
        if self.row is None or number in (self.row_number, ROWS - 1):
            return True
        try:
            fcntl.lockf(self.file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, number)
        except OSError:
            return True
        fcntl.lockf(self.file, fcntl.LOCK_UN, 1, number)
        return False

    def sums(self) -> list[int]:
        """Return the sum of each column."""
        return add_up(row for _, row in self.rows())


def add_up(rows: Iterable[list[int]]) -> list[int]:
    """Return the sum of each column of some rows, of which there is one at least."""
    return [sum(column) for column in zip(*rows, strict=True)]


def count_recent(row: memoryview[int], now: float) -> None:
    """Count a request for the rate of now. now: the time.monotonic()."""
    period = int(now / PERIOD_S)
    if period != row[PERIOD]:
        row[IN_LAST_PERIOD] = row[IN_PERIOD] if period == row[PERIOD] + 1 else 0
        row[PERIOD], row[IN_PERIOD] = period, 0
    row[IN_PERIOD] += 1


def rate_of(row: Sequence[int], now: float) -> float:
    """Return how many requests a second a process had in the last PERIOD_S. now: the time.monotonic().

    Of the period that is only in part within this time, the same part of its requests counts.
    """
    age = now / PERIOD_S - row[PERIOD]  # in periods; below 1: the row's period is not over
    if age < 1:
        return (row[IN_PERIOD] + row[IN_LAST_PERIOD] * (1 - age)) / PERIOD_S
    return row[IN_PERIOD] * max(2 - age, 0) / PERIOD_S


def states_of(row: Sequence[int]) -> dict[str, int]:
    """Return the open connections of a process by state. A conversation in the queue has no other state."""
    left = row[CONNECTIONS]
    states = {}
    for state, column in (("queued", QUEUE), ("answering", BUSY), ("reading", READING)):
        states[state] = min(row[column], left)
        left -= states[state]
    return states | {"waiting": left}


@cache
def shared() -> Scoreboard:
    """Return the scoreboard of this server: all sites count on it, also after a reload. Raises OSError."""
    return Scoreboard()


def no_gauges(row: memoryview[int]) -> None:
    """Write no gauges: no processor serves yet."""


def unnamed_file() -> int:
    """Return the descriptor of a temporary file without a name, on a system without memfd. Raises OSError."""
    from tempfile import TemporaryFile

    with TemporaryFile() as file:
        return os.dup(file.fileno())


def is_alive(pid: int) -> bool:
    """Return whether a process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it runs, as another account
    return True


def bucket_of(micros: int) -> int:
    """Return the column of the histogram for a duration."""
    for at, bound in enumerate(BUCKETS_S):
        if micros <= bound * 1e6:
            return HISTOGRAM + at
    return HISTOGRAM + len(BUCKETS_S)
