"""Warm parents: engines of Python and Perl are forked from a process that has loaded what scripts need."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import needs
from support.accounts import two_users
from support.engines import PATH, answer_of_process
from support.proc import alive, children_of
from support.server import ROOT, wait_until
from support.xswitch_client import HEAD, XSwitch, xswitch

from ewe.config.messages import ConfigError
from ewe.server import privileges
from ewe.xswitch import channel
from ewe.xswitch.engine_kinds import EngineKind
from ewe.xswitch.privileged.namespaces import namespace_obstacle
from ewe.xswitch.privileged.preloaded import PreloadedParent
from ewe.xswitch.process import KEYCTL_NUMBERS, Account, EngineLimits
from ewe.xswitch.settings import from_toml

pytestmark = pytest.mark.starts_processes

# Says whether a module was there before it was asked for, and who the parent is
SCRIPTS = {
    "python": (
        "w.py",
        f"import os\nprint('{HEAD}')\nloaded = '_sqlite3' in open('/proc/self/maps').read()\n"
        "print(loaded, os.getppid(), os.getpid())",
    ),
    "perl": (
        "w.pl",
        f"print \"{HEAD}\\n\", exists $INC{{'Data/Dumper.pm'}} ? 'True' : 'False', ' ', getppid, \" $$\";",
    ),
}
# Scripts in the engine's own process, whatever they mention
IN_ENGINE = """[engines.python]
isolation = "none"
[engines.perl]
isolation = "none"
"""
SLEEP = {"python": ("s.py", "import time\ntime.sleep(60)\n"), "perl": ("s.pl", "sleep 60")}
PROGRAMS = {"python": b"preloaded_python.py", "perl": b"preloaded_perl.pl"}
languages = pytest.mark.parametrize("language", SCRIPTS)


def parent_of(running: XSwitch, language: str) -> int:
    """Return the pid of a language's preloaded parent, 0 if there is none."""
    suexecme = running.members()["suexecme"]
    for pid in children_of(suexecme):
        try:
            if PROGRAMS[language] in Path(f"/proc/{pid}/cmdline").read_bytes() and pid in alive({pid}):
                return pid
        except OSError:
            pass
    return 0


def ask(running: XSwitch, language: str) -> tuple[bool, int]:
    """Run the script of a language; return whether its engine was forked, and the engine's pid."""
    reply = running.ask(running.script(*SCRIPTS[language]))
    assert reply.status == 200, running.log()
    loaded, parent, pid = reply.text.split()
    assert int(parent) == running.members()["suexecme"]
    return loaded == "True", int(pid)


@languages
def test_engines_are_forked_and_outlive_their_parent(language: str) -> None:
    """Without a parent they start by their command; with suexecme they end."""
    with xswitch(f"max-engines-per-user = 1\n{IN_ENGINE}") as running:
        forked, first = ask(running, language)
        assert forked and os.getsid(first) == first
        parent = parent_of(running, language)
        os.kill(parent, signal.SIGKILL)
        running.wait_for_log(f"the preloaded parent of {language} has ended; engines start without it")
        assert ask(running, language) == (True, first)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not running.engines(), 20, lambda: f"{running.engines()}\n{running.log()}")
        forked, second = ask(running, language)
        assert not forked and second != first
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: parent_of(running, language), 20)
        os.kill(second, signal.SIGKILL)
        wait_until(lambda: not running.engines(), 20, lambda: f"{running.engines()}\n{running.log()}")
        forked, third = ask(running, language)
        assert forked
        sleeping = running.asking(running.script(*SLEEP[language]))
        wait_until(lambda: running.engines()[0]["state"] == "busy", 20)
        suexecme = running.members()["suexecme"]
        running.process.send_signal(signal.SIGSTOP)  # so that nobody but the kernel ends it
        os.kill(suexecme, signal.SIGKILL)
        try:
            wait_until(lambda: not alive({third}), 20)
        finally:
            running.process.send_signal(signal.SIGCONT)
        assert sleeping().status in (0, 502)


@languages
def test_no_parent_where_none_is_wanted(language: str) -> None:
    with xswitch(f"preload = false\n{IN_ENGINE}") as running:
        assert not ask(running, language)[0]
        assert parent_of(running, language) == 0


# What a script may notice of the way in which its interpreter was started
STATE = f"""import locale, os, signal, sys
print("{HEAD}")
print([signal.getsignal(number) for number in sorted(signal.valid_signals())])
print(sys.flags.utf8_mode, sys.flags.no_user_site, sys.path[1:])
reader, writer = os.pipe()
os.close(reader)
try:
    os.write(writer, b"x")
except BrokenPipeError:
    print("broken")
locale.setlocale(locale.LC_ALL, "")
with open(writer, "w") as file:
    print(file.encoding, locale.getpreferredencoding())
"""


@pytest.mark.parametrize("preload", ["true", "false"])
@pytest.mark.parametrize("isolation", ["auto", "fork"])
def test_a_script_finds_the_interpreter_of_a_process(preload: str, isolation: str) -> None:
    """Signals, encodings and search paths: an engine that was forked from a parent has them, too."""
    with xswitch(f'preload = {preload}\n[engines.python]\nisolation = "{isolation}"\n') as running:
        script = running.script("state.py", STATE)
        # The packages of the account's `pip install --user` are on its search path
        look = f"import os, pwd\nprint('{HEAD}')\nprint(pwd.getpwuid(os.getuid()).pw_dir, end='')\n"
        home = running.ask(running.script("home.py", look)).text
        alone = answer_of_process(["python3"], script, {"HOME": home})
        for _ in range(2):
            reply = running.ask(script)
            assert reply.text == alone.output.decode().partition("\n\n")[2], running.log()


@pytest.mark.needs("root")
@pytest.mark.parametrize("preload", ["true", "false"])
def test_packages_of_a_user_come_before_those_of_the_system(preload: str) -> None:
    """`pip install --user` may have installed a newer version of a package."""
    with two_users() as (alice, _), xswitch(f"preload = {preload}\n") as running:
        script = alice.write(
            "path.py", f"import site, sys\nprint('{HEAD}')\nprint(site.USER_SITE, sys.path[1:])\n"
        )
        command = ["python3", "-c", "import site; print(site.getusersitepackages())"]
        home = {"HOME": str(alice.home), "PATH": PATH}
        directory = subprocess.run(
            command, env=home, check=True, capture_output=True, text=True
        ).stdout.strip()
        os.makedirs(directory)
        (alice.home / "more").mkdir()
        Path(directory, "more.pth").write_text(f"{alice.home}/more\n")
        subprocess.run(["chown", "-R", str(alice.uid), str(alice.home / ".local")], check=True)
        alone = answer_of_process(["python3"], script, home)
        assert directory.encode() in alone.output and b"/more" in alone.output, alone
        reply = running.ask(script)
        assert reply.text == alone.output.decode().partition("\n\n")[2], running.log()


@pytest.fixture
def library() -> Iterator[Path]:
    """A directory of modules that every account may read."""
    with tempfile.TemporaryDirectory(prefix="test-library-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_what_cannot_be_loaded_is_said_and_the_rest_is_there(library: Path) -> None:
    """Modules are looked for as the engine's table says; what they have opened is no script's."""
    mine = library / "Mine.pm"
    mine.write_text("package Mine; open $_, '<', __FILE__ for @files[0 .. 9]; sub name { 'mine' } 1;\n")
    (library / "Broken.pm").write_text("package Broken; 0 +;\n")
    table = f"""[engines.perl]
isolation = "none"
preload = ["Mine", "No::Such", "Broken", "Data::Dumper"]
environment = {{ PERL5LIB = "{library}" }}
"""
    text = f"""print "{HEAD}\\n", exists $INC{{'Mine.pm'}} ? Mine::name() : 'not there';
opendir my $all, "/proc/$$/fd";
print grep {{ /Mine/ }} map {{ readlink "/proc/$$/fd/$_" }} readdir $all;
"""
    with xswitch(table) as running:
        assert running.ask(running.script("m.pl", text)).text == "mine", running.log()
        assert ask(running, "perl")[0]
        running.wait_for_log("No::Such cannot be loaded beforehand: Can't locate No/Such.pm in @INC")
        running.wait_for_log("Broken cannot be loaded beforehand: syntax error at ")
        mine.write_text("package Mine; sub name { 'changed' } 1;\n")
        time.sleep(1.1)
        use = running.script("u.pl", f'use Mine; print "{HEAD}\\n", Mine::name();')
        for connection in range(2):  # an engine that was there, and a new one
            assert running.ask(use).text == "changed", (connection, running.log())
            os.kill(int(running.engines()[0]["pid"]), signal.SIGKILL)
            wait_until(lambda: not running.engines(), 20)


def test_a_preloaded_module_that_changes_is_loaded_again(library: Path) -> None:
    """By an engine that was there, and by one that the parent, which has loaded the former version, forks later."""
    directory = library / "site-packages"
    directory.mkdir()
    module = directory / "mine.py"
    module.write_text("NAME = 'first'\n")
    table = f"""[engines.python]
isolation = "none"
preload = ["mine"]
environment = {{ PYTHONPATH = "{directory}" }}
"""
    with xswitch(table) as running:
        use = running.script("use.py", f"import mine\nprint('{HEAD}')\nprint(mine.NAME)\n")
        assert running.ask(use).text == "first\n", running.log()
        module.write_text("NAME = 'second'\n")
        time.sleep(1.1)
        for _ in range(2):
            assert running.ask(use).text == "second\n", running.log()
            os.kill(int(running.engines()[0]["pid"]), signal.SIGKILL)
            wait_until(lambda: not running.engines(), 20)
        assert running.log().count(f"{module} has changed since it was preloaded") == 1


# An installed module of each language, and a script that uses it
INSTALLED = {
    "python": (
        "mine.py",
        "NAME = 'preloaded'\n",
        f"import mine\nprint('{HEAD}')\nprint(mine.NAME)\n",
        "PYTHONPATH",
    ),
    "perl": (
        "mine.pm",
        "package mine; sub name { 'preloaded' } 1;\n",
        f'use mine; print "{HEAD}\\n", mine::name(), "\\n";',
        "PERL5LIB",
    ),
}


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    ("language", "setting"), [("python", ""), ("perl", ""), ("python", "private = true\n")]
)
def test_a_preloaded_module_that_the_user_may_not_examine_stays(
    library: Path, language: str, setting: str
) -> None:
    """`pip` of root may have installed it with umask 077, or it lies where private engines see nothing.

    Perl's parent starts no private engines.
    """
    if setting and (obstacle := namespace_obstacle()):
        needs.lacks("root", obstacle)
    directory = library / "site-packages"
    directory.mkdir(mode=0o755 if setting else 0o700)
    module, text, script, variable = INSTALLED[language]
    (directory / module).write_text(text)
    table = f"""{setting}[engines.{language}]
isolation = "none"
preload = ["mine"]
environment = {{ {variable} = "{directory}" }}
"""
    with two_users() as (alice, _), xswitch(table) as running:
        use = alice.write(f"use.{'py' if language == 'python' else 'pl'}", script)
        assert running.ask(use).text == "preloaded\n", running.log()


@pytest.mark.parametrize("variable", ["HOME", "PYTHONUSERBASE"])
def test_a_parent_runs_no_code_of_an_account(library: Path, variable: str) -> None:
    """Packages of an account belong to its engines, also if `environment` names a home: the parent is root's."""
    command = ["python3", "-c", "import site; print(site.getusersitepackages())"]
    environment = {"PATH": PATH, variable: str(library)}
    directory = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    packages = Path(directory.stdout.strip())
    packages.mkdir(parents=True)
    ran = library / "ran"
    (packages / "mine.pth").write_text(f"import os; open({str(ran)!r}, 'a').write(f'{{os.getpid()}} ')\n")
    ran.touch()
    ran.chmod(0o666)
    table = f"""[engines.python]
environment = {{ {variable} = "{library}" }}
"""
    with xswitch(table) as running:
        assert running.ask(running.script(*SCRIPTS["python"])).status == 200, running.log()
        parent = parent_of(running, "python")
        assert parent and str(parent) not in ran.read_text().split()


class Forking:
    """A preloaded parent that has been sent an order, as suexecme does. ours: our end of its channel.

    data: the engine's socket. said: a file with all that was said on standard error.
    """

    def __init__(self, language: str) -> None:
        engines = ROOT / "ewe" / "xswitch" / "engines"
        interpreter = ["python3"] if language == "python" else ["perl"]
        engine = engines / ("python.py" if language == "python" else "perl.pl")
        self.command = [*interpreter, str(engines / PROGRAMS[language].decode()), str(engine)]
        self.ours, self.its = channel.pair()
        self.data, its_data = socket.socketpair()
        self.control, its_control = socket.socketpair()
        self.said = tempfile.TemporaryFile()
        account = Account("me", os.geteuid(), os.getegid(), tuple(os.getgroups()), "/")
        environment = {"PATH": os.environ["PATH"]}
        order = {"account": account, "limits": EngineLimits()._asdict(), "environment": environment}
        with its_data, its_control:
            descriptors = [its_data.fileno(), self.said.fileno(), its_control.fileno()]
            channel.send(self.ours, order, descriptors)

    def start(self) -> subprocess.Popen[bytes]:
        """Start the parent: the order is there."""
        with self.its:
            return subprocess.Popen(self.command, stdin=self.its.fileno(), stdout=self.said, stderr=self.said)

    def __enter__(self) -> Forking:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self.ours, self.its, self.data, self.control, self.said):
            each.close()


@languages
def test_a_suexecme_that_goes_within_a_fork_leaves_neither_parent_nor_engine(language: str) -> None:
    """The order has been sent, but no process reads the answer: both end without a message."""
    with Forking(language) as forking:
        forking.ours.close()
        process = forking.start()
        forking.data.settimeout(20)
        assert forking.data.recv(1) == b""  # the end of the last process that has the other end
        assert process.wait(20) == 0
        forking.said.seek(0)
        assert forking.said.read() == b""


@languages
def test_the_engine_itself_tells_its_pid(language: str) -> None:
    """Else a parent that is killed after its fork would leave an engine of which suexecme does not know.

    suexecme would start another one on the same sockets, and either might take a request.
    """
    with Forking(language) as forking:
        forking.ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        forking.ours.settimeout(20)
        process = forking.start()
        text, [(_, _, credentials)], _, _ = forking.ours.recvmsg(1000, socket.CMSG_SPACE(100))
        pid = json.loads(text)["pid"]
        assert pid != process.pid
        assert struct.unpack("3i", credentials)[0] == pid
        forking.ours.close()
        assert process.wait(20) == 0


class Ended(PreloadedParent):
    """A preloaded parent of which only the channel is left."""

    def __init__(self, end: socket.socket) -> None:
        self.channel = end
        self.kind = EngineKind("python", ("python3", "python.py"))
        self.process = subprocess.Popen(["sleep", "60"])
        self.pid = self.process.pid


@pytest.mark.parametrize("answered", [True, False])
def test_an_engine_that_answers_late_is_known_or_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """suexecme waits no longer: an answer that has come by then counts, and after it none can be sent."""
    ours, its = channel.pair()
    parent = Ended(ours)
    received = channel.receive

    def late(sock: socket.socket) -> object:
        monkeypatch.setattr(channel, "receive", received)
        if answered:
            channel.send(its, {"pid": 42})
        raise TimeoutError

    monkeypatch.setattr(channel, "receive", late)
    with its:
        assert parent.start(Account("me", 1, 1, (), "/"), EngineLimits(), []) == (42 if answered else 0)
        with pytest.raises(OSError):
            channel.send(its, {"pid": 43})
    assert parent.process.wait(20) == -signal.SIGKILL


def test_an_account_whose_groups_no_order_has_room_for_gets_an_engine_by_the_command() -> None:
    """The order was not sent: the parent goes on for other accounts."""
    ours, its = channel.pair()
    parent = Ended(ours)
    groups = tuple(range(1_000_000_000, 1_000_009_000))
    with its:
        assert parent.start(Account("me", 1, 1, groups, "/"), EngineLimits(), []) == 0
        assert parent.process.poll() is None
        parent.end()
    assert parent.process.wait(20) == -signal.SIGKILL


def test_only_python_and_perl_can_be_forked() -> None:
    with pytest.raises(ConfigError, match=r"\[engines.sh\]: preload: only an engine in Python"):
        from_toml({"engines": {"sh": {"command": ["sh", "engine.sh"], "preload": ["x"]}}}, "x.toml")
    own = from_toml({"engines": {"perl": {"command": ["sh", "engine.sh"]}}}, "x.toml")
    assert own.engines["perl"].preload is None


@pytest.mark.parametrize(
    ("machine", "header"),
    [
        pytest.param(
            "x86_64",
            "x86_64-linux-gnu/asm/unistd_64.h",
            marks=pytest.mark.needs("the kernel's headers for x86-64"),
        ),
        pytest.param("aarch64", "asm-generic/unistd.h", marks=pytest.mark.needs("the kernel's headers")),
    ],
)
def test_system_calls_have_their_numbers(machine: str, header: str) -> None:
    """Perl has no names for them: those in preloaded_perl.pl are the kernel's."""
    file = Path("/usr/include") / header
    known = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", file.read_text()))
    source = (ROOT / "ewe/xswitch/engines/preloaded_perl.pl").read_text()
    table = re.search(rf"\b{machine} => {{(.*?)}}", source, re.DOTALL)
    close_range = re.search(r"\$CLOSE_RANGE = (\d+)", source)
    assert table and close_range
    numbers = dict(re.findall(r"(\w+) => (\d+)", table[1]))
    assert len(numbers) == 7 and numbers.items() <= known.items()
    assert int(known["keyctl"]) == KEYCTL_NUMBERS[machine] == privileges.KEYCTL_NUMBERS[machine]
    assert privileges.KEYCTL_NUMBERS == KEYCTL_NUMBERS
    assert known["close_range"] == close_range[1]
