"""Start the servers under test on 127.0.0.1, with the settings of an experiment and none of the user's.

    with run_ewe("thread", root=root, directory=scratch, core=0) as server:
        ask(server.url)

directory: the server may write there; the caller removes the directory. prefix: of the command, for a slow link
(see ewe_lab.bench.links). Raises LabError if a server does not start.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ewe_lab.bench.processes import LabError, last_line, output_text, running
from ewe_lab.load.child import environment
from ewe_lab.stacks import other_servers
from ewe_lab.stacks.webservers import Setup

TCP_LISTEN = "0A"  # the state of a listening socket in /proc/net/tcp
START_TIMEOUT_S = 30.0  # seconds that a server may take to start
# The directories in a path of this machine, which a report omits.
DIRECTORIES = re.compile(r"(?<![\w.])/(?:[^/=:\s]+/){2,}")


@dataclass(frozen=True)
class StartedServer:
    """A running server. url: ends with a slash; command: in short, for a report.

    other_pids: processes that work for the server and are not its children.
    """

    pid: int
    url: str
    command: str = ""
    other_pids: tuple[int, ...] = ()


@contextmanager
def run_ewe(
    model: str,
    /,
    *options: str,
    root: Path,
    directory: Path,
    core: int | None = None,
    access_log: Path | None = None,
    certificate: Path | None = None,
    prefix: Sequence[str] = (),
    variables: Sequence[tuple[str, str]] = (),
) -> Iterator[StartedServer]:
    """Run ewe; yield it when it listens. It writes into `directory` only and ignores the settings of the user.

    model: a name, or MODULE:CLASS. core: on which it runs, None for any. certificate: a PEM file with key and
    chain, for HTTPS. variables: of the environment; a value of PYTHONPATH is added behind ours. Raises LabError.
    """
    # As usual, ewe looks up every request in a cgi-bin directory
    (directory / "cgi-bin").mkdir(exist_ok=True)
    command = [
        *prefix, sys.executable, "-m", "ewe", "--host", "127.0.0.1", "--port", "0", "--model", model,
        "--documentroot", str(root), "--cgi-path", str(directory / "cgi-bin"),
        "--access-log", str(access_log or "off"), "--logfile", str(directory / "error.log"), *options,
    ]  # fmt: skip
    shown_command = ["ewe", "--model", model, *(DIRECTORIES.sub(".../", option) for option in options)]
    if certificate:
        command += ["--tls-cert", str(certificate)]
        shown_command += ["--tls-cert", certificate.name]
    env = environment()
    for name in ("PORT", "WEB_CONCURRENCY"):  # ewe reads these two settings of hosting platforms
        env.pop(name, None)
    if ":" in model:  # the module may be in the directory in which the lab was started
        env["PYTHONPATH"] = os.pathsep.join((env["PYTHONPATH"], os.getcwd()))
    for name, value in variables:
        env[name] = os.pathsep.join((env[name], value)) if name == "PYTHONPATH" else value
    with (
        tempfile.TemporaryFile() as output,
        running(command, output, core, cwd=directory, env=env) as started,
    ):
        yield StartedServer(started.pid, ewe_url(started, output), " ".join(shown_command))


def ewe_url(started: subprocess.Popen[bytes], output: IO[bytes]) -> str:
    """Wait for ewe's banner; return the URL in it. Raises LabError."""
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        has_ended = started.poll() is not None  # before its output is read, so that no last line is missed
        if found := re.search(r"https?://127\.0\.0\.1:\d+/", output_text(output)):
            return found[0]
        if has_ended:
            break
        time.sleep(0.01)
    raise LabError(f"ewe did not start: {last_line(output_text(output))}")


@contextmanager
def run_other_server(
    name: str,
    /,
    *options: str,
    root: Path,
    directory: Path,
    core: int | None = None,
    access_log: Path | None = None,
    certificate: Path | None = None,
    prefix: Sequence[str] = (),
) -> Iterator[StartedServer]:
    """Run another server; yield it when it listens. Raises LabError.

    name: a key of OTHER_SERVERS. options: of the server itself, and `--workers N` for one of MULTI_PROCESS_SERVERS.
    core, certificate: as in run_ewe().
    """
    kind = other_servers.other_server(name)
    lacking = kind.why_missing or (kind.why_missing_for_tls() if certificate else "")
    if lacking:
        raise LabError(lacking)
    port = free_port()
    own_options, processes = without_workers(options)
    if processes > 1 and name not in other_servers.MULTI_PROCESS_SERVERS:
        raise LabError(f"the lab starts {name} with one process only")
    command = kind.prepare(
        Setup(directory, port, root=root, certificate=certificate, access_log=access_log, processes=processes)
    )
    scheme = "https" if certificate else "http"
    with (
        tempfile.TemporaryFile() as output,
        running([*prefix, *command, *own_options], output, core, cwd=directory, env=environment()) as started,
    ):
        wait_for_port(started, port, output, kind.name)
        about = " ".join((kind.about, *options))
        yield StartedServer(started.pid, f"{scheme}://127.0.0.1:{port}/", about)


def without_workers(options: Sequence[str]) -> tuple[list[str], int]:
    """Return options without `--workers N`, and N; 1 without it."""
    found = list(options)
    if "--workers" not in found:
        return found, 1
    index = found.index("--workers")
    processes = int(found[index + 1])
    del found[index : index + 2]
    return found, processes


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that is free now. Another program may take it before the caller does."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def wait_for_port(started: subprocess.Popen[bytes], port: int, output: IO[bytes], name: str) -> None:
    """Wait until a process listens at the port, in the network of `started`. Raises LabError.

    output: that of the process, for the error. name: of the server, for the error.
    """
    end = time.monotonic() + START_TIMEOUT_S
    while started.poll() is None and time.monotonic() < end:
        if listens(started.pid, port):
            return
        time.sleep(0.01)
    raise LabError(f"{name} does not listen at its port: {last_line(output_text(output))}")


def listens(pid: int, port: int) -> bool:
    """Whether a process listens at a TCP port, in the network of `pid`. Read from /proc: a connection would count.

    The process may be another one, such as a child of `pid`.
    """
    for file in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{file}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            local_address, state = fields[1], fields[3]  # the address is IP:PORT, in hexadecimal digits
            if state == TCP_LISTEN and int(local_address.rpartition(":")[2], 16) == port:
                return True
    return False
