"""The classroom: what a course needs around ewe. It grades servers, and it explores the races of threads.

from ewe.classroom import explore       a scenario with threads: does any schedule fail? (explorer/report.py)
from ewe.classroom import always        an invariant that the explorer checks at every step
from ewe.classroom import check         grade a server, or a model of a notebook (notebook.py)
"""

from typing import Any

FROM_EXPLORER = ("Exploration", "RaceFound", "always", "explore")


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a program that needs one part does not load the others."""
    if name in FROM_EXPLORER:
        from ewe.classroom import explorer

        return getattr(explorer, name)
    if name == "check":
        from ewe.classroom.notebook import check

        return check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
