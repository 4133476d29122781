"""The documents of the project, and the parts that tests compare with the source: links, commands, settings.

A page shows commands in two ways: in a block of code, behind the prompt `$ ` or alone, and as `inline code`. Both
are read as a shell reads them: a line is split into simple commands, without variables and redirections.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [
        *(ROOT / "README.md", ROOT / "tests/README.md"),
        *(*ROOT.glob("docs/*.md"), *ROOT.glob("packages/*/README.md"), *ROOT.glob("packages/*/docs/*.md")),
        *(*ROOT.glob("packages/*/ewe_*/labs/*/text.md"), *ROOT.glob("samples/*/README.md")),
    ]
)
SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for top in ("ewe", "tests", "packages")
    for path in ROOT.glob(f"{top}/**/*.py")
)
OWN_COMMANDS = (
    "ewe",
    "ewe-xswitch",
    "ewe-dbd",
    "ewe-lab",
    "ewe-grade",
    "ewe-course",
    "ewe-explore",
    "ewe-watch",
    "make",
)
TOOLS = ("pytest", "python", "python3", "pip", "curl", "docker", "locust", "uwsgi")
PROMPT = "$ "
OPERATORS = ";()<>|&"
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(rf"`((?:{'|'.join((*OWN_COMMANDS, *TOOLS))}) [^`{{}}]+)`")


class CodeBlock(NamedTuple):
    """A block of code in a page."""

    page: str
    line: int  # of its first line of code
    language: str
    text: str


class ShownCommand(NamedTuple):
    """One simple command that a page shows: `ewe -t 8080`. directory: where the page has gone by `cd`."""

    where: str  # page:line
    words: tuple[str, ...]
    directory: Path = ROOT

    def __str__(self) -> str:
        return f"{self.where}: {shlex.join(self.words)}"


def blocks(page: str) -> Iterator[CodeBlock]:
    """Return the blocks of code in a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        yield CodeBlock(page, text.count("\n", 0, found.start()) + 2, found[2], found[3])


def split(line: str) -> list[tuple[str, ...]]:
    """Split a line of a shell into its simple commands. Raises ValueError if a quotation has no end.

    >>> split("A=1 ewe -t 8080 > log &  # a server")
    [('ewe', '-t', '8080')]
    >>> split("for i in 1 2; do curl -s a | grep b; done")
    [('curl', '-s', 'a'), ('grep', 'b')]
    """
    lexer = shlex.shlex(line, posix=True, punctuation_chars=OPERATORS)
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    into_file = False
    for word in lexer:
        if word[0] in "<>":
            if found[-1] and found[-1][-1].isdigit():  # 2> is one sign
                found[-1].pop()
            into_file = not word.endswith(("(", "&"))
        elif into_file:
            into_file = False
        elif word[0] in OPERATORS:
            found.append([])
        else:
            found[-1].append(word)
    return [tuple(bare) for words in found if (bare := without_shell_words(words))]


def without_shell_words(words: list[str]) -> list[str]:
    """Return a simple command without the words of the shell before it."""
    if words[:1] in (["for"], ["while"], ["done"]):
        return []
    while words and (words[0] in ("do", "sudo", "exec") or re.match(r"[A-Z_]+=", words[0])):
        words = words[1:]
    return words


def lines_of_commands(block: CodeBlock) -> Iterator[tuple[int, str]]:
    """Return the lines of a block that are commands, each with its number; a continued line is one line."""
    lines = block.text.splitlines()
    prompts = any(line.startswith(PROMPT) for line in lines)
    number = 0
    while number < len(lines):
        first, line = number, lines[number]
        number += 1
        if prompts and not line.startswith(PROMPT):
            continue
        line = line.removeprefix(PROMPT).strip()
        known = line.split(" ")[0].rpartition("/")[2] in (*OWN_COMMANDS, *TOOLS)
        if re.search(r"[─│▶]| \[-", line):  # a diagram, a synopsis
            continue
        if not prompts and block.language not in ("sh", "console") and not (known or is_loop(line)):
            continue
        while number < len(lines) and (line.endswith("\\") or is_open(line)):
            line = line.removesuffix("\\") + " " + lines[number].strip()
            number += 1
        yield block.line + first, line


def is_loop(line: str) -> bool:
    """Return whether a line is a loop of a shell."""
    return re.match(r"(for|while) .*; do ", line) is not None


def is_open(line: str) -> bool:
    """Return whether a quotation goes on in the next line."""
    try:
        split(line)
    except ValueError:
        return True
    return False


def commands_in_blocks(page: str) -> Iterator[ShownCommand]:
    """Return the commands in a page's blocks."""
    for block in blocks(page):
        if block.language not in ("", "sh", "console", "shell") or block.text.startswith("#!"):
            continue
        directory = ROOT
        for number, line in lines_of_commands(block):
            for words in split(line):
                if words[0] == "cd":
                    directory /= words[1]
                yield ShownCommand(f"{page}:{number}", words, directory)


def commands_in_lines(name: str) -> Iterator[ShownCommand]:
    """Return the commands that stand as `inline code` in a page or in a source file."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    for found in INLINE.finditer(text):
        line = re.sub(r"\s*\n[ \t#]*", " ", found[1])
        number = text.count("\n", 0, found.start()) + 1
        for words in split(line):
            yield ShownCommand(f"{name}:{number}", words)


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Return a tree of source and the statements in it, at any depth.

    ast.walk() returns the expressions too. They are nine tenths of all nodes.
    """
    waiting = [tree]
    for each in waiting:
        yield each
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(each, part, ())
