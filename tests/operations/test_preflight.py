"""`--check-config`: it says what a start would stumble over, and disturbs no server that runs."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.server import ROOT, Start, run_command, write_program
from support.wire import read_all

from ewe.config.settings import Config
from ewe.server.access import call_as_account
from ewe.server.preflight import account_of_workers
from ewe.streams.listener import StartError

pytestmark = pytest.mark.starts_processes

KEY = "-----BEGIN PRIVATE KEY-----\nnone\n-----END PRIVATE KEY-----\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory with a document root, a file that is no directory, a named pipe and a bad certificate."""
    (tmp_path / "htdocs").mkdir(exist_ok=True)  # `start` may have made it
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    (tmp_path / "bad.pem").write_text(KEY)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--documentroot", "nowhere"), 'document root "nowhere"'),
        (("--cgi-path", "nowhere"), 'cgi-path "nowhere"'),
        (("--tls-cert", "nowhere.pem"), "'nowhere.pem' is not there (tls-cert, tls-key)"),
        (("--tls-cert", "bad.pem"), "(tls-cert, tls-key)"),
        (("--user", "no-such-user"), "(user"),
        (("--group", "no-such-group"), "group)"),
        (("--log-format", "%Q"), "%Q is unknown (log-format)"),
        (("--host", "192.0.2.1"), "192.0.2.1:4000 is not an address of this machine"),
        (("--bind", "192.0.2.1:80"), "(bind)"),
        (("--bind", "no.such.host.invalid:80"), "the host is unknown"),
        (("--bind", "unix:nowhere/socket"), "there is no directory"),
        (("--bind", "unix:file"), "no socket"),
        (("--bind", "unix:" + "x" * 120), "more than 107 bytes"),
        (("--logfile", "nowhere/log"), "(logfile)"),
        (("--access-log", "htdocs"), "is a directory; name a file in it (access-log)"),
        (("--pid-file", "nowhere/pid"), "(pid-file)"),
        (("--trace", "nowhere/trace"), "(trace)"),
        (("--pid-file", "fifo"), "it is not a regular file; name another (pid-file)"),
    ],
)
def test_what_would_stop_a_start(site: Path, options: tuple[str, ...], said: str) -> None:
    """Each is one line, and the start itself fails too."""
    if not {"--bind", "--host"} & {*options}:
        options = (*options, "0")
    done = run_command(site, "--check-config", *options)
    assert done.returncode == 1 and done.stdout == ""
    assert said in done.stderr and done.stderr.count("\n") == 1, done.stderr
    started = run_command(site, *options)
    assert started.returncode == 1, started.stderr


def test_all_failures_at_once(site: Path) -> None:
    bad = ("--documentroot", "nowhere", "--log-format", "%Q", "--tls-cert", "bad.pem")
    done = run_command(site, "--check-config", "0", *bad)
    assert done.returncode == 1 and done.stderr.count("\n") == 3, done.stderr


def test_nothing_is_made(site: Path) -> None:
    before = sorted(site.iterdir())
    options = (
        "--logfile",
        "log",
        "--access-log",
        "access",
        "--pid-file",
        "pid",
        "--bind",
        "unix:socket",
        "--trace",
        "x",
    )
    done = run_command(site, "--check-config", *options)
    assert (done.returncode, done.stdout, done.stderr) == (0, "configuration ok (no file)\n", "")
    assert sorted(site.iterdir()) == before


@pytest.mark.parametrize("model", ["pool", "asyncio"])
def test_beside_the_server(start: Start, model: str, tmp_path: Path) -> None:
    """The address and the pid file are the running server's own, and its clients notice nothing."""
    pid = str(tmp_path / "pid")
    server = start(model, "--pid-file", pid)
    with server.connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: ewe\r\n")
        done = run_command(
            tmp_path, "--check-config", "--model", model, "--port", str(server.port), "--pid-file", pid
        )
        assert (done.returncode, done.stdout) == (0, "configuration ok (no file)\n"), done.stderr
        note = "is in use, by this server or by another (host, port)"
        assert done.stderr == f"ewe: note: 127.0.0.1:{server.port} {note}\n"
        sock.sendall(b"Connection: close\r\n\r\n")
        assert b"welcome" in read_all(sock)
    assert server.stop() == 0


def test_a_unix_socket_is_left_alone(site: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(site / "socket"))
        listening.listen()
        listening.setblocking(False)
        done = run_command(site, "--check-config", "--bind", "unix:socket")
        assert done.returncode == 0 and "note: unix:socket is there" in done.stderr
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_xswitch(site: Path) -> None:
    for address, said in (
        ("192.0.2.1:80", "is not an address"),
        ("unix:nowhere/socket", "there is no directory"),
    ):
        done = run_command(site, "--check-config", "--listen", address, module="ewe.xswitch")
        assert done.returncode == 2 and "listen:" in done.stderr and said in done.stderr, done.stderr
    done = run_command(site, "--check-config", "--log", "nowhere/log", module="ewe.xswitch")
    assert done.returncode == 2 and "cannot write nowhere/log: " in done.stderr
    done = run_command(
        site, "--check-config", "--listen", "unix:socket", "--log", "log", module="ewe.xswitch"
    )
    assert done.returncode == 0 and not (site / "socket").exists() and not (site / "log").exists()


@pytest.mark.needs("root")
def test_a_document_root_that_may_not_be_read(start: Start, tmp_path: Path) -> None:
    """The server starts, since its mode may change; but it says why every answer is 403."""
    (tmp_path / "htdocs").chmod(0o700)
    server = start("pool", "--user", "nobody")
    assert server.ask(b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 403 ")
    server.wait_for_log("may not read")
    assert "(documentroot)" in server.log()


def test_rules_for_apache_are_pointed_out(start: Start, tmp_path: Path) -> None:
    """A package whose .htaccess protects its data is open without it: DokuWiki, for one."""
    (tmp_path / "wiki" / "data").mkdir(parents=True)
    (tmp_path / "wiki" / "data" / ".htaccess").write_text("Require all denied\n")
    (tmp_path / "sites.toml").write_text('[[site]]\n[[site.location]]\nprefix = "/wiki"\nalias = "wiki"\n')
    done = run_command(tmp_path, "--config", "sites.toml", "--documentroot", ".", "--check-config")
    assert done.returncode == 0
    said = "wiki/data/.htaccess: ewe does not read such files, and what they forbid is open"
    assert said in done.stdout + done.stderr
    server = start("pool", "--config", "sites.toml")
    assert said in server.log()


@pytest.mark.needs("root")
@pytest.mark.parametrize("model", ["pool", "xswitch"])
def test_what_the_account_may_not_read(start: Start, model: str, site: Path) -> None:
    """Made with umask 077, or below a home: root could read it all, so the questions are asked as the account."""
    home = site / "home"
    home.mkdir()
    home.chmod(0o700)
    (home / "sh").symlink_to("/bin/sh")
    write_program(site / "cgi-bin" / "closed", f"#!{home}/sh\n")
    write_program(site / "cgi-bin" / "open", "#!/bin/sh\n")
    (site / "htdocs").chmod(0o700)
    options = ("--user", "nobody", "--port", "0", "--model", model, "--check-config")
    done = run_command(site, *options)
    assert done.returncode == 0, done.stderr
    assert f"user nobody may not read {site}/htdocs, so every answer is 403: chmod a+rx" in done.stderr
    closed = f"cgi-bin/closed names {home}/sh, and {home} may not be entered by the server, user nobody"
    assert (closed in done.stderr) == (model == "pool") and "cgi-bin/open" not in done.stderr, done.stderr
    (site / "htdocs").chmod(0o755)
    (site / "cgi-bin").chmod(0o700)
    server = start(model, "--user", "nobody")
    said = f"user nobody may not read {site}/cgi-bin, so no program there runs: chmod a+rx"
    assert said in server.log() and "documentroot" not in server.log()


@pytest.mark.needs("root")
def test_a_python_that_the_account_may_not_read(start: Start, tmp_path: Path) -> None:
    """ewe has loaded all that it needs; an application loads modules whenever it likes."""
    packages = tmp_path / "home" / "packages"
    packages.mkdir(parents=True)
    (tmp_path / "home").chmod(0o700)
    (packages / "its.py").write_text("def app(environ, start_response):\n    import wave\n")
    said = f"user nobody may not enter {tmp_path}/home, so an application cannot import more"
    env = {"PYTHONPATH": f"{ROOT}:{packages}"}
    for options in (("--wsgi", "/=its:app"), ()):
        server = start("thread", "--user", "nobody", *options, env=env)
        assert (said in server.log()) == bool(options), server.log()
    done = subprocess.run(
        [sys.executable, "-m", "ewe", "--user", "nobody", "--port", "0", "--check-config"],
        cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and f"note: {said}" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("model", "address", "user", "account"),
    [
        ("xswitch", None, None, "nobody"),  # the server starts an X-Switch, which keeps root
        ("xswitch", None, "daemon", "daemon"),
        ("xswitch", "unix:/run/another", None, None),  # as ewe.server.run.serve_alone()
        ("xswitch", "unix:/run/another", "daemon", "daemon"),
        ("pool", None, None, None),
    ],
)
def test_the_account_of_the_workers_is_that_of_a_start(
    monkeypatch: pytest.MonkeyPatch, model: str, address: str | None, user: str | None, account: str | None
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert account_of_workers(Config(concurrency=model, xswitch=address, user=user)) == account


@pytest.mark.needs("root")
def test_a_check_that_raises_an_exception_as_the_account_is_a_failure() -> None:
    """A child process makes the check. If it dies without an answer, the answer is not "no failures"."""

    def leave() -> list[str]:
        raise SystemExit("an application ends its process")

    def crash() -> list[str]:
        os._exit(3)

    assert call_as_account("nobody", None, lambda: ["one", "two"]) == ["one", "two"]
    assert call_as_account("nobody", None, lambda: []) == []
    with pytest.raises(StartError, match="user nobody failed: SystemExit: an application ends its process"):
        call_as_account("nobody", None, leave)
    with pytest.raises(StartError, match="ended with status 3"):
        call_as_account("nobody", None, crash)
    with pytest.raises(StartError, match="there is no user 'no-such-user'"):
        call_as_account("no-such-user", None, lambda: [])


def test_a_check_that_cannot_fork_is_one_line_and_leaves_no_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fork", refuse)
    first = os.dup(0)
    os.close(first)
    with pytest.raises(StartError, match=r"cannot fork .* Resource temporarily unavailable"):
        call_as_account("nobody", None, lambda: [])
    with open(os.devnull) as next_file:
        assert next_file.fileno() == first
