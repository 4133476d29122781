"""Handouts: the directory that a student gets for a lab, or its solution.

    ~/handout/README.md       the assignment, and how to begin
              assignment.html the same as one page, for a browser
              server.py …     the starter (or the solution); it runs, and says what is missing
              Makefile, …     what the language needs
              site/           with a seed: the student's own files (seeds.py)

Nothing is overwritten: a directory with files of the same names is refused before anything is written.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from ewe.config.messages import ConfigError
from ewe_classroom.course.labs import MODEL, Lab, Way
from ewe_classroom.course.text_page import to_html
from ewe_classroom.grader import scheme
from ewe_classroom.grader.kinds import SERVER
from ewe_classroom.seeds import Seed

BEGIN = """
## Begin

You have these files:

{files}

{build}Grade your work whenever you like. Each failing check says what was sent, what happened, what should have
happened, and how to see it again:

    ewe-grade --lab {lab} {grade}
"""
POINTS = """
## Points

`ewe-grade --explain CHECK` says of each check what it sends and expects, and why.

| check | points | what it proves |
|---|---|---|
{rows}
"""
BUILD = "Build the server with `{build}`. "
NUMBERS = """
## Your numbers

These numbers are {name}'s. `ewe-grade --seed {quoted}` uses the same ones.

| what | yours |
|---|---|
| port | {port} |
{workers}{files}

The files are in `site`, beside your server.{run}
"""


def write(lab: Lab, way: Way, directory: Path, *, solved: bool, seed: Seed | None = None) -> list[Path]:
    """Write a handout; return the files. Raises ConfigError: a file is there, or cannot be written.

    seed: the student whose numbers the handout names.
    """
    texts = lab.files(way, solved=solved)
    if not solved:
        texts["README.md"] = assignment(lab, way, seed)
        texts["assignment.html"] = to_html(texts["README.md"], lab.title)
    if seed is not None and has_numbers(lab):
        texts |= {f"site{path}": content.decode() for path, content in seed.files().items()}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if there := [name for name in texts if (directory / name).exists()]:
            raise ConfigError(f"{directory / there[0]} is there already; choose another directory")
        for name, text in texts.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as reason:
        raise ConfigError(f"{reason.filename}: {reason.strerror}") from None
    return [directory / name for name in texts]


def assignment(lab: Lab, way: Way, seed: Seed | None = None) -> str:
    """Return the text of a lab for one way to do it, as Markdown; with the numbers of a student."""
    files = [f"- `{name}`: your work" for name in way.work]
    files += [f"- `{name}`: given, and complete" for name in way.given]
    begin = BEGIN.format(
        files="\n".join(files),
        build=BUILD.format(build=way.build) if way.build else "",
        lab=f"{lab.name} --seed {shlex.quote(seed.name)}" if seed is not None else lab.name,
        grade=way.grade,
    )
    items = scheme.load(lab.name).items
    rows = (f"| `{item.check.name}` | {item.points} | {item.check.proves} |" for item in items)
    points = POINTS.format(rows="\n".join(rows))
    total = sum(item.points for item in items)
    how = "a model of ewe" if way.name == MODEL else {"c": "C", "go": "Go"}.get(way.name, "Python")
    head = f"# {lab.title}\n\n*In {how}. Plan {lab.hours} hours. {total} points.*\n\n"
    own = numbers(lab, way, seed) if seed is not None and has_numbers(lab) else ""
    return head + lab.read("text.md").strip() + "\n" + begin + own + points


def has_numbers(lab: Lab) -> bool:
    """Return whether a seed changes a lab: one that grades servers."""
    return scheme.load(lab.name).subject == SERVER


def numbers(lab: Lab, way: Way, seed: Seed) -> str:
    """Return what a handout says of a student's numbers."""
    usual = scheme.load(lab.name).workers
    workers = seed.workers(usual)
    files = [f"| `/{path[1:]}` | {len(content):,} bytes |" for path, content in seed.files().items()]
    run = f" Try: `python3 {way.work[0]} {seed.port} site {workers}`" if way.name == "python" else ""
    return NUMBERS.format(
        name=seed.name,
        quoted=shlex.quote(seed.name),
        port=seed.port,
        workers=f"| workers | {workers} |\n" if usual > 1 else "",
        files="\n".join(files),
        run=run,
    )
