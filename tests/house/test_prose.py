"""Idioms that readers stumble over stay out of comments, messages and documents.

Second-year students read ewe, many of them in their second language. The short list below holds idioms that a plain
verb with a subject says better.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SEARCHED = [
    "README.md",
    "Makefile",
    "tests/README.md",
    "docs/*.md",
    "packages/*/README.md",
    "packages/*/docs/*.md",
    "packages/*/hatch_build.py",
    "packages/*/ewe_*/**/*",
    "ewe/**/*",
    "htdocs/*.html",
    "cgi-bin/*",
    "libcgi-bin/*",
]
SUFFIXES = {
    "", ".c", ".cpp", ".css", ".h", ".html", ".j2", ".java", ".md", ".php", ".pl", ".py", ".rs", ".sh", ".sql",
    ".toml", ".xml",
}  # fmt: skip

# An idiom, and what to write in its place. Capitals count: "So" and "Nor" are banned where a sentence begins.
IDIOMS = {
    r"anew": "again; a new …",
    r"[Ww]hoever": "name the person or the process",
    r"[Ww]hatever": "name the things, or: any, all",
    r"of (?:its|their|our|his|her) own": "its own …, a separate …, a private …",
    r"as \w+(?: \w+){0,2} (?:has|have) it": "as RFC 9110 says; as Apache does",
    r"[Ss]o to speak": "leave it out",
    r"[Tt]hat is to say": "leave it out, or begin a new sentence",
    r"for keeps": "permanently",
    r"for ever": "until the process ends; without a limit",
    r"whose it is": "its owner",
    r"[Ww]hat is no": "name the thing: a file that is not …",
    r"[Ww]ho gives up": "name the process: a process that drops …",
    r"Nor": "… does not … either; or join the two sentences",
    r"So(?! that)": "begin with the subject: ewe therefore …",
}
PATTERNS = {idiom: re.compile(rf"\b{idiom}\b") for idiom in IDIOMS}
# A search that begins with \b takes ten times as long. Few files have a word that ends like an idiom.
ENDS = [re.compile(rf"{idiom}\b") for idiom in IDIOMS]

# Lists that are generated from the source, where their sentences are searched.
GENERATED = re.compile(r"<!-- rooms.*?<!-- end of rooms -->", re.DOTALL)

# A sentence goes on in the next line, behind its comment sign.
LINE_END = re.compile(r"\n[ \t]*(?:#+|//+|\*)?[ \t]*")


def searched() -> dict[str, Path]:
    """Return the files that are searched, by their names in the repository."""
    found = {path for pattern in SEARCHED for path in ROOT.glob(pattern) if path.is_file()}
    names = {path.relative_to(ROOT).as_posix(): path for path in found if path.suffix in SUFFIXES}
    return {
        name: names[name]
        for name in sorted(names)
        if "/target/" not in name and "__pycache__" not in name and name != "cgi-bin/hello-c"
    }


def idioms(text: str) -> list[str]:
    """Return each banned idiom in a text, with the line that it stands in and what to write instead."""
    found: list[str] = []
    loose = re.sub(r"\s+", " ", LINE_END.sub(" ", text))
    if not any(end.search(loose) for end in ENDS):
        return found
    text = GENERATED.sub(lambda part: "\n" * part[0].count("\n"), text)
    joined = LINE_END.sub(lambda end: "\n" + " " * (len(end[0]) - 1), text)  # as long as before
    flat = joined.replace("\n", " ")
    flat = re.sub(r"(?<=\S) +(?=\S)", lambda gap: " " + "\0" * (len(gap[0]) - 1), flat)
    places = [place for place, letter in enumerate(flat) if letter != "\0"]
    plain = flat.replace("\0", "")
    for idiom, pattern in PATTERNS.items():
        for match in pattern.finditer(plain):
            line = text.count("\n", 0, places[match.start()]) + 1
            found.append(f'line {line}: "{match[0]}"; better: {IDIOMS[idiom]}')
    return found


def test_no_banned_idioms() -> None:
    texts = {name: path.read_text(encoding="utf-8") for name, path in searched().items()}
    assert len(texts) > 800
    found = [f"{name}, {idiom}" for name, text in texts.items() for idiom in idioms(text)]
    assert not found, "\n" + "\n".join(found)


def test_an_idiom_is_found_across_lines_and_with_its_line() -> None:
    text = "# Of\n#\n# a process of\n#    its own, so that\nx = 1  # anew\n# So it ends. So that is fine.\n"
    assert [each.partition(";")[0] for each in idioms(text)] == [
        'line 5: "anew"',
        'line 3: "of its own"',
        'line 6: "So"',
    ]
