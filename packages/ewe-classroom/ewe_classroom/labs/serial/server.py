"""The serial server: one conversation after the other. Run it with: python3 server.py PORT DIRECTORY

During a conversation with one client, all other clients wait in the kernel's backlog.
"""

from __future__ import annotations

import socket
import time

from conversation import converse, main

ACCEPT_PAUSE_S = 0.05  # seconds of pause when no descriptor is free


def serve(listener: socket.socket, root: str, workers: int) -> None:
    """Accept one connection after the other, run its conversation, and close it."""
    # --- solution
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # EMFILE: no descriptor is free. ECONNABORTED: the client has disconnected already
            time.sleep(ACCEPT_PAUSE_S)
            continue
        with connection:
            converse(connection, root)
    # --- starter
    # # The program ends after one client. A server goes on, also when accept() fails.
    # connection, _ = listener.accept()
    # converse(connection, root)
    # --- end


if __name__ == "__main__":
    main(serve)
