"""A pool of workers behind a schedule, given and complete. Run it with: python3 server.py PORT DIRECTORY WORKERS

    front: accept, read heads ─▶ schedule.put() ─▶ [ waiting ] ─▶ schedule.get() ─▶ worker 1 of n: response, close
                                     └─▶ 503: dropped

schedule.py is your work. Each connection has one request.
"""

from __future__ import annotations

import socket
import threading
import time

import front
from conversation import main, response_to
from schedule import Request, Schedule

GRACE_S = 10.0  # seconds for the responses in progress after SIGTERM


def serve(listener: socket.socket, root: str, workers: int) -> None:
    """Start the workers, and schedule requests; at SIGTERM, serve the waiting requests, then end."""
    schedule = Schedule()
    heads: dict[Request, bytes] = {}
    threads = [
        threading.Thread(target=work, args=(schedule, heads, root, number), daemon=True)
        for number in range(1, workers + 1)
    ]
    for thread in threads:
        thread.start()

    def arrive(request: Request, head: bytes) -> None:
        """Queue a request; refuse the one that the schedule drops, which may be another one."""
        heads[request] = head
        dropped = schedule.put(request)
        if dropped is not None:
            del heads[dropped]
            front.refuse(dropped.connection)

    front.serve(listener, root, arrive)
    schedule.close()
    end = time.monotonic() + GRACE_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


def work(schedule: Schedule, heads: dict[Request, bytes], root: str, number: int) -> None:
    """Take one request after the other, send its response, and close the connection."""
    while (request := schedule.get(number)) is not None:
        with request.connection as connection:
            response, _ = response_to(heads.pop(request), root)
            try:
                # HTTP/1.1 keeps a connection open unless the response has Connection: close.
                connection.sendall(response.replace(b"Connection: keep-alive", b"Connection: close", 1))
            except OSError:
                pass  # the client has disconnected, or does not read
            schedule.done(request, number)


if __name__ == "__main__":
    main(serve)
