"""The words for a wrong setting: one line that names the place, the key and the remedy."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

MAX_SHOWN_CHARS = 300  # characters of a wrong value


class Reason(ValueError):
    """A value is not of its kind. The text says why; the message for people ends with it."""


class Failure(Exception):
    """A command cannot do its work. The text is one line for people.

    exit_status: with which the command ends (ewe/config/command.py).
    """

    exit_status = 1


class ConfigError(Failure, ValueError):
    """A setting cannot be used. The text is one line that names the place, the key and the remedy."""

    exit_status = 2

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def one_line(text: str) -> str:
    """Return a text in one line: line ends, control characters and invalid bytes become escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quoted(value: object) -> str:
    """Return a value as TOML writes it, in one line.

    A number such as 0xfff... may have more decimal digits than Python writes (sys.get_int_max_str_digits()). TOML
    cannot write a list that contains itself, which only a caller in Python can give: Python shows it as [...].
    """
    import json

    try:
        return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")
    except ValueError:
        with suppress(ValueError):
            return one_line(repr(value))
        return "(a number of thousands of digits)"


def wrong_value(label: str, value: object, expected: str) -> ConfigError:
    """Return the error for a value. label: how the message begins. expected: the values that are right."""
    text = quoted(value)
    if len(text) > MAX_SHOWN_CHARS:
        text = f"{text[:MAX_SHOWN_CHARS]}..."
    return ConfigError(f"{label} {text}: expected {expected}")


def unknown_key(
    label: str, key: object, known: Iterable[str], *, table: str = "", instead: str = ""
) -> ConfigError:
    """Return the error for a key that a table does not have.

    label: how the message begins. table: the table's name; "": the label says it. instead: the hint if no known key
    is similar; "": the known keys.
    """
    where = f" in {table}" if table else ""
    return ConfigError(f"{label} unknown key {quoted(key)}{where}{nearest(str(key), known) or instead}")


def nearest(name: str, names: Iterable[str], likeness: float = 0.6) -> str:
    """Return ``; did you mean "port"?`` for the most similar of some names, "" if none is similar enough.

    likeness: from 0 (any name will do) to 1 (only the name itself).
    """
    import difflib

    near = difflib.get_close_matches(name, list(names), 1, likeness)
    return f'; did you mean "{near[0]}"?' if near else ""


def docs_page(name: str, package: str = "") -> str:
    """Return the path of a page of docs/: in the clone that runs, or where pip has installed it.

    package: the directory below packages/ whose page is meant; without one, the page is the server's.
    """
    clone = Path(__file__).resolve().parents[2]
    prefix = os.path.normpath(clone / "../../..")  # of prefix/lib/python3.11/site-packages
    source = f"packages/{package}/docs/{name}" if package else f"docs/{name}"
    for page in (clone / source, Path(prefix, "share/doc", package or "ewe", name)):
        if page.is_file():
            return str(page.relative_to(clone) if clone == Path.cwd() else page)
    return f"{source} of ewe's source"
