"""A model of ewe: one conversation after the other. Run it with: ewe --model model:Mine 8080"""

from __future__ import annotations

from ewe.processors.base import Processor


class Mine(Processor):
    """Runs one conversation at a time."""

    name = "mine"

    def serve(self, listener):
        """Accept connections until the server stops."""
        # --- solution
        for accepted in listener:
            self.run(self.stream_of(accepted))
        # --- starter
        # # accept() returns the next connection, or None if a signal has ended the wait. stream_of() makes a stream
        # # from the connection, and run() runs the conversation. This starter serves one client.
        # accepted = listener.accept()
        # self.run(self.stream_of(accepted))
        # --- end
