"""A model of ewe: a pool behind a schedule, given and complete. Run it with: ewe --model model:Mine 8080

    main thread: accept, peek at heads ─▶ schedule.put() ─▶ [ waiting ] ─▶ schedule.get() ─▶ worker: run(stream)

schedule.py is your work. The main thread reads heads with MSG_PEEK, which leaves the bytes for the conversation.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from urllib.parse import unquote

from schedule import Request, Schedule

from ewe.processors.base import Processor

SILENCE_CHECK_S = 0.25  # seconds between two searches for slow clients
# seconds after which a connection without a complete head goes to a worker, which refuses it
SILENCE_S = 10.0
MAX_HEAD_BYTES = 16 * 1024


class Mine(Processor):
    """A fixed number of threads runs conversations, in the order of the schedule."""

    name = "mine"
    many_threads = True
    connection_limit = 1000
    traces_itself = True  # schedule.py traces requests; without this, ewe would also trace connections

    def serve(self, listener):
        """Accept connections until the server stops; return when every conversation has ended."""
        self.schedule = Schedule()
        self.arriving = {}
        threads = [
            threading.Thread(target=self.work, args=(number,), daemon=True)
            for number in range(1, self.config.poolthreads + 1)
        ]
        for thread in threads:
            thread.start()
        while not listener.closed:
            accepted, ready = listener.wait(SILENCE_CHECK_S, 16)
            for each in accepted:
                number = each.socket.fileno()
                self.arriving[number] = (each, time.monotonic() + SILENCE_S)
                # Edge-triggered: epoll reports each part of a head only once, although its bytes stay unread.
                listener.watch(number, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
            late = [number for number, (_, until) in self.arriving.items() if until < time.monotonic()]
            for number in {*ready, *late} & self.arriving.keys():
                self.look(listener, number, number in late)
        for each, _ in self.arriving.values():
            each.socket.close()
        self.schedule.close()
        for thread in threads:
            thread.join()
        self.drain()

    def look(self, listener, number, late):
        """Queue the request of a connection if its head is complete, or can no longer become complete."""
        accepted, _ = self.arriving[number]
        try:
            head = accepted.socket.recv(MAX_HEAD_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            head = b"" if late else None
        except OSError:
            head = b""
        watch = select.poll()
        watch.register(number, select.POLLRDHUP)
        finished = bool(watch.poll(0))
        if head is None or not (
            b"\r\n\r\n" in head or len(head) >= MAX_HEAD_BYTES or finished or late or not head
        ):
            return
        listener.unwatch(number)
        del self.arriving[number]
        target = [*head.split(b" ", 2), b"", b""][1].decode("latin-1")
        dropped = self.schedule.put(Request(accepted.client[1], target, self.size_of(target), accepted))
        if dropped is not None:
            self.refuse(dropped.connection, "QUEUE")

    def size_of(self, target):
        """Return the size of the file that a target names, 0 if there is none."""
        try:
            return os.path.getsize(str(self.config.documentroot) + unquote(target.partition("?")[0]))
        except (OSError, ValueError):
            return 0

    def work(self, number):
        """Take one request after the other, and run its conversation."""
        while (request := self.schedule.get(number)) is not None:
            self.run(self.stream_of(request.connection))
            self.schedule.done(request, number)
