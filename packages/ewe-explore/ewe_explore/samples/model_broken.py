"""Broken: a model of ewe whose workers test the list of waiting connections, and take from it, without the lock."""

import threading

from ewe.processors.base import Processor


class Mine(Processor):
    many_threads = True

    def serve(self, listener):
        self.waiting = []
        self.not_empty = threading.Condition()
        self.ended = False
        workers = [threading.Thread(target=self.work) for _ in range(2)]
        for worker in workers:
            worker.start()
        for accepted in listener:
            self.waiting.append(self.stream_of(accepted))
            with self.not_empty:
                self.not_empty.notify()
        with self.not_empty:
            self.ended = True
            self.not_empty.notify_all()
        for worker in workers:
            worker.join()

    def work(self):
        while True:
            with self.not_empty:
                while not self.waiting and not self.ended:
                    self.not_empty.wait()
            if not self.waiting:
                return
            self.run(self.waiting.pop(0))  # another worker may have taken it since
