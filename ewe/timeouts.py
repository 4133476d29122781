"""Timeouts by kind: how often the server has waited in vain, and for which peer (setting `status`).

    head        the head of a request did not come, or no first request came     head-timeout
    body        the body of a request did not come                               body-timeout, min-rate
    write       the client did not read its response                             write-timeout, min-rate
    keep-alive  an idle connection was closed                                    idle
    program     a program, an application or a responder was silent              program-timeout
    upstream    another server was silent, or took no connection                 proxy-timeout
    queue       no connection to a responder or a server was free                fastcgi-queue-timeout

A head that came in part gets a response, so ewe.server.counted sees it. In all other cases the code that gives up
calls count_timeout(). No other code pays for it: a request without a timeout calls nothing here.
Without the setting `status` the call does nothing.

A head that has come in part may become such a timeout: count_partial_head() counts those that are being read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

KINDS = ("head", "body", "write", "keep-alive", "program", "upstream", "queue")


def ignore(event: object) -> None:
    """Count nothing."""


class TimeoutCounter:
    """Where timeouts, and heads that have come in part, are counted in this process."""

    count: Callable[[str], None] = staticmethod(ignore)
    count_partial_head: Callable[[int], None] = staticmethod(ignore)


def count_timeout(kind: str) -> None:
    """Count a timeout. kind: one of KINDS."""
    TimeoutCounter.count(kind)


def count_partial_head(change: int) -> None:
    """Count a head of which only a part has come (1), or its end (-1)."""
    TimeoutCounter.count_partial_head(change)


class IdleStream(Protocol):
    """A stream that has waited for a request. requests: the number of those that it has had.

    in_handshake: it has waited for the first bytes of a TLS handshake instead.
    """

    requests: int
    finishing: bool
    in_handshake: bool


def counted_if_empty(stream: IdleStream, data: bytes) -> bytes:
    """Return `data`, the bytes that had arrived when a wait for a request ended; count a timeout if there are none.

    Its kind is "head" for a connection's first request, and "keep-alive" for a later one. A wait that ended because
    the server stops is no timeout. The end of a handshake (tls-timeout) is not counted.
    """
    if not data and not stream.finishing and not stream.in_handshake:
        count_timeout("keep-alive" if stream.requests else "head")
    return data


def count_with(count: Callable[[str], None], partial_head: Callable[[int], None]) -> None:
    """Have timeouts, and heads that have come in part, counted by these functions from now on."""
    TimeoutCounter.count = staticmethod(count)
    TimeoutCounter.count_partial_head = staticmethod(partial_head)
