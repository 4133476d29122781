"""Packages: an application in one file, which is dropped in, replaced and taken away while it serves."""

from __future__ import annotations

import errno
import io
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.accounts import User, two_users
from support.server import ROOT, wait_until
from support.xswitch_client import PYTHON_HELLO, XSwitch, xswitch

from ewe.config.command import UsageError
from ewe.config.messages import Failure
from ewe.xswitch import channel, package_commands, packages
from ewe.xswitch.packages import BadPackage, Packages, pack, parse_settings, unpack
from ewe.xswitch.privileged import drop_ins, rules
from ewe.xswitch.privileged import suexecme as suexecme_module
from ewe.xswitch.privileged.drop_ins import CHECK_S, owner_of
from ewe.xswitch.privileged.rules import ExaminedScript, Refusal
from ewe.xswitch.privileged.suexecme import Suexecme
from ewe.xswitch.process import Account
from ewe.xswitch.settings import Settings

pytestmark = pytest.mark.timeout(200)  # a busy machine unpacks slowly

SCRIPT = """#!/usr/bin/python3
import os, time, part
print("Content-Type: text/plain\\n")
time.sleep(float(os.environ.get("QUERY_STRING") or 0))
import late
print({number}, part.NUMBER, late.NUMBER, open("data.txt").read(), os.environ.get("SHOP"), os.getuid())
"""


def files_of(number: int, settings: str = "") -> dict[str, str]:
    """Return the files of a version. A mixed answer would have two numbers."""
    parts = {f"{name}.py": f"NUMBER = {number}\n" for name in ("part", "late")}
    return {
        "hello.py": SCRIPT.format(number=number), **parts, "data.txt": str(number), "package.toml": settings,
    }  # fmt: skip


def package_of(files: Mapping[str, str | bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """Return a package with these files. method: of the compression."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text, method)
    return buffer.getvalue()


def entry_of(name: str, mode: int = 0, flags: int = 0) -> bytes:
    """Return a package with one entry."""
    buffer = io.BytesIO()
    info = zipfile.ZipInfo("x" * len(name))
    info.external_attr = mode << 16
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(info, "text")
    data = buffer.getvalue().replace(b"x" * len(name), name.encode())
    return data if not flags else data.replace(b"PK\1\2\x14\3\x14\0\0\0", b"PK\1\2\x14\3\x14\0\1\0")


def flipped(data: bytes, at: int) -> bytes:
    """Return data with one other byte."""
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


# Archives

BAD = {
    "parent": (entry_of("../evil.py"), "leads outside"),
    "parent within": (entry_of("a/../../evil.py"), "leads outside"),
    "absolute": (entry_of("/etc/evil"), "leads outside"),
    "backslash": (entry_of("..\\evil.py"), "leads outside"),
    "empty part": (entry_of("a//b"), "leads outside"),
    "dot": (entry_of("./a"), "leads outside"),
    "line feed": (entry_of("a\nb"), "leads outside"),
    "NUL": (entry_of("a\0b"), "leads outside"),
    "link": (entry_of("passwd", stat.S_IFLNK | 0o777), "is a link, a device or another special file"),
    "device": (entry_of("disk", stat.S_IFBLK | 0o666), "is a link, a device or another special file"),
    "pipe": (entry_of("pipe", stat.S_IFIFO | 0o666), "is a link, a device or another special file"),
    "set-user-id": (entry_of("su", stat.S_IFREG | 0o4755), "is set-user-id"),
    "set-group-id": (entry_of("sg", stat.S_IFREG | 0o2755), "is set-user-id"),
    "encrypted": (entry_of("a.py", flags=1), "is encrypted"),
    "deep": (entry_of("/".join("a" * (packages.MAX_PARTS + 1))), "has more than 50 parts"),
    # Of another method, zipfile unpacks gigabytes in one piece
    "bzip2": (package_of({"a": "text" * 99}, zipfile.ZIP_BZIP2), "another method than deflate"),
    "damaged LZMA": (
        flipped(package_of({"a": "text" * 99}, zipfile.ZIP_LZMA), 50),
        "another method than deflate",
    ),
    "no archive": (b"hello", "no whole zip file"),
    "empty": (b"", "no whole zip file"),
    "half": (package_of(files_of(1))[:-30], "no whole zip file"),
    "damaged": (flipped(package_of({"a": "text" * 999}), 36), "no whole zip file"),
    "long name": (entry_of("a" * 300), "File name too long"),
    "settings": (package_of({"package.toml": "language = "}), "package.toml: Invalid value"),
    "unknown setting": (package_of({"package.toml": "command = 'sh'"}), "unknown setting 'command'"),
    "other user": (package_of({"package.toml": "user = 'root2'"}), "it is for the user 'root2'"),
    "entry": (package_of({"package.toml": "entry = ['a.py']"}), "its entry 'a.py' is no file"),
    "entry outside": (package_of({"package.toml": "entry = ['../../hello.py']"}), "is no file in it"),
    "variable": (
        package_of({"package.toml": "environment = { HTTP_HOST = 'x' }"}),
        "is no name of a variable",
    ),
    "length": (package_of({"package.toml": "environment.CONTENT_LENGTH = '9'"}), "is no name of a variable"),
    "deep TOML": (package_of({"package.toml": "entry = " + "[" * 9000}), "package.toml: "),
    "long TOML": (package_of({"package.toml": "#" * 20_000}), "longer than 16384 bytes"),
    "dots in TOML": (package_of({"package.toml": "a" + ".a" * 8000 + " = 1"}), "has more than 400 dots"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_package_changes_nothing_and_is_one_line(name: str, tmp_path: Path) -> None:
    """The line names the file and the reason. The version before it stays, and nothing is left of the bad one."""
    installer = Packages(str(tmp_path / "drop"), str(tmp_path / "cgi-bin"))
    (tmp_path / "drop").mkdir(mode=0o755)
    (tmp_path / "cgi-bin").mkdir(mode=0o755)
    file = tmp_path / "drop" / "shop.zip"
    file.write_bytes(package_of(files_of(1)))
    [line] = installer.synchronize()
    before = os.readlink(tmp_path / "cgi-bin" / "shop")
    data, reason = BAD[name]
    file.write_bytes(data)
    [line] = installer.synchronize()
    assert line.startswith(f"{file}: ") and reason in line and "\n" not in line, line
    assert line.endswith("; its former version continues to serve")
    assert os.readlink(tmp_path / "cgi-bin" / "shop") == before
    assert sorted(os.listdir(tmp_path / "cgi-bin")) == [".packages", "shop"]
    assert os.listdir(tmp_path / "cgi-bin" / ".packages" / "shop") == [os.path.basename(before)]
    assert sorted(os.listdir(tmp_path)) == ["cgi-bin", "drop"]


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["a", "a"], "two of its files have the name 'a'"),
        (["a", "a/b"], "two of its files have the name 'a'"),
        (["a/b", "a"], "two of its files have the name 'a'"),
        ([f"{number}" for number in range(packages.MAX_FILES + 1)], "more than 10000 files"),
    ],
    ids=["twice", "file and directory", "directory and file", "many"],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_collide_and_too_many(names: list[str], reason: str, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    with pytest.raises(BadPackage, match=reason):
        unpack(buffer, str(tmp_path))


def test_a_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are counted as they come: a false size in the archive does not help.

    The limit is a 32nd of ewe's, and so are the bytes that are written up to it.
    """
    assert packages.MAX_UNPACKED_BYTES == 256 << 20
    monkeypatch.setattr(packages, "MAX_UNPACKED_BYTES", 8 << 20)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("zeros", "w") as file:
        for _ in range(packages.MAX_UNPACKED_BYTES // packages.CHUNK_BYTES + 1):
            file.write(bytes(packages.CHUNK_BYTES))
    assert len(buffer.getvalue()) < 1 << 15
    with pytest.raises(BadPackage, match="more than 8 MB unpacked"):
        unpack(buffer, str(tmp_path))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= packages.MAX_UNPACKED_BYTES


def test_what_is_packed_and_how(tmp_path: Path) -> None:
    """The same files give the same bytes; modes stay, others may not write; hidden files and links stay out."""
    source = tmp_path / "shop"
    (source / ".git").mkdir(parents=True)
    (source / ".git" / "config").write_text("secret")
    for name, mode in (("a.py", 0o777), ("b.txt", 0o600)):
        (source / name).write_text(name)
        (source / name).chmod(mode)
    assert pack(str(source), str(tmp_path / "1.zip")) == pack(str(source), str(tmp_path / "2.zip")) == 2
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()
    (tmp_path / "out").mkdir()
    with open(tmp_path / "1.zip", "rb") as file:
        unpack(file, str(tmp_path / "out"))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()}
    assert modes == {"a.py": 0o755, "b.txt": 0o600}
    (source / "link").symlink_to("/etc/passwd")
    with pytest.raises(BadPackage, match="is a link"):
        pack(str(source), str(tmp_path / "3.zip"))


def test_what_cannot_be_installed_is_not_packed(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.txt")).touch()
    with pytest.raises(BadPackage, match="is no name of a file"):
        pack(str(tmp_path), str(tmp_path / "x.zip"))


def test_a_directory_that_cannot_be_read_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid(path: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "scandir", forbid)  # os.walk() calls it
    with pytest.raises(PermissionError):
        pack(str(tmp_path), str(tmp_path / "x.zip"))


def test_why_a_file_cannot_be_copied_is_in_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """shutil refuses a FIFO by an OSError without strerror."""
    own = Packages(str(tmp_path / "drop"), str(tmp_path / "cgi-bin"))
    monkeypatch.setattr(package_commands, "own_packages", lambda options: own)
    os.mkfifo(tmp_path / "shop.zip")
    with pytest.raises(Failure, match="is a named pipe"):
        package_commands.run("install", [str(tmp_path / "shop.zip")])


def test_the_name_of_a_file_makes_no_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The main process logs each line that an installation prints."""
    monkeypatch.setattr(os, "umask", lambda mask: mask)
    (tmp_path / "drop").mkdir(mode=0o755)
    (tmp_path / "drop" / ("\n" * 20 + "é.zip")).touch()
    assert packages.main([str(tmp_path / "drop"), str(tmp_path / "cgi-bin")]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert "\\n\\xe9.zip" in line


def test_the_line_about_a_package_has_the_version_of_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if it is unpacked already: the command does that first, and the former version stays unpacked."""
    own = Packages(str(tmp_path / "drop"), str(tmp_path / "cgi-bin"))
    monkeypatch.setattr(package_commands, "own_packages", lambda options: own)
    for number in (1, 2, 1):
        (tmp_path / "shop.zip").write_bytes(package_of(files_of(number, f"version = '1.{number}'")))
        assert package_commands.run("install", [str(tmp_path / "shop.zip")]) == 0
        assert capsys.readouterr().out.endswith(f" (1.{number})\n")


def test_a_killed_installation_leaves_no_files_and_costs_no_version(tmp_path: Path) -> None:
    """suexecme kills one that takes too long. Its directory is newer than that of the version before."""
    own = Packages(str(tmp_path), str(tmp_path / "cgi-bin"))
    for number in (1, 2):
        (tmp_path / "shop.zip").write_bytes(package_of(files_of(number)))
        own.synchronize()
    unpacked = tmp_path / "cgi-bin" / packages.VERSIONS / "shop"
    versions = sorted(os.listdir(unpacked))
    for version in versions:
        os.utime(unpacked / version, (0, 0))
    (unpacked / f"{packages.NEW_PREFIX}killed").mkdir()
    own.synchronize()
    assert len(versions) == 2 and sorted(os.listdir(unpacked)) == versions


def test_a_package_in_the_directory_that_is_packed_is_no_part_of_itself(tmp_path: Path) -> None:
    """The second round finds the package of the first. A package that reads itself may grow without a limit."""
    (tmp_path / "a.py").write_text("1")
    for _ in range(2):
        assert package_commands.run("pack", [str(tmp_path), str(tmp_path / "shop.zip")]) == 0
        with zipfile.ZipFile(tmp_path / "shop.zip") as archive:
            assert archive.namelist() == ["a.py"]
    assert sorted(os.listdir(tmp_path)) == ["a.py", "shop.zip"]


def test_packing_overwrites_no_other_file(tmp_path: Path) -> None:
    """A file named like the package, with another ending, is the user's. The new package has the usual mode."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "a.py").write_text("1")
    (tmp_path / "shop.zip.new").write_text("mine")
    umask = os.umask(0o027)
    try:
        assert package_commands.run("pack", [str(tmp_path / "shop")]) == 0
    finally:
        os.umask(umask)
    assert (tmp_path / "shop.zip.new").read_text() == "mine"
    assert stat.S_IMODE((tmp_path / "shop.zip").stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["shop", "shop.zip", "shop.zip.new"]


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("pack", ["shop", "none/shop.zip"], "cannot write none/shop.zip: No such file or directory"),
        ("pack", ["shop", "shop"], "cannot write shop: Is a directory"),
        ("pack", ["none"], "none is no directory"),
        ("install", ["none.zip"], "none.zip: No such file or directory"),
    ],
)
def test_a_word_that_names_no_file_of_use_is_a_wrong_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: list[str], said: str
) -> None:
    own = Packages(str(tmp_path / "drop"), str(tmp_path / "cgi-bin"))
    monkeypatch.setattr(package_commands, "own_packages", lambda options: own)
    (tmp_path / "shop").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        package_commands.run(name, words)
    assert caught.value.exit_status == 2 and "\n" not in str(caught.value)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    "entry", ["/etc/passwd", "../shop.zip", "..", "sub/../a.py", "./a.py", "none.py", ""]
)
def test_an_entry_is_a_file_of_the_package(tmp_path: Path, entry: str) -> None:
    """Each of these paths but the last two names a file or a directory that exists."""
    (tmp_path / "shop" / "sub").mkdir(parents=True)
    (tmp_path / "shop.zip").touch()
    (tmp_path / "shop" / "a.py").touch()
    packages.check_settings(packages.PackageSettings(entry=("a.py",)), str(tmp_path / "shop"))
    with pytest.raises(BadPackage, match=re.escape(f"its entry {entry!r} is no file in it")):
        packages.check_settings(packages.PackageSettings(entry=("a.py", entry)), str(tmp_path / "shop"))


def test_a_link_that_is_removed_hides_no_other_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ewe-xswitch packages` reads the links without the lock, while an application may end."""
    for name in ("a", "b", "c"):
        (tmp_path / name).symlink_to(f".packages/{name}/0123")
    removed: list[str] = []
    readlink = os.readlink

    def readlink_late(path: str) -> str:
        if not removed:
            removed.append(os.path.basename(path))
            os.unlink(path)
        return readlink(path)

    monkeypatch.setattr(os, "readlink", readlink_late)
    links = Packages(str(tmp_path), str(tmp_path)).links()
    assert removed and links == {name: "0123" for name in "abc" if name not in removed}


def test_settings() -> None:
    assert parse_settings(b"") == packages.PackageSettings()
    text = b"language = 'python'\nversion = '2'\nentry = ['a']\n[environment]\nA = 'b'\n"
    assert parse_settings(text) == ("python", "2", "", ("a",), {"A": "b"})


def test_no_settings_hold_suexecme_for_long() -> None:
    """suexecme parses the settings at a request, and all users wait meanwhile."""
    header = "[" + ".".join("a" * 200) + "]\n"
    lines = "".join(f"b{number}.c = 1\n" for number in range(200))
    for text in (header + lines, "a" + ".a" * packages.MAX_DOTS + " = 1\n", "[a]\n" + "b.c = 1\n" * 2000):
        began = time.process_time()
        with pytest.raises(BadPackage):
            parse_settings(text.encode())
        assert time.process_time() - began < 0.5


def test_no_chain_of_links_holds_suexecme_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel follows 40 links. realpath() would follow thousands, and all users wait meanwhile."""
    account = Account("alice", os.geteuid() or 1234, os.getegid(), groups=(), home=str(tmp_path / "home"))
    monkeypatch.setattr(drop_ins, "account_of", lambda uid: account)
    (tmp_path / "home").mkdir()
    target = "home"
    for number in range(50):
        (tmp_path / f"link{number}").symlink_to(target)
        target = f"link{number}"
    assert owner_of(str(tmp_path / "link0"), Settings()) == account
    assert owner_of(str(tmp_path / "link49"), Settings()) is None


def test_a_uid_without_an_account_has_no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that was started with a free uid."""
    monkeypatch.setattr(os, "geteuid", lambda: (1 << 30) + 1)
    with pytest.raises(UsageError, match="uid 1073741825 has no account"):
        package_commands.run("packages", [])


@pytest.mark.parametrize(
    ("printed", "count"),
    [(b"x" * 499 + b"\n", packages.MAX_PACKAGES), (b"\n" * 600, drop_ins.MAX_LINES)],
    ids=["a line for each package", "a flood"],
)
def test_what_an_installation_reports(printed: bytes, count: int) -> None:
    """A user may have 100 packages. Each line costs suexecme a message, and all other users wait meanwhile."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.write(writer, printed * packages.MAX_PACKAGES)
    os.close(writer)
    looking, account = drop_ins.DropIns(), Account("me", os.geteuid(), os.getegid(), (), "/")
    looking.running[1] = drop_ins.Installation(account, reader, ends_at=0)
    assert looking.take_report(1, status=0) == (account, printed.decode().splitlines()[:1] * count)


def test_an_installation_without_a_descriptor_leaves_none_open(tmp_path: Path) -> None:
    """suexecme looks again each second, and would soon have none for the engines of all users."""
    account = Account("me", os.geteuid(), os.getegid(), (), str(tmp_path))
    reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)
    used = os.listdir("/proc/self/fd")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(reader, writer) + 1, hard))  # two are left
    try:
        with pytest.raises(OSError, match="Too many open files"):
            drop_ins.DropIns().install(account, str(tmp_path), str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert os.listdir("/proc/self/fd") == used


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Leave this process no number for another descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # 0, 1 and 2 are in use
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("scripts", ["cgi-bin", "programs"])
def test_settings_that_cannot_be_read_are_not_taken_for_none(tmp_path: Path, scripts: str) -> None:
    """Without them, a URL could name a file that only `entry` keeps from clients.

    scripts: where the user's packages are unpacked; cgi-bin may be a link to it.
    """
    version = tmp_path / scripts / packages.VERSIONS / "shop" / "0123"
    version.mkdir(parents=True)
    account = Account("me", os.geteuid(), os.getegid(), (), str(tmp_path))
    script = ExaminedScript(account, "", str(version / "data.py"))
    assert drop_ins.settings_for(script, Settings()) == packages.PackageSettings()
    (version / packages.SETTINGS).write_text('entry = ["hello.py"]\n')
    with pytest.raises(Refusal) as refused:
        drop_ins.settings_for(script, Settings())
    assert refused.value.status == 404
    with no_descriptors(), pytest.raises(Refusal, match="Too many open files") as refused:
        drop_ins.settings_for(script, Settings())
    assert refused.value.status == 503


def test_a_first_line_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    """The web server would run a script without an engine itself."""
    script = tmp_path / "script"
    script.write_text("#!/usr/bin/python3\n")
    examined = script.stat()
    with no_descriptors(), pytest.raises(Refusal, match="Too many open files") as refused:
        rules.first_line(str(script), examined)
    assert refused.value.status == 503
    assert rules.first_line(str(script), examined) == b"#!/usr/bin/python3\n"


@pytest.mark.starts_processes
def test_an_installation_is_killed_at_its_deadline_without_a_request() -> None:
    """Once, and suexecme then waits for its end: it would otherwise use all of a processor until then."""
    suexecme = Suexecme.__new__(Suexecme)
    suexecme.leftovers, suexecme.drop_ins = Mock(is_seeking=lambda: False), drop_ins.DropIns()
    assert suexecme.pause_ms(7.0) is None
    account = Account("me", os.geteuid(), os.getegid(), (), "/")
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            suexecme.drop_ins.running[sleeper.pid] = drop_ins.Installation(account, -1, ends_at=7.5)
            assert suexecme.pause_ms(7.0) == 500
            suexecme.drop_ins.end_late(7.25)
            assert sleeper.poll() is None
            assert suexecme.pause_ms(9.0) == 0
            suexecme.drop_ins.end_late(9.0)
            assert suexecme.pause_ms(9.0) is None
            assert sleeper.wait(20) == -signal.SIGKILL
        finally:
            sleeper.kill()


def test_suexecme_wakes_at_the_deadline_of_an_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    orders, main = channel.pair()
    settings_end, supervisor = channel.pair()
    wakeup_reader, wakeup_writer = os.pipe()
    suexecme = Suexecme.__new__(Suexecme)
    suexecme.to_main, suexecme.to_supervisor, suexecme.wakeup_reader = main, supervisor, wakeup_reader
    suexecme.leftovers = Mock(is_seeking=lambda: False)
    monkeypatch.setattr(suexecme_module, "become_subreaper", lambda: None)
    for name in ("report_limits", "start_preloaded", "end_all"):
        monkeypatch.setattr(suexecme, name, lambda: None)
    deadline = time.monotonic() + 0.1

    def end_late(now: float) -> None:
        if now >= deadline:
            orders.close()  # which ends run()

    suexecme.drop_ins = Mock(next_deadline=lambda: deadline, end_late=end_late)
    with orders, main, settings_end, supervisor:
        suexecme.run()
    os.close(wakeup_reader)
    os.close(wakeup_writer)
    assert time.monotonic() >= deadline


# A running X-Switch


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[User, User]]:
    with two_users() as made:
        yield made


@pytest.fixture(scope="module")
def running(two: tuple[User, User]) -> Iterator[XSwitch]:
    with xswitch("time-limit = '20s'") as started:
        yield started


def drop(user: User, name: str, data: bytes, age_s: float = 5) -> Path:
    """Put a package into a user's directory at once: beside it first, then renamed.

    age_s: how long ago it has changed; by default so long that it is not just being copied.
    """
    directory = user.home / "xswitch-packages"
    directory.mkdir(mode=0o755, exist_ok=True)
    new = directory / ".new"
    new.write_bytes(data)
    for path in (directory, new):
        os.chown(path, user.uid, user.gid)
    os.utime(new, (time.time() - age_s,) * 2)
    return new.rename(directory / name)


def ask(running: XSwitch, user: User, path: str, query: str = "") -> tuple[int, str]:
    reply = running.ask(user.public / "cgi-bin" / path, QUERY_STRING=query)
    return reply.status, reply.text.strip()


@pytest.mark.needs("root")
@pytest.mark.starts_processes
def test_drop_in_replace_and_take_away(running: XSwitch, two: tuple[User, User]) -> None:
    alice, _ = two
    settings = "version = '1'\nentry = ['hello.py']\n[environment]\nSHOP = 'open'\nUSER = 'x'\n"
    file = drop(alice, "shop.zip", package_of(files_of(1, settings)))
    answer = f"1 1 1 1 open {alice.uid}"
    link = alice.public / "cgi-bin" / "shop"
    wait_until(lambda: ask(running, alice, "shop/hello.py") == (200, answer), 20, running.log)
    running.wait_for_log(f"{alice.name} the package shop serves: version {os.readlink(link)[-16:]} (1)")
    for path in ("shop/part.py", "shop/package.toml", "shop/data.txt"):
        assert ask(running, alice, path)[0] == 404, path
    assert ask(running, alice, f"{os.readlink(link)}/hello.py")[0] == 404
    assert link.joinpath("hello.py").stat().st_uid == alice.uid
    drop(alice, "shop.zip", b"broken")
    line = f"{file}: it is no whole zip file: File is not a zip file; its former version continues to serve"
    wait_until(lambda: asked(running, alice, "shop/hello.py", 200) and line in running.log(), 20, running.log)
    assert ask(running, alice, "shop/hello.py") == (200, answer)
    file.unlink()
    wait_until(lambda: ask(running, alice, "shop/hello.py")[0] == 404, 20, running.log)
    running.wait_for_log("the package shop is gone")


@pytest.mark.needs("root")
@pytest.mark.starts_processes
def test_a_package_from_a_clock_that_is_ahead_is_installed(running: XSwitch, two: tuple[User, User]) -> None:
    alice, _ = two
    file = drop(alice, "early.zip", package_of(files_of(3)), age_s=-3600)
    wait_until(lambda: asked(running, alice, "early/hello.py", 200), 20, running.log)
    file.unlink()
    wait_until(lambda: asked(running, alice, "early/hello.py", 404), 20, running.log)


@pytest.mark.needs("root")
@pytest.mark.starts_processes
def test_the_first_visitors_of_a_package_wait_for_it(running: XSwitch, two: tuple[User, User]) -> None:
    """All of them are answered by it, also one with a path behind the script. A false name is still 404."""
    _, bob = two
    time.sleep(CHECK_S)  # X-Switch looks once in this time
    file = drop(bob, "new.zip", package_of({**files_of(4), "big": os.urandom(8 << 20)}))
    names = ["hello.py", "hello.py", "hello.py/path", "none.py"]
    waiting = [running.asking(bob.public / "cgi-bin" / "new" / name) for name in names]
    assert [wait().status for wait in waiting] == [200, 200, 200, 404], running.log()
    file.unlink()
    wait_until(lambda: asked(running, bob, "new/hello.py", 404), 20, running.log)


def wait_for_answer(running: XSwitch, user: User, path: str, text: str) -> None:
    """Ask until the answer is this one."""
    wait_until(lambda: ask(running, user, path) == (200, text), 20, running.log)


def asked(running: XSwitch, user: User, path: str, status: int) -> bool:
    """Return whether a request has this status. X-Switch looks for packages when a request comes."""
    return ask(running, user, path)[0] == status


@pytest.mark.needs("root")
@pytest.mark.starts_processes
def test_nothing_of_another_user_is_installed(running: XSwitch, two: tuple[User, User]) -> None:
    """bob's file in alice's directory, a link to it, and a directory that others may write to."""
    alice, bob = two
    directory = alice.home / "xswitch-packages"
    hers = drop(alice, "hers.zip", package_of(files_of(1)))
    his = drop(bob, "his.zip", package_of(files_of(2)))
    shutil.copy2(his, directory / "copied.zip")
    os.chown(directory / "copied.zip", bob.uid, bob.gid)
    (directory / "linked.zip").symlink_to(his)
    os.mkfifo(directory / "pipe.zip")
    wait_until(lambda: ask(running, alice, "hers/hello.py")[0] == 200, 20, running.log)
    running.wait_for_log(f"copied.zip: it belongs to uid {bob.uid}, not to the owner of this directory")
    running.wait_for_log("linked.zip: Too many levels of symbolic links")
    running.wait_for_log("pipe.zip: it is no regular file")
    assert sorted(os.listdir(alice.public / "cgi-bin")) == [".packages", "hers"]
    for each in ("copied.zip", "linked.zip", "pipe.zip"):
        (directory / each).unlink()
    directory.chmod(0o777)
    drop(alice, "more.zip", hers.read_bytes())
    directory.chmod(0o777)
    wait_until(
        lambda: asked(running, alice, "more/hello.py", 404) and "writable by others: chmod" in running.log(),
        20,
        running.log,
    )
    directory.chmod(0o755)
    shutil.rmtree(directory)


@pytest.mark.needs("root")
@pytest.mark.starts_processes
def test_variables_and_a_path_that_no_message_can_carry_are_refused(
    running: XSwitch, two: tuple[User, User]
) -> None:
    """A byte that is not UTF-8 takes six bytes in a message. suexecme goes on, and so do all engines."""
    alice, bob = two
    version = alice.public / "cgi-bin" / ".packages" / "long" / "1"
    directory = version.joinpath(*[os.fsdecode(b"\xff" * 250)] * 14)
    directory.mkdir(parents=True)
    directory.joinpath("x.py").write_text(PYTHON_HELLO)
    version.joinpath("package.toml").write_text(f"environment.LONG = '{'é' * 8000}'\n")
    link = alice.public / "cgi-bin" / "long.py"
    link.symlink_to(directory / "x.py")
    subprocess.run(["chown", "-hR", f"{alice.uid}:{alice.gid}", alice.public], check=True)
    hello = bob.write("hello.py", PYTHON_HELLO)
    assert running.ask(hello).text == "hello\n", running.log()
    before = running.members(), running.engines()[0]["pid"]
    assert running.ask(link).status == 500
    running.wait_for_log(": its path and the variables of its package are too long")
    version.joinpath("package.toml").write_text("environment.SHORT = 'é'\n")
    wait_until(lambda: running.ask(link).text == "hello\n", 20, running.log)
    assert before[1] in {engine["pid"] for engine in running.engines()} and running.members() == before[0]


@pytest.mark.needs("root")
@pytest.mark.starts_processes
def test_eight_clients_during_changes_of_version(running: XSwitch, two: tuple[User, User]) -> None:
    """No request is lost, and no answer has parts of two versions: also one that runs through the change."""
    alice, _ = two
    versions = [package_of(files_of(number)) for number in range(1, 5)]
    drop(alice, "shop.zip", versions[0])
    wait_until(lambda: ask(running, alice, "shop/hello.py")[0] == 200, 20, running.log)
    answers: Counter[tuple[int, str]] = Counter()
    ending = threading.Event()

    def visit(query: str) -> None:
        with running.connect() as connection:
            while not ending.is_set():
                reply = connection.ask(alice.public / "cgi-bin/shop/hello.py", QUERY_STRING=query)
                answers[reply.status, reply.text.strip()] += 1

    clients = [threading.Thread(target=visit, args=("0.3" if number < 2 else "",)) for number in range(8)]
    for client in clients:
        client.start()
    try:
        for number in (2, 3, 4, 3):  # the last is a rollback
            drop(alice, "shop.zip", versions[number - 1])
            answer = f"{number} {number} {number} {number} None {alice.uid}"
            wait_for_answer(running, alice, "shop/hello.py", answer)
            time.sleep(0.5)
    finally:
        ending.set()
        for client in clients:
            client.join()
    right_answers = {(200, f"{number} {number} {number} {number} None {alice.uid}") for number in range(1, 5)}
    assert set(answers) == right_answers, answers
    assert sum(answers.values()) > 200


def command(user: User, *words: str) -> tuple[int, str]:
    """Run `ewe-xswitch` as a user; return its status, and what it prints."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from ewe.xswitch.cli import main; sys.exit(main())"
    )
    process = subprocess.run(
        ["python3", "-c", code, *words],
        user=user.uid, group=user.gid, extra_groups=[], cwd=user.home, capture_output=True, text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(user.home)},
    )  # fmt: skip
    return process.returncode, process.stdout + process.stderr


@pytest.mark.needs("root")
@pytest.mark.starts_processes
def test_the_commands_and_a_second_account(running: XSwitch, two: tuple[User, User]) -> None:
    """Pack, install, install the file for another account, roll back, remove."""
    alice, bob = two
    for number in (1, 2):
        source = alice.home / f"v{number}" / "store"
        source.mkdir(parents=True)
        for name, text in files_of(number).items():
            (source / name).write_text(text)
        assert pack(str(source), f"{source}.zip") == 5
    archives = [str(alice.home / f"v{number}" / "store.zip") for number in (1, 2)]
    assert command(alice, "install", archives[0])[0] == 0
    for number, uid, user in ((2, alice.uid, alice), (1, alice.uid, alice), (1, bob.uid, bob)):
        status, text = command(user, "install", archives[number - 1])
        assert status == 0 and "the package store serves: version" in text
        answer = f"{number} {number} {number} {number} None {uid}"
        wait_for_answer(running, user, "store/hello.py", answer)
    [listed] = [line.split() for line in command(alice, "packages")[1].splitlines() if "store" in line]
    assert listed[1:3] == [
        os.readlink(alice.public / "cgi-bin/store")[-16:],
        str(alice.home / "xswitch-packages/store.zip"),
    ]
    assert listed[1] == os.readlink(bob.public / "cgi-bin/store")[-16:]  # the same file is the same version
    Path(archives[0]).write_bytes(entry_of("../evil"))
    status, text = command(alice, "install", archives[0])
    assert (
        status == 1 and f"{archives[0]}: the name '../evil' leads outside" in text and text.count("\n") == 1
    )
    assert command(alice, "install", archives[0][:-4])[0] == 2
    assert command(alice, "remove", "../store")[0] == 1
    assert command(alice, "remove", "store") == (0, "the package store is gone: the application ends\n")
    assert ask(running, alice, "store/hello.py")[0] in (
        200,
        404,
    )  # X-Switch remembers a script for two seconds
    wait_until(lambda: asked(running, alice, "store/hello.py", 404), 20, running.log)
