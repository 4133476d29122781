"""Convert a TOML table to a dataclass, and report an error in one line.

A person writes the file of a paper, so each error must name its place and the nearest known key. The defaults of
the dataclass say which types its values have: a field with the default 0.0 takes a number, and one without a
default a text. Nothing else describes the format, so the code and the file cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from ewe.config.messages import ConfigError, nearest

T = TypeVar("T")
TYPE_DESCRIPTIONS = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    tuple: "a list",
    list: "a list",
    dict: "a table",
}


def check_keys(table: Any, known: Iterable[str], context: str) -> None:
    """Check that all keys of a table are known. Raises ConfigError."""
    if not isinstance(table, dict):
        raise ConfigError(f"{context}: {table!r} is not a table")
    names = list(known)
    for key in table:
        if key not in names:
            raise ConfigError(f"{context}: unknown key {key!r}{nearest(key, names)}")


def dataclass_of(kind: type[T], table: Any, context: str) -> T:
    """Return the dataclass of a table. A field without a default is required, and is a text. Raises ConfigError.

    context: the place in the file, with which an error message begins.
    """
    known = fields(kind)  # type: ignore[arg-type]
    check_keys(table, [each.name for each in known], context)
    values = {}
    for each in known:
        required = each.default is MISSING and each.default_factory is MISSING
        if each.name in table:
            default = each.default_factory() if each.default_factory is not MISSING else each.default
            values[each.name] = checked_value(
                str if required else type(default), table[each.name], f"{context}: {each.name}"
            )
        elif required:
            raise ConfigError(f"{context}: {each.name} is missing")
    return kind(**values)


def checked_value(kind: type, value: Any, context: str) -> Any:
    """Check that a value has the type of the field's default; return it, lists as tuples. Raises ConfigError.

    A value of a type that TYPE_DESCRIPTIONS does not have, such as a table, is returned unchecked.
    """
    if kind is float and type(value) is int:  # a file may say 5 for 5.0
        return value
    if kind is tuple and isinstance(value, list):
        return as_tuples(value)
    # In Python a bool is also an int, but `true` is no number
    if kind in TYPE_DESCRIPTIONS and not (
        isinstance(value, kind) and (kind is bool) == isinstance(value, bool)
    ):
        raise ConfigError(f"{context}: {value!r} is not {TYPE_DESCRIPTIONS[kind]}")
    return value


def as_tuples(value: Any) -> Any:
    """Convert a list, and the lists in it, to tuples."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value
