"""One run: a lab's checks against one server, from the first start to the last verdict.

for each check:  a server (a new one if the check asks for it, or if the check before has failed)
                 a scene ─▶ the check's function ─▶ Verdict: passed, failed with evidence, or error
                 the report is handed out, so that it can be written before the next check begins
"""

from __future__ import annotations

import json
import shlex
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from ewe_classroom.grader import processes
from ewe_classroom.grader.check import Check
from ewe_classroom.grader.kinds import kind
from ewe_classroom.grader.sandbox import Limits
from ewe_classroom.grader.scene import Fault, Scene
from ewe_classroom.grader.scheme import Item, Scheme
from ewe_classroom.grader.speed import SPEED, judge, run_speed
from ewe_classroom.grader.subject import FIRST_PORT, NotStarted, Recipe, Subject
from ewe_classroom.grader.verdicts import ERROR, FAILED, PASSED, Report, Verdict
from ewe_classroom.seeds import Seed

ATTEMPTS = 3  # at a schedule that a server's time limit has broken
REPLAY_FORMAT = "ewe-replay/1"


class Grading:
    """Grades one server. `directory` is empty, and the server's account may enter it."""

    def __init__(
        self,
        recipe: Recipe,
        scheme: Scheme,
        directory: Path,
        limits: Limits,
        *,
        private_network: bool = False,
        record: Path | None = None,
        measures_speed: bool = False,
        seed: Seed | None = None,
        on_verdict: Callable[[Report, Verdict], None] = lambda report, verdict: None,
    ) -> None:
        self.recipe = recipe
        self.scheme = scheme
        self.directory = directory
        self.limits = limits
        self.private_network = private_network
        self.record = record
        self.measures_speed = measures_speed or bool(scheme.speed.marks)
        self.seed = seed
        self.first_port = seed.port if seed is not None else FIRST_PORT
        self.on_verdict = on_verdict
        self.kind = kind(scheme.subject)
        self.site = self.kind.site(directory, seed)
        self.starts = 0
        self.subject: Subject | None = None

    def report(self) -> Report:
        """Return a report in which no check has run."""
        verdicts = [self.verdict(item) for item in self.scheme.items]
        if self.measures_speed:
            verdicts.append(self.verdict(Item(SPEED, self.scheme.speed.points)))
        return Report(
            self.scheme.name,
            self.scheme.title,
            shlex.join(self.recipe.command),
            verdicts,
            private_network=self.private_network,
            student=self.seed.name if self.seed is not None else "",
        )

    def verdict(self, item: Item) -> Verdict:
        check = item.check
        hint = " ".join(part for part in (check.hint, item.hint) if part)
        verdict = Verdict(check.name, check.proves, item.points, sent=check.sends, why=check.why, hint=hint)
        seed = f"--seed {shlex.quote(self.seed.name)} " if self.seed is not None else ""
        verdict.again = f"ewe-grade --lab {self.scheme.name} {seed}--only {check.name} {self.recipe.shown}"
        return verdict

    def run(self) -> Report:
        """Run every check; return the report."""
        report = self.report()
        start = time.monotonic()
        try:
            for verdict, item in zip_longest(report.verdicts, self.scheme.items):
                began = time.monotonic()
                if item is None:
                    report.speed = self.run_speed(verdict)
                else:
                    self.run_check(item, verdict)
                verdict.seconds = round(time.monotonic() - began, 3)
                report.seconds = round(time.monotonic() - start, 3)
                verdict.clip()
                self.on_verdict(report, verdict)
        finally:
            self.end_subject()
        report.finished = True
        return report

    def run_check(self, item: Item, verdict: Verdict) -> None:
        """Run one check; fill in its verdict.

        A server may give up a client that sends or reads nothing for some seconds. On a busy machine a schedule can
        take so long, and a gate then opens by itself. A fault that comes after this proves nothing: the check is
        run again.
        """
        for _ in range(ATTEMPTS):
            scene = self.run_once(item, verdict)
            late = scene is not None and verdict.status == FAILED and scene.gave_up()
            if not late:
                return

    def run_once(self, item: Item, verdict: Verdict) -> Scene | None:
        """Run one check once; fill in its verdict; return its scene, None if the server did not start."""
        scene: Scene | None = None
        try:
            if item.check.fresh:
                self.end_subject()
            scene = self.kind.scene(self.running_subject(item.check), item.options)
            item.check.function(scene)
            verdict.status = PASSED
        except NotStarted as problem:
            verdict.status = FAILED
            verdict.did, verdict.output = str(problem), problem.output
            verdict.should = "start, and listen on the port that the command line names"
        except Fault as fault:
            verdict.status = FAILED
            verdict.sent = fault.sent or verdict.sent
            verdict.did, verdict.should, verdict.because = fault.did, fault.should, fault.because
        except Exception:
            verdict.status = ERROR
            verdict.did = f"the grader has a fault: {traceback.format_exc(limit=-3).strip()}"
            verdict.should = "report it, with the command that shows it"
        if scene is not None:
            scene.close()
            self.subject = scene.subject
            verdict.facts = scene.confirmations
            verdict.steps = scene.steps
            if verdict.status != PASSED:
                verdict.output = self.subject.log(6)
            if self.record is not None:
                self.write_replay(verdict)
        if item.check.fresh or verdict.status != PASSED:
            self.end_subject()
        return scene

    def run_speed(self, verdict: Verdict) -> dict[str, object] | None:
        """Measure the speed beside the reference; fill in its verdict; return what was measured."""
        self.end_subject()
        try:
            subject = self.running_subject()
            port = subject.port + 1000 if self.private_network else processes.free_port()
            speed = run_speed(subject, self.scheme.speed, self.scheme.name, self.directory, port)
        except (NotStarted, Fault) as problem:
            verdict.status, verdict.earned = FAILED, 0
            verdict.did = str(problem)
            verdict.output = problem.output if isinstance(problem, NotStarted) else ""
            verdict.should = "start, and go on serving"
            return None
        except Exception:
            verdict.status, verdict.earned = ERROR, 0
            verdict.did = f"the grader has a fault: {traceback.format_exc(limit=-3).strip()}"
            verdict.should = "report it, with the command that shows it"
            return None
        judge(speed, verdict, self.scheme.speed)
        if verdict.status != PASSED:
            verdict.output = subject.log(6)
        return speed.as_dict()

    def running_subject(self, check: Check | None = None) -> Subject:
        """Return the server, started if none runs as the check wants it. Raises NotStarted."""
        descriptors = check.descriptors if check is not None else 0
        environment = check.environment if check is not None else {}
        if self.subject is not None and (not self.subject.alive() or self.subject.environment != environment):
            self.end_subject()
        if self.subject is None:
            port = self.first_port + self.starts % 1000 if self.private_network else processes.free_port()
            self.starts += 1
            limits = replace(self.limits, descriptors=descriptors or self.limits.descriptors)
            subject: Subject = self.kind.subject(
                self.recipe, self.site, self.scheme.workers, limits, port, self.directory / "output",
                environment,
            )  # fmt: skip
            self.subject = subject.__enter__()
        return self.subject

    def end_subject(self) -> None:
        if self.subject is not None:
            self.subject.close()
            self.subject = None

    def write_replay(self, verdict: Verdict) -> None:
        """Write what was sent, and when, as JSON lines: `ewe-grade --replay FILE` sends it again."""
        assert self.record is not None
        self.record.mkdir(parents=True, exist_ok=True)
        head: dict[str, object] = {"format": REPLAY_FORMAT, "check": verdict.name, "lab": self.scheme.name}
        head |= {"workers": self.scheme.workers, "status": verdict.status}
        lines = [json.dumps(line) for line in [head, *verdict.steps]]
        (self.record / f"{verdict.name}.jsonl").write_text("\n".join(lines) + "\n")
