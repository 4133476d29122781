"""The child process: reads {"url": ..., "load": {...}} from its input, and writes lines to its output.

begin           the warm-up is over
end             what counts is over
{...}           a results.Sample as JSON, without what only the server's side knows
"""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import asdict
from typing import Any

from ewe.lab.load import users  # locust: before anything that knows sockets

# isort: split
import gevent
from locust.env import Environment
from locust.event import Events

from ewe.lab.experiment import Load
from ewe.lab.load.client import target
from ewe.lab.load.recorder import Recorder
from ewe.lab.results import Sample

SPARE = 64  # descriptors for ourselves
MOST = 20_000  # sessions at once, whatever the limit of descriptors


def descriptors() -> int:
    """Raise the limit of descriptors as far as we may; return how many there are for connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST + SPARE if hard == resource.RLIM_INFINITY else min(hard, MOST + SPARE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted - SPARE


def new_events() -> Any:
    """Return locust's hooks, none of which anybody listens to yet."""
    return Events()  # type: ignore[no-untyped-call]


def say(text: str) -> None:
    """Write a line at once."""
    print(text, flush=True)


def run(load: Load, url: str) -> Sample:
    """Run a load; a sample of it."""
    scheduled = load.shape == "arrivals"
    recorder = Recorder(scheduled)
    plan = users.Plan(load, target(load, url), recorder, descriptors())
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


def run_sessions(runner: Any, plan: users.Plan) -> None:
    """Let all sessions come and go."""
    begin(plan)
    runner.start(1, spawn_rate=1)
    with gevent.Timeout(plan.load.seconds, False):
        plan.arrived.wait()
        plan.sessions.join()
    if plan.sessions or not plan.arrived.is_set():
        plan.over = True
    end(plan)


def run_time(runner: Any, plan: users.Plan) -> None:
    """Let users come, warm up, and then do what they do for a time."""
    load = plan.load
    count = 1 if load.shape == "arrivals" else load.users
    runner.start(count, spawn_rate=count)
    while load.shape == "closed" and runner.user_count < count:
        gevent.sleep(0.01)
    gevent.sleep(load.warm_up)
    begin(plan)
    gevent.sleep(sum(length for length, _ in load.phases) or load.seconds)
    plan.over = True
    end(plan)


def begin(plan: users.Plan) -> None:
    """Count from here on."""
    say("begin")
    plan.recorder.start()


def end(plan: users.Plan) -> None:
    """Count to here."""
    plan.recorder.stop()
    say("end")


def finished(plan: users.Plan) -> Sample:
    """Return the sample with what there is to note."""
    found = plan.recorder.sample("locust")
    if plan.load.sessions and plan.over:
        found.notes.append(
            f"cut off after {plan.load.seconds:g} s, with {len(plan.sessions)} sessions under way"
        )
    if plan.dropped:
        found.notes.append(
            f"{plan.dropped} sessions were not begun: {plan.most} were under way, as many as the load can hold"
        )
    return found


def main() -> int:
    """Read, run, write; return the exit status."""
    order = json.load(sys.stdin)
    load = Load(
        **{**order["load"], "phases": tuple((float(a), float(b)) for a, b in order["load"]["phases"])}
    )
    say(json.dumps(asdict(run(load, order["url"]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
