"""Thread: a thread per connection.

Threads share the file cache and the interpreter, and its lock: while one runs Python the others wait, but
none waits for another's client.
"""

from __future__ import annotations

from _thread import start_new_thread
from typing import TYPE_CHECKING

from ewe.processors.base import Processor

if TYPE_CHECKING:
    from ewe.config import Config
    from ewe.listener import Listener


class Thread(Processor):
    """Start a thread for each connection, up to the ceiling."""

    name = "thread"
    many_threads = True
    ceiling = 1000

    @classmethod
    def words(cls, config: Config) -> str:
        return "a thread per connection"

    def serve(self, listener: Listener) -> None:
        while not listener.closed:
            accepted = self.next(listener)
            if accepted is not None:
                # Not threading.Thread, whose start() waits until the new thread runs: twice the price.
                start_new_thread(self.hold, (self.meet(accepted),))
        self.drain()
