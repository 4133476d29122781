"""Handouts in other natural languages than English: the same labs in German and Spanish.

A lab has one text for all programming languages (one_text.py). Another locale adds a second file with these marks:

    labs/pool/text.md  text.de.md  text.es.md     the assignment; only labs with such a file have the locale
    labs/words.de.toml                            words that are phrases, or need an article: {{a-thread}}
    labs/frame.toml                               the sentences around each assignment, for all locales
    labs/phrases.toml                             titles of labs, headings, words in pictures

Names of files, functions and checks are the same in each locale, and so are all commands. The checks, the reports
and the questions of `ewe-course questions` speak English; the frame says so. A test compares each text with the
English one: sections with their times, lists, commands, names in code.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

ENGLISH = "en"
LOCALES = (ENGLISH, "de", "es")
LABS = Path(__file__).resolve().parents[1] / "labs"
LABEL = re.compile(r"(?<=>)[^<>]+(?=<)")  # the text of an element of a picture

Words = dict[str, dict[str, str]]


def localized_name(file: str, locale: str) -> str:
    """Return the name of a text's file in a locale: "text.md" -> "text.de.md"."""
    stem, dot, suffix = file.rpartition(".")
    return file if locale == ENGLISH else f"{stem}.{locale}{dot}{suffix}"


@cache
def table(name: str) -> Words:
    """Return a table of labs/: key -> programming language or locale -> form."""
    return tomllib.loads((LABS / name).read_text(encoding="utf-8"))


def words(locale: str = ENGLISH) -> Words:
    """Return the words of the texts of a locale: word -> programming language -> its form."""
    return table("words.toml") | (table(f"words.{locale}.toml") if locale != ENGLISH else {})


def shared_text(piece: str, locale: str) -> str:
    """Return a piece of the text around the assignments."""
    return table("frame.toml")[piece][locale]


def phrase(english: str, locale: str) -> str:
    """Return a phrase in a locale; the English phrase if the table lacks it."""
    return table("phrases.toml").get(english, {}).get(locale, english)


def picture(source: str, locale: str) -> str:
    """Return the source of an SVG picture with its labels in a locale."""
    return LABEL.sub(lambda label: phrase(label[0], locale), source)
