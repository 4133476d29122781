"""Whose connection is it: on the loopback interface, the kernel knows the account of the client.

Each account of a computer can connect to the live page's server. It has no token, but each of its connections
occupies a thread of the server until the head timeout. Enough of them would delay the buttons. The page's own
account therefore has precedence:

    accept ──▶ account of the client? ──▶ the page's own, or unknown ──▶ serve
                                     └──▶ another one ──▶ fewer than MOST_OF_OTHERS are open? serve : close at once

Other accounts are not refused altogether: a person may have started ewe-watch as one account, and the browser as
another one. The token decides what such a connection may do.

The kernel answers the question in a constant time, by a netlink socket (sock_diag(7)). The table /proc/net/tcp has
the same answer, but it has one line for each socket of the computer. 1,200 connections would make each look at it
slow, so the strangers would delay the page after all.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Any
from weakref import WeakSet

MOST_OF_OTHERS = 20  # open connections of other accounts: three browsers, each with six and its stream
MOST_CLOSED = 50  # in one call of accept()
# Of linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h
NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST = 1
NLMSG_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence number, port
REQUEST_START = struct.Struct("=BBBxI")  # family, protocol, extensions, states
ADDRESS_BYTES = 16
NO_INTERFACE = bytes(4)
NO_COOKIE = b"\xff" * 8
ACCOUNT_AND_INODE = struct.Struct("=II")
ACCOUNT_AT = NLMSG_HEADER.size + 64  # offset of idiag_uid, and then of idiag_inode, in the answer
ANSWER_BYTES = 4096
GONE = -1  # instead of an account: the client has closed its socket


def own_accounts() -> frozenset[int]:
    """Return the accounts with precedence: that of this process, and under sudo(8) that of the caller."""
    caller = os.environ.get("SUDO_UID", "")
    with_caller = os.geteuid() == 0 and caller.isdecimal()
    return frozenset((os.geteuid(), int(caller)) if with_caller else (os.geteuid(),))


def account_of_client(sock: socket.socket) -> int | None:
    """Return the account that has opened the other end of a connection on this computer.

    sock: an accepted TCP connection. GONE: the client has closed its socket. None: the system does not tell.
    """
    try:
        question = question_of(sock)
        with socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG
        ) as kernel:
            kernel.send(question)
            answer = kernel.recv(ANSWER_BYTES)
    except (OSError, AttributeError):  # AttributeError: only Linux has netlink
        return None
    if (
        len(answer) < ACCOUNT_AT + ACCOUNT_AND_INODE.size
        or NLMSG_HEADER.unpack_from(answer)[1] != SOCK_DIAG_BY_FAMILY
    ):
        return GONE  # the message is an error: there is no such socket
    account, inode = ACCOUNT_AND_INODE.unpack_from(answer, ACCOUNT_AT)
    return int(account) if inode else GONE


def question_of(sock: socket.socket) -> bytes:
    """Return the message that asks for the client's socket: struct inet_diag_req_v2. Raises OSError."""
    # The client's local address is the peer of this socket
    ends = [sock.getpeername(), sock.getsockname()]
    ports = struct.pack("!HH", *(end[1] for end in ends))
    addresses = b"".join(socket.inet_pton(sock.family, end[0]).ljust(ADDRESS_BYTES, b"\0") for end in ends)
    start = REQUEST_START.pack(sock.family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
    body = start + ports + addresses + NO_INTERFACE + NO_COOKIE
    return NLMSG_HEADER.pack(NLMSG_HEADER.size + len(body), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0) + body


class AccountLimitSocket(socket.socket):
    """A listening socket that accepts at most MOST_OF_OTHERS connections of other accounts at a time."""

    __slots__ = ("others", "own")

    def __init__(self, listening: socket.socket, own: frozenset[int]) -> None:
        """listening: a socket whose descriptor this one takes. own: the accounts with precedence."""
        timeout_s = listening.gettimeout()
        super().__init__(listening.family, listening.type, listening.proto, listening.detach())
        self.settimeout(timeout_s)
        self.own = own
        self.others: WeakSet[socket.socket] = WeakSet()

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection, as accept(2). Close those of other accounts that are too many.

        Raises OSError, and ConnectionAbortedError after MOST_CLOSED closed connections: a stop can come between.
        """
        for _ in range(MOST_CLOSED):
            sock, address = super().accept()
            account = account_of_client(sock)
            if account is None or account in self.own:
                return sock, address
            # A closed socket has no descriptor
            if account != GONE and sum(other.fileno() >= 0 for other in self.others) < MOST_OF_OTHERS:
                self.others.add(sock)
                return sock, address
            sock.close()
        raise ConnectionAbortedError("only connections of other accounts")
