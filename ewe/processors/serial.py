"""Serial: one connection after the other. All other models improve on this one.

The listener yields a connection; its conversation runs to its end; then the listener yields the next:

    client A ──┐
    client B ──┤ backlog ─▶ accept ─▶ conversation of A ... end ─▶ accept ─▶ conversation of B ... end ─▶ ...
    client C ──┘ (kernel)             B and C wait

This is the whole model, and it is enough for one client at a time. Two conversations never run at once, so they
need no locks and share no state, and a stack trace shows everything.

The second client shows the weakness. While A is served, B waits, and most of that time the process does nothing:
A's network is slow. If B waits, the server ends A's connection between two requests (streams/serial.py). But a
client that connects and sends nothing stops the server until head_timeout. Every other model answers the same
question differently: which conversation runs while this one waits?

Read next: fork.py (another process), thread.py (another thread), pool.py (another connection).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.processors.base import Processor
from ewe.streams.serial import SerialStream, limit_waits

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.streams.listener import Accepted, Listener


class Serial(Processor):
    """One process, one thread, one connection at a time."""

    name = "serial"
    runs_at_once = True
    supervised = False  # with several workers the model is called prefork

    @classmethod
    def description(cls, config: Config) -> str:
        return "serial, one connection at a time"

    def serve(self, listener: Listener) -> None:
        """Serve one connection after the other until the listener is closed."""
        limit_waits(listener.sockets.values())
        for accepted in listener:
            self.run(self.stream_of(accepted))

    def blocking_stream(self, accepted: Accepted) -> SerialStream:
        """Return a SerialStream, which lets go of the process if others wait; a trusted proxy's stays."""
        stays = self.conversations.is_trusted(accepted.client[0])
        return SerialStream(accepted, self.config, self.others_wait, stays)

    def others_wait(self) -> bool:
        """Return whether a client waits for this process."""
        return self.listener.has_waiting()
