"""What the documents name is there: pages, headings, files of the source, tests."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ewe.config.messages import docs_page

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


SOURCES = sorted(
    path.relative_to(ROOT).as_posix() for top in ("ewe", "tests") for path in ROOT.glob(f"{top}/**/*.py")
)


def test_source_names_pages_that_exist() -> None:
    missing = {
        f"{source}: {page}"
        for source in SOURCES
        if source != "tests/house/test_docs.py"
        for page in re.findall(
            r"\bdocs/[a-z-]+\.md|(?<=docs_page\([\"'])[a-z-]+\.md", (ROOT / source).read_text()
        )
        if not (ROOT / "docs" / page.removeprefix("docs/")).exists()
    }
    assert not missing, f"these pages are not there: {sorted(missing)}"


def texts(source: str) -> Iterator[str]:
    """Return the strings of a file, without its docstrings."""
    tree = ast.parse((ROOT / source).read_text())
    nodes = list(ast.walk(tree))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_messages_name_a_page_where_it_is_installed() -> None:
    """A message asks docs_page() for the path: an installed ewe has no docs/ in the directory where it runs."""
    named = [
        f"{source}: {text}"
        for source in SOURCES
        if source.startswith("ewe/") and "settings_page.py" not in source
        for text in texts(source)
        if re.search(r"docs/[a-z-]+\.md", text)
    ]
    assert not named
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert about["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]["docs"] == "share/doc/ewe"


def test_a_page_in_a_clone_and_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert docs_page("running.md") == "docs/running.md"
    monkeypatch.chdir(tmp_path)
    assert docs_page("running.md") == f"{ROOT}/docs/running.md"
    assert docs_page("absent.md") == "docs/absent.md of ewe's source"
    (tmp_path / "share/doc/ewe").mkdir(parents=True)
    (tmp_path / "share/doc/ewe/installed.md").touch()
    module = tmp_path / "lib/python3.11/site-packages/ewe/config/messages.py"
    monkeypatch.setattr("ewe.config.messages.__file__", str(module))
    assert docs_page("installed.md") == f"{tmp_path}/share/doc/ewe/installed.md"
