"""Grading from pytest (`pytest --ewe`) and from a notebook (`ewe_classroom.check`)."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from random import choice
from shlex import quote
from types import SimpleNamespace
from typing import Any, cast

import pytest
from classroom_server import COMMAND, PYTHON, ZOO

from ewe.processors.base import Processor
from ewe_classroom import check
from ewe_classroom.grader.apart import Grader, GradingFailed
from ewe_classroom.grader.verdicts import NOT_JUDGED, PASSED, Report, Verdict
from ewe_classroom.notebook import Graded, graded, source_of
from ewe_classroom.pytest_plugin import Checks

pytestmark = pytest.mark.timeout(180)  # a grading of seconds takes a minute beside a heavy load
AS_ROOT = "root" if os.geteuid() == 0 else None
STACK = f"{PYTHON} -S {quote(str(ZOO / 'mutants.py'))} Stack {{port}} {{root}} {{workers}}"


def run_pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    account = ["--ewe-user", AS_ROOT] if AS_ROOT and any("--ewe" in each for each in arguments) else []
    # Other plugins of this environment take seconds to load.
    plugins = ["-p", "no:cacheprovider", "-p", "xdist.plugin", "-p", "ewe_classroom.pytest_plugin"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, *account, *arguments],
        cwd=directory, capture_output=True, text=True, timeout=170,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip


@pytest.mark.starts_processes
def test_pytest_grades_a_server_with_a_test_for_each_check(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("def test_mine():\n    assert False\n")
    xml = tmp_path / "r.xml"
    done = run_pytest(
        tmp_path,
        "--ewe-command",
        STACK,
        "--ewe-lab",
        "pool",
        "-v",
        "-k",
        "fifo or not-found",
        f"--junit-xml={xml}",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "server::not-found PASSED" in done.stdout and "server::fifo FAILED" in done.stdout
    assert "Likely cause: waiting connections are kept in a stack" in done.stdout
    assert "test_mine" not in done.stdout and "Traceback" not in done.stdout
    assert "collected 31 items / 29 deselected / 2 selected" in done.stdout
    cases = {case.get("name"): case for case in ElementTree.parse(xml).iter("testcase")}
    points = {each.get("name"): each.get("value") for each in cases["not-found"].iter("property")}
    assert points == {"points": "1", "max_points": "1"}
    # Under xdist, and beside tests that the command line names.
    done = run_pytest(
        tmp_path,
        "--ewe-command",
        STACK,
        "--ewe-lab",
        "pool",
        "-n",
        "2",
        "-k",
        "not-found or mine",
        "test_mine.py",
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout


def test_a_verdict_that_waits_for_another_check_is_not_final(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of pytest would otherwise depend on the moment at which the plugin reads the report."""

    def report(status: str, *, waits: bool) -> Report:
        return Report("fork", "", "", [Verdict("idle-cpu", "", 6, status, waits=waits)])

    reports = [report(PASSED, waits=True), report(NOT_JUDGED, waits=False)]
    monkeypatch.setattr(Grader, "reports", lambda self: iter(reports))
    assert Grader.verdict(Grader.__new__(Grader), "idle-cpu").status == NOT_JUDGED


def test_a_directory_has_the_checks_of_the_submission_in_it(tmp_path: Path) -> None:
    """As in ewe-grade: without its language, a submission would lose the checks of that language."""
    (tmp_path / "lab4").mkdir()
    (tmp_path / "lab4" / "server.py").touch()
    option = SimpleNamespace(ewe_path=str(tmp_path), ewe_command=None)
    checks = Checks(cast(pytest.Config, SimpleNamespace(option=option)))
    assert checks.language("server") == "python"


def test_the_plugin_is_registered() -> None:
    (found,) = entry_points(group="pytest11", name="ewe")
    assert found.value == "ewe_classroom.pytest_plugin"


@pytest.mark.starts_processes
def test_pytest_says_wrong_usage_in_one_line_and_does_nothing_unasked(tmp_path: Path) -> None:
    for arguments, says in (
        (["--ewe", "none.py"], "none.py: not a file"),
        (["--ewe", "x", "--ewe-lab", "pol"], 'did you mean "pool"?'),
    ):
        done = run_pytest(tmp_path, *arguments)
        assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
        assert says in done.stdout + done.stderr and "Traceback" not in done.stdout + done.stderr
    (tmp_path / "test_mine.py").write_text(
        "import sys\ndef test_mine():\n"
        "    loaded = {name for name in sys.modules if name.startswith('ewe')}\n"
        "    assert loaded == {'ewe_classroom', 'ewe_classroom.pytest_plugin'}\n"
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout


CRLF = b"\r\n"
NEVER_S = float("inf")
STATES = (object(),)


def helper(line: bytes) -> bytes:
    return line + CRLF


class Mine(Processor):
    """A model, as in a cell."""

    name = "mine"

    def serve(self, listener: object) -> None:
        assert helper(b"") == CRLF and Path("/").is_dir() and os.sep == "/" and NEVER_S
        for accepted in listener:  # type: ignore[attr-defined]
            self.run(self.stream_of(accepted))


another_helper = helper


class Chooses(Processor):
    """random.choice() is a method of an object, and another_helper() a second name."""

    def serve(self, listener: object) -> None:
        assert another_helper(choice([b"line"])) == b"line" + CRLF


class Uses(Processor):
    def serve(self, listener: object) -> None:
        print(AN_OBJECT)


AN_OBJECT = object()


class UsesStates(Processor):
    def serve(self, listener: object) -> None:
        assert STATES


def test_a_submission_without_a_verdict_earns_nothing() -> None:
    """It could not be started, and only its speed was to be measured."""
    assert Graded(Report("pool", "The pool", "server.py", [], refused="not Python")).of(10) == 0


@pytest.mark.starts_processes
def test_a_grader_that_cannot_be_started_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of a notebook goes on, so neither a directory nor a descriptor may stay."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ValueError, match="null byte"):
        check("a file\0of no system")
    with pytest.raises(FileNotFoundError):
        Grader([], directory=str(tmp_path / "nowhere"))
    assert not list(tmp_path.iterdir()) and len(os.listdir("/proc/self/fd")) == len(before)


def test_a_notebook_keeps_only_the_last_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 of them come in a second, each with the timelines of all checks."""
    earlier: list[weakref.ref[Report]] = []

    def reports(grader: Grader) -> Iterator[Report]:
        for number in range(3):
            assert sum(reference() is not None for reference in earlier) <= 1
            yield new_report(number)

    def new_report(number: int) -> Report:
        report = Report("pool", "The pool", str(number), [])
        earlier.append(weakref.ref(report))
        return report

    monkeypatch.setattr(Grader, "__init__", lambda self, arguments: None)
    monkeypatch.setattr(Grader, "close", lambda self: None)
    monkeypatch.setattr(Grader, "reports", reports)
    assert graded(["server.py"]).report.subject == "2"


@pytest.mark.starts_processes
def test_a_class_of_a_notebook_is_graded() -> None:
    found = check(Mine, lab="serial", only=["answers", "progress", "who-works"], user=AS_ROOT)
    assert found.passed and found and found.score == found.points == 26, repr(found)
    assert found.of(10) == 10.0 and "passed  answers" in repr(found)
    assert found.verdicts["progress"].facts


@pytest.mark.starts_processes
def test_a_command_is_graded_and_its_faults_are_shown() -> None:
    found = check(STACK, lab="pool", only=["fifo", "not-found"], user=AS_ROOT)
    assert not found.passed and (found.score, found.points, found.of(18)) == (1, 6, 3.0)
    assert "failed  fifo" in repr(found) and "Likely cause: waiting connections are kept in a stack" in repr(
        found
    )
    page = found._repr_html_()
    assert page.startswith("<iframe") and "&lt;svg" in page and "<svg" not in page
    with pytest.raises(GradingFailed, match='did you mean "fifo"'):
        check(COMMAND, only=["fifi"])
    with pytest.raises(GradingFailed, match="not a file"):
        check("none.py", user=AS_ROOT)


def test_the_source_of_a_class_holds_what_it_names() -> None:
    source = source_of(Mine)
    for line in (
        "import os as os",
        f"from {Path.__module__} import Path as Path",  # pathlib._local in Python 3.13
        "from ewe.processors.base import Processor as Processor",
        "CRLF = b'\\r\\n'",
        "NEVER_S = float('inf')",
        "def helper(line: bytes) -> bytes:",
    ):
        assert line in source
    assert source.index("CRLF =") < source.index("def helper") < source.index("class Mine")
    names: dict[str, type[Processor]] = {}
    exec(source_of(Chooses), names)
    names["Chooses"].serve(object.__new__(names["Chooses"]), None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="uses AN_OBJECT, an object of the notebook"):
        source_of(Uses)
    with pytest.raises(ValueError, match="uses STATES, an object of the notebook"):
        source_of(UsesStates)


def test_a_class_without_a_source_is_said_in_one_line() -> None:
    """An interactive Python keeps no source of a class."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("class Typed:\n    pass\n", names)
    with pytest.raises(ValueError, match="does not know the source of Typed"):
        source_of(names["Typed"])
