"""The words of the source: clauses have a subject, constants name their unit, and names use the field's terms.

A headless clause begins with what, who or whose, in place of the noun that it means: "Return what is left", where
"Return the unread bytes" says it. Readers have to find the noun themselves, many of them in their second language.
The count is a rate for 1,000 words, in docstrings, comments and documents.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.documents import statements

ROOT = Path(__file__).resolve().parents[2]
HOUSES = ("ewe", "packages/ewe-explore", "packages/ewe-classroom", "packages/ewe-lab", "packages/ewe-watch")

MOST_IN_A_ROOM = 0.5  # headless clauses in 1,000 words
MOST_IN_A_FILE = 2.0  # in 1,000 words; a short file may have one

HEADLESS = {"what", "who", "whose", "whoever", "whatever"}
# A clause after one of these words stands for a thing; after a noun it describes the noun.
BEFORE = set(
    re.findall(
        r"\w+",
        "of for to from by with and or on in at as than not only all about is are has have mean means say says"
        " tell tells show shows give gives see sees know knows find finds learn learns note read reads write writes"
        " return returns keep keeps drop take takes need needs send sends",
    )
)
# A clause that has a subject begins with one of these: "what the client sends".
AFTER = set(re.findall(r"\w+", "to if the a an this that each every one it they you we he she"))
COMMENT = re.compile(r"(?:^|  )\s*#+ (.*)")  # without a look at strings: they seldom have such a sign
WORD = re.compile(r"[A-Za-z][\w'-]*|\S")
PARAGRAPHS = re.compile(r"\n\s*\n")


def prose_of(path: Path) -> str:
    """Return the docstrings and comments of a source file, or the text of a document without its code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return re.sub(r"```.*?```|`[^`]*`", " code ", text, flags=re.DOTALL)
    found = [
        ast.get_docstring(node) or ""
        for node in statements(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    lines = enumerate(text.splitlines())
    comments = [(line, comment[1]) for line, code in lines if (comment := COMMENT.search(code))]
    last = -2
    for line, comment in comments:  # a comment of several lines is one text
        found.append(f"{found.pop()} {comment}" if line == last + 1 else comment)
        last = line
    return "\n\n".join(found)


def headless_clauses(text: str) -> list[str]:
    """Return the beginning of each headless clause in a text."""
    found = []
    for paragraph in PARAGRAPHS.split(text):
        lower = paragraph.lower()
        if not any(word in lower for word in HEADLESS):  # most have none, and to split all takes seconds
            continue
        words = WORD.findall(paragraph)
        for at, word in enumerate(words[:-1]):
            if word.lower() not in HEADLESS:
                continue
            before, after = words[at - 1].lower() if at else "", words[at + 1].lower()
            begins = before in BEFORE or before in ".;:(–—"
            # After a comma, "who" and "whose" describe a noun.
            begins = begins or (before == "," and word.lower() not in ("who", "whose"))
            end = next((each for each in words[at:] if each in ".?!"), ".")
            if begins and after.isalpha() and after not in AFTER and end != "?":
                found.append(" ".join(words[max(0, at - 2) : at + 4]))
    return found


def files() -> dict[Path, str]:
    """Return the files whose prose is counted, each with its room."""
    rooms = {}
    for path in ROOT.glob("docs/*.md"):
        rooms[path] = "docs"
    for path in (*ROOT.glob("ewe/**/*.py"), *ROOT.glob("tests/**/*.py")):
        inside = path.relative_to(ROOT).parts
        rooms[path] = "/".join(inside[:2]) if len(inside) > 2 else inside[0]
    for house in HOUSES[1:]:
        for pattern in ("ewe_*/**/*.py", "docs/*.md", "README.md"):
            rooms |= dict.fromkeys(ROOT.glob(f"{house}/{pattern}"), house)
        rooms |= dict.fromkeys(ROOT.glob(f"{house}/tests/**/*.py"), f"{house}/tests")
    return rooms


ROOMS = files()


@pytest.mark.parametrize("room", sorted(set(ROOMS.values())))
def test_clauses_have_a_subject(room: str) -> None:
    words = 0
    found: list[str] = []
    too_many = []
    for path in sorted(path for path in ROOMS if ROOMS[path] == room):
        text = prose_of(path)
        size, clauses = len(text.split()), headless_clauses(text)
        words += size
        found += [f"{path.relative_to(ROOT)}: {clause}" for clause in clauses]
        if len(clauses) > 1 and len(clauses) > size * MOST_IN_A_FILE / 1000:
            too_many.append(f"{path.relative_to(ROOT)}: {clauses}")
    assert not too_many, "\n".join(too_many)
    assert len(found) <= max(1, words * MOST_IN_A_ROOM / 1000), "\n".join(found)


def test_a_headless_clause_is_found() -> None:
    text = (
        "Return who may want to know. It knows what is left, and what the client sends.\n\nWhat to read next?"
    )
    assert headless_clauses(text) == ["Return who may want to", "It knows what is left ,"]


# A constant whose comment says the unit, and what the name has to say then
UNITS = {
    r"(?:milli)?seconds?": r"_(?:S|MS|US|NS)$|SECOND|MINUTE|HOUR|DAY",
    r"bytes?": r"BYTE|_[KM]I?B$|SIZE|LENGTH",
    r"characters?": r"CHAR|LENGTH|WIDTH",
}
CONSTANT = re.compile(r"([A-Z][A-Z0-9_]+)(?:: [\w.]+)? = [\d._*() +]+  # (.*)")


@pytest.mark.parametrize("house", HOUSES)
def test_constants_name_their_unit(house: str) -> None:
    """The comment of a constant that is a time or a size begins with the unit."""
    found = []
    for path in sorted(ROOT.glob(f"{house}/**/*.py")):
        if "tests" in path.parts or ".venv" in path.parts:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if (constant := CONSTANT.match(line)) is None:
                continue
            for unit, named in UNITS.items():
                if re.match(unit + r"\b", constant[2], re.IGNORECASE) and not re.search(named, constant[1]):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {constant[1]} is a number of {unit}")
    assert not found, "\n".join(found)


# Words that are no part of a name, each with the field's term, and the names and the houses that may have the word
# in another sense
COINED: dict[str, tuple[str, dict[str, str]]] = {
    "bell": ("event", {}),
    "calm": ("quiescent, idle", {"calm_s": "an argument that checks of others may have"}),
    "ceiling": ("limit", {}),
    "claim": ("protected source", {"packages/": "what a paper or a student states"}),
    "contender": ("server under test", {}),
    "demon": ("daemon", {}),
    "entrant": ("server under test", {}),
    "flight": ("in-flight request", {"in_flight": "the term itself", "InFlightRequest": "the term itself"}),
    "heard": ("received, or a wait", {}),
    "patience": (
        "timeout, limit",
        {"PATIENCE": "a variable of a lab, which students read", "order_patience": "its check"},
    ),
    "place": ("address, directory, index, line, position, slot", {}),
    "stray": ("leftover process", {}),
    "told": ("the thing that was said: directives, message, summary", {}),
}
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def names_in(tree: ast.AST) -> set[str]:
    """Return the names that a file defines or uses, without those of its tests, which are sentences."""
    found: set[str] = set()
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname"):
            if isinstance(name := getattr(node, field, None), str) and not name.startswith("test_"):
                found.update(name.split("."))
    return found


def coined(names: Iterable[str], file: str = "") -> list[str]:
    """Return the names of a file that have a coined word, each with the field's term."""
    found = []
    for name in sorted(names):
        for part in PART.findall(name):
            term, others = COINED.get(part.lower().removesuffix("s"), ("", {}))
            if (
                term
                and name not in others
                and not file.startswith(tuple(each for each in others if "/" in each))
            ):
                found.append(f"{name}: {part} is {term} here")
    return found


def test_names_use_the_terms_of_the_field() -> None:
    found = []
    for path in sorted(ROOMS):
        if path.suffix == ".py" and "tests" not in path.relative_to(ROOT).parts:
            text, file = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
            words = {part.lower().removesuffix("s") for part in set(PART.findall(text))}
            if not words.isdisjoint(COINED):  # few, and to parse all files takes seconds
                found += [f"{file}: {each}" for each in coined(names_in(ast.parse(text)), file)]
    assert not found, "\n".join(found)


def test_a_coined_word_is_found() -> None:
    assert coined(
        names_in(ast.parse("class DemonProcess: ...\nself.daemon.demons = demonstrate(a_demon=1)"))
    ) == [
        "DemonProcess: Demon is daemon here",
        "a_demon: demon is daemon here",
        "demons: demons is daemon here",
    ]
