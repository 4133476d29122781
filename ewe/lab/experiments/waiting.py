"""Experiments that wait for a server, and what their documents printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ewe.lab.experiment import Experiment
from ewe.lab.results import Cell

Waiting = tuple[Experiment, tuple[Cell, ...]]


def cells(
    printed: Mapping[str, float], column: str = "", unit: str = "req/s", x: float | None = None
) -> tuple[Cell, ...]:
    """Return cells with printed figures only, by the document's names of its servers."""
    return tuple(
        Cell(name, column, x, value="", unit=unit, paper=value, paper_server=name)
        for name, value in printed.items()
    )


def joined(parts: Iterable[tuple[Cell, ...]]) -> tuple[Cell, ...]:
    """Return the cells of many columns as one table."""
    return tuple(cell for part in parts for cell in part)
