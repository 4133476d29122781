"""A server that has given up root imports nothing any more: the directories of Python may be closed to its account.

Started as root from a Python below a home, ewe with `user` could otherwise end in the middle of its work. Each test
runs the real command, with an audit hook that notes every import after the change of user, and leads the server
along the paths that are rarely taken: faults, kills, signals, reloads. tests/house/test_late_imports.py searches
the source for the same.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from support.server import MODELS, ROOT, Server, Start, wait_until, write_program

from ewe.database.client import Client
from ewe.database.protocol import ClientRequest

pytestmark = [pytest.mark.starts_processes, pytest.mark.needs("root")]

HOOK = ROOT / "tests" / "support" / "late_imports"
PATHS = (
    "/", "/nothing", "/files/", "/files/?C=M", "/files/a%20b.txt", "/%zz", "/..%2f..", "/cgi-bin/ok?a=b",
    "/cgi-bin/fails", "/cgi-bin/silent", "/cgi-bin/no-line", "/cgi-bin/nothing", "/dead/", "/fcgi/", "/scgi/",
    "/uwsgi/", "/app/", "/app/fault", "/asgi/", "/-/databases", "/page.sql.html",
)  # fmt: skip
FIELDS = (
    b"", b"Range: bytes=0-2\r\n", b"Accept-Encoding: gzip, br, zstd\r\n", b"Accept-Language: fr\r\n",
    b"If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n", b"Expect: 100-continue\r\nContent-Length: 0\r\n",
)  # fmt: skip
RAW = (
    b"\r\n",
    b"GET\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"POST /cgi-bin/ok HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
)
APPLICATIONS = """\
def wsgi(environ, start_response):
    if environ["PATH_INFO"] == "/fault":
        raise ValueError("a fault")
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "9")])
    return [b"short"]

async def asgi(scope, receive, send):
    raise ValueError("a fault")
"""
SETTINGS = """\
proxy = ["/dead=http://127.0.0.1:1"]
fastcgi = ["/fcgi=127.0.0.1:1"]
scgi = ["/scgi=127.0.0.1:1"]
uwsgi = ["/uwsgi=127.0.0.1:1"]
wsgi = ["/app=applications:wsgi"]
asgi = ["/asgi=applications:asgi"]
compress = "all"
languages = ["en", "fr"]
spool = 1
"""


@pytest.fixture
def late(start: Start, tmp_path: Path) -> Path:
    """The file of the late imports, and a site with all that may go wrong."""
    noted = tmp_path / "late-imports"
    for file in (noted, tmp_path / "access.log"):  # the account writes both, and opens the log again
        file.touch()
        file.chmod(0o666)
    (tmp_path / "applications.py").write_text(APPLICATIONS)
    (tmp_path / "ewe.toml").write_text(SETTINGS)
    (tmp_path / "htdocs" / "files").mkdir()
    (tmp_path / "htdocs" / "files" / "a b.txt").write_text("text " * 500)
    write_program(tmp_path / "cgi-bin" / "ok", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nok'\ncat\n")
    write_program(tmp_path / "cgi-bin" / "fails", "#!/bin/sh\necho a word >&2\nexit 3\n")
    write_program(tmp_path / "cgi-bin" / "silent", "#!/bin/sh\n")
    write_program(tmp_path / "cgi-bin" / "no-line", "#!/nothing/here\n")
    return noted


def started(start: Start, model: str, noted: Path, *options: str) -> Server:
    """Start the command as root, with the hook; it becomes nobody."""
    path = f"{ROOT}:{HOOK}:{noted.parent}"
    return start(
        model, "--user", "nobody", "--config", str(noted.parent / "ewe.toml"), "--grace", "1s", *options,
        env={"PYTHONPATH": path, "EWE_LATE_IMPORTS": str(noted), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


def visit(server: Server, *more: str) -> None:
    """Ask for all there is, in all ways; what the answers are is the business of other tests."""
    for path in (*PATHS, *more):
        server.ask(b"GET %s HTTP/1.1\r\nHost: ewe\r\nConnection: close\r\n\r\n" % path.encode())
    for field in FIELDS:
        server.ask(b"GET /files/a%20b.txt HTTP/1.1\r\nHost: ewe\r\nConnection: close\r\n" + field + b"\r\n")
    for raw in RAW:
        with suppress(OSError):
            server.ask(raw)
    with server.connect() as leaves:
        leaves.sendall(b"POST /cgi-bin/ok HTTP/1.1\r\nHost: ewe\r\nContent-Length: 99\r\n\r\nnot all")


def says(server: Server, text: str) -> None:
    """Wait until the log has a text; fail at once if the server has ended."""
    wait_until(lambda: text in server.log() or server.process.poll() is not None, 30, server.log)
    assert text in server.log(), server.log()


def is_served(server: Server) -> bool:
    with suppress(OSError):
        return b"welcome" in server.ask(b"GET / HTTP/1.0\r\n\r\n")
    return False


def nothing_late(noted: Path, server: Server) -> None:
    """Stop the server, and look into the file."""
    server.stop()
    assert noted.read_text() == "", server.log()
    assert "LookupError" not in server.log() and "ImportError" not in server.log(), server.log()


@pytest.mark.parametrize("model", [*MODELS, "asyncio --loop asyncio", "thread --workers 2", "xswitch"])
def test_nothing_is_imported_late(start: Start, model: str, late: Path) -> None:
    """Requests that fail, workers that are killed, every signal, a reload with other settings, and the stop."""
    server = started(start, model, late)
    visit(server)
    for number in (signal.SIGKILL, signal.SIGSEGV):
        if len(workers := server.processes()[1:]) and not model.startswith("fork"):
            os.kill(workers[-1], number)
            says(server, f"was ended by signal {number}")
    wait_until(lambda: is_served(server), 30)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU):
        server.process.send_signal(number)
        assert is_served(server)
    says(server, "status: ")
    settings = late.parent / "ewe.toml"
    settings.write_text(
        SETTINGS
        + 'content-cache = "1M"\naccess-log = "off"\nmin-rate = 1\n[[site]]\n[[site.location]]\nprefix = "/"\n'
    )
    server.process.send_signal(signal.SIGHUP)
    says(server, "the configuration was read again")
    wait_until(lambda: is_served(server), 30)
    visit(server)
    settings.write_text("no = 'such setting'\n")
    server.process.send_signal(signal.SIGHUP)
    says(server, "the old one stays")
    assert is_served(server)
    with server.connect() as held:
        held.sendall(b"GET /")
        nothing_late(late, server)


@pytest.mark.parametrize("model", ["thread", "asyncio"])
def test_tls(start: Start, model: str, late: Path) -> None:
    server = started(start, model, late, "--tls", "self")
    for raw in (b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b""):
        with suppress(OSError):
            server.ask(raw)
    context = ssl.create_default_context()  # it does not know the certificate
    with server.connect() as sock, pytest.raises(ssl.SSLError):
        context.wrap_socket(sock, server_hostname="localhost")
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with server.connect() as sock, context.wrap_socket(sock) as secure:
        secure.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b"200 OK" in secure.recv(1000)
    nothing_late(late, server)


@pytest.mark.parametrize("model", ["thread", "xswitch"])
def test_kept_programs(start: Start, model: str, late: Path) -> None:
    """The program manager, a program that ends at once, and the database daemon, which dies and starts again."""
    shop = late.parent / "shop.db"
    with sqlite3.connect(shop) as database:
        database.execute("CREATE TABLE goods (name)")
    database.close()
    shop.chmod(0o644)
    ends = write_program(late.parent / "ends", "#!/bin/sh\nexit 1\n")
    options = ("--database", f"shop={shop}", "--fastcgi-start", f"/kept={ends}")
    server = started(start, model, late, *options)
    visit(server, "/-/databases/shop/goods", "/-/databases/shop/nothing", "/kept")
    daemon = re.search(r"a database daemon at (unix:\S+)", server.log())
    assert daemon
    with Client(daemon[1]) as client:
        pid = int(json.loads(b"".join(client.ask(ClientRequest("", ""))))["pid"])
    os.kill(pid, signal.SIGKILL)
    says(server, f"ewe-dbd (pid {pid}) was ended by signal 9")
    wait_until(
        lambda: b" 200 " in server.ask(b"GET /-/databases/shop/goods HTTP/1.0\r\n\r\n"), 30, server.log
    )
    server.process.send_signal(signal.SIGHUP)
    says(server, "the configuration was read again")
    visit(server, "/-/databases/shop/goods", "/kept")
    nothing_late(late, server)
