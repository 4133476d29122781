"""Layouts: how a result's columns and rows become text. TABLE, PRE and OPTION come from the paper, section 3.2.

Each layout is a function that yields text as the rows come, so a result of a million rows needs no more memory than
one row. Text from a database is never treated as HTML: every value and every column's name is escaped.
"""

from __future__ import annotations

import json
import re
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape

from ewe.database.protocol import FRAGMENT_BYTES, Value

Row = Sequence[Value]
# XML 1.0 section 2.2 cannot represent these characters, not even by a reference
NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def table(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    """Yield an HTML table. A cell with NULL is empty; numbers have the class `number`."""
    yield f"<table>\n<thead><tr>{''.join(f'<th>{escape(name)}</th>' for name in columns)}</tr></thead>\n<tbody>\n"
    for row in rows:
        yield f"<tr>{''.join(map(cell, row))}</tr>\n"
    yield "</tbody>\n</table>\n"


def cell(value: Value) -> str:
    """Return one cell of an HTML table."""
    if isinstance(value, int | float):
        return f'<td class="number">{value}</td>'
    return f"<td>{escape(text(value))}</td>"


def pre(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    """Yield preformatted text: the columns' names and values, separated by tabs."""
    yield "<pre>\n" + escape("\t".join(map(without_separators, columns))) + "\n"
    for row in rows:
        yield escape("\t".join(without_separators(text(value)) for value in row)) + "\n"
    yield "</pre>\n"


def option(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    """Yield the options of an HTML <select>. The first column is the value, the others are the label.

    A single column is both. A row without columns, which PostgreSQL allows, is an empty option.
    """
    for row in rows:
        value, *label_parts = map(text, row or ("",))
        label = " ".join(label_parts or [value])
        yield f'<option value="{escape(value)}">{escape(label)}</option>\n'


def as_json(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    """Yield a JSON list of objects, one row on each line. Bytes are base64, numbers that JSON lacks are null."""
    names = [json.dumps(name, ensure_ascii=False) for name in columns]
    separator = "[\n"
    for row in rows:
        fields = (f"{name}: {json_value(value)}" for name, value in zip(names, row, strict=True))
        yield f"{separator}{{{', '.join(fields)}}}"
        separator = ",\n"
    yield "[]\n" if separator == "[\n" else "\n]\n"  # the separator is still "[\n": there was no row


def json_value(value: Value) -> str:
    """Return one value as JSON."""
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        return "null"
    return json.dumps(base64(value) if isinstance(value, bytes) else value, ensure_ascii=False)


def as_rows(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    """Yield a line of JSON with the columns' names, and one list of JSON for each row. Values keep their types.

    Bytes, and numbers that JSON lacks, become objects: {"base64": "AP8="}, {"float": "inf"}.
    """
    yield json.dumps(list(columns)) + "\n"
    for row in rows:
        yield f"[{','.join([row_value(value) for value in row])}]\n"


def row_value(value: Value) -> str:
    """Return one value of as_rows(), as JSON.

    json.dumps() makes an encoder object at each call. Texts and most numbers are encoded without it, which is
    faster.
    """
    kind = type(value)
    if kind is str:
        return quoted_in_json(value)  # type: ignore[arg-type]
    if kind is int or (kind is float and -float("inf") < value < float("inf")):  # type: ignore[operator]
        return repr(value)
    return json.dumps(json_object(value))


def json_object(value: Value) -> object:
    """Return a value in the form that as_rows() gives to JSON: one that JSON lacks becomes an object."""
    if isinstance(value, bytes):
        return {"base64": base64(value)}
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        return {"float": str(value)}
    return value


quoted_in_json = json.encoder.encode_basestring_ascii  # the function of json.dumps() for a text


def csv(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    """Yield comma-separated values with a line of names: RFC 4180."""
    yield ",".join(map(csv_field, columns)) + "\r\n"
    for row in rows:
        yield ",".join(csv_field(text(value)) for value in row) + "\r\n"


def csv_field(value: str) -> str:
    """Return a field in the form of RFC 4180 section 2: in quotes, if it contains a separator or a quote."""
    needs_quotes = any(character in value for character in ',"\r\n')
    return '"' + value.replace('"', '""') + '"' if needs_quotes else value


def xml(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    """Yield an XML document. An attribute has the column's name, because not every name can name an element."""
    yield '<?xml version="1.0" encoding="UTF-8"?>\n<result>\n'
    names = [f'<value column="{in_xml(name)}"' for name in columns]
    for row in rows:
        values = (
            f"{name}/>" if value is None else f"{name}>{in_xml(text(value))}</value>"
            for name, value in zip(names, row, strict=True)
        )
        yield f"<row>{''.join(values)}</row>\n"
    yield "</result>\n"


def in_xml(value: str) -> str:
    """Return a text for XML: U+FFFD for characters that XML lacks, a reference for CR, which parsers drop."""
    return escape(NOT_IN_XML.sub("\ufffd", value)).replace("\r", "&#13;")


def text(value: Value) -> str:
    """Return a value as text: NULL is empty, bytes are base64."""
    if value is None:
        return ""
    return base64(value) if isinstance(value, bytes) else str(value)


def without_separators(value: str) -> str:
    """Return a text without the characters that separate columns and rows."""
    return value.replace("\t", " ").replace("\r", " ").replace("\n", " ")


def base64(value: bytes) -> str:
    """Return bytes as base64: RFC 4648."""
    return b2a_base64(value, newline=False).decode()


Layout = Callable[[Sequence[str], Iterable[Row]], Iterator[str]]
LAYOUTS: dict[str, Layout] = {
    "TABLE": table,
    "PRE": pre,
    "OPTION": option,
    "JSON": as_json,
    "CSV": csv,
    "XML": xml,
    "ROWS": as_rows,
}


def fragments(
    layout: str, columns: Sequence[str], rows: Iterable[Row], size: int = FRAGMENT_BYTES
) -> Iterator[bytes]:
    """Yield a result in pieces of at most `size` bytes; the last may be empty. layout: a key of LAYOUTS."""
    waiting = bytearray()
    for part in LAYOUTS[layout](columns, rows):
        waiting += part.encode("utf-8", "replace")
        while len(waiting) >= size:
            yield bytes(waiting[:size])
            del waiting[:size]
    yield bytes(waiting)
