"""Packages: an application and its settings in one file, NAME.zip or NAME.war.

A package lies in its owner's directory for packages (~/xswitch-packages). Its version is a hash of the file:

    ~/xswitch-packages/shop.zip                            the package
    ~/public_html/cgi-bin/.packages/shop/3f0c.../          a version of it, unpacked
    ~/public_html/cgi-bin/shop -> .packages/shop/3f0c...   the version that serves

synchronize() makes the links correspond to the files. A new version is unpacked beside the old one. One rename(2)
then replaces the link, so each request finds one version or the other. X-Switch resolves the link when it
identifies a script: a request that has begun stays in its version, whose files remain. A package that cannot be
used changes nothing: the old version continues to serve.

All of this runs as the owner: in the command `ewe-xswitch install`, or in a process that suexecme starts when a
file has changed (ewe.xswitch.privileged.drop_ins). That process runs this file as a program, so this file
imports nothing of ewe. A harmful archive could therefore do no more than its owner can. It is still refused as
a whole, with one line that names the file and the reason, if a name in it leads outside, or if it has links,
devices, bits such as set-user-id, or more than MAX_FILES files or MAX_UNPACKED_BYTES.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import re
import shutil
import stat
import sys
import tempfile
import time
import tomllib
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, NamedTuple

VERSIONS = ".packages"  # the directory of all versions, beside the links
SETTINGS = "package.toml"  # the settings in a package
SUFFIXES = (".zip", ".war")
SCRIPTS = "cgi-bin"  # the directory of the links, in the owner's directory of scripts
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
# The first words of CGI's variables, and of X-Switch's: a package cannot change the request
RESERVED = {
    "AUTH", "CONTENT", "DOCUMENT", "GATEWAY", "HTTP", "HTTPS", "PATH", "QUERY", "REDIRECT", "REMOTE", "REQUEST",
    "SCRIPT", "SERVER", "XSWITCH",
}  # fmt: skip
MAX_PACKAGES = 100  # in one directory
MAX_FILES = 10_000  # in one package
# In the path of a file. shutil.rmtree() opens a descriptor for each level, and an installation may have 64.
MAX_PARTS = 50
MAX_PACKED_BYTES = MAX_UNPACKED_BYTES = 256 << 20
MAX_SETTINGS_BYTES = 16_384
# In the settings. The time of the TOML parser grows with the square of the dots in keys, and suexecme parses them.
MAX_DOTS = 400
MAX_VARIABLES = 100
CHUNK_BYTES = 1 << 20
KEEP_S = 600.0  # seconds in which a replaced version stays for the requests that run in it
KEEP_VERSIONS = 2  # that stay for longer: the one that serves, and the one before it
NEW_PREFIX = ".new-"  # begins the name of the directory into which a version is being unpacked
WRITABLE = 0o022  # by group or others
SPECIAL = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX
ENCRYPTED = 1  # the bit of an entry's flags
# zipfile unpacks only these piece by piece: with bzip2, one read of 50 bytes may give 20 MB
COMPRESSIONS = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
UNIX_MODE_SHIFT = 16  # of an entry's external attributes: the mode is 0 if the archive was not made on Unix


class BadPackage(Exception):
    """A package cannot be used. The text is the reason."""


class PackageSettings(NamedTuple):
    """The settings of a package, from its package.toml.

    language: the engine for all its scripts; "": each script's own. entry: the files that URLs may name; none: all.
    user: the only account that may install it; "": each. environment: variables of its scripts.
    """

    language: str = ""
    version: str = ""
    user: str = ""
    entry: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}


def parse_settings(data: bytes) -> PackageSettings:
    """Return the settings that the text of a package.toml has. Raises BadPackage."""
    if len(data) > MAX_SETTINGS_BYTES:
        raise BadPackage(f"{SETTINGS} is longer than {MAX_SETTINGS_BYTES} bytes")
    if data.count(b".") > MAX_DOTS:
        raise BadPackage(f"{SETTINGS} has more than {MAX_DOTS} dots")
    try:
        table = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as reason:
        raise BadPackage(f"{SETTINGS}: {str(reason)[:200] or 'it is no TOML'}") from None
    if unknown := table.keys() - set(PackageSettings._fields):
        raise BadPackage(f"{SETTINGS}: unknown setting {sorted(unknown)[0][:50]!r}")
    texts = {name: table.get(name, "") for name in ("language", "version", "user")}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise BadPackage(f"{SETTINGS}: {name} is no text")
    entry = table.get("entry", [])
    if not isinstance(entry, list) or not all(isinstance(each, str) for each in entry):
        raise BadPackage(f"{SETTINGS}: entry is no list of files")
    return PackageSettings(
        **texts, entry=tuple(entry), environment=checked_variables(table.get("environment", {}))
    )


def checked_variables(table: Any) -> dict[str, str]:
    """Return the table `environment`. Raises BadPackage."""
    if not isinstance(table, dict) or len(table) > MAX_VARIABLES:
        raise BadPackage(f"{SETTINGS}: environment is no table of at most {MAX_VARIABLES} variables")
    for name, value in table.items():
        if not VARIABLE.fullmatch(name) or name.partition("_")[0] in RESERVED:
            raise BadPackage(f"{SETTINGS}: {name[:50]!r} is no name of a variable for a package")
        if not isinstance(value, str) or "\0" in value:
            raise BadPackage(f"{SETTINGS}: the variable {name} is no text")
    return dict(table)


# Unpacking


def unpack(file: IO[bytes], directory: str) -> None:
    """Unpack a package into a new, empty directory, and check its settings. Raises BadPackage, OSError."""
    bytes_left = MAX_UNPACKED_BYTES
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if len(entries) > MAX_FILES:
                raise BadPackage(f"it has more than {MAX_FILES} files")
            for entry in entries:
                name = checked_name(entry)
                path = os.path.join(directory, name)
                if entry.is_dir():
                    os.makedirs(path, 0o755, exist_ok=True)
                    continue
                os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
                with archive.open(entry) as packed:
                    bytes_left -= unpack_file(packed, path, entry, bytes_left)
    except (zipfile.BadZipFile, zlib.error, EOFError) as reason:
        raise BadPackage(f"it is no whole zip file: {str(reason)[:200]}") from None
    # Of zipfile: an unknown version, malformed fields of an entry, sizes beyond memory
    except (RuntimeError, ValueError, MemoryError) as reason:
        raise BadPackage(f"it cannot be unpacked: {str(reason)[:200] or type(reason).__name__}") from None
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as reason:
        name = os.path.relpath(str(reason.filename), directory)
        raise BadPackage(f"two of its files have the name {name[:200]!r}") from None
    check_settings(settings_in(directory), directory)


def settings_in(directory: str) -> PackageSettings:
    """Return the settings of an unpacked package. Raises BadPackage, OSError."""
    try:
        with open(os.path.join(directory, SETTINGS), "rb") as text:
            return parse_settings(text.read(MAX_SETTINGS_BYTES + 1))  # + 1: shows that it is too long
    except FileNotFoundError:
        return PackageSettings()


def checked_name(entry: zipfile.ZipInfo) -> str:
    """Return the path of an entry within the package. Raises BadPackage for an entry that may not be unpacked."""
    name = entry.orig_filename  # the name in the archive: ZipFile ends `filename` at a NUL
    shown = repr(name[:200])
    parts = name.removesuffix("/").split("/")
    if "\\" in name or not name.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise BadPackage(f"the name {shown} leads outside, or is no name of a file")
    if len(parts) > MAX_PARTS:
        raise BadPackage(f"the path {shown} has more than {MAX_PARTS} parts")
    mode = entry.external_attr >> UNIX_MODE_SHIFT
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BadPackage(f"{shown} is a link, a device or another special file")
    if mode & SPECIAL:
        raise BadPackage(f"{shown} is set-user-id, set-group-id or sticky")
    if entry.flag_bits & ENCRYPTED:
        raise BadPackage(f"{shown} is encrypted")
    if entry.compress_type not in COMPRESSIONS:
        raise BadPackage(f"{shown} is compressed by another method than deflate")
    return name.removesuffix("/")


def unpack_file(packed: IO[bytes], path: str, entry: zipfile.ZipInfo, bytes_left: int) -> int:
    """Write one file; return its size. bytes_left: that it may have. Raises BadPackage, OSError.

    The size in the archive may be false: the bytes that come are counted.
    """
    data = packed.read(CHUNK_BYTES)
    mode = entry.external_attr >> UNIX_MODE_SHIFT
    if mode:
        mode = mode & 0o755 | 0o600
    else:
        mode = 0o755 if data.startswith(b"#!") else 0o644
    size = 0
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
        while data:
            size += len(data)
            if size > bytes_left:
                raise BadPackage(f"it has more than {MAX_UNPACKED_BYTES >> 20} MB unpacked")
            file.write(data)
            data = packed.read(CHUNK_BYTES)
    return size


def check_settings(settings: PackageSettings, directory: str) -> None:
    """Raise BadPackage if the settings of a package do not fit its files or this account."""
    own_name = pwd.getpwuid(os.geteuid()).pw_name
    if settings.user not in ("", own_name):
        raise BadPackage(f"{SETTINGS}: it is for the user {settings.user[:50]!r}, and this is {own_name}")
    for name in settings.entry:
        # Of an absolute path, join() would drop the directory
        leads_outside = os.path.isabs(name) or os.path.normpath(name) != name or name.split("/")[0] == ".."
        if leads_outside or not os.path.isfile(os.path.join(directory, name)):
            raise BadPackage(f"{SETTINGS}: its entry {name[:200]!r} is no file in it")


# Versions


class Packages:
    """The packages of this account."""

    def __init__(self, directory: str, scripts: str) -> None:
        """directory: of the package files. scripts: the directory for the links, such as ~/public_html/cgi-bin."""
        self.directory = directory
        self.scripts = scripts
        self.versions = os.path.join(scripts, VERSIONS)

    def files(self) -> dict[str, str]:
        """Return the package files: {name of the application: path}. Raises BadPackage, OSError."""
        try:
            status = os.lstat(self.directory)
        except FileNotFoundError:
            return {}
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise BadPackage("it is no directory of this account")
        if status.st_mode & WRITABLE:
            raise BadPackage(f"it is writable by others: chmod go-w {self.directory}")
        paths: dict[str, str] = {}
        for each in sorted(os.listdir(self.directory)):
            name, suffix = os.path.splitext(each)
            if suffix in SUFFIXES and not each.startswith("."):
                paths.setdefault(name, os.path.join(self.directory, each))
        if len(paths) > MAX_PACKAGES:
            raise BadPackage(f"it has more than {MAX_PACKAGES} packages")
        return paths

    def synchronize(self) -> list[str]:
        """Install what is new, and remove what is gone; return a line for each change and each bad package."""
        lines: list[str] = []
        try:
            files = self.files()
            if not files and not os.path.isdir(self.versions):
                return []
            with self.locked():
                for name, path in files.items():
                    lines += self.install(name, path)
                for name in self.links().keys() - files.keys():
                    self.touch(name)
                    os.unlink(os.path.join(self.scripts, name))
                    lines.append(f"the package {name} is gone: the application ends")
                self.remove_old()
        except BadPackage as reason:
            lines.append(f"{self.directory}: {reason}")
        except OSError as reason:
            lines.append(f"{reason.filename or self.directory}: {reason.strerror}")
        return lines

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock: only one process changes the links. Raises OSError."""
        os.makedirs(self.versions, 0o755, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(os.path.join(self.versions, ".lock"), flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def install(self, name: str, path: str) -> list[str]:
        """Install a package, if it is not the version that serves; return the line about it, if any."""
        serving = self.links().get(name)
        try:
            version = self.unpack_version(name, path)
            if version == serving:
                return []
            label = settings_in(os.path.join(self.versions, name, version)).version
            self.link(name, version)
        except (BadPackage, OSError) as reason:
            text = reason.strerror if isinstance(reason, OSError) else str(reason)
            goes_on = "; its former version continues to serve" if serving else ""
            return [f"{path}: {text}{goes_on}"]
        about = f" ({label})" if label.isprintable() and label else ""
        return [f"the package {name} serves: version {version}{about[:60]}"]

    def unpack_version(self, name: str, path: str) -> str:
        """Unpack a package, unless its version is here already; return the version. Raises BadPackage, OSError."""
        if not NAME.fullmatch(name):
            raise BadPackage("the name of an application has letters, digits, - and _ only")
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BadPackage("it is no regular file")
            if status.st_uid != os.geteuid():
                raise BadPackage(f"it belongs to uid {status.st_uid}, not to the owner of this directory")
            if status.st_size > MAX_PACKED_BYTES:
                raise BadPackage(f"it is larger than {MAX_PACKED_BYTES >> 20} MB")
            version = hashlib.file_digest(file, "sha256").hexdigest()[:16]
            target = os.path.join(self.versions, name, version)
            if os.path.isdir(target):
                return version
            file.seek(0)
            os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
            new = tempfile.mkdtemp(prefix=NEW_PREFIX, dir=os.path.dirname(target))
            try:
                unpack(file, new)
                if mtime_and_size(os.fstat(file.fileno())) != mtime_and_size(status):
                    raise BadPackage("it has changed while it was read")
                os.chmod(new, 0o755)
                os.rename(new, target)
            finally:
                shutil.rmtree(new, ignore_errors=True)
        return version

    def link(self, name: str, version: str) -> None:
        """Make a version serve, at once for all new requests. Raises BadPackage, OSError."""
        link_path = os.path.join(self.scripts, name)
        if os.path.lexists(link_path) and name not in self.links():
            raise BadPackage(f"{link_path} is there already, and is no link to a package")
        self.touch(name)  # the end of the former version
        new = os.path.join(self.versions, f".link-{name}")
        with suppress(FileNotFoundError):
            os.unlink(new)
        os.symlink(os.path.join(VERSIONS, name, version), new)
        os.rename(new, link_path)
        self.touch(name)  # the beginning of this one

    def touch(self, name: str) -> None:
        """Note in the time of the version that serves that it begins or ends now."""
        with suppress(OSError):
            os.utime(os.path.join(self.scripts, name))

    def links(self) -> dict[str, str]:
        """Return the applications that serve: {name: version}. Raises OSError.

        An application is a link NAME -> VERSIONS/NAME/version. Other links beside it are not of packages.
        """
        versions: dict[str, str] = {}
        names: list[str] = []
        with suppress(FileNotFoundError):
            names = os.listdir(self.scripts)
        for name in names:
            with suppress(FileNotFoundError):  # the link was removed in the meantime
                path = os.path.join(self.scripts, name)
                parts = os.readlink(path).split("/") if os.path.islink(path) else []
                if parts[:-1] == [VERSIONS, name]:
                    versions[name] = parts[-1]
        return versions

    def remove_old(self) -> None:
        """Remove versions that have served neither now, nor as the last before, nor within KEEP_S.

        Also remove the directories of installations that were killed: the caller holds the lock, and none is under
        way.
        """
        serving = self.links()
        kept_since = time.time() - KEEP_S
        for package in os.scandir(self.versions):
            if not package.is_dir(follow_symlinks=False):
                continue
            times: dict[str, float] = {}
            for entry in list(os.scandir(package.path)):
                if entry.name.startswith(NEW_PREFIX):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    times[entry.path] = entry.stat().st_mtime
            times.pop(os.path.join(package.path, serving.get(package.name, "")), None)
            others = sorted(times, key=lambda path: times[path], reverse=True)
            for path in others[KEEP_VERSIONS - 1 :]:
                if times[path] < kept_since:
                    shutil.rmtree(path, ignore_errors=True)


def mtime_and_size(status: os.stat_result) -> tuple[int, int]:
    """Return the values of a status that a write to the file changes."""
    return status.st_mtime_ns, status.st_size


def pack(directory: str, target: str, former: str = "") -> int:
    """Write the files of a directory into a package; return how many. Raises BadPackage, OSError.

    The same files give the same package: names are sorted, and each time is the same. If the package lies in the
    directory, it is no part of itself: `target` is left out, and `former`, the package that `target` will replace.
    """
    paths = [path for path in sorted(files_below(directory)) if path not in (target, former)]
    count = 0
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in paths:
            status = os.lstat(path)
            name = os.path.relpath(path, directory)
            if not stat.S_ISREG(status.st_mode):
                raise BadPackage(f"{path} is a link or a special file: a package has files only")
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (stat.S_IFREG | status.st_mode & 0o755) << UNIX_MODE_SHIFT
            checked_name(entry)  # unpack() would refuse the name, too
            with open(path, "rb") as source, archive.open(entry, "w") as packed:
                shutil.copyfileobj(source, packed, CHUNK_BYTES)
            count += 1
    return count


def files_below(directory: str) -> Iterator[str]:
    """Yield the files and links below a directory, but none that begins with a dot. Raises OSError."""

    def fail(reason: OSError) -> None:
        raise reason  # os.walk() would leave out a directory that cannot be read

    for path, directories, files in os.walk(directory, onerror=fail):
        for each in list(directories):
            if each.startswith(".") or each == "__pycache__":
                directories.remove(each)
            elif os.path.islink(os.path.join(path, each)):
                yield os.path.join(path, each)
        yield from (os.path.join(path, each) for each in files if not each.startswith("."))


def main(arguments: Sequence[str]) -> int:
    """Synchronize, as suexecme orders; print a line for each change. arguments: those of Packages()."""
    os.umask(0o022)
    directory, scripts = arguments
    for line in Packages(directory, scripts).synchronize():
        print(line.encode("unicode_escape").decode()[:500])  # a file's name may have line feeds
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
