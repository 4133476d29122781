"""Restart one server behind HAProxy without losing a request: `roll.py SOCKET BACKEND/SERVER COMMAND...`.

    python3 roll.py /run/haproxy.sock ewe/one ssh web1 systemctl restart ewe
    python3 roll.py /run/haproxy.sock ewe/two ssh web2 systemctl restart ewe

HAProxy sends the server no new requests (drain), and those in progress end. Then the command restarts it. It gets
requests again when HAProxy's own check has found it healthy. A server that does not come back gets no requests,
the exit status is 1, and the others serve on: do not go on to the next one.
"""

from __future__ import annotations

import csv
import socket
import subprocess
import sys
import time
from collections.abc import Callable

WAIT_S = 60.0  # seconds for requests to end, and for a restarted server to be healthy
STEP_S = 0.1
SERVER = "2"  # the column `type` of a server, in HAProxy's management guide
HEALTHY_S = 2.0  # seconds that the check must find it healthy: four checks of haproxy.cfg


def ask(path: str, command: str) -> str:
    """Send a command to HAProxy's socket; return the answer."""
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(5)
            sock.connect(path)
            sock.sendall(command.encode() + b"\n")
            return b"".join(iter(lambda: sock.recv(65536), b"")).decode()
    except OSError as reason:
        sys.exit(f"HAProxy does not answer at {path}: {reason.strerror or reason}")


def rows(path: str) -> dict[str, dict[str, str]]:
    """Return HAProxy's figures of each server by BACKEND/SERVER, without its sums for frontends and backends."""
    lines = ask(path, "show stat").lstrip("# ").splitlines()
    found = csv.DictReader(lines)
    return {f"{row['pxname']}/{row['svname']}": row for row in found if row["type"] == SERVER}


def row(path: str, name: str) -> dict[str, str]:
    """Return HAProxy's figures of a server."""
    if found := rows(path).get(name):
        return found
    sys.exit(f"HAProxy has no server {name}: write BACKEND/SERVER")


def set_state(path: str, name: str, state: str) -> None:
    """Set a server to `drain` or `ready`; exit if HAProxy refuses, as a socket without `level admin` does."""
    if refusal := ask(path, f"set server {name} state {state}").strip():
        sys.exit(f"HAProxy does not set {name} to {state}: {refusal}")


def is_idle(figures: dict[str, str]) -> bool:
    """Return whether a server has no requests."""
    return figures["scur"] == "0"


def is_healthy(figures: dict[str, str]) -> bool:
    """Return whether the last checks of a server were good: as many as `rise` in HAProxy's settings.

    One good check is not enough: HAProxy sends no requests to a server that has failed before.
    """
    return int(figures["check_health"]) == int(figures["check_rise"]) + int(figures["check_fall"]) - 1


def has_another(path: str, name: str) -> bool:
    """Return whether another server of the same backend gets requests."""
    backend = name.partition("/")[0] + "/"
    return any(
        each.startswith(backend) and each != name and figures["status"].startswith("UP")
        for each, figures in rows(path).items()
    )


def wait(
    path: str, name: str, what: str, condition: Callable[[dict[str, str]], bool], for_s: float = 0.0
) -> None:
    """Wait until a condition of a server's figures has held `for_s` seconds; exit after WAIT_S. what: its name."""
    since = time.monotonic()
    end = since + WAIT_S
    while (now := time.monotonic()) < end:
        if not condition(row(path, name)):
            since = now
        elif now - since >= for_s:
            return
        time.sleep(STEP_S)
    sys.exit(
        f"{name} is not {what} after {WAIT_S:.0f} s: it gets no requests; set it to ready by hand when it is"
    )


def main() -> None:
    """Drain, restart, wait, and let requests come again."""
    if len(sys.argv) < 4:
        sys.exit("usage: roll.py SOCKET BACKEND/SERVER COMMAND...")
    path, name, *command = sys.argv[1:]
    if not row(path, name)["check_health"]:
        sys.exit(f"HAProxy does not check {name}: write `check` on its line of the settings")
    if not has_another(path, name):
        sys.exit(f"no other server beside {name} is up: without it each request would get 503")
    set_state(path, name, "drain")
    wait(path, name, "idle", is_idle)
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"the command failed: {name} gets no requests until you set it to ready")
    wait(path, name, "healthy", is_healthy, HEALTHY_S)
    set_state(path, name, "ready")
    print(f"{name}: restarted")


if __name__ == "__main__":
    main()
