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
    for path in [
        *(ROOT / "README.md", ROOT / "tests/README.md"),
        *(*ROOT.glob("docs/*.md"), *ROOT.glob("packages/*/README.md"), *ROOT.glob("packages/*/docs/*.md")),
    ]
)


def place_of(file: str) -> Path:
    """Return the directory that a file's text takes for the project: its house below packages/, or the clone."""
    parts = Path(file).parts
    return ROOT.joinpath(*parts[:2]) if parts[0] == "packages" else ROOT


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
    tops = "ewe|ewe_[a-z]+|packages|tests|docs|htdocs|cgi-bin"
    for name in re.findall(rf"`((?:{tops})/[\w./-]+)`", prose(page)):
        built = "/target/" in name or name in ("cgi-bin/hello-c",)
        there = (ROOT / name).exists() or (place_of(page) / name).exists()
        assert built or there, f"{page} names {name}, which is not there"


def test_promises_name_real_tests() -> None:
    """Each promise of docs/security.md names a test that exists."""
    names = set(re.findall(r"`(test_\w+)`", prose("docs/security.md")))
    tests = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("packages/*/tests/**/test_*.py")]
    files = [path.read_text() for path in tests]
    defined = {name for text in files for name in re.findall(r"def (test_\w+)", text)}
    assert not names - defined, f"docs/security.md names tests that are not there: {sorted(names - defined)}"


SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for top in ("ewe", "tests", "packages")
    for path in ROOT.glob(f"{top}/**/*.py")
)


def test_source_names_pages_that_exist() -> None:
    missing = {
        f"{source}: {page}"
        for source in SOURCES
        if source != "tests/house/test_docs.py"
        for page in re.findall(
            r"(?:\bpackages/[a-z-]+/)?\bdocs/[a-z-]+\.md|(?<=docs_page\([\"'])[a-z-]+\.md",
            (ROOT / source).read_text(),
        )
        if not any(
            (top / page).exists() or (top / "docs" / page).exists() for top in (ROOT, place_of(source))
        )
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
        if not re.search("(^|/)tests/", source)
        and not source.endswith(("settings_page.py", "experiments/__main__.py"))
        for text in texts(source)
        if re.search(r"docs/[a-z-]+\.md", text)
    ]
    assert not named
    for project in (ROOT / "pyproject.toml", *ROOT.glob("packages/*/pyproject.toml")):
        wheel = tomllib.loads(project.read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
        name = "ewe" if project.parent == ROOT else project.parent.name
        assert wheel["shared-data"]["docs"] == f"share/doc/{name}"


def test_a_page_in_a_clone_and_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert docs_page("running.md") == "docs/running.md"
    monkeypatch.chdir(tmp_path)
    assert docs_page("running.md") == f"{ROOT}/docs/running.md"
    assert docs_page("lab.md", "ewe-lab") == f"{ROOT}/packages/ewe-lab/docs/lab.md"
    assert docs_page("absent.md") == "docs/absent.md of ewe's source"
    assert docs_page("absent.md", "ewe-lab") == "packages/ewe-lab/docs/absent.md of ewe's source"
    for name in ("ewe", "ewe-lab"):
        (tmp_path / "share/doc" / name).mkdir(parents=True)
        (tmp_path / "share/doc" / name / "installed.md").touch()
    module = tmp_path / "lib/python3.11/site-packages/ewe/config/messages.py"
    monkeypatch.setattr("ewe.config.messages.__file__", str(module))
    assert docs_page("installed.md") == f"{tmp_path}/share/doc/ewe/installed.md"
    assert docs_page("installed.md", "ewe-lab") == f"{tmp_path}/share/doc/ewe-lab/installed.md"
