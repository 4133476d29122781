"""What `ewe --explain` says is what the site answers: random settings, random URLs, one seed.

Each table and each URL is made of few parts, so that they meet often: a prefix within an alias, a rewrite onto a
`try`, a file where a directory is expected. A responder that nobody runs stands for programs (503), so that nothing
is started. EWE_TEST_EXPLAINED=100000 asks that many questions.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

from ewe.config.messages import ConfigError
from ewe.config.settings import Config
from ewe.features.markdown.book import MAX_FILE_BYTES
from ewe.http.messages import Response
from ewe.http.parser import parse_request
from ewe.http.status import HTTPError
from ewe.site import Site
from ewe.sites import make_site
from ewe.sites.explain import explain
from ewe.streams.blocking import run

QUESTIONS = int(os.environ.get("EWE_TEST_EXPLAINED", "2000"))
SHOWN = 3
SERVER = ("127.0.0.1", 80)
FILES = (
    "one/index.html", "one/a.html", "one/b.php", "one/sub/c.txt", "one/sub/index.htm", "one/sub/deep/d.php",
    "one/empty/.hidden", "one/ü b.txt", "one/a.b/e", "two/index.html", "two/a.html", "two/sub/x.php", "two/run",
    "two/sub/index.html", "one/x.php/f", "one/noindex/g.txt", "two/a$b",
)  # fmt: skip
PATHS = (
    "/", "/a", "/a.html", "/sub", "/sub/", "/sub/deep", "/b.php", "/x.php", "/none", "/two", "/a.b", "/noindex",
    "/l",
)  # fmt: skip
NAMES = (
    "", "a.html", "b.php", "sub", "sub/", "deep/d.php", "c.txt", "none", "x.php/f", "%C3%BC%20b.txt", "../a.html",
    ".hidden", "index.html", "run", "a.b/e", "f", "b.php/info", "a%2Fb", "./sub//c.txt", "noindex/", "%41", "a$b",
    "empty", "sub/x.php/more", "d.php",
)  # fmt: skip
TARGETS = (
    "/a.html", "/none", "/sub/", "/two/$rest", "$path", "/b.php?x=$path", "/index.html", "/sub$rest", "$rest",
)  # fmt: skip


class Nowhere:
    """The facts of a connection."""

    client = SERVER
    server = SERVER
    scheme = "http"
    peer = None
    endpoints = None
    variables: dict[bytes, bytes] = {}
    libcgi_block = b""
    gateway_params = (None, b"")

    tried: object = None
    counted_by: tuple[object, ...] = ()

    def poller(self) -> None:
        """A poller in place of a responder that does not run."""
        raise HTTPError(503, "nobody runs it")

    upstream_poller = poller

    def server_address(self) -> str:
        """Return the address that the client reached."""
        return SERVER[0]


def table(pick: random.Random) -> str:
    """Return a location."""
    kind = pick.choice(("prefix", "prefix", "path", "pattern"))
    what = pick.choice(PATHS)
    if kind == "pattern":
        what = pick.choice(("^/sub/(.*)$", "[.]php$", "^/(a|l)", "/deep/(?P<rest2>.+)", "^/two(.*)$", "."))
    lines = ["[[site.location]]", f'{kind} = "{what}"']
    chosen = pick.choice(
        ("alias", "root", "redirect", "rewrite", "status", "nothing", "nothing", "alias file", "proxy")
    )
    target = pick.choice(TARGETS)
    if kind == "pattern":
        target = target.replace("$rest", "$1")
    directories = ("one", "two", "one/sub", "two/$1" if kind == "pattern" else "two/sub")
    lines += {
        "alias": [f'alias = "{pick.choice(directories)}"'],
        "alias file": [f'alias = "{pick.choice(("one/a.html", "two/run", "one/b.php"))}"'],
        "root": [f'root = "{pick.choice(("one", "two"))}"'],
        "redirect": [f'redirect = "{target}"', *pick.choice(([], ["status = 301"]))],
        "rewrite": [f'rewrite = "{target}"'],
        "status": [f"status = {pick.choice((404, 410, 403, 503))}"],
        "proxy": ['gateway = "http://127.0.0.1:1"'],
        "nothing": [],
    }[chosen]  # fmt: skip
    if chosen in ("alias", "alias file", "root", "nothing"):
        if pick.random() < 0.3:
            last = pick.choice(('"/index.html"', '"/b.php"', "404", '"/none"', '"/two/"', '"$path"'))
            lines.append(f'try = ["$path", {pick.choice(("", chr(34) + "$path/" + chr(34) + ", "))}{last}]')
        if pick.random() < 0.3:
            lines.append(pick.choice(('programs = [".php"]', 'programs = [".php", ".txt"]')))
            lines.append(pick.choice(('gateway = "fastcgi:127.0.0.1:1"', 'gateway = "cgi"')))
        elif chosen == "alias file" or pick.random() < 0.1:
            lines.append('gateway = "fastcgi:127.0.0.1:1"')
        if pick.random() < 0.2:
            lines.append('index = ["index.htm", "a.html"]')
        if pick.random() < 0.2:
            lines.append("indexes = false")
    if pick.random() < 0.1:
        lines.append(pick.choice(('deny = ["127.0.0.1"]', 'methods = ["POST"]')))
    return "\n".join(lines)


def site_of(pick: random.Random, directory: Path) -> tuple[Site, str]:
    """Return a site that the settings allow, and its settings."""
    while True:
        text = 'documentroot = "one"\ncgi-path = "none"\n'
        if pick.random() < 0.3:
            text += 'fastcgi = [".php=127.0.0.1:1"]\n'
        text += "[[site]]\n" + "\n".join(table(pick) for _ in range(pick.randint(1, 4))) + "\n"
        (directory / "ewe.toml").write_text(text)
        try:
            return make_site(Config.load(environ={}, file=str(directory / "ewe.toml"))), text
        except (ConfigError, ValueError):
            continue


def answered(site: Site, target: str) -> tuple[int, str, bytes]:
    """Return the status, Location and body of the site's answer."""
    head = f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    try:
        response: Response = run(site.respond(parse_request(head, site.limits), Nowhere()))  # type: ignore[arg-type]
    except HTTPError as refused:
        return refused.status, "", b""
    location = next((value for name, value in response.fields if name == "Location"), "")
    body = response.body if isinstance(response.body, tuple) else (response.body,)
    return response.status, location, b"".join(part for part in body if isinstance(part, bytes))


def differs(site: Site, target: str) -> str:
    """Return "" if the explanation of a URL is what the site answers, else how they differ."""
    status, location, body = answered(site, target)
    try:
        said = "\n".join(explain(site, target, SERVER))
    except ValueError as refused:
        said = str(refused)
        found = re.search(r"\((4\d\d)\)$", said)
        expected: tuple[int, ...] = (int(found[1]),) if found else ()
        return "" if status in expected else f"{target} was answered {status}, and the explanation is: {said}"
    answer = said.rpartition("  answer    ")[2]
    if guards := re.findall("^  decides   (.+): may", said, re.MULTILINE):
        expected = ({"methods": 405, "deny": 403}[guards[0]],)
    elif found := re.match(r"\d\d\d\b", answer):
        expected = (int(found[0]),)
    elif answer.startswith("the program "):
        expected = (403,) if "but 403" in answer else (503, 500)
    elif answer.startswith("the next server "):
        expected = (503,)
    else:
        expected = (200,)
    right = status in expected
    if right and not guards and (found := re.match(r"30\d, Location: (\S+)", answer)):
        right = location == found[1]
    if right and (found := re.match(r"the file (.+?)   \(", answer)) and not guards:
        right = body == os.path.realpath(found[1]).encode()
    return (
        ""
        if right
        else f"{target} was answered {status} {location} {body[:80]!r}, and the explanation is:\n{said}"
    )


def test_an_explanation_is_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(os.path.realpath(file))
    (tmp_path / "one" / "l").symlink_to("sub")
    (tmp_path / "one" / "out").symlink_to("../two")
    pick = random.Random(15)
    wrong: list[str] = []
    for number in range(QUESTIONS):
        if number % 20 == 0:
            site, text = site_of(pick, tmp_path)
        target = pick.choice(PATHS).rstrip("/") + pick.choice(("/", "/", "", "//")) + pick.choice(NAMES)
        target = target if target.startswith("/") else "/" + target
        target += pick.choice(("", "", "", "?a=b"))
        if difference := differs(site, target):
            wrong.append(f"{text}\n{difference}")
    assert not wrong, f"{len(wrong)} of {QUESTIONS} differ, the first:\n" + "\n\n".join(wrong[:SHOWN])


PAGES = """
documentroot = "one"
cgi-path = "none"
libcgi-path = "one"
libcgi-isolation = "in-place"
libcgi-status = true
xswitch = "unix:nowhere"
xswitch-status = true
dbd = "unix:nowhere"
browser = "/db"
status = "/st"
"""
TABLES = '[[site]]\nnames = "b"\n[[site]]\n'


@pytest.mark.parametrize("tables", ["", "[[site]]\n", TABLES])
@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("/st", "the status of the server, "),
        ("/st/metrics", "the status of the server, "),
        ("DELETE /st", "405: DELETE to the status"),
        ("/sta", "404: "),
        ("/db", "308, Location: /db/   (browser)"),
        ("/db/log/t", "the browser of databases, "),
        ("/dbs", "404: "),
        ("/xswitch-status", "the status page of X-Switch, "),
        ("/xswitch-statusfoo", "404: "),
        ("/libcgi-status", "the libraries of one process, "),
        ("/libcgi-statusfoo", "404: "),
    ],
)
def test_a_page_of_a_feature_and_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: str, question: str, said: str
) -> None:
    """A path that only begins like a page goes on to the files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one").mkdir()
    (tmp_path / "ewe.toml").write_text(PAGES + tables)
    site = make_site(Config.load(environ={}, file=str(tmp_path / "ewe.toml")))
    lines = list(explain(site, question, SERVER))
    assert [line for line in lines if line.startswith("  site ")] == lines[1:2]
    assert lines[-1].startswith(f"  answer    {said}"), lines


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("/", "the file {root}/index.en.html, as Accept-Language says"),
        ("OPTIONS /none", "204, Allow: GET, HEAD, OPTIONS"),
        ("BREW /notes.md", "501: method 'BREW' to a file"),
        ("POST /notes.md", "405: POST to a file"),
        ("/notes.md", "the page of {root}/notes.md"),
        ("/long.md", "the file {root}/long.md"),  # a longer file is sent as it is
    ],
)
def test_a_method_a_language_and_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str, said: str
) -> None:
    """The explanation depends on the method, and on the variants of a file, as the answer does."""
    monkeypatch.chdir(tmp_path)
    for name, size in (("index.en.html", 1), ("notes.md", 1), ("long.md", MAX_FILE_BYTES + 1)):
        (tmp_path / name).write_text("a" * size)
    (tmp_path / "ewe.toml").write_text('documentroot = "."\nlanguages = ["en"]\nmarkdown = true\n')
    site = make_site(Config.load(environ={}, file=str(tmp_path / "ewe.toml")))
    *_, answer = explain(site, question, SERVER)
    assert answer.startswith(f"  answer    {said.format(root=os.path.realpath(tmp_path))}"), answer


def test_a_path_at_a_server_with_an_ipv6_address(tmp_path: Path) -> None:
    (tmp_path / "a.html").touch()
    first, *_, last = explain(make_site(Config(documentroot=str(tmp_path))), "/a.html", ("::1", 4000))
    assert first == "GET http://[::1]/a.html" and "the file " in last
