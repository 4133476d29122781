"""Engines on another machine over a network with delay and loss, set up by the commands of docs/xswitch.md."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from four_machines import ROOT, Network, address, do
from support.server import wait_until
from support.xswitch_client import HEAD, PYTHON_HELLO, Connection

from ewe.xswitch.switch.far_engine import RETRY_S, SILENT_S

pytestmark = [pytest.mark.needs("root", "ip", "/dev/net/tun"), pytest.mark.starts_processes]

SECTION = (
    (ROOT / "docs" / "xswitch.md").read_text().split("### Engines on other machines")[1].split("\n### ")[0]
)
MACHINES = {"192.0.2.1": "lab", "192.0.2.7": "server"}
ECHO = f"import sys\nprint('{HEAD}', flush=True)\nsys.stdout.buffer.write(sys.stdin.buffer.read())\n"


def here(text: str, directory: Path, machine: str = "") -> str:
    """Return a text of the page for this trial: its machines, and a directory in the place of /etc and /run."""
    for documented, name in MACHINES.items():
        text = text.replace(documented, address(name))
    return text.replace("/etc/", f"{directory}/{machine}/").replace("/run/", f"{directory}/{machine}/")


class Front:
    """The X-Switch that sends requests to the other machine."""

    def __init__(self, network: Network, directory: Path) -> None:
        self.network = network
        self.directory = directory
        self.socket = f"unix:{directory}/lab/xswitch.sock"

    def ask(self, name: str, body: bytes = b"") -> tuple[int, bytes]:
        with Connection(self.socket, 60) as connection:
            reply = connection.ask(self.directory / "site" / name, body)
        return reply.status, reply.body

    def accepts(self) -> bool:
        """Return whether X-Switch accepts connections: bind(2) makes the socket's name, before listen(2)."""
        try:
            with Connection(self.socket, 60):
                return True
        except OSError:
            return False

    def state(self) -> str:
        with Connection(self.socket, 60) as connection:
            text = connection.ask("", SCRIPT_NAME="/xswitch-status", XSWITCH_STATUS="1").text
        found = re.search(r"engines far on \S+: (\w+)", text)
        return found[1] if found else text


@contextmanager
def set_up() -> Iterator[Front]:
    """Make the certificates by the page's commands and start both X-Switches with the page's settings."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="ewe-far-"))
        stack.callback(shutil.rmtree, directory)
        directory.chmod(0o755)
        network = Network(directory)
        stack.callback(network.disconnect)
        network.connect(stack)
        for machine in (*MACHINES.values(), "site", "ca"):
            (directory / machine / "xswitch").mkdir(parents=True)
        commands = re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)[0]
        for documented, machine in MACHINES.items():
            commands = commands.replace(f"root@{documented}:/etc/", f"{directory}/{machine}/")
        commands = here(commands.replace("scp", "cp"), directory)
        subprocess.run(
            ["bash", "-ec", f"umask 077\n{commands}"], cwd=directory / "ca", check=True, capture_output=True
        )
        settings = re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL)
        for machine, text in zip(("server", "lab"), settings, strict=True):
            limits = (
                f'roots = ["{directory}/site"]\n{here(text, directory, machine)}\n[limits]\nprocesses = 0\n'
            )
            ruby = '[engines.python]\nextensions = [".py", ".rb"]\n' if machine == "server" else ""
            file = directory / machine / "xswitch.toml"
            file.write_text(limits + ruby)
            command = ("-m", "ewe.xswitch.cli", "--config", str(file), "--log", f"{directory}/{machine}/log")
            stack.enter_context(network.running(machine, *network.python(machine, *command)[4:]))
        front = Front(network, directory)
        wait_until(front.accepts, 20)
        wait_until(lambda: front.state() == "up", 20, lambda: (directory / "lab" / "log").read_text())
        yield front


def test_the_documented_setup_over_a_network_with_delay_and_loss() -> None:
    """A hello, megabytes both ways, a cable that is pulled, and the same afterwards."""
    with set_up() as front:
        for name, text in (("hello.rb", PYTHON_HELLO), ("echo.rb", ECHO), ("hello.py", PYTHON_HELLO)):
            (front.directory / "site" / name).write_text(text)
            (front.directory / "site" / name).chmod(0o755)
        assert front.ask("hello.rb") == (200, b"hello\n")
        body = os.urandom(5 << 20)
        assert front.ask("echo.rb", body) == (200, body)
        do(*front.network.on("server", "ip", "link", "set", "eth0", "down"))
        wait_until(lambda: front.state() == "down", SILENT_S + 10)
        began = time.monotonic()
        assert front.ask("hello.rb")[0] == 503
        assert front.ask("hello.py") == (200, b"hello\n")
        assert time.monotonic() - began < 5
        do(*front.network.on("server", "ip", "link", "set", "eth0", "up"))
        wait_until(lambda: front.state() == "up", RETRY_S + 15)
        assert front.ask("hello.rb") == (200, b"hello\n")
        log = (front.directory / "lab" / "log").read_text()
        assert [log.count(words) for words in (": down, no answer", ": it answers")] == [1, 2], log
