"""Find a library's queue in a program whose subject is the queue: "do not use a queue from a library".

Python: an import of a module that has one. Go: a channel of connections (a channel that tells only that something
has happened is no queue). C: a queue of messages of the system or of GLib.

This is a look at the text, so a program that is written to deceive can hide its queue. It is not executed.
"""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from ewe_classroom.grader.own_model import imported_files

MODULES = ("queue", "_queue", "multiprocessing", "concurrent.futures", "asyncio")
NAMES_WITHOUT_QUEUE = {"Empty", "Full", "cpu_count"}  # names in MODULES that are neither a queue nor a pool
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
            return f"{file.name}:{line_number} uses {description}: the queue of this lab is your own"
    return ""


def in_python(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, description) of each import from MODULES, or from a module within one of them."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # no Python, or nested too deeply
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
    """Return the names that a program uses only before NAMES_WITHOUT_QUEUE: `queue`, as in `except queue.Full`."""
    uses = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    harmless = Counter(
        node.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in NAMES_WITHOUT_QUEUE
        and isinstance(node.value, ast.Name)
    )
    return {name for name, count in harmless.items() if count == uses[name]}


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
