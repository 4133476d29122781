"""The tables [[site]] and [[site.location]] of a settings file: their keys, and what each can be.

    [[site]]                            SiteTable: names, listen, settings of its scope, STEPS
    names = ["example.org"]
    documentroot = "/srv/example"
    [[site.location]]                   LocationTable: what it matches, settings of its scope, STEPS, where it leads
    prefix = "/blog/"
    try = ["$path", "$path/", "/index.php"]

ewe.sites checks what only a look at a file, a program or a certificate can tell. The classes that take the values
of STEPS check them. Each error names the file and the line of the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ewe.config.feature_table import GATEWAYS, STEPS
from ewe.config.messages import ConfigError, nearest, quoted
from ewe.config.patterns import is_explosive
from ewe.config.setting import Setting
from ewe.config.setting_types import FILE_NAMES, SIZE, Kind, parse_address

Given = tuple[str, object, str, str]  # as in sources.py: key, raw value, how an error begins, origin


Settings = Mapping[str, Setting[Any]]

MATCHES = ("prefix", "path", "pattern")
REDIRECTS = (301, 302, 303, 307, 308)
NAME = re.compile(r"(?:\*\.)?[0-9A-Za-z_-]+(?:\.[0-9A-Za-z_-]+)*|\[[0-9A-Fa-f:.]+\]")


class Table(dict[str, Any]):
    """A table of a settings file. place: "ewe.toml line 12", of its header; lines: of its keys."""

    def __init__(self, values: Mapping[str, Any], place: str, lines: Mapping[str, str] | None = None) -> None:
        super().__init__(values)
        self.place = place
        self.lines = lines or {}

    def at(self, key: str) -> str:
        """Return the place of a key, or of the table if the key's line is not known."""
        return self.lines.get(key, self.place)


@dataclass
class LocationTable:
    """One [[site.location]]: what it matches, and what its keys say. place: of its header."""

    place: str
    places: dict[str, str]  # of its keys
    kind: str  # prefix, path or pattern
    what: str
    values: dict[str, Any]  # by key, read: see READERS
    steps: dict[str, Any]  # by key, as they stand in the file
    given: list[Given]  # settings that a location may have

    def at(self, key: str) -> str:
        """Return how an error of a key begins: `ewe.toml line 12: alias =`."""
        return f"{self.places.get(key, self.place)}: {key} ="

    def __str__(self) -> str:
        return f"{self.kind} = {quoted(self.what)}"


@dataclass
class SiteTable:
    """One [[site]]."""

    place: str
    places: dict[str, str]
    names: tuple[str, ...] = ()
    listen: tuple[str, ...] = ()
    steps: dict[str, Any] = field(default_factory=dict)
    given: list[Given] = field(default_factory=list)
    locations: list[LocationTable] = field(default_factory=list)

    def __str__(self) -> str:
        return f"site {', '.join(self.names) or 'of every name'}"


# Kinds of values


def _names(raw: object) -> tuple[str, ...]:
    items = (raw,) if isinstance(raw, str) else raw
    if not isinstance(items, list | tuple) or not all(
        isinstance(item, str) and NAME.fullmatch(item) for item in items
    ):
        raise ValueError(raw)
    return tuple(item.lower() for item in items)


def _listen(raw: object) -> tuple[str, ...]:
    items = (raw,) if isinstance(raw, str) else raw
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise ValueError(raw)
    for item in items:
        if parse_address(item)[0] != "tcp":
            raise ValueError(raw)
    return tuple(items)


def _local_path(raw: object) -> str:
    if not isinstance(raw, str) or not raw.startswith("/") or re.search(r"[\x00-\x1f\x7f]", raw):
        raise ValueError(raw)
    return raw


def _exact_path(raw: object) -> str:
    path = _local_path(raw)
    if "//" in path or re.search(r"/\.\.?(/|\Z)", path):
        raise ValueError(raw)
    if re.search("%[0-9A-Fa-f]{2}", path):  # it would cover nothing, and guard nothing
        raise ValueError("not a decoded path: write a space for %20")
    return path


def _pattern(raw: object) -> str:
    if not isinstance(raw, str) or not raw:
        raise ValueError(raw)
    try:
        re.compile(raw)
        explosive = is_explosive(raw)
    except (re.error, OverflowError, RecursionError) as reason:
        raise ValueError(f"not a regular expression: {reason}") from None
    if explosive:
        raise ValueError(
            "not a safe one, since a path could stop the server: it repeats what can match one text in two ways, as"
            " (a+)+ and (.*/)* do, or has a fourth .*; write [^/] for . or leave out one of the repetitions"
        )
    return raw


def _directory(raw: object) -> str:
    if not isinstance(raw, str) or not raw or re.search(r"[\x00-\x1f\x7f]", raw):
        raise ValueError(raw)
    return raw


def _extensions(raw: object) -> tuple[str, ...]:
    items = (raw,) if isinstance(raw, str) else raw
    if not isinstance(items, list | tuple) or not items:
        raise ValueError(raw)
    if not all(isinstance(item, str) and re.fullmatch(r"\.[\w-]+", item) for item in items):
        raise ValueError(raw)
    return tuple(items)


def _try(raw: object) -> tuple[str | int, ...]:
    if not isinstance(raw, list | tuple) or not raw:
        raise ValueError(raw)
    *paths, last = raw
    for item in paths if type(last) is int else raw:
        if not isinstance(item, str) or not re.match(r"/|\$", item) or re.search(r"[\x00-\x1f\x7f]", item):
            raise ValueError(raw)
    if type(last) is int and not 400 <= last <= 599:
        raise ValueError(raw)
    return tuple(raw)


def _redirect(raw: object) -> str:
    if not isinstance(raw, str) or not re.fullmatch(r"(?:/|\$|[A-Za-z][A-Za-z0-9+.-]*:)[\x21-\x7e]*", raw):
        raise ValueError(raw)
    return raw


def _rewrite(raw: object) -> str:
    if not isinstance(raw, str) or not re.match(r"/|\$", raw) or re.search(r"[\x00-\x1f\x7f#]", raw):
        raise ValueError(raw)
    return raw


def _status(raw: object) -> int:
    if type(raw) is not int or not 200 <= raw <= 599:
        raise ValueError(raw)
    return raw


def parse_gateway(text: str) -> tuple[str, str]:
    """Return the kind of a gateway and its address or application: ("fastcgi", "unix:/run/php.sock").

    Raises ValueError.

    >>> parse_gateway("fastcgi://127.0.0.1:9000")
    ('fastcgi', '127.0.0.1:9000')
    >>> parse_gateway("wsgi:wiki:app")
    ('wsgi', 'wiki:app')
    """
    kind, colon, rest = text.partition(":")
    if kind not in GATEWAYS or bool(colon) == (kind in ("cgi", "xswitch", "libcgi")):
        raise ValueError(text)
    rest = rest.removeprefix("//") if kind not in ("http", "https") else rest
    if kind in ("fastcgi", "scgi", "uwsgi"):
        if parse_address(rest)[0] == "fd":
            raise ValueError(text)
    elif kind in ("wsgi", "asgi"):
        if re.fullmatch(r"\w+(?:\.\w+)*(?::\w+(?:\.\w+)*(?:\(\))?)?", rest) is None:
            raise ValueError(text)
    elif colon and not rest:
        raise ValueError(text)
    return kind, rest


def _gateway(raw: object) -> tuple[str, ...]:
    items = (raw,) if isinstance(raw, str) else raw
    if not isinstance(items, list | tuple) or not items or not all(isinstance(item, str) for item in items):
        raise ValueError(raw)
    kinds = {parse_gateway(item)[0] for item in items}
    if len(kinds) > 1 or (len(items) > 1 and not kinds & {"fastcgi", "scgi", "uwsgi", "http", "https"}):
        raise ValueError(raw)
    return tuple(items)


def _webdav(raw: object) -> dict[str, Any]:
    if raw is True:
        raw = {}
    if not isinstance(raw, Mapping) or not raw.keys() <= {"write", "max-size"}:
        raise ValueError(raw)
    if not isinstance(raw.get("write", True), bool):
        raise ValueError(raw)
    size = {"max-size": SIZE.read(raw["max-size"])} if "max-size" in raw else {}
    return {"write": raw.get("write", True), **size}


NAMES = Kind("NAME", 'host names: ["example.org", "*.example.org"]', _names)
LISTEN = Kind("ADDRESS", 'addresses of the server: ["127.0.0.2:80"]', _listen)
MATCH: dict[str, Kind[str]] = {
    "prefix": Kind("PATH", "the beginning of a path, such as /blog/", _exact_path),
    "path": Kind("PATH", "a whole path, such as /robots.txt", _exact_path),
    "pattern": Kind(
        "PATTERN", "a regular expression of Python for the path, such as ^/user/(\\d+)$", _pattern
    ),
}
# The keys of a location besides MATCH, STEPS and settings
READERS: dict[str, tuple[Kind[Any], str]] = {
    "status": (Kind("STATUS", "a status from 200 to 599", _status), "answer with this status and its page; with"
               " redirect: the redirect's status"),
    "redirect": (Kind("URL", "a URL or a path that begins with /", _redirect), "send the client there: 302, unless"
                 " status says otherwise"),
    "rewrite": (Kind("PATH", "a path that begins with /, with a query or without", _rewrite), "answer as if the"
                " client had asked for this path"),
    "try": (Kind("PATHS", 'a list of paths, such as ["$path", "$path/", "/index.php"]; the last may be a status',
                 _try), "the first of these files and directories that exists answers; the last is taken unseen"),
    "root": (Kind("DIRECTORY", "a directory", _directory), "the files are below this directory instead of"
             " documentroot: its name and then the whole path"),
    "alias": (Kind("PATH", "a directory, or a file", _directory), "this directory or this file stands for the"
              " prefix"),
    "index": (FILE_NAMES, "the files that answer for a directory: the first that exists"),
    "programs": (Kind("EXTENSIONS", 'extensions of files, such as [".cgi"]', _extensions), "files with these"
                 " extensions are programs, which the gateway runs; by default cgi"),
    "gateway": (Kind("GATEWAY", "cgi, xswitch, libcgi, fastcgi:ADDRESS, scgi:ADDRESS, uwsgi:ADDRESS,"
                     " wsgi:MODULE:APP, asgi:MODULE:APP or http://ADDRESS", _gateway), "what answers everything"
                " below the location, or its programs"),
    "webdav": (Kind("TABLE", 'true, or { write = false, max-size = "100m" }', _webdav), "clients may list, read and"
               " write the files below the location (WebDAV, class 1): the site's, or those of root or alias"),
}  # fmt: skip
# Keys of which a location has one at most, each with what may stand beside it
LEADS = {
    "redirect": {"status"},
    "status": {"redirect"},
    "rewrite": set[str](),
    "alias": {"index", "programs", "gateway", "try", "webdav"},
    "root": {"index", "programs", "gateway", "try", "webdav"},
    "webdav": {"alias", "root", "index"},
}


def read_sites(raw: object, origin: str, settings: Settings) -> tuple[SiteTable, ...]:
    """Return the tables [[site]] of a settings file. origin: of the key `site`. settings: of ewe, by key.

    Raises ConfigError.
    """
    if not isinstance(raw, list | tuple) or not all(isinstance(each, Mapping) for each in raw):
        raise ConfigError(f"{origin}: site must be tables: write [[site]]")
    found = tuple(read_site(as_table(each, origin), settings) for each in raw)
    owners: dict[tuple[str, tuple[str, ...]], str] = {}
    for site in found:
        for name in site.names or ("",):
            other = owners.setdefault((name, tuple(sorted(site.listen))), site.place)
            if other != site.place:
                what = f'name "{name}"' if name else "no names"
                raise ConfigError(
                    f"{site.place}: the site of {other} has {what}, too: one could never answer"
                )
    return found


def as_toml(sites: Iterable[SiteTable]) -> Iterator[str]:
    """Yield the lines of a file that has these tables."""
    for site in sites:
        yield f"[[site]]  # {site.place}"
        values: dict[str, Any] = {"names": site.names, "listen": site.listen}
        values = {key: value for key, value in values.items() if value}
        values |= {key: raw for key, raw, *_ in site.given}
        values |= site.steps
        yield from (f"{key} = {written(value)}" for key, value in values.items())
        for location in site.locations:
            yield f"[[site.location]]  # {location.place}"
            given = {key: raw for key, raw, *_ in location.given}
            own = {location.kind: location.what, **location.values, **given, **location.steps}
            yield from (f"{key} = {written(value)}" for key, value in own.items())


def written(value: object) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{quoted(str(key))} = {written(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    return quoted(value)


def as_table(raw: Mapping[str, Any], origin: str) -> Table:
    """Return a mapping as a Table; one that did not come from a file gets `origin` as its place."""
    return raw if isinstance(raw, Table) else Table(raw, origin)


def read_site(table: Table, settings: Settings) -> SiteTable:
    """Return one [[site]]. Raises ConfigError."""
    allowed = {key for key, setting in settings.items() if setting.scope != "server"}
    site = SiteTable(table.place, dict(table.lines))
    for key, raw in table.items():
        place = table.at(key)
        if key == "names":
            site.names = NAMES.read_at(f"{place}: {key} =", raw, with_reason=True)
        elif key == "listen":
            site.listen = LISTEN.read_at(f"{place}: {key} =", raw, with_reason=True)
        elif key in STEPS:
            site.steps[key] = raw
        elif key == "location":
            if not isinstance(raw, list) or not all(isinstance(each, Mapping) for each in raw):
                raise ConfigError(f"{place}: location must be tables: write [[site.location]]")
            site.locations = [read_location(as_table(each, place), settings) for each in raw]
        elif key in allowed:
            settings[key].read(raw, f"{place}: {key} =")
            site.given.append((key, raw, f"{place}: {key} =", place))
        elif key in settings:
            raise ConfigError(f"{place}: {key} is a setting of the whole server: set it above [[site]]")
        else:
            near = nearest(key, ("names", "listen", "location", *STEPS, *allowed))
            raise ConfigError(f'{place}: unknown key "{key}" in [[site]]{near}')
    check_once(site.given, settings)
    check_reached(site.locations)
    return site


def read_location(table: Table, settings: Settings) -> LocationTable:
    """Return one [[site.location]]. Raises ConfigError."""
    matches = [key for key in MATCHES if key in table]
    if len(matches) != 1:
        have = f"not {' and '.join(matches)}" if matches else "and this one has none"
        raise ConfigError(f"{table.place}: a location has one of prefix, path and pattern, {have}")
    kind = matches[0]
    what = MATCH[kind].read_at(f"{table.at(kind)}: {kind} =", table[kind], with_reason=True)
    location = LocationTable(table.place, dict(table.lines), kind, what, {}, {}, [])
    allowed = {key for key, setting in settings.items() if setting.scope == "location"}
    for key, raw in table.items():
        place = table.at(key)
        if key == kind:
            continue
        if key in READERS:
            location.values[key] = READERS[key][0].read_at(f"{place}: {key} =", raw, with_reason=True)
        elif key in STEPS:
            location.steps[key] = raw
        elif key in allowed:
            settings[key].read(raw, f"{place}: {key} =")
            location.given.append((key, raw, f"{place}: {key} =", place))
        elif key in settings:
            raise ConfigError(f"{place}: {key} is no setting of a location: set it in [[site]] or above")
        else:
            near = nearest(key, (*MATCHES, *READERS, *STEPS, *allowed))
            raise ConfigError(f'{place}: unknown key "{key}" in [[site.location]]{near}')
    check_once(location.given, settings)
    check_location(location)
    return location


WITHOUT_FILES = frozenset(
    {"wsgi", "asgi", "http", "https"}
)  # gateways to programs that know no document root


def check_once(given: Iterable[Given], settings: Settings) -> None:
    """Raise ConfigError for two names of one setting."""
    names: dict[str, str] = {}
    for key, _, _, origin in given:
        other = names.setdefault(settings[key].name, key)
        if other != key:
            raise ConfigError(f'{origin}: "{key}" and "{other}" are one setting: keep one')


def check_location(location: LocationTable) -> None:
    """Raise ConfigError for keys that contradict each other."""
    keys = [key for key in READERS if key in location.values]
    for lead, beside in LEADS.items():
        if lead in keys and (other := next((key for key in keys if key != lead and key not in beside), "")):
            raise ConfigError(f"{location.at(other)} and {lead} lead to different places: keep one")
    values = location.values
    if "redirect" in values and values.get("status", 302) not in REDIRECTS:
        raise ConfigError(f"{location.at('status')} {values['status']}: expected {in_words(REDIRECTS)}")
    if values.get("status") in REDIRECTS and "redirect" not in values:
        raise ConfigError(f"{location.at('status')} {values['status']} needs redirect, which says where to")
    if "webdav" in values and location.kind != "prefix":
        raise ConfigError(f"{location.at('webdav')} answers below a prefix, not for a {location.kind}")
    if "gateway" not in values:
        return
    kind = parse_gateway(values["gateway"][0])[0]
    files = [key for key in ("root", "alias", "programs", "index") if key in values]
    if kind in ("wsgi", "asgi", "http", "https") and files:
        raise ConfigError(f"{location.at(files[0])} says which files answer, and gateway = {kind} has none")
    if kind in ("wsgi", "asgi") and location.kind != "prefix":
        raise ConfigError(
            f"{location.at('gateway')} {kind} answers below a prefix, not for a {location.kind}"
        )


def in_words(numbers: Iterable[int]) -> str:
    """Return `301, 302 or 307`."""
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}"


def check_reached(locations: Iterable[LocationTable]) -> None:
    """Raise ConfigError for a location that no request can reach, because an earlier one takes all of its paths."""
    before: list[LocationTable] = []
    for each in locations:
        if each.kind != "pattern":
            for earlier in before:
                same = earlier.kind == each.kind and earlier.what.rstrip("/") == each.what.rstrip("/")
                if same or (earlier.kind == "prefix" and is_below(each.what, earlier.what)):
                    raise ConfigError(
                        f"{each.place}: {each} is never reached: {earlier} ({earlier.place}) takes all of its"
                        " paths, and the first that matches answers: put this one above it"
                    )
            before.append(each)


def passes_all_on(locations: Iterable[LocationTable]) -> bool:
    """Return whether no location uses the site's document root, and one of them takes every path."""
    takes_all = False
    for each in locations:
        kind, colon, _ = (*each.values.get("gateway", ()), "")[0].partition(":")
        to_others = bool(colon) and kind in WITHOUT_FILES and not each.values.keys() & {"programs", "try"}
        if not to_others and not each.values.keys() & {"redirect", "status", "rewrite", "alias", "root"}:
            return False
        takes_all = takes_all or (each.kind == "prefix" and each.what == "/")
    return takes_all


def is_below(path: str, prefix: str) -> bool:
    """Return whether a prefix covers a path, at whole segments: /blog and /blog/ cover /blog and /blog/x."""
    prefix = prefix.rstrip("/")
    return path == prefix or path.startswith(prefix + "/")
