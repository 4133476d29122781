"""Priming over a replayed day: the injected clock, and the verdict."""

from __future__ import annotations

import pytest
from lab_bench import quick_lab

from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.experiments import prime
from ewe_lab.experiments.prime import NONE, PRIMED, WARM, check, sample_of


@pytest.mark.starts_processes
@pytest.mark.needs("Perl")
def test_the_visitor_of_the_second_day_finds_an_engine() -> None:
    """The day is told by a file: the counters of X-Switch say how each engine began."""
    with quick_lab() as lab:
        scripts = {"Perl": prime.programs_directory(lab) / "hello.pl"}
        with prime.run_xswitch(lab, PRIMED) as (clock, address):
            waits, hours = prime.replay_day(clock, address, scripts, (9,))
            assert counters(address).get("primed", 0) == 0 and hours["Perl"] < 1
            waits, hours = prime.replay_day(clock, address, scripts, (9,), prime.DAY_S)
            assert counters(address)["primed"] == 1 == counters(address)["started"] - 1
            assert len(waits["Perl"]) == 1 and 0 < hours["Perl"] < 1


def counters(address: str) -> dict[str, int]:
    return dict(prime.status(address)["counters"])


@pytest.mark.parametrize(
    ("primed", "hours", "word"),
    [
        (7.5, 2.0, "holds"),
        (7.6, 2.0, "does not hold"),
        (1.0, 13.0, "does not hold"),
        (1.0, 12.0, "does not hold"),
    ],
)
def test_the_verdict(primed: float, hours: float, word: str) -> None:
    cells = []
    for mode, wait, there in ((NONE, 10.0, 2.0), (PRIMED, primed, hours), (WARM, 1.0, 24.0)):
        cells.append(Cell(mode, "Perl", value="extra.first", samples=[sample_of([wait], there)]))
    assert check(ExperimentTable("PRIME", cells=cells)).word == word
    assert check(ExperimentTable("PRIME", cells=cells[:2])).word == "not testable"
