"""The users of a load, in locust's terms: closed users, and one user with the schedule of all arrivals.

    closed      user 1: request ─▶ answer ─▶ think ─▶ request ...        the server sets the pace: while it stalls,
                user 2:   request ─▶ answer ─▶ think ...                 no request comes
    arrivals    schedule: due at 0 ms, 10 ms, 20 ms ...                  the clock sets the pace: while the server
                  └─▶ a greenlet for each session, however many          stalls, sessions pile up, as visitors do

locust knows closed users only. The open loop is therefore one user of locust, which begins all sessions by the
schedule (ArrivalUser).

Possible failures: this process is late, or has no descriptor left. A session counts from the time at which it was
due, so lateness is in its response time; one that cannot begin is counted as dropped.

This module is imported in the child process only: importing locust replaces functions of the standard library by
gevent's. Read next: recorder.py.
"""

from __future__ import annotations

# isort: off
import locust  # first, see above

# isort: on
import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import gevent
from gevent.event import Event
from gevent.pool import Group
from gevent.queue import Queue
from locust import User, task

from ewe_lab.bench.experiment import Load
from ewe_lab.load.client import BadAnswer, LoadConnection, LoadTarget, StatusError, error_kind
from ewe_lab.load.recorder import Recorder

AFTER_ERROR_S = 0.1  # seconds that a closed user waits after an error; without it refused users would spin
UNTIL_KILLED_S = 3600  # a user that has nothing more to do sleeps until locust kills it
RANDOM_SEED = 2011  # of the random times
REQUESTS_PER_TURN = 100  # requests of a user without think time before locust gets control

__all__ = ["ArrivalUser", "ClosedUser", "UsersPlan", "locust", "session_times"]


@dataclass
class UsersPlan:
    """The state of a run that all its users share. max_sessions: at the same time. numbers: for the next users.

    dropped: the sessions that were not begun, because max_sessions were under way.
    """

    load: Load
    target: LoadTarget
    recorder: Recorder
    max_sessions: int
    numbers: Iterator[int] = field(default_factory=itertools.count)
    users_stop: bool = False  # the measured time is over: users send no more requests
    schedule_has_begun: Event = field(default_factory=Event)
    all_sessions_begun: Event = field(default_factory=Event)  # all that the schedule has
    sessions: Group = field(default_factory=Group)  # those under way, a greenlet each
    dropped: int = 0


def send_request(
    plan: UsersPlan, connection: LoadConnection, client: int, due: float | None, number: int = 0
) -> bool:
    """Send a request and record it; return whether it was answered.

    client: the number under which the recorder knows the sender. due: a time of time.perf_counter(), None without a
    schedule. number: chooses one of the load's requests, which take turns.
    """
    connections_before, received_before = connection.connections, connection.received
    sent = time.perf_counter()
    plan.recorder.count_sent(client, sent, due)
    error = ""  # the kind of the error
    try:
        connection.ask(number)
    except (OSError, StatusError, BadAnswer) as reason:
        error = error_kind(reason)
    plan.recorder.count_end(
        client,
        due=sent if due is None else due,
        sent=sent,
        error=error,
        new_connections=connection.connections - connections_before,
        received=connection.received - received_before,
    )
    return not error


class ClosedUser(User):
    """Sends a request, waits for the answer, thinks, and sends the next."""

    abstract = True
    plan: UsersPlan

    def on_start(self) -> None:
        """Wait for a part of the think time: users that start together would send together all the time.

        User k of n (from 0) waits for k / n of the think time.
        """
        self.number = next(self.plan.numbers)
        self.connection = LoadConnection(self.plan.target)
        self.request_number = self.number  # each user begins with another request of the load
        gevent.sleep(self.plan.load.think * self.number / max(self.plan.load.users, 1))

    def wait_time(self) -> float:
        """Return the seconds of thinking before the next task, for locust."""
        return self.plan.load.think

    @task
    def send_requests(self) -> None:
        """Send one request, or many if there is no think time: locust's own work would take longer than some."""
        for _ in range(1 if self.plan.load.think else REQUESTS_PER_TURN):
            if self.plan.users_stop:
                gevent.sleep(UNTIL_KILLED_S)
            self.request_number += 1
            if not send_request(self.plan, self.connection, self.number, None, self.request_number):
                gevent.sleep(max(AFTER_ERROR_S - self.plan.load.think, 0))


def session_times(load: Load) -> Iterator[float]:
    """Yield the seconds, from the beginning of the warm-up, at which sessions are due."""
    if load.sessions:
        yield from (number / load.rate for number in range(load.sessions))
        return
    phases = load.phases or ((load.seconds, load.rate),)
    start = 0.0  # of the warm-up or the phase
    chance = random.Random(RANDOM_SEED)
    _, first_rate = phases[0]
    for length, rate in ((load.warm_up, first_rate), *phases):
        if load.poisson:  # independent arrivals: the times between them have an exponential distribution
            arrival = chance.expovariate(rate) if rate > 0 else length
            while arrival < length:
                yield start + arrival
                arrival += chance.expovariate(rate)
        else:
            number = 0
            while rate > 0 and number / rate < length:
                yield start + number / rate
                number += 1
        start += length


class ArrivalUser(User):
    """Begins sessions when they are due, independent of the earlier ones: an open loop."""

    abstract = True
    fixed_count = 1
    plan: UsersPlan

    @task
    def begin_sessions_when_due(self) -> None:
        """Begin each session of the schedule at its time, and set the events of the plan."""
        plan = self.plan
        pool: Queue[LoadConnection] | None = None
        if plan.load.users:  # the connections that all sessions share
            pool = Queue()
            for _ in range(plan.load.users):
                pool.put(LoadConnection(plan.target))
        began = time.perf_counter()
        if not plan.load.sessions:
            begin = began + plan.load.warm_up
            plan.recorder.set_window(begin, begin + plan.load.duration)
            plan.recorder.divide_into_phases([seconds for seconds, _ in plan.load.phases])
        plan.schedule_has_begun.set()
        for number, seconds in enumerate(session_times(plan.load)):
            due = began + seconds
            if (wait := due - time.perf_counter()) > 0:
                gevent.sleep(wait)
            # A schedule of a length has no session after the end. One that was due before it counts, however late
            # this process is.
            if plan.users_stop and plan.load.sessions:
                break
            plan.recorder.count_due(due, starts_session=plan.load.calls > 1)
            if len(plan.sessions) >= plan.max_sessions:
                plan.dropped += 1
                plan.recorder.count_dropped(due)
                continue
            plan.sessions.start(gevent.Greenlet(run_session, plan, number, due, pool))
        plan.all_sessions_begun.set()
        gevent.sleep(UNTIL_KILLED_S)


def run_session(plan: UsersPlan, client: int, due: float, pool: Queue[LoadConnection] | None) -> None:
    """Send the requests of a session, with think time between them, until one fails.

    due: the time at which the session, and with it the first request, was due. pool: the connections that all
    sessions share, None if each has its own.
    """
    plan.recorder.count_waiting(client, due)  # all connections may be busy, to the end of the load and beyond
    connection = LoadConnection(plan.target) if pool is None else pool.get()
    try:
        for call in range(plan.load.calls):
            if call:  # a further request is due when the user has thought
                due = time.perf_counter() + plan.load.think
                if plan.load.think:
                    gevent.sleep(plan.load.think)
                if plan.users_stop and not plan.recorder.counts_at(due):
                    return
                plan.recorder.count_due(due)
            if not send_request(plan, connection, client, due, call):
                return
    finally:
        if pool is None:
            connection.close()
        else:
            pool.put(connection)
