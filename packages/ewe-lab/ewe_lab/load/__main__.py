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
from ewe_lab.load.client import load_target
from ewe_lab.load.recorder import Recorder

LATE_TIMEOUT_S = 1.0  # seconds by which a timeout may be late
SPARE_DESCRIPTORS = 64  # descriptors that are not connections
MAX_SESSIONS = 20_000  # sessions at once, even if the limit of descriptors is higher


def new_events() -> Any:
    """Return locust's hooks, without listeners."""
    return Events()  # type: ignore[no-untyped-call]


def write_line(text: str) -> None:
    """Write a line to the lab, and flush: the lab waits for it."""
    print(text, flush=True)


def run(load: Load, url: str) -> Sample:
    """Run a load; return its sample. It prints `begin` and `end` meanwhile."""
    scheduled = load.shape == "arrivals"
    plan = users.UsersPlan(load, load_target(load, url), Recorder(scheduled), max_sessions())
    # locust makes the users itself, so each finds the plan in its class
    user: Any = type("LoadUser", (users.ArrivalUser if scheduled else users.ClosedUser,), {"plan": plan})
    environment = Environment(user_classes=[user], events=new_events(), host=url, catch_exceptions=False)
    runner = environment.create_local_runner()
    try:
        if not scheduled:
            run_closed_users(runner, plan)
        elif load.sessions:
            run_sessions(runner, plan)
        else:
            run_arrivals(runner, plan)
        if scheduled:
            plan.sessions.join(load.timeout + 1)  # each request has its own limit
        return sample_with_notes(plan)
    finally:
        runner.quit()


def max_sessions() -> int:
    """Raise this process's limit of descriptors, and return how many sessions it can hold at the same time."""
    return min(allow_descriptors(MAX_SESSIONS + SPARE_DESCRIPTORS) - SPARE_DESCRIPTORS, MAX_SESSIONS)


def run_sessions(runner: Any, plan: users.UsersPlan) -> None:
    """Start a number of sessions, and count until all have ended, or the load's time has passed."""
    count_from_here(plan)
    runner.start(1, spawn_rate=1)  # one user begins all sessions
    with gevent.Timeout(plan.load.seconds, False):  # False: the timeout ends the block without an exception
        plan.all_sessions_begun.wait()
        plan.sessions.join()
    if plan.sessions or not plan.all_sessions_begun.is_set():  # the time has passed
        plan.users_stop = True
    count_to_here(plan)


def run_arrivals(runner: Any, plan: users.UsersPlan) -> None:
    """Start sessions by the schedule, and count those that are due in the measured time.

    Returns when all of them have begun. run() then waits until they have ended.
    """
    runner.start(1, spawn_rate=1)  # one user of locust (users.ArrivalUser) begins all sessions
    plan.schedule_has_begun.wait()  # the recorder knows now when the measured time begins and ends
    sleep_until(plan.recorder.begin)
    count_from_here(plan)
    sleep_until(plan.recorder.end)
    plan.users_stop = True  # before count_to_here(), which must not see a session that is due later
    count_to_here(plan)
    # On a busy machine the last sessions that were due before the end may begin late
    plan.all_sessions_begun.wait(plan.load.timeout + LATE_TIMEOUT_S)


def run_closed_users(runner: Any, plan: users.UsersPlan) -> None:
    """Start the users, let them warm up, and measure for the time of the load."""
    load = plan.load
    runner.start(load.users, spawn_rate=load.users)
    while runner.user_count < load.users:
        gevent.sleep(0.01)
    gevent.sleep(load.warm_up)
    count_from_here(plan)
    gevent.sleep(load.duration)
    count_to_here(plan)
    wait_for_answers(plan)  # the users go on meanwhile
    plan.users_stop = True


def sleep_until(at: float) -> None:
    """Sleep until a time of time.perf_counter()."""
    gevent.sleep(max(at - time.perf_counter(), 0))


def wait_for_answers(plan: users.UsersPlan) -> None:
    """Let closed users go on, uncounted, until each request that was under way has its answer or its timeout.

    They must go on: a server without load would now answer the requests that it had kept waiting.
    """
    give_up = time.perf_counter() + plan.load.timeout + LATE_TIMEOUT_S
    while plan.recorder.count_under_way() and time.perf_counter() < give_up:
        gevent.sleep(0.01)


def count_from_here(plan: users.UsersPlan) -> None:
    """Tell the lab that the measured time begins, and count the requests from now on."""
    write_line("begin")
    plan.recorder.start()


def count_to_here(plan: users.UsersPlan) -> None:
    """Count no later requests, and tell the lab that the measured time is over."""
    plan.recorder.stop()
    write_line("end")


def sample_with_notes(plan: users.UsersPlan) -> Sample:
    """Return the sample, with a note for each reason to doubt it."""
    found = plan.recorder.sample("locust")
    if plan.load.sessions and plan.users_stop:
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
    """Read the order, run the load, and write its sample; return the exit status."""
    order = json.load(sys.stdin)
    load = value_from_json(Load, order["load"])
    assert isinstance(load, Load)
    write_line(json.dumps(asdict(run(load, order["url"]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
