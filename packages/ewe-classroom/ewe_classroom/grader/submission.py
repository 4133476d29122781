"""Copy a submission to a separate directory, add the lab's own files, and build it there.

    student's directory ── --work server.c ────────┐
    (may contain any other file)                   ├─▶ /tmp/ewe-work-…/  ── --build ─▶ ./server
    the lab's own files ── --given conversation.c ─┘        as the server's account

A grading platform gives the grader a directory that a student has filled. A build tool trusts such a directory:
make reads GNUmakefile before the Makefile of the lab, go reads go.work, and a symbolic link may name any file. The
grader therefore copies only the files that the lab names. A student may have sent them within a folder: the grader
takes the one folder that has all of them. It runs the build as the server's account, so a build has no more rights
than the server.

Possible failures: a file is missing, is a symbolic link, or is huge; the build fails, never ends, or fills the
disk. The message is one line, and the report gives it as the reason.

Read next: sandbox.py, which defines the account and its limits; ../course/packs.py, which writes the command lines.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ewe.config.messages import ConfigError
from ewe.scratch import Scratch
from ewe_classroom.grader import go_cache, processes
from ewe_classroom.grader.located import files
from ewe_classroom.grader.sandbox import SandboxLimits, close_to_others, disk_bytes_of, end_all
from ewe_classroom.grader.sources import MAX_SOURCE_BYTES, NotRegular, open_regular
from ewe_classroom.grader.subject import (
    DISK_CHECK_EVERY_S,
    FAULTS_OF_MACHINE,
    MAX_DISK_BYTES,
    BadSubject,
)

MAX_PYTHON_BYTES = 2 << 20  # the grader itself parses these files, and needs a hundred times as much memory
BUILD_TIMEOUT_S = 120.0
MAX_BUILD_BYTES = 2 << 30  # memory of one process of the build
MAX_SHOWN_CHARS = 300  # of the build's output
MAX_SHOWN_FOLDERS = 3  # in the message about a file that several folders have


class Submission:
    """The copy of a submission. path: its directory; close() removes it."""

    def __init__(self, source: Path, limits: SandboxLimits, parent: str | None) -> None:
        """Make an empty directory that belongs to the server's account.

        source: the directory of the student's files. parent: the parent of the new directory; None: the default
        directory for temporary files.
        """
        self.source, self.limits = source, limits
        self.scratch = Scratch("ewe-work-", parent)
        close_to_others(Path(self.scratch.path), limits.account)
        self.path = Path(self.scratch.path) / "work"
        # TMPDIR is beside the work, because Go ignores a go.mod directly in TMPDIR.
        self.temporary = Path(self.scratch.path) / "tmp"
        for directory in (self.path, self.temporary):
            directory.mkdir()
            directory.chmod(0o755)
            if limits.account is not None:
                os.chown(directory, limits.account.uid, limits.account.gid)

    def take(self, names: Sequence[str]) -> None:
        """Copy files of the submission. If `source` has none of them, `source` becomes its folder that has all.

        Raises BadSubject for an unsuitable or missing file, and ConfigError for a name with a directory.
        """
        for name in names:
            if name != os.path.basename(name) or name in ("", ".", ".."):
                raise ConfigError(
                    f"--work, --own: {name!r} is not the name of a file; leave out its directory"
                )
        self.source = folder_of(self.source, names)
        for name in names:
            copy(self.source / name, self.path / name)

    def take_own(self, names: Sequence[str]) -> list[str]:
        """Copy the student's files that are there, of those that may replace the lab's; return their names.

        Raises BadSubject, ConfigError.
        """
        # lexists() is true for a symbolic link to nothing, too: take() then says why it refuses the link.
        handed_in = [name for name in names if os.path.lexists(self.source / name)]
        self.take(handed_in)
        return handed_in

    def add_given(self, directory: Path, own: Sequence[str] = ()) -> None:
        """Copy the lab's own files. They replace files of the submission, except those in `own`.

        Raises ConfigError.
        """
        try:
            for file in sorted(directory.iterdir()):
                if file.name not in own:
                    copy(file, self.path / file.name)
        except (OSError, BadSubject) as reason:
            raise ConfigError(f"--given: {reason}") from None

    def left_out(self) -> list[str]:
        """Return the names of the student's files that are not graded, sorted."""
        try:
            return sorted({each.name for each in self.source.iterdir()} - set(os.listdir(self.path)))
        except OSError:
            return []

    def build(self, command: str) -> None:
        """Run the build as the server's account; end every leftover process of the build.

        Raises BadSubject if the build fails, ConfigError if its program cannot be run, and OSError if this machine
        has no process, memory or descriptor for it.
        """
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"--build: {error}; quote it as a shell would") from None
        if not words:
            raise ConfigError("--build is empty; give the command that builds the server: 'make -f Makefile'")
        before = set(processes.children_of_grader())
        variables = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        if "go" in words:
            # Before the time limit begins: the first build also builds Go's library.
            variables |= go_cache.variables(self.limits.account, self.temporary)
        # A compiler gets limits, too, but larger files than a server. A source may make it use any memory.
        limits = replace(
            self.limits, cpu_s=int(BUILD_TIMEOUT_S), file_bytes=256 << 20, data_bytes=MAX_BUILD_BYTES
        )
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    words, cwd=self.path, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    env={**variables, "HOME": str(self.temporary), "TMPDIR": str(self.temporary)},
                    start_new_session=True, preexec_fn=limits,
                )  # fmt: skip
            # Not SubprocessError, by which SandboxLimits fails: it is a fault of the grader, and not of the command
            # line. ConfigError would end the grading of a whole class.
            except OSError as error:
                if error.errno in FAULTS_OF_MACHINE:
                    raise
                raise ConfigError(f"--build: {words[0]} cannot be run: {error}") from None
            try:
                status = self.wait_for_build(process, command)
            finally:
                end_all(process, before, limits.account)
            if status:
                how = f"status {status}" if status > 0 else f"signal {processes.signal_name(-status)}"
                output.seek(0)
                raise BadSubject(f"{command}: the build ended with {how}: {first_error(output.read(65536))}")

    def wait_for_build(self, process: subprocess.Popen[bytes], command: str) -> int:
        """Return the exit status of a build. Raises BadSubject if it takes too long, or too much of the disk.

        On a full disk every check of every submission would fail. The files of an account that others use, too, may
        be older than the build, and are not counted.
        """
        account = self.limits.account
        deadline = time.monotonic() + BUILD_TIMEOUT_S
        while (left_s := deadline - time.monotonic()) > 0:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(min(left_s, DISK_CHECK_EVERY_S))
            if account is not None and account.is_own:
                # With leftover processes of the build, which the grader has adopted.
                pids = processes.family(processes.children_of_grader())
                used_bytes = disk_bytes_of(account, Path(self.scratch.path), pids)
                if used_bytes > MAX_DISK_BYTES:
                    raise BadSubject(
                        f"{command}: its files take {used_bytes >> 20} MB of the disk; the limit is"
                        f" {MAX_DISK_BYTES >> 20} MB"
                    )
        raise BadSubject(f"{command}: the build did not end within {BUILD_TIMEOUT_S:.0f} s")

    def close(self) -> None:
        """Remove the copy."""
        self.scratch.close()


def folder_of(top: Path, names: Sequence[str]) -> Path:
    """Return the directory of a submission: `top`, or the one folder within it that has all files of the names.

    A missing file is a fault of copy(), which names it. Raises BadSubject if several folders have the files, or if
    a folder has only some of them.
    """
    # lexists() is true for a symbolic link to nothing, too: copy() then says why it refuses the link.
    if not names or any(os.path.lexists(top / name) for name in names):
        return top
    holders = {name: [path.parent for path in files(top, name)] for name in names}
    whole = [folder for folder in holders[names[0]] if all(folder in holders[name] for name in names)]
    if len(whole) == 1:
        return whole[0]
    if whole:
        shown = ", ".join(str(folder.relative_to(top)) for folder in whole[:MAX_SHOWN_FOLDERS])
        raise BadSubject(f"there are {len(whole)} folders with {names[0]}: {shown}; hand in one of them")
    folder = next((folder for folders in holders.values() for folder in folders), None)
    if folder is not None:
        lacking = next(name for name in names if folder not in holders[name])
        raise BadSubject(
            f"cannot read {lacking}: the folder {folder.relative_to(top)} has no such file; hand in all files of"
            " the work there"
        )
    return top


def copy(source: Path, target: Path) -> None:
    """Copy a regular file and its execute bit. Raises BadSubject for any other file, also if it is too large."""
    try:
        opened = open_regular(source)
    except NotRegular:
        raise BadSubject(f"{source.name}: not a file; hand in a file of this name") from None
    except OSError as reason:
        link = " (the grader follows no symbolic link)" if source.is_symlink() else ""
        raise BadSubject(
            f"cannot read {source.name}: {reason.strerror}{link}; hand in a file of this name"
        ) from None
    max_bytes = MAX_PYTHON_BYTES if source.suffix == ".py" else MAX_SOURCE_BYTES
    with opened as file:
        is_executable = os.fstat(file.fileno()).st_mode & 0o100
        text = file.read(max_bytes + 1)  # one byte more, to see that the file is too large
    if len(text) > max_bytes:
        raise BadSubject(f"{source.name}: larger than {max_bytes >> 20} MB, which is the limit")
    target.unlink(missing_ok=True)
    target.write_bytes(text)
    target.chmod(0o755 if is_executable else 0o644)


def first_error(output: bytes) -> str:
    """Return the most useful line of a build's output: the first line with "error", else the last line."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    found = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no output")
    return found[:MAX_SHOWN_CHARS]
