"""Access checks: find the files that the workers' account may not read, at the start and for `--check-config`.

If root starts ewe with `user`, ewe gives up root. Some files that root can read may then be closed to the account:
a document root that was made with `umask 077`, or a Python below a home directory that only its owner may enter
(~/.pyenv, pipx). ewe loads its own modules before (run.load_late_modules()). An application may import modules at
any time, and a program's first line names an interpreter that starts as the account.

Only the kernel can decide whether an account may read a file: modes, groups, access control lists and capabilities
count. Root therefore forks, becomes the account in the child, and tries.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from ewe.child_processes import how_ended, keep_exit_statuses
from ewe.config.feature_table import directories, features
from ewe.gateway.scripts import account_name, closed_directory, fault_of
from ewe.log_files import STANDARD_ERROR, names_file, open_log
from ewe.server.privileges import become, look_up
from ewe.streams.listener import StartError

if TYPE_CHECKING:
    from ewe.config.settings import Config

MAX_PROGRAMS = 1000  # files of one directory whose first lines are read
EWE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def call_as_account(user: str | None, group: str | None, question: Callable[[], list[str]]) -> list[str]:
    """Call `question` as another account, and return its result. Without root, call it as the present account.

    Raises StartError if the account does not exist, if the system refuses a process, or if `question` raises an
    exception in the other account.
    """
    if os.geteuid() != 0 or (user is None and group is None):
        return question()
    look_up(user, group)
    keep_exit_statuses()
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError as reason:
        os.close(reader)
        os.close(writer)
        raise StartError(
            f"cannot fork for the checks as the account: {reason.strerror} (user, group)"
        ) from None
    if pid == 0:
        status = 1
        try:
            with open(writer, "wb") as answer:
                try:
                    become(user, group)
                    text = "\0".join(question())
                    status = 0
                except BaseException as reason:  # SystemExit, too: a module may raise it when it is imported
                    text = f"{type(reason).__name__}: {reason}".partition("\n")[0]
                answer.write(text.encode(errors="surrogateescape"))
        except BaseException:
            status = 1  # an incomplete answer
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader, "rb") as answer:
        text = answer.read().decode(errors="surrogateescape")
    _, status = os.waitpid(pid, 0)
    if status != 0:
        name = f"user {user}" if user is not None else f"group {group}"
        why = text or how_ended(os.waitstatus_to_exitcode(status))
        raise StartError(f"the checks as {name} failed: {why}")
    return text.split("\0") if text else []


def closed_directory_warnings(config: Config) -> list[str]:
    """Return one line for each directory that this process may not read, and that a site or an application needs.

    These are the document root of each site, and the directories of its features. They are Python's directories,
    too, if `reload` is on, or if a feature imports modules after the start (Feature.imports_later).
    """
    lines: list[str] = []
    for site_config in config.each_site():
        lines += directory_warnings(site_config.documentroot, "every answer is 403", "documentroot")
        for needed in directories(site_config):
            lines += directory_warnings(needed.path, needed.effect, needed.setting)
    if config.reload or any(
        each.imports_later for site_config in config.each_site() for each in features(site_config)
    ):
        lines += closed_python_warnings()
    return list(dict.fromkeys(lines))


def closed_python_warnings() -> list[str]:
    """Return one line for each directory of Python, of ewe or of a package that this process may not read."""
    what = "an application cannot import more of Python and its packages after the start"
    lines = [
        line
        for each in (EWE, os.path.dirname(os.__file__), *sys.path)
        for line in directory_warnings(each, what, "user")
    ]
    return list(dict.fromkeys(lines))


def closed_python(user: str | None, group: str | None) -> list[str]:
    """Return closed_python_warnings() of the account that root will become; [] if the workers keep this account.

    Raises StartError if the account does not exist.
    """
    if os.geteuid() != 0 or (user is None and group is None):
        return []
    return call_as_account(user, group, closed_python_warnings)


def log_rotation_warnings(config: Config, rotates_as_root: bool = False) -> list[str]:
    """Return one line for each log that this process could not open again after a rotation (USR1).

    rotates_as_root: an X-Switch process, which stays root, creates the new files before the workers open them.
    """
    files = [("logfile", config.logfile)]
    files += [("access-log", site_config.access_log) for site_config in config.each_site()]
    lines = []
    for setting, path in files:
        if path.startswith("syslog:"):
            try:
                open_log(path, STANDARD_ERROR).close()
            except PermissionError as error:
                lines.append(f"{account_name()}: {error.strerror} ({setting})")
            except OSError:
                pass  # the start fails for this reason, and --check-config reports it
        directory = os.path.dirname(os.path.abspath(path))
        if not names_file(path) or (os.path.exists(path) and not os.path.isfile(path)):
            continue
        if os.path.exists(path) and not os.access(path, os.W_OK, effective_ids=True):
            lines.append(
                f"{account_name()} may not write {path}, so USR1 cannot open it again: change its owner ({setting})"
            )
        elif not rotates_as_root and not may_make_files(directory):
            lines.append(
                f"{account_name()} may not make files in {directory}, so a rotation of {path} must make the new"
                f" file (logrotate: create), or change the owner of the directory ({setting})"
            )
    return list(dict.fromkeys(lines))


def may_make_files(directory: str) -> bool:
    """Return whether this process may create files in a directory; True if the directory does not exist."""
    return not os.path.isdir(directory) or os.access(directory, os.W_OK | os.X_OK, effective_ids=True)


def program_warnings(config: Config) -> Iterator[str]:
    """Yield one line, with the reason, for each program of the sites that this process could not start."""
    found = (each for site_config in config.each_site() for each in directories(site_config) if each.starts)
    for directory in dict.fromkeys(found):
        try:
            with os.scandir(directory.path) as entries:
                files = [each.path for each in islice(entries, MAX_PROGRAMS) if os.access(each.path, os.X_OK)]
        except OSError:
            continue
        for file in sorted(files):
            if os.path.isfile(file) and (fault := fault_of(file)):
                yield f"{fault} ({directory.setting})"


def directory_warnings(path: str, effect: str, setting: str) -> list[str]:
    """Return one line if this process may not read a directory: the closed directory, the effect and the remedy.

    effect: the consequence, as a part of the line. setting: the setting that names the directory.
    """
    path = os.path.realpath(path)
    if closed := closed_directory(path):
        return [f"{account_name()} may not enter {closed}, so {effect}: chmod a+x {closed} ({setting})"]
    if os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK, effective_ids=True):
        return [f"{account_name()} may not read {path}, so {effect}: chmod a+rx {path} ({setting})"]
    return []
