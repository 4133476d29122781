"""The pool: n threads, a bounded queue before them. Run it with: python3 server.py PORT DIRECTORY WORKERS

    main thread: accept ─▶ put ─▶ [ queue, bounded ] ─▶ get ─▶ worker 1 of n: conversation, and again
                  waits while the queue is full           └──▶ worker n of n   each waits while it is empty

n conversations at a time and never more, no busy waiting, and connections are served in the order of their coming.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections import deque

from conversation import converse, main

PAUSE = 0.05  # seconds without accepting when no descriptor is left
ROOM = 64  # connections that may wait in the queue
GRACE = 10.0  # seconds that conversations in progress have once the server is to end


class Stop(Exception):
    """The server is to end (SIGTERM)."""


def stop(number: int, frame: object) -> None:
    """End the loop that accepts, wherever it is."""
    raise Stop


class Queue:
    """A bounded queue: put() waits while it is full, get() while it is empty. Any thread may call both.

    close(): put nothing more; get() returns what is left, and then None to every caller.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self.items: deque[socket.socket] = deque()
        self.closed = False
        self.lock = threading.Lock()
        self.not_empty = threading.Condition(self.lock)
        self.not_full = threading.Condition(self.lock)

    def put(self, item: socket.socket) -> None:
        """Add an item at the end."""
        # --- solution
        with self.lock:
            while len(self.items) >= self.room:
                self.not_full.wait()
            self.items.append(item)
            self.not_empty.notify()
        # --- starter
        # # Wait without spinning while the queue is full; then wake one who waits for an item.
        # self.items.append(item)
        # --- end

    def get(self) -> socket.socket | None:
        """Take the first item; None once the queue is closed and empty."""
        # --- solution
        with self.lock:
            while not self.items and not self.closed:
                self.not_empty.wait()
            if not self.items:
                return None
            item = self.items.popleft()
            self.not_full.notify()
            return item
        # --- starter
        # # This wait takes a whole core. And between the test and popleft(), another worker may take the last item.
        # while not self.items:
        #     pass
        # return self.items.popleft()
        # --- end

    def close(self) -> None:
        """Let all who wait for an item know that none will come."""
        # --- solution
        with self.lock:
            self.closed = True
            self.not_empty.notify_all()
        # --- starter
        # # Who is asleep in get(), and who wakes them?
        # self.closed = True
        # --- end


def serve(listener: socket.socket, root: str, workers: int) -> None:
    """Start the workers, and give them the connections; at SIGTERM, let the conversations in progress end."""
    signal.signal(signal.SIGTERM, stop)
    queue = Queue(ROOM)
    # --- solution
    threads = [threading.Thread(target=work, args=(queue, root), daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    try:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                time.sleep(PAUSE)
                continue
            queue.put(connection)
    except Stop:
        listener.close()
    queue.close()
    end = time.monotonic() + GRACE
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    # --- starter
    # # Start `workers` threads before the first client comes. This starter serves everyone itself.
    # while True:
    #     connection, _ = listener.accept()
    #     queue.put(connection)
    #     work(queue, root)
    # --- end


def work(queue: Queue, root: str) -> None:
    """Be a worker: take a connection, hold its conversation, close it, and so on."""
    # --- solution
    while (connection := queue.get()) is not None:
        with connection:
            converse(connection, root)
    # --- starter
    # # One connection, and this worker ends. What if the conversation raises?
    # connection = queue.get()
    # converse(connection, root)
    # --- end


if __name__ == "__main__":
    main(serve)
