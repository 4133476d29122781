"""The experiments: everything that the lab can run, and what is printed for what it cannot run yet.

    CATALOG     all experiments, by id, document by document
    CHECKS      for claims that no printed figure can judge: a function from a finished table to a Finding
    PUBLISHED   the printed figures of an experiment that cannot be run yet

An experiment is data. Where it stands depends on what it needs:

    ewe.toml, thesis.toml, ...  all experiments of a document, with its printed figures (papers.py reads them)
    x_t1.py, e_c3.py, ...       the way to run the experiment X-T1 or E-C3, and perhaps `check`, which judges its
                                claim
    ewe_tables.py, ...          the way to run several of a document
    plain.py                    the way to run what a TOML file alone can describe

The catalogue imports none of the ways.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from ewe_lab.bench.experiment import Experiment
from ewe_lab.bench.results import Cell, Table
from ewe_lab.bench.verdicts import Finding
from ewe_lab.experiments.papers import papers


def natural(id: str) -> list[tuple[int, str]]:
    """Return a sort key for an id: E-T2 before E-T10, letters before digits."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", id) if part]


TITLES: Mapping[str, str] = {each.document: each.heading for each in papers()}
DOCUMENTS = tuple(TITLES)
CATALOG: dict[str, Experiment] = {
    each.id: each for paper in papers() for each in sorted(paper.experiments, key=lambda one: natural(one.id))
}
CHECKS: dict[str, Callable[[Table], Finding]] = {
    id: check for each in papers() for id, check in each.checks.items()
}
PUBLISHED: dict[str, Sequence[Cell]] = {id: cells for each in papers() for id, cells in each.waiting.items()}
