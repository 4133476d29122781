"""Broken: close() changes what a waiting worker tests, and wakes no worker.

A worker that is busy at the close tests the queue later and ends. A worker that waits is never woken.
"""

import threading


class Queue:
    def __init__(self):
        self.items = []
        self.closed = False
        self.changed = threading.Condition()

    def put(self, item):
        with self.changed:
            self.items.append(item)
            self.changed.notify()

    def get(self):
        with self.changed:
            while not self.items and not self.closed:
                self.changed.wait()
            return self.items.pop(0) if self.items else None

    def close(self):
        with self.changed:
            self.closed = True


def work(queue, done):
    while (item := queue.get()) is not None:
        done.append(item)


def scenario():
    queue, done = Queue(), []
    workers = [
        threading.Thread(target=work, args=(queue, done), name=f"worker {number}") for number in (1, 2)
    ]
    for worker in workers:
        worker.start()
    queue.put("request")
    queue.close()
    for worker in workers:
        worker.join()
    assert done == ["request"]
