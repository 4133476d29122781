"""The command `ewe-explore`: find the races of a program with threads. docs/explorer.md explains the command.

Exit status: 0 if no run failed; 1 if a run failed; 2 for wrong usage, or a program that cannot be explored; 130
after an interrupt. Each error is one line.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ewe import __version__
from ewe.config.command import RaisingParser, UsageError, entry_point
from ewe.config.command_parser import HelpFormatter
from ewe.config.messages import nearest
from ewe_explore.harness import Model
from ewe_explore.hash_seed import restart_with_fixed_seed
from ewe_explore.program import ExploredProgram, scenarios
from ewe_explore.report import Exploration, explore, read_schedule, replay
from ewe_explore.scheduler import SAMPLES_DIRECTORY, Options, ProgramError, Schedule

EPILOG = """examples:
  ewe-explore pool.py                      search for 10 s, or until a run fails
  ewe-explore pool.py --runs 500 --seed 7  a search that is the same on every machine
  ewe-explore pool.py --schedule 17:2      one run: at decision 17, thread 2 runs next
  ewe-explore mine.py --model Mine         a model of ewe, with clients in memory
  ewe-explore count --html race.html       a sample, and its timeline as a page
  ewe-explore --list                       the samples
"""


PROGRESS_EVERY_RUNS = 50  # the command shows its progress so often
CLEARED_LINE = "\r" + " " * 20 + "\r"  # overwrites the progress


class Formatter(HelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the description and the epilog."""


class Parser(RaisingParser):
    """Reports an error as one line."""

    def error(self, message: str) -> NoReturn:
        super().error(f"{message}; see ewe-explore --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with its arguments (by default the process's own), and return its exit status."""
    if argv is None:
        restart_with_fixed_seed()
    return command(argv)


@entry_point("ewe-explore", interrupted="\newe-explore: interrupted")
def command(arguments: list[str]) -> int:
    """Run the command in a process with a fixed hash seed; return its exit status."""
    return run(parser().parse_args(arguments))


def parse_count(text: str) -> int:
    """Parse a number of the command line, 1 or more."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 10**9):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 1000000000")
    return int(text)


def parse_seed(text: str) -> int:
    """Parse a seed of the command line."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed; a seed is a number, 0 or more")
    return int(text)


def parse_seconds(text: str) -> float:
    """Parse a time of the command line, in seconds."""
    try:
        found = float(text.removesuffix("s"))
    except ValueError:
        found = -1.0
    if not 0 < found <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time in seconds, such as 5 or 0.5")
    return found


def parse_schedule(text: str) -> Schedule:
    """Parse a schedule of the command line."""
    try:
        return read_schedule(text)
    except ValueError as reason:
        raise argparse.ArgumentTypeError(str(reason)) from None


def parser() -> Parser:
    """Return the parser of the command line."""
    command_parser = Parser(
        prog="ewe-explore",
        description="Find the races of a program with threads: try many schedules, and show one that fails.",
        epilog=EPILOG,
        formatter_class=Formatter,
    )
    add = command_parser.add_argument
    add("file", nargs="?", metavar="FILE", help="a file with scenario(), a program, or the name of a sample")
    add("--scenario", metavar="NAME", help="explore only this function of the file")
    add("--model", metavar="CLASS", help="explore this model of ewe, with clients in memory")
    add("--clients", type=parse_count, default=2, metavar="N", help="clients of a model (2)")
    add("--requests", type=parse_count, default=1, metavar="N", help="requests of each client (1)")
    ends = command_parser.add_mutually_exclusive_group()
    ends.add_argument("--stop-early", action="store_true", help="stop a model while it serves its clients")
    ends.add_argument(
        "--together",
        action="store_true",
        help="each client of a model keeps its connection until all have their answers; there are as many workers",
    )
    add("--seconds", type=parse_seconds, default=10.0, metavar="S", help="search for at most S seconds (10)")
    add("--runs", type=parse_count, metavar="N", help="search for N runs instead")
    add("--seed", type=parse_seed, default=1, metavar="N", help="the seed of the search's random choices (1)")
    add("--schedule", type=parse_schedule, metavar="LIST", help="run only this schedule: 17:2,31:0, or none")
    add(
        "--max-steps",
        type=parse_count,
        default=20_000,
        metavar="N",
        help="the most steps of a run (20000)",
    )
    add("--spurious", action="store_true", help="conditions may wake up without a notify")
    add("--early-timeouts", action="store_true", help="timeouts may expire while other threads still work")
    add("--html", metavar="FILE", help="write the timeline as a page")
    add("--list", action="store_true", help="list the samples")
    add("--version", action="version", version=f"ewe-explore {__version__}")
    return command_parser


def run(options: argparse.Namespace) -> int:
    """Execute the command of these options; return its exit status."""
    if options.list:
        print(list_of_samples())
        return 0
    if not options.file:
        raise UsageError("name a file with a scenario, or a sample (ewe-explore --list)")
    path = find_file(options.file)
    if options.html and os.path.exists(options.html) and os.path.samefile(options.html, path):
        raise UsageError(f"{options.html} is the program: write the timeline to another file")
    failed = False
    for program in programs(path, options):
        result = search(program, options)
        failed = failed or result.failure is not None
        width = min(shutil.get_terminal_size((100, 24)).columns, 160)
        text = result.text(width, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ)
        # An exception of the program, or the name of its file, may have a surrogate, which has no bytes in UTF-8
        print(text.encode("utf-8", "backslashreplace").decode())
        if result.failure is not None and options.html:
            write_page(Path(options.html), result.html())
            print(f"timeline: {options.html}")
            break  # the file holds one failure: the programs after this one are not explored
    return int(failed)


def search(program: ExploredProgram, options: argparse.Namespace) -> Exploration:
    """Search for a failure, or replay one schedule; return the result. A terminal shows how many runs were made."""
    if options.schedule is not None:
        return replay(program, options.schedule)
    shows_progress = sys.stderr.isatty()

    def progress(runs: int) -> None:
        if shows_progress and runs % PROGRESS_EVERY_RUNS == 0:
            print(f"\r{runs:,} runs", end="", file=sys.stderr, flush=True)

    try:
        return explore(program, options.seconds, options.seed, options.runs, progress=progress)
    finally:
        if shows_progress:
            print(CLEARED_LINE, end="", file=sys.stderr, flush=True)


def programs(path: Path, options: argparse.Namespace) -> list[ExploredProgram]:
    """Return the programs to explore. Raises ProgramError.

    With --model the only program is the model, with --scenario it is this function. Otherwise each scenario of the
    file is a program. A file without a scenario is explored as a whole; its scenario has the name "".
    """
    names = scenarios(path)

    def new_options() -> Options:
        """Return new options for a program, which stores the directories of its files in them."""
        return Options(
            max_steps=options.max_steps, spurious=options.spurious, early_timeouts=options.early_timeouts
        )

    if options.model:
        model = Model(
            path,
            options.model,
            clients=options.clients,
            requests=options.requests,
            early=options.stop_early,
            together=options.together,
            options=new_options(),
        )
        return [model]
    if options.scenario:
        if options.scenario not in names:
            all_names = f"; there are {', '.join(names)}" if names else ""
            hint = nearest(options.scenario, names) or all_names
            raise ProgramError(f"{path} has no scenario {options.scenario!r}{hint}")
        names = [options.scenario]
    return [ExploredProgram(path, name, new_options()) for name in names or [""]]


def find_file(name: str) -> Path:
    """Return the path of a file, or of a sample. Raises ProgramError."""
    try:
        os.stat(name)
        return Path(name)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as reason:
        raise ProgramError(f"cannot read {name}: {reason.strerror}") from None
    sample = Path(SAMPLES_DIRECTORY, name + ".py")
    if "/" not in name and os.path.isfile(sample):
        return sample
    known = [each.stem for each in Path(SAMPLES_DIRECTORY).glob("*.py")]
    raise ProgramError(f"{name}: there is no file and no sample of this name{nearest(name, known)}")


def list_of_samples() -> str:
    """Return the list of samples as text."""
    lines = []
    for path in sorted(Path(SAMPLES_DIRECTORY).glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        lines.append(f"  {path.stem:<18} {text.splitlines()[0] if text else ''}")
    return "\n".join(["ewe-explore NAME explores one of these samples:", *lines])


def write_page(path: Path, text: str) -> None:
    """Write a page to a file. Raises ProgramError."""
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as reason:
        raise ProgramError(f"cannot write {path}: {reason.strerror}") from None
