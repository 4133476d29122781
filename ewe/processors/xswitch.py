"""X-Switch: an event loop in front, and engines behind it that keep their interpreters (`ewe -x`).

The front is the event model; what makes the difference is a server of its own, `ewe-xswitch`, which the
supervisor keeps alive beside the worker (ewe.companion) and which runs programs as their owners. Any other model
uses one that is there already: `--xswitch unix:PATH`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.processors.event import Event

if TYPE_CHECKING:
    from ewe.config import Config


class XSwitch(Event):
    """The event model before X-Switch."""

    name = "xswitch"
    has_companion = True

    @classmethod
    def words(cls, config: Config) -> str:
        return f"{super().words(config)} before X-Switch"
