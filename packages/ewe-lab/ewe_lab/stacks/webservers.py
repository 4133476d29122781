"""Web servers written in C, and Caddy: each with the least configuration that serves the files of one directory.

    command = nginx(Setup(directory, port, root))
    command = nginx(Setup(directory, port, root, behind=BackendProgram(script, "unix:/run/php.sock")))

A function writes the configuration into a directory of the lab and returns the command. nginx, Apache and lighttpd
can also run one program (`behind`): nginx for every URL, Apache for that of the script, lighttpd for those with its
extension. Without a script they run each PHP file of the directory. The installed
configuration is neither read nor changed. A server that would start one worker process for each core starts only
one, since all servers have one core here. No server writes an access log or closes a connection because of its age.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ewe_lab.bench.processes import path_of_tool

# Connections that nginx keeps open to a program: each occupies one of the program's processes
KEPT_CONNECTIONS = 16
PHP_MODULES = "libphp*.so"  # the file's name contains PHP's version


@dataclass(frozen=True)
class BackendProgram:
    """A program behind a web server, and the way from the server to the program.

    script: the program's file; None: each PHP file of the document root, and index.php for a directory.
    address: `unix:PATH` or `HOST:PORT` of the process that runs it, "" if the server itself does. gateway: the
    protocol (fastcgi, uwsgi), or how the server runs it (cgi, mod_php, mod_perl). keeps: whether connections to the
    program stay open.
    """

    script: Path | None
    address: str = ""
    gateway: str = "fastcgi"
    keeps: bool = False


@dataclass(frozen=True)
class Setup:
    """The files and the port of a server, and the directory to which it may write.

    certificate: PEM with key and chain, for HTTPS. access_log: nginx only. processes: nginx and lighttpd only.
    """

    directory: Path
    port: int
    root: Path
    certificate: Path | None = None
    access_log: Path | None = None
    processes: int = 1
    behind: BackendProgram | None = None

    def write(self, name: str, text: str) -> str:
        """Write a file into the directory; return its path."""
        path = self.directory / name
        path.write_text(text)
        return str(path)


def is_root() -> bool:
    """Whether we are the superuser: the servers would then change to another account."""
    return os.geteuid() == 0


# ---------------------------------------------------------------------------------------------------------
# nginx

NGINX = """\
daemon off; worker_processes {processes}; {user} pid "{directory}/nginx.pid"; error_log "{directory}/error.log";
events {{ worker_connections 10000; }}
http {{
  types {{ text/html html; }}
  sendfile on; tcp_nopush on; autoindex on;
  open_file_cache max=1000; open_file_cache_valid 1s;
  keepalive_requests 1000000000;
  access_log {access_log};
  client_body_temp_path "{directory}/body"; proxy_temp_path "{directory}/proxy";
  fastcgi_temp_path "{directory}/fastcgi"; uwsgi_temp_path "{directory}/uwsgi";
  scgi_temp_path "{directory}/scgi";
  {tls}
  {upstream}
  server {{ listen 127.0.0.1:{port}{ssl} backlog=4096; root "{root}"; {location} }}
}}
"""
NGINX_TLS = """\
ssl_certificate "{certificate}"; ssl_certificate_key "{certificate}"; ssl_protocols TLSv1.2 TLSv1.3;
  ssl_ciphers DEFAULT:@SECLEVEL=0;"""

NGINX_UPSTREAM = "upstream behind {{ server {address}; {keepalive} }}"
NGINX_LOCATION = """\
location {match} {{
    {by}_pass behind; {keep_conn}
{params}
  }}"""
FASTCGI_PARAMS = {
    "REQUEST_METHOD": "$request_method", "QUERY_STRING": "$query_string", "CONTENT_LENGTH": "$content_length",
    "CONTENT_TYPE": "$content_type", "SCRIPT_FILENAME": '"{script}"', "SCRIPT_NAME": "$uri", "PATH_INFO": '""',
    "DOCUMENT_ROOT": "$document_root", "DOCUMENT_URI": "$document_uri",
    "REQUEST_URI": "$request_uri", "SERVER_PROTOCOL": "$server_protocol", "SERVER_NAME": "localhost",
    "SERVER_PORT": "{port}", "REMOTE_ADDR": "$remote_addr", "REMOTE_PORT": "$remote_port",
    "GATEWAY_INTERFACE": "CGI/1.1",
}  # fmt: skip


def nginx(setup: Setup) -> list[str]:
    """Write the configuration of nginx; return the command. Programs: fastcgi, uwsgi.

    nginx has one worker by default. Its file cache re-checks a file after a second, as ewe does.
    """
    upstream, location = nginx_behind(setup.behind, setup.port) if setup.behind else ("", "")
    text = NGINX.format(
        directory=setup.directory,
        root=setup.root,
        port=setup.port,
        processes=setup.processes,
        access_log=f'"{setup.access_log}" combined' if setup.access_log else "off",
        user="user root;" if is_root() else "",  # the worker would be nobody otherwise
        tls=NGINX_TLS.format(certificate=setup.certificate) if setup.certificate else "",
        ssl=" ssl" if setup.certificate else "",
        upstream=upstream,
        location=location,
    )
    configuration = setup.write("nginx.conf", text)
    return [path_of_tool("nginx"), "-p", str(setup.directory), "-c", configuration]


def nginx_behind(behind: BackendProgram, port: int) -> tuple[str, str]:
    """Return the blocks `upstream` and `location` for a program.

    A script gets every URL; without a script each URL of a PHP file runs that file.
    """
    upstream = NGINX_UPSTREAM.format(
        address=behind.address, keepalive=f"keepalive {KEPT_CONNECTIONS};" if behind.keeps else ""
    )
    params = (f"    {behind.gateway}_param {name} {value};" for name, value in FASTCGI_PARAMS.items())
    location = NGINX_LOCATION.format(
        match="/" if behind.script else "~ \\.php$",
        by=behind.gateway,
        keep_conn="fastcgi_keep_conn on;" if behind.keeps else "",
        params="\n".join(params).format(script=behind.script or "$document_root$uri", port=port),
    )
    return upstream, location if behind.script else f"index index.php; {location}"


# ---------------------------------------------------------------------------------------------------------
# Apache

APACHE_MODULES = "/usr/lib/apache2/modules"
APACHE = """\
ServerRoot "{directory}"
DefaultRuntimeDir "{directory}"
PidFile "{directory}/apache.pid"
ErrorLog "{directory}/error.log"
ServerName localhost
{modules}
{tls}
Listen 127.0.0.1:{port}
ListenBacklog 4096
DocumentRoot "{root}"
<Directory "{root}">
  Require all granted
  AllowOverride None
  {options}
</Directory>
TypesConfig /dev/null
AddType text/html .html
DirectoryIndex index.html
KeepAlive On
MaxKeepAliveRequests 0
{limits}
{user}
{location}
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
APACHE_LIMITS = {
    "prefork": "ServerLimit 256\nMaxRequestWorkers 256",
    "worker": "ThreadsPerChild 25\nMaxRequestWorkers 400",
    "event": "ThreadsPerChild 25\nMaxRequestWorkers 400\nAsyncRequestWorkerFactor 20",
}

APACHE_LOCATION = """\
<LocationMatch "^/{script}$">
  SetHandler {handler}
</LocationMatch>
{more}"""
APACHE_PHP_FILES = """\
DirectoryIndex index.php
<FilesMatch "\\.php$">
  SetHandler {handler}
</FilesMatch>"""


class ApacheHandler(NamedTuple):
    """A handler of Apache. modules: that it needs. directive: the argument of SetHandler; {target}: the address."""

    modules: tuple[str, ...]
    directive: str


APACHE_HANDLERS = {  # by BackendProgram.gateway
    "fastcgi": ApacheHandler(("proxy", "proxy_fcgi"), '"proxy:{target}|fcgi://localhost/"'),
    "uwsgi": ApacheHandler(("proxy", "proxy_uwsgi"), '"proxy:{target}|uwsgi://localhost/"'),
    "cgi": ApacheHandler(("cgid",), "cgi-script"),
    "mod_php": ApacheHandler(("php",), "application/x-httpd-php"),
    "mod_perl": ApacheHandler(
        ("perl",),
        "perl-script\n  PerlResponseHandler ModPerl::Registry\n  PerlOptions +ParseHeaders",
    ),
}


def mod_php() -> str:
    """Return the path of PHP's module for Apache, "" if it is not installed."""
    return next((str(path) for path in sorted(Path(APACHE_MODULES).glob(PHP_MODULES))), "")


def has_mod_perl() -> bool:
    """Whether Perl's module for Apache is installed."""
    return Path(APACHE_MODULES, "mod_perl.so").exists()


def apache(mpm: str) -> Callable[[Setup], list[str]]:
    """Return the function that writes the configuration of Apache httpd under a model, and returns the command.

    mpm: one of Apache's three models, with its usual limits. Programs: fastcgi, uwsgi, cgi, mod_php, mod_perl.
    mod_php needs prefork, because PHP is not thread-safe. mod_perl runs an unmodified CGI script in an interpreter
    of the server, compiled once (ModPerl::Registry).
    """

    def prepare(setup: Setup) -> list[str]:
        """Write apache.conf; return the command."""
        behind = setup.behind
        modules, handler = APACHE_HANDLERS[behind.gateway] if behind else ((), "")
        files = {"php": mod_php()}  # the only module whose file is not named after it
        lines = [
            f"LoadModule {name}_module {files.get(name) or f'{APACHE_MODULES}/mod_{name}.so'}"
            for name in (f"mpm_{mpm}", "authz_core", "mime", "dir", *modules)
        ]
        location = ""
        if behind and not behind.script:  # each PHP file of the directory
            location = APACHE_PHP_FILES.format(handler=handler.format(target=behind.address))
        elif behind and behind.script:
            location = APACHE_LOCATION.format(
                script=behind.script.name.replace(".", "\\."),
                handler=handler.format(target=behind.address),
                more=f'ScriptSock "{setup.directory}/cgisock"' if behind.gateway == "cgi" else "",
            )
        tls = ""
        if setup.certificate:
            tls = APACHE_TLS.format(modules=APACHE_MODULES, certificate=setup.certificate)
        text = APACHE.format(
            directory=setup.directory,
            root=setup.root,
            port=setup.port,
            modules="\n".join(lines),
            options="Options +ExecCGI" if behind else "",
            limits=APACHE_LIMITS[mpm],
            tls=tls,
            user="User www-data\nGroup www-data" if is_root() else "",
            location=location,
        )
        return [path_of_tool("apache2"), "-DFOREGROUND", "-f", setup.write("apache.conf", text)]

    return prepare


# ---------------------------------------------------------------------------------------------------------
# lighttpd

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
{workers}
{tls}
{program}
"""
LIGHTTPD_MODULES = "/usr/lib/lighttpd"
LIGHTTPD_TLS = """\
server.modules += ( "mod_openssl" )
ssl.engine = "enable"
ssl.pemfile = "{certificate}"
ssl.openssl.ssl-conf-cmd = ( "MinProtocol" => "TLSv1.2", "CipherString" => "DEFAULT:@SECLEVEL=0" )
"""


def lighttpd(setup: Setup) -> list[str]:
    """Write the configuration of lighttpd; return the command. Programs: fastcgi, cgi.

    lighttpd is one process, as by default, or several workers of one parent.
    """
    text = LIGHTTPD.format(
        directory=setup.directory,
        root=setup.root,
        port=setup.port,
        workers=f"server.max-worker = {setup.processes}" if setup.processes > 1 else "",
        tls=LIGHTTPD_TLS.format(certificate=setup.certificate) if setup.certificate else "",
        program=lighttpd_behind(setup.behind) if setup.behind else "",
    )
    return [path_of_tool("lighttpd"), "-D", "-f", setup.write("lighttpd.conf", text)]


def lighttpd_behind(behind: BackendProgram) -> str:
    """Return the lines that load the module for a program, and set its handler."""
    extension = behind.script.suffix if behind.script else ".php"
    if behind.gateway == "cgi":
        handler = f'cgi.assign = ( "{extension}" => "" )'  # the script's first line names its interpreter
    else:
        host, _, path_or_port = behind.address.rpartition(":")
        if host == "unix":
            address_options = f'"socket" => "{path_or_port}"'
        else:
            address_options = f'"host" => "{host}", "port" => {path_or_port}'
        options = f'{address_options}, "check-local" => "disable"'  # lighttpd need not find the file itself
        handler = f'fastcgi.server = ( "{extension}" => (( {options} )) )'
    index = "" if behind.script else '\nindex-file.names += ( "index.php" )'
    return f'server.modules += ( "mod_{behind.gateway}" )\n{handler}{index}'


# ---------------------------------------------------------------------------------------------------------
# h2o and Caddy: files only

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
    """Write the configuration of h2o, with one thread; return the command."""
    text = H2O.format(
        directory=setup.directory,
        root=setup.root,
        port=setup.port,
        user="user: root" if is_root() else "",
        tls=H2O_TLS.format(certificate=setup.certificate) if setup.certificate else "",
    )
    return [path_of_tool("h2o"), "-m", "worker", "-c", setup.write("h2o.yaml", text)]


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
    """Write the configuration of Caddy; return the command. It sets no workers: Go's runtime sees one core."""
    text = CADDY.format(directory=setup.directory, root=setup.root, port=setup.port)
    return [
        path_of_tool("caddy"),
        "run",
        "--adapter",
        "caddyfile",
        "--config",
        setup.write("Caddyfile", text),
    ]
