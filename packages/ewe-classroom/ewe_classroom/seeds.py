"""Seeds: each student gets other numbers for the same lab, computed from the student's name.

    ewe-course new pool ~/handout --seed "Ada Lovelace"      the handout names the numbers, and holds the files
    ewe-grade --lab pool --seed "Ada Lovelace" server.py     the grader uses the same ones

    SHA-256("ewe-seed/1", name, what) ─▶ port     where the server listens, where the grader can choose
                                      ─▶ workers  {workers}, 3 to 6, in labs that have several
                                      ─▶ files    names and sizes of files of the site, beside the usual ones
                                      ─▶ order    which of several equal clients the grader lets go first

A server that holds another student's numbers does not fit its handout, and fails: a pool that always has 4 threads
passes for one student in four. The numbers are no secret. Case and surrounding
spaces of a name do not count, and neither does the way in which an accent is encoded.

Without a seed, everything is as in the lab's scheme.
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
FEWEST_WORKERS, MOST_WORKERS = 3, 6
FIRST_PORT, LAST_PORT = 8100, 8899
FILES = 3
MOST_OF_NAME = 100


class Seed:
    """The numbers of one student. name: as on the command line."""

    def __init__(self, name: str) -> None:
        self.name = " ".join(name.split())
        self.key = unicodedata.normalize("NFC", self.name).casefold()

    @classmethod
    def read(cls, text: str) -> Seed:
        """Return the seed of an option --seed. Raises ConfigError."""
        seed = cls(text)
        if not seed.key or not seed.key.isprintable() or len(seed.key) > MOST_OF_NAME:
            raise ConfigError(f"--seed: {text[:40]!r}; name a student, in at most {MOST_OF_NAME} characters")
        return seed

    def number(self, what: str, low: int, high: int) -> int:
        """Return a number from low to high, both included; the same for the same name and the same `what`."""
        text = "\0".join(("ewe-seed/1", self.key, what))
        return low + int.from_bytes(hashlib.sha256(text.encode()).digest()) % (high - low + 1)

    def choice(self, what: str, options: Sequence[T]) -> T:
        """Return one of several values: for a lab's tie-breaks."""
        return options[self.number(what, 0, len(options) - 1)]

    def order(self, what: str, items: Sequence[T]) -> list[T]:
        """Return the items in an order of this student."""
        rest = list(items)
        return [rest.pop(self.number(f"{what} {place}", 0, len(rest) - 1)) for place in range(len(items))]

    @property
    def port(self) -> int:
        return self.number("port", FIRST_PORT, LAST_PORT)

    def workers(self, usual: int) -> int:
        """Return the number of workers, in place of the scheme's; a lab with one worker keeps it."""
        return self.number("workers", FEWEST_WORKERS, MOST_WORKERS) if usual > 1 else usual

    def files(self) -> dict[str, bytes]:
        """Return the student's files: the path of the URL, and the bytes."""
        found = {}
        for place in range(FILES):
            name = f"{self.choice(f'word {place}', WORDS)}-{self.number(f'tail {place}', 100, 999)}"
            folder = f"/{self.choice('folder', WORDS)}" if place == FILES - 1 else ""
            size = self.number(f"size {place}", 1_000, 90_000)
            lines = "".join(f"{self.key}: line {at} of {name}\n" for at in range(size // 10))
            found[f"{folder}/{name}.{('txt', 'bin')[place % 2]}"] = lines.encode("ascii", "replace")[:size]
        return found
