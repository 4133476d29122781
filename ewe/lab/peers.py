"""Other web servers, each with the least it needs to serve the files of one directory on 127.0.0.1.

Their configuration is written to a directory of the run's own; nothing of what is installed is read or
changed. One worker process where a server would start one for each core, since all have one core here; no
access log; a connection is never closed because it is old, where that can be said.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from ewe.lab.processes import LabError, find_tool, tool


@dataclass(frozen=True)
class Setup:
    """What a server is to serve, and where it may write. certificate: PEM with key and chain, for HTTPS."""

    root: Path
    directory: Path
    port: int
    certificate: Path | None = None
    access_log: Path | None = None  # nginx only

    def write(self, name: str, text: str) -> str:
        """Write a file into the directory; return its path."""
        path = self.directory / name
        path.write_text(text)
        return str(path)


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
        return version_of(self.program)


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


def root() -> bool:
    """Whether we are the superuser, whose servers would become someone else."""
    return os.geteuid() == 0


# ---------------------------------------------------------------------------------------------------------
# Servers in C

NGINX = """\
daemon off; worker_processes 1; {user} pid "{directory}/nginx.pid"; error_log "{directory}/error.log";
events {{ worker_connections 10000; }}
http {{
  types {{ text/html html; }}
  sendfile on; tcp_nopush on;
  open_file_cache max=1000; open_file_cache_valid 1s;
  keepalive_requests 1000000000;
  access_log {access_log};
  client_body_temp_path "{directory}/body"; proxy_temp_path "{directory}/proxy";
  fastcgi_temp_path "{directory}/fastcgi"; uwsgi_temp_path "{directory}/uwsgi";
  scgi_temp_path "{directory}/scgi";
  {tls}
  server {{ listen 127.0.0.1:{port}{ssl} backlog=4096; root "{root}"; }}
}}
"""
NGINX_TLS = """\
ssl_certificate "{certificate}"; ssl_certificate_key "{certificate}"; ssl_protocols TLSv1.2 TLSv1.3;
  ssl_ciphers DEFAULT:@SECLEVEL=0;"""


def nginx(setup: Setup) -> list[str]:
    """One worker, a file cache that looks again after a second, as ewe's does."""
    text = NGINX.format(
        directory=setup.directory,
        root=setup.root,
        port=setup.port,
        access_log=f'"{setup.access_log}" combined' if setup.access_log else "off",
        user="user root;" if root() else "",  # else its worker would be nobody
        tls=NGINX_TLS.format(certificate=setup.certificate) if setup.certificate else "",
        ssl=" ssl" if setup.certificate else "",
    )
    configuration = setup.write("nginx.conf", text)
    return [tool("nginx"), "-p", str(setup.directory), "-c", configuration]


APACHE_MODULES = "/usr/lib/apache2/modules"
APACHE = """\
ServerRoot "{directory}"
DefaultRuntimeDir "{directory}"
PidFile "{directory}/apache.pid"
ErrorLog "{directory}/error.log"
ServerName localhost
LoadModule mpm_{mpm}_module {modules}/mod_mpm_{mpm}.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule mime_module {modules}/mod_mime.so
LoadModule dir_module {modules}/mod_dir.so
{tls}
Listen 127.0.0.1:{port}
ListenBacklog 4096
DocumentRoot "{root}"
<Directory "{root}">
  Require all granted
  AllowOverride None
</Directory>
TypesConfig /dev/null
AddType text/html .html
DirectoryIndex index.html
KeepAlive On
MaxKeepAliveRequests 0
{limits}
{user}
"""
APACHE_TLS = """\
LoadModule ssl_module {modules}/mod_ssl.so
SSLEngine on
SSLProtocol -all +TLSv1.2 +TLSv1.3
SSLCipherSuite DEFAULT:@SECLEVEL=0
SSLCertificateFile "{certificate}"
SSLCertificateKeyFile "{certificate}"
SSLSessionCache none
"""
LIMITS = {
    "prefork": "ServerLimit 256\nMaxRequestWorkers 256",
    "worker": "ThreadsPerChild 25\nMaxRequestWorkers 400",
    "event": "ThreadsPerChild 25\nMaxRequestWorkers 400\nAsyncRequestWorkerFactor 20",
}


def apache(mpm: str) -> Callable[[Setup], list[str]]:
    """Apache httpd under one of its three models, with their usual limits."""

    def prepare(setup: Setup) -> list[str]:
        tls = ""
        if setup.certificate:
            tls = APACHE_TLS.format(modules=APACHE_MODULES, certificate=setup.certificate)
        text = APACHE.format(
            directory=setup.directory,
            root=setup.root,
            port=setup.port,
            mpm=mpm,
            modules=APACHE_MODULES,
            limits=LIMITS[mpm],
            tls=tls,
            user="User www-data\nGroup www-data" if root() else "",
        )
        return [tool("apache2"), "-DFOREGROUND", "-f", setup.write("apache.conf", text)]

    return prepare


LIGHTTPD = """\
server.document-root = "{root}"
server.bind = "127.0.0.1"
server.port = {port}
server.errorlog = "{directory}/error.log"
server.max-connections = 10000
server.max-fds = 20000
server.listen-backlog = 4096
server.max-keep-alive-requests = 1000000000
server.upload-dirs = ( "{directory}" )
index-file.names = ( "index.html" )
mimetype.assign = ( ".html" => "text/html" )
{tls}
"""
LIGHTTPD_MODULES = "/usr/lib/lighttpd"
LIGHTTPD_TLS = """\
server.modules += ( "mod_openssl" )
ssl.engine = "enable"
ssl.pemfile = "{certificate}"
ssl.openssl.ssl-conf-cmd = ( "MinProtocol" => "TLSv1.2", "CipherString" => "DEFAULT:@SECLEVEL=0" )
"""


def lighttpd(setup: Setup) -> list[str]:
    """One process, as it is by default."""
    tls = LIGHTTPD_TLS.format(certificate=setup.certificate) if setup.certificate else ""
    text = LIGHTTPD.format(root=setup.root, port=setup.port, directory=setup.directory, tls=tls)
    return [tool("lighttpd"), "-D", "-f", setup.write("lighttpd.conf", text)]


H2O = """\
num-threads: 1
pid-file: "{directory}/h2o.pid"
error-log: "{directory}/error.log"
{user}
listen:
  host: 127.0.0.1
  port: {port}
{tls}
hosts:
  default:
    paths:
      "/":
        file.dir: "{root}"
"""
H2O_TLS = """\
  ssl:
    certificate-file: "{certificate}"
    key-file: "{certificate}"
    minimum-version: TLSv1.2
    cipher-suite: "DEFAULT:@SECLEVEL=0"
"""


def h2o(setup: Setup) -> list[str]:
    """One thread."""
    text = H2O.format(
        directory=setup.directory,
        root=setup.root,
        port=setup.port,
        user="user: root" if root() else "",
        tls=H2O_TLS.format(certificate=setup.certificate) if setup.certificate else "",
    )
    return [tool("h2o"), "-m", "worker", "-c", setup.write("h2o.yaml", text)]


CADDY = """\
{{
  admin off
  auto_https off
  storage file_system "{directory}"
}}
http://127.0.0.1:{port} {{
  root * "{root}"
  file_server
}}
"""


def caddy(setup: Setup) -> list[str]:
    """Go's scheduler on one core."""
    text = CADDY.format(directory=setup.directory, root=setup.root, port=setup.port)
    return [tool("caddy"), "run", "--adapter", "caddyfile", "--config", setup.write("Caddyfile", text)]


# ---------------------------------------------------------------------------------------------------------
# Servers in Python: the programs' servers get a small program that answers with files

WSGI = """\
import os

ROOT = {root!r}


def application(environ, start_response):
    path = os.path.join(ROOT, environ["PATH_INFO"].lstrip("/"))
    try:
        with open(path, "rb") as file:
            body = file.read()
    except OSError:
        start_response("404 Not Found", [("Content-Length", "0")])
        return [b""]
    start_response("200 OK", [("Content-Type", "text/html"), ("Content-Length", str(len(body)))])
    return [body]
"""
ASGI = """\
import os

ROOT = {root!r}


async def application(scope, receive, send):
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    path = os.path.join(ROOT, scope["path"].lstrip("/"))
    status, body = 200, b""
    try:
        with open(path, "rb") as file:
            body = file.read()
    except OSError:
        status = 404
    length = str(len(body)).encode()
    headers = [(b"content-type", b"text/html"), (b"content-length", length)]
    await send({{"type": "http.response.start", "status": status, "headers": headers}})
    await send({{"type": "http.response.body", "body": body}})
"""


def http_server(setup: Setup) -> list[str]:
    """The standard library's, a thread for each connection, with keep-alive."""
    return [
        sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--protocol", "HTTP/1.1",
        "--directory", str(setup.root), str(setup.port),
    ]  # fmt: skip


def gunicorn(setup: Setup) -> list[str]:
    """One worker with four threads that read requests themselves."""
    setup.write("lab_wsgi.py", WSGI.format(root=str(setup.root)))
    return [
        sys.executable, "-m", "gunicorn", "--bind", f"127.0.0.1:{setup.port}", "--worker-class", "gthread",
        "--threads", "4", "--workers", "1", "--chdir", str(setup.directory),
        "--worker-tmp-dir", str(setup.directory), "--log-level", "error", "lab_wsgi:application",
    ]  # fmt: skip


def uvicorn(setup: Setup) -> list[str]:
    """One process, one event loop."""
    setup.write("lab_asgi.py", ASGI.format(root=str(setup.root)))
    return [
        sys.executable, "-m", "uvicorn", "--host", "127.0.0.1", "--port", str(setup.port), "--no-access-log",
        "--lifespan", "off", "--log-level", "error", "--app-dir", str(setup.directory),
        "lab_asgi:application",
    ]  # fmt: skip


def waitress(setup: Setup) -> list[str]:
    """An event loop that hands complete requests to four threads."""
    setup.write("lab_wsgi.py", WSGI.format(root=str(setup.root)))
    return [
        sys.executable, "-m", "waitress", "--listen", f"127.0.0.1:{setup.port}", "--threads", "4",
        "--connection-limit", "2000", "lab_wsgi:application",
    ]  # fmt: skip


def granian(setup: Setup) -> list[str]:
    """An event loop in Rust that runs Python for each request."""
    setup.write("lab_asgi.py", ASGI.format(root=str(setup.root)))
    return [
        sys.executable, "-m", "granian", "--interface", "asgi", "--host", "127.0.0.1",
        "--port", str(setup.port), "--no-ws", "--workers", "1", "--log-level", "error",
        "--working-dir", str(setup.directory), "lab_asgi:application",
    ]  # fmt: skip


def apache_peer(mpm: str, about: str, most: int) -> Peer:
    """Return Apache httpd under a model."""
    module = f"{APACHE_MODULES}/mod_mpm_{mpm}.so"
    ssl = f"{APACHE_MODULES}/mod_ssl.so"
    return Peer(f"apache-{mpm}", about, "apache2", apache(mpm), "apache2", file=module, tls=ssl, most=most)


PEERS = {
    peer.name: peer
    for peer in (
        Peer("nginx", "nginx, one worker", "nginx-light", nginx, "nginx", tls="/"),
        apache_peer("event", "Apache httpd, event MPM", 4000),
        apache_peer("worker", "Apache httpd, worker MPM, 400 threads", 400),
        apache_peer("prefork", "Apache httpd, prefork MPM, 256 processes", 256),
        Peer(
            "lighttpd",
            "lighttpd",
            "lighttpd lighttpd-mod-openssl",
            lighttpd,
            "lighttpd",
            tls=f"{LIGHTTPD_MODULES}/mod_openssl.so",
        ),
        Peer("h2o", "h2o, one thread", "h2o", h2o, "h2o", tls="/"),
        Peer("caddy", "Caddy file server", "caddy", caddy, "caddy"),
        Peer("http.server", "python -m http.server, a thread a connection", "", http_server),
        Peer("gunicorn", "gunicorn, one worker of 4 threads", "gunicorn", gunicorn, module="gunicorn"),
        Peer("uvicorn", "uvicorn, one event loop", "uvicorn", uvicorn, module="uvicorn"),
        Peer("waitress", "waitress, 4 threads", "waitress", waitress, module="waitress"),
        Peer("granian", "granian, one worker", "granian", granian, module="granian"),
    )
}


def peer(name: str) -> Peer:
    """Return a peer by its name. Raises LabError."""
    if name not in PEERS:
        raise LabError(f"there is no peer {name!r}; there are {', '.join(PEERS)}")
    return PEERS[name]
