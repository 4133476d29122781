"""The main process's event loop: descriptors, timers and signals over epoll(7). Callbacks never wait.

It costs half the CPU time of asyncio's transports, because it does less: every descriptor is a non-blocking one,
and a callback reads or writes it directly. The loop is level-triggered: while a descriptor can be read, its
callback is called again and again. A callback may therefore be called once too often, and must accept that there is
nothing to read; it is never called once too seldom. That also settles the one race of such loops. Within one round
a descriptor may be closed, and its number used for another file: the callback of the new owner is then called for
an event of the old one, and finds nothing.
"""

from __future__ import annotations

import heapq
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

Callback = Callable[[], None]
HANGS_UP = select.EPOLLHUP | select.EPOLLERR  # epoll reports these always, to readers and writers
READABLE = select.EPOLLIN | HANGS_UP
WRITABLE = select.EPOLLOUT | HANGS_UP
RECEIVE_BYTES = 64 * 1024  # what callbacks read from a descriptor at once


class Loop:
    """Calls back when descriptors can be read or written, when time has passed, and on signals.

    on_fault: called with an exception that a callback has raised; the loop goes on.
    """

    def __init__(self, on_fault: Callable[[Exception], None]) -> None:
        self.on_fault = on_fault
        self.epoll = select.epoll()
        self.readers: dict[int, Callback] = {}
        self.writers: dict[int, Callback] = {}
        self.timers: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.timers_made = 0  # orders timers of the same moment
        self.going = False
        self.handlers: dict[int, Callback] = {}
        self.waking: tuple[int, int] | None = None  # a pipe to which Python writes signal numbers

    # Descriptors

    def add_reader(self, file: int | socket.socket, callback: Callback) -> None:
        """Call back whenever the file can be read, or has ended."""
        self.watch(self.readers, number_of(file), callback)

    def add_writer(self, file: int | socket.socket, callback: Callback) -> None:
        """Call back whenever the file can be written."""
        self.watch(self.writers, number_of(file), callback)

    def remove_reader(self, file: int | socket.socket) -> None:
        """Stop calling back for reading. Call this before the file is closed; a second call does no harm."""
        self.unwatch(self.readers, number_of(file))

    def remove_writer(self, file: int | socket.socket) -> None:
        """Stop calling back for writing."""
        self.unwatch(self.writers, number_of(file))

    def watch(self, callbacks: dict[int, Callback], number: int, callback: Callback) -> None:
        """Add a callback, and tell epoll."""
        known = number in self.readers or number in self.writers
        callbacks[number] = callback
        (self.epoll.modify if known else self.epoll.register)(number, self.wanted(number))

    def unwatch(self, callbacks: dict[int, Callback], number: int) -> None:
        """Remove a callback, if it is there, and tell epoll."""
        if callbacks.pop(number, None) is None:
            return
        if wanted := self.wanted(number):
            self.epoll.modify(number, wanted)
        else:
            self.epoll.unregister(number)

    def wanted(self, number: int) -> int:
        """Return the events of a descriptor that have a callback."""
        reads = select.EPOLLIN if number in self.readers else 0
        return reads | (select.EPOLLOUT if number in self.writers else 0)

    # Time and signals

    def call_later(self, seconds: float, callback: Callable[..., None], *arguments: Any) -> None:
        """Call back once, after so many seconds."""
        self.timers_made += 1
        heapq.heappush(self.timers, (time.monotonic() + seconds, self.timers_made, callback, arguments))

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Call back once, after the callbacks of this round."""
        self.call_later(0, callback, *arguments)

    def add_signal_handler(self, number: int, callback: Callback) -> None:
        """Call back for each signal of this number, in the loop; only in the main thread."""
        if self.waking is None:
            self.waking = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            signal.set_wakeup_fd(self.waking[1], warn_on_full_buffer=False)
            self.add_reader(self.waking[0], self.on_signals)
        self.handlers[number] = callback
        # A handler that does nothing: Python writes the number to the pipe.
        signal.signal(number, lambda *_: None)

    def on_signals(self) -> None:
        """Call the handlers of the signals in the pipe."""
        assert self.waking is not None
        for number in os.read(self.waking[0], 4096):
            if number in self.handlers:
                self.handlers[number]()

    # The loop

    def run(self) -> None:
        """Call back until stop()."""
        self.going = True
        readers, writers, poll = self.readers, self.writers, self.epoll.poll
        while self.going:
            for number, events in poll(self.idle_for()):
                try:
                    if events & READABLE and (callback := readers.get(number)) is not None:
                        callback()
                    if events & WRITABLE and (callback := writers.get(number)) is not None:
                        callback()
                except Exception as fault:
                    self.on_fault(fault)
            if self.timers:
                self.call_due(time.monotonic())

    def idle_for(self) -> float | None:
        """Return the seconds until the next timer, None without any."""
        if not self.timers:
            return None
        return max(0.0, self.timers[0][0] - time.monotonic())

    def call_due(self, now: float) -> None:
        """Call back the timers whose time has come."""
        while self.timers and self.timers[0][0] <= now:
            _, _, callback, arguments = heapq.heappop(self.timers)
            try:
                callback(*arguments)
            except Exception as fault:
                self.on_fault(fault)

    def stop(self) -> None:
        """Have run() return after this round."""
        self.going = False

    def close(self) -> None:
        """Close the loop's own descriptors."""
        self.epoll.close()
        if self.waking is not None:
            signal.set_wakeup_fd(-1)
            for end in self.waking:
                os.close(end)
            self.waking = None


def number_of(file: int | socket.socket) -> int:
    """Return a file's descriptor."""
    return file if isinstance(file, int) else file.fileno()
