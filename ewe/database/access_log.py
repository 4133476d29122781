"""The table of the paper's scenarios: an access log in SQLite, from a sample or from a web server's log.

The paper's report adds up the bytes by address for status 200, over 50,000 rows of 196 bytes.
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
ROW_BYTES = 196  # of a row's text in the paper
ADDRESS_COUNT = 92  # the report is then an HTML table of 5,586 bytes; the paper's page had 5,605
REPORT = (
    "SELECT address, SUM(bytes) AS total FROM log WHERE status = 200 GROUP BY address ORDER BY total DESC"
)
SCHEMA = """
    CREATE TABLE log (address TEXT NOT NULL, user TEXT NOT NULL, at TEXT NOT NULL, request TEXT NOT NULL,
        status INTEGER NOT NULL, bytes INTEGER NOT NULL, referrer TEXT NOT NULL, agent TEXT NOT NULL)
"""
GZIP = b"\x1f\x8b"  # the first bytes of a gzip file (RFC 1952 section 2.3.1)
# The common log format, and the additional fields of the combined format; before it, the virtual host of Apache's
# vhost_combined. A quote within a field is escaped by a backslash (Apache, ewe), or as \x22 (nginx). The user's
# name is logged as the client sent it, with spaces. The pattern of the date therefore decides where the name ends.
QUOTED = r'"((?:[^"\\]|\\.)*)"'
DATE = r"\d\d/[A-Za-z]{3}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}"
LINE = re.compile(
    rf"(?:[\w.*-]*:\d{{1,5}} (?=\S+ \S+ \S))?(\S+) \S+ (.*?) \[({DATE})\] {QUOTED} (\d{{3}}) (\d+|-)"
    rf"(?: {QUOTED} {QUOTED})?(?:\s|$)",
    re.ASCII,
)
ESCAPE = re.compile(r"\\(?:([\"\\])|x([2-7][0-9A-Fa-f]))")
# Characters; servers allow less for a request line, a referrer and an agent together
MAX_LINE_CHARS = 64 * 1024
MAX_INTEGER = (1 << 63) - 1  # the largest integer of SQLite

Row = tuple[str, str, str, str, int, int, str, str]


def sample(rows: int = ROWS, seed: int = 1999) -> Iterator[Row]:
    """Yield the rows of an invented log, the same each time.

    Some of its ADDRESS_COUNT clients have far more rows than others. The hours of a date begin again within its
    rows: REPORT does not read the times.
    """
    random_numbers = random.Random(seed)
    addresses = [f"10.{client % 7}.{client % 31}.{client + 1}" for client in range(ADDRESS_COUNT)]
    weights = [1 / (client + 1) for client in range(ADDRESS_COUNT)]
    for number in range(rows):
        [address] = random_numbers.choices(addresses, weights)
        [status] = random_numbers.choices((200, 304, 404, 500), weights=(80, 12, 7, 1))
        size = random_numbers.randrange(200, 40_000) if status == 200 else 0
        time = f"{number // 2000 % 28 + 1:02d}/Nov/1999:{number // 60 % 24:02d}:{number % 60:02d}:00 +0200"
        request = f"GET /pages/{random_numbers.randrange(2000):04d}.html HTTP/1.0"
        other_chars = sum(map(len, (address, "-", time, request, str(status), str(size), "-")))
        agent = "Mozilla/4.0 (compatible) ".ljust(ROW_BYTES - other_chars, "x")
        yield address, "-", time, request, status, size, "-", agent


def rows_of(lines: Iterable[str]) -> Iterator[Row | None]:
    """Yield a row for each line of a common or combined log, None for a line that is neither."""
    for line in lines:
        match = LINE.match(line) if len(line) <= MAX_LINE_CHARS else None
        if match is None:
            yield None
            continue
        # referrer and agent: None in the common format
        address, user, time, request, status, size, referrer, agent = match.groups()
        # int() refuses thousands of digits. 20 digits are a number above MAX_INTEGER
        size_bytes = 0 if size == "-" else min(int(size[:20]), MAX_INTEGER)
        user, request, referrer, agent = (unescaped(text or "-") for text in (user, request, referrer, agent))
        yield address, user, time, request, int(status), size_bytes, referrer, agent


def unescaped(text: str) -> str:
    """Return a logged text with its quotes, backslashes and other printable characters as the client sent them.

    Servers escape these in different ways, and one query should find all of them. Other bytes stay as logged:
    \\x16.
    """

    def character(match: re.Match[str]) -> str:
        """Return the character for an escape. DEL (7f) cannot be printed, and stays as logged."""
        quote_or_backslash, code = match.groups()
        if quote_or_backslash:
            return str(quote_or_backslash)
        return match[0] if code.lower() == "7f" else chr(int(code, 16))

    return ESCAPE.sub(character, text) if "\\" in text else text


@contextmanager
def open_log(path: str) -> Iterator[Iterator[str]]:
    """Open a log, plain or compressed by gzip, to read it by lines; -: standard input. Raises OSError."""
    with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
        is_compressed = file.peek(len(GZIP)).startswith(GZIP)
        raw = gzip.open(file) if is_compressed else file
        # A CR alone ends no line: a client may have sent it, and not all servers escape it
        with io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", newline="\n") as text:
            try:
                yield bounded_lines(text)
            except (EOFError, zlib.error) as reason:
                raise OSError(errno.EIO, f"it is no whole gzip file ({reason})") from None


def bounded_lines(file: TextIO) -> Iterator[str]:
    """Yield the lines of a file. A line longer than MAX_LINE_CHARS is cut to its beginning, which is not a row."""
    while line := file.readline(MAX_LINE_CHARS + 1):
        yield line
        # Read the rest of a long line, and drop it. At the end of the file, readline() returns an empty text.
        while len(line) > MAX_LINE_CHARS and not line.endswith("\n"):
            line = file.readline(MAX_LINE_CHARS + 1)


def write_rows(path: str, rows: Iterable[Row | None], *, new: bool) -> tuple[int, int]:
    """Write rows into the table `log` of a database; return the numbers of written rows and of lines without a row.

    new: replace the table. If this fails, the database stays unchanged. Raises ConfigError.
    """
    written_count = omitted_count = 0
    try:
        connection = sqlite3.connect(path, timeout=5.0, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            if new:
                connection.execute("DROP TABLE IF EXISTS log")
            table_exists = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'log'").fetchone()
            if not table_exists:
                connection.execute(SCHEMA)
            insert = "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
            for row in rows:
                if row is None:
                    omitted_count += 1
                    continue
                connection.execute(insert, row)
                written_count += 1
            connection.execute("CREATE INDEX IF NOT EXISTS log_status ON log (status)")
            connection.execute("COMMIT")
        finally:
            connection.close()
    except sqlite3.Error as reason:
        raise ConfigError(f"{path}: {reason}") from None
    return written_count, omitted_count
