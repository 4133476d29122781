"""Find a library's queue in a program whose subject is the queue: "do not use a queue from a library".

Python: an import of a module that has one. Go: a channel of connections (a channel that tells only that something
has happened is no queue). C: a queue of messages of the system or of GLib.

This is a look at the text, so a program that is written to deceive can hide its queue. It is not executed.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from ewe_classroom.grader.own_model import imported_files

MODULES = ("queue", "_queue", "multiprocessing", "concurrent.futures", "asyncio")
NAMES_WITHOUT_QUEUE = {"Empty", "Full", "cpu_count"}  # names in MODULES that are neither a queue nor a pool
# Through one of these a program can use a module without its name.
NAMESPACES = {"globals", "locals", "vars", "modules", "__dict__"}
# Nodes whose variables are not those of the function around them
OTHER_SCOPES = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef,
    ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip
COMPUTED_IMPORT = re.compile(r"\b(__import__|importlib|runpy|exec|eval)\b")
# A channel of one of these types has no connection in it. A program may collect the lines of its log in such a one.
GO_CHANNEL = re.compile(
    r"\bchan\s+(?!<-)(?!(?:struct\{\}|bool|error|int|string|os\.Signal|time\.Time)(?![\w.]))([\w.*\[\]]+)"
)
C_CALL = re.compile(r"\b(mq_open|msgget|g_async_queue_new\w*|g_thread_pool_new)\s*\(")
# A comment, or a text, in which "/*" begins no comment. One without an end reaches to the end of the file, so that
# a search takes linear time.
COMMENT_OR_TEXT = re.compile(
    r"""/\*.*?(?:\*/|\Z) | //[^\n]* | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | `[^`]*`""",
    re.DOTALL | re.VERBOSE,
)


def library_queue(language: str, files: list[Path]) -> str:
    """Return a sentence about the first library's queue in the files; "" if there is none."""
    find = {"python": in_python, "model": in_python, "go": in_go, "c": in_c}[language]
    trees: dict[Path, ast.Module] = {}
    for file in files:
        # The program may have made a FIFO of this name, whose opening would wait for a writer, or a link to a name
        # that is too long.
        if not os.path.isfile(file):
            continue
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for line_number, description in find(text):
            return sentence(file, line_number, description)
        if find is in_python and (tree := parsed(text)) is not None:
            trees[file] = tree
    for file, (line_number, description) in taken_modules(trees):
        return sentence(file, line_number, description)
    return ""


def sentence(file: Path, line_number: int, description: str) -> str:
    return f"{file.name}:{line_number} uses {description}: the queue of this lab is your own"


def parsed(text: str) -> ast.Module | None:
    """Return the syntax tree of a text; None if it is no Python, or nested too deeply."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def in_python(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, description) of each import from MODULES, or from a module within one of them."""
    tree = parsed(text)
    if tree is None:
        return
    harmless = names_without_queue(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if is_from_modules(alias.name) and (alias.asname or alias.name) not in harmless:
                    yield node.lineno, f"the module {alias.name}"
        elif isinstance(node, ast.ImportFrom) and not node.level:  # `from .queue` is the student's own module
            imported = [alias.name for alias in node.names if alias.name not in NAMES_WITHOUT_QUEUE]
            names = [f"{node.module}.{each}" for each in imported]
            # `from concurrent import futures` imports a module, and `from queue import Queue` a name in a module.
            if name := next(filter(is_from_modules, names), None):
                yield node.lineno, name


def names_without_queue(tree: ast.Module) -> set[str]:
    """Return the names that a program uses only before NAMES_WITHOUT_QUEUE: `queue`, as in `except queue.Full`.

    A parameter or a variable of a function may have the same name. Without `globals()` and its like, a text names
    each use of a module.
    """
    finder = uses_in(tree)
    if finder.uses & NAMESPACES or finder.attributes & NAMESPACES:
        return set()
    return finder.harmless - finder.uses


class Scope(NamedTuple):
    """The names of a function. bound: its parameters and variables. others: those of `global` and of imports."""

    bound: set[str]
    others: set[str]


class UseFinder(ast.NodeVisitor):
    """Find the uses of names that no function binds. harmless: the names before NAMES_WITHOUT_QUEUE."""

    def __init__(self) -> None:
        self.uses: set[str] = set()
        self.harmless: set[str] = set()
        self.attributes: set[str] = set()
        self.scopes: list[Scope] = []  # of the functions around the node, the innermost last

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and self.may_be_module(node.id):
            self.uses.add(node.id)

    def may_be_module(self, name: str) -> bool:
        """Return whether no function around the node binds a name to a value, so that it may be a module."""
        for scope in reversed(self.scopes):
            if name in scope.bound or name in scope.others:
                return name in scope.others
        return True

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.attributes.add(node.attr)
        if isinstance(node.value, ast.Name) and node.attr in NAMES_WITHOUT_QUEUE:
            self.harmless.add(node.value.id)
        else:
            self.visit(node.value)

    def visit_scope(self, node: ast.AST, inner: list[ast.AST]) -> None:
        """Visit a function. inner: the nodes within its scope; a default value is outside of it."""
        for each in ast.iter_child_nodes(node):
            if each not in inner:
                self.visit(each)
        self.scopes.append(scope_of(node, inner))
        for each in inner:
            self.visit(each)
        self.scopes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.visit_scope(node, [*node.body])

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit_scope(node, [node.body])


def uses_in(tree: ast.Module) -> UseFinder:
    """Return the uses of names in a program. In a tree that is too deep, each use of a module counts."""
    finder = UseFinder()
    try:
        finder.visit(tree)
    except RecursionError:
        finder.uses |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return finder


def scope_of(function: ast.AST, inner: list[ast.AST]) -> Scope:
    """Return the names of a function. inner: the nodes of its body, without those of a function within it."""
    bound: set[str] = set()
    if isinstance(arguments := getattr(function, "args", None), ast.arguments):
        given = [
            *arguments.posonlyargs,
            *arguments.args,
            *arguments.kwonlyargs,
            arguments.vararg,
            arguments.kwarg,
        ]
        bound |= {each.arg for each in given if each is not None}
    others: set[str] = set()
    waiting = list(inner)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.Global):
            others.update(node.names)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            others.update(alias.asname or alias.name for alias in node.names)
        elif not isinstance(node, OTHER_SCOPES):
            waiting += ast.iter_child_nodes(node)
    return Scope(bound - others, others)


def taken_modules(trees: dict[Path, ast.Module]) -> Iterator[tuple[Path, tuple[int, str]]]:
    """Yield each file that takes one of MODULES from another file, with (line number, description).

    trees: of all files. The other file imports the module, as for `except queue.Full`: `from other import queue`.
    """
    lenders = {
        file.stem: {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
            if is_from_modules(alias.name)
        }
        for file, tree in trees.items()
    }
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (lent := lenders.get((node.module or "").split(".")[-1])):
                for alias in node.names:
                    if alias.name in lent or (alias.name == "*" and uses_in(tree).uses & lent):
                        yield file, (node.lineno, f"{alias.name} of {node.module}")
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.attr in lenders.get(node.value.id, ())
            ):
                yield file, (node.lineno, f"{node.value.id}.{node.attr}")


def is_from_modules(name: str) -> bool:
    """Return whether a name with dots is one of MODULES, or lies within one: `asyncio.queues`, `queue.Queue`."""
    return name in MODULES or name.startswith(tuple(f"{module}." for module in MODULES))


def with_imports(source: Path) -> list[Path]:
    """Return a Python file and the files beside it that it imports, itself or through another of them.

    A submission may have other files, such as a client, which may use any library. If a file imports by a name that
    is computed, or `source` is no file, all files of the directory are returned.
    """
    found = [source] if os.path.isfile(source) else sorted(source.parent.glob("*.py"))
    for file in found:  # the list grows meanwhile
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
            tree = ast.parse(text)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if COMPUTED_IMPORT.search(text):
            return sorted(source.parent.glob("*.py"))
        found += sorted(imported_files(tree, source.parent) - set(found))
    return found


def in_go(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, description) of each type of a channel that could hold connections."""
    yield from matches(GO_CHANNEL, text, lambda found: f"a channel as a queue (`chan {found[1]}`)")


def in_c(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, description) of each call that makes a queue."""
    yield from matches(C_CALL, text, lambda found: f"{found[1]}()")


def matches(
    pattern: re.Pattern[str], text: str, describe: Callable[[re.Match[str]], str]
) -> Iterator[tuple[int, str]]:
    """Yield (line number, description) of each match outside of comments. describe: makes the description."""

    def kept(found: re.Match[str]) -> str:
        """Return a text as it is; of a comment its line feeds, so that the numbers of the lines stay the same."""
        return "\n" * found[0].count("\n") if found[0].startswith(("/*", "//")) else found[0]

    code = COMMENT_OR_TEXT.sub(kept, text)
    for found in pattern.finditer(code):
        yield code.count("\n", 0, found.start()) + 1, describe(found)
