"""The classroom: tools for a course about web servers. They grade servers, and write assignments and leaderboards.

from ewe_classroom import check         grade a server, or a model of a notebook (notebook.py)
from ewe_explore import explore         a scenario with threads: does any schedule fail? (the package ewe-explore)
"""

from typing import Any

FROM_EXPLORER = ("Exploration", "RaceFound", "always", "explore")


def __getattr__(name: str) -> Any:
    """Import a name at its first use, so that a program loads only the parts that it needs."""
    if name in FROM_EXPLORER:
        import ewe_explore

        return getattr(ewe_explore, name)
    if name == "check":
        from ewe_classroom.notebook import check

        return check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
