"""One program behind every gateway of ewe.

    with start_gateway(lab, "fastcgi", CgiProgram(directory, "hello.py"), tested) as (tested, path): ...

A program is a file of a cgi-bin directory; its URL is /cgi-bin/hello.py. Each gateway needs its own
form of the program, and all forms are in the same directory:

    gateway   form                                          where it runs
    cgi       hello.py                                      a new process for each request
    fastcgi   hello.fcgi, which speaks FastCGI; else .py    processes that the lab starts
    xswitch   hello.py                                      engines of an X-Switch that the lab starts
    libcgi    hello.so, there or in ../libcgi-bin           in the server's process
    wsgi      hello_wsgi.py, with `application`; else .py   in the server's interpreter
    asgi      hello_asgi.py, with `application`; else .py   in the server's interpreter

"else .py": a CGI script in Python needs no other form: ewe_lab.stacks.script_runner runs it. Raises LabError.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ewe.config.settings import Config
from ewe_lab.bench.experiment import Bench, ServerUnderTest
from ewe_lab.bench.processes import LabError, running, server_core
from ewe_lab.load.child import environment
from ewe_lab.stacks import backends
from ewe_lab.stacks.script_runner import SCRIPT_VARIABLE

CGI, FASTCGI, XSWITCH, LIBCGI, WSGI, ASGI = "cgi", "fastcgi", "xswitch", "libcgi", "wsgi", "asgi"
GATEWAYS = (CGI, FASTCGI, XSWITCH, LIBCGI, WSGI, ASGI)
IN_INTERPRETER = (WSGI, ASGI)
URL = "/cgi-bin/"
UNPRIVILEGED = "nobody"  # ewe under root loads no library into its process
NOT_BUILT = "LibCGI is not built: make libcgi, or ewe --build-libcgi"


@dataclass(frozen=True)
class CgiProgram:
    """A program. file: its name below /cgi-bin/. query: of its URL."""

    directory: Path
    file: str
    query: str = ""

    @property
    def script(self) -> Path:
        """The path of the file that CGI runs."""
        return self.directory / self.file

    def beside(self, ending: str) -> Path:
        """Return the path of another form: `_wsgi.py` gives hello_wsgi.py for hello.py."""
        return self.directory / (self.file.partition(".")[0] + ending)

    def url(self, path: str) -> str:
        """Return a path with the query."""
        return f"{path}?{self.query}" if self.query else path


class ServerWithProgram(NamedTuple):
    """A server under test with the options for a program, and the path of the program's URL."""

    tested: ServerUnderTest
    path: str


def form_of(gateway: str, program: CgiProgram) -> Path | None:
    """Return the file that a gateway runs: its own form, or else a script in Python; None without either."""
    script = program.script
    own_form = {
        FASTCGI: program.beside(".fcgi"),
        LIBCGI: program.beside(".so"),
        WSGI: program.beside("_wsgi.py"),
        ASGI: program.beside("_asgi.py"),
    }.get(gateway, script)
    if own_form.is_file():
        return own_form
    if gateway == LIBCGI:  # a library may also lie in ../libcgi-bin, and no script takes its place
        beside = program.directory.parent / "libcgi-bin" / own_form.name
        return beside if beside.is_file() else None
    return script if script.suffix == ".py" and script.is_file() else None


def other_form(gateway: str, program: CgiProgram) -> str:
    """Return the name of the file that a gateway runs in place of the program's own, "" if it runs that."""
    form = form_of(gateway, program)
    return form.name if form is not None and form != program.script else ""


def why_missing(gateway: str, program: CgiProgram) -> str:
    """Return the reason if a gateway cannot run a program, else ""."""
    if gateway == LIBCGI and (why := why_no_libcgi()):
        return f"{gateway} is left out: {why}"
    if form_of(gateway, program) is None:
        names = {
            FASTCGI: program.beside(".fcgi").name,
            LIBCGI: program.beside(".so").name,
            WSGI: program.beside("_wsgi.py").name,
            ASGI: program.beside("_asgi.py").name,
        }
        return f"{gateway} is left out: there is no {names.get(gateway, program.file)} beside {program.file}"
    return ""


def why_no_libcgi() -> str:
    """Return the reason if libraries cannot be called in the server's process, else ""."""
    if not hasattr(Config(), "libcgi_path"):  # an ewe that was installed without LibCGI
        return "this ewe has no LibCGI"
    from ewe.libcgi import build

    return "" if build.shim_file().exists() else NOT_BUILT


@contextmanager
def start_gateway(
    lab: Bench, gateway: str, program: CgiProgram, tested: ServerUnderTest, *, keeps: bool = False
) -> Iterator[ServerWithProgram]:
    """Start the processes that a gateway needs beside the server; yield the server under test and the URL's path.

    keeps: whether connections to a FastCGI program stay open. A kept connection occupies a process of the program,
    unless the process serves several connections at once.
    """
    if why := why_missing(gateway, program):
        raise LabError(why)
    form = form_of(gateway, program)
    assert form is not None
    if gateway == FASTCGI:
        with fastcgi(lab, form, tested, keeps=keeps) as found:
            yield ServerWithProgram(found, program.url("/fastcgi"))
    elif gateway == XSWITCH:
        with xswitch(lab, program.directory, tested) as found:
            yield ServerWithProgram(found, program.url(URL + program.file))
    elif gateway == LIBCGI:
        yield ServerWithProgram(in_process(form, tested), program.url(f"/libcgi-bin/{form.name}"))
    elif gateway in IN_INTERPRETER:
        adapted = with_application(gateway, form, tested)
        yield ServerWithProgram(adapted, program.url(f"/{gateway}"))
    else:
        adapted = with_options(tested, "--cgi-path", str(program.directory))
        yield ServerWithProgram(adapted, program.url(URL + program.file))


def with_options(tested: ServerUnderTest, *options: str) -> ServerUnderTest:
    """Return a server under test with more options."""
    return replace(tested, options=(*tested.options, *options))


def in_process(library: Path, tested: ServerUnderTest) -> ServerUnderTest:
    """Return the server under test that calls libraries in its process: all in the directory of `library`."""
    options = ["--libcgi-path", str(library.parent)]
    if os.geteuid() == 0:
        options += ["--user", UNPRIVILEGED]
    return with_options(tested, *options)


def with_application(gateway: str, form: Path, tested: ServerUnderTest) -> ServerUnderTest:
    """Return the server under test that runs a Python application, or a CGI script as one.

    gateway: WSGI or ASGI. form: the file with the application, or the script.
    """
    if form.stem.endswith(f"_{gateway}"):
        where, variables = f"{form.stem}:application", (("PYTHONPATH", str(form.parent)),)
    else:
        where, variables = f"ewe_lab.stacks.script_runner:{gateway}", ((SCRIPT_VARIABLE, str(form)),)
    found = with_options(tested, f"--{gateway}", f"/{gateway}={where}")
    return replace(found, variables=(*tested.variables, *variables))


@contextmanager
def fastcgi(lab: Bench, form: Path, tested: ServerUnderTest, *, keeps: bool) -> Iterator[ServerUnderTest]:
    """Run a FastCGI program, or a CGI script as one, in a few processes that share a socket.

    Yields the server under test that uses them. keeps: as in start_gateway().
    """
    directory = Path(tempfile.mkdtemp(prefix="fastcgi-", dir=lab.directory))
    directory.chmod(0o755)
    path = directory / "socket"
    if form.suffix == ".fcgi":
        # A program that gets kept connections serves several at once, so one process is enough
        command = [*backends.fastcgi_command(path, form, 1 if keeps else backends.WORKERS)]
    else:
        command = [
            sys.executable,
            "-m",
            "ewe_lab.stacks.responder",
            str(path),
            str(backends.WORKERS),
            str(form),
        ]
    options = ("--fastcgi", f"/fastcgi=unix:{path}", *(["--fastcgi-keep"] if keeps else []))
    with (
        tempfile.TemporaryFile() as output,
        running(command, output, server_core(), cwd=directory, env=environment()) as started,
    ):
        backends.wait_for_socket(started, path, output, form.name)
        path.chmod(0o666)  # the server may run under another account
        yield replace(with_options(tested, *options), other_pids=(*tested.other_pids, started.pid))


@contextmanager
def xswitch(lab: Bench, programs: Path, tested: ServerUnderTest) -> Iterator[ServerUnderTest]:
    """Run an X-Switch for the programs of a directory; yield the server under test that uses it."""
    with backends.run_xswitch(lab, root=programs) as (pid, socket):
        socket.chmod(0o666)  # the server may run under another account
        options = ("--cgi-path", str(programs), "--xswitch", f"unix:{socket}")
        yield replace(with_options(tested, *options), other_pids=(*tested.other_pids, pid))
