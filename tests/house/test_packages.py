"""The packages of the repository: the server, and the houses below packages/, which import it.

Each wheel is made here as a release is made, and its files are compared with those that git knows.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import tarfile
import tomllib
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from support.rooms import HOUSES, ROOT

import ewe

SAMPLES = ("cgi-bin", "htdocs", "libcgi-bin", "samples")
DIRECTORIES = {"ewe": ROOT} | {house: ROOT / "packages" / house.replace("_", "-") for house in HOUSES}
MOST_BYTES = 1_500_000  # of the server's wheel


def project_of(directory: Path) -> dict[str, Any]:
    """Return the pyproject.toml of a package."""
    return tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))


def wheel_of(directory: Path, where: Path) -> ZipFile:
    """Build the wheel of a package as a release has it."""
    (file,) = WheelBuilder(str(directory)).build(directory=str(where), versions=["standard"])
    return ZipFile(file)


def known_to_git(directory: Path, *tops: str) -> set[str]:
    """Return the files below some directories, without those that .gitignore names.

    Files that a person has put into the clone count, too: a release is built from a clean one.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *tops]
    listed = subprocess.run(command, cwd=directory, capture_output=True, check=True).stdout.decode()
    return {name for name in listed.split("\0") if name and (directory / name).exists()}


# Python 3.11.2, which Debian 12 has, knows no filters yet; 3.12 wants one.
FILTER: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


@pytest.mark.needs("git")
@pytest.mark.starts_processes
@pytest.mark.parametrize("package", DIRECTORIES)
def test_a_wheel_has_the_files_that_git_knows(tmp_path: Path, package: str) -> None:
    """Names with spaces, percent signs and accents are among them. Programs stay executable."""
    directory = DIRECTORIES[package]
    files = {name: name for name in known_to_git(directory, package)}
    if package == "ewe":
        del files["ewe/README.md"]  # the list of the files, which is for a checkout
        files |= {f"ewe/sample/{name}": name for name in known_to_git(directory, *SAMPLES)}
        assert len(files) > 300 and {"100%", "vu"} <= set(re.split("[/ ]", " ".join(files)))
    with wheel_of(directory, tmp_path) as wheel:
        packed = {each.filename: each for each in wheel.infolist() if each.filename.startswith(f"{package}/")}
    assert packed.keys() == files.keys()
    for name, each in packed.items():
        mode = (directory / files[name]).stat().st_mode
        assert bool(each.external_attr >> 16 & stat.S_IXUSR) == bool(mode & stat.S_IXUSR), name


def test_the_server_is_small_and_needs_nothing(tmp_path: Path) -> None:
    with wheel_of(ROOT, tmp_path) as wheel:
        names = wheel.namelist()
        (metadata,) = (wheel.read(name).decode() for name in names if name.endswith("/METADATA"))
        (commands,) = (wheel.read(name).decode() for name in names if name.endswith("/entry_points.txt"))
    assert os.path.getsize(str(wheel.filename)) < MOST_BYTES
    assert not re.search("^Requires-Dist: (?!.*extra ==)", metadata, re.MULTILINE)
    release = f"ewe_server-{ewe.__version__}"
    assert {name.split("/")[0] for name in names} == {"ewe", f"{release}.data", f"{release}.dist-info"}
    assert set(re.findall(r"^\S+(?= = )", commands, re.MULTILINE)) == {"ewe", "ewe-dbd", "ewe-xswitch"}
    assert re.findall(r"^\[.*\]$", commands, re.MULTILINE) == ["[console_scripts]"]


@pytest.mark.parametrize("house", HOUSES)
def test_a_house_needs_the_server_of_its_version(tmp_path: Path, house: str) -> None:
    """That holds for the wheel, for the source distribution, and for a wheel that is built from that one."""
    with wheel_of(DIRECTORIES[house], tmp_path) as wheel:
        metadata = wheel.read(f"{house}-{ewe.__version__}.dist-info/METADATA").decode()
    assert f"\nVersion: {ewe.__version__}\n" in metadata
    assert f"\nRequires-Dist: ewe-server=={ewe.__version__}\n" in metadata
    (source,) = SdistBuilder(str(DIRECTORIES[house])).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path / "source", **FILTER)
    (unpacked,) = (tmp_path / "source").iterdir()
    with wheel_of(unpacked, tmp_path / "again") as again:
        assert again.read(f"{house}-{ewe.__version__}.dist-info/METADATA").decode() == metadata
        assert set(again.namelist()) == set(wheel.namelist())


def test_the_houses_are_made_alike() -> None:
    assert {path.name for path in (ROOT / "packages").glob("ewe-*")} == {
        directory.name for package, directory in DIRECTORIES.items() if package != "ewe"
    }
    hooks = {(DIRECTORIES[house] / "hatch_build.py").read_text(encoding="utf-8") for house in HOUSES}
    assert len(hooks) == 1
    assert {(DIRECTORIES[house] / "LICENSE").read_bytes() for house in HOUSES} == {
        (ROOT / "LICENSE").read_bytes()
    }
    systems = {(project["build-system"]["requires"][0], project["project"]["requires-python"])
               for project in map(project_of, DIRECTORIES.values())}  # fmt: skip
    assert len(systems) == 1


def test_only_the_classroom_adds_to_pytest() -> None:
    found = {
        package
        for package, directory in DIRECTORIES.items()
        if "pytest11" in project_of(directory)["project"].get("entry-points", {})
    }
    assert found == {"ewe_classroom"}


def test_the_server_names_no_house() -> None:
    """No file of the server names a module of a house, not even in a string (test_layers.py reads the imports)."""
    names = re.compile(rf"\b({'|'.join(HOUSES)})\b")
    found = [
        path.relative_to(ROOT).as_posix()
        for top in ("ewe", "share", *SAMPLES)
        for path in (ROOT / top).rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and names.search(path.read_text(errors="replace"))
    ]
    assert not found


def test_the_tests_of_the_server_need_no_house() -> None:
    """`make test PART=server` tests what is installed alone. Two files try the commands of all packages."""
    apart = (
        "tests/house/",
        "tests/support/messages.py",
        "tests/support/rooms.py",
        "tests/operations/test_cli.py",
        "tests/operations/test_command_lines.py",
    )
    found = [
        name
        for path in (ROOT / "tests").rglob("*.py")
        if not (name := path.relative_to(ROOT).as_posix()).startswith(apart)
        and re.search("|".join(HOUSES), path.read_text(encoding="utf-8"))
    ]
    assert not found
