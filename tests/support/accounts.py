"""Accounts made for a test, each with a public_html: only root can make them."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import needs
from support.proc import alive


class User:
    """An account, with a public_html."""

    def __init__(self, name: str, home: Path) -> None:
        self.name = name
        subprocess.run(
            ["useradd", "--home-dir", str(home), "--shell", "/usr/sbin/nologin", "--user-group", name],
            check=True,
        )
        entry = pwd.getpwnam(name)
        self.uid, self.gid = entry.pw_uid, entry.pw_gid
        self.home = home
        self.public = home / "public_html"
        self.public.mkdir(parents=True)
        for directory, mode in ((home, 0o711), (self.public, 0o755)):
            directory.chmod(mode)
            os.chown(directory, self.uid, self.gid)

    def write(self, name: str, text: str, mode: int = 0o700) -> Path:
        """Write a file of hers below public_html, or elsewhere in her home with "../"."""
        path = self.public / name
        if not path.parent.exists():
            path.parent.mkdir(mode=0o755)
            os.chown(path.parent, self.uid, self.gid)
        path.write_text(text)
        os.chown(path, self.uid, self.gid)
        path.chmod(mode)
        return path

    def processes(self) -> set[int]:
        """Return the processes that run as this user."""
        found = set()
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and os.stat(f"/proc/{entry}").st_uid == self.uid:
                    found.add(int(entry))
            except OSError:
                pass
        return alive(found)


@contextmanager
def two_users() -> Iterator[tuple[User, User]]:
    """Make the accounts alice and bob, which only root can; remove them at the end."""
    needs.require("root")
    base = Path(tempfile.mkdtemp(prefix="test-users-"))
    base.chmod(0o755)
    made = [f"ewe-{name}-{os.getpid()}" for name in ("alice", "bob")]
    try:
        alice, bob = (User(name, base / name) for name in made)
        yield alice, bob
        assert not alice.processes() | bob.processes()
    finally:
        for name in made:
            subprocess.run(["userdel", name], check=False, capture_output=True)
        shutil.rmtree(base)
