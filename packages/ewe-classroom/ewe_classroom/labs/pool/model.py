"""A model of ewe: n threads and a bounded queue. Run it with: ewe --model model:Mine --threads 4 8080"""

from __future__ import annotations

import threading
from collections import deque

from ewe.processors.base import Processor

ROOM = 64  # connections that may wait in the queue


class Mine(Processor):
    """A fixed number of threads runs the conversations: self.config.poolthreads."""

    name = "mine"
    many_threads = True
    connection_limit = 1000

    def serve(self, listener):
        """Accept connections until the server stops; return when every conversation has ended."""
        # --- solution
        self.waiting = deque()
        self.changed = threading.Condition()
        for _ in range(self.config.poolthreads):
            threading.Thread(target=self.work, daemon=True).start()
        while not listener.closed:
            accepted = self.next_connection(listener)
            if accepted is not None:
                self.put(self.stream_of(accepted))
        self.drain()
        # --- starter
        # # run() runs a whole conversation, here in the only thread. Start self.config.poolthreads threads, and
        # # give them the streams of stream_of() in the order of their arrival.
        # for accepted in listener:
        #     self.run(self.stream_of(accepted))
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
        """Take one stream after the other, and run its conversation."""
        while True:
            with self.changed:
                while not self.waiting:
                    self.changed.wait()
                stream = self.waiting.popleft()
                self.changed.notify_all()
            self.run(stream)

    # --- end
