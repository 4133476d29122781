"""Servers to measure, each started on 127.0.0.1 with what an experiment needs and nothing of the user's.

    with ewe("thread", root=root, directory=scratch, core=0) as server:
        ask(server.url)

directory: where a server may write; the caller removes it. Raises LabError when a server does not start.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import ewe as package
from ewe.lab.processes import LabError, one_line, running, text_of, tool

STARTS_IN = 10.0  # seconds a server may take to start


@dataclass(frozen=True)
class Server:
    """A running server. url: with the slash."""

    pid: int
    url: str


@contextmanager
def ewe(
    model: str,
    *options: str,
    root: Path,
    directory: Path,
    core: int | None = None,
    access_log: Path | None = None,
) -> Iterator[Server]:
    """Run ewe; what it writes goes into a directory of its own, and no setting of the user's counts."""
    (directory / "cgi-bin").mkdir(exist_ok=True)  # so that every request is looked up there too, as usual
    command = [
        sys.executable, "-m", "ewe", "--host", "127.0.0.1", "--port", "0", "--model", model,
        "--documentroot", str(root), "--cgi-path", str(directory / "cgi-bin"),
        "--access-log", str(access_log or "off"), "--logfile", str(directory / "error.log"), *options,
    ]  # fmt: skip
    env = {name: value for name, value in os.environ.items() if not name.startswith("EWE_")}
    for name in ("PORT", "WEB_CONCURRENCY"):
        env.pop(name, None)
    home = str(Path(package.__file__).resolve().parent.parent)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (home, env.get("PYTHONPATH"))))
    with (
        tempfile.TemporaryFile() as output,
        running(command, output, core, cwd=directory, env=env) as started,
    ):
        yield Server(started.pid, ewe_url(started, output))


def ewe_url(started: subprocess.Popen[bytes], output: IO[bytes]) -> str:
    """Wait for ewe's banner; return the URL in it. Raises LabError."""
    end = time.monotonic() + STARTS_IN
    while time.monotonic() < end:
        over = started.poll() is not None
        if found := re.search(r"http://127\.0\.0\.1:\d+/", text_of(output)):
            return found[0]
        if over:
            break
        time.sleep(0.01)
    raise LabError(f"ewe did not start: {one_line(text_of(output))}")


NGINX = """\
daemon off; worker_processes 1; {user} pid "{directory}/nginx.pid"; error_log "{directory}/error.log";
events {{ worker_connections 4096; }}
http {{
  types {{ text/html html; }}
  sendfile on; tcp_nopush on;
  open_file_cache max=1000; open_file_cache_valid 1s;
  keepalive_requests 1000000000;
  access_log {access_log};
  client_body_temp_path "{directory}/body"; proxy_temp_path "{directory}/proxy";
  fastcgi_temp_path "{directory}/fastcgi"; uwsgi_temp_path "{directory}/uwsgi";
  scgi_temp_path "{directory}/scgi";
  server {{ listen 127.0.0.1:{port}; root "{root}"; }}
}}
"""


@contextmanager
def nginx(
    *, root: Path, directory: Path, core: int | None = None, access_log: Path | None = None
) -> Iterator[Server]:
    """Run nginx with one worker and a file cache that looks again after a second, as ewe's does."""
    port = free_port()
    configuration = directory / "nginx.conf"
    configuration.write_text(
        NGINX.format(
            directory=directory,
            root=root,
            port=port,
            access_log=f'"{access_log}" combined' if access_log else "off",
            user="user root;" if os.geteuid() == 0 else "",  # else its worker would be nobody
        )
    )
    command = [tool("nginx"), "-p", str(directory), "-c", str(configuration)]
    with tempfile.TemporaryFile() as output, running(command, output, core, cwd=directory) as started:
        wait_for_port(started, port, output)
        yield Server(started.pid, f"http://127.0.0.1:{port}/")


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def wait_for_port(started: subprocess.Popen[bytes], port: int, output: IO[bytes]) -> None:
    """Return once something accepts connections at the port. Raises LabError."""
    end = time.monotonic() + STARTS_IN
    while started.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.01)
    raise LabError(f"nothing listens at port {port}: {one_line(text_of(output))}")
