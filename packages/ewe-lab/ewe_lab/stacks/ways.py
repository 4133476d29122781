"""Ways to serve a program: a web server, and a way to run the program behind it.

    with serve_stack(lab, ServingStack("nginx", "php-fpm", "php")) as (server, path): ...
    with serve_stack(lab, technology("xswitch python")) as (server, path): ...
    with serve_stack(lab, ServingStack("ewe", "wsgi", "python", model="thread")) as (server, path): ...

The experiments of the thesis name their stacks one by one. The experiments of X-Switch compare the technologies of
`TECHNOLOGIES`, by name: X-Switch keeps the interpreters, CGI starts one for each request, and each language has its
native technology for comparison. Raises LabError.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO, NamedTuple

from ewe_lab.bench.experiment import Bench, ServedPath, ServerUnderTest
from ewe_lab.bench.processes import LabError, find_tool, running, server_core
from ewe_lab.load.child import environment
from ewe_lab.stacks import backends, pythons, webservers
from ewe_lab.stacks.applications import HELLO, STREAM_BYTES
from ewe_lab.stacks.backends import WORKERS, php_fpm
from ewe_lab.stacks.programs import (
    EXTENSIONS,
    JSP,
    LARGE_BYTES,
    PAGES,
    programs_directory,
    write_web_application,
)
from ewe_lab.stacks.servers import StartedServer, free_port, wait_for_port
from ewe_lab.stacks.tomcat import command_for_programs
from ewe_lab.stacks.tomcat import missing_packages as missing_tomcat_packages
from ewe_lab.stacks.webservers import KEPT_CONNECTIONS, BackendProgram, Setup

PROTOCOLS = {  # `by` of a program in a process that starts before the web server: the protocol between the two
    "php-fpm": "fastcgi", "php-cgi": "fastcgi", "fastcgi": "fastcgi", "fcgi": "fastcgi", "xswitch": "fastcgi",
    "uwsgi": "uwsgi", "uwsgi-script": "uwsgi",
}  # fmt: skip


class NeededProgram(NamedTuple):
    """A program that a stack requires, and its Debian package."""

    program: str
    package: str


UWSGI = NeededProgram("uwsgi_python3", "uwsgi-plugin-python3")
PROGRAMS = {  # by a value of `front` (without Apache's MPM), `by` or `language` of a ServingStack
    "nginx": NeededProgram("nginx", "nginx-light"),
    "apache": NeededProgram("apache2", "apache2"),
    "lighttpd": NeededProgram("lighttpd", "lighttpd"),
    "php-cgi": NeededProgram("php-cgi", "php-cgi"),
    "uwsgi": UWSGI,
    "uwsgi-script": UWSGI,
    "perl": NeededProgram("perl", "perl"),
}
IN_PROCESS = ("wsgi", "asgi")  # values of `by` that run the program in a process of the server
# Values of `front`, then of `options`, that pip installs
PIP_MODULES = ("gunicorn", "uvicorn", "granian", "gevent", "uvloop")
APPLICATIONS = "ewe_lab.stacks.applications"  # a module that each of our processes can import
MAX_PROCESSES = 10  # the most clients at once if each request starts a process
MAX_KEPT_CONNECTIONS = {"apache-prefork": 256, "apache-worker": 400}  # kept connections


@dataclass(frozen=True)
class ServingStack:
    """A way to serve a program, with the number of processes of each part.

    front: the web server. by: the gateway or the interpreter that runs the program.
    """

    # nginx, apache-prefork, apache-worker, apache-event, lighttpd, tomcat, gunicorn, uvicorn, granian or ewe
    front: str
    # mod_php, mod_perl, php-fpm, php-cgi (FastCGI), uwsgi, uwsgi-script (a CGI script under WSGI), fastcgi (the
    # lab's own program), fcgi (Perl's), cgi, xswitch, wsgi, asgi, servlet or jsp
    by: str
    language: str  # php, python, perl or java
    processes: int = 1  # of the web server
    children: int = WORKERS  # processes that run the program; 0: as many as X-Switch starts by default
    tcp: bool = False  # a TCP connection between the two instead of a Unix socket, for php-fpm and php-cgi
    keeps: bool = False  # the connections between the two stay open
    backlog: int = 0  # connections that may wait for php-cgi; 0: as many as the system allows
    label: str = ""  # its name in tables
    program: str = "page"  # page, hello, large, blog (PHP), stream (ASGI) or jsp (of ewe's Java)
    model: str = "asyncio"  # of ewe, if X-Switch does not run the program
    options: tuple[str, ...] = ()  # of ewe, gunicorn, uvicorn or granian
    opcache: bool | None = None  # of PHP, on or off; None: as installed

    @property
    def name(self) -> str:
        """Its name in tables."""
        return self.label or f"{self.front.removeprefix('apache-')} {self.by}"

    @property
    def page(self) -> str:
        """The body of the program's answer; for `large`, that of `hello`."""
        if self.program in ("hello", "large"):
            return HELLO
        if self.language == "java":
            return PAGES["jsp" if "jsp" in (self.by, self.program) else "servlet"]
        return PAGES["blog" if self.program == "blog" else self.language]

    @property
    def length(self) -> int:
        """The length of the answer in bytes."""
        if self.program == "stream":
            return STREAM_BYTES
        return LARGE_BYTES if self.program == "large" else len(self.page)

    @property
    def is_backed(self) -> bool:
        """Whether a separate process runs the program, behind the web server."""
        return self.by in PROTOCOLS and (self.front, self.by) != ("ewe", "xswitch")

    def max_connections(self, *, keep_alive: bool) -> int:
        """Return the most clients that the stack can have at once. keep_alive: they keep their connections."""
        if self.by == "cgi":
            return MAX_PROCESSES
        return MAX_KEPT_CONNECTIONS.get(self.front, 1_000_000) if keep_alive else 1_000_000

    @property
    def why_missing(self) -> str:
        """The reason if the stack cannot run here, with the package to install; else ""."""
        if (self.by, self.language) == ("xswitch", "java"):
            from ewe.xswitch.engine_kinds import JAVA_DIRECTORY  # late: it imports much of X-Switch

            if not Path(JAVA_DIRECTORY).exists():
                return f"{self.name} is left out: ewe-xswitch java builds the engine"
        for module in PIP_MODULES:
            if module in (self.front, *self.options) and find_spec(module) is None:
                return f"{self.name} is left out: pip install {module}"
        if lacking := [*self.missing_programs(), *self.missing_modules()]:
            return f"{self.name} is left out: apt install {' '.join(lacking)}"
        return ""

    def missing_programs(self) -> list[str]:
        """Return the Debian packages of the programs that the stack requires and that are missing here."""
        needs = [self.front.partition("-")[0], self.by, self.language]  # apache-prefork needs apache
        if self.language == "php" and self.by in ("cgi", "xswitch"):  # both run PHP by this program
            needs.append("php-cgi")
        programs = [PROGRAMS[name] for name in needs if name in PROGRAMS]
        return [each.package for each in programs if not find_tool(each.program)]

    def missing_modules(self) -> list[str]:
        """Return the packages of missing modules and of programs with a version in their name, as PHP's."""
        if self.by == "php-fpm":
            return [] if php_fpm() else ["php-fpm"]
        if self.by == "mod_php":
            return [] if webservers.mod_php() else ["libapache2-mod-php"]
        if self.by == "mod_perl":
            return [] if webservers.has_mod_perl() else ["libapache2-mod-perl2"]
        if self.by == "fcgi":
            return [] if backends.perl_has("FCGI") else ["libfcgi-perl"]
        packages = missing_tomcat_packages() if self.front == "tomcat" else ""
        return [packages] if packages else []

    @property
    def why_missing_for_tls(self) -> str:
        """The reason if the stack cannot run over HTTPS here, with the package to install; else ""."""
        if self.front == "tomcat":
            return "the lab starts tomcat without TLS only"
        if self.front == "lighttpd" and not os.path.exists(f"{webservers.LIGHTTPD_MODULES}/mod_openssl.so"):
            return f"{self.name} is left out: apt install lighttpd-mod-openssl"
        return ""


TECHNOLOGIES = {  # by the name that X-Switch's experiments give them
    "nginx+xswitch python": ServingStack("nginx", "xswitch", "python", keeps=True),
    "nginx+xswitch php": ServingStack("nginx", "xswitch", "php", keeps=True),
    "uwsgi python": ServingStack("nginx", "uwsgi", "python"),
    "uwsgi-script python": ServingStack("nginx", "uwsgi-script", "python"),
    "fcgi perl": ServingStack("nginx", "fcgi", "perl", children=KEPT_CONNECTIONS, keeps=True),
    "mod_php php": ServingStack("apache-prefork", "mod_php", "php"),
    "mod_perl perl": ServingStack("apache-prefork", "mod_perl", "perl"),
    "php-fpm php": ServingStack("nginx", "php-fpm", "php", children=KEPT_CONNECTIONS, keeps=True),
    "tomcat java": ServingStack("tomcat", "servlet", "java"),
    "xswitch java": ServingStack("ewe", "xswitch", "java", children=0),
    **{
        f"{by} {language}": ServingStack("ewe", by, language, children=0)
        for by in ("xswitch", "cgi")
        for language in EXTENSIONS
    },
}


def technology(name: str, program: str = "hello") -> ServingStack:
    """Return the stack that X-Switch's experiments call `name`. program: as in ServingStack. Raises KeyError."""
    return replace(TECHNOLOGIES[name], label=name, program=program)


# ---------------------------------------------------------------------------------------------------------
# Serving


@contextmanager
def serve_stack(
    lab: Bench, stack: ServingStack, *options: str, tls: bool = False, root: Path | None = None
) -> Iterator[ServedPath]:
    """Serve the program of a stack; yield the server and the path. options: more options of ewe. tls: over HTTPS.

    root: a document root whose PHP files are run, in place of the program; not for Tomcat and CGI. Raises LabError,
    which names the package if one is missing.

    There are four cases: Tomcat; ewe alone; a process that runs the program, behind ewe; and such a process, or
    none, behind another web server.
    """
    if lacking := stack.why_missing or (stack.why_missing_for_tls if tls else ""):
        raise LabError(lacking)
    if stack.front == "tomcat":
        served = serve_by_tomcat(lab, stack)
    elif stack.front == "ewe" and not stack.is_backed:
        served = serve_by_ewe(lab, stack, *options, tls=tls, root=root)
    else:
        served = serve_by_processes(lab, stack, *options, tls=tls, root=root)
    with served as found:
        yield found


@contextmanager
def serve_by_processes(
    lab: Bench, stack: ServingStack, *options: str, tls: bool = False, root: Path | None = None
) -> Iterator[ServedPath]:
    """Serve a program by a process behind ewe, or by another web server with such a process or its own interpreter.

    Yields the server and the path. options, root: as in serve_stack().
    """
    programs = programs_directory(lab)
    directory = Path(tempfile.mkdtemp(prefix="way-", dir=lab.directory))
    directory.chmod(0o755)
    script = None if root else programs / script_of(stack)
    path, site = (f"/{script.name}", programs) if script else ("/", root or programs)
    with (
        tempfile.TemporaryFile() as output,
        backend(stack, directory, programs, output) as (address, other_pids),
    ):
        if stack.front == "ewe":
            backed = [f"--{PROTOCOLS[stack.by]}", f".{EXTENSIONS[stack.language]}={address}"]
            if root:
                backed += ["--defaultindex", "index.php"]
            tested = ServerUnderTest(
                stack.name, model=stack.model, options=(*backed, *stack.options, *options)
            )
            with lab.start(tested, site, tls=tls) as server:
                assert isinstance(server, StartedServer)
                yield ServedPath(replace(server, other_pids=other_pids), path)
            return
        setup = Setup(
            directory,
            free_port(),
            root=site,
            certificate=lab.certificate() if tls else None,
            processes=stack.processes,
            behind=BackendProgram(
                script, address=address, gateway=PROTOCOLS.get(stack.by, stack.by), keeps=stack.keeps
            ),
        )
        # PHP's settings are for mod_php, which runs in the web server itself
        env = environment() | php_settings(directory, stack.opcache)
        with running(command_of(stack, setup), output, server_core(), cwd=directory, env=env) as web:
            wait_for_port(web, setup.port, output, stack.front)
            url = f"{'https' if tls else 'http'}://127.0.0.1:{setup.port}/"
            yield ServedPath(StartedServer(web.pid, url, command=stack.name, other_pids=other_pids), path)


def script_of(stack: ServingStack) -> str:
    """Return the file of the program, as a URL names it."""
    if stack.by == "cgi" and stack.language == "php" and stack.program == "page":
        return "page-cgi.php"  # its first line names its interpreter
    return f"{stack.program}.{EXTENSIONS[stack.language]}"


@contextmanager
def serve_by_ewe(
    lab: Bench, stack: ServingStack, *options: str, tls: bool = False, root: Path | None = None
) -> Iterator[ServedPath]:
    """Serve a program by ewe alone: as CGI, in its own process, or by X-Switch; yield the server and the path.

    root: as in serve_stack().
    """
    options = (
        (*stack.options, *options)
        if root
        else ("--cgi-path", str(programs_directory(lab)), *stack.options, *options)
    )
    path, model = "/" if root else f"/cgi-bin/{path_of(lab, stack)}", stack.model
    if stack.by == "xswitch":
        model = "xswitch"
        options += ("--xswitch-status", *xswitch_settings(lab, stack))
    elif stack.by in IN_PROCESS:
        path = f"/{stack.program}"
        options += (f"--{stack.by}", f"{path}={APPLICATIONS}:{stack.by}_{stack.program}")
    site = root or lab.site([])
    with lab.start(ServerUnderTest(stack.name, model=model, options=options), site, tls=tls) as server:
        if stack.by == "xswitch":
            backends.wait_for_xswitch(server)
        yield ServedPath(server, path)


def path_of(lab: Bench, stack: ServingStack) -> str:
    """Return the path of a program below the cgi-bin."""
    if stack.language != "java":
        return script_of(stack)
    return f"{write_web_application(lab)}/{'page.jsp' if stack.program == 'jsp' else stack.program}"


def xswitch_settings(lab: Bench, stack: ServingStack) -> tuple[str, ...]:
    """Return the option for settings of X-Switch: as many engines as other stacks have children; PHP's opcache.

    () if the settings stay as they are. The longer queues hold all users of a load, which are one user here.
    """
    lines = []
    if stack.children:
        lines += [f"max-engines-per-user = {stack.children}", "max-queue-per-user = 2000", "max-queue = 2000"]
    if stack.opcache is not None:
        # The table replaces X-Switch's own variables of this language, so these two are repeated
        variables = {"PHP_FCGI_CHILDREN": "0", "PHP_FCGI_MAX_REQUESTS": "0"}
        variables |= php_settings(lab.directory, stack.opcache)
        pairs = ", ".join(f'{name} = "{value}"' for name, value in variables.items())
        lines += ["[engines.php]", f"environment = {{ {pairs} }}"]
    if not lines:
        return ()
    settings = Path(tempfile.mkdtemp(prefix="xswitch-", dir=lab.directory)) / "xswitch.toml"
    settings.parent.chmod(0o755)
    settings.write_text("\n".join(lines) + "\n")
    return ("--xswitch-config", str(settings))


def php_settings(where: Path, opcache: bool | None) -> dict[str, str]:
    """Return the variable of the environment that makes PHP load the opcache alone, or no extension.

    {} if `opcache` is None: PHP as installed.
    """
    if opcache is None:
        return {}
    directory = where / f"php-{'with' if opcache else 'without'}-opcache"
    directory.mkdir(exist_ok=True)
    directory.chmod(0o755)
    (directory / "opcache.ini").write_text("zend_extension=opcache\nopcache.enable=1\n" if opcache else "")
    return {"PHP_INI_SCAN_DIR": str(directory)}


@contextmanager
def serve_by_tomcat(lab: Bench, stack: ServingStack) -> Iterator[ServedPath]:
    """Serve a servlet or a JSP page by Tomcat, on the server's core; yield the server and the path."""
    directory = Path(tempfile.mkdtemp(prefix="tomcat-", dir=lab.directory))
    port = free_port()
    servlets = {stack.program: PAGES["servlet"] if stack.program == "page" else stack.page}
    command = command_for_programs(directory, port, servlets, {"page.jsp": JSP} if stack.by == "jsp" else {})
    with (
        tempfile.TemporaryFile() as output,
        running(command, output, server_core(), cwd=directory) as started,
    ):
        wait_for_port(started, port, output, "tomcat")
        path = "/page.jsp" if stack.by == "jsp" else f"/{stack.program}"
        yield ServedPath(StartedServer(started.pid, f"http://127.0.0.1:{port}/", "tomcat"), path)


def command_of(stack: ServingStack, setup: Setup) -> list[str]:
    """Write the configuration of a web server; return its command."""
    if stack.front == "nginx":
        return webservers.nginx(setup)
    if stack.front == "lighttpd":
        return webservers.lighttpd(setup)
    if stack.front in PIP_MODULES:
        return pythons.COMMANDS[stack.front](
            setup, f"{APPLICATIONS}:{stack.by}_{stack.program}", *stack.options
        )
    return webservers.apache(stack.front.removeprefix("apache-"))(setup)


class StartedBackend(NamedTuple):
    """The process that runs a program behind a web server. address: `unix:PATH` or `HOST:PORT`, for the web server.

    Without such a process the address is "", and there are no pids: the web server runs the program itself.
    """

    address: str = ""
    pids: tuple[int, ...] = ()


@contextmanager
def backend(
    stack: ServingStack, directory: Path, programs: Path, output: IO[bytes]
) -> Iterator[StartedBackend]:
    """Start the process that runs the program behind the web server, if the stack has one; yield it.

    Raises LabError. directory: for its socket and its settings. programs: the directory of the programs. output:
    its standard error.
    """
    if not stack.is_backed:
        yield StartedBackend()
        return
    socket = directory / "program"
    port = free_port()
    address = f"127.0.0.1:{port}" if stack.tcp else f"unix:{socket}"
    listen = f"127.0.0.1:{port}" if stack.tcp else str(socket)
    env = environment() | php_settings(directory, stack.opcache)
    if stack.by == "php-fpm":
        command = list(backends.fpm_command(directory, listen, stack.children))
    elif stack.by == "php-cgi":
        env |= {"PHP_FCGI_CHILDREN": str(stack.children), "PHP_FCGI_MAX_REQUESTS": "0"}
        env["PHP_FCGI_BACKLOG"] = str(stack.backlog or backends.backlog())
        command = ["php-cgi", "-b", listen]
    elif stack.by == "uwsgi":
        command = list(backends.uwsgi_command(socket, programs / f"{stack.program}_wsgi.py", stack.children))
    elif stack.by == "uwsgi-script":
        command = list(
            backends.uwsgi_command(socket, programs / f"{stack.program}_wsgi_script.py", stack.children)
        )
    elif stack.by == "fcgi":
        command = list(
            backends.fastcgi_command(socket, programs / f"{stack.program}_fcgi.pl", stack.children)
        )
    elif stack.by == "xswitch":
        command = backends.xswitch_command(socket, programs)
    else:  # "fastcgi": the lab's own program
        command = backends.responder_command(socket, stack.children, stack.length)
    with running(command, output, server_core(), cwd=directory, env=env) as started:
        if stack.tcp:
            wait_for_port(started, port, output, stack.by)
        else:
            backends.wait_for_socket(started, socket, output, stack.by)
            os.chmod(socket, 0o666)  # the web server may run under another account
        yield StartedBackend(address, (started.pid,))
