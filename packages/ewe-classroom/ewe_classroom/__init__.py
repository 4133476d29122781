"""The classroom: what a course needs around ewe. It grades servers, and it makes assignments and leaderboards.

from ewe_classroom import check         grade a server, or a model of a notebook (notebook.py)
from ewe_explore import explore         a scenario with threads: does any schedule fail? (the house beside this one)
"""

from typing import Any

FROM_EXPLORER = ("Exploration", "RaceFound", "always", "explore")


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a program that needs one part does not load the others."""
    if name in FROM_EXPLORER:
        import ewe_explore

        return getattr(ewe_explore, name)
    if name == "check":
        from ewe_classroom.notebook import check

        return check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
