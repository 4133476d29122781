"""Bursts of clients on a server in C or Go with a race detector: the checks queue-races and shared-data.

    burst                 the server is stopped (SIGSTOP)   it goes on: each client must get its own file
    one each              n-1 half requests, one whole      n workers serve n clients
    all at once           4 n whole requests                each connection is taken once
    handed over           the rests of n half requests,     a worker that becomes free and one that is woken
                          and n whole ones                  want the same connection
    more than the room    n half requests, 80 whole ones    put() waits while the queue is full
    the stop              2 n whole requests, SIGTERM       the server ends; a second time, while it is idle
    the stop, full queue  n + 80 half requests, SIGTERM,    put() ends, and each connection in the queue is served
    (queue-races only)    the rests, in small groups

n is the number of workers that `progress` has found: a pool with a worker too few or too many loses the points of
that check alone. A hang of a server that serves one client at a time, or any number, is "not judged".

A stopped server finds a whole burst waiting when it goes on, so the burst does not depend on the speed of the
machine. Conditions have bad luck (unlucky/): a woken thread gets its lock back late, which turns a lost wake-up and
an `if` for `while` into a certainty. The last bursts are played once for each place at which a thread waits: there
the wait also returns without a reason, as POSIX allows.

A hang is a fact, and not a time: all threads have slept for MIN_HANG_S (or 50 times the slowest normal answer),
used no processor time, no byte has moved, and no thread has begun or ended, while a client waits for its response.
On a busy machine a thread that could run is not asleep. The grader may have had no turn there either, so it must
have looked MIN_LOOKS times.

Read next: sanitizers.py, which builds the server and reads the reports of the detector.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ewe_classroom.grader import processes
from ewe_classroom.grader.bursts import accepted_count
from ewe_classroom.grader.check import check
from ewe_classroom.grader.sanitizers import (
    MAX_REPORT_BYTES,
    REPORTED_STATUS,
    RaceReport,
    SanitizedBuild,
    mention_in_sources,
    sanitized_build,
    source_line,
)
from ewe_classroom.grader.scene import CONNECT_S, NO_LIMIT, Condition, Scene, SceneClient
from ewe_classroom.grader.sources import (
    MAX_SOURCE_BYTES,
    SourceFiles,
    find_sources,
    open_regular,
    read_regular,
)
from ewe_classroom.grader.subject import BadSubject, NotStarted, Subject, numbered_path

MIN_HANG_S = 2.0
ANSWERS_IN_HANG = 50  # normal answers in the time of a hang
IDLE_SHARE = 0.02  # of a processor: ThreadSanitizer's own thread uses less
MAX_BURST_S = 30.0  # of one burst, once no byte has moved for the time of a hang
ASLEEP_SHARE = 0.9  # of the looks at a server that hangs
POLL_EVERY_S = 0.05
MIN_LOOKS = 20  # at a server that hangs: half of those in MIN_HANG_S
PUMP_S, WAIT_PUMP_S = 0.01, 0.005  # the most time of one turn of sending and receiving
LAST_BYTES_S = 0.05  # in which the last bytes of a server that has ended arrive
SETTLED_S = 0.1
SETTLED_RUN_S = 0.002  # of processor time in SETTLED_S
FULL_QUEUE_CLIENTS = 80  # connections; a kernel's queue of 128 holds them, too
REPORT_WORDS = (
    "ThreadSanitizer",
    "DATA RACE",
)  # one of them is in each report, also in that of a crash (SIGSEGV)
CRASH = re.compile(r"^(panic: .*|fatal error: .*|ThreadSanitizer:DEADLYSIGNAL.*|.*SEGV on .*)$", re.MULTILINE)
COMMENT = re.compile(r"//.*|/\*.*")
POSITION = re.compile(r"(\w+\.(?:c|go)):(\d{1,9})")
TRACED_WAIT = re.compile(r"[+-]\w+\.(?:c|go):\d{1,9}\n?")
# A library named in one of these could replace functions of the race detector
LOADER_VARIABLES = ("LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH")
MAX_POSITIONS = 8
LINES_BEFORE = 4  # lines, up from a wait, in which the test of its condition stands


def play_with_detector(scene: Scene, *, has_queue: bool) -> None:
    """Build the server with a race detector, and play all bursts on it. Fail at a fault.

    has_queue: the server has a queue of connections, so its stop is also played with a full queue. Raises
    MissingProgram if this machine cannot build with the detector, and NotJudged as Bursts.fail() does.
    """
    sources = unchanged_sources(scene)
    expect_no_mention(scene, mention_in_sources(sources))
    try:
        with sanitized_build(sources, scene.subject.limits, str(scene.subject.output.parent)) as build:
            # A macro or an assembler's line may hide the name in the sources.
            expect_no_mention(scene, build.mention_in_kept_texts())
            Bursts(scene, build).play(has_queue=has_queue)
    except BadSubject as problem:
        scene.fail(
            f"the server does not build with a race detector: {problem}",
            "build with the lab's Makefile, or with `go build`",
        )


def unchanged_sources(scene: Scene) -> SourceFiles:
    """End the server; return the sources of its program. Fail if they have changed since the grading began.

    A server that runs could replace its sources, so that the race detector judges another program. It could also
    take all processor time, so that a build does not end.
    """
    scene.subject.close()
    start_command = scene.subject.start_command
    sources = find_sources(start_command.command, start_command.directory)
    before = scene.findings.sources_digest
    if sources is None or (before and sources.digest() != before):
        scene.fail(
            "the source files beside the program have changed since the grading began",
            "leave them as they are while the grader runs; after a change, build and grade again",
            "the server writes to the directory of its sources",
        )
    if sources.total_bytes() > MAX_SOURCE_BYTES:
        scene.fail(
            f"the source files beside the program have {sources.total_bytes() >> 20} MB",
            f"hand in at most {MAX_SOURCE_BYTES >> 20} MB of source files",
        )
    return sources


def expect_no_mention(scene: Scene, mention: str) -> None:
    """Fail if a source names the race detector, and so could switch it off.

    mention: the place and its text, as in "server.c:7, `...`"; "" for none.
    """
    if mention:
        scene.fail(
            f"the source names the race detector: {mention}",
            "be the same program with and without the detector",
            sent="nothing; the grader looked at the sources",
        )


def left_detector_text(pid: int, program: Path, options: Mapping[str, str]) -> str:
    """Describe how a process has left the race detector, or its options; "" if it has not.

    program: the file of the server with the detector. options: of the detector, in variables. A process that has
    ended, or hides its data, has not left it.
    """
    try:
        exe = processes.look_inside(pid, lambda: os.readlink(f"/proc/{processes.living_thread(pid)}/exe"))
    except OSError:
        return ""
    if exe != str(program):
        return f"the server has started {exe} in place of its build with a race detector"
    variables = processes.read_private(pid, "environ").split("\0")
    for name, _, value in (each.partition("=") for each in variables):
        # The detector has other options, or a library could replace it.
        if name in LOADER_VARIABLES or value != options.get(name, value):
            return f"the server has started itself again with {name}={value[:60]}"
    return ""


def processor_s(tasks: Mapping[int, processes.ThreadSample]) -> float:
    """Return the processor time of all threads together so far, in seconds."""
    return sum(task.ran_s for task in tasks.values())


def workers_of(scene: Scene) -> int:
    """Return how many clients the server serves at a time, as found by `progress`, or else as the lab asks for.

    A server that is no pool (Scene.concurrency()) gets the bursts of the lab's number: a race in it is a race.
    """
    found = scene.findings.concurrency
    if found is None or found in (1, NO_LIMIT):
        return scene.workers
    return found


class Bursts:
    """The bursts on one server. The scene's subject is the server that is built with a race detector."""

    def __init__(self, scene: Scene, build: SanitizedBuild) -> None:
        self.scene = scene
        self.build = build
        self.workers = workers_of(scene)
        self.hang_s = MIN_HANG_S
        self.positions: list[str] = []  # at which threads have waited for a condition, in the first run
        self.spurious_position = ""  # where waits return without a reason (spurious wake-ups)
        self.requests = 0

    def play(self, *, has_queue: bool) -> None:
        """Play every burst; fail at the first fault. has_queue: also the stop with a full queue.

        The first run finds out where threads wait. Each further run lets the waits at one place return without a
        reason.
        """
        self.start()
        self.serve_bursts()
        self.stop(2 * self.workers)
        self.positions = self.traced_positions()
        self.start()
        self.stop(0)
        if has_queue and self.workers > 1:
            self.start()
            self.stop_full()
        tested = self.positions[:MAX_POSITIONS]
        for position in tested:
            self.start(position)
            self.serve_bursts()
            self.stop(0)
        where = f"; the waits at {', '.join(tested)} test again" if tested else ""
        self.scene.confirm(
            f"{self.requests} requests in bursts, with a race detector: no race, no lost wake-up{where}"
        )

    def start(self, spurious_position: str = "") -> None:
        """Start the server again, and measure its normal answers. Raises NotStarted.

        spurious_position: where waits return without a reason, as "server.c:41"; "" for none.
        """
        old, sources = self.scene.subject, self.build.sources
        old.close()
        self.build.forget_reports()
        self.scene.clients.clear()
        self.spurious_position = spurious_position
        # Put the program with the detector in the place of the student's. At a second start it is there already.
        words, built = list(old.start_command.command), str(self.build.program)
        words[words.index(built) if built in words else sources.word_index] = built
        start_command = replace(old.start_command, command=tuple(words), directory=self.build.directory)
        self.scene.note(do="note", text="the server starts, built with a race detector")
        self.scene.subject = Subject(
            start_command, old.site, old.workers, old.limits, old.port, old.output,
            {**self.build.environment, "EWE_SPURIOUS": spurious_position},
        )  # fmt: skip
        try:
            self.scene.subject.wait_until_ready()
        except NotStarted as problem:
            # The detector itself may have ended the server, and has written why.
            raise NotStarted(
                str(problem), f"{problem.output}\n{self.build.reported_text()}".strip()
            ) from None
        slowest_s = 0.0
        for number in range(3):
            began = time.monotonic()
            self.expect([self.ask(f"/{number}.txt")], "one client alone")
            slowest_s = max(slowest_s, time.monotonic() - began)
        self.expect_detector()
        self.hang_s = max(MIN_HANG_S, ANSWERS_IN_HANG * slowest_s)

    def serve_bursts(self) -> None:
        """Play the bursts of the module's table, but the stop; fail at the first fault."""
        workers = self.workers
        for whole in range(workers):
            self.one_each(whole)
        for _ in range(3):
            with self.stopped():
                clients = [self.ask(numbered_path(number)) for number in range(4 * workers)]
            self.expect(clients, f"{len(clients)} clients at once")
        for _ in range(3):
            self.hand_over()
        stalled, clients = self.fill(whole=True)
        self.release(stalled)
        self.expect(stalled + clients, f"{FULL_QUEUE_CLIENTS} clients behind {workers} stalled ones")
        self.one_each(0)

    def one_each(self, whole: int) -> None:
        """Send n requests at once, of which only number `whole` is whole: its client needs the last worker."""
        with self.stopped():
            clients = [
                self.ask(f"/{number}.txt") if number == whole else self.ask_half(f"/{number}.txt")
                for number in range(self.workers)
            ]
        stalled = [client for client in clients if client is not clients[whole]]
        self.expect(
            [clients[whole]], f"{len(clients)} clients at once, of which {len(stalled)} send half a request"
        )
        self.release(stalled)
        self.expect(stalled, "the clients sent the rest of their requests")

    def hand_over(self) -> None:
        """Make n-1 workers free at the moment when n connections come."""
        workers = self.workers
        stalled = self.hold(workers - 1)
        with self.stopped():
            self.release(stalled)
            clients = [self.ask(f"/{10 + number}.txt") for number in range(workers)]
        self.expect(stalled + clients, f"{workers} clients came while workers became free")

    def stop(self, client_count: int) -> None:
        """Send SIGTERM while `client_count` clients wait; fail unless the server ends without a race."""
        self.expect_detector()
        # The server is stopped, so that it finds the requests and the signal together.
        with self.stopped():
            for number in range(client_count):
                self.ask(f"/{number}.txt")
            self.scene.signal(signal.SIGTERM)
        self.expect_end(f"beside {client_count} requests" if client_count else "to the idle server")

    def expect_end(self, beside: str) -> None:
        """Fail unless the server ends without a race. beside: what stood beside SIGTERM, for the report."""
        self.wait(lambda: not self.scene.subject.alive(), f"SIGTERM was sent {beside}")
        self.expect_no_race()
        if self.scene.subject.alive():
            self.fail(
                f"SIGTERM was sent {beside}, and the server did not end{self.sleeping_text()}",
                "wake every thread at the stop: one signal wakes only one of them (broadcast wakes all)",
                "a thread sleeps and is not woken by the stop",
            )

    def stop_full(self) -> None:
        """Send SIGTERM while put() waits in a full queue; fail unless the server serves the queue, and ends.

        The clients that the server has accepted are in its queue, except the last one: put() waits to add it, and
        need not do so. They have sent half a request, so that the queue is not empty at the stop. One worker is
        busy until then: a server that does not wait for this worker loses the points of `drain` alone.
        """
        held, clients = self.fill(whole=False)
        # With a small backlog, connections come about late, and in any order.
        in_queue = 0 if self.scene.connecting() else accepted_count(self.scene) - len(held) - 1
        self.scene.signal(signal.SIGTERM)
        batch, rest = len(held) - 1, [*held[1:], *clients]
        while rest and (len(rest) > len(clients) or processes.listener_inode(self.scene.subject.port)):
            self.settle()
            self.release(rest[:batch])
            rest = rest[batch:]
        self.settle()
        self.release([held[0], *rest])
        self.expect_end(f"beside {len(held) + len(clients)} half requests, so put() waited")
        while self.scene.pump(LAST_BYTES_S):
            pass  # the last bytes of a server that has ended arrive
        served = clients[: max(in_queue, 0)] if held[0].answered() else []
        lost = [client for client in served if not client.answered()]
        if lost:
            self.fail(
                f"SIGTERM came while the queue was full. {lost[0].name} was in the queue, and "
                f"{lost[0].outcome_text()}",
                "let the workers take the rest of the queue, and let them end only then",
                f"the stop loses connections in the queue: {len(lost)} of {len(served)}",
            )
        self.expect(served, "SIGTERM came while the queue was full")

    def expect_detector(self) -> None:
        """Fail if a process of the server runs without the race detector, or with other options of it."""
        for pid in self.scene.subject.running():
            if how := left_detector_text(pid, self.build.program, self.build.environment):
                self.scene.fail(
                    how,
                    "be the same program with and without the detector",
                    sent="bursts of clients, to the server built with a race detector",
                )

    # Clients

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the server (SIGSTOP) while the block sends a burst."""
        with processes.stopped(self.scene.subject.running()):
            yield
            self.scene.pump(PUMP_S)

    def ask(self, path: str) -> SceneClient:
        """Return a new client that has sent a whole request."""
        self.requests += 1
        return self.scene.client(f"client {self.requests}").ask(path, Connection="close")

    def ask_half(self, path: str) -> SceneClient:
        """Return a new client that has sent half a request."""
        self.requests += 1
        return self.scene.client(f"client {self.requests}").send_half(path, Connection="close")

    def hold(self, count: int) -> list[SceneClient]:
        """Occupy so many workers, and wait until the server has read the half requests."""
        stalled = [self.ask_half(f"/{number}.txt") for number in range(count)]
        self.settle()
        return stalled

    def fill(self, *, whole: bool) -> tuple[list[SceneClient], list[SceneClient]]:
        """Occupy all workers, and fill the queue with more clients; return the two groups of clients.

        whole: the clients of the queue send whole requests, or else half ones.
        """
        stalled = self.hold(self.workers)
        ask = self.ask if whole else self.ask_half
        with self.stopped():
            clients = [ask(numbered_path(number)) for number in range(FULL_QUEUE_CLIENTS)]
        self.settle()
        return stalled, clients

    def settle(self) -> None:
        """Wait until the server has done what it can do for the clients so far."""
        start = busy_at = time.monotonic()
        ran_s = -1.0
        while (now := time.monotonic()) - busy_at < SETTLED_S and now - start < self.hang_s:
            self.scene.pump(PUMP_S)
            tasks = self.scene.subject.tasks()
            total_s = processor_s(tasks)
            # The thread of a race detector always runs a little, so the server never has no turns at all.
            if total_s - ran_s > SETTLED_RUN_S or not all(task.asleep for task in tasks.values()):
                busy_at, ran_s = now, total_s

    def release(self, clients: list[SceneClient]) -> None:
        for client in clients:
            client.send_rest()

    # Verdicts

    def wait(self, condition: Condition, what: str) -> bool:
        """Wait until a condition is true; return False once the server has ended or hangs.

        A server hangs if for hang_s seconds its threads have slept and used no processor time, no thread has begun
        or ended, and no byte has moved. It also hangs if no byte has moved for hang_s seconds of a burst that takes
        longer than MAX_BURST_S: its threads run without an end. what: the condition in words, for the record.
        """
        start = changed_at = moved_at = looked_at = time.monotonic()
        looks: list[bool] = []  # since the last change: did all threads sleep?
        tasks = self.scene.subject.tasks()
        ran_s = processor_s(tasks)
        while not condition():
            changed = moved = bool(self.scene.pump(WAIT_PUMP_S))
            now = time.monotonic()
            # A server with a small backlog sleeps until the kernel of a client sends its next SYN.
            hang_s = max(self.hang_s, CONNECT_S) if self.scene.connecting() else self.hang_s
            # A process that ends can be reaped only a moment after its last thread has ended.
            has_ended = not self.scene.subject.running() and self.scene.subject.process.poll() is not None
            if has_ended and not self.scene.pump(LAST_BYTES_S):
                break
            if now - looked_at >= POLL_EVERY_S:
                looked_at = now
                before, tasks = tasks.keys(), self.scene.subject.tasks()
                changed = moved or tasks.keys() != before  # a server that ends does so thread by thread
                looks.append(all(task.asleep for task in tasks.values()))
            # `moved`: bytes, or the state of a client. `changed`: also the threads of the server.
            if moved:
                moved_at = now
            if changed:
                changed_at, looks, ran_s = now, [], processor_s(tasks)
            elif now - changed_at > hang_s and len(looks) >= MIN_LOOKS:
                idle = processor_s(tasks) - ran_s < IDLE_SHARE * (now - changed_at)
                if idle and sum(looks) >= ASLEEP_SHARE * len(looks):
                    break
            if now - moved_at > hang_s and now - start > MAX_BURST_S:
                break
        happened = condition()
        self.scene.note(do="wait", what=what, happened=happened)
        return happened

    def expect(self, clients: list[SceneClient], what: str) -> None:
        """Fail unless each client gets its own file."""
        self.wait(lambda: all(client.answered_or_over() for client in clients), what)
        if not all(client.answered() for client in clients):
            if any(client.over() and not client.answered() for client in clients):
                self.settle()  # a server that ends writes its last words
            self.no_answer(clients, what)
        for client in clients:
            response = client.answers[-1]
            expected = self.scene.site.files[client.path]
            if response.status != 200 or response.body != expected:
                self.fail(
                    f"{what}: {client.name} asked for {client.path}, and {client.outcome_text()}, not its own file",
                    "take each connection from the queue once",
                    "two threads have one connection, or a worker has one that another worker has closed",
                )
            client.close()

    def no_answer(self, clients: list[SceneClient], what: str) -> None:
        """Fail with the reason for which clients have no response: a race, a crash, or a hang.

        what: the burst in words, as the beginning of the verdict.
        """
        self.expect_no_race()
        if not self.scene.subject.alive():
            output = self.output()
            words = CRASH.search(output)
            at = self.crash_position(output)
            self.fail(
                f"{what}: the server {self.scene.subject.ending_text()}{f': {words[1]}' if words else ''}{at}",
                "go on serving",
                "a worker takes an item from an empty queue" if words and "out of range" in words[1] else "",
            )
        missing = [client for client in clients if not client.answered()]
        self.fail(
            f"{what}: {len(missing)} of {len(clients)} without a response, and {missing[0].name} "
            f"{missing[0].outcome_text()}{self.sleeping_text()}",
            "wake a thread for each connection that is put into the queue",
            "a wake-up is lost"
            if self.waiting_threads()
            else "a worker has ended, or it waits for a lock without end",
            is_hang=True,
        )

    def fail(self, did: str, should: str, because: str, *, is_hang: bool = False) -> None:
        """Fail the check with these texts of a verdict, unless a race or a wait explains the fault better.

        A wait for a condition after an `if` in place of a loop can cause any fault, so the verdict then names this
        wait. is_hang: clients wait for a response. Raises NotJudged if this is so because the server is no pool.
        """
        self.expect_no_race()
        # The waits of this run and of the first one, as "server.c:41", each once. In this run the waits at
        # `spurious_position` return without a reason, so they come first: the likely cause.
        positions = dict.fromkeys([self.spurious_position, *self.positions, *self.traced_positions()])
        keywords = {position: self.keyword_of(position) for position in positions if position}
        position = next((position for position, keyword in keywords.items() if keyword == "if"), "")
        if position:
            because = (
                f"at {position} a thread waits after an `if`: when it is woken, another thread may have changed "
                "the queue, and it goes on although its condition is false"
            )
            should = f"test again after the wait: a loop in place of the `if` before {position}"
        elif self.spurious_position and not keywords[self.spurious_position]:
            because = (
                f"a thread that woke at {self.spurious_position} went on although its condition was false"
            )
            should = f"test the condition of {self.spurious_position} in a loop (`while`; in Go `for`)"
        elif is_hang:
            # Only for its NotJudged, if the server serves one client at a time, or any number.
            self.scene.concurrency()
        self.scene.fail(
            did, should, because, sent="a burst of clients, to the server built with a race detector"
        )

    def expect_no_race(self) -> None:
        """Fail if the detector has reported a race in the student's files."""
        output = self.output()
        races: list[RaceReport] = self.build.reports(output)
        if not races:
            self.expect_reports()
            return
        # A report of a race explains itself: this check loses its points, also if an earlier check has failed.
        self.scene.findings.self_explained.add(self.scene.check)
        first, more = races[0], len(races) - 1
        others = f" ({more} more report{'s' if more > 1 else ''})" if more else ""
        self.scene.fail(
            first.did() + others,
            first.change(),
            first.cause(),
            sent="bursts of clients, to the server built with a race detector",
        )

    def expect_reports(self) -> None:
        """Fail if the server has ended as after a report of the detector, and has removed the report.

        A report about other files than the student's is no failure, and neither is that of a crash.
        """
        # Only the files of the detector count: the server may write these words to its own output.
        reported = self.build.reported_text()
        if self.scene.subject.process.poll() == REPORTED_STATUS and not any(
            word in reported for word in REPORT_WORDS
        ):
            self.scene.fail(
                f"the server ended with status {REPORTED_STATUS}, as after a report of the race detector, and the"
                " report is not there",
                "leave the files of the race detector alone",
                sent="bursts of clients, to the server built with a race detector",
            )

    def output(self) -> str:
        """Return the output of the server, and the reports of the detector. Fail if the output is not there."""
        try:
            text = read_regular(self.scene.subject.output, MAX_REPORT_BYTES).decode(errors="replace")
        except OSError:
            # The server has the grader's account. Without its output, a crash would be no failure.
            self.scene.fail(
                "the server has removed or replaced the file of its output",
                "leave this file alone: the grader reads in it how the server has ended",
            )
        return f"{text}\n{self.build.reported_text()}"

    def crash_position(self, output: str) -> str:
        """Return " at server.go:50, `...`" for the first place in the student's files that a crash names."""
        start = CRASH.search(output)
        for name, number in POSITION.findall(output[start.start() :] if start else ""):
            line = source_line(self.build.directory / name, int(number))
            if line and not name.startswith("ewe_unlucky"):  # the condition with bad luck (sanitizers.py)
                return f" at {name}:{number}, `{line}`"
        return ""

    # Where threads wait

    def traced_waits(self) -> Iterator[str]:
        """Yield the lines of the trace about waits: +server.c:41, -server.c:41 (unlucky/). Fail without a trace."""
        try:
            trace = open_regular(self.scene.subject.trace)
        except OSError:  # the server has the grader's account; the next runs depend on these places
            self.scene.fail(
                "the server has removed or replaced the file of its trace (EWE_TRACE)",
                "leave this file alone: the grader reads in it where threads wait for a condition",
            )
        # One line after the other: the program itself may fill the file, up to SandboxLimits.file_bytes.
        with trace:
            for line in trace:
                text = line.decode(errors="replace")
                if TRACED_WAIT.fullmatch(text):
                    yield text.rstrip("\n")

    def traced_positions(self) -> list[str]:
        return sorted({line[1:] for line in self.traced_waits()})

    def waiting_threads(self) -> Counter[str]:
        """Return how many threads wait for a condition at each place: "server.c:41" -> number of threads.

        The trace has a line "+server.c:41" for the beginning of such a wait, and "-server.c:41" for its end.
        """
        threads: Counter[str] = Counter()
        for line in self.traced_waits():
            threads[line[1:]] += 1 if line[0] == "+" else -1
        # The operator + of a Counter leaves out the places without a thread.
        return +threads

    def sleeping_text(self) -> str:
        """Describe where the threads of the server sleep: in waits of the trace, else in system calls."""
        found = [
            f"{number} in the wait at {position}"
            for position, number in sorted(self.waiting_threads().items())
        ]
        return f" (threads: {', '.join(found)})" if found else self.scene.blocked_text()

    def keyword_of(self, position: str) -> str:
        """Return the keyword of the statement that tests the condition of a wait: "while", "for" or "if".

        position: of the wait, as "server.c:41". The search goes up from its line, for LINES_BEFORE lines.
        Return "" if these lines have none of the keywords.
        """
        name, _, number = position.partition(":")
        for back in range(LINES_BEFORE):
            line = source_line(self.build.directory / name, int(number) - back)
            if found := re.search(r"\b(while|for|if)\b", COMMENT.sub("", line)):
                return found[1]
        return ""


@check(
    "shared-data",
    proves="threads share no data without a lock, as far as a race detector sees them in bursts of clients",
    sends="bursts of clients and SIGTERM, to the server built with -fsanitize=thread or `go build -race`",
    expects="no report of the detector; a response for each client; the end after SIGTERM",
    why="A data race shows once in a million runs: on the day when the server has the most clients.",
    hint="Build with -fsanitize=thread (C) or `go build -race`, and send many requests at once.",
    languages=("c", "go"),
)
def shared_data(scene: Scene) -> None:
    play_with_detector(scene, has_queue=False)
