"""The table of the paper's scenarios: an access log in SQLite, from a sample or from a log of a web server.

The paper's report asks for the total of bytes by address where the status is 200, of 50,000 rows of 196 bytes.
"""

from __future__ import annotations

import errno
import gzip
import io
import random
import re
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from ewe.config.messages import ConfigError

ROWS = 50_000
ROW = 196  # bytes of a row's text in the paper
ADDRESSES = 92  # the report is then an HTML table of 5,586 bytes; the paper's page had 5,605
REPORT = (
    "SELECT address, SUM(bytes) AS total FROM log WHERE status = 200 GROUP BY address ORDER BY total DESC"
)
SCHEMA = """
    CREATE TABLE log (address TEXT NOT NULL, user TEXT NOT NULL, at TEXT NOT NULL, request TEXT NOT NULL,
        status INTEGER NOT NULL, bytes INTEGER NOT NULL, referrer TEXT NOT NULL, agent TEXT NOT NULL)
"""
GZIP = b"\x1f\x8b"
# The common log format, and what the combined one adds; before it, the virtual host of Apache's vhost_combined.
# A quote within a field is escaped by a backslash (Apache, ewe), or as \x22 (nginx). The name of a user is as the
# client sent it, spaces and all; so the date decides where it ends.
QUOTED = r'"((?:[^"\\]|\\.)*)"'
DATE = r"\d\d/[A-Za-z]{3}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}"
LINE = re.compile(
    rf"(?:[\w.*-]*:\d{{1,5}} (?=\S+ \S+ \S))?(\S+) \S+ (.*?) \[({DATE})\] {QUOTED} (\d{{3}}) (\d+|-)"
    rf"(?: {QUOTED} {QUOTED})?(?:\s|$)",
    re.ASCII,
)
ESCAPE = re.compile(r"\\(?:([\"\\])|x([2-7][0-9A-Fa-f]))")
MAX_LINE = 64 * 1024  # characters; servers allow less for a request line, a referrer and an agent together

Row = tuple[str, str, str, str, int, int, str, str]


def sample(rows: int = ROWS, seed: int = 1999) -> Iterator[Row]:
    """Yield the rows of a log, the same each time: ADDRESSES, some of them asking far more than others."""
    chance = random.Random(seed)
    addresses = [f"10.{each % 7}.{each % 31}.{each + 1}" for each in range(ADDRESSES)]
    weights = [1 / (each + 1) for each in range(ADDRESSES)]
    for number in range(rows):
        address = chance.choices(addresses, weights)[0]
        status = chance.choices((200, 304, 404, 500), (80, 12, 7, 1))[0]
        size = chance.randrange(200, 40_000) if status == 200 else 0
        at = f"{number // 2000 % 28 + 1:02d}/Nov/1999:{number // 60 % 24:02d}:{number % 60:02d}:00 +0200"
        request = f"GET /pages/{chance.randrange(2000):04d}.html HTTP/1.0"
        known = len(address) + len("-") + len(at) + len(request) + 3 + len(str(size)) + len("-")
        yield (
            address,
            "-",
            at,
            request,
            status,
            size,
            "-",
            "Mozilla/4.0 (compatible) ".ljust(ROW - known, "x"),
        )


def lines_of(lines: Iterable[str]) -> Iterator[Row | None]:
    """Yield a row for each line of a common or combined log, None for a line that is neither."""
    for line in lines:
        match = LINE.match(line) if len(line) <= MAX_LINE else None
        if match is None:
            yield None
            continue
        address, user, at, request, status, size, referrer, agent = match.groups()
        number = 0 if size == "-" else min(int(size[:19]), (1 << 63) - 1)
        user, request, referrer, agent = (unescaped(each or "-") for each in (user, request, referrer, agent))
        yield address, user, at, request, int(status), number, referrer, agent


def unescaped(text: str) -> str:
    """Return a logged text with its quotes, backslashes and other printable characters as the client sent them.

    Servers escape them in different ways, and a query should find all. Other bytes stay as logged: \\x16.
    """

    def character(match: re.Match[str]) -> str:
        return match[1] or (match[0] if match[2].lower() == "7f" else chr(int(match[2], 16)))

    return ESCAPE.sub(character, text) if "\\" in text else text


@contextmanager
def opened(path: str) -> Iterator[Iterator[str]]:
    """Open a log, plain or compressed by gzip, for reading by lines; -: standard input. Raises OSError."""
    with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
        compressed = file.peek(2)[:2] == GZIP
        raw = gzip.open(file) if compressed else file
        # No line ends at a CR alone: a client may have sent it, and not all servers escape it
        with io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", newline="\n") as text:
            try:
                yield bounded(text)
            except (EOFError, zlib.error) as reason:
                raise OSError(errno.EIO, f"it is no whole gzip file ({reason})") from None


def bounded(file: TextIO) -> Iterator[str]:
    """Yield the lines of a file. Of a longer line than MAX_LINE comes the beginning, which is no row."""
    while line := file.readline(MAX_LINE + 1):
        yield line
        while not line.endswith("\n") and len(line) > MAX_LINE and (line := file.readline(MAX_LINE + 1)):
            pass


def fill(path: str, rows: Iterable[Row | None], *, new: bool) -> tuple[int, int]:
    """Write rows into the table `log` of a database; return how many were written, and how many were no rows.

    new: the table is made again. Nothing is kept if this fails. Raises ConfigError.
    """
    written = left_out = 0
    try:
        connection = sqlite3.connect(path, timeout=5.0, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            if new:
                connection.execute("DROP TABLE IF EXISTS log")
            known = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'log'").fetchone()
            if not known:
                connection.execute(SCHEMA)
            insert = "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
            for row in rows:
                if row is None:
                    left_out += 1
                    continue
                connection.execute(insert, row)
                written += 1
            connection.execute("CREATE INDEX IF NOT EXISTS log_status ON log (status)")
            connection.execute("COMMIT")
        finally:
            connection.close()
    except sqlite3.Error as reason:
        raise ConfigError(f"{path}: {reason}") from None
    return written, left_out
