"""Programs that other people wrote, unchanged: git, gitweb, cgit, Mercurial, Fossil, Radicale.

One settings file has a location for each, with the program where Debian installs it (`alias`) and what it needs to
know (`env`). Apache serves the same programs, and its answers are compared with ewe's.

X-Switch runs those in Perl and Python; git's and cgit's are in C, and ewe runs them itself. What they read and
write belongs to their account, as an administrator would have it: git refuses the repository of another account.

`make test` runs this under three models, `make applications` under all.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import httpx
import pytest
from support import needs, web
from support.server import MODELS, Server, Start, free_port, wait_until

pytestmark = pytest.mark.timeout(180)
ALL = bool(os.environ.get("EWE_TEST_APPLICATIONS"))
SOME = [*MODELS, "xswitch"] if ALL else ["thread", "asyncio", "xswitch"]
GIT_BACKEND = "/usr/lib/git-core/git-http-backend"

SETTINGS = """
[[site]]
[[site.location]]
prefix = "/git"
alias = "/usr/lib/git-core/git-http-backend"
gateway = "cgi"
env = { GIT_PROJECT_ROOT = "PLACE/repositories", GIT_HTTP_EXPORT_ALL = "" }
auth = { realm = "Repositories", file = "PLACE/htpasswd" }
[[site.location]]
prefix = "/gitweb"
alias = "/usr/share/gitweb/gitweb.cgi"
gateway = "cgi"
env = { GITWEB_CONFIG = "PLACE/gitweb.conf" }
[[site.location]]
prefix = "/gitweb-static/"
alias = "/usr/share/gitweb/static/"
[[site.location]]
prefix = "/cgit"
alias = "/usr/lib/cgit/cgit.cgi"
gateway = "cgi"
env = { CGIT_CONFIG = "PLACE/cgitrc" }
[[site.location]]
prefix = "/hg"
alias = "PLACE/hgweb.cgi"
gateway = "cgi"
[[site.location]]
prefix = "/fossil"
alias = "PLACE/fossil.cgi"
gateway = "cgi"
[[site.location]]
prefix = "/calendar"
alias = "PLACE/radicale.cgi"
gateway = "cgi"
env = { RADICALE_CONFIG = "PLACE/radicale.conf" }
auth = { realm = "Calendars", file = "PLACE/htpasswd" }
"""
APACHE = """
ServerRoot PLACE
PidFile PLACE/apache.pid
Listen 127.0.0.1:PORT
ServerName 127.0.0.1
ErrorLog PLACE/apache.log
Mutex file:PLACE default
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule alias_module /usr/lib/apache2/modules/mod_alias.so
LoadModule env_module /usr/lib/apache2/modules/mod_env.so
LoadModule cgid_module /usr/lib/apache2/modules/mod_cgid.so
ScriptSock PLACE/cgid.sock
SetEnv GITWEB_CONFIG PLACE/gitweb.conf
SetEnv CGIT_CONFIG PLACE/cgitrc
ScriptAlias /gitweb /usr/share/gitweb/gitweb.cgi
ScriptAlias /cgit /usr/lib/cgit/cgit.cgi
ScriptAlias /hg PLACE/hgweb.cgi
ScriptAlias /fossil PLACE/fossil.cgi
DocumentRoot PLACE/htdocs
<Directory />
  Options +ExecCGI +FollowSymLinks
</Directory>
"""
HGWEB = """#!/usr/bin/python3
from mercurial import demandimport; demandimport.enable()
from mercurial.hgweb import hgweb, wsgicgi
wsgicgi.launch(hgweb(b"PLACE/mercurial"))
"""
RADICALE = """#!/usr/bin/python3
from wsgiref.handlers import CGIHandler
from radicale import application
CGIHandler().run(application)
"""
CALENDAR = """<?xml version="1.0"?>
<mkcalendar xmlns="urn:ietf:params:xml:ns:caldav" xmlns:d="DAV:"><d:set><d:prop>
<d:displayname>Lectures</d:displayname></d:prop></d:set></mkcalendar>"""
LECTURE = """BEGIN:VCALENDAR\r
VERSION:2.0\r
PRODID:-//ewe//test//EN\r
BEGIN:VEVENT\r
UID:lecture\r
DTSTAMP:20260101T000000Z\r
DTSTART:20260105T100000Z\r
DTEND:20260105T113000Z\r
SUMMARY:Concurrency\r
END:VEVENT\r
END:VCALENDAR\r
"""
QUERY = """<?xml version="1.0"?>
<c:calendar-query xmlns:c="urn:ietf:params:xml:ns:caldav" xmlns:d="DAV:"><d:prop><c:calendar-data/></d:prop>
<c:filter><c:comp-filter name="VCALENDAR"><c:comp-filter name="VEVENT">
<c:time-range start="20260101T000000Z" end="20260201T000000Z"/>
</c:comp-filter></c:comp-filter></c:filter></c:calendar-query>"""


def run(directory: Path, *command: str) -> str:
    """Run a command, without the settings of the machine or of its user; return what it prints."""
    environ = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0", "HOME": str(directory)}
    done = subprocess.run(
        command,
        cwd=directory,
        env={**environ, "HGRCPATH": "", "USER": "ada"},
        capture_output=True,
        timeout=50,
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return done.stdout.decode()


def git(directory: Path, *arguments: str) -> str:
    """Run git as Ada."""
    return run(directory, "git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *arguments)


def program(path: Path, text: str) -> None:
    """Write an executable file."""
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a repository of each kind, one commit in each, and the settings of each program."""
    needs.require("git", "gitweb", "cgit", "Mercurial", "Fossil", "Radicale", "OpenSSL")
    for name in ("repositories", "calendars", "work"):
        (tmp_path / name).mkdir()
    git(tmp_path, "init", "-q", "--bare", "-b", "main", "repositories/class.git")
    git(tmp_path, "init", "-q", "-b", "main", "work")
    (tmp_path / "work" / "pool.py").write_text("workers = 5\n")
    git(tmp_path / "work", "add", "pool.py")
    git(tmp_path / "work", "commit", "-qm", "Five workers")
    git(tmp_path / "work", "push", "-q", f"{tmp_path}/repositories/class.git", "main")
    run(tmp_path, "hg", "init", "mercurial")
    (tmp_path / "mercurial" / "pool.py").write_text("workers = 5\n")
    run(tmp_path / "mercurial", "hg", "commit", "-q", "-A", "-u", "ada", "-d", "0 0", "-m", "Five workers")
    run(tmp_path, "fossil", "init", "-A", "ada", "class.fossil")
    hashed = run(tmp_path, "openssl", "passwd", "-6", "sheep").strip()
    (tmp_path / "htpasswd").write_text(f"ada:{hashed}\n")
    (tmp_path / "gitweb.conf").write_text(f'$projectroot = "{tmp_path}/repositories";\n')
    (tmp_path / "cgitrc").write_text(f"virtual-root=/cgit\ncache-size=0\nscan-path={tmp_path}/repositories\n")
    (tmp_path / "radicale.conf").write_text(
        f"[storage]\nfilesystem_folder = {tmp_path}/calendars\n[auth]\ntype = remote_user\n"
    )
    program(tmp_path / "hgweb.cgi", HGWEB.replace("PLACE", str(tmp_path)))
    program(tmp_path / "fossil.cgi", f"#!/usr/bin/fossil\nrepository: {tmp_path}/class.fossil\n")
    program(tmp_path / "radicale.cgi", RADICALE)
    (tmp_path / "ewe.toml").write_text(SETTINGS.replace("PLACE", str(tmp_path)))
    return tmp_path


def by_xswitch(place: Path) -> None:
    """Let X-Switch run the scripts as nobody. That account then owns all files of the place."""
    head, *locations = (place / "ewe.toml").read_text().split("[[site.location]]")
    for number, text in enumerate(locations):
        if any(script in text for script in ("gitweb.cgi", "hgweb.cgi", "radicale.cgi")):
            locations[number] = text.replace('gateway = "cgi"', 'gateway = "xswitch"')
    # The kernel counts an account's processes on the whole machine, and all tests at once run engines as nobody.
    (place / "xswitch.toml").write_text("[limits]\nprocesses = 0\n")
    head = f'xswitch-config = "{place}/xswitch.toml"\n{head}'
    (place / "ewe.toml").write_text("[[site.location]]".join((head, *locations)))
    if os.geteuid() == 0:
        place.chmod(0o755)
        for path in (place, *place.rglob("*")):
            shutil.chown(path, "nobody")


def git_clones_and_pushes(server: Server, client: httpx.Client, place: Path) -> None:
    """Nobody without a password; ada clones and pushes 2 MB, in chunks."""
    assert client.get("git/class.git/info/refs?service=git-upload-pack").status_code == 401
    url = server.url.replace("//", "//ada:sheep@") + "git/class.git"
    git(place, "clone", "-q", url, "copy")
    (place / "copy" / "big").write_bytes(os.urandom(2 << 20))
    git(place / "copy", "add", "big")
    git(place / "copy", "commit", "-qm", "2 MB")
    git(place / "copy", "push", "-q")
    git(place, "clone", "-q", url, "again")
    same = (place / "again" / "big").read_bytes() == (place / "copy" / "big").read_bytes()
    assert same, "what ada has pushed is not what she clones"


def programs_show_the_repositories(client: httpx.Client) -> None:
    """Pages of gitweb and cgit."""
    assert "class.git" in client.get("gitweb").text
    assert "Five workers" in client.get("gitweb?p=class.git;a=log").text
    assert client.get("gitweb-static/gitweb.css").headers["content-type"] == "text/css; charset=utf-8"
    assert client.get("gitweb-static/../gitweb.cgi").status_code == 404
    assert "Five workers" in client.get("cgit/class.git/log/").text
    assert client.get("cgit/class.git/plain/pool.py").text == "workers = 5\n"


def mercurial_and_fossil_clone(server: Server, client: httpx.Client, place: Path) -> None:
    """Pages, and clones over HTTP."""
    assert "Five workers" in client.get("hg/shortlog").text
    run(place, "hg", "clone", "-q", f"{server.url}hg", "hg-copy")
    assert (place / "hg-copy" / "pool.py").read_text() == "workers = 5\n"
    assert client.get("fossil").status_code in (301, 302, 303)
    assert "Timeline" in client.get("fossil/timeline").text
    run(place, "fossil", "clone", f"{server.url}fossil", "copy.fossil")


def a_calendar_is_filled_and_queried(client: httpx.Client) -> None:
    """A calendar of Radicale: made, filled, queried."""
    assert client.get("calendar/").status_code == 401
    client.auth = ("ada", "sheep")
    report = {"Depth": "1", "Content-Type": "text/xml"}
    for method, name, status, content, headers, expected in (
        ("PROPFIND", "", 207, None, {}, ""),  # Radicale makes it
        ("MKCALENDAR", "lectures/", 201, CALENDAR, {}, ""),
        ("PUT", "lectures/1.ics", 201, LECTURE, {}, ""),
        ("PROPFIND", "lectures/", 207, None, {"Depth": "1"}, "/calendar/ada/lectures/1.ics"),
        ("REPORT", "lectures/", 207, QUERY, report, "SUMMARY:Concurrency"),
        ("DELETE", "lectures/1.ics", 200, None, {}, ""),
    ):
        answer = client.request(method, f"calendar/ada/{name}", content=content, headers=headers)
        assert answer.status_code == status, (method, answer.text)
        assert expected in answer.text, method


@pytest.mark.starts_processes
@pytest.mark.parametrize("name", SOME)
def test_under_a_model(start: Start, place: Path, name: str) -> None:
    if name == "xswitch":
        by_xswitch(place)
    server = start(name, "--config", "ewe.toml")
    with web.Client(base_url=server.url, timeout=40) as client:
        git_clones_and_pushes(server, client, place)
        programs_show_the_repositories(client)
        mercurial_and_fossil_clone(server, client, place)
        a_calendar_is_filled_and_queried(client)
    assert "Traceback" not in server.log()


QUESTIONS = (
    "gitweb", "gitweb?p=class.git;a=summary", "gitweb/class.git/blob_plain/HEAD:/pool.py", "gitweb?p=nothing.git",
    "cgit/", "cgit/class.git/", "cgit/class.git/plain/pool.py", "cgit/class.git/tree/none",
    "cgit/class.git/snapshot/class-main.tar.gz",
    "hg", "hg/file/tip/pool.py", "hg/raw-file/tip/pool.py", "hg/rev/99", "hg?cmd=capabilities",
    "fossil/", "fossil/timeline", "fossil/none",
)  # fmt: skip
SAME = (
    "content-type",
    "location",
    "etag",
    "last-modified",
    "cache-control",
    "content-disposition",
    "www-authenticate",
)
# The parts that differ between two answers of one program: times, tokens, the server's name and port
CHANGES = re.compile(
    rb"127\.0\.0\.1:\d+|localhost:\d+|\d\d:\d\d(:\d\d)?|[\d.]+ seconds|\b[\d.]+ ?ms\b|nonce[-=]['\"]?[\w+/=-]+"
    rb"|generated in .*? at .*|class='age-\w+'>[^<]*|\d+ (sec|min)\w*\.? ago| ?right now|csrf[^>]*value=.[\w-]+"
    rb"|[\d.]+s by|Age: *\d+"
)


@contextmanager
def apache(place: Path) -> Iterator[str]:
    """Run Apache with the same programs; yield its URL."""
    port = free_port()
    (place / "apache.conf").write_text(APACHE.replace("PLACE", str(place)).replace("PORT", str(port)))
    process = subprocess.Popen(["apache2", "-X", "-f", str(place / "apache.conf")], stderr=subprocess.DEVNULL)

    def answers() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                return True
        except OSError:
            assert process.poll() is None, (place / "apache.log").read_text()
            return False

    try:
        wait_until(answers, 20)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait(20)


def outline(answer: httpx.Response) -> tuple[int, dict[str, str], bytes]:
    """Return the parts that must be equal in two answers of one program: status, fields, body."""
    fields = {
        name: CHANGES.sub(b"", answer.headers.get(name, "").encode()).decode()
        for name in SAME
        if name != "etag"
    }
    return answer.status_code, fields, CHANGES.sub(b"", answer.content)


@pytest.mark.starts_processes
@pytest.mark.needs("apache2")
def test_the_answers_are_those_of_apache(start: Start, place: Path) -> None:
    server = start("asyncio", "--config", "ewe.toml")
    differ = []
    place.chmod(0o755)
    with apache(place) as other, web.Client(timeout=40) as client:
        for question in QUESTIONS:
            ours, theirs = (outline(client.get(url + question)) for url in (server.url, other))
            if ours != theirs:
                lines = difflib.unified_diff(
                    *(repr(each).split("\\n") for each in (theirs, ours)), lineterm="", n=0
                )
                differ.append("\n".join((question, *islice(lines, 20))))
    assert not differ, "\n\n".join(differ)
