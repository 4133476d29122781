"""The tables [[site]] and [[site.location]] of a settings file: their keys, and the values of each.

    [[site]]                            SiteTable: names, listen, settings of its scope, STEPS
    names = ["example.org"]
    documentroot = "/srv/example"
    [[site.location]]                   LocationTable: what it matches, settings of its scope, STEPS, where it leads
    prefix = "/blog/"
    try = ["$path", "$path/", "/index.php"]

ewe.sites checks the values that name a file, a program or a certificate. A feature declares the kind of its
key in STEPS, and reads it when a site is built. Each error names the file and the line of the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ewe.config.feature_table import ANSWERS, GATEWAYS, STEPS, feature
from ewe.config.messages import ConfigError, Reason, quoted, unknown_key
from ewe.config.patterns import is_explosive
from ewe.config.setting import Key, Setting, SourcedValue
from ewe.config.setting_types import FILE_NAMES, Kind, list_of, matching, parse_address

Settings = Mapping[str, Setting[Any]]

REDIRECTS = (301, 302, 303, 307, 308)


class SourcedTable(dict[str, Any]):
    """A table of a settings file. origin: "ewe.toml line 12", of its header.

    lines: the same for each key; None: not known, so that origin_of() returns the origin.
    """

    def __init__(
        self, values: Mapping[str, Any], origin: str, lines: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(values)
        self.origin = origin
        self.lines = lines or {}

    def origin_of(self, key: str) -> str:
        """Return the origin of a key, or of the table if the key's line is not known."""
        return self.lines.get(key, self.origin)


@dataclass
class TableWithSettings:
    """A [[site]] or a [[site.location]]. origin: of its header; origins: of its keys, as far as they are known."""

    origin: str
    origins: Mapping[str, str]
    values: dict[str, Any] = field(default_factory=dict)  # of SITE, or LOCATION, read
    steps: dict[str, Any] = field(default_factory=dict)  # of STEPS, as they stand in the file
    own_settings: list[SourcedValue] = field(default_factory=list)  # the settings that this table sets

    def origin_of(self, key: str) -> str:
        """Return the origin of a key, or of the table if the key's line is not known."""
        return self.origins.get(key, self.origin)

    def label_of(self, key: str) -> str:
        """Return how an error of a key begins: `ewe.toml line 12: alias =`."""
        return f"{self.origin_of(key)}: {key} ="


@dataclass
class LocationTable(TableWithSettings):
    """One [[site.location]]: the paths that it matches, and the values of its keys."""

    match_key: str = ""  # prefix, path or pattern
    match_value: str = ""  # its value

    def __str__(self) -> str:
        """Return the key that gives the paths, for messages: prefix = "/app"."""
        return f"{self.match_key} = {quoted(self.match_value)}"


@dataclass
class SiteTable(TableWithSettings):
    """One [[site]]."""

    locations: list[LocationTable] = field(default_factory=list)

    @property
    def names(self) -> tuple[str, ...]:
        """The names in Host that the site answers for."""
        names: tuple[str, ...] = self.values.get("names", ())
        return names

    @property
    def listen(self) -> tuple[str, ...]:
        """The server's addresses at which the site answers."""
        listen: tuple[str, ...] = self.values.get("listen", ())
        return listen

    def __str__(self) -> str:
        """Return the names of the site, for messages."""
        return f"site {', '.join(self.names) or 'of every name'}"


# Kinds of values


def _host_name(raw: object) -> str:
    """Return the name of a host in lower case. Raises ValueError."""
    return HOST_NAME.read(raw).lower()


def _tcp_address(raw: object) -> str:
    """Return HOST:PORT. Raises ValueError, also for the addresses of other kinds."""
    if not isinstance(raw, str) or parse_address(raw).kind != "tcp":
        raise ValueError(raw)
    return raw


def _exact_path(raw: object) -> str:
    """Return a path without //, dot segments and %HH. Raises ValueError.

    ewe compares it with the decoded paths of requests. They have no // and no dot segments, and hardly ever a %HH.
    With such a path, the location would match no request, and would protect nothing.
    """
    path = LOCAL_PATH.read(raw)
    if "//" in path or re.search(r"/\.\.?(/|\Z)", path):
        raise ValueError(raw)
    if re.search("%[0-9A-Fa-f]{2}", path):
        raise Reason("not a decoded path: write a space for %20")
    return path


def _pattern(raw: object) -> str:
    """Return a regular expression that matches every text in bounded time. Raises ValueError."""
    if not isinstance(raw, str) or not raw:
        raise ValueError(raw)
    try:
        re.compile(raw)
        explosive = is_explosive(raw)
    except (re.error, OverflowError, RecursionError) as reason:
        raise Reason(f"not a regular expression: {reason}") from None
    if explosive:
        raise Reason(
            "not a safe one, since a path could stop the server: it repeats what can match one text in two ways, as"
            " (a+)+ and (.*/)* do, or has a fourth .*; write [^/] for . or leave out one of the repetitions"
        )
    return raw


def _try(raw: object) -> tuple[str | int, ...]:
    """Return the value of `try`: paths, and perhaps a status from 400 to 599 at the end. Raises ValueError."""
    if not isinstance(raw, list | tuple) or not raw:
        raise ValueError(raw)
    *paths, last = raw
    if type(last) is not int:
        paths = [*raw]
    elif not 400 <= last <= 599:
        raise ValueError(raw)
    for item in paths:
        if not isinstance(item, str) or not re.match(r"/|\$", item) or re.search(r"[\x00-\x1f\x7f]", item):
            raise ValueError(raw)
    return tuple(raw)


def _status(raw: object) -> int:
    """Return a status from 200 to 599. Raises ValueError."""
    if type(raw) is not int or not 200 <= raw <= 599:
        raise ValueError(raw)
    return raw


class GatewayValue(NamedTuple):
    """A value of the key `gateway`. kind: a key of GATEWAYS. target: the address, the application, or ""."""

    kind: str
    target: str


def parse_gateway(text: str) -> GatewayValue:
    """Return the gateway that a text names. Raises ValueError.

    >>> parse_gateway("fastcgi://127.0.0.1:9000")
    GatewayValue(kind='fastcgi', target='127.0.0.1:9000')
    >>> parse_gateway("wsgi:wiki:app")
    GatewayValue(kind='wsgi', target='wiki:app')
    """
    kind, colon, rest = text.partition(":")
    if kind not in GATEWAYS or bool(colon) != bool(GATEWAYS[kind].target_kind):
        raise ValueError(text)
    target_kind = GATEWAYS[kind].target_kind
    target = rest.removeprefix("//") if target_kind != "url" else rest
    if target_kind == "address":
        if parse_address(target).kind == "fd":
            raise ValueError(text)
    elif target_kind == "application":
        if re.fullmatch(r"\w+(?:\.\w+)*(?::\w+(?:\.\w+)*(?:\(\))?)?", target) is None:
            raise ValueError(text)
    elif colon and not target:
        raise ValueError(text)
    return GatewayValue(kind, target)


def _gateway(raw: object) -> tuple[str, ...]:
    """Return the gateways of a location, all of one kind. Only upstreams may be several. Raises ValueError."""
    items = (raw,) if isinstance(raw, str) else raw
    if not isinstance(items, list | tuple) or not items or not all(isinstance(item, str) for item in items):
        raise ValueError(raw)
    kinds = {parse_gateway(item).kind for item in items}
    if len(kinds) > 1 or (len(items) > 1 and not GATEWAYS[min(kinds)].may_be_several):
        raise ValueError(raw)
    return tuple(items)


def in_words(items: Iterable[object]) -> str:
    """Return `301, 302 or 307`."""
    *first, last = map(str, items)
    return f"{', '.join(first)} or {last}"


HOST_NAME = matching(
    "NAME", "the name of a host", r"(?:\*\.)?[0-9A-Za-z_-]+(?:\.[0-9A-Za-z_-]+)*|\[[0-9A-Fa-f:.]+\]"
)
LOCAL_PATH = matching("PATH", "a path", r"/[^\x00-\x1f\x7f]*")
DIRECTORY = r"[^\x00-\x1f\x7f]+"
# The text behind the kind in a value of `gateway`, by LocationGateway.target_kind
FORMS = {"": "", "address": ":ADDRESS", "application": ":MODULE:APP", "url": "://ADDRESS"}
COVERS = "which paths the location covers: one of the three"
MATCH: dict[str, Key] = {
    "prefix": Key(Kind("PATH", "the beginning of a path, such as /blog/", _exact_path), COVERS),
    "path": Key(Kind("PATH", "a whole path, such as /robots.txt", _exact_path), COVERS),
    "pattern": Key(Kind("PATTERN", "a regular expression of Python for the path, such as ^/user/(\\d+)$", _pattern),
                   COVERS),
}  # fmt: skip
# The keys of a site besides STEPS, settings and locations
SITE: dict[str, Key] = {
    "names": Key(list_of("NAME", 'host names: ["example.org", "*.example.org"]', _host_name, lone=True),
                 "the names in Host that the site answers for; none: every other name"),
    "listen": Key(list_of("ADDRESS", 'addresses of the server: ["127.0.0.2:80"]', _tcp_address, lone=True),
                  "the server's addresses at which it answers; none: all of them"),
}  # fmt: skip
# The keys of a location besides MATCH, STEPS and settings
LOCATION: dict[str, Key] = {
    "status": Key(Kind("STATUS", "a status from 200 to 599", _status), "answer with this status and its page; with"
                  " redirect: the redirect's status"),
    "redirect": Key(matching("URL", "a URL or a path that begins with /",
                             r"(?:/|\$|[A-Za-z][A-Za-z0-9+.-]*:)[\x21-\x7e]*"),
                    "send the client there: 302, unless status says otherwise"),
    "rewrite": Key(matching("PATH", "a path that begins with /, with a query or without",
                            r"[/$][^\x00-\x1f\x7f#]*"), "answer as if the client had asked for this path"),
    "try": Key(Kind("PATHS", 'a list of paths, such as ["$path", "$path/", "/index.php"]; the last may be a status',
                    _try),
               "the first of these files and directories that exists answers; the last is used without a check"),
    "root": Key(matching("DIRECTORY", "a directory", DIRECTORY), "the files are below this directory instead of"
                " documentroot: its name and then the whole path"),
    "alias": Key(matching("PATH", "a directory, or a file", DIRECTORY), "this directory or this file stands for the"
                 " prefix"),
    "index": Key(FILE_NAMES, "the files that answer for a directory: the first that exists"),
    "programs": Key(list_of("EXTENSIONS", 'extensions of files, such as [".cgi"]',
                            matching("EXTENSION", "an extension", r"\.[\w-]+").read, lone=True, least=1),
                    "files with these extensions are programs, which the gateway runs; by default cgi"),
    "gateway": Key(Kind("GATEWAY", in_words(kind + FORMS[each.target_kind] for kind, each in GATEWAYS.items()),
                        _gateway), "what answers everything below the location, or its programs"),
}  # fmt: skip
# Keys that say where a request leads: a location has one at most. Each with the keys that may stand beside it
EXCLUSIVE_KEYS: dict[str, set[str]] = {
    "redirect": {"status"},
    "status": {"redirect"},
    "rewrite": set(),
    "alias": {"index", "programs", "gateway", "try"},
    "root": {"index", "programs", "gateway", "try"},
}
for _key, _answer in ANSWERS.items():
    for _other in EXCLUSIVE_KEYS.keys() & _answer.beside:
        EXCLUSIVE_KEYS[_other].add(_key)
    EXCLUSIVE_KEYS[_key] = set(_answer.beside)


def read_sites(raw: object, origin: str, settings: Settings) -> tuple[SiteTable, ...]:
    """Return the tables [[site]] of a settings file. Raises ConfigError.

    raw: the value of the key `site`. origin: where that key stands, "ewe.toml line 3". settings: key -> Setting.
    """
    if not isinstance(raw, list | tuple) or not all(isinstance(each, Mapping) for each in raw):
        raise ConfigError(f"{origin}: site must be tables: write [[site]]")
    found = tuple(read_site(as_table(each, origin), settings) for each in raw)
    owners: dict[tuple[str, tuple[str, ...]], SiteTable] = {}
    for site in found:
        for name in site.names or ("",):
            other = owners.setdefault((name, tuple(sorted(site.listen))), site)
            if other is not site:
                what = f'name "{name}"' if name else "no names"
                raise ConfigError(
                    f"{site.origin}: the site of {other.origin} has {what}, too: one could never answer"
                )
    return found


def as_toml(sites: Iterable[SiteTable]) -> Iterator[str]:
    """Yield the lines of a TOML file that has these tables, each with its origin as a comment."""
    for site in sites:
        yield f"[[site]]  # {site.origin}"
        values = {key: value for key, value in site.values.items() if value}
        values |= {each.key: each.raw for each in site.own_settings}
        values |= site.steps
        yield from (f"{key} = {toml_value(value)}" for key, value in values.items())
        for location in site.locations:
            yield f"[[site.location]]  # {location.origin}"
            settings = {each.key: each.raw for each in location.own_settings}
            own = {location.match_key: location.match_value, **location.values, **settings, **location.steps}
            yield from (f"{key} = {toml_value(value)}" for key, value in own.items())


def toml_value(value: object) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{quoted(str(key))} = {toml_value(each)}" for key, each in value.items()) + " }"
        )
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return quoted(value)


def as_table(raw: Mapping[str, Any], origin: str) -> SourcedTable:
    """Return a mapping as a SourcedTable; one that did not come from a file gets `origin`."""
    return raw if isinstance(raw, SourcedTable) else SourcedTable(raw, origin)


def read_site(table: SourcedTable, settings: Settings) -> SiteTable:
    """Return the values of one [[site]] and of its locations. Raises ConfigError."""
    site = SiteTable(table.origin, table.lines)
    allowed = {key: setting for key, setting in settings.items() if setting.scope != "server"}
    for key, raw in read_known_keys(site, table, SITE, allowed):
        if key == "location":
            if not isinstance(raw, list) or not all(isinstance(each, Mapping) for each in raw):
                raise ConfigError(f"{table.origin_of(key)}: location must be tables: write [[site.location]]")
            site.locations = [read_location(as_table(each, table.origin_of(key)), settings) for each in raw]
        elif key in settings:
            raise ConfigError(
                f"{table.origin_of(key)}: {key} is a setting of the whole server: set it above [[site]]"
            )
        else:
            known = (*SITE, "location", *STEPS, *allowed)
            at = table.origin_of(key)
            raise misplaced_key(at, key) or unknown_key(f"{at}:", key, known, table="[[site]]")
    check_reached(site.locations)
    return site


def read_location(table: SourcedTable, settings: Settings) -> LocationTable:
    """Return the values of one [[site.location]]. Raises ConfigError."""
    matches = [key for key in MATCH if key in table]
    if len(matches) != 1:
        fault = f"not {' and '.join(matches)}" if matches else "and this one has none"
        raise ConfigError(f"{table.origin}: a location has one of prefix, path and pattern, {fault}")
    [match_key] = matches
    location = LocationTable(table.origin, table.lines, match_key=match_key)
    location.match_value = MATCH[match_key].kind.read_at(location.label_of(match_key), table[match_key])
    allowed = {key: setting for key, setting in settings.items() if setting.scope == "location"}
    for key, raw in read_known_keys(location, table, LOCATION, allowed):
        if key in ANSWERS:
            declared = feature(ANSWERS[key].module).keys[key]
            location.values[key] = declared.kind.read_at(location.label_of(key), raw)
        elif key in settings:
            raise ConfigError(
                f"{table.origin_of(key)}: {key} is no setting of a location: set it in [[site]] or above"
            )
        elif key != match_key:
            known = (*MATCH, *LOCATION, *ANSWERS, *STEPS, *allowed)
            at = table.origin_of(key)
            raise misplaced_key(at, key) or unknown_key(f"{at}:", key, known, table="[[site.location]]")
    check_location(location)
    return location


def misplaced_key(origin: str, key: str) -> ConfigError | None:
    """Return the error for a key that belongs into another table; None if no table has it."""
    if key in STEPS:
        where = "[[site]] and of [[site.location]]"
    elif key in MATCH or key in LOCATION or key in ANSWERS:
        where = "[[site.location]]"
    elif key in SITE or key == "location":
        where = "[[site]]"
    else:
        return None
    return ConfigError(f"{origin}: {key} is a key of {where}: set it there")


def read_known_keys(
    found: TableWithSettings, table: SourcedTable, own: Mapping[str, Key], allowed: Settings
) -> Iterator[tuple[str, Any]]:
    """Read the keys of a table into `found`; yield each other key, with its value.

    own: the keys that only this kind of table has. STEPS: the keys with a middleware. allowed: the settings that
    may stand in the table. Raises ConfigError.
    """
    names: dict[str, str] = {}
    for key, raw in table.items():
        if key in own:
            found.values[key] = own[key].kind.read_at(found.label_of(key), raw)
        elif key in STEPS:
            found.steps[key] = raw
        elif key in allowed:
            setting = allowed[key]
            setting.read(raw, found.label_of(key))
            found.own_settings.append(SourcedValue(key, raw, found.label_of(key), table.origin_of(key)))
            if (other := names.setdefault(setting.name, key)) != key:
                raise ConfigError(f'{table.origin_of(key)}: "{key}" and "{other}" are one setting: keep one')
        else:
            yield key, raw


def check_location(location: LocationTable) -> None:
    """Raise ConfigError for keys that contradict each other."""
    values = location.values
    for exclusive, allowed_beside in EXCLUSIVE_KEYS.items():
        keys = (key for key in (*LOCATION, *ANSWERS) if key in values)
        others = [key for key in keys if key not in (exclusive, *allowed_beside)]
        if exclusive in values and others:
            raise ConfigError(
                f"{location.label_of(others[0])} and {exclusive} lead to different places: keep one"
            )
    if "redirect" in values and values.get("status", 302) not in REDIRECTS:
        raise ConfigError(f"{location.label_of('status')} {values['status']}: expected {in_words(REDIRECTS)}")
    if values.get("status") in REDIRECTS and "redirect" not in values:
        raise ConfigError(
            f"{location.label_of('status')} {values['status']} needs redirect, which says where to"
        )
    for key in ANSWERS:
        if key in values and location.match_key != "prefix":
            raise ConfigError(
                f"{location.label_of(key)} answers below a prefix, not for a {location.match_key}"
            )
    if "gateway" in values:
        check_gateway(location)


def check_gateway(location: LocationTable) -> None:
    """Raise ConfigError for keys that contradict the location's gateway."""
    kind = parse_gateway(location.values["gateway"][0]).kind
    files = [key for key in ("root", "alias", "programs", "index") if key in location.values]
    if not GATEWAYS[kind].runs_files and files:
        raise ConfigError(
            f"{location.label_of(files[0])} says which files answer, and gateway = {kind} has none"
        )
    if GATEWAYS[kind].target_kind == "application" and location.match_key != "prefix":
        raise ConfigError(
            f"{location.label_of('gateway')} {kind} answers below a prefix, not for a {location.match_key}"
        )


def check_reached(locations: Iterable[LocationTable]) -> None:
    """Raise ConfigError for a location that no request can reach, because an earlier one takes all of its paths."""
    before: list[LocationTable] = []
    for each in locations:
        if each.match_key != "pattern":
            for earlier in before:
                same = (earlier.match_key, earlier.match_value) == (each.match_key, each.match_value)
                if same or (
                    earlier.match_key == "prefix" and is_below(each.match_value, earlier.match_value)
                ):
                    raise ConfigError(
                        f"{each.origin}: {each} is never reached: {earlier} ({earlier.origin}) takes all of its"
                        " paths, and the first that matches answers: put this one above it"
                    )
            before.append(each)


def passes_all_on(locations: Sequence[LocationTable]) -> bool:
    """Return whether no location uses the site's document root, and one of them covers every path."""
    covers_all = any(each.match_key == "prefix" and each.match_value == "/" for each in locations)
    return covers_all and not any(map(uses_document_root, locations))


def uses_document_root(location: LocationTable) -> bool:
    """Return whether a location answers with files, or runs programs, below the site's document root."""
    keys = location.values.keys()
    if keys & {"redirect", "status", "rewrite", "alias", "root"}:
        return False
    if answers := keys & ANSWERS.keys():
        return any("root" in ANSWERS[key].beside for key in answers)
    if "gateway" not in keys or keys & {"programs", "try"}:
        return True
    kind = parse_gateway(location.values["gateway"][0]).kind
    return GATEWAYS[kind].runs_files


def is_below(path: str, prefix: str) -> bool:
    """Return whether a prefix covers a path, at whole segments: /blog and /blog/ cover /blog and /blog/x."""
    prefix = prefix.rstrip("/")
    return path == prefix or path.startswith(prefix + "/")
