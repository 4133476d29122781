"""Ways to serve a program: a web server, and how it has the program run.

    with served(lab, Way("nginx", "php-fpm", "php")) as (server, path): ...
    with served(lab, technology("xswitch python")) as (server, path): ...
    with served(lab, Way("ewe", "wsgi", "python", model="thread")) as (server, path): ...

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
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from ewe.xswitch.engine_kinds import JAVA
from ewe_lab.bench.experiment import Bench, Contender, Running
from ewe_lab.bench.processes import LabError, find_tool, running, two_cores
from ewe_lab.load.child import environment
from ewe_lab.stacks import backends, pythons, webservers
from ewe_lab.stacks.applications import HELLO
from ewe_lab.stacks.backends import WORKERS, php_fpm
from ewe_lab.stacks.programs import EXTENSIONS, JSP, LARGE, PAGES, application_of, directory_of
from ewe_lab.stacks.servers import Server, free_port, wait_for_port
from ewe_lab.stacks.tomcat import missing as tomcat_lacks
from ewe_lab.stacks.tomcat import serves_programs
from ewe_lab.stacks.webservers import KEPT, Behind, Setup

SPOKEN = {  # what runs the program is a process before the web server starts: by, the protocol between the two
    "php-fpm": "fastcgi", "php-cgi": "fastcgi", "fastcgi": "fastcgi", "fcgi": "fastcgi", "xswitch": "fastcgi",
    "uwsgi": "uwsgi", "uwsgi-script": "uwsgi",
}  # fmt: skip
PACKAGES = {  # a front or a by: the program that has to be there, and its package
    "nginx": ("nginx", "nginx-light"), "apache": ("apache2", "apache2"), "lighttpd": ("lighttpd", "lighttpd"),
    "php-cgi": ("php-cgi", "php-cgi"), "uwsgi": ("uwsgi_python3", "uwsgi-plugin-python3"),
    "uwsgi-script": ("uwsgi_python3", "uwsgi-plugin-python3"), "perl": ("perl", "perl"),
}  # fmt: skip
IN_PROCESS = ("wsgi", "asgi")  # by: in a process of the server
MODULES = ("gunicorn", "uvicorn")  # fronts that pip installs
APPLICATIONS = "ewe_lab.stacks.applications"  # a module that any of our processes can import
MOST_PROCESSES = 10  # clients at once where each request starts a process
MOST = {"apache-prefork": 256, "apache-worker": 400}  # kept connections


@dataclass(frozen=True)
class Way:
    """A way to serve a program, with how many processes of each part."""

    front: (
        str  # nginx, apache-prefork, apache-worker, apache-event, lighttpd, tomcat, gunicorn, uvicorn or ewe
    )
    # mod_php, php-fpm, php-cgi (FastCGI), uwsgi, uwsgi-script (a CGI script under WSGI), fastcgi (the lab's own
    # program), fcgi (Perl's), cgi, xswitch, wsgi, asgi, servlet or jsp
    by: str
    language: str  # php, python, perl or java
    processes: int = 1  # of the web server
    children: int = WORKERS  # processes that run the program; 0: as many as X-Switch starts by itself
    tcp: bool = False  # between the two, where possible
    keeps: bool = False  # the connections between the two stay open
    backlog: int = 0  # connections that may wait for php-cgi; 0: as many as the system allows
    label: str = ""  # its name in tables
    program: str = "page"  # page, hello, large, blog (PHP) or jsp (of ewe's Java)
    model: str = "asyncio"  # of ewe, where X-Switch does not run the program
    options: tuple[str, ...] = ()  # of ewe, gunicorn or uvicorn
    opcache: bool | None = None  # of PHP, on or off; None: as installed

    @property
    def name(self) -> str:
        """Its name in tables."""
        return self.label or f"{self.front.removeprefix('apache-')} {self.by}"

    @property
    def page(self) -> str:
        """What the program answers."""
        if self.program in ("hello", "large"):
            return HELLO
        if self.language == "java":
            return PAGES["jsp" if "jsp" in (self.by, self.program) else "servlet"]
        return PAGES["blog" if self.program == "blog" else self.language]

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
        if self.front in MODULES and find_spec(self.front) is None:
            return f"{self.name} is left out: pip install {self.front}"
        if "uvloop" in self.options and find_spec("uvloop") is None:
            return f"{self.name} is left out: pip install uvloop"
        if self.front == "tomcat" and (packages := tomcat_lacks()):
            lacking.append(packages)
        return f"{self.name} is left out: apt install {' '.join(lacking)}" if lacking else ""

    @property
    def missing_for_tls(self) -> str:
        """Why it cannot run over HTTPS here, and what would help; "" if it can."""
        if self.front == "tomcat":
            return "the lab starts tomcat without TLS only"
        if self.front == "lighttpd" and not os.path.exists(f"{webservers.LIGHTTPD_MODULES}/mod_openssl.so"):
            return f"{self.name} is left out: apt install lighttpd-mod-openssl"
        return ""


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
def served(
    lab: Bench, way: Way, *options: str, tls: bool = False, root: Path | None = None
) -> Iterator[tuple[Running, str]]:
    """Serve the program of a way; yield the server and the path. options: of ewe's. tls: over HTTPS.

    root: a document root whose PHP files are run, in place of the program; not for Tomcat and CGI.

    Raises LabError, which names the package if one is missing.
    """
    if lacking := way.missing or (way.missing_for_tls if tls else ""):
        raise LabError(lacking)
    if way.front == "tomcat":
        with by_tomcat(lab, way) as found:
            yield found
        return
    if way.front == "ewe" and not way.is_backed:
        with by_ewe(lab, way, *options, tls=tls, root=root) as found:
            yield found
        return
    programs = directory_of(lab)
    where = Path(tempfile.mkdtemp(prefix="way-", dir=lab.directory))
    where.chmod(0o755)
    script = None if root else programs / script_of(way)
    path, site = (f"/{script.name}", programs) if script else ("/", root or programs)
    with ExitStack() as stack:
        output = stack.enter_context(tempfile.TemporaryFile())
        address, also = stack.enter_context(backend(way, where, programs, output))
        if way.front == "ewe":
            backed = [f"--{SPOKEN[way.by]}", f".{EXTENSIONS[way.language]}={address}"]
            if root:
                backed += ["--defaultindex", "index.php"]
            contender = Contender(way.name, model=way.model, options=(*backed, *way.options, *options))
            server = stack.enter_context(lab.start(contender, site, tls=tls))
            assert isinstance(server, Server)
            yield replace(server, also=also), path
            return
        behind = Behind(script, address, SPOKEN.get(way.by, way.by), way.keeps)
        certificate = lab.certificate() if tls else None
        setup = Setup(where, free_port(), site, certificate, processes=way.processes, behind=behind)
        env = environment() | php_settings(where, way.opcache)
        with running(command_of(way, setup), output, two_cores()[0], cwd=where, env=env) as web:
            wait_for_port(web, setup.port, output, way.front)
            url = f"{'https' if tls else 'http'}://127.0.0.1:{setup.port}/"
            yield Server(web.pid, url, way.name, also), path


def script_of(way: Way) -> str:
    """Return the file of the program, as a URL names it."""
    if way.by == "cgi" and way.language == "php" and way.program == "page":
        return "page-cgi.php"  # its first line names its interpreter
    return f"{way.program}.{EXTENSIONS[way.language]}"


@contextmanager
def by_ewe(
    lab: Bench, way: Way, *options: str, tls: bool = False, root: Path | None = None
) -> Iterator[tuple[Running, str]]:
    """Serve a program by ewe alone: as CGI, in its own process, or by X-Switch. root: as in served()."""
    options = (
        (*way.options, *options) if root else ("--cgi-path", str(directory_of(lab)), *way.options, *options)
    )
    path, model = "/" if root else f"/cgi-bin/{path_of(lab, way)}", way.model
    if way.by == "xswitch":
        model = "xswitch"
        options += ("--xswitch-status", *xswitch_settings(lab, way))
    elif way.by in IN_PROCESS:
        path = f"/{way.program}"
        options += (f"--{way.by}", f"{path}={APPLICATIONS}:{way.by}_{way.program}")
    site = root or lab.site([])
    with lab.start(Contender(way.name, model=model, options=options), site, tls=tls) as server:
        if way.by == "xswitch":
            backends.wait_for_xswitch(server)
        yield server, path


def path_of(lab: Bench, way: Way) -> str:
    """Return the path of a program below the cgi-bin."""
    if way.language != "java":
        return script_of(way)
    return f"{application_of(lab)}/{'page.jsp' if way.program == 'jsp' else way.program}"


def xswitch_settings(lab: Bench, way: Way) -> tuple[str, ...]:
    """Return the option for settings of X-Switch: as many engines as other ways have children; PHP's opcache."""
    lines = []
    if way.children:
        lines += [f"max-engines-per-user = {way.children}", "max-queue-per-user = 2000", "max-queue = 2000"]
    if way.opcache is not None:
        variables = {"PHP_FCGI_CHILDREN": "0", "PHP_FCGI_MAX_REQUESTS": "0"}
        variables |= php_settings(lab.directory, way.opcache)
        pairs = ", ".join(f'{name} = "{value}"' for name, value in variables.items())
        lines += ["[engines.php]", f"environment = {{ {pairs} }}"]
    if not lines:
        return ()
    settings = Path(tempfile.mkdtemp(prefix="xswitch-", dir=lab.directory)) / "xswitch.toml"
    settings.parent.chmod(0o755)
    settings.write_text("\n".join(lines) + "\n")
    return ("--xswitch-config", str(settings))


def php_settings(where: Path, opcache: bool | None) -> dict[str, str]:
    """Return the variable that has PHP load its opcache and no other extension, or none; {}: as installed."""
    if opcache is None:
        return {}
    directory = where / f"php-{'with' if opcache else 'without'}-opcache"
    directory.mkdir(exist_ok=True)
    directory.chmod(0o755)
    (directory / "opcache.ini").write_text("zend_extension=opcache\nopcache.enable=1\n" if opcache else "")
    return {"PHP_INI_SCAN_DIR": str(directory)}


@contextmanager
def by_tomcat(lab: Bench, way: Way) -> Iterator[tuple[Running, str]]:
    """Serve a servlet or a JSP page by Tomcat, on the server's core."""
    where = Path(tempfile.mkdtemp(prefix="tomcat-", dir=lab.directory))
    port = free_port()
    servlets = {way.program: PAGES["servlet"] if way.program == "page" else way.page}
    command = serves_programs(where, port, servlets, {"page.jsp": JSP} if way.by == "jsp" else {})
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
    if way.front in MODULES:
        return pythons.COMMANDS[way.front](setup, f"{APPLICATIONS}:{way.by}_{way.program}", *way.options)
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
    env = environment() | php_settings(where, way.opcache)
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
