"""A model of ewe: a pool behind a schedule. Given, and complete. Run it with: ewe --model model:Mine 8080

    main thread: accept, look at heads ─▶ schedule.put() ─▶ [ waiting ] ─▶ schedule.get() ─▶ worker: hold(stream)

schedule.py is your work. A head is looked at with MSG_PEEK, which leaves the bytes for the conversation.
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

LOOK = 0.25  # seconds between two looks at clients that are too slow
SILENCE = 10.0  # seconds until a connection without a whole head goes to a worker, which then refuses it
MAX_HEAD = 16 * 1024  # bytes


class Mine(Processor):
    """A fixed number of threads holds conversations, in the order that the schedule says."""

    name = "mine"
    many_threads = True
    ceiling = 1000
    traces_itself = True  # schedule.py notes requests; ewe would note connections beside them

    def serve(self, listener):
        """Accept until the server is to stop; return once every conversation has ended."""
        self.schedule = Schedule()
        self.arriving = {}
        threads = [
            threading.Thread(target=self.work, args=(number,), daemon=True)
            for number in range(1, self.config.poolthreads + 1)
        ]
        for thread in threads:
            thread.start()
        while not listener.closed:
            accepted, ready = listener.wait(LOOK, 16)
            for each in accepted:
                number = each.socket.fileno()
                self.arriving[number] = (each, time.monotonic() + SILENCE)
                # Edge-triggered: epoll reports each part of a head once, though it is not read.
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
        """Queue the request of a connection whose head is whole, or will not become whole."""
        accepted, _ = self.arriving[number]
        try:
            head = accepted.socket.recv(MAX_HEAD, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            head = b"" if late else None
        except OSError:
            head = b""
        watch = select.poll()
        watch.register(number, select.POLLRDHUP)
        finished = bool(watch.poll(0))
        if head is None or not (b"\r\n\r\n" in head or len(head) >= MAX_HEAD or finished or late or not head):
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
        """Be a worker: take the next request, hold its conversation, and so on."""
        while (request := self.schedule.get(number)) is not None:
            self.hold(self.meet(request.connection))
            self.schedule.done(request, number)
