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

PAUSE = 0.05  # seconds without accepting when no descriptor or no thread is left
GRACE = 10.0  # seconds that conversations in progress have once the server is to end


class Stop(Exception):
    """The server is to end (SIGTERM)."""


def stop(number: int, frame: object) -> None:
    """End the loop that accepts, wherever it is."""
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
                time.sleep(PAUSE)
                continue
            thread = threading.Thread(target=hold, args=(connection, root, threads), daemon=True)
            threads.add(thread)
            try:
                thread.start()
            except RuntimeError:  # no thread is left
                threads.discard(thread)
                connection.close()
                time.sleep(PAUSE)
    except Stop:
        listener.close()
    end = time.monotonic() + GRACE
    for thread in list(threads):
        thread.join(max(0.0, end - time.monotonic()))
    # --- starter
    # # What happens to a thread whose conversation raises? What if no thread can be started? And at SIGTERM?
    # while True:
    #     connection, _ = listener.accept()
    #     converse(connection, root)
    # --- end


# --- solution
def hold(connection: socket.socket, root: str, threads: set[threading.Thread]) -> None:
    """Hold one conversation, in a thread."""
    try:
        with connection:
            converse(connection, root)
    finally:
        threads.discard(threading.current_thread())


# --- end
if __name__ == "__main__":
    main(serve)
