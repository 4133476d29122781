"""The labs of the course: one folder each below ewe_classroom/labs, and what is in it.

    labs/pool/lab.toml        title, order, hours, and which files a student gets in each language
              text.md         the assignment
              rubric.md       what a person marks, since no program can
              grading.toml    what ewe-grade marks (scheme.py)
              server.py …     sources: starter and solution in one (one_source.py)
    labs/shared/              sources that several labs use

A file of a lab is `work` (the student gets its starter) or `given` (the student gets its solution, since it was an
earlier lab's work). A source that is not in the lab's folder is looked for in `shared`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from ewe.config.messages import ConfigError, nearest
from ewe_classroom.course.one_source import SourceError, solution, starter

LABS = Path(__file__).resolve().parents[1] / "labs"
LANGUAGES = ("python", "c", "go")
MODEL = "model"  # beside the languages: a model of ewe, one Python file


@dataclass(frozen=True)
class Way:
    """One way to do a lab: a language, or a model of ewe.

    grade: the arguments of ewe-grade for it. data: files that the work makes, and that are handed in, too.
    """

    name: str
    work: tuple[str, ...]
    given: tuple[str, ...]
    grade: str
    build: str = ""
    data: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lab:
    """One lab. hours: what a student should plan. questions: templates, see questions.py."""

    name: str
    order: int
    title: str
    summary: str
    hours: int
    ways: dict[str, Way]
    questions: tuple[dict[str, str], ...]
    measures: str = "server"  # what `ewe-course measure` measures: measurements.py

    @property
    def folder(self) -> Path:
        return LABS / self.name

    def read(self, file: str) -> str:
        """Return a file of the lab's folder, or of the shared one."""
        path = self.folder / file
        return (path if path.exists() else LABS / "shared" / file).read_text(encoding="utf-8")

    def files(self, way: Way, *, solved: bool) -> dict[str, str]:
        """Return the files of one way: name -> text. solved: the solution, else the starter."""
        found = {}
        for name in (*way.work, *way.given):
            make = starter if name in way.work and not solved else solution
            try:
                found[name] = make(self.read(name))
            except SourceError as error:
                raise ConfigError(f"{self.folder / name}: {error}") from None
        return found

    def way(self, name: str) -> Way:
        """Return a way by its name. Raises ConfigError."""
        if name not in self.ways:
            raise ConfigError(
                f"the lab {self.name} cannot be done in {name}; it can in {', '.join(self.ways)}"
            )
        return self.ways[name]


def lab(name: str) -> Lab:
    """Return a lab by its name. Raises ConfigError."""
    file = LABS / name / "lab.toml"
    if "/" in name or not file.is_file():
        known = [each.name for each in labs()]
        raise ConfigError(f"there is no lab {name!r}{nearest(name, known)}; the labs are {', '.join(known)}")
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    ways = {
        each: Way(
            each,
            tuple(table[each]["work"]),
            tuple(table[each].get("given", ())),
            table[each]["grade"],
            table[each].get("build", ""),
            tuple(table[each].get("data", ())),
        )
        for each in (*LANGUAGES, MODEL)
        if each in table
    }
    return Lab(
        name,
        table["order"],
        table["title"],
        table["summary"],
        table["hours"],
        ways,
        tuple(table.get("question", ())),
        table.get("measures", "server"),
    )


def labs() -> list[Lab]:
    """Return all labs, in the order of the course."""
    return sorted((lab(path.parent.name) for path in LABS.glob("*/lab.toml")), key=lambda each: each.order)
