"""The example of three sites in docs/sites.md, as it stands there but for its directories and ports."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import trustme
from passlib.hash import bcrypt
from support.server import MODELS, ROOT, Start, free_port

INDEX = """<?php
header("Content-Type: text/plain");
echo $_SERVER["REQUEST_URI"], " ", $_SERVER["SCRIPT_NAME"], " ", $_SERVER["HTTP_HOST"];
"""


def example(directory: Path, ports: dict[str, int]) -> str:
    """Return the example of the documentation, for this directory and these ports."""
    text = (ROOT / "docs" / "sites.md").read_text().partition("## A whole example")[2]
    found = re.search(r"```toml\n(.*?)```", text, re.DOTALL)
    assert found
    settings = re.sub(r'"(/srv|/etc/ewe|/var/log/ewe)', rf'"{directory}\1', found[1])
    for port, other in ports.items():
        settings = settings.replace(f"0.0.0.0:{port}", f"127.0.0.1:{other}")
    return settings


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.needs("php-cgi", "curl", "git")
def test_the_example_of_three_sites(start: Start, tmp_path: Path, model: str) -> None:
    for name in ("srv/course/solutions", "srv/course/css", "srv/blog", "srv/git", "etc/ewe", "var/log/ewe"):
        (tmp_path / name).mkdir(parents=True)
    course, blog = tmp_path / "srv/course", tmp_path / "srv/blog"
    (course / "index.html").write_text("the course")
    (course / "missing.html").write_text("not in this course")
    (course / "solutions/one.txt").write_text("42")
    (course / "css/a.css").write_text("a {}")
    (blog / "index.php").write_text(INDEX)
    (blog / "picture.svg").write_text("<svg/>")
    (tmp_path / "etc/ewe/htpasswd").write_text(f"ada:{bcrypt.using(rounds=4).hash('baa')}\n")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("git.example.org").private_key_and_cert_chain_pem.write_to_path(
        tmp_path / "etc/ewe/git.pem"
    )
    plain, secure = free_port(), free_port()
    (tmp_path / "sites.toml").write_text(example(tmp_path, {"8080": plain, "8443": secure}))
    server = start(model, "--config", "sites.toml")

    def curl(url: str, *options: str) -> str:
        """Return the body and the status that curl gets."""
        return run(
            "curl", "-sS", "-w", " %{http_code}", "--connect-to", f"::127.0.0.1:{plain}", *options, url
        )

    def run(*command: str) -> str:
        environ = os.environ | {"HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0"}
        environ["GIT_SSL_CAINFO"] = str(tmp_path / "ca.pem")
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, timeout=50)
        assert done.returncode == 0, (command, done.stderr.decode(), server.log())
        return done.stdout.decode()

    here, there = f"http://course.example.org:{plain}", f"http://blog.example.org:{plain}"
    assert curl(f"{here}/") == "the course 200"
    assert curl(f"{here}/none") == "not in this course 404"
    assert curl(f"{here}/solutions/one.txt").endswith(" 401")
    assert curl(f"{here}/solutions/one.txt", "-u", "ada:baa") == "42 200"
    assert "max-age=604800" in curl(f"{here}/css/a.css", "-i")
    assert (
        curl(f"{there}/2026/a-post?page=2") == f"/2026/a-post?page=2 /index.php blog.example.org:{plain} 200"
    )
    assert curl(f"{there}/picture.svg") == "<svg/> 200"
    assert "X-Frame-Options: SAMEORIGIN" in curl(f"{there}/", "-I")

    address = f"http.curloptResolve=git.example.org:{secure}:127.0.0.1"
    git = ("git", "-c", address, "-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    run("git", "init", "-q", "--bare", "-b", "main", "srv/git/class.git")
    run(*git, "init", "-q", "-b", "main", "work")
    (tmp_path / "work/notes").write_text("baa")
    run(*git, "-C", "work", "add", "notes")
    run(*git, "-C", "work", "commit", "-qm", "notes")
    url = f"https://ada:baa@git.example.org:{secure}/class.git"
    run(*git, "-C", "work", "push", "-q", url, "main")
    run(*git, "clone", "-q", url, "copy")
    assert (tmp_path / "copy/notes").read_text() == "baa"
    assert server.stop() == 0
    assert '"GET /2026/a-post?page=2 HTTP/1.1" 200' in (tmp_path / "var/log/ewe/blog.log").read_text()
    others = server.access_file.read_text()  # the command line names another file than the example
    assert '"GET /css/a.css HTTP/1.1" 200' in others and "a-post" not in others
    assert "Traceback" not in server.log()
