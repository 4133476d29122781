"""`ewe-course grade FOLDER --lab NAME`: grade a class, and write what a lecturer needs.

    RESULTS/marks.csv         a line for each student
    RESULTS/index.html        the page of the class
    RESULTS/students/KEY/     each student's files, report.html and output
    RESULTS/manual.csv        the marks that a person enters, if the rules name some
    RESULTS/TABLE             the platform's own table with the marks filled in (--table)
    RESULTS/similar.html      submissions that are alike (--similar)

The same command continues a run that was stopped, grades what is new, and writes the tables again.

Read next: submissions.py, class_run.py.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from ewe.config.linux import needs_linux
from ewe.config.messages import ConfigError, one_line
from ewe_classroom.course import class_run, labs, marks, submissions
from ewe_classroom.course.class_page import similar_to_html, to_html
from ewe_classroom.course.class_run import ClassPlan, GradedHandIn
from ewe_classroom.course.similarity import SimilarPair, needs_copydetect, similar
from ewe_classroom.grader import scheme
from ewe_classroom.grader.apart import IMPORT_DIRECTORIES

OWN_FILES = ("marks.csv", "index.html", "manual.csv", "similar.html", "students", "given")
MAX_JOBS = 64
MAX_NAMES = 8  # of students, in a message
MAX_FILES_OF_A_CLASS = 500_000
MAX_BYTES_OF_A_CLASS = 16 << 30
MIN_LIMIT_S, MAX_LIMIT_S = 5.0, 3600.0


def grade(options: argparse.Namespace) -> int:
    """Grade a class; return 0 if every submission was graded. Raises ConfigError."""
    if lacking := needs_linux("grading a class", shlex.join(["ewe-course", *sys.argv[1:]])):
        raise ConfigError(lacking)
    if not 1 <= options.jobs <= MAX_JOBS:
        raise ConfigError(f"--jobs {options.jobs}: expected a number from 1 to {MAX_JOBS}")
    if not MIN_LIMIT_S <= options.limit <= MAX_LIMIT_S:
        raise ConfigError(
            f"--limit {options.limit:g}: expected a number from {MIN_LIMIT_S:g} to {MAX_LIMIT_S:g}"
        )
    if options.column and not options.table:
        raise ConfigError("--column needs --table FILE, the platform's own table of marks")
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a name may be of any script
    lab = labs.lab(options.lab)
    variant = lab.variant(options.language)
    rules = marks.read_rules(options.rules)
    name = options.folder.absolute().resolve().name.removesuffix(".zip")
    results = Path(os.path.abspath(options.output or f"{name}-marks"))
    plan = ClassPlan(lab, variant, results, options.jobs, options.limit, options.seeded, options.user)
    if options.table:  # a wrong name is said before the class is graded
        if options.table.name in OWN_FILES:
            raise ConfigError(
                f"--table: {options.table.name} is the name of a file of the results; rename the platform's table"
            )
        marks.filled(options.table, options.column, [])
    if options.similar:
        needs_copydetect()
    with unpacked(options.folder) as folder:
        layout = submissions.read(folder, variant.work[0], results)
        count = len(layout.hand_ins)
        print(
            f"{lab.title}: {count} submissions ({layout.platform}), {options.jobs} at a time; results in {results}"
        )
        plan = replace(plan, hidden=hidden_paths(options.folder, folder, results))
        with ended_by_sigterm():
            graded = class_run.grade_class(plan, layout.hand_ins, show)
    return write_results(options, plan, rules, graded)


def hidden_paths(given: Path, folder: Path, results: Path) -> tuple[Path, ...]:
    """Return the paths that no graded program may read: the class as it was given, unpacked, and the results.

    A directory that contains Python, ewe or the temporary files stays visible: nothing could run without them.
    """
    home, temporary = os.path.expanduser("~"), tempfile.gettempdir()
    words: list[str] = [*IMPORT_DIRECTORIES, sys.prefix, sys.base_prefix, home, temporary]
    needed = [Path(each).resolve() for each in words]
    hidden = []
    for path in dict.fromkeys(each.resolve() for each in (given, folder, results)):
        if within := next((each for each in needed if each.is_relative_to(path)), None):
            print(
                f"ewe-course: {path} contains {within}, so graded programs can read the submissions there;"
                " move them to a separate directory",
                file=sys.stderr,
            )
        else:
            hidden.append(path)
    return tuple(hidden)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the graders, too: their sessions do not end with this one."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, lambda *_: sys.exit(143)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def unpacked(folder: Path) -> Iterator[Path]:
    """Yield the folder of the submissions; an archive of the platform is unpacked for the time of the run."""
    if not folder.is_file():
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="ewe-class-") as name:
        target = Path(name) / folder.stem
        target.mkdir()
        try:
            counter = submissions.SubmissionCounter(MAX_FILES_OF_A_CLASS, MAX_BYTES_OF_A_CLASS)
            submissions.unpack(folder, folder.name, target, counter)
        except (submissions.BadHandIn, OSError) as reason:
            raise ConfigError(f"{folder}: {one_line(str(reason))}; name a folder, or a zip file") from None
        yield target


def show(graded: GradedHandIn, left_count: int, seconds: float | None) -> None:
    """Print one result, and the time that is left."""
    report = graded.report
    if report is None or graded.problem:
        text = f"not graded: {graded.problem}"
    elif report.get("refused"):
        text = f"0/{report['max_score']}  {report['refused']}"
    else:
        failed = marks.failed_checks(graded)
        names = ", ".join(failed[:4]) + (f" and {len(failed) - 4} more" if len(failed) > 4 else "")
        text = f"{report['score']}/{report['max_score']}" + (f"  not passed: {names}" if failed else "")
        text += "" if graded.new else "  (graded before)"
    time_left = (
        f"; {left_count} left, about {max(1, round(seconds / 60))} min"
        if left_count and seconds is not None
        else ""
    )
    print(f"  {graded.hand_in.name:<28} {text}{time_left}", flush=True)


def write_results(
    options: argparse.Namespace, plan: ClassPlan, rules: marks.MarkRules, graded: list[GradedHandIn]
) -> int:
    """Write the tables and pages of a class; return the exit status."""
    points = float(sum(item.points for item in scheme.load(plan.lab.name).suited(plan.variant.name).items))
    manual = marks.read_manual(plan.results, rules, graded)
    found = [marks.mark_of(each, rules, points, manual.get(each.hand_in.key, {})) for each in graded]
    marks.write_if_new(plan.results / "marks.csv", marks.to_csv(found, rules))
    seconds = sum(float(each.report["seconds"]) for each in graded if each.report)
    page = plan.results / "index.html"
    marks.write_if_new(page, to_html(plan.lab, found, datetime.now(UTC), seconds))
    for name in marks.unknown_students(rules, graded):
        print(f"ewe-course: {options.rules}: [extensions] {name}: no student of this class", file=sys.stderr)
    if options.table:
        table = marks.filled(options.table, options.column, found)
        marks.write_if_new(plan.results / options.table.name, table.text)
        print(f"{plan.results / options.table.name}")
        if table.missing:
            print(f"ewe-course: not in {options.table}: {first_names(table.missing)}", file=sys.stderr)
        if table.above:
            print(
                f"ewe-course: {options.table}: above the maximum of this table, and written all the same:"
                f" {first_names(table.above)}; set `points` in --rules, or the platform's maximum",
                file=sys.stderr,
            )
    if options.similar:
        pairs = similar_pairs(plan, graded)
        names = {each.hand_in.key: each.hand_in.name for each in graded}
        marks.write_if_new(plan.results / "similar.html", similar_to_html(plan.lab, pairs, names))
        print(f"{plan.results / 'similar.html'}: {len(pairs)} pairs share half of their source or more")
    not_graded = [each for each in graded if each.problem]
    print(f"{plan.results / 'marks.csv'}\n{page}")
    print(f"{len(graded)} submissions, {len(not_graded)} not graded")
    return 1 if not_graded else 0


def first_names(names: list[str]) -> str:
    """Return the first names of a list for a message, and the number of the others."""
    rest = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def similar_pairs(plan: ClassPlan, graded: list[GradedHandIn]) -> list[SimilarPair]:
    """Compare the first file of the work of all submissions."""
    work = plan.variant.work[0]
    starter = plan.lab.files(plan.variant, solved=False)[work]
    sources = {}
    for each in graded:
        files = plan.directory(each.hand_in) / "files"
        if each.report and files.is_dir():
            sources[each.hand_in.key] = submissions.directory_of(files, plan.variant.work) / work
    return similar(sources, starter, Path(work).suffix)
