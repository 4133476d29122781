"""The access log's format `short`: a line for a person who watches a terminal.

    12:03:01  200    1.4 KB   0.8 ms  GET /index.html
    12:03:04  404     612 B   0.3 ms  GET /no-such-file  192.168.1.7
    12:03:09  200     1.2 MB    2.5 s  GET /film.mp4  (cut short)

Each line begins with the time and the status. The size of the body and the duration follow, each with its unit. The
path comes after them, since it may be long. The client's address is shown only for another computer. A terminal
shows the status in color, unless NO_COLOR is set (https://no-color.org). The other formats are better for programs
that read the log.
"""

from __future__ import annotations

import functools
import os
import time

COLORS = {2: "32", 3: "36", 4: "33", 5: "31"}  # by the first digit of the status: green, cyan, yellow, red


def short_line(line: str, client: str, status: int, sent: int, micros: int, aborted: bool) -> str:
    """Return the line of one exchange, with its line feed.

    line: the request line, escaped. sent: bytes of the body. micros: the microseconds from the request's head to
    the end of the response. aborted: whether the response was aborted.
    """
    shown = f"\x1b[{COLORS.get(status // 100, '0')}m{status}\x1b[0m" if in_color() else str(status)
    request = line.removesuffix(" HTTP/1.1").removesuffix(" HTTP/1.0")
    other = "" if is_here(client) else f"  {client}"
    other += "  (cut short)" if aborted else ""
    return f"{time.strftime('%H:%M:%S')}  {shown}  {size(sent):>8}  {duration(micros):>7}  {request}{other}\n"


@functools.cache
def in_color() -> bool:
    """Return whether standard output is a terminal with colors."""
    return os.isatty(1) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_here(client: str) -> bool:
    """Return whether the client is this computer."""
    return client.startswith("127.") or client in ("::1", "unix:")


def size(count: int) -> str:
    """Return a number of bytes with a unit, in at most three digits: 28 B, 1.4 KB, 12 MB. 1 KB is 1024 bytes."""
    amount = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 999.5 or unit == "GB":
            break
        amount /= 1024
    return f"{amount:.1f} {unit}" if unit != "B" and amount < 9.95 else f"{amount:.0f} {unit}"


def duration(micros: int) -> str:
    """Return a duration with a unit: 0.08 ms, 1.4 ms, 120 ms, 2.5 s."""
    if micros < 1_000_000:
        ms = micros / 1000
        return f"{ms:.2f} ms" if ms < 0.995 else f"{ms:.1f} ms" if ms < 9.95 else f"{ms:.0f} ms"
    return f"{micros / 1_000_000:.1f} s" if micros < 99_950_000 else f"{micros / 1_000_000:.0f} s"
