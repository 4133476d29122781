"""A pool of workers behind a schedule. Run it with: python3 server.py PORT DIRECTORY WORKERS. Given, and complete.

    front: accept, read heads ─▶ schedule.put() ─▶ [ waiting ] ─▶ schedule.get() ─▶ worker 1 of n: response, close
                                     └─▶ 503: has to go

schedule.py is your work. Each connection has one request.
"""

from __future__ import annotations

import socket
import threading
import time

import front
from conversation import main, response_to
from schedule import Request, Schedule

GRACE = 10.0  # seconds that responses in progress have once the server is to end


def serve(listener: socket.socket, root: str, workers: int) -> None:
    """Start the workers, and let requests come in; at SIGTERM, let what waits be served."""
    schedule = Schedule()
    heads: dict[Request, bytes] = {}
    threads = [
        threading.Thread(target=work, args=(schedule, heads, root, number), daemon=True)
        for number in range(1, workers + 1)
    ]
    for thread in threads:
        thread.start()

    def arrive(request: Request, head: bytes) -> None:
        heads[request] = head
        dropped = schedule.put(request)
        if dropped is not None:
            del heads[dropped]
            front.refuse(dropped.connection)

    front.serve(listener, root, arrive)
    schedule.close()
    end = time.monotonic() + GRACE
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


def work(schedule: Schedule, heads: dict[Request, bytes], root: str, number: int) -> None:
    """Be a worker: take the next request, send its response, close the connection, and so on."""
    while (request := schedule.get(number)) is not None:
        with request.connection as connection:
            response, _ = response_to(heads.pop(request), root)
            try:
                # HTTP/1.1 keeps a connection open unless the response says otherwise.
                connection.sendall(response.replace(b"Connection: keep-alive", b"Connection: close", 1))
            except OSError:
                pass  # the client has left, or does not read
            schedule.done(request, number)


if __name__ == "__main__":
    main(serve)
