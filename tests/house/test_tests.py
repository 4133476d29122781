"""The tests are documents, too: a person reads a test at once, and its failure names the case that failed."""

from __future__ import annotations

import ast

from support.documents import ROOT, statements

MAX_LINES = 40
# Tests that are longer, and why
EXCEPTIONS: dict[str, str] = {}
TESTS = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("packages/*/tests/**/test_*.py")]


def long_tests(text: str) -> dict[str, int]:
    """Return the test functions of a file that have more lines than MAX_LINES, without their decorators."""
    functions = (each for each in statements(ast.parse(text)) if isinstance(each, ast.FunctionDef))
    lines = {each.name: (each.end_lineno or 0) - each.lineno + 1 for each in functions}
    return {name: count for name, count in lines.items() if name.startswith("test_") and count > MAX_LINES}


def test_a_test_is_short() -> None:
    """A long test becomes rows of parametrize, several tests, or a test with helper functions: tests/README.md."""
    found = {
        f"{path.name}::{name}": lines
        for path in TESTS
        for name, lines in long_tests(path.read_text()).items()
    }
    assert {name: lines for name, lines in found.items() if name not in EXCEPTIONS} == {}
    assert set(EXCEPTIONS) <= set(found), "an exception for a test that is short"


def test_a_long_test_is_found() -> None:
    """Lines of decorators do not count: rows of parametrize may be many."""
    long = "def test_long():\n" + "    pass\n" * MAX_LINES
    short = "@mark(\n" + "    1,\n" * MAX_LINES + ")\ndef test_short():\n" + "    pass\n" * (MAX_LINES - 1)
    assert long_tests(f"{long}\n{short}\nclass TestIt:\n    def test_inside(self): ...\n") == {
        "test_long": 41
    }
