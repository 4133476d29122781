"""The resources that tests need beyond Python, make and git: how to find each one, and its Debian package.

A test names the things it needs, `@pytest.mark.needs("gcc", "root")` (support/needs.py). `make packages` runs this
file, which installs what is missing. It uses only the standard library: no environment has been made by then.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from glob import glob
from importlib.util import find_spec
from typing import NamedTuple

PATH = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"


class Resource(NamedTuple):
    """`here` looks for it. A resource without packages says what a person can do instead."""

    here: Callable[[], bool]
    packages: str = ""
    instead: str = ""


def succeeds(*command: str, sent: str = "") -> bool:
    """Return whether a command is here and succeeds."""
    try:
        return (
            subprocess.run(command, input=sent, capture_output=True, text=True, check=False).returncode == 0
        )
    except OSError:
        return False


def output(*command: str) -> str:
    """Return what a command prints; nothing if it is not here."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def programs(*names: str) -> Callable[[], bool]:
    """Look for all these programs."""
    return lambda: all(shutil.which(name, path=PATH) for name in names)


def files(*patterns: str) -> Callable[[], bool]:
    """Look for a file for each of these patterns."""
    return lambda: all(glob(pattern) for pattern in patterns)


def perl(module: str) -> Callable[[], bool]:
    """Ask Perl for a module."""
    return lambda: succeeds("perl", f"-M{module}", "-e", "1")


def php(extension: str) -> Callable[[], bool]:
    """Ask PHP for an extension."""
    return lambda: extension in output("php-cgi", "-m").split()


def module(name: str) -> Resource:
    """A package of Python that not every Python can install (support/few_tests.py)."""

    def here() -> bool:
        try:
            return find_spec(name) is not None
        except ModuleNotFoundError:  # nor the package that it would lie in
            return False

    return Resource(here, instead="pip did not install them (the logs in the virtual environment say why)")


def compiles(header: str) -> Callable[[], bool]:
    """Ask the compiler for a header of C."""
    return lambda: succeeds("cc", "-fsyntax-only", "-x", "c", "-", sent=f"#include <{header}>\n")


def private_network() -> bool:
    return succeeds("unshare", "--net", "true") if os.geteuid() == 0 else succeeds("unshare", "-rn", "true")


def mount_namespace() -> bool:
    return succeeds("unshare", "--mount" if os.geteuid() == 0 else "-rm", "true")


def two_processors() -> bool:
    return hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) >= 2


def pseudo_terminal() -> bool:
    try:
        descriptors = os.openpty()
    except OSError:
        return False
    for descriptor in descriptors:
        os.close(descriptor)
    return True


@cache
def open_python() -> str:
    """Return a Python that every account may read, this one if it is such; "" if there is none."""
    script = "import sys, wave; sys.exit(sys.version_info < (3, 11))"
    for path in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        with suppress(OSError):
            if (
                os.geteuid() == 0
                and not subprocess.run(
                    [path, "-c", script], user="nobody", group=65534, stderr=subprocess.DEVNULL, check=False
                ).returncode
            ):
                return path
    return ""


CONTAINER = "use a container (packages/ewe-classroom/docs/teaching.md)"
RESOURCES = {
    # Compilers and interpreters
    "gcc": Resource(compiles("stdio.h"), "gcc libc6-dev"),
    "g++": Resource(programs("c++"), "g++"),
    "Go": Resource(programs("go"), "golang-go"),
    "the kernel's headers": Resource(files("/usr/include/asm-generic/unistd.h"), "linux-libc-dev"),
    "the kernel's headers for x86-64": Resource(
        files("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), "linux-libc-dev"
    ),
    "bash": Resource(programs("bash"), "bash"),
    "Java": Resource(programs("java", "javac"), "default-jdk-headless"),
    "Maven": Resource(programs("mvn"), "maven"),
    "Node.js": Resource(programs("node"), "nodejs"),
    "npm": Resource(programs("npm"), "npm"),
    # Debian has a smaller Perl on each system, without these.
    "Perl": Resource(lambda: perl("JSON::PP")() and perl("Text::Wrap")(), "perl"),
    "CGI.pm": Resource(perl("CGI"), "libcgi-pm-perl"),
    "FCGI.pm": Resource(perl("FCGI"), "libfcgi-perl"),
    "Log::Log4perl": Resource(perl("Log::Log4perl"), "liblog-log4perl-perl"),
    "Moo": Resource(perl("Moo"), "libmoo-perl"),
    "Moose": Resource(perl("Moose"), "libmoose-perl"),
    "php": Resource(programs("php"), "php-cli"),
    "php-cgi": Resource(programs("php-cgi"), "php-cgi"),
    "php-fpm": Resource(lambda: programs("php-fpm")() or files("/usr/sbin/php-fpm*")(), "php-fpm"),
    "PHP's mysqli": Resource(php("mysqli"), "php-mysql"),
    "PHP's pdo_sqlite": Resource(php("pdo_sqlite"), "php-sqlite3"),
    "PHP's pdo_pgsql": Resource(php("pdo_pgsql"), "php-pgsql"),
    # Other servers, and the programs behind them
    "apache2": Resource(programs("apache2"), "apache2"),
    "mod_php": Resource(files("/usr/lib/apache2/modules/libphp*.so"), "libapache2-mod-php"),
    "mod_perl": Resource(files("/usr/lib/apache2/modules/mod_perl.so"), "libapache2-mod-perl2"),
    "haproxy": Resource(programs("haproxy"), "haproxy"),
    "lighttpd": Resource(
        lambda: programs("lighttpd")() and files("/usr/lib/lighttpd/mod_openssl.so")(),
        "lighttpd lighttpd-mod-openssl",
    ),
    "nginx": Resource(programs("nginx"), "nginx-light"),
    "Tomcat": Resource(files("/usr/share/tomcat10/bin/bootstrap.jar"), "tomcat10"),
    "uWSGI": Resource(
        lambda: programs("uwsgi")() and files("/usr/lib/uwsgi/plugins/python3*_plugin.so")(),
        "uwsgi-core uwsgi-plugin-python3",
    ),
    # Databases
    "MariaDB": Resource(programs("mariadbd"), "mariadb-server"),
    "PostgreSQL": Resource(files("/usr/lib/postgresql/*/bin/initdb"), "postgresql"),
    "libpq": Resource(files("/usr/include/postgresql/libpq-fe.h"), "libpq-dev"),
    "ecpg": Resource(files("/usr/include/postgresql/ecpglib.h"), "libecpg-dev"),
    "SQLite's header": Resource(compiles("sqlite3.h"), "libsqlite3-dev"),
    "ODBC": Resource(
        files("/usr/include/sql.h", "/usr/lib/*/odbc/libsqlite3odbc.so", "/usr/lib/*/odbc/psqlodbcw.so"),
        "unixodbc-dev libsqliteodbc odbc-postgresql",
    ),
    # Clients and tools
    "ab": Resource(programs("ab"), "apache2-utils"),
    "aria2": Resource(programs("aria2c"), "aria2"),
    "cadaver": Resource(programs("cadaver"), "cadaver"),
    "Chromium": Resource(programs("chromium"), "chromium"),
    "curl": Resource(programs("curl"), "curl"),
    "httperf": Resource(programs("httperf"), "httperf"),
    "litmus": Resource(programs("litmus"), "litmus"),
    "OpenSSL": Resource(programs("openssl"), "openssl"),
    "rclone": Resource(programs("rclone"), "rclone"),
    "strace": Resource(programs("strace"), "strace"),
    "wget": Resource(programs("wget"), "wget"),
    "wrk": Resource(programs("wrk"), "wrk"),
    # Applications that run behind ewe
    "cgit": Resource(files("/usr/lib/cgit/cgit.cgi"), "cgit"),
    "DokuWiki": Resource(files("/usr/share/dokuwiki"), "dokuwiki"),
    "Fossil": Resource(programs("fossil"), "fossil"),
    "git": Resource(programs("git"), "git"),
    "gitweb": Resource(files("/usr/share/gitweb/gitweb.cgi"), "gitweb"),
    "Mercurial": Resource(programs("hg"), "mercurial"),
    "Radicale": Resource(programs("radicale"), "radicale"),
    "WordPress": Resource(
        files("/usr/share/wordpress", "/usr/share/wordpress/wp-content/themes/twenty*"),
        "wordpress wordpress-theme-twentytwentythree",
    ),
    # Resources without a package of Debian
    "root": Resource(lambda: os.geteuid() == 0, instead="run the tests as root"),
    "a Python for every account": Resource(
        lambda: bool(open_python()), instead="install Python 3.11 or newer outside of root's home"
    ),
    "ip": Resource(programs("ip"), "iproute2"),
    "sshd": Resource(programs("sshd", "ssh", "ssh-keygen"), "openssh-server openssh-client"),
    "/dev/net/tun": Resource(
        lambda: os.access("/dev/net/tun", os.R_OK | os.W_OK), instead="load the kernel's module tun, as root"
    ),
    "a mount namespace": Resource(mount_namespace, instead="run the tests as root"),
    "two processors": Resource(two_processors, instead="run the tests on Linux, with two processors"),
    "a private network": Resource(private_network, instead="run the tests as root"),
    "Linux": Resource(lambda: sys.platform == "linux", instead=CONTAINER),
    "/proc": Resource(files("/proc/self/fd"), instead=CONTAINER),
    "/dev/full": Resource(files("/dev/full"), instead=CONTAINER),
    "/dev/shm": Resource(lambda: os.access("/dev/shm", os.W_OK), instead="mount a tmpfs there"),
    "a pseudo-terminal": Resource(pseudo_terminal, instead="mount devpts at /dev/pts"),
    "apt-get": Resource(programs("apt-get", "dpkg-deb"), instead="use Debian, or a container"),
    "Jetty": Resource(lambda: True, instead="Maven fetches it once, over the network"),
    "the driver of SQLite for Java": Resource(
        lambda: True, instead="Maven fetches it once, over the network"
    ),
    "brotli": module("brotli"),
    "copydetect": module("copydetect"),
    "fastapi": module("fastapi"),
    "httptools": module("httptools"),
    "locust": module("locust"),
    "posix_ipc": module("posix_ipc"),
    "psycopg": module("psycopg"),
    "uvloop": module("uvloop"),
    "zstd": module("_zstd" if sys.version_info >= (3, 14) else "backports.zstd"),
}


@cache
def is_here(name: str) -> bool:
    """Look for a resource, once for each process."""
    return RESOURCES[name].here()


def lacking(names: Iterable[str]) -> list[str]:
    """Return which of these resources are not here."""
    return [name for name in names if not is_here(name)]


def install() -> int:
    """Install the packages of the resources that are not here; return the exit status."""
    wanted = [name for name in lacking(RESOURCES) if RESOURCES[name].packages]
    packages = sorted({package for name in wanted for package in RESOURCES[name].packages.split()})
    if not wanted:
        print("Nothing is missing: no test is skipped for want of a package.")
        return 0
    if shutil.which("apt-get", path=PATH) is None:
        print(f"There is no apt-get here. Install what brings {', '.join(wanted)}.", file=sys.stderr)
        return 1
    if os.geteuid() != 0:
        print(f"Only root installs packages: sudo make packages ({' '.join(packages)})", file=sys.stderr)
        return 1
    for name in wanted:
        print(f"{name}: {RESOURCES[name].packages}", flush=True)
    # Without a runlevel in which servers are started, no package starts its server.
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    subprocess.run(["apt-get", "-qq", "update"], env=environment, check=False)
    known = [name for name in packages if succeeds("apt-cache", "show", "--no-all-versions", name)]
    if unknown := sorted(set(packages) - set(known)):
        print(f"This system has no packages of these names: {' '.join(unknown)}", file=sys.stderr)
    command = ["apt-get", "-qq", "install", "-y", "--no-install-recommends", *known]
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(install())
