"""The host of LibCGI libraries (ewe/libcgi/host.c) by itself: its answer to each fault of a library."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engines import PatientDriver
from support.libcgi import DOES, END, INIT, NONE, PLAIN, SAMPLES, SECOND, compiled, engine
from support.proc import children_of
from support.server import wait_until

from ewe.libcgi import samples

pytestmark = pytest.mark.starts_processes
OK = b"Content-Type: text/plain\n\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the libraries of these tests."""
    directory = tmp_path_factory.mktemp("libraries")
    sources = {"does": DOES, "init": INIT, "end": END, "none": NONE, "plain": PLAIN, "second": SECOND}
    for name, text in sources.items():
        compiled(directory, name, text)
    return directory


class Host(PatientDriver):
    """A running host."""

    def __init__(self, libraries: Path) -> None:
        super().__init__([engine()])
        self.libraries = libraries

    def does(self, query: str, body: bytes = b"", **environment: str) -> tuple[bytes, bytes, int | None]:
        """Have the library do something."""
        answer = self.ask(
            str(self.libraries / "does.so"), environment={"QUERY_STRING": query, **environment}, body=body
        )
        return answer.output, answer.errors, answer.status


@pytest.fixture
def host(built: Path) -> Iterator[Host]:
    with Host(built) as started:
        yield started


def status_of(host: Host) -> int:
    """Return how the host's process ended."""
    _, status = os.waitpid(host.pid, 0)
    host.pid = 0
    return os.waitstatus_to_exitcode(status)


def test_a_library_stays(host: Host) -> None:
    """The library stays in one process with one state, and each request has its own variables."""
    for call in (b"1", b"2", b"3"):
        output, errors, status = host.does("", VALUE=f"value {call.decode()}")
        number, pid, _, value = output.removeprefix(OK).split(b" ", 3)
        assert (number, int(pid), value, errors, status) == (call, host.pid, b"value " + call, b"", 0)
    assert host.does("")[0].endswith(b" -")


def test_a_library_without_the_header_finds_its_variables(host: Host) -> None:
    for value in ("one", "two\nlines\t50%25"):
        answer = host.ask(str(host.libraries / "plain.so"), environment={"VALUE": value})
        assert answer.output == OK + value.encode()


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("segv", b"segmentation fault"),
        ("abort", b"abort()"),
        ("divide", b"arithmetic fault"),
        ("overflow", b"segmentation fault"),
        ("exit", b"exit(0)"),
        ("loop", b"longer than its limit"),
    ],
)
def test_a_fault_before_output_is_500_and_ends_the_host(host: Host, query: str, says: bytes) -> None:
    output, errors, status = host.does(query, LIBCGI_TIMEOUT_MS="300")
    assert output.startswith(b"Status: 500 ") and status is None
    assert b"500: " in errors and says in errors
    assert status_of(host) == 1  # by itself: X-Switch then takes the answer as whole, and does not ask again


def test_a_short_limit_after_a_long_one(host: Host, tmp_path: Path) -> None:
    """The time of one library must not keep the watchdog from looking at the next one's."""
    other = shutil.copy(host.libraries / "does.so", tmp_path / "other.so")
    assert host.ask(str(other), environment={"QUERY_STRING": "nap"}).status == 0  # its limit is a day
    output, errors, _ = host.does("loop", LIBCGI_TIMEOUT_MS="300")
    assert output.startswith(b"Status: 500 ") and b"longer than its limit" in errors


def test_a_library_that_destroys_the_heap_ends_the_host(host: Host) -> None:
    """After this fault the behaviour is undefined. The host may answer 500 or die, but must not continue."""
    output, _, status = host.does("heap", LIBCGI_TIMEOUT_MS="300")
    assert status is None and not output.startswith(OK)


@pytest.mark.parametrize("query", ["segv", "abort", "exit", "overflow", "loop"])
def test_a_fault_after_output_cannot_pass_for_a_whole_answer(host: Host, query: str) -> None:
    output, errors, status = host.does(f"late-{query}", LIBCGI_TIMEOUT_MS="300")
    assert output.startswith(OK + b"x") and status is None
    assert b"the answer is cut: " in errors
    assert status_of(host) == -9  # a signal: X-Switch breaks the answer off


@pytest.mark.parametrize("query", ["silent", "no-head", "half-head"])
def test_a_malformed_head_is_500_and_unloads_the_library(host: Host, query: str) -> None:
    """LibCGI paper, section 4.1. Nothing of the output is sent, and the host goes on."""
    assert host.does("")[0].startswith(OK + b"1 ")
    output, errors, status = host.does(query)
    assert output.startswith(b"Status: 500 ") and b"xxx" not in output and status == 1
    assert b"it writes no CGI head" in errors
    assert host.does("")[0].startswith(OK + b"1 ")  # loaded again: its count begins again


def test_a_fault_in_initfunc_or_terminatefunc(host: Host, built: Path, tmp_path: Path) -> None:
    library = tmp_path / "end.so"
    shutil.copy(built / "end.so", library)
    assert host.ask(str(library)).output == OK + b"first"
    shutil.copy(built / "second.so", tmp_path / "new")
    (tmp_path / "new").rename(library)
    answer = host.ask(str(library))
    assert answer.output == OK + b"second"  # the changed library, and its predecessor's fault did no harm
    assert b"it terminates" in answer.errors and b"terminatefunc(): abort()" in answer.errors
    answer = host.ask(str(built / "init.so"))
    assert answer.output.startswith(b"Status: 500 ") and b"initfunc(): abort()" in answer.errors


def test_a_library_that_is_overwritten_while_it_is_loaded(host: Host, built: Path, tmp_path: Path) -> None:
    """`cp new.so x.so` writes into the file that a loader has mapped; the host has a copy."""
    library = tmp_path / "x.so"
    shutil.copy(built / "end.so", library)
    assert host.ask(str(library)).output == OK + b"first"
    shutil.copy(built / "second.so", library)
    assert host.ask(str(library)).output == OK + b"second"


@pytest.mark.parametrize("name", ["none.so", "missing.so", "none.c"])
def test_what_is_no_library(host: Host, name: str) -> None:
    answer = host.ask(str(host.libraries / name))
    assert answer.output.startswith(b"Status: 500 ") and answer.status == 1
    assert len(answer.errors.splitlines()) == 1
    assert host.does("")[2] == 0


def test_what_a_library_prints_is_for_the_log(host: Host) -> None:
    output, errors, status = host.does("print")
    assert b"to the log" not in output and errors == b"to the log\n" and status == 0


def test_a_library_finds_no_descriptor_of_x_switch_where_it_expects_one(host: Host) -> None:
    """0 reads nothing, 3 is closed: neither leads to X-Switch."""
    output, _, status = host.does("write")
    assert output.startswith(OK + b"1 ") and status == 0


def test_programs_in_the_background_leave_no_zombies(host: Host) -> None:
    """Each zombie would count towards the limit of the user's processes, until no engine of the user can fork."""
    for _ in range(10):
        assert host.does("background")[2] == 0
    wait_until(lambda: not children_of(host.pid), 20)


def test_the_child_of_a_library_that_forks_does_not_answer(host: Host) -> None:
    output, _, status = host.does("fork")
    assert b"child" not in output and status == 0
    assert host.does("")[0].startswith(OK + b"2 ")


def test_what_a_library_changes_of_the_process(host: Host) -> None:
    """The directory and the environment are each request's own; handlers are for the core to keep."""
    host.does("change")
    assert host.does("cwd")[0] == OK + os.fsencode(host.libraries)
    assert os.stat(host.libraries / "does.so").st_mode & 0o777 == 0o755
    output, _, status = host.does("segv")
    assert status is None and output[:12] in (b"", b"Status: 500 ")  # its own handler, or the core's


def test_bodies(host: Host) -> None:
    """With NUL bytes, of no byte, at the edges of the host's buffer, and large."""
    for length in (0, 1, 65535, 65536, 65537, 3_000_000):
        body = os.urandom(length)
        output, errors, status = host.does("echo", body)
        assert (output, errors, status) == (OK + body, b"", 0)


def test_more_libraries_than_stay_loaded(host: Host, built: Path, tmp_path: Path) -> None:
    for number in range(70):
        shutil.copy(built / "second.so", tmp_path / f"{number}.so")
    for number in (*range(70), 0, 69):
        assert host.ask(str(tmp_path / f"{number}.so")).output == OK + b"second"
    maps = Path(f"/proc/{host.pid}/maps").read_text()
    assert len({line.split()[-2] for line in maps.splitlines() if "memfd:" in line}) <= 64


def test_the_host_ends_with_its_sockets(host: Host) -> None:
    host.does("")
    assert host.ends(30)
    wait_until(lambda: not Path(f"/proc/{host.pid}/exe").exists(), 30)


def test_a_directory_that_may_not_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(source: Path, compiler: list[str]) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

    (tmp_path / "a.c").touch()
    monkeypatch.setattr(samples, "is_working", lambda compiler: True)
    monkeypatch.setattr(samples, "build", build)
    assert samples.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"{tmp_path}/a.c: [Errno 13] Permission denied")


@pytest.mark.parametrize(
    ("value", "command", "error"),
    [
        (" \t", ["cc"], ""),
        ("clang -m32", ["clang", "-m32"], ""),
        ('"clang', None, "the environment variable CC names no compiler: No closing quotation"),
    ],
)
def test_a_compiler_of_the_environment(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    value: str,
    command: list[str] | None,
    error: str,
) -> None:
    """A variable with spaces alone names none, and a quote without its end is one line."""
    used: list[list[str]] = []
    (tmp_path / "a.c").touch()
    monkeypatch.setenv("CC", value)
    monkeypatch.setattr(samples, "is_working", lambda compiler: True)
    monkeypatch.setattr(samples, "build", lambda source, compiler: used.append(compiler))
    assert samples.main([str(tmp_path)]) == bool(error)
    assert used == ([] if command is None else [command])
    assert capsys.readouterr().err == (f"{tmp_path}/a.c: {error}\n" if error else "")


def test_the_samples(host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All samples with a compiler here are built; the others are named. Each answers as its comment says."""
    sources = tmp_path / "libcgi-bin"
    shutil.copytree(SAMPLES, sources, ignore=shutil.ignore_patterns("*.so"))
    assert samples.main([str(sources)]) == 0
    left_out = capsys.readouterr().out
    asked = {
        "hello": ({"REMOTE_ADDR": "192.0.2.1"}, b"", b"Hello from C, 192.0.2.1!\n"),
        "bytes": ({}, b"", b"abcdefghijklmnopqrstuvwxyzab"),
        "form": (
            {},
            b"text=%3Cb%3E%26+c&name=%22Eve%22",
            b"&quot;Eve&quot;! You say:</p>\n<blockquote>&lt;b&gt;&amp; c<",
        ),
        "database": ({}, b"", b"Status: 503\nContent-Type: text/plain\n\nThe database gives no answer.\n"),
        "counter": ({}, b"", b"visit 1 of process "),
        "words": ({}, b"to be or not to be", b"4 different words\n    2 be\n    2 to\n    1 not\n"),
        "shout": ({}, "été".encode(), "ÉTÉ\n".encode()),
    }
    for source in sorted(sources.iterdir()):
        if source.suffix == ".so":
            continue
        library = source.with_suffix(".so")
        if not library.exists():
            assert f"*{source.suffix}: left out" in left_out
            continue
        environment, body, expected = asked[source.stem]
        answer = host.ask(str(library), environment=environment, body=body)
        assert expected in answer.output and answer.status == 0, answer
    for query in ("100000", "1"):
        answer = host.ask(str(sources / "bytes.so"), environment={"QUERY_STRING": query})
        assert len(answer.output.partition(b"\n\n")[2]) == int(query)
    wrong = host.ask(str(sources / "bytes.so"), environment={"QUERY_STRING": "-1"})
    assert wrong.output.startswith(b"Status: 400 ")
