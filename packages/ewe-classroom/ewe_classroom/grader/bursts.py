"""Checks of bursts: many clients that connect at the same moment, and more clients than the server has room for.

The other schedules let one client come after the other. A queue can pass them and still lose a wake-up, because a
wake-up is lost when two connections come before the first woken worker runs:

    put(1), notify ─▶ a worker is awake, and does not have the lock yet
    put(2), no notify: "the queue was not empty, so someone is awake"
                   ─▶ one worker takes 1; the others sleep, although 2 waits

The grader makes this order happen: it stops the server (SIGSTOP), lets k clients connect and send, and lets the
server go on (SIGCONT). The server then finds all k connections in its backlog at once. All clients but the last
have sent half a request, so each occupies a worker. The last one must get its response in spite of this.

A queue is bounded if the server stops accepting while the queue is full. The grader sees this without help: a
connection that no process has accepted has no owner in /proc/net/tcp.

Read next: ../labs/pool/text.md, and queue_races.py, which runs the queue alone in many orders.
"""

from __future__ import annotations

from ewe_classroom.grader import processes
from ewe_classroom.grader.check import check
from ewe_classroom.grader.progress import IDLE_CLIENTS, LIMIT_MEANINGS
from ewe_classroom.grader.scene import Scene, SceneClient

BURST_COUNT = 8
GROUP_CLIENTS = 50  # clients that come together, for the bound of the queue
MAX_GROUPS = 8
MAX_ACCEPTED = 256  # connections that a bounded queue may hold; the starter's has room for 64
MIN_KERNEL_QUEUE = 40  # connections that wait in the kernel's queue when the server's own queue is full
PUMP_S = 0.01  # the most time of one turn of sending and receiving
MAX_PUMPS = 200  # turns until the clients of a burst are connected
MAX_GROUP_PUMPS = 20  # the same for a group: some of its clients find no room, and would never be connected


def connect_at_once(scene: Scene, names: list[str]) -> list[SceneClient]:
    """Return clients that connect while the server is stopped; all but the last have sent half a request.

    The server goes on before this function returns.
    """
    scene.note(do="signal", signal="SIGSTOP")
    with processes.stopped(scene.subject.running()):
        clients = [scene.hold_half(f"/{number}.txt", name) for number, name in enumerate(names[:-1])]
        clients.append(scene.client(names[-1]).ask("/39.txt", Connection="close"))
        # The kernel needs no more than a moment for the clients.
        for _ in range(MAX_PUMPS):
            if all(client.connected and not client.outbox for client in clients):
                break
            scene.pump(PUMP_S)
        scene.note(do="signal", signal="SIGCONT")
    return clients


@check(
    "bursts",
    proves="clients that connect at the same moment are all served: no wake-up is lost",
    sends=(
        f"{BURST_COUNT} bursts: the server is stopped, k clients connect, all but the last send half a request, "
        "and the server goes on (k: as many as the model serves at a time)"
    ),
    expects="the last client of each burst gets its response while the others are stalled; then they get theirs",
    why="Clients of a busy server do not come one by one. A queue that loses a wake-up works for years.",
    hint="Wake a worker for each item, not only when the queue was empty: a worker that was woken may not run yet.",
    options={"limit": LIMIT_MEANINGS},
)
def bursts(scene: Scene) -> None:
    # A server without a limit serves any number of clients at once, so any number of them will do.
    count = scene.concurrency() if scene.options.get("limit") == "workers" else IDLE_CLIENTS
    for number in range(1, BURST_COUNT + 1):
        clients = connect_at_once(
            scene,
            [*(f"burst {number}, half {each + 1}" for each in range(count - 1)), f"burst {number}, whole"],
        )
        whole = clients[-1]
        if not scene.until(whole.answered, f"{whole.name} gets a response"):
            # A server that has ended is another fault.
            scene.expect_alive(f"{count} clients connected at once")
            unread = sum(scene.is_unread(client) for client in clients[:-1])
            scene.fail(
                f"{count} clients connected at once, and {count - 1} of them sent half a request; the last one "
                f"sent a whole request and {whole.outcome_text()}; {unread} of the {count - 1} halves had not been "
                f"read{scene.blocked_text()}",
                f"answer it: the server serves {count} clients at a time, and only {count - 1} are stalled",
                cause(scene),
            )
        scene.expect_file(whole, "/39.txt")
        for client in clients[:-1]:
            client.send_rest()
        for client in clients[:-1]:
            scene.until_answered(client)
            scene.expect_file(client, client.path, f"{count} clients had connected at once")
        for client in clients:
            client.close()
        scene.clients.clear()
        scene.settle()
    scene.confirm(f"in {BURST_COUNT} bursts of {count} clients, each client got its response")


def cause(scene: Scene) -> str:
    """Return the likely cause if the last client of a burst is not served."""
    if scene.options.get("limit") == "workers":
        return (
            "a wake-up is lost: several connections came before the first woken worker ran, and not every put() "
            "called notify(); or a worker that found nothing to do has ended"
        )
    return (
        "several connections came before the server looked, and it accepted only one of them: after an event, "
        "accept until no connection is left, or let select() report the rest"
    )


@check(
    "bound",
    proves="the queue of connections is bounded: the server stops accepting when the queue is full",
    sends=f"half requests for all workers; then up to {GROUP_CLIENTS * MAX_GROUPS} more clients; all of them "
    "leave; a request",
    expects=f"at most {MAX_ACCEPTED} connections are accepted; the others wait in the kernel, or are refused",
    why="A queue without a bound grows until the memory or the descriptors end, and lets each client wait longer.",
    hint="put() waits while the queue is full. Then accept() is not called, and the kernel's queue fills up.",
    fresh=True,
)
def bound(scene: Scene) -> None:
    scene.expect_answer()
    stalled = scene.hold_halves(scene.concurrency())
    scene.settle()
    waiting: list[SceneClient] = []
    connection_count = 0
    for _ in range(MAX_GROUPS):
        waiting += connect_group(scene, len(waiting))
        scene.settle()
        connection_count = accepted_count(scene)
        if connection_count > MAX_ACCEPTED:
            more = connection_count - len(stalled)
            scene.fail(
                f"all workers were occupied, and the server accepted {more} of {len(waiting)} more "
                "connections",
                f"stop accepting when the queue is full, or refuse clients: at most {MAX_ACCEPTED} connections",
                "the queue is unbounded: put() never waits",
            )
        # This many connections wait in the kernel only if the server has stopped accepting: its queue is full.
        if len(waiting) + len(stalled) - connection_count >= MIN_KERNEL_QUEUE:
            break
    scene.note(
        do="note", text=f"{connection_count} connections accepted, beside {len(waiting)} clients that wait"
    )
    for client in (*waiting, *stalled):
        client.close()
    waiting_count = len(waiting)
    scene.clients.clear()
    scene.settle()
    scene.expect_answer(
        after="more clients waited than the queue has room for, and left",
        because="put() waited while the queue was full, and was not woken when a worker had taken an item",
    )
    scene.confirm(
        f"{waiting_count} clients waited, and the server had accepted {connection_count} connections: "
        "its queue is bounded"
    )


def connect_group(scene: Scene, earlier_count: int) -> list[SceneClient]:
    """Connect up to GROUP_CLIENTS clients; drop clients that find no room in the kernel's queue; return the others.

    earlier_count: the number of clients of earlier groups, for the names.
    """
    clients = [scene.client(f"waits {earlier_count + each + 1}") for each in range(GROUP_CLIENTS)]
    for _ in range(MAX_GROUP_PUMPS):
        if all(client.connected or client.over() for client in clients):
            break
        scene.pump(PUMP_S)
    connected_clients = [client for client in clients if client.connected]
    for client in clients:
        if not client.connected:
            client.close()
            scene.clients.remove(client)
    return connected_clients


def accepted_count(scene: Scene) -> int:
    """Return how many connections the server has accepted, and not closed. The others have the inode 0."""
    port = scene.subject.port
    return sum(
        entry.port == port and entry.state != "LISTEN" and entry.inode != "0"
        for entry in processes.tcp_sockets().values()
    )
