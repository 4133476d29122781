"""A worker of locust on another machine: `python -m ewe_lab.load.worker`, with an order on standard input.

It connects to the master's port, which ssh brings to this machine, and has the users of the lab. locust's master
says how many of them it runs (`spawn`); two messages of the lab's own say when the measured time begins and ends
(BEGIN, END), and the worker answers the second with its counts (COUNTS). locust sends all of them.

An open loop has one user on each worker, which keeps a part of the schedule: each worker has an equal part of the
rate, and begins a part of an interval later than the one before it, so that together they are as even as one.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

from ewe_lab.load import users  # locust: before anything that knows sockets

# isort: split
import gevent
from locust.env import Environment

from ewe_lab.bench.experiment import Load
from ewe_lab.bench.processes import allow_descriptors
from ewe_lab.bench.results import value_from_json
from ewe_lab.load.__main__ import (
    LATE_TIMEOUT_S,
    MAX_SESSIONS,
    SPARE_DESCRIPTORS,
    new_events,
    say,
    sleep_until,
    wait_for_answers,
)
from ewe_lab.load.client import target
from ewe_lab.load.merged import packed
from ewe_lab.load.recorder import Recorder

BEGIN, END, COUNTS = "ewe-begin", "ewe-end", "ewe-counts"
CONNECTED = "connected"
USER = "LoadUser"


def share(load: Load, number: int, of: int) -> Load:
    """Return the part of a load that worker `number` (from 0) of `of` carries out.

    locust divides closed users; a schedule and its connections are divided here.
    """
    if load.shape != "arrivals":
        return load
    connections = (load.users + of - 1 - number) // of if load.users else 0
    return replace(load, rate=load.rate / of, users=connections)


class LateArrivals(users.ArrivalUser):
    """An open loop that begins a part of an interval late. late: seconds."""

    abstract = True
    late = 0.0

    def on_start(self) -> None:
        """Wait for the turn of this worker."""
        gevent.sleep(self.late)


def plan_of(load: Load, url: str) -> users.UsersPlan:
    """Return the plan of this worker's users. Raises OSError, ValueError if the server's name is unknown."""
    most = min(allow_descriptors(MAX_SESSIONS + SPARE_DESCRIPTORS) - SPARE_DESCRIPTORS, MAX_SESSIONS)
    return users.UsersPlan(load, target(load, url), Recorder(load.shape == "arrivals"), most)


def begin(plan: users.UsersPlan) -> None:
    """Count from here on; a schedule has its own begin."""
    if plan.recorder.scheduled:
        plan.began.wait()
        sleep_until(plan.recorder.begin)
    plan.recorder.start()


def end(plan: users.UsersPlan) -> dict[str, Any]:
    """Count to here, wait for the requests under way, and return the counts."""
    if plan.recorder.scheduled:
        sleep_until(plan.recorder.end)
        plan.over = True
        plan.recorder.stop()
        plan.arrived.wait(plan.load.timeout + LATE_TIMEOUT_S)
        plan.sessions.join(plan.load.timeout + 1)
    else:
        plan.recorder.stop()
        wait_for_answers(plan)
        plan.over = True
    return packed(plan.recorder) | {"dropped": plan.dropped}


def main() -> int:
    """Read the order, connect, and obey the master until it says that all is over; return the exit status."""
    order = json.load(sys.stdin)
    whole = value_from_json(Load, order["load"])
    assert isinstance(whole, Load)
    number, of = int(order["number"]), int(order["of"])
    try:
        plan = plan_of(share(whole, number, of), order["url"])
    except (OSError, ValueError) as reason:
        print(f"cannot load {order['url']}: {reason}", file=sys.stderr)
        return 1
    scheduled = plan.recorder.scheduled
    parts: dict[str, object] = {"plan": plan}
    if scheduled:
        parts["late"] = number / whole.rate
    user: Any = type(USER, (LateArrivals if scheduled else users.ClosedUser,), parts)
    environment = Environment(
        user_classes=[user], events=new_events(), host=order["url"], catch_exceptions=False
    )
    runner = environment.create_worker_runner("127.0.0.1", int(order["port"]))
    counting: list[Any] = []

    def on_begin(environment: Environment, msg: object) -> None:
        counting.append(gevent.spawn(begin, plan))

    def on_end(environment: Environment, msg: object) -> None:
        gevent.joinall(counting)
        runner.send_message(COUNTS, end(plan))

    runner.register_message(BEGIN, on_begin)
    runner.register_message(END, on_end, concurrent=True)
    say(CONNECTED)
    runner.greenlet.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
