"""Other web servers that the lab can start beside ewe, with the packages that each one needs.

other_server("nginx").why_missing the reason if nginx cannot run here, with the package to install; else ""
other_server("nginx").prepare     a function from a Setup to the command (webservers, tomcat, pythons)
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from ewe_lab.bench.experiment import Load
from ewe_lab.bench.processes import LabError, find_tool, last_line, path_of_tool
from ewe_lab.stacks import pythons, tomcat, webservers
from ewe_lab.stacks.webservers import APACHE_MODULES, LIGHTTPD_MODULES, Setup


@dataclass(frozen=True)
class OtherServer:
    """A web server that the lab can start.

    about: a description for a report. program, module: the required program or Python module. package: its package.
    prepare: writes the configuration, returns the command. max_connections: those that the server can keep open and
    serve at once. warm_up_s: seconds under load until its virtual machine has compiled the code.
    """

    name: str
    about: str
    package: str
    prepare: Callable[[Setup], list[str]]
    program: str = ""
    module: str = ""
    file: str = ""  # another required file, such as a module of Apache
    tls_file: str = ""  # a file that exists if the server has HTTPS here; "": no HTTPS
    max_connections: int = 1_000_000
    read_version: Callable[[], str] | None = None  # if `program -v` prints the version of another program
    warm_up_s: float = 0.0
    caches: str = ""  # the data of a file that the server keeps between requests

    @property
    def why_missing(self) -> str:
        """The reason if the server cannot run here, with the package to install; else ""."""
        if self.program and not find_tool(self.program):
            return f"{self.name} is not installed: apt install {self.package}"
        if self.module and find_spec(self.module) is None:
            return f"{self.name} is not installed: pip install {self.package}"
        if self.file and not os.path.exists(self.file):
            return f"{self.name} needs {self.file}: apt install {self.package}"
        return ""

    def why_missing_for_tls(self) -> str:
        """Return the reason if the server cannot use HTTPS here, else ""."""
        if not self.tls_file:
            return f"the lab starts {self.name} without TLS only"
        if not os.path.exists(self.tls_file):
            return f"{self.name} needs {self.tls_file} for TLS"
        return ""

    def version(self) -> str:
        """Return the server's version, "" if it is unknown."""
        if self.name == "http.server":
            return platform.python_version()
        if self.module:
            return version_of_module(self.module)
        if self.read_version is None:
            return version_of(self.program)
        try:
            return self.read_version()
        except (LabError, OSError, KeyError, ValueError, subprocess.SubprocessError, zipfile.BadZipFile):
            return ""  # not installed, or not as the lab expects it


def version_of_module(name: str) -> str:
    """Return the version of an installed Python module, "" if it is unknown.

    A bare directory of that name, which Python would import, has none.
    """
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


VERSION_OPTIONS = {"ab": "-V", "caddy": "version", "httperf": "--version"}  # -v for all others


def version_of(name: str) -> str:
    """Return the version that a program prints, "" if it is not installed or prints none."""
    found = find_tool(name)
    if found is None:
        return ""
    try:
        command = [found, VERSION_OPTIONS.get(name, "-v")]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    number = re.search(r"\d+\.\d[\w.+-]*", done.stdout + done.stderr)
    return number[0] if number else ""


# ---------------------------------------------------------------------------------------------------------
# Yaws

YAWS_CODE = Path("/usr/lib/yaws/ebin")
YAWS_CONFIGURATION = """\
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
    """Write the configuration of Yaws; return the command. Raises LabError without Erlang.

    Yaws has a process of Erlang for each connection. It sends the head and the body of a response separately. The
    configuration therefore turns Nagle's algorithm off (`nodelay`), or the body might wait for the client's
    acknowledgement of the head. `+K true` lets Erlang use epoll. HOME is a directory of the lab, so that no file is
    written into the user's directory.
    """
    text = YAWS_CONFIGURATION.format(directory=setup.directory, root=setup.root, port=setup.port)
    return [
        "env", f"HOME={setup.directory}", path_of_tool("erl"), "-noshell", "-noinput", "+K", "true",
        "-pa", str(YAWS_CODE),
        "-run", "yaws", "-conf", setup.write("yaws.conf", text), "-yaws", "id", "lab",
    ]  # fmt: skip


def yaws_version() -> str:
    """Return the version of Yaws, from its application file. Raises OSError, ValueError if there is none."""
    found = re.search(r'vsn, *"([\d.]+)"', (YAWS_CODE / "yaws.app").read_text())
    return found[1] if found else ""


# ---------------------------------------------------------------------------------------------------------
# Mongrel2

MONGREL2_CONFIGURATION = """\
lab = Server(uuid="lab", name="lab", bind_addr="127.0.0.1", port={port}, chroot="/", default_host="localhost",
  access_log="/dev/null", error_log="{directory}/error.log", pid_file="{directory}/mongrel2.pid",
  hosts=[Host(name="localhost", matching=".*", routes={{
    "/": Dir(base="{root}/", index_file="index.html", default_ctype="text/html")}})])
servers = [lab]
settings = {{"server.daemonize": 0}}
"""


def mongrel2(setup: Setup) -> list[str]:
    """Write the configuration of Mongrel2; return the command. Raises LabError.

    Mongrel2 is one process of coroutines. It reads its settings from a database that m2sh makes from a file. Paths
    of files are relative to the directory of its chroot, which is / here.
    """
    text = MONGREL2_CONFIGURATION.format(
        directory=setup.directory, root=str(setup.root).lstrip("/"), port=setup.port
    )
    source, database = setup.write("mongrel2.conf", text), str(setup.directory / "config.sqlite")
    done = subprocess.run(
        [path_of_tool("m2sh"), "load", "-config", source, "-db", database],
        capture_output=True,
        text=True,
        timeout=30,
    )
    if done.returncode or not os.path.exists(database):
        raise LabError(f"m2sh: {last_line(done.stdout + done.stderr)}")
    return [path_of_tool("mongrel2"), database, "lab"]


def mongrel2_version() -> str:
    """Return the version of Mongrel2, which m2sh knows. Raises LabError, OSError, SubprocessError."""
    done = subprocess.run([path_of_tool("m2sh"), "version"], capture_output=True, text=True, timeout=10)
    found = re.search(r"\d+\.\d[\d.]*", done.stdout + done.stderr)
    return found[0] if found else ""


# ---------------------------------------------------------------------------------------------------------
# All of them


def other_apache(mpm: str, about: str, max_connections: int) -> OtherServer:
    """Return Apache httpd under one of its models: mpm is `event`, `worker` or `prefork`."""
    module = f"{APACHE_MODULES}/mod_mpm_{mpm}.so"
    ssl = f"{APACHE_MODULES}/mod_ssl.so"
    return OtherServer(
        f"apache-{mpm}",
        about=about,
        package="apache2",
        prepare=webservers.apache(mpm),
        program="apache2",
        file=module,
        tls_file=ssl,
        max_connections=max_connections,
    )


# Servers that the documents measured and that no current distribution has. docs/lab.md has the whole table.
GONE_SERVERS = {
    "cherokee": "its last release is of 2013; caddy and h2o are in its place",
    "hiawatha": "it gets bug fixes only since 2019; caddy and h2o are in its place",
    "mod_python": "it left Debian with Python 2; the experiments use uWSGI",
    "speedycgi": "its last release is of 2003; the experiments use mod_perl",
}
OTHER_SERVERS = {
    other_server.name: other_server
    for other_server in (
        OtherServer(
            "nginx",
            about="nginx, one worker",
            package="nginx-light",
            prepare=webservers.nginx,
            program="nginx",
            tls_file="/",  # no further file: `/` exists
            caches="open files, a second",
        ),
        other_apache("event", "Apache httpd, event MPM", 4000),
        other_apache("worker", "Apache httpd, worker MPM, 400 threads", 400),
        other_apache("prefork", "Apache httpd, prefork MPM, 256 processes", 256),
        OtherServer(
            "lighttpd",
            about="lighttpd",
            package="lighttpd lighttpd-mod-openssl",
            prepare=webservers.lighttpd,
            program="lighttpd",
            tls_file=f"{LIGHTTPD_MODULES}/mod_openssl.so",
        ),
        OtherServer(
            "h2o",
            about="h2o, one thread",
            package="h2o",
            prepare=webservers.h2o,
            program="h2o",
            tls_file="/",
            caches="open files",
        ),
        OtherServer(
            "caddy", about="Caddy file server", package="caddy", prepare=webservers.caddy, program="caddy"
        ),
        OtherServer(
            "tomcat",
            about=f"Tomcat, {tomcat.TOMCAT_THREADS} threads",
            package="tomcat10 default-jre-headless",
            prepare=tomcat.command_for_files,
            program="java",
            file=str(tomcat.TOMCAT / "bin" / "bootstrap.jar"),
            read_version=tomcat.version,
            warm_up_s=3.0,
            caches="small files, five seconds",
        ),
        OtherServer(
            "yaws",
            about="Yaws, a process of Erlang for each connection",
            package="yaws",
            prepare=yaws,
            program="erl",
            file=str(YAWS_CODE),
            read_version=yaws_version,
        ),
        OtherServer(
            "mongrel2",
            about="Mongrel2, one process of coroutines",
            package="mongrel2-core",
            prepare=mongrel2,
            program="mongrel2",
            read_version=mongrel2_version,
        ),
        OtherServer(
            "http.server",
            about="python -m http.server, a thread a connection",
            package="",
            prepare=pythons.http_server,
        ),
        OtherServer(
            "gunicorn",
            about="gunicorn, one worker of 4 threads",
            package="gunicorn",
            prepare=pythons.gunicorn,
            module="gunicorn",
        ),
        OtherServer(
            "uvicorn",
            about="uvicorn, one event loop",
            package="uvicorn",
            prepare=pythons.uvicorn,
            module="uvicorn",
        ),
        OtherServer(
            "waitress",
            about="waitress, 4 threads",
            package="waitress",
            prepare=pythons.waitress,
            module="waitress",
        ),
        OtherServer(
            "granian",
            about="granian, one worker",
            package="granian",
            prepare=pythons.granian,
            module="granian",
        ),
        *(
            OtherServer(
                f"floor-{kind}",
                about=about,
                package="",
                prepare=pythons.floor(kind),
                tls_file=tls_file,
                read_version=platform.python_version,
            )
            for kind, about, tls_file in (
                ("loop", "the least event loop in Python", "/"),
                ("parse", "the least event loop in Python that parses", ""),
                ("thread", "the least thread for each connection in Python", ""),
                ("fork", "the least process for each connection in Python", ""),
            )
        ),
    )
}


MULTI_PROCESS_SERVERS = ("nginx", "lighttpd")  # the servers that can be started with several processes
EWE_CACHES = "small files, a second"  # the default of ewe's settings


def with_warm_up(load: Load, kind: str) -> Load:
    """Return a load with a warm-up that is long enough for a kind of server."""
    return (
        replace(load, warm_up=max(load.warm_up, OTHER_SERVERS[kind].warm_up_s))
        if kind in OTHER_SERVERS
        else load
    )


def cached_data(kind: str) -> str:
    """Return in words the data of a file that a kind of server keeps between requests, "" if none."""
    return EWE_CACHES if kind == "ewe" else OTHER_SERVERS[kind].caches if kind in OTHER_SERVERS else ""


def other_server(name: str) -> OtherServer:
    """Return another server by its name. Raises LabError."""
    if name not in OTHER_SERVERS:
        raise LabError(f"there is no server {name!r}; there are {', '.join(OTHER_SERVERS)}")
    return OTHER_SERVERS[name]
