"""Run your queue in thousands of orders of its threads: ewe-explore test_queue.py

Each scenario starts a few threads around a Queue of server.py. The explorer decides at each step which thread goes
on, and shows the smallest order that fails. No scenario needs a client, a socket or luck.
"""

import threading

from server import Queue


def scenario_one_each():
    """Two items, two workers: each worker gets one.

    A worker takes only one item here, as if its client kept it for an hour. The second put() therefore has to wake
    the other worker.
    """
    queue, taken = Queue(4), []  # room for more items than are put
    workers = [Worker(queue, taken, number, items=1) for number in (1, 2)]
    start(workers)
    queue.put("a")
    queue.put("b")
    end(workers)
    assert sorted(taken) == ["a", "b"], taken


def scenario_all_items():
    """Two workers go on until close(). Each item is taken once, and no worker ends earlier."""
    queue, taken = Queue(4), []  # room for more items than are put
    workers = [Worker(queue, taken, number) for number in (1, 2)]
    start(workers)
    for item in ("a", "b", "c"):
        queue.put(item)
    closed.append(True)
    queue.close()
    end(workers)
    assert sorted(taken) == ["a", "b", "c"], taken


def scenario_full():
    """Room for one item, and three threads that put. put() waits while the queue is full, and never too long."""
    queue, taken, put = Queue(1), [], []
    workers = [Worker(queue, taken, 1, items=3)]
    givers = [Giver(queue, workers, put, item) for item in ("a", "b", "c")]
    start([*givers, *workers])
    end([*givers, *workers])
    assert sorted(taken) == ["a", "b", "c"], taken


def scenario_close():
    """Two workers wait in an empty queue: close() wakes both. Otherwise end() never returns: a deadlock."""
    queue, taken = Queue(2), []
    workers = [Worker(queue, taken, number) for number in (1, 2)]
    start(workers)
    closed.append(True)
    queue.close()
    end(workers)


def scenario_stop():
    """close() comes while a thread waits in put(). A worker takes each item that a put() has accepted."""
    queue, taken = Queue(1), []
    queue.put("a")
    acceptor, worker = Acceptor(queue, "b"), Worker(queue, taken, 1)
    start([acceptor, worker])
    closed.append(True)
    queue.close()
    end([acceptor, worker])
    expect_accepted(acceptor, taken)


def scenario_stop_full():
    """The same, but no worker takes an item before put() has returned: close() itself ends the wait."""
    queue, taken = Queue(1), []
    queue.put("a")
    acceptor, worker = Acceptor(queue, "b"), Worker(queue, taken, 1)
    start([acceptor])
    closed.append(True)
    queue.close()
    end([acceptor])
    start([worker])
    end([worker])
    expect_accepted(acceptor, taken)


closed = []  # not empty as soon as a scenario calls close()


class Worker(threading.Thread):
    """A thread that takes items, and adds them to the list `taken`. items: how many; None: all until close()."""

    def __init__(self, queue, taken, number, items=None):
        super().__init__(name=f"worker {number}")
        self.queue, self.taken, self.items = queue, taken, items
        self.asked = []  # an entry for each call of get()

    def run(self):
        while self.items is None or len(self.asked) < self.items:
            self.asked.append("get")
            item = self.queue.get()
            if item is None:
                assert closed, "get() returned None, and nobody has called close()"
                return
            self.taken.append(item)


class Giver(threading.Thread):
    """A thread that puts one item into a queue with room for one, and then counts the items in the queue.

    workers: the threads that take items. put: the items that all givers have put.
    """

    def __init__(self, queue, workers, put, item):
        super().__init__(name=f"giver {item}")
        self.queue, self.workers, self.put, self.item = queue, workers, put, item

    def run(self):
        self.queue.put(self.item)
        self.put.append(self.item)
        # A worker that has asked may take an item at any moment, so only the others are certainly in the queue.
        inside = len(self.put) - sum(len(worker.asked) for worker in self.workers)
        assert inside <= 1, f"room for 1, and {inside} items that no get() has asked for: put() did not wait"


class Acceptor(threading.Thread):
    """A thread that puts one item, perhaps into a closed queue. accepted: the items that put() has added."""

    def __init__(self, queue, item):
        super().__init__(name="acceptor")
        self.queue, self.item, self.accepted = queue, item, []

    def run(self):
        if self.queue.put(self.item) is not False:
            self.accepted.append(self.item)


def expect_accepted(acceptor, taken):
    """Expect that the workers have taken the item "a", then the acceptor's one if put() has accepted it."""
    accepted = ["a", *acceptor.accepted]
    assert taken == accepted, f"put() did not return False for {accepted}, and get() returned {taken}"


def start(threads):
    for thread in threads:
        thread.start()


def end(threads):
    for thread in threads:
        thread.join()
