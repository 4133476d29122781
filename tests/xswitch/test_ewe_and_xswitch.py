"""ewe in front of X-Switch: `ewe -x`, which starts an X-Switch, and every other model with `--xswitch`."""

from __future__ import annotations

import os
import pwd
import re
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support import web
from support.proc import children, session_members
from support.server import MODELS, Server, Start, wait_until, write_program
from support.xswitch_client import account, xswitch

from ewe.config.settings import Config
from ewe.features.pages import Pages
from ewe.features.users_settings import USERDIR
from ewe.features.xswitch_settings import XSWITCH
from ewe.http.status import HTTPError
from ewe.server import run
from ewe.server.preflight import with_xswitch
from ewe.server.xswitch_process import XSwitchProcess
from ewe.streams.listener import StartError
from ewe.xswitch.cli import defaults_with

pytestmark = pytest.mark.starts_processes

LARGE = os.urandom(2_000_000)
HELLO = "#!/usr/bin/env python3\nimport os\nprint('Content-Type: text/plain\\n')\nprint(os.getpid(), os.getuid())\n"
ECHO = (
    "#!/usr/bin/env python3\nimport sys\nsys.stdout.write('Content-Type: a/b\\n\\n')\nsys.stdout.flush()\n"
    "sys.stdout.buffer.write(sys.stdin.buffer.read())\n"
)
PERL = '#!/usr/bin/env perl\nprint "Content-Type: text/plain\\n\\n$ENV{PATH_INFO}|$ENV{QUERY_STRING}";\n'
PAGE = """page <?php
echo $_SERVER['SCRIPT_NAME'], ' ', $_SERVER['PATH_INFO'] ?? '-', ' ', strlen(file_get_contents('php://input'));
"""
SHELL = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nplain '; cat\n"


def with_programs(server: Server) -> Server:
    """Write the programs of these tests."""
    for name, text in (("hello.py", HELLO), ("echo.py", ECHO), ("info.pl", PERL), ("plain", SHELL)):
        write_program(server.cgi / name, text)
    return server


def check(client: httpx.Client) -> None:
    """Files and programs are all there; Python stays."""
    assert "welcome" in client.get("/").text
    pids = {client.get("/cgi-bin/hello.py").text.split()[0] for _ in range(5)}
    assert len(pids) == 1
    expected = str(pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid())
    assert client.get("/cgi-bin/hello.py").text.split()[1] == expected
    assert client.get("/cgi-bin/info.pl/some/where?a=b").text == "/some/where|a=b"
    assert client.post("/cgi-bin/echo.py", content=LARGE).content == LARGE
    assert client.post("/cgi-bin/echo.py", content=iter((b"in ", b"chunks"))).content == b"in chunks"
    assert client.post("/cgi-bin/plain", content=LARGE).content == b"plain " + LARGE  # no engine: plain CGI
    assert client.get("/cgi-bin/none.py").status_code == 404
    assert client.get("/xswitch-status").status_code == 404


@pytest.mark.parametrize("name", [*MODELS, "asyncio --loop asyncio"])
def test_every_model_before_one(start: Start, name: str, site: Path) -> None:
    """A model, or a loop, has its own way to wait for X-Switch. Workers and parking concern the clients alone."""
    with xswitch() as behind:
        (behind.site / "cgi-bin").mkdir()
        (site / "cgi-bin").rmdir()
        (site / "cgi-bin").symlink_to(behind.site / "cgi-bin")
        server = with_programs(start(name, "--xswitch", behind.address))
        with web.Client(base_url=server.url, timeout=20) as client:
            check(client)
            behind.stop()
            unreached = client.get("/cgi-bin/hello.py")
            assert (unreached.status_code, unreached.headers["retry-after"]) == (503, "1")
            assert "welcome" in client.get("/").text


def test_one_of_its_own(start: Start, site: Path) -> None:
    server = with_programs(start("xswitch"))
    with web.Client(base_url=server.url, timeout=20) as client:
        check(client)
        write_program(server.cgi / "hello.py", HELLO + "print('changed')\n")
        assert "changed" in client.get("/cgi-bin/hello.py").text
        assert client.get("/cgi-bin/hello.py").text.split()[1] != "0"
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("configuration was read again")
        wait_until(lambda: client.get("/cgi-bin/hello.py").status_code == 200, 20)
    assert server.stop() == 0
    assert "Traceback" not in server.log()
    assert not [path for path in Path("/tmp").glob("ewe-xswitch-*") if str(path) in server.log()]


def test_a_stop_before_xswitch_can_hear_it_cuts_no_request(start: Start, site: Path) -> None:
    server = start("xswitch")  # it has said that it serves, and X-Switch still loads its modules
    assert server.stop() == 0, server.log()


@pytest.mark.parametrize("victim", ["suexecme", "the main module", "its parent", "an engine"])
def test_what_is_killed_is_started_anew(start: Start, site: Path, victim: str) -> None:
    """Requests that come meanwhile wait in the backlog; files are served all the time."""
    server = with_programs(start("xswitch"))

    def family() -> dict[str, int]:
        """X-Switch's processes."""
        lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children(server.pid)}
        parent = next(pid for pid, line in lines.items() if b"ewe.xswitch" in line)
        suexecme, main = sorted(children(parent))
        return {"its parent": parent, "suexecme": suexecme, "the main module": main}

    with web.Client(base_url=server.url, timeout=20) as client:
        answer = client.get("/cgi-bin/hello.py")
        assert answer.status_code == 200, (answer.text, server.log())
        engine = int(answer.text.split()[0])
        before = family() | {"an engine": engine}
        os.kill(before[victim], signal.SIGKILL)

        def is_back() -> bool:
            """Another engine answers. An answer that the kill has cut is cut; a failed one has its status."""
            try:
                answer = client.get("/cgi-bin/hello.py")
            except httpx.RemoteProtocolError:
                return False
            assert answer.status_code in (200, 502, 503)
            return answer.status_code == 200 and int(answer.text.split()[0]) != engine

        wait_until(is_back, 20, server.log)  # well below a second where nothing else runs
        assert "welcome" in client.get("/").text
        wait_until(lambda: not Path(f"/proc/{engine}").exists(), 20, "the engine has outlived its X-Switch")
        assert "X-Switch (pid" in server.log() or victim != "its parent"
    assert server.stop() == 0


def test_a_user_without_x_switch(start: Start) -> None:
    """Programs of users are never sent as files."""
    name = pwd.getpwuid(os.geteuid()).pw_name
    as_root = ("--user", "root") if os.geteuid() == 0 else ()
    server = start("pool", "--userdir", ".", "--min-uid", "0", *as_root)
    answer = web.get(f"{server.url}~{name}/cgi-bin/anything.py")
    assert answer.status_code == 403
    server.wait_for_log("a user's programs need X-Switch")


def test_an_account_without_a_name_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container that runs under any uid, for example. X-Switch runs each script as an account with a home."""
    monkeypatch.setattr(os, "geteuid", lambda: 61999)
    with pytest.raises(StartError, match="uid 61999 has none in /etc/passwd"):
        XSwitchProcess(Config())


def test_a_failed_start_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual reason is a long TMPDIR: the path of a socket has at most 107 bytes (unix(7))."""
    temporary = tmp_path / ("long" * 30)
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with pytest.raises(OSError, match="path too long"):
        XSwitchProcess(Config())
    assert not list(temporary.iterdir())


def test_a_start_with_an_unknown_group_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StartError("there is no group 'nobodies'")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(run, "owner_of", refuse)
    with pytest.raises(StartError, match="no group"):
        run.serve_with_xswitch(Config(concurrency="xswitch"), None)
    assert not list(tmp_path.iterdir())


def test_a_check_completes_the_settings_as_a_start_does() -> None:
    completed = with_xswitch(Config(concurrency="xswitch", user="www-data"))
    assert completed[USERDIR] == "public_html" and completed[XSWITCH] is not None
    assert (completed.user, completed.origin("xswitch")) == ("www-data", "the xswitch model")
    elsewhere = Config(concurrency="xswitch", xswitch="unix:/run/another")
    assert with_xswitch(elsewhere) is elsewhere


def test_each_time_limit_is_one_for_xswitch() -> None:
    process = XSwitchProcess(Config())
    command = process.command(process.completed(Config(program_timeout="20d")))
    process.close()
    assert (
        defaults_with([each for each in command if each.startswith("time-limit=")]).time_limit == 20 * 86_400
    )


@pytest.fixture
def alice() -> Iterator[pwd.struct_passwd]:
    with account() as made:
        (Path(made.pw_dir) / "public_html" / "cgi-bin").mkdir()
        yield made


def test_programs_that_write_their_own_head(start: Start, site: Path) -> None:
    """A program without an engine runs as plain CGI. If X-Switch refuses a program, its answer has another head."""
    server = start("xswitch")
    head = "HTTP/1.1 299 Fine\\r\\nContent-Length: 3\\r\\n\\r\\nnph"
    write_program(server.cgi / "nph-shell", f"#!/bin/sh\nprintf '{head}'\n")
    text = f"#!/usr/bin/env python3\nprint('{head}', end='')\n"
    write_program(server.cgi / "nph-script.py", text)
    write_program(server.cgi / "nph-loose.py", text).chmod(0o777)
    for name in ("nph-shell", "nph-script.py"):  # a connection for each: it closes without saying so
        answer = web.get(f"{server.url}cgi-bin/{name}", timeout=20)
        assert (answer.status_code, answer.text) == (299, "nph"), server.log()
    assert web.get(f"{server.url}cgi-bin/nph-loose.py", timeout=20).status_code == 403


def test_what_x_switch_refuses_has_the_page_of_the_site(start: Start, site: Path) -> None:
    server = start("xswitch", "--program-timeout", "2s")
    write_program(server.cgi / "silent.py", "#!/usr/bin/env python3\n")
    write_program(server.cgi / "spins.py", "#!/usr/bin/env python3\nwhile True: pass\n")
    with web.Client(base_url=server.url, timeout=20) as client:
        for name, status in (("silent.py", 502), ("spins.py", 504)):
            answer = client.get(f"cgi-bin/{name}")
            assert answer.status_code == status
            assert "<h1>" in answer.text and "x-switch" not in answer.headers
            assert client.head(f"cgi-bin/{name}").status_code == status
    server.wait_for_log("silent.py: X-Switch answers 502, and its log says why")
    server.wait_for_log("it wrote nothing")


def test_what_has_no_engine_runs_for_a_network_too(start: Start, site: Path) -> None:
    """The workers of a server that root has started are another user."""
    server = start("xswitch", "--bind", "127.0.0.1:0", "--bind", "0.0.0.0:0")
    found = re.search(r"http://0\.0\.0\.0:(\d+)/", server.log())
    assert found, server.log()
    write_program(server.cgi / "who", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'; id -u\n")
    answer = web.get(f"http://127.0.0.1:{found[1]}/cgi-bin/who", timeout=20)
    assert answer.status_code == 200 and answer.text != "0\n", server.log()


def test_a_script_cannot_speak_for_x_switch(start: Start, site: Path) -> None:
    """The script would run a second time, as plain CGI."""
    server = start("xswitch")
    text = "import os\nprint('X-Switch: no-engine\\nContent-Type: text/plain\\n')\nprint(os.getppid())\n"
    write_program(server.cgi / "forge.py", "#!/usr/bin/env python3\n" + text)
    answer = web.get(f"{server.url}cgi-bin/forge.py", timeout=20)
    assert answer.status_code == 200 and "x-switch" not in answer.headers
    assert int(answer.text) not in (server.pid, *children(server.pid))  # an engine's parent is suexecme


def test_the_log_has_all_that_x_switch_says(start: Start, site: Path, tmp_path: Path) -> None:
    """The log has messages of X-Switch and scripts, also after a rotation, but no status that no client got."""
    log = tmp_path / "error.log"
    server = with_programs(start("xswitch", "--logfile", str(log)))
    write_program(server.cgi / "fault.py", "#!/usr/bin/env python3\nimport no_such_module\n")

    def ask(name: str) -> int:
        return web.get(f"{server.url}cgi-bin/{name}", timeout=20).status_code

    def said(text: str) -> None:
        wait_until(lambda: text in log.read_text(), 20, lambda: f"{text!r} is not in {log.read_text()}")

    assert ask("fault.py") == 502
    said("No module named 'no_such_module'")
    said("502, it wrote nothing")
    assert ask("plain") == 200
    said("plain: no engine for it")
    assert ": 500" not in log.read_text()
    first = log.rename(tmp_path / "error.log.1")
    server.process.send_signal(signal.SIGUSR1)
    wait_until(log.exists, 20)

    def is_said_there() -> bool:
        ask("fault.py")
        return "No module named" in log.read_text()

    wait_until(is_said_there, 20, first.read_text)
    assert server.stop() == 0
    said("SIGTERM: stopping")
    assert "X-Switch" not in server.log().partition("\n")[2]


def test_settings_of_its_own(start: Start, site: Path, tmp_path: Path) -> None:
    """X-Switch's own settings override the server's. An error in the file is one line, and nothing starts."""
    config = tmp_path / "xswitch.toml"
    config.write_text("time-limit = '300ms'\n")
    server = start("xswitch", "--xswitch-config", str(config))
    write_program(server.cgi / "spins.py", "#!/usr/bin/env python3\nwhile True: pass\n")
    assert web.get(f"{server.url}cgi-bin/spins.py", timeout=20).status_code == 504
    assert server.stop() == 0
    command = [sys.executable, "-m", "ewe", "-x", "--port", "0", "--xswitch-config", str(config)]
    bad = {
        "time-limit = 'soon'": 'time-limit = "soon": expected a time',
        "[": "xswitch.toml",
        None: "No such file",
    }
    for text, said in bad.items():
        config.unlink() if text is None else config.write_text(text)
        for more in ([], ["--check-config"]):
            done = subprocess.run(command + more, capture_output=True, text=True, timeout=20, cwd=tmp_path)
            assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_nothing_is_left_of_a_server_that_was_killed(start: Start, site: Path) -> None:
    server = with_programs(start("xswitch"))
    assert web.get(f"{server.url}cgi-bin/hello.py", timeout=20).status_code == 200
    family = session_members(server.pid)
    parent = next(pid for pid in family if b"ewe.xswitch" in Path(f"/proc/{pid}/cmdline").read_bytes())
    listed = subprocess.run(["ls", "-l", f"/proc/{parent}/fd"], capture_output=True, text=True, check=True)
    numbers = re.findall(r"socket:\[(\d+)\]", listed.stdout)
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    path = next(Path(line[7]) for line in lines if len(line) > 7 and line[6] in numbers)
    assert path.exists()
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not session_members(server.pid), 20, lambda: f"left: {session_members(server.pid)}")
    assert not path.parent.exists()


@pytest.mark.needs("php-cgi")
def test_pages_of_the_site(start: Start, site: Path) -> None:
    """PHP lies among the files, is the index of a directory that has no other, and is never sent as it is."""
    server = start("xswitch")
    for name in ("page.php", "a/index.php", "b/index.php", "loose.php"):
        write_program(server.root / name, PAGE)
    (server.root / "loose.php").chmod(0o666)
    (server.root / "b" / "index.html").write_text("b's own")
    (server.root / "dir.php").mkdir()
    (server.root / "dir.php" / "notes.txt").write_text("notes")
    with web.Client(base_url=server.url, timeout=20) as client:
        for path, said in (
            ("page.php", "page /page.php - 0"),
            ("page.php/some/where", "page /page.php /some/where 0"),
            ("a/", "page /a/index.php - 0"),
            ("b/", "b's own"),
            ("dir.php/notes.txt", "notes"),
        ):
            answer = client.get(path)
            assert (answer.status_code, answer.text) == (200, said)
        assert client.post("page.php", content=b"12345").text == "page /page.php - 5"
        refused = client.get("loose.php")
        assert refused.status_code == 403 and "<?php" not in refused.text
        assert client.get("dir.php").status_code == 301
        assert "notes.txt" in client.get("dir.php/").text, server.log()
        assert client.get("none.php").status_code == 404
        write_program(server.root / "none.php", PAGE)  # within the second that an absence would be believed
        assert client.get("none.php").text == "page /none.php - 0"
        (server.root / ".well-known").mkdir()
        write_program(server.root / ".well-known" / "page.php", PAGE)
        assert client.get(".well-known/page.php").status_code == 404
        (server.root / "page.php").write_text("<?php echo 'other';")
        assert client.get("page.php").text == "other"
    server.wait_for_log("writable by others")


@pytest.mark.needs("root")
def test_a_home_that_the_server_may_not_enter(alice: pwd.struct_passwd, start: Start, site: Path) -> None:
    """A home is closed (students often forget this): nothing in it is served, and the log names the remedy."""
    home = Path(alice.pw_dir)
    public = home / "public_html"
    write_program(public / "cgi-bin" / "me.py", HELLO)
    (public / "a.html").write_text("alice's own")
    for path in (public, *public.rglob("*")):
        os.chown(path, alice.pw_uid, alice.pw_gid)
    server = start("xswitch")
    with web.Client(base_url=f"{server.url}~{alice.pw_name}/", timeout=20) as client:
        for closed in (home, public):
            mode = closed.stat().st_mode & 0o777
            closed.chmod(0o700)
            for path in ("cgi-bin/me.py", "a.html", "page.php", ""):
                assert client.get(path).status_code == 404, server.log()
            server.wait_for_log(f"{closed} may not be entered by the server, user nobody: chmod o+x {closed}")
            closed.chmod(mode)
        assert client.get("cgi-bin/me.py").text.split()[1] == str(alice.pw_uid)
        assert client.get("a.html").text == "alice's own"


@pytest.mark.needs("root")
def test_programs_of_a_user(alice: pwd.struct_passwd, start: Start, site: Path) -> None:
    """Scripts run as their owner. A script that others may write does not run. No script is sent as a file."""
    public = Path(alice.pw_dir) / "public_html"
    write_program(public / "cgi-bin" / "me.py", HELLO)
    write_program(public / "cgi-bin" / "loose.py", HELLO).chmod(0o777)
    (public / "index.html").write_text("alice's own")
    write_program(public / "page.php", "<?php echo posix_getuid();").chmod(0o600)  # it holds a password
    for path in (public, *public.rglob("*")):
        os.chown(path, alice.pw_uid, alice.pw_gid)
    write_program(public / "cgi-bin" / "roots.py", HELLO)
    (public / "cgi-bin" / "data.txt").write_text("secret")
    server = start("xswitch")
    with web.Client(base_url=f"{server.url}~{alice.pw_name}/", timeout=20) as client:
        assert client.get("").text == "alice's own"
        assert client.get("cgi-bin/me.py").text.split()[1] == str(alice.pw_uid)
        for name, status in (("loose.py", 403), ("roots.py", 403), ("data.txt", 403), ("none.py", 404)):
            answer = client.get(f"cgi-bin/{name}")
            assert answer.status_code == status
            assert (
                "secret" not in answer.text and "import" not in answer.text and "writable" not in answer.text
            )
        assert client.get("cgi-bin/").status_code == 404
        assert client.get("page.php").text == str(alice.pw_uid)
    server.wait_for_log("writable by others")
    assert re.search(r"roots\.py: 403, its owner is root", server.log())


@pytest.mark.needs("root")
@pytest.mark.parametrize("mode", [0o755, 0o700], ids=["open", "closed"])
def test_a_package_serves_without_a_request_for_another_script(
    alice: pwd.struct_passwd, start: Start, site: Path, mode: int
) -> None:
    """ewe finds no file of it, but the package in the directory of packages, or a directory that is closed."""
    home = Path(alice.pw_dir)
    directory = home / "xswitch-packages"
    directory.mkdir()
    with zipfile.ZipFile(directory / "shop.zip", "w") as archive:
        archive.writestr("hello.py", HELLO)
    for path in (home / "public_html", home / "public_html" / "cgi-bin", *directory.iterdir(), directory):
        os.chown(path, alice.pw_uid, alice.pw_gid)
    directory.chmod(mode)
    url = f"{start('xswitch').url}~{alice.pw_name}/cgi-bin/"
    wait_until(lambda: web.get(f"{url}shop/hello.py", timeout=20).status_code == 200, 20)
    for path in ("none/hello.py", "shop/none.py", "shop/.hidden.py", "../xswitch-packages/shop.zip"):
        assert web.get(url + path).status_code == 404, path


def test_a_page_is_looked_for_once_a_second_and_a_missing_one_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that has just been written must not be sent as a file."""
    pages = Pages(str(tmp_path), "", ("index.html",), ())
    looked: list[str] = []
    find = pages.find_uncached
    monkeypatch.setattr(pages, "find_uncached", lambda path: (looked.append(path), find(path))[1])
    with pytest.raises(HTTPError, match="no such page"):
        pages.find("/shop.php")
    (tmp_path / "shop.php").touch()
    found = [pages.find("/shop.php") for _ in range(3)]
    assert [page and page.file for page in found] == [f"{tmp_path}/shop.php"] * 3
    assert looked == ["/shop.php"] * 2
