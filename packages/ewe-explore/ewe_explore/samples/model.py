"""Correct: a model of ewe, the pool of 2006. Two threads take connections from a queue."""

import queue
import threading

from ewe.processors.base import Processor


class Mine(Processor):
    many_threads = True

    def serve(self, listener):
        waiting = queue.Queue(maxsize=10)
        workers = [threading.Thread(target=self.work, args=(waiting,)) for _ in range(2)]
        for worker in workers:
            worker.start()
        for accepted in listener:
            waiting.put(self.stream_of(accepted))
        for _ in workers:
            waiting.put(None)
        for worker in workers:
            worker.join()

    def work(self, waiting):
        while (stream := waiting.get()) is not None:
            self.run(stream)
