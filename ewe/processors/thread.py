"""Thread: a thread for each connection.

    main thread: accept ─▶ start a thread ─▶ accept ─▶ start a thread ─▶ ...
                              │                            │
                              ▼                            ▼
                     conversation of A            conversation of B            at the same time

A thread costs less than a process: no page tables are copied, and all connections use one file cache. Each
conversation uses a blocking stream, as in the serial model. While its client is silent, its thread sleeps in
recv(2), and the other threads run.

All threads share one Python interpreter and its lock (GIL): only one thread runs Python code at any moment. A
system call releases the lock, so threads do not wait for each other's clients and disks, only for each other's
computation. Threads also share every object. Several conversations change the file cache, the counters and the set
of live streams. These changes are safe because they use operations that the interpreter makes atomic, such as
adding to a set.

Possible failures: each open connection needs a thread and its stack, so a thousand idle clients are a thousand
threads. `connection_limit` bounds them. If the system refuses to start a thread, the connection is answered with
503. A thread cannot be killed from outside. abort() therefore shuts its socket down, and the next call of the
conversation raises Disconnected.

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
    """Starts a thread for each connection, up to the connection limit."""

    name = "thread"
    many_threads = True
    worker_method = "run"
    connection_limit = 1000

    @classmethod
    def description(cls, config: Config) -> str:
        return "a thread per connection"

    def serve(self, listener: Listener) -> None:
        """Start a thread for each connection; return once the listener is closed and every thread has ended."""
        while not listener.closed:
            accepted = self.next_connection(listener)
            if accepted is not None:
                self.start(accepted)
        self.drain()

    def start(self, accepted: Accepted) -> None:
        """Start a thread for a connection; refuse the connection if the system starts no more threads."""
        stream = self.stream_of(accepted)
        try:
            # threading.Thread.start() would wait until the new thread runs, which doubles the cost of a start.
            start_new_thread(self.run, (stream,))
        except RuntimeError as reason:
            self.forget(stream)
            self.refuse(accepted, str(reason))
