"""Descriptors: how many a process may have open (RLIMIT_NOFILE), and the errors that say there are no more."""

from __future__ import annotations

import errno
import resource

# The system has no descriptors, buffers, memory or processes left. The server is busy: 503, not a fault (500).
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN}


def limit() -> int | None:
    """Return how many descriptors this process may have open; None: as many as it wants."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def allow_all() -> None:
    """Raise the limit as far as the system lets us: a connection takes one, an engine of X-Switch three."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        pass  # a system that calls the limit "unlimited" and does not grant it
