"""A thread for each connection. Run it with: python3 server.py PORT DIRECTORY

main thread: accept ─▶ start a thread ─▶ accept ...
                            └──▶ conversation ─▶ close the connection ─▶ the thread ends
"""

from __future__ import annotations

import signal
import socket
import threading
import time

from conversation import converse, main

ACCEPT_PAUSE_S = 0.05  # seconds of pause when no descriptor or thread is free
GRACE_S = 10.0  # seconds for the conversations in progress after SIGTERM


class Stop(Exception):
    """SIGTERM has arrived: the server has to end."""


def stop(number: int, frame: object) -> None:
    """Interrupt the loop that accepts connections. A second SIGTERM must not interrupt the end of the server."""
    signal.signal(number, lambda *_: None)
    raise Stop


def serve(listener: socket.socket, root: str, workers: int) -> None:
    """Accept connections, and start a thread for each; at SIGTERM, let the conversations in progress end."""
    threads: set[threading.Thread] = set()
    signal.signal(signal.SIGTERM, stop)
    # --- solution
    try:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                time.sleep(ACCEPT_PAUSE_S)
                continue
            thread = threading.Thread(target=run_conversation, args=(connection, root, threads), daemon=True)
            threads.add(thread)
            try:
                thread.start()
            except RuntimeError:  # the limit of threads is reached
                threads.discard(thread)
                connection.close()
                time.sleep(ACCEPT_PAUSE_S)
    except Stop:
        listener.close()
    end = time.monotonic() + GRACE_S
    for thread in list(threads):
        if thread.is_alive():  # the last one has not started if SIGTERM came before start()
            thread.join(max(0.0, end - time.monotonic()))
    # --- starter
    # # This serves all clients in the main thread. Start a thread for each connection. Handle an exception of a
    # # conversation, a thread that cannot be started, and SIGTERM.
    # while True:
    #     connection, _ = listener.accept()
    #     converse(connection, root)
    # --- end


# --- solution
def run_conversation(connection: socket.socket, root: str, threads: set[threading.Thread]) -> None:
    """Run one conversation, in a thread. Remove the thread from `threads`, for which serve() waits at the end."""
    try:
        with connection:
            converse(connection, root)
    finally:
        threads.discard(threading.current_thread())


# --- end
if __name__ == "__main__":
    main(serve)
