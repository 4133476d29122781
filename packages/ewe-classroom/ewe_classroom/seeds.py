"""Seeds: each student gets personal numbers for a lab, computed from the student's name.

    ewe-course new pool ~/handout --seed "Ada Lovelace"      the handout lists the numbers and contains the files
    ewe-grade --lab pool --seed "Ada Lovelace" server.py     the grader uses the same numbers

    SHA-256("ewe-seed/1", name, what) ─▶ port     the server's port, if the grader can choose it
                                      ─▶ workers  {workers}, 3 to 6, in labs that have several
                                      ─▶ files    names and sizes of more files of the site
                                      ─▶ order    the order in which the grader takes equal clients

A server that contains another student's numbers fails: a pool that always has 4 threads passes for one student in
four. The numbers are not secret. Upper and lower case, spaces around a name, invisible characters, and the encoding
of an accent make no difference.

Without a seed, the numbers come from the lab's scheme.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from typing import TypeVar

from ewe.config.messages import ConfigError

T = TypeVar("T")
WORDS = (
    "barn",
    "bell",
    "clover",
    "field",
    "fleece",
    "flock",
    "gate",
    "hay",
    "lamb",
    "loom",
    "meadow",
    "yarn",
)
MIN_WORKERS, MAX_WORKERS = 3, 6
FIRST_PORT, LAST_PORT = 8100, 8899
FILE_COUNT = 3
MAX_NAME_CHARS = 100
# Characters of the category Cf that belong to a spelling: two joiners, and visible signs before numbers
SPELLING = "\u200c\u200d\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2"


def plain_name(text: str) -> str:
    """Return a name to compare: no invisible characters, ordinary blanks (the categories Cf and Zs of Unicode).

    Persian names have U+200C between two letters, and a word processor writes U+00A0 between two names. Few people
    can type them again, and str.isprintable() is false for both.
    """
    kinds = ((each, unicodedata.category(each)) for each in text)
    return "".join(" " if kind == "Zs" else each for each, kind in kinds if kind != "Cf")


def shown_name(text: str) -> str:
    """Return a name as a person wrote it, but for the characters that no spelling needs (plain_name()).

    SPELLING is a part of the word: without it, a Persian name is another one. The other characters of the category
    Cf could turn the order of the letters round, in which a page shows a name.
    """
    kinds = ((each, unicodedata.category(each)) for each in text)
    return "".join(" " if kind == "Zs" else each for each, kind in kinds if kind != "Cf" or each in SPELLING)


class Seed:
    """The numbers of one student. name: the argument of --seed."""

    def __init__(self, name: str) -> None:
        self.name = " ".join(shown_name(name).split())
        self.key = unicodedata.normalize("NFC", " ".join(plain_name(name).split())).casefold()

    @classmethod
    def read(cls, text: str) -> Seed:
        """Return the seed of an option --seed. Raises ConfigError."""
        seed = cls(text)
        if not seed.key or not seed.key.isprintable() or len(seed.key) > MAX_NAME_CHARS:
            raise ConfigError(
                f"--seed: {text[:40]!r}; name a student, in at most {MAX_NAME_CHARS} characters"
            )
        return seed

    def number(self, what: str, low: int, high: int) -> int:
        """Return a number from low to high, both included. The same name and `what` always give the same number.

        what: the use of the number. It keeps two numbers of a student independent.
        """
        text = "\0".join(("ewe-seed/1", self.key, what))
        return low + int.from_bytes(hashlib.sha256(text.encode()).digest()) % (high - low + 1)

    def choice(self, what: str, options: Sequence[T]) -> T:
        """Return one of several values, for example to break a tie in a lab. what: the use of the value."""
        return options[self.number(what, 0, len(options) - 1)]

    def order(self, what: str, items: Sequence[T]) -> list[T]:
        """Return the items in this student's order. what: the use of the order, from which its numbers are made."""
        not_taken = list(items)
        return [
            not_taken.pop(self.number(f"{what} {index}", 0, len(not_taken) - 1))
            for index in range(len(items))
        ]

    @property
    def port(self) -> int:
        return self.number("port", FIRST_PORT, LAST_PORT)

    def workers(self, usual: int) -> int:
        """Return the student's number of workers. A lab with one worker keeps one."""
        return self.number("workers", MIN_WORKERS, MAX_WORKERS) if usual > 1 else usual

    def files(self) -> dict[str, bytes]:
        """Return the student's files: URL path -> bytes. Only the last one lies in a folder."""
        files = {}
        for index in range(FILE_COUNT):
            name = f"{self.choice(f'word {index}', WORDS)}-{self.number(f'tail {index}', 100, 999)}"
            folder = f"/{self.choice('folder', WORDS)}" if index == FILE_COUNT - 1 else ""
            size = self.number(f"size {index}", 1_000, 90_000)
            # A line has more than 10 bytes, so the text is longer than the file, and is cut at the end.
            text = "".join(f"{self.key}: line {line} of {name}\n" for line in range(size // 10))
            suffix = ("txt", "bin")[index % 2]
            files[f"{folder}/{name}.{suffix}"] = text.encode("ascii", "replace")[:size]
        return files
