"""Which engine answers which request: limits, turns, and ends. No I/O, and no clock but what tick() is told.

An engine belongs to a key, (user, language). A request takes an idle engine of its key; else one is started, if
the user and the whole stay within their limits, where the least recently used idle engine may have to go; else
it waits. Users take turns: a flood of one user's requests stays behind the single request of another.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Protocol

from ewe.xswitch.settings import Settings

Key = tuple[str, str]  # user, language
WEIGH = 1.0  # seconds between looks at how much memory engines have


class Waiter(Protocol):
    """A request, as the pool sees it."""

    key: Key
    since: float  # when it came

    def refuse(self, status: int, cause: str) -> None:
        """Answer with an error."""


class Worker(Protocol):
    """An engine, as the pool sees it."""

    key: Key
    used: float  # when it last began or ended a request
    deadline: float  # when the request that it runs has taken too long
    served: int  # requests

    def give(self, waiter: Waiter) -> None:
        """Have it run a request."""

    def has_room(self) -> bool:
        """May it be given another request beside those that it runs?"""

    def expire(self) -> None:
        """Its request has taken too long: answer, and end it."""

    def retire(self) -> None:
        """End it: it is idle."""

    def memory(self) -> int:
        """Return the bytes that it has in memory."""


class Pool:
    """All engines and all that wait for one."""

    def __init__(self, settings: Settings, start: Callable[[Waiter], Worker | None]) -> None:
        """start: begins an engine for a request and gives it the request; None: it has refused the request."""
        self.settings = settings
        self.start = start
        self.workers: set[Worker] = set()
        self.idle: dict[Key, list[Worker]] = {}  # the last is the one used last
        self.of_user: Counter[str] = Counter()
        self.of_key: Counter[Key] = Counter()
        self.queues: dict[str, dict[Key, deque[Waiter]]] = {}
        self.turns: deque[str] = deque()  # users who wait, whose turn is next first
        self.waiting = 0
        self.weighed = 0.0  # when the engines' memory was looked at
        self.counters: Counter[str] = Counter()

    # Requests

    def submit(self, waiter: Waiter) -> None:
        """Give a request to an engine, now or later; or refuse it."""
        user = waiter.key[0]
        if waiter.key not in self.queues.get(user, ()) and self.place(waiter):
            return
        of_user = sum(map(len, self.queues.get(user, {}).values()))
        if self.waiting >= self.settings.max_queue or of_user >= self.settings.max_queue_per_user:
            self.counters["refused"] += 1
            waiter.refuse(
                503, f"{user} has {of_user} requests waiting, all users {self.waiting}: no room for more"
            )
            return
        if user not in self.queues:
            self.queues[user] = {}
            self.turns.append(user)
        self.queues[user].setdefault(waiter.key, deque()).append(waiter)
        self.waiting += 1

    def place(self, waiter: Waiter) -> bool:
        """Give a request to an engine, if there is one or room for one."""
        worker = self.free(waiter.key)
        if worker is not None:
            worker.give(waiter)
            return True
        if not self.make_room(waiter.key):
            return False
        worker = self.start(waiter)
        if worker is None:
            return True
        self.workers.add(worker)
        self.of_user[waiter.key[0]] += 1
        self.of_key[waiter.key] += 1
        self.counters["started"] += 1
        return True

    def free(self, key: Key) -> Worker | None:
        """Return an engine that can take a request now: an idle one, or one that runs several at once."""
        idle = self.idle.get(key)
        if idle:
            return idle.pop()
        kind = self.settings.engines.get(key[1])
        if kind is None or kind.connections == 1:
            return None
        return next((worker for worker in self.workers if worker.key == key and worker.has_room()), None)

    def make_room(self, key: Key) -> bool:
        """Is there room for another engine of this key, where an idle one may have to go?"""
        user, language = key
        kind = self.settings.engines.get(language)
        if kind is not None and kind.per_user and self.of_key[key] >= kind.per_user:
            return False
        if self.of_user[user] >= self.settings.max_engines_per_user:
            return self.evict(lambda worker: worker.key[0] == user)
        if len(self.workers) >= self.settings.max_engines:
            return self.evict(lambda worker: True)
        return True

    def evict(self, candidate: Callable[[Worker], bool]) -> bool:
        """End the idle engine that was not used for the longest time; return whether there was one."""
        idle = [worker for workers in self.idle.values() for worker in workers if candidate(worker)]
        if not idle:
            return False
        self.counters["evicted"] += 1
        self.end(min(idle, key=lambda worker: worker.used))
        return True

    def withdraw(self, waiter: Waiter) -> None:
        """Forget a request that waits: its client has gone, or its time is over."""
        queues = self.queues.get(waiter.key[0], {})
        queue = queues.get(waiter.key)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            self.waiting -= 1
            self.tidy(waiter.key)

    def tidy(self, key: Key) -> None:
        """Drop a queue that is empty, and its user's turn with the last."""
        queues = self.queues[key[0]]
        if not queues[key]:
            del queues[key]
        if not queues:
            del self.queues[key[0]]
            self.turns.remove(key[0])

    # Engines

    def release(self, worker: Worker) -> None:
        """An engine has ended its request: it is idle, or has served enough."""
        if worker.served >= self.settings.max_requests_of(worker.key[1]):
            self.counters["recycled"] += 1
            self.end(worker)
        else:
            self.idle.setdefault(worker.key, []).append(worker)
        if self.turns:
            self.dispatch()

    def end(self, worker: Worker) -> None:
        """End an engine that is idle."""
        self.forget(worker)
        worker.retire()

    def lost(self, worker: Worker) -> None:
        """An engine has ended, or will be of no use."""
        self.forget(worker)
        if self.turns:
            self.dispatch()

    def forget(self, worker: Worker) -> None:
        """Count an engine no more."""
        if worker not in self.workers:
            return
        self.workers.discard(worker)
        user, key = worker.key[0], worker.key
        idle = self.idle.get(key, [])
        if worker in idle:
            idle.remove(worker)
            if not idle:
                del self.idle[key]
        self.of_user[user] -= 1
        self.of_key[key] -= 1
        if not self.of_key[key]:
            del self.of_key[key]
        if not self.of_user[user]:
            del self.of_user[user]

    def dispatch(self) -> None:
        """Give those who wait their engines: each user in turn, one request at a time."""
        placed = True
        while placed:
            placed = False
            for user in list(self.turns):
                waiter = next(self.placed(user), None)
                if waiter is not None:
                    placed = True
                    self.turns.remove(user)
                    self.turns.append(user)
                    self.tidy(waiter.key)

    def placed(self, user: str) -> Iterator[Waiter]:
        """Place the first request of a user that can be placed; yield it."""
        for queue in list(self.queues.get(user, {}).values()):
            waiter = queue.popleft()
            if self.place(waiter):
                self.waiting -= 1
                yield waiter
                return
            queue.appendleft(waiter)

    # Time

    def tick(self, now: float) -> None:
        """End what has taken too long: waiting, running, idling, growing. Called a few times a second."""
        for waiter in [queue[0] for queues in self.queues.values() for queue in queues.values()]:
            self.lose_patience(waiter.key, now)
        weighs = now - self.weighed >= WEIGH
        if weighs:
            self.weighed = now
        for worker in list(self.workers):
            idle = worker in self.idle.get(worker.key, ())
            if not idle and now > worker.deadline:
                worker.expire()
            elif idle and now - worker.used > self.settings.idle:
                self.counters["idle_ended"] += 1
                self.end(worker)
            elif idle and weighs and worker.memory() > self.settings.max_memory_of(worker.key[1]):
                self.counters["recycled"] += 1
                self.end(worker)
        if self.turns:
            self.dispatch()

    def lose_patience(self, key: Key, now: float) -> None:
        """Refuse those who have waited too long."""
        queue = self.queues[key[0]][key]
        while queue and now - queue[0].since > self.settings.patience:
            self.waiting -= 1
            self.counters["refused"] += 1
            queue.popleft().refuse(503, f"no engine was free for {self.settings.patience:g} s")
        self.tidy(key)
