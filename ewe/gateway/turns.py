"""Turns: threads do long computations one after the other.

Threads that compute share one interpreter. Each of them holds it for 5 ms at a time. If 16 threads compute, any
other thread waits for 16 turns each time that it needs the interpreter, and an event loop needs it after every
system call. If the 16 threads take turns, the event loop waits for one turn. The computations do not end later,
because only one thread computes at a time in any case.

Possible failure: the thread that has the turn may hang, in a network file system for example. The others wait for
TURN_TIMEOUT_S and then go on without their turn. A process that was forked while another thread had the turn does
the same.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Iterator
from contextlib import contextmanager

TURN_TIMEOUT_S = 5.0  # seconds


class Turns:
    """The turns of one kind of computation. Any thread may call one_at_a_time()."""

    def __init__(self) -> None:
        self.lock = allocate_lock()

    @contextmanager
    def one_at_a_time(self) -> Iterator[None]:
        """Wait for the turn of this thread, TURN_TIMEOUT_S at most, and end it when the block is left."""
        has_turn = self.lock.acquire(timeout=TURN_TIMEOUT_S)
        try:
            yield
        finally:
            if has_turn:
                self.lock.release()
