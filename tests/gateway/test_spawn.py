"""How a program is started: by posix_spawn, and by subprocess where the C library is too old. Both are the same."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ewe.gateway import spawn

pytestmark = pytest.mark.starts_processes
WAYS = [spawn.start, spawn.start_by_subprocess]
SHELL = "/bin/sh"


def result(
    start: Callable[..., int],
    command: list[str | bytes],
    directory: Path,
    environment: Mapping[bytes, bytes] | None = None,
) -> tuple[bytes, int]:
    """Return what a program writes to standard output and error, and how it ended."""
    reader, writer = os.pipe()
    with open(reader, "rb") as output:
        with open(writer, "wb"), open("/dev/null", "rb") as null:
            pid = start(command, environment or {}, str(directory), (null.fileno(), writer, writer))
        written = output.read()
    return written, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_both_ways_are_there() -> None:
    assert spawn.SPAWNER is not None


@pytest.mark.parametrize("start", WAYS)
def test_what_a_program_gets(start: Callable[..., int], tmp_path: Path) -> None:
    script = 'printf "%s|" "$0" "$1" "$NAME"; pwd; ps -o pgid= -p $$ | tr -d " "; echo $$; ls /proc/self/fd | wc -l'
    os.set_inheritable(inherited := os.open("/dev/null", os.O_RDONLY), True)
    command: list[str | bytes] = [SHELL, "-c", script, b"\xff\xfe", "two words"]
    written, status = result(start, command, tmp_path, {b"NAME": b"\xc3\xbc=1\n2", b"PATH": b"/bin:/usr/bin"})
    os.close(inherited)
    first, group, pid, descriptors = written.rsplit(b"\n", 4)[:4]
    assert first == b"\xff\xfe|two words|\xc3\xbc=1\n2|" + os.fsencode(tmp_path)
    assert group == pid
    assert descriptors == b"4"  # 0, 1, 2, and the directory that ls reads
    assert status == 0


@pytest.mark.parametrize("number", [signal.SIGPIPE, signal.SIGXFSZ])
@pytest.mark.parametrize("start", WAYS)
def test_signals_that_python_ignores(
    start: Callable[..., int], tmp_path: Path, number: signal.Signals
) -> None:
    assert signal.getsignal(number) == signal.SIG_IGN
    command: list[str | bytes] = [SHELL, "-c", f"kill -{number.name[3:]} $$; echo alive"]
    assert result(start, command, tmp_path) == (b"", -number)


@pytest.mark.parametrize("start", WAYS)
def test_what_cannot_be_started(start: Callable[..., int], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("echo no line says which shell")
    gc.collect()  # descriptors that earlier tests have forgotten
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        for command, directory, error in (
            (["/no/such/program"], tmp_path, FileNotFoundError),
            ([str(text)], tmp_path, PermissionError),
            ([SHELL], tmp_path / "missing", FileNotFoundError),
            ([SHELL, "a\0b"], tmp_path, ValueError),
            ([SHELL, "a" * 200_000], tmp_path, OSError),  # MAX_ARG_STRLEN
        ):
            with pytest.raises(error):
                result(start, command, directory)
    assert len(os.listdir("/proc/self/fd")) < before + 10
    text.chmod(0o755)
    with pytest.raises(OSError, match="Exec format error"):
        result(start, [str(text)], tmp_path)
