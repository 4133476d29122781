"""The subcommands of `ewe-xswitch` for packages: pack, install, remove, packages.

Each account runs them for its own packages. They need no running X-Switch: the files and links that they change are
those that X-Switch finds at the next request (ewe.xswitch.packages).
"""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from ewe.config.command import RaisingParser, UsageError
from ewe.config.messages import Failure
from ewe.logger import UNPRINTABLE_IN_MESSAGE as MESSAGE
from ewe.logger import escaped
from ewe.xswitch.packages import NAME, SCRIPTS, SUFFIXES, BadPackage, Packages, pack
from ewe.xswitch.settings import load

DESCRIPTIONS = {
    "pack": "Write the files of a directory into a package, NAME.zip.",
    "install": "Install a package for this account, or another version of one: new requests go to it at once.",
    "remove": "Remove a package of this account: its application ends.",
    "packages": "List the packages of this account that serve.",
}


def run(name: str, arguments: Sequence[str]) -> int:
    """Run a subcommand; return the exit status. Raises Failure, UsageError, ConfigError."""
    options = parser_of(name).parse_args(arguments)
    try:
        return RUN[name](options)
    except BadPackage as reason:
        raise Failure(escaped(str(reason), MESSAGE)) from None
    except OSError as reason:
        # An error of shutil itself has no strerror
        text = f"{reason.filename}: {reason.strerror}" if reason.strerror else str(reason)
        is_named = reason.filename is not None and reason.filename == vars(options).get("file")
        raise (UsageError if is_named else Failure)(escaped(text, MESSAGE)) from None


def parser_of(name: str) -> RaisingParser:
    """Return the parser of a subcommand."""
    parser = RaisingParser(prog=f"ewe-xswitch {name}", description=DESCRIPTIONS[name])
    if name == "pack":
        parser.add_argument("directory", metavar="DIR", help="the files of the application")
        parser.add_argument("file", metavar="FILE", nargs="?", help="the package [DIR.zip]")
        return parser
    parser.add_argument("--config", metavar="FILE", help="the settings file of X-Switch (packages, userdir)")
    if name == "install":
        parser.add_argument("file", metavar="FILE", help="the package: NAME.zip or NAME.war")
    elif name == "remove":
        parser.add_argument("name", metavar="NAME", help="of the application")
    return parser


def own_packages(options: Namespace) -> Packages:
    """Return the packages of this account. Raises UsageError, ConfigError.

    Set the umask, so that X-Switch may read the new files.
    """
    settings = load(options.config)
    if os.geteuid() == 0:
        raise UsageError(
            "root has no packages: run this as the account that owns them (runuser -u NAME -- ...)"
        )
    if not settings.packages:
        raise UsageError("the setting packages is empty: there is no directory for packages")
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        raise UsageError(f"uid {os.geteuid()} has no account, and no home for packages") from None
    os.umask(0o022)
    return Packages(
        os.path.join(home, settings.packages), os.path.join(home, settings.userdir.strip("/"), SCRIPTS)
    )


def pack_directory(options: Namespace) -> int:
    """Write the files of a directory into a package, and print their number; return the exit status.

    The package replaces its former version only once it is complete. Raises UsageError, BadPackage, OSError.
    """
    directory = os.path.abspath(options.directory)
    target = options.file or f"{directory}.zip"
    if not os.path.isdir(directory):
        raise UsageError(f"{options.directory} is no directory")
    with new_file_beside(target) as new_file:
        count = pack(directory, new_file, former=os.path.abspath(target))
        try:
            os.replace(new_file, target)
        except OSError as reason:
            raise cannot_write(target, reason) from None
    print(f"{target}: {count} files")
    return 0


@contextmanager
def new_file_beside(target: str) -> Iterator[str]:
    """Make a file beside `target`, under a name that no file has; yield its path. At the end, remove it.

    Raises UsageError if the directory takes no file.
    """
    directory, name = os.path.split(os.path.abspath(target))
    try:
        # Begins with a dot: no part of a package of this directory
        descriptor, new_file = tempfile.mkstemp(prefix=f".{name}.", suffix=".new", dir=directory)
    except OSError as reason:
        raise cannot_write(target, reason) from None
    # The new file gets the mode that open(2) would give it. The umask can be read only by setting it
    umask = os.umask(0o077)
    os.umask(umask)
    os.fchmod(descriptor, 0o666 & ~umask)
    os.close(descriptor)
    try:
        yield new_file
    finally:
        with suppress(FileNotFoundError):
            os.unlink(new_file)


def cannot_write(file: str, reason: OSError) -> UsageError:
    """Return the error of a command line that names a file which cannot be written."""
    return UsageError(escaped(f"cannot write {file}: {reason.strerror}", MESSAGE))


def install(options: Namespace) -> int:
    """Install a package: copy it, examine the copy, and only then put it in the place of the former one."""
    packages = own_packages(options)
    name, suffix = os.path.splitext(os.path.basename(options.file))
    if suffix not in SUFFIXES:
        raise UsageError(f"{options.file}: a package is NAME.zip or NAME.war")
    os.makedirs(packages.directory, 0o755, exist_ok=True)
    packages.files()  # raises BadPackage if others may write to the directory
    new_file = os.path.join(packages.directory, f".{name}.new")
    try:
        shutil.copyfile(options.file, new_file)
        with packages.locked():
            try:
                packages.unpack_version(name, new_file)
            except BadPackage as reason:
                raise BadPackage(f"{options.file}: {reason}") from None
        os.replace(new_file, os.path.join(packages.directory, name + suffix))
    finally:
        with suppress(FileNotFoundError):
            os.unlink(new_file)
    # NAME.war replaces NAME.zip, and the other way round
    [other_suffix] = {*SUFFIXES} - {suffix}
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(packages.directory, name + other_suffix))
    return synchronize_and_print(packages, name)


def remove(options: Namespace) -> int:
    """Remove a package, NAME.zip or NAME.war; return the exit status."""
    packages = own_packages(options)
    files = [
        os.path.join(packages.directory, options.name + suffix)
        for suffix in SUFFIXES
        if NAME.fullmatch(options.name)
    ]
    existing = [file for file in files if os.path.lexists(file)]
    if not existing:
        raise Failure(f"{packages.directory}: there is no package {escaped(options.name, MESSAGE)}")
    for file in existing:
        os.unlink(file)
    return synchronize_and_print(packages, options.name)


def synchronize_and_print(packages: Packages, name: str) -> int:
    """Make the links correspond to the files, print each change, and return the exit status."""
    lines = packages.synchronize()
    for line in lines:
        print(escaped(line, MESSAGE))
    # A line about a change begins with "the package"; all others are faults
    faults = [line for line in lines if not line.startswith("the package ")]
    if not lines:
        print(f"the package {name} has not changed")
    return 1 if faults else 0


def list_packages(options: Namespace) -> int:
    """Print each application that serves, with its version and its file; return the exit status."""
    packages = own_packages(options)
    files = packages.files()
    for name, version in sorted(packages.links().items()):
        print(f"{name:<20} {version}  {files.get(name, '(its file is gone: it ends at the next request)')}")
    return 0


RUN: Mapping[str, Callable[[Namespace], int]] = {
    "pack": pack_directory,
    "install": install,
    "remove": remove,
    "packages": list_packages,
}
