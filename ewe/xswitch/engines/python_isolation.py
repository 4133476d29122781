"""Decides which scripts the Python engine (python.py) may run itself under `isolation = "auto"`.

A script that the engine runs itself takes 0.1 ms, but the modules that it imports stay loaded for the next script.
That is exact only while no script changes those modules. No list of all changes can be complete. needs_fork()
therefore asks the opposite: is every use of imported objects in the script known to change nothing? It reads the
source of the script, and of the modules beside it that it imports, once for each change of a file.

- The table of python_plain.py says which names of the library a script may call.
- An imported object may be called, or named in `except`, `isinstance`, an annotation or a decorator. Few objects
  may be used as values. Any other use as a value forks: an alias, a parameter or an item of a list cannot be
  followed.
- A script may only change attributes of `self`, and attributes that its own classes define.
- Functions that find objects by name (exec, setattr, globals) fork. Attributes that lead from any object to shared
  state (`__dict__`, `tb_frame`) fork, too.

               SourceVisitor (python_source.py)    ScriptAnalysis (a script and its own modules)
    source -> Use("json.dumps", CALL), ...  ->  own module?  its names must not be imported ones
  changed_attributes, own_attributes            library?     python_plain.py allows the use

An unnecessary fork costs half a millisecond. A missing fork may serve a wrong page.

After each run, has_left_changes() looks for changes that needs_fork() has overlooked (python_changes.py). If it
finds one, the engine replaces itself, and forks for this script from now on.
"""

import os
import sys

import python_code
import python_plain as plain
from python_changes import finds_change, snapshots_of
from python_code import SUFFIXES, file_signature, is_library, loaded_own_modules, request_signatures
from python_source import (
    BASE,
    CALL,
    CHANGE,
    CONTENT_CHANGING_METHODS,
    SET,
    VALUE,
    SourceVisitor,
    changes_shared_state,
    is_dunder,
)

__builtins__ = vars(python_code)["__builtins__"]
MAX_ANALYSES = 500  # cached ScriptAnalysis objects, and cached SourceVisitors of files
MAX_FILES = 100  # of the user's own modules that are read for one script

visitors = {}  # file -> (its signature, its SourceVisitor)
analyses = {}  # script -> ScriptAnalysis
# Script -> its file_signature(): an earlier run has shown that the script changes modules, so that it must be
# forked
harmful_scripts = {}


def visitor_of(file, current_signature):
    """Return the SourceVisitor of a file, from the cache if the file has not changed since it was read.

    current_signature: the file_signature() of the file, taken before this call: if the file changes while it is
    read, the next call reads it again.

    Raises OSError, SyntaxError, ValueError, RecursionError or MemoryError if the file cannot be read or parsed.
    """
    cached_signature, visitor = visitors.get(file, (None, None))
    if cached_signature != current_signature:
        with open(file, "rb") as opened:
            visitor = SourceVisitor(opened.read())
        if len(visitors) >= MAX_ANALYSES:
            visitors.clear()
        visitors[file] = current_signature, visitor
    return visitor


def is_harmless_use(path, kind, imported):
    """Return whether a use of an object of Python's library changes nothing that lasts (python_plain.py).

    path: the object's name with dots ("json.dumps"). kind: how the script uses the object: CALL, NAME, VALUE, BASE,
    SET or CHANGE (python_source.py). imported: names of the modules that the file imports.
    """
    # Split "os.path.join" into the module, as python_plain.py names it (os.path), and the names within it ([join])
    module = path
    while module not in plain.HARMLESS_NAMES:
        module, _, _ = module.rpartition(".")
        if not module:
            return False
    names = path[len(module) + 1 :].split(".")  # [""] for the module itself, which is not in the table
    first_name, last_name = names[0], names[-1]
    if module not in imported or first_name not in plain.HARMLESS_NAMES[module]:
        return False
    # A private name may lead to shared state. Base.__init__(self) is the usual call of a derived class
    if any(name.startswith("_") or changes_shared_state(name) for name in names if name != "__init__"):
        return False
    if kind in (SET, CHANGE):
        return path in (plain.SETTABLE_VARIABLES if kind == SET else plain.CHANGEABLE_TABLES)
    top_path = f"{module}.{first_name}"
    is_constant = first_name.isupper() and top_path not in plain.CAPITALS_NOT_CONSTANT
    may_be_value = is_constant or top_path in plain.USABLE_AS_VALUES or path in plain.USABLE_AS_VALUES
    if kind == VALUE:
        return may_be_value
    if kind == BASE:
        return path in plain.DERIVABLE_CLASSES
    # os.environ.update() changes os.environ. A function of this name in a module (one name) changes no table
    if kind == CALL and last_name in CONTENT_CHANGING_METHODS and len(names) > 1:
        return top_path in plain.CHANGEABLE_TABLES
    # A function, or a method of a class (datetime.datetime.now). A longer path leads to an unknown object
    return may_be_value or len(names) <= 2


# A script, and those of the user's own modules that it imports


class ScriptAnalysis:
    """The analysis of a script: its files, and the imports in them. needs_fork: it needs a separate process."""

    def __init__(self, script, state):
        """Analyse a script. state: the module python_state.

        Raises OSError, SyntaxError, ValueError, RecursionError or MemoryError if a file cannot be read or parsed.
        """
        self.state = state
        self.needs_fork = True  # decided at the end
        # The script, and the user's own modules that it imports -> their signatures
        self.files = {script: file_signature(script)}
        # Directory in which the user's own modules are searched -> (its signature, the names of its modules)
        self.modules_beside = {}
        self.named_modules = set()  # modules of the standard library that the script names
        self.compared_count = 0  # number of loaded modules at the last comparison of their names
        self.snapshots = None  # snapshots_of() the named modules, before the next run
        self.run_count = 0
        # Directories in which the user's own modules are searched
        roots = [
            os.path.dirname(script),
            *(path for path in sys.path if not is_library(os.path.join(path, ""))),
        ]
        for root in roots:
            self.modules_beside[root] = file_signature(root), frozenset(self.state.module_names_in(root))
        has_done_harm = harmful_scripts.get(script) == self.files[script]
        self.needs_fork = has_done_harm or not self.is_harmless(script, roots)

    def is_harmless(self, script, roots):
        """Read all files that the script imports. Return whether all are known to change nothing that lasts.

        A file may change attributes that classes of these files define, and no others. roots: directories in which
        the user's own modules are searched.
        """
        file_visitors = self.follow_imports(script, roots)
        if file_visitors is None:
            return False
        own_attributes = set().union(*(visitor.own_attributes for visitor in file_visitors))
        changed_attributes = set().union(*(visitor.changed_attributes for visitor in file_visitors))
        shared_names = {name for visitor in file_visitors for name in self.library_names(visitor)}
        if changed_attributes and any(visitor.gets_unnamed_classes for visitor in file_visitors):
            return False
        return changed_attributes <= own_attributes and all(
            self.uses_are_harmless(visitor, shared_names) for visitor in file_visitors
        )

    def follow_imports(self, script, roots):
        """Return the SourceVisitors of the script and of the user's own modules that it imports.

        None if a file needs a separate process with any imports, if a module is neither the user's own nor a
        harmless one of Python's library, or if there are too many files. roots: where own modules are searched.
        """
        to_read = [(script, roots[0])]  # the (file, package) pairs still to be read
        file_visitors = []
        while to_read:
            file, package = to_read.pop()
            visitor = visitor_of(file, self.files[file])
            file_visitors.append(visitor)
            if visitor.always_forks or len(self.files) > MAX_FILES:
                return None
            for level, module, names in visitor.imports:
                directories = roots
                if level:  # from . import name
                    directories = [os.path.join(package, *[".."] * (level - 1))]
                elif not self.is_own(module):
                    if not self.note_library_module(module, names):
                        return None
                    continue
                elif module.partition(".")[0] in sys.stdlib_module_names:
                    return None  # it hides a module of Python's library
                if not self.note_own_module(directories, module, names, to_read):
                    return None
        return file_visitors

    def is_own(self, path):
        """Return whether this is the name of one of the user's own modules, or a name within one."""
        top = path.partition(".")[0]
        return not top or any(top in names for _, names in self.modules_beside.values())

    def note_library_module(self, module, names):
        """Note a module that is not beside the script. Return whether it is a harmless one of Python's library.

        names: those of `from module import names`, which may be submodules; empty for `import module`.
        """
        top = module.partition(".")[0]
        if top not in sys.stdlib_module_names:
            return False
        harmless_names = plain.HARMLESS_NAMES.get(module, ())
        if not (names or harmless_names) or not all(
            name in harmless_names or f"{module}.{name}" in plain.HARMLESS_NAMES for name in names
        ):
            return False
        self.named_modules.add(module)
        self.named_modules.update(f"{module}.{name}" for name in names)
        return True

    def library_names(self, visitor):
        """Return the names in a file that are objects of the library."""
        return {name for name, paths in visitor.import_paths.items() if not all(map(self.is_own, paths))}

    def uses_are_harmless(self, visitor, shared_names):
        """Return whether each use of an imported object is known to change nothing.

        shared_names: the names of the library's objects in all files of the script.
        """
        imported = {"os.path"}  # imported by os itself
        for level, module, names in visitor.imports:
            if not level:
                imported.update((module, *(f"{module}.{name}" for name in names)))
        for path, kind in visitor.uses:
            if not self.is_own(path):
                if not is_harmless_use(path, kind, imported):
                    return False
                continue
            _module, *names = path.split(".")
            # An own module may lead to an object of the library that it has imported: as a whole, as a value; by a
            # name that stands for such an object in any of the files; by __dict__ and the like
            if (
                (kind == VALUE and not names)
                or not shared_names.isdisjoint(names)
                or any(map(is_dunder, names))
            ):
                return False
        return True

    def note_own_module(self, directories, module, names, to_read):
        """Add the files of one of the user's own modules to `to_read`. Return whether the module was found.

        Also add the __init__.py of each package above the module. directories: where the module may be. names:
        those that the script imports from the module; they may be submodules. to_read: the (file, package) pairs
        still to be read.
        """
        for directory in directories:
            path = directory
            for part in filter(None, module.split(".")):  # a, then a/b, then a/b/c of the module a.b.c
                path = os.path.join(path, part)
                if not self.note_module_file(path, to_read):
                    break
            else:  # all parts were found
                for name in names:
                    self.note_module_file(os.path.join(path, name), to_read)
                return True
        return False

    def note_module_file(self, path_without_suffix, to_read):
        """Add the file of a module or package to `to_read`, if that is new. Return whether there is one.

        path_without_suffix: of the module's file without .py, or of the package's directory. to_read: the
        (file, package) pairs still to be read.
        """
        path = path_without_suffix
        for file, package in (
            (os.path.join(path, "__init__.py"), path),
            (path + ".py", os.path.dirname(path)),
        ):
            if os.path.isfile(file):
                if file not in self.files:
                    self.files[file] = file_signature(file)
                    to_read.append((file, package))
                return True
        # A directory without __init__.py is a package, too, unless a compiled module has its name
        return os.path.isdir(path) and not any(os.path.exists(path + suffix) for suffix in SUFFIXES)

    def is_unchanged(self):
        """Return whether all files and directories are unchanged since they were read.

        Store the signatures of the files in `request_signatures`: cached_code_of() and get_code() need not read
        them again.
        """
        for file, read_signature in self.files.items():
            request_signatures[file] = current_signature = file_signature(file)
            if current_signature != read_signature:
                return False
        for root, (read_signature, names) in self.modules_beside.items():
            current_signature = file_signature(root)
            if current_signature != read_signature:
                if frozenset(self.state.module_names_in(root)) != names:
                    return False
                self.modules_beside[root] = current_signature, names
        return True

    def hides_loaded_module(self):
        """Return whether a module beside the script has the name of a loaded one.

        If there are new modules, compare the names again, and keep the answer in `needs_fork`. New modules also
        make `snapshots` out of date.
        """
        if self.compared_count != len(self.state.known_modules):
            self.compared_count = len(self.state.known_modules)
            self.snapshots = None
            beside = [name for _, names in self.modules_beside.values() for name in names]
            self.needs_fork = any(map(self.state.is_found_on_path, beside))
        return self.needs_fork


def needs_fork(script, state):
    """Return whether a script needs a separate process. state: the module python_state."""
    request_signatures.clear()
    try:
        analysis = analyses.get(script)
        if analysis is None or not analysis.is_unchanged():
            if len(analyses) >= MAX_ANALYSES:
                analyses.clear()
            analysis = analyses[script] = ScriptAnalysis(script, state)
        if not analysis.needs_fork and not analysis.hides_loaded_module():
            if analysis.snapshots is None:
                analysis.snapshots = snapshots_of(analysis.named_modules, state)
            loaded_own_modules.clear()
            return False
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        analyses.pop(script, None)  # if the script cannot run at all, its own process will report why
    return True


def has_left_changes(script, state):
    """Return whether the run of a script has changed modules that stay loaded."""
    try:
        return finds_change(analyses.get(script), state)
    except Exception:  # the script has changed functions that are used here
        return True


def always_fork(script):
    """Fork for a script from now on, until its file changes."""
    harmful_scripts[script] = file_signature(script)
    analyses.pop(script, None)
