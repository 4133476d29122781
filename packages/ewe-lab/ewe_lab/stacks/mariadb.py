"""A MariaDB for one experiment: in a directory of the lab, at a Unix socket, without a network.

    with mariadb(lab, "blog") as database:
        connect(database.socket, database.user, database.password, "blog")

A MariaDB that already runs on the machine is neither used nor changed: no file of /etc is read, and the data are
new. The private MariaDB runs on the server's core, because its CPU time is part of the measurement. Raises
LabError.
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
from ewe_lab.bench.processes import LabError, find_tool, last_line, output_text, running, server_core
from ewe_lab.load.child import environment
from ewe_lab.stacks.backends import listens_at

SERVER_PROGRAM, INSTALL_PROGRAM = "mariadbd", "mariadb-install-db"
ACCOUNTS = ("mysql", "nobody")  # the first that exists runs it for root; MariaDB refuses to run as root
START_TIMEOUT_S = 60.0  # seconds; each of the two steps writes some 100 MB
MAX_SOCKET_PATH_BYTES = 100  # bytes in the path of a Unix socket
MARIADB_OPTIONS = (
    "--skip-networking",
    "--skip-log-bin",
    "--innodb-buffer-pool-size=64M",
    "--max-connections=500",
)


@dataclass(frozen=True)
class MariaDBServer:
    """A running database server with one database. pid: of the server's process."""

    pid: int
    socket: Path
    name: str
    user: str = "lab"
    password: str = field(repr=False, default="")


def missing_packages() -> str:
    """Return the package that is missing, "" if none is."""
    return "" if find_tool(SERVER_PROGRAM) and find_tool(INSTALL_PROGRAM) else "mariadb-server"


def account() -> pwd.struct_passwd | None:
    """Return the account to which MariaDB changes, None if it keeps ours. Raises LabError."""
    if os.geteuid():
        return None
    for name in ACCOUNTS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            pass
    raise LabError(f"MariaDB does not run as root, and there is no account {' or '.join(ACCOUNTS)}")


@contextmanager
def mariadb(lab: Bench, name: str) -> Iterator[MariaDBServer]:
    """Run MariaDB with one empty database; yield its pid, socket, name, account and password. Raises LabError.

    Two steps: install MariaDB's own tables into a new directory, then start the server, which executes `first.sql`
    before it listens.
    """
    server, install = find_tool(SERVER_PROGRAM), find_tool(INSTALL_PROGRAM)
    if server is None or install is None:
        raise LabError(f"MariaDB is missing: apt install {missing_packages()}")
    directory = Path(tempfile.mkdtemp(prefix="mariadb-", dir=lab.directory))
    directory.chmod(0o755)
    data, socket = directory / "data", directory / "socket"
    if len(os.fsencode(socket)) > MAX_SOCKET_PATH_BYTES:
        raise LabError("the path of MariaDB's socket is too long: set TMPDIR to a shorter directory")
    data.mkdir()
    options = [f"--datadir={data}", f"--tmpdir={directory}"]  # its account may not write into every TMPDIR
    if owner := account():
        options.append(f"--user={owner.pw_name}")
        for path in (directory, data):
            os.chown(path, owner.pw_uid, owner.pw_gid)
    create_system_tables(install, *options)
    database = MariaDBServer(0, socket, name, password=secrets.token_hex(16))
    init_file = directory / "first.sql"
    init_file.write_text(statements(database))
    init_file.chmod(0o600)  # it has the password
    if owner:
        os.chown(init_file, owner.pw_uid, owner.pw_gid)
    command = [
        server, "--no-defaults", *options, *MARIADB_OPTIONS, f"--socket={socket}",
        f"--pid-file={directory / 'pid'}",
        f"--init-file={init_file}",
    ]  # fmt: skip
    with (
        tempfile.TemporaryFile() as output,
        running(command, output, server_core(), cwd=directory, env=environment()) as started,
    ):
        end = time.monotonic() + START_TIMEOUT_S
        while not listens_at(socket):
            if started.poll() is not None or time.monotonic() > end:
                raise LabError(f"MariaDB does not start: {last_line(output_text(output))}")
            time.sleep(0.05)
        yield MariaDBServer(
            pid=started.pid, socket=socket, name=name, user=database.user, password=database.password
        )


def create_system_tables(install: str, *options: str) -> None:
    """Write the tables in which MariaDB keeps its accounts. Raises LabError."""
    command = [
        install, "--no-defaults", *options, "--auth-root-authentication-method=normal", "--skip-test-db",
        "--skip-name-resolve",
    ]  # fmt: skip
    with tempfile.TemporaryFile() as output, running(command, output, env=environment()) as started:
        try:
            status = started.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise LabError(f"{INSTALL_PROGRAM} did not end within {START_TIMEOUT_S:g} s") from None
        if status:
            raise LabError(f"{INSTALL_PROGRAM} failed: {last_line(output_text(output))}")


def statements(database: MariaDBServer) -> str:
    """Return the SQL that MariaDB executes before it listens: make the database and its account, lock root's."""
    return (
        f"CREATE DATABASE {database.name} CHARACTER SET utf8mb4;\n"
        f"CREATE USER {database.user}@localhost IDENTIFIED BY '{database.password}';\n"
        f"GRANT ALL ON {database.name}.* TO {database.user}@localhost;\n"
        "ALTER USER root@localhost ACCOUNT LOCK;\n"
    )
