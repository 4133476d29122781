"""Each connection of sqlite3 in the tests and in ewe is closed where it is opened with `with`.

`with sqlite3.connect(path) as connection` ends a transaction and leaves the connection open. From Python 3.13 on
the garbage collector warns of such a connection, in whichever test runs by then, and a warning is a failure.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def left_open(source: str) -> list[int]:
    """Return the lines of connections that a `with` opens and the next statement does not close."""
    found = []
    for block in ast.walk(ast.parse(source)):
        statements = getattr(block, "body", None)
        if not isinstance(statements, list):
            continue
        for statement, after in zip(statements, [*statements[1:], None], strict=False):
            if not isinstance(statement, ast.With):
                continue
            for item in statement.items:
                if ast.unparse(item.context_expr).startswith("sqlite3.connect("):
                    name = ast.unparse(item.optional_vars) if item.optional_vars else ""
                    if after is None or ast.unparse(after) != f"{name}.close()":
                        found.append(statement.lineno)
    return found


def test_connections_are_closed() -> None:
    paths = [path for top in ("ewe", "tests", "packages") for path in ROOT.glob(f"{top}/**/*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    found = {
        str(path.relative_to(ROOT)): left_open(text) for path, text in texts.items() if "sqlite3" in text
    }
    assert any("with sqlite3.connect(" in text for text in texts.values())
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "end, lines", [("", [2]), ("d.close()", []), ("d.commit()", [2])], ids=["end", "closed", "open"]
)
def test_the_rule(end: str, lines: list[int]) -> None:
    assert left_open(f"import sqlite3\nwith sqlite3.connect('x') as d:\n    d.execute('y')\n{end}") == lines
