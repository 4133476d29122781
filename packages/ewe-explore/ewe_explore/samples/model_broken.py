"""Broken: a model of ewe whose workers share one variable for "the next connection", with no lock around it."""

import threading

from ewe.processors.base import Processor


class Mine(Processor):
    many_threads = True

    def serve(self, listener):
        self.waiting = []
        self.some = threading.Condition()
        self.ended = False
        workers = [threading.Thread(target=self.work) for _ in range(2)]
        for worker in workers:
            worker.start()
        for accepted in listener:
            self.waiting.append(self.stream_of(accepted))
            with self.some:
                self.some.notify()
        with self.some:
            self.ended = True
            self.some.notify_all()
        for worker in workers:
            worker.join()

    def work(self):
        while True:
            with self.some:
                while not self.waiting and not self.ended:
                    self.some.wait()
            if not self.waiting:
                return
            self.run(self.waiting.pop(0))
