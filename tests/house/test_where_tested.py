"""The table of modules and their tests (tests/README.md) names each module, and files that exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import where_tested
from support.rooms import ROOT, SOURCES
from support.where_tested import function_lines, new_rows, rows_of_readme

ROWS = rows_of_readme()


def test_a_module_has_a_row() -> None:
    """A function of one line may have none that Python 3.13 counts: a module of such functions needs no row."""
    without = [module for module in SOURCES if module not in ROWS]
    missing = [module for module in without if len(function_lines(SOURCES[module])) > 1]
    assert not missing, "add a row for each, or run `make where-tested`"


def test_a_row_names_files_that_exist() -> None:
    gone = {module: name for module, names in ROWS.items() for name in names if not (ROOT / name).is_file()}
    assert not gone


def test_the_table_names_no_module_that_is_gone() -> None:
    assert not ROWS.keys() - SOURCES.keys()


def test_a_new_row_is_filled_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row whose files do not all run would count too few lines, and a filled row stays."""
    readme = tmp_path / "README.md"
    rows = "| `a` | new | `x/1.py` |\n| `b` | new | `x/1.py`, `x/2.py` |\n| `c` | 90 % of 10 | `x/1.py` |\n"
    readme.write_text(f"{where_tested.BEGIN}\n| module | lines | tests |\n|---|---:|---|\n{rows}")
    monkeypatch.setattr(where_tested, "README", readme)
    assert new_rows(["x/1.py"]) == {"a": ["x/1.py"]}
    assert new_rows([]) == {"a": ["x/1.py"], "b": ["x/1.py", "x/2.py"]}
