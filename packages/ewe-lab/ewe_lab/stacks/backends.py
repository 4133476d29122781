"""The processes that run programs behind a web server: php-fpm, php-cgi, uWSGI, FastCGI programs, X-Switch.

The function for a kind of process returns its command. The process listens at a socket. Raises LabError.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import IO, Any, NamedTuple

from ewe_lab.bench.experiment import Bench, RunningServer
from ewe_lab.bench.processes import LabError, find_tool, last_line, output_text, running, server_core
from ewe_lab.load.child import environment
from ewe_lab.stacks.programs import PERL, programs_directory

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
WORKERS = 4  # processes of each kind, by default
BACKLOG = 1024  # connections that wait for a process
START_TIMEOUT_S = 10.0  # seconds
LISTENING_FLAG = "00010000"  # __SO_ACCEPTCON, in the flags of /proc/net/unix
# Errors of opener(): no connection, or no answer in time; an answer that is not HTTP, or is cut
URL_ERRORS = (OSError, http.client.HTTPException)
PRELOAD_TIMEOUT_S = 1.0  # seconds that the preloaded parents of X-Switch may take to load their modules


def perl_has(module: str) -> bool:
    """Whether the Perl that runs our programs has a module."""
    perl = find_tool(PERL)
    return (
        perl is not None and not subprocess.run([perl, f"-M{module}", "-e1"], capture_output=True).returncode
    )


def php_fpm() -> str:
    """Return the path of php-fpm, "" if it is not installed. On Debian its name contains the version."""
    return shutil.which("php-fpm") or next(map(str, Path("/usr/sbin").glob("php-fpm*")), "")


def fpm_command(directory: Path, listen: str, children: int = WORKERS) -> Sequence[str]:
    """Write the configuration of php-fpm into a directory; return its command. listen: a path, or host and port."""
    root = os.geteuid() == 0
    # php-fpm refuses root as the account of its children, unless -R allows it
    user = "user = root\ngroup = root" if root else ""
    text = FPM.format(where=directory, user=user, listen=listen, children=children)
    (directory / "fpm.conf").write_text(text)
    return [php_fpm(), "-y", str(directory / "fpm.conf"), "-F", *(["-R"] if root else [])]


def uwsgi_command(socket: Path, program: Path, children: int = WORKERS) -> Sequence[str]:
    """Return the command of uWSGI, which speaks its own protocol at `socket`.

    program: a file with `application`.
    """
    return [
        "uwsgi_python3", "--uwsgi-socket", str(socket), "--wsgi-file", str(program), "--listen", backlog(),
        "--processes", str(children), "--master", "--disable-logging", "--need-app", "--die-on-term",
    ]  # fmt: skip


def backlog() -> str:
    """Return the length of the backlog. uWSGI does not start with a backlog above the system's limit."""
    return str(min(BACKLOG, int(Path("/proc/sys/net/core/somaxconn").read_text())))


def fastcgi_command(socket: Path, program: Path, children: int) -> Sequence[str]:
    """Return the command that runs a FastCGI program in several processes, with the socket as standard input.

    A small Python program listens at the socket, puts it in place of descriptor 0, as FastCGI demands, and starts
    the children, which inherit it.
    """
    code = (
        "import os,socket,sys\n"
        "s=socket.socket(socket.AF_UNIX);s.bind(sys.argv[1]);s.listen(128);os.dup2(s.fileno(),0)\n"
        f"for _ in range({children}):\n"
        "    if not os.fork(): os.execv(sys.argv[2], [sys.argv[2]])\n"
        "while True: os.wait()\n"
    )
    return [sys.executable, "-c", code, str(socket), str(program)]


def xswitch_command(socket: Path, root: Path, *options: str) -> list[str]:
    """Return the command of an X-Switch without a web server."""
    return [sys.executable, "-m", "ewe.xswitch", "--listen", f"unix:{socket}", "--root", str(root), *options]


def responder_command(socket: Path, children: int, length: int) -> list[str]:
    """Return the command of the lab's own FastCGI program. length: of its answer."""
    return [sys.executable, "-m", "ewe_lab.stacks.responder", str(socket), str(children), str(length)]


def opener() -> urllib.request.OpenerDirector:
    """Return an opener of URLs for our own servers.

    It ignores the proxy of the environment, which cannot reach them, and accepts every certificate, since those of
    the lab are self-signed.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    return urllib.request.build_opener(*handlers)


def wait_for_xswitch(server: RunningServer) -> None:
    """Wait for X-Switch and its preloaded parents. The first request then measures the start of an engine.

    Raises LabError.
    """
    asking = opener()
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        try:
            with asking.open(f"{server.url}xswitch-status", timeout=5):
                time.sleep(PRELOAD_TIMEOUT_S)  # the status does not say when the parents are ready
                return
        except URL_ERRORS:
            time.sleep(0.05)
    raise LabError("X-Switch does not start")


def xswitch_status(server: RunningServer) -> dict[str, Any]:
    """Return the status of a server's X-Switch. Raises LabError."""
    try:
        with opener().open(f"{server.url}xswitch-status?json", timeout=5) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found
    except (*URL_ERRORS, ValueError) as reason:
        raise LabError(f"X-Switch does not say how it is: {last_line(str(reason))}") from None


class StartedXSwitch(NamedTuple):
    """A running X-Switch without a web server. socket: the Unix socket at which it speaks FastCGI."""

    pid: int
    socket: Path


@contextmanager
def run_xswitch(lab: Bench, *options: str, root: Path | None = None) -> Iterator[StartedXSwitch]:
    """Run an X-Switch without a web server; yield it when it listens. Raises LabError.

    root: the directory of its scripts, those of the lab if it is None.
    """
    directory = Path(tempfile.mkdtemp(prefix="switch-", dir=lab.directory))
    socket = directory / "socket"
    command = xswitch_command(socket, root or programs_directory(lab), *options)
    with (
        tempfile.TemporaryFile() as output,
        running(command, output, server_core(), cwd=directory, env=environment()) as started,
    ):
        wait_for_socket(started, socket, output, "X-Switch")
        time.sleep(PRELOAD_TIMEOUT_S)
        yield StartedXSwitch(started.pid, socket)


def wait_for_socket(started: Popen[bytes], socket: Path, output: IO[bytes], name: str) -> None:
    """Wait until a process listens at a Unix socket. Raises LabError.

    started: the process. output: that of the process, for the error. name: of the program, for the error.
    """
    end = time.monotonic() + START_TIMEOUT_S
    while not listens_at(socket):
        if started.poll() is not None or time.monotonic() > end:
            raise LabError(f"{name} does not start: {last_line(output_text(output))}")
        time.sleep(0.02)


def listens_at(socket: Path) -> bool:
    """Whether a process listens at a Unix socket. Read from /proc: a connection would count as a request."""
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines():
        # Num RefCount Protocol Flags Type St Inode Path
        if line.endswith(f" {socket}") and line.split()[3] == LISTENING_FLAG:
            return True
    return False
