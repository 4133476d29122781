"""The guard: a small process that ends the lab's servers if the lab itself is killed.

TERM and Ctrl-C let the lab stop what it has started. KILL gives it no time: without a guard, a server such as
Tomcat would go on, keep its port, and take CPU time from the next measurement. The guard reads a pipe whose other
end only the lab holds:

    lab ──"+ 4711", "- 4711", ...──▶ pipe ──▶ guard

"+ 4711" names a session of processes that has started (running() starts each command in its own session),
"- 4711" one that has ended. When the lab ends, however it ends, the kernel closes its end of the pipe. The guard
then kills the sessions that are left, and removes the lab's directory. After a run that ended in order nothing is
left.

The private networks of links.py and the accounts of accounts.py need no other care: the kernel removes a namespace
with the last process in it.
"""

from __future__ import annotations

import os
import sys
import threading

TYPE_CHECKING = False  # most runs start a guard, so it imports as little as it can
if TYPE_CHECKING:
    from pathlib import Path
    from subprocess import Popen

guards: list[Guard] = []  # those of the blocks that run; a block may have another one inside


class Guard:
    """The guard of a `with` block: it acts if the lab is killed after a session has started in the block."""

    def __init__(self, directory: Path) -> None:
        """directory: removed if the lab is killed."""
        self.directory = directory
        self.process: Popen[bytes] | None = None
        self.lock = threading.Lock()  # threads may start sessions

    def __enter__(self) -> Guard:
        guards.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        guards.remove(self)
        if self.process is not None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait()

    def tell(self, words: str) -> None:
        """Send a line to the guard's process, `+ SESSION` or `- SESSION`; start it for the first one.

        Raises OSError.
        """
        with self.lock:
            if self.process is None:
                self.process = start_process(self.directory)
            assert self.process.stdin is not None
            os.write(self.process.stdin.fileno(), f"{words}\n".encode())


def start_process(directory: Path) -> Popen[bytes]:
    """Run this file as the process of a guard, with a pipe as its standard input; return it. Raises OSError.

    directory: the process removes it at the end of the pipe.
    """
    import subprocess  # late: a run without a guard does not need it

    return subprocess.Popen(
        # -I and -S: Python does not search for settings and installed packages, and starts sooner
        [sys.executable, "-I", "-S", __file__, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in the terminal is for the lab
    )


def tell_guards(sign: str, session: int) -> None:
    """Tell the guards of a session that has started ("+") or ended ("-")."""
    for guard in guards:
        try:
            guard.tell(f"{sign} {session}")
        except OSError:
            pass  # the guard has been killed, or cannot start: the lab goes on without it


def wait_for_end(directory: str) -> None:
    """Read the pipe to its end. If sessions or the directory are left then, run after_kill.py, which removes them.

    Only that program imports the lab.
    """
    left: set[str] = set()
    for line in sys.stdin:
        sign, session = line.split()
        if sign == "+":
            left.add(session)
        else:
            left.discard(session)
    if left or os.path.exists(directory):
        os.execv(sys.executable, [sys.executable, "-m", "ewe_lab.bench.after_kill", directory, *left])


if __name__ == "__main__":
    wait_for_end(*sys.argv[1:])
