"""Broken: a bounded buffer that tests with `if`. Another consumer may take the item before the woken one."""

import threading
from collections import deque


class Buffer:
    def __init__(self, size):
        self.size = size
        self.items = deque()
        self.lock = threading.Lock()
        self.not_full = threading.Condition(self.lock)
        self.not_empty = threading.Condition(self.lock)

    def put(self, item):
        with self.lock:
            while len(self.items) == self.size:
                self.not_full.wait()
            self.items.append(item)
            self.not_empty.notify()

    def get(self):
        with self.lock:
            if not self.items:
                self.not_empty.wait()
            item = self.items.popleft()
            self.not_full.notify()
            return item


def scenario():
    buffer = Buffer(1)
    taken = []
    consumers = [
        threading.Thread(target=lambda: taken.append(buffer.get()), name=f"consumer {n}") for n in (1, 2)
    ]
    for consumer in consumers:
        consumer.start()
    buffer.put("a")
    buffer.put("b")
    for consumer in consumers:
        consumer.join()
    return taken


def check(taken):
    assert sorted(taken) == ["a", "b"]
