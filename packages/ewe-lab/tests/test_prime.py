"""Priming over a replayed day: the injected clock, and the verdict."""

from __future__ import annotations

import os
import pwd
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from lab_bench import quick_lab

from ewe.config.messages import Failure
from ewe.gateway.records import FastCGIError
from ewe_lab.bench.processes import LabError
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


@pytest.mark.parametrize("error", [Failure("no X-Switch"), FastCGIError("no X-Switch")], ids=repr)
def test_an_x_switch_that_does_not_answer_is_a_failure_of_its_rows(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(*_: object) -> None:
        raise error

    monkeypatch.setattr(prime, "replay_day", no_answer)
    monkeypatch.setattr(prime, "run_xswitch", lambda lab, mode: nullcontext((Path("clock"), "unix:socket")))
    monkeypatch.setattr(prime, "technology", lambda name: SimpleNamespace(why_missing=""))
    monkeypatch.setattr(prime, "programs_directory", lambda lab: Path("programs"))
    cells = list(prime.run(SimpleNamespace(quick=True, notes=[])))
    assert len(cells) == 3 * len(prime.LANGUAGES) and {cell.failure for cell in cells} == {"no X-Switch"}


def test_a_machine_without_the_account_of_x_switch_is_a_failure_of_the_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_account(name: str) -> None:
        raise KeyError(f"getpwnam(): name not found: {name!r}")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwnam", no_account)
    lab = SimpleNamespace(directory=tmp_path)
    with pytest.raises(LabError, match="needs the account nobody"), prime.run_xswitch(lab, PRIMED):
        pass


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
