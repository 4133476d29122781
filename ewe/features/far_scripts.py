"""Scripts on other machines: X-Switch sends their requests there, so ewe looks for no file here.

A table [engines.NAME] with `address` in X-Switch's settings names another machine. The files of its scripts are on
that machine. They may be missing here, and so may the directories and accounts. The name of a file alone decides,
by the same rules as in X-Switch: the nearest entry of [directories], then the extension.

    /~alice/cgi-bin/shop/buy.rb/7 ──▶ /home/alice/public_html/cgi-bin/shop/buy.rb/7 ──▶ [directories], extensions
                                                                                              │
                                        None: other features look for a file here ◀── no ─────┴── yes ──▶ X-Switch

If the directory decides, ewe cannot know where the name of the script ends. The other X-Switch divides the path:
it does so for other web servers, too. ewe reads the file xswitch-config at its start and at a reload.

Possible failure: X-Switch has read other settings than ewe. X-Switch then looks for the file here, and answers 404.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ewe.bounded import TimedCache
from ewe.config.defaults import ENGINE_EXTENSIONS
from ewe.features.base import Mount
from ewe.features.cgi_settings import CGI_PATH
from ewe.features.declaration import Feature
from ewe.features.users_settings import FAR_SCRIPTS, MIN_UID, USERDIR
from ewe.gateway import scripts
from ewe.gateway.protected_sources import is_in
from ewe.gateway.scripts import Script, leading_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ewe.features.base import Explanation
    from ewe.features.plan import Plan
    from ewe.features.xswitch import XSwitch
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

USER = re.compile(r"/~([A-Za-z0-9_][A-Za-z0-9_.-]{0,31})/")
PROGRAMS = ("cgi-bin/", "libcgi-bin/")  # below a user's directory, and below the site
PAGE = ".php"  # the extension of programs that lie among documents
MAX_USERS = 1000  # in memory
USER_CACHE_S = 60.0  # until the account of a user is looked up again


class FarNames:
    """The names of scripts on other machines: the tables of X-Switch's settings."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        """table: of X-Switch's settings file. X-Switch itself checks it, so wrong entries are ignored here."""
        engines = {name: each for name, each in entries_of(table, "engines") if isinstance(each, dict)}
        far = {name for name, engine in engines.items() if engine.get("address")}
        # Each directory of the table, and whether its scripts are on another machine
        self.directories = {
            directory.rstrip("/"): str(name) in far for directory, name in entries_of(table, "directories")
        }
        self.extensions: set[str] = set()
        for name, engine in engines.items():
            extensions = engine.get("extensions", ENGINE_EXTENSIONS.get(name, ()))
            own = set(map(str, extensions)) if isinstance(extensions, list | tuple) else set()
            self.extensions = self.extensions | own if name in far else self.extensions - own

    def is_any_far(self) -> bool:
        """Return whether any script can be on another machine."""
        return bool(self.extensions) or any(self.directories.values())

    def far_directories(self) -> Iterator[str]:
        """Yield the directories whose scripts are on other machines."""
        return (directory for directory, is_far in self.directories.items() if is_far)

    def of_directory(self, file: str) -> bool | None:
        """Return whether the nearest directory in the table is another machine's; None if the table has none."""
        directory = os.path.dirname(file)
        while directory.strip("/"):  # "", "/" and "//" have no directory above them
            if (is_far := self.directories.get(directory)) is not None:
                return is_far
            directory = os.path.dirname(directory)
        return None

    def find(self, root: str, prefix: str, path: str, are_programs: bool) -> Script | None:
        """Return the script of another machine that a path names; None if its file has to be here.

        root, prefix: see scripts.leading_parts(). are_programs: all files of the path's directory are programs.
        Without that only pages have an extension that counts.
        """
        if "/." in path:
            return None  # no URL leads to a hidden file
        file = root + path[len(prefix) :]
        if self.of_directory(file):
            # All files there are scripts of the other machine. Its X-Switch finds the end of the script's name.
            is_directory = path.endswith("/") and os.path.isdir(file)  # it may have an index here
            return None if is_directory else Script(file, path, "")
        for part in leading_parts(root, prefix, path):
            extension = os.path.splitext(part.file)[1]
            if extension in self.extensions and (are_programs or extension == PAGE):
                # The extension decides only if no entry of [directories] does.
                return part if self.of_directory(part.file) is None else None
        return None


def entries_of(table: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a table within a table; none if it is no table."""
    inner = table.get(name)
    yield from inner.items() if isinstance(inner, dict) else ()


class FarScripts:
    """Answers with the scripts of one site that are on other machines."""

    def __init__(self, plan: Plan, switch: XSwitch, names: FarNames) -> None:
        config = plan.config
        self.switch = switch
        self.names = names
        self.root = plan.static.root
        self.programs = os.path.realpath(config[CGI_PATH])
        self.userdir = (config[USERDIR] or "").strip("/")
        self.min_uid = config[MIN_UID]
        self.user_roots: TimedCache[str, str] = TimedCache(MAX_USERS, USER_CACHE_S)
        # This function returns whether the directory of a path's user is here. Users (ewe.features.users) sets it,
        # and calls run() for such a path: the directory's settings may ask for a log-in (ewe.features.homes).
        self.is_of_users: Callable[[str], bool] = lambda path: False

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return X-Switch's response; None if the file has to be here, or if Users answers. Raises HTTPError."""
        return None if self.is_of_users(request.path) else await self.run(request, io)

    async def run(self, request: Request, io: Stream) -> Response | None:
        """Return X-Switch's response; None if the file has to be here. Raises HTTPError."""
        script, root = self.find(request.path)
        return None if script is None else await self.switch.run(script, request, io, root)

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the lines about the script on another machine."""
        if self.is_of_users(request.path):
            return False
        return (yield from self.explain_script(request.path))

    def explain_script(self, path: str) -> Explanation:
        """Yield the lines about the script that a path names, also if Users answers for the path."""
        script, _ = self.find(path)
        if script is not None:
            yield from scripts.lines_about_script(script, "X-Switch: engines on another machine")
        return script is not None

    def find(self, path: str) -> tuple[Script | None, str]:
        """Return the script that a path names, and the document root that it lies in."""
        user = USER.match(path) if self.userdir else None
        if user is not None:
            root = self.user_roots.find(user[1], self.root_of_user)
            are_programs = path.startswith(PROGRAMS, user.end())
            return self.names.find(root, path[: user.end() - 1], path, are_programs) if root else None, root
        if path.startswith("/cgi-bin/"):
            return self.names.find(self.programs, "/cgi-bin", path, are_programs=True), self.root
        return self.names.find(self.root, "", path, are_programs=False), self.root

    def root_of_user(self, name: str) -> str:
        """Return the path of a user's directory, which may be on the other machine alone; "" if none is possible.

        A system account is treated as an unknown one: different answers would show which accounts exist.
        An account that is not here needs a line for its directory in [directories], or one for all homes.
        """
        try:
            account = pwd.getpwnam(name)
            is_user = account.pw_name == name and account.pw_uid >= self.min_uid  # as in ewe.features.users
        except (KeyError, OSError):
            is_user = False
        if not is_user:
            end = f"/{name}/{self.userdir}"
            directories = list(self.names.far_directories())
            for directory in directories:
                home, separator, _ = f"{directory}/".partition(f"{end}/")
                if separator:
                    return home + end
            homes = (each for each in directories if self.is_directory_of_homes(each))
            return next((directory + end for directory in homes), "")
        return os.path.join(account.pw_dir, self.userdir)

    def is_directory_of_homes(self, directory: str) -> bool:
        """Return whether a directory may hold homes: it belongs to no user and is no part of this site."""
        is_of_site = is_in(directory, self.root) or is_in(directory, self.programs)
        return f"/{self.userdir}/" not in f"{directory}/" and not is_of_site


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield the mount of the scripts on other machines, if X-Switch's settings name any."""
    switch: XSwitch | None = plan.provided("xswitch")
    if switch is not None and (names := FarNames(switch.table)).is_any_far():
        scripts_elsewhere = FarScripts(plan, switch, names)
        yield Mount("/", plan.shared(FAR_SCRIPTS, lambda: scripts_elsewhere))


FEATURE = Feature("far-scripts", mounts=mounts)
