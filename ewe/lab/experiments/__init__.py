"""The experiments: one file for each that runs, in order of documents; those that wait for a server together.

    CATALOG     all of them, by id
    CHECKS      for claims that no printed figure can judge: from a table that was run to what came of it
    PUBLISHED   what a document printed for an experiment that cannot be run yet

A file holds EXPERIMENT, and may hold `check`; a file whose experiments only wait holds WAITING.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from ewe.lab.experiment import Experiment
from ewe.lab.experiments.durations import QUICK_SECONDS
from ewe.lab.results import Cell, Table
from ewe.lab.verdicts import Finding

DOCUMENTS = ("EWE", "X-Switch", "LibCGI", "RDBMS", "thesis", "ewe")
CATALOG: dict[str, Experiment] = {}
CHECKS: dict[str, Callable[[Table], Finding]] = {}
PUBLISHED: dict[str, Sequence[Cell]] = {}


def natural(id: str) -> list[tuple[int, str]]:
    """Return an id so that it sorts as people count: E-T2 before E-T10, letters before figures."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", id) if part]


def gather() -> None:
    """Fill the three from the files of this package."""
    found: list[Experiment] = []
    for each in pkgutil.iter_modules(__path__):
        if each.name == "__main__":
            continue
        module = importlib.import_module(f"{__name__}.{each.name}")
        if hasattr(module, "EXPERIMENT"):
            found.append(module.EXPERIMENT)
            if hasattr(module, "check"):
                CHECKS[module.EXPERIMENT.id] = module.check
        for experiment, cells in getattr(module, "WAITING", ()):
            found.append(experiment)
            PUBLISHED[experiment.id] = cells
    found.sort(key=lambda each: (DOCUMENTS.index(each.document), natural(each.id)))
    CATALOG.update((each.id, replace(each, quick_seconds=QUICK_SECONDS.get(each.id, 0))) for each in found)


gather()
