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
from datetime import UTC, datetime
from pathlib import Path

from ewe.config.linux import needs_linux
from ewe.config.messages import ConfigError, one_line
from ewe_classroom.course import class_run, labs, marks, submissions
from ewe_classroom.course.class_page import similar_to_html, to_html
from ewe_classroom.course.class_run import ClassPlan, GradedHandIn
from ewe_classroom.course.own_parts import check_own_files, lab_scheme
from ewe_classroom.course.similarity import MAX_PAIRS, SimilarPair, needs_copydetect, similar
from ewe_classroom.grader.apart import IMPORT_DIRECTORIES
from ewe_classroom.grader.formats import check_writable
from ewe_classroom.grader.sandbox import may_have_private_network

RESULT_FILES = ("marks.csv", "index.html", "manual.csv", "similar.html", "students", "given")
MAX_JOBS = 64
MAX_NAMES = 8  # of students, in a message
MAX_FILES_OF_A_CLASS = 500_000
MAX_BYTES_OF_A_CLASS = 16 << 30
MIN_LIMIT_S, MAX_LIMIT_S = 5.0, 3600.0
EXIT_BY_SIGTERM = 128 + signal.SIGTERM  # the status by which a shell shows that SIGTERM has ended a program
MAX_CHECKS = 4  # names of failed checks, in a line of the progress


def grade(options: argparse.Namespace) -> int:
    """Check the options, grade the class, and write its tables and pages (write_results()).

    Return the exit status: 0 if every submission was graded, else 1. Raises ConfigError.
    """
    check_options(options)
    # The terminal may not be able to show each letter of a student's name.
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    lab = labs.lab(options.lab)
    variant = lab.variant(options.language)
    # Only to raise ConfigError: for a file of --own that the lab does not give, and for a wrong scheme.
    check_own_files(variant, options.own)
    lab_scheme(lab, options.scheme)
    rules = marks.read_rules(options.rules)
    # The folder may be given as "." or as a link. For a link to itself, Path.resolve() would raise a RuntimeError.
    class_name = os.path.basename(os.path.realpath(options.folder)).removesuffix(".zip")
    results = Path(os.path.abspath(options.output or f"{class_name}-marks"))
    for name in result_files(options, rules):
        check_writable(results / name)
    with unpacked(options.folder) as folder:
        layout = submissions.read(folder, variant.work[0], results)
        count, jobs = len(layout.hand_ins), simultaneous(options.jobs)
        print(f"{lab.title}: {count} submissions ({layout.platform}), {jobs} at a time; results in {results}")
        # A graded program may not copy another submission, a mark, or a solution.
        hidden = (*hidden_paths(options.folder, folder, results), *correct_servers())
        plan = ClassPlan(
            lab, variant, results, jobs=jobs, limit_s=options.limit, seeded=options.seeded,
            user=options.user, hidden=hidden, own=tuple(options.own), scheme=options.scheme,
        )  # fmt: skip
        with ended_by_sigterm():
            graded = class_run.grade_class(plan, layout.hand_ins, show, tell)
    return write_results(options, plan, rules, graded)


def simultaneous(jobs: int) -> int:
    """Return how many submissions may be graded at a time: 1 if the system refuses them private networks.

    In a common network a server could hold the workers of another student's server. jobs: of the command line.
    """
    if jobs == 1 or may_have_private_network():
        return jobs
    print(
        "ewe-course: this system refuses private networks, in which no server reaches that of another student: the"
        f" submissions are graded one at a time, and not {jobs}; start the command with sudo, a container with"
        " --privileged",
        file=sys.stderr,
    )
    return 1


def check_options(options: argparse.Namespace) -> None:
    """Check the options that need neither the lab nor the submissions. Raises ConfigError for a wrong one.

    An error is then shown at once, and not after hours of grading.
    """
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
    if options.table:
        if options.table.name in RESULT_FILES:
            raise ConfigError(
                f"--table: {options.table.name} is the name of a file of the results; rename the platform's table"
            )
        # Fill in no marks: this only raises the ConfigError of a wrong table or column.
        marks.fill_table(options.table, options.column, [])
    if options.similar:
        needs_copydetect()


def result_files(options: argparse.Namespace, rules: marks.MarkRules) -> list[str]:
    """Return the names of the files that write_results() writes after the class has been graded."""
    return [
        "marks.csv",
        "index.html",
        *([marks.MANUAL_FILE] if rules.manual else []),
        *([options.table.name] if options.table else []),
        *(["similar.html"] if options.similar else []),
    ]


def hidden_paths(given: Path, folder: Path, results: Path) -> tuple[Path, ...]:
    """Return the paths that no graded program may read: the class as it was given, unpacked, and the results.

    A directory that contains Python, ewe or the temporary files stays visible: nothing could run without them.
    """
    home, temporary = os.path.expanduser("~"), tempfile.gettempdir()
    names: list[str] = [*IMPORT_DIRECTORIES, sys.prefix, sys.base_prefix, home, temporary]
    needed_paths = [Path(each).resolve() for each in names]
    hidden = []
    # Without an archive, `given` and `folder` are the same; dict.fromkeys() drops the second one.
    for path in dict.fromkeys(each.resolve() for each in (given, folder, results)):
        if within := next((each for each in needed_paths if each.is_relative_to(path)), None):
            print(
                f"ewe-course: {path} contains {within}, so graded programs can read the submissions there;"
                " move them to a separate directory",
                file=sys.stderr,
            )
        else:
            hidden.append(path)
    return tuple(hidden)


def correct_servers() -> tuple[Path, ...]:
    """Return the directory of the tests that has correct servers; () where ewe does not run from a clone."""
    directory = Path(__file__).resolve().parents[2] / "tests" / "zoo"
    return (directory,) if directory.is_dir() else ()


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit for the time of the block, so that in_parallel() ends its graders.

    Each grader has a separate session, which the signal to this process does not reach.
    """
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, lambda *_: sys.exit(EXIT_BY_SIGTERM)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def unpacked(folder: Path) -> Iterator[Path]:
    """Yield the folder of the submissions; an archive of the platform is unpacked for the time of the run.

    Raises ConfigError if the archive cannot be unpacked.
    """
    if not os.path.isfile(folder):
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


def tell(text: str) -> None:
    """Print a line for the lecturer among the results."""
    print(text, flush=True)


def show(graded: GradedHandIn, left_count: int, seconds: float | None) -> None:
    """Print one result, and the time that is left.

    left_count: the number of submissions to be graded. seconds: the estimated time for them; None if unknown.
    """
    report = graded.report
    if report is None or graded.problem:
        text = f"not graded: {graded.problem}"
    elif report.get("refused"):
        text = f"0/{report['max_score']}  {report['refused']}"
    else:
        failed = marks.failed_checks(graded)
        more = len(failed) - MAX_CHECKS
        names = ", ".join(failed[:MAX_CHECKS]) + (f" and {more} more" if more > 0 else "")
        text = f"{report['score']}/{report['max_score']}" + (f"  not passed: {names}" if failed else "")
        text += "" if graded.new else "  (graded before)"
        text += "  (graded again)" if graded.again else ""
    time_left = (
        f"; {left_count} left, about {max(1, round(seconds / 60))} min"
        if left_count and seconds is not None
        else ""
    )
    print(f"  {graded.hand_in.name:<28} {text}{time_left}", flush=True)


def write_results(
    options: argparse.Namespace, plan: ClassPlan, rules: marks.MarkRules, graded: list[GradedHandIn]
) -> int:
    """Write the tables and pages of a class; return the exit status: 1 if a submission was not graded, else 0.

    Raises ConfigError.
    """
    points = float(
        sum(
            item.points
            for item in lab_scheme(plan.lab, plan.scheme).checks_for_language(plan.variant.name).items
        )
    )
    manual = marks.read_manual(plan.results, rules, graded)
    all_marks = [marks.mark_of(each, rules, points, manual.get(each.hand_in.key, {})) for each in graded]
    marks.write_if_new(plan.results / "marks.csv", marks.to_csv(all_marks, rules))
    seconds = sum(float(each.report["seconds"]) for each in graded if each.report)
    page = plan.results / "index.html"
    marks.write_if_new(page, to_html(plan.lab, all_marks, datetime.now(UTC), seconds))
    for name in marks.unknown_students(rules, graded):
        print(f"ewe-course: {options.rules}: [extensions] {name}: no student of this class", file=sys.stderr)
    if options.table:
        table = marks.fill_table(options.table, options.column, all_marks)
        marks.write_if_new(plan.results / options.table.name, table.text)
        print(f"{plan.results / options.table.name}")
        if table.missing:
            print(
                f"ewe-course: not in {options.table}, or several times: {shown_names(table.missing)}",
                file=sys.stderr,
            )
        if table.above:
            print(
                f"ewe-course: {options.table}: above the maximum of this table, and written all the same:"
                f" {shown_names(table.above)}; set `points` in --rules, or the platform's maximum",
                file=sys.stderr,
            )
    if options.similar:
        pairs = similar_pairs(plan, graded)
        names = {each.hand_in.key: each.hand_in.name for each in graded}
        marks.write_if_new(plan.results / "similar.html", similar_to_html(plan.lab, pairs, names))
        at_least = "at least " if len(pairs) == MAX_PAIRS else ""
        print(
            f"{plan.results / 'similar.html'}: {at_least}{len(pairs)} pairs share half of their source or more"
        )
    not_graded = [each for each in graded if each.problem]
    print(f"{plan.results / 'marks.csv'}\n{page}")
    print(f"{len(graded)} submissions, {len(not_graded)} not graded")
    return 1 if not_graded else 0


def shown_names(names: list[str]) -> str:
    """Return the first names of a list for a message, and the number of the others."""
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def similar_pairs(plan: ClassPlan, graded: list[GradedHandIn]) -> list[SimilarPair]:
    """Compare the first work file (labs.py) of each graded submission with the others; return the similar pairs.

    Raises ConfigError if copydetect or the lab's starter is missing.
    """
    work = plan.variant.work[0]
    starter = plan.lab.files(plan.variant, solved=False)[work]
    sources = {}
    for each in graded:
        files = plan.directory(each.hand_in) / "files"
        if each.report and files.is_dir():
            sources[each.hand_in.key] = submissions.directory_of(files, plan.variant.work) / work
    return similar(sources, starter, Path(work).suffix)
