"""A model of ewe: one conversation after the other. Run it with: ewe --model model:Mine 8080"""

from __future__ import annotations

from ewe.processors.base import Processor


class Mine(Processor):
    """Holds one conversation at a time."""

    name = "mine"

    def serve(self, listener):
        """Accept until the server is to stop."""
        # --- solution
        for accepted in listener:
            self.hold(self.meet(accepted))
        # --- starter
        # # accept() returns the next connection, or None if a signal has ended the wait. meet() makes a stream of
        # # it, and hold() runs the conversation. This starter serves one client.
        # accepted = listener.accept()
        # self.hold(self.meet(accepted))
        # --- end
