"""One run: a lab's checks against one server, from the first start to the last verdict.

for each check:  a server (a new one if the check requires it, or if the check before has failed)
                 a scene ─▶ the check's function ─▶ Verdict: passed, failed with evidence, or error
                 on_verdict() gets the report, and can write it before the next check begins

A server for one client at a time cannot lose a wake-up or share a buffer, and so passes many checks without any
work. A lab therefore lets such checks *need* another one (`needs` in scheme.py): they give points only together
with it. The checks that others need run early.

One fault costs the points of one check. A check that meets a fault that an earlier check has found goes on without
that expectation, or with the number of workers that was found (`Findings` in scene.py). A check that cannot go on
is "not judged", and names the check on which it rests (dependencies.py).
"""

from __future__ import annotations

import json
import os
import shlex
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from ewe_classroom.grader import formats, go_cache, own_model, processes
from ewe_classroom.grader.check import Check
from ewe_classroom.grader.dependencies import (
    RACE,
    may_have_lost_worker,
    rest_on_cause,
    rest_on_need,
    waits_for_cause,
    waits_for_need,
)
from ewe_classroom.grader.kinds import DATA, SERVER, kind
from ewe_classroom.grader.processes import HiddenProcess, ThreadSample
from ewe_classroom.grader.sandbox import SandboxLimits
from ewe_classroom.grader.scene import (
    MIN_SERVER_TIMEOUT_S,
    FailedExpectation,
    Findings,
    MissingProgram,
    NotJudged,
    OutOfTime,
    Scene,
)
from ewe_classroom.grader.scheme import Item, Scheme
from ewe_classroom.grader.sources import find_sources
from ewe_classroom.grader.speed import SPEED, fill_in_verdict, run_speed
from ewe_classroom.grader.subject import FIRST_PORT, NotStarted, StartCommand, Subject
from ewe_classroom.grader.verdicts import ERROR, FAILED, NOT_JUDGED, NOT_RUN, PASSED, Report, Verdict
from ewe_classroom.seeds import Seed

MAX_ATTEMPTS = 3  # of a schedule, if a time limit of the server has disturbed it
# The server's threads and the grader wait for a processor for so long in a schedule: the machine was busy.
BUSY_MACHINE_S = 1.0
ATTEMPTS_BESIDE_RACE = 2  # more, of a check that has failed where the queue has a race (dependencies.py)
PORT_COUNT = 1000  # ports of the student's server in a private network, from the first one on
OUTPUT_LINES = 6  # of the server's output, in the verdict of a check that has not passed
FIRST_CHECK = "idle-cpu"  # what this check finds decides how the others wait (scene.py)
BUILDS_AGAIN = ("shared-data", "queue-races")  # these checks build a program in Go with the race detector
NOT_HIDDEN = (
    "The server could read the labs' solutions, and the submissions of a class: to hide them, the grader needs root"
    " or user namespaces."
)
REPLAY_FORMAT = "ewe-replay/1"


class CheckOfRun(NamedTuple):
    """A check of a run. item: its place in the scheme, with its points; None for the speed."""

    item: Item | None
    verdict: Verdict


def queued_s(tasks: Mapping[int, ThreadSample]) -> float:
    """Return for how long threads have waited for a processor since they began, all together, in seconds."""
    return sum(task.queued_s for task in tasks.values())


def note_fault_of_grader(verdict: Verdict) -> None:
    """Make a verdict an error, with the exception that is being handled. It is no fault of the submission."""
    verdict.status = ERROR
    verdict.did = f"the grader has a fault: {traceback.format_exc(limit=-3).strip()}"
    verdict.should = "report this fault of the grader, with the command that shows it"


class Grading:
    """Grades one server.

    start_command: how the server is started. scheme: the checks, and their points. directory: an empty directory
    that the server's account may enter. limits: of the sandbox. record: a directory for recordings of failed
    checks, if any. seed: makes the numbers of the checks. limit_s: of the whole run, 0: none. on_verdict: called
    after each check.
    """

    def __init__(
        self,
        start_command: StartCommand,
        scheme: Scheme,
        directory: Path,
        limits: SandboxLimits,
        *,
        private_network: bool = False,
        record: Path | None = None,
        measures_speed: bool = False,
        seed: Seed | None = None,
        student: str = "",
        limit_s: float = 0.0,
        on_verdict: Callable[[Report, Verdict], None] = lambda report, verdict: None,
    ) -> None:
        self.start_command = start_command
        self.scheme = scheme = scheme.checks_for_language(start_command.language)
        self.directory = directory
        self.limits = limits
        self.private_network = private_network
        self.record = record
        self.measures_speed = measures_speed or bool(scheme.speed.marks)
        self.seed = seed
        self.student = student or (seed.name if seed is not None else "")
        self.first_port = seed.port if seed is not None else FIRST_PORT
        self.limit_s = limit_s
        self.began = time.monotonic()  # of the run
        self.deadline = float("inf")  # of the whole run (time.monotonic())
        # For how long the grader had waited for a processor before the run; None: unknown.
        self.waited_before_s: float | None = None
        self.never_sleeps = False  # the check idle-cpu has found that the server never sleeps
        self.findings = Findings()
        self.fault = ""  # the name of the fault by which the last check has failed (Scene.fail_once())
        self.on_verdict = on_verdict
        self.kind = kind(scheme.kind)
        self.site = self.kind.site(directory, seed)  # the files that the server serves
        self.starts = 0  # how often a server was started
        self.subject: Subject | None = None  # the running server

    def empty_report(self) -> Report:
        """Return a report in which no check has run: each of its verdicts is "not run"."""
        runs_program = self.scheme.kind != DATA  # the data of a measurement is only read
        verdicts = [self.empty_verdict(item) for item in self.scheme.items]
        if self.measures_speed:
            verdicts.append(self.empty_verdict(Item(SPEED, self.scheme.speed.points)))
        return Report(
            lab=self.scheme.name,
            title=self.scheme.title,
            subject=shlex.join(self.start_command.command),
            verdicts=verdicts,
            private_network=self.private_network,
            student=self.student,
            seeded=self.seed is not None,
            limit_s=self.limit_s,
            starter_points=self.scheme.starter_points,
            unprotected=self.limits.account is None and runs_program,
            notes=[NOT_HIDDEN] if runs_program and not self.limits.hidden else [],
        )

    def empty_verdict(self, item: Item) -> Verdict:
        """Return the verdict of a check that has not run, with the command that repeats the check."""
        check = item.check
        hint = " ".join(part for part in (check.hint, item.hint) if part)
        verdict = Verdict(check.name, check.proves, item.points, sent=check.sends, why=check.why, hint=hint)
        seed = f"--seed {shlex.quote(self.seed.name)} " if self.seed is not None else ""
        verdict.again = (
            f"ewe-grade --lab {self.scheme.name} {seed}--only {check.name} {self.start_command.shown}"
        )
        return verdict

    def run(self) -> Report:
        """Run every check: FIRST_CHECK, then the checks that others need, then the others. Return the report."""
        report = self.empty_report()
        checks = {item.check.name for item in self.scheme.items}
        if self.start_command.language == "go" and checks.intersection(BUILDS_AGAIN):
            # The first build with the race detector takes a minute, which is not the student's.
            go_cache.warm_up(own_account=self.limits.account is None)
        self.waited_before_s = processes.waited_s()
        self.began = time.monotonic()
        self.deadline = self.began + self.limit_s if self.limit_s else float("inf")
        self.findings = Findings(sources_digest=self.sources_digest())
        # Verdicts that depend on checks that have not run yet.
        waiting: list[CheckOfRun] = []
        try:
            for item, verdict in self.in_order(report.verdicts):
                began = time.monotonic()
                if began > self.deadline:
                    verdict.because = self.limit_text()
                elif item is None:
                    report.speed = self.run_speed(verdict)
                else:
                    self.run_check(item, verdict)
                    self.note_faults(verdict)
                verdict.seconds = round(time.monotonic() - began, 3)
                report.restless = self.never_sleeps
                self.update_times(report)
                verdict.clip()
                # This check may be the one for which earlier verdicts have waited.
                waiting = self.hand_over(report, [*waiting, CheckOfRun(item, verdict)])
        finally:
            self.end_subject()
        report.finished = True
        return report

    def in_order(self, verdicts: list[Verdict]) -> list[CheckOfRun]:
        """Return the verdicts with their items in the order of the run: FIRST_CHECK, the needed checks, the others.

        The verdict of the speed, which is the last one, has no item: None.
        """
        checks = [CheckOfRun(item, verdict) for item, verdict in zip_longest(self.scheme.items, verdicts)]
        needed = {name for item in self.scheme.items for name in item.needs}
        # False comes before True, and sorted() keeps the order of equal keys.
        return sorted(
            checks, key=lambda each: (each.verdict.name != FIRST_CHECK, each.verdict.name not in needed)
        )

    def note_faults(self, verdict: Verdict) -> None:
        """Note for later checks that this one has failed, and by which fault, if no earlier one failed by it."""
        if verdict.status == FAILED:
            for name in filter(None, (verdict.name, self.fault)):
                self.findings.faults.setdefault(name, verdict.name)

    def update_times(self, report: Report) -> None:
        """Write into a report how long the run has taken, and how long the grader has waited for a processor."""
        report.seconds = round(time.monotonic() - self.began, 3)
        if self.waited_before_s is not None:
            report.waited_s = round((processes.waited_s() or 0.0) - self.waited_before_s, 3)

    def sources_digest(self) -> str:
        """Return the digest of the source files beside the program, for the findings; "" if there are none."""
        if self.scheme.kind != SERVER:
            return ""
        sources = find_sources(self.start_command.command, self.start_command.directory)
        return sources.digest() if sources is not None else ""

    def hand_over(self, report: Report, waiting: list[CheckOfRun]) -> list[CheckOfRun]:
        """Hand the verdicts that are final to on_verdict(); return the others. waiting: checks that have ended."""
        # First for all of them: on_verdict() saves the whole report, with the verdicts that come later in the list.
        for each in waiting:
            each.verdict.waits = True
        while True:
            left = [each for each in waiting if not self.hand_over_if_judged(report, each.item, each.verdict)]
            # One that is final now may be the one for which a verdict before it in the list has waited.
            if len(left) == len(waiting):
                return left
            waiting = left

    def hand_over_if_judged(self, report: Report, item: Item | None, verdict: Verdict) -> bool:
        """Hand a verdict to on_verdict(); return False if it has to wait for a check that it needs, or rests on.

        dependencies.py has the rules, and explains their order. item: None for the speed, which rests on no check.
        """
        if item is not None:
            if waits_for_cause(report, verdict, self.findings):
                return False
            # Not before its causes have run: a verdict that has to wait for them would have attempts each time.
            if may_have_lost_worker(report, verdict):
                self.run_again_beside_race(report, item, verdict)
            rest_on_cause(report, verdict, self.findings)
            if waits_for_need(report, verdict, item.needs):
                return False
            rest_on_need(report, verdict, item.needs, self.findings)
        verdict.waits = False
        self.on_verdict(report, verdict)
        return True

    def run_again_beside_race(self, report: Report, item: Item, verdict: Verdict) -> None:
        """Run a failed check again, since a race in the queue may have cost a worker; keep a passed attempt.

        The first verdict stays if no attempt passes, or the run reaches its limit.
        """
        began = time.monotonic()
        for attempt in range(2, 2 + ATTEMPTS_BESIDE_RACE):
            if time.monotonic() > self.deadline:
                break
            passes = self.passes_again(item, verdict, attempt)
            self.update_times(report)  # this attempt may be the last step of the run
            if passes:
                break
        verdict.seconds = round(verdict.seconds + time.monotonic() - began, 3)
        verdict.clip()

    def passes_again(self, item: Item, verdict: Verdict, attempt: int) -> bool:
        """Run a failed check once more; if it passes, write that into its verdict, and return True.

        attempt: the number of this attempt, from 2 on.
        """
        again = self.empty_verdict(item)
        self.run_check(item, again)
        if again.status == PASSED:
            verdict.status, verdict.steps, verdict.sent = PASSED, again.steps, again.sent
            verdict.did = verdict.should = verdict.because = verdict.output = ""
            verdict.facts = [
                *again.facts,
                f"it passed at attempt {attempt}: in the one before, a worker may have been lost (see {RACE})",
            ]
            faults = self.findings.faults
            self.findings.faults = {name: owner for name, owner in faults.items() if owner != verdict.name}
        if self.record is not None:
            self.write_replay(verdict)  # in place of that of an attempt which the report does not show
        return verdict.status == PASSED

    def run_check(self, item: Item, verdict: Verdict) -> None:
        """Run one check; fill in its verdict.

        A server may disconnect a client that sends or reads nothing for some seconds. On a busy machine a schedule
        can take so long; the gate of that client then opens by itself. A fault after this proves nothing, so the
        check is run again. It is "not judged" if the last attempt fails in this way, too, while threads of the
        server and of the grader have waited for a processor. No time limit explains a data race that a race
        detector has seen.
        """
        for _ in range(MAX_ATTEMPTS):
            scene = self.run_check_once(item, verdict)
            if scene is None or verdict.status not in (PASSED, FAILED):
                return
            is_disturbed = verdict.status == FAILED and scene.may_have_timed_out()
            # unproved: the waits that ended although a server that is never quiescent could still have acted.
            if scene.unproved or (is_disturbed and self.never_sleeps):
                self.rest_on_idle_cpu(verdict, scene)
                return
            if not is_disturbed:
                return
        is_race = verdict.name in self.findings.self_explained
        if scene is not None and scene.queued_s >= BUSY_MACHINE_S and not is_race:
            verdict.make_not_judged(
                f"the machine was too busy: in {MAX_ATTEMPTS} attempts the server disconnected a client that had "
                f"waited for {MIN_SERVER_TIMEOUT_S:g} s or more, which a time limit may do. Grade again when the "
                f"machine has less to do. What happened here: {verdict.did}"
            )

    def rest_on_idle_cpu(self, verdict: Verdict, scene: Scene) -> None:
        """Make a verdict "not judged": a server that is never quiescent could still have acted."""
        if verdict.name == FIRST_CHECK:  # this check has found the busy waiting, so its verdict stays
            return
        waited = f" (here: {scene.unproved[0]})" if scene.unproved else ""
        verdict.make_not_judged(
            f"it rests on {FIRST_CHECK}: the server is never quiescent, so the end of a wait does not show that it "
            f"will not act{waited}. Mend the busy waiting first."
        )

    def limit_text(self) -> str:
        """Return why a check was not run."""
        return f"the run had reached its limit of {self.limit_s:g} s (--limit)"

    def run_check_once(self, item: Item, verdict: Verdict) -> Scene | None:
        """Run one check once; fill in its verdict. Return its scene, or None if the server did not start."""
        scene: Scene | None = None
        queued_before_s = queued_s(processes.tasks([os.getpid()]))
        self.fault = ""
        # An earlier attempt may have left texts
        verdict.sent, verdict.did, verdict.should, verdict.because = item.check.sends, "", "", ""
        verdict.output = verdict.schedule = ""
        try:
            if item.check.fresh:
                self.end_subject()
            scene = self.kind.scene(self.running_subject(item.check), item.options)
            scene.deadline = self.deadline
            scene.never_sleeps, scene.findings = self.never_sleeps, self.findings
            scene.check = item.check.name
            item.check.function(scene)
            verdict.status = PASSED
        except Exception as reason:
            self.note_reason(verdict, reason)
        if scene is not None:
            scene.close()
            self.note_scene(verdict, scene, queued_before_s)
        if item.check.fresh or verdict.status != PASSED:
            self.end_subject()
        return scene

    def note_reason(self, verdict: Verdict, reason: Exception) -> None:
        """Fill in the verdict of a check that has ended by an exception, which is being handled.

        Each way in which a check may end has a separate exception: a failed expectation, the limit of the run, a
        missing program. Any other exception is a fault of the grader.
        """
        match reason:
            case FailedExpectation():
                verdict.status = FAILED
                self.fault = reason.name
                verdict.sent = reason.sent or verdict.sent
                verdict.did, verdict.should, verdict.because = reason.did, reason.should, reason.because
            case NotStarted():
                verdict.status = FAILED
                verdict.did, verdict.output = str(reason), reason.output
                verdict.should = "start, and listen on the port that the command line names"
            case HiddenProcess():
                verdict.status, verdict.did = FAILED, str(reason)
                verdict.should = (
                    "let the grader read /proc/PID of the server's processes: descriptors in fd, counts in io"
                )
            case NotJudged():
                verdict.status, verdict.because = NOT_JUDGED, str(reason)
            case MissingProgram():
                verdict.status, verdict.points = NOT_JUDGED, 0
                verdict.because = f"{reason}. Its points do not count."
            case OutOfTime():
                verdict.status, verdict.because = NOT_RUN, f"{self.limit_text()} within this check"
            case _:
                note_fault_of_grader(verdict)

    def note_scene(self, verdict: Verdict, scene: Scene, queued_before_s: float) -> None:
        """Take the evidence of a check from its scene, and the server with which the scene has ended.

        queued_before_s: for how long the grader's threads had waited for a processor before the check.
        """
        self.subject = scene.subject  # a scene may have started the server again
        self.never_sleeps = scene.never_sleeps
        verdict.facts, verdict.schedule = scene.confirmations, scene.schedule
        verdict.steps = scene.steps
        if verdict.status != PASSED:
            verdict.output = self.subject.log(OUTPUT_LINES)
        if verdict.status == FAILED and scene.may_have_timed_out():
            # Now, since the caller ends the server and its threads.
            own_s = queued_s(processes.tasks([os.getpid()])) - queued_before_s
            scene.queued_s = own_s + queued_s(self.subject.tasks())
        if self.record is not None:
            self.write_replay(verdict)

    def run_speed(self, verdict: Verdict) -> dict[str, object] | None:
        """Measure the speed beside the reference; fill in the verdict. Return the figures, or None without any."""
        self.end_subject()
        try:
            subject = self.running_subject()
            # In a separate network, the reference may have the port of the student's server.
            port = subject.port if self.private_network else processes.free_port()
            speed = run_speed(
                subject, self.scheme.speed, self.scheme.name, self.directory, port,
                own_network=self.private_network,
            )  # fmt: skip
        except (NotStarted, FailedExpectation) as problem:
            verdict.status, verdict.earned = FAILED, 0
            verdict.did = str(problem)
            verdict.output = problem.output if isinstance(problem, NotStarted) else ""
            verdict.should = "start, and go on serving"
            return None
        except Exception:
            note_fault_of_grader(verdict)
            verdict.earned = 0
            return None
        fill_in_verdict(speed, verdict, self.scheme.speed)
        if verdict.status != PASSED:
            verdict.output = subject.log(OUTPUT_LINES)
        return speed.as_dict()

    def running_subject(self, check: Check | None = None) -> Subject:
        """Return a running server that suits the check; start one if necessary. Raises NotStarted."""
        descriptors = check.descriptors if check is not None else 0
        environment = check.environment if check is not None else {}
        if self.subject is not None and (not self.subject.alive() or self.subject.environment != environment):
            self.end_subject()
        if self.subject is None:
            # In a private network every port is free, and each start gets another one.
            port = (
                self.first_port + self.starts % PORT_COUNT if self.private_network else processes.free_port()
            )
            self.starts += 1
            limits = replace(
                self.limits,
                descriptors=descriptors or self.limits.descriptors,
                also_hidden=own_model.hidden_parts(self.start_command.language) if self.limits.hidden else (),
            )
            subject: Subject = self.kind.subject(
                self.start_command, self.site, self.scheme.workers, limits, port, self.directory / "output",
                environment,
            )  # fmt: skip
            self.subject = subject.__enter__()  # waits until it listens; end_subject() ends it
        return self.subject

    def end_subject(self) -> None:
        """Stop the server, if one runs. The next check starts another one."""
        if self.subject is not None:
            self.subject.close()
            self.subject = None

    def write_replay(self, verdict: Verdict) -> None:
        """Write the steps of a check with their times as JSON lines, for `ewe-grade --replay FILE`.

        Raises ConfigError.
        """
        assert self.record is not None
        head: dict[str, object] = {"format": REPLAY_FORMAT, "check": verdict.name, "lab": self.scheme.name}
        head |= {"workers": self.scheme.workers, "status": verdict.status}
        lines = [json.dumps(line) for line in [head, *verdict.steps]]
        formats.write(self.record / f"{verdict.name}.jsonl", "\n".join(lines) + "\n")
