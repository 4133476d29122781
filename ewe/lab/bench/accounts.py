"""Accounts for an experiment that no machine keeps: they exist for its processes alone.

    with accounts(directory, 16) as (users, prefix):
        subprocess.run([*prefix, "ewe", ...])

What is started behind the prefix sees an /etc of its own, in a mount namespace: /etc/passwd has more users there,
all else leads to the machine's. Nothing outside sees it, and it vanishes with the last process, however that ends.
(The whole directory, since a mount over the file alone goes when somebody changes an account of the machine: then
another file takes its name.) It takes root: nobody else may become other users.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ewe.lab.processes import LabError, find_tool, one_line

FIRST = 61_001  # the number of the first; Debian gives none of these away
NAMESPACE = ("unshare", "--mount", "--propagation", "private", "sh", "-c")
OVERLAY = 'mount --bind /etc "$0" && mount --bind "$1" /etc && shift && exec "$@"'
TRIED_IN = 10  # seconds


@dataclass(frozen=True)
class User:
    """One of them, with a home directory."""

    name: str
    number: int
    home: Path

    def write(self, name: str, text: str) -> None:
        """Write a program of theirs, below ~/public_html/cgi-bin."""
        directory = self.home / "public_html" / "cgi-bin"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
        for path in (self.home, directory.parent, directory, directory / name):
            os.chown(path, self.number, self.number)
            path.chmod(0o755)


def impossible() -> str:
    """Say why there can be no such accounts here; "" if there can."""
    if os.geteuid():
        return "accounts for the purpose need root: only root may run programs as others"
    if not find_tool("unshare") or not find_tool("mount"):
        return "accounts for the purpose need unshare and mount: apt install util-linux mount"
    command = [*NAMESPACE, "mount --bind /etc /etc"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TRIED_IN)
    if done.returncode:
        return f"no mount namespace can be made here: {one_line(done.stderr)}"
    return ""


def own_etc(own: Path, machine: Path, passwd: str) -> None:
    """Make what is to lie over /etc: this text as passwd, and a way to all else, by where /etc itself will be."""
    own.mkdir()
    for name in set(os.listdir("/etc")) - {"passwd"}:
        (own / name).symlink_to(machine / name)
    (own / "passwd").write_text(passwd)


@contextmanager
def accounts(directory: Path, count: int) -> Iterator[tuple[Sequence[User], list[str]]]:
    """Make so many users; yield them, and what goes before a command. The caller removes the directory.

    Raises LabError.
    """
    if why := impossible():
        raise LabError(why)
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    numbers = range(FIRST, FIRST + count)
    if taken & set(numbers):
        raise LabError(f"the users {FIRST} to {FIRST + count - 1} exist on this machine")
    homes = directory / "homes"
    homes.mkdir(exist_ok=True)
    users = [User(f"lab{number}", number, homes / f"lab{number}") for number in numbers]
    lines = [f"{user.name}:x:{user.number}:{user.number}::{user.home}:/usr/sbin/nologin" for user in users]
    for user in users:
        user.home.mkdir(exist_ok=True)
    # Not within the directory, which is removed with all that is in it: this one is removed only if it is empty.
    machine = Path(tempfile.mkdtemp(prefix="ewe-lab-etc-"))
    try:
        machine.chmod(0o755)
        own_etc(directory / "etc", machine, Path("/etc/passwd").read_text() + "\n".join(lines) + "\n")
        yield users, [*NAMESPACE, OVERLAY, str(machine), str(directory / "etc")]
    finally:
        machine.rmdir()
