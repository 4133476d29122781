"""Checks of the end: SIGTERM ends a server with all of its processes in bounded time, and frees the port.

A server is stopped many times: at each deployment, by systemd, by the student. Three things can go wrong, and each
has a check:

    stop       a process lives on, and occupies the port: an orphan, or a server that ignores SIGTERM
    drain      a response in progress is cut
    restart    the port is not free at once, because a connection is in the state TIME_WAIT

    SIGTERM ─▶ no process listens ─▶ conversations in progress end ─▶ no process is left

How long may a server take? Only a server that waits for nothing is too slow: MAX_END_S counts while the server is
quiescent (processes.py), so a busy machine gives it more time.

Read next: processes.py, for quiescence.
"""

from __future__ import annotations

import signal

from ewe_classroom.grader import processes
from ewe_classroom.grader.check import check
from ewe_classroom.grader.scene import Scene

MAX_END_S = 4.0  # time of quiescence after which a server counts as not ending: Apache polls once a second


def has_ended(scene: Scene) -> bool:
    """Return whether the first process and all others of the server have ended."""
    return scene.subject.process.poll() is not None and not scene.subject.running()


def has_stopped_listening(scene: Scene) -> bool:
    """Return whether the server has ended or has stopped listening."""
    return scene.subject.process.poll() is not None or not processes.listener_inode(scene.subject.port)


@check(
    "stop",
    proves="SIGTERM ends the server and all of its processes",
    sends="a request, half a request that stays open for a moment, then SIGTERM to the first process",
    expects="the server ends; no child, thread or orphan remains; no process listens on the port",
    why=(
        "Systems stop services with SIGTERM, and kill a service that does not end. Orphans "
        "occupy the port, so the next start fails."
    ),
    hint="On SIGTERM: close the listening socket, end children and workers, and exit.",
    fresh=True,
)
def stop(scene: Scene) -> None:
    scene.expect_answer()
    stalled = scene.hold_half("/1.txt")
    scene.settle()
    pids_before = scene.subject.running()
    scene.note(do="signal", signal="SIGTERM")
    scene.signal(signal.SIGTERM)
    scene.until(lambda: has_stopped_listening(scene), "the server stops listening", sure=False)
    if scene.subject.process.poll() is not None:
        scene.settle()  # children that end with their parent have time for it
        expect_no_orphan(scene, pids_before)
    stalled.close()  # a server may finish the conversations in progress before it ends (see `drain`)
    scene.until(lambda: has_ended(scene), "the server and its processes end", quiescent_s=MAX_END_S)
    if scene.subject.process.poll() is None:
        scene.fail(
            f"the server still runs after SIGTERM, with nothing left to do{scene.blocked_text()}",
            "end the process",
            "SIGTERM is ignored, or its handler does not end the server; or a thread that is not a daemon "
            "waits and keeps the process alive",
        )
    expect_no_orphan(scene, pids_before)
    if processes.listener_inode(scene.subject.port):
        scene.fail(
            "the port is still occupied after the server's end",
            "close the listening socket in every process",
            "an orphan has the listening socket open",
        )
    scene.confirm("SIGTERM ended the server and all of its processes")


def expect_no_orphan(scene: Scene, pids_before: list[int]) -> None:
    """Fail if processes of the server live on after its first one. pids_before: its processes before SIGTERM."""
    left = scene.subject.running()
    if left:
        names = ", ".join(f"{pid} ({processes.name(pid)})" for pid in left)
        scene.fail(
            f"the server has ended, and {len(left)} of its {len(pids_before)} processes live on: {names}",
            "end the children first, or with the parent",
            "children do not get the parent's signal, and the parent does not end them",
        )


@check(
    "drain",
    proves="the server finishes a response that has begun when SIGTERM arrives",
    sends="a request for 8 MB by a client that does not read; SIGTERM; then the client reads",
    expects="all 8 MB, and then the end of the server",
    why="Each deployment restarts a server. Downloads in progress must not fail.",
    hint="On SIGTERM, stop accepting, and wait for the conversations in progress, with a time limit.",
    fresh=True,
)
def drain(scene: Scene) -> None:
    scene.expect_answer()
    client = scene.client("downloads", reads=False).ask("/large.bin", Connection="close")
    scene.settle()
    scene.note(do="signal", signal="SIGTERM")
    scene.signal(signal.SIGTERM)
    # Only then does the client read: until now, its response kept the server from ending.
    scene.until(lambda: has_stopped_listening(scene), "the server stops listening", sure=False)
    client.read_on()
    scene.until_answered(client)
    if not client.answered():
        scene.fail(
            f"the server got SIGTERM while it sent 8 MB; the client {client.outcome_text()}",
            "finish the response, then end",
            "the default action of SIGTERM ends the process immediately; or the server does not wait "
            "for daemon threads",
        )
    scene.expect_file(client, "/large.bin")
    client.close()
    scene.until(lambda: has_ended(scene), "the server ends", quiescent_s=MAX_END_S)
    if not has_ended(scene):
        scene.fail(
            f"the last response is finished, and the server still runs{scene.blocked_text()}",
            "end once the last conversation has ended",
        )
    scene.confirm("all 8 MB arrived although SIGTERM came in between; then the server ended")


@check(
    "restart",
    proves="a new server can use the port immediately",
    sends="a request after which the server closes first; then the server is killed and started on the same port",
    expects="the server listens again",
    why=(
        "The side that closes first keeps the connection's address for a minute (TIME_WAIT). Without "
        "SO_REUSEADDR, bind() fails meanwhile."
    ),
    hint="setsockopt(SOL_SOCKET, SO_REUSEADDR, 1) before bind().",
    fresh=True,
)
def restart(scene: Scene) -> None:
    # After a response by HTTP/1.0 the server closes first, so its side of the connection stays in TIME_WAIT.
    client = scene.client().ask("/hello.txt", "1.0")
    scene.until(client.over, "the server closes")
    client.close()
    scene.settle()
    in_time_wait = any(
        entry.port == scene.subject.port and entry.state == "TIME_WAIT"
        for entry in processes.tcp_sockets().values()
    )
    problem = scene.start_again()
    if problem:
        scene.fail(
            f"the server was started again on the same port, and {problem}",
            "listen immediately after a restart",
            "SO_REUSEADDR is not set" if in_time_wait else "",
        )
    scene.expect_answer(after="a second start on the same port")
    scene.confirm(
        "a second start on the same port worked"
        + (", beside a connection in TIME_WAIT" if in_time_wait else "")
    )
