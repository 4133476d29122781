"""Users of X-Switch: each script runs as its owner, and hurts nobody else.

With accounts made for the purpose, so all but the last tests are there only for root.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import needs
from support.accounts import User
from support.proc import open_files
from support.server import wait_until
from support.xswitch_client import HEAD, PYTHON_HELLO, Reply, XSwitch, xswitch

from ewe.xswitch.privileged import rules
from ewe.xswitch.privileged.rules import Refusal, examine
from ewe.xswitch.privileged.suexecme import log_directory_of
from ewe.xswitch.process import (
    JOIN_SESSION_KEYRING,
    KEYCTL_NUMBERS,
    Account,
    EngineLimits,
    become,
    start,
)
from ewe.xswitch.settings import Settings
from ewe.xswitch.switch.identify import CACHE_SECONDS
from ewe.xswitch.user_logs import MAX_LOG_BYTES, directory_fault, open_log

pytestmark = pytest.mark.starts_processes

SETTINGS = """time-limit = '3s'
max-engines-per-user = 3
[limits]
memory = '400m'
processes = 40
files = 64
cpu = 60
"""


@pytest.fixture(scope="module")
def running(users: tuple[User, User]) -> Iterator[XSwitch]:
    with xswitch(SETTINGS) as started:
        yield started


def try_out(running: XSwitch, user: User, code: str) -> str:
    """Run Python code as a user; return what it says, or the name of the error that ends it."""
    lines = "\n".join("    " + line for line in code.splitlines())
    script = user.write(
        "try.py",
        f'print("{HEAD}")\ntry:\n{lines}\nexcept BaseException as error:\n    print(type(error).__name__)\n',
    )
    reply = running.ask(script)
    assert reply.status == 200, running.log()
    return reply.text.strip()


# The account of a program


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("id.py", f'import os\nprint("{HEAD}\\n", *os.getresuid(), *os.getresgid(), *os.getgroups())'),
        ("id.pl", f'print "{HEAD}\\n$< $> $< $( $)\\n";'),
        pytest.param(
            "id.php", "<?php echo posix_getuid(), ' ', posix_geteuid();", marks=pytest.mark.needs("php-cgi")
        ),
    ],
)
def test_a_script_runs_as_its_owner(running: XSwitch, users: tuple[User, User], name: str, text: str) -> None:
    for user in users:
        words = running.ask(user.write(name, text)).text.split()
        numbers = {int(word) for word in words}
        assert numbers <= {user.uid, user.gid} and int(words[0]) == user.uid, running.log()


def test_scripts_of_the_site_may_have_a_user_of_their_own(users: tuple[User, User]) -> None:
    """What they can end and connect to is then not X-Switch."""
    alice, _ = users
    with xswitch() as running:  # without the limits of `running`: other tests have processes of nobody, too
        running.wait_for_log("script-user: scripts of the site run as nobody, as X-Switch itself does")
        script = running.script("id.py", f'import os\nprint("{HEAD}\\n", *os.getresuid())')
        assert set(running.ask(script).text.split()) == {str(pwd.getpwnam("nobody").pw_uid)}
    directory = Path(tempfile.mkdtemp(prefix="test-socket-"))
    directory.chmod(0o755)
    listen = f"unix:{directory}/x.sock"
    with xswitch(f"script-user = '{alice.name}'", listen=listen) as running:
        code = f"""import os, socket
print("{HEAD}\\n", os.getuid())
for attempt in (
    lambda: os.kill({running.members()["main"]}, 9),
    lambda: socket.socket(socket.AF_UNIX).connect("{directory}/x.sock"),
):
    try:
        attempt()
    except PermissionError as error:
        print(type(error).__name__)
"""
        script = running.script("site.py", code)
        for owner in (0, alice.uid, pwd.getpwnam("nobody").pw_uid):
            os.chown(script, owner, owner)
            assert running.ask(script).text.split() == [str(alice.uid), *["PermissionError"] * 2]
        assert "script-user" not in running.log()
    shutil.rmtree(directory)


def test_no_privilege_is_regained(running: XSwitch, users: tuple[User, User]) -> None:
    alice, _ = users
    assert "NoNewPrivs:\t1" in try_out(running, alice, "print(open('/proc/self/status').read())")
    assert try_out(running, alice, "import os; os.setuid(0)") == "PermissionError"
    assert try_out(running, alice, "import os; os.setgroups([0])") == "PermissionError"
    limits = try_out(running, alice, "print(open('/proc/self/limits').read())")
    rows = {line[:25].strip(): line[25:].split()[:2] for line in limits.splitlines()}
    assert rows["Max address space"] == ["419430400"] * 2 and rows["Max processes"] == ["40"] * 2
    assert rows["Max open files"] == ["64"] * 2 and rows["Max cpu time"] == ["60"] * 2
    main = running.members()["main"]
    status = Path(f"/proc/{main}/status").read_text()
    nobody = pwd.getpwnam("nobody").pw_uid
    assert f"Uid:\t{nobody}\t{nobody}\t{nobody}\t{nobody}" in status and "CapEff:\t0000000000000000" in status


CONFINED = f"""use strict; use warnings; use CGI;
print "{HEAD}\\n";
open my $status, '<', '/proc/self/status'; print grep {{ /^(Uid|Gid|Groups|Cap|NoNew|Sig)/ }} <$status>;
open my $limits, '<', '/proc/self/limits'; print <$limits>;
close $_ for $status, $limits;
my $session = do {{ open my $stat, '<', "/proc/$$/stat"; (split ' ', <$stat>)[5] }};
print "session $$ $session\\n", "links ", join(' ', map {{ readlink // () }} glob "/proc/$$/fd/*"), "\\n";
print "environment ", join(' ', sort keys %ENV), "\\n";
for my $again (sub {{ $> = 0; $> }}, sub {{ $) = '0 0'; $) + 0 }}, sub {{ require POSIX; POSIX::setuid(0); $< }}) {{
    print "regained\\n" if $again->() == 0;
}}
"""


@pytest.mark.parametrize("isolation", ["none", "fork"])
@pytest.mark.parametrize("preload", ["true", "false"])
def test_an_engine_of_perl_is_confined_forked_or_not(
    users: tuple[User, User], preload: str, isolation: str
) -> None:
    """No privilege of root is left in the engine: ids, groups, capabilities, limits, descriptors, environment."""
    alice, _ = users
    group = pwd.getpwnam("nobody").pw_gid
    subprocess.run(["usermod", "-G", str(group), alice.name], check=True)
    with xswitch(f"preload = {preload}\n{SETTINGS}\n[engines.perl]\nisolation = '{isolation}'") as running:
        text = running.ask(alice.write("confined.pl", CONFINED)).text
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":\t" in line)
        assert fields["Uid"].split() == [str(alice.uid)] * 4 and fields["Gid"].split() == [str(alice.gid)] * 4
        assert {int(number) for number in fields["Groups"].split()} == {alice.gid, group}
        assert {int(fields[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
        assert fields["NoNewPrivs"].strip() == "1"
        ignored = {number for number in signal.valid_signals() if int(fields["SigIgn"], 16) >> number - 1 & 1}
        assert int(fields["SigBlk"], 16) == 0 and ignored <= {signal.SIGFPE}  # which Perl itself ignores
        rows = {line[:25].strip(): line[25:].split()[:2] for line in text.splitlines() if "Max" in line}
        assert rows["Max address space"] == ["419430400"] * 2 and rows["Max processes"] == ["40"] * 2
        assert rows["Max open files"] == ["64"] * 2 and rows["Max cpu time"] == ["60"] * 2
        assert rows["Max core file size"] == ["0"] * 2
        said = dict(
            line.split(" ", 1)
            for line in text.splitlines()
            if line.startswith(("session ", "links ", "environment "))
        )
        assert isolation == "fork" or len(set(said["session"].split())) == 1
        links = said["links"].split()
        assert sum("socket" in link for link in links) <= 3 and len(links) <= 12, links
        assert "LOGNAME" not in said["environment"] and "HOME" in said["environment"]
        assert "regained" not in text
    subprocess.run(["usermod", "-G", "", alice.name], check=True)


def test_alice_cannot_read_what_is_bobs(running: XSwitch, users: tuple[User, User]) -> None:
    alice, bob = users
    secret = bob.write("secret.txt", "of bob", 0o600)
    assert try_out(running, bob, f"print(open({str(secret)!r}).read())") == "of bob"
    assert try_out(running, alice, f"print(open({str(secret)!r}).read())") == "PermissionError"
    assert try_out(running, alice, f"open({str(bob.public)!r} + '/new', 'w')") == "PermissionError"


KEYCTL = KEYCTL_NUMBERS.get(os.uname().machine, 0)
KEY = "ewe:test"
# Starts a command in a session keyring with a key, as a log-in of root may have one (add_key(2), KEYCTL - 2)
WITH_A_KEY = f"""import ctypes, os, sys
call = ctypes.CDLL(None).syscall
call({KEYCTL}, {JOIN_SESSION_KEYRING}, None)
call({KEYCTL - 2}, b"user", b"{KEY}", b"secret", 6, -3)
os.execv(sys.argv[1], sys.argv[1:])
"""
# Prints the number of the key that the session keyring has under this name, -1 without one: KEYCTL_SEARCH
FIND_A_KEY = {
    "key.py": f"""import ctypes
print("{HEAD}")
print(ctypes.CDLL(None).syscall({KEYCTL}, 10, -3, b"user", b"{KEY}", 0))
""",
    "key.pl": f'my @key = ("user", "{KEY}"); print "{HEAD}\\n", syscall({KEYCTL}, 10, -3, @key, 0), "\\n";',
}


@pytest.mark.needs("Perl")
@pytest.mark.parametrize("preload", ["true", "false"])
def test_alice_finds_no_key_of_root(users: tuple[User, User], preload: str) -> None:
    """A process that has root's session keyring may read its keys, whatever its user (keyrings(7))."""
    look = [sys.executable, "-c", WITH_A_KEY, sys.executable, "-c", FIND_A_KEY["key.py"]]
    if not KEYCTL or b"-1" in subprocess.run(look, capture_output=True, check=True).stdout:
        needs.lacks("root", "no keyrings that this account may use")
    with xswitch(f"preload = {preload}\n", prefix=("/usr/bin/python3", "-c", WITH_A_KEY)) as running:
        for name, text in FIND_A_KEY.items():
            assert running.ask(users[0].write(name, text)).text == "-1\n", running.log()


def test_alice_cannot_touch_other_processes(running: XSwitch, users: tuple[User, User]) -> None:
    alice, bob = users
    try_out(running, bob, "print(1)")
    engine = next(each["pid"] for each in running.engines() if each["user"] == bob.name)
    members = running.members()
    for pid in (engine, members["main"], members["suexecme"], running.process.pid):
        assert try_out(running, alice, f"import os; os.kill({pid}, 9)") == "PermissionError"
        assert (
            try_out(running, alice, f"import os; print(os.readlink('/proc/{pid}/fd/3'))") == "PermissionError"
        )
        assert try_out(running, alice, f"open('/proc/{pid}/mem', 'rb')") == "PermissionError"
    assert engine in {each["pid"] for each in running.engines()}


def test_alice_cannot_read_roots_memory_in_a_process_that_is_about_to_be_hers(
    users: tuple[User, User],
) -> None:
    """Until execve(2), it has the memory of suexecme, in which the key of `tls-key` lies."""
    alice, _ = users
    account = Account(alice.name, alice.uid, alice.gid, (alice.gid,), str(alice.home))
    waits, goes_on = os.pipe()

    def become_and_wait() -> None:
        become(account, EngineLimits())
        os.write(1, b"x")
        os.read(0, 1)

    says, said = os.pipe()
    pid = start(["cat"], {"PATH": "/usr/bin:/bin"}, {0: waits, 1: said, 2: 2}, become_and_wait)
    try:
        assert os.read(says, 1) == b"x"
        for name in ("mem", "maps", "environ", "fd/0"):
            reads = ["head", "-c", "1", f"/proc/{pid}/{name}"]
            seen = subprocess.run(
                reads, user=alice.uid, group=alice.gid, extra_groups=[], capture_output=True
            )
            assert b"Permission denied" in seen.stderr, (name, seen)
        os.write(goes_on, b"x")
        wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "cat\n", 20)
        assert os.stat(f"/proc/{pid}").st_uid == alice.uid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for end in (waits, goes_on, says, said):
            os.close(end)


@pytest.mark.parametrize("preload", ["true", "false"])
def test_an_engine_is_its_users_process(users: tuple[User, User], preload: str) -> None:
    """As each process that the user starts: a debugger, /proc/self and /dev/fd work."""
    alice, _ = users
    with xswitch(f"preload = {preload}\n{SETTINGS}") as running:
        for name, text in (
            ("owner.py", f"import os\nprint('{HEAD}\\n', os.stat('/proc/self').st_uid)\n"),
            ("owner.pl", f'print "{HEAD}\\n", (stat "/proc/self")[4];'),
        ):
            assert int(running.ask(alice.write(name, text)).text) == alice.uid, running.log()


def test_alice_has_no_socket_but_her_own(running: XSwitch, users: tuple[User, User]) -> None:
    """Control sockets have no name, those of PHP no longer; no descriptor is inherited."""
    alice, bob = users
    running.ask(bob.write("a.php", "bob"))
    code = """import os
for n in range(20):
    try: print(n, os.readlink(f"/proc/self/fd/{n}"))
    except OSError: pass
"""
    links = dict(line.split(" ", 1) for line in try_out(running, alice, code).splitlines())
    assert all(int(number) <= 7 for number, target in links.items() if "socket" in target), links
    engine = next(each["pid"] for each in running.engines() if each["language"] == "php")
    ours = {name[len("socket:[") : -1] for name in open_files(engine).values() if name.startswith("socket:[")}
    rows = [row.split() for row in Path("/proc/net/unix").read_text().splitlines()]
    paths = {row[7] for row in rows if len(row) > 7 and row[6] in ours}
    assert paths
    for path in paths:
        connects = f"import socket\nsocket.socket(socket.AF_UNIX).connect({path!r})"
        assert try_out(running, alice, connects) == "FileNotFoundError"


def test_alices_socket_modes_hold(users: tuple[User, User]) -> None:
    alice, _ = users
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    path = directory / "x.sock"
    with xswitch(listen=f"unix:{path}") as running:
        assert (
            try_out(running, alice, f"import socket\nsocket.socket(socket.AF_UNIX).connect({str(path)!r})")
            == "PermissionError"
        )
    shutil.rmtree(directory)


# A fault that harms only the user's own engines


def prompt(running: XSwitch, bob: User) -> float:
    """Return the seconds that bob waits for a small answer."""
    script = bob.write("prompt.py", PYTHON_HELLO)
    began = time.monotonic()
    assert running.ask(script).text == "hello\n"
    return time.monotonic() - began


def hurts_only_alice(running: XSwitch, alice: User, bob: User, code: str, seconds: float = 3) -> list[Reply]:
    """Let alice run code in as many engines as she may have; bob must be answered meanwhile, within `seconds`.

    A busy machine has longer: ten times as long as it took for an answer before.
    """
    before = alice.processes()  # engines, some of another X-Switch
    script = alice.write("hurt.py", code)
    prompt(running, bob)  # which starts his engine
    seconds += 10 * prompt(running, bob)
    waits = [running.asking(script) for _ in range(4)]
    time.sleep(0.5)
    waited = [prompt(running, bob) for _ in range(5)]
    replies = [wait() for wait in waits]
    assert max(waited) < seconds, waited
    wait_until(
        lambda: len(alice.processes() - before) <= 3,
        20,
        lambda: f"{len(alice.processes() - before)} processes are left",
    )
    assert running.ask(alice.write("fine.py", PYTHON_HELLO)).text == "hello\n", running.log()
    return replies


def test_a_flood_of_hers_does_not_delay_him(users: tuple[User, User]) -> None:
    """Sixty requests of a tenth of a second wait for her two engines; there is no room for a third but his.

    He has his answers while she still waits, however long the machine takes for each.
    """
    alice, bob = users
    slow = alice.write("slow.py", f"import time\ntime.sleep(0.1)\nprint('{HEAD}\\nslow')")
    with xswitch("max-engines = 3\nmax-engines-per-user = 2\nqueue-timeout = '20s'") as running:
        waits = [running.asking(slow) for _ in range(60)]
        wait_until(lambda: running.status()["waiting"].get(alice.name, 0) > 40, 20)
        for _ in range(3):
            prompt(running, bob)
            assert running.status()["waiting"].get(alice.name, 0) > 5
        assert [wait().status for wait in waits] == [200] * 60


def test_a_spinning_script(users: tuple[User, User]) -> None:
    with xswitch(SETTINGS.replace("3s", "2s")) as running:
        replies = hurts_only_alice(running, *users, "while True: pass")
    assert {reply.status for reply in replies} <= {504, 503}


def test_a_script_that_fills_memory(users: tuple[User, User]) -> None:
    """The limit on memory ends it. The time limit is long: a busy machine may take a while to start her engines."""
    fills = "kept = []\nwhile True: kept.append(bytes(10_000_000))"  # addresses alone, which takes no time
    with xswitch(SETTINGS.replace("3s", "60s")) as running:
        replies = hurts_only_alice(running, *users, fills, seconds=15)
        assert {reply.status for reply in replies} == {502}, running.log()
        running.wait_for_log("MemoryError")


BOMB = """import os, time
end = time.time() + 10
while time.time() < end:
    try: os.fork()
    except OSError: time.sleep(0.01)
"""
ESCAPE = f"""import os, time
for _ in range(10):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(30)
        os._exit(0)
print("{HEAD}")
"""


# Each of its processes leads a session and wakes the others where somebody has stopped them.
SESSIONS = """import os, signal, time
end = time.time() + 60
while time.time() < end:
    try:
        if os.fork() == 0: os.setsid()
        os.kill(-1, signal.SIGCONT)
    except OSError: time.sleep(0.005)
"""


@pytest.mark.parametrize("stopped", [False, True], ids=["time-limit", "stop"])
def test_a_bomb_of_sessions_ends_with_its_engine(users: tuple[User, User], stopped: bool) -> None:
    """Each kill makes room for the bomb's next fork. It ends all the same, at the time limit or at a stop."""
    alice, bob = users
    before = alice.processes()  # engines of another X-Switch
    with xswitch(SETTINGS.replace("3s", "3s" if stopped else "2s")) as running:
        prompt(running, bob)
        wait = running.asking(alice.write("sessions.py", SESSIONS))
        wait_until(lambda: len(alice.processes() - before) > 20, 20)
        if stopped:
            running.stop()
            assert alice.processes() <= before
        else:
            assert wait().status == 504
            wait_until(lambda: alice.processes() <= before, 20, lambda: f"left: {len(alice.processes())}")
            assert running.ask(bob.write("new.pl", f'print "{HEAD}\\nhello";')).status == 200


@pytest.mark.parametrize("code", [BOMB, ESCAPE], ids=["bomb", "escape"])
def test_a_script_that_forks(running: XSwitch, users: tuple[User, User], code: str) -> None:
    hurts_only_alice(running, *users, code)


def test_nothing_of_a_user_outlives_a_kill_of_all(users: tuple[User, User]) -> None:
    """If the supervisor has died, suexecme kills all processes, also those that left their session."""
    alice, _ = users
    before = alice.processes()  # engines of another X-Switch
    with xswitch() as running:
        leaves = "import os, time\nif os.fork() == 0: os.setsid(); time.sleep(60)\n"
        script = alice.write("stay.py", f"{leaves}print('{HEAD}', flush=True)\ntime.sleep(60)")
        wait = running.asking(script)
        wait_until(lambda: len(alice.processes() - before) >= 2, 20)
        os.kill(running.process.pid, signal.SIGKILL)
        running.process.wait()
        wait_until(lambda: alice.processes() <= before, 20)
        assert wait().status == 0


# Refused scripts


def refused(path: Path | str, settings: Settings | None = None) -> str:
    """Return the reason why a script may not run."""
    with pytest.raises(Refusal) as caught:
        examine(str(path), settings or Settings())
    return caught.value.reason


def test_every_refusal_has_a_name(users: tuple[User, User]) -> None:
    alice, bob = users
    good = alice.write("ok/good.py", "#!/usr/bin/env python3\n")
    assert examine(str(good), Settings()).account.name == alice.name
    assert examine(str(good), Settings()).interpreter == "python3"
    assert "not absolute" in refused("good.py")
    assert "No such file" in refused(alice.public / "none.py")
    assert "not a regular file" in refused(alice.public / "ok")
    assert "below min-uid" in refused(good, Settings(min_uid=alice.uid + 1))
    assert "not inside" in refused(alice.write("../outside.py", ""))
    for_root = alice.write("root.py", "")
    os.chown(for_root, 0, 0)
    assert "owner is root" in refused(for_root)
    for_bob = alice.write("bobs.py", "")
    os.chown(for_bob, bob.uid, bob.gid)
    assert "not inside" in refused(for_bob)
    os.chown(for_bob, 4_000_000, bob.gid)
    assert "does not exist" in refused(for_bob)
    link = alice.public / "to_bob.py"
    link.symlink_to(alice.home / "outside.py")
    assert "not inside" in refused(link)
    own = alice.public / "own.py"
    own.symlink_to(good)
    os.chown(own, alice.uid, -1, follow_symlinks=False)
    assert examine(str(own), Settings()).path == str(good)
    round_and_round = alice.public / "round"
    round_and_round.symlink_to("round")
    assert "symbolic links" in refused(round_and_round)
    alice.home.chmod(0o775)
    assert f"home directory {alice.home} is writable by others" in refused(good)
    alice.home.chmod(0o711)
    assert "script is writable by others (mode 0770)" in refused(alice.write("group.py", "", 0o770))
    assert "set-user-id" in refused(alice.write("suid.py", "", 0o4700))
    (alice.public / "ok").chmod(0o777)
    assert f"directory {alice.public / 'ok'} is writable by others" in refused(good)
    os.chown(alice.public / "ok", bob.uid, bob.gid)
    (alice.public / "ok").chmod(0o755)
    assert f"belongs to uid {bob.uid}" in refused(good)
    shutil.rmtree(alice.public / "ok")


@pytest.mark.parametrize("kind", ["fifo", "link", "directory"])
def test_what_takes_a_scripts_place_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The owner replaces the script between its check and the read of its first line."""
    script = tmp_path / "inner" / "hello"
    script.parent.mkdir()
    script.write_text("#!/usr/bin/perl\n")
    script.chmod(0o755)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "hello").write_text("#!/usr/bin/ruby\n")
    opened = []

    def replace(*arguments: object) -> None:
        opened.append(1)
        if kind == "directory":
            script.parent.rename(tmp_path / f"moved-{len(opened)}")
            script.parent.symlink_to(elsewhere)
            return
        script.unlink()
        if kind == "link":
            script.symlink_to(elsewhere / "hello")
            return
        os.mkfifo(script)
        writer = os.open(script, os.O_RDWR)  # so that who opens it by mistake does not wait
        os.write(writer, b"#!/usr/bin/ruby\n")
        monkeypatch.setattr(rules, "check_path", lambda *arguments: os.close(writer))

    monkeypatch.setattr(rules, "check_path", replace)
    settings = Settings(roots=(str(tmp_path),))
    if kind == "fifo":
        assert refused(script, settings) == "not a regular file"
    else:  # examined again, as what it now is
        assert examine(str(script), settings).path == str(elsewhere / "hello") and len(opened) == 2


def test_nobody_leads_others_to_a_script(running: XSwitch, users: tuple[User, User]) -> None:
    """His script, by her link, would find her files where it looks for his (DOCUMENT_ROOT). His own links may."""
    alice, bob = users
    script = bob.write("page/his.py", PYTHON_HELLO, 0o755)
    file, directory, relative = (alice.public / f"to-{kind}.py" for kind in ("file", "directory", "relative"))
    file.symlink_to(script)
    directory.symlink_to(bob.public)
    relative.symlink_to(f"../../{bob.name}/public_html/page/his.py")
    paths = {file: file, directory: directory / "page" / "his.py", relative: relative}

    def statuses() -> list[int]:
        return [running.ask(path).status for path in paths.values()]

    assert statuses() == [200] * 3  # root's
    for link in paths:
        os.chown(link, alice.uid, alice.gid, follow_symlinks=False)
    wait_until(lambda: statuses() == [403] * 3, 20)
    for link in paths:
        running.wait_for_log(f"the link {link} to it is {alice.name}'s")
        os.chown(link, bob.uid, bob.gid, follow_symlinks=False)
    wait_until(lambda: statuses() == [200] * 3, 20)
    for link in paths:
        link.unlink()


def test_a_chain_of_links_in_place_of_a_users_directory_harms_nobody(
    running: XSwitch, users: tuple[User, User]
) -> None:
    """suexecme finds the directory of the script's owner, here by bob's link. It follows no chain to its end."""
    alice, bob = users
    script = alice.write("../real/hers.py", PYTHON_HELLO, 0o755).resolve()
    link = bob.public / "to-hers.py"
    link.symlink_to(script)
    hello = bob.write("hello.py", PYTHON_HELLO)
    assert running.ask(hello).text == "hello\n", running.log()
    before = running.members()
    aside = alice.public.rename(alice.home / "aside")
    chain = alice.home / "chain"
    chain.mkdir()
    try:
        for number in range(1500):
            (chain / str(number)).symlink_to(str(number + 1))
        for target, reason in (
            (
                chain / "0",
                f"the directory {alice.public} of its owner {alice.name}: Too many levels of symbolic links",
            ),
            (chain / "no", f"it is not inside {alice.public}, the directory of its owner {alice.name}"),
        ):
            alice.public.symlink_to(target)
            assert running.ask(link).status == 403
            running.wait_for_log(f"403, {reason}")
            alice.public.unlink()
            time.sleep(CACHE_SECONDS)
    finally:
        alice.public.unlink(missing_ok=True)
        aside.rename(alice.public)
        shutil.rmtree(chain)
        link.unlink()
    assert running.members() == before and running.ask(hello).text == "hello\n"


def test_a_refusal_tells_the_log_and_not_the_client(running: XSwitch, users: tuple[User, User]) -> None:
    alice, _ = users
    reply = running.ask(alice.write("group.py", PYTHON_HELLO, 0o770))
    assert reply.status == 403 and reply.text == "403 Forbidden\n"
    running.wait_for_log("group.py: 403, the script is writable by others (mode 0770)")


def test_a_change_of_modes_is_noticed(running: XSwitch, users: tuple[User, User]) -> None:
    alice, _ = users
    script = alice.write("modes.py", PYTHON_HELLO)
    assert running.ask(script).status == 200
    script.chmod(0o722)
    assert running.ask(script).status == 403


@pytest.mark.parametrize("name", ["ok.py", pytest.param("ok.php", marks=pytest.mark.needs("php-cgi"))])
def test_a_link_that_leads_elsewhere_after_the_look(users: tuple[User, User], name: str) -> None:
    """Root's link to his script runs as him. It leads to hers once his engine is free: hers still does not run."""
    alice, bob = users
    go = bob.public / f"go-{name}"
    if name.endswith(".py"):
        slow = f"import os, time\nwhile not os.path.exists('{go}'): time.sleep(0.01)\nprint('{HEAD}\\n')"
        text, hers = PYTHON_HELLO, f"print('{HEAD}\\nhers')"
    else:
        slow = f"<?php while (!file_exists('{go}')) {{ usleep(10000); clearstatcache(); }}"
        text, hers = "<?php echo 'hello', PHP_EOL;", "<?php echo 'hers';"
    link = alice.public / f"link-{name}"
    link.symlink_to(bob.write(name, text, 0o755))
    with xswitch("max-engines-per-user = 1") as running:
        busy = running.asking(bob.write(f"slow-{name}", slow))
        wait_until(lambda: [engine["state"] for engine in running.engines()] == ["busy"], 20)
        waiting = running.asking(link)
        wait_until(lambda: running.status()["waiting"] == {bob.name: 1}, 20)
        link.unlink()
        link.symlink_to(alice.write(f"hers-{name}", hers, 0o755))
        go.touch()
        assert waiting().text == "hello\n", running.log()
        busy()


def test_who_is_not_root_runs_only_his_own(users: tuple[User, User]) -> None:
    """X-Switch runs as alice, with an interpreter that she may read."""
    alice, bob = users
    prefix = ("setpriv", f"--reuid={alice.uid}", f"--regid={alice.gid}", "--clear-groups")
    mine = alice.write("mine.py", PYTHON_HELLO)
    with xswitch(prefix=prefix, copy_mode=0o755) as running:
        assert running.ask(mine).text == "hello\n", running.log()
        assert running.ask(bob.write("his.py", PYTHON_HELLO, 0o755)).status == 403
        running.wait_for_log("only root can become another")


# What they are told


@pytest.fixture
def log_directory() -> Iterator[Path]:
    """A directory for users' logs: no other account may write into it, unlike pytest's own."""
    directory = Path(tempfile.mkdtemp(prefix="test-user-logs-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def logging_for_users(log_directory: Path) -> Iterator[XSwitch]:
    """An X-Switch that writes each user a log."""
    with xswitch(f'user-logs = "{log_directory}"\ntime-limit = "4s"') as running:
        yield running


@pytest.mark.needs("root")
def test_a_user_reads_what_concerns_her_scripts(
    users: tuple[User, User], log_directory: Path, logging_for_users: XSwitch
) -> None:
    alice, bob = users
    running = logging_for_users
    fault = alice.write("fault.py", "import no_such_module\n")
    open_to_all = alice.write("open.py", PYTHON_HELLO, 0o777)
    spin = alice.write("spin.py", "while True: pass\n")
    bobs = bob.write("bob.py", f"import sys\nprint('of bob', file=sys.stderr)\n{PYTHON_HELLO}")
    expected = {fault: 502, open_to_all: 403, spin: 504, bobs: 200}
    assert {script: running.ask(script).status for script in expected} == expected
    log = log_directory / f"{alice.name}.log"
    wait_until(lambda: "spin.py: 504, ended after 4 s (time-limit)" in log.read_text(), 20, log.read_text)
    said = log.read_text()
    assert f"{fault}: ModuleNotFoundError: No module named 'no_such_module'" in said
    public = f"403, the script is writable by others (mode 0777): chmod go-w {open_to_all}"
    assert f"{open_to_all}: {public}" in said
    assert "of bob" not in said
    link = alice.public / "of_bob.py"
    link.symlink_to(bob.public / "bob.py")
    os.lchown(link, alice.uid, alice.gid)
    assert running.ask(link).status == 403
    wait_until(lambda: f"{link}: 403, the link {link} to it is {alice.name}'s" in log.read_text(), 20)
    wait_until(lambda: "bob.py: of bob" in (log_directory / f"{bob.name}.log").read_text(), 20)
    assert running.ask(running.script("site.py", PYTHON_HELLO)).status == 200
    assert not list(log_directory.glob("nobody*"))
    assert [line for line in said.splitlines() if f"{alice.name} {line[20:]}" not in running.log()] == []


@pytest.mark.needs("root")
def test_a_users_log_is_read_by_that_user_alone(
    users: tuple[User, User], log_directory: Path, logging_for_users: XSwitch
) -> None:
    """The log stays the user's, also after the user's logrotate has moved it away."""
    alice, bob = users
    running = logging_for_users
    logs = {user: log_directory / f"{user.name}.log" for user in users}
    faults = {user: user.write("fault.py", "import no_such_module\n") for user in users}
    for user, log in logs.items():
        running.ask(faults[user])
        wait_until(lambda log=log: log.exists() and "no_such_module" in log.read_text(), 20)  # type: ignore[misc]
    log = logs[alice]
    assert (log.stat().st_uid, log.stat().st_mode & 0o777) == (alice.uid, 0o600)
    assert try_out(running, alice, f"print(open('{logs[bob]}').read())") == "PermissionError"
    assert try_out(running, alice, f"import os; os.rename('{log}', '{log}.old')") == "PermissionError"
    assert "ModuleNotFoundError" in try_out(running, alice, f"print(open('{log}').read())")

    log.rename(f"{log}.old")  # as logrotate does
    time.sleep(2.1)  # the main module has suexecme's word for two seconds
    running.ask(faults[alice])
    wait_until(lambda: log.exists() and "no_such_module" in log.read_text(), 20)


def test_a_log_that_is_too_long_is_moved_away(log_directory: Path) -> None:
    account = Account("me", os.geteuid(), os.getegid(), (), "/")
    for size in (0, MAX_LOG_BYTES, 1, 1):
        descriptor = open_log(str(log_directory), account)
        os.write(descriptor, bytes(size))
        os.close(descriptor)
    assert (log_directory / "me.log").stat().st_size == 1
    assert (log_directory / "me.log.1").stat().st_size == MAX_LOG_BYTES + 1


def test_logs_lie_where_nobody_else_can_write(log_directory: Path) -> None:
    """Or a user could have a link there, to a file that would become hers."""
    assert not directory_fault(str(log_directory))
    inner = log_directory / "inner"
    inner.mkdir(mode=0o755)
    (log_directory / "link").symlink_to(inner)
    assert not directory_fault(str(log_directory / "link"))
    # The link may lead elsewhere later
    assert log_directory_of(Settings(user_logs=str(log_directory / "link"))) == str(inner)
    assert log_directory_of(Settings(user_logs="relative")) == log_directory_of(Settings()) == ""
    log_directory.chmod(0o777)
    assert directory_fault(str(inner)) == f"{log_directory} is writable by others: chmod go-w {log_directory}"
    assert "writable by others" in directory_fault(str(log_directory / "link"))
    log_directory.chmod(0o1777)
    assert not directory_fault(str(inner))
    assert "writable by others" in directory_fault(str(log_directory))
    assert directory_fault(f"{log_directory}/none") == f"there is no directory {log_directory}/none"
    assert "there is no directory" in directory_fault("relative")
    (log_directory / "me.log").symlink_to("/dev/null")
    with pytest.raises(OSError, match="symbolic links"):
        open_log(str(log_directory), Account("me", os.geteuid(), os.getegid(), (), "/"))


@pytest.mark.needs("root")
def test_a_directory_of_logs_that_others_may_write_into_is_not_used(
    users: tuple[User, User], log_directory: Path
) -> None:
    log_directory.chmod(0o777)
    with xswitch(f'user-logs = "{log_directory}"') as running:
        running.wait_for_log(f"user-logs: {log_directory} is writable by others: chmod go-w {log_directory}")
        assert running.ask(users[0].write("fault.py", "import no_such_module\n")).status == 502
    assert not list(log_directory.iterdir())


def test_a_path_that_no_file_can_have_is_refused() -> None:
    """suexecme does not trust the main process: no path may end it."""
    for path in ("/\ud800.py", "/a\0b", "a.py", ""):
        with pytest.raises(Refusal):
            examine(path, Settings())
