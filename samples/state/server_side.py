"""State on the server: the browser has a number that cannot be guessed, and the server a file for each number.

The visitor can neither read nor forge the file. A thief of the number has the basket. Files survive a restart, and
all processes of this machine can read them. A second machine needs the same directory. Old files must be deleted:
find sessions -mtime +1 -delete.
"""

from __future__ import annotations

import fcntl
import json
import re
import secrets
from pathlib import Path

from basket import Basket, Environ, Start, added, cookie, see_other, set_cookie, show, with_one_more

SESSIONS = Path("sessions")
NUMBER = re.compile("[0-9a-f]{32}")  # no other value of the cookie becomes the name of a file


def app(environ: Environ, start: Start) -> list[bytes]:
    """Show the basket of the visitor's session; add to it."""
    number = cookie(environ, "session")
    if not NUMBER.fullmatch(number) or not (SESSIONS / number).exists():
        number = ""
    if goods := added(environ):
        # Never accept a number that this server has not made: an attacker may know it.
        number = number or secrets.token_hex(16)
        add(SESSIONS / number, goods)
        return see_other(start, environ["SCRIPT_NAME"] or "/", [set_cookie(environ, "session", number)])
    return show(start, read(SESSIONS / number) if number else {})


def read(path: Path) -> Basket:
    """Return the basket in a file. The shared lock waits until no other process writes the file."""
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        basket: Basket = json.loads(file.read() or "{}")
    return basket


def add(path: Path, goods: str) -> None:
    """Add to the basket in a file. The lock makes two requests of one visitor take turns, so neither is lost."""
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        basket: Basket = json.loads(file.read() or "{}")
        file.truncate(0)
        file.write(json.dumps(with_one_more(basket, goods)))
