"""The command as a user meets it: banner, bad starts, addresses."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from support import web
from support.server import ROOT, Start, free_port, run_command
from support.wire import read_response

from ewe.server.run import print_banner


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "htdocs").mkdir()
    return tmp_path


@pytest.mark.starts_processes
def test_a_taken_port_is_one_line(site: Path, model: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_command(site, "--model", model, str(port))
    assert done.returncode == 1
    assert (
        done.stderr
        == f"ewe: 127.0.0.1:{port} is in use by another server; choose another port, or 0 for a free one\n"
    )


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "192.0.2.7"], "192.0.2.7:4000 is not an address of this machine"),
        (["--host", "no.such.host.invalid"], "the host is unknown"),
        (
            ["--host", "localhost:8080"],
            "expected a host name or address (without a port, which is the setting",
        ),
        (["--host", "a" * 70 + ".example"], "the host is malformed"),
        (["--documentroot", "nowhere"], "nowhere"),
        (["--access-log", "nowhere/access.log"], "nowhere/access.log"),
        (["--logfile", "nowhere/ewe.log"], "nowhere/ewe.log"),
        (["--log-format", "%Q"], "%Q is unknown"),
    ],
)
def test_a_bad_start_is_one_line(site: Path, arguments: list[str], says: str) -> None:
    done = run_command(site, *arguments)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("ewe: ") and says in done.stderr and done.stderr.count("\n") == 1, (
        done.stderr
    )


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("addresses", "listen", "says"),
    [
        (
            ["127.0.0.1:PORT", "127.0.0.1:PORT"],
            "",
            "127.0.0.1:PORT is in use by this server, which listens at 127",
        ),
        pytest.param(
            ["0.0.0.0:PORT"],
            "127.0.0.1:PORT",
            "127.0.0.1:PORT is in use by this server, which listens at 0.0.0.0:",
            marks=pytest.mark.needs("Linux"),
        ),
        pytest.param(
            ["127.0.0.1:PORT", "0.0.0.0:PORT"],
            "",
            "0.0.0.0:PORT is in use by this server, which listens at 127",
            marks=pytest.mark.needs("Linux"),
        ),
        (["unix:own", "unix:own"], "", "unix:own is in use by this server, which listens at unix:own"),
        (["unix:file"], "", "unix:file is there and no socket; choose another path"),
        (["unix:link"], "", "unix:link is there and no socket; choose another path"),
    ],
)
def test_addresses_that_exclude_each_other_are_one_line(
    site: Path, addresses: list[str], listen: str, says: str
) -> None:
    """`--check-config` says the same as a start."""
    port = str(free_port())
    (site / "file").touch()
    (site / "link").symlink_to("nowhere")
    (site / "ewe.toml").write_text(
        f'[[site]]\nnames = "a"\nlisten = "{listen}"\n[[site]]\n'.replace("PORT", port) if listen else ""
    )
    options = [part for each in addresses for part in ("--bind", each)]
    for command in ([], ["--check-config"]):
        done = run_command(site, *(each.replace("PORT", port) for each in (*command, *options)))
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert done.stderr.startswith(f"ewe: {says.replace('PORT', port)}")
    assert not (site / "own").exists() and (site / "file").exists() and (site / "link").is_symlink()


@pytest.mark.starts_processes
@pytest.mark.parametrize("arguments", [["--check-config"], ["--explain", "/"], ["--port", "0"]])
def test_a_removed_current_directory_is_one_line(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "gone").mkdir()
    command = 'cd gone && rmdir ../gone && exec "$0" -m ewe --documentroot / "$@"'
    done = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, *arguments],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    said = "ewe: the current directory was removed: change to one that exists\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


@pytest.mark.starts_processes
def test_an_unknown_model_names_the_nearest(site: Path) -> None:
    done = run_command(site, "--model", "thred")
    assert done.returncode == 2
    assert "thread" in done.stderr and done.stderr.count("\n") == 1


def test_the_banner(start: Start, model: str) -> None:
    server = start(model)
    banner = server.log().splitlines()[0]
    assert server.url in banner and f"pid {server.pid}" in banner and "Ctrl-C" in banner
    words = {
        "serial": "one connection at a time",
        "fork": "a process per connection",
        "prefork": "processes started in advance",
        "thread": "a thread per connection",
        "pool": "a pool of 5..50 threads",
        "asyncio": "an event loop",
    }
    assert words[model] in banner


def test_many_addresses(start: Start, variant: str, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.create_server(("127.0.0.1", 0)) as inherited:
        os.set_inheritable(inherited.fileno(), True)
        binds = ("--bind", "127.0.0.1:0", "--bind", f"unix:{path}", "--bind", "[::1]:0")
        server = start(variant, *binds)
        assert path.stat().st_mode & 0o777 == 0o666  # so that a proxy that runs as somebody else may connect
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            sock.settimeout(20)
            for _ in range(2):
                sock.sendall(b"GET / HTTP/1.1\r\nHost: ewe\r\n\r\n")
                assert read_response(sock)[0] == 200
        assert web.get(server.url).status_code == 200
        third = server.log().split("http://[::1]:")[1].split("/")[0]
        assert web.get(f"http://[::1]:{third}/").status_code == 200
    assert server.stop() == 0, server.log()
    assert not path.exists()


@pytest.mark.starts_processes
def test_an_inherited_descriptor(site: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as inherited:
        url = f"http://127.0.0.1:{inherited.getsockname()[1]}/"
        process = subprocess.Popen(
            [sys.executable, "-m", "ewe", "-t", "--bind", f"fd://{inherited.fileno()}", "--access-log", "off"],
            cwd=site, env={**os.environ, "PYTHONPATH": str(ROOT)}, pass_fds=[inherited.fileno()],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            assert web.get(url, timeout=60).status_code == 200  # it waited in the backlog
        finally:
            process.terminate()
            assert process.wait(60) == 0


def test_a_socket_file_of_a_dead_server_is_taken_over(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    start("thread", "--bind", f"unix:{path}", "--bind", "127.0.0.1:0")
    done = run_command(tmp_path, "--bind", f"unix:{path}")
    assert done.returncode == 1 and "in use" in done.stderr


@pytest.mark.starts_processes
def test_the_sample_site(tmp_path: Path) -> None:
    """Where there is no htdocs, ewe serves its own and says so."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ewe", "0"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert "sample site" in process.stderr.readline()
        url = process.stderr.readline().split()[1]
        assert "ewe" in web.get(url).text
        assert web.get(url + "cgi-bin/hello.sh").status_code == 200
    finally:
        process.terminate()
        assert process.wait(60) == 0
        assert process.stderr is not None
        process.stderr.close()


def test_the_banner_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that waits for the URL gets the whole line: print() writes the line end in a second write."""
    written: list[str] = []
    monkeypatch.setattr(sys, "stderr", Mock(write=written.append))
    factory = Mock(words="serial", workers=1)
    factory.site.tls = None
    print_banner([], factory)
    assert len(written) == 1 and written[0].endswith("Ctrl-C stops)\n")


def test_a_banner_that_cannot_be_written_stops_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error may be a file on a full disk, or a pipe without a reader."""
    monkeypatch.setattr(sys, "stderr", Mock(flush=Mock(side_effect=OSError)))
    print_banner([], Mock(words="serial", workers=1))
