"""WordPress from Debian's package, with a private MariaDB: log-in, permalinks, a post, an upload, REST.

Its pages are PHP programs that ewe starts and keeps (`fastcgi-start`), or php-fpm, or X-Switch. Two settings
replace Apache's .htaccess file and rewrite rule: `try` leads a path that is no file to /index.php (permalinks),
and `pass-authorization` lets WordPress check the passwords of its REST interface itself.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from lab_bench import quick_lab
from support import web
from support.server import Start, wait_until

from ewe_lab.bench.processes import running
from ewe_lab.stacks import backends, wordpress
from ewe_lab.stacks.blog import posts

WAYS = ["pool", pytest.param("php-fpm", marks=pytest.mark.needs("php-fpm")), "xswitch"]
if os.environ.get("EWE_TEST_APPLICATIONS"):
    WAYS += ["fork", "prefork", "thread", "asyncio"]
SETTINGS = """
{php}
[[site]]
documentroot = "{root}"
pass-authorization = true
[[site.location]]
prefix = "/"
index = ["index.php", "index.html"]
try = ["$path", "$path/", "/index.php"]
"""
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c626001000000ffff03000006000557bfabd40000000049454e44ae426082"
)


@pytest.mark.starts_processes
@pytest.mark.needs("WordPress", "MariaDB", "php", "php-cgi", "PHP's mysqli")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", WAYS)
def test_wordpress(start: Start, tmp_path: Path, way: str) -> None:
    with quick_lab() as lab, wordpress.wordpress(lab) as blog, ExitStack() as stack:
        with (blog.root / "wp-config.php").open("r+") as file:
            text = file.read().replace("<?php", "<?php\ndefine('WP_ENVIRONMENT_TYPE', 'local');", 1)
            file.seek(0)
            file.write(text)
        for directory in (blog.root, *blog.root.parents[:1]):
            directory.chmod(0o755)
        php, model = 'fastcgi-start = [".php=2:php-cgi"]', way
        if way == "xswitch":
            php = ""  # it runs no script of root's that others may not read, and uploads need a writer
            for path in (blog.root, *blog.root.rglob("*")):
                shutil.chown(path, "nobody")
        elif way == "php-fpm":
            php, model = f'fastcgi = [".php=unix:{tmp_path}/fpm"]', "pool"
            output = stack.enter_context(tempfile.TemporaryFile())
            stack.enter_context(running(backends.fpm_command(tmp_path, str(tmp_path / "fpm"), 2), output))
            wait_until((tmp_path / "fpm").exists, 10)
        (tmp_path / "ewe.toml").write_text(SETTINGS.format(php=php, root=blog.root))
        visit(start(model, "--config", "ewe.toml", "--program-timeout", "50s"), blog)


def visit(server, blog: wordpress.WordPressSite) -> None:  # type: ignore[no-untyped-def]
    with web.Client(base_url=server.url, timeout=60, follow_redirects=True) as client:
        # Log in as a browser does
        client.get("wp-login.php")
        form = {
            "log": "admin",
            "pwd": blog.password,
            "testcookie": "1",
            "redirect_to": f"{server.url}wp-admin/",
        }
        page = client.post("wp-login.php", data=form | {"redirect_to": f"{server.url}wp-admin/"})
        assert page.status_code == 200 and "Dashboard" in page.text, page.text[:500]
        # Permalinks, in the settings' page
        page = client.get("wp-admin/options-permalink.php")
        nonce = re.search(r'name="_wpnonce" value="(\w+)"', page.text)
        assert nonce
        form = {"_wpnonce": nonce[1], "selection": "/%postname%/", "permalink_structure": "/%postname%/"}
        page = client.post("wp-admin/options-permalink.php", data=form | {"submit": "Save Changes"})
        assert page.status_code == 200 and "Permalink structure updated" in page.text
        # A password for programs, made with the browser's session; then a program that has only it
        nonce_of_rest = client.get("wp-admin/admin-ajax.php?action=rest-nonce").text
        made = client.post(
            "wp-json/wp/v2/users/me/application-passwords",
            json={"name": "a program"},
            headers={"X-WP-Nonce": nonce_of_rest},
        )
        assert made.status_code == 201, made.text
        password = made.json()["password"]
    with web.Client(base_url=server.url, timeout=60, auth=("admin", password)) as client:
        upload = client.post(
            "wp-json/wp/v2/media",
            content=PIXEL,
            headers={
                "Content-Type": "image/png",
                "Content-Disposition": 'attachment; filename="pixel.png"',
            },
        )
        assert upload.status_code == 201, upload.text
        assert client.get(upload.json()["source_url"]).content == PIXEL
        new = {"title": "Ewes & lambs", "content": "In the meadow", "status": "publish"}
        post = client.post("wp-json/wp/v2/posts", json=new)
        assert post.status_code == 201, post.text
        assert post.json()["link"] == f"{server.url}ewes-lambs/"
    with web.Client(base_url=server.url, timeout=60) as client:
        assert "In the meadow" in client.get("ewes-lambs/").text
        assert client.get("ewes-lambs").status_code == 301
        assert client.get("no-such-post/").status_code == 404
        assert posts()[-1].title in client.get("").text
        assert client.get("wp-json/wp/v2/posts?search=meadow").json()[0]["slug"] == "ewes-lambs"
        assert client.post("wp-json/wp/v2/posts", json=new).status_code == 401
        assert "<?php" not in client.get("wp-config.php").text
        found = client.get("wp-includes/css/dashicons.min.css")
        assert found.headers["content-type"] == "text/css; charset=utf-8"
    assert "Traceback" not in server.log()
