"""The serial server: one conversation after the other. Run it with: python3 server.py PORT DIRECTORY

While a client holds the conversation, all others wait in the kernel's backlog.
"""

from __future__ import annotations

import socket
import time

from conversation import converse, main

PAUSE = 0.05  # seconds without accepting when no descriptor is left


def serve(listener: socket.socket, root: str, workers: int) -> None:
    """Accept one connection after the other, hold its conversation, close it."""
    # --- solution
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # EMFILE: no descriptor is left. ECONNABORTED: the client has left already
            time.sleep(PAUSE)
            continue
        with connection:
            converse(connection, root)
    # --- starter
    # # One client, and then the program ends. A server goes on, also when accept() fails.
    # connection, _ = listener.accept()
    # converse(connection, root)
    # --- end


if __name__ == "__main__":
    main(serve)
