"""Which engine runs which exchange, and when: limits, turns, and ends.

An engine belongs to a key, (user, language), and cannot be lent to another user: the kernel knows it as a process
of its user. The question is therefore not which engine is free, but for whom one may be started. submit() tries in
this order:

    1. an idle engine of the key                                          (or one with room, if it runs several)
    2. a new engine, while the user and all users stay within their limits
    3. a new engine in place of the idle one that has not been used for the longest time: one of the user's own at
       the user's limit, anyone's at the common limit
    4. the user's queue; the exchange is refused when the queue is full, or has waited for `patience`

Queues are served in turns, one exchange per user and turn. A flood of one user's requests therefore delays another
user's single request by one engine's work, not by the flood.

tick() ends what takes too long. There is no I/O here and no clock but the time that tick() is given, so that
tests/xswitch/test_scheduler.py can play thousands of requests in a moment. The scheduler knows engines and
exchanges by two protocols only.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from ewe.xswitch.settings import Settings

Key = tuple[str, str]  # user, language
MEASURE_SECONDS = 1.0  # between two checks of idle engines' memory and CPU time


class ScheduledExchange(Protocol):
    """An exchange, as the scheduler sees it."""

    key: Key
    since: float  # when the request arrived

    def refuse(self, status: int, cause: str) -> None:
        """End with an error; the scheduler has forgotten the exchange."""


class ScheduledEngine(Protocol):
    """An engine, as the scheduler sees it."""

    key: Key
    used: float  # when a request last began or ended
    deadline: float  # when the request that runs has taken too long
    served: int  # requests that have ended

    def assign(self, exchange: Any) -> None:
        """Run an exchange."""

    def has_room(self) -> bool:
        """Return whether an exchange may be assigned beside those that run."""

    def expire(self) -> None:
        """End the exchange that has taken too long, and close the engine."""

    def retire(self) -> None:
        """Close the engine, which is idle."""

    def memory_bytes(self) -> int:
        """Return the bytes that the process has in memory."""

    def is_spinning(self) -> bool:
        """Return whether the idle engine has used the CPU since the last call."""


X = TypeVar("X", bound=ScheduledExchange)
E = TypeVar("E", bound=ScheduledEngine)


class Scheduler(Generic[X, E]):
    """All engines, and all exchanges that wait for one."""

    def __init__(self, settings: Settings, start: Callable[[X], E | None]) -> None:
        """start: starts an engine and assigns the exchange; returns None if it has refused the exchange."""
        self.settings = settings
        self.start = start
        self.engines: set[E] = set()
        self.idle: dict[Key, list[E]] = {}  # the engine used last comes last
        self.of_user: Counter[str] = Counter()
        self.of_key: Counter[Key] = Counter()
        self.queues: dict[str, dict[Key, deque[X]]] = {}
        self.turns: deque[str] = deque()  # users with a queue; the one whose turn is next comes first
        self.waiting = 0
        self.dispatching = False
        self.measured = 0.0  # when the idle engines were measured
        self.counters: Counter[str] = Counter()

    # Exchanges

    def submit(self, exchange: X) -> None:
        """Give an exchange to an engine, now or later, or refuse it."""
        user = exchange.key[0]
        if exchange.key not in self.queues.get(user, ()) and self.place(exchange):
            return
        of_user = sum(map(len, self.queues.get(user, {}).values()))
        if self.waiting >= self.settings.max_queue or of_user >= self.settings.max_queue_per_user:
            self.counters["refused"] += 1
            exchange.refuse(
                503, f"{user} has {of_user} requests waiting, all users {self.waiting}: no room for more"
            )
            return
        if user not in self.queues:
            self.queues[user] = {}
            self.turns.append(user)
        self.queues[user].setdefault(exchange.key, deque()).append(exchange)
        self.waiting += 1

    def place(self, exchange: X) -> bool:
        """Give an exchange to an engine, if there is one, or room for one; return whether it is settled."""
        engine = self.take_idle(exchange.key)
        if engine is not None:
            engine.assign(exchange)
            return True
        if not self.make_room(exchange.key):
            return False
        engine = self.start(exchange)
        if engine is None:
            return True
        self.engines.add(engine)
        self.of_user[exchange.key[0]] += 1
        self.of_key[exchange.key] += 1
        self.counters["started"] += 1
        return True

    def take_idle(self, key: Key) -> E | None:
        """Return an engine that can run an exchange now: an idle one, or one that runs several at once."""
        idle = self.idle.get(key)
        if idle:
            return idle.pop()
        kind = self.settings.engines.get(key[1])
        if kind is None or kind.connections == 1:
            return None
        return next((engine for engine in self.engines if engine.key == key and engine.has_room()), None)

    def make_room(self, key: Key) -> bool:
        """Return whether another engine of this key may be started; an idle one may be ended for it."""
        user, language = key
        kind = self.settings.engines.get(language)
        if kind is not None and kind.per_user and self.of_key[key] >= kind.per_user:
            return False
        if self.of_user[user] >= self.settings.max_engines_per_user:
            return self.evict(lambda engine: engine.key[0] == user)
        if len(self.engines) >= self.settings.max_engines:
            return self.evict(lambda engine: True)
        return True

    def evict(self, candidate: Callable[[E], bool]) -> bool:
        """End the least recently used idle engine among the candidates; return whether there was one."""
        idle = [engine for engines in self.idle.values() for engine in engines if candidate(engine)]
        if not idle:
            return False
        self.counters["evicted"] += 1
        self.end(min(idle, key=lambda engine: engine.used))
        return True

    def withdraw(self, exchange: X) -> None:
        """Forget an exchange, if it waits."""
        queues = self.queues.get(exchange.key[0], {})
        queue = queues.get(exchange.key)
        if queue is not None and exchange in queue:
            queue.remove(exchange)
            self.waiting -= 1
            self.drop_if_empty(exchange.key)

    def drop_if_empty(self, key: Key) -> None:
        """Drop a queue that is empty, and the user's turn with the user's last queue."""
        queues = self.queues[key[0]]
        if not queues[key]:
            del queues[key]
        if not queues:
            del self.queues[key[0]]
            self.turns.remove(key[0])

    # Engines

    def release(self, engine: E) -> None:
        """Take back an engine whose exchange has ended: it is idle, or ends if it has served enough."""
        if engine.served >= self.settings.max_requests_of(engine.key[1]):
            self.counters["recycled"] += 1
            self.end(engine)
        else:
            self.idle.setdefault(engine.key, []).append(engine)
        if self.turns:
            self.dispatch()

    def end(self, engine: E) -> None:
        """End an idle engine."""
        self.forget(engine)
        engine.retire()

    def lost(self, engine: E) -> None:
        """Forget an engine that has ended, or will be of no use."""
        if engine not in self.engines:
            return
        self.forget(engine)
        if self.turns:
            self.dispatch()

    def forget(self, engine: E) -> None:
        """Remove an engine from all sets and counts."""
        if engine not in self.engines:
            return
        self.engines.discard(engine)
        user, key = engine.key[0], engine.key
        idle = self.idle.get(key, [])
        if engine in idle:
            idle.remove(engine)
            if not idle:
                del self.idle[key]
        self.of_user[user] -= 1
        self.of_key[key] -= 1
        if not self.of_key[key]:
            del self.of_key[key]
        if not self.of_user[user]:
            del self.of_user[user]

    def dispatch(self) -> None:
        """Give engines to exchanges that wait: each user in turn, one exchange at a time."""
        if self.dispatching:
            return  # an engine has failed while it was given an exchange: the outer call goes on
        self.dispatching = True
        try:
            placed = True
            while placed:
                placed = False
                for user in list(self.turns):
                    exchange = self.place_one(user)
                    if exchange is not None:
                        placed = True
                        self.turns.remove(user)
                        self.turns.append(user)
                        self.drop_if_empty(exchange.key)
        finally:
            self.dispatching = False

    def place_one(self, user: str) -> X | None:
        """Place the first exchange of a user that can be placed, and return it; None if none can."""
        for queue in list(self.queues.get(user, {}).values()):
            exchange = queue.popleft()
            try:
                settled = self.place(exchange)
            except Exception:
                self.waiting -= 1
                self.drop_if_empty(exchange.key)
                raise
            if settled:
                self.waiting -= 1
                return exchange
            queue.appendleft(exchange)
        return None

    # Time

    def tick(self, now: float) -> None:
        """End what takes too long: waiting, running, being idle; end idle engines that have grown or that spin.

        Called a few times a second.
        """
        for key in [key for queues in self.queues.values() for key in queues]:
            self.refuse_late(key, now)
        measures = now - self.measured >= MEASURE_SECONDS
        if measures:
            self.measured = now
        for engine in list(self.engines):
            idle = engine in self.idle.get(engine.key, ())
            if not idle and now > engine.deadline:
                engine.expire()
            elif idle and now - engine.used > self.settings.idle:
                self.counters["idle_ended"] += 1
                self.end(engine)
            elif idle and measures and engine.memory_bytes() > self.settings.max_memory_of(engine.key[1]):
                self.counters["recycled"] += 1
                self.end(engine)
            elif idle and measures and engine.is_spinning():
                self.counters["spun"] += 1
                self.end(engine)
        if self.turns:
            self.dispatch()

    def refuse_late(self, key: Key, now: float) -> None:
        """Refuse the exchanges of a queue that have waited for longer than `patience`."""
        queue = self.queues[key[0]][key]
        while queue and now - queue[0].since > self.settings.patience:
            self.waiting -= 1
            self.counters["refused"] += 1
            queue.popleft().refuse(503, f"no engine was free for {self.settings.patience:g} s")
        self.drop_if_empty(key)
