"""Convert a TOML table to a dataclass, and report an error in one line.

A person writes the file of a paper, so each error must name its place and the nearest known key. The defaults of
the dataclass say which types its values have: a field with the default 0.0 takes a number, and one without a
default a text. Its annotation says which items a list has. No number may be negative or infinite. Nothing else
describes the format, so the code and the file cannot differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
# The types of the items of a list, by the annotation of its field. Several types: each item is a list of as many
ITEM_TYPES: dict[str, tuple[type, ...]] = {
    "tuple[str, ...]": (str,),
    "tuple[int, ...]": (int,),
    "tuple[tuple[str, str], ...]": (str, str),
    "tuple[tuple[float, float], ...]": (float, float),
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
            key = f"{context}: {each.name}"
            kind_of_value = int if each.type == "int | None" else str if required else type(default)
            value = checked_value(kind_of_value, table[each.name], key)
            check_number(value, key)
            check_items(value, ITEM_TYPES.get(str(each.type), ()), key)
            values[each.name] = value
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


def check_number(value: Any, context: str) -> None:
    """Check that a value is no negative or infinite number, and not TOML's `nan`. Raises ConfigError."""
    if isinstance(value, int | float) and not 0 <= value < math.inf:
        raise ConfigError(f"{context}: {value} is not a number from 0 on")


def check_items(items: Any, kinds: Sequence[type], context: str) -> None:
    """Check the items of a list. Raises ConfigError.

    kinds: the type of each item; several: those of the parts of each item, which is a list; none: anything.
    """
    for item in items if kinds else ():
        if len(kinds) == 1:
            check_number(checked_value(kinds[0], item, context), context)
        elif not isinstance(item, tuple) or len(item) != len(kinds):
            raise ConfigError(f"{context}: {item!r} is not a list of {len(kinds)} values")
        else:
            for kind, part in zip(kinds, item, strict=True):
                check_number(checked_value(kind, part, context), context)


def as_tuples(value: Any) -> Any:
    """Convert a list, and the lists in it, to tuples."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value
