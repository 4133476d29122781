"""The shape of a statement: its text without values, for the trace.

    SELECT name FROM grades WHERE student = 'alice' AND points > 12
        ──▶  SELECT name FROM grades WHERE student = ? AND points > ?

A statement with bound parameters has no values in its text. But many scripts paste them into it, and then the text
holds names, marks and passwords. The administrator reads the trace, and lectures show its picture. The trace
therefore has only the shape: every literal becomes a "?". PostgreSQL's pg_stat_statements shows statements in the
same way.

A name in double quotes stays where the grammar allows nothing but a name: of a table, or after a dot. Elsewhere
SQLite reads such a text as a string if no column has the name. A backslash escapes a quote only in PostgreSQL's
strings with the prefix E. An unfinished literal, and a comment within a comment, reach to the end of the text.
"""

from __future__ import annotations

import re

MAX_SHAPE_CHARS = 200
MAX_READ_CHARS = 4096  # of a statement that shape() reads: its time is then bounded
PIECES = re.compile(
    r"""(?P<comment> --[^\n]*  |  /\*(?:(?!/\*|\*/).)*(?:\*/|/\*.*|\Z) )
    | (?P<name> (?:\b(?:FROM|JOIN|INTO|UPDATE|TABLE)\s+|\.\s*)"[^"]*"
        | \bDISTINCT\s+FROM\b )   # after IS DISTINCT FROM, SQLite may read "x" as a text
    | (?P<value> \$(?P<tag>\w*)\$ .*? (?:\$(?P=tag)\$|\Z)   # $tag$ text $tag$
        | \b[eE] ' (?:[^'\\] | \\. | '')* (?:'|\\?\Z)   # E'text'
        | (?:\b[A-Za-z]{1,2}&?)? ' (?:[^'] | '')* (?:'|\Z)   # 'text', X'00', U&'text'
        | " (?:[^"]|"")* (?:"|\Z)   # elsewhere, SQLite may read it as a text
        | (?<![\w$:@?]) \.?\d [\w.]* (?:(?<=[eE])[+-]\d+)? )   # a number, not the end of a name or parameter""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


def shape(statement: str) -> str:
    """Return a statement in one line, with "?" in place of each value; at most MAX_SHAPE_CHARS characters."""

    def replacement(piece: re.Match[str]) -> str:
        """Return the text for one piece: a space for a comment, a name as it is, "?" for a value."""
        if piece["comment"] is not None:
            return " "
        return piece[0] if piece["name"] is not None else "?"

    text = " ".join(PIECES.sub(replacement, statement[:MAX_READ_CHARS]).split())
    return text if len(text) <= MAX_SHAPE_CHARS else text[: MAX_SHAPE_CHARS - 1] + "…"
