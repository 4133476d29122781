"""Flask, Bottle and Django, unchanged, under every model."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from support import web
from support.server import ROOT, Start

SOURCE = ROOT / "tests" / "support" / "wsgi_frameworks.py"
UPLOAD = os.urandom(3_000_000)  # Django and Werkzeug move it to a file


@pytest.fixture
def frameworks(tmp_path: Path) -> None:
    """Copy the applications, and a file that they send, to where the server starts."""
    shutil.copy(SOURCE, tmp_path / "frameworks.py")
    (tmp_path / "big").write_bytes(UPLOAD)


def check_upload(client: httpx.Client, path: str) -> None:
    """Send a form with a file, once with its length and once in chunks."""
    expected = {"name": "a.bin", "sum": hashlib.sha256(UPLOAD).hexdigest()}
    answer = client.post(path, files={"file": ("a.bin", UPLOAD)}, data={"field": "value"})
    assert answer.json() == expected, answer.text
    request = client.build_request("POST", path, files={"file": ("a.bin", UPLOAD)})
    body = request.read()
    pieces = (body[start : start + 100_000] for start in range(0, len(body), 100_000))
    kind = {"Content-Type": request.headers["content-type"]}
    assert client.post(path, content=pieces, headers=kind).json() == expected


@pytest.mark.usefixtures("frameworks")
def test_flask(start: Start, model: str) -> None:
    server = start(model, "--wsgi", "/shop=frameworks:flask_app()")
    with web.Client(base_url=server.url + "shop/", follow_redirects=True) as client:
        assert client.get("?name=Ada").text == "<p>Hello, Ada"
        assert client.get("login").text == "Ada"
        check_upload(client, "upload")
        answer = client.get("file")
        assert answer.content == UPLOAD
        assert client.get("file", headers={"If-None-Match": answer.headers["etag"]}).status_code == 304
        answer = client.get("file", headers={"Range": "bytes=1000-1999"})
        assert (answer.status_code, answer.content) == (206, UPLOAD[1000:2000])
        assert client.get("stream").text == "0\n1\n2\n"
        assert client.head("").headers["content-length"] == str(len("<p>Hello, you"))
        assert client.get("fault").status_code == 500
        assert client.get("nothing").status_code == 404
    assert "LookupError: in the view" in server.log()
    assert server.stop() == 0, server.log()


@pytest.mark.usefixtures("frameworks")
def test_bottle(start: Start, model: str) -> None:
    server = start(model, "--wsgi", "/=frameworks:bottle_app()")
    with web.Client(base_url=server.url) as client:
        assert client.get("hello/Ada").text == "<b>Hello Ada</b>!"
        check_upload(client, "upload")
        assert client.get("file").content == UPLOAD
        assert client.get("stream").text == "0\n1\n2\n"
        assert client.head("hello/Ada").headers["content-length"] == "17"
        assert client.get("nothing").status_code == 404
    assert server.stop() == 0, server.log()


@pytest.fixture(scope="module")
def django_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of Django with its tables and a user: its migrations take longer than all that a test asks."""
    directory = tmp_path_factory.mktemp("django")
    shutil.copy(SOURCE, directory / "frameworks.py")
    code = "import frameworks; frameworks.django_app()"
    subprocess.run([sys.executable, "-c", code], cwd=directory, check=True)
    return directory / "django.db"


@pytest.mark.usefixtures("frameworks")
def test_django(start: Start, tmp_path: Path, django_database: Path, model: str) -> None:
    if model != "serial":  # its server makes the database
        shutil.copy(django_database, tmp_path)
    server = start(model, "--wsgi", "/site=frameworks:django_app()")
    with web.Client(base_url=server.url + "site/", follow_redirects=True) as client:
        page = client.get("admin/")
        assert page.url.path == "/site/admin/login/"
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)
        assert token and "Django administration" in page.text
        form = {
            "csrfmiddlewaretoken": token[1],
            "username": "ada",
            "password": "lovelace",
            "next": "/site/admin/",
        }
        page = client.post("admin/login/", data=form)
        assert page.status_code == 200 and "Site administration" in page.text
        assert "ada@example.org" in client.get("admin/auth/user/").text
        check_upload(client, "upload")
        assert client.get("file").content == UPLOAD
    assert server.stop() == 0, server.log()
