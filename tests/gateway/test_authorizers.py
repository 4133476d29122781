"""Authorizers: FastCGI programs that decide who may see what, under every model; and that there is no way round."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support import web
from support.server import MODELS, Server, Start, accepts, run_command, wait_until, write_program
from support.wire import read_all

from ewe.features.authorizers import readings
from ewe.gateway import records
from ewe.gateway.protected_sources import is_in
from ewe.http.messages import Request
from ewe.http.target import parse_target
from ewe.sites.templates import with_path

KEY = {"X-Key": "right"}
CGI = "#!/bin/sh\necho Content-Type: text/plain\necho\nenv\ncat\n"


class Authorizer:
    """An authorizer in this process: X-Key decides, and the path says how it answers."""

    def __init__(self, path: Path) -> None:
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(path))
        self.listening.listen(64)
        self.asked: list[dict[bytes, bytes]] = []
        self.records: list[int] = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self.listening.accept()
                threading.Thread(target=self.talk, args=(sock,), daemon=True).start()

    def talk(self, sock: socket.socket) -> None:
        """Decide one request after another on a connection."""
        responder = records.Responder(role=records.AUTHORIZER)
        with suppress(OSError), sock:
            while data := sock.recv(65536):
                self.records += [kind for kind, _, _ in records.RecordDecoder().feed(data)]
                for event in responder.feed(data):
                    assert isinstance(event, records.Began)
                    self.asked.append(event.params)
                    answer, whole = self.decide(event.params)
                    sock.sendall(responder.output(answer))
                    if not whole:
                        return
                    sock.sendall(responder.end())

    def decide(self, params: dict[bytes, bytes]) -> tuple[bytes, bool]:
        """Return the answer, and whether the authorizer outlives it."""
        where = params[b"REQUEST_URI"]
        if b"?dies" in where:
            return b"Status: 200 OK\nContent-Type: a/b\n\n", False
        if b"?login" in where:
            return b"Location: /login.html\n\n", True
        if b"?round" in where:
            return b"Location: /members/a.txt?round\n\n", True
        if b"?forges" in where:
            return b"Status: 200 OK\nVariable-SCRIPT_FILENAME: /etc/passwd\n\n", True
        if b"?garbage" in where:
            return b"yes\n\n", True
        if params.get(b"HTTP_X_KEY") != b"right":
            return (
                b"Status: 401 No\nVariable-X: secret\nWWW-Authenticate: Own\nContent-Type: a/b\n\nno entry",
                True,
            )
        variables = b"Variable-REMOTE_USER: ada\nVariable-HTTP_X_ROLE: admin\nX-Other: dropped\n"
        return b"Status: 200 OK\n" + variables + b"\nnobody reads this", True


@pytest.fixture
def authorizer(tmp_path: Path) -> Iterator[Authorizer]:
    made = Authorizer(tmp_path / "auth.sock")
    yield made
    made.listening.shutdown(socket.SHUT_RDWR)
    made.listening.close()


@pytest.fixture(params=[*MODELS, "asyncio --loop asyncio"])
def server(request: pytest.FixtureRequest, start: Start, tmp_path: Path) -> Server:
    """A site with files, a CGI program, and an authorizer for two of its paths."""
    where = tmp_path / "auth.sock"
    paths = ("/members", "/cgi-bin/private")
    server = start(
        str(request.param), *(f"--fastcgi-authorizer={path}=unix:{where}" for path in paths),
        "--fastcgi-keep", "--program-timeout", "10s",
    )  # fmt: skip
    (server.root / "members").mkdir()
    (server.root / "members" / "a.txt").write_text("for members")
    (server.root / "membership.txt").write_text("for everybody")
    (server.root / "login.html").write_text("log in")
    write_program(server.cgi / "private" / "env", CGI)
    write_program(server.cgi / "redirect", "#!/bin/sh\necho Location: /members/a.txt\necho\n")
    return server


def test_what_it_decides(server: Server, authorizer: Authorizer) -> None:
    with web.Client(base_url=server.url) as client:
        refused = client.get("/members/a.txt")
        assert (refused.status_code, refused.reason_phrase, refused.text) == (401, "No", "no entry")
        assert refused.headers["www-authenticate"] == "Own" and "variable-x" not in refused.headers
        assert client.get("/members").status_code == client.get("/members/none").status_code == 401
        allowed = client.get("/members/a.txt", headers=KEY)
        assert (allowed.status_code, allowed.text) == (
            200,
            "for members",
        ) and "x-other" not in allowed.headers
        assert client.get("/members/none", headers=KEY).status_code == 404
        assert client.get("/membership.txt").text == "for everybody"
        # A decision is for one request; a copy that the client has does not help another client.
        again = {"If-None-Match": allowed.headers["etag"]}
        assert client.get("/members/a.txt", headers={**again, **KEY}).status_code == 304
        assert client.get("/members/a.txt", headers=again).status_code == 401
        for method in ("HEAD", "OPTIONS", "POST", "PUT", "TRACE", "PROPFIND"):
            assert client.request(method, "/members/a.txt", content=b"x").status_code == 401
        assert client.head("/members/a.txt", headers=KEY).status_code == 200
    assert "Traceback" not in server.log()


def test_what_programs_are_told(server: Server, authorizer: Authorizer) -> None:
    """The authorizer gets no body, the program gets it, and variables that no client can forge."""
    with web.Client(base_url=server.url) as client:
        body = os.urandom(300_000).hex()
        told = client.post("/cgi-bin/private/env/more", content=body, headers={**KEY, "X-Role": "guest"})
        assert told.text.endswith(body)
        lines = told.text[: -len(body)].splitlines()
        assert {"REMOTE_USER=ada", "HTTP_X_ROLE=admin", f"CONTENT_LENGTH={len(body)}"} <= set(lines)
        assert client.post("/cgi-bin/private/env", content=body).status_code == 401
        # Equal heads share one Request: the authorizer's answer to one must not be used for the next.
        assert client.get("/cgi-bin/private/env", headers={"X-Role": "guest"}).status_code == 401
    asked = authorizer.asked[0]
    assert asked[b"REQUEST_METHOD"] == b"POST" and asked[b"REQUEST_URI"] == b"/cgi-bin/private/env/more"
    assert asked[b"REMOTE_ADDR"] == b"127.0.0.1" and asked[b"HTTP_X_ROLE"] == b"guest"
    assert not asked.keys() & {b"CONTENT_LENGTH", b"PATH_INFO", b"PATH_TRANSLATED", b"SCRIPT_NAME"}
    assert records.STDIN not in authorizer.records


def test_redirects_inside(server: Server, authorizer: Authorizer) -> None:
    """Of the authorizer, and of a program to what it guards."""
    with web.Client(base_url=server.url) as client:
        assert client.get("/members/?login").text == "log in"
        assert client.get("/members/?round").status_code == 500
        assert client.get("/cgi-bin/redirect").status_code == 401
        assert client.get("/cgi-bin/redirect", headers=KEY).text == "for members"


def test_without_a_decision_nobody_enters(server: Server, tmp_path: Path) -> None:
    with web.Client(base_url=server.url, headers=KEY) as client:
        unreached = client.get("/members/a.txt")
        assert (unreached.status_code, unreached.headers["retry-after"]) == (503, "1")
        authorizer = Authorizer(tmp_path / "auth.sock")
        try:
            for how in ("dies", "forges", "garbage"):
                assert client.get(f"/members/a.txt?{how}").status_code == 502, how
            server.wait_for_log("sets the variable 'SCRIPT_FILENAME', which it may not set")
            assert client.get("/members/a.txt").text == "for members"
        finally:
            authorizer.listening.shutdown(socket.SHUT_RDWR)
            authorizer.listening.close()
    assert "Traceback" not in server.log()


ROUNDABOUT = (
    "/members/a.txt", "//members/a.txt", "/./members/a.txt", "/x/../members/a.txt", "/x/%2e%2e/members/a.txt",
    "/%6dembers/a.txt", "/members//a.txt", "/members/./a.txt", "/membership.txt/../members/a.txt",
    "http://ewe/members/a.txt", "http://ewe//members/a.txt", "HTTP://other/%6Dembers/a.txt",
    "/members/../members/a.txt",
    # These lead elsewhere, but a program that reads REQUEST_URI in its way may take them for /members.
    "/members/../membership.txt", "/members/%2e%2e/membership.txt", "/x/..;/members/a.txt", "/members;v=1/a.txt",
    "/%256dembers/a.txt", "/x/%252e%252e/members/a.txt", "/MEMBERS/a.txt", "/x/..%5cmembers", "/;/members/a.txt",
)  # fmt: skip


def test_there_is_no_way_round(server: Server, authorizer: Authorizer) -> None:
    """Raw bytes: clients clean such paths. Each is asked for, or refused, and none shows the file."""
    for target in (*ROUNDABOUT, "/members%2fa.txt", "/members%00/a.txt", "/../members/a.txt"):
        count = len(authorizer.asked)
        with server.connect() as sock:
            sock.sendall(f"GET {target} HTTP/1.1\r\nHost: ewe\r\nConnection: close\r\n\r\n".encode())
            answer = read_all(sock)
        assert b"for members" not in answer, target
        status = int(answer.split()[1])
        assert status == 401 if target in ROUNDABOUT else status in (400, 404), (target, status)
        assert len(authorizer.asked) - count == (status == 401)


@pytest.mark.parametrize(
    "target",
    ["/", "/membership.txt", "/x/members/a.txt", "/a?/members/", "/x%20y/%C3%A4/%FF%25", "/a/../b;c"],
)
def test_others_are_not_asked_for(target: str) -> None:
    request = Request("GET", target, (1, 1))
    parse_target(request)
    assert not any(is_in(path, "/members") for path in readings(request))


@pytest.mark.parametrize(
    "target",
    [
        "/api/members",
        "/api/members;v=1/a",
        "/api/x/..;/members",
        "/api/%256dembers",
        "/api/x/%5c..%5cmembers",
        "/api/MEMBERS",
    ],
)
def test_the_path_after_a_rewrite_has_the_same_readings(target: str) -> None:
    """A rewrite of ^/api(/.*)$ to $1: a program gets the new path as PATH_INFO, beside the client's target."""
    request = Request("GET", target, (1, 1))
    parse_target(request)
    rewritten = with_path(request, request.path.removeprefix("/api"), None)
    assert any(is_in(path, "/members") for path in readings(rewritten))


def test_several_must_agree(start: Start, authorizer: Authorizer, tmp_path: Path, model: str) -> None:
    """The outer one first; a second address where the first is dead; / is everything."""
    paths = ("/inner=unix:/none", f"/=unix:{tmp_path / 'auth.sock'}", f"/inner=unix:{tmp_path / 'auth.sock'}")
    server = start(model, *(f"--fastcgi-authorizer={path}" for path in paths))
    (server.root / "inner").write_text("inner")
    with web.Client(base_url=server.url) as client:
        assert client.get("/").status_code == client.get("/inner").status_code == 401
        assert len(authorizer.asked) == 2
        assert "welcome" in client.get("/", headers=KEY).text
        assert client.get("/inner", headers=KEY).text == "inner"
        assert len(authorizer.asked) == 5 and authorizer.asked[-1][b"REMOTE_USER"] == b"ada"


PERL = """\
use FCGI;
my $socket = FCGI::OpenSocket("perl.sock", 5);
my $request = FCGI::Request(\\*STDIN, \\*STDOUT, \\*STDERR, \\%ENV, $socket);
while ($request->Accept() >= 0) {
    if (($ENV{HTTP_X_KEY} // "") eq "right" and $ENV{FCGI_ROLE} eq "AUTHORIZER") {
        print "Status: 200 OK\\r\\nVariable-REMOTE_USER: perl\\r\\n\\r\\n";
    } else {
        print "Status: 403 Forbidden\\r\\nContent-Type: text/plain\\r\\n\\r\\n$ENV{FCGI_ROLE}";
    }
}
"""


@pytest.mark.starts_processes
@pytest.mark.needs("FCGI.pm")
def test_an_authorizer_with_the_reference_library(start: Start, way_to_wait: str, tmp_path: Path) -> None:
    """Perl's FCGI is the C library of FastCGI's authors."""
    (tmp_path / "auth.pl").write_text(PERL)
    perl = subprocess.Popen(["perl", "auth.pl"], cwd=tmp_path)
    try:
        wait_until(lambda: accepts(tmp_path / "perl.sock"), 20)
        options = ("--fastcgi-keep", "--fastcgi-authorizer", f"/cgi-bin=unix:{tmp_path / 'perl.sock'}")
        server = start(way_to_wait, *options)
        write_program(server.cgi / "env", CGI)
        with web.Client(base_url=server.url) as client:
            for _ in range(3):
                refused = client.post("/cgi-bin/env", content=b"x")
                assert (refused.status_code, refused.text) == (403, "AUTHORIZER")
                assert "REMOTE_USER=perl\n" in client.post("/cgi-bin/env", content=b"x", headers=KEY).text
    finally:
        perl.send_signal(signal.SIGTERM)
        perl.wait(20)


@pytest.mark.starts_processes
@pytest.mark.parametrize("setting", [".php=unix:/x", "/a", "/a=/x", "/a=fd://3"])
def test_bad_settings_are_one_line(tmp_path: Path, setting: str) -> None:
    done = run_command(tmp_path, "--fastcgi-authorizer", setting, "0")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--fastcgi-authorizer" in done.stderr
