"""A server to measure: it has one clerk and a queue, and stalls periodically.

    python3 queue_server.py PORT LOG [SERVICE_MS [STALL_MS EVERY_MS]]

The clerk needs SERVICE_MS for each request. At the end of every EVERY_MS the clerk stalls for STALL_MS, like a
program that collects garbage or waits for a disk. LOG gets a line for each request: arrival, start and end, in
seconds of time.monotonic().
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time

RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\ndone\n"
DEFAULTS_S = [0.004, 0.25, 1.0]  # SERVICE_MS, STALL_MS and EVERY_MS, in seconds


class Clerk:
    """The clerk serves one request at a time, in the order of arrival.

    service, stall, every: in seconds. next: the number of the next request that arrives. serving: the number of the
    request that is served now. free: notified when the clerk has served a request.
    """

    def __init__(self, service: float, stall: float, every: float, log: str) -> None:
        self.service, self.stall, self.every = service, stall, every
        self.began = time.monotonic()
        self.free = threading.Condition()
        self.next = self.serving = 0
        self.log = open(log, "w", buffering=1)  # line-buffered: each line is in the file at once

    def serve(self, connection: socket.socket, arrival: float, number: int) -> None:
        """Wait until this request is next, serve it, and send the response. In a stall, wait for its end.

        arrival: the time of the request (time.monotonic()). number: its place in the order of arrival.
        """
        with self.free:
            while number != self.serving:
                self.free.wait()
        start = time.monotonic()
        time.sleep(self.service + self.rest_of_stall(start))
        end = time.monotonic()
        self.log.write(f"{arrival:.6f} {start:.6f} {end:.6f}\n")
        with self.free:
            self.serving += 1
            self.free.notify_all()
        with connection:
            try:
                connection.sendall(RESPONSE)
            except OSError:
                return

    def rest_of_stall(self, now: float) -> float:
        """Return the rest of a stall in seconds, 0.0 outside a stall. Each period ends with a stall."""
        if not self.stall:
            return 0.0
        in_period = (now - self.began) % self.every
        return max(0.0, self.every - in_period) if in_period > self.every - self.stall else 0.0


def main() -> None:
    """Accept connections, read their heads, and give each request to a thread that waits for the clerk."""
    if len(sys.argv) not in (3, 4, 6):
        sys.exit(f"usage: {sys.argv[0]} PORT LOG [SERVICE_MS [STALL_MS EVERY_MS]]")
    given = [float(word) / 1000 for word in sys.argv[3:]]
    service, stall, every = given + DEFAULTS_S[len(given) :]  # the defaults of those that are not given
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    clerk = Clerk(service, stall, every, sys.argv[2])
    with socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=256) as listener:
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            arrival = time.monotonic()
            try:
                connection.recv(65536)  # a client of this lab sends its head in one piece
            except OSError:  # the client has reset the connection
                connection.close()
                continue
            threading.Thread(target=clerk.serve, args=(connection, arrival, clerk.next), daemon=True).start()
            clerk.next += 1


if __name__ == "__main__":
    main()
