"""Servers that others have written, ready to be graded: `python known.py NAME PORT ROOT WORKERS`.

Writes a configuration beside the document root, and becomes the server: nginx, lighttpd, or Apache with one of its
multi-processing modules (apache-prefork, apache-worker, apache-event), as Debian has them.
"""

import os
import pwd
import shutil
import sys

NGINX = """daemon off; pid {place}/nginx.pid; error_log /dev/null; worker_processes 1;
events {{ worker_connections 512; }}
http {{
access_log off; client_header_timeout 10s; root {root}; client_body_temp_path {place}/b; proxy_temp_path {place}/p;
fastcgi_temp_path {place}/f; uwsgi_temp_path {place}/u; scgi_temp_path {place}/s;
server {{ listen 127.0.0.1:{port}; }}
}}
"""
LIGHTTPD = """server.document-root = "{root}"
server.bind = "127.0.0.1"
server.port = {port}
server.errorlog = "/dev/null"
server.max-read-idle = 10
"""
# One set of workers from the start to the end, so that there are exactly so many.
APACHE = """ServerRoot {place}
DefaultRuntimeDir {place}
PidFile {place}/apache.pid
ErrorLog /dev/null
ServerName localhost
Timeout 10
Listen 127.0.0.1:{port}
DocumentRoot {root}
{account}
LoadModule mpm_{mpm}_module /usr/lib/apache2/modules/mod_mpm_{mpm}.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
"""
WORKERS = {
    "prefork": """StartServers {workers}
MinSpareServers {workers}
MaxSpareServers {workers}
ServerLimit {workers}
MaxRequestWorkers {workers}
""",
    "worker": """ServerLimit 1
StartServers 1
ThreadsPerChild {workers}
ThreadLimit {workers}
MaxRequestWorkers {workers}
MinSpareThreads 1
MaxSpareThreads {workers}
""",
    # Not a worker for each connection, but one for each that sends a request just now.
    "event": """ServerLimit 1
StartServers 1
ThreadsPerChild 64
MaxRequestWorkers 64
MinSpareThreads 1
MaxSpareThreads 64
""",
}


def main(name, port, root, workers):
    """Write the configuration of a server, and become it."""
    place = os.path.dirname(root)
    file = os.path.join(place, "server.conf")
    model = name.partition("-")[2]
    account = ""
    if os.geteuid() == 0:  # Apache serves no one as root
        entry = pwd.getpwnam("nobody")
        account = f"User nobody\nGroup #{entry.pw_gid}"
    text = {"nginx": NGINX, "lighttpd": LIGHTTPD}.get(name) or APACHE + WORKERS[model]
    with open(file, "w") as out:
        out.write(text.format(place=place, root=root, port=port, workers=workers, mpm=model, account=account))
    command = {"nginx": ["nginx", "-c", file], "lighttpd": ["lighttpd", "-D", "-f", file]}.get(
        name, ["apache2", "-D", "FOREGROUND", "-f", file]
    )
    program = shutil.which(command[0], path=os.environ["PATH"] + ":/usr/sbin")
    if program is None:
        sys.exit(f"{command[0]} is not installed")
    os.execv(program, command)


if __name__ == "__main__":
    main(*sys.argv[1:])
