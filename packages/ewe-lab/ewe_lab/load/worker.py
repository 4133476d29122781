"""A worker of locust on another machine: `python -m ewe_lab.load.worker`, with an order on standard input.

It connects to the master's port, which ssh brings to this machine, and has the users of the lab. locust's master
says how many of them it runs (`spawn`); two messages of the lab's own say when the measured time begins and ends
(BEGIN, END), and the worker answers the second with its counts (COUNTS). locust sends all of them.

An open loop has one user on each worker, which keeps a part of the schedule: each worker has an equal part of the
rate, and begins a part of an interval later than the one before it, so that together they are as even as one.
Closed users start one after another within a think time. Their numbers say when, so the workers take the numbers in
turns. Workers and users count from 0: worker 0 of 2 has the users 0, 2, 4 ..., and worker 1 the users 1, 3, 5 ...
"""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import replace
from typing import Any

from ewe_lab.load import users  # locust: before anything that knows sockets

# isort: split
import gevent
from locust.env import Environment

from ewe_lab.bench.experiment import Load
from ewe_lab.bench.results import value_from_json
from ewe_lab.load.__main__ import (
    LATE_TIMEOUT_S,
    max_sessions,
    new_events,
    sleep_until,
    wait_for_answers,
    write_line,
)
from ewe_lab.load.client import load_target
from ewe_lab.load.merged import pack_counts
from ewe_lab.load.recorder import Recorder

BEGIN, END, COUNTS = "ewe-begin", "ewe-end", "ewe-counts"
CONNECTED = "connected"
USER = "LoadUser"


def part_of_load(load: Load, worker_index: int, worker_count: int) -> Load:
    """Return the part of a load that one of several workers carries out. worker_index: from 0.

    locust divides closed users; a schedule and its connections are divided here.
    """
    if load.shape != "arrivals":
        return load
    # Where the division leaves a rest, the first workers have one connection more
    connections = (load.users + worker_count - 1 - worker_index) // worker_count if load.users else 0
    return replace(load, rate=load.rate / worker_count, users=connections)


class LateArrivals(users.ArrivalUser):
    """An open loop that begins a part of an interval late."""

    abstract = True
    late_s = 0.0

    def on_start(self) -> None:
        """Wait for the turn of this worker."""
        gevent.sleep(self.late_s)


def plan_of(whole: Load, url: str, worker_index: int, worker_count: int) -> users.UsersPlan:
    """Return the plan of the users of one of several workers. whole: the load of all of them. worker_index: from 0.

    Raises OSError if the server's name is unknown, ValueError if the URL is not that of a server.
    """
    load = part_of_load(whole, worker_index, worker_count)
    recorder = Recorder(scheduled=load.shape == "arrivals")
    plan = users.UsersPlan(load, load_target(load, url), recorder, max_sessions())
    plan.numbers = itertools.count(worker_index, worker_count)
    return plan


def count_from_here(plan: users.UsersPlan) -> None:
    """Count the requests from now on, or from the begin that the schedule has."""
    if plan.recorder.scheduled:
        plan.schedule_has_begun.wait()
        sleep_until(plan.recorder.begin)
    plan.recorder.start()


def count_to_here(plan: users.UsersPlan) -> dict[str, Any]:
    """Count no later requests, wait for those under way, stop the users, and return the counts."""
    if plan.recorder.scheduled:
        sleep_until(plan.recorder.end)
        plan.users_stop = True
        plan.recorder.stop()
        plan.all_sessions_begun.wait(plan.load.timeout + LATE_TIMEOUT_S)
        plan.sessions.join(plan.load.timeout + 1)
    else:
        plan.recorder.stop()
        wait_for_answers(plan)
        plan.users_stop = True
    return pack_counts(plan.recorder) | {"dropped": plan.dropped}


def main() -> int:
    """Read the order, connect, and do as the master says until it ends the run; return the exit status."""
    order = json.load(sys.stdin)
    whole = value_from_json(Load, order["load"])
    assert isinstance(whole, Load)
    worker_index, worker_count = int(order["number"]), int(order["of"])
    try:
        plan = plan_of(whole, order["url"], worker_index, worker_count)
    except (OSError, ValueError) as reason:
        print(f"cannot load {order['url']}: {reason}", file=sys.stderr)
        return 1
    scheduled = plan.recorder.scheduled
    attributes: dict[str, object] = {"plan": plan}
    if scheduled:
        attributes["late_s"] = worker_index / whole.rate  # workers take turns
    user: Any = type(USER, (LateArrivals if scheduled else users.ClosedUser,), attributes)
    environment = Environment(
        user_classes=[user], events=new_events(), host=order["url"], catch_exceptions=False
    )
    runner = environment.create_worker_runner("127.0.0.1", int(order["port"]))
    beginnings: list[Any] = []  # the greenlets of count_from_here(), which may wait

    def on_begin(environment: Environment, msg: object) -> None:
        # A greenlet: locust reads no further message until this function returns
        beginnings.append(gevent.spawn(count_from_here, plan))

    def on_end(environment: Environment, msg: object) -> None:
        gevent.joinall(beginnings)
        runner.send_message(COUNTS, count_to_here(plan))

    runner.register_message(BEGIN, on_begin)
    runner.register_message(END, on_end, concurrent=True)
    write_line(CONNECTED)
    runner.greenlet.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
