"""May this script run, and as whom? In the spirit of Apache's suexec: every refusal has a name for the log.

A script runs as its owner if it lies in the owner's own directory (~/public_html); one below a configured root
runs as the configured user. Links are resolved first, so none can lead out of either, and each must be the
owner's or root's: nobody leads others to a script by a way that its owner does not know of, since there it
would find another's files beside it. Nothing on the way, from that directory down to the file, may be writable by
anybody but the owner.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from typing import NamedTuple

from ewe.xswitch.process import Account
from ewe.xswitch.settings import Settings
from ewe.xswitch.webapp import WEB_INF

MAX_FIRST_LINE = 200  # bytes
MAX_LINKS = 40  # on the way to a script, as the kernel has it
WRITABLE = 0o022  # by group or others


class Refusal(Exception):
    """A script that will not run. reason: for the log only. status: for the client."""

    def __init__(self, reason: str, status: int = 403) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


class Script(NamedTuple):
    """A script that may run, and as whom. interpreter: the program that its first line names, "" if none.

    path: without links, so that nobody but who may change the script can lead it elsewhere.
    """

    account: Account
    interpreter: str
    path: str


def examine(path: str, settings: Settings) -> Script:
    """Return whose script this is. Raises Refusal: 404 where there is none, else 403 or 500.

    For a web application of Java the script is its WEB-INF, by its path without links.
    """
    if not path.startswith("/") or "\0" in path:
        raise Refusal("the path is not absolute")
    try:
        real, links = resolve(path)
        status = os.lstat(real)
    except OSError as reason:
        raise Refusal(f"no script: {reason.strerror}", 404) from None
    application = stat.S_ISDIR(status.st_mode) and os.path.basename(real) == WEB_INF
    if not stat.S_ISREG(status.st_mode) and not application:
        raise Refusal("not a regular file", 404 if stat.S_ISDIR(status.st_mode) else 403)
    root = next((root for root in map(os.path.realpath, settings.roots) if inside(real, root)), "")
    script = for_site(real, root, settings) if root else for_owner(real, status.st_uid, settings)
    for link, uid in links.items():
        if uid not in (0, script.account.uid):
            name = account_of(uid).name
            raise Refusal(
                f"the link {link} to it is {name}'s: links of {script.account.name}'s or root's may lead here"
            )
    return script


def resolve(path: str) -> tuple[str, dict[str, int]]:
    """Return a path without links, and the links that led there: path -> owner. Raises OSError."""
    links: dict[str, int] = {}
    followed = 0
    real = "/"
    rest = path.split("/")[::-1]
    while rest:
        name = rest.pop()
        if name in ("", ".", ".."):
            real = os.path.dirname(real) if name == ".." else real
            continue
        at = os.path.join(real, name)
        status = os.lstat(at)
        if not stat.S_ISLNK(status.st_mode):
            real = at
            continue
        followed += 1
        if followed > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        links[at] = status.st_uid
        target = os.readlink(at)
        real = "/" if target.startswith("/") else real
        rest += target.split("/")[::-1]
    return real, links


def for_owner(real: str, uid: int, settings: Settings) -> Script:
    """Return the script that runs as its owner. Raises Refusal."""
    account = account_of(uid)
    if uid < settings.min_uid and uid != os.geteuid():
        raise Refusal(f"its owner {account.name} has uid {uid}, below min-uid {settings.min_uid}")
    if uid == 0:
        raise Refusal("its owner is root")
    if os.geteuid() not in (0, uid):
        mine = account_of(os.geteuid()).name
        raise Refusal(
            f"its owner is {account.name}, and this X-Switch runs as {mine}: only root can become another"
        )
    directory = os.path.realpath(os.path.join(account.home, settings.userdir))
    if not inside(real, directory):
        raise Refusal(f"it is not inside {directory}, the directory of its owner {account.name}")
    check_way(real, directory, {uid})
    home = os.path.realpath(account.home)
    if os.path.isdir(home) and os.stat(home).st_mode & WRITABLE:
        raise Refusal(writable(f"the home directory {home}", home))
    return Script(account, first_line(real), real)


def for_site(real: str, root: str, settings: Settings) -> Script:
    """Return the script of the site itself, which runs as the configured user. Raises Refusal."""
    if os.geteuid() == 0:
        try:
            entry = pwd.getpwnam(settings.user)
        except KeyError:
            raise Refusal(f"user {settings.user} does not exist", 500) from None
        account = account_of(entry.pw_uid)
    else:
        account = account_of(os.geteuid())
    if account.uid == 0:
        raise Refusal("scripts of the site would run as root: set user", 500)
    check_way(real, root, {0, account.uid})
    return Script(account, first_line(real), real)


def account_of(uid: int) -> Account:
    """Return the user of a number. Raises Refusal if there is none."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise Refusal(f"its owner, uid {uid}, does not exist") from None
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return Account(entry.pw_name, uid, entry.pw_gid, tuple(groups), entry.pw_dir)


def owner_of(path: str, settings: Settings) -> Account | None:
    """Return who may want to know that this was refused: of a link whose it is, None where it is the system's."""
    try:
        account = account_of(os.lstat(path).st_uid)
    except (OSError, ValueError, Refusal):
        return None
    return account if account.uid >= settings.min_uid else None


def inside(path: str, directory: str) -> bool:
    """Is a path below a directory? Both without links."""
    return path.startswith(directory.rstrip("/") + "/")


def check_way(real: str, top: str, owners: set[int]) -> None:
    """Raise Refusal where another may have put something between the top directory and the file."""
    at = real
    while True:
        status = os.lstat(at)
        what = "the script" if at == real else f"the directory {at}"
        if status.st_uid not in owners:
            raise Refusal(f"{what} belongs to uid {status.st_uid}")
        if status.st_mode & WRITABLE:
            raise Refusal(writable(what, at))
        if status.st_mode & (stat.S_ISUID | stat.S_ISGID) and stat.S_ISREG(status.st_mode):
            raise Refusal("the script is set-user-id or set-group-id")
        if at == top:
            return
        at = os.path.dirname(at)


def writable(what: str, path: str) -> str:
    """Return what is wrong where others than its owner may write, and what to do."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    return f"{what} is writable by others (mode {mode:04o}): chmod go-w {path}"


def first_line(path: str) -> str:
    """Return the name of the program that a #! line names: "python3" for "#!/usr/bin/env python3".

    For a web application, WEB-INF.
    """
    if os.path.isdir(path):
        return WEB_INF
    try:
        with open(path, "rb") as file:
            line = file.readline(MAX_FIRST_LINE)
    except OSError:
        return ""
    words = line[2:].decode("utf-8", "replace").split() if line.startswith(b"#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    return os.path.basename(words[0]) if words else ""
