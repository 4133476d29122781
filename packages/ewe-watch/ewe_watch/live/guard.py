"""The guard: a small process that ends the models if ewe-watch itself is killed.

A signal such as TERM lets ewe-watch stop its models in order. KILL gives it no time: without a guard, the models
would go on, and keep their ports and files. The guard reads a pipe whose other end only ewe-watch holds:

    ewe-watch ──"+ 4711", "- 4711", ..., "done"──▶ pipe ──▶ guard

"+ 4711" names the group of a model that has started, "- 4711" one that has ended. When ewe-watch ends, however it
ends, the kernel closes its end of the pipe. If the pipe ends before the word "done", the guard sends TERM to all
groups, after STOP_S seconds KILL, and removes the directory of ewe-watch and the scripts that it wrote for users.

Why not PR_SET_PDEATHSIG of prctl(2): that signal comes when the *thread* that has started the process ends. A
button of the page starts a model in a thread that ends long before ewe-watch does.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

STOP_S = 4.0  # from TERM to KILL, as ServerProcess.stop() allows
LOOK_S = 0.05
DONE = "done"


class UserScript(NamedTuple):
    """A script that ewe-watch wrote for a user. The user is its owner: uid, gid."""

    path: Path
    uid: int
    gid: int

    def remove(self) -> None:
        """Remove the script with the rights of its owner. If that is impossible, it stays."""
        with suppress(OSError), acting_as(self.uid, self.gid):
            self.path.unlink()


@contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    """Have the rights of an account, and no others, for a while. Another account needs root. Raises OSError.

    The directories of a user may be symbolic links to directories of the system. Root would write there.
    """
    if os.geteuid() == uid:
        yield
        return
    groups, user, group = os.getgroups(), os.geteuid(), os.getegid()
    try:
        # The user last, and first on the way back: only root may change groups
        os.setgroups([])
        os.setegid(gid)
        os.seteuid(uid)
        yield
    finally:
        os.seteuid(user)
        os.setegid(group)
        os.setgroups(groups)


class ModelGuard:
    """The guard as ewe-watch sees it. Its methods may be called from any thread."""

    def __init__(self, directory: Path, scripts: Iterable[UserScript] = ()) -> None:
        """Start the guard. directory, scripts: to remove if ewe-watch is killed. Raises OSError."""
        words = [str(word) for script in scripts for word in script]
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(directory), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is for ewe-watch
        )
        assert self.process.stdin is not None
        self.pipe = self.process.stdin.fileno()

    def add(self, group: int) -> None:
        """Note a group of processes that has started."""
        self.write_line(f"+ {group}")

    def remove(self, group: int) -> None:
        """Note a group that has ended: its number may soon be that of another program."""
        self.write_line(f"- {group}")

    def write_line(self, words: str) -> None:
        """Write a line to the guard's pipe; without a guard, do nothing. words: "+ GROUP", "- GROUP" or DONE."""
        # A short write to a pipe is never mixed with another one (pipe(7)). Without a guard, ewe-watch goes on.
        with suppress(OSError):
            os.write(self.pipe, f"{words}\n".encode())

    def close(self) -> None:
        """End the guard: all models have ended."""
        self.write_line(DONE)  # before the end of the pipe: otherwise the guard would kill and remove
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        self.process.wait()


def signal_groups(groups: Iterable[int], number: int) -> list[int]:
    """Send a signal to groups of processes; return those that still exist. Signal 0 only asks for that (kill(2)).

    A group of another account cannot be sent a signal, and counts as one that has ended.
    """
    found = []
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
            found.append(group)
    return found


def main(directory: str, *words: str) -> None:
    """Read the pipe to its end; then end the models, unless ewe-watch was done. words: path, uid, gid, path, ..."""
    groups: set[int] = set()
    for line in sys.stdin:
        sign, _, group = line.strip().partition(" ")
        if sign == DONE:
            return
        if sign == "+":
            groups.add(int(group))
        else:
            groups.discard(int(group))
    running = signal_groups(groups, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while (running := signal_groups(running, 0)) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    signal_groups(running, signal.SIGKILL)
    for path, uid, gid in zip(words[::3], words[1::3], words[2::3], strict=True):
        UserScript(Path(path), int(uid), int(gid)).remove()
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
