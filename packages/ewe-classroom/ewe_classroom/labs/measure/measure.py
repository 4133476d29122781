"""Measure a server with closed loops of more and more clients, then with open loops. Run: python3 measure.py

    closed loop    N clients: each sends, waits for its response, and sends again     the load waits for the server
    open loop      requests are due by the clock, also while the server is slow       the load does not wait

This program starts queue_server.py, and writes runs.json beside the server's log. Then grade the data:
ewe-grade --lab measure runs.json
"""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

# --- solution
CLIENTS = (1, 2, 4, 8, 16)
RATES = (0.4, 0.75)  # shares of the best rate of the closed loops
REPETITIONS = 3
SECONDS = 2.0  # of each run
# --- starter
# # These values are too small. `ewe-grade` tells you which.
# CLIENTS = (1, 2)
# RATES = (0.4,)  # shares of the best rate of the closed loops
# REPETITIONS = 1
# SECONDS = 1.0  # of each run
# --- end
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
RESPONSE_TIMEOUT_S = 30.0  # seconds that one response may take

Requests = list[tuple[float, float, float]]  # the times due, sent and done of each request


def exchange(port: int) -> None:
    """Send one request, and read its response to the end."""
    with socket.create_connection(("127.0.0.1", port), RESPONSE_TIMEOUT_S) as client:
        client.sendall(REQUEST)
        while client.recv(65536):
            pass


def closed_loop(port: int, clients: int, seconds: float) -> tuple[float, Requests]:
    """Let clients send requests for some seconds; return the time of the start, and all requests (due, sent, done).

    In a closed loop a request is due when it is sent.
    """
    began = time.monotonic()
    requests: Requests = []

    def client() -> None:
        # --- solution
        while (sent := time.monotonic()) < began + seconds:
            exchange(port)
            requests.append((sent, sent, time.monotonic()))
        # --- starter
        # # A client that thinks between two requests is not always busy: N = X (R + Z).
        # while (sent := time.monotonic()) < began + seconds:
        #     exchange(port)
        #     done = time.monotonic()
        #     if done < began + seconds:  # this omits the requests in progress at the end
        #         requests.append((sent, sent, done))
        #     time.sleep(0.01)
        # --- end

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return began, requests


def open_loop(port: int, rate: float, seconds: float) -> tuple[float, Requests]:
    """Send requests when they are due, `rate` a second; return the time of the start, and all requests."""
    began = time.monotonic()
    requests: Requests = []
    # --- solution
    threads = []

    def ask(due: float) -> None:
        sent = time.monotonic()
        exchange(port)
        requests.append((due, sent, time.monotonic()))

    for number in range(int(rate * seconds)):
        due = began + number / rate
        time.sleep(max(0.0, due - time.monotonic()))
        threads.append(threading.Thread(target=ask, args=(due,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    # --- starter
    # # Is this an open loop? How many requests does it send while the server stalls?
    # while (sent := time.monotonic()) < began + seconds:
    #     exchange(port)
    #     done = time.monotonic()
    #     requests.append((sent, sent, done))
    #     time.sleep(max(0.0, sent + 1 / rate - done))
    # --- end
    return began, requests


def summary(requests: Requests, began: float, seconds: float) -> dict[str, float]:
    """Return rate, mean and 99th percentile of a run. Times count from the due time of a request.

    began: the start of the run (time.monotonic()). seconds: its duration.
    """
    # --- solution
    times = sorted(done - due for due, _, done in requests)
    completed = sum(done <= began + seconds for _, _, done in requests)
    # --- starter
    # # Is the response time done - sent, or done - due? Which responses count for the rate?
    # times = sorted(done - sent for _, sent, done in requests)
    # completed = len(requests)
    # --- end
    return {
        "rate": completed / seconds,
        "mean_ms": sum(times) / len(times) * 1000,
        "p99_ms": times[math.ceil(0.99 * len(times)) - 1] * 1000,
    }


def measure(port: int, seconds: float) -> list[dict[str, object]]:
    """Run all loads, in turns; return the runs.

    The closed loops come first, because the rates of the open loops are shares of the best rate.
    """
    runs: list[dict[str, object]] = []
    best_rate = 0.0
    for repetition in range(1, REPETITIONS + 1):
        for clients in CLIENTS:
            began, requests = closed_loop(port, clients, seconds)
            figures = summary(requests, began, seconds)
            best_rate = max(best_rate, figures["rate"])
            note(runs, "closed", {"clients": clients}, repetition, began, seconds, requests, figures)
    for repetition in range(1, REPETITIONS + 1):
        for share in RATES:
            rate = round(share * best_rate)
            began, requests = open_loop(port, rate, seconds)
            figures = summary(requests, began, seconds)
            note(runs, "open", {"rate_wanted": rate}, repetition, began, seconds, requests, figures)
    return runs


def note(
    runs: list[dict[str, object]],
    kind: str,
    load: dict[str, int],
    repetition: int,
    began: float,
    seconds: float,
    requests: Requests,
    figures: dict[str, float],
) -> None:
    """Add a run to the list, and print its figures. load: the number of clients, or the planned rate."""
    identity = {"kind": kind, **load, "repetition": repetition}
    runs.append({**identity, "began": began, "seconds": seconds, **figures, "requests": requests})
    shown = ", ".join(f"{name} {value:.1f}" for name, value in figures.items())
    print(f"{kind:7} {next(iter(load.values())):4}  {shown}", flush=True)


def main() -> None:
    """Start the server, measure it, end it, and write the results."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    # Bind to port 0 to get a free port, and leave it to the server.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    here = Path(__file__).resolve().parent
    command = [sys.executable, str(here / "queue_server.py"), str(port), "server.log"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            server.stdout.readline()  # wait until the server is ready
            runs = measure(port, seconds)
        finally:
            server.terminate()
    table = {"format": "ewe-runs/1", "log": "server.log", "report": "lab/results.json", "runs": runs}
    Path("runs.json").write_text(json.dumps(table) + "\n")
    print("runs.json is written. Next: ewe-grade --lab measure runs.json")


if __name__ == "__main__":
    main()
