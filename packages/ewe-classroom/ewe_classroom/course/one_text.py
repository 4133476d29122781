"""One text for all languages: an assignment in the words of the language that a student uses.

The text of a lab is one Markdown file, so that a correction reaches each language. It has two kinds of marks:

    A thread that wakes up must **test again**: {{while}}, not `if`.      a word: one for each language
    <!-- c -->
    `sigaction()` without `SA_RESTART` ends a waiting `ppoll()`.          a part: only for the named languages
    <!-- python model -->
    Python runs the handler of a signal in the main thread.
    <!-- all -->
    This line is for all.

labs/words.toml has the words, in a table with a form for each language. A word that no text of a language uses has
no form. A used word without a form, and a mark with an unknown language, are errors of the text: a student
would read a hole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

PART = re.compile(r"\s*<!-- ([a-z ]+) -->\s*")
WORD = re.compile(r"\{\{([a-z-]+)\}\}")
ALL = "all"


class TextError(ValueError):
    """A mark of a text is wrong. The message is one line and names the line number."""


def text_for(
    language: str, text: str, words: Mapping[str, Mapping[str, str]], languages: tuple[str, ...]
) -> str:
    """Return the text for one language, without marks (`<!-- c go -->`, `{{while}}`). Raises TextError.

    words: word -> language -> its form. languages: the names that a mark may have.
    """
    lines = []
    shown = True  # whether the present part, which a mark begins, is for this language
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        mark = PART.fullmatch(line)
        if mark is None:
            if shown:
                lines.append(fill_in_words(line, language, words, number))
            continue
        named = mark[1].split()
        if unknown := [each for each in named if each not in (*languages, ALL)]:
            raise TextError(
                f"line {number}: {unknown[0]} is no language; write {', '.join(languages)} or {ALL}"
            )
        shown = ALL in named or language in named
    return "".join(lines)


def fill_in_words(line: str, language: str, words: Mapping[str, Mapping[str, str]], number: int) -> str:
    """Return a line with a language's form in place of each word. number: of the line. Raises TextError."""

    def form_of(match: re.Match[str]) -> str:
        """Return the form of the word that a match of WORD names."""
        word = match[1]
        forms = words.get(word, {})
        if language not in forms:
            raise TextError(f"line {number}: the word {word} has no form for {language} in words.toml")
        return forms[language]

    return WORD.sub(form_of, line)
