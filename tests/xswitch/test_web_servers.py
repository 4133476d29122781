"""X-Switch behind web servers, as docs/xswitch.md configures them; and over a network."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.server import ROOT, free_port, wait_until
from support.xswitch_client import HEAD, PYTHON_HELLO, XSwitch, xswitch
from test_accounts import User

pytestmark = [
    # Root becomes www-data and the scripts' owners, and makes networks.
    pytest.mark.needs("root", "nginx", "apache2", "lighttpd", "haproxy", "a private network", "ip"),
    pytest.mark.starts_processes,
]

ECHO = f"import sys\nprint('{HEAD}', flush=True)\nsys.stdout.buffer.write(sys.stdin.buffer.read())\n"
INFO = f"""import os
print("{HEAD}")
for name in ("REQUEST_METHOD", "SCRIPT_NAME", "PATH_INFO", "QUERY_STRING", "REMOTE_ADDR"):
    print(name, os.environ.get(name))
print("uid", os.getuid())
"""
# The configuration around the documented lines: each server runs in the foreground and from one directory
AROUND = {
    "nginx": """user www-data; daemon off; pid DIR/pid; error_log DIR/error.log; worker_processes 1;
        events {} http { access_log off; client_body_temp_path DIR/body; proxy_temp_path DIR/proxy;
        fastcgi_temp_path DIR/fastcgi; uwsgi_temp_path DIR/uwsgi; scgi_temp_path DIR/scgi; client_max_body_size 9m;
        BLOCK }""",
    "apache": """ServerName localhost
        LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
        LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
        LoadModule alias_module /usr/lib/apache2/modules/mod_alias.so
        LoadModule env_module /usr/lib/apache2/modules/mod_env.so
        LoadModule headers_module /usr/lib/apache2/modules/mod_headers.so
        LoadModule proxy_module /usr/lib/apache2/modules/mod_proxy.so
        LoadModule proxy_fcgi_module /usr/lib/apache2/modules/mod_proxy_fcgi.so
        PidFile DIR/pid
        ErrorLog DIR/error.log
        User www-data
        Group www-data
        BLOCK""",
    "lighttpd": """server.username = "www-data"
        server.groupname = "www-data"
        server.errorlog = "DIR/error.log"
        server.upload-dirs = ( "DIR" )
        BLOCK""",
    "haproxy": """global
        defaults
            mode http
            timeout connect 5s
            timeout client 20s
            timeout server 20s
        BLOCK""",
}
COMMANDS = {
    "nginx": ["/usr/sbin/nginx", "-c"],
    "apache": ["/usr/sbin/apache2", "-D", "FOREGROUND", "-f"],
    "lighttpd": ["/usr/sbin/lighttpd", "-D", "-f"],
    "haproxy": ["/usr/sbin/haproxy", "-db", "-f"],
}


def documented(language: str) -> str:
    """Return the configuration that docs/xswitch.md gives for a web server."""
    text = (ROOT / "docs" / "xswitch.md").read_text()
    found = re.search(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


@contextmanager
def web_server(name: str, replacements: dict[str, str]) -> Iterator[str]:
    """Run a web server with its documented configuration; yield its URL."""
    directory = Path(tempfile.mkdtemp(prefix="test-front-"))
    directory.chmod(0o777)
    port = free_port()
    block = documented(name)
    for old, new in {"8080": str(port), **replacements}.items():
        assert old in block
        block = block.replace(old, new)
    config = directory / "conf"
    config.write_text(textwrap.dedent(AROUND[name]).replace("BLOCK", block).replace("DIR", str(directory)))
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen([*COMMANDS[name], str(config)], stdout=output, stderr=output)

    def told() -> str:
        return "".join(path.read_text() for path in directory.glob("*o*") if path.is_file())

    try:
        wait_until(lambda: listens(port) or process.poll() is not None, 20, told)
        assert process.poll() is None, told()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(directory)


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def fetch(url: str, body: bytes | Iterator[bytes] | None = None) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, body, timeout=20) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.fixture(scope="module")
def alice() -> Iterator[User]:
    base = Path(tempfile.mkdtemp(prefix="test-home-"))
    base.chmod(0o755)
    name = f"ewe-carol-{os.getpid()}"
    try:
        user = User(name, base / name)
        user.write("cgi-bin/info.py", INFO)
        yield user
    finally:
        subprocess.run(["userdel", name], check=False, capture_output=True)
        shutil.rmtree(base)


@pytest.fixture(scope="module")
def behind(alice: User) -> Iterator[XSwitch]:
    """An X-Switch on a Unix socket that www-data may reach."""
    directory = Path(tempfile.mkdtemp(prefix="test-socket-"))
    directory.chmod(0o755)
    settings = "socket-mode = '0660'\nsocket-group = 'www-data'\n"
    with xswitch(settings, listen=f"unix:{directory}/x.sock") as running:
        running.script("cgi-bin/echo.py", ECHO)
        running.script("cgi-bin/info.py", INFO)
        running.script("cgi-bin/hello.pl", f'print "{HEAD}\\nhello\\n";')
        running.script("cgi-bin/hello.php", "<?php echo 'hello', PHP_EOL;")
        running.script(
            "cgi-bin/status.py", 'print("Status: 418 Teapot\\nContent-Type: text/plain\\n\\nshort")'
        )
        running.script(
            "cgi-bin/redirect.py", f'print("X-Accel-Redirect: /cgi-bin-secret.txt\\n{HEAD}\\nits own")'
        )
        running.script("cgi-bin-secret.txt", "a file of the site", 0o644)
        running.script("cgi-bin/large.py", f"print('{HEAD}\\n' + 'x' * 5_000_000, end='')")
        yield running
    shutil.rmtree(directory)


@pytest.mark.parametrize("name", ["nginx", "apache", "lighttpd"])
def test_behind(name: str, behind: XSwitch, alice: User) -> None:
    path = behind.address.removeprefix("unix:")
    replacements = {"/run/xswitch.sock": path, "/srv/www": str(behind.site), "/home": str(alice.home.parent)}
    with web_server(name, replacements) as url:
        assert fetch(f"{url}/cgi-bin/hello.pl") == (200, b"hello\n"), behind.log()
        assert fetch(f"{url}/cgi-bin/hello.php") == (200, b"hello\n"), behind.log()
        body = os.urandom(1_000_000)
        assert fetch(f"{url}/cgi-bin/echo.py", body) == (200, body)
        assert fetch(f"{url}/cgi-bin/echo.py", iter((body, b"in chunks"))) == (200, body + b"in chunks")
        assert fetch(f"{url}/cgi-bin/large.py") == (200, b"x" * 5_000_000)
        assert fetch(f"{url}/cgi-bin/status.py") == (418, b"short\n")
        assert fetch(f"{url}/cgi-bin/redirect.py") == (200, b"its own\n")
        assert fetch(f"{url}/cgi-bin/none.py")[0] == 404
        status, text = fetch(f"{url}/cgi-bin/info.py/more?a=b%20c")
        assert status == 200
        found = dict(line.split(" ", 1) for line in text.decode().splitlines())
        nobody = str(pwd.getpwnam("nobody").pw_uid)
        assert found == {
            "REQUEST_METHOD": "GET", "SCRIPT_NAME": "/cgi-bin/info.py", "PATH_INFO": "/more",
            "QUERY_STRING": "a=b%20c", "REMOTE_ADDR": "127.0.0.1", "uid": nobody,
        }  # fmt: skip
        status, text = fetch(f"{url}/~{alice.name}/cgi-bin/info.py")
        assert (status, text.split()[-1]) == (200, str(alice.uid).encode()), behind.log()


@pytest.mark.parametrize("name", ["nginx", "haproxy"])
def test_two_modules_balanced(name: str, alice: User) -> None:
    with xswitch() as one, xswitch() as other:
        which = f"import os\nprint('{HEAD}\\n', os.getppid())"
        one.script("cgi-bin/which.py", which)
        config = other.directory / "xswitch.toml"  # both machines see the same files
        config.write_text(config.read_text().replace(str(other.site), str(one.site)))
        os.kill(other.process.pid, signal.SIGHUP)
        other.wait_for_log("the settings were read again")
        replacements = {"/srv/www": str(one.site)}
        if name == "nginx":
            lines = f"server {one.address}; server {other.address};"
            replacements |= {"server unix:/run/xswitch.sock;": lines, "/home": str(alice.home.parent)}
        else:
            replacements |= {"192.0.2.1:9000": one.address, "192.0.2.2:9000": other.address}
        with web_server(name, replacements) as url:
            answers = [fetch(f"{url}/cgi-bin/which.py") for _ in range(6)]
            assert {status for status, _ in answers} == {200}
            assert len({body for _, body in answers}) == 2


NETWORK = """set -e
ip link add veth0 type veth peer name veth1 netns FRONT
ip addr add 10.97.0.1/24 dev veth0
ip link set veth0 up
ip link set lo up
nsenter --net=/proc/FRONT/ns/net sh -c 'ip addr add 10.97.0.2/24 dev veth1; ip link set veth1 up; ip link set lo up'
"""


def test_across_two_network_namespaces(alice: User) -> None:
    """The module in one, the asking side in another; between them only a wire."""
    holders = [subprocess.Popen(["unshare", "--net", "sleep", "60"]) for _ in range(2)]
    try:
        own = os.readlink("/proc/self/ns/net")
        wait_until(lambda: all(os.readlink(f"/proc/{each.pid}/ns/net") != own for each in holders), 20)
        back, front = (str(holder.pid) for holder in holders)
        subprocess.run(
            ["nsenter", f"--net=/proc/{back}/ns/net", "sh", "-c", NETWORK.replace("FRONT", front)], check=True
        )
        with xswitch(listen="10.97.0.1:9000", prefix=("nsenter", f"--net=/proc/{back}/ns/net")) as running:
            script = running.script("hello.py", PYTHON_HELLO)
            code = f"""from support.xswitch_client import Connection
print(Connection("10.97.0.1:9000").ask({str(script)!r}).text)
"""
            asked = subprocess.run(
                ["nsenter", f"--net=/proc/{front}/ns/net", sys.executable, "-W", "ignore", "-c", code],
                capture_output=True, text=True, timeout=30, check=False,
                env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests"},
            )  # fmt: skip
            assert asked.stdout == "hello\n\n", asked.stderr
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
