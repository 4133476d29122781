"""What the guards' settings have in common: texts, tables and numbers, and the message for a wrong one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ewe.config.messages import ConfigError, expected, nearest, quoted

__all__ = ["expected", "number", "table", "texts"]


def texts(value: object, place: str, what: str) -> tuple[str, ...]:
    """Return a list of texts; one text alone is a list, too. Raises ConfigError."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not found:
        raise expected(place, value, what)
    if not all(isinstance(each, str) and each for each in found):
        raise expected(place, value, what)
    return tuple(found)


def table(value: object, place: str, known: Sequence[str], what: str) -> Mapping[str, Any]:
    """Return a table that has only known keys. Raises ConfigError."""
    if not isinstance(value, Mapping):
        raise expected(place, value, what)
    for key in value:
        if key not in known:
            raise ConfigError(f"{place} unknown key {quoted(key)}{nearest(key, known)}")
    return value


def number(value: object, place: str, low: float, high: float, what: str) -> float:
    """Return a number from low to high. Raises ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise expected(place, value, what)
    return float(value)
