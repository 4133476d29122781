"""The experiments: everything that the lab can run, and what is printed for what it cannot run yet.

    CATALOG     all experiments, by id, document by document
    CHECKS      for claims that no printed figure can judge: a function from a finished table to a Finding
    PUBLISHED   the printed figures of an experiment that cannot be run yet

Where an experiment stands depends on what it needs:

    x_t1.py, e_c3.py, ...    an experiment with its own way to run, in a file named by its id (X-T1, E-C3). It
                             holds EXPERIMENT, and perhaps `check`
    ewe_figures.py, ...      the experiments of one document that are printed figures only. It holds EXPERIMENTS,
                             and CHECKS by id; ewe_tables.py, thesis_static.py, ... say how they are run
    WAITING, in any of them  those that cannot be run yet, each with the cells of its printed figures: none today
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from ewe_lab.bench.experiment import Experiment
from ewe_lab.bench.results import Cell, Table
from ewe_lab.bench.verdicts import Finding
from ewe_lab.experiments.durations import QUICK_SECONDS

DOCUMENTS = ("EWE", "X-Switch", "LibCGI", "RDBMS", "thesis", "ewe")
CATALOG: dict[str, Experiment] = {}
CHECKS: dict[str, Callable[[Table], Finding]] = {}
PUBLISHED: dict[str, Sequence[Cell]] = {}


def natural(id: str) -> list[tuple[int, str]]:
    """Return a sort key for an id: E-T2 before E-T10, letters before digits."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", id) if part]


def gather() -> None:
    """Fill CATALOG, CHECKS and PUBLISHED from the modules of this package."""
    found: list[Experiment] = []
    for each in pkgutil.iter_modules(__path__):
        if each.name == "__main__":
            continue
        module = importlib.import_module(f"{__name__}.{each.name}")
        if hasattr(module, "EXPERIMENT"):
            found.append(module.EXPERIMENT)
            if hasattr(module, "check"):
                CHECKS[module.EXPERIMENT.id] = module.check
        found += getattr(module, "EXPERIMENTS", ())
        CHECKS.update(getattr(module, "CHECKS", {}))
        for experiment, cells in getattr(module, "WAITING", ()):
            found.append(experiment)
            PUBLISHED[experiment.id] = cells
    found.sort(key=lambda each: (DOCUMENTS.index(each.document), natural(each.id)))
    CATALOG.update((each.id, replace(each, quick_seconds=QUICK_SECONDS.get(each.id, 0))) for each in found)


gather()
