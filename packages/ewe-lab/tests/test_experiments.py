"""The catalogue: every experiment of the documents is in it, with the figures that they print."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from lab_bench import quick_lab, tried
from support.java_site import build_once
from support.proc import children
from support.server import ROOT, wait_until

from ewe_lab.bench import verdicts
from ewe_lab.bench.experiment import Load, ServerUnderTest
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, ExperimentTable, Results, Sample, Times
from ewe_lab.experiments import (
    apps,
    clients,
    e_c2,
    ewe_sweeps,
    ewe_tables,
    full,
    l_t1,
    l_x1,
    libcgi_tables,
    slow,
    t_a8,
    t_a12,
    t_crash,
    t_poll,
    thesis_memory,
    thesis_static,
    x_t1,
    xswitch_tables,
)
from ewe_lab.experiments.__main__ import listing
from ewe_lab.experiments.catalog import CATALOG, CHECKS, DOCUMENTS
from ewe_lab.experiments.papers import given
from ewe_lab.experiments.t_a8 import PRINTED as A8
from ewe_lab.experiments.thesis_memory import PROGRAM
from ewe_lab.report import report, summary
from ewe_lab.stacks.servers import run_ewe
from ewe_lab.stacks.ways import ServingStack, serve_stack, technology

ALL_IDS = """
E-T1 E-T2 E-T3 E-T4 E-T5 E-F1 E-F2 E-C1 E-C2 E-C3 E-C4
X-F4 X-T1 X-F5 X-F6 X-F7 X-F8 X-T2 X-C1 X-C2
L-T1 L-X1 L-T2 L-T3 L-C1 L-F1 L-C2 L-PK
R-F5 R-F7 R-F8 R-F9 R-T1 R-C1 R-C2 R-IPC T-CRASH T-POLL T-ST1n
T-A6 T-A7 T-A8 T-ST1 T-ST1k T-ST1w T-ST1b T-ST2 T-ST2w T-ST3 T-DT1 T-DT1a T-DT1w T-DT1c T-A9 T-DT2 T-DT2s T-A10
T-DT3 T-DT4 T-HS1 T-HS1p T-HS2 T-HS3 T-LD T-A12
SLOW GROW FULL SFF QUEUE APPS SPEED PRIME
"""
IDS = ALL_IDS.split()
ALL_RUNNABLE = """
E-T1 E-T2 E-T3 E-T4 E-T5 E-F1 E-F2 E-C1 E-C2 E-C3 E-C4 X-F4 X-F5 X-F6 X-F7 X-F8 X-T1 X-T2 X-C1 X-C2 R-C1
R-F5 R-F7 R-F8 R-F9 R-T1 R-C2 R-IPC T-CRASH T-POLL T-ST1n L-T1 L-X1 L-T2 L-T3 L-C1 L-C2 L-F1 L-PK
T-A6 T-A7 T-A8 T-ST1 T-ST1k T-ST1w T-ST1b T-ST2 T-ST2w T-ST3 T-DT1 T-DT1a T-DT1w T-DT1c T-DT2 T-DT2s T-DT3 T-DT4
T-A9 T-A10 T-HS1 T-HS1p T-HS2 T-HS3 T-A12 T-LD SLOW GROW FULL SFF QUEUE APPS SPEED PRIME
"""
RUNNABLE = ALL_RUNNABLE.split()
ALL_QUICK = """
E-T2 E-T3 X-F4 X-T1 X-T2 L-T1 L-T2 L-T3 R-C1 T-A8 T-ST1 T-ST1k T-ST2 T-ST3 T-DT1 T-DT2 T-HS1 T-LD
SLOW GROW FULL
"""
QUICK = ALL_QUICK.split()
T2, T3, T4, T5 = TABLES = [ewe_tables.PrintedTable(**given(f"E-T{number}")) for number in (2, 3, 4, 5)]


# The catalogue


def test_every_experiment_is_there_once() -> None:
    assert sorted(CATALOG) == sorted(IDS)
    assert all(id == each.id for id, each in CATALOG.items())


def test_an_experiment_runs_or_says_what_it_waits_for() -> None:
    assert sorted(id for id, each in CATALOG.items() if each.run) == sorted(RUNNABLE)
    assert all(bool(each.run) is not bool(each.needs) for each in CATALOG.values())


def test_all_that_runs_has_a_quick_duration() -> None:
    assert all(bool(each.quick_seconds) is bool(each.run) for each in CATALOG.values())
    assert sum(each.quick_seconds for each in CATALOG.values() if each.quick) < 25 * 60


def test_the_quick_ones() -> None:
    assert sorted(id for id, each in CATALOG.items() if each.quick) == sorted(QUICK)


@pytest.mark.parametrize("id", IDS)
def test_each_says_what_it_is(id: str) -> None:
    each = CATALOG[id]
    assert each.document in DOCUMENTS
    assert each.title and each.source and each.varies and each.measures
    assert each.claim.endswith(".") and len(each.claim) < 250
    assert all(text.strip() and text.endswith((".", ".”")) for text in each.errata)
    assert bool(each.reference) >= bool(each.paper_reference)


def test_the_page_of_experiments_is_up_to_date() -> None:
    assert (ROOT / "packages/ewe-lab/docs/experiments.md").read_text() == listing()


# What the documents print


@pytest.mark.parametrize(
    ("printed", "row", "figures"),
    [
        (T2, "request rate", (1012.8, 4.5, 215.4, 163.5, 11.9)),
        (T2, "reply time", (68.7, 2142.9, 82.4, 933.7, 101.1)),
        (T2, "duration", (9.873, 251.709, 46.421, 59.8, 189.9)),
        (T3, "request rate", (974.7, 5.6, 215.1, 125.4, 12.7)),
        (T3, "net I/O", (1310.7, 5.9, 263.8, 152.4, 15.6)),
        (T4, "request rate", (452, 14.6, 224.1, 145.3, 83.5)),
        (T4, "replies", (5000, 3385, 5000, 5000, 4985)),
        (T5, "request rate", (62.0, 5.1, 62.1, 61.9, 9.0)),
        (T5, "requests", (2904, 1263, 2858, 2866, 1701)),
    ],
)
def test_the_tables_of_ewe(printed: ewe_tables.PrintedTable, row: str, figures: tuple[float, ...]) -> None:
    assert tuple(printed.of(row, server) for server in ewe_tables.SERVERS) == figures


@pytest.mark.parametrize("printed", TABLES)
def test_a_printed_table_agrees_with_itself(printed: ewe_tables.PrintedTable) -> None:
    """Requests over seconds are the request rate: a figure that was copied wrongly would show here."""
    assert all(len(line) == len(ewe_tables.SERVERS) for line in printed.lines.values())
    assert tuple(printed.lines) == ewe_tables.ROWS[:-1] and len(printed.errors) == len(ewe_tables.SERVERS)
    for server in ewe_tables.SERVERS:
        rate = printed.of("requests", server) / printed.of("duration", server)
        assert rate == pytest.approx(printed.of("request rate", server), rel=0.02)
        assert printed.of("connections", server) == 1000


def test_the_errors_of_ewe() -> None:
    assert T2.errors == ["0", "881 st, 5 res", "0", "24 res", "773 ct"]
    assert T3.errors == ["0", "875 st", "0", "93 res", "759 st"]
    assert T4.errors == ["0", "99 st, 224 cr", "0", "0", "3 res"]
    assert T5.errors == ["48 cr", "465 st, 171 res", "71 res", "67", "433 st"]


def test_what_other_documents_print() -> None:
    a9, a10 = (given(id)["printed"][PROGRAM] for id in ("T-A9", "T-A10"))
    found = {
        "LibCGI table 3, 100 Mbit/s": [*libcgi_tables.TABLE_3["100 Mbit/s"]["28 B"].values()],
        "LibCGI table 3, 10 Mbit/s": [*libcgi_tables.TABLE_3["10 Mbit/s"]["100 KB"].values()],
        "LibCGI table 2": libcgi_tables.TABLE_2["10 KB"],
        "L-T1": l_t1.PRINTED,
        "L-X1": l_x1.PRINTED,
        "X-Switch table 2, Java": xswitch_tables.TABLE_2["X-Switch Java"],
        "X-Switch table 2, Python": xswitch_tables.TABLE_2["X-Switch Python"],
        "X-Switch table 2, Apache": xswitch_tables.TABLE_2["Apache mod_python"],
        "X-T1": x_t1.TABLE_1[x_t1.ENGINE],
        "T-A12, the third": t_a12.INTERPRETERS[2].printed(opcache=True),
        "T-A12, the first": t_a12.INTERPRETERS[0].printed(opcache=False),
        "T-A9": a9["nginx php-fpm"],
        "T-A10": a10["nginx uwsgi"],
        "T-A8, nginx": A8["nginx"],
        "T-A8, Apache": A8["apache-worker"],
    }
    assert found == {
        "LibCGI table 3, 100 Mbit/s": [98, 193, 448, 460],
        "LibCGI table 3, 10 Mbit/s": [9, 10, 10, 10],
        "LibCGI table 2": {"CGI": 11.6, "FastCGI": 7.5, "LibCGI": 2.4},
        "L-T1": {"fork": 998, "exec": 5250, "IPC": 932, "total": 7180},
        "L-X1": {"control": 1900, "IPC": 1400, "protocol": 350, "total": 3650},
        "X-Switch table 2, Java": [450, 54],
        "X-Switch table 2, Python": [180, 42],
        "X-Switch table 2, Apache": [88, 52],
        "X-T1": [11.06, 6.033242],
        "T-A12, the third": (4180, 6484),
        "T-A12, the first": (5012, 8308),
        "T-A9": ["PHP-FPM", 4140],
        "T-A10": ["uWSGI", 2588],
        "T-A8, nginx": {"plain": [7196, 47240, 896, 41084], "TLS": [7276, 57616, 964, 51460]},
        "T-A8, Apache": {"plain": [2176, 380872, 35036, 102180], "TLS": [2572, 387880, 36192, 109188]},
    }


def test_the_seconds_of_layers_add_up() -> None:
    """Which shows that two percentages are swapped: an erratum that the report prints."""
    assert sum(seconds for _, seconds in x_t1.TABLE_1.values()) == pytest.approx(61.0, abs=0.001)
    assert x_t1.printed_share(x_t1.ENGINE) == 9.89 and x_t1.TABLE_1[x_t1.ENGINE][0] == 11.06
    assert x_t1.printed_share(x_t1.SWITCH) == 11.06 and x_t1.TABLE_1[x_t1.SWITCH][0] == 9.89
    for layer in (x_t1.FRONT, x_t1.MOD_X, x_t1.SCRIPT):
        assert x_t1.printed_share(layer) == pytest.approx(x_t1.TABLE_1[layer][0], abs=0.01)
    assert "swapped" in CATALOG["X-T1"].errata[0]


def test_known_errors_are_printed() -> None:
    def told(id: str) -> str:
        return " ".join(CATALOG[id].errata)

    assert "100000" in told("E-T2") and "1663.8" in told("E-T2")
    assert "legend" in told("E-T4") and "without a type" in told("E-T5")
    assert "process" in told("E-C1") and "??" in told("E-T3")
    assert "4.57" in told("L-T3")
    assert "8,392,857" in told("T-DT1") and "4,000" in told("T-HS2") and "-k" in told("T-ST1k")


# How they run, without a server: a bench that makes up figures


class Paper:
    """A bench on which every server is as fast as in 2006, and loads are only written down."""

    def __init__(self, directory: Path, quick: bool = True) -> None:
        self.directory, self.quick, self.notes, self.repeats = directory, quick, [], 1
        self.loads: list[tuple[str, Load]] = []

    def quick_or_full(self, quick: float, full: float) -> float:
        return quick if self.quick else full

    def servers(self, tested_servers):
        return iter(tested_servers)

    def site(self, sizes) -> Path:
        return self.directory

    @contextmanager
    def start(self, tested: ServerUnderTest, root: Path, *options: str, tls: bool = False):
        yield SimpleNamespace(pid=0, url="http://127.0.0.1:9/", command=tested.name)

    def load(self, server, load: Load) -> Sample:
        self.loads.append((server.command, load))
        return Sample("none", 1.0, 1000, 1000, 100, received=1e8)

    def undisturbed(self, measure) -> Sample:
        return measure()

    def behind_link(self, speed: str):
        return nullcontext("")

    def fill_cell(self, tested: ServerUnderTest, load: Load, cell: Cell, root: Path, *options: str) -> Cell:
        cell.samples.append(self.load(SimpleNamespace(command=tested.name), load))
        return cell


@pytest.mark.parametrize(
    "id",
    [
        "E-T2",
        "E-F1",
        "E-F2",
        "E-T4",
        "E-T5",
        "E-C1",
        "E-C4",
        "T-A6",
        "T-ST1",
        "T-ST2",
        "T-HS1",
        "T-HS1p",
        "T-ST1w",
        "X-C1",
    ],
)
@pytest.mark.parametrize("quick", [True, False])
def test_loads_are_bounded_and_cells_complete(id: str, quick: bool, tmp_path: Path) -> None:
    run = CATALOG[id].run
    assert run is not None
    bench = Paper(tmp_path, quick)
    cells = list(run(bench))
    assert cells and all(cell.samples for cell in cells)
    keys = [(cell.server, cell.column, cell.x) for cell in cells]
    assert len(keys) == len(set(keys))
    for _, load in bench.loads:
        assert 0 < load.seconds <= 60
        if load.shape == "saturation":
            assert 0 < load.users <= 1000
        else:
            assert load.rate * load.calls <= 16_000 and load.sessions <= 10_000
    if CATALOG[id].reference and CATALOG[id].paper_reference:
        assert any(cell.server == CATALOG[id].reference and cell.paper for cell in cells)


def test_ewe_loads_are_those_printed(tmp_path: Path) -> None:
    bench = Paper(tmp_path, quick=False)
    load = ewe_tables.load_of_2006(bench, T3)
    assert (load.rate, load.sessions, load.calls, load.path, load.length) == (
        100,
        1000,
        10,
        "/1024.html",
        1024,
    )
    assert ewe_tables.load_with_thinking(bench, T5).think == 0.1
    assert pytest.approx(1000 / T3.of("request rate", "EWE -f"), rel=0.01) == ewe_tables.OVERLOAD_RATIO


@pytest.mark.parametrize("printed", TABLES)
def test_each_line_of_a_printed_table_has_a_verdict(printed: ewe_tables.PrintedTable, tmp_path: Path) -> None:
    """All lines but connections, an input. A run in which every server does the same is judged line by line."""
    each = CATALOG[f"E-T{TABLES.index(printed) + 2}"]
    assert each.run is not None
    table = ExperimentTable(each.id, cells=list(each.run(Paper(tmp_path))))
    judged = [
        found
        for found in verdicts.judge(table, each)
        if found.cell.setting == ewe_tables.PRINTED and found.cell.paper is not None
    ]
    lines = [found.cell.line or "reply rate" for found in judged if found.cell.server == "fork"]
    assert sorted(lines) == sorted(set(ewe_tables.ROWS) - {"connections"})
    reasons = {found.cell.line: found.reason for found in judged if found.verdict == "not testable"}
    # Measured once, and alike for each server: the printed figures of a few lines differ by less than chance
    untimed = {line for line, reason in reasons.items() if not reason.endswith("may be chance")}
    assert untimed == {"reply time"}  # of which the made-up figures have none
    by_row = {(found.cell.line, found.cell.server): found for found in judged}
    net = by_row["net I/O", "fork"]
    assert net.paper == printed.of("net I/O", "EWE -f") / printed.of("net I/O", "Apache") and net.ours == 1
    assert {found.cell.line for found in judged if found.cell.server == "serial"} == {"", *ewe_tables.LINES}


def test_losses_are_compared_as_shares(tmp_path: Path) -> None:
    assert (T2.lost("EWE basic"), T2.lost("Apache"), T5.lost("EWE -t")) == (0.886, 0, 0.067)
    assert T2.compared("reply rate", "Apache") == 1012.8 and T2.of("reply rate", "Apache") == 1663.8

    def judged(paper: float, ours: int) -> str:
        cell = Cell(
            "fork", value="lost", paper=paper, samples=[Sample("x", 1, 100, 100 - ours, errors={"ct": ours})]
        )
        return verdicts.judge(ExperimentTable("E-T2", cells=[cell]), CATALOG["E-T2"])[0].verdict

    assert judged(0.0, 0) == judged(0.5, 50) == judged(0.5, 40) == "reproduced"
    assert judged(0.9, 20) == "shape"
    assert judged(0.0, 20) == judged(0.9, 0) == "changed"


@pytest.mark.parametrize(
    ("apache", "fork", "word"),
    [
        (11_000, 11_000, "holds"),
        (11_000, 5_500, "does not hold"),
        (11_000, 0, "does not hold"),
        (5_000, 5_000, "does not hold"),
    ],
)
def test_table_5_is_judged_by_its_net_io(apache: float, fork: float, word: str) -> None:
    rates = {"apache-prefork": apache, "fork": fork, "thread": apache}
    column = f"{ewe_tables.PRINTED}: net I/O"
    cells = [
        Cell(
            name,
            column,
            value="kilobytes",
            samples=[Sample("x", 1, received=rate * 1024)],
        )
        for name, rate in rates.items()
    ]
    assert CHECKS["E-T5"](ExperimentTable("E-T5", cells=cells)).word == word


@pytest.mark.parametrize("id", ["E-T4", "E-T5", "T-ST2", "T-ST2w", "T-ST3"])
def test_a_claim_about_a_link_is_not_judged_without_it(
    id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Paper, "behind_link", lambda lab, speed: nullcontext("no namespaces here"))
    run = CATALOG[id].run
    assert run is not None
    cells = list(run(Paper(tmp_path)))
    assert {cell.failure for cell in cells} == {"no namespaces here"}
    assert not any(cell.samples for cell in cells) and any(cell.paper for cell in cells)
    found = summary.finding_of(ExperimentTable(id, cells=cells), CATALOG[id])
    assert (found.word, found.sentence) == ("not testable", "No namespaces here.")


def test_rows_say_what_they_cache_and_the_document_did_not(tmp_path: Path) -> None:
    for id in ("T-ST1k", "T-ST1w"):
        bench = Paper(tmp_path)
        run = CATALOG[id].run
        assert run is not None
        table = ExperimentTable(id, cells=list(run(bench)), notes=bench.notes)
        cached = {cell.command or cell.server for cell in table.cells if cell.remark}
        assert cached and any("all caches off" in note for note in table.notes)
        assert all(bool(cell.remark) for cell in table.cells if cell.server in ("nginx", "asyncio", "tomcat"))
        assert not any(
            cell.remark for cell in table.cells if cell.server in ("apache-event", "lighttpd", "yaws")
        )
        remark = next(cell.remark for cell in table.cells if cell.remark)
        assert remark in report.html(Results("2026", "x", tables=[table]))
        assert remark in report.text(table, CATALOG[id])


def test_processes_are_compared_with_one_of_the_same_server(tmp_path: Path) -> None:
    each = CATALOG["T-ST1w"]
    assert each.run is not None
    judged = verdicts.judge(ExperimentTable(each.id, cells=list(each.run(Paper(tmp_path)))), each)
    two = {found.cell.column: found for found in judged if found.cell.server == "2 processes"}
    assert two["nginx, keep-alive"].paper == pytest.approx(28 / 17)
    assert two["lighttpd, keep-alive"].paper == 2
    assert two["ewe, keep-alive"].paper is None and two["ewe, keep-alive"].ours == 1


def test_the_best_of_a_sweep_keeps_its_samples() -> None:
    cells = [
        Cell("nginx", "keep-alive", x, samples=[Sample("wrk", 1, replies=r)])
        for x, r in ((1, 5), (10, 9), (100, 7))
    ]
    found = thesis_static.best_cell(cells, 17_000)
    assert (found.column, found.x, found.median, found.paper) == ("best: keep-alive", None, 9, 17_000)
    assert found.paper_server == "Nginx"


# Checks of claims


def test_every_runnable_claim_can_be_judged() -> None:
    for id in RUNNABLE:
        each = CATALOG[id]
        assert id in CHECKS or (each.reference and each.paper_reference), id


@pytest.mark.parametrize(
    ("replies", "busy", "word", "told"),
    [
        (60, 0.5, "holds", "; fell: fork (60%)."),
        (60, 0.9, "not testable", "; below, with the load generator at its limit: fork (60%)."),
        (190, 0.5, "not testable", "; still followed the demand: fork (100%)."),
        (95, 0.9, "does not hold", "; stayed: fork (95%)."),
    ],
)
def test_a_fall_under_a_load_generator_at_its_limit_is_not_the_servers(
    replies: int, busy: float, word: str, told: str
) -> None:
    """replies, busy: at the highest demand, the rate and the share of its core that the load generator used."""
    points = ((10.0, 10, 0.1), (50.0, 50, 0.3), (100.0, 100, 0.5), (200.0, replies, busy))
    cells = [
        Cell("fork", x=demand, samples=[Sample("locust", 1.0, replies=rate, client=share)])
        for demand, rate, share in points
    ]
    found = ewe_sweeps.check(ExperimentTable("E-F2", cells=cells))
    assert (found.word, told in found.sentence) == (word, True), found.sentence


def test_a_load_that_fails_takes_no_other_figure_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the second of four rounds the load of one server fails: the first round and the others stay."""

    def load(server: SimpleNamespace, load: Load) -> Sample:
        server.loads += 1
        if server.name == "ewe pool" and server.loads == 2:
            raise LabError("wrk does not end")
        return Sample("wrk", 1.0, replies=server.loads)

    monkeypatch.setattr(apps, "serve_stack", lambda lab, stack: nullcontext(
        (SimpleNamespace(name=stack.name, loads=0, url="http://127.0.0.1:9/", command=""), "/")
    ))  # fmt: skip
    monkeypatch.setattr(apps, "probe", lambda *_: None)
    monkeypatch.setattr(ServingStack, "why_missing", "")
    lab = SimpleNamespace(
        notes=[], load=load, quick_or_full=lambda quick, full: 4 if full == apps.ROUNDS else full
    )
    found = {cell.server: cell for cell in apps.take_turns(lab, apps.CONTESTS[0])}
    assert found["ewe pool"].failure == "wrk does not end" and found["ewe pool"].values == [1]
    assert found["gunicorn"].values == found["ewe thread"].values == [1, 2, 3, 4]


def silent(**share: float) -> ExperimentTable:
    return ExperimentTable("SLOW", cells=[
        Cell(name, x=slow.SILENT_CLIENTS, value="response.p99",
             samples=[Sample("locust", 1, extra={"unanswered": value})])
        for name, value in share.items()
    ])  # fmt: skip


def test_the_claim_of_silent_clients_can_fail() -> None:
    assert slow.check(silent(serial=100, thread=0, asyncio=0)).word == "holds"
    assert slow.check(silent(serial=100, thread=0, asyncio=5)).word == "does not hold"
    assert slow.check(silent(serial=10, thread=0)).word == "does not hold"
    assert slow.check(silent(thread=0)).word == "not testable"
    refused = Cell("serial", samples=[Sample("locust", 1, requests=2, errors={"ref": 4})])
    assert slow.add_lost_share(refused).samples[0].extra["unanswered"] == 100


def loaded(**models: tuple[float, float]) -> ExperimentTable:
    return ExperimentTable("FULL", cells=[
        Cell(name, value="extra.longest", samples=[Sample("locust", 1, extra={"longest": longest, "tail": tail})])
        for name, (longest, tail) in models.items()
    ])  # fmt: skip


def test_the_claim_of_full_load_can_fail() -> None:
    assert full.check(loaded(fork=(0.9, 9.0), asyncio=(0.1, 2.0), nginx=(3.0, 90.0))).word == "holds"
    assert full.check(loaded(fork=(0.9, 11.0), asyncio=(0.1, 2.0))).word == "does not hold"
    assert full.check(loaded(fork=(1.1, 9.0), asyncio=(0.1, 2.0))).word == "does not hold"
    assert full.check(loaded(nginx=(0.1, 2.0))).word == "not testable"
    twice = loaded(fork=(0.9, 9.0))
    twice.cells[0].samples += loaded(fork=(1.1, 2.0)).cells[0].samples  # the worst of the repeats counts
    assert full.check(twice).word == "does not hold"


@pytest.mark.parametrize(("failing", "measured"), [(99, 3), (2, 1)])
def test_a_cell_is_measured_as_often_as_the_lab_repeats(failing: int, measured: int) -> None:
    """A server that did not start once is not started again."""
    lab = Paper(Path("site"))
    lab.repeats = 3
    attempts = []

    def measure(cell: Cell) -> Cell:
        attempts.append(cell)
        if len(attempts) == failing:
            cell.failure = "it did not start"
        else:
            cell.samples.append(Sample("x", 1, extra={"held": 10.0 * len(attempts)}))
        return cell

    found = clients.measure_repeatedly(lab, Cell("fork", x=30.0), measure)
    assert (len(found.samples), len(attempts)) == (measured, min(failing, 3))
    assert clients.held_connections(found) == 10  # the fewest of all repeats


@pytest.mark.parametrize("experiment", [e_c2, full, t_poll])
def test_a_full_run_repeats_these_rows(experiment: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(lab: object, cell: Cell, measure: object) -> Cell:
        calls.append(cell)
        return cell

    calls: list[Cell] = []
    monkeypatch.setattr(experiment, "measure_repeatedly", fail)
    assert list(experiment.run(Paper(Path("site"), quick=False))) == calls != []


def test_a_limit_that_the_kernel_refuses_fails_its_row_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def prlimit(pid: int, kind: int, limits: tuple[int, int]) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")  # above the hard limit of the shell

    monkeypatch.setattr("resource.prlimit", prlimit)
    cells = list(e_c2.run(Paper(Path("site"))))
    assert len(cells) == 2 * len(e_c2.LIMITS) * len(e_c2.SERVERS)
    assert all("Operation not permitted" in cell.failure for cell in cells)


def test_a_percentile_of_too_few_requests_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure_once(lab: Paper, tested: ServerUnderTest, load: Load, cell: Cell, root: Path) -> Cell:
        cell.samples.append(Sample("locust", 1, service=Times(500, 0.01, 0.01, 0.02, 0.03, 0.5, 0.9)))
        return cell

    monkeypatch.setattr(full, "measure_once", measure_once)
    found = full.check(ExperimentTable("FULL", cells=list(full.run(Paper(Path("site"))))))
    assert found.word == "holds" and "fork 900 ms, too few requests for p99" in found.sentence


def measured(value: str, *rows: tuple[str, str, float | None, float]) -> ExperimentTable:
    """Return a table of (server, column, x, figure)."""
    name = value.partition(".")[2]
    return ExperimentTable("", cells=[
        Cell(server, column, x, f"extra.{name}", samples=[Sample("x", 1, extra={name: figure})])
        for server, column, x, figure in rows
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("id", "rows", "word"),
    [
        ("E-C2", [("thread", "limit 64", 128, 56), ("fork", "limit 64", 128, 128)], "holds"),
        ("E-C2", [("thread", "limit 64", 128, 128), ("fork", "limit 64", 128, 128)], "does not hold"),
        ("E-C2", [("thread", "limit 64", 64, 10), ("fork", "limit 64", 64, 64)], "not testable"),
        ("E-C3", [("lazy (2006)", "", 1, 3), ("pidfd", "", 1, 0)], "holds"),
        ("E-C3", [("lazy (2006)", "", 1, 3), ("pidfd", "", 1, 1)], "does not hold"),
        (
            "E-C3",
            [("lazy (2006)", "", 0, 9), ("lazy (2006)", "", 1, 0), ("pidfd", "", 1, 0)],
            "does not hold",
        ),
        ("E-C4", [("fork", "persistent", None, 9), ("fork", "not persistent", None, 1)], "holds"),
        ("E-C4", [("fork", "persistent", None, 1), ("fork", "not persistent", None, 9)], "does not hold"),
        ("E-C4", [("fork", "persistent", None, 0), ("fork", "not persistent", None, 9)], "does not hold"),
        ("E-C4", [("fork", "persistent", None, 21), ("fork", "not persistent", None, 20)], "does not hold"),
        ("E-F1", [("fork", "", x, rate) for x, rate in ((1, 1), (2, 2), (4, 1))], "holds"),
        ("E-F1", [("fork", "", x, rate) for x, rate in ((1, 1), (2, 2), (4, 2))], "does not hold"),
        ("E-F1", [("fork", "", x, rate) for x, rate in ((1, 1), (2, 2), (4, 0))], "holds"),
        ("E-F1", [("asyncio", "", x, rate) for x, rate in ((1, 1), (2, 2), (4, 2))], "not testable"),
        ("T-A7", [("rmem_max", "", None, 1)], "does not hold"),
        (
            "T-HS1p",
            [("plain", "nginx, a connection each", None, 7), ("TLS", "nginx, a connection each", None, 1)],
            "holds in part",
        ),
        (
            "T-HS1p",
            [("plain", "nginx, a connection each", None, 20), ("TLS", "nginx, a connection each", None, 1)],
            "does not hold",
        ),
        (
            "T-HS1p",
            [("plain", "nginx, keep-alive", None, 9), ("TLS", "nginx, keep-alive", None, 6)],
            "holds in part",
        ),
        (
            "T-HS1p",
            [("plain", "nginx, keep-alive", None, 9), ("TLS", "nginx, keep-alive", None, 3)],
            "does not hold",
        ),
        ("T-A6", [("100mbit", "", None, 95)], "holds"),
        ("T-A6", [("100mbit", "", None, 70)], "does not hold"),
        ("T-A6", [("100mbit", "", None, 0)], "does not hold"),
        (
            "T-HS1p",
            [("plain", "nginx, keep-alive", None, 9), ("TLS", "nginx, keep-alive", None, 0)],
            "does not hold",
        ),
        ("E-T1", [("port", "", None, 1), ("logfile", "", None, 0)], "holds"),
        ("E-T1", [("port", "", None, 0)], "does not hold"),
    ],
)
def test_checks(id: str, rows: list[tuple[str, str, float | None, float]], word: str) -> None:
    found = CHECKS[id](measured("extra.figure", *rows))
    assert found.word == word
    assert found.sentence.endswith(".")


# The server, the column, the rate, and the share of its core that the load generator used
LIMITED_ROWS = [
    ("E-C4", [("fork", "persistent", 9, 0.9), ("fork", "not persistent", 1, 0.1)], "holds"),
    ("E-C4", [("fork", "persistent", 9, 0.1), ("fork", "not persistent", 1, 0.9)], "not testable"),
    ("E-C4", [("fork", "persistent", 1, 0.9), ("fork", "not persistent", 9, 0.1)], "not testable"),
    ("T-HS1p", [("plain", "nginx, keep-alive", 9, 0.9), ("TLS", "nginx, keep-alive", 6, 0.1)], "not testable"),
    ("T-HS1p", [("plain", "nginx, keep-alive", 9, 0.1), ("TLS", "nginx, keep-alive", 6, 0.9)], "holds in part"),
    ("T-HS1p", [("plain", "nginx, keep-alive", 9, 0.9), ("TLS", "nginx, keep-alive", 3, 0.1)], "does not hold"),
    ("T-ST1n", [("nginx", "1 request", 9, 0.9), ("nginx", "2 requests", 9, 0.9)], "not testable"),
    ("T-ST1n", [("nginx", "1 request", 100, 0.1), ("nginx", "2 requests", 300, 0.9)], "does not hold"),
    ("T-ST1n", [("nginx", "1 request", 300, 0.1), ("nginx", "2 requests", 100, 0.9)], "not testable"),
    ("T-ST1n", [("nginx", f"{count} requests", 100, 0.1) for count in (1, 2)]
     + [("lighttpd", f"{count} requests", 100, 0.9) for count in (1, 2)], "holds"),
    ("T-ST1n", [("nginx", f"{count} requests", 100, 0.1) for count in (1, 2)]
     + [("lighttpd", f"{count} requests", 100, 0.9) for count in (1, 2, 3)], "holds in part"),
    ("E-C4", [(name, column, rate, share) for name, share in (("fork", 0.1), ("thread", 0.9), ("pool", 0.9))
              for column, rate in (("persistent", 9), ("not persistent", 1))], "holds in part"),
    ("E-C4", [("fork", "persistent", 110, 0.1), ("fork", "not persistent", 100, 0.1)], "does not hold"),
    ("T-HS1p", [("plain", "nginx, keep-alive", 8, 0.1), ("TLS", "nginx, keep-alive", 4, 0.1)], "does not hold"),
    ("T-HS1p", [("plain", "nginx, keep-alive", 9, 0.1), ("TLS", "nginx, keep-alive", 6, 0.1),
                ("plain", "nginx, a connection each", 70, 0.9), ("TLS", "nginx, a connection each", 10, 0.1)],
     "holds in part"),
    ("T-HS1p", [("plain", "nginx, keep-alive", 9, 0.1), ("TLS", "nginx, keep-alive", 6, 0.1),
                ("plain", "nginx, a connection each", 80, 0.1), ("TLS", "nginx, a connection each", 10, 0.1)],
     "holds"),
]  # fmt: skip


@pytest.mark.parametrize(("id", "rows", "word"), LIMITED_ROWS)
def test_a_check_does_not_judge_the_load_generator(
    id: str, rows: list[tuple[str, str, int, float]], word: str
) -> None:
    """Two servers that are faster than the load generator have the same rate. This says nothing about them."""
    table = ExperimentTable(id, cells=[
        Cell(server, column, 10, samples=[Sample("ab", 1, replies=rate, client=share)])
        for server, column, rate, share in rows
    ])  # fmt: skip
    assert CHECKS[id](table).word == word


def test_a_check_of_an_interrupted_run_names_what_is_missing() -> None:
    """A run may have ended between the two figures of a model."""
    rows = [
        (name, column, None, 0.0)
        for name in ("fork", "thread")
        for column in (t_crash.LOST_COLUMN, t_crash.NEW_CLIENT_COLUMN)
    ]
    for missing in range(len(rows)):
        part = [row for index, row in enumerate(rows) if index != missing]
        assert t_crash.check(measured("extra.figure", *part)).word == "not testable"


def applications(thread: float, uvloop: float, standard: float) -> ExperimentTable:
    """Return a table of APPS: our rates over those of the reference, 1,000 a second, or 100 in a busy round."""
    rows = zip(apps.CONTESTS, (thread, uvloop, standard), strict=True)
    return ExperimentTable("APPS", cells=[
        Cell(stack.name, contest.column, samples=[Sample("wrk", 1, replies=int(x * ratio)) for x in (1000, 100)])
        for contest, times in rows
        for stack, ratio in ((contest.reference, 1.0), (contest.ours[0], times))
    ])  # fmt: skip


def test_applications_are_compared_round_by_round() -> None:
    assert apps.check(applications(2.1, 1.0, 1.5)).word == "holds"
    assert apps.check(applications(1.9, 1.0, 1.5)).word == "holds in part"
    assert apps.check(applications(1.9, 0.9, 0.8)).word == "does not hold"
    assert apps.check(ExperimentTable("APPS")).word == "not testable"
    with_slow_pool = applications(2.1, 1.0, 1.5)
    with_slow_pool.cells.append(
        Cell("ewe pool", "WSGI", samples=[Sample("wrk", 1, replies=x) for x in (1500, 150)])
    )
    assert apps.check(with_slow_pool).word == "holds in part"
    found = apps.check(applications(2.1, 1.0, 1.5)).sentence
    assert "WSGI: ewe thread 2.10 times the rate of gunicorn (wanted: 2)" in found


@pytest.mark.parametrize(
    ("cost", "memory", "word"),
    [
        (0.1, 1.05, "holds"),
        (0.1, 1.3, "holds in part"),
        (1.0, 1.0, "holds in part"),
        (1.0, 1.3, "does not hold"),
    ],
)
def test_both_halves_of_the_claim_about_accelerators_are_judged(
    cost: float, memory: float, word: str
) -> None:
    rows = [(t_a12.COST, 1000.0, 1000.0 * cost), (t_a12.AFTER, 8000.0, 8000.0 * memory)]
    table = measured("extra.figure", *(
        (name, column, None, figure)
        for column, *figures in rows
        for name, figure in zip(("PHP-FPM", "PHP-FPM opcache"), figures, strict=True)
    ))  # fmt: skip
    assert t_a12.check(table).word == word
    assert t_a12.check(ExperimentTable("T-A12")).word == "not testable"


def test_the_price_of_an_idle_connection() -> None:
    def grown(thread: float, pool: float = 4e6, most: int = 600) -> str:
        rows = [("asyncio", 100, 1e6), ("asyncio", 1100, 4e6), ("thread", 100, 1e6), ("thread", most, thread)]
        rows += [("pool", 100, 1e6), ("pool", 1100, pool)]
        return CHECKS["GROW"](
            measured("extra.m", *((name, "idle connections", x, y) for name, x, y in rows))
        ).word

    assert grown(11e6) == "holds"  # 20 kB for each, and 3 kB for each of the event loop's
    assert grown(2e6) == "does not hold"
    assert grown(11e6, pool=19e6) == "does not hold"  # the pool needs 18 kB for each
    assert grown(21e6, most=1100) == "holds in part"  # as many threads as connections of the event loop


def test_a_sample_beside_idle_connections_says_how_many_there_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "connections", lambda url, count, first_bytes: nullcontext([]))
    monkeypatch.setattr(clients, "count_answered", lambda opened, quiet: 700)
    bench = Paper(Path("site"))
    cell = clients.measure_beside_idle(
        bench, ServerUnderTest("thread"), Load(), Cell("thread", x=900), Path("site")
    )
    assert clients.held_connections(cell) == 700
    assert cell.samples[0].notes == ["only 700 of 900 connections were answered"]


def test_connections_that_were_not_answered_are_not_held() -> None:
    cells = [
        Cell(name, "idle connections", x, "extra.m", samples=[Sample("x", 1, extra={"m": memory, "held": held})])
        for name, x, memory, held in (
            ("asyncio", 100, 1e6, 100), ("asyncio", 9000, 4e6, 1100), ("thread", 100, 1e6, 100),
            ("thread", 900, 11e6, 600),
        )
    ]  # fmt: skip
    found = CHECKS["GROW"](ExperimentTable("GROW", cells=cells)).sentence
    assert "asyncio 3.0 kB, thread 20.0 kB" in found and "asyncio 1,100, thread 600" in found


def switched(**ratios: float) -> ExperimentTable:
    """Return a table 2 with X-Switch's average over the native one."""
    cells = []
    for language, ratio in ratios.items():
        native = xswitch_tables.NATIVE[language]
        for server, mean in ((native, 10.0), (f"xswitch {language}", 10.0 * ratio)):
            sample = Sample("x", 1, extra={"mean": mean})
            document = xswitch_tables.PRINTED_TECHNOLOGY[server]
            cells.append(Cell(
                server, f"{language}: {xswitch_tables.MEAN}", value="extra.mean", unit="ms", samples=[sample],
                paper=xswitch_tables.TABLE_2[document][1], paper_server=document,
            ))  # fmt: skip
    return ExperimentTable("X-T2", cells=cells)


def test_each_language_has_a_reference_of_its_own() -> None:
    judged = {each.cell.server: each for each in verdicts.judge(switched(php=1.0, java=2.0), CATALOG["X-T2"])}
    assert judged["mod_php php"].verdict == judged["tomcat java"].verdict == "reference"
    assert judged["xswitch php"].paper == pytest.approx(36 / 35) and judged["xswitch php"].ours == 1
    assert judged["xswitch java"].paper == pytest.approx(54 / 48) and judged["xswitch java"].ours == 2
    assert CHECKS["X-T2"](switched(php=1.1, java=1.0, python=0.9)).word == "holds"
    assert CHECKS["X-T2"](switched(php=1.1, python=1.05)).word == "holds in part"
    assert CHECKS["X-T2"](switched(php=1.5)).word == "does not hold"


def test_each_line_of_table_2_has_a_technology_that_runs_today() -> None:
    assert set(xswitch_tables.TABLE_2) == set(filter(None, xswitch_tables.PRINTED_TECHNOLOGY.values()))
    assert set(xswitch_tables.STAND_INS) <= set(given("X-T2")["names"])
    assert "mod_perl perl" in given("X-F7")["names"] and "uwsgi python" in given("X-F8")["names"]


def test_a_curve_begins_with_the_first_answer() -> None:
    sample = Sample("locust", 1, running=[(1, 0.003), (2, 0.002), (20_000, 0.9)])
    sample.service = Times(3, 0.002, 0.001, 0.001, 0.001, 0.001, 0.001)
    curve = xswitch_tables.running_means(100.0, sample)
    assert curve == [(1, 100.0), (2, (100 + 3) / 2), (3, pytest.approx((100 + 4) / 3)), (4, (100 + 6) / 4)]
    quiet = [name for name, each in CATALOG.items() if any(chart.quiet for chart in each.charts)]
    assert quiet == ["X-F5", "X-F6", "X-F7", "X-F8", "T-LD"]


@pytest.mark.parametrize(
    ("rates", "times", "word"),
    [
        ((5, 5, 6), (0.1, 0.5, 1.0), "holds"),
        ((5, 5, 6), (0.1, 0.9, 0.2), "holds in part"),  # flat, and no line
        ((5, 5, 9), (0.1, 0.5, 1.0), "holds in part"),
        ((5, 0, 5), (0.1, 0.5, 1.0), "holds in part"),  # a throughput of 0 is not flat
        ((5, 5, 9), (1.0, 0.5, 0.1), "does not hold"),  # a line, and it falls
        ((5, 5, 5), (0.1, 0.1, 0.1), "holds in part"),
    ],
)
def test_both_halves_of_figure_4_are_judged(
    rates: tuple[float, ...], times: tuple[float, ...], word: str
) -> None:
    cells = [
        Cell("xswitch perl", x=users, value="extra.megabytes", samples=[
            Sample("x", 1, extra={"megabytes": rate}, service=Times(1_000, time, time, time, time, time, time))
        ])
        for users, rate, time in zip((25, 200, 375), rates, times, strict=True)
    ]  # fmt: skip
    assert CHECKS["X-F4"](ExperimentTable("X-F4", cells=cells)).word == word


@pytest.mark.parametrize("id", sorted(CHECKS))
def test_a_check_of_nothing_is_not_testable(id: str) -> None:
    if id != "E-T1":
        assert CHECKS[id](ExperimentTable(id)).word == "not testable"


class Notes:
    notes: list[str] = []


def test_a_default_that_is_a_list_today_is_no_change() -> None:
    found = {cell.server: cell.median for cell in CATALOG["E-T1"].run(Notes())}  # type: ignore[misc, arg-type]
    assert found["defaultindex"] == found["port"] == 1 and found["concurrency"] == 0


# Clients and servers of the experiments' own, for real


@pytest.mark.starts_processes
def test_a_helper_is_not_the_worker_whose_memory_counts() -> None:
    """As under Yaws: the only child of the serving process starts other programs, and is small."""
    code = (
        "import subprocess, sys; helper = subprocess.Popen(['sleep', '60']); print(flush=True); "
        "sys.stdin.read(); helper.kill()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        server.stdout.readline()
        sample = t_a8.measure_memory(server.pid)
    assert sample.usage is not None and sample.usage.processes == 2
    assert sample.extra["rss"] > 5_000  # kB: an interpreter, not sleep


def test_the_memory_of_a_process_that_has_ended_is_an_error_of_the_lab() -> None:
    ended = 2**30  # greater than the pid of any process
    with pytest.raises(LabError, match="the memory of a process could not be read: "):
        t_a8.measure_memory(ended)
    with pytest.raises(LabError, match="the memory of a process could not be read: "):
        thesis_memory.measure_memory(
            SimpleNamespace(pid=ended, other_pids=()), ServingStack("nginx", "uwsgi", "python")
        )


@pytest.mark.starts_processes
def test_silent_connections_and_answers(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("hello\n")
    with run_ewe("asyncio", root=tmp_path, directory=tmp_path) as server:
        with clients.connections(server.url, 70, clients.COMPLETE_HEAD) as asking:
            assert len(asking) == 70
            assert clients.count_answered(asking, 20) == 70
        with clients.connections(server.url, 5, clients.UNFINISHED_HEAD) as silent:
            began = time.monotonic()
            assert clients.count_answered(silent, 0.3) == 0
            assert time.monotonic() - began < 15
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(clients.host_and_port(server.url), 1)


@pytest.mark.starts_processes
@pytest.mark.parametrize("model", ["LazyFork", "PidfdFork", "BuildingThread", "BuildingFork"])
def test_variants_serve_and_stop(model: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("hello\n")
    with run_ewe(
        f"ewe_lab.stacks.variants:{model}", "--no-persistent", root=tmp_path, directory=tmp_path
    ) as server:
        for _ in range(2):
            with clients.connections(server.url, 3, clients.COMPLETE_HEAD) as opened:
                assert clients.count_answered(opened, 20) == 3
        if model in ("LazyFork", "PidfdFork"):
            kept = [] if model == "PidfdFork" else ["Z"]  # the lazy one reaps a child when the next one comes
            wait_until(lambda: sorted({*children(server.pid).values()}) == kept, 20)
        began = time.monotonic()
        os.kill(server.pid, signal.SIGINT)
    assert time.monotonic() - began < 20


@pytest.mark.starts_processes
def test_the_catalogue_is_imported_without_what_the_lab_needs() -> None:
    """`ewe-lab list` and the tests of others need neither locust nor gevent nor psutil."""
    heavy = "('locust', 'gevent', 'psutil', 'jinja2')"
    code = f"import sys, ewe_lab.experiments; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=170)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    "name", [tried(technology(name), name) for name in xswitch_tables.PRINTED_TECHNOLOGY]
)
def test_technologies_answer(name: str) -> None:
    """Each technology is really started, and gives the expected answer."""
    if name == "xswitch java":
        build_once()
    with quick_lab() as lab, serve_stack(lab, technology(name)) as (server, path):
        assert 0 < xswitch_tables.time_first_answer(server.url.rstrip("/") + path) < 50


def test_what_is_missing_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("ewe_lab.stacks.ways.php_fpm", lambda: "")
    monkeypatch.setattr(
        "ewe_lab.stacks.ways.find_tool", lambda name: None if "uwsgi" in name else f"/bin/{name}"
    )
    monkeypatch.setattr("ewe_lab.stacks.backends.find_tool", lambda name: None)
    monkeypatch.setattr("ewe_lab.stacks.webservers.mod_php", lambda: "")
    assert (
        technology("uwsgi python").why_missing == "uwsgi python is left out: apt install uwsgi-plugin-python3"
    )
    assert (
        "apt install php-fpm" in technology("php-fpm php").why_missing
        and not technology("cgi python").why_missing
    )
    assert "apt install libapache2-mod-php" in technology("mod_php php").why_missing
    assert "apt install libfcgi-perl" in technology("fcgi perl").why_missing
    monkeypatch.setattr("ewe_lab.stacks.webservers.has_mod_perl", lambda: False)
    assert "apt install libapache2-mod-perl2" in technology("mod_perl perl").why_missing
