"""Run your schedule in thousands of orders of its threads: ewe-explore test_schedule.py

A scenario needs no client, no socket and no luck. The first two have one thread, and test the policies. In the
third, the explorer decides at each step which thread goes on, and shows the smallest order that fails.
"""

import threading

import schedule
from schedule import Request, Schedule


def scenario_next():
    """Three requests wait. fifo takes the first one, sff the smallest one."""
    for policy, order in (("fifo", ["b", "c", "a"]), ("sff", ["a", "b", "c"])):
        # A queue of 16 has room for all, so nothing is dropped
        schedule.POLICY, schedule.QUEUE, schedule.DROP = policy, 16, "newest"
        waiting = Schedule()
        for name, size in (("b", 20), ("c", 30), ("a", 10)):
            waiting.put(request(name, size))
        taken = [waiting.get(worker=1).target for _ in order]
        assert taken == order, f"{policy} serves {taken}, and not {order}"


def scenario_drop():
    """Two requests may wait, and a third one comes. The rule names the one to drop."""
    for rule, dropped in (("newest", "c"), ("oldest", "a"), ("largest", "b")):
        schedule.POLICY, schedule.QUEUE, schedule.DROP = "fifo", 2, rule
        waiting = Schedule()
        found = [waiting.put(request(name, size)) for name, size in (("a", 10), ("b", 30), ("c", 20))]
        names = [each and each.target for each in found]  # None where nothing is dropped
        assert names == [None, None, dropped], f"{rule} drops {names}, and not only {dropped} at the end"


def scenario_each_once():
    """Two workers, and room for one request: each request is served or dropped, and none of them twice."""
    schedule.POLICY, schedule.QUEUE, schedule.DROP = "fifo", 1, "newest"
    waiting, served, dropped = Schedule(), [], []
    workers = [threading.Thread(target=work, args=(waiting, served, number)) for number in (1, 2)]
    for worker in workers:
        worker.start()
    for name in ("a", "b", "c"):
        refused = waiting.put(request(name, 10))
        if refused is not None:
            dropped.append(refused.target)
    waiting.close()
    for worker in workers:
        worker.join()
    assert sorted(served + dropped) == ["a", "b", "c"], f"served: {served}, dropped: {dropped}"


def request(name, size):
    return Request(client=0, target=name, size=size, connection=None)


def work(waiting, served, number):
    """Serve requests until the schedule is closed."""
    while (taken := waiting.get(number)) is not None:
        served.append(taken.target)
        waiting.done(taken, number)
