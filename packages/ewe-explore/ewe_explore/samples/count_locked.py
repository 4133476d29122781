"""Correct: two threads count under a lock."""

import threading


class Counter:
    def __init__(self):
        self.n = 0
        self.lock = threading.Lock()

    def work(self):
        for _ in range(2):
            with self.lock:
                self.n += 1


def scenario():
    counter = Counter()
    threads = [threading.Thread(target=counter.work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.n == 4, f"counted {counter.n}, not 4"
