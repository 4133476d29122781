"""Seats: a byte of shared memory for each worker process, which says whether the worker is idle.

The supervisor has to know how many workers are idle, at no cost for a request. Only the worker writes to its seat,
twice for each connection. The supervisor reads all seats when it looks at its workers:

    byte 0: may more workers start?   │ 1: worker of seat 1 │ 2: worker of seat 2 │ ...
              ▲ supervisor               ▲ that worker

Byte 0 is for a worker whose client keeps its connection while others wait: it need not let go of this client if a
new worker is about to serve the others (prefork.py).

Possible failures: a worker is killed, and its byte stays as it is. The supervisor gives the seat to the next worker
only after it has reaped the first one, and clears the byte then. Without a free seat a worker gets the last one,
which nobody reads: it counts as busy.

Read next: prefork.py, which writes; ewe/server/growing.py, which reads.
"""

from __future__ import annotations

BUSY, IDLE = 0, 1


class Seat:
    """The seat of one worker, as the worker sees it.

    map: the bytes of all workers, which the processes share; None: this one has no supervisor. number: its own
    byte.
    """

    def __init__(self, map: memoryview | None = None, number: int = 1) -> None:
        self.map: memoryview | bytearray = map if map is not None else bytearray(2)
        self.number = number

    def more_start(self) -> bool:
        """Return whether another worker starts if all are busy."""
        return bool(self.map[0])
