"""Go's library is built once, before a time limit begins, for each account: with a program in place of Go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ewe_classroom.grader import go_cache
from ewe_classroom.grader import submission as submissions
from ewe_classroom.grader.grading import Grading
from ewe_classroom.grader.sandbox import SandboxLimits, SubjectAccount, own_account
from ewe_classroom.grader.scheme import load
from ewe_classroom.grader.subject import StartCommand

# It writes a line for each call, and keeps the word "built" in the cache.
GO = """#!/bin/sh
echo "$@" >> {log}
mkdir -p "$GOCACHE/00" && echo built > "$GOCACHE/00/library"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program called `go` first in PATH; return the file to which it writes its calls."""
    tools, log = tmp_path / "tools", tmp_path / "calls"
    tools.mkdir()
    log.touch()
    (tools / "go").write_text(GO.format(log=log))
    (tools / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.delenv("GOCACHE", raising=False)
    return log


def options(log: Path) -> list[bool]:
    """Return whether each build of Go's library had the race detector."""
    return ["-race" in line for line in log.read_text().splitlines() if line.startswith("list ")]


@pytest.mark.starts_processes
def test_the_shared_cache_is_filled_once_and_each_build_gets_a_copy(calls: Path, tmp_path: Path) -> None:
    account = SubjectAccount("the same one", os.getuid(), os.getgid())
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        found = go_cache.variables(account, tmp_path / name)
        assert found["GOCACHE"] == str(tmp_path / name / "go-build")
        assert (Path(found["GOCACHE"]) / "00" / "library").read_text() == "built\n"
    assert options(calls) == [False, True]
    assert go_cache.shared_cache().is_dir() and not go_cache.usual_cache().exists()


@pytest.mark.starts_processes
def test_the_graders_own_account_has_its_usual_cache_filled(calls: Path, tmp_path: Path) -> None:
    assert go_cache.variables(None, tmp_path)["GOCACHE"] == str(go_cache.usual_cache())
    assert options(calls) == [False, True]
    assert (go_cache.usual_cache() / "00" / "library").exists() and not go_cache.shared_cache().exists()


@pytest.mark.starts_processes
@pytest.mark.parametrize(("command", "warms"), [("go build -o server .", True), ("true", False)])
def test_the_library_is_built_before_the_time_of_a_build(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, warms: bool
) -> None:
    seen: list[list[bool]] = []

    def wait(self: submissions.Submission, process: object, command: str) -> int:
        seen.append(options(calls))
        return 0

    monkeypatch.setattr(submissions.Submission, "wait_for_build", wait)
    submission = submissions.Submission(tmp_path, SandboxLimits(), str(tmp_path))
    submission.build(command)
    submission.close()
    assert seen == [[False, True] if warms else []]


@pytest.mark.starts_processes
@pytest.mark.needs("root")
def test_a_copy_belongs_to_the_account_and_its_files_do_not(calls: Path, tmp_path: Path) -> None:
    account = own_account()
    cache = Path(go_cache.variables(account, tmp_path)["GOCACHE"])
    assert cache.stat().st_uid == (cache / "00").stat().st_uid == account.uid
    assert (cache / "00" / "library").stat().st_uid == 0


@pytest.mark.starts_processes
@pytest.mark.parametrize("has_no", ["Go", "a directory for caches"])
def test_a_library_that_cannot_be_built_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_no: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ("caches" if has_no == "Go" else "file")))
    account = SubjectAccount("another one", os.getuid(), os.getgid())
    assert go_cache.variables(account, tmp_path)["GOCACHE"] == str(tmp_path / "go-build")


@pytest.mark.parametrize(
    ("lab", "language", "warms"),
    [("pool", "go", True), ("thread", "go", True), ("serial", "go", False), ("pool", "c", False)],
)
def test_the_library_is_built_before_the_time_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lab: str, language: str, warms: bool
) -> None:
    """At that moment the run has no deadline yet."""
    (tmp_path / "grading").mkdir()
    command = StartCommand(("true",), tmp_path, "true", language=language)
    grading = Grading(command, load(lab), tmp_path / "grading", SandboxLimits(), limit_s=120.0)
    seen: list[float] = []
    monkeypatch.setattr(go_cache, "warm_up", lambda *, own_account: seen.append(grading.deadline))
    monkeypatch.setattr(grading, "run_check", lambda item, verdict: None)
    monkeypatch.setattr(grading, "hand_over", lambda report, waiting: [])
    grading.run()
    assert seen == ([float("inf")] if warms else [])
    assert grading.deadline < float("inf")
