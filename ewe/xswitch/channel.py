"""Messages between X-Switch's processes: one JSON object in each packet, with descriptors beside it.

The socket pair has no name, so no other process can reach it. It is of type SOCK_SEQPACKET: a packet arrives
complete or not at all.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

MAX_MESSAGE_BYTES = 64 * 1024
MAX_DESCRIPTORS = 4


def pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a channel."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one message, with copies of these descriptors. Raises OSError; ValueError if it is too long."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {len(data)} bytes")
    socket.send_fds(sock, [data], descriptors)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next message and its descriptors, None if the other end is closed. Raises OSError."""
    try:
        data, descriptors, _, _ = socket.recv_fds(sock, MAX_MESSAGE_BYTES, MAX_DESCRIPTORS)
    except ConnectionResetError:
        return None
    if not data:
        return None
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return json.loads(data), list(descriptors)
