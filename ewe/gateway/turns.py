"""Turns: threads make a long computation one after the other.

Threads that compute share one interpreter, which each of them holds for 5 ms at a time. If 16 threads compute, any
other thread waits for 16 turns each time that it needs the interpreter, and an event loop needs it after every
system call. If the 16 take turns, the event loop waits for one. They are done no later, since only one computes in
any case.

What can go wrong: the thread whose turn it is may hang, in a network file system for example. The others wait for
PATIENCE seconds and then go on without it. A process that was forked while another thread had the turn does the
same.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 5.0  # seconds


class Turns:
    """One kind of computation. Any thread may call taken()."""

    def __init__(self) -> None:
        self.lock = allocate_lock()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for the turn of this thread, PATIENCE seconds at most, and end it when the block is left."""
        has_turn = self.lock.acquire(timeout=PATIENCE)
        try:
            yield
        finally:
            if has_turn:
                self.lock.release()
