"""Requests that wait until a package of their user is unpacked.

    request ──▶ suexecme: no such file, an installation runs ──▶ wait() ──▶ {"installed": home} ──▶ asked again

Without this, the first visitor of a new application gets 404. A request waits once, and for WAIT_S at most.
"""

from __future__ import annotations

from collections.abc import Callable

from ewe.xswitch.switch.loop import EventLoop

WAIT_S = 10.0  # seconds that a request waits; an installation may take longer
MAX_WAITING = 100  # requests of one home; further ones do not wait


class Installations:
    """The waiting requests of each home in which an installation runs."""

    def __init__(self, loop: EventLoop) -> None:
        self.loop = loop
        self.waiting: dict[str, list[Callable[[], None]]] = {}

    def wait(self, home: str, on_end: Callable[[], None]) -> bool:
        """Call `on_end` once the installation in a home has ended; return False if too many requests wait."""
        requests = self.waiting.get(home)
        if requests is None:
            requests = self.waiting[home] = []
            self.loop.call_later(WAIT_S, self.time_out, home, requests)
        if len(requests) >= MAX_WAITING:
            return False
        requests.append(on_end)
        return True

    def time_out(self, home: str, requests: list[Callable[[], None]]) -> None:
        """Let these requests go on, unless they have done so: later ones may wait for another installation."""
        if self.waiting.get(home) is requests:
            self.ended(home)

    def ended(self, home: str) -> None:
        """Let the requests of a home go on."""
        for on_end in self.waiting.pop(home, ()):
            self.loop.call_soon(on_end)
