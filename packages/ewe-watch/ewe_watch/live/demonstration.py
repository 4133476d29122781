"""The demonstration: the site that every model on the page serves. Its pages and programs wait as long as asked.

    /page?ms=40            a page that calls a function which blocks for 40 ms, by `io.call`: as a database's driver
    /blocking?ms=2000      the same without `io.call`: the mistake that stops an event loop
    /cgi-bin/slow?ms=1000  a program that runs for a second
    /cgi-bin/slow.py       the same with a name by which X-Switch runs it in an engine
    /count.sql.html?n=1000 a page from a database that counts to n, ten times; needs --database demo={site}/demo.db
    /large.bin             a file that is larger than all buffers

Slow motion is therefore honest: a page that waits a hundred times longer occupies its worker a hundred times
longer. Each wait also ends when its gate opens: the file `gate-N` of the demonstration's directory, with N of the
query's `gate`. "Let go" creates that file.

The feature runs in the models' processes. It is mounted at /, and leaves other paths to the server.
"""

from __future__ import annotations

import os
import pwd
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from ewe.http.messages import Response
from ewe_watch.live.guard import UserScript, acting_as

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.http.messages import Request
    from ewe.streams.base import Stream

MOST_MS = 120_000
MOST_DIGITS = 100  # of a number in a query; with more digits it counts as MOST_MS
LOOK_S = 0.02  # seconds between two looks at a gate
LARGE_BYTES = 8 * 1024 * 1024
HTML = (("Content-Type", "text/html; charset=utf-8"), ("Cache-Control", "no-store"))
BODY = b"<!doctype html><title>ewe</title><p>A page of the demonstration.\n"
PROGRAM = """#!{python} -IS
import os, time
from urllib.parse import parse_qs
query = parse_qs(os.environ.get("QUERY_STRING", ""))
gate = os.path.join({directory!r}, "gate-" + query.get("gate", ["none"])[0].replace("/", ""))
end = time.monotonic() + min(int(query.get("ms", ["0"])[0]), {most}) / 1000
while time.monotonic() < end and not os.path.exists(gate):
    time.sleep({look})
print("Content-Type: text/plain\\n\\nThe program has ended.")
"""
# Of the page that counts, one after the other: the daemon cancels a statement after ten seconds
STATEMENTS = 10
COUNT = """-- database: demo
-- title: Counted
-- parameter: n integer = 1000
"""
COUNT_ONCE = """-- query: counted{number}
-- time: 10
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :n)
SELECT count(*) AS n FROM numbers
"""


class Gates:
    """The feature of the demonstration: its pages, each of which may wait at a gate."""

    def __init__(self, config: Config, path: str) -> None:
        self.directory = Path(config.documentroot).parent

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return a page after its wait; None for other paths.

        The query gives the wait in ms (`ms`), and the number of the gate that ends it early (`gate`).
        """
        if request.path not in ("/page", "/blocking"):
            return None
        query = parse_qs(request.query or "")
        milliseconds = whole_number(query.get("ms", ["0"])[0])
        gate = self.directory / f"gate-{whole_number(query.get('gate', ['0'])[0])}"
        if request.path == "/blocking":
            wait_at(gate, milliseconds)
        elif milliseconds:
            await io.call(wait_at, gate, milliseconds)
        return Response(200, HTML, BODY)


def whole_number(text: str) -> int:
    """Return a number of a query; 0 if it is none, MOST_MS at most."""
    if not (text.isascii() and text.isdecimal()):
        return 0
    # int() refuses a text of more than 4,300 digits
    return min(int(text), MOST_MS) if len(text) <= MOST_DIGITS else MOST_MS


def wait_at(gate: Path, milliseconds: int) -> None:
    """Wait until the time is over or the gate is open."""
    end = time.monotonic() + milliseconds / 1000
    while (rest := end - time.monotonic()) > 0 and not gate.exists():
        time.sleep(min(rest, LOOK_S))


def make_site(directory: Path, python: str) -> None:
    """Write the files of the module's docstring, and an empty database, into a directory. Raises OSError.

    python: the interpreter of the program `slow`.
    """
    root, programs = directory / "htdocs", directory / "cgi-bin"
    root.mkdir()
    programs.mkdir()
    # ewe answers /page by Gates. A server in another language sends the file
    for name in ("index.html", "page"):
        (root / name).write_bytes(BODY)
    with (root / "large.bin").open("wb") as file:
        file.truncate(LARGE_BYTES)
    statements = (COUNT_ONCE.format(number=number) for number in range(1, STATEMENTS + 1))
    (root / "count.sql.html").write_text("".join([COUNT, *statements]), encoding="utf-8")
    sqlite3.connect(directory / "demo.db").close()  # no table: the statements count without one
    text = PROGRAM.format(python=python, directory=str(directory), most=MOST_MS, look=LOOK_S)
    for name in ("slow", "slow.py"):  # X-Switch chooses an engine by the ending
        program = programs / name
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
    if os.geteuid() == 0:
        directory.chmod(0o711)  # X-Switch and its scripts run without root


def write_user_script(directory: Path, python: str, user: str, name: str) -> UserScript:
    """Write the script of a user, which belongs to that user. Raises OSError, KeyError.

    python: an interpreter for the first line of the script. Root writes with the rights of the user only
    (acting_as), and never through a symbolic link at the script's place.
    """
    account = pwd.getpwnam(user)
    path = Path(account.pw_dir) / "public_html" / "cgi-bin" / name
    text = PROGRAM.format(python=python, directory=str(directory), most=MOST_MS, look=LOOK_S)
    with acting_as(account.pw_uid, account.pw_gid):
        for parent in (path.parent.parent, path.parent):
            if not parent.exists():
                parent.mkdir(mode=0o755)
        path.unlink(missing_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o700)
        with open(file, "w", encoding="utf-8") as script:
            script.write(text)
            os.fchmod(file, 0o700)  # the umask may have taken bits from the mode of open()
    return UserScript(path, account.pw_uid, account.pw_gid)


def open_gate(directory: Path, number: int) -> None:
    """Let go all pages and programs that wait at this gate. Raises OSError."""
    os.close(os.open(directory / f"gate-{number}", os.O_WRONLY | os.O_CREAT, 0o644))
