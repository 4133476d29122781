"""What X-Switch's settings can be, besides the kinds that ewe's settings have (ewe.config.setting_types).

They are stricter than ewe's: a file is TOML, so a list is a list, and a text is a text.
"""

from __future__ import annotations

from typing import Any

from ewe.config.setting_types import Kind, duration, parse_address, whole


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw:
        raise ValueError(raw)
    return raw


def _texts(raw: object) -> tuple[str, ...]:
    if not isinstance(raw, list):
        raise ValueError(raw)
    return tuple(_text(each) for each in raw)


def _addresses(raw: object) -> tuple[str, ...]:
    for each in _texts(raw):
        parse_address(each)
    return _texts(raw)


def _suffixes(raw: object) -> tuple[str, ...]:
    for each in _texts(raw):
        if not each.startswith("."):
            raise ValueError(raw)
    return _texts(raw)


def _table(raw: object) -> dict[str, str]:
    if not isinstance(raw, dict):
        raise ValueError(raw)
    return {_text(name): str(value) for name, value in raw.items()}


def _mode(raw: object) -> int:
    if not isinstance(raw, str):
        raise ValueError(raw)
    return _PERMISSIONS.read(int(raw, 8))


def one_of(*names: str) -> Kind[str]:
    """Return the kind of texts that are one of some names, exactly as they are written."""

    def read(raw: object) -> str:
        if raw not in names:
            raise ValueError(raw)
        return str(raw)

    *others, last = (f'"{name}"' for name in names)
    return Kind("|".join(names), f"{', '.join(others)} or {last}", read)


_PERMISSIONS = whole(0, 0o777, 'an octal mode as text, such as "0660"')
_JOIN: Any = ", ".join

TEXT = Kind("TEXT", "a text", _text)
TEXTS = Kind("TEXT", "a list of texts", _texts, _JOIN)
TABLE: Kind[dict[str, str]] = Kind("TABLE", "a table of texts", _table)
ADDRESSES = Kind("ADDRESS", "a list of unix:PATH and HOST:PORT", _addresses, _JOIN)
SUFFIXES = Kind("SUFFIX", 'a list of what begins with ".", as [".rb"]', _suffixes, _JOIN)
MODE = Kind("MODE", _PERMISSIONS.expected, _mode, "{:04o}".format)
SECONDS = duration(0.01)
COUNT = whole(1, 1 << 20, "a whole number from 1")
FROM_ZERO = whole(0, 1 << 31, "a whole number from 0")
