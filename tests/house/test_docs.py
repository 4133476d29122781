"""What the documents name is there: pages, headings, files of the source, tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("tests/README.md")]
)


def prose(page: str) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for file, fragment in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", prose(page)):
        if "://" in file:
            continue
        target = (ROOT / page).parent / file if file else ROOT / page
        assert target.exists(), f"{page} links to {file}, which is not there"
        if fragment:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert fragment in map(anchor, headings), f"{page}: {file} has no heading #{fragment}"


@pytest.mark.parametrize("page", PAGES)
def test_files_are_there(page: str) -> None:
    """A file of the source that a page names, as in `ewe/site.py`, exists."""
    for name in re.findall(r"`((?:ewe|tests|docs|htdocs|cgi-bin)/[\w./-]+)`", prose(page)):
        built = "/target/" in name or name in ("cgi-bin/hello-c",)
        assert built or (ROOT / name).exists(), f"{page} names {name}, which is not there"


def test_promises_name_real_tests() -> None:
    """Each promise of docs/security.md names a test that exists."""
    names = set(re.findall(r"`(test_\w+)`", prose("docs/security.md")))
    files = [path.read_text() for path in ROOT.glob("tests/**/test_*.py")]
    defined = {name for text in files for name in re.findall(r"def (test_\w+)", text)}
    assert not names - defined, f"docs/security.md names tests that are not there: {sorted(names - defined)}"
