"""`make` deletes no directory that it has not made: `python -m venv --clear` deletes all files of its directory."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support.documents import ROOT

pytestmark = pytest.mark.starts_processes


def planned(clone: Path, environment: Path) -> subprocess.CompletedProcess[str]:
    """Return what `make serve` would do in a clone, with this directory for its environment."""
    command = ["make", "--dry-run", "serve", f"VENV={environment}"]
    return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a directory with the files that the target `serve` needs."""
    (tmp_path / "clone").mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / "clone")
    return tmp_path / "clone"


def test_a_directory_with_other_files_stays(clone: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("mine")
    made = planned(clone, tmp_path / "site")
    assert made.returncode == 2 and "is not empty, and no virtual environment" in made.stderr
    assert "--clear" in planned(clone, tmp_path / "new").stdout


def test_the_environment_of_another_clone_stays(clone: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    environment.mkdir()
    (environment / "pyvenv.cfg").write_text("")
    (environment / ".made").write_text(f"{ROOT}\n")
    made = planned(clone, environment)
    assert made.returncode == 2 and f"is the environment of {ROOT}" in made.stderr


def test_the_environment_of_a_copied_clone_is_made_again(clone: Path) -> None:
    """The copy has the environment of the first clone, whose programs lead there."""
    (clone / ".venv").mkdir()
    (clone / ".venv" / "pyvenv.cfg").write_text("")
    (clone / ".venv" / ".made").write_text(f"{ROOT}\n")
    assert "--clear" in planned(clone, Path(".venv")).stdout
