"""A flag that a signal handler or another thread raises, once. An event loop can wait for it.

A coroutine that waits first adds a function to `watchers`, then reads `raised`, since the flag may be raised in
between. set() calls the watchers in its own thread, perhaps in a signal handler. A watcher therefore only passes
the news on, for example with the loop's call_soon_threadsafe(). See streams/loops.py.
"""

from __future__ import annotations

from collections.abc import Callable


class Flag:
    """A fact that becomes true once, such as: the server wants the processor to stop."""

    __slots__ = ("raised", "watchers")

    def __init__(self) -> None:
        self.raised = False
        self.watchers: list[Callable[[], object]] = []

    def set(self) -> None:
        """Raise the flag, and call the watchers."""
        self.raised = True
        for watcher in tuple(self.watchers):
            watcher()
