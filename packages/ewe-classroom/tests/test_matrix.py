"""The page kill-matrix.md is in step with the zoo and with the schemes: points, checks, stages."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from graphlib import TopologicalSorter
from pathlib import Path
from types import SimpleNamespace

import matrix
import pytest
import stages
from matrix import Loss
from matrix_reasons import EVERYTHING, PAIRS, SINGLE
from test_zoo import load

from ewe_classroom.grader import run_scene
from ewe_classroom.grader.check import all_checks
from ewe_classroom.grader.dependencies import (
    RACE,
    RESTS,
    rest_on_cause,
    rest_on_need,
    waits_for_cause,
    waits_for_need,
)
from ewe_classroom.grader.grading import MAX_ATTEMPTS, CheckOfRun, Grading
from ewe_classroom.grader.processes import ThreadSample
from ewe_classroom.grader.sandbox import SandboxLimits
from ewe_classroom.grader.scene import FailedExpectation, Findings, Scene
from ewe_classroom.grader.scheme import Item
from ewe_classroom.grader.scheme import load as scheme
from ewe_classroom.grader.verdicts import ERROR, FAILED, NOT_JUDGED, NOT_RUN, PASSED, Report, Verdict

TEXT = matrix.PAGE.read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.partition("| mutant |")[2].partition("| correct server |")[0].splitlines()
    if line.startswith("| `")
]


def test_each_fault_loses_its_check_and_nothing_without_a_reason() -> None:
    """Each other lost check rests on a lost one, or has a reason in matrix_reasons.py."""
    assert not matrix.faults(matrix.on_page())


def test_each_row_was_graded() -> None:
    assert matrix.on_page().keys() == matrix.mutants().keys()


def test_a_loss_without_a_reason_is_found() -> None:
    """A check that rests on an unexplained one is unexplained, too."""
    row = {"progress": Loss(), "bursts": Loss("second-client"), "second-client": Loss(), "stop": Loss()}
    assert matrix.unexplained("Joins", row) == ["stop"]
    assert matrix.unexplained("Joins", row | {"drain": Loss("stop")}) == ["stop", "drain"]
    assert matrix.faults({"Joins": {"progress": Loss("second-client"), "second-client": Loss()}}) == [
        "Joins: not caught by progress: it rests on second-client"
    ]


def test_each_reason_is_used() -> None:
    """A reason that no row needs any more is out of date."""
    beside = {
        (name, check)
        for name, found in matrix.on_page().items()
        for check, loss in found.items()
        if check != matrix.mutants()[name].check and not loss.rests
    }
    assert SINGLE.keys() <= beside
    assert EVERYTHING.keys() <= {name for name, _ in beside}
    assert PAIRS.keys() <= {(matrix.mutants()[name].check, check) for name, check in beside}


def test_the_page_is_what_the_tool_writes() -> None:
    """The tables of the page, made again from its own rows, are the same."""
    again = matrix.tables(matrix.on_page())
    before = TEXT.partition("| mutant |")
    assert (before[1] + before[2]).startswith(again)


def test_the_page_says_which_checks_graded_its_rows() -> None:
    found = matrix.graded_by()
    servers = {*matrix.on_page(), *matrix.correct_rows()}
    assert found.keys() - {matrix.OTHERS} < servers and matrix.OTHERS in found
    assert all(re.fullmatch("[0-9a-f]{12}", each) for each in found.values()), found


def test_rows_that_are_graded_again_get_the_fingerprint_of_their_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(TEXT)
    monkeypatch.setattr(matrix, "PAGE", page)
    matrix.write_page(matrix.on_page(), matrix.correct_rows(), {})
    assert page.read_text() == TEXT
    today = "0123456789ab"  # of other checks than those that have graded the page
    monkeypatch.setattr(matrix, "fingerprint", lambda: today)
    matrix.write_page(matrix.on_page(), matrix.correct_rows(), {"Joins": today, "ewe, fork": today})
    assert matrix.graded_by()["Joins"] == matrix.graded_by()["ewe, fork"] == today
    assert {"Joins", "ewe, fork"}.isdisjoint(
        matrix.of_other_checks()
    ) and "Escapes" in matrix.of_other_checks()


def test_an_edit_of_a_check_changes_the_fingerprint(tmp_path: Path) -> None:
    check = tmp_path / "ewe_classroom" / "grader" / "bursts.py"
    check.parent.mkdir(parents=True)
    found = set()
    for text in ("limit = 1\n", "limit = 2\n"):
        check.write_text(text)
        found.add(matrix.fingerprint(tmp_path))
    assert len(found) == 2 and matrix.fingerprint() not in found


def test_the_points_are_those_of_the_schemes() -> None:
    found = matrix.on_page()
    for row in ROWS:
        name, lab = row[0].strip("`"), row[2]
        if name in found:
            assert row[4] == str(matrix.cost(lab, found[name])), f"{name}: run matrix.py --refresh"


def test_the_checks_of_the_page_are_in_the_labs() -> None:
    for name, checks in matrix.on_page().items():
        lab = matrix.mutants()[name].lab
        known = {item.check.name for item in scheme(lab).items}
        assert checks.keys() <= known, f"{name}: {sorted(checks.keys() - known)}"


def test_the_page_has_each_stage_with_an_advice_that_leads_to_its_fault() -> None:
    zoo = load("stages")
    rows = TEXT.partition(stages.HEADING)[2].partition(stages.NEXT)[0].splitlines()
    for stage in zoo.STAGES.values():
        (row,) = [line for line in rows if line.startswith(f"| {stage.lab} | {stage.what} |")]
        assert any(f"| `{check}`: " in row for check in stage.advice), row


def test_the_tools_ask_for_their_file_of_results() -> None:
    for tool in (matrix, stages):
        before, sys.argv = sys.argv, [str(Path(tool.__file__ or "").name)]
        try:
            tool.main()
        except SystemExit as ended:
            assert ended.code == 2
        else:
            raise AssertionError
        finally:
            sys.argv = before


def handed_over(*statuses: tuple[str, int, str], lab: str = "fork", causes: tuple[str, ...] = ()) -> Report:
    """Return the report of verdicts that are handed over in this order: (check, points, status)."""
    verdicts = [Verdict(name, "", points, NOT_RUN) for name, points, _ in statuses]
    report, seen = Report(lab, "", "", verdicts), []
    grading = Grading.__new__(Grading)
    grading.findings = Findings(self_explained=set(causes))
    grading.deadline = 0.0  # no check has another attempt
    grading.on_verdict = lambda report, verdict: seen.append(verdict.name)
    items = {item.check.name: item for item in scheme(lab).items}
    held: list[Verdict] = []
    for verdict, (_, _, status) in zip(verdicts, statuses, strict=True):
        verdict.status = status
        held.append(verdict)
        held = [each for each in held if not grading.hand_over_if_judged(report, items[each.name], each)]
    assert not held and sorted(seen) == sorted(name for name, *_ in statuses)
    return report


def test_a_result_that_waits_for_another_check_has_no_points_yet() -> None:
    """Otherwise a report that pytest reads in between, or that a kill leaves, would have points that may go."""
    verdicts = [Verdict("idle-cpu", "", 6, PASSED), Verdict("who-works", "", 8)]
    report, seen = Report("fork", "", "", verdicts), []
    grading = Grading.__new__(Grading)
    grading.findings = Findings()
    grading.on_verdict = lambda report, verdict: seen.append(verdict.score)
    item = next(each for each in scheme("fork").items if each.check.name == "idle-cpu")
    waiting = grading.hand_over(report, [CheckOfRun(item, verdicts[0])])
    assert waiting == [CheckOfRun(item, verdicts[0])]
    assert (verdicts[0].waits, report.score, seen) == (True, 0, [])
    verdicts[1].status = PASSED
    assert grading.hand_over(report, waiting) == []
    assert (verdicts[0].waits, report.score, seen) == (False, 14, [6])


def test_a_verdict_waits_while_an_earlier_one_is_handed_over() -> None:
    """on_verdict() saves the whole report: it must not show as final what the next moment makes "not judged"."""
    items = {item.check.name: item for item in scheme("pool").items}
    verdicts = [Verdict(name, "", 6, FAILED) for name in ("exactly-n", "queue-races")]
    report, seen = Report("pool", "", "", verdicts), []
    grading = Grading.__new__(Grading)
    grading.findings = Findings()
    grading.deadline = 0.0  # no check has another attempt
    grading.on_verdict = lambda report, _: seen.append([each.waits for each in report.verdicts])
    assert grading.hand_over(report, [CheckOfRun(items[each.name], each) for each in verdicts]) == []
    assert seen == [[False, True], [False, False]]


@pytest.mark.parametrize(
    ("race", "later", "expected"),
    [
        (FAILED, [PASSED], (PASSED, 20)),
        (FAILED, [FAILED, PASSED], (PASSED, 20)),
        (FAILED, [FAILED, FAILED], (FAILED, 0)),
        (PASSED, [], (FAILED, 0)),
    ],
)
def test_a_lost_worker_costs_the_points_of_the_race_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, race: str, later: list[str], expected: tuple[str, int]
) -> None:
    """Two servers with the same race get the same marks, though the race ends a worker in some runs only."""
    (tmp_path / "runs.json").touch()
    grading = Grading(
        run_scene.from_path(str(tmp_path / "runs.json")), scheme("pool"), tmp_path, SandboxLimits()
    )
    items = {item.check.name: item for item in scheme("pool").items}
    verdicts = [grading.empty_verdict(items[name]) for name in ("progress", "second-client", RACE)]
    report, left = Report("pool", "", "", verdicts), list(later)

    def attempt(item: Item, verdict: Verdict) -> None:
        verdict.status, verdict.did = left.pop(0), "no response"

    monkeypatch.setattr(grading, "run_check", attempt)
    progress, second_client, queue_races = verdicts
    progress.status, progress.did, second_client.status = FAILED, "no response", PASSED
    grading.findings.faults["progress"] = "progress"
    ended = [CheckOfRun(items[each.name], each) for each in (second_client, progress)]
    waiting = grading.hand_over(report, ended)
    assert [each.verdict.name for each in waiting] == ["progress"], "progress waits for the check of the race"
    queue_races.status = race
    assert grading.hand_over(report, [*waiting, CheckOfRun(items[RACE], queue_races)]) == []
    assert (progress.status, progress.score) == expected and left == []
    assert bool(progress.did) == (expected[0] == FAILED)
    assert bool(grading.findings.faults) == (expected[0] == FAILED)


def run_of_pool(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, order: tuple[str, ...], failures: dict[str, int],
    attempts: list[str] | None = None,
) -> tuple[Report, list[str]]:  # fmt: skip
    """Run checks of the lab pool in this order; return the report and the check of each attempt.

    failures: how many attempts of a check fail, from the first one on. attempts: the list of attempts, which grows.
    """
    (tmp_path / "runs.json").touch()
    grading = Grading(
        run_scene.from_path(str(tmp_path / "runs.json")), scheme("pool"), tmp_path, SandboxLimits(),
        record=tmp_path,
    )  # fmt: skip
    items = {item.check.name: item for item in (*scheme("pool").items, *scheme("thread").items)}
    grading.scheme = replace(grading.scheme, items=tuple(items[name] for name in order))
    attempts = [] if attempts is None else attempts

    def attempt(item: Item, verdict: Verdict) -> None:
        attempts.append(verdict.name)
        fails = attempts.count(verdict.name) <= failures.get(verdict.name, 0)
        verdict.status, verdict.did = (FAILED, "no response") if fails else (PASSED, "")
        verdict.steps = [{"attempt": len(attempts)}]
        grading.write_replay(verdict)

    monkeypatch.setattr(grading, "run_check", attempt)
    return grading.run(), attempts


def test_a_failed_check_has_two_more_attempts_beside_a_race(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A check that also waits for a later one would have as many attempts for each check in between."""
    order = ("progress", "slow-readers", RACE, "answers", "no-deadlock", "own-answers")
    report, attempts = run_of_pool(monkeypatch, tmp_path, order, {RACE: 9, "slow-readers": 9})
    assert attempts.count("slow-readers") == 3
    assert [each.name for each in report.verdicts if each.status == FAILED] == ["slow-readers", RACE]
    replayed = (tmp_path / "slow-readers.jsonl").read_text().splitlines()
    assert json.loads(replayed[1]) == report.verdicts[1].steps[0], (
        "the replay shows the attempt of the report"
    )


def test_the_time_of_a_run_includes_attempts_after_the_last_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A class run compares the time of a run with the time for which its grader waited for a processor."""
    clock = SimpleNamespace(monotonic=lambda: float(len(attempts)), time=lambda: 0.0)
    monkeypatch.setattr("ewe_classroom.grader.grading.time", clock)
    monkeypatch.setattr("ewe_classroom.grader.grading.processes.waited_s", lambda: len(attempts) / 2)
    attempts: list[str] = []
    report, _ = run_of_pool(
        monkeypatch, tmp_path, ("progress", RACE), {RACE: 9, "progress": 9}, attempts=attempts
    )
    assert attempts == ["progress", RACE, "progress", "progress"]
    assert (report.seconds, report.waited_s) == (4.0, 2.0)
    assert report.verdicts[0].seconds == 3.0


def test_no_verdict_rests_on_a_check_that_may_pass_yet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The report would send the student to a check that has passed in the end."""
    order = ("idle-clients", "progress", RACE)
    report, _ = run_of_pool(monkeypatch, tmp_path, order, {RACE: 9, "idle-clients": 9, "progress": 1})
    assert [each.status for each in report.verdicts] == [FAILED, PASSED, FAILED]
    assert not any(each.waits for each in report.verdicts)


def test_a_second_attempt_keeps_no_text_of_the_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The report of a check that has passed would say what a time limit has disturbed before."""
    (tmp_path / "runs.json").touch()
    start_command = run_scene.from_path(str(tmp_path / "runs.json"))
    grading = Grading(start_command, scheme("measure"), tmp_path, SandboxLimits())
    attempts = iter((FailedExpectation("half a request", "no response", "answer", "a deadlock"), None))

    def play(_: object) -> None:
        if (failure := next(attempts)) is not None:
            raise failure

    item = replace(grading.scheme.items[0], check=replace(grading.scheme.items[0].check, function=play))
    quiet = SimpleNamespace(close=lambda: None, log=lambda _: "", site=None, workers=4, tasks=dict)
    monkeypatch.setattr(grading, "running_subject", lambda check: quiet)
    monkeypatch.setattr(Scene, "may_have_timed_out", lambda scene: True)
    verdict = grading.empty_verdict(item)
    grading.run_check(item, verdict)
    assert (verdict.status, verdict.did, verdict.because) == (PASSED, "", "")
    assert verdict.sent == item.check.sends and next(attempts, "none left") == "none left"


@pytest.mark.parametrize(("queued_s", "expected"), [(0.0, FAILED), (2.0, NOT_JUDGED)])
def test_a_fault_after_a_time_limit_is_not_judged_on_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, queued_s: float, expected: str
) -> None:
    """The server has ended a connection that waited too long, in each attempt, so its fault proves nothing."""
    grading, item, attempts = disturbed(monkeypatch, tmp_path, queued_s)
    verdict = grading.empty_verdict(item)
    grading.run_check(item, verdict)
    assert (verdict.status, verdict.score, len(attempts)) == (expected, 0, MAX_ATTEMPTS)
    assert ("the machine was too busy" in verdict.because) == (expected == NOT_JUDGED)
    assert "no response" in verdict.text()


def disturbed(
    monkeypatch: pytest.MonkeyPatch, directory: Path, queued_s: float
) -> tuple[Grading, Item, list[None]]:
    """Return a grading, a check that fails after a time limit, and the list of its attempts, which grows.

    queued_s: for how long the one thread of the server has waited for a processor.
    """
    (directory / "runs.json").touch()
    grading = Grading(
        run_scene.from_path(str(directory / "runs.json")), scheme("measure"), directory, SandboxLimits()
    )
    attempts: list[None] = []

    def play(_: object) -> None:
        attempts.append(None)
        raise FailedExpectation("half a request", "no response", "answer", "a deadlock")

    tasks = {1: ThreadSample(1, 1, "S", turns=1, ran_s=0.0, queued_s=queued_s)}
    quiet = SimpleNamespace(
        close=lambda: None, log=lambda lines: "", site=None, workers=4, tasks=lambda: tasks
    )
    monkeypatch.setattr(grading, "running_subject", lambda check: quiet)
    monkeypatch.setattr(Scene, "may_have_timed_out", lambda scene: True)
    first = grading.scheme.items[0]
    return grading, replace(first, check=replace(first.check, function=play)), attempts


def test_the_advice_is_the_cause_and_not_its_effect() -> None:
    """A parent that keeps a connection also leaves a descriptor, which costs more points."""
    report = handed_over(("descriptors", 7, FAILED), ("parent-lets-go", 6, FAILED))
    first = report.first_advice()
    assert first is not None and first.name == "parent-lets-go"
    assert report.verdicts[0].status == NOT_JUDGED and report.score == 0
    assert "it rests on parent-lets-go: a connection that" in report.verdicts[0].text()
    alone = handed_over(("descriptors", 7, FAILED), ("parent-lets-go", 6, PASSED)).first_advice()
    assert alone is not None and alone.name == "descriptors"


def test_a_check_that_passes_rests_on_nothing() -> None:
    report = handed_over(("answers", 3, FAILED), ("drain", 3, PASSED), ("stop", 4, FAILED))
    assert [each.status for each in report.verdicts] == [FAILED, PASSED, FAILED]


def test_a_check_that_passes_without_points_explains_no_failure() -> None:
    """The server passes keep-alive, which gives points only together with who-works."""
    lost = [("who-works", 12, FAILED), ("keep-alive", 4, PASSED), ("pipelined", 1, FAILED)]
    for order in (lost, [lost[0], lost[2], lost[1]]):
        report = handed_over(*order)
        assert {each.name: each.status for each in report.verdicts} == {
            "who-works": FAILED, "keep-alive": NOT_JUDGED, "pipelined": FAILED,
        }  # fmt: skip


@pytest.mark.parametrize(("causes", "expected"), [((), NOT_JUDGED), (("shared-data",), FAILED)])
def test_a_race_that_a_detector_has_seen_explains_itself(causes: tuple[str, ...], expected: str) -> None:
    """A server without progress hangs in the bursts of shared-data, too. A race may be why it has none."""
    report = handed_over(("progress", 12, FAILED), ("shared-data", 10, FAILED), lab="thread", causes=causes)
    assert [each.status for each in report.verdicts] == [FAILED, expected]


@pytest.mark.parametrize(
    ("cause", "passed", "expected"),
    [
        (Verdict("answers", "", 3, FAILED), set(), NOT_JUDGED),
        (Verdict("answers", "", 3, NOT_JUDGED), set(), NOT_JUDGED),  # a chain of causes
        (Verdict("answers", "", 3, NOT_JUDGED), {"answers"}, FAILED),  # the server passes it
        (
            Verdict("answers", "", 0, FAILED),
            set(),
            FAILED,
        ),  # a cause without points would make the fault free
        (Verdict("answers", "", 3, PASSED), set(), FAILED),
        (Verdict("answers", "", 3, ERROR), set(), FAILED),
        (Verdict("answers", "", 3, NOT_RUN), set(), FAILED),
        (Verdict("keep-alive", "", 3, FAILED), set(), FAILED),  # no cause of this check
    ],
)
def test_a_failed_check_rests_on_a_failed_cause(cause: Verdict, passed: set[str], expected: str) -> None:
    verdict = Verdict("half-close", "", 2, FAILED, did="no end")
    rest_on_cause(Report("fork", "", "", [cause, verdict]), verdict, Findings(passed_without_need=passed))
    assert verdict.status == expected
    assert ("it rests on answers" in verdict.because) == (expected == NOT_JUDGED)
    untouched = Verdict("half-close", "", 2, PASSED)
    rest_on_cause(Report("fork", "", "", [cause, untouched]), untouched, Findings())
    assert untouched.status == PASSED


@pytest.mark.parametrize(
    ("verdict", "other", "waits"),
    [
        (("half-close", FAILED), Verdict("answers", "", 3, NOT_RUN), True),
        (("half-close", FAILED), Verdict("answers", "", 3, NOT_RUN, because="the limit"), False),
        (("half-close", FAILED), Verdict("answers", "", 3, FAILED, waits=True), False),
        (("half-close", PASSED), Verdict("answers", "", 3, NOT_RUN), False),
        (("fifo", FAILED), Verdict("progress", "", 3, FAILED, waits=True), True),  # it may pass beside a race
        (("fifo", FAILED), Verdict("progress", "", 3, FAILED), False),
        (("progress", FAILED), Verdict(RACE, "", 3, NOT_RUN), True),
        (("answers", FAILED), Verdict(RACE, "", 3, NOT_RUN), False),
    ],
)
def test_a_failed_check_waits_for_what_may_explain_it(
    verdict: tuple[str, str], other: Verdict, waits: bool
) -> None:
    name, status = verdict
    failed = Verdict(name, "", 2, status)
    assert waits_for_cause(Report("pool", "", "", [other, failed]), failed, Findings()) == waits


@pytest.mark.parametrize(
    ("status", "need", "waits", "expected"),
    [
        (PASSED, Verdict("who-works", "", 3, NOT_RUN), True, NOT_JUDGED),
        (PASSED, Verdict("who-works", "", 3, NOT_RUN, because="the limit"), False, NOT_JUDGED),
        (PASSED, Verdict("who-works", "", 3, FAILED, waits=True), True, NOT_JUDGED),
        (PASSED, Verdict("who-works", "", 3, FAILED), False, NOT_JUDGED),
        (PASSED, Verdict("who-works", "", 3, PASSED, waits=True), False, PASSED),
        (PASSED, Verdict("answers", "", 3, FAILED), False, PASSED),  # the check does not need this one
        (FAILED, Verdict("who-works", "", 3, NOT_RUN), False, FAILED),
    ],
)
def test_a_passed_check_has_its_points_with_the_checks_that_it_needs(
    status: str, need: Verdict, waits: bool, expected: str
) -> None:
    verdict, findings = Verdict("keep-alive", "", 2, status), Findings()
    report = Report("fork", "", "", [need, verdict])
    assert waits_for_need(report, verdict, ("who-works",)) == waits
    rest_on_need(report, verdict, ("who-works",), findings)
    assert verdict.status == expected
    assert findings.passed_without_need == ({"keep-alive"} if expected == NOT_JUDGED else set())


def test_the_checks_rest_on_checks_in_no_circle() -> None:
    """A circle would leave two failed checks that each blame the other one."""
    known = all_checks().keys()
    assert RESTS.keys() <= known
    assert all(causes.keys() <= known for causes in RESTS.values())
    TopologicalSorter({check: set(causes) for check, causes in RESTS.items()}).prepare()
