"""The explorer loses no outcome of small random programs, compared with all orders of their instructions."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from interleavings import (
    Comparison,
    TooMany,
    compared,
    functions,
    program_of,
    random_program,
)
from support.examples import examples

LIMIT = 300  # the most orders of a program
PROGRAMS = 100  # of a complete run
SEED = 20261128


def random_comparisons(directory: Path, number: int) -> list[Comparison]:
    """Return the comparisons of `number` random programs with at most LIMIT orders, the same ones each time."""
    source = random.Random(SEED)
    found: list[Comparison] = []
    while len(found) < number:
        with suppress(TooMany):
            found.append(compared(random_program(source), directory, LIMIT))
    return found


def test_no_outcome_of_a_random_program_is_lost(tmp_path: Path) -> None:
    found = random_comparisons(tmp_path, examples(PROGRAMS, 20))
    for each in found:
        assert not each.lost(), (each.lost(), functions(each.text))
        assert not each.invented(), (each.invented(), functions(each.text))
    assert sum(not each.unseen and len(each.real) > 1 for each in found) > len(found) / 4, "they show nothing"


# Programs that were wrong, or are the simplest of their kind: statements of both threads
PAIRS = [
    (["box.n += C"], ["box.n += C"]),
    (["Box.n = C", "Box.n = C"], ["R = sub.n", "R = box.n"]),
    (["add(C)", "list.append(t, C)"], ["R = [each for each in t]"]),
    (["nested[0].append(C)"], ["R = str(nested)", "R = nested == [[0]]"]),
    (["setattr(box, 'n', C)"], ["R = getattr(box, 'n')", "R = box.n"]),
    (["if box.n: box.m = C"], ["box.n = C", "R = box.m"]),
    (["box.l += [C]"], ["R = len(l)", "R = str(box.l)"]),
    (["view[0] = C"], ["R = raw[0]", "R = view[0]"]),
    (["point.x = C"], ["R = repr(point)", "R = point == Point(0)"]),
    (["box.call = None"], ["if box.call: R = box.call()"]),
    (["d['x'] = C"], ["for R in d: pass"]),
    (["d.pop('k', 0)", "R = reader()"], ["d['k'] = C"]),
    (["operator.setitem(pair, 0, C)"], ["operator.setitem(pair, 0, C)", "R = tuple(pair)"]),
    (["name.n = C"], ["R = name.n", "R = name.n"]),
    (["slot.x = C"], ["R = slot == Slot(0)", "R = slot == Slot(0)"]),
]


@pytest.mark.parametrize(("one", "two"), PAIRS, ids=[f"{one[0]} | {two[0]}" for one, two in PAIRS])
def test_the_outcomes_of_two_accesses_are_all_outcomes(
    one: list[str], two: list[str], tmp_path: Path
) -> None:
    found = compared(program_of(one, two, count(1)), tmp_path, 3000)
    assert found.complete and found.unseen == ()
    assert found.explored == found.real and len(found.real) > 1


# The same with locks and the like, compared with a search that deviates at every decision. Random programs of this
# kind take minutes: interleavings.py --sync
SYNC_PAIRS = [
    (["with lock: box.n = C"], ["with lock: R = box.n"]),
    (["lock.acquire(); box.n = C; lock.release()"], ["R = lock.locked()"]),
    (["q.put(C, timeout=1)"], ["R = q.qsize()"]),
    (["event.set()"], ["R = event.is_set()"]),
    (["R = sem.acquire(False)"], ["R = sem.acquire(False)"]),
    (["right.send(b'C')"], ["R = left.recv(1, socket.MSG_DONTWAIT)"]),
    (["right.close()"], ["R = len(select.select([left], [], [], 0)[0])"]),
    (["poll.register(left, 1)"], ["poll.modify(left, 5)"]),
    (["server.listen()"], ["R = client.connect_ex(server.getsockname())"]),
    (["with cond: box.n = C; cond.notify()"], ["with cond: R = box.n or cond.wait(2)"]),
]


@pytest.mark.takes_time
@pytest.mark.parametrize(("one", "two"), SYNC_PAIRS, ids=[two[0] for _, two in SYNC_PAIRS])
def test_the_reduced_search_loses_no_outcome_of_a_lock(
    one: list[str], two: list[str], tmp_path: Path
) -> None:
    found = compared(program_of(one, two, count(1)), tmp_path, 4000, sync=True)
    assert found.complete and found.unseen == ()
    assert found.explored == found.real and len(found.real) > 1
