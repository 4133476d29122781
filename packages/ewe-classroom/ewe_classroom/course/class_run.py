"""Grade a class: one process of ewe-grade for each submission, several at a time.

    folder, zip ─▶ submissions.read() ─▶ take_files() ─▶ RESULTS/students/ada/files/    the submission of ada
                                                            │ ewe-grade --json --html, as its own process
                                                       ▼
                             RESULTS/students/ada/report.json, report.html, output.txt, graded.json

Each ewe-grade moves into a private network and starts the server as its own account, so simultaneous runs do not
meet. A submission that spins or hangs costs the limit of one run and nobody else's time.

graded.json identifies the graded work: the SHA-256 of the files, the lab, its language and numbers, the student's
name, which the report shows, the SHA-256 of the grading scheme and of the lab's own files, and ewe's version. If
they are the same, the result is kept, and the next run of the command grades only the new work: after Ctrl-C, after
late submissions, or after a change of one student's files. After an edit of the scheme, every submission is graded
again: a table must not mix the marks of two schemes.

The limit of a run is a time on the clock. On a busy machine a right server may reach it, and the checks that did
not run would cost the student points. When all are graded, those that have reached the limit are therefore graded
again: one at a time, with a longer limit. Two kinds are not among them, since they reach the limit on any
machine: a server that never sleeps, and one that lets its clients wait. The grader then waits for the server, and
hardly for a processor (BUSY_SHARE).

Possible failures: ewe-grade itself fails or is killed. Another submission may be the reason, such as one that has
taken all memory, so the submission is graded again, alone. If that fails, too, it has no report, the table says so,
and the next run of the command tries again.

Read next: marks.py, which turns the reports into marks.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import selectors
import shlex
import shutil
import signal
import stat
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ewe import __version__
from ewe.config.messages import ConfigError, one_line
from ewe_classroom.course.labs import Lab, LabVariant
from ewe_classroom.course.own_parts import scheme_file
from ewe_classroom.course.submissions import STUDENTS, BadHandIn, HandIn, directory_of, take_files, walk
from ewe_classroom.grader import apart, go_cache
from ewe_classroom.grader.processes import end_with_parent
from ewe_classroom.grader.subject import FAULTS_OF_MACHINE
from ewe_classroom.grader.verdicts import NOT_RUN
from ewe_classroom.seeds import Seed

# Beyond the limit of a run, until ewe-grade is killed: it stops the server, and writes its report.
GRACE_S = 30.0
BUILD_AND_GRACE_S = 120.0 + GRACE_S  # ewe-grade's limit of a build, and its own end
MAX_REPORT_BYTES = 4 << 20
MAX_PROBLEM_CHARS = 300
WRONG_USAGE = 2  # exit status of ewe-grade
# The limit of a run that is repeated because it has reached the limit, as a multiple of that limit.
LONGER_LIMIT = 3.0
BUSY_SHARE = 0.1  # of a run: on a busy machine the grader waits for a processor for more than this part
FORMAT = "ewe-class/2"
# The facts of identify_work() by which a report was made, apart from the submission itself: key -> the words for a
# change.
CHANGES = {
    "format": "the version of ewe has changed", "version": "the version of ewe has changed",
    "lab": "--lab has changed", "language": "--language has changed", "limit_s": "--limit has changed",
    "own": "--own has changed", "seeded": "--seeded has changed", "scheme": "the grading scheme has changed",
    "given": "the files that the lab gives have changed",
}  # fmt: skip


@dataclass
class GradedHandIn:
    """The result of one submission. report: the table of ewe-grade --json, or None.

    problem: why there is no report, or no whole one. grader_failed: the problem is not the student's.
    """

    hand_in: HandIn
    report: dict[str, Any] | None = None
    problem: str = ""
    grader_failed: bool = False
    new: bool = False  # graded by this run of the command
    again: bool = False  # graded a second time, alone and with a longer limit

    @property
    def score(self) -> int:
        return int(self.report["score"]) if self.report else 0


@dataclass(frozen=True)
class ClassPlan:
    """How to grade. limit_s: the time of one run. seeded: each student has the numbers of a seed (seeds.py).

    hidden: paths that no graded program may read: the folder of the submissions, and the results. own: given files
    that students may replace by their own ones. scheme: the lecturer's own grading scheme; None: that of the lab.
    """

    lab: Lab
    variant: LabVariant
    results: Path
    jobs: int
    limit_s: float
    seeded: bool = False
    user: str = ""
    hidden: tuple[Path, ...] = ()
    own: tuple[str, ...] = ()
    scheme: Path | None = None

    def directory(self, hand_in: HandIn) -> Path:
        return self.results / STUDENTS / hand_in.key

    def command(self, hand_in: HandIn, given_directory: Path | None) -> list[str]:
        """Return the command that grades the submission in the current directory.

        given_directory: the result of write_given_files().
        """
        directory = self.directory(hand_in)
        names = (*self.variant.work, *self.variant.data)
        # ewe-grade runs in the directory of the submission, from which a relative path would lead elsewhere.
        scheme = self.lab.name if self.scheme is None else str(self.scheme.absolute())
        words = [*apart.COMMAND, "--lab", scheme]
        words += ["--limit", f"{self.limit_s:g}"]
        words += [word for name in names for word in ("--work", name)]
        words += ["--json", str(directory / "report.json"), "--html", str(directory / "report.html")]
        words += ["--given", str(given_directory)] if given_directory is not None else []
        words += [word for name in self.own for word in ("--own", name)]
        words += ["--build", self.variant.build] if self.variant.build else []
        words += [f"--seed={hand_in.name}" if self.seeded else f"--student={hand_in.name}"]
        words += ["--user", self.user] if self.user else []
        words += [word for path in self.hidden for word in ("--hide", str(path))]
        return [*words, *shlex.split(self.variant.grade)]


class WaitingHandIn(NamedTuple):
    """A submission to be graded. work: the directory of its files. graded_work: the facts of identify_work().

    changed: the changes since an earlier report of the same submission (CHANGES); empty if there is none.
    """

    hand_in: HandIn
    work: Path
    graded_work: dict[str, Any]
    changed: tuple[str, ...] = ()


@dataclass
class RunningGrader:
    """One ewe-grade at work. end: when it is asked to end, and then killed (time.monotonic())."""

    hand_in: HandIn
    process: subprocess.Popen[bytes]
    graded_work: dict[str, Any]
    end: float
    asked_to_end: bool = False


OnResult = Callable[[GradedHandIn, int, float | None], None]


def grade_class(
    plan: ClassPlan, hand_ins: list[HandIn], on_result: OnResult, tell: Callable[[str], None]
) -> list[GradedHandIn]:
    """Grade all submissions; return the results in the order of the submissions.

    Calls on_result with each result, the number of those that are left, and the estimated seconds until the end
    (None if nothing was graded yet). Calls tell with a line for the lecturer, such as why submissions are graded
    again. Raises ConfigError if the results' directory cannot be written.
    """
    with locked(plan.results):
        return grade_in_locked_directory(plan, hand_ins, on_result, tell)


@contextlib.contextmanager
def locked(results: Path) -> Iterator[None]:
    """Keep another run from the results' directory for the time of this one. Create the directory if needed.

    Raises ConfigError, also in place of an OSError in the block.
    """
    try:
        results.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(results, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as reason:
        raise ConfigError(f"{results}: {reason.strerror}; choose another directory with --output") from None
    try:
        # On a file system without locks, the run goes on unprotected.
        with contextlib.suppress(OSError):
            try:
                # The kernel ends this lock when the descriptor is closed, also if the process is killed.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"{results}: another run of ewe-course grade is at work here") from None
        yield
    except BrokenPipeError:  # the reader of the output is gone (ewe-course grade | head)
        raise
    except OSError as reason:  # as when the disk is full
        where = reason.filename or results
        raise ConfigError(f"{where}: {reason.strerror}; the same command continues the run") from None
    finally:
        os.close(descriptor)


def grade_in_locked_directory(
    plan: ClassPlan, hand_ins: list[HandIn], on_result: OnResult, tell: Callable[[str], None]
) -> list[GradedHandIn]:
    """Grade all submissions in a directory that no other run uses, as grade_class() says. Raises ConfigError."""
    close_results(plan.results)
    try:
        (plan.results / STUDENTS).mkdir(exist_ok=True)
        given_directory = write_given_files(plan)
        lab_digests = digests(plan, given_directory)
    except OSError as reason:
        raise ConfigError(
            f"{reason.filename or plan.results}: {reason.strerror}; choose another directory with --output"
        ) from None
    found: dict[str, GradedHandIn] = {}
    waiting: list[WaitingHandIn] = []
    for each in hand_ins:
        ready = prepare(plan, each, lab_digests)  # a result, if nothing has changed since the last run
        if isinstance(ready, GradedHandIn):
            found[each.key] = ready
        else:
            waiting.append(ready)
    for text in change_lines(waiting):
        tell(text)
    if waiting and plan.variant.name == "go":
        # Before the time limits of the submissions begin.
        go_cache.warm_up(own_account=os.geteuid() != 0 or plan.user == "root")
    for ready_count, result in enumerate(found.values(), 1):
        on_result(result, len(hand_ins) - ready_count, None)
    for result in grade_with_time_left(plan, waiting, given_directory, on_result):
        found[result.hand_in.key] = result
    cut_off = [each for each in found.values() if has_reached_limit(each, plan)]
    longer = replace(plan, jobs=1, limit_s=LONGER_LIMIT * plan.limit_s)
    if cut_off:
        tell(
            f"the limit of {plan.limit_s:g} s was reached: {submissions_text(len(cut_off))} to be graded again, "
            f"one at a time, with {longer.limit_s:g} s"
        )
    # A grader that was alone fails again.
    failed = [each for each in found.values() if each.new and each.grader_failed and plan.jobs > 1]
    if failed:
        tell(f"the grader failed: {submissions_text(len(failed))} to be graded again, one at a time")
    repeated = [prepare_again(plan, each, lab_digests) for each in [*cut_off, *failed]]
    for result in grade_with_time_left(longer, repeated, given_directory, on_result):
        result.again = True
        found[result.hand_in.key] = result
    return [found[each.key] for each in hand_ins]


def close_results(results: Path) -> None:
    """Close the results' directory to other accounts, so that no graded program with another account can read it.

    Raises ConfigError for a directory that other accounts use.
    """
    try:
        # The sticky bit marks a directory of several accounts, such as /tmp.
        if results == results.parent or results.stat().st_mode & stat.S_ISVTX:
            raise ConfigError(
                f"{results}: other accounts use this directory, and the results are closed to them; choose"
                " another one with --output"
            )
        results.chmod(0o700)
    except OSError as reason:
        raise ConfigError(f"{results}: {reason.strerror}; choose another directory with --output") from None


def grade_with_time_left(
    plan: ClassPlan, waiting: list[WaitingHandIn], given_directory: Path | None, on_result: OnResult
) -> Iterator[GradedHandIn]:
    """Grade submissions (in_parallel()). Yield each result, and then call on_result with the time that is left."""
    began = time.monotonic()
    for done_count, result in enumerate(in_parallel(plan, waiting, given_directory), 1):
        yield result
        left_count = len(waiting) - done_count
        seconds_each = (time.monotonic() - began) / done_count
        on_result(result, left_count, seconds_each * left_count)


def submissions_text(count: int) -> str:
    """Return a number of submissions as text."""
    return f"{count} submission{'' if count == 1 else 's'}"


def change_lines(waiting: Sequence[WaitingHandIn]) -> list[str]:
    """Return a line for each change after which submissions are graded again."""
    counts = Counter(change for each in waiting for change in each.changed)
    return [
        f"{change} since the last run: {submissions_text(count)} to be graded again"
        for change, count in counts.items()
    ]


def has_reached_limit(graded: GradedHandIn, plan: ClassPlan) -> bool:
    """Return whether a submission lacks verdicts because its run has reached the limit, perhaps by a busy machine.

    Not if its server never sleeps, if the grader has hardly waited for a processor, or if the run had the longer
    limit already.
    """
    report = graded.report
    if report is None or graded.problem or report.get("refused") or report.get("restless"):
        return False
    waited_s = report.get("waited_s")
    if waited_s is not None and waited_s < BUSY_SHARE * report["seconds"]:
        return False
    had_longer_limit = float(report.get("limit_s") or 0.0) > plan.limit_s
    return not had_longer_limit and any(each["status"] == NOT_RUN for each in report["verdicts"])


def prepare_again(plan: ClassPlan, graded: GradedHandIn, lab_digests: dict[str, Any]) -> WaitingHandIn:
    """Prepare a submission to be graded again: remove its report, and keep its files.

    The report, if there is one, lacks the checks that did not run. If the command is interrupted now, the next run
    of it finds no report, and grades the submission. lab_digests: the result of digests(). Raises OSError.
    """
    directory = plan.directory(graded.hand_in)
    remove_result(directory)
    files = directory / "files"
    work = directory_of(files, (*plan.variant.work, *plan.variant.data))
    return WaitingHandIn(graded.hand_in, work, identify_work(plan, graded.hand_in, files, lab_digests))


def digests(plan: ClassPlan, given_directory: Path | None) -> dict[str, Any]:
    """Return the SHA-256 of the grading scheme and of the lab's own files. Raises OSError.

    given_directory: the directory of the lab's own files, if there are any.
    """
    scheme = scheme_file(plan.lab, plan.scheme).read_bytes()
    return {
        "scheme": hashlib.sha256(scheme).hexdigest(),
        "given": digest_of(given_directory, plan.variant.given) if given_directory is not None else "",
    }


def digest_of(directory: Path, names: Sequence[str]) -> str:
    """Return the SHA-256 of files in a directory, with their names. Raises OSError."""
    digest = hashlib.sha256()
    for name in sorted(names):
        content = (directory / name).read_bytes()
        # With the size, two files can never give the same bytes as one file with the contents of both.
        digest.update(f"{name}\0{len(content)}\0".encode(errors="surrogateescape"))
        digest.update(content)
    return digest.hexdigest()


def write_given_files(plan: ClassPlan) -> Path | None:
    """Write the lab's own files, which replace the student's; return their directory, None if there are none.

    Raises OSError.
    """
    if not plan.variant.given:
        return None
    directory = plan.results / "given"
    # The last run may have graded another lab. Its given files may be the work of this one, and ewe-grade would
    # grade them in place of the student's.
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    texts = plan.lab.files(plan.variant, solved=True)
    for name in plan.variant.given:
        (directory / name).write_text(texts[name], encoding="utf-8")
    return directory


def prepare(plan: ClassPlan, hand_in: HandIn, lab_digests: dict[str, Any]) -> GradedHandIn | WaitingHandIn:
    """Copy a student's files. lab_digests: the result of digests().

    Return a result if there is nothing to grade: the earlier one of the same files, or one with a problem.
    Otherwise return what to grade.
    """
    directory = plan.directory(hand_in)
    # A separate directory: the earlier submission's files stay until it is known that these are others.
    new_files = directory / "files.new"
    try:
        directory.mkdir(exist_ok=True)
        shutil.rmtree(new_files, ignore_errors=True)
        new_files.mkdir()
        if plan.seeded:
            Seed.read(hand_in.name)  # only to raise ConfigError for a name that no seed can have
        if hand_in.problem:
            raise BadHandIn(hand_in.problem)
        take_files(hand_in, new_files)
        work = directory_of(new_files, (*plan.variant.work, *plan.variant.data))
        graded_work = identify_work(plan, hand_in, new_files, lab_digests)
        earlier_work = earlier_facts(directory)
        if earlier_work == graded_work and (earlier_report := kept_report(directory)) is not None:
            shutil.rmtree(new_files)
            return GradedHandIn(hand_in, earlier_report)
    except (BadHandIn, ConfigError) as reason:
        replace_files(directory, new_files)
        return GradedHandIn(hand_in, problem=one_line(str(reason))[:MAX_PROBLEM_CHARS])
    except OSError as reason:
        where = reason.filename or directory  # write(2) names no file
        return GradedHandIn(hand_in, problem=f"{where}: {reason.strerror}", grader_failed=True)
    files = replace_files(directory, new_files)
    changed = what_changed(earlier_work, graded_work)
    return WaitingHandIn(hand_in, files / work.relative_to(new_files), graded_work, changed)


def replace_files(directory: Path, new_files: Path) -> Path:
    """Replace the files and the result of an earlier submission by the new files; return their directory."""
    remove_result(directory)
    files = directory / "files"
    shutil.rmtree(files, ignore_errors=True)
    new_files.rename(files)
    return files


def remove_result(directory: Path) -> None:
    """Remove the result of an earlier submission."""
    for name in ("graded.json", "report.json", "report.html", "output.txt"):
        (directory / name).unlink(missing_ok=True)


def identify_work(
    plan: ClassPlan, hand_in: HandIn, directory: Path, lab_digests: dict[str, Any]
) -> dict[str, Any]:
    """Return the facts that decide a report: with the same ones, another run would write the same report.

    directory: the student's files. lab_digests: the result of digests().
    """
    names = [str(path.relative_to(directory)) for path in walk(directory) if path.is_file()]
    return {
        "format": FORMAT, "version": __version__, "lab": plan.lab.name, "language": plan.variant.name,
        "student": hand_in.name, "seeded": plan.seeded, "limit_s": plan.limit_s, "own": sorted(plan.own),
        "files": digest_of(directory, names), **lab_digests,
    }  # fmt: skip


def earlier_facts(directory: Path) -> dict[str, Any]:
    """Return the facts of identify_work() for the earlier report of a student; {} if there is none."""
    with contextlib.suppress(OSError, ValueError):
        facts = json.loads((directory / "graded.json").read_text())
        if isinstance(facts, dict):
            return facts
    return {}


def kept_report(directory: Path) -> dict[str, Any] | None:
    """Return the report of an earlier run; None if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return read_report(directory / "report.json")
    return None


def what_changed(earlier: dict[str, Any], now: dict[str, Any]) -> tuple[str, ...]:
    """Return what has changed since the earlier report, apart from the submission itself; () if there was none.

    earlier, now: facts of identify_work(). If the student has handed in other files, they are the reason.
    """
    # A report of another version may lack facts, so no more than the version is said about it.
    if not earlier or earlier.get("files") != now["files"]:
        return ()
    words = [text for key, text in CHANGES.items() if earlier.get(key) != now[key]]
    return tuple(dict.fromkeys(words[:1] if earlier.get("format") != now["format"] else words))


def read_report(path: Path) -> dict[str, Any]:
    """Return the table of a report of ewe-grade. Raises OSError, ValueError.

    A server with the grader's account could write the file itself. The grading of the class must not end by that.
    """
    with path.open("rb") as file:
        text = file.read(MAX_REPORT_BYTES)
    try:
        table = json.loads(text)
    except RecursionError:  # thousands of brackets
        raise ValueError("not a report") from None
    if not isinstance(table, dict) or table.get("format") != "ewe-grade/1":
        raise ValueError("another format")
    return table


def in_parallel(
    plan: ClassPlan, waiting: list[WaitingHandIn], given_directory: Path | None
) -> Iterator[GradedHandIn]:
    """Grade submissions, `jobs` at a time; yield each result when its process has ended.

    given_directory: the result of write_given_files(). A pidfd is a descriptor of a process, which becomes readable
    when the process ends (pidfd_open(2)).
    """
    running: dict[int, RunningGrader] = {}  # pidfd -> grader
    not_started = list(reversed(waiting))  # the last one, which pop() takes, is the first of `waiting`
    with selectors.DefaultSelector() as selector:
        try:
            while not_started or running:
                while not_started and len(running) < plan.jobs:
                    try:
                        grader = start_grader(plan, not_started[-1], given_directory)
                    except OSError as reason:
                        # A submission that is graded now may take all processes: its end makes room.
                        if reason.errno not in FAULTS_OF_MACHINE or not running:
                            raise
                        break
                    not_started.pop()
                    try:
                        descriptor = os.pidfd_open(grader.process.pid)
                    except OSError:  # no descriptor is free
                        grader.process.terminate()
                        wait_or_kill(grader.process)
                        raise
                    running[descriptor] = grader
                    selector.register(descriptor, selectors.EVENT_READ)
                deadline = min(each.end for each in running.values())
                ended = selector.select(max(0.0, deadline - time.monotonic()))
                for key, _ in ended:
                    grader = running.pop(key.fd)
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    yield result_of(plan, grader)
                for each in running.values():
                    if time.monotonic() >= each.end:
                        end_grader(each)
        finally:  # graders run on if this process was stopped, or a result could not be written
            for each in running.values():
                each.process.terminate()  # ewe-grade then stops the server, and ends
            for descriptor, each in running.items():
                wait_or_kill(each.process)
                os.close(descriptor)


def wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    """Wait until a grader that was asked to end has ended; kill it after GRACE_S."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    process.kill()
    process.wait()


def start_grader(plan: ClassPlan, waiting: WaitingHandIn, given_directory: Path | None) -> RunningGrader:
    """Start ewe-grade in the directory of a submission.

    It has a separate session: Ctrl-C in the terminal reaches only this process, which then ends the graders. If
    this process is killed, the kernel asks the grader to end: the next run of the command writes to the same files.
    """
    hand_in = waiting.hand_in
    with (plan.directory(hand_in) / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            plan.command(hand_in, given_directory), cwd=waiting.work, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True, env=grader_environment(),
            preexec_fn=partial(end_with_parent, signal.SIGTERM, os.getpid()),
        )  # fmt: skip
    end_s = time.monotonic() + plan.limit_s + BUILD_AND_GRACE_S
    return RunningGrader(hand_in, process, waiting.graded_work, end_s)


def grader_environment() -> dict[str, str]:
    """Return the variables of ewe-grade. A relative PYTHONPATH would name the student's directory there."""
    path = os.environ.get("PYTHONPATH", "")
    absolute = os.pathsep.join(os.path.abspath(each) for each in path.split(os.pathsep)) if path else ""
    return {**os.environ, "PYTHONPATH": absolute}


def end_grader(grader: RunningGrader) -> None:
    """End a grader whose time is over: first ask it, so that it can stop its server; at the next call, kill it."""
    grader.process.send_signal(signal.SIGKILL if grader.asked_to_end else signal.SIGTERM)
    grader.asked_to_end = True
    grader.end = time.monotonic() + GRACE_S


def result_of(plan: ClassPlan, grader: RunningGrader) -> GradedHandIn:
    """Return the result of a grader that has ended. Raises ConfigError if the command line was wrong.

    Write graded.json if the report is complete: the next run of the command then does not grade this work again.
    """
    status = grader.process.wait()
    directory = plan.directory(grader.hand_in)
    try:
        report = read_report(directory / "report.json")
    except (OSError, ValueError):
        why = why_no_report(directory, status)
        # A fault of the submission has a report. Wrong usage has none, and concerns all submissions.
        if status == WRONG_USAGE:
            raise ConfigError(why) from None
        return GradedHandIn(grader.hand_in, problem=why, grader_failed=True, new=True)
    # Status 1 alone does not mean that every check has run: an exception of the grader, such as one about a full
    # disk, has this status, too. If the submission could not be started, the report is complete with any status.
    is_complete = (status in (0, 1) and report.get("finished") is True) or bool(report.get("refused"))
    if is_complete:
        (directory / "graded.json").write_text(json.dumps(grader.graded_work) + "\n")
    problem = (
        "" if is_complete else f"the grader ended with status {status} before it had finished: see output.txt"
    )
    return GradedHandIn(grader.hand_in, report, problem, grader_failed=not is_complete, new=True)


def why_no_report(directory: Path, status: int) -> str:
    """Return the last line that ewe-grade has written, as the reason for a missing report."""
    text = (directory / "output.txt").read_text(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    message = (
        one_line(lines[-1].removeprefix("ewe-grade: ")) if lines else f"the grader ended with status {status}"
    )
    return message[:MAX_PROBLEM_CHARS]
