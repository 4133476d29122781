"""Fork: a process per connection.

A child inherits the connection, holds the conversation and exits. Children are reaped when they end: SIGCHLD
wakes the parent. Forking copies page tables, so the parent imports little and freezes its heap.
"""

from __future__ import annotations

import gc
import os
import signal
from typing import TYPE_CHECKING, Any

from ewe import logger, orphans
from ewe.processors.base import Processor

if TYPE_CHECKING:
    from ewe.config import Config
    from ewe.listener import Accepted, Listener
    from ewe.site import Site

TOLD = {signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGALRM, signal.SIGUSR1}
WAS_CUT = 4  # exit status of a child whose conversation had to be ended


class Fork(Processor):
    """Fork a child for each connection, up to the ceiling."""

    name = "fork"
    many_processes = True
    ceiling = 256
    supervised = False  # it makes its processes itself

    @classmethod
    def words(cls, config: Config) -> str:
        return "a process per connection"

    def __init__(self, site: Any, config: Config) -> None:
        super().__init__(site, config)
        self.children: dict[int, str] = {}  # pid -> client address

    def serve(self, listener: Listener) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the wake-up of the listener is what counts
        orphans.adopt()
        gc.collect()
        gc.freeze()  # the collector would touch, and so copy, every page of the heap in every child
        while not listener.closed or self.children:
            accepted = self.next(listener)
            self.reap()
            if accepted is not None:
                self.start(accepted)

    def has_room(self) -> bool:
        return len(self.children) < self.ceiling

    def start(self, accepted: Accepted) -> None:
        """Fork; the child never returns. What children are told waits until this one is known, and can hear."""
        signal.pthread_sigmask(signal.SIG_BLOCK, TOLD)
        try:
            child = os.fork()
            if child == 0:
                try:
                    self.be_child(accepted)
                finally:
                    os._exit(WAS_CUT if self.cut else 0)
            self.children[child] = accepted.client[0]
        except OSError as reason:
            logger.errors.error(f"cannot fork: {reason.strerror}")
            return self.refuse(accepted, "a fork failed")
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, TOLD)
        if self.config.connections_per_client:
            self.clients[accepted.client[0]] += 1
        accepted.socket.close()
        if self.stopping:  # the signal came between accept and fork
            self.tell(signal.SIGTERM)

    def be_child(self, accepted: Accepted) -> None:
        """Hold one conversation with nothing of the parent's left open."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.children.clear()
        self.retire_at = 0
        stream = self.meet(accepted)
        signal.signal(signal.SIGHUP, lambda *_: self.let_go())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TOLD)
        for sock in self.listener.sockets.values():
            sock.close()
        self.listener.epoll.close()
        self.hold(stream)

    def reap(self) -> None:
        """Take the exit status of each child that has ended."""
        for child, status in orphans.reap(self.children):
            self.left(self.children.pop(child))
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                orphans.end(self.children)
            self.cut += code == WAS_CUT
            if code not in (0, WAS_CUT):
                logger.errors.warning(
                    f"child {child} ended by {f'signal {-code}' if code < 0 else f'status {code}'}"
                )

    def adopt(self, site: Site, config: Config) -> None:
        super().adopt(site, config)
        self.tell(signal.SIGHUP)

    def finish(self) -> None:
        super().finish()
        self.tell(signal.SIGTERM)

    def abort(self) -> None:
        super().abort()
        self.tell(signal.SIGQUIT)

    def signalled(self, number: int) -> None:
        self.tell(number)

    def tell(self, number: int) -> None:
        """Send all children a signal."""
        for child in list(self.children):
            try:
                os.kill(child, number)
            except ProcessLookupError:
                self.children.pop(child, None)
