"""The sockets on which web servers connect: accept connections, pause while no descriptors are left, stop."""

from __future__ import annotations

import socket
from collections.abc import Callable

from ewe.logger import ErrorLog
from ewe.xswitch.switch.loop import EventLoop

MAX_ACCEPTED = 64  # connections accepted before other events have their turn
PAUSE_SECONDS = 1.0  # until the next accept() when no descriptors are left


class Listeners:
    """Accepts connections until stop()."""

    def __init__(self, loop: EventLoop, log: ErrorLog) -> None:
        self.loop = loop
        self.log = log
        # listening socket -> what is called with each of its new connections
        self.listeners: dict[socket.socket, Callable[[socket.socket], None]] = {}

    def add(self, listener: socket.socket, connected: Callable[[socket.socket], None]) -> None:
        """Accept connections of a listening socket. connected: called with each of them."""
        listener.setblocking(False)
        self.listeners[listener] = connected
        self.watch(listener)

    def watch(self, listener: socket.socket) -> None:
        """Accept from now on, unless stop() was called in the meantime."""
        if listener in self.listeners:
            self.loop.add_reader(listener, lambda: self.accept(listener))

    def accept(self, listener: socket.socket) -> None:
        """Accept the connections that wait in the backlog."""
        for _ in range(MAX_ACCEPTED):
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as reason:
                self.log.error(f"cannot accept: {reason.strerror}; trying again in {PAUSE_SECONDS:g} s")
                self.loop.remove_reader(listener)
                self.loop.call_later(PAUSE_SECONDS, self.watch, listener)
                return
            self.listeners[listener](sock)

    def stop(self) -> None:
        """Stop accepting. Later connections wait in the backlog, for the next main process."""
        for listener in self.listeners:
            self.loop.remove_reader(listener)
        self.listeners.clear()
