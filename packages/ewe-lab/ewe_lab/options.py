"""Types of options for the lab's commands, built from the types of ewe's settings; and their error.

argparse calls a type with the text of an option. The kinds of ewe's settings (config/setting_types.py) read the
same texts, `100ms` or `64k`, and word a wrong one. argparse_type() makes an argparse type of such a kind, so that a
time is written alike in a settings file, on ewe's command line and on the lab's.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ewe.config.messages import Failure
from ewe.config.setting_types import SIZE, Kind, whole

T = TypeVar("T")
DEFAULT_PATH = "/index.html"  # of the requests
DEFAULT_THINK_S = 0.1  # the pause of a closed user between an answer and the next request


class CommandError(Failure):
    """A command has wrong arguments or cannot run here. The text is one line. status: the exit status."""

    def __init__(self, text: str, status: int = 2) -> None:
        super().__init__(text)
        self.exit_status = status


def argparse_type(kind: Kind[T]) -> Callable[[str], T]:
    """Return the argparse type for a type of setting."""

    def read(text: str) -> T:
        try:
            return kind.read(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {kind.expected}") from None

    return read


def number_type(low: float, high: float) -> Callable[[str], float]:
    """Return the argparse type for a number from `low` to `high`."""

    def read(text: str) -> float:
        try:
            if low <= (number := float(text)) <= high:
                return number
        except ValueError:
            pass  # no number: the same error as for one outside the range
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low:g} to {high:g}")

    return read


def whole_number_type(low: int, high: int) -> Callable[[str], int]:
    """Return the argparse type for a whole number from `low` to `high`."""
    return argparse_type(whole(low, high, f"a whole number from {low} to {high}"))


def read_path(text: str) -> str:
    """Read the path of a URL."""
    if not re.fullmatch(r"/[!-~]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a path that begins with / and has no spaces")
    return text


def read_file_name(text: str) -> Path:
    """Read the name of a file or a directory. An empty one, of a variable that is not set, would be `.`."""
    if not text:
        raise argparse.ArgumentTypeError("'' is not the name of a file or a directory")
    return Path(text)


def split_at_commas(text: str) -> list[str]:
    """Split a list at its commas."""
    return not_empty([part.strip() for part in text.split(",") if part.strip()], text)


def split_words(text: str) -> list[str]:
    """Split a list at its commas and spaces."""
    return not_empty([part for part in re.split(r"[,\s]+", text) if part], text)


def not_empty(parts: list[str], text: str) -> list[str]:
    """Return the parts of a list. An empty list is an error: the option would count as left out."""
    if not parts:
        raise argparse.ArgumentTypeError(f"{text!r} names nothing")
    return parts


def one_of(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Return the argparse type for a list of some of these names."""

    def read(text: str) -> list[str]:
        for word in (found := split_words(text)):
            if word not in names:
                raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(names)}")
        return found

    return read


def read_sizes(text: str) -> list[int]:
    """Read a list of sizes, such as `64,1k`; a size that is repeated counts once."""
    return list(dict.fromkeys(argparse_type(SIZE)(part) for part in split_words(text)))
