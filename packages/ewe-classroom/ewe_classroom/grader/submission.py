"""A submission in a separate directory: the files of the work, the files that come with the lab, and the build.

    what was handed in ── --work server.c ─────────┐
    (anything may lie beside it)                   ├─▶ /tmp/ewe-work-…/  ── --build ─▶ ./server
    the lab's own files ── --given conversation.c ─┘        as the server's account

A grading platform gives the grader a directory that a student has filled. A build tool trusts such a directory:
make reads GNUmakefile before the Makefile of the lab, go reads go.work, and a link in place of a file leads
anywhere. The grader therefore copies only the files that the lab names. It builds the copy as the account that the
server runs as, so a build can do no more than the server could.

What can go wrong: a file is missing, is a link, or is huge; the build fails, or never ends. Each is one line, and
the reason in the report.

Read next: sandbox.py, which has the account and its limits; ../course/packs.py, which writes the command lines.
"""

from __future__ import annotations

import os
import shlex
import signal
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ewe.config.messages import ConfigError
from ewe.scratch import Scratch
from ewe_classroom.grader import processes
from ewe_classroom.grader.sandbox import Account, Limits, closed_to_others, end_account
from ewe_classroom.grader.subject import ROUNDS, WALKS, BadSubject

MAX_FILE_BYTES = 32 << 20
BUILD_S = 120.0
SHOWN_CHARACTERS = 300  # of what the build has said


class Submission:
    """The copy of a submission. path: its directory; close() removes it."""

    def __init__(self, source: Path, limits: Limits, place: str | None) -> None:
        """Make an empty directory that belongs to the server's account. source: where the student's files are.

        place: the directory to make it in, None for the usual one for temporary files.
        """
        self.source, self.limits = source, limits
        self.scratch = Scratch("ewe-work-", place)
        closed_to_others(Path(self.scratch.path), limits.account)
        self.path = Path(self.scratch.path) / "work"
        # Go uses no go.mod that lies in TMPDIR itself.
        self.temporary = Path(self.scratch.path) / "tmp"
        for directory in (self.path, self.temporary):
            directory.mkdir()
            directory.chmod(0o755)
            if limits.account is not None:
                os.chown(directory, limits.account.uid, limits.account.gid)

    def take(self, names: Sequence[str]) -> None:
        """Copy files of the submission.

        Raises BadSubject for a bad file, ConfigError for a name with a directory.
        """
        for name in names:
            if name != os.path.basename(name) or name in ("", ".", ".."):
                raise ConfigError(f"--work: {name!r} is not the name of a file; leave out its directory")
            copy(self.source / name, self.path / name)

    def add_given(self, directory: Path) -> None:
        """Copy the files that come with the lab; they replace files of the submission. Raises ConfigError."""
        try:
            for file in sorted(directory.iterdir()):
                copy(file, self.path / file.name)
        except (OSError, BadSubject) as reason:
            raise ConfigError(f"--given: {reason}") from None

    def left_out(self) -> list[str]:
        """Return the names of the files that were handed in and are not graded."""
        try:
            return sorted({each.name for each in self.source.iterdir()} - set(os.listdir(self.path)))
        except OSError:
            return []

    def build(self, command: str) -> None:
        """Run the build as the server's account; end every process that it leaves.

        Raises BadSubject if the build fails, ConfigError if there is no such program.
        """
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"--build: {error}; quote it as a shell would") from None
        if not words:
            raise ConfigError("--build is empty; give the command that builds the server: 'make -f Makefile'")
        before = set(processes.children_of_grader())
        variables = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        # A compiler's processor time and files have limits of the server's kind, too.
        limits = replace(self.limits, cpu_s=int(BUILD_S), file_bytes=256 << 20)
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    words, cwd=self.path, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    env={**variables, "HOME": str(self.temporary), "TMPDIR": str(self.temporary)},
                    start_new_session=True, preexec_fn=limits,
                )  # fmt: skip
            except (OSError, subprocess.SubprocessError) as error:
                raise ConfigError(f"--build: {words[0]} cannot be run: {error}") from None
            try:
                status = process.wait(BUILD_S)
            except subprocess.TimeoutExpired:
                raise BadSubject(f"{command}: the build did not end within {BUILD_S:.0f} s") from None
            finally:
                end_all(process, before, limits.account)
            if status:
                how = f"status {status}" if status > 0 else f"signal {signal.Signals(-status).name}"
                output.seek(0)
                raise BadSubject(f"{command}: the build ended with {how}: {first_error(output.read(65536))}")

    def close(self) -> None:
        """Remove the copy."""
        self.scratch.close()


def copy(source: Path, target: Path) -> None:
    """Copy a regular file, and no link, device or FIFO; keep whether it is executable. Raises BadSubject."""
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as reason:
        link = " (a link is not followed)" if source.is_symlink() else ""
        raise BadSubject(f"{source.name}: {reason.strerror}{link}; hand in a file of this name") from None
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        os.close(descriptor)
        raise BadSubject(f"{source.name}: not a file; hand in a file of this name")
    with open(descriptor, "rb") as file:
        text = file.read(MAX_FILE_BYTES + 1)
    if len(text) > MAX_FILE_BYTES:
        raise BadSubject(f"{source.name}: larger than {MAX_FILE_BYTES >> 20} MB, which is the limit")
    target.unlink(missing_ok=True)
    target.write_bytes(text)
    target.chmod(0o755 if about.st_mode & 0o100 else 0o644)


def end_all(process: subprocess.Popen[bytes], before: set[int], account: Account | None) -> None:
    """Kill and reap the build and every process that it has left: the grader adopts orphans (sandbox.py)."""
    met: set[int] = set()
    for number in range(ROUNDS):
        found = [pid for pid in processes.children_of_grader() if pid not in before]
        if number >= WALKS and not met.issuperset(found):
            end_account(account)
        met.update(found)
        for pid in processes.family(found):
            processes.kill(pid)
        for pid in found:
            if pid != process.pid:
                try:
                    os.waitpid(pid, 0)
                except ChildProcessError:
                    pass
        process.wait()
        if not found:
            return


def first_error(output: bytes) -> str:
    """Return the line of a build's output that names the fault: the first with "error", else the last one."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    found = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no output")
    return found[:SHOWN_CHARACTERS]
