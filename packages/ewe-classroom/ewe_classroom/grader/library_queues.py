"""Find a library's queue in a program whose subject is the queue: "do not use a queue from a library".

Python: an import of a module that has one. Go: a channel of connections (a channel that tells only that something
has happened is no queue). C: a queue of messages of the system or of GLib.

This is a look at the text, so a program that is written to deceive can hide its queue. It is not executed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

MODULES = ("queue", "_queue", "multiprocessing", "concurrent.futures", "asyncio")
HARMLESS = {"Empty", "Full", "cpu_count"}  # names of these modules that are no queue
GO_CHANNEL = re.compile(r"\bchan\s+(?!<-)(?!(?:struct\{\}|bool|error|int|os\.Signal)(?!\w))([\w.*\[\]]+)")
C_CALL = re.compile(r"\b(mq_open|msgget|g_async_queue_new\w*|g_thread_pool_new)\s*\(")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def library_queue(language: str, files: list[Path]) -> str:
    """Return a sentence about the first library's queue in the files; "" if there is none."""
    find = {"python": in_python, "model": in_python, "go": in_go, "c": in_c}[language]
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for number, what in find(text):
            return f"{file.name}:{number} uses {what}: the queue of this lab is your own"
    return ""


def in_python(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each import of a module with queues or pools."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in MODULES or alias.name.startswith("multiprocessing."):
                    yield node.lineno, f"the module {alias.name}"
        elif isinstance(node, ast.ImportFrom) and not node.level:
            full = [f"{node.module}.{alias.name}" for alias in node.names if alias.name not in HARMLESS]
            if any(name.startswith(tuple(f"{module}." for module in MODULES)) for name in full):
                yield node.lineno, full[0]


def in_go(text: str) -> Iterator[tuple[int, str]]:
    yield from matches(GO_CHANNEL, text, lambda found: f"a channel as a queue (`chan {found[1]}`)")


def in_c(text: str) -> Iterator[tuple[int, str]]:
    yield from matches(C_CALL, text, lambda found: f"{found[1]}()")


def matches(
    pattern: re.Pattern[str], text: str, words: Callable[[re.Match[str]], str]
) -> Iterator[tuple[int, str]]:
    """Yield the line of each match outside of comments, and the words for it."""
    bare = COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
    for found in pattern.finditer(bare):
        yield bare.count("\n", 0, found.start()) + 1, words(found)
