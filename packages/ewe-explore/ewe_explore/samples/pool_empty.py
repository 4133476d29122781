"""Broken: a pool whose workers ask empty() before get(). Another worker may take the last task in between."""

import queue
import threading


class Pool:
    def __init__(self, tasks, workers):
        self.tasks = queue.Queue()
        for task in tasks:
            self.tasks.put(task)
        self.workers = [threading.Thread(target=self.work, name=f"worker {n + 1}") for n in range(workers)]
        for worker in self.workers:
            worker.start()

    def work(self):
        while not self.tasks.empty():
            task = self.tasks.get()
            task()

    def join(self):
        for worker in self.workers:
            worker.join()


def scenario():
    done = []
    pool = Pool([lambda: done.append("a"), lambda: done.append("b")], workers=2)
    pool.join()
    assert sorted(done) == ["a", "b"]
