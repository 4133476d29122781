"""Verdicts: the result of a check, with its evidence; and the report of one run.

A verdict must convince a student who is sure that the server is right. It therefore has the evidence, as a client
sees it from outside:

    sent       the requests of the clients             did        the behaviour of the server
    should     the behaviour that was expected         because    the likely cause in the student's program
    steps      each step with its time, for the timeline and for `ewe-grade --replay`

A check ends in one of five ways (`status`):

    passed, failed     the check has proven it; `facts` are the evidence of a passed check
    not judged         another check has found a fault that hides the result of this one, or the machine lacks a
                       program: no points are lost by a fault that has cost its points already
    not run            the run has reached its limit of time
    error              the grader itself has failed

`waits`: a check that has ended may still become "not judged", as soon as a check on which it rests has run
(dependencies.py). Until then it has no points.

A server may write megabytes, or the control sequences of a terminal, into a text that a verdict quotes. clip() and
printable() make all texts harmless before they reach a file or a terminal.

Read next: grading.py, which fills verdicts in, and formats.py, which writes them.
"""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass, field
from typing import Any

PASSED, FAILED, NOT_RUN, ERROR = "passed", "failed", "not run", "error"
NOT_JUDGED = "not judged"  # what the check would have seen rests on something that another check has refuted
NOT_PRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
SCHEDULE_LABEL = "The smallest schedule"
MAX_TEXT_CHARS = 10_000  # characters of one text of a verdict
MAX_STEP_CHARS = 1000  # characters of the bytes of one step; a replay file contains all of them
GAP_NOTE_CHARS = 40  # room for the note that stands in place of the middle of a text


def printable(text: str) -> str:
    """Replace the control characters of a text (except line feeds and tabs) and its lone surrogates."""
    return NOT_PRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def clip(text: str, maximum: int) -> str:
    """Shorten a text to about `maximum` characters: a longer text loses its middle."""
    if len(text) <= maximum:
        return text
    kept = max(maximum - GAP_NOTE_CHARS, 2) // 2  # characters of the beginning, and as many of the end
    return f"{text[:kept]} [… {len(text) - 2 * kept} characters …] {text[-kept:]}"


@dataclass
class Verdict:
    """The result of one check. status "error": the grader itself has failed, and the server is not at fault."""

    name: str
    proves: str
    points: int  # the points of a passed check
    status: str = NOT_RUN
    facts: list[str] = field(default_factory=list)  # proven facts
    sent: str = ""
    did: str = ""
    should: str = ""
    because: str = ""
    why: str = ""
    hint: str = ""
    again: str = ""  # the command that repeats the check
    output: str = ""  # the last lines of the server's output
    seconds: float = 0.0
    steps: list[dict[str, Any]] = field(default_factory=list)
    earned: int | None = None  # the points of a check with partial points; None: all or nothing
    # The check has ended, but its result may become "not judged" as soon as another check has run.
    waits: bool = False
    # The timeline of the smallest schedule that fails, with a column for each thread (queue_races.py).
    schedule: str = ""

    @property
    def score(self) -> int:
        """The points of the check; 0 as long as its result may change."""
        if self.waits:
            return 0
        if self.earned is not None:
            return self.earned
        return self.points if self.status == PASSED else 0

    def make_not_judged(self, because: str) -> None:
        """Make the verdict "not judged", for this reason. Its texts about a failure are dropped."""
        self.status, self.because = NOT_JUDGED, because
        self.sent = self.did = self.should = self.schedule = ""

    @property
    def what_happened(self) -> str:
        """The behaviour of the server that the check found; "" if the check passed. In a report: `did`."""
        return self.did

    def clip(self) -> None:
        """Shorten the texts that quote the server, and remove the control sequences of a terminal from them."""
        for name in ("sent", "did", "should", "because", "schedule", "output"):
            setattr(self, name, clip(printable(getattr(self, name)), MAX_TEXT_CHARS))
        self.facts = [clip(printable(fact), MAX_TEXT_CHARS) for fact in self.facts]

    def text(self, maximum: int = MAX_TEXT_CHARS) -> str:
        """Return the verdict as paragraphs for a student, each of at most `maximum` characters."""
        if self.status == PASSED:
            return clip("; ".join(self.facts) or self.proves, maximum)
        if self.status == NOT_RUN:
            return clip(f"This check was not run{f': {self.because}' if self.because else '.'}", maximum)
        if self.status == NOT_JUDGED:
            return clip(f"Not judged: {self.because}", maximum)
        lines = [
            ("What was sent: ", self.sent),
            ("What happened: ", self.did),
            ("What should happen: ", self.should),
            ("Likely cause: ", self.because),
            (f"{SCHEDULE_LABEL}:\n", self.schedule),
            ("Why it matters: ", self.why),
            ("Hint: ", self.hint),
            ("See it again: ", self.again),
            ("The server wrote: ", self.output),
        ]
        return "\n".join(f"{label}{clip(text, maximum)}" for label, text in lines if text)


@dataclass
class Report:
    """One run of a lab's checks. A verdict is "not run" until its check has ended."""

    lab: str  # its name, as --lab takes it
    title: str  # of the lab
    subject: str  # the command that started the graded program, as in a shell
    verdicts: list[Verdict]
    began: float = field(default_factory=time.time)
    seconds: float = 0.0
    private_network: bool = False
    finished: bool = False
    student: str = ""  # the name that the reports show: of --student, or of --seed
    seeded: bool = False  # the numbers were those of --seed
    speed: dict[str, Any] | None = None  # the results of speed.py, if the speed was measured
    refused: str = ""  # the reason if the submission could not be started (refused.py)
    limit_s: float = 0.0  # of the run; checks that it did not reach are "not run"
    unprotected: bool = False  # the submission had the grader's account (sandbox.py)
    notes: list[str] = field(default_factory=list)  # for the lecturer: what the system did not allow
    starter_points: int | None = None  # that the lab's starter has at most; None if unknown
    restless: bool = False  # the server was never quiescent while it had nothing to do (scene.py)
    waited_s: float | None = None  # seconds for which the grader waited for a processor; None: not known

    @property
    def score(self) -> int:
        return sum(verdict.score for verdict in self.verdicts)

    @property
    def points(self) -> int:
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def failed(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.status in (FAILED, ERROR)]

    def first_advice(self) -> Verdict | None:
        """Return the failed check to begin with: the one with the most points.

        A check whose failure has its cause in another one is not among them: it is "not judged" (dependencies.py).
        If the server was never quiescent, the student begins with idle-cpu: nothing else can be judged well.
        """
        return max(
            self.failed,
            key=lambda verdict: (self.restless and verdict.name == "idle-cpu", verdict.points),
            default=None,
        )

    @property
    def all_passed(self) -> bool:
        """Return whether every check has passed, apart from those whose points do not count on this machine."""
        # Where the machine lacks a program that a check needs, the check is not judged and has 0 points.
        left_out = (NOT_JUDGED, 0)
        return all(
            verdict.status == PASSED or (verdict.status, verdict.points) == left_out
            for verdict in self.verdicts
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a table for JSON in the format ewe-grade/1, with every step."""
        table = asdict(self)
        table["verdicts"] = [
            {
                **asdict(verdict),
                "score": verdict.score,
                "text": verdict.text(),
                "steps": [
                    {**step, "bytes": clip(step["bytes"], MAX_STEP_CHARS)} if "bytes" in step else step
                    for step in verdict.steps
                ],
            }
            for verdict in self.verdicts
        ]
        return {"format": "ewe-grade/1", "score": self.score, "max_score": self.points, **table}
