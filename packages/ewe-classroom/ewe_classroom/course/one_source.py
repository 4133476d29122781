"""One source for two files: the starter, which students get, and the solution.

If a starter and its solution were two files, a correction of one would soon be missing in the other. Here both are
made from one file. A block between markers has two parts. The markers are comments of Python, C or Go:

    # --- solution            /* --- solution */
    return buffer[:end]       return end - buffer;
    # --- starter             /* --- starter */
    # return buffer           // return 0;
    # --- end                 /* --- end */

The solution keeps the first part. The starter keeps the second part, without its comment marks. A line that stays a
comment in the starter has two comment marks (`# # Where does the head end?`). The starter part may be missing.
Outside the blocks both files are the same.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MARK = re.compile(r"\s*(?:#|//|/\*) --- (solution|starter|end)(?: \*/)?\s*")
COMMENT = re.compile(r"(\s*)(?:#|//) ?(.*)")


class SourceError(ValueError):
    """The markers are in a wrong order. The message is one line and names the line number."""


def solution(text: str) -> str:
    """Return the solution in a source. Raises SourceError."""
    return "".join(line.text for line in lines_of(text) if line.part != "starter")


def starter(text: str) -> str:
    """Return the starter in a source, with its own parts no longer comments. Raises SourceError."""
    lines = []
    for number, part, line in lines_of(text):
        if part == "starter" and line.strip():  # an empty line has no comment mark
            comment = COMMENT.fullmatch(line.rstrip("\n"))
            if comment is None:
                raise SourceError(
                    f"line {number}: a line of the starter must be a comment: {line.strip()[:60]}"
                )
            indent, code = comment.groups()
            line = f"{indent}{code}".rstrip() + "\n"
        if part != "solution":
            lines.append(line)
    return "".join(lines)


class LineOfPart(NamedTuple):
    """A line of a source. number: from 1 on. part: "solution", "starter", or "" for both. text: with its LF."""

    number: int
    part: str
    text: str


def lines_of(text: str) -> list[LineOfPart]:
    """Return the lines of a source without the markers. Raises SourceError."""
    found = []
    part = ""
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        mark = MARK.fullmatch(line.rstrip("\n"))
        if mark is None:
            found.append(LineOfPart(number, part, line))
            continue
        # The parts in which each marker may stand. A block has no block inside; its starter part may be missing.
        allowed_in = {"solution": ("",), "starter": ("solution",), "end": ("solution", "starter")}[mark[1]]
        if part not in allowed_in:
            raise SourceError(f"line {number}: --- {mark[1]} where {part or 'no block'} was open")
        part = "" if mark[1] == "end" else mark[1]
    if part:
        raise SourceError(f"the last line: a block is open: --- {part} without --- end")
    return found
