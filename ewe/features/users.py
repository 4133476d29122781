"""Users' directories: /~alice/notes.html is ~alice/public_html/notes.html (config.userdir).

Each user's directory is a document root of its own: nothing leads out of it, and what the server itself may
not read is 403. System accounts (below config.min_uid) have none.
"""

from __future__ import annotations

import os
import pwd
import re
import time
from typing import TYPE_CHECKING

from ewe.features.pages import Pages, is_there, script_of
from ewe.features.static import Static
from ewe.http import Refused, Request, Response

if TYPE_CHECKING:
    from ewe.config import Config
    from ewe.features.xswitch import XSwitch
    from ewe.streams import Stream

NAME = re.compile(r"/~([A-Za-z0-9_][A-Za-z0-9_.-]{0,31})(/|$)")
PROGRAMS = "/cgi-bin/"  # below a user's directory
MOST = 1000  # users remembered; then all are forgotten at once
BELIEVED = 60.0  # seconds


class Home:
    """One user's directory. name: `alice`; root: its path."""

    __slots__ = ("checked", "name", "pages", "root", "static")

    def __init__(self, name: str, root: str, config: Config) -> None:
        self.name = name
        self.root = root
        self.static = Static(config, root, f"/~{name}")
        self.pages = Pages(root, f"/~{name}", config.defaultindex)
        self.checked = time.monotonic()


class Users:
    """Serve the directories of users."""

    def __init__(self, config: Config, switch: XSwitch | None) -> None:
        """switch: what runs the programs of users; None: nothing does."""
        assert config.userdir is not None
        self.switch = switch
        self.config = config
        self.directory = config.userdir
        self.homes: dict[str, Home] = {}

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer with a file of the user that the path names; None if there is no such user."""
        home = self.home(request.path)
        if home is None:
            return None
        if request.path.startswith(f"/~{home.name}{PROGRAMS}"):  # never sent as a file, whatever it is
            if self.switch is None:
                raise Refused(403, f"{request.path}: a user's programs need X-Switch (xswitch)")
            script = script_of(home.root, f"/~{home.name}", request.path)
            return None if script is None else await self.switch.run(script, request, io, home.root)
        if self.switch is not None and (page := home.pages.find(request.path)) is not None:
            return await self.switch.run(page, request, io, home.root)
        return await home.static.respond(request, io)

    def home(self, path: str) -> Home | None:
        """Return the directory that a path leads to, None if there is none. Raises Refused(403)."""
        match = NAME.match(path)
        if match is None:
            return None
        name = match[1]
        known = self.homes.get(name)
        if known is not None and time.monotonic() - known.checked < BELIEVED:
            return known
        self.homes.pop(name, None)
        found = self.look_up(name)
        if found is not None:
            if len(self.homes) >= MOST:
                self.homes.clear()
            self.homes[name] = found
        return found

    def look_up(self, name: str) -> Home | None:
        """Ask the system who that is. Raises Refused(403)."""
        try:
            account = pwd.getpwnam(name)
        except (KeyError, OSError):
            return None
        if account.pw_uid < self.config.min_uid:
            raise Refused(
                403, f"user {name} is the system's: its number is below {self.config.min_uid} (min-uid)"
            )
        root = os.path.join(account.pw_dir, self.directory)
        if not is_there(root) or not os.path.isdir(root):
            return None
        return Home(name, root, self.config)
