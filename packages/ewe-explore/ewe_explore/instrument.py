"""Instrumentation: insert a point for the scheduler before every access to an object that threads may share.

A thread may lose its turn between any two instructions of the interpreter. `self.count += 1` is three instructions:
read the attribute, add, write it back. To explore the switches in between, the explorer changes the source of the
student's program when it is imported. The changed program has the same meaning, and calls _at() at every place
where a switch matters:

    self.count += 1         _at(1, self).count += _at(2, 1)         1: before the read   2: before the write
    return self.items       return _at(3, self).items
    items.append(x)         _at(4, items).append(x)
    table[key] = value      _at(5, table)[key] = value
    while items:            while _at(6, items):                    if `items` is a list, a dict, a set, ...
    done = True             done = _at(7, True)                     if another function uses this `done`
    for n in table:         for n in _each(8, table):               if another function uses this `n`
    for n in table:         for n in _items(9, table):              a point before each item
    work(items)             _call(10, work)(items)                  a step if `work` has no points (calls.py)

_at() records the step, and the scheduler may run other lanes first. Then _at() returns its second argument. Local
variables get no point, because no other thread sees them. Accesses to immutable objects get no point, either.

The accesses are those of the source, not those of the bytecode. A schedule from Python 3.11 is therefore the same
schedule under 3.13, and a step has the name that the student wrote. (sys.settrace with f_trace_opcodes would see
more switches inside one expression, but the instructions differ between versions of Python.)

Two details. A point is before the access. If the arguments of a call have points themselves, the point of the call
is therefore around the last argument, so that a switch between the arguments and the call is possible. The same
holds for the index in `a[i]`, and for the right operand in `a + b`, which reads `a` after `b`. The second point of
a `+=` needs the object of the first one, which leaves it on a stack of the lane (Lane.pending).

What the explorer cannot see becomes a note of the run, and the report then claims nothing about all schedules. Most
notes are made at run time, by points.py and calls.py. This module knows some from the source: the steps of a key
function run in the middle of a sort, and a pattern of `match` reads an object several times.

Read next: points.py; modules.py, which imports the changed program.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterable
from types import CodeType
from typing import Any

from ewe_explore.calls import CALL_NAME, READING_METHODS
from ewe_explore.points import (
    EACH_NAME,
    HOLD_NAME,
    ITEMS_NAME,
    MODULE_NAMES,
    SHALLOW_VERBS,
    SOURCE_POINTS,
    ModuleNames,
    SourcePoint,
    Variable,
)
from ewe_explore.reach import AT_NAME

VERBS_OF_ACCESS: dict[type[ast.expr_context], str] = {
    ast.Load: "reads", ast.Store: "writes", ast.Del: "deletes",
}  # fmt: skip
# Builtin functions that read the contents of their arguments.
READING_FUNCTIONS = frozenset((
    "all", "any", "bool", "bytearray", "bytes", "dict", "enumerate", "filter", "frozenset", "iter", "len", "list",
    "map", "max", "min", "next", "print", "repr", "reversed", "set", "sorted", "str", "sum", "tuple", "zip",
))  # fmt: skip
# Methods that read the contents of their arguments.
METHODS_OF_CONTENTS = frozenset((
    "difference", "difference_update", "extend", "extendleft", "intersection", "intersection_update", "isdisjoint",
    "issubset", "issuperset", "join", "symmetric_difference", "symmetric_difference_update", "union", "update",
    "writelines",
    # Functions of the standard library, as in `random.choice(a)`
    "bisect", "bisect_left", "bisect_right", "chain", "choice", "choices", "deepcopy", "deque", "dumps", "nlargest",
    "nsmallest", "sample",
))  # fmt: skip
# Functions of the standard library that change the contents of their first argument, by their names in a call.
CHANGING_FUNCTIONS = frozenset((
    "heapify", "heappop", "heappush", "heappushpop", "heapreplace", "insort", "insort_left", "insort_right",
))  # fmt: skip


# Builtin functions that return a new object, or one that cannot change
RETURNS_NEW_OBJECT = READING_FUNCTIONS - {"filter", "iter", "map", "max", "min", "next"} | {
    "abs", "chr", "float", "format", "hash", "id", "int", "isinstance", "ord", "range", "round", "type",
}  # fmt: skip
STARTING_METHODS = frozenset(("start", "start_new_thread", "submit"))
# Methods of a class that an access to a container may call, in the middle of the access
IMPLICIT_METHODS = frozenset((
    "__eq__", "__ge__", "__gt__", "__hash__", "__le__", "__lt__", "__ne__", "__repr__", "__str__", "__iter__",
    "__next__", "__index__", "__len__", "__bool__",
))  # fmt: skip
MAX_TEXT_CHARS = 40  # of the source of a point, in the timeline
COMPILED: dict[str, tuple[str, CodeType]] = {}  # file -> its last source, and the code of this with points


def tests_locks(source: str) -> bool:
    """Return whether a program may observe that a lock is held: by locked(), or by an acquire() with arguments.

    Also if it stores such a method, since it may call it later. Raises SyntaxError.
    """
    tree = ast.parse(source)
    simple_calls = {
        id(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and not node.args and not node.keywords
    }
    return any(
        isinstance(node, ast.Attribute)
        and (node.attr == "locked" or (node.attr == "acquire" and id(node) not in simple_calls))
        for node in ast.walk(tree)
    )


def tests_ends(source: str) -> bool:
    """Return whether a program may observe that a thread has not ended: by is_alive(). Raises SyntaxError."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == "is_alive" for node in ast.walk(ast.parse(source))
    )


def compiled(source: str, file: str) -> CodeType:
    """Return the code of a module with its points. Raises SyntaxError.

    The source that was compiled last for this file is not compiled again. Its points would be added a second time,
    so SOURCE_POINTS would grow with each call of explore() in a notebook.
    """
    if (known := COMPILED.get(file)) is not None and known[0] == source:
        return known[1]
    tree = ast.parse(source, file)
    points = Points(file, tree)
    MODULE_NAMES[file] = ModuleNames(points.variables, read_by_nested_functions(tree))
    points.visit(tree)
    ast.fix_missing_locations(tree)
    code: CodeType = compile(tree, file, "exec", dont_inherit=True)
    COMPILED[file] = source, code
    return code


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def is_read(node: ast.Starred) -> bool:
    """Return whether `*a` reads `a`, as in a call; in `first, *a = values` it is assigned."""
    return isinstance(node.ctx, ast.Load)


def shared_names(tree: ast.AST) -> set[str]:
    """Return the names of variables that one function changes and another function uses.

    These are the names of `global` and `nonlocal` statements, and the variables that a function or the module
    assigns more than once and that a nested function uses.
    """
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global | ast.Nonlocal):
            found.update(node.names)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            found |= assigned_again(node) & read_by_nested_functions(node)
    return found


def assigned_again(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Module) -> set[str]:
    """Return the variables that a function assigns more than once, without its nested functions.

    An assignment in a loop counts as several, and so does the variable of a `for`. One after the start of a thread
    is enough: the thread may run before it.
    """
    counts: Counter[str] = Counter()
    nodes = list(nodes_of_function(function))
    loops = [node for node in nodes if isinstance(node, ast.For | ast.AsyncFor | ast.While)]
    starts = [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in STARTING_METHODS
    ]
    for node in [*nodes, *(inner for loop in loops for inner in nodes_of_function(loop))]:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            counts[node.id] += 2 if starts and node.lineno > min(starts) else 1
    return {name for name, count in counts.items() if count > 1}


def captured_names(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Module) -> set[str]:
    """Return the variables of a function, or of a module, that nested functions read."""
    found: set[str] = set()
    for node in (function, *nodes_of_function(function)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.update(each.asname or each.name.partition(".")[0] for each in node.names)
        definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        found.update(each.name for each in ast.iter_child_nodes(node) if isinstance(each, definitions))
    return found & read_by_nested_functions(function)


def own_names(tree: ast.Module) -> set[str]:
    """Return the names that a program gives to variables, parameters and functions; not those that it imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
    return found


def read_by_nested_functions(function: ast.AST) -> set[str]:
    """Return the names that nested functions of a function read."""
    found: set[str] = set()
    for node in ast.walk(function):
        if node is not function and isinstance(node, FUNCTIONS):
            for each in ast.walk(node):
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
                    found.add(each.id)
    return found


def nodes_of_function(function: ast.AST) -> Iterable[ast.AST]:
    """Yield the nodes of a function without those of its nested functions."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            yield child
            yield from nodes_of_function(child)


def may_be_shared(node: ast.expr) -> bool:
    """Return whether the value of an expression may be an object that other lanes know, too."""
    if isinstance(node, ast.Call):
        return not (isinstance(node.func, ast.Name) and node.func.id in RETURNS_NEW_OBJECT)
    return isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.IfExp | ast.NamedExpr | ast.Await)


def is_display(node: ast.expr) -> bool:
    """Return whether an expression makes a tuple or a list of values that may be shared, such as `(a, b)`.

    Python's reference calls such an expression a display.
    """
    return isinstance(node, ast.Tuple | ast.List) and any(
        may_be_shared(each) or is_display(each) or isinstance(each, ast.Starred) for each in node.elts
    )


def has_key_function(node: ast.Call) -> bool:
    """Return whether a call has an argument `key`, as sorted(a, key=f), or may have one (`**more`)."""
    return any(each.arg in ("key", None) for each in node.keywords)


def is_simple_pattern(pattern: ast.pattern) -> bool:
    """Return whether a pattern of `match` reads the object once at most: a constant, a name, `_`, `1 | 2`."""
    if isinstance(pattern, ast.MatchOr):
        return all(is_simple_pattern(each) for each in pattern.patterns)
    if isinstance(pattern, ast.MatchAs):
        return pattern.pattern is None or is_simple_pattern(pattern.pattern)
    return isinstance(pattern, ast.MatchValue | ast.MatchSingleton)


class Points(ast.NodeTransformer):
    """Adds the points of one file. tree: of its source.

    names: the variables that get points (shared_names()). captured: other variables of the function around the
    visited node that nested functions read (captured_names()). own_names: a function of this name may be the
    program's, and no builtin one.
    """

    def __init__(self, file: str, tree: ast.Module) -> None:
        self.file = file
        self.names = shared_names(tree)
        self.captured = captured_names(tree) - self.names
        self.own_names = own_names(tree)
        self.variables = {name: Variable(name) for name in self.names}
        self.is_lazy = False  # within a generator expression
        self.in_comparison = False  # within one of IMPLICIT_METHODS

    def add_point(
        self, node: ast.expr | ast.stmt, kind: str, name: str, verb: str, *, writes: bool, **more: Any
    ) -> int:
        """Add a point to SOURCE_POINTS; return its number.

        kind, name, verb, writes: the fields of SourcePoint, whose docstring lists the kinds. more: its other
        fields. The default of `text` is the source of the node.
        """
        text = more.pop("text", "") or ast.unparse(node)
        text = text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"
        more.setdefault("is_deep", verb not in SHALLOW_VERBS)
        point = SourcePoint(self.file, node.lineno, kind, text, name, writes, verb, **more)
        point.in_comparison = self.in_comparison
        SOURCE_POINTS.append(point)
        return len(SOURCE_POINTS) - 1

    def wrap(self, function: str, number: int, value: ast.expr | None, like: ast.AST) -> ast.expr:
        """Return the call `function(number, value)`; without the value if that is None.

        function: a name of calls.CALLED, such as AT_NAME. number: of the point. like: the node whose position in
        the source the call gets.
        """
        arguments: list[ast.expr] = [ast.Constant(number)]
        if value is not None:
            arguments.append(value)
        call = ast.Call(ast.Name(function, ast.Load()), arguments, [])
        return ast.copy_location(call, like)

    # Accesses

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Turn `a.b` into `_ewe_at(1, a).b`, for a read, a write and a `del`."""
        verb = VERBS_OF_ACCESS[type(node.ctx)]
        number = self.add_point(node, "attribute", node.attr, verb, writes=verb != "reads")
        value = self.visit(node.value)
        node.value = self.wrap(AT_NAME, number, value, node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Add the point of `a[i]`, for a read, a write and a `del`: at the container, or at the index.

        a[i]               _ewe_at(1, a)[i]
        a[self.i]          _ewe_hold(1, a)[_ewe_at(2, self.i)]          _ewe_at(2) gets `a` from Lane.pending

        The name of the point is "[]" for each index: the explorer takes all items of a container as one variable.
        """
        writes = not isinstance(node.ctx, ast.Load)
        verb = "removes" if isinstance(node.ctx, ast.Del) else "writes" if writes else "reads"
        records_after_index = self.is_index_with_steps(node.slice)
        number = self.add_point(node, "item", "[]", verb, writes=writes)
        if records_after_index:
            self.add_point(node, "item", "[]", verb, writes=writes, is_second=True)
        function = HOLD_NAME if records_after_index else AT_NAME
        node.value = self.wrap(function, number, self.visit(node.value), node)
        node.slice = self.visit(node.slice)
        if records_after_index:
            node.slice = self.wrap_index(number + 1, node.slice)
        return node

    def has_steps(self, node: ast.expr) -> bool:
        """Return whether other lanes may run while an expression is evaluated: it has points or calls functions."""
        return any(
            isinstance(each, ast.Attribute | ast.Subscript | ast.Call | ast.Starred)
            or (isinstance(each, ast.Name) and each.id in self.names)
            for each in ast.walk(node)
        )

    def is_index_with_steps(self, index: ast.expr) -> bool:
        """Return whether the point of an access goes to its index. A slice within a tuple is no expression."""
        has_slices = isinstance(index, ast.Tuple) and any(isinstance(each, ast.Slice) for each in index.elts)
        return self.has_steps(index) and not has_slices

    def wrap_index(self, number: int, index: ast.expr) -> ast.expr:
        """Return an index whose last part, in the order of evaluation, is in the call `_ewe_at(number, part)`."""
        if not isinstance(index, ast.Slice):
            return self.wrap(AT_NAME, number, index, index)
        if index.step is not None:
            index.step = self.wrap(AT_NAME, number, index.step, index.step)
        elif index.upper is not None:
            index.upper = self.wrap(AT_NAME, number, index.upper, index.upper)
        elif index.lower is not None:
            index.lower = self.wrap(AT_NAME, number, index.lower, index.lower)
        return index

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Turn the read of a shared variable `n` into `_ewe_at(1) or n`."""
        if node.id not in self.names or not isinstance(node.ctx, ast.Load):
            return node
        number = self.add_point(
            node, "name", node.id, "reads", writes=False, variable=self.variables[node.id]
        )
        return self.after_point(number, node)

    def after_point(self, number: int, value: ast.expr) -> ast.expr:
        """Return `_ewe_at(number) or value`. _ewe_at(number) returns None, and then `value` is evaluated."""
        either = ast.BoolOp(ast.Or(), [self.wrap(AT_NAME, number, None, value), value])
        return ast.copy_location(either, value)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Add the point of a method call, or of a function that reads or changes a container, such as len(a)."""
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        is_starred = any(isinstance(each, ast.Starred) for each in node.args)
        if name in CHANGING_FUNCTIONS - self.own_names and node.args and not is_starred:
            return self.changing_call(node)
        if isinstance(node.func, ast.Attribute):
            return self.method_call(node, node.func)
        is_reading = isinstance(node.func, ast.Name) and node.func.id in READING_FUNCTIONS - self.own_names
        # A call with a key also uses what its key uses, as max(a, key=b.pop) does: calls.py finds that
        if is_reading and not has_key_function(node):
            return self.reading_call(node)
        text = ast.unparse(node.func)
        self.generic_visit(node)
        return self.with_call_point(node, text)

    def with_call_point(self, node: ast.Call, text: str, kind: str = "function") -> ast.expr:
        """Turn `f(x)` into `_ewe_call(1, f)(x)`. text: the source of `f`. kind: "method" for `a.f`."""
        text = text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"
        number = self.add_point(node, kind, text, "calls", writes=True, text=f"{text}(…)")
        node.func = self.wrap(CALL_NAME, number, node.func, node.func)
        return node

    def reading_call(self, node: ast.Call) -> ast.expr:
        """Add the points of a builtin function that reads containers: at each argument, or at the last one.

        len(a)             len(_ewe_at(1, a))
        sum(a, self.b)     sum(_ewe_hold(1, a), _ewe_at(2, self.b))     _ewe_at(2) gets `a` from Lane.pending
        """
        text = ast.unparse(node)
        # next() takes an item out of an iterator
        writes = isinstance(node.func, ast.Name) and node.func.id == "next"
        others = [*node.args[1:], *(each.value for each in node.keywords)]
        if any(self.has_steps(each) for each in others):
            for number in reversed(self.hold_arguments(node, text, writes)):
                self.wrap_last_argument(node, number)
            return node
        node.args = [self.with_content_point(each, "calls", text=text, writes=writes) for each in node.args]
        node.keywords = [self.visit(each) for each in node.keywords]
        return node

    def hold_arguments(self, node: ast.Call, text: str, writes: bool) -> list[int]:
        """Store the arguments of a call that may be containers; return the numbers of their second points."""
        numbers: list[int] = []
        arguments: list[ast.expr] = []
        for each in node.args:
            if not (may_be_shared(each) or is_display(each)):
                arguments.append(self.visit(each))
                continue
            kind = "display" if is_display(each) else "content"
            number = self.add_point(each, kind, "[]", "calls", writes=writes, text=text)
            self.add_point(each, kind, "[]", "calls", writes=writes, text=text, is_second=True)
            arguments.append(self.wrap(HOLD_NAME, number, self.visit(each), each))
            numbers.append(number + 1)
        node.args = arguments
        node.keywords = [self.visit(each) for each in node.keywords]
        return numbers

    def wrap_last_argument(self, node: ast.Call, number: int) -> None:
        """Put a point around the last argument of a call, in the order of evaluation.

        The point of `*a` or `**a` is after the read of `a`: f(*a) becomes f(*_ewe_at(1, [*a])).
        """
        if node.keywords:
            keyword = node.keywords[-1]
            value = keyword.value
            if keyword.arg is None:
                value = ast.copy_location(ast.Dict([None], [value]), value)
            keyword.value = self.wrap(AT_NAME, number, value, keyword.value)
            return
        last = node.args[-1]
        if isinstance(last, ast.Starred):
            unpacked = ast.copy_location(ast.List([ast.Starred(last.value, ast.Load())], ast.Load()), last)
            last.value = self.wrap(AT_NAME, number, unpacked, last)
        else:
            node.args[-1] = self.wrap(AT_NAME, number, last, last)

    def changing_call(self, node: ast.Call) -> ast.expr:
        """Add the point of a call that changes a container: at the container, or at the last argument.

        heappop(a)         heappop(_ewe_at(1, a))
        heappush(a, x)     heappush(_ewe_hold(1, a), _ewe_at(2, x))     _ewe_at(2) gets `a` from Lane.pending
        """
        text = ast.unparse(node.func) + "(…)"
        container, *others = node.args
        number = self.add_point(node, "content", "[]", "calls", writes=True, text=text)
        # The second point needs the number after that of the first: by it, at() finds the stored container
        if others or node.keywords:
            unseen = f"the accesses of {text} between two calls of its key" if has_key_function(node) else ""
            self.add_point(
                node, "content", "[]", "calls", writes=True, text=text, is_second=True, unseen=unseen
            )
        node.func = self.visit(node.func)
        function = HOLD_NAME if others or node.keywords else AT_NAME
        node.args = [self.wrap(function, number, self.visit(container), container)]
        node.args += [self.visit(each) for each in others]
        node.keywords = [self.visit(each) for each in node.keywords]
        if others or node.keywords:
            self.wrap_last_argument(node, number + 1)
        return node

    def method_call(self, node: ast.Call, function: ast.Attribute) -> ast.expr:
        """Add the point of `object.method(arguments)`: at the object, or at the last argument.

        a.clear()          _ewe_at(1, a).clear()
        a.append(f(x))     _ewe_hold(1, a).append(_ewe_at(2, f(x)))     _ewe_at(2) gets `a` from Lane.pending
        """
        text = ast.unparse(function) + ("(…)" if node.args or node.keywords else "()")
        writes = function.attr not in READING_METHODS
        reads_contents = function.attr in METHODS_OF_CONTENTS
        # The contents of a container are read by a point, too, so its name is no simple argument then
        has_simple_arguments = not node.keywords and all(
            isinstance(each, ast.Constant)
            or (isinstance(each, ast.Name) and each.id not in self.names and not reads_contents)
            for each in node.args
        )
        # Arguments that have points run first: the call is recorded after them, in the last argument.
        records_after_arguments = not has_simple_arguments
        number = self.add_point(node, "call", function.attr, "calls", writes=writes, text=text)
        unseen = f"the accesses of {text} between two calls of its key" if has_key_function(node) else ""
        if records_after_arguments:
            self.add_point(
                node, "call", function.attr, "calls", writes=writes, text=text, is_second=True, unseen=unseen
            )
        name = ast.unparse(function)
        value = self.visit(function.value)
        function.value = self.wrap(HOLD_NAME if records_after_arguments else AT_NAME, number, value, function)
        node.args = [
            self.with_content_point(each, "reads") if reads_contents else self.visit(each)
            for each in node.args
        ]
        node.keywords = [self.visit(each) for each in node.keywords]
        if records_after_arguments:
            self.wrap_last_argument(node, number + 1)
        return self.with_call_point(node, name, "method")

    # Tests, loops and operators: they read the contents of containers

    def with_content_point(
        self,
        node: ast.expr,
        verb: str = "tests",
        *,
        text: str = "",
        writes: bool = False,
        unseen: str = "",
        is_deep: bool | None = None,
    ) -> ast.expr:
        """Return an expression with a point. The point takes effect only if the value is a container.

        text: of the step; the expression without one. writes: the step changes the container. unseen: what the
        explorer cannot see of it. is_deep: whether it reads the containers within, too; None: the verb says it.
        """
        deep = verb not in SHALLOW_VERBS if is_deep is None else is_deep
        shows_values = deep and is_display(node)
        is_value_of_test = isinstance(node, ast.BoolOp) and verb != "tests"  # a test has points at its parts
        if not (may_be_shared(node) or shows_values or is_value_of_test):
            visited: ast.expr = self.visit(node)
            return visited
        kind = "display" if shows_values else "content"
        number = self.add_point(node, kind, "[]", verb, writes=writes, text=text, unseen=unseen, is_deep=deep)
        return self.wrap(AT_NAME, number, self.visit(node), node)

    def with_item_points(self, node: ast.expr, target: ast.expr) -> ast.expr:
        """Return the container of a loop with a point before it, and one before each further item.

        target: the variables of the loop. `for a, b in pairs` also reads the container that each item is.
        """
        is_deep = isinstance(target, ast.Tuple | ast.List)
        text = ast.unparse(node)
        first = self.with_content_point(node, "goes through", is_deep=is_deep)
        if isinstance(node, ast.Constant | ast.Tuple | ast.List | ast.ListComp):
            return first  # a new object, which no other lane knows
        number = self.add_point(
            node,
            "content",
            "[]",
            "goes through",
            writes=False,
            text=text,
            is_deep=is_deep,
            is_lazy=self.is_lazy,
        )
        return self.wrap(ITEMS_NAME, number, first, node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """Add a point to `not a` and `+a`, which read the container `a`."""
        node.operand = self.with_content_point(node.operand)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Add points to `a + b`; those of the container `a` are around `b` if `b` has steps."""
        left, right = node.left, node.right
        node.right = self.with_content_point(right, "reads")
        if self.is_read_after(left, right):
            node.left, node.right = self.hold_left_operand(left, node.right, "reads")
        else:
            node.left = self.with_content_point(left, "reads")
        return node

    def is_read_after(self, left: ast.expr, right: ast.expr) -> bool:
        """Return whether an operator reads the container `left` after other lanes may have run, within `right`."""
        return (may_be_shared(left) or is_display(left)) and self.has_steps(right)

    def hold_left_operand(self, left: ast.expr, right: ast.expr, verb: str) -> tuple[ast.expr, ast.expr]:
        """Return both operands with the point of the left one around the right one. The right one has its points.

        a + b.c            _ewe_hold(1, a) + _ewe_at(2, b.c)            _ewe_at(2) gets `a` from Lane.pending
        """
        kind = "display" if is_display(left) else "content"
        number = self.add_point(left, kind, "[]", verb, writes=False)
        self.add_point(left, kind, "[]", verb, writes=False, is_second=True)
        held = self.wrap(HOLD_NAME, number, self.visit(left), left)
        return held, self.wrap(AT_NAME, number + 1, right, right)

    def visit_Starred(self, node: ast.Starred) -> ast.expr:
        """Add a point to `[*a]` and `f(*a)`."""
        node.value = (
            self.with_content_point(node.value, "unpacks") if is_read(node) else self.visit(node.value)
        )
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.expr:
        """Turn `{**a}` into `{**_ewe_at(1, a)}`: in the syntax tree, a value without a key is unpacked."""
        values = zip(node.keys, node.values, strict=True)
        node.values = [
            self.with_content_point(value, "unpacks") if key is None else self.visit(value)
            for key, value in values
        ]
        node.keys = [key if key is None else self.visit(key) for key in node.keys]
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        """Add a point to `f(**a)`."""
        node.value = (
            self.with_content_point(node.value, "unpacks") if node.arg is None else self.visit(node.value)
        )
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.expr:
        """Add a point to `f"{a}"`."""
        node.value = self.with_content_point(node.value, "reads")
        node.format_spec = self.visit(node.format_spec) if node.format_spec is not None else None
        return node

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.expr:
        """Add a point to `yield from a`. The reads of the further items have none."""
        unseen = f"the accesses of yield from {ast.unparse(node.value)} to the further items"
        node.value = self.with_content_point(node.value, "goes through", unseen=unseen)
        return node

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.expr:
        """Add the points of `(f(a) for a in b)`, whose items are read when they are needed."""
        before, self.is_lazy = self.is_lazy, True
        node.generators = [self.visit(each) for each in node.generators]
        self.is_lazy = before
        node.elt = self.visit(node.elt)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        """Add points to `for x in a if b`, within brackets."""
        if node.is_async:
            node.iter = self.visit(node.iter)
        else:
            node.iter = self.with_item_points(node.iter, node.target)
        node.target = self.visit(node.target)
        node.ifs = [self.with_content_point(each) for each in node.ifs]
        return node

    def visit_Match(self, node: ast.Match) -> ast.stmt:
        """Add a point if `match a` reads a container. The reads within a pattern have none."""
        if all(is_simple_pattern(each.pattern) for each in node.cases):
            node.subject = self.with_content_point(node.subject)
        else:
            number = self.add_point(node.subject, "match", "[]", "tests", writes=False)
            node.subject = self.wrap(AT_NAME, number, self.visit(node.subject), node.subject)
        node.subject = self.with_points_of_patterns(node)
        node.cases = [self.visit(each) for each in node.cases]
        return node

    def with_points_of_patterns(self, node: ast.Match) -> ast.expr:
        """Return the subject of `match`, with the points of the attributes that its patterns read.

        match a: case b.c: ...          match (a, _ewe_at(1, b))[0]: case b.c: ...
        """
        values = (
            each.value
            for case in node.cases
            for each in ast.walk(case.pattern)
            if isinstance(each, ast.MatchValue)
        )
        reads: list[ast.expr] = [
            self.wrap(
                AT_NAME,
                self.add_point(each, "attribute", each.attr, "reads", writes=False),
                self.visit(copy.deepcopy(each.value)),
                each,
            )
            for each in values
            if isinstance(each, ast.Attribute)
        ]
        if not reads:
            return node.subject
        both = ast.Tuple([node.subject, *reads], ast.Load())
        return ast.copy_location(ast.Subscript(both, ast.Constant(0), ast.Load()), node.subject)

    def visit_If(self, node: ast.If | ast.While) -> ast.stmt:
        """Add a point if the test reads a container, and the points of both branches, or of the loop."""
        node.test = self.with_content_point(node.test)
        node.body = self.block(node.body)
        node.orelse = self.block(node.orelse)
        return node

    visit_While = visit_If

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        """Add a point if the test reads a container, and the points of the message."""
        node.test = self.with_content_point(node.test)
        if node.msg is not None:
            node.msg = self.visit(node.msg)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """Add a point if the test of `a if test else b` reads a container."""
        node.test = self.with_content_point(node.test)
        node.body = self.visit(node.body)
        node.orelse = self.visit(node.orelse)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        node.values = [self.with_content_point(each) for each in node.values]
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Add points to comparisons: `x in a` and `a == b` read the containers `a` and `b`, `a is b` does not."""
        first, *_ = node.ops
        of_contents = not isinstance(first, ast.Is | ast.IsNot | ast.In | ast.NotIn)
        held = of_contents and self.is_read_after(node.left, node.comparators[0])
        left = node.left
        if not held:
            node.left = self.with_content_point(left, "compares") if of_contents else self.visit(left)
        comparators = []
        unseen = ""
        if len(node.ops) > 1 and any(self.has_steps(each) for each in node.comparators[1:]):
            unseen = f"the second reads of {ast.unparse(node)}"
        for op, each in zip(node.ops, node.comparators, strict=True):
            verb = "looks into" if isinstance(op, ast.In | ast.NotIn) else "compares"
            comparators.append(
                self.visit(each)
                if isinstance(op, ast.Is | ast.IsNot)
                else self.with_content_point(each, verb, unseen=unseen)
            )
        node.comparators = comparators
        if held:
            node.left, comparators[0] = self.hold_left_operand(left, comparators[0], "compares")
        return node

    def visit_For(self, node: ast.For) -> ast.stmt:
        """Add the points of `for x in a`: the loop reads the container `a`, and assigns `x`, which may be shared.

        for x in a:        for x in _ewe_each(1, _ewe_items(2, _ewe_at(3, a))):
        """
        points_of_target = self.add_points_of_target(node.target)
        node.iter = self.with_item_points(node.iter, node.target)
        node.target = self.visit(node.target)
        for number in points_of_target:
            node.iter = self.wrap(EACH_NAME, number, node.iter, node.iter)
        node.body = self.block(node.body)
        node.orelse = self.block(node.orelse)
        return node

    def visit_With(self, node: ast.With) -> ast.stmt:
        """Add the points of `with a as x`. The point of a shared `x` is before `a`."""
        for item in node.items:
            numbers = self.add_points_of_target(item.optional_vars) if item.optional_vars is not None else []
            item.context_expr = self.visit(item.context_expr)
            for number in numbers:
                item.context_expr = self.after_point(number, item.context_expr)
            item.optional_vars = self.visit(item.optional_vars) if item.optional_vars is not None else None
        node.body = self.block(node.body)
        return node

    def add_points_of_target(self, target: ast.expr) -> list[int]:
        """Add a point for each shared variable that a `for` or a `with` assigns; return the points' numbers."""
        return [
            self.add_point(name, "name", name.id, "writes", writes=True, variable=self.variables[name.id])
            for name in ast.walk(target)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store) and name.id in self.names
        ]

    # Assignments

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        """Turn `n = value`, for a shared variable `n`, into `n = _ewe_at(1, value)`."""
        unpacks = any(isinstance(target, ast.Tuple | ast.List) for target in node.targets)
        is_deep = any(
            isinstance(each, ast.Tuple | ast.List | ast.Starred)
            for target in node.targets
            if isinstance(target, ast.Tuple | ast.List)
            for each in target.elts
        )
        value = (
            self.with_content_point(node.value, "unpacks", is_deep=is_deep)
            if unpacks
            else self.visit(node.value)
        )
        node.value = self.with_store_points(value, node.targets)
        node.targets = [self.visit(each) for each in node.targets]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        """Add the points of `n: type = value`; leave `n: type` without a point."""
        if node.value is not None:
            node.value = self.with_store_points(self.visit(node.value), [node.target])
        node.target = self.visit(node.target) if node.value is not None else node.target
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        node.value = self.with_store_points(self.visit(node.value), [node.target])
        return node

    def with_store_points(self, value: ast.expr, targets: list[ast.expr]) -> ast.expr:
        """Return the value of an assignment, with a point for each shared variable that it is stored in."""
        for target in targets:
            for name in ast.walk(target):
                if not isinstance(name, ast.Name) or not isinstance(name.ctx, ast.Store):
                    continue
                if name.id in self.captured:
                    number = self.add_point(name, "late", name.id, "writes", writes=True)
                    value = self.wrap(AT_NAME, number, value, value)
                if name.id in self.names:
                    variable = self.variables[name.id]
                    number = self.add_point(name, "name", name.id, "writes", writes=True, variable=variable)
                    value = self.wrap(AT_NAME, number, value, value)
        return value

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt | list[ast.stmt]:
        """Add two points to `target += value`: before the read, and before the write.

        name += value      _at(2); name += _at(1, value)       the point of the write gets its number first
        a.b += value       _at(1, a).b += _at(2, value)        _at(2) gets `a` from Lane.pending
        a[i] += value      _at(1, a)[i] += _at(2, value)       the same
        a[b.i] += value    _hold(1, a)[_at(2, b.i)] += _at(3, value)     each _at() gets `a` from Lane.pending
        """
        target = node.target
        value = self.with_content_point(node.value, "reads")
        if isinstance(target, ast.Name):
            node.value = self.with_store_points(value, [target])
            if target.id not in self.names:
                return self.changed_container(node, target)
            number = self.add_point(
                target, "name", target.id, "reads", writes=False, variable=self.variables[target.id]
            )
            # A name cannot hold a call, as `a` in `a.b` can: the point of the read is a statement before
            point_of_read = ast.Expr(self.wrap(AT_NAME, number, None, node))
            changed = self.changed_container(node, target)
            statements = changed if isinstance(changed, list) else [changed]
            return [ast.copy_location(point_of_read, node), *statements]
        kind = "attribute" if isinstance(target, ast.Attribute) else "item"
        name = target.attr if isinstance(target, ast.Attribute) else "[]"
        reads_after_index = isinstance(target, ast.Subscript) and self.is_index_with_steps(target.slice)
        # Each point that finds a stored object needs the number after that of the point which has stored it
        first = len(SOURCE_POINTS)
        if reads_after_index:
            self.add_point(target, kind, name, "reads", writes=False)
        read = self.add_point(
            target, kind, name, "reads", writes=False, is_second=reads_after_index, stores_object=True
        )
        self.add_point(target, kind, name, "writes", writes=True, is_second=True)
        function = HOLD_NAME if reads_after_index else AT_NAME
        target.value = self.wrap(function, first, self.visit(target.value), target)
        if isinstance(target, ast.Subscript):
            target.slice = self.visit(target.slice)
            if reads_after_index:
                target.slice = self.wrap_index(read, target.slice)
        node.value = self.wrap(AT_NAME, read + 1, value, value)
        return node

    def changed_container(self, node: ast.AugAssign, name: ast.Name) -> ast.stmt | list[ast.stmt]:
        """Add the point of `a += value`, which changes a container `a` in place. A number has no point.

        a += value         _ewe_hold(1, a); a += _ewe_at(2, value)      _ewe_at(2) gets `a` from Lane.pending
        """
        if isinstance(node.value, ast.Constant):  # no container can be extended by a constant number
            return node
        number = self.add_point(name, "content", "[]", "writes", writes=True)
        self.add_point(name, "content", "[]", "writes", writes=True, is_second=True)
        object_of_target = ast.copy_location(ast.Name(name.id, ast.Load()), name)
        stores = ast.Expr(self.wrap(HOLD_NAME, number, object_of_target, node))
        node.value = self.wrap(AT_NAME, number + 1, node.value, node.value)
        return [ast.copy_location(stores, node), node]

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Return statements with their points."""
        found: list[ast.stmt] = []
        for statement in statements:
            visited = self.visit(statement)
            found.extend(visited if isinstance(visited, list) else [visited])
        return found

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.ExceptHandler:
        """Add the points of `except`. The name of `except ... as name` is assigned without one: note that."""
        node.type = self.visit(node.type) if node.type is not None else None
        name = node.name or ""
        node.body = [*self.notes_of_late_names([name], node.body[0]), *self.block(node.body)]
        return node

    def notes_of_late_names(self, names: Iterable[str], like: ast.stmt) -> list[ast.stmt]:
        """Return statements that note the names, among the given ones, which other functions may use."""
        numbers = [
            self.add_point(like, "late", name, "writes", writes=True, text=name)
            for name in names
            if name in self.names or name in self.captured
        ]
        return [
            ast.copy_location(ast.Expr(self.wrap(AT_NAME, number, None, like)), like) for number in numbers
        ]

    # Without points: annotations, patterns, types

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return node

    def points_before(self, names: list[str], node: ast.stmt) -> list[ast.stmt]:
        """Return a statement with a point for each shared variable that `node` binds or removes."""
        numbers = [
            self.add_point(
                node, "name", name, "writes", writes=True, text=name, variable=self.variables[name]
            )
            for name in names
            if name in self.names
        ]
        points: list[ast.stmt] = [
            ast.copy_location(ast.Expr(self.wrap(AT_NAME, number, None, node)), node) for number in numbers
        ]
        return [*points, *self.notes_of_late_names((name for name in names if name not in self.names), node)]

    def visit_Delete(self, node: ast.Delete) -> list[ast.stmt]:
        """Add the points of `del`: a statement before it for each shared variable."""
        points = self.points_before([each.id for each in node.targets if isinstance(each, ast.Name)], node)
        node.targets = [self.visit(each) for each in node.targets]
        return [*points, node]

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> list[ast.stmt]:
        """Add a point for each shared variable that an import assigns: a statement before it."""
        names = [each.asname or each.name.partition(".")[0] for each in node.names]
        is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        return [node] if is_future else [*self.points_before(names, node), node]

    visit_ImportFrom = visit_Import

    def visit_ClassDef(self, node: ast.ClassDef) -> list[ast.stmt]:
        """Add the points of a class. The point of its name, if that is shared, is a statement before it."""
        points = self.points_before([node.name], node)
        self.generic_visit(node)
        return [*points, node]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> list[ast.stmt]:
        """Add the points of a function, but none to its return annotation; a point for its name if it is shared."""
        points = self.points_before([node.name], node)
        node.decorator_list = [self.visit(each) for each in node.decorator_list]
        node.args = self.visit(node.args)  # the default values; visit_arg() leaves the annotations
        before = self.in_comparison, self.captured
        self.in_comparison = node.name in IMPLICIT_METHODS
        self.captured = captured_names(node) - self.names
        node.body = self.block(node.body)
        self.in_comparison, self.captured = before
        return [*points, node]

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.stmt:
        node.args = self.visit(node.args)  # the default values; visit_arg() leaves the annotations
        node.body = self.block(node.body)
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.match_case:
        """Add the points of a case, but none to its pattern."""
        names = [
            name
            for each in ast.walk(node.pattern)
            for name in (getattr(each, "name", None), getattr(each, "rest", None))
            if name is not None
        ]
        if node.guard is not None:
            node.guard = self.with_content_point(node.guard)
        node.body = [*self.notes_of_late_names(names, node.body[0]), *self.block(node.body)]
        return node

    def visit_TypeAlias(self, node: ast.stmt) -> ast.stmt:
        return node
