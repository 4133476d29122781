"""The child process: it reads {"url": ..., "load": {...}} from standard input and writes lines to standard output.

begin           the warm-up is over
end             the measured time is over
{...}           a results.Sample as JSON, without the figures of the server
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

from ewe_lab.load import users  # locust: before anything that knows sockets

# isort: split
import gevent
from locust.env import Environment
from locust.event import Events

from ewe_lab.bench.experiment import Load
from ewe_lab.bench.processes import allow_descriptors
from ewe_lab.bench.results import Sample, value_from_json
from ewe_lab.load.client import target
from ewe_lab.load.recorder import Recorder

LATE_TIMEOUT_S = 1.0  # seconds by which a timeout may be late
SPARE_DESCRIPTORS = 64  # descriptors that are not connections
MAX_SESSIONS = 20_000  # sessions at once, even if the limit of descriptors is higher


def new_events() -> Any:
    """Return locust's hooks, without listeners."""
    return Events()  # type: ignore[no-untyped-call]


def say(text: str) -> None:
    """Write a line and flush."""
    print(text, flush=True)


def run(load: Load, url: str) -> Sample:
    """Run a load; return its sample."""
    scheduled = load.shape == "arrivals"
    recorder = Recorder(scheduled)
    plan = users.UsersPlan(
        load,
        target(load, url),
        recorder,
        min(allow_descriptors(MAX_SESSIONS + SPARE_DESCRIPTORS) - SPARE_DESCRIPTORS, MAX_SESSIONS),
    )
    user: Any = type("LoadUser", (users.ArrivalUser if scheduled else users.ClosedUser,), {"plan": plan})
    environment = Environment(user_classes=[user], events=new_events(), host=url, catch_exceptions=False)
    runner = environment.create_local_runner()
    try:
        if scheduled and load.sessions:
            run_sessions(runner, plan)
        else:
            run_time(runner, plan)
        if scheduled:
            plan.sessions.join(load.timeout + 1)  # each request has its own limit
        return finished(plan)
    finally:
        runner.quit()


def run_sessions(runner: Any, plan: users.UsersPlan) -> None:
    """Run all sessions to their end."""
    begin(plan)
    runner.start(1, spawn_rate=1)
    with gevent.Timeout(plan.load.seconds, False):
        plan.arrived.wait()
        plan.sessions.join()
    if plan.sessions or not plan.arrived.is_set():
        plan.over = True
    end(plan)


def run_time(runner: Any, plan: users.UsersPlan) -> None:
    """Start the users, let them warm up, and measure for the time of the load."""
    load = plan.load
    count = 1 if load.shape == "arrivals" else load.users
    runner.start(count, spawn_rate=count)
    if load.shape == "arrivals":
        plan.began.wait()
        sleep_until(plan.recorder.begin)
        begin(plan)
        sleep_until(plan.recorder.end)
        plan.over = True
        end(plan)
        plan.arrived.wait(load.timeout + LATE_TIMEOUT_S)
        return
    while runner.user_count < count:
        gevent.sleep(0.01)
    gevent.sleep(load.warm_up)
    begin(plan)
    gevent.sleep(load.duration)
    end(plan)
    wait_for_answers(plan)
    plan.over = True


def sleep_until(at: float) -> None:
    """Sleep until a time of time.perf_counter()."""
    gevent.sleep(max(at - time.perf_counter(), 0))


def wait_for_answers(plan: users.UsersPlan) -> None:
    """Let closed users go on, uncounted, until each request that was under way has its answer or its timeout.

    They must go on: a server without load would now answer the requests that it had kept waiting.
    """
    give_up = time.perf_counter() + plan.load.timeout + LATE_TIMEOUT_S
    while plan.recorder.under_way() and time.perf_counter() < give_up:
        gevent.sleep(0.01)


def begin(plan: users.UsersPlan) -> None:
    """Count from here on."""
    say("begin")
    plan.recorder.start()


def end(plan: users.UsersPlan) -> None:
    """Count to here."""
    plan.recorder.stop()
    say("end")


def finished(plan: users.UsersPlan) -> Sample:
    """Return the sample with its notes."""
    found = plan.recorder.sample("locust")
    if plan.load.sessions and plan.over:
        found.notes.append(
            f"cut off after {plan.load.seconds:g} s, with {len(plan.sessions)} sessions under way"
        )
    if plan.dropped:
        found.notes.append(
            f"{plan.dropped} sessions were not begun: {plan.max_sessions} were under way, as many "
            "as the load can hold"
        )
    return found


def main() -> int:
    """Read, run, write; return the exit status."""
    order = json.load(sys.stdin)
    load = value_from_json(Load, order["load"])
    assert isinstance(load, Load)
    say(json.dumps(asdict(run(load, order["url"]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
