"""Broken: two threads count without a lock. `n += 1` reads, adds and writes; a switch in between loses a count."""

import threading


class Counter:
    def __init__(self):
        self.n = 0

    def work(self):
        for _ in range(2):
            self.n += 1


def scenario():
    counter = Counter()
    threads = [threading.Thread(target=counter.work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.n == 4, f"counted {counter.n}, not 4"
