"""True names of open files: from /proc, from F_GETPATH, and by another look at the path."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from ewe.gateway import true_names
from ewe.gateway.true_names import NAME_ONLY_FLAGS, real_path, true_name


@pytest.fixture(params=["proc", "F_GETPATH", "path"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One way to find a file's true name. The calls of the other ways are hidden, and F_GETPATH is faked."""
    readlink, control = os.readlink, fcntl.fcntl

    def no_proc(path: str, **more: int) -> str:
        if str(path).startswith("/proc/"):
            raise FileNotFoundError(path)
        return readlink(path, **more)

    def get_path(descriptor: int, command: int, argument: bytes | int = 0) -> bytes | int:
        if command != 50:
            return control(descriptor, command, argument)
        assert isinstance(argument, bytes) and len(argument) == 1024
        return os.fsencode(readlink(f"/proc/self/fd/{descriptor}")).ljust(1024, b"\0")

    if request.param != "proc":
        monkeypatch.setattr(true_names.os, "readlink", no_proc)
    if request.param == "F_GETPATH":
        monkeypatch.setattr(fcntl, "F_GETPATH", 50, raising=False)
        monkeypatch.setattr(fcntl, "fcntl", get_path)
    return str(request.param)


def opened(path: Path) -> int:
    return os.open(path, NAME_ONLY_FLAGS)


def test_links_are_followed(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "link").symlink_to("../file")
    (tmp_path / "way").symlink_to("directory")
    name = tmp_path / "way" / "link"
    descriptor = opened(name)
    assert true_name(descriptor, str(name)) == os.path.realpath(tmp_path / "file")
    os.close(descriptor)


def test_a_link_that_was_exchanged(kind: str, tmp_path: Path) -> None:
    """The open file counts, not a new file of the same name. If only the name can be asked, there is no answer."""
    (tmp_path / "secret").touch()
    (tmp_path / "public").touch()
    link = tmp_path / "link"
    link.symlink_to("secret")
    descriptor = opened(link)
    link.unlink()
    link.symlink_to("public")
    if kind == "path":
        with pytest.raises(OSError, match="exchanged"):
            true_name(descriptor, str(link))
    else:
        assert true_name(descriptor, str(link)) == os.path.realpath(tmp_path / "secret")
    os.close(descriptor)


def test_a_path_of_the_settings(kind: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    assert real_path(str(tmp_path / "link")) == os.path.realpath(tmp_path / "there")
    assert real_path(str(tmp_path / "missing")) == os.path.realpath(tmp_path / "missing")
