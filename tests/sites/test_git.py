"""git's server program behind a URL: `alias` names one program, `env` tells it where to look."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.server import Start, wait_until

BACKEND = "/usr/lib/git-core/git-http-backend"
SETTINGS = f"""
[[site]]
access-log = "git.log"
log-format = "%r %{{Content-Encoding}}i %{{Transfer-Encoding}}i"
[[site.location]]
prefix = "/git"
alias = "{BACKEND}"
gateway = "cgi"
env = {{ GIT_PROJECT_ROOT = "PLACE", GIT_HTTP_EXPORT_ALL = "" }}
"""


def git(directory: Path, *arguments: str, stdin: bytes = b"") -> str:
    """Run git, without the settings of the machine."""
    quiet = {"GIT_CONFIG_NOSYSTEM": "1", "HOME": str(directory), "GIT_TERMINAL_PROMPT": "0"}
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "protocol.version=2")
    done = subprocess.run(
        ["git", *who, *arguments],
        cwd=directory,
        env={**os.environ, **quiet},
        input=stdin,
        capture_output=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_clone_and_push(start: Start, tmp_path: Path) -> None:
    """5 MB in chunks one way, and a request that git compresses the other way."""
    repository, work, copy = tmp_path / "class.git", tmp_path / "work", tmp_path / "copy"
    git(tmp_path, "init", "-q", "--bare", str(repository))
    git(repository, "config", "http.receivepack", "true")
    (tmp_path / "ewe.toml").write_text(SETTINGS.replace("PLACE", str(tmp_path)))
    server = start("pool", "--config", "ewe.toml")
    url = f"{server.url}git/class.git"
    git(tmp_path, "clone", "-q", url, str(work))
    (work / "big").write_bytes(os.urandom(5 << 20))
    git(work, "add", "big")
    git(work, "commit", "-qm", "5 MB")
    git(work, "fast-import", "--quiet", stdin=branches(60))
    git(work, "push", "-q", url, "--all")
    git(tmp_path, "clone", "-q", url, str(copy))
    assert (copy / "big").read_bytes() == (work / "big").read_bytes()
    # git may have read an answer before the line about it is written.
    lines = ("git-receive-pack HTTP/1.1 - chunked", "git-upload-pack HTTP/1.1 gzip")
    log = tmp_path / "git.log"
    wait_until(
        lambda: all(f"POST /git/class.git/{line}" in log.read_text() for line in lines), 20, log.read_text
    )
    assert server.log().count("\n") == 1, server.log()  # the banner alone


def branches(count: int) -> bytes:
    """Return the orders for so many branches with a commit each: git compresses a request that names them all."""
    who = "committer Ada <ada@example.org> 1700000000 +0000"
    return "".join(f"commit refs/heads/b{each}\n{who}\ndata 2\n{each:2}\n" for each in range(count)).encode()
