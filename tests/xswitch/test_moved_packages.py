"""Packages on two X-Switches: an application is copied to another one, and moved there while it serves.

Each X-Switch has alice's home as its machine would have it: the second one sees another directory at the same path,
in a mount namespace.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.accounts import User, two_users
from support.certificates import authority, tls_settings
from support.server import ROOT, free_port, wait_until
from support.xswitch_client import XSwitch, xswitch

from ewe.xswitch.packages import pack

pytestmark = [pytest.mark.needs("root"), pytest.mark.starts_processes, pytest.mark.timeout(200)]

# The file `machine` in the home tells one machine from the other
SCRIPT = """#!/usr/bin/python3
import os, time
print("Content-Type: text/plain\\n")
time.sleep(float(os.environ.get("QUERY_STRING") or 0))
print(open(os.path.expanduser("~/machine")).read(), os.getuid())
"""
OTHER_HOME = 'mount --bind "$0" "$1" && shift && exec "$@"'


@pytest.fixture
def alice() -> Iterator[User]:
    with two_users() as (alice, _):
        alice.write("../machine", "here")
        yield alice


def package_of(alice: User) -> Path:
    """Pack the application `shop`; return its file."""
    source = alice.home / "shop"
    source.mkdir()
    (source / "hello.py").write_text(SCRIPT)
    pack(str(source), f"{source}.zip")
    return source.with_name("shop.zip")


@contextmanager
def other_machine(alice: User, settings: str = "", listen: str = "127.0.0.1:0") -> Iterator[XSwitch]:
    """Run an X-Switch that sees another, empty home of alice."""
    home = alice.home.with_name("alice-there")
    (home / "public_html").mkdir(parents=True)
    (home / "machine").write_text("there")
    for path in (home, *home.iterdir()):
        path.chmod(0o755)
        os.chown(path, alice.uid, alice.gid)
    prefix = ("unshare", "--mount", "sh", "-c", OTHER_HOME, str(home), str(alice.home))
    with xswitch(settings, listen, prefix) as running:
        yield running


def command(alice: User, machine: XSwitch, *words: str) -> str:
    """Run `ewe-xswitch` as alice on the machine of an X-Switch; return what it prints."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from ewe.xswitch.cli import main; sys.exit(main())"
    )
    done = subprocess.run(
        ["nsenter", f"--mount=/proc/{machine.process.pid}/ns/mnt", "setpriv", f"--reuid={alice.uid}",
         f"--regid={alice.gid}", "--clear-groups", "python3", "-c", code, *words],
        env={"PATH": "/usr/bin:/bin", "HOME": str(alice.home)},
        cwd="/", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copy_to(alice: User, file: Path) -> Path:
    """Copy a file to the other machine's home of alice; return its path there."""
    shutil.copy(file, alice.home.with_name("alice-there"))
    return alice.home / file.name


def ask(running: XSwitch, script: Path) -> tuple[int, str]:
    reply = running.ask(script)
    return reply.status, reply.text.strip()


def test_a_copied_package_serves_on_a_second_x_switch(alice: User) -> None:
    """The same file is the same version there, and serves on when the first machine's is removed."""
    file = package_of(alice)
    script = alice.public / "cgi-bin/shop/hello.py"
    with xswitch() as here, other_machine(alice) as there:
        first = command(alice, here, "install", str(file))
        wait_until(lambda: ask(here, script) == (200, f"here {alice.uid}"), 20, here.log)
        assert ask(there, script)[0] == 404
        second = command(alice, there, "install", str(copy_to(alice, file)))
        assert first == second and "the package shop serves: version" in first
        wait_until(lambda: ask(there, script) == (200, f"there {alice.uid}"), 20, there.log)
        command(alice, here, "remove", "shop")
        wait_until(lambda: ask(here, script)[0] == 404, 20, here.log)
        assert ask(there, script) == (200, f"there {alice.uid}")


class Clients:
    """Eight clients that ask all the time, each over one connection. Two of them ask for slow answers.

    answers: of each client, in their order.
    """

    def __init__(self, running: XSwitch, script: Path) -> None:
        self.running, self.script = running, script
        self.ending = threading.Event()
        self.answers: list[list[tuple[int, str]]] = [[] for _ in range(8)]
        self.threads = [threading.Thread(target=self.visit, args=(number,)) for number in range(8)]
        for thread in self.threads:
            thread.start()

    def visit(self, number: int) -> None:
        with self.running.connect() as connection:
            while not self.ending.is_set():
                reply = connection.ask(self.script, QUERY_STRING="0.3" if number < 2 else "")
                self.answers[number].append((reply.status, reply.text.strip()))

    def all_have(self, answer: tuple[int, str]) -> bool:
        """Return whether each client's last answer is this one."""
        return all(answers[-1:] == [answer] for answers in self.answers)

    def end(self) -> None:
        self.ending.set()
        for thread in self.threads:
            thread.join()


def test_an_application_moves_without_a_lost_request(alice: User) -> None:
    """As docs/xswitch.md says: install there, send the requests there, remove here. Eight clients ask meanwhile."""
    file = package_of(alice)
    script = alice.public / "cgi-bin/shop/hello.py"
    port = free_port()
    at_first, moved = (200, f"here {alice.uid}"), (200, f"there {alice.uid}")
    with authority() as ca, other_machine(alice, tls_settings(ca, "far"), f"tls:127.0.0.1:{port}") as there:
        far = f'[engines.far]\naddress = "127.0.0.1:{port}"\nextensions = [".far"]\n'
        with xswitch(f"{tls_settings(ca, 'near')}\n{far}") as here:
            command(alice, here, "install", str(file))
            wait_until(lambda: ask(here, script) == at_first, 20, here.log)
            wait_until(lambda: here.status()["far"][0]["state"] == "up", 20, here.log)
            clients = Clients(here, script)
            try:
                wait_until(lambda: clients.all_have(at_first), 20, here.log)
                command(alice, there, "install", str(copy_to(alice, file)))
                config = here.directory / "xswitch.toml"
                config.write_text(f'{config.read_text()}\n[directories]\n"{script.parent}" = "far"\n')
                os.kill(here.process.pid, signal.SIGHUP)
                wait_until(lambda: clients.all_have(moved), 20, lambda: here.log() + there.log())
                command(alice, here, "remove", "shop")
                # X-Switch remembers a script for two seconds: a request that still needed the files would fail now
                time.sleep(3)
            finally:
                clients.end()
            assert not os.path.lexists(script)
    for answers in clients.answers:
        count = answers.count(at_first)
        assert 0 < count < len(answers) and answers == [at_first] * count + [moved] * (len(answers) - count)
