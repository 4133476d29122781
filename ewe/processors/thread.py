"""Thread: a thread for each connection.

    main thread: accept ─▶ start a thread ─▶ accept ─▶ start a thread ─▶ ...
                              │                            │
                              ▼                            ▼
                     conversation of A            conversation of B            at the same time

A thread costs less than a process: no copy of page tables, one file cache for all connections. The conversation is
the blocking one again; while its client is silent its thread sleeps in recv(2) and the others run.

All threads share one Python interpreter and its lock (GIL): only one of them runs Python code at any moment. A
system call releases the lock, so threads do not wait for each other's clients and disks, only for each other's
computation. Threads also share every object. What two conversations change (the file cache, counters, the set of
live streams) relies on operations that the interpreter makes atomic, such as adding to a set.

What can go wrong: each open connection holds a thread and its stack, so a thousand idle clients are a thousand
threads; `ceiling` bounds them. The system may refuse a thread: that connection is answered with 503. A thread
cannot be killed from outside: abort() closes its socket, and the conversation meets Disconnected at its next call.

Read next: pool.py, with few threads for many connections.
"""

from __future__ import annotations

from _thread import start_new_thread
from typing import TYPE_CHECKING

from ewe.processors.base import Processor

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.streams.listener import Accepted, Listener


class Thread(Processor):
    """Starts a thread for each connection, up to the ceiling."""

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
                self.start(accepted)
        self.drain()

    def start(self, accepted: Accepted) -> None:
        """Start a thread for a connection; refuse the connection if the system gives no more threads."""
        stream = self.meet(accepted)
        try:
            # threading.Thread.start() would wait until the new thread runs, which doubles the cost of a start.
            start_new_thread(self.hold, (stream,))
        except RuntimeError as reason:
            self.forget(stream)
            self.refuse(accepted, str(reason))
