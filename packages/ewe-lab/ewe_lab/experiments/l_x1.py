"""LibCGI, section 2.1: what it costs to call a FastCGI program, and an engine of X-Switch."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence

from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.processes import LabError, ended, one_line, running, text_of, two_cores
from ewe_lab.bench.results import Cell, Sample, Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.papers import printed
from ewe_lab.load.child import environment
from ewe_lab.load.exchanges import BYTE, COLUMNS, EACH, LONGEST, PROTOCOL, RAW

CONTROL, COMMUNICATION, CODEC, TOTAL = "control", "IPC", "protocol", "total"
PARTS = (CONTROL, COMMUNICATION, CODEC)
PRINTED = printed("L-X1")  # µs
COUNT = (1_500, 10_000)  # exchanges of each run
ROUNDS = 3
REMARKS = (
    "Parts are differences between three runs, each the fastest of three rounds: other programs can only make a "
    "run slower.",
    "Neither end does anything else: ewe's own way to a program also has timeouts, a spool and CGI's output.",
    "An engine's answer and its end mark come over two sockets: it has one transfer of data more.",
)


def run(lab: Bench) -> Iterator[Cell]:
    """Measure the parts, for FastCGI with and without kept connections and for an engine."""
    count = int(lab.seconds(*COUNT))
    for column in COLUMNS:
        rounds: Mapping[str, Sequence[float]] = {}
        failure = ""
        try:
            rounds = measured(column, count)
        except LabError as reason:
            failure = str(reason)
        yield from cells(column, count, rounds, failure)
    lab.notes += REMARKS


def measured(column: str, count: int) -> dict[str, list[float]]:
    """Return the µs of an exchange of each run, measured by another process. Raises LabError."""
    asked = [sys.executable, "-m", "ewe_lab.load.exchanges", column, str(count), str(ROUNDS)]
    with (
        tempfile.TemporaryFile() as said,
        tempfile.TemporaryFile() as output,
        running(asked, said, two_cores()[0], env=environment(), stdout=output) as started,
    ):
        if not ended(started, LONGEST):
            raise LabError(f"{count} exchanges took longer than {LONGEST} s")
        output.seek(0)
        try:
            rounds: dict[str, list[float]] = json.loads(output.read())
        except ValueError:
            raise LabError(one_line(text_of(said))) from None
    return rounds


def parts(rounds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the µs of each part, and of all together."""
    byte, raw, whole = (min(rounds[name]) for name in (BYTE, RAW, PROTOCOL))
    return {CONTROL: byte, COMMUNICATION: raw - byte, CODEC: whole - raw, TOTAL: whole}


def cells(column: str, count: int, rounds: Mapping[str, Sequence[float]], failure: str) -> Iterator[Cell]:
    """Return the cells of a column."""
    found = parts(rounds) if rounds else {}
    for part in (*PARTS, TOTAL):
        cell = Cell(part, column, None, "extra.micros", "µs", failure=failure)
        if column == EACH:  # the paper's server opens a connection for each request
            cell.paper, cell.paper_server = PRINTED[part], part
        if found:
            sample = Sample("exchanges", 0.0, count, count, extra={"micros": found[part]})
            cell.samples.append(sample)
            cell.load = f"{count} exchanges, {ROUNDS} rounds"
        yield cell


def check(table: Table) -> Finding:
    """The claim has two parts: control takes most, the protocol least."""
    found = {
        cell.server: cell.median for cell in table.cells if cell.column == EACH and cell.median is not None
    }
    if len(found) < len(PARTS) + 1:
        return Finding(NOT_TESTABLE, "The parts were not all measured.")
    order = sorted(PARTS, key=lambda part: found[part])
    kept = (order[-1] == CONTROL, order[0] == CODEC)
    told = ", ".join(f"{part} {found[part]:.0f} µs" for part in PARTS)
    word = HOLDS if all(kept) else IN_PART if any(kept) else FAILS
    return Finding(word, f"Most is {order[-1]}, least is {order[0]} ({told}).")
