"""Instrumentation: puts a point for the scheduler before every access to something that threads may share.

A thread may lose its turn between any two instructions of the interpreter. `self.count += 1` is three of them:
read the attribute, add, write it back. To explore what happens in between, the source of the student's program is
changed when it is imported. The changed program means the same, and calls _at() at every place where a switch
matters:

    self.count += 1         _at(1, self).count += _at(2, 1)         1: before the read   2: before the write
    return self.items       return _at(3, self).items
    items.append(x)         _at(4, items).append(x)
    table[key] = value      _at(5, table)[key] = value
    while items:            while _at(6, items):                    if `items` is a list, a dict, a set, ...
    done = True             done = _at(7, True)                     if another function uses this `done`

_at() returns its second argument. Before that it records the step, and the scheduler may run other lanes first.
Local variables get no point, since no other thread sees them. Neither do accesses whose object cannot be changed.

The accesses are those of the source and not those of the bytecode: a schedule that was found under Python 3.11 is
the same schedule under 3.13, and a step has the name that the student wrote. (sys.settrace with f_trace_opcodes
would see more switches inside one expression, and each version of Python has other instructions.)

What can go wrong: a point is before the access. Where the arguments of a call have points themselves, the point of
the call stands around the last argument, so that a switch between the arguments and the call is possible, too. A
`+=` needs its object at its second point: the first one leaves it on a stack of the lane (Lane.pending).

Read next: modules.py, which imports the changed program; scheduler.py.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType, FrameType, ModuleType
from typing import Any

from ewe_explore.scheduler import ACTIVE, Step

AT = "_ewe_at"
HOLD = "_ewe_hold"
CONTAINERS = (list, dict, set, deque, bytearray, OrderedDict, defaultdict, Counter)
FIXED = (int, float, complex, str, bytes, bool, tuple, frozenset, range, slice, type(None), ModuleType, type)
# Methods of containers that change nothing.
READERS = frozenset(
    {
        "copy",
        "count",
        "get",
        "index",
        "items",
        "keys",
        "values",
        "issubset",
        "issuperset",
        "isdisjoint",
        "union",
    }
)
# Builtin functions that look into their first argument.
LOOKS = frozenset(
    {
        "all",
        "any",
        "dict",
        "enumerate",
        "iter",
        "len",
        "list",
        "max",
        "min",
        "next",
        "reversed",
        "set",
        "sorted",
    }
    | {"sum", "tuple"}
)


class Variable:
    """Stands for a variable of a function or a module that several functions use. frame: where it was seen last."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frame: FrameType | None = None


@dataclass(slots=True)
class Site:
    """A place in the source with a point. kind: attribute, item, content, call, name.

    late: this is the second point of an access, whose object HOLD or the first point has put aside.
    holds: put the object aside for the second point.
    """

    file: str
    line: int
    kind: str
    text: str
    name: str
    writes: bool
    verb: str
    variable: Variable | None = None
    late: bool = False
    holds: bool = False


SITES: list[Site] = []


def at(number: int, value: Any = None) -> Any:
    """Be a point: record the access that comes next, and return `value`."""
    if not ACTIVE:
        return value
    run = ACTIVE[-1]
    if run.inside_invariant:
        return value
    site = SITES[number]
    kind = site.kind
    target = value
    attribute: str | None = None
    if site.late:
        pending = run.current.pending
        while pending and pending[-1][0] != number:
            pending.pop()
        if not pending:
            return value
        target = pending.pop()[1]
    if kind == "name":
        target = site.variable
        attribute = site.name
        if run.detailed and site.variable is not None:
            site.variable.frame = sys._getframe(1)
    elif isinstance(target, FIXED) or getattr(type(target), "controlled", False) is True:
        if not (kind == "attribute" and isinstance(target, type)):
            return value
        attribute = site.name
    elif kind == "attribute":
        attribute = site.name
    else:
        if kind != "item" and not isinstance(target, CONTAINERS):
            return value
        attribute = "[]"
    run.point(
        Step(
            run.current.number,
            "write" if site.writes else "read",
            site.verb,
            site.text,
            target,
            attribute,
            site.writes,
            site.file,
            site.line,
        )
    )
    if site.holds:
        run.current.pending.append((number + 1, target))
    return value


def hold(number: int, value: Any) -> Any:
    """Put the object of a call aside until its arguments are known; return it."""
    if ACTIVE:
        ACTIVE[-1].current.pending.append((number + 1, value))
    return value


def compiled(source: str, file: str) -> CodeType:
    """Return the code of a module with its points. Raises SyntaxError."""
    tree = ast.parse(source, file)
    Points(file, shared_names(tree)).visit(tree)
    ast.fix_missing_locations(tree)
    code: CodeType = compile(tree, file, "exec", dont_inherit=True)
    return code


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def shared_names(tree: ast.AST) -> set[str]:
    """Return the names of variables that one function changes and another uses.

    These are the names of `global` and `nonlocal` statements, and the variables of a function that it assigns more
    than once and that a function inside it uses.
    """
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global | ast.Nonlocal):
            found.update(node.names)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found |= reassigned(node) & used_inside(node)
    return found


def reassigned(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the variables that a function itself assigns more than once."""
    counts: Counter[str] = Counter()
    for node in own_nodes(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            counts[node.id] += 1
    return {name for name, count in counts.items() if count > 1}


def used_inside(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names that functions inside a function read."""
    found: set[str] = set()
    for node in ast.walk(function):
        if node is not function and isinstance(node, FUNCTIONS):
            for each in ast.walk(node):
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
                    found.add(each.id)
    return found


def own_nodes(function: ast.AST) -> Iterable[ast.AST]:
    """Yield the nodes of a function without those of the functions inside it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            yield child
            yield from own_nodes(child)


class Points(ast.NodeTransformer):
    """Adds the points of one file."""

    def __init__(self, file: str, names: set[str]) -> None:
        self.file = file
        self.names = names
        self.variables = {name: Variable(name) for name in names}

    def site(
        self, node: ast.expr | ast.stmt, kind: str, name: str, verb: str, writes: bool, **more: Any
    ) -> int:
        """Add a site; return its number. The text is the source of the node."""
        text = more.pop("text", "") or ast.unparse(node)
        text = text if len(text) <= 40 else text[:39] + "…"
        SITES.append(Site(self.file, node.lineno, kind, text, name, writes, verb, **more))
        return len(SITES) - 1

    def wrap(self, function: str, number: int, value: ast.expr | None, like: ast.AST) -> ast.expr:
        """Return a call of AT or HOLD around a value."""
        arguments: list[ast.expr] = [ast.Constant(number)]
        if value is not None:
            arguments.append(value)
        call = ast.Call(ast.Name(function, ast.Load()), arguments, [])
        return ast.copy_location(call, like)

    # Accesses

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        writes = not isinstance(node.ctx, ast.Load)
        number = self.site(node, "attribute", node.attr, "writes" if writes else "reads", writes)
        value = self.visit(node.value)
        node.value = self.wrap(AT, number, value, node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        writes = not isinstance(node.ctx, ast.Load)
        verb = "removes" if isinstance(node.ctx, ast.Del) else "writes" if writes else "reads"
        number = self.site(node, "item", "[]", verb, writes)
        node.value = self.wrap(AT, number, self.visit(node.value), node)
        node.slice = self.visit(node.slice)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.names or not isinstance(node.ctx, ast.Load):
            return node
        number = self.site(node, "name", node.id, "reads", False, variable=self.variables[node.id])
        either = ast.BoolOp(ast.Or(), [self.wrap(AT, number, None, node), node])
        return ast.copy_location(either, node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if isinstance(node.func, ast.Attribute):
            return self.method_call(node, node.func)
        if isinstance(node.func, ast.Name) and node.func.id in LOOKS and node.args:
            first = node.args[0]
            if isinstance(first, ast.Name | ast.Attribute | ast.Subscript):
                number = self.site(node, "content", "[]", "calls", node.func.id == "next")
                node.args[0] = self.wrap(AT, number, self.visit(first), first)
                node.args[1:] = [self.visit(each) for each in node.args[1:]]
                node.keywords = [self.visit(each) for each in node.keywords]
                return node
        self.generic_visit(node)
        return node

    def method_call(self, node: ast.Call, function: ast.Attribute) -> ast.expr:
        """Add the point of `object.method(arguments)`."""
        text = ast.unparse(function) + ("(…)" if node.args or node.keywords else "()")
        writes = function.attr not in READERS
        plain = all(isinstance(each, ast.Constant | ast.Name) for each in node.args) and not node.keywords
        last = node.args[-1] if node.args and not node.keywords else None
        later = not plain and last is not None and not isinstance(last, ast.Starred)
        number = self.site(node, "call", function.attr, "calls", writes, text=text)
        if later:
            self.site(node, "call", function.attr, "calls", writes, text=text, late=True)
        value = self.visit(function.value)
        function.value = self.wrap(HOLD if later else AT, number, value, function)
        node.args = [self.visit(each) for each in node.args]
        node.keywords = [self.visit(each) for each in node.keywords]
        if later:
            node.args[-1] = self.wrap(AT, number + 1, node.args[-1], node.args[-1])
        return node

    # Tests and loops: they look into containers

    def content(self, node: ast.expr, verb: str = "tests") -> ast.expr:
        """Return an expression with a point that counts if its value is a container."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            node.operand = self.content(node.operand)
            return node
        if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            visited: ast.expr = self.visit(node)
            return visited
        number = self.site(node, "content", "[]", verb, False)
        return self.wrap(AT, number, self.visit(node), node)

    def visit_If(self, node: ast.If) -> ast.stmt:
        node.test = self.content(node.test)
        node.body = self.block(node.body)
        node.orelse = self.block(node.orelse)
        return node

    def visit_While(self, node: ast.While) -> ast.stmt:
        node.test = self.content(node.test)
        node.body = self.block(node.body)
        node.orelse = self.block(node.orelse)
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        node.test = self.content(node.test)
        if node.msg is not None:
            node.msg = self.visit(node.msg)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        node.test = self.content(node.test)
        node.body = self.visit(node.body)
        node.orelse = self.visit(node.orelse)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        node.values = [self.content(each) for each in node.values]
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        node.left = self.visit(node.left)
        node.comparators = [
            self.content(each, "looks into") if isinstance(op, ast.In | ast.NotIn) else self.visit(each)
            for op, each in zip(node.ops, node.comparators, strict=True)
        ]
        return node

    def visit_For(self, node: ast.For) -> ast.stmt:
        node.target = self.visit(node.target)
        node.iter = self.content(node.iter, "goes through")
        node.body = self.block(node.body)
        node.orelse = self.block(node.orelse)
        return node

    # Assignments

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        node.value = self.stored(self.visit(node.value), node.targets)
        node.targets = [self.visit(each) for each in node.targets]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if node.value is not None:
            node.value = self.stored(self.visit(node.value), [node.target])
        node.target = self.visit(node.target) if node.value is not None else node.target
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        node.value = self.stored(self.visit(node.value), [node.target])
        return node

    def stored(self, value: ast.expr, targets: list[ast.expr]) -> ast.expr:
        """Return the value of an assignment, with a point for each shared variable that it is stored in."""
        for target in targets:
            for name in ast.walk(target):
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store) and name.id in self.names:
                    variable = self.variables[name.id]
                    number = self.site(name, "name", name.id, "writes", True, variable=variable)
                    value = self.wrap(AT, number, value, value)
        return value

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt | list[ast.stmt]:
        target = node.target
        value = self.visit(node.value)
        if isinstance(target, ast.Name):
            node.value = self.stored(value, [target])
            if target.id not in self.names:
                return node
            number = self.site(target, "name", target.id, "reads", False, variable=self.variables[target.id])
            first = ast.Expr(self.wrap(AT, number, None, node))
            return [ast.copy_location(first, node), node]
        kind = "attribute" if isinstance(target, ast.Attribute) else "item"
        name = target.attr if isinstance(target, ast.Attribute) else "[]"
        number = self.site(target, kind, name, "reads", False, holds=True)
        self.site(target, kind, name, "writes", True, late=True)
        target.value = self.wrap(AT, number, self.visit(target.value), target)
        if isinstance(target, ast.Subscript):
            target.slice = self.visit(target.slice)
        node.value = self.wrap(AT, number + 1, value, value)
        return node

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Return statements with their points."""
        found: list[ast.stmt] = []
        for statement in statements:
            visited = self.visit(statement)
            found.extend(visited if isinstance(visited, list) else [visited])
        return found

    # What has no points: annotations, patterns, types

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        node.decorator_list = [self.visit(each) for each in node.decorator_list]
        node.args = self.visit(node.args)
        node.body = self.block(node.body)
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.stmt:
        node.args = self.visit(node.args)
        node.body = self.block(node.body)
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.match_case:
        if node.guard is not None:
            node.guard = self.visit(node.guard)
        node.body = self.block(node.body)
        return node

    def visit_TypeAlias(self, node: ast.stmt) -> ast.stmt:
        return node
