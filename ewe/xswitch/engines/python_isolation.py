"""Which scripts the Python engine (python.py) may run itself under `isolation = "auto"`.

A script that the engine runs itself takes 0.1 ms, but the modules that it imports stay loaded for the next
script. That is exact only while no script changes those modules. No list of all changes can be complete. forks()
therefore asks the opposite: is all that a script does with imported things known to change nothing? It reads the
source of the script, and of the modules beside it that it imports, once for each change of a file.

- The table of python_plain.py says which names of the library a script may call.
- An imported thing is called, or named in `except`, `isinstance`, an annotation or a decorator. Few may be values.
  Any other use of it as a value forks: an alias, a parameter or an item of a list cannot be followed.
- A script changes no attributes but those of `self`, and those that its own classes define.
- What finds things by name (exec, setattr, globals), and what leads from any object to what all share
  (`__dict__`, `tb_frame`), forks.

               Reader (python_source.py)           Record (a script and its own modules)
    source -> Use("json.dumps", CALL), ...  ->  own module?  its names must not be imported ones
              changes, defines                  library?     python_plain.py allows the use

A fork that was not necessary costs half a millisecond. A missing one may serve a wrong page.

spoiled() looks for what forks() has overlooked, after each run (python_changes.py). If there is any, the engine
replaces itself, and forks for this script from now on.
"""

import os
import sys

import python_code
import python_plain as plain
from python_changes import finds_change, variables_of
from python_code import SUFFIXES, fresh, is_library, loaded, signature
from python_source import BASE, CALL, CHANGE, MUTATORS, SET, VALUE, Reader, is_dunder, is_strong

__builtins__ = vars(python_code)["__builtins__"]
MAX_RECORDS = 500  # scripts, and files, whose judgement is kept
MAX_FILES = 100  # modules of the user's own that are read for one script

readers = {}  # file -> (its signature, its Reader)
records = {}  # script -> Record
forked = {}  # script -> its signature; a run has shown that it must be forked


def read(file, now):
    """Return the Reader of a file. Raises what reading and parsing raise."""
    known, reader = readers.get(file, (None, None))
    if known != now:
        with open(file, "rb") as opened:
            reader = Reader(opened.read())
        if len(readers) >= MAX_RECORDS:
            readers.clear()
        readers[file] = now, reader
    return reader


def is_plain(path, how, imported):
    """Does a use of a thing of the library change nothing that lasts? imported: modules that the file imports."""
    module = path
    while module not in plain.PLAIN:
        module = module.rpartition(".")[0]
        if not module:
            return False
    names = path[len(module) + 1 :].split(".")
    if module not in imported or names[0] not in plain.PLAIN[module]:
        return False
    if any(name.startswith("_") or is_strong(name) for name in names if name != "__init__"):
        return False
    if how in (SET, CHANGE):
        return path in (plain.SET if how == SET else plain.CHANGED)
    head = f"{module}.{names[0]}"
    constant = names[0].isupper() and head not in plain.NO_CONSTANTS
    value = constant or head in plain.VALUES or path in plain.VALUES
    if how == VALUE:
        return value
    if how == BASE:
        return path in plain.BASES
    if how == CALL and names[-1] in MUTATORS and len(names) > 1:
        return head in plain.CHANGED
    return value or len(names) <= 2


# A script, and the modules of the user's own that it imports


class Record:
    """What is known of a script. forks: does it need a separate process?"""

    def __init__(self, script, state):
        self.state = state
        self.forks = True
        self.files = {script: signature(script)}  # also of modules of the user's own
        self.names = {}  # directory in which modules are looked for -> (its signature, names of modules there)
        self.touched = set()  # modules of the standard library that are named
        self.count = 0  # modules that were loaded when their names were last compared
        self.before = None
        self.runs = 0
        roots = [
            os.path.dirname(script),
            *(path for path in sys.path if not is_library(os.path.join(path, ""))),
        ]
        for root in roots:
            self.names[root] = signature(root), frozenset(self.state.modules_in(root))
        self.forks = forked.get(script) == self.files[script] or not self.is_harmless(script, roots)

    def is_harmless(self, script, roots):
        """Read all files that the script imports; is all that they do known to change nothing that lasts?"""
        found = self.follow(script, roots)
        if found is None:
            return False
        defines = set().union(*(reader.defines for reader in found))
        changes = set().union(*(reader.changes for reader in found))
        borrowed = {name for reader in found for name in self.library_names(reader)}
        if changes and any(reader.sees_classes for reader in found):
            return False
        return changes <= defines and all(self.uses_plainly(reader, borrowed) for reader in found)

    def follow(self, script, roots):
        """Return the Readers of all files that the script imports; None if it imports something else."""
        queue, found = [(script, roots[0])], []
        while queue:
            file, package = queue.pop()
            reader = read(file, self.files[file])
            found.append(reader)
            if reader.strong or len(self.files) > MAX_FILES:
                return None
            for level, module, names in reader.imports:
                places = roots
                if level:
                    places = [os.path.join(package, *[".."] * (level - 1))]
                elif not self.is_own(module):
                    if not self.allows(module, names):
                        return None
                    continue
                elif module.partition(".")[0] in sys.stdlib_module_names:
                    return None
                if not self.find(places, module, names, queue):
                    return None
        return found

    def is_own(self, path):
        """Is this one of the user's own modules, or within one?"""
        top = path.partition(".")[0]
        return not top or any(top in names for _, names in self.names.values())

    def allows(self, module, names):
        """Note a module that is not beside the script; return whether it is a harmless one of Python's library."""
        top = module.partition(".")[0]
        if top not in sys.stdlib_module_names:
            return False
        known = plain.PLAIN.get(module, ())
        if not (names or known) or not all(
            name in known or f"{module}.{name}" in plain.PLAIN for name in names
        ):
            return False
        self.touched.add(module)
        self.touched.update(f"{module}.{name}" for name in names)
        return True

    def library_names(self, reader):
        """Return the names in a file that are things of the library."""
        return {name for name, paths in reader.bound.items() if not all(map(self.is_own, paths))}

    def uses_plainly(self, reader, borrowed):
        """Does a file use all that it imports as is known to change nothing? borrowed: names of library_names()."""
        imported = {"os.path"}
        for level, module, names in reader.imports:
            if not level:
                imported.update((module, *(f"{module}.{name}" for name in names)))
        for path, how in reader.uses:
            if not self.is_own(path):
                if not is_plain(path, how, imported):
                    return False
                continue
            _, *names = path.split(".")
            if (how == VALUE and not names) or not borrowed.isdisjoint(names) or any(map(is_dunder, names)):
                return False  # it leads to what one of the user's own modules has imported
        return True

    def find(self, places, module, names, queue):
        """Put the files of a module of the user's own into the queue; return False if there is something else."""
        for place in places:
            path = place
            for part in filter(None, module.split(".")):
                path = os.path.join(path, part)
                if not self.add(path, queue):
                    break
            else:
                for name in names:
                    self.add(os.path.join(path, name), queue)
                return True
        return False

    def add(self, path, queue):
        """Put the file of a module or package into the queue; return whether there is one that can be read."""
        for file, package in (
            (os.path.join(path, "__init__.py"), path),
            (path + ".py", os.path.dirname(path)),
        ):
            if os.path.isfile(file):
                if file not in self.files:
                    self.files[file] = signature(file)
                    queue.append((file, package))
                return True
        return os.path.isdir(path) and not any(os.path.exists(path + suffix) for suffix in SUFFIXES)

    def holds(self):
        """Is all as it was when it was read?"""
        for file, known in self.files.items():
            fresh[file] = now = signature(file)
            if now != known:
                return False
        for root, (known, names) in self.names.items():
            now = signature(root)
            if now != known:
                if frozenset(self.state.modules_in(root)) != names:
                    return False
                self.names[root] = now, names
        return True

    def hides(self):
        """Has a module beside the script the name of one that is loaded?"""
        if self.count != len(self.state.known_modules):
            self.count = len(self.state.known_modules)
            self.before = None
            self.forks = any(self.state.is_found(name) for _, names in self.names.values() for name in names)
        return self.forks


def forks(script, state):
    """Return whether a script needs a separate process."""
    fresh.clear()
    try:
        record = records.get(script)
        if record is None or not record.holds():
            if len(records) >= MAX_RECORDS:
                records.clear()
            record = records[script] = Record(script, state)
        if not record.forks and not record.hides():
            if record.before is None:
                record.before = variables_of(record.touched, state)
            loaded.clear()
            return False
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        records.pop(script, None)  # where the script cannot run either, its process will say why
    return True


def spoiled(script, state):
    """Has the run of a script changed what stays?"""
    try:
        return finds_change(records.get(script), state)
    except Exception:  # it has changed what we look with
        return True


def condemn(script):
    """Have a script be forked from now on, as long as it is as it is."""
    forked[script] = signature(script)
    records.pop(script, None)
