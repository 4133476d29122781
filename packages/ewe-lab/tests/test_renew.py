"""`ewe-lab renew`: the order of the experiments, the time, the kept reports, and a machine that is not quiet."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.server import ROOT, wait_until

from ewe.config.command import INTERRUPTED
from ewe_lab import cli, renew
from ewe_lab.bench import processes
from ewe_lab.bench import results as lab_results
from ewe_lab.bench.experiment import Experiment
from ewe_lab.bench.results import BadResults, Cell, ExperimentTable, Results, Sample, Second, Times
from ewe_lab.bench.verdicts import Finding
from ewe_lab.experiments.catalog import CATALOG, CHECKS
from ewe_lab.load.histogram import Histogram
from ewe_lab.renew import Renewal, Renewer, experiments_to_renew, seconds_of
from ewe_lab.report import claims, kept_reports, summary
from ewe_lab.report.claims import KeptFinding, KeptFindings

CODE = "0.1 abc"
QUIET, BUSY = 0.0, 1.5  # cores that other programs have
IDS = ["E-T1", "L-T1", "R-T1"]
MINUTE = 60.0


def finding(word: str, date: str, quick: bool = False) -> KeptFinding:
    return KeptFinding(word, "", "", f"{date}T12:00:00+00:00", "A", quick, 0.0)


def test_what_lacks_a_verdict_comes_first_then_the_oldest() -> None:
    """A claim that cannot be tested here has been measured: it does not come first for ever."""
    kept = KeptFindings(
        findings={
            "E-T1": finding("holds", "2026-01-02"),
            "E-C3": finding("holds", "2026-01-01"),
            "L-T1": finding("no verdict", "2026-03-03"),
            "R-T1": finding("holds", "2026-02-02", quick=True),
            "L-PK": finding("not testable", "2026-01-01"),
        }
    )
    chosen = [CATALOG[id] for id in ("E-T1", "E-C3", "L-T1", "L-C1", "R-T1", "L-PK")]
    sequence = [each.id for each in experiments_to_renew(kept, chosen, quick=False)]
    assert sequence[:3] + sequence[5:] == ["L-C1", "L-T1", "R-T1", "E-T1"]
    assert CATALOG[sequence[3]].minutes <= CATALOG[sequence[4]].minutes
    assert [each.id for each in experiments_to_renew(kept, chosen, quick=True)] == ["L-C1", "L-T1", "R-T1"]


def test_of_one_day_the_shortest_comes_first_in_the_length_of_the_run() -> None:
    long = replace(CATALOG["L-T1"], id="long", minutes=9, quick_seconds=1)
    short = replace(CATALOG["L-T1"], id="short", minutes=1, quick_seconds=9)
    kept = KeptFindings(findings={})
    assert [each.id for each in experiments_to_renew(kept, [long, short], quick=False)] == ["short", "long"]
    assert [each.id for each in experiments_to_renew(kept, [short, long], quick=True)] == ["long", "short"]


def run_of(id: str, foreign: float = 0.0, interrupted: bool = False) -> Results:
    """Return a run of an experiment with figures that are long as numbers, and a timeline."""
    times = Times(1000, 0.123456789, 0.1, 0.2, 0.3, 0.4, 0.5, [(0.1, 500), (0.2, 500)])
    sample = Sample("x", 1.0, 1000, 1000, service=times, timeline=[Second(at) for at in range(60)])
    sample.extra = {"micros": 1234.56789}
    cells = [
        Cell(name, "C, parent of 10 MB", value="extra.micros", samples=[sample]) for name in ("exec", "total")
    ]
    table = ExperimentTable(id, cells=cells, foreign=foreign, interrupted=interrupted, seconds=12.0)
    return Results(
        "2026-05-05T12:00:00+00:00", "ewe-lab run", {"processor": "one", "load before": "0.1"}, [table]
    )


class Trial:
    """A renewal without processes, on a separate clock. cores: of other programs, look by look."""

    def __init__(self, directory: Path, minutes: float = math.inf, cores: tuple[float, ...] = ()) -> None:
        self.page = directory / "claims.md"
        chosen = [CATALOG[id] for id in IDS]
        self.renewal = Renewal(chosen, self.page, directory / "kept", directory / "runs", minutes * MINUTE)
        self.cores = list(cores)
        self.now = 0.0
        self.measured: list[str] = []
        self.statuses: dict[str, int] = {}
        self.runs = {id: run_of(id) for id in IDS}

    def renew(self) -> int:
        """Run the command with the stand-ins for clock, cores and experiments."""
        renewer = Renewer(self.renewal, CODE)
        renewer.clock, renewer.sleep, renewer.measure = lambda: self.now, self.pass_time, self.measure
        renewer.foreign = lambda: self.cores.pop(0) if self.cores else QUIET
        return renewer.renew()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def measure(self, each: Experiment, directory: Path, seconds: float) -> int:
        """Write the results of an experiment."""
        self.measured.append(each.id)
        self.now += seconds
        directory.mkdir(parents=True)
        lab_results.save(self.runs[each.id], directory / "results.json")
        return self.statuses.get(each.id, 0)

    def kept(self) -> KeptFindings:
        return claims.load(claims.kept_file(self.page))


def test_each_experiment_is_kept_with_a_small_report(tmp_path: Path) -> None:
    """The report has what a verdict needs: the same finding comes out of it. The page is written at once."""
    trial = Trial(tmp_path)
    assert trial.renew() == 0
    assert sorted(trial.measured) == sorted(IDS)
    assert set(trial.kept().findings) == set(IDS)
    assert "2026-05-05" in trial.page.read_text()
    path = kept_reports.report_file(tmp_path / "kept", "L-T1")
    loaded = lab_results.load(path)
    assert loaded.machine["code"] == CODE
    assert trial.kept().findings["L-T1"].code == CODE
    assert "code" not in trial.kept().machines["A"]
    [table] = loaded.tables
    assert table.cells[0].samples[0].extra == {"micros": 1230.0}
    assert table.cells[0].samples[0].timeline == []
    assert len(path.read_text()) < 1500
    again = KeptFindings()
    assert list(again.add_findings(loaded)) == []
    assert again.findings == {"L-T1": trial.kept().findings["L-T1"]}


@pytest.mark.parametrize(("exec_micros", "word"), [(500.4, "does not hold"), (501.4, "holds")])
def test_a_finding_is_judged_once_and_from_the_small_report(
    exec_micros: float, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is that exec takes more than a half. The small report has three digits of each figure."""
    judged: list[ExperimentTable] = []

    def finding_of(table: ExperimentTable, experiment: Experiment | None) -> Finding:
        judged.append(table)
        return summary.finding_of(table, experiment)

    monkeypatch.setattr(claims, "summary", SimpleNamespace(finding_of=finding_of))
    trial = Trial(tmp_path)
    run = run_of("L-T1")
    for cell, micros in zip(run.tables[0].cells, (exec_micros, 1000.0), strict=True):
        cell.samples = [replace(cell.samples[0], extra={"micros": micros})]
    trial.renewal, trial.runs["L-T1"] = replace(trial.renewal, chosen=[CATALOG["L-T1"]]), run
    assert trial.renew() == 0
    assert [table.id for table in judged] == ["L-T1"]
    assert trial.kept().findings["L-T1"].word == word
    kept = KeptFindings()
    list(kept.add_findings(lab_results.load(kept_reports.report_file(tmp_path / "kept", "L-T1"))))
    assert kept.findings == trial.kept().findings


def test_a_small_report_keeps_what_is_empty_and_no_default(tmp_path: Path) -> None:
    """A figure without a unit stays without one, and a load that got no answer has no mean."""
    times = Times(0, None, 1.0, 1.0, 1.0, 1.0, 1.0, at_least=1.0)
    cell = Cell("thread", value="service.p99", unit="", samples=[Sample("locust", 1.0, service=times)])
    run = Results("2026-05-05T12:00:00+00:00", "ewe-lab", {}, [ExperimentTable("T-A7", cells=[cell])])
    path = kept_reports.write(run, run.tables[0], tmp_path, CODE)
    [table] = lab_results.load(path).tables
    assert table.cells[0].unit == "" and table.cells[0].samples[0].service == times


def test_a_small_report_has_the_phases_of_a_load(tmp_path: Path) -> None:
    """A verdict needs them. A report of an earlier version lacks them, and changes no finding."""
    phases = [Sample("locust", 1.0, replies=count, timeline=[Second(0)]) for count in (1, 2)]
    whole = Sample("locust", 2.0, replies=3, phases=phases)
    cell = Cell("thread", load="1/s for 1 s then 2/s for 1 s", samples=[whole])
    run = Results("2026-05-05T12:00:00+00:00", "ewe-lab", {}, [ExperimentTable("T-LD", cells=[cell])])
    path = kept_reports.write(run, run.tables[0], tmp_path, CODE)
    [table] = lab_results.load(path).tables
    assert [each.replies for each in table.cells[0].samples[0].phases] == [1, 2]
    assert not kept_reports.lacks_phases(table)
    kept = KeptFindings(findings={"T-LD": finding("holds", "2026-05-05")})
    kept.findings["T-LD"].started = run.started
    table.cells[0].samples[0].phases = []
    assert kept_reports.lacks_phases(table)
    assert list(kept.add_findings(replace(run, tables=[table]))) == []
    assert kept.findings["T-LD"].word == "holds"


def test_the_figures_of_a_measurement_share_its_samples_in_the_file(tmp_path: Path) -> None:
    """They are lines of a printed table, or settings of one server."""
    measured, other = ([Sample("locust", 1.0, replies=replies, requests=5)] for replies in (3, 4))
    cells = [
        Cell("fork", "as printed", samples=list(measured), command="ewe -f", load="5 users"),
        Cell(
            "fork",
            "as printed: errors",
            value="lost",
            samples=list(measured),
            command="ewe -f",
            load="5 users",
        ),
        Cell("fork", "as printed: time", samples=list(measured), command="ewe -f"),  # of another load
        Cell("fork", "as printed: replies", value="replies", samples=list(other), line="replies"),
        Cell("fork", "as printed: connections", failure="it did not start", line="connections"),
        Cell("fork", "recovery", value="extra.millis", samples=list(measured)),
        Cell("thread", "as printed: errors", value="lost", samples=list(measured), line="errors"),
        Cell("serial", "as printed", paper=1.0),
        Cell("serial", "as printed: errors", paper=0.1, line="errors"),
    ]
    run = Results("2026-05-05T12:00:00+00:00", "ewe-lab", {}, [ExperimentTable("E-T3", cells=cells)])
    path = kept_reports.write(run, run.tables[0], tmp_path, CODE)
    assert [path.read_text().count(each) for each in ('"samples"', "ewe -f", "5 users")] == [5, 2, 1]
    [table] = lab_results.load(path).tables
    assert table.cells == cells == run.tables[0].cells
    path.write_text(path.read_text().replace('"samples_of":0', '"samples_of":99'))
    with pytest.raises(BadResults, match="not results of the lab: list index out of range"):
        lab_results.load(path)


def test_a_small_report_counts_the_requests_without_an_answer(tmp_path: Path) -> None:
    """Ten answers are too few for a percentile; with 990 requests that waited without success they are enough."""
    histogram = Histogram()
    for number in range(1000):
        histogram.add(0.1 if number < 10 else 5.0, answered=number < 10)
    cell = Cell("serial", value="service.p99", samples=[Sample("locust", 1.0, service=histogram.times())])
    run = Results("2026-05-05T12:00:00+00:00", "ewe-lab", {}, [ExperimentTable("T-A7", cells=[cell])])
    path = kept_reports.write(run, run.tables[0], tmp_path, CODE)
    [table] = lab_results.load(path).tables
    assert cell.median is not None
    assert table.cells[0].median == pytest.approx(cell.median, rel=0.01)


def test_only_what_fits_into_the_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An experiment takes as long as in its kept report, if there is one. The longer ones are named."""
    lengths = {id: seconds_of(CATALOG[id], tmp_path / "kept", quick=False) / MINUTE for id in IDS}
    shortest = min(lengths, key=lambda id: lengths[id])
    trial = Trial(tmp_path, minutes=lengths[shortest] + 0.01)
    assert trial.renew() == 0
    assert trial.measured == [shortest]
    said = capsys.readouterr().out
    assert "1 of 3 experiments were measured" in said
    assert all(id in said.split("too long for the rest of the time: ")[1] for id in IDS if id != shortest)
    kept = seconds_of(CATALOG[shortest], tmp_path / "kept", quick=False)
    assert kept == 12 + renew.START_S
    estimate = CATALOG[shortest].quick_seconds
    assert seconds_of(CATALOG[shortest], tmp_path / "kept", quick=True) == estimate + renew.START_S


def test_a_second_evening_goes_on_where_the_first_has_stopped(tmp_path: Path) -> None:
    first = Trial(tmp_path / "1")
    first.statuses = {"L-T1": INTERRUPTED}
    first.runs["L-T1"] = run_of("L-T1", interrupted=True)
    first.renewal = replace(first.renewal, chosen=[CATALOG[id] for id in ("E-T1", "L-T1")])
    (tmp_path / "1").mkdir()
    status = first.renew()
    done = [id for id in first.measured if id != "L-T1"]
    assert status == INTERRUPTED and set(first.kept().findings) == set(done)
    second = Trial(tmp_path / "1")
    second.renewal = replace(second.renewal, runs=tmp_path / "runs2")
    assert second.renew() == 0
    assert second.measured[-len(done) :] == done if done else True
    assert set(second.kept().findings) == set(IDS)


def test_an_experiment_that_was_killed_is_a_failure(tmp_path: Path) -> None:
    """The kernel ends a process that takes too much memory: its status is then below 0."""
    trial = Trial(tmp_path)
    trial.statuses = {"L-T1": -signal.SIGKILL}
    assert trial.renew() == 1
    assert sorted(trial.measured) == sorted(IDS)


def test_a_check_with_a_mistake_ends_no_other_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check runs again after the experiment's process has ended."""

    def check(table: ExperimentTable) -> Finding:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setitem(CHECKS, "E-T1", check)
    trial = Trial(tmp_path)
    trial.statuses["E-T1"] = 1
    assert trial.renew() == 1
    assert sorted(trial.measured) == sorted(IDS)
    assert set(claims.load(claims.kept_file(trial.page)).findings) == set(IDS) - {"E-T1"}
    assert "E-T1: its check failed" in capsys.readouterr().out


def test_it_waits_for_a_quiet_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial = Trial(tmp_path, cores=(BUSY, BUSY, QUIET))
    assert trial.renew() == 0
    assert trial.now >= 2 * renew.PAUSE_S
    assert len(trial.measured) == 3
    assert capsys.readouterr().out.count("waiting for them") == 1


@pytest.mark.parametrize("minutes", [30, math.inf])
def test_it_measures_nothing_on_a_busy_machine(minutes: float, tmp_path: Path) -> None:
    trial = Trial(tmp_path, minutes, cores=(BUSY,) * 1000)
    assert trial.renew() == 1
    assert trial.measured == [] and not trial.page.exists()
    assert trial.now <= (renew.MAX_WAIT_S if math.isinf(minutes) else minutes * MINUTE)
    trial.renewal = replace(trial.renewal, anyway=True, seconds=math.inf)
    assert trial.renew() == 0
    assert len(trial.measured) == 3


def test_a_run_that_says_less_replaces_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other programs came while it was measured: page and report stay as they are."""
    trial = Trial(tmp_path)
    trial.renew()
    path = kept_reports.report_file(tmp_path / "kept", "L-T1")
    before = trial.page.read_text(), path.read_text()
    other = Trial(tmp_path)
    other.renewal = replace(other.renewal, chosen=[CATALOG["L-T1"]], runs=tmp_path / "runs2")
    other.runs["L-T1"] = replace(run_of("L-T1", foreign=0.9), started="2026-06-06T12:00:00+00:00")
    assert other.renew() == 0
    assert (trial.page.read_text(), path.read_text()) == before
    assert "of 2026-05-05 stays" in capsys.readouterr().out


@pytest.mark.parametrize("data", ["", "{}", '{"format": 1}', None])
def test_results_that_cannot_be_read_stop_nothing(data: str | None, tmp_path: Path) -> None:
    trial = Trial(tmp_path)

    def measure(each: Experiment, directory: Path, seconds: float) -> int:
        directory.mkdir(parents=True)
        if data is not None:
            (directory / "results.json").write_text(data)
        return 1

    trial.measure = measure  # type: ignore[method-assign]
    assert trial.renew() == 1
    assert not trial.page.exists()


def test_the_reports_of_the_page_belong_to_it() -> None:
    """Each kept report is that of the finding on the page, has its facts, and is small."""
    kept = claims.load(claims.kept_file(ROOT / "packages/ewe-lab/docs/claims.md"))
    for path in (ROOT / "packages/ewe-lab/reports").glob("*.json"):
        results = lab_results.load(path)
        assert path.stem in CATALOG
        assert results.started == kept.findings[path.stem].started, path
        assert results.machine["code"] and results.machine["load before"]
        assert path.stat().st_size < 100_000, path


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["renew"], "--page"),
        (["renew", "--page", "claims.txt"], "has to end in .md"),
        (["renew", "--page", "claims.md", "NO-1"], "there is no experiment 'NO-1'"),
        (["renew", "--page", "claims.md", "--minutes", "0"], "--minutes"),
    ],
)
def test_wrong_usage_is_one_line(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        sys.exit(cli.main(words))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert text in said and said.count("\n") == 1


@pytest.mark.starts_processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_the_experiment_too(number: int, tmp_path: Path) -> None:
    """The signal reaches the command alone, as that of a service manager does. No process is left."""
    command = [sys.executable, "-m", "ewe_lab", "renew", "E-C3", "--quick", "--anyway", "--page", "claims.md"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True) as started:
        try:
            wait_until(lambda: len(processes.process_tree(started.pid)) >= 3, 30)  # the run, and a server
            family = [each.pid for each in processes.process_tree(started.pid)]
            started.send_signal(number)
            assert started.wait(90) == 130
        finally:
            started.kill()
    states = [found.state for pid in family if (found := processes.read_process(pid))]
    assert set(states) <= set(processes.ENDED_STATES)


@pytest.mark.starts_processes
def test_the_command_measures_and_writes_the_page(tmp_path: Path) -> None:
    """One short experiment, in a separate process, from the command line."""
    command = [sys.executable, "-m", "ewe_lab", "renew", "E-T1", "--quick", "--anyway", "--page", "claims.md"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "renew: 1 of 1 experiments were measured" in process.stdout
    assert "E-T1" in json.loads((tmp_path / "claims.json").read_text())["findings"]
    assert lab_results.load(tmp_path / "reports" / "E-T1.json").tables[0].quick
    assert list(tmp_path.glob(".bench/claims-*/E-T1/report.html"))
