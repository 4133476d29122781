"""The databases of the RDBMS paper's experiments, with the same 50,000 rows each, and the daemon that queries them.

    SQLITE         a file; no server is needed
    POSTGRESQL     a private server, at a Unix socket and at a port of 127.0.0.1, on the server's core

    with open_database(lab, POSTGRESQL) as database, daemon(lab, database) as running_daemon: ...

Raises LabError.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from glob import glob
from importlib.util import find_spec
from pathlib import Path

from ewe.config.messages import ConfigError
from ewe.database.access_log import REPORT, SCHEMA, sample, write_rows
from ewe.database.drivers import Database as Named
from ewe.database.drivers import connect
from ewe.database.layouts import fragments
from ewe.database.protocol import DatabaseError
from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.processes import LabError, find_tool, last_line, running, server_core
from ewe_lab.load.child import environment
from ewe_lab.stacks.backends import wait_for_socket
from ewe_lab.stacks.servers import free_port, wait_for_port

SQLITE, POSTGRESQL = "SQLite", "PostgreSQL"
DATABASES = (SQLITE, POSTGRESQL)
DRIVERS = {SQLITE: "sqlite", POSTGRESQL: "postgresql"}
POSTGRES_DIRECTORY = "/usr/lib/postgresql"  # Debian: a directory for each version
DATABASE_NAME = "log"  # of the database, in requests to the daemon
ACCOUNT = "postgres"  # initdb refuses root
INITDB_TIMEOUT_S = 60.0  # seconds that initdb may take
# How often, and after which pauses, a connection is tried while PostgreSQL is starting up: 10 s in all
CONNECT_TRIES, CONNECT_PAUSE_S = 100, 0.1
MAX_CONNECTIONS = 100  # the most connections to PostgreSQL
# -F: no fsync, since a crash may lose the data
POSTGRES_OPTIONS = ("-c", f"max_connections={MAX_CONNECTIONS}", "-c", "jit=off", "-F")
COPY_STATEMENT = "COPY log FROM STDIN"
INDEX_STATEMENT = "CREATE INDEX log_status ON log (status)"


@dataclass(frozen=True)
class LabDatabase:
    """A database that answers queries.

    source: a file, or a connection string. port: of PostgreSQL on 127.0.0.1. pids: of its server. digest, length:
    of the report in the layout TABLE.
    """

    name: str
    source: str
    digest: str = ""
    length: int = 0
    port: int = 0
    pids: tuple[int, ...] = ()

    @property
    def driver(self) -> str:
        """The daemon's name of the driver."""
        return DRIVERS[self.name]

    @property
    def jdbc(self) -> str:
        """The address of the database in the URL of a JDBC driver (ewe_lab.stacks.servlets)."""
        return self.source if self.name == SQLITE else f"127.0.0.1:{self.port}/postgres?user={ACCOUNT}"


@dataclass(frozen=True)
class RunningDaemon:
    """A running database daemon. address: unix:PATH."""

    address: str
    pid: int


def why_missing(name: str) -> str:
    """Return the command that installs what a database needs here and does not find; "" if it has everything."""
    if name == SQLITE:
        return ""
    if not server_programs():
        return "apt install postgresql"
    if find_spec("psycopg") is None:
        return "pip install 'ewe-server[database]'"
    # PostgreSQL refuses to run as root: setpriv starts it as ACCOUNT
    return "" if os.geteuid() or find_tool("setpriv") else "apt install util-linux"


def server_programs() -> str:
    """Return the directory of the latest PostgreSQL server's programs, "" if no server is installed.

    The packages of its clients and headers have such a directory, too, without a server.
    """
    servers = (Path(file) for file in glob(f"{POSTGRES_DIRECTORY}/*/bin/initdb"))
    # .../15/bin/initdb: 9.6 is before 15, although its text is not
    return max((str(each.parent) for each in servers), key=version_of_directory, default="")


def version_of_directory(directory: str) -> tuple[int, ...]:
    """Return the version in the path of PostgreSQL's programs: (9, 6) for .../9.6/bin."""
    return tuple(int(part) for part in Path(directory).parent.name.split(".") if part.isdecimal())


@contextmanager
def open_database(lab: Bench, name: str, *, pinned: bool = True) -> Iterator[LabDatabase]:
    """Make a database with the sample rows; yield it. Its server, if it has one, runs until the block is left.

    name: SQLITE or POSTGRESQL. pinned: the database server runs on the core of the servers under test, else on all
    cores.
    """
    if lacking := why_missing(name):
        raise LabError(f"{name} is left out: {lacking}")
    if name == SQLITE:
        yield with_report(LabDatabase(SQLITE, str(sqlite(lab))))
        return
    with postgresql(lab, pinned=pinned) as database:
        yield with_report(database)


def sqlite(lab: Bench) -> Path:
    """Return the file with the sample rows. It is made once, and all accounts may read it."""
    path = lab.directory / "access.db"
    if not path.exists():
        try:
            write_rows(str(path), sample(), new=True)
        except ConfigError as reason:
            raise LabError(str(reason)) from None
        path.chmod(0o644)
    return path


@contextmanager
def postgresql(lab: Bench, *, pinned: bool = True) -> Iterator[LabDatabase]:
    """Run a PostgreSQL server with the sample rows, in a new data directory; yield the database.

    pinned: as in open_database().
    """
    directory = Path(tempfile.mkdtemp(prefix="postgresql-", dir=lab.directory))
    prefix = as_account(directory)
    initdb_command = [
        *prefix,
        f"{server_programs()}/initdb",
        "-D",
        f"{directory}/data",
        "-A",
        "trust",
        "-U",
        ACCOUNT,
        "--no-sync",
    ]
    try:
        done = subprocess.run(
            initdb_command, capture_output=True, text=True, timeout=INITDB_TIMEOUT_S, cwd="/"
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"initdb has not ended within {INITDB_TIMEOUT_S:g} s") from None
    if done.returncode:
        raise LabError(f"initdb failed: {last_line(done.stderr)}")
    port = free_port()
    command = [
        f"{server_programs()}/postgres",
        "-D",
        f"{directory}/data",
        "-k",
        str(directory),
        "-p",
        str(port),
        *POSTGRES_OPTIONS,
    ]
    with (
        tempfile.TemporaryFile() as output,
        running([*prefix, *command], output, core_of(pinned=pinned), cwd=Path("/")) as started,
    ):
        wait_for_socket(started, directory / f".s.PGSQL.{port}", output, POSTGRESQL)
        wait_for_port(started, port, output, POSTGRESQL)
        source = f"host={directory} port={port} user={ACCOUNT} dbname=postgres"
        load_sample(source)
        yield LabDatabase(POSTGRESQL, source, port=port, pids=(started.pid,))


def core_of(*, pinned: bool) -> int | None:
    """Return the servers' core if a process is pinned to it, None for all cores."""
    return server_core() if pinned else None


def as_account(directory: Path) -> Sequence[str]:
    """Make PostgreSQL's account the owner of a directory; return the prefix of a command that runs as this account.

    If we are not root, our account keeps the directory, and the prefix is empty. Raises LabError if there is
    no such account.
    """
    directory.chmod(0o755)
    if os.geteuid():
        return ()
    import pwd

    try:
        account = pwd.getpwnam(ACCOUNT)
    except KeyError:
        raise LabError(f"{POSTGRESQL} does not run as root, and there is no account {ACCOUNT}") from None
    os.chown(directory, account.pw_uid, account.pw_gid)
    return ("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--")


def load_sample(source: str) -> None:
    """Make PostgreSQL's table, fill it with the sample, and make its index. source: the connection string."""
    import psycopg

    for _ in range(CONNECT_TRIES):  # PostgreSQL listens before it answers
        try:
            connection = psycopg.connect(source, autocommit=True)
            break
        except psycopg.OperationalError as reason:
            if "starting up" not in str(reason):
                raise LabError(f"{POSTGRESQL}: {last_line(str(reason))}") from None
            time.sleep(CONNECT_PAUSE_S)
    else:
        raise LabError(f"{POSTGRESQL} does not start")
    try:
        with connection, connection.cursor() as cursor:
            # `user` is a word of PostgreSQL's SQL
            cursor.execute(SCHEMA.replace("user TEXT", '"user" TEXT').encode())
            with cursor.copy(COPY_STATEMENT) as copy:
                for row in sample():
                    copy.write_row(row)
            cursor.execute(INDEX_STATEMENT)
            cursor.execute("VACUUM ANALYZE log")  # now: autovacuum would do it during the measurement
    except psycopg.Error as reason:  # such as a full disk
        raise LabError(f"{POSTGRESQL}: {last_line(str(reason))}") from None


def with_report(database: LabDatabase) -> LabDatabase:
    """Return the database with the digest and the length of its report, which each answer is compared with."""
    try:
        connection = connect(Named(DATABASE_NAME, database.driver, database.source, write=False))
        try:
            found = connection.execute(REPORT, ())
            body = b"".join(fragments("TABLE", found.columns, found.rows))
        finally:
            connection.close()
    except DatabaseError as reason:
        raise LabError(f"{database.name}: {reason}") from None
    digest = hashlib.sha256(body).hexdigest()
    return replace(database, digest=digest, length=len(body))


@contextmanager
def daemon(
    lab: Bench,
    database: LabDatabase,
    *lines: str,
    name: str = DATABASE_NAME,
    write: bool = False,
    pinned: bool = True,
    listen: Sequence[str] = (),
    key: str = "",
) -> Iterator[RunningDaemon]:
    """Run a daemon for the database; yield its address and its pid.

    lines: further settings of the daemon. name: of the database in requests. write: whether requests may change it.
    pinned: the daemon runs on the core of the servers under test, else on all cores. listen: addresses beside its
    Unix socket. key: of the database, which TCP needs.
    """
    directory = Path(tempfile.mkdtemp(prefix="dbd-", dir=lab.directory))
    directory.chmod(0o755)
    socket = directory / "socket"
    users = sorted({getpass.getuser(), "nobody"})  # a server or program of an experiment may run as nobody
    addresses = ", ".join(f'"{each}"' for each in (f"unix:{socket}", *listen))
    text = [f"listen = [{addresses}]", *lines, f"[databases.{name}]", f'source = "{database.source}"']
    text += [f'driver = "{database.driver}"', f"users = {users!r}", f"write = {str(write).lower()}"]
    text += [f'key = "{key}"'] if key else []
    (directory / "dbd.toml").write_text("\n".join(text) + "\n")
    command = [sys.executable, "-m", "ewe.database.cli", "--config", str(directory / "dbd.toml")]
    with (
        tempfile.TemporaryFile() as output,
        running(command, output, core_of(pinned=pinned), cwd=directory, env=environment()) as started,
    ):
        wait_for_socket(started, socket, output, "ewe-dbd")
        yield RunningDaemon(f"unix:{socket}", started.pid)
