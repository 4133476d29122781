"""Sites and locations on a running server: one start for each model, and many requests."""

from __future__ import annotations

import contextlib
import gzip
import http.client
from email.message import Message
from pathlib import Path

import pytest
from support.server import MODELS, Server, Start, wait_until, write_program

PRINTS = """#!/bin/sh
printf 'Content-Type: text/plain\\n\\n'
for name in SCRIPT_NAME PATH_INFO REQUEST_URI QUERY_STRING DOCUMENT_ROOT HTTP_AUTHORIZATION LESSON SITE \\
    REDIRECT_STATUS
do eval "printf '%s=%s\\n' $name \\"\\$$name\\""; done
"""

SETTINGS = """
[[site]]
names = ["a.example", "*.a.example"]
documentroot = "one"
access-log = "one.log"
env = { SITE = "one, and only" }
error-pages = { 404 = "/missing.html", 403 = "/cgi/page.cgi", 503 = "/nowhere.html", 410 = "/cgi/local.cgi" }

[[site.location]]
path = "/robots.txt"
alias = "robots-of-one.txt"
[[site.location]]
prefix = "/old"
redirect = "/new$rest"
status = 301
[[site.location]]
pattern = "^/lesson/([^/]+)/(?P<page>.*)$"
rewrite = "/cgi/page.cgi/$page?lesson=$1&$query"
[[site.location]]
pattern = "^/again/(.*)$"
rewrite = "$1"
[[site.location]]
pattern = "^/relay(/.*)$"
rewrite = "$1"
env = { SITE = "relay", LESSON = "relay" }
pass-authorization = true
[[site.location]]
pattern = "^/go/(.*)$"
redirect = "https://$host/$1?from=$path"
[[site.location]]
pattern = "^/bytes/(.+)$"
alias = "elsewhere/deep/$1"
[[site.location]]
prefix = "/one-program"
alias = "elsewhere/page.cgi"
gateway = "cgi"
pass-authorization = true
env = { LESSON = "third" }
[[site.location]]
prefix = "/elsewhere/"
alias = "elsewhere"
indexes = false
[[site.location]]
prefix = "/cgi"
programs = [".cgi"]
try = ["$path", "/none"]
[[site.location]]
prefix = "/gone"
status = 410
[[site.location]]
prefix = "/busy"
status = 503
[[site.location]]
prefix = "/framework"
try = ["$path", "$path/", "/cgi/page.cgi$rest"]
[[site.location]]
prefix = "/strict"
try = ["$path", 404]
[[site.location]]
prefix = "/round"
rewrite = "/round$rest/x"
[[site.location]]
prefix = "/wide"
root = "two"
index = "other.html"

[[site]]
documentroot = "two"
access-log = "two.log"
"""


@pytest.fixture(params=MODELS)
def server(request: pytest.FixtureRequest, start: Start, tmp_path: Path) -> Server:
    """A server with two sites, under each model."""
    for directory in ("one/cgi", "one/framework/dir", "two/wide", "elsewhere/deep"):
        (tmp_path / directory).mkdir(parents=True)
    files = {
        "one/index.html": "one", "two/index.html": "two", "one/missing.html": "missing in one",
        "secret.txt": "secret",
        "robots-of-one.txt": "robots", "elsewhere/plain.txt": "plain",
        "elsewhere/deep/plain.txt": "deep",
        "one/framework/dir/index.html": "directory", "two/wide/other.html": "wide", "one/strict": "there",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    write_program(tmp_path / "one/cgi/page.cgi", PRINTS)
    write_program(tmp_path / "elsewhere/page.cgi", PRINTS)
    write_program(tmp_path / "one/cgi/local.cgi", "#!/bin/sh\nprintf 'Location: /robots.txt\\n\\n'\n")
    (tmp_path / "elsewhere/out.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "elsewhere/shown.txt").symlink_to(tmp_path / "elsewhere/page.cgi")
    (tmp_path / "two/leak").symlink_to(tmp_path / "one/cgi")
    (tmp_path / "ewe.toml").write_text('symlinks = "follow"\n' + SETTINGS)
    return start(str(request.param), "--config", "ewe.toml", "--symlinks", "inside")


Fetched = tuple[int, Message, str]


def fetch(
    server: Server, target: str, host: str = "a.example", method: str = "GET", **fields: str
) -> Fetched:
    """Return status, fields and body."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", host)
        for name, value in fields.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()


def told(text: str) -> dict[str, str]:
    """Return the variables that PRINTS has printed."""
    return dict(line.split("=", 1) for line in text.splitlines())


def only_the_last_location_speaks(server: Server) -> None:
    """A rewrite leaves no variable and no password of the first location: those of the second one count."""
    found = told(fetch(server, "/relay/one-program", Authorization="Basic eDp5")[2])
    assert (found["SITE"], found["LESSON"]) == ("one, and only", "third")
    assert found["HTTP_AUTHORIZATION"] == "Basic eDp5"
    found = told(fetch(server, "/relay/cgi/page.cgi", Authorization="Basic eDp5")[2])
    assert (found["SITE"], found["LESSON"], found["HTTP_AUTHORIZATION"]) == ("one, and only", "", "")


def test_where_a_url_leads(server: Server, tmp_path: Path) -> None:
    names_choose_the_site(server)
    templates_lead_elsewhere(server)
    only_the_last_location_speaks(server)
    programs_are_told_where_they_are(server)
    the_first_that_exists_answers(server)
    error_pages_keep_their_status(server)
    nothing_leads_out(server)
    wait_until(lambda: "/gone/x" in (tmp_path / "one.log").read_text(), 20)
    assert "/gone/x" not in (tmp_path / "two.log").read_text()


def names_choose_the_site(server: Server) -> None:
    for host, body in (
        ("a.example", "one"), ("A.EXAMPLE:80", "one"), ("x.y.a.example", "one"), ("b.example", "two"),
        ("[::1]", "two"),
    ):  # fmt: skip
        assert fetch(server, "/", host)[2] == body, host
    assert fetch(server, "http://a.example/", "b.example")[2] == "one"  # the target's host counts: RFC 9112
    assert fetch(server, "/robots.txt")[2] == "robots"
    assert fetch(server, "/robots.txt", "b.example")[0] == 404
    assert fetch(server, "/wide/")[2] == "wide"  # root, and an index file of its own


def templates_lead_elsewhere(server: Server) -> None:
    status, fields, _ = fetch(server, "/old/x%20y?q=1")
    assert (status, fields["Location"]) == (301, "/new/x%20y?q=1")
    status, fields, _ = fetch(server, "/go/a%0d%0ab%26c?x")
    assert (status, fields["Location"]) == (302, "https://a.example/a%0D%0Ab%26c?from=%2Fgo%2Fa%0D%0Ab%26c")
    assert fetch(server, "/older")[0] == 404
    asked = told(fetch(server, "/lesson/3%264/first?more=1")[2])
    assert asked["SCRIPT_NAME"] == "/cgi/page.cgi"
    assert asked["PATH_INFO"] == "/first"
    assert asked["QUERY_STRING"] == "lesson=3%264&more=1"
    assert asked["REQUEST_URI"] == "/lesson/3%264/first?more=1"
    assert (
        fetch(server, "/again/one-program/x")[0] == 200
    )  # a group without its slash meets the locations, too
    assert fetch(server, "/bytes/plain.txt")[2] == "deep"
    assert fetch(server, "/gone/x")[0] == 410
    assert fetch(server, "/round")[0] == 500  # and no endless loop


def programs_are_told_where_they_are(server: Server) -> None:
    asked = told(fetch(server, "/one-program/a/b?x=1", Authorization="Basic bWU6c2VjcmV0")[2])
    assert asked["SCRIPT_NAME"] == "/one-program"
    assert asked["PATH_INFO"] == "/a/b"
    assert asked["LESSON"] == "third" and asked["SITE"] == "one, and only"
    assert asked["HTTP_AUTHORIZATION"] == "Basic bWU6c2VjcmV0"
    assert asked["DOCUMENT_ROOT"].endswith("/one")
    asked = told(fetch(server, "/cgi/page.cgi", Authorization="Basic bWU6c2VjcmV0")[2])
    assert asked["HTTP_AUTHORIZATION"] == "" and asked["LESSON"] == ""
    assert asked["SITE"] == "one, and only"
    assert told(fetch(server, "/one-program")[2])["HTTP_AUTHORIZATION"] == ""
    assert fetch(server, "/cgi/local.cgi")[2] == "robots"  # a local redirect meets the locations again


def the_first_that_exists_answers(server: Server) -> None:
    assert fetch(server, "/framework/dir/")[2] == "directory"
    status, fields, _ = fetch(server, "/framework/dir?x")
    assert (status, fields["Location"]) == (301, "/framework/dir/?x")
    asked = told(fetch(server, "/framework/2026/11/hello?x=1")[2])
    assert asked["SCRIPT_NAME"] == "/cgi/page.cgi"
    assert asked["PATH_INFO"] == "/2026/11/hello"
    assert asked["REQUEST_URI"] == "/framework/2026/11/hello?x=1"
    assert asked["QUERY_STRING"] == "x=1"
    asked = told(fetch(server, "/cgi/page.cgi/more")[2])  # a path that goes on after a program is there, too
    assert (asked["SCRIPT_NAME"], asked["PATH_INFO"]) == ("/cgi/page.cgi", "/more")
    assert fetch(server, "/cgi/none")[2] == "missing in one"
    assert fetch(server, "/strict")[2] == "there"
    assert fetch(server, "/strict/x")[0] == 404


def error_pages_keep_their_status(server: Server) -> None:
    status, fields, body = fetch(server, "/nothing")
    assert (status, body) == (404, "missing in one")
    assert fields["ETag"] is None and fields["Last-Modified"] is None
    assert fetch(server, "/nothing", method="HEAD")[0] == 404
    status, _, body = fetch(server, "/elsewhere/")  # a listing that is off; its page is a program
    assert status == 403
    assert told(body)["REDIRECT_STATUS"] == "403" and told(body)["REQUEST_URI"] == "/elsewhere/"
    status, _, body = fetch(server, "/busy")
    assert status == 503 and "busy" in body  # ewe's own page, since the site's is not there
    status, _, body = fetch(server, "/gone/x")
    assert status == 410 and "410" in body  # a local redirect is no page
    status, fields, _ = fetch(server, "/nothing", method="DELETE")
    assert status == 405 and "GET" in fields["Allow"]
    assert fetch(server, "/nothing", "b.example")[2] != "missing in one"


def nothing_leads_out(server: Server) -> None:
    """Neither a link nor dots lead out of a directory, and no program is sent as a file by another way."""
    assert fetch(server, "/elsewhere/plain.txt")[2] == "plain"
    for target in (
        "/elsewhere/out.txt", "/elsewhere/../secret.txt", "/elsewhere/%2e%2e/secret.txt", "/bytes/..%2fplain.txt",
        "/bytes/x/../../../secret.txt", "/elsewhere/.git/config",
    ):  # fmt: skip
        status, _, body = fetch(server, target)
        assert status in (400, 404) and "secret" not in body, target
    for target, host in (
        ("/elsewhere/page.cgi", "a.example"), ("/elsewhere/shown.txt", "a.example"),
        ("/elsewhere/page.cgi%2e", "a.example"),
        ("/leak/page.cgi", "b.example"), ("/wide/../leak/page.cgi", "b.example"),
    ):  # fmt: skip
        status, _, body = fetch(server, target, host)
        assert status in (403, 404) and "printf" not in body, target


COUNTS = "#!/bin/sh\nprintf 'Content-Type: a/b\\n\\n%s ' \"$HTTP_CONTENT_ENCODING\"\ncat\n"


def test_a_compressed_body_reaches_a_program_as_it_is(start: Start, tmp_path: Path) -> None:
    """git sends such bodies; to decompress them is the program's business."""
    server = start("pool")
    write_program(
        server.cgi / "count",
        "#!/bin/sh\nprintf 'Content-Type: a/b\\n\\n%s ' \"$HTTP_CONTENT_ENCODING\"\ncat\n",
    )
    packed = gzip.compress(b"want " * 1000)
    request = b"POST /cgi-bin/count HTTP/1.0\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(
        packed
    )
    assert server.ask(request + packed).endswith(b"\r\n\r\ngzip " + packed)
