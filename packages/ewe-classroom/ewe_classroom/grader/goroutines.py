"""Who works in a program of Go: goroutines, which the kernel does not see, in place of threads.

Go runs goroutines on threads of its runtime. Their number says nothing about the program's model: thousands of
goroutines wait for clients on a handful of threads, and a file that is slow to open brings one thread more. The
runtime itself tells which goroutines there are. At SIGQUIT it writes the stack of each one, and ends the program:

    goroutine 7 [IO wait]:
    internal/poll.runtime_pollWait(0x7f..., 0x72)
            /usr/lib/go/src/runtime/netpoll.go:351 +0x85
    ...
    main.Converse({0x5e..., 0xc00...}, {0x7ff..., 0x9})
            /home/student/server.go:41 +0x11c

No library is needed in the program, and no build option. Each count costs a server, so the check starts it three
times: without clients, with held clients, and after these have gone.

What can go wrong: a program that handles SIGQUIT itself writes no stacks. The verdict says so.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import signal
from collections import Counter

from ewe_classroom.grader import processes
from ewe_classroom.grader.scene import Client, Scene

BUILD_INFO = b"\xff Go buildinf:"  # in each program that the Go tools have linked: debug/buildinfo
# Number 0 is a thread's own stack, on which the runtime waits: no goroutine.
STACK = re.compile(r"^goroutine [1-9]\d* .*?\[([^\],]*).*?\]:\n(.*?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)
# A call of the program: the goroutines of the runtime have none, nor has the one that hands signals to the program.
OF_PROGRAM = re.compile(r"^(?!runtime\.|os/signal\.|created by )\S.*\(", re.MULTILINE)
BESIDE_THE_LOOP = 1  # an event loop may have one goroutine that waits for signals and wakes the loop


def is_go(pid: int) -> bool:
    """Return whether the program of a process was built by Go."""
    try:
        with (
            open(f"/proc/{pid}/exe", "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as program,
        ):
            return program.find(BUILD_INFO) >= 0
    except (OSError, ValueError):
        return False


def servers(scene: Scene) -> list[int]:
    """Return the processes that hold the listening socket: `go run` and a shell beside them do not."""
    return list(processes.holders(processes.listens(scene.subject.port), scene.subject.running()))


def runs_go(scene: Scene) -> bool:
    return any(is_go(pid) for pid in servers(scene))


def stacks(text: str) -> list[tuple[str, str]]:
    """Return the state and the stack of each goroutine of the program that a dump shows."""
    return [(state, stack) for state, stack in STACK.findall(text) if OF_PROGRAM.search(stack)]


def count(scene: Scene) -> list[tuple[str, str]]:
    """End the server by SIGQUIT; return the state and the stack of each of its goroutines."""
    scene.note(do="signal", signal="SIGQUIT")
    for pid in servers(scene):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGQUIT)
    scene.until(lambda: not scene.subject.running(), "the server writes its stacks and ends")
    found = stacks(scene.subject.output.read_text(errors="replace"))
    if not found:
        scene.fail(
            "the program was sent SIGQUIT, and wrote no stacks of goroutines",
            "leave SIGQUIT to Go's runtime: by its stacks the grader counts goroutines",
            "signal.Notify() without a list of signals takes all of them",
        )
    return found


def again(scene: Scene) -> None:
    """Start the server again, for the next count."""
    for client in scene.clients:
        client.close()
    scene.clients.clear()
    problem = scene.start_again()
    if problem:
        scene.fail(f"the server was started again on the same port, and {problem}", "listen again at once")


def in_words(found: list[tuple[str, str]]) -> str:
    """Return how many goroutines are in which state: "12 in IO wait, 1 in syscall"."""
    return ", ".join(f"{number} in {state}" for state, number in sorted(Counter(s for s, _ in found).items()))


def hold(scene: Scene, number: int) -> list[Client]:
    held = [scene.hold("half", f"/{each}.txt", f"held {each + 1}") for each in range(number)]
    scene.settle(sure=True)
    return held


def judge(scene: Scene, kind: str, number: int) -> None:
    """Count goroutines without clients, beside held ones, and after these; fail unless they fit the model."""
    scene.settle()
    alone = len(scene.subject.running())
    before = count(scene)
    again(scene)
    hold(scene, number)
    more = len(scene.subject.running()) - alone
    during = count(scene)
    grown = len(during) - len(before)
    what = f"{number} held clients brought {grown} goroutines more"
    seen = f"{what} (now {in_words(during)})"
    if kind == "thread" and (grown != number or more > 0):
        scene.fail(seen, f"{number} goroutines more", "connections are not served by a goroutine each")
    if kind in ("fixed", "one") and grown > 0:
        scene.fail(
            seen, "the same number as without clients", "a goroutine is started for each connection (go ...)"
        )
    if kind == "one" and len(during) > 1 + BESIDE_THE_LOOP:
        scene.fail(
            f"the program has {len(during)} goroutines ({in_words(during)})",
            "one goroutine, the event loop, and at most one that waits for signals",
            "helper goroutines do the work that the loop should do without blocking",
        )
    again(scene)
    for client in hold(scene, number):
        scene.release(client)
        scene.until(client.answered_or_over, f"{client.name} is answered")
        client.close()
    scene.settle()
    left = count(scene)
    if len(left) > len(before):
        scene.fail(
            f"{len(left) - len(before)} goroutines remain after their {number} clients have gone "
            f"({in_words(left)})",
            "end the goroutine of a connection with the connection",
            "a goroutine waits for a channel or a lock that will not come",
        )
    scene.confirm(what)
