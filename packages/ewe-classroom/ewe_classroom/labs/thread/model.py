"""A model of ewe: a thread for each connection. Run it with: ewe --model model:Mine 8080"""

from __future__ import annotations

import threading

from ewe.processors.base import Processor


class Mine(Processor):
    """Starts a thread for each connection."""

    name = "mine"
    many_threads = True
    connection_limit = 1000

    def serve(self, listener):
        """Accept connections until the server stops; return when every conversation has ended."""
        # --- solution
        while not listener.closed:
            accepted = self.next_connection(listener)
            if accepted is None:
                continue
            stream = self.stream_of(accepted)
            try:
                threading.Thread(target=self.run, args=(stream,), daemon=True).start()
            except RuntimeError as reason:  # the limit of threads is reached
                self.forget(stream)
                self.refuse(accepted, str(reason))
        self.drain()
        # --- starter
        # # run() runs a whole conversation, here in the only thread: all other clients wait meanwhile.
        # for accepted in listener:
        #     self.run(self.stream_of(accepted))
        # --- end
