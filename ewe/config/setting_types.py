"""What a setting can be: a port, a time, a size, … Each kind reads a value from text or TOML, and shows it.

A kind is an object, such as PORT, SIZE or BOOL: the names in capitals at the end of this file. Functions such as
whole(), matching() and list_of() make kinds. A text with several parts, such as ".php=unix:/run/php.sock", stays a
text: `read` only checks it. The code that uses it calls the function for this text: parse_address(), parse_proxy().
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from ewe.config.messages import Reason, quoted, wrong_value
from ewe.log_files import parse_syslog

T = TypeVar("T")

K, M, G = 1 << 10, 1 << 20, 1 << 30
MAX_DAYS = 24  # poll() counts milliseconds in a C int, which overflows on the 25th day


class Kind(Generic[T]):
    """A kind of value.

    metavar: its placeholder in --help. expected: a description, for messages. read: return the value of a text or a
    TOML value; raises ValueError. show: return the value as a text that `read` accepts.
    """

    def __init__(
        self, metavar: str, expected: str, read: Callable[[object], T], show: Callable[[T], str] = str
    ) -> None:
        self.metavar, self.expected, self.read, self.show = metavar, expected, read, show

    def read_at(self, label: str, raw: object) -> T:
        """Return the value of a text or a TOML value. Raises ConfigError, which begins with `label`."""
        try:
            return self.read(raw)
        except Reason as reason:
            raise wrong_value(label, raw, f"{self.expected} ({reason})") from None
        except ValueError:
            raise wrong_value(label, raw, self.expected) from None


def _whole(raw: object) -> int:
    """Return a whole number, given as a number or as text. Raises ValueError."""
    if isinstance(raw, str) and re.fullmatch(r"\s*[0-9]{1,18}\s*", raw):
        return int(raw)
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    raise ValueError(raw)


def whole(low: int, high: int, expected: str, metavar: str = "N") -> Kind[int]:
    """Return the kind of whole numbers from low to high."""

    def read(raw: object) -> int:
        if not low <= (number := _whole(raw)) <= high:
            raise ValueError(raw)
        return number

    return Kind(metavar, expected, read)


def number(low: float, high: float, expected: str) -> Kind[float]:
    """Return the kind of TOML's numbers from low to high. expected: their description, for messages."""

    def read(raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float) or not low <= raw <= high:
            raise ValueError(raw)
        return float(raw)

    return Kind("NUMBER", expected, read, "{:g}".format)


def _scaled(raw: object, units: dict[str, int], number_pattern: str) -> tuple[str, int]:
    """Return the number in a text such as ``30s`` or ``64k``, and the factor of its unit. Raises ValueError."""
    if not isinstance(raw, str | int | float):
        raise ValueError(raw)
    match = _matched(rf"\s*({number_pattern})\s*([a-z]*)\s*", str(raw).lower())
    if match[2] not in units:
        raise ValueError(raw)
    return match[1], units[match[2]]


def _largest_unit(value: int, units: dict[str, int]) -> str:
    """Return a value in the largest unit that leaves it whole."""
    unit = max((unit for unit in units if value % units[unit] == 0), key=units.__getitem__)
    return f"{value // units[unit]}{unit}"


# Each unit that a text may have. "": a number without a unit counts seconds, or bytes.
_TIME_UNITS_MS = {"": 1000, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_UNITS_BYTES = {"": 1, "k": K, "m": M, "g": G}


def duration(low: float) -> Kind[float]:
    """Return the kind of times, in seconds with three decimals. low: 0, or 0.001 if a time of 0 makes no sense."""

    def read(raw: object) -> float:
        number, unit_ms = _scaled(raw, _TIME_UNITS_MS, r"[0-9]{1,12}(?:\.[0-9]{1,12})?")
        seconds = round(float(number) * unit_ms) / 1000
        if not low <= seconds <= MAX_DAYS * 86_400:
            raise ValueError(raw)
        return seconds

    def show(seconds: float) -> str:
        named_units_ms = {unit: size for unit, size in _TIME_UNITS_MS.items() if unit}
        return _largest_unit(round(seconds * 1000), named_units_ms) if seconds else "0s"

    above = " above 0" if low else ""
    return Kind("TIME", f"a time{above} such as 500ms, 30s or 5m, at most {MAX_DAYS}d", read, show)


def size(low: int) -> Kind[int]:
    """Return the kind of sizes, in bytes, from low."""

    def read(raw: object) -> int:
        number, unit_bytes = _scaled(raw, _SIZE_UNITS_BYTES, r"[0-9]{1,19}")
        if not low <= (count := int(number) * unit_bytes) < 1 << 63:
            raise ValueError(raw)
        return count

    expected = f"a size in bytes{' above 0' if low else ''} such as 512, 64k, 2m or 1g"
    return Kind(
        "SIZE", expected, read, lambda count: _largest_unit(count, _SIZE_UNITS_BYTES) if count else "0"
    )


def _matched(pattern: str, text: str, flags: int = 0) -> re.Match[str]:
    """Return the match of a whole text. flags: of the module re. Raises ValueError."""
    if (match := re.fullmatch(pattern, text, flags)) is None:
        raise ValueError(text)
    return match


def matching(metavar: str, expected: str, pattern: str) -> Kind[str]:
    """Return the kind of texts that match a pattern from the first character to the last."""

    def read(raw: object) -> str:
        if not isinstance(raw, str) or re.fullmatch(pattern, raw) is None:
            raise ValueError(raw)
        return raw

    return Kind(metavar, expected, read)


def _items(raw: list[Any] | tuple[Any, ...], read_item: Callable[[Any], T]) -> tuple[T, ...]:
    """Return the items of a list, each as read_item() returns it.

    Raises ValueError. If there are several items, it is a Reason, whose text names the wrong one.
    """
    found = []
    for each in raw:
        try:
            found.append(read_item(each))
        except Reason:
            raise
        except ValueError:
            if len(raw) > 1:
                raise Reason(f"not {quoted(each)}") from None
            raise
    return tuple(found)


def list_of(
    metavar: str, expected: str, read_item: Callable[[object], T], *, lone: bool = False, least: int = 0
) -> Kind[tuple[T, ...]]:
    """Return the kind of lists of a TOML file. Unlike texts(), it does not divide a text at its commas.

    lone: a text that is not in a list stands for a list of one item. least: the smallest number of items.
    """

    def read(raw: object) -> tuple[T, ...]:
        items = [raw] if lone and isinstance(raw, str) else raw
        if not isinstance(items, list | tuple) or len(items) < least:
            raise ValueError(raw)
        return _items(items, read_item)

    return Kind(metavar, expected, read, lambda items: ", ".join(map(str, items)))


def texts(
    metavar: str, expected: str, check: Callable[[str], object], *, nested: bool = False,
    may_be_empty: bool = False, lower: bool = False, unique_by: Callable[[str], object] | None = None,
) -> Kind[tuple[str, ...]]:  # fmt: skip
    """Return the kind of lists of texts. One text with commas stands for a list: "a, b" is ("a", "b").

    check: raises ValueError for an item that is not allowed. Its result is ignored. nested: also divide the items
    of a list at their commas, since a flag that is repeated gives a list of such texts: ["a, b", "c"].
    may_be_empty: as nested, and drop empty texts, so that "" is the empty list. lower: change the items to lower
    case. unique_by: returns the part of an item that no other item of the list may have, too; None: any two items
    may be equal.
    """

    def read(raw: object) -> tuple[str, ...]:
        if may_be_empty and isinstance(raw, list | tuple):
            raw = [item for item in raw if item != ""]
        items = () if may_be_empty and raw == "" else _texts_of(raw)
        if nested or may_be_empty:
            items = tuple(part for item in items for part in _texts_of(item))
        if lower:
            items = tuple(item.lower() for item in items)
        _items(items, check)
        if unique_by is not None and len(set(map(unique_by, items))) < len(items):
            raise ValueError(raw)
        return items

    return Kind(metavar, expected, read, ", ".join)


def one_of(*names: str) -> Kind[str]:
    """Return the kind of texts that are one of some names, exactly as they are written."""

    def read(raw: object) -> str:
        if raw not in names:
            raise ValueError(raw)
        return str(raw)

    *others, last = (f'"{name}"' for name in names)
    return Kind("|".join(names), f"{', '.join(others)} or {last}", read)


def choice(*names: str, numbered: bool = False) -> Kind[str]:
    """Return the kind of values that are one of some names.

    numbered: a value may also be the number of a name, from 0.
    """

    def read(raw: object) -> str:
        if isinstance(raw, str) and (name := raw.strip().lower()) in names:
            return name
        if numbered and 0 <= (number := _whole(raw)) < len(names):
            return names[number]
        raise ValueError(raw)

    numbers = f" (or 0 to {len(names) - 1})" if numbered else ""
    return Kind("|".join(names), f"{', '.join(names[:-1])} or {names[-1]}{numbers}", read)


_BOOLEANS = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(
    ("false", "no", "off", "0"), False
)


def _boolean(raw: object) -> bool:
    """Return the boolean of true, yes, on or 1, or of false, no, off or 0. Raises ValueError."""
    value = _BOOLEANS.get(str(raw).strip().lower()) if isinstance(raw, bool | int | str) else None
    if value is None:
        raise ValueError(raw)
    return value


def _text(raw: object) -> str:
    """Return a text that is not empty and has no control characters. Raises ValueError."""
    if not isinstance(raw, str) or not raw or re.search(r"[\x00-\x08\x0a-\x1f\x7f]", raw):
        raise ValueError(raw)
    return raw


def _path(raw: object) -> str:
    """Return the text of a path. Raises ValueError."""
    return _text(os.fspath(raw) if isinstance(raw, os.PathLike) else raw)


def _log(raw: object) -> str:
    """Return the path of a log, or syslog:ADDRESS. Raises ValueError."""
    if (path := _path(raw)).startswith("syslog:"):
        parse_syslog(path)
    return path


def _file_name(raw: object) -> str:
    """Return the name of a file, without a slash. Raises ValueError."""
    if "/" in (name := _text(raw)):
        raise ValueError(raw)
    return name


# With a zone, which is the name of an interface, such as fe80::1%br-lan
_IPV6_PATTERN = r"[0-9A-Fa-f:.]+(?:%[\w.-]+)?"


def _host(raw: object) -> str:
    """Return a host, without the brackets of an IPv6 address. Raises ValueError."""
    match = _matched(r"([^\s/\[\]]+)|\[([^\s/\[\]]+)\]", _text(raw))
    host = match[1] or match[2]
    # Only an IPv6 address has colons, and it has two of them at least
    if ":" in host and (host.count(":") < 2 or re.fullmatch(_IPV6_PATTERN, host) is None):
        raise Reason("without a port, which is the setting port")
    return host


def _model(raw: object) -> str:
    """Return the name of a model, for a synonym the name itself. Raises ValueError."""
    # This checks only the form. The registry of processors, on a higher floor, knows which models exist.
    if not re.fullmatch(r"\w[\w.+-]*(:\w[\w.]*)?", name := _text(raw)):
        raise ValueError(raw)
    return {"none": "serial", "event": "asyncio"}.get(name, name)


class SocketAddress(NamedTuple):
    """An address to listen at, or to connect to. kind: "tcp", "unix" or "fd".

    host: for "unix" the path of the socket, for "fd" "". port: for "unix" 0, for "fd" the number of the descriptor.
    """

    kind: str
    host: str
    port: int


def parse_address(text: str) -> SocketAddress:
    """Return the address that a text names: HOST:PORT, unix:PATH or fd://N. Raises ValueError.

    >>> parse_address("[::1]:4000")
    SocketAddress(kind='tcp', host='::1', port=4000)
    """
    if text.startswith("unix:"):
        return SocketAddress("unix", _text(text.removeprefix("unix:")), 0)
    if match := re.fullmatch(r"fd://([0-9]{1,9})", text):
        return SocketAddress("fd", "", int(match[1]))
    match = re.fullmatch(rf"(?:\[({_IPV6_PATTERN})\]|([^\s:/\[\]]+)):([0-9]{{1,5}})", text)
    if match is None or int(match[3]) > 65535:
        raise ValueError(text)
    return SocketAddress("tcp", match[1] or match[2], int(match[3]))


def _texts_of(raw: object) -> tuple[str, ...]:
    """Return the texts of a list, or of one text with commas. Raises ValueError."""
    items = re.split(r"\s*,\s*", raw.strip()) if isinstance(raw, str) else raw
    if not isinstance(items, list | tuple):
        raise ValueError(raw)
    return tuple(_text(item) for item in items)


def _network(text: str) -> None:
    """Check an IP network or address, or the word unix. Raises ValueError."""
    from ipaddress import ip_network

    if text != "unix":
        ip_network(text)


def parse_origin(text: str) -> tuple[str, str | None]:
    """Return the address of a server that speaks HTTP, and the path of its URL, None if it has none.

    Raises ValueError.

    >>> parse_origin("http://127.0.0.1:3000")
    ('127.0.0.1:3000', None)
    >>> parse_origin("http://[::1]/")
    ('[::1]:80', '/')
    >>> parse_origin("http://unix:/run/app.sock:/shop")
    ('unix:/run/app.sock', '/shop')
    """
    if match := re.fullmatch(r"(?:http://)?(unix:/[^:,\s]+)(?::(/[\w./~-]*))?", text):
        return match[1], match[2]
    match = re.fullmatch(
        r"http://((?:\[[0-9A-Fa-f:.]+\])|[^\s:/\[\]@?#]+)(?::([0-9]{1,5}))?(/[\w./~-]*)?", text
    )
    if match is None or int(match[2] or 80) > 65535:
        raise ValueError(text)
    return f"{match[1]}:{match[2] or 80}", match[3]


# The path of a URL, which ends neither in a dot nor in two slashes; and such a path, or an extension
_PATH_PATTERN = r"/|/[\w./~-]*[\w~-]/?"
_WHERE_PATTERN = rf"\.[\w-]+|{_PATH_PATTERN}"


def parse_proxy(text: str) -> tuple[str, str]:
    """Return a path and the URL of the server that answers below it: ("/app", "http://127.0.0.1:3000").

    Raises ValueError.
    """
    match = _matched(rf"({_PATH_PATTERN})=(.+)", text)
    parse_origin(match[2])
    return match[1], match[2]


def parse_responder(text: str) -> tuple[str, str]:
    """Return the extension, or the path, for which a responder answers, and its address. Raises ValueError.

    >>> parse_responder(".php=unix:/run/php.sock")
    ('.php', 'unix:/run/php.sock')
    """
    match = _matched(rf"({_WHERE_PATTERN})=(.+)", text)
    if parse_address(match[2]).kind == "fd":
        raise ValueError(text)
    return match[1], match[2]


def _authorizer(text: str) -> None:
    """Check PATH=ADDRESS of an authorizer. Raises ValueError."""
    path, _ = parse_responder(text)
    if not path.startswith("/"):
        raise ValueError(text)


class StartedProgram(NamedTuple):
    """A FastCGI program that ewe starts. where: the extension or the path for which it answers.

    processes: their number. command: as a shell would read it.
    """

    where: str
    processes: int
    command: str


def parse_program(text: str) -> StartedProgram:
    """Return the program that a text WHERE=[N:]COMMAND names. Raises ValueError.

    >>> parse_program(".php=4:php-cgi -q")
    StartedProgram(where='.php', processes=4, command='php-cgi -q')
    """
    import shlex

    match = _matched(rf"({_WHERE_PATTERN})=(?:([1-9][0-9]{{0,2}}):)?(.+)", text)
    if not shlex.split(match[3]):
        raise ValueError(text)
    return StartedProgram(match[1], int(match[2] or 1), match[3])


def parse_mount(text: str) -> tuple[str, str]:
    """Return the path and the name of a feature: ("/hello", "hello:Hello"). Raises ValueError."""
    match = _matched(r"(/[\w./~-]*)=(\w[\w.+-]*(?::\w[\w.]*)?)", text)
    return match[1], match[2]


def parse_application(text: str) -> tuple[str, str]:
    """Return the path and the name of an application: ("/wiki", "wiki:app"). Raises ValueError."""
    match = _matched(r"(/[\w./~-]*)=(\w+(?:\.\w+)*(?::\w+(?:\.\w+)*(?:\(\))?)?)", text)
    return match[1], match[2]


class DatabaseValue(NamedTuple):
    """A value of the setting `database`. source: "" if only a daemon knows it."""

    name: str
    driver: str
    source: str


def parse_database(text: str) -> DatabaseValue:
    """Return the database that a text NAME=SOURCE names. Raises ValueError.

    >>> parse_database("log=access.db")
    DatabaseValue(name='log', driver='sqlite', source='access.db')
    >>> parse_database("shop=postgresql:host=/run/postgresql dbname=shop").source
    'host=/run/postgresql dbname=shop'
    >>> parse_database("~alice:shop=/home/alice/shop.db").name
    '~alice:shop'
    """
    match = _matched(
        r"([A-Za-z_][\w-]{0,63}|~[\w.-]{1,32}(?::[\w-]{1,63})?)(?:=(?:(sqlite|postgresql):)?(.+))?", text
    )
    return DatabaseValue(match[1], match[2] or "sqlite", match[3] or "")


def parse_table(text: str) -> tuple[str, str]:
    """Return the names of a database and of a table: ("shop", "goods"). Raises ValueError."""
    database, found, table = text.partition(".")
    if not found or not table or re.fullmatch(r"[A-Za-z_][\w-]{0,63}", database) is None:
        raise ValueError(text)
    return database, table


def parse_saved_query(text: str) -> tuple[str, str, str]:
    """Return a database, the name of a query and its SQL: ("log", "slowest", "SELECT ..."). Raises ValueError."""
    match = _matched(r"([A-Za-z_][\w-]{0,63})/([^=/]{1,100})=(.*\S.*)", text, re.DOTALL)
    return match[1], match[2].strip(), match[3].strip()


def _saved_queries(raw: object) -> tuple[str, ...]:
    """Return the texts of saved queries, one or a list. Raises ValueError."""
    # texts() would divide it: SQL has commas, and several lines
    items = (raw,) if isinstance(raw, str) else raw
    if not isinstance(items, list | tuple):
        raise ValueError(raw)
    for item in items:
        _text(re.sub(r"[\r\n]", " ", item) if isinstance(item, str) else item)
        parse_saved_query(item)
    return tuple(items)


# Variables of the protocol, which describe the request, its client and the server: RFC 3875 section 4.1, and
# those that servers add. `env` cannot set them, and X-Switch and responders rely on them.
PROTOCOL_VARIABLES = re.compile(
    r"(?:CONTENT|SERVER|REQUEST|SCRIPT|REMOTE|REDIRECT|HTTP|X_SWITCH|FCGI)_.*|PATH_(?:INFO|TRANSLATED)|AUTH_TYPE"
    r"|GATEWAY_INTERFACE|QUERY_STRING|DOCUMENT_ROOT|HTTPS|SCGI|UWSGI_.*"
)


def parse_variable(text: str) -> tuple[str, str]:
    """Return the name and the value of a variable for programs: ("LANG", "C.UTF-8"). Raises ValueError."""
    match = _matched(r"([A-Za-z_][A-Za-z0-9_]{0,127})=([^\0\r\n]*)", text)
    if PROTOCOL_VARIABLES.fullmatch(match[1]):
        raise Reason(f"{match[1]} describes the request or the server")
    return match[1], match[2]


def _variables(raw: object) -> tuple[str, ...]:
    """Return variables for programs as texts NAME=VALUE. raw: a table, one text or a list. Raises ValueError."""
    if isinstance(raw, dict):
        if not all(isinstance(value, str) for value in raw.values()):
            raise ValueError(raw)
        raw = [f"{name}={value}" for name, value in raw.items()]
    items = (raw,) if isinstance(raw, str) else raw  # values may have commas
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise ValueError(raw)
    for item in items:
        parse_variable(item)
    return tuple(items)


def auto(kind: Kind[T]) -> Kind[T | None]:
    """Return a kind with one more value: None, which is written ``auto``."""
    return _or_none(kind, "auto", f"auto or {kind.expected}")


def unset(kind: Kind[T]) -> Kind[T | None]:
    """Return a kind with one more value: None, which is written as an empty text."""
    return _or_none(kind, "", kind.expected)


def _or_none(kind: Kind[T], text: str, expected: str) -> Kind[T | None]:
    """Return a kind with one more value: None, which is written as `text`. expected: for messages."""

    def read(raw: object) -> T | None:
        return None if raw is None or raw == text else kind.read(raw)

    return Kind(kind.metavar, expected, read, lambda value: text if value is None else kind.show(value))


PORT = whole(0, 65535, "a port number, 0 to 65535", "PORT")
COUNT = whole(1, (1 << 31) - 1, "a whole number from 1")  # the kernel's and C's counts end at 2**31 - 1
COUNT_OR_0 = whole(0, (1 << 31) - 1, "a whole number from 0")
WAIT = duration(0.001)
SIZE = size(1)
BOOL = Kind("yes|no", "true or false", _boolean, lambda value: "true" if value else "false")
HOST = Kind("ADDRESS", "a host name or address", _host)
FILE_NAME = Kind("NAME", "the name of a file", _file_name)
FILE_NAMES = texts("NAME", "the name of a file, or several with commas", _file_name, nested=True)
COOKIE = matching("NAME", "the name of a cookie: letters, digits, _ . -", r"[A-Za-z0-9_.-]{1,64}")
PATH = Kind("PATH", "a path", _path)
LOG = Kind("PATH", "a path, or syslog:[FACILITY][@PATH] such as syslog: or syslog:local3", _log)
TEXT = Kind("TEXT", "a text in one line", _text)
PROXIES = texts("PATH=URL", "a path, = and http://HOST:PORT or unix:PATH", parse_proxy)
UPGRADES = texts(
    "PROTOCOL", "the name of a protocol other than h2c, such as websocket",
    lambda item: _matched(r"(?![hH]2)[!#$%&'*+.^_`|~0-9A-Za-z/-]{1,64}", item), nested=True,
)  # fmt: skip
NETWORKS = texts(
    "NETWORK", "an address, a network such as 10.0.0.0/8 or fd00::/8, or unix", _network, nested=True
)
MODEL = Kind("NAME", "the name of a model, or module:Class", _model)
ADDRESSES = texts("ADDRESS", "HOST:PORT, [::1]:PORT, unix:PATH or fd://N", parse_address)
RESPONDERS = texts("WHERE=ADDRESS", "an extension or a path, = and unix:PATH or HOST:PORT", parse_responder)
PROGRAMS = texts("WHERE=COMMAND", "an extension or a path, = and [N:]COMMAND", parse_program)
AUTHORIZERS = texts("PATH=ADDRESS", "a path, = and unix:PATH or HOST:PORT", _authorizer)
MOUNTS = texts("PATH=NAME", "a path, = and the name of a feature, or module:Class", parse_mount)
URL_PATH = matching("PATH", "the path of a URL below /, such as /-/databases", r"(?:/[\w.~-]+)+/?")
TABLES = texts("DATABASE.TABLE", "a database, a dot and a table", parse_table)
SAVED_QUERIES = Kind("DATABASE/NAME=SQL", "a database, / and a name, = and SQL", _saved_queries, "; ".join)
DATABASES = texts(
    "NAME=SOURCE",
    "different names, each with = and a file of SQLite, or =postgresql: and a connection string",
    parse_database,
    unique_by=lambda item: parse_database(item).name,
)
VARIABLES = Kind(
    "NAME=VALUE",
    'variables such as { GIT_PROJECT_ROOT = "/srv/git" }, or NAME=VALUE; none of those that RFC 3875 defines',
    _variables,
    ", ".join,
)
APPLICATIONS = texts("PATH=MODULE:APP", "a path, = and an application as module:name", parse_application)
MEDIA_TYPES = texts(
    "TYPE", "media types such as text/html, text/* or application/*+json",
    lambda item: _matched(r"[a-z0-9.+-]+/(?:[a-z0-9.+-]+|\*(?:\+[a-z0-9.-]+)?)", item),
    may_be_empty=True, lower=True,
)  # fmt: skip
CODINGS = texts("CODING", "some of zstd, br and gzip, each once", one_of("zstd", "br", "gzip").read,
                may_be_empty=True, lower=True, unique_by=str)  # fmt: skip
LANGUAGES = texts(
    "LANGUAGE", "language tags such as en, de or pt-BR, each once",
    lambda item: _matched(r"[A-Za-z]{2,8}(?:-[A-Za-z0-9]{1,8}){0,4}", item), may_be_empty=True, unique_by=str.lower,
)  # fmt: skip


def is_local(address: str) -> bool:
    """Return whether only this machine can reach a server at this address ("localhost": a Unix socket).

    A socket of systemd may take IPv4 and IPv6: an IPv4 address then begins with ::ffff: (RFC 4291 section 2.5.5.2).
    """
    return address in ("localhost", "::1") or address.removeprefix("::ffff:").startswith("127.")
