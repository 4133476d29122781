"""The tables [[site]] and [[site.location]]: what they can say, and that each error names its line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.server import run_command

from ewe.config.feature_table import GATEWAYS, start_warnings
from ewe.config.messages import ConfigError
from ewe.config.settings import Config
from ewe.config.site_tables import is_below, parse_gateway
from ewe.http.limits import RequestLimits
from ewe.http.parser import parse_request
from ewe.http.status import HTTPError
from ewe.http.virtual_hosts import VirtualHost, VirtualHosts, wildcards_for
from ewe.sites import make_site
from ewe.sites.explain import explain
from ewe.streams.blocking import run

SITE = '[[site]]\nnames = ["a.example"]\n[[site.location]]\nprefix = "/a"\n'  # its next line is line 5


def read(text: str, directory: Path, name: str = "ewe.toml") -> Config:
    """Return the settings of a file with this text."""
    file = directory / name
    file.write_text(text)
    return Config.load(environ={}, file=str(file))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[site]]\nnams = ["a"]\n', 'line 2: unknown key "nams" in [[site]]; did you mean "names"?'),
        ("[[site]]\nnames = [1]\n", "line 2: names = [1]: expected host names"),
        ("[[site]]\n\nport = 80\n", "line 3: port is a setting of the whole server: set it above [[site]]"),
        ('[[site]]\nindexes = "maybe"\n', 'line 2: indexes = "maybe": expected true or false'),
        ('[[site]]\ncertfile = "a"\ntls-cert = "b"\n', "are one setting: keep one"),
        ('[[site]]\nlisten = ["unix:/x"]\n', "line 2: listen ="),
        ('site = "a"\n', 'unknown key "site"'),
        ("[[site]]\n[[site]]\n", "line 2: the site of"),
        (SITE + 'tri = ["$path"]\n', 'line 5: unknown key "tri" in [[site.location]]; did you mean "try"?'),
        (SITE + "port = 1\n", "line 5: port is no setting of a location"),
        (
            'methods = ["GET"]\n',
            "line 1: methods is a key of [[site]] and of [[site.location]]: set it there",
        ),
        ("[headers]\nset = {}\n", "line 1: headers is a key of [[site]] and of [[site.location]]"),
        ('names = ["a.example"]\n', "line 1: names is a key of [[site]]: set it there"),
        ('[location]\nprefix = "/"\n', "line 1: location is a key of [[site]]: set it there"),
        ('alias = "/srv"\n', "line 1: alias is a key of [[site.location]]: set it there"),
        ('[[site]]\nprefix = "/"\n', "line 2: prefix is a key of [[site.location]]: set it there"),
        (SITE + 'listen = "127.0.0.1:80"\n', "line 5: listen is a key of [[site]]: set it there"),
        (
            SITE + 'path = "/b"\n',
            "line 3: a location has one of prefix, path and pattern, not prefix and path",
        ),
        ("[[site]]\n[[site.location]]\nstatus = 404\n", "line 2: a location has one of"),
        ('[[site]]\n[[site.location]]\nprefix = "/a%20b"\n', "(not a decoded path: write a space for %20)"),
        (SITE + 'status = "no"\n', 'line 5: status = "no": expected a status from 200 to 599'),
        (SITE + 'redirect = "/b"\nstatus = 404\n', "line 6: status = 404: expected 301, 302"),
        (SITE + "status = 302\n", "line 5: status = 302 needs redirect"),
        (
            SITE + 'redirect = "/b"\nrewrite = "/c"\n',
            "line 6: rewrite = and redirect lead to different places",
        ),
        (SITE + 'redirect = "/b c"\n', "line 5: redirect ="),
        (SITE + 'root = "/"\nalias = "/"\n', "line 5: root = and alias lead to different places"),
        (SITE + 'gateway = "gci"\n', 'line 5: gateway = "gci": expected cgi, xswitch'),
        (SITE + 'gateway = "fastcgi:nowhere"\n', "line 5: gateway ="),
        (SITE + 'gateway = "wsgi:a:b"\nindex = "x"\n', "line 6: index = says which files answer"),
        (SITE + 'programs = ["cgi"]\n', "line 5: programs ="),
        (SITE + 'env = { SCRIPT_NAME = "x" }\n', "line 5: env ="),
        (SITE + 'env = { HTTP_HOST = "x" }\n', "line 5: env ="),
        (
            SITE + '[[site.location]]\npath = "/a/b"\n',
            'line 5: path = "/a/b" is never reached: prefix = "/a"',
        ),
        (SITE + 2 * '[[site.location]]\npath = "/b"\n', 'line 7: path = "/b" is never reached: path = "/b"'),
        (SITE + '[[site.location]]\npattern = "^/("\n', "line 6: pattern ="),
        (SITE + "[site.location.env]\nHTTPS = 'on'\n", "line 5: env ="),
    ],
)
def test_an_error_names_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(text, tmp_path)
    assert said in str(raised.value), raised.value
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('redirect = "/b/$1"\n', "line 5: redirect = /b/$1: $1 is a group, and this location has no pattern"),
        ('rewrite = "/b/$pth"\n', 'unknown variable $pth; did you mean "path"?'),
        ('alias = "nowhere"\n', 'line 5: alias = "nowhere": No such file or directory'),
        ('alias = "/bin/sh"\n', 'line 5: alias = "/bin/sh" is a program: write gateway = "cgi" too'),
        ('root = "ewe.toml"\n', 'line 5: root = "ewe.toml" is not a directory'),
        ('gateway = "xswitch"\n', "line 5: gateway = xswitch needs an X-Switch"),
        ("error-pages = { 200 = '/x' }\n", 'line 5: error-pages: "200": expected a status from 400'),
        ("error-pages = { 404 = 'x' }\n", 'line 5: error-pages.404 = "x": expected a path'),
        ("try = [404]\n", "line 5: try = 404: write status = 404"),
    ],
)
def test_an_error_that_a_start_would_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    """`ewe --check-config` makes the site, as a start does."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "htdocs").mkdir()
    config = read(SITE + text, tmp_path)
    with pytest.raises(ValueError, match=re.escape(said)):
        make_site(config)


@pytest.mark.starts_processes
@pytest.mark.parametrize("command", [(), ("--check-config",), ("--explain", "/")])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            SITE + "headers = { sett = { A = 'b' } }\n",
            'line 5: headers: unknown key "sett"; did you mean "set"?',
        ),
        (SITE + "methods = ['get']\n", 'line 5: methods = ["get"]: expected'),
        (SITE + "auth = { realm = 'a', htpasswd = 'nowhere' }\n", "line 5: auth"),
        ("methods = ['GET']\n", "line 1: methods is a key of"),
        ("[[site]]\nmount = '/a=nowhere:Nothing'\n", "line 2: feature 'nowhere:Nothing' cannot be loaded"),
    ],
)
def test_a_wrong_setting_has_one_exit_status(
    tmp_path: Path, text: str, said: str, command: tuple[str, ...]
) -> None:
    """Also if a feature reads the key, when the site is built."""
    (tmp_path / "htdocs").mkdir()
    (tmp_path / "ewe.toml").write_text(text)
    done = run_command(tmp_path, *command)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith(f"ewe: ewe.toml {said}"), done.stderr


def test_a_path_with_a_slash_at_its_end_is_another_path(tmp_path: Path) -> None:
    locations = "".join(f'[[site.location]]\npath = "{path}"\nstatus = 410\n' for path in ("/b", "/b/"))
    [site] = read("[[site]]\n" + locations, tmp_path).sites
    assert [each.match_value for each in site.locations] == ["/b", "/b/"]


def test_each_site_has_its_settings(tmp_path: Path) -> None:
    text = 'documentroot = "top"\nindexes = false\n[[site]]\ndocumentroot = "one"\n[[site]]\nnames = "b"\n'
    one, two = read(text, tmp_path).each_site()
    assert (one.documentroot, one.indexes, two.documentroot) == ("one", False, "top")
    assert one.origin("documentroot").endswith("line 4")


@pytest.mark.parametrize(
    ("key", "missing"),
    [("engines = true", None), ('redirect = "https://a.example/"', None), ("webdav = true", "htdocs")],
)
def test_a_location_that_serves_no_files_needs_no_document_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, missing: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    config = read(f'[[site]]\n[[site.location]]\nprefix = "/"\n{key}\n', tmp_path)
    assert config.missing_root() == missing


def test_a_document_root_in_cgi_path_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = 'cgi-path = "/srv/programs"\ndocumentroot = "/srv/programs/pages"\n'
    text = f'[[site]]\nnames = "a"\n[[site]]\nnames = "b"\n{here}[[site]]\n{here}'
    [line] = start_warnings(read(text, tmp_path))
    assert line.startswith("the document root /srv/programs/pages lies in cgi-path /srv/programs: ")


def test_tables_of_a_pyproject(tmp_path: Path) -> None:
    text = (
        '[project]\nname = "x"\n[[tool.ewe.site]]\nnames = ["a"]\n[[tool.ewe.site.location]]\nprefx = "/"\n'
    )
    with pytest.raises(ConfigError, match="line 5: a location has one of"):
        read(text, tmp_path, "pyproject.toml")


def test_gateways() -> None:
    assert parse_gateway("fastcgi:unix:/run/php.sock") == ("fastcgi", "unix:/run/php.sock")
    assert parse_gateway("scgi://[::1]:4000") == ("scgi", "[::1]:4000")
    for wrong in ("cgi:x", "fastcgi", "fastcgi:fd://3", "wsgi:", "http:"):
        with pytest.raises(ValueError, match=re.escape(wrong)):
            parse_gateway(wrong)


def test_the_table_says_what_each_kind_of_gateway_names() -> None:
    """The value of each kind, what a second one of it does, and whether the location may say which files."""
    values = {"": "", "address": ":127.0.0.1:9000", "application": ":wiki:app", "url": "://127.0.0.1:9000"}
    assert {kind.target_kind for kind in GATEWAYS.values()} == values.keys()
    for name, kind in GATEWAYS.items():
        for names, rest in values.items():
            if bool(names) == bool(kind.target_kind):
                assert parse_gateway(name + values[kind.target_kind])[0] == name
            else:
                with pytest.raises(ValueError, match=name):
                    parse_gateway(name + rest)
    assert [name for name, kind in GATEWAYS.items() if not kind.runs_files] == [
        "wsgi",
        "asgi",
        "http",
        "https",
    ]
    alone = ["cgi", "xswitch", "libcgi", "wsgi", "asgi"]
    assert [name for name, kind in GATEWAYS.items() if not kind.may_be_several] == alone


def test_prefixes_match_whole_segments() -> None:
    for prefix in ("/blog", "/blog/"):
        assert [is_below(path, prefix) for path in ("/blog", "/blog/", "/blog/x", "/blogger", "/")] == [
            True,
            True,
            True,
            False,
            False,
        ]
    assert is_below("/", "/") and is_below("/x", "/")


def test_virtual_hosts() -> None:
    hosts = VirtualHosts([
        (VirtualHost(("a.example",)), "a"),
        (VirtualHost(("*.a.example",)), "wild"),
        (VirtualHost(("*.b.a.example",)), "wilder"),
        (VirtualHost(()), "rest"),
        (VirtualHost(("a.example",), (("127.0.0.2", 80),)), "there"),
        (VirtualHost((), (("::", 81),)), "port 81"),
    ])  # fmt: skip
    here = ("127.0.0.1", 80)
    for host, found in {
        "a.example": "a", "A.Example:8080": "a", "a.example.": "a", "x.a.example": "wild", "x.y.a.example": "wild",
        "x.b.a.example": "wilder", "b.a.example": "wild", "example": "rest", "": "rest", "[::1]:80": "rest",
    }.items():  # fmt: skip
        assert hosts.choose(host, here) == found, host
    assert hosts.choose("x", ("::", 81)) == "rest"  # the first in the file that has no names
    for number in range(3000):  # clients choose the names
        hosts.choose(f"host{number}", here)
    assert len(hosts.known) <= 1024
    # No name is so long. Its wildcards, one for each label, would be megabytes of text.
    assert hosts.choose("x." * 8000 + "a.example", here) == "rest" and wildcards_for("." * 16_000) == []
    named = VirtualHosts([(VirtualHost(("a",)), 1), (VirtualHost(("b",)), 2)])
    assert named.choose("c", here) == 1


def test_listen_may_name_a_host(tmp_path: Path) -> None:
    """A connection has the numbers of its address. "*" stands for every address."""
    text = f'documentroot = "{tmp_path}"\n' + "".join(
        f'[[site]]\nlisten = "{address}"\n' for address in ("localhost:80", "[0:0:0:0:0:0:0:1]:81", "*:82")
    )
    hosts = VirtualHosts([(each.host, each) for each in make_site(read(text, tmp_path)).built])
    for number, server in enumerate((("127.0.0.1", 80), ("::1", 81), ("192.0.2.1", 82))):
        assert hosts.choose("a.example", server) is hosts.sites[number][1]


# Files that are never sent. There is no server: the test asks the site itself.


class Io:
    """What a site asks of a stream for a file."""

    server = ("127.0.0.1", 80)
    client = ("127.0.0.1", 1)
    scheme = "http"
    endpoints = None


def ask(text: str, directory: Path, *targets: str) -> list[int]:
    """Return the statuses of requests to the sites of a settings file."""
    site = make_site(read(text, directory))
    statuses = []
    for target in targets:
        host, slash, path = target.partition("/")
        head = f"GET {slash}{path} HTTP/1.1\r\nHost: {host or 'a'}\r\n\r\n".encode()
        try:
            statuses.append(run(site.respond(parse_request(head, RequestLimits()), Io())).status)  # type: ignore[arg-type]
        except HTTPError as refused:
            statuses.append(refused.status)
    return statuses


SITES_WITH_PROGRAMS = """
documentroot = "htdocs"
symlinks = "follow"
cgi-path = "none"
[[site]]
names = ["shop"]
documentroot = "shop"
fastcgi = [".php=127.0.0.1:1"]
[[site.location]]
prefix = "/app"
alias = "app"
[[site.location]]
pattern = "^/lib/.*[.]pl$"
gateway = "cgi"
[[site]]
[[site.location]]
prefix = "/all"
alias = "."
[[site.location]]
prefix = "/apps"
programs = [".pl"]
[[site.location]]
prefix = "/tools"
alias = "tools"
gateway = "cgi"
"""


PROTECTED = (
    "/all/shop/a.php", "/all/shop/A.PHP", "/all/shop/b.php.", "/all/shop/lib/a.pl", "/link.txt",
    "/all/tools/run", "/all/htdocs/apps/a.pl", "/all/ewe.toml", "shop/app/B.PHP", "/all/app/a.php",
)  # fmt: skip
SHOWN = ("/a.pl", "/x.php", "/apps/b.txt", "/all/htdocs/a.pl")  # the same kinds of files, no programs there


def test_a_program_of_one_site_is_no_file_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (
        "shop/a.php", "shop/A.PHP", "shop/b.php.", "shop/lib/a.pl", "htdocs/a.pl", "htdocs/apps/a.pl", "tools/run",
        "htdocs/x.php", "app/a.php", "app/B.PHP", "key.pem", "htpasswd", "htdocs/apps/b.txt",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("source")
    (tmp_path / "htdocs/link.txt").symlink_to(tmp_path / "shop/a.php")
    expected = dict.fromkeys(PROTECTED, 403) | dict.fromkeys(SHOWN, 200)
    statuses = ask(SITES_WITH_PROGRAMS, tmp_path, *expected)
    assert dict(zip(expected, statuses, strict=True)) == expected


def test_no_server_sends_its_own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.toml").write_text("a file as any other")
    (tmp_path / "link.txt").symlink_to("ewe.toml")
    targets = ("/ewe.toml", "/link.txt", "/other.toml")
    for text in ('documentroot = "."\ncgi-path = "none"\n', 'documentroot = "."\n[[site]]\n'):
        assert ask(text, tmp_path, *targets) == [403, 403, 200]


def test_an_alias_without_a_slash_begins_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory is never the root of the file system, whose files a group of the pattern could name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page-one.txt").write_text("a file")
    text = "[[site]]\n" + "".join(
        f'[[site.location]]\npattern = "^/{name}/(.*)$"\nalias = "{alias}"\n'
        for name, alias in (("a", "page-$1.txt"), ("b", "$1"))
    )
    targets = ("/a/one", "/b/page-one.txt", f"/b{tmp_path}/page-one.txt")
    assert ask(text, tmp_path, *targets) == [200, 200, 404]


def test_a_dollar_sign_in_an_alias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written $$, also in front of a variable, and in the name of a directory and of a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a$b").mkdir()
    for name in ("one.txt", "b$c.txt"):
        (tmp_path / "a$b" / name).write_text("a file")
    locations = (
        ('prefix = "/all"', "a$$b"), ('pattern = "^/some/(.*)$"', "a$$b/$1"), ('path = "/one"', "a$$b/b$$c.txt"),
        ('pattern = "^/c/(.*)$"', "a$$b/b$$$1"),
    )  # fmt: skip
    text = "[[site]]\n" + "".join(
        f'[[site.location]]\n{match}\nalias = "{alias}"\n' for match, alias in locations
    )
    targets = ("/all/one.txt", "/all/b$c.txt", "/some/one.txt", "/one", "/c/c.txt", "/c/d.txt")
    assert ask(text, tmp_path, *targets) == [200] * 5 + [404]


@pytest.mark.parametrize(
    ("match", "redirect", "target", "location"),
    [
        ('pattern = "^/go/(.*)$"', "$1", "/go/foo", "/foo"),
        ('pattern = "^/go(.*)$"', "$1/", "/go/foo", "/foo/"),
        ('pattern = "^/go/(.*)$"', "$1/$1", "/go/", "/"),
        ('prefix = "/old"', "$rest", "/old", "/"),
        ('prefix = "/old"', "$rest", "/old/x", "/x"),
        ('prefix = "/old"', "/new$rest", "/old", "/new"),
        ('prefix = "/old"', "$scheme://$host/new", "/old", "http://a/new"),
        ('prefix = "/old"', "https://b$rest", "/old/x", "https://b/x"),
        # A browser takes a backslash for a slash, and would go to the server b.
        ('path = "/go"', "/$query", "/go?\\b", "/b?\\b"),
        ('path = "/go"', "$query", "/go?\\b", "/b?\\b"),
        # A group of any name is a part of the path.
        ('pattern = "^/go/(?P<query>.*)$"', "/find?q=$query", "/go/a&admin=1", "/find?q=a%26admin%3D1"),
        ('pattern = "^/go/(?P<host>.*)$"', "$host/a", "/go/b.example%20", "/b.example%20/a"),
    ],
)
def test_a_redirect_leads_to_a_whole_path(
    tmp_path: Path, match: str, redirect: str, target: str, location: str
) -> None:
    """A client would append a relative path to that of the request, and would be redirected again and again."""
    text = f'documentroot = "{tmp_path}"\n[[site]]\n[[site.location]]\n{match}\nredirect = "{redirect}"\n'
    site = make_site(read(text, tmp_path))
    request = parse_request(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode(), RequestLimits())
    response = run(site.respond(request, Io()))  # type: ignore[arg-type]
    assert dict(response.fields)["Location"] == location


def test_an_explanation_looks_into_what_wraps_a_feature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "htdocs").mkdir()
    for name in ("a.html", "a.md", "a.cgi", "b.en.html"):
        (tmp_path / "htdocs" / name).touch()
    text = (
        'content-cache = "1M"\nmarkdown = true\nproxy = "/p=http://127.0.0.1:1"\nlanguages = "en"\n[[site]]\n'
        '[[site.location]]\nprefix = "/"\nprograms = [".cgi"]\n'
    )
    site = make_site(read(text, tmp_path))
    for path, words in (
        ("a.html", "the file "), ("a.md", "the page of "), ("a.md?source", "the file "), ("none", "404: "),
        ("a.cgi", "the program "), ("p/x", "the next server of /p "), ("b.html", "Accept-Language"),
    ):  # fmt: skip
        said = "\n".join(explain(site, f"/{path}", ("127.0.0.1", 80)))
        assert f"  answer    {words}" in said or words in said.partition("  answer ")[2], said


def test_an_explanation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "htdocs").mkdir()
    (tmp_path / "htdocs/index.html").touch()
    text = '[[site]]\nnames = "a"\n[[site.location]]\nprefix = "/x"\ntry = ["$path", "/"]\n[[site]]\n'
    site = make_site(read(text, tmp_path))
    said = "\n".join(explain(site, "http://a:80/x/y", ("127.0.0.1", 80)))
    for part in (
        "line 1: site a", "is one of its names", 'line 3: prefix = "/x"', "$path: /x/y does not exist",
        "is used without a check", "no location covers this path", f"the file {tmp_path}/htdocs/index.html",
    ):  # fmt: skip
        assert part in said, said
    (tmp_path / "cgi-bin").mkdir()
    (tmp_path / "cgi-bin" / "out").symlink_to("/bin/true")
    said = "\n".join(explain(make_site(read(text, tmp_path)), "/cgi-bin/out", ("127.0.0.1", 80)))
    assert f"404: {tmp_path}/cgi-bin/out leads out of {tmp_path}/cgi-bin (symlinks = inside)" in said
    said = "\n".join(explain(site, "DELETE /none", ("127.0.0.1", 80)))
    assert "line 6" in said and "405: DELETE to a file" in said
    with pytest.raises(ValueError, match="is no URL"):
        list(explain(site, "x y", ("", 80)))
