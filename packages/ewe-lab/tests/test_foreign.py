"""Other programs on the cores: how the lab sees them, and that no verdict is given beside them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.server import ROOT

from ewe_lab import invocation
from ewe_lab.bench import verdicts
from ewe_lab.bench.foreign import ForeignReading, OtherProgramsWatch, ProcessTreeClock, StrangersClock
from ewe_lab.bench.processes import ProcessStat
from ewe_lab.bench.progress import Progress
from ewe_lab.bench.results import Cell, ExperimentTable, Results, Sample
from ewe_lab.bench.verdicts import HOLDS, TESTED, Finding
from ewe_lab.experiments.catalog import CATALOG, CHECKS
from ewe_lab.report import report, summary

ROOT_PID, CHILD, STRANGER = 2**23, 2**23 + 1, 2**23 + 9  # greater than any pid, so that no clock is read


class FakeLab:
    """A bench, as far as `fill_table` needs one."""

    notes: list[str]
    started: list[Cell]
    command_prefix: list[str]


def ran(id: str, share: float, monkeypatch: pytest.MonkeyPatch) -> ExperimentTable:
    """Run an experiment of the catalogue with figures that keep its claim, beside other programs."""
    experiment = CATALOG[id]
    monkeypatch.setattr(OtherProgramsWatch, "foreign_share", lambda watch: share)
    monkeypatch.setattr(OtherProgramsWatch, "cores_since", lambda watch, begin: None)
    # Both would come from readings of all processes of the machine
    monkeypatch.setattr(
        OtherProgramsWatch, "take_reading", lambda watch, first=False: ForeignReading(0.0, 0.0)
    )
    if id in CHECKS:
        monkeypatch.setitem(CHECKS, id, lambda table: Finding(HOLDS, "It is so."))

    def run(lab: object) -> Iterator[Cell]:
        for name, paper, figure in ((experiment.reference, 2.0, 4.0), ("another", 1.0, 2.0)):
            of = experiment.paper_reference if name == experiment.reference else name
            samples = [Sample("x", 1.0, extra={"figure": value}) for value in (figure, figure * 1.25)]
            yield Cell(name, value="extra.figure", paper=paper, paper_server=of, samples=samples)

    part = invocation.PlannedTable(ExperimentTable(id), run, 1.0, experiment)
    invocation.fill_table(part, FakeLab(), Progress(file=io.StringIO()))  # type: ignore[arg-type]
    return part.table


@pytest.mark.parametrize("id", sorted(CATALOG))
def test_no_claim_has_a_verdict_beside_other_programs(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every verdict passes this way, that of an experiment added tomorrow too."""
    experiment, table = CATALOG[id], ran(id, 0.8, monkeypatch)
    found = summary.finding_of(table, experiment)
    assert "other programs had 80\u00a0% of the" in found.sentence.lower()
    if experiment.timed:
        assert found.word == verdicts.NO_VERDICT
        assert not [each for each in verdicts.judge(table, experiment) if each.verdict in TESTED]
        assert verdicts.change_since_document(table, experiment) == ""
    text = report.text(table, experiment)
    assert ("HOLD" not in text) is experiment.timed
    assert "80\u00a0%" in text


@pytest.mark.parametrize("id", sorted(CATALOG))
def test_a_verdict_on_a_quiet_machine_names_its_spread(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = summary.finding_of(ran(id, 0.05, monkeypatch), CATALOG[id])
    assert found.word == HOLDS and "other programs" not in found.sentence
    assert "differ by 22\u00a0% in the median, by 22\u00a0% at most" in found.sentence


def test_few_claims_are_believed_on_a_busy_machine() -> None:
    """Only those without any time: settings, counts, memory."""
    untimed = {id for id, each in CATALOG.items() if not each.timed}
    assert untimed == {"E-T1", "E-C3", "T-A7", "T-A8", "T-A9", "T-A10", "T-CRASH", "QUEUE"}


def test_all_verdicts_pass_one_place() -> None:
    """`finding_of` alone calls a check, or the finding by ratios."""
    callers = {
        path.name
        for path in (ROOT / "packages/ewe-lab/ewe_lab").rglob("*.py")
        if any(call in path.read_text(encoding="utf-8") for call in ("CHECKS[", "CHECKS.get(", ".finding("))
    }
    assert callers == {"summary.py"}


def test_a_verdict_without_a_look_at_the_cores_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    table = replace(ran("R-T1", 0.0, monkeypatch), foreign=None)
    assert "It is not known how much" in summary.finding_of(table, CATALOG["R-T1"]).sentence


def test_one_measurement_has_no_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ran("R-T1", 0.0, monkeypatch)
    for cell in table.cells:
        del cell.samples[1:]
    assert "Measured once: the spread is not known." in summary.finding_of(table, CATALOG["R-T1"]).sentence


def test_a_verdict_about_memory_names_its_spread_if_there_is_one() -> None:
    def measured(*kilobytes: float) -> str:
        samples = [Sample("psutil", 0, extra={"program": each}) for each in kilobytes]
        names = {"apache mod_php": "Apache mod_php", "nginx php-fpm": "PHP-FPM"}
        cells = [
            Cell(name, "c", value="extra.program", paper=5000.0, paper_server=printed, samples=samples)
            for name, printed in names.items()
        ]
        return summary.finding_of(ExperimentTable("T-A9", cells=cells, foreign=0.5), CATALOG["T-A9"]).sentence

    assert "The repeats of a figure differ by 20\u00a0% in the median" in measured(
        1000, 1100, 1200, 1000.0, 1000
    )
    assert "spread" not in measured(1000) and "repeats" not in measured(1000)


def test_no_server_wins_beside_other_programs(tmp_path: Path) -> None:
    samples = {name: Sample("locust", 1.0, 1000, replies) for name, replies in (("fork", 10), ("thread", 90))}
    cells = [Cell(name, samples=[sample]) for name, sample in samples.items()]
    table = ExperimentTable("compare", cells=cells, foreign=0.05)
    assert "thread" in str(summary.sentences(table))
    (said,) = summary.sentences(replace(table, foreign=0.5))
    assert said == "No winner is named: other programs had 50\u00a0% of the 2 cores."
    report.write(Results("2026-01-01T00:00:00+00:00", "", tables=[replace(table, foreign=0.5)]), tmp_path)
    assert "No winner is named" in (tmp_path / "report.html").read_text()


def test_no_layer_is_negative() -> None:
    cell = Cell("mod_x", unit="%", value="extra.share", samples=[Sample("x", 1, extra={"share": -28.2})])
    found = invocation.without_negative_figure(cell)
    assert not found.samples and found.failure.startswith("not resolved: the difference is -28.2 %")
    rate = Cell("a", unit="req/s", value="extra.change", samples=[Sample("x", 1, extra={"change": -1})])
    assert invocation.without_negative_figure(rate).samples


# The clock


def at(pid: int, parent: int, own: float, waited: float = 0.0, core: int = 0) -> ProcessStat:
    return ProcessStat(pid, "S", parent, 1, own, waited, core)


def test_a_family_keeps_the_time_of_its_dead() -> None:
    clock = ProcessTreeClock(ROOT_PID)
    assert (
        clock.cpu_seconds_since_last_call(
            [at(ROOT_PID, 1, 1.0), at(CHILD, ROOT_PID, 1.0), at(STRANGER, 1, 5.0)], (0,)
        )
        == 2.0
    )
    step = clock.cpu_seconds_since_last_call(
        [at(ROOT_PID, 1, 1.5), at(CHILD, ROOT_PID, 1.25), at(STRANGER, 1, 9.0)], (0,)
    )
    assert step == 0.75
    # The child used 0.5 s more and ended, and the root has waited for it.
    assert clock.cpu_seconds_since_last_call([at(ROOT_PID, 1, 1.5, waited=1.75)], (0,)) == 0.5
    assert clock.cpu_seconds_since_last_call([at(ROOT_PID, 1, 1.5, waited=1.75)], (0,)) == 0.0


def test_a_daemon_stays_in_the_family_and_a_lost_child_takes_nothing_away() -> None:
    clock = ProcessTreeClock(ROOT_PID)
    clock.cpu_seconds_since_last_call(
        [at(ROOT_PID, 1, 0.0), at(CHILD, ROOT_PID, 1.0), at(CHILD + 1, CHILD, 1.0)], (0,)
    )
    # The child ends without a word; its own child now has init for a parent.
    assert clock.cpu_seconds_since_last_call([at(ROOT_PID, 1, 0.0), at(CHILD + 1, 1, 1.5)], (0,)) == 0.5
    assert (
        clock.cpu_seconds_since_last_call([at(ROOT_PID, 1, 0.0), at(CHILD + 1, 1, 2.5, core=3)], (0,)) == 0.0
    )


def test_the_share_of_others_is_what_the_family_did_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    busy = {0.0: 10.0, 10.0: 24.0}
    watch = OtherProgramsWatch((0, 1), busy=lambda cores: busy[now[0]], everyone=lambda: [])
    watch.take_reading(first=True)
    now[0] = 10.0
    watch.take_reading()
    assert watch.foreign_share() == pytest.approx(0.7)


def test_other_programs_have_what_they_had_during_one_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean over the table, 0.1 core, would hide the measurement in which they had 0.8."""
    now, busy = [0.0], [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    watch = OtherProgramsWatch((0,), busy=lambda cores: busy[0], everyone=lambda: [])
    watch.take_reading(first=True)
    now[0] = 70.0
    begin = watch.take_reading()
    now[0], busy[0] = 80.0, 8.0
    assert watch.cores_since(begin) == pytest.approx(0.8)
    assert watch.cores_since(watch.take_reading()) is None  # too short to know
    assert watch.foreign_share() == pytest.approx(0.1)


def test_programs_that_nobody_waits_for_are_no_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lab's daemon ignores SIGCHLD: a program of it used 0.7 s and ended. A stranger used 0.2 s."""
    monkeypatch.setattr("ewe_lab.bench.foreign.os.getpid", lambda: ROOT_PID)
    ignores = [False]
    monkeypatch.setattr("ewe_lab.bench.processes.forgets_children", lambda pid: ignores[0] and pid == CHILD)
    program = CHILD + 1
    lists = [
        [at(ROOT_PID, 1, 0.0), at(CHILD, ROOT_PID, 0.0), at(program, CHILD, 0.0), at(STRANGER, 1, 5.0)],
        [at(ROOT_PID, 1, 0.1), at(CHILD, ROOT_PID, 0.0), at(STRANGER, 1, 5.2)],
    ]

    def foreign_s() -> float:
        busy, everyone = iter((0.0, 1.0)), iter(lists)
        watch = OtherProgramsWatch((0,), busy=lambda cores: next(busy), everyone=lambda: next(everyone))
        watch.take_reading(first=True)
        return watch.take_reading().foreign_s

    assert foreign_s() == pytest.approx(0.9)
    ignores[0] = True
    assert foreign_s() == pytest.approx(0.2)


def test_strangers_count_from_when_they_are_seen() -> None:
    clock = StrangersClock()
    assert clock.cpu_seconds_since_last_call([at(STRANGER, 1, 5.0)], (0,), started_after=9.0) == 0.0
    new = ProcessStat(STRANGER + 1, "R", 1, 1, 0.25, 0.0, 0, started=10)
    assert clock.cpu_seconds_since_last_call([at(STRANGER, 1, 5.5), new], (0,), started_after=9.0) == 0.75
    assert clock.cpu_seconds_since_last_call([at(STRANGER, 1, 6.5, core=3)], (0,), started_after=9.0) == 0.0


@pytest.mark.starts_processes
def test_a_childs_time_is_ours_after_its_end() -> None:
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    with OtherProgramsWatch(range(os.cpu_count() or 1)) as watch:
        subprocess.run([sys.executable, "-c", burn], check=True)
    assert watch.lab_s >= 0.45
    assert watch.busy_s >= 0.45  # seconds of the cores
