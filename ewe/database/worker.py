"""A worker: one thread with one permanent connection, which runs one statement at a time.

The paper (docs/database.md), figure 4: a worker keeps its connection for the next request to the same database. For
a request to another database, it replaces the connection. The daemon prefers a worker whose connection fits
(daemon.py). With as many workers as databases in use, no connection is ever replaced.

If a statement cannot be cancelled, the regulating process kills the statement process, and answers the gateway with
an error in the worker's place. It must not do so if the worker had just begun to send a part of the answer: the
gateway would read the error as the rest of that part. The worker therefore notes before and after each part whether
an error may follow. The note is `error_flag`, a byte in memory that both processes share.
"""

from __future__ import annotations

import mmap
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ewe.database.acceptors import GatewayConnection
from ewe.database.drivers import Database, DatabaseConnection, Result, connect
from ewe.database.layouts import Row, fragments
from ewe.database.protocol import (
    ClientRequest,
    DatabaseError,
    ServerResponse,
    encode_response,
    error_response,
)
from ewe.logger import ErrorLog
from ewe.trace import Trace

# Seconds after its time limit at which a statement stops waiting for a gateway that reads its result slowly. Soon
# after that the regulating process would kill the statement process, with its other statements (KILL_AFTER_S)
SEND_AFTER_LIMIT_S = 1.0


class Job(NamedTuple):
    """A request for a worker.

    gateway_connection: gets the answer. max_rows: the daemon's limit for the rows of the result. time_limit_s: the
    statement is then cancelled. write_timeout_s: a gateway that has read nothing for so long is dropped. name: the
    request's name in the trace.
    """

    request: ClientRequest
    database: Database
    gateway_connection: GatewayConnection
    max_rows: int
    time_limit_s: float
    write_timeout_s: float
    name: str = ""


class ErrorFlag:
    """One byte of shared memory: whether another process may still send an error as the answer to a job."""

    def __init__(self, memory: mmap.mmap, number: int) -> None:
        self.memory = memory
        self.number = number

    def allow(self) -> None:
        """Note that an error may follow: nothing was sent, or a part of the answer that is not the last."""
        self.memory[self.number] = 1

    def forbid(self) -> None:
        """Note that no error may follow: a part is being sent, or the last one was sent."""
        self.memory[self.number] = 0

    def is_allowed(self) -> bool:
        """Return whether an error may follow."""
        return self.memory[self.number] == 1


class WorkerThread:
    """A thread and its connection to a database.

    database: the one that the connection leads to. connection: None if it is not connected. trace: gets its events.
    """

    trace: Trace | None = None

    def __init__(self, log: ErrorLog, error_flag: ErrorFlag, on_done: Callable[[WorkerThread], None]) -> None:
        """error_flag: of this worker; see the module's docstring. on_done: called in its thread after each job."""
        self.log = log
        self.error_flag = error_flag
        self.on_done = on_done
        self.jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.database: Database | None = None
        self.connection: DatabaseConnection | None = None
        # The device and inode of the database's file when it was opened: they show that a new file has replaced it
        self.identity: tuple[int, int] | None = None
        self.gateway_lost = False  # the connection to the gateway of the last job cannot be used any more
        self.send_deadline = 0.0  # the time.monotonic() until which the job may wait for its gateway to read
        # The lock protects the job and its cancellation together: no cancellation may hit the next job
        self.lock = threading.Lock()
        self.job: Job | None = None
        self.cancel_error: DatabaseError | None = None  # of the job, if it was cancelled
        self.thread = threading.Thread(target=self.answer_jobs, daemon=True)
        self.thread.start()

    def start(self, job: Job) -> None:
        """Make the worker answer a request; the daemon gives it one at a time."""
        with self.lock:
            self.job, self.cancel_error = job, None
        self.jobs.put(job)

    def cancel(self, error: DatabaseError) -> None:
        """Cancel the running statement. error: for the gateway. Any thread may call this."""
        with self.lock:
            if self.job is not None:
                self.cancel_error = self.cancel_error or error
                if self.connection is not None:
                    self.connection.cancel()

    def answer_jobs(self) -> None:
        """Answer one request after the other, until the process ends."""
        while True:
            job = self.jobs.get()
            self.gateway_lost = False
            self.send_deadline = time.monotonic() + job.time_limit_s + SEND_AFTER_LIMIT_S
            try:
                self.answer(job)
            except OSError:
                self.gateway_lost = True
            except Exception as bug:
                self.log.write("error", f"{job.gateway_connection.peer_name}: {type(bug).__name__}: {bug}")
                self.gateway_lost = True
                self.disconnect()
            with self.lock:
                self.job = None
            self.on_done(self)

    def answer(self, job: Job) -> None:
        """Run the statement and send its result, or an error. Raises OSError if the gateway has left."""
        try:
            self.run_statement(job)
        except (DatabaseError, MemoryError) as error:
            if isinstance(error, MemoryError):
                self.disconnect()  # frees the memory that the statement has taken
                error = DatabaseError(
                    "STATEMENT", "the statement needs more memory than the daemon gives it (memory)"
                )
            reply = self.cancel_error or error
            peer = job.gateway_connection.peer_name
            self.log.write("warning", f"{peer}: database {job.database.name}: {reply.kind}: {reply}")
            self.send(job, error_response(reply))

    def run_statement(self, job: Job) -> None:
        """Run the statement, and send its result in pieces. Commit the transaction before the last piece is sent.

        A gateway that has the whole result can then rely on the commit. Each piece is sent when the next one is
        known, so the last piece waits until after the commit.
        """
        is_committed = False
        result: Result | None = None
        try:
            result = self.execute(job)
            connection = self.connection
            assert connection is not None
            rows = self.limited_rows(result.rows, job)
            last_piece: bytes | None = None
            for piece in fragments(
                job.request.layout, result.columns, rows, job.gateway_connection.fragment_bytes
            ):
                if last_piece is not None:
                    self.send(job, ServerResponse(last_piece, more=True))
                last_piece = piece
            result.rows.close()  # a limit may have ended it early
            # After the commit no error may be sent: it would say that nothing has changed
            self.error_flag.forbid()
            connection.end(commit=True)
            is_committed = True
        finally:
            if not is_committed:
                self.roll_back(result)
        self.send(job, ServerResponse(last_piece or b"", more=False))

    def send(self, job: Job, response: ServerResponse) -> None:
        """Send a part of the answer. Raises OSError if the gateway has left, or reads nothing or too slowly."""
        self.error_flag.forbid()
        job.gateway_connection.send(encode_response(response), job.write_timeout_s, self.send_deadline)
        if response.more:
            self.error_flag.allow()

    def limited_rows(self, rows: Iterator[Row], job: Job) -> Iterator[Row]:
        """Yield the rows that may be sent; end at the limit of the request.

        Raises DatabaseError at the daemon's limit.
        """
        for number, row in enumerate(rows):
            if number == job.request.rows:  # None: the request has no limit
                return
            if number == job.max_rows:
                raise DatabaseError("TOO MANY ROWS", f"more than {job.max_rows} rows (rows)")
            if self.cancel_error:  # the cancellation came between two rows, where no statement ran
                raise self.cancel_error
            yield row

    def execute(self, job: Job) -> Result:
        """Run the statement. If the database has closed the connection meanwhile, run it again on a new one.

        Nothing was committed, so it has no effect twice.
        """
        connection_before = self.connection
        connection = self.connection_to(job.database)
        try:
            return connection.execute(job.request.statement, job.request.parameters)
        except DatabaseError:
            if connection is not connection_before or connection.is_alive():
                raise  # the connection is new or alive: the statement itself is the cause
        return self.connection_to(job.database).execute(job.request.statement, job.request.parameters)

    def roll_back(self, result: Result | None) -> None:
        """Roll back a failed statement; close a connection that cannot roll back."""
        try:
            if result is not None:
                result.rows.close()
            if self.connection is not None:
                self.connection.end(commit=False)
        except (DatabaseError, MemoryError):
            self.disconnect()

    def connection_to(self, database: Database) -> DatabaseConnection:
        """Return a connection to the database: the worker's own if it fits, else a new one in its place."""
        identity = file_identity(database.source)
        is_fit = database == self.database and identity == self.identity
        if not is_fit or self.connection is None or not self.connection.is_alive():
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


def file_identity(source: str) -> tuple[int, int] | None:
    """Return the device and inode of a file; None if `source` is not the path of a file.

    If a new file has replaced the one that the connection has open, its device and inode differ.
    """
    try:
        file_status = os.stat(source)
    except OSError:
        return None
    return file_status.st_dev, file_status.st_ino
