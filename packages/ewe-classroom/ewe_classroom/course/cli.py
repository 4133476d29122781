"""The command `ewe-course`: labs for a course, as handouts, solutions and packs; measurements and questions.

Exit codes: 0 done, 1 an answer is wrong, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from ewe import __version__
from ewe.config.command import RaisingParser, entry_point
from ewe.config.linux import needs_linux
from ewe.config.messages import ConfigError
from ewe_classroom.course import labs
from ewe_classroom.seeds import Seed

if TYPE_CHECKING:
    from ewe_classroom.course.questions import Question

DESCRIPTION = (
    "Labs on concurrency: assignments, starters, solutions, and what a course's platform needs of them."
)


@entry_point("ewe-course")
def main(arguments: list[str]) -> int:
    """Run the command; return its exit status."""
    options = parser().parse_args(arguments)
    return int(options.run(options))


def parser() -> RaisingParser:
    made = RaisingParser(prog="ewe-course", description=DESCRIPTION, allow_abbrev=False)
    made.add_argument("--version", action="version", version=f"ewe-course {__version__}")
    commands = made.add_subparsers(metavar="COMMAND", required=True, parser_class=RaisingParser)
    command = commands.add_parser("list", help="the labs, in the order of the course")
    command.set_defaults(run=show_list)
    command = commands.add_parser("show", help="a lab's assignment")
    command.set_defaults(run=show)
    command.add_argument("lab")
    command.add_argument("--rubric", action="store_true", help="what a person marks, instead")
    for name, text in (("new", "write the handout of a lab"), ("solution", "write the solution of a lab")):
        command = commands.add_parser(name, help=text)
        command.set_defaults(run=new, solved=name == "solution")
        command.add_argument("lab")
        command.add_argument("directory", type=Path)
        command.add_argument("--seed", metavar="NAME", help="with the numbers of this student")
        add_language(command)
    command = commands.add_parser("pack", help="write what a course's platform needs to grade a lab")
    command.set_defaults(run=pack)
    command.add_argument("lab")
    command.add_argument("target", type=Path, help="a directory, or a file NAME.zip")
    command.add_argument("--for", dest="platform", required=True, choices=platforms())
    command.add_argument(
        "--seeded",
        action="store_true",
        help="grade each student with the numbers of a seed: the account's name",
    )
    add_language(command)
    command = commands.add_parser("measure", help="measure a server, for the questions of its lab")
    command.set_defaults(run=measure)
    command.add_argument("lab")
    command.add_argument(
        "path",
        nargs="?",
        help="a model of ewe, a program that is run as PATH PORT ROOT WORKERS, or what the lab grades",
    )
    command.add_argument("--command", help="how to start a server: './server {port} {root} {workers}'")
    command.add_argument("--workers", type=int, default=4, help="[4]")
    command.add_argument("--output", type=Path, default=Path("measurements.json"), help="[measurements.json]")
    command = commands.add_parser("questions", help="ask about measurements, or mark the answers")
    command.set_defaults(run=ask)
    command.add_argument("lab")
    command.add_argument("file", type=Path, nargs="?", default=Path("measurements.json"))
    command.add_argument("--answers", action="store_true", help="show the right answers, too: for who marks")
    command.add_argument("--mark", nargs="+", type=float, metavar="NUMBER", help="mark the answers, in order")
    command = commands.add_parser(
        "leaderboard", help="make a table of the speeds that ewe-grade has measured"
    )
    command.set_defaults(run=leaderboard)
    command.add_argument("directory", type=Path, help="where the files of ewe-grade --speed --json are")
    command.add_argument("--lab", help="of which lab, if there are several")
    command.add_argument("--html", type=Path, metavar="FILE", help="write a page that can be sorted")
    command.add_argument("--csv", type=Path, metavar="FILE", help="write CSV")
    command.add_argument("--json", type=Path, metavar="FILE", help="write JSON")
    command.add_argument("--title", default="", metavar="TEXT", help="the title of the page")
    command.add_argument(
        "--pseudonyms", metavar="KEY", help="show pseudonyms in place of names; keep the key to yourself"
    )
    command.add_argument(
        "--names", type=Path, metavar="FILE", help="write which name has which pseudonym, as CSV"
    )
    return made


def add_language(command: argparse.ArgumentParser) -> None:
    choices = (*labs.LANGUAGES, labs.MODEL)
    command.add_argument(
        "--language", choices=choices, default="python", help="model: a model of ewe [python]"
    )


def platforms() -> list[str]:
    from ewe_classroom.course.packs import PLATFORMS

    return list(PLATFORMS)


def show_list(options: argparse.Namespace) -> int:
    """Print the labs."""
    for each in labs.labs():
        print(f"{each.order:2}  {each.name:<12} {each.hours:2} h  {each.title}")
        print(f"{'':22}{each.summary} ({', '.join(each.ways)})")
    return 0


def show(options: argparse.Namespace) -> int:
    """Print a lab's assignment, or its rubric."""
    lab = labs.lab(options.lab)
    print(lab.read("rubric.md") if options.rubric else f"# {lab.title}\n\n{lab.read('text.md')}", end="")
    return 0


def new(options: argparse.Namespace) -> int:
    """Write a handout or a solution."""
    from ewe_classroom.course.handout import write

    lab = labs.lab(options.lab)
    way = lab.way(options.language)
    seed = Seed.read(options.seed) if options.seed is not None else None
    for path in write(lab, way, options.directory, solved=options.solved, seed=seed):
        print(path)
    if not options.solved:
        student = f" --seed {shlex.quote(seed.name)}" if seed is not None else ""
        place = shlex.quote(str(options.directory))
        print(f"\nNext: cd {place} && ewe-grade --lab {lab.name}{student} {way.grade}")
    return 0


def pack(options: argparse.Namespace) -> int:
    """Write a pack."""
    from ewe_classroom.course import packs

    lab = labs.lab(options.lab)
    way = lab.way(options.language)
    if options.target.suffix != ".zip":
        for path in packs.pack(lab, way, options.platform, options.target, seeded=options.seeded):
            print(path)
        return 0
    if options.target.exists():
        raise ConfigError(f"{options.target} is there already; choose another name")
    with tempfile.TemporaryDirectory(prefix="ewe-course-") as name:
        files = packs.pack(lab, way, options.platform, Path(name), seeded=options.seeded)
        try:
            with zipfile.ZipFile(options.target, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in files:
                    archive.write(path, path.relative_to(name))
        except OSError as reason:
            raise ConfigError(f"{options.target}: {reason.strerror}") from None
    print(options.target)
    return 0


def leaderboard(options: argparse.Namespace) -> int:
    """Make a leaderboard of a directory of results."""
    from ewe_classroom.course import leaderboard as boards
    from ewe_classroom.course.leaderboard_page import to_html
    from ewe_classroom.grader.formats import write

    if options.names and not options.pseudonyms:
        raise ConfigError("--names: there are no pseudonyms without --pseudonyms KEY")
    entries = boards.read(
        options.directory, options.lab, lambda text: print(f"ewe-course: {text}", file=sys.stderr)
    )
    if options.pseudonyms:
        names = boards.pseudonyms((entry.name for entry in entries), options.pseudonyms)
        entries = boards.renamed(entries, names)
        if options.names:
            write(options.names, boards.names_as_csv(names))
    if options.html:
        write(options.html, to_html(entries, options.title))
    for file, make in ((options.csv, boards.to_csv), (options.json, boards.to_json)):
        if file:
            write(file, make(entries))
    print(boards.to_text(entries), end="")
    return 0


def measure(options: argparse.Namespace) -> int:
    """Measure a server."""
    from ewe_classroom.course.measurements import measure as measured
    from ewe_classroom.grader.kinds import NAMES, SERVER, kind
    from ewe_classroom.grader.subject import BadSubject, NotStarted

    if lacking := needs_linux("measuring a server", shlex.join(["ewe-course", *sys.argv[1:]])):
        raise ConfigError(lacking)
    lab = labs.lab(options.lab)
    if (options.path is None) == (options.command is None):
        raise ConfigError("which server? Name a file, or say --command './server {port} {root} {workers}'")
    try:
        what = kind(lab.measures if lab.measures in NAMES else SERVER)
        recipe = what.from_command(options.command) if options.command else what.from_path(options.path)
        found = measured(lab.name, recipe, options.workers, print, what=lab.measures)
        found.save(options.output)
    except (BadSubject, NotStarted) as error:
        raise ConfigError(str(error)) from None
    except OSError as reason:
        raise ConfigError(f"{options.output}: {reason.strerror}") from None
    print(f"{options.output}\n\nNext: ewe-course questions {lab.name} {options.output}")
    return 0


def ask(options: argparse.Namespace) -> int:
    """Print the questions of a lab about measurements, or mark answers."""
    from ewe_classroom.course.measurements import load
    from ewe_classroom.course.questions import questions

    asked = questions(labs.lab(options.lab), load(options.file))
    if options.mark is not None and len(options.mark) != len(asked):
        raise ConfigError(f"--mark: {len(options.mark)} answers to {len(asked)} questions")
    right = True
    for number, each in enumerate(asked, 1):
        print(f"{number}. {each.text} [{each.unit}]")
        if options.answers:
            print(answer(each))
        if options.mark is not None:
            given = options.mark[number - 1]
            right = right and each.is_right(given)
            print(f"   {given:g}: right" if each.is_right(given) else f"   {given:g}: wrong.\n{answer(each)}")
    return 0 if right else 1


def answer(question: Question) -> str:
    """Return the right answer, and why."""
    return f"   {question.answer:.4g} {question.unit}. {question.because}"
