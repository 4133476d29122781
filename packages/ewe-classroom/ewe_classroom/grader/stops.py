"""Checks of the end: SIGTERM ends a server in bounded time, with all of its processes, and the port is free."""

from __future__ import annotations

import signal

from ewe_classroom.grader import processes
from ewe_classroom.grader.check import check
from ewe_classroom.grader.scene import Scene

END_S = 4.0  # calm, before a server counts as one that does not end: Apache looks once a second


def gone(scene: Scene) -> bool:
    return scene.subject.process.poll() is not None and not scene.subject.running()


def deaf(scene: Scene) -> bool:
    """Return whether the server has ended, or no longer listens."""
    return scene.subject.process.poll() is not None or not processes.listens(scene.subject.port)


@check(
    "stop",
    proves="SIGTERM ends the server and all of its processes",
    sends="a request, half a request that stays open for a moment, then SIGTERM to the process that was started",
    expects="it ends; no child, thread or orphan remains; nothing listens on the port",
    why=(
        "Systems stop services by SIGTERM, and kill them if that does not work. Orphans "
        "hold the port for the next start."
    ),
    hint="On SIGTERM: close the listening socket, end children and workers, exit.",
    fresh=True,
)
def stop(scene: Scene) -> None:
    scene.expect_answer()
    held = scene.hold("half", "/1.txt")
    scene.settle()
    before = scene.subject.running()
    scene.note(do="signal", signal="SIGTERM")
    scene.signal(signal.SIGTERM)
    scene.until(lambda: deaf(scene), "the server stops listening", sure=False)
    held.close()
    scene.until(lambda: gone(scene), "the server and its processes end", calm_s=END_S)
    if scene.subject.process.poll() is None:
        scene.fail(
            f"the server still runs after SIGTERM, with nothing left to do{scene.blocked()}",
            "end",
            "SIGTERM is ignored or caught without an end; or a thread that is no daemon "
            "waits and keeps the process",
        )
    left = scene.subject.running()
    if left:
        names = ", ".join(f"{pid} ({processes.name(pid)})" for pid in left)
        scene.fail(
            f"the server has ended, and {len(left)} of its {len(before)} processes live on: {names}",
            "end the children first, or with the parent",
            "children do not get the parent's signal, and nobody tells them",
        )
    if processes.listens(scene.subject.port):
        scene.fail(
            "the port is still taken after the server's end",
            "release it",
            "an orphan holds the listening socket",
        )
    scene.confirm("SIGTERM ended the server and all of its processes")


@check(
    "drain",
    proves="a response that has begun is finished when the server is told to end",
    sends="a request for 8 MB that is not read; SIGTERM; then the client reads",
    expects="all 8 MB, and then the end of the server",
    why="Each deployment restarts a server. Downloads in progress must not notice.",
    hint="On SIGTERM stop accepting, and wait for the conversations in progress, with a time limit.",
    fresh=True,
)
def drain(scene: Scene) -> None:
    scene.expect_answer()
    client = scene.client("downloads", reads=False).ask("/large.bin", Connection="close")
    scene.settle()
    scene.note(do="signal", signal="SIGTERM")
    scene.signal(signal.SIGTERM)
    scene.until(lambda: deaf(scene), "the server stops listening", sure=False)
    client.read_on()
    scene.until(client.answered_or_over, f"{client.name} is answered")
    if not client.answered():
        scene.fail(
            f"the server was told to end (SIGTERM) while it sent 8 MB; the client {client.story()}",
            "finish the response, then end",
            "the default action of SIGTERM ends the process at once; or daemon threads are not waited for",
        )
    scene.expect_file(client, "/large.bin")
    client.close()
    scene.until(lambda: gone(scene), "the server ends", calm_s=END_S)
    if not gone(scene):
        scene.fail(
            f"the last response is finished, and the server still runs{scene.blocked()}",
            "end once the last conversation has ended",
        )
    scene.confirm("8 MB arrived whole although SIGTERM came in between; then the server ended")


@check(
    "restart",
    proves="the port can be used again at once",
    sends="a request that the server closes first; the server is ended; it is started again on the same port",
    expects="it listens again",
    why=(
        "The side that closes first keeps the address for a minute (TIME_WAIT). Without "
        "SO_REUSEADDR, bind() then fails."
    ),
    hint="setsockopt(SOL_SOCKET, SO_REUSEADDR, 1) before bind().",
    fresh=True,
)
def restart(scene: Scene) -> None:
    client = scene.client().ask("/hello.txt", "1.0")
    scene.until(client.over, "the server closes")
    client.close()
    scene.settle()
    waits = any(
        entry.port == scene.subject.port and entry.state == "TIME_WAIT"
        for entry in processes.sockets().values()
    )
    problem = scene.start_again()
    if problem:
        scene.fail(
            f"the server was started again on the same port, and {problem}",
            "listen again at once",
            "SO_REUSEADDR is not set" if waits else "",
        )
    scene.expect_answer(after="a second start on the same port")
    scene.confirm(
        "a second start on the same port worked" + (", beside a connection in TIME_WAIT" if waits else "")
    )
