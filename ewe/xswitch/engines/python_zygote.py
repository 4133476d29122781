"""The zygote of a script of the Python engine: a process that has loaded the script's installed modules.

python_preload.py decides when a script has one, and which modules are left out. CheckedImports imports the
modules, and checks each import for effects that would be different in the script's own process. ModuleStore hands
the modules out to the children.

The *top-level name* of a module is the part before the first dot: `json` of `json.decoder`.
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
from python_code import file_signature, is_library, is_standard
from python_preload import installed_file, top_level_name

__builtins__ = vars(code)["__builtins__"]
# Functions that return something different each time
VARYING_FUNCTIONS = {
    os.urandom, os.getpid, os.getppid, time.time, time.time_ns, time.monotonic, time.perf_counter, time.localtime,
    time.gmtime, time.process_time,
}  # fmt: skip
WARNING_CALLS = {_warnings.warn, _warnings.warn_explicit}
# Audit events that only read
READING_EVENTS = {"os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.getxattr", "os.listxattr"}
# The first parts of the names of audit events that other processes can see
EFFECT_EVENTS = {"os", "pty", "shutil", "socket", "sqlite3", "subprocess", "syslog", "tempfile"}
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
IMPORT_SUFFIXES = (*machinery.all_suffixes(), ".pyc")  # suffixes of files that imports read


class RecordedEnvironment(dict):
    """An environment that notes in `reads` which variables are read; None in `reads`: all of them."""

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

    def noting_all(self):
        """Note that all variables are read; return the dictionary without notes, as super() does."""
        self.reads.add(None)
        return super()

    def __iter__(self):
        return self.noting_all().__iter__()

    def keys(self):
        return self.noting_all().keys()

    def items(self):
        return self.noting_all().items()

    def values(self):
        return self.noting_all().values()

    def copy(self):
        return self.noting_all().copy()

    def __len__(self):
        return self.noting_all().__len__()


class CheckedImports:
    """Imports the modules of a script's profile, and notes everything that such an import does besides."""

    def __init__(self, profile):
        """Note the state of the process before the imports, for import_differs(), and begin to watch the process.

        profile: the ImportProfile of the script. The environment becomes one that notes which variables are read.
        Output goes to a file in memory: a module that writes any cannot be preloaded.
        """
        self.profile = profile
        # name of a module -> its file, the file's signature, and the module's fingerprint, as in the script's run
        self.expected = {name: record for name, *record in profile.recorded_modules}
        self.top_level_names = {top_level_name(name) for name in self.expected}
        self.result_varies = False  # a module has called one of VARYING_FUNCTIONS, or has warned
        self.had_effect = False  # a module has tried an effect outside of this process
        self.is_importing = False
        self.read_files = set()  # files that modules have read
        self.imports_of = {}  # top-level name of a module -> top-level names of the modules that it imports
        os.environ._data = os.environb._data = self.environment = RecordedEnvironment(os.environ._data)
        self.environment_before = dict(super(RecordedEnvironment, self.environment).items())
        self.search_path_before = list(sys.path)
        self.import_hooks = list(sys.meta_path), list(sys.path_hooks)
        self.output = os.memfd_create("output")
        for number in (1, 2):
            os.dup2(self.output, number)
        self.descriptors_before = os.listdir("/proc/self/fd")

    def import_all(self):
        """Import all modules of the profile, except those that it leaves out (skipped_prefixes).

        Return the name of the first module that cannot be preloaded, None if all can. In the first case, load()
        ends this process.
        """
        preload.follow_imports()
        original_import, builtins.__import__ = (
            builtins.__import__,
            self.with_import_notes(builtins.__import__),
        )
        sys.setprofile(self.note_call)
        sys.addaudithook(self.audit)  # Python cannot remove it: audit() does nothing between two imports
        for name in self.expected:  # in the order of the script's run
            if name not in sys.modules and not name.startswith(self.profile.skipped_prefixes):
                names_before = {*sys.modules}
                self.is_importing = True
                try:
                    importlib.import_module(name)
                except BaseException:
                    return name
                self.is_importing = False
                if self.import_differs(
                    name, [loaded for loaded in sys.modules if loaded not in names_before]
                ):
                    return name
        sys.setprofile(None)
        builtins.__import__ = original_import
        preload.stop_following_imports()
        return None

    def note_call(self, frame, event, argument):
        """Note that a module warns, or calls one of VARYING_FUNCTIONS: sys.setprofile() makes Python call this.

        Modules of Python's own library may call those functions.
        """
        if event == "c_call" and argument in WARNING_CALLS:
            self.result_varies = True  # the warning depends on the importing module
        elif event == "c_call" and preload.modules_in_progress and argument in VARYING_FUNCTIONS:
            innermost_name = preload.modules_in_progress[-1]
            module = sys.modules.get(innermost_name)
            self.result_varies |= not is_standard(getattr(module, "__file__", None) or "")

    def audit(self, event, arguments):
        """Note files that a module reads, and prevent effects outside of this process. Raises OSError.

        Python calls this for each audit event (sys.addaudithook).
        """
        if not self.is_importing:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int) or flags & WRITE_FLAGS:
                self.refuse()
            elif not os.fsdecode(path).endswith(IMPORT_SUFFIXES):
                self.read_files.add(os.path.abspath(os.fsdecode(path)))
        elif event.partition(".")[0] in EFFECT_EVENTS and event not in READING_EVENTS:
            self.refuse()

    def refuse(self):
        """Note and prevent an effect of a module outside of this process. Raises PermissionError."""
        self.had_effect = True
        raise PermissionError("a module that is loaded beforehand may not do this")

    def with_import_notes(self, original_import):
        """Return a function that does the same as `original_import` (__import__), and fills `imports_of`."""

        def import_and_note(name, globals=None, locals=None, fromlist=(), level=0):
            """Import as __import__() does, and note which module imports which."""
            if globals and not level:  # no relative import: that leads to the same top-level name
                importer = top_level_name(globals.get("__name__") or "")
                self.imports_of.setdefault(importer, set()).add(top_level_name(name))
            return original_import(name, globals, locals, fromlist, level)

        return import_and_note

    def import_differs(self, name, loaded_names):
        """Return whether an import has loaded other modules than the script's run, or has had another effect.

        Also note in `imports_of` which modules the import has loaded. name: of the imported module. loaded_names:
        the names of all modules that its import has loaded.
        """
        self.imports_of.setdefault(top_level_name(name), set()).update(map(top_level_name, loaded_names))
        # The module may have printed: after the flush, the file self.output is no longer empty
        sys.stdout.flush()
        sys.stderr.flush()
        return (
            not all(map(self.is_same, loaded_names))
            or self.result_varies
            or self.had_effect
            or not all(map(is_library, self.read_files))
            or None in self.environment.reads  # all variables
            or bool(self.environment.reads & self.profile.changed_variables)
            or dict(super(RecordedEnvironment, self.environment).items()) != self.environment_before
            or sys.path != self.search_path_before
            or (sys.meta_path, sys.path_hooks) != self.import_hooks
            or os.fstat(self.output).st_size > 0
            or os.listdir("/proc/self/fd") != self.descriptors_before
            or _thread._count() > 0  # threads besides the main one
            or has_children()
        )

    def is_same(self, name):
        """Return whether a loaded module equals that of the script's run: its file, signature and fingerprint.

        The signature changes with the file. The fingerprint is made of the module's variables right after its
        import (python_preload.py).
        """
        module = sys.modules[name]
        if name not in self.expected:
            # Allowed for a submodule that an expected module has made without a file
            return getattr(module, "__file__", None) is None and top_level_name(name) in self.top_level_names
        file, expected_signature, expected_fingerprint = self.expected[name]
        if installed_file(module) != file or preload.fingerprints.get(name) != expected_fingerprint:
            return False
        return not file or file_signature(file) == expected_signature


def has_children():
    """Return whether this process has a child. A child that has ended is reaped."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def load(profile, start_modules):
    """Load the modules of a script's run; return their ModuleStore. End this process if that is not possible.

    start_modules: names of the modules of an interpreter that has just started.
    """
    sys.path[:] = profile.search_path
    checked = CheckedImports(profile)
    if name := checked.import_all():
        # Leave out this module, or, if it lies in a subpackage, all modules of that: one of them may have loaded it
        parent, _, _ = name.rpartition(".")
        profile.write_report(f"{parent}." if "." in parent else name)
        os._exit(1)
    environment = checked.environment
    os.environ._data = os.environb._data = checked.environment_before
    os.close(checked.output)
    modules = {name: module for name, module in sys.modules.items() if name not in start_modules}
    read_variables = {key: checked.environment_before.get(key) for key in environment.reads}
    profile.write_report(read_variables, list(checked.read_files))
    return ModuleStore(modules, checked.imports_of)


class ModuleStore:
    """Hands out preloaded modules, to the script's own `import`. It is the first entry of sys.meta_path."""

    def __init__(self, modules, imports_of):
        """modules: name -> module. imports_of: top-level name -> top-level names of what it imports."""
        self.modules = modules
        self.imports_of = imports_of
        self.found_in = {}  # top-level name -> the entry of sys.path where it was found; None: it has no file
        self.specs = {}  # name of a module that is being imported -> the module, its own spec
        for name, module in modules.items():
            if "." not in name:
                # "": within the interpreter, or a package without __init__.py. None: not installed
                file = installed_file(module)
                directory = os.path.dirname(file) if file else None
                if directory and hasattr(module, "__path__"):  # its file is directory/name/__init__.py
                    directory = os.path.dirname(directory)
                self.found_in[name] = directory
                if file == "" and hasattr(module, "__path__"):  # a package without __init__.py
                    self.found_in[name] = os.path.dirname(next(iter(module.__path__)))
        # Directory on sys.path -> the names of the modules in it
        self.listings = {path: names_in(path) for path in sys.path if is_library(os.path.join(path, ""))}

    def find_spec(self, name, path=None, target=None):
        """Return the spec of a stored module, None if another finder must find it (importlib's MetaPathFinder)."""
        if name not in self.found_in or name not in self.modules:
            return None
        names = self.with_imports(name)
        listings = dict(self.listings)  # a copy: is_still_found() adds listings that are true only now
        if not all(self.is_still_found(top_name, listings) for top_name in names):
            self.modules = {}  # the search path has changed: hand out no more modules
            return None
        module = self.modules.pop(name)  # the import system itself puts this one into sys.modules
        # All modules of these packages come into sys.modules at once, as if they had been imported
        for stored_name in [stored for stored in self.modules if top_level_name(stored) in names]:
            sys.modules.setdefault(stored_name, self.modules.pop(stored_name))
        if "logging" in names:  # its start time is the time of its import, which the script would see
            logging = module if name == "logging" else sys.modules["logging"]
            # Up to Python 3.12 the time is a float of seconds, later an integer of nanoseconds
            is_float = isinstance(getattr(logging, preload.LOGGING_STARTED_AT), float)
            setattr(logging, preload.LOGGING_STARTED_AT, time.time() if is_float else time.time_ns())
        self.specs[name] = module, module.__spec__  # for exec_module()
        search_path = getattr(module, "__path__", None)
        spec = machinery.ModuleSpec(
            name, self, origin=module.__spec__.origin, is_package=search_path is not None
        )
        spec.submodule_search_locations = None if search_path is None else list(search_path)
        return spec

    def with_imports(self, name):
        """Return the top-level names of a module and of its imports, without those handed out before."""
        names, to_follow = set(), [name]
        while to_follow:
            name = to_follow.pop()
            if name not in names and name in self.modules:
                names.add(name)
                to_follow += self.imports_of.get(name, ())
        return names

    def is_still_found(self, name, listings):
        """Return whether the search path (sys.path) still leads to the directory where a module was found.

        name: the top-level name of the module. listings: directory -> names in it; this method adds the directories
        that it reads.
        """
        directory = self.found_in[name]
        if directory is None:
            return True  # a module within the interpreter, which Python finds before all directories
        for path in sys.path:
            if path == directory:
                return True
            if path not in listings:
                listings[path] = names_in(path)
            if name in listings[path]:
                return False  # a directory before the right one has such a name
        return False

    def create_module(self, spec):
        """Return the stored module (importlib's Loader)."""
        module, _ = self.specs[spec.name]
        return module

    def exec_module(self, module):
        """Do not run the module again: only restore its own spec, which importlib has replaced."""
        _, module.__spec__ = self.specs.pop(module.__spec__.name)


def names_in(path):
    """Return the names of a directory's entries without suffixes: those of its modules are among them.

    For an archive, which is not read, return a set that contains every name. A directory that cannot be read
    has none.
    """
    if os.path.isfile(path):
        return EveryName()
    try:
        return {entry.partition(".")[0] for entry in os.listdir(path or ".")}
    except OSError:
        return set()


class EveryName:
    """A set that contains every name."""

    def __contains__(self, name):
        return True
