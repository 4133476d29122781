"""The command `ewe-lab renew`: measure what the page of claims lacks, within a time, on a quiet machine.

All experiments take nine hours, and nobody has a quiet machine for nine hours. This command measures as many as a
given time allows, keeps each one when it has ended, and goes on another evening where it has stopped:

    the page's findings ──▶ in order: lacking, then quick, then the oldest ──▶ quiet? ──▶ ewe-lab run ID (a process)
           ▲                                                                                       │
           └──── the page, its file, and a small report under version control ◀── as much said? ◀──┘

Each experiment runs in a separate process. If it hangs or crashes, the others go on. Nothing is lost by an
interrupt: the page is written after each experiment.

Possible failures. Other programs have the cores: the command waits, and ends when the time has passed. An
experiment does not fit into the rest of the time: a shorter one comes first, and a line says how many minutes the
long one needs. Other programs come while it is measured: then the run has no verdict, and replaces none.
"""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ewe import __version__
from ewe.config.command import INTERRUPTED
from ewe_lab.bench import verdicts
from ewe_lab.bench.experiment import Experiment
from ewe_lab.bench.foreign import MAX_FOREIGN_SHARE, OtherProgramsWatch
from ewe_lab.bench.processes import two_cores
from ewe_lab.bench.results import BadResults, ExperimentTable, Results, load, results_of_text
from ewe_lab.report import claims, kept_reports
from ewe_lab.report.claims import KeptFinding, KeptFindings

LOOK_S = 5.0  # seconds in which the cores are watched before an experiment
PAUSE_S = 25.0  # between two looks, while other programs have the cores
MAX_WAIT_S = 600.0  # for a quiet machine, if no time was given
START_S = 10.0  # that a process needs beside its experiment
MAX_OVERTIME = 2  # times the estimate: then an experiment is interrupted
END_S = 60.0  # in which an interrupted experiment must end
# How urgent an experiment is, by its finding: the least number is measured first
LACKS_VERDICT, WAS_QUICK, WAS_FULL = 0, 1, 2


@dataclass(frozen=True)
class Renewal:
    """What to do. seconds: of all measurements; inf: each experiment once. anyway: also beside other programs."""

    chosen: Sequence[Experiment]
    page: Path
    reports: Path
    runs: Path  # the directory for the whole reports
    seconds: float = math.inf
    quick: bool = False
    anyway: bool = False


def experiments_to_renew(
    kept: KeptFindings, chosen: Sequence[Experiment], *, quick: bool
) -> list[Experiment]:
    """Return the experiments whose findings a run may improve, in the order in which to measure them.

    First those without a verdict, then those with the verdict of a quick run, then the others. Within each group
    the oldest finding comes first, and among the findings of one day the shortest experiment. kept: the findings on
    the page.
    """
    runnable = [each for each in chosen if each.run is not None]
    if quick:  # a quick run does not improve the finding of a full one
        runnable = [each for each in runnable if urgency(kept.findings.get(each.id))[0] < WAS_FULL]

    def rank(each: Experiment) -> tuple[tuple[int, str], float]:
        return urgency(kept.findings.get(each.id)), each.quick_seconds if quick else each.minutes

    return sorted(runnable, key=rank)


def urgency(finding: KeptFinding | None) -> tuple[int, str]:
    """Return LACKS_VERDICT, WAS_QUICK or WAS_FULL; then the date of the finding, "" without one."""
    if finding is None:
        return LACKS_VERDICT, ""
    if finding.word == verdicts.NO_VERDICT:
        return LACKS_VERDICT, finding.date
    return (WAS_QUICK if finding.quick else WAS_FULL), finding.date


def seconds_of(each: Experiment, reports: Path, *, quick: bool) -> float:
    """Return the seconds to plan for an experiment, with the start of its process.

    They are those of its kept report if both are quick or both are full, else the estimate.
    """
    estimate = each.quick_seconds if quick else each.minutes * 60
    try:
        [table] = load(kept_reports.report_file(reports, each.id)).tables
    except (OSError, ValueError, BadResults):
        return estimate + START_S
    return (table.seconds if table.quick == quick and table.seconds else estimate) + START_S


class Renewer:
    """Measures one experiment after the other.

    measure: runs an experiment. foreign: returns how many cores other programs have. clock, sleep: as in the module
    time. Tests replace these four.
    """

    def __init__(self, renewal: Renewal, code: str) -> None:
        """code: the version of the code that is measured."""
        self.renewal = renewal
        self.measure: Callable[[Experiment, Path, float], int] = self.measure_in_process
        self.foreign: Callable[[], float] = foreign_cores
        self.clock: Callable[[], float] = time.monotonic
        self.sleep: Callable[[float], None] = time.sleep
        self.code = code

    def renew(self) -> int:
        """Measure until the time has passed; return the exit status. Raises OSError, BadResults."""
        renewal, status, count = self.renewal, 0, 0
        until = self.clock() + renewal.seconds
        kept = claims.load(claims.kept_file(renewal.page))
        waiting = experiments_to_renew(kept, renewal.chosen, quick=renewal.quick)
        too_long: list[tuple[str, float]] = []  # experiments for which no time is left, with their seconds
        for each in waiting:
            length = seconds_of(each, renewal.reports, quick=renewal.quick)
            if length > until - self.clock():
                too_long.append((each.id, length))
                continue
            # The experiment must begin `length` seconds before the end
            if not self.wait_for_quiet(until - length):
                say(
                    "the machine is not quiet: nothing more is measured (--anyway measures beside other programs)"
                )
                status = 1
                break
            say(f"{each.id}: {each.title} (about {length_text(length)})")
            directory = renewal.runs / each.id
            ended = self.measure(each, directory, length)
            if ended == INTERRUPTED:
                return INTERRUPTED
            status = max(status, int(ended != 0))  # below 0 after a signal
            count += self.add_to_page(each, directory)  # 1 if the experiment has results
        say(f"{count} of {len(waiting)} experiments were measured")
        if too_long:
            id, length = min(too_long, key=lambda pair: pair[1])
            names = ", ".join(each for each, _ in too_long)
            say(
                f"too long for the rest of the time: {names}. The shortest, {id}, needs {length_text(length)}"
            )
        return status

    def wait_for_quiet(self, until: float) -> bool:
        """Wait until other programs leave the cores alone, until `until` at most; return whether they do.

        until: by self.clock. At once True with --anyway.
        """
        if self.renewal.anyway:
            return True
        if math.isinf(self.renewal.seconds):  # no time was given, so `until` never comes
            until = min(until, self.clock() + MAX_WAIT_S)
        has_said = False
        while (foreign := self.foreign()) > MAX_FOREIGN_SHARE:
            if self.clock() + PAUSE_S > until:
                return False
            if not has_said:
                say(f"other programs have {foreign:.1f} of the {len(two_cores())} cores: waiting for them")
                has_said = True
            self.sleep(PAUSE_S)
        return True

    def add_to_page(self, each: Experiment, directory: Path) -> bool:
        """Add the results of an experiment to the page; return whether it has ended, and so has results.

        directory: that of its results. Raises OSError, BadResults for the page and its files.
        """
        try:
            results = load(directory / "results.json")
        except (OSError, BadResults) as reason:
            say(f"{each.id}: no results: {reason}")
            return False
        table = next((table for table in results.tables if table.id == each.id), None)
        if table is None or table.interrupted or not table.cells:
            say(f"{each.id}: it has not ended, so nothing of it is kept")
            return False
        try:
            self.add_table_to_page(results, table)
        except (OSError, BadResults):
            raise
        except Exception as reason:  # a mistake in the check of the experiment: the other experiments go on
            say(f"{each.id}: its check failed, so nothing of it is kept: {type(reason).__name__}: {reason}")
            return False
        return True

    def add_table_to_page(self, results: Results, table: ExperimentTable) -> None:
        """Add the finding on a table to the page, the file beside it, and the small report.

        An earlier finding stays if it says more (claims.KeptFinding.rank()). Raises OSError, BadResults. The small
        report is judged, and not the whole one, whose figures have more digits: after a change of the rules only
        the small one is left, and the page must say what it says.
        """
        page = self.renewal.page
        kept = claims.load(claims.kept_file(page))  # again: another run may have written it meanwhile
        file = kept_reports.report_file(self.renewal.reports, table.id)
        text = kept_reports.text_of(results, table, self.code)
        # Why the earlier finding stays; none if it is replaced
        reasons = list(kept.add_findings(results_of_text(text, str(file))))
        for reason in reasons:
            say(reason)
        if not reasons:
            kept_reports.write_text(text, file)
            claims.write(kept, page)
            say(f"{table.id}: {kept.findings[table.id].word}")

    def measure_in_process(self, each: Experiment, directory: Path, seconds: float) -> int:
        """Run an experiment in a process; return its exit status. It is interrupted if it takes much too long."""
        command = [sys.executable, "-m", "ewe_lab", "run", each.id, "--out", str(directory)]
        process = subprocess.Popen([*command, *(["--quick"] if self.renewal.quick else [])])
        try:
            return process.wait(MAX_OVERTIME * seconds + END_S)
        except subprocess.TimeoutExpired:
            say(f"{each.id}: interrupted, it takes more than {MAX_OVERTIME} times as long as expected")
            return 1
        except KeyboardInterrupt:  # the terminal has sent it to the process, too
            return INTERRUPTED
        finally:
            interrupt_and_wait(process)


def interrupt_and_wait(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a process, and wait for its end."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def foreign_cores() -> float:
    """Return how many of the two cores other programs have now."""
    with OtherProgramsWatch(two_cores()) as watch:
        time.sleep(LOOK_S)
    return watch.foreign_share() * len(watch.cores)


def code_version() -> str:
    """Return ewe's version, and the commit if ewe runs from a clone; "changed" if files differ from it."""
    try:
        process = subprocess.run(
            ["git", "describe", "--always", "--dirty= changed"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return __version__
    commit = process.stdout.strip()
    return f"{__version__} {commit}" if commit and not process.returncode else __version__


def new_runs_directory() -> Path:
    """Return the name of a directory for the whole reports of this run."""
    return Path(f".bench/claims-{datetime.now():%Y-%m-%d-%H%M%S}")


def length_text(seconds: float) -> str:
    """Return a length in words."""
    return f"{math.ceil(seconds / 60)} min" if seconds > 90 else f"{seconds:.0f} s"


def say(text: str) -> None:
    """Print a line about the renewal."""
    print(f"renew: {text}", flush=True)
