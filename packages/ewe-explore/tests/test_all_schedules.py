"""What a report claims: "these are all schedules" is never said of a program with a schedule that fails.

Each program here fails with some schedule. The explorer finds it, or says what it does not see.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ewe_explore.harness import Model
from ewe_explore.page import capital
from ewe_explore.program import ExploredProgram, scenarios
from ewe_explore.report import Exploration, explore
from ewe_explore.scheduler import SAMPLES_DIRECTORY, Run, Schedule, last_decision
from ewe_explore.search import Search

IMPORTS = """
import copy, functools, itertools, json, operator, os, queue, random, threading
from dataclasses import dataclass
from types import MethodType, SimpleNamespace
"""
BOTH = """
def scenario():
    threads = [threading.Thread(target=each) for each in (read, write)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


def explored(path: Path, text: str, runs: int = 300) -> Exploration:
    path.write_text(IMPORTS + text)
    return explore(ExploredProgram(path, "scenario"), runs=runs)


# Two threads call work(), and value() must be 2. Each needs a switch between the read and the write
LOST_UPDATES = {
    "setattr": "setattr(box, 'n', getattr(box, 'n') + 1)",
    "object.__setattr__": "object.__setattr__(box, 'n', box.n + 1)",
    "super().__setattr__": "logged.n = logged.n + 1; box.n = logged.n",
    "a stored method": "old = len(items); add(old); box.n = len(set(items))",
    "a stored method of another object": "old = len(items); box.add(old); box.n = len(set(items))",
    "a method of the class": "old = len(items); list.append(items, old); box.n = len(set(items))",
    "partial": "old = len(items); functools.partial(items.append, old)(); box.n = len(set(items))",
    "a class variable through an instance": "Box.n = sub.n + 1",
    "a class variable through a subclass": "Box.n = Sub.n + 1",
    "the result of a function": "old = len(get()); get().append(old); box.n = len(set(items))",
    "an object of the library": "space.n += 1; box.n = space.n",
    "operator.setitem": "operator.setitem(table, 'n', table['n'] + 1); box.n = table['n']",
    "a parameter with the name of a function": "old = len(items); call(add, old); box.n = len(set(items))",
    "a view": "view[0] = raw[0] + 1; box.n = raw[0]",
}
TWO = """
class Box: n = 0
class Sub(Box): pass
class Logged:
    def __setattr__(self, name, value): super().__setattr__(name, value)
box, sub, logged, items, table, raw = Box(), Sub(), Logged(), [], {'n': 0}, bytearray(1)
space = SimpleNamespace(n=0)
add, view, logged.n = items.append, memoryview(raw), 0
box.add = items.append
def get(): return items
def call(max, number): max(number)
def value(): return max(box.n, Box.n)
def work(): CHANGE
def scenario():
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert value() == 2
"""


@pytest.mark.parametrize("name", LOST_UPDATES)
def test_each_way_to_write_is_a_step(name: str, tmp_path: Path) -> None:
    result = explored(tmp_path / "lost.py", TWO.replace("CHANGE", LOST_UPDATES[name]))
    assert result.failure is not None and len(result.failure.schedule) == 1, result.text()


IMMUTABLE_CLASSES = (
    "str",
    "int",
    "float",
    "bytes",
    "tuple",
    "frozenset",
    "collections.namedtuple('Base', ())",
)


@pytest.mark.parametrize("change", ["own.n += 1", "own.add()", "setattr(own, 'n', own.n + 1)"])
@pytest.mark.parametrize("base", IMMUTABLE_CLASSES)
def test_an_object_of_an_immutable_class_has_attributes_that_change(
    base: str, change: str, tmp_path: Path
) -> None:
    text = (
        f"import collections\nclass Own({base}):\n    def add(self): self.n = self.n + 1\nown = Own()\nown.n = 0\n"
        f"def read(): {change}\nwrite = read\n"
    )
    result = explored(tmp_path / "own.py", text + BOTH + "    assert own.n == 2\n")
    assert result.failure is not None and len(result.failure.schedule) == 1, result.text()


# No other step changes the object: whether two threads share it depends on this call alone
CHANGED_BY_A_FUNCTION = {
    "operator.setitem": "operator.setitem(table, 'n', table['n'] + 1)",
    "operator.iconcat": "operator.iconcat(items, [len(items)])",
    "a function of a function": "functools.reduce(operator.iadd, [[len(items)]], items)",
    "an object that calls a method": "operator.methodcaller('append', len(items))(items)",
}


@pytest.mark.parametrize("name", CHANGED_BY_A_FUNCTION)
def test_a_function_of_a_library_changes_its_argument(name: str, tmp_path: Path) -> None:
    text = TWO.replace("return max(box.n, Box.n)", "return max(table['n'], len(set(items)))")
    result = explored(tmp_path / "function.py", text.replace("CHANGE", CHANGED_BY_A_FUNCTION[name]))
    assert result.failure is not None and len(result.failure.schedule) == 1, result.text()


# The objects, the statement of write(), and the end of get(): code without points reads there
READ_BY_A_LIBRARY = {
    "a variable of a class": ("class P: n = 0\np = P()", "P.n = 1", "match p:\n        case P(n=1): return 'new'"),
    "an attribute in __slots__": (
        "class P: __slots__ = ('n',)\np = P(); p.n = 0", "p.n = 1", "return 'new' if copy.copy(p).n else ''",
    ),
    "a dataclass with __slots__": (
        "@dataclass(slots=True)\nclass P: n: int = 0\np = P()", "p.n = 1", "return 'new' if p == P(1) else ''",
    ),
    "a new attribute": ("class P: pass\np = P()", "p.n = 1", "return str(getattr(copy.copy(p), 'n', ''))"),
    "a new variable of a class": (
        "class P: pass\np = P()", "P.n = 1", "match p:\n        case P(n=1): return 'new'",
    ),
    "an attribute that is deleted": (
        "class P: pass\np = P(); p.n = ''", "del p.n", "return getattr(copy.copy(p), 'n', 'new')",
    ),
    "an attribute that delattr() deletes": (
        "class P: pass\np = P(); p.n = ''", "delattr(p, 'n')", "return getattr(copy.copy(p), 'n', 'new')",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ_BY_A_LIBRARY)
def test_what_a_library_reads_of_an_object_is_a_step(name: str, tmp_path: Path) -> None:
    """The write comes between two reads in some schedule."""
    setup, write, read = READ_BY_A_LIBRARY[name]
    text = f"{setup}\ndef write():\n    {write}\ndef get():\n    {read}\n    return ''\n"
    text += "def read():\n    first = get()\n    assert get() == first\n"
    result = explored(tmp_path / "library.py", text + BOTH)
    assert result.failure is not None and len(result.failure.schedule) <= 2, result.text()


# A thread changes the lists within `a` and `b`, the other reads both between the two changes
READS = (
    "str({0})", "{0} == [[]]", "[[]] == {0}", "f'{{{0}}}'", "repr(({0},))", "'%s' % ({0},)", "[] in {0}",
    "sum(map(len, {0}))", "[len(each) for each in {0}]", "({0},) == ([[]],)", "json.dumps({0})",
    "copy.deepcopy({0})", "len(same({0})[0])", "[each for each in same({0}[0])]", "not same({0}[0])",
    "list(itertools.chain(*{0}))", "max({0})", "min(same({0}), key=len)",
)  # fmt: skip


@pytest.mark.parametrize("read", READS)
def test_the_lists_within_a_list_are_read(read: str, tmp_path: Path) -> None:
    text = (
        "a, b = [[]], [[]]\ndef same(value): return value\n"
        "def write():\n    a[0].append(1)\n    b[0].append(1)\n"
        f"def read():\n    first = {read.format('a')}\n    second = {read.format('b')}\n"
        "    assert first == second\n"
    )
    result = explored(tmp_path / "nested.py", text + BOTH)
    assert result.failure is not None and "first == second" in result.failure.problem.headline, result.text()


# The bodies of write() and read(); read() fails with some schedule. setup: one line before both
FAILS = {
    "a loop over a dict": ("table = {0: 0, 1: 1}", "table[2] = 2", "for key in table: pass"),
    "a loop over its items": ("table = {0: 0, 1: 1}", "table[2] = 2", "for key, value in table.items(): pass"),
    "a comprehension": ("table = {0: 0, 1: 1}", "table[2] = 2", "[key for key in table]"),
    "enumerate": (
        "items = [1, 2]", "items.pop(0)", "seen = [n for _, n in enumerate(items)]; assert seen != [1]",
    ),
    "pairs of a loop": ("pairs = [[0, 0], [0, 0]]", "pairs[1][:] = [1]", "for a, b in pairs: pass"),
    "a callback": ("box = SimpleNamespace(f=int)", "box.f = None", "if box.f: box.f()"),
    "a callback of a class": ("class Box: f = functools.partial(int)", "Box.f = None", "if Box.f: Box.f()"),
    "a list that += changes": (
        "box = SimpleNamespace(a=[], b=[]); a, b = box.a, box.b", "box.a += [1]; box.b += [1]",
        "first = len(a); second = len(b); assert first == second",
    ),
    "a list of the module that += changes": (
        "a = x = []; b = y = []", "global x, y; x += [1]; y += [1]",
        "first = len(a); second = len(b); assert first == second",
    ),
    "the counter of a semaphore": (
        "s = threading.Semaphore(1)", "s.acquire(); s.release()", "old = s._value; assert old == 1",
    ),
    "a variable of a module": (
        "n = 0\ndef get(): return n", "global n; n = 1", "first = get(); assert get() == first",
    ),
    "an attribute in a pattern": (
        "box = SimpleNamespace(n=0)", "box.n = 1",
        "first = box.n\n    match first:\n        case box.n: return\n    assert False",
    ),
    "a key that changes another list": (
        "t = [0]", "sorted([1], key=t.append)", "first = len(t); assert len(t) == first",
    ),
    "the name of a thread": (
        "t = threading.Thread(target=print)", "t.name = 'new'", "first = t.name; assert t.name == first",
    ),
    "a thread that becomes a daemon": (
        "t = threading.Thread(target=print)", "t.daemon = True", "first = t.daemon; assert t.daemon == first",
    ),
    "abort": (
        "a, b = threading.Barrier(2), threading.Barrier(2)", "a.abort(); b.abort()",
        "first = a.broken; second = b.broken; assert first == second",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILS)
def test_a_schedule_that_fails_is_found(name: str, tmp_path: Path) -> None:
    setup, write, read = FAILS[name]
    result = explored(
        tmp_path / "fails.py", f"{setup}\ndef write(): {write}\ndef read():\n    {read}\n{BOTH}"
    )
    assert result.failure is not None, result.text()


# Scenarios in which the moment of an end, a start or a call by the library matters
MOMENTS = {
    "a thread that has not ended": (
        "box = []\ndef scenario():\n    thread = threading.Thread(target=lambda: box.append(1))\n"
        "    thread.start()\n    if box: assert not thread.is_alive()\n"
    ),
    "a thread that has not started": (
        "def scenario():\n    late = threading.Thread(target=int)\n"
        "    def look():\n        first = late.is_alive()\n        second = late.is_alive()\n"
        "        assert first or not second\n"
        "    threading.Thread(target=look).start()\n    late.start()\n"
    ),
    "the file descriptor of a socket": (
        "import socket\none, other = socket.socketpair()\n"
        "def look():\n    first = one.fileno()\n    assert first == one.fileno()\n"
        "def scenario():\n    threading.Thread(target=look).start()\n    one.close()\n"
    ),
    "a selector that another thread changes": (
        "import selectors, socket\none, other = socket.socketpair()\n"
        "def scenario():\n    selector = selectors.DefaultSelector()\n"
        "    threading.Thread(target=selector.register, args=(one, selectors.EVENT_READ)).start()\n"
        "    try: selector.modify(one, selectors.EVENT_WRITE)\n    except KeyError: return\n    assert False\n"
    ),
    "a connect before the listen": (
        "import socket\ndef scenario():\n    server = socket.socket()\n    server.bind(('127.0.0.1', 0))\n"
        "    connect = threading.Thread(target=socket.create_connection, args=(server.getsockname(),))\n"
        "    connect.start()\n    server.listen()\n"
    ),
    "the bytes of the other end": (
        "import socket\none, other = socket.socketpair()\none.setblocking(False)\n"
        "def scenario():\n    threading.Thread(target=other.send, args=(b'x',)).start()\n"
        "    try: one.recv(1)\n    except BlockingIOError: return\n    assert False\n"
    ),
    "bytes before a select()": (
        "import select, socket\none, other = socket.socketpair()\n"
        "def scenario():\n    threading.Thread(target=other.send, args=(b'x',)).start()\n"
        "    assert not select.select([one], [], [], 0)[0]\n"
    ),
    "a close before a poll()": (
        "import select\ndef scenario():\n    poll = select.epoll()\n"
        "    threading.Thread(target=poll.close).start()\n    poll.poll(0)\n"
    ),
    "a close after a select()": (
        "import select, socket\none, other = socket.socketpair()\n"
        "def look():\n    try: select.select([one], [], [], 0)\n    except ValueError: return\n    assert False\n"
        "def scenario():\n    threading.Thread(target=look).start()\n    one.close()\n"
    ),
    "a close before a select()": (
        "import select, socket\none, other = socket.socketpair()\n"
        "def scenario():\n    threading.Thread(target=one.close).start()\n"
        "    select.select([one], [], [], 0)\n"
    ),
    "a descriptor that another thread registers": (
        "import select, socket\none, other = socket.socketpair()\n"
        "def scenario():\n    poll = select.epoll()\n"
        "    threading.Thread(target=poll.register, args=(one,)).start()\n"
        "    try: poll.modify(one, select.EPOLLIN)\n    except FileNotFoundError: return\n    assert False\n"
    ),
    "a daemon": "def scenario(): threading.Thread(target=lambda: 1 / 0, daemon=True).start()\n",
    "a daemon that waits": (
        "items = queue.Queue()\ndef work():\n    items.get()\n    1 / 0\n"
        "def scenario():\n    threading.Thread(target=work, daemon=True).start()\n    items.put(1)\n"
    ),
    "a variable that is assigned after the start": (
        "def scenario():\n    thread = threading.Thread(target=lambda: print(n))\n    thread.start()\n    n = 1\n"
    ),
    "a method as the target": (
        "a = []\ndef scenario():\n    for _ in range(2): threading.Thread(target=a.append, args=(1,)).start()\n"
        "    first = len(a)\n    assert first != 1\n"
    ),
    "a method for a pool": (
        "from concurrent.futures import ThreadPoolExecutor\na, b = [], []\n"
        "def scenario():\n    with ThreadPoolExecutor(1) as pool:\n"
        "        pool.submit(a.append, 1)\n        first = len(a)\n        assert len(a) == first\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MOMENTS)
def test_each_moment_is_tried(name: str, tmp_path: Path) -> None:
    result = explored(tmp_path / "moments.py", MOMENTS[name])
    assert result.failure is not None, result.text()


# read() uses x between two writes. write() uses x only if it runs there, so the first schedules share no x
LATE = """
class Box: first = last = x = 0
box = Box()
def read():
    box.first = 1
    seen = box.x
    box.last = 1
    assert seen != 5
def write():
    if box.first == 1 and box.last == 0:
        box.x = 5
def scenario():
    threading.Thread(target=read).start()
    threading.Thread(target=write).start()
"""


def test_an_object_that_is_shared_late_is_explored_from_the_begin(tmp_path: Path) -> None:
    """Without runs with random priorities, which find it by luck in so small a program."""
    path = tmp_path / "late.py"
    path.write_text(IMPORTS + LATE)
    program = ExploredProgram(path, "scenario")
    search = Search(program.start, program.options, seed=1)
    tried: dict[Schedule, Run] = {}
    while (schedule := search.next_schedule()) is not None:
        assert schedule not in tried
        tried[schedule] = search.run_level(schedule)
    problems = [run.problem.headline for run in tried.values() if run.problem is not None]
    assert search.exhausted() and any("seen != 5" in each for each in problems)
    for schedule, run in tried.items():
        if run.problem is None:  # each deviation at a line that any run has shown was tried
            after = last_decision(schedule)
            assert {(*schedule, each) for each in search.deviations(run, after)} <= tried.keys()


# The change of a thread, and the words of the report
UNSEEN = {
    "vars": ("vars(box)['n'] = box.n + 1", "the accesses through vars(…) (unseen.py:"),
    "vars earlier": ("names['n'] = box.n + 1", "the accesses through vars(…) (unseen.py:"),
    "__dict__": ("box.__dict__['n'] = box.n + 1", "the accesses through box.__dict__ (unseen.py:"),
    "__dict__ by getattr": ("getattr(box, '__dict__')['n'] = box.n + 1", "the accesses through getattr(…)"),
    "globals": ("globals()['number'] = number + 1", "the accesses through globals()"),
    "exec": ("exec('box.n += 1')", "the accesses within exec(…) (unseen.py:"),
    "file": ("os.path.exists('a') or box.n", "the effects of os.path.exists() (unseen.py:"),
    "open": ("open(os.devnull).close()", "the effects of open() (unseen.py:"),
    "a file that is open": ("output.flush(); box.n", "the effects of output.flush() (unseen.py:"),
    "a cache": ("cached(); box.n", "the steps within cached() (unseen.py:"),
    "a property": ("lazy.value; box.n", "that lazy.value stores its value (unseen.py:"),
    "a key": ("items.sort(key=lambda n: box.n)", "the accesses of items.sort"),
    "a comparison": ("items.count(equal); items.append(1)", "after __eq__() (unseen.py:"),
    "a generator": ("items.extend(n + box.n for n in (1, 2))", "items.extend(…) between two items"),
    "the inside of a queue": ("waiting.queue.append(1)", "the accesses through waiting.queue (unseen.py:"),
    "a pattern": ("match items:\n        case [first, *rest]: items.append(1)", "the tests within the patterns"),
    "random": ("random.shuffle(items)", "the steps within random.shuffle()"),
    "a function of the library": ("copy.copy(box); box.n = 2", "the steps within copy.copy()"),
    "a method that is replaced": ("box.get = lambda: 1; box.get()", "the use of box.get by other threads"),
    "a release of another thread": ("lock.release(); lock.acquire()", "the moment of the release of lock"),
    "the lock of a condition": (
        "try: changed.notify()\n    except RuntimeError: pass\n    with changed: pass",
        "whether changed 1 is locked here",
    ),
    "a class that is registered": (
        "from collections.abc import Sized; Sized.register(type('Own', (), {}))", "the effects of Sized.register()",
    ),
    "a port": ("import socket; socket.socket().bind(('127.0.0.1', 7000))", "whether port 7000 is free here"),
    "join": ("if threading.current_thread() is not last: last.join()", "a call of join() before the start"),
    "the name of except": ("try: 1 / 0\n    except ZeroDivisionError as number: pass", "the accesses to number"),
}  # fmt: skip
CHANGED_TWICE = """
class Box:
    n = 0
    def get(self): return 1
class Lazy:
    @functools.cached_property
    def value(self): return box.n
class Equal:
    def __eq__(self, other): return box.n == other
@functools.lru_cache
def cached(): return box.n
box, lazy, items, number, waiting, lock, equal = Box(), Lazy(), [0], 0, queue.Queue(), threading.Lock(), Equal()
box.n = 0
names, output = vars(box), open(1, 'w', closefd=False)
changed = threading.Condition(threading.Lock())
lock.acquire()
def work():
    global number
    CHANGE
def scenario():
    global last
    last = threading.Thread(target=work)
    for thread in (threading.Thread(target=work), last): thread.start()
"""


@pytest.mark.parametrize("name", UNSEEN)
def test_what_the_explorer_does_not_see_is_said(name: str, tmp_path: Path) -> None:
    change, says = UNSEEN[name]
    result = explored(tmp_path / "unseen.py", CHANGED_TWICE.replace("CHANGE", change), runs=100)
    assert not result.exhaustive
    assert any(says in each for each in result.unseen), (result.unseen, result.text())
    if result.failure is None:
        assert "not all schedules, because the explorer does not see" in result.verdict()
    else:
        assert not result.failure.complete and "perhaps not the smallest" in result.verdict()


def test_a_program_whose_runs_differ_gets_no_claim(tmp_path: Path) -> None:
    """The module json keeps a count of the runs: every third run has fewer steps."""
    text = (
        "box = SimpleNamespace(n=0)\ndef work():\n    if json.runs % 3: box.n += 1\n    box.n += 1\n"
        "def scenario():\n    json.runs = getattr(json, 'runs', 0) + 1\n"
        "    for _ in range(2): threading.Thread(target=work).start()\n"
    )
    result = explored(tmp_path / "differs.py", text)
    assert any("two runs of one schedule differ" in each for each in result.unseen), result.text()
    assert not result.exhaustive


def test_a_module_that_two_threads_import_is_complete(tmp_path: Path) -> None:
    """The failure of a half imported module would not be real: an import waits for another one of the module."""
    (tmp_path / "helper.py").write_text("items = []\nitems.append(1)\nready = True\n")
    text = "def read():\n    import helper\n    assert helper.ready\nwrite = read\n"
    result = explored(tmp_path / "imports.py", text + BOTH)
    assert result.failure is None and "the import of helper" in result.verdict(), result.text()


METHOD_OF_QUEUE = """
taken = []
class Logged(queue.Queue):
    def _put(self, item):
        taken.append(len(taken))
        super()._put(item)
def scenario():
    items = Logged()
    threading.Thread(target=items.put, args=(1,)).start()
    taken.append(len(taken))
"""


def test_a_method_of_a_queue_that_uses_other_objects_is_said(tmp_path: Path) -> None:
    result = explored(tmp_path / "logged.py", METHOD_OF_QUEUE)
    assert any("within a method that a queue calls (logged.py:" in each for each in result.unseen), (
        result.text()
    )


# Ordinary programs: nothing is hidden, and all schedules are tried
SEEN = {
    "a lock": "with lock: box.n += 1",
    "functions of the library": "with lock: box.n = max(len(sorted(table)), int('1'), abs(-1)); str(box.n).strip()",
    "objects of the program": "point = Point(1); with_name = f'{point.n}'; items = [point]; items.sort(key=str)",
    "an exception": "with lock:\n        try: table['none']\n        except KeyError as error: str(error)",
    "json of its own": "json.dumps({'n': [1, 2]}); copy.copy([1]); operator.itemgetter(0)([1])",
    "a time": "import time; time.sleep(random.uniform(0, 1)); time.monotonic()",
    "a date": "import datetime; str(datetime.datetime.now() + datetime.timedelta(1))",
    "a day": "import datetime, time; str(datetime.date.today()) + time.strftime('%Y', time.localtime())",
    "a socket as a file": (
        "import socket; a, b = socket.socketpair(); a.sendall(b'x\\n'); b.makefile('rb').readline()"
    ),
    "memory as a file": "import io; file = io.StringIO(); file.write('a'); file.getvalue()",
    "output": "import sys; print('a', file=sys.stderr); sys.stderr.write('')",
    "a local variable with the name of a shared one": "table = {2: 3}; table[2] += 1",
}  # fmt: skip


@pytest.mark.parametrize("name", SEEN)
def test_an_ordinary_program_gets_its_claim(name: str, tmp_path: Path) -> None:
    text = (
        "class Box: n = 0\nclass Point:\n    def __init__(self, n): self.n = n\n"
        f"box, lock, table = Box(), threading.Lock(), {{1: 2}}\ndef work():\n    {SEEN[name]}\n"
        "def scenario():\n    for _ in range(2): threading.Thread(target=work).start()\n"
    )
    result = explored(tmp_path / "seen.py", text)
    assert result.failure is None and result.unseen == () and result.exhaustive, result.text()
    assert result.verdict().endswith(": these are all schedules")


@pytest.mark.parametrize(
    "name", ["count", "count_locked", "forks_ordered", "mailbox", "buffer", "pool", "closed_once"]
)
def test_a_sample_hides_nothing(name: str) -> None:
    path = Path(SAMPLES_DIRECTORY, f"{name}.py")
    assert scenarios(path)
    assert explore(ExploredProgram(path, "scenario"), runs=60).unseen == ()


def test_a_model_hides_the_variables_of_its_base_class() -> None:
    model = Model(Path(SAMPLES_DIRECTORY, "model.py"), "Mine")
    assert model.unseen == ("the variables of ewe's own classes",)


def test_a_headline_begins_with_a_capital_letter_or_the_whole_name_of_a_thread() -> None:
    assert capital("deadlock: dead waits without end", ["main", "dead"]) == "Deadlock: dead waits without end"
    assert capital("dead dies of KeyError", ["main", "dead"]) == "dead dies of KeyError"


def test_a_program_without_threads_gets_no_claim(tmp_path: Path) -> None:
    """A file that only defines a model needs --model: without it the report must not seem to be about the model."""
    result = explored(tmp_path / "model.py", "class Mine:\n    n = 0\ndef scenario(): Mine()\n")
    assert result.exhaustive and ": it starts no thread" in result.verdict()
