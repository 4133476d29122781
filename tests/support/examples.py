"""How many examples a property is tried with: all in `make test`, a fifth of them in `make quick`."""

from __future__ import annotations

import os


def examples(count: int) -> int:
    """Return how many of `count` examples this run has time for."""
    return count // 5 if os.environ.get("EWE_TEST_QUICK") else count
