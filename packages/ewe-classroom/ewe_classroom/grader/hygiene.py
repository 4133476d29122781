"""Checks of hygiene: what stays behind when clients have gone, and what a server does while it is idle."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from ewe_classroom.grader import processes
from ewe_classroom.grader.check import check
from ewe_classroom.grader.scene import Client, Scene

EACH = 8
WINDOW_S = 0.5
WINDOWS = 8  # at most, one after the other, while too little is seen to tell
BUSY = 0.2  # of the window in which the server runs or waits for a processor
WAKE_UPS = 40.0  # a second; a timer of 50 ms needs 20


def get(scene: Scene) -> None:
    client = scene.client().ask("/hello.txt", Connection="close")
    scene.until(client.answered_or_over, "an answer")
    client.close()


def leave_silent(scene: Scene) -> None:
    """Connect and close without a byte."""
    client = scene.client()
    scene.until(lambda: client.connected or client.over(), "connected")
    client.close()


def leave_halfway(scene: Scene) -> None:
    client = scene.client().send(b"GET /hello.txt HTTP/1.1\r\nHo")
    scene.settle()
    client.close()


def reset_halfway(scene: Scene) -> None:
    client = scene.client().send(b"GET /hello.txt HTTP/1.1\r\nHo")
    scene.settle()
    client.reset()


def reset_response(scene: Scene) -> None:
    client = scene.client(reads=False).ask("/large.bin", Connection="close")
    scene.settle()
    client.reset()


def get_missing(scene: Scene) -> None:
    client = scene.client().ask("/missing.txt", Connection="close")
    scene.until(client.answered_or_over, "an answer")
    client.close()


VISITS: dict[str, Callable[[Scene], None]] = {
    "were answered": get,
    "asked for a missing file": get_missing,
    "connected and closed": leave_silent,
    "closed after half a request": leave_halfway,
    "reset after half a request": reset_halfway,
    "reset in the middle of a response": reset_response,
}


def open_descriptors(scene: Scene) -> dict[tuple[int, int], str]:
    """Return what every descriptor of every process leads to."""
    return {
        (pid, number): target
        for pid in scene.subject.running()
        for number, target in processes.descriptors(pid).items()
    }


def expect_closed(
    scene: Scene, before: dict[tuple[int, int], str], how: str, should: str, because: str, first: str = ""
) -> None:
    """Fail if EACH clients left descriptors open: more than half as many as there were clients.

    before: open_descriptors() before them. how: what they did. should, because: as Scene.fail() takes them. first:
    what the descriptors begin with that the message shall name, if there are such.
    """
    most = len(before) + EACH // 2
    scene.until(lambda: len(open_descriptors(scene)) <= most, "descriptors are closed")
    after = open_descriptors(scene)
    if len(after) <= most:
        return
    known = processes.sockets()
    extra = sorted(
        {processes.described(each, known) for key, each in after.items() if before.get(key) != each}
    )
    named = [each for each in extra if each.startswith(first)] or extra
    scene.fail(
        f"{EACH} clients {how}, and {len(after) - len(before)} descriptors stay open: {'; '.join(named[:3])}",
        should,
        because,
    )


@check(
    "descriptors",
    proves="every descriptor is closed when its client has gone, however the client went",
    sends=f"{EACH} clients each that are answered, ask for a missing file, leave early, leave halfway, reset",
    expects="as many open descriptors as before",
    why=(
        "A process may open 1,024 descriptors. A server that loses one in each visit "
        "stops after a thousand visits."
    ),
    hint="Close in `finally`, or with `with`: the exception that a reset raises must not skip the close.",
    fresh=True,
)
def descriptors(scene: Scene) -> None:
    for visit in VISITS.values():
        visit(scene)
    scene.settle()
    for how, visit in VISITS.items():
        before = open_descriptors(scene)
        for _ in range(EACH):
            visit(scene)
        scene.expect_alive(f"clients that {how}")
        expect_closed(
            scene, before, how,
            "close each connection and each file when its client has gone",
            "a path through the code ends without close(): an exception, an early return, a copy in a list",
        )  # fmt: skip
    scene.confirm(f"{EACH} clients of each of {len(VISITS)} kinds left no descriptor")


@check(
    "zombies",
    proves="every child is waited for",
    sends="12 requests in turn; then 12 whose children end while the parent is stopped (SIGSTOP, SIGCONT)",
    expects="at most two zombies afterwards, each time",
    why="A zombie keeps its place in the process table until its parent has called wait(). The table is finite.",
    hint="In the SIGCHLD handler, or before each accept: os.waitpid(-1, os.WNOHANG) in a loop until it finds none.",
    fresh=True,
)
def zombies(scene: Scene) -> None:
    def found() -> list[int]:
        return [pid for pid in scene.subject.family() if processes.state(pid) == "Z"]

    def reaped(requests: str, because: str) -> None:
        scene.until(lambda: len(found()) <= 2, "children are reaped")
        dead = found()
        if len(dead) > 2:
            scene.fail(
                f"{requests} left {len(dead)} zombies (processes in state Z, such as {dead[0]})",
                "call waitpid() for each child that ends",
                because,
            )

    for _ in range(12):
        get(scene)
    reaped("12 requests in turn", "there is no SIGCHLD handler, and no waitpid() before accept()")
    held = [scene.hold("half", f"/{number}.txt", f"held {number + 1}") for number in range(12)]
    scene.settle()
    # A stopped process gets no signal: the SIGCHLDs of its children become one.
    scene.signal(signal.SIGSTOP)
    scene.note(do="signal", signal="SIGSTOP")
    for client in held:
        scene.release(client)
    scene.until(lambda: all(client.over() for client in held), "all children have answered")
    scene.settle()
    scene.signal(signal.SIGCONT)
    scene.note(do="signal", signal="SIGCONT")
    reaped(
        "12 children that ended while the parent was stopped",
        "the handler calls waitpid() once; several SIGCHLDs that come together are delivered as one",
    )
    scene.confirm("12 children that ended in turn, and 12 that ended together, were reaped")


@check(
    "idle-cpu",
    proves="a server that waits sleeps: it neither spins nor polls",
    sends="nothing; then half a request; then idle connections and a client that does not read",
    expects=f"under {BUSY:.0%} of a processor and under {WAKE_UPS:.0f} wake-ups a second, each time",
    why="A busy loop takes a whole processor from those who have work, and the battery of a laptop.",
    hint="Wait in the kernel: accept(), Condition.wait(), Queue.get(), select() without a short timeout.",
    fresh=True,
)
def idle_cpu(scene: Scene) -> None:
    held: list[Client] = []

    def half() -> None:
        held.append(scene.hold("half", "/1.txt", "half a request"))

    def more() -> None:
        for number in range(3):
            held.append(scene.client(f"idle {number + 1}"))
        held.append(scene.hold("reader", "/large.bin", "does not read"))

    get(scene)
    for label, act in (
        ("no client is connected", None),
        ("a client has sent half a request", half),
        ("three clients are silent and one does not read", more),
    ):
        if act is not None:
            act()
        scene.settle()
        ran, wanted, wake_ups = watch(scene)
        # On a busy machine a process waits for a processor at each wake-up: such a wait alone shows nothing.
        if wanted > BUSY and ran > BUSY / 4:
            scene.fail(
                f"while {label}, the server wants {wanted:.0%} of a processor",
                "sleep until an event comes",
                "a loop asks again and again (busy waiting): non-blocking calls without "
                "select(), or a flag in a loop",
            )
        if wake_ups > WAKE_UPS:
            scene.fail(
                f"while {label}, the server wakes up {wake_ups:.0f} times a second",
                "sleep until an event comes",
                "a loop sleeps for a short time and looks again (polling)",
            )
    scene.confirm("the server slept while it was idle, and beside clients that were held")


def watch(scene: Scene) -> tuple[float, float, float]:
    """Return how much of a processor the server had, how much it wanted, and its wake-ups in a second.

    It wants what it has, and the time in which a thread waits for a processor: on a busy machine, a loop that spins
    gets only a share, but wants all.
    """
    before, start = scene.subject.tasks(), time.monotonic()
    for _ in range(WINDOWS):
        end = time.monotonic() + WINDOW_S
        while time.monotonic() < end:
            scene.pump(0.05)
        after, window = scene.subject.tasks(), time.monotonic() - start
        both = [(task, before[tid]) for tid, task in after.items() if tid in before]
        ran = sum(now.ran_s - then.ran_s for now, then in both) / window
        wanted = ran + sum(now.queued_s - then.queued_s for now, then in both) / window
        turns = sum(now.turns - then.turns for now, then in both) / window
        if wanted <= BUSY or ran > BUSY / 4:
            break
        # The processors are so busy that a loop that spins and one that polls look alike: watch for longer.
    return ran, wanted, turns


@check(
    "memory",
    proves="memory does not grow with the number of requests",
    sends="60 requests to warm up, then 120 more; every fourth client leaves early",
    expects="less than 16 KB more for each connection",
    why="What a server keeps of each request adds up: a million requests later it is ended by the kernel.",
    hint="Look for lists and dictionaries that only grow: connections, threads, caches without a limit.",
    fresh=True,
)
def memory(scene: Scene) -> None:
    def visits(count: int) -> None:
        for number in range(count):
            (leave_silent if number % 4 == 3 else get)(scene)
            scene.clients.clear()

    def used() -> int:
        return sum(processes.memory(pid) for pid in scene.subject.running())

    visits(60)
    scene.settle()
    before = used()
    visits(120)
    scene.settle()
    grown = (used() - before) / 120
    if grown > 16 * 1024:
        scene.fail(
            f"memory grew by {grown / 1024:.0f} KB for each of 120 connections",
            "release what belongs to a connection when it ends",
            "something of each request is kept in a list or a dictionary",
        )
    scene.confirm(f"120 connections brought {max(grown, 0) / 1024:.1f} KB each")
