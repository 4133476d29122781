"""Compare models and other servers with nginx at full speed: `ewe-lab speed`, `make bench` (docs/speed.md).

    command  the command: plan the rows, measure them on the lab's bench (ewe_lab.lab_bench), print them
    main     the command as a program: `python -m ewe_lab.speed`
    run      the same measurement as an experiment: `ewe-lab run SPEED`, which makes a report

The figure to compare is the CPU time that the server's whole process tree uses for a request. Unlike the rate, the
CPU time depends neither on the number of cores nor on the client.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from ewe.config.command import DONE, INTERRUPTED, RaisingParser, entry_point
from ewe.config.messages import docs_page
from ewe_lab import options as types
from ewe_lab.bench.foreign import OtherProgramsWatch
from ewe_lab.bench.interrupts import ignore_interrupts, raise_on_first_interrupt
from ewe_lab.bench.processes import LabError, end_descendants, missing_programs_text, process_tree, two_cores
from ewe_lab.bench.progress import Progress
from ewe_lab.bench.results import Cell, ExperimentTable, Sample, write_and_rename
from ewe_lab.bench.verdicts import NOT_TESTABLE, Finding, other_programs_clause, verdict_of_parts
from ewe_lab.experiments.papers import printed
from ewe_lab.lab_bench import LabBench, why_server_is_missing
from ewe_lab.speed_rows import (
    COMPARISONS,
    CONNECTIONS,
    QUICK_SIZES,
    REFERENCE,
    ROWS,
    SIZES,
    TARGETS_AT,
    TESTED_SERVERS,
    WARM_UP_S,
    SpeedRow,
    SpeedSetting,
    chosen_servers,
    describe,
    goal,
    jobs_of,
    ratio,
    reference_name,
    rows_to_fill,
    sample_figures,
    settings,
    size_text,
)
from ewe_lab.stacks.machine import machine_facts

OVERHEAD_S = 1.0  # seconds to start, probe and stop a server; used in estimates
MEASUREMENT_S = (1.0, 2.0)  # of one measurement, quick and full
# Printed above the table, with the versions of the other servers
FACT_NAMES = ("processor", "cores", "system", "python", "ewe", "uvloop", "wrk")
QUICK_ROWS = ("size",)
# The rows of a run whose models are named
FILE_ROWS = tuple(row for row in ROWS if row not in {comparison.row for comparison in COMPARISONS.values()})

# ---------------------------------------------------------------------------------------------------------
# The experiment


def run(lab: LabBench) -> Iterator[Cell]:
    """Measure all models beside nginx, in turns; yield the cells."""
    wanted = settings(QUICK_SIZES if lab.quick else SIZES, QUICK_ROWS if lab.quick else ROWS)
    tested_servers = [
        each for each in TESTED_SERVERS if each.model or each.name == REFERENCE or not lab.quick
    ]
    rows, lacking = rows_to_fill(list(lab.servers(tested_servers)), wanted, CONNECTIONS)
    for reason in lacking:
        lab.add_note(reason)
    yield from lab.fill_cells_in_turns(jobs_of(lab, rows, lab.quick_or_full(*MEASUREMENT_S)))


def check(table: ExperimentTable) -> Finding:
    """Return the finding: for each model, the claim's part is the CPU time that it may take."""
    cells = [cell for cell in table.cells if cell.column == describe(TARGETS_AT)]
    found = targets([SpeedRow(cell.server, TARGETS_AT, connections=CONNECTIONS, cell=cell) for cell in cells])
    if not found:
        return Finding(NOT_TESTABLE, "No model was measured beside nginx.")
    part_holds = [target.ratio <= target.limit for target in found]
    summary = ", ".join(
        f"{model} {ratio_to_nginx:.2f} (at most {limit})" for model, ratio_to_nginx, limit in found
    )
    verdict = verdict_of_parts(part_holds)
    return Finding(verdict, f"CPU time for a reply, in nginx's: {summary}.")


# ---------------------------------------------------------------------------------------------------------
# The output


def foreign_share(sample: Sample) -> float:
    """Return the share of the server's core that other programs used; 0 if it is not known."""
    return max(sample.foreign_on_server_core or 0.0, 0.0)


# The columns of the table, and their widths; the notes follow them.
COLUMNS = {
    "server": 17,
    "size": 6,
    "keep": 4,
    "log": 3,
    "conns": 5,
    "req/s": 6,
    "µs/req": 6,
    "min-max": 9,
    "ratio": 6,
    "wrk": 4,
    "other": 5,
}
TABLE_COLUMNS = 100  # of the table


def table(rows: Sequence[SpeedRow]) -> str:
    """Return the rows as a table; the rows of a setting stand together."""
    lines = [table_line((*COLUMNS, "notes"))]
    last: SpeedSetting | None = None
    for row in rows:
        if row.samples or row.failure:
            if row.setting != last:
                lines.append("")
                last = row.setting
            lines.append(table_line(row_texts(row, ratio(rows, row))))
    return "\n".join(lines)


def table_line(texts: Sequence[str]) -> str:
    """Return a line of the table: names left-aligned, figures right-aligned. Long notes take several lines."""
    *figures, notes = texts
    aligned = [text.rjust(width) for text, width in zip(figures, COLUMNS.values(), strict=True)]
    aligned[0] = figures[0].ljust(COLUMNS["server"])
    start = " ".join(aligned) + "  "
    if not notes:
        return start.rstrip()
    indent = " " * len(start)
    return textwrap.fill(
        notes, TABLE_COLUMNS, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False
    )


def row_texts(row: SpeedRow, ratio: float | None) -> tuple[str, ...]:
    """Return the texts of a row. ratio: the row's CPU time divided by the reference's, None if it is unknown."""
    setting = row.setting
    about = (
        row.server,
        size_text(setting.size),
        "yes" if setting.keep_alive else "no",
        "on" if setting.access_log else "off",
        str(row.connections),
    )
    if not row.samples:
        figure_count = len(COLUMNS) - len(about)
        return (*about, *["-"] * figure_count, row.notes())
    spread = [sample_figures(sample)["micros"] for sample in row.samples]
    is_watched = row.samples[0].foreign_on_server_core is not None  # not if server and load share one core
    return (
        *about,
        f"{row.median('rate'):.0f}",
        micros_text(row.median("micros")),
        f"{micros_text(min(spread))}-{micros_text(max(spread))}",
        "-" if ratio is None else f"{ratio:.2f}",
        f"{row.median('wrk'):.0%}",
        f"{statistics.median(map(foreign_share, row.samples)):.0%}" if is_watched else "-",
        ", ".join(filter(None, (row.notes(), goal_note(row.setting, ratio)))),
    )


def goal_note(setting: SpeedSetting, ratio: float | None) -> str:
    """Return a note if a row's ratio to the reference is above the goal of its setting, else ""."""
    limit = goal(setting)
    return f"above {limit:.2g}" if limit and ratio and ratio > limit else ""


def micros_text(micros: float) -> str:
    """Return a time in µs: one decimal below 100 µs, none above."""
    return f"{micros:.1f}" if micros < 100 else f"{micros:.0f}"


class MeasuredTarget(NamedTuple):
    """A measured target of a model. ratio: its CPU time for a request over nginx's. limit: of the ratio."""

    model: str
    ratio: float
    limit: float


def targets(rows: Sequence[SpeedRow]) -> list[MeasuredTarget]:
    """Return the targets that were measured.

    The targets stand in ours.toml (SPEED), and are about the setting TARGETS_AT. A target names several variants of
    its model, such as two event loops: the first one that was measured counts.
    """
    ratios = {row.server: ratio(rows, row) for row in rows if row.setting == TARGETS_AT}
    found = []
    for model, (variants, limit) in printed("SPEED").items():
        measured = [value for name in variants if (value := ratios.get(name)) is not None]
        if measured:
            found.append(MeasuredTarget(model, measured[0], limit))
    return found


def report(rows: Sequence[SpeedRow], no_verdict: str = "") -> str:
    """Return the table, the targets, and the reasons of the failures.

    no_verdict: why no target is judged (other programs had much of the cores), else "".
    """
    parts = [table(rows)]
    if found := targets(rows):
        parts.append(f"Targets, in nginx's CPU time a request at {describe(TARGETS_AT)}:")
        parts[-1] += "".join(
            f"\n  {each.model:8} {each.ratio:5.2f}, at most {each.limit}: {target_word(each, no_verdict)}"
            for each in found
        )
    if no_verdict:
        parts.append(f"No verdict: {no_verdict}. Run it again on a quiet machine.")
    failures = dict.fromkeys(f"{row.server}: {row.failure}" for row in rows if row.failure)
    if failures:
        parts.append("Failed:\n  " + "\n  ".join(failures))
    return "\n\n".join(parts)


def target_word(target: MeasuredTarget, no_verdict: str) -> str:
    """Return the word on a target: `ok`, `MISSED`, or `no verdict` if there is a reason `no_verdict`."""
    return "no verdict" if no_verdict else "ok" if target.ratio <= target.limit else "MISSED"


def as_json(rows: Sequence[SpeedRow], about: Mapping[str, object], no_verdict: str = "") -> str:
    """Return every sample as JSON, for other programs.

    about: the facts before the rows. no_verdict: why no target is judged (other programs had much of the cores),
    else "".
    """
    measured = [row for row in rows if row.samples or row.failure]
    return json.dumps(
        {
            **about,
            "rows": [
                {
                    "server": row.server,
                    **asdict(row.setting),
                    "connections": row.connections,
                    "samples": [
                        {**sample_figures(sample), "errors": sample.errors} for sample in row.samples
                    ],
                    "failures": [row.failure] if row.failure else [],
                    "ratio": ratio(rows, row),
                    "notes": row.notes(),
                }
                for row in measured
            ],
            "targets": [
                {
                    "model": each.model,
                    "ratio": each.ratio,
                    "most": each.limit,
                    "ok": None if no_verdict else each.ratio <= each.limit,
                }
                for each in targets(rows)
            ],
            "no_verdict": no_verdict,
        },
        indent=1,
    )


# ---------------------------------------------------------------------------------------------------------
# The last run on this machine

LAST_RUN = Path(".bench/speed.json")  # below the working directory
SLOWER_RATIO = 1.1  # a row whose ratio to nginx is this many times that of the last run has become slower


def compare_with_last(rows: Sequence[SpeedRow], about: Mapping[str, str], file: Path) -> None:
    """Mark the rows that have become slower since the last run on this machine, and keep this run's ratios.

    about: the facts about the machine. Rows that this run did not measure keep their earlier ratio. Raises OSError.
    """
    here = [about["processor"], about["cores"], about["system"]]
    try:
        last_run = json.loads(file.read_text())
        last_ratios = dict(last_run["ratios"]) if last_run["machine"] == here else {}
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # no file, or none of this program
        last_ratios = {}
    ratios: dict[str, float] = {}
    for row in rows:
        value = ratio(rows, row)
        if value is None or row.server == reference_name(row.setting):
            continue
        name = f"{row.server}, {row.connections} connections: {describe(row.setting)}"
        ratios[name] = value
        last = last_ratios.get(name)
        if isinstance(last, float) and value > last * SLOWER_RATIO:
            row.last = last
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": here, "ratios": {**last_ratios, **ratios}}, indent=1)
    write_and_rename(file, text + "\n")


# ---------------------------------------------------------------------------------------------------------
# The command


def arguments() -> RaisingParser:
    """Return the parser of the command line."""
    parser = RaisingParser(
        prog="ewe-lab speed",
        description=f"Compare ewe's models with nginx. {docs_page('speed.md', 'ewe-lab')} explains it.",
    )
    add = parser.add_argument
    add(
        "--quick",
        action="store_true",
        help="measure 1 KB with keep-alive and without a log only: about a minute",
    )
    add("--models", type=types.split_words, default=[], metavar="LIST",
        help="models, with commas; nginx is always measured")  # fmt: skip
    add(
        "--sizes",
        type=types.read_sizes,
        metavar="LIST",
        help="sizes of the file, with commas [64,1k,16k,128k; 1k with --quick]",
    )
    add("--rows", type=types.one_of(ROWS), default=[], metavar="LIST",
        help="kinds of rows, with commas [all; those of files with --models; size with --quick]: "
        + ", ".join(ROWS))  # fmt: skip
    add(
        "--seconds",
        type=types.number_type(0.1, 600),
        help="the length of one measurement [2; 1 with --quick]",
    )
    add("--repeats", type=types.whole_number_type(1, 99), default=3, metavar="N", help="measure N times [3]")
    add("--connections", type=types.whole_number_type(1, 1000), default=CONNECTIONS, metavar="N",
        help="simultaneous connections [32; fewer where a server allows fewer]")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write every sample to a file as well")
    return parser


def estimated_s(rows: int, seconds: float, repeats: int) -> float:
    """Return an estimate of the seconds that a run takes."""
    return rows * repeats * (OVERHEAD_S + WARM_UP_S + seconds)


def measure(rows: Sequence[SpeedRow], seconds: float, repeats: int) -> tuple[int, str]:
    """Fill the rows, leave no process and no file behind.

    Return the exit status, and a clause if other programs had much of the cores meanwhile, else "". seconds: of one
    measurement.
    """
    before = {each.pid for each in process_tree(os.getpid())}
    hides_progress = not sys.stderr.isatty()  # in a file its lines would stand in the way
    watch = OtherProgramsWatch(two_cores())
    status = 0
    raise_on_first_interrupt()
    try:
        with (
            watch,
            Progress(file=io.StringIO() if hides_progress else None) as progress,
            LabBench(progress, repeats=repeats) as lab,
        ):
            lab.other_programs = watch  # a measurement beside other programs is made once more
            jobs = jobs_of(lab, rows, seconds)
            progress.begin_table(estimated_s(len(rows), seconds, repeats))
            for _ in lab.fill_cells_in_turns(jobs):  # the rows have the cells
                pass
    except KeyboardInterrupt:
        print("Interrupted: the results until then follow.\n")
        status = INTERRUPTED
    finally:
        ignore_interrupts()
        end_descendants(spared=before)
    watched = ExperimentTable("speed", foreign=watch.foreign_share(), cores=len(watch.cores))
    return status or int(any(row.failure for row in rows)), other_programs_clause(watched)


def command(words: list[str]) -> int:
    """Measure, and print the report; return the exit status.

    words: the arguments of `ewe-lab speed`. Raises CommandError, UsageError.
    """
    parser = arguments()
    options = parser.parse_args(words)
    quick_s, full_s = MEASUREMENT_S
    seconds = options.seconds or (quick_s if options.quick else full_s)
    rows, reasons, other_kinds = plan(options, parser)
    about = known_machine(other_kinds)
    print("\n".join(f"{name + ':':13} {text}" for name, text in about.items()))
    for lacking in reasons:
        print(f"not run: {lacking}")
    length = duration_text(estimated_s(len(rows), seconds, options.repeats))
    print(f"{len(rows)} rows, {options.repeats} x {seconds:g} s each: about {length}\n", flush=True)
    try:
        status, no_verdict = measure(rows, seconds, options.repeats)
    except (LabError, OSError) as reason:  # the requested files or programs cannot be made
        raise types.CommandError(str(reason), 1) from None
    try:
        if not no_verdict:  # a ratio measured beside other programs is nothing to compare with
            compare_with_last(rows, about, LAST_RUN)
    except OSError as reason:
        print(
            f"{LAST_RUN} cannot be written, and the next run has nothing to compare with: {reason.strerror}"
        )
    print(report(rows, no_verdict))
    if options.json:
        conditions = {"machine": about, "seconds": seconds, "repeats": options.repeats}
        try:
            options.json.write_text(as_json(rows, conditions, no_verdict) + "\n")
        except OSError as reason:
            raise types.CommandError(f"{options.json} cannot be written: {reason.strerror}", 1) from None
    return status


def check_writable(file: Path) -> None:
    """Raise OSError if `file` cannot be written: now, and not after the measurements. Leave no new file."""
    file = file.resolve()  # a link to a missing file stays
    is_new = not file.exists()
    file.open("a").close()
    if is_new:
        file.unlink()


class PlannedRows(NamedTuple):
    """The rows to measure. reasons: why others are not run. other_kinds: of the servers other than ewe."""

    rows: list[SpeedRow]
    reasons: list[str]
    other_kinds: list[str]


def plan(options: argparse.Namespace, parser: RaisingParser) -> PlannedRows:
    """Return the rows to measure.

    options: the parsed command line. parser: raises UsageError for an option that cannot be obeyed. Raises
    CommandError if wrk or the reference is missing.
    """
    try:
        tested_servers = chosen_servers(options.models, quick=options.quick)
    except (LabError, OSError) as reason:
        parser.error(str(reason))
    try:
        if options.json:
            check_writable(options.json)
    except OSError as reason:
        parser.error(f"cannot write {options.json}: {reason.strerror} (--json)")
    if lacking := missing_programs_text(("wrk", REFERENCE)):
        raise types.CommandError(lacking, 1)
    sizes = options.sizes or (QUICK_SIZES if options.quick else SIZES)
    kinds_of_rows = options.rows or (QUICK_ROWS if options.quick else FILE_ROWS if options.models else ROWS)
    wanted = settings(sizes, kinds_of_rows)
    rows, reasons = rows_to_fill(tested_servers, wanted, options.connections, are_named=bool(options.models))
    if not (options.models or options.quick):
        reasons = [*filter(None, map(why_server_is_missing, TESTED_SERVERS)), *reasons]
    if not rows:
        parser.error("no such model runs in a row of these kinds")
    other_kinds = [
        each.kind for each in tested_servers if not each.model and not each.name.startswith("floor-")
    ]
    return PlannedRows(rows, reasons, other_kinds)


def known_machine(kinds: Sequence[str]) -> dict[str, str]:
    """Return the facts about this machine that a run prints. kinds: of the servers whose versions are facts."""
    known = machine_facts(kinds)
    return {name: known[name] for name in (*FACT_NAMES, *kinds)}


def duration_text(seconds: float) -> str:
    """Return a time for people: seconds up to a minute and a half, minutes above."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"


main = entry_point("ewe-lab speed", unread=DONE)(command)


if __name__ == "__main__":
    sys.exit(main())
