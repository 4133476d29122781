"""A worker: one thread with one permanent connection, which runs one statement at a time.

The paper's Figure 4: a connection is used again if it fits the request's database, else another replaces it. The
demon prefers a worker whose connection fits (demon.py), so with as many workers as databases in use, no connection
is ever replaced.

The demon kills the process if a statement cannot be cancelled. It then answers the gateway in the worker's place,
unless the worker was within an answer. `mark` tells it: a byte in memory that both processes share.
"""

from __future__ import annotations

import mmap
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ewe.database.drivers import Connection, Database, Result, connect
from ewe.database.layouts import Row, fragments
from ewe.database.lines import Line
from ewe.database.protocol import (
    ClientRequest,
    DatabaseError,
    ServerResponse,
    encode_response,
)
from ewe.logger import ErrorLog


class Job(NamedTuple):
    """A request that a worker is to answer. expires, by time.monotonic(): its statement is then cancelled."""

    request: ClientRequest
    database: Database
    line: Line
    rows: int
    time_limit: float
    write_timeout: float


class Mark:
    """One byte of shared memory: whether another process may still send an error as the answer to a job."""

    def __init__(self, memory: mmap.mmap, number: int) -> None:
        self.memory = memory
        self.number = number

    def open(self) -> None:
        """Say that an error may follow: nothing was sent, or a part of the answer after which more comes."""
        self.memory[self.number] = 1

    def close(self) -> None:
        """Say that no error may follow: a part is being sent, or the last one was."""
        self.memory[self.number] = 0

    def is_open(self) -> bool:
        """Return whether an error may follow."""
        return self.memory[self.number] == 1


class Worker:
    """A thread and its connection. database: the one that it is connected to."""

    def __init__(self, log: ErrorLog, mark: Mark, done: Callable[[Worker], None]) -> None:
        """done: called in the worker's thread after each job."""
        self.log = log
        self.mark = mark
        self.done = done
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.database: Database | None = None
        self.connection: Connection | None = None
        self.identity: tuple[int, int] | None = None
        self.gone = False  # the gateway of the last job cannot be used any more
        # The lock holds the job and its cancellation together, so that no cancellation hits the next job
        self.lock = threading.Lock()
        self.job: Job | None = None
        self.expires = 0.0
        self.cancelled: DatabaseError | None = None
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def start(self, job: Job) -> None:
        """Have the worker answer a request; the demon gives it one at a time."""
        with self.lock:
            self.job, self.cancelled = job, None
            self.expires = time.monotonic() + job.time_limit
        self.jobs.put(job)

    def stop(self) -> None:
        """End the thread, and its connection, after the statement that runs."""
        self.jobs.put(None)

    def cancel(self, error: DatabaseError) -> None:
        """Cancel the statement that runs now. error: the gateway's; any thread may call this."""
        with self.lock:
            if self.job is not None:
                self.cancelled = self.cancelled or error
                if self.connection is not None:
                    self.connection.cancel()

    def work(self) -> None:
        """Answer one request after the other, until the queue yields None."""
        while (job := self.jobs.get()) is not None:
            self.gone = False
            try:
                self.answer(job)
            except OSError:
                self.gone = True
            except Exception as bug:
                self.log.write("error", f"{job.line.who}: {type(bug).__name__}: {bug}")
                self.gone = True
                self.disconnect()
            with self.lock:
                self.job = None
            self.done(self)
        self.disconnect()

    def answer(self, job: Job) -> None:
        """Run the statement and send its result, or an error. Raises OSError if the gateway has left."""
        try:
            self.run(job)
        except (DatabaseError, MemoryError) as error:
            failed = self.cancelled or in_words(error)
            if isinstance(error, MemoryError):
                self.disconnect()  # it holds what the statement has taken
            self.log.write(
                "warning", f"{job.line.who}: database {job.database.name}: {failed.kind}: {failed}"
            )
            self.send(job, ServerResponse(b"", False, failed))

    def run(self, job: Job) -> None:
        """Run the statement and send its result. The transaction is committed before the last part leaves."""
        whole = False
        result: Result | None = None
        try:
            result = self.execute(job)
            connection = self.connection
            assert connection is not None
            rows = self.limited(result.rows, job)
            last: bytes | None = None
            for piece in fragments(job.request.layout, result.columns, rows, job.line.fragment):
                if last is not None:
                    self.send(job, ServerResponse(last, True))
                last = piece
            result.rows.close()  # a limit may have ended it
            self.mark.close()  # from here on the statement may have changed the database
            connection.end(commit=True)
            whole = True
        finally:
            if not whole:
                self.roll_back(result)
        self.send(job, ServerResponse(last or b"", False))

    def send(self, job: Job, response: ServerResponse) -> None:
        """Send a part of the answer. Raises OSError if the gateway has left, or reads nothing."""
        self.mark.close()
        job.line.send(encode_response(response), job.write_timeout)
        if response.more:
            self.mark.open()

    def limited(self, rows: Iterator[Row], job: Job) -> Iterator[Row]:
        """Yield the rows that may be sent. Raises DatabaseError at a limit of the demon's."""
        wanted = job.request.rows
        for number, row in enumerate(rows):
            if number == wanted:
                return
            if number == job.rows:
                raise DatabaseError("TOO MANY ROWS", f"more than {job.rows} rows (rows)")
            if self.cancelled:  # between two rows there was no statement to cancel
                raise self.cancelled
            yield row

    def execute(self, job: Job) -> Result:
        """Run the statement. A connection that the database has closed since the last one is made again, once."""
        known = self.connection
        connection = self.fitting(job.database)
        try:
            return connection.execute(job.request.statement, job.request.parameters)
        except DatabaseError:
            if connection is not known or connection.is_alive():
                raise
        return self.fitting(job.database).execute(job.request.statement, job.request.parameters)

    def roll_back(self, result: Result | None) -> None:
        """Forget what a statement did that failed; a connection that cannot do it is closed."""
        try:
            if result is not None:
                result.rows.close()
            if self.connection is not None:
                self.connection.end(commit=False)
        except (DatabaseError, MemoryError):
            self.disconnect()

    def fitting(self, database: Database) -> Connection:
        """Return a connection to the database: the worker's own if it fits, else a new one in its place."""
        identity = identity_of(database.place)
        fits = database == self.database and identity == self.identity
        if not fits or self.connection is None or not self.connection.is_alive():
            self.disconnect()
            connection = connect(database)
            with self.lock:
                self.connection, self.database, self.identity = connection, database, identity
            return connection
        return self.connection

    def disconnect(self) -> None:
        """Close the connection, if there is one."""
        with self.lock:
            connection, self.connection, self.database = self.connection, None, None
        if connection is not None:
            connection.close()


def in_words(error: DatabaseError | MemoryError) -> DatabaseError:
    """Return the error for the gateway."""
    if isinstance(error, DatabaseError):
        return error
    return DatabaseError("STATEMENT", "the statement needs more memory than the demon gives it (memory)")


def identity_of(place: str) -> tuple[int, int] | None:
    """Return which file this is: a new file may have taken the place of the one that is open."""
    try:
        about = os.stat(place)
    except OSError:
        return None
    return about.st_dev, about.st_ino
