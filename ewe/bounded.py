"""Bounded caches: their memory must not grow with the number of different requests that clients send.

Clients choose the paths, the names and the header fields of their requests. A dict with a result for each of them
would grow as long as a client invents new ones. Each cache of this kind answers three questions:

- **How many entries?** `most`. If the cache is full, the next new entry first drops all others. The following
  requests fill the cache again. This costs less than an LRU list, which changes at every lookup, and for which
  threads need a lock. A lookup in a BoundedDict is dict's own, in C.
- **How long is an entry valid?** A BoundedDict contains results that depend only on the key, such as the parsed
  form of an Accept-Encoding. A TimedCache contains results that may change, such as the file at a path. A client
  may get an old result for up to `seconds`.
- **Which results are not stored?** The caller decides. "No such page" is often one of them: otherwise the cache
  would hide a page that has just been written, and the page's source could be sent as a file (find_existing()).

Threads may share a cache. Each step is one operation of dict. If two threads compute the same result, the cache
keeps the last one. Several threads together may exceed `most` by their number.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

# A file or directory that changed less than this many seconds ago is not cached: time stamps have tick resolution
# (10 ms), so a second change could go unnoticed.
SETTLED_S = 0.05


class BoundedDict(dict[K, V]):
    """A dict of at most `most` entries. Only `cache[key] = value` enforces the bound."""

    __slots__ = ("most",)

    def __init__(self, most: int) -> None:
        self.most = most

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self.most:
            self.clear()
        super().__setitem__(key, value)


class TimedCache(Generic[K, V]):
    """Results that are valid for `seconds`; at most `most` entries."""

    __slots__ = ("entries", "seconds")

    def __init__(self, most: int, seconds: float) -> None:
        self.seconds = seconds
        # key -> (the monotonic() at which the entry expires, the result)
        self.entries: BoundedDict[K, tuple[float, V]] = BoundedDict(most)

    def find(self, key: K, find_uncached: Callable[[K], V]) -> V:
        """Return the result for a key; if the cache has no valid one, call `find_uncached` and store its result.

        Raises the exceptions of `find_uncached`.
        """
        entry = self.entries.get(key)
        now = monotonic()
        if entry is not None and entry[0] > now:
            return entry[1]
        value = find_uncached(key)
        self.entries[key] = (now + self.seconds, value)
        return value

    def find_existing(self, key: K, find_uncached: Callable[[K], V | None]) -> V | None:
        """Return the result for a key, as find() does, but do not store None."""
        entry = self.entries.get(key)
        now = monotonic()
        if entry is not None and entry[0] > now:
            return entry[1]
        value = find_uncached(key)
        if value is not None:
            self.entries[key] = (now + self.seconds, value)
        return value

    def get(self, key: K, default: D) -> V | D:
        """Return the result for a key; `default` if the cache has no valid one."""
        entry = self.entries.get(key)
        return entry[1] if entry is not None and entry[0] > monotonic() else default

    def __setitem__(self, key: K, value: V) -> None:
        self.entries[key] = (monotonic() + self.seconds, value)

    def __len__(self) -> int:
        return len(self.entries)

    def forget(self, key: K) -> None:
        """Drop the result for a key, if there is one."""
        self.entries.pop(key, None)

    def clear(self) -> None:
        """Drop all results."""
        self.entries.clear()
