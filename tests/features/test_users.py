"""Users' directories: /~NAME/ leads to one's own public_html, and nowhere else."""

from __future__ import annotations

import errno
import os
import pwd
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import web
from support.memory import MemoryStream
from support.server import ROOT, Server, Start
from support.xswitch_client import account

from ewe.bounded import SETTLED_S
from ewe.config.feature_table import unmet_needs
from ewe.config.settings import Config
from ewe.features.static import ENTRY_BYTES
from ewe.features.users import Users
from ewe.gateway.protected_sources import ProtectedSources
from ewe.http.limits import RequestLimits
from ewe.http.messages import Request
from ewe.http.parser import parse_request
from ewe.sites import make_site
from ewe.streams.blocking import run

AS_ROOT = ("--user", "root") if os.geteuid() == 0 else ()


def me() -> pwd.struct_passwd:
    """Return the account that runs the tests."""
    return pwd.getpwuid(os.geteuid())


def test_files_of_a_user(start: Start, model: str) -> None:
    name, home = me().pw_name, Path(me().pw_dir)
    directory = f"ewe-test-{os.getpid()}"
    root = home / directory
    root.mkdir()
    try:
        (root / "sub").mkdir()
        (root / "index.html").write_text("<title>mine</title>")
        (root / "sub" / "a.txt").write_text("a")
        (root / ".secret").write_text("no")
        (root / "out").symlink_to("/etc/passwd")
        server = start(model, "--userdir", directory, "--min-uid", "0", *AS_ROOT)
        base = f"{server.url}~{name}"
        with web.Client() as client:
            answer = client.get(base)
            assert (answer.status_code, answer.headers["location"]) == (301, f"/~{name}/")
            assert "mine" in client.get(f"{base}/").text and "mine" in client.get(f"{base}/index.html").text
            assert client.get(f"{base}/sub").headers["location"] == f"/~{name}/sub/"
            assert "a.txt" in client.get(f"{base}/sub/").text
            assert client.get(f"{base}/sub/a.txt").text == "a" == client.get(f"{base}/sub/a.txt").text
            tag = client.get(f"{base}/sub/a.txt").headers["etag"]
            assert client.get(f"{base}/sub/a.txt", headers={"If-None-Match": tag}).status_code == 304
            for path in (".secret", "out", "none", "%2e%2e/.ssh"):
                assert client.get(f"{base}/{path}").status_code in (400, 404)
            for other in ("~nobody-of-this-name/", "~", "~/", "~.", f"~{name}x/"):
                assert client.get(server.url + other).status_code == 404
        assert "Traceback" not in server.log()
    finally:
        for path in sorted(root.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        root.rmdir()


def test_answers_do_not_tell_which_accounts_there_are(start: Start) -> None:
    """A system account, a user without a directory, a name that no account has: each method is answered alike."""
    server = start("pool", "--userdir", f"none-{os.getpid()}", *AS_ROOT)
    with web.Client(base_url=server.url) as client:
        for method in ("GET", "POST", "OPTIONS"):
            for path in ("", "index.html", "cgi-bin/x"):
                answers = [
                    client.request(method, f"~{name}/{path}")
                    for name in ("root", me().pw_name, "no-such-account")
                ]
                assert len({(answer.status_code, answer.text) for answer in answers}) == 1, (method, path)
                assert method != "GET" or answers[0].status_code == 404
    server.wait_for_log("/~root/ is 404: user root is the system's")


def make_a_home_of_many_owners(alice: pwd.struct_passwd, site: Path) -> None:
    """Make the directory web in a home, and public_html of a site: files of the user, of others and of root."""
    home = Path(alice.pw_dir)
    (home / "public_html").rmdir()
    (home / "web").mkdir()
    for name in ("web/mine.txt", "web/roots.txt", "web/others.txt", "private.txt"):
        (home / name).write_text(name)
    (site / "public_html").mkdir()
    (site / "public_html" / "mine.txt").write_text("the server's")
    (home / "web" / "passwd").symlink_to("/etc/passwd")
    (home / "web" / "private").symlink_to("../private.txt")
    (home / "web" / "secret.txt").write_text("root's, for a group")
    (home / "web" / "secret.txt").chmod(0o640)
    os.chown(home / "web" / "secret.txt", 0, pwd.getpwnam("nobody").pw_gid)
    for path in (home / "web", home / "web" / "mine.txt", home / "private.txt"):
        os.chown(path, alice.pw_uid, alice.pw_gid)
    os.chown(home / "web" / "others.txt", pwd.getpwnam("daemon").pw_uid, 0)


@pytest.mark.needs("root")
def test_a_directory_is_its_users_own(start: Start, way_to_wait: str, site: Path) -> None:
    """A link to a path of another owner publishes nothing; a file of another user is not sent."""
    inside = {
        "mine.txt": 200, "roots.txt": 200, "others.txt": 403, "secret.txt": 403, "passwd": 404, "private": 404,
        "etc/passwd": 404, "home/": 404,
    }  # fmt: skip
    with account() as alice:
        make_a_home_of_many_owners(alice, site)

        def statuses(server: Server, target: str, owner: int) -> dict[str, int]:
            """Return what the paths are if public_html is a link of this owner to the target."""
            public = Path(alice.pw_dir) / "public_html"
            public.unlink(missing_ok=True)
            public.symlink_to(target)
            os.chown(public, owner, -1, follow_symlinks=False)
            with web.Client(base_url=f"{server.url}~{alice.pw_name}/") as client:
                return {path: client.get(path).status_code for path in inside}

        options = ("--userdir", "public_html", "--user", "nobody")
        server = start(way_to_wait, *options)
        for target, owner in (
            ("/", alice.pw_uid),
            ("/", 0),
            (str(site / "public_html"), alice.pw_uid),
            ("web", pwd.getpwnam("daemon").pw_uid),
        ):
            assert statuses(server, target, owner) == dict.fromkeys(inside, 404), (target, owner)
        assert statuses(server, "web", alice.pw_uid) == inside
        following = start(way_to_wait, *options, "--symlinks", "follow")
        assert statuses(following, "web", 0) == inside | {"private": 200, "passwd": 403}


EXCHANGE = """
import ctypes, sys
exchange = ctypes.CDLL(None).renameat2
while True:
    exchange(-100, sys.argv[1].encode(), -100, sys.argv[2].encode(), 2)  # AT_FDCWD, RENAME_EXCHANGE
"""


@pytest.mark.starts_processes
@pytest.mark.needs("root")
def test_a_directory_that_becomes_a_link_leads_nowhere_else() -> None:
    """However its user exchanges the directory and a link to "/", only the directory is ever the root."""
    with account() as alice:
        public, link = Path(alice.pw_dir) / "public_html", Path(alice.pw_dir) / "link"
        link.symlink_to("/")
        os.chown(link, alice.pw_uid, -1, follow_symlinks=False)
        users = Users(Config(userdir="public_html"), None, ProtectedSources("/nowhere"))
        swapper = subprocess.Popen([sys.executable, "-c", EXCHANGE, str(public), str(link)])
        try:
            roots = set()
            for _ in range(5000):
                users.homes.clear()
                if (home := users.home(f"/~{alice.pw_name}/")) is not None:
                    roots.add(home.static.root)
            assert roots and roots <= {str(public), str(link)}  # the kernel's name of it, at that moment
        finally:
            swapper.kill()
            swapper.wait()


def test_a_server_without_descriptors_does_not_say_that_a_user_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users = Users(Config(userdir="public_html", min_uid=0), None, ProtectedSources("/nowhere"))

    def refuse(name: str) -> pwd.struct_passwd:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(pwd, "getpwnam", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        users.home("/~ada/")
    monkeypatch.setattr(pwd, "getpwnam", lambda name: me())
    monkeypatch.setattr(Users, "examine", lambda *_: refuse(""))
    with pytest.raises(OSError, match="Too many open files"):
        users.home(f"/~{me().pw_name}/")


def test_the_caches_of_all_users_together_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of a thousand users would otherwise need a thousand times the memory of one site."""
    accounts = {}
    for name in ("ada", "bob", "cid"):
        public = tmp_path / name / "public_html"
        public.mkdir(parents=True)
        (public / "a.txt").write_bytes(bytes(1000))
        accounts[name] = pwd.struct_passwd(
            (name, "x", os.geteuid(), os.getegid(), "", str(public.parent), "")
        )
    monkeypatch.setattr(pwd, "getpwnam", accounts.__getitem__)
    config = Config(userdir="public_html", min_uid=0, cache=2 * (ENTRY_BYTES + 1000) - 1)
    users = Users(config, None, ProtectedSources("/nowhere"))
    time.sleep(SETTLED_S * 1.5)
    kept = []
    for name in accounts:
        request = Request("GET", f"/~{name}/a.txt", (1, 1), path=f"/~{name}/a.txt")
        response = run(users.respond(request, MemoryStream([])))
        assert response is not None and response.status == 200
        kept.append(len(users.homes))
    assert kept == [1, 2, 1]


def test_a_user_has_one_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LDAP finds an account by its name in any letter case, or by an alias. A location guards one spelling."""
    (tmp_path / "pages" / "private").mkdir(parents=True)
    for name in ("open.txt", "private/marks.txt"):
        (tmp_path / "pages" / name).write_text("marks")
    ada = pwd.struct_passwd(("ada", "x", os.geteuid(), os.getegid(), "", str(tmp_path), ""))
    monkeypatch.setattr(pwd, "getpwnam", lambda name: ada)
    (tmp_path / "ewe.toml").write_text(
        f"documentroot = '{tmp_path / 'pages'}'\nuserdir = 'pages'\nmin-uid = 0\n"
        "[[site]]\n[[site.location]]\nprefix = '/~ada/private'\nstatus = 403\n"
    )
    site = make_site(Config.load(environ={}, file=str(tmp_path / "ewe.toml")))

    def status(target: str) -> int:
        request = parse_request(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode(), RequestLimits())
        return run(site.respond(request, MemoryStream([]))).status

    assert [status("/~ada/open.txt"), status("/~ada/private/marks.txt")] == [200, 403]
    for spelling in ("Ada", "ADA", "a.lovelace"):
        assert [status(f"/~{spelling}/open.txt"), status(f"/~{spelling}/private/marks.txt")] == [404, 404]


@pytest.mark.starts_processes
@pytest.mark.needs("root")
def test_root_does_not_serve_them(tmp_path: Path) -> None:
    """Root could read every file to which a user links. An administrator who wants that says so."""
    command = [
        sys.executable,
        "-m",
        "ewe",
        "--userdir",
        "public_html",
        "--port",
        "0",
        "--documentroot",
        str(tmp_path),
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for more in ([], ["--check-config"]):
        done = subprocess.run(
            command + more, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=20
        )
        assert done.returncode != 0 and "--user www-data" in done.stderr, done.stderr


def test_root_does_not_serve_those_of_one_site_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "ewe.toml").write_text('[[site]]\n[[site]]\nnames = ["b"]\nuserdir = "public_html"\n')
    config = Config.load(environ={}, file=str(tmp_path / "ewe.toml"))
    assert [line[:40] for line in unmet_needs(config)] == ["root does not serve users' directories ("]
    assert not [*unmet_needs(config.replace("a test", user="www-data"))]


def test_without_the_setting_there_are_no_users(start: Start) -> None:
    server = start("pool")
    assert web.get(f"{server.url}~{me().pw_name}/").status_code == 404
