"""The points of the labs: an untouched starter gets at most a tenth; one fault costs one check; own work."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from classroom_server import run_grader

import ewe
from ewe.config.messages import ConfigError
from ewe_classroom.course import cli, labs
from ewe_classroom.grader import own_model, programs, scheme
from ewe_classroom.grader.scene import FailedExpectation, Scene
from ewe_classroom.grader.subject import BadSubject, Subject, model_class, names_in, parse_python

SERVER_LAB_LANGUAGES = [
    (each.name, language) for each in labs.labs() for language in each.variants if each.name != "measure"
]
# Checks that a starter passes, or passed before they needed others. The quick test runs these; checks of one or two
# points count as passed, and all others fail in a run of the whole lab.
PASSED = {
    "serial": ("answers", "pipelined", "who-works", "idle-cpu", "memory", "restart", "byte-by-byte"),
    "fork": (
        "who-works",
        "second-client",
        "progress",
        "parent-lets-go",
        "zombies",
        "child-killed",
        "idle-cpu",
    ),
    "thread": ("second-client", "early-close", "descriptors", "idle-cpu", "stop", "memory"),
    "pool": (
        "second-client",
        "who-works",
        "early-close",
        "descriptors",
        "idle-cpu",
        "stop",
        "backlog",
        "fifo",
    ),
    "event": (
        "second-client",
        "who-works",
        "early-close",
        "descriptors",
        "idle-cpu",
        "byte-by-byte",
        "keep-alive",
    ),
    "cgi": ("cgi-environment", "cgi-inherits", "cgi-outside"),
    "scheduling": ("order-fifo", "progress", "slow-readers"),
    "engine": ("engine-answers", "engine-persistent", "engine-ends"),
    "caching": ("modified-since", "fresh-file", "validators", "conditional-missing", "file-cache"),
}


def grade(lab: str, directory: Path, *arguments: str) -> dict[str, Any]:
    """Grade by ewe-grade; return its report."""
    report = directory / "report.json"
    done = run_grader("--lab", lab, "--json", str(report), *arguments, directory=directory)
    assert done.returncode in (0, 1, 2), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def points_without(lab: str, names: tuple[str, ...]) -> int:
    """Return the points of the checks of one or two points that need no other check: they count as passed."""
    return sum(
        item.points
        for item in scheme.load(lab).items
        if item.check.name not in names and item.points <= 2 and not item.needs
    )


@pytest.mark.starts_processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "language"), [each for each in SERVER_LAB_LANGUAGES if each[1] in ("python", "model")]
)
def test_an_untouched_starter_has_at_most_a_tenth(tmp_path: Path, name: str, language: str) -> None:
    assert cli.main(["new", name, str(tmp_path / "begun"), "--language", language]) == 0
    only = [word for check in PASSED[name] for word in ("--only", check)]
    report = grade(name, tmp_path, *only, str(tmp_path / "begun" / labs.lab(name).variants[language].grade))
    whole = scheme.load(name).checks_for_language(language)
    earned = report["score"] + points_without(name, PASSED[name])
    assert whole.starter_points == sum(item.points for item in whole.items) // 10
    assert earned <= whole.starter_points, [(each["name"], each["score"]) for each in report["verdicts"]]
    assert {"failed"} <= {each["status"] for each in report["verdicts"]}


def edited(directory: Path, before: str, after: str) -> str:
    """Write the solution of the lab pool with one fault; return its path."""
    assert cli.main(["solution", "pool", str(directory)]) == 0
    source = (directory / "server.py").read_text()
    assert before in source
    (directory / "server.py").write_text(source.replace(before, after))
    return str(directory / "server.py")


@pytest.mark.starts_processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("before", "after", "checks", "failed"),
    [
        pytest.param(
            "with connection:", "if ROOMS.append(connection) is None:",
            ("keep-alive", "half-close", "nonsense", "descriptors"), "keep-alive", id="not-closed",
        ),
        pytest.param(
            "range(workers)", "range(workers + 1)",
            ("progress", "slow-readers", "fifo", "exactly-n", "bursts"), "progress", id="a-fifth-worker",
        ),
    ],
)  # fmt: skip
def test_one_fault_costs_one_check(
    tmp_path: Path, before: str, after: str, checks: tuple[str, ...], failed: str
) -> None:
    path = edited(tmp_path / "s", before, after)
    source = Path(path).read_text()
    Path(path).write_text(source.replace("ROOM = 64", "ROOMS: list = []\nROOM = 64"))
    only = [word for check in checks for word in ("--only", check)]
    report = grade("pool", tmp_path, *only, path)
    assert [each["name"] for each in report["verdicts"] if each["status"] != "passed"] == [failed], report


@pytest.mark.starts_processes
def test_a_check_needs_another_one(tmp_path: Path) -> None:
    path = edited(tmp_path / "s", "with connection:", "with connection, queue.lock:")
    report = grade("pool", tmp_path, "--only", "second-client", "--only", "memory", path)
    second, memory = report["verdicts"]
    assert (second["status"], memory["status"], memory["score"]) == ("failed", "not judged", 0)
    assert "rests on second-client" in memory["text"]
    assert grade("pool", tmp_path, "--only", "memory", path)["score"] == 2


@pytest.mark.parametrize(
    ("needs", "says"),
    [
        ('["progres"]', "the lab lacks"),
        ('["stop"]', "needs stop"),
        ('"stop"', "names of checks"),
        ("[1]", "names"),
    ],
)
def test_needs_that_make_no_sense(tmp_path: Path, needs: str, says: str) -> None:
    file = tmp_path / "x.toml"
    file.write_text(f'[[check]]\nname = "stop"\npoints = 1\nneeds = {needs}\n')
    with pytest.raises(ConfigError, match=says):
        scheme.load(str(file))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("from ewe.processors.pool import Pool\nclass Mine(Pool): pass\n", "line 1: this takes Pool"),
        ("from ewe.processors.pool import Pool as P\nMine = P\n", "takes Pool"),
        ("import ewe.processors.thread\n", "takes ewe.processors.thread"),
        ("from ewe.processors.base import find_class\n", "takes find_class"),
        ("from ewe import cli\n", "takes cli"),
        ("import importlib\nimportlib.import_module('ewe.processors.pool')\n", "line 2"),
        ("import helper\n", "helper.py, line 1"),
    ],
)
def test_a_model_derives_from_processor_alone(tmp_path: Path, source: str, says: str) -> None:
    (tmp_path / "helper.py").write_text("from ewe.processors.serial import Serial\n")
    (tmp_path / "model.py").write_text(source)
    with pytest.raises(BadSubject, match=says):
        own_model.expect_own_work(tmp_path / "model.py")


@pytest.mark.parametrize("source", ["n = 0x" + "f" * 5000, "class A(a" + ".b" * 900 + "): pass"])
def test_no_source_is_a_fault_of_the_grader(tmp_path: Path, source: str) -> None:
    """Python makes no text of an integer of more than 4,300 digits, or of a deep expression."""
    (tmp_path / "server.py").write_text(f"{source}\n")
    own_model.expect_own_work(tmp_path / "server.py")
    assert model_class(tmp_path / "server.py") == ""


def test_a_model_is_known_by_an_import_or_by_a_module() -> None:
    tree = ast.parse("class A(ewe.processors.base.Processor[int], Mixin): pass")
    assert isinstance(tree.body[0], ast.ClassDef)
    names = [set(names_in(base)) for base in tree.body[0].bases]
    assert names == [{"ewe", "processors", "base", "Processor", "int"}, {"Mixin"}]


@pytest.mark.parametrize(
    "source",
    [
        # str() refuses this number, which has more than 4,300 decimal digits.
        f"LARGE = 0x{'f' * 5000}\n",
        f'"""{own_model.BASE}.{own_model.ALLOWED} is the class from which mine derives."""\n',
    ],
    ids=["a large number", "a docstring"],
)
def test_a_constant_that_names_no_module_is_no_fault(tmp_path: Path, source: str) -> None:
    (tmp_path / "model.py").write_text(source)
    own_model.expect_own_work(tmp_path / "model.py")


def test_a_file_that_cannot_be_read_is_a_fault_of_the_submission(tmp_path: Path) -> None:
    with pytest.raises(BadSubject, match=r"not Python: .*directory"):
        parse_python(tmp_path)


def test_the_import_of_a_long_name_is_no_fault_of_the_grader(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(f"try:\n    import {'x' * 300}\nexcept ImportError:\n    pass\n")
    own_model.expect_own_work(tmp_path / "server.py")


@pytest.mark.parametrize(
    ("name", "language"), [each for each in SERVER_LAB_LANGUAGES if each[1] in ("python", "model")]
)
def test_the_labs_own_files_are_no_copies_of_ewe(tmp_path: Path, name: str, language: str) -> None:
    if name == "engine":
        return
    assert cli.main(["solution", name, str(tmp_path), "--language", language]) == 0
    own_model.expect_own_work(tmp_path / labs.lab(name).variants[language].grade)


@pytest.mark.parametrize(
    ("found", "cause"),
    [({}, ""), ({"GATEWAY_INTERFACE": "CGI/1.1", "REQUEST_METHOD": "POST"}, "separate variables")],
)
def test_a_cause_is_about_the_variable_that_is_wrong(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, str], cause: str
) -> None:
    monkeypatch.setattr(programs, "environment", lambda *_, **more: found)
    scene = Scene(cast(Subject, SimpleNamespace(port=80, site=None, workers=4)))
    with pytest.raises(FailedExpectation) as failed:
        programs.cgi_environment(scene)
    assert cause in failed.value.because and bool(cause) == bool(failed.value.because)


@pytest.mark.parametrize("language", ["python", "c", "go"])
def test_a_server_finds_no_ewe_in_any_language(language: str) -> None:
    assert own_model.hidden_parts(language) == (str(Path(ewe.__file__).resolve().parent),)


@pytest.mark.starts_processes
@pytest.mark.needs("a mount namespace")
def test_a_server_finds_no_solution(tmp_path: Path) -> None:
    """The server lists the labs' directory, and runs ewe."""
    (tmp_path / "server.py").write_text(
        "import os, subprocess, sys\n"
        f"print(os.listdir({str(scheme.LABS)!r}))\n"
        "subprocess.run([sys.executable, '-m', 'e' + 'we', '--version'])\n"
    )
    report = grade("pool", tmp_path, "--only", "answers", "server.py")
    assert not report["notes"]
    (answers,) = report["verdicts"]
    assert "[]" in answers["output"] and "cannot be directly executed" in answers["output"], answers["output"]


@pytest.mark.starts_processes
@pytest.mark.needs("a mount namespace")
def test_an_engine_finds_no_engine_of_ewe(tmp_path: Path) -> None:
    """X-Switch has an engine in Python, which would pass as the student's."""
    engines = str(Path(ewe.__file__).resolve().parent / "xswitch" / "engines")
    (tmp_path / "engine.py").write_text(
        f"import runpy, sys\nsys.path.insert(0, {engines!r})\n"
        f"runpy.run_path({engines + '/python.py'!r}, run_name='__main__')\n"
    )
    report = grade("engine", tmp_path, "--only", "engine-answers", "engine.py")
    (answers,) = report["verdicts"]
    assert (report["score"], answers["status"]) == (0, "failed"), answers


# It computes the name of the module, so the source alone does not show it.
TAKES_POOL = """import importlib
from ewe.processors.base import Processor

Pool = getattr(importlib.import_module("ewe.proces" + "sors.pool"), "Po" + "ol")


class Mine(Processor):
    pass


Mine = type("Mine", (Pool,), {"name": "mine"})
"""


@pytest.mark.starts_processes
@pytest.mark.needs("a mount namespace")
def test_a_model_finds_no_model_of_ewe(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(TAKES_POOL)
    report = grade("pool", tmp_path, "--only", "answers", "model.py")
    (answers,) = report["verdicts"]
    assert not report["score"] and "No module named 'ewe.processors.pool'" in answers["output"], answers


@pytest.mark.starts_processes
def test_a_model_needs_no_hidden_module(tmp_path: Path) -> None:
    """A module that ewe needs under any model is hidden from none."""
    assert cli.main(["solution", "pool", str(tmp_path), "--language", "model"]) == 0
    report = grade("pool", tmp_path, "--only", "answers", "--only", "stop", "model.py")
    assert [each["status"] for each in report["verdicts"]] == ["passed", "passed"]
