"""Installed modules that the Python engine (python.py) loads before it forks for a script.

The import of a framework takes a hundred times as long as a fork. The process that forks (python_fork.py) therefore
learns from a script's first run which installed modules it loads, and keeps a *zygote* for it: a process that has
loaded those modules and nothing else, and forks for each request of that script. No run ever reaches the zygote.

    first run: a child writes a report ──▶ Lesson ──▶ zygote: imports, then forks for each request

A module that is loaded beforehand must be the module that the script would have loaded. It stays out, and is
imported late as ever, where a difference can be seen:

- the file is another one, or has changed;
- its variables are not what they were in the script's run (fingerprint());
- its import loads a module of the user's own, or one that the run has not loaded;
- it reads a variable of the environment that the script sets, or that differs from request to request;
- it writes or changes a file, reads one of the user's own, keeps a descriptor, or connects to something;
- it starts a thread or a process, or asks for the time or for random numbers.

What is loaded is not in sys.modules at first. The script's own `import` gives it out (Shelf), and only where the
search path leads to the same file at that moment.
"""

import marshal
import mmap
import os
import sys
import zlib
from importlib import machinery
from time import monotonic
from types import FunctionType, ModuleType

import python_code as code
from python_code import is_library, signature
from python_protocol import words

__builtins__ = vars(code)["__builtins__"]
KILL = 9
MAX_ZYGOTES = 4
IDLE_SECONDS = 10.0  # that a zygote is not used before another may take its place
MAX_LESSONS = 200
MAX_TRIES = 24  # zygotes that are made for one script until it changes
ROOM = 1 << 20  # bytes of a report
LOOK_SECONDS = 1.0  # between looks whether a file has changed
DEPTH = 3  # of the tables that a fingerprint covers
# What differs from request to request (RFC 3875); so does HTTP_*
REQUEST = set(
    b"""AUTH_TYPE CONTENT_LENGTH CONTENT_TYPE DOCUMENT_URI GATEWAY_INTERFACE PATH_INFO PATH_TRANSLATED QUERY_STRING
    REMOTE_ADDR REMOTE_HOST REMOTE_IDENT REMOTE_PORT REMOTE_USER REQUEST_METHOD REQUEST_SCHEME REQUEST_URI
    SCRIPT_FILENAME SCRIPT_NAME SERVER_ADDR SERVER_PORT SERVER_PROTOCOL UNIQUE_ID""".split()
)
BEGAN = "_startTime"  # of logging: when it was loaded
LOADERS = machinery.SourceFileLoader, machinery.ExtensionFileLoader
EXECUTE = [loader.exec_module for loader in LOADERS]

lessons = {}  # script -> Lesson
running = []  # names of the modules that are being loaded, the innermost last
prints = {}  # name of a module -> its fingerprint right after its import


def top_of(name):
    """Return the first part of a module's name."""
    return name.partition(".")[0]


# What a module is, right after its import


def fingerprint(module):
    """Return a number for what a module's variables are: another number, another import."""
    items = [
        (name, brief(value)) for name, value in vars(module).items() if name[:2] != "__" and name != BEGAN
    ]
    return zlib.crc32(repr(items).encode("utf-8", "replace"))


def brief(value, depth=DEPTH):
    """Describe a value without its address, and without calling its methods."""
    kind = type(value)
    if value is None or kind in (bool, int, float, complex, str, bytes):
        return value
    if kind in (tuple, list) and depth:
        return kind.__name__, len(value), [brief(each, depth - 1) for each in value[:50]]
    if kind in (set, frozenset):
        return kind.__name__, len(value)
    if kind is dict and depth:
        some = list(value.items())[:50]
        return "dict", len(value), [(brief(key, 0), brief(each, depth - 1)) for key, each in some]
    if kind is FunctionType:
        return value.__module__, value.__qualname__, value.__code__.co_firstlineno
    if issubclass(kind, type):
        return type.__getattribute__(value, "__module__"), type.__getattribute__(value, "__qualname__")
    return value.__name__ if kind is ModuleType else (kind.__module__, kind.__qualname__)


def follow_imports():
    """Note which module is being loaded, and what it is when it has been."""
    for loader in LOADERS:
        loader.exec_module = following(loader.exec_module)


def follow_no_more():
    """Have the loaders as they were."""
    for loader, execute in zip(LOADERS, EXECUTE, strict=True):
        loader.exec_module = execute


def following(execute):
    """Return exec_module() of a loader, with notes."""

    def exec_module(self, module):
        running.append(module.__name__)
        try:
            return execute(self, module)
        finally:
            running.pop()
            prints[module.__name__] = fingerprint(module)

    # Then warnings do not count this frame, as none of the import system's
    exec_module.__code__ = exec_module.__code__.replace(co_filename="<frozen importlib._bootstrap>")
    return exec_module


# What a script's run teaches


class Lesson:
    """What is known of a script, and its zygote."""

    def __init__(self, script):
        self.signature = signature(script)
        self.memory = mmap.mmap(-1, ROOM)  # where a child writes
        # (name, file, its signature, fingerprint) of those that are installed, in their order
        self.modules = None
        self.path = []
        self.files = {}  # file or directory -> its signature
        self.changed = set()  # variables of the environment that the script sets, or that differ
        self.skipped = ()  # beginnings of names
        self.tries = 0
        self.lines, self.arguments, self.steady = b"", [], {}  # of the request that was learned from
        self.looked = self.used = monotonic()
        self.zygote = self.socket = 0
        self.reads = None  # variables that modules have read -> values, once the zygote is ready

    def write(self, *values):
        """Write a report, in a child."""
        data = marshal.dumps(values)
        if len(data) < ROOM - 4:
            self.memory[4 : 4 + len(data)] = data
            self.memory[:4] = len(data).to_bytes(4, "little")

    def read(self):
        """Return a child's report, None if it has left none."""
        length = int.from_bytes(self.memory[:4], "little")
        self.memory[:4] = bytes(4)
        return marshal.loads(self.memory[4 : 4 + length]) if length else None

    def end(self):
        """End the zygote."""
        if self.zygote:
            os.close(self.socket)  # so that it ends, and its spare before it
            try:
                if self.reads is None:
                    os.kill(self.zygote, KILL)  # it is loading modules
                os.waitpid(self.zygote, 0)
            except (ProcessLookupError, ChildProcessError):
                pass  # it has ended
        self.zygote, self.reads = 0, None

    def holds(self):
        """Are all files as they were? Looks once a second."""
        now = self.used = monotonic()
        if now - self.looked < LOOK_SECONDS:
            return True
        self.looked = now
        try:
            return all(signature(file) == known for file, known in self.files.items())
        except OSError:
            return False


def report(lesson, fresh, environment):
    """Write what a run has loaded and changed, at its end. environment: as it was."""
    if not isinstance(os.environ, os._Environ):
        return
    modules = []
    for name, module in list(sys.modules.items()):
        file = installed_file(module)
        if name not in fresh and type(module) is ModuleType and file is not None:
            modules.append((name, file, signature(file) if file else (), prints.get(name)))
    now = os.environ._data
    changed = [key for key in {*now, *environment} if now.get(key) != environment.get(key)]
    own = [file for _, file in code.loaded]
    lesson.write(modules, [path for path in sys.path if isinstance(path, str)], changed, own)


def installed_file(module):
    """Return the file of an installed module, "" if it has none, None if the module is not installed."""
    variables = getattr(module, "__dict__", {})
    file = variables.get("__file__")
    if file is not None:
        return file if is_library(file) else None
    if getattr(variables.get("__spec__"), "origin", None) in ("built-in", "frozen"):
        return ""
    places = list(variables.get("__path__", ()))
    return "" if places and all(map(is_library, places)) else None


# In the process that forks


def lesson_of(script, arguments, lines):
    """Return the lesson that the next run of a script is to write, None if there is nothing to learn."""
    try:
        lesson = lessons.get(script)
        if lesson is None or lesson.signature != signature(script):
            forget(script)
            if len(lessons) >= MAX_LESSONS:
                for each in list(lessons):
                    forget(each)
            lesson = lessons[script] = Lesson(script)
    except OSError:
        return None
    if lesson.modules is not None or lesson.tries >= MAX_TRIES:
        return None
    lesson.tries += 1
    lesson.lines, lesson.arguments = lines, arguments
    lesson.steady = steady(environment_of(lines))
    return lesson


def forget(script):
    """Learn a script again at its next run."""
    if lesson := lessons.pop(script, None):
        lesson.end()


def take_up(lesson):
    """Read what a run has taught, if it was to teach."""
    if lesson and lesson.modules is None and (said := lesson.read()):
        lesson.modules, lesson.path, changed, own = said
        lesson.changed.update(changed)
        for file in own:
            try:
                code.Loader("", file).get_code("")
                lesson.files[file] = signature(file)
            except Exception:
                pass  # it is not there any more, or cannot be compiled
        lesson.files.update((file, known) for _, file, known, _ in lesson.modules if file)
        for path in lesson.path:
            if is_library(os.path.join(path, "")) and os.path.isdir(path):
                lesson.files[path] = signature(path)
        code.loaded.clear()


def zygote_for(script, lines, arguments):
    """Return the lesson of a script whose zygote may answer this request, None if there is none."""
    lesson = lessons.get(script)
    if lesson is None or not lesson.zygote:
        return None
    if lesson.reads is None and not is_ready(lesson):
        return None
    if lesson.signature != signature(script) or not lesson.holds():
        forget(script)
        return None
    now = environment_of(lines)
    differ = {key for key, value in lesson.reads.items() if now.get(key) != value}
    if differ or steady(now) != lesson.steady or arguments != lesson.arguments:
        lesson.changed |= differ
        lesson.end()
        return None
    return lesson


def environment_of(lines):
    """Return the environment of a request."""
    return dict([variable.split(b"=", 1) for variable in words(lines.split(b"\n")[1])])


def steady(environment):
    """Return the part of an environment that is the same from request to request."""
    return {
        key: value
        for key, value in environment.items()
        if key not in REQUEST and not key.startswith(b"HTTP_")
    }


def is_ready(lesson):
    """Has a zygote loaded its modules? If it could not, the next one leaves out what was in the way."""
    try:
        os.set_blocking(lesson.socket, False)
        said = os.read(lesson.socket, 1)
    except BlockingIOError:
        return False
    except OSError:
        said = b""
    os.set_blocking(lesson.socket, True)
    report = lesson.read()
    if said and report:
        lesson.reads, opened = report
        try:
            lesson.files.update((file, signature(file)) for file in opened)
        except OSError:
            lesson.tries = MAX_TRIES
        return True
    lesson.end()
    if report:
        lesson.skipped += tuple(report)
    else:
        lesson.tries = MAX_TRIES
    return False


def to_prepare(script):
    """Return the lesson of a script that wants a zygote, None if there is none. Another zygote may end for it."""
    lesson = lessons.get(script)
    if lesson is None or lesson.zygote or not lesson.modules or lesson.tries >= MAX_TRIES:
        return None
    alive = [each for each in lessons.values() if each.zygote]
    if len(alive) >= MAX_ZYGOTES:
        oldest = min(alive, key=lambda each: each.used)
        if monotonic() - oldest.used < IDLE_SECONDS:
            return None
        oldest.end()
    lesson.tries += 1
    lesson.used = monotonic()
    lesson.memory[:4] = bytes(4)
    return lesson


def has_ended(pid):
    """Note that a process has ended, which may be a zygote."""
    for lesson in lessons.values():
        if lesson.zygote == pid:
            os.close(lesson.socket)
            lesson.zygote, lesson.reads = 0, None


def zygotes():
    """Return the pids of all zygotes."""
    return [lesson.zygote for lesson in lessons.values() if lesson.zygote]
