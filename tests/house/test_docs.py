"""What the documents name is there: pages, headings, files of the source, tests."""

from __future__ import annotations

import ast
import os
import re
import threading
import tomllib
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from support import links
from support.documents import PAGES, ROOT, SOURCES

from ewe.config.messages import docs_page


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


def dead_links(page: str) -> Iterator[str]:
    """Yield the links of a page to files and headings that do not exist."""
    for file, fragment in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", prose(page)):
        target = (ROOT / page).parent / file if file else ROOT / page
        if "://" in file:
            continue
        if not target.exists():
            yield f"{page} links to {file}, which is not there"
        elif fragment:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            if fragment not in map(anchor, headings):
                yield f"{page}: {file} has no heading #{fragment}"


def test_links_lead_somewhere() -> None:
    found = [link for page in PAGES for link in dead_links(page)]
    assert not found, "\n".join(found)


def test_docs_contains_no_picture_that_its_pages_lack() -> None:
    """The wheel of the server contains docs/. Pictures of README.md alone are in share/pictures."""
    shown = {
        name
        for page in PAGES
        if page.startswith("docs/")
        for name in re.findall(r"\]\((\S+?)\)", prose(page))
    }
    assert {path.name for path in (ROOT / "docs").iterdir() if path.suffix != ".md"} <= shown


def test_files_are_there() -> None:
    """A file of the source that a page names, as in `ewe/site.py`, exists."""
    tops = "ewe|ewe_[a-z]+|packages|tests|docs|htdocs|cgi-bin"
    named = {(page, name) for page in PAGES for name in re.findall(rf"`((?:{tops})/[\w./-]+)`", prose(page))}
    assert len(named) > 300
    missing = [
        f"{page} names {name}, which is not there"
        for page, name in sorted(named)
        if "/target/" not in name and name != "cgi-bin/hello-c"
        if not ((ROOT / name).exists() or (place_of(page) / name).exists())
    ]
    assert not missing, "\n".join(missing)


def test_the_first_hour_is_an_hour() -> None:
    """The ten files of the first hour have 2,500 lines at most."""
    rows = re.findall(r"^\| \d+ \| \[([\w/.]+)\]", (ROOT / "docs/README.md").read_text(), re.MULTILINE)
    assert len(rows) == 10
    assert sum(len((ROOT / row).read_text().splitlines()) for row in rows) <= 2500


def test_the_functions_of_the_first_hour_are_there() -> None:
    """A function that docs/README.md names, as in `converse()`, is there."""
    sources = [(ROOT / name).read_text() for name in SOURCES if name.startswith("ewe/")]
    defined = set(re.findall(r"def (\w+)\(", "\n".join(sources)))
    named = set(re.findall(r"`(\w+)\(\)`", prose("docs/README.md")))
    assert len(named) > 15
    assert not named - defined


def test_attributes_are_there() -> None:
    """The attribute of a class that a page names, as in `Static.cache`, is in a file that defines the class."""
    sources = [(ROOT / name).read_text() for name in SOURCES]
    named = {(page, *each) for page in PAGES for each in re.findall(r"`([A-Z]\w+)\.(\w+)", prose(page))}
    missing = []
    for page, owner, attribute in sorted(named):
        files = [text for text in sources if f"class {owner}" in text]
        if files and not any(re.search(rf"\b{attribute}\b", text) for text in files):
            missing.append(f"{page} names {owner}.{attribute}, which is not there")
    assert not missing, "\n".join(missing)


def test_promises_name_real_tests() -> None:
    """Each promise of docs/security.md names a test that exists."""
    names = set(re.findall(r"`(test_\w+)`", prose("docs/security.md")))
    tests = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("packages/*/tests/**/test_*.py")]
    files = [path.read_text() for path in tests]
    defined = {name for text in files for name in re.findall(r"def (test_\w+)", text)}
    assert not names - defined, f"docs/security.md names tests that are not there: {sorted(names - defined)}"


def test_links_into_the_world_are_known() -> None:
    """`make links` asks whether they answer: this test has no network."""
    assert not list(links.faults())


def test_a_link_is_asked_by_head_then_by_get() -> None:
    class Answers(BaseHTTPRequestHandler):
        asked: ClassVar[list[str]] = []

        def do_HEAD(self) -> None:
            self.asked.append(f"{self.command} {self.path}")
            ok = self.path == "/found" or (self.path == "/by-get" and self.command == "GET")
            self.send_response(200 if ok else 404)
            self.end_headers()

        do_GET = do_HEAD

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            assert [links.answer_of(url + path) for path in ("/found", "/by-get")] == ["", ""]
            assert links.answer_of(url + "/none") == "404 Not Found"
        finally:
            server.shutdown()
            thread.join()
    assert Answers.asked == ["HEAD /found", "HEAD /by-get", "GET /by-get", "HEAD /none", "GET /none"]


# A docstring names a file of the source by its path, or by its name alone.
NAMED = re.compile(
    r"(?<![\w/.~*-])(?:(?:ewe|ewe_[a-z]+|tests|packages|docs|share)/[\w./-]*\w|\w[\w/-]*\.(?:py|md)\b)"
)
MODULES = re.compile(r"(?<![\w.`])(ewe(?:_[a-z]+)?(?:\.[a-z_]+)+)(?![\w(])")
# Files that are written at run time, and those of users and of examples
NOT_OURS = {
    *("mine.py", "app.py", "text.md", "rubric.md", "run_cgi.py", "few.py", "python_spare.py", "random.py"),
    *(
        "hello.py",
        "bytes.py",
        "bytes_wsgi.py",
        "bytes_asgi.py",
        "hello_wsgi.py",
        "hello_asgi.py",
        "_wsgi.py",
        "autograder.py",  # of Classroom 50
        "venv.py",  # what a submission could name its files
        "pip.py",
        "x.py",
        "notes.md",
        "index.md",  # of a book of Markdown
    ),
}


exists = cache(os.path.exists)  # a thousand files name few others, and each may stand in several directories


def absent(source: str, text: str, names: set[str]) -> Iterator[str]:
    """Yield the files and modules that a docstring of a source names and that do not exist."""
    directories = [str(each) for each in (ROOT, ROOT / "ewe", place_of(source), *(ROOT / source).parents)]
    for name in NAMED.findall(text):
        alone = "/" not in name and (name in names or name in NOT_OURS)
        if not (alone or "/NAME/" in name) and not any(exists(f"{each}/{name}") for each in directories):
            yield f"{source}: {name}"
    _, found, after = text.partition("Read next:")
    for module in MODULES.findall(after) if found else ():
        path = module.replace(".", "/")
        if not any(exists(f"{each}/{path}{end}") for each in directories for end in ("", ".py")):
            yield f"{source}: {module}"


def test_docstrings_name_files_that_exist() -> None:
    """A docstring says what to read next: `ewe/site.py`, ewe.site, or programs.py of the same directory."""
    names = {Path(name).name for name in (*SOURCES, *PAGES)}
    missing = []
    for source in SOURCES:
        text = (ROOT / source).read_text()
        if any(absent(source, text, names)):  # rare, and to parse all files takes seconds
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    missing += absent(source, ast.get_docstring(node) or "", names)
    assert not missing, "\n".join(missing)


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
            exists(f"{top}/{page}") or exists(f"{top}/docs/{page}") for top in (ROOT, place_of(source))
        )
    }
    assert not missing, f"these pages are not there: {sorted(missing)}"


PAGE_NAME = re.compile(r"docs/[a-z-]+\.md")


def texts(source: str) -> Iterator[str]:
    """Return the strings of a file that names a page, without its docstrings."""
    text = (ROOT / source).read_text()
    nodes = list(ast.walk(ast.parse(text))) if PAGE_NAME.search(text) else []
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
        if PAGE_NAME.search(text)
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
