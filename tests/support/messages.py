"""All texts that a command may show to a person, in one list: `python tests/support/messages.py > messages.txt`.

Read the list as a user would, who sees one line and not the code around it. A message says what happened, to which
file, setting or peer, and what to do next. The same fault has the same words in every command. {...} stands for a
value. The list comes from the syntax of the source, so some of its lines are never shown: they are parts of texts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from support.documents import ROOT, SOURCES

COMMANDS = {
    "ewe/xswitch/": "ewe-xswitch",
    "ewe/database/": "ewe-dbd",
    "ewe/": "ewe",
    "packages/ewe-lab/ewe_lab/": "ewe-lab",
    "packages/ewe-classroom/ewe_classroom/course/": "ewe-course",
    "packages/ewe-classroom/ewe_classroom/labs/": "",  # programs of students
    "packages/ewe-classroom/ewe_classroom/": "ewe-grade",
    "packages/ewe-explore/ewe_explore/samples/": "",
    "packages/ewe-explore/ewe_explore/": "ewe-explore",
    "packages/ewe-watch/ewe_watch/": "ewe-watch",
}
LOG_CALLS = {"error", "warning", "info", "debug", "exception", "write", "tell", "log"}
DESCRIBED = {"help", "description", "epilog", "metavar", "usage"}
SETTINGS = {"Setting", "Key", "StepKey", "Kind", "TableKind", "setting", "key"}
MOST_CHARS = 400


class Message(NamedTuple):
    """A text that a person may see."""

    command: str
    kind: str
    place: str  # file:line
    text: str


def text_of(node: ast.expr) -> str:
    """Return the text of an expression, with {...} for its values; the empty text if it has none."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part) for part in parts)
        case ast.FormattedValue(value=value):
            return "{" + ast.unparse(value) + "}"
        case ast.BinOp(left=left, op=ast.Add(), right=right) if text_of(left) or text_of(right):
            return (text_of(left) or "{...}") + (text_of(right) or "{...}")
        case ast.IfExp(body=body, orelse=other):
            return " | ".join(filter(None, (text_of(body), text_of(other))))
        case ast.Call(func=ast.Attribute(value=template, attr="format" | "join" | "strip")):
            return text_of(template)
    return ""


def is_sentence(text: str) -> bool:
    """Return whether a text has the words of a sentence, and is neither a program nor a page."""
    code = re.match(r"\s*(<|:root|#!|import |def |async def )|[A-Z]{4,} [A-Z ]*\b", text) is not None
    return text.count(" ") >= 3 and text.count("\n") < 3 and not code


def found_in(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the expressions of a node that are messages, each with its kind."""
    match node:
        case ast.Call(func=ast.Attribute(value=receiver, attr=name), args=args) if (
            name in LOG_CALLS and "log" in ast.unparse(receiver).lower()
        ):
            yield from (("log", argument) for argument in args[name == "write" :])  # write(LEVEL, TEXT)
        case ast.Call(func=ast.Name(id="print"), args=args):
            yield from (("print", argument) for argument in args)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args, keywords=keywords):
            if name in SETTINGS:
                yield from (("setting", argument) for argument in args)
            elif name[:1].isupper() or name in ("expected", "unknown", "fail", "refuse", "error"):
                yield from (("error", argument) for argument in args if is_sentence(text_of(argument)))
            elif name in ("append", "join"):
                yield from (("text", argument) for argument in args if is_sentence(text_of(argument)))
            for keyword in keywords:
                if keyword.arg in DESCRIBED:
                    yield ("help", keyword.value)
                elif is_sentence(text_of(keyword.value)):
                    yield ("text", keyword.value)
        case ast.Return(value=ast.expr() as value) | ast.Yield(value=ast.expr() as value):
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
            yield from (("text", each) for each in values if is_sentence(text_of(each)))
        case ast.Assign(value=value) if is_sentence(text_of(value)):
            yield ("text", value)


def messages() -> Iterator[Message]:
    """Yield every message, in the order of the files."""
    for source in SOURCES:
        command = next((COMMANDS[top] for top in COMMANDS if source.startswith(top)), "")
        if not command:
            continue
        seen = set()
        for node in ast.walk(ast.parse((ROOT / source).read_text(encoding="utf-8"))):
            for kind, expression in found_in(node):
                text = " ".join(text_of(expression).split())
                if text and id(expression) not in seen and any(letter.isalpha() for letter in text):
                    seen.add(id(expression))
                    yield Message(command, kind, f"{source}:{expression.lineno}", text[:MOST_CHARS])


def main() -> None:
    """Print the list, by command and kind."""
    before = ("", "")
    for each in sorted(messages(), key=lambda each: (each.command, each.kind)):
        if before != each[:2]:
            print(f"\n== {each.command}: {each.kind}\n")
            before = each[:2]
        print(f"{each.place}\t{each.text}")


if __name__ == "__main__":
    main()
