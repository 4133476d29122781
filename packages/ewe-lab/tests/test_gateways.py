"""One program behind every gateway, and `ewe-lab compare --gateways`."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lab_bench import quick_lab
from support.server import ROOT

from ewe.gateway.records import Requester
from ewe_lab import cli
from ewe_lab.bench.experiment import ServerUnderTest
from ewe_lab.bench.results import load
from ewe_lab.stacks import forms, gateways, responder, script_runner
from ewe_lab.stacks.gateways import ASGI, CGI, FASTCGI, LIBCGI, WSGI, XSWITCH, CgiProgram
from ewe_lab.stacks.servers import DIRECTORIES

HELLO = """\
#!/usr/bin/env python3
import os, sys
print("Content-Type: text/plain\\nStatus: 200 Fine\\n")
print("you asked for", os.environ["QUERY_STRING"])
sys.exit()
"""


def get(url: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=30) as answer:
        body: bytes = answer.read()
        return body


def body_by(
    lab: gateways.Bench, gateway: str, program: CgiProgram, model: str = "thread", keeps: bool = False
) -> bytes:
    """Return what a program answers behind a gateway."""
    with (
        gateways.start_gateway(lab, gateway, program, ServerUnderTest(gateway, model=model), keeps=keeps) as (
            tested,
            path,
        ),
        lab.start(tested, program.directory) as server,
    ):
        return get(server.url.rstrip("/") + path)


@pytest.mark.starts_processes
@pytest.mark.needs("gcc")
def test_every_form_sends_the_same_bytes() -> None:
    with quick_lab() as lab:
        where = forms.write_forms(lab, [70_000])
        in_c, in_python = (CgiProgram(where, name, "70000") for name in ("bytes.cgi", "bytes.py"))
        expected = (where / "70000.html").read_bytes()
        found = {
            gateway: body_by(lab, gateway, in_c, keeps=gateway == FASTCGI)
            for gateway in (CGI, FASTCGI, WSGI, ASGI)
        }
        found["python"] = body_by(lab, CGI, in_python)
        if not gateways.why_no_libcgi():
            found[LIBCGI] = body_by(lab, LIBCGI, in_c)
    assert {name: body == expected for name, body in found.items()} == dict.fromkeys(found, True)


@pytest.mark.starts_processes
@pytest.mark.parametrize("gateway", [CGI, FASTCGI, XSWITCH, WSGI, ASGI])
def test_a_script_in_python_runs_unmodified_behind_each(gateway: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "hello.py").write_text(HELLO)
    (tmp_path / "hello.py").chmod(0o755)
    with quick_lab() as lab:
        assert body_by(lab, gateway, CgiProgram(tmp_path, "hello.py", "x=1")) == b"you asked for x=1\n"


def test_a_form_of_its_own_comes_before_the_script(tmp_path: Path) -> None:
    for name in ("hello.py", "hello_wsgi.py", "hello.fcgi", "main.c"):
        (tmp_path / name).touch()
    program = CgiProgram(tmp_path, "hello.py")
    found = {gateway: gateways.form_of(gateway, program) for gateway in gateways.GATEWAYS}
    names = {gateway: form.name if form else "" for gateway, form in found.items()}
    assert names == {
        CGI: "hello.py", FASTCGI: "hello.fcgi", XSWITCH: "hello.py", LIBCGI: "", WSGI: "hello_wsgi.py",
        ASGI: "hello.py",
    }  # fmt: skip
    (tmp_path / "libcgi-bin").mkdir()
    (tmp_path / "libcgi-bin" / "hello.so").touch()
    beside = CgiProgram(tmp_path / "cgi-bin", "hello.py")
    assert gateways.form_of(LIBCGI, beside) == tmp_path / "libcgi-bin" / "hello.so"
    assert gateways.form_of(WSGI, CgiProgram(tmp_path, "main.c")) is None
    assert gateways.why_missing(FASTCGI, CgiProgram(tmp_path, "main.c")) == (
        "fastcgi is left out: there is no main.fcgi beside main.c"
    )


def test_what_a_library_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = CgiProgram(tmp_path, "hello.py")
    monkeypatch.setattr(gateways, "why_no_libcgi", lambda: gateways.NOT_BUILT)
    assert gateways.why_missing(LIBCGI, program) == f"libcgi is left out: {gateways.NOT_BUILT}"
    monkeypatch.setattr(gateways, "why_no_libcgi", lambda: "")
    assert gateways.why_missing(LIBCGI, program) == "libcgi is left out: there is no hello.so beside hello.py"


def test_a_script_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    script = tmp_path / "hello.py"
    script.write_text(HELLO)
    before, standard = dict(os.environ), sys.stdout
    output = script_runner.output_of(str(script), {"QUERY_STRING": "y", "HTTP_NEW": "1"})
    assert (dict(os.environ), sys.stdout) == (before, standard)
    assert script_runner.parse_output(output) == (
        "200 Fine", [("Content-Type", "text/plain")], b"you asked for y\n",
    )  # fmt: skip
    script_runner.code_of.cache_clear()


def test_a_script_that_closes_its_output_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    script = tmp_path / "closes.py"
    script.write_text("import sys\nsys.stdout.close()\n")
    before, standard = dict(os.environ), sys.stdout
    with pytest.raises(ValueError, match="closed file"):
        script_runner.output_of(str(script), {"HTTP_NEW": "1"})
    assert (dict(os.environ), sys.stdout) == (before, standard)


class TwoConnections:
    """A listener to which two clients have connected, each with a request. There is no third one."""

    def __init__(self) -> None:
        pairs = [socket.socketpair() for _ in range(2)]
        self.clients, self.accepted = [list(ends) for ends in zip(*pairs, strict=True)]
        for client, query in zip(self.clients, (b"fail", b""), strict=True):
            requester = Requester()
            client.sendall(requester.begin([(b"QUERY_STRING", query)]) + requester.input(b""))

    def accept(self) -> tuple[socket.socket, str]:
        if not self.accepted:
            raise KeyboardInterrupt
        return self.accepted.pop(0), ""


def test_a_script_that_fails_does_not_end_its_process(capsys: pytest.CaptureFixture[str]) -> None:
    """The first request has no answer, and the second one has."""

    def answer(params: dict[bytes, bytes]) -> bytes:
        if params[b"QUERY_STRING"] == b"fail":
            raise ZeroDivisionError
        return b"Content-Type: text/plain\r\n\r\nhello"

    listener = TwoConnections()
    with pytest.raises(KeyboardInterrupt):
        responder.serve(listener, answer)
    first, second = (client.recv(1000) for client in listener.clients)
    assert first == b"" and b"hello" in second
    assert "ZeroDivisionError" in capsys.readouterr().err
    for client in listener.clients:
        client.close()


def test_threads_take_turns_with_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "hello.py"
    script.write_text(HELLO)
    monkeypatch.setattr(script_runner, "SCRIPT_PATH", str(script))

    def ask(number: int) -> bytes:
        return b"".join(script_runner.wsgi({"QUERY_STRING": str(number)}, lambda status, fields: None))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ask, range(200)))
    assert found == [b"you asked for %d\n" % number for number in range(200)]


def test_a_report_has_no_directories_of_this_machine() -> None:
    assert DIRECTORIES.sub(".../", "/fastcgi=unix:/tmp/ewe-lab-1/fastcgi-2/socket") == (
        "/fastcgi=unix:.../socket"
    )
    assert DIRECTORIES.sub(".../", "/srv/www/cgi-bin") == ".../cgi-bin"
    assert DIRECTORIES.sub(".../", "/wsgi=hello_wsgi:application") == "/wsgi=hello_wsgi:application"


@pytest.mark.starts_processes
def test_gateways_are_compared_in_one_command(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("EWE_")}
    (tmp_path / "programs").mkdir()
    shutil.copy(ROOT / "cgi-bin" / "hello.py", tmp_path / "programs")
    done = subprocess.run(
        [sys.executable, "-m", "ewe_lab", "compare", "--cgi", "programs", "--path", "/cgi-bin/hello.py",
         "--gateways", "wsgi,asgi,libcgi", "-t", "-a", "--users", "2", "--time", "500ms", "--repeats", "1",
         "--warm-up", "100ms", "--think", "20ms", "--out", "found"],
        cwd=tmp_path, env={**env, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=170,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (table,) = load(tmp_path / "found" / "results.json").tables
    assert [cell.server for cell in table.cells] == [
        "wsgi, thread", "wsgi, asyncio", "asgi, thread", "asgi, asyncio",
    ]  # fmt: skip
    assert all(cell.samples[0].replies and not cell.samples[0].errors for cell in table.cells)
    assert any(note.startswith("libcgi is left out: ") for note in table.notes)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--gateways", "cgi"], "--gateways needs --cgi DIR"),
        (["--gateways", "scgy", "--cgi", "."], "there is no gateway 'scgy'"),
        (["--cgi", ".", "--path", "/hello.py"], "names no program: write /cgi-bin/hello.py"),
        (["--cgi", ".", "--path", "/cgi-bin/none.py"], "there is no none.py in '.'"),
        (["--cgi", ".", "--against", "nginx"], "leave out --root, --against and --tls"),
    ],
)
def test_wrong_usage_is_one_line(
    words: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert cli.main(["compare", *words]) == 2
    said = capsys.readouterr().err
    assert error in said and said.count("\n") == 1


def test_a_row_of_another_program_says_so(tmp_path: Path) -> None:
    for name in ("hello.py", "hello.so"):
        (tmp_path / name).write_text("")
    program = gateways.CgiProgram(tmp_path, "hello.py")
    assert gateways.other_form("libcgi", program) == "hello.so"
    assert [gateways.other_form(name, program) for name in ("cgi", "xswitch", "wsgi")] == ["", "", ""]
    (tmp_path / "hello_wsgi.py").write_text("")
    assert gateways.other_form("wsgi", program) == "hello_wsgi.py"
