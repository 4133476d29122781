"""Users' own settings, .ewe.toml: what they change, what they may not say, and that a wrong file opens nothing."""

from __future__ import annotations

import errno
import os
import pwd
import stat
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ewe.bounded import SETTLED_S
from ewe.config.settings import Config
from ewe.features import homes
from ewe.features.guards import htpasswd
from ewe.features.guards.auth import CLIENT_BURST
from ewe.features.homes import Homes
from ewe.features.users import NotOfUser, NotServed, Users
from ewe.gateway.protected_sources import ProtectedSources
from ewe.gateway.scripts import Script
from ewe.http.limits import RequestLimits
from ewe.http.messages import Request, Response
from ewe.http.parser import parse_request
from ewe.http.status import HTTPError
from ewe.sites import make_site
from ewe.sites.explain import explain
from ewe.streams.blocking import run

ADA = b"ada:$5$saltsalt$6U.U5jx3KtdvPlKMwPmoo91UtrpvNfU.JryccTbt2oA\n"


class Io:
    """What a log-in asks of a stream."""

    client = ("127.0.0.1", 1)
    server = ("127.0.0.1", 80)
    scheme = "http"
    endpoints = None
    peer = ("127.0.0.1", 1)
    user = ""
    variables: dict[bytes, bytes] = {}
    counted_by: tuple[object, ...] = ()

    async def call(self, function: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        return function(*arguments)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of the user who runs the tests; changes are seen at once."""
    monkeypatch.setattr(homes, "FILE_CHECK_S", -1.0)
    with tempfile.TemporaryDirectory(prefix="ewe-test-homes-", dir=pwd.getpwuid(os.geteuid()).pw_dir) as name:
        yield Path(name)


def asker(root: Path, switch: Any = None) -> Callable[..., Response]:
    """Return a function that asks for a path below the user's directory. switch: runs the programs; None: none."""
    config = Config(userdir=root.name, min_uid=0, cache=0)
    feature = Homes(Users(config, switch, ProtectedSources("/nowhere")))
    name = pwd.getpwuid(os.geteuid()).pw_name

    def ask(path: str, *fields: str) -> Response:
        head = "\r\n".join((f"GET /~{name}/{path} HTTP/1.1", "Host: ewe", *fields, "", ""))
        response = run(feature.respond(parse_request(head.encode(), RequestLimits()), Io()))  # type: ignore[arg-type]
        assert response is not None
        return response

    return ask


def test_what_users_may_change(root: Path) -> None:
    ask = asker(root)
    (root / "start.html").write_text("start")
    (root / "missing.html").write_text("missing")
    assert ask("").status == 200 and ask("").body != b"start"  # a listing
    settings = root / ".ewe.toml"
    settings.write_text(
        'index = "start.html"\nerror-pages = { 404 = "/missing.html" }\nheaders = { set = { X-Mine = "yes" } }\n'
    )
    assert ask("").body == b"start" and ask("").get("x-mine") == "yes"
    assert (ask("none").status, ask("none").body) == (404, b"missing")
    assert ask(".ewe.toml").status == 404
    settings.write_text("indexes = false\n")
    assert ask("").status == 403
    settings.unlink()
    assert ask("").status == 200 and ask("").get("x-mine") is None


def test_a_php_page_is_the_index_again_when_the_user_names_none(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ewe.features.pages.PAGE_CACHE_S", -1.0)

    async def run_script(script: Script, *_: object) -> Response:
        return Response(200, (), os.path.basename(script.file).encode())

    ask = asker(root, SimpleNamespace(table={}, directories=(), run=run_script))
    (root / "index.php").touch()
    (root / "start.html").write_text("start")
    settings = root / ".ewe.toml"
    assert ask("").body == b"index.php"
    settings.write_text('index = "start.html"\n')
    assert ask("").body == b"start"
    settings.write_text('index = "index.html"\n')  # the server's own, without index.php
    assert ask("").body != b"index.php"
    settings.unlink()
    assert ask("").body == b"index.php"


def test_a_page_of_an_error_is_no_local_redirect(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a local redirect, the target would answer with its own status, and could be outside the directory."""
    ask = asker(root)
    (root / ".ewe.toml").write_text('error-pages = { 404 = "/cgi-bin/missing" }\n')

    async def respond(users: Users, request: Request, io: Any) -> Response | None:
        if request.path.endswith("/cgi-bin/missing"):
            return Response(200, target="/elsewhere")
        raise HTTPError(404, "there is no such file")

    monkeypatch.setattr(Users, "respond", respond)
    assert (ask("none").status, ask("none").cause) == (404, "there is no such file")


@pytest.mark.parametrize("size", [2_000, 200_000])
def test_files_with_fields_of_a_user_are_compressed(root: Path, size: int) -> None:
    """`compress = "files"` compresses files alone, and is around the settings of a user."""
    (root / "a.txt").write_text("s" * size)
    (root / ".ewe.toml").write_text('headers = { set = { X-Mine = "yes" } }\n')
    time.sleep(SETTLED_S * 1.5)
    site = make_site(Config(userdir=root.name, min_uid=0, userdir_settings=True, compress="files"))
    head = f"GET /~{pwd.getpwuid(os.geteuid()).pw_name}/a.txt HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n"
    for _ in range(2):
        response = run(site.respond(parse_request(head.encode(), RequestLimits()), Io()))  # type: ignore[arg-type]
        assert response is not None
        run(response.close())
        assert (response.get("x-mine"), response.get("content-encoding")) == ("yes", "gzip")


def test_the_content_cache_does_not_hide_the_settings(root: Path) -> None:
    (root / "a.txt").write_text("for ada")
    (root / ".passwords").write_bytes(ADA)
    (root / ".ewe.toml").write_text('auth = { realm = "Mine", file = ".passwords" }\n')
    shared = {"userdir": root.name, "min_uid": 0, "userdir_settings": True}
    name = pwd.getpwuid(os.geteuid()).pw_name
    for more in ({}, {"content_cache": "1M"}):
        site = make_site(Config(**shared, **more))  # type: ignore[arg-type]
        head = f"GET /~{name}/a.txt HTTP/1.1\r\nHost: ewe\r\n\r\n"
        response = run(site.respond(parse_request(head.encode(), RequestLimits()), Io()))  # type: ignore[arg-type]
        assert response.status == 401, more


def test_a_log_in(root: Path) -> None:
    ask = asker(root)
    (root / "a.txt").write_text("for ada")
    (root / ".passwords").write_bytes(ADA)
    (root / ".ewe.toml").write_text('auth = { realm = "Mine", file = ".passwords" }\n')
    assert ask("a.txt").status == 401
    right, wrong = credentials("lovelace"), credentials("byron")
    assert (ask("a.txt", wrong).status, ask("a.txt", right).body) == (401, b"for ada")
    (root / ".passwords").write_bytes(ADA.replace(b"ada:", b"bob:"))
    assert ask("a.txt", right).status == 401


def credentials(password: str) -> str:
    return "Authorization: Basic " + b64encode(f"ada:{password}".encode()).decode()


def test_a_change_of_the_settings_forgets_no_failed_log_in(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counters belong to Homes, which is made before the fork: all processes share them for the same reason."""
    monkeypatch.setattr(htpasswd, "check", lambda stored, password: password == b"lovelace")
    ask = asker(root)
    (root / "a.txt").write_text("for ada")
    (root / ".passwords").write_bytes(ADA)
    (root / ".ewe.toml").write_text('auth = { realm = "Mine", file = ".passwords" }\n')
    statuses = {ask("a.txt", credentials(f"guess {number}")).status for number in range(CLIENT_BURST)}
    assert statuses == {401}
    (root / ".ewe.toml").write_text('auth = { realm = "Still mine", file = ".passwords" }\n')
    response = ask("a.txt", credentials("lovelace"))
    assert response.status == 429, response.cause


def test_libraries_are_loaded_before_a_user_asks_for_a_log_in(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later, a worker without root may not be allowed to read the directory of the libraries."""
    loaded: list[bool] = []
    monkeypatch.setattr(homes, "load_libraries", lambda: loaded.append(True))
    make_site(Config(userdir=root.name, min_uid=0, userdir_settings=True))
    assert loaded


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_moment_without_descriptors_is_no_fault_of_the_file(
    root: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """nth: the call of open() that fails: for the settings, for the passwords, or in Htpasswd."""
    ask = asker(root)
    (root / "a.txt").write_text("for ada")
    assert ask("a.txt").status == 200
    (root / ".passwords").write_bytes(ADA)
    (root / ".ewe.toml").write_text('auth = { realm = "Mine", file = ".passwords" }\n')
    opened: list[int] = []
    open_file = os.open

    def open_but_one(*arguments: Any, **more: Any) -> int:
        if len(opened) == nth - 1:
            monkeypatch.setattr(os, "open", open_file)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        opened.append(open_file(*arguments, **more))
        return opened[-1]

    monkeypatch.setattr(os, "open", open_but_one)
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        ask("a.txt")
    for descriptor in opened:
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            os.fstat(descriptor)
    assert (ask("a.txt").status, ask("a.txt", credentials("lovelace")).body) == (401, b"for ada")


def test_files_that_have_not_changed_are_not_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = asker(root)
    (root / "a.txt").write_text("for ada")
    (root / ".ewe.toml").write_text('auth = { realm = "Mine", file = ".passwords" }\n')
    assert ".passwords: No such file" in ask("a.txt").cause
    (root / ".passwords").write_bytes(ADA)
    assert ask("a.txt").status == 401
    monkeypatch.setattr(homes.tomllib, "loads", lambda text: pytest.fail("read again"))
    assert ask("a.txt").status == 401


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("indx = 1\n", 'unknown key "indx"; did you mean "index"?'),
        ('auth = { realm = "x", command = ["/bin/true"] }\n', "expected { realm ="),
        ('auth = { realm = "x", file = "/etc/passwd" }\n', "expected a file of this directory"),
        ('auth = { realm = "x", file = ".link" }\n', ".link is a symbolic link"),
        ('auth = { realm = "x", file = ".fifo" }\n', ".fifo is not a regular file of the user"),
        ('auth = { realm = "x", file = ".socket" }\n', ".socket is not a regular file of the user"),
        ('headers = { set = { Set-Cookie = "a=b" } }\n', "set-cookie concerns the whole host"),
        ('headers = { set = { Accept-CH = "DPR" } }\n', "accept-ch concerns the whole host"),
        (
            'headers = { add = { Secure-Session-Registration = "(ES256);path=\\"/x\\"" } }\n',
            "secure-session-registration concerns the whole host",
        ),
        (
            'headers = { add = { X-Accel-Redirect = "/internal/a" } }\n',
            "x-accel-redirect concerns the whole host",
        ),
        ('headers = { set = { X-Sendfile = "/etc/passwd" } }\n', "x-sendfile concerns the whole host"),
        ("a." * 8000 + "a = 1", "more than 400 dots"),
        ('auth = { realm = "x", file = ".long" }\n', "longer than 65536 bytes"),
        ('auth = { realm = "x", file = ".costly" }\n', "its hash takes about 2048 ms to check"),
        ("a = b\n", "line 1"),
        ("#" * 20_000, "longer than 16384 bytes"),
        ('index = "a/b"\n', "expected the name of a file"),
        ('error-pages = { 404 = "/../~bob/a.html" }\n', "is no path of this directory"),
        ('error-pages = { 404 = "/%2e%2e/~bob/a.html" }\n', "is no path of this directory"),
    ],
)
def test_a_wrong_file_opens_nothing(root: Path, text: str, said: str) -> None:
    ask = asker(root)
    (root / "a.txt").write_text("protected")
    (root / ".link").symlink_to("/etc/passwd")
    os.mkfifo(root / ".fifo")
    os.mknod(root / ".socket", stat.S_IFSOCK | 0o644)
    (root / ".long").write_bytes(ADA * 1200)
    (root / ".costly").write_text(f"ada:$2y$15${'a' * 53}\n")
    (root / ".ewe.toml").write_text(text)
    for path in ("a.txt", ""):
        response = ask(path)
        assert response.status == 500 and b"protected" not in response.body  # type: ignore[operator]
        assert said in response.cause, response.cause


def test_a_link_is_no_settings_file(root: Path) -> None:
    (root / "a.txt").write_text("protected")
    (root / ".ewe.toml").symlink_to("a.txt")
    assert "symbolic link" in asker(root)("a.txt").cause


def test_a_log_in_guards_scripts_on_other_machines(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ewe asks another machine for them, before it looks for a file of the user."""
    here = pwd.getpwuid(os.geteuid()).pw_name
    site = site_with_scripts_elsewhere(root, tmp_path, monkeypatch)

    def ask(path: str) -> Response:
        head = f"GET {path} HTTP/1.1\r\nHost: ewe\r\n\r\n"
        return run(site.respond(parse_request(head.encode(), RequestLimits()), Io()))  # type: ignore[arg-type]

    script, elsewhere = f"/~{here}/cgi-bin/marks.rb", "/~no-such-account/cgi-bin/a.rb"
    assert "X-Switch: engines on another machine" in "\n".join(explain(site, script, ("127.0.0.1", 80)))
    assert (ask(script).status, ask(script).body) == (200, b"ran " + script.encode())
    (root / ".htpasswd").write_bytes(ADA)
    (root / ".ewe.toml").write_text('auth = { realm = "Mine", file = ".htpasswd" }\n')
    assert ask(script).status == 401 and b"ran" not in ask(script).body
    assert ask(elsewhere).status == 404 and ask("/cgi-bin/a.rb").body == b"ran /cgi-bin/a.rb"


def site_with_scripts_elsewhere(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **settings: bool
) -> Any:
    """Return a site whose scripts in Ruby are on another machine; its X-Switch answers "ran", and the path."""

    async def run_script(switch: object, script: Script, *_: object) -> Response:
        return Response(200, (), b"ran " + script.name.encode())

    monkeypatch.setattr("ewe.features.xswitch.XSwitch.run", run_script)
    table = tmp_path / "xswitch.toml"
    table.write_text('[engines.far]\naddress = "192.0.2.7:9443"\nextensions = [".rb"]\n')
    options = {"userdir_settings": True} | settings
    return make_site(Config(userdir=root.name, min_uid=0, xswitch="unix:/none", xswitch_config=str(table),
                            documentroot=str(tmp_path), **options))  # fmt: skip


@pytest.mark.parametrize("has_settings", [True, False])
@pytest.mark.parametrize(("fault", "fails_open"), [
    (NotServed("the home is closed"), False), (OSError(errno.EIO, "Input/output error"), False),
    (OSError(errno.ESTALE, "Stale file handle"), False), (FileNotFoundError(errno.ENOENT, "No such file"), True),
    (NotOfUser("the account is the system's"), True),
])  # fmt: skip
def test_a_log_in_that_cannot_be_read_opens_no_script_elsewhere(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Exception,
    fails_open: bool,
    has_settings: bool,
) -> None:
    """Without userdir-settings there is no log-in, and the script elsewhere needs no directory here."""
    asked: list[object] = []

    def examine(*arguments: object) -> str:
        asked.append(arguments)
        raise fault

    monkeypatch.setattr(Users, "examine", examine)
    monkeypatch.setattr("ewe.features.users.QUESTION_CACHE_S", 3600.0)
    site = site_with_scripts_elsewhere(root, tmp_path, monkeypatch, userdir_settings=has_settings)
    path = f"/~{pwd.getpwuid(os.geteuid()).pw_name}/cgi-bin/marks.rb"
    head = f"GET {path} HTTP/1.1\r\nHost: ewe\r\n\r\n".encode()
    runs = fails_open or not has_settings
    for _ in range(3):
        response = run(site.respond(parse_request(head, RequestLimits()), Io()))
        assert response.status == (200 if runs else 404)
    assert len(asked) == (1 if runs else 4)  # Users does not remember a refusal; guards() does so
