"""systemd: use sockets that a service manager has opened for ewe, and send it messages about ewe's state.

LISTEN_FDS: sd_listen_fds(3). NOTIFY_SOCKET: sd_notify(3). Without these variables, the functions do nothing.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

FIRST_DESCRIPTOR = 3  # SD_LISTEN_FDS_START


def inherited_addresses(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the addresses (fd://3, ...) of the sockets that the manager opened for this process."""
    count = environ.get("LISTEN_FDS", "")
    if environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
        return ()
    return tuple(f"fd://{FIRST_DESCRIPTOR + number}" for number in range(min(int(count), 64)))


def notify(*lines: str) -> None:
    """Send the service manager READY=1, STOPPING=1, RELOADING=1 or STATUS=...; ignore a manager that has ended."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if lines[0] == "RELOADING=1":
        # With Type=notify-reload, systemd requires the time at which the reload began: sd_notify(3).
        lines += (f"MONOTONIC_USEC={time.monotonic_ns() // 1000}",)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(1)
            # The variable writes "@" for the NUL byte at the start of an abstract address: unix(7).
            address = "\0" + address[1:] if address[0] == "@" else address
            sock.sendto("\n".join(lines).encode(), address)
    except OSError:
        pass
