"""Why a fault of the zoo fails more than its own check: the reasons of docs/kill-matrix.md.

EVERYTHING, SOMETIMES: faults that leave nothing to judge. SINGLE: a fault and a check. PAIRS: the fault's own
check and another one, for each fault of that check. The pairs that hold for every server are in another table:
ewe_classroom/grader/dependencies.py.
"""

from __future__ import annotations

EVERYTHING: dict[str, str] = {
    "WrongLength": "no client can read a response with a wrong length",
    "EndsAfterOne, serial in Go": "the server ends in each check, and writes no reason",
    "WritesFirst": "each program with a body waits without a limit",
    "DiesOfEintr, in C": "the server may end in each check, as soon as a child ends",
    "DiesOfEintr, fork in C": "the server may end in each check, as soon as a child ends",
    "LoopVariable, thread in Go": "one goroutine gets two connections, and one gets none",
    "EdgeTriggered, event in C": "in each of these checks several clients connect in one moment",
    "FlushesLate": "each check reads the output of a script",
    "Retires": "each check that has served five clients for each worker finds no worker",
    "AcceptsOnce": "in each of these checks several clients connect in one moment",
    "SharedRequest": "each check with half a request beside a whole one gets the wrong file",
    "SharedBuffer, in C": "each check with half a request beside a whole one gets the wrong file",
    "SharedBuffer, thread in C": "each check with half a request beside a whole one gets the wrong file",
    "SharedArgument, thread in C": "one thread gets two connections, and one gets none",
}

# The same for a fault that loses them in some runs only
SOMETIMES: dict[str, str] = {
    "IfInGet, pool in C": "a worker that finds the queue empty takes a connection that is not there, in any check",
    "MapUnlocked, thread in Go": "Go ends a program when two goroutines write to a map at once, in any check",
    "SharedRequest, thread in C": "two threads parse into one request, so any check may get the wrong file",
    "SharedBuffer, thread in Go": "two goroutines read into one buffer, so any check may get the wrong file",
    "SharesTheSlice, event in Go": "each check with half a request beside a whole one may lose bytes",
}

SINGLE: dict[tuple[str, str], str] = {
    ("TextMode", "content-length"): "a decoded text has another length than its bytes",
    ("StringLength, in C", "answers"): "no client can read a body behind a wrong length",
    ("SlotsUntilClose", "slow-readers"): "slow clients occupy the slots, too",
    ("IgnoresFin", "stop"): "a thread of a client that has left goes on without a limit",
    ("WorkerDies", "descriptors"): "a worker that has ended does not close its connection",
    ("OneRead, serial in Go", "progress"): "half a request gets a response at once",
    ("OneRead, serial in Go", "backlog"): "half a request gets a response at once",
    ("ChildGoesOn, fork in C", "descriptors"): "a child that goes on keeps its descriptors",
    ("ChildGoesOn, fork in C", "stop"): "children that go on keep the server alive",
    (
        "ForgetsFirstPiece, event in C",
        "second-client",
    ): "the second half of a request overwrites the first half",
    ("ForgetsFirstPiece, event in C", "progress"): "the second half of a request overwrites the first half",
    ("InputStaysOpen", "cgi-deadlock"): "the program of that check reads its body to the end",
    ("ForgetsStart", "cgi-deadlock"): "the program of that check reads its body to the end",
    ("ForgetsStart", "cgi-environment"): "the program gets its body there, too",
    ("DiesOfMissing", "oversized"): "the missing file of a long target ends the server, too",
    ("DiesOfMissing", "outside"): "the answer that the check expects is the missing file",
    ("Forks", "engine-output"): "what a script writes to a closed stream is lost with the child",
    ("StaysThere", "engine-answers"): "a script of that check names its directory",
    ("OneNamespace", "engine-output"): "the script before has replaced sys.stdout",
    ("OneNamespace", "engine-errors"): "the names of the script before are still there",
    ("DiesOfErrors", "engine-output"): "a script of that check fails in the middle",
    ("LeavesBody", "engine-answers"): "a script of that check has a body",
    ("two_clocks", "runs-server-log"): "the two records have different times",
    ("copied", "runs-server-log"): "the server's log lacks the requests of a copied run",
    ("made_up", "runs-complete"): "the made-up requests lie behind the end of the run",
    ("twice_the_rate", "runs-complete"): "the number of requests does not fit the rate",
    ("stops_early", "runs-complete"): "the loads that the plan names are missing",
    ("stops_early", "runs-repetitions"): "the missing loads have no repetition",
}

PAIRS: dict[tuple[str, str], str] = {
    ("progress", "second-client"): "it is the same with one stalled client, for fewer points",
    ("second-client", "progress"): "it is the same with more stalled clients, for more points",
    ("progress", "bursts"): "a burst has as many clients at once as the model serves",
}
