"""Which checks rest on which: one fault costs the points of one check, and the others name it.

A check sees more than its own subject. A client that reads 8 MB sees a short send(), whether the check is about
large files or about the end of the server. The check that is meant for the fault says so in its own words. Each
other check that fails with it would send a student to the wrong place. Its verdict is therefore "not judged: it
rests on answers", as soon as both have run:

    drain ─▶ stop ─▶ queue-races      all three have failed: the report begins with queue-races

RESTS has these pairs, each with the reason. A pair belongs here if the failure of the second check explains a
failure of the first for each kind of server. A check that passes is never touched, nor one that has failed by a
race which a race detector has seen (Findings.self_explained): a race explains itself. What one fault of the zoo
costs beside its check and those that rest on it is in docs/kill-matrix.md (tests/matrix.py), with the reasons.

A race in a queue ends a worker, or leaves one asleep, in some runs only. A check that needs every worker then fails
in some runs, and two servers with the same fault would have different marks. Such a check therefore has more
attempts as soon as RACE has failed, and gets its points if it passes once: RACE has the points of the fault.

Grading.hand_over_if_judged() applies these rules in this order before a verdict is final:

    a failed check   waits_for_cause()        wait until the checks on which it rests, and RACE, have verdicts
                     may_have_lost_worker()   give it more attempts, of which one may pass
                     rest_on_cause()          "not judged" if a check on which it rests has failed
    a passed check   waits_for_need()         wait until the checks that it needs (scheme.py) have verdicts
                     rest_on_need()           "not judged" if one of these has not passed
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ewe_classroom.grader.verdicts import FAILED, NOT_JUDGED, NOT_RUN, PASSED, Report, Verdict

if TYPE_CHECKING:
    from ewe_classroom.grader.scene import Findings

SLOW = "its clients read large files, which a server must send to the end"
ONE = "it needs a server that goes on beside stalled clients"
MIXED = "its clients get files at the same time"
HALVES = "its clients send half a request first"
ORDER = "it takes the order of the lower layers for granted"
SCRIPTS = "X-Switch gives such requests to the engine"

RESTS: dict[str, dict[str, str]] = {
    "half-close": {
        "answers": "its client compares a file, too",
        "content-length": "its client reads to that length",
    },
    "pipelined": {
        "byte-by-byte": "the second request arrives in another piece than the first",
        "keep-alive": "the second response needs a connection that stays open",
    },
    "keep-alive": {"parent-lets-go": "a connection ends when the last process has closed it"},
    "slow-readers": {
        "answers": SLOW,
        "progress": ONE,
        "own-answers": MIXED,
        "no-deadlock": "threads that block each other serve nobody",
    },
    "idle-clients": {"progress": ONE},
    "bursts": {"second-client": ONE, "queue-races": "a burst is one of the orders in which the queue runs"},
    "exactly-n": {"queue-races": "a worker that a race in the queue ends or leaves asleep is missing here"},
    "bound": {"queue-races": "the queue must wake put() when there is room"},
    "pause": {"idle-cpu": "a loop that never sleeps does not pause"},
    "silence": {"second-client": "a loop that waits for one client does not look at the time of the others"},
    "own-answers": {"answers": SLOW, "byte-by-byte": HALVES},
    "no-deadlock": {
        "answers": SLOW,
        "own-answers": MIXED,
        "backlog": "some of its clients wait in the backlog",
    },
    "fifo": {
        "progress": "it fills all workers first",
        "backlog": "its clients wait in the backlog",
    },
    "who-works": {"progress": ONE, "byte-by-byte": HALVES},
    "descriptors": {"parent-lets-go": "a connection that the parent keeps is an open descriptor"},
    "memory": {"who-works": "a thread that stays keeps its memory"},
    "shared-data": {
        "progress": ONE,
        "memory": "a race detector keeps more than the program for each thread that keeps memory, and ends late",
    },
    "child-killed": {
        "progress": ONE,
        "parent-lets-go": "a connection ends when the last process has closed it",
    },
    "stop": {
        "queue-races": "the stop wakes the workers that wait in the queue",
        "zombies": "a server that does not know its children cannot wait for them",
    },
    "drain": {
        "stop": "it needs a server that ends",
        "answers": SLOW,
        "progress": ONE,
        "who-works": "the end waits for the threads of connections",
    },
    "cgi-timeout": {
        "cgi-deadlock": "its program writes more than a pipe holds",
        "cgi-leaks": "the program's end is known only to a server that waits for it and closes its pipes",
    },
    "cgi-leaks": {"cgi-body": "a program that waits for its body does not end"},
    "cgi-inherits": {"cgi-progress": "it looks at two programs that run at the same time"},
    "order-sff": {"order-fifo": ORDER},
    "order-patience": {"order-fifo": ORDER, "order-sff": ORDER},
    "queue-bound": {"order-fifo": ORDER},
    "drop-oldest": {"order-fifo": ORDER, "queue-bound": "only a full queue drops"},
    "drop-largest": {
        "order-sff": ORDER,
        "queue-bound": "only a full queue drops",
        "drop-oldest": "both need a request that is dropped",
    },
    "trace": {
        "order-fifo": "the trace tells this order",
        "order-sff": "the trace tells this order",
        "queue-bound": "the trace tells who was refused",
    },
    "tag-lists": {"not-modified": "its answers are 304, too"},
    "modified-since": {"not-modified": "its answers are 304, too"},
    "precedence": {"not-modified": "its answers are 304, too"},
    "preconditions": {
        "not-modified": "its answers are 304, too",
        "tag-lists": "its fields hold lists of tags",
    },
    "engine-xswitch": {
        "engine-answers": SCRIPTS,
        "engine-persistent": SCRIPTS,
        "engine-environment": SCRIPTS,
        "engine-output": SCRIPTS,
        "engine-input": SCRIPTS,
    },
    "runs-little": {"runs-server-log": "it counts the requests of the data"},
    "runs-latency": {"runs-complete": "it compares times of the data"},
    "runs-open-loop": {"runs-server-log": "it compares the requests of the data with the plan"},
}


RACE = "queue-races"
NEEDS_EVERY_WORKER = ("progress", "slow-readers", "fifo", "exactly-n")


def rests_on(check: str) -> dict[str, str]:
    """Return the checks on which a check rests, each with the reason."""
    return RESTS.get(check, {})


def is_not_run_yet(verdict: Verdict) -> bool:
    """Return whether a check has still to run."""
    return verdict.status == NOT_RUN and not verdict.because


def may_pass_yet(verdict: Verdict) -> bool:
    """Return whether a check that has failed may have another attempt (Grading.run_again_beside_race())."""
    return verdict.waits and verdict.status == FAILED and verdict.name in NEEDS_EVERY_WORKER


def waits_for_cause(report: Report, verdict: Verdict, findings: Findings) -> bool:
    """Return whether a failed check waits: for one that may explain its failure, or for RACE (more attempts)."""
    others = [*possible_causes(report, verdict, findings), *races(report, verdict)]
    return verdict.status == FAILED and any(is_not_run_yet(each) or may_pass_yet(each) for each in others)


def may_have_lost_worker(report: Report, verdict: Verdict) -> bool:
    """Return whether a check may have failed only because a race in the queue has cost a worker."""
    return verdict.status == FAILED and any(race.status == FAILED for race in races(report, verdict))


def rest_on_cause(report: Report, verdict: Verdict, findings: Findings) -> None:
    """Make a failed check "not judged" if one on which it rests has failed, too, or is "not judged" itself.

    A check without points explains nothing, nor does one that the server passes (Findings.passed_without_need): its
    points are lost to a need alone.
    """
    if verdict.status != FAILED:
        return
    for cause in possible_causes(report, verdict, findings):
        if (
            cause.status in (FAILED, NOT_JUDGED)
            and cause.points
            and cause.name not in findings.passed_without_need
        ):
            verdict.make_not_judged(
                f"it rests on {cause.name}: {rests_on(verdict.name)[cause.name]}. Mend that first. "
                f"What happened here: {verdict.did}"
            )
            return


def waits_for_need(report: Report, verdict: Verdict, needs: Collection[str]) -> bool:
    """Return whether a passed check waits for one that it needs. needs: the names of these checks."""
    missing = missing_needs(report, needs)
    return verdict.status == PASSED and any(is_not_run_yet(each) or each.waits for each in missing)


def rest_on_need(report: Report, verdict: Verdict, needs: Collection[str], findings: Findings) -> None:
    """Make a passed check "not judged" if one that it needs has not passed, and note in `findings` that it passes.

    needs: the names of the checks that it needs.
    """
    missing = missing_needs(report, needs)
    if verdict.status != PASSED or not missing:
        return
    findings.passed_without_need.add(verdict.name)
    verdict.status = NOT_JUDGED
    verdict.because = (
        f"it rests on {missing[0].name}. This server passes {verdict.name}, and so does one without any "
        f"work on this lab: the points come as soon as {missing[0].name} passes."
    )


def possible_causes(report: Report, verdict: Verdict, findings: Findings) -> list[Verdict]:
    """Return the verdicts on which a check rests. A race that a detector has seen explains itself: []."""
    reasons = {} if verdict.name in findings.self_explained else rests_on(verdict.name)
    return [other for other in report.verdicts if other.name in reasons]


def races(report: Report, verdict: Verdict) -> list[Verdict]:
    """Return the verdict of RACE, in a list, if a check needs every worker; else []."""
    needs_every_worker = verdict.name in NEEDS_EVERY_WORKER
    return [other for other in report.verdicts if needs_every_worker and other.name == RACE]


def missing_needs(report: Report, needs: Collection[str]) -> list[Verdict]:
    """Return the verdicts of the needed checks that have not passed."""
    return [other for other in report.verdicts if other.name in needs and other.status != PASSED]
