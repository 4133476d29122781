"""Clients that other people wrote, against the files of one site: curl, wget, aria2, pip, git's dumb protocol.

The other tests use httpx and curl again and again. These clients each combine what a server can do in their own
way: aria2 asks for many ranges over many connections, wget follows a listing and goes on with half a file, pip
reads a listing as an index of packages, git walks a repository of plain files.

`make test` runs this under three models, `make applications` under all.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.server import MODELS, Start

ALL = bool(os.environ.get("EWE_TEST_APPLICATIONS"))
SOME = [*MODELS, "xswitch"] if ALL else ["fork", "pool", "asyncio"]
DIST = "lamb-1.0.dist-info"


def run(directory: Path, *command: str) -> str:
    """Run a client without the settings of the machine; return what it prints."""
    environ = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    environ |= {"HOME": str(directory), "GIT_CONFIG_NOSYSTEM": "1", "PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run(command, cwd=directory, env=environ, capture_output=True, timeout=55)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return done.stdout.decode()


def wheel(path: Path) -> None:
    """Write a package that pip can install."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("lamb.py", "says = 'baa'\n")
        file.writestr(f"{DIST}/METADATA", "Metadata-Version: 2.1\nName: lamb\nVersion: 1.0\n")
        file.writestr(f"{DIST}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{DIST}/RECORD", f"lamb.py,,\n{DIST}/METADATA,,\n{DIST}/WHEEL,,\n{DIST}/RECORD,,\n")


@pytest.mark.starts_processes
@pytest.mark.timeout(180)
@pytest.mark.parametrize("model", SOME)
def test_clients(start: Start, tmp_path: Path, model: str) -> None:
    server = start(model, "--workers", "2") if model == "thread" else start(model)
    root, here = server.root, tmp_path / "here"
    here.mkdir()
    data = os.urandom(12 << 20)
    (root / "sheep.bin").write_bytes(data)
    (root / "files" / "deep er").mkdir(parents=True)
    for number in range(20):
        (root / "files" / "deep er" / f"ü {number}.txt").write_text(f"{number}\n")
    (root / "simple" / "lamb").mkdir(parents=True)
    wheel(root / "simple" / "lamb" / "lamb-1.0-py3-none-any.whl")

    # aria2: one file in eight parts at once. curl and wget: the second half of one that was interrupted
    run(here, "aria2c", "-q", "-x4", "-s8", "-k1M", "--file-allocation=none", f"{server.url}sheep.bin")
    assert hashlib.sha256((here / "sheep.bin").read_bytes()).digest() == hashlib.sha256(data).digest()
    for command in (("curl", "-sS", "-C", "-", "-o", "half"), ("wget", "-q", "-c", "-O", "half")):
        (here / "half").write_bytes(data[: 5 << 20])
        run(here, *command, f"{server.url}sheep.bin")
        assert (here / "half").read_bytes() == data
    # curl: only if it has changed; a directory's way back; several files over one connection
    run(here, "curl", "-sS", "-R", "-o", "page", server.url)
    assert run(here, "curl", "-sS", "-z", "page", "-w", "%{http_code}", server.url) == "304"
    told = run(
        here, "curl", "-sSL", "-w", "%{num_redirects} %{http_code}", "-o", os.devnull, f"{server.url}files"
    )
    assert told == "1 200"
    # wget: all that the listings lead to
    run(here, "wget", "-q", "-r", "-np", "-nH", "--restrict-file-names=nocontrol", f"{server.url}files/")
    got = sorted(path.read_text() for path in (here / "files").rglob("*.txt"))
    assert got == sorted(f"{number}\n" for number in range(20))
    # pip: the listing is an index
    run(
        here, sys.executable, "-m", "pip", "install", "-q", "--no-cache-dir", "--disable-pip-version-check",
        "--root-user-action=ignore", "--target", "lib", "--index-url", f"{server.url}simple/", "lamb",
    )  # fmt: skip
    assert (here / "lib" / "lamb.py").read_text() == "says = 'baa'\n"
    # git: plain files, prepared by update-server-info
    run(here, "git", "init", "-q", "-b", "main", "work")
    (here / "work" / "a").write_text("a")
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    run(here / "work", "git", "add", "a")
    run(here / "work", "git", *who, "commit", "-qm", "a")
    run(here, "git", "clone", "-q", "--bare", "work", str(root / "plain"))
    run(root / "plain", "git", "update-server-info")
    run(here, "git", "clone", "-q", f"{server.url}plain", "copy")
    assert (here / "copy" / "a").read_text() == "a"
    assert "Traceback" not in server.log()
