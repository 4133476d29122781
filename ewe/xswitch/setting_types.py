"""What X-Switch's settings can be, besides the kinds that ewe's settings have (ewe.config.setting_types).

They are stricter than ewe's: a file is TOML, so a list is a list, and a text is a text.
"""

from __future__ import annotations

from ewe.config.setting_types import Kind, duration, list_of, parse_address, whole


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw:
        raise ValueError(raw)
    return raw


def _address(raw: object) -> str:
    parse_address(address := _text(raw))
    return address


def _suffix(raw: object) -> str:
    if not (suffix := _text(raw)).startswith("."):
        raise ValueError(raw)
    return suffix


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

TEXT = Kind("TEXT", "a text", _text)
TEXTS = list_of("TEXT", "texts", _text)
TABLE: Kind[dict[str, str]] = Kind("TABLE", "a table of texts", _table)
ADDRESSES = list_of("ADDRESS", "unix:PATH and HOST:PORT", _address)
SUFFIXES = list_of("SUFFIX", 'what begins with ".", as [".rb"]', _suffix)
MODE = Kind("MODE", _PERMISSIONS.expected, _mode, "{:04o}".format)
SECONDS = duration(0.01)
COUNT = whole(1, 1 << 20, "a whole number from 1")
FROM_ZERO = whole(0, 1 << 31, "a whole number from 0")
