"""Tests are skipped only for what they need, and the end of a run counts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import needs, resources
from support.resources import RESOURCES, Resource
from support.server import ROOT

CONFTEST = """
from support.resources import RESOURCES, Resource
RESOURCES["a loom"] = Resource(lambda: False, "loom libloom-dev")
RESOURCES["wool"] = Resource(lambda: False, "wool")
RESOURCES["a shepherd"] = Resource(lambda: False, instead="ask one")
RESOURCES["grass"] = Resource(lambda: True, "grass")
"""
TESTS = """
import pytest
from support.needs import require

@pytest.fixture(scope="module")
def cloth():
    require("grass", "a loom")

@pytest.mark.needs("grass")
def test_here(): pass

@pytest.mark.needs("grass", "a loom", "a shepherd")
class TestBoth:
    def test_a(self): pass
    def test_b(self): pass

@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.needs("wool"))])
def test_one_of_two(n): pass

@pytest.mark.parametrize("n", range(3))
def test_fixture(cloth, n): pass
"""


def run(directory: Path, tests: str, *options: str, complete: str = "") -> subprocess.CompletedProcess[str]:
    """Run these tests in another pytest."""
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_wool.py").write_text(tests)
    (directory / "pytest.ini").write_text("[pytest]\naddopts = -q --strict-markers\n")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "EWE_"))
    }
    environment |= {"PYTHONPATH": str(ROOT / "tests"), "EWE_TEST_COMPLETE": complete}
    command = [sys.executable, "-m", "pytest", "-p", "support.needs", *options]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)


@pytest.mark.starts_processes
@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_is_missing_is_counted(tmp_path: Path, workers: str) -> None:
    done = run(tmp_path, TESTS, "-n", workers)
    assert done.returncode == 0 and "2 passed, 6 skipped" in done.stdout, done.stdout
    assert "\n5 tests need a loom, 1 wool: " in done.stdout
    assert "\n2 tests need a shepherd: ask one\n" in done.stdout


@pytest.mark.starts_processes
def test_a_skip_is_a_failure_where_all_is_to_be_here(tmp_path: Path) -> None:
    done = run(tmp_path, TESTS, complete="1")
    assert done.returncode == 1 and "6 errors" in done.stdout and "2 passed" in done.stdout, done.stdout
    assert "needs a loom, a shepherd\nThe test was skipped, and EWE_TEST_COMPLETE is set." in done.stdout


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    "skipping",
    [
        "@pytest.mark.skip(reason='it rains')\ndef test(): pass",
        "@pytest.mark.skipif(True, reason='it rains')\ndef test(): pass",
        "def test(): pytest.skip('it rains')",
        "def test(): pytest.importorskip('no_such_module', reason='it rains')",
    ],
)
def test_a_skip_for_another_reason_is_a_failure(tmp_path: Path, skipping: str) -> None:
    done = run(tmp_path, f"import pytest\n{skipping}\n")
    assert done.returncode == 1, done.stdout
    assert "it rains\nA test is skipped by needs" in done.stdout


@pytest.mark.starts_processes
def test_an_expected_failure_is_no_skip(tmp_path: Path) -> None:
    done = run(tmp_path, "import pytest\n@pytest.mark.xfail\ndef test(): assert 0\n", complete="1")
    assert done.returncode == 0 and "1 xfailed" in done.stdout, done.stdout


@pytest.mark.starts_processes
def test_a_name_that_nothing_has_is_a_mistake(tmp_path: Path) -> None:
    done = run(tmp_path, "import pytest\n@pytest.mark.needs('a lom')\ndef test(): pass\n")
    assert done.returncode and "::test needs 'a lom': tests/support/resources.py lacks it" in done.stderr


def test_each_resource_says_how_it_is_had() -> None:
    assert [name for name, each in RESOURCES.items() if bool(each.packages) is bool(each.instead)] == []


def test_packages_on_a_system_without_apt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = Resource(lambda: False, "loom libloom-dev")
    monkeypatch.setattr(resources, "RESOURCES", {"a loom": nothing, "grass": Resource(lambda: True, "grass")})
    monkeypatch.setattr(resources, "PATH", "/nowhere")
    resources.is_here.cache_clear()
    assert resources.install() == 1
    assert capsys.readouterr().err == "There is no apt-get here. Install what brings a loom.\n"


def test_packages_for_an_ordinary_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = Resource(lambda: False, "loom libloom-dev")
    monkeypatch.setattr(resources, "RESOURCES", {"a loom": nothing})
    monkeypatch.setattr("shutil.which", lambda name, path: "/usr/bin/apt-get")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    resources.is_here.cache_clear()
    assert resources.install() == 1
    assert capsys.readouterr().err == "Only root installs packages: sudo make packages (libloom-dev loom)\n"


def test_the_lines_at_the_end_of_a_run_are_few() -> None:
    lines = needs.summary(needs.Counter(dict.fromkeys(RESOURCES, 10)))
    assert len(lines) < 20 and all(len(line) <= needs.WIDTH for line in lines)
