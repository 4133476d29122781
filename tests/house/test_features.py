"""docs/features.md: each feature that ewe claims names its tests, each that ewe lacks has a reason."""

from __future__ import annotations

from pathlib import Path

from applications.others.probes import PROBES

ROOT = Path(__file__).resolve().parents[2]


def rows(columns: int) -> list[list[str]]:
    """Return the cells of all table rows of the page that have so many columns, without the rows of heads."""
    page = (ROOT / "docs/features.md").read_text()
    lines = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines if len(line) == columns]
    return [row for row in cells if row[0] and not set(row[0]) <= {"-"}]


def test_each_feature_names_its_tests() -> None:
    """A file that the page names exists: tests/house/test_docs.py looks for it."""
    tested = {name for name, tests in rows(2) if "tests/" in tests}
    claimed = {row[0] for row in rows(6) if row[1].startswith("✓")}
    assert claimed and claimed == tested


def test_each_feature_that_ewe_lacks_has_a_reason() -> None:
    lacking = {row[0] for row in rows(6) if row[1].startswith("–")}
    explained = {name for name, reason in rows(2) if "`tests/" not in reason}
    assert lacking and not lacking - explained


def test_each_probe_has_its_row() -> None:
    """tests/applications/features_of_others.py compares its answers with rows of these names."""
    assert not set(PROBES) - {row[0] for row in rows(6)}
