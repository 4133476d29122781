"""The tables of the LibCGI paper, made again."""

from __future__ import annotations

import pytest
from support.lab_bench import quick_lab

from ewe.lab.bench.processes import LabError
from ewe.lab.bench.results import Cell, Sample, Table, Usage
from ewe.lab.experiments import l_t1, l_t2, l_t3, l_x1
from ewe.lab.experiments.libcgi_tables import CGI, FASTCGI, KINDS, LIBCGI, SIZES, STATIC
from ewe.lab.load import exchanges, pinger
from ewe.lab.load.exchanges import BYTE, COLUMNS, PROTOCOL, RAW
from ewe.lab.load.steps import EXEC, FORK, IPC, STEPS, TOTAL
from ewe.lab.stacks import forms, gateways


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


# L-T2: the time in the server


@pytest.mark.starts_processes
def test_requests_are_timed_in_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l_t2, "COUNT", (5, 5))
    monkeypatch.setattr(l_t2, "STARTS", (5, 5))
    names = (CGI, l_t2.CGI_PYTHON, STATIC)
    monkeypatch.setattr(l_t2, "WAYS", {name: l_t2.WAYS[name] for name in names})
    with quick_lab() as lab:
        cells = list(l_t2.run(lab))
    assert [cell.failure for cell in cells] == [""] * (3 * (len(SIZES) + 3))
    times = {(cell.server, cell.column): cell.median for cell in cells}
    assert 0 < (times[STATIC, "28 B"] or 0) < (times[CGI, "28 B"] or 0)
    assert (times[l_t2.CGI_PYTHON, l_t2.PROGRAM] or 0) > 0 == times[STATIC, l_t2.PROGRAM]
    printed = {(cell.server, cell.column): cell.paper for cell in cells}
    assert printed[CGI, "10 KB"] == 11.6 and printed[STATIC, "28 B"] is None


def test_without_the_shim_the_library_is_left_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l_t2, "measured", lambda lab, *of: dict.fromkeys(SIZES, HANDLED))
    monkeypatch.setattr("ewe.lab.stacks.gateways.libcgi_lacks", lambda: gateways.NOT_BUILT)
    monkeypatch.setattr("ewe.lab.stacks.compiled.find_tool", lambda name: None)
    monkeypatch.setattr(gateways, "form_of", lambda gateway, program: program.script)
    with quick_lab() as lab:
        cells = list(l_t2.run(lab))
        assert f"LibCGI is left out: {gateways.NOT_BUILT}" in lab.notes
    assert LIBCGI not in {cell.server for cell in cells}
    assert l_t2.check(Table("L-T2", cells=cells)).word == "not testable"


HANDLED = l_t2.Handling([0.004, 0.001, 0.002], server=0.0015, program=0.003)


def test_where_the_time_goes() -> None:
    assert l_t2.spent(HANDLED) == pytest.approx((500, 1000, 500))
    assert l_t2.sample(HANDLED).extra == {"millis": 2.0}


@pytest.mark.parametrize(
    ("small", "large", "word"),
    [
        ((8.2, 5.0, 1.3), (75, 71, 63), "holds"),
        ((8.2, 5.0, 1.3), (750, 71, 63), "holds in part"),  # the gap grows
        ((8.2, 9.0, 1.3), (75, 71, 63), "holds in part"),
        ((8.2, 9.0, 1.3), (750, 71, 63), "does not hold"),
    ],
)
def test_the_claim_about_times(small: tuple[float, ...], large: tuple[float, ...], word: str) -> None:
    cells = [
        Cell(name, column, value="extra.millis", samples=[Sample("x", 0, extra={"millis": figure})])
        for column, row in (("28 B", small), ("100 KB", large))
        for name, figure in zip((CGI, FASTCGI, LIBCGI), row, strict=True)
    ]
    assert l_t2.check(Table("L-T2", cells=cells)).word == word


# L-T3: throughput


@pytest.mark.starts_processes
def test_all_servers_of_table_3_answer_the_same() -> None:
    with quick_lab() as lab:
        programs = forms.forms_of(lab, SIZES)
        ways = {**l_t3.ewes(lab, programs, "asyncio"), **l_t3.others(lab, programs)}
        answers = {}
        for name, serve in ways.items():
            with (
                serve() as (server, path),
                pinger.http(server.url, path.replace("{size}", "10240"), forms.body(10_240)) as ask,
            ):
                answers[name] = [len(ask()) > 10_240 for _ in range(3)]
        left_out = {note.partition(" is left out")[0] for note in lab.notes}
    assert set(answers) == {*KINDS, *l_t3.PEERS} - left_out
    assert {CGI, FASTCGI, STATIC} <= set(answers)
    assert all(all(found) for found in answers.values())


def rates(**columns: tuple[float, ...]) -> Table:
    """Return a table 3: by model the rates of CGI, FastCGI, LibCGI and the file, for 1 KB."""
    return Table("L-T3", cells=[
        Cell(name, f"{model}, 1 KB", samples=[Sample("x", 1, replies=int(rate), usage=Usage(1.0))])
        for model, row in columns.items()
        for name, rate in zip(KINDS, row, strict=True)
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ((500, 2000, 9600, 10_000), "holds"),
        ((500, 2000, 9000, 10_000), "holds in part"),  # too far from the file
        ((500, 400, 9600, 10_000), "holds in part"),
        ((500, 400, 9000, 10_000), "does not hold"),
    ],
)
def test_the_claim_about_throughput(row: tuple[float, ...], word: str) -> None:
    found = l_t3.check(rates(thread=row, prefork=row, asyncio=(500, 1000, 2000, 10_000)))
    assert found.word == word
    assert "LibCGI over FastCGI: thread" in found.sentence and "asyncio 2.00 (2.00)" in found.sentence
