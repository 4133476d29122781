"""All that the lab can run, and the printed figures of what it cannot run yet.

    CATALOG     all experiments, by id, document by document
    CHECKS      for claims that no printed figure can judge: a function from a finished table to a Finding
    PUBLISHED   the printed figures of the experiments that cannot be run yet
    UNTESTED    the claims of each document that no experiment tests, with the reason

The catalogue reads the TOML files of all papers, and imports no module of an experiment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from ewe_lab.bench.experiment import Experiment
from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.bench.verdicts import Finding
from ewe_lab.experiments.papers import UntestedClaim, papers


def natural_sort_key(id: str) -> list[tuple[int, str]]:
    """Return a sort key for an id: E-T2 before E-T10, letters before digits."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", id) if part]


TITLES: Mapping[str, str] = {each.document: each.heading for each in papers()}
DOCUMENTS = tuple(TITLES)
CATALOG: dict[str, Experiment] = {
    each.id: each
    for paper in papers()
    for each in sorted(paper.experiments, key=lambda one: natural_sort_key(one.id))
}
CHECKS: dict[str, Callable[[ExperimentTable], Finding]] = {
    id: check for each in papers() for id, check in each.checks.items()
}
PUBLISHED: dict[str, Sequence[Cell]] = {id: cells for each in papers() for id, cells in each.waiting.items()}
UNTESTED: dict[str, Sequence[UntestedClaim]] = {each.document: each.untested for each in papers()}
