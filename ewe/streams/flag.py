"""A flag that a signal handler or another thread raises, once, and that an event loop can wait for.

Who waits adds a function to `watchers`, then looks at `raised`, since the flag may be raised in between. set()
calls the watchers where it is called, also in a signal handler: a watcher only hands the news on, for example by
the loop's call_soon_threadsafe(). See streams/loops.py.
"""

from __future__ import annotations

from collections.abc import Callable


class Flag:
    """A fact that becomes true once, such as: the processor was told to stop."""

    __slots__ = ("raised", "watchers")

    def __init__(self) -> None:
        self.raised = False
        self.watchers: list[Callable[[], object]] = []

    def set(self) -> None:
        """Raise the flag, and call the watchers."""
        self.raised = True
        for watcher in tuple(self.watchers):
            watcher()
