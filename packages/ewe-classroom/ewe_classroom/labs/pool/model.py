"""A model of ewe: n threads and a bounded queue. Run it with: ewe --model model:Mine --threads 4 8080"""

from __future__ import annotations

import threading
from collections import deque

from ewe.processors.base import Processor

ROOM = 64  # connections that may wait in the queue


class Mine(Processor):
    """A fixed number of threads holds the conversations; self.config.poolthreads says how many."""

    name = "mine"
    many_threads = True
    ceiling = 1000

    def serve(self, listener):
        """Accept until the server is to stop; return once every conversation has ended."""
        # --- solution
        self.waiting = deque()
        self.changed = threading.Condition()
        for _ in range(self.config.poolthreads):
            threading.Thread(target=self.work, daemon=True).start()
        while not listener.closed:
            accepted = self.next(listener)
            if accepted is not None:
                self.put(self.meet(accepted))
        self.drain()
        # --- starter
        # # hold() runs a whole conversation, here in the only thread. Start self.config.poolthreads threads, and
        # # give them the streams that meet() makes, in the order of their coming.
        # for accepted in listener:
        #     self.hold(self.meet(accepted))
        # --- end

    # --- solution
    def put(self, stream):
        """Add a stream to the queue; wait while the queue is full."""
        with self.changed:
            while len(self.waiting) >= ROOM:
                self.changed.wait()
            self.waiting.append(stream)
            self.changed.notify_all()

    def work(self):
        """Take the first stream, hold its conversation, and so on."""
        while True:
            with self.changed:
                while not self.waiting:
                    self.changed.wait()
                stream = self.waiting.popleft()
                self.changed.notify_all()
            self.hold(stream)

    # --- end
