"""Templates: the texts with variables in `redirect`, `rewrite`, `try` and `alias`.

    $path      the request's path, percent-decoded          $host     the name in Host, without a port
    $rest      the path after the location's prefix         $scheme   http or https
    $query     the request's query, without "?"             $1 $name  a group of the location's pattern
    $$         a dollar sign

Each value is encoded for the part of the URL in which it is inserted. A group can therefore never add a header
field to a redirect, or a parameter to a query.

A group cannot choose the server of a redirect either: see URLTemplate.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ewe.config.messages import ConfigError, nearest
from ewe.gateway.cgi import split_host
from ewe.http.messages import copy_of
from ewe.http.status import HTTPError
from ewe.http.target import host_in_url, percent_encode

if TYPE_CHECKING:
    from ewe.http.messages import Request
    from ewe.streams.base import Stream

VARIABLE = re.compile(r"\$(?:(\$)|([0-9]{1,2}|[a-z_]\w*)|\{(\w+)\})?", re.IGNORECASE)
NAMES = ("path", "rest", "query", "host", "scheme")
# The values of these are parts of a URL already, and are not encoded
URL_PARTS = frozenset({"query", "host", "scheme"})
# The scheme of a URL, and its server. Browsers take https:host, https:/host and https:\\host for https://host.
# URLs of other schemes may have no server: file:///x.
SERVER = re.compile(
    r"((?:(?i:https?|ftp|wss?)|\$scheme|\$\{scheme\}):[/\\]*|[A-Za-z][A-Za-z0-9+.-]*:[/\\]{2}(?![/\\]))([^/\\?#]*)"
)
NOT_IN_QUERY = re.compile(r'[^\x21-\x7e]|["<>]')
ENDS_SERVER = re.compile(r"[/\\?#]")
# The end of a name below which a group may choose a server: .example.org, but not .org or example.org
DOMAIN = re.compile(r"\.[^.]+\.[^.]+\Z")
PORT = re.compile(r"\.*(?::[0-9]*)?\Z")  # of a server, and the dot that may end its name


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
                    query = as_query(after)
                elif name:
                    made += values[name]
            else:
                query += as_query(text)
            if name and query is not None:
                is_query = name == "query" and name in self.url_parts
                query += values[name] if is_query else encoded(values[name])
        made = re.sub("//+", "/", f"/{made}")
        if "/." in made and re.search(r"/\.\.?(?:/|\Z)", made):
            raise HTTPError(404, f"{self.text} became {made!r}, which leads out of its directory")
        return made, query.rstrip("&?") if query is not None else None

    def filled(self, values: Mapping[str, str]) -> str:
        """Return the texts unchanged, and the values percent-encoded (except host, scheme and query)."""
        made = ""
        for text, name in self.parts:
            made += text
            if name:
                is_parameter = "?" in made and name not in self.url_parts
                made += encoded(values[name]) if is_parameter else self.value_in_path(name, values)
        return made

    def value_in_path(self, name: str, values: Mapping[str, str]) -> str:
        """Return the value of a variable as it stands in the path of a URL."""
        return values[name] if name in self.url_parts else percent_encode(values[name])


class URLTemplate:
    """The template of `redirect`: a path of this server, or a whole URL, which is divided into three parts.

        https://  $1.example.org:8443  /find?word=$2      the group $1 chooses a name below example.org
        https://  www.example.org$1                       the group $1 stands behind the server: it is a path

    If a group could end the name of the server, `https://www.example.org$1` would be an open redirect: the group
    ".evil.org/" would lead to www.example.org.evil.org. Only text of the setting, or $host, ends that name.
    This text has a dot and a domain behind the group: "https://$1.org/" would lead to each server of .org.

    scheme, server, rest: the three parts. text: all of them. begins_path: the variables directly behind the server.
    is_path: the text is no URL.
    """

    def __init__(self, text: str, label: str, pattern: re.Pattern[str] | None) -> None:
        """The arguments are those of Template. Raises ConfigError, also for a URL whose text names no server."""
        self.text = text
        whole = Template(text, label, pattern)
        found = SERVER.match(text)
        if found is not None and found[1].startswith("$") and "scheme" not in whole.url_parts:
            found = None  # a group named "scheme" is a part of a path
        self.is_path = found is None and text.startswith(("/", "$"))
        scheme, server = (found[1], found[2]) if found is not None else ("", "")
        self.scheme = Template(scheme, label, pattern)
        self.server = Template(server, label, pattern)
        self.rest = Template(text[len(scheme + server) :], label, pattern)
        self.begins_path: list[str] = []
        if found is not None:
            self.split_server(label, whole.url_parts & {"host"})

    def split_server(self, label: str, whole_names: Collection[str]) -> None:
        """Take the variables behind the name of the server out of `server`.

        whole_names: the variables that are the whole name of a server. Raises ConfigError if no name is left, if a
        group chooses the domain, or if it stands for the port.
        """
        parts = self.server.parts
        while len(parts) > 1 and not parts[-1][0] and parts[-2][1] not in whole_names:
            text, name = parts[-2]
            self.begins_path.insert(0, name)
            parts[-2:] = [(text, "")]
        last_name = parts[-2][1] if len(parts) > 1 else ""
        last_text = PORT.sub("", parts[-1][0])
        has_name = last_text or last_name in whole_names
        if not has_name or last_text.endswith("@"):
            variable = (self.begins_path or [last_name])[0]
            reason = f"${variable} would choose the server" if variable else "names no server"
            raise ConfigError(f"{label} {self.text}: {reason}; a URL needs the name of one, or $host")
        if self.begins_path and parts[-1][0].endswith(":"):
            raise ConfigError(
                f"{label} {self.text}: ${self.begins_path[0]} is no port; write the port as a number"
            )
        self.check_domain(label, whole_names)

    def check_domain(self, label: str, whole_names: Collection[str]) -> None:
        """Raise ConfigError if a group within the server's name is not followed by a dot and a domain."""
        behind = ""  # the text behind the last group
        for text, name in reversed(self.server.parts):
            if name and name not in whole_names:
                if "@" not in behind and not DOMAIN.search(PORT.sub("", behind)):
                    raise ConfigError(
                        f"{label} {self.text}: ${name} would choose the server; write a domain behind it, such as"
                        " .example.org"
                    )
                return
            behind = text + ("host.example" if name else "") + behind

    def url(self, values: Mapping[str, str]) -> str:
        """Return the URL of a redirect. Raises HTTPError(400) if a group has a slash within the server's name.

        A path begins with a slash, even if a group begins it. Without the slash, a client would take the path of
        "$1" for a relative one, and would be sent from page to page.
        """
        rest = self.rest.filled(values)
        if self.is_path:
            # "//host/" would lead to another server. Browsers take the backslash of a query for a slash.
            is_local = rest.startswith("/") and not rest.startswith(("//", "/\\"))
            return rest if is_local else "/" + rest.lstrip("/\\")
        server = self.server.filled(values)
        if ENDS_SERVER.search(server):
            raise HTTPError(400, f"{self.text} became {server!r}, which is no name of a server (redirect)")
        path = "".join(self.server.value_in_path(name, values) for name in self.begins_path)
        slash = "/" if path and not path.startswith("/") else ""
        return self.scheme.filled(values) + server + slash + path + rest


def as_query(text: str) -> str:
    """Percent-encode the characters of a setting's text that no query contains, such as a space, or ö as UTF-8."""
    return NOT_IN_QUERY.sub(lambda match: percent_encode(match[0]), text)


def encoded(text: str) -> str:
    """Percent-encode a decoded text for a parameter of a query."""
    return re.sub(r"[&=+@/;?]", lambda match: f"%{ord(match[0]):02X}", percent_encode(text))


def values_of(request: Request, rest: str, found: re.Match[str] | None, io: Stream) -> dict[str, str]:
    """Return the variables of a request. rest: the path after the prefix. found: the match of the pattern."""
    values = {
        "path": request.path,
        "rest": rest,
        "query": request.query or "",
        "host": split_host(request.host)[0] or host_in_url(io.server[0]),
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
