"""Count the goroutines of a Go program. They do the work of threads, but the kernel does not see them.

Go runs goroutines on the threads of its runtime. The number of these threads says nothing about the program's
model: thousands of goroutines wait for clients on a few threads, and a file that is slow to open adds a thread. But
the runtime lists its goroutines: at SIGQUIT it writes the stack of each goroutine, and ends the program:

    goroutine 7 [IO wait]:
    internal/poll.runtime_pollWait(0x7f..., 0x72)
            /usr/lib/go/src/runtime/netpoll.go:351 +0x85
    ...
    main.Converse({0x5e..., 0xc00...}, {0x7ff..., 0x9})
            /home/student/server.go:41 +0x11c

The program needs no library and no build option. Each count ends the server, so the check starts the server three
times: it counts without clients, with stalled clients, and after these have disconnected.

Possible failures: a program that handles SIGQUIT itself writes no stacks, and the verdict says so. A program that
then writes false stacks deceives this count.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from typing import NamedTuple

from ewe_classroom.grader import processes
from ewe_classroom.grader.scene import Scene, SceneClient
from ewe_classroom.grader.sources import has_build_info, open_regular

# Number 0 is not a goroutine: it is the stack of a thread on which the runtime waits. A program can write lines
# that look like the beginning of a stack. The quantifiers of the first line therefore never give a character back
# (*+), so that a search takes linear time.
STACK = re.compile(
    r"^goroutine [1-9]\d*+ [^\[\n]*+\[([^\],\n]*+)[^\]\n]*+\]:\n(.*?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL
)
# A call outside of the runtime. The runtime's goroutines have none, and neither has the goroutine that delivers
# signals.
OF_PROGRAM = re.compile(r"^(?!runtime\.|os/signal\.|created by )\S.*\(", re.MULTILINE)
MAX_DUMP_BYTES = 16 << 20  # a stack takes less than a kilobyte
EXTRA_GOROUTINES = 1  # an event loop may have one more goroutine, which waits for signals and wakes the loop


class Goroutine(NamedTuple):
    """A goroutine of a dump. state: such as "IO wait". stack: its calls, as Go's runtime writes them."""

    state: str
    stack: str


def is_go(pid: int) -> bool:
    """Return whether Go built the program of a process; False if the process has ended, or hides its program."""
    try:
        return processes.look_inside(pid, lambda: has_build_info(f"/proc/{processes.living_thread(pid)}/exe"))
    except OSError:
        return False


def listening_pids(scene: Scene) -> list[int]:
    """Return the ids of the processes with the listening socket: not of `go run`, or a shell that started them.

    Without a listening socket: all processes of the server.
    """
    pids = scene.subject.running()
    inode = processes.listener_inode(scene.subject.port)
    return list(processes.holders(inode, pids)) if inode else pids


def runs_go(scene: Scene) -> bool:
    """Return whether Go built a program of the server."""
    return any(is_go(pid) for pid in listening_pids(scene))


def parse_dump(text: str) -> list[Goroutine]:
    """Return the goroutines of a dump, without those of Go's runtime."""
    return [Goroutine(state, stack) for state, stack in STACK.findall(text) if OF_PROGRAM.search(stack)]


def dump_goroutines(scene: Scene) -> list[Goroutine]:
    """End the server by SIGQUIT, at which Go's runtime writes all stacks; return the goroutines of the program.

    Fail if the program writes none.
    """
    scene.note(do="signal", signal="SIGQUIT")
    try:
        output = open_regular(
            scene.subject.output
        )  # before the signal: the server cannot replace it any more
    except OSError:
        scene.fail(
            "the server has removed or replaced the file of its output",
            "leave this file alone: the grader reads Go's stacks in it",
        )
    with output:
        # The program may have written stacks before, for example by debug.Stack() after a panic.
        output.seek(0, os.SEEK_END)
        for pid in listening_pids(scene):  # one may have ended with another one of the server
            processes.send_signal(pid, signal.SIGQUIT)
        scene.until(lambda: not scene.subject.running(), "the server writes its stacks and ends")
        found = parse_dump(output.read(MAX_DUMP_BYTES).decode(errors="replace"))
    if not found:
        scene.fail(
            "the program was sent SIGQUIT, and wrote no stacks of goroutines",
            "leave SIGQUIT to Go's runtime: the grader counts goroutines by the stacks",
            "signal.Notify() without a list of signals catches all signals",
        )
    return found


def restart_server(scene: Scene) -> None:
    """Start the server again, for the next count. The scene's clients have lost their connections: drop them."""
    for client in scene.clients:
        client.close()
    scene.clients.clear()
    problem = scene.start_again()
    if problem:
        scene.fail(
            f"the server was started again on the same port, and {problem}",
            "listen immediately after a restart",
        )


def states_text(found: list[Goroutine]) -> str:
    """Return the number of goroutines in each state: "12 in IO wait, 1 in syscall"."""
    counts = Counter(each.state for each in found)
    return ", ".join(f"{count} in {state}" for state, count in sorted(counts.items()))


def hold_clients(scene: Scene, count: int) -> list[SceneClient]:
    """Connect clients that stall after half a request; wait until the server is quiescent; return the clients."""
    stalled = scene.hold_halves(count)
    scene.settle(sure=True)
    return stalled


def expect_goroutines(scene: Scene, kind: str, client_count: int) -> None:
    """Count goroutines before stalled clients come, beside them, and after they have left; fail unless they fit.

    A count ends the server (SIGQUIT), so each of the three counts has a new server. kind: the model, an option of
    the check who-works: "thread", "fixed" or "one" (workers.KIND). client_count: the number of stalled clients.
    """
    scene.settle()
    processes_alone = len(scene.subject.running())
    before = dump_goroutines(scene)
    restart_server(scene)
    hold_clients(scene, client_count)
    more_processes = len(scene.subject.running()) - processes_alone
    during = dump_goroutines(scene)
    more_goroutines = len(during) - len(before)
    growth = f"{client_count} stalled clients brought {more_goroutines} goroutines more"
    growth_and_states = f"{growth} (now {states_text(during)})"
    # A process for each connection brings a goroutine, too: the main goroutine of the process
    if kind == "thread" and (more_goroutines != client_count or more_processes > 0):
        scene.fail(
            growth_and_states,
            f"{client_count} goroutines more",
            "connections are not served by a goroutine each",
        )
    if kind == "fixed" and len(before) < scene.workers:
        scene.fail(
            f"the program has {len(before)} goroutines before the first client connects ({states_text(before)})",
            f"at least {scene.workers}: the workers start before the first client comes",
            "the main goroutine serves the clients, or the workers are started only when they are needed",
        )
    if kind in ("fixed", "one") and more_goroutines > 0:
        scene.fail(
            growth_and_states,
            "the same number as without clients",
            "a goroutine is started for each connection (go ...)",
        )
    if kind == "one" and len(during) > 1 + EXTRA_GOROUTINES:
        scene.fail(
            f"the program has {len(during)} goroutines ({states_text(during)})",
            "one goroutine, the event loop, and at most one that waits for signals",
            "helper goroutines do the work that the loop should do without blocking",
        )
    # In this third server, clients stall again, get their responses, and leave.
    restart_server(scene)
    for client in hold_clients(scene, client_count):
        scene.release(client)
        scene.until_answered(client)
        client.close()
    scene.settle()
    after = dump_goroutines(scene)
    if len(after) > len(before):
        scene.fail(
            f"{len(after) - len(before)} goroutines remain after their {client_count} clients have disconnected "
            f"({states_text(after)})",
            "end the goroutine of a connection with the connection",
            "a goroutine still waits on a channel or a lock, and no other goroutine will wake it",
        )
    scene.confirm(growth)
