"""An interrupt (INT, TERM or HUP) ends the lab once, and cleanly: what there is is still shown and written."""

from __future__ import annotations

import signal

INTERRUPTED = 130  # exit status
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def heed_interrupts() -> None:
    """From now on an interrupt raises KeyboardInterrupt, once."""
    for number in INTERRUPTS:
        signal.signal(number, interruptible)


def interruptible(number: int, frame: object) -> None:
    """Leave all blocks, and let nothing disturb that."""
    ignore_interrupts()
    raise KeyboardInterrupt


def ignore_interrupts() -> None:
    """From now on the rest is short. (SIG_IGN would make Python complain of a signal that is just coming.)"""
    for number in INTERRUPTS:
        signal.signal(number, lambda number, frame: None)
