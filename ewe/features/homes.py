"""Users' settings for their own directories: `~/public_html/.ewe.toml`, if the setting userdir-settings allows it.

    index = ["start.html"]                      headers = { set = { X-Frame-Options = "DENY" } }
    indexes = false                             auth = { realm = "My students", file = ".htpasswd" }
    error-pages = { 404 = "/missing.html" }     (a path below the directory)

The file allows only few settings, on purpose. There is one file for the whole directory, and it cannot name a
program, a directory or a user. ewe checks at most once a second whether the file has changed.

Possible failures, and where each is prevented:

- **The file has an error.** Every request below the directory gets 500 until the user corrects the file. If ewe
  ignored the file, it would publish the files that `auth` protects. The page shows the error, because the user
  cannot read the server's log.
- **The file is a link.** Neither .ewe.toml nor the password file may be a symbolic link, a FIFO or a file of
  another user. ewe opens each file once, and checks the open descriptor.
- **A header field affects more than the directory.** All users share one host. No user may set fields whose values
  the browser stores for the whole host (FORBIDDEN).
- **The file is long, or takes long to parse.** The time of the TOML parser grows with the square of the number of
  dots in a key: 16 KB of `a.a.a...` would block the event loop for seconds. MAX_FILE_BYTES and MAX_DOTS bound the
  file, and PASSWORDS bounds the password file. ewe reads a file again only after a change.
"""

from __future__ import annotations

import errno
import os
import stat
import time
import tomllib
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ewe.bounded import BoundedDict
from ewe.config.messages import ConfigError, quoted
from ewe.config.setting import Key
from ewe.config.setting_types import BOOL, FILE_NAMES, matching
from ewe.config.table_kinds import TableKind
from ewe.features.base import Failures, First, Handler, Middleware, Reroute
from ewe.features.declaration import Feature
from ewe.features.guards.auth import AUTH, Auth
from ewe.features.guards.error_pages import PAGES, ErrorPages
from ewe.features.guards.headers import HEADERS, Headers
from ewe.features.guards.htpasswd import Bounds, load_libraries
from ewe.features.pages import with_index_page
from ewe.features.static import file_version
from ewe.features.users import Users
from ewe.features.users_settings import USERDIR_SETTINGS
from ewe.gateway.shared_table import SharedTable
from ewe.gateway.true_names import name_of
from ewe.http.error_pages import error_page
from ewe.http.status import HTTPError
from ewe.http.target import remove_dot_segments
from ewe.streams.descriptors import EXHAUSTED

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.base import Explanation
    from ewe.features.plan import Plan
    from ewe.features.users import Home
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

FILE = ".ewe.toml"
MAX_SETTINGS_BYTES = 16 * 1024  # bytes of the file
MAX_DOTS = 400  # in the file; a key with 8,000 dots takes seconds to parse
PASSWORDS = Bounds(max_bytes=64 * 1024, max_check_ms=300.0)  # the cost of bcrypt is then at most 12
LOG_IN = TableKind('{ realm = "A name", file = ".htpasswd" }', {
    "realm": AUTH.keys["realm"],
    "file": Key(matching("NAME", "a file of this directory, such as .htpasswd", r"\.[^/\0]*"),
                "a file of this directory, as htpasswd writes it"),
}, needs=("realm", "file"))  # fmt: skip
SETTINGS = TableKind("a table", {
    "index": Key(FILE_NAMES, "the files that answer for a directory"),
    "indexes": Key(BOOL, "list a directory that has none of them"),
    "error-pages": Key(PAGES, "pages for statuses"),
    "headers": Key(HEADERS, "fields of the response"),
    "auth": Key(LOG_IN, "a log-in with name and password"),
})  # fmt: skip
MAX_USERS = 1000  # users whose settings are cached
FILE_CHECK_S = 1.0  # seconds until the files are checked again
OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
# Fields that a browser stores for the whole host, or that give a script access to the whole host
FORBIDDEN = frozenset({
    "strict-transport-security", "clear-site-data", "alt-svc", "set-cookie", "set-cookie2",
    "service-worker-allowed", "public-key-pins", "access-control-allow-origin", "nel", "report-to",
    "origin-agent-cluster", "accept-ch", "critical-ch", "expect-ct", "public-key-pins-report-only", "set-login",
    "sec-session-registration", "secure-session-registration",  # sessions that are bound to a device (W3C DBSC)
})  # fmt: skip
# Fields by which a server behind nginx, Apache, lighttpd or LiteSpeed makes the front server send another file
TO_THE_FRONT = ("x-accel-", "x-sendfile", "x-send-file", "x-lighttpd-", "x-litespeed-", "x-reproxy-")


class HomeSettings:
    """The settings of one user, or the reason why they cannot be used (`fault`)."""

    def __init__(self) -> None:
        self.checked_at = 0.0
        # The file_version() of the settings file and of the password file, to notice a change of either
        self.file_versions: tuple[object, ...] = ()
        self.password_file = ""  # its name; "" without a log-in
        # The second of file_versions. It is taken before the file is opened, so that no change is missed.
        self.password_file_version: object = None
        self.fault = ""
        # None: those of the server
        self.index_names: tuple[str, ...] | None = None
        self.lists_directories: bool | None = None
        self.auth: Auth | None = None
        self.headers: Headers | None = None
        self.error_pages: ErrorPages | None = None
        self.handler: Handler  # the users' handler with these middlewares around it


class WithoutSettings(First):
    """The directories of users without the middlewares of their settings, for the files of error pages."""

    async def respond(self, request: Request, io: Stream) -> Response:
        """Return the response of the users' handler. Raises HTTPError, also for a local redirect.

        An error page replaces one response, but a local redirect would begin another request.
        """
        try:
            return await super().respond(request, io)
        except Reroute:
            raise HTTPError(500, "its answer is a local redirect") from None


class Homes(Middleware):
    """The directories of users, with their settings."""

    def __init__(self, users: Users, inner: Handler | None = None) -> None:
        """inner: the content cache around `users`; None if there is none. Raises OSError without shared memory."""
        self.users = users
        # Made before the fork, so that all processes count the failed log-ins together. Each user has a part.
        self.log_ins = SharedTable()
        self.inner = First([inner or users])
        self.site = WithoutSettings([users])
        self.settings_by_user: BoundedDict[str, HomeSettings] = BoundedDict(MAX_USERS)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the response of Users, with the middlewares of the user's settings around it."""
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
        return (yield from self.users.explain(request, io))

    def chain(self, found: HomeSettings) -> Handler:
        """Return the handler for a user's settings. The filters are around the log-in."""
        handler: Handler = self.inner
        if found.auth is not None:
            handler = found.auth.around(handler, self.site)
        handler = Failures(handler)
        for step in (found.error_pages, found.headers):
            if step is not None:
                handler = step.around(handler, self.site)
        return handler

    def settings_of(self, home: Home) -> HomeSettings:
        """Return a user's settings, at most FILE_CHECK_S old. Apply `index` and `indexes` to the user's files.

        Raises OSError if the server has no descriptor left.
        """
        known = self.settings_by_user.get(home.name)
        now = time.monotonic()
        if known is not None and now - known.checked_at <= FILE_CHECK_S:
            settings = known
        else:
            settings = self.read(home, known)
            settings.checked_at = now
            if settings is not known:  # the user's files have changed, or were not read before
                settings.handler = self.chain(settings)
                self.settings_by_user[home.name] = settings
        index_names = settings.index_names or self.users.config.defaultindex
        names_of_pages = settings.index_names or with_index_page(index_names)
        if (home.static.index_names, home.pages.index_names) != (index_names, names_of_pages):
            home.static.index_names, home.pages.index_names = index_names, names_of_pages
            home.static.forget_all()  # the cache maps directories to their index files
        lists = settings.lists_directories
        home.static.lists_directories = self.users.config.indexes if lists is None else lists
        return settings

    def read(self, home: Home, known: HomeSettings | None) -> HomeSettings:
        """Return the present settings of a user's file; `known` if the files are unchanged.

        Raises OSError if the server has no descriptor left: that is no fault of the file.
        """
        directory, owner = home.static.root, home.static.owner
        found = HomeSettings()
        try:
            descriptor = open_user_file(os.path.join(directory, FILE), FILE, owner)
        except FileNotFoundError:
            return found
        except ConfigError as reason:
            found.fault = str(reason)
            return found
        try:
            version = file_version(os.fstat(descriptor))
            if known is not None:
                password_version = version_of_file(directory, known.password_file)
                if known.file_versions == (version, password_version):
                    return known
            data = os.read(descriptor, MAX_SETTINGS_BYTES + 1)
        finally:
            os.close(descriptor)
        try:
            if len(data) > MAX_SETTINGS_BYTES:
                raise ConfigError(f"{FILE} is longer than {MAX_SETTINGS_BYTES} bytes")
            if data.count(b".") > MAX_DOTS:
                raise ConfigError(f"{FILE} has more than {MAX_DOTS} dots")
            self.read_keys_of_user(found, tomllib.loads(data.decode()), home)
        except UnicodeDecodeError:
            found.fault = f"{FILE} is not UTF-8 text"
        except (ValueError, RecursionError) as reason:  # from the TOML parser, or from read_keys_of_user()
            found.fault = f"{FILE}: {reason}".replace(f"{FILE}: {FILE}", FILE)
        found.file_versions = (version, found.password_file_version)
        return found

    def read_keys_of_user(self, found: HomeSettings, table: dict[str, Any], home: Home) -> None:
        """Read the keys of a user's settings into `found`. Raises ConfigError, ValueError, OSError."""
        for key, value in SETTINGS.read_at(f"{FILE}:", table).items():
            label = f"{FILE}: {key} ="
            if key == "index":
                found.index_names = value
            elif key == "indexes":
                found.lists_directories = value
            elif key == "error-pages":
                pages: dict[int, str] = value
                prefix = f"/~{home.name}"
                for path in pages.values():
                    if not leads_below(prefix, path):
                        raise ConfigError(f"{label} {quoted(path)} is no path of this directory")
                found.error_pages = ErrorPages({status: prefix + path for status, path in pages.items()})
            elif key == "headers":
                found.headers = Headers(value)
                names = {name.lower() for name, _ in found.headers.added} | found.headers.dropped
                if refused := sorted(
                    name for name in names if name in FORBIDDEN or name.startswith(TO_THE_FRONT)
                ):
                    raise ConfigError(
                        f"{label} {refused[0]} concerns the whole host, and is not a user's to set"
                    )
            else:
                found.auth = self.auth(found, value, label, home)

    def auth(self, found: HomeSettings, table: dict[str, str], label: str, home: Home) -> Auth:
        """Return the log-in of a directory. The password file must be beside .ewe.toml.

        Raises ConfigError; OSError if the server has no descriptor left.
        """
        found.password_file = name = table["file"]
        found.password_file_version = version_of_file(home.static.root, name)
        try:
            descriptor = open_user_file(os.path.join(home.static.root, name), name, home.static.owner)
        except FileNotFoundError as reason:
            raise ConfigError(f"{label} {name}: {reason.strerror}") from None
        path = name_of(descriptor)  # the path of the checked file, even if another file gets its name later
        try:
            made = Auth.from_table({**table, "file": path}, PASSWORDS, self.log_ins.part(home.name.encode()))
        except (ValueError, OSError) as reason:
            os.close(descriptor)
            if isinstance(reason, OSError):
                raise
            raise ConfigError(f"{label} {reason}".replace(path, name)) from None
        weakref.finalize(made.checker, os.close, descriptor)  # all copies of the middleware share it
        return made


def leads_below(prefix: str, path: str) -> bool:
    """Return whether a path of a user's settings is below the user's prefix, after its dot segments are removed."""
    try:
        return remove_dot_segments(prefix + path.partition("?")[0]).startswith(prefix + "/")
    except HTTPError:
        return False


def open_user_file(path: str, name: str, owner: int | None) -> int:
    """Open a regular file that belongs to a user or to root; return its descriptor.

    name: the file's name, for messages. owner: the user's id; None: the file must be root's. Raises ConfigError for
    any other file, for a symbolic link, and for a file that cannot be read; FileNotFoundError; OSError if the
    server has no descriptor left.
    """
    not_regular = f"{name} is not a regular file of the user"
    try:
        descriptor = os.open(path, OPEN_FLAGS)
    except OSError as reason:
        if reason.errno == errno.ELOOP:
            raise ConfigError(f"{name} is a symbolic link") from None
        if reason.errno == errno.ENXIO:  # open(2) cannot open a socket
            raise ConfigError(not_regular) from None
        if reason.errno == errno.EACCES:
            raise ConfigError(f"{name} may not be read by the server: chmod a+r {name}") from None
        if reason.errno in EXHAUSTED or isinstance(reason, FileNotFoundError):
            raise
        raise ConfigError(f"{name}: {reason.strerror}") from None
    file_status = os.fstat(descriptor)
    if stat.S_ISREG(file_status.st_mode) and file_status.st_uid in (owner, 0):
        return descriptor
    os.close(descriptor)
    raise ConfigError(not_regular)


def version_of_file(directory: str, name: str) -> object:
    """Return the file_version() of a file; None if there is no file, or no name."""
    try:
        return file_version(os.lstat(os.path.join(directory, name))) if name else None
    except OSError:
        return None


def wrap(plan: Plan, config: Config, handler: Handler) -> Handler:
    """Return the handler of users' directories inside Homes; return any other handler as it is (Feature.wrap).

    Homes is around the other middlewares, so that a user's log-in comes before the content cache. Raises ValueError
    if the system gives no shared memory.
    """
    inside = handler
    while isinstance(inside, Middleware):
        inside = inside.inner
    if not isinstance(inside, Users):
        return handler
    with suppress(ImportError):
        load_libraries()  # now: without root, a worker may not be allowed to read Python's directories
    try:
        return Homes(inside, handler)
    except OSError as reason:
        raise ValueError(f"{reason.strerror} (userdir-settings)") from None


FEATURE = Feature("homes", settings=(USERDIR_SETTINGS,), wrap=wrap)
