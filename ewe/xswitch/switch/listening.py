"""The sockets on which web servers connect: accepts connections, pauses without descriptors, stops."""

from __future__ import annotations

import socket
from collections.abc import Callable

from ewe.logger import ErrorLog
from ewe.xswitch.switch.loop import Loop

MAX_ACCEPTED = 64  # connections accepted before other events have their turn
PAUSE_SECONDS = 1.0  # until accepting is tried again when there are no descriptors


class Listeners:
    """Accepts connections until stop()."""

    def __init__(self, loop: Loop, log: ErrorLog, connected: Callable[[socket.socket], None]) -> None:
        """connected: called with the socket of each new connection."""
        self.loop = loop
        self.log = log
        self.connected = connected
        self.listeners: set[socket.socket] = set()

    def add(self, listener: socket.socket) -> None:
        """Accept connections of a listening socket."""
        listener.setblocking(False)
        self.listeners.add(listener)
        self.watch(listener)

    def watch(self, listener: socket.socket) -> None:
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
                self.log.error(f"cannot take connections: {reason.strerror}")
                self.loop.remove_reader(listener)
                self.loop.call_later(PAUSE_SECONDS, self.watch, listener)
                return
            self.connected(sock)

    def stop(self) -> None:
        """Accept no more; later connections wait in the backlog, for the next main process."""
        for listener in self.listeners:
            self.loop.remove_reader(listener)
        self.listeners.clear()
