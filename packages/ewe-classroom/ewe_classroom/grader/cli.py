"""The command `ewe-grade`: grade a server, list and explain checks, replay what a check has sent.

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
from typing import TYPE_CHECKING

from ewe import __version__
from ewe.config.command import RaisingParser, entry_point
from ewe.config.linux import needs_linux
from ewe.config.messages import ConfigError, docs_page, nearest, one_line
from ewe.scratch import Scratch
from ewe_classroom.grader import formats, processes, repeat, replay, scheme, subject
from ewe_classroom.grader.check import Check, all_checks
from ewe_classroom.grader.grading import Grading
from ewe_classroom.grader.kinds import DATA, ENGINE, SERVER, kind
from ewe_classroom.grader.page import to_html
from ewe_classroom.grader.refused import refused
from ewe_classroom.grader.sandbox import (
    Account,
    Limits,
    adopt_orphans,
    closed_to_others,
    named_account,
    own_account,
    private_network,
)
from ewe_classroom.grader.speed import SPEED
from ewe_classroom.grader.submission import Submission
from ewe_classroom.grader.verdicts import ERROR, FAILED, NOT_RUN, PASSED, Report, Verdict, printable
from ewe_classroom.seeds import Seed

if TYPE_CHECKING:
    pass

DESCRIPTION = """Grade a web server: prove by schedules how many clients it serves at a time, and look for leaks,
zombies and busy waiting. The server may be in any language; {page} says what it must do."""
LEFT_OUT_SHOWN = 5  # names of files in one line
MARKS = {PASSED: ("ok", "32"), FAILED: ("FAILED", "31"), ERROR: ("error", "33"), NOT_RUN: ("not run", "33")}


def parser() -> RaisingParser:
    made = RaisingParser(
        prog="ewe-grade",
        description=DESCRIPTION.format(page=docs_page("grading.md", "ewe-classroom")),
        allow_abbrev=False,
    )
    made.add_argument(
        "path", nargs="?", metavar="PATH",
        help="a model of ewe (a Python file), or a program that is run as PATH PORT ROOT WORKERS",
    )  # fmt: skip
    made.add_argument(
        "--command", metavar="TEXT", help="how to start a server: './server {port} {root} {workers}'"
    )
    made.add_argument(
        "--work", metavar="FILE", action="append",
        help="copy this file from here to an empty directory, and grade it there; may be repeated",
    )  # fmt: skip
    made.add_argument(
        "--given",
        metavar="DIR",
        help="with --work: the files of this directory come with the lab, and replace the student's",
    )
    made.add_argument(
        "--build",
        metavar="TEXT",
        help="with --work: build the server first, as its account: 'make -f Makefile'",
    )
    made.add_argument("--lab", metavar="NAME", default="thread", help="a lab, or a grading.toml [thread]")
    made.add_argument(
        "--only", metavar="CHECK", action="append", help="run this check alone; may be repeated"
    )
    made.add_argument("--list", action="store_true", help="list the labs and the checks, and end")
    made.add_argument(
        "--explain", metavar="CHECK", help="say what a check sends and expects, and why, and end"
    )
    made.add_argument(
        "--seed", metavar="NAME", help="grade with the numbers of this student, those of the handout"
    )
    made.add_argument(
        "--speed", action="store_true", help="also measure the speed, as a ratio to a reference server"
    )
    made.add_argument(
        "--claim",
        metavar="N",
        type=int,
        help="how many clients at once the server claims to serve, for --speed",
    )
    made.add_argument("--record", metavar="DIR", help="write a replay file for each check")
    made.add_argument(
        "--replay", metavar="FILE", help="send what a replay file holds, and show what comes back"
    )
    made.add_argument(
        "--repeat", metavar="N", type=int, default=1, help="grade N times, and report what differs"
    )
    made.add_argument("--jobs", metavar="N", type=int, default=1, help="with --repeat: N runs at a time [1]")
    made.add_argument(
        "--runs", metavar="FILE", help="with --repeat: keep the runs; given again, the command goes on"
    )
    made.add_argument("--html", metavar="FILE", help="write the report as a page, with timelines")
    for name, (what, _) in formats.FORMATS.items():
        made.add_argument(f"--{name}", metavar="FILE", help=f"write {what}")
    made.add_argument("--autolab", action="store_true", help="print Autolab's line at the end")
    made.add_argument(
        "--user", metavar="NAME", help="the server's account, if the grader is root [a separate one]"
    )
    made.add_argument(
        "--network", choices=("auto", "host"), default="auto",
        help="auto: a private network where the system allows one; host: a free port of this host [auto]",
    )  # fmt: skip
    made.add_argument("--version", action="version", version=f"ewe-grade {__version__}")
    return made


@entry_point("ewe-grade", interrupted="ewe-grade: interrupted; the checks that did not run count as not run")
def main(arguments: list[str]) -> int:
    """Run the command; return its exit status."""
    return run(parser().parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Do what the options say. Raises ConfigError, BadSubject."""
    sys.stdout.reconfigure(errors="replace", line_buffering=True)  # type: ignore[union-attr]
    if options.list:
        return print_list()
    if options.explain is not None:
        return explain(options.explain)
    check_usage(options)
    if reason := needs_linux("the grader", shlex.join(["ewe-grade", *sys.argv[1:]])):
        print(f"ewe-grade: {one_line(reason)}", file=sys.stderr)
        return 1
    head, steps = replay.load(Path(options.replay)) if options.replay else ({}, [])
    lab = scheme.load(str(head.get("lab", options.lab)) if options.replay else options.lab)
    if options.replay and lab.subject != SERVER:
        raise ConfigError(f"--replay: the lab {lab.name} grades no server: there are no bytes to send again")
    if options.speed and lab.subject != SERVER:
        raise ConfigError(f"--speed: the lab {lab.name} grades no server: leave the option out")
    lab = as_asked(options, lab)
    account = account_of(options.user) if lab.subject != DATA else None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as stack:
        what = kind(lab.subject)
        try:
            if options.work:
                stack.enter_context(copied(options, account))
            recipe = what.from_command(options.command) if options.command else what.from_path(options.path)
        except subject.BadSubject as error:
            return refuse(options, lab, printable(one_line(str(error))))
        check_readable(recipe, account)
        if options.repeat > 1 or options.runs:
            return grade_often(options, recipe, lab, account)
        with prepared(options, recipe, lab, account) as grading:
            if options.replay:
                return print_replay(grading, str(head.get("check")), steps)
            return grade(grading, options)


def check_usage(options: argparse.Namespace) -> None:
    """Raise ConfigError if the options contradict each other."""
    if bool(options.path) == bool(options.command):
        raise ConfigError(
            "name one server: a PATH, or --command './server {port} {root}'; --help lists all options"
        )
    for name in ("given", "build"):
        if getattr(options, name) is not None and not options.work:
            raise ConfigError(f"--{name} goes with --work FILE, which names the files of the submission")
    if not 1 <= options.repeat <= 10000:
        raise ConfigError(f"--repeat: {options.repeat}, which is no number from 1 to 10000")
    if not 1 <= options.jobs <= 64:
        raise ConfigError(f"--jobs: {options.jobs}, which is no number from 1 to 64")
    if options.jobs > 1 and options.network == "host":
        raise ConfigError(
            "--jobs: runs at the same time need a private network each; leave out --network host"
        )


def as_asked(options: argparse.Namespace, lab: scheme.Scheme) -> scheme.Scheme:
    """Return the lab with the numbers of --seed and --claim, and the checks of --only. Raises ConfigError."""
    if options.seed is not None:
        lab = replace(lab, workers=Seed.read(options.seed).workers(lab.workers))
    if options.claim is not None:
        if not 1 <= options.claim <= scheme.MOST_CLIENTS:
            raise ConfigError(f"--claim: {options.claim}, which is no number from 1 to {scheme.MOST_CLIENTS}")
        lab = replace(lab, speed=replace(lab.speed, clients=options.claim))
    if options.only:
        options.speed = options.speed or SPEED.name in options.only
        lab = chosen(lab, options.only, options.speed)
    if options.speed and lab.subject != SERVER:
        raise ConfigError(f"--speed: the lab {lab.name} grades no server")
    return lab


@contextmanager
def copied(options: argparse.Namespace, account: Account | None) -> Iterator[None]:
    """Grade in a copy of the submission (submission.py). Raises ConfigError, BadSubject."""
    for name in (*formats.FORMATS, "html", "record", "runs"):  # files of the directory we are about to leave
        if getattr(options, name):
            setattr(options, name, os.path.abspath(getattr(options, name)))
    adopt_orphans()  # the build's
    home = Path.cwd()
    submission = Submission(home, Limits(account), place_for(account))
    try:
        submission.take(options.work)
        if options.given is not None:
            submission.add_given(Path(options.given))
        if left_out := submission.left_out():
            shown = ", ".join(printable(name) for name in left_out[:LEFT_OUT_SHOWN])
            more = f" and {len(left_out) - LEFT_OUT_SHOWN} more" if len(left_out) > LEFT_OUT_SHOWN else ""
            print(f"Not part of the work, and left out: {shown}{more}")
        if options.build is not None:
            submission.build(options.build)
        os.chdir(submission.path)
        yield
    finally:
        os.chdir(home)
        submission.close()


@contextmanager
def prepared(
    options: argparse.Namespace, recipe: subject.Recipe, lab: scheme.Scheme, account: Account | None
) -> Iterator[Grading]:
    """Give what grades a server: a private network for this process, and a directory that is removed afterwards."""
    adopt_orphans()
    isolated = options.network == "auto" and private_network()
    if options.jobs > 1 and not isolated:
        raise ConfigError(
            "--jobs: each run needs a private network, which this system refuses; leave out --jobs"
        )
    scratch = Scratch("ewe-grade-", place_for(account))
    directory = Path(scratch.path) / "grading"
    try:
        directory.mkdir()
        if lab.subject == ENGINE:  # a check of X-Switch runs the scripts under its account
            Path(scratch.path).chmod(0o711)
        else:
            closed_to_others(Path(scratch.path), account)
        yield Grading(
            recipe, lab, directory, Limits(account),
            private_network=isolated, record=Path(options.record) if options.record else None,
            measures_speed=options.speed, seed=Seed.read(options.seed) if options.seed is not None else None,
        )  # fmt: skip
    finally:
        # A second signal, or one that comes only now, would leave a part of the directory.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        scratch.close()


def known_checks() -> dict[str, Check]:
    """Return every check by its name, and speed, which is measured after them."""
    return {**all_checks(), SPEED.name: SPEED}


def chosen(lab: scheme.Scheme, names: list[str], speed: bool) -> scheme.Scheme:
    """Return a lab with some of its checks; a check that the lab does not have is added, with no points."""
    items = {item.check.name: item for item in lab.items}
    checks = known_checks()
    for name in names:
        if name not in checks:
            raise ConfigError(f"--only: no check is called {name}{nearest(name, checks)}; see --list")
        if checks[name].subject != lab.subject:
            raise ConfigError(f"--only: {name} is no check for the lab {lab.name}; see --explain {name}")
    names = [name for name in dict.fromkeys(names) if name != SPEED.name]
    plan = lab.speed if speed else replace(lab.speed, marks=())
    return replace(
        lab, items=tuple(items.get(name) or scheme.Item(checks[name], 0) for name in names), speed=plan
    )


def account_of(user: str | None) -> Account | None:
    """Return the account that the server runs as, None for the grader's. Raises ConfigError."""
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


def check_readable(recipe: subject.Recipe, account: Account | None) -> None:
    """Raise ConfigError if the account may not read a file that the server's command names."""
    if account is None:
        return
    for word in recipe.command:
        file = Path(shutil.which(word) or recipe.directory / word) if word else None
        if file is None or "{" in word or not file.is_file():
            continue
        if not processes.is_readable(file.resolve(), account.uid, account.gid):
            raise ConfigError(
                f"{file}: the server's account, {account.name}, may not read it; move it to where all may read, "
                "or choose an account with --user (--user root: no protection)"
            )


def place_for(account: Account | None) -> str | None:
    """Return a directory for the site that the account may enter: the usual one for temporary files, or /tmp."""
    if account is not None:
        for place in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
            if all(
                processes.may_enter(part, account.uid, account.gid)
                for part in (Path(place).resolve(), *Path(place).resolve().parents)
            ):
                return place
    return None


def print_list() -> int:
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
    checks = known_checks()
    if name not in checks:
        raise ConfigError(f"--explain: no check is called {name}{nearest(name, checks)}; see --list")
    check = checks[name]
    rows = [("proves", check.proves), ("sends", check.sends), ("expects", check.expects), ("why", check.why)]
    rows += [("hint", check.hint), *((f"option {key}", text) for key, text in check.options.items())]
    labs = ", ".join(lab for lab in scheme.lab_names() if name in names_of(lab))
    rows.append(("labs", labs or ("all, with --speed" if name == SPEED.name else "none")))
    print(name)
    for label, text in rows:
        print(textwrap.fill(text, 100, initial_indent=f"  {label:<14}", subsequent_indent=" " * 16))
    return 0


def names_of(lab: str) -> set[str]:
    return {item.check.name for item in scheme.load(lab).items}


def print_replay(grading: Grading, name: str, steps: list[dict[str, object]]) -> int:
    print("  second  who: what (a line that begins with `then` tells what came back when it was recorded)")
    try:
        for line in replay.play(grading.running_subject(all_checks().get(name)), steps):
            print(line)
    except subject.NotStarted as error:
        raise ConfigError(str(error)) from None
    finally:
        grading.end_subject()
    return 0


def save(report: Report, options: argparse.Namespace) -> None:
    """Write the files that the options ask for."""
    for name, (_, convert) in formats.FORMATS.items():
        file = getattr(options, name)
        if file:
            formats.write(Path(file), convert(report))
    if options.html:
        formats.write(Path(options.html), to_html(report))


def refuse(options: argparse.Namespace, lab: scheme.Scheme, reason: str) -> int:
    """Say that nothing can be graded, also in the files that the options ask for; return the exit status."""
    print(f"ewe-grade: {reason}", file=sys.stderr)
    shown = f"--command {shlex.quote(options.command)}" if options.command else shlex.quote(options.path)
    report = refused(lab, shown, reason, options.seed or "")
    save(report, options)
    if options.autolab:
        print(formats.to_autolab(report))
    return 2


def grade(grading: Grading, options: argparse.Namespace) -> int:
    """Grade once; print and write what was found; return the exit status."""
    color = sys.stdout.isatty()

    def show(report: Report, verdict: Verdict) -> None:
        print_verdict(verdict, color)
        save(report, options)

    grading.on_verdict = show
    speed = ", and its speed" if grading.measures_speed else ""
    print(f"{grading.scheme.title}: {len(grading.scheme.items)} checks of {grading.recipe.shown}{speed}")
    save(grading.report(), options)  # before the first check: a file that can be read is there from the start
    report = grading.run()
    save(report, options)
    print_summary(report)
    if options.autolab:
        print(formats.to_autolab(report))
    if any(verdict.status == ERROR for verdict in report.verdicts):
        return 3
    return 0 if report.all_passed else 1


def grade_often(
    options: argparse.Namespace, recipe: subject.Recipe, lab: scheme.Scheme, account: Account | None
) -> int:
    """Grade as often as --repeat says; print what differed between the runs; return the exit status."""

    def once() -> Report:
        with prepared(options, recipe, lab, account) as grading:
            return grading.run()

    checks = [item.check.name for item in lab.items]
    runs = repeat.Runs(
        Path(options.runs) if options.runs else None,
        {"lab": lab.name, "server": recipe.shown, "workers": lab.workers, "checks": checks},
    )
    if runs.done:
        print(f"{len(runs.done)} runs are in {options.runs} already")
    for report in repeat.in_processes(once, max(0, options.repeat - len(runs.done)), options.jobs):
        runs.add(repeat.kept(report))
        save(report, options)
        failed = ", ".join(verdict.name for verdict in report.failed) or "none"
        print(
            f"run {len(runs.done)} of {options.repeat}: {formats.summary_line(report)}; failed: {failed}",
            flush=True,
        )
        if options.autolab and len(runs.done) == options.repeat:
            print(formats.to_autolab(report))
    for text in runs.summary():
        print(text)
    if any(ERROR in run.marks.values() for run in runs.done):
        return 3
    return 1 if any(run.failed for run in runs.done) else 0


def print_verdict(verdict: Verdict, color: bool) -> None:
    mark, number = MARKS[verdict.status]
    shown = f"\033[{number}m{mark:<7}\033[0m" if color else f"{mark:<7}"
    first = verdict.text() if verdict.status == PASSED else verdict.proves
    print(
        f"{shown} {verdict.name:<20} {verdict.score:>2}/{verdict.points:<2} {verdict.seconds:5.1f} s  {first}"
    )
    if verdict.status != PASSED:
        for line in verdict.text().splitlines():
            print(textwrap.fill(line, 110, initial_indent="        ", subsequent_indent="          "))


def print_summary(report: Report) -> None:
    print(f"\n{formats.summary_line(report)} ({report.seconds:.1f} s)")
    if report.failed:
        first = report.failed[0]
        print(f"Begin with {first.name}: {first.did or first.proves}")
        print(f"  {first.again}")


if __name__ == "__main__":
    sys.exit(main())
