"""X-Switch: the event model in front of engines, which keep their interpreters running (`ewe -x`).

    client ── ewe (event loop) ── FastCGI ─▶ ewe-xswitch ─▶ engines, one set for each user and language

This class is the event model with needs_xswitch set. The supervisor then runs a second server beside the workers,
`ewe-xswitch` (ewe.server.xswitch_process), which runs programs as their owners. Any other model can use an X-Switch
that is running already: `--xswitch unix:PATH`.

Read next: event.py; docs/xswitch.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.processors.event import Event

if TYPE_CHECKING:
    from ewe.config.settings import Config


class XSwitch(Event):
    """The event model in front of X-Switch."""

    name = "xswitch"
    needs_xswitch = True

    @classmethod
    def description(cls, config: Config) -> str:
        return f"{super().description(config)} before X-Switch"
