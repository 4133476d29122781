"""Clients that other people wrote: curl, wget, aria2, pip, apt, git's dumb protocol; npm; rclone and cadaver.

The other tests use httpx and curl again and again. These clients each combine what a server can do in their own
way: aria2 asks for many ranges over many connections, wget follows a listing and goes on with half a file, pip
reads a listing as an index of packages, apt checks the hashes of its index, git walks a repository of plain files.
npm asks a proxy for `/@scope%2Fname`. rclone and cadaver read and write by WebDAV.

`make test` runs this under three models, `make applications` under all.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import IO, Any

import pytest
from support import needs
from support.http_upstream import HTTPUpstream
from support.server import MODELS, Server, Start, Starter

ALL = bool(os.environ.get("EWE_TEST_APPLICATIONS"))
SOME = [*MODELS, "xswitch"] if ALL else ["fork", "pool", "asyncio"]
DIST = "lamb-1.0.dist-info"


def run(directory: Path, *command: str, stdin: IO[str] | int = subprocess.DEVNULL) -> str:
    """Run a client without the settings of the machine; return what it prints."""
    environ = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    environ |= {"HOME": str(directory), "GIT_CONFIG_NOSYSTEM": "1", "PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run(command, cwd=directory, env=environ, stdin=stdin, capture_output=True, timeout=55)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return done.stdout.decode()


def wheel(path: Path) -> None:
    """Write a package that pip can install."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("lamb.py", "says = 'baa'\n")
        file.writestr(f"{DIST}/METADATA", "Metadata-Version: 2.1\nName: lamb\nVersion: 1.0\n")
        file.writestr(f"{DIST}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{DIST}/RECORD", f"lamb.py,,\n{DIST}/METADATA,,\n{DIST}/WHEEL,,\n{DIST}/RECORD,,\n")


def debian_repository(root: Path, work: Path) -> None:
    """Write a repository with one package for apt."""
    (work / "lamb" / "DEBIAN").mkdir(parents=True)
    (work / "lamb" / "DEBIAN").chmod(0o755)  # dpkg-deb refuses a directory that a umask of 077 has closed
    control = (
        "Package: lamb\nVersion: 1.0\nArchitecture: all\nMaintainer: Ada <a@example.org>\nDescription: baa\n"
    )
    (work / "lamb" / "DEBIAN" / "control").write_text(control)
    root.mkdir()
    run(work, "dpkg-deb", "-b", "lamb", str(root / "lamb_1.0_all.deb"))

    def listed(name: str) -> str:
        data = (root / name).read_bytes()
        return f"{hashlib.sha256(data).hexdigest()} {len(data)} {name}"

    sha, size, name = listed("lamb_1.0_all.deb").split()
    (root / "Packages").write_text(f"{control}Filename: ./{name}\nSize: {size}\nSHA256: {sha}\n")
    (root / "Release").write_text(
        f"Suite: stable\nDate: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n {listed('Packages')}\n"
    )


def apt(here: Path, *command: str) -> str:
    """Run apt-get with private directories, and the repository of sources.list."""
    for name in ("state/lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d"):
        (here / "apt" / name).mkdir(parents=True, exist_ok=True)
    (here / "apt" / "status").touch()
    options = {
        "Dir::State": "apt/state", "Dir::State::status": "apt/status", "Dir::Cache": "apt/cache",
        "Dir::Etc": "apt/etc", "Dir::Etc::sourcelist": "sources.list",
        "Dir::Etc::sourceparts": "-", "APT::Sandbox::User": "root",
        "APT::Architecture": "amd64",
    }  # fmt: skip
    given = [
        f"-o{name}={here / value if '/' in value or '.' in value else value}"
        for name, value in options.items()
    ]
    return run(here, "apt-get", "-q", *given, *command)


@pytest.fixture(scope="module")
def published(start_shared: Starter) -> Path:
    """The files that the servers of this file's clients publish: their document root."""
    root = start_shared.directory / "htdocs"
    (root / "sheep.bin").write_bytes(os.urandom(12 << 20))
    (root / "files" / "deep er").mkdir(parents=True)
    for number in range(20):
        (root / "files" / "deep er" / f"ü {number}.txt").write_text(f"{number}\n")
    return root


@pytest.fixture(scope="module", params=SOME)
def served(request: pytest.FixtureRequest, start_shared: Starter, published: Path) -> Server:
    """A server of each model for the clients."""
    return start_shared(request.param, *(("--workers", "2") if request.param == "thread" else ()))


@pytest.mark.needs("aria2")
def test_aria2_gets_a_file_in_eight_parts_at_once(served: Server, tmp_path: Path) -> None:
    run(tmp_path, "aria2c", "-q", "-x4", "-s8", "-k1M", "--file-allocation=none", f"{served.url}sheep.bin")
    got, sent = ((place / "sheep.bin").read_bytes() for place in (tmp_path, served.root))
    assert hashlib.sha256(got).digest() == hashlib.sha256(sent).digest()


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("curl", "-sS", "-C", "-", "-o", "half"), marks=pytest.mark.needs("curl"), id="curl"),
        pytest.param(("wget", "-q", "-c", "-O", "half"), marks=pytest.mark.needs("wget"), id="wget"),
    ],
)
def test_the_second_half_of_an_interrupted_file(
    served: Server, tmp_path: Path, command: tuple[str, ...]
) -> None:
    data = (served.root / "sheep.bin").read_bytes()
    (tmp_path / "half").write_bytes(data[: 5 << 20])
    run(tmp_path, *command, f"{served.url}sheep.bin")
    same = (tmp_path / "half").read_bytes() == data
    assert same, f"{command[0]} has {(tmp_path / 'half').stat().st_size} bytes"


@pytest.mark.needs("curl")
def test_curl_asks_if_a_file_has_changed_and_follows_a_directory(served: Server, tmp_path: Path) -> None:
    run(tmp_path, "curl", "-sS", "-R", "-o", "page", served.url)
    assert run(tmp_path, "curl", "-sS", "-z", "page", "-w", "%{http_code}", served.url) == "304"
    what = "%{num_redirects} %{http_code}"
    assert run(tmp_path, "curl", "-sSL", "-w", what, "-o", os.devnull, f"{served.url}files") == "1 200"


@pytest.mark.needs("wget")
def test_wget_gets_all_that_listings_lead_to(served: Server, tmp_path: Path) -> None:
    run(tmp_path, "wget", "-q", "-r", "-np", "-nH", "--restrict-file-names=nocontrol", f"{served.url}files/")
    got = sorted(path.read_text() for path in (tmp_path / "files").rglob("*.txt"))
    assert got == sorted(f"{number}\n" for number in range(20))


@pytest.mark.timeout(180)
def test_pip_takes_a_listing_for_an_index(served: Server, tmp_path: Path) -> None:
    (served.root / "simple" / "lamb").mkdir(parents=True, exist_ok=True)
    wheel(served.root / "simple" / "lamb" / "lamb-1.0-py3-none-any.whl")
    run(
        tmp_path, sys.executable, "-m", "pip", "install", "-q", "--no-cache-dir", "--disable-pip-version-check",
        "--root-user-action=ignore", "--target", "lib", "--index-url", f"{served.url}simple/", "lamb",
    )  # fmt: skip
    assert (tmp_path / "lib" / "lamb.py").read_text() == "says = 'baa'\n"


@pytest.fixture(scope="module")
def debian(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of Debian packages in the document root."""
    needs.require("apt-get")
    debian_repository(published / "debian", tmp_path_factory.mktemp("build"))
    return published / "debian"


@pytest.mark.timeout(180)
@pytest.mark.needs("apt-get")
def test_apt_checks_the_hashes_of_an_index(served: Server, debian: Path, tmp_path: Path) -> None:
    """The second update finds that nothing has changed."""
    (tmp_path / "sources.list").write_text(f"deb [trusted=yes] {served.url}debian ./\n")
    apt(tmp_path, "update")
    assert "Hit:2 " in apt(tmp_path, "update")
    apt(tmp_path, "download", "lamb")
    assert (tmp_path / "lamb_1.0_all.deb").read_bytes() == (debian / "lamb_1.0_all.deb").read_bytes()


@pytest.fixture(scope="module")
def plain_repository(published: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a repository of git in the document root: plain files, prepared by update-server-info."""
    needs.require("git")
    here = tmp_path_factory.mktemp("work")
    run(here, "git", "init", "-q", "-b", "main", "work")
    (here / "work" / "a").write_text("a")
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    run(here / "work", "git", "add", "a")
    run(here / "work", "git", *who, "commit", "-qm", "a")
    run(here, "git", "clone", "-q", "--bare", "work", str(published / "plain"))
    run(published / "plain", "git", "update-server-info")
    return "plain"


@pytest.mark.needs("git")
def test_git_clones_plain_files(served: Server, plain_repository: str, tmp_path: Path) -> None:
    run(tmp_path, "git", "clone", "-q", f"{served.url}{plain_repository}", "copy")
    assert (tmp_path / "copy" / "a").read_text() == "a"


@pytest.mark.starts_processes
@pytest.mark.timeout(180)
@pytest.mark.parametrize("model", SOME)
@pytest.mark.needs("npm")
def test_npm_behind_a_proxy(start: Start, tmp_path: Path, model: str) -> None:
    """A registry of npm: the name of a package in a scope is one segment, `@flock%2flamb`."""
    registry = HTTPUpstream()
    try:
        server = start(model, "--proxy", f"/npm=http://127.0.0.1:{registry.port}")
        package = json.dumps({"name": "@flock/lamb", "version": "1.0.0", "main": "index.js"}).encode()
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for name, data in (("package.json", package), ("index.js", b"module.exports = 'baa'\n")):
                member = tarfile.TarInfo(f"package/{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        dist = {
            "tarball": f"{server.url}npm/@flock/lamb/-/lamb-1.0.0.tgz",
            "shasum": hashlib.sha1(packed.getvalue()).hexdigest(),
        }
        about: dict[str, Any] = {"name": "@flock/lamb", "dist-tags": {"latest": "1.0.0"}}
        about["versions"] = {"1.0.0": json.loads(package) | {"dist": dist}}
        for path, body in (
            ("@flock%2flamb", json.dumps(about).encode()),
            ("@flock/lamb/-/lamb-1.0.0.tgz", packed.getvalue()),
        ):
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            registry.answers[f"/npm/{path}"] = head.encode() + body + registry.KEEP
        here = tmp_path / "here"
        here.mkdir()
        run(
            here, "npm", "install", "--no-audit", "--no-fund", "--prefix", str(here),
            "--cache", str(here / "cache"), "--userconfig", os.devnull,
            "--registry", f"{server.url}npm/", "@flock/lamb",
        )  # fmt: skip
        installed = here / "node_modules" / "@flock" / "lamb" / "index.js"
        assert installed.read_text() == "module.exports = 'baa'\n"
        assert "Traceback" not in server.log()
    finally:
        registry.close()


@pytest.mark.starts_processes
@pytest.mark.timeout(180)
@pytest.mark.parametrize("model", SOME)
@pytest.mark.needs("rclone", "cadaver")
def test_rclone_and_cadaver(start: Start, tmp_path: Path, model: str) -> None:
    """A directory is copied there and back, changed, compared; and by hand, as a person with a shell does."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)  # X-Switch writes as another account
    (tmp_path / "sites.toml").write_text(
        '[[site]]\n[[site.location]]\nprefix = "/dav/"\nalias = "shared"\nwebdav = { write = true }\n'
    )
    server = start(model, "--config", str(tmp_path / "sites.toml"))
    here = tmp_path / "here"
    (here / "from" / "deep er").mkdir(parents=True)
    for number in range(12):
        (here / "from" / "deep er" / f"ü {number} + %41.txt").write_text(f"{number}\n" * number)
    (here / "from" / "large").write_bytes(os.urandom(5 << 20))
    remote = (f"--webdav-url={server.url}dav/", "--webdav-vendor=other", "--config=/dev/null", "--retries=1")
    run(here, "rclone", "copy", "from", ":webdav:copied", *remote)
    run(here, "rclone", "check", "--download", "from", ":webdav:copied", *remote)
    run(here, "rclone", "moveto", ":webdav:copied/large", ":webdav:moved/there/large", *remote)
    (here / "from" / "large").unlink()
    run(here, "rclone", "sync", ":webdav:moved", "back", *remote)
    run(here, "rclone", "check", "--download", "from", ":webdav:copied", *remote)
    assert (here / "back" / "there" / "large").stat().st_size == 5 << 20
    run(here, "rclone", "purge", ":webdav:copied", *remote)
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["moved"]

    (here / "note").write_text("by hand\n")
    (here / "commands").write_text(
        "mkcol one\ncd one\nput note\ncopy note second\nmove second third\nls\nget third\nquit\n"
    )
    with (here / "commands").open() as commands:
        said = run(here, "cadaver", f"{server.url}dav/", stdin=commands)
    assert "failed" not in said and "third" in said, said
    assert (here / "third").read_text() == "by hand\n"
    assert sorted(path.name for path in (tmp_path / "shared" / "one").iterdir()) == ["note", "third"]
    assert "Traceback" not in server.log()
