"""LibCGI's shim: the environment of a call, recovery from faults, and the build."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.libcgi_libraries import HEADER, SOURCES, compile_libraries
from support.server import ROOT, run_command

from ewe.features.libcgi.libraries import Libraries
from ewe.libcgi import build

pytestmark = pytest.mark.starts_processes  # a compiler
THREADS = 8
CALLS = 10_000


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the compiled libraries."""
    return compile_libraries(tmp_path_factory.mktemp("libcgi"))


@pytest.fixture
def libraries(built: Path, monkeypatch: pytest.MonkeyPatch) -> Libraries:
    """The libraries, called in this process, which passes for another user's than root's."""
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    return Libraries(str(built), 30.0, follows_links=True)


def test_no_call_sees_the_environment_of_another(
    libraries: Libraries, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 threads make 10,000 calls at once, of a library with the header and of one without: no foreign value."""
    monkeypatch.setenv("HOME_OF_TEST", "here")
    monkeypatch.setenv("HTTP_OF_TEST", "foreign")
    before = dict(os.environ)
    own, plain = str(built / "contract.so"), str(built / "plain.so")

    def calls(thread: int) -> int:
        for number in range(CALLS // THREADS // 2):
            value = f"{thread}-{number}"
            block = f"QUERY_STRING=env=HTTP_X\0HTTP_X={value}\0\0".encode()
            output = libraries.call(own, block, b"REMOTE_ADDR=1.2.3.4\0\0", None)
            assert output == f"Content-Type: text/plain\n\n{value}".encode()
            block = f"QUERY_STRING={value}\0\0".encode()
            output = libraries.call(plain, block, f"REMOTE_ADDR={value}\0\0".encode(), None)
            assert output == f"Content-Type: text/plain\n\n{value} {value} {value} process -".encode()
        return number + 1

    with ThreadPoolExecutor(THREADS) as threads:
        assert sum(threads.map(calls, range(THREADS))) == CALLS // 2
    assert dict(os.environ) == before
    printed = subprocess.run(["env"], capture_output=True, text=True, env=None, check=True).stdout
    assert "HOME_OF_TEST=here" in printed and "QUERY_STRING=" not in printed


@pytest.mark.needs("gcc")
@pytest.mark.parametrize(
    ("program", "calls", "printed"),
    [
        ("environment_reader", CALLS, "0\n"),
        ("environment_text", CALLS // 10, "0\n"),
        ("environment_setenv", 0, "Europe/Berlin -\n" * 3),
    ],
)
def test_the_environment_of_the_process_stays(tmp_path: Path, program: str, calls: int, printed: str) -> None:
    """Other threads find the process's variables at any time: getenv() takes no lock, and may still read the list
    of a call that has ended. None takes a part of a value for a variable. A library's setenv() frees no list of the
    process.

    malloc() of these programs overwrites memory that is freed, so that a read of it does not go unnoticed.
    """
    sources = (SOURCES / f"{program}.c", build.DIRECTORY / "environment.c")
    build.compile_c(tmp_path / program, sources, (HEADER,))
    environment = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.perturb=165"}
    ended = subprocess.run(
        [tmp_path / program, str(calls)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, printed)


@pytest.mark.parametrize("library", ["writes.so", "plain-writes.so"])
def test_a_library_may_write_into_its_variables(libraries: Libraries, tmp_path: Path, library: str) -> None:
    """strtok() does. Requests with equal heads share their variables, and each call finds them unchanged."""
    options = () if library == "writes.so" else ("-DPLAIN",)
    build.compile_c(tmp_path / library, (SOURCES / "writes.c",), ("-shared", HEADER, *options))
    request, connection = b"QUERY_STRING=a=1&b=2&c=3\0\0", b"REMOTE_ADDR=192.0.2.1&b\0\0"
    for _ in range(3):
        output = libraries.call(str(tmp_path / library), request, connection, None)
        assert output == b"Content-Type: text/plain\n\n3 2"
    assert (request.count(b"\0"), connection.count(b"\0")) == (2, 2)


OWN_FAULT = """
import ctypes, os, sys
from ewe.features.libcgi.libraries import Libraries
os.geteuid = lambda: 65534
libraries = Libraries({directory!r}, 30.0, follows_links=True)
library = {directory!r} + "/contract.so"
assert libraries.call(library, b"QUERY_STRING=count\\0\\0", b"\\0", None).endswith(b"1 1")
try:
    libraries.call(library, b"QUERY_STRING=crash\\0\\0", b"\\0", None)
except Exception as reason:
    print(reason.cause, flush=True)
{fault}
"""


@pytest.mark.parametrize(
    ("fault", "number"),
    [("ctypes.string_at(8)", signal.SIGSEGV), ("os.abort()", signal.SIGABRT)],
)
@pytest.mark.parametrize("handler", [True, False])
def test_a_fault_of_the_server_itself_ends_it(built: Path, fault: str, number: int, handler: bool) -> None:
    """The handlers take nothing but faults of libraries: Python's faulthandler gets the others, or the default."""
    code = OWN_FAULT.format(directory=str(built), fault=fault)
    options = ["-X", "faulthandler"] if handler else []
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        cwd=built, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "segmentation fault at address 0x10" in done.stdout
    assert done.returncode == -number, done.stderr
    assert ("Fatal Python error" in done.stderr) == handler


def test_a_call_that_waits_does_not_hold_up_python(libraries: Libraries, built: Path, tmp_path: Path) -> None:
    """The interpreter's lock is kept through a short call only."""
    go = tmp_path / "go"
    with ThreadPoolExecutor(1) as other:
        block = f"QUERY_STRING=wait={go}\0\0".encode()
        waiting = other.submit(libraries.call, str(built / "contract.so"), block, b"\0", None)
        notes = built / "notes"
        while not notes.exists() or "enter" not in notes.read_text():
            pass
        go.touch()  # this thread runs, or the library would wait until its limit
        assert waiting.result() == b"Content-Type: text/plain\n\nwaited"


@pytest.mark.needs("gcc")
def test_the_shim_is_built_once_for_each_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "TARGET", tmp_path / "target")
    monkeypatch.setenv("CC", "/nowhere/cc")
    with pytest.raises(build.BuildError, match="there is no C compiler '/nowhere/cc': install gcc"):
        build.build()
    monkeypatch.setenv("CC", "cc -DNOTHING")
    first = build.build()
    made = first.stat().st_mtime_ns
    assert build.build() == first and first.stat().st_mtime_ns == made
    monkeypatch.setattr(build, "OPTIONS", (*build.OPTIONS, "-DOTHER"))
    second = build.build()
    assert second != first and not first.exists() and [*second.parent.iterdir()] == [second]
    monkeypatch.setattr(build, "OPTIONS", (*build.OPTIONS, "-DOTHER2", "-no-such-option"))
    with pytest.raises(build.BuildError, match=r"cc failed: .*no-such-option"):
        build.build()
    assert [*second.parent.iterdir()] == [second]


@pytest.mark.needs("gcc")
def test_the_command_builds_it(tmp_path: Path) -> None:
    done = run_command(tmp_path, "--build-libcgi", seconds=120)
    assert done.returncode == 0 and str(build.shim_file()) in done.stdout
