"""The submissions of a class, as the platforms of courses lay them out in a folder or in a zip file.

    Moodle       Ada Lovelace_1234567_assignsubmission_file_/FILES   (or all files in one folder, with this prefix)
    Canvas       lovelaceada_LATE_4711_88001_FILE                    (all in one folder; -1, -2: sent again)
    Gradescope   submission_88001/FILES, submission_metadata.yml     (who, and when)
    GitHub       pool-submissions/pool-ada/.git, FILES               (GitHub Classroom's download)
    folders      Ada Lovelace/FILES, or ada.zip, or one file         (anything else)

read() finds out which layout it is, copies each student's files into a separate directory, and unpacks archives.
A student's files may lie in a folder within the archive: directory_of() looks for them, down to MAX_DEPTH folders.

An archive comes from a student, so nothing in it is believed: names that leave the directory, links, devices, and
more than MAX_FILES files or MAX_BYTES bytes are a problem of this submission, which the class's table then shows.

Read next: class_run.py.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import lzma
import os
import re
import shutil
import stat
import subprocess
import tarfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, cast

from ewe.config.messages import ConfigError, one_line
from ewe_classroom.grader.sandbox import SandboxLimits
from ewe_classroom.seeds import SPELLING, shown_name

STUDENTS = "students"  # the directory of the results that has one directory for each student
SUBMISSION_COPIES = ("files", "files.new")  # directories of a student's results: the copies of the submission
MAX_FILES = 5000  # of one submission
MAX_BYTES = 256 << 20  # of one submission
MAX_STUDENTS = 5000
GIT_TIMEOUT_S = 20.0
MAX_GIT_BYTES = 256 << 20  # of git's memory; the last commit needs some megabytes
MAX_DEPTH = 3  # folders within a submission
MAX_LEVELS = 100  # folders within each other; Path.mkdir(parents=True) calls itself for each level
# The depth to which an archive is unpacked: enough that a submission in the archive of a class exceeds MAX_LEVELS.
MAX_UNPACKED_LEVELS = MAX_LEVELS + 20
MAX_PATH_BYTES = 4096  # PATH_MAX of Linux, with the NUL at the end
MAX_KEY_CHARS = 60  # of a directory's name
MAX_SHOWN = 4  # names of files, in a message
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
MAX_READ_BYTES = 1 << 20  # of one read of an archive: a piece of a member, or a header of a tar file
ZIP_END = b"PK\5\6"  # the beginning of the record at the end of a zip file
ZIP_LARGE, ZIP_LOCATOR = b"PK\6\6", b"PK\6\7"  # of the record of 64-bit numbers, and of its locator
UNKNOWN_ZIP_BYTES = 0xFFFFFFFF  # in place of a size that only the record of 64-bit numbers has
MAX_SEEK_BYTES = (1 << 63) - 1
MAX_ZIP_END_BYTES = 76 + 22 + 65535  # of the two records, and a comment
MAX_ENTRY_BYTES = 1024  # of a member in the list of a zip file, on average: 46, its name, and extra fields
DOS_FOLDER = 0x10  # a bit of a zip file's attributes
EXTENDED_TIMESTAMP = 0x5455  # the kind of an extra field of a zip file's member: times in UTC (Info-ZIP)
IGNORED_FOLDERS = {"__MACOSX", ".git", "__pycache__"}  # folders that no student means
# The shortest name: a student chooses the rest, and could write the number of another student there.
MOODLE = re.compile(
    r"(?P<name>.+?)_(?P<id>\d+)_assignsubmission_(?:file|onlinetext)_?(?P<file>.*)", re.DOTALL
)
CANVAS = re.compile(r"(?P<name>[^_]+)(?P<late>_LATE)?_(?P<id>\d+)_(?P<number>\d+)_(?P<file>.+)", re.DOTALL)
SENT_AGAIN = re.compile(r"(?P<stem>.+?)-(?P<number>\d{1,3})(?P<suffix>\.[a-z.]+)?$")
GRADESCOPE = re.compile(r"^(submission_\d+):")


class BadHandIn(Exception):
    """A student's files cannot be used. The message says why, in one line."""


@dataclass
class HandIn:
    """What one student has handed in.

    name: as the platform shows it. key: the name of the directory of the student's results. source: the files or
    directories of the platform's folder, each with its name in the submission. identity: columns by which the
    platform's table of marks knows the student. sent: when it was handed in, if the platform says so. late: the
    platform says "late", without a time. problem: the reason for which there is nothing to grade.
    """

    name: str
    key: str
    source: list[tuple[Path, str]] = field(default_factory=list)
    identity: dict[str, str] = field(default_factory=dict)
    sent: datetime | None = None
    late: bool = False
    problem: str = ""


@dataclass
class Layout:
    """The submissions of one folder. platform: "moodle", "canvas", "gradescope", "github" or "folders"."""

    platform: str
    hand_ins: list[HandIn]


def read(folder: Path, work: str = "", results: Path | None = None) -> Layout:
    """Find the submissions in a folder. Raises ConfigError.

    work: the first file of the lab's work. A folder that is alone and has this file is a submission.
    results: the absolute path of the results' directory, which is no submission if it lies in the folder.
    """
    try:
        entries = entries_of(folder, results)
        # An archive of a platform often contains one folder, which contains all submissions: enter it.
        while (
            len(entries) == 1
            and os.path.isdir(entries[0])
            and not entries[0].is_symlink()
            and not (work and os.path.isfile(entries[0] / work))
            and holds_students(entries[0], results)
        ):
            folder = entries[0]
            entries = entries_of(folder, results)
        layout = layout_of(folder, [each for each in entries if not each.name.startswith(".")])
    except OSError as reason:
        where = reason.filename or folder
        raise ConfigError(f"{where}: {reason.strerror}; name the folder with the submissions") from None
    if not layout.hand_ins:
        raise ConfigError(f"{folder}: no submissions; a folder of each student, or a file, is expected here")
    if len(layout.hand_ins) > MAX_STUDENTS:
        raise ConfigError(f"{folder}: {len(layout.hand_ins)} submissions; the limit is {MAX_STUDENTS}")
    for each in layout.hand_ins:
        # The key is that of earlier runs, whose manual.csv knows a student by it.
        each.name, each.key = as_utf8_line(each.name), one_line(as_utf8(each.key))
        each.identity = {column: as_utf8_line(value) for column, value in each.identity.items()}
    make_keys_unique(layout.hand_ins)
    return layout


def entries_of(folder: Path, results: Path | None) -> list[Path]:
    """Return the sorted entries of a folder, without IGNORED_FOLDERS and the results. Raises OSError."""
    found = [each for each in folder.iterdir() if each.name not in IGNORED_FOLDERS]
    return sorted(each for each in found if results is None or os.path.abspath(each) != str(results))


def holds_students(directory: Path, results: Path | None) -> bool:
    """Return whether a folder holds the submissions of a class, and is not itself the submission of one student.

    It does if it holds folders, archives, or files with a platform's names, and is not a repository.
    results: the results' directory, which does not count if it lies in the folder. Raises OSError.
    """
    return any(
        os.path.isdir(each)
        or each.name.endswith(ARCHIVES)
        or MOODLE.fullmatch(each.name)
        or CANVAS.fullmatch(each.name)
        for each in entries_of(directory, results)
    ) and not os.path.exists(directory / ".git")


def layout_of(folder: Path, entries: list[Path]) -> Layout:
    """Return the submissions of a folder by the layout that most of its names show.

    An entry of another kind, such as a table that the lecturer has put there, becomes a row of the class. The most
    particular names are tried first, since a directory of any name fits the last layout. Raises OSError.
    """
    # A student may have left a link to a name that is too long, or a closed directory. os.path.isfile() is then
    # false, where Path.is_file() raises an error, which would end the grading of the class.
    if os.path.isfile(folder / "submission_metadata.yml"):
        return Layout("gradescope", gradescope(folder))
    own, others = partition_entries(entries, lambda each: MOODLE.fullmatch(each.name) is not None)
    if len(own) > len(others):
        return Layout("moodle", moodle(own) + folders(others))
    own, others = partition_entries(
        entries, lambda each: os.path.isfile(each) and CANVAS.fullmatch(each.name) is not None
    )
    if len(own) > len(others):
        return Layout("canvas", canvas(own) + folders(others))
    directories = [each for each in entries if os.path.isdir(each)]
    own, others = partition_entries(directories, lambda each: os.path.exists(each / ".git"))
    if len(own) > len(others):
        return Layout("github", github(folder, own) + folders(others))
    return Layout("folders", folders(entries))


def partition_entries(entries: list[Path], fits: Callable[[Path], bool]) -> tuple[list[Path], list[Path]]:
    """Return the entries for which `fits` is true, and the others."""
    own: list[Path] = []
    others: list[Path] = []
    for each in entries:
        (own if fits(each) else others).append(each)
    return own, others


def moodle(entries: list[Path]) -> list[HandIn]:
    """Return Moodle's submissions. The number is that of the participant in Moodle's grading worksheet."""
    found: dict[str, HandIn] = {}
    for path in entries:
        match = MOODLE.fullmatch(path.name)
        assert match is not None  # layout_of() has looked
        number = match["id"]
        identity = {"Identifier": f"Participant {number}", "Full name": match["name"]}
        # Moodle may put all files into one folder: a student then has several entries with the same number.
        each = found.setdefault(number, HandIn(match["name"], f"{match['name']} {number}", identity=identity))
        each.source.append((path, match["file"] if os.path.isfile(path) else ""))
    return list(found.values())


def canvas(entries: list[Path]) -> list[HandIn]:
    """Return Canvas's submissions; of a file that was sent again, the last one counts."""
    found: dict[str, HandIn] = {}
    newest: dict[tuple[str, str], int] = {}  # student, file -> how many times it was sent again (-1, -2, ...)
    for path in entries:
        match = CANVAS.fullmatch(path.name)
        assert match is not None  # layout_of() has looked
        again = SENT_AGAIN.fullmatch(match["file"])
        name = again["stem"] + (again["suffix"] or "") if again else match["file"]
        number = int(again["number"]) if again else 0
        student = match["id"]
        identity = {"Student": match["name"], "ID": student}
        each = found.setdefault(
            student, HandIn(match["name"], f"{match['name']} {student}", identity=identity)
        )
        each.late = each.late or match["late"] is not None
        if number >= newest.get((student, name), -1):
            newest[student, name] = number
            others = [(file, file_name) for file, file_name in each.source if file_name != name]
            each.source = [*others, (path, name)]
    return list(found.values())


def gradescope(folder: Path) -> list[HandIn]:
    """Return Gradescope's submissions. submission_metadata.yml has the names, the addresses and the times.

    A small part of YAML is enough for these lines, so no library is needed. Each submission has its own directory.
    """
    found = []
    text = (folder / "submission_metadata.yml").read_text(encoding="utf-8", errors="replace")
    for part in re.split(r"^(?=submission_\d+:)", text, flags=re.MULTILINE):
        if not (match := GRADESCOPE.match(part)):
            continue
        # Of a group, the file names several people: the first one stands for the group.
        name, number, address = (yaml_value(part, key) for key in ("name", "sid", "email"))
        sent = time_of(yaml_value(part, "created_at"))
        identity = {"Name": name, "SID": number, "Email": address}
        directory = folder / match[1]
        shown = name or match[1]
        each = HandIn(shown, key=shown, source=[(directory, "")], identity=identity, sent=sent)
        if not directory.is_dir():
            each.problem = f"{match[1]}: this folder is missing"
        found.append(each)
    return found


def yaml_value(text: str, key: str) -> str:
    """Return the first value of a key, as Gradescope writes it: `:key: value`, quoted or not; "" if absent."""
    match = re.search(rf"^[ -]*:{key}:[ \t]*(.*?)[ \t]*$", text, re.MULTILINE)
    value = match[1] if match else ""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def time_of(text: str) -> datetime | None:
    """Return a time of ISO 8601, or as Ruby and git write it; None if there is none."""
    match = re.match(
        r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.\d+)? ?(Z|UTC|[+-]\d\d:?\d\d)?", text.strip()
    )
    if not match:
        return None
    zone = (match[3] or "Z").replace("UTC", "Z")
    try:
        return datetime.fromisoformat(f"{match[1]}T{match[2]}{zone}")
    except ValueError:  # a commit may claim a zone of 99 hours
        return None


def github(folder: Path, directories: list[Path]) -> list[HandIn]:
    """Return the submissions of GitHub Classroom: repositories ASSIGNMENT-ACCOUNT in ASSIGNMENT-submissions.

    The time is that of the last commit. A student's own machine has written it, so a student can choose it.
    """
    prefix = folder.name.removesuffix("-submissions") + "-"
    found = []
    for path in directories:
        account = path.name.removeprefix(prefix) or path.name
        identity = {"GitHub": account}
        sent = last_commit(path)
        found.append(HandIn(account, key=account, source=[(path, "")], identity=identity, sent=sent))
    return found


def last_commit(repository: Path) -> datetime | None:
    """Return the time of the last commit; None without git, or without a commit.

    The repository is a student's: git runs no program that its configuration names, also not to fetch objects that
    are missing (a partial clone with the address ext::COMMAND). git may therefore also read the repository of
    another account, which it refuses otherwise: root grades the files that a lecturer has cloned.
    """
    configuration = [
        "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "log.showSignature=false",
        "-c", "safe.directory=*",
    ]  # fmt: skip
    log = ["log", "-1", "--format=%cI", "--no-show-signature"]
    command = ["git", *configuration, "-C", str(repository), *log]
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_ALLOW_PROTOCOL": "none",
    }
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=True,
            stdin=subprocess.DEVNULL,
            # An object of the repository may be small on the disk, and fill the memory.
            preexec_fn=SandboxLimits(data_bytes=MAX_GIT_BYTES),
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return time_of(done.stdout)


def folders(entries: list[Path]) -> list[HandIn]:
    """Return one submission for each folder, archive or file. Its time is that of the newest file.

    A symbolic link is left out: take_files() would follow one that leads to a directory.
    """
    found = []
    for path in entries:
        if path.is_symlink():
            continue
        name = path.name
        if os.path.isfile(path):
            name = name[: -len(suffix)] if (suffix := archive_suffix(name)) else path.stem
        source = [(path, "" if os.path.isdir(path) else path.name)]
        sent = newest_change(path)
        found.append(HandIn(name, key=name, source=source, identity={"name": name}, sent=sent))
    return found


def newest_change(path: Path) -> datetime | None:
    """Return the time of the last change of a file, or of the newest file in a directory; None without a file."""
    paths = [path] if os.path.isfile(path) else walk(path)
    try:
        times = [each.lstat().st_mtime for each in paths if os.path.isfile(each) and not os.path.islink(each)]
        return datetime.fromtimestamp(max(times), UTC) if times else None
    except (ValueError, OverflowError, OSError):  # a year above 9999, or above 2**31; a removed file
        return None


def walk(directory: Path) -> Iterator[Path]:
    """Return the first MAX_FILES + 1 paths of all_paths().

    One more than the limit, so that a caller can see that there are too many.
    """
    return islice(all_paths(directory), MAX_FILES + 1)


def all_paths(directory: Path) -> Iterator[Path]:
    """Yield the files and directories below a directory; follow no link, and leave out IGNORED_FOLDERS.

    A directory comes before its contents. A link to a directory counts as a file. Paths that are too long for the
    system are left out.
    """
    # A stack, because os.walk() and Path.rglob() of Python 3.11 call themselves for each level, and a student can
    # nest thousands.
    waiting = [str(directory)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                entries = [
                    (each.path, each.name, each.is_dir(follow_symlinks=False))
                    for each in found
                    if len(os.fsencode(each.path)) < MAX_PATH_BYTES
                ]
        except OSError:  # closed to this account, or removed meanwhile
            continue
        folders = sorted(path for path, name, is_dir in entries if is_dir and name not in IGNORED_FOLDERS)
        files = sorted(path for path, _, is_dir in entries if not is_dir)
        yield from map(Path, (*folders, *files))
        waiting += reversed(folders)


def walk_within_limits(directory: Path) -> Iterator[Path]:
    """Yield the paths of walk(). Raises BadHandIn for too many of them, or too many folders within each other."""
    for number, path in enumerate(walk(directory)):
        if number == MAX_FILES:
            raise BadHandIn(f"more than {MAX_FILES} files and folders")
        if len(path.relative_to(directory).parts) > MAX_LEVELS:
            raise BadHandIn(f"more than {MAX_LEVELS} folders within each other")
        yield path


def archive_suffix(name: str) -> str:
    """Return the suffix of an archive's name, such as ".tar.gz"; "" for any other name."""
    return next((suffix for suffix in ARCHIVES if name.lower().endswith(suffix)), "")


def as_utf8_line(text: str) -> str:
    """Return a name as UTF-8 can write it, in one line, with the characters of shown_name()."""
    return "".join(each if each in SPELLING else one_line(each) for each in shown_name(as_utf8(text)))


def as_utf8(text: str) -> str:
    """Return a name as UTF-8 can write it. A name from an old archive may have bytes of Latin-1."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def make_keys_unique(hand_ins: list[HandIn]) -> None:
    """Replace the key of each submission by one that no other submission has, and that can name a directory.

    If several keys would be equal, each gets a part of the hash of its student's identity. A number in its place
    would change as soon as another student of this name hands in, and manual.csv, which knows the students by their
    keys, would give the marks to the wrong one.
    """
    wished_keys = [
        re.sub(r"[^\w.-]+", "-", each.key).strip("-.")[:MAX_KEY_CHARS] or "student" for each in hand_ins
    ]
    # casefold(): on some file systems, `Ada` and `ada` are the same directory.
    count = Counter(wished.casefold() for wished in wished_keys)
    taken: set[str] = set()
    for each, wished in zip(hand_ins, wished_keys, strict=True):
        if count[wished.casefold()] > 1:
            identity = "\0".join([each.name, *each.identity.values()])
            wished += "-" + hashlib.sha256(identity.encode()).hexdigest()[:6]
        key, number = wished, 1
        # The same student may hand in twice, as ada.py and ada.zip.
        while key.casefold() in taken:
            number += 1
            key = f"{wished}-{number}"
        taken.add(key.casefold())
        each.key = key


def take_files(hand_in: HandIn, target: Path) -> None:
    """Copy a student's files into an empty directory; unpack archives. Raises BadHandIn.

    take_files() leaves out links and devices. It also unpacks an archive that is the only entry of the result,
    because a platform may put the archive of a student into a folder, or into another archive.
    """
    counter = SubmissionCounter()
    for source, name in hand_in.source:
        if source.is_dir():
            copy_directory(source, target, counter)
        elif archive_suffix(name):
            unpack(source, name, target, counter)
        else:
            copy_file(source, target / os.path.basename(name), counter)
    found = [each for each in target.iterdir() if each.name not in IGNORED_FOLDERS]
    # is_file(): a folder may have the name of the archive from which a student's program has unpacked it.
    if len(found) == 1 and archive_suffix(found[0].name) and found[0].is_file():
        # Elsewhere: `tar czf lab.tgz .` leaves a part of lab.tgz in lab.tgz, which would overwrite the archive.
        archive = found[0].rename(target.parent / "archive.new")
        try:
            unpack(archive, found[0].name, target, counter)
        except BadHandIn:
            with contextlib.suppress(OSError):  # a part of the archive may be a folder of its name
                archive.rename(found[0])  # for the lecturer: a class in one archive is not kept elsewhere
            raise
        finally:
            archive.unlink(missing_ok=True)
    # The counter knows no folders, and walk() ends after MAX_FILES + 1 paths: identify_work() must see each file.
    for _ in walk_within_limits(target):
        pass


class SubmissionCounter:
    """Counts the files and bytes of a submission, or of a class. most_files, most_bytes: the limits."""

    def __init__(self, most_files: int = MAX_FILES, most_bytes: int = MAX_BYTES) -> None:
        self.most_files, self.most_bytes = most_files, most_bytes
        self.files = self.bytes = 0

    def count(self, size: int) -> None:
        """Count a file of `size` bytes. Raises BadHandIn above a limit, and for a size below 0."""
        # The header of a tar file may declare such a size, which would make room for more bytes
        if size < 0:
            raise BadHandIn(f"a file of {size} bytes")
        self.files += 1
        self.bytes += size
        if self.files > self.most_files:
            raise BadHandIn(f"more than {self.most_files} files")
        if self.bytes > self.most_bytes:
            raise BadHandIn(f"more than {self.most_bytes >> 20} MB")


def copy_directory(source: Path, target: Path, counter: SubmissionCounter) -> None:
    """Copy the regular files below a directory; leave out all others. Raises BadHandIn above a limit."""
    for path in walk_within_limits(source):
        if path.is_symlink() or not path.is_file():
            continue
        copy_file(path, target / path.relative_to(source), counter)


def copy_file(source: Path, target: Path, counter: SubmissionCounter) -> None:
    """Copy one regular file, with its execute bit. Raises BadHandIn for any other file, and above a limit."""
    about = source.lstat()
    if not stat.S_ISREG(about.st_mode):
        raise BadHandIn(f"{source.name}: not a file")
    counter.count(about.st_size)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target, follow_symlinks=False)
    target.chmod(0o755 if about.st_mode & 0o100 else 0o644)


def unpack(archive: Path, name: str, target: Path, counter: SubmissionCounter) -> None:
    """Unpack the regular files of a zip or tar file. name: of the archive; its suffix tells the kind.

    Raises BadHandIn.
    """
    if not archive.is_file():  # the opening of a FIFO would wait for a writer
        raise BadHandIn(f"{name}: not a file")
    try:
        if name.lower().endswith(".zip"):
            unpack_zip(archive, target, counter)
        else:
            unpack_tar(archive, target, counter)
    except BadHandIn:
        raise
    except OSError as reason:
        raise BadHandIn(f"{name} cannot be unpacked: {reason.strerror or reason}") from None
    except ValueError:
        raise BadHandIn(f"{name} cannot be unpacked: a name in it is not valid") from None
    # A damaged archive makes zipfile and tarfile raise errors without a common base: BadZipFile, TarError,
    # EOFError, RuntimeError (a password), NotImplementedError (an unknown compression), zlib.error, lzma.LZMAError.
    except Exception as reason:
        raise BadHandIn(f"{name} cannot be unpacked: {str(reason) or type(reason).__name__}") from None


def path_inside(target: Path, name: str) -> Path:
    """Return the path of an archive's member below a directory. Raises BadHandIn for a name that leaves it.

    The path of a member with too many folders ends at MAX_UNPACKED_LEVELS, and walk_within_limits() then refuses
    the submission. With all of its folders, shutil.rmtree() of Python 3.11 could not remove them: it calls itself
    for each level. An exception here would refuse all submissions in the archive of a class.
    """
    path = target / name.replace("\\", "/")
    if name.startswith(("/", "\\")) or ".." in path.relative_to(target).parts:
        raise BadHandIn(f"the archive has a name outside of its folder: {name[:80]!r}")
    return target.joinpath(*path.relative_to(target).parts[:MAX_UNPACKED_LEVELS])


def unpack_zip(archive: Path, target: Path, counter: SubmissionCounter) -> None:
    """Unpack the regular files of a zip file, with their execute bits."""
    # Before: zipfile reads the whole list of members into memory, and needs seven times its size.
    if directory_bytes(archive) > counter.most_files * MAX_ENTRY_BYTES:
        raise BadHandIn(f"the archive has a list of more than {counter.most_files} files")
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            unix_mode = member.external_attr >> 16  # 0 if the archive was made on Windows
            if is_folder(member) or stat.S_IFMT(unix_mode) not in (0, stat.S_IFREG):
                continue
            path = path_inside(target, member.filename)
            counter.count(member.file_size)
            path.parent.mkdir(parents=True, exist_ok=True)
            with opened.open(member) as source:
                write_at_most(source.read, path, member.file_size)
            path.chmod(0o755 if unix_mode & 0o100 else 0o644)
            set_time(path, changed_s(member))


def directory_bytes(archive: Path) -> int:
    """Return the size of the list of members (the central directory) of a zip file; 0 if the file has no list.

    The record at the end of the file has the size, and behind it perhaps a comment. In a large archive, a record of
    64-bit numbers and a locator of 20 bytes come before it (APPNOTE.TXT of PKWARE, section 4.3). Of several
    sizes the largest one counts: a student can write them, and versions of zipfile differ in the one that they use.
    """
    with archive.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_ZIP_END_BYTES))
        end = file.read()
        is_last = end[-22:-18] == ZIP_END and end.endswith(b"\0\0")  # no comment
        at = len(end) - 22 if is_last else end.rfind(ZIP_END)
        if at < 0:
            return 0
        size = int.from_bytes(end[at + 12 : at + 16], "little")
        locator = end[max(0, at - 20) : at]
        if not locator.startswith(ZIP_LOCATOR):
            return size
        # The record before the locator, and the one that the locator names. A seek beyond the end reads nothing.
        file.seek(min(int.from_bytes(locator[8:16], "little"), MAX_SEEK_BYTES))
        records = [end[max(0, at - 76) : max(0, at - 20)], file.read(56)]
    sizes = [int.from_bytes(each[40:48], "little") for each in records if each.startswith(ZIP_LARGE)]
    return max(sizes) if sizes and size == UNKNOWN_ZIP_BYTES else max([size, *sizes])


def is_folder(member: zipfile.ZipInfo) -> bool:
    """Return whether a member of a zip file is a folder: older programs of Windows write `lab\\` and not `lab/`."""
    return member.filename.endswith(("/", "\\")) or bool(member.external_attr & DOS_FOLDER)


def changed_s(member: zipfile.ZipInfo) -> float:
    """Return when a member of a zip file was changed, in seconds since 1970.

    Most programs add the time in UTC in an extra field. The date of the zip format itself has no zone: without the
    field it is taken for the local time. member.extra: one field after the other, each with its kind (2 bytes), the
    size of its value (2 bytes) and its value.
    """
    extra = member.extra
    while len(extra) > 4:
        kind, size = int.from_bytes(extra[:2], "little"), int.from_bytes(extra[2:4], "little")
        value, extra = extra[4 : 4 + size], extra[4 + size :]
        # The first byte says which times follow, with 4 bytes each. Bit 0 stands for the time of the last change,
        # which is then the first one.
        if kind == EXTENDED_TIMESTAMP and len(value) >= 5 and value[0] & 1:
            return float(int.from_bytes(value[1:5], "little", signed=True))
    return time.mktime((*member.date_time, 0, 0, -1))


class TarBytes:
    """The bytes of a tar file, which is already decompressed.

    tarfile reads the header of a long name into memory with one call, as large as it says it is. It reads the
    contents of members in pieces, as unpack_tar() asks for them.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.seek, self.tell, self.file = file.seek, file.tell, file

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes. Raises BadHandIn for many MB, which a header of zeros packs small."""
        if not 0 <= size <= MAX_READ_BYTES:
            raise BadHandIn(f"the archive has a header of {size >> 20} MB")
        return self.file.read(size)


def open_compressed(archive: Path) -> IO[bytes]:
    """Open a tar file, compressed or not, to read its decompressed bytes."""
    with archive.open("rb") as file:
        beginning = file.read(6)
    if beginning.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.open(archive))
    if beginning.startswith(b"BZh"):
        return bz2.open(archive)
    return lzma.open(archive) if beginning.startswith((b"\xfd7zXZ\0", b"]\0\0")) else archive.open("rb")


def unpack_tar(archive: Path, target: Path, counter: SubmissionCounter) -> None:
    """Unpack the regular files of a tar file, with their execute bits."""
    with (
        open_compressed(archive) as file,
        tarfile.open(fileobj=cast("IO[bytes]", TarBytes(file)), mode="r:") as opened,
    ):
        for member in opened:
            # Also a member that is left out: tarfile keeps its header in memory, and decompresses its contents.
            counter.count(member.size)
            if not member.isreg():
                continue
            path = path_inside(target, member.name)
            source = opened.extractfile(member)
            assert source is not None  # a regular file has contents
            path.parent.mkdir(parents=True, exist_ok=True)
            write_at_most(source.read, path, member.size)
            path.chmod(0o755 if member.mode & 0o100 else 0o644)
            set_time(path, member.mtime)


def set_time(path: Path, seconds: float) -> None:
    """Give an unpacked file the time of change that its archive has for it, in seconds since 1970.

    newest_change() reads these times, to find out when a student handed in. A time that no file can have, such as
    one before 1970 on some systems, is ignored.
    """
    with contextlib.suppress(OSError, OverflowError, ValueError):
        os.utime(path, (seconds, seconds))


def write_at_most(read: Callable[[int], bytes], path: Path, size: int) -> None:
    """Write an archive's member to a file. read: returns its next bytes, at most so many; b"" at the end.

    size: the bytes that the archive declares for the member, which SubmissionCounter has counted. Raises BadHandIn
    for more bytes: nothing has counted them, and they could fill the disk.
    """
    written = 0
    with path.open("wb") as out:
        while block := read(MAX_READ_BYTES):
            written += len(block)
            if written > size:
                raise BadHandIn(f"{path.name} is larger than its archive says")
            out.write(block)


def directory_of(top: Path, names: Sequence[str]) -> Path:
    """Return the directory of a submission that has the files of the work, at most MAX_DEPTH folders down.

    Raises BadHandIn if there is none, or if two are equally near.
    """
    level = [top]  # the directories of one depth, beginning with the submission itself
    for _ in range(MAX_DEPTH + 1):
        found = [each for each in level if (each / names[0]).is_file()]
        if len(found) == 1:
            return found[0]
        if found:
            shown = ", ".join(sorted(str(each.relative_to(top)) for each in found[:3]))
            raise BadHandIn(f"there are several {names[0]}: in {shown}; hand in one")
        level = [
            each
            for directory in level
            for each in sorted(directory.iterdir())
            if each.is_dir() and not each.is_symlink() and each.name not in IGNORED_FOLDERS
        ]
    there = sorted(path.relative_to(top).as_posix() for path in walk(top) if path.is_file())
    more = len(there) - MAX_SHOWN
    shown = ", ".join(there[:MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")
    raise BadHandIn(f"no {names[0]} in it" + (f"; it has {shown}" if there else ": it is empty"))
