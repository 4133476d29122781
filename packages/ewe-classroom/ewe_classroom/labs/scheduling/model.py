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
MAX_ACCEPTED = 16  # connections that one wait() accepts


class Mine(Processor):
    """A fixed number of threads runs conversations, in the order of the schedule."""

    name = "mine"
    many_threads = True
    connection_limit = 1000
    traces_itself = True  # schedule.py traces requests; without this, ewe would also trace connections

    def serve(self, listener):
        """Accept connections until the server stops; return when every conversation has ended."""
        self.schedule = Schedule()
        self.arriving = {}  # descriptor -> connection, and the time at which its head must be complete
        threads = [
            threading.Thread(target=self.work, args=(number,), daemon=True)
            for number in range(1, self.config.poolthreads + 1)
        ]
        for thread in threads:
            thread.start()
        while not listener.closed:
            accepted, ready = listener.wait(SILENCE_CHECK_S, MAX_ACCEPTED)
            for each in accepted:
                descriptor = each.socket.fileno()
                self.arriving[descriptor] = (each, time.monotonic() + SILENCE_S)
                # Edge-triggered: epoll reports each part of a head only once, although its bytes stay unread.
                listener.watch(descriptor, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
            now = time.monotonic()
            timed_out = [descriptor for descriptor, (_, deadline) in self.arriving.items() if deadline < now]
            for descriptor in {*ready, *timed_out} & self.arriving.keys():
                self.queue_if_complete(listener, descriptor, descriptor in timed_out)
        for each, _ in self.arriving.values():
            each.socket.close()
        self.schedule.close()
        for thread in threads:
            thread.join()
        self.drain()

    def queue_if_complete(self, listener, descriptor, timed_out):
        """Queue the request of a connection if its head is complete, or can no longer become complete.

        It can not if it is too long, if the client has closed its side, after an error, or if its time is over. The
        worker that takes such a request answers with an error.
        """
        accepted, _ = self.arriving[descriptor]
        try:
            head = accepted.socket.recv(MAX_HEAD_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:  # no byte has come
            head = b""
            is_over = timed_out
        except OSError:
            head = b""
            is_over = True
        else:
            is_over = timed_out or not head or len(head) >= MAX_HEAD_BYTES or self.has_finished(descriptor)
        if b"\r\n\r\n" not in head and not is_over:
            return
        listener.unwatch(descriptor)
        del self.arriving[descriptor]
        port = accepted.client[1]  # the client's address and port
        target = target_of(head)
        dropped = self.schedule.put(Request(port, target, self.size_of(target), accepted))
        if dropped is not None:
            self.refuse(dropped.connection, "QUEUE")

    def has_finished(self, descriptor):
        """Return whether a client has closed its sending side: no more bytes of a head will come."""
        poller = select.poll()
        poller.register(descriptor, select.POLLRDHUP)
        return bool(poller.poll(0))

    def size_of(self, target):
        """Return the size of the file that a target names, in bytes; 0 if there is none.

        The schedule alone uses the size, so the path is not checked here: the conversation does it later.
        """
        path = str(self.config.documentroot) + unquote(target.partition("?")[0])
        try:
            return os.path.getsize(path)
        except (OSError, ValueError):  # ValueError: a NUL byte in the path
            return 0

    def work(self, number):
        """Take one request after the other, and run its conversation."""
        while (request := self.schedule.get(number)) is not None:
            self.run(self.stream_of(request.connection))
            self.schedule.done(request, number)


def target_of(head):
    """Return the target of a request: the second word of its head; "" if there is none."""
    words = head.split(b" ", 2)
    return words[1].decode("latin-1") if len(words) > 1 else ""
