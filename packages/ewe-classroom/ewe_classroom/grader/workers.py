"""Checks of who works: how many threads and processes there are, and what they hold."""

from __future__ import annotations

from ewe_classroom.grader import goroutines, processes
from ewe_classroom.grader.check import check
from ewe_classroom.grader.scene import Scene

HELD = 12
KIND = (
    "thread: a thread more for each held client, in one process; process: a process more for each; "
    "fixed: no more with clients than without; one: fixed, and each process has one thread"
)


def count(scene: Scene) -> tuple[int, int]:
    """Return the server's processes that run, and their threads."""
    pids = scene.subject.running()
    return len(pids), sum(len(processes.thread_ids(pid)) for pid in pids)


@check(
    "who-works",
    proves="threads and processes grow with held clients as the model says, and no other way",
    sends="half requests on 12 connections (counted), then the other halves (counted again)",
    expects=(
        "thread: 12 threads more; process: 12 processes more; pool and event loop: as many as before. "
        "In a program of Go, goroutines count in place of threads: SIGQUIT has Go write them"
    ),
    why="A pool that starts a thread for each client is no pool, and it ends where memory ends.",
    hint="Count with: ls /proc/PID/task, and: pgrep -P PID.",
    options={"kind": KIND},
    fresh=True,
)
def who_works(scene: Scene) -> None:
    kind = scene.options.get("kind", "fixed")
    scene.expect_answer()
    scene.settle()
    go = goroutines.runs_go(scene)
    if go and kind != "process":
        goroutines.judge(scene, kind, HELD)
        return
    before = count(scene)
    held = [scene.hold("half", f"/{number}.txt", f"held {number + 1}") for number in range(HELD)]
    scene.settle(sure=True)
    during = count(scene)
    grown = (during[0] - before[0], during[1] - before[1])
    what = f"{HELD} held clients brought {grown[0]} processes and {grown[1]} threads more"
    scene.note(do="note", text=what)
    if kind == "thread" and not (grown[0] == 0 and grown[1] == HELD):
        scene.fail(
            what, f"one process, and {HELD} threads more", "connections are not served by a thread each"
        )
    if kind == "process" and grown[0] != HELD:
        scene.fail(what, f"{HELD} processes more", "connections are not served by a process each")
    if kind in ("fixed", "one") and (grown[0] > 0 or grown[1] > 0):
        scene.fail(
            what,
            "the same number as without clients",
            "a thread or process is started for each connection",
        )
    if kind == "one" and during[0] != during[1]:
        scene.fail(
            f"{during[0]} processes have {during[1]} threads",
            "one thread in each process: the event loop",
            "helper threads do the work that the loop should do without blocking",
        )
    for client in held:
        scene.release(client)
    for client in held:
        scene.until(client.answered_or_over, f"{client.name} is answered")
        client.close()
    # Go's runtime keeps the threads that it has started until the program ends.
    unit = 0 if go else 1
    scene.until(lambda: count(scene)[unit] <= before[unit] + 2, "threads and processes have ended")
    after = count(scene)
    if after[unit] > before[unit] + 2:
        scene.fail(
            f"{after[unit] - before[unit]} threads or processes remain after their {HELD} clients have gone",
            "end the thread or process of a connection with the connection",
            "a thread waits for something that will not come, or a child does not call exit",
        )
    scene.confirm(what)


@check(
    "exactly-n",
    proves="a pool of n has n workers: n clients at a time, for every load",
    sends="half requests on 3n connections; the other halves one by one, in order (with --seed in another one)",
    expects="each gate that opens lets exactly one waiting client in, until all are served",
    why="A worker that dies, sleeps on a lost wake-up or is started twice changes n; only a longer run shows it.",
    hint="Wait for the condition in a loop (while, not if), and notify under the lock, once for each connection.",
)
def exactly_n(scene: Scene) -> None:
    n = scene.workers
    clients = []
    for number in range(3 * n):
        clients.append(scene.hold("half", f"/{number}.txt", f"held {number + 1}"))
        if number < n:
            scene.settle()
    scene.settle()
    for client in clients[n:]:
        # The request is now complete; only a worker is missing.
        client.send_rest()
    scene.settle(sure=True)
    early = [client for client in clients[n:] if client.answered()]
    if early:
        scene.fail(
            f"{n} clients were held, and {len(early)} more were answered",
            f"serve {n} at a time",
            "there are more workers than asked for",
        )
    for number, client in enumerate(scene.site.order("gates", clients[:n])):
        scene.release(client)
        scene.until(client.answered_or_over, f"{client.name} is answered")
        if not client.answered():
            scene.fail(
                f"'{client.name}', whose gate was opened, {client.story()}{scene.blocked()}",
                "answer it: it is one of the first n, and holds a worker",
                f"only {number} of {n} workers work",
            )
        if number == 0:
            scene.until(
                lambda: all(each.answered() for each in clients[n:]), "the free worker serves all others"
            )
            left = [each for each in clients[n:] if not each.answered()]
            if left:
                scene.fail(
                    f"one worker is free, and {len(left)} of {2 * n} waiting clients are not "
                    f"served{scene.blocked()}",
                    "a free worker takes one waiting connection after the other",
                    "a wake-up is lost (the queue is not empty, and the worker sleeps), or there are "
                    "fewer than n workers",
                )
    for client in clients:
        scene.expect_file(client, client.path)
    scene.confirm(f"{n} were held at a time; one free worker then served the {2 * n} others")


@check(
    "parent-lets-go",
    proves="the parent closes its copy of each connection, and a child its copy of the listening socket",
    sends="half requests on three connections; the descriptors of all processes are looked at",
    expects="each connection is open in one process; only the parent has the listening socket",
    why="fork() copies descriptors. A connection ends when the last copy is closed: the client waits for that end.",
    hint="In the parent: connection.close() after fork(). In the child: listener.close() first.",
    fresh=True,
)
def parent_lets_go(scene: Scene) -> None:
    held = [scene.hold("half", f"/{number}.txt", f"held {number + 1}") for number in range(3)]
    scene.settle(sure=True)
    listening = processes.listens(scene.subject.port)
    known = processes.sockets()
    pids = scene.subject.running()
    ports = {client.port: client for client in held}
    holding: dict[int, list[int]] = {port: [] for port in ports}
    heirs = []
    for pid in pids:
        for target in processes.descriptors(pid).values():
            number = processes.inode(target)
            if number and number == listening and pid != scene.subject.pid:
                heirs.append(pid)
            peer = known[number].peer if number in known else 0
            if peer in holding:
                holding[peer].append(pid)
    for port, owners in holding.items():
        if len(set(owners)) > 1:
            names = ", ".join(
                f"{pid} ({'the parent' if pid == scene.subject.pid else 'a child'})" for pid in owners
            )
            scene.fail(
                f"the connection of '{ports[port].name}' is open in {len(owners)} processes: {names}",
                "keep it open in the child that serves it, and nowhere else",
                "the parent does not close the connection after fork()",
            )
    if heirs:
        scene.fail(
            f"{len(heirs)} children hold the listening socket",
            "close it in the child",
            "after the parent's end the port stays taken as long as a child lives",
        )
    scene.confirm(f"{len(held)} connections were open in one process each")
    for client in held:
        scene.release(client)
        scene.until(client.answered_or_over, f"{client.name} is answered")
