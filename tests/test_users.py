"""Users' directories: /~NAME/ leads to one's own public_html, and nowhere else."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import httpx
from conftest import Start


def me() -> pwd.struct_passwd:
    """Return the account that runs the tests."""
    return pwd.getpwuid(os.geteuid())


def test_files_of_a_user(start: Start, variant: str) -> None:
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
        server = start(variant, "--userdir", directory, "--min-uid", "0")
        base = f"{server.url}~{name}"
        with httpx.Client() as client:
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


def test_users_of_the_system_have_none(start: Start, model: str) -> None:
    server = start(model, "--userdir", "public_html")
    assert httpx.get(server.url + "~root/").status_code == 403
    server.wait_for_log("user root is the system's")


def test_without_the_setting_there_are_no_users(start: Start) -> None:
    server = start("pool")
    assert httpx.get(f"{server.url}~{me().pw_name}/").status_code == 404
