"""The mutants in C (mutants.c): the fault of each, the check that must catch it, the lab, and what it must say.

As in mutants.py, the last text is a part of the explanation ("|": one of several).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from support import needs

SOURCE = Path(__file__).with_name("mutants.c")
IN_C = {
    "StringLength": ("Takes strlen() for the length of a file.", "content-length", "thread", "Content-Length 0"),
    "ShortSend": ("Sends once on a non-blocking socket.", "answers", "event", "8388608 bytes that ended after"),
    "DiesOfEintr": ("Ends when SIGCHLD interrupts accept().", "answers", "fork", "Interrupted system call"),
    "Overflow": ("Copies the head into a small buffer.", "oversized", "thread", "past the end of a buffer"),
    "SigPipe": ("Leaves SIGPIPE its default action.", "reset-in-response", "thread", "ignore SIGPIPE"),
    "SharedBuffer": ("Has one static buffer for all threads.", "own-answers", "thread", "share a buffer"),
    "LockOrder": ("Takes two mutexes in two orders.", "no-deadlock", "thread", "a deadlock"),
    "HoldsTheLock": ("Holds the queue's mutex while it serves.", "progress", "pool", "keeps the queue's lock"),
    "WakesIfEmpty": ("Signals only if the queue was empty.", "bursts", "pool", "a wake-up is lost"),
    "NoBound": ("Has a queue without a bound.", "bound", "pool", "put() never waits"),
    "TriesAgain": ("Calls accept() again at once.", "pause", "thread", "calls it again at once"),
    "WaitsWithoutEnd": ("Has no time limit for silent clients.", "silence", "event", "no code looks at the time"),
    "SpinningAccept": ("Calls accept() in a loop, without blocking.", "idle-cpu", "thread", "busy waiting"),
    "BacklogZero": ("Calls listen() with 0.", "backlog", "serial", "small backlog"),
    "NoWaitpid": ("Never calls waitpid().", "zombies", "fork", "no waitpid()"),
    "ParentKeeps": ("Keeps the parent's descriptor.", "parent-lets-go", "fork", "close the connection after fork"),
}  # fmt: skip
MODELS = ("serial", "fork", "thread", "pool", "event")  # names that stand for the server without a fault


def build(directory: Path) -> Path:
    """Compile the mutants; return the program."""
    needs.require("gcc")
    program = directory / "mutants"
    subprocess.run(
        ["cc", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE, "-lpthread"],
        check=True,
    )
    directory.chmod(0o755)
    return program


def command(program: Path, name: str) -> list[str]:
    """Return the arguments of ewe-grade for a mutant."""
    return ["--command", f"{program} {name} {{port}} {{root}} {{workers}}"]
