"""An interrupt (INT, TERM or HUP) ends the lab once: servers are stopped and the results so far are reported."""

from __future__ import annotations

import signal

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def raise_on_first_interrupt() -> None:
    """Let the first interrupt raise KeyboardInterrupt, and ignore later ones."""
    for number in INTERRUPTS:
        signal.signal(number, raise_keyboard_interrupt)


def raise_keyboard_interrupt(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt, so that all blocks are left; a second interrupt must not disturb their clean-up."""
    ignore_interrupts()
    raise KeyboardInterrupt


def ignore_interrupts() -> None:
    """Ignore interrupts during clean-up. (With SIG_IGN Python would print an error for a pending signal.)"""
    for number in INTERRUPTS:
        signal.signal(number, lambda number, frame: None)
