"""Verdicts: what a check has found, with its evidence; and the report of one run."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass, field
from typing import Any

PASSED, FAILED, NOT_RUN, ERROR = "passed", "failed", "not run", "error"
NOT_PRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
MOST_OF_TEXT = 10_000  # characters of one text of a verdict
SHOWN_OF_STEP = 1000  # characters of what one step sent; a replay file holds all of them


def printable(text: str) -> str:
    """Return a text without control characters, other than line ends and tabs, and without halves of surrogates."""
    return NOT_PRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def clip(text: str, most: int) -> str:
    """Return a text of at most so many characters: a longer one loses its middle."""
    if len(text) <= most:
        return text
    kept = max(most - 40, 2) // 2
    return f"{text[:kept]} [… {len(text) - 2 * kept} characters …] {text[-kept:]}"


@dataclass
class Verdict:
    """What one check has found. status "error": the grader itself has failed, which is no fault of the server."""

    name: str
    proves: str
    points: int  # what a pass is worth
    status: str = NOT_RUN
    facts: list[str] = field(default_factory=list)  # what was found true
    sent: str = ""
    did: str = ""
    should: str = ""
    because: str = ""
    why: str = ""
    hint: str = ""
    again: str = ""  # one command to see it again
    output: str = ""  # the last lines that the server wrote
    seconds: float = 0.0
    steps: list[dict[str, Any]] = field(default_factory=list)
    earned: int | None = None  # the points of a check that gives parts of them; None: all or nothing

    @property
    def score(self) -> int:
        if self.earned is not None:
            return self.earned
        return self.points if self.status == PASSED else 0

    def clip(self) -> None:
        """Shorten what quotes the server, which decides how long it is; take out what would steer a terminal."""
        for name in ("sent", "did", "should", "because", "output"):
            setattr(self, name, clip(printable(getattr(self, name)), MOST_OF_TEXT))
        self.facts = [clip(printable(fact), MOST_OF_TEXT) for fact in self.facts]

    def text(self, most: int = MOST_OF_TEXT) -> str:
        """Return the verdict as paragraphs for a student, each of at most so many characters."""
        if self.status == PASSED:
            return clip("; ".join(self.facts) or self.proves, most)
        if self.status == NOT_RUN:
            return "This check was not run."
        lines = [
            ("What was sent", self.sent),
            ("What happened", self.did),
            ("What should happen", self.should),
            ("Likely cause", self.because),
            ("Why it matters", self.why),
            ("Hint", self.hint),
            ("See it again", self.again),
            ("The server wrote", self.output),
        ]
        return "\n".join(f"{label}: {clip(text, most)}" for label, text in lines if text)


@dataclass
class Report:
    """One run of a lab's checks. Verdicts are filled in as they come; the others are "not run"."""

    lab: str
    title: str
    subject: str
    verdicts: list[Verdict]
    began: float = field(default_factory=time.time)
    seconds: float = 0.0
    private_network: bool = False
    finished: bool = False
    student: str = ""  # the name of --seed
    speed: dict[str, Any] | None = None  # speed.py, if it was measured
    refused: str = ""  # why there was nothing to grade: refused.py

    @property
    def score(self) -> int:
        return sum(verdict.score for verdict in self.verdicts)

    @property
    def points(self) -> int:
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def failed(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.status in (FAILED, ERROR)]

    @property
    def all_passed(self) -> bool:
        return all(verdict.status == PASSED for verdict in self.verdicts)

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON, in ewe-grade's format, with every step."""
        table = asdict(self)
        table["verdicts"] = [
            {
                **asdict(verdict),
                "score": verdict.score,
                "text": verdict.text(),
                "steps": [
                    {**step, "bytes": clip(step["bytes"], SHOWN_OF_STEP)} if "bytes" in step else step
                    for step in verdict.steps
                ],
            }
            for verdict in self.verdicts
        ]
        return {"format": "ewe-grade/1", "score": self.score, "max_score": self.points, **table}
