"""Checks of faults: clients that break off, lie, shout or crash. The server must live on and serve the others."""

from __future__ import annotations

import os
import signal

from ewe_classroom.grader import processes
from ewe_classroom.grader.check import check
from ewe_classroom.grader.scene import Client, Scene

FEW = 64  # descriptors: enough for a server and some clients
PAUSE_S = (
    2.5  # without accepting, which a server may make when it has no descriptor left; lighttpd's is a second
)


@check(
    "early-close",
    proves="a client that leaves after any byte of its request does no harm",
    sends="the first 0, 1, 2, … bytes of a request, then FIN or a reset; afterwards a whole request",
    expects="the server lives, and answers",
    why="Browsers and scanners leave at any moment. recv() then returns b'', or raises ConnectionResetError.",
    hint="Both belong to normal life: end this conversation, close its connection, and go on.",
)
def early_close(scene: Scene) -> None:
    request = b"GET /hello.txt HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for at in range(0, len(request) + 1, 3):
        for leave in ("close", "reset"):
            client = scene.client()
            scene.until(lambda client=client: client.connected or client.over(), "connected")  # type: ignore[misc]
            client.send(request[:at])
            scene.pump(0.002)
            if leave == "close":
                client.close()
            else:
                client.reset()
    scene.settle()
    scene.expect_alive("clients that left in the middle of their requests")
    for _ in range(scene.workers + 1):
        scene.expect_answer(
            after="clients that left in the middle of their requests",
            because="a worker has ended with an exception, or waits for the rest of a request that will not come",
        )
    scene.confirm("clients left after every third byte, by FIN and by reset, and the server went on")


@check(
    "reset-in-response",
    proves="a client that breaks off a download does not end the server or a worker (SIGPIPE, EPIPE, ECONNRESET)",
    sends="requests for 8 MB, more than there are workers; each is reset before it is read, every second after FIN",
    expects="the server lives, and answers",
    why="The first write after a reset fails. In C, it also raises SIGPIPE, which ends the process by default.",
    hint="Ignore SIGPIPE (in C: signal(SIGPIPE, SIG_IGN)) and treat EPIPE and ECONNRESET as the end of a client.",
)
def reset_in_response(scene: Scene) -> None:
    for number in range(scene.workers + 1):
        client = scene.client(f"breaks off {number + 1}", reads=False).ask("/large.bin", Connection="close")
        scene.settle()
        if number % 2:
            # A reset after FIN makes the blocked send() itself fail with EPIPE, and raise SIGPIPE. Without FIN it
            # fails with ECONNRESET, and only a second send() raises the signal.
            client.half_close()
            scene.settle()
        client.reset()
        scene.settle()
        scene.expect_alive("a client that reset its connection in the middle of a response")
    for _ in range(2):
        scene.expect_answer(
            after="downloads that were broken off",
            because="each broken download has ended a worker: the exception of send() is not caught",
        )
    scene.confirm(f"{scene.workers + 1} downloads were reset, and the server went on")


@check(
    "nonsense",
    proves="bytes that are no request are refused, and the server goes on",
    sends="random bytes, a request line of one word, NUL bytes, TLS's first bytes; each followed by FIN",
    expects="status 400 or a close, and the next request is answered",
    why="Every public server gets such bytes within minutes. Splitting a line into three words fails on them.",
    hint="Check the request line before you use its parts; answer 400 and close.",
)
def nonsense(scene: Scene) -> None:
    for text in (
        b"\xff\xfe\x00\x80nonsense\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x00\x00\x00\x00\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"\r\n\r\n\r\n",
    ):
        client = scene.client().send(text).half_close()
        scene.until(client.over, f"{client.name} sees an end")
        scene.expect_alive(f"the bytes {text[:16]!r}")
        if not client.over():
            scene.fail(
                f"the bytes {text[:16]!r} and FIN: the connection stays open{scene.blocked()}",
                "answer 400, or close",
                "the worker waits for more, or has ended without closing the connection",
            )
        if any(answer.status < 400 for answer in client.answers):
            scene.fail(
                f"the bytes {text[:16]!r} got status {client.answers[0].status}", "answer 400, or close"
            )
    for _ in range(scene.workers + 1):
        scene.expect_answer(after="bytes that are no request", because="a worker has ended with an exception")
    scene.confirm("five kinds of nonsense were refused")


@check(
    "oversized",
    proves="a request without an end is refused before it fills the memory",
    sends="a request line of 80 KB; then header fields without an end, up to 8 MB",
    expects="status 400, 414 or 431, or a close, before 8 MB; then the next request is answered",
    why="A buffer without a limit lets one client take all the memory of the machine.",
    hint="Stop reading a head after 16 KB or 64 KB: answer 431 and close.",
)
def oversized(scene: Scene) -> None:
    client = scene.client("long target").send(
        b"GET /" + b"a" * 81920 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    scene.until(client.answered_or_over, "the long target is answered")
    scene.expect_alive("a target of 80 KB")
    if not client.answered_or_over():
        scene.fail(
            f"a target of 80 KB: the client {client.story()}{scene.blocked()}",
            "answer 414, 400 or 404, or close",
            "the worker waits for something that is not there",
        )
    if client.answered() and client.answers[0].status < 400:
        scene.fail(
            f"a target of 80 KB that names no file got status {client.answers[0].status}", "answer 414 or 404"
        )
    client.close()
    endless = scene.client("endless head").send(b"GET /hello.txt HTTP/1.1\r\nHost: localhost\r\n")
    sent = 0
    filler = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 1000) for number in range(256))
    while sent < 8 << 20 and not endless.answered_or_over():
        endless.outbox += filler
        sent += len(filler)
        endless.flush()
        scene.until(
            lambda: not endless.outbox or endless.answered_or_over(), "the fields are taken", sure=False
        )
        if endless.outbox:
            break
    endless.note("send", bytes=f"[{sent} bytes of header fields]")
    scene.until(endless.answered_or_over, "the endless head is answered")
    scene.expect_alive("a head without an end")
    if not endless.answered_or_over() and not endless.outbox:
        scene.fail(
            f"the server read {sent >> 20} MB of header fields and still waits for the end of the head",
            "refuse the request after 64 KB or so: 431, and close",
            "the loop that collects the head has no limit",
        )
    endless.reset()
    scene.expect_answer(after="requests without an end")
    scene.confirm("a target of 80 KB and a head without an end were refused")


@check(
    "descriptors-used-up",
    proves="a server that has no descriptor left survives, and serves again when clients have gone",
    sends=f"half requests on {FEW + 32} connections, to a server that may open {FEW} files; all close; a request",
    expects="the server lives, and answers the last request",
    why="accept() then fails with EMFILE. A server that ends there turns a busy minute into an outage.",
    hint="Catch OSError around accept(); wait a little, or until a connection is closed, and accept again.",
    fresh=True,
    descriptors=FEW,
)
def descriptors_used_up(scene: Scene) -> None:
    scene.expect_answer()
    scene.settle()
    held: list[Client] = []
    for number in range(FEW + 32):
        held.append(scene.hold("half", f"/{number % 40}.txt", f"held {number + 1}"))
    scene.settle()
    scene.expect_alive(f"{len(held)} clients, with a limit of {FEW} descriptors")
    most = max((len(processes.descriptors(pid)) for pid in scene.subject.running()), default=0)
    for client in held:
        client.close()
    scene.settle()
    scene.expect_answer(
        after="a time without free descriptors",
        because="the exception of accept() or open() has ended the accepting loop or a worker",
        calm_s=PAUSE_S,
    )
    scene.confirm(
        f"{len(held)} clients came, a process had {most} of {FEW} descriptors open, and it served afterwards"
    )


@check(
    "child-killed",
    proves="the death of one child hurts only its client",
    sends="half requests on three connections; the child of the second is killed; then the other halves",
    expects="the first and the third are answered, the second sees an end, a new client is answered",
    why="Isolation is what a process buys: a crash in one conversation leaves the others alone.",
    hint="The parent must reap the child (SIGCHLD) and must not take its death for its end.",
    fresh=True,
)
def child_killed(scene: Scene) -> None:
    scene.expect_answer()
    held = []
    victims: list[list[int]] = []
    for number in range(3):
        held.append(scene.hold("half", f"/{number}.txt", f"held {number + 1}"))
        scene.settle()
        known = processes.sockets()
        victims.append(
            [
                pid
                for pid in scene.subject.running()
                if pid != scene.subject.pid
                and any(
                    known[processes.inode(target)].peer == held[-1].port
                    for target in processes.descriptors(pid).values()
                    if processes.inode(target) in known
                )
            ]
        )
    if not victims[1]:
        scene.fail(
            "no child process holds the second client's connection",
            "serve each connection in a child process",
            "the parent serves connections itself",
        )
    os.kill(victims[1][-1], signal.SIGKILL)
    scene.note(do="kill", lane=held[1].name, signal="SIGKILL", whom="its child")
    scene.until(held[1].over, "the client of the killed child sees an end")
    scene.expect_alive("the death of one child")
    for client in (held[0], held[2]):
        scene.release(client)
        scene.until(client.answered_or_over, f"{client.name} is answered")
        scene.expect_file(client, client.path, "another child was killed")
    if not held[1].over():
        scene.fail(
            "the child of a client was killed, and its connection stays open",
            "let it end: no process should hold it any more",
            "the parent or another child keeps a copy of the connection",
        )
    scene.expect_answer(after="the death of one child")
    scene.confirm("a killed child took only its client with it")
