"""The table of modules and their tests (tests/README.md) names each module, and files that exist."""

from __future__ import annotations

from support.rooms import ROOT, SOURCES
from support.where_tested import function_lines, rows_of_readme

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
