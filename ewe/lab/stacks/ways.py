"""Ways to serve a program: a web server, and how it has the program run.

    with served(lab, Way("nginx", "php-fpm", "php")) as (server, path): ...
    with served(lab, technology("xswitch python")) as (server, path): ...

The experiments of the thesis name their ways one by one. Those of X-Switch compare the technologies of
`TECHNOLOGIES`, by name: X-Switch keeps the interpreters, CGI starts one for each request, and beside them stand the
native technologies of each language. Raises LabError.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from ewe.lab.bench.experiment import Bench, Contender, Running
from ewe.lab.bench.processes import find_tool, running, two_cores
from ewe.lab.load.child import environment
from ewe.lab.stacks import backends, webservers
from ewe.lab.stacks.backends import WORKERS, php_fpm
from ewe.lab.stacks.programs import EXTENSIONS, HELLO, LARGE, PAGES, application_of, directory_of
from ewe.lab.stacks.servers import Server, free_port, wait_for_port
from ewe.lab.stacks.tomcat import missing as tomcat_lacks
from ewe.lab.stacks.tomcat import serves_programs
from ewe.lab.stacks.webservers import KEPT, Behind, Setup
from ewe.xswitch.engine_kinds import JAVA

JSP = '<%@ page contentType="text/plain" %><% for (int i = 1; i < {length}; i++) out.print("x"); %>\n'
SPOKEN = {  # what runs the program is a process before the web server starts: by, the protocol between the two
    "php-fpm": "fastcgi", "php-cgi": "fastcgi", "fastcgi": "fastcgi", "fcgi": "fastcgi", "xswitch": "fastcgi",
    "uwsgi": "uwsgi", "uwsgi-script": "uwsgi",
}  # fmt: skip
PACKAGES = {  # a front or a by: the program that has to be there, and its package
    "nginx": ("nginx", "nginx-light"), "apache": ("apache2", "apache2"), "lighttpd": ("lighttpd", "lighttpd"),
    "php-cgi": ("php-cgi", "php-cgi"), "uwsgi": ("uwsgi_python3", "uwsgi-plugin-python3"),
    "uwsgi-script": ("uwsgi_python3", "uwsgi-plugin-python3"), "perl": ("perl", "perl"),
}  # fmt: skip
MOST_PROCESSES = 10  # clients at once where each request starts a process
MOST = {"apache-prefork": 256, "apache-worker": 400}  # kept connections


@dataclass(frozen=True)
class Way:
    """A way. front: nginx, apache-prefork, apache-worker, apache-event, lighttpd, tomcat or ewe. by: mod_php,
    php-fpm, php-cgi (FastCGI), uwsgi, uwsgi-script (a CGI script under WSGI), fastcgi (the lab's own program), fcgi
    (Perl's), cgi, xswitch, servlet or jsp. language: php, python, perl or java. processes: of the web server;
    children: processes that run the program, 0: as many as X-Switch starts by itself. tcp: between the two, where
    possible. keeps: whether the connections between the two stay open. backlog: connections that may wait for
    php-cgi, 0: as many as the system allows. label: its name in tables. program: page, hello or large.
    """

    front: str
    by: str
    language: str
    processes: int = 1
    children: int = WORKERS
    tcp: bool = False
    keeps: bool = False
    backlog: int = 0
    label: str = ""
    program: str = "page"

    @property
    def name(self) -> str:
        """Its name in tables."""
        return self.label or f"{self.front.removeprefix('apache-')} {self.by}"

    @property
    def page(self) -> str:
        """What the program answers."""
        if self.program == "page":
            return PAGES[self.by if self.language == "java" else self.language]
        return HELLO

    @property
    def length(self) -> int:
        """The bytes of the answer."""
        return LARGE if self.program == "large" else len(self.page)

    @property
    def is_backed(self) -> bool:
        """Whether a separate process runs the program, behind the web server."""
        return self.by in SPOKEN and (self.front, self.by) != ("ewe", "xswitch")

    def most(self, keep_alive: bool) -> int:
        """Return how many clients at once it can have."""
        if self.by == "cgi":
            return MOST_PROCESSES
        return MOST.get(self.front, 1_000_000) if keep_alive else 1_000_000

    @property
    def missing(self) -> str:
        """Why it cannot run here, and what would help; "" if it can."""
        if (self.by, self.language) == ("xswitch", "java") and not Path(JAVA).exists():
            return f"{self.name} is left out: ewe-xswitch java builds the engine"
        needs = [self.front.partition("-")[0], self.by, self.language]
        if self.language == "php" and self.by in ("cgi", "xswitch"):
            needs.append("php-cgi")
        lacking = [
            PACKAGES[name][1] for name in needs if name in PACKAGES and not find_tool(PACKAGES[name][0])
        ]
        if self.by == "php-fpm" and not php_fpm():
            lacking.append("php-fpm")
        if self.by == "mod_php" and not webservers.mod_php():
            lacking.append("libapache2-mod-php")
        if self.by == "fcgi" and not backends.perl_has("FCGI"):
            lacking.append("libfcgi-perl")
        if self.front == "tomcat" and (packages := tomcat_lacks()):
            lacking.append(packages)
        return f"{self.name} is left out: apt install {' '.join(lacking)}" if lacking else ""


TECHNOLOGIES = {  # by the name that X-Switch's experiments give them
    "nginx+xswitch python": Way("nginx", "xswitch", "python", keeps=True),
    "nginx+xswitch php": Way("nginx", "xswitch", "php", keeps=True),
    "uwsgi python": Way("nginx", "uwsgi", "python"),
    "uwsgi-script python": Way("nginx", "uwsgi-script", "python"),
    "fcgi perl": Way("nginx", "fcgi", "perl", children=KEPT, keeps=True),
    "mod_php php": Way("apache-prefork", "mod_php", "php"),
    "php-fpm php": Way("nginx", "php-fpm", "php", children=KEPT, keeps=True),
    "tomcat java": Way("tomcat", "servlet", "java"),
    "xswitch java": Way("ewe", "xswitch", "java", children=0),
    **{
        f"{by} {language}": Way("ewe", by, language, children=0)
        for by in ("xswitch", "cgi")
        for language in EXTENSIONS
    },
}


def technology(name: str, program: str = "hello") -> Way:
    """Return the way that a name of X-Switch's experiments means."""
    return replace(TECHNOLOGIES[name], label=name, program=program)


# ---------------------------------------------------------------------------------------------------------
# Serving


@contextmanager
def served(lab: Bench, way: Way, *options: str) -> Iterator[tuple[Running, str]]:
    """Serve the program of a way; yield the server and the path. options: of ewe's. Raises LabError."""
    if way.front == "tomcat":
        with by_tomcat(lab, way) as found:
            yield found
        return
    if way.front == "ewe" and not way.is_backed:
        with by_ewe(lab, way, *options) as found:
            yield found
        return
    programs = directory_of(lab)
    where = Path(tempfile.mkdtemp(prefix="way-", dir=lab.directory))
    where.chmod(0o755)
    script = programs / script_of(way)
    with ExitStack() as stack:
        output = stack.enter_context(tempfile.TemporaryFile())
        address, also = stack.enter_context(backend(way, where, programs, output))
        if way.front == "ewe":
            backed = ("--fastcgi", f".{EXTENSIONS[way.language]}={address}")
            contender = Contender(way.name, model="asyncio", options=(*backed, *options))
            server = stack.enter_context(lab.start(contender, programs))
            assert isinstance(server, Server)
            yield replace(server, also=also), f"/{script.name}"
            return
        behind = Behind(script, address, SPOKEN.get(way.by, way.by), way.keeps)
        setup = Setup(where, free_port(), programs, processes=way.processes, behind=behind)
        with running(command_of(way, setup), output, two_cores()[0], cwd=where) as web:
            wait_for_port(web, setup.port, output, way.front)
            yield Server(web.pid, f"http://127.0.0.1:{setup.port}/", way.name, also), f"/{script.name}"


def script_of(way: Way) -> str:
    """Return the file of the program, as a URL names it."""
    if way.by == "cgi" and way.language == "php" and way.program == "page":
        return "page-cgi.php"  # its first line names its interpreter
    return f"{way.program}.{EXTENSIONS[way.language]}"


@contextmanager
def by_ewe(lab: Bench, way: Way, *options: str) -> Iterator[tuple[Running, str]]:
    """Serve a program by ewe alone: as CGI, or by X-Switch with as many engines as other ways have children."""
    programs = directory_of(lab)
    options = ("--cgi-path", str(programs), *options)
    if way.by == "xswitch":
        options += ("--xswitch-status",)
        if way.children:
            settings = lab.directory / f"engines-{way.children}.toml"
            settings.write_text(
                f"max-engines-per-user = {way.children}\nmax-queue-per-user = 2000\nmax-queue = 2000\n"
            )
            options += ("--xswitch-config", str(settings))
    name = f"{application_of(lab)}/hello" if way.language == "java" else script_of(way)
    model = "xswitch" if way.by == "xswitch" else "asyncio"
    with lab.start(Contender(way.name, model=model, options=options), lab.site([])) as server:
        if way.by == "xswitch":
            backends.wait_for_xswitch(server)
        yield server, f"/cgi-bin/{name}"


@contextmanager
def by_tomcat(lab: Bench, way: Way) -> Iterator[tuple[Running, str]]:
    """Serve a servlet or a JSP page by Tomcat, on the server's core."""
    where = Path(tempfile.mkdtemp(prefix="tomcat-", dir=lab.directory))
    port = free_port()
    servlets = {way.program: PAGES["servlet"] if way.program == "page" else way.page}
    pages = {"page.jsp": JSP.replace("{length}", str(len(PAGES["jsp"])))} if way.by == "jsp" else {}
    command = serves_programs(where, port, servlets, pages)
    with (
        tempfile.TemporaryFile() as output,
        running(command, output, two_cores()[0], cwd=where) as started,
    ):
        wait_for_port(started, port, output, "tomcat")
        path = "/page.jsp" if way.by == "jsp" else f"/{way.program}"
        yield Server(started.pid, f"http://127.0.0.1:{port}/", "tomcat"), path


def command_of(way: Way, setup: Setup) -> list[str]:
    """Return the command of a web server."""
    if way.front == "nginx":
        return webservers.nginx(setup)
    if way.front == "lighttpd":
        return webservers.lighttpd(setup)
    return webservers.apache(way.front.removeprefix("apache-"))(setup)


@contextmanager
def backend(
    way: Way, where: Path, programs: Path, output: IO[bytes]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Start the process that runs the program; yield its address and its pid. "" if the web server runs it."""
    if not way.is_backed:
        yield "", ()
        return
    socket = where / "program"
    port = free_port()
    address = f"127.0.0.1:{port}" if way.tcp else f"unix:{socket}"
    listen = f"127.0.0.1:{port}" if way.tcp else str(socket)
    env = environment()
    if way.by == "php-fpm":
        command = list(backends.fpm(where, listen, way.children))
    elif way.by == "php-cgi":
        env |= {"PHP_FCGI_CHILDREN": str(way.children), "PHP_FCGI_MAX_REQUESTS": "0"}
        env["PHP_FCGI_BACKLOG"] = str(way.backlog or backends.backlog())
        command = ["php-cgi", "-b", listen]
    elif way.by == "uwsgi":
        command = list(backends.uwsgi(socket, programs / f"{way.program}_wsgi.py", way.children))
    elif way.by == "uwsgi-script":
        command = list(backends.uwsgi(socket, programs / f"{way.program}_wsgi_script.py", way.children))
    elif way.by == "fcgi":
        command = list(backends.fcgi(socket, programs / f"{way.program}_fcgi.pl", way.children))
    elif way.by == "xswitch":
        command = backends.xswitch(socket, programs)
    else:
        command = backends.responder(socket, way.children, way.length)
    with running(command, output, two_cores()[0], cwd=where, env=env) as started:
        if way.tcp:
            wait_for_port(started, port, output, way.by)
        else:
            backends.wait_for_socket(started, socket, output, way.by)
            os.chmod(socket, 0o666)
        yield address, (started.pid,)
