"""Prefork: the serial model in several processes, started before the first client comes.

fork.py pays for a fork with every connection. Prefork pays in advance: the supervisor forks N workers, and each of
them is a serial server on the same listening socket.

    supervisor ─ fork ─┬─▶ worker 1: accept ─▶ conversation ─▶ accept ─▶ ... ◀─┐
    replaces a worker  ├─▶ worker 2: accept ─▶ conversation ─▶ ...           ◀─┤ one listening socket, one backlog
    that dies          └─▶ worker N: accept ─▶ conversation ─▶ ...           ◀─┘

The kernel gives each connection to one worker that waits (EPOLLEXCLUSIVE wakes one of them). The workers share
nothing but the listening socket, so nothing needs a lock, and a worker that crashes takes one client with it.

What can go wrong: N is the limit. N clients that keep their connection open without asking for anything hold every
worker; so idle connections are closed sooner than in other models (holds_idle). Each worker also has its own
cache, and memory grows with N. Apache's prefork MPM and PHP-FPM work like this.

Read next: ewe/server/supervisor.py, which keeps the workers alive; pool.py, where idle connections hold no worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.processors.serial import Serial

if TYPE_CHECKING:
    from ewe.config.settings import Config


class Prefork(Serial):
    """The serial model in several processes."""

    name = "prefork"
    many_processes = True
    supervised = True
    workers = 8

    @classmethod
    def words(cls, config: Config) -> str:
        return f"{config.workers or cls.workers} processes started in advance"
