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
from ewe_lab.load.__main__ import LATE_TIMEOUT_S, new_events, write_line
from ewe_lab.load.merged import merge_counts
from ewe_lab.load.worker import BEGIN, COUNTS, END, USER

CONNECT_S = 30.0  # seconds until all workers have connected; a machine may still have to start Python
SPAWN_S = 20.0  # seconds until all users run
STEP_S = 0.02


class LoadFailed(Exception):
    """A part of the load is missing, so that it is no measurement; the text is one line."""


class LoadWorkers:
    """locust's master, and the workers that it knows. workers: the number that take part in the load.

    lab_pid: the process of the lab, whose end ends the load. counts_by_worker: the counts that have arrived, by the
    name that locust gives a worker.
    """

    def __init__(self, load: Load, url: str, workers: int) -> None:
        self.load, self.workers = load, workers
        self.lab_pid = os.getppid()
        self.counts_by_worker: dict[str, dict[str, Any]] = {}
        # By this name, locust tells the workers which users to start: their class (worker.py) has it, too
        user: Any = type(USER, (users.ClosedUser,), {})
        environment = Environment(user_classes=[user], events=new_events(), host=url, catch_exceptions=False)
        self.runner = environment.create_master_runner("127.0.0.1", 0)
        self.runner.register_message(COUNTS, self.store_counts)

    def store_counts(self, environment: Environment, msg: Any) -> None:
        """Store the counts of a worker, which the message brings."""
        self.counts_by_worker[str(msg.node_id)] = msg.data

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition; return whether it has come true in time. Raises LoadFailed if the lab has ended."""
        end = time.monotonic() + seconds
        while not condition():
            if os.getppid() != self.lab_pid:  # an orphan has another parent
                raise LoadFailed("the lab has ended")
            left = end - time.monotonic()
            if left <= 0:
                return False
            gevent.sleep(min(left, STEP_S))
        return True

    def wait_or_fail(self, seconds: float, condition: Callable[[], bool], failure: str) -> None:
        """Wait until a condition holds. Raises LoadFailed after `seconds`, with the text `failure`.

        Raises LoadFailed also if the lab has ended.
        """
        if not self.wait_until(condition, seconds):
            raise LoadFailed(f"{failure} within {seconds:.0f} s")

    def sleep_while_all_present(self, seconds: float) -> None:
        """Let a time pass. Raises LoadFailed if a worker is lost meanwhile, and if the lab has ended."""
        if self.wait_until(lambda: self.count_workers() < self.workers, seconds):
            raise LoadFailed(
                f"{self.workers - self.count_workers()} of {self.workers} load workers fell silent"
            )

    def count_workers(self) -> int:
        """Return the number of connected workers that send heartbeats to locust."""
        clients = self.runner.clients
        return len(clients.ready) + len(clients.spawning) + len(clients.running)

    def run(self) -> Sample:
        """Run the load, and return the sample of all workers. Raises LoadFailed.

        1. Wait until all workers have connected, then until all users run.
        2. Let the warm-up pass. Tell the workers, and the lab on standard output, that the measured time begins.
        3. Let the measured time pass. Tell both that it ends.
        4. Wait for the counts of the workers.
        """
        load, runner = self.load, self.runner
        self.wait_or_fail(
            CONNECT_S, lambda: self.count_workers() >= self.workers, "not all load workers connected"
        )
        # With a schedule (arrivals) each worker has one user, which begins the sessions of this worker
        count = self.workers if load.shape == "arrivals" else load.users
        # In another greenlet: start() waits until all users run, without a look at the time or at the lab
        gevent.spawn(runner.start, count, spawn_rate=max(count, 1))
        self.wait_or_fail(
            SPAWN_S, lambda: runner.spawning_completed and runner.user_count >= count, "not all users began"
        )
        self.sleep_while_all_present(load.warm_up)
        runner.send_message(BEGIN)
        write_line("begin")
        self.sleep_while_all_present(load.duration)
        runner.send_message(END)
        write_line("end")
        # The worker waits first: for its last sessions to begin, then for their answers, each up to the timeout
        max_counts_s = 2 * load.timeout + load.think + 5 * LATE_TIMEOUT_S
        self.wait_or_fail(
            max_counts_s,
            lambda: len(self.counts_by_worker) >= self.workers,
            "not all load workers sent their counts",
        )
        return self.sample()

    def sample(self) -> Sample:
        """Return the sample. Raises LoadFailed if a worker sent no counts."""
        try:
            is_scheduled = self.load.shape == "arrivals"
            found = merge_counts(list(self.counts_by_worker.values()), is_scheduled).sample("locust")
            dropped = sum(int(part["dropped"]) for part in self.counts_by_worker.values())
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise LoadFailed("a load worker sent counts that cannot be read") from None
        found.running = []  # the mean of the first answers has a meaning for the clients of one worker only
        if dropped:
            found.notes.append(
                f"{dropped} sessions were not begun: a worker had as many under way as it can hold"
            )
        return found


def main() -> int:
    """Read the order from standard input, run the load, and write its sample; return the exit status.

    The port comes first: the lab starts the workers when it knows where they connect. If the load fails, write the
    reason to standard error, and return 1.
    """
    order = json.load(sys.stdin)
    load = value_from_json(Load, order["load"])
    assert isinstance(load, Load)
    workers = LoadWorkers(load, order["url"], int(order["workers"]))
    write_line(f"port {workers.runner.server.port}")
    try:
        write_line(json.dumps(asdict(workers.run())))
    except LoadFailed as reason:
        print(reason, file=sys.stderr)
        return 1
    finally:
        workers.runner.quit()
    return 0


if __name__ == "__main__":
    sys.exit(main())
