"""Accounts for an experiment that no machine keeps: they exist for its processes alone.

    with accounts(directory, 16) as (users, prefix):
        subprocess.run([*prefix, "ewe", ...])

What is started behind the prefix sees an /etc/passwd with more users, which lies over the machine's own in a mount
namespace of its own. Nothing outside sees it, and it vanishes with the last process, however that ends. It takes
root: nobody else may become other users.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ewe.lab.processes import LabError, find_tool, one_line

FIRST = 61_001  # the number of the first; Debian gives none of these away
OVERLAY = 'mount --bind "$0" /etc/passwd && exec "$@"'
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
    done = subprocess.run(
        [*prefix_of("/etc/passwd"), "true"], capture_output=True, text=True, timeout=TRIED_IN
    )
    if done.returncode:
        return f"no mount namespace can be made here: {one_line(done.stderr)}"
    return ""


def prefix_of(passwd: str) -> list[str]:
    """Return the words before a command that is to see this file as /etc/passwd."""
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", OVERLAY, passwd]


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
    passwd = directory / "passwd"
    passwd.write_text(Path("/etc/passwd").read_text() + "\n".join(lines) + "\n")
    for user in users:
        user.home.mkdir(exist_ok=True)
    yield users, prefix_of(str(passwd))
