"""Checks of the workers: the number of threads and processes, and their descriptors.

A model decides which thread or process serves a client. From outside, the grader sees this in three ways:

    who-works        counts threads and processes before, beside and after stalled clients: each stalled client
                     occupies a worker. KIND has the expected numbers of each model
    exactly-n        opens one gate after the other: a pool of n serves n clients at a time, and no more
    parent-lets-go   looks into the descriptors of all processes: which of them have a connection open?

The kernel does not see the goroutines of a Go program, so goroutines.py counts these by another way.

Possible failures: a runtime keeps threads that serve no client (SPARE_WORKERS), or a library starts more threads.
who-works therefore compares the numbers before, beside and after the clients.

Read next: progress.py, which tests the same model by the clients that are served and those that wait.
"""

from __future__ import annotations

from typing import NamedTuple

from ewe_classroom.grader import goroutines, processes
from ewe_classroom.grader.check import check
from ewe_classroom.grader.pictures import HELD_WORKER
from ewe_classroom.grader.scene import Scene
from ewe_classroom.grader.subject import numbered_path

STALLED_CLIENTS = 12
SPARE_WORKERS = 2  # a server may keep so many more threads or processes than before the first client
KIND = (
    "thread: one more thread for each stalled client, in one process; process: one more process for each; "
    "fixed: the same number with and without clients; one: fixed, and each process has one thread"
)


class WorkerCount(NamedTuple):
    """The number of the server's running processes, and the number of their threads."""

    processes: int
    threads: int


def count_workers(scene: Scene) -> WorkerCount:
    pids = scene.subject.running()
    return WorkerCount(len(pids), sum(len(processes.thread_ids(pid)) for pid in pids))


@check(
    "who-works",
    proves="the numbers of threads and processes grow with stalled clients exactly as in the model",
    sends="half requests on 12 connections, then the other halves; the grader counts after each step",
    expects=(
        "thread: 12 more threads; process: 12 more processes; pool and event loop: as many as before. "
        "In a Go program the grader counts goroutines in place of threads: at SIGQUIT, Go lists them"
    ),
    why="A pool that starts a thread for each client is not a pool: only the memory limits its number of threads.",
    hint="Count threads with `ls /proc/PID/task`, and children with `pgrep -P PID`.",
    options={"kind": KIND},
    fresh=True,
)
def who_works(scene: Scene) -> None:
    kind = scene.options.get("kind", "fixed")
    scene.expect_answer()
    scene.settle()
    is_go = goroutines.runs_go(scene)
    if is_go and kind != "process":
        goroutines.expect_goroutines(scene, kind, STALLED_CLIENTS)
        return
    before = count_workers(scene)
    stalled = scene.hold_halves(STALLED_CLIENTS)
    scene.settle(sure=True)
    during = count_workers(scene)
    growth = (
        f"{STALLED_CLIENTS} stalled clients brought {during.processes - before.processes} processes and "
        f"{during.threads - before.threads} threads more"
    )
    scene.note(do="note", text=growth)
    expect_growth(scene, kind, before, during, growth)
    for client in stalled:
        scene.release(client)
    for client in stalled:
        scene.until_answered(client)
        client.close()
    expect_workers_ended(scene, before, is_go=is_go)
    scene.confirm(growth)


def expect_growth(scene: Scene, kind: str, before: WorkerCount, during: WorkerCount, growth: str) -> None:
    """Fail unless the counts before and beside the stalled clients fit the model. kind: the model (KIND).

    growth: the difference in words, for messages.
    """
    more_processes = during.processes - before.processes
    more_threads = during.threads - before.threads
    if kind == "thread" and not (more_processes == 0 and more_threads == STALLED_CLIENTS):
        scene.fail(
            growth,
            f"one process, and {STALLED_CLIENTS} threads more",
            "connections are not served by a thread each",
        )
    if kind == "process" and more_processes != STALLED_CLIENTS:
        scene.fail(
            growth, f"{STALLED_CLIENTS} processes more", "connections are not served by a process each"
        )
    if kind == "fixed" and before.threads < scene.workers:
        scene.fail(
            f"{before.processes} processes have {before.threads} threads before the first client connects",
            f"at least {scene.workers}: the workers start before the first client comes",
            "the main thread serves the clients, or the workers are started only when they are needed",
        )
    if kind in ("fixed", "one") and (more_processes > 0 or more_threads > 0):
        scene.fail(
            growth,
            "the same number as without clients",
            "a thread or process is started for each connection",
        )
    if kind == "one" and during.processes != during.threads:
        scene.fail(
            f"{during.processes} processes have {during.threads} threads",
            "one thread in each process: the event loop",
            "helper threads do the work that the loop should do without blocking",
        )


def expect_workers_ended(scene: Scene, before: WorkerCount, *, is_go: bool) -> None:
    """Fail if more than SPARE_WORKERS threads, or processes, remain of the clients that have disconnected.

    before: the count before they came. is_go: only the processes count, because Go's runtime keeps its threads
    until the program ends.
    """

    def remaining() -> int:
        now = count_workers(scene)
        return now.processes - before.processes if is_go else now.threads - before.threads

    scene.until(lambda: remaining() <= SPARE_WORKERS, "threads and processes have ended")
    count = remaining()
    if count > SPARE_WORKERS:
        scene.fail(
            f"{count} threads or processes remain after their {STALLED_CLIENTS} clients have disconnected",
            "end the thread or process of a connection with the connection",
            "a thread waits for an event that will not come, or a child does not call exit",
        )


@check(
    "exactly-n",
    proves="a pool of n serves n clients at a time, under every load",
    sends="half requests on 3n connections; the other halves one by one (with --seed, in the student's order)",
    expects="each opened gate lets exactly one waiting client in, until all are served",
    why=(
        "n changes if a worker dies, sleeps after a lost wake-up, or is started twice. Only a longer "
        "run shows this."
    ),
    hint="Wait for the condition in a loop (while, not if), and notify under the lock, once for each connection.",
)
def exactly_n(scene: Scene) -> None:
    n = scene.concurrency()
    clients = []
    for number in range(3 * n):
        clients.append(scene.hold_half(numbered_path(number), f"stalled {number + 1}"))
        if number < n:  # so that exactly these clients get the workers
            scene.settle()
    scene.settle()
    for client in clients[n:]:
        # The request is now complete, and waits for a worker.
        client.send_rest()
    scene.settle(sure=True)
    early = [client for client in clients[n:] if client.answered()]
    if early:
        scene.fail(
            f"{n} clients were stalled, and {len(early)} more got responses",
            f"serve {n} clients at a time",
            "there are more workers than asked for",
        )
    idle = [client for client in clients[:n] if scene.is_unread(client)]
    for number, client in enumerate(scene.site.order("gates", clients[:n])):
        scene.release(client)
        scene.until_answered(client)
        if not client.answered():
            scene.fail(
                f"the gate of '{client.name}' was opened, and the client {client.outcome_text()}"
                f"{scene.blocked_text()}",
                "answer this client: it is one of the first n, and occupies a worker",
                f"only {number} of {n} workers work",
            )
        client.note(HELD_WORKER)
        if number == 0:  # the worker of this client is the only free one
            scene.until(
                lambda: all(each.answered() for each in clients[n:]), "the free worker serves all others"
            )
            left = [each for each in clients[n:] if not each.answered()]
            if left:
                scene.fail(
                    f"one worker is free, and {len(left)} of {2 * n} waiting clients are not "
                    f"served{scene.blocked_text()}",
                    "let a free worker take one waiting connection after the other",
                    f"{len(idle)} of the {n} stalled clients were not read by a worker: there are fewer workers, "
                    "or a worker holds a lock while it serves its client, and the others wait for the lock"
                    if idle
                    else "a wake-up is lost: the queue is not empty, and the worker sleeps",
                )
    for client in clients:
        scene.expect_file(client, client.path)
    scene.confirm(f"{n} clients occupied the workers; one free worker then served the {2 * n} others")


@check(
    "parent-lets-go",
    proves="the parent closes its copy of each connection, and a child its copy of the listening socket",
    sends="half requests on three connections; the grader examines the descriptors of all processes",
    expects="each connection is open in one process; only the parent has the listening socket",
    why=(
        "fork() copies descriptors. A connection ends only when its last copy is closed, and the "
        "client waits for this."
    ),
    hint="In the parent: call connection.close() after fork(). In the child: call listener.close() first.",
    fresh=True,
)
def parent_lets_go(scene: Scene) -> None:
    stalled = scene.hold_halves(3)
    scene.settle(sure=True)
    listening = processes.listener_inode(scene.subject.port)
    entries = processes.tcp_sockets()
    pids = scene.subject.running()
    client_of_port = {client.port: client for client in stalled}
    pids_of_port: dict[int, list[int]] = {port: [] for port in client_of_port}
    children_that_listen = []
    for pid in pids:
        for inode in processes.socket_inodes(pid):
            if inode == listening and pid != scene.subject.pid:
                children_that_listen.append(pid)
            client_port = entries[inode].peer_port if inode in entries else 0
            if client_port in pids_of_port:
                pids_of_port[client_port].append(pid)
    for port, owners in pids_of_port.items():
        if len(set(owners)) > 1:
            names = ", ".join(
                f"{pid} ({'the parent' if pid == scene.subject.pid else 'a child'})" for pid in owners
            )
            scene.fail(
                f"the connection of '{client_of_port[port].name}' is open in {len(owners)} processes: {names}",
                "keep the connection open only in the child that serves it",
                "the parent does not close the connection after fork()",
            )
    if children_that_listen:
        scene.fail(
            f"{len(children_that_listen)} children hold the listening socket",
            "close the listening socket in the child",
            "after the parent's end the port stays occupied while a child lives",
        )
    scene.confirm(f"{len(stalled)} connections were open in one process each")
    for client in stalled:
        scene.release(client)
        scene.until_answered(client)
