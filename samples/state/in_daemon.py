"""State in the database, through the daemon: the browser has a number, and the database a row for each of the
goods.

The database adds, so two requests at once are both counted. The state survives every restart of the server, and any
number of servers may use it. Each request waits for one statement. The daemon keeps the connection to the database
(docs/database.md).
"""

from __future__ import annotations

import json
import os
import secrets

from basket import Basket, Environ, Start, added, cookie, see_other, set_cookie, show

from ewe.database.client import Client
from ewe.database.protocol import ClientRequest

DAEMON = os.environ.get("STATE_DAEMON", "unix:state.sock")
READ = "SELECT goods, count FROM basket WHERE session = ?"
ADD = """INSERT INTO basket VALUES (?, ?, 1)
    ON CONFLICT (session, goods) DO UPDATE SET count = basket.count + 1"""


def app(environ: Environ, start: Start) -> list[bytes]:
    """Show the basket of the visitor's session; add to it."""
    number = cookie(environ, "session")
    if goods := added(environ):
        if not read(number):  # never accept a number that this server has not made
            number = secrets.token_hex(16)
        ask(ADD, number, goods)
        return see_other(start, environ["SCRIPT_NAME"] or "/", [set_cookie(environ, "session", number)])
    return show(start, read(number))


def read(number: str) -> Basket:
    """Return the basket of a session."""
    return {row["goods"]: row["count"] for row in json.loads(ask(READ, number) or "[]")}


def ask(statement: str, *parameters: str) -> bytes:
    """Send a statement to the daemon; return the answer. Each request opens a connection: a Unix socket is fast."""
    with Client(DAEMON) as daemon:
        return b"".join(daemon.ask(ClientRequest("state", statement, "JSON", parameters)))
