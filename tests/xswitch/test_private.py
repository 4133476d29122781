"""Private file systems (setting `private`): an engine sees its user's files and the system's, and no others."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import needs
from support.accounts import User
from support.proc import children_of
from support.server import wait_until
from support.xswitch_client import HEAD, PYTHON_HELLO, XSwitch, xswitch

from ewe.xswitch.engine_kinds import BUILT_IN, ENGINES
from ewe.xswitch.privileged import namespaces
from ewe.xswitch.privileged.namespaces import namespace_obstacle, outermost, programs_of
from ewe.xswitch.privileged.work import WorkDirectories, own_directory, remove_empty
from ewe.xswitch.process import Account
from ewe.xswitch.public import with_engines_in
from ewe.xswitch.settings import Settings, from_toml, read_copy, write_copy


@pytest.mark.starts_processes
def test_a_process_that_ends_within_its_work_makes_no_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill_this_process(homes: object, visible: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does if it has no memory left

    monkeypatch.setattr(namespaces, "arrange_mounts", kill_this_process)
    with pytest.raises(OSError, match="the process that makes it has ended"):
        namespaces.make_namespace((), ())


def test_a_namespace_without_a_process_takes_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process_left() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", no_process_left)
    used = os.listdir("/proc/self/fd")
    with pytest.raises(BlockingIOError):
        namespaces.make_namespace((), ())
    assert os.listdir("/proc/self/fd") == used


def test_which_paths_stay() -> None:
    assert outermost(["/a/b/c", "/a/b", "/a/bc", "/a/b", "/d"]) == ["/a/b", "/a/bc", "/d"]
    assert outermost(["/", "/a"]) == ["/"]
    assert {*programs_of(Settings())} == {ENGINES}
    copied = os.path.join(tempfile.gettempdir(), "xswitch-engines-abc")
    assert copied in programs_of(with_engines_in(Settings(), copied))
    own = from_toml({"engines": {"x": {"command": ["/home/a/x", "y", "/b"], "extensions": [".x"]}}}, "x")
    assert {"/home/a/x", "/b"} <= {*programs_of(own)} and "/home/a" not in programs_of(own)
    assert BUILT_IN["php"].command[0] not in programs_of(own)  # found by PATH


def test_the_setting_of_a_user_is_stronger_than_the_general_one() -> None:
    settings = from_toml(
        {"private": True, "private-homes": ["/srv/homes"], "users": {"a": {"private": False}}}, "x"
    )
    assert [settings.is_private(settings.user_limits(user)) for user in ("a", "b")] == [False, True]
    descriptor = write_copy(settings)
    assert read_copy(descriptor) == settings
    os.close(descriptor)


def test_a_directory_that_another_user_has_made_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    taken = tmp_path / "taken"
    taken.symlink_to("/etc")
    other = own_directory(str(taken))
    assert other.startswith(f"{taken}-") and stat.S_IMODE(os.stat("/etc").st_mode) != 0o711
    fresh = tmp_path / "fresh"
    assert own_directory(str(fresh)) == own_directory(str(fresh)) == str(fresh)
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o711


def test_empty_work_directories_are_removed_and_no_link_is_followed(tmp_path: Path) -> None:
    base, other = tmp_path / "base", tmp_path / "other"
    for path in (base / "empty", base / "full" / "kept", other / "empty"):
        path.mkdir(parents=True)
    (tmp_path / "link").symlink_to(other)
    remove_empty(str(tmp_path / "link"))
    remove_empty(str(tmp_path / "none"))
    assert (other / "empty").exists()
    remove_empty(str(base))
    assert os.listdir(base) == ["full"]
    (base / "full" / "kept").rmdir()
    remove_empty(str(base))
    assert not base.exists()


@pytest.mark.starts_processes
def test_a_directory_stays_where_no_descriptor_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error here would end suexecme, and with it the engines of all users. The end of suexecme removes it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    directories, account = WorkDirectories(), Account("me", os.geteuid(), os.getegid(), (), "/")
    directory, pid_of_engine = directories.make(account), 4711
    directories.note_engine(directory, pid_of_engine, account)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # 0, 1 and 2 are in use
    try:
        directories.remove_of_engine(pid_of_engine)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert os.path.isdir(directory) and not directories.removers
    directories.remove_all()
    assert not os.path.exists(directories.base)


@pytest.mark.starts_processes
@pytest.mark.needs("root")
def test_a_directory_without_permissions_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script may take the permissions of a directory away, and its user, who removes it, is not root."""
    with tempfile.TemporaryDirectory(prefix="test-work-") as parent:
        os.chmod(parent, 0o711)
        monkeypatch.setattr(tempfile, "tempdir", parent)
        directories, account = WorkDirectories(), Account("nobody", 65534, 65534, (), "/")
        directory = Path(directories.make(account))
        inner = directory / "closed" / "inner"
        inner.mkdir(parents=True)
        (inner / "file").touch()
        (directory / "link").symlink_to(parent)
        subprocess.run(["chown", "-hR", "65534", str(directory)], check=True)
        inner.chmod(0)
        inner.parent.chmod(0)
        directories.note_engine(str(directory), 4711, account)
        directories.remove_all()
        assert os.listdir(parent) == []


def test_why_there_are_none_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert namespace_obstacle() == "only root may make a mount namespace"
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def forbid(**_: object) -> int:
        raise PermissionError(1, "Operation not permitted", "unshare")

    monkeypatch.setattr(namespaces, "make_namespace", forbid)
    assert namespace_obstacle() == "the system allows no mount namespace (unshare: Operation not permitted)"


# With accounts

LOOK = f"""import os, sys
print("{HEAD}")
for path in {{paths!r}}:
    try:
        print(*sorted(os.listdir(path)) if os.path.isdir(path) else [open(path).read()])
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.fixture(scope="module")
def users(users: tuple[User, User]) -> tuple[User, User]:
    if reason := namespace_obstacle():
        needs.lacks("root", reason)
    return users


@pytest.fixture(scope="module", params=["true", "false"])
def running(request: pytest.FixtureRequest, users: tuple[User, User]) -> Iterator[XSwitch]:
    """An X-Switch with private engines, with preloaded parents and without."""
    with xswitch(f"private = true\npreload = {request.param}\n") as started:
        yield started


def look(running: XSwitch, user: User, *paths: Path | str) -> list[str]:
    """Return what a script of a user reads at these paths."""
    reply = running.ask(user.write("look.py", LOOK.format(paths=[*map(str, paths)])))
    assert reply.status == 200, running.log()
    return reply.text.splitlines()


@pytest.mark.starts_processes
def test_alice_sees_neither_bobs_home_nor_the_common_tmp(running: XSwitch, users: tuple[User, User]) -> None:
    alice, bob = users
    open_to_all = bob.write("notes.txt", "of bob", 0o644)
    mine = alice.write("notes.txt", "of alice", 0o644)
    with tempfile.NamedTemporaryFile(prefix="of-others-", dir="/tmp") as left:
        os.chmod(left.name, 0o644)
        assert look(running, alice, mine, open_to_all, left.name, "/home", "/dev/shm", bob.home) == [
            "of alice", "FileNotFoundError", "FileNotFoundError", "", "", "FileNotFoundError",
        ]  # fmt: skip
    assert look(running, bob, open_to_all, mine) == ["of bob", "FileNotFoundError"]
    site = running.script("notes.txt", "of the site")
    assert look(running, alice, site) == ["of the site"]  # the site's roots are no secret


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("w.py", f"open('/tmp/{{0}}', 'w').write('x')\nprint('{HEAD}')"),
        ("w.pl", f"open(F, '>', '/tmp/{{0}}'); print F 'x'; print \"{HEAD}\\n\";"),
        pytest.param(
            "w.php", "<?php file_put_contents('/tmp/{0}', 'x');", marks=pytest.mark.needs("php-cgi")
        ),
    ],
)
def test_the_engines_of_a_user_share_a_tmp_of_their_own(
    running: XSwitch, users: tuple[User, User], name: str, text: str
) -> None:
    alice, bob = users
    file = f"left-by-{name}-{os.getpid()}"
    assert running.ask(alice.write(name, text.format(file))).status in (200, 502), running.log()
    assert look(running, alice, f"/tmp/{file}") == ["x"]
    assert look(running, bob, f"/tmp/{file}") == ["FileNotFoundError"]
    assert not Path(f"/tmp/{file}").exists()


ESCAPES = f"""import ctypes, os
print("{HEAD}")
libc = ctypes.CDLL(None, use_errno=True)
os.makedirs("/tmp/r", exist_ok=True)
print("umount", libc.umount2(b"/tmp", 2), libc.umount2(b"/home", 2))
print("unshare", libc.unshare(0x20000))
print("setns", libc.setns(os.open("/proc/self/ns/mnt", os.O_RDONLY), 0x20000))
if libc.unshare(0x10000000 | 0x20000) == 0:
    print("in a user namespace", libc.umount2(b"/tmp", 2), libc.umount2(b"/home", 2))
for pid in (1, {{pids}}):
    try:
        os.listdir(f"/proc/{{pid}}/root/tmp")
        print("reached")
    except OSError as error:
        print(type(error).__name__)
try:
    os.mkdir("/home/new")
except OSError as error:
    print(type(error).__name__)
"""


@pytest.mark.starts_processes
def test_no_way_leads_out(running: XSwitch, users: tuple[User, User]) -> None:
    alice, bob = users
    assert look(running, bob, bob.public)
    members = running.members()
    of_bob = next(each["pid"] for each in running.engines() if each["user"] == bob.name)
    pids = ", ".join(map(str, (members["main"], members["suexecme"], of_bob)))
    reply = running.ask(alice.write("escapes.py", ESCAPES.replace("{pids}", pids)))
    lines = reply.text.splitlines()
    assert lines[:3] == ["umount -1 -1", "unshare -1", "setns -1"], reply.text + running.log()
    assert lines[3] in ("in a user namespace -1 -1", "PermissionError")
    assert lines[4:] == [*["PermissionError"] * 4, "OSError"]


@pytest.mark.starts_processes
@pytest.mark.usefixtures("users")
def test_a_home_stays_visible_behind_a_link_and_below_a_root(tmp_path: Path) -> None:
    """/home may be a link, and a directory in `roots` may contain it."""
    real = tmp_path / "real"
    (real / "alice" / "notes").mkdir(parents=True)
    (real / "bob").mkdir()
    (tmp_path / "link").symlink_to(real)
    descriptor = namespaces.make_namespace([str(real)], [str(tmp_path / "link" / "alice"), "/"])
    inside = ["nsenter", f"--mount=/proc/{os.getpid()}/fd/{descriptor}", "find", str(real), "-mindepth", "1"]
    found = subprocess.run(inside, capture_output=True, text=True, check=True).stdout.split()
    os.close(descriptor)
    assert found == [str(real / "alice"), str(real / "alice" / "notes")]


@pytest.mark.starts_processes
def test_the_private_tmp_ends_with_the_last_engine(users: tuple[User, User]) -> None:
    alice, _ = users
    with xswitch("private = true\npreload = false\nidle = '0.2s'\n") as running:
        left = alice.write("w.py", f"open('/tmp/left', 'w').write('x')\nprint('{HEAD}')")
        running.ask(left)
        suexecme = running.members()["suexecme"]
        wait_until(lambda: not running.engines() and not children_of(suexecme), 20)
        assert look(running, alice, "/tmp/left") == ["FileNotFoundError"]


FILLS = f"""import os, sys
print("{HEAD}")
try:
    with open("/tmp/large", "wb", 0) as file:
        while True: file.write(bytes(1 << 20))
except OSError as error:
    print(error.strerror, os.path.getsize("/tmp/large") >> 20)
os.unlink("/tmp/large")
"""


@pytest.mark.starts_processes
def test_a_private_tmp_has_a_size(running: XSwitch, users: tuple[User, User]) -> None:
    reply = running.ask(users[0].write("fills.py", FILLS))
    assert 32 < int(reply.text.split()[-1]) <= 64 and "No space left on device" in reply.text, running.log()


@pytest.mark.starts_processes
def test_one_user_alone_may_be_private(users: tuple[User, User]) -> None:
    alice, bob = users
    notes = alice.write("notes.txt", "of alice", 0o644), bob.write("notes.txt", "of bob", 0o644)
    with xswitch(f"[users.{alice.name}]\nprivate = true\n") as running:
        assert look(running, alice, *notes) == ["of alice", "FileNotFoundError"]
        assert look(running, bob, *notes) == ["of alice", "of bob"]


@pytest.mark.starts_processes
def test_where_the_system_allows_none_a_private_engine_does_not_start(users: tuple[User, User]) -> None:
    """root without CAP_SYS_ADMIN, as in many containers. The log says it once, and other users are served."""
    alice, bob = users
    prefix = ("setpriv", "--bounding-set", "-sys_admin")
    with xswitch(f"[users.{alice.name}]\nprivate = true\n", prefix=prefix) as running:
        running.wait_for_log(
            "private: the system allows no mount namespace (unshare: Operation not permitted): engines of the users"
            " concerned do not start"
        )
        script = alice.write("hello.py", PYTHON_HELLO)
        assert running.ask(script).status == 503
        running.wait_for_log(
            f"{script}: 503, {alice.name} has no private file system: unshare: Operation not"
        )
        assert running.ask(bob.write("hello.py", PYTHON_HELLO)).status == 200
