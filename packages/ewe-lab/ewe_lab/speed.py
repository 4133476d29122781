"""Compare every model with nginx at full speed: `ewe-lab speed`, `make bench` (docs/speed.md).

    main     the command: plan the rows, measure them on the lab's bench (ewe_lab.lab_bench), print them
    run      the same as an experiment: `ewe-lab run SPEED`, which makes a report

The figure that counts is the CPU time that the server's whole process tree uses for a request. Unlike the rate it
does not depend on how many cores there are, nor on the client.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

from ewe.config.command import INTERRUPTED
from ewe.config.command_parser import CommandParser
from ewe.config.messages import docs_page
from ewe.config.settings import Config
from ewe.processors.prefork import Prefork
from ewe_lab import options as types
from ewe_lab.bench.experiment import Contender, Load
from ewe_lab.bench.interrupts import heed_interrupts, ignore_interrupts
from ewe_lab.bench.processes import LabError, end_children, missing, tree
from ewe_lab.bench.progress import Progress
from ewe_lab.bench.results import Cell, Sample, Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.papers import printed
from ewe_lab.lab_bench import Job, LabBench, fitting
from ewe_lab.stacks.machine import machine

WARM_UP = 0.5  # seconds, not counted
OVERHEAD = 1.0  # seconds to start, probe and stop a server; used in estimates
PREFORKED = Prefork.workers
POOLED = Config.poolthreads.default
REFERENCE = "nginx"  # the others are compared with it
CONTENDERS = (
    Contender(REFERENCE, REFERENCE),
    Contender("serial", model="serial", most=1),
    Contender("fork", model="fork", most=256),
    Contender("prefork", model="prefork", options=("--workers", str(PREFORKED)), most=PREFORKED),
    Contender("thread", model="thread", most=1000),
    Contender("pool-always", model="pool", options=("--parking", "always")),
    Contender("pool-idle", model="pool", options=("--parking", "idle")),
    Contender(
        "pool-never",
        model="pool",
        options=("--parking", "never", "--poolthreads", str(POOLED)),
        most=POOLED,
    ),
    Contender("asyncio-uvloop", model="asyncio", options=("--loop", "uvloop")),
    Contender("asyncio-standard", model="asyncio", options=("--loop", "asyncio")),
)
CONNECTIONS = 32
SIZES, QUICK_SIZES = (64, 1024, 16 * 1024, 128 * 1024), (1024,)
SECONDS = (1.0, 2.0)  # of one measurement, quick and full
FACTS = (
    "processor",
    "cores",
    "system",
    "python",
    "ewe",
    "uvloop",
    REFERENCE,
    "wrk",
)  # printed above the table

# ---------------------------------------------------------------------------------------------------------
# What is measured


@dataclass(frozen=True)
class SpeedSetting:
    """What a server is asked for. size: of the file, in bytes."""

    size: int
    keep_alive: bool = True
    access_log: bool = False


TARGETS_AT = SpeedSetting(1024)


@dataclass
class Row:
    """One server at one setting. connections: that the load opens; cell: what the bench measures."""

    server: str
    setting: SpeedSetting
    connections: int
    cell: Cell = field(default_factory=lambda: Cell(""))

    @property
    def samples(self) -> list[Sample]:
        """The samples in which at least one request was answered."""
        return [sample for sample in self.cell.samples if sample.micros is not None]

    @property
    def failure(self) -> str:
        """Why there is no figure, or not from every repeat; "" if all went well."""
        if not self.cell.failure and len(self.samples) < len(self.cell.samples):
            return "no request was answered"
        return self.cell.failure

    def median(self, what: str) -> float:
        """Return the median of a figure of `facts`."""
        return float(statistics.median(facts(sample)[what] for sample in self.samples))

    def notes(self) -> str:
        """Return what a reader has to know before believing the row."""
        found = ["failed"] if self.failure else []
        if self.samples and self.median("wrk_core") > 0.95 and self.median("server_core") < 0.9:
            found.append("client-limited")
        for name in dict.fromkeys(name for sample in self.samples for name in sample.errors):
            found.append(f"{sum(sample.errors.get(name, 0) for sample in self.samples)} {name}")
        return ", ".join(found)


def facts(sample: Sample) -> dict[str, float]:
    """Return a sample's figures. micros: CPU time a request, in µs; rate: requests a second; else shares of a core.

    server, wrk: what the two used. server_core, wrk_core: how busy their cores were, other programs included.
    """
    usage = sample.usage
    return {
        "rate": sample.rate,
        "micros": sample.micros or 0.0,
        "server": usage.cpu / sample.seconds if usage else 0.0,
        "wrk": sample.client or 0.0,
        "server_core": usage.core or 0.0 if usage else 0.0,
        "wrk_core": sample.core or 0.0,
    }


def others(sample: Sample) -> float:
    """Return the share of the server's core that neither the server nor idleness had."""
    found = facts(sample)
    return max(found["server_core"] - found["server"], 0.0)


def chosen(models: Sequence[str]) -> list[Contender]:
    """Return the contenders that --models names (none: all), nginx first. Raises LabError."""
    known = {name for contender in CONTENDERS for name in (contender.name, contender.model) if name}
    if unknown := [name for name in models if name not in known]:
        raise LabError(f"model {unknown[0]!r} is unknown; there are {', '.join(sorted(known))}")
    found = [each for each in CONTENDERS if not models or each.name in models or each.model in models]
    if find_spec("uvloop") is None:
        found = [each for each in found if each.name != "asyncio-uvloop"]
    return [CONTENDERS[0], *(each for each in found if each.name != REFERENCE)]


def settings(sizes: Sequence[int], quick: bool) -> list[SpeedSetting]:
    """Return the settings to measure: all sizes, and one of them without keep-alive, and one with the log."""
    found = [SpeedSetting(size) for size in sizes]
    if not quick:
        size = TARGETS_AT.size if TARGETS_AT.size in sizes else sizes[0]
        found += [SpeedSetting(size, keep_alive=False), SpeedSetting(size, access_log=True)]
    return found


def load_of(setting: SpeedSetting, connections: int, seconds: float) -> Load:
    """Return the load for a setting."""
    return Load(
        "ceiling",
        users=connections,
        seconds=seconds,
        warm_up=WARM_UP,
        keep_alive=setting.keep_alive,
        path=f"/{setting.size}.html",
        length=setting.size,
        tool="wrk",
    )


def plan(contenders: Sequence[Contender], found: Sequence[SpeedSetting], connections: int) -> list[Row]:
    """Return the rows to fill. No server gets more kept connections than it can hold open."""
    return [
        Row(
            each.name,
            setting,
            fitting(load_of(setting, connections, 1), each).users,
            Cell(each.name, describe(setting), value="micros", unit="µs"),
        )
        for setting in found
        for each in contenders
    ]


def jobs_of(lab: LabBench, rows: Sequence[Row], seconds: float) -> list[Job]:
    """Return what the bench has to do for the rows."""
    by_name = {each.name: each for each in CONTENDERS}
    root = lab.site([row.setting.size for row in rows])
    return [
        Job(
            by_name[row.server],
            load_of(row.setting, row.connections, seconds),
            row.cell,
            root,
            access_log=row.setting.access_log,
        )
        for row in rows
    ]


# ---------------------------------------------------------------------------------------------------------
# The experiment


def run(lab: LabBench) -> Iterator[Cell]:
    """Measure all models beside nginx, in turns."""
    found = settings(QUICK_SIZES if lab.quick else SIZES, lab.quick)
    rows = plan(list(lab.servers(chosen([]))), found, CONNECTIONS)
    yield from lab.measure_all(jobs_of(lab, rows, lab.seconds(*SECONDS)))


def check(table: Table) -> Finding:
    """The claim has a part for each model: the CPU time that it may take."""
    cells = [cell for cell in table.cells if cell.column == describe(TARGETS_AT)]
    found = targets([Row(cell.server, TARGETS_AT, CONNECTIONS, cell) for cell in cells])
    if not found:
        return Finding(NOT_TESTABLE, "No model was measured beside nginx.")
    kept = [value <= most for _, value, most in found]
    told = ", ".join(f"{model} {value:.2f} (at most {most})" for model, value, most in found)
    word = HOLDS if all(kept) else IN_PART if any(kept) else FAILS
    return Finding(word, f"CPU time for a reply, in nginx's: {told}.")


# ---------------------------------------------------------------------------------------------------------
# What is shown

COLUMNS = {
    "server": 16,
    "size": 6,
    "keep": 4,
    "log": 3,
    "conns": 5,
    "req/s": 6,
    "µs/req": 6,
    "min-max": 9,
    "/nginx": 6,
    "wrk": 4,
    "other": 5,
}  # and their widths; the notes follow
WIDTH = 100  # of the table


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table; the rows of a setting stand together."""
    lines = [line((*COLUMNS, "notes"))]
    last: SpeedSetting | None = None
    for row in rows:
        if row.samples or row.failure:
            if row.setting != last:
                lines.append("")
                last = row.setting
            lines.append(line(cells(row, ratio(rows, row))))
    return "\n".join(lines)


def line(texts: Sequence[str]) -> str:
    """Return a line of the table: names to the left, figures to the right. Long notes go on in the next line."""
    *figures, notes = texts
    aligned = [text.rjust(width) for text, width in zip(figures, COLUMNS.values(), strict=True)]
    aligned[0] = figures[0].ljust(COLUMNS["server"])
    start = " ".join(aligned) + "  "
    if not notes:
        return start.rstrip()
    indent = " " * len(start)
    return textwrap.fill(notes, WIDTH, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False)


def cells(row: Row, beside: float | None) -> tuple[str, ...]:
    """Return the texts of a row. beside: its CPU time in that of nginx."""
    setting = row.setting
    about = (
        row.server,
        size_text(setting.size),
        "yes" if setting.keep_alive else "no",
        "on" if setting.access_log else "off",
        str(row.connections),
    )
    if not row.samples:
        return (*about, *["-"] * 6, row.notes())
    spread = [facts(sample)["micros"] for sample in row.samples]
    return (
        *about,
        f"{row.median('rate'):.0f}",
        digits(row.median("micros")),
        f"{digits(min(spread))}-{digits(max(spread))}",
        "-" if beside is None else f"{beside:.2f}",
        f"{row.median('wrk'):.0%}",
        f"{statistics.median(others(sample) for sample in row.samples):.0%}",
        row.notes(),
    )


def digits(micros: float) -> str:
    """Return µs with as many digits as mean something."""
    return f"{micros:.1f}" if micros < 100 else f"{micros:.0f}"


def size_text(size: int) -> str:
    """Return 64 B, 16 KB."""
    return f"{size // 1024} KB" if size % 1024 == 0 else f"{size} B"


def describe(setting: SpeedSetting) -> str:
    """Return a setting in words."""
    kept = "keep-alive" if setting.keep_alive else "a connection a request"
    return f"{size_text(setting.size)}, {kept}, access log {'on' if setting.access_log else 'off'}"


def ratio(rows: Sequence[Row], row: Row) -> float | None:
    """Return the CPU time a request of a row, in that of nginx at the same setting."""
    for other in rows:
        if other.server == REFERENCE and other.setting == row.setting and other.samples:
            return row.median("micros") / other.median("micros") if row.samples else None
    return None


def targets(rows: Sequence[Row]) -> list[tuple[str, float, float]]:
    """Return (model, CPU time a request in nginx's, the most it may be) of each target measured at TARGETS_AT."""
    reached = {row.server: ratio(rows, row) for row in rows if row.setting == TARGETS_AT}
    found = []
    for model, (names, most) in printed("SPEED").items():
        value = next((value for name in names if (value := reached.get(name)) is not None), None)
        if value is not None:
            found.append((model, value, most))
    return found


def report(rows: Sequence[Row]) -> str:
    """Return the table, the targets, and the reasons of what failed."""
    parts = [table(rows)]
    if found := targets(rows):
        parts.append(f"Targets, in nginx's CPU time a request at {describe(TARGETS_AT)}:")
        parts[-1] += "".join(
            f"\n  {model:8} {value:5.2f}, at most {most}: {'ok' if value <= most else 'MISSED'}"
            for model, value, most in found
        )
    failures = dict.fromkeys(f"{row.server}: {row.failure}" for row in rows if row.failure)
    if failures:
        parts.append("Failed:\n  " + "\n  ".join(failures))
    return "\n\n".join(parts)


def as_json(rows: Sequence[Row], about: Mapping[str, object]) -> str:
    """Return every sample as JSON, for other programs. about: what stands before the rows."""
    measured = [row for row in rows if row.samples or row.failure]
    return json.dumps(
        {
            **about,
            "rows": [
                {
                    "server": row.server,
                    **asdict(row.setting),
                    "connections": row.connections,
                    "samples": [{**facts(sample), "errors": sample.errors} for sample in row.samples],
                    "failures": [row.failure] if row.failure else [],
                    "ratio": ratio(rows, row),
                    "notes": row.notes(),
                }
                for row in measured
            ],
            "targets": [
                {"model": model, "ratio": value, "most": most, "ok": value <= most}
                for model, value, most in targets(rows)
            ],
        },
        indent=1,
    )


# ---------------------------------------------------------------------------------------------------------
# The command


def arguments() -> CommandParser:
    """Return the parser of the command line."""
    parser = CommandParser(
        prog="python -m ewe_lab.speed",
        description=f"Compare ewe's models with nginx. {docs_page('speed.md', 'ewe-lab')} explains it.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="1 KB with keep-alive and without a log only: about a minute")
    add("--models", type=types.words, default=[], metavar="LIST",
        help="with commas; nginx is always measured")  # fmt: skip
    add("--sizes", type=types.sizes, metavar="LIST", help="[64,1k,16k,128k; 1k with --quick]")
    add("--seconds", type=types.between(0.1, 600), help="of one measurement [2; 1 with --quick]")
    add("--repeats", type=types.count(1, 99), default=3, metavar="N", help="[3]")
    add("--connections", type=types.count(1, 1000), default=CONNECTIONS, metavar="N",
        help="[32; fewer where a server holds fewer]")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write every sample to a file as well")
    return parser


def duration(rows: int, seconds: float, repeats: int) -> float:
    """Return an estimate of the seconds that a run takes."""
    return rows * repeats * (OVERHEAD + WARM_UP + seconds)


def measure(rows: Sequence[Row], seconds: float, repeats: int) -> int:
    """Fill the rows, leave no process and no file behind; return the exit status."""
    before = {each.pid for each in tree(os.getpid())}
    quiet = not sys.stderr.isatty()
    heed_interrupts()
    try:
        with (
            Progress(file=io.StringIO() if quiet else None) as progress,
            LabBench(progress, repeats=repeats) as lab,
        ):
            jobs = jobs_of(lab, rows, seconds)
            progress.begin(duration(len(rows), seconds, repeats))
            for _ in lab.measure_all(jobs):
                pass
    except KeyboardInterrupt:
        print("Interrupted: this is what was measured until then.\n")
        return INTERRUPTED
    finally:
        ignore_interrupts()
        end_children(but=before)
    return 1 if any(row.failure for row in rows) else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print what was found; return the exit status."""
    parser = arguments()
    options = parser.parse_args(argv)
    seconds = options.seconds or SECONDS[not options.quick]
    sizes = options.sizes or (QUICK_SIZES if options.quick else SIZES)
    try:
        contenders = chosen(options.models)
        if options.json:
            options.json.touch()  # a file that cannot be written fails now, not after ten minutes
    except (LabError, OSError) as reason:
        parser.error(str(reason))
    if lacking := missing(("wrk", REFERENCE)):
        print(f"ewe_lab.speed: {lacking}", file=sys.stderr)
        return 1
    rows = plan(contenders, settings(sizes, options.quick), options.connections)
    known = machine([REFERENCE])
    about = {name: known[name] for name in FACTS}
    print("\n".join(f"{name + ':':10} {text}" for name, text in about.items()))
    took = duration(len(rows), seconds, options.repeats)
    length = f"{took:.0f} s" if took < 90 else f"{took / 60:.0f} minutes"
    print(f"{len(rows)} rows, {options.repeats} x {seconds:g} s each: about {length}\n", flush=True)
    status = measure(rows, seconds, options.repeats)
    print(report(rows))
    if options.json:
        before = {"machine": about, "seconds": seconds, "repeats": options.repeats}
        options.json.write_text(as_json(rows, before) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
