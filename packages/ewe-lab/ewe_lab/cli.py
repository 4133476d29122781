"""The command `ewe-lab`: compare models, run experiments, make reports. docs/lab.md explains it.

Exit status: 0; 1 if something could not be measured; 2 for wrong usage; 130 after an interrupt. An error in the
command line is reported as one line on standard error. The function of a command imports the modules of that
command alone, so that `list` and `--help` are fast and work without the packages of the extra `locust`.
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ewe import __version__
from ewe.config.command import DONE, RaisingParser, entry_point
from ewe.config.linux import needs_linux
from ewe.config.messages import nearest
from ewe.config.setting_types import WAIT, duration
from ewe_lab.options import (
    CommandError,
    argparse_type,
    number_type,
    read_file_name,
    read_path,
    split_at_commas,
    whole_number_type,
)

if TYPE_CHECKING:
    from ewe_lab.bench.experiment import Experiment
    from ewe_lab.bench.results import Results

INSTALL_COMMAND = "pip install 'ewe-lab[locust]'"
MODULES_WITHOUT_LOAD = ("psutil", "jinja2")  # for measurements without locust
REQUIRED_MODULES = ("locust", *MODULES_WITHOUT_LOAD)
TERMINAL_COLUMNS = 100  # columns of the output


@entry_point("ewe-lab", unread=DONE)
def main(words: list[str]) -> int:
    """Run the command with its arguments (by default the process's own) and return its exit status."""
    if words[:1] == ["speed"]:
        raise_if_extra_is_missing(MODULES_WITHOUT_LOAD)  # wrk makes the load
        from ewe_lab import speed

        return speed.command(words[1:])
    options = arguments(words).parse_args(words)
    action: Callable[[argparse.Namespace], int] = options.action
    options.command = rerun(words)
    try:
        return action(options)
    except BrokenPipeError:  # the reader of the output has gone: see entry_point()
        raise
    except OSError as reason:  # a full disk, a name that is too long, no right to read, ...
        text = reason.strerror or str(reason)
        name = reason.filename2 or reason.filename  # of a file that is renamed, the second one
        raise CommandError(f"{name}: {text}" if name else text, 1) from None


def rerun(arguments: Sequence[str]) -> str:
    """Return the command line that repeats this run, without --out: a second run must not overwrite the first."""
    words = iter(arguments)
    kept = ["ewe-lab"]
    for word in words:
        if word in ("--out", "-o"):
            next(words, "")
        elif not word.startswith(("--out=", "-o")):
            kept.append(word)
    return shlex.join(kept)


# ---------------------------------------------------------------------------------------------------------
# The options of the command line


def arguments(words: Sequence[str]) -> RaisingParser:
    """Return the parser for a command line. The parsed options hold `action`, the function to call.

    The options of `compare` are added only if the command line names `compare`. They need the list of the models,
    and the modules of the models take long to load.
    """
    parser = RaisingParser(
        prog="ewe-lab",
        description="Compare concurrency models with each other, with other servers, and with figures that were"
        " published from 2006 to 2011.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ewe-lab {__version__}")
    actions = parser.add_subparsers(metavar="COMMAND", required=True, dest="what")
    compare = actions.add_parser(
        "compare",
        help="models and other servers under one load",
        description="Compare models of ewe (all, if none is named) and other servers under one load.",
        allow_abbrev=False,
    )
    if "compare" in words:
        add_compare(compare)
    add_run(actions)
    for name, action, text in (
        ("list", list_experiments, "list the experiments"),
        ("locustfile", print_locustfile, "print a locustfile to save and change"),
    ):
        actions.add_parser(name, help=text, description=text, allow_abbrev=False).set_defaults(action=action)
    show = actions.add_parser("show", help="describe experiments", allow_abbrev=False)
    show.add_argument("ids", nargs="+", metavar="ID")
    show.set_defaults(action=show_experiments)
    join = actions.add_parser("report", help="join runs into one report", allow_abbrev=False)
    join.add_argument("directories", nargs="+", type=read_file_name, metavar="DIR")
    add_out(join)
    join.set_defaults(action=make_report)
    claims = actions.add_parser(
        "claims", help="put the findings of runs on a page, claim by claim", allow_abbrev=False
    )
    claims.add_argument("directories", nargs="*", type=read_file_name, metavar="DIR")
    claims.add_argument("--page", type=read_file_name, required=True, metavar="FILE.md",
        help="the page to write; FILE.json beside it keeps the findings of earlier runs")  # fmt: skip
    claims.set_defaults(action=write_claims)
    add_renew(actions)
    actions.add_parser(
        "speed", help="compare the CPU time of each model for a request with nginx's", add_help=False
    )
    return parser


def add_out(parser: argparse.ArgumentParser) -> None:
    """Add --out."""
    parser.add_argument(
        "-o", "--out", type=read_file_name, metavar="DIR", help="directory to write to [ewe-lab-DATE-TIME]"
    )


def add_compare(parser: RaisingParser) -> None:
    """Add the options of `compare`."""
    from ewe.processors.base import FLAGS

    parser.set_defaults(action=compare_servers, models=[])
    add = parser.add_argument
    for flag, model in FLAGS.items():
        add(flag, action="append_const", dest="models", const=model, help=f"the model {model}")
    add("--model", action="extend", dest="models", type=split_at_commas, metavar="LIST",
        help="models, with commas; a model may have options: 'pool --poolthreads 20'")  # fmt: skip
    add("--against", type=split_at_commas, action="extend", default=[], metavar="LIST",
        help="other servers, with commas: nginx,apache-event,...")  # fmt: skip
    add("--target", action="append", default=[], metavar="URL",
        help="a server that runs already, here or elsewhere, instead of models; also several times")  # fmt: skip
    add("--target-ssh", action="append", default=[], metavar="HOST",
        help="the target's machine, where ssh reads CPU and memory; none: nowhere [the URL's host]")  # fmt: skip
    add("--load-from", type=split_at_commas, action="extend", default=[], metavar="LIST",
        help="machines from which locust loads the target, with commas: [USER@]HOST[:PORT] for ssh")  # fmt: skip
    add("--load-python", metavar="PROGRAM", help="the Python with locust there [python3]")
    add("--ssh", metavar="COMMAND", help="ssh with options, such as 'ssh -i KEY' [ssh]")
    add("--users", type=whole_number_type(1, 10_000), metavar="N", help="users at once [50]; with --rate:"
        " connections that all requests share [one for each]")  # fmt: skip
    add(
        "--think",
        type=argparse_type(duration(0.0)),
        metavar="TIME",
        help="the pause between an answer and the next request [100ms]",
    )
    add("--rate", type=number_type(0.1, 20_000), metavar="N", help="requests/s that arrive however fast the"
        " server is, instead of users")  # fmt: skip
    add(
        "--time",
        type=argparse_type(WAIT),
        default=10.0,
        metavar="TIME",
        help="the length of one measurement [10s]",
    )
    add(
        "--warm-up",
        type=argparse_type(duration(0.0)),
        default=1.0,
        metavar="TIME",
        help="the load before a measurement, which is not counted [1s]",
    )
    add(
        "--timeout",
        type=argparse_type(WAIT),
        default=5.0,
        metavar="TIME",
        help="how long a request may take [5s]",
    )
    add("--no-keep-alive", dest="keep_alive", action="store_false", help="open a connection for each request")
    add("--tls", action="store_true", help="use HTTPS")
    add("--path", type=read_path, help="path of the URL [/index.html, 1 KB]")
    add("--root", type=read_file_name, metavar="DIR", help="document root [a site that the lab makes]")
    add(
        "--cgi",
        type=read_file_name,
        metavar="DIR",
        help="directory of a program, which --path names: /cgi-bin/hello.py",
    )
    add("--gateways", type=split_at_commas, action="extend", default=[], metavar="LIST",
        help="ways to run the program, with commas: cgi,fastcgi,xswitch,libcgi,wsgi,asgi [cgi]")  # fmt: skip
    add("--repeats", type=whole_number_type(1, 99), default=3, metavar="N", help="measure N times [3]")
    add_out(parser)


def add_run(actions: argparse._SubParsersAction[RaisingParser]) -> None:
    """Add `run`."""
    parser = actions.add_parser("run", help="run experiments", allow_abbrev=False)
    parser.set_defaults(action=run_experiments)
    add = parser.add_argument
    add("ids", nargs="*", metavar="ID", help="R-F5, or R (or RDBMS) for all of a document")
    add("--all", action="store_true", help="every experiment; with --quick those marked q in the list")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="measure shorter, and once")
    length.add_argument(
        "--full",
        action="store_true",
        help="measure in full length, three times, and the points of a sweep once (the default)",
    )
    add("--repeats", type=whole_number_type(1, 99), metavar="N", help="measure N times [3; 1 with --quick]")
    add_out(parser)


def add_renew(actions: argparse._SubParsersAction[RaisingParser]) -> None:
    """Add `renew`."""
    text = "measure what a page of claims lacks, within a time, on a quiet machine"
    parser = actions.add_parser("renew", help=text, description=text, allow_abbrev=False)
    parser.set_defaults(action=renew_claims)
    add = parser.add_argument
    add("ids", nargs="*", metavar="ID", help="R-F5, or R (or RDBMS) for all of a document [all]")
    add(
        "--page",
        type=read_file_name,
        required=True,
        metavar="FILE.md",
        help="the page, with FILE.json beside it",
    )
    add(
        "--reports",
        type=read_file_name,
        metavar="DIR",
        help="directory of the small reports [reports, beside the page]",
    )
    add(
        "--minutes",
        type=number_type(0.1, 10_000),
        metavar="N",
        help="how long to measure [each experiment once]",
    )
    add("--quick", action="store_true", help="measure shorter, and once: only what has no full verdict")
    add("--anyway", action="store_true", help="measure also beside other programs")


# ---------------------------------------------------------------------------------------------------------
# The commands


def in_container(arguments: Sequence[str]) -> str:
    """Return the command that installs REQUIRED_MODULES and measures in a container of ewe's Dockerfile."""
    return f'bash -c "pip install {" ".join(REQUIRED_MODULES)} && {shlex.join(["ewe-lab", *arguments])}"'


def raise_if_extra_is_missing(needs: Sequence[str] = REQUIRED_MODULES) -> None:
    """Check that the system is Linux and that the packages `needs` are installed. Raises CommandError."""
    if reason := needs_linux("measuring", in_container(sys.argv[1:])):
        raise CommandError(reason, 1)
    if lacking := [name for name in needs if find_spec(name) is None]:
        raise CommandError(f"{' and '.join(lacking)} missing: {INSTALL_COMMAND}", 1)


def compare_servers(options: argparse.Namespace) -> int:
    """Measure the chosen models and servers side by side, and write the report; return the exit status."""
    raise_if_extra_is_missing()
    from ewe_lab import compare, invocation
    from ewe_lab.bench.processes import LabError

    try:
        table = compare.planned_table(options, options.command)
        directory = invocation.new_directory(options.out)
    except LabError as reason:
        raise CommandError(str(reason)) from None
    return invocation.fill_tables(
        [table],
        directory,
        command=options.command,
        quick=False,
        repeats=options.repeats,
        noted_servers=options.against,
    )


def run_experiments(options: argparse.Namespace) -> int:
    """Run the experiments that the command line names, and write the report; return the exit status."""
    raise_if_extra_is_missing(MODULES_WITHOUT_LOAD)  # whether locust is needed depends on the experiments
    from ewe_lab import invocation
    from ewe_lab.bench.processes import LabError
    from ewe_lab.bench.results import ExperimentTable
    from ewe_lab.experiments.catalog import CATALOG, CHECKS
    from ewe_lab.experiments.papers import check_code
    from ewe_lab.stacks.other_servers import OTHER_SERVERS

    chosen = chosen_experiments(options, CATALOG)
    check_code(chosen, CHECKS)
    if any(experiment.loads for experiment in chosen):
        raise_if_extra_is_missing()
    plan = []
    quick_option = " --quick" if options.quick else ""
    for experiment in chosen:
        full_s = experiment.minutes * 60 if experiment.run else 0.0
        table = ExperimentTable(
            experiment.id,
            experiment.title,
            skipped="" if experiment.run else experiment.needs or "it cannot be run yet",
            quick=options.quick,
            command=f"ewe-lab run {experiment.id}{quick_option}",
        )
        seconds = experiment.quick_seconds if options.quick else full_s
        plan.append(invocation.PlannedTable(table, experiment.run, seconds, experiment))
    try:
        directory = invocation.new_directory(options.out)
    except LabError as reason:
        raise CommandError(str(reason)) from None
    return invocation.fill_tables(
        plan,
        directory,
        command=options.command,
        quick=options.quick,
        repeats=options.repeats or (1 if options.quick else 3),
        noted_servers=list(OTHER_SERVERS),
    )


def chosen_experiments(options: argparse.Namespace, catalog: Mapping[str, Experiment]) -> list[Experiment]:
    """Return the experiments that the command line names. Raises CommandError."""
    if bool(options.ids) == options.all:  # both, or neither
        raise CommandError("run needs ids of experiments, or --all; `ewe-lab list` shows them")
    if options.all:
        return [experiment for experiment in catalog.values() if experiment.quick or not options.quick]
    return [catalog[name] for name in checked_ids(expand_documents(options.ids, catalog), list(catalog))]


def expand_documents(wanted: Sequence[str], catalog: Mapping[str, Experiment]) -> list[str]:
    """Replace the name of a document (`RDBMS`, or `R`, its prefix) by the ids of all its experiments.

    Any other name stays as it is; checked_ids() then judges it.
    """
    found: list[str] = []
    for name in wanted:
        ids_of_document = [
            id
            for id, experiment in catalog.items()
            if experiment.document == name or id.startswith(f"{name.upper()}-")
        ]
        found += ids_of_document or [name]
    return found


def checked_ids(wanted: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return ids in the spelling of the catalogue, each once. Raises CommandError for an unknown id."""
    spellings = {name.lower(): name for name in known}
    for name in wanted:
        if name.lower() not in spellings:
            near = nearest(name.upper(), known) or "; `ewe-lab list` shows them"
            raise CommandError(f"there is no experiment {name!r}{near}")
    return list(dict.fromkeys(spellings[name.lower()] for name in wanted))


def list_experiments(options: argparse.Namespace) -> int:
    """List the experiments, those of each document under its name; return 0."""
    from ewe_lab.experiments.catalog import CATALOG

    document = ""
    for experiment in CATALOG.values():
        if experiment.document != document:
            document = experiment.document
            print(f"{document}:")
        mark = "q" if experiment.quick else " "
        # Without `run` it cannot be run yet: `needs` names the missing precondition
        length = f"{experiment.minutes:4.1f} min" if experiment.run else "  waits "
        reason = "" if experiment.run else f" ({experiment.needs})"
        print(f"  {experiment.id:9} {mark} {length}  {experiment.title}{reason}")
    seconds = sum(experiment.quick_seconds for experiment in CATALOG.values() if experiment.quick)
    print(f"\nq: also in `ewe-lab run --all --quick`, which takes about {seconds / 60:.0f} minutes in all.")
    return 0


def show_experiments(options: argparse.Namespace) -> int:
    """Describe the experiments that the command line names; return 0."""
    from ewe_lab.experiments.catalog import CATALOG

    for name in checked_ids(options.ids, list(CATALOG)):
        experiment = CATALOG[name]
        print(f"{experiment.id}: {experiment.title}")
        rows = {
            "document": f"{experiment.document}, {experiment.source}",
            "claim": experiment.claim,
            "varies": experiment.varies,
            "measures": experiment.measures,
            "then": ", ".join(f"{key}: {value}" for key, value in experiment.machine.items()),
            "errors": " ".join(experiment.errata),
        }
        if experiment.run:
            rows["takes"] = f"{experiment.minutes:g} min, {experiment.quick_seconds:.0f} s with --quick"
            rows["again"] = f"ewe-lab run {experiment.id}"
        else:
            rows["waits"] = experiment.needs
        for title, text in rows.items():
            if text:
                print(
                    textwrap.fill(
                        text,
                        TERMINAL_COLUMNS,
                        initial_indent=f"  {title + ':':10} ",
                        subsequent_indent=" " * 13,
                    )
                )
        print()
    return 0


def load_runs(directories: Sequence[Path]) -> list[Results]:
    """Return the results of runs, each from a directory or a results.json. Raises CommandError."""
    from ewe_lab.bench.results import BadResults, load

    parts = []
    for directory in directories:
        path = directory / "results.json" if directory.is_dir() else directory
        try:
            parts.append(load(path))
        except BadResults as reason:
            raise CommandError(str(reason)) from None
        except OSError as reason:
            raise CommandError(f"cannot read {path}: {reason.strerror}") from None
    return parts


def write_claims(options: argparse.Namespace) -> int:
    """Add the findings of runs to the stored ones, and write the page of all claims; return 0.

    A finding says whether a claim, a sentence of a document, holds here. The stored findings are in the file beside
    the page. Prints a sentence for each new finding that does not replace a stored one.
    """
    from ewe_lab.bench.results import BadResults, seconds_since_1970
    from ewe_lab.report import claims

    if options.page.suffix != ".md":
        raise CommandError(f"--page {options.page}: the page's name has to end in .md")
    parts = load_runs(options.directories)
    try:
        stored_findings = claims.load(claims.kept_file(options.page))
        # Of two equal findings the later stays
        for results in sorted(parts, key=lambda part: seconds_since_1970(part.started)):
            for sentence in stored_findings.add_findings(results):
                print(sentence)
        claims.write(stored_findings, options.page)
    except BadResults as reason:
        raise CommandError(str(reason)) from None
    except OSError as reason:
        raise CommandError(f"cannot write {reason.filename or options.page}: {reason.strerror}") from None
    print(f"written: {options.page} and {claims.kept_file(options.page)}")
    return 0


def renew_claims(options: argparse.Namespace) -> int:
    """Measure claims, and write the page of their findings after each one; return the exit status.

    First come the claims without a verdict on the page, then those with a quick one, then the oldest. Each is
    measured at most once: --minutes leaves out those that do not fit into the rest of the time.
    """
    raise_if_extra_is_missing()
    from ewe_lab import renew
    from ewe_lab.bench.interrupts import raise_on_first_interrupt
    from ewe_lab.bench.results import BadResults
    from ewe_lab.experiments.catalog import CATALOG

    if options.page.suffix != ".md":
        raise CommandError(f"--page {options.page}: the page's name has to end in .md")
    chosen = checked_ids(expand_documents(options.ids, CATALOG), list(CATALOG)) or list(CATALOG)
    renewal = renew.Renewal(
        chosen=[CATALOG[name] for name in chosen],
        page=options.page,
        reports=options.reports or options.page.parent / "reports",
        runs=renew.new_runs_directory(),
        seconds=options.minutes * 60 if options.minutes else math.inf,
        quick=options.quick,
        anyway=options.anyway,
    )
    raise_on_first_interrupt()  # TERM, too, has to end the process of the experiment that runs
    try:
        return renew.Renewer(renewal, renew.code_version()).renew()
    except BadResults as reason:
        raise CommandError(str(reason)) from None
    except OSError as reason:
        raise CommandError(f"cannot write {reason.filename or options.page}: {reason.strerror}") from None


def make_report(options: argparse.Namespace) -> int:
    """Join runs and write their report; return 0. Without --out, that of a single run goes into its directory."""
    raise_if_extra_is_missing()
    from ewe_lab import invocation
    from ewe_lab.bench.processes import LabError
    from ewe_lab.bench.results import join_runs
    from ewe_lab.report import report

    runs = load_runs(options.directories)
    first = options.directories[0]
    only_directory = first if len(runs) == 1 and first.is_dir() else None
    try:
        directory = invocation.new_directory(options.out or only_directory)
        for path in report.write(join_runs(runs), directory):
            print(path)
    except LabError as reason:
        raise CommandError(str(reason)) from None
    return 0


def print_locustfile(options: argparse.Namespace) -> int:
    """Print the locustfile of the package, for a user to save and change."""
    print(Path(__file__).with_name("locustfile.py").read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
