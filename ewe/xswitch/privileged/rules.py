"""The rules for scripts: may a script run, and as which user? They follow Apache's suexec.

    1. A script below a configured root (`roots`) runs as the configured user. Any other script must lie in its
       owner's own directory (~/public_html), and runs as its owner.
    2. Symbolic links are resolved first, so that none can lead out of these directories. Every link on the way must
       belong to the script's owner or to root. Another user's link would run the script in a directory where that
       user has placed files beside it.
    3. No file or directory, from the top directory down to the script, may be writable by anyone but its owner, or
       belong to another user.
    4. Owners with a uid below `min-uid`, and root, are refused. Set-user-id and set-group-id scripts are refused,
       too.

The log has the reason of every refusal. The owner may replace the script while it is examined. examine() notices
that, and begins again. This code runs as root, and users choose the paths: read it with the question what a user
could change between two of its calls (a race between check and use, TOCTOU).
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

from ewe.config.defaults import WEB_INF
from ewe.xswitch.process import Account
from ewe.xswitch.settings import Settings

MAX_FIRST_LINE_BYTES = 200  # bytes of a script's first line that are read to find its interpreter
MAX_EXAMINATIONS = 5  # how often a script is examined if it is replaced meanwhile
MAX_LINKS = 40  # symbolic links on the way to a script: the kernel's own limit (path_resolution(7))
# Parts of a path and of the links on it. Forty links with 2,000 directories each would take suexecme ten seconds.
MAX_PARTS = 1000
NO_FILE_LEFT = errno.EMFILE, errno.ENFILE, errno.ENOMEM  # no file can be opened, whichever it is
WRITABLE_BY_OTHERS = 0o022  # the bits of a mode that let the group or other users write


class Refusal(Exception):
    """A script may not run. reason: for the log only. status: for the client."""

    def __init__(self, reason: str, status: int = 403) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


class Replaced(Exception):
    """Another file has replaced the expected one."""


class ExaminedScript(NamedTuple):
    """A script that may run.

    account: the user that runs it. interpreter: the program on its first line, "" if none; WEB_INF for a web
    application. path: without links, so that only a user who may change the script can change the meaning of
    the path.
    """

    account: Account
    interpreter: str
    path: str


def examine(path: str, settings: Settings) -> ExaminedScript:
    """Return the account, interpreter and path of a script. Raises Refusal: 404 if there is none, else 403 or 500.

    For a web application of Java, the path is that of its WEB-INF directory.
    """
    for _ in range(MAX_EXAMINATIONS):
        try:
            return examine_once(path, settings)
        except (Replaced, FileNotFoundError, NotADirectoryError):
            pass  # it was there when this examination began
    raise Refusal("it is replaced again and again while it is examined", 503)


def examine_once(path: str, settings: Settings) -> ExaminedScript:
    """Examine a script once. Raises Refusal; Replaced if the file changed meanwhile."""
    if not path.startswith("/") or "\0" in path:
        raise Refusal("the path is not absolute")
    try:
        real, links = resolve_links(path)
        status = os.lstat(real)
    except OSError as reason:
        raise Refusal(f"no script: {reason.strerror}", 404) from None
    except UnicodeEncodeError:
        raise Refusal("no script: the path has characters that no file name has", 404) from None
    is_application = stat.S_ISDIR(status.st_mode) and os.path.basename(real) == WEB_INF
    if not stat.S_ISREG(status.st_mode) and not is_application:
        raise Refusal("not a regular file", 404 if stat.S_ISDIR(status.st_mode) else 403)
    root = next((root for root in map(os.path.realpath, settings.roots) if is_inside(real, root)), "")
    account = (
        account_for_site(real, root, settings) if root else account_for_owner(real, status.st_uid, settings)
    )
    interpreter = WEB_INF if is_application else interpreter_of(first_line(real, examined=status))
    script = ExaminedScript(account, interpreter, real)
    for link, uid in links.items():
        if uid not in (0, script.account.uid):
            name = account_of(uid).name
            raise Refusal(
                f"the link {link} to it is {name}'s: only links of {script.account.name} or root may lead to it"
            )
    return script


def resolve_links(path: str) -> tuple[str, dict[str, int]]:
    """Return a path without links, and the links on the way: {link: uid of its owner}. Raises OSError."""
    links: dict[str, int] = {}
    followed_count = 0
    part_count = 0
    real = "/"
    remaining_parts = path.split("/")[::-1]  # the next part comes last
    while remaining_parts:
        part_count += 1
        if part_count > MAX_PARTS:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        name = remaining_parts.pop()
        if name in ("", ".", ".."):
            real = os.path.dirname(real) if name == ".." else real
            continue
        next_path = os.path.join(real, name)
        status = os.lstat(next_path)
        if not stat.S_ISLNK(status.st_mode):
            real = next_path
            continue
        followed_count += 1
        if followed_count > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        links[next_path] = status.st_uid
        target = os.readlink(next_path)
        # A relative target counts from the link's directory, which is `real`
        real = "/" if target.startswith("/") else real
        remaining_parts += target.split("/")[::-1]  # the parts of the target come before the others
    return real, links


def account_for_owner(real: str, uid: int, settings: Settings) -> Account:
    """Return the account of a script that runs as its owner. Raises Refusal.

    real: the path without links. uid: of the owner.
    """
    account = account_of(uid)
    if uid < settings.min_uid and uid != os.geteuid():
        raise Refusal(f"its owner {account.name} has uid {uid}, below min-uid {settings.min_uid}")
    if uid == 0:
        raise Refusal("its owner is root")
    if os.geteuid() not in (0, uid):
        own_name = account_of(os.geteuid()).name
        raise Refusal(
            f"its owner is {account.name}, and this X-Switch runs as {own_name}: only root can become another"
        )
    public = os.path.join(account.home, settings.userdir)
    try:
        # Not realpath(), which has no limit: the owner may put a chain of thousands of links there
        directory, _links = resolve_links(public)
    except (FileNotFoundError, NotADirectoryError):
        directory = public  # which contains no script
    except OSError as reason:
        raise Refusal(f"the directory {public} of its owner {account.name}: {reason.strerror}") from None
    if not is_inside(real, directory):
        raise Refusal(f"it is not inside {directory}, the directory of its owner {account.name}")
    check_path(real, directory, {uid})
    home = os.path.realpath(account.home)
    if os.path.isdir(home) and (mode := os.stat(home).st_mode) & WRITABLE_BY_OTHERS:
        raise Refusal(writable_reason(f"the home directory {home}", home, mode))
    return account


def account_for_site(real: str, root: str, settings: Settings) -> Account:
    """Return the account that runs a script of the site: the configured one. Raises Refusal.

    real: the path without links. root: the configured root above it.
    """
    if os.geteuid() == 0:
        try:
            account = account_of(pwd.getpwnam(settings.runs_scripts).pw_uid)
            owners = {0, account.uid, pwd.getpwnam(settings.user).pw_uid}
        except KeyError:
            raise Refusal(f"user {settings.runs_scripts} does not exist", 500) from None
    else:
        account = account_of(os.geteuid())
        owners = {0, account.uid}
    # owners: the uids to which the script and its directories may belong
    if account.uid == 0:
        raise Refusal("scripts of the site would run as root: set script-user", 500)
    check_path(real, root, owners)
    return account


def account_of(uid: int) -> Account:
    """Return the user with this uid. Raises Refusal if there is none."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise Refusal(f"its owner, uid {uid}, does not exist") from None
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return Account(entry.pw_name, uid, entry.pw_gid, tuple(groups), entry.pw_dir)


def account_for_log(path: str, settings: Settings) -> Account | None:
    """Return the account that gets a refusal in its log: the owner of the path; of a link, the owner of the link.

    Return None for a system account, and if the owner cannot be found.
    """
    try:
        account = account_of(os.lstat(path).st_uid)
    except (OSError, ValueError, Refusal):
        return None
    return account if account.uid >= settings.min_uid else None


def is_inside(path: str, directory: str) -> bool:
    """Return whether a path is below a directory. Both must be without links."""
    return path.startswith(directory.rstrip("/") + "/")


def check_path(real: str, top: str, owners: set[int]) -> None:
    """Raise Refusal if a user outside `owners` may have changed the script or a directory on the way to it.

    real: the script's path without links. top: the highest directory that is checked, above the script.
    """
    path = real
    while True:
        status = os.lstat(path)
        description = "the script" if path == real else f"the directory {path}"
        if status.st_uid not in owners:
            raise Refusal(f"{description} belongs to uid {status.st_uid}")
        if status.st_mode & WRITABLE_BY_OTHERS:
            raise Refusal(writable_reason(description, path, status.st_mode))
        if status.st_mode & (stat.S_ISUID | stat.S_ISGID) and stat.S_ISREG(status.st_mode):
            raise Refusal("the script is set-user-id or set-group-id")
        if path == top:
            return
        path = os.path.dirname(path)


def writable_reason(description: str, path: str, mode: int) -> str:
    """Return the reason to refuse a path that others may write to, and the command that fixes it.

    description: of the file or directory, for people. mode: its st_mode.
    """
    return f"{description} is writable by others (mode {stat.S_IMODE(mode):04o}): chmod go-w {path}"


def first_line(path: str, examined: os.stat_result) -> bytes:
    """Return the first line of the examined file, b"" if it cannot be read. Raises Replaced.

    Raises Refusal if no descriptor is left at the moment: the line may name the script's engine.
    """
    try:
        with open_checked(path, lambda status: file_identity(status) == file_identity(examined)) as file:
            return file.readline(MAX_FIRST_LINE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise Replaced from None
    except OSError as reason:
        if reason.errno in NO_FILE_LEFT:
            raise Refusal(f"its first line cannot be read: {reason.strerror}", 503) from None
        return b""


def open_checked(path: str, is_expected: Callable[[os.stat_result], bool]) -> BinaryIO:
    """Open a user's file if its status is the expected one. Raises Replaced, OSError.

    At any moment the owner may replace the file by a FIFO, a device or a link, or take a lease on it (fcntl(2)). To
    open one of these by name could block without a limit, or could have an effect on a device. The name is
    therefore looked up without opening the file (O_PATH). The expected file is then opened through that descriptor,
    without waiting.
    """
    path_descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not is_expected(os.fstat(path_descriptor)):
            raise Replaced
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return open(os.open(f"/proc/self/fd/{path_descriptor}", flags), "rb")
    finally:
        os.close(path_descriptor)


def file_identity(status: os.stat_result) -> tuple[int, ...]:
    """Return the values that identify a file. The inode alone does not: the kernel reuses it for new files."""
    return status.st_dev, status.st_ino, status.st_mode, status.st_uid


def interpreter_of(line: bytes) -> str:
    """Return the program that a #! line names: "python3" for "#!/usr/bin/env python3"; "" if none."""
    command = line.removeprefix(b"#!").decode("utf-8", "replace") if line.startswith(b"#!") else ""
    words = command.split()
    if words and os.path.basename(words[0]) == "env":  # env(1) runs the program that its first argument names
        words = [word for word in words[1:] if not word.startswith("-")]
    return os.path.basename(words[0]) if words else ""
