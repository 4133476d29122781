"""Prefork: the serial model in several processes, which are started before the first client connects.

The fork model (fork.py) forks for every connection. Prefork forks in advance: the supervisor starts N workers, and
each worker is a serial server on the same listening socket. If all of them are busy, the supervisor starts more.

    supervisor ─ fork ─┬─▶ worker 1: accept ─▶ conversation ─▶ accept ─▶ ... ◀─┐
    replaces a worker  ├─▶ worker 2: accept ─▶ conversation ─▶ ...           ◀─┤ one listening socket, one backlog
    that dies          └─▶ worker N: accept ─▶ conversation ─▶ ...           ◀─┘

The kernel gives each connection to one worker that waits (EPOLLEXCLUSIVE wakes only one). The workers share only
the listening socket. They need no locks, and a worker that crashes breaks the connection of one client.

Possible failures: only N clients can be served at once, and N clients that keep their connections open occupy every
worker.

- N is a range (workers = 8..64): while all workers are busy, the supervisor starts more. Those that stay idle end
  again. growth.py tells when; each worker says in its seat whether it is idle (seats.py).
- At the largest N, or with a fixed N, a worker ends a kept connection when another client waits
  (streams/serial.py). It does not while another worker may start, since this client loses nothing then.
- Idle connections are closed sooner than in other models (idle_occupies_worker).

A client that sends no request occupies its worker until head_timeout. With 64 such clients the default settings
starve, too. Each worker has its own cache, so memory grows with N. Apache's prefork MPM and PHP-FPM work like this.

Read next: growth.py; ewe/server/supervisor.py, which replaces workers that die; pool.py, where idle connections
occupy no worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.config.count_range import CountRange
from ewe.processors.seats import BUSY, IDLE
from ewe.processors.serial import Serial
from ewe.streams.serial import limit_waits

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.streams.listener import Listener


class Prefork(Serial):
    """The serial model in several processes."""

    name = "prefork"
    many_processes = True
    supervised = True
    workers = CountRange(8, 64)
    may_grow = True

    @classmethod
    def description(cls, config: Config) -> str:
        return f"{cls.range_of_workers(config)} processes started in advance"

    def serve(self, listener: Listener) -> None:
        limit_waits(listener.sockets.values())
        seat = self.seat
        seat.map[seat.number] = IDLE
        for accepted in listener:
            seat.map[seat.number] = BUSY
            self.run(self.stream_of(accepted))
            seat.map[seat.number] = IDLE
        seat.map[seat.number] = BUSY  # it takes no further client

    def others_wait(self) -> bool:
        """Return whether a client waits for one of these workers, since no more of them start."""
        return not self.seat.more_start() and self.listener.has_waiting()
