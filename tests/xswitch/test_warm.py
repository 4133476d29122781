"""Warm parents: engines of Python and Perl are forked from a process that has loaded what scripts need."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, wait_until
from xswitch_client import HEAD, XSwitch, alive, xswitch

from ewe.config import ConfigError
from ewe.xswitch.settings import from_toml

# Says whether a module was there before it was asked for, and who the parent is
SCRIPTS = {
    "python": (
        "w.py",
        f"import os, sys\nprint('{HEAD}')\nprint('sqlite3' in sys.modules, os.getppid(), os.getpid())",
    ),
    "perl": (
        "w.pl",
        f"print \"{HEAD}\\n\", exists $INC{{'Data/Dumper.pm'}} ? 'True' : 'False', ' ', getppid, \" $$\";",
    ),
}
SLEEP = {"python": ("s.py", "import time\ntime.sleep(60)\n"), "perl": ("s.pl", "sleep 60")}
PROGRAMS = {"python": b"warm_python.py", "perl": b"warm_perl.pl"}
languages = pytest.mark.parametrize("language", SCRIPTS)


def parent_of(running: XSwitch, language: str) -> int:
    """Return the pid of a language's warm parent, 0 if there is none."""
    suexecme = running.members()["suexecme"]
    for pid in map(int, Path(f"/proc/{suexecme}/task/{suexecme}/children").read_text().split()):
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
    with xswitch("max-engines-per-user = 1") as running:
        forked, first = ask(running, language)
        assert forked and os.getsid(first) == first
        parent = parent_of(running, language)
        os.kill(parent, signal.SIGKILL)
        running.wait_for_log(f"the warm parent of {language} has ended; engines start without it")
        assert ask(running, language) == (True, first)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not running.engines(), 5)
        forked, second = ask(running, language)
        assert not forked and second != first
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: parent_of(running, language), 5)
        os.kill(second, signal.SIGKILL)
        wait_until(lambda: not running.engines(), 5)
        forked, third = ask(running, language)
        assert forked
        sleeping = running.asking(running.script(*SLEEP[language]))
        wait_until(lambda: running.engines()[0]["state"] == "busy", 5)
        suexecme = running.members()["suexecme"]
        running.process.send_signal(signal.SIGSTOP)  # so that nobody but the kernel ends it
        os.kill(suexecme, signal.SIGKILL)
        try:
            wait_until(lambda: not alive({third}), 5)
        finally:
            running.process.send_signal(signal.SIGCONT)
        assert sleeping().status in (0, 502)


@languages
def test_no_parent_where_none_is_wanted(language: str) -> None:
    with xswitch("warm = false") as running:
        assert not ask(running, language)[0]
        assert parent_of(running, language) == 0


@pytest.fixture
def library() -> Iterator[Path]:
    """A directory of modules that everybody may read."""
    with tempfile.TemporaryDirectory(prefix="test-library-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_what_cannot_be_loaded_is_said_and_the_rest_is_there(library: Path) -> None:
    """Modules are looked for as the engine's table says; what they have opened is no script's."""
    mine = library / "Mine.pm"
    mine.write_text("package Mine; open $_, '<', __FILE__ for @files[0 .. 9]; sub name { 'mine' } 1;\n")
    (library / "Broken.pm").write_text("package Broken; 0 +;\n")
    table = f"""[engines.perl]
warm = ["Mine", "No::Such", "Broken", "Data::Dumper"]
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
            wait_until(lambda: not running.engines(), 5)


def test_only_python_and_perl_can_be_forked() -> None:
    with pytest.raises(ConfigError, match=r"\[engines.sh\]: warm: only an engine in Python"):
        from_toml({"engines": {"sh": {"command": ["sh", "engine.sh"], "warm": ["x"]}}}, "x.toml")
    own = from_toml({"engines": {"perl": {"command": ["sh", "engine.sh"]}}}, "x.toml")
    assert own.engines["perl"].warm is None


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "asm-generic/unistd.h")],
)
def test_system_calls_have_their_numbers(machine: str, header: str) -> None:
    """Perl has no names for them: those in warm_perl.pl are the kernel's."""
    file = Path("/usr/include") / header
    if not file.exists():
        pytest.skip(f"not installed: {file}")
    known = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", file.read_text()))
    source = (ROOT / "ewe/xswitch/engines/warm_perl.pl").read_text()
    table = re.search(rf"\b{machine} => {{(.*?)}}", source, re.DOTALL)
    close_range = re.search(r"\$CLOSE_RANGE = (\d+)", source)
    assert table and close_range
    numbers = dict(re.findall(r"(\w+) => (\d+)", table[1]))
    assert len(numbers) == 6 and numbers.items() <= known.items()
    assert known["close_range"] == close_range[1]
