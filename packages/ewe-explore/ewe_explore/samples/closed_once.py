"""Correct: a channel whose close() tests and closes under one lock, and may be called twice."""

import threading
from collections import deque


class Channel:
    def __init__(self):
        self.items = deque()
        self.is_open = True
        self.closings = 0
        self.lock = threading.Lock()

    def put(self, item):
        with self.lock:
            self.items.append(item)

    def close(self):
        with self.lock:
            if self.is_open:
                self.is_open = False
                self.closings += 1


def produce(channel, item):
    channel.put(item)
    channel.close()


def scenario():
    channel = Channel()
    for item in "ab":
        threading.Thread(target=produce, args=(channel, item)).start()
    return channel


def check(channel):
    assert channel.closings == 1
