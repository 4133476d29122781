"""The steps of starting a program: `python -m ewe_lab.load.steps MEGABYTES COUNT PROGRAM [ARGUMENT ...]`.

A process of MEGABYTES starts the program COUNT times, one after the other, and reads its answer from a pipe. The
program answers with two times, of its first statement and of its write, so that each step has two ends:

    parent     │◀── fork ──▶│ waits in read(2)                        │ has the answer
    child          │ exec │◀── the program is loaded ──▶│ works │ write │
                          │◀────────── exec ───────────▶│       │◀─IPC─▶│
               │◀──────────────────────────── total ─────────────────▶│

Memory is written to in small pages, as the heap of a server is: fork(2) copies an entry for each page.
posix_spawn(3) shares the memory with the child until exec, and returns after it. The round trip is a byte to a
child and back, through two pipes.

Prints JSON: by step, the time in µs of each start.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import sys
from collections.abc import Callable
from time import monotonic_ns

TWO_TIMES = struct.Struct("qq")
ONE_TIME = struct.Struct("q")
FORK, EXEC, IPC, TOTAL = "fork", "exec", "IPC", "total"
SPAWN, SPAWN_TOTAL, ROUND_TRIP = "posix_spawn", "total, spawned", "round trip"
STEPS = (FORK, EXEC, IPC, TOTAL, SPAWN, SPAWN_TOTAL, ROUND_TRIP)
PAGE_BYTES = mmap.PAGESIZE
ANSWER_TIMEOUT_S = 60  # seconds between two answers; then SIGALRM ends the measurement

Micros = dict[str, list[float]]


def allocate(megabytes: int) -> mmap.mmap:
    """Return memory of which each page was written to: the kernel gives a page at the first write only."""
    memory = mmap.mmap(-1, max(megabytes, 1) << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)  # small pages, as in a heap
    for at in range(0, len(memory), PAGE_BYTES):
        memory[at] = 1
    return memory


def start_by_fork(command: list[str], shared: mmap.mmap) -> Micros:
    """Start the program with fork and exec, and read its answer; return the times of the steps.

    command: the path of the program and its arguments. shared: memory in which the child tells its parent when it
    calls exec.
    """
    reading, writing = os.pipe()
    began = monotonic_ns()
    pid = os.fork()
    if pid == 0:
        try:
            ONE_TIME.pack_into(shared, 0, monotonic_ns())
            os.dup2(writing, 1)
            os.execv(command[0], command)
        finally:  # only if execv() failed: it does not return. A shell uses the same status
            os._exit(127)
    returned = monotonic_ns()
    os.close(writing)  # so that a program without an answer ends the read below
    answer = os.read(reading, TWO_TIMES.size)
    received = monotonic_ns()
    started, wrote = reap_and_read_times(pid, reading, answer)
    (before_exec,) = ONE_TIME.unpack_from(shared)
    return as_micros(
        {
            FORK: returned - began,
            EXEC: started - before_exec,
            IPC: received - wrote,
            TOTAL: received - began,
        }
    )


def start_by_spawn(command: list[str], shared: mmap.mmap) -> Micros:
    """Start the program with posix_spawn, and read its answer; return the times of the steps. shared: not used."""
    reading, writing = os.pipe()
    began = monotonic_ns()
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, writing, 1)])
    returned = monotonic_ns()
    os.close(writing)  # so that a program without an answer ends the read below
    answer = os.read(reading, TWO_TIMES.size)
    received = monotonic_ns()
    reap_and_read_times(pid, reading, answer)
    return as_micros({SPAWN: returned - began, SPAWN_TOTAL: received - began})


def reap_and_read_times(pid: int, reading: int, answer: bytes) -> tuple[int, int]:
    """Reap the program; return the two times of its answer in ns: of its first statement, and of its write.

    reading: the end of the pipe from which the answer was read, which is closed. Exit if the answer is not whole.
    """
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    if len(answer) != TWO_TIMES.size:
        sys.exit(f"the program ended with status {os.waitstatus_to_exitcode(status)} and without an answer")
    started, wrote = TWO_TIMES.unpack(answer)
    return started, wrote


def as_micros(times_ns: dict[str, int]) -> Micros:
    """Return times in ns as lists of one time in µs."""
    return {step: [ns / 1000] for step, ns in times_ns.items()}


def time_round_trips(count: int) -> Micros:
    """Send a byte to a child and wait until it comes back, through two pipes; return the µs of each round trip."""
    there, back = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(there[1])  # else the child would hold the pipe open, and read no end
            while byte := os.read(there[0], 1):
                os.write(back[1], byte)
        finally:
            os._exit(0)
    durations = []
    for _ in range(count):
        began = monotonic_ns()
        os.write(there[1], b".")
        os.read(back[0], 1)
        durations.append((monotonic_ns() - began) / 1000)
    os.close(there[1])
    os.waitpid(pid, 0)
    return {ROUND_TRIP: durations}


def measure_steps(megabytes: int, count: int, command: list[str]) -> Micros:
    """Return the times of all steps, of `count` starts each. megabytes: to which this process grows first."""
    memory, shared = allocate(megabytes), mmap.mmap(-1, PAGE_BYTES)
    found = time_round_trips(count)
    ways: tuple[Callable[[list[str], mmap.mmap], Micros], ...] = (start_by_fork, start_by_spawn)
    for _ in range(count):
        signal.alarm(ANSWER_TIMEOUT_S)
        for way in ways:
            for step, times in way(command, shared).items():
                found.setdefault(step, []).extend(times)
    signal.alarm(0)
    memory.close()
    return found


def main() -> None:
    """Measure the steps of the program that the command line names, and print them as JSON."""
    megabytes, count, *command = sys.argv[1:]
    print(json.dumps(measure_steps(int(megabytes), int(count), command)))


if __name__ == "__main__":
    main()
