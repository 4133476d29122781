"""Bounded caches: the memory for answers must not grow with the number of questions that clients think of.

Clients choose the paths, the names and the header fields of their requests. A dict that keeps an answer for each of
them grows as long as a client invents new ones. Each cache of this kind decides three things:

- **How many entries?** `most`. The entry that would be one too many first drops all others. The next requests
  build the cache again, which costs less than an LRU list: that list is written at every lookup, and threads need a
  lock for it. Here a lookup in a BoundedDict is dict's own, in C.
- **How long is an entry true?** A BoundedDict holds what follows from its key alone, such as the meaning of an
  Accept-Encoding. A TimedCache holds what can change outside, such as the file at a path: `seconds` is the time for
  which a client may get the old answer.
- **Which answers are not kept?** The caller decides. "No such page" is often among them: a page that has just been
  written would otherwise be missed, and its source could be sent as a file.

Threads may share a cache. Each step is one operation of dict. Two threads may compute the same answer, and the last
one is kept; several threads together may exceed `most` by their number.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class BoundedDict(dict[K, V]):
    """A dict of at most `most` entries. `cache[key] = value` is the way to add one."""

    __slots__ = ("most",)

    def __init__(self, most: int) -> None:
        self.most = most

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self.most:
            self.clear()
        super().__setitem__(key, value)


class TimedCache(Generic[K, V]):
    """Answers that hold for `seconds`; at most `most` of them."""

    __slots__ = ("entries", "seconds")

    def __init__(self, most: int, seconds: float) -> None:
        self.seconds = seconds
        self.entries: BoundedDict[K, tuple[float, V]] = BoundedDict(
            most
        )  # until when it holds, and the answer

    def find(self, key: K, find_uncached: Callable[[K], V]) -> V:
        """Return the answer for a key, asking `find_uncached` if the cache has none. Raises what that raises."""
        entry = self.entries.get(key)
        now = monotonic()
        if entry is not None and entry[0] > now:
            return entry[1]
        value = find_uncached(key)
        self.entries[key] = (now + self.seconds, value)
        return value

    def get(self, key: K, default: D) -> V | D:
        """Return the answer for a key, `default` if the cache has none that still holds."""
        entry = self.entries.get(key)
        return entry[1] if entry is not None and entry[0] > monotonic() else default

    def __setitem__(self, key: K, value: V) -> None:
        self.entries[key] = (monotonic() + self.seconds, value)

    def __len__(self) -> int:
        return len(self.entries)

    def forget(self, key: K) -> None:
        """Drop the answer for a key, if there is one."""
        self.entries.pop(key, None)

    def clear(self) -> None:
        """Drop all answers."""
        self.entries.clear()
