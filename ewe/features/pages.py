"""Pages that are programs, among the files of a site that has X-Switch: PHP pages, and web applications of Java.

They lie where other pages do, not in a cgi-bin, and must never be sent as they are. Where the server of a site
without X-Switch gets its PHP from is the setting `fastcgi`.
"""

from __future__ import annotations

import os
import pwd
import time
from typing import TYPE_CHECKING

from ewe.features.gateway import Script
from ewe.features.webapp import is_application
from ewe.http import Refused

if TYPE_CHECKING:
    from ewe.features.xswitch import XSwitch
    from ewe.http import Request, Response
    from ewe.streams import Stream

EXTENSION = ".php"
INDEX = "index.php"
BELIEVED = 1.0  # seconds that a path is remembered
MOST = 1000  # paths remembered; then all are forgotten at once


def script_of(root: str, prefix: str, path: str, index: str = "index.html") -> Script | None:
    """Return what a path below a prefix leads to: its first part that is no directory, or is an application.

    A directory's index.php is meant where its name ends the path, unless there is an `index`. Whether it may run,
    and that no link leads out, is for X-Switch to say.
    """
    segments = path[len(prefix) :].split("/")[1:]
    file = root
    for count, segment in enumerate(segments, 1):
        if not segment and count == len(segments) and os.path.isfile(f"{file}/{INDEX}"):
            return None if os.path.isfile(f"{file}/{index}") else Script(f"{file}/{INDEX}", path + INDEX, "")
        if not segment or segment.startswith("."):
            return None
        file += "/" + segment
        if not os.path.isdir(file) or is_application(file):
            name = prefix + "/" + "/".join(segments[:count])
            return Script(file, name, path[len(name) :]) if is_there(file) else None
    return None


def is_there(file: str) -> bool:
    """Is there such a file? Raises Refused(403) where we may not look: then nobody can say."""
    try:
        os.lstat(file)
    except PermissionError:
        raise Refused(403, closed_door(os.path.dirname(file))) from None
    except (OSError, ValueError):
        return False
    return True


def closed_door(directory: str) -> str:
    """Return which directory, this or one above it, we may not enter, and what to do about it."""
    above = os.path.dirname(directory)
    if above != directory and not os.access(above, os.X_OK):
        return closed_door(above)
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    return f"{directory} may not be entered by the server, user {user}: chmod o+x {directory}"


class Pages:
    """The pages below one document root. prefix: what their URLs begin with. index: of a directory, without PHP."""

    def __init__(self, root: str, prefix: str, index: str) -> None:
        self.root = root
        self.prefix = prefix
        self.index = index
        self.known: dict[str, tuple[float, Script | None]] = {}

    def find(self, path: str) -> Script | None:
        """Return the page that a path leads to, None if it leads to none. Raises Refused(403, 404)."""
        if (
            EXTENSION in path
        ):  # never remembered: what was nothing a moment ago must not be sent as a file now
            return self.look(path)
        until, script = self.known.get(path, (0.0, None))
        now = time.monotonic()
        if until < now:
            script = self.look(path)
            if len(self.known) >= MOST:
                self.known.clear()
            self.known[path] = (now + BELIEVED, script)
        return script

    def look(self, path: str) -> Script | None:
        """Do what find() says."""
        script = script_of(self.root, self.prefix, path, self.index)
        if script is not None and (script.file.endswith(EXTENSION) or is_application(script.file)):
            return script
        if path.endswith(EXTENSION) and not os.path.isdir(self.root + path[len(self.prefix) :]):
            raise Refused(404, "no such page")
        return None


class SitePages:
    """Answers with the pages of the site's own document root."""

    def __init__(self, switch: XSwitch, root: str, index: str) -> None:
        self.switch = switch
        self.pages = Pages(root, "", index)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer with what a page says, None if the path leads to none. Raises Refused."""
        script = self.pages.find(request.path)
        return None if script is None else await self.switch.run(script, request, io, self.pages.root)
