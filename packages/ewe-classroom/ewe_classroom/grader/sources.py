"""The source files of a program under test, where they lie beside it: for checks that build the program again.

    --command './server {port} {root} {workers}'      the program: the first word that is a file of machine code
                 │
                 └─ its directory has server.c    ─▶ language "c"
                    Go has linked it, and *.go    ─▶ language "go"
                    neither                       ─▶ "": the checks of one language do not apply

Possible failures: none. A directory that cannot be read has no sources.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ELF_MAGIC = b"\x7fELF"
BUILD_INFO = b"\xff Go buildinf:"  # a mark in each program that the Go tools have linked (debug/buildinfo)
BUILD_FILE_PATTERNS = {"c": ("*.c", "*.h", "Makefile"), "go": ("*.go", "go.mod", "go.sum")}
READ_BYTES = 1 << 20  # of one read of a program
# The most bytes of a source that the grader reads, or copies (submission.py).
MAX_SOURCE_BYTES = 32 << 20


class NotRegular(OSError):
    """A path leads to a directory, a device or a FIFO, and not to a regular file."""


@dataclass(frozen=True)
class SourceFiles:
    """The sources of a program. word_index: the place of the program among the words of its command, from 0 on."""

    language: str
    program: Path
    word_index: int

    @property
    def names(self) -> list[str]:
        """Return the names of the files beside the program that a build needs, sorted."""
        found = {
            file.name
            for name in BUILD_FILE_PATTERNS[self.language]
            for file in self.program.parent.glob(name)
        }
        return sorted(found)

    def total_bytes(self) -> int:
        """Return the size of all files together."""
        return sum((self.program.parent / name).lstat().st_size for name in self.names)

    def digest(self) -> str:
        """Return the SHA-256 of the names of all files and of their first MAX_SOURCE_BYTES bytes together."""
        digest = hashlib.sha256()
        left_bytes = MAX_SOURCE_BYTES
        for name in self.names:
            try:
                text = read_regular(self.program.parent / name, left_bytes)
            except OSError as reason:
                # A link or a FIFO: Submission.take() refuses it.
                text = str(reason.errno).encode()
            left_bytes = max(0, left_bytes - len(text))
            # With the size, two files can never give the same bytes as one file with the contents of both.
            digest.update(os.fsencode(f"{name}\0{len(text)}\0") + text)
        return digest.hexdigest()


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file. Raises NotRegular for a directory, a device or a FIFO, OSError also for a symbolic link.

    A student's program or build may write in the directory of the file, and the grader may be root. Through a link,
    the student's report would quote any file of the machine. A FIFO would keep the grader waiting without a limit.
    """
    # The file is opened before it is examined, so that no other process can replace it in between. O_NONBLOCK: the
    # opening of a FIFO would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegular(errno.EINVAL, "not a regular file", str(path))
    return open(descriptor, "rb")


def read_regular(path: Path, max_bytes: int = MAX_SOURCE_BYTES) -> bytes:
    """Return the first `max_bytes` bytes of a regular file. Raises OSError as open_regular() does."""
    with open_regular(path) as file:
        return file.read(max_bytes)


def is_go_program(path: Path) -> bool:
    """Return whether Go built a program; False if the file cannot be read."""
    try:
        return has_build_info(path)
    except OSError:
        return False


def has_build_info(path: str | Path) -> bool:
    """Return whether a file has the mark of Go's linker (BUILD_INFO). Raises OSError."""
    # A Go program has many megabytes, and only those before the mark are read. Not by mmap(): if a submission
    # shortens the file meanwhile, SIGBUS would end the grader.
    before = b""  # the end of the bytes before: the mark may lie across two reads
    with open(path, "rb") as file:
        while piece := file.read(READ_BYTES):
            if BUILD_INFO in before + piece:
                return True
            before = piece[1 - len(BUILD_INFO) :]
    return False


def find_sources(command: Sequence[str], directory: Path) -> SourceFiles | None:
    """Return the sources beside the program of a command; None if there are none, or in another language.

    directory: the current directory of the command.
    """
    for index, word in enumerate(command):  # the first word may be an interpreter or a wrapper such as `env`
        program = directory / (shutil.which(word) or word) if word else directory
        if not is_machine_code(program):
            continue
        if is_go_program(program):
            return SourceFiles("go", program, index) if any(program.parent.glob("*.go")) else None
        return SourceFiles("c", program, index) if os.path.isfile(program.with_suffix(".c")) else None
    return None


def is_machine_code(path: Path) -> bool:
    """Return whether a file is a program of machine code; False if it cannot be read."""
    # The opening of a FIFO would wait for a writer. os.path.isfile() is false for a name that is too long.
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(len(ELF_MAGIC)) == ELF_MAGIC
    except OSError:
        return False


def language_of(names: Sequence[str]) -> str:
    """Return the language of a submission by the names of its files: "python", "c", "go" or ""."""
    for ending, language in ((".py", "python"), (".c", "c"), (".go", "go")):
        if any(name.endswith(ending) for name in names):
            return language
    return ""
