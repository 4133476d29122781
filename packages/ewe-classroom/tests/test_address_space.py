"""The stacks of threads that nobody joins: the address space of a server, and its growth with each connection."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import pytest

from ewe_classroom.grader import processes
from ewe_classroom.grader.hygiene import MEMORY_ROUNDS, MEMORY_VISITS, expect_stacks_back
from ewe_classroom.grader.processes import AddressSpace, parse_maps
from ewe_classroom.grader.scene import FailedExpectation, Scene

MAPS = """\
7f736e1e4000-7f736e1e5000 ---p 00000000 00:00 0
7f736e1e5000-7f736e9e5000 rw-p 00000000 00:00 0
7f736e9e5000-7f736e9e6000 rw-p 00000000 00:00 0                          [anon: glibc: pthread stack: 7]
7f736f1e9000-7f736f20f000 r--p 00000000 fe:00 326269                     /usr/lib/a name with spaces/libc.so.6
7f736f3d7000-7f736f3db000 r--p 00000000 00:00 0                          [vvar]
"""
STACK = AddressSpace((8 << 20) + 4096, guard_count=1)
PIECE = AddressSpace(64 << 20, guard_count=1)  # that the C library takes at once for the memory of a thread
ONE_ROUND = MEMORY_VISITS // MEMORY_ROUNDS


def test_the_address_space_has_the_stacks_and_their_guards() -> None:
    assert parse_maps(MAPS) == AddressSpace((8 << 20) + 2 * 4096, guard_count=1)
    own = processes.address_space(os.getpid())
    assert own.size_bytes > 1 << 20 and own.threads >= threading.active_count()
    assert parse_maps("") == AddressSpace()


def check_growth(*rounds: AddressSpace, more: dict[int, AddressSpace] | None = None) -> None:
    """Run the check on a server whose process 7 grows by an AddressSpace in each round.

    more: its other processes after the last round.
    """
    spaces = [{7: AddressSpace(1 << 20)}]
    for growth in rounds:
        last = spaces[-1][7]
        size_bytes, guard_count = last.size_bytes + growth.size_bytes, last.guard_count + growth.guard_count
        spaces.append({7: AddressSpace(size_bytes, guard_count, last.threads + growth.threads)})
    spaces[-1] |= more or {}
    expect_stacks_back(Scene(SimpleNamespace(site=None, workers=4)), spaces)  # type: ignore[arg-type]


def times(count: int, part: AddressSpace) -> AddressSpace:
    return AddressSpace(count * part.size_bytes, count * part.guard_count, count * part.threads)


def test_a_stack_for_each_connection_is_found() -> None:
    with pytest.raises(FailedExpectation, match=r"grew by 8,196 KB for each of 120 connections") as found:
        check_growth(*[times(ONE_ROUND, STACK)] * MEMORY_ROUNDS)
    assert found.value.because == "a thread that is neither detached nor joined keeps its stack"


def test_without_a_guard_there_may_be_another_cause() -> None:
    """Some C libraries put no guard below a stack that could be counted."""
    with pytest.raises(FailedExpectation) as found:
        check_growth(*[AddressSpace(ONE_ROUND * (128 << 10))] * MEMORY_ROUNDS)
    assert found.value.because.endswith("keeps its stack; or a large buffer is never freed")


def test_a_few_large_pieces_and_new_processes_are_no_leak() -> None:
    check_growth(times(8, PIECE), AddressSpace(), AddressSpace(), AddressSpace())
    check_growth(
        times(8, PIECE), times(4, PIECE), times(2, PIECE), AddressSpace(), more={9: times(100, STACK)}
    )
    check_growth(*[AddressSpace(ONE_ROUND * (16 << 10))] * MEMORY_ROUNDS)


def test_the_stack_of_a_thread_that_goes_on_is_no_leak() -> None:
    """A server may forget the threads of clients that leave early: who-works and descriptors look for those."""
    thread = AddressSpace(STACK.size_bytes, guard_count=1, threads=1)
    first = AddressSpace(STACK.size_bytes + PIECE.size_bytes, guard_count=2, threads=1)
    check_growth(*[times(ONE_ROUND // 4, thread)] * MEMORY_ROUNDS)
    check_growth(*[times(ONE_ROUND, first)] * MEMORY_ROUNDS)
    with pytest.raises(FailedExpectation):
        check_growth(*[times(ONE_ROUND, STACK), *[times(ONE_ROUND + 1, STACK)] * (MEMORY_ROUNDS - 1)])
