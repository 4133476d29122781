"""Checks of running programs: progress of other clients, time limits, inherited descriptors, leaks.

A program takes as long as it likes. The server must serve its other clients meanwhile, end a program whose time is
over, and leave nothing behind of any program:

    cgi-progress    programs wait at gates ─▶ files and other programs are served; each opened gate ends one program
    cgi-timeout     programs that never end ─▶ after CGI_TIMEOUT seconds 504, and no process remains
    cgi-inherits    a program lists its own descriptors ─▶ 0, 1, 2, and no connection of another client
    cgi-leaks       programs that end in each way ─▶ as many descriptors as before, and no zombie

Only the time limit needs a clock. The other checks follow from gates: a program waits at a FIFO until the grader
opens it (site_programs.py), so the speed of the machine does not matter.

Possible failures: the server kills a program and not the processes that the program has started. Each of them holds
the pipe of the program's output open, so the output never ends.

Read next: programs.py, which sends the requests and checks a single program.
"""

from __future__ import annotations

import time

from ewe_classroom.grader import processes
from ewe_classroom.grader.check import check
from ewe_classroom.grader.hygiene import (
    CLIENTS_OF_EACH_KIND,
    MAX_ZOMBIES,
    expect_closed,
    open_descriptors,
    zombie_pids,
)
from ewe_classroom.grader.programs import PIPE_OVERFLOW_LINES, ask, response_of, run
from ewe_classroom.grader.scene import Scene, SceneClient
from ewe_classroom.grader.site_programs import open_gate

LIMIT_S = 1
MIN_LIMIT_SHARE = 0.9  # a server may count the time from a moment before the grader's clock


@check(
    "cgi-progress",
    proves="a slow program delays only its own client",
    sends="four requests for programs that wait at gates; then a file and another program; then the gates open",
    expects=(
        "the file and the program immediately; then each opened gate leads to its client's response, "
        "the last first"
    ),
    why="The server starts a program quickly, but waits long for its end. It must serve other clients meanwhile.",
    hint="Wait for the program in the thread or process of its connection, and hold no lock while you wait.",
)
def cgi_progress(scene: Scene) -> None:
    clients = [ask(scene, f"/cgi-bin/gate-{n}", name=f"gate {n}") for n in range(1, 5)]
    scene.settle()
    scene.expect_answer(
        after="4 waiting programs were started", because="the server waits for one program at a time"
    )
    response_of(scene, ask(scene, "/cgi-bin/hello", name="beside"), "the server runs one program at a time")
    for number in range(4, 0, -1):  # the last gate first: a server that runs one program at a time fails
        client = clients[number - 1]
        if not open_gate(scene.site.root, f"gate-{number}"):
            scene.fail(
                f"{client.name}: the program was not started, or does not wait any more{scene.blocked_text()}",
                "start the program of each request immediately",
                "the server runs programs one after the other",
            )
        scene.note(do="open-gate", gate=f"gate-{number}")
        response = response_of(scene, client, "its program has ended, and another program still waits")
        if response.body != b"gate %d was opened\n" % number:
            scene.fail(
                f"{client.name} got {response.body[:60]!r}",
                "send the output of the program that this client requested",
            )
    scene.confirm(
        "beside 4 waiting programs the server served a file and a program; each opened gate led to a response"
    )


def programs_of(scene: Scene, before: set[int]) -> list[int]:
    """Return the processes of the server that are not in `before`, zombies included."""
    return [pid for pid in scene.subject.family() if pid not in before]


@check(
    "cgi-timeout",
    proves="the server ends a program that takes too long, with all the processes that it has started",
    sends=(
        f"requests for endless programs, to a server with CGI_TIMEOUT={LIMIT_S}: one program "
        "waits, one ignores SIGTERM, one closes its output first"
    ),
    expects=f"504 after {LIMIT_S} second and not before; then no process and no zombie remain",
    why="Without a limit, each such request keeps a thread, two pipes and a process until the server is stopped.",
    hint=(
        "Start the program in a separate process group (setsid), and kill the group: os.killpg(pid, SIGKILL). "
        "Then wait() for the program. A living child keeps the pipe open, and the output never ends."
    ),
    fresh=True,
    environment={"CGI_TIMEOUT": str(LIMIT_S)},
)
def cgi_timeout(scene: Scene) -> None:
    run(scene, "/cgi-bin/hello")
    scene.settle()
    pids_before, descriptor_count = set(scene.subject.family()), len(open_descriptors(scene))
    began = time.monotonic()
    clients = [
        ask(scene, f"/cgi-bin/{name}", name=name) for name in ("waits", "ignores-term", "closes-output")
    ]
    *waiting, closes = clients
    scene.until_due(
        lambda: all(client.answered_or_over() for client in clients), "the time limit ends all", 3 * LIMIT_S
    )
    took_s = time.monotonic() - began
    for client in waiting:
        expect_gateway_timeout(scene, client, took_s)
    if not closes.answered_or_over():
        scene.fail(
            f"{closes.name}: the program has closed its output and does not end; the client {closes.outcome_text()}"
            f"{scene.blocked_text()}",
            "end the program when its time is over",
            "after the end of the output the server waits for the program's end without a limit",
        )
    if took_s < LIMIT_S * MIN_LIMIT_SHARE:
        scene.fail(
            f"504 came after {took_s:.2f} s",
            f"give the program its {LIMIT_S} s",
            "the limit is not read from CGI_TIMEOUT",
        )
    expect_programs_ended(scene, pids_before)
    expect_pipes_closed(scene, descriptor_count)
    run(scene, "/cgi-bin/hello", because="earlier programs took too long")
    scene.confirm(
        f"the server ended three programs after {took_s:.1f} s; no process and no descriptor remained"
    )


def expect_gateway_timeout(scene: Scene, client: SceneClient, took_s: float) -> None:
    """Fail unless the client of an endless program has status 504. took_s: the time since its request."""
    if not client.answered():
        scene.fail(
            f"{client.name}: the program takes longer than {LIMIT_S} s, and after {took_s:.0f} s the client "
            f"{client.outcome_text()}{scene.blocked_text()}",
            "kill the program and answer 504",
            "there is no time limit; or the server sends only SIGTERM, which the program ignores; or a child of "
            "the program lives on and keeps the pipe open",
        )
    if client.answers[0].status != 504:
        scene.fail(
            f"{client.name}: the program took too long, and the client got status {client.answers[0].status}",
            "answer 504 (Gateway Timeout)",
        )


def expect_programs_ended(scene: Scene, pids_before: set[int]) -> None:
    """Fail if a process of a killed program lives on, or is a zombie. pids_before: the server's own processes."""
    scene.until(lambda: not programs_of(scene, pids_before), "the programs have ended")
    left = programs_of(scene, pids_before)
    zombies = [pid for pid in left if processes.state(pid) == "Z"]
    alive = [pid for pid in left if pid not in zombies]
    if alive:
        names = ", ".join(f"{pid} ({processes.name(pid)})" for pid in alive)
        scene.fail(
            f"after the time limit {len(alive)} processes of the programs live on: {names}",
            "kill the program and all processes that it has started",
            "the server kills only the program itself, or sends SIGTERM, which the program may ignore",
        )
    if zombies:
        scene.fail(
            f"{len(zombies)} killed programs are zombies",
            "wait for each program after you have killed it",
            "kill() without wait()",
        )


def expect_pipes_closed(scene: Scene, descriptor_count: int) -> None:
    """Fail if the server has more descriptors than before the programs were killed."""
    scene.until(lambda: len(open_descriptors(scene)) <= descriptor_count, "descriptors are closed")
    more = len(open_descriptors(scene)) - descriptor_count
    if more > 0:
        scene.fail(
            f"{more} descriptors stay open after three programs were killed",
            "close the pipes of a killed program",
            "the code for the time limit does not call close()",
        )


@check(
    "cgi-inherits",
    proves="a program inherits its input, output and error output, and no other descriptor of the server",
    sends="a request for a program that lists its descriptors, beside an open connection and a waiting program",
    expects="no socket and no pipe except 0, 1 and 2",
    why=(
        "A copy of the listening socket occupies the port after the server's end. A copy of a connection keeps its "
        "client waiting. A copy of another program's pipe prevents the end of that program's input."
    ),
    hint="Descriptors need close-on-exec. Python sets it, unless pass_fds or os.set_inheritable removes it.",
)
def cgi_inherits(scene: Scene) -> None:
    scene.client("idle")
    waiting = ask(scene, "/cgi-bin/gate-5", name="gate 5")
    scene.settle()
    # The program prints two lines for each descriptor: its number and its target.
    lines = run(scene, "/cgi-bin/descriptors").body.decode(errors="replace").splitlines()
    target_of = dict(zip(lines[::2], lines[1::2], strict=False))
    extra = {
        number: target
        for number, target in target_of.items()
        if number not in ("0", "1", "2") and target.startswith(("socket:", "pipe:"))
    }
    open_gate(scene.site.root, "gate-5")
    scene.note(do="open-gate", gate="gate-5")
    response_of(scene, waiting)
    if extra:
        entries = processes.tcp_sockets()
        named = "; ".join(
            f"{number} is {processes.target_text(target, entries)}" for number, target in extra.items()
        )
        scene.fail(
            f"the program has {len(extra)} descriptors of the server: {named}",
            "close them in the child before exec, or mark them close-on-exec",
            "a started program inherits every descriptor without close-on-exec (FD_CLOEXEC)",
        )
    scene.confirm("the program had its three descriptors, and no other connection or pipe")


@check(
    "cgi-leaks",
    proves="a program leaves no zombie and no descriptor, also after a failure",
    sends=f"{CLIENTS_OF_EACH_KIND} requests of each kind: normal, killed, no output, no reader, and clients "
    "that disconnect early",
    expects="as many descriptors as before, and at most two zombies",
    why="Each program needs two pipes and a wait(). A server that forgets either stops after about 500 requests.",
    hint="Close both pipes and wait() in `finally`: the exception of a disconnected client must not skip this.",
    fresh=True,
)
def cgi_leaks(scene: Scene) -> None:
    def disconnect_early(number: int) -> None:
        client = ask(scene, f"/cgi-bin/gate-{number + 1}", name=f"leaves {number + 1}")
        scene.settle()
        client.reset()
        scene.note(do="open-gate", gate=f"gate-{number + 1}")
        open_gate(scene.site.root, f"gate-{number + 1}")

    def ask_and_close(path: str, body_lines: int | None = None) -> None:
        client = ask(scene, path, body_lines=body_lines)
        scene.until_answered(client)
        client.close()

    kinds = {
        "got a response": lambda number: ask_and_close("/cgi-bin/echo", 1),
        "asked for a program that is killed": lambda number: ask_and_close("/cgi-bin/is-killed"),
        "asked for a program that writes nothing": lambda number: ask_and_close("/cgi-bin/says-nothing"),
        "asked for a program that does not read": lambda number: ask_and_close(
            "/cgi-bin/reads-nothing", PIPE_OVERFLOW_LINES
        ),
        "disconnected before the program's end": disconnect_early,
    }
    for visit in kinds.values():  # what a server opens for its first clients is no leak
        visit(0)
    for how, visit in kinds.items():
        scene.settle()
        before = open_descriptors(scene)
        for number in range(CLIENTS_OF_EACH_KIND):
            visit(number)
        scene.expect_alive(f"clients {how}")
        expect_closed(
            scene, before, how,
            "close both pipes of a program when it has ended",
            "a path through the code ends without close()",
            first="pipe:",
        )  # fmt: skip
        scene.until(lambda: len(zombie_pids(scene)) <= MAX_ZOMBIES, "the server reaps the programs")
        if len(zombie_pids(scene)) > MAX_ZOMBIES:
            scene.fail(
                f"{CLIENTS_OF_EACH_KIND} clients {how}, and {len(zombie_pids(scene))} programs are zombies",
                "call waitpid() for each program when its output has ended",
                "the server takes the end of the output for the end of the program, and does not "
                "wait for the program",
            )
    scene.confirm(
        f"{CLIENTS_OF_EACH_KIND} programs of each of {len(kinds)} kinds left no zombie and no descriptor"
    )
