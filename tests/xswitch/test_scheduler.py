"""The scheduler decides who gets an engine: limits, turns and ends, without a process."""

from __future__ import annotations

import random

import pytest
from support.scheduler_bench import Bench, end_of

from ewe.xswitch.settings import Settings


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
    assert bench.scheduler.counters["evicted"] == 1


@pytest.mark.parametrize("name", ["max_engines", "max_engines_per_user"])
def test_a_limit_that_was_lowered_holds_for_the_next_start(name: str) -> None:
    bench = Bench(max_engines=8, max_engines_per_user=8)
    for request in [bench.ask("alice") for _ in range(4)]:
        end_of(request)
    bench.scheduler.change_settings(Settings(**{name: 2}))
    request = bench.ask("alice", "perl")
    assert request.engine is not None and len(bench.scheduler.engines) == 2


def test_both_limits_hold_after_they_were_lowered() -> None:
    """A user at her own limit gives up an engine, and others give up theirs."""
    bench = Bench(max_engines=256, max_engines_per_user=8)
    for request in [bench.ask(f"user{number // 8}") for number in range(256)]:
        end_of(request)
    bench.scheduler.change_settings(Settings(max_engines=100))
    assert bench.ask("user0", "perl").engine is not None and len(bench.scheduler.engines) == 100


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


def test_queues_have_limits_and_timeouts() -> None:
    bench = Bench(max_engines=1, max_engines_per_user=1, max_queue=5, max_queue_per_user=3, queue_timeout=10)
    running = bench.ask("alice")
    waiting = [bench.ask("alice") for _ in range(3)]
    assert bench.ask("alice").refused == 503
    others = [bench.ask("bob"), bench.ask("carl")]
    assert bench.ask("dora").refused == 503
    bench.scheduler.withdraw(waiting[0])
    assert bench.scheduler.waiting == 4
    running.engine.deadline = 1e9  # type: ignore[union-attr]
    bench.scheduler.tick(10.5)
    assert [request.refused for request in (*waiting[1:], *others)] == [503] * 4
    assert bench.scheduler.waiting == 0 and not bench.scheduler.queues and not bench.scheduler.user_turns


def test_time_ends_what_runs_idles_or_grows() -> None:
    bench = Bench(max_engines=3, idle=5, max_memory=100, max_requests=2)
    late, idle, large = bench.ask("a"), bench.ask("b"), bench.ask("c")
    end_of(idle)
    end_of(large)
    large.engine.bytes = 101  # type: ignore[union-attr]
    bench.scheduler.tick(3)
    assert large.engine.retired and not idle.engine.retired  # type: ignore[union-attr]
    bench.scheduler.tick(11)
    assert late.refused == 504 and idle.engine.retired  # type: ignore[union-attr]
    assert (
        not bench.scheduler.engines
        and not bench.scheduler.engines_of_user
        and not bench.scheduler.engines_of_key
    )
    for _ in range(2):
        end_of(bench.ask("a"))
    assert not bench.scheduler.engines and bench.scheduler.counters["recycled"] == 2


def test_what_goes_on_while_it_is_idle_ends() -> None:
    bench = Bench()
    calm, forger = bench.ask("a"), bench.ask("b")
    end_of(calm)
    end_of(forger)
    forger.engine.busy = True  # type: ignore[union-attr]
    bench.scheduler.tick(3)
    assert forger.engine.retired and not calm.engine.retired  # type: ignore[union-attr]


def test_an_engine_that_fails_when_it_is_given_an_exchange_that_waited() -> None:
    bench = Bench(max_engines=1, max_engines_per_user=1)
    first, second, third = (bench.ask("alice") for _ in range(3))
    first.engine.broken = True  # type: ignore[union-attr]
    end_of(first)
    assert second.refused == 502 and third.engine is not None
    bench.scheduler.tick(1)
    assert not bench.scheduler.waiting and not bench.scheduler.queues and not bench.scheduler.user_turns
    assert bench.scheduler.engines == {third.engine}


def test_a_fault_loses_one_exchange_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(max_engines=1, max_engines_per_user=1)
    first, second = bench.ask("alice"), bench.ask("alice")
    bench.ask("bob")
    monkeypatch.setattr(first.engine, "assign", lambda exchange: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        end_of(first)
    assert bench.scheduler.waiting == 1 and list(bench.scheduler.user_turns) == ["bob"]
    assert second.engine is None
    bench.scheduler.engine_lost(first.engine)  # type: ignore[arg-type]
    assert not bench.scheduler.waiting and not bench.scheduler.queues


def test_whatever_happens_the_limits_hold_and_everyone_is_answered() -> None:
    for seed in range(30):
        chance = random.Random(seed)
        bench = Bench(
            max_engines=4, max_engines_per_user=3, max_queue=1000, max_queue_per_user=1000, queue_timeout=1000
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
            assert len(bench.scheduler.engines) <= 4
            assert all(count <= 3 for count in bench.scheduler.engines_of_user.values())
            assert sum(bench.scheduler.engines_of_user.values()) == len(bench.scheduler.engines)
        while bench.busy():
            bench.busy()[0].done()
        assert all(request.engine is not None for request in requests)
        assert not bench.scheduler.waiting and not bench.scheduler.queues
