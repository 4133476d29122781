"""Scripts of one user that share a Python engine answer as they do in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engines import HEAD, PYTHON, Engines, answer_of_process, isolated, write
from support.proc import children_of, state
from support.server import ROOT, wait_until

from ewe.xswitch.tools.driver import Driver, ScriptResult

pytestmark = pytest.mark.starts_processes


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    shared = Engines(PYTHON)
    yield shared
    shared.close()


@pytest.fixture(params=["auto", "fork"])
def engine(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """An engine that has run no script."""
    with Driver(PYTHON, isolated(request.param)) as driver:
        yield driver


def by_cgi(script: Path, **variables: str) -> ScriptResult:
    """Return the answer of a separate process."""
    return answer_of_process([sys.executable, "-B"], script, variables)


def settled(engine: Driver) -> None:
    """Wait until all processes of an engine wait for requests."""
    wait_until(lambda: all(each in "SZ" for each in states(engine.pid)), 20)


def states(pid: int) -> Iterator[str]:
    """Return the states of a process and all that it has started."""
    yield state(pid)
    for child in children_of(pid):
        yield from states(child)


def compare(engine: Driver, *scripts: Path, rounds: int = 3, **variables: str) -> None:
    """Run the scripts in turn. Each answer must equal that of a separate process.

    Between the rounds, modules are loaded beforehand, where an engine does so.
    """
    wanted = [by_cgi(script, **variables) for script in scripts]
    for each in wanted:
        assert each.status == 0, each.errors.decode()
    for _ in range(rounds):
        for script, answer in zip(scripts, wanted, strict=True):
            assert engine.ask(str(script), environment=variables) == answer
        settled(engine)


# A framework that keeps its settings where it was imported, as many do
FRAMEWORK = {
    "__init__.py": "from framework.conf import settings\nVERSION = '1'\n",
    "conf.py": """import importlib, os
class Settings:
    values = None
    def __getattr__(self, name):
        if Settings.values is None:
            Settings.values = importlib.import_module(os.environ["FRAMEWORK_SETTINGS"])
        return getattr(Settings.values, name)
settings = Settings()
""",
    "urls.py": """import importlib
from framework.conf import settings
tables = {}
def resolve(path):
    if not tables:
        tables.update(importlib.import_module(settings.URLS).urls)
    return tables[path]
""",
}


def project(site: Path, place: Path, name: str, page: str) -> Path:
    """Write a project that uses the framework in `site`; return its script."""
    package = f"{name}_project"
    write(place / package / "__init__.py", "")
    write(place / package / "settings.py", f"URLS = '{package}.urls'\nNAME = '{name}'\n")
    write(place / package / "urls.py", f"urls = {{'/': lambda: '{page}'}}\n")
    return write(
        place / "run.py",
        f"""import os, sys
sys.path[:0] = [{str(place)!r}, {str(site)!r}]
os.environ["FRAMEWORK_SETTINGS"] = "{package}.settings"
import framework.urls
print({HEAD!r}, framework.VERSION, framework.settings.NAME, framework.urls.resolve("/")())
""",
    )


def test_two_projects_with_one_framework(engine: Driver, tmp_path: Path) -> None:
    """Each project has its own settings and pages, and an edit takes effect at the next request."""
    site = tmp_path / "lib" / "site-packages"
    for name, text in FRAMEWORK.items():
        write(site / "framework" / name, text)
    one = project(site, tmp_path / "one", "one", "first page")
    two = project(site, tmp_path / "two", "two", "second page")
    compare(engine, one, two)
    write(tmp_path / "one" / "one_project" / "urls.py", "urls = {'/': lambda: 'another page'}\n")
    compare(engine, one, two)
    write(tmp_path / "two" / "two_project" / "settings.py", "URLS = 'one_project.urls'\nNAME = 'two'\n")
    write(tmp_path / "two" / "one_project.py", "")
    write(tmp_path / "two" / "two_project" / "urls.py", "urls = {'/': lambda: 'a longer second page'}\n")
    write(tmp_path / "two" / "two_project" / "settings.py", "URLS = 'two_project.urls'\nNAME = 'second'\n")
    compare(engine, one, two)


def test_two_environments_with_different_versions(engine: Driver, tmp_path: Path) -> None:
    scripts = []
    for version in ("one", "two"):
        site = tmp_path / version / "lib" / "site-packages"
        write(site / "versioned" / "__init__.py", "from versioned import part\nversion = part.version\n")
        write(site / "versioned" / "part.py", f"version = '{version}'\n")
        for path in (
            "sys.path.insert(0, {})",
            "import site; site.addsitedir({})",
            "sys.path = [{}, *sys.path]",
        ):
            script = tmp_path / f"{version}{len(scripts)}.py"
            use = path.format(repr(str(site)))
            scripts.append(
                write(script, f"import sys\n{use}\nimport versioned\nprint({HEAD!r}, versioned.version)\n")
            )
    compare(engine, *scripts[::3], *scripts[1::3], *scripts[2::3])


def test_the_environment_may_depend_on_the_request(engine: Driver, tmp_path: Path) -> None:
    for version in ("one", "two"):
        write(tmp_path / version / "site-packages" / "versioned.py", f"version = '{version}'\n")
    script = write(
        tmp_path / "run.py",
        f"""import os, sys
sys.path.insert(0, os.path.join({str(tmp_path)!r}, os.environ["HTTP_X_VERSION"], "site-packages"))
import versioned
print({HEAD!r}, versioned.version)
""",
    )
    for version in ("one", "one", "one", "two", "one", "two"):
        compare(engine, script, rounds=2, HTTP_X_VERSION=version)


# A change that one script makes to a module, and the output of the next script
LEAKS = {
    "csv": (
        "csv.register_dialect('mine', delimiter=';')",
        "csv.list_dialects()",
    ),
    "xml.etree.ElementTree as ET": (
        "ET.register_namespace('mine', 'urn:mine')",
        "ET.tostring(ET.Element('{urn:mine}a'))",
    ),
    "ssl": (
        "ssl._create_default_https_context = ssl._create_unverified_context",
        "ssl._create_default_https_context.__name__",
    ),
    "mimetypes": ("mimetypes.add_type('x/y', '.zzz')", "mimetypes.guess_type('a.zzz')"),
    "codecs": (
        "codecs.register(lambda name: codecs.lookup('ascii') if name == 'mine' else None)",
        "[each for each in ['mine'] if codecs.lookup_error('strict') and not found(each)]",
    ),
    "json": ("json.JSONEncoder.item_separator = ' ;'", "json.dumps([1, 2], separators=None)"),
    "decimal": ("decimal.DefaultContext.prec = 3", "decimal.Context().prec"),
    "resource": ("resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99))", "resource.getrlimit(7)[0] == 99"),
    "copyreg": ("copyreg.pickle(complex, repr)", "copyreg.dispatch_table[complex].__name__"),
    "email.charset as charset": ("charset.add_alias('mine', 'utf-8')", "'mine' in charset.ALIASES"),
    "string": ("string.Template.delimiter = '%'", "string.Template('$a').safe_substitute(a=1)"),
    "textwrap": ("def f(m): m.dedent = len\nf(textwrap)", "textwrap.dedent(' a')"),
    "html": ("setattr(html, 'escape', len)", "html.escape('<')"),
    "calendar": ("vars(calendar)['isleap'] = len", "calendar.isleap(2000)"),
    "shlex": ("exec('shlex.quote = len')", "shlex.quote('a')"),
    "http.client as c": ("c.responses[299] = 'Mine'", "c.responses.get(299)"),
    "http.cookies as c": ("from http.cookies import Morsel\nMorsel._reserved['x'] = 'X'", "c.Morsel()"),
    "locale": ("locale.normalize = None", "callable(locale.normalize)"),
    "os": ("os.path.join = None", "callable(os.path.join)"),
    "sys": ("sys.modules['bisect'] = sys", "__import__('bisect').__name__"),
    "warnings": ("import sys\nsys.path_hooks.clear()", "len(warnings.sys.path_hooks) > 0"),
    "getpass": ("import own_patch", "getpass.getuser.__name__"),
    "fractions": ("for module in [fractions]: module.Fraction = int", "fractions.Fraction.__name__"),
}
FOUND = "def found(name):\n    try: return codecs.lookup(name)\n    except LookupError: return None\n"


@pytest.mark.parametrize("name", LEAKS)
def test_what_one_script_changes_no_other_sees(engines: Engines, tmp_path: Path, name: str) -> None:
    """Both scripts run, with modules preloaded, and the second output equals the first."""
    change, expression = LEAKS[name]
    write(tmp_path / "own_patch.py", "import getpass\ngetpass.getuser = len\n")
    look = write(tmp_path / "look.py", f"import {name}\n{FOUND}\nprint({HEAD!r}, {expression})\n")
    spoil = write(tmp_path / "spoil.py", f"import {name}\n{change}\nprint({HEAD!r})\n")
    wanted = {script: by_cgi(script) for script in (look, spoil)}
    assert [answer.status for answer in wanted.values()] == [0, 0], wanted
    for isolation in ("auto", "fork"):
        engine = engines.get(isolation)
        for script in (look, spoil):
            assert engine.ask(str(script)) == wanted[script], isolation
        settled(engine)
        assert engine.ask(str(look)) == wanted[look], isolation


# A change that one script makes to an object that no module shows, and the output of the next script
REACHED = {
    "a limit in C": ("import csv\ncsv.field_size_limit(10**9)", "import csv\nprint(csv.field_size_limit())"),
    "a name of a level": (
        "import logging\nlogging.addLevelName(25, 'NOTICE')",
        "import logging\nprint(logging.getLevelName(25))",
    ),
    "a setting of coroutines": (
        "import sys\nsys.set_coroutine_origin_tracking_depth(5)",
        "import sys\nprint(sys.get_coroutine_origin_tracking_depth())",
    ),
    "a thread": (
        "import threading\nthreading.current_thread().user = 'alice'",
        "import threading\nprint(hasattr(threading.current_thread(), 'user'))",
    ),
    "a table through an instance": (
        "import configparser\nc = configparser.ConfigParser()\nc.BOOLEAN_STATES['ja'] = True",
        "import configparser\nprint('ja' in configparser.ConfigParser.BOOLEAN_STATES)",
    ),
    "a private table through an instance": (
        "from http.cookies import SimpleCookie\nc = SimpleCookie('a=b')\nc['a']._reserved['mine'] = 'Mine'",
        "from http.cookies import SimpleCookie\nprint(len(SimpleCookie('a=b')['a']))",
    ),
    "a class with another name": (
        "from http.server import SimpleHTTPRequestHandler\nHandler = SimpleHTTPRequestHandler\n"
        "Handler.extensions_map['.wasm'] = 'application/wasm'",
        "from http.server import SimpleHTTPRequestHandler as H\nprint('.wasm' in H.extensions_map)",
    ),
    "a table that was inherited": (
        "import optparse\nclass O(optparse.Option): pass\nO.TYPE_CHECKER['int'] = lambda *_: 99",
        "import optparse\nprint(optparse.Option.TYPE_CHECKER['int'].__name__)",
    ),
    "classes in a loop": (
        "from json import JSONEncoder, JSONDecoder\nfor c in (JSONEncoder, JSONDecoder): c.hits = 1",
        "import json\nprint(hasattr(json.JSONEncoder, 'hits'))",
    ),
    "the class of an object": (
        "import json\ne = json.JSONEncoder()\ntype(e).item_separator = '; '",
        "import json\nprint(json.JSONEncoder().encode([1, 2]))",
    ),
    "a class as an argument": (
        "import json\ndef patch(c): c.default = lambda *_: 'patched'\npatch(json.JSONEncoder)",
        "import json\nprint(json.JSONEncoder.default.__name__)",
    ),
    "an attribute of a function": (
        "import json\ndef count(f):\n  f.calls = 1\n  return f\ncount(json.dumps)",
        "import json\nprint(hasattr(json.dumps, 'calls'))",
    ),
    "a table that all messages share": (
        "from email.policy import default\nclass H: pass\ndefault.header_factory.map_to_type('subject', H)",
        "from email.policy import default\nprint(default.header_factory.registry['subject'].__name__)",
    ),
    "a table of the same length": (
        "from mimetypes import types_map\nt = types_map\nt['.txt'] = 'x/y'",
        "import mimetypes\nprint(mimetypes.guess_type('a.txt'))",
    ),
    "a module with another name": (
        "import os\np = os.path\np.join = len",
        "import os\nprint(os.path.join('a', 'b'))",
    ),
    "a function that is called by its name": (
        "import operator, mimetypes\noperator.setitem(mimetypes.types_map, '.txt', 'x/y')",
        "import mimetypes\nprint(mimetypes.types_map['.txt'])",
    ),
    "a class of type": (
        "from json import JSONEncoder\ntype.__setattr__(JSONEncoder, 'item_separator', '|')",
        "import json\nprint(json.JSONEncoder.item_separator)",
    ),
    "variables by their names": (
        "import json\nglobals()['json'].decoder.BACKSLASH['n'] = 'Q'",
        "import json.decoder\nprint(json.decoder.BACKSLASH['n'])",
    ),
    "a module of a module of one's own": (
        "import beside\nbeside.encoder.ESCAPE_DCT['n'] = 'Q'",
        "import json.encoder\nprint('n' in json.encoder.ESCAPE_DCT)",
    ),
    "a module that is an attribute": (
        "class A:\n  import json\nA.json.decoder.BACKSLASH['t'] = 'Q'",
        "import json.decoder\nprint(json.decoder.BACKSLASH['t'])",
    ),
    "a frame": (
        "import json\ntry: json.loads('{')\nexcept ValueError as e:\n"
        "  e.__traceback__.tb_next.tb_frame.f_globals['loads'] = len",
        "import json\nprint(json.loads('[1]'))",
    ),
    "the class of an exception": (
        "import json\nclass A:\n  x = 0\n  def __enter__(self): pass\n"
        "  def __exit__(self, t, v, b):\n    t.x = 1\n    return True\nwith A(): json.loads('{')",
        "import json\ntry: json.loads('{')\nexcept ValueError as e: print(hasattr(e, 'x'))",
    ),
    "the class of an exception, by name": (
        "import json, sys\nclass A: x = 0\ntry: json.loads('{')\n"
        "except ValueError:\n  t, v, b = sys.exc_info()\n  t.x = 1",
        "import json\ntry: json.loads('{')\nexcept ValueError as e: print(hasattr(e, 'x'))",
    ),
    "the class of an exception, on a stack": (
        "import json\nfrom contextlib import ExitStack\nclass A: x = 0\n"
        "def end(t, v, b):\n  t.x = 1\n  return True\n"
        "with ExitStack() as stack:\n  stack.push(end)\n  json.loads('{')",
        "import json\ntry: json.loads('{')\nexcept ValueError as e: print(hasattr(e, 'x'))",
    ),
    "a base of a class, in its metaclass": (
        "import json\nfrom abc import ABCMeta\nclass M(ABCMeta):\n  x = 0\n"
        "  def __init__(cls, name, bases, names):\n    for base in bases: base.x = 1\n"
        "class E(json.JSONEncoder, metaclass=M): pass",
        "import json\nprint(hasattr(json.JSONEncoder(), 'x'))",
    ),
    "a base of a class, by an entry": (
        "import json\nclass A:\n  x = 0\n  def __mro_entries__(self, bases):\n"
        "    for base in bases[:1]: base.x = 1\n    return ()\nclass E(json.JSONEncoder, A()): pass",
        "import json\nprint(hasattr(json.JSONEncoder(), 'x'))",
    ),
    "a class that is asked for": (
        "import json\nfrom abc import ABC\nclass A(ABC):\n  x = 0\n  @classmethod\n"
        "  def __subclasshook__(cls, other):\n    other.x = 1\n    return True\nisinstance(json.JSONEncoder(), A)",
        "import json\nprint(hasattr(json.JSONEncoder(), 'x'))",
    ),
    "all descriptors": (
        "import os\nfor n in range(3, 256):\n  try: os.close(n)\n  except OSError: pass",
        "print('whole')",
    ),
    "a descriptor by its number": (
        "import os\ntry: os.write(3, b'\\x040\\n')\nexcept OSError: print('none')\n"
        "try: open(4, 'w').write('more')\nexcept OSError: print('none')",
        "print('whole')",
    ),
    "a poem": ("import this", "import this"),
    "a number of tasks": (
        "import asyncio\nasync def f(): return asyncio.current_task().get_name()\nprint(asyncio.run(f()))",
        "import asyncio\nasync def f(): return asyncio.current_task().get_name()\nprint(asyncio.run(f()))",
    ),
    "a line of a file": (
        "import linecache\nprint(linecache.getline('data.txt', 1))\nopen('data.txt', 'a').write('more')",
        "import linecache\nprint(linecache.getline('data.txt', 1)[:4])",
    ),
    "a deep expression": (
        "import json\nx = " + " + ".join(["1"] * 900) + "\njson.JSONEncoder.item_separator = '|'",
        "import json\nprint(json.JSONEncoder.item_separator)",
    ),
}


@pytest.mark.parametrize("name", REACHED)
def test_what_a_script_reaches_through_another_name_no_other_sees(
    engines: Engines, tmp_path: Path, name: str
) -> None:
    """An engine that has found out what a script does to others runs it elsewhere the second time."""
    spoil, look = REACHED[name]
    write(tmp_path / "beside.py", "from json import encoder\n")
    write(tmp_path / "data.txt", "text\n")
    looking = write(tmp_path / "look.py", f"print({HEAD!r})\n{look}\n")
    spoiling = write(tmp_path / "spoil.py", f"print({HEAD!r})\n{spoil}\n")
    wanted = by_cgi(looking)
    for isolation, times in (("auto", 2), ("fork", 1)):
        engine = engines.get(isolation)
        for script in (*(looking, spoiling) * times, looking):
            answer = engine.ask(str(script))
            assert answer.status == 0, (isolation, answer)
            if script == looking:
                assert answer == wanted, isolation


# Scripts as people write them
PLAIN_SCRIPTS = {
    "hello": "print('hello')",
    "form": """import html, os, sys
from urllib.parse import parse_qs
fields = parse_qs(os.environ.get("QUERY_STRING", ""))
fields.setdefault("name", []).append("nobody")
length = int(os.environ.get("CONTENT_LENGTH") or 0)
body = sys.stdin.buffer.read(length) if length else b""
for key in sorted(fields): print(html.escape(key), ", ".join(map(html.escape, fields[key])), len(body))
if __name__ != "__main__": sys.exit(1)
""",
    "counter": """import fcntl, os
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "count.txt")
with open(path, "a+") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    file.seek(0)
    file.truncate(0)
    file.write("1")
print(os.stat(path).st_size, os.path.exists(path))
""",
    "guestbook": """import html, sqlite3
from contextlib import closing
try:
    with closing(sqlite3.connect(":memory:")) as con:
        con.row_factory = sqlite3.Row
        con.execute("CREATE TABLE book (name TEXT)")
        con.execute("INSERT INTO book VALUES (?)", ("<alice>",))
        con.commit()
        for row in con.execute("SELECT name FROM book"): print(html.escape(row["name"]))
except (OSError, sqlite3.Error) as error:
    print("no", type(error).__name__)
""",
    "api": """import json, os, sys
from datetime import date, datetime, timedelta, timezone
class Encoder(json.JSONEncoder):
    def default(self, o): return o.isoformat() if isinstance(o, (date, datetime)) else super().default(o)
try: data = json.loads(os.environ.get("QUERY_STRING") or "{}")
except json.JSONDecodeError as error: data = {"error": str(error)}
data["day"] = date(2024, 2, 29) + timedelta(days=1)
data.setdefault("list", []).append(datetime(2024, 1, 1, tzinfo=timezone.utc))
json.dump(data, sys.stdout, cls=Encoder) if False else print(Encoder(indent=1).encode(data))
""",
    "table": """import csv, io, re
from collections import defaultdict, namedtuple, Counter
from statistics import mean
Row = namedtuple("Row", "name price")
rows = [Row(r["name"], float(r["price"])) for r in csv.DictReader(io.StringIO("name,price\\na,1\\nb,2.5\\n"))]
groups = defaultdict(list)
for row in rows: groups[row.name].append(row.price)
print(mean(r.price for r in rows), sorted(groups.items()), Counter(r.name for r in rows).most_common(1))
print(re.sub(r"(\\w)", lambda m: m.group(1).upper(), "abc", flags=re.I | re.M))
""",
    "cookies": """import os, secrets
from http.cookies import SimpleCookie, CookieError
cookie = SimpleCookie()
try: cookie.load(os.environ.get("HTTP_COOKIE", ""))
except CookieError: pass
cookie["session"] = "1" or secrets.token_hex(8)
cookie["session"]["httponly"] = True
cookie["session"]["path"] = "/"
print(cookie["session"].value, cookie)
""",
    "upload": """import hashlib, os, pathlib, shutil, sys, tempfile, uuid
from pathlib import Path
with tempfile.TemporaryDirectory() as directory:
    target = Path(directory) / (uuid.uuid4().hex + ".bin")
    with target.open("wb") as file: shutil.copyfileobj(sys.stdin.buffer, file)
    digest = hashlib.sha256()
    digest.update(target.read_bytes())
    print(digest.hexdigest(), target.suffix, os.listdir(directory) == [target.name])
""",
    "mail": """import subprocess
from email.message import EmailMessage
message = EmailMessage()
message["Subject"], message["To"] = "Gr\\u00fc\\u00dfe", "bob@example.org"
message.set_content("hello")
done = subprocess.run(["cat"], input=message.as_bytes(), stdout=subprocess.PIPE, check=True)
print(done.returncode, len(done.stdout) > 9)
""",
    "date": """import calendar, datetime, time
now = datetime.datetime.now()
print(now.year > 2000, datetime.date.today().year > 2000, time.time() > 0, time.strftime("%Y", time.gmtime(0)))
print(calendar.monthrange(2024, 2), datetime.datetime.strptime("2024-01-02", "%Y-%m-%d").strftime("%d"))
""",
    "redirect": """import os, sys
from urllib.parse import quote, urlencode
print("Location", "/" + quote("a b") + "?" + urlencode({"q": "x y"}))
sys.stdout.flush()
os.environ["STEP"] = "2"
""",
    "own_module": """import helper
from helper import Cart, page as show
cart = Cart("bob")
cart.owner = "alice"
cart.items.append("egg")
cart.items[0] = cart.items[0].upper()
helper.visits += 1
print(show(cart), helper.visits)
""",
    "classes": """import functools, random, traceback
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from html.parser import HTMLParser
from typing import Dict, List, Optional
class Color(Enum): RED = 1
class Shape(ABC):
    count = 0
    @abstractmethod
    def area(self) -> float: ...
@dataclass
class Square(Shape):
    side: float = 1.0
    tags: List[str] = field(default_factory=list)
    def area(self) -> float:
        self.tags.append(self.__class__.__name__)
        Shape.count += 1
        return self.side ** 2
class Titles(HTMLParser):
    def __init__(self):
        super().__init__()
        self._found: Dict[str, int] = {}
    def handle_starttag(self, tag, attrs): self._found[tag] = self._found.get(tag, 0) + 1
    def found(self): return self._found
@functools.lru_cache(maxsize=None)
def fib(n: int) -> int: return n if n < 2 else fib(n - 1) + fib(n - 2)
def first(shapes: Optional[list[Square]]) -> Square: return shapes[0]
square = Square(2.0)
for each in [square]: each.side = 3.0
titles = Titles(); titles.feed("<p><p>")
random.seed(1); random.shuffle(square.tags)
try: 1 / 0
except ZeroDivisionError: text = traceback.format_exc()
print(first([square]).area(), square.tags, Shape.count, titles.found(), fib(20), Color.RED.name, len(text) > 9)
""",
}
HELPER = """import json as _json
visits = 0
class Cart:
    def __init__(self, owner): self.owner, self.items = owner, []
def page(cart): return _json.dumps([cart.owner, cart.items])
"""


def test_scripts_as_people_write_them_run_in_the_engine(tmp_path: Path) -> None:
    write(tmp_path / "helper.py", HELPER)
    with Driver(PYTHON, isolated("auto")) as engine:
        for name, code in PLAIN_SCRIPTS.items():
            script = write(tmp_path / f"{name}.py", f"print({HEAD!r})\n{code}")
            compare(engine, script, rounds=2)
            write(script, f"import os\nprint({HEAD!r})\n{code}\nprint(os.getpid())\n")
            assert int(engine.ask(str(script)).output.split()[-1]) == engine.pid, name


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ("open(200)", False),
        ("open(file=200, mode='w')", False),
        ("os.stat(path=200)", False),
        ("NUMBER = 200\n    open(NUMBER, 'w')", False),
        ("codecs.open(200)", False),
        ("fcntl.flock(200, fcntl.LOCK_EX)", False),
        ("subprocess.run(['true'], stdout=200)", False),
        ("subprocess.run(['true'], pass_fds=(200,))", False),
        ("os.access('/', os.R_OK, dir_fd=200)", False),
        ("open(file='/dev/null', buffering=4096).close()", True),
        ("name = '/dev/null'\n    fcntl.flock(open(name), fcntl.LOCK_EX)", True),
        ("subprocess.run(['true'], stdout=2, timeout=60)", True),
        ("os.umask(0o77)", True),
    ],
)
def test_a_script_that_names_a_descriptor_by_its_number_is_forked(
    tmp_path: Path, text: str, stays: bool
) -> None:
    """The number may be that of one of the engine's own descriptors."""
    file = tmp_path / "script.py"
    file.write_text(
        f"import codecs, fcntl, os, subprocess\nprint({HEAD!r})\nprint(os.getpid())\n"
        f"try:\n    {text}\nexcept Exception: pass\n"
    )
    with Driver(PYTHON, isolated("auto")) as engine:
        answer = engine.ask(str(file))
        assert answer.status == 0, answer
        assert (answer.output.split()[-1] == b"%d" % engine.pid) == stays


def test_samples_run_in_the_engine(tmp_path: Path) -> None:
    with Driver(PYTHON, isolated("auto")) as engine:
        for sample in sorted((ROOT / "cgi-bin").iterdir()):
            source = sample.read_text(errors="replace")  # one may be compiled
            if "python3" in source.partition("\n")[0]:
                script = write(
                    tmp_path / sample.name, f"{source}\nimport os\nos.write(2, b'%d' % os.getpid())\n"
                )
                answer = engine.ask(str(script), environment={"QUERY_STRING": "0"})
                assert answer.errors == str(engine.pid).encode(), sample.name


LOOK = """
import importlib, json, sys, warnings
sys.path.insert(0, {engines!r})
warnings.simplefilter("ignore")
import python_source, python_plain as plain
NOT_EVERYWHERE = {{"cgi.escape"}}
RENEWED = {{*plain.SETTABLE_VARIABLES, *plain.CHANGEABLE_TABLES}}  # for each script
UNCHANGING = int, float, str, bytes, tuple, type(None)
wrong, tables = [], set()
for module, names in plain.HARMLESS_NAMES.items():
    try: module = importlib.import_module(module)
    except ModuleNotFoundError: continue
    for name in names:
        path, value = f"{{module.__name__ if module.__name__ != 'posixpath' else 'os.path'}}.{{name}}", None
        try: value = getattr(module, name)
        except AttributeError: path in NOT_EVERYWHERE or wrong.append(path)
        constant = name.isupper() and path not in plain.CAPITALS_NOT_CONSTANT
        is_usable = constant or path in plain.USABLE_AS_VALUES
        if is_usable and path not in RENEWED and not isinstance(value, UNCHANGING):
            try: value.mine = 1
            except (AttributeError, TypeError): pass
            else: wrong.append(path)
            if isinstance(value, (dict, list, set)): wrong.append(path)
        if isinstance(value, type):
            found = {{n for c in value.__mro__ for n, v in vars(c).items() if type(v) in (dict, list, set)}}
            tables |= {{n for n in found if not n.startswith("_")}}
            if path in plain.DERIVABLE_CLASSES:
                wrong.extend(n for n in found if not (n.startswith("__") or n.endswith("_")))
print(json.dumps([wrong, sorted(tables - python_source.SHARED_STATE_NAMES)]))
"""


def test_the_table_of_plain_names_is_that_of_the_library() -> None:
    """Each name exists, a value cannot be changed, and no class has a table that an object of it leads to."""
    look = LOOK.format(engines=str(ROOT / "ewe" / "xswitch" / "engines"))
    assert subprocess.check_output([sys.executable, "-c", look]) == b"[[], []]\n"


def test_print_options_of_an_installed_package(engine: Driver, tmp_path: Path) -> None:
    """The package keeps its options in a table, and reads one of them from the environment when it is loaded."""
    site = tmp_path / "site-packages"
    write(
        site / "arrays" / "__init__.py",
        "import os\noptions = {'precision': 8, 'style': os.environ.get('ARRAYS_STYLE')}\n"
        "def set_options(**changes): options.update(changes)\n",
    )
    head = f"import os, sys\nsys.path.append({str(site)!r})\n"
    plain = write(tmp_path / "plain.py", f"{head}import arrays\nprint({HEAD!r}, arrays.options)\n")
    short = write(
        tmp_path / "short.py",
        f"{head}import arrays\narrays.set_options(precision=2)\nprint({HEAD!r}, arrays.options)\n",
    )
    styled = write(
        tmp_path / "styled.py",
        f"{head}os.environ['ARRAYS_STYLE'] = 'bold'\nimport arrays\nprint({HEAD!r}, arrays.options)\n",
    )
    compare(engine, plain, short, styled)
    compare(engine, plain, short, styled, ARRAYS_STYLE="slanted")


PARENT = f"""
import os
print({HEAD!r}, installed.said(), os.getppid())
"""

# Modules that are the same at each loading, and others: the return value of said()
MODULES = {
    "quiet": ("import json\ndef said(): return json.dumps([1])\n", True),
    "reads_its_own_data": (
        "import os\nwith open(os.path.dirname(__file__) + '/data') as f: text = f.read()\n"
        "def said(): return text\n",
        True,
    ),
    "asks_for_the_time": ("import time\nbegan = time.time()\ndef said(): return began > 0\n", False),
    "draws_a_number": ("import random\nn = random.random()\ndef said(): return n\n", False),
    "draws_secretly": (
        "import secrets\nclass Key: pass\nkey = Key(); key.n = secrets.token_hex()\ndef said(): return key.n\n",
        False,
    ),
    "starts_a_thread": (
        "import threading, time\nt = threading.Thread(target=time.sleep, args=(9,), daemon=True); t.start()\n"
        "def said(): return t.is_alive()\n",
        False,
    ),
    "writes_a_file": (
        "with open('count', 'a') as f: f.write('x')\ndef said(): return len(open('count').read())\n",
        False,
    ),
    "reads_the_users_file": (
        "import os\nwith open('settings.txt') as f: text = f.read()\ndef said(): return text\n",
        False,
    ),
    "keeps_a_file": ("f = open(__file__)\ndef said(): return f.fileno()\n", False),
    "warns": (
        "import warnings\nwarnings.warn('old', DeprecationWarning, stacklevel=2)\ndef said(): return 1\n",
        False,
    ),
    "prints": ("print('Content-Type: text/plain')\ndef said(): return 1\n", False),
    "loads_the_users_module": ("import users\ndef said(): return users.value\n", False),
    "reads_the_request": (
        "import os\nquery = os.environ.get('QUERY_STRING')\ndef said(): return query\n",
        False,
    ),
    "is_another_after_a_change": ("import json\ndumps = json.dumps\ndef said(): return dumps(1)\n", False),
}


@pytest.mark.parametrize("name", MODULES)
def test_what_is_loaded_before_the_fork_is_what_the_script_would_load(tmp_path: Path, name: str) -> None:
    text, beforehand = MODULES[name]
    site = tmp_path / "site-packages"
    write(site / "installed.py", text)
    write(site / "data", "data")
    write(tmp_path / "users.py", "value = 1\n")
    write(tmp_path / "settings.txt", "1")
    change = "import json; json.dumps = repr" if "change" in name else ""
    script = write(
        tmp_path / "run.py",
        f"import sys\nsys.path.append({str(site)!r})\n{change}\nimport installed, html{PARENT}",
    )
    parents, said = set(), []
    with Driver(PYTHON, isolated("fork")) as engine:
        for number in range(8):
            answer = engine.ask(str(script), environment={"QUERY_STRING": f"q={number}"})
            if name != "starts_a_thread":
                assert answer.status == 0, answer.errors.decode()
            assert (b"DeprecationWarning" in answer.errors) == (name == "warns")
            said.append(answer.output.split()[-2].decode())
            parents.add(int(answer.output.split()[-1]))
            settled(engine)
            write(tmp_path / "users.py", f"value = {number + 10}\n")
            write(tmp_path / "settings.txt", str(number + 10))
        forked = [parent for parent in parents if parent != engine.pid]
        if beforehand:
            assert len(forked) == 1 and len(set(said)) == 1
    wanted = {
        "writes_a_file": [str(number + 1) for number in range(8)],
        "reads_the_users_file": ["1", *(str(number + 10) for number in range(7))],
        "loads_the_users_module": ["1", *(str(number + 10) for number in range(7))],
        "reads_the_request": [f"q={number}" for number in range(8)],
    }
    assert said == wanted.get(name, said)
    if name.startswith("draws"):
        assert len(set(said)) == 8


def test_a_directory_that_is_not_there_while_modules_are_loaded_may_come_later(tmp_path: Path) -> None:
    """On the search path, as a script leaves it; the import system remembers where it has found nothing."""
    code = (
        f"import os, shutil, sys\nprint({HEAD!r}, os.getppid())\nsys.path[:0] = ['lib', os.path.abspath('lib')]\n"
        "os.mkdir('lib')\nopen('lib/fresh.py', 'w').close()\nimport fresh\nshutil.rmtree('lib')\n"
    )
    script = write(tmp_path / "run.py", code)
    parents = set()
    with Driver(PYTHON, isolated("fork")) as engine:
        for _ in range(4):
            answer = engine.ask(str(script))
            assert answer.status == 0, answer.errors.decode()
            parents.add(int(answer.output.split()[-1]))
            settled(engine)
        assert parents - {engine.pid}, "no run was one of a process that has loaded the modules"


def test_modules_beside_a_script_come_before_those_of_the_library_at_once(
    engine: Driver, tmp_path: Path
) -> None:
    """Also modules that the library itself imports, and as soon as the files exist."""
    write(tmp_path / "warm.py", f"import collections, json\nprint({HEAD!r})\n")
    script = write(
        tmp_path / "place" / "run.py",
        f"import json\nimport collections\nprint({HEAD!r}, json.__file__, hasattr(collections, 'OrderedDict'))\n",
    )
    compare(engine, tmp_path / "warm.py", script)
    own = write(tmp_path / "place" / "json.py", "")
    compare(engine, tmp_path / "warm.py", script)
    own.unlink()
    write(tmp_path / "place" / "lib" / "json.py", "")
    front = write(
        tmp_path / "place" / "front.py",
        f"import sys\nsys.path.insert(0, 'lib')\nimport json\nprint({HEAD!r}, json.__file__)\n",
    )
    compare(engine, script, front, tmp_path / "warm.py")
    part = write(tmp_path / "place" / "part.py", f"import sys\nimport json\nprint({HEAD!r}, json.__file__)\n")
    user = write(tmp_path / "place" / "user.py", "import part\n")
    compare(engine, user, script)
    part.write_text(part.read_text().replace("import sys", "import sys; sys.path.insert(0, 'lib')"))
    compare(engine, user, script, front)


def test_a_change_that_was_overlooked_costs_the_engine_and_no_answer(tmp_path: Path) -> None:
    """The answer is right. The engine replaces itself after it, and forks for that script from then on."""
    change = write(
        tmp_path / "change.py",
        f"import textwrap\nfrom textwrap import wrap\n"
        f"wrap.__self__ if False else None\n[textwrap for textwrap in []]\n"
        f"import own\nprint({HEAD!r}, own.changed)\n",
    )
    write(
        tmp_path / "own.py",
        "import textwrap\nglobals_of = textwrap.dedent.__class__.__getattribute__\n"
        "globals_of(textwrap.dedent, '__glo' + 'bals__')['dedent'] = len\nchanged = textwrap.dedent('ab')\n",
    )
    look = write(tmp_path / "look.py", f"import textwrap\nprint({HEAD!r}, textwrap.dedent(' ab'))\n")
    with Driver(PYTHON, isolated("auto")) as engine:
        compare(engine, look, change, rounds=1)
        command = Path(f"/proc/{engine.pid}/cmdline")
        wait_until(lambda: command.read_bytes().count(b"\0") == 3, 10)  # a replacement's has a third word
        compare(engine, look, change, rounds=2)


def test_a_script_that_is_forked_ends_as_a_process_does(engine: Driver, tmp_path: Path) -> None:
    fork = f"import sys; sys.path.append('.')\nimport os, threading, time\nprint({HEAD!r}, flush=True)\n"
    ends = [
        "import atexit; atexit.register(print, 'at exit')\n"
        "class A:\n  def __del__(self): print('deleted')\na = A()",
        "threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
        "if os.fork() == 0: print('child'); sys.exit(5)\nos.wait()",
        "import own",
        "print(open(0).read(), os.getcwd(), sys.argv, sorted(os.listdir('/proc/self/fd'), key=int)[:3])",
    ]
    write(tmp_path / "own.py", "class A:\n  def __del__(self): print('own deleted')\na = A()\n")
    scripts = [write(tmp_path / f"end{number}.py", fork + end) for number, end in enumerate(ends)]
    compare(engine, *scripts, rounds=2)
    hard = write(tmp_path / "hard.py", f"{fork}os._exit(7)\n")
    assert engine.ask(str(hard)).status == 7
    failing = write(tmp_path / "failing.py", f"{fork}1 / 0\n")
    assert engine.ask(str(failing)) == by_cgi(failing)
    assert engine.ask(str(hard), body=b"x" * 200_000).status == 7
    compare(engine, *scripts, rounds=1)
    left = write(
        tmp_path / "left.py", f"{fork}if os.fork() == 0:\n  os.setsid(); time.sleep(0.2); print('left')\n"
    )
    answer = engine.ask(str(left))
    assert answer.status is None and answer.output == f"{HEAD}\nleft\n".encode()


def test_a_signal_that_ends_a_script_ends_the_engine(engine: Driver, tmp_path: Path) -> None:
    """An incomplete answer must not look complete."""
    killed = write(
        tmp_path / "killed.py",
        f"import sys; sys.path.append('.')\nimport os\nprint({HEAD!r}, flush=True)\nos.kill(os.getpid(), 9)\n",
    )
    assert engine.ask(str(killed)).status is None
    assert os.waitstatus_to_exitcode(os.waitpid(engine.pid, 0)[1]) == -9
    engine.pid = 0
    os.close(engine.pidfd)


def test_valid_files_of_bytecode_are_used(engine: Driver, tmp_path: Path) -> None:
    """python3 uses them, too, if they belong to the current source."""
    import py_compile

    source = write(tmp_path / "own.py", "said = 'compiled'\n")
    os.utime(source, (1_000_000_000, 1_000_000_000))
    py_compile.compile(str(source))
    write(source, "said = 'changed!'\n")
    os.utime(source, (1_000_000_000, 1_000_000_000))
    script = write(tmp_path / "run.py", f"import own\nprint({HEAD!r}, own.said)\n")
    compare(engine, script)
    assert b"compiled" in engine.ask(str(script)).output
    os.utime(source, (1_000_000_001, 1_000_000_001))
    compare(engine, script)
    assert b"changed!" in engine.ask(str(script)).output
