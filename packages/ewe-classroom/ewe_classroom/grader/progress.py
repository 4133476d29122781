"""Checks of progress: who is served while others are held? The heart of every lab about concurrency.

Each model has an exact number of clients that may be held before the next one must wait:

    serial       0      one held client stops all others
    pool of n    n      n held clients stop all others, n - 1 do not
    fork, thread, event loop    all: no number of held clients (below the limits) stops another

A schedule holds k clients at their gates and asks whether one more is answered. Either it is answered, or the
server is calm without an answer: both are facts, so the number is exact.
"""

from __future__ import annotations

from ewe_classroom.grader.check import check
from ewe_classroom.grader.scene import Client, Scene

MANY = 24
KINDS = {"half": "has sent half a request", "reader": "does not read its response"}
LIMIT = "none: one held client stops the others; workers: exactly that many do; all: no number does"


def numbers(scene: Scene, kind: str) -> tuple[list[int], int | None]:
    """Return how many held clients must not stop another one, and how many must (None: no number)."""
    limit = scene.options.get("limit", "all")
    if limit == "none":
        return [0], 1
    if limit == "workers":
        return sorted({0, 1, scene.workers - 1} - {scene.workers}), scene.workers
    return [1, scene.workers, MANY if kind == "half" else 2 * scene.workers], None


def hold_more(scene: Scene, held: list[Client], count: int, kind: str) -> None:
    """Hold clients until there are `count`; each is known to hold its worker before the next comes."""
    while len(held) < count:
        number = len(held)
        client = scene.hold(kind, f"/{number}.txt", f"held {number + 1}")
        held.append(client)
        if number < scene.workers:
            # For many clients the order does not matter, and the wait for the last one is enough.
            scene.settle()
    scene.settle()


def play_progress(scene: Scene, kind: str) -> None:
    """Hold ever more clients of a kind; check the next one's progress; then open all gates."""
    served, stopped = numbers(scene, kind)
    held: list[Client] = []
    for count in served:
        hold_more(scene, held, count, kind)
        fast = scene.client(f"fast, beside {count}").ask("/39.txt", Connection="close")
        if not scene.until(fast.answered, f"{fast.name} is answered"):
            scene.expect_alive(held_clients(count, kind))
            scene.fail(
                f"beside {held_clients(count, kind)}, the next client {fast.story()}{scene.blocked()}",
                f"answer it: {wanted(scene)}",
                cause(scene, count, kind),
            )
        scene.expect_file(fast, "/39.txt")
        fast.close()
    waiting = None
    if stopped is not None:
        hold_more(scene, held, stopped, kind)
        waiting = scene.client(f"waits, beside {stopped}").ask("/39.txt", Connection="close")
        if scene.until(waiting.answered_or_over, f"{waiting.name} is answered"):
            scene.fail(
                f"beside {held_clients(stopped, kind)}, the next client {waiting.story()}",
                f"let it wait, unanswered and connected, until a worker is free: {wanted(scene)}",
                "there are more workers than asked for, or clients are read by other threads than the workers",
            )
    release_all(scene, held, waiting, kind)
    scene.confirm(
        f"beside {', '.join(map(str, served))} held clients the next one was answered"
        + (f"; beside {stopped} it waited until a gate was opened" if stopped is not None else "")
    )


def held_clients(count: int, kind: str) -> str:
    """Return how many clients are held, and how: "3 held clients (each has sent half a request)"."""
    if count == 1:
        return f"one held client (it {KINDS[kind]})"
    return f"{count} held clients (each {KINDS[kind]})" if count else "no held client"


def release_all(scene: Scene, held: list[Client], waiting: Client | None, kind: str) -> None:
    """Open the gates; every client must get its own file."""
    if waiting is not None:
        first, *held = held
        scene.release(first)
        for client in (first, waiting):
            scene.until(client.answered_or_over, f"{client.name} is answered")
        if not waiting.answered():
            scene.fail(
                f"a gate was opened, and the client that waited {waiting.story()}{scene.blocked()}",
                "serve the waiting client as soon as a worker is free",
                "a wake-up is lost, a worker has ended, or the worker keeps the first client's idle connection",
            )
        scene.expect_file(waiting, "/39.txt")
        held = [first, *held]
    for client in held:
        if not client.answers:
            scene.release(client)
        scene.until(client.answered_or_over, f"{client.name} is answered")
        scene.expect_file(client, client.path, f"its gate was opened ({KINDS[kind]})")
        client.close()


def wanted(scene: Scene) -> str:
    limit = scene.options.get("limit", "all")
    if limit == "none":
        return "a serial server serves one connection at a time"
    if limit == "workers":
        return f"a pool of {scene.workers} serves exactly {scene.workers} at a time"
    return "under this model a held client stops no other"


def cause(scene: Scene, count: int, kind: str) -> str:
    """Return the likely cause of a client that is not served."""
    limit = scene.options.get("limit", "all")
    if limit == "workers" and count == 1:
        return (
            "only one worker takes connections, a worker keeps the queue's lock while it serves, "
            "or the accepting thread reads requests itself"
        )
    if limit == "workers":
        return (
            f"only {count} workers or fewer take connections, or the accepting thread reads requests itself"
        )
    if count == 1:
        return "the loop that accepts also serves, or a lock is held while the server waits for a client"
    if count <= scene.workers:
        return "a fixed number of workers, or a backlog that is not accepted"
    return "a limit on threads, processes or connections that is too low"


@check(
    "progress",
    proves="exactly as many clients are served at a time as the model says",
    sends="half of a request on each of k connections, then a whole request on one more; then the other halves",
    expects=(
        "serial: the next waits beside 1; pool of n: it waits beside n and not beside "
        "n-1; others: it never waits"
    ),
    why="This number is what a concurrency model is. It is proved here by gates and calm, not by timing.",
    hint="Draw who reads from a connection: the thread that accepts, or a worker? Count the workers.",
    options={"limit": LIMIT},
)
def progress(scene: Scene) -> None:
    play_progress(scene, "half")


@check(
    "slow-readers",
    proves="clients that do not read their response hold only their own worker",
    sends="requests for 8 MB on connections that are not read, then a request on one more; then everything is read",
    expects="the same numbers as in `progress`, and 8 MB unchanged for each slow client",
    why="A send blocks as a receive does. In an event loop one blocking send stops every client.",
    hint="In an event loop: non-blocking sockets; keep what send() did not take, and wait for EVENT_WRITE.",
    options={"limit": LIMIT},
)
def slow_readers(scene: Scene) -> None:
    play_progress(scene, "reader")


@check(
    "idle-clients",
    proves="idle keep-alive connections do not stop new clients",
    sends="one request on each of many connections that then stay open and silent, then a request on a new one",
    expects="the new client is answered",
    why="Browsers keep connections open for minutes. A worker that waits on each of them is soon the last one.",
    hint="Give a connection back between two requests, close it (Connection: close), or have a worker for each.",
)
def idle_clients(scene: Scene) -> None:
    idle: list[Client] = []
    for number in range(MANY):
        client = scene.client(f"idle {number + 1}").ask(f"/{number}.txt")
        scene.until(client.answered_or_over, f"{client.name} is answered")
        if not client.answered():
            scene.fail(
                f"beside {number} idle connections, the next client {client.story()}{scene.blocked()}",
                "answer it: an idle connection stops no other client",
                f"each idle connection holds one of {number} workers",
            )
        idle.append(client)
    scene.expect_answer(after=f"{MANY} connections were left idle")
    scene.confirm(f"{MANY} idle connections stopped nobody")


@check(
    "own-answers",
    proves="requests that are read at the same time are not mixed",
    sends="half of A's request, all of B's, then the rest of A's; then two large files, read in turns",
    expects="each client gets its own file",
    why="A buffer, a path or a descriptor in a shared variable belongs to the client that wrote it last.",
    hint="Keep all state of a connection in local variables or in an object of that connection.",
)
def own_answers(scene: Scene) -> None:
    first = scene.client("A").send(b"GET /1.txt HT")
    scene.settle()
    second = scene.client("B").ask("/2.txt", Connection="close")
    scene.until(second.answered_or_over, "B is answered")
    first.path = "/1.txt"
    first.send(b"TP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    scene.until(first.answered_or_over, "A is answered")
    scene.until(second.answered_or_over, "B is answered")
    for client in (first, second):
        scene.expect_file(client, client.path, because="two connections share a buffer for the request")
    first = scene.client("C", reads=False).ask("/large.bin", Connection="close")
    scene.settle()
    second = scene.client("D", reads=False).ask("/other.bin", Connection="close")
    scene.settle()
    first.read_on()
    second.read_on()
    for client in (first, second):
        scene.until(client.answered_or_over, f"{client.name} is answered")
        scene.expect_file(client, client.path, because="two connections share a buffer for the response")
    scene.confirm("four clients whose requests and responses overlapped got their own files")


@check(
    "fifo",
    proves="waiting connections are served in the order in which they came",
    sends="half requests that hold all workers; four more, in order; the rest of the last three; then of the first",
    expects="none of the last three is answered before the first of the four",
    why="A stack instead of a queue lets the first client wait without end while new ones are served.",
    hint="Append at one end and take from the other: queue.Queue or deque.popleft(), not list.pop().",
    options={"limit": LIMIT},
)
def fifo(scene: Scene) -> None:
    count = 1 if scene.options.get("limit") == "none" else scene.workers
    held: list[Client] = []
    hold_more(scene, held, count, "half")
    queued = []
    for number in range(4):
        queued.append(
            scene.client(f"waits {number + 1}").send_half(f"/{20 + number}.txt", Connection="close")
        )
        scene.settle()
    # One worker becomes free, and takes a waiting connection: it is then held by the half request that it took.
    held[0].send_rest()
    scene.until(held[0].answered_or_over, "a worker becomes free")
    scene.settle()
    for client in reversed(queued[1:]):
        client.send_rest()
    early = [client for client in queued[1:] if scene.until(client.answered, f"{client.name} is answered")]
    if early:
        scene.fail(
            f"'{early[0].name}' was answered while 'waits 1', which came before it, still waited",
            "serve connections in the order in which they came",
            "waiting connections are kept in a stack, or in a set",
        )
    queued[0].send_rest()
    for client in queued:
        scene.until(client.answered_or_over, f"{client.name} is answered")
        scene.expect_file(client, client.path, "the clients before it were answered")
    scene.confirm("four waiting connections were served in the order in which they came")


@check(
    "backlog",
    proves="clients that come while the server is busy can connect and are served later",
    sends="half requests that hold all workers, then 12 whole requests; then the other halves",
    expects="all 12 connect at once and are answered once a worker is free",
    why=(
        "With listen(0) or listen(1) the kernel drops connections during any short "
        "burst; each loses a second or more."
    ),
    hint="listen(128) costs nothing.",
    options={"limit": LIMIT},
)
def backlog(scene: Scene) -> None:
    count = 1 if scene.options.get("limit") == "none" else scene.workers
    held: list[Client] = []
    hold_more(scene, held, count, "half")
    waiting = [scene.client(f"waits {number + 1}") for number in range(12)]
    scene.pump(0.05)
    late = [client for client in waiting if not client.connected]
    if late and not scene.until(lambda: all(client.connected for client in waiting), "all have connected"):
        late = [client for client in waiting if not client.connected]
        scene.fail(
            f"{len(late)} of 12 clients could not connect while the server was busy",
            "let the kernel queue them: a backlog of 16 or more",
            f"listen() has a small backlog; '{late[0].name}' was the first without a place",
        )
    for number, client in enumerate(waiting):
        client.ask(f"/{number}.txt", Connection="close")
    for client in held:
        client.send_rest()
    for client in held + waiting:
        scene.until(client.answered_or_over, f"{client.name} is answered")
        scene.expect_file(client, client.path, "a worker became free")
    scene.confirm("12 clients connected while all workers were held, and were answered afterwards")


@check(
    "no-deadlock",
    proves="no order of requests makes the server's threads wait for each other",
    sends="requests for 8 MB that are not read, then requests for small and for missing files; then all is read",
    expects="every client is answered in the end",
    why=(
        "Two locks that are taken in two orders work in nearly every run. This schedule "
        "stops threads between them."
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
    scene.until(lambda: all(client.answered_or_over() for client in clients), "all are answered")
    stuck = [client for client in clients if not client.answered()]
    if stuck:
        scene.expect_alive("slow clients")
        scene.fail(
            f"every client reads, and {len(stuck)} of {len(clients)} are never answered: {stuck[0].name} "
            f"{stuck[0].story()}{scene.blocked()}",
            "answer all of them",
            "two threads hold a lock each and wait for the other's (a deadlock), or a lock was never released",
        )
    for client in slow:
        scene.expect_file(client, client.path)
    scene.expect_answer(after="the slow clients")
    scene.confirm("two slow clients and four others were all answered")
