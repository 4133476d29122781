"""Measurements beside other programs: each is decided apart, repeated or left out, and the table says so."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_bench import quick_lab

from ewe_lab import invocation
from ewe_lab.bench import disturbance, verdicts
from ewe_lab.bench.experiment import Experiment, Load, ServerUnderTest
from ewe_lab.bench.foreign import OtherProgramsWatch
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.progress import Progress
from ewe_lab.bench.results import Cell, ExperimentTable, Sample, Usage
from ewe_lab.bench.verdicts import HOLDS, NO_VERDICT, Finding
from ewe_lab.experiments.catalog import CATALOG, CHECKS
from ewe_lab.lab_bench import MAX_VAIN_REPEATS, CellJob, LabBench
from ewe_lab.report import summary

EXPERIMENT = Experiment(
    "X", "EWE", "table", "title", "claim", "model", "rate", reference="apache", paper_reference="Apache"
)
QUIET, BUSY = 0.02, 0.6  # cores that other programs had


def samples(rate: float, *cores: float) -> list[Sample]:
    """Return a sample for each number of cores that other programs had."""
    return [Sample("wrk", 1.0, replies=int(rate), foreign_cores=each) for each in cores]


def table(*cells: Cell, foreign: float | None = 0.0, seconds: float = 10.0) -> ExperimentTable:
    return ExperimentTable("X", cells=list(cells), foreign=foreign, seconds=seconds)


def cell(server: str, paper: float, found: list[Sample]) -> Cell:
    return Cell(server, paper=paper, paper_server=server.capitalize(), samples=found)


def by_old_clocks(server: float, client: float) -> Sample:
    """Return a sample: the server used 0.3 of a core, the load 0.2. server, client: how busy the two cores were."""
    return Sample("locust", 2.0, client=0.2, core=client, usage=Usage(0.6, core=server))


@pytest.mark.parametrize(
    ("found", "note"),
    [
        ([by_old_clocks(0.35, 0.3)] * 2, ""),
        ([by_old_clocks(0.35, 0.3), by_old_clocks(0.9, 0.3)], "60% of a core in 1 of 2 measurements: "),
        ([by_old_clocks(0.3, 0.9)], "70% of a core in 1 of 1 measurements: "),
        (samples(1, QUIET, 0.25), ""),
        (samples(1, QUIET, BUSY, 1.4), "100% of a core in 2 of 3 measurements: "),
    ],
)
def test_the_work_of_others_is_noted(found: list[Sample], note: str) -> None:
    notes = disturbance.notes_on_other_programs(table(Cell("a", samples=found), Cell("b"), foreign=None))
    assert [each.startswith(f"Other programs had {note}") for each in notes] == ([True] if note else [])


def test_earlier_clocks_are_not_believed_beyond_the_sum() -> None:
    """They counted interrupts. All that other programs had in the whole table is 1.2 CPU seconds, or nothing."""
    found = [by_old_clocks(0.9, 0.3), by_old_clocks(0.9, 0.3)]
    rows = Cell("a", samples=found)
    assert list(disturbance.disturbed_samples(table(rows, foreign=0.06)).values()) == pytest.approx(
        [0.3, 0.3]
    )
    assert disturbance.disturbed_samples(table(rows, foreign=0.0)) == {}
    for sample in found:
        sample.replies = 12_000  # the interrupts of 6,000 replies a second may be the whole difference
    assert disturbance.disturbed_samples(table(rows, foreign=0.5)) == {}


def test_a_measurement_beside_others_does_not_count_in_a_verdict() -> None:
    """The mean over the table is far below the limit, and the median of the disturbed row is a false one."""
    reference = cell("apache", 100, samples(100, QUIET, QUIET, QUIET))
    row = cell("serial", 50, [*samples(190, BUSY, BUSY), *samples(50, QUIET)])
    found = summary.finding_of(table(reference, row), EXPERIMENT)
    assert found.word == HOLDS
    assert "2 of 6 measurements are left out: other programs had the cores." in found.sentence
    judged = verdicts.judge(table(reference, row), EXPERIMENT)
    assert judged[1].verdict == "reproduced" and judged[1].cell is row


@pytest.mark.parametrize("disturbed", ["apache", "serial"])
def test_a_row_without_another_measurement_has_no_verdict(disturbed: str) -> None:
    rows = [
        cell(name, paper, samples(paper, *([BUSY] * 3 if name == disturbed else [QUIET] * 3)))
        for name, paper in (("apache", 100), ("serial", 50))
    ]
    found = summary.finding_of(table(*rows), EXPERIMENT)
    assert found.word == NO_VERDICT
    clause = "In 1 of 2 rows other programs had much of the cores in each measurement."
    assert found.sentence.startswith(clause)
    assert verdicts.judge(table(*rows), EXPERIMENT)[1].verdict == "not testable"
    assert summary.sentences(table(*rows)) == [f"No winner is named: i{clause[1:]}"]


@pytest.mark.parametrize(
    ("cores", "word"), [((QUIET,), HOLDS), ((BUSY,), NO_VERDICT), ((BUSY, QUIET), HOLDS)]
)
def test_a_check_does_not_judge_without_a_row(
    cores: tuple[float, ...], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check sees the undisturbed measurements alone."""
    seen: list[Sample] = []

    def check(table: ExperimentTable) -> Finding:
        seen.extend(sample for cell in table.cells for sample in cell.samples)
        return Finding(HOLDS, "It is so.")

    monkeypatch.setitem(CHECKS, "R-T1", check)
    found = ExperimentTable("R-T1", cells=[Cell("a", samples=samples(9, *cores))], foreign=0.0)
    assert summary.finding_of(found, CATALOG["R-T1"]).word == word
    assert all(each.foreign_cores == QUIET for each in seen)


def test_memory_is_judged_beside_others() -> None:
    untimed = CATALOG["T-A9"]
    assert not untimed.timed
    names = {"apache mod_php": "Apache mod_php", "nginx php-fpm": "PHP-FPM"}
    cells = [
        Cell(name, paper=5.0, paper_server=printed, samples=samples(9, BUSY))
        for name, printed in names.items()
    ]
    found = ExperimentTable("T-A9", cells=cells, foreign=0.0)
    assert summary.finding_of(found, untimed).word == HOLDS
    assert summary.finding_of(found, EXPERIMENT).word != HOLDS


def test_a_negative_cpu_time_is_no_figure() -> None:
    """An earlier report lost the CPU time of Apache's CGI programs."""
    sample = Sample("wrk", 1.0, replies=9, usage=Usage(-0.5, core=0.9))
    assert sample.micros is None and sample.foreign_on_server_core is None


def test_a_disturbed_measurement_is_removed_if_its_row_has_another() -> None:
    two, one = Cell("a", samples=samples(9, BUSY, QUIET)), Cell("b", samples=samples(9, BUSY))
    line = Cell("a", samples=list(two.samples), line="errors")
    found = table(two, one, line)
    disturbance.leave_out_disturbed(found)
    assert [len(each.samples) for each in found.cells] == [1, 1, 1]
    assert found.left_out == 1
    removed, busy = disturbance.notes_on_other_programs(found)
    assert removed.startswith("1 measurement is left out: other programs had more than 25")
    assert busy.startswith("Other programs had 60% of a core in 1 of 2 measurements: ")
    assert disturbance.left_out_sentence(found).startswith("2 of 3 measurements are left out")


# While a table is measured


class ScriptedBench(LabBench):
    """A bench whose samples are given, in place of those of servers. cores: that other programs had, in turn."""

    def __init__(self, *cores: float) -> None:
        super().__init__(Progress(file=io.StringIO()), quick=True, repeats=2)
        self.cores = list(cores)

    def sample_of_job(self, job: CellJob, load: Load) -> Sample:
        return samples(9, self.cores.pop(0))[0]


@pytest.mark.parametrize(
    ("cores", "kept", "repeated"),
    [
        ((QUIET, QUIET), [QUIET, QUIET], 0),
        ((BUSY, QUIET, QUIET), [QUIET, QUIET], 1),
        ((BUSY, 0.7, QUIET), [0.7, QUIET], 1),
    ],
)
def test_a_disturbed_measurement_is_made_again(
    cores: tuple[float, ...], kept: list[float], repeated: int
) -> None:
    lab = ScriptedBench(*cores)
    found = lab.fill_cell(ServerUnderTest("a", model="serial"), Load(), Cell("a"), Path())
    assert [sample.foreign_cores for sample in found.samples] == kept
    assert lab.repeated_for_others == repeated and not lab.cores


def test_a_measurement_stays_if_the_second_one_fails() -> None:
    turns = iter(samples(9, BUSY))

    def measure() -> Sample:
        for sample in turns:
            return sample
        raise LabError("the server does not start")

    assert ScriptedBench().undisturbed(measure).foreign_cores == BUSY


def test_a_busy_machine_repeats_few_measurements() -> None:
    """It would take twice as long, and for nothing."""
    lab = ScriptedBench()
    measured: list[float] = []

    def measure(*cores: float) -> None:
        turns = iter(samples(9, *cores))

        def next_sample() -> Sample:
            measured.append(1)
            return next(turns)

        lab.undisturbed(next_sample)

    for _ in range(50):
        measure(BUSY, BUSY)
    assert len(measured) == 50 + MAX_VAIN_REPEATS
    measure(QUIET)
    for _ in range(9):  # other programs come, and go again
        measure(BUSY, QUIET)
    assert len(measured) == 50 + MAX_VAIN_REPEATS + 1 + 2 * 9
    assert lab.repeated_for_others == MAX_VAIN_REPEATS + 9


def test_experiments_with_their_own_client_are_decided_by_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds a cell. Cells that come together share the time until the first of them."""
    now, busy = [0.0], [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    watch = OtherProgramsWatch((0, 1), busy=lambda cores: busy[0], everyone=lambda: [])
    watch.take_reading(first=True)
    clock = invocation.CellClock(watch)
    found = []
    for busy_s, length_s in ((1.0, 10.0), (8.0, 10.0), (0.0, 0.01), (0.0, 10.0)):
        now[0] += length_s
        busy[0] += busy_s
        each = Cell("a", samples=[Sample("sockets", 1.0)])
        clock.note(each)
        found.append(each.samples[0].foreign_cores)
    assert found == pytest.approx([0.1, 0.8, 0.8, 0.0], abs=1e-3)
    measured = Cell("b", samples=samples(9, QUIET))
    clock.note(measured)
    assert measured.samples[0].foreign_cores == QUIET


def test_a_table_says_that_measurements_were_repeated_and_left_out() -> None:
    def run(lab: LabBench) -> Iterator[Cell]:
        lab.repeated_for_others = 2
        yield Cell("a", samples=samples(9, QUIET, BUSY))

    found = ExperimentTable("X")
    with quick_lab() as lab:
        invocation.fill_table(invocation.PlannedTable(found, run, 1.0), lab, Progress(file=io.StringIO()))
    assert found.left_out == 1 and len(found.cells[0].samples) == 1
    assert any(note.startswith("2 of the measurements were made a second time: ") for note in found.notes)
    assert any(note.startswith("1 measurement is left out: ") for note in found.notes)
