"""Programs for experiments: the same little work in Python, Perl and PHP, and the ways there are to serve it.

    with technology(lab, "xswitch python") as (server, path): ...

X-Switch keeps the interpreters, CGI starts one each time, and beside them stand what is native to each language:
uWSGI for Python, php-fpm for PHP, a FastCGI program for Perl, all behind nginx, and Tomcat for Java. Raises
LabError.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import IO, Any

from ewe.lab.experiment import Bench, Contender, Running
from ewe.lab.fronts import KEPT, Behind, nginx
from ewe.lab.load.child import environment
from ewe.lab.processes import LabError, one_line, running, text_of, two_cores
from ewe.lab.servers import Server, free_port, wait_for_port
from ewe.lab.tomcat import missing as tomcat_lacks
from ewe.lab.tomcat import tomcat, write_application
from ewe.xswitch.settings import JAVA

HELLO = "hello world, from a program that keeps nothing over\n"  # 52 bytes, as in table 1 of X-Switch
LARGE = 43_000  # bytes of random text, as in its figure 4
PAGE_PHP = "Hello, World!\n"  # 14 bytes, as in DT-1 of the thesis
PAGE_PYTHON = "x" * 749 + "\n"  # 750 bytes, as in DT-2
PAGE_SERVLET, PAGE_JSP = "x" * 669 + "\n", "x" * 372 + "\n"  # 670 and 373 bytes, as in DT-3 and DT-4
PYTHON = "#!/usr/bin/python3\n"
# hello.py by WSGI, unmodified: what a server must do at least that is to run CGI scripts in its own interpreter
WSGI_SCRIPT = """\
import io, os, sys

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hello.py")
with open(SCRIPT) as file:
    CODE = compile(file.read(), SCRIPT, "exec")


def application(environ, start_response):
    os.environ.clear()
    os.environ.update({name: value for name, value in environ.items() if isinstance(value, str)})
    before, sys.stdout = sys.stdout, io.TextIOWrapper(io.BytesIO())
    try:
        exec(CODE, {"__name__": "__main__", "__file__": SCRIPT})
        sys.stdout.flush()
        answer = sys.stdout.buffer.getvalue()
    finally:
        sys.stdout = before
    head, _, body = answer.partition(b"\\n\\n")
    start_response("200 OK", [tuple(line.split(": ", 1)) for line in head.decode().splitlines()])
    return [body]
"""
PROGRAMS = {
    "hello.py": f"{PYTHON}print('Content-Type: text/plain\\n')\nprint({HELLO[:-1]!r})\n",
    "hello.pl": f'#!/usr/bin/perl\nprint "Content-Type: text/plain\\n\\n{HELLO[:-1]}\\n";\n',
    "hello.php": f'<?php header("Content-Type: text/plain"); echo "{HELLO[:-1]}\\n";\n',
    "large.pl": "#!/usr/bin/perl\nprint \"Content-Type: text/plain\\n\\n\";\n"
    f"print join '', map {{ chr(97 + int rand 26) }} 1 .. {LARGE};\n",
    "wsgi.py": "def application(environ, start_response):\n"
    f"    start_response('200 OK', [('Content-Type', 'text/plain')])\n    return [{HELLO.encode()!r}]\n",
    "wsgi_script.py": WSGI_SCRIPT,
    "page.php": PAGE_PHP,
    "page-cgi.php": f"#!/usr/bin/php-cgi -dcgi.force_redirect=0\n{PAGE_PHP}",
    "page.py": f"{PYTHON}print('Content-Type: text/plain\\n')\nprint('x' * {len(PAGE_PYTHON) - 1})\n",
    "page_wsgi.py": "def application(environ, start_response):\n"
    "    start_response('200 OK', [('Content-Type', 'text/plain')])\n"
    f"    return [b'x' * {len(PAGE_PYTHON) - 1} + b'\\n']\n",
    "fcgi.pl": "#!/usr/bin/perl\nuse FCGI;\nmy $request = FCGI::Request();\n"
    f'while ($request->Accept() >= 0) {{ print "Content-Type: text/plain\\n\\n{HELLO[:-1]}\\n"; }}\n',
}  # fmt: skip
FPM = """\
[global]
error_log = {where}/fpm.log
daemonize = no
[www]
{user}
listen = {listen}
pm = static
pm.max_children = {children}
"""
EXTENSIONS = {"python": "py", "perl": "pl", "php": "php"}
WORKERS = 4  # of each that keeps processes
BACKLOG = 1024  # connections that wait for a process
STARTS_IN = 10.0  # seconds
ACCEPTS = "00010000"  # __SO_ACCEPTCON, in the flags of /proc/net/unix
WARMS_IN = 1.0  # seconds that warm parents may take to load what they load


def directory_of(lab: Bench) -> Path:
    """Return a cgi-bin with the programs, which everybody may read."""
    where = lab.directory / "programs"
    if not where.exists():
        where.mkdir()
        for name, text in PROGRAMS.items():
            (where / name).write_text(text)
            (where / name).chmod(0o755)
    return where


def application_of(lab: Bench) -> str:
    """Make a web application in the cgi-bin; return its name. Raises LabError."""
    where = directory_of(lab) / "servlets"
    if not where.exists():
        library = next(Path(JAVA, "lib").glob("jakarta.servlet-api-*.jar"))
        write_application(where, {"hello": HELLO}, library)
    return where.name


def missing(name: str) -> str:
    """Say what a technology lacks here, and what brings it; "" if it can run."""
    needs = {
        "uwsgi": ("uwsgi_python3", "uwsgi-plugin-python3"),
        "php-fpm": (php_fpm(), "php-fpm"),
        "xswitch php": ("php-cgi", "php-cgi"),
        "fcgi perl": ("perl", "libfcgi-perl"),
        "perl": ("perl", "perl"),
    }
    if name == "xswitch java" and not Path(JAVA).exists():
        return f"{name} is left out: ewe-xswitch java builds the engine"
    if name.startswith("tomcat") and (packages := tomcat_lacks()):
        return f"{name} is left out: apt install {packages}"
    for part, (program, package) in needs.items():
        if part in name and not (program and shutil.which(program)):
            return f"{name} is left out: apt install {package}"
    if name.startswith(("uwsgi", "php-fpm", "fcgi", "nginx")) and not shutil.which("nginx"):
        return f"{name} is left out: apt install nginx-light"
    return ""


def php_fpm() -> str:
    """Return php-fpm; Debian's name has the version in it."""
    return shutil.which("php-fpm") or next(map(str, Path("/usr/sbin").glob("php-fpm*")), "")


@contextmanager
def technology(lab: Bench, name: str, *options: str, program: str = "hello") -> Iterator[tuple[Running, str]]:
    """Serve a program by a technology; yield the server and the path. options: of ewe's. Raises LabError."""
    programs = directory_of(lab)
    kind, _, language = name.partition(" ")
    if kind == "tomcat":
        where = Path(tempfile.mkdtemp(prefix="tomcat-", dir=lab.directory))
        with tomcat(where, servlets={"hello": HELLO}, pages={}) as server:
            yield server, "/hello"
        return
    if language == "java":
        path = f"/cgi-bin/{application_of(lab)}/hello"
    else:
        path = f"/cgi-bin/{program}.{EXTENSIONS[language]}"
    if kind == "nginx+xswitch":
        with (
            switch(lab) as (pid, socket),
            nginx_before(lab, socket, programs / path.rpartition("/")[2]) as web,
        ):
            yield replace(web, also=(pid,)), path
        return
    if kind in ("xswitch", "cgi"):
        model = "xswitch" if kind == "xswitch" else "asyncio"
        contender = Contender(name, model=model, options=("--cgi-path", str(programs), *options))
        with lab.start(contender, lab.site([])) as started:
            if kind == "xswitch":
                wait_for_xswitch(started)
            yield started, path
        return
    with behind_nginx(lab, kind, programs) as nginx_server:
        yield nginx_server, path


def wait_for_xswitch(server: Running) -> None:
    """Return once X-Switch and its warm parents are up: what counts is the start of an engine. Raises LabError."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + STARTS_IN
    while time.monotonic() < end:
        try:
            with opener.open(f"{server.url}xswitch-status", timeout=5):
                time.sleep(WARMS_IN)
                return
        except OSError:
            time.sleep(0.05)
    raise LabError("X-Switch does not start")


def status_of(server: Running) -> dict[str, Any]:
    """Return what the X-Switch of a server tells about itself. Raises LabError."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{server.url}xswitch-status?json", timeout=5) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found
    except (OSError, ValueError) as reason:
        raise LabError(f"X-Switch does not say how it is: {reason}") from None


@contextmanager
def switch(lab: Bench, *options: str) -> Iterator[tuple[int, Path]]:
    """Run an X-Switch without a web server; yield its process and its socket. Raises LabError."""
    where = Path(tempfile.mkdtemp(prefix="switch-", dir=lab.directory))
    socket = where / "socket"
    command = [
        sys.executable,
        "-m",
        "ewe.xswitch",
        "--listen",
        f"unix:{socket}",
        "--root",
        str(directory_of(lab)),
        *options,
    ]
    with (
        tempfile.TemporaryFile() as output,
        running(command, output, two_cores()[0], cwd=where, env=environment()) as started,
    ):
        wait_for_socket(started, socket, output, "X-Switch")
        time.sleep(WARMS_IN)
        yield started.pid, socket


def wait_for_socket(started: Popen[bytes], socket: Path, output: IO[bytes], name: str) -> None:
    """Return once somebody listens at a Unix socket. Raises LabError."""
    end = time.monotonic() + STARTS_IN
    while not listens_at(socket):
        if started.poll() is not None or time.monotonic() > end:
            raise LabError(f"{name} does not start: {one_line(text_of(output))}")
        time.sleep(0.02)


def listens_at(socket: Path) -> bool:
    """Whether anybody listens at a Unix socket. It is not connected to for that."""
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines():
        if line.endswith(f" {socket}") and line.split()[3] == ACCEPTS:
            return True
    return False


@contextmanager
def behind_nginx(lab: Bench, kind: str, programs: Path) -> Iterator[Server]:
    """Run uWSGI, php-fpm or a FastCGI program behind nginx, all on the server's core."""
    where = Path(tempfile.mkdtemp(prefix="behind-", dir=lab.directory))
    socket = where / "socket"
    scripts = {
        "php-fpm": "hello.php",
        "uwsgi": "wsgi.py",
        "uwsgi-script": "wsgi_script.py",
        "fcgi": "fcgi.pl",
    }
    program = programs / scripts[kind]
    commands = {
        "php-fpm": lambda: fpm(where, str(socket), KEPT),
        "uwsgi": lambda: uwsgi(socket, program, "--fastcgi-socket"),
        "uwsgi-script": lambda: uwsgi(socket, program, "--fastcgi-socket"),
        "fcgi": lambda: fcgi(socket, program),
    }
    core = two_cores()[0]
    with tempfile.TemporaryFile() as output, running(commands[kind](), output, core, cwd=where) as started:
        wait_for_socket(started, socket, output, kind)
        keeps = not kind.startswith("uwsgi")  # its FastCGI ends each connection with its request
        with nginx_before(lab, socket, program, keeps) as web:
            yield replace(web, command=f"nginx before {kind}", also=(started.pid,))


@contextmanager
def nginx_before(lab: Bench, socket: Path, script: Path, keeps: bool = True) -> Iterator[Server]:
    """Run nginx on the server's core, before what speaks FastCGI at a socket. keeps: its connections stay."""
    where = Path(tempfile.mkdtemp(prefix="nginx-", dir=lab.directory))
    socket.chmod(0o666)
    behind = Behind(where, free_port(), script, f"unix:{socket}", keeps=keeps)
    command, core = nginx(behind), two_cores()[0]
    with tempfile.TemporaryFile() as output, running(command, output, core, cwd=where) as web:
        wait_for_port(web, behind.port, output, "nginx")
        yield Server(web.pid, f"http://127.0.0.1:{behind.port}/", "nginx before X-Switch")


def fpm(where: Path, listen: str, children: int = WORKERS) -> Sequence[str]:
    """Return the command of php-fpm. listen: a path, or host and port."""
    root = os.geteuid() == 0
    user = "user = root\ngroup = root" if root else ""
    text = FPM.format(where=where, user=user, listen=listen, children=children)
    (where / "fpm.conf").write_text(text)
    return [php_fpm(), "-y", str(where / "fpm.conf"), "-F", *(["-R"] if root else [])]


def uwsgi(
    socket: Path, program: Path, protocol: str = "--uwsgi-socket", children: int = WORKERS
) -> Sequence[str]:
    """Return the command of uWSGI, which speaks FastCGI, too."""
    return [
        "uwsgi_python3", protocol, str(socket), "--wsgi-file", str(program), "--listen", backlog(),
        "--processes", str(children), "--master", "--disable-logging", "--need-app", "--die-on-term",
    ]  # fmt: skip


def backlog() -> str:
    """Return how many connections may wait: what the system allows, beyond which uWSGI would not start."""
    return str(min(BACKLOG, int(Path("/proc/sys/net/core/somaxconn").read_text())))


def fcgi(socket: Path, program: Path) -> Sequence[str]:
    """Return the command that runs a FastCGI program on a socket, in several processes."""
    code = (
        "import os,socket,sys\n"
        "s=socket.socket(socket.AF_UNIX);s.bind(sys.argv[1]);s.listen(128);os.dup2(s.fileno(),0)\n"
        f"for _ in range({KEPT}):\n"
        "    if not os.fork(): os.execv(sys.argv[2], [sys.argv[2]])\n"
        "while True: os.wait()\n"
    )
    return [sys.executable, "-c", code, str(socket), str(program)]
