"""Broken: a channel that each of two producers closes if it is still open. Both may find it open."""

import threading
from collections import deque


class Closed(Exception):
    """The channel is already closed."""


class Channel:
    def __init__(self):
        self.items = deque()
        self.is_open = True
        self.lock = threading.Lock()

    def put(self, item):
        with self.lock:
            self.items.append(item)

    def close(self):
        with self.lock:
            if not self.is_open:
                raise Closed("this channel is already closed")
            self.is_open = False


def produce(channel, item):
    channel.put(item)
    if channel.is_open:
        channel.close()


def scenario():
    channel = Channel()
    for item in "ab":
        threading.Thread(target=produce, args=(channel, item)).start()
