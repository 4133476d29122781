"""Temporary accounts for an experiment: they exist only for the processes of the experiment.

    with accounts(directory, 16) as (users, prefix):
        subprocess.run([*prefix, "ewe", ...])

A command behind the prefix runs in a mount namespace with its own /etc. There /etc/passwd has more users; all
other names are links to the machine's /etc. Other processes do not see this /etc, and the kernel removes the
namespace with its last process. (The whole directory is mounted, because a mount over /etc/passwd alone would be
lost when the machine's file is replaced.) Temporary accounts need root: only root may change to other users.
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
from typing import NamedTuple

from ewe_lab.bench.processes import LabError, find_tool, last_line

FIRST_UID = 61_001  # the uid of the first account; Debian assigns no uid of this range
IN_MOUNT_NAMESPACE = ("unshare", "--mount", "--propagation", "private", "sh", "-c")
# $0: a directory for the machine's /etc; $1: the new /etc; then the words of the command
BIND_ETC_AND_RUN = 'mount --bind /etc "$0" && mount --bind "$1" /etc && shift && exec "$@"'
TRIAL_TIMEOUT_S = 10  # seconds


@dataclass(frozen=True)
class TemporaryUser:
    """A temporary account with a home directory. Its gid is the same number as its uid."""

    name: str
    uid: int
    home: Path

    def write_program(self, name: str, text: str) -> None:
        """Write an executable file into ~/public_html/cgi-bin. File and directories belong to this user."""
        directory = self.home / "public_html" / "cgi-bin"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
        for path in (self.home, directory.parent, directory, directory / name):
            os.chown(path, self.uid, self.uid)
            path.chmod(0o755)


class TemporaryAccounts(NamedTuple):
    """The temporary accounts of an experiment. command_prefix: the words before a command that has to see them."""

    users: Sequence[TemporaryUser]
    command_prefix: list[str]


def why_impossible() -> str:
    """Return why temporary accounts are impossible here, "" if they are possible."""
    if os.geteuid():
        return "the accounts of this experiment need root: only root may run programs as other accounts"
    if not find_tool("unshare") or not find_tool("mount"):
        return "the accounts of this experiment need unshare and mount: apt install util-linux mount"
    command = [*IN_MOUNT_NAMESPACE, "mount --bind /etc /etc"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TRIAL_TIMEOUT_S)
    if done.returncode:
        return f"no mount namespace can be made here: {last_line(done.stderr)}"
    return ""


def make_etc(directory: Path, machine_etc: Path, passwd: str) -> None:
    """Make the directory to mount over /etc: `passwd` as a file, links into `machine_etc` for all other names.

    machine_etc: where the machine's own /etc is mounted, since /etc itself will be covered.
    """
    directory.mkdir()
    for name in set(os.listdir("/etc")) - {"passwd"}:
        (directory / name).symlink_to(machine_etc / name)
    (directory / "passwd").write_text(passwd)


@contextmanager
def accounts(directory: Path, count: int) -> Iterator[TemporaryAccounts]:
    """Make `count` accounts; yield them.

    The caller removes the directory. Raises LabError if temporary accounts are impossible here.
    """
    if why := why_impossible():
        raise LabError(why)
    used_uids = {entry.pw_uid for entry in pwd.getpwall()}
    uids = range(FIRST_UID, FIRST_UID + count)
    if used_uids & set(uids):
        raise LabError(f"the users {FIRST_UID} to {FIRST_UID + count - 1} exist on this machine")
    homes = directory / "homes"
    homes.mkdir(exist_ok=True)
    users = [TemporaryUser(f"lab{uid}", uid, homes / f"lab{uid}") for uid in uids]
    lines = [f"{user.name}:x:{user.uid}:{user.uid}::{user.home}:/usr/sbin/nologin" for user in users]
    for user in users:
        user.home.mkdir(exist_ok=True)
    # The machine's /etc is mounted here. This directory is not inside `directory`, because the caller deletes the
    # contents of `directory`. rmdir() cannot delete a file of the machine.
    machine_etc = Path(tempfile.mkdtemp(prefix="ewe-lab-etc-"))
    try:
        machine_etc.chmod(0o755)
        make_etc(directory / "etc", machine_etc, Path("/etc/passwd").read_text() + "\n".join(lines) + "\n")
        prefix = [*IN_MOUNT_NAMESPACE, BIND_ETC_AND_RUN, str(machine_etc), str(directory / "etc")]
        yield TemporaryAccounts(users, prefix)
    finally:
        machine_etc.rmdir()
