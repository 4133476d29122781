"""Four machines on one: network namespaces, with an sshd in each and links like those of a network.

    lab ────┐
    server ─┤ wire.py    each link: 1 Gbit/s, 1 ms and 0.1 % loss each way
    load1 ──┤            each machine but the lab's: an sshd that knows one key, made for the trial
    load2 ──┘

Needs root, /dev/net/tun, iproute2 and openssh-server. Run as a program it makes the
measurement that docs/machines.md shows:

    python packages/ewe-lab/tests/four_machines.py [OPTIONS OF `ewe-lab compare`]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MACHINES = ("lab", "server", "load1", "load2")
NETWORK = "10.213.7"
PORT = 8080
WIRE = Path(__file__).with_name("wire.py")
SSHD = """\
Port 22
ListenAddress {address}
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
"""
SSH = """\
Host *
IdentityFile {directory}/key
IdentitiesOnly yes
UserKnownHostsFile {directory}/known_hosts
StrictHostKeyChecking yes
User root
"""
TRIAL = ("--users", "40", "--time", "5s")
PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


def do(*command: str, check: bool = True) -> None:
    """Run a command of the system."""
    subprocess.run(command, check=check, capture_output=True, env={**os.environ, "PATH": PATH})


def end(started: subprocess.Popen[bytes]) -> None:
    """End a process."""
    started.terminate()
    started.wait(60)


def address(machine: str) -> str:
    """Return the address of a machine."""
    return f"{NETWORK}.{MACHINES.index(machine) + 1}"


class Network:
    """The four machines. ssh: the words of --ssh."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tag = f"ewe{os.getpid()}"
        self.ssh = f"ssh -F {directory}/config"

    def space(self, machine: str) -> str:
        """Return the name of a machine's namespace."""
        return f"{self.tag}-{machine}"

    def on(self, machine: str, *command: str) -> list[str]:
        """Return a command that runs on a machine."""
        return [str(shutil.which("ip", path=PATH)), "netns", "exec", self.space(machine), *command]

    def python(self, machine: str, *words: str) -> list[str]:
        """Return a command of this Python that runs on a machine."""
        return self.on(machine, sys.executable, *words)

    def compare(self, *words: str) -> list[str]:
        """Return the command of a comparison from the lab's machine."""
        known = ("--ssh", self.ssh, "--load-python", sys.executable)
        return self.python("lab", "-m", "ewe_lab.cli", "compare", *known, *words)

    def connect(self, stack: ExitStack) -> None:
        """Make the namespaces and the links."""
        for machine in MACHINES:
            do("ip", "netns", "add", self.space(machine))
            do(*self.on(machine, "ip", "link", "set", "lo", "up"))
        spaces = [self.space(machine) for machine in MACHINES]
        wire = subprocess.Popen([sys.executable, str(WIRE), *spaces], stdout=subprocess.PIPE)
        stack.callback(end, wire)
        assert wire.stdout is not None
        with wire.stdout:
            if wire.stdout.readline() != b"ready\n":
                raise RuntimeError("the switch does not start")
        for machine in MACHINES:
            do(*self.on(machine, "ip", "address", "add", f"{address(machine)}/24", "dev", "eth0"))
            do(*self.on(machine, "ip", "link", "set", "eth0", "up"))

    def disconnect(self) -> None:
        """Remove the namespaces."""
        for machine in MACHINES:
            do("ip", "netns", "delete", self.space(machine), check=False)

    def keys(self) -> None:
        """Make the trial's keys and the settings of ssh and sshd."""
        for name in ("key", "host_key"):
            do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.directory / name))
        public = (self.directory / "host_key.pub").read_text().split()[:2]
        known = [f"{address(machine)} {' '.join(public)}\n" for machine in MACHINES]
        (self.directory / "known_hosts").write_text("".join(known))
        (self.directory / "config").write_text(SSH.format(directory=self.directory))
        for machine in MACHINES:
            text = SSHD.format(directory=self.directory, address=address(machine))
            (self.directory / f"sshd-{machine}").write_text(text)

    @contextmanager
    def running(self, machine: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command on a machine during the block."""
        with (self.directory / "output").open("ab") as output:
            started = subprocess.Popen(
                self.on(machine, *command), stdout=output, stderr=output, env={**os.environ, "PATH": PATH}
            )
        try:
            yield started
        finally:
            end(started)

    def pids(self, machine: str) -> list[int]:
        """Return the processes of a machine."""
        done = subprocess.run(
            [str(shutil.which("ip", path=PATH)), "netns", "pids", self.space(machine)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return [int(word) for word in done.stdout.split()]

    def wait_for(self, machine: str, port: int) -> None:
        """Wait until a process listens at a port of a machine."""
        for _ in range(200):
            if subprocess.run(
                self.on("lab", "bash", "-c", f"exec 3<>/dev/tcp/{address(machine)}/{port}"),
                capture_output=True, check=False,
            ).returncode == 0:  # fmt: skip
                return
            time.sleep(0.05)
        raise RuntimeError(f"nothing listens on {machine}: {(self.directory / 'output').read_text()[-500:]}")


@contextmanager
def four_machines() -> Iterator[Network]:
    """Make the network for a block, with an sshd on each machine but the lab's, and ewe on `server`."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="ewe-machines-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        network = Network(directory)
        Path("/run/sshd").mkdir(exist_ok=True)
        network.keys()
        stack.callback(network.disconnect)
        network.connect(stack)
        for machine in MACHINES[1:]:
            sshd = str(shutil.which("sshd", path=PATH))
            stack.enter_context(
                network.running(machine, sshd, "-D", "-e", "-f", f"{directory}/sshd-{machine}")
            )
        stack.enter_context(
            network.running(
                "server", sys.executable, "-m", "ewe", "-a", "--host", address("server"), "--port", str(PORT),
                "--documentroot", str(ROOT / "htdocs"), "--access-log", "off",
            )
        )  # fmt: skip
        network.wait_for("server", PORT)
        for machine in MACHINES[1:]:
            network.wait_for(machine, 22)
        yield network


def main() -> int:
    """Measure from two machines, and print; return the exit status."""
    with four_machines() as network:
        load = f"{address('load1')},{address('load2')}"
        url = f"http://{address('server')}:{PORT}/"
        return subprocess.run(
            network.compare("--target", url, "--load-from", load, *(sys.argv[1:] or TRIAL)), check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
