"""Temporary directories whose owner was killed are removed by the next start, and no others (ewe/scratch.py)."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys
from pathlib import Path

import pytest

from ewe.scratch import BATCH_ENTRIES, LOCK, Scratch, remove

PREFIX = "ewe-try-"

pytestmark = pytest.mark.starts_processes


def killed_owner(place: Path) -> Path:
    """Return the directory of a process that was killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        scratch = Scratch(PREFIX, str(place))
        (Path(scratch.path) / "inner").mkdir()
        (Path(scratch.path) / "inner" / "file").write_text("left")
        os.write(writer, scratch.path.encode())
        signal.pause()
    path = Path(os.read(reader, 4096).decode())
    os.close(reader)
    os.close(writer)
    assert path.is_dir()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return path


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    left = killed_owner(tmp_path)
    mine = Scratch(PREFIX, str(tmp_path))
    assert not left.exists()
    other = Scratch(PREFIX, str(tmp_path))
    assert Path(mine.path).is_dir(), "its owner runs"
    for each in (mine, other, other):
        each.close()
    assert not list(tmp_path.iterdir())


def test_what_is_not_certainly_left_stays(tmp_path: Path) -> None:
    """A directory without a lock, a link in place of one or of the directory, and another prefix."""
    left = killed_owner(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    left.rename(elsewhere)
    (tmp_path / f"{PREFIX}link").symlink_to(elsewhere)
    for name in ("young", "linked", "pipe"):
        (tmp_path / f"{PREFIX}{name}").mkdir()
    (tmp_path / f"{PREFIX}linked" / LOCK).symlink_to(elsewhere / LOCK)
    os.mkfifo(tmp_path / f"{PREFIX}pipe" / LOCK)
    before = sorted(tmp_path.rglob("*"))
    Scratch(PREFIX, str(tmp_path)).close()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_in_a_directory_that_is_removed_leads_nowhere(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    left = killed_owner(tmp_path)
    (left / "inner" / "link").symlink_to(precious)
    Scratch(PREFIX, str(tmp_path)).close()
    assert not left.exists() and (precious / "file").read_text() == "kept"


def test_a_directory_is_removed_however_deep_and_wide_it_is(tmp_path: Path) -> None:
    """A submission may make it so; a start that fails at it would fail again and again."""
    left = killed_owner(tmp_path)
    at = os.open(left / "inner", os.O_RDONLY)
    for _ in range(2 * sys.getrecursionlimit()):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(os.open("file", os.O_CREAT, dir_fd=at))
        os.close(at)
        at = below
    for number in range(2 * BATCH_ENTRIES):
        os.close(os.open(f"file {number}", os.O_CREAT, dir_fd=at))
    os.close(at)
    Scratch(PREFIX, str(tmp_path)).close()
    assert not list(tmp_path.iterdir())


def test_a_directory_with_the_name_of_a_lock_is_removed(tmp_path: Path) -> None:
    (tmp_path / "top" / LOCK / "inner").mkdir(parents=True)
    (tmp_path / "top" / LOCK / "file").write_text("left")
    remove(str(tmp_path / "top"))
    assert not list(tmp_path.iterdir())


@pytest.mark.needs("root")
def test_what_belongs_to_another_account_stays(tmp_path: Path) -> None:
    left = killed_owner(tmp_path)
    os.chown(left / LOCK, 65534, 65534)
    Scratch(PREFIX, str(tmp_path)).close()
    assert left.is_dir()


def test_a_directory_that_cannot_be_locked_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later start would remove a directory without a lock."""

    def fails(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", fails)
    descriptors = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="no locks"):
        Scratch(PREFIX, str(tmp_path))
    assert not list(tmp_path.iterdir())
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)
