"""Ways to serve a page that a program makes: a web server, and how it has the program run.

    with served(lab, Way("nginx", "php-fpm", "php")) as (server, path): ...

The thesis's dynamic tests, and ewe beside them. Raises LabError.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from ewe.lab import fronts
from ewe.lab.experiment import Bench, Contender, Running
from ewe.lab.fronts import Behind
from ewe.lab.load.child import environment
from ewe.lab.processes import find_tool, running, two_cores
from ewe.lab.programs import (
    PAGE_JSP,
    PAGE_PHP,
    PAGE_PYTHON,
    PAGE_SERVLET,
    WORKERS,
    backlog,
    directory_of,
    fpm,
    php_fpm,
    technology,
    uwsgi,
    wait_for_socket,
)
from ewe.lab.servers import Server, free_port, wait_for_port
from ewe.lab.tomcat import missing as tomcat_lacks
from ewe.lab.tomcat import tomcat

EXTENSIONS = {"php": "php", "python": "py"}
PAGES = {"php": PAGE_PHP, "python": PAGE_PYTHON, "servlet": PAGE_SERVLET, "jsp": PAGE_JSP}
JSP = '<%@ page contentType="text/plain" %><% for (int i = 1; i < {length}; i++) out.print("x"); %>\n'
STAYS = ("php-fpm", "php-cgi", "uwsgi", "fastcgi")  # what runs the program is there before the web server
PACKAGES = {  # what has to be there: program, package
    "nginx": ("nginx", "nginx-light"), "apache": ("apache2", "apache2"), "lighttpd": ("lighttpd", "lighttpd"),
    "php-cgi": ("php-cgi", "php-cgi"), "uwsgi": ("uwsgi_python3", "uwsgi-plugin-python3"),
}  # fmt: skip
MOST_PROCESSES = 10  # clients at once where each is a process, started anew
MOST = {"apache-prefork": 256, "apache-worker": 400}  # that keep their connections


@dataclass(frozen=True)
class Way:
    """A way. front: nginx, apache-prefork, apache-worker, apache-event, lighttpd, tomcat or ewe. by: mod_php,
    php-fpm, php-cgi (FastCGI), uwsgi, fastcgi (in Python), cgi, xswitch, servlet or jsp. language: php, python or
    java. processes: of the web server; children: that run the program; tcp: between the two, where it can be.
    backlog: connections that may wait for php-cgi, 0: as many as the system allows. label: its name in tables.
    """

    front: str
    by: str
    language: str
    processes: int = 1
    children: int = WORKERS
    tcp: bool = False
    backlog: int = 0
    label: str = ""

    @property
    def name(self) -> str:
        """What it is called in tables."""
        return self.label or f"{self.front.removeprefix('apache-')} {self.by}"

    @property
    def page(self) -> str:
        """What it answers."""
        return PAGES[self.by if self.language == "java" else self.language]

    def most(self, keep_alive: bool) -> int:
        """Return how many clients at once it can have."""
        if self.by == "cgi":
            return MOST_PROCESSES
        return MOST.get(self.front, 1_000_000) if keep_alive else 1_000_000

    @property
    def missing(self) -> str:
        """Why it cannot run here, and what would help; "" if it can."""
        needs = [self.front.partition("-")[0], self.by]
        if self.language == "php" and self.by in ("cgi", "xswitch"):
            needs.append("php-cgi")
        lacking = [
            PACKAGES[name][1] for name in needs if name in PACKAGES and not find_tool(PACKAGES[name][0])
        ]
        if self.by == "php-fpm" and not php_fpm():
            lacking.append("php-fpm")
        if self.by == "mod_php" and not fronts.mod_php():
            lacking.append("libapache2-mod-php")
        if self.front == "tomcat" and (packages := tomcat_lacks()):
            lacking.append(packages)
        return f"{self.name} is left out: apt install {' '.join(lacking)}" if lacking else ""


@contextmanager
def served(lab: Bench, way: Way) -> Iterator[tuple[Running, str]]:
    """Serve the page of a way's language; yield the server and the path. Raises LabError."""
    if way.front == "ewe" and way.by in ("xswitch", "cgi"):
        with by_ewe(lab, way) as found:
            yield found
        return
    if way.front == "tomcat":
        with by_tomcat(lab, way) as found:
            yield found
        return
    programs = directory_of(lab)
    where = Path(tempfile.mkdtemp(prefix="way-", dir=lab.directory))
    where.chmod(0o755)
    script = programs / page_of(way)
    with ExitStack() as stack:
        output = stack.enter_context(tempfile.TemporaryFile())
        address, also = stack.enter_context(application(way, where, programs, output))
        if way.front == "ewe":
            options = ("--fastcgi", f".{EXTENSIONS[way.language]}={address}")
            contender = Contender(way.name, model="asyncio", options=options)
            server = stack.enter_context(lab.start(contender, programs))
            assert isinstance(server, Server)
            yield replace(server, also=also), f"/{script.name}"
            return
        spoken = "fastcgi" if way.by in ("php-fpm", "php-cgi") else way.by
        behind = Behind(where, free_port(), script, address, spoken, way.processes)
        with running(command_of(way, behind), output, two_cores()[0], cwd=where) as web:
            wait_for_port(web, behind.port, output, way.front)
            yield Server(web.pid, f"http://127.0.0.1:{behind.port}/", way.name, also), f"/{script.name}"


def page_of(way: Way) -> str:
    """Return the file of the program."""
    if way.by == "cgi" and way.language == "php":
        return "page-cgi.php"  # with a first line that says what runs it
    return f"page.{EXTENSIONS[way.language]}"


@contextmanager
def by_ewe(lab: Bench, way: Way) -> Iterator[tuple[Running, str]]:
    """Serve it by ewe alone, with as many engines as others have children."""
    settings = lab.directory / f"engines-{way.children}.toml"
    settings.write_text(
        f"max-engines-per-user = {way.children}\nmax-queue-per-user = 2000\nmax-queue = 2000\n"
    )
    options = ("--xswitch-config", str(settings)) if way.by == "xswitch" else ()
    program = page_of(way).partition(".")[0]
    with technology(lab, f"{way.by} {way.language}", *options, program=program) as found:
        yield found


@contextmanager
def by_tomcat(lab: Bench, way: Way) -> Iterator[tuple[Running, str]]:
    """Serve a servlet's page or a JSP page."""
    where = Path(tempfile.mkdtemp(prefix="tomcat-", dir=lab.directory))
    page = JSP.replace("{length}", str(len(PAGE_JSP)))
    with tomcat(where, servlets={"page": PAGE_SERVLET}, pages={"page.jsp": page}) as server:
        yield server, "/page" if way.by == "servlet" else "/page.jsp"


def command_of(way: Way, behind: Behind) -> list[str]:
    """Return the command of a web server."""
    if way.front == "nginx":
        return fronts.nginx(behind)
    if way.front == "lighttpd":
        return fronts.lighttpd(behind)
    return fronts.apache(way.front.removeprefix("apache-"), behind)


@contextmanager
def application(
    way: Way, where: Path, programs: Path, output: IO[bytes]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Run what runs the program; yield its address and its process. Nothing, where the web server does it."""
    if way.by not in STAYS:
        yield "", ()
        return
    socket = where / "program"
    port = free_port()
    address = f"127.0.0.1:{port}" if way.tcp else f"unix:{socket}"
    listen = f"127.0.0.1:{port}" if way.tcp else str(socket)
    env = environment()
    if way.by == "php-fpm":
        command = list(fpm(where, listen, way.children))
    elif way.by == "php-cgi":
        env |= {"PHP_FCGI_CHILDREN": str(way.children), "PHP_FCGI_MAX_REQUESTS": "0"}
        env["PHP_FCGI_BACKLOG"] = str(way.backlog or backlog())
        command = ["php-cgi", "-b", listen]
    elif way.by == "uwsgi":
        command = list(uwsgi(socket, programs / "page_wsgi.py", children=way.children))
    else:
        command = [
            sys.executable,
            "-m",
            "ewe.lab.responder",
            str(socket),
            str(way.children),
            str(len(way.page)),
        ]
    with running(command, output, two_cores()[0], cwd=where, env=env) as started:
        if way.tcp:
            wait_for_port(started, port, output, way.by)
        else:
            wait_for_socket(started, socket, output, way.by)
            os.chmod(socket, 0o666)
        yield address, (started.pid,)
