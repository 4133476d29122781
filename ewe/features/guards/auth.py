"""Log-ins with a name and a password: HTTP Basic, RFC 7617 (setting `auth`).

    auth = { realm = "Members", file = "/etc/ewe/htpasswd" }
    auth = { realm = "Members", command = ["/usr/local/bin/check"], timeout = "10s" }

A browser that gets a 401 asks its user, and sends name and password with every request from then on. The password
has to be checked each time, and a good hash is slow on purpose. respond() therefore checks in this order:

    credentials ─▶ this client has failed too often?      ─▶ 429
                ─▶ were they right a minute ago?          ─▶ go on          (nearly all requests)
                ─▶ this name was guessed at too often?    ─▶ 429
                ─▶ check the hash, or ask the program     ─▶ go on, or 401

- **The check does not hold an event loop**: it is a call (Stream.call), made in a thread there.
- **ewe remembers a digest** with a random key, of client, name, password and the stored hash, for
  `remember` (a minute). A changed hash is another digest. The key of a digest has the client's address in it, so an
  attacker elsewhere learns nothing from how fast an answer comes.
- **The same wrong password again**, from the same client, counts once in WRONG_PASSWORD_S: a browser may send an
  old password with thirty requests at once.
- **Guessing**: a client may fail CLIENT_BURST times, then once in CLIENT_INTERVAL_S. A client that leaves before
  the answer has failed, too. A name may fail USER_BURST times from all clients together, then once in
  USER_INTERVAL_S. The failures of others do not hold up a client that has logged in under this name within
  LOGGED_IN_S (a day), so no attacker can lock the owner out.
- All processes share the counters and the digests (gateway/shared_table.py), in bounded memory.

Programs get REMOTE_USER and AUTH_TYPE. They get the field Authorization only with `pass-authorization = true` (see
hides_authorization() in http/messages.py). The access log has the name (%u), also of a failed log-in, as Apache's
log does.

Digest (RFC 7616) is not offered. It needs the passwords, or an equivalent, on the server; its hash is MD5 in most
clients; and TLS protects what it was made to protect.

Possible failures: without TLS, everybody on the way reads the password. ewe warns when it starts.
"""

from __future__ import annotations

import re
import time
from base64 import b64decode
from binascii import Error
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ewe.config.setting import Key
from ewe.config.setting_types import WAIT, Kind, duration, list_of, matching
from ewe.config.table_kinds import TableKind
from ewe.features.base import Middleware, respond_with
from ewe.features.declaration import Feature, StepKey
from ewe.features.guards.client import client_key, client_of
from ewe.features.guards.request_rate import too_many
from ewe.gateway.shared_table import Rate, SharedTable
from ewe.http.error_pages import error_page
from ewe.http.messages import Request, Response
from ewe.streams.base import Disconnected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ewe.config.settings import Config
    from ewe.features.guards.auth_command import PasswordCommand
    from ewe.features.guards.htpasswd import Bounds, Htpasswd
    from ewe.streams.base import Stream

CLIENT_BURST, CLIENT_INTERVAL_S = 10, 5.0  # failed log-ins of one client; seconds
USER_BURST, USER_INTERVAL_S = 50, 5.0  # failed log-ins under one name; seconds
# A client may send many guesses at once, before the first is checked. Each makes the wait longer, up to these.
MAX_CLIENT_WAIT_S, MAX_USER_WAIT_S = 3600.0, 60.0
LOGGED_IN_S = 86_400.0  # for which the failures of others do not hold up a client that has logged in
WRONG_PASSWORD_S = 10.0  # for which a wrong password is remembered
CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
REMEMBERED_S, TIMEOUT_S = 60.0, 10.0  # defaults of the keys `remember` and `timeout`


def _command(raw: object) -> tuple[str, ...]:
    """Return the arguments of a command, whose program is an absolute path. Raises ValueError."""
    command = ARGUMENTS.read(raw)
    if not command[0].startswith("/"):
        raise ValueError(raw)
    return command


ARGUMENTS = list_of("TEXT", "", matching("TEXT", "", r"[^\0]+").read, lone=True, least=1)
COMMAND = Kind(
    "COMMAND", 'an absolute path and arguments, such as ["/usr/local/bin/check", "staff"]', _command
)
AUTH = TableKind(
    '{ realm = "Members", file = "/etc/ewe/htpasswd" } or { realm = "Members", command = ["/path/to/program"] }', {
        "realm": Key(matching("NAME", "a name in ASCII, at most 120 characters", r"[\x20-\x7e]{1,120}"),
                     "the name that the browser shows"),
        "file": Key(matching("PATH", "the path of a file that htpasswd has written", r"[^\0]+"),
                    "names and the hashes of their passwords"),
        "command": Key(COMMAND, "the program that checks a password"),
        "timeout": Key(WAIT, f"how long `command` may take; {TIMEOUT_S:g}s if it is absent"),
        "remember": Key(duration(0), "how long a right password is not checked again;"
                        f" {REMEMBERED_S:g}s if it is absent"),
    }, needs=("realm",),
)  # fmt: skip


class Auth(Middleware):
    """Asks for a name and its password."""

    def __init__(
        self,
        realm: str,
        checker: Htpasswd | PasswordCommand,
        remember_s: float = REMEMBERED_S,
        shared: SharedTable | None = None,
    ) -> None:
        """checker: checks passwords. remember_s: for how long a right password is not checked again.

        shared: stores the counters and the digests; None: a new table. Raises OSError if the system gives no shared
        memory.
        """
        quoted_realm = realm.replace("\\", "\\\\").replace('"', '\\"')
        self.fields = (("WWW-Authenticate", f'Basic realm="{quoted_realm}", charset="UTF-8"'),)
        self.checker = checker
        self.remember_s = remember_s
        self.table = shared or SharedTable()
        self.client_failures = Rate(1 / CLIENT_INTERVAL_S, CLIENT_BURST, self.table)
        self.user_failures = Rate(1 / USER_INTERVAL_S, USER_BURST, self.table)

    @classmethod
    def from_table(
        cls, table: Mapping[str, Any], bounds: Bounds | None = None, shared: SharedTable | None = None
    ) -> Auth:
        """Return the log-in of the settings; reads the htpasswd file. Raises ValueError, OSError.

        table: the table that AUTH has read. bounds: of the htpasswd file; None: those of the server. shared: see
        Auth.
        """
        if ("file" in table) == ("command" in table):
            raise ValueError(f"give either file or command: {AUTH.expected}")
        checker: Htpasswd | PasswordCommand
        if "file" in table:
            from ewe.features.guards.htpasswd import ANY, Htpasswd

            if "timeout" in table:
                raise ValueError("timeout is for a command")
            checker = Htpasswd(table["file"], bounds or ANY)
        else:
            from ewe.features.guards.auth_command import PasswordCommand

            checker = PasswordCommand(table["command"], table.get("timeout", TIMEOUT_S))
        return cls(table["realm"], checker, table.get("remember", REMEMBERED_S), shared)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the inner handler's response if the password is right, else a 401.

        Raises HTTPError: 429, and 500, 502, 504 of a command.
        """
        given = request.values.get("authorization")
        credentials = parse_basic(given) if given is not None else None
        if credentials is None:
            return error_page(
                401, "" if given is None else "Authorization is not of the kind Basic", self.fields
            )
        name, password = credentials
        io.user = name.decode("utf-8", "replace")
        client = client_key(client_of(io))
        if wait := self.client_failures.wait(b"client" + client):
            raise too_many(wait, "too many failed log-ins of this client (auth)")
        if not await self.is_right(request, io, client, name, password):
            return error_page(401, f"wrong name or password for {io.user[:64]!r} (auth)", self.fields)
        user_variables = {b"REMOTE_USER": name, b"AUTH_TYPE": b"Basic"}
        return await respond_with(io.variables | user_variables, self.inner, request, io)

    async def is_right(
        self, request: Request, io: Stream, client: bytes, name: bytes, password: bytes
    ) -> bool:
        """Return whether the password is right. Raises HTTPError, as respond()."""
        from ewe.features.guards.htpasswd import Htpasswd

        stored, known = "", True  # a command knows no hash, and tells unknown users only by its answer
        if isinstance(self.checker, Htpasswd):
            stored, known = self.checker.hash_of(name)
        right_key = self.table.digest(b"right", client, name, password, stored.encode("latin-1"))
        now = time.monotonic()
        if known and self.table.get(right_key) > now:
            return True
        wrong_key = self.table.digest(b"wrong", client, name, password, stored.encode("latin-1"))
        if self.table.get(wrong_key) > now:
            return False
        owner_key = self.table.digest(b"owner", client, name)
        wait = self.user_failures.wait(b"user" + name)
        if wait and self.table.get(owner_key) < time.monotonic():
            raise too_many(
                wait, f"too many failed log-ins of {name.decode('utf-8', 'replace')[:64]!r} (auth)"
            )
        try:
            # An unknown user's password is checked, too: the time must not tell which names exist.
            right = await self.check(request, io, name, password, stored) and known
        except Disconnected:
            # The check has taken its time: a client that always leaves must not have any number of checks.
            self.client_failures.charge(b"client" + client, MAX_CLIENT_WAIT_S)
            raise
        now = time.monotonic()
        with self.table.locked():
            # Another request with this password may have been checked at the same time.
            is_counted = self.table.get(wrong_key) > now
            if right:
                self.table.put(owner_key, now + LOGGED_IN_S)
                self.table.put(right_key, now + self.remember_s)
            else:
                self.table.put(wrong_key, now + min(self.remember_s, WRONG_PASSWORD_S))
        if not right and not is_counted:
            self.client_failures.charge(b"client" + client, MAX_CLIENT_WAIT_S)
            self.user_failures.charge(b"user" + name, MAX_USER_WAIT_S)
        return right

    async def check(self, request: Request, io: Stream, name: bytes, password: bytes, stored: str) -> bool:
        """Have the command decide, or compare the password with a hash of the file. Takes up to seconds.

        stored: the hash; "" if the file has no user. Raises HTTPError, as respond().
        """
        from ewe.features.guards.htpasswd import MAX_PASSWORD_BYTES, Htpasswd, check

        if not isinstance(self.checker, Htpasswd):
            return await self.checker.check(request, io, name, password)
        if not stored or len(password) > MAX_PASSWORD_BYTES:
            return False
        return await io.call(check, stored, password)


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


def start_warnings(config: Config, public_url: str) -> Iterator[str]:
    """Yield a line for each site that asks for passwords without TLS: a network could read them.

    public_url: a URL of the server that other machines reach; "": there is none, and nobody can read them.
    """
    for site in config.sites if public_url else ():
        site_config = config.with_values(site.own_settings)
        if site_config.tls == "self" or site_config.tls_cert is not None:
            continue
        origins = [each.origin_of("auth") for each in (site, *site.locations) if "auth" in each.steps]
        if origins:
            yield (
                f"{origins[0]}: auth asks for passwords without TLS at {public_url}: others can read them on their"
                " way (tls-cert, or listen on 127.0.0.1 behind a proxy that has TLS)"
            )


MEANING = "who may: a log-in with name and password"
FEATURE = Feature(
    "auth",
    keys={"auth": StepKey(AUTH, MEANING, Auth.from_table, secret="file")},
    start_warnings=start_warnings,
    late=("ewe.features.guards.auth_command", "ewe.features.guards.htpasswd"),
)
