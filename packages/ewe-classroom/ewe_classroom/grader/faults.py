"""Checks of faults: clients that disconnect or send bytes that are no request. The server must survive them.

An exception in one conversation may end more than this conversation: its worker, the loop that accepts, or the
process. Each check causes one fault, and then needs a client that is served:

    fault ─▶ expect_alive(): a process of the server still listens ─▶ more requests than the server has workers
                                                                          └─▶ one without an answer: a worker ended

    early-close, reset-in-response     the client disconnects (recv() returns b"", send() raises EPIPE, ECONNRESET)
    nonsense, oversized                bytes that are no request, and requests without an end
    descriptors-used-up, pause         accept() fails with EMFILE: the server waits, and does not try at once again
    silence                            a client that sends nothing, as one whose network has failed
    child-killed                       a child process ends; only its client may notice

Possible failures: the fault has no effect, because the server has not reached the state in which it would hurt.
settle() therefore comes before each reset: the server then waits in the call that the reset shall disturb.

Read next: hygiene.py, for faults that show only after many clients.
"""

from __future__ import annotations

from ewe_classroom.grader import processes
from ewe_classroom.grader.check import check
from ewe_classroom.grader.hygiene import MAX_BUSY_SHARE, watch_processor_use
from ewe_classroom.grader.scene import STAYS_OPEN, Scene, SceneClient

DESCRIPTOR_LIMIT = 64  # descriptors: enough for a server and some clients
LEAVE_PAUSE_S = 0.002
LONG_TARGET_BYTES = 80 << 10
MAX_HEAD_BYTES = 8 << 20  # of header fields, which no server should read
MORE_CLIENTS = 32  # than descriptors
# A server without a free descriptor may pause before it accepts again; lighttpd pauses for one second.
PAUSE_S = 2.5
# wake-ups a second; a pause of 50 ms gives 20, and 150 with the threads of Go's runtime
MAX_WAKE_UPS_PER_S = 1000.0
# A server must have disconnected a silent client by then; that of the labs does it after 10 s
SILENCE_S = 15.0


@check(
    "early-close",
    proves="a client that disconnects after any byte of its request does no harm",
    sends="the first 0, 1, 2, … bytes of a request, then FIN or a reset; afterwards a whole request",
    expects="the server survives, and answers",
    why="Browsers and scanners disconnect at any moment. recv() then returns b'', or raises ConnectionResetError.",
    hint="Both are normal events: end this conversation, close its connection, and go on.",
)
def early_close(scene: Scene) -> None:
    request = b"GET /hello.txt HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for length in range(0, len(request) + 1, 3):
        for leave in ("close", "reset"):
            client = scene.client()
            scene.until(lambda client=client: client.connected or client.over(), "connected")  # type: ignore[misc]
            client.send(request[:length])
            scene.pump(LEAVE_PAUSE_S)  # a moment in which the server may read the bytes
            if leave == "close":
                client.close()
            else:
                client.reset()
    scene.settle()
    scene.expect_alive("clients disconnected in the middle of their requests")
    for _ in range(scene.workers + 1):  # more clients than workers: a worker that has ended would be missing
        scene.expect_answer(
            after="clients disconnected in the middle of their requests",
            because="a worker has ended with an exception, or waits for the rest of a request that will not come",
        )
    scene.confirm("clients disconnected after every third byte, by FIN and by reset, and the server went on")


@check(
    "reset-in-response",
    proves="a client that aborts a download does not end the server or a worker (SIGPIPE, EPIPE, ECONNRESET)",
    sends="more requests for 8 MB than workers; each client resets before it reads, every second one after FIN",
    expects="the server survives, and answers",
    why="The first write after a reset fails. In C, it also raises SIGPIPE, which ends the process by default.",
    hint=(
        "Ignore SIGPIPE (in C: signal(SIGPIPE, SIG_IGN)). Treat EPIPE and ECONNRESET as the end of "
        "the connection."
    ),
)
def reset_in_response(scene: Scene) -> None:
    for number in range(scene.workers + 1):
        client = scene.client(f"aborts {number + 1}", reads=False).ask("/large.bin", Connection="close")
        scene.settle()
        if number % 2:
            # After FIN, a reset makes the blocked send() fail with EPIPE and raises SIGPIPE. Without FIN the
            # blocked send() fails with ECONNRESET, and only the next send() raises SIGPIPE.
            client.half_close()
            scene.settle()
        client.reset()
        scene.settle()
        scene.expect_alive("a client reset its connection in the middle of a response")
    # The last settle() has ended: a server that still runs goes on although no client waits for it.
    goes_on = "running" in scene.threads_by_call() and not scene.never_sleeps
    for _ in range(2):
        scene.expect_answer(
            after="clients aborted downloads",
            because="the server goes on running after the reset: a loop sends the rest of the response again and "
            "again, although send() fails each time"
            if goes_on
            else "each aborted download has ended a worker: the error of send() is not handled",
        )
    scene.confirm(f"{scene.workers + 1} clients reset their downloads, and the server went on")


@check(
    "nonsense",
    proves="the server refuses bytes that are not a request, and goes on",
    sends="random bytes, a request line of one word, NUL bytes, TLS's first bytes; each followed by FIN",
    expects="status 400 or a close, and then a response to the next request",
    why=(
        "Every public server gets such bytes within minutes. Code that splits a line into three "
        "words fails on them."
    ),
    hint="Check the request line before you use its parts; answer 400 and close.",
)
def nonsense(scene: Scene) -> None:
    for text in (
        b"\xff\xfe\x00\x80nonsense\r\n\r\n",  # no UTF-8
        b"GET\r\n\r\n",  # one word in place of three
        b"\x00\x00\x00\x00\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # the beginning of a ClientHello of TLS
        b"\r\n\r\n\r\n",  # no request line at all
    ):
        client = scene.client().send(text).half_close()
        scene.until(client.over, f"{client.name} sees the end of the connection")
        scene.expect_alive(f"a client sent the bytes {text[:16]!r}")
        if not client.over():
            scene.fail_once(
                STAYS_OPEN,
                f"a client sent the bytes {text[:16]!r} and FIN, and the connection stays open"
                f"{scene.blocked_text()}",
                "answer 400, or close",
                "the worker waits for more bytes, or has ended without closing the connection",
            )
        if any(answer.status < 400 for answer in client.answers):
            scene.fail(
                f"the bytes {text[:16]!r} got status {client.answers[0].status}", "answer 400, or close"
            )
    for _ in range(scene.workers + 1):
        scene.expect_answer(
            after="clients sent bytes that are not a request", because="a worker has ended with an exception"
        )
    scene.confirm("the server refused five inputs that are not requests")


@check(
    "oversized",
    proves="the server refuses an endless request before it fills the memory",
    sends="a request line of 80 KB; then header fields without an end, up to 8 MB",
    expects="status 400, 414 or 431, or a close, before 8 MB; then a response to the next request",
    why="Without a limit on the buffer, one client can take all the memory of the machine.",
    hint="Stop reading a head after 16 KB or 64 KB: answer 431 and close.",
)
def oversized(scene: Scene) -> None:
    client = scene.client("long target").send(
        b"GET /" + b"a" * LONG_TARGET_BYTES + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    scene.until(client.answered_or_over, "the long target gets a response")
    scene.expect_alive("a request had a target of 80 KB")
    if not client.answered_or_over():
        scene.fail(
            f"a target of 80 KB: the client {client.outcome_text()}{scene.blocked_text()}",
            "answer 414, 400 or 404, or close",
            "the worker waits for bytes that will not come",
        )
    if client.answered() and client.answers[0].status < 400:
        scene.fail(
            f"a target of 80 KB that names no file got status {client.answers[0].status}", "answer 414 or 404"
        )
    client.close()
    endless = scene.client("endless head").send(b"GET /hello.txt HTTP/1.1\r\nHost: localhost\r\n")
    sent = 0
    filler = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 1000) for number in range(256))
    while sent < MAX_HEAD_BYTES and not endless.answered_or_over():
        endless.outbox += filler  # not by send(), which would record 8 MB
        sent += len(filler)
        endless.flush()
        scene.until(
            lambda: not endless.outbox or endless.answered_or_over(),
            "the server receives the fields",
            sure=False,
        )
        if endless.outbox:
            break
    endless.note("send", bytes=f"[{sent} bytes of header fields]")
    scene.until(endless.answered_or_over, "the endless head gets a response")
    scene.expect_alive("a client sent an endless head")
    if not endless.answered_or_over() and not endless.outbox:
        scene.fail(
            f"the server read {sent >> 20} MB of header fields and still waits for the end of the head",
            "refuse the request after about 64 KB: answer 431, and close",
            "the loop that collects the head has no limit",
        )
    endless.reset()
    scene.expect_answer(after="clients sent endless requests")
    scene.confirm("the server refused a target of 80 KB and an endless head")


def use_up_descriptors(scene: Scene) -> list[SceneClient]:
    """Stall more clients than the server may open descriptors, each after half a request; return the clients.

    Fail if the server ends.
    """
    stalled = scene.hold_halves(DESCRIPTOR_LIMIT + MORE_CLIENTS)
    scene.settle()
    scene.expect_alive(f"{len(stalled)} clients connected, with a limit of {DESCRIPTOR_LIMIT} descriptors")
    return stalled


@check(
    "descriptors-used-up",
    proves="a server without a free descriptor survives, and serves again when clients have disconnected",
    sends=f"half requests on {DESCRIPTOR_LIMIT + MORE_CLIENTS} connections, to a server that may open "
    f"{DESCRIPTOR_LIMIT} files; all close; a request",
    expects="the server survives, and answers the last request",
    why="accept() then fails with EMFILE. A server that ends there turns a busy minute into an outage.",
    hint="Catch OSError around accept(). Wait a moment, or until a connection is closed, and accept again.",
    fresh=True,
    descriptors=DESCRIPTOR_LIMIT,
)
def descriptors_used_up(scene: Scene) -> None:
    scene.expect_answer()
    scene.settle()
    stalled = use_up_descriptors(scene)
    max_open = max((len(processes.descriptors(pid)) for pid in scene.subject.running()), default=0)
    for client in stalled:
        client.close()
    scene.settle()
    # A server that closes no connection has no descriptor for the next client: that fault is judged elsewhere
    scene.rest_on(STAYS_OPEN)
    scene.expect_answer(
        after="the server had no free descriptors",
        because="the exception of accept() or open() has ended the accepting loop or a worker",
        quiescent_s=PAUSE_S,
    )
    scene.confirm(
        f"{len(stalled)} clients connected, a process had {max_open} of {DESCRIPTOR_LIMIT} descriptors open, and "
        "the server served afterwards"
    )


@check(
    "pause",
    proves="a server without a free descriptor pauses: it does not try to accept again at once",
    sends=f"half requests on {DESCRIPTOR_LIMIT + MORE_CLIENTS} connections, to a server that may open "
    f"{DESCRIPTOR_LIMIT} files; then nothing",
    expects=f"under {MAX_BUSY_SHARE:.0%} of a processor and under {MAX_WAKE_UPS_PER_S:.0f} wake-ups a second, "
    "while clients wait",
    why="The connection stays in the kernel's queue, so accept() fails again at once: a loop without a pause takes"
    " a whole processor, just when the server has the most clients.",
    hint="After OSError from accept(), sleep for 50 ms. An event loop stops watching its listening socket.",
    fresh=True,
    descriptors=DESCRIPTOR_LIMIT,
)
def pause(scene: Scene) -> None:
    scene.rest_on("descriptors-used-up")
    scene.expect_answer()
    scene.settle()
    use_up_descriptors(scene)
    use = watch_processor_use(scene)
    if use.is_busy or use.wake_ups_per_s > MAX_WAKE_UPS_PER_S:
        scene.fail(
            f"no descriptor was free and clients waited: the server wanted {use.wanted_share:.0%} of a processor "
            f"and woke up {use.wake_ups_per_s:.0f} times a second",
            "wait a moment before the next accept()",
            "accept() fails with EMFILE, and the loop calls it again at once: the waiting connection makes "
            "select() and accept() return immediately",
        )
    scene.confirm(f"without a free descriptor, the server woke up {use.wake_ups_per_s:.0f} times a second")


@check(
    "silence",
    proves="the server disconnects clients that are silent",
    sends="nothing on one connection, half a request on another one; then a request",
    expects=f"the server closes the first two within {SILENCE_S:.0f} s, and answers the request",
    why="A client that has lost its network says nothing, not even FIN. Without a time limit, such connections stay"
    " open until the descriptors are used up.",
    hint="Note the time of a client's last byte. Give select() a time limit while there are clients, and drop the"
    " silent ones. settimeout() has no effect on non-blocking sockets.",
    fresh=True,
)
def silence(scene: Scene) -> None:
    scene.expect_answer()
    quiet = [scene.client("sends nothing"), scene.hold_half("/1.txt", "half a request")]
    scene.until_due(
        lambda: all(client.over() for client in quiet), "the silent clients are disconnected", SILENCE_S
    )
    left = [client for client in quiet if not client.over()]
    if left:
        scene.fail(
            f"after {SILENCE_S:.0f} s without a byte, the connection of '{left[0].name}' is still open"
            f"{scene.blocked_text()}",
            f"disconnect a client that has been silent for some seconds (at most {SILENCE_S:.0f})",
            "no code looks at the time of a client's last byte, or the wait for events has no time limit",
        )
    scene.expect_answer(after="two clients were silent, and were disconnected")
    scene.confirm("the server disconnected a client that sent nothing, and one that sent half a request")


@check(
    "child-killed",
    proves="the death of one child affects only the client of this child",
    sends="half requests on three connections; the grader kills the second child; then come the other halves",
    expects="the first, the third and a new client get responses; the connection of the second ends",
    why="Processes give isolation: a crash in one conversation leaves the other conversations alone.",
    hint="The parent must reap the child (SIGCHLD), and must not end because a child has died.",
    fresh=True,
)
def child_killed(scene: Scene) -> None:
    scene.expect_answer()
    stalled = []
    children_of_client: list[list[int]] = []  # for each client, the children that have its connection open
    for number in range(3):
        stalled.append(scene.hold_half(f"/{number}.txt", f"stalled {number + 1}"))
        scene.settle()
        entries = processes.tcp_sockets()
        inodes = {inode for inode, entry in entries.items() if entry.peer_port == stalled[-1].port}
        children_of_client.append(
            [
                pid
                for pid in scene.subject.running()
                if pid != scene.subject.pid and inodes.intersection(processes.socket_inodes(pid))
            ]
        )
    if not children_of_client[1]:
        scene.fail(
            "no child process has the second client's connection open",
            "serve each connection in a child process",
            "the parent serves connections itself",
        )
    processes.kill(children_of_client[1][-1])
    scene.note(do="kill", lane=stalled[1].name, signal="SIGKILL", whom="its child")
    scene.until(stalled[1].over, "the client of the killed child sees the end of the connection")
    scene.expect_alive("the death of one child")
    for client in (stalled[0], stalled[2]):
        scene.release(client)
        scene.until_answered(client)
        scene.expect_file(client, client.path, "the death of another child")
    if not stalled[1].over():
        scene.fail(
            "the child of a client was killed, and the connection stays open",
            "let the connection end: no process should have it open any more",
            "the parent or another child keeps a copy of the connection",
        )
    scene.expect_answer(after="the death of one child")
    scene.confirm("the death of a child affected only its client")
