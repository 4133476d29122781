"""A MariaDB for one experiment: in a directory of the lab, at a Unix socket, without a network.

    with mariadb(lab, "blog") as database:
        connect(database.socket, database.user, database.password, "blog")

The MariaDB that may run on the machine is neither asked nor changed: no file of /etc is read, and the data are new.
It runs on the server's core, because it is a part of what is measured. Raises LabError.
"""

from __future__ import annotations

import os
import pwd
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.processes import LabError, find_tool, one_line, running, text_of, two_cores
from ewe_lab.load.child import environment
from ewe_lab.stacks.backends import listens_at

SERVER, INSTALL = "mariadbd", "mariadb-install-db"
ACCOUNTS = ("mysql", "nobody")  # the first that exists runs it for root; MariaDB refuses to run as root
STARTS_IN = 60.0  # seconds; each of the two steps writes some 100 MB
SOCKET_MOST = 100  # bytes in the path of a Unix socket
OPTIONS = ("--skip-networking", "--skip-log-bin", "--innodb-buffer-pool-size=64M", "--max-connections=500")


@dataclass(frozen=True)
class Database:
    """A database that runs. pid: of its process."""

    pid: int
    socket: Path
    name: str
    user: str = "lab"
    password: str = field(repr=False, default="")


def missing() -> str:
    """Return the package that is missing, "" if none is."""
    return "" if find_tool(SERVER) and find_tool(INSTALL) else "mariadb-server"


def account() -> pwd.struct_passwd | None:
    """Return the account that MariaDB changes to, None if it keeps ours. Raises LabError."""
    if os.geteuid():
        return None
    for name in ACCOUNTS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            pass
    raise LabError(f"MariaDB does not run as root, and there is no account {' or '.join(ACCOUNTS)}")


@contextmanager
def mariadb(lab: Bench, name: str) -> Iterator[Database]:
    """Run MariaDB with one empty database; yield how to reach it."""
    server, install = find_tool(SERVER), find_tool(INSTALL)
    if server is None or install is None:
        raise LabError(f"MariaDB is missing: apt install {missing()}")
    where = Path(tempfile.mkdtemp(prefix="mariadb-", dir=lab.directory))
    where.chmod(0o755)
    data, socket = where / "data", where / "socket"
    if len(str(socket)) > SOCKET_MOST:
        raise LabError("the path of MariaDB's socket is too long: set TMPDIR to a shorter directory")
    data.mkdir()
    options = [f"--datadir={data}", f"--tmpdir={where}"]  # its account may not write into every TMPDIR
    if owner := account():
        options.append(f"--user={owner.pw_name}")
        for path in (where, data):
            os.chown(path, owner.pw_uid, owner.pw_gid)
    create(install, *options)
    database = Database(0, socket, name, password=secrets.token_hex(16))
    first = where / "first.sql"
    first.write_text(statements(database))
    first.chmod(0o600)
    if owner:
        os.chown(first, owner.pw_uid, owner.pw_gid)
    command = [
        server, "--no-defaults", *options, *OPTIONS, f"--socket={socket}", f"--pid-file={where / 'pid'}",
        f"--init-file={first}",
    ]  # fmt: skip
    with (
        tempfile.TemporaryFile() as output,
        running(command, output, two_cores()[0], cwd=where, env=environment()) as started,
    ):
        end = time.monotonic() + STARTS_IN
        while not listens_at(socket):
            if started.poll() is not None or time.monotonic() > end:
                raise LabError(f"MariaDB does not start: {one_line(text_of(output))}")
            time.sleep(0.05)
        yield Database(started.pid, socket, name, database.user, database.password)


def create(install: str, *options: str) -> None:
    """Write the tables in which MariaDB keeps its accounts. Raises LabError."""
    command = [
        install, "--no-defaults", *options, "--auth-root-authentication-method=normal", "--skip-test-db",
        "--skip-name-resolve",
    ]  # fmt: skip
    with tempfile.TemporaryFile() as output, running(command, output, env=environment()) as started:
        try:
            status = started.wait(STARTS_IN)
        except subprocess.TimeoutExpired:
            raise LabError(f"{INSTALL} did not end within {STARTS_IN:g} s") from None
        if status:
            raise LabError(f"{INSTALL} failed: {one_line(text_of(output))}")


def statements(database: Database) -> str:
    """Return what MariaDB does before it listens: make the database and its account, and lock root's."""
    return (
        f"CREATE DATABASE {database.name} CHARACTER SET utf8mb4;\n"
        f"CREATE USER {database.user}@localhost IDENTIFIED BY '{database.password}';\n"
        f"GRANT ALL ON {database.name}.* TO {database.user}@localhost;\n"
        "ALTER USER root@localhost ACCOUNT LOCK;\n"
    )
