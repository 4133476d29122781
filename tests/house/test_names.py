"""A class name stands for one thing: a name that two files define is in the table below and in the glossary."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs/glossary.md"
MOST_SHARED = 15
# Programs by themselves, which share no module with ewe, and the hooks of the build
APART = ("ewe_explore/samples/", "ewe_classroom/labs/", "hatch_build.py")
# The names that several files may define, and the reason: each is one concept in several places.
SHARED = {
    "BuildError": "a native part cannot be built: of LibCGI, of the engine for Java",
    "Event": "the processor of the model asyncio; an event of a state table; threading.Event of the explorer",
    "IllegalEvent": "an event without a row in a state table",
    "ProtocolError": "a peer violates a protocol: of the database daemon, of X-Switch's engines",
    "Requester": "the web server's end of a connection: one class for FastCGI, SCGI and uwsgi each",
    "Response": "an HTTP or CGI response: as the server sends it, as two clients read it",
    "Settings": "all settings of one program: X-Switch, the database daemon",
    "StartError": "a program cannot start: ewe, X-Switch",
    "State": "a state of a state table",
    "Supervisor": "the process that starts others and replaces them: of ewe, of X-Switch",
    "Thread": "the processor by its model's name; threading.Thread of the explorer",
    "XSwitch": "the model by its name; the connections of the feature to an X-Switch",
}


CLASS = re.compile(r"^\s*class (\w+)", re.MULTILINE)


def defined() -> dict[str, set[str]]:
    """Return the files that define each class name of several files, relative to the root of the clone.

    Names of one file may be there too.
    """
    found: dict[str, set[str]] = defaultdict(set)
    texts = {}
    for path in sorted([*ROOT.glob("ewe/**/*.py"), *ROOT.glob("packages/*/ewe_*/**/*.py")]):
        file = path.relative_to(ROOT).as_posix()
        if not any(part in file for part in APART):
            texts[file] = path.read_text()
    classes = Counter(name for text in texts.values() for name in set(CLASS.findall(text)))
    for file, text in texts.items():
        if any(
            classes[name] > 1 for name in CLASS.findall(text)
        ):  # few, and to parse all files takes seconds
            add_classes(found, file, text)
    return found


def add_classes(found: dict[str, set[str]], file: str, text: str) -> None:
    """Add the names of a file's classes to `found`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            found[node.name].add(file)


def shared(found: dict[str, set[str]]) -> dict[str, list[str]]:
    """Return the names that several files define, with these files."""
    return {name: sorted(files) for name, files in found.items() if len(files) > 1}


def test_only_names_of_one_concept_are_shared() -> None:
    found = shared(defined())
    others = {name: files for name, files in found.items() if name not in SHARED}
    assert not others, f"rename one class of each pair: {others}"
    assert not (unused := SHARED.keys() - found.keys()), f"no longer shared: {unused}"
    assert len(SHARED) <= MOST_SHARED


@pytest.mark.parametrize("name", SHARED)
def test_the_glossary_explains_a_shared_name(name: str) -> None:
    assert re.search(rf"^\| `{name}` \|", GLOSSARY.read_text(), re.MULTILINE), f"{name}: no row in {GLOSSARY}"


def test_a_second_class_of_a_name_is_found() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    add_classes(found, "one.py", "class Line: ...\nclass Other: ...\n")
    add_classes(found, "two.py", "if True:\n    class Line: ...\n")
    assert shared(found) == {"Line": ["one.py", "two.py"]}
