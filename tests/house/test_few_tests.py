"""Packages that few tests need: one that does not install is left out, and no other test misses it."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
from support import few_tests, needs
from support.resources import RESOURCES, module
from support.server import ROOT


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, ...]]:
    """A pip that installs whatever does not name posix_ipc; what it was asked for."""
    asked: list[tuple[str, ...]] = []

    def installs(log: Path, *wanted: str) -> bool:
        asked.append(wanted)
        return not any("posix_ipc" in each for each in wanted)

    monkeypatch.setattr(few_tests, "pip_installs", installs)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.chdir(tmp_path.parent)
    return asked


def test_a_package_that_does_not_install_is_left_out(
    pip: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert few_tests.main() == 0
    assert capsys.readouterr().out == (
        f"posix_ipc does not install here ({tmp_path.name}/few-tests.log says why):"
        " tests that need it are skipped\n"
    )
    wanted = few_tests.requirements()
    assert pip == [tuple(wanted), *((each,) for each in wanted)]


def test_all_are_installed_at_once(
    pip: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(few_tests, "requirements", lambda: ["brotli>=1.1,<2", "httptools"])
    assert few_tests.main() == 0
    assert pip == [("brotli>=1.1,<2", "httptools")] and capsys.readouterr().out == ""


def test_each_of_them_can_be_named_by_a_test() -> None:
    names = {few_tests.name_of(each).rpartition(".")[2] for each in few_tests.requirements()}
    assert names <= RESOURCES.keys()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert not names & {few_tests.name_of(each) for each in extras["test"]}


@pytest.mark.parametrize(
    ("requirement", "name"),
    [
        ("psycopg[binary]>=3.2,<4", "psycopg"),
        ("backports.zstd>=1.2,<2; python_version < '3.14'", "backports.zstd"),
        ("wool", "wool"),
    ],
)
def test_the_name_of_a_requirement(requirement: str, name: str) -> None:
    assert few_tests.name_of(requirement) == name


def test_a_module_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of tests imports it all the same; a test that touches it is skipped and counted."""
    monkeypatch.setitem(RESOURCES, "wool", module("loom.wool"))
    wool = needs.module("loom.wool", "wool")
    with pytest.raises(needs.Lacking, match="needs wool"):
        wool.spin()


def test_a_module_that_is_here() -> None:
    assert needs.module("pytest_timeout", "Linux").__name__ == "pytest_timeout"
