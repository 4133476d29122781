"""The databases of the RDBMS paper's experiments, with the same 50,000 rows each, and the demon that asks them.

    SQLITE         a file, which needs nothing
    POSTGRESQL     a server of the lab's own, at a Unix socket and at a port of 127.0.0.1, on the server's core

    with opened(lab, POSTGRESQL) as database, demon(lab, database) as asked: ...

Raises LabError.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob
from importlib.util import find_spec
from pathlib import Path

from ewe.config.messages import ConfigError
from ewe.database.access_log import REPORT, SCHEMA, fill, sample
from ewe.database.drivers import Database as Named
from ewe.database.drivers import connect
from ewe.database.layouts import fragments
from ewe.database.protocol import DatabaseError
from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.processes import LabError, find_tool, one_line, running, two_cores
from ewe_lab.load.child import environment
from ewe_lab.stacks.backends import wait_for_socket
from ewe_lab.stacks.servers import free_port, wait_for_port

SQLITE, POSTGRESQL = "SQLite", "PostgreSQL"
DATABASES = (SQLITE, POSTGRESQL)
DRIVERS = {SQLITE: "sqlite", POSTGRESQL: "postgresql"}
NAME = "log"  # of the database, in requests to the demon
ACCOUNT = "postgres"  # initdb refuses root
MADE_IN = 60.0  # seconds that initdb may take
MOST = 100  # connections of PostgreSQL
OPTIONS = ("-c", f"max_connections={MOST}", "-c", "jit=off", "-F")  # -F: nothing here must outlive a crash
COPY = "COPY log FROM STDIN"
INDEX = "CREATE INDEX log_status ON log (status)"


@dataclass(frozen=True)
class Database:
    """A database that can be asked.

    place: a file, or a connection string. port: of PostgreSQL on 127.0.0.1. pids: of its server. digest, length: of
    the report in the layout TABLE.
    """

    name: str
    place: str
    digest: str = ""
    length: int = 0
    port: int = 0
    pids: tuple[int, ...] = ()

    @property
    def driver(self) -> str:
        """What the demon calls its driver."""
        return DRIVERS[self.name]

    @property
    def jdbc(self) -> str:
        """Its place in the URL of a JDBC driver (ewe_lab.stacks.servlets)."""
        return self.place if self.name == SQLITE else f"127.0.0.1:{self.port}/postgres?user={ACCOUNT}"


@dataclass(frozen=True)
class Asked:
    """A demon that answers. address: unix:PATH."""

    address: str
    pid: int


def missing(name: str) -> str:
    """Return why a database cannot be had here, "" if it can."""
    if name == SQLITE:
        return ""
    if not programs():
        return "apt install postgresql"
    if find_spec("psycopg") is None:
        return "pip install 'ewe-server[database]'"
    return "" if os.geteuid() or find_tool("setpriv") else "apt install util-linux"


def programs() -> str:
    """Return the directory of PostgreSQL's programs, "" if there is none."""
    return max(glob("/usr/lib/postgresql/*/bin"), default="")


@contextmanager
def opened(lab: Bench, name: str, pinned: bool = True) -> Iterator[Database]:
    """Make a database with the sample, and its server if it has one; it has ended when the block is left.

    pinned: its server has the servers' core, else all cores.
    """
    if lacking := missing(name):
        raise LabError(f"{name} is left out: {lacking}")
    if name == SQLITE:
        yield described(Database(SQLITE, str(sqlite(lab))))
        return
    with postgresql(lab, pinned) as database:
        yield described(database)


def sqlite(lab: Bench) -> Path:
    """Return the file with the sample, made once; all accounts may read it."""
    path = lab.directory / "access.db"
    if not path.exists():
        try:
            fill(str(path), sample(), new=True)
        except ConfigError as reason:
            raise LabError(str(reason)) from None
        path.chmod(0o644)
    return path


@contextmanager
def postgresql(lab: Bench, pinned: bool = True) -> Iterator[Database]:
    """Run a server with the sample."""
    where = Path(tempfile.mkdtemp(prefix="postgresql-", dir=lab.directory))
    prefix = as_account(where)
    made = [*prefix, f"{programs()}/initdb", "-D", f"{where}/data", "-A", "trust", "-U", ACCOUNT, "--no-sync"]
    try:
        done = subprocess.run(made, capture_output=True, text=True, timeout=MADE_IN, cwd="/")
    except subprocess.TimeoutExpired:
        raise LabError(f"initdb has not ended within {MADE_IN:g} s") from None
    if done.returncode:
        raise LabError(f"initdb failed: {one_line(done.stderr)}")
    port = free_port()
    command = [f"{programs()}/postgres", "-D", f"{where}/data", "-k", str(where), "-p", str(port), *OPTIONS]
    with (
        tempfile.TemporaryFile() as output,
        running([*prefix, *command], output, core_of(pinned), cwd=Path("/")) as started,
    ):
        wait_for_socket(started, where / f".s.PGSQL.{port}", output, POSTGRESQL)
        wait_for_port(started, port, output, POSTGRESQL)
        place = f"host={where} port={port} user={ACCOUNT} dbname=postgres"
        load(place)
        yield Database(POSTGRESQL, place, port=port, pids=(started.pid,))


def core_of(pinned: bool) -> int | None:
    """Return the servers' core, None for all cores."""
    return two_cores()[0] if pinned else None


def as_account(where: Path) -> Sequence[str]:
    """Return the prefix of a command that runs as PostgreSQL's account, which owns the directory then."""
    where.chmod(0o755)
    if os.geteuid():
        return ()
    import pwd

    who = pwd.getpwnam(ACCOUNT)
    os.chown(where, who.pw_uid, who.pw_gid)
    return ("setpriv", f"--reuid={who.pw_uid}", f"--regid={who.pw_gid}", "--clear-groups", "--")


def load(place: str) -> None:
    """Fill PostgreSQL's table with the sample."""
    import psycopg

    for _ in range(100):  # it listens before it answers
        try:
            connection = psycopg.connect(place, autocommit=True)
            break
        except psycopg.OperationalError as reason:
            if "starting up" not in str(reason):
                raise LabError(f"{POSTGRESQL}: {one_line(str(reason))}") from None
    else:
        raise LabError(f"{POSTGRESQL} does not start")
    with connection, connection.cursor() as cursor:
        cursor.execute(SCHEMA.replace("user TEXT", '"user" TEXT').encode())
        with cursor.copy(COPY) as copy:
            for row in sample():
                copy.write_row(row)
        cursor.execute(INDEX)
        cursor.execute("VACUUM ANALYZE log")


def described(database: Database) -> Database:
    """Return the database with what the report on it is."""
    try:
        connection = connect(Named(NAME, database.driver, database.place, False))
        try:
            found = connection.execute(REPORT, ())
            body = b"".join(fragments("TABLE", found.columns, found.rows))
        finally:
            connection.close()
    except DatabaseError as reason:
        raise LabError(f"{database.name}: {reason}") from None
    digest = hashlib.sha256(body).hexdigest()
    return Database(database.name, database.place, digest, len(body), database.port, database.pids)


@contextmanager
def demon(
    lab: Bench, database: Database, *lines: str, name: str = NAME, write: bool = False, pinned: bool = True
) -> Iterator[Asked]:
    """Run a demon for the database. lines: more of its settings; name: of the database in requests."""
    where = Path(tempfile.mkdtemp(prefix="dbd-", dir=lab.directory))
    where.chmod(0o755)
    socket = where / "socket"
    users = sorted({getpass.getuser(), "nobody"})
    text = [f'listen = ["unix:{socket}"]', *lines, f"[databases.{name}]", f'place = "{database.place}"']
    text += [f'driver = "{database.driver}"', f"users = {users!r}", f"write = {str(write).lower()}"]
    (where / "dbd.toml").write_text("\n".join(text) + "\n")
    command = [sys.executable, "-m", "ewe.database.cli", "--config", str(where / "dbd.toml")]
    with (
        tempfile.TemporaryFile() as output,
        running(command, output, core_of(pinned), cwd=where, env=environment()) as started,
    ):
        wait_for_socket(started, socket, output, "ewe-dbd")
        yield Asked(f"unix:{socket}", started.pid)
