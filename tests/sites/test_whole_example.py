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


def make_sites(directory: Path) -> None:
    """Write the files that the example serves, and the certificate of its third site."""
    for name in ("srv/course/solutions", "srv/course/css", "srv/blog", "srv/git", "etc/ewe", "var/log/ewe"):
        (directory / name).mkdir(parents=True)
    for name, text in (
        ("srv/course/index.html", "the course"),
        ("srv/course/missing.html", "not in this course"),
        ("srv/course/solutions/one.txt", "42"),
        ("srv/course/css/a.css", "a {}"),
        ("srv/blog/index.php", INDEX),
        ("srv/blog/picture.svg", "<svg/>"),
        ("etc/ewe/htpasswd", f"ada:{bcrypt.using(rounds=4).hash('baa')}\n"),
    ):
        (directory / name).write_text(text)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    pem = authority.issue_cert("git.example.org").private_key_and_cert_chain_pem
    pem.write_to_path(directory / "etc/ewe/git.pem")


def run(directory: Path, *command: str) -> str:
    """Run a client in a directory, without the settings of its user; return what it prints."""
    environ = os.environ | {"HOME": str(directory), "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0"}
    environ["GIT_SSL_CAINFO"] = str(directory / "ca.pem")
    done = subprocess.run(command, cwd=directory, env=environ, capture_output=True, timeout=50)
    assert done.returncode == 0, (command, done.stderr.decode())
    return done.stdout.decode()


def git_pushes_and_clones(directory: Path, port: int) -> None:
    """A repository of the third site takes a commit over TLS, and gives it back."""
    address = f"http.curloptResolve=git.example.org:{port}:127.0.0.1"
    git = ("git", "-c", address, "-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    url = f"https://ada:baa@git.example.org:{port}/class.git"
    run(directory, "git", "init", "-q", "--bare", "-b", "main", "srv/git/class.git")
    run(directory, *git, "init", "-q", "-b", "main", "work")
    (directory / "work/notes").write_text("baa")
    run(directory, *git, "-C", "work", "add", "notes")
    run(directory, *git, "-C", "work", "commit", "-qm", "notes")
    run(directory, *git, "-C", "work", "push", "-q", url, "main")
    run(directory, *git, "clone", "-q", url, "copy")
    assert (directory / "copy/notes").read_text() == "baa"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.needs("php-cgi", "curl", "git")
def test_the_example_of_three_sites(start: Start, tmp_path: Path, model: str) -> None:
    make_sites(tmp_path)
    plain, secure = free_port(), free_port()
    (tmp_path / "sites.toml").write_text(example(tmp_path, {"8080": plain, "8443": secure}))
    server = start(model, "--config", "sites.toml")

    def curl(url: str, *options: str) -> str:
        """Return the body and the status that curl gets."""
        to = f"::127.0.0.1:{plain}"
        return run(tmp_path, "curl", "-sS", "-w", " %{http_code}", "--connect-to", to, *options, url)

    course, blog = f"http://course.example.org:{plain}", f"http://blog.example.org:{plain}"
    post = f"/2026/a-post?page=2 /index.php blog.example.org:{plain} 200"
    for url, options, expected in (
        (f"{course}/", (), "the course 200"),
        (f"{course}/none", (), "not in this course 404"),
        (f"{course}/solutions/one.txt", ("-u", "ada:baa"), "42 200"),
        (f"{blog}/2026/a-post?page=2", (), post),
        (f"{blog}/picture.svg", (), "<svg/> 200"),
    ):
        assert curl(url, *options) == expected, url
    assert curl(f"{course}/solutions/one.txt").endswith(" 401")
    assert "max-age=604800" in curl(f"{course}/css/a.css", "-i")
    assert "X-Frame-Options: SAMEORIGIN" in curl(f"{blog}/", "-I")
    git_pushes_and_clones(tmp_path, secure)
    assert server.stop() == 0
    assert '"GET /2026/a-post?page=2 HTTP/1.1" 200' in (tmp_path / "var/log/ewe/blog.log").read_text()
    others = server.access_file.read_text()  # the command line names another file than the example
    assert '"GET /css/a.css HTTP/1.1" 200' in others and "a-post" not in others
    assert "Traceback" not in server.log()
