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
    """Start the workers, and put each request into the schedule, until SIGTERM arrives.

    Then let the workers serve the waiting requests, and return after at most GRACE_S.
    """
    schedule = Schedule()
    # The heads of the requests that no worker has taken yet.
    heads: dict[Request, bytes] = {}
    threads = [
        threading.Thread(target=work, args=(schedule, heads, root, number), daemon=True)
        for number in range(1, workers + 1)
    ]
    for thread in threads:
        thread.start()

    def arrive(request: Request, head: bytes) -> None:
        """Put a request into the schedule; refuse the request that the schedule drops, which may be another one."""
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
    """Serve one request after the other, until the schedule is closed and empty. Close each connection."""
    while (request := schedule.get(number)) is not None:
        with request.connection as connection:
            response, keeps_open = response_to(heads.pop(request), root)
            if keeps_open:
                # This server closes each connection after one response. In HTTP/1.1 the head has to announce that.
                # Only the first match is replaced: it is in the head, and a file may contain these words, too.
                response = response.replace(b"Connection: keep-alive", b"Connection: close", 1)
            try:
                connection.sendall(response)
            except OSError:
                pass  # the client has disconnected, or does not read
            schedule.done(request, number)


if __name__ == "__main__":
    main(serve)
