"""Users' directories: /~alice/notes.html is ~alice/public_html/notes.html (config.userdir).

Each user's directory is a separate document root, and nothing leads out of it. Users do not trust each other, so
ewe checks more than in the site's document root:

- The directory belongs to the user or to root. It may be a symbolic link to a directory of the same user, as
  Apache's SymLinksIfOwnerMatch allows. `ln -s / ~/public_html` publishes nothing.
- A file is sent only if it belongs to that user, or to root and is readable for everybody. With
  `symlinks = follow`, a link may lead out of the directory to files of the same user, and to no others.
- A program is never sent as a file. X-Switch runs users' programs as their owner; without X-Switch they do not run.

If a directory is not served, the answer is 404 for every reason alike: different answers would tell a client which
accounts exist. The error log has the reason. System accounts (below config.min_uid) have no directory.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from typing import TYPE_CHECKING

from ewe import logger
from ewe.bounded import TimedCache
from ewe.features.base import Mount
from ewe.features.declaration import Feature
from ewe.features.files import static_files
from ewe.features.pages import Pages
from ewe.gateway.scripts import closed_door, script_of
from ewe.gateway.true_names import LOOK, true_name
from ewe.http.messages import Request, Response
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ewe.config.settings import Config
    from ewe.features.base import Explanation
    from ewe.features.databases.asking import Databases
    from ewe.features.plan import Plan
    from ewe.features.sql_pages import SQLPages
    from ewe.features.xswitch import XSwitch
    from ewe.gateway.claims import Claims
    from ewe.streams.base import Stream

NAME = re.compile(r"/~([A-Za-z0-9_][A-Za-z0-9_.-]{0,31})(/|$)")
PROGRAMS = ("/cgi-bin/", "/libcgi-bin/")  # below a user's directory
MAX_HOMES = 1000
HOME_CACHE_S = 60.0  # until a user's directory is examined again


class Doubt(Exception):
    """Why a user's directory is not served; the text is one line for the error log."""


class Home:
    """One user's directory. account: the user's; root: the directory's path; real: its path without links.

    Files are served from `real` alone. `root` may lead elsewhere at any moment, since its user can exchange it.
    """

    __slots__ = ("name", "pages", "programs", "root", "sql_pages", "static")

    def __init__(self, account: pwd.struct_passwd, root: str, real: str, users: Users) -> None:
        self.name = account.pw_name
        self.root = root
        prefix = f"/~{self.name}"
        self.programs = tuple(prefix + each for each in PROGRAMS)
        claims = users.claims.for_root(real, [real + each for each in PROGRAMS])
        self.static = static_files(users.config, real, prefix, claims, account.pw_uid)
        directories = users.switch.directories if users.switch is not None else ()
        self.sql_pages: SQLPages | None = None
        if users.databases is not None:
            from ewe.features.sql_pages import SQLPages

            self.sql_pages = SQLPages(users.config, users.databases, self.static, self.name)
        self.pages = Pages(root, prefix, users.config.defaultindex, directories)


class Users:
    """Serve the directories of users."""

    def __init__(
        self, config: Config, switch: XSwitch | None, claims: Claims, databases: Databases | None = None
    ) -> None:
        """switch: runs the programs of users; None: they do not run. claims: the site's.

        databases: those that pages may ask; a user's page only the user's own.
        """
        assert config.userdir is not None
        self.switch = switch
        self.claims = claims
        self.databases = databases
        self.config = config
        self.directory = config.userdir
        self.homes: TimedCache[str, Home] = TimedCache(MAX_HOMES, HOME_CACHE_S)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer with a file of the user that the path names; None if there is no such user."""
        home = self.home(request.path)
        if home is None:
            return None
        if request.path.startswith(home.programs):  # never sent as a file
            if self.switch is None:
                raise HTTPError(403, f"{request.path}: a user's programs need X-Switch (xswitch)")
            script = script_of(home.root, f"/~{home.name}", request.path)
            return None if script is None else await self.switch.run(script, request, io, home.root)
        if self.switch is not None and (page := home.pages.find(request.path)) is not None:
            return await self.switch.run(page, request, io, home.root)
        if home.sql_pages is not None and (answer := await home.sql_pages.respond(request, io)) is not None:
            return answer
        return await home.static.respond(request, io)

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the user whose directory the path names."""
        home = self.home(request.path)
        if home is not None:
            yield f"  answer    the directory of a user, {request.path.split('/')[1]} (userdir)"
        return home is not None

    def home(self, path: str) -> Home | None:
        """Return the directory that a path leads to; None if there is none, or if it is not served."""
        match = NAME.match(path)
        if match is None:
            return None
        name = match[1]
        known = self.homes.get(name, None)
        if known is not None:
            return known
        self.homes.forget(name)
        try:
            account = pwd.getpwnam(name)
        except (KeyError, OSError):
            return None
        root = os.path.join(account.pw_dir, self.directory)
        try:
            real = self.examine(account, root)
        except Doubt as doubt:
            logger.errors.info(f"/~{name}/ is 404: {doubt}")
            return None  # the same answer as for a name without an account
        except (OSError, ValueError):  # there is no such directory
            return None
        home = self.homes[name] = Home(account, root, real, self)
        return home

    def examine(self, account: pwd.struct_passwd, root: str) -> str:
        """Return the path of a user's directory, without symbolic links.

        The directory is opened once, and every check asks the open descriptor: between two checks by name, the user
        could replace the directory by a link to "/". Raises Doubt if the directory must not be served, OSError or
        ValueError if there is none.
        """
        mine = account.pw_uid
        if mine < self.config.min_uid:
            number = f"uid {mine} is below {self.config.min_uid} (min-uid)"
            raise Doubt(f"user {account.pw_name} is the system's: {number}")
        try:
            descriptor = os.open(root, LOOK | os.O_DIRECTORY)
        except PermissionError:
            raise Doubt(closed_door(os.path.dirname(root))) from None
        try:
            about = os.fstat(descriptor)
            real = true_name(descriptor, root)
        finally:
            os.close(descriptor)
        if not os.path.samestat(os.lstat(real), about):
            raise Doubt(f"{root} was exchanged for something else while it was looked at")
        owner = about.st_uid
        link = os.lstat(root)
        if stat.S_ISLNK(link.st_mode) and link.st_uid not in (mine, 0):
            raise Doubt(f"{root} is a link of uid {link.st_uid}")
        if owner not in (mine, 0):
            raise Doubt(f"{root} belongs to uid {owner}: chown {account.pw_name} {root}")
        expected = os.path.normpath(os.path.join(os.path.realpath(account.pw_dir), self.directory))
        if owner != mine and real != expected:
            raise Doubt(
                f"{root} is a link, and the directory that it leads to is not {account.pw_name}'s own"
            )
        if not os.access(real, os.X_OK):
            raise Doubt(closed_door(root))
        return real


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield the users' directories."""
    yield Mount("/~", Users(plan.config, plan.provided("xswitch"), plan.claims, plan.provided("databases")))


FEATURE = Feature("users", settings=("userdir", "min_uid"), mounts=mounts)
