"""Other web servers that the lab can start beside ewe, and what each of them needs.

peers.peer("nginx").missing     why it cannot run here, and what would help; "" if it can
peers.peer("nginx").prepare     a function from a Setup to the command (webservers, tomcat, pythons)
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from ewe_lab.bench.experiment import Load
from ewe_lab.bench.processes import LabError, find_tool, tool
from ewe_lab.stacks import pythons, tomcat, webservers
from ewe_lab.stacks.webservers import APACHE_MODULES, LIGHTTPD_MODULES, Setup


@dataclass(frozen=True)
class Peer:
    """A server that we can start. program, module: what has to be there; package: what brings it.

    prepare: writes the configuration, returns the command. most: connections it can keep open and serve.
    """

    name: str
    about: str
    package: str
    prepare: Callable[[Setup], list[str]]
    program: str = ""
    module: str = ""
    file: str = ""  # that has to be there besides (a module of Apache's)
    tls: str = ""  # file that has to be there for HTTPS; "": no HTTPS
    most: int = 1_000_000
    number: Callable[[], str] | None = None  # says its version, where its program says another's
    warms_in: float = 0.0  # seconds under load until its virtual machine has compiled what it needs
    caches: str = ""  # what it keeps of a file between requests

    @property
    def missing(self) -> str:
        """Why it cannot run here, and what would help; "" if it can."""
        if self.program and not find_tool(self.program):
            return f"{self.name} is not installed: apt install {self.package}"
        if self.module and find_spec(self.module) is None:
            return f"{self.name} is not installed: pip install {self.package}"
        if self.file and not os.path.exists(self.file):
            return f"{self.name} needs {self.file}: apt install {self.package}"
        return ""

    def missing_for_tls(self) -> str:
        """Why it cannot speak HTTPS here; "" if it can."""
        if not self.tls:
            return f"the lab starts {self.name} without TLS only"
        if not os.path.exists(self.tls):
            return f"{self.name} needs {self.tls} for TLS"
        return ""

    def version(self) -> str:
        """Return its version, "" if that cannot be told."""
        if self.name == "http.server":
            return platform.python_version()
        if self.module:
            return metadata.version(self.module) if find_spec(self.module) else ""
        return self.number() if self.number and not self.missing else version_of(self.program)


VERSION = {"ab": "-V", "caddy": "version", "httperf": "--version"}  # -v for all others


def version_of(name: str) -> str:
    """Return what a program says of its version, "" if it is not there or says nothing."""
    found = find_tool(name)
    if found is None:
        return ""
    try:
        command = [found, VERSION.get(name, "-v")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    number = re.search(r"\d+\.\d[\w.+-]*", done.stdout + done.stderr)
    return number[0] if number else ""


# ---------------------------------------------------------------------------------------------------------
# Yaws

YAWS_CODE = Path("/usr/lib/yaws/ebin")
YAWS = """\
logdir = {directory}
trace = false
copy_error_log = false
max_connections = nolimit
keepalive_maxuses = nolimit
max_num_cached_files = 0
<server localhost>
  port = {port}
  listen = 127.0.0.1
  listen_backlog = 4096
  <listen_opts>
    nodelay = true
  </listen_opts>
  docroot = {root}
  access_log = false
  auth_log = false
</server>
"""


def yaws(setup: Setup) -> list[str]:
    """A process of Erlang for each connection. Nagle's algorithm is off: head and body are sent apart."""
    text = YAWS.format(directory=setup.directory, root=setup.root, port=setup.port)
    return [
        "env", f"HOME={setup.directory}", tool("erl"), "-noshell", "-noinput", "+K", "true", "-pa", str(YAWS_CODE),
        "-run", "yaws", "-conf", setup.write("yaws.conf", text), "-yaws", "id", "lab",
    ]  # fmt: skip


def yaws_version() -> str:
    """Return Yaws's version, which its code says."""
    found = re.search(r'vsn, *"([\d.]+)"', (YAWS_CODE / "yaws.app").read_text())
    return found[1] if found else ""


# ---------------------------------------------------------------------------------------------------------
# All of them


def apache_peer(mpm: str, about: str, most: int) -> Peer:
    """Return Apache httpd under a model."""
    module = f"{APACHE_MODULES}/mod_mpm_{mpm}.so"
    ssl = f"{APACHE_MODULES}/mod_ssl.so"
    return Peer(
        f"apache-{mpm}", about, "apache2", webservers.apache(mpm), "apache2", file=module, tls=ssl, most=most
    )


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "nginx",
            "nginx, one worker",
            "nginx-light",
            webservers.nginx,
            "nginx",
            tls="/",
            caches="open files, a second",
        ),
        apache_peer("event", "Apache httpd, event MPM", 4000),
        apache_peer("worker", "Apache httpd, worker MPM, 400 threads", 400),
        apache_peer("prefork", "Apache httpd, prefork MPM, 256 processes", 256),
        Peer(
            "lighttpd",
            "lighttpd",
            "lighttpd lighttpd-mod-openssl",
            webservers.lighttpd,
            "lighttpd",
            tls=f"{LIGHTTPD_MODULES}/mod_openssl.so",
        ),
        Peer("h2o", "h2o, one thread", "h2o", webservers.h2o, "h2o", tls="/", caches="open files"),
        Peer("caddy", "Caddy file server", "caddy", webservers.caddy, "caddy"),
        Peer(
            "tomcat",
            f"Tomcat, {tomcat.TOMCAT_THREADS} threads",
            "tomcat10 default-jre-headless",
            tomcat.serves_files,
            "java",
            file=str(tomcat.TOMCAT / "bin" / "bootstrap.jar"),
            number=tomcat.version,
            warms_in=3.0,
            caches="small files, five seconds",
        ),
        Peer(
            "yaws",
            "Yaws, a process of Erlang for each connection",
            "yaws",
            yaws,
            "erl",
            file=str(YAWS_CODE),
            number=yaws_version,
        ),
        Peer("http.server", "python -m http.server, a thread a connection", "", pythons.http_server),
        Peer(
            "gunicorn", "gunicorn, one worker of 4 threads", "gunicorn", pythons.gunicorn, module="gunicorn"
        ),
        Peer("uvicorn", "uvicorn, one event loop", "uvicorn", pythons.uvicorn, module="uvicorn"),
        Peer("waitress", "waitress, 4 threads", "waitress", pythons.waitress, module="waitress"),
        Peer("granian", "granian, one worker", "granian", pythons.granian, module="granian"),
    )
}


SEVERAL = ("nginx", "lighttpd")  # that can be started with several processes
EWE_CACHES = "small files, a second"  # as ewe's settings have it


def warmed(load: Load, kind: str) -> Load:
    """Return a load whose warm-up is as long as a contender of a kind needs."""
    return replace(load, warm_up=max(load.warm_up, PEERS[kind].warms_in)) if kind in PEERS else load


def caches(kind: str) -> str:
    """Return what a contender of a kind keeps of a file between requests, "" if nothing."""
    return EWE_CACHES if kind == "ewe" else PEERS[kind].caches if kind in PEERS else ""


def peer(name: str) -> Peer:
    """Return a peer by its name. Raises LabError."""
    if name not in PEERS:
        raise LabError(f"there is no peer {name!r}; there are {', '.join(PEERS)}")
    return PEERS[name]
