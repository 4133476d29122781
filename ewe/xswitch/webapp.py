"""Web applications of Java: directories with a WEB-INF, which answer every URL below them.

A web server may send the application as the script and the rest as PATH_INFO, or the whole path as the script's
name. This module handles both alike. suexecme identifies the application by its WEB-INF directory. The parameters
of the request tell the engine the application's place in the file system and in URLs, and the path within it.
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

CACHE_SECONDS = 1.0  # how long X-Switch remembers the application of a file, or that it has none
MAX_PORT = 65535
MAX_FILES = 5000  # in the cache of their applications
MAX_CACHED_CHARS = 4096  # of a file's path in this cache: Linux's PATH_MAX
MAX_DIRECTORIES_ABOVE = 50  # directories above a file that may be the application's

# Syntax that Jetty can read. Jetty does not answer a request that its FastCGI connector cannot read.
HEADER_PARAMETER = re.compile(rb"HTTP(?:_[A-Z0-9]+)+")
HOST = re.compile(rb"(?:[A-Za-z0-9._-]+|\[([0-9A-Fa-f:.]+)\])(?::([0-9]{1,5}))?")
METHOD = re.compile(rb"[A-Za-z]{1,32}")
PORT = re.compile(rb"[0-9]{1,5}")
# Hop-by-hop headers, between the client and the web server only: RFC 9110 section 7.6.1.
HOP_BY_HOP = {
    b"HTTP_CONNECTION", b"HTTP_EXPECT", b"HTTP_KEEP_ALIVE", b"HTTP_TE", b"HTTP_TRAILER",
    b"HTTP_TRANSFER_ENCODING", b"HTTP_UPGRADE",
}  # fmt: skip
UNQUOTED_IN_PATH = "/;=:@!$&'()*+,~"  # unquoted in a path, besides letters, digits and -._
UNQUOTED_IN_QUERY = UNQUOTED_IN_PATH + '%?"<>[]\\^`{|}'


class NoApplication(Exception):
    """A request that no application can answer. status: for the client; the text is for the log."""

    def __init__(self, status: int, cause: str) -> None:
        super().__init__(cause)
        self.status = status


class WebApplication(NamedTuple):
    """An application, and the path within it that a request asks for.

    directory: of the application; without links once suexecme has identified it. context: the beginning of its
    URLs, "" or "/~alice/shop". path: the rest of the URL, percent-decoded.
    """

    directory: str
    context: str
    path: bytes

    def variables(self, environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Return the FastCGI parameters from which the engine builds its request.

        environment: the parameters that the web server sent. A parameter that Jetty cannot read is left out: Jetty
        would not answer the request.
        """
        variables = {
            name: value
            for name, value in environment.items()
            if name not in HOP_BY_HOP and (HEADER_PARAMETER.fullmatch(name) or not name.startswith(b"HTTP_"))
        }
        # Jetty builds a request's headers from the parameters HTTP_*. CGI has these two without that prefix
        for name in (b"CONTENT_TYPE", b"CONTENT_LENGTH"):
            variables.pop(b"HTTP_" + name, None)
            if variables.get(name):
                variables[b"HTTP_" + name] = variables[name]
        replace_unreadable(variables)
        context = os.fsencode(self.context)
        return {
            **variables,
            b"SERVER_PROTOCOL": b"HTTP/1.1",
            b"DOCUMENT_URI": quote_from_bytes(context + self.path, UNQUOTED_IN_PATH).encode(),
            b"QUERY_STRING": quote_from_bytes(
                variables.get(b"QUERY_STRING", b""), UNQUOTED_IN_QUERY
            ).encode(),
            b"XSWITCH_APPLICATION": os.fsencode(self.directory),
            b"XSWITCH_CONTEXT": context,
        }


def replace_unreadable(variables: dict[bytes, bytes]) -> None:
    """Replace a host that Jetty cannot read, and leave out such addresses and ports."""
    if not is_host(variables.get(b"HTTP_HOST", b"")):
        name = variables.get(b"SERVER_NAME", b"")
        variables[b"HTTP_HOST"] = name if is_host(name) else b"localhost"
    for name in (b"REMOTE_ADDR", b"SERVER_ADDR"):
        if not is_address(variables.get(name, b"")):
            variables.pop(name, None)
    for name in (b"REMOTE_PORT", b"SERVER_PORT"):
        if not PORT.fullmatch(variables.get(name, b"")) or int(variables[name]) > MAX_PORT:
            variables.pop(name, None)
    if variables.get(b"HTTPS", b"").lower() == b"off":  # Jetty takes any value for a secure connection
        del variables[b"HTTPS"]


class Applications:
    """Finds the application of a request, and remembers for a second the application of each file."""

    def __init__(self) -> None:
        self.directories: TimedCache[str, str] = TimedCache(MAX_FILES, CACHE_SECONDS)

    def find(self, file: str, params: Mapping[bytes, bytes], settings: Settings) -> WebApplication | None:
        """Return the application that a file belongs to, even if the file does not exist. Raises NoApplication."""
        directory = self.directory_of(file, settings)
        if not directory:
            return None
        method = params.get(b"REQUEST_METHOD", b"")
        if not METHOD.fullmatch(method):
            raise NoApplication(501, f"Jetty cannot read the method {method[:40]!r}")
        context, path = split_path(params, os.fsencode(file[len(directory) :]))
        if {".", ".."} & {*file.split("/"), *os.fsdecode(path).split("/")}:
            raise NoApplication(400, "its path has dot segments")
        # The names without parameters: WEB-INF of "/WEB-INF;x/"
        names = [segment.partition(b";")[0].decode("latin-1").upper() for segment in path.split(b"/")]
        for name in names:
            if name in PRIVATE_DIRECTORIES:
                raise NoApplication(404, f"nothing in {name} is for clients")
            if name in (".", ".."):  # with a parameter, "..;x"
                raise NoApplication(400, "its path has dot segments")
        # Between the first and the last, which are empty in "/cart/". Of "//" and "/;x/" Jetty finds the file, but
        # ignores web.xml's access rules for it. With "//" before the application, its engine would deploy it again.
        if "" in names[1:-1] or "//" in context:
            raise NoApplication(400, "its path has an empty segment")
        return WebApplication(directory, context, path)

    def directory_of(self, file: str, settings: Settings) -> str:
        """Return the nearest directory with a WEB-INF, from the file itself upwards; "" if there is none.

        A path that no file can have is not cached: clients choose it, and could fill the memory.
        """

        def nearest(file: str) -> str:
            return nearest_application(file.rstrip("/"), settings)

        return nearest(file) if len(file) > MAX_CACHED_CHARS else self.directories.find(file, nearest)


def nearest_application(directory: str, settings: Settings) -> str:
    """Return the nearest application, from this directory upwards; "" if there is none."""
    for _ in range(MAX_DIRECTORIES_ABOVE):
        if is_application(directory, settings):
            return directory
        if directory in ("", "/"):
            break
        directory = os.path.dirname(directory)
    return ""


def is_application(directory: str, settings: Settings) -> bool:
    """Return whether a directory is a web application: it has a WEB-INF, and lies where scripts may lie.

    Scripts may lie in a user's directory for scripts (`userdir`) and below the `roots`. This function only compares
    names, so that X-Switch looks for a WEB-INF nowhere else. suexecme checks the owner and the path afterwards.
    """
    user_directory = f"/{settings.userdir.strip('/')}/"
    if user_directory not in directory and not any(
        directory.startswith(root.rstrip("/") + "/") for root in settings.roots
    ):
        return False
    try:
        return stat.S_ISDIR(os.lstat(f"{directory}/{WEB_INF}").st_mode)
    except (OSError, ValueError):
        return False


def split_path(params: Mapping[bytes, bytes], inner: bytes) -> tuple[str, bytes]:
    """Return an application's path in URLs ("/~alice/shop"), and the path within it ("/cart").

    inner: the part of SCRIPT_FILENAME after the application's directory.

    Some web servers leave PATH_INFO in SCRIPT_FILENAME, others remove it. Raises NoApplication.
    """
    path_info = params.get(b"PATH_INFO", b"")
    url = params.get(b"SCRIPT_NAME", b"") + path_info
    for path in (inner + path_info, inner):  # PATH_INFO was removed from SCRIPT_FILENAME, or was left there
        if url.startswith(b"/") and url.endswith(path) and path[:1] in (b"", b"/"):
            context = os.fsdecode(url[: len(url) - len(path)])
            return context.rstrip("/"), b"/" if context.endswith("/") and not path else path
    raise NoApplication(
        500, f"SCRIPT_NAME {url!r} and SCRIPT_FILENAME do not end alike: the web server must send both"
    )


def is_host(text: bytes) -> bool:
    """Return whether a text is a host for Jetty: a name or an IPv6 address in brackets, perhaps with a port."""
    match = HOST.fullmatch(text)
    if match is None:
        return False
    address, port = match.groups()
    return (address is None or (b":" in address and is_address(address))) and (
        port is None or 0 < int(port) <= MAX_PORT
    )


def is_address(text: bytes) -> bool:
    """Return whether a text is an IP address."""
    try:
        ipaddress.ip_address(text.decode("ascii"))
    except ValueError:
        return False
    return True
