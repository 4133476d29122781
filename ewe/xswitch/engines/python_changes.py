"""Finds changes that a run has made to the modules that stay loaded, for python_isolation.py.

python_isolation.py lets the Python engine run a script if its source is known to change nothing that lasts. This
file checks after the run for changes that the source did not show. Before the run, snapshots_of() notes the
variables of the modules that a script names. After it, finds_change() compares them. The engine was clean before
that run, so the answer is right in either case.

A module may change its own variables: it fills a cache, or gets a loaded submodule. Two changes count: a variable
that none of the module's functions sets, and a table of another length. To compare all modules takes longer than
most scripts run. The engine compares all of them after a script's first runs, and later one module after each run.
"""

import ast
import sys

import python_code
from python_code import is_standard, loaded_own_modules

__builtins__ = vars(python_code)["__builtins__"]
ALL_RUNS = 8  # runs of a script after which all modules are compared; after a later run it is one in turn
TABLE_TYPES = dict, list, set
RESTORED_MODULES = {"builtins", "sys"}  # modules whose variables the engine restores


class ModuleSnapshot:
    """The values of a module's variables before a run, and the tables among them with their lengths."""

    def __init__(self, module):
        self.module = module
        self.values = list(vars(module).values())
        self.tables = [
            value
            for variable, value in vars(module).items()
            if type(value) in TABLE_TYPES
            and "cache" not in variable.lower()  # a cache may grow
            and variable != "__builtins__"
        ]
        self.table_lengths = list(map(len, self.tables))


def snapshots_of(names, state):
    """Return the snapshots of modules, except those that are not loaded, or that the engine restores.

    names: of the modules. state: the module python_state.
    """
    modules = map(state.known_modules.get, sorted(names - RESTORED_MODULES - state.RESETS.keys()))
    return [ModuleSnapshot(module) for module in modules if module is not None]


def finds_change(analysis, state):
    """Return whether modules that a script could reach have changed since snapshots_of(), before its run.

    Count the run in the analysis. analysis: the script's ScriptAnalysis, None if it has none. state: the module
    python_state.
    """
    if analysis is None:
        return bool(loaded_own_modules)
    _, search_path_before = state.PATH_LISTS[0]
    if sys.path[1:] != search_path_before:  # [1:]: without the script's directory
        return True
    for name, file in loaded_own_modules:
        if file not in analysis.files or name.partition(".")[0] in sys.stdlib_module_names:
            return True
    # known_modules is in the order of loading: those that the run has loaded come last
    if analysis.compared_count != len(state.known_modules):
        new_modules = list(state.known_modules.items())[analysis.compared_count :]
        if not all(is_from_library(name, module) for name, module in new_modules):
            return True
    analysis.run_count += 1
    snapshots = analysis.snapshots
    if snapshots and analysis.run_count > ALL_RUNS:
        snapshots = (snapshots[analysis.run_count % len(snapshots)],)  # one module, in turn
    for before in snapshots:
        if list(map(len, before.tables)) != before.table_lengths:
            return True
        if not state.have_equal_items(list(vars(before.module).values()), before.values):
            analysis.snapshots = None  # they are made again before the next run
            if has_foreign_changes(before.module, before.values):
                return True
    return False


def is_from_library(name, module):
    """Return whether this is a module of Python's own library. Some of its modules have no file."""
    file = getattr(module, "__file__", None)
    return name.partition(".")[0] in sys.stdlib_module_names and (file is None or is_standard(file))


def has_foreign_changes(module, values_before):
    """Return whether a variable was changed by anything but the module itself.

    values_before: values of its variables before the run. A loaded submodule becomes a variable of its package,
    too.
    """
    ids_before = set(map(id, values_before))
    own_names = names_set_by(module)
    return any(
        id(value) not in ids_before
        and name not in own_names
        and sys.modules.get(f"{module.__name__}.{name}") is not value
        for name, value in vars(module).items()
    )


def names_set_by(module):
    """Return the names of a module's variables that its own functions set: those in its `global` statements."""
    try:
        with open(module.__file__, "rb") as source:
            tree = ast.parse(source.read())
    except (OSError, AttributeError, TypeError, SyntaxError, ValueError):
        return set()
    return {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
