"""The scheduler: which engine runs which exchange, and when. It keeps limits, turns and deadlines.

An engine belongs to a key, (user, language), and cannot be lent to another user: the kernel knows it as a process
of its user. The question is therefore not which engine is free, but for which user an engine may be started.
submit() tries in this order:

    1. an idle engine of the key                                          (or one with room, if it runs several)
       Engines on another machine are one such engine; steps 2 and 3 are the other machine's
    2. a new engine, while the user and all users stay within their limits (a user may have own limits:
       user_limits.py)
    3. a new engine in place of the idle one that has not been used for the longest time: one of the user's own at
       the user's limit, anyone's at the common limit, or if the machine has no memory left (resources.py)
    4. the user's queue; the exchange is refused if the queue is full, or if it has waited for `queue-timeout` there

An engine that drains (drain()) gets no new exchange, and ends after the running ones. Until then it counts towards
the limits of its user and of all users, but not towards `per-user` of its language: a Java application can
therefore start again while the old JVM still answers.

The scheduler serves queues in turns, one exchange per user and turn. A flood of one user's requests therefore
delays another user's single request only by one engine's work.

tick() ends waits, requests and idle engines that last too long. This file has no I/O, and no clock except the
argument of tick(). tests/xswitch/test_scheduler.py can therefore simulate thousands of requests in a moment.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from ewe.xswitch.settings import Settings
from ewe.xswitch.switch.limits_of_users import LimitsOfUsers
from ewe.xswitch.switch.resources import MachineReading, Resources
from ewe.xswitch.user_limits import UserLimits

Key = tuple[str, str]  # (user, language)
# Why an idle engine ends, by the name of the counter
ENDINGS = {
    "idle_ended": "idle: it had no request for too long (idle)",
    "evicted": "evicted: another engine needed its place (max-engines, max-engines-per-user)",
    "shrunk": "shrunk: the machine had too little memory (reserve-memory, max-memory-pressure)",
    "recycled": "recycled: it has served enough requests, or has grown too large (max-requests, max-memory)",
    "spun": "killed: it used the CPU after the end of its answer",
    "changed": "changed: the settings of its language have changed",
    "restarted": "restarted: a user or an administrator has asked for another engine (restart)",
    "drained": "drained: a user or an administrator has asked for its end (drain)",
}
MEASURE_SECONDS = 1.0  # between two checks of idle engines' memory and CPU time


class ScheduledExchange(Protocol):
    """An exchange, as the scheduler sees it."""

    user: str
    key: Key  # the user and the language: which engines can run it
    limits: UserLimits  # of its user
    queued_at: float  # the monotonic time of its last submit()

    def refuse(self, status: int, cause: str) -> None:
        """End with an error; the scheduler has forgotten the exchange."""


class ScheduledEngine(Protocol):
    """An engine, as the scheduler sees it."""

    user: str
    language: str
    key: Key  # both of them
    used_at: float  # when a request last began or ended
    deadline: float  # when the running request has taken too long
    ended_requests: int  # requests that have ended
    end_cause: str  # why it is ended: a name of scheduler.ENDINGS, or a text

    def assign(self, exchange: Any) -> None:
        """Run an exchange."""

    def has_room(self) -> bool:
        """Return whether another exchange may be assigned beside the running ones."""

    def running_count(self) -> int:
        """Return how many exchanges run."""

    def expire(self) -> None:
        """End the exchange that has exceeded its deadline, and close the engine."""

    def close(self) -> None:
        """Close the engine, which is idle: suexecme kills its process at once."""

    def memory_bytes(self) -> int:
        """Return the bytes that the process has in memory."""

    def check_spinning(self) -> bool:
        """Return whether the idle engine has used the CPU since the last call."""


ExchangeType = TypeVar("ExchangeType", bound=ScheduledExchange)
EngineType = TypeVar("EngineType", bound=ScheduledEngine)


class Scheduler(Generic[ExchangeType, EngineType]):
    """All engines, and all exchanges that wait for one."""

    def __init__(
        self,
        settings: Settings,
        start: Callable[[ExchangeType], EngineType | None],
        read_machine: Callable[[], MachineReading] = MachineReading,
        log_message: Callable[[str, str], object] = lambda level, message: None,
    ) -> None:
        """start: starts an engine and assigns the exchange; returns None if it has refused the exchange.

        read_machine: returns the memory and the pressures of the machine. log_message: logs a level and a message.
        """
        self.settings = settings
        self.limits = LimitsOfUsers(settings)
        self.resources = Resources(settings, read_machine, log_message)
        self.start = start
        self.engines: set[EngineType] = set()
        self.idle: dict[Key, list[EngineType]] = {}  # the engine used last comes last
        self.engines_of_user: Counter[str] = Counter()
        self.engines_of_key: Counter[Key] = Counter()
        self.queues: dict[
            str, dict[Key, deque[ExchangeType]]
        ] = {}  # user -> key -> exchanges, the oldest first
        self.user_turns: deque[str] = deque()  # users with a queue; the user whose turn is next comes first
        self.waiting = 0  # exchanges in all queues
        self.is_dispatching = False
        self.measured_at = 0.0  # when the memory and CPU time of the idle engines were measured last
        self.counters: Counter[str] = Counter()
        # Returns how many engines of a key stay although they are idle, since visitors are expected (primer.py).
        self.expected_engines: Callable[[Key], int] = lambda key: 0
        self.languages: set[str] = set()  # of all engines so far
        # Engines that end after their running exchanges -> the counter of that end. engines_of_key omits them.
        self.draining: dict[EngineType, str] = {}
        # Engines on other machines, by their language: far_engine.py. They count towards no limit of this machine.
        self.far_engines: dict[str, EngineType] = {}
        # Starts an engine in place of one that was restarted (primer.py).
        self.replace: Callable[[EngineType], None] = lambda engine: None

    # Exchanges

    def submit(self, exchange: ExchangeType) -> None:
        """Give an exchange to an engine, now or later, or refuse it."""
        user = exchange.user
        limit = exchange.limits.requests  # None: no limit
        if limit is not None and self.requests_of(user) >= limit:
            self.counters["refused"] += 1
            exchange.refuse(503, f"{user} has {limit} requests at once: no more are allowed (requests)")
            return
        # If others of this key wait already, this one waits behind them
        if exchange.key not in self.queues.get(user, ()) and self.try_assign(exchange):
            return
        waiting_of_user = self.waiting_of(user)
        if self.waiting >= self.settings.max_queue or waiting_of_user >= self.settings.max_queue_per_user:
            self.counters["refused"] += 1
            exchange.refuse(
                503,
                f"{user} has {waiting_of_user} requests waiting, all users {self.waiting}: no room for more",
            )
            return
        if user not in self.queues:
            self.queues[user] = {}
            self.user_turns.append(user)
        self.queues[user].setdefault(exchange.key, deque()).append(exchange)
        self.waiting += 1

    def requests_of(self, user: str) -> int:
        """Return how many requests of a user run or wait."""
        running = sum(engine.running_count() for engine in self.engines if engine.user == user)
        return running + self.waiting_of(user)

    def waiting_of(self, user: str) -> int:
        """Return how many requests of a user wait."""
        return sum(map(len, self.queues.get(user, {}).values()))

    def try_assign(self, exchange: ExchangeType) -> bool:
        """Give an exchange to an engine with room, or to a new one, for which an idle engine may have to end.

        Return whether the exchange is settled: an engine runs it, or the start of an engine has refused it. False:
        the exchange must wait in the queue of its user.
        """
        engine = self.take_idle(exchange.key)
        if engine is not None:
            engine.assign(exchange)
            return True
        if not self.make_room(exchange.key):
            return False
        engine = self.start(exchange)
        if engine is None:
            return True
        self.add(engine)
        return True

    def add(self, engine: EngineType) -> None:
        """Count a new engine: towards the limits, and as a promise of memory."""
        self.engines.add(engine)
        self.engines_of_user[engine.user] += 1
        self.engines_of_key[engine.key] += 1
        self.languages.add(engine.language)
        self.counters["started"] += 1
        self.resources.note_start(engine.language)

    def max_engines_of(self, user: str) -> int:
        """Return how many engines of a user may run."""
        return self.limits.limits_of(user).engines or self.settings.max_engines_per_user

    def may_prime(self, key: Key) -> bool:
        """Return whether an engine may start for which no request waits. It never replaces another engine."""
        user, language = key
        kind = self.settings.engines.get(language)
        return not (
            kind is None
            or (kind.per_user and self.engines_of_key[key] >= kind.per_user)
            or self.engines_of_user[user] >= self.max_engines_of(user)
            or len(self.engines) >= self.settings.max_engines
            or self.resources.memory_shortage(language)
            or self.resources.cpu_is_short()
        )

    def add_idle(self, engine: EngineType) -> None:
        """Count a new engine that was started although no request waits for one; it is idle."""
        self.add(engine)
        self.idle.setdefault(engine.key, []).append(engine)

    def take_idle(self, key: Key) -> EngineType | None:
        """Return an engine that can run an exchange now: an idle one, or one with room for several.

        An idle one is no longer idle then: the caller must assign an exchange to it. Return None if there is none.
        """
        _, language = key
        far = self.far_engines.get(language)
        if far is not None:
            return far if far.has_room() else None
        idle = self.idle.get(key)
        if idle:
            return idle.pop()
        kind = self.settings.engines.get(language)
        if kind is None or kind.connections == 1:
            return None
        return next(
            (
                engine
                for engine in self.engines
                if engine.key == key and engine not in self.draining and engine.has_room()
            ),
            None,
        )

    def make_room(self, key: Key) -> bool:
        """Return whether another engine of this key may be started; end an idle one for it if necessary."""
        user, language = key
        if language in self.far_engines:
            return False  # the other machine's X-Switch starts these engines
        kind = self.settings.engines.get(language)
        if kind is not None and kind.per_user and self.engines_of_key[key] >= kind.per_user:
            return False
        has_evicted = False
        while self.engines_of_user[user] >= self.max_engines_of(user):  # several, if the limit was lowered
            if not self.evict(lambda engine: engine.user == user):
                return False
            has_evicted = True
        while len(self.engines) >= self.settings.max_engines:
            if not self.evict(lambda engine: True):
                return False
            has_evicted = True
        if has_evicted:
            return True
        if self.engines_of_key[key] and self.resources.cpu_is_short():
            return False
        # A single engine may always run: X-Switch would serve nothing while other programs use the memory.
        if self.engines and self.resources.memory_shortage(language):
            least_recent = self.least_recently_used_key()
            return self.evict(lambda engine: engine.key == least_recent)
        return True

    def least_recently_used_key(self) -> Key | None:
        """Return the key with an idle engine whose engines have not been used for the longest time."""
        used_at: dict[Key, float] = {}
        for engine in self.engines:
            used_at[engine.key] = max(engine.used_at, used_at.get(engine.key, 0.0))
        return min((key for key, idle in self.idle.items() if idle), key=used_at.__getitem__, default=None)

    def shrink(self) -> None:
        """End the idle engines of the key that has not been used for the longest time: memory is short."""
        for engine in list(self.idle.get(self.least_recently_used_key() or ("", ""), ())):
            self.end_idle(engine, "shrunk")

    def evict(self, candidate: Callable[[EngineType], bool]) -> bool:
        """End the least recently used idle engine among the candidates; return whether there was one."""
        idle = [engine for engines in self.idle.values() for engine in engines if candidate(engine)]
        if not idle:
            return False
        self.end_idle(min(idle, key=lambda engine: engine.used_at), "evicted")
        return True

    def withdraw(self, exchange: ExchangeType) -> None:
        """Remove an exchange from its queue, if it waits."""
        queues = self.queues.get(exchange.user, {})
        queue = queues.get(exchange.key)
        if queue is not None and exchange in queue:
            queue.remove(exchange)
            self.waiting -= 1
            self.drop_queue_if_empty(exchange.key)

    def drop_queue_if_empty(self, key: Key) -> None:
        """Drop a queue that is empty, and the user's turn with the user's last queue."""
        user, _ = key
        queues = self.queues[user]
        if not queues[key]:
            del queues[key]
        if not queues:
            del self.queues[user]
            self.user_turns.remove(user)

    # Engines

    def release(self, engine: EngineType) -> None:
        """Take back an engine after its exchange; then give engines to waiting exchanges.

        The engine becomes idle, or ends if it drains or has served enough requests.
        """
        if engine in self.draining:
            self.end_idle(engine, self.draining[engine])
        elif engine.ended_requests >= self.settings.max_requests_of(engine.language):
            self.end_idle(engine, "recycled")
        else:
            self.idle.setdefault(engine.key, []).append(engine)
        if self.user_turns:
            self.dispatch()

    def change_settings(self, settings: Settings) -> None:
        """Use other settings. Idle engines of a changed kind end; busy ones stay, and are used again."""
        old_kinds = self.settings.engines
        self.settings = self.resources.settings = settings
        self.limits.change_settings(settings)
        for engine in [engine for engines in self.idle.values() for engine in engines]:
            if settings.engines.get(engine.language) != old_kinds.get(engine.language):
                self.end_idle(engine, "changed")

    def end_idle(self, engine: EngineType, end_cause: str) -> None:
        """End and count an idle engine; replace a restarted one.

        end_cause: the counter of such ends, a name of ENDINGS.
        """
        self.counters[end_cause] += 1
        engine.end_cause = end_cause
        self.forget(engine)
        engine.close()
        if end_cause == "restarted":
            self.replace(engine)

    def drain(self, engine: EngineType, end_cause: str) -> bool:
        """End an engine once it runs no exchange, and give it no other; return whether it has ended now.

        end_cause: "drained"; "restarted" if another engine starts in its place. No running exchange is lost.
        """
        is_idle = engine in self.idle.get(engine.key, ())
        if is_idle:
            self.end_idle(engine, end_cause)
        elif engine in self.engines:
            if engine not in self.draining:
                self.uncount_key(engine.key)  # so that a Java application can start again at once
            self.draining[engine] = end_cause
        if self.user_turns:
            self.dispatch()
        return is_idle

    def engine_lost(self, engine: EngineType) -> None:
        """Forget an engine that has ended, or cannot be used any more. Replace it if it drained for a restart."""
        if engine not in self.engines:
            return
        was_restarting = self.draining.get(engine) == "restarted"
        self.forget(engine)
        if was_restarting:
            self.replace(engine)
        if self.user_turns:
            self.dispatch()

    def forget(self, engine: EngineType) -> None:
        """Remove an engine from all sets and counts."""
        if engine not in self.engines:
            return
        self.engines.discard(engine)
        idle = self.idle.get(engine.key, [])
        if engine in idle:
            idle.remove(engine)
            if not idle:
                del self.idle[engine.key]
        self.engines_of_user[engine.user] -= 1
        if not self.engines_of_user[engine.user]:
            del self.engines_of_user[engine.user]
        if self.draining.pop(engine, None) is None:  # a draining engine counts for its key no more
            self.uncount_key(engine.key)

    def uncount_key(self, key: Key) -> None:
        """Count one engine less of a key."""
        self.engines_of_key[key] -= 1
        if not self.engines_of_key[key]:
            del self.engines_of_key[key]

    def dispatch(self) -> None:
        """Give engines to waiting exchanges: each user in turn, one exchange at a time."""
        if self.is_dispatching:
            return  # an engine has failed while it got an exchange: the outer call continues
        self.is_dispatching = True
        try:
            has_assigned = True
            while has_assigned:
                has_assigned = False
                for user in list(self.user_turns):
                    exchange = self.assign_first_possible(user)
                    if exchange is not None:
                        has_assigned = True
                        self.user_turns.remove(user)
                        self.user_turns.append(user)
                        self.drop_queue_if_empty(exchange.key)
        finally:
            self.is_dispatching = False

    def assign_first_possible(self, user: str) -> ExchangeType | None:
        """Assign, or refuse, the first exchange of a user for which this is possible.

        Return it; the caller drops its queue if that is empty. Return None if all exchanges must go on waiting.
        """
        for queue in list(self.queues.get(user, {}).values()):
            # Out of the queue first: one that fails in try_assign() calls withdraw(), and counts once
            exchange = queue.popleft()
            try:
                is_settled = self.try_assign(exchange)
            except Exception:
                # The caller will not learn of the exchange: drop its queue here.
                self.waiting -= 1
                self.drop_queue_if_empty(exchange.key)
                raise
            if is_settled:
                self.waiting -= 1
                return exchange
            queue.appendleft(exchange)
        return None

    # Time

    def tick(self, now: float) -> None:
        """Enforce the limits on waiting, running and idling; end idle engines that have grown or use the CPU."""
        for key in [key for queues in self.queues.values() for key in queues]:
            self.refuse_timed_out(key, now)
        must_measure = now - self.measured_at >= MEASURE_SECONDS
        if must_measure:
            self.measured_at = now
            self.resources.update()
            if self.resources.memory_shortage():
                self.shrink()
        for engine in list(self.engines):
            if engine in self.idle.get(engine.key, ()):
                if end_cause := self.end_cause_of_idle(engine, now, must_measure):
                    self.end_idle(engine, end_cause)
            elif now > engine.deadline:
                engine.expire()
        if self.user_turns:
            self.dispatch()

    def end_cause_of_idle(self, engine: EngineType, now: float, must_measure: bool) -> str:
        """Return the name in ENDINGS for which an idle engine ends now; "" if it stays."""
        if self.is_unused(engine, now):
            return "idle_ended"
        if must_measure and self.is_too_large(engine):
            return "recycled"
        return "spun" if must_measure and engine.check_spinning() else ""

    def is_unused(self, engine: EngineType, now: float) -> bool:
        """Return whether an idle engine should end: it had no request for `idle` seconds, and none is expected.

        An engine stays if no more engines of its key run than visitors are expected to need (expected_engines).
        """
        idle_s = now - engine.used_at
        engines_of_key = self.engines_of_key[engine.key]
        return idle_s > self.settings.idle and engines_of_key > self.expected_engines(engine.key)

    def is_too_large(self, engine: EngineType) -> bool:
        """Return whether an idle engine has more bytes in memory than `max-memory`; note them in the Resources."""
        size = engine.memory_bytes()
        self.resources.note_size(engine.language, size)
        return size > self.settings.max_memory_of(engine.language)

    def refuse_timed_out(self, key: Key, now: float) -> None:
        """Refuse the exchanges of a queue that have waited in it for longer than `queue-timeout`.

        The time before does not count: until suexecme has answered, or on an engine that has failed.
        """
        user, _ = key
        queue = self.queues[user][key]
        while queue and now - queue[0].queued_at > self.settings.queue_timeout:
            self.waiting -= 1
            self.counters["refused"] += 1
            self.counters["late"] += 1
            queue.popleft().refuse(503, f"no engine was free for {self.settings.queue_timeout:g} s")
        self.drop_queue_if_empty(key)
