"""The labs of the course. Each lab is a folder below ewe_classroom/labs:

    labs/pool/lab.toml        title, order, hours, scenes, and which files a student gets in each language
              text.md         the assignment, one text for all languages (one_text.py)
              text.de.md …    the same in another locale (locales.py)
              rubric.md       the rubric: the criteria that only a person can mark
              grading.toml    the checks and points of ewe-grade (scheme.py)
              server.py …     sources: each holds the starter and the solution (one_source.py)
              first_test.py … a small test of the lab's subject, in each language
    labs/shared/              sources that several labs use
    labs/words.toml           the words of the texts that differ between the languages

A file of a lab is `work` or `given`. The student gets the starter of a `work` file, and the solution of a `given`
file, because an earlier lab was about it. If a lab's folder lacks a source, the source comes from `shared`.
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ewe.config.messages import ConfigError, nearest
from ewe_classroom.course import locales
from ewe_classroom.course.locales import ENGLISH
from ewe_classroom.course.one_source import SourceError, solution, starter
from ewe_classroom.course.one_text import TextError, text_for

LABS = Path(__file__).resolve().parents[1] / "labs"
LANGUAGES = ("python", "c", "go")
# The heading of a section: its title, and its time as a number and a unit.
STEP = re.compile(r"^## (.+) \(([\d.]+) (h|min)\)$", re.MULTILINE)
PICTURE = re.compile(r"!\[[^]]*\]\(([\w-]+\.svg)\)")
CLASS_HOURS = 1.5  # of the class that begins a lab
MODEL = "model"  # stands among the languages: a model of ewe, one Python file


@dataclass(frozen=True)
class LabVariant:
    """One way to do a lab: a language, or a model of ewe.

    work, given: names of files, as above. grade: the arguments of ewe-grade that name the server. build: the
    command that builds the server, or "". data: files that the student's program writes and the student hands in.
    pages: pages of ewe's documentation that come with the handout, as "package/page" (handout.py). first_test: the
    command of the test that the student runs before the work. tests: the files of that test; ewe-grade
    uses none of them.
    """

    name: str
    work: tuple[str, ...]
    given: tuple[str, ...]
    grade: str
    build: str = ""
    data: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()
    first_test: str = ""
    tests: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lab:
    """One lab. hours: the time that a student should plan, in Python. questions: templates (questions.py)."""

    name: str
    order: int
    title: str
    summary: str
    hours: int
    variants: dict[str, LabVariant]
    questions: tuple[dict[str, str], ...]
    measures: str = "server"  # the object of `ewe-course measure` (measurements.py)
    scenes: tuple[str, ...] = ()  # the scenes of ewe-watch that show its subject

    @property
    def folder(self) -> Path:
        return LABS / self.name

    def read(self, file: str) -> str:
        """Return the text of a file in the lab's folder, or else in `shared`. Raises ConfigError."""
        path = self.folder / file
        try:
            return (path if path.exists() else LABS / "shared" / file).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(
                f"this installation has no {file} of the lab {self.name}: it comes from a pack (ewe-course pack),"
                " which leaves the sources out; use ewe-course in a clone of ewe"
            ) from None

    @property
    def locales(self) -> list[str]:
        """Return the locales in which the lab has a text."""
        return [
            each
            for each in locales.LOCALES
            if (self.folder / locales.localized_name("text.md", each)).exists()
        ]

    def in_language(self, file: str, language: str, locale: str = ENGLISH) -> str:
        """Return a text of the lab, or a picture, in the words of a programming language and of a locale.

        Raises ConfigError if the lab has no text in this locale, or if the text names a language or a word that is
        unknown (one_text.py).
        """
        if locale != ENGLISH and locale not in self.locales:
            raise ConfigError(
                f"the lab {self.name} has no text in {locale}; it has {', '.join(self.locales)}"
            )
        is_picture = file.endswith(".svg")
        name = file if is_picture else locales.localized_name(file, locale)
        source = locales.picture(self.read(name), locale) if is_picture else self.read(name)
        try:
            return text_for(language, source, locales.words(locale), (*LANGUAGES, MODEL))
        except TextError as error:
            raise ConfigError(f"{self.folder / name}: {error}") from None

    def pictures(self, text: str, language: str, locale: str = ENGLISH) -> dict[str, str]:
        """Return the pictures that a text of the lab shows: name -> SVG source."""
        return {name: self.in_language(name, language, locale) for name in PICTURE.findall(text)}

    def files(self, variant: LabVariant, *, solved: bool) -> dict[str, str]:
        """Return the files of one variant: name -> text. solved: return solutions in place of starters.

        Raises ConfigError.
        """
        found = {}
        for name in (*variant.work, *variant.given):
            make = starter if name in variant.work and not solved else solution
            try:
                found[name] = make(self.read(name))
            except SourceError as error:
                raise ConfigError(f"{self.folder / name}: {error}") from None
        return found

    def variant(self, name: str) -> LabVariant:
        """Return the variant in a language: one of LANGUAGES, or MODEL. Raises ConfigError."""
        if name not in self.variants:
            raise ConfigError(
                f"the lab {self.name} has no version in {name}; choose one of {', '.join(self.variants)}"
            )
        return self.variants[name]


def lab(name: str) -> Lab:
    """Return a lab by its name. Raises ConfigError."""
    file = LABS / name / "lab.toml"
    # A name with a slash could lead to a file outside of LABS. os.path.isfile() is false for one that is too long.
    if "/" in name or not os.path.isfile(file):
        known = [each.name for each in labs()]
        raise ConfigError(f"there is no lab {name!r}{nearest(name, known)}; the labs are {', '.join(known)}")
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    variants = {
        each: LabVariant(
            name=each,
            work=tuple(table[each]["work"]),
            given=tuple(table[each].get("given", ())),
            grade=table[each]["grade"],
            build=table[each].get("build", ""),
            data=tuple(table[each].get("data", ())),
            pages=tuple(table[each].get("pages", ())),
            first_test=table[each].get("first", ""),
            tests=tuple(table[each].get("tests", ())),
        )
        for each in (*LANGUAGES, MODEL)
        if each in table
    }
    return Lab(
        name,
        order=table["order"],
        title=table["title"],
        summary=table["summary"],
        hours=table["hours"],
        variants=variants,
        questions=tuple(table.get("question", ())),
        measures=table.get("measures", "server"),
        scenes=tuple(table.get("scenes", ())),
    )


class LabStep(NamedTuple):
    """A section of an assignment that has a time."""

    title: str
    hours: float


def steps(text: str) -> list[LabStep]:
    """Return the sections of an assignment whose headings have a time (STEP)."""
    found = STEP.findall(text)
    return [LabStep(title, float(time) / (60 if unit == "min" else 1)) for title, time, unit in found]


class LabHours(NamedTuple):
    """The hours that a student should plan for a lab."""

    in_class: float
    at_home: float


def class_and_home(text: str) -> LabHours:
    """Return the hours for an assignment. The class begins the first step, for at most CLASS_HOURS."""
    hours = [step.hours for step in steps(text)]
    in_class = min(hours[0], CLASS_HOURS)
    return LabHours(in_class, sum(hours) - in_class)


def labs() -> list[Lab]:
    """Return all labs, in the order of the course."""
    return sorted((lab(path.parent.name) for path in LABS.glob("*/lab.toml")), key=lambda each: each.order)
