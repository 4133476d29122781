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

ACCEPT_PAUSE_S = 0.05  # seconds of pause when no descriptor or process is free
GRACE_S = 10.0  # seconds for the conversations in progress after SIGTERM
SIGNALS = {signal.SIGCHLD, signal.SIGTERM}
children: set[int] = set()


def reap(number: int, frame: object) -> None:
    """Handle SIGCHLD: read the status of every ended child. Until then each of them stays a zombie."""
    # --- solution
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return  # there are no children
        if pid == 0:
            return  # the remaining children still run
        children.discard(pid)
    # --- starter
    # # One SIGCHLD may stand for several children, because the kernel does not count equal signals. waitpid() must
    # # not block if no child has ended.
    # pass
    # --- end


class Stop(Exception):
    """SIGTERM has arrived: the server has to end."""


def stop(number: int, frame: object) -> None:
    """Interrupt the loop that accepts connections. A second SIGTERM must not interrupt the end of the server."""
    signal.signal(number, lambda *_: None)
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
                time.sleep(ACCEPT_PAUSE_S)
                continue
            start_child(listener, connection, root)
    except Stop:
        listener.close()
    end_children()


def start_child(listener: socket.socket, connection: socket.socket, root: str) -> None:
    """Fork a child that runs the conversation. The parent closes its copy of the connection."""
    # --- solution
    with connection:  # close the parent's copy, so that the connection ends when the child closes its copy
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            pid = os.fork()
        except OSError:  # the limit of processes is reached
            time.sleep(ACCEPT_PAUSE_S)
            pid = -1
        if pid == 0:
            be_child(listener, connection, root)
        if pid > 0:
            children.add(pid)  # SIGCHLD is blocked, so the child has not been reaped yet
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    # --- starter
    # # Parent and child now both have every descriptor. Which process closes the connection, which one the
    # # listening socket? Where does the child end?
    # pid = os.fork()
    # if pid == 0:
    #     converse(connection, root)
    # --- end


def end_children() -> None:
    """Wait for the children; kill the children that still run after GRACE_S seconds."""
    # --- solution
    deadline = time.monotonic() + GRACE_S
    while children and time.monotonic() < deadline:
        time.sleep(ACCEPT_PAUSE_S)  # reap() runs in between
    for pid in list(children):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    # --- starter
    # # Children that still run when their parent ends become orphans.
    # pass
    # --- end


# --- solution
def be_child(listener: socket.socket, connection: socket.socket, root: str) -> None:
    """Run one conversation in a new process; never return."""
    status = 1
    try:
        # The child has the parent's handlers, and the signals that start_child() has blocked.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        listener.close()
        converse(connection, root)
        connection.close()
        status = 0
    finally:
        os._exit(status)  # the child must not continue the loop of the parent


# --- end
if __name__ == "__main__":
    main(serve)
