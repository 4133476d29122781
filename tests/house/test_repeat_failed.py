"""The complete run repeats the few tests that failed beside others (support/repeat_failed.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "support" / "repeat_failed.py"
TESTS = """
import pathlib, pytest

@pytest.mark.parametrize("number", range({often}))
def test_fails_once(number):
    was_here = pathlib.Path(f"was-here-{{number}}")
    if not was_here.exists():
        was_here.touch()
        raise AssertionError("the first time")

@pytest.mark.parametrize("number", range({always}))
def test_fails(number):
    raise AssertionError("each time")

def test_passes():
    pathlib.Path("passes").open("a").write("x")
"""


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("often", "always", "status", "words"),
    [
        (0, 0, 0, "1 passed"),
        (2, 0, 0, "(to be mended):\n  test_it.py::test_fails_once[0]\n  test_it.py::test_fails_once[1]\n"),
        (1, 1, 1, "1 failed, 1 passed"),
        (6, 0, 1, "6 failed, 1 passed"),
    ],
)
def test_a_test_that_fails_beside_others_is_run_alone(
    tmp_path: Path, often: int, always: int, status: int, words: str
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q\n")
    (tmp_path / "test_it.py").write_text(TESTS.format(often=often, always=always))
    command = [sys.executable, str(SCRIPT), "-n", "2", "test_it.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (status, "")
    assert words in ended.stdout
    assert (tmp_path / "passes").read_text() == "x"  # it passed, and was not repeated


@pytest.mark.starts_processes
def test_wrong_usage_is_not_repeated(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "-n", "0", "not-here.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR and "run once more" not in ended.stdout
