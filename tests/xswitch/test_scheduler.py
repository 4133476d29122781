"""The pool decides who gets an engine: limits, turns and ends, without a process."""

from __future__ import annotations

import random

from ewe.xswitch.pool import Key, Pool, Waiter
from ewe.xswitch.settings import Settings


class Request:
    def __init__(self, user: str, language: str = "python", since: float = 0.0) -> None:
        self.key: Key = (user, language)
        self.since = since
        self.refused = 0
        self.engine: Engine | None = None

    def refuse(self, status: int, cause: str) -> None:
        self.refused = status


class Engine:
    def __init__(self, bench: Bench, key: Key) -> None:
        self.bench = bench
        self.key = key
        self.used = 0.0
        self.deadline = float("inf")
        self.served = 0
        self.request: Request | None = None
        self.retired = False
        self.bytes = 0

    def give(self, waiter: Waiter) -> None:
        assert (
            isinstance(waiter, Request)
            and self.request is None
            and not self.retired
            and waiter.key == self.key
        )
        self.request = waiter
        waiter.engine = self
        self.deadline = self.bench.now + 10
        self.bench.order.append(waiter)

    def done(self) -> None:
        self.request = None
        self.served += 1
        self.deadline = float("inf")
        self.bench.now += 1
        self.used = self.bench.now
        self.bench.pool.release(self)

    def expire(self) -> None:
        assert self.request is not None
        self.request.refuse(504, "")
        self.request = None
        self.retired = True
        self.bench.pool.lost(self)

    def retire(self) -> None:
        assert self.request is None
        self.retired = True

    def memory(self) -> int:
        return self.bytes


class Bench:
    """A pool, its clock, and the order in which requests got engines."""

    def __init__(self, **settings: int) -> None:
        self.now = 0.0
        self.order: list[Request] = []
        self.pool = Pool(Settings(**settings), self.start)  # type: ignore[arg-type]

    def start(self, waiter: Waiter) -> Engine:
        engine = Engine(self, waiter.key)
        engine.give(waiter)
        return engine

    def ask(self, user: str, language: str = "python") -> Request:
        request = Request(user, language, self.now)
        self.pool.submit(request)
        return request

    def busy(self) -> list[Engine]:
        return [
            engine
            for engine in self.pool.workers
            if isinstance(engine, Engine) and engine.request is not None
        ]


def end_of(request: Request) -> None:
    assert request.engine is not None
    request.engine.done()


def test_an_idle_engine_of_the_key_is_taken_again() -> None:
    bench = Bench()
    first = bench.ask("alice")
    end_of(first)
    second = bench.ask("alice")
    assert second.engine is first.engine
    assert bench.ask("alice", "perl").engine is not first.engine
    assert bench.ask("bob").engine not in (None, first.engine)


def test_a_flood_of_one_user_stays_behind_the_single_request_of_another() -> None:
    bench = Bench(max_engines=2, max_engines_per_user=2)
    flood = [bench.ask("alice") for _ in range(50)]
    single = bench.ask("bob")
    assert single.engine is None
    end_of(flood[0])
    assert single.engine is None  # alice was first to wait: one more of hers
    end_of(flood[2] if flood[2].engine and flood[2].engine.request else flood[1])
    assert single.engine is not None
    assert bench.order.index(single) <= 4


def test_users_who_wait_take_turns() -> None:
    bench = Bench(max_engines=1, max_engines_per_user=1)
    bench.ask("zoe")
    for user in ("alice", "bob", "carl"):
        for _ in range(3):
            bench.ask(user)
    while bench.busy():
        bench.busy()[0].done()
    users = [request.key[0] for request in bench.order]
    assert users[1:] == ["alice", "bob", "carl"] * 3


def test_the_least_recently_used_engine_goes_first() -> None:
    bench = Bench(max_engines=3, max_engines_per_user=3)
    old, middle, new = (bench.ask(user) for user in "abc")
    for request in (old, middle, new):
        end_of(request)
    bench.ask("d")
    assert [request.engine.retired for request in (old, middle, new) if request.engine] == [
        True,
        False,
        False,
    ]
    assert bench.pool.counters["evicted"] == 1


def test_a_user_at_the_limit_gives_up_an_engine_of_her_own() -> None:
    bench = Bench(max_engines=10, max_engines_per_user=2)
    bob = bench.ask("bob")
    end_of(bob)
    first, second = bench.ask("alice"), bench.ask("alice", "perl")
    end_of(first)
    third = bench.ask("alice", "php")
    assert third.engine is not None and first.engine is not None and first.engine.retired
    assert bob.engine is not None and not bob.engine.retired
    fourth = bench.ask("alice", "python")
    assert fourth.engine is None and second.engine is not None
    end_of(second)
    assert fourth.engine is not None and second.engine.retired


def test_queues_have_limits_and_patience() -> None:
    bench = Bench(max_engines=1, max_engines_per_user=1, max_queue=5, max_queue_per_user=3, patience=10)
    running = bench.ask("alice")
    waiting = [bench.ask("alice") for _ in range(3)]
    assert bench.ask("alice").refused == 503
    others = [bench.ask("bob"), bench.ask("carl")]
    assert bench.ask("dora").refused == 503
    bench.pool.withdraw(waiting[0])
    assert bench.pool.waiting == 4
    running.engine.deadline = 1e9  # type: ignore[union-attr]
    bench.pool.tick(10.5)
    assert [request.refused for request in (*waiting[1:], *others)] == [503] * 4
    assert bench.pool.waiting == 0 and not bench.pool.queues and not bench.pool.turns


def test_time_ends_what_runs_idles_or_grows() -> None:
    bench = Bench(max_engines=3, idle=5, max_memory=100, max_requests=2)
    late, idle, large = bench.ask("a"), bench.ask("b"), bench.ask("c")
    end_of(idle)
    end_of(large)
    large.engine.bytes = 101  # type: ignore[union-attr]
    bench.pool.tick(3)
    assert large.engine.retired and not idle.engine.retired  # type: ignore[union-attr]
    bench.pool.tick(11)
    assert late.refused == 504 and idle.engine.retired  # type: ignore[union-attr]
    assert not bench.pool.workers and not bench.pool.of_user and not bench.pool.of_key
    for _ in range(2):
        end_of(bench.ask("a"))
    assert not bench.pool.workers and bench.pool.counters["recycled"] == 2


def test_whatever_happens_the_limits_hold_and_everyone_is_answered() -> None:
    for seed in range(30):
        chance = random.Random(seed)
        bench = Bench(
            max_engines=4, max_engines_per_user=3, max_queue=1000, max_queue_per_user=1000, patience=1000
        )
        requests = []
        for _ in range(300):
            kind = chance.random()
            if kind < 0.55:
                requests.append(bench.ask(chance.choice("abcd"), chance.choice(("python", "perl"))))
            elif bench.busy():
                engine = chance.choice(sorted(bench.busy(), key=lambda each: bench.order.index(each.request)))  # type: ignore[arg-type]
                if kind < 0.95:
                    engine.done()
                else:
                    engine.expire()
            assert len(bench.pool.workers) <= 4
            assert all(count <= 3 for count in bench.pool.of_user.values())
            assert sum(bench.pool.of_user.values()) == len(bench.pool.workers)
        while bench.busy():
            bench.busy()[0].done()
        assert all(request.engine is not None for request in requests)
        assert not bench.pool.waiting and not bench.pool.queues
