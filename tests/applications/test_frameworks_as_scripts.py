"""Flask and Django as CGI programs: ewe starts one for each request, and X-Switch keeps their modules.

tests/gateway/test_wsgi_frameworks.py runs the same applications inside the server, by WSGI.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import site
import sys
from pathlib import Path

import pytest
from support import web
from support.server import ROOT, Start

UPLOAD = os.urandom(1_000_000)
PACKAGES = Path(site.getsitepackages()[0])
# X-Switch runs the programs as nobody. That account may not enter a clone of root's that is closed to others.
OPEN = all(each.stat().st_mode & 0o5 == 0o5 for each in (PACKAGES, *PACKAGES.parents))
MODELS = ["thread", "xswitch"] if OPEN or os.geteuid() != 0 else ["thread"]
SCRIPT = """#!{python}
import os, sys
sys.path[:0] = {path!r}
os.chdir({place!r})
from wsgiref.handlers import CGIHandler
import frameworks
CGIHandler().run(frameworks.{application}_app())
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the applications, their files, and a program for each."""
    shutil.copy(ROOT / "tests" / "support" / "wsgi_frameworks.py", tmp_path / "frameworks.py")
    (tmp_path / "big").write_bytes(UPLOAD)
    (tmp_path / "cgi-bin").mkdir(exist_ok=True)
    for application, name in (("flask", "shop.py"), ("django", "school.py")):
        script = tmp_path / "cgi-bin" / name
        path = [str(tmp_path), str(PACKAGES)]
        script.write_text(
            SCRIPT.format(
                python=os.path.realpath(sys.executable),
                path=path,
                place=str(tmp_path),
                application=application,
            )
        )
        script.chmod(0o755)
    # The kernel counts an account's processes on the whole machine, and all tests at once run engines as nobody.
    (tmp_path / "xswitch.toml").write_text("[limits]\nprocesses = 0\n")
    if os.geteuid() == 0:  # Django keeps its database here
        tmp_path.chmod(0o755)
        for each in (tmp_path, *tmp_path.rglob("*")):
            shutil.chown(each, "nobody")
    return tmp_path


@pytest.mark.starts_processes
@pytest.mark.parametrize("model", MODELS)
def test_frameworks_as_scripts(start: Start, place: Path, model: str) -> None:
    server = start(
        model, "--cgi-path", str(place / "cgi-bin"), "--xswitch-config", str(place / "xswitch.toml"),
        "--program-timeout", "50s",
    )  # fmt: skip
    with web.Client(base_url=f"{server.url}cgi-bin/", follow_redirects=True, timeout=60) as client:
        assert client.get("shop.py/?name=Ada").text == "<p>Hello, Ada"
        assert client.get("shop.py/login").text == "Ada"
        answer = client.post("shop.py/upload", files={"file": ("a.bin", UPLOAD)})
        assert answer.json()["sum"] == hashlib.sha256(UPLOAD).hexdigest()
        assert client.get("shop.py/file").content == UPLOAD
        assert client.get("shop.py/fault").status_code == 500
        page = client.get("school.py/admin/")
        assert page.url.path == "/cgi-bin/school.py/admin/login/"
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)
        assert token and "Django administration" in page.text
        form = {"csrfmiddlewaretoken": token[1], "username": "ada", "password": "lovelace"}
        page = client.post("school.py/admin/login/?next=/cgi-bin/school.py/admin/", data=form)
        assert page.status_code == 200 and "Site administration" in page.text
        assert "ada@example.org" in client.get("school.py/admin/auth/user/").text
