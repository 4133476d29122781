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
    random_sync_program,
)
from support.examples import examples

LIMIT = 300  # the most orders of a program
PROGRAMS = 100  # of a complete run
SEED = 20261128


def random_comparisons(directory: Path, number: int, sync: bool) -> list[Comparison]:
    """Return the comparisons of `number` random programs with at most LIMIT orders, the same ones each time."""
    source = random.Random(SEED)
    found: list[Comparison] = []
    while len(found) < number:
        text = random_sync_program(source) if sync else random_program(source)
        with suppress(TooMany):
            found.append(compared(text, directory, LIMIT, sync))
    return found


@pytest.mark.parametrize("sync", [False, True], ids=["bytecode", "sync"])
def test_no_outcome_of_a_random_program_is_lost(sync: bool, tmp_path: Path) -> None:
    found = random_comparisons(tmp_path, examples(PROGRAMS, 20), sync)
    for each in found:
        assert not each.lost(), (each.lost(), functions(each.text))
        assert not each.invented(), (each.invented(), functions(each.text))
    assert sum(not each.unseen and len(each.real) > 1 for each in found) > len(found) / 8, "they show nothing"


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
]


@pytest.mark.parametrize(("one", "two"), PAIRS, ids=[f"{one[0]} | {two[0]}" for one, two in PAIRS])
def test_the_outcomes_of_two_accesses_are_all_outcomes(
    one: list[str], two: list[str], tmp_path: Path
) -> None:
    found = compared(program_of(one, two, count(1)), tmp_path, 3000)
    assert found.complete and found.unseen == ()
    assert found.explored == found.real and len(found.real) > 1
