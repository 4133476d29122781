"""Thesis, table A.6: does each link carry its nominal speed?"""

from __future__ import annotations

from collections.abc import Iterator

from ewe_lab.bench.experiment import Bench, Load
from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.bench.verdicts import FAILS, HOLDS, NOT_TESTABLE, Finding
from ewe_lab.experiments.papers import printed
from ewe_lab.experiments.tested_servers import ASYNCIO

# The file for each link: large enough that the link is the limit.
FILE_BYTES = {"10mbit": 65_536, "100mbit": 262_144, "1gbit": 1_048_576}
NOMINAL_MBIT_S = {"10mbit": 10, "100mbit": 100, "1gbit": 1000}
PRINTED = printed("T-A6")  # Mbit/s by client and server
ACCEPTED_SHARES = (0.85, 1.02)  # least and greatest share of the nominal speed: packets have headers


def run(lab: Bench) -> Iterator[Cell]:
    """Measure the goodput of each link with a file of a suitable size; yield the cells."""
    root = lab.site(list(FILE_BYTES.values()))
    for speed in NOMINAL_MBIT_S:
        cell = Cell(speed, value="extra.goodput", unit="Mbit/s")
        if speed == "1gbit":
            # TAS01 and TAS02 are two machines of the thesis
            cell.paper, cell.paper_server = PRINTED["TAS01"]["TAS02"], "TAS01 to TAS02"
        with lab.behind_link(speed) as problem:
            if problem:
                cell.failure = problem
            else:
                load = Load(
                    "saturation",  # as many requests as the server answers
                    users=4,
                    seconds=lab.quick_or_full(2, 5),
                    warm_up=1,
                    timeout=20,
                    path=f"/{FILE_BYTES[speed]}.html",
                    length=FILE_BYTES[speed],
                )
                lab.fill_cell(ASYNCIO, load, cell, root)
        for sample in cell.samples:
            sample.extra["goodput"] = sample.received * 8 / sample.seconds / 1e6
        yield cell


def check(table: ExperimentTable) -> Finding:
    """Return the finding: the claim holds if each link carries nearly its nominal speed."""
    medians = {cell.server: cell.median for cell in table.cells if cell.median is not None}
    if not medians:
        return Finding(NOT_TESTABLE, "No link could be made here.")
    good = all(
        ACCEPTED_SHARES[0] <= value / NOMINAL_MBIT_S[speed] <= ACCEPTED_SHARES[1]
        for speed, value in medians.items()
    )
    summary = ", ".join(f"{speed} {value:.1f} Mbit/s" for speed, value in medians.items())
    return Finding(HOLDS if good else FAILS, f"Goodput: {summary}.")
