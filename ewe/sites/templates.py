"""Templates: the texts with variables in `redirect`, `rewrite`, `try` and `alias`.

    $path      the request's path, percent-decoded          $host     the name in Host, without a port
    $rest      the path after the location's prefix         $scheme   http or https
    $query     the request's query, without "?"             $1 $name  a group of the location's pattern
    $$         a dollar sign

Each value is encoded for the part of the URL in which it is inserted. A group can therefore never add a header
field to a redirect, or a parameter to a query.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ewe.config.messages import ConfigError, nearest
from ewe.gateway.cgi import split_host
from ewe.http.messages import copy_of
from ewe.http.status import HTTPError
from ewe.http.target import percent_encode

if TYPE_CHECKING:
    from ewe.http.messages import Request
    from ewe.streams.base import Stream

VARIABLE = re.compile(r"\$(?:(\$)|([0-9]{1,2}|[a-z_]\w*)|\{(\w+)\})?", re.IGNORECASE)
NAMES = ("path", "rest", "query", "host", "scheme")
# The values of these are parts of a URL already, and are not encoded
URL_PARTS = frozenset({"query", "host", "scheme"})


class Template:
    """A text with variables. Raises ConfigError for a variable that the location does not have."""

    def __init__(self, text: str, label: str, pattern: re.Pattern[str] | None) -> None:
        """label: the beginning of error messages. pattern: the location's pattern; its groups are variables."""
        self.text = text
        self.parts: list[tuple[str, str]] = []  # (text, name of the variable after it or "")
        groups = {str(number) for number in range(1, (pattern.groups if pattern else 0) + 1)}
        group_names = pattern.groupindex if pattern else {}
        known = {*NAMES, *groups, *group_names}
        # A group with the name of a variable takes its place. It is a part of a path, and is encoded.
        self.url_parts = URL_PARTS.difference(group_names)
        position = 0
        before = ""
        for match in VARIABLE.finditer(text):
            before += text[position : match.start()]
            position = match.end()
            name = match[2] or match[3] or ""
            if match[1]:  # $$
                before += "$"
            elif name in known:
                self.parts.append((before, name))
                before = ""
            elif name.isdigit():
                has = f"has {len(groups)}" if pattern else "has no pattern"
                raise ConfigError(f"{label} {text}: ${name} is a group, and this location {has}")
            else:
                near = nearest(name, known) or f": there are ${', $'.join(NAMES)}; $$ is a dollar sign"
                raise ConfigError(f"{label} {text}: unknown variable ${name}{near}")
        self.parts.append((before + text[position:], ""))
        self.constant = len(self.parts) == 1

    def path(self, values: Mapping[str, str]) -> tuple[str, str | None]:
        """Return a decoded path and a query; None if the template has no query. Raises HTTPError(404) for "..".

        Without this check, a group of a pattern could lead to a file above the directory. The path always begins
        with a slash, even if the template begins with a group, since locations cover only such paths.
        """
        made = ""
        query: str | None = None
        for text, name in self.parts:
            if query is None:
                before, mark, after = text.partition("?")
                made += before
                if mark:
                    query = after
                elif name:
                    made += values[name]
            else:
                query += text
            if name and query is not None:
                is_query = name == "query" and name in self.url_parts
                query += values[name] if is_query else encoded(values[name])
        made = re.sub("//+", "/", f"/{made}")
        if "/." in made and re.search(r"/\.\.?(?:/|\Z)", made):
            raise HTTPError(404, f"{self.text} became {made!r}, which leads out of its directory")
        return made, query.rstrip("&?") if query is not None else None

    def url(self, values: Mapping[str, str]) -> str:
        """Return a URL: the texts unchanged, the values percent-encoded (except host, scheme and query).

        A path begins with a slash, even if the template begins with a group. Without it, a client would take the
        path for a relative one, and would be sent from page to page.
        """
        made = ""
        for text, name in self.parts:
            made += text
            if name in self.url_parts:
                made += values[name]
            elif name and "?" in made:
                made += encoded(values[name])
            elif name:
                made += percent_encode(values[name])
        before, name = self.parts[0]
        is_whole = before or name in self.url_parts - {"query"} or made.startswith("/")
        # "//host/" would lead to another server. Browsers take the backslash of a query for a slash.
        if not is_whole or made.startswith(("//", "/\\")):
            made = "/" + made.lstrip("/\\")
        return made


def encoded(text: str) -> str:
    """Percent-encode a decoded text for a parameter of a query."""
    return re.sub(r"[&=+@/;?]", lambda match: f"%{ord(match[0]):02X}", percent_encode(text))


def values_of(request: Request, rest: str, found: re.Match[str] | None, io: Stream) -> dict[str, str]:
    """Return the variables of a request. rest: the path after the prefix. found: the match of the pattern."""
    values = {
        "path": request.path,
        "rest": rest,
        "query": request.query or "",
        "host": split_host(request.host)[0] or io.server[0],
        "scheme": io.scheme,
    }
    if found is not None:
        values |= {str(number): text or "" for number, text in enumerate(found.groups(), 1)}
        values |= {name: text or "" for name, text in found.groupdict().items()}
    return values


def with_path(request: Request, path: str, query: str | None) -> Request:
    """Return a copy of a request, with the same body, for another path. query: None keeps the request's query.

    `target` is not changed, since REQUEST_URI is the target that the client has sent.
    """
    other = copy_of(request)
    other.path = path
    if query is not None:
        other.query = query or None
    return other
