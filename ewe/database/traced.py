"""The database daemon's part of the trace: connections to databases, and statements (ewe.trace lists the events).

    Daemon ── TracedDaemon ────────── db-request: a statement waits in the queue            regulating process
    WorkerThread ── TracedWorker ──── db-opened, db-runs, db-answered, db-closed            the processes

Both are subclasses, as the server's traced models are. A daemon without the setting `trace` calls no code of this
file. All processes are forked by the one that has opened the file, and write to it with one write(2) an event.

The values of a statement are in no event, neither the bound ones nor those in its text (shape.py). No message of a
database is, because it may quote them. The trace belongs to the account of the daemon, which may read all of
these databases anyway. A gateway's account sees none of it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ewe.database.daemon import Daemon
from ewe.database.protocol import connection_of
from ewe.database.shape import shape
from ewe.database.worker import WorkerThread
from ewe.trace import NONE, Trace, word

if TYPE_CHECKING:
    from ewe.database.drivers import Database, DatabaseConnection
    from ewe.database.gateways import Gateway
    from ewe.database.protocol import ClientRequest, DatabaseError, ServerResponse
    from ewe.database.statement_processes import StatementProcess
    from ewe.database.worker import Job


class TracedDaemon(Daemon):
    """A daemon that writes events. names_by_gateway: the name of each gateway's request without an answer."""

    trace: Trace

    def run(self) -> None:
        """Serve, and write the begin and the end."""
        self.names_by_gateway: dict[Gateway, str] = {}
        self.trace.write("db-begins", NONE, ", ".join(self.settings.databases))
        try:
            super().run()
        finally:
            self.trace.write("db-stops", NONE)

    def read_settings(self) -> None:
        super().read_settings()
        self.trace.write("db-begins", NONE, ", ".join(self.settings.databases))

    def job_for(self, gateway: Gateway, request: ClientRequest) -> Job:
        """Return the job of a request, with a name in the trace. Raises DatabaseError."""
        name = self.trace.new_connection()
        account = "tcp" if gateway.uid is None else f"uid:{gateway.uid}"
        text = f"{connection_of(request.client) or NONE} {account} {word(request.database)}"
        # Raises an error for a database that this gateway may not use
        job = super().job_for(gateway, request)
        self.trace.write("db-request", name, text)
        self.names_by_gateway[gateway] = name
        return job._replace(name=name)

    def refuse(self, gateway: Gateway, error: DatabaseError, *, closes: bool = False) -> None:
        self.write_answered(gateway, error.kind)
        super().refuse(gateway, error, closes=closes)

    def drop(self, gateway: Gateway) -> None:
        self.write_answered(gateway, "LEFT")
        super().drop(gateway)

    def take_back_workers(self) -> None:
        for worker in self.finished_workers:  # the worker has written the end of its statement
            self.names_by_gateway.pop(self.gateways_by_worker[worker], None)
        super().take_back_workers()

    def write_answered(self, gateway: Gateway, outcome: str) -> None:
        """Write that a request has ended without a worker: refused, or its gateway or its process has ended.

        outcome: the kind of the error, or LEFT. Only the first call for a request writes.
        """
        if (name := self.names_by_gateway.pop(gateway, None)) is not None:
            self.trace.write("db-answered", name, f"0 {outcome}")

    def close(self) -> None:
        for process in self.processes.values():
            self.trace.write("db-lost", NONE, process.pid)
        super().close()

    def end_process(self, process: StatementProcess) -> None:
        super().end_process(process)
        self.trace.write("db-lost", NONE, process.pid)


class TracedWorker(WorkerThread):
    """A worker that writes events."""

    trace: Trace
    outcome = "ok"

    def answer(self, job: Job) -> None:
        """Answer a request, and write when its statement begins and ends, and how it ends (`outcome`)."""
        self.trace.write("db-runs", job.name, shape(job.request.statement))
        started_at = time.monotonic()
        self.outcome = "LEFT"  # unless the last part of the answer is sent
        try:
            super().answer(job)
        finally:
            duration_ms = (time.monotonic() - started_at) * 1000
            self.trace.write("db-answered", job.name, f"{duration_ms:.3f} {self.outcome}")

    def send(self, job: Job, response: ServerResponse) -> None:
        super().send(job, response)
        if not response.more:
            self.outcome = "ok" if response.error is None else response.error.kind

    def connection_to(self, database: Database) -> DatabaseConnection:
        """Return a connection to the database, and write that it was opened if it is new."""
        previous = self.connection
        connection = super().connection_to(database)
        if connection is not previous:
            self.trace.write("db-opened", NONE, f"{word(database.name)} {word(database.driver)}")
        return connection

    def disconnect(self) -> None:
        """Close the connection, and write that if there was one."""
        closed_database = self.database
        super().disconnect()
        if closed_database is not None:
            self.trace.write("db-closed", NONE, word(closed_database.name))


def daemon_class(trace: Trace | None) -> type[Daemon]:
    """Return the class of the daemon, which writes events if there is a trace."""
    if trace is None:
        return Daemon
    worker_class = type("TracedWorker", (TracedWorker,), {"trace": trace})
    return type("TracedDaemon", (TracedDaemon,), {"trace": trace, "worker_class": worker_class})
