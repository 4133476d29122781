"""The report of a submission that cannot be started: a missing file, a failed build, or a file that is not Python.

If a platform finds no results file, it shows "the autograder failed", and the student gets a mark without a reason.
But a submission that does not compile is not a failure of the grader. Every format therefore gets a report without
points. The first check shows the reason.
"""

from __future__ import annotations

from ewe_classroom.grader.scheme import Scheme
from ewe_classroom.grader.verdicts import FAILED, Report, Verdict


def refusal_report(
    lab: Scheme, shown: str, reason: str, student: str = "", *, seeded: bool = False
) -> Report:
    """Return a finished report without points. shown: the submission, as on the command line. seeded: by --seed."""
    verdicts = [Verdict(item.check.name, item.check.proves, item.points) for item in lab.items]
    if verdicts:
        first = verdicts[0]
        first.status, first.did = FAILED, f"nothing could be graded: {reason}"
        first.should = "hand in a program that starts; run the same command on your machine first"
        first.again = f"ewe-grade --lab {lab.name} {shown}"
        first.clip()
    return Report(
        lab=lab.name, title=lab.title, subject=shown, verdicts=verdicts, finished=True, student=student,
        seeded=seeded, refused=reason,
    )  # fmt: skip
