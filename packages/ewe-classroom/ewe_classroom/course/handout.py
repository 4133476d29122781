"""Handouts: the directory that a student gets for a lab, or its solution.

    ~/handout/README.md       the assignment, and how to begin
              assignment.html the same as one page, for a browser
              explorer.html … pages of ewe's documentation that the assignment names
              server.py …     the starter (or the solution); it runs, and its comments name the missing parts
              first_test.py … a small test of the lab's subject, which the student runs first
              Makefile, …     build files of the language
              site/           with a seed: the student's own files (seeds.py)

The assignment speaks the student's programming language (one_text.py), and a locale (locales.py): English, German
or Spanish. Without the package Markdown there are no pages: the handout then has the texts from which they are
made.

write() overwrites no file. It refuses a directory that already has a file of the same name, and then writes
nothing.
"""

from __future__ import annotations

import re
import shlex
from itertools import groupby
from pathlib import Path

from ewe.config.messages import ConfigError, docs_page
from ewe_classroom.course.labs import MODEL, STEP, Lab, LabVariant, steps
from ewe_classroom.course.locales import ENGLISH, phrase, shared_text
from ewe_classroom.course.text_page import MarkdownMissing, to_html
from ewe_classroom.grader import scheme
from ewe_classroom.grader.kinds import SERVER
from ewe_classroom.seeds import Seed

SOURCE_OF_EWE = re.compile(r"`(ewe/[\w/]+\.py)`")
PROGRAMMING = {"python": "Python", "c": "C", "go": "Go"}
SUBJECTS = {
    "conversations": "Requests and responses",
    "progress": "Many clients at once",
    "bursts": "Many clients at once",
    "workers": "Workers",
    "queue_races": "The queue",
    "schedules": "The order of requests",
    "programs": "Programs",
    "running_programs": "Programs that run on",
    "hygiene": "Resources",
    "faults": "Clients and systems that fail",
    "stops": "The end",
    "conditional": "Conditional requests",
    "caches": "The cache",
    "engines": "The engine",
    "engine_xswitch": "Behind X-Switch",
    "runs": "The data",
}  # the module of a check -> the heading of its rows in the table of points


def write(
    lab: Lab,
    variant: LabVariant,
    directory: Path,
    *,
    solved: bool,
    seed: Seed | None = None,
    locale: str = ENGLISH,
) -> list[Path]:
    """Write a handout; return its files.

    seed: the student whose numbers the handout names. locale: the natural language of the assignment.

    Raises ConfigError if a file exists already or cannot be written, or if the lab has no text in the locale.
    """
    texts = lab.files(variant, solved=solved) | {name: lab.read(name) for name in variant.tests}
    if not solved:
        texts |= texts_for_the_student(lab, variant, seed, locale)
    if seed is not None and has_numbers(lab):
        texts |= {f"site{path}": content.decode() for path, content in seed.files().items()}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if there := [name for name in texts if (directory / name).exists()]:
            raise ConfigError(f"{directory / there[0]} exists already; choose another directory")
        for name, text in texts.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as reason:
        raise ConfigError(f"cannot write {reason.filename or directory}: {reason.strerror}") from None
    return [directory / name for name in texts]


def texts_for_the_student(lab: Lab, variant: LabVariant, seed: Seed | None, locale: str) -> dict[str, str]:
    """Return the assignment with its pictures, and the pages that it names; name -> text.

    Each page is HTML if the package Markdown is installed, and Markdown otherwise.
    """
    text = assignment(lab, variant, seed, locale)
    pictures = lab.pictures(text, variant.name, locale)
    texts = {"README.md": text, **pictures}
    sources = {name.partition("/")[2]: page(name) for name in variant.pages}
    try:
        texts["assignment.html"] = to_html(text, phrase(lab.title, locale), pictures, locale)
        texts |= {f"{name}.html": to_html(source, name) for name, source in sources.items()}
    except MarkdownMissing:
        texts |= {f"{name}.md": source for name, source in sources.items()}
    return texts


def page(name: str) -> str:
    """Return a page of the documentation, or a page that says that it is missing. name: "package/page"."""
    package, _, stem = name.partition("/")
    path = docs_page(f"{stem}.md", "" if package == "ewe" else package)
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return f"# {stem}\n\nThis page is missing in the installation of ewe. Its source is {path}.\n"


def assignment(lab: Lab, variant: LabVariant, seed: Seed | None = None, locale: str = ENGLISH) -> str:
    """Return the assignment of a lab in one language, as Markdown. With a seed, add the numbers of that student.

    The text of the lab (text.md) stands between pieces that all labs share (frame.toml).
    """
    text = lab.in_language("text.md", variant.name, locale).strip()
    plan = scheme.load(lab.name).checks_for_language(variant.name)
    files = [shared_text("work", locale).format(name=name) for name in variant.work]
    files += [shared_text("given", locale).format(name=name) for name in variant.given]
    files += [shared_text("test", locale).format(name=name) for name in variant.tests]
    source = SOURCE_OF_EWE.search(text)
    begin = shared_text("begin", locale).format(
        files="\n".join(files),
        source=shared_text("source", locale).format(name=source[1]) if source else "",
        build=shared_text("build", locale).format(build=variant.build) if variant.build else "",
        lab=f"{lab.name} --seed {shlex.quote(seed.name)}" if seed is not None else lab.name,
        grade=variant.grade,
        name=lab.name,
        measured=variant.grade,
        subject=plan.kind,
    )
    times = [step.hours for step in steps(text)]
    head = shared_text("head", locale).format(
        how=shared_text("model", locale) if variant.name == MODEL else PROGRAMMING[variant.name],
        hours=sum(times),
        steps=len(times),
        points=sum(item.points for item in plan.items),
    )
    own = section_of_numbers(lab, variant, seed, locale) if seed is not None and has_numbers(lab) else ""
    title = phrase(lab.title, locale)
    scenes = "\n".join(f"    ewe-watch --scene {name}" for name in lab.scenes)
    watch = shared_text("scenes", locale).format(commands=scenes).strip("\n") + "\n\n" if scenes else ""
    text = with_first_test(text, variant, locale)
    return f"# {title}\n\n{head}\n\n{watch}{text}\n{begin}{own}{section_of_points(plan, locale)}"


def with_first_test(text: str, variant: LabVariant, locale: str) -> str:
    """Return the text of a lab with the command of its first test, below the heading of the first step."""
    go = shared_text("first-go", locale).rstrip("\n") if variant.name == "go" else ""
    race = shared_text("first-race", locale) if "-race" in variant.first_test else ""
    first = shared_text("first", locale).format(command=variant.first_test, go=go + race)
    return STEP.sub(lambda heading: heading[0] + first.rstrip("\n"), text, count=1)


def section_of_points(plan: scheme.Scheme, locale: str = ENGLISH) -> str:
    """Return the section with the points of a lab, as Markdown."""
    return shared_text("points", locale).format(rows="\n".join(rows_of_points(plan, locale)))


def rows_of_points(plan: scheme.Scheme, locale: str) -> list[str]:
    """Return the rows of the table of points, in groups by the subject of the checks."""
    rows = []
    order = list(SUBJECTS.values())
    # groupby() joins only neighbours. Checks with the heading "More" come last.
    items = sorted(
        plan.items, key=lambda item: order.index(heading(item)) if heading(item) in order else len(order)
    )
    for title, group in groupby(items, key=heading):
        checks = list(group)
        rows.append(f"| **{phrase(title, locale)}** | **{sum(item.points for item in checks)}** | | |")
        rows += [
            f"| `{item.check.name}` | {item.points} | {item.check.proves} | "
            f"{', '.join(f'`{name}`' for name in item.needs)} |"
            for item in checks
        ]
    return rows


def heading(item: scheme.Item) -> str:
    """Return the heading of the rows to which the check of an item belongs."""
    return SUBJECTS.get(item.check.function.__module__.rpartition(".")[2], "More")


def has_numbers(lab: Lab) -> bool:
    """Return whether a seed changes this lab. It changes the labs that grade servers."""
    return scheme.load(lab.name).kind == SERVER


def section_of_numbers(lab: Lab, variant: LabVariant, seed: Seed, locale: str) -> str:
    """Return the section of a handout with the student's numbers: the port, the workers, and the files."""
    usual_workers = scheme.load(lab.name).workers
    workers = seed.workers(usual_workers)
    files = [
        shared_text("file", locale).format(path=path, bytes=len(content))
        for path, content in seed.files().items()
    ]
    command = f"python3 {variant.work[0]} {seed.port} site {workers}"
    return shared_text("numbers", locale).format(
        name=seed.name,
        quoted=shlex.quote(seed.name),
        port=seed.port,
        workers=shared_text("workers", locale).format(workers=workers) if usual_workers > 1 else "",
        files="\n".join(files),
        run=shared_text("try", locale).format(command=command) if variant.name == "python" else "",
    )
