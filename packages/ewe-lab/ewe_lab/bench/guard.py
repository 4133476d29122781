"""The guard: a small process that ends the lab's servers if the lab itself is killed.

TERM and Ctrl-C let the lab stop what it has started. KILL gives it no time: without a guard, a server such as
Tomcat would go on, keep its port, and take CPU time from the next measurement. The guard reads a pipe whose other
end only the lab holds:

    lab ──"+ 4711", "- 4711", ...──▶ pipe ──▶ guard

"+ 4711" names a session of processes that has started (running() starts each command in a session of its own),
"- 4711" one that has ended. When the lab ends, however it ends, the kernel closes its end of the pipe. The guard
then kills the sessions that are left, and removes the lab's directory. After a run that ended in order nothing is
left.

Network namespaces and temporary accounts stay: links.py and accounts.py give them names that one can find.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # each run starts a guard, so it imports as little as it can
if TYPE_CHECKING:
    from pathlib import Path

pipes: list[int] = []  # the lab's ends of the pipes of its guards: a run may start another one


class Guard:
    """The guard of a `with` block: it acts if the lab is killed in the block."""

    def __init__(self, directory: Path) -> None:
        """directory: removed if the lab is killed."""
        self.directory = directory

    def __enter__(self) -> Guard:
        """Start the process. Raises OSError."""
        import subprocess

        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(self.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is for the lab
        )
        assert self.process.stdin is not None
        pipes.append(self.process.stdin.fileno())
        return self

    def __exit__(self, *exception: object) -> None:
        assert self.process.stdin is not None
        pipes.remove(self.process.stdin.fileno())
        self.process.stdin.close()
        self.process.wait()


def tell_guards(sign: str, session: int) -> None:
    """Tell the guards of a session that has started ("+") or ended ("-")."""
    for pipe in pipes:
        try:
            os.write(pipe, f"{sign} {session}\n".encode())  # short, so never mixed with another one: pipe(7)
        except OSError:
            pass  # the guard has been killed: the lab goes on without it


def wait_for_end(directory: str) -> None:
    """Read the pipe to its end. If sessions or the directory are left then, become a process that removes them.

    Only that process imports the lab.
    """
    left: set[str] = set()
    for line in sys.stdin:
        sign, session = line.split()
        if sign == "+":
            left.add(session)
        else:
            left.discard(session)
    if left or os.path.exists(directory):
        os.execv(sys.executable, [sys.executable, "-m", "ewe_lab.bench.guard", directory, *left])


def clean_up(directory: str, *sessions: str) -> None:
    """Kill the sessions and remove the directory."""
    import shutil

    from ewe_lab.bench.processes import end_session

    for session in sessions:
        end_session(int(session))
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    (wait_for_end if sys.flags.isolated else clean_up)(*sys.argv[1:])
