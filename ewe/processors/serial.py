"""Serial: one connection after the other. The model that all others improve on.

The listener yields a connection; its conversation runs to its end; then the listener yields the next:

    client A ──┐
    client B ──┤ backlog ─▶ accept ─▶ conversation of A ... end ─▶ accept ─▶ conversation of B ... end ─▶ ...
    client C ──┘ (kernel)             B and C wait

This is the whole model, and enough for one client at a time. No two conversations ever run at once, so nothing can
go wrong between them: no lock, no shared state, a stack trace that shows everything.

What is wrong with it shows with the second client. While A is served, B waits; and most of that time the processor
does nothing, because A's connection is idle between two requests, or A's network is slow. One client that connects
and says nothing stops the server, until head_timeout ends its conversation. Every other model answers the same
question differently: who runs when this conversation waits?

Read next: fork.py (another process), thread.py (another thread), pool.py (another connection).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.processors.base import Processor

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.streams.listener import Listener


class Serial(Processor):
    """One process, one thread, one connection at a time."""

    name = "serial"
    supervised = False  # with several workers the model is called prefork

    @classmethod
    def words(cls, config: Config) -> str:
        return "serial, one connection at a time"

    def serve(self, listener: Listener) -> None:
        for accepted in listener:
            self.hold(self.meet(accepted))
