"""What a run has changed of the modules that stay loaded, for python_isolation.py.

python_isolation.py lets the Python engine run a script if its source is known to change nothing that lasts. This
file looks afterwards, for what the source did not show. variables_of() notes, before the run, the variables of the
modules that a script names. finds_change() compares them after it. The engine was clean before that run, so the
answer is right in either case.

A module may change its own variables: a cache that it fills, or a part of it that was loaded. Two changes count:
a variable that none of the module's functions sets, and a table of another length. To compare all modules takes
longer than most scripts run. The engine does that for a script's first runs, and then compares one module a run.
"""

import ast
import sys

import python_code
from python_code import is_standard, loaded

__builtins__ = vars(python_code)["__builtins__"]
ALL_RUNS = 8  # of a script, after which all modules are compared; later it is one in turn
TABLES = dict, list, set
RESTORED = {"builtins", "sys"}  # modules whose variables the engine makes as they were


def variables_of(names, state):
    """Return the values of the variables of modules, and how long their tables are."""
    found = []
    for name in sorted(names - RESTORED - state.RESETS.keys()):
        module = state.known_modules.get(name)
        if module is not None:
            values = list(vars(module).values())
            tables = [
                each
                for variable, each in vars(module).items()
                if type(each) in TABLES and "cache" not in variable.lower() and variable != "__builtins__"
            ]
            found.append((module, values, tables, list(map(len, tables))))
    return found


def finds_change(record, state):
    """Compare what a script could reach with what it was before. record: a Record, None if the script has none."""
    if record is None:
        return bool(loaded)
    if sys.path[1:] != state.LISTS[0][1]:
        return True
    for name, file in loaded:
        if file not in record.files or name.partition(".")[0] in sys.stdlib_module_names:
            return True
    if record.count != len(state.known_modules):
        new = list(state.known_modules.items())[record.count :]
        if not all(from_library(name, module) for name, module in new):
            return True
    before, record.runs = record.before, record.runs + 1
    if before and record.runs > ALL_RUNS:
        before = (before[record.runs % len(before)],)
    for module, values, tables, lengths in before:
        if list(map(len, tables)) != lengths:
            return True
        if not state.same(list(vars(module).values()), values):
            record.before = None  # for the next run
            if changed(module, values):
                return True
    return False


def from_library(name, module):
    """Is a module of Python's own library? Some of its modules have no file."""
    file = getattr(module, "__file__", None)
    return name.partition(".")[0] in sys.stdlib_module_names and (file is None or is_standard(file))


def changed(module, before):
    """Has another than the module itself changed its variables? Its parts, once loaded, become variables, too."""
    known = set(map(id, before))
    own = names_set_by(module)
    return any(
        id(value) not in known
        and name not in own
        and sys.modules.get(f"{module.__name__}.{name}") is not value
        for name, value in vars(module).items()
    )


def names_set_by(module):
    """Return the names of a module's variables that its own functions set."""
    try:
        with open(module.__file__, "rb") as source:
            tree = ast.parse(source.read())
    except (OSError, AttributeError, TypeError, SyntaxError, ValueError):
        return set()
    return {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
