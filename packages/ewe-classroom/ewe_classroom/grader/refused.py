"""The report of a submission that cannot be started: no such file, not built, or not Python.

A platform that finds no results file shows its students "the autograder failed", and a mark without a reason. A
submission that does not compile is no failure of the grader. Every format gets a report: no points, and the
reason with the first check.
"""

from __future__ import annotations

from ewe_classroom.grader.scheme import Scheme
from ewe_classroom.grader.verdicts import FAILED, Report, Verdict


def refused(lab: Scheme, shown: str, reason: str, student: str = "") -> Report:
    """Return a finished report without points. shown: what was to be graded, as on the command line."""
    verdicts = [Verdict(item.check.name, item.check.proves, item.points) for item in lab.items]
    if verdicts:
        first = verdicts[0]
        first.status, first.did = FAILED, f"nothing could be graded: {reason}"
        first.should = "be a program that starts; run the same command on your machine first"
        first.again = f"ewe-grade --lab {lab.name} {shown}"
        first.clip()
    return Report(lab.name, lab.title, shown, verdicts, finished=True, student=student, refused=reason)
