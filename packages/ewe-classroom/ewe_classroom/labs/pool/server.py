"""The pool: n threads and a bounded queue. Run it with: python3 server.py PORT DIRECTORY WORKERS

    main thread: accept ─▶ put ─▶ [ queue, bounded ] ─▶ get ─▶ worker 1 of n: conversation, and again
                  waits while the queue is full           └──▶ worker n of n   each waits while it is empty

The pool runs at most n conversations at a time, in the order of their arrival, and never waits busily.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections import deque

from conversation import converse, main

ACCEPT_PAUSE_S = 0.05  # seconds of pause when no descriptor is free
ROOM = 64  # connections that may wait in the queue
GRACE_S = 10.0  # seconds for the conversations in progress after SIGTERM


class Stop(Exception):
    """SIGTERM has arrived: the server has to end."""


def stop(number: int, frame: object) -> None:
    """Interrupt the loop that accepts connections. A second SIGTERM must not interrupt the end of the server."""
    signal.signal(number, lambda *_: None)
    raise Stop


class Queue:
    """A bounded queue: put() waits while it is full, get() while it is empty. Any thread may call both.

    close() ends both waits. After it, put() adds nothing, and returns False. get() returns the remaining items, and
    then None to every caller.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self.items: deque[socket.socket] = deque()
        self.closed = False
        self.lock = threading.Lock()
        self.not_empty = threading.Condition(self.lock)
        self.not_full = threading.Condition(self.lock)

    def put(self, item: socket.socket) -> bool:
        """Add an item at the end, and return True; return False if the queue is closed, also during the wait."""
        # --- solution
        with self.lock:
            while len(self.items) >= self.room and not self.closed:
                self.not_full.wait()
            if self.closed:
                return False
            self.items.append(item)
            self.not_empty.notify()
            return True
        # --- starter
        # # Wait without spinning while the queue is full. Then wake one thread that waits for an item.
        # self.items.append(item)
        # return True
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
        # # This wait uses a whole core. Between the test and popleft(), another worker may take the last item.
        # while not self.items:
        #     pass
        # return self.items.popleft()
        # --- end

    def close(self) -> None:
        """Close the queue, and wake all threads that wait for an item or for room."""
        # --- solution
        with self.lock:
            self.closed = True
            self.not_empty.notify_all()
            self.not_full.notify_all()
        # --- starter
        # # Several threads may sleep in get(), and in put(). Wake all of them.
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
                time.sleep(ACCEPT_PAUSE_S)
                continue
            queue.put(connection)
    except Stop:
        listener.close()
    queue.close()
    end = time.monotonic() + GRACE_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    # --- starter
    # # Start `workers` threads before the first client comes. This starter serves all clients in the main thread.
    # while True:
    #     connection, _ = listener.accept()
    #     queue.put(connection)
    #     work(queue, root)
    # --- end


def work(queue: Queue, root: str) -> None:
    """Take one connection after the other, run its conversation, and close it."""
    # --- solution
    while (connection := queue.get()) is not None:
        with connection:
            converse(connection, root)
    # --- starter
    # # This worker ends after one connection. What if the conversation raises an exception?
    # connection = queue.get()
    # converse(connection, root)
    # --- end


if __name__ == "__main__":
    main(serve)
