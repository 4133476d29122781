"""Checks of progress: does the server serve a client while other clients are stalled?

A *stalled* client has sent half a request, or does not read its response. Each model tolerates an exact number of
stalled clients:

    serial       0          one stalled client stops all other clients
    pool of n    n - 1      n stalled clients stop all other clients, n - 1 do not
    fork, thread, event loop    any number below the limits: stalled clients never stop another client

A schedule stalls k clients at their gates, and then sends one more request. Either this request gets a response, or
the server becomes quiescent without one. Both outcomes are facts, so the number is exact.
"""

from __future__ import annotations

from typing import NamedTuple

from ewe_classroom.grader.check import check
from ewe_classroom.grader.scene import NO_LIMIT, Scene, SceneClient

IDLE_CLIENTS = 24
CONNECT_PUMP_S = 0.05
# The kinds of stalled clients, each with the reason for which it occupies its worker.
STALL_DESCRIPTIONS = {"half": "has sent half a request", "reader": "does not read its response"}
# The option `limit` of a check: its values, each with its meaning.
LIMIT_MEANINGS = (
    "none: one stalled client stops the others; workers: as many stalled clients as workers stop the others; "
    "all: no number of stalled clients stops another"
)


class StalledCounts(NamedTuple):
    """Numbers of stalled clients, for the model of a lab.

    serves_beside: beside each of these numbers, in increasing order, the server must serve another client.
    waits_beside: beside this number, another client must wait; None if no number may make it wait.
    """

    serves_beside: list[int]
    waits_beside: int | None


def stalled_counts(scene: Scene, kind: str) -> StalledCounts:
    """Return the numbers for the model of the lab. kind: of the stalled clients (STALL_DESCRIPTIONS)."""
    limit = scene.options.get("limit", "all")
    if limit == "none":
        return StalledCounts([0], waits_beside=1)
    if limit == "workers":
        # A wrong number of workers costs the points of `progress` alone, which stalls half requests.
        count = scene.concurrency() if kind == "reader" and scene.workers > 1 else scene.workers
        # Without the number itself: with one worker, one stalled client stops the others.
        return StalledCounts(sorted({0, 1, count - 1} - {count}), waits_beside=count)
    return StalledCounts([1, scene.workers, IDLE_CLIENTS if kind == "half" else 2 * scene.workers], None)


def hold_more(scene: Scene, stalled: list[SceneClient], count: int, kind: str) -> None:
    """Stall clients until there are `count`. Each occupies its worker before the next one connects.

    kind: of the clients (STALL_DESCRIPTIONS).
    """
    while len(stalled) < count:
        number = len(stalled)
        name = f"stalled {number + 1}"
        client = scene.hold_half(f"/{number}.txt", name) if kind == "half" else scene.hold_reader(name)
        stalled.append(client)
        if number < scene.workers:
            # Once all workers are occupied, the order does not matter: the wait after the last client is enough.
            scene.settle()
    scene.settle()


def play_progress(scene: Scene, kind: str) -> None:
    """Stall more and more clients; each time, check the progress of another client. Then open all gates.

    kind: of the stalled clients (STALL_DESCRIPTIONS).
    """
    serves_beside, waits_beside = stalled_counts(scene, kind)
    stalled: list[SceneClient] = []
    for count in serves_beside:
        hold_more(scene, stalled, count, kind)
        fast = scene.client(f"fast, beside {count}").ask("/39.txt", Connection="close")
        if not scene.until(fast.answered, f"{fast.name} gets a response"):
            scene.expect_alive(f"{stalled_text(count, kind)} connected")
            did = f"beside {stalled_text(count, kind)}, the next client {fast.outcome_text()}{scene.blocked_text()}"
            because = cause(scene, count, kind)
            note_concurrency(scene, kind)  # last, because it closes all clients
            scene.fail(did, f"answer this client: {expectation_text(scene)}", because)
        scene.expect_file(fast, "/39.txt")
        fast.close()
    waiting = None
    if waits_beside is not None:
        hold_more(scene, stalled, waits_beside, kind)
        waiting = scene.client(f"waits, beside {waits_beside}").ask("/39.txt", Connection="close")
        if scene.until_answered(waiting):
            did = f"beside {stalled_text(waits_beside, kind)}, the next client {waiting.outcome_text()}"
            note_concurrency(scene, kind)
            scene.fail(
                did,
                f"let this client wait with an open connection until a worker is free: {expectation_text(scene)}",
                "there are more workers than asked for, or other threads than the workers read from clients",
            )
    release_all(scene, stalled, waiting, kind)
    scene.confirm(
        f"beside {', '.join(map(str, serves_beside))} stalled clients, the next client got a response"
        + (f"; beside {waits_beside} it waited until a gate was opened" if waits_beside is not None else "")
    )


def note_concurrency(scene: Scene, kind: str) -> None:
    """Note how many clients the server serves at a time in scene.findings, for the checks that follow `progress`.

    Stall one client more each time, until another client gets no response.
    """
    if kind != "half" or scene.options.get("limit") != "workers":
        return
    for client in scene.clients:
        client.close()
    scene.settle()
    for count in range(1, IDLE_CLIENTS + 1):
        scene.hold_half("/1.txt", f"counts {count}")
        scene.settle()
        probe = scene.client(f"next to {count}").ask("/2.txt", Connection="close")
        if not scene.until(probe.answered, f"{probe.name} gets a response"):
            scene.findings.concurrency = count
            return
        probe.close()
    scene.findings.concurrency = NO_LIMIT


def stalled_text(count: int, kind: str) -> str:
    """Describe the stalled clients: "3 stalled clients (each has sent half a request)"."""
    if count == 1:
        return f"one stalled client (it {STALL_DESCRIPTIONS[kind]})"
    return f"{count} stalled clients (each {STALL_DESCRIPTIONS[kind]})" if count else "no stalled client"


def release_all(scene: Scene, stalled: list[SceneClient], waiting: SceneClient | None, kind: str) -> None:
    """Open the gates of all stalled clients; fail unless every client gets its own file.

    waiting: the client that waits for a worker, if there is one. The first opened gate makes one worker free, so
    this client must get its response before the other gates open. kind: of the stalled clients, for messages.
    """
    if waiting is not None:
        first, *stalled = stalled
        scene.release(first)
        for client in (first, waiting):
            scene.until_answered(client)
        if not waiting.answered():
            scene.fail(
                f"a gate was opened, and the waiting client {waiting.outcome_text()}{scene.blocked_text()}",
                "serve the waiting client as soon as a worker is free",
                "a wake-up is lost, a worker has ended, or the worker keeps the first client's idle connection",
            )
        scene.expect_file(waiting, waiting.path)
        stalled = [first, *stalled]
    for client in stalled:
        if not client.answers:
            scene.release(client)
        scene.until_answered(client)
        scene.expect_file(client, client.path, f"its gate was opened ({STALL_DESCRIPTIONS[kind]})")
        client.close()


def expectation_text(scene: Scene) -> str:
    """Return the expectation of the lab's model in words."""
    limit = scene.options.get("limit", "all")
    if limit == "none":
        return "a serial server serves one connection at a time"
    if limit == "workers":
        return f"a pool of {scene.workers} serves exactly {scene.workers} at a time"
    return "under this model a stalled client does not stop other clients"


def cause(scene: Scene, count: int, kind: str) -> str:
    """Return the likely cause if a client is not served beside `count` stalled clients."""
    limit = scene.options.get("limit", "all")
    if limit == "workers" and count == 1:
        return (
            "only one worker takes connections, a worker keeps the queue's lock while it serves a client, "
            "or the accepting thread reads requests itself"
        )
    if limit == "workers":
        return (
            f"only {count} workers or fewer take connections, or the accepting thread reads requests itself"
        )
    if count == 1:
        return (
            "the loop that accepts also serves clients, or a lock is held while the server waits for a client"
        )
    if count <= scene.workers:
        return "the number of workers is fixed, or connections stay in the backlog"
    return "a limit on threads, processes or connections is too low"


@check(
    "second-client",
    proves="one stalled client does not stop the next one",
    sends="half of a request on one connection; then a whole request on another one; then the other half",
    expects="a response to the whole request, while the first client is still stalled",
    why="This is the first step from a serial server to a concurrent one. The other checks rest on it.",
    hint="Find the call in which the server waits for the first client. Another thread, process or event must be"
    " able to accept and serve the second client meanwhile.",
)
def second_client(scene: Scene) -> None:
    stalled = scene.hold_half("/1.txt", "stalled")
    scene.settle()  # until the server waits for the first client
    second = scene.client("second").ask("/2.txt", Connection="close")
    if not scene.until(second.answered, f"{second.name} gets a response"):
        scene.expect_alive("a stalled client connected")
        scene.fail(
            f"beside {stalled_text(1, 'half')}, the next client {second.outcome_text()}{scene.blocked_text()}",
            "answer this client",
            "the server serves one client at a time: the code that accepts also serves, or a lock is held"
            " while the server waits for a client",
        )
    scene.expect_file(second, "/2.txt")
    scene.release(stalled)
    scene.until_answered(stalled)
    scene.expect_file(stalled, "/1.txt")
    scene.confirm("the next client got its response beside a stalled one, which got its own afterwards")


@check(
    "progress",
    proves="the server serves exactly as many clients at a time as its model allows",
    sends="half of a request on each of k connections, then a whole request on one more; then the other halves",
    expects=(
        "serial: the next client waits beside 1; pool of n: it waits beside n, and not beside "
        "n-1; other models: it never waits"
    ),
    why="This number defines a concurrency model. Gates and quiescence prove it here, without timing.",
    hint="Does the thread that accepts also read from connections, or does a worker? Draw it. Count the workers.",
    options={"limit": LIMIT_MEANINGS},
)
def progress(scene: Scene) -> None:
    scene.findings.concurrency = None
    play_progress(scene, "half")


@check(
    "slow-readers",
    proves="a client that does not read its response occupies only its own worker",
    sends="requests for 8 MB by clients that do not read, then a request by another client; then all clients read",
    expects="the same numbers as in `progress`, and 8 MB unchanged for each slow client",
    why="A send can block like a receive. In an event loop one blocking send stops every client.",
    hint=(
        "In an event loop, use non-blocking sockets. Keep the bytes that send() did not take; wait "
        "for EVENT_WRITE."
    ),
    options={"limit": LIMIT_MEANINGS},
)
def slow_readers(scene: Scene) -> None:
    play_progress(scene, "reader")


@check(
    "idle-clients",
    proves="idle keep-alive connections do not stop new clients",
    sends="one request on each of many connections, which then stay open and silent; then a request on a new one",
    expects="a response for the new client",
    why="Browsers keep connections open for minutes. Idle connections soon occupy all workers that wait for them.",
    hint=(
        "Free the worker between two requests, close the connection (Connection: close), or use a "
        "worker for each."
    ),
)
def idle_clients(scene: Scene) -> None:
    for number in range(IDLE_CLIENTS):
        client = scene.client(f"idle {number + 1}").ask(f"/{number}.txt")
        scene.until_answered(client)
        if not client.answered():
            scene.fail(
                f"beside {number} idle connections, the next client {client.outcome_text()}{scene.blocked_text()}",
                "answer this client: idle connections must not stop other clients",
                f"each idle connection occupies one of {number} workers",
            )
    scene.expect_answer(after=f"{IDLE_CLIENTS} connections became idle")
    scene.confirm(f"{IDLE_CLIENTS} idle connections stopped no new client")


def cause_of_wrong_file(client: SceneClient, what: str) -> str:
    """Return the likely cause if a client did not get its file while another one was served; "" if unknown."""
    if client.answered():
        return f"two connections share a buffer for the {what}"
    if client.received_bytes:
        return "only a part of the response was sent: send() may take fewer bytes than it is given; call it again"
    return ""


@check(
    "own-answers",
    proves="the server does not mix up requests that it reads at the same time",
    sends="half of A's request, all of B's, then the rest of A's; then two clients read large files in turns",
    expects="each client gets its own file",
    why="A shared variable for a buffer, a path or a descriptor has the value of the client that wrote it last.",
    hint="Keep all state of a connection in local variables, or in an object of that connection.",
)
def own_answers(scene: Scene) -> None:
    first = scene.client("A").send(b"GET /1.txt HT")
    scene.settle()
    second = scene.client("B").ask("/2.txt", Connection="close")
    scene.until_answered(second)
    first.path = "/1.txt"
    first.send(b"TP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    scene.until_answered(first)
    scene.until_answered(second)
    for client in (first, second):
        scene.expect_file(client, client.path, because=cause_of_wrong_file(client, "request"))
    # Two large responses at the same time: neither client reads before both have been asked for.
    first = scene.client("C", reads=False).ask("/large.bin", Connection="close")
    scene.settle()
    second = scene.client("D", reads=False).ask("/other.bin", Connection="close")
    scene.settle()
    first.read_on()
    second.read_on()
    for client in (first, second):
        scene.until_answered(client)
        scene.expect_file(client, client.path, because=cause_of_wrong_file(client, "response"))
    scene.confirm("four clients with overlapping requests and responses got their own files")


@check(
    "fifo",
    proves="the server serves waiting connections in the order of their arrival",
    sends="half requests for all workers; four more, in order; the rest of the last three, then of the first",
    expects="none of the last three gets a response before the first of the four",
    why="With a stack instead of a queue, the first client may wait without a limit while new clients are served.",
    hint="Append at one end and take from the other: queue.Queue or deque.popleft(), not list.pop().",
    options={"limit": LIMIT_MEANINGS},
)
def fifo(scene: Scene) -> None:
    # Occupy all workers.
    count = 1 if scene.options.get("limit") == "none" else scene.concurrency()
    stalled: list[SceneClient] = []
    hold_more(scene, stalled, count, "half")
    queued = []
    for number in range(4):
        queued.append(
            scene.client(f"waits {number + 1}").send_half(f"/{20 + number}.txt", Connection="close")
        )
        # The next client connects only when this one has arrived.
        scene.settle()
    # No worker is free, so no thread should have read the half request of the first of the four.
    is_read = not scene.is_unread(queued[0])
    # One worker becomes free and takes a waiting connection. The half request on this connection then occupies it.
    stalled[0].send_rest()
    scene.until(stalled[0].answered_or_over, "a worker becomes free")
    scene.settle()
    # Complete the last request first: a stack would have given this connection to the free worker.
    for client in reversed(queued[1:]):
        client.send_rest()
    early = [
        client for client in queued[1:] if scene.until(client.answered, f"{client.name} gets a response")
    ]
    if early and is_read:
        scene.fail(
            f"'{early[0].name}' got its response while 'waits 1' waited for nothing but its own rest: the server "
            f"had read its half request beside {count} other stalled clients",
            f"serve {count} clients at a time, and let 'waits 1' wait unread",
            f"there are more than {count} workers, or the accepting thread reads requests itself (see `progress`)",
        )
    if early:
        scene.fail(
            f"'{early[0].name}' got its response while 'waits 1', which came earlier, still waited",
            "serve connections in the order of their arrival",
            "waiting connections are kept in a stack, or in a set",
        )
    queued[0].send_rest()
    for client in queued:
        scene.until_answered(client)
        scene.expect_file(client, client.path, "the earlier clients got their responses")
    scene.confirm("the server served four waiting connections in the order of their arrival")


@check(
    "backlog",
    proves="clients can connect while the server is busy, and are served later",
    sends="half requests for all workers, then 12 whole requests; then the other halves",
    expects="all 12 connect immediately, and get their responses when a worker is free",
    why=(
        "With listen(0) or listen(1) the kernel drops connection attempts during a short "
        "burst; each of these clients loses a second or more."
    ),
    hint="listen(128) costs nothing.",
    options={"limit": LIMIT_MEANINGS},
)
def backlog(scene: Scene) -> None:
    count = 1 if scene.options.get("limit") == "none" else scene.concurrency()
    stalled: list[SceneClient] = []
    hold_more(scene, stalled, count, "half")
    waiting = [scene.client(f"waits {number + 1}") for number in range(12)]
    scene.pump(CONNECT_PUMP_S)  # enough for clients that find room in the backlog
    unconnected = [client for client in waiting if not client.connected]
    if unconnected and not scene.until(
        lambda: all(client.connected for client in waiting), "all have connected"
    ):
        unconnected = [client for client in waiting if not client.connected]
        scene.fail(
            f"{len(unconnected)} of 12 clients could not connect while the server was busy",
            "let the kernel queue them: a backlog of 16 or more",
            f"listen() has a small backlog; '{unconnected[0].name}' was the first client that did not fit",
        )
    for number, client in enumerate(waiting):
        client.ask(f"/{number}.txt", Connection="close")
    for client in stalled:
        client.send_rest()
    for client in stalled + waiting:
        scene.until_answered(client)
        scene.expect_file(client, client.path, "a worker became free")
    scene.confirm("12 clients connected while all workers were occupied, and got their responses afterwards")


def deadlock_cause(scene: Scene, stuck: SceneClient) -> str:
    """Return the likely cause if a client never gets its response although every client reads."""
    if len(scene.subject.tasks()) > 1:
        return (
            "two threads each hold a lock and wait for the other's (a deadlock), or a lock was never released"
        )
    if stuck.received_bytes:
        return (
            "one thread serves all clients, so this is no deadlock: it has sent a part of the response and "
            "forgotten the rest; keep the rest, and wait until the socket can be written"
        )
    return (
        "one thread serves all clients, so this is no deadlock: the thread blocks in a call for one client, or has "
        "stopped watching a connection"
    )


@check(
    "no-deadlock",
    proves="the server's threads never block each other permanently (deadlock)",
    sends="requests for 8 MB by clients that do not read, then for small and for missing files; then all read",
    expects="a response for every client in the end",
    why=(
        "A program that takes two locks in two orders works in nearly every run. This schedule "
        "stops threads between the locks."
    ),
    hint="Take locks in one order everywhere, and never hold one while you send or receive.",
)
def no_deadlock(scene: Scene) -> None:
    slow = [scene.client(f"slow {number + 1}", reads=False) for number in range(2)]
    for client in slow:
        client.ask("/large.bin", Connection="close")
        scene.settle()
    others = []
    for path in ("/missing.txt", "/1.txt", "/missing.txt", "/2.txt"):
        others.append(scene.client().ask(path, Connection="close"))
        scene.settle()
    for client in slow:
        client.read_on()
    clients = slow + others
    scene.until(lambda: all(client.answered_or_over() for client in clients), "all clients get responses")
    stuck = [client for client in clients if not client.answered()]
    if stuck:
        scene.expect_alive("slow clients connected")
        scene.fail(
            f"every client reads, and {len(stuck)} of {len(clients)} never get a response: {stuck[0].name} "
            f"{stuck[0].outcome_text()}{scene.blocked_text()}",
            "answer all of them",
            deadlock_cause(scene, stuck[0]),
        )
    for client in slow:
        scene.expect_file(client, client.path)
    scene.expect_answer(after="slow clients connected")
    scene.confirm("two slow clients and four others all got their responses")
