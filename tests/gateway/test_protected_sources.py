"""A program's source is never sent as a file, through any feature and by any path."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import web
from support.server import Server, Start, write_program
from support.xswitch_client import account

from ewe.config.settings import Config
from ewe.features.static import Static
from ewe.gateway.protected_sources import ProtectedSources, is_in
from ewe.http.messages import Request
from ewe.http.status import HTTPError
from ewe.sites import make_site
from ewe.streams.base import Stream
from ewe.streams.blocking import run

SOURCE = "<?php $password = 'secret';"
SCRIPT = "print('Content-Type: text/plain\\n')\nprint('ran', 'se' 'cret')\n"
NOBODY = "unix:/nonexistent/responder.sock"
AS_ROOT = ("--user", "root") if os.geteuid() == 0 else ()


def answers(server: Server, paths: dict[str, int], prefix: str = "") -> None:
    """Ask for each path; none may have a line of source in its answer."""
    with web.Client(base_url=server.url + prefix) as client:
        for path, status in paths.items():
            answer = client.get(path)
            assert answer.status_code == status, (path, answer.status_code, server.log())
            assert "secret" not in answer.text, path


def test_is_in() -> None:
    for path, directory, expected in (
        ("/a/b", "/a", True),
        ("/a", "/a", True),
        ("/A/b", "/a/", True),
        ("/ab", "/a", False),
        ("/a", "/a/b", False),
        ("/a", "/", True),
    ):
        assert is_in(path, directory) is expected, (path, directory)


def test_extensions_of_a_responder(start: Start, way_to_wait: str) -> None:
    """By a link, by another spelling, below a directory of another feature; also while the responder is down."""
    server = start(
        way_to_wait, "--fastcgi", f".php={NOBODY}", "--fastcgi", f"/app={NOBODY}", "--symlinks", "follow"
    )
    root = server.root
    outside = root.parent / "outside.php"
    (root / "app").mkdir()
    (root / "dir.php").mkdir()
    for path in (
        root / "page.php",
        root / "UPPER.PHP",
        root / "page.php.",
        root / "app" / "config.txt",
        outside,
    ):
        path.write_text(SOURCE)
    (root / "dir.php" / "notes.txt").write_text("notes")
    (root / "page.php~").write_text("only a document")
    (root / "page.txt").symlink_to("page.php")
    (root / "outside.txt").symlink_to(outside)
    (root / "app-link").symlink_to("app")
    (root / "text.php").symlink_to("dir.php/notes.txt")
    (root / "notes.txt").write_text("notes")
    (root / "notes.txt.gz").symlink_to("page.php")
    refused = ("page.txt", "outside.txt", "UPPER.PHP", "page.php.", "app-link/config.txt", "app-link/")
    absent = ("page.php", "page.php/info", "%70age.ph%70", "app/config.txt", "app", "text.php")
    served = ("dir.php/notes.txt", "dir.php/", "page.php~", "notes.txt")
    answers(
        server,
        dict.fromkeys(refused, 403)
        | dict.fromkeys(absent, 503)
        | dict.fromkeys(served, 200)
        | {"none.php": 404},
    )
    with web.Client(base_url=server.url, headers={"Accept-Encoding": "gzip"}) as client:
        assert client.get("notes.txt").text == "notes"  # the variant beside it is a program's source
    assert "never sent as a file" in server.log()


@pytest.mark.parametrize("order", ["index.php,index.html", "index.html,index.php"])
def test_the_first_index_that_is_there_answers(start: Start, order: str) -> None:
    server = start("pool", "--fastcgi", f".php={NOBODY}", "--defaultindex", order)
    for name in ("both", "page", "document"):
        (server.root / name).mkdir()
    for name in ("both", "page"):
        (server.root / name / "index.php").write_text(SOURCE)
    for name in ("both", "document"):
        (server.root / name / "index.html").write_text("a document")
    first = 503 if order.startswith("index.php") else 200
    answers(
        server,
        {"both/": first, "page/": 503, "document/": 200, "both/index.php": 503, "both/index.html": 200},
    )


def test_a_page_that_comes_between_two_looks(tmp_path: Path) -> None:
    """The responder's feature has found no page, and now there is one: the files' feature does not send it."""
    (tmp_path / "page.php").write_text(SOURCE)
    (tmp_path / "index.php").write_text(SOURCE)
    (tmp_path / "link").symlink_to("page.php")
    config = Config(documentroot=str(tmp_path), defaultindex="index.php")
    static = Static(config, protected=ProtectedSources(str(tmp_path), [".php"]))
    stream = Stream(("127.0.0.1", 1), ("127.0.0.1", 2), config)
    for path in ("/page.php", "/", "/link", "/index.php"):
        with pytest.raises(HTTPError) as refused:
            run(static.respond(Request("GET", path, (1, 1), path=path), stream))
        assert refused.value.status == 403


def test_what_lies_below_cgi_path(start: Start, way_to_wait: str) -> None:
    """Also if the document root has the file under another name, and if cgi-path contains the document root."""
    server = start(way_to_wait)
    inside = server.root / "programs"
    write_program(inside / "hello.py", f"#!/usr/bin/env python3\n{SCRIPT}")
    (inside / "forgotten.py").write_text(SCRIPT)
    (server.root / "link.txt").symlink_to("programs/hello.py")
    server = start(way_to_wait, "--cgi-path", str(inside))
    answers(
        server,
        {"programs/hello.py": 403, "programs/forgotten.py": 403, "programs/": 403, "link.txt": 403,
         "cgi-bin/forgotten.py": 403},
    )  # fmt: skip
    server.wait_for_log(f"forgotten.py is not executable: chmod +x {inside}/forgotten.py")
    answers(start(way_to_wait, "--cgi-path", str(server.root)), {"programs/hello.py": 403, "": 200})


def test_private_directories_of_web_applications(start: Start) -> None:
    server = start("pool")
    private = server.root / "app" / "WEB-INF"
    private.mkdir(parents=True)
    (private / "web.xml").write_text("<password>secret")
    (server.root / "link").symlink_to("app/WEB-INF")
    answers(server, {"app/WEB-INF/web.xml": 404, "link/web.xml": 403, "link/": 403})


@pytest.fixture
def homely() -> Iterator[tuple[str, Path]]:
    """The name of the account that runs the tests, and a directory in its home."""
    me = pwd.getpwuid(os.geteuid())
    root = Path(me.pw_dir) / f"ewe-test-{os.getpid()}"
    root.mkdir()
    try:
        yield me.pw_name, root
    finally:
        for path in sorted(root.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        root.rmdir()


def test_programs_of_users(start: Start, way_to_wait: str, homely: tuple[str, Path]) -> None:
    """The site's responder is not asked for them, since it would run them as the site's user."""
    name, root = homely
    (root / "cgi-bin").mkdir()
    (root / "cgi-bin" / "hello.py").write_text(SCRIPT)
    (root / "config.php").write_text(SOURCE)
    (root / "sub").mkdir()
    (root / "sub" / "index.php").write_text(SOURCE)
    (root / "link").symlink_to("cgi-bin")
    (root / "notes.txt").write_text("notes")
    server = start(
        way_to_wait, "--userdir", root.name, "--min-uid", "0", "--fastcgi", f".php={NOBODY}", "--symlinks",
        "follow", "--defaultindex", "index.php", *AS_ROOT,
    )  # fmt: skip
    paths = {
        "config.php": 403, "sub/": 403, "link/hello.py": 403, "link/": 403, "cgi-bin/hello.py": 403,
        "none.php": 404, "notes.txt": 200,
    }  # fmt: skip
    answers(server, paths, f"~{name}/")


def test_directories_that_x_switch_has_an_engine_for(start: Start, site: Path, tmp_path: Path) -> None:
    """All files in the directory are scripts and run, the index too. None of them is ever sent."""
    scripts = tmp_path / "htdocs" / "scripts"
    settings = tmp_path / "xswitch.toml"
    settings.write_text(f'[directories]\n"{scripts}" = "python"\n')
    server = start("xswitch", "--xswitch-config", str(settings), "--defaultindex", "index.html,start")
    for name in ("hello.py", "plain.txt", "sub/start"):
        path = scripts / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SCRIPT)
    (server.root / "link.txt").symlink_to("scripts/plain.txt")
    (server.root / "dir").symlink_to("scripts")
    with web.Client(base_url=server.url) as client:
        for path in (
            "scripts/hello.py",
            "scripts/plain.txt/info",
            "scripts/sub/",
            "dir/hello.py",
            "link.txt",
        ):
            answer = client.get(path)
            assert (answer.status_code, answer.text) == (200, "ran secret\n"), (path, server.log())
    answers(server, {"scripts/none.py": 404, "scripts/": 403, "dir/": 403})


def test_a_directory_of_scripts_that_is_a_link_turned_to_another(
    start: Start, site: Path, tmp_path: Path
) -> None:
    """A deployment turns the link to the next release: the files behind the link are still scripts."""
    link = tmp_path / "htdocs" / "live"
    settings = tmp_path / "xswitch.toml"
    settings.write_text(f'[directories]\n"{link}" = "python"\n')
    for release in ("one", "two"):
        (link.parent / release).mkdir()
        (link.parent / release / "s.txt").write_text(SCRIPT)
    link.symlink_to("one")
    server = start("xswitch", "--xswitch-config", str(settings))
    for release in ("two", "one"):
        assert web.get(server.url + "live/s.txt", timeout=20).text == "ran secret\n", server.log()
        link.unlink()
        link.symlink_to(release)


def test_without_x_switch_its_scripts_are_503(start: Start, way_to_wait: str, tmp_path: Path) -> None:
    settings = tmp_path / "xswitch.toml"
    settings.write_text(f'[directories]\n"{tmp_path}/htdocs/scripts" = "python"\n')
    server = start(way_to_wait, "--xswitch", NOBODY, "--xswitch-config", str(settings))
    (server.root / "scripts").mkdir()
    for name in ("scripts/hello.py", "page.php", "page.jsp"):
        (server.root / name).write_text(SOURCE)
    (server.root / "link.txt").symlink_to("scripts/hello.py")
    write_program(server.cgi / "hello.py", SCRIPT)
    answers(
        server,
        dict.fromkeys(("scripts/hello.py", "page.php", "cgi-bin/hello.py", "link.txt"), 503)
        | {"page.jsp": 403},
    )
    assert web.get(server.url + "page.php").headers["retry-after"]


def test_the_settings_of_x_switch_are_no_file_without_x_switch(tmp_path: Path) -> None:
    """X-Switch may be switched off for an hour: its settings file in a served directory is still not sent."""
    (tmp_path / "xswitch.toml").write_text("# secret\n")
    settings = Config(documentroot=str(tmp_path), xswitch_config=str(tmp_path / "xswitch.toml"))
    plan = make_site(settings).plan
    assert plan is not None and str(tmp_path / "xswitch.toml") in plan.protected.directories


@pytest.mark.needs("root")
def test_a_users_scripts_by_a_link(start: Start, site: Path) -> None:
    """A user's scripts run only as their owner. A link of the same user leads to the program, not to its source."""
    with account() as alice:
        public = Path(alice.pw_dir) / "public_html"
        write_program(public / "cgi-bin" / "hello.py", SCRIPT)
        (public / "link").symlink_to("cgi-bin")
        (public / "page.txt").symlink_to("page.php")
        (public / "page.php").write_text(SOURCE)
        for path in public.rglob("*"):
            os.chown(path, alice.pw_uid, alice.pw_gid, follow_symlinks=False)
        server = start("xswitch")
        paths = {"link/hello.py": 403, "link/": 403, "page.txt": 403}
        answers(server, paths, f"~{alice.pw_name}/")


APPLICATION = """\
import settings, inner.part
def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"ran " + settings.KEY]
"""
KEY = "KEY = b'sec' b'ret'  # secret\n"


def application_in(root: Path, kind: str) -> None:
    """Write an application and the modules that it imports, in the form that the gateway wants."""
    text = APPLICATION if kind == "wsgi" else "import settings, inner.part\nasync def app(*a): pass\n"
    for name, source in (("wiki.py", text + "# secret\n"), ("settings.py", KEY), ("inner/part.py", KEY)):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(source)
    (root / "settings.py~").write_text(KEY)
    (root / "settings.txt").symlink_to("settings.py")
    (root / "photo.txt").write_text("a photo")


HIDDEN = ("wiki.py", "settings.py", "inner/part.py", "settings.py~", "settings.txt", "SETTINGS.PY.")


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_the_modules_of_an_application_in_the_document_root(
    start: Start, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ewe .` with an application of this directory: its modules are never sent, and other files are."""
    application_in(tmp_path, kind)
    (tmp_path / "SETTINGS.PY.").write_text(KEY)
    server = start("thread", f"--{kind}", "/app=wiki:app", "--documentroot", str(tmp_path))
    answers(server, dict.fromkeys(HIDDEN, 403) | {"photo.txt": 200})


def test_python_files_beside_an_application_elsewhere_are_documents(start: Start, tmp_path: Path) -> None:
    application_in(tmp_path, "wsgi")
    server = start("thread", "--wsgi", "/app=wiki:app")
    (server.root / "example.py").write_text("print('an example')")
    (server.root / "linked.py").symlink_to(tmp_path / "settings.py")
    answers(server, {"example.py": 200, "linked.py": 404})
    followed = start("thread", "--wsgi", "/app=wiki:app", "--symlinks", "follow")
    answers(followed, {"linked.py": 403})


def test_the_modules_of_the_application_of_a_location(start: Start, tmp_path: Path) -> None:
    """Another site must not send the modules either."""
    application_in(tmp_path, "wsgi")
    (tmp_path / "SETTINGS.PY.").write_text(KEY)
    (tmp_path / "sites.toml").write_text(
        f'''
[[site]]
names = ["one"]
documentroot = "htdocs"
[[site.location]]
prefix = "/app/"
gateway = "wsgi:wiki:app"
[[site]]
documentroot = "{tmp_path}"
'''
    )
    server = start("thread", "--config", "sites.toml")
    answers(server, dict.fromkeys(HIDDEN, 403) | {"photo.txt": 200})
