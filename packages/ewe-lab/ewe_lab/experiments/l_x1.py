"""LibCGI, section 2.1: the cost of calling a FastCGI program, and an engine of X-Switch.

A program that stays running needs no start, but its request goes to another process. The paper divides this cost:

    control          the kernel stops one process and lets the other run
    communication    the bytes of the request and of the answer are copied through a socket
    protocol         the bytes are encoded and decoded

No part can be measured alone, so ../load/exchanges.py runs three exchanges that differ by one part each. A part is
the difference of two runs, each the fastest of its rounds.

Possible failures: a difference of two times may be smaller than their noise. cells() then gives no figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.bench.verdicts import NOT_TESTABLE, Finding, verdict_of_parts
from ewe_lab.experiments.child_process import figures_of
from ewe_lab.experiments.papers import printed
from ewe_lab.load.exchanges import BYTE, COLUMNS, EACH_CONNECTION, MAX_RUN_S, PROTOCOL, RAW

CONTROL, COMMUNICATION, CODEC, TOTAL = "control", "IPC", "protocol", "total"
PARTS = (CONTROL, COMMUNICATION, CODEC)
PRINTED = printed("L-X1")  # µs
EXCHANGE_COUNTS = (1_500, 10_000)  # exchanges of each run, quick and full
ROUNDS = 3
REMARKS = (
    "Parts are differences between three runs, each the fastest of three rounds: other programs can only make a "
    "run slower.",
    "Neither end does anything else. ewe's gateways also handle timeouts, a spool and the header of CGI's output.",
    "An engine's answer and its end mark come over two sockets, so an engine needs one more transfer of data.",
)


def run(lab: Bench) -> Iterator[Cell]:
    """Measure the parts, for FastCGI with and without kept connections and for an engine; yield the cells."""
    count = int(lab.quick_or_full(*EXCHANGE_COUNTS))
    for column in COLUMNS:
        rounds: Mapping[str, Sequence[float]] = {}
        failure = ""
        try:
            rounds = measure_exchanges(column, count)
        except LabError as reason:
            failure = str(reason)
        yield from cells(column, count, rounds, failure)
    lab.notes += REMARKS


def measure_exchanges(column: str, count: int) -> dict[str, list[float]]:
    """Let another process make the runs; return the µs of an exchange in each round, by run. Raises LabError.

    column: one of COLUMNS. count: the exchanges of a run.
    """
    rounds: dict[str, list[float]] = figures_of(
        "ewe_lab.load.exchanges", [column, str(count), str(ROUNDS)], MAX_RUN_S,
        f"{count} exchanges took longer than {MAX_RUN_S} s",
    )  # fmt: skip
    return rounds


def micros_by_part(rounds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the µs of each of PARTS, and of all together (TOTAL). rounds: the µs of an exchange, by run."""
    byte, raw, protocol = (min(rounds[name]) for name in (BYTE, RAW, PROTOCOL))
    return {CONTROL: byte, COMMUNICATION: raw - byte, CODEC: protocol - raw, TOTAL: protocol}


RUNS_OF_PART = {CONTROL: (BYTE,), COMMUNICATION: (RAW, BYTE), CODEC: (PROTOCOL, RAW), TOTAL: (PROTOCOL,)}


def noise_of_part(part: str, rounds: Mapping[str, Sequence[float]]) -> float:
    """Return the µs by which a part may be wrong: the sum, over its runs, of how far the two fastest differ."""
    times = [sorted(rounds[name]) for name in RUNS_OF_PART[part]]
    return sum(each[1] - each[0] for each in times if len(each) > 1)


def cells(column: str, count: int, rounds: Mapping[str, Sequence[float]], failure: str) -> Iterator[Cell]:
    """Yield the cells of a column: one for each part of an exchange, and one for the whole exchange.

    rounds: the µs of an exchange by run, in each round; empty after a failure. A part that is not greater than its
    noise, the amount by which it may be wrong, has no figure.
    """
    found = micros_by_part(rounds) if rounds else {}
    for part in (*PARTS, TOTAL):
        cell = Cell(part, column, value="extra.micros", unit="µs", failure=failure)
        if column == EACH_CONNECTION:  # the paper's server opens a connection for each request
            # Figures are compared by server: the part stands for a server, also beside the printed figure
            cell.paper, cell.paper_server = PRINTED[part], part
        if found and (noise := noise_of_part(part, rounds)) >= found[part]:
            cell.failure = (
                f"not resolved: {found[part]:.0f} µs, while the fastest rounds differ by {noise:.0f} µs"
            )
        elif found:
            sample = Sample(
                "exchanges", seconds=0.0, requests=count, replies=count, extra={"micros": found[part]}
            )
            cell.samples.append(sample)
            cell.load = f"{count} exchanges, {ROUNDS} rounds"
        yield cell


def check(table: ExperimentTable) -> Finding:
    """Return the finding: the claim's two parts are that control takes most, and the protocol least."""
    medians = {
        cell.server: cell.median
        for cell in table.cells
        if cell.column == EACH_CONNECTION and cell.median is not None
    }
    if len(medians) < len(PARTS) + 1:
        return Finding(NOT_TESTABLE, "The parts were not all measured.")
    least, *_, most = sorted(PARTS, key=lambda part: medians[part])
    part_holds = (most == CONTROL, least == CODEC)
    summary = ", ".join(f"{part} {medians[part]:.0f} µs" for part in PARTS)
    verdict = verdict_of_parts(part_holds)
    return Finding(verdict, f"Most is {most}, least is {least} ({summary}).")
