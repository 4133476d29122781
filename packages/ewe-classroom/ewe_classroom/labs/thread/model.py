"""A model of ewe: a thread for each connection. Run it with: ewe --model model:Mine 8080"""

from __future__ import annotations

import threading

from ewe.processors.base import Processor


class Mine(Processor):
    """Starts a thread for each connection."""

    name = "mine"
    many_threads = True
    ceiling = 1000

    def serve(self, listener):
        """Accept until the server is to stop; return once every conversation has ended."""
        # --- solution
        while not listener.closed:
            accepted = self.next(listener)
            if accepted is None:
                continue
            stream = self.meet(accepted)
            try:
                threading.Thread(target=self.hold, args=(stream,), daemon=True).start()
            except RuntimeError as reason:  # no thread is left
                self.forget(stream)
                self.refuse(accepted, str(reason))
        self.drain()
        # --- starter
        # # hold() runs a whole conversation, here in the only thread: nobody else is served meanwhile.
        # for accepted in listener:
        #     self.hold(self.meet(accepted))
        # --- end
