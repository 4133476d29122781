"""A process for each connection. Run it with: python3 server.py PORT DIRECTORY

parent: accept ─▶ fork ─▶ close its copy ─▶ accept ...      reaps the children that have ended
                    └──▶ child: close the listening socket ─▶ conversation ─▶ exit
"""

from __future__ import annotations

import os
import signal
import socket
import time

from conversation import converse, main

PAUSE = 0.05  # seconds without accepting when no descriptor or no process is left
GRACE = 10.0  # seconds that conversations in progress have once the server is to end
SIGNALS = {signal.SIGCHLD, signal.SIGTERM}
children: set[int] = set()


def reap(number: int, frame: object) -> None:
    """Read the status of every child that has ended: until then the kernel keeps each as a zombie (SIGCHLD)."""
    # --- solution
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return  # there are no children
        if pid == 0:
            return  # the others still run
        children.discard(pid)
    # --- starter
    # # One SIGCHLD may stand for several children, since equal signals are not counted. What if none has ended yet?
    # pass
    # --- end


class Stop(Exception):
    """The server is to end (SIGTERM)."""


def stop(number: int, frame: object) -> None:
    """End the loop that accepts, wherever it is."""
    raise Stop


def serve(listener: socket.socket, root: str, workers: int) -> None:
    """Accept connections, and fork a child for each; at SIGTERM, let the conversations in progress end."""
    signal.signal(signal.SIGCHLD, reap)
    signal.signal(signal.SIGTERM, stop)
    try:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                time.sleep(PAUSE)
                continue
            start_child(listener, connection, root)
    except Stop:
        listener.close()
    end_children()


def start_child(listener: socket.socket, connection: socket.socket, root: str) -> None:
    """Fork a child that holds the conversation. The parent lets the connection go."""
    # --- solution
    with connection:  # the parent's copy is closed: the client sees the end when the child closes its own
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            pid = os.fork()
        except OSError:  # no process is left
            time.sleep(PAUSE)
            pid = -1
        if pid == 0:
            be_child(listener, connection, root)
        if pid > 0:
            children.add(pid)  # SIGCHLD is blocked, so the child has not been reaped yet
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    # --- starter
    # # The child has a copy of every descriptor of its parent, and the parent keeps its own. Who closes what?
    # # And where does the child end?
    # pid = os.fork()
    # if pid == 0:
    #     converse(connection, root)
    # --- end


def end_children() -> None:
    """Wait for the children, and end those that are still there after GRACE seconds."""
    # --- solution
    deadline = time.monotonic() + GRACE
    while children and time.monotonic() < deadline:
        time.sleep(PAUSE)  # reap() runs in between
    for pid in list(children):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    # --- starter
    # # Children that are still there when their parent has ended belong to nobody.
    # pass
    # --- end


# --- solution
def be_child(listener: socket.socket, connection: socket.socket, root: str) -> None:
    """Hold one conversation in a new process; never return."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        listener.close()
        converse(connection, root)
        connection.close()
        status = 0
    finally:
        os._exit(status)  # never back into the loop of the parent


# --- end
if __name__ == "__main__":
    main(serve)
