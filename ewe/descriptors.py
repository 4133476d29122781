"""How many files and sockets this process may have open at once."""

from __future__ import annotations

import resource


def allow_all() -> None:
    """Allow as many as the system lets us: a connection takes one, an engine of X-Switch three."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        pass  # a system whose "unlimited" is not what it grants
