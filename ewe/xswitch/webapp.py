"""Web applications of Java: directories with a WEB-INF, which answer for every URL below them.

A web server may send the application as the script and the rest as PATH_INFO, or the whole path as the script's
name. Both become the same here. suexecme identifies the application by its WEB-INF directory. The parameters of the
request tell the engine where the application is, in the file system and in URLs, and what is asked of it.
"""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote_from_bytes

from ewe.bounded import TimedCache
from ewe.config.defaults import PRIVATE_DIRECTORIES, WEB_INF

if TYPE_CHECKING:
    from ewe.xswitch.settings import Settings

REMEMBERED_SECONDS = 1.0  # a file is remembered to belong to an application, or to none, for this long
MAX_FILES = 5000  # whose application is remembered
MAX_WALK = 50  # directories above a file that may be the application's

# What Jetty can read. It leaves a request unanswered that its FastCGI connector cannot read.
FIELD = re.compile(rb"HTTP(?:_[A-Z0-9]+)+")
HOST = re.compile(rb"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
METHOD = re.compile(rb"[A-Za-z]{1,32}")
PORT = re.compile(rb"[0-9]{1,5}")
# Headers between the client and the web server only: RFC 9110 section 7.6.1.
HOP = {
    b"HTTP_CONNECTION", b"HTTP_EXPECT", b"HTTP_KEEP_ALIVE", b"HTTP_TE", b"HTTP_TRAILER",
    b"HTTP_TRANSFER_ENCODING", b"HTTP_UPGRADE",
}  # fmt: skip
IN_PATH = "/;=:@!$&'()*+,~"  # unquoted in a path, besides letters, digits and -._
IN_QUERY = IN_PATH + '%?"<>[]\\^`{|}'


class NoApplication(Exception):
    """A request that no application can answer. status: for the client; the text is for the log."""

    def __init__(self, status: int, cause: str) -> None:
        super().__init__(cause)
        self.status = status


class Application(NamedTuple):
    """An application, and the path within it that a request asks for.

    directory: of the application; without links once suexecme has identified it. context: the beginning of its
    URLs, "" or "/~alice/shop". path: the rest of the URL, percent-decoded.
    """

    directory: str
    context: str
    path: bytes

    def at(self, directory: str) -> Application:
        """Return the same application with its directory without links."""
        return self._replace(directory=directory)

    def variables(self, environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Return the parameters from which the engine makes its request."""
        own = {
            name: value
            for name, value in environment.items()
            if name not in HOP and (FIELD.fullmatch(name) or not name.startswith(b"HTTP_"))
        }
        for name in (b"CONTENT_TYPE", b"CONTENT_LENGTH"):
            own.pop(b"HTTP_" + name, None)
            if own.get(name):
                own[b"HTTP_" + name] = own[name]
        if not HOST.fullmatch(own.get(b"HTTP_HOST", b"")):
            name = own.get(b"SERVER_NAME", b"")
            own[b"HTTP_HOST"] = name if HOST.fullmatch(name) else b"localhost"
        for name in (b"REMOTE_ADDR", b"SERVER_ADDR"):
            if not is_address(own.get(name, b"")):
                own.pop(name, None)
        for name in (b"REMOTE_PORT", b"SERVER_PORT"):
            if not PORT.fullmatch(own.get(name, b"")) or int(own[name]) > 65535:
                own.pop(name, None)
        context = os.fsencode(self.context)
        return {
            **own,
            b"SERVER_PROTOCOL": b"HTTP/1.1",
            b"DOCUMENT_URI": quote_from_bytes(context + self.path, IN_PATH).encode(),
            b"QUERY_STRING": quote_from_bytes(own.get(b"QUERY_STRING", b""), IN_QUERY).encode(),
            b"XSWITCH_APPLICATION": os.fsencode(self.directory),
            b"XSWITCH_CONTEXT": context,
        }


class Applications:
    """Finds the application of a request, and remembers for a second which files belong to one."""

    def __init__(self) -> None:
        self.known: TimedCache[str, str] = TimedCache(MAX_FILES, REMEMBERED_SECONDS)

    def find(self, file: str, params: Mapping[bytes, bytes], settings: Settings) -> Application | None:
        """Return the application that a file belongs to, whether the file exists or not. Raises NoApplication."""
        directory = self.directory_of(file, settings)
        if not directory:
            return None
        method = params.get(b"REQUEST_METHOD", b"")
        if not METHOD.fullmatch(method):
            raise NoApplication(501, f"Jetty cannot read the method {method[:40]!r}")
        context, path = split(params, os.fsencode(file[len(directory) :]))
        if {".", ".."} & {*file.split("/"), *os.fsdecode(path).split("/")}:
            raise NoApplication(400, "its path has dot segments")
        names = [segment.partition(b";")[0].decode("latin-1").upper() for segment in path.split(b"/")]
        for name in names:
            if name in PRIVATE_DIRECTORIES:
                raise NoApplication(404, f"nothing in {name} is for clients")
            if name in (".", ".."):  # with a parameter, "..;x"
                raise NoApplication(400, "its path has dot segments")
        if "" in names[1:-1]:  # "//", "/;x/": Jetty finds the file, but not what web.xml says who may see it
            raise NoApplication(400, "its path has an empty segment")
        return Application(directory, context, path)

    def directory_of(self, file: str, settings: Settings) -> str:
        """Return the nearest directory with a WEB-INF, from the file itself upwards; "" if there is none."""
        return self.known.find(file, lambda file: nearest(file.rstrip("/"), settings))


def nearest(directory: str, settings: Settings) -> str:
    """Return the nearest application, from this directory upwards; "" if there is none."""
    for _ in range(MAX_WALK):
        if is_application(directory, settings):
            return directory
        if directory in ("", "/"):
            break
        directory = os.path.dirname(directory)
    return ""


def is_application(directory: str, settings: Settings) -> bool:
    """Return whether a directory, below a user's own or below a root, has a WEB-INF."""
    mine = f"/{settings.userdir.strip('/')}/"
    if mine not in directory and not any(
        directory.startswith(root.rstrip("/") + "/") for root in settings.roots
    ):
        return False
    try:
        return stat.S_ISDIR(os.lstat(f"{directory}/{WEB_INF}").st_mode)
    except (OSError, ValueError):
        return False


def split(params: Mapping[bytes, bytes], inner: bytes) -> tuple[str, bytes]:
    """Return an application's path in URLs, and the path within it. inner: what follows it in SCRIPT_FILENAME.

    Some web servers leave PATH_INFO in SCRIPT_FILENAME, others take it out. Raises NoApplication.
    """
    info = params.get(b"PATH_INFO", b"")
    url = params.get(b"SCRIPT_NAME", b"") + info
    for path in (inner + info, inner):
        if url.startswith(b"/") and url.endswith(path) and path[:1] in (b"", b"/"):
            context = os.fsdecode(url[: len(url) - len(path)])
            return context.rstrip("/"), b"/" if context.endswith("/") and not path else path
    raise NoApplication(
        500, f"SCRIPT_NAME {url!r} and SCRIPT_FILENAME do not end alike: the web server must send both"
    )


def is_address(text: bytes) -> bool:
    """Return whether a text is an IP address."""
    try:
        ipaddress.ip_address(text.decode("ascii"))
    except ValueError:
        return False
    return True
