"""Checks of programs that run: who waits for them, who ends them, and what stays behind. See programs.py."""

from __future__ import annotations

import time

from ewe_classroom.grader import processes
from ewe_classroom.grader.check import check
from ewe_classroom.grader.hygiene import EACH, expect_closed, open_descriptors
from ewe_classroom.grader.programs import FULL, ask, response_of, run
from ewe_classroom.grader.scene import Scene
from ewe_classroom.grader.site_programs import open_gate

LIMIT_S = 1


@check(
    "cgi-progress",
    proves="a program that takes long stops nobody but its own client",
    sends="four requests for programs that wait at gates; then a file and another program; then the gates open",
    expects="the file and the program at once; each gate that opens answers its client, the last one first",
    why="Starting a program is quick. Waiting for it is what takes time, and others must be served meanwhile.",
    hint="Wait for the program in the thread or process of the connection, and hold no lock while you wait.",
)
def cgi_progress(scene: Scene) -> None:
    held = [ask(scene, f"/cgi-bin/gate-{n}", name=f"gate {n}") for n in range(1, 5)]
    scene.settle()
    scene.expect_answer(
        after="4 programs were started that wait", because="the server waits for one program at a time"
    )
    response_of(scene, ask(scene, "/cgi-bin/hello", name="beside"), "one program at a time is run")
    for number in range(4, 0, -1):
        client = held[number - 1]
        if not open_gate(scene.site.root, f"gate-{number}"):
            scene.fail(
                f"{client.name}: the program was not started, or does not wait any more{scene.blocked()}",
                "start the program of each request at once",
                "programs are run one after the other",
            )
        scene.note(do="open-gate", gate=f"gate-{number}")
        response = response_of(scene, client, "its program has ended, and another one still waits")
        if response.body != b"gate %d was opened\n" % number:
            scene.fail(
                f"{client.name} got {response.body[:60]!r}",
                "send it the output of the program that it asked for",
            )
    scene.confirm(
        "beside 4 programs that waited, a file and a program were served; each gate answered its client"
    )


def programs_of(scene: Scene, before: set[int]) -> list[int]:
    """Return the processes that have come since, zombies included."""
    return [pid for pid in scene.subject.family() if pid not in before]


@check(
    "cgi-timeout",
    proves="a program that takes too long is ended, with all the processes that it has started",
    sends=(
        f"requests for programs that never end, to a server with CGI_TIMEOUT={LIMIT_S}: one "
        "waits, one ignores SIGTERM, one closes its output first"
    ),
    expects=f"504 after {LIMIT_S} second and not before; then no process and no zombie remain",
    why="Without a limit, each such request holds a thread, two pipes and a process until the server is stopped.",
    hint=(
        "Start the program in a separate group (setsid), and kill the group: os.killpg(pid, SIGKILL). "
        "Then wait() for the program. A child that lives holds the pipe open, and its output never ends."
    ),
    fresh=True,
    environment={"CGI_TIMEOUT": str(LIMIT_S)},
)
def cgi_timeout(scene: Scene) -> None:
    run(scene, "/cgi-bin/hello")
    scene.settle()
    before, files = set(scene.subject.family()), len(open_descriptors(scene))
    began = time.monotonic()
    clients = [
        ask(scene, f"/cgi-bin/{name}", name=name) for name in ("waits", "ignores-term", "closes-output")
    ]
    first, second, closes = clients
    scene.until_due(
        lambda: all(client.answered_or_over() for client in clients), "the time limit ends them", 3 * LIMIT_S
    )
    took = time.monotonic() - began
    for client in (first, second):
        if not client.answered():
            scene.fail(
                f"{client.name}: the program takes longer than {LIMIT_S} s, and after {took:.0f} s the client "
                f"{client.story()}{scene.blocked()}",
                "kill the program and answer 504",
                "there is no time limit; or SIGTERM, which the program ignores, is the only signal; or a child of "
                "the program lives on and keeps the pipe open",
            )
        if client.answers[0].status != 504:
            scene.fail(
                f"{client.name}: the program took too long, and the client got status {client.answers[0].status}",
                "answer 504: the gateway's time is over",
            )
    if not closes.answered_or_over():
        scene.fail(
            f"{closes.name}: the program has closed its output and does not end; the client {closes.story()}"
            f"{scene.blocked()}",
            "end it when its time is over",
            "after the end of the output the server waits for the program's end without a limit",
        )
    if took < LIMIT_S * 0.9:
        scene.fail(
            f"504 came after {took:.2f} s",
            f"give the program its {LIMIT_S} s",
            "the limit is not read from CGI_TIMEOUT",
        )
    scene.until(lambda: not programs_of(scene, before), "the programs have ended")
    left = programs_of(scene, before)
    dead = [pid for pid in left if processes.state(pid) == "Z"]
    if len(left) > len(dead):
        raise_left(scene, [pid for pid in left if pid not in dead])
    if dead:
        scene.fail(
            f"{len(dead)} killed programs are zombies",
            "wait for each program that you have killed",
            "kill() without wait()",
        )
    scene.until(lambda: len(open_descriptors(scene)) <= files, "descriptors are closed")
    if len(open_descriptors(scene)) > files:
        scene.fail(
            f"{len(open_descriptors(scene)) - files} descriptors stay open after three programs were killed",
            "close the pipes of a program that was killed",
            "the path of the time limit ends without close()",
        )
    run(scene, "/cgi-bin/hello", because="programs before it took too long")
    scene.confirm(f"three programs were ended after {took:.1f} s, and left no process and no descriptor")


def raise_left(scene: Scene, left: list[int]) -> None:
    """Fail: processes of a program live on."""
    names = ", ".join(f"{pid} ({processes.name(pid)})" for pid in left)
    scene.fail(
        f"after the time limit {len(left)} processes of the programs live on: {names}",
        "kill the program and all that it has started",
        "only the program itself is killed, or SIGTERM is sent, which it may ignore",
    )


@check(
    "cgi-inherits",
    proves="a program gets its input, its output and its error output, and no other connection of the server",
    sends="a request for a program that lists its descriptors, beside an open connection and a waiting program",
    expects="no socket and no pipe but 0, 1 and 2",
    why=(
        "A copy of the listening socket keeps the port after the server's end; a copy of a connection keeps the "
        "client waiting; a copy of another program's pipe hides the end of its input."
    ),
    hint="Descriptors need close-on-exec: in Python they have it, unless pass_fds or os.set_inheritable undoes it.",
)
def cgi_inherits(scene: Scene) -> None:
    scene.client("idle")
    waiting = ask(scene, "/cgi-bin/gate-5", name="gate 5")
    scene.settle()
    lines = run(scene, "/cgi-bin/descriptors").body.decode(errors="replace").splitlines()
    found = dict(zip(lines[::2], lines[1::2], strict=False))
    extra = {
        number: target
        for number, target in found.items()
        if number not in ("0", "1", "2") and target.startswith(("socket:", "pipe:"))
    }
    open_gate(scene.site.root, "gate-5")
    scene.note(do="open-gate", gate="gate-5")
    response_of(scene, waiting)
    known = processes.sockets()
    if extra:
        named = "; ".join(
            f"{number} is {processes.described(target, known)}" for number, target in extra.items()
        )
        scene.fail(
            f"the program has {len(extra)} descriptors of the server: {named}",
            "close them in the child before exec, or mark them close-on-exec",
            "descriptors without close-on-exec (FD_CLOEXEC) pass to each program that is started",
        )
    scene.confirm("the program had its three descriptors and no connection or pipe beside them")


@check(
    "cgi-leaks",
    proves="a program leaves no zombie and no descriptor, however it ended",
    sends=f"{EACH} requests of each kind: answered, killed, no output, no reader, and clients that leave early",
    expects="as many descriptors as before, and at most two zombies",
    why="Each program needs two pipes and a wait(). A server that forgets one of them stops after 500 requests.",
    hint="Close both pipes and wait() in `finally`; the exception of a client that has left must not skip them.",
    fresh=True,
)
def cgi_leaks(scene: Scene) -> None:
    def leaves(number: int) -> None:
        client = ask(scene, f"/cgi-bin/gate-{number + 1}", name=f"leaves {number + 1}")
        scene.settle()
        client.reset()
        scene.note(do="open-gate", gate=f"gate-{number + 1}")
        open_gate(scene.site.root, f"gate-{number + 1}")

    def asks(path: str, times: int | None = None) -> None:
        client = ask(scene, path, times=times)
        scene.until(client.answered_or_over, f"{client.name} is answered")
        client.close()

    kinds = {
        "were answered": lambda number: asks("/cgi-bin/echo", 1),
        "asked for a program that is killed": lambda number: asks("/cgi-bin/is-killed"),
        "asked for a program that writes nothing": lambda number: asks("/cgi-bin/says-nothing"),
        "asked for a program that does not read": lambda number: asks("/cgi-bin/reads-nothing", FULL),
        "left before the program's end": leaves,
    }
    for visit in kinds.values():
        visit(0)
    for how, visit in kinds.items():
        scene.settle()
        before = open_descriptors(scene)
        for number in range(EACH):
            visit(number)
        scene.expect_alive(f"clients that {how}")
        expect_closed(
            scene, before, how,
            "close both pipes of a program when it has ended",
            "a path through the code ends without close()",
            first="pipe:",
        )  # fmt: skip

        def dead() -> list[int]:
            return [pid for pid in scene.subject.family() if processes.state(pid) == "Z"]

        scene.until(lambda: len(dead()) <= 2, "the programs are reaped")
        if len(dead()) > 2:
            scene.fail(
                f"{EACH} clients {how}, and {len(dead())} programs are zombies",
                "call waitpid() for each program when its output has ended",
                "the end of the output is taken for the end of the program, and nobody waits for it",
            )
    scene.confirm(f"{EACH} programs of each of {len(kinds)} kinds left no zombie and no descriptor")
