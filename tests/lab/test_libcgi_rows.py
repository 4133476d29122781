"""The tables of the LibCGI paper, made again."""

from __future__ import annotations

import pytest
from support.lab_bench import quick_lab

from ewe.lab.bench.processes import LabError
from ewe.lab.bench.results import Cell, Sample, Table
from ewe.lab.experiments import l_t1, l_x1
from ewe.lab.load import exchanges
from ewe.lab.load.exchanges import BYTE, COLUMNS, PROTOCOL, RAW
from ewe.lab.load.steps import EXEC, FORK, IPC, STEPS, TOTAL


def micros(column: str, **figures: float) -> list[Cell]:
    """Return cells that were measured, by server."""
    return [
        Cell(name, column, value="extra.micros", samples=[Sample("x", 0, extra={"micros": figure})])
        for name, figure in figures.items()
    ]


# L-T1: starting a program


@pytest.mark.starts_processes
def test_the_steps_of_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l_t1, "COUNT", {"C": (10, 10), "Python": (3, 3)})
    monkeypatch.setattr(l_t1, "PARENTS", (10, 60))
    with quick_lab() as lab:
        cells = list(l_t1.run(lab))
    assert [cell.failure for cell in cells] == [""] * (2 * 2 * len(STEPS))
    found = {(cell.column, cell.server): cell.median or 0 for cell in cells}
    assert all(figure > 0 for figure in found.values())
    for language in ("C", "Python"):
        column = l_t1.column_of(language, 10)
        assert found[column, TOTAL] > found[column, IPC]
    small, large = l_t1.column_of("C", 10), l_t1.column_of("C", 60)
    assert found[large, FORK] > found[small, FORK]  # an entry is copied for each page
    assert found[l_t1.column_of("Python", 10), EXEC] > found[small, EXEC]
    assert [cell.paper for cell in cells if cell.column == small][:4] == [998, 5250, 932, 7180]


@pytest.mark.starts_processes
def test_a_program_that_does_not_answer_is_named() -> None:
    with pytest.raises(LabError, match="ended with status 0 and without an answer"):
        l_t1.measured(1, 2, ["/bin/true"])


def test_without_a_compiler_the_c_program_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ewe.lab.stacks.compiled.find_tool", lambda name: None)
    monkeypatch.setattr(l_t1, "measured", lambda *of: {step: [1.0, 2.0] for step in STEPS})
    with quick_lab() as lab:
        cells = list(l_t1.run(lab))
        assert "The program in C is left out: no C compiler: apt install gcc libc6-dev" in lab.notes
    assert {cell.column for cell in cells} == {l_t1.column_of("Python", size) for size in l_t1.PARENTS}
    assert l_t1.check(Table("L-T1", cells=cells)).word == "not testable"


@pytest.mark.parametrize(("exec_micros", "word"), [(700, "holds"), (400, "does not hold")])
def test_the_claim_about_starts(exec_micros: float, word: str) -> None:
    cells = micros(l_t1.CHARTED, **{FORK: 90, EXEC: exec_micros, IPC: 10, TOTAL: 1000})
    assert l_t1.check(Table("L-T1", cells=cells)).word == word


# L-X1: handing a request over


@pytest.mark.starts_processes
@pytest.mark.parametrize("column", COLUMNS)
def test_the_exchanges(column: str) -> None:
    found = l_x1.measured(column, 30)
    assert {name: len(rounds) for name, rounds in found.items()} == dict.fromkeys(
        (BYTE, RAW, PROTOCOL), l_x1.ROUNDS
    )
    assert all(figure > 0 for rounds in found.values() for figure in rounds)


def test_the_raw_run_has_the_bytes_of_the_protocols() -> None:
    request, answer = exchanges.fastcgi_sizes()
    assert exchanges.ANSWER in answer and len(answer) % 8 == 0
    assert all(name in request and value in request for name, value in exchanges.VARIABLES.items())


def test_parts_are_differences_of_the_fastest_rounds() -> None:
    rounds = {BYTE: [20.0, 10.0, 30.0], RAW: [25.0, 26.0, 90.0], PROTOCOL: [80.0, 70.0, 75.0]}
    assert l_x1.parts(rounds) == {"control": 10, "IPC": 15, "protocol": 45, "total": 70}


@pytest.mark.parametrize(
    ("control", "communication", "protocol", "word"),
    [(19, 14, 3, "holds"), (14, 19, 3, "holds in part"), (14, 3, 19, "does not hold")],
)
def test_the_claim_about_parts(control: float, communication: float, protocol: float, word: str) -> None:
    parts = {"control": control, "IPC": communication, "protocol": protocol, "total": 36}
    assert l_x1.check(Table("L-X1", cells=micros(exchanges.EACH, **parts))).word == word
