"""Where a session's state is kept: a counter of visits, kept in six places, as WSGI applications.

    none        no state: every visit is the first
    url         in the URL: the page links to itself with the next count (section 3.4 of the RDBMS paper, [22])
    cookie      in a cookie that is signed with HMAC-SHA-256, so that the visitor cannot change it
    memory      in the server's memory, by a cookie with a random name: all requests of a visitor must come to the
                same process (session affinity)
    file        in a file of the server, by such a cookie: any process of this machine can read it
    demon       in a table of a database, by such a cookie, asked through the demon: any machine can

Environment: LAB_SESSIONS is the directory of the files, LAB_DEMON the demon's address.
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

SESSIONS, DEMON = "LAB_SESSIONS", "LAB_DEMON"
PLACES = ("none", "url", "cookie", "memory", "file", "demon")
DATABASE = "sessions"
SCHEMA = "CREATE TABLE session (name TEXT PRIMARY KEY, visits INTEGER NOT NULL)"
VISIT = (
    "INSERT INTO session VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET visits = session.visits + 1"
    " RETURNING visits"
)
KEY = secrets.token_bytes(32)
NAME = re.compile(r"(?:^|; *)session=([\w.-]{1,200})")
NAMED = re.compile(r"[0-9a-f]{32}")  # what this server hands out: the name of a file, too

lock = threading.Lock()
visits: dict[str, int] = {}
kept = threading.local()

Headers = list[tuple[str, str]]
Start = Callable[[str, Headers], object]


def application(environ: Mapping[str, Any], start_response: Start) -> Iterable[bytes]:
    """Count a visit in the place that the path names."""
    place = environ["PATH_INFO"].strip("/")
    if place not in PLACES:
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"No such place.\n"]
    count, headers = counted(place, environ)
    page = f"<p>Visit {count}. <a href='?visits={count}'>Again</a></p>\n".encode()
    headers += [("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(page)))]
    start_response("200 OK", headers)
    return [page]


def counted(place: str, environ: Mapping[str, Any]) -> tuple[int, Headers]:
    """Return the count with this visit, and the headers that keep it."""
    if place == "none":
        return 1, []
    if place == "url":
        found = re.fullmatch(r"visits=(\d{1,9})", environ.get("QUERY_STRING", ""))
        return (int(found[1]) if found else 0) + 1, []
    cookie = NAME.search(environ.get("HTTP_COOKIE", ""))
    value = cookie[1] if cookie else ""
    if place == "cookie":
        count = unsigned(value) + 1
        return count, cookie_of(signed(count))
    name = value if NAMED.fullmatch(value) else secrets.token_hex(16)
    store = {"memory": in_memory, "file": in_file, "demon": in_demon}[place]
    return store(name), cookie_of(name) if name != value else []


def cookie_of(value: str) -> Headers:
    """Return the header that sets the cookie."""
    return [("Set-Cookie", f"session={value}; HttpOnly; SameSite=Lax")]


def signed(count: int) -> str:
    """Return a count with its signature."""
    return f"{count}.{hmac.new(KEY, b'%d' % count, hashlib.sha256).hexdigest()}"


def unsigned(value: str) -> int:
    """Return the count of a cookie, 0 if its signature is wrong."""
    count, _, signature = value.partition(".")
    if not re.fullmatch(r"[0-9]{1,9}", count):
        return 0
    return int(count) if hmac.compare_digest(signed(int(count)), f"{count}.{signature}") else 0


def in_memory(name: str) -> int:
    """Count in this process."""
    with lock:
        visits[name] = visits.get(name, 0) + 1
        return visits[name]


def in_file(name: str) -> int:
    """Count in a file, which is replaced as a whole."""
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


def in_demon(name: str) -> int:
    """Count in a table; this thread keeps its connection to the demon."""
    if not hasattr(kept, "client"):
        kept.client = Client(os.environ[DEMON])
    try:
        answer = b"".join(kept.client.ask(ClientRequest(DATABASE, VISIT, "JSON", [name])))
    except BaseException:
        del kept.client  # the rest of an answer may still come over it
        raise
    return int(json.loads(answer)[0]["visits"])
