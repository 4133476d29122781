"""A count range: the smallest and the largest number of workers, written ``8``, ``8..64`` or ``auto``.

``8..64``: 8 workers start, and up to 64 while all of them are busy (ewe.processors.growth). Code that knows no
growth uses a CountRange as an int.
"""

from __future__ import annotations

import re

from ewe.config.messages import Reason
from ewe.config.setting_types import COUNT, Kind

MOST = 4096  # the largest end of a range; a fixed number may be larger


class CountRange(int):
    """The number of workers that start, and the number that they may grow to; as an int, it is the first one.

    least: that number. most: equal to `least` if the number is fixed.
    """

    least: int
    most: int

    def __new__(cls, least: int, most: int | None = None) -> CountRange:
        """Return the range from `least` to `most`; None: a fixed number."""
        made = super().__new__(cls, least)
        made.least, made.most = least, least if most is None else most
        return made

    def __eq__(self, other: object) -> bool:
        """Return whether both ends are equal. A fixed number equals the same int."""
        most = other.most if isinstance(other, CountRange) else other
        return int.__eq__(self, other) is True and self.most == most

    def __ne__(self, other: object) -> bool:
        """Return whether an end differs."""
        return not self == other

    __hash__ = int.__hash__

    def __str__(self) -> str:
        """Return the range as a setting writes it: 8 or 8..64."""
        return f"{self.least}..{self.most}" if self.grows else int.__repr__(self)

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        """Format the text of the range, where an int would format its number."""
        return format(str(self), spec)

    def __reduce__(self) -> tuple[type[CountRange], tuple[int, int]]:
        """Return how pickle makes a copy with both ends."""
        return CountRange, (self.least, self.most)

    @property
    def grows(self) -> bool:
        """Whether the largest number is above the smallest."""
        return self.most > self.least

    def shifted(self, difference: int) -> CountRange:
        """Return the range with both ends moved; the range itself if its lower end would be 0."""
        least = self.least + difference
        return CountRange(least, self.most + difference) if least >= 1 else self


class CoreCount(CountRange):
    """A worker for each processor that this process may use (cores.py), written ``auto``.

    The processors are counted when the setting is read: at the start, and again at HUP.
    """

    def __new__(cls, cores: int) -> CoreCount:
        """Return the fixed range of so many processors."""
        made = super().__new__(cls, cores)
        assert isinstance(made, CoreCount)
        return made

    def __str__(self) -> str:
        """Return `auto`, as the setting was written."""
        return "auto"

    __repr__ = __str__

    def __reduce__(self) -> tuple[type[CountRange], tuple[int]]:  # type: ignore[override]
        """Return how pickle makes a copy."""
        return CoreCount, (self.least,)


def range_of(number: int) -> CountRange:
    """Return a number as a range: a fixed one, unless it is a range already."""
    return number if isinstance(number, CountRange) else CountRange(number)


def read_range(raw: object) -> CountRange:
    """Return the range of a number, or of a text such as ``8`` or ``8..64``. Raises ValueError."""
    if isinstance(raw, CountRange):
        return raw
    if not isinstance(raw, str) or ".." not in raw:
        return CountRange(COUNT.read(raw))
    match = re.fullmatch(r"\s*([0-9]{1,9})\s*\.\.\s*([0-9]{1,9})\s*", raw)
    if match is None:
        raise ValueError(raw)
    least, most = int(match[1]), int(match[2])
    if least < 1:
        raise Reason("0 workers serve nobody")
    if least > most:
        raise Reason(f"{least} is above {most}")
    if most > MOST:
        raise Reason(f"{most} is above {MOST}")
    return CountRange(least, most)


COUNT_RANGE: Kind[CountRange] = Kind("N|N..M", "a whole number from 1, or a range such as 8..64", read_range)


def read_workers(raw: object) -> CountRange | None:
    """Return the range of the number of workers; None for ``default``: the model chooses. Raises ValueError."""
    if raw is None or raw == "default":
        return None
    if raw == "auto":
        # Only this value needs the module, and a fork is faster without it.
        from ewe.config.cores import usable_cores

        return CoreCount(usable_cores())
    return read_range(raw)


WORKERS: Kind[CountRange | None] = Kind(
    "N|N..M|auto",
    f"auto, default, {COUNT_RANGE.expected}",
    read_workers,
    lambda value: "default" if value is None else str(value),
)
