"""Users' directories: /~alice/notes.html is ~alice/public_html/notes.html (setting userdir).

Each user's directory is a separate document root, and nothing leads out of it. Users do not trust each other, so
ewe checks more than in the site's document root:

- The directory belongs to the user or to root. It may be a symbolic link to a directory of the same user, as
  Apache's SymLinksIfOwnerMatch allows. `ln -s / ~/public_html` publishes nothing.
- A file is sent only if it belongs to that user, or if it belongs to root and all users may read it. With
  `symlinks = follow`, a link may lead out of the directory, but only to files of the same user.
- A program is never sent as a file. X-Switch runs users' programs as their owner; without X-Switch they do not run.

If a directory is not served, the answer is always 404, for every reason: different answers would show a client
which accounts exist. The error log contains the reason. System accounts (below min-uid) have no directory.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import stat
from typing import TYPE_CHECKING

from ewe import logger
from ewe.bounded import TimedCache
from ewe.config.defaults import PACKAGE_DIRECTORY, PACKAGE_SUFFIXES
from ewe.features.base import Mount
from ewe.features.declaration import Feature
from ewe.features.files import static_files
from ewe.features.pages import Pages
from ewe.features.users_settings import FAR_SCRIPTS, MIN_UID, USERDIR, USERDIR_SETTINGS
from ewe.gateway.scripts import Script, closed_directory_message, script_of
from ewe.gateway.true_names import NAME_ONLY_FLAGS, true_name
from ewe.http.messages import Request, Response
from ewe.http.status import HTTPError
from ewe.streams.descriptors import EXHAUSTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ewe.config.settings import Config
    from ewe.features.base import Explanation
    from ewe.features.databases.asking import Databases
    from ewe.features.far_scripts import FarScripts
    from ewe.features.plan import Plan
    from ewe.features.sql_pages import SQLPages
    from ewe.features.xswitch import XSwitch
    from ewe.gateway.protected_sources import ProtectedSources
    from ewe.streams.base import Stream

NAME = re.compile(r"/~([A-Za-z0-9_][A-Za-z0-9_.-]{0,31})(/|$)")
PROGRAMS = ("/cgi-bin/", "/libcgi-bin/")  # directories of programs, below a user's directory
MAX_HOMES = 1000  # users in memory
HOME_CACHE_S = 60.0  # until a user's directory is examined again
QUESTION_CACHE_S = 1.0  # until Users examines again whether scripts elsewhere are its own (Users.guards())


class NotServed(Exception):
    """A user's directory must not be served. The text is the reason, one line for the error log."""


class NotOfUser(NotServed):
    """A name leads to no user's account: to one of the system, or to one with another spelling."""


class Home:
    """One user's directory, and the handlers for its files, its pages and its pages from SQL.

    account: the user's account. root: the directory's path. real: its path without links. users: the handler of all
    users' directories, with the settings and what they share. packages: the directory of the user's packages.

    Files are served only from `real`. `root` may lead to another directory at any time, since the user can replace
    it. programs: the beginnings of the URLs of the user's programs, such as /~alice/cgi-bin/.
    """

    __slots__ = ("name", "packages", "pages", "programs", "root", "sql_pages", "static")

    def __init__(self, account: pwd.struct_passwd, root: str, real: str, users: Users) -> None:
        self.name = account.pw_name
        self.root = root
        self.packages = os.path.join(account.pw_dir, users.package_directory)
        prefix = f"/~{self.name}"
        self.programs = tuple(prefix + each for each in PROGRAMS)
        protected = users.protected.for_root(real, [real + each for each in PROGRAMS])
        self.static = static_files(users.config, real, prefix, protected, account.pw_uid)
        directories = users.switch.directories if users.switch is not None else ()
        self.sql_pages: SQLPages | None = None
        if users.databases is not None:
            from ewe.features.sql_pages import SQLPages

            self.sql_pages = SQLPages(users.config, users.databases, self.static, self.name)
        self.pages = Pages(root, prefix, users.config.defaultindex, directories)


class Users:
    """Answers with the directories of users."""

    def __init__(
        self,
        config: Config,
        switch: XSwitch | None,
        protected: ProtectedSources,
        databases: Databases | None = None,
        far_scripts: FarScripts | None = None,
    ) -> None:
        """switch: runs the programs of users; None: they do not run. protected: the protected sources of the site.

        databases: the databases for pages from SQL. A user's page may use only the user's own databases.
        far_scripts: answers for the users' scripts on other machines; None: there are none.
        """
        directory = config[USERDIR]
        assert directory is not None
        self.switch = switch
        self.protected = protected
        self.databases = databases
        self.far_scripts = far_scripts
        if far_scripts is not None:
            far_scripts.is_of_users = self.guards
        self.config = config
        self.directory = directory
        self.min_uid = config[MIN_UID]
        self.package_directory = str(switch.table.get("packages", PACKAGE_DIRECTORY)) if switch else ""
        self.homes: TimedCache[str, Home] = TimedCache(MAX_HOMES, HOME_CACHE_S)
        self.guarded: TimedCache[str, bool] = TimedCache(MAX_HOMES, QUESTION_CACHE_S)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the response for a file or a program of the user in the path; None if the user does not exist."""
        home = self.home(request.path)
        if home is None:
            return None
        if self.far_scripts is not None and (far := await self.far_scripts.run(request, io)) is not None:
            return far
        if request.path.startswith(home.programs):  # programs are never sent as files
            if self.switch is None:
                raise HTTPError(403, f"{request.path}: a user's programs need X-Switch (xswitch)")
            script = script_of(home.root, f"/~{home.name}", request.path)
            if script is None and self.package_directory:
                script = script_of_package(home, request.path)
            return None if script is None else await self.switch.run(script, request, io, home.root)
        if self.switch is not None and (page := home.pages.find(request.path)) is not None:
            return await self.switch.run(page, request, io, home.root)
        if home.sql_pages is not None and (answer := await home.sql_pages.respond(request, io)) is not None:
            return answer
        return await home.static.respond(request, io)

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the lines about the user in the path, or about the user's script on another machine."""
        home = self.home(request.path)
        if home is not None:
            if self.far_scripts is not None and (yield from self.far_scripts.explain_script(request.path)):
                return True
            yield f"  answer    the directory of a user, {request.path.split('/')[1]} (userdir)"
        return home is not None

    def guards(self, path: str) -> bool:
        """Return whether Users alone may run a path's scripts on other machines. A refusal is not logged.

        This is so for a directory that is here. Its settings may ask for a log-in, and ewe may be unable to read
        them: the home is closed, or its file system does not answer. Users then refuses the request. Without
        `userdir-settings`, scripts elsewhere do not depend on a directory that is not served.
        """
        match = NAME.match(path)
        return match is not None and self.guarded.find(match[1], self.guards_scripts_of)

    def guards_scripts_of(self, name: str) -> bool:
        """Return the result of guards() for the name of a user."""
        try:
            return self.find_home(name) is not None
        except NotServed as reason:
            return bool(self.config[USERDIR_SETTINGS]) and not isinstance(reason, NotOfUser)

    def home(self, path: str) -> Home | None:
        """Return the user's directory for a path; None if there is none, or if it must not be served."""
        match = NAME.match(path)
        if match is None:
            return None
        try:
            return self.find_home(match[1])
        except NotServed as reason:
            logger.errors.info(f"/~{match[1]}/ is 404: {reason}")
            return None  # the client gets the same answer as for an unknown account

    def find_home(self, name: str) -> Home | None:
        """Return the directory of a user; None if there is no such account, or no such directory.

        Raises NotServed if the directory must not be served, or cannot be examined.
        """
        known = self.homes.get(name, None)
        if known is not None:
            return known
        self.homes.forget(name)
        try:
            account = pwd.getpwnam(name)
            if account.pw_name != name:
                # LDAP ignores the case of names. Locations do not: /~ADA/ would avoid the guard of /~ada/.
                raise NotOfUser(f"the account is {account.pw_name}")
            root = os.path.join(account.pw_dir, self.directory)
            real = self.examine(account, root)
        except (KeyError, ValueError):  # there is no such account, or its directory has an impossible name
            return None
        except OSError as reason:
            if reason.errno in EXHAUSTED:
                raise  # the account may exist: the client gets 503, and may ask again
            if reason.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise NotServed(f"the directory of {name}: {reason.strerror}") from None
        # Each user's files have their own cache. All caches together would otherwise take gigabytes.
        if sum(each.static.used_bytes for _, each in list(self.homes.entries.values())) > self.config.cache:
            self.homes.clear()
        home = self.homes[name] = Home(account, root, real, self)
        return home

    def examine(self, account: pwd.struct_passwd, root: str) -> str:
        """Return the path of a user's directory, without symbolic links.

        The directory is opened once, and every check uses the open descriptor: between two checks by path, the user
        could replace the directory by a link to "/". Raises NotServed if the directory must not be served; OSError
        or ValueError if it does not exist, or cannot be examined.
        """
        mine = account.pw_uid
        if mine < self.min_uid:
            number = f"uid {mine} is below {self.min_uid} (min-uid)"
            raise NotOfUser(f"user {account.pw_name} is the system's: {number}")
        try:
            descriptor = os.open(root, NAME_ONLY_FLAGS | os.O_DIRECTORY)
        except PermissionError:
            raise NotServed(closed_directory_message(os.path.dirname(root))) from None
        try:
            file_status = os.fstat(descriptor)
            real = true_name(descriptor, root)
        finally:
            os.close(descriptor)
        if not os.path.samestat(os.lstat(real), file_status):
            raise NotServed(f"{root} was exchanged for something else while it was looked at")
        owner = file_status.st_uid
        link = os.lstat(root)
        if stat.S_ISLNK(link.st_mode) and link.st_uid not in (mine, 0):
            raise NotServed(f"{root} is a link of uid {link.st_uid}")
        if owner not in (mine, 0):
            raise NotServed(f"{root} belongs to uid {owner}: chown {account.pw_name} {root}")
        expected = os.path.normpath(os.path.join(os.path.realpath(account.pw_dir), self.directory))
        if owner != mine and real != expected:
            raise NotServed(
                f"{root} is a link, and the directory that it leads to is not {account.pw_name}'s own"
            )
        if not os.access(real, os.X_OK):
            raise NotServed(closed_directory_message(root))
        return real


def script_of_package(home: Home, path: str) -> Script | None:
    """Return the script that a path names in a package that does not serve yet; None if there is no such package.

    X-Switch unpacks a package at a request for a script of its user. It also divides the path.
    """
    programs = home.programs[0]
    name = path[len(programs) :].partition("/")[0] if path.startswith(programs) else ""
    if not name or "/." in path or os.path.lexists(home.root + PROGRAMS[0] + name):
        return None
    if not any(may_exist(os.path.join(home.packages, name + suffix)) for suffix in PACKAGE_SUFFIXES):
        return None
    return Script(home.root + PROGRAMS[0] + path[len(programs) :], path, "")


def may_exist(file: str) -> bool:
    """Return whether a file exists, or lies in a directory that this process may not enter."""
    try:
        os.lstat(file)
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return True


def needs(config: Config) -> Iterator[str]:
    """Yield the reason why root does not serve users' directories: users could then publish any file."""
    if config.user is None and os.geteuid() == 0:
        yield (
            "root does not serve users' directories (userdir), since it can read all files of the machine: "
            "--user www-data serves them as www-data, --user root as root"
        )


def mounts(plan: Plan) -> Iterator[Mount]:
    switch, databases = plan.provided("xswitch"), plan.provided("databases")
    far_scripts = plan.shared_objects.get(FAR_SCRIPTS)
    yield Mount("/~", Users(plan.config, switch, plan.protected, databases, far_scripts))


FEATURE = Feature("users", settings=(USERDIR, MIN_UID), mounts=mounts, needs=needs)
