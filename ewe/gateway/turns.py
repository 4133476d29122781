"""Turns: threads do long computations one after the other.

Threads that compute share one interpreter. Each of them holds it for 5 ms at a time. If 16 threads compute, any
other thread waits for 16 turns each time that it needs the interpreter, and an event loop needs it after every
system call. If the 16 threads take turns, the event loop waits for one turn. The computations do not end later,
because only one thread computes at a time in any case.

Possible failures:

- The thread that has the turn hangs, in a network file system for example. The others wait for a time, and then go
  on without their turn. A computation that reads no file can be waited for longer: if many threads made the same
  result beside each other, a busy machine would have all the more to do.
- A process is forked while another thread has the turn. That thread does not exist in the child, so the turn is
  free there.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from collections.abc import Iterator
from contextlib import contextmanager

TURN_TIMEOUT_S = 5.0


class Turns:
    """The turns of one kind of computation. Any thread may call one_at_a_time()."""

    def __init__(self, timeout_s: float = TURN_TIMEOUT_S) -> None:
        """timeout_s: how long a thread waits for its turn."""
        self.timeout_s = timeout_s
        self.make_free()
        os.register_at_fork(after_in_child=self.make_free)

    def make_free(self) -> None:
        """Make the turn free, also in a child process, which lacks the thread that may have it."""
        self.lock = allocate_lock()

    @contextmanager
    def one_at_a_time(self) -> Iterator[None]:
        """Wait for the turn of this thread, `timeout_s` at most, and end it when the block is left."""
        lock = self.lock
        has_turn = lock.acquire(timeout=self.timeout_s)
        try:
            yield
        finally:
            if has_turn:
                lock.release()
