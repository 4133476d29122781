"""Web servers before programs: nginx, Apache and lighttpd, each with the least that leads every URL to one program.

    command = nginx(Behind(where, port, script, "unix:/run/php.sock"))

A function writes the configuration into a directory of the run's own and returns the command. Nothing of what is
installed is read or changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ewe.lab.peers import APACHE_MODULES, LIMITS, root
from ewe.lab.processes import tool

KEPT = 16  # connections that nginx keeps: each has a process to itself, so there must be as many
PHP_MODULES = "libphp*.so"  # its name has PHP's version in it


@dataclass(frozen=True)
class Behind:
    """A program and how it is reached. where: the server may write there. script: its file.

    address: `unix:PATH` or `HOST:PORT` of the process that runs it, "" where the web server itself does.
    by: what is spoken there (fastcgi, uwsgi), or how the server runs it (cgi, mod_php). processes: of the web
    server. keeps: connections to the program stay open.
    """

    where: Path
    port: int
    script: Path
    address: str = ""
    by: str = "fastcgi"
    processes: int = 1
    keeps: bool = False

    @property
    def path(self) -> str:
        """The socket's path."""
        return self.address.removeprefix("unix:")

    def write(self, name: str, text: str) -> str:
        """Write a file; return its path."""
        (self.where / name).write_text(text)
        return str(self.where / name)


# ---------------------------------------------------------------------------------------------------------
# nginx

NGINX = """\
daemon off; worker_processes {processes}; {user} pid "{where}/nginx.pid"; error_log "{where}/error.log";
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000000;
  client_body_temp_path "{where}/body"; proxy_temp_path "{where}/proxy"; uwsgi_temp_path "{where}/uwsgi";
  fastcgi_temp_path "{where}/fastcgi"; scgi_temp_path "{where}/scgi";
  upstream behind {{ server {address}; {keepalive} }}
  server {{ listen 127.0.0.1:{port} backlog=4096; location / {{
    {by}_pass behind; {keep_conn}
{params}
  }} }}
}}
"""
PARAMS = {
    "REQUEST_METHOD": "$request_method", "QUERY_STRING": "$query_string", "CONTENT_LENGTH": "$content_length",
    "CONTENT_TYPE": "$content_type", "SCRIPT_FILENAME": '"{script}"', "SCRIPT_NAME": "$uri", "PATH_INFO": '""',
    "REQUEST_URI": "$request_uri", "SERVER_PROTOCOL": "$server_protocol", "SERVER_NAME": "localhost",
    "SERVER_PORT": "{port}", "REMOTE_ADDR": "$remote_addr", "REMOTE_PORT": "$remote_port",
    "GATEWAY_INTERFACE": "CGI/1.1",
}  # fmt: skip


def nginx(behind: Behind) -> list[str]:
    """FastCGI or uwsgi; CGI and modules are not for nginx."""
    params = (f"    {behind.by}_param {name} {value};" for name, value in PARAMS.items())
    text = NGINX.format(
        where=behind.where,
        port=behind.port,
        processes=behind.processes,
        user="user root;" if root() else "",
        address=behind.address,
        by=behind.by,
        keepalive=f"keepalive {KEPT};" if behind.keeps else "",
        keep_conn="fastcgi_keep_conn on;" if behind.keeps else "",
        params="\n".join(params).format(script=behind.script, port=behind.port),
    )
    return [tool("nginx"), "-p", str(behind.where), "-c", behind.write("nginx.conf", text)]


# ---------------------------------------------------------------------------------------------------------
# Apache

APACHE = """\
ServerRoot "{where}"
DefaultRuntimeDir "{where}"
PidFile "{where}/apache.pid"
ErrorLog "{where}/error.log"
ServerName localhost
{modules}
Listen 127.0.0.1:{port}
ListenBacklog 4096
DocumentRoot "{root}"
TypesConfig /dev/null
KeepAlive On
MaxKeepAliveRequests 0
{limits}
{user}
<Directory "{root}">
  Require all granted
  AllowOverride None
  Options +ExecCGI
</Directory>
<LocationMatch "^/{script}$">
  SetHandler {handler}
</LocationMatch>
{more}
"""
APACHE_HANDLERS = {  # by what: modules, handler
    "fastcgi": (("proxy", "proxy_fcgi"), '"proxy:{target}|fcgi://localhost/"'),
    "uwsgi": (("proxy", "proxy_uwsgi"), '"proxy:{target}|uwsgi://localhost/"'),
    "cgi": (("cgid",), "cgi-script"),
    "mod_php": (("php",), "application/x-httpd-php"),
}


def mod_php() -> str:
    """Return PHP's module for Apache, "" if it is not there."""
    return next((str(path) for path in sorted(Path(APACHE_MODULES).glob(PHP_MODULES))), "")


def apache(mpm: str, behind: Behind) -> list[str]:
    """Everything there is for Apache, under one of its models. mod_php needs prefork: it has no threads."""
    modules, handler = APACHE_HANDLERS[behind.by]
    files = {"php": mod_php()}
    lines = [
        f"LoadModule {name}_module {files.get(name) or f'{APACHE_MODULES}/mod_{name}.so'}"
        for name in (f"mpm_{mpm}", "authz_core", "mime", "dir", *modules)
    ]
    text = APACHE.format(
        where=behind.where,
        port=behind.port,
        modules="\n".join(lines),
        root=behind.script.parent,
        script=behind.script.name.replace(".", "\\."),
        handler=handler.format(target=behind.address),
        limits=LIMITS[mpm],
        user="User www-data\nGroup www-data" if root() else "",
        more=f'ScriptSock "{behind.where}/cgisock"' if behind.by == "cgi" else "",
    )
    return [tool("apache2"), "-DFOREGROUND", "-f", behind.write("apache.conf", text)]


# ---------------------------------------------------------------------------------------------------------
# lighttpd

LIGHTTPD = """\
server.modules = ( "mod_{module}" )
server.document-root = "{root}"
server.bind = "127.0.0.1"
server.port = {port}
server.errorlog = "{where}/error.log"
server.max-connections = 4096
server.max-fds = 9000
server.listen-backlog = 4096
server.max-keep-alive-requests = 1000000000
server.upload-dirs = ( "{where}" )
{workers}
{handler}
"""


def lighttpd(behind: Behind) -> list[str]:
    """FastCGI or CGI."""
    extension = behind.script.suffix
    if behind.by == "cgi":
        handler = f'cgi.assign = ( "{extension}" => "" )'  # its first line says what runs it
    else:
        host, _, port = behind.address.rpartition(":")
        where = f'"socket" => "{behind.path}"' if host == "unix" else f'"host" => "{host}", "port" => {port}'
        options = f'{where}, "check-local" => "disable"'
        handler = f'fastcgi.server = ( "{extension}" => (( {options} )) )'
    text = LIGHTTPD.format(
        module=behind.by,
        root=behind.script.parent,
        port=behind.port,
        where=behind.where,
        workers=f"server.max-worker = {behind.processes}" if behind.processes > 1 else "",
        handler=handler,
    )
    return [tool("lighttpd"), "-D", "-f", behind.write("lighttpd.conf", text)]
