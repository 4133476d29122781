"""locust's master for workers on other machines: `python -m ewe_lab.load.master`, with an order on standard input.

It listens at a port of 127.0.0.1 that it says first (`port N`), waits for its workers, lets locust divide the users
among them, and prints what `python -m ewe_lab.load` prints: begin, end, and a sample as JSON, of all workers
together. If a worker is missing or lost, it ends with one line: a load that lacks a part is no measurement.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ewe_lab.load import users  # locust: before anything that knows sockets

# isort: split
import gevent
from locust.env import Environment

from ewe_lab.bench.experiment import Load
from ewe_lab.bench.results import Sample, value_from_json
from ewe_lab.load.__main__ import LATE_TIMEOUT_S, new_events, say
from ewe_lab.load.merged import merged
from ewe_lab.load.worker import BEGIN, COUNTS, END, USER

CONNECT_S = 30.0  # seconds until all workers have connected; a machine may still have to start Python
SPAWN_S = 20.0  # seconds until all users run
STEP_S = 0.02


class Lost(Exception):
    """The load cannot be made; the text is one line."""


class Crew:
    """The master's side of the workers. parts: their counts, by worker."""

    def __init__(self, load: Load, url: str, workers: int) -> None:
        self.load, self.workers = load, workers
        self.parent = os.getppid()
        self.parts: dict[str, dict[str, Any]] = {}
        user: Any = type(USER, (users.ClosedUser,), {})
        environment = Environment(user_classes=[user], events=new_events(), host=url, catch_exceptions=False)
        self.runner = environment.create_master_runner("127.0.0.1", 0)
        self.runner.register_message(COUNTS, self.take)

    def take(self, environment: Environment, msg: Any) -> None:
        """Keep the counts of a worker."""
        self.parts[str(msg.node_id)] = msg.data

    def comes_true(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition; return False after `seconds`. Raises Lost if the lab, our parent, has ended."""
        end = time.monotonic() + seconds
        while not condition():
            if os.getppid() != self.parent:
                raise Lost("the lab has ended")
            left = end - time.monotonic()
            if left <= 0:
                return False
            gevent.sleep(min(left, STEP_S))
        return True

    def wait(self, seconds: float, done: Callable[[], bool], what: str) -> None:
        """Wait until `done()`. Raises Lost after `seconds`, and if the lab has ended."""
        if not self.comes_true(done, seconds):
            raise Lost(f"{what} within {seconds:.0f} s")

    def rest(self, seconds: float) -> None:
        """Let a time pass. Raises Lost if a worker is lost meanwhile, and if the lab has ended."""
        if self.comes_true(lambda: self.present() < self.workers, seconds):
            raise Lost(f"{self.workers - self.present()} of {self.workers} load workers fell silent")

    def present(self) -> int:
        """Return the number of workers that locust hears."""
        clients = self.runner.clients
        return len(clients.ready) + len(clients.spawning) + len(clients.running)

    def run(self) -> Sample:
        """Run the load; return the sample of all workers. Raises Lost."""
        load, runner = self.load, self.runner
        self.wait(CONNECT_S, lambda: self.present() >= self.workers, "not all load workers connected")
        count = self.workers if load.shape == "arrivals" else load.users
        gevent.spawn(runner.start, count, spawn_rate=max(count, 1))
        self.wait(
            SPAWN_S, lambda: runner.spawning_completed and runner.user_count >= count, "not all users began"
        )
        self.rest(load.warm_up)
        runner.send_message(BEGIN)
        say("begin")
        self.rest(load.duration)
        runner.send_message(END)
        say("end")
        longest = 2 * load.timeout + load.think + 5 * LATE_TIMEOUT_S
        self.wait(longest, lambda: len(self.parts) >= self.workers, "not all load workers sent their counts")
        return self.sample()

    def sample(self) -> Sample:
        """Return the sample. Raises Lost if a worker sent no counts."""
        try:
            found = merged(list(self.parts.values()), self.load.shape == "arrivals").sample("locust")
            dropped = sum(int(part["dropped"]) for part in self.parts.values())
        except (KeyError, TypeError, ValueError, AttributeError):
            raise Lost("a load worker sent counts that cannot be read") from None
        found.running = []
        if dropped:
            found.notes.append(
                f"{dropped} sessions were not begun: a worker had as many under way as it can hold"
            )
        return found


def main() -> int:
    """Read, run, write; return the exit status."""
    order = json.load(sys.stdin)
    load = value_from_json(Load, order["load"])
    assert isinstance(load, Load)
    crew = Crew(load, order["url"], int(order["workers"]))
    say(f"port {crew.runner.server.port}")
    try:
        say(json.dumps(asdict(crew.run())))
    except Lost as reason:
        print(reason, file=sys.stderr)
        return 1
    finally:
        crew.runner.quit()
    return 0


if __name__ == "__main__":
    sys.exit(main())
