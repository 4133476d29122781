"""Our own: a Python application in the server's process, by WSGI beside gunicorn and by ASGI beside uvicorn.

All servers of a column run the same application, which answers 52 bytes. They are started together and loaded in
turns, in one order and then in the other, so that each round measures all of them within seconds. A round's ratio
is that of two neighbours in time: on a busy machine it is steadier than either rate.

For ASGI, both servers have the same event loop and an HTTP parser in Python (uvicorn with h11). uvicorn with
httptools, a parser in C, is a further row.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from ewe_lab.bench.experiment import Bench, Load, RunningServer
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.bench.verdicts import NOT_TESTABLE, Finding, verdict_of_parts
from ewe_lab.experiments.thesis_dynamic import probe
from ewe_lab.stacks.ways import ServingStack, serve_stack

CLIENTS = 32
ROUNDS = 7


def gunicorn() -> ServingStack:
    """Return gunicorn with the WSGI application."""
    return ServingStack("gunicorn", "wsgi", "python", program="hello", label="gunicorn")


def wsgi(model: str) -> ServingStack:
    """Return ewe under a model, with the WSGI application."""
    return ServingStack("ewe", "wsgi", "python", program="hello", model=model, label=f"ewe {model}")


def uvicorn(loop: str, parser: str) -> ServingStack:
    """Return uvicorn with the ASGI application, an event loop and an HTTP parser."""
    options = ("--loop", loop, "--http", parser)
    return ServingStack(
        "uvicorn", "asgi", "python", program="hello", options=options, label=f"uvicorn {parser}"
    )


def asgi(loop: str) -> ServingStack:
    """Return ewe with the ASGI application and an event loop, `uvloop` or `asyncio`, under the model asyncio."""
    return ServingStack(
        "ewe", "asgi", "python", program="hello", options=("--loop", loop), label="ewe asyncio"
    )


@dataclass(frozen=True)
class Contest:
    """The servers of one column. Each of `ours` must have at least `min_ratio` times the rate of the reference.

    others: servers that are measured, and of which the claim says nothing.
    """

    column: str
    reference: ServingStack
    ours: Sequence[ServingStack]
    min_ratio: float
    others: Sequence[ServingStack] = ()

    @property
    def stacks(self) -> tuple[ServingStack, ...]:
        """All servers of the column, the reference first."""
        return (self.reference, *self.ours, *self.others)


CONTESTS = (
    Contest("WSGI", gunicorn(), (wsgi("thread"), wsgi("pool"), wsgi("asyncio")), min_ratio=2.0),
    Contest(
        "ASGI, uvloop", uvicorn("uvloop", "h11"), (asgi("uvloop"),), min_ratio=1.0,
        others=(uvicorn("uvloop", "httptools"),),
    ),
    Contest(
        "ASGI, asyncio's loop", uvicorn("asyncio", "h11"), (asgi("asyncio"),), min_ratio=1.0,
        others=(uvicorn("asyncio", "httptools"),),
    ),
)  # fmt: skip


def run(lab: Bench) -> Iterator[Cell]:
    """Measure the columns one after the other; yield the cells."""
    for contest in CONTESTS:
        yield from take_turns(lab, contest)


def take_turns(lab: Bench, contest: Contest) -> Iterator[Cell]:
    """Start the servers of a column, load them in turns, and yield their cells."""
    cells: list[Cell] = []
    with ExitStack() as exits:
        running: list[tuple[RunningServer, Load, Cell]] = []
        for each in contest.stacks:
            if each.why_missing:
                lab.notes.append(f"{contest.column}: {each.why_missing}")
                continue
            cells.append(Cell(each.name, contest.column))
            try:
                server, path = exits.enter_context(serve_stack(lab, each))
                probe(server.url.rstrip("/") + path, each.page)
            except LabError as reason:
                cells[-1].failure = str(reason)
                continue
            load = Load(
                "saturation", users=CLIENTS, seconds=lab.quick_or_full(0.6, 1.5),
                warm_up=lab.quick_or_full(0.3, 0.5), path=path, length=each.length,
            )  # fmt: skip
            cells[-1].command, cells[-1].load = server.command, load.description()
            running.append((server, load, cells[-1]))
        for round_number in range(int(lab.quick_or_full(2, ROUNDS))):
            for server, load, cell in running if round_number % 2 else reversed(running):
                if cell.failure:  # with a round left out, median_ratio() would pair different rounds
                    continue
                try:
                    cell.samples.append(lab.load(server, load))
                except LabError as reason:  # the rounds so far, and the other servers, stay
                    cell.failure = str(reason)
    yield from cells


def median_ratio(table: ExperimentTable, contest: Contest, stack: ServingStack) -> float | None:
    """Return the median of the ratios of all rounds: the rate of `stack` over that of the contest's reference.

    None if one of the two was not measured.
    """
    cells = {cell.server: cell for cell in table.cells if cell.column == contest.column}
    ours, reference = cells.get(stack.name), cells.get(contest.reference.name)
    if ours is None or reference is None:
        return None
    # A server that failed has no later rounds (take_turns): the rates with the same index are of the same round
    pairs = zip(ours.values, reference.values, strict=False)
    ratios = [our_rate / reference_rate for our_rate, reference_rate in pairs if reference_rate]
    return statistics.median(ratios) if ratios else None


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim has a part for each column: the ratio that each server of ours must reach.
    """
    pieces, part_holds = [], []
    for contest in CONTESTS:
        measured = {stack.name: median_ratio(table, contest, stack) for stack in contest.ours}
        ratios = {name: found for name, found in measured.items() if found is not None}
        if not ratios:
            continue
        part_holds.append(min(ratios.values()) >= contest.min_ratio)
        ratios_text = ", ".join(f"{name} {found:.2f}" for name, found in ratios.items())
        reference = contest.reference.name
        pieces.append(
            f"{contest.column}: {ratios_text} times the rate of {reference} (wanted: {contest.min_ratio:g})"
        )
    if not pieces:
        return Finding(NOT_TESTABLE, "No server of ours was measured beside its reference.")
    verdict = verdict_of_parts(part_holds)
    return Finding(verdict, "; ".join(pieces) + ".")
