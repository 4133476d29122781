"""Settings of users for their directories: `~/public_html/.ewe.toml`, if the setting userdir-settings allows it.

    index = ["start.html"]                      headers = { set = { X-Frame-Options = "DENY" } }
    indexes = false                             auth = { realm = "My students", file = ".htpasswd" }
    error-pages = { 404 = "/missing.html" }     (a path below the directory)

The file is narrow on purpose. It counts for the whole directory, there is one, and nothing in it names a program, a
directory or a user. ewe looks at most once a second whether it has changed.

What can go wrong, and what ewe does:

- **The file is wrong.** The whole directory is 500 until the user mends it. To ignore the file would publish what
  its `auth` protects. The page says what is wrong, because the user cannot read the server's log.
- **The file leads elsewhere.** Neither .ewe.toml nor the file of passwords may be a symbolic link, a FIFO or a file
  of another user. ewe opens each once, and checks the open descriptor.
- **A field concerns more than the directory.** All users share one host, so no user may set what a browser keeps
  for the whole host (FORBIDDEN).
- **The file is long, or takes long to read.** The reader of TOML needs a time that grows with the square of the
  number of dots in a key: 16 KB of `a.a.a...` would hold the event loop for seconds. MAX_FILE and MAX_DOTS bound
  it, and PASSWORDS the file of passwords. ewe reads neither again unless it has changed.
"""

from __future__ import annotations

import os
import stat
import time
import tomllib
import weakref
from typing import TYPE_CHECKING, Any

from ewe.bounded import BoundedDict
from ewe.config.messages import ConfigError, nearest, quoted
from ewe.config.setting_types import BOOL, FILE_NAMES
from ewe.features.base import Failures, First, Handler, Middleware, Reroute
from ewe.features.declaration import Feature
from ewe.features.guards.auth import Auth
from ewe.features.guards.error_pages import ErrorPages
from ewe.features.guards.headers import Headers
from ewe.features.guards.htpasswd import Bounds
from ewe.features.static import identity
from ewe.features.users import Users
from ewe.gateway.true_names import name_of
from ewe.http.error_pages import error_page
from ewe.http.status import HTTPError
from ewe.http.target import remove_dot_segments

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.base import Explanation
    from ewe.features.plan import Plan
    from ewe.features.users import Home
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

FILE = ".ewe.toml"
MAX_FILE = 16 * 1024  # bytes of the file
MAX_DOTS = 400  # in the file; 8,000 in one key take seconds to read
PASSWORDS = Bounds(64 * 1024, 300.0)  # of a user's file of passwords: bcrypt has a cost of 12 at most
KEYS = ("index", "indexes", "error-pages", "headers", "auth")
MAX_USERS = 1000  # whose settings are remembered
FRESH = 1.0  # seconds for which the files are not looked at again
OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
# Fields that a browser keeps for the whole host, or that give a script power over all of it
FORBIDDEN = frozenset({
    "strict-transport-security", "clear-site-data", "alt-svc", "set-cookie", "set-cookie2",
    "service-worker-allowed", "public-key-pins", "access-control-allow-origin", "nel", "report-to",
    "origin-agent-cluster", "accept-ch", "critical-ch", "expect-ct", "public-key-pins-report-only", "set-login",
})  # fmt: skip
# Fields by which a server behind nginx, Apache, lighttpd or LiteSpeed has the front send another file
TO_THE_FRONT = ("x-accel-", "x-sendfile", "x-send-file", "x-lighttpd-", "x-litespeed-", "x-reproxy-")


class HomeSettings:
    """The settings of one user, or why they cannot be used."""

    def __init__(self) -> None:
        self.checked = 0.0
        self.identities: tuple[object, ...] = ()  # of the file, and of the file of passwords
        self.password_file = ""
        self.passwords: object = None  # the identity of that file when it was opened
        self.fault = ""
        self.index: tuple[str, ...] | None = None
        self.indexes: bool | None = None
        self.auth: Auth | None = None
        self.headers: Headers | None = None
        self.error_pages: ErrorPages | None = None
        self.handler: Handler  # answers with these steps around it


class WithoutSettings(First):
    """The directories of users without their settings: for the pages of errors."""

    async def respond(self, request: Request, io: Stream) -> Response:
        """Return the response. Raises HTTPError."""
        try:
            return await super().respond(request, io)
        except Reroute:
            raise HTTPError(500, "its answer is a local redirect") from None


class Homes(Middleware):
    """The directories of users, with their settings."""

    def __init__(self, users: Users, inner: Handler | None = None) -> None:
        """inner: what answers, if it is not `users`: the content cache around it."""
        self.users = users
        self.inner = First([inner or users])
        self.site = WithoutSettings([users])
        self.known: BoundedDict[str, HomeSettings] = BoundedDict(MAX_USERS)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer as Users does, with the steps of the user's settings."""
        home = self.users.home(request.path)
        if home is None:
            return None
        found = self.settings_of(home)
        if found.fault:
            return error_page(
                500, found.fault, text=f"The settings of this directory are wrong: {found.fault}"
            )
        return await found.handler.respond(request, io)

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the user whose directory the path names."""
        return (yield from self.users.explain(request, io))

    def chain(self, found: HomeSettings) -> Handler:
        """Return what answers with a user's settings: the filters stand outside of the log-in."""
        handler: Handler = self.inner
        if found.auth is not None:
            handler = found.auth.around(handler, self.site)
        handler = Failures(handler)
        for step in (found.error_pages, found.headers):
            if step is not None:
                handler = step.around(handler, self.site)
        return handler

    def settings_of(self, home: Home) -> HomeSettings:
        """Return a user's settings, as they were a second ago at most."""
        known = self.known.get(home.name)
        now = time.monotonic()
        if known is None or now - known.checked > FRESH:
            fresh = self.read(home, known)
            if fresh is not known:
                fresh.handler = self.chain(fresh)
                self.known[home.name] = fresh
            fresh.checked = now
            known = fresh
        index = known.index or self.users.config.defaultindex
        if home.static.index != index:
            home.static.index = index
            home.pages.indexes = index
            home.static.cache.clear()  # the cache knows which file answers for a directory
            home.static.taken = 0
        home.static.indexes = self.users.config.indexes if known.indexes is None else known.indexes
        return known

    def read(self, home: Home, known: HomeSettings | None) -> HomeSettings:
        """Return the settings that a user's file has now; `known`, if nothing has changed."""
        directory, owner = home.static.root, home.static.owner
        found = HomeSettings()
        try:
            descriptor = opened(os.path.join(directory, FILE), FILE, owner)
        except FileNotFoundError:
            return found
        except (OSError, ConfigError) as reason:
            found.fault = reason.strerror or FILE if isinstance(reason, OSError) else str(reason)
            return found
        try:
            about = identity(os.fstat(descriptor))
            if known is not None and known.identities == (about, found_at(directory, known.password_file)):
                return known
            data = os.read(descriptor, MAX_FILE + 1)
        finally:
            os.close(descriptor)
        try:
            if len(data) > MAX_FILE:
                raise ConfigError(f"{FILE} is longer than {MAX_FILE} bytes")
            if data.count(b".") > MAX_DOTS:
                raise ConfigError(f"{FILE} has more than {MAX_DOTS} dots")
            self.take(found, tomllib.loads(data.decode()), home)
        except UnicodeDecodeError:
            found.fault = f"{FILE} is not UTF-8 text"
        except (ValueError, RecursionError, OSError) as reason:  # of TOML, or ours
            found.fault = f"{FILE}: {reason}".replace(f"{FILE}: {FILE}", FILE)
        found.identities = (about, found.passwords)
        return found

    def take(self, found: HomeSettings, table: dict[str, Any], home: Home) -> None:
        """Read the keys. Raises ConfigError, ValueError, OSError."""
        for key, raw in table.items():
            label = f"{FILE}: {key} ="
            if key not in KEYS:
                raise ConfigError(f"{FILE}: unknown key {quoted(key)}{nearest(key, KEYS)}")
            if key in ("index", "indexes"):
                kind: Any = FILE_NAMES if key == "index" else BOOL
                try:
                    setattr(found, key, kind.read(raw))
                except ValueError:
                    raise ConfigError(f"{label} {quoted(raw)}: expected {kind.expected}") from None
            elif key == "error-pages":
                pages = ErrorPages.from_table(raw, label).pages
                prefix = f"/~{home.name}"
                for path in pages.values():
                    if not leads_below(prefix, path):
                        raise ConfigError(f"{label} {quoted(path)} is no path of this directory")
                found.error_pages = ErrorPages({status: prefix + path for status, path in pages.items()})
            elif key == "headers":
                found.headers = Headers.from_table(raw, label)
                own = {name.lower() for name, _ in found.headers.added} | found.headers.dropped
                if refused := sorted(
                    each for each in own if each in FORBIDDEN or each.startswith(TO_THE_FRONT)
                ):
                    raise ConfigError(
                        f"{label} {refused[0]} concerns the whole host, and is not a user's to set"
                    )
            else:
                found.auth = self.auth(found, raw, label, home)

    def auth(self, found: HomeSettings, raw: object, label: str, home: Home) -> Auth:
        """Return the log-in of a directory: only with a file of passwords beside .ewe.toml."""
        if not isinstance(raw, dict) or set(raw) != {"realm", "file"}:
            raise ConfigError(f'{label} {quoted(raw)}: expected {{ realm = "A name", file = ".htpasswd" }}')
        name = raw["file"]
        if not isinstance(name, str) or not name.startswith(".") or "/" in name or "\0" in name:
            raise ConfigError(
                f"{label} file {quoted(name)}: expected a file of this directory, such as .htpasswd"
            )
        found.password_file = name
        found.passwords = found_at(home.static.root, name)
        try:
            descriptor = opened(os.path.join(home.static.root, name), name, home.static.owner)
        except OSError as reason:
            raise ConfigError(f"{label} {name}: {reason.strerror}") from None
        path = name_of(descriptor)  # the file that was checked, not what has its name later
        try:
            made = Auth.from_table({**raw, "file": path}, label, PASSWORDS)
        except ConfigError as reason:
            os.close(descriptor)
            raise ConfigError(str(reason).replace(path, name)) from None
        weakref.finalize(made.by, os.close, descriptor)  # which all copies of the middleware hold
        return made


def leads_below(prefix: str, path: str) -> bool:
    """Return whether a path of a user's settings stays below the user's prefix, with its dot segments removed."""
    try:
        return remove_dot_segments(prefix + path.partition("?")[0]).startswith(prefix + "/")
    except HTTPError:
        return False


def opened(path: str, name: str, owner: int | None) -> int:
    """Return a descriptor of a user's regular file. Raises OSError, and ConfigError for another kind of file."""
    try:
        descriptor = os.open(path, OPEN)
    except OSError as reason:
        import errno

        if reason.errno == errno.ELOOP:
            raise ConfigError(f"{name} is a symbolic link") from None
        if reason.errno in (errno.EACCES, errno.ENXIO):
            raise ConfigError(f"{name} may not be read by the server: chmod a+r {name}") from None
        raise
    about = os.fstat(descriptor)
    if stat.S_ISREG(about.st_mode) and about.st_uid in (owner, 0):
        return descriptor
    os.close(descriptor)
    raise ConfigError(f"{name} is not a regular file of the user")


def found_at(directory: str, name: str) -> object:
    """Return what changes when a file of a directory changes; None if it is not there, or there is no name."""
    try:
        return identity(os.lstat(os.path.join(directory, name))) if name else None
    except OSError:
        return None


def wrap(plan: Plan, config: Config, handler: Handler) -> Handler:
    """Return the directories of users with their settings: a log-in is asked for before a cache is."""
    inside = handler
    while isinstance(inside, Middleware):
        inside = inside.inner
    return Homes(inside, handler) if isinstance(inside, Users) else handler


FEATURE = Feature("homes", settings=("userdir_settings",), wrap=wrap)
