"""Log-ins with a name and a password: HTTP Basic, RFC 7617 (setting `auth`).

    auth = { realm = "Members", file = "/etc/ewe/htpasswd" }
    auth = { realm = "Members", command = ["/usr/local/bin/check"], timeout = "10s" }

A browser that gets a 401 asks its user, and sends name and password with every request from then on. The password
has to be checked each time, and a good hash is slow on purpose. respond() is therefore a line of four doors:

    credentials ─▶ this client has failed too often?      ─▶ 429
                ─▶ were they right a minute ago?          ─▶ go on          (what nearly all requests are)
                ─▶ this name was guessed at too often?    ─▶ 429
                ─▶ check the hash, or ask the program     ─▶ go on, or 401

- **The check does not hold an event loop**: it is a call (Stream.call), made in a thread there.
- **What is remembered** is a digest with a random key, of client, name, password and the stored hash, for
  `remember` (a minute). A changed hash is another digest. The key of a digest has the client's address in it, so an
  attacker elsewhere learns nothing from how fast an answer comes.
- **The same wrong password again**, from the same client, counts once in WRONG_SECONDS: a browser may send an old
  password with thirty requests at once.
- **Guessing**: a client may fail CLIENT_BURST times, then once in CLIENT_SECONDS. A name may fail USER_BURST times
  from all clients together, then once in USER_SECONDS. A client that has logged in under this name within a day is
  not held up by the failures of others: nobody can lock the owner out.
- All processes share what is counted and remembered (gateway/shared_table.py), in bounded memory.

Programs get REMOTE_USER and AUTH_TYPE. They get the field Authorization only with `pass-authorization = true` (see
hides_authorization() in http/messages.py). The access log has the name (%u), also of a failed log-in, as Apache's
log does.

Digest (RFC 7616) is not offered. It needs the passwords, or an equivalent, on the server; its hash is MD5 in most
clients; and TLS protects what it was made to protect.

What can go wrong: without TLS, everybody on the way reads the password. ewe warns when it starts.
"""

from __future__ import annotations

import re
import time
from base64 import b64decode
from binascii import Error
from typing import TYPE_CHECKING

from ewe.config.messages import ConfigError
from ewe.config.setting_types import WAIT, duration
from ewe.features.base import Middleware, respond_with
from ewe.features.declaration import Feature, Key
from ewe.features.guards.client import client_of, who
from ewe.features.guards.request_rate import too_many
from ewe.features.guards.tables import expected, table, texts
from ewe.gateway.shared_table import Rate, SharedTable
from ewe.http.error_pages import error_page
from ewe.http.messages import Request, Response

if TYPE_CHECKING:
    from ewe.features.guards.auth_command import Command
    from ewe.features.guards.htpasswd import Bounds, Htpasswd
    from ewe.streams.base import Stream

CLIENT_BURST, CLIENT_SECONDS = 10, 5.0  # failures of one client
USER_BURST, USER_SECONDS = 50, 5.0  # failures of one name
# A client may send many guesses at once, before the first is checked. Each is counted, up to so many seconds.
CLIENT_MOST, USER_MOST = 3600.0, 60.0
KNOWN_SECONDS = 86_400.0  # for which the failures of others do not hold up a client that has logged in
WRONG_SECONDS = 10.0  # for which a wrong password is remembered
CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
REALM = re.compile(r"[\x20-\x7e]{1,120}")
REMEMBER = duration(0)
KEYS = ("realm", "file", "command", "timeout", "remember")
WHAT = '{ realm = "Members", file = "/etc/ewe/htpasswd" } or { realm = "Members", command = ["/path/to/program"] }'


class Auth(Middleware):
    """Let those pass who know a name and its password."""

    def __init__(self, realm: str, by: Htpasswd | Command, remember: float = 60.0) -> None:
        """by: what knows the passwords. remember: seconds for which a right password is not checked again.

        Raises OSError if the system gives no shared memory.
        """
        quoted_realm = realm.replace("\\", "\\\\").replace('"', '\\"')
        self.fields = (("WWW-Authenticate", f'Basic realm="{quoted_realm}", charset="UTF-8"'),)
        self.by = by
        self.remember = remember
        self.table = SharedTable()
        self.client_failures = Rate(1 / CLIENT_SECONDS, CLIENT_BURST, self.table)
        self.user_failures = Rate(1 / USER_SECONDS, USER_BURST, self.table)

    @classmethod
    def from_table(cls, value: object, place: str, bounds: Bounds | None = None) -> Auth:
        """Read the setting, and the htpasswd file. Raises ConfigError, OSError.

        place: how a message begins. bounds: of the htpasswd file, if they are not the server's.
        """
        given = table(value, place, KEYS, WHAT)
        realm = given.get("realm")
        if not isinstance(realm, str) or REALM.fullmatch(realm) is None:
            raise expected(f"{place} realm", realm, "a name in ASCII, which the browser shows")
        if ("file" in given) == ("command" in given):
            raise ConfigError(f"{place} give either file or command: {WHAT}")
        times = {"timeout": 10.0, "remember": 60.0}
        for key, kind in (("timeout", WAIT), ("remember", REMEMBER)):
            times[key] = kind.read_at(f"{place} {key}", given.get(key, times[key]))
        by: Htpasswd | Command
        if "file" in given:
            from ewe.features.guards.htpasswd import ANY, Htpasswd

            file = given["file"]
            if not isinstance(file, str) or not file or "\0" in file:
                raise expected(f"{place} file", file, "the path of a file that htpasswd has written")
            if "timeout" in given:
                raise ConfigError(f"{place} timeout is for a command")
            by = Htpasswd(file, place, bounds or ANY)
        else:
            from ewe.features.guards.auth_command import Command

            what = 'an absolute path and arguments, such as ["/usr/local/bin/check", "staff"]'
            command = texts(given["command"], f"{place} command", what)
            if not command[0].startswith("/") or any("\0" in each for each in command):
                raise expected(f"{place} command", given["command"], what)
            by = Command(command, times["timeout"])
        return cls(realm, by, times["remember"])

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer who has logged in, else 401. Raises HTTPError: 429, and 500, 502, 504 of a command."""
        given = request.values.get("authorization")
        credentials = parse_basic(given) if given is not None else None
        if credentials is None:
            return error_page(
                401, "" if given is None else "Authorization is not of the kind Basic", self.fields
            )
        name, password = credentials
        io.user = name.decode("utf-8", "replace")
        client = who(client_of(request, io))
        if wait := self.client_failures.wait(b"client" + client):
            raise too_many(wait, "too many failed log-ins of this client (auth)")
        if not await self.right(request, io, client, name, password):
            return error_page(401, f"wrong name or password for {io.user[:64]!r} (auth)", self.fields)
        said = {b"REMOTE_USER": name, b"AUTH_TYPE": b"Basic"}
        return await respond_with(io.variables | said, self.inner, request, io)

    async def right(self, request: Request, io: Stream, client: bytes, name: bytes, password: bytes) -> bool:
        """Return whether the password is right. Raises HTTPError, as respond()."""
        from ewe.features.guards.htpasswd import MAX_PASSWORD, Htpasswd, check

        stored, known = "", True
        if isinstance(self.by, Htpasswd):
            stored, known = self.by.hash_of(name)
        remembered = self.table.digest(b"right", client, name, password, stored.encode("latin-1"))
        now = time.monotonic()
        if known and self.table.get(remembered) > now:
            return True
        wrong = self.table.digest(b"wrong", client, name, password, stored.encode("latin-1"))
        if self.table.get(wrong) > now:
            return False
        owner = self.table.digest(b"owner", client, name)
        wait = self.user_failures.wait(b"user" + name)
        if wait and self.table.get(owner) < time.monotonic():
            raise too_many(
                wait, f"too many failed log-ins of {name.decode('utf-8', 'replace')[:64]!r} (auth)"
            )
        if not isinstance(self.by, Htpasswd):
            right = await self.by.check(request, io, name, password)
        elif stored and len(password) <= MAX_PASSWORD:
            right = await io.call(check, stored, password) and known
        else:
            right = False
        now = time.monotonic()
        if not right:
            self.client_failures.charge(b"client" + client, CLIENT_MOST)
            self.user_failures.charge(b"user" + name, USER_MOST)
        with self.table.locked():
            if right:
                self.table.put(owner, now + KNOWN_SECONDS)
                self.table.put(remembered, now + self.remember)
            else:
                self.table.put(wrong, now + min(self.remember, WRONG_SECONDS))
        return right


def parse_basic(value: str) -> tuple[bytes, bytes] | None:
    """Return the name and the password of a field Authorization, None if it is malformed or of another kind."""
    scheme, _, text = value.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        data = b64decode(text.strip(" "), validate=True)
    except (Error, ValueError):
        return None
    name, colon, password = data.partition(b":")
    if not colon or not name or CONTROL.search(data):
        return None
    try:
        data.decode()
    except UnicodeDecodeError:  # Latin-1, as old clients send it although they were asked for UTF-8
        name, password = (each.decode("latin-1").encode() for each in (name, password))
    return name, password


MEANING = "who may: a log-in with name and password"
FEATURE = Feature(
    "auth",
    keys={"auth": Key(MEANING, '{ realm = "Members", file = "/etc/ewe/htpasswd" }', Auth.from_table)},
    late=("ewe.features.guards.auth_command", "ewe.features.guards.htpasswd"),
)
