"""One program behind every gateway of ewe.

    with ready(lab, "fastcgi", Program(directory, "hello.py"), contender) as (contender, path): ...

A program is a file of a cgi-bin directory, which a URL names as /cgi-bin/hello.py. Each gateway runs it in a form
that it understands, and the forms stand beside each other in the directory:

    gateway   form                                          where it runs
    cgi       hello.py                                      a new process for each request
    fastcgi   hello.fcgi, which speaks FastCGI; else .py    processes that the lab starts
    xswitch   hello.py                                      engines of an X-Switch that the lab starts
    libcgi    hello.so, there or in ../libcgi-bin           in the server, called in place
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

from ewe.config.settings import Config
from ewe_lab.bench.experiment import Bench, Contender
from ewe_lab.bench.processes import LabError, running, two_cores
from ewe_lab.load.child import environment
from ewe_lab.stacks import backends
from ewe_lab.stacks.script_runner import SCRIPT

CGI, FASTCGI, XSWITCH, LIBCGI, WSGI, ASGI = "cgi", "fastcgi", "xswitch", "libcgi", "wsgi", "asgi"
GATEWAYS = (CGI, FASTCGI, XSWITCH, LIBCGI, WSGI, ASGI)
IN_INTERPRETER = (WSGI, ASGI)
URL = "/cgi-bin/"
UNPRIVILEGED = "nobody"  # root loads no library in place
NOT_BUILT = "LibCGI is not built: make libcgi, or ewe --build-libcgi"


@dataclass(frozen=True)
class Program:
    """A program. file: its name below /cgi-bin/. query: of its URL."""

    directory: Path
    file: str
    query: str = ""

    @property
    def script(self) -> Path:
        """The file as CGI runs it."""
        return self.directory / self.file

    def beside(self, ending: str) -> Path:
        """Return the path of another form: hello.py and `_wsgi.py` are hello_wsgi.py."""
        return self.directory / (self.file.partition(".")[0] + ending)

    def url(self, path: str) -> str:
        """Return a path with the query."""
        return f"{path}?{self.query}" if self.query else path


def form_of(gateway: str, program: Program) -> Path | None:
    """Return the file that a gateway runs, None if there is none."""
    script = program.script
    own = {
        FASTCGI: program.beside(".fcgi"),
        LIBCGI: program.beside(".so"),
        WSGI: program.beside("_wsgi.py"),
        ASGI: program.beside("_asgi.py"),
    }.get(gateway, script)
    if own.is_file():
        return own
    if gateway == LIBCGI:
        beside = program.directory.parent / "libcgi-bin" / own.name
        return beside if beside.is_file() else None
    return script if script.suffix == ".py" and script.is_file() else None


def missing(gateway: str, program: Program) -> str:
    """Return why a gateway cannot run a program, "" if it can."""
    if gateway == LIBCGI and (why := libcgi_lacks()):
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


def libcgi_lacks() -> str:
    """Return why libraries cannot be called in place, "" if they can."""
    if not hasattr(Config(), "libcgi_path"):
        return "this ewe has no LibCGI"
    from ewe.libcgi import build

    return "" if build.shim().exists() else NOT_BUILT


@contextmanager
def ready(
    lab: Bench, gateway: str, program: Program, contender: Contender, keeps: bool = False
) -> Iterator[tuple[Contender, str]]:
    """Start what a gateway needs beside the server; yield the contender for it and the path of the URL.

    keeps: whether connections to a FastCGI program stay open. Each occupies the program, unless it serves several.
    """
    if why := missing(gateway, program):
        raise LabError(why)
    form = form_of(gateway, program)
    assert form is not None
    if gateway == FASTCGI:
        with fastcgi(lab, form, contender, keeps) as found:
            yield found, program.url("/fastcgi")
    elif gateway == XSWITCH:
        with xswitch(lab, program.directory, contender) as found:
            yield found, program.url(URL + program.file)
    elif gateway == LIBCGI:
        yield in_place(form, contender), program.url(f"/libcgi-bin/{form.name}")
    elif gateway in IN_INTERPRETER:
        yield applied(gateway, form, contender), program.url(f"/{gateway}")
    else:
        yield with_options(contender, "--cgi-path", str(program.directory)), program.url(URL + program.file)


def with_options(contender: Contender, *options: str) -> Contender:
    """Return a contender with more options."""
    return replace(contender, options=(*contender.options, *options))


def in_place(library: Path, contender: Contender) -> Contender:
    """Return the contender that calls a library in place."""
    options = ["--libcgi-path", str(library.parent)]
    if os.geteuid() == 0:
        options += ["--user", UNPRIVILEGED]
    return with_options(contender, *options)


def applied(gateway: str, form: Path, contender: Contender) -> Contender:
    """Return the contender that runs a Python application, or a CGI script as one."""
    if form.stem.endswith(f"_{gateway}"):
        where, variables = f"{form.stem}:application", (("PYTHONPATH", str(form.parent)),)
    else:
        where, variables = f"ewe_lab.stacks.script_runner:{gateway}", ((SCRIPT, str(form)),)
    found = with_options(contender, f"--{gateway}", f"/{gateway}={where}")
    return replace(found, variables=(*contender.variables, *variables))


@contextmanager
def fastcgi(lab: Bench, form: Path, contender: Contender, keeps: bool) -> Iterator[Contender]:
    """Run a FastCGI program, or a CGI script as one, in a few processes that share a socket."""
    where = Path(tempfile.mkdtemp(prefix="fastcgi-", dir=lab.directory))
    where.chmod(0o755)
    path = where / "socket"
    if form.suffix == ".fcgi":
        command = [*backends.fcgi(path, form, 1 if keeps else backends.WORKERS)]
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
        running(command, output, two_cores()[0], cwd=where, env=environment()) as started,
    ):
        backends.wait_for_socket(started, path, output, form.name)
        path.chmod(0o666)
        yield replace(with_options(contender, *options), also=(*contender.also, started.pid))


@contextmanager
def xswitch(lab: Bench, programs: Path, contender: Contender) -> Iterator[Contender]:
    """Run an X-Switch for the programs of a directory."""
    with backends.switch(lab, root=programs) as (pid, path):
        path.chmod(0o666)
        options = ("--cgi-path", str(programs), "--xswitch", f"unix:{path}")
        yield replace(with_options(contender, *options), also=(*contender.also, pid))
