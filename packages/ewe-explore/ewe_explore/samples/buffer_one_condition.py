"""Broken: a bounded buffer with one condition for producers and consumers. notify() may wake the wrong kind."""

import threading
from collections import deque


class Buffer:
    def __init__(self, size):
        self.size = size
        self.items = deque()
        self.changed = threading.Condition()

    def put(self, item):
        with self.changed:
            while len(self.items) == self.size:
                self.changed.wait()
            self.items.append(item)
            self.changed.notify()

    def get(self):
        with self.changed:
            while not self.items:
                self.changed.wait()
            item = self.items.popleft()
            self.changed.notify()
            return item


def scenario():
    buffer = Buffer(1)
    for number in (1, 2):
        threading.Thread(target=buffer.get, name=f"consumer {number}").start()
        threading.Thread(target=buffer.put, args=(number,), name=f"producer {number}").start()
