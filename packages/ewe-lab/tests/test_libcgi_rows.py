"""The tables of the LibCGI paper, made again."""

from __future__ import annotations

import itertools
import subprocess
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from lab_bench import quick_lab

from ewe.libcgi.build import build
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, ExperimentTable, Sample, Usage
from ewe_lab.experiments import l_c1, l_c2, l_f1, l_pk, l_t1, l_t2, l_t3, l_x1
from ewe_lab.experiments.catalog import CATALOG
from ewe_lab.experiments.libcgi_tables import CGI, FASTCGI, KINDS, LIBCGI, SIZES, STATIC
from ewe_lab.load import exchanges, pinger, protected_calls, stub_dns
from ewe_lab.load.exchanges import BYTE, COLUMNS, PROTOCOL, RAW
from ewe_lab.load.steps import EXEC, FORK, IPC, STEPS, TOTAL
from ewe_lab.report import summary
from ewe_lab.stacks import forms, gateways


def micros(column: str, **figures: float) -> list[Cell]:
    """Return cells that were measured, by server."""
    return [
        Cell(name, column, value="extra.micros", samples=[Sample("x", 0, extra={"micros": figure})])
        for name, figure in figures.items()
    ]


# L-T1: starting a program


@pytest.mark.starts_processes
@pytest.mark.needs("gcc")
def test_the_steps_of_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l_t1, "START_COUNTS", {"C": (10, 10), "Python": (3, 3)})
    monkeypatch.setattr(l_t1, "PARENT_MB", (10, 60))
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
        l_t1.measure_starts(1, 2, ["/bin/true"])


def test_without_a_compiler_the_c_program_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ewe_lab.stacks.compiled.find_tool", lambda name: None)
    monkeypatch.setattr(l_t1, "measure_starts", lambda *of: {step: [1.0, 2.0] for step in STEPS})
    with quick_lab() as lab:
        cells = list(l_t1.run(lab))
        assert "The program in C is left out: no C compiler: apt install gcc libc6-dev" in lab.notes
    assert {cell.column for cell in cells} == {l_t1.column_of("Python", size) for size in l_t1.PARENT_MB}
    assert l_t1.check(ExperimentTable("L-T1", cells=cells)).word == "not testable"


@pytest.mark.parametrize(("exec_micros", "word"), [(700, "holds"), (400, "does not hold")])
def test_the_claim_about_starts(exec_micros: float, word: str) -> None:
    cells = micros(l_t1.PRINTED_COLUMN, **{FORK: 90, EXEC: exec_micros, IPC: 10, TOTAL: 1000})
    assert l_t1.check(ExperimentTable("L-T1", cells=cells)).word == word


# L-X1: handing a request over


@pytest.mark.starts_processes
@pytest.mark.parametrize("column", COLUMNS)
def test_the_exchanges(column: str) -> None:
    found = l_x1.measure_exchanges(column, 30)
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
    assert l_x1.micros_by_part(rounds) == {"control": 10, "IPC": 15, "protocol": 45, "total": 70}


@pytest.mark.parametrize(
    ("control", "communication", "protocol", "word"),
    [(19, 14, 3, "holds"), (14, 19, 3, "holds in part"), (14, 3, 19, "does not hold")],
)
def test_the_claim_about_parts(control: float, communication: float, protocol: float, word: str) -> None:
    parts = {"control": control, "IPC": communication, "protocol": protocol, "total": 36}
    assert l_x1.check(ExperimentTable("L-X1", cells=micros(exchanges.EACH_CONNECTION, **parts))).word == word


# L-T2: the time in the server


@pytest.mark.starts_processes
@pytest.mark.needs("gcc")
def test_requests_are_timed_in_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l_t2, "REQUEST_COUNTS", (5, 5))
    monkeypatch.setattr(l_t2, "START_COUNTS", (5, 5))
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
    monkeypatch.setattr(l_t2, "measure_sizes", lambda lab, *of: dict.fromkeys(SIZES, HANDLED))
    monkeypatch.setattr("ewe_lab.stacks.gateways.why_no_libcgi", lambda: gateways.NOT_BUILT)
    monkeypatch.setattr("ewe_lab.stacks.compiled.find_tool", lambda name: None)
    monkeypatch.setattr(gateways, "form_of", lambda gateway, program: program.script)
    with quick_lab() as lab:
        cells = list(l_t2.run(lab))
        assert f"LibCGI is left out: {gateways.NOT_BUILT}" in lab.notes
    assert LIBCGI not in {cell.server for cell in cells}
    assert l_t2.check(ExperimentTable("L-T2", cells=cells)).word == "not testable"


HANDLED = l_t2.Handling([0.004, 0.001, 0.002], server_cpu_s=0.0015, program_cpu_s=0.003)


def test_where_the_time_goes() -> None:
    assert l_t2.micros_by_part(HANDLED) == pytest.approx((500, 1000, 500))
    assert l_t2.sample(HANDLED).extra == {"millis": 2.0}


@pytest.mark.parametrize(
    ("small", "large", "word"),
    [
        ((8.2, 5.0, 1.3), (75, 71, 63), "holds"),
        ((8.2, 5.0, 1.3), (750, 71, 63), "holds in part"),  # the gap grows
        ((8.2, 5.0, 1.3), (71, 72, 63), "holds"),  # nearly equal at 100 KB
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
    assert l_t2.check(ExperimentTable("L-T2", cells=cells)).word == word
    of_one_size = ExperimentTable("L-T2", cells=cells[:3])  # only the order is judged
    in_order = small[0] > small[1] > small[2]
    assert l_t2.check(of_one_size).word == ("holds" if in_order else "does not hold")


# L-T3: throughput


@pytest.mark.starts_processes
@pytest.mark.needs("gcc")
def test_all_servers_of_table_3_answer_the_same() -> None:
    with quick_lab() as lab:
        programs = forms.write_forms(lab, SIZES)
        ways = {**l_t3.gateways_of_ewe(lab, programs, "asyncio"), **l_t3.installed_servers(lab, programs)}
        answers = {}
        for name, serve in ways.items():
            with (
                serve() as (server, path),
                pinger.http(server.url, path.replace("{size}", "10240"), forms.body(10_240)) as ask,
            ):
                answers[name] = [len(ask()) > 10_240 for _ in range(3)]
        left_out = {note.partition(" is left out")[0] for note in lab.notes}
    assert set(answers) == {*KINDS, *l_t3.OTHER_SERVERS} - left_out
    assert {CGI, FASTCGI, STATIC} <= set(answers)
    assert all(all(found) for found in answers.values())


def rates(**columns: tuple[float, ...]) -> ExperimentTable:
    """Return a table 3: by model the rates of CGI, FastCGI, LibCGI and the file, for 1 KB."""
    return ExperimentTable("L-T3", cells=[
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


def test_all_have_to_be_equal_at_the_greatest_size_behind_the_slowest_link() -> None:
    full_speed = rates(thread=(500, 2000, 9600, 10_000), prefork=(500, 2000, 9600, 10_000))

    def word(cgi: int) -> str:
        cells = [
            Cell(kind, l_t3.column_of(*l_t3.SLOWEST_ROW), samples=[Sample("x", 1, replies=rate)])
            for kind, rate in zip(KINDS, (cgi, 100, 100, 100), strict=True)
        ]
        return l_t3.check(replace(full_speed, cells=[*full_speed.cells, *cells])).word

    assert (word(90), word(50)) == ("holds", "holds in part")


# L-C1: the first call


@pytest.mark.starts_processes
@pytest.mark.needs("gcc")
def test_a_library_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    build()
    monkeypatch.setattr(l_c1, "LIBRARY_COUNTS", (3, 3))
    with quick_lab() as lab:
        programs = forms.write_forms(lab, SIZES[:1])
        found = l_c1.measure_column(lab, LIBCGI, lambda: l_c1.time_libraries(lab, programs))
        cells = {cell.server: cell for cell in found}
        assert l_c1.time_import(programs) > 0
    assert not any(cell.failure for cell in cells.values())
    first, later = cells[l_c1.FIRST].samples[0], cells[l_c1.LATER].samples[0]
    assert (first.requests, later.requests) == (3, 3 * l_c1.LATER_CALLS)
    assert (cells[l_c1.LOADING].paper, cells[l_c1.LATER].paper) == (400, 1300)
    assert cells[l_c1.LOADING].median == pytest.approx(first.extra["micros"] - later.extra["micros"])


def test_an_import_without_end_is_an_error_of_the_lab(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def time_out(command: list[str], timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr("subprocess.run", time_out)
    with pytest.raises(LabError, match="the import of a WSGI module did not end within 30 s"):
        l_c1.time_import(tmp_path)


@pytest.mark.parametrize(("loading", "word"), [(300, "holds"), (2000, "does not hold")])
def test_the_claim_about_loading(loading: float, word: str) -> None:
    figures = {l_c1.LOADING: loading, l_c1.LATER: 120.0}
    assert l_c1.check(ExperimentTable("L-C1", cells=micros(LIBCGI, **figures))).word == word


# L-F1: faults


@pytest.mark.starts_processes
@pytest.mark.needs("gcc")
def test_faults_harm_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    build()
    monkeypatch.setattr(l_f1, "FAULTS", ("crash", "exit"))
    monkeypatch.setattr(l_f1, "ROUND_COUNTS", (1, 1))
    monkeypatch.setattr(l_f1, "HOST", "/nowhere")
    with quick_lab() as lab:
        table = ExperimentTable("L-F1", cells=list(l_f1.run(lab)), notes=lab.notes)
    assert [cell.failure for cell in table.cells] == [""] * 8
    assert any(l_f1.HOST_MISSING in note for note in table.notes)
    samples = [cell.samples[0] for cell in table.cells]
    assert all(sample.requests > 2 * l_f1.CLIENTS_OF_EACH_LIBRARY for sample in samples)
    assert [sample.extra["lost"] for sample in samples] == [0] * 8
    assert l_f1.check(table).word == "holds", l_f1.check(table)


def test_what_others_lose_is_counted() -> None:
    client = l_f1.FaultClient("http://127.0.0.1:9/", "/", threading.Event(), lost=["500 with 9 bytes"] * 2)
    assert l_f1.count_wrong_answers([client, client]) == [("500 with 9 bytes", 4)]
    assert l_f1.get("http://127.0.0.1:9/", "/") == (0, b"")


def fault(status: float, note: str = "") -> ExperimentTable:
    sample = Sample("sockets", 0, 10, 9, extra={"lost": 1.0, "status": status}, notes=[note] if note else [])
    return ExperimentTable(
        "L-F1", cells=[Cell("crash", l_f1.IN_SERVER, value="extra.lost", samples=[sample])]
    )


def test_the_claim_about_faults() -> None:
    assert l_f1.check(fault(500)).word == "holds"
    assert "other clients lost 1 of 10 requests" in l_f1.check(fault(500)).sentence
    assert l_f1.check(fault(200)).word == "does not hold"
    assert l_f1.check(fault(500, "the library did not answer again")).word == "does not hold"


def test_a_fault_that_ends_the_server_is_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The server answers two libraries once, and then no request at all."""
    answers = iter([(200, l_f1.ANSWER)] * 2)
    monkeypatch.setattr(l_f1, "get", lambda url, path: next(answers, (0, b"")))
    monkeypatch.setattr(l_f1, "copy_program", lambda isolation, directory, name: f"/libcgi-bin/{name}.so")
    monkeypatch.setattr(l_f1, "clients_of", lambda url, paths: nullcontext([]))
    monkeypatch.setattr(l_f1, "QUIET_LOAD_S", 0)
    monkeypatch.setattr(l_f1, "ANSWER_TIMEOUT_S", 0)
    lab = SimpleNamespace(repeats=1, quick_or_full=lambda quick, full: quick)
    server = SimpleNamespace(url="http://127.0.0.1:9/")
    cells = list(l_f1.measure_fault(lab, server, l_f1.IN_SERVER, "crash", tmp_path, itertools.count()))
    assert [len(cell.samples) for cell in cells] == [1, 1]
    assert {cell.failure for cell in cells} == {"faults2.so does not answer in place"}
    assert l_f1.check(ExperimentTable("L-F1", cells=cells)).word == "does not hold"


# L-C2: the client's name


def test_what_the_name_server_answers() -> None:
    name = stub_dns.encode_name("53.0.0.127.in-addr.arpa")
    question = b"\x12\x34\x01\x00" + b"\0\1" + b"\0\0" * 3 + name + b"\0\x0c\0\1"
    reply = stub_dns.reply_to(question)
    assert reply[:8] == b"\x12\x34\x85\x80\0\1\0\1" and reply.endswith(b"\x06client\x07example\0")
    assert reply[12 : len(question)] == question[12:]
    other = stub_dns.reply_to(question[:-4] + b"\0\1\0\1")  # an address
    assert other[2:8] == b"\x85\x83\0\1\0\0"
    assert stub_dns.reply_to(question[:20]) == stub_dns.reply_to(b"") == b""


@pytest.mark.starts_processes
@pytest.mark.needs("gcc")
def test_a_slow_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    build()
    monkeypatch.setattr(l_c2, "REQUEST_COUNTS", (1, 1))
    monkeypatch.setattr(l_c2, "DELAY_S", 0.3)
    monkeypatch.setattr(
        l_c2, "ROWS", {l_c2.NOT_ASKED: ("", 0.3), l_c2.QUICK: ("name", 0.0), l_c2.SLOW: ("name", 0.3)}
    )
    with quick_lab() as lab:
        cells = list(l_c2.run(lab))
        assert lab.command_prefix == []
    if lacking := l_c2.why_impossible():
        assert {cell.failure for cell in cells} == {lacking}
        return
    assert [cell.failure for cell in cells] == ["", "", ""]
    not_asked, quick, slow = (cell.samples[0].extra for cell in cells)
    assert slow["millis"] >= 300
    assert (not_asked["questions"], bool(quick["questions"])) == (0, True)


@pytest.mark.parametrize(
    ("slow", "not_asked", "word"),
    [(1010, 2, "holds"), (1010, 1000, "holds in part"), (3, 1000, "does not hold")],
)
def test_the_claim_about_names(slow: float, not_asked: float, word: str) -> None:
    cells = [
        Cell(name, "", value="extra.millis", samples=[Sample("x", 0, extra={"millis": figure})])
        for name, figure in ((l_c2.NOT_ASKED, not_asked), (l_c2.QUICK, 2.0), (l_c2.SLOW, slow))
    ]
    assert l_c2.check(ExperimentTable("L-C2", cells=cells)).word == word


# L-PK: protection inside one address space

FEW_CALLS = dict.fromkeys(protected_calls.METHODS, (10, 10))
BY_DEED = list(protected_calls.DAMAGES)


@pytest.mark.starts_processes
@pytest.mark.needs("gcc", "Linux")
def test_the_damage_that_each_boundary_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """mprotect closes the same pages as a key: what it stops here, a key stops where the processor has keys."""
    monkeypatch.setattr(l_pk, "CALL_COUNTS", FEW_CALLS)
    with quick_lab() as lab:
        cells = list(l_pk.run(lab))
        assert lab.notes[0].startswith("Closed: ")
    stopped = {
        method: [deed for deed in BY_DEED if (deed, l_pk.STOPS.format(method), 1.0) in
                 [(cell.server, cell.column, cell.median) for cell in cells]]
        for method in protected_calls.METHODS
    }  # fmt: skip
    assert stopped[protected_calls.UNPROTECTED] == []
    assert stopped[protected_calls.MPROTECT] == l_pk.MISTAKES
    assert stopped[protected_calls.PROCESS] == BY_DEED
    times = {cell.server: cell for cell in cells if cell.column == l_pk.TIME}
    in_place, process = times[protected_calls.UNPROTECTED].median, times[protected_calls.PROCESS].median
    assert in_place and process and in_place < process
    if reason := times[protected_calls.KEYS].failure:
        assert reason.startswith("no protection keys: ") and "\n" not in reason
    else:
        assert stopped[protected_calls.KEYS] == l_pk.MISTAKES


def test_a_processor_without_keys_is_named() -> None:
    assert protected_calls.why_no_keys("flags\t\t: fpu pku ospke\n") == ""
    assert "names no pku." in protected_calls.why_no_keys("flags\t\t: fpu pkus\n")
    assert "names no ospke." in protected_calls.why_no_keys("flags\t\t: fpu pku\n")
    assert "names no pku." in protected_calls.why_no_keys("")


def protected(keys: float, process: float, stopped: int) -> ExperimentTable:
    """Return a table in which keys stop the first `stopped` kinds of damage. keys, process: ns of a call."""
    cells = [
        Cell(method, l_pk.TIME, value="extra.nanos", samples=[Sample("x", 0, extra={"nanos": nanos})])
        for method, nanos in ((protected_calls.KEYS, keys), (protected_calls.PROCESS, process))
    ]
    column = l_pk.STOPS.format(protected_calls.KEYS)
    for number, deed in enumerate(BY_DEED):
        sample = Sample("x", 0, extra={"stopped": float(number < stopped)})
        cells.append(Cell(deed, column, value="extra.stopped", samples=[sample]))
    return ExperimentTable("L-PK", cells=cells)


def test_the_claim_about_protection() -> None:
    found = l_pk.check(protected(70, 9000, 3))
    assert found.word == "holds"
    assert "Not stopped: “writes malloc() memory”, “writes caller's stack”, " in found.sentence
    assert l_pk.check(protected(9000, 9000, 3)).word == "holds in part"
    assert l_pk.check(protected(8000, 9000, 3)).word == "holds in part"  # less, and not much less
    assert l_pk.check(protected(70, 9000, 2)).word == "holds in part"
    assert l_pk.check(protected(9000, 9000, 0)).word == "does not hold"


def test_a_lack_of_keys_is_named_beside_other_programs_too() -> None:
    without = protected(70, 9000, 3)
    without.cells = [
        Cell(protected_calls.KEYS, l_pk.TIME, failure="no protection keys: x"),
        *without.cells[1:2],
    ]
    found = l_pk.check(without)
    assert (found.word, found.sentence) == (
        "not testable",
        "No protection keys: x. A call takes: process 9,000 ns.",
    )
    crowded = summary.finding_of(replace(without, foreign=0.9), CATALOG["L-PK"])
    assert crowded.word == "no verdict"
    again = "Other programs had 90\u00a0% of the 2 cores. Run it again on a quiet machine."
    assert crowded.sentence == f"{again} {found.sentence}"
