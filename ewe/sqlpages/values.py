"""The values of a page's parameters, from a URL's query or a form: read by their types, to be bound to statements.

A value never becomes part of a statement. A value that does not fit its type is refused, and the visitor is told
the name of the field.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import parse_qsl

from ewe.database.protocol import Value

MAX_FORM_FIELDS = 1000  # fields of a URL's query or of a form
INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
NUMBER = re.compile(r"[+-]?(?:[0-9]{1,300}(?:\.[0-9]{0,300})?|\.[0-9]{1,300})(?:[eE][+-]?[0-9]{1,3})?")


class BadValue(ValueError):
    """A value or a form that cannot be read. In Type.read(), the text lacks the name: "must be a whole number"."""


def integer(text: str) -> int:
    """Return a whole number of 64 bits: databases have no larger ones. Raises BadValue."""
    text = text.strip()  # also of characters that int() does not skip, such as "\x1c"
    if not INTEGER.fullmatch(text) or not -(1 << 63) <= int(text) < 1 << 63:
        raise BadValue("must be a whole number")
    return int(text)


def number(text: str) -> float:
    """Return a finite number. Raises BadValue."""
    text = text.strip()
    value = float(text) if NUMBER.fullmatch(text) else math.inf
    if math.isinf(value):  # no number, or one that is too large for a float
        raise BadValue("must be a number")
    return value


def date(text: str) -> str:
    """Return a date in the form 2026-12-31. Raises BadValue."""
    try:
        return datetime.date.fromisoformat(text.strip()).isoformat()
    except ValueError:
        raise BadValue("must be a date: 2026-12-31") from None


def flag(text: str) -> int:
    """Return 1 or 0 for 1, on, true or 0, off, false. Raises BadValue."""
    if text.strip().lower() not in ("0", "1", "on", "off", "true", "false"):
        raise BadValue("must be 0 or 1")
    return int(text.strip().lower() in ("1", "on", "true"))


def text_without_nul(text: str) -> str:
    """Return a text as it is. Raises BadValue for a NUL."""
    if "\0" in text:
        raise BadValue("contains a NUL character")
    return text


class Type(NamedTuple):
    """The type of a parameter.

    read: converts a text to a value, or raises BadValue. input: the type of the HTML input field. sql: the name of
    the type in SQL, in any database; a NULL needs it.
    """

    read: Callable[[str], Value]
    input: str
    sql: str


TYPES = {
    "text": Type(text_without_nul, "search", "TEXT"),
    "integer": Type(integer, "number", "BIGINT"),
    "number": Type(number, "number", "DOUBLE PRECISION"),
    "date": Type(date, "date", "DATE"),
    "flag": Type(flag, "checkbox", "BIGINT"),
}


@dataclass(frozen=True)
class Parameter:
    """A parameter that a URL or a form may give. kind: a key of TYPES. default: used if nothing is given."""

    name: str
    kind: str = "text"
    default: Value = None
    required: bool = False


def fields_of(text: str) -> dict[str, str]:
    """Return the fields of a query or of a form, the last of each name. Raises BadValue."""
    try:
        return dict(parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FORM_FIELDS))
    except UnicodeDecodeError:
        raise BadValue("The query or the form is not UTF-8") from None
    except ValueError:
        raise BadValue(f"The query or the form has more than {MAX_FORM_FIELDS} fields") from None


def values_to_bind(
    names: Iterable[str], parameters: Mapping[str, Parameter], given: Mapping[str, str]
) -> dict[str, Value]:
    """Return the values of the named parameters, to be bound to a statement. Raises BadValue.

    parameters: those that the page declares. given: the fields of a URL or a form.
    """
    return {name: value_of(parameters[name], given.get(name)) for name in names}


def value_of(parameter: Parameter, text: str | None) -> Value:
    """Return a parameter's value. An empty field is an empty text; for other types it counts as not given.

    text: of the field, None if it is not given. Raises BadValue with the parameter's name in its text.
    """
    if text is None or (parameter.kind != "text" and not text.strip()) or (parameter.required and not text):
        if parameter.required:
            raise BadValue(f"{parameter.name} is missing")
        return parameter.default
    try:
        return TYPES[parameter.kind].read(text)
    except BadValue as bad:
        raise BadValue(f"{parameter.name} {bad}") from None
