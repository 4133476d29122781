"""The seed of Python's hashes: a run depends on the iteration order of sets of strings."""

from __future__ import annotations

import os
import sys

HASH_SEED_VARIABLE = "PYTHONHASHSEED"


def restart_with_fixed_seed() -> None:
    """Execute this process's command again with the seed 0, unless it has this seed already."""
    if os.environ.get(HASH_SEED_VARIABLE) != "0":
        os.environ[HASH_SEED_VARIABLE] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
