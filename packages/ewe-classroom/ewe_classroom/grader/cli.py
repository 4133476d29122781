"""The command `ewe-grade`: grade a server, list and explain checks, replay the requests of a check.

Exit codes: 0 every check passed, 1 a check failed, 2 wrong usage, 3 the grader itself failed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from ewe import __version__
from ewe.config.command import RaisingParser, entry_point
from ewe.config.linux import needs_linux
from ewe.config.messages import ConfigError, docs_page, nearest, one_line
from ewe.scratch import Scratch
from ewe_classroom.grader import formats, own_model, processes, repeat, replay, scheme, subject
from ewe_classroom.grader.check import Check, all_checks
from ewe_classroom.grader.grading import Grading
from ewe_classroom.grader.kinds import DATA, SERVER, kind
from ewe_classroom.grader.located import locate_submission
from ewe_classroom.grader.page import to_html
from ewe_classroom.grader.refused import refusal_report
from ewe_classroom.grader.sandbox import (
    SandboxLimits,
    SubjectAccount,
    adopt_orphans,
    close_to_others,
    end_account,
    hideable,
    named_account,
    own_account,
    private_network,
    remove_files_of,
)
from ewe_classroom.grader.sources import language_of
from ewe_classroom.grader.speed import SPEED
from ewe_classroom.grader.submission import Submission
from ewe_classroom.grader.verdicts import (
    ERROR,
    FAILED,
    NOT_JUDGED,
    NOT_RUN,
    PASSED,
    Report,
    Verdict,
    printable,
)
from ewe_classroom.seeds import Seed
from ewe_explore import pages

DESCRIPTION = """\
Grade a web server: prove by schedules how many clients it serves at a time, and look for leaks, zombies
and busy waiting. The server may be in any language; {page} lists its duties.

  ewe-grade --lab pool server.py                             a server in Python, by the scheme of a lab
  ewe-grade --lab pool submissions/ada                       the same file, somewhere in this directory
  ewe-grade --lab pool --command './server {{port}} {{root}} {{workers}}'      a program in any language
  ewe-grade --lab pool --only progress server.py             one check
  ewe-grade --lab pool --html report.html server.py          also a page with pictures
  ewe-grade --list                                           all labs and checks
  ewe-grade --explain progress                               what a check sends, and what it expects"""
MAX_LEFT_OUT_NAMES = 5  # names of files in the message
MARKS = {
    PASSED: ("ok", "32"), FAILED: ("FAILED", "31"), ERROR: ("error", "33"), NOT_RUN: ("not run", "33"),
    NOT_JUDGED: ("open", "33"),
}  # fmt: skip
CANNOT_BE_GRADED, GRADER_FAILED = 2, 3  # exit statuses
MAX_LIMIT_S = 86400.0
MAX_REPEAT, MAX_JOBS = 10000, 64
EXIT_BY_SIGTERM = 128 + signal.SIGTERM  # the status by which a shell shows that SIGTERM has ended a program


def parser() -> RaisingParser:
    """Return the parser of the command line."""
    command_parser = RaisingParser(
        prog="ewe-grade",
        description=DESCRIPTION.format(page=docs_page("grading.md", "ewe-classroom")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command_parser.add_argument(
        "path", nargs="?", metavar="PATH",
        help="a model of ewe (a Python file), a program that is run as PATH PORT ROOT WORKERS, or its directory",
    )  # fmt: skip
    command_parser.add_argument(
        "--command",
        metavar="TEXT",
        help="the command that starts the server: './server {port} {root} {workers}'",
    )
    command_parser.add_argument(
        "--work", metavar="FILE", action="append",
        help="copy this file to an empty directory, and grade it there; may be repeated",
    )  # fmt: skip
    command_parser.add_argument(
        "--given",
        metavar="DIR",
        help="with --work: the lab's own files in this directory replace the student's files",
    )
    command_parser.add_argument(
        "--own", metavar="FILE", action="append",
        help="with --given: keep the student's file of this name, if there is one; may be repeated",
    )  # fmt: skip
    command_parser.add_argument(
        "--build",
        metavar="TEXT",
        help="with --work: build the server first, as its account: 'make -f Makefile'",
    )
    command_parser.add_argument(
        "--lab", metavar="NAME", default="thread", help="a lab, or a grading.toml [thread]"
    )
    command_parser.add_argument(
        "--only", metavar="CHECK", action="append", help="run this check alone; may be repeated"
    )
    command_parser.add_argument("--list", action="store_true", help="list the labs and the checks, and end")
    command_parser.add_argument(
        "--explain", metavar="CHECK", help="describe a check (requests, expectation, reason), and end"
    )
    command_parser.add_argument(
        "--seed", metavar="NAME", help="grade with this student's numbers, as in the handout"
    )
    command_parser.add_argument(
        "--student", metavar="NAME", default="", help="the name that the reports show; else that of --seed"
    )
    command_parser.add_argument(
        "--speed", action="store_true", help="also measure the speed, as a ratio to a reference server"
    )
    command_parser.add_argument(
        "--claim",
        metavar="N",
        type=int,
        help="for --speed: the number of clients that the server claims to serve at once",
    )
    command_parser.add_argument("--record", metavar="DIR", help="write a replay file for each check")
    command_parser.add_argument(
        "--replay", metavar="FILE", help="send the bytes of a replay file again, and show the responses"
    )
    command_parser.add_argument(
        "--limit", metavar="SECONDS", type=float, default=120.0,
        help="the time of one run; later checks are not run, and the report says so; 0: no limit [120]",
    )  # fmt: skip
    command_parser.add_argument(
        "--repeat", metavar="N", type=int, default=1, help="grade N times, and report the marks that differ"
    )
    command_parser.add_argument(
        "--jobs", metavar="N", type=int, default=1, help="with --repeat: run N gradings at a time [1]"
    )
    command_parser.add_argument(
        "--runs",
        metavar="FILE",
        help="with --repeat: keep the finished runs; the same command continues later",
    )
    command_parser.add_argument(
        "--zero", metavar="REASON",
        help="grade nothing: write a report without points, for a grading that was killed",
    )  # fmt: skip
    command_parser.add_argument(
        "--hide", metavar="PATH", action="append",
        help="a directory or file that the server and its build cannot see, beside the solutions; may be repeated",
    )  # fmt: skip
    command_parser.add_argument("--html", metavar="FILE", help="write the report as a page, with timelines")
    for name, report_format in formats.FORMATS.items():
        command_parser.add_argument(f"--{name}", metavar="FILE", help=f"write {report_format.description}")
    command_parser.add_argument("--autolab", action="store_true", help="print Autolab's line at the end")
    command_parser.add_argument(
        "--user", metavar="NAME", help="the server's account, if the grader is root [a separate one]"
    )
    command_parser.add_argument(
        "--network", choices=("auto", "host"), default="auto",
        help="auto: a private network where the system allows one; host: a free port of this host [auto]",
    )  # fmt: skip
    command_parser.add_argument("--version", action="version", version=f"ewe-grade {__version__}")
    return command_parser


@entry_point(
    "ewe-grade", interrupted="ewe-grade: interrupted; the report marks the remaining checks as not run"
)
def main(arguments: list[str]) -> int:
    """Run the command; return its exit status."""
    return run(parser().parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Grade a server, or list, explain or replay checks, as the options say. Return the exit status (module text).

    If the submission cannot be started, the command has done its work: refuse() writes a report that says why.
    Raises ConfigError if the options are wrong, or if this machine lacks something.
    """
    sys.stdout.reconfigure(errors="replace", line_buffering=True)  # type: ignore[union-attr]
    if options.list:
        return print_list()
    if options.explain is not None:
        return explain(options.explain)
    check_usage(options)
    check_report_files(options)
    if options.html:
        # An error about a missing package comes now, and not after the grading.
        pages.prepare()
    if reason := needs_linux("the grader", shlex.join(["ewe-grade", *sys.argv[1:]])):
        raise ConfigError(reason)
    recording = replay.load(Path(options.replay)) if options.replay else replay.RecordedCheck({}, [])
    # The head of a replay file names the lab of its check.
    lab = scheme.load(str(recording.head.get("lab", options.lab)))
    check_suits_lab(options, lab)
    if options.path and not options.work:
        try:
            options.path = locate_submission(options.path, lab.kind)
        except subject.BadSubject as error:
            return refuse(options, lab, str(error))
    lab = apply_options(lab, options)
    if options.zero is not None:
        return refuse(options, lab, options.zero)
    return run_submission(options, lab, recording)


def run_submission(options: argparse.Namespace, lab: scheme.Scheme, recording: replay.RecordedCheck) -> int:
    """Grade a submission, or replay a recording of it; return the exit status. Raises ConfigError.

    With --work, a copy of the submission is graded, which is built first if --build says how.
    """
    # Data of a measurement is no program, and needs no account.
    account = account_of(options.user) if lab.kind != DATA else None
    # SystemExit runs the `finally` blocks, which end the server and remove the directories.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_BY_SIGTERM))
    hidden = hidden_paths(options, lab)
    with ExitStack() as stack:
        # Before: an earlier grading may have had the same user id. Afterwards: a later one may have it.
        remove_files_of(account)
        stack.callback(remove_files_of, account)
        # No process of the account is left now, except by a fault of the grader.
        stack.callback(end_account, account)
        try:
            if options.work:
                stack.enter_context(graded_copy(options, account, hidden))
            start_command = start_command_of(options, lab)
        except subject.BadSubject as error:
            return refuse(options, lab, str(error))
        check_readable(start_command, account)
        if options.repeat > 1 or options.runs:
            return grade_often(options, start_command, lab, account, hidden)
        with prepare_grading(options, start_command, lab, account, hidden) as grading:
            if options.replay:
                return print_replay(grading, recording)
            return grade(grading, options)


def start_command_of(options: argparse.Namespace, lab: scheme.Scheme) -> subject.StartCommand:
    """Return the start command of PATH or --command. Raises BadSubject, also for a model of ewe itself."""
    subject_kind = kind(lab.kind)
    if options.command:
        return subject_kind.from_command(options.command)
    start_command = subject_kind.from_path(options.path)
    # A submission in Python may be a model of ewe that was only renamed.
    if lab.kind == SERVER and options.path.endswith(".py"):
        own_model.expect_own_work(Path(options.path).absolute())
    return start_command


def check_suits_lab(options: argparse.Namespace, lab: scheme.Scheme) -> None:
    """Raise ConfigError for an option that only a lab with servers can have."""
    if options.replay and lab.kind != SERVER:
        raise ConfigError(
            f"--replay: the lab {lab.name} grades no server, so there are no bytes to send again"
        )
    if options.speed and lab.kind != SERVER:
        raise ConfigError(f"--speed: the lab {lab.name} grades no server: leave the option out")


def check_usage(options: argparse.Namespace) -> None:
    """Raise ConfigError if options contradict each other, one lacks another, or a number is out of its range."""
    if bool(options.path) == bool(options.command):
        raise ConfigError(
            "name one server: a PATH, or --command './server {port} {root}'; --help lists all options"
        )
    for name in ("given", "build"):
        if getattr(options, name) is not None and not options.work:
            raise ConfigError(f"--{name} needs --work FILE, which names the files of the submission")
    if options.own and options.given is None:
        raise ConfigError("--own needs --given DIR, which has the file that the student's one replaces")
    if not 0 <= options.limit <= MAX_LIMIT_S:
        raise ConfigError(f"--limit {options.limit:g}: expected seconds from 0 to {MAX_LIMIT_S:g}")
    if not 1 <= options.repeat <= MAX_REPEAT:
        raise ConfigError(f"--repeat {options.repeat}: expected a number from 1 to {MAX_REPEAT}")
    if not 1 <= options.jobs <= MAX_JOBS:
        raise ConfigError(f"--jobs {options.jobs}: expected a number from 1 to {MAX_JOBS}")
    if options.jobs > 1 and options.network == "host":
        raise ConfigError("--jobs: simultaneous runs need a private network each; leave out --network host")


def check_report_files(options: argparse.Namespace) -> None:
    """Raise ConfigError if a file or directory that the options name cannot be written.

    The error comes before the submission is built and started, and not after the first run of --repeat.
    """
    for name in (*formats.FORMATS, "html"):
        if getattr(options, name):
            formats.check_writable(Path(getattr(options, name)))
    if options.record:
        formats.check_directory(Path(options.record))


def apply_options(lab: scheme.Scheme, options: argparse.Namespace) -> scheme.Scheme:
    """Apply --seed, --claim and --only to the lab; return the changed lab. Raises ConfigError.

    --seed changes only the number of workers here: Grading gets the seed for all else. --claim: the number of
    clients for which the speed is measured (speed.py). `--only speed` sets options.speed, too.
    """
    if options.seed is not None:
        lab = replace(lab, workers=Seed.read(options.seed).workers(lab.workers))
    if options.claim is not None:
        if not 1 <= options.claim <= scheme.MAX_CLIENTS:
            raise ConfigError(f"--claim {options.claim}: expected a number from 1 to {scheme.MAX_CLIENTS}")
        lab = replace(lab, speed=replace(lab.speed, clients=options.claim))
    if options.only:
        options.speed = options.speed or SPEED.name in options.only
        lab = keep_only(lab, options.only, measures_speed=options.speed)
    return lab


def hidden_paths(options: argparse.Namespace, lab: scheme.Scheme) -> tuple[str, ...]:
    """Return the paths that are empty for the server and its build: the labs' solutions, and those of --hide.

    Return none if the system refuses that. Raises ConfigError for a path that does not exist.
    """
    given_paths = [os.path.realpath(each) for each in options.hide or ()]
    for path in given_paths:
        if not os.path.exists(path):
            raise ConfigError(f"--hide {path}: there is no such file or directory")
    return () if lab.kind == DATA else hideable([*scheme.solutions(), *given_paths])


@contextmanager
def graded_copy(
    options: argparse.Namespace, account: SubjectAccount | None, hidden: tuple[str, ...]
) -> Iterator[None]:
    """Change to a copy of the submission (submission.py), built if --build says how, for the time of the grading.

    hidden: paths that are empty for the build. Raises ConfigError, BadSubject.
    """
    # The report files belong below the present directory, which chdir() changes.
    for name in (*formats.FORMATS, "html", "record", "runs"):
        if getattr(options, name):
            setattr(options, name, os.path.abspath(getattr(options, name)))
    adopt_orphans()  # the leftover processes of the build
    home = Path.cwd()
    submission = Submission(home, SandboxLimits(account, hidden=hidden), directory_for(account))
    try:
        submission.take(options.work)
        if submission.source != home:
            print(f"graded: the folder {printable(str(submission.source.relative_to(home)))}")
        # The lab's files (--given) replace those of the student, except files that students may write (--own).
        if options.given is not None:
            own = submission.take_own(options.own or [])
            submission.add_given(Path(options.given), own)
        if left_out := submission.left_out():
            shown = ", ".join(printable(name) for name in left_out[:MAX_LEFT_OUT_NAMES])
            more = len(left_out) - MAX_LEFT_OUT_NAMES
            print(f"left out (not part of the work): {shown}{f' and {more} more' if more > 0 else ''}")
        if options.build is not None:
            submission.build(options.build)
        os.chdir(submission.path)
        yield
    finally:
        os.chdir(home)
        submission.close()


@contextmanager
def prepare_grading(
    options: argparse.Namespace,
    start_command: subject.StartCommand,
    lab: scheme.Scheme,
    account: SubjectAccount | None,
    hidden: tuple[str, ...],
) -> Iterator[Grading]:
    """Yield a Grading, with this process in a private network and a directory that is removed at the end.

    hidden: the paths that are empty for the server (hidden_paths). With --network host, or where the system refuses
    it, there is no private network. Raises ConfigError.
    """
    adopt_orphans()  # leftover processes of the server become children of this process
    isolated = options.network == "auto" and private_network()
    if options.jobs > 1 and not isolated:
        raise ConfigError(
            "--jobs: each run needs a private network, which this system refuses; leave out --jobs"
        )
    scratch = Scratch("ewe-grade-", directory_for(account))
    directory = Path(scratch.path) / "grading"
    try:
        directory.mkdir()
        close_to_others(Path(scratch.path), account)
        yield Grading(
            start_command, lab, directory, SandboxLimits(account, hidden=hidden),
            private_network=isolated, record=Path(options.record) if options.record else None,
            limit_s=options.limit,
            measures_speed=options.speed, seed=Seed.read(options.seed) if options.seed is not None else None,
            student=options.student,
        )  # fmt: skip
    finally:
        # A signal during the removal would leave a part of the directory.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        scratch.close()


def known_checks() -> dict[str, Check]:
    """Return every check by its name, and the entry "speed", which is measured after the checks."""
    return {**all_checks(), SPEED.name: SPEED}


def keep_only(lab: scheme.Scheme, names: list[str], *, measures_speed: bool) -> scheme.Scheme:
    """Return the lab with only the checks of --only, in the order of `names`. Raises ConfigError.

    A named check that the lab does not have is added without points. Without measures_speed, the lab gives no
    points for a speed.
    """
    items = {item.check.name: item for item in lab.items}
    checks = known_checks()
    for name in names:
        if name not in checks:
            raise ConfigError(f"--only: no check is called {name}{nearest(name, checks)}; see --list")
        if checks[name].kind != lab.kind:
            raise ConfigError(
                f"--only: the check {name} does not suit the lab {lab.name}; see --explain {name}"
            )
    names = [name for name in dict.fromkeys(names) if name != SPEED.name]
    plan = lab.speed if measures_speed else replace(lab.speed, marks=())
    found = tuple(items.get(name) or scheme.Item(checks[name], 0) for name in names)
    return replace(lab, items=found, speed=plan, is_whole_lab=False)


def account_of(user: str | None) -> SubjectAccount | None:
    """Return the account of the server; None means the grader's account. Raises ConfigError.

    user: the name from --user. Without it, root starts the server as a user id that no other process has. A server
    that runs as root has the grader's account, so the result for `--user root` is None.
    """
    if os.geteuid() != 0:
        if user is not None and user != processes.user_name(os.geteuid()):
            raise ConfigError("--user: only root can start a server as another user; leave the option out")
        return None
    if user is None:
        return own_account()
    try:
        account = named_account(user)
    except KeyError:
        raise ConfigError(f"--user: there is no account {user}; name one that exists, or root") from None
    return account if account.uid else None


def check_readable(start_command: subject.StartCommand, account: SubjectAccount | None) -> None:
    """Raise ConfigError if the server's account may not read a file that the command names."""
    if account is None:
        return
    for word in start_command.command:
        file = Path(shutil.which(word) or start_command.directory / word)
        # An option, a number or {port} names no file. os.path.isfile() is false for a name that is too long, where
        # Path.is_file() raises an error.
        if os.path.isfile(file) and not processes.is_readable(file.resolve(), account.uid, account.gid):
            raise ConfigError(
                f"{file}: the server's account, {account.name}, may not read this file; move it to a directory "
                "that all accounts may read, or choose an account with --user (--user root gives no protection)"
            )


def directory_for(account: SubjectAccount | None) -> str | None:
    """Return a temporary directory that the server's account may enter; None means the default one.

    The default one may be closed to other accounts, if TMPDIR is in a home directory.
    """
    if account is not None:
        for directory in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
            if all(
                processes.may_enter(part, account.uid, account.gid)
                for part in (Path(directory).resolve(), *Path(directory).resolve().parents)
            ):
                return directory
    return None


def print_list() -> int:
    """Print all labs and all checks; return the exit status."""
    print("Labs (--lab NAME):")
    for name in scheme.lab_names():
        lab = scheme.load(name)
        print(
            f"  {name:<22}{lab.title} ({len(lab.items)} checks, {sum(item.points for item in lab.items)} points)"
        )
    print("\nChecks (--only CHECK, --explain CHECK):")
    for check in known_checks().values():
        print(f"  {check.name:<22}{check.proves}")
    return 0


def explain(name: str) -> int:
    """Print all that is known of a check; return the exit status. Raises ConfigError."""
    checks = known_checks()
    if name not in checks:
        raise ConfigError(f"--explain: no check is called {name}{nearest(name, checks)}; see --list")
    check = checks[name]
    rows = [("proves", check.proves), ("sends", check.sends), ("expects", check.expects), ("why", check.why)]
    rows += [("hint", check.hint), *((f"option {key}", text) for key, text in check.options.items())]
    labs = ", ".join(lab for lab in scheme.lab_names() if name in check_names_of(lab))
    rows.append(("labs", labs or ("all, with --speed" if name == SPEED.name else "none")))
    print(name)
    for label, text in rows:
        print(textwrap.fill(text, 100, initial_indent=f"  {label:<14}", subsequent_indent=" " * 16))
    return 0


def check_names_of(lab: str) -> set[str]:
    return {item.check.name for item in scheme.load(lab).items}


def print_replay(grading: Grading, recording: replay.RecordedCheck) -> int:
    """Play and print the steps of a recorded check (replay.py); return the exit status. Raises ConfigError."""
    check = all_checks().get(str(recording.head.get("check")))
    print("  second  client: event (a line that begins with `then` shows the event of the recorded run)")
    try:
        for line in replay.play(grading.running_subject(check), recording.steps):
            print(one_line(line))
    except subject.NotStarted as error:
        raise ConfigError(str(error)) from None
    finally:
        grading.end_subject()
    return 0


def save(report: Report, options: argparse.Namespace) -> None:
    """Write the files that the options ask for."""
    for name, report_format in formats.FORMATS.items():
        file = getattr(options, name)
        if file:
            formats.write(Path(file), report_format.convert(report))
    if options.html:
        formats.write(Path(options.html), to_html(report))


def refuse(options: argparse.Namespace, lab: scheme.Scheme, reason: str) -> int:
    """Report that the submission cannot be graded, also in the report files; return the exit status."""
    reason = printable(one_line(reason))
    print(f"ewe-grade: {reason}", file=sys.stderr)
    shown = f"--command {shlex.quote(options.command)}" if options.command else shlex.quote(options.path)
    lab = lab.checks_for_language(language_of([*(options.work or ()), options.path or ""]))
    student = options.student or options.seed or ""
    report = refusal_report(lab, shown, reason, student, seeded=options.seed is not None)
    save(report, options)
    if options.autolab:
        print(formats.to_autolab(report))
    return CANNOT_BE_GRADED


def grade(grading: Grading, options: argparse.Namespace) -> int:
    """Grade once; print and write the report; return the exit status."""
    color = sys.stdout.isatty()

    def show(report: Report, verdict: Verdict) -> None:
        print_verdict(verdict, color=color)
        save(report, options)

    grading.on_verdict = show
    speed = ", and its speed" if grading.measures_speed else ""
    print(
        f"{grading.scheme.title}: {len(grading.scheme.items)} checks of {grading.start_command.shown}{speed}"
    )
    save(grading.empty_report(), options)  # before the first check, so that a complete file always exists
    report = grading.run()
    save(report, options)
    print_summary(report)
    if options.autolab:
        print(formats.to_autolab(report))
    if any(verdict.status == ERROR for verdict in report.verdicts):
        return GRADER_FAILED
    return 0 if report.all_passed else 1


def grade_often(
    options: argparse.Namespace,
    start_command: subject.StartCommand,
    lab: scheme.Scheme,
    account: SubjectAccount | None,
    hidden: tuple[str, ...],
) -> int:
    """Grade until there are --repeat runs; print the marks that differ between them; return the exit status.

    With --runs, the runs of earlier commands count. The report files are those of the latest run.
    """

    def once() -> Report:
        with prepare_grading(options, start_command, lab, account, hidden) as grading:
            return grading.run()

    checks = [item.check.name for item in lab.items]
    runs = repeat.Runs(
        Path(options.runs) if options.runs else None,
        {"lab": lab.name, "server": start_command.shown, "workers": lab.workers, "checks": checks},
    )
    if runs.finished_runs:
        print(f"{options.runs} has {len(runs.finished_runs)} runs already")
    for report in repeat.in_processes(once, max(0, options.repeat - len(runs.finished_runs)), options.jobs):
        runs.add(repeat.summary_of(report))
        save(report, options)
        failed = ", ".join(verdict.name for verdict in report.failed) or "none"
        print(
            f"run {len(runs.finished_runs)} of {options.repeat}: {formats.summary_line(report)}; failed: {failed}",
            flush=True,
        )
        if options.autolab and len(runs.finished_runs) == options.repeat:  # Autolab reads only the last line
            print(formats.to_autolab(report))
    for text in runs.summary():
        print(text)
    if any(ERROR in run.marks.values() for run in runs.finished_runs):
        return GRADER_FAILED
    # A check that was not run, such as one beyond --limit, has not passed.
    return 1 if any(run.failed or NOT_RUN in run.marks.values() for run in runs.finished_runs) else 0


def print_verdict(verdict: Verdict, *, color: bool) -> None:
    """Print a verdict: one line, and the explanation below it if the check has not passed."""
    mark, color_number = MARKS[verdict.status]
    shown = f"\033[{color_number}m{mark:<7}\033[0m" if color else f"{mark:<7}"
    text = verdict.text() if verdict.status == PASSED else verdict.proves
    print(
        f"{shown} {verdict.name:<20} {verdict.score:>2}/{verdict.points:<2} {verdict.seconds:5.1f} s  {text}"
    )
    if verdict.status != PASSED:
        # A line of a schedule has columns, which a line break would take apart.
        columns = verdict.schedule.splitlines()
        for line in verdict.text().splitlines():
            shown = textwrap.fill(line, 110, initial_indent="        ", subsequent_indent="          ")
            print(f"        {line}" if line in columns else shown)


def print_summary(report: Report) -> None:
    """Print the points, the remarks about the run, and the check to begin with."""
    summary = f"{formats.summary_line(report)} ({report.seconds:.1f} s)"
    print("", *formats.with_remarks(report, summary), sep="\n")
    if first := report.first_advice():
        print(f"Begin with {first.name}: {first.did or first.proves}")
        print(f"  {first.again}")


if __name__ == "__main__":
    sys.exit(main())
