"""The engines run unmodified CGI scripts. Each script runs as if it had a separate process."""

from __future__ import annotations

import fcntl
import os
import random
import re
import resource
import signal
import socket
import sys
import termios
import time
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engines import (
    ENGINES,
    HEAD,
    PERL,
    PYTHON,
    Engines,
    PatientDriver,
    answer_of_process,
    isolated,
)
from support.proc import resident_kilobytes
from support.server import ROOT, wait_until

from ewe.xswitch import check
from ewe.xswitch.protocol import MAX_LINES_BYTES, MarkReader, ProtocolError, request_lines
from ewe.xswitch.tools import driver as driver_module
from ewe.xswitch.tools.check_scripts import SCRIPTS
from ewe.xswitch.tools.driver import Driver, ScriptResult, ScriptRun

pytestmark = pytest.mark.starts_processes
THAW = 200  # as in python_state.py


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    shared = Engines(PYTHON)
    yield shared
    shared.close()


@pytest.fixture(params=["auto", "fork", "none"])
def python(request: pytest.FixtureRequest, engines: Engines) -> Driver:
    return engines.get(request.param)


@pytest.fixture(params=["auto", "none"])
def lasting(request: pytest.FixtureRequest, engines: Engines) -> Driver:
    """An engine that runs scripts itself, some or all."""
    return engines.get(request.param)


@pytest.fixture(params=["auto", "fork", "none"])
def new_python(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """An engine that has run no script, and is ended after the test."""
    with Driver(PYTHON, isolated(request.param)) as engine:
        yield engine


@pytest.fixture
def perl() -> Iterator[Driver]:
    with Driver(PERL) as engine:
        yield engine


def script(path: Path, text: str) -> str:
    """Write a script; its file changes in any case."""
    path.write_text(text)
    return str(path)


def text(answer: ScriptResult) -> str:
    """Return what a script has said after its head; it must have ended well."""
    assert answer.errors == b"", answer.errors.decode()
    assert answer.status == 0
    head, _, rest = answer.output.decode().replace("\r\n", "\n").partition("\n\n")
    assert "Content-Type" in head
    return rest


# The protocol


@given(
    st.lists(st.binary(max_size=30).filter(lambda word: b"\0" not in word), max_size=5),
    st.dictionaries(
        st.from_regex(rb"[A-Z]{1,8}", fullmatch=True),
        st.binary(max_size=40).filter(lambda value: b"\0" not in value),
        max_size=5,
    ),
)
def test_lines_carry_any_bytes_but_nul(arguments: list[bytes], environment: dict[bytes, bytes]) -> None:
    from urllib.parse import unquote_to_bytes

    lines = request_lines(b"/a b\tc", arguments, environment)
    command, variables, rest = lines.split(b"\n")
    assert rest == b""
    assert [unquote_to_bytes(word) for word in command.split(b"\t")] == [b"/a b\tc", *arguments]
    found = [unquote_to_bytes(word).split(b"=", 1) for word in variables.split(b"\t") if word]
    assert dict(found) == environment


@pytest.mark.parametrize(
    "bad", [{"arguments": [b"a\0b"]}, {"environment": {b"A": b"\0"}}, {"arguments": [b"x" * 300_000]}]
)
def test_what_the_protocol_cannot_carry_is_refused(bad: dict[str, list[bytes]]) -> None:
    with pytest.raises(ProtocolError):
        request_lines(b"/x", bad.get("arguments", []), bad.get("environment", {}))  # type: ignore[arg-type]


@given(st.binary(max_size=8), st.integers(0, 8))
def test_a_mark_is_a_mark_however_it_comes(data: bytes, cut: int) -> None:
    """Any bytes are a mark, not yet one, or the typed error; the same in two pieces."""
    outcomes = []
    for pieces in ([data], [data[:cut], data[cut:]]):
        reader = MarkReader()
        found: object = None
        try:
            for piece in pieces:
                if found is None and piece:
                    found = reader.feed(piece)
                elif piece:
                    raise ProtocolError("after the mark")
        except ProtocolError:
            found = "error"
        outcomes.append(found)
    assert outcomes[0] == outcomes[1]


# The driver


@pytest.mark.parametrize("body", [b"", b"a body that the engine does not read"])
def test_an_engine_that_ends_right_after_its_mark_has_a_status(body: bytes) -> None:
    """The mark and the end of the output are there together. With a body, the end of the output is a reset."""
    driver = Driver.__new__(Driver)
    driver.mark_reader, driver.is_ending = MarkReader(), False
    driver.data, engine_data = socket.socketpair()
    driver.control, engine_control = socket.socketpair()
    with driver.data, driver.control:
        driver.data.sendall(body)
        engine_data.sendall(b"output")
        engine_control.sendall(b"\x040\n")
        engine_data.close()
        engine_control.close()
        assert driver.converse(b"", time.monotonic() + 20) == (b"output", 0)
    assert driver.is_ending


def test_an_answer_without_an_end_takes_no_longer_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()

    def transfer(self: ScriptRun, seconds: float) -> bool:
        assert time.monotonic() < began + 20
        return True  # there is always more output

    monkeypatch.setattr(ScriptRun, "transfer", transfer)
    with pytest.raises(TimeoutError, match="its answer has no end"):
        Driver.__new__(Driver).converse(b"", began + 0.05)


def test_output_that_goes_on_after_the_mark_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = iter([b"x"] * 1000)
    monkeypatch.setattr(driver_module, "is_readable", lambda file, seconds: True)
    monkeypatch.setattr(driver_module, "receive_bytes", lambda sock: next(pieces))
    driver = Driver.__new__(Driver)
    driver.data = socket.socket()
    with driver.data, pytest.raises(ProtocolError, match="its output goes on after its mark"):
        driver.drain()


# The checker


@pytest.mark.parametrize("command", [PYTHON, PERL], ids=["python", "perl"])
def test_the_checker_finds_every_rule_kept(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(command) == 0, capsys.readouterr().out


def test_the_checker_finds_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An engine that forgets nothing, one that ends at once, and one that is not there."""
    for path in ENGINES.glob("python*.py"):
        source = path.read_text().replace(
            "        state.undo_changes(FIRST_UNUSED_DESCRIPTOR)\n", "        pass\n"
        )
        script(
            tmp_path / path.name, source.replace('"XSWITCH_ISOLATION", "auto"', '"XSWITCH_ISOLATION", "none"')
        )
    assert check.main([sys.executable, str(tmp_path / "python.py")]) == 1
    assert "NOT  a script begins with fresh variables" in capsys.readouterr().out
    assert check.main(["--suffix", ".sh", "/bin/true"]) == 1
    assert "1 of 15" in capsys.readouterr().out  # it does end with its sockets
    assert check.main(["--suffix", ".sh", "/no/such/engine"]) == 1


def test_the_checker_shows_the_last_line_of_a_long_error(tmp_path: Path) -> None:
    """The engine reads first: the checker empties the file of errors before it sends a request."""
    source = "import os, sys\nos.read(3, 1)\nsys.exit('x' * 5000 + '\\nthe last line')\n"
    engine = script(tmp_path / "engine.py", source)
    fault = check.try_rule([sys.executable, engine], check.answers, str(tmp_path), ".py")
    assert fault.endswith("(it said: the last line)"), fault


# Python


def test_scripts_do_not_see_each_other(python: Driver, tmp_path: Path) -> None:
    spoil = script(
        tmp_path / "spoil.py",
        f"""print({HEAD!r})
import builtins, decimal, locale, logging, os, random, signal, socket, sys, warnings
builtins.left = sys.left = left = 1
del builtins.abs
sys.path.insert(0, "/left"); sys.excepthook = None; sys.setrecursionlimit(77)
os.environ["LEFT"] = "1"; os.putenv("PUT", "1"); os.environ = dict(os.environ)
os.umask(0o777); os.chdir("/")
signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.alarm(1)
logging.basicConfig(level=1); logging.getLogger("left").addHandler(logging.StreamHandler())
random.seed(1); socket.setdefaulttimeout(1); warnings.simplefilter("error"); decimal.getcontext().prec = 3
kept = open("/dev/null"); os.dup(0)
sys.stdout.reconfigure(encoding="ascii"); sys.stdin.close()
""",
    )
    look = script(tmp_path / "look.py", f"""import builtins, decimal, logging, os
import random, signal, socket, sys, warnings
print({HEAD!r}, end="", flush=True)
print(hasattr(builtins, "left"), hasattr(sys, "left"), "left" in globals(), abs(-1), "/left" in sys.path)
print(sys.excepthook is sys.__excepthook__, sys.getrecursionlimit(), os.environ.get("LEFT"))
os.system("echo PUT=$PUT $(umask)")
print(os.getcwd() == os.path.dirname(__file__), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, signal.alarm(0))
print(logging.root.handlers, logging.getLogger("left").handlers, logging.root.level, socket.getdefaulttimeout())
print("error" in [each[0] for each in warnings.filters], decimal.getcontext().prec, "\\u00fc", sys.stdin.read())
print(sorted(map(int, os.listdir("/proc/self/fd")))[:8], __name__, random.random() == random.Random(1).random())
""")  # fmt: skip
    first = text(python.ask(look))
    python.ask(spoil)
    assert text(python.ask(look)) == first
    assert "PUT= 0022" in first
    assert "False False False 1 False\n" in first
    assert "\u00fc" in first


MODULES = "import asyncio, gc, io, os, random, signal, sys, time, warnings"
LOOK = f"""{MODULES}
print({HEAD!r}, end='')
print('one\\ntwo \\u00fc'); print('error', file=sys.stderr); print(sys.stdout, sys.stderr, sys.stdin)
print(sys.stdin.seekable(), sys.stdin.buffer.tell() if sys.stdin.seekable() else '', sys.stdin._CHUNK_SIZE)
print(len(sys.path), sys.gettrace(), gc.isenabled(), gc.get_threshold(), len(gc.callbacks))
print(time.localtime(0).tm_hour)
for _ in range(200000): pass
asyncio.run(asyncio.sleep(0))
warnings.simplefilter("ignore")
asyncio.get_event_loop_policy().get_event_loop if sys.version_info < (3, 12) else None
random.random()
print(sys.stdin.read(), 'x' * 400000)
"""


@pytest.fixture(scope="module")
def look(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A script that says how it finds the interpreter.

    It is one for all tests: an engine forks for a script until it knows the script from some runs.
    """
    return script(tmp_path_factory.mktemp("look") / "look.py", LOOK)


@pytest.mark.parametrize(
    "spoil",
    [
        'sys.stdout.reconfigure(newline="\\r\\n"); sys.stderr.reconfigure(newline="\\r\\n")',
        "sys.stdout.close(); sys.stderr.close()",
        "sys.stdout = io.TextIOWrapper(sys.stdout.detach(), 'ascii'); sys.stderr = sys.stdout",
        "sys.stdout.buffer.raw.close()",
        "sys.stdout.write = sys.stderr.write = None",
        "sys.stdout.buffer.write = len",
        "sys.stdout.buffer.raw.write = len",
        "sys.stdout.__init__(sys.stdout.buffer, 'utf-16')",
        "sys.stdin._CHUNK_SIZE = sys.stdout._CHUNK_SIZE = 1",
        "type(sys.stdout).write = None",
        "type(sys.stdin.buffer.raw).readinto = None",
        "os.close(1); os.close(2); sys.stdout.write('left')",
        "os.close(0); os.close(1)",
        "open(0).read()",
        "sys.stdin.buffer.peek(); sys.stdin.read(3)",
        "os.set_blocking(1, False)",
        "os.dup2(os.open('/dev/full', os.O_WRONLY), 1); sys.stdout.write('left')",
        "os.dup2(os.open(__file__, os.O_RDONLY), 0); sys.stdin.readline()",
        "io.TextIOWrapper(sys.stdout.buffer)",
        "sys.stdout = sys.__stdout__ = io.StringIO()",
        "sys.path = list(dict.fromkeys(sys.path))",
        "sys.settrace(lambda *_: print('traced')); sys.setprofile(lambda *_: None)",
        "gc.set_threshold(0); gc.disable(); gc.callbacks.append(lambda *_: print('collected'))",
        "signal.setitimer(signal.ITIMER_VIRTUAL, 0.01); signal.setitimer(signal.ITIMER_PROF, 0.01)",
        "os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()",
        "asyncio.get_event_loop().close()",
        "del random.seed",
        "del random._inst",
    ],
)
def test_all_is_as_new(lasting: Driver, look: str, tmp_path: Path, spoil: str) -> None:
    """After each spoiling request the look is taken twice, with and without a body, each of them first in turn."""
    other = tmp_path / "other"
    other.mkdir()
    bad = script(other / "bad.py", f"{MODULES}\nprint({HEAD!r}, flush=True)\n{spoil}\n")
    bodies = [b"", b"one\nthree\n"]
    before = {body: lasting.ask(look, body=body) for body in bodies}
    assert {(each.errors, each.status) for each in before.values()} == {(b"error\n", 0)}
    for its_body in (b"", b"some\nof it\n" * 9000, b"some\n"):
        lasting.ask(bad, body=its_body)
        for body in bodies:
            assert lasting.ask(look, body=body) == before[body]
        bodies.reverse()


def test_a_broken_random_keeps_no_other_module_from_its_reset(tmp_path: Path) -> None:
    """The reset function of random then removes itself from the list of them; that of threading follows it."""
    spoils = "import random, threading\nthreading.excepthook = print\ndel random._inst\n"
    bad = script(tmp_path / "bad.py", f"{spoils}print({HEAD!r})\n")
    asks = "import threading\nis_reset = threading.excepthook is threading.__excepthook__\n"
    next_one = script(tmp_path / "next.py", f"{asks}print({HEAD!r}, is_reset)\n")
    with Driver(PYTHON, isolated("none")) as engine:
        assert engine.ask(bad).status == 0
        assert engine.ask(next_one).output.endswith(b"True\n")


NEAR = {  # files beside the script
    "own/part.py": "hits = 0\n",
    "words.py": "said = 'mine'\n",
}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("from own import part\npart.hits += 1\nprint(part.hits)", "1"),
        (
            "import sys, types\nprint('words' in sys.modules)\nsys.modules['words'] = types.ModuleType('words')",
            "False",
        ),
        (
            "import sys, zipfile\n"
            "with zipfile.ZipFile('z.zip', 'w') as z: z.writestr('packed.py', f'said = {id(z)}')\n"
            "sys.path.insert(0, 'z.zip')\nimport packed\nprint(packed.said == id(z))",
            "True",
        ),
        ("import runpy\nprint(runpy.run_path('words.py')['said'])", "mine"),
        (
            "import os, sys\nprint(os.path.isdir('new'))\nsys.path.insert(0, os.path.abspath('new'))\n"
            "try: import fresh\nexcept ImportError: print('none')\n"
            "os.mkdir('new'); open('new/fresh.py', 'w').write('')\nsys.path.insert(0, 'new')\n"
            "import fresh, shutil\n"
            "shutil.rmtree('new')",
            "False none",
        ),
        ("import sys\nprint(len(sys.modules) > 20)\nsys.modules.clear()", "True"),
        ("import sys\nprint(sys.stdin.name, sys.stdout.mode, sys.stderr.buffer.name)", "<stdin> w <stderr>"),
        ("print(__loader__.get_source('__main__')[:5])", "print"),
        # Since 3.14, Python makes them when they are read: PEP 649
        ("print('__annotations__' in globals())", str(sys.version_info < (3, 14))),
        ("a: int\nimport sys\nprint(sys.modules['__main__'].__annotations__)", "{'a': <class 'int'>}"),
        ("import sys\nprint('kept')\ndel sys.stdout, sys.stderr", "kept"),
        ("import ctypes\nctypes.CDLL(None).printf(b'from C')", "from C"),
        (
            "import sys\nn = 0\ndef count(*_):\n  global n\n  n += 1\nsys.settrace(count)\n(lambda: 0)()\nprint(n)",
            "1",
        ),
        (
            "import sys\nprint(sys.gettrace())\nsys.settrace(lambda *_: None)\nsys.gettrace = lambda: None",
            "None",
        ),
        (
            "import sys\nclass Hook:\n  def __eq__(self, other): return True\n"
            "print(sys.excepthook is sys.__excepthook__)\nsys.excepthook = Hook()",
            "True",
        ),
        ("import builtins\nprint(len('ab'))\nbuiltins.len = builtins.map = builtins.list = None", "2"),
        (
            "import os, time\nprint(time.localtime(0).tm_hour)\nos.environ['TZ'] = 'AAA-5'\ntime.strftime('%H')",
            "0",
        ),
        ("import os, time\nprint(time.localtime(0).tm_hour)\nos.environ['TZ'] = 'UTC-5'\ntime.tzset()", "0"),
        ("import sys\nprint(sys.getswitchinterval())\nsys.setswitchinterval(1)", "0.005"),
        ("import sys\nprint(sys.get_int_max_str_digits())\nsys.set_int_max_str_digits(0)", "4300"),
        ("import sys\nprint(sys.get_asyncgen_hooks()[0])\nsys.set_asyncgen_hooks(print)", "None"),
        (
            "import gc\nprint(len(gc.garbage))\ngc.set_debug(gc.DEBUG_SAVEALL)\na = []; a.append(a); del a",
            "0",
        ),
        ("import tracemalloc\nprint(tracemalloc.is_tracing())\ntracemalloc.start()", "False"),
        ("import faulthandler\nprint(faulthandler.is_enabled())\nfaulthandler.enable()", "False"),
        (
            "import signal, socket\na = socket.socket(); a.setblocking(False)\n"
            "print(signal.set_wakeup_fd(a.fileno()))",
            "-1",
        ),
        (
            "import sys\nm = getattr(sys, 'monitoring', None)\nprint(m and m.get_tool(2))\nif m:\n"
            "  m.use_tool_id(2, 'x'); m.set_events(2, 1)\n  m.register_callback(2, 1, lambda *_: None)",
            "None",
        ),
        ("import fileinput\nprint(next(fileinput.input('words.py')))", "said = 'mine'"),
        (
            "import threading as t\nr = []\n"
            "x = t.Thread(target=lambda: r.append(t.current_thread().name)); x.start(); x.join()\n"
            "print(t.excepthook is t.__excepthook__, r[0].split()[0])\nt.excepthook = t._trace_hook = print",
            "True Thread-1",
        ),
        ("import logging as l\nprint(l.getLevelName(30))\nl.addLevelName(30, 'W')", "WARNING"),
        (
            "import logging as l\nprint(l.getLogger('a').propagate)\nl.getLogger('a').propagate = False",
            "True",
        ),
        ("import logging as l\nprint(l.root.filters)\nl.root.addFilter(print)", "[]"),
        (
            "import logging as l\nclass L(l.Logger): pass\nprint(type(l.getLogger('b')).__name__)\n"
            "l.setLoggerClass(L); l.getLogger('c'); l.setLogRecordFactory(print)\n"
            "print(type(l.getLogger('c')).__name__)",
            "Logger L",
        ),
        ("import warnings as w\nprint(w.showwarning.__name__)\nw.showwarning = lambda *_: 0", "showwarning"),
        (
            "import os, signal as s\ns.pthread_sigmask(s.SIG_BLOCK, [s.SIGUSR1])\n"
            "os.kill(os.getpid(), s.SIGUSR1)\nprint(len(s.sigpending()))",
            "1",
        ),
        ("import tempfile\nprint(tempfile.tempdir)\ntempfile.tempdir = '/none'", "None"),
        (
            "import calendar as c, urllib.request as u\nprint(u._opener)\nu.install_opener(u.build_opener())",
            "None",
        ),
        ("import multiprocessing as m\nm.set_start_method('fork')\nprint(m.get_start_method())", "fork"),
        pytest.param(
            "import multiprocessing\nm = multiprocessing.get_context('fork')\n"  # the default until Python 3.13
            "def work(q): q.put(multiprocessing.current_process().name)\nq = m.Queue()\n"
            "p = m.Process(target=work, args=(q,)); p.start()\nprint(q.get(timeout=5))\np.join()",
            "ForkProcess-1",
            marks=pytest.mark.needs("/dev/shm"),
        ),
        (
            "import multiprocessing, time\nm = multiprocessing.get_context('fork')\n"
            "p = m.Process(target=time.sleep, args=(60,), daemon=True); p.start()\nprint(1)",
            "1",
        ),
        (
            "import os\nclass Last:\n  def __del__(self): os.write(1, word)\nword = b'last'\n"
            "last = Last()\nlast.last = [last]",
            "last",
        ),
        ("import os, weakref\nweakref.finalize(os.path, print, 'last')\nprint('first')", "first last"),
        (
            "import os, tempfile\nt = tempfile.TemporaryDirectory(dir='.')\nt.t = t\n"
            "print(len([each for each in os.listdir() if each.startswith('tmp')]))",
            "1",
        ),
        (
            "from wsgiref.handlers import SimpleHandler as S\nimport io, os\n"
            "s = S(io.BytesIO(), io.BytesIO(), io.StringIO(), {})\ns.setup_environ()\n"
            "print(s.environ['QUERY_STRING'] == os.environ['QUERY_STRING'])",
            "True",
        ),
    ],
)
def test_each_run_is_as_the_first(lasting: Driver, tmp_path: Path, code: str, said: str) -> None:
    for name, content in NEAR.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        script(tmp_path / name, content)
    path = script(tmp_path / "each.py", f"print({HEAD!r}, end='', flush=True)\n{code}\n")
    for number in range(3):
        assert text(lasting.ask(path, environment={"QUERY_STRING": str(number)})).split() == said.split()


def test_what_a_library_does_at_the_end_is_done_at_each(tmp_path: Path) -> None:
    """matplotlib closes its figures at exit, for example: otherwise the next script would draw into them."""
    library = tmp_path / "site-packages"
    library.mkdir()
    script(library / "drawing.py", "import atexit\nfigures = []\natexit.register(figures.clear)\n")
    draw = script(
        tmp_path / "draw.py",
        f"import atexit, drawing\natexit.register(print, 'mine')\ndrawing.figures.append(1)\n"
        f"print({HEAD!r}, len(drawing.figures))\n",
    )
    with Driver(PYTHON, {**os.environ, "PYTHONPATH": str(library)}) as engine:
        for _ in range(3):
            assert text(engine.ask(draw)).split() == ["1", "mine"]


def test_a_module_beside_the_script_comes_before_an_installed_one(python: Driver, tmp_path: Path) -> None:
    """Also if another script has loaded the installed one. A directory of other files is no package."""
    use = f"import calendar, html.entities as e\nprint({HEAD!r}, calendar.__file__, e.__file__)\n"
    for place in ("one", "two"):
        (tmp_path / place / "html").mkdir(parents=True)
        script(tmp_path / place / "use.py", use)
    script(tmp_path / "two" / "calendar.py", "")
    script(tmp_path / "two" / "html" / "__init__.py", "")
    script(tmp_path / "two" / "html" / "entities.py", "")
    installed = text(python.ask(str(tmp_path / "one" / "use.py"))).split()
    own = [str(tmp_path / "two" / "calendar.py"), str(tmp_path / "two" / "html" / "entities.py")]
    for _ in range(2):
        assert text(python.ask(str(tmp_path / "two" / "use.py"))).split() == own
        assert text(python.ask(str(tmp_path / "one" / "use.py"))).split() == installed
    assert not set(installed) & set(own)


def test_packages_without_a_file_are_of_their_own_directory(python: Driver, tmp_path: Path) -> None:
    for place, file in (("one", "own/part.py"), ("two", "own/__init__.py"), ("three", "own.py")):
        (tmp_path / place / "own").mkdir(parents=True)
        script(tmp_path / place / file, f"place = {place!r}\n")
        use = "from own.part import place" if place == "one" else "from own import place"
        script(tmp_path / place / "use.py", f"{use}\nprint({HEAD!r}, place)\n")
    for _ in range(2):
        for place in ("one", "two", "three"):
            assert text(python.ask(str(tmp_path / place / "use.py"))).strip() == place
    library = tmp_path / "site-packages" / "shared"  # those of a library stay
    library.mkdir(parents=True)
    script(library / "part.py", "hits = []\n")
    use = script(tmp_path / "use.py", f"import shared.part\nprint({HEAD!r}, shared.part.hits)\n")
    with Driver(PYTHON, {**os.environ, "PYTHONPATH": str(library.parent)}) as engine:
        for _ in range(2):
            assert text(engine.ask(use)).strip() == "[]"


def test_the_time_zone_of_a_request_counts(python: Driver, tmp_path: Path) -> None:
    hour = script(tmp_path / "hour.py", f"import time\nprint({HEAD!r}, time.localtime(0).tm_hour)\n")
    for zone, said in (("AAA-5", "5"), (None, "0"), ("UTC-3", "3"), ("UTC-3", "3"), (None, "0")):
        assert text(python.ask(hour, environment={"TZ": zone} if zone else {})).strip() == said


def test_without_a_locale_a_script_has_that_of_a_new_python(python: Driver, tmp_path: Path) -> None:
    """Python sets it for the programs that the script starts, and a locale of the request counts instead."""
    file = tmp_path / "locale.py"
    file.write_text("import os\nprint(os.environ.get('LC_CTYPE'), flush=True)\nos.system('echo $LC_CTYPE')\n")
    for variables in ({}, {"LANG": "C.UTF-8"}, {"LC_ALL": "C.UTF-8"}, {"HTTP_X_LANG": "de"}):
        alone = answer_of_process([sys.executable], file, variables)
        for _ in range(2):
            assert python.ask(str(file), environment=variables) == alone


def test_a_descriptor_that_a_library_has_kept_is_nobodys(python: Driver, tmp_path: Path) -> None:
    """An event loop that asyncio keeps would end within a later script, and close what has its numbers there."""
    keep = script(
        tmp_path / "keep.py",
        f"import asyncio\nasyncio.set_event_loop(asyncio.new_event_loop())\nprint({HEAD!r})\n",
    )
    look = script(
        tmp_path / "look.py",
        f"""import gc, socket
gc.unfreeze()
print({HEAD!r}, [each for each in gc.get_objects() if type(each) is socket.socket and each.fileno() > 0])
gc.freeze()
""",
    )
    for _ in range(2):
        python.ask(keep)
        assert text(python.ask(look)).strip() == "[]"


def test_a_pipe_that_nobody_has_closed_is_not_closed_within_a_later_script(
    python: Driver, tmp_path: Path
) -> None:
    """subprocess keeps a Popen that was deleted before its program ended, until another program starts."""
    leave = script(
        tmp_path / "leave.py",
        f"""import os, time
print({HEAD!r}, os.popen("exec >&-; sleep 0.05").read())
time.sleep(0.3)
""",
    )
    later = script(
        tmp_path / "later.py",
        f"""import os, subprocess
file = open(__file__)
subprocess.run("true")
print({HEAD!r}, os.fstat(file.fileno()).st_size > 0)
""",
    )
    for _ in range(2):
        text(python.ask(leave))
        assert text(python.ask(later)).strip() == "True"


def test_finalizers_speak_in_their_own_answer(python: Driver, tmp_path: Path) -> None:
    """Output of finalizers is part of the answer, as in a process that ends. Later output is in no answer."""
    cycle = script(
        tmp_path / "cycle.py",
        f"""import io, os, sys
class Last:
    def __init__(self, said=sys.stdout): self.me, self.said = self, said
    def __del__(self): self.said.write("last")
class Later:
    def __del__(self): print("later" * 9000)
print({HEAD!r}, end="")
Last()
wrapper = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))
wrapper.write("wrapped")
wrapper.me = wrapper
sys.later = Later()
""",
    )
    look = script(tmp_path / "look.py", f"print({HEAD!r}, end='look')\n")
    for _ in range(3):
        said = text(python.ask(cycle))
        assert "last" in said and "wrapped" in said
        assert text(python.ask(look)).endswith("look")


@pytest.mark.parametrize(
    "code",
    [
        "import gc\nclass N: pass\na = N(); a.a = a; a.l = [[] for _ in range(999)]; a.s = 's' * 99999\n"
        "gc.collect()",
        "a = [[] for _ in range(97000)]\nfor each in a: each.append(a)",
        "from dataclasses import dataclass\nfrom typing import List, Optional\n"
        "@dataclass\nclass A:\n  x: int\n  text = b'x' * 99999\n  lists = tuple([] for _ in range(300))\n"
        "@dataclass\nclass B:\n  a: Optional[A]\n  b: Optional[List[A]]",
        "import own",
    ],
)
@pytest.mark.parametrize("new_python", ["auto", "none"], indirect=True)
def test_memory_does_not_grow(new_python: Driver, tmp_path: Path, code: str) -> None:
    """What each script would leave is 90 KB or more, so that a hundred of them show beside the 6 MB of chance.

    `typing` remembers the last 128 forms of each kind; by the time that it lets go of a class, the engine has taken
    that out of the collector's sight, until it looks through all, once in so many requests (THAW).
    """

    def memory() -> int:
        return resident_kilobytes(new_python.pid)

    (tmp_path / "own.py").write_text("class Own: pass\nOwn.own = [Own for _ in range(12000)]\n")
    path = script(tmp_path / "leak.py", f"{code}\nprint({HEAD!r})\n")
    first = 5 if "97000" in code else 2 * THAW + 20 if "typing" in code else 60
    more = 10 if "97000" in code else 120
    for _ in range(first):
        text(new_python.ask(path))
    before = memory()
    for _ in range(more):
        text(new_python.ask(path))
    assert memory() - before < 6000, f"{memory() - before} KB"


def test_a_descriptor_that_was_closed_is_nobodys(python: Driver, tmp_path: Path) -> None:
    """The collector must not close a file in an old cycle during a later script, which may use its descriptor."""
    old = "import gc\nclass A: pass\na = A(); a.a = a; a.f = open('/dev/null'); gc.collect()"
    later = "f = open('/etc/hostname'); l = [[] for _ in range(300000)]; print(len(f.read()) > 0)"
    for _ in range(3):
        for _ in range(3):
            python.ask(script(tmp_path / "old.py", f"{old}\nprint({HEAD!r})\n"))
        assert (
            text(python.ask(script(tmp_path / "later.py", f"print({HEAD!r})\n{later}\n"))).strip() == "True"
        )


def test_random_numbers_cannot_be_foretold(python: Driver, tmp_path: Path) -> None:
    """An attacker who has seen 624 of Python's random numbers in a row can compute the next one."""
    draws = f"import random\nprint({HEAD!r}, *[random.getrandbits(32) for _ in range(624)])\n"
    draw = script(tmp_path / "draw.py", draws)
    seen = [[int(word) for word in text(python.ask(draw)).split()] for _ in range(4)]
    assert len({each[0] for each in seen}) == len(seen)  # nor do two requests begin alike
    chance = random.Random()
    for before, after in pairwise(seen):
        chance.setstate((3, (*map(untempered, before), 624), None))
        assert chance.getrandbits(32) != after[0]


def untempered(number: int) -> int:
    """Undo what the Mersenne twister does to a word of its state before it is a number."""
    number ^= number >> 18
    number ^= number << 15 & 0xEFC60000
    word = number
    for _ in range(4):
        word = number ^ (word << 7 & 0x9D2C5680)
    number = word
    for _ in range(2):
        word = number ^ word >> 11
    return word


def test_numbers_that_a_script_has_chosen_are_nobody_elses(python: Driver, tmp_path: Path) -> None:
    chosen = (
        "random.seed(7)",
        "random.setstate(random.Random(7).getstate())",
        "from random import seed; seed(7)",
    )
    known = random.Random(7).random()
    draw = script(tmp_path / "draw.py", f"import random\nprint({HEAD!r}, random.random())\n")
    drawn = [text(python.ask(draw))]
    for each in chosen * 2:
        choose = f"import random\n{each}\nprint({HEAD!r}, random.random())\n"
        assert float(text(python.ask(script(tmp_path / "choose.py", choose)))) == known
        drawn.append(text(python.ask(draw)))
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("python", ["none"], indirect=True)
def test_what_a_library_makes_for_itself_is_not_looked_through_each_time(
    python: Driver, tmp_path: Path
) -> None:
    make = script(
        tmp_path / "make.py", f"import string\nstring.kept = [[] for _ in range(9999)]\nprint({HEAD!r})\n"
    )
    count = script(tmp_path / "count.py", f"import gc\nprint({HEAD!r}, len(gc.get_objects()))\n")
    python.ask(make)
    assert int(text(python.ask(count))) < 200


def test_modules_beside_the_script_are_fresh_and_changes_are_seen(python: Driver, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for value in ("one", "two", "six"):
        script(tmp_path / "mine" / "__init__.py", f"hits = 0\nvalue = {value!r}\n")
        hits = script(
            tmp_path / "hits.py",
            f"import mine, json\nmine.hits += 1\nprint({HEAD!r}, mine.hits, mine.value)\n",
        )
        for _ in range(2):
            assert text(python.ask(hits)).split() == ["1", value]
    assert not list(tmp_path.rglob("*.pyc"))


@pytest.mark.parametrize("isolation", ["auto", "fork"])
@pytest.mark.parametrize("command", [PYTHON, PERL], ids=["python", "perl"])
def test_an_edit_may_keep_size_and_time(command: list[str], isolation: str, tmp_path: Path) -> None:
    """An archiver or `cp -p` does this: it writes into the same file and sets its time."""
    with Driver(command, isolated(isolation)) as engine:
        for value in ("one", "two"):
            say = f'print "{HEAD}", "{value}";' if command is PERL else f"print({HEAD!r}, {value!r})"
            said = script(tmp_path / "said", say)
            os.utime(said, (1e9, 1e9))
            assert text(engine.ask(said)).strip() == value


@pytest.mark.parametrize("command", [PYTHON, PERL], ids=["python", "perl"])
def test_a_relative_path_is_of_the_scripts_own_directory(command: list[str], tmp_path: Path) -> None:
    perl = command is PERL
    suffix, module = ("pl", "Mine.pm") if perl else ("py", "mine.py")
    uses = []
    for place in ("here", "there"):
        (tmp_path / place / "lib").mkdir(parents=True)
        text_of_module = (
            f"package Mine; our $n; sub m {{ '{place}' . ++$n }} 1;" if perl else f"m = '{place}1'\n"
        )
        for directory in (place, f"{place}/lib"):
            script(tmp_path / directory / module, text_of_module)
        for path in (".", "lib"):
            use = (
                f"use lib '{path}'; use Mine; print '{HEAD}', Mine::m();"
                if perl
                else (f"import sys\nsys.path.insert(0, '{path}')\nimport mine\nprint({HEAD!r}, mine.m)\n")
            )
            uses.append((script(tmp_path / place / f"{path.strip('.')}.use.{suffix}", use), f"{place}1"))
    with Driver(command) as engine:
        for use, answer in (*uses, *uses, *reversed(uses)):
            assert text(engine.ask(use)).split()[-1] == answer


@pytest.mark.parametrize("isolation", ["auto", "none"])
def test_an_installed_module_that_changes_is_loaded_anew(tmp_path: Path, isolation: str) -> None:
    """Without isolation that takes up to a second."""
    library = tmp_path / "site-packages"
    library.mkdir()
    module = script(library / "installed.py", "value = 1\nprint('loaded')\n")
    main = script(
        tmp_path / "use.py",
        f"print({HEAD!r})\nimport installed, sys\nprint(installed.value, sys.stdin.read())\n",
    )
    with Driver(PYTHON, {**isolated(isolation), "PYTHONPATH": str(library)}) as engine:
        assert "loaded" in text(engine.ask(main))
        assert ("loaded" in text(engine.ask(main))) == (isolation == "auto")
        script(Path(module), "value = 2\n")
        if isolation == "none":
            time.sleep(1.1)
        assert text(engine.ask(main, body=b"kept")).split() == ["2", "kept"]


def test_a_module_in_an_archive_ends_no_engine(python: Driver, tmp_path: Path) -> None:
    """Its name is that of no file: library.egg/module.py."""
    library = tmp_path / "site-packages" / "library.egg"
    library.parent.mkdir()
    with zipfile.ZipFile(library, "w") as archive:
        archive.writestr("in_archive.py", "value = 1\n")
    code = f"import sys\nsys.path.append({str(library)!r})\nimport in_archive\nprint({HEAD!r}, in_archive.value)\n"
    main = script(tmp_path / "use.py", code)
    for _ in range(2):
        assert text(python.ask(main)).split()[-1] == "1"


def test_output_of_every_kind_comes_in_order(python: Driver, tmp_path: Path) -> None:
    kinds = script(tmp_path / "kinds.py", f"""import os, subprocess, sys
print({HEAD!r}, end="", flush=True)
os.write(1, b"descriptor ")
subprocess.run(["echo", "child"])
sys.stdout.buffer.write(b"bytes ")
sys.stdout.flush()
if os.fork() == 0:
    print("forked", end=" ")
    sys.exit(3)
os.wait()
class Late:
    def __del__(self): print("deleted", end=" ")
late = Late()
import atexit; atexit.register(print, "atexit", end=" ")
""")  # fmt: skip
    for _ in range(2):
        assert text(python.ask(kinds)).split() == [
            "descriptor",
            "child",
            "bytes",
            "forked",
            "atexit",
            "deleted",
        ]


@pytest.mark.parametrize(
    "end",
    [
        "os._exit(0)",
        "os.execv('/bin/echo', ['echo', 'said'])",
        "threading.Thread(target=late).start()",
        "subprocess.Popen(['sh', '-c', 'sleep 0.2; echo said'])",
    ],
)
def test_what_ends_a_process_ends_the_engine_with_the_whole_answer(
    python: Driver, tmp_path: Path, end: str
) -> None:
    hard = script(tmp_path / "hard.py", f"""import os, subprocess, threading, time
def late():
    time.sleep(0.2); print("said")
print({HEAD!r}, "said" if "_exit" in {end!r} else "", flush=True)
{end}
""")  # fmt: skip
    answer = python.ask(hard)
    assert answer.status in (None, 0)  # 0: the process was not the engine's
    assert answer.output.split()[-1] == b"said"


@pytest.mark.parametrize("isolation", ["auto", "fork", "none"])
@pytest.mark.parametrize("command", [PYTHON, PERL], ids=["python", "perl"])
@pytest.mark.parametrize("fault", ["no room", "no directory"])
def test_a_body_that_no_script_gets_is_not_the_next_ones(
    command: list[str], isolation: str, fault: str, tmp_path: Path
) -> None:
    """The engine ends, or has read the body to its end. No script gets a part of it as if that were all."""

    def have_no_room() -> None:
        if fault == "no room":  # as on a full /tmp; a failing write is no signal
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    suffix = Path(command[-1]).suffix
    directory = tmp_path / "sub"
    directory.mkdir()
    for each in (directory / f"echo{suffix}", tmp_path / f"echo{suffix}"):
        each.write_text(SCRIPTS[suffix]["echo"])
    if fault == "no directory":
        directory.rename(tmp_path / "other")
    left = b"left" * 25_000
    with PatientDriver(command, isolated(isolation), have_no_room) as engine:
        # Sent as by X-Switch, which writes all of the body while its engine runs
        engine.data.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(left))
        engine.data.sendall(left)
        try:
            answer = engine.ask(
                str(directory / f"echo{suffix}"), environment={"CONTENT_LENGTH": str(len(left))}
            )
            assert not answer.output
            if answer.status is None:
                return
            answer = engine.ask(str(tmp_path / f"echo{suffix}"), body=b"mine")
        except ConnectionError:
            return  # the engine has ended
        assert answer.output.endswith(b"\nmine"), answer


@pytest.mark.parametrize("isolation", ["auto", "fork"])
@pytest.mark.parametrize("command", [PYTHON, PERL], ids=["python", "perl"])
def test_a_body_in_small_pieces_arrives_whole(command: list[str], isolation: str, tmp_path: Path) -> None:
    """As a slow client sends it. A pipe holds 64 KiB only if each of its pages is full."""
    suffix = Path(command[-1]).suffix
    echo = script(tmp_path / f"echo{suffix}", SCRIPTS[suffix]["echo"])
    body, piece_bytes = os.urandom(64 * 1024), 2049
    with PatientDriver(command, isolated(isolation)) as engine:
        variables = {b"CONTENT_LENGTH": b"%d" % len(body)}
        engine.control.sendall(request_lines(os.fsencode(echo), [], variables))
        for at in range(0, len(body), piece_bytes):
            engine.data.sendall(body[at : at + piece_bytes])
            wait_until(lambda: unread_bytes(engine.data) == 0, 20)
        output, status = engine.converse(b"", time.monotonic() + 90)
    assert status == 0 and output.endswith(b"\n\n" + body)


@pytest.mark.parametrize("isolation", ["auto", "none"])
@pytest.mark.parametrize("command", [PYTHON, PERL], ids=["python", "perl"])
def test_an_idle_engine_keeps_no_body(command: list[str], isolation: str, tmp_path: Path) -> None:
    """A large body is a file without a name: it takes space until no process has it open."""
    suffix = Path(command[-1]).suffix
    echo = script(tmp_path / f"echo{suffix}", SCRIPTS[suffix]["echo"])
    with PatientDriver(command, isolated(isolation)) as engine:
        for body in (bytes(100_000), b"", b"x"):
            assert engine.ask(echo, body=body).output.endswith(b"\n\n" + body)
            wait_until(lambda: os.readlink(f"/proc/{engine.pid}/fd/0") == "/dev/null", 20)


def test_an_idle_engine_of_programs_keeps_no_body(tmp_path: Path) -> None:
    program = tmp_path / "echo"
    program.write_text("#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\ncat\n")
    program.chmod(0o755)
    with PatientDriver([sys.executable, str(ENGINES / "run_cgi.py")], isolated("auto")) as engine:
        for body in (bytes(100_000), b"", b"x"):
            assert engine.ask(str(program), body=body).output == HEAD.encode() + body
            assert os.readlink(f"/proc/{engine.pid}/fd/0") == "/dev/null"


def unread_bytes(sock: socket.socket) -> int:
    """Return how many bytes of memory the other end of a Unix socket has not read yet."""
    return int.from_bytes(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def test_the_errors_of_a_run_are_found_after_those_of_many_others(python: Driver, tmp_path: Path) -> None:
    """An engine writes all of them to one file, behind those of its earlier runs."""
    loud = script(tmp_path / "loud.py", "import sys\nsys.stderr.write('x' * 600_000)\nsys.exit('the end')\n")
    for _ in range(3):
        errors = python.ask(loud).errors
        assert len(errors) == 600_008 and errors.endswith(b"xthe end\n")


def test_errors_are_told_as_python_tells_them(python: Driver, tmp_path: Path) -> None:
    wrong = script(tmp_path / "wrong.py", "def f():\n    return 1 / 0\nf()\n")
    answer = python.ask(wrong)
    assert answer.status == 1 and answer.output == b""
    lines = answer.errors.decode().splitlines()
    assert (
        lines[1] == f'  File "{wrong}", line 3, in <module>'
        and lines[-1] == "ZeroDivisionError: division by zero"
    )
    assert b"SyntaxError" in python.ask(script(tmp_path / "syntax.py", "if:\n")).errors
    script(tmp_path / "half.py", "x = (\n")
    lines = python.ask(script(tmp_path / "whole.py", "import half\n")).errors.decode().splitlines()
    assert [line for line in lines if line.startswith("  File")] == [
        f'  File "{tmp_path}/whole.py", line 1, in <module>',
        f'  File "{tmp_path}/half.py", line 1',
    ]
    assert python.ask(script(tmp_path / "words.py", "import sys; sys.exit('oh')")).errors == b"oh\n"
    hook = script(
        tmp_path / "hook.py",
        """import sys
def tell(kind, value, where):
    print("Status: 500\\n\\n<p>", kind.__name__)
sys.excepthook = tell
1/0
""",
    )
    assert python.ask(hook).output == b"Status: 500\n\n<p> ZeroDivisionError\n"
    assert b"Traceback" in python.ask(wrong).errors
    leave = script(tmp_path / "leave.py", "import sys\nsys.excepthook = lambda *_: sys.exit(9)\n1/0\n")
    assert python.ask(leave)[1:] == (b"", 9)
    broken = script(tmp_path / "broken.py", "import sys\nsys.excepthook = None\n1/0\n")
    said = python.ask(broken).errors.decode()
    assert "Error in sys.excepthook" in said and "ZeroDivisionError" in said and "python.py" not in said
    mute = script(tmp_path / "mute.py", "class Mute:\n  __str__ = None\nraise SystemExit(Mute())\n")
    assert python.ask(mute)[1:] == (b"", 1)


def test_without_standard_error_no_report_comes_into_the_output(python: Driver, tmp_path: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    for name, text_of_script in (
        ("hook.py", "import sys\nsys.excepthook = sys.stderr = None\n1/0\n"),
        (
            "module.py",
            f"#!{tmp_path}/venv/bin/python\nimport sys\nsys.stderr = None\nimport a_module_that_is_missing\n",
        ),
    ):
        answer = python.ask(script(tmp_path / name, text_of_script))
        assert (answer.output, answer.status) == (b"", 1), name


def test_a_module_of_a_virtual_environment_that_the_first_line_names(python: Driver, tmp_path: Path) -> None:
    """The engine's Python runs the script. If the script lacks a module, its author is told why, and what to do."""
    interpreter = tmp_path / "venv" / "bin" / "python"
    (tmp_path / "venv").mkdir()
    missing = "import a_module_that_nobody_has\n"

    def told(name: str, line: str, code: str = missing) -> str:
        answer = python.ask(script(tmp_path / name, f"{line}\n{code}"))
        assert answer.status == (1 if code else 0) and answer.output == b""
        return answer.errors.decode()

    # No environment is there
    assert told("no.py", f"#!{interpreter}").endswith("'a_module_that_nobody_has'\n")
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    traceback, _, advice = told("yes.py", f"#!{interpreter} -u").rpartition("'a_module_that_nobody_has'\n")
    assert traceback and advice.count("\n") == 1
    assert advice.startswith(f"{tmp_path}/yes.py: its first line names {interpreter}, and ")
    assert f"name {interpreter} as the command of an engine (tables [engines]" in advice
    for name, line, code in (
        ("env.py", "#!/usr/bin/env python3", missing),
        ("none.py", "", missing),
        ("own.py", f"#!{sys.prefix}/bin/python3", missing),
        ("short.py", "#!", missing),
        ("other.py", f"#!{interpreter}", "1/0"),
        ("good.py", f"#!{interpreter}", ""),
    ):
        assert "its first line" not in told(name, line, code), name


def test_libraries_for_cgi_work(python: Driver, tmp_path: Path) -> None:
    cookies = script(tmp_path / "cookies.py", """import os, sys, urllib.parse
from http.cookies import SimpleCookie
jar = SimpleCookie(os.environ["HTTP_COOKIE"])
form = urllib.parse.parse_qs(sys.stdin.read())
jar["n"] = int(jar["n"].value) + 1
print("Content-Type: text/plain"); print(jar); print(); print(form["a"])
""")  # fmt: skip
    answer = python.ask(cookies, environment={"HTTP_COOKIE": "n=1"}, body=b"a=1&a=2")
    assert b"Set-Cookie: n=2" in answer.output and text(answer) == "['1', '2']\n"
    wsgi = script(tmp_path / "app.py", """from wsgiref.handlers import CGIHandler
def app(environ, start):
    start("201 Created", [("Content-Type", "text/plain")])
    return [environ["PATH_INFO"].encode(), environ["wsgi.input"].read(5)]
CGIHandler().run(app)
""")  # fmt: skip
    variables = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/p",
        "SERVER_NAME": "a",
        "SERVER_PORT": "1",
        "SERVER_PROTOCOL": "HTTP/1.0",
    }
    for _ in range(2):
        answer = python.ask(wsgi, environment=variables, body=b"12345")
        assert answer.output.startswith(b"Status: 201 Created\r\n") and answer.output.endswith(b"/p12345")


def test_a_file_left_open_has_all_that_was_written(python: Driver, tmp_path: Path) -> None:
    leave = script(
        tmp_path / "leave.py",
        f"""print({HEAD!r})
class Ring: pass
ring = Ring(); ring.self = ring
ring.file = open({str(tmp_path / "left")!r}, "a"); ring.file.write("written\\n")
""",
    )
    for _ in range(2):
        python.ask(leave)
    python.ask(leave)
    assert (tmp_path / "left").read_text().splitlines()[:2] == ["written"] * 2


# Perl


def test_perl_scripts_do_not_see_each_other(perl: Driver, tmp_path: Path) -> None:
    spoil = script(
        tmp_path / "spoil.pl",
        f"""print "{HEAD}";
our $left = 1; @main::left = (1); $ENV{{LEFT}} = 1; umask 0777; chdir '/'; $SIG{{TERM}} = 'IGNORE'; alarm 1;
$/ = undef; $, = '-'; $| = 1; push @INC, '/left'; open LEFT, '<', '/dev/null'; binmode STDOUT, ':utf8';
package Left; our $here = 1; sub new {{ bless {{}} }}
sub main::helper {{ 1 }}
""",
    )
    look = script(
        tmp_path / "look.pl",
        f"""use Cwd; print "{HEAD}";
our ($left, @left);
print defined $left ? 1 : 0, scalar @left, $ENV{{LEFT}} // 'none', ' ', umask, ' ', getcwd(), ' ',
  $SIG{{TERM}} // 'default', ' ', alarm(0), ' ', length $/, $, // 'undef', $|, ' ',
  "@INC" =~ m{{/left}} ? 'inc' : '', defined fileno(LEFT) ? 'open' : '',
  $Left::here // 'no package', defined &helper ? 'sub' : '', "\\xe9\\n";
""",
    )
    first = perl.ask(look).output
    perl.ask(spoil)
    assert perl.ask(look).output == first
    assert first.endswith(b"\xe9\n") and b"no package" in first


@pytest.mark.parametrize("strict", ["", "use strict;"])
def test_perl_lexicals_are_fresh_in_named_subs(perl: Driver, tmp_path: Path, strict: str) -> None:
    counter = script(
        tmp_path / "counter.pl",
        f'{strict} use warnings;\nmy $n = 0;\nsub up {{ return ++$n }}\nup(); print "{HEAD}", up();\n',
    )
    state = script(
        tmp_path / "state.pl",
        f'{strict} use feature "state"; sub up {{ state $n = 0; return ++$n }}\nup(); print "{HEAD}", up();\n',
    )
    plain = script(
        tmp_path / "plain.pl",
        f'{strict} my $n = 1; sub up {{ return $_[0] + 1 }}\nprint "{HEAD}", up($n++);\n',
    )
    for _ in range(3):
        assert [text(perl.ask(each)) for each in (counter, state, plain)] == ["2", "2", "2"]


def test_perl_ends_as_perl_does(perl: Driver, tmp_path: Path) -> None:
    ends = script(
        tmp_path / "ends.pl",
        f"""use strict; print "{HEAD}"; END {{ print "end" }}
sub leave {{ eval {{ exit(4) }}; print "not reached" }}
if (my $pid = fork) {{ waitpid $pid, 0 }} else {{ print "" ; exit 0 }}
leave();
""",
    )
    dies = script(tmp_path / "dies.pl", 'warn "careful"; die { code => 1 } if 0; die "dead\\n";')
    wrong = script(tmp_path / "wrong.pl", "use strict; $x = 1;\n")
    for _ in range(2):
        answer = perl.ask(ends)
        assert answer.status == 4 and answer.output.endswith(b"end") and b"not reached" not in answer.output
        answer = perl.ask(dies)
        assert (
            answer.status not in (0, None) and answer.errors == f"careful at {dies} line 1.\ndead\n".encode()
        )
        answer = perl.ask(wrong)
        assert answer.status == 255 and f"at {wrong} line 1.".encode() in answer.errors
    missing = perl.ask(str(tmp_path / "none.pl"))
    assert missing.status == 2 and b"No such file" in missing.errors


@pytest.mark.needs("CGI.pm")
def test_cgi_pm_works(perl: Driver, tmp_path: Path) -> None:
    form = script(tmp_path / "form.pl", """#!/usr/bin/perl -w
use strict;
use CGI qw(:standard);
use CGI::Carp qw(fatalsToBrowser);
my $name = param('name');
sub greet { return "hello $name" }
print header('text/plain'), greet(), "\\n";
die "fatal" if $name eq 'die';
print while <DATA>;
__DATA__
data
""")  # fmt: skip
    for name in ("ann", "bob"):
        variables = {"REQUEST_METHOD": "GET", "QUERY_STRING": f"name={name}"}
        assert text(perl.ask(form, environment=variables)) == f"hello {name}\ndata\n"
        variables = {"REQUEST_METHOD": "POST", "CONTENT_TYPE": "application/x-www-form-urlencoded"}
        assert text(perl.ask(form, environment=variables, body=b"name=posted")) == "hello posted\ndata\n"
        answer = perl.ask(form, environment={"REQUEST_METHOD": "GET", "QUERY_STRING": "name=die"})
        assert b"Software error" in answer.output
    upload = script(tmp_path / "upload.pl", """use strict; use CGI;
my $q = CGI->new; my $file = $q->upload('file'); binmode $file; local $/; my $data = <$file>;
print $q->header('text/plain'), length $data, ' ', unpack('%32C*', $data), "\\n";
""")  # fmt: skip
    content = bytes(range(256)) * 1000
    body = (
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        + content
        + b"\r\n--B--\r\n"
    )
    variables = {"REQUEST_METHOD": "POST", "CONTENT_TYPE": "multipart/form-data; boundary=B"}
    variables["TMPDIR"] = str(tmp_path)
    for _ in range(2):
        assert text(perl.ask(upload, environment=variables, body=body)) == f"{len(content)} {sum(content)}\n"


def test_perl_modules_beside_the_script_are_fresh(perl: Driver, tmp_path: Path) -> None:
    for value in ("one", "two"):
        script(tmp_path / "Mine.pm", f"package Mine; our $hits = 0; sub value {{ '{value}' }} 1;\n")
        use = script(
            tmp_path / "use.pl",
            f'use lib "{tmp_path}"; use Mine; $Mine::hits++; print "{HEAD}", Mine::value(), $Mine::hits;\n',
        )
        for _ in range(2):
            assert text(perl.ask(use)) == value + "1"


def test_a_perl_script_is_compiled_once_for_each_change(perl: Driver, tmp_path: Path) -> None:
    """The compile phase shows: BEGIN runs at each request, but only scripts without it are kept."""
    body = "".join(
        f"sub unused{number} {{ my %h = map {{ $_ => 1 }} @_; return \\%h }}\n" for number in range(3000)
    )
    large = script(tmp_path / "large.pl", f'use strict;\nprint "{HEAD}", "large";\n{body}')
    times = []
    for _ in range(6):
        began = time.perf_counter()
        assert text(perl.ask(large)) == "large"
        times.append(time.perf_counter() - began)
    assert min(times[2:]) < times[0] / 2, times


# The engines of docs/xswitch-internals.md


@pytest.mark.parametrize(
    ("language", "name", "interpreter"),
    [
        pytest.param("bash", "shell.sh", "bash", marks=pytest.mark.needs("bash")),
        pytest.param("javascript", "node.js", "node", marks=pytest.mark.needs("Node.js")),
    ],
)
def test_the_engines_of_the_document_keep_every_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], language: str, name: str, interpreter: str
) -> None:
    document = (ROOT / "docs" / "xswitch-internals.md").read_text()
    found = re.search(rf"```{language}\n(.*?)```", document, re.DOTALL)
    assert found
    engine = script(tmp_path / name, found[1])
    assert check.main([interpreter, engine]) == 0, capsys.readouterr().out


def test_the_document_says_what_the_protocol_is() -> None:
    document = (ROOT / "docs" / "xswitch-internals.md").read_text()
    assert f"at most {MAX_LINES_BYTES // 1024} KB" in document
    assert "1,000,000 bytes" in document and check.LARGE_BODY_BYTES == 1_000_000
