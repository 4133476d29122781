"""Mapping of paths in the fields of a response, if the proxy has replaced the beginning of the request's path.

The upstream does not know that its / is the client's /app. It may send "Location: /login", or set a cookie for the
path /. Both would lead the client away from /app. A Mapping changes only these fields: a proxy cannot find all
links in a page. An application below a path should therefore know its path (SCRIPT_NAME, --root-path, a base URL),
and the proxy should then leave the path unchanged.
"""

from __future__ import annotations

import re

from ewe.http.target import percent_encode

ESCAPE = re.compile("%[0-9A-Fa-f]{2}")
ATTRIBUTE = re.compile(r"(;[ \t]*path[ \t]*=[ \t]*)([^;]*)", re.IGNORECASE)
SLASHES = re.compile(r"\A/[/\\\t]+")
# Browsers do not encode these in a path, and compare it with the path of a cookie byte by byte
NOT_ENCODED_BY_BROWSERS = frozenset("&:[]|")
ABSOLUTE = re.compile(r"(https?):(//[^/?#]*)([^?#]*)(.*)", re.IGNORECASE | re.DOTALL)


class Mapping:
    """The paths of one proxy.

    prefix: the beginning of the client's path, without a slash at its end, decoded. replacement: the beginning of
    the upstream's path, encoded; None if the path is not changed. authorities: the host[:port] of each upstream.
    """

    def __init__(self, prefix: str, replacement: str | None, authorities: tuple[str, ...]) -> None:
        self.prefix = "".join([c if c in NOT_ENCODED_BY_BROWSERS else percent_encode(c) for c in prefix])
        self.replacement = None if replacement is None else replacement.rstrip("/")
        self.authorities = frozenset("//" + each.lower() for each in authorities)

    def map_field(self, name: str, value: str, host: str) -> str:
        """Return a field's value for the client. name: in lower case. host: the host of the request."""
        if name == "set-cookie":
            return self.map_cookie(value)
        return self.map_location(value, host) if name in ("location", "content-location") else value

    def map_path(self, path: str) -> str:
        """Return the client's path for an absolute path of the upstream.

        %c3 and %C3 are equal (RFC 3986 section 6.2.2.1); `replacement` has capital letters.
        """
        if self.replacement is None:
            return path
        comparable = ESCAPE.sub(lambda match: match[0].upper(), path) + "/"
        if not comparable.startswith(self.replacement + "/"):
            return path
        return (self.prefix + path[len(self.replacement) :]) or "/"

    def map_location(self, value: str, host: str) -> str:
        """Return a URL for the client.

        A URL with the upstream's own address would bypass the proxy; it is replaced by a path. A URL with the
        request's host keeps that host, and its path is mapped. Other URLs are not changed.
        """
        if value.startswith("/") and not value.startswith("//"):
            return on_this_server(self.map_path(value))
        match = ABSOLUTE.fullmatch(value)
        if match is None:
            return value
        scheme, authority, path, rest = match.groups()
        path = self.map_path(path or "/")
        if authority.lower() == "//" + host.lower():
            return f"{scheme}:{authority}{path}{rest}"
        return on_this_server(path + rest) if authority.lower() in self.authorities else value

    def map_cookie(self, value: str) -> str:
        """Return a Set-Cookie value for the client, with its path mapped."""
        if self.replacement is None:
            return value
        return ATTRIBUTE.sub(lambda match: match[1] + self.map_path(match[2].strip()), value)


def on_this_server(path: str) -> str:
    """Return a path without a second slash at its beginning, which a client would take for the name of a server.

    For a client's target //evil.example/, an upstream may redirect to //evil.example/ on its own address, or below
    its own prefix: /base//evil.example/. Browsers take a backslash for a slash, and leave out a tab.
    """
    return SLASHES.sub("/", path)
