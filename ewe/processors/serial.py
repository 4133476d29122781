"""Serial: one conversation after the other. What every other model improves on.

While one client is served, or only thinks, all others wait in the backlog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.processors.base import Processor

if TYPE_CHECKING:
    from ewe.config import Config
    from ewe.listener import Listener


class Serial(Processor):
    """One process, one thread, one connection at a time."""

    name = "serial"
    supervised = False  # with more workers it is called prefork

    @classmethod
    def words(cls, config: Config) -> str:
        return "serial, one connection at a time"

    def serve(self, listener: Listener) -> None:
        for accepted in listener:
            self.hold(self.meet(accepted))
