"""Correct: a pool of two workers with a bounded queue. Each worker ends when it gets None from the queue."""

import queue
import threading


class Pool:
    def __init__(self, workers, size):
        self.tasks = queue.Queue(maxsize=size)
        self.workers = [threading.Thread(target=self.work, name=f"worker {n + 1}") for n in range(workers)]
        for worker in self.workers:
            worker.start()

    def work(self):
        while (task := self.tasks.get()) is not None:
            task()

    def submit(self, task):
        self.tasks.put(task)

    def stop(self):
        for _ in self.workers:
            self.tasks.put(None)
        for worker in self.workers:
            worker.join()


def scenario():
    done = []
    pool = Pool(workers=2, size=1)
    for number in range(3):
        pool.submit(lambda number=number: done.append(number))
    pool.stop()
    assert sorted(done) == [0, 1, 2]
