"""From a TOML table to a dataclass, with the fault in one line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from ewe.config.messages import ConfigError, nearest

T = TypeVar("T")
WORDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number", tuple: "a list"}


def checked(table: Any, known: Iterable[str], where: str) -> None:
    """Check that a table has known keys only. Raises ConfigError."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: {table!r} is not a table")
    names = list(known)
    for key in table:
        if key not in names:
            raise ConfigError(f"{where}: unknown key {key!r}{nearest(key, names)}")


def record(kind: type[T], table: Any, where: str) -> T:
    """Return the dataclass of a table. A field without a default has to be there. Raises ConfigError."""
    known = fields(kind)  # type: ignore[arg-type]
    checked(table, [each.name for each in known], where)
    values = {}
    for each in known:
        required = each.default is MISSING and each.default_factory is MISSING
        if each.name in table:
            default = each.default_factory() if each.default_factory is not MISSING else each.default
            values[each.name] = of_type(
                str if required else type(default), table[each.name], f"{where}: {each.name}"
            )
        elif required:
            raise ConfigError(f"{where}: {each.name} is missing")
    return kind(**values)


def of_type(kind: type, value: Any, where: str) -> Any:
    """Return a value of a field whose default is of a type; lists become tuples. Raises ConfigError."""
    if kind is float and type(value) is int:
        return value
    if kind is tuple and isinstance(value, list):
        return frozen(value)
    if kind in WORDS and not (isinstance(value, kind) and (kind is bool) == isinstance(value, bool)):
        raise ConfigError(f"{where}: {value!r} is not {WORDS[kind]}")
    return value


def frozen(value: Any) -> Any:
    """Return a list as a tuple, with the lists in it."""
    return tuple(map(frozen, value)) if isinstance(value, list) else value
