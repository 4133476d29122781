"""Many runs of one grading: the kept results, the continuation after an interruption, and differing marks."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path

import pytest

from ewe.config.messages import ConfigError
from ewe_classroom.grader import repeat
from ewe_classroom.grader.verdicts import FAILED, PASSED, Report, Verdict

ABOUT = {"lab": "pool", "server": "mine.py", "checks": ["fifo"]}


def report(status: str = PASSED) -> Report:
    verdict = Verdict("fifo", "order", 5, status, did="a stack")
    return Report("pool", "The pool", "mine.py", [verdict], seconds=1.5)


def test_a_mark_that_differs_is_named_with_its_explanation() -> None:
    runs = repeat.Runs(None, ABOUT)
    for status in (PASSED, FAILED, PASSED):
        runs.add(repeat.summary_of(report(status)))
    assert list(runs.summary()) == [
        "differs: fifo: 2 times passed, 1 times failed",
        "    What happened: a stack",
        "3 runs, 3 checks, 1 with different marks",
    ]


def test_a_mark_that_is_always_the_same_does_not_differ() -> None:
    runs = repeat.Runs(None, ABOUT)
    for _ in range(2):
        runs.add(repeat.summary_of(report(FAILED)))
    assert list(runs.summary()) == ["failed in each run: fifo", "2 runs, 2 checks, 0 with different marks"]


def test_interrupted_runs_go_on_where_they_ended(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    runs = repeat.Runs(file, ABOUT)
    runs.add(repeat.summary_of(report()))
    runs.add(repeat.summary_of(report(FAILED)))
    file.write_text(file.read_text() + '{"marks": {"fi')  # killed while it wrote
    again = repeat.Runs(file, ABOUT)
    assert again.finished_runs == runs.finished_runs
    again.add(repeat.summary_of(report()))
    assert len(repeat.Runs(file, ABOUT).finished_runs) == 3


def test_whole_runs_are_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is killed at its start could otherwise lose the runs of several nights."""
    file = tmp_path / "runs.jsonl"
    repeat.Runs(file, ABOUT).add(repeat.summary_of(report()))
    monkeypatch.setattr(Path, "write_text", None)
    assert len(repeat.Runs(file, ABOUT).finished_runs) == 1
    with open(file, "a") as half:
        half.write('{"marks": {"fi')
    assert len(repeat.Runs(file, ABOUT).finished_runs) == 1 and file.read_text().endswith("}\n")


def test_a_full_disk_is_said_in_one_line(tmp_path: Path) -> None:
    runs = repeat.Runs(tmp_path / "runs.jsonl", ABOUT)
    runs.file = Path("/dev/full")
    with pytest.raises(ConfigError, match=r"--runs: cannot write /dev/full: No space left"):
        runs.add(repeat.summary_of(report()))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"format": "ewe-runs/1", "lab": "fork"}\n', "of another server, lab or choice"),
        ("a diary\n", "was not written by --runs"),
        ("a diary of one line, which no newline ends", "of another server, lab or choice"),
        ("[" * 100_000 + "\n", "was not written by --runs"),
        ('{"format": "ewe-runs/1"}\n{"marks": 1}\n', "of another server, lab or choice"),
    ],
)
def test_a_file_of_something_else_is_refused_and_kept(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        repeat.Runs(file, ABOUT)
    assert file.read_text() == text


@pytest.mark.starts_processes
def test_runs_are_processes_several_at_a_time(tmp_path: Path) -> None:
    def grade() -> Report:
        """Wait for the other run, which proves that two run at a time."""
        (tmp_path / str(os.getpid())).touch()
        while len(list(tmp_path.iterdir())) < 2:
            os.sched_yield()
        return report()

    found = list(repeat.in_processes(grade, 3, jobs=2))
    assert [each.as_dict()["score"] for each in found] == [5, 5, 5]
    assert len(list(tmp_path.iterdir())) == 3 and str(os.getpid()) not in os.listdir(tmp_path)


@pytest.mark.starts_processes
def test_a_run_that_is_killed_is_no_report() -> None:
    def grade() -> Report:
        os.kill(os.getpid(), signal.SIGKILL)
        return report()

    with pytest.raises(ConfigError, match="killed before its report"):
        list(repeat.in_processes(grade, 2, jobs=2))


@pytest.mark.parametrize("size", [0, 1, 100, -1])
def test_a_part_of_a_report_is_no_report(size: int) -> None:
    """A large report does not fit into a pipe: the process may be killed while it writes."""
    with pytest.raises(ConfigError, match="killed before its report"):
        repeat.result(pickle.dumps(report())[:size])


@pytest.mark.starts_processes
def test_a_run_that_cannot_grade_says_why() -> None:
    def grade() -> Report:
        raise ConfigError("no network")

    with pytest.raises(ConfigError, match="no network"):
        list(repeat.in_processes(grade, 1, jobs=1))
