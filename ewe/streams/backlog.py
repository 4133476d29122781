"""The time for which a connection has waited in the kernel's listen backlog, until the server accepted it.

The server does not know a connection before accept(2), but Linux does. tcp_info (linux/tcp.h) of a socket has the
field tcpi_last_data_sent: the milliseconds since the kernel last sent data of this connection. The kernel sets this
time also when it makes the connection, as the last acknowledgement of the handshake comes
(tcp_create_openreq_child() in net/ipv4/tcp_minisocks.c). While the server has sent nothing, the field is therefore
the age of the connection.

    SYN ──▶ SYN, ACK ──▶ ACK ─────────────── accept(2), getsockopt(TCP_INFO) ──▶ send(2)
                          └─ the backlog ─────────────┘

Limits of this measurement:

- The kernel counts ticks (1 to 10 ms, its constant HZ), so a wait may seem a tick longer or shorter.
- If the backlog is full, the kernel ignores the last acknowledgement. Such a client counts from the moment at which
  the kernel has room for it.
- With TCP_DEFER_ACCEPT, which ewe does not set, the kernel makes the connection when its first bytes come.
- A Unix socket has no tcp_info, and other systems have no such field.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Any

TCP_INFO = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None
# Eight bytes, and nine numbers of 32 bits, stand before tcpi_last_data_sent
LAST_DATA_SENT = struct.Struct("=44xI")


def wait_in_backlog(stream: Any) -> float | None:
    """Return for how many seconds a connection was in the backlog; None if the system does not say it.

    stream: of a model, just accepted. The server has sent nothing over it.
    """
    if TCP_INFO is None or stream.client[1] == 0:  # a client of a Unix socket has no port
        return None
    sock = getattr(stream, "socket", None)
    if sock is None and (transport := getattr(stream, "transport", None)) is not None:
        sock = transport.get_extra_info("socket")
    if sock is None:
        return None
    try:
        (millis,) = LAST_DATA_SENT.unpack(sock.getsockopt(socket.IPPROTO_TCP, TCP_INFO, LAST_DATA_SENT.size))
    except (OSError, struct.error):  # the client has left already, or the structure is shorter
        return None
    return float(millis / 1000)
