"""The command `ewe-course`: write handouts, solutions and packs of labs; grade a class; measure; ask questions.

Exit codes: 0 success, 1 an answer is wrong, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ewe import __version__
from ewe.config.command import RaisingParser, entry_point
from ewe.config.linux import needs_linux
from ewe.config.messages import ConfigError
from ewe_classroom.course import labs, locales
from ewe_classroom.seeds import Seed

if TYPE_CHECKING:
    from ewe_classroom.course.labs import Lab, LabVariant
    from ewe_classroom.course.questions import Question

    Commands = argparse._SubParsersAction[RaisingParser]

DESCRIPTION = "Labs on concurrency: assignments, starters, solutions, and packs for the platform of a course."


@entry_point("ewe-course")
def main(arguments: list[str]) -> int:
    """Run the command; return its exit status."""
    options = parser().parse_args(arguments)
    return int(options.run(options))


def parser() -> RaisingParser:
    """Return the parser of the command line. The option `run` is the function that runs the chosen command."""
    command_parser = RaisingParser(prog="ewe-course", description=DESCRIPTION, allow_abbrev=False)
    command_parser.add_argument("--version", action="version", version=f"ewe-course {__version__}")
    commands = command_parser.add_subparsers(metavar="COMMAND", required=True, parser_class=RaisingParser)
    # In the order of the help.
    for add in (add_texts, add_pack, add_measurements, add_leaderboard, add_grade):
        add(commands)
    return command_parser


def add_texts(commands: Commands) -> None:
    """Add the commands that show or write the texts of labs: list, show, new and solution."""
    command = commands.add_parser("list", help="the labs, in the order of the course")
    command.set_defaults(run=show_list)
    command = commands.add_parser("show", help="a lab's assignment")
    command.set_defaults(run=show)
    command.add_argument("lab")
    command.add_argument(
        "--rubric", action="store_true", help="show the rubric instead: the part that a person marks"
    )
    command.add_argument(
        "--toml",
        action="store_true",
        help="with --rubric: print the criteria and their points as [manual] of the rules of `ewe-course grade`",
    )
    add_language(command)
    add_locale(command)
    for name, text in (("new", "write the handout of a lab"), ("solution", "write the solution of a lab")):
        command = commands.add_parser(name, help=text)
        command.set_defaults(run=new, solved=name == "solution")
        command.add_argument("lab")
        command.add_argument("directory", type=Path)
        command.add_argument("--seed", metavar="NAME", help="use the numbers of this student")
        add_language(command)
        if name == "new":
            add_locale(command)


def add_pack(commands: Commands) -> None:
    command = commands.add_parser("pack", help="write the files with which a course's platform grades a lab")
    command.set_defaults(run=pack)
    command.add_argument("lab")
    command.add_argument("target", type=Path, help="a directory, or a file NAME.zip")
    command.add_argument("--for", dest="platform", required=True, choices=platforms())
    command.add_argument(
        "--seeded",
        action="store_true",
        help="grade each student with personal numbers; the seed is the account's name",
    )
    add_own_parts(command)
    command.add_argument(
        "--wheel",
        metavar="FILE",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        help="wheels for the pack, in place of those that are built from the clone or downloaded",
    )
    add_language(command)


def add_measurements(commands: Commands) -> None:
    """Add the commands measure and questions."""
    command = commands.add_parser("measure", help="measure a server; the lab's questions use the results")
    command.set_defaults(run=measure)
    command.add_argument("lab")
    command.add_argument(
        "path",
        nargs="?",
        help="a model of ewe, a program that is run as PATH PORT ROOT WORKERS, or the file that the lab grades",
    )
    command.add_argument(
        "--command", help="the command that starts a server: './server {port} {root} {workers}'"
    )
    command.add_argument("--workers", type=int, default=4, help="the workers of the server [4]")
    command.add_argument(
        "--output", type=Path, default=Path("measurements.json"), help="the file to write [measurements.json]"
    )
    command = commands.add_parser("questions", help="ask about measurements, or mark the answers")
    command.set_defaults(run=ask)
    command.add_argument("lab")
    command.add_argument("file", type=Path, nargs="?", default=Path("measurements.json"))
    command.add_argument(
        "--answers", action="store_true", help="also show the right answers, for the person who marks"
    )
    command.add_argument("--mark", nargs="+", type=float, metavar="NUMBER", help="mark the answers, in order")


def add_leaderboard(commands: Commands) -> None:
    command = commands.add_parser(
        "leaderboard", help="make a table of the speeds that ewe-grade has measured"
    )
    command.set_defaults(run=leaderboard)
    command.add_argument(
        "directory", type=Path, help="the directory with the files of ewe-grade --speed --json"
    )
    command.add_argument("--lab", help="the lab, if the directory has results of several")
    command.add_argument("--html", type=Path, metavar="FILE", help="write a page that can be sorted")
    command.add_argument("--csv", type=Path, metavar="FILE", help="write CSV")
    command.add_argument("--json", type=Path, metavar="FILE", help="write JSON")
    command.add_argument("--title", default="", metavar="TEXT", help="the title of the page")
    command.add_argument(
        "--pseudonyms", metavar="KEY", help="show pseudonyms in place of names; keep the key to yourself"
    )
    command.add_argument(
        "--names", type=Path, metavar="FILE", help="write the names with their pseudonyms, as CSV"
    )


def add_grade(commands: Commands) -> None:
    command = commands.add_parser(
        "grade", help="grade a class: the table of marks, the page of the class, a page for each student"
    )
    command.set_defaults(run=grade)
    command.add_argument(
        "folder", type=Path, help="the submissions, as the platform's folder or zip file has them"
    )
    command.add_argument("--lab", required=True)
    add_language(command)
    add_own_parts(command)
    command.add_argument(
        "--output", type=Path, metavar="DIR", help="the directory of the results [FOLDER-marks]"
    )
    command.add_argument("--jobs", type=int, default=2, metavar="N", help="grade N submissions at a time [2]")
    command.add_argument(
        "--limit", type=float, default=120.0, metavar="SECONDS",
        help="the time of one submission; one that reaches it is graded again, alone and for longer [120]",
    )  # fmt: skip
    command.add_argument(
        "--rules", type=Path, metavar="FILE", help="points, due date, late days, manual marks (TOML)"
    )
    command.add_argument(
        "--table", type=Path, metavar="FILE", help="the platform's own table of marks; a copy is filled in"
    )
    command.add_argument("--column", metavar="HEAD", help="with --table: the column for the marks [Grade]")
    command.add_argument(
        "--seeded",
        action="store_true",
        help="each student has personal numbers; the seed is the student's name",
    )
    command.add_argument(
        "--similar", action="store_true", help="also list submissions that are alike (needs copydetect)"
    )
    command.add_argument(
        "--user",
        metavar="NAME",
        default="",
        help="the servers' account, if the grader is root [a separate one]",
    )


def add_language(command: argparse.ArgumentParser) -> None:
    choices = (*labs.LANGUAGES, labs.MODEL)
    command.add_argument(
        "--language", choices=choices, default="python", help="model means a model of ewe [python]"
    )


def add_own_parts(command: argparse.ArgumentParser) -> None:
    """Add the options that replace parts of a lab (own_parts.py)."""
    command.add_argument(
        "--own",
        metavar="FILE",
        action="append",
        default=[],
        help="grade the student's own file of this name, if there is one, in place of the lab's; may be repeated",
    )
    command.add_argument(
        "--scheme",
        metavar="FILE",
        type=Path,
        help="grade by this scheme in place of the lab's: a copy of its grading.toml with other points",
    )


def add_locale(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--locale",
        choices=locales.LOCALES,
        default=locales.ENGLISH,
        help="the natural language of the assignment: labs 1 to 5 also have German and Spanish [en]",
    )


def platforms() -> list[str]:
    from ewe_classroom.course.packs import PLATFORMS

    return list(PLATFORMS)


def show_list(options: argparse.Namespace) -> int:
    """Print the labs."""
    for each in labs.labs():
        print(f"{each.order:2}  {each.name:<12} {each.hours:2} h  {each.title}")
        print(f"{'':22}{each.summary} ({', '.join(each.variants)})")
    return 0


def show(options: argparse.Namespace) -> int:
    """Print a lab's assignment, or its rubric."""
    from ewe_classroom.course.handout import section_of_points
    from ewe_classroom.course.rubric import as_manual_marks
    from ewe_classroom.grader import scheme

    if options.toml and not options.rubric:
        raise ConfigError("--toml needs --rubric: it prints the criteria of the rubric")
    lab = labs.lab(options.lab)
    variant = lab.variant(options.language)
    if options.rubric:
        rubric = lab.read("rubric.md")
        print(as_manual_marks(rubric) if options.toml else rubric, end="")
    else:
        text = lab.in_language("text.md", variant.name, options.locale).strip()
        points = section_of_points(scheme.load(lab.name).checks_for_language(variant.name), options.locale)
        print(f"# {locales.phrase(lab.title, options.locale)}\n\n{text}\n{points}", end="")
    return 0


def new(options: argparse.Namespace) -> int:
    """Write a handout, or a solution (options.solved). Raises ConfigError."""
    from ewe_classroom.course.handout import write

    lab = labs.lab(options.lab)
    variant = lab.variant(options.language)
    seed = Seed.read(options.seed) if options.seed is not None else None
    locale = locales.ENGLISH if options.solved else options.locale
    files = write(lab, variant, options.directory, solved=options.solved, seed=seed, locale=locale)
    for path in files:
        print(path)
    if not options.solved and all(path.suffix != ".html" for path in files):
        print(
            "README.md has the assignment; a page for a browser needs two packages: pip install markdown jinja2"
        )
    if not options.solved:
        print(next_commands(lab, variant, options.directory, seed))
    return 0


def next_commands(lab: Lab, variant: LabVariant, directory: Path, seed: Seed | None) -> str:
    """Return the lines that name a student's first commands: the first test, then the build and ewe-grade."""
    student = f" --seed {shlex.quote(seed.name)}" if seed is not None else ""
    build = f"{variant.build} && " if variant.build else ""
    return (
        f"\nNext, the first test: cd {shlex.quote(str(directory))} && {variant.first_test}\n"
        f"Then, when it passes: {build}ewe-grade --lab {lab.name}{student} {variant.grade}"
    )


def pack(options: argparse.Namespace) -> int:
    """Write a pack: the files with which a platform, such as Gradescope, grades a lab (docs/packs.md).

    Raises ConfigError.
    """
    from ewe_classroom.course import packs, wheels
    from ewe_classroom.course.pack_plan import PackPlan

    lab = labs.lab(options.lab)
    variant = lab.variant(options.language)
    plan_without_wheels = PackPlan(
        lab, variant, wheels={}, own=tuple(options.own), seeded=options.seeded, scheme_file=options.scheme
    )
    # A wrong option or target shows its error now, and not after pip has built and downloaded the wheels.
    packs.check_target(packs.pack(plan_without_wheels, options.platform), options.target)
    plan = replace(plan_without_wheels, wheels=wheels.collect(options.wheel))
    for path in packs.write(packs.pack(plan, options.platform), options.target):
        print(path)
    return 0


def leaderboard(options: argparse.Namespace) -> int:
    """Make a leaderboard of a directory of results: print it, and write the files that the options name."""
    from ewe_classroom.course import leaderboard as boards
    from ewe_classroom.course.leaderboard_page import to_html
    from ewe_classroom.grader.formats import check_writable, write

    if options.names and not options.pseudonyms:
        raise ConfigError("--names needs pseudonyms: add --pseudonyms KEY")
    for file in filter(None, (options.names, options.html, options.csv, options.json)):
        check_writable(file)
    entries = boards.read(
        options.directory, options.lab, lambda text: print(f"ewe-course: {text}", file=sys.stderr)
    )
    if options.pseudonyms:
        names = boards.pseudonyms((entry.name for entry in entries), options.pseudonyms)
        entries = boards.with_pseudonyms(entries, names)
        if options.names:
            write(options.names, boards.names_as_csv(names))
    if options.html:
        write(options.html, to_html(entries, options.title))
    for file, make in ((options.csv, boards.to_csv), (options.json, boards.to_json)):
        if file:
            write(file, make(entries))
    print(boards.to_text(entries), end="")
    return 0


def grade(options: argparse.Namespace) -> int:
    """Grade a class."""
    from ewe_classroom.course.class_command import grade as graded

    return graded(options)


def measure(options: argparse.Namespace) -> int:
    """Measure a server, an engine or a file of runs, as the lab says; write the figures to options.output."""
    from ewe_classroom.course.measurements import measure as measured
    from ewe_classroom.grader.formats import check_writable
    from ewe_classroom.grader.kinds import NAMES, SERVER, kind
    from ewe_classroom.grader.subject import BadSubject, NotStarted

    if lacking := needs_linux("measuring a server", shlex.join(["ewe-course", *sys.argv[1:]])):
        raise ConfigError(lacking)
    lab = labs.lab(options.lab)
    if (options.path is None) == (options.command is None):
        raise ConfigError("name one server: a file, or --command './server {port} {root} {workers}'")
    check_writable(options.output)
    try:
        # `measures` may be a kind of subject, or a way to measure a server ("caching").
        subject_kind = kind(lab.measures if lab.measures in NAMES else SERVER)
        start_command = (
            subject_kind.from_command(options.command)
            if options.command
            else subject_kind.from_path(options.path)
        )
        found = measured(lab.name, start_command, options.workers, print, what=lab.measures)
    except (BadSubject, NotStarted) as error:
        raise ConfigError(str(error)) from None
    except OSError as reason:
        raise ConfigError(f"cannot measure: {reason.strerror or reason}") from None
    found.save(options.output)
    print(f"{options.output}\n\nNext: ewe-course questions {lab.name} {options.output}")
    return 0


def ask(options: argparse.Namespace) -> int:
    """Print the questions of a lab about measurements. With --mark, mark the answers.

    Return the exit status: 1 if an answer is wrong, else 0.
    """
    from ewe_classroom.course.measurements import load
    from ewe_classroom.course.questions import questions

    asked = questions(labs.lab(options.lab), load(options.file))
    if options.mark is not None and len(options.mark) != len(asked):
        raise ConfigError(f"--mark has {len(options.mark)} answers; the lab has {len(asked)} questions")
    all_right = True
    for number, each in enumerate(asked, 1):
        print(f"{number}. {each.text} [{each.unit}]")
        if options.answers:
            print(answer(each))
        if options.mark is not None:
            given = options.mark[number - 1]
            all_right = all_right and each.is_right(given)
            print(f"   {given:g}: right" if each.is_right(given) else f"   {given:g}: wrong.\n{answer(each)}")
    return 0 if all_right else 1


def answer(question: Question) -> str:
    """Return the right answer, with its reason."""
    return f"   {question.answer:.4g} {question.unit}. {question.because}"


if __name__ == "__main__":
    sys.exit(main())
