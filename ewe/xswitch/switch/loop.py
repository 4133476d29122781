"""The main process's event loop: descriptors, timers and signals over epoll(7). Callbacks never wait.

The loop costs half the CPU time of asyncio's transports, because it does less: every descriptor is non-blocking,
and a callback reads or writes it directly. The loop is level-triggered: while a descriptor can be read, its
callback is called again and again. The loop may call a callback once too often, and never once too seldom. A
callback must therefore accept that there is nothing to read. This also handles the one race of such loops. Within
one round a descriptor may be closed, and its number reused for another file. The new owner's callback is then
called for an event of the old file, and finds nothing.
"""

from __future__ import annotations

import errno
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
WAKEUP_BYTES = 4096  # that one read takes out of the pipe for signals: one byte is one signal
RECEIVE_BYTES = 64 * 1024  # that callbacks read from a descriptor at once
NO_RESOURCES = errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM  # no socket can be made


class EventLoop:
    """Calls back when descriptors can be read or written, when time has passed, and on signals.

    on_fault: called with an exception that a callback has raised; the loop continues.
    """

    def __init__(self, on_fault: Callable[[Exception], None]) -> None:
        self.on_fault = on_fault
        self.epoll = select.epoll()
        self.readers: dict[int, Callback] = {}
        self.writers: dict[int, Callback] = {}
        # (time, number, callback, its arguments): a heap
        self.timers: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.timer_count = 0  # timers so far. The number keeps timers of the same moment in their order
        self.is_running = False
        self.handlers: dict[int, Callback] = {}  # signal number -> callback
        self.wakeup_pipe: tuple[int, int] | None = None  # Python writes the numbers of signals to it

    # Descriptors

    def add_reader(self, file: int | socket.socket, callback: Callback) -> None:
        """Call back whenever the file can be read, or has ended."""
        self.watch(self.readers, descriptor_of(file), callback)

    def add_writer(self, file: int | socket.socket, callback: Callback) -> None:
        """Call back whenever the file can be written."""
        self.watch(self.writers, descriptor_of(file), callback)

    def remove_reader(self, file: int | socket.socket) -> None:
        """Stop calling back for reading. Call this before the file is closed; a second call does no harm."""
        self.unwatch(self.readers, descriptor_of(file))

    def remove_writer(self, file: int | socket.socket) -> None:
        """Stop calling back for writing."""
        self.unwatch(self.writers, descriptor_of(file))

    def watch(self, callbacks: dict[int, Callback], descriptor: int, callback: Callback) -> None:
        """Add a callback, and tell epoll. callbacks: `readers` or `writers`."""
        is_watched = descriptor in self.readers or descriptor in self.writers
        callbacks[descriptor] = callback
        (self.epoll.modify if is_watched else self.epoll.register)(descriptor, self.events_of(descriptor))

    def unwatch(self, callbacks: dict[int, Callback], descriptor: int) -> None:
        """Remove a callback, if it is there, and tell epoll. callbacks: `readers` or `writers`."""
        if callbacks.pop(descriptor, None) is None:
            return
        if events := self.events_of(descriptor):  # the callback of the other kind stays
            self.epoll.modify(descriptor, events)
        else:
            self.epoll.unregister(descriptor)

    def events_of(self, descriptor: int) -> int:
        """Return the events of a descriptor that have a callback, as epoll's bits."""
        reads = select.EPOLLIN if descriptor in self.readers else 0
        return reads | (select.EPOLLOUT if descriptor in self.writers else 0)

    # Time and signals

    def call_later(self, seconds: float, callback: Callable[..., None], *arguments: Any) -> None:
        """Call back once, after so many seconds."""
        self.timer_count += 1
        heapq.heappush(self.timers, (time.monotonic() + seconds, self.timer_count, callback, arguments))

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Call back once, after the callbacks of this round."""
        self.call_later(0, callback, *arguments)

    def add_signal_handler(self, number: int, callback: Callback) -> None:
        """Call back for each signal of this number, in the loop; only in the main thread."""
        if self.wakeup_pipe is None:
            self.wakeup_pipe = read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
            self.add_reader(read_end, self.on_signals)
        self.handlers[number] = callback
        # An empty handler: Python writes the signal's number to the pipe.
        signal.signal(number, lambda *_: None)

    def on_signals(self) -> None:
        """Call the handlers of the signals in the pipe."""
        assert self.wakeup_pipe is not None
        read_end, _ = self.wakeup_pipe
        for number in os.read(read_end, WAKEUP_BYTES):  # each byte is the number of a signal
            if number in self.handlers:
                self.handlers[number]()

    # The loop

    def run(self) -> None:
        """Call back until stop()."""
        self.is_running = True
        readers, writers, poll = self.readers, self.writers, self.epoll.poll
        wait_s = self.call_due_timers(time.monotonic())
        while self.is_running:
            for descriptor, events in poll(wait_s):
                try:
                    if events & READABLE and (callback := readers.get(descriptor)) is not None:
                        callback()
                    if events & WRITABLE and (callback := writers.get(descriptor)) is not None:
                        callback()
                except Exception as fault:
                    self.on_fault(fault)
            wait_s = self.call_due_timers(time.monotonic())

    def call_due_timers(self, now: float) -> float | None:
        """Call back all timers that are due; return the seconds until the next timer, None without any.

        now: the monotonic time.
        """
        while self.timers:
            due_at, _, callback, arguments = self.timers[0]  # a heap's first element is the smallest
            if due_at > now:
                return max(0.0, due_at - time.monotonic())  # the callbacks have taken time
            heapq.heappop(self.timers)
            try:
                callback(*arguments)
            except Exception as fault:
                self.on_fault(fault)
        return None

    def stop(self) -> None:
        """Make run() return after this round."""
        self.is_running = False

    def close(self) -> None:
        """Close the loop's own descriptors."""
        self.epoll.close()
        if self.wakeup_pipe is not None:
            signal.set_wakeup_fd(-1)
            for end in self.wakeup_pipe:
                os.close(end)
            self.wakeup_pipe = None


def descriptor_of(file: int | socket.socket) -> int:
    """Return a file's descriptor."""
    return file if isinstance(file, int) else file.fileno()
