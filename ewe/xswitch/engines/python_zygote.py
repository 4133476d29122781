"""The zygote of a script of the Python engine: a process that has loaded the script's installed modules.

python_preload.py says when there is one, and which modules stay out. Loading imports the modules, and looks at each
import for what would be another in the script's own process. Shelf gives the modules out to the children.
"""

import _thread
import _warnings
import builtins
import importlib
import os
import sys
import time
from importlib import machinery

import python_code as code
import python_preload as preload
from python_code import is_library, is_standard, signature
from python_preload import installed_file, top_of

__builtins__ = vars(code)["__builtins__"]
# What is another each time
ASKED = {
    os.urandom, os.getpid, os.getppid, time.time, time.time_ns, time.monotonic, time.perf_counter, time.localtime,
    time.gmtime, time.process_time,
}  # fmt: skip
WARNS = {_warnings.warn, _warnings.warn_explicit}
READING = {"os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.getxattr", "os.listxattr"}  # audit events
# The first parts of the names of events that others see
ACTING = {"os", "pty", "shutil", "socket", "sqlite3", "subprocess", "syslog", "tempfile"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
IMPORTED = (*machinery.all_suffixes(), ".pyc")  # ends of the names of files that imports read


class Watched(dict):
    """An environment that notes what is read of it; None: all of it."""

    def __init__(self, *values):
        super().__init__(*values)
        self.reads = set()

    def __getitem__(self, key):
        self.reads.add(key)
        return super().__getitem__(key)

    def __contains__(self, key):
        self.reads.add(key)
        return super().__contains__(key)

    def get(self, key, default=None):
        self.reads.add(key)
        return super().get(key, default)

    def all_read(self, *_):
        self.reads.add(None)
        return super()

    def __iter__(self):
        return self.all_read().__iter__()

    def keys(self):
        return self.all_read().keys()

    def items(self):
        return self.all_read().items()

    def values(self):
        return self.all_read().values()

    def copy(self):
        return self.all_read().copy()

    def __len__(self):
        return self.all_read().__len__()


class Loading:
    """The imports of a zygote."""

    def __init__(self, lesson):
        self.lesson = lesson
        self.known = {name: (file, known, mark) for name, file, known, mark in lesson.modules}
        self.tops = {top_of(name) for name in self.known}
        self.asked = self.acted = self.imports = False
        self.opened = set()  # files that modules have read
        self.edges = {}  # first part of a module's name -> those of what it imports
        os.environ._data = os.environb._data = self.environment = Watched(os.environ._data)
        self.before = dict(super(Watched, self.environment).items())
        self.path, self.hooks = list(sys.path), (list(sys.meta_path), list(sys.path_hooks))
        self.output = os.memfd_create("output")
        for number in (1, 2):
            os.dup2(self.output, number)
        self.files = os.listdir("/proc/self/fd")

    def fault(self):
        """Import all modules; return the name of the first that cannot be loaded beforehand, None if all can."""
        preload.follow_imports()
        importing, builtins.__import__ = builtins.__import__, self.noting(builtins.__import__)
        sys.setprofile(self.watch)
        sys.addaudithook(self.audit)
        for name in self.known:
            if name not in sys.modules and not name.startswith(self.lesson.skipped or ("\0",)):
                before = {*sys.modules}
                self.imports = True
                try:
                    importlib.import_module(name)
                except BaseException:
                    return name
                self.imports = False
                if self.differs(name, [each for each in sys.modules if each not in before]):
                    return name
        sys.setprofile(None)
        builtins.__import__ = importing
        preload.follow_no_more()
        return None

    def watch(self, frame, event, argument):
        """Note where a module warns, or asks for what is another each time; Python's own may ask."""
        if event == "c_call" and argument in WARNS:
            self.asked = True  # who is warned depends on who imports
        elif event == "c_call" and preload.running and argument in ASKED:
            module = sys.modules.get(preload.running[-1])
            self.asked |= not is_standard(getattr(module, "__file__", None) or "")

    def audit(self, event, arguments):
        """Note what a module reads; prevent what would be seen outside of this process. Raises OSError."""
        if not self.imports:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int) or flags & WRITES:
                self.refuse()
            elif not os.fsdecode(path).endswith(IMPORTED):
                self.opened.add(os.path.abspath(os.fsdecode(path)))
        elif event.partition(".")[0] in ACTING and event not in READING:
            self.refuse()

    def refuse(self):
        self.acted = True
        raise PermissionError("a module that is loaded beforehand may not do this")

    def noting(self, importing):
        """Return __import__, with notes of who imports what."""

        def note(name, globals=None, locals=None, fromlist=(), level=0):
            if globals and not level:
                self.edges.setdefault(top_of(globals.get("__name__") or ""), set()).add(top_of(name))
            return importing(name, globals, locals, fromlist, level)

        return note

    def differs(self, name, new):
        """Has an import done anything else than in the script's run, or more than to make modules?"""
        self.edges.setdefault(top_of(name), set()).update(map(top_of, new))
        sys.stdout.flush(), sys.stderr.flush()
        return (
            not all(map(self.same, new))
            or self.asked
            or self.acted
            or not all(map(is_library, self.opened))
            or None in self.environment.reads
            or bool(self.environment.reads & self.lesson.changed)
            or dict(super(Watched, self.environment).items()) != self.before
            or sys.path != self.path
            or (sys.meta_path, sys.path_hooks) != self.hooks
            or os.fstat(self.output).st_size > 0
            or os.listdir("/proc/self/fd") != self.files
            or _thread._count() > 0
            or has_children()
        )

    def same(self, name):
        """Is a module that was loaded the one of the script's run?"""
        module = sys.modules[name]
        if name not in self.known:  # a part that a module has made of itself
            return getattr(module, "__file__", None) is None and top_of(name) in self.tops
        file, known, mark = self.known[name]
        if installed_file(module) != file or preload.prints.get(name) != mark:
            return False
        return not file or signature(file) == known


def has_children():
    """Is there a process that this one has started?"""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def load(lesson, fresh):
    """Load what a script's run has loaded; return it. Ends this process where that is not possible."""
    sys.path[:] = lesson.path
    loading = Loading(lesson)
    if name := loading.fault():
        parent = name.rpartition(".")[0]
        lesson.write(f"{parent}." if "." in parent else name)
        os._exit(1)
    environment = loading.environment
    os.environ._data = os.environb._data = loading.before
    os.close(loading.output)
    modules = {name: module for name, module in sys.modules.items() if name not in fresh}
    lesson.write({key: loading.before.get(key) for key in environment.reads}, list(loading.opened))
    return Shelf(modules, loading.edges)


class Shelf:
    """Gives out modules that were loaded beforehand; sys.meta_path has it as the first."""

    def __init__(self, modules, edges):
        self.modules = modules
        self.edges = edges
        self.homes = {}  # first part of a name -> the directory in which it is looked for; None: none
        self.specs = {}
        for name, module in modules.items():
            if "." not in name:
                file = installed_file(module)
                home = os.path.dirname(file) if file else None
                self.homes[name] = os.path.dirname(home) if home and hasattr(module, "__path__") else home
                if file == "" and hasattr(module, "__path__"):
                    self.homes[name] = os.path.dirname(next(iter(module.__path__)))
        self.listings = {path: listed(path) for path in sys.path if is_library(os.path.join(path, ""))}

    def find_spec(self, name, path=None, target=None):
        if name not in self.homes or name not in self.modules:
            return None
        parts = self.needed(name)
        listings = dict(self.listings)
        if not all(self.at_home(part, listings) for part in parts):
            self.modules = {}  # the search path is not what it was: nothing else is given out
            return None
        module = self.modules.pop(name)  # which the import system itself will put into sys.modules
        for each in [each for each in self.modules if top_of(each) in parts]:
            sys.modules.setdefault(each, self.modules.pop(each))
        if "logging" in parts:
            logging = module if name == "logging" else sys.modules["logging"]
            setattr(
                logging,
                preload.BEGAN,
                (time.time if isinstance(getattr(logging, preload.BEGAN), float) else time.time_ns)(),
            )
        self.specs[name] = module, module.__spec__
        places = getattr(module, "__path__", None)
        spec = machinery.ModuleSpec(name, self, origin=module.__spec__.origin, is_package=places is not None)
        spec.submodule_search_locations = None if places is None else list(places)
        return spec

    def needed(self, name):
        """Return the first parts of the names of a module and of all that it imports, those not given out yet."""
        found, queue = set(), [name]
        while queue:
            part = queue.pop()
            if part not in found and part in self.modules:
                found.add(part)
                queue += self.edges.get(part, ())
        return found

    def at_home(self, name, listings):
        """Does the search path lead to where a module was found?"""
        home = self.homes[name]
        if home is None:
            return True
        for path in sys.path:
            if path == home:
                return True
            if path not in listings:
                listings[path] = listed(path)
            if name in listings[path]:
                return False
        return False

    def create_module(self, spec):
        return self.specs[spec.name][0]

    def exec_module(self, module):
        _, module.__spec__ = self.specs.pop(module.__spec__.name)


def listed(path):
    """Return the names of the modules that a directory may have, and others; of an archive, any."""
    if os.path.isfile(path):
        return Anything()
    try:
        return {entry.partition(".")[0] for entry in os.listdir(path or ".")}
    except OSError:
        return set()


class Anything:
    """What has every name."""

    def __contains__(self, name):
        return True
