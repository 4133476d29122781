"""Checks of hygiene: resources that clients leave behind, and the work of an idle server.

A server runs for months, so a loss of one descriptor, one zombie or some KB for each client ends it some day. These
checks find such a loss within a second or two:

    warm up ─▶ count the resource ─▶ n clients of one kind come and go ─▶ the server is quiescent ─▶ count again
      └─▶ what a server opens once, for its first client, is no leak

A leak grows with each client. `descriptors` therefore fails a server that has more than n/2 descriptors more, and
`memory` one whose memory grows by more than a bound for each client. The clients of `descriptors` leave at every
point of a conversation (VISITS). `cgi-leaks` (running_programs.py) counts in the same way.

`idle-cpu` looks for work without an event. A loop that spins takes a whole processor, and one that polls (it sleeps
for a short time, and tests again) wakes up many times a second. The kernel counts both for each thread:
watch_processor_use().

Possible failures: the server closes a descriptor, or reaps a child, only when the next event comes. The checks
therefore wait until the server is quiescent, and allow a few leftovers (MAX_ZOMBIES).

Read next: faults.py, which uses watch_processor_use() for a server without a free descriptor.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from ewe_classroom.grader import processes
from ewe_classroom.grader.check import check
from ewe_classroom.grader.scene import STAYS_OPEN, Scene, SceneClient

CLIENTS_OF_EACH_KIND = 8
MAX_ZOMBIES = 2  # a server may reap its latest children only when the next client comes
WARM_UP_VISITS = 60
WINDOW_S = 0.5  # of one measurement of the processor's use
MAX_WINDOWS = 8  # the most windows in a row, while the measurement is inconclusive
MAX_BUSY_SHARE = 0.2  # share of a window in which the server runs or waits for a processor
# Share of a window in which the server runs: below it, the waits for a processor alone do not prove a busy loop
MIN_RUN_SHARE = MAX_BUSY_SHARE / 4
LOOK_EVERY_S = 0.01  # between two looks at the server's threads: one that ends in between is not seen
NEW_THREAD = processes.ThreadSample(0, 0, "", turns=0, ran_s=0.0, queued_s=0.0)  # before its first turn
MEMORY_VISITS = 120
MEMORY_ROUNDS = 4  # in which the MEMORY_VISITS come
MAX_GROWTH_BYTES = 16 * 1024  # of memory, for each of the MEMORY_VISITS
# Of address space, for each visit of each round. The smallest stacks of threads have 128 KB.
MAX_ADDRESS_GROWTH_BYTES = 64 * 1024
# Of a thread that goes on: 8 MB for its stack, 64 MB that the C library takes for its malloc(), and the guards.
THREAD_ADDRESS_BYTES = 73 << 20
MAX_WAKE_UPS_PER_S = 40.0  # wake-ups a second; a timer of 50 ms needs 20


def get(scene: Scene, path: str = "/hello.txt") -> None:
    """Request a file, wait for the response, and close."""
    client = scene.client().ask(path, Connection="close")
    scene.until_answered(client)
    client.close()


def leave_silent(scene: Scene) -> None:
    """Connect, and close without sending a byte."""
    client = scene.client()
    scene.until(lambda: client.connected or client.over(), "connected")
    client.close()


def leave_halfway(scene: Scene) -> None:
    """Send half a request, and close when the server waits for the rest."""
    client = scene.client().send(b"GET /hello.txt HTTP/1.1\r\nHo")
    scene.settle()
    client.close()


def reset_halfway(scene: Scene) -> None:
    """Send half a request, and reset the connection when the server waits for the rest."""
    client = scene.client().send(b"GET /hello.txt HTTP/1.1\r\nHo")
    scene.settle()
    client.reset()


def reset_response(scene: Scene) -> None:
    """Request a large file, read nothing, and reset the connection when the server waits for the client."""
    client = scene.client(reads=False).ask("/large.bin", Connection="close")
    scene.settle()
    client.reset()


VISITS: dict[str, Callable[[Scene], None]] = {
    "got a response": get,
    "asked for a missing file": partial(get, path="/missing.txt"),
    "connected and closed": leave_silent,
    "closed after half a request": leave_halfway,
    "reset after half a request": reset_halfway,
    "reset in the middle of a response": reset_response,
}


def open_descriptors(scene: Scene) -> dict[tuple[int, int], str]:
    """Return (process id, descriptor) -> target for every descriptor of every process of the server."""
    return {
        (pid, number): target
        for pid in scene.subject.running()
        for number, target in processes.descriptors(pid).items()
    }


def zombie_pids(scene: Scene) -> list[int]:
    """Return the ids of the server's processes that have ended, and that their parent has not waited for."""
    return [pid for pid in scene.subject.family() if processes.state(pid) == "Z"]


def expect_closed(
    scene: Scene, before: dict[tuple[int, int], str], actions: str, should: str, because: str, first: str = ""
) -> None:
    """Fail if CLIENTS_OF_EACH_KIND clients left more than CLIENTS_OF_EACH_KIND // 2 descriptors open.

    before: open_descriptors() before the clients came. actions: of the clients, for the message. should, because:
    arguments of Scene.fail(). first: the message names descriptors with this prefix, if there are any.
    """
    # A leak leaves one descriptor for each client; half as many prove none.
    max_descriptors = len(before) + CLIENTS_OF_EACH_KIND // 2
    scene.until(lambda: len(open_descriptors(scene)) <= max_descriptors, "descriptors are closed")
    after = open_descriptors(scene)
    if len(after) <= max_descriptors:
        return
    entries = processes.tcp_sockets()
    extra = sorted(
        {processes.target_text(each, entries) for key, each in after.items() if before.get(key) != each}
    )
    named = [each for each in extra if each.startswith(first)] or extra
    if all("connection" in each for each in extra) and STAYS_OPEN in scene.findings.faults:
        scene.fail_once(
            STAYS_OPEN,
            f"{CLIENTS_OF_EACH_KIND} clients {actions}, and their connections stay open",
            should,
            because,
        )
        return
    scene.fail(
        f"{CLIENTS_OF_EACH_KIND} clients {actions}, and {len(after) - len(before)} descriptors stay open: "
        f"{'; '.join(named[:3])}",
        should,
        because,
    )


@check(
    "descriptors",
    proves="the server closes every descriptor when its client has disconnected, also after a fault",
    sends=f"{CLIENTS_OF_EACH_KIND} clients of each kind: normal, for a missing file, silent, with half a "
    "request, with a reset",
    expects="as many open descriptors as before",
    why=(
        "A process may open 1,024 descriptors. A server that loses one descriptor for each client "
        "stops after a thousand clients."
    ),
    hint="Close in `finally`, or use `with`: the exception of a reset must not skip the close.",
    fresh=True,
)
def descriptors(scene: Scene) -> None:
    for visit in VISITS.values():  # what a server opens for its first clients is no leak
        visit(scene)
    scene.settle()
    for how, visit in VISITS.items():
        before = open_descriptors(scene)
        for _ in range(CLIENTS_OF_EACH_KIND):
            visit(scene)
        scene.expect_alive(f"clients {how}")
        expect_closed(
            scene, before, how,
            "close each connection and each file when its client has disconnected",
            "a path through the code ends without close(): an exception, an early return, a copy in a list",
        )  # fmt: skip
    scene.confirm(f"{CLIENTS_OF_EACH_KIND} clients of each of {len(VISITS)} kinds left no descriptor")


@check(
    "zombies",
    proves="the server waits for every child",
    sends="12 requests in turn; then 12 whose children end while the parent is stopped (SIGSTOP, SIGCONT)",
    expects="at most two zombies afterwards, each time",
    why="A zombie keeps its entry in the process table until its parent has called wait(). The table is finite.",
    hint="In the SIGCHLD handler, or before each accept: call os.waitpid(-1, os.WNOHANG) until it finds no child.",
    fresh=True,
)
def zombies(scene: Scene) -> None:
    def expect_reaped(requests: str, because: str) -> None:
        # A server that calls waitpid() before accept() leaves its latest children until the next client comes.
        scene.until(lambda: len(zombie_pids(scene)) <= MAX_ZOMBIES, "the server reaps its children")
        left = zombie_pids(scene)
        if len(left) > MAX_ZOMBIES:
            scene.fail(
                f"{requests} left {len(left)} zombies (processes in state Z, such as {left[0]})",
                "call waitpid() for each child that ends",
                because,
            )

    for _ in range(12):
        get(scene)
    expect_reaped("12 requests in turn", "there is no SIGCHLD handler, and no waitpid() before accept()")
    stalled = scene.hold_halves(12)
    scene.settle()
    # A stopped process handles no signal, so the SIGCHLDs of its children merge into one.
    scene.signal(signal.SIGSTOP)
    scene.note(do="signal", signal="SIGSTOP")
    for client in stalled:
        scene.release(client)
    scene.until(lambda: all(client.over() for client in stalled), "all children have answered")
    scene.settle()
    scene.signal(signal.SIGCONT)
    scene.note(do="signal", signal="SIGCONT")
    expect_reaped(
        "12 children that ended while the parent was stopped",
        "the handler calls waitpid() once; the kernel delivers several simultaneous SIGCHLDs as one",
    )
    scene.confirm("the server reaped 12 children that ended in turn, and 12 that ended together")


@check(
    "idle-cpu",
    proves="a waiting server sleeps: it neither spins nor polls",
    sends="nothing; then half a request; then idle connections and a client that does not read",
    expects=f"under {MAX_BUSY_SHARE:.0%} of a processor and under {MAX_WAKE_UPS_PER_S:.0f} wake-ups a second, "
    "each time",
    why="A busy loop takes a whole processor from programs that have work, and drains the battery of a laptop.",
    hint="Wait in the kernel: accept(), Condition.wait(), Queue.get(), select() without a short timeout.",
    fresh=True,
)
def idle_cpu(scene: Scene) -> None:
    stalled: list[SceneClient] = []

    def add_half_request() -> None:
        stalled.append(scene.hold_half("/1.txt", "half a request"))

    def add_more_clients() -> None:
        for number in range(3):
            stalled.append(scene.client(f"idle {number + 1}"))
        stalled.append(scene.hold_reader("does not read"))

    get(scene)
    for label, add_clients in (
        ("no client is connected", None),
        ("a client has sent half a request", add_half_request),
        ("three clients are silent and one does not read", add_more_clients),
    ):
        if add_clients is not None:
            add_clients()
        scene.settle()
        use = watch_processor_use(scene)
        scene.never_sleeps = use.is_busy or use.wake_ups_per_s > MAX_WAKE_UPS_PER_S
        if use.is_busy:
            scene.fail(
                f"while {label}, the server wants {use.wanted_share:.0%} of a processor",
                "sleep until an event comes",
                "a loop repeats a test (busy waiting): non-blocking calls without "
                "select(), or a flag in a loop",
            )
        if use.wake_ups_per_s > MAX_WAKE_UPS_PER_S:
            scene.fail(
                f"while {label}, the server wakes up {use.wake_ups_per_s:.0f} times a second",
                "sleep until an event comes",
                "a loop sleeps for a short time and tests again (polling)",
            )
    scene.confirm("the server slept while it was idle, and while clients were stalled")


class ProcessorUse(NamedTuple):
    """The use of the processor by all threads of a server. The shares are of one processor, so they may exceed 1.

    ran_share: the share of the time for which threads ran. wanted_share: for which they ran, or waited for a
    processor: on a busy machine, a spinning loop gets only a part of a processor, but wants all of it.
    """

    ran_share: float
    wanted_share: float
    wake_ups_per_s: float

    @property
    def is_busy(self) -> bool:
        """Whether the server works although nothing happens.

        On a busy machine a thread waits for a processor after each wake-up, so this wait alone proves nothing.
        """
        return self.wanted_share > MAX_BUSY_SHARE and self.ran_share > MIN_RUN_SHARE


def watch_processor_use(scene: Scene) -> ProcessorUse:
    """Measure the server's use of the processor for WINDOW_S, or longer while the measurement is inconclusive.

    A thread or process that starts meanwhile counts with all of its time, up to the last look at it: a loop may go
    on in ever new threads.
    """
    before, start = scene.subject.tasks(), time.monotonic()
    latest = dict(before)  # the last look at each thread, also at those that have ended
    for _ in range(MAX_WINDOWS):
        end = time.monotonic() + WINDOW_S
        while time.monotonic() < end:
            scene.pump(LOOK_EVERY_S)
            latest |= scene.subject.tasks()
        watched_s = time.monotonic() - start
        pairs = [(now, before.get(tid, NEW_THREAD)) for tid, now in latest.items()]
        ran_share = sum(now.ran_s - then.ran_s for now, then in pairs) / watched_s
        wanted_share = ran_share + sum(now.queued_s - then.queued_s for now, then in pairs) / watched_s
        wake_ups_per_s = sum(now.turns - then.turns for now, then in pairs) / watched_s
        if wanted_share <= MAX_BUSY_SHARE or ran_share > MIN_RUN_SHARE:
            break
        # The processors are so busy that a spinning loop and a polling loop look alike: watch for longer.
    return ProcessorUse(ran_share, wanted_share, wake_ups_per_s)


@check(
    "memory",
    proves="memory does not grow with the number of requests",
    sends="60 requests to warm up, then 120 more; every fourth client leaves early",
    expects="less than 16 KB of memory and 64 KB of address space more for each connection",
    why="Memory that a server keeps for each request adds up: after a million requests the kernel ends the server."
    " Linux allows a process 65,530 mappings, and a stack with its guard takes two: after some 32,000 stacks that"
    " stay, no further thread can start.",
    hint="Look for lists and dictionaries that only grow: connections, threads, caches without a limit. Detach each"
    " thread, or join it.",
    fresh=True,
)
def memory(scene: Scene) -> None:
    def visits(count: int) -> None:
        for number in range(count):
            (leave_silent if number % 4 == 3 else get)(scene)  # every fourth client leaves early
            scene.clients.clear()

    def used() -> int:
        return sum(processes.memory_bytes(pid) for pid in scene.subject.running())

    visits(WARM_UP_VISITS)  # the first connections fill the caches of the interpreter
    scene.settle()
    before = used()
    spaces = [address_spaces(scene)]
    for _ in range(MEMORY_ROUNDS):
        visits(MEMORY_VISITS // MEMORY_ROUNDS)
        scene.settle()
        spaces.append(address_spaces(scene))
    grown = (used() - before) / MEMORY_VISITS
    expect_stacks_back(scene, spaces)
    if grown > MAX_GROWTH_BYTES:
        scene.fail(
            f"memory grew by {grown / 1024:.0f} KB for each of {MEMORY_VISITS} connections",
            "release the objects of a connection when it ends",
            "the server keeps objects of each request in a list or a dictionary",
        )
    scene.confirm(f"{MEMORY_VISITS} connections brought {max(grown, 0) / 1024:.1f} KB each")


def address_spaces(scene: Scene) -> dict[int, processes.AddressSpace]:
    """Return the address space of each process of the server, by its process id."""
    return {pid: processes.address_space(pid) for pid in scene.subject.running()}


def growth_without_threads(now: processes.AddressSpace, then: processes.AddressSpace) -> int:
    """Return by how many bytes an address space has grown, without the needs of the threads that it has more."""
    threads = max(now.threads - then.threads, 0)
    return now.size_bytes - then.size_bytes - threads * THREAD_ADDRESS_BYTES


def expect_stacks_back(scene: Scene, spaces: list[dict[int, processes.AddressSpace]]) -> None:
    """Fail if the address space has grown with each connection, as by the stacks of threads that have ended.

    spaces: address_spaces() before the MEMORY_VISITS, and after each of their rounds. The C library and a runtime
    take address space in few large pieces. Such a piece grows one round, and a leak grows all of them. A thread
    that goes on needs its stack: THREAD_ADDRESS_BYTES for each one do not count.
    """
    visits = MEMORY_VISITS // MEMORY_ROUNDS
    growths = [
        [(after[pid], before[pid]) for pid in after.keys() & before.keys()]
        for before, after in pairwise(spaces)
    ]
    least_bytes = min(sum(growth_without_threads(*pair) for pair in pairs) for pairs in growths) / visits
    least_guards = (
        min(sum(now.guard_count - then.guard_count for now, then in pairs) for pairs in growths) / visits
    )
    if least_bytes > MAX_ADDRESS_GROWTH_BYTES:
        scene.fail(
            f"the address space grew by {least_bytes / 1024:,.0f} KB for each of {MEMORY_VISITS} connections, and "
            "no thread that goes on needs it",
            "detach the thread of a connection (in C: pthread_detach()), or join it",
            "a thread that is neither detached nor joined keeps its stack"
            # Some C libraries have no guard that can be counted.
            + ("" if least_guards > 0.5 else "; or a large buffer is never freed"),
        )
