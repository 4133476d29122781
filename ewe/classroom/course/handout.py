"""Handouts: the directory that a student gets for a lab, or its solution.

    ~/handout/README.md       the assignment, and how to begin
              assignment.html the same as one page, for a browser
              server.py …     the starter (or the solution); it runs, and says what is missing
              Makefile, …     what the language needs

Nothing is overwritten: a directory with files of the same names is refused before anything is written.
"""

from __future__ import annotations

from pathlib import Path

from ewe.classroom.course.labs import MODEL, Lab, Way
from ewe.classroom.course.text_page import to_html
from ewe.config.messages import ConfigError

BEGIN = """
## Begin

You have these files:

{files}

{build}Grade your work whenever you like. Each failing check says what was sent, what happened, what should have
happened, and how to see it again:

    ewe-grade --lab {lab} {grade}
"""
BUILD = "Build the server with `{build}`. "


def write(lab: Lab, way: Way, directory: Path, *, solved: bool) -> list[Path]:
    """Write a handout; return the files. Raises ConfigError: a file is there, or cannot be written."""
    texts = lab.files(way, solved=solved)
    if not solved:
        texts["README.md"] = assignment(lab, way)
        texts["assignment.html"] = to_html(texts["README.md"], lab.title)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if there := [name for name in texts if (directory / name).exists()]:
            raise ConfigError(f"{directory / there[0]} is there already; choose another directory")
        for name, text in texts.items():
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as reason:
        raise ConfigError(f"{reason.filename}: {reason.strerror}") from None
    return [directory / name for name in texts]


def assignment(lab: Lab, way: Way) -> str:
    """Return the text of a lab for one way to do it, as Markdown."""
    files = [f"- `{name}`: your work" for name in way.work]
    files += [f"- `{name}`: given, and complete" for name in way.given]
    begin = BEGIN.format(
        files="\n".join(files),
        build=BUILD.format(build=way.build) if way.build else "",
        lab=lab.name,
        grade=way.grade,
    )
    how = "a model of ewe" if way.name == MODEL else {"c": "C", "go": "Go"}.get(way.name, "Python")
    head = f"# {lab.title}\n\n*In {how}. Plan {lab.hours} hours.*\n\n"
    return head + lab.read("text.md").strip() + "\n" + begin
