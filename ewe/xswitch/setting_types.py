"""Types of X-Switch's settings, in addition to the types of ewe's settings (ewe.config.setting_types).

These types are stricter than ewe's. The file is TOML, so a list must be a list, and a text a text.
"""

from __future__ import annotations

from ewe.config.setting_types import Kind, duration, list_of, matching, parse_address, whole
from ewe.config.table_kinds import TableKind

OVER_TLS = "tls:"  # begins the address at which other X-Switches connect


# Each of these functions checks a value of the file, and returns it. Raises ValueError.


def _name(raw: object) -> str:
    """Return the name of a table; Settings.warnings() has a warning for one that no account has."""
    if not isinstance(raw, str) or not raw:
        raise ValueError(raw)
    return raw


def _text_or_empty(raw: object) -> str:
    if not isinstance(raw, str) or "\0" in raw:  # no path, argument or variable may have a NUL
        raise ValueError(raw)
    return raw


def _text(raw: object) -> str:
    if not (text := _text_or_empty(raw)):
        raise ValueError(raw)
    return text


def _address(raw: object) -> str:
    """Return an address at which X-Switch listens; over TLS, only one of TCP."""
    address = _text(raw)
    kind, _, _ = parse_address(address.removeprefix(OVER_TLS))
    if address.startswith(OVER_TLS) and kind != "tcp":
        raise ValueError(raw)
    return address


def _remote_address(raw: object) -> str:
    """Return the numeric address and port of an X-Switch on another machine."""
    from ipaddress import ip_address

    kind, host, port = parse_address(address := _text(raw))
    if kind != "tcp" or not port:
        raise ValueError(raw)
    ip_address(host)  # raises ValueError for a name
    return address


def _mode(raw: object) -> int:
    if not isinstance(raw, str):
        raise ValueError(raw)
    return _PERMISSIONS.read(int(raw, 8))


_PERMISSIONS = whole(0, 0o777, 'an octal mode as text, such as "0660"')

TEXT = Kind("TEXT", "a text", _text)
ABSOLUTE = matching("PATH", "an absolute path", r"/[^\x00-\x1f]*[^/\x00-\x1f]")
DIRECTORIES = list_of("PATH", "a list of absolute paths", ABSOLUTE.read)
NAME = Kind("TEXT", "a text", _name)
TEXTS = list_of("TEXT", "a list of texts", _text)
NAMES = list_of("NAME", "a list of names of accounts", _text, lone=True)
TABLE = TableKind("a table of texts", others=(TEXT, Kind("TEXT", "a text", _text_or_empty)))
ADDRESSES = list_of("ADDRESS", "a list of unix:PATH, HOST:PORT and tls:HOST:PORT", _address)
HOST = Kind("ADDRESS", "the numeric address and port of an X-Switch, as 192.0.2.7:9443", _remote_address)
SUFFIXES = list_of(
    "SUFFIX", 'a list of texts that begin with ".", as [".rb"]', matching("SUFFIX", "", r"(?s)\..*").read
)
MODE = Kind("MODE", _PERMISSIONS.expected, _mode, "{:04o}".format)
SECONDS = duration(0.01)
COUNT = whole(1, 1 << 20, "a whole number from 1")
FROM_ZERO = whole(0, 1 << 31, "a whole number from 0")
PERCENT = whole(0, 100, "a whole number of percent, 0 to 100")
SHARE = whole(1, 100_000, "a whole number of percent from 1, where 100 is one CPU")
