"""A database daemon for tests: a process, its settings and its databases."""

from __future__ import annotations

import json
import os
import pwd
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ewe.database.client import Client
from ewe.database.protocol import ClientRequest, DatabaseError
from support.server import ROOT, wait_until

ME = pwd.getpwuid(os.geteuid()).pw_name
# A feature of ewe: mounted at /ask, it asks the database `shop` what stands after the question mark
FEATURE = """
import json
from urllib.parse import unquote

from ewe.database.protocol import ClientRequest, DatabaseError
from ewe.features.databases.asking import Databases, http_error
from ewe.http.messages import Response

class Asks:
    def __init__(self, config, path):
        self.databases = Databases(config)

    async def respond(self, request, io):
        statement = ClientRequest("shop", unquote(request.query), "CSV")
        try:
            if request.path.endswith("rows"):
                table = await self.databases.rows(
                    ClientRequest("shop", unquote(request.query), rows=2), io, writes=request.method == "POST"
                )
                return Response(200, (), json.dumps(table, default=repr).encode())
            return Response(200, (), await self.databases.ask(statement, io))
        except DatabaseError as error:
            raise http_error(error)
"""


class Daemon:
    """A running daemon with three databases: `shop` may be changed, and the account nobody may only use `log`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = f"unix:{directory}/daemon.sock"
        self.log = directory / "daemon.log"
        self.general = ["connections = 4", 'time-limit = "50s"']
        self.databases = {
            "log": [f"users = ['{ME}', 'nobody']"],
            "shop": ["write = true"],
            "staff": [f"users = ['{ME}']"],
        }
        for name in self.databases:
            with sqlite3.connect(directory / f"{name}.db") as connection:
                connection.execute(
                    "CREATE TABLE goods (id INTEGER PRIMARY KEY, name TEXT, price REAL, image BLOB)"
                )
                connection.execute("INSERT INTO goods VALUES (1, '<b>\"wool\" & ü</b>', 2.5, x'00ff')")
            connection.close()
        self.source = ""  # of all databases; "": each has a file
        self.process: subprocess.Popen[bytes] | None = None

    def settings(self) -> Path:
        lines = [f"listen = ['{self.address}']", *self.general]
        for name, own in self.databases.items():
            lines += [f"[databases.{name}]", f"source = '{self.source or name + '.db'}'", *own]
        path = self.directory / "dbd.toml"
        path.write_text("\n".join(lines), encoding="utf-8")
        return path

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "ewe.database.cli",
            "--config",
            str(self.settings()),
            "--log",
            str(self.log),
        ]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
        wait_until(self.answers, 10, lambda: self.log.read_text() if self.log.exists() else "no log")
        wait_until(self.is_idle, 5)

    def is_idle(self) -> bool:
        # A worker may report the end of answers()' statement after its result has come
        try:
            return self.status()["running"] == 0
        except DatabaseError:
            return True  # through TCP nobody may ask for the status

    def answers(self) -> bool:
        try:
            return self.ask("SELECT 1 AS n", layout="CSV") == "n\r\n1\r\n"
        except DatabaseError:
            return False

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=30)
        status = self.process.returncode
        self.process = None
        assert b"Traceback" not in errors, errors.decode()
        return status

    def ask(self, statement: str, parameters: Sequence[object] = (), database: str = "log", layout: str = "JSON",
            **more: object) -> str:  # fmt: skip
        request = ClientRequest(database, statement, layout, parameters, **more)  # type: ignore[arg-type]
        with Client(self.address, 60) as client:
            return b"".join(client.ask(request)).decode()

    def status(self) -> dict[str, object]:
        with Client(self.address) as client:
            found = json.loads(b"".join(client.ask(ClientRequest("", ""))))
        assert isinstance(found, dict)
        return found
