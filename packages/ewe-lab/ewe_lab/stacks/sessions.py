"""A session's state in six tiers: a counter of visits, as one WSGI application.

    none        no state: every visit is the first
    url         in the URL: the page links to itself with the next count (section 3.4 of the RDBMS paper, [22])
    cookie      in a cookie that is signed with HMAC-SHA-256, so that the visitor cannot change it
    memory      in the server's memory, by a cookie with a random name: all requests of a visitor must come to the
                same process (session affinity)
    file        in a file of the server, by such a cookie: any process of this machine can read it
    daemon       in a table of a database, by such a cookie, through the daemon: any machine can read it

Environment: LAB_SESSIONS is the directory of the files, LAB_DAEMON the daemon's address.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ewe.database.client import Client
from ewe.database.protocol import ClientRequest

SESSIONS, DAEMON = "LAB_SESSIONS", "LAB_DAEMON"
TIERS = ("none", "url", "cookie", "memory", "file", "daemon")
DATABASE = "sessions"
CREATE_TABLE = "CREATE TABLE session (name TEXT PRIMARY KEY, visits INTEGER NOT NULL)"
VISIT_STATEMENT = (
    "INSERT INTO session VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET visits = session.visits + 1"
    " RETURNING visits"
)
COOKIE_KEY = secrets.token_bytes(32)
SESSION_COOKIE = re.compile(r"(?:^|; *)session=([\w.-]{1,200})")
# a session name that this server has made; it is also the name of a file
SESSION_NAME = re.compile(r"[0-9a-f]{32}")

lock = threading.Lock()
visits: dict[str, int] = {}
kept = threading.local()

Headers = list[tuple[str, str]]
Start = Callable[[str, Headers], object]


def application(environ: Mapping[str, Any], start_response: Start) -> Iterable[bytes]:
    """Count a visit in the tier that the path names."""
    tier = environ["PATH_INFO"].strip("/")
    if tier not in TIERS:
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"No such tier.\n"]
    count, headers = count_visit(tier, environ)
    # Only the tier `url` reads the query of this link
    page = f"<p>Visit {count}. <a href='?visits={count}'>Again</a></p>\n".encode()
    headers += [("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(page)))]
    start_response("200 OK", headers)
    return [page]


def count_visit(tier: str, environ: Mapping[str, Any]) -> tuple[int, Headers]:
    """Return the count that includes this visit, and the headers that store it."""
    if tier == "none":
        return 1, []
    if tier == "url":
        found = re.fullmatch(r"visits=(\d{1,9})", environ.get("QUERY_STRING", ""))
        return (int(found[1]) if found else 0) + 1, []
    cookie = SESSION_COOKIE.search(environ.get("HTTP_COOKIE", ""))
    value = cookie[1] if cookie else ""
    if tier == "cookie":
        count = checked_count(value) + 1
        return count, cookie_of(sign(count))
    # A name that this server cannot have made is not used: it would become the name of a file
    name = value if SESSION_NAME.fullmatch(value) else secrets.token_hex(16)
    store = {"memory": count_in_memory, "file": count_in_file, "daemon": count_in_daemon}[tier]
    return store(name), cookie_of(name) if name != value else []


def cookie_of(value: str) -> Headers:
    """Return the header that sets the cookie."""
    return [("Set-Cookie", f"session={value}; HttpOnly; SameSite=Lax")]


def sign(count: int) -> str:
    """Return a count with its signature."""
    return f"{count}.{hmac.new(COOKIE_KEY, b'%d' % count, hashlib.sha256).hexdigest()}"


def checked_count(value: str) -> int:
    """Return the count of a cookie, 0 if its signature is wrong or it has none."""
    count, _, signature = value.partition(".")
    if not re.fullmatch(r"[0-9]{1,9}", count):
        return 0
    return int(count) if hmac.compare_digest(sign(int(count)), f"{count}.{signature}") else 0


def count_in_memory(name: str) -> int:
    """Count in this process."""
    with lock:
        visits[name] = visits.get(name, 0) + 1
        return visits[name]


def count_in_file(name: str) -> int:
    """Count in a file, which is replaced as a whole; return the count. Visits of other processes may be lost."""
    path = Path(os.environ[SESSIONS], name)
    with lock:
        try:
            count = int(json.loads(path.read_text())["visits"]) + 1
        except FileNotFoundError:
            count = 1
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"visits": count}))
        new.replace(path)
        return count


def count_in_daemon(name: str) -> int:
    """Count in a table; return the count. This thread keeps its connection to the daemon."""
    if not hasattr(kept, "client"):
        kept.client = Client(os.environ[DAEMON])
    try:
        answer = b"".join(kept.client.ask(ClientRequest(DATABASE, VISIT_STATEMENT, "JSON", [name])))
    except BaseException:
        del kept.client  # the rest of an answer may still come over this connection
        raise
    return int(json.loads(answer)[0]["visits"])
