"""Packages that users drop into their directories: suexecme notices them, and reads the settings of a package.

At a request for a user's script, and at most once a second for each user, suexecme compares the files in the user's
directory for packages with what it has seen there before. If a file has come, changed or gone, suexecme starts
ewe/xswitch/packages.py as that user. Root itself never opens a package. The process has limits of CPU time, memory
and time, and reports each change in a line, which the main process logs.

The settings of a package that serves are in its package.toml. They may name a language, but no command and no user:
the script's owner decides who runs it, as for all scripts (rules.py).
"""

from __future__ import annotations

import inspect
import math
import os
import signal
import stat
import sys
import time
from itertools import islice
from typing import NamedTuple

from ewe.bounded import BoundedDict, TimedCache
from ewe.config.defaults import WEB_INF
from ewe.xswitch import packages
from ewe.xswitch.packages import SCRIPTS, SETTINGS, VERSIONS, BadPackage, PackageSettings, parse_settings
from ewe.xswitch.privileged.rules import ExaminedScript, Refusal, Replaced, account_of, open_checked
from ewe.xswitch.process import Account, EngineLimits, become, clean_environment, start
from ewe.xswitch.public import is_public
from ewe.xswitch.settings import Settings

CHECK_S = 1.0  # seconds between two looks into the directory of one user
SETTLED_S = 1.0  # seconds for which a file must have been unchanged: until then, a copy may be under way
MAX_SECONDS = 60.0  # that one installation may take
MAX_AT_ONCE = 4  # installations of all users
MAX_USERS = 5000  # whose directories suexecme remembers
MAX_FILES = 200  # of a directory, that suexecme looks at
# Of an installation's report: as many bytes as a pipe holds, and a line for each package that comes or goes
MAX_LINES_BYTES = 64 * 1024
MAX_LINES = 2 * packages.MAX_PACKAGES
# packages.py as text: the user may not be allowed to read the directory of ewe
INSTALLER_SOURCE = inspect.getsource(packages)
INSTALLER_LIMITS = EngineLimits(cpu=60, memory=512 << 20, processes=0, files=64)
OWN_PYTHON = os.path.realpath(sys.executable)


class PackageFile(NamedTuple):
    """A file in a directory for packages. changed_ns: since the epoch. size: in bytes."""

    name: str
    changed_ns: int
    size: int
    inode: int


class Installation(NamedTuple):
    """A running installation.

    reader: the pipe with its lines. ends_at: the monotonic time at which it has taken too long; infinite once it
    was killed for that.
    """

    account: Account
    reader: int
    ends_at: float


class InstallationReport(NamedTuple):
    """The user of an installation that has ended, and its lines for the log."""

    account: Account
    lines: list[str]


class DropIns:
    """The directories for packages of all users."""

    def __init__(self) -> None:
        self.seen_homes: TimedCache[str, bool] = TimedCache(MAX_USERS, CHECK_S)  # looked into within CHECK_S
        self.installed_files: BoundedDict[str, tuple[PackageFile, ...]] = BoundedDict(MAX_USERS)  # by home
        self.running: dict[int, Installation] = {}  # by pid

    def install_changes(self, path: str, settings: Settings) -> None:
        """Start an installation if the packages of the user who has this script have changed. Raises nothing."""
        home = settings.home_in(path)
        if not home or not settings.packages or self.seen_homes.get(home, False):
            return
        self.seen_homes[home] = True
        try:
            account = owner_of(home, settings)
            if account is None or len(self.running) >= MAX_AT_ONCE:
                return
            home = account.home  # a web server may have another name for it
            if home in self.homes():
                return
            directory = os.path.join(home, settings.packages)
            scripts = os.path.join(home, settings.userdir.strip("/"), SCRIPTS)
            files = package_files(directory)
            former_files = self.installed_files.get(home)
            if former_files is None and not files and not os.path.lexists(os.path.join(scripts, VERSIONS)):
                return  # a user without packages: nothing to install or remove
            if files == former_files or any(is_fresh(file.changed_ns) for file in files):
                return
            self.install(account, directory, scripts)
            self.installed_files[home] = files
        except (OSError, ValueError):
            return  # the user has no such directory, or no process could be made: the next look tries again

    def install(self, account: Account, directory: str, scripts: str) -> None:
        """Start an installation as the user. Raises OSError.

        directory: of the package files. scripts: the directory in which the applications appear.
        """
        # This Python may lie where the user may not enter; that of the PATH must then be 3.11 or newer
        python = OWN_PYTHON if is_public(OWN_PYTHON) else "python3"
        # -I: Python imports no module of the user. -S: it imports no installed package
        command = (python, "-I", "-S", "-c", INSTALLER_SOURCE, directory, scripts)
        with open(os.devnull, "rb", buffering=0) as nothing:
            reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                pid = start(
                    command,
                    clean_environment(account),
                    {0: nothing.fileno(), 1: writer, 2: writer},
                    lambda: become(account, INSTALLER_LIMITS),
                )
            except OSError:
                os.close(reader)
                raise
            finally:
                os.close(writer)
        self.running[pid] = Installation(account, reader, time.monotonic() + MAX_SECONDS)

    def next_deadline(self) -> float:
        """Return the monotonic time at which end_late() must kill an installation; infinite: it need not."""
        return min((installation.ends_at for installation in self.running.values()), default=math.inf)

    def end_late(self, now: float) -> None:
        """Kill the installations that take too long, each once. now: the monotonic time."""
        for pid, installation in self.running.items():
            if now >= installation.ends_at:
                os.kill(pid, signal.SIGKILL)
                self.running[pid] = installation._replace(ends_at=math.inf)

    def homes(self) -> set[str]:
        """Return the homes of the users for whom an installation runs."""
        return {installation.account.home for installation in self.running.values()}

    def installing_home(self, path: str, settings: Settings) -> str:
        """Return the home of the user who has this script, if an installation runs for this user; else ""."""
        home = settings.home_in(path)
        homes = self.homes()
        return home if home in homes else next((each for each in homes if is_same_directory(each, home)), "")

    def take_report(self, pid: int, status: int) -> InstallationReport | None:
        """Forget an installation that was reaped, and return its report; None if the process was none."""
        if pid not in self.running:
            return None
        account, reader, _ = self.running.pop(pid)
        try:
            text = os.read(reader, MAX_LINES_BYTES).decode("ascii", "replace")
        except BlockingIOError:
            text = ""
        os.close(reader)
        lines = text.splitlines()[:MAX_LINES]
        if status and not lines:
            lines = [f"{account.home}: its packages could not be read within the limits of memory and time"]
        return InstallationReport(account, lines)


def owner_of(home: str, settings: Settings) -> Account | None:
    """Return the account that owns this home directory; None if no account has it, or if its scripts may not run.

    Raises OSError.
    """
    try:
        account = account_of(os.lstat(home).st_uid)
    except Refusal:
        return None
    # Without root, X-Switch runs only its user's scripts, also below min-uid
    if account.uid == 0 or (account.uid < settings.min_uid and account.uid != os.geteuid()):
        return None
    if os.geteuid() not in (0, account.uid) or not is_same_directory(account.home, home):
        return None
    return account


def is_same_directory(one: str, other: str) -> bool:
    """Return whether two paths lead to one directory: a web server may have another name for a home.

    The kernel looks the paths up, and follows few links (path_resolution(7)). realpath() follows any number: a
    user's chain of thousands of links would keep suexecme from the orders of all users.
    """
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False


def is_fresh(changed_ns: int) -> bool:
    """Return whether a file has changed within SETTLED_S. A time in the future is that of another clock."""
    return 0 <= time.time_ns() - changed_ns < SETTLED_S * 1e9


def package_files(directory: str) -> tuple[PackageFile, ...]:
    """Return the package files in a directory, by name. Links are not followed. Raises OSError."""
    try:
        if not stat.S_ISDIR(os.lstat(directory).st_mode):
            return ()
        files = []
        with os.scandir(directory) as entries:
            for entry in islice(entries, MAX_FILES):
                if entry.name.endswith(packages.SUFFIXES):
                    status = entry.stat(follow_symlinks=False)
                    files.append(PackageFile(entry.name, status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(sorted(files))
    except FileNotFoundError:
        return ()


def settings_for(script: ExaminedScript, settings: Settings) -> PackageSettings:
    """Return the settings of the package that a script belongs to; the defaults if it belongs to none.

    Raises Refusal if URLs may not name the script, or if the settings are no longer valid, or cannot be read.
    """
    # Without the name of the directory above: that may be a link, which the path does not contain any more
    head, separator, rest = script.path.partition(f"/{VERSIONS}/")
    parts = rest.split("/", 2)
    if not separator or len(parts) != 3:
        return PackageSettings()
    name, version, inner = parts
    top = os.path.join(head, VERSIONS, name, version)
    try:
        package = parse_settings(read_settings(os.path.join(top, SETTINGS), script.account.uid))
    except BadPackage as reason:
        raise Refusal(f"{top}: {reason}", 500) from None
    except OSError as reason:  # without its settings, a URL could name any file of the package
        raise Refusal(f"{top}/{SETTINGS}: {reason.strerror}", 503) from None
    if inner == SETTINGS or (package.entry and inner not in package.entry and inner != WEB_INF):
        raise Refusal("no URL may name this file of the package (entry)", 404)
    if package.language and package.language not in settings.engines:
        raise Refusal(f"{top}/{SETTINGS}: there is no engine {package.language[:50]!r} (language)", 500)
    return package


def read_settings(path: str, uid: int) -> bytes:
    """Return the text of a package.toml, b"" if there is none that is a regular file of this owner.

    Raises OSError if it cannot be read.
    """
    try:
        with open_checked(path, lambda each: stat.S_ISREG(each.st_mode) and each.st_uid == uid) as file:
            return file.read(packages.MAX_SETTINGS_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError, Replaced):
        return b""
