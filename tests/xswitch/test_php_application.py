"""A real PHP application, DokuWiki from Debian's package, as a student installs it: a copy in her own directory.

Its pages, sessions, forms, uploads and redirects go through `ewe -x` and an engine that runs as her.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support import web
from support.server import Start
from support.xswitch_client import XSwitch, account, xswitch

WIKI = Path("/usr/share/dokuwiki")
PASSWORD = "correct horse"
LOCAL = """<?php
$conf['title'] = 'Wiki of alice';
$conf['useacl'] = 1;
$conf['superuser'] = '@admin';
$conf['savedir'] = './data';
"""
DATA = (
    "attic",
    "cache",
    "index",
    "locks",
    "log",
    "media",
    "media_attic",
    "media_meta",
    "meta",
    "pages",
    "tmp",
)
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8ffff3f0005fe02fe"
    "0def46b80000000049454e44ae426082"
)
pytestmark = [pytest.mark.needs("php-cgi"), pytest.mark.starts_processes]


def install(directory: Path) -> None:
    """Install DokuWiki in a directory, with one user."""
    unneeded = shutil.ignore_patterns("install.php", ".htaccess*", "preload.php", "geshi")
    shutil.copytree(WIKI, directory, ignore=unneeded)
    shutil.copytree(
        "/etc/dokuwiki", directory / "conf", ignore=shutil.ignore_patterns("*.auth.php", "local.php")
    )
    (directory / "conf" / "local.php").write_text(LOCAL)
    password = hashlib.md5(PASSWORD.encode()).hexdigest()
    (directory / "conf" / "users.auth.php").write_text(
        f"alice:{password}:Alice:alice@example.org:admin,user\n"
    )
    (directory / "conf" / "acl.auth.php").write_text("* @ALL 1\n* @user 16\n")
    for name in DATA:
        (directory / "data" / name).mkdir(parents=True)


@pytest.fixture
def alice() -> Iterator[pwd.struct_passwd]:
    """An account with a wiki."""
    with account() as made:
        wiki = Path(made.pw_dir) / "public_html" / "wiki"
        install(wiki)
        subprocess.run(["chown", "-R", f"{made.pw_name}:", str(wiki)], check=True)
        yield made


def field(page: str, name: str) -> str:
    """Return the value of a form's hidden field."""
    found = re.search(rf'<input[^>]*name="{name}"[^>]*value="([^"]*)"', page)
    assert found, f"no field {name}: {page[:500]}"
    return found[1]


@pytest.mark.needs("root", "DokuWiki")
def test_a_wiki_works_for_its_owner(alice: pwd.struct_passwd, start: Start) -> None:
    server = start("xswitch")
    wiki = Path(alice.pw_dir) / "public_html" / "wiki"
    path = f"/~{alice.pw_name}/wiki/doku.php"
    with web.Client(base_url=server.url, timeout=30) as client:
        index = client.get(f"/~{alice.pw_name}/wiki/")  # index.php, which leads to the first page
        assert index.status_code == 302 and "/wiki/doku.php" in index.headers["location"], index
        page = client.get(path, params={"id": "start"})
        assert page.status_code == 200 and "Wiki of alice" in page.text, (page, server.log())
        log_in(client, path)
        write_a_page(client, path, wiki, alice.pw_uid)
        upload(client, path, wiki)
        style = client.get(path.replace("doku.php", "lib/exe/css.php"))
        assert style.headers["content-type"].startswith("text/css") and len(style.text) > 1000
        # ewe itself sends this file, which is beside the pages
        image = client.get(path.replace("doku.php", "lib/images/larger.gif"))
        assert image.content == (wiki / "lib" / "images" / "larger.gif").read_bytes()
    assert "error" not in server.log(), server.log()


def log_in(client: httpx.Client, path: str) -> None:
    page = client.get(path, params={"id": "start", "do": "login"})
    form = {"sectok": field(page.text, "sectok"), "id": "start", "do": "login", "u": "alice", "p": "wrong"}
    assert "wrong" in client.post(path, data=form).text
    answer = client.post(path, data={**form, "p": PASSWORD})
    assert answer.status_code == 302 and "DokuWiki" in str(client.cookies), (answer, answer.text[:500])
    assert "Logged in as" in client.get(answer.headers["location"]).text


def write_a_page(client: httpx.Client, path: str, wiki: Path, uid: int) -> None:
    """Edit and save a page; check that the redirect leads to the saved page."""
    page = client.get(path, params={"id": "notes:first", "do": "edit"}).text
    names = ("sectok", "rev", "date", "changecheck", "target")
    form = {name: field(page, name) for name in names if f'name="{name}"' in page}
    text = "====== Grüße ======\n\nFrom an engine that stays: **100 %**.\n" * 200
    answer = client.post(path, data={**form, "id": "notes:first", "wikitext": text, "do[save]": "1"})
    assert answer.status_code == 302, answer.text[:500]
    saved = client.get(answer.headers["location"]).text
    assert "<strong>100 %</strong>" in saved and "Grüße" in saved
    file = wiki / "data" / "pages" / "notes" / "first.txt"
    assert file.read_text() == text.rstrip("\n") or file.read_text() == text
    assert file.stat().st_uid == uid


def upload(client: httpx.Client, path: str, wiki: Path) -> None:
    """Upload a picture, and get it back byte for byte."""
    manager = path.replace("doku.php", "lib/exe/mediamanager.php")
    page = client.get(manager, params={"ns": "notes"}).text
    answer = client.post(
        manager,
        data={"sectok": field(page, "sectok"), "ns": "notes", "mediaid": "dot.png"},
        files={"upload": ("dot.png", PIXEL, "image/png")},
    )
    assert answer.status_code == 200, answer
    assert (wiki / "data" / "media" / "notes" / "dot.png").read_bytes() == PIXEL
    picture = client.get(path.replace("doku.php", "lib/exe/fetch.php"), params={"media": "notes:dot.png"})
    assert picture.content == PIXEL and picture.headers["content-type"] == "image/png"


# The opcode cache


@pytest.fixture
def running() -> Iterator[XSwitch]:
    with xswitch("max-engines-per-user = 1") as started:
        yield started


def write_old(running: XSwitch, name: str, text: str) -> Path:
    """Write a script that has not been changed lately: PHP keeps no others."""
    path = running.script(name, text)
    os.utime(path, (path.stat().st_mtime - 60,) * 2)
    return path


def test_scripts_are_compiled_once(running: XSwitch) -> None:
    script = write_old(
        running,
        "cached.php",
        "<?php $all = opcache_get_status(); echo json_encode([$all['opcache_enabled'], "
        "$all['scripts'][__FILE__]['hits'] ?? null]);",
    )
    assert [running.ask(script).text for _ in range(3)] == ["[true,0]", "[true,1]", "[true,2]"]


def test_a_change_is_noticed_at_the_next_request(running: XSwitch) -> None:
    """Of the script, and of what it includes."""
    script = write_old(running, "main.php", "<?php include 'part.php'; echo 'one';")
    write_old(running, "part.php", "<?php echo 'first ';")
    for _ in range(2):
        assert running.ask(script).text == "first one"
    running.script("part.php", "<?php echo 'second ';")
    assert running.ask(script).text == "second one"
    running.script("main.php", "<?php include 'part.php'; echo 'two';")
    assert running.ask(script).text == "second two"
    write_old(running, "main.php", "<?php include 'part.php'; echo 'three';")
    assert running.ask(script).text == "second three"
