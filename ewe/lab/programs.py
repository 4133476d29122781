"""Programs for experiments: the same little work in Python, Perl and PHP, and the ways there are to serve it.

    with technology(lab, "xswitch python") as (server, path): ...

X-Switch keeps the interpreters, CGI starts one each time, and beside them stand what is native to each language:
uWSGI for Python, php-fpm for PHP, a FastCGI program for Perl, all behind nginx. Raises LabError.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ewe.lab.experiment import Bench, Contender, Running
from ewe.lab.processes import LabError, one_line, running, text_of, two_cores
from ewe.lab.servers import Server, free_port, wait_for_port

HELLO = "hello world, from a program that keeps nothing over\n"  # 52 bytes, as in table 1 of X-Switch
LARGE = 43_000  # bytes of random text, as in its figure 4
PYTHON = "#!/usr/bin/python3\n"
PROGRAMS = {
    "hello.py": f"{PYTHON}print('Content-Type: text/plain\\n')\nprint({HELLO[:-1]!r})\n",
    "hello.pl": f'#!/usr/bin/perl\nprint "Content-Type: text/plain\\n\\n{HELLO[:-1]}\\n";\n',
    "hello.php": f'<?php header("Content-Type: text/plain"); echo "{HELLO[:-1]}\\n";\n',
    "large.pl": "#!/usr/bin/perl\nprint \"Content-Type: text/plain\\n\\n\";\n"
    f"print join '', map {{ chr(97 + int rand 26) }} 1 .. {LARGE};\n",
    "wsgi.py": "def application(environ, start_response):\n"
    f"    start_response('200 OK', [('Content-Type', 'text/plain')])\n    return [{HELLO.encode()!r}]\n",
    "fcgi.pl": "#!/usr/bin/perl\nuse FCGI;\nmy $request = FCGI::Request();\n"
    f'while ($request->Accept() >= 0) {{ print "Content-Type: text/plain\\n\\n{HELLO[:-1]}\\n"; }}\n',
}  # fmt: skip
NGINX = """\
daemon off; worker_processes 1; {user} pid "{where}/nginx.pid"; error_log "{where}/error.log";
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 1000000000;
  client_body_temp_path "{where}/body"; proxy_temp_path "{where}/proxy"; uwsgi_temp_path "{where}/uwsgi";
  fastcgi_temp_path "{where}/fastcgi"; scgi_temp_path "{where}/scgi";
  upstream behind {{ server unix:{where}/socket; {keepalive} }}
  server {{ listen 127.0.0.1:{port}; location / {{
    fastcgi_pass behind; {keep_conn}
    fastcgi_param SCRIPT_FILENAME "{script}"; fastcgi_param SCRIPT_NAME $uri; fastcgi_param PATH_INFO "";
    fastcgi_param REQUEST_METHOD $request_method; fastcgi_param QUERY_STRING $query_string;
    fastcgi_param CONTENT_LENGTH $content_length; fastcgi_param SERVER_PROTOCOL $server_protocol;
    fastcgi_param SERVER_NAME localhost; fastcgi_param SERVER_PORT {port}; fastcgi_param REMOTE_ADDR $remote_addr;
    fastcgi_param REQUEST_URI $request_uri; fastcgi_param GATEWAY_INTERFACE CGI/1.1;
  }} }}
}}
"""
FPM = """\
[global]
error_log = {where}/fpm.log
daemonize = no
[www]
{user}
listen = {where}/socket
pm = static
pm.max_children = {workers}
"""
WORKERS = 4  # of each that keeps processes
STARTS_IN = 10.0  # seconds
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


def missing(name: str) -> str:
    """Say what a technology lacks here, and what brings it; "" if it can run."""
    needs = {
        "uwsgi": ("uwsgi_python3", "uwsgi-plugin-python3"),
        "php-fpm": (php_fpm(), "php-fpm"),
        "xswitch php": ("php-cgi", "php-cgi"),
        "fcgi perl": ("perl", "libfcgi-perl"),
        "perl": ("perl", "perl"),
    }
    for part, (program, package) in needs.items():
        if part in name and not (program and shutil.which(program)):
            return f"{name} is left out: apt install {package}"
    if name.startswith(("uwsgi", "php-fpm", "fcgi")) and not shutil.which("nginx"):
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
    extension = {"python": "py", "perl": "pl", "php": "php"}[language]
    path = f"/cgi-bin/{program}.{extension}"
    if kind in ("xswitch", "cgi"):
        model = "xswitch" if kind == "xswitch" else "asyncio"
        contender = Contender(name, model=model, options=("--cgi-path", str(programs), *options))
        with lab.start(contender, lab.site([])) as server:
            if kind == "xswitch":
                wait_for_xswitch(server)
            yield server, path
        return
    with behind_nginx(lab, kind, programs) as server:
        yield server, path


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


@contextmanager
def behind_nginx(lab: Bench, kind: str, programs: Path) -> Iterator[Running]:
    """Run uWSGI, php-fpm or a FastCGI program behind nginx, all on the server's core."""
    core = two_cores()[0]
    where = Path(tempfile.mkdtemp(prefix="behind-", dir=lab.directory))
    root = os.geteuid() == 0
    scripts = {"php-fpm": "hello.php", "uwsgi": "wsgi.py", "fcgi": "fcgi.pl"}
    with ExitStack() as stack:
        output = stack.enter_context(tempfile.TemporaryFile())
        command = {"php-fpm": fpm, "uwsgi": uwsgi, "fcgi": fcgi}[kind](where, programs)
        started = stack.enter_context(running(command, output, core, cwd=where))
        end = time.monotonic() + STARTS_IN
        while not (where / "socket").exists():
            if started.poll() is not None or time.monotonic() > end:
                raise LabError(f"{kind} does not start: {one_line(text_of(output))}")
            time.sleep(0.02)
        (where / "socket").chmod(0o666)
        port = free_port()
        keeps = kind != "uwsgi"  # its FastCGI ends each connection with its request
        (where / "nginx.conf").write_text(
            NGINX.format(
                where=where,
                port=port,
                script=programs / scripts[kind],
                user="user root;" if root else "",
                keepalive="keepalive 16;" if keeps else "",
                keep_conn="fastcgi_keep_conn on;" if keeps else "",
            )
        )
        nginx = stack.enter_context(
            running(["nginx", "-p", str(where), "-c", str(where / "nginx.conf")], output, core, cwd=where)
        )
        wait_for_port(nginx, port, output, "nginx")
        yield Server(nginx.pid, f"http://127.0.0.1:{port}/", f"nginx before {kind}")


def fpm(where: Path, programs: Path) -> Sequence[str]:
    """Return the command of php-fpm."""
    root = os.geteuid() == 0
    user = "user = root\ngroup = root" if root else ""
    (where / "fpm.conf").write_text(FPM.format(where=where, user=user, workers=WORKERS))
    return [php_fpm(), "-y", str(where / "fpm.conf"), "-F", *(["-R"] if root else [])]


def uwsgi(where: Path, programs: Path) -> Sequence[str]:
    """Return the command of uWSGI, which speaks FastCGI here, as X-Switch does."""
    return [
        "uwsgi_python3", "--fastcgi-socket", str(where / "socket"), "--wsgi-file", str(programs / "wsgi.py"),
        "--processes", str(WORKERS), "--master", "--disable-logging", "--need-app", "--die-on-term",
    ]  # fmt: skip


def fcgi(where: Path, programs: Path) -> Sequence[str]:
    """Return the command that runs a FastCGI program on a socket, in several processes."""
    code = (
        "import os,socket,sys\n"
        "s=socket.socket(socket.AF_UNIX);s.bind(sys.argv[1]);s.listen(128);os.dup2(s.fileno(),0)\n"
        f"for _ in range({WORKERS}):\n"
        "    if not os.fork(): os.execv(sys.argv[2], [sys.argv[2]])\n"
        "while True: os.wait()\n"
    )
    return [sys.executable, "-c", code, str(where / "socket"), str(programs / "fcgi.pl")]
